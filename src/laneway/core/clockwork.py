"""What time alone does to a partition: leases run out, delays end, messages and memories expire.

`tick` is a command like those in commands.py, called when the earliest deadline has come.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

from laneway.core.burial import bury
from laneway.core.deadlines import DEDUP, DELAY, KEYS, LEASE, RETENTION, TTL
from laneway.core.events import Cause, Event, Removed
from laneway.core.lease_commands import give_back
from laneway.core.queue import Queue
from laneway.core.state import State
from laneway.core.table import DELAYED, LEASED, OVERDUE, READY, SCHEDULED, SLAB_BITS, SLAB_MASK

#: One tick handles about so many messages; the rest stays due, so that a mass expiry does not hold up the loop.
TICK_MESSAGES = 5_000


def tick(state: State, now_ms: int) -> Iterator[Event]:
    budget = TICK_MESSAGES
    while budget > 0 and (bucket := state.deadlines.pop_due(now_ms)) is not None:
        try:
            for (kind, number), seqs in bucket.items():
                if len(seqs) > budget:
                    state.deadlines.add(now_ms, kind, number, seqs[max(budget, 0) :])
                    seqs = seqs[: max(budget, 0)]
                budget -= len(seqs) + 1
                yield from _fall_due(state, kind, number, seqs, now_ms)
        except GeneratorExit:  # the journal did not take an event: whatever is not done yet stays due
            for (kind, number), seqs in bucket.items():
                state.deadlines.add(now_ms, kind, number, seqs)
            raise


def _fall_due(state: State, kind: int, number: int, seqs: array[int], now_ms: int) -> Iterator[Event]:
    queue = state.queues.get(number)
    if kind == KEYS:
        _forget_keys(state, now_ms)
    elif kind == LEASE:
        yield from _expire_leases(state, seqs, now_ms)
    elif queue is None:
        return
    elif kind == DELAY:
        state.ripen(queue, seqs, now_ms)
    elif kind == TTL:
        yield from _expire_messages(state, queue, seqs, now_ms)
    elif kind == RETENTION:
        yield from _sweep(state, queue, now_ms)
    elif kind == DEDUP:
        _forget_dedups(state, queue, now_ms)


def _expire_leases(state: State, seqs: array[int], now_ms: int) -> Iterator[Event]:
    over: dict[int, list[int]] = {}  # by queue
    for seq in dict.fromkeys(seqs):
        slab = state.table.slabs.get(seq >> SLAB_BITS)
        i = seq & SLAB_MASK
        if slab is not None and slab.state[i] == LEASED and slab.due_ms[i] <= now_ms:
            over.setdefault(slab.queue[i], []).append(seq)
    for number, its in over.items():
        yield from give_back(state, state.queues[number], its, Cause.LEASE_EXPIRED, now_ms)


def _expire_messages(state: State, queue: Queue, seqs: array[int], now_ms: int) -> Iterator[Event]:
    expired: list[int] = []
    for seq in dict.fromkeys(seqs):  # a tick that was cut short may have left two reminders of one message
        slab = state.table.slabs.get(seq >> SLAB_BITS)
        i = seq & SLAB_MASK
        if slab is None or slab.queue[i] != queue.number:
            continue
        if slab.state[i] in (READY, DELAYED):
            expired.append(seq)
        elif slab.state[i] == LEASED:  # its consumer may still ack it; when it comes back it dies
            state.table.owned(seq).flags[i] |= OVERDUE
    if expired:
        yield from bury(state, queue, expired, Cause.EXPIRED, "", now_ms)


def _sweep(state: State, queue: Queue, now_ms: int) -> Iterator[Event]:
    """Remove what the queue's retention no longer covers; look again when the oldest of the rest will be due."""
    if queue.retention_armed_ms > now_ms:
        return  # re-armed since; that reminder is still to come
    gone: list[int] = []
    next_ms = 0
    for front in _fronts(state, queue):
        for since_ms, seq, in_order in front:
            until_ms = queue.keeps_until(since_ms)
            if until_ms > now_ms:
                next_ms = min(next_ms or until_ms, until_ms)
                if in_order:
                    break  # those behind it are younger still
            else:
                gone.append(seq)
                if len(gone) == TICK_MESSAGES:
                    break
        if len(gone) == TICK_MESSAGES:
            next_ms = now_ms + 1  # the rest has its turn soon
            break
    if gone:
        yield Removed(queue.number, now_ms, gone, Cause.RETENTION)
    queue.retention_armed_ms = 0
    if queue.ready or queue.delayed or queue.leased or queue.dead:
        state.arm_retention(queue, max(next_ms or queue.keeps_until(now_ms), now_ms + 1))


def _fronts(state: State, queue: Queue) -> Iterator[Iterator[tuple[int, int, bool]]]:
    """Per lane, tenant and group, and of the dead, (since, number, no older one follows) from the oldest on."""
    table = state.table

    def aged(seqs: Iterable[int]) -> Iterator[tuple[int, int, bool]]:
        for seq in seqs:
            slab, i = table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
            yield slab.since_ms[i], seq, not slab.flags[i] & SCHEDULED

    for lane in queue.lanes.values():
        yield aged(lane.after(0, table))
    if queue.tenants is not None:
        for _, lane in queue.tenants.lanes():
            yield aged(lane.after(0, table))
    for group in queue.groups.values():
        yield aged(s for s in group.members if table.state(s) == READY)
    dead = ((state.stories[seq], seq) for seq in queue.dead)
    yield ((story.deaths[-1].at_ms + story.moved_ms, seq, True) for story, seq in dead)


def _forget_dedups(state: State, queue: Queue, now_ms: int) -> None:
    window_ms = queue.settings.dedup_window_ms
    dedup = queue.dedup
    while dedup:
        oldest = next(iter(dedup))
        if dedup[oldest][1] + window_ms > now_ms:
            state.deadlines.add(dedup[oldest][1] + window_ms, DEDUP, queue.number, ())
            return
        del dedup[oldest]
        state.dedup_count -= 1


def _forget_keys(state: State, now_ms: int) -> None:
    next_ms = state.keys.forget_until(now_ms)
    if next_ms:
        state.deadlines.add(next_ms, KEYS, 0, ())
