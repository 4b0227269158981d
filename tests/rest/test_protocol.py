"""HTTP as bytes: send this, expect that."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from itertools import pairwise

import httpx
import pytest

from laneway.frontends.http.protocol import HttpConnection
from laneway.frontends.http.responses import Framer
from tests.in_thread import wait_for
from tests.rest.serving import RecordingTransport, Serving, Wire, request, take_responses
from tests.wire_broker import inside

ROOT = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def without_date(raw: bytes) -> bytes:
    return re.sub(rb"Date: [^\r]*\r\n", b"", raw)


def test_a_response_is_exactly_these_bytes(serving: Serving) -> None:
    written, _ = serving.transcript([ROOT], 1)
    assert without_date(written) == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 52\r\n\r\n"
        b'{"state":"alive","slow_turns":0,"longest_turn_ms":0}'
    )
    assert re.search(rb"Date: (Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n", written)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("Content-Length: 31\r\n", b'{"payload": {"n": 1}}          '),
        (
            "Transfer-Encoding: chunked\r\n",
            b'9\r\n{"payload\r\nA;x=y\r\n": {"n":1}\r\n1\r\n}\r\n0\r\nTrailer: x\r\n\r\n',
        ),
    ],
    ids=["length", "chunked"],
)
def test_a_request_split_at_any_byte_reads_the_same(serving: Serving, queue: str, head: str, body: bytes) -> None:
    raw = f"POST {queue}/messages HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body
    for at in range(1, len(raw)):
        written, _ = serving.transcript([raw[:at], raw[at:] + ROOT], 2)
        assert [r.status for r in take_responses(written)] == [201, 200], f"split at {at}"


def test_a_request_sent_byte_by_byte_reads_the_same(serving: Serving, queue: str) -> None:
    raw = request("POST", f"{queue}/messages", b'{"payload":"slow"}', "Connection: keep-alive\r\n") * 2
    written, _ = serving.transcript([raw[i : i + 1] for i in range(len(raw))], 2)
    assert [r.status for r in take_responses(written)] == [201, 201]


def test_a_body_in_large_and_small_pieces_reads_the_same(serving: Serving, queue: str, http: httpx.Client) -> None:
    payload = "".join(f"{n:08d}" for n in range(5000))
    raw = request("POST", f"{queue}/messages", b'{"payload":"%b"}' % payload.encode()) + ROOT
    cuts = [0, 300, 10_000, 10_001, 10_002, 20_000, 20_010, 30_000, len(raw) - 5, len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(cuts)]
    written, _ = serving.transcript(pieces, 2)
    assert [r.status for r in take_responses(written)] == [201, 200]
    (message,) = http.post(f"{queue}/dequeue").json()["messages"]
    assert message["payload"] == payload


def test_pipelined_requests_are_answered_in_order_in_one_write(serving: Serving, queue: str) -> None:
    raw = b"".join(request("POST", f"{queue}/messages", b'{"payload":%d}' % n) for n in range(20))
    written, transport = serving.transcript([raw], 20)
    ids = [r.json()["message_id"] for r in take_responses(written)]
    assert ids == sorted(ids) and len(set(ids)) == 20
    assert transport.writes <= 2, "answers that are ready together leave together"


def test_a_slow_request_is_finished_before_the_one_behind_it_begins(serving: Serving) -> None:
    create = request("PUT", "/queues/made-by-the-first", b"{}")
    publish = request("POST", "/queues/made-by-the-first/messages", b'{"payload":1}')
    delete = request("DELETE", "/queues/made-by-the-first")
    written, _ = serving.transcript([create + publish + delete + publish], 4)
    assert [r.status for r in take_responses(written)] == [201, 201, 204, 404]


def test_an_answer_behind_a_long_poll_waits_for_it(serving: Serving, queue: str, http: httpx.Client) -> None:
    with serving.connect() as wire:
        wire.send(request("POST", f"{queue}/dequeue", b'{"wait_seconds":20}') + ROOT)
        wait_for(lambda: http.get(f"{queue}/stats").json()["consumers_waiting"] == 1, "the long poll waits")
        http.post(f"{queue}/messages", json={"payload": "at last"})
        assert wire.read().json()["messages"][0]["payload"] == "at last"
        assert wire.read().json()["state"] == "alive"


def test_a_publish_behind_a_long_poll_on_the_same_connection_ends_it(serving: Serving, queue: str) -> None:
    poll = request("POST", f"{queue}/dequeue", b'{"wait_seconds":20}')
    written, _ = serving.transcript([poll + request("POST", f"{queue}/messages", b'{"payload":1}')], 2)
    dequeued, published = take_responses(written)
    assert dequeued.json()["messages"][0]["message_id"] == published.json()["message_id"]


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_both_event_loops_serve(own_serving, loop: str) -> None:  # type: ignore[no-untyped-def]
    with own_serving(loop=loop).connect() as wire:
        assert wire.ask("PUT", "/queues/a").status == 201
        wire.send(b"".join(request("POST", "/queues/a/messages", b'{"payload":%d}' % n) for n in range(50)))
        assert [wire.read().status for _ in range(50)] == [201] * 50
        messages = wire.ask("POST", "/queues/a/dequeue", b'{"max_messages":100}').json()["messages"]
        assert [m["payload"] for m in messages] == list(range(50))


def test_head_gets_the_headers_of_get_without_its_body(wire: Wire) -> None:
    there = wire.ask("GET", "/healthz")
    head = wire.ask("HEAD", "/healthz")
    assert (head.status, head.header("content-length"), head.body) == (200, there.header("content-length"), b"")
    assert wire.ask("GET", "/healthz").json()["state"] == "alive"


def test_no_content_has_neither_body_nor_length(http: httpx.Client, queue: str) -> None:
    answer = http.delete(queue)
    assert answer.status_code == 204 and answer.content == b""
    assert "content-length" not in answer.headers and "content-type" not in answer.headers


def test_http_1_0_is_answered_and_closed(serving: Serving) -> None:
    with serving.connect() as wire:
        wire.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        (answer,) = take_responses(wire.read_to_the_end())
        assert answer.header("connection") == "close" and answer.json()["state"] == "alive"


def test_connection_close_is_honoured_and_what_follows_is_not_read(
    serving: Serving, http: httpx.Client, queue: str
) -> None:
    last = request("POST", f"{queue}/messages", b'{"payload":1}', "Connection: close\r\n")
    written, transport = serving.transcript([last + request("POST", f"{queue}/messages", b'{"payload":2}')], 1)
    assert transport.closed
    (answer,) = take_responses(written)
    assert (answer.status, answer.header("connection")) == (201, "close")
    assert http.get(f"{queue}/stats").json()["totals"]["published"] == 1


def test_expect_100_continue_gets_its_interim_answer(wire: Wire, queue: str) -> None:
    body = b'{"payload":1}'
    wire.send(f"POST {queue}/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n".encode())
    wire.send(b"Content-Length: %d\r\n\r\n" % len(body))
    assert wire.read().status == 100
    wire.send(body)
    assert wire.read().status == 201


def test_expect_100_continue_waits_for_the_answers_before_it(serving: Serving, queue: str) -> None:
    first = request("POST", f"{queue}/messages", b'{"payload":1}')
    second = request("POST", f"{queue}/messages", b'{"payload":2}', "Expect: 100-continue\r\n")
    head, _, body = second.partition(b"\r\n\r\n")
    with serving.connect() as wire:
        wire.send(first + head + b"\r\n\r\n")
        assert [wire.read().status, wire.read().status] == [201, 100]
        wire.send(body)
        assert wire.read().status == 201


def test_a_body_too_large_is_refused_before_it_is_sent(wire: Wire) -> None:
    wire.send(
        b"POST /queues/q/messages HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n"
    )
    assert wire.read().status == 413


def test_the_form_with_a_full_url_is_understood(wire: Wire) -> None:
    wire.send(b"GET http://localhost:8080/healthz?x=1 HTTP/1.1\r\nHost: localhost:8080\r\n\r\n")
    assert wire.read().status == 200


def test_empty_lines_between_requests_are_passed_over(serving: Serving) -> None:
    written, _ = serving.transcript([b"\r\n\r\n\r\n" + ROOT + b"\r\n\r\n", b"\r\n" + ROOT], 2)
    assert [r.status for r in take_responses(written)] == [200, 200]


def test_an_offer_to_upgrade_is_declined_and_the_body_is_still_the_body(serving: Serving, queue: str) -> None:
    body = b'{"payload":1}'
    upgrade = request("POST", f"{queue}/messages", body, "Upgrade: h2c\r\nConnection: Upgrade\r\n")
    written, _ = serving.transcript([upgrade + ROOT], 2)
    assert [r.status for r in take_responses(written)] == [201, 200]


H = b"Host: localhost\r\n"


@pytest.mark.parametrize(
    ("raw", "status", "word"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "http://"),
        (b"GARBAGE\r\n\r\n", 400, "method"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "Host"),
        (b"GET /healthz HTTP/1.1\r\n" + H + H + b"\r\n", 400, "more than once"),
        (b"GET /healthz HTTP/1.1\n" + H + b"\n", 400, "CRLF"),
        (b"GET /healthz HTTP/1.1\r\n" + H + b"A b: c\r\n\r\n", 400, "header"),
        (b"GET /healthz HTTP/1.1\r\n" + H + b"A: b\r\n folded\r\n\r\n", 400, "whitespace"),
        (b"GET /healthz HTTP/1.1\r\n" + H + b"A: \x00\r\n\r\n", 400, "header value"),
        (b"GET /h\xc3\xa9 HTTP/1.1\r\n" + H + b"\r\n", 400, "url"),
        (b"GET /healthz HTTP/2.0\r\n" + H + b"\r\n", 505, "HTTP/1.1"),
        (b"GET /healthz\r\n\r\n", 505, "HTTP/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "head"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Content-Length: -1\r\n\r\n", 400, "Content-Length"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "Content-Length"),
        (
            b"POST /x HTTP/1.1\r\n" + H + b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
            "Content-Length",
        ),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, "chunked"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Expect: tea\r\nContent-Length: 1\r\n\r\nx", 417, "100-continue"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "hexadecimal"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, "hexadecimal"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400, "hexadecimal"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n", 400, "CR LF"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400, "longer"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n0\r\nnot a trailer\r\n", 400, "trailers"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 2000, 400, "1024"),
        (b"POST /x HTTP/1.1\r\n" + H + b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n", 413, "16777216"),
    ],
)
def test_what_is_no_request_is_told_so_and_the_connection_ends(
    serving: Serving, raw: bytes, status: int, word: str
) -> None:
    with serving.connect() as wire:
        wire.send(ROOT + raw)
        good, bad = take_responses(wire.read_to_the_end())
        assert good.status == 200
        assert (bad.status, bad.header("connection")) == (status, "close")
        assert word.lower() in bad.error["message"].lower()


def test_garbage_without_an_end_is_refused_at_once(serving: Serving) -> None:
    with serving.connect() as wire:
        wire.send(b"\x00\x01\x02 no newline here")
        assert take_responses(wire.read_to_the_end())[0].status == 400


def test_a_refused_client_that_goes_on_sending_still_reads_why(serving: Serving) -> None:
    with serving.connect() as wire:
        wire.send(b"POST /queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n")
        wire.send(b"x" * 3_000_000)
        wire.socket.shutdown(socket.SHUT_WR)
        assert take_responses(wire.read_to_the_end())[0].status == 413


def test_a_client_that_only_half_closes_gets_its_answers(serving: Serving, queue: str) -> None:
    with serving.connect() as wire:
        wire.send(request("POST", f"{queue}/messages", b'{"payload":1}'))
        wire.send(request("POST", f"{queue}/dequeue", b'{"wait_seconds":20,"max_messages":2}'))
        wire.send(request("POST", f"{queue}/dequeue", b'{"wait_seconds":20}'))
        wire.socket.shutdown(socket.SHUT_WR)
        published, first, second = take_responses(wire.read_to_the_end())
        assert published.status == 201
        assert len(first.json()["messages"]) == 1 and second.json()["messages"] == []


@pytest.mark.parametrize("rudely", [False, True], ids=["closed", "reset"])
def test_a_client_that_leaves_during_a_long_poll_takes_nothing(
    serving: Serving, http: httpx.Client, queue: str, rudely: bool
) -> None:
    with serving.connect() as wire:
        wire.send(request("POST", f"{queue}/dequeue", b'{"wait_seconds":20}'))
        wait_for(lambda: http.get(f"{queue}/stats").json()["consumers_waiting"] == 1, "the long poll waits")
        if rudely:
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_for(lambda: http.get(f"{queue}/stats").json()["consumers_waiting"] == 0, "the long poll is given up")
    http.post(f"{queue}/messages", json={"payload": 1})
    assert http.get(f"{queue}/stats").json()["in_flight_count"] == 0


@inside
def test_messages_leased_for_a_client_that_is_gone_are_given_back(
    serving: Serving, http: httpx.Client, queue: str
) -> None:
    """The lease is made while the message is on its way to the disk, and the client leaves in between."""

    async def publish_dequeue_and_leave() -> None:
        connection = HttpConnection(serving.server._shared)
        connection.connection_made(RecordingTransport())  # type: ignore[arg-type]
        connection.data_received(request("POST", f"{queue}/messages", b'{"payload":1}'))
        connection.data_received(request("POST", f"{queue}/dequeue", b'{"max_messages":1}'))
        serving.partition.inbox.drain()
        connection.connection_lost(None)

    serving.run(publish_dequeue_and_leave())
    wait_for(lambda: http.get(f"{queue}/stats").json()["totals"]["released"] == 1, "the lease is given back")
    assert http.get(f"{queue}/stats").json()["messages_by_priority"] == {"5": 1}


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/nowhere", 404, "path_not_found"),
        ("/queues//messages", 404, "path_not_found"),
        ("/queues/a/messages/", 404, "path_not_found"),
        ("/queues/%zz", 400, "malformed_target"),
        ("/queues/%ff", 400, "malformed_target"),
        ("/queues/a%2", 400, "malformed_target"),
    ],
)
def test_a_path_that_leads_nowhere_is_told_so(wire: Wire, target: str, status: int, code: str) -> None:
    answer = wire.ask("GET", target)
    assert (answer.status, answer.error["code"]) == (status, code)


def test_a_wrong_method_is_told_the_right_ones(wire: Wire, queue: str) -> None:
    answer = wire.ask("PATCH", f"{queue}/messages")
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert answer.header("allow") == "GET, HEAD, POST"
    assert wire.ask("OPTIONS", "/queues").header("allow") == "GET, HEAD"


def test_names_of_queues_may_hold_anything_percent_encoded(http: httpx.Client) -> None:
    for path, name in (("/queues/a%2Fb%20c%3F", "a/b c?"), ("/queues/%C3%A9t%C3%A9", "été"), ("/queues/%22", '"')):
        assert http.put(path).json()["queue_name"] == name
        assert http.post(f"{path}/messages", json={"payload": 1}).json()["queue_name"] == name


def test_virtual_hosts_keep_queues_apart(http: httpx.Client) -> None:
    http.put("/vhosts/one")
    assert http.put("/vhosts/one/queues/same").json()["vhost"] == "one"
    assert http.put("/vhosts/%2F/queues/same").json()["vhost"] == "/"
    http.post("/vhosts/one/queues/same/messages", json={"payload": "in one"})
    assert http.post("/queues/same/dequeue").json() == {"messages": []}
    assert http.post("/vhosts/one/queues/same/dequeue").json()["messages"][0]["payload"] == "in one"
    assert [q["queue_name"] for q in http.get("/vhosts/one/queues").json()["queues"]] == ["same"]


@pytest.mark.parametrize(
    "respond",
    [
        lambda framer: framer.head(200, 2),
        lambda framer: framer.no_content(),
        lambda framer: framer.special(200, b"", b"", connection=b"", omit_body=False),
    ],
    ids=["json", "no_content", "special"],
)
def test_the_date_moves_on(respond: Callable[[Framer], bytes]) -> None:
    now = 1_700_000_000.9
    framer = Framer(lambda: now)
    assert b"Date: Tue, 14 Nov 2023 22:13:20 GMT" in respond(framer)
    now += 1
    assert b"Date: Tue, 14 Nov 2023 22:13:21 GMT" in respond(framer)


def test_a_mistake_of_our_own_ends_the_connection_and_nothing_else(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("laneway.frontends.http.protocol.parse_head", broken)
    with serving.connect() as wire:
        wire.send(b"GET /never-seen-before HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with pytest.raises((ConnectionError, AssertionError)):
            wire.read()
    assert "planted" in caplog.text
    monkeypatch.undo()
    with serving.connect() as wire:
        assert wire.ask("GET", "/healthz").status == 200
