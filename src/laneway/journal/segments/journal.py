"""SegmentJournal: the history of one partition in segment files of one folder.

Here is the loop's side, which gathers events and already knows where each blob will stand, and what ties the parts
together: format.py (the bytes), writer.py (writing), recovery.py (what a crash can leave, and how it is told from
damage), space.py (disk space held in advance), snapshots.py and reading.py.

    stage ─▶ gathering ─seal─▶ _sealed ─write─▶ segment file ─sync─▶ durable
                                                  └ mark: proof, left when idle, that the last commit was durable
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import add, sub

from laneway.core.events import Acked, Event, Leased, Opened, Published, QueueDeleted, QueuePut, Relocated
from laneway.core.message import located, split_record
from laneway.core.rows import ROW_BYTES, encode
from laneway.errors import JournalDamaged, JournalFailed, JournalLocked, LimitExceeded
from laneway.journal.interface import Commit, Held, Place
from laneway.journal.segments import snapshots
from laneway.journal.segments.files import FileLocked, FileSystem, RealFiles
from laneway.journal.segments.format import (
    HEADER_BYTES,
    LOCK_NAME,
    MAX_COMMIT_BYTES,
    MAX_SEGMENT_BYTES,
    UNIT_BYTES,
    VERSION,
    commit_length,
    segment_name,
    snapshot_name,
    snapshot_positions,
)
from laneway.journal.segments.holding import Holding, whole
from laneway.journal.segments.reading import RecordReader
from laneway.journal.segments.recovery import Replay, survey
from laneway.journal.segments.served import ServedHistory
from laneway.journal.segments.snapshots import Snapshot, SnapshotDamaged, remove_if_there
from laneway.journal.segments.space import Space
from laneway.journal.segments.writer import Durability, Sealed, SegmentWriter

DEFAULT_SEGMENT_BYTES = 64 << 20
DEFAULT_RESERVE_BYTES = 32 << 20
DEFAULT_INTERVAL_MS = 50
MIN_SEGMENT_BYTES = 1 << 10
RESERVED_DESCRIPTORS = 8  # for the files of the journal, when connections hold all others
_MOST_STAGED_BYTES = MAX_COMMIT_BYTES - 3 * UNIT_BYTES  # header, padding and mark come on top

#: Events that more is done about than to write them down.
_NOTICED = frozenset({Opened, QueuePut, QueueDeleted})
#: Those that may be of several queues, and are stored as one for each.
_OF_QUEUES = frozenset({Published, Leased, Acked})

log = logging.getLogger("laneway.journal")


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SegmentJournal:
    writes_on_loop = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        durability: Durability = "commit",
        interval_ms: int = DEFAULT_INTERVAL_MS,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        reserve_bytes: int = DEFAULT_RESERVE_BYTES,
        max_open_files: int = 128,
        files: FileSystem | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
        draw_store: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """Take the lock of the folder, which is made if need be. load_snapshot() and replay() come next.

        `now_ms` must never go back; `draw_store` names a new store, and is called once in the life of a folder.
        """
        if not MIN_SEGMENT_BYTES <= segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(
                f"segment_bytes must be from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}, not {segment_bytes}"
            )
        self._folder = os.fspath(folder)
        self._files: FileSystem = files if files is not None else RealFiles(reserve_count=RESERVED_DESCRIPTORS)
        self._segment_bytes = segment_bytes
        # A commit begins a new segment when less than this is left; without a spare to go to, when hardly any is.
        self._roll_below_bytes = min(8 << 20, segment_bytes // 8)
        self._roll_floor_bytes = min(64 << 10, segment_bytes // 64)
        self._draw_store = draw_store
        self._files.make_folder(self._folder)
        self._lock_file: int | None = self._take_lock()
        self._space = Space(
            self._files, self._folder, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes, now_ms=now_ms
        )
        self._writer = SegmentWriter(
            self._files,
            self._folder,
            self._space,
            durability=durability,
            interval_ms=interval_ms,
            segment_bytes=segment_bytes,
            now_ms=now_ms,
        )
        self._reader = RecordReader(self._files, self._folder, max_open_files=max_open_files)
        self._snapshot: Snapshot | None = None  # the newest durable one
        self._holding = Holding(self._files, self._folder)
        self.history = ServedHistory(
            self._files, self._folder, lambda: self._writer.readable, lambda: self._writer.store
        )

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

    # --- start and end ----------------------------------------------------------------------------------------------

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
        if self._writer.is_open:
            raise RuntimeError("replay() comes once, before the first write")
        snapshot = self._snapshot if self._snapshot and self._snapshot.position == after else None
        found = survey(self._files, self._folder, snapshot, after)
        replay = Replay(self._files, self._folder, found, after)
        yield from replay.commits()
        self._space.snapshot_bytes = snapshot.file_bytes if snapshot else 0
        self._writer.open(found, replay, self._draw_store)
        self.history.named_position = replay.position  # or any one before it
        self._location = self._writer.written_location
        last = self._writer.segments.get(self._location >> 32)
        self._is_older = last is not None and last.version < VERSION
        self._next_position = replay.position + 1
        self._epoch = replay.epoch

    def close(self) -> None:
        try:
            self._writer.close()
        finally:
            self._space.close()
            self._reader.close()
            if self._lock_file is not None:
                self._files.close(self._lock_file)
                self._lock_file = None

    def _take_lock(self) -> int:
        try:
            return self._files.lock(os.path.join(self._folder, LOCK_NAME))
        except FileLocked as holder:
            raise JournalLocked(
                f"the journal in {self._folder} is in use by process {str(holder) or 'unknown'}. "
                "Stop that one first, or give this one another data folder.",
                folder=self._folder,
                pid=str(holder),
            ) from None

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
        if self._fill + blob_bytes + row_bytes > _MOST_STAGED_BYTES:
            raise LimitExceeded(
                f"one commit holds {MAX_COMMIT_BYTES} bytes at most, and with this it would have "
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

    def has_room(self, need_bytes: int = 0) -> bool:
        space = self._space
        if not space.room:
            space.tend()
        need_bytes += self._fill + self._row_bytes + self._sealed_bytes - self._written_bytes
        # A commit begins where at least so much of its segment is left, and that is allocated.
        return space.room and (need_bytes <= self._roll_below_bytes or space.has_free(need_bytes))

    def has_free(self, need_bytes: int) -> bool:
        return self._space.has_free(need_bytes)

    def _begin_commit(self) -> None:
        if not self._writer.is_open:
            raise RuntimeError("the journal is not open for writing: replay() has to be exhausted first")
        offset = self._location & 0xFFFFFFFF
        left_bytes = self._segment_bytes - offset
        if self._is_older and offset > HEADER_BYTES:  # commits of one segment all have its version
            self._is_older = False
            self._location = ((self._location >> 32) + 1) << 32 | HEADER_BYTES
            return
        if left_bytes >= self._roll_below_bytes or offset == HEADER_BYTES:
            return
        if self._space.has_spare or left_bytes < self._roll_floor_bytes:
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
        self._writer.write(self._sealed[0])
        self._sealed.popleft()
        self._written_bytes += commit.byte_count

    def mark(self) -> None:
        self._writer.mark()

    def sync(self) -> None:
        self._writer.sync()

    # --- preparing, in any one thread -------------------------------------------------------------------------------

    def is_prepared(self) -> bool:
        return self._writer.is_filled()

    def prepare(self) -> bool:
        return self._writer.fill()

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, locations: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        if not locations:
            return []
        if max(locations) < self._writer.written_location:
            return self._reader.read(locations, sizes)
        return [self._read_one(location, size) for location, size in zip(locations, sizes, strict=True)]

    def read_contents(
        self, locations: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[int], list[bytes], list[bytes | memoryview]]:
        if max(locations) < self._writer.written_location:
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

    # --- snapshots and dropping -------------------------------------------------------------------------------------

    def save_snapshot(self, position: int, chunks: Iterable[bytes], live_extents: Iterable[int]) -> None:
        snapshot = self._writer.describe_snapshot(position, live_extents)
        try:
            snapshot = snapshots.save(self._files, self._folder, snapshot, chunks)
        except OSError as error:
            self._space.raise_if_full(error, self._space.snapshot_bytes)
            raise JournalFailed(
                f"the snapshot of commit {position} could not be saved in {self._folder}: {error}"
            ) from error
        self._snapshot = snapshot
        self._space.snapshot_bytes = snapshot.file_bytes
        for older in snapshot_positions(self._files.list_folder(self._folder)):
            if older != position:
                self._remove(snapshot_name(older))

    def drop(self) -> list[int]:
        snapshot, segments = self._snapshot, self._writer.segments
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
            if self._remove(segment_name(number)):
                dropped.append(number)
            else:
                segments[number] = segment
        if dropped:
            self._space.look_again()
        return dropped

    def hold(self, position: int | None, since_ms: int | None) -> int:
        with self._holding.lock:
            self._holding.ask(position, since_ms)
            return whole(tuple(self._writer.segments.values()))[0].first_position

    def held(self) -> list[Held]:
        return self._holding.held(tuple(self._writer.segments.values()))

    def extent_bytes(self) -> dict[int, int]:
        return {segment.number: segment.file_bytes for segment in self._writer.finished_segments()}

    def _remove(self, name: str) -> bool:
        """False if the file could not be removed; it does no harm where it is, and the next drop tries again."""
        try:
            remove_if_there(self._files, os.path.join(self._folder, name))
        except OSError as error:
            log.warning("%s is no longer needed and cannot be removed: %s", os.path.join(self._folder, name), error)
            return False
        return True
