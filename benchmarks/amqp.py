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
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks import amqp_frames as amqp
from benchmarks.amqp_load import (
    ACK_EVERY,
    LEAST_WRITE,
    PREFETCH,
    WINDOW,
    AmqpConnection,
    Consumer,
    Publisher,
    Settings,
)
from benchmarks.amqp_messages import (
    POOL_MESSAGES,
    Kind,
    Pool,
    bodies,
    celery_like,
    distinct,
    look_alike,
    with_message_id,
)
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Cores, Watch, assign_cores, describe
from benchmarks.report import Goal, Report, percentile
from benchmarks.servers import AGAINST, LanewayServer, RabbitServer, Server, SinkServer
from benchmarks.turns import Turns, is_chosen, takes_part

KILOBYTE = 1024
SMALL_BYTES = 100
DRAIN_SECONDS = 120.0
ONE_BY_ONE_RATE = 200  # messages a second where each confirm is awaited
STEADY_RATE = 2_000  # messages a second where none is
TTL = {"x-message-ttl": 3_600_000}  # no turn lasts so long
MAX_LENGTH = {"x-max-length": 1_000_000}  # no queue here gets so deep
REGIONS = ("north", "south", "east", "west", "centre", "coast", "islands", "alps", "abroad", "online")
TOPIC_KEYS = [f"orders.{REGIONS[number % 10]}.{number // 10}" for number in range(5_000)]

LANEWAY, RABBITMQ, SINK = "Laneway", "RabbitMQ", "sink"


@dataclass(frozen=True)
class Flow:
    """Publishing and consuming as fast as it goes. Each publisher has a connection, and so has the consumer of each
    queue. One publisher serves all queues in turn, several have one queue each, or share it."""

    name: str
    kind: Kind = distinct
    body_bytes: int = KILOBYTE
    queues: int = 1
    publishers: int = 1
    window: int = WINDOW
    least_write: int = LEAST_WRITE
    priorities: tuple[int, ...] = ()
    settings: Settings = field(default_factory=dict)
    exchange: str = ""  # its type; the default exchange if empty
    ack_every: int = ACK_EVERY
    one_consumer: bool = False  # one connection consumes all queues
    has_ceiling: bool = False
    stem: str = "bench"  # what the names of queues begin with

    @property
    def copies(self) -> int:
        """How many deliveries a message leads to."""
        return self.queues if self.exchange == "fanout" else 1

    @property
    def exchange_name(self) -> str:
        return f"bench-{self.exchange}" if self.exchange else ""

    @property
    def queue_names(self) -> list[str]:
        return [queue_name(number, self.stem) for number in range(self.queues)]

    def publisher_of(self, serial: int) -> int:
        return serial * self.publishers // POOL_MESSAGES

    def priority_of(self, serial: int) -> int | None:
        return self.priorities[serial % len(self.priorities)] if self.priorities else None

    def routing_key(self, serial: int) -> str:
        if self.exchange == "topic":
            return TOPIC_KEYS[serial % len(TOPIC_KEYS)]
        chosen = serial if self.publishers == 1 else self.publisher_of(serial)
        return "" if self.exchange else queue_name(chosen % self.queues, self.stem)

    def lane_of(self, serial: int) -> object:
        """What has the same comes in the order of publishing."""
        queue = 0 if self.exchange else self.routing_key(serial)
        return self.publisher_of(serial), queue, self.priority_of(serial)


@dataclass(frozen=True)
class Pace:
    """Publishing at a rate that both servers are given alike: what a message waits for its confirm, and to arrive."""

    name: str
    rate: int
    awaited: bool  # each confirm before the next publish


