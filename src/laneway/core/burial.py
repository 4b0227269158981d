"""Commands about dead letters: where a message goes when it dies, and how it comes back or goes for good.

A queue sends its dead letters to a dead-letter queue, or through a dead-letter exchange to none, one or several queues.
Those that have no place to go are kept in the queue, out of sight, or dropped if it says so; so are those that would go
round for ever between queues without anyone ever seeing them, and those that would be copied too often at once because
of others. Where they go may be in another partition: then they are moved to an outbox (outbox.py). What one step cannot
bury, because finding its way or copying it would take too long, is kept in any case. A
message that was received or rejected on its way may come back as often as it likes: that is a retry.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any

from laneway.core.events import Cause, Copied, DeadLettered, Event, Moved, QueuePut, Removed
from laneway.core.matching import MAX_STEPS, Steps
from laneway.core.message import decode_props, parse_message_id, routing_keys
from laneway.core.outbox import put_outbox
from laneway.core.partitions import local_number, partition_of, queue_id
from laneway.core.queue import Queue
from laneway.core.settings import QueueSettings
from laneway.core.state import State
from laneway.core.stories import NUMBER_BITS, REASONS
from laneway.core.table import DEAD, DELAYED, READY, SLAB_BITS, SLAB_MASK, TENANTED
from laneway.errors import ExchangeNotFound, MessageNotFound, RouteTooLong

#: Why a dead letter was dropped, in the words of a Removed event.
NOT_KEPT, UNROUTABLE, ENDLESS = "not kept", "no route", "would go round for ever"
TOO_MANY = "too many copies at once"
#: So many copies are made of what queues push out because dead letters came. Full queues that send each other copies
#: would otherwise make a factorial number of them, while all else waits.
MAX_COPIES = 5_000
#: … and so many of what a command itself is about, and so many steps on their way through exchanges.
MAX_FIRST_COPIES = 20_000
MAX_ROUTE_STEPS = 10 * MAX_STEPS
#: Instead of queues: the way there was too long to be found.
_TOO_LONG = (0,)


class _Wave:
    """What one command sets off: the queues that grew by it, and how many copies may be made of what these push out."""

    __slots__ = ("copies_left", "first_left", "grown", "is_first")

    def __init__(self) -> None:
        self.grown: dict[int, None] = {}
        self.is_first = True  # what the command itself is about
        self.first_left = MAX_FIRST_COPIES
        self.copies_left = MAX_COPIES

    def may_go(self, targets: Sequence[int]) -> bool:
        """Whether a letter may go to all these queues; if so, that is counted."""
        copies = len(targets) - 1
        if self.is_first:
            if copies > self.first_left:
                return False
            self.first_left -= copies
        elif copies > self.copies_left:
            return False
        else:
            self.copies_left -= copies
        return True


def bury(state: State, queue: Queue, seqs: Sequence[int], cause: Cause, detail: str, now_ms: int) -> Iterator[Event]:
    """Dead-letter messages of a queue. Queues that grow too long by it push out messages in their turn."""
    wave = _Wave()
    yield from _bury(state, queue, seqs, cause, detail, now_ms, wave)
    wave.is_first = False
    yield from _push_out(state, wave, now_ms)


def shed(state: State, queue: Queue, now_ms: int) -> Iterator[Event]:
    """Push out the oldest of the lowest priority until the queue is within its bounds. Nothing is, as long as it is not
    known where dead letters may go."""
    if _excess(state, queue) <= 0 or not state.world.is_complete:
        return
    wave = _Wave()
    wave.grown[queue.number] = None
    yield from _push_out(state, wave, now_ms)


def _bury(
    state: State,
    queue: Queue,
    seqs: Sequence[int],
    cause: Cause,
    detail: str,
    now_ms: int,
    wave: _Wave,
) -> Iterator[Event]:
    settings = queue.settings
    exchange, key = settings.dead_letter_exchange, settings.dead_letter_routing_key
    queues = state.world.queues
    by_targets: dict[tuple[int, ...], list[int]] = {}
    lost: dict[str, list[int]] = {}
    if exchange is not None:
        places = _routes(state, queue, seqs)
        why = UNROUTABLE
    else:
        name = settings.dead_letter_queue
        target = state.world.by_name.get((queue.vhost, name)) if name is not None else None
        places = [(target.number,) if target is not None else ()] * len(seqs)
        why = NOT_KEPT
    # What would be lost for want of a place may have one that has not been heard of yet.
    is_known = state.world.is_complete or (exchange is None and settings.dead_letter_queue is None)
    kept: list[int] = []
    for seq, targets in zip(seqs, places, strict=True):
        if targets is _TOO_LONG:
            kept.append(seq)
            continue
        good = tuple([t for t in targets if not _goes_round_unseen(state, queue, t, seq, cause)]) if targets else ()
        if not good and not is_known:
            kept.append(seq)
        elif not good:
            lost.setdefault(ENDLESS if targets else why, []).append(seq)
        elif wave.may_go(good):
            by_targets.setdefault(good, []).append(seq)
        elif wave.is_first:
            kept.append(seq)
        else:
            lost.setdefault(TOO_MANY, []).append(seq)
    if kept:
        yield DeadLettered(queue.number, now_ms, kept, cause, detail or "too far, or to too many queues, at once")
    for why, group in lost.items():
        if settings.keep_dead:
            yield DeadLettered(queue.number, now_ms, group, cause, detail)
        else:
            yield Removed(queue.number, now_ms, group, cause, f"{why}: {detail}" if detail else why)
    for targets, group in by_targets.items():
        for at, there in enumerate((*targets[1:], targets[0]), 1):
            number, bound_for = yield from where_to(state, there, now_ms)
            first, ranks = state.table.next_seq, _priorities(state, queue, group, queues[there].settings)
            kind = Copied if at < len(targets) else Moved
            event = kind(queue.number, now_ms, group, cause, number, first, detail, exchange, key, ranks)
            event.bound_for = bound_for
            event.tenants = () if bound_for else _tenants(state, queue, group, number)
            yield event
        here = map(state.whereabouts, targets)
        own = [local_number(there) for there in here if partition_of(there) == state.partition]
        wave.grown.update(dict.fromkeys(own))


def where_to(state: State, target: int, now_ms: int) -> Generator[QueuePut, None, tuple[int, int]]:
    """For the id of a queue: the number of the queue to move to, and if that is an outbox, the id once more."""
    target = state.whereabouts(target)
    partition = partition_of(target)
    if partition == state.partition:
        return local_number(target), 0
    yield from put_outbox(state, partition, now_ms)
    return state.outboxes[partition].number, target


def _routes(state: State, queue: Queue, seqs: Sequence[int]) -> list[tuple[int, ...]]:
    """Per message the queues that the dead-letter exchange leads it to, by their ids."""
    exchange, key = queue.settings.dead_letter_exchange or "", queue.settings.dead_letter_routing_key
    steps = Steps(MAX_ROUTE_STEPS)
    if not exchange and key is not None:  # the one case that no message has a say in
        return [_route(state, queue.vhost, exchange, (key,), {}, steps)] * len(seqs)
    routes: list[tuple[int, ...]] = []
    for seq, props in zip(seqs, state.read_props(seqs), strict=True):
        if props is None:
            routes.append(())
            continue
        properties = decode_props(props)
        keys: Sequence[str] = (key,) if key is not None else ()
        if not keys:
            told = state.stories.get(seq)
            if told is not None and told.routing_key is not None:
                keys = (told.routing_key,)
            else:
                keys = (*routing_keys(properties), *properties.extra.get("BCC", ()))
        routes.append(_route(state, queue.vhost, exchange, keys, properties.attributes, steps))
    return routes


def _priorities(state: State, queue: Queue, seqs: Sequence[int], target: QueueSettings) -> Sequence[int]:
    """The priorities that messages were published with, if the target may take them at higher ones than this queue
    did; () if they are the ones that they have."""
    if target.max_priority <= queue.settings.max_priority:
        return ()
    found, given = [], []
    for seq, props in zip(seqs, state.read_props(seqs), strict=True):
        told = state.stories.get(seq)
        known = told.priority if told is not None else None
        known = state.table.slabs[seq >> SLAB_BITS].priority[seq & SLAB_MASK] if known is None else known
        said = decode_props(props).extra.get("priority") if props else None
        found.append(known)
        given.append(said if isinstance(said, int) and 0 <= said <= 255 else known)
    return () if given == found else given


def _tenants(state: State, queue: Queue, seqs: Sequence[int], target: int) -> Sequence[str]:
    """Whose messages these are, "" where nobody's, if they go to a fair queue; () if no tenant counts there."""
    if not state.queues[target].settings.fair:
        return ()
    names: dict[int, str] = {}
    unknown: list[int] = []
    for seq in seqs:
        slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
        if slab.flags[i] & TENANTED and queue.tenants is not None:
            names[seq] = queue.tenants.by_number[slab.tenant[i]].name
        else:
            unknown.append(seq)
    for seq, props in zip(unknown, state.read_props(unknown), strict=True):
        names[seq] = decode_props(props).tenant if props else ""
    return [names[seq] for seq in seqs] if any(names.values()) else ()


