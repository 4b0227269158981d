"""make bench: durable publishing, end to end, and lone latency, over HTTP (here), AMQP (amqp.py) and SQS (sqs.py), each
beside its peers in the same run; several processes beside one (processes.py); the pipeline on Spark (pipeline.py);
`--part counts` counts what a message costs instead (counts.py)."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
import tempfile
from array import array
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from benchmarks import amqp, client_load, sqs
from benchmarks import laneway_load as laneway
from benchmarks.http_load import HttpConnection, Script, ask, queue_path
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Cores, Watch, assign_cores, describe
from benchmarks.pgqueuer_queue import PgQueuerQueue
from benchmarks.postgres import Crew, PostgresQueue
from benchmarks.report import Goal, Report, percentile
from benchmarks.servers import AGAINST, ROOT, LanewayServer, PostgresServer, Server, StarletteEcho
from benchmarks.turns import CALM, Turn, Turns, is_chosen, takes_part

BATCH = 100
KILOBYTE = 1024
SMALL_BYTES = 40
CONNECTIONS = 32
CLIENT_THREADS = 8
VARIANTS = 64  # different messages (and so requests) that a case goes through
REQUESTS = 100  # different ones of an end-to-end flow
DELAY_SECONDS = 1
PEERS = ("Starlette", "PostgreSQL", "PgQueuer", "RabbitMQ", "sink", "moto")
PAGE = ROOT / "docs" / "performance.md"

SMALL, LARGE, BATCHED = "single publish, small", "single publish, 1 KB", "batches of 100 × 1 KB"
PLAIN, MIXED, SINGLES = "end to end, 100 × 1 KB", "end to end, ten priorities", "end to end, 1 × 1 KB"
ATTRIBUTES, DELAYED = "end to end, attributes and correlation ids", "end to end, delays"
TENANTS, FAIR = "end to end, tenants", "end to end, tenants in a fair queue"
KEYED, CLIENT = "single keyed publish, as laneway.client sends it", "single keyed publish through laneway.client"
LONE = "lone publish, 1 KB"
CASES = (SMALL, LARGE, KEYED, CLIENT, BATCHED, PLAIN, MIXED, ATTRIBUTES, DELAYED, TENANTS, FAIR, SINGLES, LONE)


@dataclass(frozen=True)
class Flow:
    """Publishing and consuming at once: how many messages a request, and over how many connections."""

    batch: int
    publishers: int
    consumers: int
    crews: tuple[Crew, ...] = ()  # what PostgreSQL is tried with, if it takes part; its best counts
    pgqueuer_crews: tuple[Crew, ...] = ()  # the same for PgQueuer
    priorities: Sequence[int] = (5,)
    fields: Callable[[int], str] = lambda number: ""  # of the JSON of a message, beside priority and payload
    settings: Mapping[str, object] = field(default_factory=dict)  # of the queue
    share: int = 1  # the messages are divided by this where each takes long
    passes: int = 5  # of Laneway in a turn, so that it takes about as long: a machine's moods last for seconds
    in_one_go: bool = False  # the passes are one long one


def attributes(number: int) -> str:
    shown = f'"region":"region-{number % 17}","customer":"customer-{number * 7919 % 99_991}","amount":{number}.5'
    return f',"attributes":{{{shown}}},"correlation_id":"order-{number:08x}-{number * 7919 % 99_991}"'


def tenant(number: int) -> str:
    return f',"tenant":"tenant-{number % 50}"'


CREWS = (Crew(1, 1), Crew(2, 2), Crew(1, 3), Crew(4, 4), Crew(8, 8), Crew(16, 16))
GREEDY = (Crew(1, 1, taken=10), Crew(2, 2, taken=5), Crew(4, 4, taken=5), Crew(8, 8, taken=5))
BATCHES = Flow(BATCH, CONNECTIONS // 2, CONNECTIONS // 2, CREWS, CREWS + GREEDY)
VARIED = replace(BATCHES, crews=(), pgqueuer_crews=(), passes=3)
FLOWS = {
    PLAIN: BATCHES,
    MIXED: replace(BATCHES, priorities=range(1, 11)),
    ATTRIBUTES: replace(VARIED, fields=attributes),
    # In one go, since a message that is published last still waits out its delay, while nothing else is left to do.
    DELAYED: replace(VARIED, fields=lambda number: f',"delay_seconds":{DELAY_SECONDS}', in_one_go=True),
    TENANTS: replace(VARIED, fields=tenant),
    FAIR: replace(VARIED, fields=tenant, settings={"fair": True}),
    SINGLES: Flow(1, CONNECTIONS // 2, CONNECTIONS // 2, (Crew(4, 4), Crew(8, 8), Crew(16, 16)), share=20, passes=3),
}


class Bench:
    """The servers, the report, and one method a case, which gives the turns of those who take part in it."""

    def __init__(self, options: argparse.Namespace, cores: Cores, folder: Path) -> None:
        self.options = options
        self.report = Report("bench", describe(folder, cores, options.against))
        self.laneways = [LanewayServer(folder / "laneway", cores.server)]
        if options.against is not None:
            self.laneways.append(LanewayServer(folder / "against", cores.server, checkout=options.against))
        self.starlette = StarletteEcho(folder / "starlette", cores.server)
        self.postgres = PostgresServer(folder / "postgres", cores.server)
        self._queue_count = 0

    @property
    def servers(self) -> list[Server]:
        peers: list[Server] = [self.starlette] if self.takes_part("Starlette") else []
        if self.takes_part("PostgreSQL") or self.takes_part("PgQueuer"):
            peers.append(self.postgres)
        return [*self.laneways, *peers]

    def takes_part(self, peer: str) -> bool:
        return takes_part(peer, self.options)

    @contextmanager
    def queue(self, server: LanewayServer, settings: Mapping[str, object] | None = None) -> Iterator[str]:
        """A queue that is there for one turn."""
        self._queue_count += 1
        name = f"bench-{self._queue_count}"
        ask(server.address, "PUT", queue_path(name), dict(settings or {}))
        yield name
        ask(server.address, "DELETE", queue_path(name))

    def note(self, case: str, system: Server | PostgresQueue, unit: str, value: float, **notes: float) -> None:
        self.report.add(case, system.name, unit, value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        print(f"  {case:48} {system.name:10} {value:12,.1f} {unit:6} {said}", file=sys.stderr, flush=True)

    def throughput(self, case: str, server: Server, scripts: Sequence[Script], *, batch: int = 1) -> None:
        """Publishes per second with every connection asking again as soon as it was answered."""
        clients = [HttpConnection(server.address, script) for script in scripts]
        with Load(clients) as load:
            load.run(seconds=self.options.seconds / 4)
            replies_before, watch = sum(one.reply_count for one in clients), Watch(server.pid)
            took = load.run(seconds=self.options.seconds)
            count = (sum(one.reply_count for one in clients) - replies_before) * batch
            notes = watch.notes(count)
        self.note(case, server, "msg/s", count / took, **notes)

    def singles(self, size_bytes: int, case: str) -> list[Turn]:
        payloads = laneway.payload_texts(size_bytes, VARIANTS)

        def publish(server: Server, queue: str) -> None:
            requests = [laneway.single_publish(queue, payload) for payload in payloads]
            self.throughput(case, server, _publishers(requests, 1, CONNECTIONS))

        def laneway_turn(server: LanewayServer) -> None:
            with self.queue(server) as queue:
                publish(server, queue)

        turns: list[Turn] = [partial(laneway_turn, server) for server in self.laneways]
        if self.takes_part("Starlette"):
            turns.append(lambda: publish(self.starlette, "bench"))
        return turns

    def keyed(self, case: str) -> list[Turn]:
        """Single publishes in the very bytes that laneway.client sends, each with an Idempotency-Key of its own."""
        payload = laneway.payload_texts(KILOBYTE, 1)[0]

        def turn(server: LanewayServer) -> None:
            with self.queue(server) as queue:
                before, after = client_load.keyed_publish(server.address, queue, payload)
                scripts = [client_load.keyed_publisher(before, after) for _ in range(CONNECTIONS)]
                self.throughput(case, server, scripts)

        return [partial(turn, server) for server in self.laneways]

    def through_client(self, case: str) -> list[Turn]:
        """What callers of laneway.client get: with threads of one process, the client is the bottleneck."""
        payload = json.loads(laneway.payload_texts(KILOBYTE, 1)[0])

        def turn(server: LanewayServer) -> None:
            with self.queue(server) as queue:
                watch = Watch(server.pid)
                count = client_load.publish_from_threads(
                    server.address, queue, payload, CLIENT_THREADS, self.options.seconds
                )
                self.note(case, server, "msg/s", count / self.options.seconds, **watch.notes(count))

        return [partial(turn, server) for server in self.laneways]

    def batches(self, case: str) -> list[Turn]:
        payloads = laneway.payload_texts(KILOBYTE, VARIANTS)

        def turn(server: LanewayServer) -> None:
            with self.queue(server) as queue:
                requests = [laneway.batch_publish(queue, _rotated(payloads, at, BATCH), [5] * BATCH) for at in range(8)]
                self.throughput(case, server, _publishers(requests, BATCH, 8), batch=BATCH)

        return [partial(turn, server) for server in self.laneways]

    def end_to_end(self, flow: Flow, case: str) -> list[Turn]:
        payloads = laneway.payload_texts(KILOBYTE, VARIANTS)
        count = self.options.messages // flow.share // flow.batch * flow.batch
        turns: list[Turn] = [
            partial(self._laneway_flow, case, flow, payloads, count, server) for server in self.laneways
        ]
        texts, levels = _rotated(payloads, 0, count), _rotated(flow.priorities, 0, count)
        if flow.crews and self.takes_part("PostgreSQL"):
            turns.append(self._postgres_turn(case, PostgresQueue(self.postgres), flow.crews, texts, levels, flow.batch))
        if flow.pgqueuer_crews and self.takes_part("PgQueuer"):
            queue = PgQueuerQueue(self.postgres)
            turns.append(self._postgres_turn(case, queue, flow.pgqueuer_crews, texts, levels, flow.batch))
        return turns

    def _postgres_turn(
        self, case: str, queue: PostgresQueue, crews: Sequence[Crew], texts: list[str], levels: list[int], batch: int
    ) -> Turn:
        best: list[Crew] = []
        some = max(len(texts) // 10 // batch * batch, batch)

        def turn() -> None:
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

    def _laneway_flow(self, case: str, flow: Flow, payloads: list[str], count: int, server: LanewayServer) -> None:
        total = count * flow.passes
        passes = [total] if flow.in_one_go else [count] * flow.passes
        with ExitStack() as queues:
            names = [queues.enter_context(self.queue(server, flow.settings)) for _ in passes]
            for queue in names:
                ask(server.address, "POST", queue_path(queue, "/messages"), {"payload": {"order": 0}})
                check = ask(server.address, "POST", queue_path(queue, "/dequeue"), {"visibility_timeout": 43_200})
                laneway.check_delivery(check, '{"order": 0}')
            watch = Watch(server.pid)
            took = sum(
                self._laneway_pass(server, queue, flow, payloads, number)
                for queue, number in zip(names, passes, strict=True)
            )
            self.note(case, server, "msg/s", total / took, **watch.notes(total))

    def _laneway_pass(self, server: Server, queue: str, flow: Flow, payloads: list[str], count: int) -> float:
        batch, tally = flow.batch, laneway.Tally()
        requests = [
            laneway.batch_publish(
                queue,
                _rotated(payloads, at, batch),
                _rotated(flow.priorities, at, batch),
                [flow.fields(at * batch + number) for number in range(batch)],
            )
            for at in range(REQUESTS)
        ]
        scripts = [
            laneway.publisher(_rotated(requests, at, len(requests)), batch, tally, limit=count)
            for at in range(flow.publishers)
        ]
        scripts += [laneway.consumer(queue, batch, tally) for _ in range(flow.consumers)]
        with Load([HttpConnection(server.address, script) for script in scripts]) as load:
            return load.run(seconds=300, until=lambda: tally.acked >= count)

    def lone(self, case: str) -> list[Turn]:
        """One connection, one publish at a time: what a caller waits for when nothing else is going on."""
        payload = laneway.payload_texts(KILOBYTE, 1)[0]
        pg_queue = PostgresQueue(self.postgres)

        def add(system: Server | PostgresQueue, taken_ns: Sequence[int]) -> None:
            ordered = sorted(taken_ns)
            p50, p99 = percentile(ordered, 0.5) / 1e6, percentile(ordered, 0.99) / 1e6
            self.note(f"{case}, p99", system, "ms", p99, p50_ms=p50, max_ms=ordered[-1] / 1e6)

        def laneway_turn(server: LanewayServer) -> None:
            latencies_ns: array[int] = array("q")
            with self.queue(server) as queue:
                script = laneway.publisher([laneway.single_publish(queue, payload)], 1, laneway.Tally())
                with Load([HttpConnection(server.address, script, latencies_ns=latencies_ns)]) as load:
                    load.run(seconds=60, until=lambda: len(latencies_ns) >= self.options.lone)
                add(server, latencies_ns)

        def postgres_turn() -> None:
            add(pg_queue, _on_loop(pg_queue.lone_publishes(payload, self.options.lone)))

        turns: list[Turn] = [partial(laneway_turn, server) for server in self.laneways]
        return [*turns, postgres_turn] if self.takes_part("PostgreSQL") else turns


def _publishers(requests: Sequence[bytes], batch: int, connections: int) -> list[Script]:
    tally = laneway.Tally()
    return [laneway.publisher(_rotated(requests, at, len(requests)), batch, tally) for at in range(connections)]


def _rotated(values: Sequence[Any], start: int, count: int) -> list[Any]:
    """`count` of these values, beginning at `start` and over and over."""
    repeated = list(values) * math.ceil((start + count) / len(values))
    return repeated[start : start + count]


def _on_loop(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def run(bench: Bench) -> None:
    """All cases that are chosen."""
    cases: dict[str, Callable[[str], list[Turn]]] = {
        SMALL: partial(bench.singles, SMALL_BYTES),
        LARGE: partial(bench.singles, KILOBYTE),
        KEYED: bench.keyed,
        CLIENT: bench.through_client,
        BATCHED: bench.batches,
        **{case: partial(bench.end_to_end, flow) for case, flow in FLOWS.items()},
        LONE: bench.lone,
    }
    turns = [make(case) for case, make in cases.items() if is_chosen(case, bench.options)]
    Turns(bench.report, bench.options).rounds(*turns)


def goals() -> list[Goal]:
    found = [
        Goal(SMALL, "Laneway", at_least=2, beside="Starlette"),
        Goal(LARGE, "Laneway", at_least=2, beside="Starlette"),
        Goal(PLAIN, "Laneway", at_least=100_000),
        Goal(PLAIN, "Laneway", at_least=10, beside="PgQueuer"),
        Goal(PLAIN, "Laneway", beside="PostgreSQL"),
        Goal(f"{LONE}, p99", "Laneway", below=5),
    ]
    for case in (ATTRIBUTES, DELAYED, TENANTS):
        found.append(Goal(case, "Laneway", at_least=0.7, beside="Laneway", beside_case=PLAIN))
    found.append(Goal(FAIR, "Laneway", beside="Laneway", beside_case=PLAIN))
    for case in CASES:
        if case == LONE:
            found.append(Goal(f"{LONE}, p99", "Laneway", beside=AGAINST))
        else:
            found.append(Goal(case, "Laneway", at_least=1.5 if case == KEYED else 0.9, beside=AGAINST))
    return found


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
    parser.add_argument("--part", choices=["http", "amqp", "sqs", "processes", "pipeline", "counts"], help="one alone")
    parser.add_argument("--only", default="", help="cases whose names contain one of these, with commas between")
    parser.add_argument("--peers", default="all", help=f"all, none, or some of {', '.join(PEERS)} (%(default)s)")
    parser.add_argument(
        "--against", type=Path, help="a checkout of another version, to measure in turns (http, amqp, sqs)"
    )
    parser.add_argument("--events", type=int, default=10_000_000, help="of the journal of the pipeline (%(default)s)")
    parser.add_argument(
        "--master", help="the Spark of the pipeline (reading: local[1]; the audit: what the command line takes itself)"
    )
    parser.add_argument("--quick", action="store_true", help="a short look: 1 round, 1 s, 20,000 messages")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="the disk to measure on (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--docs", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    if unknown := {peer.lower() for peer in options.peers.split(",")} - {
        "all",
        "none",
        *(one.lower() for one in PEERS),
    }:
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if options.against is not None and not (options.against / "src" / "laneway").is_dir():
        parser.error(f"{options.against} is no checkout of Laneway: it has no src/laneway")
    if options.part == "counts":
        from benchmarks import counts  # here alone: it needs the server's internals, the others only its interfaces

        counts.main(["--only", options.only])
        return
    if options.quick:
        options.rounds, options.seconds, options.messages, options.lone = 1, 1.0, 20_000, 500
        options.pace_seconds, options.events = 2.0, min(options.events, 1_000_000)
    parts = {"http": (CASES, measure), "amqp": (amqp.CASES, amqp.measure), "sqs": (sqs.CASES, sqs.measure)}
    if options.part in (None, "processes"):
        from benchmarks import processes  # it needs to know where queues lie

        parts["processes"] = processes.CASES, processes.measure
    if options.part in (None, "pipeline"):
        from benchmarks import pipeline  # it needs the journal's internals

        parts["pipeline"] = pipeline.CASES, pipeline.measure
    for part, (cases, measure_part) in parts.items():
        if options.part in (None, part) and any(is_chosen(case, options) for case in cases):
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
    bench.report.goals = goals()
    os.sched_setaffinity(0, cores.generator)
    try:
        with ExitStack() as running:
            for server in bench.servers:
                running.enter_context(server)
            run(bench)
    finally:
        os.sched_setaffinity(0, cores.everything)
    return bench.report


if __name__ == "__main__":
    try:
        main()
    except LoadFailed as failure:
        sys.exit(f"bench: {failure}")
