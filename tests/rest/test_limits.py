"""Everything is bounded, and whoever meets a bound is told which."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx
import msgspec
import pytest

from laneway.errors import ConfigInvalid
from laneway.frontends.http.protocol import HttpConnection
from laneway.frontends.rest.limits import RestLimits
from tests.in_thread import wait_for
from tests.rest.serving import RecordingTransport, Serving, request, take_responses
from tests.rest.test_consume import dequeue, error, publish

Start = Callable[..., Serving]


def test_a_body_has_its_limit_also_in_chunks(own_serving: Start) -> None:
    serving = own_serving(body_bytes=2000)
    with serving.client() as http:
        http.put("/queues/q")
        assert http.post("/queues/q/messages", json={"payload": "x" * 1900}).status_code == 201
        answer = http.post("/queues/q/messages", json={"payload": "x" * 2000})
        assert error(answer)[:2] == (413, "body_too_large") and answer.json()["error"]["limit"] == 2000
        chunked = http.post("/queues/q/messages", content=iter([b'{"payload":"', b"x" * 1990, b'"}']))
        assert error(chunked)[:2] == (413, "body_too_large")


@pytest.mark.parametrize(
    ("target", "headers", "status", "code"),
    [
        ("/" + "x" * 200, "", 414, "target_too_long"),
        ("/healthz", "A: " + "x" * 1000 + "\r\n", 431, "head_too_large"),
        ("/healthz", "".join(f"A{n}: b\r\n" for n in range(20)), 431, "too_many_headers"),
    ],
)
def test_a_head_has_its_limits(own_serving: Start, target: str, headers: str, status: int, code: str) -> None:
    serving = own_serving(target_bytes=100, head_bytes=1000, header_count=10)
    raw = request("GET", target, headers=headers)
    for pieces in ([raw], [raw[:-2], raw[-2:]], [raw[i : i + 1] for i in range(len(raw))]):
        written, transport = serving.transcript(pieces, 1)
        (answer,) = take_responses(written)
        assert (answer.status, answer.error["code"]) == (status, code)
        assert transport.closed


def test_an_endless_head_is_refused_when_it_is_too_long(own_serving: Start) -> None:
    with own_serving(head_bytes=1000, target_bytes=500).connect() as wire:
        wire.send(b"GET /" + b"x" * 2000)
        assert take_responses(wire.read_to_the_end())[0].status == 414


def test_batches_and_waits_have_their_limits(own_serving: Start) -> None:
    with own_serving(batch_count=3, wait_ms=1000).client() as http:
        http.put("/queues/q")
        publish(http, "/queues/q", 1, 2, 3)
        for answer in (
            http.post("/queues/q/messages", json=[{"payload": 1}] * 4),
            http.post("/queues/q/dequeue", json={"max_messages": 4}),
            http.post("/queues/q/ack", json=[{"receipt_handle": "0.0"}] * 4),
        ):
            assert error(answer)[:2] == (400, "invalid_input")
            assert answer.json()["error"]["limit"] == 3
        assert error(http.post("/queues/q/dequeue", json={"wait_seconds": 2})) == (400, "invalid_input", "wait_seconds")
        assert len(dequeue(http, "/queues/q", max_messages=3, wait_seconds=1)) == 3
        schemas = http.get("/openapi.json").json()["components"]["schemas"]
        assert schemas["DequeueRequest"]["properties"]["max_messages"]["maximum"] == 3


def test_the_connection_too_many_is_told_and_closed(own_serving: Start) -> None:
    serving = own_serving(connection_count=2)
    with serving.connect() as one, serving.connect() as two:
        assert (one.ask("GET", "/healthz").status, two.ask("GET", "/healthz").status) == (200, 200)
        with serving.connect() as three:
            three.send(request("GET", "/healthz"))
            (answer,) = take_responses(three.read_to_the_end())
            assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
            assert answer.header("connection") == "close" and answer.header("retry-after") is not None
        one.close()
        wait_for(lambda: serving.server.connection_count == 1, "the first is gone")
        with serving.connect() as three:
            assert three.ask("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: loc", "head"),
        (b"POST /queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\nabc", "body"),
        (b"POST /queues/q/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "body"),
    ],
)
def test_a_request_that_takes_too_long_to_arrive_is_given_up(own_serving: Start, sent: bytes, part: str) -> None:
    with own_serving(receive_timeout_ms=100).connect() as wire:
        assert wire.ask("GET", "/healthz").status == 200
        wire.send(sent)
        (answer,) = take_responses(wire.read_to_the_end())
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert part in answer.error["message"]


def connected(serving: Serving) -> tuple[HttpConnection, RecordingTransport]:
    connection, transport = HttpConnection(serving.server._shared), RecordingTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    return connection, transport


def test_a_body_has_its_own_time_whatever_its_head_took(serving: Serving, queue: str) -> None:
    raw = request("POST", f"{queue}/messages", b'{"payload":1}')

    async def slowly() -> RecordingTransport:
        connection, transport = connected(serving)
        ticks = serving.server._shared.ticks.receive
        for piece in (raw[:10], raw[10:-5], raw[-5:]):
            for _ in range(ticks - 1):
                connection.sweep()
            connection.data_received(piece)
        while not transport.written:
            await asyncio.sleep(0.001)
        connection.connection_lost(None)
        return transport

    assert take_responses(serving.run(slowly()).written)[0].status == 201


def test_blank_lines_before_a_request_do_not_make_it_late(serving: Serving, queue: str) -> None:
    raw = request("POST", f"{queue}/messages", b'{"payload":1}')

    async def spoken() -> RecordingTransport:
        connection, transport = connected(serving)
        for piece in (raw, b"\r\n", b"\r\n", raw):  # the head of the second one is known
            answered = transport.written.count(b"HTTP/1.1 ")
            connection.data_received(piece)
            while piece is raw and transport.written.count(b"HTTP/1.1 ") == answered:
                await asyncio.sleep(0.001)
        for _ in range(serving.server._shared.ticks.receive + 1):
            connection.sweep()
        connection.connection_lost(None)
        return transport

    assert [one.status for one in take_responses(serving.run(spoken()).written)] == [201, 201]


def test_dripping_bytes_do_not_buy_time(own_serving: Start) -> None:
    with own_serving(receive_timeout_ms=200).connect() as wire:
        started = time.monotonic()
        wire.socket.settimeout(0.02)
        received = b""
        while not received:
            assert time.monotonic() - started < 5
            wire.send(b"x" if time.monotonic() - started > 0.01 else b"GET /")
            try:
                received = wire.socket.recv(4096)
            except TimeoutError:
                pass
        assert b"408 Request Timeout" in received


def test_a_silent_connection_is_closed_and_a_waiting_one_is_not(own_serving: Start) -> None:
    serving = own_serving(idle_timeout_ms=100, receive_timeout_ms=60)
    with serving.connect() as wire, serving.connect() as poll:
        wire.ask("PUT", "/queues/q")
        poll.send(request("POST", "/queues/q/dequeue", b'{"wait_seconds":0.6}'))
        assert wire.read_to_the_end() == b""
        assert poll.read().json() == {"messages": []}


def test_a_client_that_takes_no_answers_is_read_no_further_and_cut_in_the_end(own_serving: Start) -> None:
    serving = own_serving(unsent_bytes=10_000, send_timeout_ms=200, pipelined_count=4)
    with serving.client() as http:
        http.put("/queues/q", json={"max_message_bytes": 200_000})
        publish(http, "/queues/q", "x" * 150_000)
        with serving.connect() as wire:
            wire.socket.settimeout(0.05)
            peek = request("GET", "/queues/q/messages") * 50
            sent = 0
            with pytest.raises((TimeoutError, ConnectionError)):
                for _ in range(100_000):  # bounded: at some point the server's and the kernel's buffers are full
                    wire.send(peek)
                    sent += 50
            wait_for(lambda: serving.server.connection_count == 1, "the connection is cut")
        assert http.get("/healthz").status_code == 200


def test_a_client_that_leaves_a_few_answers_untaken_is_cut_in_the_end(own_serving: Start) -> None:
    """Fewer than it is no longer read for: it is closed as silent, and does not take the rest even then."""
    serving = own_serving(unsent_bytes=1 << 26, idle_timeout_ms=100, send_timeout_ms=200)
    with serving.client() as http:
        http.put("/queues/q", json={"max_message_bytes": 200_000})
        publish(http, "/queues/q", "x" * 150_000)
    with serving.connect() as wire:
        wire.send(request("GET", "/queues/q/messages") * 120)  # more than the kernel takes
        wait_for(lambda: serving.server.connection_count == 0, "the connection is cut")


def test_large_answers_to_pipelined_requests_are_made_a_few_at_a_time(own_serving: Start) -> None:
    serving = own_serving(unsent_bytes=100_000, pipelined_count=1000)
    with serving.client() as http:
        http.put("/queues/q")
        publish(http, "/queues/q", *("x" * 60_000 for _ in range(40)))
    written, transport = serving.transcript([request("POST", "/queues/q/dequeue") * 40], 40)
    assert [len(r.json()["messages"]) for r in take_responses(written)] == [1] * 40
    assert transport.writes >= 20, "no more than two of these answers are held in memory at once"


def test_pipelined_requests_beyond_the_limit_wait_their_turn(own_serving: Start) -> None:
    serving = own_serving(pipelined_count=2)
    with serving.client() as http:
        http.put("/queues/q")
        with serving.connect() as wire:
            poll = request("POST", "/queues/q/dequeue", b'{"wait_seconds":20}')
            wire.send(poll * 5)
            wait_for(lambda: http.get("/queues/q/stats").json()["consumers_waiting"] == 2, "two wait")
            for n in range(5):
                publish(http, "/queues/q", n)
                assert wire.read().json()["messages"][0]["payload"] == n
        with serving.connect() as wire:
            wire.send(request("POST", "/queues/q/messages", b'{"payload":1}') * 200)
            assert {wire.read().status for _ in range(200)} == {201}
            wire.send(request("GET", "/queues/nope/stats") * 200)
            assert {wire.read().status for _ in range(200)} == {404}


def test_too_many_slow_requests_at_once_are_told_to_come_back(own_serving: Start) -> None:
    serving = own_serving(slow_count=1)

    async def two_at_once() -> list[int]:
        transports = []
        for name in ("a", "b"):
            transports.append(RecordingTransport())
            connection = HttpConnection(serving.server._shared)
            connection.connection_made(transports[-1])  # type: ignore[arg-type]
            connection.data_received(request("PUT", f"/queues/{name}"))
        while not all(t.written for t in transports):
            await asyncio.sleep(0.001)
        serving.server._shared.connections.clear()
        return [take_responses(t.written)[0].status for t in transports]

    assert serving.run(two_at_once()) == [201, 503]


def test_every_limit_is_checked_when_it_is_set() -> None:
    for field in RestLimits.__struct_fields__:
        with pytest.raises(ConfigInvalid) as refused:
            RestLimits(**{field: -1})
        assert refused.value.field == field
    assert msgspec.structs.asdict(RestLimits())["batch_count"] == 1000


def test_a_deep_pipeline_of_errors_does_not_pile_up_calls(serving: Serving) -> None:
    written, _ = serving.transcript([request("GET", "/nothing") * 4000], 4000)
    assert len(take_responses(written)) == 4000


def test_an_answer_larger_than_the_buffers_arrives_whole(serving: Serving, http: httpx.Client, queue: str) -> None:
    http.patch(queue, json={"max_message_bytes": 262144})
    for _ in range(10):
        publish(http, queue, *("x" * 200_000 for _ in range(5)))
    assert [len(m["payload"]) for m in dequeue(http, queue, max_messages=50)] == [200_000] * 50