LOOK_ALIKES = Flow("AMQP, look-alikes, one queue", kind=look_alike)
CELERY = Flow("AMQP, celery-like, one queue", kind=celery_like, has_ceiling=True)
TEN_PRIORITIES = replace(
    CELERY,
    name="AMQP, celery-like, ten priorities",
    priorities=tuple(range(10)),
    settings={"x-max-priority": 10},
    has_ceiling=False,
)
FLOWS = (
    CELERY,
    TEN_PRIORITIES,
    replace(
        CELERY,
        name="AMQP, celery-like, 20 connections, window 50",
        publishers=20,
        window=50,
        least_write=1,
        has_ceiling=False,
    ),
    Flow("AMQP, message ids, 1 KB", kind=with_message_id),
    Flow("AMQP, message ids, 100 B", kind=with_message_id, body_bytes=SMALL_BYTES, has_ceiling=True),
    Flow("AMQP, distinct, x-message-ttl", settings=TTL),
    Flow("AMQP, distinct, x-max-length", settings=MAX_LENGTH),
    Flow("AMQP, distinct, 5000 routing keys", exchange="topic"),
    Flow("AMQP, distinct, deliveries of a fan-out to ten queues", exchange="fanout", queues=10),
    Flow("AMQP, distinct, ten queues", queues=10, publishers=10),
    Flow("AMQP, distinct, a thousand queues", queues=1_000, one_consumer=True),
    Flow("AMQP, distinct, single acks", ack_every=1),
    Flow("AMQP, distinct, quorum queue", settings={"x-queue-type": "quorum"}),
    LOOK_ALIKES,
    replace(LOOK_ALIKES, name="AMQP, look-alikes, x-message-ttl", settings=TTL),
    replace(LOOK_ALIKES, name="AMQP, look-alikes, x-max-length", settings=MAX_LENGTH),
)
PACES = (
    Pace(f"AMQP, one publisher awaiting each confirm, {ONE_BY_ONE_RATE}/s", ONE_BY_ONE_RATE, awaited=True),
    Pace(f"AMQP, confirm at {STEADY_RATE}/s", STEADY_RATE, awaited=False),
)
CASES = tuple(case.name for case in (*FLOWS, *PACES))


