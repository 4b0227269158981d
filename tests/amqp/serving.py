"""A whole server for the tests here: journal in a folder, broker, access, AMQP and HTTP front ends, on a loop in a
thread. Tests talk to it from outside, over sockets."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

import httpx

from laneway.access import Access
from laneway.broker.arguments import Version
from laneway.broker.clock import Clock
from laneway.broker.documents import Documents
from laneway.broker.engine import Engine
from laneway.broker.interface import Broker
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.values import BrokerLimits
from laneway.frontends.amqp.limits import AmqpLimits
from laneway.frontends.amqp.server import AmqpServer
from laneway.frontends.doors.door import Door
from laneway.frontends.http.server import HttpServer
from laneway.frontends.rest.server import RestServer
from tests.amqp.wire import Wire
from tests.in_thread import DEADLINE_S, InThread
from tests.journals import journal_for
from tests.wire_broker import for_tests


class Serving(InThread):
    def __init__(
        self, folder: Path, limits: AmqpLimits | None = None, tls: Door | None = None, version: Version = "4.0"
    ) -> None:
        super().__init__()
        self._version = version
        self._folder = folder
        self._limits = limits or AmqpLimits(body_bytes=1024 * 1024)
        self._tls = tls
        self._rest: HttpServer
        self.partition: Partition
        self.broker: Broker
        self.access: Access
        self.server: AmqpServer
        self.address: tuple[str, int]
        self.tls_address: tuple[str, int]
        self.http_address: tuple[str, int]

    async def _start(self) -> None:
        self.partition = Partition(
            Engine(journal_for(self._folder), new_tag=lambda: 7),
            clock=Clock.steady(self.now_ms),
            limits=BrokerLimits(max_message_bytes=self._limits.body_bytes),
        )
        await self.partition.start()
        self.broker = await for_tests(LocalBroker(self.partition))
        self.access = Access(Documents(self.broker), now_ms=self.now_ms)
        self.server = AmqpServer(self.broker, self.access, self._limits, version=self._version)
        self._rest = RestServer(self.broker, self.access)
        self.address = await self.server.start("127.0.0.1", 0)
        if self._tls is not None:
            self.tls_address = await self.server.start("127.0.0.1", 0, self._tls)
        self.http_address = await self._rest.start("127.0.0.1", 0)

    async def _end(self) -> None:
        await self._rest.stop(2000)
        await self.server.stop(2000)
        await self.partition.stop()

    def pass_time(self, seconds: float) -> None:
        """Move the broker's clock ahead and let it notice."""

        def move() -> None:
            self.ahead_ms += int(seconds * 1000)
            self.partition._on_timer()

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
