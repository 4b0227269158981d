"""Queues declared as quorum queues: the same engine, and what RabbitMQ lets clients see of the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .speaking import Consumer, bodies_in, channel_closed, count, eventually, get, get_now, publish

Name = Callable[[str], str]


def declare(channel: BlockingChannel, queue: str, **arguments: Any) -> None:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", **named})


def test_messages_come_in_order_and_are_gone_after_their_ack(confirming: BlockingChannel, queue: str) -> None:
    declare(confirming, queue)
    consumer = Consumer(confirming, queue)
    publish(confirming, queue, *"abc")
    assert consumer.wait(3) == [b"a", b"b", b"c"]
    confirming.basic_ack(consumer.messages[-1].tag, multiple=True)
    confirming.basic_cancel(consumer.tag)
    assert count(confirming, queue) == 0


def test_deliveries_are_counted(confirming: BlockingChannel, queue: str) -> None:
    declare(confirming, queue)
    publish(confirming, queue, b"again and again")
    for attempt in range(4):
        message = get(confirming, queue, ack=False)
        assert message.headers.get("x-delivery-count", 0) == attempt
        assert message.method.redelivered == (attempt > 0)
        confirming.basic_nack(message.tag, requeue=True)


def test_a_closed_channel_counts_as_a_delivery(connection: pika.BlockingConnection, queue: str) -> None:
    for attempt in range(3):
        channel = connection.channel()
        if attempt == 0:
            declare(channel, queue)
            publish(channel, queue, b"held and dropped")
        message = get(channel, queue, ack=False)
        assert message.headers.get("x-delivery-count", 0) == attempt
        channel.close()


def test_a_time_to_live(confirming: BlockingChannel, name: Name) -> None:
    confirming.queue_declare(name("dead"))
    declare(confirming, name("queue"), message_ttl=50, dead_letter_exchange="", dead_letter_routing_key=name("dead"))
    publish(confirming, name("queue"), b"slow")
    message = get(confirming, name("dead"))
    [death] = message.headers["x-death"]
    assert (message.body, death["reason"], death["queue"]) == (b"slow", "expired", name("queue"))


def test_a_length_that_drops_the_oldest(confirming: BlockingChannel, queue: str) -> None:
    declare(confirming, queue, max_length=2)
    publish(confirming, queue, *"abcd")
    eventually("two messages", lambda: count(confirming, queue) == 2)
    assert bodies_in(confirming, queue) == [b"c", b"d"]


def test_only_one_consumer_is_active(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    declare(first, queue, single_active_consumer=True)
    active, waiting = Consumer(first, queue), Consumer(second, queue)
    publish(second, queue, b"a")
    assert active.wait(1) == [b"a"]
    first.close()
    assert waiting.wait(1) == [b"a"]


@pytest.mark.parametrize("requeue", [True, False])
def test_what_is_rejected_without_dead_letters_is_dropped(
    confirming: BlockingChannel, queue: str, requeue: bool
) -> None:
    declare(confirming, queue)
    publish(confirming, queue, b"1")
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=requeue)
    if requeue:
        assert get(confirming, queue).body == b"1"
    assert get_now(confirming, queue) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable' for queue '{}' in vhost '/'"),
        ({"durable": True, "auto_delete": True}, "invalid property 'auto-delete' for queue '{}' in vhost '/'"),
        ({"durable": True, "exclusive": True}, "invalid property 'exclusive-owner' for queue '{}' in vhost '/'"),
    ],
)
def test_they_are_durable_and_shared(channel: BlockingChannel, queue: str, options: dict[str, Any], text: str) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - " + text.format(queue)):
        channel.queue_declare(queue, arguments={"x-queue-type": "quorum"}, **options)
