"""One message, one topology, two protocols: what AMQP's clients publish and declare, HTTP shows, and the other way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.amqp.serving import Serving
from tests.in_thread import wait_for
from tests.rest.test_consume import dequeue, error

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("both")) as serving:
        yield serving


@pytest.fixture
def http(both: Serving) -> Iterator[httpx.Client]:
    host, port = both.http_address
    with httpx.Client(base_url=f"http://{host}:{port}", timeout=30) as client:
        yield client


@pytest.fixture
def connect(both: Serving) -> Iterator[Callable[..., BlockingChannel]]:
    made: list[pika.BlockingConnection] = []

    def connect(vhost: str = "/") -> BlockingChannel:
        host, port = both.address
        credentials = pika.PlainCredentials("guest", "guest")
        parameters = pika.ConnectionParameters(host, port, vhost, credentials, socket_timeout=10)
        made.append(pika.BlockingConnection(parameters))
        return made[-1].channel()

    yield connect
    for connection in made:
        if connection.is_open:
            connection.close()


@pytest.fixture
def channel(connect: Callable[..., BlockingChannel]) -> BlockingChannel:
    return connect()


@pytest.fixture
def name() -> str:
    return f"q{next(_numbers)}"


def test_http_shows_what_amqp_published(http: httpx.Client, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, arguments={"x-max-priority": 9})
    headers = {"region": "eu", "size": 3, "list": [1, "two", {"deep": True}], "none": None}
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        delivery_mode=2,
        priority=7,
        correlation_id="c-1",
        reply_to="answers",
        message_id="m-1",
        timestamp=1_700_000_000,
        type="order",
        user_id="guest",
        app_id="shop",
    )
    channel.confirm_delivery()
    channel.basic_publish("", name, b'{"id": 1}', properties)
    for messages in (
        http.get(f"/queues/{name}/messages").json()["messages"],
        http.get(f"/queues/%2F/{name}/get?ack_mode=ack_requeue_true").json()["messages"],
        dequeue(http, f"/queues/{name}"),
    ):
        (message,) = messages
        assert (message["payload"], message["priority"], message["correlation_id"]) == ({"id": 1}, 7, "c-1")
        assert message["attributes"] == headers
        assert message["properties"] == {
            "content_encoding": "utf-8",
            "delivery_mode": 2,
            "reply_to": "answers",
            "message_id": "m-1",
            "timestamp": 1_700_000_000,
            "type": "order",
            "user_id": "guest",
            "app_id": "shop",
        }
        assert (message.get("exchange"), message["routing_key"]) == (None, name)


def test_amqp_gets_what_http_published(http: httpx.Client, channel: BlockingChannel, name: str) -> None:
    http.put(f"/queues/{name}", json={"arguments": {"x-max-priority": 9}})
    said = {"reply_to": "answers", "type": "order", "app_id": "shop", "content_encoding": "utf-8", "message_id": "m"}
    http.post(
        f"/queues/{name}/messages",
        json={
            "payload": "hello",
            "content_type": "text/plain",
            "priority": 4,
            "attributes": {"region": "eu", "size": 3, "raw": {"binary": "AP8="}},
            "correlation_id": "c-2",
            "properties": {**said, "timestamp": 1_600_000_000},
        },
    )
    method, properties, body = channel.basic_get(name, auto_ack=True)
    assert (body, properties.content_type, properties.priority) == (b"hello", "text/plain", 4)
    assert properties.headers == {"region": "eu", "size": 3, "raw": b"\x00\xff"}
    assert {field: getattr(properties, field) for field in said} == said
    assert (properties.timestamp, properties.correlation_id) == (1_600_000_000, "c-2")
    assert (method.exchange, method.routing_key, method.redelivered) == ("", name, False)


def test_a_message_without_properties_gets_those_that_can_be_known(
    http: httpx.Client, channel: BlockingChannel, name: str
) -> None:
    http.put(f"/queues/{name}")
    published = http.post(f"/queues/{name}/messages", json={"payload": {"a": 1}}).json()
    _, properties, body = channel.basic_get(name, auto_ack=True)
    assert (body, properties.content_type, properties.delivery_mode) == (b'{"a":1}', "application/json", 2)
    assert properties.message_id == published["message_id"]


def test_one_topology_for_both(http: httpx.Client, channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}-topic", "topic", durable=True)
    http.put(f"/queues/%2F/{name}", json={"arguments": {}})
    assert http.post(f"/bindings/%2F/e/{name}-topic/q/{name}", json={"routing_key": "a.*"}).status_code == 201
    channel.confirm_delivery()
    channel.basic_publish(f"{name}-topic", "a.b", b"1", pika.BasicProperties(content_type="application/json"), True)
    assert http.post(f"/exchanges/%2F/{name}-topic/publish", json={"routing_key": "a.c", "payload": 2}).json()["routed"]
    messages = dequeue(http, f"/queues/{name}", max_messages=9)
    assert [(m["payload"], m["exchange"], m["routing_key"]) for m in messages] == [
        (1, f"{name}-topic", "a.b"),
        (2, f"{name}-topic", "a.c"),
    ]
    channel.queue_bind(name, "amq.direct", "k")
    bindings = http.get(f"/bindings/%2F/e/amq.direct/q/{name}").json()["bindings"]
    assert [one["routing_key"] for one in bindings] == ["k"]


def test_what_http_declared_amqp_may_declare_again(http: httpx.Client, channel: BlockingChannel, name: str) -> None:
    arguments = {"x-message-ttl": 60000, "x-dead-letter-exchange": "dlx"}
    http.put(f"/queues/{name}", json={"durable": True, "arguments": arguments})
    channel.queue_declare(name, durable=True, arguments=arguments)
    assert http.put(f"/queues/{name}", json={"arguments": arguments}).status_code == 200
    http.put(f"/exchanges/%2F/{name}", json={"type": "fanout", "alternate_exchange": "rest"})
    channel.exchange_declare(name, "fanout", durable=True, arguments={"alternate-exchange": "rest"})
    channel.exchange_declare(f"{name}-2", "topic", durable=True, arguments={"alternate-exchange": "rest"})
    again = http.put(f"/exchanges/%2F/{name}-2", json={"type": "topic", "alternate_exchange": "rest"})
    assert again.status_code == 200, again.text
    with pytest.raises(ChannelClosedByBroker) as closed:
        channel.queue_declare(name, durable=True, arguments={"x-message-ttl": 1})
    assert closed.value.reply_code == 406


def test_a_virtual_host_made_over_http_is_one_for_amqp(
    http: httpx.Client, connect: Callable[..., BlockingChannel], name: str
) -> None:
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        connect(name)
    http.put(f"/vhosts/{name}")
    connect(name).queue_declare("here")
    assert [one["queue_name"] for one in http.get(f"/vhosts/{name}/queues").json()["queues"]] == ["here"]


def test_connections_end_with_their_virtual_host(
    http: httpx.Client, connect: Callable[..., BlockingChannel], channel: BlockingChannel, name: str
) -> None:
    http.put(f"/vhosts/{name}")
    leaving = connect(name)
    leaving.queue_declare("mine", exclusive=True)
    leaving.basic_consume("mine", lambda *_: None)
    assert http.delete(f"/vhosts/{name}").status_code == 204
    with pytest.raises(ConnectionClosedByBroker) as closed:
        while True:
            leaving.connection.process_data_events(1)
    assert (closed.value.reply_code, closed.value.reply_text) == (
        320,
        f"CONNECTION_FORCED - vhost '{name}' is deleted",
    )
    channel.queue_declare(name)  # others go on


def test_consumers_of_amqp_are_counted(http: httpx.Client, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    tags = [channel.basic_consume(name, lambda *_: None) for _ in range(2)]
    assert http.get(f"/queues/{name}/stats").json()["subscriber_count"] == 2
    channel.basic_cancel(tags[0])
    assert http.get(f"/queues/{name}/stats").json()["subscriber_count"] == 1


def test_an_exclusive_queue_is_seen_and_not_taken_from(http: httpx.Client, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    assert http.get(f"/queues/{name}").json()["exclusive"] is True
    assert error(http.get(f"/queues/%2F/{name}/get")) == (409, "queue_in_use", "queue_name")


def test_dead_letters_of_amqps_queues_are_reprocessed(http: httpx.Client, channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(f"{name}-dlx", "fanout")
    channel.queue_declare(f"{name}-dead")
    channel.queue_bind(f"{name}-dead", f"{name}-dlx")
    channel.queue_declare(name, arguments={"x-dead-letter-exchange": f"{name}-dlx"})
    channel.confirm_delivery()
    channel.basic_publish("", name, b"again", pika.BasicProperties(content_type="text/plain"))
    method, _, _ = channel.basic_get(name)
    channel.basic_reject(method.delivery_tag, requeue=False)

    def dead() -> list[dict[str, Any]]:
        return list(http.get(f"/queues/{name}-dead/messages").json()["messages"])

    wait_for(lambda: bool(dead()), "the message is a dead letter")
    (message,) = dead()
    assert (message["dead_letter"]["origin"], message["dead_letter"]["reason"]) == (name, "rejected")
    task = http.post(f"/queues/%2F/{name}-dead/reprocess").json()["task_id"]
    wait_for(lambda: http.get(f"/tasks/{task}").json()["state"] == "completed", "the task ends")
    assert http.get(f"/tasks/{task}").json()["moved"] == 1 and dead() == []
    _, _, body = channel.basic_get(name, auto_ack=True)
    assert body == b"again"
