"""The pipeline: reading a journal with Spark beside a source in Python that yields ready-made Arrow batches of the same
rows, what following a server costs it, and the audit.

Both sources get the same cores and the same sink (none), and take turns. The ready-made batches are those of the
journal's own reader, put into files before the first round.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.auditing import Auditing
from benchmarks.following import Following
from benchmarks.journals import ONE_QUEUE, write_journal
from benchmarks.machine import assign_cores, describe
from benchmarks.ready_batches import ReadyBatches, write_ready
from benchmarks.report import Goal, Report
from benchmarks.turns import is_chosen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CASES = (
    "read, all columns",
    "read, two columns",
    "read, one queue",
    "published and consumed while followed",
    "audit",
)
TWO = ("time", "queue")
READY = "ready-made"


class Reading:
    def __init__(self, options: argparse.Namespace, report: Report, folder: Path) -> None:
        self._options = options
        self._report = report
        self._journal = folder / "journal"
        self._ready = folder / "ready"
        self._rows = 0

    def prepare(self) -> None:
        began = time.perf_counter()
        self._rows = write_journal(self._journal, self._options.events)
        size = sum(path.stat().st_size for path in self._journal.iterdir())
        seconds = time.perf_counter() - began
        print(f"  {self._rows:,} events: journal {size / 1e6:,.0f} MB in {seconds:.1f} s", file=sys.stderr)

    def run(self, spark: SparkSession) -> None:
        spark.dataSource.register(ReadyBatches)
        everything, two, one_queue = CASES[:3]
        journal, narrow = str(self._journal), "time timestamp, queue string"
        ours: dict[str, tuple[Callable[[], DataFrame], tuple[str, ...], dict[str, str]]] = {
            everything: (lambda: spark.read.format("laneway").load(journal), (), {}),
            two: (lambda: spark.read.format("laneway").schema(narrow).load(journal), TWO, {}),
            one_queue: (
                lambda: spark.read.format("laneway").option("queues", ONE_QUEUE).load(journal),
                (),
                {"queues": ONE_QUEUE},
            ),
        }
        for case, (make_ours, names, wanted) in ours.items():
            if not is_chosen(case, self._options):
                continue
            shutil.rmtree(self._ready, ignore_errors=True)
            rows = write_ready(self._ready, self._journal, names, **wanted)
            schema = make_ours().schema

            def make_ready(schema: StructType = schema) -> DataFrame:
                return spark.read.format("ready_batches").schema(schema).load(str(self._ready))

            self._take_turns(case, rows, (make_ours, make_ready))

    def _take_turns(self, case: str, rows: int, frames: Sequence[Callable[[], DataFrame]]) -> None:
        for make in frames:  # once for warming up; and what is read is the same
            self._drain(make())
        counts = [make().count() for make in frames]
        if counts != [rows, rows] or not rows:
            raise SystemExit(f"bench: {case}: {counts[0]} rows of the journal, {counts[1]} of {rows} ready-made ones")
        for number in range(self._options.rounds):
            turns = list(zip(("Laneway", READY), frames, strict=True))
            for system, make in turns if number % 2 == 0 else reversed(turns):
                seconds = self._drain(make())
                self._report.add(case, system, "rows/s", self._rows / seconds, seconds=seconds)
                print(f"  {case:30} {system:10} {self._rows / seconds:14,.0f} rows/s", file=sys.stderr, flush=True)

    def _drain(self, frame: DataFrame) -> float:
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began


def goals() -> list[Goal]:
    everything, two, _, followed, _ = CASES
    return [
        Goal(everything, "Laneway", at_least=0.9, beside=READY),
        Goal(two, "Laneway", at_least=0.9, beside=READY),
        Goal(followed, "followed", at_least=0.9, beside="alone"),
    ]


def measure(options: argparse.Namespace, folder: Path) -> Report:
    from laneway.pipeline.session import session

    cores = assign_cores()
    master = options.master or "local[1]"
    sparks = {"spark": master, "audit_spark": options.master or "local[*]"}
    report = Report("pipeline", {**describe(folder, cores), **sparks, "events": options.events})
    report.goals = goals()
    reads = [case for case in CASES[:3] if is_chosen(case, options)]
    if reads:
        spark = session(master, "laneway-bench", **{"spark.driver.memory": "2g"})
        try:
            reading = Reading(options, report, folder)
            reading.prepare()
            reading.run(spark)
        finally:
            spark.stop()
            shutil.rmtree(folder / "ready", ignore_errors=True)
    if is_chosen(CASES[4], options):
        if not (folder / "journal").exists():
            write_journal(folder / "journal", options.events)
        Auditing(options, report, folder).run(CASES[4], folder / "journal")
    if is_chosen(CASES[3], options):
        Following(options, report, folder, cores).run(CASES[3])
    return report
