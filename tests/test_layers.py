"""Keeps the layers of ARCHITECTURE.md true by reading the imports of src/laneway. The tables below are the rule.

Dependencies point down: cli → node → frontends → broker → {journal, cluster} interfaces → core → errors.
Imports for type checking count as well: a layer that names another's types depends on it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from laneway.broker.interface import Broker

SOURCE = Path(__file__).parent.parent / "src" / "laneway"

# What is stored, as bytes: whoever reads a journal may name these and no more of core.
EVENT_WORDS = {"core.events", "core.rows", "core.message", "core.catalogue"}

# Values and their encodings, which front ends may name: messages, deliveries, ids and tokens, settings, properties.
VALUES = {
    "core.message", "core.deliveries", "core.digits", "core.runs", "core.settings", "core.field_tables",
    "core.property_lists",
}  # fmt: skip

# All that front ends see of the broker.
BROKER = {"broker.interface", "broker.values", "broker.arguments"}

# A module belongs to the longest entry that starts its name. It may import itself and what is below one of these.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "journal": {"errors", *EVENT_WORDS},
    "journal.history": {"errors", "journal.interface", *EVENT_WORDS},
    "journal.stored": {"errors", "journal.interface", "journal.history", *EVENT_WORDS},
    "journal.segments": {"errors", "journal.interface", "journal.history", "journal.stored", *EVENT_WORDS},
    "journal.postgres": {"errors", "journal.interface", "journal.history", "journal.stored", *EVENT_WORDS},
    "journal.copying": {"errors", "journal.interface", "journal.history", "journal.postgres"},
    "cluster": {
        "errors",
        "core",
        "journal.interface",
        "broker.interface",
        "broker.values",
        "broker.topology",
        "broker.parts",
    },
    "telemetry": {"errors"},
    "resources": {"errors"},
    "broker": {"errors", "regexes", "core", "journal.interface", "cluster.interface", "telemetry"},
    "regexes": {"errors"},
    "access": {"errors", "regexes", "telemetry"},
    "frontends": set(),
    "frontends.doors": {"errors", "access", "telemetry"},
    "frontends.http": {"errors", "access", "frontends.doors", "resources", "telemetry"},
    "frontends.rest": {
        "errors",
        "frontends.http",
        "frontends.doors",
        *VALUES,
        *BROKER,
        "access",
        "resources",
        "telemetry",
    },
    "frontends.amqp": {"errors", "frontends.doors", *VALUES, *BROKER, "access", "resources", "telemetry"},
    "frontends.sqs": {"errors", "frontends.http", *VALUES, *BROKER, "access", "telemetry"},
    "frontends.management": {
        "errors",
        "regexes",
        "frontends.http",
        "frontends.doors",
        *VALUES,
        *BROKER,
        "access",
        "telemetry",
    },
    "pipeline": {"errors", "journal", "client", "core.partitions", *EVENT_WORDS},
    "console": set(),
    "client": set(),
    "demo": {"client"},
    "config": {"errors", "core.settings"},
    "logs": set(),
    "reloading": {"errors", "config"},
    "first_admin": {"errors", "access"},
    "node": {
        "errors",
        "config",
        "first_admin",
        "logs",
        "reloading",
        "core",
        "journal",
        "cluster",
        "broker",
        "access",
        "frontends",
        "resources",
        "telemetry",
    },
    "cli": {
        "errors",
        "config",
        "first_admin",
        "logs",
        "core",
        "journal",
        "access",
        "client",
        "demo",
        "node",
        "pipeline",
    },
    "__main__": {"cli"},
}

# Packages from outside, by layer; a layer that is not named uses the standard library alone.
MAY_USE: dict[str, set[str]] = {
    "core": {"msgspec", "xxhash"},
    "journal": {"msgspec", "xxhash"},
    "journal.history": {"msgspec", "xxhash"},
    "journal.postgres": {"psycopg"},
    "journal.copying": {"xxhash"},
    "cluster": {"httpx", "msgspec"},
    "telemetry": {"msgspec", "prometheus_client"},
    "broker": {"msgspec"},
    "access": {"msgspec"},
    "frontends.doors": {"msgspec"},
    "frontends.http": {"httptools", "msgspec"},
    "frontends.rest": {"msgspec"},
    "frontends.amqp": {"msgspec"},
    "frontends.sqs": {"msgspec"},
    "frontends.management": {"msgspec", "xxhash"},
    "regexes": {"regex"},
    "pipeline": {"grpc", "httpx", "msgspec", "numpy", "pandas", "pyarrow", "pyspark"},
    "client": {"httpx", "msgspec"},
    "config": {"msgspec"},
    "reloading": {"msgspec"},
    "node": {"httpx", "msgspec", "uvloop"},
    "cli": {"click", "httpx", "msgspec", "rich", "uvloop"},
}

# The core is pure: time, chance and the world outside are passed in. A list of what is allowed finds more than one of
# what is forbidden. Some of these hold impure names too, which the second set catches wherever they are used.
PURE_STANDARD_LIBRARY = {
    "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "contextlib", "copy", "dataclasses",
    "datetime", "enum", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "re", "string",
    "struct", "types", "typing", "uuid",
}  # fmt: skip
IMPURE_NAMES = {
    "now", "utcnow", "today", "uuid1", "uuid4", "uuid6", "uuid7", "getnode", "open", "print", "input", "breakpoint",
    "exec", "eval", "__import__",
}  # fmt: skip


def _layer_of(module: str, table: Mapping[str, object]) -> str | None:
    matches = [layer for layer in table if module == layer or module.startswith(layer + ".")]
    return max(matches, key=len, default=None)


def _imports(module: str, is_package: bool, tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of each import; a submodule named after `import` is told from a plain name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = f"laneway.{module}".split(".") if module else ["laneway"]
                keep = len(parts) - node.level + (1 if is_package else 0)
                base = ".".join([*parts[:keep], *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if whole.removeprefix("laneway.") in modules else base


def _impurities(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in IMPURE_NAMES:
            yield node.lineno, node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in IMPURE_NAMES:
            yield node.lineno, node.id
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in IMPURE_NAMES)


# What a front end could reach around the interface with, were the broker that it holds not behind it.
INNER_NAMES = {"engine", "journal", "committer", "inbox", "_partition", "_inbox", "_engine"}

# All that it may ask of something that it calls a broker.
BROKER_NAMES = {name for name in (*vars(Broker), *Broker.__annotations__) if not name.startswith("_")}


def _ways_around(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Attributes of the broker's inside, also by getattr; and of a broker all that is not of its interface."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = _called(node.value)
            if node.attr in INNER_NAMES and name != "self":
                yield node.lineno, node.attr
            elif name in ("broker", "_broker") and node.attr not in BROKER_NAMES:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and _called(node.func) in ("getattr", "attrgetter"):
            words = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from ((node.lineno, part) for word in words for part in word.split(".") if part in INNER_NAMES)


def _called(node: ast.AST) -> str:
    """The last name of what an expression is about."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def violations(sources: Mapping[str, str]) -> list[str]:
    """What breaks the layering in these files, given as {path below src/laneway: source}."""
    names = {path: path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in sources}
    names = {path: "" if name == "__init__" else name for path, name in names.items()}
    modules = set(names.values())
    found: list[str] = []
    for path, source in sorted(sources.items()):
        module, tree = names[path], ast.parse(source, path)
        layer = _layer_of(module, MAY_IMPORT) if module else ""
        if layer is None:
            found.append(f"{path}: {module} is in no layer; give it a line in MAY_IMPORT")
            continue
        for line, target in _imports(module, path.endswith("__init__.py"), tree, modules):
            problem = _problem(layer, target)
            if problem:
                found.append(f"{path}:{line}: {problem}")
        if layer.startswith("frontends"):
            found.extend(f"{path}:{line}: a front end may not reach for .{name}" for line, name in _ways_around(tree))
        if layer == "core":
            found.extend(f"{path}:{line}: core is pure and may not use {name}" for line, name in _impurities(tree))
    return found


