"""A server of several partitions for tests of its history: all else is asked of the first partition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from laneway.access import Access
from laneway.broker.clock import Clock
from laneway.broker.documents import Documents
from laneway.broker.engine import Engine
from laneway.broker.interface import Request
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.frontends.rest.server import RestServer
from laneway.journal.segments.journal import SegmentJournal
from tests.rest.serving import Serving


class PartitionedBroker:
    """Takes requests about the history to the partition that they name."""

    def __init__(self, brokers: list[LocalBroker]) -> None:
        self._brokers = brokers

    @property
    def limits(self) -> Any:
        return msgspec.structs.replace(self._brokers[0].limits, partition_count=len(self._brokers))

    def add(self, broker: LocalBroker) -> None:
        self._brokers.append(broker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._brokers[0], name)

    async def ask(self, request: Request) -> Any:
        return await self._brokers[getattr(request, "partition", 0)].ask(request)


class PartitionedServing(Serving):
    """Partition 0 is the folder, partition N is `partitions/N` in it. Queues are made where a test says."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        super().__init__(folder)
        self._count = count
        self.partitions: list[Partition] = []
        self.brokers: list[LocalBroker] = []

    async def _start(self) -> None:
        several = PartitionedBroker(self.brokers)
        for _ in range(self._count):
            await self._add()
        self.partition, self.broker = self.partitions[0], several  # type: ignore[assignment]
        self.access = Access(Documents(self.broker), now_ms=self.now_ms)
        self.server = RestServer(self.broker, self.access, self._limits)
        self.address = await self.server.start("127.0.0.1", 0)

    async def _add(self) -> None:
        number = len(self.partitions)
        folder = self.folder / "partitions" / str(number) if number else self.folder
        engine = Engine(SegmentJournal(folder), new_tag=lambda: 7 + number)
        partition = Partition(engine, clock=Clock.steady(self.now_ms), staging_folder=folder / "staged")
        await partition.start()
        self.partitions.append(partition)
        self.brokers.append(LocalBroker(partition))

    async def _end(self) -> None:
        await self.server.stop(2000)
        for partition in self.partitions:
            await partition.stop()

    def add_partition(self) -> None:
        self.run(self._add())

    def ask_of(self, partition: int, request: Request) -> Any:
        """The answer of one partition's own broker."""
        return self.run(self.brokers[partition].ask(request))