def _route(
    state: State, vhost: str, exchange: str, keys: Sequence[str], headers: dict[str, Any], steps: Steps
) -> tuple[int, ...]:
    try:
        return tuple(sorted(state.world.routing.route(vhost, exchange, keys[0], headers, steps, more=keys[1:])))
    except ExchangeNotFound:
        return ()
    except RouteTooLong:
        return _TOO_LONG


def _goes_round_unseen(state: State, queue: Queue, target: int, seq: int, cause: Cause) -> bool:
    """Whether a message died in the target already, or does so now, and ever since without being received, rejected or
    redriven by anyone: queues that send each other their dead letters would pass it round for ever."""
    if cause == Cause.REJECTED or state.table.slabs[seq >> SLAB_BITS].receives[seq & SLAB_MASK]:
        return False
    if target == queue_id(state.partition, queue.number):
        return True
    told = state.stories.get(seq)
    if told is None:
        return False
    name = state.world.queues[target].name
    for death in reversed(told.deaths[told.redriven :]):
        if death.reason == REASONS[Cause.REJECTED] or death.receives:
            return False
        if death.queue == name:
            return True
    return False


# Bounds


def _push_out(state: State, wave: _Wave, now_ms: int) -> Iterator[Event]:
    """Bring queues back within their bounds. What one pushes out may make another too long, so this goes on until all
    are; a message cannot come to a queue twice this way."""
    grown = wave.grown
    while grown:
        queue = state.queues[next(iter(grown))]
        excess = _excess(state, queue)
        seqs = _lowest(state, queue, excess) if excess > 0 else []
        if seqs:
            yield from _bury(state, queue, seqs, Cause.OVERFLOW, "", now_ms, wave)
        else:
            del grown[queue.number]
            wave.is_first = False


