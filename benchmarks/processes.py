"""make bench, the part about processes: what forwarding costs, two of them beside one, and what more cores would give.

A message crosses between processes when its queue lies in another one than its client's connection. So the clients here
choose: they connect until they have the process that a case wants. Each load generator is a process of its own, with
a publisher and a consumer of its own queue.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.amqp import CELERY, Flow, check_deliveries, declare, drive, pool_of, remove
from benchmarks.amqp_load import AmqpConnection, Consumer, Publisher
from benchmarks.amqp_messages import Pool, with_message_id
from benchmarks.forwarded import name_at
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Watch, assign_cores, children, connected_process, describe
from benchmarks.report import Goal, Report
from benchmarks.servers import LanewayServer
from benchmarks.turns import Turns, is_chosen

PROCESSES = 2  # each leads one partition
CORES = (2, 4, 8, 16)  # that the result is extrapolated to
MOST_FORWARDING = 1.4  # the CPU of a forwarded message beside that of one which is not
_CONNECT_TRIES = 200
_PATIENCE_S = 200.0  # for a load generator

_C = TypeVar("_C", bound=AmqpConnection)


class Places(NamedTuple):
    """The processes that a load generator's publisher and consumer are connected to, and the one that has its queue."""

    publisher: int
    consumer: int
    queue: int


@dataclass(frozen=True)
class Setting:
    name: str
    processes: int
    generators: tuple[Places, ...]


ONE = Setting("1 process, 1 generator", 1, (Places(0, 0, 0),))
OWN = Setting("2 processes, 1 generator, nothing forwarded", PROCESSES, (Places(0, 0, 0),))
FORWARDED = Setting("2 processes, 1 generator, all forwarded", PROCESSES, (Places(0, 0, 1),))
BUSY_OWN = Setting("2 processes, 2 generators, nothing forwarded", PROCESSES, (Places(0, 0, 0), Places(1, 1, 1)))
#: As it comes out on average where the kernel chooses the process of each connection.
BUSY_HALF = Setting("2 processes, 2 generators, half forwarded", PROCESSES, (Places(0, 1, 0), Places(1, 0, 1)))
BUSY_FORWARDED = Setting("2 processes, 2 generators, all forwarded", PROCESSES, (Places(0, 0, 1), Places(1, 1, 0)))
SETTINGS = (ONE, OWN, FORWARDED, BUSY_OWN, BUSY_HALF, BUSY_FORWARDED)

FLOWS = (
    replace(CELERY, name="processes, celery-like, 1 KB"),
    Flow("processes, message ids, 100 B", kind=with_message_id, body_bytes=100),
)
CASES = tuple(flow.name for flow in FLOWS)


def rate(case: str) -> str:
    return f"{case}: rate"


def cpu(case: str) -> str:
    return f"{case}: CPU a message"


def extrapolated(case: str) -> str:
    return f"{case}: extrapolated, nothing measured"


def speed_up(cores: int, one: float, own: float, forwarded: float) -> float:
    """How many times the rate of one process as many processes would reach, each on a core of its own, from the CPU a
    message costs: in a single process, and in several without and with forwarding. Clients and queues are spread
    evenly, so (cores - 1) of as many messages are forwarded; and neither disk nor network are a limit."""
    return cores * one / (own + (forwarded - own) * (cores - 1) / cores)


