"""The bytes of a journal folder: segment files, the commits in them, snapshots. Packed and unpacked only here.

    folder      lock                      held with flock while the journal is open; contains the holder's process id
                0000000000000001.segment  history, oldest first; numbers count up from 1 and are never reused
                0000000000000002.segment
                snapshot-0000000000000077 the state after commit 77; replay goes on with commit 78
                spare                     preallocated, becomes the next segment by renaming
                snapshot.partial          being written

    segment     0 segment header          64 bytes
               64 commit                  each starts at a multiple of 64 bytes
                … commit
                … zeros                   preallocated, not yet written; cut off once the next segment has begun

    segment     0 u32 magic "LWsg"        ─┐ these 8 bytes and the last 8 stay where they are in every version,
    header      4 u16 version              │ so that a version from the future is recognised as such
                6 u16 0                   ─┘
                8 u64 segment number      as in the file's name
               16 u64 first position      of the first commit in it
               24 u64 store               drawn once per folder; the same in all its files
               32 u64 epoch               when the segment was begun
               40 u64 file size           when the segment was begun; until the next one begins it never gets smaller
               48 u64 0
               56 u64 checksum            xxh3_64 of the 56 bytes before

    commit      0 commit header           64 bytes
               64 blobs                   blob_bytes: records, names, documents, in the order of the rows; messages
                                          that are one message in several queues share a record
                … zeros                   to a multiple of 64
                … rows                    64 bytes each (core/rows.py); blob offsets count from the commit's start
                … mark                    64 bytes: zeros, or later a header of kind MARK or LAST_MARK

    commit      0 u32 magic "LWcm"
    header      4 u16 version
    or mark     6 u16 kind                COMMIT, MARK, LAST_MARK below
                8 u64 position            1, 2, 3, …; a mark has that of its commit
               16 u64 epoch               never falls
               24 u64 durable             the last position known to be durable when this was written
               32 u32 length              of the commit, this header and the mark included; 64 in a mark
               36 u32 blob_bytes
               40 u32 row_count
               44 u32 event_count
               48 u64 body checksum       xxh3_64 from the end of this header to the mark
               56 u64 checksum            xxh3_64 of the 56 bytes before, seeded with store ^ location

`durable` is how recovery tells a torn tail from damage. A commit that does not check out, and that no later header
calls durable, was never confirmed: it is cut. One that a later header or mark calls durable had been there: damage.
The seed ties a header to its very place, so that a message body which happens to hold a piece of a journal, this one's
own included, can never be taken for a commit.

    snapshot    0 snapshot header         64 bytes
               64 needed segments         needed_count × (u64 segment number, u64 first position): older segments
                                          that hold records the snapshot refers to
                … chunks                  each u32 length, bytes
                … u32 0xFFFFFFFF, u64 chunk count, u64 xxh3_64 of everything before

    snapshot    0 u32 magic "LWsn", u16 version, u16 0
    header      8 u64 position
               16 u64 store
               24 u64 replay_from         the segment with which replay begins; it and all after it must be there
               32 u32 needed_count, u32 0
               40 16 bytes 0
               56 u64 checksum            xxh3_64 of the 56 bytes before

To change any of this: raise VERSION; keep reading what older versions wrote (branch on the version in the segment or
snapshot header, commits of one segment all have its version); begin a new segment when opening a folder whose last
segment is older; extend tests/journal/test_segment_format.py with a transcript of the new bytes beside the old; say in
docs/journal.md from which version one can upgrade. Event rows and message records are part of the version too.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

#: 2: the props of a record may hold a property list of AMQP as it was published (core/message.py).
#: 3: rows of a commit may share a record, so that those of an event need not follow one another (core/rows.py).
VERSION = 3
OLDEST_VERSION = 1  # that is still read

COMMIT, MARK, LAST_MARK = 1, 2, 3  # LAST_MARK: the history goes on in the next segment

UNIT_BYTES = 64  # everything begins at a multiple of this
HEADER_BYTES = 64
MAX_COMMIT_BYTES = 2 << 30
MAX_SEGMENT_BYTES = 1 << 30  # where a commit may begin; the two together keep every offset below 4 GiB
NO_MARK = bytes(HEADER_BYTES)

SEGMENT_MAGIC = b"LWsg"
COMMIT_MAGIC = b"LWcm"
SNAPSHOT_MAGIC = b"LWsn"

_SEGMENT = struct.Struct("<4sHHQQQQQ8x")
_COMMIT = struct.Struct("<4sHHQQQIIIIQ")
_SNAPSHOT = struct.Struct("<4sHHQQQI4x16x")
_CHECKSUM = struct.Struct("<Q")
NEEDED = struct.Struct("<QQ")
CHUNK_LENGTH = struct.Struct("<I")
SNAPSHOT_END = struct.Struct("<IQQ")
CHUNKS_END = 0xFFFFFFFF

_CHECKED_BYTES = HEADER_BYTES - _CHECKSUM.size
assert _SEGMENT.size == _COMMIT.size == _SNAPSHOT.size == _CHECKED_BYTES

checksum = xxhash.xxh3_64_intdigest


def is_known(version: int) -> bool:
    return OLDEST_VERSION <= version <= VERSION


class SegmentHeader(NamedTuple):
    version: int
    number: int
    first_position: int
    store: int
    epoch: int
    begun_bytes: int


class CommitHeader(NamedTuple):
    kind: int
    position: int
    epoch: int
    durable: int
    length: int
    blob_bytes: int
    row_count: int
    event_count: int
    body_checksum: int


class Sealed(NamedTuple):
    """A commit that waits to be written: its pieces and the place kept for it."""

    location: int
    length: int
    position: int
    epoch: int
    event_count: int
    blob_bytes: int
    blobs: list[bytes]
    rows: list[bytes]


class SnapshotHeader(NamedTuple):
    version: int
    position: int
    store: int
    replay_from: int
    needed_count: int


def pack_segment_header(
    number: int, first_position: int, store: int, epoch: int, begun_bytes: int, version: int = 0
) -> bytes:
    """Of this version unless another one is given."""
    version = version or VERSION
    return _with_checksum(_SEGMENT.pack(SEGMENT_MAGIC, version, 0, number, first_position, store, epoch, begun_bytes))


def parse_segment_header(data: bytes) -> SegmentHeader | None:
    """None when these are not the bytes of an undamaged segment header; the version may still be an unknown one."""
    if not _is_intact(data, SEGMENT_MAGIC):
        return None
    _, version, _, number, first_position, store, epoch, begun_bytes = _SEGMENT.unpack_from(data)
    return SegmentHeader(version, number, first_position, store, epoch, begun_bytes)


def pack_snapshot_header(position: int, store: int, replay_from: int, needed_count: int) -> bytes:
    return _with_checksum(_SNAPSHOT.pack(SNAPSHOT_MAGIC, VERSION, 0, position, store, replay_from, needed_count))


def parse_snapshot_header(data: bytes) -> SnapshotHeader | None:
    if not _is_intact(data, SNAPSHOT_MAGIC):
        return None
    _, version, _, position, store, replay_from, needed_count = _SNAPSHOT.unpack_from(data)
    return SnapshotHeader(version, position, store, replay_from, needed_count)


def pack_commit_header(header: CommitHeader, *, store: int, location: int) -> bytes:
    packed = _COMMIT.pack(COMMIT_MAGIC, VERSION, *header)
    return packed + _CHECKSUM.pack(checksum(packed, store ^ location))


def pack_commit(sealed: Sealed, *, store: int, durable: int) -> tuple[bytes, bytes]:
    """The header, and what stands between it and the mark."""
    body = b"".join([*sealed.blobs, bytes(-sealed.blob_bytes % UNIT_BYTES), *sealed.rows])
    header = CommitHeader(
        COMMIT,
        sealed.position,
        sealed.epoch,
        durable,
        sealed.length,
        sealed.blob_bytes,
        sum(map(len, sealed.rows)) // UNIT_BYTES,
        sealed.event_count,
        checksum(body),
    )
    return pack_commit_header(header, store=store, location=sealed.location), body


def pack_mark(kind: int, position: int, epoch: int, *, store: int, location: int) -> bytes:
    header = CommitHeader(kind, position, epoch, position, HEADER_BYTES, 0, 0, 0, 0)
    return pack_commit_header(header, store=store, location=location)


def parse_commit_header(data: bytes | memoryview, at: int, *, store: int, location: int) -> CommitHeader | None:
    """The header of a commit or mark at `at`, whose place in the folder is `location`; None if there is none."""
    end = at + _CHECKED_BYTES
    if data[at : at + 4] != COMMIT_MAGIC or len(data) < at + HEADER_BYTES:
        return None
    if _CHECKSUM.unpack_from(data, end)[0] != checksum(data[at:end], store ^ location):
        return None
    _, version, *fields = _COMMIT.unpack_from(data, at)
    header = CommitHeader(*fields)
    return header if is_known(version) and _is_sensible(header) else None


def rows_at(header: CommitHeader) -> int:
    """Where in the commit its rows begin; they end where the mark begins."""
    return header.length - HEADER_BYTES - header.row_count * UNIT_BYTES


def commit_length(blob_bytes: int, row_bytes: int) -> int:
    return HEADER_BYTES + blob_bytes + -blob_bytes % UNIT_BYTES + row_bytes + HEADER_BYTES


def pack_snapshot_end(chunk_count: int, hasher: xxhash.xxh3_64) -> bytes:
    start = SNAPSHOT_END.pack(CHUNKS_END, chunk_count, 0)[: -_CHECKSUM.size]
    hasher.update(start)
    return start + _CHECKSUM.pack(hasher.intdigest())


def _is_sensible(header: CommitHeader) -> bool:
    if header.kind in (MARK, LAST_MARK):
        return header.length == HEADER_BYTES
    expected = commit_length(header.blob_bytes, header.row_count * UNIT_BYTES)
    return header.kind == COMMIT and header.length == expected


def _with_checksum(packed: bytes) -> bytes:
    return packed + _CHECKSUM.pack(checksum(packed))


def _is_intact(data: bytes, magic: bytes) -> bool:
    if len(data) < HEADER_BYTES or data[:4] != magic:
        return False
    return bool(_CHECKSUM.unpack_from(data, _CHECKED_BYTES)[0] == checksum(data[:_CHECKED_BYTES]))


# File names.

LOCK_NAME = "lock"
SPARE_NAME = "spare"
SNAPSHOT_PARTIAL_NAME = "snapshot.partial"


def segment_name(number: int) -> str:
    return f"{number:016d}.segment"


def snapshot_name(position: int) -> str:
    return f"snapshot-{position:016d}"


def segment_numbers(names: list[str]) -> list[int]:
    """The numbers of the segments among the files of a folder, lowest first."""
    return sorted(
        int(name[:16]) for name in names if len(name) == 24 and name.endswith(".segment") and _digits(name[:16])
    )


def snapshot_positions(names: list[str]) -> list[int]:
    """The positions of the snapshots among the files of a folder, newest first."""
    return sorted(
        (int(name[9:]) for name in names if len(name) == 25 and name.startswith("snapshot-") and _digits(name[9:])),
        reverse=True,
    )


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
