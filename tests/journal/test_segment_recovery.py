"""What a segment journal makes of what it finds at start: torn tails are cut, everything else is refused by name."""

from __future__ import annotations

import logging

import pytest

from laneway.errors import JournalDamaged, JournalVersionUnknown
from laneway.journal.history.format import checksum, pack_commit_header, parse_commit_header, snapshot_name
from tests.journal.contract import commit, fill_extents, published
from tests.journal.stores import (
    FOLDER,
    killed,
    open_on,
    path_of,
    positions,
    start,
    store_of_segments,
    three_commits,
)
from tests.simulation.faulty_files import FaultyFiles


def test_last_commit_torn_at_any_length_is_cut_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    files, offsets = three_commits(mark_last=False)
    whole = files.contents(path_of(1))
    begin, end = offsets[2], offsets[3]
    for kept in range(begin, end - 64):  # the last 64 bytes are the place of the mark, zero anyway
        torn = whole[:kept] + bytes(len(whole) - kept)
        if torn == whole:
            continue  # it had ended with zeros: nothing is torn
        files = FaultyFiles(0)
        files.put_contents(path_of(1), torn)
        caplog.clear()
        journal, history = start(files)
        assert positions(history) == [1, 2], kept
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        if kept == begin:
            assert warnings == []  # nothing of it is there at all
        else:
            assert len(warnings) == 1 and f"byte {begin}" in warnings[0] and path_of(1) in warnings[0]
        commit(journal, published(9))
        journal.close()
        journal, history = start(files)
        assert positions(history) == [1, 2, 3]
        assert files.contents(path_of(1))[offsets[3] :].strip(b"\0") == b""


def test_last_commit_that_lost_any_one_sector_is_cut() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, segment_bytes=1 << 16)
    commit(journal, published(1))
    sealed, (location,) = commit(journal, published(2, 5, size=900))
    begin = (location & 0xFFFFFFFF) - 64
    whole = killed(files).contents(path_of(1))
    for sector in range(begin // 512 + 1, (begin + sealed.byte_count - 64) // 512):
        files = FaultyFiles(0)
        files.put_contents(path_of(1), whole[: sector * 512] + bytes(512) + whole[(sector + 1) * 512 :])
        journal, history = start(files, segment_bytes=1 << 16)
        assert positions(history) == [1]
        assert files.contents(path_of(1))[begin:].strip(b"\0") == b""


def test_any_flipped_bit_in_a_commit_that_others_follow_is_damage() -> None:
    files, offsets = three_commits(mark_last=False)
    whole = files.contents(path_of(1))
    for at in range(offsets[0], offsets[2]):
        in_mark = any(end - 64 <= at < end for end in offsets[1:3])
        files = FaultyFiles(0)
        files.put_contents(path_of(1), whole)
        files.flip_bit(path_of(1), at, at % 8)
        journal = open_on(files)
        if in_mark:  # carries no history, so none can be lost with it
            assert positions(list(journal.replay(0))) == [1, 2, 3]
            continue
        begin = max(offset for offset in offsets if offset <= at)
        with pytest.raises(JournalDamaged, match="laneway journal check") as caught:
            list(journal.replay(0))
        assert caught.value.details == {"file": path_of(1), "offset": begin}
        assert files.contents(path_of(1))[:at] == whole[:at], "a damaged journal must be left as it is"


def test_any_flipped_bit_in_the_last_commit_is_damage_once_it_was_marked() -> None:
    files, offsets = three_commits(mark_last=True)
    whole = files.contents(path_of(1))
    for at in range(offsets[2], offsets[3] - 64):
        files = FaultyFiles(0)
        files.put_contents(path_of(1), whole)
        files.flip_bit(path_of(1), at, at % 8)
        with pytest.raises(JournalDamaged):
            start(files)


def test_any_flipped_bit_in_a_segment_header_is_damage() -> None:
    files, _ = three_commits(mark_last=True)
    whole = files.contents(path_of(1))
    for at in range(64):
        files = FaultyFiles(0)
        files.put_contents(path_of(1), whole)
        files.flip_bit(path_of(1), at, at % 8)
        with pytest.raises(JournalDamaged) as caught:
            start(files)
        assert caught.value.details == {"file": path_of(1), "offset": 0}


def test_bad_last_commit_of_a_segment_with_a_successor_is_damage() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files)
    written = fill_extents(journal, 1)
    killed(files)
    last_in_first = [location for _, location in written if location >> 32 == 1][-1]
    files.flip_bit(path_of(1), last_in_first & 0xFFFFFFFF, 0)
    with pytest.raises(JournalDamaged, match=r"0001\.segment is damaged at byte"):
        start(files)


def test_message_body_that_holds_a_copy_of_the_journal_is_no_proof_of_damage() -> None:
    files, _ = three_commits(mark_last=True)
    fork = FaultyFiles(0)
    fork.put_contents(path_of(1), files.contents(path_of(1)))
    journal, _ = start(fork, segment_bytes=1 << 16)
    for seq in range(4, 60):  # the same store, further on: its headers call durable what the other never wrote
        commit(journal, published(seq))
    journal.close()
    journal, _ = start(files, segment_bytes=1 << 20)
    event = published(4)
    event.bodies = [fork.contents(path_of(1))]
    event.sizes = [len(event.records[0])]
    _, (location,) = commit(journal, event)
    offset = location & 0xFFFFFFFF
    assert offset % 64 == 0, "the copied headers have to stand where headers are looked for"
    killed(files).flip_bit(path_of(1), offset - 64 + 16, 0)  # the last commit is torn
    assert positions(start(files, segment_bytes=1 << 20)[1]) == [1, 2, 3]