def _problem(layer: str, target: str) -> str | None:
    top, _, inner = target.partition(".")
    if top == "laneway":
        if not inner:
            return None  # the package itself holds its version and nothing else
        if not layer:
            return f"laneway/__init__.py may import nothing of laneway, but imports {inner}"
        same_layer = _layer_of(inner, MAY_IMPORT) == layer
        allowed = same_layer or _layer_of(inner, dict.fromkeys(MAY_IMPORT[layer])) is not None
        return None if allowed else f"{layer} may not import {inner}"
    if layer == "core" and top in sys.stdlib_module_names:
        return None if top in PURE_STANDARD_LIBRARY else f"core is pure and may not import {target}"
    if top in sys.stdlib_module_names or top in MAY_USE.get(layer, set()):
        return None
    return f"{layer or 'laneway/__init__.py'} may not use the package {top}"


def test_imports_point_down_the_layers() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}
    assert sources, f"no sources below {SOURCE}"
    assert violations(sources) == []


@pytest.mark.parametrize(
    ("path", "source", "complaint"),
    [
        ("core/state.py", "import time", "core is pure and may not import time"),
        ("core/state.py", "import os.path", "core is pure and may not import os.path"),
        ("core/state.py", "def f():\n    from random import random", "core is pure and may not import random"),
        ("core/state.py", "from datetime import datetime\nt = datetime.now()", "core is pure and may not use now"),
        ("core/state.py", "from uuid import uuid4", "core is pure and may not use uuid4"),
        ("core/state.py", "open('x')", "core is pure and may not use open"),
        ("core/state.py", "import httpx", "core may not use the package httpx"),
        ("core/state.py", "from laneway.broker import values", "core may not import broker.values"),
        ("core/state.py", "from ..journal.interface import Commit", "core may not import journal.interface"),
        ("core/__init__.py", "from ..broker import values", "core may not import broker.values"),
        (
            "broker/partition.py",
            "from laneway.journal.segments import segment",
            "broker may not import journal.segments",
        ),
        ("broker/partition.py", "import laneway.frontends.rest", "broker may not import frontends.rest"),
        ("journal/history/files.py", "from laneway.core import state", "journal.history may not import core.state"),
        ("journal/history/files.py", "import laneway.journal.postgres", "journal.history may not import journal.pos"),
        (
            "frontends/rest/api.py",
            "from laneway.frontends.amqp import frames",
            "frontends.rest may not import frontends.a",
        ),
        (
            "frontends/rest/api.py",
            "from laneway.journal.interface import Journal",
            "frontends.rest may not import jour",
        ),
        (
            "frontends/rest/api.py",
            "from laneway.broker.partition import Partition",
            "frontends.rest may not import broker.partition",
        ),
        ("frontends/sqs/api.py", "from laneway.core.state import State", "frontends.sqs may not import core.state"),
        ("frontends/amqp/channel.py", "x = ch.broker.engine", "a front end may not reach for .engine"),
        ("frontends/amqp/channel.py", "x = self._broker.state", "a front end may not reach for .state"),
        ("frontends/rest/api.py", "x = broker._partition.queues", "a front end may not reach for ._partition"),
        ("frontends/rest/api.py", "x = self._broker.sessions.open", "a front end may not reach for .sessions"),
        ("frontends/rest/api.py", "x = self._broker.topology.inbox", "a front end may not reach for .inbox"),
        ("frontends/sqs/api.py", "x = getattr(self.node, 'committer')", "a front end may not reach for .committer"),
        ("frontends/sqs/api.py", "f = attrgetter('x.journal')", "a front end may not reach for .journal"),
        ("frontends/rest/api.py", "import starlette", "frontends.rest may not use the package starlette"),
        ("client/http.py", "from laneway.errors import LanewayError", "client may not import errors"),
        ("access/accounts.py", "from laneway.core.message import Draft", "access may not import core.message"),
        ("errors.py", "import laneway.core", "errors may not import core"),
        ("__init__.py", "from laneway.core import message", "laneway/__init__.py may import nothing of laneway"),
        ("odds/ends.py", "", "odds.ends is in no layer"),
        (
            "broker/partition.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import laneway.node",
            "broker may not import node",
        ),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str, complaint: str) -> None:
    others = (
        "core/state.py",
        "broker/values.py",
        "broker/partition.py",
        "frontends/amqp/frames.py",
        "journal/segments/segment.py",
    )
    found = violations({**dict.fromkeys(others, ""), path: source})
    assert len(found) == 1, found
    assert path in found[0] and complaint in found[0]


def test_what_is_allowed_is_not_complained_about() -> None:
    allowed = {
        "__init__.py": "__version__ = '1'",
        "core/state.py": "import msgspec, bisect\nfrom laneway.errors import InvalidInput\nfrom . import message",
        "core/message.py": "import struct, uuid\nfrom datetime import datetime\nx = uuid.UUID(int=1)",
        "journal/history/files.py": "import os\nfrom laneway.core.events import Event\nfrom ..interface import Commit",
        "broker/partition.py": "import asyncio\nfrom laneway.journal.interface import Journal\nimport laneway.core",
        "frontends/http/head.py": "import httptools",
        "frontends/rest/api.py": "import laneway.broker.interface\nfrom laneway import __version__\nx = hand.state",
        "frontends/rest/hot.py": "async def f(broker):\n    return await broker.ask(1), broker.topology.version",
        "node.py": "from laneway.journal.history.files import open_folder\nimport uvloop",
    }
    assert violations(allowed) == []
