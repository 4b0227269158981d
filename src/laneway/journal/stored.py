"""What all journals have in common whose history lies in segments, wherever these are kept: gathering a commit,
recovery, reading, holding, dropping.

A journal knows where each blob will stand before it is written: commits follow one another in segments, which are
numbered, and a location is (segment, offset). Those who write them differ: segments/ writes files, postgres/ rows.

    stage ─▶ gathering ─seal─▶ _sealed ─write─▶ segment ─▶ durable
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import add, sub
from typing import ClassVar, Protocol

from laneway.core.events import Acked, Event, Leased, Opened, Published, QueueDeleted, QueuePut, Relocated
from laneway.core.message import located, split_record
from laneway.core.rows import ROW_BYTES, encode
from laneway.errors import JournalDamaged, LimitExceeded
from laneway.journal.history import snapshots
from laneway.journal.history.files import ReadableFiles
from laneway.journal.history.format import (
    HEADER_BYTES,
    MAX_COMMIT_BYTES,
    UNIT_BYTES,
    VERSION,
    Sealed,
    commit_length,
    snapshot_name,
    snapshot_positions,
)
from laneway.journal.history.holding import Holding, whole
from laneway.journal.history.reading import RecordReader
from laneway.journal.history.recovery import Replay, Segment, Survey, survey
from laneway.journal.history.served import ServedHistory
from laneway.journal.history.snapshots import Snapshot, SnapshotDamaged
from laneway.journal.interface import Commit, Held, Place

#: Events that more is done about than to write them down.
_NOTICED = frozenset({Opened, QueuePut, QueueDeleted})
#: Those that may be of several queues, and are stored as one for each.
_OF_QUEUES = frozenset({Published, Leased, Acked})

log = logging.getLogger("laneway.journal")


class HistoryWriter(Protocol):
    """Who writes the commits of a journal, in order."""

    segments: dict[int, Segment]
    readable: Place  # behind the last commit that is as durable as it will be made
    written_location: int  # everything below has been written

    @property
    def store(self) -> int: ...

    @property
    def is_open(self) -> bool: ...

    def write(self, sealed: Sealed) -> None: ...

    def mark(self) -> None: ...

    def sync(self) -> None: ...

    def finished_segments(self) -> list[Segment]: ...


class StoredJournal:
    #: With header, padding and mark on top, a commit of so much is the largest that there may be.
    most_staged_bytes: ClassVar[int] = MAX_COMMIT_BYTES - 3 * UNIT_BYTES

    claimed_epoch = 0

    def __init__(self, files: ReadableFiles, folder: str, writer: HistoryWriter, *, max_open_files: int) -> None:
        """`files` and `folder`: where the segments can be read."""
        self._files = files
        self._folder = folder
        self._history_writer = writer
        self._reader = RecordReader(files, folder, max_open_files=max_open_files)
        self._snapshot: Snapshot | None = None  # the newest durable one
        self._holding = Holding(files, folder)
        self.history = ServedHistory(files, folder, lambda: writer.readable, lambda: writer.store)

        # The commit being gathered.
        self._rows: list[bytes] = []
        self._blobs: list[bytes] = []
        self._fill = HEADER_BYTES  # where in the commit the next blob will stand
        self._row_bytes = 0
        self._event_count = 0
        self._is_older = False  # the last segment was written by an older version
        self._location = 0  # of the commit being gathered; while there is none, of the end of the one before
        self._next_position = 1
        self._epoch = 0

        # Commits sealed, not yet written: appended to by the loop, taken from by the writer.
        self._sealed: deque[Sealed] = deque()
        self._sealed_bytes = self._written_bytes = 0  # of all commits so far; each is counted by one thread alone

    # --- what is done in a way of their own -------------------------------------------------------------------------

    def _open(self, found: Survey, replay: Replay, snapshot: Snapshot | None) -> None:
        """Open the writer, which goes on behind the last commit that was replayed."""
        raise NotImplementedError

    def _is_roll_due(self, offset: int) -> bool:
        """Whether the next commit begins a segment, though there would be room at this offset of the last one."""
        raise NotImplementedError

    def _remove_segment(self, number: int) -> bool:
        """False if it could not be removed; it does no harm where it is, and the next drop tries again."""
        raise NotImplementedError

    def abandon(self) -> None:
        """There is nobody to wait for."""

    # --- start ------------------------------------------------------------------------------------------------------

    def load_snapshot(self) -> tuple[int, Iterator[bytes]] | None:
        damage: JournalDamaged | None = None
        for position in snapshot_positions(self._files.list_folder(self._folder)):
            path = os.path.join(self._folder, snapshot_name(position))
            try:
                snapshot = snapshots.check(self._files, path)
                if snapshot.position != position:
                    raise SnapshotDamaged(0, f"its header says it is snapshot {snapshot.position}")
            except SnapshotDamaged as error:
                damage = damage or self._snapshot_damaged(path, error)
                continue
            if damage is not None:
                self._fall_back(damage, snapshot)
            self._snapshot = snapshot
            return position, self._chunks(path)
        if damage is not None:
            self._fall_back(damage, None)
        return None

    def replay(self, after: int) -> Iterator[tuple[int, list[Event]]]:
        if self._history_writer.is_open:
            raise RuntimeError("replay() comes once, before the first write")
        snapshot = self._snapshot if self._snapshot and self._snapshot.position == after else None
        found = survey(self._files, self._folder, snapshot, after)
        replay = Replay(self._files, self._folder, found, after)
        yield from replay.commits()
        self._open(found, replay, snapshot)
        self.history.named_position = replay.position  # or any one before it
        self._location = self._history_writer.written_location
        last = self._history_writer.segments.get(self._location >> 32)
        self._is_older = last is not None and last.version < VERSION
        self._next_position = replay.position + 1
        self._epoch = replay.epoch

    def _chunks(self, path: str) -> Iterator[bytes]:
        try:
            yield from snapshots.load(self._files, path)
        except SnapshotDamaged as error:  # it had been checked a moment ago
            raise self._snapshot_damaged(path, error) from error

    def _snapshot_damaged(self, path: str, error: SnapshotDamaged) -> JournalDamaged:
        return JournalDamaged(
            f"{path} is damaged at byte {error.offset}: {error}, and the history it replaced is gone. Nothing was "
            f"changed. Run `laneway journal check {self._folder}`; then restore the folder from a backup.",
            file=path,
            offset=error.offset,
        )

    def _fall_back(self, damage: JournalDamaged, older: Snapshot | None) -> None:
        """An older snapshot, or none, serves as well if all the history since is still there."""
        try:
            survey(self._files, self._folder, older, older.position if older else 0)
        except JournalDamaged:
            raise damage from None
        since = f"snapshot {older.position}" if older else "the first commit"
        log.warning("%s is damaged; all history since %s is there and used instead", damage.details["file"], since)

    # --- gathering, on the loop -------------------------------------------------------------------------------------

    def stage(self, event: Event) -> int:
        starts: Sequence[int] = ()
        if type(event) is Published and not event.locations:
            rows, blobs = encode(event, self._fill)
            blob_bytes = sum(event.sizes)
        else:
            if isinstance(event, Published | Relocated) and event.locations:
                starts = self._starts(event)
            rows, blobs = encode(event, self._fill, starts)
            blob_bytes = sum(map(len, blobs))
        row_bytes = self._row_bytes + len(rows)
        if self._fill + blob_bytes + row_bytes > self.most_staged_bytes:
            raise LimitExceeded(
                f"one commit holds {self.most_staged_bytes} bytes at most, and with this it would have "
                f"{self._fill + blob_bytes + row_bytes}; publish in smaller batches"
            )
        if not self._rows:
            self._begin_commit()
        if starts:
            event.locations = list(map(add, starts, repeat(self._location)))  # type: ignore[union-attr]
        if type(event) in _NOTICED:
            self._notice(event)
        self._rows.append(rows)
        self._row_bytes = row_bytes
        self._event_count += (type(event) in _OF_QUEUES and len(event.queues)) or 1  # type: ignore[union-attr]
        if not blobs:
            return 0
        location = self._location + self._fill
        self._blobs.extend(blobs)
        self._fill += blob_bytes
        return location

    def _starts(self, event: Published | Relocated) -> list[int]:
        """Where in the commit the record of each message of the event will stand."""
        if not self._rows:
            self._begin_commit()  # the location of the commit is known from here on
        start, end = self._location, self._location + self._fill
        if max(event.locations) > 0 and any(at > 0 and not start < at < end for at in event.locations):
            raise ValueError("records are shared inside a commit: rows name them by where they stand in it")
        return list(map(sub, located(event.locations, event.sizes, end), repeat(start)))

    def staged_bytes(self) -> int:
        return self._fill - HEADER_BYTES + self._row_bytes

    def seal(self) -> Commit | None:
        if not self._rows:
            return None
        blob_bytes = self._fill - HEADER_BYTES
        length = commit_length(blob_bytes, self._row_bytes)
        sealed = Sealed(
            self._location,
            length,
            self._next_position,
            self._epoch,
            self._event_count,
            blob_bytes,
            self._blobs,
            self._rows,
        )
        row_count = self._row_bytes // ROW_BYTES
        self._sealed.append(sealed)
        self._sealed_bytes += length
        self._location += length
        self._next_position += 1
        self._rows, self._blobs = [], []
        self._fill = HEADER_BYTES
        self._row_bytes = self._event_count = 0
        return Commit(sealed.position, row_count, length, sealed)

    def _begin_commit(self) -> None:
        if not self._history_writer.is_open:
            raise RuntimeError("the journal is not open for writing: replay() has to be exhausted first")
        offset = self._location & 0xFFFFFFFF
        if offset == HEADER_BYTES:
            return
        if self._is_older or self._is_roll_due(offset):  # commits of one segment all have its version
            self._is_older = False
            self._location = ((self._location >> 32) + 1) << 32 | HEADER_BYTES

    def _notice(self, event: Event) -> None:
        if type(event) is Opened:
            self._begin_epoch(event.epoch)
        else:
            location = self._location
            self.history.note_naming(Place(location >> 32, location & 0xFFFFFFFF, self._next_position))

    def _begin_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise ValueError(f"epoch {epoch} is older than epoch {self._epoch}, which has already written here")
        self._epoch = epoch

    # --- writing, in the writer thread ------------------------------------------------------------------------------

    def write(self, commit: Commit) -> None:
        if not self._sealed or commit.payload is not self._sealed[0]:
            raise ValueError(f"commit {commit.position} is not the next one to be written")
        self._history_writer.write(self._sealed[0])
        self._sealed.popleft()
        self._written_bytes += commit.byte_count

    def mark(self) -> None:
        self._history_writer.mark()

    def sync(self) -> None:
        self._history_writer.sync()

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, locations: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        if not locations:
            return []
        if max(locations) < self._history_writer.written_location:
            return self._reader.read(locations, sizes)
        return [self._read_one(location, size) for location, size in zip(locations, sizes, strict=True)]

    def read_contents(
        self, locations: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[int], list[bytes], list[bytes | memoryview]]:
        if max(locations) < self._history_writer.written_location:
            return self._reader.read_contents(locations, sizes)  # type: ignore[return-value]
        at_ms, props, bodies = zip(*map(split_record, self.read(locations, sizes)), strict=True)
        return list(at_ms), list(props), list(bodies)

    def _being_written(self) -> tuple[Sealed, ...]:
        while True:
            try:
                return tuple(self._sealed)
            except RuntimeError:  # the writer's thread took one out meanwhile: it is written, and can be read
                continue

    def _read_one(self, location: int, size: int) -> memoryview:
        gathering = (self._location, self._fill, self._blobs)
        unwritten = [(sealed.location, sealed.length, sealed.blobs) for sealed in self._being_written()]
        for start, length, blobs in (*unwritten, gathering):
            at = location - start - HEADER_BYTES
            if at >= 0 and location < start + length:
                return memoryview(b"".join(blobs))[at : at + size]
        return self._reader.read([location], [size])[0]

    # --- dropping ---------------------------------------------------------------------------------------------------

    def drop(self) -> list[int]:
        snapshot, segments = self._snapshot, self._history_writer.segments
        if snapshot is None:
            return []
        with self._holding.lock:
            held = {one.extent for one in self._holding.held(tuple(segments.values()))}
            gone = {
                number: segments.pop(number)
                for number in sorted(segments)
                if number < snapshot.replay_from and number not in snapshot.needed and number not in held
            }
        dropped = []
        for number, segment in gone.items():
            self._reader.forget(number)
            self._holding.forget(number)
            if self._remove_segment(number):
                dropped.append(number)
            else:
                segments[number] = segment
        return dropped

    def hold(self, position: int | None, since_ms: int | None) -> int:
        with self._holding.lock:
            self._holding.ask(position, since_ms)
            return whole(tuple(self._history_writer.segments.values()))[0].first_position

    def held(self) -> list[Held]:
        return self._holding.held(tuple(self._history_writer.segments.values()))

    def extent_bytes(self) -> dict[int, int]:
        return {segment.number: segment.file_bytes for segment in self._history_writer.finished_segments()}
