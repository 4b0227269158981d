"""The writing side of a segment journal: commits into segment files, in order, and how durable they are.

Everything here runs in the writer thread (or before it starts), under one lock, because another thread may describe a
snapshot meanwhile, and another one fills space ahead. A failed write or sync of a commit ends it: fail-stop.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from laneway.errors import JournalFailed, LanewayError, OutOfDescriptors
from laneway.journal.history.files import NO_SPACE, FileSystem
from laneway.journal.history.format import (
    HEADER_BYTES,
    LAST_MARK,
    MARK,
    NO_MARK,
    SNAPSHOT_PARTIAL_NAME,
    SPARE_NAME,
    Sealed,
    pack_commit,
    pack_mark,
    pack_segment_header,
    segment_name,
)
from laneway.journal.history.recovery import Replay, Segment, Survey, describe_snapshot, read_segment
from laneway.journal.history.snapshots import Snapshot, remove_if_there
from laneway.journal.interface import Place
from laneway.journal.segments.space import Space

REWRITE_BYTES = 4 << 20
FILL_BYTES = 256 << 10  # at once
FILL_AFTER_COMMITS = 1_000
FILL_FOR_BYTES = 48 << 10  # commits up to this size wait for the disk's metadata longer than for their bytes
USUAL_OVER_BYTES = 16 << 20

Durability = Literal["commit", "interval", "none"]

log = logging.getLogger("laneway.journal")


class _Current(NamedTuple):
    """The segment being written."""

    number: int
    file: int


class SegmentWriter:
    def __init__(
        self,
        files: FileSystem,
        folder: str,
        space: Space,
        *,
        durability: Durability,
        interval_ms: int,
        segment_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._folder = folder
        self._space = space
        self._durability = durability
        self._interval_ms = interval_ms
        self._segment_bytes = segment_bytes
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._failed: str | None = None
        self._store = 0
        self._current: _Current | None = None  # None: not open for writing
        self._allocated_bytes = 0
        self._end = HEADER_BYTES  # offset in the current segment after the last commit written
        self._is_marked = False
        self._filled_end = HEADER_BYTES  # offset in the current segment up to which its space has been written before
        self._can_fill = durability == "commit"
        self._commit_count = 0  # since the start
        self._usual_bytes = 0.0  # of the commit that a byte written lately is part of
        self._epoch = 0  # of the last commit written
        self._durable = 0  # the last position known to be durable
        self._synced_at_ms = 0
        self.readable = Place(1, HEADER_BYTES, 1)  # behind the last commit that is as durable as it will be made
        self.written = 0  # the last position written
        self.written_location = 0  # everything below has been written
        self.segments: dict[int, Segment] = {}

    @property
    def store(self) -> int:
        return self._store

    @property
    def is_open(self) -> bool:
        return self._current is not None

    # --- opening ----------------------------------------------------------------------------------------------------

    def open(self, found: Survey, replay: Replay, draw_store: Callable[[], int]) -> None:
        """Go on after the last good commit, with everything up to it durable and nothing behind it."""
        with self._lock:
            try:
                self._open(found, replay, draw_store)
            except OSError as error:
                raise self._fail("opened for writing", error) from error

    def _open(self, found: Survey, replay: Replay, draw_store: Callable[[], int]) -> None:
        for name in (SPARE_NAME, SNAPSHOT_PARTIAL_NAME):
            remove_if_there(self._files, os.path.join(self._folder, name))
        self.segments = {segment.number: segment for segment in (*found.needed, *found.chain)}
        for number in found.leftovers:
            self.segments[number] = self._leftover(number, found.store)
        self.written = self._durable = replay.position
        self._epoch = replay.epoch
        if found.chain:
            self._store = found.store
            self._current = self._reopen(found.chain[-1], replay)
        else:
            self._store = draw_store()
            self._current = self._begin_segment(1, HEADER_BYTES)
        # A rename or removal just before a crash may not have been durable; what follows relies on it.
        self._files.sync_folder(self._folder)
        self.written_location = self._current.number << 32 | self._end
        self.readable = Place(self._current.number, self._end, self.written + 1)
        self._synced_at_ms = self._now_ms()
        self._space.replace_spare()

    def _leftover(self, number: int, store: int) -> Segment:
        """One that a drop left, or that is kept for readers: of use to them if it is sound and of this journal."""
        try:
            segment, its_store = read_segment(self._files, self._folder, number)
        except LanewayError:
            its_store = None
        return segment if its_store == store else Segment(number, 0, 0, 0)

    def _reopen(self, segment: Segment, replay: Replay) -> _Current:
        path = os.path.join(self._folder, segment_name(segment.number))
        file = self._files.open(path, write=True)
        size = segment.file_bytes
        if replay.torn_end > replay.end:
            log.warning("%s: an unfinished commit at byte %d was never confirmed and is cut off", path, replay.end)
            # Overwritten before anything new stands there, so that no later crash can uncover these bytes again; and
            # not truncated, because on a full disk the space would not come back.
            for offset in range(replay.end, replay.torn_end, REWRITE_BYTES):
                self._files.write(file, [bytes(min(REWRITE_BYTES, replay.torn_end - offset))], offset)
        if replay.unproven:
            # After a failed sync the operating system may hold bytes as clean which never reached the disk; written
            # once more, they are certain to.
            self._rewrite(file, replay.unproven[0][1], replay.end)
        self._files.sync(file)
        if size < self._segment_bytes:
            try:
                self._files.allocate(file, size, self._segment_bytes - size)
                size = self._segment_bytes
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
        self._allocated_bytes, self._end = size, replay.end
        return _Current(segment.number, file)

    def _rewrite(self, file: int, start: int, end: int) -> None:
        for offset in range(start, end, REWRITE_BYTES):
            data = self._files.read(file, min(REWRITE_BYTES, end - offset), offset)
            self._files.write(file, [data], offset)

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, sealed: Sealed) -> None:
        with self._lock:
            current = self._usable()
            try:
                if sealed.location >> 32 != current.number:
                    current = self._roll(current, sealed)
                self._put(current, sealed)
            except OSError as error:
                raise self._fail("written", error) from error
            if self._durability == "interval" and self._now_ms() - self._synced_at_ms >= self._interval_ms:
                self._sync(current)
            self._space.tend()

    def mark(self) -> None:
        with self._lock:
            current = self._usable()
            if self._durability == "interval":
                self._sync(current)  # due or not: nobody may come by again for a long time
            if not self._is_marked:
                self._mark(current, MARK, sync=False)
            self._space.tend()

    def sync(self) -> None:
        with self._lock:
            self._sync(self._usable())

    def is_filled(self) -> bool:
        """Whether fill() would do nothing."""
        if not self._can_fill or self._commit_count < FILL_AFTER_COMMITS or self._usual_bytes > FILL_FOR_BYTES:
            return True
        filled_end = max(self._filled_end, self._end)
        return filled_end >= self._allocated_bytes and self._space.filled_bytes >= self._space.spare_bytes

    def fill(self) -> bool:
        """Write zeros over a piece of the space that is only allocated, in this segment and then in the spare: the disk
        syncs a small commit sooner where no metadata has to change. False when there is nothing left to fill."""
        with self._lock:
            if self._failed is not None or self._current is None or self.is_filled():
                return False
            try:
                file = self._fill(self._current)
            except OutOfDescriptors:
                return False
            except OSError as error:
                return self._not_filled(error)
        try:
            # Not under the lock, so that a commit can be written meanwhile; and through a file opened for this alone,
            # because what goes wrong with a commit is told once for each opened file.
            self._files.sync(file)
        except OSError as error:
            return self._not_filled(error)
        finally:
            self._files.close(file)
        return True

    def _fill(self, current: _Current) -> int:
        space, start = self._space, max(self._filled_end, self._end)
        if (size := min(FILL_BYTES, self._allocated_bytes - start)) > 0:
            file = self._write_zeros(os.path.join(self._folder, segment_name(current.number)), start, size)
            self._filled_end = start + size
        else:
            size = min(FILL_BYTES, space.spare_bytes - space.filled_bytes)
            file = self._write_zeros(space.spare_path, space.filled_bytes, size)
            space.filled_bytes += size
        return file

    def _write_zeros(self, path: str, offset: int, size: int) -> int:
        file = self._files.open(path, write=True)
        try:
            self._files.write(file, [bytes(size)], offset)
        except OSError:
            self._files.close(file)
            raise
        return file

    def _not_filled(self, error: OSError) -> bool:
        """It would have been nice to have; if the disk is in trouble, the next commit finds out."""
        log.warning("the space ahead in %s was not written beforehand (%s)", self._folder, error)
        self._can_fill = False
        return False

    def close(self) -> None:
        """With a durable mark at the end, unless the journal failed before or now."""
        with self._lock:
            current, self._current = self._current, None
            if current is None:
                return
            try:
                if self._failed is None:
                    self._sync(current)
                    self._mark(current, MARK, sync=True)
                elif self._durable < self.written:
                    raise JournalFailed(self._failed)  # this end is not clean: what was confirmed may be lost
            finally:
                self._files.close(current.file)

    def describe_snapshot(self, position: int, live_extents: Iterable[int]) -> Snapshot:
        """What a snapshot of this position rests on, once that position is durable."""
        with self._lock:
            current = self._usable()
            if position > self.written:
                raise ValueError(f"commit {position} has not been written, the last one was {self.written}")
            if position > self._durable:
                self._sync(current)
            return describe_snapshot(position, self._store, self.segments, live_extents, self._folder)

    def finished_segments(self) -> list[Segment]:
        last = self._current.number if self._current is not None else 0
        return [segment for segment in tuple(self.segments.values()) if segment.number < last]

    def _usable(self) -> _Current:
        if self._failed is not None:
            raise JournalFailed(self._failed)
        if self._current is None:
            raise RuntimeError("the journal is not open for writing: replay() has to be exhausted first")
        return self._current

    def _put(self, current: _Current, sealed: Sealed) -> None:
        offset = sealed.location & 0xFFFFFFFF
        end = offset + sealed.length
        if end > self._allocated_bytes:
            self._allocated_bytes = self._space.extend(current.file, self._allocated_bytes, end)
        header, body = pack_commit(sealed, store=self._store, durable=self._durable)
        sync = self._durability == "commit"
        try:
            self._files.write(current.file, [header, body, NO_MARK], offset, sync=sync)
        except OSError as error:
            # On a disk that copies on write even allocated space can run out. Writing the same bytes to the same
            # place again makes good whatever happened to them, so this is no failure of the journal.
            self._space.raise_if_full(error, sealed.length)
            raise
        self._end = end
        self._is_marked = False
        self._commit_count += 1
        self._usual_bytes += (sealed.length - self._usual_bytes) * min(sealed.length / USUAL_OVER_BYTES, 1.0)
        self.written, self._epoch = sealed.position, sealed.epoch
        self.written_location = sealed.location + sealed.length
        if sync:
            self._durable = sealed.position
        if sync or self._durability == "none":  # in which nothing more is done for it
            self.readable = Place(current.number, end, sealed.position + 1)

    def _roll(self, current: _Current, sealed: Sealed) -> _Current:
        """Go on in the next segment. Each step is durable before the next, so that recovery may rely on it:

        a segment that has a successor is complete; one that says it has a successor has one.
        """
        self._sync(current)
        end = self._end
        following = self._begin_segment(sealed.location >> 32, HEADER_BYTES + sealed.length, before=current)
        self._files.truncate(current.file, end)
        self._files.close(current.file)
        self.segments[current.number] = self.segments[current.number]._replace(file_bytes=end)
        self._current = following
        self._space.replace_spare()
        return following

    def _begin_segment(self, number: int, need_bytes: int, before: _Current | None = None) -> _Current:
        first_position = self.written + 1
        path = os.path.join(self._folder, segment_name(number))

        def header(begun_bytes: int) -> bytes:
            return pack_segment_header(number, first_position, self._store, self._epoch, begun_bytes)

        filled_bytes = self._space.filled_bytes if self._space.has_spare else 0
        file, allocated_bytes = self._space.take(path, header, need_bytes)
        self._filled_end = max(filled_bytes, HEADER_BYTES)
        if before is not None:
            self._mark(before, LAST_MARK, sync=True)
        self.segments[number] = Segment(number, first_position, self._epoch, allocated_bytes)
        self._allocated_bytes, self._end, self._is_marked = allocated_bytes, HEADER_BYTES, False
        return _Current(number, file)

    def _mark(self, current: _Current, kind: int, *, sync: bool) -> None:
        """Proof that the last commit had been durable, in the place it keeps for that; none if it is not durable."""
        if self._durable < self.written or self._end == HEADER_BYTES:
            return
        at = self._end - HEADER_BYTES
        packed = pack_mark(kind, self.written, self._epoch, store=self._store, location=current.number << 32 | at)
        try:
            self._files.write(current.file, [packed], at, sync=sync)
        except OSError as error:
            if error.errno not in NO_SPACE:  # a mark is worth having, not worth failing for
                raise self._fail("marked", error) from error
        self._is_marked = True

    def _sync(self, current: _Current) -> None:
        if self._durable < self.written:
            try:
                self._files.sync(current.file)
            except OSError as error:
                raise self._fail("synced", error) from error
            self._durable = self.written
            self.readable = Place(current.number, self._end, self.written + 1)
        self._synced_at_ms = self._now_ms()

    def _fail(self, what: str, error: OSError) -> JournalFailed:
        """After this nothing is known about what the disk holds, so nothing more is written."""
        self._failed = (
            f"the journal in {self._folder} could not be {what} ({error}). Nothing more is written until a restart, "
            "which keeps all that was confirmed; look at the disk and the system log first."
        )
        log.critical(self._failed)
        return JournalFailed(self._failed)
