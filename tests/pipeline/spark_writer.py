"""A driver that writes into queues and meets trouble: run as a program by test_spark_writing.py, which kills it.

The first attempt of the first task of each batch fails after it has staged its rows, that of the second dies with its
process. With --stop-before or --stop-after N the driver stands still before or after batch N is committed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from laneway.pipeline.writing import stream_writer, writer
from tests.pipeline.drivers import die, is_first_attempt, quick_session, stand_still

OWN_OPTIONS = ("stopbefore", "stopafter", "note")


def first_attempts_fail(staged: Any) -> Any:
    if is_first_attempt(0):
        raise RuntimeError("it has staged everything, and fails")
    if is_first_attempt(1):
        die()
    return staged


class Unlucky(DataSource):
    @classmethod
    def name(cls) -> str:
        return "unlucky"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return UnluckyWriter(writer(self._rest(), schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return UnluckyStreamWriter(stream_writer(self._rest(), schema, overwrite), self.options)

    def _rest(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name.lower() not in OWN_OPTIONS}


class UnluckyWriter(DataSourceArrowWriter):
    def __init__(self, inner: DataSourceArrowWriter) -> None:
        self._inner = inner

    def write(self, iterator: Iterator[Any]) -> Any:
        return first_attempts_fail(self._inner.write(iterator))

    def commit(self, messages: list[Any]) -> None:
        self._inner.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        self._inner.abort(messages)


class UnluckyStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: DataSourceStreamArrowWriter, options: Mapping[str, str]) -> None:
        self._inner = inner
        self._stop_before = int(options.get("stopbefore", "-1"))
        self._stop_after = int(options.get("stopafter", "-1"))
        self._note = Path(options["note"])

    def write(self, iterator: Iterator[Any]) -> Any:
        return first_attempts_fail(self._inner.write(iterator))

    def commit(self, messages: list[Any], batchId: int) -> None:
        if batchId == self._stop_before:
            stand_still(self._note, "before")
        self._inner.commit(messages, batchId)
        if batchId == self._stop_after:
            stand_still(self._note, "after")

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._inner.abort(messages, batchId)


def rows(spark: SparkSession, folder: str) -> Any:
    """A stream with one file a batch, its rows on two partitions."""
    files = spark.readStream.schema("body string, queue string").option("maxFilesPerTrigger", 1).json(folder)
    return files.repartition(2)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("url", "input", "checkpoint", "note", "producer"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--stop-before", default="-1")
    parser.add_argument("--stop-after", default="-1")
    parser.add_argument("--batch-of", type=int, default=0, help="rows of a df.write to begin with")
    given = parser.parse_args()
    spark = quick_session()
    spark.dataSource.register(Unlucky)
    where = {"url": given.url, "producer": given.producer}
    if given.batch_of:
        table = spark.range(0, given.batch_of, 1, 3).selectExpr("concat('batch ', id) AS body", "'orders' AS queue")
        table.write.format("unlucky").mode("append").option("url", given.url).save()
    query = (
        rows(spark, given.input)
        .writeStream.format("unlucky")
        .options(**where, stopBefore=given.stop_before, stopAfter=given.stop_after, note=given.note)
        .option("checkpointLocation", given.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
