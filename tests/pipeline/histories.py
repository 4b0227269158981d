"""Journals of every kind of event for the tests of the reader, and a plain reading of them to compare with."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

from laneway.core import property_lists
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
    QueuePurged,
    QueuePut,
    Received,
    Released,
    Relocated,
    Removed,
    Told,
    Unbound,
)
from laneway.core.message import (
    PLAIN,
    RECORD_PREFIX_BYTES,
    Properties,
    amqp_props_head,
    decode_record,
    encode_props,
    encode_record,
    message_id,
)
from laneway.core.rows import ROW, ROW_BYTES
from laneway.journal.history.files import RealFiles
from laneway.journal.history.format import HEADER_BYTES, rows_at, segment_name, segment_numbers
from laneway.journal.history.recovery import read_segment
from laneway.journal.history.scan import SegmentScan
from laneway.journal.segments import SegmentJournal

TAG = 0x2ABCDEF
#: Of other partitions, by id.
ELSEWHERE = {1 << 32 | 1: ("main", "orders", "low"), 3 << 32 | 7: ("main", "far", "normal")}
CATALOGUE = {1: ("main", "orders", "critical"), 2: ("main", "märz", "normal"), 3: ("other", "orders", "low")}

# --- strategies -----------------------------------------------------------------------------------------------------

queues = st.integers(1, 5)  # more than the catalogue knows
times = st.integers(1, 2**45)
times_or_none = st.just(0) | times
numbers = st.integers(1, 2**48 - 1)
leases = st.integers(1, 2**62)
words = st.text(st.characters(codec="utf-8"), max_size=12)
some_numbers = st.lists(numbers, min_size=1, max_size=5)
causes = st.sampled_from(Cause)
blobs = st.binary(max_size=40)
values = st.recursive(
    words | st.integers(-5, 2**40) | st.booleans() | st.floats(allow_nan=False) | st.binary(max_size=5) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=2),
    max_leaves=4,
)
attributes = st.dictionaries(words, values, max_size=3)
properties = st.just(PLAIN) | st.builds(
    Properties, *[words] * 8, attributes, st.dictionaries(words, st.integers(0, 9), max_size=1)
)


lists_of_amqp = st.fixed_dictionaries(
    {},
    optional={"content_type": words, "correlation_id": words, "headers": attributes, "priority": st.integers(0, 9)},
)


@st.composite
def amqp_blocks_of(draw: st.DrawFn) -> bytes:
    """The props of a message that came over AMQP, whose property list may be damaged."""
    raw = property_lists.encode(draw(lists_of_amqp))
    if draw(st.integers(0, 9)) == 0:
        raw = raw[:-1]
    return amqp_props_head(draw(words).encode(), draw(words).encode(), hides_bcc=draw(st.booleans())) + raw


amqp_blocks = amqp_blocks_of()


@st.composite
def published(draw: st.DrawFn) -> Published:
    given = draw(st.lists(properties, min_size=1, max_size=5))
    count = len(given)
    blocks = [encode_props(one) for one in given]
    for at, one in enumerate(given):
        if draw(st.booleans()) and not (one.group or one.dedup_id):
            blocks[at] = draw(amqp_blocks)
    bodies = [draw(blobs) for _ in given]
    sizes = [RECORD_PREFIX_BYTES + len(block) + len(body) for block, body in zip(blocks, bodies, strict=True)]
    column = st.lists(times_or_none, min_size=count, max_size=count)
    priorities = draw(st.lists(st.integers(0, 255), min_size=count, max_size=count))
    groups = {at: one.group for at, one in enumerate(given) if one.group}
    dedups = {at: one.dedup_id for at, one in enumerate(given) if one.dedup_id}
    first = draw(st.integers(1, 2**40))
    return Published(
        draw(queues), draw(times), first, priorities, draw(column), draw(column), sizes, blocks, bodies, groups, dedups
    )


@st.composite
def fanned_out(draw: st.DrawFn) -> Published:
    """Messages that went to several queues at once, and share their records."""
    once, copies = draw(published()), draw(st.integers(2, 4))
    count = len(once.sizes)
    event = msgspec.structs.replace(once, queues=[(draw(queues), count) for _ in range(copies)])
    event.queue = event.queues[0][0]
    for name in ("sizes", "props", "bodies"):
        setattr(event, name, getattr(once, name) * copies)
    column = st.lists(times_or_none, min_size=count * copies, max_size=count * copies)
    event.priorities, event.visible_at, event.expires_at = [3] * count * copies, draw(column), draw(column)
    event.locations = [0] * count + [~i for i in range(count)] * (copies - 1)
    for name in ("groups", "dedups"):
        some = getattr(once, name).items()
        setattr(event, name, {i + n * count: text for n in range(copies) for i, text in some})
    return event


@st.composite
def relocated(draw: st.DrawFn) -> Relocated:
    seqs = draw(some_numbers)
    records = [encode_record(draw(numbers), draw(times), encode_props(draw(properties)), draw(blobs)) for _ in seqs]
    event = Relocated(draw(times), seqs, [len(record) for record in records], records, births=draw(births(len(seqs))))
    if draw(st.booleans()):  # they share the first one's
        event.records, event.sizes = records[:1], event.sizes[:1] * len(seqs)
        event.locations = [0, *[~0] * (len(seqs) - 1)]
    return event


@st.composite
def births(draw: st.DrawFn, count: int) -> Births | None:
    if draw(st.booleans()):
        return None  # written by an older version
    enqueued = draw(st.lists(times, min_size=count, max_size=count))
    which = st.integers(0, count - 1)
    # One that was born elsewhere has that number in its id.
    tags = draw(st.dictionaries(which, st.integers(1, 2**26 - 1), max_size=2))
    return Births(enqueued, draw(st.dictionaries(which, numbers)), tags)


@st.composite
def leased(draw: st.DrawFn) -> Leased:
    seqs = draw(some_numbers)
    receives = draw(st.lists(st.integers(1, 2**31 - 1), min_size=len(seqs), max_size=len(seqs)))
    return Leased(
        draw(queues), draw(times), seqs, receives, draw(leases), draw(times), draw(words), draw(births(len(seqs)))
    )


@st.composite
def acked(draw: st.DrawFn) -> Acked:
    seqs = draw(some_numbers)
    given = draw(st.lists(leases, min_size=len(seqs), max_size=len(seqs)))
    return Acked(draw(queues), draw(times), seqs, given, draw(births(len(seqs))))


@st.composite
def released(draw: st.DrawFn) -> Released:
    seqs = draw(some_numbers)
    due = draw(st.lists(times_or_none, min_size=len(seqs), max_size=len(seqs)))
    return Released(draw(queues), draw(times), seqs, due, draw(causes), draw(births(len(seqs))))


@st.composite
def extended(draw: st.DrawFn) -> Extended:
    seqs = draw(some_numbers)
    return Extended(draw(queues), draw(times), seqs, draw(times), draw(births(len(seqs))))


@st.composite
def ended(draw: st.DrawFn, kind: type[DeadLettered] | type[Removed]) -> Event:
    seqs = draw(some_numbers)
    return kind(draw(queues), draw(times), seqs, draw(causes), draw(words), draw(births(len(seqs))))


@st.composite
def moved(draw: st.DrawFn, kind: type[Moved] | type[Copied]) -> Event:
    seqs = draw(some_numbers)
    way = draw(st.none() | words), draw(st.none() | words)
    priorities = draw(st.just(()) | st.lists(st.integers(0, 255), min_size=len(seqs), max_size=len(seqs)))
    first = draw(st.integers(1, 2**48))
    born = draw(births(len(seqs)))
    tenants = draw(st.just(()) | st.lists(words, min_size=len(seqs), max_size=len(seqs)))
    bound_for = draw(st.just(0) | st.sampled_from([*ELSEWHERE, 2 << 32 | 9]))
    rest = draw(queues), first, draw(words), *way, priorities, born, () if bound_for else tenants, bound_for
    return kind(draw(queues), draw(times), seqs, draw(causes), *rest)


@st.composite
def arrived(draw: st.DrawFn) -> Arrived:
    given, body = draw(properties), draw(blobs)
    block = encode_props(given)
    born = draw(st.integers(1, 2**26 - 1)), draw(numbers), draw(times)
    about = draw(queues), draw(times), draw(numbers), draw(causes), draw(st.integers(0, 9)), *born
    size = RECORD_PREFIX_BYTES + len(block) + len(body)
    return Arrived(*about, draw(st.integers(0, 255)), size, block, body, given.group, given.tenant)


EVENTS: dict[Kind, st.SearchStrategy[Event]] = {
    Kind.OPENED: st.builds(Opened, times, st.just(1), st.just(TAG)),
    Kind.QUEUE_PUT: st.builds(QueuePut, queues, times, blobs),
    Kind.QUEUE_DELETED: st.builds(QueueDeleted, queues, times, blobs),
    Kind.QUEUE_PURGED: st.builds(QueuePurged, queues, times, numbers),
    Kind.PUBLISHED: published() | fanned_out(),
    Kind.LEASED: leased(),
    Kind.ACKED: acked(),
    Kind.RELEASED: released(),
    Kind.EXTENDED: extended(),
    Kind.DEAD_LETTERED: ended(DeadLettered),
    Kind.MOVED: moved(Moved),
    Kind.COPIED: moved(Copied),
    Kind.REMOVED: ended(Removed),
    Kind.RELOCATED: relocated(),
    Kind.KEY_REMEMBERED: st.builds(KeyRemembered, queues, times, times, blobs, times),
    Kind.ARRIVED: arrived(),
    Kind.TOLD: st.builds(Told, queues, times, numbers, blobs),
    Kind.RECEIVED: st.builds(Received, times, st.integers(0, 9), numbers),
    Kind.DOCUMENT_PUT: st.builds(DocumentPut, times, words, words, blobs),
    Kind.DOCUMENT_REMOVED: st.builds(DocumentRemoved, times, words, words),
    Kind.EXCHANGE_PUT: st.builds(ExchangePut, times, blobs),
    Kind.EXCHANGE_DELETED: st.builds(ExchangeDeleted, times, blobs),
    Kind.BOUND: st.builds(Bound, queues, times, blobs),
    Kind.UNBOUND: st.builds(Unbound, queues, times, blobs),
    Kind.CLOCK_SET: st.builds(ClockSet, times, times, times, words),
}
histories = st.lists(st.lists(st.one_of(*EVENTS.values()), min_size=1, max_size=6), min_size=1, max_size=6)

# --- writing --------------------------------------------------------------------------------------------------------


def write(folder: Path, commits: Iterable[Iterable[Event]], *, segment_bytes: int = 64 << 10) -> None:
    """A journal with these events, or more of them in one that is there."""
    journal = SegmentJournal(folder, durability="none", segment_bytes=segment_bytes, reserve_bytes=0)
    for _ in journal.replay(0):
        pass
    for events in commits:
        for event in events:
            journal.stage(event)
        commit = journal.seal()
        if commit is not None:
            journal.write(commit)
    journal.close()


# --- reading, row by row --------------------------------------------------------------------------------------------


def expected(folder: Path, catalogue: Mapping[int, tuple[str, str, str]] = CATALOGUE) -> list[dict[str, Any]]:
    """The events table of a journal, by the documents: no numpy, no hurry."""
    return [_row(position, index, *rest, catalogue) for position, index, *rest in _stored_rows(folder)]


def _stored_rows(folder: Path) -> Iterator[tuple[int, int, tuple[int, ...], bytes]]:
    files = RealFiles()
    for number in segment_numbers(files.list_folder(str(folder))):
        _, store = read_segment(files, str(folder), number)
        path = str(folder / segment_name(number))
        file = files.open(path)
        scan = SegmentScan(files, path, file, number=number, store=store)
        offset = HEADER_BYTES
        while (commit := scan.commit_at(offset)) is not None:
            data = bytes(commit.data)
            stored = data[rows_at(commit.header) : -HEADER_BYTES]
            for index, row in enumerate(ROW.iter_unpack(stored)):
                yield commit.header.position, index, row, data[row[12] : row[12] + row[13]]
            assert len(stored) == commit.header.row_count * ROW_BYTES
            offset += commit.header.length
        files.close(file)


def when(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return base64.b64encode(value).decode() if isinstance(value, bytes) else msgspec.json.encode(value).decode()


_OF_MESSAGE = {
    Kind.PUBLISHED, Kind.ARRIVED, Kind.LEASED, Kind.ACKED, Kind.RELEASED, Kind.EXTENDED, Kind.DEAD_LETTERED, Kind.MOVED,
    Kind.COPIED, Kind.REMOVED, Kind.RELOCATED,
}  # fmt: skip


def _row(
    position: int, index: int, row: tuple[int, ...], blob: bytes, catalogue: Mapping[int, tuple[str, str, str]]
) -> dict[str, Any]:
    code, cause, priority, flags, queue, seq, at, due, lease, expires, receives, target, _, size = row
    kind = Kind(code)
    vhost, name, tier = catalogue.get(queue, (None, None, None))
    found: dict[str, Any] = {
        "partition": 0, "position": position, "index": index, "time": when(at), "kind": kind.name.lower(),
        "vhost": vhost, "queue": name, "tier": tier, "queue_number": queue or None,
        "reason": Cause(cause).name.lower() if cause else None,
        "message": seq if kind in _OF_MESSAGE or kind in (Kind.QUEUE_PURGED, Kind.TOLD, Kind.RECEIVED) else None,
    }  # fmt: skip
    if kind == Kind.RECEIVED:
        return found | {"sender": lease}
    if kind == Kind.TOLD:
        return found
    if kind in (Kind.PUBLISHED, Kind.ARRIVED):
        _, enqueued, p, body = decode_record(blob)
        own_id = message_id(at, TAG, seq)
        if kind == Kind.ARRIVED:
            own_id, due, expires, found["sender"] = message_id(expires, lease, due), 0, 0, receives
        found |= {
            "message_id": own_id, "priority": priority, "tenant": p.tenant, "key": p.key,
            "group": p.group, "dedup_id": p.dedup_id, "correlation_id": p.correlation_id, "exchange": p.exchange,
            "content_type": p.content_type, "routing_key": p.routing_key, "size": size, "enqueued_at": when(enqueued),
            "visible_at": when(due or at), "expires_at": when(expires) if expires else None, "body": body,
            "attributes": [(k, _as_text(v)) for k, v in p.attributes.items()],
        }  # fmt: skip
        return {column: None if value in ("", []) else value for column, value in found.items()}
    if kind in (Kind.MOVED, Kind.COPIED):
        detail, exchange, key, *more = msgspec.msgpack.decode(blob) if flags & 8 else (blob.decode(), None, None)
        target_vhost, target_name, _ = catalogue.get(target, (None, None, None))
        target_partition = 0
        if len(more) > 1:
            target_vhost, target_name, _ = ELSEWHERE.get(more[1], (None, None, None))
            target_partition = more[1] >> 32
        found |= {
            "detail": detail or None, "exchange": exchange or None, "routing_key": key or None,
            "priority": priority if flags & 16 else None, "target_vhost": target_vhost, "target_queue": target_name,
            "target_queue_number": target, "target_message": lease, "target_partition": target_partition,
            "message_id": message_id(expires, receives or TAG, due) if expires else None,
            "enqueued_at": when(expires) if expires else None,
        }  # fmt: skip
        return found
    if kind == Kind.RELOCATED and not expires:  # by a version that did not say
        number, enqueued, _, _ = decode_record(blob)
        return found | {"message_id": message_id(enqueued, TAG, number), "enqueued_at": when(enqueued)}
    if kind in _OF_MESSAGE:
        enqueued = expires & 0xFFFFFFFFFFFF
        number = (expires >> 48) << 32 | target if flags & 32 else seq
        tag = (due >> 48 | priority << 16 | (flags >> 1 & 3) << 24) if flags & 64 else TAG
        found["message_id"] = message_id(enqueued, tag, number) if enqueued else None
        due &= 0xFFFFFFFFFFFF
        found["enqueued_at"] = when(enqueued) if enqueued else None
    if kind == Kind.LEASED:
        found |= {"consumer": blob.decode() or None, "receive_count": receives}
    if kind in (Kind.LEASED, Kind.ACKED):
        found["lease"] = lease
    if kind in (Kind.LEASED, Kind.EXTENDED):
        found["deadline"] = when(due)
    if kind == Kind.RELEASED:
        found["visible_at"] = when(due or at)
    if kind in (Kind.DEAD_LETTERED, Kind.REMOVED):
        found["detail"] = blob.decode() or None
    return found
