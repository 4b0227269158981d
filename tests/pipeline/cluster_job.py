"""Run by test_cluster.py in a process of its own: several real executors read one journal.

    python -m tests.pipeline.cluster_job FOLDER

Prints JSON: rows by kind, their sum over all message numbers, and the processes that read them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

import pyarrow as pa

from laneway.pipeline.session import session
from tests.pipeline.drivers import QUICK, QUICK_JVM


def with_process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        pids = pa.array([os.getppid()] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column(0), batch.column(1), pids], ["kind", "message", "process"])


def main() -> None:
    spark = session(
        "local-cluster[2,1,700]",
        "laneway-cluster",
        **QUICK,
        **{"spark.executor.memory": "600m", "spark.executor.extraJavaOptions": QUICK_JVM},
    )
    read = spark.read.format("laneway").schema("kind string, message bigint").option("partitionBytes", "1")
    rows = read.load(sys.argv[1]).mapInArrow(with_process, "kind string, message bigint, process bigint")
    found = rows.groupBy("kind", "process").agg({"*": "count", "message": "sum"}).collect()
    kinds: dict[str, list[int]] = {}
    for row in found:
        count, total = kinds.get(row["kind"], [0, 0])
        kinds[row["kind"]] = [count + row["count(1)"], total + (row["sum(message)"] or 0)]
    print(json.dumps({"kinds": kinds, "processes": len({row["process"] for row in found})}))
    spark.stop()


if __name__ == "__main__":
    main()
