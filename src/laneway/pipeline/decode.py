"""Chunks of commits become Arrow batches of the events table, without a Python loop over rows.

Only the columns that are wanted are made. Most of them are fields of the rows; what stands in blobs (texts and bodies
of messages, names of consumers, details) is found by records.py, and its bytes are read only if such a column is
wanted, and only of commits that have a wanted row of a fitting kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from laneway.core.events import Cause, Kind
from laneway.core.message import message_id_prefix
from laneway.core.partitions import NUMBER_BITS
from laneway.core.rows import BORN_ELSEWHERE, HAS_NUMBER, HAS_PRIORITY, HAS_ROUTE, TIME_BITS, WAITING
from laneway.pipeline import commits, records
from laneway.pipeline.commits import Chunk, Ints, SegmentBytes, Span
from laneway.pipeline.schema import arrow_schema
from laneway.pipeline.selection import KIND_NAMES, Bools, Catalogue, Selection, Sieve

MAX_BLOB_BYTES = 64 << 20  # of one batch, unless a single commit has more
TIME_MASK = (1 << TIME_BITS) - 1


def _kinds(*kinds: Kind) -> Bools:
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table


#: Rows with a record: that of a message as it was published.
RECORDED = _kinds(Kind.PUBLISHED, Kind.ARRIVED)
PUBLISHED = _kinds(Kind.PUBLISHED)
ARRIVED = _kinds(Kind.ARRIVED)
RELOCATED = _kinds(Kind.RELOCATED)
LEASED = _kinds(Kind.LEASED)
RESUMED = _kinds(Kind.RESUMED)
MOVED = _kinds(Kind.MOVED, Kind.COPIED)
DETAILED = _kinds(Kind.DEAD_LETTERED, Kind.MOVED, Kind.COPIED, Kind.REMOVED)
#: Rows which say in expires_ms when their message was first published.
BORN = RELOCATED | _kinds(
    Kind.LEASED, Kind.ACKED, Kind.RELEASED, Kind.EXTENDED, Kind.RESERVED, Kind.DEAD_LETTERED, Kind.REMOVED
)
NUMBERED = RECORDED | MOVED | BORN | _kinds(Kind.TOLD, Kind.RESUMED, Kind.QUEUE_PURGED, Kind.RECEIVED)

#: The kinds of rows whose blob a column needs.
BLOBS: dict[str, Bools] = {
    **dict.fromkeys((*records.TEXTS, "body", "attributes"), RECORDED),
    "exchange": RECORDED | MOVED,
    "routing_key": RECORDED | MOVED,
    "consumer": LEASED,
    "detail": DETAILED,
    **dict.fromkeys(("target_vhost", "target_queue", "target_partition"), MOVED),
    "message_id": RELOCATED,
    "enqueued_at": RELOCATED,
}

_CAUSES = pa.array([None, *(cause.name.lower() for cause in sorted(Cause) if cause)])
_KINDS = pa.array([KIND_NAMES.get(number, f"kind_{number}") for number in range(256)])


class Decoder:
    def __init__(
        self,
        names: Sequence[str],
        *,
        tag: int,
        catalogue: Catalogue,
        partition: int = 0,
        selection: Selection | None = None,
        elsewhere: Catalogue | None = None,
    ) -> None:
        """`elsewhere` has the queues of all partitions by their ids, for messages that departed."""
        self.schema = arrow_schema(names)
        self.tag = tag
        self.partition = partition
        self.queues = _Queues(catalogue)
        self.elsewhere = elsewhere or {}
        self._selection = selection or Selection()
        self._sieve = Sieve(self._selection)
        self._blob_kinds = np.zeros(256, np.bool_)
        for name in names:
            self._blob_kinds |= BLOBS.get(name, np.False_)

    def read(self, segment: SegmentBytes, span: Span) -> Iterator[pa.RecordBatch]:
        """All that is wanted of a span, in order; no batch is empty."""
        if self._selection.is_nothing:
            return
        if self._selection.is_everything and self._blob_kinds[Kind.PUBLISHED]:
            for chunk in commits.whole(segment, span):
                yield from self._batches(chunk, None)
            return
        for chunk in commits.rows(segment, span):
            mask = self._sieve.mask(chunk.rows)
            if mask is not None and not mask.any():
                continue
            wanted = self._blob_kinds[chunk.rows["kind"]]
            if mask is not None:
                wanted &= mask
            if not wanted.any():
                yield from self._batches(chunk, mask)
                continue
            borders = np.concatenate(([0], np.cumsum(chunk.row_counts)))
            has_wanted = np.diff(np.concatenate(([0], np.cumsum(wanted)))[borders]) > 0
            for first, after in _portions(np.where(has_wanted, chunk.lengths, 0)):
                part = chunk.part(first, after).with_blobs(segment, np.flatnonzero(has_wanted[first:after]))
                yield from self._batches(part, None if mask is None else mask[borders[first] : borders[after]])

    def _batches(self, chunk: Chunk, mask: Bools | None) -> Iterator[pa.RecordBatch]:
        rows = Events(self, chunk, mask)
        for some in rows.portions():
            yield pa.RecordBatch.from_arrays([COLUMNS[name](some) for name in self.schema.names], schema=self.schema)


def _portions(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Neighbours which together have about MAX_BLOB_BYTES at most, as (first, after)."""
    numbers = np.cumsum(sizes) // MAX_BLOB_BYTES
    borders = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(sizes)]
    yield from ((first, after) for first, after in pairwise(borders) if after > first)


