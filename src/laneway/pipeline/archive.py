"""The archive in the lake: how far it has come, and how a batch of history gets in exactly once. Files only, no Spark.

    warehouse/events/
      _archive.json                                   how far it is: the one truth about what is in
      day=2026-11-16/folder=orders/                   a day (UTC) and a queue
        00000000000000000001-00000000000000004711-0.parquet     first and last position of its batch
        p1-00000000000000000001-00000000000000000815-0.parquet  of another partition than 0

A batch is written beside, its files are moved in, and then _archive.json is replaced: from that moment on it is in. A
file whose batch begins behind what _archive.json says was left by a run that died between these steps: the next run
removes it before it begins. So there is no checkpoint of Spark that could disagree with the lake, and a run that begins
anew goes on from what is there. Everything is synced, because what is archived may leave the journal.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from laneway.errors import Conflict, InvalidInput

STATE = "_archive.json"
FILE = re.compile(r"(?:p(\d+)-)?(\d{20})-(\d{20})-\d+\.parquet")


class ArchivedPartition(msgspec.Struct, frozen=True):
    store: str = ""  # of which journal it is
    next_position: int = 1  # the first that is not in it


class Archived(msgspec.Struct, frozen=True):
    """How far an archive has come. What is said of a partition is said of partition 0 here, and of others beside."""

    store: str = ""
    next_position: int = 1
    events: int = 0
    bodies: str = ""  # by which policy the last batch was written
    dead_letters_until_ms: int = 0  # dead letters up to then were deleted from their queues
    cursor: str = ""  # holds back a server's journal for it
    partitions: dict[int, ArchivedPartition] = {}

    def of(self, partition: int) -> ArchivedPartition:
        if partition == 0:
            return ArchivedPartition(self.store, self.next_position)
        return self.partitions.get(partition, ArchivedPartition())

    def having(self, partition: int, reached: ArchivedPartition) -> Archived:
        if partition == 0:
            return msgspec.structs.replace(self, store=reached.store, next_position=reached.next_position)
        return msgspec.structs.replace(self, partitions={**self.partitions, partition: reached})


class Archive:
    def __init__(self, folder: Path, staging: Path) -> None:
        self.folder = folder
        self._staging = staging

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time: two would both take the same history in."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "_lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"another run is writing to the archive {self.folder}") from None
            yield

    def state(self) -> Archived:
        try:
            text = (self.folder / STATE).read_bytes()
        except FileNotFoundError:
            return Archived()
        try:
            return msgspec.json.decode(text, type=Archived)
        except msgspec.DecodeError as wrong:
            raise InvalidInput(f"{self.folder / STATE} is damaged: {wrong}", field="warehouse") from wrong

    def save(self, state: Archived) -> None:
        written = self.folder / f"_{secrets.token_hex(4)}.json"
        with open(written, "wb") as file:
            file.write(msgspec.json.encode(state))
            file.flush()
            os.fsync(file.fileno())
        os.replace(written, self.folder / STATE)
        _sync(self.folder)

    def files(self) -> Iterator[tuple[Path, int, int, int]]:
        """(file, partition, first position, last position) of each."""
        for path in sorted(self.folder.glob("day=*/folder=*/*.parquet")):
            found = FILE.fullmatch(path.name)
            if found:
                yield path, int(found[1] or 0), int(found[2]), int(found[3])

    def clean(self) -> int:
        """Remove what a run that died has left; how many files had been moved in too early."""
        state = self.state()
        early = [path for path, partition, first, _ in self.files() if first >= state.of(partition).next_position]
        for path in early:
            path.unlink()
        shutil.rmtree(self._staging, ignore_errors=True)
        return len(early)

    def stage(self) -> Path:
        """A folder for the next batch, not yet there, to be written as day=…/folder=…/*.parquet."""
        self._staging.mkdir(parents=True, exist_ok=True)
        return self._staging / secrets.token_hex(8)

    def take_in(self, staged: Path, first: int, state: Archived, partition: int = 0) -> int:
        """Move a batch of a partition in, from position `first` on, and say so; how many files it has."""
        begin = f"p{partition}-{first:020d}" if partition else f"{first:020d}"
        last = state.of(partition).next_position - 1
        touched: set[Path] = set()
        count = 0
        for path in sorted(staged.glob("day=*/folder=*/*.parquet")):
            into = self.folder / path.parent.relative_to(staged)
            touched.update((into, into.parent) if not into.is_dir() else (into,))
            into.mkdir(parents=True, exist_ok=True)
            with open(path, "rb") as file:
                os.fsync(file.fileno())
            taken = sum(1 for _ in into.glob(f"{begin}-*.parquet"))
            path.rename(into / f"{begin}-{last:020d}-{taken}.parquet")
            count += 1
        for folder in touched:
            _sync(folder)
        self.save(state)
        shutil.rmtree(staged, ignore_errors=True)
        return count


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
