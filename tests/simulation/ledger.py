"""The second oracle: what callers were told. A plain account, kept without a look at how the broker works.

    sent ──answered──▶ confirmed ──ack, purge, delete asked for──▶ leaving ──answered──▶ gone
      └─ crash ─▶ may be there or not                                └─ crash ─▶ may be there or not

After a restart whatever was in doubt is looked up once, and from then on it is certain.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from laneway.core.deliveries import Delivery
from laneway.core.message import Draft, Glimpse, Receipt
from laneway.errors import IdempotencyConflict, LanewayError

from .loop import Clock

#: Queues that get messages with equal bodies, one each.
FANNED = ("left", "right")

#: A settlement may wait for others a moment; it counts from when the first of them came.
GRACE_MS = 1_000


_Named = TypeVar("_Named", Delivery, Glimpse, Draft)


def marked(queue: str, seen: _Named) -> _Named:
    """A message as the ledger knows it: every body is there once."""
    return msgspec.structs.replace(seen, body=seen.body + b"@" + queue.encode()) if queue in FANNED else seen


def death_count(seen: Delivery | Glimpse) -> int:
    """How often it died; deaths alike are told as one, with their count."""
    return sum(death.count for death in seen.deaths)


class Sent:
    """One message that was handed in."""

    __slots__ = (
        "batch",
        "confirmed",
        "deaths",
        "draft",
        "gone",
        "is_ordered",
        "leaving",
        "message_id",
        "order",
        "priority",
        "queue",
    )

    def __init__(self, order: int, queue: str, draft: Draft, batch: Batch) -> None:
        self.order = order
        self.is_ordered = True  # whoever sent it knows which others it comes behind
        self.queue = queue
        self.draft = draft
        self.batch = batch
        self.message_id = ""
        self.priority = draft.priority
        self.confirmed = False
        self.leaving = 0  # requests under way that would end it
        self.gone = False
        self.deaths = 0  # at least so many, as far as callers know

    def is_ordered_in(self, queue: str) -> bool:
        return self.is_ordered and self.queue == queue

    def __repr__(self) -> str:
        return (
            f"<{self.draft.body[:24]!r} in {self.queue}, id {self.message_id or '?'}, confirmed {self.confirmed}, "
            f"leaving {self.leaving}, gone {self.gone}>"
        )


class Batch:
    """One publish or one transaction: all of it or nothing."""

    __slots__ = ("idempotency", "is_plain", "queue", "queue_number", "sent", "sent_at_ms", "settled")

    def __init__(
        self,
        queue: str,
        queue_number: int,
        idempotency: tuple[str, bytes] | None,
        sent_at_ms: int,
        is_plain: bool,
    ) -> None:
        self.queue = queue
        self.queue_number = queue_number  # what a queue remembers goes with it, and its name may come again
        self.idempotency = idempotency
        self.sent_at_ms = sent_at_ms
        self.is_plain = is_plain  # nothing in it could be refused on its own
        self.sent: list[Sent] = []
        self.settled: list[Sent] = []  # acked in the same transaction


class Held:
    """A token that a consumer got, and what it may expect of it."""

    __slots__ = (
        "deadline_ms",
        "deaths",
        "ended",
        "incarnation",
        "latest_ms",
        "lease_id",
        "lease_number",
        "partition",
        "queue",
        "sent",
        "settling",
        "superseded",
        "token",
    )

    def __init__(self, sent: Sent, queue: str, delivery: Delivery, partition: int, incarnation: int) -> None:
        self.sent = sent
        self.queue = queue
        self.partition = partition
        self.token = delivery.token
        self.lease_id = int(delivery.token[:16], 16)
        self.lease_number = 0  # in the order they were given
        self.deadline_ms = delivery.deadline_ms
        self.latest_ms = delivery.deadline_ms  # the deadline, if all that was asked for was done
        self.deaths = death_count(delivery)
        self.incarnation = incarnation
        self.settling = 0  # requests under way
        self.ended = False  # it was answered that it is settled
        self.superseded = False  # delivered again since; a crash may undo that, because nobody waits for a lease

    @property
    def key(self) -> tuple[int, str]:
        """Partitions know nothing of each other's tokens."""
        return self.partition, self.token


