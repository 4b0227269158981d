"""make bench: durable publishing, end to end, and lone latency, over HTTP (here), AMQP (amqp.py) and SQS (sqs.py), each
beside its peers in the same run; the pipeline on Spark (pipeline.py); `--part counts` counts what a message costs
instead (counts.py)."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
from array import array
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import amqp, counts, pipeline, sqs
from benchmarks import laneway_load as laneway
from benchmarks.http_load import HttpConnection, ask, queue_path
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Cores, Watch, assign_cores, describe
from benchmarks.pgqueuer_queue import PgQueuerQueue
from benchmarks.postgres import Crew, PostgresQueue
from benchmarks.report import Goal, Report, percentile
from benchmarks.servers import ROOT, LanewayServer, PostgresServer, Server, StarletteEcho
from benchmarks.turns import CALM, Turns

BATCH = 100
KILOBYTE = 1024
SMALL_BYTES = 40
CONNECTIONS = 32
VARIANTS = 64  # different messages (and so requests) that a case goes through
CASES = (
    "single publish, small",
    "single publish, 1 KB",
    "batches of 100 × 1 KB",
    "end to end, 100 × 1 KB",
    "end to end, ten priorities",
    "end to end, 1 × 1 KB",
    "lone publish, 1 KB",
)
PAGE = ROOT / "docs" / "performance.md"


@dataclass(frozen=True)
class Flow:
    """Publishing and consuming at once: how many messages a request, and over how many connections."""

    batch: int
    publishers: int
    consumers: int
    crews: tuple[Crew, ...]  # what PostgreSQL is tried with; its best counts
    pgqueuer_crews: tuple[Crew, ...] = ()  # the same for PgQueuer, if it takes part
    priorities: Sequence[int] = (5,)
    share: int = 1  # the messages are divided by this where each takes long
    passes: int = 5  # of Laneway in a turn, so that it takes about as long: a machine's moods last for seconds


CREWS = (Crew(1, 1), Crew(2, 2), Crew(1, 3), Crew(4, 4), Crew(8, 8), Crew(16, 16))
GREEDY = (Crew(1, 1, taken=10), Crew(2, 2, taken=5), Crew(4, 4, taken=5), Crew(8, 8, taken=5))
BATCHES = Flow(BATCH, CONNECTIONS // 2, CONNECTIONS // 2, CREWS, CREWS + GREEDY)
PRIORITIES = replace(BATCHES, priorities=range(1, 11))
ONE_BY_ONE = Flow(1, CONNECTIONS // 2, CONNECTIONS // 2, (Crew(4, 4), Crew(8, 8), Crew(16, 16)), share=20, passes=3)


class Bench:
    """The servers, the report, and one method a case."""

    def __init__(self, options: argparse.Namespace, cores: Cores, folder: Path) -> None:
        self.options = options
        self.report = Report("bench", describe(folder, cores))
        self.laneway = LanewayServer(folder / "laneway", cores.server)
        self.starlette = StarletteEcho(folder / "starlette", cores.server)
        self.postgres = PostgresServer(folder / "postgres", cores.server)
        self._turns = Turns(self.report, options)
        self._queue_count = 0

    def new_queue(self) -> str:
        self._queue_count += 1
        name = f"bench-{self._queue_count}"
        ask(self.laneway.address, "PUT", queue_path(name), {})
        return name

    def rounds(self, case: str, turns: Sequence[Callable[[str], None]]) -> None:
        self._turns.rounds([partial(turn, case) for turn in turns])

    def note(self, case: str, system: Server | PostgresQueue, unit: str, value: float, **notes: float) -> None:
        self.report.add(case, system.name, unit, value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        print(f"  {case:38} {system.name:10} {value:12,.1f} {unit:6} {said}", file=sys.stderr, flush=True)

    def throughput(
        self, case: str, server: Server, requests: Sequence[bytes], batch: int, connections: int, seconds: float
    ) -> None:
        """Publishes per second with every connection asking again as soon as it was answered."""
        tally = laneway.Tally()
        scripts = [laneway.publisher(_rotated(requests, at, len(requests)), batch, tally) for at in range(connections)]
        clients = [HttpConnection(server.address, script) for script in scripts]
        with Load(clients) as load:
            load.run(seconds=seconds / 4)
            replies_before, watch = sum(one.reply_count for one in clients), Watch(server.pid)
            took = load.run(seconds=seconds)
            count = (sum(one.reply_count for one in clients) - replies_before) * batch
            notes = watch.notes(count)
        self.note(case, server, "msg/s", count / took, **notes)

    def singles(self, size_bytes: int, case: str) -> None:
        payloads = laneway.payload_texts(size_bytes, VARIANTS)

        def turn(server: Server, queue: str) -> Callable[[str], None]:
            requests = [laneway.single_publish(queue, payload) for payload in payloads]
            return lambda case: self.throughput(case, server, requests, 1, CONNECTIONS, self.options.seconds)

        ask(self.laneway.address, "PUT", queue_path("bench"), {})
        self.rounds(case, [turn(self.laneway, "bench"), turn(self.starlette, "bench")])
        ask(self.laneway.address, "POST", queue_path("bench", "/purge"), {})

    def batches(self, case: str) -> None:
        payloads = laneway.payload_texts(KILOBYTE, VARIANTS)

        def turn(case: str) -> None:
            queue = self.new_queue()
            requests = [laneway.batch_publish(queue, _rotated(payloads, at, BATCH), [5] * BATCH) for at in range(8)]
            self.throughput(case, self.laneway, requests, BATCH, 8, self.options.seconds)
            ask(self.laneway.address, "DELETE", queue_path(queue))

        self.rounds(case, [turn])

    def end_to_end(self, case: str, flow: Flow) -> None:
        payloads = laneway.payload_texts(KILOBYTE, VARIANTS)
        count = self.options.messages // flow.share // flow.batch * flow.batch
        texts, levels = _rotated(payloads, 0, count), _rotated(flow.priorities, 0, count)
        turns = [lambda case: self._laneway_flow(case, flow, payloads, count)]
        turns.append(self._postgres_turn(PostgresQueue(self.postgres), flow.crews, texts, levels, flow.batch))
        if flow.pgqueuer_crews:
            queue = PgQueuerQueue(self.postgres)
            turns.append(self._postgres_turn(queue, flow.pgqueuer_crews, texts, levels, flow.batch))
        self.rounds(case, turns)

    def _postgres_turn(
        self, queue: PostgresQueue, crews: Sequence[Crew], texts: list[str], levels: list[int], batch: int
    ) -> Callable[[str], None]:
        best: list[Crew] = []
        some = max(len(texts) // 10 // batch * batch, batch)

        def turn(case: str) -> None:
            if not best:  # the one that suits it best is found once, with a tenth of the messages
                tried = {crew: _on_loop(queue.end_to_end(texts[:some], levels[:some], batch, crew)) for crew in crews}
                best.append(min(tried, key=lambda crew: tried[crew].seconds))
            crew = best[0]
            run = _on_loop(queue.end_to_end(texts, levels, batch, crew))
            how = {"publishers": float(crew.publishers), "consumers": float(crew.consumers)}
            if crew.taken > 1:
                how["taken at once"] = float(crew.taken * batch)
            self.note(case, queue, "msg/s", len(texts) / run.seconds, **run.notes, **how)

        return turn

    def _laneway_flow(self, case: str, flow: Flow, payloads: list[str], count: int) -> None:
        queues = [self.new_queue() for _ in range(flow.passes)]
        for queue in queues:
            ask(self.laneway.address, "POST", queue_path(queue, "/messages"), {"payload": {"order": 0}})
            check = ask(self.laneway.address, "POST", queue_path(queue, "/dequeue"), {"visibility_timeout": 43_200})
            laneway.check_delivery(check, '{"order": 0}')
        watch = Watch(self.laneway.pid)
        took = sum([self._laneway_pass(queue, flow, payloads, count) for queue in queues])
        self.note(case, self.laneway, "msg/s", count * flow.passes / took, **watch.notes(count * flow.passes))
        for queue in queues:
            ask(self.laneway.address, "DELETE", queue_path(queue))

    def _laneway_pass(self, queue: str, flow: Flow, payloads: list[str], count: int) -> float:
        batch, tally = flow.batch, laneway.Tally()
        requests = [
            laneway.batch_publish(queue, _rotated(payloads, at, batch), _rotated(flow.priorities, at, batch))
            for at in range(10)
        ]
        scripts = [laneway.publisher(requests, batch, tally, limit=count) for _ in range(flow.publishers)]
        scripts += [laneway.consumer(queue, batch, tally) for _ in range(flow.consumers)]
        with Load([HttpConnection(self.laneway.address, script) for script in scripts]) as load:
            return load.run(seconds=300, until=lambda: tally.acked >= count)

    def lone(self, case: str) -> None:
        """One connection, one publish at a time: what a caller waits for when nothing else is going on."""
        payload = laneway.payload_texts(KILOBYTE, 1)[0]
        pg_queue = PostgresQueue(self.postgres)

        def add(system: Server | PostgresQueue, taken_ns: Sequence[int]) -> None:
            ordered = sorted(taken_ns)
            p50, p99 = percentile(ordered, 0.5) / 1e6, percentile(ordered, 0.99) / 1e6
            self.note(f"{case}, p99", system, "ms", p99, p50_ms=p50, max_ms=ordered[-1] / 1e6)

        def laneway_turn(_: str) -> None:
            queue, latencies_ns = self.new_queue(), array("q")
            script = laneway.publisher([laneway.single_publish(queue, payload)], 1, laneway.Tally())
            client = HttpConnection(self.laneway.address, script, latencies_ns=latencies_ns)
            with Load([client]) as load:
                load.run(seconds=60, until=lambda: len(latencies_ns) >= self.options.lone)
            add(self.laneway, latencies_ns)
            ask(self.laneway.address, "DELETE", queue_path(queue))

        def postgres_turn(_: str) -> None:
            add(pg_queue, _on_loop(pg_queue.lone_publishes(payload, self.options.lone)))

        self.rounds(case, [laneway_turn, postgres_turn])


def _rotated(values: Sequence[Any], start: int, count: int) -> list[Any]:
    """`count` of these values, beginning at `start` and over and over."""
    repeated = list(values) * math.ceil((start + count) / len(values))
    return repeated[start : start + count]


def _on_loop(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def run(bench: Bench, only: str) -> None:
    """All cases whose name contains `only`, with what each should reach."""
    goals = bench.report.goals
    small, large, batches, plain, mixed, one_by_one, lone = CASES
    goals.append(Goal(small, "Laneway", at_least=2, beside="Starlette"))
    goals.append(Goal(large, "Laneway", at_least=2, beside="Starlette"))
    goals.append(Goal(plain, "Laneway", at_least=100_000))
    goals.append(Goal(plain, "Laneway", at_least=10, beside="PgQueuer"))
    goals.append(Goal(plain, "Laneway", beside="PostgreSQL"))
    goals.append(Goal(f"{lone}, p99", "Laneway", below=5))
    cases: list[tuple[str, Callable[[str], None]]] = [
        (small, lambda case: bench.singles(SMALL_BYTES, case)),
        (large, lambda case: bench.singles(KILOBYTE, case)),
        (batches, bench.batches),
        (plain, lambda case: bench.end_to_end(case, BATCHES)),
        (mixed, lambda case: bench.end_to_end(case, PRIORITIES)),
        (one_by_one, lambda case: bench.end_to_end(case, ONE_BY_ONE)),
        (lone, bench.lone),
    ]
    for case, measure in cases:
        if only in case:
            measure(case)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each system takes its turn (%(default)s)")
    parser.add_argument(
        "--patience",
        type=int,
        default=4,
        help=f"how often a turn from which the machine's host took over {CALM:.0%}% of a processor is taken again; "
        "the one it took the least from counts (%(default)s)",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn of publishing (%(default)s)")
    parser.add_argument("--messages", type=int, default=200_000, help="messages of an end-to-end turn (%(default)s)")
    parser.add_argument("--lone", type=int, default=2_000, help="publishes of a latency turn (%(default)s)")
    parser.add_argument("--pace-seconds", type=float, default=5.0, help="length of a turn at a set rate (%(default)s)")
    parser.add_argument("--part", choices=["http", "amqp", "sqs", "pipeline", "counts"], help="one alone")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument(
        "--systems", default="Laneway,RabbitMQ,sink", help="of the AMQP part, with commas between (%(default)s)"
    )
    parser.add_argument("--events", type=int, default=10_000_000, help="of the journal of the pipeline (%(default)s)")
    parser.add_argument("--master", default="local[1]", help="the Spark of the pipeline (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a short look: 1 round, 1 s, 20,000 messages")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="the disk to measure on (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if options.part == "counts":
        counts.main(["--only", options.only])
        return
    if options.quick:
        options.rounds, options.seconds, options.messages, options.lone = 1, 1.0, 20_000, 500
        options.pace_seconds, options.events = 2.0, min(options.events, 1_000_000)
    parts = {
        "http": (CASES, measure),
        "amqp": (amqp.CASES, amqp.measure),
        "sqs": (sqs.CASES, sqs.measure),
        "pipeline": (pipeline.CASES, pipeline.measure),
    }
    for part, (cases, measure_part) in parts.items():
        if options.part in (None, part) and any(options.only in case for case in cases):
            with tempfile.TemporaryDirectory(prefix="laneway-bench-", dir=options.folder) as name:
                folder = Path(name)
                folder.chmod(0o755)  # PostgreSQL runs as a user of its own
                show(measure_part(options, folder), options)


def show(report: Report, options: argparse.Namespace) -> None:
    saved = report.save().relative_to(ROOT)
    print(report.json() if options.json else f"{report.markdown()}\n\nsaved as {saved}\n")
    if options.docs:
        report.write_into(PAGE)


def measure(options: argparse.Namespace, folder: Path) -> Report:
    cores = assign_cores()
    bench = Bench(options, cores, folder)
    os.sched_setaffinity(0, cores.generator)
    try:
        with bench.laneway, bench.starlette, bench.postgres:
            run(bench, options.only)
    finally:
        os.sched_setaffinity(0, cores.everything)
    return bench.report


if __name__ == "__main__":
    try:
        main()
    except LoadFailed as failure:
        sys.exit(f"bench: {failure}")
