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
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.interface import Broker, Push, Request, SessionId
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.cluster.codec import BUILDERS, NoValue, decode, is_value_class
from laneway.cluster.edge import Edge
from laneway.cluster.following import FollowedTopology, image_of
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.cluster.tidying import Tidying
from laneway.errors import LanewayError
from laneway.journal.segments.journal import SegmentJournal

#: For tests that look into the partition behind the broker's back, and so need it at once and in this process.
inside = pytest.mark.skipif(
    os.environ.get("LANEWAY_TEST_BROKER") in ("socket", "edge"), reason="looks into the partition behind the socket"
)

#: For tests of what the first partition has, in a server whose queues lie in another.
of_the_first = pytest.mark.skipif(
    os.environ.get("LANEWAY_TEST_BROKER") == "edge",
    reason="is about partition 0, and queues lie in another",
)
_SECOND: WeakKeyDictionary[Partition, Partition] = WeakKeyDictionary()

REFUSED = "REFUSED"  # what a line about something that is no value begins with, in the file of kinds


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, memoryview):
            return bytes, (bytes(obj),)
        if callable(obj) and not is_value_class(obj):  # those are asked about too, of whom pickle makes use itself
            name = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
            if name not in BUILDERS:
                raise NoValue(f"{obj!r} is no value: code does not cross a socket")
        return NotImplemented


def encoded(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, 5).dump(value)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise NoValue(f"{type(value).__name__} is no value: {error}") from error
    return file.getvalue()


def through_bytes(value: Any) -> Any:
    """The value as it arrives at the other end."""
    return decode(encoded(value))


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

    def on_document(self, call: Callable[[str, str, bytes | None], None]) -> None:
        self._inner.on_document(lambda *told: call(*self._carried(told)))

    def on_queue(self, call: Callable[[str, str, bool], None]) -> None:
        self._inner.on_queue(lambda *told: call(*self._carried(told)))

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


async def for_tests(broker: LocalBroker) -> Broker:
    """The broker as LANEWAY_TEST_BROKER says: itself, the stand-in, one that reaches it over a socket, or an edge
    before it and a second partition, in which all queues lie."""
    kind = os.environ.get("LANEWAY_TEST_BROKER")
    if kind == "wire":
        file = os.environ.get("LANEWAY_TEST_KINDS")
        return WireBroker(broker, Path(file) if file else None)
    if kind == "socket":
        return await over_a_socket(broker)
    if kind == "edge":
        return await beside_another(broker)
    return broker


async def over_a_socket(broker: LocalBroker) -> RemoteBroker:
    """As an edge in another process has it, but on one loop."""
    folder = tempfile.mkdtemp(prefix="laneway-")
    path = f"{folder}/leader"
    server, remote = PartitionServer(broker), RemoteBroker(path, 1, broker.now)
    await server.start(path)
    await remote.start()
    shutil.rmtree(folder)  # who is connected stays so
    return remote


def folder_of_queues(folder: Path | str) -> str:
    """The journal of where queues lie, in a server whose first partition has this folder."""
    return f"{folder}-second" if os.environ.get("LANEWAY_TEST_BROKER") == "edge" else str(folder)


def queues_of(partition: Partition) -> Partition:
    """Where the queues of a server lie whose first partition this is."""
    return _SECOND.get(partition, partition)


class QueuesLieInTheSecond(FollowedTopology):
    def home(self, vhost: str, name: str) -> int:
        return 1


async def beside_another(broker: LocalBroker) -> Edge:
    """An edge as a process has it that leads the first partition; the second is behind a socket, and has all queues.
    The second one's clock is the first one's, and it stops with that."""
    first: Any = broker._partition
    here, there = QueuesLieInTheSecond(2), QueuesLieInTheSecond(2)
    journal = SegmentJournal(folder_of_queues(first.engine.journal._folder))
    engine = Engine(journal, new_tag=lambda: 8, partition=1, world=there)
    second = Partition(engine, clock=Clock.steady(broker.now), limits=first.limits, idle_ms=first._idle_ms)
    await second.start()
    _SECOND[first] = second
    led = LocalBroker(second)
    first.engine.state.world = here
    servers = PartitionServer(broker), PartitionServer(led)
    folder = tempfile.mkdtemp(prefix="laneway-")
    for server, local, model, number in zip(servers, (broker, led), (here, there), (0, 1), strict=True):
        model.feeds[number].begin(image_of(local.model))
        local.follow(model.feeds[number].apply)
        await server.start(f"{folder}/{number}")
        Tidying(local, model, number)
    remotes = (
        RemoteBroker(f"{folder}/0", 1, broker.now, there.feeds[0]),
        RemoteBroker(f"{folder}/1", 0, broker.now, here.feeds[1]),
    )
    for remote in remotes:
        await remote.start()
    shutil.rmtree(folder)  # who is connected stays so
    stop_first, time_passed = first.stop, first._on_timer

    async def stop(*patience_s: float) -> None:
        for remote in remotes:
            await remote.stop()
        for server in servers:
            await server.stop()
        await second.stop(*patience_s)
        await stop_first(*patience_s)

    def on_timer() -> None:
        time_passed()
        second._on_timer()

    first.stop, first._on_timer = stop, on_timer
    edge = Edge([broker, remotes[1]], here, limits=broker.limits, barriers={0: servers[0].barrier.wait})
    first.crossing.start(edge.to_partition)
    brokers = remotes[0], led
    second.crossing.start(lambda number, request, done: brokers[number].send(request, done))
    return edge
