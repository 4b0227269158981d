"""Finding the commits in the bytes of a segment: headers one by one, rows of many commits as one numpy array.

Two ways through a segment. `whole` reads everything, in big pieces, and verifies the checksum of each commit. `rows`
reads only headers and rows and jumps over the blobs, which may be most of the bytes; what is needed of them is read
afterwards, by `Chunk.with_blobs`. A jump costs a read, so small blobs are read over.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from laneway.core.rows import ROW_BYTES
from laneway.journal.history.format import (
    COMMIT,
    HEADER_BYTES,
    CommitHeader,
    checksum,
    parse_commit_header,
    rows_at,
)
from laneway.journal.history.scan import damaged

#: Small enough that Spark has something to do while the next piece is decoded, large enough that Python hardly counts.
PIECE_BYTES = 4 << 20
MAX_CHUNK_ROWS = 32 << 10  # a chunk of rows ends with the commit that reaches this

#: core/rows.py draws it.
ROW_TYPE = np.dtype(
    [
        ("kind", "u1"),
        ("cause", "u1"),
        ("priority", "u1"),
        ("flags", "u1"),
        ("queue", "<u4"),
        ("seq", "<u8"),
        ("at_ms", "<u8"),
        ("due_ms", "<u8"),
        ("lease", "<u8"),
        ("expires_ms", "<u8"),
        ("receives", "<u4"),
        ("target", "<u4"),
        ("blob_offset", "<u4"),
        ("blob_size", "<u4"),
    ]
)
assert ROW_TYPE.itemsize == ROW_BYTES

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]


class SegmentBytes(Protocol):
    """One segment, wherever it is."""

    name: str  # for people: a path or an address
    number: int
    store: int
    jump_bytes: int  # reading over so much costs as much as another read
    near_bytes: int  # read at once where commits are small and only their rows are wanted

    def read(self, offset: int, size: int) -> bytes: ...


class Span(NamedTuple):
    """Whole commits of one segment: from the one that begins at `start` up to `end`."""

    segment: int
    start: int
    end: int


class Chunk(NamedTuple):
    """Neighbouring commits: what each header says, in columns, and the rows of all of them."""

    positions: Ints
    offsets: Ints  # in the segment
    lengths: Ints
    row_counts: Ints
    rows: Rows
    data: bytes  # holds the blobs of commits
    bases: Ints  # where in `data` each commit begins, or would; only those whose blobs were read matter

    def with_blobs(self, segment: SegmentBytes, commits: Ints) -> Chunk:
        """The same with the blobs of these commits, neighbours read in one go."""
        bases = np.zeros(len(self.positions), np.int64)
        starts = self.offsets[commits] + HEADER_BYTES
        ends = self.offsets[commits] + self.lengths[commits] - HEADER_BYTES - self.row_counts[commits] * ROW_BYTES
        is_far = starts[1:] > ends[:-1] + segment.jump_bytes
        borders = [0, *(np.flatnonzero(is_far) + 1).tolist(), len(commits)] if len(commits) else []
        parts = [bytes(HEADER_BYTES)]  # stands for the first commit's header, so that no base is below 0
        fill = HEADER_BYTES
        for first, after in pairwise(borders):
            start, end = int(starts[first]), int(ends[after - 1])
            some = commits[first:after]
            bases[some] = self.offsets[some] - start + fill
            parts.append(_read(segment, start, end - start))
            fill += end - start
        return self._replace(data=b"".join(parts), bases=bases)

    def part(self, first: int, after: int) -> Chunk:
        """Some of the commits, by their index."""
        borders = np.concatenate(([0], np.cumsum(self.row_counts)))
        some = slice(first, after)
        return Chunk(
            self.positions[some],
            self.offsets[some],
            self.lengths[some],
            self.row_counts[some],
            self.rows[borders[first] : borders[after]],
            self.data,
            self.bases[some],
        )


def whole(segment: SegmentBytes, span: Span) -> Iterator[Chunk]:
    """All commits with all their bytes, a piece at a time."""
    offset = span.start
    size = PIECE_BYTES
    while offset < span.end:
        data = _read(segment, offset, min(size, span.end - offset))
        size = PIECE_BYTES
        view = memoryview(data)
        found: list[CommitHeader] = []
        parts: list[memoryview] = []
        at = 0
        while len(data) - at >= HEADER_BYTES:
            header = _header(segment, data, at, offset + at)
            after = at + header.length
            if after > len(data):
                size = max(PIECE_BYTES, header.length)  # the next piece begins with it
                break
            if checksum(view[at + HEADER_BYTES : after - HEADER_BYTES]) != header.body_checksum:
                raise damaged(segment.name, offset + at, f"commit {header.position} does not check out")
            found.append(header)
            parts.append(view[at + rows_at(header) : after - HEADER_BYTES])
            at = after
        if found:
            chunk = _chunk(found, offset, b"".join(parts))
            yield chunk._replace(data=data, bases=chunk.offsets - offset)
            offset += at
        elif offset + size > span.end:
            raise damaged(segment.name, offset, f"its last commit does not end at byte {span.end}")


def rows(segment: SegmentBytes, span: Span) -> Iterator[Chunk]:
    """All commits with their headers and rows alone."""
    offset = chunk_at = span.start
    data, data_at = b"", offset  # what was read last, and where it stands
    found: list[CommitHeader] = []
    parts: list[memoryview] = []
    row_count = 0
    while offset < span.end:
        if not data_at <= offset <= data_at + len(data) - HEADER_BYTES:
            data, data_at = _read(segment, offset, min(segment.near_bytes, span.end - offset)), offset
        header = _header(segment, data, offset - data_at, offset)
        after = offset + header.length
        if after > span.end:
            raise damaged(segment.name, offset, f"commit {header.position} does not end before byte {span.end}")
        start = offset + rows_at(header)
        if after > data_at + len(data):
            # Not all of it was read. The next header is read along, which tells whether to jump once more.
            start_at = start if start - offset > segment.jump_bytes else offset
            size = after + HEADER_BYTES - start_at
            if start_at == offset:
                size = max(size, segment.near_bytes)
            data, data_at = _read(segment, start_at, min(size, span.end - start_at)), start_at
        parts.append(memoryview(data)[start - data_at : after - HEADER_BYTES - data_at])
        found.append(header)
        row_count += header.row_count
        offset = after
        if row_count >= MAX_CHUNK_ROWS:
            yield _chunk(found, chunk_at, b"".join(parts))
            chunk_at, found, parts, row_count = offset, [], [], 0
    if found:
        yield _chunk(found, chunk_at, b"".join(parts))


def _chunk(found: list[CommitHeader], offset: int, rows: bytes) -> Chunk:
    columns = np.array([(h.position, h.length, h.row_count) for h in found], np.int64)
    positions, lengths, row_counts = columns.T
    offsets = np.cumsum(lengths) - lengths + offset
    return Chunk(
        positions, offsets, lengths, row_counts, np.frombuffer(rows, ROW_TYPE), b"", np.zeros(len(found), np.int64)
    )


def _header(segment: SegmentBytes, data: bytes, at: int, offset: int) -> CommitHeader:
    header = parse_commit_header(data, at, store=segment.store, location=segment.number << 32 | offset)
    if header is None or header.kind != COMMIT:
        raise damaged(segment.name, offset, "no commit begins here that checks out")
    return header


def _read(segment: SegmentBytes, offset: int, size: int) -> bytes:
    data = segment.read(offset, size)
    if len(data) != size:
        raise damaged(segment.name, offset + len(data), f"it ends here, before byte {offset + size}")
    return data
