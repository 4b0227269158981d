"""The sessions of an edge. A partition gets to know a session when that first has to do with it.

A limit that several consumers share holds for all of them together, wherever their queues lie. As long as those are in
one partition, that keeps it. Else each of the partitions may push as many messages as the limit says, and what is more
than that together waits here until the client has settled others: it is leased meanwhile, so nobody else gets it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from laneway.broker import interface as i
from laneway.core.partitions import queue_id

if TYPE_CHECKING:
    from laneway.cluster.edge import Edge

Push = Callable[[list[i.Push]], None]


class SharedPool:
    __slots__ = ("held", "limit", "partitions", "waiting")

    def __init__(self) -> None:
        self.limit = 0  # 0: as many as there are
        self.held = 0  # by the client; what waits here is not among it
        self.partitions: set[int] = set()
        self.waiting: deque[i.Delivered] = deque()

    def admit(self, pushed: i.Delivered) -> i.Delivered | None:
        """What of this the client may have now; the rest waits."""
        count = len(pushed.deliveries)
        if len(self.partitions) < 2 or not self.limit:
            self.held += count
            return pushed
        room = max(0, self.limit - self.held) if not self.waiting else 0
        if count <= room:
            self.held += count
            return pushed
        deliveries = pushed.deliveries
        self.waiting.append(i.Delivered(pushed.consumer, deliveries.part(room, count)))
        self.held += room
        return i.Delivered(pushed.consumer, deliveries.part(0, room)) if room else None

    def release(self) -> list[i.Delivered]:
        """What waited and may go now."""
        found: list[i.Delivered] = []
        while self.waiting and (not self.limit or self.held < self.limit):
            pushed = self.waiting.popleft()
            count = len(pushed.deliveries)
            room = count if not self.limit else min(count, self.limit - self.held)
            if room < count:
                self.waiting.appendleft(i.Delivered(pushed.consumer, pushed.deliveries.part(room, count)))
                pushed = i.Delivered(pushed.consumer, pushed.deliveries.part(0, room))
            self.held += room
            found.append(pushed)
        return found

    def take(self, consumer: int) -> list[i.Delivered]:
        """What waited for a consumer, which waits no longer."""
        found = [pushed for pushed in self.waiting if pushed.consumer == consumer]
        if found:
            self.waiting = deque(pushed for pushed in self.waiting if pushed.consumer != consumer)
        return found


class Visitor:
    """One session, and what partitions are told of it when it comes to them."""

    def __init__(self, number: i.SessionId, edge: Edge, push: Push) -> None:
        self._number = number
        self._edge = edge
        self._push = push
        self._is_paused = False
        self.opened: set[int] = set()
        self.consumers: dict[int, int] = {}  # the partition of each
        self.requests: dict[int, i.Subscribe] = {}  # of each, as it was asked for
        self.pooled: dict[int, SharedPool] = {}  # by consumer; also of one that is cancelled and holds some yet
        self._held: dict[int, int] = {}  # how many each of them holds
        self._pools: dict[int, SharedPool] = {}

    def visit(self, partition: int) -> None:
        if partition not in self.opened:
            self.open(partition)

    def open(self, partition: int) -> None:
        self.opened.add(partition)
        broker = self._edge.partition(partition)
        broker.open_session(partial(self._pushed, partition), self._number)
        if self._is_paused:
            broker.send(i.Flow(self._number, True), _not_answered)

    # Requests

    def subscribe(self, partition: int, request: i.Subscribe) -> None:
        """Before the partition is asked."""
        self.consumers[request.consumer] = partition
        self.requests[request.consumer] = request
        if request.pool and not request.no_ack:
            pool = self._pools.setdefault(request.pool, SharedPool())
            self.pooled[request.consumer] = pool
            if partition not in pool.partitions:
                pool.partitions.add(partition)
                if pool.limit:
                    self._send(partition, i.LimitPool(self._number, request.pool, pool.limit))

    def forget(self, consumer: int) -> None:
        """It is no consumer, as the partition says."""
        self.consumers.pop(consumer, None)
        self.requests.pop(consumer, None)
        self._leave_pool(consumer)

    def _leave_pool(self, consumer: int) -> None:
        """If it is cancelled and holds nothing: clients consume and cancel any number of times."""
        if consumer not in self.consumers and not self._held.get(consumer):
            self.pooled.pop(consumer, None)
            self._held.pop(consumer, None)

    def ended(self, consumer: int) -> None:
        """Its queue is gone."""
        self._pushed(self.consumers.get(consumer, 0), [i.ConsumerEnded(consumer)])

    def unsubscribed(self, consumer: int) -> None:
        """Nothing more is pushed to it: what waits goes back."""
        self.consumers.pop(consumer, None)
        self.requests.pop(consumer, None)
        pool = self.pooled.get(consumer)
        if pool is None:
            return
        waited = pool.take(consumer)
        for pushed in waited:
            pool.held += len(pushed.deliveries)  # until they are released, the next moment
            self._note(pushed)
        for pushed in waited:
            d = pushed.deliveries
            release = i.SettleHeld(self._number, d.queue, d.seqs, d.leases, "release", consumer)
            self._edge.send(release, _not_answered)  # its queue may be elsewhere by now
        self._leave_pool(consumer)

    def limit(self, request: i.LimitPool) -> None:
        pool = self._pools.setdefault(request.pool, SharedPool())
        pool.limit = request.limit
        for partition in sorted(pool.partitions):
            self._send(partition, request)
        self._go_on(pool)
        if not request.limit and not pool.waiting:
            in_use = {id(self.pooled.get(consumer)) for consumer in self.consumers}
            if id(pool) not in in_use:  # clients open any number of channels in turn
                del self._pools[request.pool]
                self.pooled = {consumer: one for consumer, one in self.pooled.items() if one is not pool}
                self._held = {consumer: count for consumer, count in self._held.items() if consumer in self.pooled}

    def flow(self, request: i.Flow) -> None:
        self._is_paused = request.paused
        for partition in sorted(self.opened):
            self._send(partition, request)
        if not request.paused:
            for pool in self._pools.values():
                self._go_on(pool)

    def settled(self, request: i.SettleHeld) -> None:
        pool = self.pooled.get(request.consumer) if request.action != "extend" else None
        if pool is not None:
            pool.held -= len(request.seqs)
            self._held[request.consumer] = self._held.get(request.consumer, 0) - len(request.seqs)
            self._leave_pool(request.consumer)
            if pool.waiting:
                self._go_on(pool)

    def end(self) -> None:
        self._push = _nobody
        self.requests.clear()
        for partition in sorted(self.opened):
            self._send(partition, i.EndSession(self._number))

    def _send(self, partition: int, request: i.Request) -> None:
        self._edge.partition(partition).send(request, _not_answered)

    # Pushes

    def _pushed(self, partition: int, pushes: list[i.Push]) -> None:
        pooled = self.pooled
        admitted: list[i.Push] = []
        for push in pushes:
            if type(push) is i.Delivered:
                if partition:
                    push.deliveries.queue = queue_id(partition, push.deliveries.queue)
                pool = pooled.get(push.consumer) if pooled else None
                allowed = push if pool is None else pool.admit(push)
                if allowed is not None:
                    admitted.append(allowed)
                    if pool is not None:
                        self._note(allowed)
            elif type(push) is i.ConsumerLeft:
                self._edge.standstill.consumer_left(self, push.consumer, push.held)
            else:
                self.consumers.pop(push.consumer, None)
                self.requests.pop(push.consumer, None)
                pool = pooled.get(push.consumer)
                if pool is not None:
                    pool.take(push.consumer)  # they went with their queue
                    self._leave_pool(push.consumer)
                admitted.append(push)
        if admitted:
            self._push(admitted)

    def _go_on(self, pool: SharedPool) -> None:
        if pool.waiting and not self._is_paused:
            released = pool.release()
            if released:
                for pushed in released:
                    self._note(pushed)
                self._push(released)  # type: ignore[arg-type]

    def _note(self, pushed: i.Delivered) -> None:
        self._held[pushed.consumer] = self._held.get(pushed.consumer, 0) + len(pushed.deliveries)


def _not_answered(answer: Any) -> None:
    """Whoever sent this waits for nothing."""


def _nobody(pushes: list[i.Push]) -> None:
    """The session is gone."""
