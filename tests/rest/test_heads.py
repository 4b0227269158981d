"""What is remembered of heads: those that clients repeat, and of requests about one message all but the message."""

from __future__ import annotations

import uuid

import httpx
import pytest

from laneway.frontends.http.head import Head, parse_head
from laneway.frontends.http.limits import HttpLimits
from laneway.frontends.rest.api import RestApi
from tests.rest.serving import Serving, request, take_responses
from tests.rest.test_consume import dequeue, publish

IDS = [f"019a9700-1111-7000-8007-{n:012x}" for n in range(2)]


def api(serving: Serving) -> RestApi:
    (found,) = serving.server._shared.applications
    assert isinstance(found, RestApi)
    return found


def planned(rest: RestApi, raw: bytes) -> Head:
    head = parse_head(raw, HttpLimits())
    assert head is not None
    head.plan = rest.plan(head)
    head.headers = []
    return head


def test_thousands_of_acks_drive_nothing_out_of_the_caches(serving: Serving, http: httpx.Client, queue: str) -> None:
    """Whatever differs: the id in the path, the handle in the query string, the action, or the whole target."""
    usual = request("POST", f"{queue}/messages", b'{"payload":1}')
    serving.transcript([usual], 1)
    heads, targets = serving.server._shared.heads.known, api(serving)._router._matches
    ways = [
        ("DELETE", "?receipt_handle={}", b""),
        ("DELETE", "", b'{"receipt_handle":"00000000000000000000000000"}'),
        ("POST", "/nack", b'{"receipt_handle":"00000000000000000000000000"}'),
        ("PATCH", "/visibility", b'{"receipt_handle":"0","visibility_timeout":1}'),
        ("GET", "/nothing/{}", b""),
    ]
    requests = [
        request(method, f"{queue}/messages/{uuid.UUID(int=n)}{rest.format(n)}", body)
        for n in range(1200)
        for method, rest, body in ways
    ]
    # Each way is known after its first request, so only what comes then can tell.
    serving.transcript(requests[: len(ways)], len(ways))
    before = dict(heads), dict(targets), dict(api(serving)._one_message_heads._known)
    written, _ = serving.transcript([b"".join(requests)], len(requests))
    assert {answer.status for answer in take_responses(written)} <= {400, 404, 409}
    assert (heads, targets, api(serving)._one_message_heads._known) == before
    assert usual.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" in heads


def test_each_ack_is_about_its_own_message(serving: Serving, http: httpx.Client, queue: str) -> None:
    publish(http, queue, *range(6))
    held = dequeue(http, queue, max_messages=6)
    with serving.connect() as wire:
        for message in held[:2]:
            target = f"{queue}/messages/{message['message_id']}?receipt_handle={message['receipt_handle']}"
            assert wire.ask("DELETE", target).status == 204
        # The id of one with the handle of another, behind heads that were right.
        wrong = f"{queue}/messages/{held[2]['message_id']}?receipt_handle={held[3]['receipt_handle']}"
        assert wire.ask("DELETE", wrong).status in (400, 409)
        for message in held[2:]:
            body = f'{{"receipt_handle":"{message["receipt_handle"]}"}}'.encode()
            answer = wire.ask("POST", f"{queue}/messages/{message['message_id']}/nack", body)
            assert answer.json()["message_id"] == message["message_id"]
        assert wire.ask("DELETE", f"{queue}/messages/{held[0]['message_id']}").error["field"] == "receipt_handle"
    assert [m["payload"] for m in dequeue(http, queue, max_messages=9)] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("DELETE /queues/q/messages/ID?receipt_handle=ab", "DELETE /queues/q/messages/ID?receipt_handle=cdef"),
        ("DELETE /queues/q/messages/ID", "DELETE /queues/q/messages/ID"),
        (
            "DELETE /vhosts/v/queues/a%20b/messages/ID",
            "DELETE /vhosts/v/queues/a%20b/messages/ID?receipt_handle=",
        ),
        ("POST /queues/q/messages/ID/nack", "POST /queues/q/messages/ID/nack"),
        ("PATCH /queues/q/messages/ID/visibility", "PATCH /queues/q/messages/ID/visibility"),
        ("DELETE /queues/messages/messages/ID", "DELETE /queues/messages/messages/ID"),
    ],
)
def test_a_head_that_is_recalled_is_the_one_that_would_be_parsed(serving: Serving, first: str, second: str) -> None:
    rest = api(serving)
    rest._one_message_heads._known.clear()
    raws = [
        f"{line.replace('ID', number)} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n".encode()
        for number, line in zip(IDS, (first, second), strict=True)
    ]
    assert rest.recall(raws[1]) is None
    rest.learn(raws[0], planned(rest, raws[0]))
    recalled, parsed = rest.recall(raws[1]), planned(rest, raws[1])
    assert recalled is not None
    for field in ("method", "target", "version", "keep_alive", "content_length", "is_plain", "own"):
        assert getattr(recalled, field) == getattr(parsed, field), field
    for name in ("route", "vhost", "queue", "content_type"):
        assert getattr(recalled.plan, name) == getattr(parsed.plan, name), name


