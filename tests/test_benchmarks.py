"""The figures in docs/performance.md rest on the load generator and the report: they are tested like anything else."""

from __future__ import annotations

import socket
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from benchmarks import laneway_load
from benchmarks.http_load import HttpConnection, Script, request
from benchmarks.load import Load, LoadFailed
from benchmarks.report import Goal, Report, percentile

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
    ]
    assert [(value, reached) for _, value, reached in report.verdicts()] == [(3, True), (100, False)]
    assert "3.00× (2.00 – 4.00) | reached" in report.markdown()


def test_percentiles_name_values_that_occurred() -> None:
    assert percentile(list(range(1, 101)), 0.99) == 99
    assert percentile(list(range(1, 101)), 0.5) == 50
    assert percentile([7], 0.99) == 7
