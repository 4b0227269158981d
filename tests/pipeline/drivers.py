"""Drivers of Spark in processes of their own, which meet trouble and are killed: what those programs and their tests
share. A driver stands still where it was told to, leaves a file to say so, and waits to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from laneway.pipeline.session import LOGGING, session

ROOT = Path(__file__).parent.parent.parent
FOREVER_S = 600
STAND_STILL_S = 240.0


#: For plans that are many, small and run once: code that is compiled quickly beats code that runs quickly, and a few
#: rows do not pay for code made and compiled for them. What is compiled stays: the quick compiler's usual 48 MiB are
#: full after a few minutes of plans, and then it throws away and compiles again.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
QUICK = {
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {QUICK_JVM}",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def quick_session() -> SparkSession:
    """One core, three tries a task. What it runs is little, and it will not live long."""
    return session("local[1,3]", **QUICK, **{"spark.driver.memory": "600m"})


def is_first_attempt(partition: int) -> bool:
    """In a task: whether it is the first attempt at this partition."""
    context = TaskContext.get()
    return context is not None and (context.partitionId(), context.attemptNumber()) == (partition, 0)


def die() -> None:
    """As a process does that is killed: nothing is told or tidied."""
    os._exit(1)


def stand_still(note: Path, when: str) -> None:
    note.write_text(when)
    time.sleep(FOREVER_S)


def environment() -> dict[str, str]:
    """For a driver and its tasks: the package and the tests of this folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def kill_where_it_stands_still(module: str, note: Path, log: Path, *arguments: str) -> None:
    """Start a driver and kill it, all its processes at once, when it has left its note."""
    with log.open("wb") as file:
        driver = subprocess.Popen(
            [sys.executable, "-m", f"tests.pipeline.{module}", "--note", str(note), *arguments],
            cwd=ROOT,
            env=environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + STAND_STILL_S
    try:
        while not note.exists():
            said = log.read_text(errors="replace")[-3000:]
            assert driver.poll() is None, f"the driver ended by itself:\n{said}"
            assert time.monotonic() < deadline_s, f"the driver did not get there:\n{said}"
            time.sleep(0.1)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def committed_by_spark(checkpoint: Path) -> list[int]:
    """The batches that Spark knows to be done."""
    return sorted(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
