"""The tree at the top of errors.py is the one that the code builds: every class is drawn below its parent."""

from __future__ import annotations

import inspect
import re

from laneway import errors
from laneway.errors import LanewayError

INDENT = 4  # characters for each level of the drawing
_LINE = re.compile(r"(?P<branches>[ │├└─]*)(?P<names>[A-Z]\w+(?: · [A-Z]\w+)*)(?: .*)?")


def classes() -> dict[str, type]:
    """The exceptions that errors.py defines."""
    found = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in found if kind.__module__ == errors.__name__}


def drawn(docstring: str) -> dict[str, str | None]:
    """Class name -> name of its parent in the drawing; None for the root. Several classes may share a line."""
    lines = docstring.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip() == LanewayError.__name__)
    margin = len(lines[first]) - len(lines[first].lstrip())
    parents: dict[str, str | None] = {}
    above: list[str] = []  # the class last drawn at each level
    for line in lines[first:]:
        found = _LINE.fullmatch(line[margin:].rstrip())
        if found is None:
            break
        level = len(found["branches"]) // INDENT
        names = found["names"].split(" · ")
        for name in names:
            assert name not in parents, f"{name} is drawn twice"
            parents[name] = above[level - 1] if level else None
        above[level:] = [names[-1]]
    return parents


def test_the_drawing_shows_every_class_below_its_parent_and_no_other() -> None:
    defined = {
        name: kind.__bases__[0].__name__ if kind is not LanewayError else None for name, kind in classes().items()
    }
    assert drawn(errors.__doc__ or "") == defined


def test_every_class_has_one_parent() -> None:
    assert [name for name, kind in classes().items() if len(kind.__bases__) != 1] == []


def test_every_class_has_a_code_of_its_own() -> None:
    codes = {name: kind.__dict__.get("code") for name, kind in classes().items()}
    assert [name for name, code in codes.items() if not isinstance(code, str)] == []
    assert len(set(codes.values())) == len(codes)
    assert [code for code in codes.values() if not re.fullmatch("[a-z]+(_[a-z]+)*", str(code))] == []


def test_a_drawing_is_read_level_by_level() -> None:
    drawing = """
    LanewayError
    ├── NotFound       no such thing
    │   └── QueueNotFound · TaskNotFound
    └── Gone
        └── CursorLost of no use any more

    That was the tree.
    """
    assert drawn(drawing) == {
        "LanewayError": None,
        "NotFound": "LanewayError",
        "QueueNotFound": "NotFound",
        "TaskNotFound": "NotFound",
        "Gone": "LanewayError",
        "CursorLost": "Gone",
    }
