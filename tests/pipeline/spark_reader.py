"""A driver that reads and meets trouble: run as a program by test_spark_reading.py, which kills it.

The first attempt at the first partition of everything that is read dies with its process, when half of its rows are on
their way, and leaves a mark. The driver counts a table so. Then it follows the journal twice: one stream stands still
behind batch 1, which its sink has and Spark has not noted; the other in a task in the middle of batch 1.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from laneway.pipeline.datasource import BatchReader, StreamReader
from laneway.pipeline.options import ReadOptions, read_options
from laneway.pipeline.schema import spark_schema
from tests.pipeline.drivers import FOREVER_S, die, is_first_attempt, quick_session, stand_still

STOP_IN = 1  # this batch
OWN_OPTIONS = ("deaths", "note")


def in_two(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, with a moment in the middle at which something can happen."""
    for batch in batches:
        yield batch.slice(0, batch.num_rows // 2)
        yield batch.slice(batch.num_rows // 2)


def first_attempt_dies(batches: Iterator[pa.RecordBatch], deaths: str) -> Iterator[pa.RecordBatch]:
    for number, batch in enumerate(in_two(batches)):
        if number == 1 and is_first_attempt(0):
            with open(deaths, "a") as marks:
                marks.write("x")
            die()
        yield batch


class Unlucky(DataSource):
    @classmethod
    def name(cls) -> str:
        return "unlucky"

    def schema(self) -> StructType:
        return spark_schema(body=False, attributes=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        made = UnluckyReader(self._rest(), schema)
        made.deaths = self.options["deaths"]
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        made = UnluckyStreamReader(self._rest(), schema)
        made.deaths, made.note = self.options["deaths"], self.options.get("note")
        return made

    def _rest(self) -> ReadOptions:
        return read_options({name: value for name, value in self.options.items() if name not in OWN_OPTIONS})


class UnluckyReader(BatchReader):
    deaths: str

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return first_attempt_dies(super().read(partition), self.deaths)


class UnluckyStreamReader(StreamReader):
    deaths: str
    note: str | None  # where it is told that a task stands still

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        for number, rows in enumerate(first_attempt_dies(super().read(partition), self.deaths)):
            if number == 1 and batch == STOP_IN and self.note is not None:
                stand_still(Path(self.note), "in a task")
            yield rows


def into_folders(events: DataFrame, folder: Path, checkpoint: Path, note: Path | None = None) -> None:
    """Follow what there is, into a folder for each batch, which is replaced when the batch comes again. With a note it
    stands still when batch 1 is there, before Spark hears of it."""

    def take(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(str(folder / f"batch={batch}"))
        if note is not None and batch == STOP_IN:
            stand_still(note, "behind the sink")

    writing = events.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writing.trigger(availableNow=True).start()
    if note is None:
        query.awaitTermination()
    else:
        wait_for(note, query.exception)


def into_files(events: DataFrame, folder: Path, checkpoint: Path) -> None:
    """The same with Spark's own sink of files."""
    writing = events.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    writing.trigger(availableNow=True).start(str(folder)).awaitTermination()


def wait_for(note: Path, failure: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + FOREVER_S
    while not note.exists():
        wrong = failure()
        assert wrong is None and time.monotonic() < deadline_s, wrong
        time.sleep(0.05)


def stream(spark: SparkSession, source: str, **options: str) -> DataFrame:
    reader = spark.readStream.format(source).schema("position bigint, index int, message_id string")
    return reader.options(**options).load()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "folder", "note"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    folder = Path(given.folder)
    spark = quick_session()
    spark.dataSource.register(Unlucky)
    both = {"url": given.url, "deaths": str(folder / "deaths")}
    table = spark.read.format("unlucky").options(**both).load()
    (folder / "count").write_text(str(table.count()))
    follow = partial(stream, spark, "unlucky", **both, maxEventsPerBatch="60")
    into_folders(
        follow(cursor="folders"), folder / "folders", folder / "folders-checkpoint", folder / "stands-behind-the-sink"
    )
    into_files(follow(cursor="files", note=given.note), folder / "files", folder / "files-checkpoint")


if __name__ == "__main__":
    main()
