"""The inbox of a partition: every request of every session is an entry of one list, in the order of arrival.

The inbox is drained when a commit is sealed; at the end of this turn of the loop if an answer does not wait for a
commit (a lease); and at once for requests that are rare. Draining carries out the entries in order. It merges
neighbours of one kind that concern one queue into one batch, because a batch costs little more than a single message.
Nothing else gathers anything, and nothing is carried out in the middle of something else: what an answer adds comes
behind all that is there. So order is arrival by construction.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from laneway.broker.interface import (
    AMQP,
    Ack,
    IdempotencyKey,
    Lease,
    Publish,
    Receive,
    Settle,
    SettleHeld,
    Spread,
    Targets,
    Transact,
)
from laneway.broker.values import Arrival
from laneway.broker.waiting import Waiter
from laneway.core import commands, lease_commands, purging
from laneway.core.departing import current_seqs
from laneway.core.events import Event
from laneway.core.message import Messages, Receipt, Receipts, Settlement, joined_messages, parse_message_id
from laneway.core.publishing import SharedRecords
from laneway.core.queue import Queue
from laneway.core.runs import joined
from laneway.errors import LanewayError, QueueElsewhere, QueueNotFound

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.broker")

#: With more than this waiting to be carried out, it is done before the commit is sealed.
MAX_WAITING_BYTES = 8 * 1024 * 1024

_WHOLE = repeat(None)
_kind = attrgetter("request.__class__")
_SETTLES = attrgetter("request.action", "request.lease_ms")
_protocol, _bodies = attrgetter("request.protocol"), attrgetter("request.messages.bodies")
_settlements = attrgetter("request.settlements")
_action = attrgetter("action")
_ALL_DONE = {int}  # types of results

Done = Callable[[Any], None]
Results = list[int | LanewayError]


class Entry:
    """A request in the inbox. `done` is called once with its answer."""

    __slots__ = ("arrivals", "at_ms", "done", "request")

    def __init__(self, request: Any, done: Done, at_ms: int = 0) -> None:
        self.request = request
        self.done = done
        self.at_ms = at_ms  # when it came
        self.arrivals: list[Arrival]  # of a publish that is being carried out: what became of it so far

    def doing(self) -> str:
        return str(self.request.doing())


class _HeldBatch(NamedTuple):
    """Messages that sessions hold, to be settled alike: so many of each queue."""

    entries: list[Entry]
    queues: list[tuple[int, int]]
    seqs: Sequence[int]
    leases: Sequence[int]
    action: str
    lease_ms: int


class _Gathered:
    """Publishes that are carried out together, by queue."""

    __slots__ = ("clamps", "count", "keys", "parts", "requests", "targets")

    def __init__(self, clamps: bool) -> None:
        self.clamps = clamps
        self.requests: list[Messages] = []
        self.targets: list[Any] = []
        self.count = 0  # messages of all requests
        # What a queue gets: of which entry, which of its messages (None: all), and their places among those of all.
        self.parts: dict[int, list[tuple[Entry, Sequence[int] | None, Sequence[int]]]] = {}
        self.keys: set[tuple[int, str]] = set()

    def add(self, messages: Messages, targets: Any) -> range:
        """The places of these among those of all."""
        self.requests.append(messages)
        self.targets.append(targets)
        start = self.count
        self.count = end = start + len(messages.bodies)
        return range(start, end)

    def shared_records(self) -> SharedRecords | None:
        """For messages that go to several queues, and so are stored once; None if none does."""
        return SharedRecords() if len(self.parts) > 1 and any(map(_go_to_several, self.targets)) else None


class Inbox:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._entries: list[Entry] = []
        self.waiting_bytes = 0  # that the entries will take of the journal
        self._is_drain_planned = False
        self._is_draining = False
        self._is_drain_wanted = False  # something came meanwhile that is to be carried out at once
        self._carry_out: dict[type, Callable[[list[Entry]], None]] = {
            Publish: self._publish,
            Transact: self._transact,
            Settle: self._settle,
            Ack: self._ack,
            SettleHeld: self._settle_held,
            Waiter: self._lease,
            Lease: self._get,
            Spread: partition.crossing.spread,
            Receive: partition.crossing.receive,
        }

    def add(self, entry: Entry, size_bytes: int = 0) -> None:
        """Carry it out when the next commit is sealed, and ask for that commit. What comes while entries are carried
        out is for the one after that."""
        self._entries.append(entry)
        touch = self._partition.committer.touch
        if self._is_draining:
            self._partition.next_turn(touch)
        else:
            touch()
        if size_bytes:
            self.waiting_bytes += size_bytes
            if self.waiting_bytes > MAX_WAITING_BYTES:
                self.drain()

    def add_later(self, entry: Entry) -> None:
        """Carry it out with whichever commit comes next, or after a while: nobody waits for it."""
        self._entries.append(entry)
        touch_later = self._partition.committer.touch_later
        if self._is_draining:
            self._partition.next_turn(touch_later)
        else:
            touch_later()

    def add_soon(self, entry: Entry) -> None:
        """Carry it out when this turn of the loop has brought all it has: the answer waits for no commit."""
        self._entries.append(entry)
        if not self._is_drain_planned:
            self._is_drain_planned = True
            soon = self._partition.next_turn if self._is_draining else self._partition.committer.soon
            soon(self._drain_soon)

    def add_now(self, entry: Entry) -> None:
        """Carry it out at once, behind all that came before it. From inside an answer: when that is done."""
        self._entries.append(entry)
        self.drain()

    def _drain_soon(self) -> None:
        self._is_drain_planned = False
        self.drain()

    def drain(self) -> None:
        """Carry out all entries. Nothing is done if that is under way: whatever wants the entries before it carried out
        is itself one of them then, and they are. What answers add is carried out when it is its time: else one that
        gives back at once whatever it is given would keep everybody else waiting for ever."""
        self._is_drain_wanted = True
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._is_drain_wanted and self._entries:
                self._is_drain_wanted = False
                entries, self._entries, self.waiting_bytes = self._entries, [], 0
                for kind, group in groupby(entries, key=_kind):
                    self._run_group(kind, list(group))
        finally:
            self._is_draining = False

    def _run_group(self, kind: type, group: list[Entry]) -> None:
        try:
            self._carry_out.get(kind, self._change)(group)
        except Exception as trouble:
            answer = told_of(trouble)
            for entry in group:
                done, entry.done = entry.done, _ignore  # some of them may be answered with a commit
                tell(done, answer)

    def _change(self, entries: list[Entry]) -> None:
        """What is rare: each on its own."""
        for entry in entries:
            try:
                answer = self._partition.carry_out(entry.request)
            except Exception as trouble:
                answer = told_of(trouble)
            if isinstance(answer, Generator):
                self._partition.in_slices(answer, entry.done)
            else:
                tell(entry.done, answer)

    # Publishing

    def _publish(self, entries: list[Entry]) -> None:
        gathered = _Gathered(entries[0].request.messages.clamps)
        queues = self._partition.engine.state.queues
        for entry in entries:
            request: Publish = entry.request
            messages, targets, key = request.messages, request.targets, request.key
            entry.arrivals = []
            if messages.clamps is not gathered.clamps:
                self._publish_gathered(gathered)
                gathered = _Gathered(messages.clamps)
            rows = gathered.add(messages, targets)
            for number, places in shares(targets) if type(targets) is list else zip(targets, _WHOLE, strict=False):
                if number not in queues:
                    # Deleted since: the messages would have gone with it. Or it has left: then they would be lost.
                    if number in self._partition.engine.state.forwards:
                        entry.arrivals.append(Arrival(number, places, _elsewhere()))
                    continue
                if key is not None:
                    name = (number, key[0])
                    # A repeat comes behind its original, which may be of this drain, and behind all others before it.
                    if name in gathered.keys or self._partition.engine.state.keys.get(*name) is not None:
                        self._publish_gathered(gathered)
                        gathered = _Gathered(messages.clamps)
                        rows = gathered.add(messages, targets)
                    if self._is_repeated(queues[number], entry):
                        continue
                    gathered.keys.add(name)
                part = entry, places, rows if places is None else list(map(rows.__getitem__, places))
                if number in gathered.parts:
                    gathered.parts[number].append(part)
                else:
                    gathered.parts[number] = [part]
        self._publish_gathered(gathered)
        self._count(entries, "publish", map(len, map(_bodies, entries)))
        self._partition.committer.when_durable(_tell_arrivals, entries)

    def _publish_gathered(self, gathered: _Gathered) -> None:
        if not gathered.parts:
            return
        messages = joined_messages(gathered.requests)
        queues = self._partition.engine.state.queues
        alike: dict[Any, list[int]] = {}  # queues whose messages can be checked together
        for number in gathered.parts:
            rules = number if messages.dedup_ids else queues[number].rules
            if rules in alike:
                alike[rules].append(number)
            else:
                alike[rules] = [number]
        records, now_ms = gathered.shared_records(), self._partition.now()
        for numbers in alike.values():
            self._publish_into(numbers, gathered, messages, now_ms, records)

    def _publish_into(
        self, numbers: list[int], gathered: _Gathered, messages: Messages, now_ms: int, records: SharedRecords | None
    ) -> None:
        """Publish what goes to these queues as one batch, and note in each entry what became of its share."""
        queues, parts = self._partition.engine.state.queues, gathered.parts
        rows = [[its for _, _, its in parts[number]] for number in numbers]
        shares = [(queues[number], sum(map(len, its))) for number, its in zip(numbers, rows, strict=True)]
        if len(parts) > 1 or shares[0][1] < gathered.count:
            places = list(chain.from_iterable(chain.from_iterable(rows)))
            messages = messages.at(places)
            if records is not None:
                records.numbers = places
        try:
            receipts = self._partition.publish(shares, messages, now_ms, records)
        except LanewayError as refusal:  # the journal takes no more
            for number in numbers:
                for entry, which, its in parts[number]:
                    entry.arrivals.append(Arrival(number, which, refusal))
                    self._partition.meter.refused(entry.request.protocol, refusal.code, len(its))
            return
        at, others = 0, receipts.others
        for queue, _ in shares:
            number = queue.number
            for entry, which, its in parts[number]:
                end = at + len(its)
                part = receipts.part(at, end)
                if others:
                    self._note_refusals(entry, part)
                entry.arrivals.append(Arrival(number, which, part))
                at = end
            if gathered.keys:
                self._remember_keys(queue, [entry for entry, _, _ in parts[number]])

    def _note_refusals(self, entry: Entry, receipts: Receipts) -> None:
        for refusal in receipts.refusals().values():
            self._partition.meter.refused(entry.request.protocol, refusal.code)

    def _remember_keys(self, queue: Queue, entries: list[Entry]) -> None:
        self._partition.engine.run(chain.from_iterable([self._key_events(queue, entry) for entry in entries]))

    def _key_events(self, queue: Queue, entry: Entry) -> Iterator[Event]:
        key: IdempotencyKey | None = entry.request.key
        receipts = entry.arrivals[-1].result
        if key is not None and isinstance(receipts, Receipts):
            ids = [one.message_id if isinstance(one, Receipt) else "" for one in receipts.each()]
            if any(ids):
                state, most = self._partition.engine.state, self._partition.limits.max_idempotency_keys
                yield from commands.remember_key(state, queue, *key, ids, self._partition.now(), max_ids=most)

    def _is_repeated(self, queue: Queue, entry: Entry) -> bool:
        """Whether the idempotency key of an entry was used before; then its arrival is noted. A message that was
        refused then is tried again now, and it alone."""
        partition, state, request = self._partition, self._partition.engine.state, entry.request
        key: IdempotencyKey = request.key
        now_ms = partition.now()
        try:
            known = commands.check_key(state, queue, *key, now_ms)
            if known is None:
                return False
            receipts = _repeated(state.tag, queue, request.messages, known)
            missing = [i for i, text in enumerate(known) if not text]
            if missing:
                again = partition.publish([(queue, len(missing))], request.messages.at(missing)).each()
                for i, one in zip(missing, again, strict=True):
                    receipts.others[i] = one
                ids = [one.message_id if isinstance(one, Receipt) else "" for one in receipts.each()]
                if ids != known:
                    most = partition.limits.max_idempotency_keys
                    partition.engine.run(commands.remember_key(state, queue, *key, ids, now_ms, max_ids=most))
        except LanewayError as refusal:
            entry.arrivals.append(Arrival(queue.number, None, refusal))
        else:
            entry.arrivals.append(Arrival(queue.number, None, receipts))
        return True

    def _transact(self, entries: list[Entry]) -> None:
        """Each on its own."""
        for entry in entries:
            request: Transact = entry.request
            self._partition.meter.messages[AMQP, "publish"] += len(request.messages.bodies)
            answer: Any
            try:
                answer = self.publish_and_settle(Publish(request.targets, request.messages), request.settlements)
            except Exception as trouble:
                answer = told_of(trouble)
            self._partition.committer.when_durable(entry.done, answer)

    def publish_and_settle(self, request: Publish, settlements: Sequence[SettleHeld]) -> list[Arrival]:
        """All of it is staged without letting anything else in between: it is in one commit."""
        inner = Entry(request, _ignore)
        refusals: list[LanewayError] = []
        self._publish([inner])
        self._settle_held([Entry(settlement, refusals.append) for settlement in settlements], at_once=True)
        for settlement in settlements:
            self._partition.sessions.settled(settlement)
        if refusals:
            raise refusals[0]
        return inner.arrivals

    # Leasing

    def _lease(self, entries: list[Entry]) -> None:
        """In the order they came; those who want the same share a lease (waiting.py)."""
        self._partition.tick_if_due()
        waiting = self._partition.waiting
        by_queue: dict[int, list[Waiter]] = {}
        for entry in entries:
            waiter: Waiter = entry.request
            try:
                waiting.add(waiter)
            except LanewayError as refusal:
                tell(waiter.fail, refusal)
            else:
                by_queue.setdefault(waiter.queue, []).append(waiter)
        for number, some in by_queue.items():
            try:
                waiting.serve(number)
            except LanewayError as refusal:  # the journal takes no more
                for waiter in some:
                    tell(waiter.fail, refusal)
            for waiter in some:
                tell(Waiter.begin_wait, waiter)

    def _get(self, entries: list[Entry]) -> None:
        """Single messages of a session."""
        for entry in entries:
            request: Lease = entry.request
            try:
                queue = self._partition.find_number(request.queue)
                self._partition.sessions.get(queue, request.session, entry.done, no_ack=request.no_ack)
            except LanewayError as refusal:
                tell(entry.done, refusal)

    # Settling

    def _settle(self, entries: list[Entry]) -> None:
        for number, group in _by_queue(entries).items():
            queue = self._partition.engine.state.queues.get(number)
            batch = list(chain.from_iterable([entry.request.settlements for entry in group]))
            results: Results = []
            if queue is None:
                results = [_gone() for _ in batch]
            else:
                self._run(queue, batch, results, min([entry.at_ms for entry in group]))
            self._count_settled(group, results)
            at = 0
            parts = []
            for entry in group:
                parts.append(results[at : at + len(entry.request.settlements)])
                at += len(entry.request.settlements)
            self._partition.committer.when_durable(_tell_all, (group, parts))

    def _run(self, queue: Queue, batch: list[Settlement], results: Results, came_ms: int) -> None:
        partition = self._partition
        try:
            events = partition.engine.run(
                lease_commands.settle(partition.engine.state, queue, batch, partition.now(), results, came_ms=came_ms)
            )
        except LanewayError as refusal:  # the journal takes no more, whatever the command had promised
            results[:] = [refusal] * len(batch)
            return
        partition.follow_on(events)
        partition.after(events)

    # Counting, by the protocol of those who asked: mostly all of a batch have the same

    def _count(self, entries: list[Entry], operation: str, counts: Iterable[int]) -> None:
        messages, protocols = self._partition.meter.messages, set(map(_protocol, entries))
        if len(protocols) == 1:
            messages[protocols.pop(), operation] += sum(counts)
        else:
            for entry, count in zip(entries, counts, strict=True):
                messages[entry.request.protocol, operation] += count

    def _count_settled(self, entries: list[Entry], results: Results) -> None:
        messages, protocols = self._partition.meter.messages, set(map(_protocol, entries))
        batches = [entries] if len(protocols) == 1 else [[entry] for entry in entries]
        for some in batches:
            for action, count in Counter(map(_action, chain.from_iterable(map(_settlements, some)))).items():
                messages[some[0].request.protocol, action] += count
        if set(map(type, results)) != _ALL_DONE:
            rest = iter(results)
            self._count_refused(entries, [list(islice(rest, len(_settlements(entry)))) for entry in entries])

    def _count_refused(self, entries: list[Entry], results: list[Results]) -> None:
        for entry, its in zip(entries, results, strict=True):
            for result in its:
                if isinstance(result, LanewayError):
                    self._partition.meter.refused(entry.request.protocol, result.code)

    def _ack(self, entries: list[Entry]) -> None:
        for number, group in _by_queue(entries).items():
            queue = self._partition.engine.state.queues.get(number)
            if queue is None:
                results: list[Results] = [[_gone()] * len(entry.request.tokens) for entry in group]
                self._count_refused(group, results)
            else:
                results = self._ack_tokens(queue, group, min([entry.at_ms for entry in group]))
            self._count(group, "ack", map(len, results))
            self._partition.committer.when_durable(_tell_all, (group, results))

    def _ack_tokens(self, queue: Queue, entries: list[Entry], came_ms: int) -> list[Results]:
        """All of them as one event, if every one is in order; else those of each request on their own."""
        partition = self._partition
        parts = [entry.request.tokens for entry in entries]
        state, now_ms = partition.engine.state, partition.now()
        results: list[Results] = []
        events: list[Event] = []
        try:
            acked = lease_commands.ack_tokens(state, queue, parts, now_ms, came_ms=came_ms)
            if acked is not None:
                events = partition.engine.run(iter((acked,)))
                if partition.meter.followed:
                    partition.meter.acked(acked.seqs)
                results = [[0] * len(tokens) for tokens in parts]
            else:
                for entry in entries:
                    request = entry.request
                    outcome: Results = []
                    batch = [Settlement("ack", token, late=request.late) for token in request.tokens]
                    settled = lease_commands.settle(state, queue, batch, now_ms, outcome, came_ms=came_ms)
                    events += partition.engine.run(settled)
                    results.append(outcome)
                partition.follow_on(events)
                self._count_refused(entries, results)
        except LanewayError as refusal:  # the journal takes no more
            results += [[refusal] * len(tokens) for tokens in parts[len(results) :]]
            self._count_refused(entries, results)
        partition.after(events)
        return results

    def _settle_held(self, entries: list[Entry], *, at_once: bool = False) -> None:
        """What very many messages are given back by goes in slices, unless it must be `at_once`."""
        partition = self._partition
        state = partition.engine.state
        if partition.engine.closed:
            return  # the last commit is under way, and the next start gives them back
        if state.carried:
            for request in [entry.request for entry in entries]:
                request.seqs = current_seqs(state.carried, request.seqs, request.leases)
        spent = 0
        later: list[_HeldBatch] = []
        for (action, lease_ms), same in groupby(entries, key=_SETTLES):
            group = [entry for entry in same if entry.request.queue in state.queues]  # else they went with it
            for some in [group] if action == "ack" else _by_queue(group).values():
                requests = [entry.request for entry in some]
                if not requests:
                    continue
                queues = _counts(requests)
                usual_ms = state.queues[queues[0][0]].settings.lease_ms
                again_ms = usual_ms if lease_ms is None else lease_ms
                seqs, leases = joined([r.seqs for r in requests]), joined([r.leases for r in requests])
                held = _HeldBatch(some, queues, seqs, leases, action, again_ms)
                if action != "ack" and not at_once:
                    spent += len(seqs)
                    if spent > purging.SLICE:
                        later.append(held)
                        continue
                self._settle_all(held)
        if later:
            partition.in_slices(self._settle_in_slices(later), _ignore)

    def _settle_all(self, held: _HeldBatch) -> None:
        partition = self._partition
        command = lease_commands.settle_held(
            partition.engine.state, held.queues, held.seqs, held.leases, held.action, partition.now(), held.lease_ms
        )
        partition.meter.messages[AMQP, held.action] += len(held.seqs)
        try:
            partition.follow_on(partition.run_now(command))
        except LanewayError as refusal:  # the journal takes no more: they stay leased
            for entry in held.entries:
                tell(entry.done, refusal)

    def _settle_in_slices(self, several: list[_HeldBatch]) -> Generator[None, None, None]:
        engine = self._partition.engine
        for held in several:
            ((number, count),) = held.queues
            for at in range(0, count, purging.SLICE):
                if number not in engine.state.queues or engine.closed:
                    break
                seqs = held.seqs[at : at + purging.SLICE]
                part = held._replace(
                    queues=[(number, len(seqs))], seqs=seqs, leases=held.leases[at : at + purging.SLICE]
                )
                self._settle_all(part)
                yield


def shares(targets: list[Targets]) -> Iterable[tuple[int, Sequence[int] | None]]:
    """(number of a queue, which of the messages go there; None: all of them)"""
    if not targets:
        return ()
    if targets.count(targets[0]) == len(targets):
        return zip(targets[0], _WHOLE, strict=False)
    places: dict[int, list[int]] = {}
    for i, route in enumerate(targets):
        for number in route:
            if number in places:
                places[number].append(i)
            else:
                places[number] = [i]
    return places.items()


def _go_to_several(targets: Any) -> bool:
    """Whether one of the messages of a publish goes to several queues."""
    return max(map(len, targets)) > 1 if type(targets) is list else len(targets) > 1


def told_of(trouble: Exception) -> LanewayError:
    """What a caller is told of an exception."""
    if isinstance(trouble, LanewayError):
        return trouble
    log.error("requests could not be carried out", exc_info=trouble)
    return LanewayError("something went wrong inside the server; its log says what")


def _counts(requests: list[SettleHeld]) -> list[tuple[int, int]]:
    """(queue, how many messages) of requests, as one for neighbours that concern the same queue."""
    counts: list[tuple[int, int]] = []
    last = count = 0
    for request in requests:
        if request.queue != last:
            if count:
                counts.append((last, count))
            last, count = request.queue, 0
        count += len(request.seqs)
    if count or not counts:  # one may name nothing that is held any more
        counts.append((last, count))
    return counts


def _by_queue(entries: list[Entry]) -> dict[int, list[Entry]]:
    by_queue: dict[int, list[Entry]] = {}
    for entry in entries:
        by_queue.setdefault(entry.request.queue, []).append(entry)
    return by_queue


def _repeated(tag: int, queue: Queue, messages: Messages, known: list[str]) -> Receipts:
    """What a publish that comes once more is answered with: as it was the first time."""
    receipts = Receipts(tag, [0] * len(known), [0] * len(known), 0, None, {})
    settings = queue.settings
    for i, text in enumerate(known):
        if text:
            at_ms = parse_message_id(text)[0]
            priority = messages.priorities[i] if messages.priorities is not None else None
            delay_ms = messages.delays_ms[i] if messages.delays_ms is not None else None
            visible_ms = messages.visible_at_ms[i] if messages.visible_at_ms is not None else None
            visible_ms = visible_ms or at_ms + (settings.delay_ms if delay_ms is None else delay_ms)
            priority = settings.priority_when_unset if priority is None else priority
            receipts.others[i] = Receipt(text, priority, at_ms, max(at_ms, visible_ms), duplicate=True)
    return receipts


def _elsewhere() -> LanewayError:
    return QueueElsewhere("the queue is in another partition by now", field="queue")


def _gone() -> LanewayError:
    return QueueNotFound("the queue was deleted meanwhile", field="queue")


def _tell_arrivals(entries: list[Entry]) -> None:
    for entry in entries:
        try:
            entry.done(entry.arrivals)
        except Exception:
            log.exception("a caller failed to take its answer")


def _tell_all(what: tuple[list[Entry], list[Results]]) -> None:
    for entry, result in zip(*what, strict=True):
        tell(entry.done, result)


def _ignore(answer: object) -> None:
    """Whoever caused this looks at the result itself."""


def tell(done: Done, answer: Any) -> None:
    """Give an answer. One that fails to take its answer keeps nobody else from theirs."""
    try:
        done(answer)
    except Exception:
        log.exception("a caller failed to take its answer")
