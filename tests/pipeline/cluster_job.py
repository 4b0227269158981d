"""Run by test_cluster.py in a process of its own: the source, the jobs and the writer on a Spark elsewhere.

    python -m tests.pipeline.cluster_job MASTER JOURNAL WAREHOUSE URL

Prints JSON: what was read and by how many processes, what the jobs said, how finely it shuffles.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from laneway.pipeline.session import session
from tests.pipeline.cluster import EXECUTOR
from tests.pipeline.drivers import QUICK
from tests.pipeline.spark_writer import Unlucky

ROWS = 40


def with_process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        pids = pa.array([os.getppid()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column(0), batch.column(1), pids], ["kind", "message", "process"])


def read(spark: Any, journal: str) -> dict[str, Any]:
    reader = spark.read.format("laneway").schema("kind string, message bigint").option("partitionBytes", "1")
    rows = reader.load(journal).mapInArrow(with_process, "kind string, message bigint, process bigint")
    found = rows.groupBy("kind", "process").agg({"*": "count", "message": "sum"}).collect()
    kinds: dict[str, list[int]] = {}
    for row in found:
        count, total = kinds.get(row["kind"], [0, 0])
        kinds[row["kind"]] = [count + row["count(1)"], total + (row["sum(message)"] or 0)]
    return {"kinds": kinds, "processes": len({row["process"] for row in found})}


def work(spark: Any, journal: str, warehouse: str) -> dict[str, Any]:
    """All jobs that read, on the journal; the audit on the lake as well."""
    folder = Warehouse(warehouse)
    said = {}
    for source, names in (
        (journal, ("archive", "slo", "hotkeys", "deadletters", "capacity", "audit", "report")),
        ("lake", ("audit",)),
    ):
        for name in names:
            result = run(JOBS[name], spark, Options(source=source, warehouse=folder))
            said[f"{name} of {'lake' if source == 'lake' else 'journal'}"] = result.as_dict()
    return said


def write(spark: Any, url: str, folder: Path) -> None:
    """A batch that is written twice under one number, and a stream; of both the first tasks fail or die."""
    spark.dataSource.register(Unlucky)
    table = spark.range(0, ROWS, 1, 2).selectExpr("concat('batch ', id) AS body", "'written' AS queue")
    for _ in range(2):
        options = {"url": url, "producer": "nightly", "batchId": "7"}
        table.write.format("laneway").mode("append").options(**options).save()
    table.selectExpr("concat('unlucky ', body) AS body", "queue").write.format("unlucky").mode("append").option(
        "url", url
    ).save()
    (folder / "input").mkdir()
    (folder / "input" / "one.json").write_text("\n".join(json.dumps({"body": f"stream {n}"}) for n in range(ROWS)))
    rows = spark.readStream.schema("body string").json(str(folder / "input")).repartition(2)
    query = (
        rows.writeStream.format("unlucky")
        .options(url=url, queue="written", producer="stream", note=str(folder / "note"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main() -> None:
    master, journal, warehouse, url = sys.argv[1:]
    spark = session(master, "laneway-cluster", **({} if master.startswith("sc://") else {**QUICK, **EXECUTOR}))
    Path(warehouse).mkdir()
    write(spark, url, Path(warehouse).parent)
    found = {
        "read": read(spark, journal),
        "jobs": work(spark, journal, warehouse),
        "shuffle_partitions": spark.conf.get("spark.sql.shuffle.partitions"),
        "time_zone": spark.conf.get("spark.sql.session.timeZone"),
    }
    print(json.dumps(found, default=str))
    spark.stop()


if __name__ == "__main__":
    main()
