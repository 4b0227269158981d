"""What stands in blobs, as Arrow arrays: texts, bodies and attributes of messages, names of consumers, details.

An Arrow array of strings is one run of bytes and a list of offsets into it, each string ending where the next begins.
The strings of records do not follow one another; but if the offsets are start, end, start, end, … every second string
of that array is one of ours, and `take` gathers those, in C. So nothing is cut out in Python.
"""

from __future__ import annotations

import base64
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from laneway.core.message import FOREIGN, JSON_TYPE, RECORD_PREFIX_BYTES, amqp_attributes, decode_props
from laneway.pipeline.commits import Ints
from laneway.pipeline.selection import Bools

#: In the order in which a record has them (core/message.py).
TEXTS = ("content_type", "group", "key", "tenant", "dedup_id", "correlation_id", "exchange", "routing_key")
_LENGTHS_BYTES = 2 * len(TEXTS)
_IN_PROPERTY_LISTS = ("content_type", "correlation_id")  # of what came over AMQP
_PAIR = tuple[str, str]


def fixed(kind: pa.DataType, values: npt.NDArray[Any], valid: Bools | None = None) -> pa.Array:
    """Numbers as Arrow has them, null where they are not valid; nothing is converted or checked."""
    return pa.Array.from_buffers(kind, len(values), [_bits(valid), pa.py_buffer(np.ascontiguousarray(values))])


def fixed_texts(texts: npt.NDArray[np.uint8], valid: Bools) -> pa.Array:
    """Strings that all have the same length, one a row of `texts`."""
    count, width = texts.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.string(), count, [_bits(valid), pa.py_buffer(offsets), pa.py_buffer(texts)])


def _bits(valid: Bools | None) -> pa.Buffer | None:
    return None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))


class Blobs:
    """The blob of each row: where it begins in `data`, and its size."""

    def __init__(self, data: bytes, starts: Ints, sizes: Ints) -> None:
        self._bytes = data
        self._array = np.frombuffer(data, np.uint8)
        self.starts = starts
        self.sizes = sizes
        self.count = len(starts)

    def pieces(self, kind: pa.DataType, starts: Ints, ends: Ints, which: Ints, valid: Bools | None) -> pa.Array:
        """For each row the piece numbered `which`, null where that is not valid."""
        if (starts[1:] < ends[:-1]).any():  # messages share records: each piece once, in the order in which they stand
            starts, first_of, number_of = np.unique(starts, return_index=True, return_inverse=True)
            ends, which = ends[first_of], number_of[which] if len(which) else which
        first, last = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2] = starts - first
        offsets[1::2] = ends - first
        window = pa.py_buffer(self._bytes)[first:last]
        source = pa.Array.from_buffers(kind, max(len(offsets) - 1, 0), [None, pa.py_buffer(offsets), window])
        return source.take(fixed(pa.int32(), (2 * which).astype(np.int32), valid))

    def numbers(self, at: Ints, kind: str) -> npt.NDArray[Any]:
        """A number, or a few bytes, from each of these places."""
        dtype = np.dtype(kind)
        if len(self._array) < dtype.itemsize:
            return np.zeros(len(at), dtype)
        everywhere = np.ndarray((len(self._array) - dtype.itemsize + 1,), dtype, self._array, strides=(1,))
        return np.asarray(everywhere[at])

    def bytes_at(self, start: int, size: int) -> bytes:
        return self._bytes[start : start + size]

    def births(self, where: Ints) -> tuple[Ints, Ints]:
        """(number, enqueued_ms) from the records of these rows."""
        at = self.starts[where]
        return self.numbers(at + 8, "<u8").astype(np.int64), self.numbers(at + 16, "<u8").astype(np.int64)

    def shared(self, mask: Bools) -> tuple[Ints, Ints, Ints]:
        """(starts, ends, which) of the blobs of these rows: an event's rows share one, which then is there once."""
        starts, sizes = self.starts[mask], self.sizes[mask]
        is_new = np.empty(len(starts), np.bool_)
        is_new[:1] = True
        is_new[1:] = starts[1:] != starts[:-1]
        which = np.zeros(self.count, np.int64)
        which[mask] = np.cumsum(is_new) - 1
        return starts[is_new], (starts + sizes)[is_new], which

    def shared_texts(self, mask: Bools) -> pa.Array:
        mask = mask & (self.sizes > 0)
        if not mask.any():
            return pa.nulls(self.count, pa.string())
        return self.pieces(pa.string(), *self.shared(mask), mask)


