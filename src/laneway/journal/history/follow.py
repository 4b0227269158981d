"""Reading the history of a journal folder from outside: where commits begin, how far they go, what queues were called.

Reads only, takes no lock, works beside a running server. What it lets out is whole: a commit that is being written, or
that a crash tore, is behind the end. History that was dropped is a JournalGap, anything that should be there and is not
is JournalDamaged, with file and offset.

    places = where commits begin        end(), start(position), advance(place, until, …)
    what is there                       segments(), first_position(), catalogue(), store()
    the commits between two places      commits(place, until)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby, pairwise
from typing import NamedTuple, TypeVar

from laneway.core import catalogue as names
from laneway.core.catalogue import QueueName
from laneway.core.events import Kind
from laneway.core.rows import ROW, ROW_BYTES
from laneway.errors import InvalidInput, JournalGap, NotFound
from laneway.journal.history import snapshots
from laneway.journal.history.files import ReadableFiles, RealFiles
from laneway.journal.history.format import (
    COMMIT,
    HEADER_BYTES,
    LAST_MARK,
    CommitHeader,
    parse_commit_header,
    rows_at,
    segment_name,
    segment_numbers,
    snapshot_name,
    snapshot_positions,
)
from laneway.journal.history.recovery import Segment, read_segment
from laneway.journal.history.scan import PIECE_BYTES, FoundCommit, SegmentScan, damaged
from laneway.journal.history.snapshots import SnapshotDamaged
from laneway.journal.interface import Place

__all__ = [
    "Place",
    "SegmentInfo",
    "advance",
    "catalogue",
    "commits",
    "end",
    "first_position",
    "first_time_ms",
    "segments",
    "start",
    "store",
]

_NAMING = (Kind.QUEUE_PUT, Kind.QUEUE_DELETED)
_SMALL_PIECE_BYTES = 64 << 10  # where only headers are wanted, or a commit here and there
_TRIES = 4  # a server may take a snapshot away while it is looked for


class SegmentInfo(NamedTuple):
    number: int
    first_position: int
    used_bytes: int  # where its last commit ends
    first_time_ms: int  # of its first event; 0 while it has none


_AnySegment = TypeVar("_AnySegment", Segment, SegmentInfo)


# --- places ---------------------------------------------------------------------------------------------------------


def end(folder: str, since: Place | None = None, *, files: ReadableFiles | None = None) -> Place:
    """Behind the last commit that is whole. With an earlier end, only what came since is looked at."""
    files = files or RealFiles()
    while True:
        last = _numbers(files, folder)[-1]
        try:
            return _end(files, folder, last, since)
        except FileNotFoundError:
            continue  # a server went on to another segment and dropped this one


def _end(files: ReadableFiles, folder: str, number: int, since: Place | None) -> Place:
    with _opened(files, folder, number) as (scan, segment):
        offset, position = HEADER_BYTES, segment.first_position
        if since is not None and since.segment == number:
            _, offset, position = since
        durable = 0
        found: list[tuple[int, CommitHeader]] = []
        while (header := scan.header_at(offset)) is not None and header.position == position:
            found.append((offset, header))
            durable = max(durable, position if scan.mark_of(offset, header) else header.durable)
            offset += header.length
            position += 1
        # Headers say of the commits before them that they were durable. The last ones are looked at themselves.
        scan.forget()
        for at, header in found:
            if header.position > durable and scan.commit_at(at) is None:
                return Place(number, at, header.position)
        return Place(number, offset, position)


def start(folder: str, position: int, *, until: Place | None = None, files: ReadableFiles | None = None) -> Place:
    """Where a commit begins; the end for the one that comes next. JournalGap if it was dropped."""
    files = files or RealFiles()
    until = until or end(folder, files=files)
    if position == until.position:
        return until
    if not 0 < position < until.position:
        raise InvalidInput(f"there is no commit {position}; the next one will be {until.position}", field="position")
    before = [s for s in _headers(files, folder) if s.first_position <= position and s.number <= until.segment]
    try:
        if before:
            with _opened(files, folder, before[-1].number, piece_bytes=_SMALL_PIECE_BYTES) as (scan, segment):
                for place, _ in _walk(scan, Place(segment.number, HEADER_BYTES, segment.first_position)):
                    if place.position == position:
                        return place
    except FileNotFoundError:
        pass
    raise _gap(files, folder, position)


def advance(folder: str, place: Place, until: Place, max_events: int, *, files: ReadableFiles | None = None) -> Place:
    """At most so many events (rows) further, but one commit at least; never beyond `until`."""
    taken = 0
    for at, header, _ in _between(files or RealFiles(), folder, place, until, piece_bytes=_SMALL_PIECE_BYTES):
        if taken and taken + header.row_count > max_events:
            return at
        taken += header.row_count
        place = Place(at.segment, at.offset + header.length, at.position + 1)
        if taken >= max_events:
            return place
    return place


def commits(
    folder: str, place: Place, until: Place, *, files: ReadableFiles | None = None
) -> Iterator[tuple[FoundCommit, SegmentScan]]:
    """The commits between two places, each with its checksum verified, and the segment to read its events with."""
    for at, _, scan in _between(files or RealFiles(), folder, place, until):
        found = scan.commit_at(at.offset)
        if found is None:
            raise damaged(scan.path, at.offset, f"commit {at.position} does not check out")
        yield found, scan


def _between(
    files: ReadableFiles, folder: str, place: Place, until: Place, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[Place, CommitHeader, SegmentScan]]:
    """The headers of the commits between two places, across segments."""
    while place.position < until.position:
        try:
            with _opened(files, folder, place.segment, piece_bytes=piece_bytes) as (scan, _):
                for at, header in _walk(scan, place):
                    if at.position >= until.position:
                        return
                    yield at, header, scan
                    place = Place(at.segment, at.offset + header.length, at.position + 1)
        except FileNotFoundError:
            there = [s for s in _headers(files, folder) if s.first_position == place.position]
            if not there:
                raise _gap(files, folder, place.position) from None
            place = Place(
                there[-1].number, HEADER_BYTES, place.position
            )  # it was behind the last commit of its segment
            continue
        if place.position < until.position:
            place = _next_segment(files, folder, place)


def _walk(scan: SegmentScan, place: Place) -> Iterator[tuple[Place, CommitHeader]]:
    """The headers of one segment, from a place on, up to where no more follow."""
    number, offset, position = place
    while (header := scan.header_at(offset)) is not None:
        if header.position != position:
            raise damaged(scan.path, offset, f"commit {header.position} stands where commit {position} has to")
        yield Place(number, offset, position), header
        offset += header.length
        position += 1


def _next_segment(files: ReadableFiles, folder: str, place: Place) -> Place:
    """Where history goes on behind the last commit of a segment."""
    path = os.path.join(folder, segment_name(place.segment))
    following = [s for s in _headers(files, folder) if s.number > place.segment]
    if not following:
        raise damaged(path, place.offset, f"commit {place.position} has to be here, and is not")
    if following[0].number != place.segment + 1:
        raise _gap(files, folder, place.position)
    if following[0].first_position != place.position:
        raise damaged(path, place.offset, f"commit {place.position} does not check out, and later ones follow it")
    return Place(following[0].number, HEADER_BYTES, place.position)


# --- what is there --------------------------------------------------------------------------------------------------


def segments(
    folder: str,
    *,
    until: Place | None = None,
    known: Mapping[int, SegmentInfo] | None = None,
    files: ReadableFiles | None = None,
) -> list[SegmentInfo]:
    """Every segment, oldest first. Where their numbers have a gap, history has one too.

    What was said earlier of others than the last one stays true, and spares opening them.
    """
    files = files or RealFiles()
    until = until or end(folder, files=files)
    known = known or {}
    there: list[Segment | SegmentInfo] = []
    for number in _numbers(files, folder):
        if number <= until.segment:
            there += [known[number]] if number in known else _headers(files, folder, [number])
    store = 0 if all(segment.number in known for segment in there) else _store(files, folder)
    found = []
    for segment, following in pairwise([*there, None]):
        assert segment is not None
        if isinstance(segment, SegmentInfo):
            found.append(segment)
            continue
        try:
            with _file(files, folder, segment.number) as (_, file):
                read = _Headers(files, file, segment.number, store)
                if segment.number == until.segment:
                    used_bytes = until.offset
                else:
                    used_bytes = _used_bytes(files, folder, read, segment, following)
                found.append(SegmentInfo(segment.number, segment.first_position, used_bytes, read.first_time_ms()))
        except FileNotFoundError:
            continue  # dropped meanwhile
    return found


def first_position(folder: str, *, files: ReadableFiles | None = None) -> int:
    """From which on history is there without a gap."""
    return whole_since(_headers(files or RealFiles(), folder))[0].first_position


def whole_since(there: list[_AnySegment]) -> list[_AnySegment]:
    """Those of the segments that have all others behind them, up to the last one."""
    first = len(there) - 1
    while first > 0 and there[first - 1].number + 1 == there[first].number:
        first -= 1
    return there[max(first, 0) :]


def first_time_ms(folder: str, number: int, *, files: ReadableFiles | None = None) -> int:
    """When the first event of a segment happened; 0 if it has none yet."""
    files = files or RealFiles()
    _, its_store = read_segment(files, folder, number)
    with _file(files, folder, number) as (_, file):
        return _Headers(files, file, number, its_store).first_time_ms()


class _Headers:
    """Headers of one segment here and there, each in a small read of its own."""

    def __init__(self, files: ReadableFiles, file: int, number: int, store: int) -> None:
        self._files = files
        self._file = file
        self._extent = number << 32
        self._store = store
        self.size = files.size(file)

    def at(self, offset: int) -> CommitHeader | None:
        data = self._files.read(self._file, HEADER_BYTES, offset) if offset >= HEADER_BYTES else b""
        return parse_commit_header(data, 0, store=self._store, location=self._extent | offset)

    def first_time_ms(self) -> int:
        header = self.at(HEADER_BYTES)
        if header is None or header.kind != COMMIT or not header.row_count:
            return 0
        row = self._files.read(self._file, ROW_BYTES, HEADER_BYTES + rows_at(header))
        return int(ROW.unpack(row)[6]) if len(row) == ROW_BYTES else 0


def _used_bytes(
    files: ReadableFiles, folder: str, read: _Headers, segment: Segment, following: Segment | SegmentInfo | None
) -> int:
    """Of a segment that was followed by another: its size, unless it could not be cut to what was used."""
    mark = read.at(read.size - HEADER_BYTES)
    if mark is not None and mark.kind == LAST_MARK:
        return read.size
    used_bytes = HEADER_BYTES
    with _opened(files, folder, segment.number) as (scan, _):
        for at, header in _walk(scan, Place(segment.number, HEADER_BYTES, segment.first_position)):
            if following is not None and at.position >= following.first_position:
                break
            used_bytes = at.offset + header.length
    return used_bytes


def store(folder: str, *, files: ReadableFiles | None = None) -> tuple[int, int]:
    """What tells this journal from others, and the tag of its message ids."""
    files = files or RealFiles()
    number = _store(files, folder)
    found = _snapshot(files, folder)
    if found is not None:
        return number, found[1]
    for _, rows, _ in _rows(files, folder, (Kind.OPENED,)):
        return number, int(ROW.unpack(rows)[8])
    raise NotFound(f"there is no history in {folder} yet", field="folder")


def catalogue(
    folder: str,
    *,
    known: Mapping[int, QueueName] | None = None,
    since: Place | None = None,
    files: ReadableFiles | None = None,
) -> dict[int, QueueName]:
    """What queues are called, and were when they were deleted, by their number; of the tier, the last that is known.

    From the newest snapshot and the events that put and delete queues. One that was deleted is known as long as that
    event is there, and so are all rows about it that come before. With what was known at an earlier place, only what
    came since is looked at.
    """
    found = named_queues(folder, since, known, files=files)
    return {number: named.name for number, named in sorted(found.items())}


class Named(NamedTuple):
    name: QueueName
    position: int  # of what said so: an event, or a snapshot
    is_deleted: bool = False


def named_queues(
    folder: str,
    since: Place | None = None,
    known: Mapping[int, QueueName] | None = None,
    *,
    files: ReadableFiles | None = None,
) -> dict[int, Named]:
    files = files or RealFiles()
    found: dict[int, Named] = {}
    if known is not None and since is not None:
        found = {number: Named(name, since.position - 1) for number, name in known.items()}
    elif (snapshot := _snapshot(files, folder)) is not None:
        found = {number: Named(name, snapshot[0]) for number, name in snapshot[2].items()}
    for position, row, blob in _rows(files, folder, _NAMING, since if known is not None else None):
        number = ROW.unpack(row)[4]
        if blob and (number not in found or position >= found[number].position):
            found[number] = _named(position, row, blob)
    return found


def named_between(
    folder: str, place: Place, until: Place, *, files: ReadableFiles | None = None
) -> Iterator[tuple[int, Named]]:
    """What the events between two places say of queues, by their number."""
    for at, header, scan in _between(files or RealFiles(), folder, place, until):
        for row, blob in _rows_of(scan, at, header, _NAMING):
            if blob:
                yield ROW.unpack(row)[4], _named(at.position, row, blob)


def named_at(
    folder: str, places: Iterable[Place], *, files: ReadableFiles | None = None
) -> Iterator[tuple[int, Named]]:
    """The same of the commits that begin at these places alone, in small reads."""
    files = files or RealFiles()
    for segment, group in groupby(places, key=lambda place: place.segment):
        some = list(group)
        try:
            with _opened(files, folder, segment, piece_bytes=_SMALL_PIECE_BYTES) as (scan, _):
                for place in some:
                    header = scan.header_at(place.offset)
                    if header is None or header.position != place.position:
                        raise damaged(scan.path, place.offset, f"commit {place.position} has to be here, and is not")
                    for row, blob in _rows_of(scan, place, header, _NAMING):
                        if blob:
                            yield ROW.unpack(row)[4], _named(place.position, row, blob)
        except FileNotFoundError:
            raise _gap(files, folder, some[0].position) from None


def _named(position: int, row: bytes, blob: bytes) -> Named:
    return Named(names.of_document(blob), position, row[0] == Kind.QUEUE_DELETED)


def _rows(
    files: ReadableFiles, folder: str, kinds: tuple[Kind, ...], since: Place | None = None
) -> Iterator[tuple[int, bytes, bytes]]:
    """(position, row, blob) of the rows of these kinds, in all segments or from a place on."""
    until = end(folder, files=files)
    for segment in _headers(files, folder):
        if segment.number > until.segment:
            return
        first = Place(segment.number, HEADER_BYTES, segment.first_position)
        if since is not None and segment.number <= since.segment:
            if segment.number < since.segment:
                continue
            first = since
        try:
            with _opened(files, folder, segment.number) as (scan, _):
                for at, header in _walk(scan, first):
                    if at.position >= until.position:
                        return
                    for row, blob in _rows_of(scan, at, header, kinds):
                        yield at.position, row, blob
        except FileNotFoundError:
            continue


def _rows_of(
    scan: SegmentScan, at: Place, header: CommitHeader, kinds: tuple[Kind, ...]
) -> Iterator[tuple[bytes, bytes]]:
    """Most commits have no row of these kinds: that is told by one look at the first bytes of all."""
    rows = bytes(scan.view(at.offset + rows_at(header), header.row_count * ROW_BYTES))
    first_bytes = rows[::ROW_BYTES]
    if not any(kind in first_bytes for kind in kinds):
        return
    for i, kind in enumerate(first_bytes):
        if kind in kinds:
            row = rows[i * ROW_BYTES : (i + 1) * ROW_BYTES]
            blob_at, size = ROW.unpack(row)[12:]
            yield row, bytes(scan.view(at.offset + blob_at, size)) if size else b""


def _snapshot(files: ReadableFiles, folder: str) -> tuple[int, int, dict[int, QueueName]] | None:
    """(position, tag, queues) of the newest snapshot that can be read."""
    for _ in range(_TRIES):
        positions = snapshot_positions(files.list_folder(folder))
        for position in positions:
            try:
                chunk = snapshots.first_chunk(files, os.path.join(folder, snapshot_name(position)))
                return (position, *names.of_snapshot(chunk))
            except (SnapshotDamaged, ValueError):  # damaged, or removed meanwhile
                continue
        if not positions:
            return None
    return None


# --- files ----------------------------------------------------------------------------------------------------------


def _numbers(files: ReadableFiles, folder: str) -> list[int]:
    try:
        found = segment_numbers(files.list_folder(folder))
    except (FileNotFoundError, NotADirectoryError):
        found = []
    if not found:
        raise NotFound(f"there is no journal in {folder}", field="folder")
    return found


def _store(files: ReadableFiles, folder: str) -> int:
    """The same in all segments; the last one is the last to be dropped."""
    while True:
        try:
            return read_segment(files, folder, _numbers(files, folder)[-1])[1]
        except FileNotFoundError:
            continue


def _headers(files: ReadableFiles, folder: str, numbers: Iterable[int] | None = None) -> list[Segment]:
    found = []
    for number in _numbers(files, folder) if numbers is None else numbers:
        try:
            found.append(read_segment(files, folder, number)[0])
        except FileNotFoundError:
            continue  # dropped meanwhile
    return found


@contextmanager
def _file(files: ReadableFiles, folder: str, number: int) -> Iterator[tuple[str, int]]:
    path = os.path.join(folder, segment_name(number))
    file = files.open(path)
    try:
        yield path, file
    finally:
        files.close(file)


@contextmanager
def _opened(
    files: ReadableFiles, folder: str, number: int, *, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[SegmentScan, Segment]]:
    segment, store = read_segment(files, folder, number)
    with _file(files, folder, number) as (path, file):
        yield SegmentScan(files, path, file, number=number, store=store, piece_bytes=piece_bytes), segment


def _gap(files: ReadableFiles, folder: str, position: int) -> JournalGap:
    there = whole_since(_headers(files, folder))
    first = there[0].first_position if there else 0
    return JournalGap(
        f"commit {position} has been dropped from {folder}; history is kept from commit {first} on. "
        "A cursor, or history_seconds, holds it back next time (docs/journal.md)",
        first_position=first,
    )
