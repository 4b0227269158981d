"""A stand-in for a broker that lies behind a socket: every request, answer, push and look at the topology goes through
bytes and back. What is no value (a live object, a callable) is refused by name, so nothing can slip through.

With LANEWAY_TEST_BROKER=wire the servers of the front ends' tests use it (`for_tests`, and tests/conftest.py for those
that start a Node). The kinds of requests that came through are appended to the file that LANEWAY_TEST_KINDS names, and
so is what was refused: an exception in the midst of a server is easily overlooked.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from laneway.broker.interface import Broker, Push, Request, SessionId
from laneway.core.catalogue import QueueName
from laneway.core.digits import Tokens
from laneway.core.runs import Seqs
from laneway.errors import LanewayError
from laneway.journal.interface import Extent, Held, Place

#: Where values are defined. Of these modules it is the structs and the errors: what else they hold is no value.
VALUE_MODULES = {
    "laneway.broker.interface",
    "laneway.broker.values",
    "laneway.core.catalogue",
    "laneway.core.deliveries",
    "laneway.core.exchanges",
    "laneway.core.message",
    "laneway.core.settings",
    "laneway.core.stories",
    "laneway.errors",
}
#: Values that are neither.
OTHER_VALUES = (Extent, Held, Place, QueueName, Seqs, Tokens)

#: What the standard library and msgspec need to build values. They hold no more than other values.
BUILDERS = {
    ("array", "_array_reconstructor"),
    ("array", "array"),
    ("builtins", "bytearray"),
    ("builtins", "bytes"),
    ("builtins", "frozenset"),
    ("builtins", "range"),
    ("builtins", "set"),
    ("datetime", "datetime"),
    ("datetime", "timezone"),
    ("laneway.errors", "rebuilt"),
    ("msgspec._utils", "rebuild"),
}

REFUSED = "REFUSED"  # what a line about something that is no value begins with, in the file of kinds


class NoValue(AssertionError):
    """Something was to cross the interface that could not cross a socket."""


def is_value_class(found: Any) -> bool:
    if not isinstance(found, type):
        return False
    if found in OTHER_VALUES:
        return True
    return found.__module__ in VALUE_MODULES and issubclass(found, msgspec.Struct | LanewayError)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, memoryview):
            return bytes, (bytes(obj),)
        if callable(obj) and not is_value_class(obj):  # those are asked about too, of whom pickle makes use itself
            name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
            if name not in BUILDERS:
                raise NoValue(f"{obj!r} is no value: code does not cross a socket")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in BUILDERS:
            return super().find_class(module, name)
        found = super().find_class(module, name) if module.startswith("laneway.") else None
        if is_value_class(found):
            return found
        raise NoValue(f"{module}.{name} is no value: it could not cross a socket")


def encoded(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, 5).dump(value)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise NoValue(f"{type(value).__name__} is no value: {error}") from error
    return file.getvalue()


def decoded(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


def through_bytes(value: Any) -> Any:
    """The value as it arrives at the other end."""
    return decoded(encoded(value))


class WireTopology:
    """The topology of a node that has a copy of its own: what is asked of it is answered at once, with values."""

    def __init__(self, inner: Any, carried: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._carried = carried

    @property
    def version(self) -> int:
        version: int = self._carried(self._inner.version)
        return version

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        self._inner.on_vhost_deleted(lambda name: call(self._carried(name)))

    def __getattr__(self, name: str) -> Any:
        return partial(self._ask, getattr(self._inner, name))

    def _ask(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        arguments, options = self._carried((arguments, options))
        try:
            return self._carried(method(*arguments, **options))
        except LanewayError as error:
            raise self._carried(error) from None


class WireBroker:
    def __init__(self, inner: Broker, file: Path | None = None) -> None:
        self._inner = inner
        self._file = file
        self.kinds: set[str] = set()  # of requests that came through
        self.topology: Any = WireTopology(inner.topology, self._carried)
        self.limits = self._carried(inner.limits)

    def now(self) -> int:
        now_ms: int = self._carried(self._inner.now())
        return now_ms

    def health(self) -> dict[str, object]:
        health: dict[str, object] = self._carried(self._inner.health())
        return health

    def call_soon(self, call: Callable[[], None]) -> None:
        self._inner.call_soon(call)  # on this side of the socket

    def send(self, request: Request, done: Callable[[Any], None]) -> int:
        number: int = self._carried(
            self._inner.send(self._request(request), lambda answer: done(self._carried(answer)))
        )
        return number

    async def ask(self, request: Request) -> Any:
        try:
            return self._carried(await self._inner.ask(self._request(request)))
        except LanewayError as error:
            raise self._carried(error) from None

    def withdraw(self, number: int, *, answer: bool = False) -> None:
        self._inner.withdraw(self._carried(number), answer=self._carried(answer))

    def open_session(self, push: Callable[[list[Push]], None]) -> SessionId:
        session: SessionId = self._carried(self._inner.open_session(lambda value: push(self._carried(value))))
        return session

    def _request(self, request: Request) -> Any:
        assert isinstance(request, Request), f"{request!r} is no request"
        kind = type(request).__name__
        if kind not in self.kinds:
            self.kinds.add(kind)
            self._note(kind)
        return self._carried(request)

    def _carried(self, value: Any) -> Any:
        try:
            return through_bytes(value)
        except NoValue as refusal:
            self._note(f"{REFUSED} {' '.join(str(refusal).split())}")
            raise

    def _note(self, line: str) -> None:
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(f"{line}\n")


def for_tests(broker: Broker) -> Broker:
    """The broker itself, or the stand-in if the tests are to go through bytes."""
    if os.environ.get("LANEWAY_TEST_BROKER") != "wire":
        return broker
    file = os.environ.get("LANEWAY_TEST_KINDS")
    return WireBroker(broker, Path(file) if file else None)
