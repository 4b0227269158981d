"""The bytes themselves. If one of these has to change, so has format.VERSION: see the recipe in format.py."""

from __future__ import annotations

import struct

import pytest
import xxhash

from laneway.core.events import Acked, Opened, Published, QueuePut
from laneway.journal.history import format as fmt
from tests.journal.contract import commit, shared
from tests.journal.stores import FOLDER, path_of, start
from tests.simulation.faulty_files import FaultyFiles

STORE = 77

# One commit of three events, and a mark: Opened(at_ms=1000, epoch=3, tag=9),
# QueuePut(queue=7, at_ms=1001, document=b'{"name":"q"}'), Acked(queue=7, at_ms=1002, seqs=[5, 6], leases=[1, 2]).
SEGMENT_HEADER = """
4c577367 0300 0000  0100000000000000 0100000000000000 4d00000000000000
0000000000000000 0010000000000000 0000000000000000  SEGMENTSUM
"""
COMMIT = """
4c57636d 0300 0100  0100000000000000 0300000000000000 0000000000000000
c0010000 0c000000 04000000 03000000  BODYSUM HEADSUM
7b226e616d65223a2271227d 0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000
                         0000000000000000
01000000 00000000 0300000000000000 e803000000000000 0000000000000000
0900000000000000 0000000000000000 00000000 00000000 00000000 00000000
02000000 07000000 0000000000000000 e903000000000000 0000000000000000
0000000000000000 0000000000000000 00000000 00000000 40000000 0c000000
0c000000 07000000 0500000000000000 ea03000000000000 0000000000000000
0100000000000000 0000000000000000 00000000 00000000 00000000 00000000
0c000001 07000000 0600000000000000 ea03000000000000 0000000000000000
0200000000000000 0000000000000000 00000000 00000000 00000000 00000000
"""
MARK = """
4c57636d 0300 0200  0100000000000000 0300000000000000 0100000000000000
40000000 00000000 00000000 00000000 0000000000000000  MARKSUM
"""


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def transcript(text: str, **sums: int) -> bytes:
    for name, value in sums.items():
        text = text.replace(name, u64(value).hex())
    return bytes.fromhex("".join(text.split()))


def test_segment_with_one_commit_and_a_mark_is_these_bytes() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, draw_store=lambda: STORE)
    sealed, locations = commit(
        journal,
        Opened(at_ms=1000, epoch=3, tag=9),
        QueuePut(queue=7, at_ms=1001, document=b'{"name":"q"}'),
        Acked(queue=7, at_ms=1002, seqs=[5, 6], leases=[1, 2]),
    )
    journal.mark()
    assert locations == [0, 1 << 32 | 128, 0]
    assert sealed.byte_count == 0x1C0
    checksum = xxhash.xxh3_64_intdigest

    head = transcript(SEGMENT_HEADER, SEGMENTSUM=0)[:56]
    expected = head + u64(checksum(head))
    unsigned = transcript(COMMIT, BODYSUM=0, HEADSUM=0)
    body = unsigned[64:]
    head = unsigned[:48] + u64(checksum(body))
    expected += head + u64(checksum(head, STORE ^ (1 << 32 | 64))) + body
    head = transcript(MARK, MARKSUM=0)[:56]
    expected += head + u64(checksum(head, STORE ^ (1 << 32 | len(expected))))

    stored = files.contents(path_of(1))
    assert stored[: len(expected)].hex(" ", 8) == expected.hex(" ", 8)
    assert stored[len(expected) :].strip(b"\0") == b""
    assert len(stored) == 4096


def test_snapshot_is_these_bytes() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, draw_store=lambda: STORE)
    commit(journal, Opened(at_ms=1, epoch=1, tag=1))
    journal.save_snapshot(1, [b"one", b""], [])
    checksum = xxhash.xxh3_64_intdigest
    head = b"LWsn" + struct.pack("<HHQQQI4x16x", 3, 0, 1, STORE, 1, 0)
    expected = head + u64(checksum(head))
    expected += struct.pack("<I", 3) + b"one" + struct.pack("<I", 0) + struct.pack("<IQ", 0xFFFFFFFF, 2)
    expected += u64(checksum(expected))
    assert files.contents(f"{FOLDER}/snapshot-0000000000000001").hex(" ", 8) == expected.hex(" ", 8)


