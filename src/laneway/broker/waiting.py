"""Leases that are waited for: consumers that asked for messages of a queue, first come, first served."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from laneway.broker.interface import Lease
from laneway.core.deliveries import NOTHING, Deliveries
from laneway.core.events import Leased
from laneway.core.lease_commands import MAX_LEASE_BYTES
from laneway.core.queue import Queue
from laneway.errors import LanewayError, Unavailable

if TYPE_CHECKING:
    import asyncio

    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.broker")

SHARED = 2_000  # messages that are enough for one lease: more are no cheaper


def _shareable(queue: Queue) -> int:
    """How many messages of a queue that has some several consumers may lease at once: as many as one lease may hold."""
    usual_bytes = queue.bytes_waiting // max(queue.ready + queue.delayed, 1)
    return min(SHARED, MAX_LEASE_BYTES // max(usual_bytes, 1) + 1)


class Waiter:
    """A Lease that has no answer yet."""

    __slots__ = ("_timer", "_waiting", "done", "is_over", "is_waiting", "number", "queue", "request")

    def __init__(self, waiting: Waiting, request: Lease, done: Callable[[Any], None], number: int) -> None:
        self._waiting = waiting
        self.request = request
        self.queue = request.queue
        self.number = number  # of the request
        self.done = done
        self.is_over = False  # it has its messages, or wants none any more
        self.is_waiting = False  # among those of its queue
        self._timer: asyncio.TimerHandle | None = None

    def doing(self) -> str:
        return self.request.doing()

    def begin_wait(self) -> None:
        """There is nothing for it now: wait as long as it said."""
        if not self.is_over:
            if self.request.wait_ms and self.is_waiting:
                self._timer = self._waiting.call_later(self.request.wait_ms, self.end)
            else:
                self.end()

    def end(self) -> None:
        """Answer it with nothing."""
        if not self.is_over:
            self.cancel()
            self._waiting.answer(self.done, NOTHING, True)

    def fail(self, error: LanewayError) -> None:
        if not self.is_over:
            self.cancel()
            self._waiting.answer(self.done, error, True)

    def cancel(self) -> None:
        """The consumer went away: it gets nothing, and no answer."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.is_over:
            self.is_over = True
            self._waiting.forget(self)


class Waiting:
    """Who waits for which queue."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.call_later = partition.call_later
        self.answer = partition.hand_over
        self._waiters: dict[int, deque[Waiter]] = {}  # by the number of the queue; none of them is empty
        self._by_number: dict[int, Waiter] = {}  # by the number of the request
        self._last_number = 0

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def __contains__(self, number: int) -> bool:
        return number in self._waiters

    def count(self, number: int) -> int:
        return len(self._waiters.get(number, ()))

    @property
    def total(self) -> int:
        return sum(map(len, self._waiters.values()))

    def demand(self, number: int, enough: int) -> int:
        """How many messages those who wait for a queue would take at once, counted no further than `enough`."""
        total = 0
        for waiter in self._waiters.get(number, ()):
            total += waiter.request.max_messages
            if total >= enough:
                return enough
        return total

    def new(self, request: Lease, done: Callable[[Any], None]) -> Waiter:
        self._last_number += 1
        waiter = Waiter(self, request, done, self._last_number)
        self._by_number[waiter.number] = waiter
        return waiter

    def add(self, waiter: Waiter) -> None:
        """It is the last of those who wait for its queue. If that is gone, begin_wait() answers it at once."""
        queue = self._partition.engine.state.queues.get(waiter.queue)
        if waiter.is_over or queue is None:
            return
        most = self._partition.limits.max_waiters_per_queue
        if waiter.request.wait_ms and self.count(queue.number) >= most:
            raise Unavailable(f"{most} consumers wait for queue {queue.name!r} already; try again later")
        waiter.is_waiting = True
        self._waiters.setdefault(queue.number, deque()).append(waiter)

    def withdraw(self, number: int, *, answer: bool) -> None:
        waiter = self._by_number.get(number)
        if waiter is not None:
            if answer:
                self._partition.inbox.drain()
                waiter.end()
            else:
                waiter.cancel()

    def forget(self, waiter: Waiter) -> None:
        self._by_number.pop(waiter.number, None)
        if not waiter.is_waiting:
            return
        waiter.is_waiting = False
        waiters = self._waiters.get(waiter.queue)
        if waiters is not None:
            if waiters[0] is waiter:
                waiters.popleft()
            else:
                waiters.remove(waiter)
            if not waiters:
                del self._waiters[waiter.queue]

    def end(self, number: int, why: LanewayError | None = None) -> None:
        """Nobody gets anything of this queue any more."""
        for waiter in list(self._waiters.get(number, ())):
            if why is None:
                waiter.end()
            else:
                waiter.fail(why)

    def end_all(self) -> None:
        for number in list(self._waiters):
            self.end(number)

    def serve(self, number: int) -> None:
        """Serve those who wait for a queue, in the order they came. Neighbours who want the same share a lease, as long
        as what one gets does not depend on what the one before it holds."""
        queue = self._partition.engine.state.queues.get(number)
        waiters = self._waiters.get(number)
        while waiters and queue is not None and queue.ready:
            first, limit, some = waiters[0].request, 0, []
            same = first.lease_ms, first.consumer, first.account, first.protocol
            enough = min(queue.ready, _shareable(queue))
            for waiter in waiters:
                request = waiter.request
                if (request.lease_ms, request.consumer, request.account, request.protocol) != same:
                    break
                some.append(waiter)
                limit += request.max_messages
                if limit >= enough or queue.heads or queue.tenants is not None:
                    break
            leased = self._partition.lease([(queue, limit)], first.lease_ms, first.consumer, account=first.account)
            if leased is None:
                return
            self._deal(queue, leased, some)

    def _deal(self, queue: Queue, leased: Leased, waiters: list[Waiter]) -> None:
        """Give to each in turn as many as it asked for, as far as they go. None of them waits any more when the first
        is answered: what it gives back at once goes to others."""
        taken: list[Waiter] = []
        count = 0
        for waiter in waiters:
            if count < len(leased.seqs):
                waiter.cancel()
                taken.append(waiter)
                count += waiter.request.max_messages
        is_durable = self._partition.is_durable(leased.seqs)
        protocol = waiters[0].request.protocol

        def deal(deliveries: Deliveries) -> None:
            self._partition.note_delivered(protocol, deliveries)
            at = 0
            for waiter in taken:
                limit = waiter.request.max_messages
                part = deliveries if len(taken) == 1 else deliveries.part(at, at + limit)
                at += limit
                self._partition.hand_over(waiter.done, part, is_durable)

        try:
            self._partition.read(queue, leased, deal)
        except Exception:  # nobody may be left without an answer
            log.exception("messages could not be read; their leases will expire")
            for waiter in taken:
                waiter.done(LanewayError("something went wrong inside the server; its log says what"))
