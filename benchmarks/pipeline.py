"""The pipeline: reading a journal with Spark beside Parquet of the same rows, what following a server costs
it, and the audit.

Both readers get the same cores and the same sink (none), and take turns. The rows of Parquet are those of the journal,
written by Spark from it before the first round.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.auditing import Auditing
from benchmarks.following import Following
from benchmarks.journals import ONE_QUEUE, write_journal
from benchmarks.machine import assign_cores, describe
from benchmarks.report import Goal, Report
from benchmarks.turns import is_chosen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CASES = (
    "read, all columns",
    "read, two columns",
    "read, one queue",
    "published and consumed while followed",
    "audit",
)
TWO = ("time", "queue")


class Reading:
    def __init__(self, options: argparse.Namespace, report: Report, folder: Path) -> None:
        self._options = options
        self._report = report
        self._journal = folder / "journal"
        self._parquet = folder / "parquet"
        self._rows = 0

    def prepare(self, spark: SparkSession) -> None:
        began = time.perf_counter()
        self._rows = write_journal(self._journal, self._options.events)
        written = time.perf_counter()
        spark.read.format("laneway").load(str(self._journal)).write.parquet(str(self._parquet))
        size = sum(path.stat().st_size for path in self._journal.iterdir())
        parquet_size = sum(path.stat().st_size for path in self._parquet.glob("*.parquet"))
        print(
            f"  {self._rows:,} events: journal {size / 1e6:,.0f} MB in {written - began:.1f} s, Parquet of them "
            f"{parquet_size / 1e6:,.0f} MB in {time.perf_counter() - written:.1f} s",
            file=sys.stderr,
        )

    def run(self, spark: SparkSession) -> None:
        everything, two, one_queue = CASES[:3]
        ours, theirs = spark.read.format("laneway"), spark.read
        journal, parquet = str(self._journal), str(self._parquet)
        narrow = "time timestamp, queue string"
        cases: dict[str, tuple[Callable[[], DataFrame], Callable[[], DataFrame]]] = {
            everything: (lambda: ours.load(journal), lambda: theirs.parquet(parquet)),
            two: (
                lambda: spark.read.format("laneway").schema(narrow).load(journal),
                lambda: theirs.parquet(parquet).select(*TWO),
            ),
            one_queue: (
                lambda: spark.read.format("laneway").option("queues", ONE_QUEUE).load(journal),
                lambda: theirs.parquet(parquet).where(f"queue = '{ONE_QUEUE}'"),
            ),
        }
        for case, frames in cases.items():
            if not is_chosen(case, self._options):
                continue
            for make in frames:  # once for warming up; and what is read is the same
                self._drain(make())
            counts = [make().count() for make in frames] if case == one_queue else [self._rows] * 2
            if counts[0] != counts[1] or not counts[0]:
                raise SystemExit(f"bench: {case}: {counts[0]} rows of the journal, {counts[1]} of Parquet")
            for number in range(self._options.rounds):
                turns = list(zip(("Laneway", "Parquet"), frames, strict=True))
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
        Goal(everything, "Laneway", at_least=0.8, beside="Parquet"),
        Goal(two, "Laneway", at_least=0.5, beside="Parquet"),
        Goal(followed, "followed", at_least=0.9, beside="alone"),
    ]


def measure(options: argparse.Namespace, folder: Path) -> Report:
    from laneway.pipeline.session import session

    cores = assign_cores()
    report = Report("pipeline", {**describe(folder, cores), "spark": options.master, "events": options.events})
    report.goals = goals()
    reads = [case for case in CASES[:3] if is_chosen(case, options)]
    if reads:
        spark = session(options.master, "laneway-bench", **{"spark.driver.memory": "2g"})
        try:
            reading = Reading(options, report, folder)
            reading.prepare(spark)
            reading.run(spark)
        finally:
            spark.stop()
            shutil.rmtree(folder / "parquet", ignore_errors=True)
    if is_chosen(CASES[4], options):
        if not (folder / "journal").exists():
            write_journal(folder / "journal", options.events)
        Auditing(options, report, folder).run(CASES[4], folder / "journal")
    if is_chosen(CASES[3], options):
        Following(options, report, folder, cores).run(CASES[3])
    return report
