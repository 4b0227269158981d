"""Long polling: a consumer that waits for messages of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laneway.core.message import Delivery

if TYPE_CHECKING:
    from laneway.broker.broker import Broker


class Waiter:
    """A consumer that waits for messages of a queue."""

    __slots__ = ("_broker", "_timer", "cancelled", "consumer", "done", "lease_ms", "limit", "queue")

    def __init__(
        self,
        broker: Broker,
        queue: int,
        limit: int,
        lease_ms: int | None,
        consumer: str,
        done: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self._broker = broker
        self.queue = queue
        self.limit = limit
        self.lease_ms = lease_ms
        self.consumer = consumer
        self.done = done
        self.cancelled = False
        self._timer: asyncio.TimerHandle | None = None

    def expire_after(self, wait_ms: int, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(wait_ms / 1000, self._expire)

    def _expire(self) -> None:
        if not self.cancelled:
            self.cancel()
            self.done([])

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def cancel(self) -> None:
        """The consumer went away: it gets nothing, and is not told."""
        self.stop_timer()
        if not self.cancelled:
            self.cancelled = True
            self._broker.forget_waiter(self)
