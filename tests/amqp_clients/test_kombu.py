"""kombu and py-amqp, which Celery stands on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import kombu
import pytest
from amqp.exceptions import AccessRefused, NotFound, PreconditionFailed
from kombu import pidbox
from kombu.pools import producers

Name = Callable[[str], str]
WAIT_S = 15.0


@pytest.fixture
def connection(broker_url: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker_url, transport_options={"confirm_publish": True}) as one:
        yield one


def drain(connection: kombu.Connection, taken: list[Any], number: int) -> list[Any]:
    while len(taken) < number:
        connection.drain_events(timeout=WAIT_S)
    return taken


def test_a_simple_queue(connection: kombu.Connection, queue: str) -> None:
    with connection.SimpleQueue(queue) as simple:
        simple.put({"hello": "wörld"})
        message = simple.get(timeout=WAIT_S)
        assert message.payload == {"hello": "wörld"}
        assert message.content_type == "application/json"
        message.ack()
        with pytest.raises(simple.Empty):
            simple.get(block=False)
        assert simple.qsize() == 0


def test_a_producer_declares_what_it_publishes_to(connection: kombu.Connection, name: Name) -> None:
    exchange = kombu.Exchange(name("exchange"), "topic")
    bound = kombu.Queue(name("queue"), exchange, routing_key="media.#")
    taken: list[Any] = []
    with connection.Consumer(bound, callbacks=[lambda body, message: taken.append(body) or message.ack()]):
        producer = connection.Producer(serializer="json")
        producer.publish([1, 2], exchange=exchange, routing_key="media.video", declare=[exchange, bound], retry=True)
        producer.publish([3], exchange=exchange, routing_key="other", declare=[exchange])
        assert drain(connection, taken, 1) == [[1, 2]]
        with pytest.raises(socket.timeout):
            connection.drain_events(timeout=0.1)


def test_a_compressed_message(connection: kombu.Connection, queue: str) -> None:
    with connection.SimpleQueue(queue) as simple:
        simple.put({"text": "x" * 100_000}, compression="zlib")
        message = simple.get(timeout=WAIT_S)
        assert message.payload == {"text": "x" * 100_000}
        assert message.headers["compression"] == "application/x-gzip"
        message.ack()


def test_priorities_and_prefetch(connection: kombu.Connection, queue: str) -> None:
    declared = kombu.Queue(queue, max_priority=10)
    taken: list[tuple[int, Any]] = []
    producer = connection.Producer()
    for priority in (0, 3, 9, 3):
        producer.publish({"p": priority}, routing_key=queue, declare=[declared], priority=priority)

    def take(body: Any, message: kombu.Message) -> None:
        taken.append((message.properties["priority"], body["p"]))
        message.ack()

    with connection.Consumer(declared, callbacks=[take], prefetch_count=1):
        assert drain(connection, taken, 4) == [(9, 9), (3, 3), (3, 3), (0, 0)]


def test_a_requeued_and_a_rejected_message(connection: kombu.Connection, name: Name) -> None:
    dead = kombu.Queue(name("dead"), durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name("dead")}
    work = kombu.Queue(name("work"), queue_arguments=arguments)
    channel = connection.default_channel
    dead(channel).declare()
    work(channel).declare()
    connection.Producer().publish("x", routing_key=name("work"))
    message = work(channel).get()
    assert message.delivery_info["redelivered"] is False
    message.requeue()
    message = work(channel).get()
    assert message.delivery_info["redelivered"] is True
    message.reject()
    taken: list[kombu.Message] = []
    with connection.Consumer(dead, on_message=taken.append, no_ack=True):
        drain(connection, taken, 1)
    assert taken[0].headers["x-death"][0]["reason"] == "rejected"


def test_queue_options_become_arguments(connection: kombu.Connection, queue: str) -> None:
    declared = kombu.Queue(queue, message_ttl=60.0, expires=60.0, max_length=10, max_length_bytes=10_000)
    declared(connection.default_channel).declare()
    other = kombu.Queue(queue, message_ttl=61.0, expires=60.0, max_length=10, max_length_bytes=10_000)
    with pytest.raises(PreconditionFailed) as info:
        other(connection.channel()).declare()
    text = f"inequivalent arg 'x-message-ttl' for queue '{queue}' in vhost '/': received '61000' but current is '60000'"
    assert (info.value.reply_code, info.value.reply_text) == (406, f"PRECONDITION_FAILED - {text}")


def test_errors_name_what_was_wrong(connection: kombu.Connection, queue: str) -> None:
    with pytest.raises(NotFound) as info:
        connection.channel().queue_declare(queue, passive=True)
    assert info.value.reply_text == f"NOT_FOUND - no queue '{queue}' in vhost '/'"
    with pytest.raises(AccessRefused):
        connection.channel().queue_declare("amq.forbidden")


def test_consumer_tags_are_made_by_the_server_when_none_is_given(connection: kombu.Connection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    tags = [channel.basic_consume(queue, callback=lambda message: None) for _ in range(2)]
    assert len(set(tags)) == 2
    assert all(tag.startswith("amq.ctag-") and len(tag) == len("amq.ctag-") + 22 for tag in tags)


def test_a_pool_of_producers_shares_connections(broker_url: str, queue: str) -> None:
    connection = kombu.Connection(broker_url)
    pool = producers[connection]
    for number in range(10):
        with pool.acquire(block=True, timeout=WAIT_S) as producer:
            producer.publish(number, routing_key=queue, declare=[kombu.Queue(queue)])
    with connection.SimpleQueue(queue) as simple:
        assert [simple.get(timeout=WAIT_S).payload for _ in range(10)] == list(range(10))
    pool.force_close_all()
    connection.release()


def test_a_fanout_reaches_every_mailbox(connection: kombu.Connection, name: Name) -> None:
    """Celery's remote control is this: kombu.pidbox with a fanout and exclusive reply queues."""
    mailbox = pidbox.Mailbox(name("control"), type="fanout")
    asked: list[int] = []
    answers: list[Any] = []

    def pong(state: dict[str, int], **_: Any) -> dict[str, int]:
        asked.append(state["number"])
        return {"pong": state["number"]}

    for number in range(2):
        node = mailbox(connection).Node(f"node{number}", channel=connection.channel(), state={"number": number})
        node.handlers["ping"] = pong
        node.listen(callback=node.handle_message)
    with kombu.Connection(connection.as_uri(include_password=True)) as caller:
        bound = mailbox(caller)
        ticket = kombu.uuid()
        reply_queue = bound.get_reply_queue()
        reply_queue(caller.default_channel).declare()
        bound._publish("ping", {}, reply_ticket=ticket, channel=caller.default_channel)
        drain(connection, asked, 2)
        with caller.Consumer([reply_queue], callbacks=[lambda body, _: answers.append(body)], no_ack=True):
            drain(caller, answers, 2)
    assert sorted(answers, key=str) == [{"node0": {"pong": 0}}, {"node1": {"pong": 1}}]
