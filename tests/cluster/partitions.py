"""Servers of several partitions on one loop, for tests: each partition is led by a process of its own or by the first
one, and each process has an edge. Processes reach each other's partitions over real sockets."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.interface import Broker, DeclareQueue, Publish
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.values import BrokerLimits, QueueSettings
from laneway.cluster.edge import Edge
from laneway.cluster.following import FollowedTopology, image_of
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.cluster.tidying import Tidying
from laneway.core.message import Messages
from laneway.core.partitions import home
from laneway.journal.segments.journal import SegmentJournal

NOW_MS = 1_800_000_000_000


class ServerProcess:
    """What one process of a server has: the partitions it leads, the links to the others, and its edge."""

    def __init__(self, server: SeveralPartitions, number: int) -> None:
        self.number = number
        self.server = server
        self.model = FollowedTopology(server.partition_count)
        self.led = [p for p in range(server.partition_count) if p % server.process_count == number]
        self.locals: dict[int, LocalBroker] = {}
        self.servers: dict[int, PartitionServer] = {}
        self.remotes: dict[int, RemoteBroker] = {}
        self.edge: Edge

    async def lead(self) -> None:
        for number in self.led:
            await self.open_partition(number)

    async def open_partition(self, number: int) -> None:
        folder = self.server.folder / "data" / (f"partitions/{number}" if number else "")
        engine = Engine(SegmentJournal(folder), new_tag=lambda: 7 + number, partition=number, world=self.model)
        partition = Partition(
            engine,
            clock=Clock.steady(lambda: self.server.now_ms),
            limits=self.server.limits,
            staging_folder=folder / "staged",
        )
        await partition.start()
        self.server.partitions[number] = partition
        local = self.locals[number] = LocalBroker(partition)
        self.model.feeds[number].begin(image_of(local.model))
        local.follow(self.model.feeds[number].apply)
        Tidying(local, self.model, number)
        if self.server.process_count > 1:
            self.servers[number] = PartitionServer(local)
            path = self.server.path(number)
            Path(path).unlink(missing_ok=True)
            await self.servers[number].start(path)

    async def join(self) -> None:
        brokers: list[Any] = []
        for number in range(self.server.partition_count):
            if number in self.locals:
                brokers.append(self.locals[number])
            else:
                remote = RemoteBroker(
                    self.server.path(number), self.number, lambda: self.server.now_ms, self.model.feeds[number]
                )
                self.remotes[number] = remote
                await remote.start()
                brokers.append(remote)
        barriers = {number: server.barrier.wait for number, server in self.servers.items()}
        self.edge = Edge(
            brokers, self.model, limits=self.server.limits, process=self.number, led=self.led, barriers=barriers
        )
        for number in self.led:
            self.server.partitions[number].crossing.start(self.edge.to_partition)
            self.server.partitions[number].moves.go(self.number, self.server.process_count)

    async def stop(self) -> None:
        for remote in self.remotes.values():
            await remote.stop()
        for server in self.servers.values():
            await server.stop()

    async def close(self) -> None:
        for number in self.locals:
            await self.server.partitions[number].stop()


class SeveralPartitions:
    def __init__(self, folder: Path, partitions: int, processes: int, limits: BrokerLimits | None = None) -> None:
        self.folder = folder
        self.partition_count = partitions
        self.process_count = processes
        self.limits = limits or BrokerLimits()
        self.now_ms = NOW_MS
        self.partitions: dict[int, Partition] = {}
        self._sockets = Path(tempfile.mkdtemp(prefix="laneway-"))  # a path in a test's folder may be too long for one
        self.processes = [ServerProcess(self, number) for number in range(processes)]

    def path(self, partition: int) -> str:
        return str(self._sockets / str(partition))

    @property
    def edge(self) -> Edge:
        return self.processes[0].edge

    async def start(self) -> None:
        for process in self.processes:
            await process.lead()
        for process in self.processes:
            await process.join()

    async def lose(self, number: int) -> None:
        """A process ends; what it led is not served."""
        lost = self.processes[number]
        await lost.stop()
        await lost.close()
        for process in self.processes:
            for partition in lost.led:
                remote = process.remotes.get(partition)
                await until(lambda remote=remote: remote is None or remote.health()["state"] == "unreachable")

    async def start_again(self, number: int) -> None:
        self.processes[number] = ServerProcess(self, number)
        await self.processes[number].lead()
        await self.processes[number].join()
        for process in self.processes:
            for remote in process.remotes.values():
                await until(lambda remote=remote: remote.health()["state"] == "ready")

    async def stop(self) -> None:
        for process in self.processes:
            await process.stop()
        for process in self.processes:
            await process.close()
        shutil.rmtree(self._sockets)


def run(
    folder: Path,
    work: Callable[[SeveralPartitions], Coroutine[Any, Any, None]],
    *,
    partitions: int = 2,
    processes: int = 1,
    limits: BrokerLimits | None = None,
) -> None:
    async def main() -> None:
        server = SeveralPartitions(folder, partitions, processes, limits)
        await server.start()
        try:
            await work(server)
        finally:
            await server.stop()

    asyncio.run(main())


def name_at(partition: int, count: int = 2, vhost: str = "/", nth: int = 0) -> str:
    """The name of a queue whose home is this partition."""
    names = (f"q{number}" for number in range(10_000))
    return [name for name in names if home(vhost, name, count) == partition][nth]


async def declare(broker: Broker, name: str, session: int = 0, vhost: str = "/", **settings: Any) -> int:
    given = QueueSettings(exclusive=bool(session), **settings)
    queue: int = (await broker.ask(DeclareQueue(vhost, name, given, session))).info.queue
    return queue


async def publish(broker: Broker, targets: Sequence[int], *bodies: bytes) -> list[Any]:
    arrivals: list[Any] = await broker.ask(Publish(tuple(targets), Messages(list(bodies), [b""] * len(bodies))))
    return arrivals


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)
