"""A real broker on a real journal in a temporary folder, with a clock that only moves when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway.broker import interface as i
from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.interface import Request
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.reading import ReaderThread
from laneway.broker.values import (
    Arrival,
    BrokerLimits,
    Delivery,
    Draft,
    QueueInfo,
    QueueStats,
    Receipt,
    Receipts,
    Settlement,
)
from laneway.core.events import Event
from laneway.core.message import messages_of
from laneway.core.settings import QueueSettings
from laneway.errors import LanewayError
from laneway.journal.segments.journal import SegmentJournal

START_MS = 1_800_000_000_000


class HeldClock:
    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


class Bench:
    """A broker, its usual requests as coroutines, and the knobs a test turns."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder = folder
        self.clock = HeldClock()
        self.jumped_ms = 0  # how far the wall clock is ahead of it
        self.boot = ""
        self.look_every_ms = 0
        self.limits = BrokerLimits(**limits)
        self.segment_bytes = 1 << 20
        self.cache_bytes = 1 << 20
        self.options: dict[str, Any] = {}  # of the partition

    async def start(self) -> None:
        self.journal = SegmentJournal(self.folder, segment_bytes=self.segment_bytes)
        self.engine = Engine(self.journal, new_tag=lambda: 77, cache_bytes=self.cache_bytes)
        self.partition = Partition(
            self.engine,
            clock=Clock(
                lambda: (self.clock.ms + self.jumped_ms) * 1_000_000,
                lambda: self.clock.ms * 1_000_000,
                boot=self.boot,
                look_every_ms=self.look_every_ms,
            ),
            limits=self.limits,
            staging_folder=self.folder / "staged",
            **self.options,
        )
        self.broker = LocalBroker(self.partition)
        self.topology = self.broker.topology
        self.recovery = await self.partition.start()

    async def stop(self) -> None:
        await self.partition.stop()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def durable(self) -> None:
        """Return once everything asked for so far is durable."""
        await self.partition.durable()

    async def turns(self, count: int = 3) -> None:
        """Let what is planned happen, what is staged become durable, and what is read back come in."""
        for _ in range(count):
            await self.durable()
            reader = self.partition.reader
            if isinstance(reader, ReaderThread):
                await asyncio.wrap_future(reader._pool.submit(lambda: None))  # behind what is being read
            await asyncio.sleep(0)

    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms
        self.partition._on_timer()

    def staged(self) -> list[Event]:
        """What is staged from now on."""
        found: list[Event] = []
        stage = self.journal.stage
        self.journal.stage = lambda event: (found.append(event), stage(event))[1]  # type: ignore[method-assign]
        return found

    # Requests

    async def ask(self, request: Request) -> Any:
        async with asyncio.timeout(5):
            return await self.broker.ask(request)

    def send(self, request: Request) -> list[Any]:
        """Where the answer will be found."""
        answers: list[Any] = []
        self.broker.send(request, answers.append)
        return answers

    def id(self, queue: str = "q") -> int:
        return self.topology.find_queue("/", queue).queue

    def find(self, queue: str = "q") -> QueueInfo | None:
        return self.topology.queue("/", queue)

    async def queue(self, name: str = "q", **settings: Any) -> None:
        await self.ask(i.PutQueue("/", name, QueueSettings(**settings)))

    async def delete(self, name: str = "q", **options: Any) -> int:
        deleted: int = await self.ask(i.DeleteQueue("/", name, **options))
        return deleted

    async def stats(self, name: str = "q") -> QueueStats:
        """How a queue stands; no turn of the loop passes."""
        stats: QueueStats = await self.ask(i.DescribeQueue("/", name))
        return stats

    async def publish(self, *bodies: bytes, queue: str = "q", **draft: Any) -> list[Receipt | LanewayError]:
        return await self.publish_drafts([Draft(body, **draft) for body in bodies], queue)

    async def publish_drafts(
        self, drafts: Sequence[Draft], queue: str = "q", key: tuple[str, bytes] | None = None
    ) -> list[Receipt | LanewayError]:
        return results(await self.ask(publish(self, drafts, queue, key)))

    async def lease(self, limit: int = 10, queue: str = "q", **options: Any) -> list[Delivery]:
        return list(await self.ask(i.Lease(self.id(queue), limit, **options)))

    async def settle(self, action: str, deliveries: Sequence[Delivery], queue: str = "q", **rest: Any) -> list[Any]:
        batch = [Settlement(action, d.token, **rest) for d in deliveries]  # type: ignore[arg-type]
        settled: list[Any] = await self.ask(i.Settle(self.id(queue), batch))
        return settled


def publish(b: Bench, drafts: Sequence[Draft], queue: str = "q", key: tuple[str, bytes] | None = None) -> i.Publish:
    """The request that publishes these into one queue."""
    return i.Publish((b.id(queue),), messages_of(drafts), key)


def results(arrivals: list[Arrival]) -> list[Receipt | LanewayError]:
    """What became of messages that were published into one queue."""
    (arrival,) = arrivals
    if not isinstance(arrival.result, Receipts):
        raise arrival.result
    return arrival.result.each()


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Run a coroutine function that takes a started Bench."""

    def runner(scenario: Callable[[Bench], Awaitable[None]], **limits: Any) -> None:
        async def main() -> None:
            bench = Bench(tmp_path / "data", **limits)
            await bench.start()
            try:
                await scenario(bench)
            finally:
                await bench.stop()

        asyncio.run(main())

    return runner


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [d.body for d in deliveries]
