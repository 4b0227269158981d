"""The broker of a server with several partitions, as one process of it has it: it knows where each queue lies, and
sends each request there. To front ends it is a broker like any other.

Inside a partition a queue has a number, outside an id (core/partitions.py): here the one becomes the other, in
requests, answers and pushes. Of the first partition they are the same, so what goes there passes as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

import msgspec

from laneway.broker import interface as i
from laneway.broker.topology import TopologyView
from laneway.broker.values import Arrival, BrokerLimits
from laneway.cluster.following import FollowedTopology
from laneway.cluster.overall import Overall
from laneway.cluster.parcels import SESSION_BITS
from laneway.cluster.spreading import Spreading, cut
from laneway.cluster.standstill import Standstill
from laneway.cluster.visits import Visitor
from laneway.core.deliveries import Deliveries
from laneway.core.partitions import NUMBER_BITS, local_number, partition_of, queue_id
from laneway.errors import InvalidInput, LanewayError, QueueElsewhere

Done = Callable[[Any], None]
WhenKnown = Callable[[Callable[[], None]], None]

MAX_BATCH = 10_000  # as any partition takes


class PartitionBroker(Protocol):
    """The broker of one partition, wherever that is led. It knows queues by their numbers."""

    limits: BrokerLimits

    def now(self) -> int: ...

    def health(self) -> dict[str, object]: ...

    def send(self, request: i.Request, done: Done) -> int: ...

    def withdraw(self, number: int, *, answer: bool = False) -> None: ...

    def open_session(self, push: Callable[[list[i.Push]], None], number: i.SessionId = 0) -> i.SessionId: ...

    def call_soon(self, call: Callable[[], None]) -> None: ...


class Edge:
    """`led`: the partitions that this process leads. `barriers`: of those, what calls back when all other processes
    have every change of the topology that there was (serving.py)."""

    def __init__(
        self,
        partitions: Sequence[PartitionBroker],
        model: FollowedTopology,
        *,
        limits: BrokerLimits,
        process: int = 0,
        led: Sequence[int] = (0,),
        barriers: Mapping[int, WhenKnown] | None = None,
    ) -> None:
        self._partitions = partitions
        self._count = len(partitions)
        self.model = model
        self.topology: i.Topology = TopologyView(model)
        self.limits = msgspec.structs.replace(limits, partition_count=self._count)
        self._led = led
        own = partitions[led[0] if led else 0]
        self.now = own.now
        self.call_soon = own.call_soon
        self._sends = [one.send for one in partitions]
        self._visitors: dict[i.SessionId, Visitor] = {}
        self._last_session = process << SESSION_BITS
        self.spreading = Spreading(self, led[0] if led else 0)
        self.overall = Overall(self, barriers or {})
        self._takers: dict[type, Callable[[Any, Done], int]] = {
            i.Publish: self._publish,
            i.Lease: self._lease,
            i.Ack: self._ack,
            i.Settle: self._settle,
            i.SettleHeld: self._settle_held,
            i.Transact: self.spreading.transact,
            i.LeaseAgain: self._lease_again,
            i.Subscribe: self._subscribe,
            i.Unsubscribe: self._unsubscribe,
            i.LimitPool: self._limit_pool,
            i.Flow: self._flow,
            i.EndSession: self._end_session,
            **self.overall.takers,
        }
        self.standstill = Standstill(self, process)

    # The broker's calls

    def health(self) -> dict[str, object]:
        return self.overall.health([one.health() for one in self._partitions], self._led)

    def send(self, request: i.Request, done: Done) -> int:
        if self.standstill.is_busy:
            return self.standstill.send(request, done)
        return self._takers[type(request)](request, done)

    async def ask(self, request: i.Request) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        number = self.send(request, lambda given: None if answer.done() else answer.set_result(given))
        try:
            given = await answer
        except asyncio.CancelledError:
            self.withdraw(number)
            raise
        if isinstance(given, LanewayError):
            raise given
        return given

    def withdraw(self, number: int, *, answer: bool = False) -> None:
        if number > 0 and not self.standstill.withdraw(number, answer=answer):
            its_number, partition = divmod(number, self._count)
            self._partitions[partition].withdraw(its_number, answer=answer)

    def open_session(self, push: Callable[[list[i.Push]], None]) -> i.SessionId:
        self._last_session += 1
        self._visitors[self._last_session] = Visitor(self._last_session, self, push)
        return self._last_session

    # For the parts of it

    def dispatch(self, request: i.Request, done: Done) -> int:
        """Send what no queue that stands still has to do with."""
        return self._takers[type(request)](request, done)

    def queue_of_consumer(self, session: i.SessionId, consumer: int) -> i.QueueId | None:
        visitor = self._visitors.get(session)
        request = visitor.requests.get(consumer) if visitor is not None else None
        return request.queue if request is not None else None

    def subscribe_again(self, request: i.Subscribe) -> None:
        """A consumer whose queue has moved, or was about to."""
        visitor = self._visitors.get(request.session)

        def subscribed(answer: Any) -> None:
            if isinstance(answer, LanewayError) and visitor is not None:
                visitor.ended(request.consumer)

        self._subscribe(request, subscribed)

    def to_partition(self, partition: int, request: i.Request, done: Done) -> int:
        """Send what has numbers of that partition already."""
        number = self._sends[partition](request, done)
        return number * self._count + partition if number > 0 else number

    def visit(self, session: i.SessionId, partition: int) -> None:
        """A session is about to be named to a partition."""
        visitor = self._visitors.get(session)
        if visitor is not None and partition not in visitor.opened:
            visitor.open(partition)

    def settled(self, request: i.SettleHeld) -> None:
        """What a consumer held, its session has settled."""
        visitor = self._visitors.get(request.session)
        if visitor is not None and visitor.pooled:
            visitor.settled(request)

    def partition(self, number: int) -> PartitionBroker:
        return self._partitions[number]

    # Messages

    def _publish(self, request: i.Publish, done: Done) -> int:
        targets = request.targets
        if type(targets) is tuple and len(targets) == 1 and not self.spreading.queues:
            partition = targets[0] >> NUMBER_BITS
            if not partition:
                number = self._sends[0](request, done)
                return number * self._count if number > 0 else number
            numbered = i.Publish((local_number(targets[0]),), request.messages, request.key, request.protocol)
            return self.to_partition(partition, numbered, partial(arrived, partition, done))
        routes = set(targets) if isinstance(targets, list) else {targets}
        queues = set(chain.from_iterable(routes))
        partitions = set(map(partition_of, queues))
        is_spread = not self.spreading.queues.keys().isdisjoint(queues)
        if len(partitions) <= 1 and not is_spread:
            partition = partitions.pop() if partitions else 0
            if not partition:
                return self.to_partition(0, request, done)
            return self.to_partition(partition, numbered_publish(request), partial(arrived, partition, done))
        count = len(request.messages.bodies)
        try:
            if not 1 <= count <= MAX_BATCH:
                raise InvalidInput(f"a batch has 1 to {MAX_BATCH} messages, not {count}")
            if request.key is not None and len(routes) > 1:
                raise InvalidInput("a batch with an idempotency key goes to the same queues as a whole")
        except LanewayError as refusal:
            done(refusal)
            return 0
        if is_spread or any(len(set(map(partition_of, route))) > 1 for route in routes):
            return self.spreading.publish(request, done)
        return cut(request, self.to_partition, done)

    def _lease(self, request: i.Lease, done: Done) -> int:
        partition = request.queue >> NUMBER_BITS
        if request.session:
            if request.queue in self.spreading.queues:
                self.spreading.after(request.queue, partial(self._lease, request, done))
                return 0
            self.visit(request.session, partition)
        r = request
        if partition:
            r = msgspec.structs.replace(r, queue=local_number(r.queue))
        asked = _AskedLease(self, request, done)
        number = self._sends[partition](r, asked.answered)
        if number > 0:
            number = number * self._count + partition
        return asked.sent(number)

    def _lease_again(self, request: i.LeaseAgain, done: Done) -> int:
        partition = request.queue >> NUMBER_BITS
        numbered = msgspec.structs.replace(request, queue=local_number(request.queue))
        return self.to_partition(partition, numbered, partial(_leased, partition, done))

    def _ack(self, request: i.Ack, done: Done) -> int:
        partition = request.queue >> NUMBER_BITS
        if partition:
            request = i.Ack(
                local_number(request.queue), request.tokens, request.account, request.protocol, request.late
            )
        return self._sends[partition](request, done)

    def _settle(self, request: i.Settle, done: Done) -> int:
        partition = request.queue >> NUMBER_BITS
        if partition:
            number = local_number(request.queue)
            request = i.Settle(number, request.settlements, request.account, request.protocol)
        return self._sends[partition](request, done)

    def _settle_held(self, request: i.SettleHeld, done: Done) -> int:
        r, partition = request, request.queue >> NUMBER_BITS
        if partition:
            r = i.SettleHeld(r.session, local_number(r.queue), r.seqs, r.leases, r.action, r.consumer, r.lease_ms)
        self._sends[partition](r, done)
        self.settled(request)
        return 0

    # Sessions

    def _subscribe(self, request: i.Subscribe, done: Done) -> int:
        partition = request.queue >> NUMBER_BITS
        visitor = self._visitors.get(request.session)
        if visitor is None:  # it has ended: the partition passes it over
            return self.to_partition(partition, numbered_by_queue(request), done)
        visitor.visit(partition)
        visitor.subscribe(partition, request)

        def subscribed(answer: Any) -> None:
            if isinstance(answer, LanewayError):
                visitor.forget(request.consumer)
            done(answer)

        return self.to_partition(partition, numbered_by_queue(request), subscribed)

    def _unsubscribe(self, request: i.Unsubscribe, done: Done) -> int:
        visitor = self._visitors.get(request.session)
        partition = visitor.consumers.get(request.consumer) if visitor is not None else None
        if visitor is None or partition is None:
            self.call_soon(partial(done, None))
            return 0

        def unsubscribed(answer: Any) -> None:
            visitor.unsubscribed(request.consumer)
            done(answer)

        return self.to_partition(partition, request, unsubscribed)

    def _limit_pool(self, request: i.LimitPool, done: Done) -> int:
        visitor = self._visitors.get(request.session)
        if visitor is not None:
            visitor.limit(request)
        return 0

    def _flow(self, request: i.Flow, done: Done) -> int:
        visitor = self._visitors.get(request.session)
        if visitor is not None:
            visitor.flow(request)
        return 0

    def _end_session(self, request: i.EndSession, done: Done) -> int:
        visitor = self._visitors.pop(request.session, None)
        if visitor is not None:
            visitor.end()
        return 0


class _AskedLease:
    """A lease that was asked for. If its queue goes elsewhere meanwhile, it is asked for there."""

    __slots__ = ("_done", "_edge", "_is_answered", "_number", "_request")

    def __init__(self, edge: Edge, request: i.Lease, done: Done) -> None:
        self._edge = edge
        self._request = request
        self._done = done
        self._number = 0
        self._is_answered = False

    def sent(self, number: int) -> int:
        """The number under which it waits."""
        if not self._is_answered:
            self._number = number
        return self._number

    def answered(self, answer: Any) -> None:
        self._is_answered = True
        if type(answer) is QueueElsewhere:
            self._number = self._edge.standstill.again(self._request, self._done, self._number)
        else:
            _leased(partition_of(self._request.queue), self._done, answer)


def numbered_by_queue(request: Any) -> Any:
    """A request for one queue, as its partition understands it."""
    if not partition_of(request.queue):
        return request
    return msgspec.structs.replace(request, queue=local_number(request.queue))


def numbered_publish(request: i.Publish) -> i.Publish:
    """A publish into queues of one partition, as that understands it."""
    targets = request.targets
    if not isinstance(targets, list):
        return i.Publish(tuple(map(local_number, targets)), request.messages, request.key, request.protocol)
    known = {route: tuple(map(local_number, route)) for route in set(targets)}
    return i.Publish(list(map(known.__getitem__, targets)), request.messages, request.key, request.protocol)


def arrived(partition: int, done: Done, answer: Any) -> None:
    if type(answer) is list:
        answer = [Arrival(queue_id(partition, a.queue), a.places, a.result) for a in answer]
    done(answer)


def _leased(partition: int, done: Done, answer: Any) -> None:
    if partition and type(answer) is Deliveries and len(answer):
        answer.queue = queue_id(partition, answer.queue)
    done(answer)
