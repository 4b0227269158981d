"""A whole server for the tests here: journal in a folder, broker, access and HTTP front end, on a loop in a thread.

Tests talk to it from outside, over sockets, with bytes (`connect`) or with httpx (`client`). `transcript` hands bytes
to a connection in exactly the pieces that a test wants, which a real socket would not promise.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from laneway.access import Access
from laneway.broker.clock import Clock
from laneway.broker.documents import Documents
from laneway.broker.engine import Engine
from laneway.broker.interface import Broker, Request
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.core.events import Event
from laneway.frontends.http.protocol import HttpConnection
from laneway.frontends.http.server import HttpServer
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.server import RestServer
from tests.in_thread import DEADLINE_S, InThread
from tests.journals import journal_for
from tests.wire_broker import for_tests, queues_of

_E = TypeVar("_E", bound=Event)


class Response:
    def __init__(self, head: bytes, body: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.version, status, self.reason = lines[0].split(" ", 2)
        self.status = int(status)
        self.headers = [tuple(line.split(": ", 1)) for line in lines[1:]]
        self.body = body

    def header(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        return ", ".join(found) if found else None

    def json(self) -> Any:
        return httpx.Response(200, content=self.body).json()

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.json()["error"])


def take_response(data: bytes, *, to_head: bool = False) -> tuple[Response, bytes] | None:
    """The first response in these bytes and what follows it; None if it is not all there."""
    head, found, rest = data.partition(b"\r\n\r\n")
    if not found:
        return None
    response = Response(head, b"")
    size = 0 if to_head else int(response.header("content-length") or 0)
    if len(rest) < size:
        return None
    response.body = rest[:size]
    return response, rest[size:]


def take_responses(data: bytes) -> list[Response]:
    responses = []
    while data:
        taken = take_response(data)
        assert taken is not None, f"half a response: {data!r}"
        responses.append(taken[0])
        data = taken[1]
    return responses


class Wire:
    """One TCP connection, spoken byte by byte."""

    def __init__(self, address: tuple[str, int], connected: socket.socket | None = None) -> None:
        self.socket = connected or socket.create_connection(address, timeout=DEADLINE_S)
        self._received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, *, to_head: bool = False) -> Response:
        while True:
            taken = take_response(self._received, to_head=to_head)
            if taken is not None:
                self._received = taken[1]
                return taken[0]
            more = self.socket.recv(1 << 16)
            assert more, f"closed after {self._received!r}"
            self._received += more

    def read_to_the_end(self) -> bytes:
        """Everything until the server closes; a time-out means that it did not."""
        while more := self.socket.recv(1 << 16):
            self._received += more
        received, self._received = self._received, b""
        return received

    def ask(self, method: str, target: str, body: bytes = b"", headers: str = "") -> Response:
        self.send(request(method, target, body, headers))
        return self.read(to_head=method == "HEAD")

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request(method: str, target: str, body: bytes = b"", headers: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body or method in ("POST", "PUT", "PATCH") else ""
    kind = "Content-Type: application/json\r\n" if body and "content-type" not in headers.lower() else ""
    return f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n{kind}{length}{headers}\r\n".encode() + body


class RecordingTransport:
    """What a connection needs of a transport, with everything written kept."""

    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        assert not self.closed, f"written after the end: {data!r}"
        self.written += data
        self.writes += 1

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 40000) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


@contextmanager
def staged(serving: Serving, kind: type[_E]) -> Iterator[list[_E]]:
    """The events of one kind that are staged meanwhile."""
    found: list[_E] = []
    journal = queues_of(serving.partition).engine.journal
    stage = journal.stage

    def noted(event: Event) -> int:
        if isinstance(event, kind):
            found.append(event)
        return stage(event)

    journal.stage = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        journal.stage = stage  # type: ignore[method-assign]


class Serving(InThread):
    def __init__(self, folder: Path, limits: RestLimits | None = None, *, loop: str = "uvloop") -> None:
        super().__init__(loop=loop)
        self.folder = folder
        self._limits = limits or RestLimits()
        self.partition: Partition
        self.broker: Broker
        self.access: Access
        self.server: HttpServer
        self.address: tuple[str, int]

    async def _start(self) -> None:
        self.partition = Partition(
            Engine(journal_for(self.folder), new_tag=lambda: 7),
            clock=Clock.steady(self.now_ms),
            staging_folder=self.folder / "staged",
        )
        await self.partition.start()
        self.broker = await for_tests(LocalBroker(self.partition))
        self.access = Access(Documents(self.broker), now_ms=self.now_ms)
        self.server = RestServer(self.broker, self.access, self._limits)
        self.address = await self.server.start("127.0.0.1", 0)

    async def _end(self) -> None:
        await self.server.stop(2000)
        await self.partition.stop()

    def ask(self, request: Request) -> Any:
        """The broker's answer to a request."""
        return self.run(self.broker.ask(request))

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S + 25, **options)

    def connect(self) -> Wire:
        return Wire(self.address)

    def transcript(self, pieces: Sequence[bytes], responses: int) -> tuple[bytes, RecordingTransport]:
        """What a connection writes when it is given these pieces, once that many responses are there."""

        async def spoken() -> tuple[bytes, RecordingTransport]:
            transport = RecordingTransport()
            connection = HttpConnection(self.server._shared)
            connection.connection_made(transport)  # type: ignore[arg-type]
            for piece in pieces:
                connection.data_received(piece)
            deadline = time.monotonic() + DEADLINE_S
            while transport.written.count(b"HTTP/1.1 ") < responses:
                assert time.monotonic() < deadline, f"only {transport.written!r}"
                await asyncio.sleep(0.0005)
            connection.connection_lost(None)
            return transport.written, transport

        return self.run(spoken())

    def at_once(self, requests: Sequence[bytes], *, hang_up: Collection[int] = ()) -> list[Response]:
        """The answers to requests that come in one turn of the loop, each on a connection of its own. Those whose
        number is in `hang_up` are gone before the turn ends, and have no answer here."""

        async def spoken() -> list[Response]:
            talks: list[tuple[HttpConnection, RecordingTransport]] = []
            for at, piece in enumerate(requests):
                connection, transport = HttpConnection(self.server._shared), RecordingTransport()
                connection.connection_made(transport)  # type: ignore[arg-type]
                connection.data_received(piece)
                if at in hang_up:
                    connection.connection_lost(None)
                else:
                    talks.append((connection, transport))
            deadline = time.monotonic() + DEADLINE_S
            while not all(transport.written for _, transport in talks):
                assert time.monotonic() < deadline, [transport.written for _, transport in talks]
                await asyncio.sleep(0.0005)
            for connection, _ in talks:
                connection.connection_lost(None)
            return [take_responses(transport.written)[0] for _, transport in talks]

        return self.run(spoken())