def _excess(state: State, queue: Queue) -> int:
    """How many messages to push out next; those that waiting consumers will take at once are as good as gone."""
    settings = queue.settings
    most, most_bytes = settings.max_messages, settings.max_bytes
    count = queue.ready + queue.delayed
    too_many = most is not None and count > most
    too_large = most_bytes is not None and queue.bytes_waiting > most_bytes
    if settings.overflow != "drop_oldest" or not (too_many or too_large):
        return 0
    stay = count - state.wanted(queue.number, count)
    if most is not None and stay > most:
        return stay - most
    return 1 if most_bytes is not None and queue.bytes_waiting * stay > most_bytes * count else 0


def _lowest(state: State, queue: Queue, limit: int) -> list[int]:
    """The oldest ready messages of the lowest priority, whoever they are of; of delayed ones if nothing is ready. Those
    that waiting consumers will take at once are spared."""
    table = state.table

    def priority(seq: int) -> int:
        return table.slabs[seq >> SLAB_BITS].priority[seq & SLAB_MASK]

    plain = (queue.bitmap & -queue.bitmap).bit_length() - 1
    grouped = min(queue.grouped_ready, default=-1)
    of_tenants = min(queue.tenants.ready, default=-1) if queue.tenants is not None else -1
    lowest = min((p for p in (plain, grouped, of_tenants) if p >= 0), default=-1)
    if lowest < 0:
        return queue.lowest_delayed(limit, table)
    sources: list[Iterable[int]] = []
    if plain == lowest:
        sources.append(queue.lanes[lowest].after(0, table))
    if grouped == lowest:
        sources.append(s for s in sorted(queue.group_of) if table.state(s) == READY and priority(s) == lowest)
    spared = state.wanted(queue.number, queue.ready)
    if spared:
        spared = max(0, spared - queue.ready + queue.ready_by_priority()[lowest])
    if queue.tenants is not None and of_tenants == lowest:
        sources.append(queue.tenants.oldest(lowest, spared + limit, table))
    return list(islice(merge(*sources), spared, spared + limit))