@pytest.mark.parametrize(
    "line",
    [
        "DELETE /queues/r/messages/ID",
        "POST /queues/q/messages/ID",
        "DELETE /queues/q/messages/ID/nack",
        "DELETE /queues/q/messages/ID?receipt_handle=a&b=c",
        "DELETE /queues/q/messages/ID?receipt_handle=%61",
        "DELETE /queues/q/messages/ID#x",
        "DELETE /queues/q/messages/no-id",
        "DELETE /queues/q/messages/ID\r\nX: y",
    ],
)
def test_a_head_that_differs_in_more_is_not_recalled(serving: Serving, line: str) -> None:
    rest = api(serving)
    rest._one_message_heads._known.clear()
    known = f"DELETE /queues/q/messages/{IDS[0]} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    rest.learn(known, planned(rest, known))
    assert rest.recall(known) is not None
    first, _, more = line.replace("ID", IDS[1]).partition("\r\n")
    assert rest.recall(f"{first} HTTP/1.1\r\n{more and more + chr(13) + chr(10)}Host: a\r\n\r\n".encode()) is None


def test_a_head_of_unusual_framing_is_not_learned(serving: Serving) -> None:
    rest = api(serving)
    rest._one_message_heads._known.clear()
    for line in ("Transfer-Encoding: chunked", "X: " + "x" * 3000):
        raw = f"DELETE /queues/q/messages/{IDS[0]} HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n".encode()
        rest.learn(raw, planned(rest, raw))
        assert rest.recall(raw) is None


def keyed(key: str, more: str = "") -> bytes:
    line = "POST /queues/q/messages HTTP/1.1"
    return f"{line}\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n{more}\r\n".encode()


def test_a_head_with_another_idempotency_key_is_recalled_with_its_own(serving: Serving) -> None:
    rest = api(serving)
    first = keyed("first")
    head = planned(rest, first)
    assert not head.is_repeated, "it would only drive others out of the cache"
    rest.learn(first, head)
    recalled = rest.recall(keyed("second"))
    assert recalled is not None and recalled.plan is head.plan
    assert (recalled.idempotency_key, recalled.content_length) == (b"second", 2)
    assert head.idempotency_key == b"first"


@pytest.mark.parametrize(
    "raw", [keyed("two words"), keyed("k", "Expect: 100-continue\r\n"), keyed(""), keyed("k" * 256)]
)
def test_a_keyed_head_that_differs_in_more_is_not_recalled(serving: Serving, raw: bytes) -> None:
    rest = api(serving)
    rest.learn(keyed("k"), planned(rest, keyed("k")))
    assert rest.recall(raw) is None


def test_a_keyed_head_of_unusual_framing_is_not_learned(serving: Serving) -> None:
    rest = api(serving)
    raw = keyed("k", "Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 2\r\n", b"")
    rest.learn(raw, planned(rest, raw))
    assert rest.recall(raw) is None
