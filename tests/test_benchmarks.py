"""The figures in docs/performance.md rest on the load generator and the report: they are tested like anything else."""

from __future__ import annotations

import argparse
import asyncio
import socket
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import amqp, amqp_frames, counts, journals, laneway_load
from benchmarks.amqp_load import Confirms, Consumer, Deliveries, Publisher, single_acks
from benchmarks.http_load import HttpConnection, Script, request
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import assign_cores
from benchmarks.report import Goal, Report, percentile
from benchmarks.servers import SinkServer
from benchmarks.turns import Turns
from laneway.journal.segments import follow, inspect

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


def test_percentiles_name_values_that_occurred() -> None:
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile(list(range(1, 101)), 0.5) == 50
    assert percentile([7], 0.99) == 7


# --- AMQP: what the load generator makes of a server's bytes


def deliveries_of(serials: list[int], *, first_tag: int = 1, priority: int | None = None) -> bytes:
    bodies = [serial.to_bytes(4, "big") + b"x" * 96 for serial in serials]
    return b"".join(
        amqp_frames.delivered(first_tag + at, "bench", "queue", amqp_frames.published("queue", body, priority))
        for at, body in enumerate(bodies)
    )


CONSUME_OK = amqp_frames.method(amqp_frames.CONSUME_OK, amqp_frames.short_text("bench"))


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
    deliveries = Deliveries(100)
    assert fed(deliveries, CONSUME_OK + deliveries_of(serials, priority=priority), piece_bytes) == 0
    assert deliveries.count == len(serials)
    assert list(deliveries.serials()) == serials


def redelivered(data: bytes) -> bytes:
    at = data.rindex(amqp_frames.short_text("bench")) + 6 + 8
    return data[:at] + b"\x01" + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (deliveries_of([0, 1]) + deliveries_of([2], first_tag=4), "wrong tags"),
        (deliveries_of([0, 1, 2]) + deliveries_of([3], first_tag=3), "wrong tags"),
        (redelivered(deliveries_of([0, 1, 2])), "redelivery"),
        (redelivered(deliveries_of([0])), "redelivery"),
        (deliveries_of([0, 1])[:-1] + b"\0", "another shape"),
        (deliveries_of([0]) + amqp_frames.method(amqp_frames.CHANNEL_CLOSE, b"\x01\x96\4oops\0\0\0\0"), "oops"),
        (amqp_frames.method(amqp_frames.CHANNEL_CLOSE, b"\x01\x96\4oops\0\0\0\0"), "oops"),
        (amqp_frames.delivered(1, "t", "q", amqp_frames.published("q", b"x" * 99, None)), "99 bytes, not 100"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [10, 100_000])
def test_a_wrong_delivery_ends_the_measurement(data: bytes, complaint: str, piece_bytes: int) -> None:
    with pytest.raises(LoadFailed, match=complaint):
        fed(Deliveries(100), data, piece_bytes)


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


@pytest.mark.parametrize("ack_every", [1, 100])
@pytest.mark.parametrize("priorities", [(), (1, 2, 3)])
def test_the_generator_publishes_and_acks_every_message_once(
    sink: SinkServer, ack_every: int, priorities: tuple[int, ...]
) -> None:
    count = 12_345
    queue = f"queue-{ack_every}-{len(priorities)}"
    bodies = amqp.bodies_of(100)
    consumer = Consumer(sink.address, queue, body_bytes=100, ack_every=ack_every)
    publisher = Publisher(sink.address, queue, bodies, priorities=priorities, limit=count)
    with Load([consumer, publisher]) as load:
        load.run(seconds=20, until=lambda: publisher.finished and consumer.received == count)
        consumer.finish()
        load.run(seconds=20, until=lambda: consumer.synced)
    assert publisher.published == publisher.confirmed == consumer.acked == count
    assert consumer.deliveries.serials() == array("I", range(count))


