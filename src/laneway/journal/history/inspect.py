"""Looking at a journal folder without opening it: what is behind `laneway journal check` and `laneway journal dump`.

Reads only, takes no lock, and copes with damage and with a server that is writing meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from laneway.core.events import (
    Bound,
    Event,
    ExchangeDeleted,
    ExchangePut,
    Kind,
    Published,
    QueueDeleted,
    QueuePut,
    Relocated,
    Unbound,
)
from laneway.core.message import record_is_intact
from laneway.core.rows import ROW
from laneway.errors import InvalidInput, JournalDamaged, JournalVersionUnknown, NotFound
from laneway.journal.history import snapshots
from laneway.journal.history.files import ReadableFiles, RealFiles
from laneway.journal.history.format import (
    COMMIT,
    HEADER_BYTES,
    LAST_MARK,
    UNIT_BYTES,
    rows_at,
    segment_name,
    segment_numbers,
    snapshot_name,
    snapshot_positions,
)
from laneway.journal.history.recovery import Segment, read_segment
from laneway.journal.history.scan import FoundCommit, SegmentScan
from laneway.journal.history.snapshots import Snapshot, SnapshotDamaged

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)

_PROGRESS_EVERY_BYTES = 4 << 20
_WITH_RECORDS = (Kind.PUBLISHED, Kind.RELOCATED)


class Problem(msgspec.Struct, frozen=True):
    """Something that is not as it must be."""

    file: str
    offset: int
    what: str


class SegmentReport(msgspec.Struct):
    number: int
    file: str
    file_bytes: int
    used_bytes: int = 0
    first_position: int = 0
    last_position: int = 0  # first_position - 1 while it holds no commit
    commit_count: int = 0
    event_count: int = 0
    record_count: int = 0
    problem_count: int = 0


class SnapshotReport(msgspec.Struct):
    file: str
    position: int
    file_bytes: int
    is_sound: bool
    needed_segments: list[int] = []


class CheckReport(msgspec.Struct):
    """What `laneway journal check` found. Notes are worth knowing but nothing is wrong with them."""

    folder: str
    segments: list[SegmentReport] = []
    snapshots: list[SnapshotReport] = []
    problems: list[Problem] = []
    notes: list[str] = []

    @property
    def is_sound(self) -> bool:
        return not self.problems

    @property
    def exit_status(self) -> int:
        return 0 if self.is_sound else 1


class Gap(msgspec.Struct, frozen=True):
    """A place where a commit should begin and none does that checks out."""

    offset: int
    next_offset: int | None  # where the next good one begins
    proof_at: int | None  # offset of a header which says that what is missing here had been durable
    is_empty: bool  # nothing but zeros from here on


def check(folder: str, progress: Progress | None = None, *, files: ReadableFiles | None = None) -> CheckReport:
    """Verify every commit, record and snapshot. Raises NotFound when the folder holds no journal."""
    return _Check(files or RealFiles(), os.fspath(folder), progress).run()


def dump(
    folder: str,
    *,
    after: int = 0,
    kinds: Collection[str] | None = None,
    queue: str | int | None = None,
    limit: int | None = None,
    files: ReadableFiles | None = None,
) -> Iterator[dict[str, Any]]:
    """Events after a position, oldest first, as plain values; a place that cannot be read as {"problem": …}.

    `kinds` are names such as "published"; `queue` a queue's number, or its name as far as the events that gave it the
    name are still in the folder. Message bodies and the documents of other layers (which hold password hashes) are
    left out, their sizes are given.
    """
    wanted = _kinds(kinds)
    given = 0
    if limit is not None and limit <= 0:
        return
    for found in _events(files or RealFiles(), os.fspath(folder), after, wanted, queue):
        yield found
        given += 1
        if given == limit:
            return


# --- walking --------------------------------------------------------------------------------------------------------


def walk(scan: SegmentScan, first_position: int) -> Iterator[FoundCommit | Gap]:
    """Every good commit of a segment, and between them what is none; it ends with the Gap at the end."""
    offset, position = HEADER_BYTES, first_position
    while True:
        commit = scan.commit_at(offset)
        if commit is None:
            gap = _gap(scan, offset, position)
            scan.forget()
            commit = scan.commit_at(offset)  # a server may have completed it while we looked
            if commit is None:
                yield gap
                if gap.next_offset is None:
                    return
                offset = gap.next_offset
                commit = scan.commit_at(offset)
                if commit is None:
                    continue
        yield commit
        offset += commit.header.length
        position = commit.header.position + 1


def _gap(scan: SegmentScan, offset: int, position: int) -> Gap:
    tail = scan.tail(offset, position)
    following = (
        at
        for at, header in scan.headers_from(offset + UNIT_BYTES)
        if header.kind == COMMIT and header.position > position
    )
    return Gap(offset, next(following, None) if not tail.is_empty else None, tail.proof_at, tail.is_empty)


def _open_scan(files: ReadableFiles, folder: str, number: int, store: int) -> tuple[SegmentScan, int]:
    path = os.path.join(folder, segment_name(number))
    file = files.open(path)
    return SegmentScan(files, path, file, number=number, store=store), file


def _read_headers(
    files: ReadableFiles, folder: str, numbers: list[int]
) -> tuple[list[tuple[Segment, int]], list[Problem], list[str]]:
    """The segments with the store they belong to, what is wrong with their headers, and what is merely worth a note.

    One whose header is damaged is taken to belong with the others; where its history begins is then unknown (0).
    """
    segments: list[tuple[Segment, int | None]] = []
    problems: list[Problem] = []
    notes: list[str] = []
    for number in numbers:
        path = os.path.join(folder, segment_name(number))
        try:
            segments.append(read_segment(files, folder, number))
        except FileNotFoundError:
            notes.append(f"{segment_name(number)} was dropped meanwhile")
        except JournalVersionUnknown as error:
            problems.append(Problem(path, 0, error.message))
        except JournalDamaged as error:
            problems.append(Problem(path, 0, error.message))
            segments.append((Segment(number, 0, 0, 0), None))
    stores = [store for _, store in segments if store is not None]
    if not stores:
        return [], problems, notes
    common = max(set(stores), key=stores.count)
    for segment, store in segments:
        if store is not None and store != common:
            path = os.path.join(folder, segment_name(segment.number))
            problems.append(Problem(path, 0, "it belongs to another journal"))
    return [(segment, common if store is None else store) for segment, store in segments], problems, notes


def _names(files: ReadableFiles, folder: str) -> list[str]:
    try:
        names = files.list_folder(folder)
    except (FileNotFoundError, NotADirectoryError):
        names = []
    if not segment_numbers(names) and not snapshot_positions(names):
        raise NotFound(f"there is no journal in {folder}", field="folder")
    return names


# --- checking -------------------------------------------------------------------------------------------------------


class _Check:
    def __init__(self, files: ReadableFiles, folder: str, progress: Progress | None) -> None:
        self._files = files
        self._folder = folder
        self._progress = progress
        self._report = CheckReport(folder)
        self._done_bytes = self._told_bytes = self._total_bytes = 0
        self._epoch = 0

    def run(self) -> CheckReport:
        names = _names(self._files, self._folder)
        numbers = segment_numbers(names)
        self._total_bytes = sum(self._size(segment_name(number)) for number in numbers)
        self._total_bytes += sum(self._size(snapshot_name(position)) for position in snapshot_positions(names))
        newest = self._snapshots(snapshot_positions(names))
        self._presence(numbers, newest)
        segments, problems, notes = _read_headers(self._files, self._folder, numbers)
        self._report.problems += problems
        self._report.notes += notes
        for index, (segment, store) in enumerate(segments):
            self._segment(segment, store, segments[index + 1][0] if index + 1 < len(segments) else None)
        last = self._report.segments[-1] if self._report.segments else None
        if newest and last and last.last_position < newest.position and not last.problem_count:
            self._problem(
                last.file,
                last.used_bytes,
                f"history ends with commit {last.last_position}, the snapshot has {newest.position}",
            )
        self._advance(self._total_bytes)
        return self._report

    def _snapshots(self, positions: list[int]) -> Snapshot | None:
        newest = None
        for position in positions:
            path = os.path.join(self._folder, snapshot_name(position))
            file_bytes = self._size(snapshot_name(position))
            report = SnapshotReport(path, position, file_bytes, is_sound=False)
            try:
                snapshot = snapshots.check(self._files, path)
                if snapshot.position != position:
                    raise SnapshotDamaged(0, f"its header says it is snapshot {snapshot.position}")
                report.is_sound, report.needed_segments = True, sorted(snapshot.needed)
                newest = newest or snapshot
            except SnapshotDamaged as error:
                self._problem(path, error.offset, str(error))
            except JournalVersionUnknown as error:
                self._problem(path, 0, error.message)
            self._report.snapshots.append(report)
            self._advance(self._done_bytes + file_bytes)
        return newest

    def _presence(self, numbers: list[int], newest: Snapshot | None) -> None:
        first = newest.replay_from if newest else 1
        expected = {*(newest.needed if newest else ()), *range(first, max(numbers, default=first) + 1)}
        for number in sorted(expected.difference(numbers)):
            self._problem(os.path.join(self._folder, segment_name(number)), 0, "the segment is missing")
        for number in sorted(set(numbers).difference(expected)):
            self._report.notes.append(
                f"{segment_name(number)} is kept for readers of history, or goes with the next drop"
            )

    def _segment(self, segment: Segment, store: int, following: Segment | None) -> None:
        try:
            scan, file = _open_scan(self._files, self._folder, segment.number, store)
        except FileNotFoundError:
            self._report.notes.append(f"{segment_name(segment.number)} was dropped meanwhile")
            return
        report = SegmentReport(
            segment.number,
            scan.path,
            scan.size,
            used_bytes=HEADER_BYTES,
            first_position=segment.first_position,
            last_position=segment.first_position - 1,
        )
        self._report.segments.append(report)
        before, began_at = len(self._report.problems), self._done_bytes
        last: FoundCommit | None = None
        try:
            for found in walk(scan, segment.first_position):
                if isinstance(found, Gap):
                    self._judge(scan, report, found, following)
                else:
                    last = found
                    self._commit(scan, report, found)
                    self._advance(began_at + found.offset)
            if following is None:
                self._end(scan, segment, last)
        except JournalDamaged as error:  # a part that the disk does not give
            self._problem(scan.path, int(str(error.details["offset"])), error.message)
        finally:
            self._files.close(file)
        report.problem_count = len(self._report.problems) - before
        self._advance(began_at + segment.file_bytes)

    def _commit(self, scan: SegmentScan, report: SegmentReport, commit: FoundCommit) -> None:
        offset, header, data = commit
        if not report.first_position:  # the segment header, which would say, is damaged
            report.first_position, report.last_position = header.position, header.position - 1
        if header.position != report.last_position + 1 or header.epoch < self._epoch:
            self._problem(
                scan.path,
                offset,
                f"commit {header.position} of epoch {header.epoch} follows commit {report.last_position} "
                f"of epoch {self._epoch}",
            )
        self._epoch = header.epoch
        report.last_position = header.position
        report.used_bytes = offset + header.length
        report.commit_count += 1
        report.event_count += header.event_count
        try:
            event_count = len(scan.events(commit))
            if event_count != header.event_count:
                self._problem(scan.path, offset, f"it holds {event_count} events, its header says {header.event_count}")
        except JournalDamaged as error:
            self._problem(scan.path, offset, error.message)
        seen: set[int] = set()
        for row in ROW.iter_unpack(data[rows_at(header) : -HEADER_BYTES]):
            if row[0] in _WITH_RECORDS and row[12] not in seen:  # messages may share one
                seen.add(row[12])
                report.record_count += 1
                if not record_is_intact(bytes(data[row[12] : row[12] + row[13]])):
                    self._problem(scan.path, offset + row[12], f"the record of message {row[5]} does not check out")
        if scan.mark_is_damaged(offset, header):
            self._problem(scan.path, offset + header.length - HEADER_BYTES, "a mark does not check out (no loss)")

    def _judge(self, scan: SegmentScan, report: SegmentReport, gap: Gap, following: Segment | None) -> None:
        position = report.last_position + 1
        if gap.next_offset is not None:
            self._problem(
                scan.path,
                gap.offset,
                f"commit {position} does not check out; the next good one begins at byte {gap.next_offset}",
            )
            # Its position is checked against the one before: what is missing between them has just been said.
            header = scan.header_at(gap.next_offset)
            if header is not None:
                report.last_position = header.position - 1
        elif following is not None:
            # Between older segments others may have been dropped; then there is nothing to compare with.
            is_next = following.number == report.number + 1 and following.first_position
            if is_next and report.first_position and position != following.first_position:
                self._problem(scan.path, gap.offset, f"commit {position} does not check out, and later ones follow it")
        elif gap.proof_at is not None:
            self._problem(
                scan.path,
                gap.offset,
                f"commit {position} does not check out, but had been made durable: byte {gap.proof_at} says so",
            )
        elif not gap.is_empty:
            self._report.notes.append(
                f"{scan.path} ends with an unfinished commit at byte {gap.offset}: being written right now, or never "
                "confirmed and to be cut off at the next start"
            )

    def _end(self, scan: SegmentScan, segment: Segment, last: FoundCommit | None) -> None:
        """The end of the last segment; a server may have begun the next one since we looked at the folder."""
        scan.forget()
        if last is not None and scan.mark_of(last.offset, last.header) == LAST_MARK:
            if segment.number + 1 not in segment_numbers(_names(self._files, self._folder)):
                path = os.path.join(self._folder, segment_name(segment.number + 1))
                self._problem(path, 0, "the segment is missing")
        elif segment.is_cut_short:
            self._problem(scan.path, segment.file_bytes, f"it ends here, but had {segment.begun_bytes} bytes")

    def _problem(self, file: str, offset: int, what: str) -> None:
        self._report.problems.append(Problem(file, offset, what))

    def _size(self, name: str) -> int:
        try:
            file = self._files.open(os.path.join(self._folder, name))
        except OSError:
            return 0
        try:
            return self._files.size(file)
        finally:
            self._files.close(file)

    def _advance(self, done_bytes: int) -> None:
        self._done_bytes = done_bytes
        finished = done_bytes >= self._total_bytes
        if self._progress and (finished or done_bytes - self._told_bytes >= _PROGRESS_EVERY_BYTES):
            self._told_bytes = done_bytes
            self._progress(min(done_bytes, self._total_bytes), self._total_bytes)


# --- dumping --------------------------------------------------------------------------------------------------------


def _kinds(names: Collection[str] | None) -> set[Kind] | None:
    if names is None:
        return None
    known = {kind.name.lower(): kind for kind in Kind}
    for name in names:
        if name not in known:
            raise InvalidInput(f"{name!r} is no kind of event; there are {', '.join(sorted(known))}", field="kind")
    return {known[name] for name in names}


def _events(
    files: ReadableFiles, folder: str, after: int, kinds: set[Kind] | None, queue: str | int | None
) -> Iterator[dict[str, Any]]:
    by_name = isinstance(queue, str) and not queue.isdigit()
    numbers = {int(queue)} if queue is not None and not by_name else set()
    for found in _commits(files, folder, 0 if by_name else after):
        if isinstance(found, Problem):
            yield {"problem": found.what, "file": found.file, "offset": found.offset}
            continue
        commit, scan = found
        try:
            events = scan.events(commit)
        except JournalDamaged as error:
            yield {"problem": error.message, "file": scan.path, "offset": commit.offset}
            continue
        for event in events:
            if by_name and isinstance(event, QueuePut) and _queue_name(event) == queue:
                numbers.add(event.queue)
            if commit.header.position <= after or (kinds is not None and event.kind not in kinds):
                continue
            if queue is None or getattr(event, "queue", None) in numbers or getattr(event, "target", None) in numbers:
                yield _as_dict(commit, scan, event)


def _commits(files: ReadableFiles, folder: str, after: int) -> Iterator[tuple[FoundCommit, SegmentScan] | Problem]:
    segments, problems, _ = _read_headers(files, folder, segment_numbers(_names(files, folder)))
    yield from problems
    for index, (segment, store) in enumerate(segments):
        if index + 1 < len(segments) and 0 < segments[index + 1][0].first_position <= after + 1:
            continue  # wholly before what is asked for
        try:
            scan, file = _open_scan(files, folder, segment.number, store)
        except FileNotFoundError:
            continue  # dropped meanwhile
        try:
            for found in walk(scan, segment.first_position):
                if not isinstance(found, Gap):
                    yield found, scan
                elif found.next_offset is not None or found.proof_at is not None:
                    yield Problem(scan.path, found.offset, "a commit does not check out")
        finally:
            files.close(file)


def _queue_name(event: QueuePut) -> str:
    try:
        return str(msgspec.json.decode(event.document)["name"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return ""


def _as_dict(commit: FoundCommit, scan: SegmentScan, event: Event) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "position": commit.header.position,
        "epoch": commit.header.epoch,
        "file": os.path.basename(scan.path),
        "offset": commit.offset,
        "kind": event.kind.name.lower(),
    }
    for name, value in msgspec.structs.asdict(event).items():
        if name == "cause":
            fields[name] = value.name.lower()
        elif name == "document":  # may hold secrets: only its size is shown
            fields["document_bytes"] = len(value)
        elif name not in ("records", "births"):
            fields[name] = sorted(value) if isinstance(value, frozenset) else value
    if isinstance(event, QueuePut | QueueDeleted):
        del fields["document_bytes"]
        fields["document"] = _json_or_text(event.document)
    elif isinstance(event, ExchangePut | ExchangeDeleted | Bound | Unbound):
        del fields["document_bytes"]
        fields["document"] = _messagepack_or_text(event.document)
    elif isinstance(event, Published | Relocated):
        fields["count"] = len(event.sizes)
    return fields


def _messagepack_or_text(document: bytes) -> Any:
    try:
        return msgspec.to_builtins(msgspec.msgpack.decode(document))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return document.decode("utf-8", "replace")


def _json_or_text(document: bytes) -> Any:
    try:
        return msgspec.json.decode(document)
    except msgspec.DecodeError:
        return document.decode("utf-8", "replace")
