"""Snapshot files: written aside, synced, renamed; read back only after the whole file was checked.

Chunks are streamed both ways, because a snapshot of a deep backlog has hundreds of megabytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import xxhash

from laneway.errors import JournalVersionUnknown
from laneway.journal.history.files import FileSystem, ReadableFiles
from laneway.journal.history.format import (
    CHUNK_LENGTH,
    CHUNKS_END,
    HEADER_BYTES,
    NEEDED,
    SNAPSHOT_END,
    SNAPSHOT_PARTIAL_NAME,
    VERSION,
    is_known,
    pack_snapshot_end,
    pack_snapshot_header,
    parse_snapshot_header,
    snapshot_name,
)

PIECE_BYTES = 1 << 20
SYNC_EVERY_BYTES = 32 << 20  # in steps, so that a commit that comes along does not wait behind hundreds of megabytes


class Snapshot(NamedTuple):
    """What the journal must know of a snapshot; its chunks stay on disk."""

    position: int
    store: int
    replay_from: int
    needed: dict[int, int]  # older segments it refers to -> their first position
    file_bytes: int


class SnapshotDamaged(Exception):
    """The text says what is wrong; `offset` where."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset


def save(files: FileSystem, folder: str, snapshot: Snapshot, chunks: Iterable[bytes]) -> Snapshot:
    """Write the file durably under its name; the snapshot with its size. OSError leaves nothing behind."""
    partial = os.path.join(folder, SNAPSHOT_PARTIAL_NAME)
    remove_if_there(files, partial)
    file = files.open(partial, write=True, create=True)
    try:
        try:
            file_bytes = _write(files, file, parts(snapshot, chunks))
            files.sync(file)
        finally:
            files.close(file)
        files.rename(partial, os.path.join(folder, snapshot_name(snapshot.position)))
    except Exception:
        remove_if_there(files, partial)
        raise
    files.sync_folder(folder)
    return snapshot._replace(file_bytes=file_bytes)


def check(files: ReadableFiles, path: str) -> Snapshot:
    """Read the whole file; raises SnapshotDamaged or JournalVersionUnknown."""
    with _Source(files, path) as source:
        snapshot = source.start()
        for _ in source.chunks():
            pass
    return snapshot


def load(files: ReadableFiles, path: str) -> Iterator[bytes]:
    with _Source(files, path) as source:
        source.start()
        yield from source.chunks()


def first_chunk(files: ReadableFiles, path: str) -> bytes:
    """Only that, and so without the checksum of the whole file: for whoever can do with a guess if it is damaged."""
    with _Source(files, path) as source:
        source.start()
        for chunk in source.chunks():
            return chunk
    raise SnapshotDamaged(0, "it holds nothing")


def remove_if_there(files: FileSystem, path: str) -> None:
    try:
        files.remove(path)
    except FileNotFoundError:
        pass


def parts(snapshot: Snapshot, chunks: Iterable[bytes]) -> Iterator[bytes]:
    hasher = xxhash.xxh3_64()
    needed = b"".join(NEEDED.pack(number, first) for number, first in sorted(snapshot.needed.items()))
    header = pack_snapshot_header(snapshot.position, snapshot.store, snapshot.replay_from, len(snapshot.needed))
    hasher.update(header + needed)
    yield header + needed
    count = 0
    for chunk in chunks:
        length = CHUNK_LENGTH.pack(len(chunk))
        hasher.update(length)
        hasher.update(chunk)
        count += 1
        yield length
        yield chunk
    yield pack_snapshot_end(count, hasher)


def _write(files: FileSystem, file: int, parts: Iterator[bytes]) -> int:
    offset = synced = gathered_bytes = 0
    gathered: list[bytes] = []
    for part in parts:
        gathered.append(part)
        gathered_bytes += len(part)
        if gathered_bytes >= PIECE_BYTES:
            files.write(file, [b"".join(gathered)], offset)
            offset += gathered_bytes
            gathered, gathered_bytes = [], 0
            if offset - synced >= SYNC_EVERY_BYTES:
                files.sync(file)
                synced = offset
    if gathered:
        files.write(file, [b"".join(gathered)], offset)
    return offset + gathered_bytes


class _Source:
    """A snapshot file being read from front to back, and hashed on the way."""

    def __init__(self, files: ReadableFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._hasher = xxhash.xxh3_64()
        self._offset = 0  # of the next byte to hand out
        self._piece = b""
        self._at = 0

    def __enter__(self) -> _Source:
        try:
            self._file = self._files.open(self._path)
        except OSError as error:
            raise SnapshotDamaged(0, f"it cannot be opened ({error})") from error
        self._size = self._files.size(self._file)
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close(self._file)

    def start(self) -> Snapshot:
        data = self._take(HEADER_BYTES)
        header = parse_snapshot_header(data)
        if header is None:
            raise SnapshotDamaged(0, "its header does not check out")
        if not is_known(header.version):
            raise JournalVersionUnknown(
                f"{self._path} has format version {header.version}; this Laneway reads version {VERSION}. "
                "Use the Laneway that wrote it, or a newer one.",
                file=self._path,
                version=header.version,
            )
        needed = dict(NEEDED.iter_unpack(self._take(header.needed_count * NEEDED.size)))
        return Snapshot(header.position, header.store, header.replay_from, needed, self._size)

    def chunks(self) -> Iterator[bytes]:
        count = 0
        while True:
            length_at = self._offset
            (length,) = CHUNK_LENGTH.unpack(self._take(CHUNK_LENGTH.size))
            if length == CHUNKS_END:
                break
            if length > self._size - self._offset:
                raise SnapshotDamaged(length_at, f"a chunk of {length} bytes does not fit in the file")
            yield self._take(length)
            count += 1
        rest = SNAPSHOT_END.size - CHUNK_LENGTH.size
        stated_count = self._take(rest // 2)
        expected = self._hasher.intdigest()
        stated = self._take(rest // 2)
        if int.from_bytes(stated, "little") != expected or int.from_bytes(stated_count, "little") != count:
            raise SnapshotDamaged(self._offset - rest, "its checksum is wrong")
        if self._offset != self._size:
            raise SnapshotDamaged(self._offset, "there are bytes after its end")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._piece):
            left = self._piece[self._at :]
            try:
                more = self._files.read(self._file, max(size - len(left), PIECE_BYTES), self._offset + len(left))
            except OSError as error:
                raise SnapshotDamaged(self._offset, f"it cannot be read ({error})") from error
            self._piece = left + more
            self._at, end = 0, size
            if len(self._piece) < size:
                raise SnapshotDamaged(self._size, "it ends too early")
        taken = self._piece[self._at : end]
        self._at = end
        self._offset += size
        self._hasher.update(taken)
        return taken
