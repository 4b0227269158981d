"""A partition's whole state as chunks of bytes, and back, so that a start does not replay all history.

`freeze` runs on the loop and costs nothing per message: slabs are frozen (copied when next changed), full lane chunks
never change. `chunks` does the encoding and may run in another thread. The layout belongs to VERSION.

    chunk 1       MessagePack map: version, counters, queues, stories, documents, …
    chunk 2 …     MessagePack lists of slabs: [number, live, column bytes …], columns as in table.COLUMNS
    a chunk []    the end, so that a snapshot that was cut short is not mistaken for a whole one
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from laneway.core.deadlines import DEDUP, DELAY, KEYS, LEASE, TTL
from laneway.core.dedups import dedup_key
from laneway.core.exchanges import BUILT_IN, Binding, ExchangeSettings
from laneway.core.graves import note_number
from laneway.core.keys import Remembered
from laneway.core.lane import Lane
from laneway.core.partitions import partition_of
from laneway.core.queue import Group, Queue
from laneway.core.settings import QueueSettings
from laneway.core.state import State
from laneway.core.stepping import ClockMark
from laneway.core.stories import Carried, Story
from laneway.core.table import COLUMNS, DELAYED, LEASED, SCHEDULED, SLAB_BITS, Slab
from laneway.core.tenants import NOISY_LEASES, Tenant, TenantLane, Tenants
from laneway.errors import JournalDamaged, JournalVersionUnknown

VERSION = 2
READABLE = (1, 2)  # 1: without the columns enqueued_ms and tenant
SLABS_PER_CHUNK = 64
CUT_SHORT = "the snapshot ends too early; run `laneway journal check` on the folder"

_pack = msgspec.msgpack.Encoder().encode


class Frozen(NamedTuple):
    head: dict[str, Any]
    slabs: list[tuple[int, Slab]]


def freeze(state: State, at_ms: int = 0) -> Frozen:
    """`at_ms` is now."""
    for slab in state.table.slabs.values():
        slab.frozen = True
    head = {
        "version": VERSION,
        "epoch": state.epoch,
        "tag": state.tag,
        "clock": state.clock,
        "at_ms": at_ms or state.known_ms,
        "next_seq": state.table.next_seq,
        "next_queue": state.next_queue,
        "next_lease": state.next_lease,
        "extents": list(state.extents.items()),
        "stories": state.stories.copy(),
        "consumers": state.consumers.copy(),
        "received": list(state.received.items()),
        "forwards": list(state.forwards.items()),
        "carried": list(state.carried.items()),
        "keys": [(*key, value) for key, value in state.keys.items()],
        "documents": {name: documents.copy() for name, documents in state.documents.items()},
        "queues": [_freeze_queue(queue) for queue in state.queues.values()],
        "exchanges": [
            (exchange.vhost, exchange.name, exchange.settings, exchange.created_at_ms, [*exchange.bindings.values()])
            for there in state.topology.exchanges.values()
            for exchange in there.values()
        ],
        "elsewhere": [
            (exchange.vhost, exchange.bindings[key], number)
            for there in state.topology.exchanges.values()
            for exchange in there.values()
            for key, number in exchange.ids.items()
        ],
        "ttl": [
            (at_ms, number, seqs.tobytes())
            for at_ms, bucket in state.deadlines.buckets.items()
            for (kind, number), seqs in bucket.items()
            if kind == TTL
        ],
    }
    return Frozen(head, list(state.table.slabs.items()))


_FrozenLane = tuple[int, int, int, list["array[int]"], list[int]]  # priority, count, head, chunks, returned
_LaneHead = tuple[int, int, int, list[bytes], list[int]]


class _FrozenQueue(NamedTuple):
    """One queue, cheap to take: most of many queues are idle, and then `contents` is None."""

    number: int
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int
    retention_armed_ms: int
    counts: tuple[int, int, int, int, int]
    totals: list[int]
    rates: list[list[int]]
    placed: bool
    arriving: tuple[int, int] | None
    contents: dict[str, Any] | None


def _freeze_queue(q: Queue) -> _FrozenQueue:
    contents = _freeze_contents(q) if q.ready or q.leased or q.delayed or q.dead or q.dedup or q.groups else None
    return _FrozenQueue(
        q.number,
        q.vhost,
        q.name,
        q.settings,
        q.created_at_ms,
        q.changed_at_ms,
        q.retention_armed_ms,
        (q.ready, q.leased, q.delayed, q.bytes_waiting, q.dead_elsewhere),
        q.totals[:],
        [r[:] for r in q.rates] if q.rates else [],
        q.placed,
        q.arriving,
        contents,
    )


def _freeze_contents(queue: Queue) -> dict[str, Any]:
    return {
        "dead": array("Q", queue.dead).tobytes(),
        "grouped_ready": dict(queue.grouped_ready),
        "groups": [(g.name, g.turn, array("Q", g.members).tobytes()) for g in queue.groups.values()],
        "dedup": list(queue.dedup.items()),
        "lanes": _freeze_lanes(queue.lanes),
        "tenants": [
            (t.number, t.name, t.leased, t.count, _freeze_lanes(t.lanes)) for t in queue.tenants.by_number.values()
        ]
        if queue.tenants is not None
        else [],
    }


def _freeze_lanes(lanes: Mapping[int, Lane]) -> list[_FrozenLane]:
    # Full chunks are never written to again; the last one may be, so it is copied. The head is a cut.
    return [
        (p, lane.count, lane.head, [*lane.chunks[:-1], lane.chunks[-1][:]], lane.returned[:])
        if lane.chunks
        else (p, lane.count, 0, [], lane.returned[:])
        for p, lane in lanes.items()
        if lane.count
    ]


def chunks(frozen: Frozen) -> Iterator[bytes]:
    head = dict(frozen.head)
    head["queues"] = [_queue_head(q) for q in head["queues"]]
    yield _pack(head)
    for i in range(0, len(frozen.slabs), SLABS_PER_CHUNK):
        yield _pack(
            [
                (number, slab.live, *(bytes(getattr(slab, name)) for name, _ in COLUMNS))
                for number, slab in frozen.slabs[i : i + SLABS_PER_CHUNK]
            ]
        )
    yield _pack([])


def _queue_head(q: _FrozenQueue) -> dict[str, Any]:
    head = q._asdict()
    contents = head.pop("contents")
    if contents is not None:
        lanes = _lane_heads(contents.pop("lanes"))
        tenants = [(*rest, _lane_heads(lanes)) for *rest, lanes in contents.pop("tenants")]
        head.update(contents, lanes=lanes, tenants=tenants)
    return head


def _lane_heads(lanes: list[_FrozenLane]) -> list[_LaneHead]:
    return [(p, count, head, [part.tobytes() for part in parts], back) for p, count, head, parts, back in lanes]


class _QueueHead(msgspec.Struct):
    number: int
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int
    counts: list[int]
    totals: list[int]
    rates: list[list[int]]
    retention_armed_ms: int
    dead: bytes = b""
    grouped_ready: dict[int, int] = {}
    groups: list[tuple[str, int, bytes]] = []
    dedup: list[tuple[str, tuple[str, int]]] = []
    lanes: list[_LaneHead] = []
    tenants: list[tuple[int, str, int, int, list[_LaneHead]]] = []  # not in a snapshot of before
    placed: bool = False
    arriving: tuple[int, int] | None = None


class _Head(msgspec.Struct):
    version: int
    epoch: int
    tag: int
    next_seq: int
    next_queue: int
    next_lease: int
    extents: list[tuple[int, int]]
    stories: dict[int, Story]
    consumers: dict[int, str]
    keys: list[tuple[int, str, Remembered]]
    documents: dict[str, dict[str, bytes]]
    queues: list[_QueueHead]
    ttl: list[tuple[int, int, bytes]]
    # Not in a snapshot of before:
    exchanges: list[tuple[str, str, ExchangeSettings, int, list[Binding]]] = []
    elsewhere: list[tuple[str, Binding, int]] = []  # bindings to queues of other partitions, with their ids
    clock: ClockMark | None = None
    at_ms: int = 0
    received: list[tuple[int, int]] = []
    forwards: list[tuple[int, int]] = []
    carried: list[tuple[int, Carried]] = []


def thaw(source: Iterable[bytes], partition: int = 0) -> State:
    """A state from the chunks of a snapshot of this partition."""
    it = iter(source)
    first = next(it, None)
    if first is None:
        raise JournalDamaged(CUT_SHORT)
    version = msgspec.msgpack.decode(first, type=dict[str, msgspec.Raw]).get("version")
    if version is None or msgspec.msgpack.decode(version) not in READABLE:
        raise JournalVersionUnknown("the snapshot was written by another version of Laneway")
    head = msgspec.msgpack.decode(first, type=_Head)
    state = State()
    state.partition = partition
    state.received, state.forwards, state.carried = dict(head.received), dict(head.forwards), dict(head.carried)
    state.epoch, state.tag = head.epoch, head.tag
    state.clock, state.known_ms = head.clock, head.at_ms
    state.table.next_seq = head.next_seq
    state.next_queue, state.next_lease = head.next_queue, head.next_lease
    state.extents = dict(head.extents)
    state.stories = head.stories
    for seq in sorted(head.stories):
        story = head.stories[seq]
        if story.identity != seq:
            note_number(state, story.identity, seq)
        if partition_of(state.whereabouts(story.origin)) != partition:
            state.count_origin(story.origin, 1)
    state.consumers = head.consumers
    for number, key, answer in head.keys:
        state.keys.remember(number, key, answer)
    if head.keys:
        state.deadlines.add(head.keys[0][2].expires_ms, KEYS, 0, ())
    state.documents = head.documents
    _thaw_slabs(state, it, COLUMNS if head.version > 1 else COLUMNS[:-2])
    if head.version == 1:
        _forget_enqueued(state)
    for q in head.queues:
        _thaw_queue(state, q)
    for vhost, name, settings, at_ms, _ in head.exchanges:
        if name not in BUILT_IN:
            state.topology.put(vhost, name, settings, at_ms)
    for vhost, binding, number in head.elsewhere:
        state.topology.bind(vhost, binding, number)
    for vhost, _, _, _, bindings in head.exchanges:
        for binding in bindings:
            if not head.elsewhere or not state.topology.has(vhost, binding):
                state.topology.bind(vhost, binding)
    for at_ms, number, seqs in head.ttl:
        state.deadlines.add(at_ms, TTL, number, array("Q", seqs))
    _thaw_deadlines(state)
    return state


def _forget_enqueued(state: State) -> None:
    """An older version did not keep when messages were published that were delayed or moved since."""
    for number, slab in state.table.slabs.items():
        for i in range(len(slab.flags)) if any(slab.flags) else ():
            seq = (number << SLAB_BITS) + i
            has_moved = seq in state.stories and state.stories[seq].record_seq != seq
            if slab.state[i] and (has_moved or slab.flags[i] & SCHEDULED):
                slab.set_times(i, slab.since_ms[i], 0)


def _thaw_slabs(state: State, source: Iterator[bytes], kept: Sequence[tuple[str, str | None]]) -> None:
    slabs = state.table.slabs
    slabs.clear()
    for chunk in source:
        rows = msgspec.msgpack.decode(chunk)
        if not rows:
            return
        for number, live, *columns in rows:
            slab = slabs[number] = Slab()
            slab.live = live
            for (name, kind), column in zip(kept, columns, strict=True):
                setattr(slab, name, bytearray(column) if kind is None else array(kind, column))
    raise JournalDamaged(CUT_SHORT)


def _thaw_queue(state: State, q: _QueueHead) -> None:
    queue = Queue(q.number, q.vhost, q.name, q.settings, q.created_at_ms)
    queue.changed_at_ms = q.changed_at_ms
    queue.placed, queue.arriving = q.placed, q.arriving
    queue.ready, queue.leased, queue.delayed, queue.bytes_waiting, queue.dead_elsewhere = q.counts
    queue.totals[: len(q.totals)] = q.totals
    queue.rates = q.rates
    queue.dead = dict.fromkeys(array("Q", q.dead))
    queue.grouped_ready = q.grouped_ready
    queue.dedup = OrderedDict((dedup_key(text), told) for text, told in q.dedup)  # long in snapshots of before
    state.dedup_count += len(queue.dedup)
    for frozen in q.lanes:
        _thaw_lane(queue.lane(frozen[0]), frozen)
        queue.bitmap |= 1 << frozen[0]
    if q.tenants:
        queue.tenants = _thaw_tenants(state, q)
    for name, turn, members in q.groups:
        group = queue.groups[name] = Group(name)
        group.turn = turn  # in a snapshot of before, how many were leased: less than any number that counts
        for seq in array("Q", members):
            group.members[seq] = None
            queue.group_of[seq] = group
        queue.offer(group, state.table)
    if queue.dedup:
        oldest = next(iter(queue.dedup.values()))
        state.deadlines.add(oldest[1] + q.settings.dedup_window_ms, DEDUP, q.number, ())
    if q.retention_armed_ms:
        state.arm_retention(queue, q.retention_armed_ms)
    state.add_queue(queue)


def _thaw_lane(lane: Lane, frozen: _LaneHead) -> None:
    _, lane.count, lane.head, parts, lane.returned = frozen
    lane.chunks = [array("Q", part) for part in parts]
    lane.entries = sum(map(len, lane.chunks)) - lane.head


def _thaw_tenants(state: State, q: _QueueHead) -> Tenants:
    tenants = Tenants()
    for number, name, leased, count, lanes in q.tenants:
        tenant = tenants.by_number[number] = tenants.by_name[name] = Tenant(name, number)
        tenant.leased, tenant.count = leased, count
        if leased >= NOISY_LEASES:
            tenants.suspects[number] = tenant
        for frozen in lanes:
            priority = frozen[0]
            lane = tenant.lanes[priority] = TenantLane(tenant)
            _thaw_lane(lane, frozen)
            tenants.count_ready(priority, lane.count)
            tenants.offer(priority, lane, lane.peek(state.table))
    tenants.free = [n for n in range(1, max(tenants.by_number)) if n not in tenants.by_number]
    return tenants


def _thaw_deadlines(state: State) -> None:
    """Reminders for what is leased and delayed; the columns say until when."""
    for number, slab in state.table.slabs.items():
        if not slab.due_ms:
            continue
        base = number << SLAB_BITS
        for wanted, kind in ((LEASED, LEASE), (DELAYED, DELAY)):
            i = slab.state.find(wanted)
            while i >= 0:
                state.deadlines.add(slab.due_ms[i], kind, slab.queue[i] if kind == DELAY else 0, (base + i,))
                i = slab.state.find(wanted, i + 1)