# Coming back, and going for good


def is_dead_letter(state: State, queue: Queue, seq: int) -> bool:
    """Dead in this queue, or waiting in it because it died elsewhere."""
    found = state.table.state(seq)
    if state.table.slabs[seq >> SLAB_BITS].queue[seq & SLAB_MASK] != queue.number if found else True:
        return False
    if found == DEAD:
        return True
    told = state.stories.get(seq)
    return found in (READY, DELAYED) and told is not None and told.origin != 0


def origin_of(state: State, queue: Queue, seq: int) -> int:
    """The id of the queue to which a redrive takes a dead letter of this one back."""
    return state.stories[seq].origin or queue_id(state.partition, queue.number)


def redrive(
    state: State, queue: Queue, seqs: Sequence[int], target: int | None, now_ms: int, failed: list[int]
) -> Iterator[Event]:
    """Dead letters back to their origins, or all to one queue (its id), as fresh messages with their history kept.
    Queues that grow too long by it push out messages."""
    by_target: dict[int, list[int]] = {}
    seen: set[int] = set()
    for seq in seqs:
        if seq in seen or not is_dead_letter(state, queue, seq):
            failed.append(seq)
            continue
        seen.add(seq)
        whither = state.world.whereabouts(target if target is not None else origin_of(state, queue, seq))
        if whither in state.world.queues:
            by_target.setdefault(whither, []).append(seq)
        else:
            failed.append(seq)
    wave = _Wave()
    wave.is_first = False
    for whither, group in by_target.items():
        number, bound_for = yield from where_to(state, whither, now_ms)
        event = Moved(queue.number, now_ms, group, Cause.REDRIVEN, number, state.table.next_seq, bound_for=bound_for)
        if not bound_for:
            event.tenants = _tenants(state, queue, group, number)
            wave.grown[number] = None
        yield event
    yield from _push_out(state, wave, now_ms)


def delete_dead(state: State, queue: Queue, seqs: Sequence[int], now_ms: int) -> Iterator[Event]:
    found = [seq for seq in dict.fromkeys(seqs) if is_dead_letter(state, queue, seq)]
    if found:
        yield Removed(queue.number, now_ms, found, Cause.DELETED)


# Messages by their ids


def number_of(state: State, queue: Queue, text: str) -> int:
    """The number a message id stands for now, whether there is such a message or not; 0 if there never was. Of a dead
    letter that went to several queues, its number in this one."""
    _, tag, record_seq = parse_message_id(text)
    if tag != state.tag:
        record_seq |= tag << NUMBER_BITS
        if record_seq not in state.moved:
            return 0
    numbers: tuple[int, ...] = (record_seq, *state.copies.get(record_seq, ()))
    for seq in numbers:
        if seq in state.table and state.table.slabs[seq >> SLAB_BITS].queue[seq & SLAB_MASK] == queue.number:
            return seq
    return state.moved.get(record_seq, record_seq)


def find_message(state: State, queue: Queue, text: str) -> int:
    """The number a message id stands for now, in this queue."""
    seq = number_of(state, queue, text)
    if seq not in state.table or state.table.slabs[seq >> SLAB_BITS].queue[seq & SLAB_MASK] != queue.number:
        raise MessageNotFound(f"queue {queue.name!r} holds no message {text}", field="message_id")
    return seq
