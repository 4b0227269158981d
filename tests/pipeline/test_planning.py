"""What is read, without a JVM: readers are made and asked as Spark does it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from laneway.errors import InvalidInput, JournalGap, PipelineError
from laneway.journal.history import follow
from laneway.journal.history.format import segment_name
from laneway.pipeline.datasource import BatchReader, FilteringReader, LanewayDataSource, StreamReader
from laneway.pipeline.options import read_options
from laneway.pipeline.pushdown import holds
from laneway.pipeline.schema import spark_schema
from laneway.pipeline.sources import FolderSource
from tests.pipeline.histories import expected, when, write
from tests.pipeline.traffic import COMMITS_A_ROUND, FIRST_COMMITS, MESSAGES, NOON_MS, QUEUES, ROWS_A_ROUND, traffic

ROUNDS = 12
ALL_ROWS = FIRST_COMMITS + ROUNDS * ROWS_A_ROUND
ALL_COMMITS = FIRST_COMMITS + ROUNDS * COMMITS_A_ROUND
Reader = BatchReader | StreamReader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal")
    write(path, traffic(ROUNDS), segment_bytes=64 << 10)
    assert len(follow.segments(str(path))) > 4
    return path


@pytest.fixture
def own(folder: Path, tmp_path: Path) -> Path:
    """A copy to spoil or to add to."""
    shutil.copytree(folder, tmp_path / "journal")
    return tmp_path / "journal"


def chosen(*names: str) -> StructType:
    all_columns = spark_schema(body=True, attributes=True)
    return StructType([all_columns[name] for name in names])


def batch(folder: Path, kind: type[BatchReader] = BatchReader, **options: str) -> BatchReader:
    return kind(read_options({"path": str(folder), **options}), chosen("position", "index", "time", "kind", "queue"))


def stream(folder: Path, **options: str) -> StreamReader:
    return StreamReader(read_options({"path": str(folder), **options}), chosen("position", "index", "partition"))


def rows(reader: Reader, partitions: Sequence[InputPartition]) -> list[dict[str, Any]]:
    """What the tasks read, each with a reader that travelled."""
    found: list[dict[str, Any]] = []
    for one in partitions:
        travelled, its_own = pickle.loads(pickle.dumps((reader, one)))
        for read in travelled.read(its_own):
            found += read.to_pylist()
    return found


def places(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(row["position"], row["index"]) for row in found]


def all_places(folder: Path) -> list[tuple[int, int]]:
    return places(expected(folder))


# --- batch ----------------------------------------------------------------------------------------------------------


def test_every_event_is_read_once_however_it_is_cut_into_portions(folder: Path) -> None:
    segment_count = len(follow.segments(str(folder)))
    for partition_bytes, count in (("1", segment_count), ("1000000000", 1)):
        reader = batch(folder, partitionBytes=partition_bytes)
        parts = reader.partitions()
        assert len(parts) == count
        assert places(rows(reader, parts)) == all_places(folder)


def test_a_read_goes_from_a_position_to_another(folder: Path) -> None:
    for start, end in ((1, 30), (17, 18), (60, ALL_COMMITS), (ALL_COMMITS, ALL_COMMITS + 1), (50, 10**9)):
        reader = batch(folder, startPosition=str(start), endPosition=str(end))
        found = {row["position"] for row in rows(reader, reader.partitions())}
        assert found == set(range(start, min(end, ALL_COMMITS + 1)))
    for options in ({"startPosition": "latest"}, {"startPosition": str(ALL_COMMITS + 1)}, {"endPosition": "1"}):
        assert not batch(folder, **options).partitions()


def test_segments_outside_the_wanted_time_are_left_out(folder: Path) -> None:
    reader = batch(folder, startTime="2026-11-16T12:00:04+00:00", endTime="2026-11-16T12:00:05", partitionBytes="1")
    parts = reader.partitions()
    assert len(parts) < len(follow.segments(str(folder))) - 2
    found = rows(reader, parts)
    assert len(found) == ROWS_A_ROUND
    assert all(when(NOON_MS + 4000) <= row["time"] < when(NOON_MS + 5000) for row in found)


def test_a_segment_in_which_the_clock_was_set_back_is_not_left_out(own: Path) -> None:
    write(own, traffic(ROUNDS, ROUNDS, epoch=2, start_ms=NOON_MS - 3_600_000), segment_bytes=64 << 10)
    reader = batch(own, endTime="2026-11-16T11:30:00Z", partitionBytes="1")
    assert len(rows(reader, reader.partitions())) == 1 + ROUNDS * ROWS_A_ROUND
    reader = batch(own, startTime="2026-11-16T11:30:00Z", partitionBytes="1")
    assert len(rows(reader, reader.partitions())) == ALL_ROWS


def test_kinds_and_queues_can_be_chosen(folder: Path) -> None:
    reader = batch(folder, kinds="acked, leased", queues='["mails"]')
    found = rows(reader, reader.partitions())
    assert len(found) == 2 * ROUNDS * MESSAGES
    assert {(row["kind"], row["queue"]) for row in found} == {("acked", "mails"), ("leased", "mails")}


def test_names_of_queues_are_looked_for_only_where_they_are_wanted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    monkeypatch.setattr(FolderSource, "catalogue", lambda source: searched.append(source.path) or {})
    for names, options, count in ((("time", "message"), {}, 0), (("queue",), {}, 1), (("time",), {"queues": "a"}, 1)):
        searched.clear()
        BatchReader(read_options({"path": str(folder), **options}), chosen(*names))
        assert len(searched) == count


def test_what_was_dropped_since_is_an_error_or_left_out(own: Path) -> None:
    reader, tolerant = batch(own), batch(own, failOnDataLoss="false")
    (own / segment_name(2)).unlink()
    with pytest.raises(JournalGap, match=r"0000000000000002\.segment was dropped before it was read"):
        rows(reader, reader.partitions())
    left = rows(tolerant, tolerant.partitions())
    assert 0 < len(left) < ALL_ROWS
    now = batch(own)
    assert rows(now, now.partitions()) == left
    with pytest.raises(JournalGap, match="history is kept from commit"):
        batch(own, startPosition="3", endPosition=str(follow.segments(str(own))[1].first_position - 1))
    with pytest.raises(JournalGap, match="no history between segments 1 and 3"):
        batch(own, startPosition="1")
    tolerant = batch(own, startPosition="1", failOnDataLoss="false")
    assert rows(tolerant, tolerant.partitions()) == left


def test_several_folders_are_numbered(folder: Path, own: Path) -> None:
    write(own, traffic(1, ROUNDS, epoch=2), segment_bytes=64 << 10)
    reader = BatchReader(read_options({"paths": f'["{folder}", "{own}"]'}), chosen("partition", "position"))
    found = [row["partition"] for row in rows(reader, reader.partitions())]
    assert (found.count(0), found.count(1)) == (ALL_ROWS, ALL_ROWS + 1 + ROWS_A_ROUND)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "say where to read from"),
        ({"path": "/nowhere/at/all"}, "there is no journal folder /nowhere/at/all"),
        ({"path": "/tmp", "url": "http://x"}, "say where to read from"),
        ({"path": "/tmp", "cursor": "c"}, "a cursor is kept by a server"),
        ({"url": "http://x", "user": "u", "token": "t"}, "a token, or a user and a password"),
        ({"path": "/tmp", "startPosition": "first"}, "earliest, latest or a number, not 'first'"),
        ({"path": "/tmp", "endPosition": "-3"}, "endPosition is a number above 0, not '-3'"),
        ({"path": "/tmp", "startTime": "noon"}, "startTime is a time such as"),
        ({"path": "/tmp", "kinds": "acked,packed"}, "'packed' is no kind of event"),
        ({"path": "/tmp", "body": "yes"}, "body is true or false, not 'yes'"),
        ({"path": "/tmp", "starPosition": "1"}, "there is no option 'starPosition'"),
        ({"path": "/tmp", "queues": "[1"}, "not a JSON list"),
        ({"path": "/tmp,/", "startPosition": "7"}, "a position is of one partition"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read_options(options)


def test_options_of_streams_are_refused_in_a_batch_and_the_other_way_round(folder: Path) -> None:
    source = LanewayDataSource({"path": str(folder), "maxEventsPerBatch": "5"})
    with pytest.raises(InvalidInput, match="are for streams"):
        source.reader(spark_schema())
    with pytest.raises(InvalidInput, match="endPosition is for batch reads"):
        stream(folder, endPosition="5")


# --- filters --------------------------------------------------------------------------------------------------------

NAME = ("queue",)
TRUTH: list[tuple[Filter, str | None, bool | None]] = [
    (EqualTo(NAME, "a"), "a", True),
    (EqualTo(NAME, "a"), "b", False),
    (EqualTo(NAME, "a"), None, None),
    (EqualTo(NAME, None), "a", None),
    (EqualNullSafe(NAME, None), None, True),
    (EqualNullSafe(NAME, "a"), None, False),
    (Not(EqualNullSafe(NAME, "a")), None, True),
    (Not(EqualTo(NAME, "a")), None, None),
    (Not(EqualTo(NAME, "a")), "b", True),
    (In(NAME, ("a", "b")), "b", True),
    (In(NAME, ("a", None)), "b", None),
    (Not(In(NAME, ("a", None))), "b", None),
    (Not(In(NAME, ("a",))), "b", True),
    (IsNull(NAME), None, True),
    (Not(IsNull(NAME)), None, False),
    (IsNotNull(NAME), None, False),
    (GreaterThan(NAME, "a"), "b", True),
    (LessThanOrEqual(NAME, "a"), "b", False),
    (StringStartsWith(NAME, "a"), "ab", True),
    (StringStartsWith(NAME, "a"), None, None),
]


@pytest.mark.parametrize(("one", "value", "truth"), TRUTH)
def test_a_filter_holds_as_in_sql(one: Filter, value: str | None, truth: bool | None) -> None:
    assert holds(one, value) is truth


def at(ms: int, us: int = 0) -> datetime:
    return datetime(2026, 11, 16, 12, tzinfo=UTC) + timedelta(milliseconds=ms, microseconds=us)


TIME = ("time",)


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(TIME, at(4010)),
        EqualTo(TIME, at(4010, 1)),
        EqualNullSafe(TIME, at(4010)),
        GreaterThan(TIME, at(4010)),
        GreaterThan(TIME, at(4010, -1)),
        GreaterThanOrEqual(TIME, at(4010)),
        GreaterThanOrEqual(TIME, at(4010, 1)),
        LessThan(TIME, at(4010)),
        LessThan(TIME, at(4010, 1)),
        LessThanOrEqual(TIME, at(4010)),
        LessThanOrEqual(TIME, at(4010, -1)),
    ],
)
def test_a_filter_on_time_holds_to_the_microsecond(folder: Path, one: Any) -> None:
    reader = batch(folder, FilteringReader)
    assert isinstance(reader, FilteringReader)
    assert list(reader.pushFilters([one, IsNotNull(TIME)])) == []
    compare = {
        EqualTo: lambda a, b: a == b, EqualNullSafe: lambda a, b: a == b, GreaterThan: lambda a, b: a > b,
        GreaterThanOrEqual: lambda a, b: a >= b, LessThan: lambda a, b: a < b, LessThanOrEqual: lambda a, b: a <= b,
    }[type(one)]  # fmt: skip
    wanted = [row for row in expected(folder, QUEUES) if compare(row["time"], one.value)]
    assert places(rows(reader, reader.partitions())) == places(wanted)


def test_filters_on_names_are_taken_and_others_left(folder: Path) -> None:
    reader = batch(folder, FilteringReader)
    assert isinstance(reader, FilteringReader)
    others: list[Filter] = [EqualTo(("priority",), 3), EqualTo(("time",), None), EqualTo(("attributes", "a"), "b")]
    taken: list[Filter] = [EqualTo(("kind",), "acked"), Not(EqualTo(("queue",), "mails")), IsNotNull(("tier",))]
    assert list(reader.pushFilters([*others, *taken])) == others
    found = rows(reader, reader.partitions())
    assert len(found) == 2 * ROUNDS * MESSAGES
    assert {(row["kind"], row["queue"]) for row in found} == {("acked", "orders")}
    assert list(reader.pushFilters([EqualTo(("kind",), "leased")])) == []
    assert not reader.partitions()


# --- streams --------------------------------------------------------------------------------------------------------


def followed(reader: StreamReader, start: dict[str, Any], limit: Any) -> tuple[list[list[tuple[int, int]]], Any]:
    """The batches until there is nothing new, and the last offset."""
    batches = []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(places(rows(reader, reader.partitions(start, end))))
        reader.commit(end)
        start = end
    return batches, start


def test_a_stream_reads_every_event_once_in_batches_of_the_given_size(own: Path) -> None:
    reader = stream(own, maxEventsPerBatch="100")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    start = reader.initialOffset()
    assert start == {"segment": 1, "offset": 64, "position": 1}
    batches, start = followed(reader, start, limit)
    assert [place for one in batches for place in one] == all_places(own)
    assert max(map(len, batches)) <= 100
    assert not reader.partitions(start, start)
    write(own, traffic(3, ROUNDS, epoch=2), segment_bytes=64 << 10)
    more, _ = followed(stream(own), start, ReadAllAvailable())
    assert len(more) == 1
    assert [*(place for one in batches for place in one), *more[0]] == all_places(own)


def test_a_limit_below_a_commit_still_gets_on(folder: Path) -> None:
    reader = stream(folder)
    batches, _ = followed(reader, reader.initialOffset(), ReadMaxRows(1))
    assert len(batches) == ALL_COMMITS
    assert [place for one in batches for place in one] == all_places(folder)


def test_a_stream_begins_where_it_is_told(folder: Path) -> None:
    assert stream(folder, startPosition="17").initialOffset()["position"] == 17
    assert stream(folder, startPosition="latest").initialOffset()["position"] == ALL_COMMITS + 1
    with pytest.raises(InvalidInput, match="there is no commit"):
        stream(folder, startPosition=str(ALL_COMMITS + 7)).initialOffset()


def test_available_now_ends_where_the_journal_ended_then(own: Path) -> None:
    reader = stream(own)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    write(own, traffic(2, ROUNDS, epoch=2), segment_bytes=64 << 10)
    batches, end = followed(reader, start, ReadMaxRows(500))
    assert sum(map(len, batches)) == ALL_ROWS
    assert end["position"] == ALL_COMMITS + 1
    assert reader.reportLatestOffset() == end


def test_a_stream_over_several_folders_has_an_offset_of_each(folder: Path, own: Path) -> None:
    write(own, traffic(1, ROUNDS, epoch=2), segment_bytes=64 << 10)
    reader = StreamReader(read_options({"path": f"{folder},{own}"}), chosen("partition", "position", "index"))
    start = reader.initialOffset()
    assert start.keys() == {"0", "1"}
    batches, end = followed(reader, start, ReadMaxRows(700))
    assert len(batches) > 3
    assert sorted(place for one in batches for place in one) == sorted([*all_places(folder), *all_places(own)])
    with pytest.raises(InvalidInput, match="the checkpoint is of 2 journals, and there are 0 in"):
        stream(folder).latestOffset(end, ReadAllAvailable())


def test_dropped_history_is_an_error_unless_it_may_be_lost(own: Path) -> None:
    write(own, traffic(1, ROUNDS, epoch=2), segment_bytes=64 << 10)
    infos = follow.segments(str(own))
    for number in (1, 2, 3):
        (own / segment_name(number)).unlink()
    lost = {"segment": 2, "offset": 64, "position": infos[1].first_position}
    for limit in (ReadAllAvailable(), ReadMaxRows(100)):
        reader = stream(own)
        with pytest.raises(JournalGap, match=f"history is kept from commit {infos[3].first_position} on"):
            reader.partitions(lost, reader.latestOffset(lost, limit))
        batches, _ = followed(stream(own, failOnDataLoss="false"), lost, limit)
        assert [place for one in batches for place in one] == all_places(own)
    # All of segment 3 had been read: nothing is lost with it.
    read = {"segment": 3, "offset": infos[2].used_bytes, "position": infos[3].first_position}
    batches, _ = followed(stream(own), read, ReadMaxRows(1000))
    assert [place for one in batches for place in one] == all_places(own)
    assert stream(own).initialOffset()["position"] == infos[3].first_position


def test_a_hole_in_history_is_an_error_unless_it_may_be_lost(own: Path) -> None:
    (own / segment_name(3)).unlink()
    start = {"segment": 1, "offset": 64, "position": 1}
    reader = stream(own)
    with pytest.raises(JournalGap, match="no history between segments 2 and 4"):
        reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    batches, _ = followed(stream(own, failOnDataLoss="false"), start, ReadAllAvailable())
    assert [place for one in batches for place in one] == all_places(own)


def test_a_stream_with_a_wrong_option_says_so_when_it_is_first_asked(folder: Path) -> None:
    source = LanewayDataSource({"path": str(folder), "endPosition": "3"})
    reader = source.streamReader(chosen("position"))  # Spark shows a mistake of its own if this fails
    for ask in (reader.initialOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(InvalidInput, match="endPosition is for batch reads"):
            ask()


def test_a_journal_that_ends_before_the_checkpoint_is_another_one(folder: Path) -> None:
    reader = stream(folder)
    beyond = {"segment": 9, "offset": 64, "position": ALL_COMMITS + 100}
    with pytest.raises(PipelineError, match="it is another journal than the checkpoint is of"):
        reader.partitions(beyond, reader.latestOffset(beyond, ReadAllAvailable()))
