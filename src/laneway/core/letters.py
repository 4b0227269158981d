"""Letters: messages that go from a queue of one partition to one of another (docs/decisions/0013).

burial.py moves them into an outbox, with a story that says where they are bound for. `letter` is what travels of one;
`arrive` is the command of the partition that it comes to. One whose queue is gone there goes back, and is dead in the
queue that it left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from laneway.core.burial import UNROUTABLE, shed
from laneway.core.events import Arrived, Cause, Event, Removed, Resumed, Told
from laneway.core.message import RECORD_PREFIX_BYTES, decode_props
from laneway.core.outbox import Letter, put_outbox
from laneway.core.partitions import local_number, partition_of, queue_id
from laneway.core.queue import Queue
from laneway.core.state import HIDDEN, State
from laneway.core.stories import REASONS, Baggage, Story
from laneway.core.table import DEAD, LEASED, SLAB_BITS, SLAB_MASK

_CAUSES = {reason: cause for cause, reason in REASONS.items()}
_encode = msgspec.msgpack.Encoder().encode


class Outline(NamedTuple):
    """What the state says of an entry of an outbox. It may say something else when the contents have been read."""

    story: Story | None  # None: a parcel
    at_ms: int  # when it came into the outbox
    enqueued_ms: int
    tag: int


def outlines(state: State, seqs: Sequence[int]) -> list[Outline]:
    found: list[Outline] = []
    for seq in seqs:
        slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
        story = state.stories.get(seq)
        tag = (story.tag if story is not None else 0) or state.tag
        found.append(Outline(story, slab.since_ms[i], (slab.enqueued_ms or slab.since_ms)[i], tag))
    return found


def letter(partition: int, known: Outline, props: bytes, body: bytes) -> Letter:
    """What travels of an entry; `partition` is its sender."""
    story = known.story
    assert story is not None
    return Letter(
        local_number(story.bound_for),
        _cause(story),
        story.deaths[-1].detail if story.deaths else "",
        known.at_ms,
        known.tag,
        story.record_seq,
        known.enqueued_ms,
        story.priority or 0,
        props,
        body,
        # Numbers of this partition mean nothing there, nor does which store is its own.
        msgspec.structs.replace(story, bound_for=0, left=0, tag=0, group="", priority=None, baggage=None),
        group=story.group,
        left=queue_id(partition, story.left) if story.left else 0,
        baggage=story.baggage,
    )


def _cause(story: Story) -> Cause:
    if story.baggage is not None:
        return Cause.REBALANCED
    if not story.left:
        return Cause.RETURNED
    return Cause.REDRIVEN if story.redriven == len(story.deaths) else _last_cause(story)


def _last_cause(story: Story) -> Cause:
    return _CAUSES.get(story.deaths[-1].reason, Cause.NONE) if story.deaths else Cause.NONE


def arrive(state: State, sender: int, given: Letter, now_ms: int) -> Iterator[Event]:
    """A letter comes into its queue, as fresh as one that moved inside a partition."""
    queue = state.queues.get(given.target)
    if given.baggage is not None:
        if queue is not None:  # else it went with its queue
            yield from _resume(state, queue, sender, given, given.baggage, now_ms)
        return
    if queue is None and given.target in state.forwards:
        yield from _send_on(state, sender, given, now_ms)
        return
    if queue is None or queue.vhost == HIDDEN:
        yield from _not_there(state, sender, given, now_ms)
        return
    yield _arrived(state, queue, sender, given, now_ms)
    story = given.story
    if story.origin == queue_id(state.partition, queue.number):
        story = msgspec.structs.replace(story, origin=0)
    yield _told(queue, state.table.next_seq - 1, story, now_ms)
    if given.cause != Cause.RETURNED:
        yield from shed(state, queue, now_ms)
        return
    # It died there, and found no place to go to.
    was_redriven = given.story.redriven == len(given.story.deaths)
    if not queue.settings.keep_dead and not was_redriven:
        why = f"{UNROUTABLE}: {given.detail}" if given.detail else UNROUTABLE
        yield Removed(queue.number, now_ms, [state.table.next_seq - 1], _last_cause(given.story), why)


def _resume(state: State, queue: Queue, sender: int, given: Letter, said: Baggage, now_ms: int) -> Iterator[Event]:
    arrived = _arrived(state, queue, sender, given, now_ms)
    if said.state == DEAD:
        arrived.group = ""
    yield arrived
    story = msgspec.structs.replace(given.story, baggage=said, group=given.group if said.state == DEAD else "")
    yield Resumed(
        queue.number,
        now_ms,
        arrived.seq,
        said.state,
        said.receives,
        said.lease if said.state == LEASED else 0,
        said.due_ms,
        said.expires_ms,
        _encode(story),
    )


def _send_on(state: State, sender: int, given: Letter, now_ms: int) -> Iterator[Event]:
    """Its queue has left for another partition. One that came back is not to come back once more."""
    there = state.whereabouts(queue_id(state.partition, given.target))
    is_back = given.cause == Cause.RETURNED
    if partition_of(there) == state.partition:
        yield from arrive(state, sender, msgspec.structs.replace(given, target=local_number(there)), now_ms)
    else:
        yield from _enclose(state, sender, given, there, 0 if is_back else given.target, now_ms)


def _enclose(state: State, sender: int, given: Letter, there: int, left: int, now_ms: int) -> Iterator[Event]:
    """Into the outbox of the partition that has the queue of this id."""
    yield from put_outbox(state, partition_of(there), now_ms)
    outbox = state.outboxes[partition_of(there)]
    event = _arrived(state, outbox, sender, given, now_ms)
    event.cause = Cause.NONE  # what is in an outbox is not dead
    yield event
    story = msgspec.structs.replace(given.story, bound_for=there, left=left, group=given.group)
    yield _told(outbox, event.seq, story, now_ms)


def _not_there(state: State, sender: int, given: Letter, now_ms: int) -> Iterator[Event]:
    """Its queue is gone: it goes back. If that of a letter that came back is gone, it went with it."""
    # If there is no way back either, its way ends here.
    back = given.left or queue_id(sender, given.target)
    yield from _enclose(state, sender, given, back, 0, now_ms)
    if given.cause == Cause.RETURNED:
        outbox = state.outboxes[partition_of(back)]
        yield Removed(outbox.number, now_ms, [state.table.next_seq - 1], Cause.DELETED, "its queue is gone")


def _arrived(state: State, queue: Queue, sender: int, given: Letter, now_ms: int) -> Arrived:
    size = RECORD_PREFIX_BYTES + len(given.props) + len(given.body)
    is_fair = queue.settings.fair and not given.group and given.cause != Cause.RETURNED
    return Arrived(
        queue.number,
        now_ms,
        state.table.next_seq,
        given.cause,
        sender,
        given.tag,
        given.number,
        given.enqueued_ms,
        given.priority,
        size,
        given.props,
        given.body,
        given.group if queue.vhost != HIDDEN else "",
        decode_props(given.props).tenant if is_fair else "",
    )


def _told(queue: Queue, seq: int, story: Story, now_ms: int) -> Told:
    return Told(queue.number, now_ms, seq, _encode(story))
