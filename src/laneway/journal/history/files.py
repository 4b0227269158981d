"""Every touch of the disk goes through this small interface, so that tests can stand in a disk that fails on purpose
(tests/simulation/faulty_files.py). RealFiles is the operating system, as it is on Linux.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from laneway.errors import OutOfDescriptors

#: What the operating system says when there is no more space: the disk, the quota, the limit of the process.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: … and when no more files can be opened: by this process, by all of them.
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})

_T = TypeVar("_T")


class FileLocked(Exception):
    """Someone else holds the lock; the text is what they left in it, usually their process id."""


class ReadableFiles(Protocol):
    """What reading a history takes. It need not be a folder: postgres/files.py reads tables."""

    def list_folder(self, path: str) -> list[str]:
        """As open(), it may raise OutOfDescriptors."""

    def open(self, path: str) -> int:
        """Raises OutOfDescriptors if no file can be opened for the moment."""

    def close(self, file: int) -> None: ...

    def size(self, file: int) -> int: ...

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Shorter than asked only at the end of the file."""

    def read_ahead(self, file: int, offset: int, size: int) -> None:
        """A hint that these bytes will be read soon."""


class FileSystem(ReadableFiles, Protocol):
    def make_folder(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None:
        """Make the folder's entries (created, renamed, removed files) durable."""

    def free_bytes(self, path: str) -> int:
        """What an ordinary user may still allocate on the disk that holds this path."""

    def lock(self, path: str) -> int:
        """Take the lock, leaving this process's id in the file; released by close(). Raises FileLocked."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        """Raises OutOfDescriptors, and has done nothing, if no file can be opened for the moment."""

    def write(self, file: int, buffers: Sequence[bytes], offset: int, *, sync: bool = False) -> None:
        """All of the buffers, one after the other. With sync, these bytes (not older ones) are durable on return."""

    def sync(self, file: int) -> None:
        """Make all the file's bytes and its size durable."""

    def allocate(self, file: int, offset: int, size: int) -> None:
        """Reserve space, which reads as zeros, and extend the file over it."""

    def truncate(self, file: int, size: int) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...


class RealFiles:
    """`reserve_count` descriptors are kept back: connections may take all others, and yet files can be opened. A folder
    stays open once it was synced, so that syncing it again, half-way through a change of segments, needs none."""

    def __init__(self, *, reserve_count: int = 0) -> None:
        self._reserve_count = reserve_count
        self._reserve: list[int] = []
        self._folders: dict[str, int] = {}
        self._lock = threading.Lock()
        self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if reserve_count else -1
        if reserve_count:
            self._reserve += [os.dup(self._null) for _ in range(reserve_count)]
        weakref.finalize(self, _close_all, self._null, self._reserve, self._folders)

    def _with_descriptor(self, call: Callable[[], _T]) -> _T:
        """What a call that opens something returns; if need be with a descriptor of the reserve."""
        while True:
            try:
                return call()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR:
                    raise
                with self._lock:  # whoever else wants one may take what is given up here: so there are several
                    if not self._reserve:
                        raise OutOfDescriptors(
                            f"no more files can be opened for the moment ({error.strerror}); try again in a moment"
                        ) from None
                    os.close(self._reserve.pop())

    def make_folder(self, path: str) -> None:
        os.makedirs(path, mode=0o750, exist_ok=True)

    def list_folder(self, path: str) -> list[str]:
        return self._with_descriptor(lambda: os.listdir(path))

    def sync_folder(self, path: str) -> None:
        folder = self._folders.get(path)
        if folder is None:
            folder = self._with_descriptor(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY))
            self._folders[path] = folder
        os.fsync(folder)

    def free_bytes(self, path: str) -> int:
        disk = os.statvfs(path)
        return disk.f_bavail * disk.f_frsize

    def lock(self, path: str) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 64, 0).decode("ascii", "replace").strip()
            os.close(file)
            raise FileLocked(holder) from None
        except BaseException:
            os.close(file)
            raise
        os.ftruncate(file, 0)
        try:
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            if error.errno not in NO_SPACE:  # the lock holds without the id, and a full disk must not prevent a start
                raise
        return file

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if create else 0)
        return self._with_descriptor(lambda: os.open(path, flags, 0o640))

    def close(self, file: int) -> None:
        if len(self._reserve) < self._reserve_count:
            with self._lock:
                os.dup2(self._null, file, inheritable=False)  # in one step, so that nobody else gets it in between
                self._reserve.append(file)
        else:
            os.close(file)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def read(self, file: int, size: int, offset: int) -> bytes:
        data = os.pread(file, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]  # a read of more than 2 GiB, or one that met the end of the file
        done = len(data)
        while done < size and (data := os.pread(file, size - done, offset + done)):
            pieces.append(data)
            done += len(data)
        return b"".join(pieces)

    def write(self, file: int, buffers: Sequence[bytes], offset: int, *, sync: bool = False) -> None:
        # Writing and syncing in one call is as fast as two (docs/journal.md) and gives up the GIL once, not twice.
        flags = os.RWF_DSYNC if sync else 0
        total = sum(map(len, buffers))
        done = os.pwritev(file, buffers, offset, flags)
        if done < total:  # beyond 2 GiB, or the disk became full on the way: what is left says which
            rest = memoryview(b"".join(buffers))
            while done < total:
                done += os.pwritev(file, [rest[done:]], offset + done, flags)

    def sync(self, file: int) -> None:
        os.fdatasync(file)

    def allocate(self, file: int, offset: int, size: int) -> None:
        os.posix_fallocate(file, offset, size)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def read_ahead(self, file: int, offset: int, size: int) -> None:
        # Asking costs time also for what is in memory already, as it mostly is: each page is looked for. So the last
        # byte is tried first, without waiting for it.
        try:
            is_there = os.preadv(file, [bytearray(1)], offset + size - 1, os.RWF_NOWAIT) == 1
        except OSError:  # not there, or this file system cannot tell
            is_there = False
        if not is_there:
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_WILLNEED)


def _close_all(null: int, reserve: list[int], folders: dict[str, int]) -> None:
    for file in (*reserve, *folders.values(), *([null] if null >= 0 else [])):
        os.close(file)
