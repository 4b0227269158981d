"""Snapshot files: damage, fall-back, and what they spare at start."""

from __future__ import annotations

import pytest

from laneway.errors import DiskFull, JournalDamaged
from laneway.journal.history.format import snapshot_name
from tests.journal.stores import (
    FOLDER,
    killed,
    open_on,
    path_of,
    positions,
    start,
    store_of_segments,
)
from tests.simulation.faulty_files import FaultyFiles


def store_with_two_snapshots(*, drop_between: bool) -> tuple[FaultyFiles, int]:
    """As a crash leaves it between the saving of a snapshot and the removal of the one before."""
    files, position = store_of_segments(4)
    journal, _ = start(files)
    journal.save_snapshot(position // 2, [b"older"], [1, 2, 3])
    older = files.contents(f"{FOLDER}/{snapshot_name(position // 2)}")
    journal.save_snapshot(position, [b"newer"], [])
    if drop_between:
        assert journal.drop()
    journal.close()
    files.put_contents(f"{FOLDER}/{snapshot_name(position // 2)}", older)
    return files, position


def test_any_flipped_bit_in_the_only_snapshot_is_damage_once_history_was_dropped() -> None:
    files, position = store_of_segments(3)
    journal, _ = start(files)
    journal.save_snapshot(position, [b"chunk one", b"chunk two"], [2])
    journal.drop()
    journal.close()
    name = f"{FOLDER}/{snapshot_name(position)}"
    whole = files.contents(name)
    for at in range(len(whole)):
        files.put_contents(name, whole)
        files.flip_bit(name, at, at % 8)
        with pytest.raises(JournalDamaged, match=f"snapshot-{position:016d} is damaged"):
            open_on(killed(files)).load_snapshot()


def test_snapshot_cut_short_or_with_bytes_after_its_end_is_damaged() -> None:
    files, position = store_of_segments(3)
    journal, _ = start(files)
    journal.save_snapshot(position, [b"chunk one", b"chunk two"], [2])
    journal.drop()
    journal.close()
    name = f"{FOLDER}/{snapshot_name(position)}"
    whole = files.contents(name)
    for wrong in [whole[:length] for length in range(len(whole))] + [whole + b"\0"]:
        files.put_contents(name, wrong)
        with pytest.raises(JournalDamaged):
            open_on(killed(files)).load_snapshot()


def test_damaged_snapshot_falls_back_to_the_older_one(caplog: pytest.LogCaptureFixture) -> None:
    files, position = store_with_two_snapshots(drop_between=False)
    files.flip_bit(f"{FOLDER}/{snapshot_name(position)}", 70, 1)
    journal = open_on(files)
    loaded = journal.load_snapshot()
    assert loaded is not None
    assert (loaded[0], list(loaded[1])) == (position // 2, [b"older"])
    assert positions(list(journal.replay(loaded[0]))) == list(range(position // 2 + 1, position + 1))
    assert "is damaged; all history since" in caplog.text


def test_damaged_snapshot_does_not_fall_back_when_history_since_is_gone() -> None:
    files, position = store_with_two_snapshots(drop_between=True)
    files.flip_bit(f"{FOLDER}/{snapshot_name(position)}", 70, 1)
    with pytest.raises(JournalDamaged, match=f"snapshot-{position:016d} is damaged"):
        open_on(files).load_snapshot()


def test_damaged_snapshot_falls_back_to_the_whole_history_while_it_is_there() -> None:
    files, position = store_of_segments(3)
    journal, _ = start(files)
    journal.save_snapshot(position, [b"state"], [])
    journal.close()
    files.flip_bit(f"{FOLDER}/{snapshot_name(position)}", 70, 1)
    journal = open_on(files)
    assert journal.load_snapshot() is None
    assert positions(list(journal.replay(0))) == list(range(1, position + 1))


def test_segments_covered_by_the_snapshot_are_not_read_at_start() -> None:
    files, position = store_of_segments(4)
    journal, _ = start(files)
    journal.save_snapshot(position, [], [1, 2, 3])
    journal.close()
    files.flip_bit(path_of(2), 200, 0)
    _, history = start(files)
    assert history == []


def test_only_the_newest_snapshot_is_kept() -> None:
    files, position = store_of_segments(2)
    journal, _ = start(files)
    journal.save_snapshot(1, [], [])
    journal.save_snapshot(position, [], [])
    names = [path for path in files.paths() if "snapshot" in path]
    assert names == [f"{FOLDER}/{snapshot_name(position)}"]


def test_snapshot_that_finds_no_space_leaves_the_one_before_in_force() -> None:
    files, position = store_of_segments(2)
    journal, _ = start(files)
    journal.save_snapshot(1, [b"before"], [1])
    files.capacity_bytes = files.used_bytes + 10_000
    with pytest.raises(DiskFull, match="no space is left"):
        journal.save_snapshot(position, [b"x" * 20_000], [1])
    journal.close()
    assert not [path for path in files.paths() if path.endswith("partial")]
    journal = open_on(files)
    loaded = journal.load_snapshot()
    assert loaded is not None
    assert (loaded[0], list(loaded[1])) == (1, [b"before"])
