"""The data folder of a server: where its partitions are, how many there are, and that one server alone uses it.

    data/                  partition 0: journal, snapshots, what is staged (journal/history/format.py)
    data/partitions/N/     partition N, the same
    data/processes/lock    held while a server of several processes runs
    data/processes/*.sock  what its processes reach each other by; in a folder of the system's if the path is too long

There is no other record of how many there are, so making one more is one step: its folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from pathlib import Path

from laneway.errors import JournalLocked, StartError
from laneway.journal.history.format import LOCK_NAME, segment_numbers, snapshot_positions

PARTITIONS, PROCESSES = "partitions", "processes"
_LOCK = "lock"
_SOCKET_PATH_BYTES = 107  # of sun_path, without its zero
_LONGEST_NAME = "/partition-1024.sock"


class DataFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def partition(self, number: int) -> Path:
        return self.path / PARTITIONS / str(number) if number else self.path

    def partition_count(self) -> int:
        """How many there are; of a new folder one."""
        names = self._names(PARTITIONS)
        numbers = {int(name) for name in names if name.isascii() and name.isdigit() and str(int(name)) == name}
        for number in range(1, len(numbers) + 1):
            if number not in numbers:
                raise StartError(
                    f"{self.path / PARTITIONS} has a folder {max(numbers)} and no folder {number}, which held a part "
                    "of the queues: bring it back"
                )
        return 1 + len(numbers)

    def is_new(self) -> bool:
        """Whether nothing was written yet: the journal of partition 0 is begun after all folders are there."""
        names = self._names(".")
        return not segment_numbers(names) and not snapshot_positions(names)

    def _names(self, below: str) -> list[str]:
        try:
            return os.listdir(self.path / below)
        except FileNotFoundError:
            return []
        except OSError as trouble:
            raise _unusable(self.path, trouble) from None

    def make_partitions(self, count: int) -> None:
        """Have so many."""
        try:
            for number in range(self.partition_count(), count):
                _make_durably(self.partition(number))
        except OSError as trouble:
            raise _unusable(self.path, trouble) from None

    # --- of a server of several processes

    def lock(self) -> int:
        """Held until the descriptor is closed. JournalLocked if another server of several processes has it."""
        folder = self.path / PROCESSES
        try:
            _make_durably(folder)
            file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as trouble:
            raise _unusable(self.path, trouble) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(file, 32)
            os.close(file)
            raise _locked(self.path, pid) from None
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        return file

    def check_journal_unlocked(self) -> None:
        """For a server of several processes: no server of one uses the folder."""
        path = self.path / LOCK_NAME
        if not path.exists():
            return
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _locked(self.path, file.read(32)) from None

    def check_unlocked(self) -> None:
        """For a server of one process: nobody may run several on this folder, also while none of them has a journal."""
        if (self.path / PROCESSES / _LOCK).exists():
            os.close(self.lock())

    def sockets(self) -> Path:
        """Where the sockets of the processes are."""
        folder = (self.path / PROCESSES).absolute()
        if len(os.fsencode(folder)) + len(_LONGEST_NAME) <= _SOCKET_PATH_BYTES:
            return folder
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"laneway-{os.getuid()}-{name}"

    def make_sockets_folder(self) -> Path:
        """For this user alone, and without what an earlier server left."""
        folder = self.sockets()
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise StartError(f"{folder} is not a folder of this user, and the processes' sockets belong there")
        folder.chmod(0o700)
        self._clear(folder)
        return folder

    def remove_sockets(self) -> None:
        """All processes have ended."""
        folder = self.sockets()
        self._clear(folder)
        if folder.name != PROCESSES:
            folder.rmdir()

    def _clear(self, folder: Path) -> None:
        for left in folder.glob("*.sock"):
            left.unlink(missing_ok=True)


def _locked(path: Path, holder: bytes) -> JournalLocked:
    pid = holder.decode("ascii", "replace").strip()
    return JournalLocked(
        f"the data folder {path} is in use by the server of process {pid or 'unknown'}. "
        "Stop that one first, or give this one another data folder.",
        folder=str(path),
        pid=pid,
    )


def _unusable(path: Path, trouble: OSError) -> StartError:
    return StartError(f"cannot use the data folder {path}: {trouble}; use --data FOLDER")


def _make_durably(folder: Path) -> None:
    """So that it is there after a power cut, with all above it."""
    missing = []
    above = folder
    while not above.exists():
        missing.append(above)
        above = above.parent
    for one in reversed(missing):
        try:
            one.mkdir()
        except FileExistsError:
            continue
        parent = os.open(one.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def partition_socket(folder: Path, partition: int) -> str:
    return str(folder / f"partition-{partition}.sock")


def replies_socket(folder: Path, process: int) -> str:
    return str(folder / f"replies-{process}.sock")


def process_socket(folder: Path, process: int) -> str:
    return str(folder / f"process-{process}.sock")
