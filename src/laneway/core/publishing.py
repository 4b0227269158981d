"""The publish command: messages in columns, checked against their queues and turned into one Published event.

Hot: every check is made for the whole column first. Only if a column holds something that breaks a rule, or the queue
may have no room for all, the messages are looked at one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence, Set
from itertools import repeat
from operator import add

import msgspec

from laneway.core import queue as q_
from laneway.core.burial import bury, shed
from laneway.core.dedups import dedup_key
from laneway.core.events import Cause, Event, Published
from laneway.core.message import RECORD_PREFIX_BYTES, Messages, Receipt, Receipts, message_id
from laneway.core.queue import Queue
from laneway.core.settings import DAY_MS, RANGES
from laneway.core.state import State
from laneway.errors import InvalidInput, LanewayError, LimitExceeded, MessageTooLarge, QueueFull

MAX_DELAY_MS = RANGES["delay_ms"][1]
MAX_SCHEDULE_MS = 90 * DAY_MS
MAX_TTL_MS = RANGES["message_ttl_ms"][1]

_Column = list[int | None] | None


#: The first messages are those of the first queue, so many of them, and so on.
Shares = Sequence[tuple[Queue, int]]


class SharedRecords:
    """Of messages that go to several queues: which record each of a batch has, and where the records stand that the
    commit has already, which batches before have brought. All these batches must be of one commit and one time."""

    __slots__ = ("_locations", "numbers", "of_event")

    def __init__(self, numbers: Sequence[int] = (), locations: dict[int, int] | None = None) -> None:
        self.numbers = numbers  # of the records of the next batch: those of equal number are the same
        self.of_event: list[int] = []  # the same of the last event
        self._locations = {} if locations is None else locations

    def locations(self, order: Sequence[int]) -> list[int]:
        """What an event with these messages of the batch says of its records."""
        self.of_event = list(map(self.numbers.__getitem__, order))
        return self.placed()

    def placed(self) -> list[int]:
        """What the last event says of its records now."""
        marks, known = self.of_event, self._locations
        if not known:
            # Mostly all go to the same queues, one of them after the other.
            count = len(set(marks))
            times = len(marks) // count
            if marks == marks[:count] * times:
                return [0] * count + list(range(-1, -count - 1, -1)) * (times - 1)
        elif known.keys() >= set(marks):
            return list(map(known.__getitem__, marks))
        places = dict(known)
        found = [places.setdefault(number, ~at) for at, number in enumerate(marks)]
        return [0 if mark == ~at else mark for at, mark in enumerate(found)]

    def note(self, event: Published) -> None:
        """The event was staged."""
        self._locations.update(zip(self.of_event, event.locations, strict=True))


def publish(
    state: State,
    shares: Shares,
    messages: Messages,
    now_ms: int,
    results: list[Receipts],
    records: SharedRecords | None = None,
) -> Iterator[Event]:
    """Publish messages into queues; `results` gets one Receipts, with an entry for each of them. There are several
    queues only if their `rules` are equal and no message has a dedup id: then what holds for one holds for all."""
    queue = shares[0][0]
    settings = queue.settings
    count = len(messages.bodies)
    others: dict[int, Receipt | LanewayError] = dict(messages.refused)
    priorities = _priorities(shares, messages, others)
    sizes = list(map(add, map(len, messages.props), map(len, messages.bodies)))
    if count and max(sizes) > settings.max_message_bytes:
        _refuse_large(shares, sizes, others)
    visible = _visible_at(messages, settings.delay_ms, now_ms, others)
    expires = _expires_at(messages.ttls_ms, settings.message_ttl_ms, visible, count, now_ms, others)
    dedup_ids = messages.dedup_ids if settings.dedup_window_ms or queue.dedup else {}
    repeats: dict[int, int] = {}
    if dedup_ids or not _has_room(state, queue, sizes):
        repeats = _look_at_each(state, queue, messages, priorities, sizes, now_ms, others)
    kept: Sequence[int] = range(count)
    if others or repeats:
        kept = [i for i in kept if i not in others and i not in repeats]
    first = state.table.next_seq
    # Messages of a group keep the order in which they came, whatever their priorities.
    is_grouped = messages.groups and not messages.groups.keys().isdisjoint(kept)
    order = kept if is_grouped else _by_priority(shares, kept, priorities)
    results.append(_receipts(state, first, order, priorities, visible, others, repeats, now_ms))
    if kept:
        if len(kept) < count and len(shares) > 1:
            shares = _kept_shares(shares, kept)
        event = _published(shares, messages, now_ms, first, order, priorities, visible, expires, sizes)
        if records is not None:
            event.locations = records.locations(order)
        yield event
        if records is not None:
            records.note(event)
        if settings.overflow == "drop_oldest" and (settings.max_messages is not None or settings.max_bytes is not None):
            yield from shed(state, queue, now_ms)
    if others and settings.overflow == "reject_dead_letter":
        yield from _bury_refused(state, queue, messages, priorities, others, now_ms, records)


def _published(
    shares: Shares,
    messages: Messages,
    now_ms: int,
    first: int,
    order: Sequence[int],
    priorities: Sequence[int],
    visible: Sequence[int] | None,
    expires: Sequence[int] | None,
    sizes: Sequence[int],
) -> Published:
    """Those of `order`, numbered in this order."""
    props: Sequence[bytes] = messages.props
    bodies: Sequence[bytes] = messages.bodies
    queue = shares[0][0]
    settings = queue.settings
    groups, tenants = messages.groups, messages.tenants if settings.fair else {}
    dedups = messages.dedup_ids if settings.dedup_window_ms else {}
    if not isinstance(order, range):
        priorities, sizes = [priorities[i] for i in order], [sizes[i] for i in order]
        props, bodies = [props[i] for i in order], [bodies[i] for i in order]
        visible = [visible[i] for i in order] if visible is not None else None
        expires = [expires[i] for i in order] if expires is not None else None
        groups = {at: groups[i] for at, i in enumerate(order) if i in groups} if groups else groups
        dedups = {at: dedups[i] for at, i in enumerate(order) if i in dedups} if dedups else dedups
        tenants = {at: tenants[i] for at, i in enumerate(order) if i in tenants} if tenants else tenants
    named_times: Set[int] = frozenset()
    if visible is not None and messages.visible_at_ms is not None:
        given = messages.visible_at_ms
        named_times = {at for at, i in enumerate(order) if given[i] is not None and visible[at]}
    if groups and tenants:
        tenants = {at: name for at, name in tenants.items() if at not in groups}
    never = [0] * len(order)
    return Published(
        queue.number,
        now_ms,
        first,
        priorities,
        never if visible is None else visible,
        never if expires is None else expires,
        list(map(add, sizes, repeat(RECORD_PREFIX_BYTES))),
        props,
        bodies,
        groups,
        dedups,
        tenants=tenants,
        queues=[(queue.number, count) for queue, count in shares] if len(shares) > 1 else (),
        named_times=named_times,
    )


def _by_priority(shares: Shares, kept: Sequence[int], priorities: Sequence[int]) -> Sequence[int]:
    """In which order the messages of a batch are numbered: what will be delivered together then stands together, on
    disk and in memory."""
    if not kept or priorities.count(priorities[0]) == len(priorities):
        return kept
    order: list[int] = []
    for _, its in _split(shares, kept):
        order += sorted(its, key=priorities.__getitem__, reverse=True)
    return order


def _split(shares: Shares, kept: Sequence[int]) -> Iterator[tuple[Queue, Sequence[int]]]:
    """Which of the kept messages are whose."""
    start = end = 0
    for queue, count in shares:
        end += count
        stop = bisect_left(kept, end, start)
        yield queue, kept[start:stop]
        start = stop


def _kept_shares(shares: Shares, kept: Sequence[int]) -> Shares:
    return [(queue, len(its)) for queue, its in _split(shares, kept) if its]


def _queue_of(shares: Shares, i: int) -> Queue:
    return next(queue for queue, its in _split(shares, (i,)) if its)


def _receipts(
    state: State,
    first: int,
    order: Sequence[int],
    priorities: Sequence[int],
    visible: Sequence[int] | None,
    others: dict[int, Receipt | LanewayError],
    repeats: dict[int, int],
    now_ms: int,
) -> Receipts:
    seqs: Sequence[int] = range(first, first + len(order))
    if not isinstance(order, range):
        given = [0] * len(priorities)
        for at, i in enumerate(order, first):
            given[i] = at
        seqs = given
    for i, known in repeats.items():  # of a dedup id of this very batch
        text = message_id(now_ms, state.tag, seqs[known])
        visible_ms = visible[known] if visible is not None else 0
        others[i] = Receipt(text, priorities[known], now_ms, visible_ms or now_ms, duplicate=True)
    return Receipts(state.tag, seqs, priorities, now_ms, visible, others)


# The columns


def _priorities(shares: Shares, messages: Messages, others: dict[int, Receipt | LanewayError]) -> list[int]:
    usual, highest = shares[0][0].rules[:2]
    given = messages.priorities
    if given is None:
        return [usual] * len(messages.bodies)
    found: list[int] = given if None not in given else [usual if p is None else p for p in given]  # type: ignore[assignment]
    if found and (max(found) > highest or min(found) < 0):
        if messages.clamps:
            return [min(priority, highest) for priority in found]
        for i, priority in enumerate(found):
            if not 0 <= priority <= highest:
                name = _queue_of(shares, i).name
                text = f"priority {priority} is out of range: queue {name!r} takes 0 to {highest}"
                others.setdefault(i, InvalidInput(text, field="priority"))
    return found


def _refuse_large(shares: Shares, sizes: Sequence[int], others: dict[int, Receipt | LanewayError]) -> None:
    most = shares[0][0].settings.max_message_bytes
    for i, size in enumerate(sizes):
        if size > most:
            name = _queue_of(shares, i).name
            text = f"the message has {size} bytes with its properties, queue {name!r} takes {most}"
            others.setdefault(i, MessageTooLarge(text, field="payload"))


def _visible_at(
    messages: Messages, usual_ms: int, now_ms: int, others: dict[int, Receipt | LanewayError]
) -> list[int] | None:
    """When each message becomes visible, 0 for at once; None if all do."""
    count = len(messages.bodies)
    delays, times = messages.delays_ms, messages.visible_at_ms
    if delays is None and times is None:
        return [now_ms + usual_ms] * count if usual_ms else None
    found: list[int] = []
    for i, delay_ms, visible_ms in zip(range(count), delays or repeat(None), times or repeat(None), strict=False):
        wrong = None
        if visible_ms is not None:
            if delay_ms is not None:
                wrong = InvalidInput("give a delay or an absolute time, not both", field="visible_at_ms")
            elif visible_ms > now_ms + MAX_SCHEDULE_MS:
                wrong = InvalidInput("the time is more than 90 days ahead", field="visible_at_ms")
            found.append(visible_ms if visible_ms > now_ms else 0)
        else:
            if delay_ms is None:
                delay_ms = usual_ms
            elif messages.clamps and delay_ms > MAX_SCHEDULE_MS:
                wrong = InvalidInput("the time is more than 90 days ahead", field="visible_at_ms")
            elif delay_ms < 0 or (delay_ms > MAX_DELAY_MS and not messages.clamps):
                wrong = InvalidInput(
                    f"a delay is from 0 to {MAX_DELAY_MS // 1000} seconds, not {delay_ms / 1000:g}; "
                    f"use an absolute time for more",
                    field="delay_ms",
                )
            found.append(now_ms + delay_ms if delay_ms else 0)
        if wrong is not None:
            others.setdefault(i, wrong)
    return found if any(found) else None


def _expires_at(
    ttls_ms: _Column,
    longest_ms: int | None,
    visible: list[int] | None,
    count: int,
    now_ms: int,
    others: dict[int, Receipt | LanewayError],
) -> list[int] | None:
    """When the time to live of each ends, 0 for never; None if none does. The shorter of its own and the queue's."""
    starts: Sequence[int] = [now_ms] * count if visible is None else [at_ms or now_ms for at_ms in visible]
    if ttls_ms is None:
        return None if longest_ms is None else [start_ms + longest_ms for start_ms in starts]
    found: list[int] = []
    for i, (ttl_ms, start_ms) in enumerate(zip(ttls_ms, starts, strict=True)):
        if ttl_ms is not None and not 0 <= ttl_ms <= MAX_TTL_MS:
            text = f"a time to live is from 0 to {MAX_TTL_MS // 1000} seconds, not {ttl_ms / 1000:g}"
            others.setdefault(i, InvalidInput(text, field="ttl_ms"))
        if longest_ms is not None:
            ttl_ms = longest_ms if ttl_ms is None else min(ttl_ms, longest_ms)
        found.append(0 if ttl_ms is None else start_ms + ttl_ms)
    return found


