"""Reading a journal from outside: places, gaps, torn tails, damage, and a writer that goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.core import snapshot
from laneway.core.events import Event, Opened, QueueDeleted
from laneway.errors import InvalidInput, JournalDamaged, JournalGap, NotFound
from laneway.journal.history import follow
from laneway.journal.history.files import RealFiles
from laneway.journal.history.follow import Place
from laneway.journal.history.format import HEADER_BYTES, segment_name
from laneway.journal.segments import SegmentJournal
from tests.core.runner import TAG, Core
from tests.journal.contract import commit, fill_extents, published, replayed
from tests.journal.stores import FOLDER, path_of, start, store_of_segments, three_commits
from tests.simulation.faulty_files import FaultyFiles


def history(files: FaultyFiles, place: Place, until: Place | None = None) -> list[tuple[int, list[Event]]]:
    until = until or follow.end(FOLDER, files=files)
    found = follow.commits(FOLDER, place, until, files=files)
    return [(one.header.position, scan.events(one)) for one, scan in found]


def beginning(files: FaultyFiles) -> Place:
    return follow.start(FOLDER, follow.first_position(FOLDER, files=files), files=files)


def steps(files: FaultyFiles, max_events: int) -> Iterator[Place]:
    place, until = beginning(files), follow.end(FOLDER, files=files)
    while place.position < until.position:
        yield place
        place = follow.advance(FOLDER, place, until, max_events, files=files)
    assert place == until


def test_all_commits_are_found_and_are_what_a_replay_finds() -> None:
    files, count = store_of_segments(4)
    before = {path: files.contents(path) for path in files.paths()}
    until = follow.end(FOLDER, files=files)
    assert (until.segment, until.position) == (4, count + 1)
    found = history(files, beginning(files))
    assert {path: files.contents(path) for path in files.paths()} == before, "reading must change nothing"
    journal, expected = start(files)
    assert found == expected and [position for position, _ in found] == list(range(1, count + 1))
    journal.close()


@pytest.mark.parametrize(("max_events", "commits"), [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3)])
def test_a_place_is_advanced_by_so_many_events_and_one_commit_at_least(max_events: int, commits: int) -> None:
    files, count = store_of_segments(4)  # each commit has two events
    places = list(steps(files, max_events))
    assert [place.position for place in places] == list(range(1, count + 1, commits))
    assert {place.segment for place in places} >= {1, 2, 3}
    for place in places:
        first = next(follow.commits(FOLDER, place, follow.end(FOLDER, files=files), files=files))[0]
        assert first.header.position == place.position


def test_every_commit_can_be_found_by_its_position() -> None:
    files, count = store_of_segments(3)
    assert [follow.start(FOLDER, p, files=files).position for p in range(1, count + 2)] == list(range(1, count + 2))
    assert follow.start(FOLDER, count + 1, files=files) == follow.end(FOLDER, files=files)
    for position in (0, -1, count + 2):
        with pytest.raises(InvalidInput, match=f"no commit {position}; the next one will be {count + 1}"):
            follow.start(FOLDER, position, files=files)


def test_an_end_is_found_again_from_an_earlier_one() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    ends = [follow.end(FOLDER, files=files)]
    assert ends == [Place(1, HEADER_BYTES, 1)]
    for seq in range(1, 40):
        commit(journal, published(seq, size=300))
        ends.append(follow.end(FOLDER, ends[-1], files=files))
        assert ends[-1] == follow.end(FOLDER, files=files)
    assert [place.position for place in ends] == list(range(1, 41)) and ends[-1].segment > 1
    journal.close()


def test_a_commit_that_is_not_whole_is_behind_the_end() -> None:
    for offset_in_commit in (0, 70, 200, 300):
        files, offsets = three_commits(mark_last=False)
        files.flip_bit(path_of(1), offsets[2] + offset_in_commit, 3)
        assert follow.end(FOLDER, files=files) == Place(1, offsets[2], 3)
        assert [p for p, _ in history(files, beginning(files))] == [1, 2]


def test_a_commit_that_was_durable_and_is_damaged_is_told_of() -> None:
    files, offsets = three_commits(mark_last=True)
    until = follow.end(FOLDER, files=files)
    files.flip_bit(path_of(1), offsets[1] + 100, 3)  # the body of the second
    with pytest.raises(JournalDamaged, match=f"{path_of(1)} is damaged at byte {offsets[1]}: commit 2 does not check"):
        history(files, Place(1, 64, 1), until)
    files, offsets = three_commits(mark_last=True)
    files.flip_bit(path_of(1), offsets[1] + 8, 3)  # its header
    with pytest.raises(JournalDamaged, match="commit 2 has to be here, and is not"):
        history(files, Place(1, 64, 1), until)
    with pytest.raises(JournalDamaged, match=f"at byte {offsets[1]}"):
        follow.advance(FOLDER, Place(1, 64, 1), until, 100, files=files)
    with pytest.raises(JournalDamaged, match="commit 3 stands where commit 7 has to"):
        follow.advance(FOLDER, Place(1, offsets[2], 7), Place(1, 1 << 20, 100), 100, files=files)


def test_damage_at_the_end_of_an_older_segment_is_told_of() -> None:
    files, _ = store_of_segments(3)
    second = follow.segments(FOLDER, files=files)[1]
    last = follow.start(FOLDER, second.first_position - 1, files=files)
    files.flip_bit(path_of(1), last.offset + 8, 3)
    with pytest.raises(JournalDamaged, match=f"byte {last.offset}: commit {last.position} does not check out, and lat"):
        history(files, beginning(files))


def test_history_that_was_dropped_is_a_gap_and_says_what_is_kept() -> None:
    files, count = store_of_segments(5)
    second = follow.segments(FOLDER, files=files)[1]
    inside = follow.start(FOLDER, second.first_position + 1, files=files)
    journal, _ = start(files)
    journal.save_snapshot(count, [b"state"], [2])
    assert journal.drop() == [1, 3, 4]
    fifth = follow.first_position(FOLDER, files=files)
    assert [s.number for s in follow.segments(FOLDER, files=files)] == [2, 5]
    for ask in (
        lambda: follow.start(FOLDER, 1, files=files),
        lambda: follow.start(FOLDER, fifth - 1, files=files),
        lambda: follow.advance(FOLDER, Place(1, 64, 1), follow.end(FOLDER, files=files), 10, files=files),
        lambda: history(files, inside),  # goes well until segment 2 ends
    ):
        with pytest.raises(JournalGap, match=f"history is kept from commit {fifth} on") as gap:
            ask()
        assert gap.value.details["first_position"] == fifth
    assert follow.start(FOLDER, inside.position, files=files) == inside  # it is still there, before the gap
    assert [p for p, _ in history(files, beginning(files))] == list(range(fifth, count + 1))
    journal.close()


def test_a_place_behind_the_last_commit_of_a_dropped_segment_is_no_gap() -> None:
    files, count = store_of_segments(4)
    fourth = follow.segments(FOLDER, files=files)[-1]
    before = follow.start(FOLDER, fourth.first_position - 1, files=files)
    behind = follow.advance(FOLDER, before, follow.end(FOLDER, files=files), 1, files=files)
    assert (behind.segment, behind.position) == (3, fourth.first_position)
    journal, _ = start(files)
    journal.save_snapshot(count, [b"state"], [])
    assert journal.drop() == [1, 2, 3]
    assert [p for p, _ in history(files, behind)] == list(range(fourth.first_position, count + 1))
    journal.close()


def test_segments_say_what_they_hold() -> None:
    files, count = store_of_segments(3)
    found = follow.segments(FOLDER, files=files)
    assert [s.number for s in found] == [1, 2, 3]
    assert {s.first_time_ms for s in found} == {1_000}
    ends = [follow.start(FOLDER, s.first_position, files=files) for s in found[1:]]
    assert all(place.offset == HEADER_BYTES for place in ends)
    assert [s.used_bytes for s in found[:-1]] == [len(files.contents(path_of(n))) for n in (1, 2)]
    assert found[-1].used_bytes == follow.end(FOLDER, files=files).offset
    # As a crash leaves it between the beginning of the next segment and the cutting of this one.
    whole = files.contents(path_of(1))
    files.put_contents(path_of(1), whole + bytes(4096 - len(whole) % 4096))
    assert follow.segments(FOLDER, files=files) == found
    assert [p for p, _ in history(files, beginning(files))] == list(range(1, count + 1))


def test_a_folder_without_a_journal_is_not_one(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotFound, match="there is no journal in"):
            follow.end(str(folder))


# --- names ----------------------------------------------------------------------------------------------------------


def put_all(core: Core, journal: SegmentJournal, start_at: int = 0) -> int:
    """What a core has written, into a journal; how much it was."""
    for event in core.paper.read(start_at):
        if event.kind.name.startswith(("QUEUE", "OPENED")):
            commit(journal, event)
    return len(core.paper.commits)


def test_queues_are_known_by_name_after_they_were_changed_and_deleted() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    core = Core()
    core.put("a")
    core.put("b", tier="critical")
    core.put("a", tier="low", max_messages=5)
    core.run(iter([QueueDeleted(core["b"].number, core.now_ms, core_document(core, "b"))]))
    put_all(core, journal)
    assert follow.catalogue(FOLDER, files=files) == {1: ("/", "a", "low", 5), 2: ("/", "b", "critical", None)}
    assert follow.store(FOLDER, files=files) == (77, TAG)
    journal.close()


def core_document(core: Core, name: str) -> bytes:
    from laneway.core.state import queue_document

    return queue_document(core[name])


def test_a_snapshot_tells_what_dropped_events_no_longer_do() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    core = Core()
    core.put("a")
    core.put("b", tier="critical")
    core.put("a", tier="low")
    done = put_all(core, journal)
    written = fill_extents(journal, 2)
    position = len(written) + done
    journal.save_snapshot(position, snapshot.chunks(snapshot.freeze(core.state)), [])
    assert journal.drop() == [1, 2]
    core.put("b", tier="normal")
    core.put("c")
    put_all(core, journal, done)
    expected = {1: ("/", "a", "low", None), 2: ("/", "b", "normal", None), 3: ("/", "c", "normal", None)}
    assert follow.catalogue(FOLDER, files=files) == expected
    assert follow.store(FOLDER, files=files) == (77, TAG)
    # A snapshot that cannot be read is no reason to know nothing.
    (path,) = [p for p in files.paths() if "snapshot" in p]
    files.put_contents(path, files.contents(path)[:70])
    assert follow.catalogue(FOLDER, files=files) == {k: v for k, v in expected.items() if k != 1}
    journal.close()


# --- beside a writer ------------------------------------------------------------------------------------------------


def test_a_history_is_followed_while_it_is_written_and_dropped(tmp_path: Path) -> None:
    folder = str(tmp_path)
    journal = SegmentJournal(folder, segment_bytes=16 << 10, reserve_bytes=0, durability="none")
    replayed(journal)
    commit(journal, Opened(at_ms=1, epoch=1, tag=5))
    count, has_read = 3_000, threading.Semaphore(0)

    def write() -> None:
        for seq in range(1, count + 1):
            sealed, _ = commit(journal, published(seq, size=seq % 700))
            if seq % 500 == 0:
                has_read.acquire()  # what was not read yet must not be dropped
                journal.save_snapshot(sealed.position, [b"state"], [])
                journal.drop()

    writer = threading.Thread(target=write)
    writer.start()
    seen: list[int] = []
    place = follow.start(folder, 1)
    try:
        while place.position < count + 2:
            until = follow.end(folder, place)
            target = follow.advance(folder, place, until, 70)
            seen += [found.header.position for found, _ in follow.commits(folder, place, target)]
            for position in range(place.position, target.position):
                if position > 1 and (position - 1) % 500 == 0:  # the first commit opened the store
                    has_read.release()
            place = target
    finally:
        has_read.release(count)
        writer.join(30)
    assert seen == list(range(1, count + 2))
    assert follow.first_position(folder) > 1, "nothing was dropped"
    assert segment_name(1) not in RealFiles().list_folder(folder)
    journal.close()
