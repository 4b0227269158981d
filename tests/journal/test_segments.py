"""SegmentJournal keeps the contract, on a real disk and on the simulated one; segments, locks, reading."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from random import Random
from unittest import mock

import pytest

from laneway.errors import JournalLocked, LimitExceeded
from laneway.journal.history.files import FileSystem, RealFiles
from laneway.journal.interface import Commit
from laneway.journal.segments import SegmentJournal
from tests.journal.contract import JournalContract, as_replayed, commit, fill_extents, locations_of, published
from tests.journal.stores import (
    FOLDER,
    path_of,
    start,
)
from tests.simulation.faulty_files import FaultyFiles


class FolderStore:
    def __init__(self, folder: str, files: FileSystem) -> None:
        self.folder = folder
        self.files = files

    def open(self) -> SegmentJournal:
        return SegmentJournal(self.folder, segment_bytes=4096, reserve_bytes=0, files=self.files)


class TestOnARealDisk(JournalContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> FolderStore:
        return FolderStore(str(tmp_path / "data"), RealFiles())


class TestOnTheSimulatedDisk(JournalContract):
    @pytest.fixture
    def store(self) -> FolderStore:
        return FolderStore(FOLDER, FaultyFiles(0))


def test_commit_too_large_for_its_offsets_is_refused_and_nothing_is_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentJournal, "most_staged_bytes", 10_000)
    journal, _ = start(FaultyFiles(0))
    journal.stage(published(1))
    before = journal.staged_bytes()
    with pytest.raises(LimitExceeded, match="smaller batches"):
        journal.stage(published(2, size=10_000))
    assert journal.staged_bytes() == before
    sealed = journal.seal()
    assert sealed is not None and sealed.event_count == 1
    journal.write(sealed)


def test_finished_segment_gives_back_the_space_it_did_not_use() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    fill_extents(journal, 2)
    for number, size in journal.extent_bytes().items():
        assert len(files.contents(path_of(number))) == size < 4096


def test_spare_is_there_while_open_and_gone_after_closing() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    assert len(files.contents(f"{FOLDER}/spare")) == 4096
    fill_extents(journal, 2)
    assert len(files.contents(f"{FOLDER}/spare")) == 4096
    journal.close()
    assert f"{FOLDER}/spare" not in files.paths()


def test_segment_size_can_be_changed_between_starts() -> None:
    files = FaultyFiles(0)
    expected = []
    for restart, segment_bytes in enumerate((4096, 1024, 1 << 16, 2048)):
        journal, history = start(files, segment_bytes=segment_bytes)
        assert history == expected
        for seq in range(20):
            event = published(restart * 100 + seq + 1)
            sealed, (location,) = commit(journal, event)
            expected.append((sealed.position, [as_replayed(event, location)]))
        journal.close()


def test_number_of_open_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, max_open_files=3)
    written = fill_extents(journal, 10)
    for event, first in written:
        assert journal.read(locations_of(event, first), event.sizes) == event.records
    reading = [number for number, (_, path) in files._files.items() if path.endswith(".segment")]
    assert len(reading) <= 3 + 1  # and the one being written


def test_neighbours_are_read_in_one_go() -> None:
    files = FaultyFiles(0)
    reads: list[int] = []
    plain: Callable[[int, int, int], bytes] = files.read
    journal, _ = start(files, segment_bytes=1 << 20)
    events = [published(1 + 10 * i, 10, size=1_000) for i in range(10)]
    places = [place for event in events for place in locations_of(event, commit(journal, event)[1][0])]
    sizes = [size for event in events for size in event.sizes]

    def counting(file: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return plain(file, size, offset)

    files.read = counting  # type: ignore[method-assign]
    records = journal.read(places, sizes)
    assert records == [record for event in events for record in event.records]
    assert len(reads) == 1
    reads.clear()
    assert journal.read(places[::5], sizes[::5]) == records[::5]  # gaps of four kilobytes are read over
    assert len(reads) == 1
    reads.clear()
    assert journal.read(places[::25], sizes[::25]) == records[::25]  # gaps of 25 are not
    assert len(reads) == 4


def test_reading_ahead_is_a_hint_wherever_it_points(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000))
    files = RealFiles()
    file = files.open(str(path))
    asked: list[tuple[int, int]] = []
    with mock.patch.object(os, "posix_fadvise", lambda _, offset, size, advice: asked.append((offset, size))):
        files.read(file, 100_000, 0)
        files.read_ahead(file, 0, 100_000)
        assert not asked, "it was in memory"
        files.read_ahead(file, 90_000, 50_000)
        assert asked == [(90_000, 50_000)], "what is behind the end may come to be"
    files.read_ahead(file, 200_000, 10)
    files.close(file)


def test_lock_names_the_folder_and_the_process_that_holds_it(tmp_path: Path) -> None:
    program = (
        "import sys; from laneway.journal.segments import SegmentJournal; "
        "journal = SegmentJournal(sys.argv[1]); print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(JournalLocked) as caught:
            SegmentJournal(tmp_path)
        assert str(tmp_path) in caught.value.message and str(holder.pid) in caught.value.message
        holder.kill()
    journal = SegmentJournal(tmp_path, segment_bytes=4096)  # the lock dies with its holder
    assert list(journal.replay(0)) == []
    journal.close()


def test_gathering_writing_reading_and_snapshots_go_on_at_the_same_time(tmp_path: Path) -> None:
    """The loop stages and reads, one thread writes, another saves snapshots: as the broker does it."""
    commit_count = 600
    journal = SegmentJournal(tmp_path, segment_bytes=1 << 18, reserve_bytes=0, durability="none", max_open_files=2)
    assert list(journal.replay(0)) == []
    work: SimpleQueue[Commit | None] = SimpleQueue()
    failures: list[BaseException] = []
    written, saved = [0], [0]

    def write() -> None:
        try:
            while (sealed := work.get()) is not None:
                journal.write(sealed)
                written[0] = sealed.position
                journal.mark()
        except BaseException as error:
            failures.append(error)

    def save() -> None:
        try:
            while writer.is_alive():
                position = written[0]
                if position > saved[0]:
                    journal.save_snapshot(position, [b"s" * 10_000] * 5, range(1, 1_000))
                    journal.drop()
                    saved[0] = position
        except BaseException as error:
            failures.append(error)

    writer, saver = threading.Thread(target=write, daemon=True), threading.Thread(target=save, daemon=True)
    writer.start()
    saver.start()
    random = Random(1)
    places: list[tuple[int, int, bytes]] = []
    try:
        for number in range(commit_count):
            event = published(1 + number * 20, 20, size=100)
            places += zip(locations_of(event, journal.stage(event)), event.sizes, event.records, strict=True)
            work.put(journal.seal())
            chosen = [*random.choices(places, k=20), *places[-5:]]
            assert journal.read([c[0] for c in chosen], [c[1] for c in chosen]) == [c[2] for c in chosen]
    finally:
        work.put(None)
        writer.join(timeout=60)
        saver.join(timeout=60)
    assert failures == [] and not writer.is_alive() and not saver.is_alive()
    assert saved[0] > 0
    journal.close()
    again = SegmentJournal(tmp_path, segment_bytes=1 << 18, reserve_bytes=0)
    loaded = again.load_snapshot()
    assert loaded is not None and loaded[0] == saved[0]
    assert [position for position, _ in again.replay(loaded[0])] == list(range(loaded[0] + 1, commit_count + 1))
    assert again.read([p[0] for p in places], [p[1] for p in places]) == [p[2] for p in places]
    again.close()