# Room and repetitions, which depend on what came before


def _has_room(state: State, queue: Queue, sizes: Sequence[int]) -> bool:
    """Whether all of them fit without a closer look."""
    s = queue.settings
    if s.overflow == "drop_oldest" or (s.max_messages is None and s.max_bytes is None):
        return True
    if s.max_messages is not None and queue.ready + queue.delayed + len(sizes) > s.max_messages:
        return False
    records_bytes = sum(sizes) + RECORD_PREFIX_BYTES * len(sizes)
    return s.max_bytes is None or queue.bytes_waiting + records_bytes <= s.max_bytes


def _look_at_each(
    state: State,
    queue: Queue,
    messages: Messages,
    priorities: Sequence[int],
    sizes: Sequence[int],
    now_ms: int,
    others: dict[int, Receipt | LanewayError],
) -> dict[int, int]:
    """Refuse what there is no room for, and find what was published before: with this batch (message -> the message of
    this batch that it repeats), or earlier."""
    s = queue.settings
    has_bounds = s.max_messages is not None or s.max_bytes is not None
    bounded = has_bounds and s.overflow != "drop_oldest" and not messages.is_promised
    wanted = state.wanted(queue.number, queue.ready + queue.delayed + len(sizes)) if bounded else 0
    fresh: dict[str, int] = {}
    repeats: dict[int, int] = {}
    count = total_bytes = 0
    for i, size in enumerate(sizes):
        if i in others:
            continue
        given = messages.dedup_ids.get(i)
        dedup_id = None if given is None else dedup_key(given)
        if dedup_id is not None:
            earlier = None if dedup_id in fresh else _deduplicated(queue, dedup_id, priorities[i], now_ms)
            if dedup_id in fresh or earlier is not None:
                queue.totals[q_.DEDUPLICATED] += 1
                if earlier is None:
                    repeats[i] = fresh[dedup_id]
                else:
                    others[i] = earlier
                continue
        remembers = dedup_id is not None and s.dedup_window_ms and dedup_id not in queue.dedup
        if remembers and state.dedup_count + len(fresh) >= state.most_dedups:
            # To forget an older one would break the promise that its repeat is found.
            others[i] = LimitExceeded(
                f"{state.dedup_count} deduplication ids are remembered already, which is all there is room for: try "
                "again when older ones are past their windows, use shorter windows, or raise max_dedup_bytes",
                field="dedup_id",
            )
            continue
        if bounded:
            try:
                total_bytes += _take_room(queue, count - wanted, total_bytes, RECORD_PREFIX_BYTES + size)
            except QueueFull as full:
                others[i] = full
                continue
        if dedup_id is not None and s.dedup_window_ms:
            fresh[dedup_id] = i
        count += 1
    return repeats


