"""A full disk stops publishing, not settling, and is got over without help."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.core.events import Opened
from laneway.errors import DiskFull
from laneway.journal.segments import SegmentJournal
from tests.journal.contract import commit, published
from tests.journal.stores import Clock, path_of, positions, start, three_commits
from tests.simulation.faulty_files import FaultyFiles


def fill_up(journal: SegmentJournal, *, first_seq: int = 1, size: int = 300) -> int:
    """Publish while there is room; the number of commits."""
    for count in range(1_000):
        if not journal.has_room():
            return count
        commit(journal, published(first_seq + count, size=size))
    raise AssertionError("the disk never became full")


def test_full_disk_refuses_new_messages_while_settling_goes_on_and_recovers_by_itself() -> None:
    files, clock = FaultyFiles(0, capacity_bytes=5 * 4096), Clock()
    journal, _ = start(files, now_ms=clock)
    published_count = fill_up(journal)
    assert published_count > 10
    for seq in range(5):  # what is left of the current segment is for settling
        commit(journal, Opened(at_ms=1, epoch=1, tag=seq))
        assert not journal.has_room()
    files.capacity_bytes = 1 << 30
    assert not journal.has_room(), "it looks once a second, not at every call"
    clock.now_ms += 1_000
    assert journal.has_room()
    commit(journal, published(1_000))
    journal.close()
    assert positions(start(files)[1]) == list(range(1, published_count + 5 + 2))


def test_settling_may_use_the_current_segment_to_its_end_when_there_is_no_next_one() -> None:
    files = FaultyFiles(0, capacity_bytes=3 * 4096)
    journal, _ = start(files)
    fill_up(journal)
    number = max(journal.extent_bytes()) + 1
    with pytest.raises(DiskFull):
        while True:
            commit(journal, Opened(at_ms=1, epoch=1, tag=1))
    assert len(files.contents(path_of(number)).rstrip(b"\0")) > 4096 - 2 * 192


def test_commit_that_finds_no_space_at_all_can_be_written_later() -> None:
    files, clock = FaultyFiles(0, capacity_bytes=3 * 4096), Clock()
    journal, _ = start(files, now_ms=clock)
    with pytest.raises(DiskFull, match=r"no space is left for the journal in data: \d+ bytes are needed"):
        for seq in range(1_000):
            event = published(seq + 1, size=300)
            journal.stage(event)
            waiting = journal.seal()
            assert waiting is not None
            journal.write(waiting)
    with pytest.raises(DiskFull):
        journal.write(waiting)
    files.capacity_bytes = 1 << 30
    journal.write(waiting)
    clock.now_ms += 1_000
    assert journal.has_room()
    commit(journal, published(5_000))
    journal.close()
    assert positions(start(files)[1]) == list(range(1, waiting.position + 2))


def test_settling_and_a_snapshot_free_a_disk_that_the_journal_itself_filled() -> None:
    files, clock = FaultyFiles(0, capacity_bytes=8 * 4096), Clock()
    journal, _ = start(files, now_ms=clock, reserve_bytes=4096)
    count = fill_up(journal)
    journal.save_snapshot(count, [b"everything settled"], [])
    assert journal.drop()
    clock.now_ms += 1_000
    assert journal.has_room()
    commit(journal, published(1_000))


def test_allocated_space_that_runs_out_anyway_is_a_full_disk_and_no_failure() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    journal.stage(published(1))
    waiting = journal.seal()
    assert waiting is not None
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        files.fail_writes_with = code
        with pytest.raises(DiskFull):
            journal.write(waiting)
    files.fail_writes_with = None
    journal.write(waiting)
    journal.close()
    assert positions(start(files)[1]) == [1]


def test_free_space_below_the_reserve_refuses_new_messages() -> None:
    files, clock = FaultyFiles(0, capacity_bytes=100_000), Clock()
    journal, _ = start(files, now_ms=clock, reserve_bytes=50_000)
    assert journal.has_room()
    files.capacity_bytes = 40_000
    clock.now_ms += 1_000
    journal.mark()
    assert not journal.has_room()


def test_room_is_told_by_what_is_to_be_written_and_what_waits_to_be() -> None:
    files, clock = FaultyFiles(0), Clock()
    journal, _ = start(files, now_ms=clock, reserve_bytes=1_000)
    files.capacity_bytes = files.used_bytes + 10_000
    assert journal.has_room(9_000 - 64) and not journal.has_room(9_001), "the reserve is not for messages"
    journal.stage(published(1, size=5_000))
    waiting = journal.stage(published(2, size=2_000)) and journal.seal()
    assert waiting is not None
    assert journal.has_room(500) and not journal.has_room(3_000)
    journal.write(waiting)
    assert journal.has_room() and not journal.has_room(9_000)
    files.capacity_bytes += 10_000
    assert journal.has_room(9_000), "what is much is looked for at once, whenever the last look was"


def test_small_messages_need_no_look_at_the_disk() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    files.capacity_bytes = files.used_bytes
    assert journal.has_room(4096 // 8 - 64) and not journal.has_room(4096 // 8 + 1)


def test_dropped_segments_are_room_at_once() -> None:
    files = FaultyFiles(0, capacity_bytes=8 * 4096)
    journal, _ = start(files, reserve_bytes=4096)
    count = fill_up(journal)
    journal.save_snapshot(count, [b"everything settled"], [])
    assert not journal.has_room()
    assert journal.drop()
    assert journal.has_room()


def test_existing_store_starts_on_a_full_disk() -> None:
    files, _ = three_commits(mark_last=True)
    files.capacity_bytes = 0
    journal, history = start(files)
    assert positions(history) == [1, 2, 3]
    assert not journal.has_room()


def test_cutting_a_torn_tail_on_a_full_disk_keeps_the_space_for_settling() -> None:
    files, offsets = three_commits(mark_last=False)
    files.flip_bit(path_of(1), offsets[2] + 70, 0)
    files.capacity_bytes = 0
    journal, history = start(files)
    assert positions(history) == [1, 2]
    for _ in range(5):
        commit(journal, Opened(at_ms=1, epoch=9, tag=1))
    journal.close()
    assert positions(start(files)[1]) == list(range(1, 8))


def test_new_store_on_a_full_disk_says_so() -> None:
    with pytest.raises(DiskFull):
        start(FaultyFiles(0, capacity_bytes=50))


DISK_FULL_PROGRAM = """
import os, sys
from tests.journal.contract import commit, published
from laneway.core.events import Acked
from laneway.errors import DiskFull
from laneway.journal.segments import SegmentJournal