class ProcessesBench:
    def __init__(self, options: argparse.Namespace, folder: Path, report: Report) -> None:
        self.options = options
        self.report = report
        everything = assign_cores().everything  # two cores for servers and generators: nobody is pinned
        self.servers = {
            count: LanewayServer(folder / str(count), everything, amqp=True, processes=count, partitions=count)
            for count in (1, PROCESSES)
        }
        self._pools: dict[tuple[str, int], tuple[Flow, Pool]] = {}

    def note(self, case: str, system: str, unit: str, value: float, **notes: float) -> None:
        self.report.add(case, system, unit, value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        print(f"  {case:46} {system:46} {value:12,.3f} {unit:6} {said}", file=sys.stderr, flush=True)

    def run(self, flows: Sequence[Flow]) -> None:
        with ExitStack() as running:
            for server in self.servers.values():
                running.enter_context(server)
            for setting in SETTINGS:
                self.turn(flows[0], setting, self.options.seconds / 2, said=False)
            Turns(self.report, self.options).rounds(
                *[[partial(self.turn, flow, setting, self.options.seconds) for setting in SETTINGS] for flow in flows]
            )

    def turn(self, flow: Flow, setting: Setting, seconds: float, *, said: bool = True) -> None:
        server = self.servers[setting.processes]
        try:
            with ExitStack() as running:
                generators = [
                    running.enter_context(generating(server, *self.messages(flow, places), places, seconds))
                    for places in setting.generators
                ]
                for generator in generators:
                    generator.hear()  # that it is connected
                watch = Watch(server.pid)
                for generator in generators:
                    generator.say("go")
                done = [generator.hear() for generator in generators]
                count = sum(one.count for one in done)
                notes = watch.notes(count, generator_seconds=sum(one.cpu_seconds for one in done))
                for generator in generators:
                    generator.say("check")
                for generator in generators:
                    generator.hear()
        except (LoadFailed, OSError) as failure:
            raise LoadFailed(f"{flow.name}, {setting.name}: {failure}{server.last_words()}") from failure
        if said:
            self.note(cpu(flow.name), setting.name, "µs", notes["server_us_per_message"])
            self.note(rate(flow.name), setting.name, "msg/s", sum(one.count / one.took for one in done), **notes)

    def messages(self, flow: Flow, places: Places) -> tuple[Flow, Pool]:
        """With a queue that lies where it should."""
        key = flow.name, places.queue
        if key not in self._pools:
            name = name_at(places.queue, PROCESSES, "bench", end="-0000")
            its = replace(flow, stem=name.removesuffix("-0000"))
            self._pools[key] = its, pool_of(its)
        return self._pools[key]

    def extrapolate(self, flow: Flow) -> None:
        figures = [self.report.find(cpu(flow.name), setting.name) for setting in (ONE, BUSY_OWN, BUSY_FORWARDED)]
        rounds = [one.rounds for one in figures if one is not None]
        for cores in CORES:
            values = [speed_up(cores, *each) for each in zip(*rounds, strict=True)]
            for value in values:
                self.report.add(extrapolated(flow.name), f"{cores} cores ÷ one", "×", value)
            print(f"  {extrapolated(flow.name)}, {cores} cores: {statistics.median(values):.2f}×", file=sys.stderr)


# --- load generators


class Done(NamedTuple):
    count: int
    took: float
    cpu_seconds: float


class Generator:
    """A load generator in another process, as this one sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, what: str) -> None:
        self._connection.send(what)

    def hear(self) -> Done:
        if not self._connection.poll(_PATIENCE_S):
            raise LoadFailed(f"a load generator said nothing for {_PATIENCE_S:.0f} s")
        try:
            said = self._connection.recv()
        except EOFError:
            raise LoadFailed("a load generator ended") from None
        if isinstance(said, str):
            raise LoadFailed(said)
        return Done(*said)


@contextmanager
def generating(server: LanewayServer, flow: Flow, pool: Pool, places: Places, seconds: float) -> Iterator[Generator]:
    fork = multiprocessing.get_context("fork")  # it shares the pool
    ours, its = fork.Pipe()
    process = fork.Process(target=_generate, args=(server, flow, pool, places, seconds, its), daemon=True)
    process.start()
    its.close()
    try:
        yield Generator(ours)
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


def _generate(
    server: LanewayServer, flow: Flow, pool: Pool, places: Places, seconds: float, parent: Connection
) -> None:
    """In the load generator. What goes wrong is said in words."""
    with suppress(EOFError, BrokenPipeError):  # the parent has given up
        try:
            _talk(server, flow, pool, places, seconds, parent)
        except (LoadFailed, OSError) as failure:
            parent.send(str(failure))


def _talk(server: LanewayServer, flow: Flow, pool: Pool, places: Places, seconds: float, parent: Connection) -> None:
    address = server.amqp_address
    assert address is not None
    control = AmqpConnection(address)
    declare(control, flow)
    consumer = connected_to(server, places.consumer, lambda: Consumer(address, flow.queue_names))
    publisher = connected_to(server, places.publisher, lambda: Publisher(address, pool))
    parent.send(Done(0, 0.0, 0.0))
    parent.recv()
    began, used = time.perf_counter(), time.process_time()
    with Load([consumer, publisher]) as load:
        drive(load, flow, [publisher], [consumer], seconds)
        parent.send(Done(publisher.published, time.perf_counter() - began, time.process_time() - used))
        parent.recv()
        for connection in (consumer, publisher):
            connection.close()
    check_deliveries(flow, [publisher], [consumer])
    remove(control, flow)
    control.close()
    parent.send(Done(0, 0.0, 0.0))


def connected_to(server: LanewayServer, process: int, connect: Callable[[], _C]) -> _C:
    """The kernel chooses which process takes a connection, so as many are made as it takes."""
    pids = children(server.pid)
    if not pids:
        return connect()
    for _ in range(_CONNECT_TRIES):
        connection = connect()
        if connected_process(connection.socket.getsockname()[1], pids) == pids[process]:
            return connection
        connection.close()
    raise LoadFailed(f"none of {_CONNECT_TRIES} connections came to process {process}")


def goals(flows: Sequence[Flow]) -> list[Goal]:
    found = []
    for flow in flows:
        most = MOST_FORWARDING if flow.kind is CELERY.kind else None
        found += [
            Goal(cpu(flow.name), BUSY_FORWARDED.name, below=most, beside=BUSY_OWN.name),
            Goal(cpu(flow.name), FORWARDED.name, beside=OWN.name),
            Goal(cpu(flow.name), OWN.name, beside=ONE.name),
            Goal(rate(flow.name), BUSY_OWN.name, beside=ONE.name),
            Goal(rate(flow.name), BUSY_HALF.name, beside=ONE.name),
        ]
    return found


def measure(options: argparse.Namespace, folder: Path) -> Report:
    """All chosen cases."""
    cores = assign_cores()
    report = Report("processes", {**describe(folder, cores), "pinned": False})
    flows = [flow for flow in FLOWS if is_chosen(flow.name, options)]
    report.goals = goals(flows)
    bench = ProcessesBench(options, folder, report)
    bench.run(flows)
    for flow in flows:
        bench.extrapolate(flow)
    return report
