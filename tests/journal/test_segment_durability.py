"""What each durability mode keeps, and that a disk that fails stops the journal."""

from __future__ import annotations

import errno
from contextlib import nullcontext

import pytest

from laneway.errors import JournalDamaged, JournalFailed
from tests.journal.contract import commit, locations_of, published
from tests.journal.stores import (
    Clock,
    killed,
    path_of,
    positions,
    start,
    store_of_segments,
)
from tests.simulation.faulty_files import FaultyFiles


def surviving(files: FaultyFiles) -> list[int]:
    """Positions left when everything that was not synced is lost."""
    for path in files.paths():
        inode = files._names[path]
        inode.dirty.clear()
    files.restart(power_loss=True)
    return positions(start(files)[1])


def test_durability_commit_keeps_every_commit_written() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, durability="commit")
    for seq in (1, 2, 3):
        commit(journal, published(seq))
    assert surviving(files) == [1, 2, 3]


def test_durability_interval_syncs_once_the_interval_is_over() -> None:
    files, clock = FaultyFiles(0), Clock()
    journal, _ = start(files, durability="interval", interval_ms=100, now_ms=clock)
    commit(journal, published(1))
    clock.now_ms = 100
    commit(journal, published(2))  # syncs
    clock.now_ms = 199
    commit(journal, published(3))
    assert surviving(files) == [1, 2]


def test_durability_interval_syncs_when_there_is_nothing_to_do() -> None:
    files, clock = FaultyFiles(0), Clock()
    journal, _ = start(files, durability="interval", interval_ms=100, now_ms=clock)
    commit(journal, published(1))
    journal.mark()
    assert surviving(files) == [1]


def test_durability_none_syncs_only_when_told_to() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, durability="none")
    commit(journal, published(1))
    journal.sync()
    commit(journal, published(2))
    journal.mark()
    assert surviving(files) == [1]


@pytest.mark.parametrize("durability", ["commit", "interval", "none"])
def test_closing_keeps_everything_and_proves_it(durability: str) -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, durability=durability)
    _, (location,) = commit(journal, published(1))
    journal.close()
    files.flip_bit(path_of(1), location & 0xFFFFFFFF, 0)
    with pytest.raises(JournalDamaged):
        surviving(files)


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_snapshot_makes_what_it_covers_durable_first(durability: str) -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, durability=durability)
    for seq in (1, 2, 3):
        commit(journal, published(seq))
    journal.save_snapshot(2, [b"state"], [1])
    for path in files.paths():
        files._names[path].dirty.clear()
    files.restart(power_loss=True)
    assert positions(start(files)[1]) == [3]


@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_failed_sync_stops_the_journal_for_good(durability: str) -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, durability=durability, interval_ms=0)
    commit(journal, published(1))
    files.fail_sync_at = files.sync_count + 1
    with pytest.raises(JournalFailed, match="Input/output error"):
        commit(journal, published(2))
    operations = files.operation_count
    journal.stage(published(3))
    journal.seal()
    for forbidden in (journal.mark, journal.sync, lambda: journal.save_snapshot(1, [], [])):
        with pytest.raises(JournalFailed):
            forbidden()
    assert files.operation_count == operations, "nothing may be written after a failure"
    # A commit that was handed to the operating system and is not known to be on disk: this is no clean end.
    with pytest.raises(JournalFailed) if durability == "interval" else nullcontext():
        journal.close()
    files.restart(power_loss=True)
    assert positions(start(files)[1])[:1] == [1]


def test_commit_found_in_memory_after_a_failed_sync_is_written_again() -> None:
    for seed in range(40):
        files = FaultyFiles(seed)
        journal, _ = start(files)
        commit(journal, published(1))
        files.fail_sync_at = files.sync_count + 1
        with pytest.raises(JournalFailed):
            commit(journal, published(2, 3, size=600))
        journal, history = start(killed(files))
        assert positions(history) == [1, 2]  # still readable, although the disk may not have it
        commit(journal, published(9))
        files.restart(power_loss=True)
        assert positions(start(files)[1]) == [1, 2, 3], seed


def test_failed_write_stops_the_journal_for_good() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    files.fail_writes_with = errno.EIO
    with pytest.raises(JournalFailed, match="could not be written"):
        commit(journal, published(1))
    files.fail_writes_with = None
    with pytest.raises(JournalFailed):
        journal.mark()


def test_records_can_still_be_read_after_a_failure() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    event = published(1, 3)
    _, (location,) = commit(journal, event)
    files.fail_writes_with = errno.EIO
    with pytest.raises(JournalFailed):
        commit(journal, published(9))
    assert journal.read(locations_of(event, location), event.sizes) == event.records


def test_damaged_record_is_noticed_when_it_is_read() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    event = published(1, 3)
    _, (location,) = commit(journal, event)
    places = locations_of(event, location)
    files.flip_bit(path_of(1), (places[1] & 0xFFFFFFFF) + 40, 3)
    assert journal.read(places[:1], event.sizes[:1]) == event.records[:1]
    for read in (journal.read, journal.read_contents):
        with pytest.raises(JournalDamaged) as caught:
            read(places, event.sizes)
        assert caught.value.details == {"file": path_of(1), "offset": places[1] & 0xFFFFFFFF}


def test_record_in_a_segment_that_is_gone_is_noticed_when_it_is_read() -> None:
    files, _ = store_of_segments(2)
    journal, _ = start(files)
    files.delete(path_of(1))
    with pytest.raises(JournalDamaged, match="is missing"):
        journal.read([1 << 32 | 128], [100])