def _deduplicated(queue: Queue, dedup_id: str, priority: int, now_ms: int) -> Receipt | None:
    known = queue.dedup.get(dedup_id)
    if known is None or known[1] + queue.settings.dedup_window_ms <= now_ms:
        return None
    return Receipt(known[0], priority, known[1], known[1], duplicate=True)


def _take_room(queue: Queue, more: int, more_bytes: int, size: int) -> int:
    """The bytes that a newcomer takes up, none if waiting consumers have it at once; QueueFull if there is no room.
    `more` came before it in the same batch, less what consumers will take."""
    settings = queue.settings
    waiting = queue.ready + queue.delayed + more
    if waiting < 0:
        return 0
    if settings.max_messages is not None and waiting >= settings.max_messages:
        raise QueueFull(f"queue {queue.name!r} is full: it holds {settings.max_messages} messages at most")
    if settings.max_bytes is not None and queue.bytes_waiting + more_bytes + size > settings.max_bytes:
        raise QueueFull(f"queue {queue.name!r} is full: it holds {settings.max_bytes} bytes at most")
    return size


def _bury_refused(
    state: State,
    queue: Queue,
    messages: Messages,
    priorities: Sequence[int],
    others: dict[int, Receipt | LanewayError],
    now_ms: int,
    records: SharedRecords | None,
) -> Iterator[Event]:
    """Messages there is no room for come in and are dead at once; their publishers hear that there was no room."""
    s = queue.settings
    full = [i for i in sorted(others) if isinstance(others[i], QueueFull) and i not in messages.refused]
    if not full or (not s.keep_dead and s.dead_letter_queue is None and s.dead_letter_exchange is None):
        return
    first = state.table.next_seq
    # No dedup ids: whoever hears that there was no room may well try again. No tenants: nobody waits for a turn. No
    # times: they are dead already.
    dead = msgspec.structs.replace(messages, dedup_ids={}, tenants={})
    sizes = list(map(add, map(len, messages.props), map(len, messages.bodies)))
    event = _published([(queue, len(full))], dead, now_ms, first, full, priorities, None, None, sizes)
    if records is not None:
        event.locations = records.locations(full)
    yield event
    if records is not None:
        records.note(event)
    yield from bury(state, queue, range(first, first + len(full)), Cause.OVERFLOW, "", now_ms)
