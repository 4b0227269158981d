"""Reading with a real Spark: tasks that die and drivers that are killed, and every event is there exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet
import pytest

from laneway.pipeline.datasource import BatchReader
from laneway.pipeline.options import read_options
from laneway.pipeline.sources import ServerSource
from tests.pipeline.drivers import committed_by_spark, kill_where_it_stands_still
from tests.pipeline.spark_reader import into_files, into_folders, stream
from tests.pipeline.test_following import publish
from tests.pipeline.test_planning import chosen, places, rows
from tests.rest.serving import Serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Places = list[tuple[int, int]]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "data") as server, server.client() as http:
        http.put("/queues/orders")
        publish(http, 10)
        yield server


def journal(serving: Serving) -> Places:
    """What there is, read without Spark."""
    reader = BatchReader(read_options({"path": str(serving.folder)}), chosen("position", "index"))
    return places(rows(reader, reader.partitions()))


def cursor(serving: Serving, name: str) -> int:
    held = ServerSource(serving.url).cursors()[name]
    assert held["state"] == "ok"
    return int(held["position"])


def in_folder(folder: Path) -> Places:
    found = pyarrow.parquet.read_table(folder, columns=["position", "index"], partitioning=None).to_pylist()
    return sorted((row["position"], row["index"]) for row in found)


@pytest.mark.timeout(600)
def test_every_event_is_read_once_though_tasks_die_and_the_driver_is_killed_in_a_batch(
    spark: SparkSession, serving: Serving, tmp_path: Path
) -> None:
    there = journal(serving)
    note = tmp_path / "note"
    kill_where_it_stands_still(
        "spark_reader", note, tmp_path / "driver.log", "--url", serving.url, "--folder", str(tmp_path)
    )
    assert (tmp_path / "count").read_text() == str(len(there)), "a table whose task died"
    assert (tmp_path / "deaths").read_text() == "x" * 5, "of that table, and of two batches of each stream"
    folders = {batch: in_folder(tmp_path / "folders" / f"batch={batch}") for batch in (0, 1)}
    assert folders[0] + folders[1] == journal(serving)[: len(folders[0]) + len(folders[1])]
    for name in ("folders", "files"):
        assert committed_by_spark(tmp_path / f"{name}-checkpoint") == [0], "batch 1 is not done, as far as Spark knows"
        assert cursor(serving, name) == folders[1][0][0], "history is kept from the batch on that is not done"

    with serving.client() as http:
        publish(http, 3)  # a batch that comes again is the one it was, whatever there is by now
    for name, follow in (("folders", into_folders), ("files", into_files)):
        events = stream(spark, "laneway", url=serving.url, cursor=name)
        follow(events, tmp_path / name, tmp_path / f"{name}-checkpoint")
    assert in_folder(tmp_path / "folders" / "batch=1") == folders[1]
    batches = sorted((tmp_path / "folders").glob("batch=*"), key=lambda path: int(path.name.removeprefix("batch=")))
    by_batch = [in_folder(path) for path in batches]
    in_files = sorted((row["position"], row["index"]) for row in spark.read.parquet(str(tmp_path / "files")).collect())
    everything = journal(serving)
    found = [place for batch in by_batch for place in batch]
    assert found == everything[: len(found)] and in_files == everything[: len(in_files)]
    assert min(len(found), len(in_files)) >= len(there) + 3 * 20
    assert len(batches) > 2 and by_batch[-2][0][0] < cursor(serving, "folders") <= by_batch[-1][-1][0] + 1
    assert committed_by_spark(tmp_path / "folders-checkpoint")[-1] == len(batches) - 1
