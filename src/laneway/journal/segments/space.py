"""Disk space held in advance: the spare segment, and whether there is room for more messages.

A commit inside a preallocated segment cannot meet a full disk. So as long as the spare is there, publishing may go on;
when it cannot be made, publishing stops while settling lives on the rest of the current segment.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from laneway.errors import DiskFull, OutOfDescriptors
from laneway.journal.history.files import NO_SPACE, FileSystem
from laneway.journal.history.format import SPARE_NAME
from laneway.journal.history.snapshots import remove_if_there

LOOK_EVERY_MS = 1_000

log = logging.getLogger("laneway.journal")


class Space:
    def __init__(
        self,
        files: FileSystem,
        folder: str,
        *,
        segment_bytes: int,
        reserve_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._files = files
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self._now_ms = now_ms
        self._next_look_ms: int | None = None
        self._spare: int | None = None
        self.spare_path = os.path.join(folder, SPARE_NAME)
        self.spare_bytes = 0  # how large it is
        self.filled_bytes = 0  # how much of it was not only allocated, but written
        self._lock = threading.Lock()
        self.snapshot_bytes = 0  # of the last snapshot: the next one must find room beside it
        self.room = True

    @property
    def has_spare(self) -> bool:
        return self._spare is not None

    def tend(self) -> None:
        """Make the spare if it is missing, and look how much is free; at most once a second."""
        now_ms = self._now_ms()
        if self._next_look_ms is not None and now_ms < self._next_look_ms:
            return
        # Two threads may come here. One looking is enough, and none of them should wait.
        if self._lock.acquire(blocking=False):
            try:
                self._next_look_ms = now_ms + LOOK_EVERY_MS
                self._look()
            finally:
                self._lock.release()

    def has_free(self, need_bytes: int) -> bool:
        """Whether so much is free now beyond the reserve."""
        try:
            return self._files.free_bytes(self._folder) >= need_bytes + self._reserve_bytes + self.snapshot_bytes
        except OSError:
            return False

    def look_again(self) -> None:
        """Space has come back: the next one to ask shall see it."""
        self._next_look_ms = None

    def replace_spare(self) -> None:
        """The spare was taken: make the next one now, whenever the last look was."""
        with self._lock:
            if self._spare is None:
                self._next_look_ms = self._now_ms() + LOOK_EVERY_MS
                self._look()

    def take(self, path: str, header: Callable[[int], bytes], need_bytes: int) -> tuple[int, int]:
        """Begin a segment under this name, durably; its open file and how much is allocated, which its header says too.

        Raises DiskFull, and then nothing has changed; any other OSError means the folder can no longer be trusted.
        """
        with self._lock:
            try:
                if self._spare is None:
                    self._spare = self._make_spare(need_bytes)
                file = self._spare
                allocated_bytes = self.extend(file, self._files.size(file), need_bytes)
                self._files.write(file, [header(allocated_bytes)], 0, sync=True)
                self._files.rename(self.spare_path, path)
            except OSError as error:
                self.raise_if_full(error, need_bytes)
                raise
            self._spare, self.spare_bytes, self.filled_bytes = None, 0, 0
            self._files.sync_folder(self._folder)
            return file, allocated_bytes

    def extend(self, file: int, allocated_bytes: int, need_bytes: int) -> int:
        """See to it that a segment has this many bytes allocated; how many it has then. Raises DiskFull."""
        if need_bytes <= allocated_bytes:
            return allocated_bytes
        # Some more than needed, so that a segment does not grow in crumbs; exactly that if there is no more.
        try:
            goal = need_bytes + self._segment_bytes // 16
            self._files.allocate(file, allocated_bytes, goal - allocated_bytes)
        except OSError:
            goal = need_bytes
            try:
                self._files.allocate(file, allocated_bytes, goal - allocated_bytes)
            except OSError as error:
                self.raise_if_full(error, need_bytes - allocated_bytes)
                raise
        return goal

    def raise_if_full(self, error: OSError, need_bytes: int) -> None:
        """Raise DiskFull if that is what the operating system means."""
        if error.errno in NO_SPACE:
            self._set_room(False, str(error))
            raise DiskFull(
                f"no space is left for the journal in {self._folder}: {need_bytes} bytes are needed ({error}). "
                "Free some space on that disk; work goes on by itself then.",
                needed_bytes=need_bytes,
            ) from error

    def close(self) -> None:
        with self._lock:
            if self._spare is not None:
                self._files.close(self._spare)
                self._spare, self.spare_bytes, self.filled_bytes = None, 0, 0
                remove_if_there(self._files, self.spare_path)

    def _look(self) -> None:
        reserve_bytes = self._reserve_bytes + self.snapshot_bytes
        try:
            free_bytes = self._files.free_bytes(self._folder)
            if self._spare is None and free_bytes >= self._segment_bytes + reserve_bytes:
                self._spare = self._make_spare(self._segment_bytes)
                free_bytes -= self._segment_bytes
            why = f"{free_bytes} bytes are free, {reserve_bytes} are held in reserve"
        except OSError as error:
            free_bytes, why = 0, str(error)
        except OutOfDescriptors as trouble:  # that tells nothing about the disk
            log.warning("the next segment in %s is not made yet: %s", self._folder, trouble)
            return
        self._set_room(self._spare is not None and free_bytes >= reserve_bytes, why)

    def _set_room(self, room: bool, why: str) -> None:
        if self.room and not room:
            log.warning("disk space is low in %s: no room for new messages (%s)", self._folder, why)
        elif room and not self.room:
            log.info("disk space is back in %s: new messages are accepted again", self._folder)
        self.room = room

    def _make_spare(self, need_bytes: int) -> int:
        remove_if_there(self._files, self.spare_path)
        file = self._files.open(self.spare_path, write=True, create=True)
        try:
            self._allocate_first(file, need_bytes)
            self.filled_bytes, self.spare_bytes = 0, self._files.size(file)
        except OSError:
            self._files.close(file)
            remove_if_there(self._files, self.spare_path)
            raise
        return file

    def _allocate_first(self, file: int, need_bytes: int) -> None:
        try:
            self._files.allocate(file, 0, max(need_bytes, self._segment_bytes))
        except OSError:
            if need_bytes >= self._segment_bytes:
                raise
            self._files.allocate(file, 0, need_bytes)