class Records:
    """The records of published messages; `where` are their rows."""

    def __init__(self, blobs: Blobs, where: Ints, count: int) -> None:
        self._blobs = blobs
        self._where = where
        self._count = count
        self._starts = blobs.starts[where]

    @cached_property
    def _props_sizes(self) -> Ints:
        return self._blobs.numbers(self._starts + 4, "<u4").astype(np.int64)

    @cached_property
    def _lengths(self) -> Ints:
        """A row of lengths for each message; zeros for one that is nothing but a body."""
        at = self._starts + RECORD_PREFIX_BYTES
        has_props = self._props_sizes > 0
        lengths = self._blobs.numbers(np.where(has_props, at, 0), f"V{_LENGTHS_BYTES}").view("<u2")
        return lengths.reshape(-1, len(TEXTS)).astype(np.int64) * has_props[:, None]

    @cached_property
    def _text_ends(self) -> Ints:
        at = self._starts + RECORD_PREFIX_BYTES + _LENGTHS_BYTES
        return np.cumsum(self._lengths, axis=1) + at[:, None]

    def texts(self, name: str) -> pa.Array:
        at = TEXTS.index(name)
        lengths = self._lengths[:, at]
        is_plain = self._props_sizes == 0
        if name == "content_type" and is_plain.any():
            plain = pa.array([JSON_TYPE]).take(self._scattered(np.zeros(len(lengths), np.int64), is_plain))
            texts = pc.coalesce(plain, self._texts(at, lengths)) if lengths.any() else plain
        else:
            texts = self._texts(at, lengths)
        if name in _IN_PROPERTY_LISTS and self._is_amqp.any():
            texts = pc.coalesce(texts, self._in_property_lists(name))
        return texts

    @cached_property
    def _is_amqp(self) -> Bools:
        """Which messages came over AMQP: theirs is a property list as it was published (core/message.py)."""
        ends = self._starts + RECORD_PREFIX_BYTES + self._props_sizes
        starts = self._text_ends[:, -1]
        has_rest = (self._props_sizes > 0) & (starts < ends)
        return np.asarray(has_rest & (self._blobs.numbers(np.where(has_rest, starts, 0), "u1") == FOREIGN[0]))

    def _in_property_lists(self, name: str) -> pa.Array:
        """A property that messages of AMQP have in their lists, null for all others. Decoded message by message, as
        every list is different."""
        found = [getattr(decode_props(block), name) or None for block in self._amqp_blocks]
        values = pa.array(found, pa.string())
        return values.take(self._scattered(np.cumsum(self._is_amqp) - 1, self._is_amqp))

    @cached_property
    def _amqp_blocks(self) -> list[bytes]:
        starts, sizes = self._starts[self._is_amqp] + RECORD_PREFIX_BYTES, self._props_sizes[self._is_amqp]
        return [self._blobs.bytes_at(int(at), int(size)) for at, size in zip(starts, sizes, strict=True)]

    def _texts(self, at: int, lengths: Ints) -> pa.Array:
        has_text = lengths > 0
        if not has_text.any():
            return pa.nulls(self._count, pa.string())
        ends = np.where(has_text, self._text_ends[:, at], self._starts)  # a plain record may end before its texts would
        return self._pieces(pa.string(), ends - lengths, ends, has_text)

    def bodies(self) -> pa.Array:
        starts = self._starts + RECORD_PREFIX_BYTES + self._props_sizes
        ends = self._starts + self._blobs.sizes[self._where]
        return self._pieces(pa.binary(), starts, ends, np.ones(len(starts), np.bool_))

    def attributes(self) -> pa.Array:
        """Decoded once for each different block; messages that look alike share theirs."""
        ends = self._starts + RECORD_PREFIX_BYTES + self._props_sizes
        starts = self._text_ends[:, -1]
        has_block = starts < ends
        kind = pa.map_(pa.string(), pa.string())
        if not has_block.any():
            return pa.nulls(self._count, kind)
        blocks = self._pieces(pa.binary(), np.minimum(starts, ends), ends, has_block).dictionary_encode()
        maps = pa.array([_attributes(block) for block in blocks.dictionary.to_pylist()], kind)
        return maps.take(blocks.indices)

    def _pieces(self, kind: pa.DataType, starts: Ints, ends: Ints, has_one: Bools) -> pa.Array:
        if len(self._where) == self._count:
            return self._blobs.pieces(kind, starts, ends, np.arange(self._count), has_one)
        which = np.zeros(self._count, np.int64)
        which[self._where] = np.arange(len(starts))
        valid = np.zeros(self._count, np.bool_)
        valid[self._where] = has_one
        return self._blobs.pieces(kind, starts, ends, which, valid)

    def _scattered(self, values: Ints, valid: Bools) -> pa.Array:
        everywhere, is_valid = np.zeros(self._count, np.int32), np.zeros(self._count, np.bool_)
        everywhere[self._where], is_valid[self._where] = values, valid
        return fixed(pa.int32(), everywhere, is_valid)


