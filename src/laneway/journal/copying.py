"""Copying whole journals between a data folder and PostgreSQL, byte by byte: both have the same commits at the same
addresses, so snapshots and message ids stay as they are. What was copied is read again and compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import xxhash

from laneway.errors import Conflict, JournalDamaged, JournalLocked
from laneway.journal.history import follow, inspect
from laneway.journal.history.files import FileLocked, ReadableFiles, RealFiles
from laneway.journal.history.format import (
    HEADER_BYTES,
    LAST_MARK,
    LOCK_NAME,
    MARK,
    NO_MARK,
    CommitHeader,
    pack_mark,
    pack_segment_header,
    segment_name,
    snapshot_name,
    snapshot_positions,
)
from laneway.journal.history.recovery import Segment, read_segment
from laneway.journal.history.scan import SegmentScan, damaged
from laneway.journal.interface import Place

if TYPE_CHECKING:
    from laneway.journal.postgres import Database

PIECE_BYTES = 1 << 20


class Readable(NamedTuple):
    """A journal that is read as a folder."""

    files: ReadableFiles
    folder: str


class CopyReport(NamedTuple):
    """What was copied of a journal. Of two that are equal, all of this is."""

    store: int
    segment_count: int
    first_position: int
    last_position: int
    commit_count: int
    event_count: int
    snapshot_position: int  # 0: there is none
    digest: str  # of all commits and of the snapshot


class CopyTarget(Protocol):
    """Where one journal is written to."""

    def begin_segment(self, segment: Segment, store: int, used_bytes: int) -> None: ...

    def commit(self, offset: int, header: CommitHeader, data: bytes) -> None:
        """All but its mark."""

    def end_segment(self, last: tuple[int, CommitHeader] | None, *, is_last: bool) -> None: ...

    def snapshot(self, position: int, pieces: Iterator[bytes]) -> None: ...

    def end(self, store: int, epoch: int, position: int) -> None: ...


class _Walked(NamedTuple):
    segment: Segment
    store: int
    used_bytes: int
    is_last: bool
    commits: Iterator[tuple[int, CommitHeader, bytes]]


def read(source: Readable, target: CopyTarget | None = None) -> CopyReport:
    """Read a whole journal, and write it to a target if there is one. JournalDamaged if it is not sound."""
    files, folder = source
    end = follow.end(folder, files=files)
    digest = xxhash.xxh3_128()
    commit_count = event_count = segment_count = epoch = store = 0
    for walked in _segments(source, end):
        last: tuple[int, CommitHeader] | None = None
        if target is not None:
            target.begin_segment(walked.segment, walked.store, walked.used_bytes)
        for offset, header, data in walked.commits:
            digest.update(data)
            commit_count += 1
            event_count += header.event_count
            epoch, last = header.epoch, (offset, header)
            if target is not None:
                target.commit(offset, header, data)
        store, epoch = walked.store, max(epoch, walked.segment.epoch)
        segment_count += 1
        if target is not None:
            target.end_segment(last, is_last=walked.is_last)
    snapshot_position = next(iter(snapshot_positions(files.list_folder(folder))), 0)
    if snapshot_position:
        pieces = _digested(_pieces(source, snapshot_name(snapshot_position)), digest)
        if target is not None:
            target.snapshot(snapshot_position, pieces)
        for _ in pieces:
            pass
    if target is not None:
        target.end(store, epoch, end.position - 1)
    first = follow.first_position(folder, files=files)
    last_position, text = end.position - 1, digest.hexdigest()
    return CopyReport(store, segment_count, first, last_position, commit_count, event_count, snapshot_position, text)


def _segments(source: Readable, end: Place) -> Iterator[_Walked]:
    files, folder = source
    infos = follow.segments(folder, until=end, files=files)
    for info in infos:
        segment, store = read_segment(files, folder, info.number)
        path = os.path.join(folder, segment_name(info.number))
        with closing(_Closing(files, path)) as opened:
            scan = SegmentScan(files, path, opened.file, number=info.number, store=store)
            is_last = info.number == infos[-1].number
            yield _Walked(segment, store, info.used_bytes, is_last, _commits(scan, info.used_bytes))


class _Closing:
    def __init__(self, files: ReadableFiles, path: str) -> None:
        self._files, self.file = files, files.open(path)

    def close(self) -> None:
        self._files.close(self.file)


def _commits(scan: SegmentScan, used_bytes: int) -> Iterator[tuple[int, CommitHeader, bytes]]:
    offset = HEADER_BYTES
    while offset < used_bytes:
        found = scan.commit_at(offset)
        if found is None:
            raise damaged(scan.path, offset, "no commit that checks out begins here")
        yield offset, found.header, bytes(found.data[:-HEADER_BYTES])
        offset += found.header.length


def _pieces(source: Readable, name: str) -> Iterator[bytes]:
    files, folder = source
    with closing(_Closing(files, os.path.join(folder, name))) as opened:
        offset = 0
        while piece := files.read(opened.file, PIECE_BYTES, offset):
            yield piece
            offset += len(piece)


def _digested(pieces: Iterator[bytes], digest: xxhash.xxh3_128) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


# --- a data folder


@contextmanager
def locked(folder: str) -> Iterator[None]:
    """Nobody writes to it meanwhile."""
    files = RealFiles()
    try:
        file = files.lock(os.path.join(folder, LOCK_NAME))
    except FileLocked as holder:
        raise JournalLocked(
            f"the journal in {folder} is in use by process {holder}: stop that one first",
            folder=folder,
            pid=str(holder),
        ) from None
    try:
        yield
    finally:
        files.close(file)


class FolderTarget:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        os.makedirs(folder, mode=0o750, exist_ok=True)

    def begin_segment(self, segment: Segment, store: int, used_bytes: int) -> None:
        self._number, self._store = segment.number, store
        self._file = open(os.path.join(self._folder, segment_name(segment.number)), "xb")
        self._file.write(
            pack_segment_header(
                segment.number, segment.first_position, store, segment.epoch, used_bytes, segment.version
            )
        )

    def commit(self, offset: int, header: CommitHeader, data: bytes) -> None:
        self._file.write(data)
        self._file.write(NO_MARK)

    def end_segment(self, last: tuple[int, CommitHeader] | None, *, is_last: bool) -> None:
        if last is not None:
            offset, header = last
            at = offset + header.length - HEADER_BYTES
            kind = MARK if is_last else LAST_MARK
            self._file.seek(at)
            location = self._number << 32 | at
            self._file.write(pack_mark(kind, header.position, header.epoch, store=self._store, location=location))
        self._sync()

    def snapshot(self, position: int, pieces: Iterator[bytes]) -> None:
        self._file = open(os.path.join(self._folder, snapshot_name(position)), "xb")
        self._file.writelines(pieces)
        self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def end(self, store: int, epoch: int, position: int) -> None:
        RealFiles().sync_folder(self._folder)


def copy_to_folder(
    sources: list[Readable], folder: str, partition_folder: Callable[[str, int], str]
) -> list[CopyReport]:
    """All partitions, whole or not at all: under another name first."""
    if os.path.exists(folder) and os.listdir(folder):
        raise Conflict(f"{folder} is not empty: name a folder that is not there yet")
    partial = f"{folder.rstrip(os.sep)}.copying"
    if os.path.exists(partial):
        raise Conflict(f"{partial} is left of a copy that did not end: remove it first")
    copied = [read(one, FolderTarget(partition_folder(partial, n))) for n, one in enumerate(sources)]
    again = [read(Readable(RealFiles(), partition_folder(partial, n))) for n in range(len(sources))]
    _compare(copied, again, folder)
    os.rename(partial, folder)
    RealFiles().sync_folder(os.path.dirname(os.path.abspath(folder)))
    return copied


# --- PostgreSQL


def copy_to_database(sources: list[Readable], database: Database) -> list[CopyReport]:
    """All partitions, in one transaction."""
    from laneway.journal.postgres.files import PostgresFiles
    from laneway.journal.postgres.target import DatabaseTarget

    database.check_schema()
    if there := database.journals():
        raise Conflict(f"{database} has journals already, of {len(there)} partitions: name a database without any")
    with database.reading() as connection, connection.transaction():
        copied = [read(one, DatabaseTarget(connection, number)) for number, one in enumerate(sources)]
    again = [read(Readable(PostgresFiles(database, number), database.name)) for number in range(len(sources))]
    _compare(copied, again, database.name)
    return copied


def _compare(copied: list[CopyReport], again: list[CopyReport], where: str) -> None:
    for number, (one, other) in enumerate(zip(copied, again, strict=True)):
        if one != other:
            raise JournalDamaged(
                f"what was copied of partition {number} is not what is there: {one} and {other}; do not use {where}",
                file=where,
                offset=0,
            )


def check(source: Readable) -> None:
    """JournalDamaged unless it is sound."""
    report = inspect.check(source.folder, files=source.files)
    if report.problems:
        first = report.problems[0]
        raise JournalDamaged(
            f"{first.file} is damaged at byte {first.offset}: {first.what}. Nothing was copied; `laneway journal "
            "check` shows all that is wrong",
            file=first.file,
            offset=first.offset,
        )
