"""A disk in memory that fails on purpose, the same way for the same seed. It stands in for segments.files.RealFiles.

What the process sees and what would survive a power cut are kept apart, per file and for the names in the folder:

    visible   what reads return                                          write, truncate, allocate, rename … change it
    stable    what is certain to survive                                 sync, write(sync=True), sync_folder change it
    between   at a power cut any subset of the dirty sectors (512 bytes), sizes and names survives

A crash is an exception, SimulatedCrash, at a chosen operation, which may have had no effect, part of it, or all of it.
After it every call raises, until restart(). A failed sync is as bad as on Linux: the bytes stay readable but are never
tried again, so they are gone after the next power cut unless they are written anew.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from random import Random

from laneway.errors import OutOfDescriptors
from laneway.journal.history.files import FileLocked

SECTOR_BYTES = 512


class SimulatedCrash(BaseException):
    """Not an Exception, so that no code under test can take it for an ordinary error and go on."""


class _Inode:
    __slots__ = ("dirty", "links", "opens", "stable", "visible")

    def __init__(self) -> None:
        self.visible = bytearray()
        self.stable = bytearray()
        self.dirty: list[tuple[int, int]] = []
        self.links = 0
        self.opens = 0


class FaultyFiles:
    """Faults are armed by setting attributes; all counts begin with 1 and include everything since construction.

    crash_at_operation   the Nth operation that changes something crashes
    fail_sync_at         the Nth sync (of a file, a written range or the folder) raises EIO
    fail_writes_with     as long as it is set, every write raises this errno and has no effect
    capacity_bytes       beyond it, writing and allocating raise ENOSPC
    has_descriptors      while it is False, nothing can be opened
    """

    def __init__(self, seed: int, *, capacity_bytes: int = 1 << 40) -> None:
        self.random = Random(seed)
        self.capacity_bytes = capacity_bytes
        self.crash_at_operation: int | None = None
        self.fail_sync_at: int | None = None
        self.fail_writes_with: int | None = None
        self.has_descriptors = True
        self.operation_count = 0
        self.sync_count = 0
        self.used_bytes = 0
        self.crashed = False
        self.trace: deque[str] = deque(maxlen=40)  # the last operations, to print beside a failing seed
        self._names: dict[str, _Inode] = {}
        self._stable_names: dict[str, _Inode] = {}
        self._name_changes: list[tuple[str, str | None, _Inode | None]] = []  # (path, gone path, inode now at path)
        self._files: dict[int, tuple[_Inode, str]] = {}
        self._locked: dict[int, str] = {}
        self._next_file = 1000

    # --- what a test does -------------------------------------------------------------------------------------------

    def restart(self, *, power_loss: bool) -> None:
        """The process is gone. With a power loss, so is whatever the seed takes of what was not synced.

        The disk is well again: faults that were armed are not any more.
        """
        self._files.clear()
        self._locked.clear()
        for inode in self._names.values():
            inode.opens = 0
        if power_loss:
            self._lose_unsynced()
        self.crashed = False
        self.crash_at_operation = self.fail_sync_at = self.fail_writes_with = None
        self.has_descriptors = True
        inodes = {id(inode): inode for inode in self._names.values()}
        for inode in inodes.values():
            inode.links = 0
        for inode in self._names.values():
            inode.links += 1
        self.used_bytes = sum(len(inode.visible) for inode in inodes.values())

    def flip_bit(self, path: str, offset: int, bit: int) -> None:
        inode = self._names[path]
        for copy in (inode.visible, inode.stable):
            if offset < len(copy):
                copy[offset] ^= 1 << bit

    def contents(self, path: str) -> bytes:
        return bytes(self._names[path].visible)

    def put_contents(self, path: str, data: bytes) -> None:
        """Replace a file, durably, behind the back of the code under test."""
        inode = _Inode()
        inode.visible[:] = inode.stable[:] = data
        inode.links = 1
        self._names[path] = self._stable_names[path] = inode

    def delete(self, path: str) -> None:
        """Lose a file, durably, behind the back of the code under test."""
        self._names.pop(path)
        self._stable_names.pop(path, None)

    def paths(self) -> list[str]:
        return sorted(self._names)

    # --- what the code under test does ------------------------------------------------------------------------------

    def make_folder(self, path: str) -> None:
        self._alive()

    def list_folder(self, path: str) -> list[str]:
        self._alive()
        self._need_descriptor()
        return [os.path.basename(name) for name in self._names if os.path.dirname(name) == path]

    def sync_folder(self, path: str) -> None:
        crash_after = self._step("sync_folder", path)
        self._count_sync(None, ())
        self._stable_names = dict(self._names)
        self._name_changes.clear()
        self._end_step(crash_after)

    def free_bytes(self, path: str) -> int:
        self._alive()
        return max(0, self.capacity_bytes - self.used_bytes)

    def lock(self, path: str) -> int:
        self._alive()
        if path in self._locked.values():
            raise FileLocked("1")
        self._next_file += 1
        self._locked[self._next_file] = path
        return self._next_file

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        self._alive()
        self._need_descriptor()
        if not create:
            if path not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return self._opened(self._names[path], path)
        if path in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        crash_after = self._step("create", path)
        inode = _Inode()
        self._link(path, inode)
        self._name_changes.append((path, None, inode))
        self._end_step(crash_after)
        return self._opened(inode, path)

    def close(self, file: int) -> None:
        self._alive()
        if file in self._locked:
            del self._locked[file]
            return
        inode, _ = self._files.pop(file)
        inode.opens -= 1
        self._forget_if_unused(inode)

    def size(self, file: int) -> int:
        self._alive()
        return len(self._files[file][0].visible)

    def read(self, file: int, size: int, offset: int) -> bytes:
        self._alive()
        return bytes(self._files[file][0].visible[offset : offset + size])

    def write(self, file: int, buffers: Sequence[bytes], offset: int, *, sync: bool = False) -> None:
        inode, path = self._files[file]
        data = b"".join(buffers)
        self._alive()
        if self.fail_writes_with is not None:
            raise OSError(self.fail_writes_with, os.strerror(self.fail_writes_with), path)
        self._need_space(inode, offset + len(data))
        if self._crashes_now("write", path):
            # Somewhere in the middle: a part of the bytes is there, and none of them is certain to survive.
            self._put(inode, data[: self.random.randint(0, len(data))], offset)
            raise SimulatedCrash
        self._put(inode, data, offset)
        if sync:
            written = [(offset, offset + len(data))]
            self._count_sync(inode, written)
            self._stabilise(inode, written)
            inode.dirty.pop()

    def sync(self, file: int) -> None:
        inode, path = self._files[file]
        crash_after = self._step("sync", path)
        self._count_sync(inode, inode.dirty)
        self._stabilise(inode, inode.dirty)
        inode.dirty.clear()
        self._end_step(crash_after)

    def allocate(self, file: int, offset: int, size: int) -> None:
        inode, path = self._files[file]
        self._alive()
        self._need_space(inode, offset + size)
        crash_after = self._step("allocate", path)
        self._grow(inode, offset + size)
        self._end_step(crash_after)

    def truncate(self, file: int, size: int) -> None:
        inode, path = self._files[file]
        crash_after = self._step("truncate", path)
        if size < len(inode.visible):
            inode.dirty.append((size, len(inode.visible)))
            self.used_bytes -= len(inode.visible) - size
            del inode.visible[size:]
        else:
            self._grow(inode, size)
        self._end_step(crash_after)

    def rename(self, old: str, new: str) -> None:
        crash_after = self._step("rename", new)
        inode = self._names[old]
        self._link(new, inode)
        self._unlink(old)
        self._name_changes.append((new, old, inode))
        self._end_step(crash_after)

    def remove(self, path: str) -> None:
        self._alive()
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        crash_after = self._step("remove", path)
        self._unlink(path)
        self._name_changes.append((path, path, None))
        self._end_step(crash_after)

    def read_ahead(self, file: int, offset: int, size: int) -> None:
        self._alive()

    # --- crashing and failing ---------------------------------------------------------------------------------------

    def _alive(self) -> None:
        if self.crashed:
            raise SimulatedCrash

    def _crashes_now(self, what: str, path: str) -> bool:
        self._alive()
        self.operation_count += 1
        self.trace.append(f"{self.operation_count} {what} {os.path.basename(path)}")
        if self.operation_count == self.crash_at_operation:
            self.crashed = True
        return self.crashed

    def _step(self, what: str, path: str) -> bool:
        """True if the crash comes after the operation; raises if it comes before."""
        if not self._crashes_now(what, path):
            return False
        if self.random.random() < 0.5:
            raise SimulatedCrash
        return True

    def _end_step(self, crash_after: bool) -> None:
        if crash_after:
            raise SimulatedCrash

    def _count_sync(self, inode: _Inode | None, ranges: Sequence[tuple[int, int]]) -> None:
        self.sync_count += 1
        if self.sync_count != self.fail_sync_at:
            return
        if inode is not None:
            # Some of it reached the disk; the rest is held to be clean from now on.
            lost = [part for part in _sectors(ranges, len(inode.visible)) if self.random.random() < 0.5]
            kept = [part for part in _sectors(ranges, len(inode.visible)) if part not in set(lost)]
            self._stabilise(inode, kept)
            inode.dirty.clear()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _lose_unsynced(self) -> None:
        share = self.random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        inodes = {id(inode): inode for inode in (*self._names.values(), *self._stable_names.values())}
        names = dict(self._stable_names)
        for path, gone, inode in self._name_changes:
            if self.random.random() < share:
                if gone is not None:
                    names.pop(gone, None)
                if inode is not None:
                    names[path] = inode
        for inode in inodes.values():
            survived = bytearray(inode.stable)
            if self.random.random() < share:
                _resize(survived, len(inode.visible))
            for start, end in _sectors(inode.dirty, len(survived)):
                if self.random.random() < share:
                    part = inode.visible[start:end]
                    survived[start : start + len(part)] = part
            inode.visible = survived
            inode.stable = bytearray(survived)
            inode.dirty = []
        self._names = names
        self._stable_names = dict(names)
        self._name_changes = []

    # --- bytes and names --------------------------------------------------------------------------------------------

    def _put(self, inode: _Inode, data: bytes, offset: int) -> None:
        end = offset + len(data)
        if end > len(inode.visible):
            self._grow(inode, end)
        inode.visible[offset:end] = data
        inode.dirty.append((offset, end))

    def _grow(self, inode: _Inode, size: int) -> None:
        if size > len(inode.visible):
            self.used_bytes += size - len(inode.visible)
            _resize(inode.visible, size)

    def _need_descriptor(self) -> None:
        if not self.has_descriptors:
            raise OutOfDescriptors("no more files can be opened for the moment")

    def _need_space(self, inode: _Inode, size: int) -> None:
        if size > len(inode.visible) and self.used_bytes + size - len(inode.visible) > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _stabilise(self, inode: _Inode, ranges: Sequence[tuple[int, int]]) -> None:
        """Whole sectors reach the disk, and with them the size of the file."""
        if len(inode.stable) != len(inode.visible):
            _resize(inode.stable, len(inode.visible))
        for start, end in ranges:
            start -= start % SECTOR_BYTES
            end = min(end + -end % SECTOR_BYTES, len(inode.visible))
            inode.stable[start:end] = inode.visible[start:end]

    def _opened(self, inode: _Inode, path: str) -> int:
        self._next_file += 1
        self._files[self._next_file] = (inode, path)
        inode.opens += 1
        return self._next_file

    def _link(self, path: str, inode: _Inode) -> None:
        if path in self._names:
            self._unlink(path)
        self._names[path] = inode
        inode.links += 1

    def _unlink(self, path: str) -> None:
        inode = self._names.pop(path)
        inode.links -= 1
        self._forget_if_unused(inode)

    def _forget_if_unused(self, inode: _Inode) -> None:
        if not inode.links and not inode.opens:
            self.used_bytes -= len(inode.visible)


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _sectors(ranges: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    """The sectors these ranges touch, each once, as (start, end)."""
    numbers = {
        number for start, end in ranges for number in range(start // SECTOR_BYTES, -(-min(end, size) // SECTOR_BYTES))
    }
    return [(number * SECTOR_BYTES, min((number + 1) * SECTOR_BYTES, size)) for number in sorted(numbers)]
