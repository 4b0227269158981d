"""What a partition does for others, and has others do (docs/decisions/0013-several-partitions.md).

A Spread is one commit here: what concerns this partition is done, what concerns others becomes entries of outboxes.
Couriers (couriers.py) take entries to their partitions, which carry them out here, each once and in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.couriers import Courier
from laneway.broker.inbox import Entry, tell, told_of
from laneway.broker.interface import Publish, Receive, Request, Reserve, SettleHeld, Spread, Targets
from laneway.broker.parts import stored_bytes
from laneway.broker.values import Arrival
from laneway.core import lease_commands
from laneway.core.departing import current_seqs
from laneway.core.events import Event, Received
from laneway.core.letters import arrive
from laneway.core.message import Messages
from laneway.core.outbox import (
    PARCEL_PROPS,
    Letter,
    Parcel,
    ParcelledSettlement,
    encoded_parcel,
    parcel,
    put_outbox,
)
from laneway.core.partitions import local_number, partition_of, queue_id
from laneway.core.publishing import publish
from laneway.errors import BatchTooLarge, DiskFull, LanewayError, OutcomeUnknown, TooLargeForDisk, Unavailable
from laneway.journal.interface import Commit

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.broker")

Done = Callable[[Any], None]
ToPartition = Callable[[int, Request, Done], object]

#: What may wait in one outbox. With more, nothing new is taken that has to cross: its partition does not keep up.
MAX_OUTBOX_COUNT = 100_000
MAX_OUTBOX_BYTES = 512 * 1024 * 1024

#: What one Spread may have: an entry of it crosses whole.
MAX_SPREAD_BYTES = 192 * 1024 * 1024

#: An entry that is refused with one of these is carried out later, and so is all behind it.
_NOT_NOW = (DiskFull, TooLargeForDisk, Unavailable)
#: How soon to look again whether what was written is synced, where durability is by interval.
SYNC_LOOK_MS = 10


class Crossing:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._couriers: dict[int, Courier] = {}
        self._deliver: ToPartition | None = None
        self._callers: dict[tuple[int, int], Done] = {}  # (receiver, number of an entry) -> who waits for it
        self._answers: dict[int, dict[int, Any]] = {}  # by sender: to the entries of its last Receive, by number
        self._written: deque[tuple[int, int]] = deque()  # (position of a commit, first message number behind it)
        self._synced_next_seq = 0  # entries below this are synced, and may leave
        self._is_looking = False
        self._is_stopped = False

    def start(self, deliver: ToPartition) -> None:
        """`deliver(partition, request, done)` reaches the other partitions of the server."""
        self._deliver = deliver
        self._synced_next_seq = self._partition.committer.durable_next_seq
        self._look()

    def stop(self) -> None:
        """Who waits for other partitions hears that the outcome is not known. What is in outboxes stays there."""
        self._is_stopped = True
        for courier in self._couriers.values():
            courier.stop()
        callers, self._callers = self._callers, {}
        for done in callers.values():
            tell(done, OutcomeUnknown("the node is stopping: whether other partitions did their part is not known"))

    # What is asked of several partitions

    def check(self, request: Spread) -> None:
        """Whether a Spread may be carried out; before it waits in the inbox."""
        if self._deliver is None:
            raise Unavailable("this partition has not reached the others yet; try again in a moment")
        size_bytes = sum(map(len, request.messages.bodies)) + sum(map(len, request.messages.props))
        if size_bytes > MAX_SPREAD_BYTES:
            raise BatchTooLarge(
                f"messages for queues of several partitions have {MAX_SPREAD_BYTES >> 20} MiB together at most, these "
                f"have {size_bytes >> 20} MiB; publish fewer at once"
            )
        outboxes = self._partition.engine.state.outboxes
        queues = chain(chain.from_iterable(request.targets), (s.queue for s in request.settlements))
        for receiver in set(map(partition_of, queues)):
            outbox = outboxes.get(receiver)
            if outbox is not None and (outbox.ready >= MAX_OUTBOX_COUNT or outbox.bytes_waiting >= MAX_OUTBOX_BYTES):
                raise Unavailable(
                    f"{outbox.ready} entries with {outbox.bytes_waiting >> 20} MiB wait for partition {receiver}, it "
                    "does not keep up; try again later"
                )

    def spread(self, entries: list[Entry]) -> None:
        """Each in one commit: all that it does is staged without letting anything else in between."""
        for entry in entries:
            try:
                self._spread(entry.request, entry.done)
            except Exception as trouble:
                tell(entry.done, told_of(trouble))

    def _spread(self, request: Spread, done: Done) -> None:
        partition = self._partition
        own, messages = partition.engine.state.partition, request.messages
        partition.meter.messages[request.protocol, "publish"] += len(messages.bodies)
        places: dict[int, list[int]] = {}
        for place, route in enumerate(request.targets):
            for receiver in set(map(partition_of, route)):
                places.setdefault(receiver, []).append(place)
        settlements: dict[int, list[SettleHeld]] = {}
        for settlement in request.settlements:
            settlements.setdefault(partition_of(settlement.queue), []).append(settlement)
        parts = _Parts(done)
        for receiver in sorted({*places, *settlements} - {own}):
            its_places = places.get(receiver, [])
            arrivals = [
                Arrival(queue, [place], messages.refused[place])
                for place in its_places
                if place in messages.refused
                for queue in request.targets[place]
                if partition_of(queue) == receiver
            ]
            its_places = [place for place in its_places if place not in messages.refused]
            routes = [_of(receiver, request.targets[place]) for place in its_places]
            settled = [_parcelled(s) for s in settlements.get(receiver, ())]
            content = parcel(routes, messages.at(its_places), settled, request.key)
            partition.engine.run(
                self.enclose(receiver, content, parts.expect(partial(_placed, receiver, its_places, arrivals)))
            )
        done_here = parts.expect(lambda answer: answer)
        arrivals = self._do_here(request, places.get(own, []), settlements.get(own, []))
        partition.committer.when_durable(done_here, arrivals)

    def enclose(self, receiver: int, content: Parcel, done: Done) -> Iterator[Event]:
        """Put a parcel into the outbox. `done` is called with the answer of its receiver."""
        state, now_ms = self._partition.engine.state, self._partition.now()
        yield from put_outbox(state, receiver, now_ms)
        outbox, messages = state.outboxes[receiver], Messages([encoded_parcel(content)], [PARCEL_PROPS])
        self._callers[receiver, state.table.next_seq] = done
        yield from publish(state, [(outbox, 1)], messages, now_ms, [])

    def _do_here(self, request: Spread, places: list[int], settlements: list[SettleHeld]) -> list[Arrival]:
        own = self._partition.engine.state.partition
        routes = [_of(own, request.targets[place]) for place in places]
        for settlement in settlements:
            settlement.queue = local_number(settlement.queue)
        found = self._partition.inbox.publish_and_settle(
            Publish(list(routes), request.messages.at(places), request.key), settlements
        )
        return _placed(own, places, [], found)

    def reserve(self, r: Reserve) -> list[int]:
        """Keep what a session holds from going back when the session ends."""
        partition = self._partition
        partition.check_open()
        queue = partition.find_number(r.queue)
        found: list[int] = []
        partition.run_now(
            lease_commands.reserve(
                partition.engine.state,
                queue,
                current_seqs(partition.engine.state.carried, r.seqs, r.leases),
                r.leases,
                r.lease_ms,
                partition.secret_lease(),
                partition.now(),
                found,
            )
        )
        partition.sessions.settled(SettleHeld(r.session, r.queue, r.seqs, r.leases, "ack", r.consumer))
        return found

    # What other partitions send

    def receive(self, entries: list[Entry]) -> None:
        for entry in entries:
            try:
                answer: Any = self._receive(entry.request)
            except LanewayError as refusal:
                tell(entry.done, refusal)
            else:
                self._partition.committer.when_durable(entry.done, answer)

    def _receive(self, request: Receive) -> list[Any]:
        """Done in the order of their numbers. What was done before, and whose answer was lost since, is not done
        again: its sender is answered as the first time if that is still known."""
        partition, sender = self._partition, request.sender
        state = partition.engine.state
        before = last = state.received.get(sender, 0)
        known = self._answers.get(sender, {})
        answers: dict[int, Any] = {}
        try:
            for entry in request.entries:
                if entry.number <= before:
                    answers[entry.number] = known.get(entry.number, _FORGOTTEN)
                else:
                    answers[entry.number] = self._carry_out(sender, entry.what)
                    last = entry.number
        finally:
            if last > before:
                partition.engine.run(iter([Received(partition.now(), sender, last)]))
                self._answers[sender] = answers
        return list(answers.values())

    def _carry_out(self, sender: int, what: Parcel | Letter) -> Any:
        try:
            if isinstance(what, Letter):
                return self._deliver_letter(sender, what)
            return self._open_parcel(what) if what.move is None else self._partition.moves.receive(sender, what.move)
        except _NOT_NOW:
            raise
        except Exception as trouble:  # what is wrong with one keeps nothing else from being done
            log.exception("an entry of partition %d could not be carried out", sender)
            return told_of(trouble)

    def _open_parcel(self, what: Parcel) -> list[Arrival]:
        partition = self._partition
        if partition.engine.state.forwards:
            what = self._send_on(what)
        request = Publish(list(what.targets), what.messages(), what.key)
        if what.bodies:
            partition.check_memory()
            partition.check_writable(stored_bytes(request))
        else:
            partition.check_open()
        settlements = [
            SettleHeld(0, s.queue, s.seqs, s.leases, s.action, 0, s.lease_ms)  # type: ignore[arg-type]
            for s in what.settlements
        ]
        return partition.inbox.publish_and_settle(request, settlements)

    def _send_on(self, what: Parcel) -> Parcel:
        """What of it is for queues that have left goes after them; the rest."""
        state = self._partition.engine.state
        there: dict[int, tuple[dict[int, list[int]], list[ParcelledSettlement]]] = {}
        targets: list[tuple[int, ...]] = []
        for place, route in enumerate(what.targets):
            targets.append(tuple(number for number in route if number not in state.forwards))
            for number in route:
                if number in state.forwards:
                    queue = state.whereabouts(queue_id(state.partition, number))
                    if partition_of(queue) == state.partition:
                        targets[-1] = (*targets[-1], local_number(queue))
                    else:
                        routes = there.setdefault(partition_of(queue), ({}, []))[0]
                        routes.setdefault(place, []).append(local_number(queue))
        settlements: list[ParcelledSettlement] = []
        for s in what.settlements:
            queue = state.whereabouts(queue_id(state.partition, s.queue))
            now = msgspec.structs.replace(s, queue=local_number(queue))
            if partition_of(queue) == state.partition:
                settlements.append(now)
            else:
                there.setdefault(partition_of(queue), ({}, []))[1].append(now)
        for receiver, (on, its) in there.items():
            messages = what.messages().at(list(on))
            messages.is_promised = True  # it was done where it began
            content = parcel([tuple(route) for route in on.values()], messages, its, what.key)
            self._partition.engine.run(self.enclose(receiver, content, _not_answered))
        return msgspec.structs.replace(what, targets=targets, settlements=settlements)

    def _deliver_letter(self, sender: int, what: Letter) -> None:
        partition = self._partition
        partition.check_writable(len(what.body) + len(what.props))
        partition.after(partition.engine.run(arrive(partition.engine.state, sender, what, partition.now())))

    # Couriers

    def durable(self, commit: Commit) -> None:
        """Called after each commit: what it brought may leave as soon as it is synced. Until then a power cut could
        have its number given to another entry."""
        if self._deliver is not None and self._partition.engine.state.outboxes:
            self._written.append((commit.position, self._partition.committer.durable_next_seq))
            self._look()

    def _look_again(self) -> None:
        self._is_looking = False
        self._look()

    def _look(self) -> None:
        if self._is_stopped:
            return
        end = self._partition.engine.journal.history.end().position
        while self._written and self._written[0][0] < end:
            _, self._synced_next_seq = self._written.popleft()
        if self._written and not self._is_looking:
            self._is_looking = True
            self._partition.call_later(SYNC_LOOK_MS, self._look_again)
        for receiver, outbox in self._partition.engine.state.outboxes.items():
            if outbox.ready:
                self._courier(receiver).look(self._synced_next_seq)

    def _courier(self, receiver: int) -> Courier:
        courier = self._couriers.get(receiver)
        if courier is None:
            assert self._deliver is not None
            deliver = partial(self._deliver, receiver)
            courier = self._couriers[receiver] = Courier(self._partition, receiver, deliver, self._delivered)
        return courier

    def _delivered(self, receiver: int, numbers: Sequence[int], answers: Sequence[Any]) -> None:
        for number, answer in zip(numbers, answers, strict=True):
            done = self._callers.pop((receiver, number), None)
            if done is not None:
                tell(done, answer)


def _not_answered(answer: Any) -> None:
    """Nobody waits for it."""


_FORGOTTEN = OutcomeUnknown("this was done, but the partition that did it no longer knows what it answered")


class _Parts:
    """One answer made of those of several partitions: it is given when the last of them is there."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._missing = 0
        self._arrivals: list[Arrival] = []
        self._refusal: LanewayError | None = None

    def expect(self, placed: Callable[[Any], Any]) -> Done:
        """What takes one more answer. `placed` makes arrivals of it."""
        self._missing += 1
        return partial(self._answered, placed)

    def _answered(self, placed: Callable[[Any], Any], answer: Any) -> None:
        self._missing -= 1
        if isinstance(answer, LanewayError):
            self._refusal = answer
        else:
            self._arrivals += placed(answer)
        if not self._missing:
            self._done(self._arrivals if self._refusal is None else self._refusal)


def _of(partition: int, route: Targets) -> Targets:
    """The queues of a partition, as numbers."""
    return tuple(local_number(queue) for queue in route if partition_of(queue) == partition)


def _placed(partition: int, places: Sequence[int], refused: list[Arrival], answer: list[Arrival]) -> list[Arrival]:
    """Arrivals in one partition, with ids of queues and the places that messages have in the whole."""
    return refused + [
        Arrival(queue_id(partition, a.queue), places if a.places is None else [places[at] for at in a.places], a.result)
        for a in answer
    ]


def _parcelled(s: SettleHeld) -> ParcelledSettlement:
    return ParcelledSettlement(local_number(s.queue), list(s.seqs), list(s.leases), s.action, s.lease_ms)