class Register:
    """A value by name that is replaced as a whole: the one confirmed, and those asked for since."""

    def __init__(self) -> None:
        self.confirmed: dict[str, Any] = {}
        self.asked: dict[str, list[tuple[int, Any]]] = {}
        self._tickets = 0
        self.forgiven = False  # whatever is found next is right

    def ask(self, name: str, value: Any) -> int:
        """The ticket to answer or withdraw it with."""
        self._tickets += 1
        self.asked.setdefault(name, []).append((self._tickets, value))
        return self._tickets

    def answer(self, name: str, ticket: int) -> None:
        """It was done, and with it all that was asked for before."""
        for asked, value in self.asked[name]:
            if asked == ticket:
                self.confirmed[name] = value
        self.asked[name] = [entry for entry in self.asked[name] if entry[0] > ticket]

    def withdraw(self, name: str, ticket: int) -> None:
        self.asked[name] = [entry for entry in self.asked[name] if entry[0] != ticket]

    def latest(self, name: str) -> Any:
        asked = self.asked.get(name)
        return asked[-1][1] if asked else self.confirmed.get(name)

    def look_up(self, what: str, found: dict[str, Any]) -> None:
        """After a restart: each is the confirmed one or one asked for since, and that is then certain."""
        for name in {*self.confirmed, *self.asked, *found}:
            allowed = [self.confirmed.get(name), *(value for _, value in self.asked.get(name, []))]
            assert self.forgiven or found.get(name) in allowed, (
                f"{what} {name} is {found.get(name)!r}, not one of {allowed!r}"
            )
            self.confirmed[name] = found.get(name)
        self.asked.clear()
        self.forgiven = False


class Registers:
    """Those of one partition."""

    def __init__(self) -> None:
        self.documents = Register()
        self.cursors = Register()  # positions by name
        self.queues = Register()
        self.exchanges = Register()

    def forgive(self) -> None:
        for register in (self.documents, self.cursors, self.queues, self.exchanges):
            register.forgiven = True


