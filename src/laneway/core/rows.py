"""The stored form of events: one fixed-width row per message, so that numpy or Arrow can read a million of them
without a Python loop. What does not fit in a row (records, names, documents) stands in blobs beside it.

    row         0 u8  kind          events.Kind
                1 u8  cause         events.Cause: why it was released, dead-lettered, moved, copied or removed, arrived
                                    or resumed
                2 u8  priority      published · that it was published with (arrived; moved and copied, with flag 16) ·
                                    its state, as in table.py (resumed)
                3 u8  flags         1 continues the event of the row before · 2 has a group · 4 has a dedup id
                                    (published), dedup ids are forgotten (purged) ·
                                    8 came through an exchange (moved, copied) · 16 has a priority (moved, copied) ·
                                    32 its id has another number than its own (leased to removed, relocated, see
                                    below) ·
                                    64 has a tenant, and the queue it comes to is fair (published, moved, copied,
                                    arrived); was born in another store (leased to removed, relocated, see below) ·
                                    128 visible at a time of day that its publisher named (published)
                4 u32 queue         queue number, given when the queue was created, never reused
                8 u64 seq           message number · epoch (opened) · first number kept (purged) · number of the last
                                    entry that was done (received)
               16 u64 at_ms         when it happened
               24 u64 due_ms        visible at (published, released) · deadline (leased, extended, reserved) · either
                                    (resumed) · the number in its id (moved, copied, arrived) · idempotency keys that
                                    expire by then are forgotten (key remembered); 0: none · what the clock before
                                    would say (clock set)
               32 u64 lease         lease id (leased, acked, reserved, resumed) · id that the queue has in another
                                    partition (queue departed) · new message number (moved, copied) · tag (opened) ·
                                    tag of the store it was born in (arrived) · partition that sent the entry
                                    (received) · uptime of the machine in milliseconds (clock set)
               40 u64 expires_ms    end of the time to live (published, resumed), of an idempotency key; 0: none · when
                                    it was first published (leased to removed, moved, copied, relocated, arrived), in
                                    the lower 48 bits; 0: by a version that did not say
               48 u32 receives      receive count after the event (leased, resumed) · partition that it came from
                                    (arrived) · tag of the store it was born in (moved, copied), 0: of this one
               52 u32 target        target queue (moved, copied) · lower half of the number in its id, with flag 32,
                                    and then the upper 16 bits of expires_ms are its upper half
               56 u32 blob_offset   from the start of the commit
               60 u32 blob_size

    blob        published, relocated: the record, which several rows of a commit may share · arrived: the record ·
                leased: the consumer's name · dead-lettered, moved, copied, removed: a detail in words, shared by the
                rows of the event; with flag 8: MessagePack [detail, exchange, routing key or null]; with flags 8 and
                64: MessagePack [detail, exchange or null, routing key or null, [tenants]], one tenant for each row of
                the event, "" for none; into an outbox: the same with [] for the tenants, and as a fifth element the id
                of the queue they are bound for, and if the whole queue goes there, for each row the end of its time to
                live and who holds it (stories.py: Baggage) · told, resumed: the story as MessagePack (stories.py) ·
                queue told: QueueBaggage as MessagePack (stories.py) · queue and document
                events: the document · clock set: which boot of the machine it is

A relocated row without the time it was first published, of an older version, has that and its number in its record.

"leased to removed" are leased, acked, released, extended, reserved, dead-lettered and removed. The id of a message is
made of the store's tag (opened), the time it was first published, and a number (message.py): its own, unless it was
moved or copied since, which gives it a new one. One that came from another partition (arrived) has the tag of the store
it was born in: with flag 64, rows of leased to removed and relocated say it in what these kinds leave free. Its lower
16 bits are the upper 16 bits of due_ms, the next 8 are the priority, the highest 2 are the flags 2 and 4. So each row
about a message tells its id without any other.

A field not listed for a kind is 0. Rows never change meaning: a new need takes a new kind or flag, or a new
version of the segment format (journal/history/format.py).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import lshift, or_

import msgspec

from laneway.core.events import (
    Acked,
    Arrived,
    Births,
    Bound,
    Cause,
    ClockSet,
    Copied,
    DeadLettered,
    DocumentPut,
    DocumentRemoved,
    Event,
    ExchangeDeleted,
    ExchangePut,
    Extended,
    KeyRemembered,
    Kind,
    Leased,
    Moved,
    Opened,
    Published,
    QueueDeleted,
    QueueDeparted,
    QueuePurged,
    QueuePut,
    Queues,
    QueueTold,
    Received,
    Released,
    Relocated,
    Removed,
    Reserved,
    Resumed,
    Told,
    Unbound,
)
from laneway.core.message import RECORD_PREFIX_BYTES, decode_record, places, record_pieces
from laneway.core.runs import as_array
from laneway.core.table import DELAYED, READY, column

ROW = struct.Struct("<BBBBIQQQQQIIII")
ROW_BYTES = ROW.size
CONTINUES, HAS_GROUP, HAS_DEDUP, HAS_ROUTE, HAS_PRIORITY, HAS_NUMBER, HAS_TENANT = 1, 2, 4, 8, 16, 32, 64
BORN_ELSEWHERE = 64
NAMES_TIME = 128
WAITING = (READY, DELAYED)  # in the priority of a resumed row: it can be leased, now or later
TIME_BITS = 48  # of expires_ms, where it holds when a message was first published
_TIME_MASK = (1 << TIME_BITS) - 1

assert ROW_BYTES == 64

_pack = ROW.pack
_PRIORITY_BITS = [priority << 16 for priority in range(256)]
Row = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int, int]


def encode(event: Event, offset: int, starts: Sequence[int] = ()) -> tuple[bytes, Sequence[bytes]]:
    """The rows of an event and its blobs; `offset` is where in the commit its first blob will stand. If messages share
    records, `starts` is where in the commit each has its own."""
    if starts:
        return _SHARING[event.kind](event, offset, starts)
    return _ENCODERS[event.kind](event, offset)


def decode(
    rows: bytes | memoryview, blob: Callable[[int, int], bytes], location: Callable[[int], int]
) -> Iterator[Event]:
    """The events of one commit. `blob(offset, size)` reads a blob, `location(offset)` names its place for later."""
    batch: list[Row] = []
    for row in ROW.iter_unpack(rows):
        if not row[3] & CONTINUES and batch:
            yield _DECODERS[batch[0][0]](batch, blob, location)
            batch = []
        batch.append(row)
    if batch:
        yield _DECODERS[batch[0][0]](batch, blob, location)


def _one(
    kind: Kind,
    *,
    flags: int = 0,
    queue: int = 0,
    seq: int = 0,
    at_ms: int,
    lease: int = 0,
    expires: int = 0,
    offset: int = 0,
    size: int = 0,
) -> bytes:
    return _pack(kind, 0, 0, flags, queue, seq, at_ms, 0, lease, expires, 0, 0, offset, size)


def _birth(births: Births | None) -> tuple[int, int, int]:
    """Of an event about one message of this store: (flag, expires_ms, target) of its row."""
    if births is None:
        return 0, 0, 0
    at_ms = births.enqueued_ms[0] & _TIME_MASK
    if not births.numbers:
        return 0, at_ms, 0
    number = births.numbers[0]
    return HAS_NUMBER, number >> 32 << TIME_BITS | at_ms, number & 0xFFFFFFFF


def _set_births(words: array[int], births: Births | None) -> None:
    if births is None:
        return
    words[5::8] = array("Q", births.enqueued_ms)
    for i, number in births.numbers.items():
        at = 8 * i
        words[at] |= HAS_NUMBER << 24
        words[at + 5] = number >> 32 << TIME_BITS | words[at + 5] & _TIME_MASK
        words[at + 6] |= number << 32 & 0xFFFFFFFF00000000
    for i, tag in births.tags.items():
        at = 8 * i
        words[at] |= (BORN_ELSEWHERE | tag >> 24 << 1) << 24 | (tag >> 16 & 0xFF) << 16
        words[at + 3] |= (tag & 0xFFFF) << TIME_BITS


def _encode_opened(e: Opened, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _one(e.kind, seq=e.epoch, at_ms=e.at_ms, lease=e.tag), ()


def _encode_queue_put(e: QueuePut | QueueTold, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _one(e.kind, queue=e.queue, at_ms=e.at_ms, offset=offset, size=len(e.document)), (e.document,)


def _encode_queue_deleted(e: QueueDeleted, offset: int) -> tuple[bytes, Sequence[bytes]]:
    if not e.document:
        return _one(e.kind, queue=e.queue, at_ms=e.at_ms), ()
    return _one(e.kind, queue=e.queue, at_ms=e.at_ms, offset=offset, size=len(e.document)), (e.document,)


def _encode_queue_purged(e: QueuePurged, offset: int) -> tuple[bytes, Sequence[bytes]]:
    flags = HAS_DEDUP if e.forgets_dedups else 0
    return _one(e.kind, flags=flags, queue=e.queue, seq=e.before_seq, at_ms=e.at_ms), ()


def _table(count: int, kind: int, queue: int, at_ms: int, queues: Queues = ()) -> array[int]:
    """Rows of one event as words of eight bytes, eight to a row, with what they all share filled in.

    Hot: a column is set with one strided slice instead of one call a row. Words are little-endian, as rows are.
    """
    words = array("Q", bytes(ROW_BYTES * count))
    if queues:
        beginnings: list[int] = []
        for number, size in queues:
            beginning = kind | number << 32
            beginnings.append(beginning)
            if size > 1:
                beginnings += [beginning | CONTINUES << 24] * (size - 1)
        words[0::8] = array("Q", beginnings)
    else:
        words[0::8] = array("Q", (kind | CONTINUES << 24 | queue << 32,)) * count
        words[0] = kind | queue << 32
    words[2::8] = array("Q", (at_ms,)) * count
    return words


_IS_BIG_ENDIAN = struct.pack("=H", 1) == b"\x00\x01"


def _bytes(words: array[int]) -> bytes:
    if _IS_BIG_ENDIAN:
        words.byteswap()
    return words.tobytes()


def _encode_published(e: Published, offset: int, starts: Sequence[int] = ()) -> tuple[bytes, Sequence[bytes]]:
    count = len(e.sizes)
    seqs: Sequence[int] = range(e.first_seq, e.first_seq + count)
    if starts:
        offset, n = starts[0], e.locations.count(0)
        if any(e.locations[:n]):
            own = [i for i, location in enumerate(e.locations) if not location]
            pieces = record_pieces(
                [seqs[i] for i in own], e.at_ms, [e.props[i] for i in own], [e.bodies[i] for i in own]
            )
        else:  # mostly those that it brings come first
            pieces = record_pieces(seqs[:n], e.at_ms, e.props[:n], e.bodies[:n])
    else:
        pieces = record_pieces(seqs, e.at_ms, e.props, e.bodies)
    if count == 1:
        mark = (HAS_GROUP if e.groups else 0) | (HAS_DEDUP if e.dedups else 0) | (HAS_TENANT if e.tenants else 0)
        if e.named_times:
            mark |= NAMES_TIME
        visible, expires, size = e.visible_at[0], e.expires_at[0], e.sizes[0]
        row = _pack(
            10, 0, e.priorities[0], mark, e.queue, e.first_seq, e.at_ms, visible, 0, expires, 0, 0, offset, size
        )
        return row, pieces
    first = e.priorities[0]
    if e.priorities.count(first) == count:
        words = _table(count, e.kind | first << 16, e.queue, e.at_ms, e.queues)
    else:
        words = _table(count, e.kind, e.queue, e.at_ms, e.queues)
        words[0::8] = array("Q", map(or_, words[0::8], map(_PRIORITY_BITS.__getitem__, e.priorities)))
    for i in e.groups:
        words[8 * i] |= HAS_GROUP << 24
    for i in e.dedups:
        words[8 * i] |= HAS_DEDUP << 24
    for i in e.tenants:
        words[8 * i] |= HAS_TENANT << 24
    for i in e.named_times:
        words[8 * i] |= NAMES_TIME << 24
    words[1::8] = as_array(seqs)
    if any(e.visible_at):
        words[3::8] = array("Q", e.visible_at)
    if any(e.expires_at):
        words[5::8] = array("Q", e.expires_at)
    starts = starts or places(e.sizes, offset)
    if isinstance(starts, range):  # all have one size
        same = e.sizes[0] << 32
        words[7::8] = array("Q", range(same + starts.start, same + starts.stop, starts.step))
    else:
        words[7::8] = array("Q", map(or_, map(lshift, e.sizes, repeat(32)), starts))
    return _bytes(words), pieces


def _encode_leased(e: Leased, offset: int) -> tuple[bytes, Sequence[bytes]]:
    name = e.consumer.encode()
    blobs = (name,) if name else ()
    count = len(e.seqs)
    if count == 1 and (e.births is None or not e.births.tags):
        seq, receives = e.seqs[0], e.receives[0]
        due, lease, size = e.deadline_ms, e.first_lease, len(name)
        mark, born, low = _birth(e.births)
        return _pack(11, 0, 0, mark, e.queue, seq, e.at_ms, due, lease, born, receives, low, offset, size), blobs
    words = _table(count, e.kind, e.queue, e.at_ms, e.queues)
    words[1::8] = as_array(e.seqs)
    words[3::8] = array("Q", (e.deadline_ms,)) * count
    words[4::8] = as_array(range(e.first_lease, e.first_lease + count))
    words[6::8] = column("Q", e.receives)
    words[7::8] = array("Q", (len(name) << 32 | offset,)) * count
    _set_births(words, e.births)
    return _bytes(words), blobs


def _encode_acked(e: Acked, offset: int) -> tuple[bytes, Sequence[bytes]]:
    if len(e.seqs) == 1 and (e.births is None or not e.births.tags):
        mark, born, low = _birth(e.births)
        return _pack(12, 0, 0, mark, e.queue, e.seqs[0], e.at_ms, 0, e.leases[0], born, 0, low, 0, 0), ()
    words = _table(len(e.seqs), e.kind, e.queue, e.at_ms, e.queues)
    words[1::8] = as_array(e.seqs)
    words[4::8] = as_array(e.leases)
    _set_births(words, e.births)
    return _bytes(words), ()


def _encode_released(e: Released, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _bytes(_settled(e, array("Q", e.due_ms))), ()


def _encode_extended(e: Extended, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _bytes(_settled(e, array("Q", (e.deadline_ms,)) * len(e.seqs))), ()


def _encode_reserved(e: Reserved, offset: int) -> tuple[bytes, Sequence[bytes]]:
    words = _settled(e, array("Q", (e.deadline_ms,)) * len(e.seqs))
    words[4::8] = as_array(range(e.first_lease, e.first_lease + len(e.seqs)))
    return _bytes(words), ()


def _encode_gone(e: DeadLettered | Removed, offset: int) -> tuple[bytes, Sequence[bytes]]:
    words, detail = _settled(e), e.detail.encode()
    if not detail:
        return _bytes(words), ()
    words[7::8] = array("Q", (len(detail) << 32 | offset,)) * len(e.seqs)
    return _bytes(words), (detail,)


def _settled(
    e: Released | Extended | Reserved | DeadLettered | Removed, due_ms: array[int] | None = None
) -> array[int]:
    words = _table(len(e.seqs), e.kind | getattr(e, "cause", 0) << 8, e.queue, e.at_ms)
    words[1::8] = as_array(e.seqs)
    if due_ms is not None:
        words[3::8] = due_ms
    _set_births(words, e.births)
    return words


def _encode_moved(e: Moved | Copied, offset: int) -> tuple[bytes, Sequence[bytes]]:
    blob, mark = e.detail.encode(), 0
    if e.bound_for:
        said = (e.expires_at, e.holders) if isinstance(e, Moved) and e.cause == Cause.REBALANCED else ()
        blob = msgspec.msgpack.encode((e.detail, e.exchange, e.routing_key, (), e.bound_for, *said))
        mark = HAS_ROUTE | HAS_TENANT
    elif e.tenants:
        key = e.routing_key if e.exchange is not None else None
        blob, mark = msgspec.msgpack.encode((e.detail, e.exchange, key, e.tenants)), HAS_ROUTE | HAS_TENANT
    elif e.exchange is not None:
        blob, mark = msgspec.msgpack.encode((e.detail, e.exchange, e.routing_key)), HAS_ROUTE
    if e.priorities:
        mark |= HAS_PRIORITY
    words = _table(len(e.seqs), e.kind | e.cause << 8, e.queue, e.at_ms)
    for i in range(len(e.seqs)) if mark else ():
        words[8 * i] |= mark << 24 | (e.priorities[i] << 16 if e.priorities else 0)
    words[1::8] = as_array(e.seqs)
    words[4::8] = as_array(range(e.first_seq, e.first_seq + len(e.seqs)))
    words[6::8] = array("Q", (e.target << 32,)) * len(e.seqs)
    if blob:
        words[7::8] = array("Q", (len(blob) << 32 | offset,)) * len(e.seqs)
    if e.births is not None:
        words[3::8] = array("Q", [e.births.numbers.get(i, seq) for i, seq in enumerate(e.seqs)])
        words[5::8] = array("Q", [at_ms & _TIME_MASK for at_ms in e.births.enqueued_ms])
        for i, tag in e.births.tags.items():
            words[8 * i + 6] |= tag
    return _bytes(words), (blob,) if blob else ()


def _encode_arrived(e: Arrived, offset: int) -> tuple[bytes, Sequence[bytes]]:
    mark = (HAS_GROUP if e.group else 0) | (HAS_TENANT if e.tenant else 0)
    numbers = (e.queue, e.seq, e.at_ms, e.number, e.tag, e.enqueued_ms & _TIME_MASK, e.sender, 0, offset, e.size)
    return _pack(e.kind, e.cause, e.priority, mark, *numbers), (e.record,)


def _encode_resumed(e: Resumed, offset: int) -> tuple[bytes, Sequence[bytes]]:
    numbers = (e.queue, e.seq, e.at_ms, e.due_ms, e.lease, e.expires_ms, e.receives, 0, offset, len(e.story))
    return _pack(e.kind, Cause.REBALANCED, e.state, 0, *numbers), (e.story,)


def _encode_queue_departed(e: QueueDeparted, offset: int) -> tuple[bytes, Sequence[bytes]]:
    row = _one(e.kind, queue=e.queue, at_ms=e.at_ms, lease=e.target, offset=offset, size=len(e.document))
    return row, (e.document,)


def _encode_told(e: Told, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _one(e.kind, queue=e.queue, seq=e.seq, at_ms=e.at_ms, offset=offset, size=len(e.story)), (e.story,)


def _encode_received(e: Received, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _one(e.kind, seq=e.number, at_ms=e.at_ms, lease=e.sender), ()


def _encode_relocated(e: Relocated, offset: int, starts: Sequence[int] = ()) -> tuple[bytes, Sequence[bytes]]:
    words = _table(len(e.seqs), e.kind, 0, e.at_ms)
    words[1::8] = as_array(e.seqs)
    words[7::8] = array("Q", map(or_, map(lshift, e.sizes, repeat(32)), starts or places(e.sizes, offset)))
    _set_births(words, e.births)
    return _bytes(words), e.records


def _encode_key_remembered(e: KeyRemembered, offset: int) -> tuple[bytes, Sequence[bytes]]:
    size = len(e.document)
    row = _pack(e.kind, 0, 0, 0, e.queue, 0, e.at_ms, e.forget_ms, 0, e.expires_ms, 0, 0, offset, size)
    return row, (e.document,)


def _encode_document_put(e: DocumentPut, offset: int) -> tuple[bytes, Sequence[bytes]]:
    blob = msgspec.msgpack.encode((e.collection, e.key, e.document))
    return _one(e.kind, at_ms=e.at_ms, offset=offset, size=len(blob)), (blob,)


def _encode_document_removed(e: DocumentRemoved, offset: int) -> tuple[bytes, Sequence[bytes]]:
    blob = msgspec.msgpack.encode((e.collection, e.key))
    return _one(e.kind, at_ms=e.at_ms, offset=offset, size=len(blob)), (blob,)


def _encode_exchange(e: ExchangePut | ExchangeDeleted, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _one(e.kind, at_ms=e.at_ms, offset=offset, size=len(e.document)), (e.document,)


def _encode_binding(e: Bound | Unbound, offset: int) -> tuple[bytes, Sequence[bytes]]:
    return _one(e.kind, queue=e.queue, at_ms=e.at_ms, offset=offset, size=len(e.document)), (e.document,)


def _encode_clock_set(e: ClockSet, offset: int) -> tuple[bytes, Sequence[bytes]]:
    boot = e.boot.encode()
    row = _pack(e.kind, 0, 0, 0, 0, 0, e.at_ms, e.was_ms, e.uptime_ms, 0, 0, 0, offset, len(boot))
    return row, (boot,) if boot else ()


_ENCODERS: dict[Kind, Callable[..., tuple[bytes, Sequence[bytes]]]] = {
    Kind.OPENED: _encode_opened,
    Kind.QUEUE_PUT: _encode_queue_put,
    Kind.QUEUE_DELETED: _encode_queue_deleted,
    Kind.QUEUE_PURGED: _encode_queue_purged,
    Kind.QUEUE_DEPARTED: _encode_queue_departed,
    Kind.QUEUE_TOLD: _encode_queue_put,
    Kind.PUBLISHED: _encode_published,
    Kind.LEASED: _encode_leased,
    Kind.ACKED: _encode_acked,
    Kind.RELEASED: _encode_released,
    Kind.EXTENDED: _encode_extended,
    Kind.RESERVED: _encode_reserved,
    Kind.DEAD_LETTERED: _encode_gone,
    Kind.MOVED: _encode_moved,
    Kind.REMOVED: _encode_gone,
    Kind.RELOCATED: _encode_relocated,
    Kind.COPIED: _encode_moved,
    Kind.ARRIVED: _encode_arrived,
    Kind.TOLD: _encode_told,
    Kind.RESUMED: _encode_resumed,
    Kind.RECEIVED: _encode_received,
    Kind.KEY_REMEMBERED: _encode_key_remembered,
    Kind.DOCUMENT_PUT: _encode_document_put,
    Kind.DOCUMENT_REMOVED: _encode_document_removed,
    Kind.EXCHANGE_PUT: _encode_exchange,
    Kind.EXCHANGE_DELETED: _encode_exchange,
    Kind.BOUND: _encode_binding,
    Kind.UNBOUND: _encode_binding,
    Kind.CLOCK_SET: _encode_clock_set,
}

_SHARING: dict[Kind, Callable[..., tuple[bytes, Sequence[bytes]]]] = {
    Kind.PUBLISHED: _encode_published,
    Kind.RELOCATED: _encode_relocated,
}

Blob = Callable[[int, int], bytes]
Location = Callable[[int], int]


def _decode_published(rows: list[Row], blob: Blob, location: Location) -> Event:
    first = rows[0]
    groups: dict[int, str] = {}
    dedups: dict[int, str] = {}
    tenants: dict[int, str] = {}
    visible = [row[7] for row in rows]
    for i, row in enumerate(rows):
        if row[3] & (HAS_GROUP | HAS_DEDUP | HAS_TENANT):
            properties = decode_record(blob(row[12], row[13]))[2]
            if row[3] & HAS_GROUP:
                groups[i] = properties.group
            if row[3] & HAS_DEDUP:
                dedups[i] = properties.dedup_id
            if row[3] & HAS_TENANT:
                tenants[i] = properties.tenant
    at, locations = _located(rows, location)
    return Published(
        queue=first[4],
        at_ms=first[6],
        first_seq=first[5],
        priorities=[r[2] for r in rows],
        visible_at=visible,
        expires_at=[r[9] for r in rows],
        sizes=[r[13] for r in rows],
        props=(),
        bodies=(),
        groups=groups,
        dedups=dedups,
        location=at,
        tenants=tenants,
        named_times=frozenset(i for i, row in enumerate(rows) if row[3] & NAMES_TIME) if any(visible) else frozenset(),
        locations=locations,
    )


def _located(rows: list[Row], location: Location) -> tuple[int, Sequence[int]]:
    """Where the first record stands, if the others follow it; else where all do."""
    offsets, first = [r[12] for r in rows], rows[0][12]
    if len(rows) == 1 or offsets == list(places([r[13] for r in rows], first)):
        return location(first), ()
    return 0, [location(offset) for offset in offsets]


def _decode_leased(rows: list[Row], blob: Blob, location: Location) -> Event:
    f = rows[0]
    consumer = blob(f[12], f[13]).decode()
    return Leased(f[4], f[6], [r[5] for r in rows], [r[10] for r in rows], f[8], f[7] & _TIME_MASK, consumer)


def _decode_document_put(rows: list[Row], blob: Blob, location: Location) -> Event:
    collection, key, document = msgspec.msgpack.decode(blob(rows[0][12], rows[0][13]))
    return DocumentPut(rows[0][6], collection, key, document)


def _decode_document_removed(rows: list[Row], blob: Blob, location: Location) -> Event:
    collection, key = msgspec.msgpack.decode(blob(rows[0][12], rows[0][13]))
    return DocumentRemoved(rows[0][6], collection, key)


def _decode_moved(rows: list[Row], blob: Blob, location: Location) -> Event:
    f = rows[0]
    words = blob(f[12], f[13])
    exchange, key, tenants, bound_for, said = None, None, (), 0, ((), ())
    if f[3] & HAS_TENANT:
        detail, exchange, key, tenants, *rest = msgspec.msgpack.decode(words)
        bound_for = rest[0] if rest else 0
        said = tuple(rest[1:]) or said
    elif f[3] & HAS_ROUTE:
        detail, exchange, key = msgspec.msgpack.decode(words, type=tuple[str, str, str | None])
    else:
        detail = words.decode()
    kind = Moved if f[0] == Kind.MOVED else Copied
    priorities = [r[2] for r in rows] if f[3] & HAS_PRIORITY else ()
    moved = kind(f[4], f[6], _seqs(rows), Cause(f[1]), f[11], f[8], detail, exchange, key, priorities)
    moved.tenants, moved.bound_for = tuple(tenants), bound_for
    if isinstance(moved, Moved):
        moved.expires_at, moved.holders = map(tuple, said)
    return moved


def _decode_arrived(rows: list[Row], blob: Blob, location: Location) -> Event:
    ((_, cause, priority, flags, queue, seq, at_ms, number, tag, enqueued_ms, sender, _, offset, size),) = rows
    group = tenant = ""
    if flags & (HAS_GROUP | HAS_TENANT):
        properties = decode_record(blob(offset, size))[2]
        group, tenant = properties.group if flags & HAS_GROUP else "", properties.tenant if flags & HAS_TENANT else ""
    about = (queue, at_ms, seq, Cause(cause), sender, tag, number, enqueued_ms, priority, size)
    return Arrived(*about, b"", b"", group, tenant, location(offset))


def _decode_relocated(rows: list[Row], blob: Blob, location: Location) -> Event:
    f = rows[0]
    return Relocated(f[6], _seqs(rows), [r[13] for r in rows], (), *_located(rows, location))


def _seqs(rows: list[Row]) -> list[int]:
    return [r[5] for r in rows]


_DECODERS: dict[int, Callable[[list[Row], Blob, Location], Event]] = {
    Kind.OPENED: lambda r, b, at: Opened(r[0][6], r[0][5], r[0][8]),
    Kind.QUEUE_PUT: lambda r, b, at: QueuePut(r[0][4], r[0][6], b(r[0][12], r[0][13])),
    Kind.QUEUE_DELETED: lambda r, b, at: QueueDeleted(r[0][4], r[0][6], b(r[0][12], r[0][13])),
    Kind.QUEUE_PURGED: lambda r, b, at: QueuePurged(r[0][4], r[0][6], r[0][5], bool(r[0][3] & HAS_DEDUP)),
    Kind.QUEUE_DEPARTED: lambda r, b, at: QueueDeparted(r[0][4], r[0][6], r[0][8], b(r[0][12], r[0][13])),
    Kind.QUEUE_TOLD: lambda r, b, at: QueueTold(r[0][4], r[0][6], b(r[0][12], r[0][13])),
    Kind.PUBLISHED: _decode_published,
    Kind.LEASED: _decode_leased,
    Kind.ACKED: lambda r, b, at: Acked(r[0][4], r[0][6], _seqs(r), [x[8] for x in r]),
    Kind.RELEASED: lambda r, b, at: Released(
        r[0][4], r[0][6], _seqs(r), [x[7] & _TIME_MASK for x in r], Cause(r[0][1])
    ),
    Kind.EXTENDED: lambda r, b, at: Extended(r[0][4], r[0][6], _seqs(r), r[0][7] & _TIME_MASK),
    Kind.RESERVED: lambda r, b, at: Reserved(r[0][4], r[0][6], _seqs(r), r[0][8], r[0][7] & _TIME_MASK),
    Kind.DEAD_LETTERED: lambda r, b, at: DeadLettered(
        r[0][4], r[0][6], _seqs(r), Cause(r[0][1]), b(r[0][12], r[0][13]).decode()
    ),
    Kind.MOVED: _decode_moved,
    Kind.COPIED: _decode_moved,
    Kind.ARRIVED: _decode_arrived,
    Kind.TOLD: lambda r, b, at: Told(r[0][4], r[0][6], r[0][5], b(r[0][12], r[0][13])),
    Kind.RESUMED: lambda r, b, at: Resumed(
        r[0][4], r[0][6], r[0][5], r[0][2], r[0][10], r[0][8], r[0][7], r[0][9], b(r[0][12], r[0][13])
    ),
    Kind.RECEIVED: lambda r, b, at: Received(r[0][6], r[0][8], r[0][5]),
    Kind.REMOVED: lambda r, b, at: Removed(r[0][4], r[0][6], _seqs(r), Cause(r[0][1]), b(r[0][12], r[0][13]).decode()),
    Kind.RELOCATED: _decode_relocated,
    Kind.KEY_REMEMBERED: lambda r, b, at: KeyRemembered(r[0][4], r[0][6], r[0][9], b(r[0][12], r[0][13]), r[0][7]),
    Kind.DOCUMENT_PUT: _decode_document_put,
    Kind.DOCUMENT_REMOVED: _decode_document_removed,
    Kind.EXCHANGE_PUT: lambda r, b, at: ExchangePut(r[0][6], b(r[0][12], r[0][13])),
    Kind.EXCHANGE_DELETED: lambda r, b, at: ExchangeDeleted(r[0][6], b(r[0][12], r[0][13])),
    Kind.BOUND: lambda r, b, at: Bound(r[0][4], r[0][6], b(r[0][12], r[0][13])),
    Kind.UNBOUND: lambda r, b, at: Unbound(r[0][4], r[0][6], b(r[0][12], r[0][13])),
    Kind.CLOCK_SET: lambda r, b, at: ClockSet(r[0][6], r[0][7], r[0][8], b(r[0][12], r[0][13]).decode()),
}

__all__ = [
    "BORN_ELSEWHERE",
    "CONTINUES",
    "HAS_DEDUP",
    "HAS_GROUP",
    "HAS_NUMBER",
    "HAS_ROUTE",
    "HAS_TENANT",
    "RECORD_PREFIX_BYTES",
    "ROW",
    "ROW_BYTES",
    "decode",
    "encode",
]
