"""Reading a data folder and a server with several partitions, without a JVM: all of them are one table, and each has
positions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from laneway.broker.interface import Publish, PutQueue
from laneway.core.message import PLAIN, Messages, encode_props
from laneway.core.settings import QueueSettings
from laneway.errors import InvalidInput, JournalGap
from laneway.journal.history.format import segment_name
from laneway.pipeline.datasource import BatchReader, StreamReader
from laneway.pipeline.options import read_options
from laneway.pipeline.sources import ServerSource
from tests.pipeline.histories import write
from tests.pipeline.test_planning import chosen, rows
from tests.pipeline.traffic import COMMITS_A_ROUND, FIRST_COMMITS, traffic
from tests.rest.partitioned import PartitionedServing

NAMES = ("partition", "position", "index", "kind", "queue")
Place = tuple[int, int, int]


def batch(*names: str, **options: str) -> BatchReader:
    return BatchReader(read_options(options), chosen(*(names or NAMES)))


def stream(**options: str) -> StreamReader:
    return StreamReader(read_options(options), chosen(*NAMES))


def table(reader: BatchReader) -> list[dict[str, Any]]:
    return rows(reader, reader.partitions())


def places(found: list[dict[str, Any]]) -> list[Place]:
    return [(row["partition"], row["position"], row["index"]) for row in found]


def followed(reader: StreamReader, start: dict[str, Any], limit: Any) -> tuple[list[list[Place]], dict[str, Any]]:
    """The batches until there is nothing new, and the last offset."""
    batches = []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append(places(rows(reader, reader.partitions(start, end))))
        reader.commit(end)
        start = end
    return batches, start


def positions(offset: dict[str, Any]) -> dict[str, int]:
    return {number: place["position"] for number, place in offset.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Partition 0 has three rounds of traffic, partition 1 five."""
    path = tmp_path / "data"
    write(path, traffic(3), segment_bytes=64 << 10)
    write(path / "partitions" / "1", traffic(5), segment_bytes=64 << 10)
    return path


def commits(rounds: int) -> int:
    return FIRST_COMMITS + rounds * COMMITS_A_ROUND


# --- folders --------------------------------------------------------------------------------------------------------


def test_all_partitions_of_a_folder_are_one_table(folder: Path) -> None:
    found = table(batch(path=str(folder)))
    alone = [places(table(batch(path=str(one), partitions="0"))) for one in (folder, folder / "partitions" / "1")]
    assert places(found) == [(number, *rest) for number, of in enumerate(alone) for _, *rest in of]
    assert {row["queue"] for row in found if row["partition"] == 1} == {"orders", "mails", None}


def test_partitions_can_be_chosen_and_a_position_is_of_one(folder: Path) -> None:
    found = places(table(batch(path=str(folder), partitions="1", startPosition="7", endPosition="9")))
    assert {place[:2] for place in found} == {(1, 7), (1, 8)}
    with pytest.raises(InvalidInput, match="a position is of one partition: choose it"):
        batch(path=str(folder), startPosition="7")
    with pytest.raises(InvalidInput, match="a position is of one partition: choose it"):
        stream(path=str(folder), startPosition="7").initialOffset()
    with pytest.raises(InvalidInput, match=r"no partition 2 in .*; there are 0, 1"):
        batch(path=str(folder), partitions="0,2")
    with pytest.raises(InvalidInput, match="partitions are numbers such as 0,2, not 'one'"):
        batch(path=str(folder), partitions="one")
    with pytest.raises(InvalidInput, match="has 2 partitions: read it alone"):
        batch(path=f"{folder},{folder / 'partitions' / '1'}")


def test_a_partition_that_is_being_made_is_read_when_it_has_a_history(folder: Path) -> None:
    (folder / "partitions" / "2").mkdir()
    (folder / "partitions" / "lost+found").mkdir()
    assert {row["partition"] for row in table(batch(path=str(folder)))} == {0, 1}
    write(folder / "partitions" / "2", traffic(1))
    assert {row["partition"] for row in table(batch(path=str(folder)))} == {0, 1, 2}


def test_a_stream_has_a_position_in_each_partition_and_reads_every_event_once(folder: Path) -> None:
    reader = stream(path=str(folder))
    batches, end = followed(reader, reader.initialOffset(), ReadMaxRows(200))
    assert positions(end) == {"0": commits(3) + 1, "1": commits(5) + 1}
    assert len(batches) > 3 and max(map(len, batches)) <= 200
    found = [place for one in batches for place in one]
    assert sorted(found) == places(table(batch(path=str(folder)))) and len(found) == len(set(found))
    assert {place[0] for place in batches[0]} == {0, 1}, "none waits for another"


def test_a_checkpoint_of_one_partition_goes_on_after_others_were_added(tmp_path: Path) -> None:
    path = tmp_path / "data"
    write(path, traffic(3), segment_bytes=64 << 10)
    batches, checkpoint = followed(stream(path=str(path)), stream(path=str(path)).initialOffset(), ReadAllAvailable())
    assert checkpoint["position"] == commits(3) + 1, "as ever"
    write(path, traffic(1, 3, epoch=2))
    write(path / "partitions" / "1", traffic(2))
    following, end = followed(stream(path=str(path)), checkpoint, ReadAllAvailable())
    assert positions(end) == {"0": commits(4) + 2, "1": commits(2) + 1}
    found = [place for one in [*batches, *following] for place in one]
    assert sorted(found) == places(table(batch(path=str(path)))) and len(found) == len(set(found))


