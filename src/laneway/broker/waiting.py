"""Long polling: consumers that wait for messages of a queue, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laneway.core.events import Leased
from laneway.core.lease_commands import MAX_LEASE_BYTES
from laneway.core.message import Deliveries, Delivery, part_of
from laneway.core.queue import Queue
from laneway.errors import Unavailable

if TYPE_CHECKING:
    from laneway.broker.broker import Broker

SHARED = 2_000  # messages that are enough for one lease: more are no cheaper


def shareable(queue: Queue) -> int:
    """How many messages of a queue that has some several may lease at once: about as many as one lease may hold."""
    usual_bytes = queue.bytes_waiting // max(queue.ready + queue.delayed, 1)
    return min(SHARED, MAX_LEASE_BYTES // max(usual_bytes, 1) + 1)


class Waiter:
    """A consumer that waits for messages of a queue."""

    __slots__ = ("_timer", "_waiting", "cancelled", "consumer", "done", "lease_ms", "limit", "queue")

    def __init__(
        self,
        waiting: Waiting,
        queue: int,
        limit: int,
        lease_ms: int | None,
        consumer: str,
        done: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self._waiting = waiting
        self.queue = queue
        self.limit = limit
        self.lease_ms = lease_ms
        self.consumer = consumer
        self.done = done
        self.cancelled = False
        self._timer: asyncio.TimerHandle | None = None

    def expire_after(self, wait_ms: int, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(wait_ms / 1000, self.end)

    def end(self) -> None:
        """It goes away with nothing."""
        if not self.cancelled:
            self.cancel()
            self.done([])

    def cancel(self) -> None:
        """The consumer went away: it gets nothing, and is not told."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.cancelled:
            self.cancelled = True
            self._waiting.forget(self)


class Waiting:
    """Who waits for which queue."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiters: dict[int, deque[Waiter]] = {}  # by the number of the queue; none of them is empty

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def __contains__(self, number: int) -> bool:
        return number in self._waiters

    def count(self, number: int) -> int:
        return len(self._waiters.get(number, ()))

    def wanted(self, number: int, enough: int) -> int:
        """How many messages those who wait for a queue would take at once, counted no further than `enough`."""
        total = 0
        for waiter in self._waiters.get(number, ()):
            total += waiter.limit
            if total >= enough:
                return enough
        return total

    def add(
        self,
        queue: Queue,
        limit: int,
        lease_ms: int | None,
        consumer: str,
        done: Callable[[Sequence[Delivery]], None],
    ) -> Waiter:
        most = self._broker.limits.max_waiters_per_queue
        if self.count(queue.number) >= most:
            raise Unavailable(f"{most} consumers wait for queue {queue.name!r} already; try again later")
        waiter = Waiter(self, queue.number, limit, lease_ms, consumer, done)
        self._waiters.setdefault(queue.number, deque()).append(waiter)
        return waiter

    def forget(self, waiter: Waiter) -> None:
        waiters = self._waiters.get(waiter.queue)
        if waiters is not None:
            if waiters[0] is waiter:
                waiters.popleft()
            else:
                waiters.remove(waiter)
            if not waiters:
                del self._waiters[waiter.queue]

    def end(self, number: int) -> None:
        """Nobody gets anything of this queue any more."""
        for waiter in list(self._waiters.get(number, ())):
            waiter.end()

    def end_all(self) -> None:
        for number in list(self._waiters):
            self.end(number)

    def serve(self, number: int) -> None:
        """In the order they came. Neighbours who want the same share a lease, as long as what one gets does not depend
        on what the one before it holds."""
        queue = self._broker.engine.state.queues.get(number)
        waiters = self._waiters.get(number)
        while waiters and queue is not None and queue.ready:
            first, limit, some = waiters[0], 0, []
            enough = min(queue.ready, shareable(queue))
            for waiter in waiters:
                if (waiter.lease_ms, waiter.consumer) != (first.lease_ms, first.consumer):
                    break
                some.append(waiter)
                limit += waiter.limit
                if limit >= enough or queue.heads or queue.tenants is not None:
                    break
            leased = self._broker.lease_now(queue, limit, first.lease_ms, first.consumer)
            if leased is None:
                return
            self._deal(leased, some)

    def _deal(self, leased: Leased, waiters: list[Waiter]) -> None:
        """To each in turn as many as it asked for, as far as they go. None of them waits any more when the first is
        told: what it gives back at once goes to others."""
        broker = self._broker
        deliveries = broker.engine.deliveries(leased)
        parts: list[tuple[Waiter, Sequence[Delivery]]] = []
        at = 0
        for waiter in waiters:
            if at < len(deliveries) or not at:  # what is damaged is left out, and may be all there is
                waiter.cancel()
                parts.append((waiter, part_of(deliveries, at, at + waiter.limit)))
                at += waiter.limit
        for waiter, part in parts:
            seqs = part.seqs if isinstance(part, Deliveries) else leased.seqs
            broker.hand_over(waiter.done, part, broker.is_durable(seqs))
