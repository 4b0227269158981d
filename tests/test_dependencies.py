"""Every package that Laneway needs is pinned, and every one that serving needs has its reason written down."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match.group()).lower()


def _pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", line), f"not a plain name==version: {line}"
    return {_name(line): line.split("==")[1] for line in lines}


def test_every_runtime_dependency_has_its_reason_in_the_docs() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+?) \|$", (ROOT / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(map(_name, PROJECT["dependencies"]))
    assert all(len(reason) > 20 for _, reason in rows)


def test_every_dependency_is_pinned_to_one_version() -> None:
    wanted = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    assert {_name(one) for one in wanted} - _pins().keys() == set()
