"""A whole server for the tests here: journal in a folder, broker, access, AMQP and HTTP front ends, on a loop in a
thread. Tests talk to it from outside, over sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvloop

from laneway.access import Access
from laneway.broker.broker import Broker, BrokerLimits
from laneway.broker.engine import Engine
from laneway.frontends.amqp.limits import AmqpLimits
from laneway.frontends.amqp.server import AmqpServer
from laneway.frontends.rest.server import RestServer
from laneway.journal.segments.journal import SegmentJournal
from tests.amqp.wire import DEADLINE_S, Wire

T = TypeVar("T")


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until it holds; for what happens in another thread and announces itself nowhere."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.005)


class Serving:
    def __init__(self, folder: Path, limits: AmqpLimits | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._folder = folder
        self._limits = limits or AmqpLimits(body_bytes=1024 * 1024)
        self._tls = tls
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._started = threading.Event()
        self._stop: asyncio.Event
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self.ahead_ms = 0  # how far the broker's clock is moved ahead
        self.broker: Broker
        self.access: Access
        self.server: AmqpServer
        self.address: tuple[str, int]
        self.tls_address: tuple[str, int]
        self.http_address: tuple[str, int]

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._main())
            except BaseException as failure:
                self._failure = failure
                self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.broker = Broker(
            Engine(SegmentJournal(self._folder), new_tag=lambda: 7),
            now_ms=self.now_ms,
            limits=BrokerLimits(max_message_bytes=self._limits.body_bytes),
        )
        await self.broker.start()
        self.access = Access(self.broker, now_ms=self.now_ms)
        self.server = AmqpServer(self.broker, self.access, self._limits)
        rest = RestServer(self.broker, self.access)
        self.address = await self.server.start("127.0.0.1", 0)
        if self._tls is not None:
            self.tls_address = await self.server.start("127.0.0.1", 0, self._tls)
        self.http_address = await rest.start("127.0.0.1", 0)
        self._started.set()
        await self._stop.wait()
        await rest.stop(2000)
        await self.server.stop(2000)
        await self.broker.stop()

    def __enter__(self) -> Serving:
        self._thread.start()
        assert self._started.wait(DEADLINE_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._failure is not None:
            raise self._failure

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Call something on the server's loop."""

        async def called() -> T:
            return function(*args)

        return self.run(called())

    def pass_time(self, seconds: float) -> None:
        """Move the broker's clock ahead and let it notice."""

        def move() -> None:
            self.ahead_ms += int(seconds * 1000)
            self.broker._on_timer()

        self.call(move)

    def connect(self) -> Wire:
        return Wire(self.address)

    def log_in(self, *args: Any, **options: Any) -> Wire:
        return self.connect().log_in(*args, **options)

    def connect_tls(self, context: ssl.SSLContext) -> Wire:
        plain = socket.create_connection(self.tls_address, timeout=DEADLINE_S)
        return Wire(self.tls_address, context.wrap_socket(plain, server_hostname="localhost"))

    def http(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"http://{self.http_address[0]}:{self.http_address[1]}",
            auth=("guest", "guest"),
            timeout=DEADLINE_S,
        )
