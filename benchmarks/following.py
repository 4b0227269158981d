"""What it costs a server that a stream follows it: publishing and consuming over HTTP, alone and followed.

The stream runs in a process of its own (`python -m benchmarks.following URL FOLDER`), which starts and stops it when
told so; the JVM stays. It has the core of the load generator, and only the time that this one leaves over: Spark is
meant to be elsewhere. A third turn has a process there that only keeps the core busy, since on a virtual machine that
alone can slow the server down. The server's CPU time per message is in the notes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import laneway_load as laneway
from benchmarks.http_load import HttpConnection, ask, queue_path
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Cores, Watch
from benchmarks.report import Report
from benchmarks.servers import ROOT, LanewayServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

BATCH = 100
BODY_BYTES = 1024
CURSOR = "bench"
LONGER = 5  # a stream takes its batches in fractions of a second: a turn lasts long enough for many of them


def _give_way(cores: frozenset[int]) -> None:
    os.sched_setaffinity(0, cores)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


class Follower:
    """The process with the stream, told what to do a line at a time."""

    def __init__(self, url: str, folder: Path, cores: frozenset[int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.following", url, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=partial(_give_way, cores),
        )
        self._hear("ready")

    def start(self) -> None:
        self._say("start")
        self._hear("started")

    def stop(self) -> int:
        """How many events it has read since its start, all that there were."""
        self._say("stop")
        return int(self._hear("stopped"))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)

    def _hear(self, word: str) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise LoadFailed("the process with the stream has ended")


class Following:
    def __init__(self, options: argparse.Namespace, report: Report, folder: Path, cores: Cores) -> None:
        self._options = options
        self._report = report
        self._folder = folder
        self._cores = cores
        self._server = LanewayServer(folder / "laneway", cores.server)
        self._count = LONGER * options.messages // BATCH * BATCH
        self._turns = 0

    def run(self, case: str) -> None:
        with self._server:
            url = "http://{}:{}".format(*self._server.address)
            follower = Follower(url, self._folder, self._cores.generator)
            os.sched_setaffinity(0, self._cores.generator)
            try:
                self._flow()  # warms up
                for number in range(self._options.rounds):
                    turns: list[Callable[[], None]] = [
                        lambda: self._note(case, "alone", *self._flow()),
                        lambda: self._beside_a_busy_core(case),
                        lambda: self._followed(case, follower),
                    ]
                    for turn in turns if number % 2 == 0 else reversed(turns):
                        turn()
            finally:
                os.sched_setaffinity(0, self._cores.everything)
                follower.close()

    def _beside_a_busy_core(self, case: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", "while True: pass"], preexec_fn=partial(_give_way, self._cores.generator)
        )
        try:
            rate, notes = self._flow()
        finally:
            process.kill()
            process.wait()
        self._note(case, "beside a busy core", rate, notes)

    def _followed(self, case: str, follower: Follower) -> None:
        follower.start()
        rate, notes = self._flow()
        read = follower.stop()
        if read < 3 * self._count:  # each is published, leased and acked
            raise LoadFailed(f"{self._count} messages were followed in {read} events")
        self._note(case, "followed", rate, notes)

    def _note(self, case: str, system: str, rate: float, notes: dict[str, float]) -> None:
        self._report.add(case, system, "msg/s", rate, **notes)
        print(f"  {case:38} {system:18} {rate:12,.0f} msg/s", file=sys.stderr, flush=True)

    def _flow(self) -> tuple[float, dict[str, float]]:
        self._turns += 1
        queue, tally, count = f"followed-{self._turns}", laneway.Tally(), self._count
        address = self._server.address
        ask(address, "PUT", queue_path(queue), {})
        payloads = laneway.payload_texts(BODY_BYTES, BATCH)
        requests = [laneway.batch_publish(queue, payloads, [5] * BATCH)]
        scripts = [laneway.publisher(requests, BATCH, tally, limit=count) for _ in range(4)]
        scripts += [laneway.consumer(queue, BATCH, tally) for _ in range(4)]
        watch = Watch(self._server.pid)
        with Load([HttpConnection(address, script) for script in scripts]) as load:
            took = load.run(seconds=300, until=lambda: tally.acked >= count)
        notes = watch.notes(count)
        ask(address, "DELETE", queue_path(queue))
        return count / took, notes


# --- the process with the stream ------------------------------------------------------------------------------------


def main() -> None:
    from laneway.pipeline.session import session

    url, folder = sys.argv[1], Path(sys.argv[2])
    spark = session("local[1]", "laneway-follower")
    query: StreamingQuery | None = None
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin):
        if line.strip() == "start":
            query = _start(spark, url, folder / f"checkpoint-{number}")
            print("started", flush=True)
        elif query is not None:
            query.processAllAvailable()
            read = sum(int(one["numInputRows"]) for one in query.recentProgress)
            query.stop()
            print("stopped", read, flush=True)
    spark.stop()


def _start(spark: SparkSession, url: str, checkpoint: Path) -> StreamingQuery:
    events = spark.readStream.format("laneway").options(url=url, cursor=CURSOR, startPosition="latest").load()
    query = events.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    query.processAllAvailable()
    return query


if __name__ == "__main__":
    main()