class AmqpBench:
    def __init__(self, options: argparse.Namespace, cores: Cores, folder: Path, report: Report) -> None:
        self.options = options
        self.report = report
        everything = cores.everything  # RabbitMQ uses all cores by its nature, so here nobody is pinned
        self.servers: dict[str, Server] = {LANEWAY: LanewayServer(folder / "laneway", everything, amqp=True)}
        if options.against is not None:
            self.servers[AGAINST] = LanewayServer(folder / "against", everything, amqp=True, checkout=options.against)
        if takes_part(RABBITMQ, options):
            self.servers[RABBITMQ] = RabbitServer(folder / "rabbitmq", everything)
        if takes_part(SINK, options):
            self.servers[SINK] = SinkServer(folder / "sink", everything)
        self._pools: dict[object, Pool] = {}

    def address(self, system: str) -> tuple[str, int]:
        server = self.servers[system]
        if isinstance(server, LanewayServer):
            assert server.amqp_address is not None
            return server.amqp_address
        return server.address

    def pool(self, flow: Flow) -> Pool:
        """The messages of a flow: made once, and shared by flows that differ in other things."""
        routing = flow.exchange, flow.queues, flow.publishers if flow.queues > 1 else 1
        key = flow.kind, flow.body_bytes, flow.priorities, routing
        if key not in self._pools:
            self._pools[key] = pool_of(flow)
        return self._pools[key]

    def note(self, case: str, system: str, unit: str, value: float, **notes: float) -> None:
        self.report.add(case, system, unit, value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        shown = f"{value:12,.0f}" if value >= 100 else f"{value:12.3g}"
        print(f"  {case:52} {system:10} {shown} {unit:6} {said}", file=sys.stderr, flush=True)

    def run(self, cases: Sequence[Flow | Pace]) -> None:
        """Rounds are outermost, so that a noisy minute hits all cases alike; within a case the systems alternate."""
        with ExitStack() as running:
            for server in self.servers.values():
                running.enter_context(server)
            for system in self.servers:
                self.turn(None, system)
            turns = [
                [partial(self.turn, case, system) for system in self.servers if system != SINK or _has_ceiling(case)]
                for case in cases
            ]
            Turns(self.report, self.options).rounds(*turns)

    def turn(self, case: Flow | Pace | None, system: str) -> None:
        """One case on one system, or what comes before all cases."""
        try:
            if case is None:
                if system != SINK:
                    self.check_order(system)
                self.flow(CELERY, system, self.options.seconds / 2, said=False)
            elif isinstance(case, Pace):
                self.pace(case, system)
            else:
                self.flow(case, system, self.options.seconds)
        except (LoadFailed, OSError) as failure:
            name = "warming up" if case is None else case.name
            raise LoadFailed(f"{name}, {system}: {failure}{self.servers[system].last_words()}") from failure

    # --- throughput

    def flow(self, flow: Flow, system: str, seconds: float, *, said: bool = True) -> None:
        address, pool = self.address(system), self.pool(flow)
        control = AmqpConnection(address)
        declare(control, flow)
        groups = [flow.queue_names] if flow.one_consumer else [[queue] for queue in flow.queue_names]
        consumers = [Consumer(address, queues, ack_every=flow.ack_every) for queues in groups]
        share = pool.count // flow.publishers
        publishers = [
            Publisher(address, pool, first=at, last=at + share, window=flow.window, least_write=flow.least_write)
            for at in range(0, share * flow.publishers, share)
        ]
        watch, began = Watch(self.servers[system].pid), time.perf_counter()
        # Consumers come first in the list, so that they are there before the first message.
        with Load([*consumers, *publishers]) as load:
            backlog = drive(load, flow, publishers, consumers, seconds)
            took = time.perf_counter() - began
            count = _expected(flow, publishers)
            notes = watch.notes(count)
            for connection in (*consumers, *publishers):
                connection.close()
        check_deliveries(flow, publishers, consumers)
        remove(control, flow)
        control.close()
        if said:
            self.note(flow.name, system, "msg/s", count / took, **notes, backlog=backlog)

    def check_order(self, system: str) -> None:
        """Strict priorities, and the order of publishing within each: 1,000 messages wait before a consumer comes."""
        address, flow = self.address(system), TEN_PRIORITIES
        control = AmqpConnection(address)
        declare(control, flow)
        publisher = Publisher(address, self.pool(flow), limit=PREFETCH)
        consumer = Consumer(address, flow.queue_names)
        with Load([publisher]) as load:
            load.run(seconds=DRAIN_SECONDS, until=lambda: publisher.finished)
            with Load([consumer]) as receiving:
                receiving.run(seconds=DRAIN_SECONDS, until=lambda: consumer.received == PREFETCH)
                consumer.finish()
                receiving.run(seconds=DRAIN_SECONDS, until=lambda: consumer.synced)
        expected = sorted(range(PREFETCH), key=lambda serial: (-(flow.priority_of(serial) or 0), serial))
        if consumer.deliveries.serials() != expected:
            raise LoadFailed(f"{system} does not deliver in order of priority")
        remove(control, flow)
        control.close()

    # --- latency

    def pace(self, pace: Pace, system: str) -> None:
        address = self.address(system)
        control = AmqpConnection(address)
        declare(control, CELERY)
        clock = Clock()
        consumer = Consumer(address, CELERY.queue_names, ack_every=1, on_delivery=clock.arrived)
        publisher = Publisher(address, self.pool(CELERY), least_write=sys.maxsize, on_confirm=clock.confirmed)
        watch = Watch(self.servers[system].pid)
        took = drive_paced(publisher, consumer, pace, self.options.pace_seconds, clock)
        notes = watch.notes(publisher.published)
        consumer.close()
        publisher.close()
        remove(control, CELERY)
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


def drive(
    load: Load, flow: Flow, publishers: Sequence[Publisher], consumers: Sequence[Consumer], seconds: float
) -> int:
    """Publish for so long, until all of it is acked; how many waited when the publishers stopped."""
    load.run(seconds=seconds)
    backlog = _expected(flow, publishers) - _received(consumers)
    for publisher in publishers:
        publisher.stopped = True
    load.run(seconds=DRAIN_SECONDS, until=lambda: _is_drained(flow, publishers, consumers))
    for consumer in consumers:
        consumer.finish()
    load.run(seconds=DRAIN_SECONDS, until=lambda: all(consumer.synced for consumer in consumers))
    return backlog


def queue_name(number: int, stem: str = "bench") -> str:
    return f"{stem}-{number:04d}"


def pool_of(flow: Flow) -> Pool:
    chance = random.Random(1)
    content = enumerate(bodies(flow.body_bytes, one_size=flow.kind is look_alike))
    return Pool(
        amqp.published(
            flow.routing_key(serial), body, flow.kind(chance, flow.priority_of(serial)), exchange=flow.exchange_name
        )
        for serial, body in content
    )


def declare(control: AmqpConnection, flow: Flow) -> None:
    for queue in flow.queue_names:
        control.declare(queue, flow.settings)
    if flow.exchange:
        control.declare_exchange(flow.exchange_name, flow.exchange)
        for queue in flow.queue_names:
            for pattern in [f"orders.{region}.#" for region in REGIONS] if flow.exchange == "topic" else [""]:
                control.bind(queue, flow.exchange_name, pattern)


def remove(control: AmqpConnection, flow: Flow) -> None:
    if flow.exchange:
        control.delete_exchange(flow.exchange_name)
    for queue in flow.queue_names:
        delete_empty(control, queue)


def delete_empty(control: AmqpConnection, queue: str) -> None:
    """Messages whose acks were not taken wait again once their consumer is gone, of which a server may hear late."""
    deadline = time.monotonic() + 10
    while (counts := control.counts(queue))[1] and time.monotonic() < deadline:
        time.sleep(0.01)
    if counts != (0, 0):
        raise LoadFailed(f"{queue} has {counts[0]} messages and {counts[1]} consumers at the end")
    control.delete(queue)


def _has_ceiling(case: Flow | Pace) -> bool:
    return isinstance(case, Flow) and case.has_ceiling


def _expected(flow: Flow, publishers: Sequence[Publisher]) -> int:
    return sum(one.published for one in publishers) * flow.copies


def _received(consumers: Sequence[Consumer]) -> int:
    return sum(one.received for one in consumers)


def _is_drained(flow: Flow, publishers: Sequence[Publisher], consumers: Sequence[Consumer]) -> bool:
    return all(one.finished for one in publishers) and _received(consumers) >= _expected(flow, publishers)


def check_deliveries(flow: Flow, publishers: Sequence[Publisher], consumers: Sequence[Consumer]) -> None:
    """Every confirmed message was delivered once to each of its queues, whole, and acked; in the order of its lane, and
    with priorities the higher waited less."""
    expected, received = _expected(flow, publishers), _received(consumers)
    confirmed, acked = sum(one.confirmed for one in publishers) * flow.copies, sum(one.acked for one in consumers)
    if not expected == confirmed == received == acked:
        raise LoadFailed(
            f"{flow.name}: {expected} deliveries expected, {confirmed} confirmed, {received} received, {acked} acked"
        )
    published = list(chain.from_iterable(publisher.serials() for publisher in publishers))
    delivered = [consumer.deliveries.serials() for consumer in consumers]
    lane_of = [flow.lane_of(serial) for serial in range(POOL_MESSAGES)]
    lanes = by_lane(lane_of, published)
    for received_by in delivered if flow.copies > 1 else [list(chain.from_iterable(delivered))]:
        if by_lane(lane_of, received_by) != lanes:
            raise LoadFailed(f"{flow.name}: messages were lost or doubled, or not in the order of publishing")
    content_bytes = publishers[0].pool.content_bytes
    if sum(content_bytes[serial] for serial in published) * flow.copies != sum(
        one.deliveries.content_bytes for one in consumers
    ):
        raise LoadFailed(f"{flow.name}: what was delivered is not as long as what was published")
    if flow.priorities:
        waited = waits(delivered[0], len(flow.priorities))
        if waited[-1] > waited[0]:  # the last of the priorities in turn is the highest
            raise LoadFailed(f"{flow.name}: messages of low priority waited less than those of high: {waited}")


def by_lane(lane_of: Sequence[object], serials: Iterable[int]) -> dict[object, list[int]]:
    lanes = defaultdict(list)
    for serial in serials:
        lanes[lane_of[serial]].append(serial)
    return lanes


def waits(serials: Sequence[int], cycle: int) -> list[float]:
    """How many places later than published the messages of each priority were delivered, in the mean."""
    later, count, rounds = [0] * cycle, [0] * cycle, Counter[int]()
    for place, serial in enumerate(serials):
        later[serial % cycle] += place - serial - rounds[serial] * POOL_MESSAGES
        count[serial % cycle] += 1
        rounds[serial] += 1
    return [total / max(1, number) for total, number in zip(later, count, strict=True)]


def goals(cases: Sequence[Flow | Pace]) -> list[Goal]:
    found = []
    for case in cases:
        if isinstance(case, Pace):
            names = [f"{case.name}, {share}" for share in ("p50", "p99")]
            found += [Goal(name, LANEWAY, below=1, beside=RABBITMQ) for name in names]
            found += [Goal(name, LANEWAY, beside=AGAINST) for name in names]
            continue
        is_look_alike = case.kind is look_alike
        found.append(Goal(case.name, LANEWAY, at_least=None if is_look_alike else 5, beside=RABBITMQ))
        found.append(Goal(case.name, LANEWAY, at_least=0.6 if is_look_alike else 0.9, beside=AGAINST))
    found.append(Goal(CELERY.name, LANEWAY, at_least=0.5, beside=LANEWAY, beside_case=LOOK_ALIKES.name))
    found.append(Goal(TEN_PRIORITIES.name, LANEWAY, at_least=0.85, beside=LANEWAY, beside_case=CELERY.name))
    return found


def measure(options: argparse.Namespace, folder: Path) -> Report:
    """All chosen cases, of the systems that take part."""
    cores = assign_cores()
    report = Report("amqp", {**describe(folder, cores, options.against), "pinned": False}, is_wide=True)
    cases = [case for case in (*FLOWS, *PACES) if is_chosen(case.name, options)]
    report.goals = goals(cases)
    AmqpBench(options, cores, folder, report).run(cases)
    return report
