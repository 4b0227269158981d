"""The figures in docs/performance.md rest on the load generator and the report: they are tested like anything else."""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import pika
import pytest

from benchmarks import (
    amqp,
    amqp_frames,
    amqp_messages,
    client_load,
    counts,
    forwarded,
    journals,
    laneway_load,
    processes,
)
from benchmarks.amqp_load import AmqpConnection, Confirms, Consumer, Deliveries, Publisher, single_acks
from benchmarks.http_load import HttpConnection, Script, ask, request
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import assign_cores, children, connected_process
from benchmarks.ready_batches import ReadyReader, write_ready
from benchmarks.report import Goal, Report, percentile
from benchmarks.servers import LanewayServer, SinkServer
from benchmarks.turns import Turns, is_chosen, takes_part
from laneway.journal.history import follow, inspect

CREATED = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n"


@contextmanager
def answering(pieces: Callable[[bytes], list[bytes] | None]) -> Iterator[tuple[str, int]]:
    """A server of one connection that answers each request (sent as one small piece) with these pieces, sent apart;
    None ends the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while (asked := connection.recv(65536)) and (answer := pieces(asked)) is not None:
                for piece in answer:
                    connection.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.close()
        thread.join(10)


def three_times(heard: list[bytes]) -> Script:
    for _ in range(3):
        heard.append((yield request("POST", "/queues/q/messages", {"payload": 1})))


def drive(client: HttpConnection) -> None:
    with Load([client]) as load:
        load.run(seconds=10, until=lambda: client.finished)


@pytest.mark.parametrize(
    "pieces",
    [
        [CREATED + b'{"a": "bc"}'],
        [CREATED, b'{"a": "bc"}'],
        [CREATED[:30], CREATED[30:-2], CREATED[-2:] + b'{"a"', b': "bc"}'],
        [CREATED.replace(b"Content-Length", b"content-length") + b'{"a": "bc"}'],
    ],
)
def test_replies_are_framed_however_they_are_cut(pieces: list[bytes]) -> None:
    heard: list[bytes] = []
    latencies_ns: array[int] = array("q")
    with answering(lambda _: pieces) as address:
        client = HttpConnection(address, three_times(heard), latencies_ns=latencies_ns)
        drive(client)
    assert heard == [b"".join(pieces)] * 3
    assert client.reply_count == 3
    assert len(latencies_ns) == 3 and min(latencies_ns) > 0


def test_a_reply_without_content_is_whole() -> None:
    heard: list[bytes] = []
    with answering(lambda _: [b"HTTP/1.1 204 No Content\r\n\r\n"]) as address:
        drive(HttpConnection(address, three_times(heard)))
    assert len(heard) == 3


@pytest.mark.parametrize("status", [b"207 Multi-Status", b"400 Bad Request", b"503 Service Unavailable"])
def test_anything_but_success_ends_the_measurement(status: bytes) -> None:
    reply = b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\n\r\n{}"
    with answering(lambda _: [reply]) as address, pytest.raises(LoadFailed, match=status.decode()):
        drive(HttpConnection(address, three_times([])))


def test_a_closed_connection_ends_the_measurement() -> None:
    with answering(lambda _: None) as address, pytest.raises(LoadFailed, match="closed"):
        drive(HttpConnection(address, three_times([])))


def test_work_that_is_not_done_in_time_is_a_failure() -> None:
    with answering(lambda _: []) as address, pytest.raises(LoadFailed, match="not done within"):
        client = HttpConnection(address, three_times([]))
        with Load([client]) as load:
            load.run(seconds=0.05, until=lambda: client.finished)


def test_receipt_handles_are_found_among_bodies() -> None:
    reply = b'{"messages":[{"payload":"x","receipt_handle":"1.a"},{"payload":"y","receipt_handle":"2.b","n":1}]}'
    assert laneway_load.receipt_handles(reply) == [b"1.a", b"2.b"]
    assert laneway_load.receipt_handles(b'{"messages":[]}') == []


def test_payloads_have_the_promised_size_and_differ() -> None:
    texts = laneway_load.payload_texts(1024, 8)
    assert {len(text.encode()) for text in texts} == {1024}
    assert len(set(texts)) == 8


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    report = Report("test", {})
    for ours, theirs in ((100, 50), (400, 100), (90, 30)):
        report.add("case", "Laneway", "msg/s", ours)
        report.add("case", "other", "msg/s", theirs)
    report.goals = [
        Goal("case", "Laneway", at_least=3, beside="other"),
        Goal("case", "Laneway", at_least=101),
        Goal("not measured", "Laneway", at_least=1),
        Goal("case", "Laneway", beside="other"),
        Goal("case", "Laneway", below=101),
    ]
    assert [(value, reached) for _, value, reached in report.verdicts()][:2] == [(3, True), (100, False)]
    assert report.markdown().splitlines()[-4:] == [
        "| case: Laneway ÷ other, at least 3× | 3.00× (2.00 – 4.00) | reached |",
        "| case: Laneway, at least 101 | 100 | **missed** |",
        "| case: Laneway ÷ other | 3.00× (2.00 – 4.00) | for comparison |",
        "| case: Laneway, below 101 | 100 | reached |",
    ]


def test_a_wide_table_has_a_column_for_each_system_and_each_ratio() -> None:
    report = Report("test", {}, is_wide=True)
    for case, rates in (("one", (600, 500, 100)), ("two", (60, 80, 100))):
        for system, rate in zip(("Laneway", "against", "RabbitMQ"), rates, strict=True):
            report.add(case, system, "msg/s", rate)
    report.add("only ours", "Laneway", "ms", 2)
    report.goals = [
        Goal("one", "Laneway", at_least=5, beside="RabbitMQ"),
        Goal("two", "Laneway", beside="RabbitMQ"),
        Goal("two", "Laneway", at_least=0.9, beside="against"),
        Goal("two", "Laneway", at_least=0.5, beside="Laneway", beside_case="one"),
    ]
    assert report.markdown().splitlines()[2:] == [
        "| case | Laneway | against | RabbitMQ | ÷ against | aim |  | ÷ RabbitMQ | aim |  |",
        "|---|---:|---:|---:|---:|---|---|---:|---|---|",
        "| one | 600 msg/s | 500 msg/s | 100 msg/s |  |  |  | 6.00× (6.00 – 6.00) | at least 5× | reached |",
        "| two | 60 msg/s | 80 msg/s | 100 msg/s | 0.75× (0.75 – 0.75) | at least 0.9× | **missed** "
        "| 0.60× (0.60 – 0.60) |  | for comparison |",
        "| only ours | 2 ms |  |  |  |  |  |  |  |  |",
        "",
        "| to reach | figure | |",
        "|---|---:|---|",
        "| two: Laneway ÷ one, at least 0.5× | 0.10× (0.10 – 0.10) | **missed** |",
    ]


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        ("", ["one, small", "one, large", "two"]),
        ("one", ["one, small", "one, large"]),
        ("one, large", ["one, large"]),
        ("small,two", ["one, small", "two"]),
        ("none", []),
    ],
)
def test_cases_are_chosen_by_parts_of_their_names(only: str, chosen: list[str]) -> None:
    options = argparse.Namespace(only=only)
    assert [case for case in ("one, small", "one, large", "two") if is_chosen(case, options)] == chosen


def test_peers_are_left_out() -> None:
    assert takes_part("RabbitMQ", argparse.Namespace(peers="all"))
    assert takes_part("RabbitMQ", argparse.Namespace(peers="moto,rabbitmq"))
    assert not takes_part("RabbitMQ", argparse.Namespace(peers="none"))


def test_another_version_is_served_from_its_checkout(tmp_path: Path) -> None:
    cores = assign_cores().everything
    ours, other = LanewayServer(tmp_path / "ours", cores), LanewayServer(tmp_path / "other", cores, checkout=tmp_path)
    assert (ours.name, other.name) == ("Laneway", "against")
    assert other.environment()["PYTHONPATH"] == str(tmp_path / "src")


def test_load_generators_connect_to_the_processes_that_a_setting_names(tmp_path: Path) -> None:
    server = LanewayServer(tmp_path / "two", assign_cores().everything, amqp=True, processes=2, partitions=2)
    name = forwarded.name_at(1, 2, "small", end="-0000")
    flow = amqp.Flow("small", body_bytes=100, stem=name.removesuffix("-0000"))
    chance = random.Random(1)
    pool = amqp_messages.Pool(
        amqp_frames.published(name, body, flow.kind(chance, None))
        for _, body in zip(range(1_000), amqp_messages.bodies(100, one_size=False), strict=False)
    )
    with server, processes.generating(server, flow, pool, processes.Places(0, 1, 1), seconds=0.2) as generator:
        generator.hear()
        connected = [one["connection_count"] for one in loads(server)]
        generator.say("go")
        done = generator.hear()
        generator.say("check")
        generator.hear()
        pids = children(server.pid)
        found = processes.connected_to(server, 1, lambda: AmqpConnection(server.amqp_address or ("", 0)))
        assert connected_process(found.socket.getsockname()[1], pids) == pids[1]
        found.close()
    assert done.count > 0 and done.cpu_seconds > 0 and min(connected) >= 1


def loads(server: LanewayServer) -> list[dict[str, Any]]:
    answer: Any = ask(server.address, "GET", "/processes")
    return list(answer["processes"])


def test_more_cores_give_less_the_more_forwarding_costs() -> None:
    assert processes.speed_up(4, one=5, own=5, forwarded=5) == 4
    assert processes.speed_up(2, one=5, own=5, forwarded=7) == pytest.approx(2 / 1.2)
    assert processes.speed_up(4, one=5, own=5, forwarded=7) == pytest.approx(4 / 1.3)
    assert processes.speed_up(1, one=5, own=5, forwarded=7) == 1


def test_the_client_s_publish_is_recorded_with_its_key_left_out() -> None:
    payload = laneway_load.payload_texts(100, 1)[0]
    before, after = client_load.keyed_publish(("127.0.0.1", 4711), "orders", payload)
    script = client_load.keyed_publisher(before, after)
    first, second = next(script), next(script)
    assert before.startswith(b"POST /queues/orders/messages HTTP/1.1\r\nHost: 127.0.0.1:4711\r\n")
    assert before.lower().endswith(b"\r\nidempotency-key: ") and after.endswith(payload.encode()[1:] + b"}")
    assert len(first) == len(second) and first != second


def test_percentiles_name_values_that_occurred() -> None:
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile(list(range(1, 101)), 0.5) == 50
    assert percentile([7], 0.99) == 7


# --- AMQP: what the load generator makes of a server's bytes


def body_of(serial: int, length: int = 100) -> bytes:
    return f'[["{serial:08d}","'.encode().ljust(length, b"x")


def deliveries_of(serials: list[int], *, first_tag: int = 1, length: int = 100, priority: int | None = None) -> bytes:
    """Deliveries of messages of different lengths."""
    properties = amqp_frames.properties(priority=priority)
    messages = [amqp_frames.published("queue", body_of(one, length + one % 7), properties) for one in serials]
    return b"".join(
        amqp_frames.delivered(first_tag + at, "bench", "queue", message) for at, message in enumerate(messages)
    )


def fed(reader: Deliveries | Confirms, data: bytes, piece_bytes: int) -> int:
    """Give a reader these bytes in pieces, as a connection would, and return how many are left over."""
    buffer, filled = bytearray(len(data)), 0
    for at in range(0, len(data), piece_bytes):
        piece = data[at : at + piece_bytes]
        buffer[filled : filled + len(piece)] = piece
        filled += len(piece)
        used = reader.take(buffer, filled)
        buffer[: filled - used] = buffer[used:filled]
        filled -= used
    return filled


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 193, 1000, 100_000])
@pytest.mark.parametrize("priority", [None, 7])
def test_deliveries_are_counted_however_they_are_cut(piece_bytes: int, priority: int | None) -> None:
    serials = [*range(50), 300, 70_000, 17_000_000]
    deliveries = Deliveries()
    assert fed(deliveries, deliveries_of(serials, priority=priority), piece_bytes) == 0
    assert deliveries.count == len(serials)
    assert deliveries.serials() == serials


def redelivered(data: bytes) -> bytes:
    at = data.rindex(amqp_frames.short_text("bench")) + 6 + 8
    return data[:at] + b"\x01" + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (deliveries_of([0, 1]) + deliveries_of([2], first_tag=4), "delivery 3 has the tag 4"),
        (deliveries_of([0, 1, 2]) + deliveries_of([3], first_tag=3), "delivery 4 has the tag 3"),
        (redelivered(deliveries_of([0, 1, 2])), "redelivery"),
        (redelivered(deliveries_of([0])), "redelivery"),
        (deliveries_of([0, 1])[:-1] + b"\0", "out of step"),
        (deliveries_of([0]) + amqp_frames.method(amqp_frames.CHANNEL_CLOSE, b"\x01\x96\4oops\0\0\0\0"), "oops"),
        (amqp_frames.method(amqp_frames.CHANNEL_CLOSE, b"\x01\x96\4oops\0\0\0\0"), "oops"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [10, 100_000])
def test_a_wrong_delivery_ends_the_measurement(data: bytes, complaint: str, piece_bytes: int) -> None:
    with pytest.raises(LoadFailed, match=complaint):
        fed(Deliveries(), data, piece_bytes)


@pytest.mark.parametrize("piece_bytes", [1, 20, 21, 50, 10_000])
def test_confirms_are_counted_in_any_order(piece_bytes: int) -> None:
    confirms = Confirms()
    order = [(1, False), (3, False), (4, False), (2, False), (9, False), (7, True), (8, False), (20, True)]
    data = b"".join(amqp_frames.ack(tag, multiple=multiple) for tag, multiple in order)
    assert fed(confirms, data[: 21 * 6], piece_bytes) == 0
    assert confirms.count == 8  # 1 to 7, and 9
    fed(confirms, data[21 * 6 :], piece_bytes)
    assert confirms.count == 20


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (amqp_frames.ack(1, multiple=False) * 2, "confirmed twice"),
        (amqp_frames.ack(2, multiple=False) * 2, "confirmed twice"),
        (amqp_frames.ack(5, multiple=True) + amqp_frames.ack(3, multiple=True), "confirmed again"),
        (amqp_frames.ack(5, multiple=True) + amqp_frames.ack(5, multiple=False), "confirmed twice"),
        (amqp_frames.method((60, 120), (1).to_bytes(8, "big") + b"\0"), "expected a confirm"),
        (amqp_frames.method(amqp_frames.CHANNEL_CLOSE, b"\x01\x96\4oops\0\0\0\0"), "oops"),
    ],
)
def test_a_wrong_confirm_ends_the_measurement(data: bytes, complaint: str) -> None:
    with pytest.raises(LoadFailed, match=complaint):
        fed(Confirms(), data, len(data))


def test_single_acks_are_written_as_one_would_write_each() -> None:
    assert single_acks(250, 70_000) == b"".join(amqp_frames.ack(tag, multiple=False) for tag in range(250, 70_250))
    assert single_acks(1, 0) == b""


@pytest.fixture(scope="module")
def sink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkServer]:
    with SinkServer(tmp_path_factory.mktemp("sink") / "data", assign_cores().everything) as server:
        yield server


def small_pool(queues: int = 1, priorities: tuple[int, ...] = (), count: int = 1_000) -> amqp_messages.Pool:
    flow = amqp.Flow("small", body_bytes=100, queues=queues, priorities=priorities)
    chance = random.Random(1)
    return amqp_messages.Pool(
        amqp_frames.published(flow.routing_key(serial), body, flow.kind(chance, flow.priority_of(serial)))
        for serial, body in zip(range(count), amqp_messages.bodies(100, one_size=False), strict=False)
    )


@pytest.mark.parametrize("ack_every", [1, 100])
@pytest.mark.parametrize("queues", [1, 3])
def test_the_generator_publishes_and_acks_every_message_once(sink: SinkServer, ack_every: int, queues: int) -> None:
    count = 12_345
    pool = small_pool(queues)
    consumer = Consumer(sink.address, [amqp.queue_name(number) for number in range(queues)], ack_every=ack_every)
    publisher = Publisher(sink.address, pool, limit=count)
    with Load([consumer, publisher]) as load:
        load.run(seconds=20, until=lambda: publisher.finished and consumer.received == count)
        consumer.finish()
        load.run(seconds=20, until=lambda: consumer.synced)
    assert publisher.published == publisher.confirmed == consumer.acked == count
    serials = consumer.deliveries.serials()
    assert publisher.serials() == [number % 1_000 for number in range(count)]
    assert sorted(serials) == sorted(publisher.serials())
    assert queues > 1 or serials == publisher.serials()
    assert consumer.deliveries.content_bytes == sum(pool.content_bytes[serial] for serial in serials)


def test_a_publisher_keeps_to_its_window_and_its_part_of_the_pool() -> None:
    heard, unconfirmed = bytearray(), []
    talk = [amqp_frames.method(which, arguments, channel) for which, arguments, channel in SERVER_SIDE]
    pool = small_pool(priorities=(1, 2, 3), count=20)
    part = [bytes(pool.data[pool.starts[at] : pool.starts[at + 1]]) for at in range(5, 12)]
    expected = [part[number % 7] for number in range(31)]
    ends = list(accumulate(map(len, expected)))
    confirmed = 0

    def answer(asked: bytes) -> list[bytes] | None:
        nonlocal confirmed
        if talk:
            return [talk.pop(0)]
        heard.extend(asked)
        whole = sum(end <= len(heard) for end in ends)
        unconfirmed.append(whole - confirmed)
        confirmed = whole
        return [amqp_frames.ack(whole, multiple=True)]

    with answering(answer) as address:
        publisher = Publisher(address, pool, first=5, last=12, window=10, least_write=4, limit=31)
        with Load([publisher]) as load:
            load.run(seconds=10, until=lambda: publisher.finished)
    assert bytes(heard) == b"".join(expected)
    assert max(unconfirmed) <= 10


@pytest.mark.parametrize("kind", [amqp_messages.with_message_id, amqp_messages.distinct, amqp_messages.celery_like])
def test_messages_differ_in_content_and_length(kind: amqp_messages.Kind) -> None:
    chance = random.Random(1)
    properties = [kind(chance, None) for _ in range(1_000)]
    bodies = list(islice(amqp_messages.bodies(1024, one_size=False), 1_000))
    assert len(set(properties)) == len(set(bodies)) == 1_000
    assert len({len(body) for body in bodies}) > 100
    assert abs(sum(map(len, bodies)) / 1_000 - 1024) < 10


def test_look_alikes_differ_in_their_bodies_alone() -> None:
    chance = random.Random(1)
    assert len({amqp_messages.look_alike(chance, 3) for _ in range(10)}) == 1
    bodies = list(islice(amqp_messages.bodies(1024, one_size=True), 1_000))
    assert len(set(bodies)) == 1_000 and {len(body) for body in bodies} == {1024}


def test_a_client_library_understands_the_properties() -> None:
    properties = pika.BasicProperties()
    properties.decode(amqp_messages.celery_like(random.Random(1), 7))
    assert (properties.content_type, properties.content_encoding) == ("application/json", "utf-8")
    assert (properties.delivery_mode, properties.priority) == (2, 7)
    headers = properties.headers
    assert len(headers) == 15 and headers["id"] == properties.correlation_id != properties.reply_to
    assert headers["timelimit"] == [None, None] and headers["ignore_result"] is False and headers["shadow"] is None


SERVER_SIDE = [
    (amqp_frames.START, b"\0\x09" + bytes(4) + amqp_frames.long_bytes(b"PLAIN") + amqp_frames.long_bytes(b"en_US"), 0),
    (amqp_frames.TUNE, bytes(8), 0),
    (amqp_frames.OPEN_OK, b"\0", 0),
    (amqp_frames.CHANNEL_OPEN_OK, bytes(4), 1),
    (amqp_frames.SELECT_OK, b"", 1),
]


class Counted:
    """What check_deliveries looks at of a publisher or a consumer."""

    def __init__(self, serials: list[int]) -> None:
        self.published = self.confirmed = self.received = self.acked = len(serials)
        self.pool, self.deliveries = self, self
        self.content_bytes: Any = len(serials) * 100
        self._serials = serials

    def serials(self) -> list[int]:
        return self._serials


ONE_QUEUE, THREE_LEVELS = amqp.Flow("plain"), amqp.Flow("levels", priorities=(1, 2, 3))
TWO_QUEUES, TWO_COPIES = amqp.Flow("queues", queues=2), amqp.Flow("copies", queues=2, exchange="fanout")
TWO_PUBLISHERS = amqp.Flow("publishers", publishers=2)
HALF = amqp.POOL_MESSAGES // 2
DISORDER = "lost or doubled, or not in the order"


@pytest.mark.parametrize(
    ("flow", "published", "delivered", "complaint"),
    [
        (ONE_QUEUE, [[0, 1, 2, 0, 1]], [[0, 1, 2, 0, 1]], None),
        (ONE_QUEUE, [[0, 1, 2, 3]], [[0, 2, 1, 3]], DISORDER),
        (ONE_QUEUE, [[0, 1, 2, 3]], [[0, 1, 2]], "4 deliveries expected, 4 confirmed, 3 received"),
        (ONE_QUEUE, [[0, 1, 2, 3]], [[0, 1, 2, 2]], DISORDER),
        (TWO_QUEUES, [[0, 1, 2, 3]], [[0, 2], [1, 3]], None),
        (TWO_QUEUES, [[0, 1, 2, 3]], [[2, 0], [1, 3]], DISORDER),
        (TWO_COPIES, [[0, 1, 2]], [[0, 1, 2], [0, 1, 2]], None),
        (TWO_COPIES, [[0, 1, 2]], [[0, 1, 2, 2], [0, 1]], DISORDER),
        (TWO_PUBLISHERS, [[0, 1], [HALF, HALF + 1]], [[HALF, 0, 1, HALF + 1]], None),
        (TWO_PUBLISHERS, [[0, 1], [HALF, HALF + 1]], [[0, HALF + 1, 1, HALF]], DISORDER),
        (THREE_LEVELS, [[0, 1, 2, 3, 4, 5]], [[2, 5, 1, 4, 0, 3]], None),
        (THREE_LEVELS, [[0, 1, 2, 3, 4, 5]], [[0, 1, 2, 3, 4, 5]], None),  # all at once: nobody overtook
        (THREE_LEVELS, [[0, 1, 2, 3, 4, 5]], [[2, 5, 1, 4, 0, 0]], DISORDER),
        (THREE_LEVELS, [[0, 1, 2, 3, 4, 5]], [[0, 3, 1, 4, 2, 5]], "low priority waited less"),
    ],
)
def test_losses_doubles_and_disorder_fail_a_turn(
    flow: amqp.Flow, published: list[list[int]], delivered: list[list[int]], complaint: str | None
) -> None:
    publishers: Any = [Counted(serials) for serials in published]
    consumers: Any = [Counted(serials) for serials in delivered]
    publishers[0].content_bytes = [100] * amqp.POOL_MESSAGES
    if complaint is None:
        amqp.check_deliveries(flow, publishers, consumers)
    else:
        with pytest.raises(LoadFailed, match=complaint):
            amqp.check_deliveries(flow, publishers, consumers)


def test_what_comes_back_shortened_fails_a_turn() -> None:
    publisher: Any = Counted([0, 1])
    publisher.content_bytes = [101] * amqp.POOL_MESSAGES
    with pytest.raises(LoadFailed, match="not as long as what was published"):
        amqp.check_deliveries(ONE_QUEUE, [publisher], [Counted([0, 1])])  # type: ignore[list-item]


def test_a_goal_may_compare_two_cases_of_one_system() -> None:
    report = Report("test", {})
    for one, ten in ((100, 90), (200, 160), (100, 95)):
        report.add("one", "Laneway", "msg/s", one)
        report.add("ten", "Laneway", "msg/s", ten)
    report.goals = [Goal("ten", "Laneway", at_least=0.85, beside="Laneway", beside_case="one")]
    assert "ten: Laneway ÷ one, at least 0.85× | 0.90× (0.80 – 0.95) | reached" in report.markdown()


@pytest.mark.parametrize(
    ("case", "most_calls", "most_bytecodes"),
    [
        ("HTTP single publish, 1 KB", 60, 2000),
        ("HTTP end to end, 100 × 1 KB", 4, 350),
        ("AMQP two queues", 4, 600),
        ("AMQP one queue, single acks", 4, 600),
        ("AMQP celery-like", 4, 700),
        ("SQS send, 10 × 1 KB", 20, 900),
        ("forwarded: AMQP celery-like", 5, 700),
        ("forwarded: HTTP end to end, 100 × 1 KB", 6, 400),
    ],
)
def test_a_message_costs_few_calls_in_a_batch(case: str, most_calls: float, most_bytecodes: float) -> None:
    """Not how fast it is, but that no step that was taken once a batch is taken once a message."""
    counter, messages, _ = asyncio.run(counts.measure(case, repetitions=1, warm_up=3))
    assert 0 < counter.calls / messages <= most_calls
    assert 0 < counter.bytecodes / messages <= most_bytecodes


def test_the_journal_of_the_pipeline_s_benchmark_is_a_journal(tmp_path: Path) -> None:
    rows = journals.write_journal(tmp_path, 20_000)
    problems = [one.what for one in inspect.check(str(tmp_path)).problems]
    assert problems == [] and 20_000 <= rows < 21_000
    kinds = Counter[str]()
    for event in inspect.dump(str(tmp_path)):
        kinds[event["kind"]] += len(event.get("seqs", ())) or event.get("count", 1)
    assert kinds.total() == rows and min(kinds["published"], kinds["leased"], kinds["acked"]) > 1_000
    assert {name.name for name in follow.catalogue(str(tmp_path)).values()} > {journals.ONE_QUEUE}


def test_ready_made_batches_are_the_rows_that_the_journal_s_reader_yields(tmp_path: Path) -> None:
    rows = journals.write_journal(tmp_path / "journal", 20_000)
    assert write_ready(tmp_path / "all", tmp_path / "journal", partitionBytes="1") == rows
    one = write_ready(tmp_path / "one", tmp_path / "journal", ("time", "queue"), queues=journals.ONE_QUEUE)
    assert 0 < one < rows / 10
    reader = ReadyReader(tmp_path / "one")
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in batches) == one
    assert {name for batch in batches for name in batch.column("queue").to_pylist()} == {journals.ONE_QUEUE}


@pytest.mark.parametrize(
    ("taken", "kept"),
    [
        ([0.0], 1.0),  # a calm turn is taken once
        ([0.5, 0.0], 2.0),
        ([0.5, 0.2, 0.4], 2.0),  # patience has an end, and the calmest counts
    ],
)
def test_a_turn_that_the_host_disturbed_is_taken_again(taken: list[float], kept: float) -> None:
    report, now, stolen, tries = Report("r", {}), 0.0, 0.0, 0

    def turn() -> None:
        nonlocal now, stolen, tries
        now, stolen, tries = now + 1, stolen + taken[tries], tries + 1
        report.add("case", "A", "msg/s", tries)
        report.add("case", "A at its side", "ms", tries)

    options = argparse.Namespace(rounds=1, patience=2)
    Turns(report, options, clock=lambda: now, stolen=lambda: stolen).rounds([turn])
    assert tries == len(taken)
    assert [(one.system, one.rounds) for one in report.series] == [("A", [kept]), ("A at its side", [kept])]
    assert report.series[0].notes["stolen"] == pytest.approx([min(taken)])


def test_rounds_go_through_all_cases_and_systems_alternate() -> None:
    taken: list[str] = []
    cases = [[lambda name=name: taken.append(name) for name in case] for case in (("a1", "a2"), ("b1", "b2"))]
    Turns(Report("r", {}), argparse.Namespace(rounds=2, patience=0)).rounds(*cases)
    assert taken == ["a1", "a2", "b1", "b2", "a2", "a1", "b2", "b1"]
