"""`journal check` and `journal dump`: they find what is wrong, say where, and change nothing."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import msgspec
import pytest

from laneway.core.events import Acked, Bound, DocumentPut, ExchangePut, QueuePut
from laneway.errors import InvalidInput, NotFound
from laneway.journal.history.format import checksum, segment_name, snapshot_name
from laneway.journal.history.inspect import CheckReport, check, dump
from laneway.journal.segments import SegmentJournal
from tests.journal.contract import ONE_OF_EACH, commit, fill_extents, published
from tests.journal.stores import FOLDER, killed, path_of, start, store_of_segments, three_commits
from tests.simulation.faulty_files import FaultyFiles


def check_on(files: FaultyFiles) -> CheckReport:
    before = {path: files.contents(path) for path in files.paths()}
    report = check(FOLDER, files=files)
    assert {path: files.contents(path) for path in files.paths()} == before, "checking must change nothing"
    return report


def places(report: CheckReport) -> list[tuple[str, int]]:
    return [(problem.file, problem.offset) for problem in report.problems]


def test_sound_journal_is_reported_segment_by_segment() -> None:
    files, count = store_of_segments(4)
    report = check_on(files)
    assert report.is_sound and report.exit_status == 0 and report.notes == []
    assert [segment.number for segment in report.segments] == [1, 2, 3, 4]
    assert sum(segment.commit_count for segment in report.segments) == count
    assert sum(segment.event_count for segment in report.segments) == count
    assert sum(segment.record_count for segment in report.segments) == 2 * count
    assert report.segments[0].first_position == 1 and report.segments[-1].last_position == count
    for segment, following in zip(report.segments, report.segments[1:], strict=False):
        assert segment.last_position + 1 == following.first_position


def test_gaps_left_by_dropping_are_no_problem() -> None:
    files, position = store_of_segments(5)
    journal, _ = start(files)
    journal.save_snapshot(position, [b"state"], [2])
    journal.drop()
    report = check_on(files)
    assert report.problems == [] and [segment.number for segment in report.segments] == [2, 5]
    assert [(s.position, s.is_sound, s.needed_segments) for s in report.snapshots] == [(position, True, [2])]


def test_missing_segment_is_a_problem() -> None:
    files, _ = store_of_segments(4)
    files.delete(path_of(2))
    report = check_on(files)
    assert places(report) == [(path_of(2), 0)] and report.exit_status == 1
    assert [segment.number for segment in report.segments] == [1, 3, 4]


def test_any_flipped_bit_is_found_where_it_is_and_the_rest_is_still_read() -> None:
    files, offsets = three_commits(mark_last=True)
    whole = files.contents(path_of(1))
    for at in range(0, offsets[3], 5):
        files.put_contents(path_of(1), whole)
        files.flip_bit(path_of(1), at, at % 8)
        report = check_on(files)
        assert not report.is_sound, at
        [(file, offset)] = places(report)
        if at < 64:
            assert (file, offset) == (path_of(1), 0)
            continue
        begin = max(offset for offset in offsets if offset <= at)
        in_mark = any(end - 64 <= at < end for end in offsets[1:])
        if in_mark:
            assert offset % 64 == 0 and offset <= at < offset + 64, "the mark itself"
            assert report.segments[0].commit_count == 3 or whole[offset : offset + 64] == bytes(64)
        else:
            assert (file, offset) == (path_of(1), begin)
            assert report.segments[0].commit_count == 2


def test_damaged_segment_header_does_not_hide_the_commits_behind_it() -> None:
    files, count = store_of_segments(3)
    files.flip_bit(path_of(2), 20, 0)
    report = check_on(files)
    assert places(report) == [(path_of(2), 0)]
    assert sum(segment.commit_count for segment in report.segments) == count


def test_damaged_snapshot_is_a_problem() -> None:
    files, position = store_of_segments(2)
    journal, _ = start(files)
    journal.save_snapshot(position, [b"state"], [])
    journal.close()
    name = f"{FOLDER}/{snapshot_name(position)}"
    files.flip_bit(name, 70, 0)
    report = check_on(files)
    assert [file for file, _ in places(report)] == [name]
    assert not report.snapshots[0].is_sound


def test_unfinished_commit_at_the_end_is_a_note_and_no_problem() -> None:
    files, offsets = three_commits(mark_last=False)
    files.flip_bit(path_of(1), offsets[2] + 70, 0)
    report = check_on(files)
    assert report.is_sound
    assert len(report.notes) == 1 and f"byte {offsets[2]}" in report.notes[0]


def test_unknown_version_is_a_problem() -> None:
    files, _ = three_commits(mark_last=True)
    whole = bytearray(files.contents(path_of(1)))
    whole[4] = 9
    whole[56:64] = checksum(bytes(whole[:56])).to_bytes(8, "little")
    files.put_contents(path_of(1), bytes(whole))
    report = check_on(files)
    assert "version 9" in report.problems[0].what


def test_folder_without_a_journal_is_not_found(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(NotFound, match="there is no journal in"):
            check(str(folder))
        with pytest.raises(NotFound):
            list(dump(str(folder)))


def test_live_folder_can_be_checked_and_dumped(tmp_path: Path) -> None:
    journal = SegmentJournal(tmp_path, segment_bytes=4096, reserve_bytes=0)
    assert list(journal.replay(0)) == []
    fill_extents(journal, 3)
    report = check(str(tmp_path))
    assert report.is_sound and len(report.segments) == 4
    assert len(list(dump(str(tmp_path)))) == sum(segment.event_count for segment in report.segments)
    journal.close()


def test_checking_while_a_server_writes_finds_no_problem(tmp_path: Path) -> None:
    journal = SegmentJournal(tmp_path, segment_bytes=1 << 16, reserve_bytes=0, durability="none")
    assert list(journal.replay(0)) == []
    commit(journal, published(1))
    stop = threading.Event()

    def write() -> None:
        seq = 2
        while not stop.is_set() and seq < 40_000:
            commit(journal, published(seq, 20, size=200))
            journal.mark()
            seq += 20

    def last(report: CheckReport) -> int:
        return report.segments[-1].last_position

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = [check(str(tmp_path))]
        deadline_s = time.monotonic() + 60
        while len(seen) < 10 or (last(seen[0]) == last(seen[-1]) and time.monotonic() < deadline_s):
            seen.append(check(str(tmp_path)))
    finally:
        stop.set()
        writer.join()
    assert [report.problems for report in seen] == [[]] * len(seen)
    assert last(seen[0]) < last(seen[-1]), "nothing was written meanwhile"
    journal.close()


def test_progress_ends_with_everything_done(tmp_path: Path) -> None:
    journal = SegmentJournal(tmp_path, segment_bytes=4096, reserve_bytes=0)
    assert list(journal.replay(0)) == []
    written = fill_extents(journal, 3)
    journal.save_snapshot(len(written), [b"x" * 100], [])
    journal.close()
    seen: list[tuple[int, int]] = []
    check(str(tmp_path), lambda done, total: seen.append((done, total)))
    total = sum(path.stat().st_size for path in tmp_path.iterdir() if path.name != "lock")
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


# --- dump -----------------------------------------------------------------------------------------------------------


def store_with(*events: object) -> FaultyFiles:
    files = FaultyFiles(0)
    journal, _ = start(files)
    for event in events:
        commit(journal, event)  # type: ignore[arg-type]
    journal.close()
    return files


def test_every_kind_of_event_can_be_dumped_as_json() -> None:
    events = list(dump(FOLDER, files=store_with(*ONE_OF_EACH)))
    assert [event["kind"] for event in events] == [event.kind.name.lower() for event in ONE_OF_EACH]
    assert [event["position"] for event in events] == list(range(1, len(ONE_OF_EACH) + 1))
    for event in events:
        json.dumps(event)
    assert events[2]["count"] == 3 and events[2]["first_seq"] == 1 and "records" not in events[2]
    assert events[1]["document"] == {"name": "q"}
    assert events[7]["cause"] == "lease_expired"


def test_documents_of_other_layers_are_not_shown() -> None:
    secret = DocumentPut(at_ms=1, collection="accounts", key="ann", document=b'{"hash":"s3cret"}')
    [event] = dump(FOLDER, files=store_with(secret))
    assert event["document_bytes"] == 17 and "s3cret" not in json.dumps(event)


def test_exchanges_and_bindings_are_shown_as_values_that_json_knows() -> None:
    declared = ExchangePut(at_ms=1, document=msgspec.msgpack.encode(("/", "x", {"type": "topic"})))
    bound = Bound(queue=1, at_ms=2, document=msgspec.msgpack.encode(("/", {"arguments": {"raw": b"\xff"}})))
    first, second = dump(FOLDER, files=store_with(declared, bound))
    assert first["document"] == ["/", "x", {"type": "topic"}]
    assert second["queue"] == 1 and json.loads(json.dumps(second))["document"] == ["/", {"arguments": {"raw": "/w=="}}]


def test_dump_can_be_narrowed() -> None:
    first = QueuePut(queue=1, at_ms=1, document=b'{"vhost":"/","name":"orders"}')
    second = QueuePut(queue=2, at_ms=1, document=b'{"vhost":"/","name":"mail"}')
    acked = Acked(queue=1, at_ms=2, seqs=[1], leases=[1])
    files = store_with(first, second, published(1, queue=1), published(2, queue=2), acked)

    def at(**options: object) -> list[int]:
        return [event["position"] for event in dump(FOLDER, files=files, **options)]  # type: ignore[arg-type]

    assert at() == [1, 2, 3, 4, 5]
    assert at(after=3) == [4, 5]
    assert at(limit=2) == [1, 2]
    assert at(limit=0) == []
    assert at(kinds=["published", "acked"]) == [3, 4, 5]
    assert at(queue="orders") == at(queue=1) == at(queue="1") == [1, 3, 5]
    assert at(queue="orders", after=3, kinds={"acked"}) == [5]
    with pytest.raises(InvalidInput, match="'acknowledged' is no kind of event; there are acked"):
        at(kinds=["acknowledged"])


def test_dump_begins_with_the_segment_asked_for() -> None:
    files, count = store_of_segments(4)
    files.flip_bit(path_of(1), 200, 0)
    assert [event["position"] for event in dump(FOLDER, files=files, after=count - 1)] == [count]


def test_dump_says_what_it_could_not_read_and_goes_on() -> None:
    files, offsets = three_commits(mark_last=True)
    killed(files).flip_bit(path_of(1), offsets[1] + 70, 0)
    found = list(dump(FOLDER, files=files))
    assert [event.get("position", "problem") for event in found] == [1, 1, "problem", 3, 3]
    assert found[2]["file"] == path_of(1) and found[2]["offset"] == offsets[1]
    assert found[0]["file"] == segment_name(1)
