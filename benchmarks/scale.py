"""make bench-scale: a deep backlog, many outstanding leases, many idle queues, AMQP connections and consumers: what
they cost and what they change; queues and connections also in a server of several processes."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from benchmarks import amqp_frames as amqp
from benchmarks import laneway_load as laneway
from benchmarks.amqp_load import AmqpConnection, consuming
from benchmarks.http_load import HttpConnection, Script, ask, queue_path, request
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Watch, assign_cores, children, cpu_seconds, describe, resident_bytes
from benchmarks.report import Goal, Report, percentile
from benchmarks.servers import ROOT, LanewayServer, RabbitServer, Server
from benchmarks.turns import Turns

BATCH = 100
KILOBYTE = 1024
SMALL_BYTES = 100
CLIENTS = 8
SAMPLE = 200_000  # messages of a rate that is measured beside another
LONGEST_LEASE_SECONDS = 43_200
IDLE_SECONDS = 10
HOUR = 3600.0
HEARTBEAT_SECONDS = 60
SLOW_MS = 100  # a turn of the loop; shorter ones are not counted
CASES = ("connections", "queues", "partitions", "leases", "backlog")
PROCESSES, PARTITIONS = 2, 4  # of the case "partitions"; connections have as many processes
PAGE_QUEUES = 1_000
RECOVERY_SECONDS = 120
PAGE = ROOT / "docs" / "performance.md"


class Scale:
    def __init__(self, options: argparse.Namespace, server: LanewayServer, report: Report) -> None:
        self.options = options
        self.server = server
        self.report = report

    def note(self, case: str, system: str, unit: str, value: float, **notes: float) -> None:
        self.report.add(case, system, unit, value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        print(f"  {case:44} {system:46} {value:14,.3f} {unit:7} {said}", file=sys.stderr, flush=True)

    # --- what the cases are made of

    def create(self, queue: str) -> None:
        ask(self.server.address, "PUT", queue_path(queue), {})

    def stats(self, queue: str) -> dict[str, Any]:
        answer = ask(self.server.address, "GET", queue_path(queue, "/stats"))
        assert isinstance(answer, dict)
        return answer

    def drive(self, scripts: Sequence[Script]) -> float:
        """Seconds until all of these scripts have ended."""
        clients = [HttpConnection(self.server.address, script) for script in scripts]
        with Load(clients) as load:
            return load.run(seconds=HOUR, until=lambda: all(client.finished for client in clients))

    def publish(self, queue: str, count: int, size_bytes: int = KILOBYTE, *, show: bool = False) -> float:
        """Messages per second. With `show`, progress: a backlog of millions takes minutes."""
        payloads = laneway.payload_texts(size_bytes, BATCH)
        requests = [laneway.batch_publish(queue, payloads, [5] * BATCH)]
        step, seconds = (max(count // 10, BATCH) if show else count), 0.0
        for done in range(0, count, step):
            tally = laneway.Tally()
            limit = min(step, count - done)
            seconds += self.drive([laneway.publisher(requests, BATCH, tally, limit=limit) for _ in range(CLIENTS)])
            if show:
                print(f"  … {done + limit:,} of {count:,} published", file=sys.stderr, flush=True)
        return count / seconds

    def consume(self, queue: str, count: int) -> float:
        """Messages dequeued and acked per second."""
        tally = laneway.Tally()
        clients = [HttpConnection(self.server.address, laneway.consumer(queue, BATCH, tally)) for _ in range(CLIENTS)]
        with Load(clients) as load:
            took = load.run(seconds=HOUR, until=lambda: tally.acked >= count)
        return tally.acked / took

    def lone_dequeues(self, queue: str, count: int) -> list[int]:
        """The nanoseconds of each of `count` dequeues of one message, one after another."""
        latencies_ns, tally = array("q"), laneway.Tally()
        script = laneway.leaser(queue, 1, tally, limit=count, lease_seconds=LONGEST_LEASE_SECONDS)
        client = HttpConnection(self.server.address, script, latencies_ns=latencies_ns)
        with Load([client]) as load:
            load.run(seconds=HOUR, until=lambda: client.finished)
        return sorted(latencies_ns)

    def memory_mb(self) -> float:
        return resident_bytes(self.server.pid) / 1e6

    # --- the cases

    def backlog(self) -> None:
        count, sample = self.options.messages, min(SAMPLE, self.options.messages // 4)
        deep, name = f"{count:,} deep", "backlog of 1 KB messages"
        self.note(f"{name}, memory", "empty", "MB", self.memory_mb())
        self.create("deep")
        rate = self.publish("deep", count, show=True)
        self.note(f"{name}, filling", deep, "msg/s", rate)
        self.note(f"{name}, memory", deep, "MB", self.memory_mb())
        self.create("short")

        def turn(queue: str, system: str) -> None:
            for what, measure in (("publish", self.publish), ("dequeue and ack", self.consume)):
                watch = Watch(self.server.pid)
                rate = measure(queue, sample)
                self.note(f"{name}, {what}", system, "msg/s", rate, **watch.notes(sample))

        systems = (("short", "short queue"), ("deep", deep))
        Turns(self.report, self.options).rounds([partial(turn, *one) for one in systems])
        self.note(f"{name}, memory", f"{deep}, served", "MB", self.memory_mb())
        for how, number in (("SIGTERM", signal.SIGTERM), ("kill -9", signal.SIGKILL)):
            self.restart(name, deep, how, number)
        self.report.goals += [
            Goal(f"{name}, memory", f"{deep}, served", below=1000),
            Goal(f"{name}, dequeue and ack", deep, at_least=0.9, beside="short queue"),
            Goal(f"{name}, restart after SIGTERM", deep, below=15),
            Goal(f"{name}, restart after kill -9", deep, below=15),
        ]
        ask(self.server.address, "DELETE", queue_path("deep"))

    def restart(self, name: str, deep: str, how: str, signal_number: signal.Signals) -> None:
        waiting = self.stats("deep")["approximate_message_count"]
        stopping = self.server.stop(signal_number, timeout_seconds=300)
        starting = self.server.start(timeout_seconds=900)
        self.note(
            f"{name}, restart after {how}", deep, "s", starting, stop_seconds=stopping, memory_mb=self.memory_mb()
        )
        if self.stats("deep")["approximate_message_count"] != waiting:
            raise LoadFailed(f"{waiting} messages before the restart, {self.stats('deep')} after it")

    def leases(self) -> None:
        count, sample = self.options.leases, 5_000
        self.create("leases")
        self.publish("leases", count + 2 * sample + BATCH * CLIENTS, SMALL_BYTES)
        case = "dequeue of one message, p50"

        def measure(system: str) -> None:
            taken = self.lone_dequeues("leases", sample)
            p99, longest = percentile(taken, 0.99) / 1e3, taken[-1] / 1e3
            self.note(case, system, "µs", percentile(taken, 0.5) / 1e3, p99_us=p99, max_us=longest)

        measure("few leases")
        before, tally = self.memory_mb(), laneway.Tally()
        lease = [
            laneway.leaser("leases", 1000, tally, limit=count - 1000 * CLIENTS, lease_seconds=LONGEST_LEASE_SECONDS)
            for _ in range(CLIENTS)
        ]
        seconds = self.drive(lease)
        held = self.stats("leases")["in_flight_count"]
        many = f"{held:,} leases"
        self.note("leasing", many, "msg/s", tally.received / seconds, memory_added_mb=self.memory_mb() - before)
        measure(many)
        self.report.goals.append(Goal(case, many, below=1.2, beside="few leases"))
        ask(self.server.address, "DELETE", queue_path("leases"))

    def queues(self, where: str = "", processes: int = 1) -> None:
        count = self.options.queues
        before = self.memory_mb()

        def creator(first: int) -> Script:
            for number in range(first, count, CLIENTS):
                yield request("PUT", queue_path(f"idle-{number:06d}"), {})

        seconds = self.drive([creator(first) for first in range(CLIENTS)])
        many = f"{count:,} queues{where}"
        self.note("creating queues", many, "per s", count / seconds, memory_added_mb=self.memory_mb() - before)
        self.settle_down()
        used_ms = idle_share(self.server, IDLE_SECONDS) * IDLE_SECONDS * 1000
        self.note(f"CPU used in {IDLE_SECONDS} s of idling", many, "ms", used_ms)
        self.report.goals.append(Goal(f"CPU used in {IDLE_SECONDS} s of idling", many, below=50 * processes))
        self.list_all(many)
        starting = self.server.stop() and self.server.start()
        self.note("restart", many, "s", starting, memory_mb=self.memory_mb())

    def list_all(self, many: str) -> None:
        found, longest_s, cursor = 0, 0.0, ""
        began = time.perf_counter()
        while True:
            asked = time.perf_counter()
            page: Any = ask(self.server.address, "GET", f"/queues?limit={PAGE_QUEUES}{cursor}")
            longest_s = max(longest_s, time.perf_counter() - asked)
            found += len(page["queues"])
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        took = time.perf_counter() - began
        if found != self.options.queues:
            raise LoadFailed(f"{found} queues are listed, not {self.options.queues}")
        self.note("listing queues", many, "per s", found / took, longest_page_ms=longest_s * 1000)

    def partitions(self) -> None:
        """As many queues over several partitions; what their processes tell each other of them when one comes again."""
        where = f" in {PARTITIONS} partitions of {PROCESSES} processes"
        self.queues(where, PROCESSES)
        many = f"{self.options.queues:,} queues{where}"
        case = "longest turn of the loop"
        self.note(case, f"{many}, started", "ms", self.longest_turn_ms(self.loads()))
        gone = children(self.server.pid)[1]
        os.kill(gone, signal.SIGKILL)
        began = time.perf_counter()
        loads = self.whole_again(gone)
        self.note("a process killed, until all is served again", many, "s", time.perf_counter() - began)
        self.note(case, f"{many}, one killed", "ms", self.longest_turn_ms(loads))
        self.report.goals.append(Goal(case, f"{many}, one killed", below=2 * SLOW_MS))
        self.list_all(f"{many}, one killed")

    def loads(self) -> list[dict[str, Any]]:
        answer: Any = ask(self.server.address, "GET", "/processes")
        return list(answer["processes"])

    def longest_turn_ms(self, loads: list[dict[str, Any]]) -> float:
        """0: no turn was slow."""
        return float(max(one["longest_turn_ms"] for one in loads))

    def whole_again(self, gone: int) -> list[dict[str, Any]]:
        """What its processes say when none of them is this one and all are ready."""
        deadline = time.perf_counter() + RECOVERY_SECONDS
        while time.perf_counter() < deadline:
            with suppress(OSError, HTTPException, LoadFailed):
                ask(self.server.address, "GET", "/readyz")
                loads = self.loads()
                pids = [one["pid"] for one in loads]
                if gone not in pids and None not in pids and all(one["state"] == "ready" for one in loads):
                    return loads
            time.sleep(0.01)
        raise LoadFailed(f"not all was served again within {RECOVERY_SECONDS} s{self.server.last_words()}")

    def settle_down(self) -> None:
        """Until a second passes in which the server does next to nothing: snapshots after the creation are over."""
        if idle_share(self.server, 1, until_below=0.02) > 0.02:
            raise LoadFailed("the server is still busy a minute after the last request")


class Crowd:
    """Many AMQP clients that are there and do nothing: each a connection with a queue and some consumers of its own."""

    def __init__(self, options: argparse.Namespace, server: Server, address: tuple[str, int], report: Report) -> None:
        self.options = options
        self.server = server
        self.address = address
        self.report = report
        self.clients: list[AmqpConnection] = []

    def note(self, case: str, what: str, unit: str, value: float, **notes: float) -> None:
        self.report.add(case, f"{self.server.name}, {what}", unit, value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        print(f"  {case:44} {self.server.name}, {what:22} {value:12,.3f} {unit:7} {said}", file=sys.stderr, flush=True)

    def measure(self) -> None:
        count, each = self.options.connections, self.options.consumers // self.options.connections
        held, consuming_too = f"{count:,} connections", f"{count * each:,} consumers"
        self.note("idle AMQP clients, memory", "none", "MB", resident_bytes(self.server.pid) / 1e6)
        began = time.perf_counter()
        for _ in range(count):
            self.clients.append(AmqpConnection(self.address, heartbeat_seconds=HEARTBEAT_SECONDS))
        self.note("opening AMQP connections", held, "per s", count / (time.perf_counter() - began))
        self.idle(held)
        began = time.perf_counter()
        for number, client in enumerate(self.clients):
            queue = f"idle-{number:05d}"
            client.declare(queue, {})
            client.ask_all([consuming(queue, f"consumer-{one}") for one in range(each)], amqp.CONSUME_OK)
        self.note("starting AMQP consumers", consuming_too, "per s", count * each / (time.perf_counter() - began))
        self.idle(consuming_too)
        self.check(each)
        for client in self.clients:
            client.socket.close()

    def idle(self, what: str) -> None:
        """Memory, and CPU while nothing happens but heartbeats, of which the server sends one every 30 s to each."""
        for client in self.clients:
            client.socket.sendall(amqp.HEARTBEAT_FRAME)
        idle_share(self.server, 1, until_below=0.05, tries=20)
        self.note("idle AMQP clients, memory", what, "MB", resident_bytes(self.server.pid) / 1e6)
        used_ms = idle_share(self.server, IDLE_SECONDS) * IDLE_SECONDS * 1000
        self.note(f"idle AMQP clients, CPU used in {IDLE_SECONDS} s", what, "ms", used_ms)

    def check(self, each: int) -> None:
        """That every one of them is still there: its queue has its consumers, and a message reaches one of them."""
        for number, client in enumerate(self.clients):
            messages, consumers = client.counts(f"idle-{number:05d}")
            if (messages, consumers) != (0, each):
                raise LoadFailed(f"idle-{number:05d} has {messages} messages and {consumers} consumers, not {each}")
        last = len(self.clients) - 1
        publisher = AmqpConnection(self.address)
        publisher.socket.sendall(amqp.published(f"idle-{last:05d}", b"hello"))
        self.clients[last].answer(amqp.DELIVER)
        publisher.close()


def idle_share(server: Server, seconds: float, *, until_below: float | None = None, tries: int = 60) -> float:
    """The share of a core that the server used in so many seconds; measured again while it is not below a bound."""
    while True:
        before = cpu_seconds(server.pid)
        time.sleep(seconds)  # the measurement is of doing nothing for this long
        share = (cpu_seconds(server.pid) - before) / seconds
        tries -= 1
        if until_below is None or share <= until_below or not tries:
            return share


def connections(options: argparse.Namespace, folder: Path, report: Report) -> None:
    """Nobody is pinned here: there is no rate to compare."""
    need = options.connections * 2 + 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < need:  # the servers inherit it
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (need, max(need, hard)))
        except ValueError:
            raise LoadFailed(f"{need} open files are needed and only {hard} allowed; see ulimit -Hn") from None
    everything = assign_cores().everything
    laneway_server = LanewayServer(folder / "connections", everything, amqp=True)
    assert laneway_server.amqp_address is not None
    several = LanewayServer(folder / "processes", everything, amqp=True, processes=PROCESSES, partitions=PROCESSES)
    assert several.amqp_address is not None
    systems: list[tuple[Server, tuple[str, int]]] = [
        (laneway_server, laneway_server.amqp_address),
        (several, several.amqp_address),
    ]
    if options.rabbitmq:
        rabbit = RabbitServer(folder / "rabbitmq", everything)
        systems.append((rabbit, rabbit.address))
    for server, address in systems:
        with server:
            Crowd(options, server, address, report).measure()


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-scale", description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000, help="depth of the backlog (%(default)s)")
    parser.add_argument("--leases", type=int, default=1_000_000, help="leases held at once (%(default)s)")
    parser.add_argument("--queues", type=int, default=100_000, help="queues that exist and do nothing (%(default)s)")
    parser.add_argument("--connections", type=int, default=5_000, help="idle AMQP connections (%(default)s)")
    parser.add_argument("--consumers", type=int, default=50_000, help="idle consumers on them (%(default)s)")
    parser.add_argument("--rabbitmq", action="store_true", help="connections and consumers also on RabbitMQ")
    parser.add_argument("--rounds", type=int, default=5, help="how often a rate is measured (%(default)s)")
    parser.add_argument(
        "--patience", type=int, default=4, help="how often a turn that the host disturbed is taken again (%(default)s)"
    )
    parser.add_argument("--only", choices=CASES, help="one of them")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="the disk to measure on (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--docs", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    cores = assign_cores()
    with tempfile.TemporaryDirectory(prefix="laneway-scale-", dir=options.folder) as name:
        folder = Path(name)
        report = Report("scale", describe(folder, cores))
        for case in CASES if options.only is None else [options.only]:
            if case == "connections":
                os.sched_setaffinity(0, cores.everything)
                connections(options, folder, report)
                continue
            os.sched_setaffinity(0, cores.generator)
            server = LanewayServer(folder / case, cores.server)
            if case == "partitions":
                server = LanewayServer(folder / case, cores.everything, processes=PROCESSES, partitions=PARTITIONS)
            with server:
                getattr(Scale(options, server, report), case)()
    saved = report.save().relative_to(ROOT)
    print(report.json() if options.json else f"{report.markdown()}\n\nsaved as {saved}")
    if options.docs:
        report.write_into(PAGE)


if __name__ == "__main__":
    try:
        main()
    except LoadFailed as failure:
        sys.exit(f"bench-scale: {failure}")