folder, now = sys.argv[1], [0]
journal = SegmentJournal(folder, segment_bytes=1 << 20, reserve_bytes=1 << 20, now_ms=lambda: now[0])
assert list(journal.replay(0)) == []
with open(os.path.join(folder, "ballast"), "wb") as ballast:
    ballast.write(bytes(4 << 20))
count = 0
while journal.has_room():
    count += 1
    commit(journal, published(count, 10, size=1000))
    assert count < 10_000
settled = 0
while True:  # settling goes on until the very last byte
    journal.stage(Acked(1, 1, list(range(500)), list(range(500))))
    waiting = journal.seal()
    try:
        journal.write(waiting)
    except DiskFull:
        break
    settled += 1
assert settled > 20, settled
os.unlink(os.path.join(folder, "ballast"))
journal.write(waiting)
now[0] += 1000
assert journal.has_room()
commit(journal, published(1, 10, size=1000))
journal.close()
journal = SegmentJournal(folder, segment_bytes=1 << 20, reserve_bytes=1 << 20)
assert [p for p, _ in journal.replay(0)] == list(range(1, count + settled + 3))
journal.close()
print("recovered after", count, "and", settled)
"""


def test_real_disk_that_becomes_full_and_free_again(tmp_path: Path) -> None:
    """On a tmpfs of 10 MiB in a mount namespace of its own, which needs root or user namespaces; without, it fails."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    script = 'mount -t tmpfs -o size=10m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", str(tmp_path), sys.executable, DISK_FULL_PROGRAM],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", "."])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("recovered after")
