"""What events of death do to the state: letters kept where they died, moved, copied, gone for good, or come from
another partition.

Part of State.apply, in a file of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.core import queue as q_
from laneway.core.deadlines import LEASE, TTL, coarse
from laneway.core.digits import SESSION_LEASE
from laneway.core.events import Arrived, Cause, Copied, DeadLettered, Moved, Removed, Resumed, Told
from laneway.core.partitions import queue_id
from laneway.core.stories import REASONS, Baggage, Carried, Story, died
from laneway.core.table import (
    DEAD,
    DELAYED,
    GROUPED,
    HAS_CONSUMER,
    LEASED,
    NAMED_TIME,
    OVERDUE,
    READY,
    SCHEDULED,
    SLAB_BITS,
    SLAB_MASK,
    STORIED,
    TENANTED,
    Slab,
)

if TYPE_CHECKING:
    from laneway.core.queue import Queue
    from laneway.core.state import State

_REASON_TOTALS = {Cause.EXPIRED: q_.EXPIRED, Cause.REJECTED: q_.REJECTED, Cause.OVERFLOW: q_.OVERFLOWED}


def dead_lettered(state: State, e: DeadLettered) -> None:
    queue = state.queues[e.queue]
    for seq in e.seqs:
        state.leave(queue, seq)
        slab = state.table.owned(seq)
        i = seq & SLAB_MASK
        group = queue.group_of[seq].name if slab.flags[i] & GROUPED else ""
        state.leave_group(queue, slab, seq)
        state.leave_tenant(queue, slab, seq)
        state.forget_carried(slab, i)
        slab.state[i] = DEAD
        slab.flags[i] = slab.flags[i] & ~OVERDUE | STORIED
        # A dead letter of another queue that dies here stays that queue's: it is counted and redriven there.
        story = died(state.stories.get(seq), seq, queue.name, e.cause, e.detail, slab.receives[i], e.at_ms)
        state.stories[seq] = msgspec.structs.replace(story, group=group)
        queue.dead[seq] = None
    _count_deaths(queue, e)
    if not queue.retention_armed_ms:
        state.arm_retention(queue, queue.keeps_until(e.at_ms))


def moved(state: State, e: Moved) -> None:
    queue, target = state.queues[e.queue], state.queues[e.target]
    _check_next(state, e.first_seq)
    for at, seq in enumerate(e.seqs):
        row, story, group = _carried(state, queue, seq, e, at)
        state.leave(queue, seq)
        state.forget(seq)
        _arrive(state, target, row, story, group, e.tenants[at] if e.tenants else "", e.at_ms)
    if e.cause == Cause.REDRIVEN:
        queue.totals[q_.REDRIVEN] += len(e.seqs)
    elif e.cause != Cause.REBALANCED:
        _count_deaths(queue, e)
    _count_arrivals(state, target, e)


def copied(state: State, e: Copied) -> None:
    queue, target = state.queues[e.queue], state.queues[e.target]
    _check_next(state, e.first_seq)
    for at, seq in enumerate(e.seqs):
        row, story, group = _carried(state, queue, seq, e, at)
        _arrive(state, target, row, story, group, e.tenants[at] if e.tenants else "", e.at_ms)
    _count_arrivals(state, target, e)


#: Location and size of the record, the priority it was published with, and when.
Row = tuple[int, int, int, int]


def _carried(state: State, queue: Queue, seq: int, e: Moved | Copied, at: int) -> tuple[Row, Story, str]:
    """What a message that goes to another queue takes along: its row, its story so far, its group."""
    slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
    group = queue.group_of[seq].name if slab.flags[i] & GROUPED else ""
    told = state.stories.get(seq)
    priority = slab.priority[i] if told is None or told.priority is None else told.priority
    enqueued_ms = (slab.enqueued_ms or slab.since_ms)[i]
    row = slab.location[i], slab.size[i], e.priorities[at] if e.priorities else priority, enqueued_ms
    on_its_way = (e.bound_for, queue.number) if e.bound_for else (0, 0)
    if e.cause == Cause.REBALANCED:
        assert isinstance(e, Moved)
        story = Story(seq, 0, ()) if told is None else told
        said = _baggage(state, slab, seq, e.expires_at[at], e.holders[at])
        bound_for, left = on_its_way
        return (
            row,
            msgspec.structs.replace(story, priority=None, bound_for=bound_for, left=left, baggage=said),
            group or story.group,
        )
    if e.cause == Cause.REDRIVEN:
        assert told is not None
        again = Story(told.record_seq, 0, told.deaths, "", None, None, len(told.deaths), None, 0, *on_its_way, told.tag)
        return row, again, group or told.group
    story = died(told, seq, queue.name, e.cause, e.detail, slab.receives[i], e.at_ms)
    # It belongs to the queue it first died in, wherever it goes from there; back in that one it is no dead letter.
    origin = story.origin if state.may_be_there(story.origin) else queue_id(state.partition, queue.number)
    if origin == (e.bound_for or queue_id(state.partition, e.target)):
        origin = 0
    exchange = story.exchange if e.exchange is None else e.exchange
    key = story.routing_key if e.routing_key is None else e.routing_key
    redriven = story.redriven
    told_on = Story(
        story.record_seq, origin, story.deaths, "", exchange, key, redriven, None, 0, *on_its_way, story.tag
    )
    return row, told_on, group


def _baggage(state: State, slab: Slab, seq: int, expires_ms: int, holder: int) -> Baggage:
    i = seq & SLAB_MASK
    found, flags = slab.state[i], slab.flags[i] & (OVERDUE | SCHEDULED | NAMED_TIME)
    about = found, flags, slab.receives[i], slab.since_ms[i]
    lease = slab.lease[i] if slab.lease and found != DEAD else 0
    if found != LEASED and lease & SESSION_LEASE:
        lease = 0
    due_ms = slab.due_ms[i] if found in (DELAYED, LEASED) else 0
    if not lease:
        return Baggage(*about, due_ms, expires_ms)
    known = state.carried.get(lease)
    given = seq if known is None else known.given_seq
    holder = holder if known is None else known.holder
    return Baggage(*about, due_ms, expires_ms, lease, given, holder, state.consumers.get(seq, ""))


def removed(state: State, e: Removed) -> None:
    queue = state.queues[e.queue]
    for seq in e.seqs:
        state.leave(queue, seq)
        state.forget(seq)
    if e.cause in REASONS:
        queue.totals[q_.DROPPED] += len(e.seqs)
        _count_reason(queue, e.cause, len(e.seqs))
    else:
        queue.totals[q_.DELETED if e.cause in (Cause.DELETED, Cause.DEPARTED) else q_.EXPIRED] += len(e.seqs)


def arrived(state: State, e: Arrived) -> None:
    queue = state.queues[e.queue]
    _check_next(state, e.seq)
    row = e.location, e.size, e.priority, e.enqueued_ms
    story = Story(e.number, 0, (), tag=e.tag if e.tag != state.tag else 0)
    if e.cause == Cause.REBALANCED:
        _come(state, queue, row, story, e.group, e.tenant, e.at_ms)
        return
    _arrive(state, queue, row, story, e.group, e.tenant, e.at_ms, is_dead=e.cause == Cause.RETURNED)
    queue.totals[q_.MOVED_IN] += 1
    if not queue.retention_armed_ms:
        state.arm_retention(queue, queue.keeps_until(e.at_ms))


def resumed(state: State, e: Resumed) -> None:
    """After `arrived`, which has put it into its group, or to its tenant, and nowhere else."""
    queue, story = state.queues[e.queue], msgspec.msgpack.decode(e.story, type=Story)
    said = story.baggage
    assert said is not None
    _tell(state, e.seq, msgspec.structs.replace(story, baggage=None))
    slab, i = state.table.owned(e.seq), e.seq & SLAB_MASK
    slab.set_times(i, said.since_ms, (slab.enqueued_ms or slab.since_ms)[i])
    slab.receives[i] = e.receives
    slab.flags[i] |= said.flags
    if e.expires_ms:
        state.deadlines.add(e.expires_ms, TTL, queue.number, (e.seq,))
    until_ms = queue.keeps_until(said.since_ms)
    if not queue.retention_armed_ms or until_ms < queue.retention_armed_ms:
        state.arm_retention(queue, until_ms)
    if said.lease:
        if not slab.lease:
            slab.widen()
        slab.lease[i] = said.lease
        state.carried[said.lease] = Carried(said.seq, e.seq, said.holder)
    if e.state == DEAD:
        slab.state[i] = DEAD
        queue.dead[e.seq] = None
    elif e.state == LEASED:
        _lease_goes_on(state, queue, slab, e, said)
    else:
        queue.bytes_waiting += slab.size[i]
        if e.state == READY:
            state.make_ready(queue, slab, e.seq, slab.priority[i], fresh=True)
        else:
            state.delay(queue, slab, e.seq, e.due_ms)


def _lease_goes_on(state: State, queue: Queue, slab: Slab, e: Resumed, said: Baggage) -> None:
    i = e.seq & SLAB_MASK
    slab.state[i], slab.due_ms[i] = LEASED, e.due_ms
    queue.leased += 1
    if slab.flags[i] & TENANTED:
        assert queue.tenants is not None
        queue.tenants.lease(slab.tenant[i])
    if said.consumer:
        state.consumers[e.seq] = said.consumer
        slab.flags[i] |= HAS_CONSUMER
    state.deadlines.add(e.due_ms, LEASE, 0, (e.seq,))


def told(state: State, e: Told) -> None:
    _tell(state, e.seq, msgspec.msgpack.decode(e.story, type=Story))


def _tell(state: State, seq: int, story: Story) -> None:
    known = state.stories[seq]
    state.count_origin(known.origin, -1)
    state.count_origin(story.origin, 1)
    state.stories[seq] = msgspec.structs.replace(
        story, record_seq=known.record_seq, tag=known.tag, priority=known.priority, group=known.group or story.group
    )


def _check_next(state: State, first_seq: int) -> None:
    if first_seq != state.table.next_seq:
        raise AssertionError(f"moved to {first_seq}, but {state.table.next_seq} is next")


def _arrive(
    state: State, target: Queue, row: Row, story: Story, group: str, tenant: str, at_ms: int, *, is_dead: bool = False
) -> None:
    """A message under a new number at the end of a queue, or dead in it, with the record and the story it has. In an
    outbox neither group nor tenant counts."""
    if is_dead or story.bound_for:
        if group:
            story = msgspec.structs.replace(story, group=group)
        group = tenant = ""
    new, slab = _come(state, target, row, story, group, tenant, at_ms)
    if is_dead:
        slab.state[new & SLAB_MASK] = DEAD
        target.dead[new] = None
        return
    state.make_ready(target, slab, new, slab.priority[new & SLAB_MASK], fresh=True)
    target.bytes_waiting += slab.size[new & SLAB_MASK]
    ttl_ms = target.settings.message_ttl_ms
    if ttl_ms is not None:
        state.deadlines.add(coarse(at_ms + ttl_ms, at_ms), TTL, target.number, (new,))


def _come(state: State, target: Queue, row: Row, story: Story, group: str, tenant: str, at_ms: int) -> tuple[int, Slab]:
    """A message under a new number, in no place of its queue yet, which takes it at its own highest priority at most;
    the number, and its slab."""
    location, size, published_with, enqueued_ms = row
    priority = min(published_with, target.settings.max_priority)
    if priority != published_with or story.priority is not None:
        story = msgspec.structs.replace(story, priority=published_with if priority != published_with else None)
    new = state.table.next_seq
    state.table.append((location,), (size,), at_ms, (target.number,), (priority,), READY)
    state.extents[location >> 32] = state.extents.get(location >> 32, 0) + 1
    slab = state.table.owned(new)
    if enqueued_ms != at_ms:
        slab.set_times(new & SLAB_MASK, at_ms, enqueued_ms)
    slab.flags[new & SLAB_MASK] |= STORIED
    state.stories[new] = story
    note_number(state, story.identity, new)
    state.count_origin(story.origin, 1)
    if group:
        state.join_group(target, slab, new, group)
    elif tenant:
        state.join_tenant(target, slab, new, tenant)
    return new, slab


def note_number(state: State, identity: int, seq: int) -> None:
    """A message has a new number, the highest of those that share its identity (Story)."""
    other = state.moved.get(identity)
    if other is not None:
        state.copies.setdefault(identity, [other]).append(seq)
    state.moved[identity] = seq


def forget_number(state: State, identity: int, seq: int) -> None:
    copies = state.copies.get(identity)
    if copies is None:
        if state.moved.get(identity) == seq:
            del state.moved[identity]
        return
    copies.remove(seq)
    state.moved[identity] = copies[-1]
    if len(copies) == 1:
        del state.copies[identity]


def _count_arrivals(state: State, target: Queue, e: Moved | Copied) -> None:
    target.totals[q_.MOVED_IN] += len(e.seqs)
    if not target.retention_armed_ms:
        state.arm_retention(target, target.keeps_until(e.at_ms))


def _count_deaths(queue: Queue, e: DeadLettered | Moved) -> None:
    queue.totals[q_.DEAD_LETTERED] += len(e.seqs)
    _count_reason(queue, e.cause, len(e.seqs))


def _count_reason(queue: Queue, cause: Cause, count: int) -> None:
    total = _REASON_TOTALS.get(cause)
    if total is not None:
        queue.totals[total] += count
