"""Bytes of commits as Arrow batches, against a plain reading of the same bytes, row by row."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laneway.core.catalogue import QueueName
from laneway.core.events import Event, Kind, Published
from laneway.core.message import RECORD_PREFIX_BYTES, Properties, encode_props
from laneway.errors import JournalDamaged
from laneway.journal.history.files import RealFiles
from laneway.journal.history.format import HEADER_BYTES, segment_name, segment_numbers
from laneway.journal.history.recovery import read_segment
from laneway.journal.history.scan import SegmentScan
from laneway.pipeline import commits, decode
from laneway.pipeline.commits import Span
from laneway.pipeline.decode import Decoder
from laneway.pipeline.schema import EVENTS as COLUMNS
from laneway.pipeline.selection import Selection
from tests.pipeline import histories
from tests.pipeline.histories import CATALOGUE, TAG, expected, when, write

NAMES = [column.name for column in COLUMNS]
QUEUES = {number: QueueName(*names) for number, names in CATALOGUE.items()}
ELSEWHERE = {number: QueueName(*names) for number, names in histories.ELSEWHERE.items()}


class File:
    """A segment that counts what is read of it."""

    jump_bytes, near_bytes = 256, 256 << 10

    def __init__(self, folder: Path, number: int) -> None:
        self.name = str(folder / segment_name(number))
        self.number = number
        self.store = read_segment(RealFiles(), str(folder), number)[1]
        self.data = Path(self.name).read_bytes()
        self.read_bytes = 0

    def read(self, offset: int, size: int) -> bytes:
        self.read_bytes += size
        return self.data[offset : offset + size]

    def span(self) -> Span:
        files = RealFiles()
        file = files.open(self.name)
        scan = SegmentScan(files, self.name, file, number=self.number, store=self.store)
        offset = HEADER_BYTES
        while (header := scan.header_at(offset)) is not None:
            offset += header.length
        files.close(file)
        return Span(self.number, HEADER_BYTES, offset)


def segments(folder: Path) -> Iterator[File]:
    for number in segment_numbers(RealFiles().list_folder(str(folder))):
        yield File(folder, number)


def read(folder: Path, names: Sequence[str] = NAMES, selection: Selection | None = None) -> list[dict[str, Any]]:
    decoder = Decoder(names, tag=TAG, catalogue=QUEUES, selection=selection, elsewhere=ELSEWHERE)
    found: list[dict[str, Any]] = []
    for file in segments(folder):
        for batch in decoder.read(file, file.span()):
            batch.validate(full=True)
            assert batch.num_rows and batch.schema.equals(decoder.schema)
            found += batch.to_pylist()
    return found


def only(rows: list[dict[str, Any]], names: Sequence[str] = NAMES) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in names} for row in rows]


@pytest.mark.parametrize("kind", sorted(histories.EVENTS))
def test_each_kind_of_event_is_read_as_it_is_written(kind: Kind) -> None:
    @settings(max_examples=25)
    @given(st.lists(histories.EVENTS[kind], min_size=1, max_size=4))
    def check(events: list[Event]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), [events])
            assert read(Path(folder)) == only(expected(Path(folder)))

    check()


@settings(max_examples=60)
@given(
    histories.histories,
    st.lists(st.sampled_from(NAMES), min_size=1, unique=True),
    st.frozensets(st.sampled_from(Kind), min_size=1) | st.none(),
    st.frozensets(st.integers(0, 3)) | st.none(),
    st.integers(0, 2**45),
    st.integers(1, 400),
)
@example([], NAMES, None, None, 0, 1)
def test_any_columns_of_any_rows_are_those_of_a_plain_reading(
    history: list[list[Event]],
    names: list[str],
    kinds: frozenset[Kind] | None,
    queues: frozenset[int] | None,
    since_ms: int,
    jump_bytes: int,
) -> None:
    selection = Selection()
    if kinds is not None:
        selection = selection.with_kinds(lambda name: name in {kind.name.lower() for kind in kinds})
    if queues is not None:
        selection = selection.with_queues(QUEUES, lambda number, _: (number or 0) in queues)
    selection = selection.between(since_ms)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, history, segment_bytes=2048)
        all_rows = expected(folder)
        wanted = [
            row
            for row in all_rows
            if (kinds is None or Kind[row["kind"].upper()] in kinds)
            and (queues is None or (row["queue_number"] if row["queue"] else 0) in queues)
            and row["time"] >= when(since_ms)
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(File, "jump_bytes", jump_bytes)
            patch.setattr(File, "near_bytes", 192)
            patch.setattr(commits, "MAX_CHUNK_ROWS", 5)
            patch.setattr(commits, "PIECE_BYTES", 512)
            patch.setattr(decode, "MAX_BLOB_BYTES", 300)
            assert read(folder, names, selection) == only(wanted, names)
            assert read(folder) == only(all_rows)


def test_a_plain_message_may_be_the_last_thing_that_was_read(tmp_path: Path) -> None:
    """Behind it there is no room for the table of lengths that it does not have."""
    block = encode_props(Properties(tenant="t", routing_key="r"))
    sizes = [RECORD_PREFIX_BYTES + len(block), RECORD_PREFIX_BYTES]
    zeros = [0, 0]
    write(tmp_path, [[Published(1, 9, 1, zeros, zeros, zeros, sizes, [block, b""], [b"", b""], {}, {})]])
    for names in (["tenant", "routing_key", "content_type", "attributes"], NAMES):
        for selection in (None, Selection().between(0)):
            assert read(tmp_path, names, selection) == only(expected(tmp_path), names)


def messages(count: int, body_bytes: int, first: int = 1) -> Published:
    body = bytes(body_bytes)
    sizes = [RECORD_PREFIX_BYTES + body_bytes] * count
    zeros = [0] * count
    return Published(1, first, first, zeros, zeros, zeros, sizes, [b""] * count, [body] * count, {}, {})


def test_bodies_are_not_read_where_no_column_needs_them(tmp_path: Path) -> None:
    write(tmp_path, [[messages(10, 10_000, 1 + 10 * n)] for n in range(5)], segment_bytes=1 << 20)
    (file,) = segments(tmp_path)
    decoder = Decoder(["time", "message_id", "kind", "size"], tag=TAG, catalogue=QUEUES)
    assert sum(batch.num_rows for batch in decoder.read(file, file.span())) == 50
    assert file.read_bytes < 5 * (10 * 64 + 128) + (300 << 10)
    file.read_bytes = 0
    decoder = Decoder(["tenant"], tag=TAG, catalogue=QUEUES, selection=Selection().between(21, 21))
    assert sum(batch.num_rows for batch in decoder.read(file, file.span())) == 10
    assert file.read_bytes < 5 * (10 * 64 + 128) + 101_000 + (300 << 10)


def test_a_large_commit_comes_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_BLOB_BYTES", 50_000)
    write(tmp_path, [[messages(30, 10_000)]], segment_bytes=1 << 20)
    (file,) = segments(tmp_path)
    batches = list(Decoder(["body", "message"], tag=TAG, catalogue=QUEUES).read(file, file.span()))
    assert [batch.num_rows for batch in batches] == [4, 5, 5, 5, 5, 5, 1]
    assert [row["message"] for batch in batches for row in batch.to_pylist()] == list(range(1, 31))


@pytest.mark.parametrize("names", [["body"], ["time"]])
def test_a_commit_that_does_not_check_out_is_named(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path, [[messages(1, 10, n)] for n in (1, 2, 3)])
    (file,) = segments(tmp_path)
    span = file.span()
    second = HEADER_BYTES + (span.end - HEADER_BYTES) // 3
    file.data = file.data[: second + 9] + b"\xff" + file.data[second + 10 :]
    with pytest.raises(JournalDamaged, match=f"is damaged at byte {second}"):
        list(Decoder(names, tag=TAG, catalogue=QUEUES).read(file, span))


def test_a_changed_body_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, [[messages(1, 1000, n)] for n in (1, 2, 3)])
    (file,) = segments(tmp_path)
    span = file.span()
    second = HEADER_BYTES + (span.end - HEADER_BYTES) // 3
    file.data = file.data[: second + 200] + b"\xff" + file.data[second + 201 :]
    with pytest.raises(JournalDamaged, match="commit 2 does not check out"):
        list(Decoder(["body"], tag=TAG, catalogue=QUEUES).read(file, span))


@pytest.mark.parametrize("names", [["body"], ["time"]])
def test_a_span_that_ends_inside_a_commit_is_refused(tmp_path: Path, names: list[str]) -> None:
    write(tmp_path, [[messages(1, 1000, n)] for n in (1, 2, 3)])
    (file,) = segments(tmp_path)
    span = file.span()
    with pytest.raises(JournalDamaged, match="commit"):
        list(Decoder(names, tag=TAG, catalogue=QUEUES).read(file, span._replace(end=span.end - 64)))
    file.data = file.data[: span.end - 64]
    with pytest.raises(JournalDamaged, match="it ends here"):
        list(Decoder(names, tag=TAG, catalogue=QUEUES).read(file, span))
