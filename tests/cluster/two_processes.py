"""A server of two processes as far as its clients see it: a whole node, and the front ends of a second process that
reaches the node's partition over a socket. Both are on one loop, so that a test sees them at one moment."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from laneway.access import Access
from laneway.broker.documents import Documents
from laneway.broker.interface import Broker
from laneway.broker.local import LocalBroker
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.frontends.amqp.server import AmqpServer
from laneway.frontends.doors.directory import LocalDirectory
from laneway.frontends.http.server import HttpServer
from laneway.frontends.rest.api import RestApi
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.sqs.api import SqsApi
from laneway.frontends.sqs.names import SqsOptions
from laneway.node import Node
from tests.attacks.whole_node import WholeNode

GRACE_MS = 1_000


class TwoProcesses(WholeNode):
    """`at(2)`: what is asked within goes to the second process."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self._at = 1
        self._sockets = Path(tempfile.mkdtemp(prefix="laneway-"))  # a path in a test's folder may be too long for one

    async def _start(self) -> None:
        async def lead(broker: LocalBroker) -> Broker:
            self._leader = PartitionServer(broker)
            await self._leader.start(str(self._sockets / "leader"))
            return broker

        self.node = Node(self._config, wrap=lead)
        await self.node.start()
        assert self.node.access is not None
        await self.node.access.put_account("root", password="secret", roles=["admin"])
        self._remote = RemoteBroker(str(self._sockets / "leader"), 1, self.now_ms)
        await self._remote.start()
        self.access = Access(Documents(self._remote), now_ms=self.now_ms)
        directory, limits = LocalDirectory(), RestLimits()
        sqs = SqsApi(self._remote, self.access, SqsOptions())
        rest = RestApi(self._remote, self.access, limits, directory=directory)
        self._http = HttpServer([sqs, rest], limits, directory=directory)
        self.access.on_change(self._http.recheck)
        self._amqp = AmqpServer(self._remote, self.access, directory=directory)
        self._second = {
            "http": await self._http.start("127.0.0.1", 0),
            "amqp": await self._amqp.start("127.0.0.1", 0),
        }

    async def _end(self) -> None:
        await self._http.stop(GRACE_MS)
        await self._amqp.stop(GRACE_MS)
        await self._remote.stop()
        await self._leader.stop()
        await self.node.stop()
        shutil.rmtree(self._sockets)

    def address(self, setting: str) -> tuple[str, int]:
        return super().address(setting) if self._at == 1 else self._second[setting]

    @contextmanager
    def at(self, process: int) -> Iterator[None]:
        before, self._at = self._at, process
        try:
            yield
        finally:
            self._at = before

    def http_at(self, process: int, name: str = "root", password: str = "secret") -> httpx.Client:
        with self.at(process):
            return self.http(name, password)