# Version 3: Published(at_ms=1000, first_seq=5, …) of one message for queue 7 and queue 8, with the body b"body".
SHARED_RECORD = """
RECORDSM 00000000 0500000000000000 e803000000000000 626f6479
"""
SHARING_ROWS = """
0a000900 07000000 0500000000000000 e803000000000000 0000000000000000
0000000000000000 0000000000000000 00000000 00000000 40000000 1c000000
0a000900 08000000 0600000000000000 e803000000000000 0000000000000000
0000000000000000 0000000000000000 00000000 00000000 40000000 1c000000
"""


def test_a_record_that_two_queues_share_is_these_bytes() -> None:
    files = FaultyFiles(0)
    journal, _ = start(files, draw_store=lambda: STORE)
    columns: list[list[int]] = [[9, 9], [0, 0], [0, 0], [28, 28]]
    event = Published(7, 1000, 5, *columns, [b"", b""], [b"body", b"body"], {}, {}, queues=[(7, 1), (8, 1)])
    event.locations = [0, ~0]
    sealed, _ = commit(journal, event)
    record = transcript(SHARED_RECORD.replace("RECORDSM", "00000000"))
    record = struct.pack("<I", xxhash.xxh3_64_intdigest(record[4:]) & 0xFFFFFFFF) + record[4:]
    expected = record + bytes(-len(record) % 64) + transcript(SHARING_ROWS)
    stored = files.contents(path_of(1))
    assert stored[128 : 128 + len(expected)].hex(" ", 8) == expected.hex(" ", 8)
    assert sealed.byte_count == 64 + len(expected) + 64


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_older_version_is_read_and_goes_on_in_a_new_segment(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    files = FaultyFiles(0)
    with monkeypatch.context() as older:
        older.setattr(fmt, "VERSION", version)
        journal, _ = start(files, draw_store=lambda: STORE)
        commit(journal, Opened(at_ms=1, epoch=1, tag=1))
        journal.mark()
        journal.close()
    before = files.contents(path_of(1))
    assert before[4:6] == bytes((version, 0))

    journal, events = start(files)
    assert [type(event) for _, some in events for event in some] == [Opened]
    event = shared(1, 2)
    commit(journal, Opened(at_ms=2, epoch=2, tag=1), event)
    journal.close()
    assert {at >> 32 for at in event.locations} == {2}, "what is shared is in the new segment"
    assert files.contents(path_of(2))[4:6] == b"\3\0"
    assert files.contents(path_of(1))[64:70] == before[64:70], "what was written stays as it was"
    _, events = start(files)
    assert [e.epoch for _, some in events for e in some if isinstance(e, Opened)] == [1, 2]


@pytest.mark.parametrize("blob_bytes", [0, 1, 63, 64, 65, 127, 128, 1_000])
def test_rows_and_the_next_commit_begin_at_multiples_of_64(blob_bytes: int) -> None:
    length = fmt.commit_length(blob_bytes, 3 * 64)
    header = fmt.CommitHeader(fmt.COMMIT, 1, 1, 0, length, blob_bytes, 3, 1, 0)
    assert length % 64 == 0
    assert fmt.rows_at(header) % 64 == 0
    assert fmt.rows_at(header) - 64 - blob_bytes in range(64)


def test_header_is_good_only_in_its_own_place_and_store() -> None:
    header = fmt.CommitHeader(fmt.COMMIT, 5, 2, 4, 128, 0, 0, 0, 0)
    packed = fmt.pack_commit_header(header, store=1, location=1 << 32 | 64)
    assert fmt.parse_commit_header(packed, 0, store=1, location=1 << 32 | 64) == header
    assert fmt.parse_commit_header(packed, 0, store=1, location=1 << 32 | 128) is None
    assert fmt.parse_commit_header(packed, 0, store=1, location=2 << 32 | 64) is None
    assert fmt.parse_commit_header(packed, 0, store=2, location=1 << 32 | 64) is None


def test_names_of_other_files_are_not_taken_for_segments_or_snapshots() -> None:
    names = ["0000000000000012.segment", "12.segment", "000000000000001x.segment", "lock", "spare", "snapshot.partial"]
    names += ["snapshot-0000000000000007", "snapshot-7", "0000000000000003.segment", "0000000000000001.segment.bak"]
    assert fmt.segment_numbers(names) == [3, 12]
    assert fmt.snapshot_positions(names) == [7]
