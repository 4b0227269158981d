"""One message, every protocol: what AMQP publishes HTTP reads, and back (the table is in docs/amqp.md)."""

from __future__ import annotations

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.amqp.serving import Serving
from tests.amqp.wire import Wire, method, properties, publish

EVERYTHING: dict[str, Any] = {
    "content_type": "text/plain",
    "content_encoding": "utf-8",
    "headers": {"a": 1, "b": "two", "c": True, "d": 1.5, "e": [1, "x"], "f": {"g": "h"}},
    "delivery_mode": 2,
    "priority": 3,
    "correlation_id": "corr",
    "reply_to": "back",
    "expiration": "60000",
    "message_id": "mine",
    "timestamp": 1700000000,
    "type": "kind",
    "user_id": "guest",
    "app_id": "app",
}


def leased(client: httpx.Client, queue: str) -> dict[str, Any]:
    response = client.get(f"/queues/{queue}/messages")
    assert response.status_code == 200, response.text
    [message] = response.json()["messages"]
    return dict(message)


def got(wire: Wire, queue: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    """(the method's fields, the properties, their bytes, the body)"""
    get_ok = wire.ask(1, "basic.get", queue=queue, no_ack=1)
    assert get_ok.name == "basic.get-ok", str(get_ok)
    header = wire.expect("header")
    return get_ok.fields, header.fields, header.payload[12:], wire.read().payload if header.fields["size"] else b""


def test_http_reads_what_amqp_publishes(serving: Serving, wire: Wire, queue: str) -> None:
    name = f"{queue}.p"
    wire.ask(1, "queue.declare", queue=name, arguments={"x-max-priority": 5})
    wire.ask(1, "queue.bind", queue=name, exchange="amq.direct", key="rk")
    wire.send(publish(1, "rk", b"hello", "amq.direct", **EVERYTHING))
    wire.ask(1, "basic.qos")
    with serving.http() as client:
        message = leased(client, name)
    assert message["priority"] == 3
    assert message["attributes"] == EVERYTHING["headers"]
    shown = json.dumps(message)
    for value in ("hello", "text/plain", "corr", "amq.direct", "rk"):
        assert value in shown, value


def test_a_queue_that_http_made_or_changed_is_declared_as_it_is(serving: Serving, wire: Wire) -> None:
    with serving.http() as client:
        assert client.put("/queues/httpq").status_code == 201
        fitting = {"x-max-priority": 10, "x-overflow": "reject-publish", "x-delivery-limit": 4}
        for arguments in (fitting, {"x-max-priority": 10}, {}):
            answer = wire.ask(1, "queue.declare", queue="httpq", durable=1, arguments=arguments)
            assert answer.name == "queue.declare-ok", answer
        assert client.patch("/queues/httpq", json={"message_ttl_seconds": 60}).status_code == 200
        arguments = {"x-message-ttl": 60_000}
        assert wire.ask(1, "queue.declare", queue="httpq", durable=1, arguments=arguments).name == "queue.declare-ok"
        declared = {"durable": True, "arguments": {"x-max-priority": 10, "x-message-ttl": 60_000}}
        assert client.put("/queues/httpq", json=declared).status_code == 200
        declared["arguments"] = {"x-max-priority": 9}
        refused = client.put("/queues/httpq", json=declared)
        assert refused.status_code == 409 and "exists with x-max-priority 10, not 9" in refused.text
    closed = wire.ask(1, "queue.declare", queue="httpq", durable=1, arguments={"x-max-priority": 9})
    assert closed.fields["text"] == (
        "PRECONDITION_FAILED - inequivalent arg 'x-max-priority' for queue 'httpq' in vhost '/': "
        "received '9' but current is '10'"
    )


def test_amqp_reads_what_http_publishes(serving: Serving, wire: Wire) -> None:
    with serving.http() as client:
        assert client.put("/queues/from-http").status_code == 201
        body = {"payload": {"n": 1}, "priority": 7, "attributes": {"kind": "order", "n": 5}, "correlation_id": "c"}
        response = client.post("/queues/from-http/messages", json=body)
        assert response.status_code == 201, response.text
        receipt = response.json()
    fields, shown, _, sent = got(wire, "from-http")
    assert fields["exchange"] == "" and fields["key"] == "from-http"
    assert json.loads(sent) == {"n": 1}
    assert shown["content-type"] == "application/json" and shown["priority"] == 7 and shown["delivery-mode"] == 2
    assert shown["headers"] == {"kind": "order", "n": 5}
    assert shown["message-id"] == receipt["message_id"]
    assert shown["correlation-id"] == "c"
    assert abs(shown["timestamp"] - serving.now_ms() // 1000) < 60


_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
_headers = st.dictionaries(
    _text, _text | st.integers(-(1 << 31), (1 << 31) - 1) | st.booleans() | st.floats(allow_nan=False), max_size=5
)
_given = st.fixed_dictionaries(
    {},
    optional={
        "content_type": _text,
        "content_encoding": _text,
        "headers": _headers.map(lambda h: {k: v for k, v in h.items() if k not in ("CC", "BCC")}),
        "delivery_mode": st.integers(0, 2),
        "priority": st.integers(0, 255),
        "correlation_id": _text,
        "reply_to": _text,
        "message_id": _text,
        "timestamp": st.integers(0, (1 << 64) - 1),
        "type": _text,
        "app_id": _text,
    },
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_given, st.binary(max_size=100))
def test_amqp_gets_back_byte_for_byte_what_amqp_published(
    wire: Wire, queue: str, given: dict[str, Any], body: bytes
) -> None:
    wire.send(publish(1, queue, body, **given))
    _, _, raw, received = got(wire, queue)
    assert raw == properties(**given)
    assert received == body


def test_properties_that_are_no_utf_8_come_back_as_well(wire: Wire, queue: str) -> None:
    wire.send(publish(1, queue, b"x", correlation_id=b"\xff\xfe", headers={"k": {"!x": "\udcff"}}))
    assert got(wire, queue)[2] == properties(correlation_id=b"\xff\xfe", headers={"k": {"!x": "\udcff"}})


def test_look_alikes_are_kept_apart_by_what_differs(wire: Wire, queue: str) -> None:
    for number in range(3):
        wire.send(publish(1, queue, b"x", correlation_id=str(number)) * 2)
    assert [got(wire, queue)[1]["correlation-id"] for _ in range(6)] == ["0", "0", "1", "1", "2", "2"]


def test_malformed_properties_end_the_connection(serving: Serving) -> None:
    for raw in (b"\x80\x00\x05ab", b"\x00\x01", b"\x20\x00\x00\x00\x00\xff"):
        with serving.log_in() as wire:
            from tests.amqp.wire import frame

            header = (60).to_bytes(2, "big") + bytes(2) + (0).to_bytes(8, "big") + raw
            wire.send(method(1, "basic.publish", key="x") + frame(2, 1, header))
            assert wire.expect("connection.close").fields["code"] == 501
