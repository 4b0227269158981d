"""Space that was only allocated is written before commits need it, where that makes them quicker; all else stays."""

from __future__ import annotations

import errno

import pytest

from laneway.errors import DiskFull, JournalFailed
from laneway.journal.history.format import HEADER_BYTES
from laneway.journal.segments import SegmentJournal, writer
from tests.journal.contract import commit, published
from tests.journal.stores import FOLDER, Clock, killed, path_of, positions, start
from tests.simulation.faulty_files import FaultyFiles

SEGMENT_BYTES = 4096


class Noting(FaultyFiles):
    """Notes what was written where, and whether it was synced since."""

    def __init__(self) -> None:
        super().__init__(0)
        self.zeros: list[tuple[str, int, int]] = []
        self.synced: list[str] = []

    def write(self, file: int, buffers: list[bytes], offset: int, *, sync: bool = False) -> None:  # type: ignore[override]
        super().write(file, buffers, offset, sync=sync)
        if not sync and not any(b"".join(buffers)):
            self.zeros.append((self._files[file][1], offset, offset + sum(map(len, buffers))))

    def sync(self, file: int) -> None:
        super().sync(file)
        self.synced.append(self._files[file][1])


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FILL_AFTER_COMMITS", 3)
    monkeypatch.setattr(writer, "FILL_BYTES", 1000)


def prepare(journal: SegmentJournal) -> int:
    pieces = 0
    while not journal.is_prepared():
        assert journal.prepare()
        pieces += 1
    assert not journal.prepare()
    return pieces


def small_commits(journal: SegmentJournal, first: int, count: int) -> int:
    """Where the last of them ends."""
    for seq in range(first, first + count):
        commit(journal, published(seq))
    return journal.history.end().offset


def filled_after_a_roll(files: Noting, journal: SegmentJournal) -> list[tuple[str, int, int]]:
    files.zeros.clear()
    seq = 4
    while journal.history.end().segment == 1:
        small_commits(journal, seq, 1)
        seq += 1
    prepare(journal)
    return files.zeros


def test_the_rest_of_the_segment_and_the_whole_spare_are_written_and_synced() -> None:
    files = Noting()
    journal, _ = start(files)
    end = small_commits(journal, 1, 3)
    prepare(journal)
    here = [(path_of(1), at, min(at + 1000, SEGMENT_BYTES)) for at in range(end, SEGMENT_BYTES, 1000)]
    ahead = [(f"{FOLDER}/spare", at, min(at + 1000, SEGMENT_BYTES)) for at in range(0, SEGMENT_BYTES, 1000)]
    assert files.zeros == here + ahead
    assert files.synced[-len(here + ahead) :] == [path for path, _, _ in here + ahead]


def test_the_spare_stays_filled_when_it_becomes_a_segment() -> None:
    files = Noting()
    journal, _ = start(files)
    small_commits(journal, 1, 3)
    prepare(journal)
    assert {path for path, _, _ in filled_after_a_roll(files, journal)} == {f"{FOLDER}/spare"}


def test_a_spare_taken_half_filled_is_filled_from_there_on() -> None:
    files = Noting()
    journal, _ = start(files)
    small_commits(journal, 1, 3)
    while not files.zeros or not files.zeros[-1][0].endswith("spare"):
        journal.prepare()
    assert filled_after_a_roll(files, journal)[0][:2] == (path_of(2), 1000)


def test_nothing_is_written_over() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    before = small_commits(journal, 1, 3)
    prepare(journal)
    assert small_commits(journal, 4, 2) > before
    journal.prepare()
    assert positions(start(killed(files))[1]) == [1, 2, 3, 4, 5]


def test_a_reopened_segment_is_filled_behind_its_commits() -> None:
    files = FaultyFiles(0)
    small_commits(start(files)[0], 1, 5)
    journal, _ = start(killed(files))
    assert journal.is_prepared(), "nothing is known of its commits yet"
    small_commits(journal, 6, 3)
    assert prepare(journal)
    assert positions(start(killed(files))[1]) == list(range(1, 9))


def test_few_commits_are_not_worth_it() -> None:
    journal, _ = start(FaultyFiles(0))
    small_commits(journal, 1, 2)
    assert journal.is_prepared() and not journal.prepare()


def test_large_commits_are_not_worth_it() -> None:
    journal, _ = start(FaultyFiles(0), segment_bytes=1 << 20)
    small_commits(journal, 1, 3)
    assert not journal.is_prepared()
    for seq in range(4, 40):
        commit(journal, published(seq, size=200_000))
    assert journal.is_prepared()


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_commits_that_are_not_synced_one_by_one_are_not_worth_it(durability: str) -> None:
    journal, _ = start(FaultyFiles(0), durability=durability)
    small_commits(journal, 1, 3)
    assert journal.is_prepared()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_trouble_with_it_ends_it_and_nothing_else(number: int) -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    small_commits(journal, 1, 3)
    open_count = len(files._files)
    files.fail_writes_with = number
    assert not journal.prepare()
    files.fail_writes_with = None
    assert len(files._files) == open_count
    assert journal.is_prepared()
    small_commits(journal, 4, 1)
    assert positions(start(killed(files))[1]) == [1, 2, 3, 4]


def test_a_failed_sync_of_it_ends_it_and_nothing_else() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    small_commits(journal, 1, 3)
    files.fail_sync_at = files.sync_count + 1
    assert not journal.prepare()
    assert journal.is_prepared()
    small_commits(journal, 4, 1)
    files.restart(power_loss=True)
    assert positions(start(files)[1]) == [1, 2, 3, 4]


def test_nothing_is_filled_once_the_journal_has_failed() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    small_commits(journal, 1, 3)
    files.fail_sync_at = files.sync_count + 1
    with pytest.raises(JournalFailed):
        commit(journal, published(4))
    count = files.operation_count
    assert not journal.prepare()
    assert files.operation_count == count


def test_filling_outlives_a_full_disk() -> None:
    """A segment that is then as large as its one commit, without a spare behind it, leaves nothing to fill."""
    files, clock = FaultyFiles(0, capacity_bytes=3 * SEGMENT_BYTES), Clock()
    journal, _ = start(files, now_ms=clock)
    with pytest.raises(DiskFull):
        for seq in range(1, 1_000):
            journal.stage(published(seq, size=300))
            waiting = journal.seal()
            assert waiting is not None
            journal.write(waiting)
    files.capacity_bytes = files.used_bytes + HEADER_BYTES + waiting.byte_count
    journal.write(waiting)
    assert files.free_bytes(FOLDER) == 0
    assert journal.is_prepared() and not journal.prepare()
    files.capacity_bytes = 1 << 30
    clock.now_ms += 1_000
    assert journal.has_room()
    assert prepare(journal)


def test_a_closed_journal_is_left_alone() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    small_commits(journal, 1, 3)
    journal.close()
    count = files.operation_count
    assert not journal.prepare()
    assert files.operation_count == count
