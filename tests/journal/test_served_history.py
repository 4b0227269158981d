"""The history of a journal that is being written: what readers ask for again and again costs the writer little."""

from __future__ import annotations

import os

import pytest

from laneway.core.events import Opened, QueueDeleted
from laneway.journal.history import follow, served
from laneway.journal.history.format import segment_name
from laneway.journal.segments import SegmentJournal
from tests.core.runner import TAG, Core
from tests.journal.contract import commit, fill_extents, published
from tests.journal.stores import FOLDER, killed, start
from tests.journal.test_segment_follow import core_document, put_all
from tests.simulation.faulty_files import FaultyFiles


class CountedFiles(FaultyFiles):
    """Notes which files are opened."""

    def __init__(self) -> None:
        super().__init__(0)
        self.opened: list[str] = []

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        self.opened.append(os.path.basename(path))
        return super().open(path, write=write, create=create)


def named(journal: SegmentJournal) -> dict[int, tuple[str, str]]:
    return {number: (one.name, one.tier) for number, one in journal.history.catalogue().items()}


def with_one_queue(files: CountedFiles) -> tuple[SegmentJournal, Core, int]:
    """A journal that has been asked for the names in it; and how many events of the core it has."""
    journal, _ = start(files)
    core = Core()
    core.put("a")
    done = put_all(core, journal)
    assert named(journal) == {1: ("a", "normal")}
    return journal, core, done


def test_names_are_read_where_they_were_written_and_nowhere_else() -> None:
    files = CountedFiles()
    journal, core, done = with_one_queue(files)
    fill_extents(journal, 2)
    journal.history.extents()
    files.opened.clear()
    first = journal.history.end().segment
    assert named(journal) == {1: ("a", "normal")} and set(files.opened) == {segment_name(first)}
    core.put("b", tier="critical")
    core.put("a", tier="low")
    core.run(iter([QueueDeleted(core["a"].number, core.now_ms, core_document(core, "a"))]))
    put_all(core, journal, done)
    end = journal.history.end()
    assert journal.history.named_position == end.position - 1
    fill_extents(journal, 2)
    journal.history.extents()
    files.opened.clear()
    assert named(journal) == {1: ("a", "low"), 2: ("b", "critical")}
    last = journal.history.end().segment  # is looked at as the one that still grows
    assert set(files.opened) <= {segment_name(number) for number in (*range(first, end.segment + 1), last)}
    assert journal.history.named_position == end.position - 1
    assert follow.catalogue(FOLDER, files=files) == journal.history.catalogue()
    journal.close()


@pytest.mark.parametrize("most", [0, 1, 2, 100])
def test_names_are_found_also_if_too_many_came_to_be_noted(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_MOST_NOTED", most)
    files = CountedFiles()
    journal, core, done = with_one_queue(files)
    names = {"a"}
    for turn in range(3):
        for at in range(turn + 1):
            core.put(f"more-{turn}-{at}")
        done = put_all(core, journal, done)
        fill_extents(journal, 1)
        names |= {f"more-{turn}-{at}" for at in range(turn + 1)}
        assert {name for name, _ in named(journal).values()} == names
    journal.close()


def test_a_name_that_is_not_durable_yet_comes_later() -> None:
    files = CountedFiles()
    journal, _ = start(files, durability="interval", interval_ms=10_000)
    core = Core()
    core.put("a")
    done = put_all(core, journal)
    journal.sync()
    assert named(journal) == {1: ("a", "normal")}
    core.put("b")
    put_all(core, journal, done)
    assert named(journal) == {1: ("a", "normal")}
    assert journal.history.named_position >= journal.history.end().position, "a reader has to ask again"
    journal.sync()
    assert named(journal) == {1: ("a", "normal"), 2: ("b", "normal")}
    assert journal.history.named_position < journal.history.end().position
    journal.close()


def test_a_start_may_have_named_anything_before_it() -> None:
    files = CountedFiles()
    journal, _ = start(files)
    core = Core()
    core.put("a")
    put_all(core, journal)
    end = journal.history.end()
    journal, _ = start(killed(files))  # type: ignore[arg-type]
    assert journal.history.named_position == end.position - 1
    commit(journal, Opened(at_ms=2, epoch=2, tag=TAG))
    assert journal.history.named_position == end.position - 1
    journal.close()


def test_segments_are_opened_once_to_tell_what_they_hold() -> None:
    files = CountedFiles()
    journal, _ = start(files)
    fill_extents(journal, 3)
    found = journal.history.extents()
    files.opened.clear()
    assert journal.history.extents() == found
    assert set(files.opened) == {segment_name(found[-1].number)}
    commit(journal, Opened(at_ms=2, epoch=2, tag=TAG))
    later = journal.history.extents()
    assert later[-1].used_bytes == journal.history.end().offset > found[-1].used_bytes
    for seq in range(1_000, 1_050):  # the one that was the last is so no longer
        commit(journal, published(seq, size=150))
    later = journal.history.extents()
    assert [tuple(one) for one in later] == follow.segments(FOLDER, files=files) and len(later) > len(found)
    journal.close()