def test_a_running_stream_finds_a_partition_that_is_added_and_a_batch_comes_again_as_it_was(folder: Path) -> None:
    reader = stream(path=str(folder), startPosition="latest")
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    write(folder / "partitions" / "2", traffic(1))
    end = reader.latestOffset(start, ReadAllAvailable())
    found = places(rows(reader, reader.partitions(start, end)))
    assert found == [place for place in places(table(batch(path=str(folder)))) if place[0] == 2], "all of its history"
    write(folder / "partitions" / "2", traffic(1, 1, epoch=2))
    again = stream(path=str(folder))
    assert places(rows(again, again.partitions(start, end))) == found


def test_history_of_an_added_partition_that_is_gone_is_an_error(folder: Path) -> None:
    reader = stream(path=str(folder), startPosition="latest")
    start = reader.initialOffset()
    write(folder / "partitions" / "2", traffic(5), segment_bytes=64 << 10)
    write(folder / "partitions" / "2", traffic(1, 5, epoch=2), segment_bytes=64 << 10)
    (folder / "partitions" / "2" / segment_name(1)).unlink()
    with pytest.raises(JournalGap, match="commit 1 has been dropped"):
        reader.latestOffset(start, ReadAllAvailable())
    tolerant = stream(path=str(folder), failOnDataLoss="false")
    batches, _ = followed(tolerant, start, ReadAllAvailable())
    assert batches and min(batches[0])[0] == 2


def test_a_checkpoint_of_more_partitions_than_there_are_is_refused(folder: Path) -> None:
    reader = stream(path=str(folder))
    start = reader.initialOffset()
    fewer = stream(path=str(folder), partitions="0")
    with pytest.raises(InvalidInput, match="the checkpoint is of 2 journals, and there are 0 in"):
        fewer.latestOffset(start, ReadAllAvailable())


# --- servers --------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path) -> Iterator[PartitionedServing]:
    """A server of two partitions, each with a queue in it."""
    with PartitionedServing(tmp_path / "data") as serving:
        for number in (0, 1):
            publish(serving, number, 5)
        yield serving


def publish(serving: PartitionedServing, partition: int, count: int) -> None:
    """Each message is a commit of its own."""
    name = f"orders-{partition}"
    queue = serving.ask_of(partition, PutQueue("/", name, QueueSettings())).info.queue
    for n in range(count):
        serving.ask_of(partition, Publish((queue,), Messages([b"%d" % n], [encode_props(PLAIN)])))


def held(serving: PartitionedServing, partition: int, name: str = "c") -> int:
    found = ServerSource(serving.url, partition=partition).cursor(name)
    assert found is not None and found["state"] == "ok"
    return int(found["position"])


def ends(serving: PartitionedServing) -> dict[int, int]:
    return {n: ServerSource(serving.url, partition=n).end().position for n in range(len(serving.partitions))}


def test_a_server_shows_all_its_partitions_as_its_folder_does(two: PartitionedServing) -> None:
    before = ends(two)
    found = [row for row in table(batch(url=two.url)) if row["position"] < before[row["partition"]]]
    there = [row for row in table(batch(path=str(two.folder))) if row["position"] < before[row["partition"]]]
    assert found == there
    assert {(row["partition"], row["queue"]) for row in found if row["kind"] == "published"} == {
        (0, "orders-0"),
        (1, "orders-1"),
    }


def test_a_cursor_is_held_back_in_each_partition(two: PartitionedServing) -> None:
    reader = stream(url=two.url, cursor="c")
    start = reader.initialOffset()
    assert (held(two, 0), held(two, 1)) == (1, 1)
    publish(two, 1, 30)
    batches, end = followed(reader, start, ReadMaxRows(8))  # it ends, though to move a cursor is an event
    found = [place for one in batches for place in one]
    assert sorted(found) == sorted(set(found))
    for partition in (0, 1):
        assert 0 <= end[str(partition)]["position"] - held(two, partition) <= 1
    before = held(two, 0)
    publish(two, 1, 10)
    followed(reader, end, ReadAllAvailable())
    assert held(two, 0) == before, "where nothing happened nothing is moved"
    again = stream(url=two.url, cursor="c")  # without a checkpoint it goes on where the cursor is
    assert positions(again.initialOffset()) == {str(n): held(two, n) for n in (0, 1)}


def test_a_partition_that_is_added_to_a_server_is_read_and_held_back_from_its_first_commit_on(
    two: PartitionedServing,
) -> None:
    reader = stream(url=two.url, cursor="c")
    _, end = followed(reader, reader.initialOffset(), ReadAllAvailable())
    two.add_partition()
    publish(two, 2, 5)
    found = reader.latestOffset(end, ReadAllAvailable())
    assert held(two, 2) == 1, "before anything of it was read"
    kinds = {row["kind"] for row in rows(reader, reader.partitions(end, found)) if row["partition"] == 2}
    assert {"opened", "queue_put", "published"} <= kinds
    reader.commit(found)
    assert held(two, 2) >= found["2"]["position"] - 1
