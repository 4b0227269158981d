"""make bench, the AMQP part: Laneway and RabbitMQ in one run under the same load, and the load generator's own ceiling.

Every case is a flow through durable queues: persistent messages, confirms, manual acks, from the first publish until
the last ack has reached its queue. That each message came once, in the right order, and that nothing is left is
checked after every turn; a turn where it does not hold is no figure but a failure.
"""

from __future__ import annotations

import argparse
import random
import select
import sys
import time
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.amqp_load import ACK_EVERY, PREFETCH, SERIAL_BYTES, AmqpConnection, Consumer, Publisher, Settings
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Cores, Watch, assign_cores, describe
from benchmarks.report import Goal, Report, percentile
from benchmarks.servers import LanewayServer, RabbitServer, Server, SinkServer
from benchmarks.turns import Turns

KILOBYTE = 1024
SMALL_BYTES = 100
VARIANTS = 64  # different bodies that a publisher goes through
DRAIN_SECONDS = 120.0
ONE_BY_ONE_RATE = 200  # messages a second where each confirm is awaited
STEADY_RATE = 2_000  # messages a second where none is

LANEWAY, RABBITMQ, SINK = "Laneway", "RabbitMQ", "sink"


@dataclass(frozen=True)
class Flow:
    """Publishing and consuming as fast as it goes: a connection to publish and one to consume for each queue."""

    name: str
    queues: int = 1
    body_bytes: int = KILOBYTE
    priorities: tuple[int, ...] = ()
    ack_every: int = ACK_EVERY
    queue_type: str = ""
    has_ceiling: bool = False

    @property
    def settings(self) -> Settings:
        if self.queue_type:
            return {"x-queue-type": self.queue_type}
        return {"x-max-priority": max(self.priorities)} if self.priorities else {}


@dataclass(frozen=True)
class Pace:
    """Publishing at a rate that both servers are given alike: what a message waits for its confirm, and to arrive."""

    name: str
    rate: int
    awaited: bool  # each confirm before the next publish


ONE = Flow("AMQP, one queue", has_ceiling=True)
TEN_PRIORITIES = Flow("AMQP, ten priorities", priorities=tuple(range(1, 11)))
FLOWS = (
    ONE,
    TEN_PRIORITIES,
    Flow("AMQP, two queues", queues=2),
    Flow("AMQP, ten queues", queues=10, has_ceiling=True),
    Flow("AMQP, one queue, 100 B", body_bytes=SMALL_BYTES, has_ceiling=True),
    Flow("AMQP, one queue, single acks", ack_every=1, has_ceiling=True),
    replace(TEN_PRIORITIES, name="AMQP, ten priorities, single acks", ack_every=1),
    Flow("AMQP, one quorum queue", queue_type="quorum"),
)
PACES = (
    Pace(f"AMQP, one publisher awaiting each confirm, {ONE_BY_ONE_RATE}/s", ONE_BY_ONE_RATE, awaited=True),
    Pace(f"AMQP, confirm at {STEADY_RATE:,}/s", STEADY_RATE, awaited=False),
)
CASES = tuple(case.name for case in (*FLOWS, *PACES))