class _Queues:
    """Names of queues by their number."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._numbers = np.array(sorted(catalogue), np.int64)
        known = [catalogue[number] for number in self._numbers.tolist()]
        self.vhosts = pa.array([one[0] for one in known], pa.string())
        self.names = pa.array([one[1] for one in known], pa.string())
        self.tiers = pa.array([one[2] for one in known], pa.string())
        self._slots: npt.NDArray[np.int32] | None = None
        highest = int(self._numbers[-1]) if known else 0
        if highest < 1 << 22:  # a table costs less than a search
            self._slots = np.full(highest + 2, -1, np.int32)
            self._slots[self._numbers] = np.arange(len(known))

    def slots(self, numbers: npt.NDArray[np.uint32]) -> pa.Array:
        """Where the names of these stand; null where there are none."""
        if self._slots is not None:
            slots = self._slots[np.minimum(numbers, len(self._slots) - 1)]
        else:
            slots = np.minimum(np.searchsorted(self._numbers, numbers), len(self._numbers) - 1).astype(np.int32)
            slots[self._numbers[slots] != numbers] = -1
        return records.fixed(pa.int32(), slots, slots >= 0)


class Events:
    """The wanted rows of a chunk, and what several columns need of them."""

    def __init__(self, decoder: Decoder, chunk: Chunk, mask: Bools | None) -> None:
        self.decoder = decoder
        self._chunk = chunk
        commit = np.repeat(np.arange(len(chunk.positions)), chunk.row_counts)
        starts = np.cumsum(chunk.row_counts) - chunk.row_counts
        self.rows = chunk.rows
        self.index = np.arange(len(chunk.rows)) - starts[commit]
        if mask is not None:
            self.rows, self.index, commit = self.rows[mask], self.index[mask], commit[mask]
        self.commit = commit
        self.count = len(self.rows)

    def portions(self) -> Iterator[Events]:
        """Batches stay small enough for Spark, also when a single commit is very large."""
        if not self.count:
            return
        sizes = np.where(RECORDED[self.kind], self.rows["blob_size"], 0).astype(np.int64)
        # Messages of several queues share their bytes in the chunk, and not in the batch.
        if max(len(self._chunk.data), int(sizes.sum())) <= 2 * MAX_BLOB_BYTES:
            yield self
            return
        for first, after in _portions(sizes):
            yield self._slice(first, after)

    def _slice(self, first: int, after: int) -> Events:
        part = object.__new__(Events)
        part.decoder, part._chunk = self.decoder, self._chunk
        part.rows, part.index = self.rows[first:after], self.index[first:after]
        part.commit, part.count = self.commit[first:after], after - first
        return part

    @cached_property
    def kind(self) -> npt.NDArray[np.uint8]:
        return np.ascontiguousarray(self.rows["kind"])

    @cached_property
    def time_ms(self) -> Ints:
        return self.rows["at_ms"].astype(np.int64)

    @property
    def position(self) -> Ints:
        return self._chunk.positions[self.commit]

    @cached_property
    def blobs(self) -> records.Blobs:
        starts = self._chunk.bases[self.commit] + self.rows["blob_offset"]
        return records.Blobs(self._chunk.data, starts, self.rows["blob_size"].astype(np.int64))

    @cached_property
    def published(self) -> records.Records:
        return records.Records(self.blobs, np.flatnonzero(RECORDED[self.kind]), self.count)

    @cached_property
    def routes(self) -> records.Routes:
        is_detailed = DETAILED[self.kind]
        has_route = is_detailed & MOVED[self.kind] & (self.rows["flags"] & HAS_ROUTE != 0)
        return records.Routes(self.blobs, is_detailed & ~has_route, has_route)

    @cached_property
    def queue_slots(self) -> pa.Array:
        return self.decoder.queues.slots(self.rows["queue"])

    @cached_property
    def bound_for(self) -> Ints | None:
        """Ids of queues of other partitions, 0 where none is meant; None if nothing departed."""
        return self.routes.bound_for()

    def target_names(self, at: int) -> pa.Array:
        """Of the queue that a message went to: the virtual host (0) or the name (1)."""
        queues = self.decoder.queues
        names = (queues.vhosts, queues.names)[at]
        here = names.take(queues.slots(np.where(MOVED[self.kind], self.rows["target"], 0)))
        if self.bound_for is None:
            return here
        known = {id: self.decoder.elsewhere.get(id) for id in np.unique(self.bound_for).tolist() if id}
        said = [None if (name := known.get(id)) is None else name[at] for id in self.bound_for.tolist()]
        departed = pa.array(self.bound_for != 0)
        return pc.if_else(departed, pa.array(said, pa.string()), here)

    @property
    def target_partition(self) -> Ints:
        own = np.full(self.count, self.decoder.partition, np.int64)
        if self.bound_for is None:
            return own
        return np.where(self.bound_for != 0, self.bound_for >> NUMBER_BITS, own)

    @cached_property
    def birth(self) -> tuple[Ints, Ints, Bools]:
        """When each message was first published and under which number, and for which rows that is known."""
        rows, kind = self.rows, self.kind
        expires_ms = rows["expires_ms"]
        number = rows["seq"].astype(np.int64)
        enqueued_ms = np.where((BORN | MOVED | ARRIVED)[kind], expires_ms & TIME_MASK, 0).astype(np.int64)
        is_published = PUBLISHED[kind]
        np.copyto(enqueued_ms, self.time_ms, where=is_published)
        is_moved = (MOVED | ARRIVED)[kind]
        if is_moved.any():
            np.copyto(number, rows["due_ms"].astype(np.int64), where=is_moved)
        is_renumbered = BORN[kind] & (rows["flags"] & HAS_NUMBER != 0)
        if is_renumbered.any():
            high = (expires_ms >> np.uint64(TIME_BITS)).astype(np.int64) << 32
            np.copyto(number, high | rows["target"], where=is_renumbered)
        in_records = RELOCATED[kind] & (enqueued_ms == 0)  # by a version whose rows did not say
        if in_records.any():
            where = np.flatnonzero(in_records)
            number[where], enqueued_ms[where] = self.blobs.births(where)
        return enqueued_ms, number, (enqueued_ms != 0) | is_published

    @cached_property
    def tags(self) -> Ints | None:
        """Of the stores that messages were born in; None if it is this one for all of them."""
        rows, kind = self.rows, self.kind
        is_foreign = BORN[kind] & (rows["flags"] & BORN_ELSEWHERE != 0)
        is_arrived, is_moved = ARRIVED[kind], MOVED[kind] & (rows["receives"] != 0)
        if not (is_foreign.any() or is_arrived.any() or is_moved.any()):
            return None
        low = (rows["due_ms"] >> np.uint64(TIME_BITS)).astype(np.int64)
        high = (rows["flags"].astype(np.int64) >> 1 & 3) << 24
        tags = np.full(self.count, self.decoder.tag, np.int64)
        np.copyto(tags, high | rows["priority"].astype(np.int64) << 16 | low, where=is_foreign)
        np.copyto(tags, rows["lease"].astype(np.int64), where=is_arrived)
        np.copyto(tags, rows["receives"].astype(np.int64), where=is_moved)
        return tags

    @cached_property
    def due_ms(self) -> Ints:
        """Above the time, rows of messages that were born elsewhere have a part of a tag."""
        return (self.rows["due_ms"] & np.uint64(TIME_MASK)).astype(np.int64)


def message_ids(enqueued_ms: Ints, tag: int, numbers: Ints, tags: Ints | None = None) -> npt.NDArray[np.uint8]:
    """Ids as core.message makes them, 36 characters each. `tags`: if not all have the same."""
    text = np.empty((len(numbers), 36), np.uint8)
    text[:] = _pattern(tag)
    for other in [] if tags is None else np.unique(tags[tags != tag]).tolist():
        text[tags == other] = _pattern(other)
    words = text.view(_ID_WORDS).reshape(-1)
    words["time_high"] = _HEX[enqueued_ms >> 32 & 0xFFFF]
    words["time_middle"] = _HEX[enqueued_ms >> 16 & 0xFFFF]
    words["time_low"] = _HEX[enqueued_ms & 0xFFFF]
    words["number_high"] = _HEX[numbers >> 32 & 0xFFFF]
    words["number_middle"] = _HEX[numbers >> 16 & 0xFFFF]
    words["number_low"] = _HEX[numbers & 0xFFFF]
    return text


def _pattern(tag: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer((message_id_prefix(0, tag) + "0" * 12).encode(), np.uint8)


#: Four hexadecimal digits of every number of two bytes, as the four bytes that they are.
_HEX = np.frombuffer("".join(f"{n:04x}" for n in range(1 << 16)).encode(), np.uint32)
_ID_WORDS = np.dtype(
    {
        "names": ["time_high", "time_middle", "time_low", "number_high", "number_middle", "number_low"],
        "formats": ["u4"] * 6,
        "offsets": [0, 4, 9, 24, 28, 32],
        "itemsize": 36,
    }
)


def _time(of_ms: Ints, valid: Bools | None = None) -> pa.Array:
    return records.fixed(pa.timestamp("us", tz="UTC"), of_ms * 1000, valid)


def _int(values: npt.NDArray[np.generic], valid: Bools | None = None) -> pa.Array:
    return records.fixed(pa.int32(), values.astype(np.int32), valid)


def _bigint(values: npt.NDArray[np.generic], valid: Bools | None = None) -> pa.Array:
    return records.fixed(pa.int64(), values.astype(np.int64), valid)


def _message_id(e: Events) -> pa.Array:
    enqueued_ms, number, is_known = e.birth
    return records.fixed_texts(message_ids(enqueued_ms, e.decoder.tag, number, e.tags), is_known)


def _visible_at(e: Events) -> pa.Array:
    due_ms = np.where(ARRIVED[e.kind], 0, e.due_ms)
    waits = RESUMED[e.kind] & np.isin(e.rows["priority"], WAITING)
    return _time(np.where(due_ms != 0, due_ms, e.time_ms), (RECORDED | _kinds(Kind.RELEASED))[e.kind] | waits)


def _lease(e: Events) -> pa.Array:
    is_leased = RESUMED[e.kind] & (e.rows["lease"] != 0)
    return _bigint(e.rows["lease"], _kinds(Kind.LEASED, Kind.ACKED, Kind.RESERVED)[e.kind] | is_leased)


def _deadline(e: Events) -> pa.Array:
    is_leased = RESUMED[e.kind] & (e.rows["lease"] != 0)
    return _time(e.due_ms, _kinds(Kind.LEASED, Kind.EXTENDED, Kind.RESERVED)[e.kind] | is_leased)


def _priority(e: Events) -> pa.Array:
    is_moved_with = MOVED[e.kind] & (e.rows["flags"] & HAS_PRIORITY != 0)
    return _int(e.rows["priority"], RECORDED[e.kind] | is_moved_with)


def _sender(e: Events) -> pa.Array:
    is_received = _kinds(Kind.RECEIVED)[e.kind]
    return _int(np.where(is_received, e.rows["lease"], e.rows["receives"]), ARRIVED[e.kind] | is_received)


def _expires_at(e: Events) -> pa.Array:
    expires_ms = np.where(PUBLISHED[e.kind], e.rows["expires_ms"], 0).astype(np.int64)
    return _time(expires_ms, expires_ms != 0)


def _of_message_or_route(name: str) -> Callable[[Events], pa.Array]:
    def column(e: Events) -> pa.Array:
        texts = e.published.texts(name)
        routed = e.routes.texts(name)
        return texts if routed is None else pc.coalesce(texts, routed)

    return column


def _text(name: str) -> Callable[[Events], pa.Array]:
    return lambda e: e.published.texts(name)


COLUMNS: dict[str, Callable[[Events], pa.Array]] = {
    "partition": lambda e: _int(np.full(e.count, e.decoder.partition)),
    "position": lambda e: _bigint(e.position),
    "index": lambda e: _int(e.index),
    "time": lambda e: _time(e.time_ms),
    "kind": lambda e: _KINDS.take(pa.array(e.kind)),
    "vhost": lambda e: e.decoder.queues.vhosts.take(e.queue_slots),
    "queue": lambda e: e.decoder.queues.names.take(e.queue_slots),
    "queue_number": lambda e: _int(e.rows["queue"], e.rows["queue"] != 0),
    "tier": lambda e: e.decoder.queues.tiers.take(e.queue_slots),
    "message": lambda e: _bigint(e.rows["seq"], NUMBERED[e.kind]),
    "message_id": _message_id,
    "priority": _priority,
    **{name: _text(name) for name in records.TEXTS},
    "exchange": _of_message_or_route("exchange"),
    "routing_key": _of_message_or_route("routing_key"),
    "size": lambda e: _int(e.rows["blob_size"], RECORDED[e.kind]),
    "lease": _lease,
    "consumer": lambda e: e.blobs.shared_texts(LEASED[e.kind]),
    "receive_count": lambda e: _int(e.rows["receives"], (LEASED | RESUMED)[e.kind]),
    "reason": lambda e: _CAUSES.take(pa.array(e.rows["cause"])),
    "detail": lambda e: e.routes.texts("detail"),
    "enqueued_at": lambda e: _time(e.birth[0], e.birth[2]),
    "visible_at": _visible_at,
    "deadline": _deadline,
    "expires_at": _expires_at,
    "target_vhost": lambda e: e.target_names(0),
    "target_queue": lambda e: e.target_names(1),
    "target_partition": lambda e: _int(e.target_partition, MOVED[e.kind]),
    "target_queue_number": lambda e: _int(e.rows["target"], MOVED[e.kind]),
    "target_message": lambda e: _bigint(e.rows["lease"], MOVED[e.kind]),
    "sender": _sender,
    "body": lambda e: e.published.bodies(),
    "attributes": lambda e: e.published.attributes(),
}
