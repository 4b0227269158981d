"""SegmentJournal: the history of one partition in segment files of one folder.

Here is what ties the parts together: writer.py (writing), space.py (disk space held in advance), and what all journals
share: ../stored.py (gathering, reading, dropping) and ../history/ (the bytes, and what a crash can leave).

    stage ─▶ gathering ─seal─▶ _sealed ─write─▶ segment file ─sync─▶ durable
                                                  └ mark: proof, left when idle, that the last commit was durable
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable

from laneway.errors import JournalFailed, JournalLocked
from laneway.journal.history import snapshots
from laneway.journal.history.files import FileLocked, FileSystem, RealFiles
from laneway.journal.history.format import (
    LOCK_NAME,
    MAX_SEGMENT_BYTES,
    segment_name,
    snapshot_name,
    snapshot_positions,
)
from laneway.journal.history.recovery import Replay, Survey
from laneway.journal.history.snapshots import Snapshot, remove_if_there
from laneway.journal.interface import DiskUse
from laneway.journal.segments.space import Space
from laneway.journal.segments.writer import Durability, SegmentWriter
from laneway.journal.stored import StoredJournal

DEFAULT_SEGMENT_BYTES = 64 << 20
DEFAULT_RESERVE_BYTES = 32 << 20
DEFAULT_INTERVAL_MS = 50
MIN_SEGMENT_BYTES = 1 << 10
RESERVED_DESCRIPTORS = 8  # for the files of the journal, when connections hold all others

log = logging.getLogger("laneway.journal")


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class SegmentJournal(StoredJournal):
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
        super().__init__(self._files, self._folder, self._writer, max_open_files=max_open_files)

    # --- start and end ----------------------------------------------------------------------------------------------

    def _open(self, found: Survey, replay: Replay, snapshot: Snapshot | None) -> None:
        self._space.snapshot_bytes = snapshot.file_bytes if snapshot else 0
        self._writer.open(found, replay, self._draw_store)

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

    # --- room -------------------------------------------------------------------------------------------------------

    def has_room(self, need_bytes: int = 0) -> bool:
        space = self._space
        if not space.room:
            space.tend()
        need_bytes += self._fill + self._row_bytes + self._sealed_bytes - self._written_bytes
        # A commit begins where at least so much of its segment is left, and that is allocated.
        return space.room and (need_bytes <= self._roll_below_bytes or space.has_free(need_bytes))

    def has_free(self, need_bytes: int) -> bool:
        return self._space.has_free(need_bytes)

    def _is_roll_due(self, offset: int) -> bool:
        left_bytes = self._segment_bytes - offset
        if left_bytes >= self._roll_below_bytes:
            return False
        return self._space.has_spare or left_bytes < self._roll_floor_bytes

    # --- preparing, in any one thread -------------------------------------------------------------------------------

    def is_prepared(self) -> bool:
        return self._writer.is_filled()

    def prepare(self) -> bool:
        return self._writer.fill()

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
        dropped = super().drop()
        if dropped:
            self._space.look_again()
        return dropped

    def _remove_segment(self, number: int) -> bool:
        return self._remove(segment_name(number))

    def disk(self) -> DiskUse:
        space, segments = self._space, tuple(self._writer.segments.values())
        journal_bytes = sum(segment.file_bytes for segment in segments) + space.snapshot_bytes + space.spare_bytes
        return DiskUse(journal_bytes, self._files.free_bytes(self._folder))

    def _remove(self, name: str) -> bool:
        """False if the file could not be removed; it does no harm where it is, and the next drop tries again."""
        try:
            remove_if_there(self._files, os.path.join(self._folder, name))
        except OSError as error:
            log.warning("%s is no longer needed and cannot be removed: %s", os.path.join(self._folder, name), error)
            return False
        return True
