"""A real broker on a real journal in a temporary folder, with a clock that only moves when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway.broker.broker import Broker, BrokerLimits
from laneway.broker.engine import Engine
from laneway.broker.values import Delivery, Draft, Receipt, Settlement
from laneway.core.settings import QueueSettings
from laneway.errors import LanewayError
from laneway.journal.segments.journal import SegmentJournal

START_MS = 1_800_000_000_000


class Clock:
    def __init__(self) -> None:
        self.ms = START_MS

    def __call__(self) -> int:
        return self.ms


class Bench:
    """A broker with its calls as coroutines, and the knobs a test turns."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder = folder
        self.clock = Clock()
        self.limits = BrokerLimits(**limits)
        self.segment_bytes = 1 << 20

    async def start(self) -> None:
        self.journal = SegmentJournal(self.folder, segment_bytes=self.segment_bytes)
        self.engine = Engine(self.journal, new_tag=lambda: 77, cache_bytes=1 << 20)
        self.broker = Broker(self.engine, now_ms=self.clock, limits=self.limits, staging_folder=self.folder / "staged")
        self.recovery = await self.broker.start()

    async def restart(self) -> None:
        await self.broker.stop()
        await self.start()

    async def queue(self, name: str = "q", **settings: Any) -> None:
        await self.broker.queues.put("/", name, QueueSettings(**settings))

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        method(*args, **kwargs, done=answer.set_result)
        return await asyncio.wait_for(answer, 5)

    async def publish(self, *bodies: bytes, queue: str = "q", **draft: Any) -> list[Receipt | LanewayError]:
        return await self.call(self.broker.publish, "/", queue, [Draft(body, **draft) for body in bodies])

    async def lease(self, limit: int = 10, queue: str = "q", **options: Any) -> list[Delivery]:
        return await self.call(self.broker.lease, "/", queue, max_messages=limit, **options)

    async def settle(self, action: str, deliveries: Sequence[Delivery], queue: str = "q", **rest: Any) -> list[Any]:
        batch = [Settlement(action, d.token, **rest) for d in deliveries]  # type: ignore[arg-type]
        return await self.call(self.broker.settle, "/", queue, batch)

    def pass_time(self, ms: int) -> None:
        self.clock.ms += ms
        self.broker._on_timer()


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
                await bench.broker.stop()

        asyncio.run(main())

    return runner


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [d.body for d in deliveries]