@pytest.mark.parametrize(("position", "epoch"), [(2, 5), (4, 5), (3, 1)])
def test_sound_commit_out_of_order_is_damage(position: int, epoch: int) -> None:
    files, offsets = three_commits(mark_last=True)  # epochs 1, 2, 3
    whole = files.contents(path_of(1))
    at, location = offsets[2], 1 << 32 | offsets[2]
    header = parse_commit_header(whole, at, store=77, location=location)
    assert header is not None
    forged = pack_commit_header(header._replace(position=position, epoch=epoch), store=77, location=location)
    files.put_contents(path_of(1), whole[:at] + forged + whole[at + 64 :])
    with pytest.raises(JournalDamaged, match=f"commit {position} of epoch {epoch} stands where commit 3 of epoch 2"):
        start(files)


def test_unsynced_commits_that_survive_behind_a_lost_one_are_cut_with_it() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, durability="none")
    offsets = [64]
    for seq in range(1, 6):
        offsets.append(offsets[-1] + commit(journal, published(seq))[0].byte_count)
    whole = killed(files).contents(path_of(1))
    files = FaultyFiles(0)
    files.put_contents(path_of(1), whole[: offsets[2]] + bytes(64) + whole[offsets[2] + 64 :])
    _, history = start(files)
    assert positions(history) == [1, 2]
    assert files.contents(path_of(1))[offsets[2] :].strip(b"\0") == b""


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_lost_segment_is_noticed(lost: int) -> None:
    files, _ = store_of_segments(4)
    files.delete(path_of(lost))
    with pytest.raises(JournalDamaged, match="is missing") as caught:
        start(files)
    assert caught.value.details["file"] == path_of(lost)


def test_lost_segment_that_a_snapshot_refers_to_is_noticed() -> None:
    files, position = store_of_segments(5)
    journal, _ = start(files)
    journal.save_snapshot(position, [b"state"], [2, 3])
    assert journal.drop() == [1, 4]
    journal.close()
    _, history = start(killed(files))
    assert history == []
    for lost in (2, 3, 5):
        copy = FaultyFiles(0)
        for path in files.paths():
            copy.put_contents(path, files.contents(path))
        copy.delete(path_of(lost))
        with pytest.raises(JournalDamaged, match="is missing") as caught:
            start(copy)
        assert caught.value.details["file"] == path_of(lost)


def test_live_extent_that_is_already_missing_fails_the_snapshot() -> None:
    files, position = store_of_segments(3)
    journal, _ = start(files)
    journal.save_snapshot(position, [], [])
    journal.drop()
    with pytest.raises(JournalDamaged, match="is missing"):
        journal.save_snapshot(position, [], [1])


def test_lost_snapshot_is_noticed_once_history_was_dropped() -> None:
    files, position = store_of_segments(3)
    journal, _ = start(files)
    journal.save_snapshot(position, [b"state"], [])
    journal.drop()
    journal.close()
    files.delete(f"{FOLDER}/{snapshot_name(position)}")
    with pytest.raises(JournalDamaged, match="is missing"):
        start(files)


def test_history_that_ends_before_the_snapshot_is_damage() -> None:
    files, offsets = three_commits(mark_last=True)
    journal, _ = start(files)
    journal.save_snapshot(3, [b"state"], [])
    journal.close()
    whole = files.contents(path_of(1))
    files.put_contents(path_of(1), whole[: offsets[2] - 64] + bytes(len(whole) - offsets[2] + 64))
    with pytest.raises(JournalDamaged, match="history ends with commit 2, the snapshot has 3"):
        start(files)


def test_segment_of_another_store_is_refused() -> None:
    files, _ = store_of_segments(3)
    other = FaultyFiles(0)
    journal, _ = start(other, draw_store=lambda: 78)
    fill_extents(journal, 2)
    journal.close()
    files.put_contents(path_of(2), other.contents(path_of(2)))
    with pytest.raises(JournalDamaged, match="belongs to another journal"):
        start(files)


def test_segment_under_a_wrong_name_is_refused() -> None:
    files, _ = store_of_segments(3)
    files.put_contents(path_of(2), files.contents(path_of(1)))
    with pytest.raises(JournalDamaged, match="says it is segment 1"):
        start(files)


def test_interrupted_drop_is_finished_at_the_next_start() -> None:
    files, position = store_of_segments(4)
    first = files.contents(path_of(1))
    journal, _ = start(files)
    journal.save_snapshot(position, [], [2])
    journal.drop()
    journal.close()
    files.put_contents(path_of(1), first)
    journal, _ = start(files)
    assert journal.drop() == [1]
    assert path_of(1) not in files.paths()
    assert path_of(2) in files.paths()


def with_version(header: bytes, version: int) -> bytes:
    changed = header[:4] + version.to_bytes(2, "little") + header[6:56]
    return changed + checksum(changed).to_bytes(8, "little")


def test_segment_of_an_unknown_version_is_refused_by_name() -> None:
    files, _ = three_commits(mark_last=True)
    whole = files.contents(path_of(1))
    files.put_contents(path_of(1), with_version(whole[:64], 9) + whole[64:])
    with pytest.raises(
        JournalVersionUnknown, match=r"0001\.segment has format version 9; this Laneway reads version 3"
    ):
        start(files)


def test_snapshot_of_an_unknown_version_is_refused_by_name() -> None:
    files, _ = three_commits(mark_last=True)
    journal, _ = start(files)
    journal.save_snapshot(3, [b"state"], [])
    journal.close()
    name = f"{FOLDER}/{snapshot_name(3)}"
    whole = files.contents(name)
    files.put_contents(name, with_version(whole[:64], 9) + whole[64:])
    with pytest.raises(JournalVersionUnknown, match="snapshot-0000000000000003 has format version 9"):
        start(files)
