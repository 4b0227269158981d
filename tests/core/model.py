"""A partition as plain as it can be said: one list of messages, looked through from end to end every time.

The tests run the real core and this side by side. It knows nothing of lanes, slabs, reminders or events; where it
and the core differ, one of the two is wrong, and this one is short enough to be read.

What time does is the one thing it does not decide for itself: when several things fall due in one millisecond, either
may come first. So it is told what happened (`lease_ran_out`, `expired`, `outlived`), refuses what may not happen, and
then says what should have happened and did not (`what_is_overdue`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from dataclasses import dataclass, field

from laneway.core import lease_commands, tenants
from laneway.core.deadlines import coarse
from laneway.core.settings import QueueSettings
from laneway.core.stories import MAX_DEATHS

SECOND_MS = 1_000


@dataclass
class ModelDraft:
    size: int  # of the record as it is stored
    priority: int | None = None
    delay_ms: int | None = None
    visible_at_ms: int | None = None
    ttl_ms: int | None = None
    group: str = ""
    dedup_id: str = ""
    routing_key: str = ""
    tenant: str = ""


@dataclass
class ModelDeath:
    queue: str
    reason: str
    at_ms: int
    receives: int
    detail: str
    count: int
    first_at_ms: int
    is_first: bool
    exchange: str | None
    routing_key: str | None
    is_over: bool  # it was redriven since


@dataclass(eq=False)
class ModelMessage:
    number: int
    record: int  # the number it was first published under
    queue: ModelQueue
    priority: int
    size: int
    group: str
    since_ms: int  # its age counts from here
    state: str = "ready"  # ready, leased, delayed, dead
    due_ms: int = 0  # deadline of the lease, end of the delay
    expires_ms: int | None = None
    overdue: bool = False  # its time to live ended while it was leased
    receives: int = 0
    delivery: int = 0  # which delivery holds it
    origin: ModelQueue | None = None  # where it first died, if it is kept elsewhere
    deaths: list[ModelDeath] = field(default_factory=list)  # one for each queue and reason, the latest last
    own_key: str = ""  # it was published with
    exchange: str | None = None  # it came through as a dead letter
    routing_key: str | None = None  # it was given then
    given_priority: int = 0  # it was published with; a queue takes it at its own highest at most
    own_tenant: str = ""  # it was published with
    tenant: str = ""  # that counts: nobody's, if it came when its queue was not fair, or is in a group
    is_ripening: bool = False  # its delay has ended, and the core may not know yet


@dataclass(eq=False)
class ModelQueue:
    number: int
    name: str
    settings: QueueSettings
    dedup: dict[str, tuple[int, int]] = field(default_factory=dict)  # id -> (number, when)
    turns: dict[str, int] = field(default_factory=dict)  # of a group: the next number when one of it last came back
    totals: Counter[str] = field(default_factory=Counter)


@dataclass
class ModelSettlement:
    action: str
    number: int
    delivery: int
    delay_ms: int = 0
    backoff: bool = False
    reason: str = ""
    lease_ms: int | None = None
    late: bool = False


class Model:
    def __init__(self) -> None:
        self.messages: list[ModelMessage] = []  # in the order of their numbers
        self.queues: dict[str, ModelQueue] = {}
        self.next_number = 1
        self.next_queue = 1
        self.next_delivery = 1
        self.bound: set[str] = set()  # queues that amq.fanout leads to; the default exchange leads to any by its name
        # While the core tells what it did: copies it made of what it has not moved yet, queues that may be too long.
        self.copied_to: dict[int, list[str]] = {}
        self.grown: list[ModelQueue] = []

    # Queues

    def put_queue(self, name: str, settings: QueueSettings) -> None:
        if name in self.queues:
            self.queues[name].settings = settings
        else:
            self.queues[name] = ModelQueue(self.next_queue, name, settings)
            self.next_queue += 1

    def delete_queue(self, name: str) -> str | None:
        if any(q.settings.dead_letter_queue == name for q in self.queues.values()):
            return "queue_in_use"
        self._remove_queue(name)
        return None

    def _remove_queue(self, name: str) -> None:
        queue = self.queues.pop(name)
        self.bound.discard(name)
        self.messages = [m for m in self.messages if m.queue is not queue]
        for m in self.messages:
            if m.origin is queue:
                m.origin = ModelQueue(queue.number, "gone", queue.settings)  # it is a dead letter still

    def purge(self, name: str, *, leased: bool = False) -> int:
        queue = self.queues[name]
        gone = [m for m in self.messages if m.queue is queue and m.state in ("ready", "delayed")]
        held = [m for m in self.messages if m.queue is queue and m.state == "leased" and leased]
        self.forget(gone + held)
        if leased:
            queue.dedup.clear()
        queue.totals["purged"] += len(gone)
        queue.totals["deleted"] += len(held)
        return len(gone) + len(held)

    # Publishing

    def publish(self, name: str, drafts: list[ModelDraft], now_ms: int) -> list[tuple[int, bool] | str]:
        """Per draft (number, whether it is a repetition) or an error code."""
        queue = self.queues[name]
        s = queue.settings
        results: list[tuple[int, bool] | str] = []
        refused: list[tuple[ModelDraft, int]] = []
        for draft in drafts:
            priority = s.priority_when_unset if draft.priority is None else draft.priority
            if not 0 <= priority <= s.max_priority:
                results.append("invalid_input")
                continue
            known = queue.dedup.get(draft.dedup_id) if draft.dedup_id else None
            if known is not None and known[1] + s.dedup_window_ms > now_ms:
                results.append((known[0], True))
                queue.totals["deduplicated"] += 1
                continue
            if s.overflow != "drop_oldest" and not self._has_room(queue, draft.size):
                results.append("queue_full")
                refused.append((draft, priority))
                continue
            message = self._new(queue, draft, priority, now_ms)
            visible_ms = now_ms
            if draft.visible_at_ms is not None:
                visible_ms = draft.visible_at_ms
            else:
                visible_ms += s.delay_ms if draft.delay_ms is None else draft.delay_ms
            if visible_ms > now_ms:
                message.state, message.due_ms, message.since_ms = "delayed", visible_ms, visible_ms
            ttls = [ttl for ttl in (draft.ttl_ms, s.message_ttl_ms) if ttl is not None]
            if ttls:
                message.expires_ms = coarse(max(visible_ms, now_ms) + min(ttls), now_ms)
            if draft.dedup_id and s.dedup_window_ms:
                queue.dedup[draft.dedup_id] = (message.number, now_ms)
            self._add(message)
            queue.totals["published"] += 1
            results.append((message.number, False))
        results = self._number_by_priority(queue, [r for r in results if isinstance(r, tuple) and not r[1]], results)
        if s.overflow == "drop_oldest" and any(isinstance(r, tuple) and not r[1] for r in results):
            self._push_out([queue], now_ms)
        if refused and s.overflow == "reject_dead_letter" and (s.keep_dead or self._sends_letters_on(queue)):
            dying = [self._new(queue, draft, priority, now_ms) for draft, priority in refused]
            for m in dying:
                m.number = m.record = self.next_number
                self._add(m)
            queue.totals["published"] += len(dying)
            self.bury(dying, "overflow", "", now_ms)
        return results

    def _number_by_priority(
        self, queue: ModelQueue, fresh: list[tuple[int, bool]], results: list[tuple[int, bool] | str]
    ) -> list[tuple[int, bool] | str]:
        """Numbers of one batch go by priority, unless one of its messages has a group."""
        batch = [m for m in self.messages if (m.number, False) in fresh]
        if any(m.group for m in batch):
            return results
        ordered = sorted(batch, key=lambda m: -m.priority)
        new = {m.number: number for m, (number, _) in zip(ordered, fresh, strict=True)}
        for message in batch:
            message.number = message.record = new[message.number]
        self.messages.sort(key=lambda m: m.number)
        queue.dedup = {i: (new.get(number, number), at_ms) for i, (number, at_ms) in queue.dedup.items()}
        return [(new.get(r[0], r[0]), r[1]) if isinstance(r, tuple) else r for r in results]

    def _new(self, queue: ModelQueue, draft: ModelDraft, priority: int, now_ms: int) -> ModelMessage:
        number = self.next_number
        return ModelMessage(
            number,
            number,
            queue,
            priority,
            draft.size,
            draft.group,
            now_ms,
            own_key=draft.routing_key,
            given_priority=priority,
            own_tenant=draft.tenant,
            tenant=draft.tenant if queue.settings.fair and not draft.group else "",
        )

    def _sends_letters_on(self, queue: ModelQueue) -> bool:
        return queue.settings.dead_letter_queue is not None or queue.settings.dead_letter_exchange is not None

    def _has_room(self, queue: ModelQueue, size: int) -> bool:
        s = queue.settings
        waiting = self._waiting(queue)
        if s.max_messages is not None and len(waiting) + 1 > s.max_messages:
            return False
        return s.max_bytes is None or sum(m.size for m in waiting) + size <= s.max_bytes

    def _excess(self, queue: ModelQueue) -> int:
        """How many are to be pushed out next."""
        s = queue.settings
        waiting = self._waiting(queue)
        if s.overflow == "drop_oldest":
            if s.max_messages is not None and len(waiting) > s.max_messages:
                return len(waiting) - s.max_messages
            if s.max_bytes is not None and sum(m.size for m in waiting) > s.max_bytes:
                return 1
        return 0

    def _push_out(self, grown: list[ModelQueue], now_ms: int) -> None:
        """The oldest of the lowest priority; delayed ones only when nothing else is left. What one queue pushes out may
        make another too long."""
        while grown:
            excess = self._excess(grown[0])
            if not excess:
                del grown[0]
                continue
            waiting = self._waiting(grown[0])
            ready = [m for m in waiting if m.state == "ready"]
            lowest = min((m.priority for m in ready), default=0)
            first = [m for m in ready if m.priority == lowest] or sorted(waiting, key=lambda m: m.priority)
            self._bury(first[:excess], "overflow", "", now_ms, grown)

    # Leasing and settling

    def lease(self, name: str, limit: int, lease_ms: int | None, now_ms: int) -> list[ModelMessage]:
        queue = self.queues[name]
        here = [m for m in self.messages if m.queue is queue]
        taken: list[ModelMessage] = []
        while len(taken) < limit:
            free = [m for m in here if m.state == "ready" and m not in taken]
            if not free:
                break
            held = [*taken, *(m for m in here if m.state == "leased")]
            best_of = [self._best_of_groups([m for m in free if m.group], here, taken)]
            best_of += [(-m.priority, self._is_noisy(m, held), m.number, m.number, m) for m in free if not m.group]
            found = min((one for one in best_of if one is not None), key=lambda one: one[:4], default=None)
            if found is None:
                break
            best = found[4]
            if taken and sum(m.size for m in taken) + best.size > lease_commands.MAX_LEASE_BYTES:
                break
            taken.append(best)
        for m in taken:
            m.state = "leased"
            m.receives += 1
            m.due_ms = now_ms + (queue.settings.lease_ms if lease_ms is None else lease_ms)
            m.delivery = self.next_delivery
            self.next_delivery += 1
            queue.totals["delivered"] += 1
            queue.totals["redelivered"] += m.receives > 1
        return taken

    def _is_noisy(self, m: ModelMessage, held: list[ModelMessage]) -> bool:
        """Whether its tenant has so much of what is in flight that others go first."""
        if not m.tenant or not m.queue.settings.fair:
            return False
        own = sum(o.tenant == m.tenant for o in held)
        return own >= tenants.NOISY_LEASES and own / len(held) > tenants.NOISY_PERCENT / 100

    def _best_of_groups(
        self, free: list[ModelMessage], here: list[ModelMessage], taken: list[ModelMessage]
    ) -> tuple[int, bool, int, int, ModelMessage] | None:
        """Of equal priority those go first whose groups were taken from; the others by number, or, if they have come
        back, by what was the next number then."""
        begun = {m.group for m in taken}

        def place(m: ModelMessage) -> tuple[int, bool, int, int, ModelMessage]:
            came_back = m.receives and m.group not in begun
            return -m.priority, False, max(m.number, m.queue.turns[m.group]) if came_back else m.number, m.number, m

        places = [place(m) for m in free if not self._waits_for_another(m, here, taken)]
        return min(places, key=lambda one: (one[0], one[4].group not in begun, *one[2:4]), default=None)

    def _waits_for_another(self, m: ModelMessage, here: list[ModelMessage], taken: list[ModelMessage]) -> bool:
        return any(o.group == m.group and o.number < m.number and o.state != "dead" and o not in taken for o in here)

    def settle(self, name: str, entries: list[ModelSettlement], now_ms: int) -> list[int | str]:
        """Per entry what it was answered with, or an error code. What dies, dies after all else was done."""
        queue = self.queues[name]
        results: list[int | str] = []
        settled: list[ModelMessage] = []
        to_bury: dict[tuple[str, str], list[ModelMessage]] = {}
        grown: list[ModelQueue] = []
        for e in entries:
            m = self.find(e.number)
            if (
                m is None
                or m in settled
                or m.queue is not queue
                or m.delivery != e.delivery
                or m.state not in (("leased", "ready", "delayed") if e.late else ("leased",))
                or (m.due_ms <= now_ms and not e.late)
            ):
                results.append("lease_stale")
                continue
            settled.append(m)
            if e.action == "ack":
                self.forget([m])
                queue.totals["acked"] += 1
                results.append(0)
            elif e.action == "reject":
                to_bury.setdefault(("rejected", e.reason), []).append(m)
                results.append(0)
            elif e.action == "extend" and e.lease_ms:
                m.state, m.due_ms = "leased", now_ms + e.lease_ms
                results.append(m.due_ms)
            else:  # release, or a lease set to 0
                delay_ms = 0
                if e.action == "release":
                    delay_ms = min(900, 2**m.receives) * SECOND_MS if e.backoff else e.delay_ms
                reason = self._end_of_tries(m)
                if reason is None:
                    results.append(now_ms + delay_ms)
                    m.state, m.due_ms = ("delayed", now_ms + delay_ms) if delay_ms else ("ready", 0)
                    queue.turns[m.group] = self.next_number
                    queue.totals["released"] += 1
                    grown = [queue]
                else:
                    results.append(now_ms)
                    to_bury.setdefault((reason, ""), []).append(m)
        self._push_out(grown, now_ms)
        for (reason, detail), dying in to_bury.items():
            self.bury(dying, reason, detail, now_ms)
        return results

    def _end_of_tries(self, m: ModelMessage) -> str | None:
        if m.overdue:
            return "expired"
        limit = m.queue.settings.max_receives
        return "max_receives" if limit is not None and m.receives >= limit else None

    # Dead letters

    def bury(self, dying: list[ModelMessage], reason: str, detail: str, now_ms: int) -> None:
        grown: list[ModelQueue] = []
        self._bury(dying, reason, detail, now_ms, grown)
        self._push_out(grown, now_ms)

    def _bury(self, dying: list[ModelMessage], reason: str, detail: str, now_ms: int, grown: list[ModelQueue]) -> None:
        by_places: dict[tuple[str, ...], list[ModelMessage]] = {}
        for m in dying:
            by_places.setdefault(tuple(q.name for q in self.places(m, reason)), []).append(m)
        for names, group in by_places.items():
            for m in group:
                self._die(m, reason, detail, now_ms)
            if names:
                targets = [self.queues[name] for name in names]
                for target in targets[1:]:
                    for m in group:
                        self._copy(m, target, now_ms)
                for m in group:
                    self._move_on(m, targets[0], now_ms)
                grown += [q for q in targets if q not in grown]

    def places(self, m: ModelMessage, reason: str) -> list[ModelQueue]:
        """Where it goes when it dies now."""
        s = m.queue.settings
        if s.dead_letter_exchange == "amq.fanout":
            names = list(self.bound)
        elif s.dead_letter_exchange == "":
            own = m.own_key if m.routing_key is None else m.routing_key
            names = [own if s.dead_letter_routing_key is None else s.dead_letter_routing_key]
        else:
            names = [s.dead_letter_queue or ""]
        found = [self.queues[name] for name in names if name in self.queues]
        return sorted((q for q in found if not self._goes_round_unseen(m, q, reason)), key=lambda q: q.number)

    def _goes_round_unseen(self, m: ModelMessage, target: ModelQueue, reason: str) -> bool:
        """Nobody saw it since it died in the target: it neither was received nor rejected nor redriven."""
        if reason == "rejected" or m.receives:
            return False
        unseen = itertools.takewhile(
            lambda d: d.reason != "rejected" and not d.receives and not d.is_over, reversed(m.deaths)
        )
        return target.name in [m.queue.name, *(d.queue for d in unseen)]

    def _die(self, m: ModelMessage, reason: str, detail: str, now_ms: int) -> None:
        """One death more; where it has no place to go, it stays or is gone. Whoever calls this moves it otherwise."""
        queue = m.queue
        kept = bool(self.places(m, reason)) or queue.settings.keep_dead
        queue.totals["dead_lettered" if kept else "dropped"] += 1
        if reason != "max_receives":
            queue.totals["overflowed" if reason == "overflow" else reason] += 1
        if not kept:
            self.forget([m])
            return
        m.state = "dead" if not self.places(m, reason) else m.state
        m.overdue = False
        same = next((d for d in m.deaths if (d.queue, d.reason) == (queue.name, reason)), None)
        if same is None:
            first = not m.deaths
            if len(m.deaths) >= MAX_DEATHS:
                m.deaths.remove(next(d for d in m.deaths if not d.is_first))
            m.deaths.append(
                ModelDeath(
                    queue.name, reason, now_ms, m.receives, detail, 1, now_ms, first, m.exchange, m.routing_key, False
                )
            )
        else:
            m.deaths.remove(same)
            m.deaths.append(
                dataclasses.replace(
                    same, at_ms=now_ms, receives=m.receives, detail=detail, count=same.count + 1, is_over=False
                )
            )

    def _move_on(self, m: ModelMessage, target: ModelQueue, now_ms: int) -> None:
        s = m.queue.settings
        if m.origin is None or m.origin not in self.queues.values():
            m.origin = m.queue
        if m.origin is target:
            m.origin = None  # it has come home
        if s.dead_letter_exchange is not None:
            m.exchange = s.dead_letter_exchange
            m.routing_key = m.routing_key if s.dead_letter_routing_key is None else s.dead_letter_routing_key
        self._move(m, target, now_ms)

    def _copy(self, m: ModelMessage, target: ModelQueue, now_ms: int) -> None:
        self._move_on(dataclasses.replace(m, deaths=list(m.deaths)), target, now_ms)

    def _move(self, m: ModelMessage, target: ModelQueue, now_ms: int) -> None:
        """The same message under a new number at the end of the target."""
        self.forget([m])
        m.number, m.queue, m.state, m.receives, m.since_ms = self.next_number, target, "ready", 0, now_ms
        m.priority = min(m.given_priority, target.settings.max_priority)
        m.tenant = m.own_tenant if target.settings.fair and not m.group else ""
        ttl_ms = target.settings.message_ttl_ms
        m.expires_ms = None if ttl_ms is None else coarse(now_ms + ttl_ms, now_ms)
        target.totals["moved_in"] += 1
        self._add(m)

    def is_dead_letter(self, m: ModelMessage) -> bool:
        return m.state == "dead" or (m.origin is not None and m.state in ("ready", "delayed"))

    def dead_letters(self, name: str) -> list[ModelMessage]:
        return [m for m in self.messages if m.queue is self.queues[name] and self.is_dead_letter(m)]

    def redrive(self, name: str, numbers: list[int], target: str | None, now_ms: int) -> list[int]:
        """Those that could not be moved."""
        queue = self.queues[name]
        failed: list[int] = []
        seen: list[ModelMessage] = []
        to_move: dict[int, list[ModelMessage]] = {}
        for number in numbers:
            m = self.find(number)
            if m is None or m.queue is not queue or not self.is_dead_letter(m) or m in seen:
                failed.append(number)
                continue
            seen.append(m)
            home = self.queues[target] if target is not None else m.origin or queue
            if home not in self.queues.values():
                failed.append(number)
                continue
            to_move.setdefault(home.number, []).append(m)
        for home_number, moving in to_move.items():
            home = next(q for q in self.queues.values() if q.number == home_number)
            for m in moving:
                m.origin, m.exchange, m.routing_key = None, None, None
                m.deaths = [dataclasses.replace(d, is_over=True) for d in m.deaths]
                self._move(m, home, now_ms)
                queue.totals["redriven"] += 1
        self._push_out([q for number in to_move for q in self.queues.values() if q.number == number], now_ms)
        return failed

    def delete_dead(self, name: str, numbers: list[int]) -> int:
        found = [m for m in self.dead_letters(name) if m.number in numbers]
        self.forget(found)
        self.queues[name].totals["deleted"] += len(found)
        return len(found)

    # Time

    def lease_ran_out(self, number: int, now_ms: int) -> None:
        m = self._get(number)
        assert m.state == "leased" and m.due_ms <= now_ms, f"the lease of {m} has not run out"
        assert self._end_of_tries(m) is None, f"{m} should have died"
        m.state, m.due_ms = "ready", 0
        m.queue.turns[m.group] = self.next_number
        m.queue.totals["lease_expired"] += 1
        self.grown.append(m.queue)

    def died(self, numbers: list[int], reason: str, target: str | None, is_kept: bool, now_ms: int) -> None:
        """The core says that they died by the clock, or were pushed out by some that did, and went to the target; or
        had no place to go, and were kept or not."""
        for m in [self._get(number) for number in numbers]:
            self._may_die(m, reason, now_ms)
            places = self.places(m, reason)
            if target is None:
                assert not places, f"{m} should have gone to {places}"
                assert m.queue.settings.keep_dead == is_kept
                self._die(m, reason, "", now_ms)
                continue
            assert places and places[0].name == target, f"{m} should have gone to {places}, not {target}"
            copied = self.copied_to.pop(m.number, [])
            assert copied == [q.name for q in places[1:]], f"{m} should have gone to {places}, not {copied}"
            self._die(m, reason, "", now_ms)
            self._move_on(m, places[0], now_ms)
            self.grown += places

    def _may_die(self, m: ModelMessage, reason: str, now_ms: int) -> None:
        if reason == "overflow":
            sooner = [o for o in self._waiting(m.queue) if self._surely_before(o, m)]
            assert m.queue in self.grown and len(sooner) < self._excess(m.queue), f"{m} was pushed out without need"
        elif reason == "expired":
            assert m.expires_ms is not None and m.expires_ms <= now_ms, f"{m} has time left"
            assert m.state in ("ready", "delayed", "leased"), f"{m} cannot expire"
            assert m.state != "leased" or m.due_ms <= now_ms, f"{m} is held by a consumer"
        else:
            assert m.state == "leased" and m.due_ms <= now_ms, f"the lease of {m} has not run out"
            assert self._end_of_tries(m) == reason, f"{m} had tries left"

    def _surely_before(self, other: ModelMessage, m: ModelMessage) -> bool:
        """Whether another is pushed out before m. One whose delay has just ended may count as either."""
        ranks = [{o.state == "delayed"} if not o.is_ripening else {False, True} for o in (other, m)]
        keys = [
            [(delayed, o.priority, o.number) for delayed in rank] for o, rank in zip((other, m), ranks, strict=True)
        ]
        return max(keys[0]) < min(keys[1])

    def copied(self, numbers: list[int], reason: str, target: str, now_ms: int) -> None:
        for m in [self._get(number) for number in numbers]:
            self._may_die(m, reason, now_ms)
            self.copied_to.setdefault(m.number, []).append(target)
            totals = m.queue.totals.copy()
            double = dataclasses.replace(m, deaths=list(m.deaths))
            self._die(double, reason, "", now_ms)
            m.queue.totals = totals  # a death is counted when it leaves
            self._move_on(double, self.queues[target], now_ms)

    def all_told(self) -> None:
        """The core is done: nothing may be missing."""
        assert not self.copied_to, f"these should have been moved: {self.copied_to}"
        for queue in self.grown:
            assert not self._excess(queue), f"{queue.name} should have pushed out messages"
        self.grown = []

    def all_done(self) -> None:
        """The core has done all that time wants."""
        for m in self.messages:
            m.is_ripening = False

    def cut_short(self) -> None:
        """The core was kept from telling more."""
        self.copied_to, self.grown = {}, []

    def outlived(self, numbers: list[int], now_ms: int) -> None:
        gone = [self._get(number) for number in numbers]
        for m in gone:
            assert m.state in ("ready", "dead"), f"{m} is kept whatever its age"
            assert self._outlived_ms(m) <= now_ms, f"{m} is younger than the retention"
            m.queue.totals["expired"] += 1
        self.forget(gone)

    def ripen(self, now_ms: int) -> None:
        """What needs no telling: delays end, and a leased message's time to live ends unseen."""
        for m in self.messages:
            if m.state == "delayed" and m.due_ms <= now_ms:
                m.state, m.due_ms, m.is_ripening = "ready", 0, True

    def restart(self) -> None:
        """What is not durable is gone. What no event tells is forgotten, and found again at the next tick."""
        for name in [q.name for q in self.queues.values() if not q.settings.durable]:
            self._remove_queue(name)
        for m in self.messages:
            m.overdue = False

    def note_overdue(self, now_ms: int) -> None:
        for m in self.messages:
            if m.state == "leased" and m.expires_ms is not None and m.expires_ms <= now_ms:
                m.overdue = True

    def what_is_overdue(self, now_ms: int) -> list[ModelMessage]:
        """What should have ended by now and has not."""
        return [
            m
            for m in self.messages
            if (m.state in ("leased", "delayed") and m.due_ms <= now_ms)
            or (m.state in ("ready", "delayed") and m.expires_ms is not None and m.expires_ms <= now_ms)
            or (m.state in ("ready", "dead") and self._outlived_ms(m) <= now_ms)
        ]

    def _outlived_ms(self, m: ModelMessage) -> int:
        since_ms = m.deaths[-1].at_ms if m.state == "dead" else m.since_ms
        return coarse(since_ms + m.queue.settings.retention_ms, since_ms)

    # Looking

    def counts(self, name: str) -> dict[str, object]:
        queue = self.queues[name]
        here = [m for m in self.messages if m.queue is queue]
        states = Counter(m.state for m in here)
        priorities = Counter(m.priority for m in here if m.state == "ready")
        return {
            "ready": states["ready"],
            "leased": states["leased"],
            "delayed": states["delayed"],
            "dead": states["dead"],
            "dead_elsewhere": sum(m.origin is queue for m in self.messages),
            "waiting_bytes": sum(m.size for m in self._waiting(queue)),
            "ready_by_priority": dict(sorted(priorities.items(), reverse=True)),
            "totals": {name: count for name, count in sorted(queue.totals.items()) if count},
        }

    def find(self, number: int) -> ModelMessage | None:
        return next((m for m in self.messages if m.number == number), None)

    def forget(self, gone: list[ModelMessage]) -> None:
        self.messages = [m for m in self.messages if m not in gone]

    def _get(self, number: int) -> ModelMessage:
        m = self.find(number)
        assert m is not None, f"there is no message {number}"
        return m

    def _add(self, m: ModelMessage) -> None:
        self.messages.append(m)
        self.next_number += 1

    def _waiting(self, queue: ModelQueue) -> list[ModelMessage]:
        return [m for m in self.messages if m.queue is queue and m.state in ("ready", "delayed")]