class Ledger:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # The how-manieth each lease of a partition was, by its id.
        self.lease_orders: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.by_body: dict[bytes, Sent] = {}
        self.by_id: dict[str, Sent] = {}
        self.open_batches: dict[int, Batch] = {}  # by id(): publishes not answered
        self.holds: dict[tuple[int, str], Held] = {}  # by partition and token, as long as it is of interest
        self.held: dict[bytes, Held] = {}  # by body: the newest token of each message
        self.lease_ids: set[tuple[int, int]] = set()  # partition and lease
        self._forgetting: list[int] = []  # queue numbers
        #: (queue number, dedup id) -> (message id, when, by Clock.running_ms)
        self.dedups: dict[tuple[int, str], tuple[str, int]] = {}
        self.keys: dict[tuple[int, str], tuple[bytes, list[str]]] = {}
        self.incarnations: Counter[int] = Counter()  # of each partition
        self.forgiven = 0  # how often the end of history was lost
        self.order = 0
        self.body_count = 0
        self.unacked: set[str] = set()  # queues with a consumer that does not ack: what it gets is gone at once

    def sent(self, body: bytes) -> Sent:
        assert body in self.by_body, f"there is a body that nobody sent: {body!r}"
        return self.by_body[body]

    # Publishing

    def send(
        self,
        queue: str,
        queue_number: int,
        drafts: Sequence[Draft],
        now_ms: int,
        *,
        idempotency: tuple[str, bytes] | None = None,
        is_plain: bool = False,
    ) -> Batch:
        batch = Batch(queue, queue_number, idempotency, now_ms, is_plain)
        for draft in drafts:
            self.add(batch, queue, draft)
        self.open_batches[id(batch)] = batch
        return batch

    def add(self, batch: Batch, queue: str, draft: Draft) -> Sent:
        self.order += 1
        sent = Sent(self.order, queue, draft, batch)
        batch.sent.append(sent)
        self.by_body[draft.body] = sent
        return sent

    def confirmed(self, batch: Batch) -> None:
        """All of it is durable, and nobody was told under which ids."""
        del self.open_batches[id(batch)]
        for sent in batch.sent:
            sent.confirmed = True

    def refused(self, batch: Batch) -> None:
        """The whole publish was refused at once: none of it exists."""
        del self.open_batches[id(batch)]
        for sent in batch.sent:
            del self.by_body[sent.draft.body]

    def answered(self, batch: Batch, results: Sequence[Receipt | LanewayError], window_ms: int) -> None:
        del self.open_batches[id(batch)]
        assert len(results) == len(batch.sent), f"{len(results)} results for {len(batch.sent)} messages"
        known = self.keys.get((batch.queue_number, batch.idempotency[0])) if batch.idempotency else None
        if known is not None:
            ids = [r.message_id for r in results if isinstance(r, Receipt)]  # a repeat may be answered before the first
            assert ids == known[1], f"idempotency key {batch.idempotency} was answered with {ids}, before with {known}"
        fresh: list[str] = []
        for sent, result in zip(batch.sent, results, strict=True):
            if isinstance(result, LanewayError):
                del self.by_body[sent.draft.body]
                continue
            fresh.append(result.message_id)
            if result.duplicate:
                del self.by_body[sent.draft.body]
                self._repeated(batch, sent, result, known is not None, window_ms)
                continue
            self.stored(sent, result, window_ms)
        if batch.idempotency and len(fresh) == len(results):
            self.keys[batch.queue_number, batch.idempotency[0]] = (batch.idempotency[1], fresh)

    def stored(self, sent: Sent, receipt: Receipt, window_ms: int) -> None:
        sent.message_id = receipt.message_id
        other = self.by_id.setdefault(receipt.message_id, sent)
        assert other is sent, f"{sent} and {other} have the same id"
        sent.priority = receipt.priority
        sent.confirmed = True
        dedup_id = sent.draft.properties.dedup_id
        if dedup_id:
            before = self.dedups.get((sent.batch.queue_number, dedup_id))
            fresh = before is None or before[0] == receipt.message_id
            at_ms = receipt.enqueued_at_ms + self._clock.set_back_ms
            assert fresh or before[1] + window_ms <= at_ms, (
                f"dedup id {dedup_id} in {sent.queue} was stored again {at_ms - before[1]} ms after {before}"
            )
            self._remember_dedup((sent.batch.queue_number, dedup_id), (receipt.message_id, at_ms))

    def _remember_dedup(self, key: tuple[int, str], known: tuple[str, int]) -> None:
        if key[0] not in self._forgetting:
            self.dedups[key] = known

    @contextlib.contextmanager
    def forgetting(self, queue_number: int) -> Iterator[None]:
        """At some moment within, the queue forgets its dedup ids. If that is refused in the middle, publishes before it
        are answered later: then nothing is known of its ids until the next life."""
        self._forgetting.append(queue_number)
        self._forget_dedups(queue_number)
        yield
        if queue_number in self._forgetting:  # else that life is over
            self._forgetting.remove(queue_number)
        self._forget_dedups(queue_number)

    def _forget_dedups(self, queue_number: int) -> None:
        self.dedups = {key: known for key, known in self.dedups.items() if key[0] != queue_number}

    def _repeated(self, batch: Batch, sent: Sent, receipt: Receipt, by_key: bool, window_ms: int) -> None:
        first = self.by_id.get(receipt.message_id)
        if first is None:  # not answered yet, or never: then it was there between two crashes
            waiting = any(batch.queue == sent.queue for batch in self.open_batches.values())
            in_doubt = any(s.gone and not s.message_id and s.queue == sent.queue for s in self.by_body.values())
            assert waiting or in_doubt, f"{sent} is said to repeat {receipt.message_id}, which nobody knows"
            return
        if batch.idempotency is None and not by_key:
            dedup_id = sent.draft.properties.dedup_id
            assert first.draft.properties.dedup_id == dedup_id, f"{sent} is said to repeat {first}"
            key = (sent.batch.queue_number, dedup_id)
            before = self.dedups.get(key)
            if before is None or before[1] + window_ms <= self._clock.running_ms():
                self._remember_dedup(key, (receipt.message_id, receipt.enqueued_at_ms + self._clock.set_back_ms))
            else:
                assert before[0] == receipt.message_id, f"{sent} is said to repeat {first}, not {before}"

    def conflicted(self, batch: Batch, conflict: IdempotencyConflict) -> None:
        assert batch.idempotency is not None
        known = self.keys.get((batch.queue_number, batch.idempotency[0]))
        if known is not None:
            assert known[0] != batch.idempotency[1], f"{batch.idempotency} is in conflict with itself"
            assert conflict.details["message_ids"] == known[1]
        self.refused(batch)

    # Leasing and settling

    def delivered(
        self,
        queue: str,
        deliveries: Iterable[Delivery],
        now_ms: int,
        kind: type[Held] | None = None,
        *,
        partition: int = 0,
    ) -> list[Held]:
        """What a consumer holds now; if of a kind of its own, whoever wants it keeps it."""
        holds = []
        for d in deliveries:
            sent = self.sent(d.body)
            self.check_content(sent, d)
            sent.message_id = d.message_id
            sent.confirmed = True  # whoever has seen it may rely on it
            self.by_id.setdefault(d.message_id, sent)
            assert not sent.gone, f"{sent} was delivered after its end was answered"
            hold = (kind or Held)(sent, queue, d, partition, self.incarnations[partition])
            hold.lease_number = self.lease_orders[partition][hold.lease_id]
            lease = partition, hold.lease_id
            assert lease not in self.lease_ids, f"lease id {hold.lease_id:x} was given twice, now for {sent}"
            self.lease_ids.add(lease)
            holds.append(hold)
            if kind is None:
                self.holds[hold.key] = hold
            sent.deaths = max(sent.deaths, death_count(d))
            before = self.held.get(d.body)
            is_here = before is not None and before.partition == partition
            if before is not None and is_here and before.lease_number > hold.lease_number:
                hold.superseded = True  # handed over late, because others of its batch had to become durable first
                continue
            if before is not None:
                is_of_now = before.incarnation == self.incarnations[before.partition]
                still = is_of_now and not before.ended and not before.settling
                assert not (still and before.deadline_ms > now_ms), f"{sent} was delivered while leased"
                before.superseded = True
            self.held[d.body] = hold
        return holds

    def check_content(self, sent: Sent, seen: Delivery | Glimpse, *, is_old: bool = False) -> None:
        """`is_old`: it was seen a while ago, and may have died since."""
        draft = sent.draft
        assert seen.body == draft.body
        assert sent.message_id in ("", seen.message_id), f"{sent} has become {seen.message_id}"
        wanted = draft.properties
        if seen.deaths:  # then it may have come through an exchange since
            p = seen.properties
            wanted = msgspec.structs.replace(wanted, exchange=p.exchange, routing_key=p.routing_key)
        assert seen.properties == wanted, f"{sent}: {seen.properties}, not {draft.properties}"
        # A queue that dead letters go to may take less than their own does.
        same = sent.priority in (None, seen.priority) or (death_count(seen) > 0 and seen.priority < sent.priority)
        assert same, f"{sent}: priority {seen.priority}, not {sent.priority}"
        assert is_old or death_count(seen) >= sent.deaths, f"{sent} had died {sent.deaths} times, now {seen.deaths}"

    def expectation(self, hold: Held, now_ms: int) -> bool | None:
        """True if the token must be taken, False if it must be refused, None if either is right."""
        if hold.settling:
            return None
        if hold.ended or hold.superseded or hold.latest_ms + GRACE_MS <= now_ms or hold.sent.gone:
            return False
        is_of_now = hold.incarnation == self.incarnations[hold.partition]
        sure = is_of_now and hold.deadline_ms > now_ms and not hold.sent.leaving
        return True if sure else None

    # Crashes

    def crash(self, partition: int) -> None:
        """What was under way there will not be answered."""
        self.incarnations[partition] += 1
        self._forgetting.clear()
        for hold in self.holds.values():
            if hold.partition == partition:
                hold.settling = 0
                hold.superseded = False

    def forgive(self, found: dict[bytes, Glimpse]) -> None:
        """The end of history may be lost, because the journal was told not to sync every commit: begin with what is."""
        for body, sent in self.by_body.items():
            if body not in found and not sent.gone:
                sent.gone = True
                self.by_id.pop(sent.message_id, None)  # its number may be given again
        for body, glimpse in found.items():
            sent = self.sent(body)
            sent.gone, sent.deaths, sent.leaving = False, death_count(glimpse), 0
        self.forgiven += 1
        self.dedups.clear()
        self.keys.clear()
        self.open_batches.clear()
        for hold in self.holds.values():
            hold.ended = hold.superseded = False
            hold.latest_ms = 1 << 62

    def look_up(self, found: dict[bytes, Glimpse], now_ms: int, retired_after_ms: dict[str, int]) -> None:
        """Compare with all the messages there are after a restart, and settle what was in doubt."""
        for batch in self.open_batches.values():
            if any(sent.queue in self.unacked for sent in batch.sent):
                continue
            there = [sent for sent in batch.sent if sent.draft.body in found]
            absent = [sent for sent in batch.sent if sent.draft.body not in found and not sent.leaving]
            assert not (batch.is_plain and there and absent), f"of one publish {there} are there, {absent} are not"
            if batch.sent and not any(sent.leaving for sent in batch.sent):
                for acked in [sent for sent in batch.settled if sent.leaving == 1 and not sent.gone]:
                    is_there = acked.draft.body in found
                    assert is_there is not bool(there), f"of one transaction {there} are there, and {acked} {is_there}"
        self.open_batches.clear()
        for body, glimpse in found.items():
            sent = self.sent(body)
            assert not sent.gone, f"{sent} came back, as {glimpse.state}"
            self.check_content(sent, glimpse)
            sent.message_id = glimpse.message_id
            if not glimpse.deaths:
                sent.priority = glimpse.priority
            other = self.by_id.setdefault(glimpse.message_id, sent)
            assert other is sent, f"{sent} and {other} have the same id"
            sent.confirmed, sent.leaving = True, 0
        for body in [b for b, sent in self.by_body.items() if b not in found and not sent.gone]:
            sent = self.by_body[body]
            if sent.confirmed:
                age_ms = now_ms - sent.batch.sent_at_ms + self._clock.set_back_ms
                retired = age_ms >= retired_after_ms.get(sent.queue, 1 << 60)
                is_taken = sent.queue in self.unacked
                assert sent.leaving or retired or is_taken, f"{sent} was confirmed and is lost"
            sent.gone, sent.leaving = True, 0
        self.unacked.clear()
        self.holds = {key: hold for key, hold in self.holds.items() if not hold.sent.gone or hold.ended}