class AmqpBench:
    def __init__(self, options: argparse.Namespace, cores: Cores, folder: Path, report: Report) -> None:
        self.options = options
        self.report = report
        everything = cores.everything  # RabbitMQ uses all cores by its nature, so here nobody is pinned
        self.laneway = LanewayServer(folder / "laneway-amqp", everything, amqp=True)
        self.servers: dict[str, Server] = {
            LANEWAY: self.laneway,
            RABBITMQ: RabbitServer(folder / "rabbitmq", everything),
            SINK: SinkServer(folder / "sink", everything),
        }
        self._turn_count = 0

    def address(self, system: str) -> tuple[str, int]:
        if system == LANEWAY:
            assert self.laneway.amqp_address is not None
            return self.laneway.amqp_address
        return self.servers[system].address

    def note(self, case: str, system: str, unit: str, value: float, **notes: float) -> None:
        self.report.add(case, system, unit, value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        shown = f"{value:12,.0f}" if value >= 100 else f"{value:12.3g}"
        print(f"  {case:52} {system:10} {shown} {unit:6} {said}", file=sys.stderr, flush=True)

    def queue_names(self, count: int) -> list[str]:
        self._turn_count += 1
        return [f"bench-{self._turn_count:04d}-{number:02d}" for number in range(count)]

    def run(self, cases: Sequence[Flow | Pace], systems: Sequence[str]) -> None:
        """Rounds are outermost, so that a noisy minute hits all cases alike; within a case the systems alternate."""
        turns = Turns(self.report, self.options)
        with ExitStack() as running:
            for system in systems:
                running.enter_context(self.servers[system])
            for system in systems:
                self.turn(None, system)
            for number in range(self.options.rounds):
                for case in cases:
                    for system in systems if number % 2 == 0 else tuple(reversed(systems)):
                        turns.take(partial(self.turn, case, system))

    def turn(self, case: Flow | Pace | None, system: str) -> None:
        """One case on one system, or what comes before all cases."""
        try:
            if case is None:
                if system != SINK:
                    self.check_order(system)
                self.flow(ONE, system, self.options.seconds / 2, said=False)
            elif isinstance(case, Pace):
                if system != SINK:
                    self.pace(case, system)
            elif system != SINK or case.has_ceiling:
                self.flow(case, system, self.options.seconds)
        except (LoadFailed, OSError) as failure:
            name = "warming up" if case is None else case.name
            raise LoadFailed(f"{name}, {system}: {failure}{self.servers[system].last_words()}") from failure

    # --- throughput

    def flow(self, flow: Flow, system: str, seconds: float, *, said: bool = True) -> None:
        address, server = self.address(system), self.servers[system]
        queues = self.queue_names(flow.queues)
        control = AmqpConnection(address)
        for queue in queues:
            control.declare(queue, flow.settings)
        bodies = bodies_of(flow.body_bytes)
        consumers = [Consumer(address, queue, body_bytes=flow.body_bytes, ack_every=flow.ack_every) for queue in queues]
        publishers = [Publisher(address, queue, bodies, priorities=flow.priorities) for queue in queues]
        watch, began = Watch(server.pid), time.perf_counter()
        # Consumers come first in the list, so that they are there before the first message.
        with Load([*consumers, *publishers]) as load:
            load.run(seconds=seconds)
            backlog = sum(one.published for one in publishers) - sum(one.received for one in consumers)
            for publisher in publishers:
                publisher.stopped = True
            load.run(seconds=DRAIN_SECONDS, until=lambda: _is_drained(publishers, consumers))
            for consumer in consumers:
                consumer.finish()
            load.run(seconds=DRAIN_SECONDS, until=lambda: all(consumer.synced for consumer in consumers))
            took = time.perf_counter() - began
            count = sum(one.published for one in publishers)
            notes = watch.notes(count)
            for connection in (*consumers, *publishers):
                connection.close()
        for publisher, consumer in zip(publishers, consumers, strict=True):
            check_deliveries(flow, publisher, consumer)
        for queue in queues:
            delete_empty(control, queue)
        control.close()
        if said:
            self.note(flow.name, system, "msg/s", count / took, **notes, backlog=backlog)

    def check_order(self, system: str) -> None:
        """Strict priorities, and the order of publishing within each: 1,000 messages wait before a consumer comes."""
        address, (queue,) = self.address(system), self.queue_names(1)
        control = AmqpConnection(address)
        control.declare(queue, TEN_PRIORITIES.settings)
        levels = TEN_PRIORITIES.priorities
        publisher = Publisher(address, queue, bodies_of(KILOBYTE), priorities=levels, limit=PREFETCH)
        consumer = Consumer(address, queue, body_bytes=KILOBYTE)
        with Load([publisher]) as load:
            load.run(seconds=DRAIN_SECONDS, until=lambda: publisher.finished)
            with Load([consumer]) as receiving:
                receiving.run(seconds=DRAIN_SECONDS, until=lambda: consumer.received == PREFETCH)
                consumer.finish()
                receiving.run(seconds=DRAIN_SECONDS, until=lambda: consumer.synced)
        expected = sorted(range(PREFETCH), key=lambda serial: (-levels[serial % len(levels)], serial))
        if list(consumer.deliveries.serials()) != expected:
            raise LoadFailed(f"{system} does not deliver in order of priority")
        control.delete(queue)
        control.close()

    # --- latency

    def pace(self, pace: Pace, system: str) -> None:
        address, (queue,) = self.address(system), self.queue_names(1)
        control = AmqpConnection(address)
        control.declare(queue, {})
        clock = Clock()
        consumer = Consumer(address, queue, body_bytes=KILOBYTE, ack_every=1, on_delivery=clock.arrived)
        publisher = Publisher(address, queue, bodies_of(KILOBYTE), least_write=sys.maxsize, on_confirm=clock.confirmed)
        watch = Watch(self.servers[system].pid)
        took = drive_paced(publisher, consumer, pace, self.options.pace_seconds, clock)
        notes = watch.notes(publisher.published)
        consumer.close()
        publisher.close()
        delete_empty(control, queue)
        control.close()
        confirms, arrivals = sorted(clock.confirm_ns), sorted(clock.arrival_ns)
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            others = {
                "arrival_ms": percentile(arrivals, share) / 1e6,
                "max_ms": confirms[-1] / 1e6,
                "messages_per_s": publisher.published / took,
                "server_us_per_message": notes["server_us_per_message"],
                "elsewhere_busy": notes["elsewhere_busy"],
            }
            self.note(f"{pace.name}, {name}", system, "ms", percentile(confirms, share) / 1e6, **others)


class Clock:
    """When each message was sent, and how long after that it was confirmed and delivered."""

    def __init__(self) -> None:
        self.sent_ns: array[int] = array("q")
        self.confirm_ns: array[int] = array("q")
        self.arrival_ns: array[int] = array("q")

    def confirmed(self, count: int) -> None:
        self._note(self.confirm_ns, count)

    def arrived(self, count: int) -> None:
        self._note(self.arrival_ns, count)

    def _note(self, taken_ns: array[int], count: int) -> None:
        now = time.perf_counter_ns()
        for at in range(len(taken_ns), count):
            taken_ns.append(now - self.sent_ns[at])


def drive_paced(publisher: Publisher, consumer: Consumer, pace: Pace, seconds: float, clock: Clock) -> float:
    """Publish one message at a time at this rate. select and not epoll: its timeout is finer than a millisecond."""
    consumer.begin()
    AmqpConnection.begin(publisher)  # not its own, which would fill the window
    by_file = {publisher.socket.fileno(): publisher, consumer.socket.fileno(): consumer}
    began, count = time.perf_counter(), max(1, int(pace.rate * seconds))
    deadline = began + 3 * seconds + DRAIN_SECONDS
    while consumer.acked < count or publisher.confirmed < count:
        now = time.perf_counter()
        if now > deadline:
            raise LoadFailed(f"{publisher.confirmed} of {count} paced messages were confirmed in {now - began:.0f} s")
        due_in = began + publisher.published / pace.rate - now
        may_send = publisher.published < count and not (pace.awaited and publisher.confirmed < publisher.published)
        if may_send and due_in <= 0:
            clock.sent_ns.append(time.perf_counter_ns())
            publisher.send_messages(1)
            due_in = 0.0
        for fileno in select.select(list(by_file), [], [], max(0.0, due_in) if may_send else 1.0)[0]:
            by_file[fileno].readable()
    took = time.perf_counter() - began
    consumer.finish()
    while not consumer.synced:
        if not select.select([consumer.socket], [], [], DRAIN_SECONDS)[0]:
            raise LoadFailed(f"no answer within {DRAIN_SECONDS:.0f} s of the last ack")
        consumer.readable()
    return took


def bodies_of(size_bytes: int) -> list[bytes]:
    """Different random bodies of this size, so that nothing profits from sameness. Serials go over their heads."""
    chance = random.Random(1)
    return [bytes(SERIAL_BYTES) + chance.randbytes(size_bytes - SERIAL_BYTES) for _ in range(VARIANTS)]


def delete_empty(control: AmqpConnection, queue: str) -> None:
    """Messages whose acks were not taken wait again once their consumer is gone, of which a server may hear late."""
    deadline = time.monotonic() + 10
    while (counts := control.counts(queue))[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    if counts != (0, 0):
        raise LoadFailed(f"{queue} has {counts[0]} messages and {counts[1]} consumers at the end")
    control.delete(queue)


def _is_drained(publishers: Sequence[Publisher], consumers: Sequence[Consumer]) -> bool:
    return all(
        publisher.finished and consumer.received >= publisher.published
        for publisher, consumer in zip(publishers, consumers, strict=True)
    )


def check_deliveries(flow: Flow, publisher: Publisher, consumer: Consumer) -> None:
    """Every confirmed message was delivered once and acked; in order, or with priorities the higher waited less."""
    published, serials = publisher.published, consumer.deliveries.serials()
    if not publisher.confirmed == len(serials) == consumer.acked == published:
        raise LoadFailed(
            f"{flow.name}: published {published}, confirmed {publisher.confirmed}, delivered {len(serials)}, "
            f"acked {consumer.acked}"
        )
    if not flow.priorities:
        if serials != array("I", range(published)):
            raise LoadFailed(f"{flow.name}: {published} messages did not come in the order of publishing")
        return
    if len(set(serials)) != published or max(serials) != published - 1:
        raise LoadFailed(f"{flow.name}: {published} messages published, {len(set(serials))} different ones delivered")
    waited = waits(serials, len(flow.priorities))
    # The last of the priorities in turn is the highest.
    if waited[-1] > waited[0]:
        raise LoadFailed(f"{flow.name}: messages of low priority waited less than those of high priority: {waited}")


def waits(serials: Sequence[int], cycle: int) -> list[float]:
    """How many places later than published the messages of each priority were delivered, in the mean."""
    later, count = [0] * cycle, [0] * cycle
    for place, serial in enumerate(serials):
        later[serial % cycle] += place - serial
        count[serial % cycle] += 1
    return [total / max(1, number) for total, number in zip(later, count, strict=True)]


def goals(cases: Sequence[Flow | Pace]) -> list[Goal]:
    found = []
    for case in cases:
        if isinstance(case, Pace):
            names = [f"{case.name}, {share}" for share in ("p50", "p99")]
            found += [Goal(name, LANEWAY, below=1, beside=RABBITMQ) for name in names]
        else:
            found.append(Goal(case.name, LANEWAY, at_least=6, beside=RABBITMQ))
    found.append(Goal(TEN_PRIORITIES.name, LANEWAY, at_least=0.85, beside=LANEWAY, beside_case=ONE.name))
    return found


def chosen(only: str) -> list[Flow | Pace]:
    return [case for case in (*FLOWS, *PACES) if only in case.name]


def measure(options: argparse.Namespace, folder: Path) -> Report:
    """All cases whose name contains `only`, of the systems asked for."""
    cores = assign_cores()
    report = Report("amqp", {**describe(folder, cores), "pinned": False})
    cases, systems = chosen(options.only), options.systems.split(",")
    report.goals = goals(cases)
    bench = AmqpBench(options, cores, folder, report)
    unknown = set(systems) - set(bench.servers)
    if unknown:
        raise LoadFailed(f"unknown systems: {', '.join(sorted(unknown))}; there are {', '.join(bench.servers)}")
    bench.run(cases, systems)
    return report