def _attributes(block: bytes) -> list[_PAIR] | None:
    found = amqp_attributes(block) if block[:1] == FOREIGN else msgspec.msgpack.decode(block).get("a")
    return [(str(name), _as_text(value)) for name, value in found.items()] if found else None


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return msgspec.json.encode(value).decode()


class Routes:
    """Details of rows that have one, as they are or with the exchange and the routing key that led somewhere."""

    def __init__(self, blobs: Blobs, has_detail: Bools, has_route: Bools) -> None:
        self._blobs = blobs
        self._has_detail = has_detail
        self._has_route = has_route

    @cached_property
    def _blocks(self) -> tuple[list[Any], pa.Array] | None:
        """What the blobs say, each once, and which of them a row has."""
        if not self._has_route.any():
            return None
        blocks = self._blobs.pieces(pa.binary(), *self._blobs.shared(self._has_route), self._has_route)
        blocks = blocks.dictionary_encode()
        return [msgspec.msgpack.decode(block) for block in blocks.dictionary.to_pylist()], blocks.indices

    @cached_property
    def _routes(self) -> dict[str, pa.Array] | None:
        if self._blocks is None:
            return None
        decoded, indices = self._blocks
        columns = {
            name: pa.array([block[at] or None for block in decoded], pa.string())
            for at, name in enumerate(("detail", "exchange", "routing_key"))
        }
        return {name: column.take(indices) for name, column in columns.items()}

    def bound_for(self) -> Ints | None:
        """The ids of queues of other partitions that messages are on their way to, 0: none; None if none is."""
        if self._blocks is None:
            return None
        decoded, indices = self._blocks
        ids = pa.array([block[4] if len(block) > 4 else 0 for block in decoded], pa.int64())
        if not any(ids.to_pylist()):
            return None
        return np.asarray(pc.fill_null(ids.take(indices), 0).to_numpy(zero_copy_only=False), np.int64)

    def texts(self, name: str) -> pa.Array | None:
        """`detail` of all rows; `exchange` or `routing_key` of those that have one, None if none does."""
        routed = self._routes[name] if self._routes is not None else None
        if name != "detail":
            return routed
        texts = self._blobs.shared_texts(self._has_detail)
        return texts if routed is None else pc.coalesce(texts, routed)
