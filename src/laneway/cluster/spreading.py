"""What an edge publishes, or settles with it, in several partitions.

A publish is cut by partition if each of its messages goes to one. Else it is a Spread: one partition, always the same
one, commits all of it and passes on what is for the others. That takes another way than what is sent to a partition at
once, so an edge keeps the order itself: a Spread leaves when all that was sent to its partitions before is carried out,
and while it is under way, what else goes to its queues is a Spread too, or waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker import interface as i
from laneway.broker.parts import is_long, parts, placed
from laneway.broker.values import Arrival
from laneway.cluster.asking import size_of
from laneway.core.partitions import local_number, partition_of, queue_id
from laneway.errors import JournalFailed, LanewayError, LeaseStale, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from laneway.cluster.edge import Done, Edge

IN_PARTS = -1  # as of LocalBroker: it is not carried out yet, and others may overtake it
#: What a transaction settles in other partitions is leased so long at most, until they are told of it.
RESERVED_MS = 120_000
#: With more waiting to leave, nothing more is taken.
MAX_BYTES = 64 * 1024 * 1024
MAX_COUNT = 10_000
#: Were it done without them, what it makes of them would be made again by whoever gets them next.
NOT_HELD = "messages that this transaction settles went back to their queue meanwhile: nothing of it was done"


class _Job:
    """A Spread that leaves when nothing is before it, and the partitions that it concerns have said so."""

    __slots__ = ("done", "missing", "queues", "refusal", "reserved", "size_bytes", "spread")

    def __init__(self, spread: i.Spread, queues: set[i.QueueId], done: Done) -> None:
        self.spread = spread
        self.queues = queues
        self.done = done
        self.size_bytes = size_of(spread)
        self.missing = 0  # answers to wait for
        self.reserved: list[i.SettleHeld] = []
        self.refusal: LanewayError | None = None


class Spreading:
    def __init__(self, edge: Edge, at: int) -> None:
        self._edge = edge
        self._at = at  # the partition that commits them
        self.queues: dict[i.QueueId, int] = {}  # to which some are under way, and how many
        self._line: deque[_Job] = deque()
        self._line_bytes = 0
        self._after: dict[i.QueueId, list[Callable[[], Any]]] = {}

    def after(self, queue: i.QueueId, call: Callable[[], Any]) -> None:
        """Call when nothing is under way to a queue."""
        if queue in self.queues:
            self._after.setdefault(queue, []).append(call)
        else:
            call()

    # Publishing

    def publish(self, request: i.Publish, done: Done) -> int:
        if self._is_refused(done):
            return 0
        count = len(request.messages.bodies)
        if not is_long(request.targets, count):
            self._publish(request, done)
            return 0
        queues = _queues(request.targets)
        self._begin(queues)  # what comes meanwhile is not to get between the parts
        pieces = iter(list(parts(request)))
        arrivals: list[Arrival] = []

        def go_on() -> None:
            piece = next(pieces, None)
            if piece is None:
                self._end(queues)
                done(arrivals)
                return
            part, places = piece

            def answered(answer: Any) -> None:
                arrivals.extend(placed(answer, part, places))
                go_on()

            self._publish(part, answered)

        go_on()
        return IN_PARTS

    def _publish(self, request: i.Publish, done: Done) -> None:
        targets = request.targets
        each = targets if isinstance(targets, list) else [targets] * len(request.messages.bodies)
        self._add(i.Spread(each, request.messages, [], request.key, request.protocol), [], done)

    # Transactions

    def transact(self, request: i.Transact, done: Done) -> int:
        queues = _queues(request.targets)
        settled = {settlement.queue for settlement in request.settlements}
        partitions = set(map(partition_of, queues | settled))
        for partition in partitions:
            for session in {settlement.session for settlement in request.settlements}:
                self._edge.visit(session, partition)
        if len(partitions) <= 1 and self.queues.keys().isdisjoint(queues):
            self._transact_in(partitions.pop() if partitions else 0, request, done)
            return 0
        if self._is_refused(done):
            return 0
        own = [s for s in request.settlements if partition_of(s.queue) == self._at]
        others = [s for s in request.settlements if partition_of(s.queue) != self._at]

        def ended(answer: Any) -> None:
            if not isinstance(answer, LanewayError):
                for settlement in request.settlements:
                    self._edge.settled(settlement)
            done(answer)

        self._add(i.Spread(request.targets, request.messages, own, None, i.AMQP), others, ended)
        return 0

    def _transact_in(self, partition: int, request: i.Transact, done: Done) -> None:
        settlements = request.settlements

        def ended(answer: Any) -> None:
            if not isinstance(answer, LanewayError):
                for settlement in settlements:
                    self._edge.settled(settlement)
            if partition and isinstance(answer, list):
                answer = [Arrival(queue_id(partition, a.queue), a.places, a.result) for a in answer]
            done(answer)

        if partition:
            numbered = [msgspec.structs.replace(s, queue=local_number(s.queue)) for s in settlements]
            targets = [tuple(map(local_number, route)) for route in request.targets]
            request = i.Transact(targets, request.messages, numbered)
        self._edge.to_partition(partition, request, ended)

    # The line

    def _is_refused(self, done: Done) -> bool:
        """Whether so much waits for a partition that nothing more is taken; who asked is told."""
        if len(self._line) < MAX_COUNT and self._line_bytes <= MAX_BYTES:
            return False
        done(
            Unavailable(
                f"{len(self._line)} publishes for queues of several partitions wait with {self._line_bytes >> 20} MiB, "
                "as one of these partitions does not keep up; try again later"
            )
        )
        return True

    def _begin(self, queues: set[i.QueueId]) -> None:
        for queue in queues:
            self.queues[queue] = self.queues.get(queue, 0) + 1

    def _end(self, queues: set[i.QueueId]) -> None:
        calls: list[Callable[[], Any]] = []
        for queue in queues:
            left = self.queues[queue] - 1
            if left:
                self.queues[queue] = left
            else:
                del self.queues[queue]
                calls += self._after.pop(queue, ())
        for call in calls:
            call()

    def _add(self, spread: i.Spread, to_reserve: list[i.SettleHeld], done: Done) -> None:
        job = _Job(spread, _queues(spread.targets), done)
        self._begin(job.queues)
        self._line.append(job)
        self._line_bytes += job.size_bytes
        job.missing = 1
        for settlement in to_reserve:
            self._reserve(job, settlement)
        for partition in set(map(partition_of, job.queues)) - {self._at}:
            job.missing += 1
            self._edge.to_partition(partition, PROBE, partial(self._probed, job))
        self._probed(job, None)

    def _probed(self, job: _Job, _: Any) -> None:
        """A partition has carried out all that came before, or is not there."""
        job.missing -= 1
        self._go()

    def _reserve(self, job: _Job, settlement: i.SettleHeld) -> None:
        job.missing += 1
        s = settlement
        partition, number = partition_of(s.queue), local_number(s.queue)

        def reserved(answer: Any) -> None:
            if isinstance(answer, LanewayError):
                job.refusal = answer
            else:
                held = [at for at, lease in enumerate(answer) if lease]
                seqs, leases = [s.seqs[at] for at in held], [answer[at] for at in held]
                if len(held) < len(answer):
                    job.refusal = LeaseStale(NOT_HELD)
                job.reserved.append(i.SettleHeld(0, s.queue, seqs, leases, s.action, 0, s.lease_ms))
            self._probed(job, None)

        request = i.Reserve(s.session, number, s.seqs, s.leases, RESERVED_MS, s.consumer)
        self._edge.to_partition(partition, request, reserved)

    def _go(self) -> None:
        while self._line and not self._line[0].missing:
            job = self._line.popleft()
            self._line_bytes -= job.size_bytes
            if job.refusal is not None:
                self._answered(job, job.refusal)
                continue
            job.spread.settlements += job.reserved
            self._edge.to_partition(self._at, job.spread, partial(self._answered, job))

    def _answered(self, job: _Job, answer: Any) -> None:
        # What may have been done needs them: if it was not, they come back in time.
        may_be_done = isinstance(answer, OutcomeUnknown | JournalFailed) and job.refusal is None
        if isinstance(answer, LanewayError) and not may_be_done:
            for s in job.reserved:
                back = i.SettleHeld(0, local_number(s.queue), s.seqs, s.leases, "release")
                self._edge.to_partition(partition_of(s.queue), back, _not_answered)
        job.done(answer)
        self._end(job.queues)


#: Answered at once, behind what came before it.
PROBE = i.ListConsumers(limit=1)


def _queues(targets: i.Targets | list[i.Targets]) -> set[i.QueueId]:
    return set(chain.from_iterable(set(targets))) if isinstance(targets, list) else set(targets)


def cut(request: i.Publish, to_partition: Callable[[int, i.Request, Done], int], done: Done) -> int:
    """A publish each of whose messages goes to queues of one partition, as one for each partition."""
    targets = request.targets
    assert isinstance(targets, list)
    partition_by_route = {route: partition_of(route[0]) if route else -1 for route in set(targets)}
    places: dict[int, list[int]] = {}
    for place, route in enumerate(targets):
        places.setdefault(partition_by_route[route], []).append(place)
    places.pop(-1, None)
    arrivals: list[Arrival] = []
    refusals: list[LanewayError] = []
    missing = len(places)

    def answered(partition: int, part: i.Publish, answer: Any) -> None:
        nonlocal missing
        if isinstance(answer, LanewayError):
            refusals.append(answer)
        for arrival in placed(answer, part, places[partition]):
            arrivals.append(Arrival(queue_id(partition, arrival.queue), arrival.places, arrival.result))
        missing -= 1
        if not missing:
            done(refusals[0] if len(refusals) == len(places) else arrivals)

    numbers = []
    for partition, its in places.items():
        routes = [tuple(map(local_number, targets[place])) for place in its]
        part = i.Publish(routes, request.messages.at(its), request.key, request.protocol)
        numbers.append(to_partition(partition, part, partial(answered, partition, part)))
    return IN_PARTS if any(numbers) else 0


def _not_answered(answer: Any) -> None:
    """Whoever sent this waits for nothing."""