def test_a_publisher_keeps_to_its_window_and_renews_only_serials() -> None:
    heard = bytearray()
    talk = [amqp_frames.method(which, arguments, channel) for which, arguments, channel in SERVER_SIDE]

    def answer(asked: bytes) -> list[bytes] | None:
        if talk:
            return [talk.pop(0)]
        heard.extend(asked)
        size = len(amqp_frames.published("q", amqp.bodies_of(100)[0], 1))
        whole = len(heard) // size
        return [amqp_frames.ack(whole, multiple=True)]

    with answering(answer) as address:
        publisher = Publisher(
            address, "q", amqp.bodies_of(100), priorities=(1, 2, 3), window=10, least_write=4, limit=31
        )
        with Load([publisher]) as load:
            load.run(seconds=10, until=lambda: publisher.finished)
    expected = [
        amqp_frames.published("q", serial.to_bytes(4, "big") + bytes(96), serial % 3 + 1) for serial in range(31)
    ]
    size = len(expected[0])
    sent = [bytes(heard[at : at + size]) for at in range(0, len(heard), size)]
    assert [message[: size - 97] for message in sent] == [message[: size - 97] for message in expected]


SERVER_SIDE = [
    (amqp_frames.START, b"\0\x09" + bytes(4) + amqp_frames.long_bytes(b"PLAIN") + amqp_frames.long_bytes(b"en_US"), 0),
    (amqp_frames.TUNE, bytes(8), 0),
    (amqp_frames.OPEN_OK, b"\0", 0),
    (amqp_frames.CHANNEL_OPEN_OK, bytes(4), 1),
    (amqp_frames.SELECT_OK, b"", 1),
]


class Counted:
    """What check_deliveries looks at of a publisher and a consumer."""

    def __init__(self, count: int, serials: list[int]) -> None:
        self.published = self.confirmed = count
        self.acked = len(serials)
        self.deliveries = self
        self._serials = array("I", serials)

    def serials(self) -> array[int]:
        return self._serials


ONE_QUEUE, THREE_LEVELS = amqp.Flow("plain"), amqp.Flow("levels", priorities=(1, 2, 3))


@pytest.mark.parametrize(
    ("flow", "serials", "complaint"),
    [
        (ONE_QUEUE, [0, 1, 2, 3, 4, 5], None),
        (ONE_QUEUE, [0, 1, 2, 4, 3, 5], "order of publishing"),
        (ONE_QUEUE, [0, 1, 2, 3, 4], "delivered 5"),
        (ONE_QUEUE, [0, 1, 2, 3, 4, 4], "order of publishing"),
        (THREE_LEVELS, [2, 5, 1, 4, 0, 3], None),
        (THREE_LEVELS, [0, 1, 2, 3, 4, 5], None),  # all at once in no time: nobody overtook
        (THREE_LEVELS, [2, 5, 1, 4, 0, 0], "5 different"),
        (THREE_LEVELS, [0, 3, 1, 4, 2, 5], "low priority waited less"),
    ],
)
def test_losses_doubles_and_disorder_fail_a_turn(flow: amqp.Flow, serials: list[int], complaint: str | None) -> None:
    counted: Any = Counted(6, serials)
    if complaint is None:
        amqp.check_deliveries(flow, counted, counted)
    else:
        with pytest.raises(LoadFailed, match=complaint):
            amqp.check_deliveries(flow, counted, counted)


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
        ("AMQP two queues", 2, 270),
        ("AMQP one queue, single acks", 2, 340),
        ("SQS send, 10 × 1 KB", 20, 900),
    ],
)
def test_a_message_costs_few_calls_in_a_batch(case: str, most_calls: float, most_bytecodes: float) -> None:
    """Not how fast it is, but that no step that was taken once a batch is taken once a message."""
    counter, messages, _ = asyncio.run(counts.measure(counts.CASES[case], repetitions=1, warm_up=3))
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
