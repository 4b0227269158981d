"""Queues with pika: declaring, equivalence, exclusive and passing ones, time to live, lengths, counts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, NackError

from .conftest import Connect
from .servers import Broker
from .speaking import Consumer, bodies_in, channel_closed, count, eventually, get, get_now, publish, round_trip


def is_there(connection: pika.BlockingConnection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as closed:
        if closed.reply_code == 405:  # its connection is just ending
            return True
        assert (closed.reply_code, closed.reply_text) == (404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")
        return False
    channel.close()
    return True


# --- declaring


def test_declaring_again_changes_nothing_and_counts(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True)
    publish(channel, queue, *"abc")
    eventually("three messages", lambda: count(channel, queue) == 3)
    channel.basic_qos(prefetch_count=1)
    Consumer(channel, queue).wait(1)
    answer = channel.queue_declare(queue, durable=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (queue, 2, 1)


def test_the_server_names_a_queue(channel: BlockingChannel) -> None:
    names = {channel.queue_declare("").method.queue for _ in range(3)}
    assert len(names) == 3
    assert all(one.startswith("amq.gen-") and len(one) == len("amq.gen-") + 22 for one in names)


def test_the_last_declared_queue_is_meant_by_an_empty_name(channel: BlockingChannel) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind("", "amq.direct", routing_key=queue)
    channel.basic_publish("amq.direct", queue, b"here")
    assert get(channel, "").body == b"here"


def test_an_empty_name_means_nothing_on_a_new_channel(channel: BlockingChannel) -> None:
    with channel_closed(404, "NOT_FOUND - no previously declared queue"):
        channel.basic_get("")


def test_a_passive_declare_does_not_create(channel: BlockingChannel, queue: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        channel.queue_declare(queue, passive=True)


def test_a_passive_declare_compares_nothing(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-max-length": 5})
    assert channel.queue_declare(queue, passive=True).method.queue == queue


def test_names_of_the_server_cannot_be_declared(channel: BlockingChannel) -> None:
    with channel_closed(403, "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'"):
        channel.queue_declare("amq.mine")


@pytest.mark.parametrize("what", ["grüße", "очередь", "队列🐇", "with space", "slash/and%2F", "a" * 100])
def test_names_are_any_text(confirming: BlockingChannel, name: Callable[[str], str], what: str) -> None:
    queue = name(what)
    assert confirming.queue_declare(queue).method.queue == queue
    confirming.exchange_declare(queue)
    confirming.queue_bind(queue, queue, routing_key=what)
    confirming.basic_publish(queue, what, b"x")
    message = get(confirming, queue)
    assert (message.method.exchange, message.method.routing_key) == (queue, what)


def test_a_name_of_255_bytes(confirming: BlockingChannel, queue: str) -> None:
    long = queue + "x" * (255 - len(queue))
    confirming.queue_declare(long)
    publish(confirming, long, b"far")
    assert get(confirming, long).body == b"far"


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        (
            {"durable": True},
            {},
            "inequivalent arg 'durable' {}: received 'false' but current is 'true'",
        ),
        (
            {"auto_delete": True},
            {},
            "inequivalent arg 'auto_delete' {}: received 'false' but current is 'true'",
        ),
        (
            {"arguments": {"x-message-ttl": 60000}},
            {},
            "inequivalent arg 'x-message-ttl' {}: received none but current is the value '60000' of type 'signedint'",
        ),
        (
            {},
            {"arguments": {"x-message-ttl": 60000}},
            "inequivalent arg 'x-message-ttl' {}: received the value '60000' of type 'signedint' but current is none",
        ),
        (
            {"arguments": {"x-max-length": 5}},
            {"arguments": {"x-max-length": 6}},
            "inequivalent arg 'x-max-length' {}: received '6' but current is '5'",
        ),
        (
            {"arguments": {"x-dead-letter-exchange": "one"}},
            {"arguments": {"x-dead-letter-exchange": "two"}},
            "inequivalent arg 'x-dead-letter-exchange' {}: received 'two' but current is 'one'",
        ),
        (
            {"durable": True, "arguments": {"x-queue-type": "quorum"}},
            {"durable": True},
            "inequivalent arg 'x-queue-type' {}: received none but current is the value 'quorum' of type 'longstr'",
        ),
    ],
)
def test_declaring_otherwise_is_refused(
    channel: BlockingChannel, queue: str, first: dict[str, Any], then: dict[str, Any], text: str
) -> None:
    channel.queue_declare(queue, **first)
    with channel_closed(406, "PRECONDITION_FAILED - " + text.format(f"for queue '{queue}' in vhost '/'")):
        channel.queue_declare(queue, **then)


def test_an_argument_that_rules_nothing_may_differ(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, arguments={"x-note": "first"})
    assert channel.queue_declare(queue, arguments={"x-note": "second"}).method.queue == queue


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-message-ttl": -1}, "invalid arg 'x-message-ttl' {}: {{value_negative,-1}}"),
        (
            {"x-message-ttl": "soon"},
            "invalid arg 'x-message-ttl' {}: \"expected integer, got longstr\"",
        ),
        ({"x-message-ttl": 315360000001}, "invalid arg 'x-message-ttl' {}: {{value_too_large,315360000001}}"),
        ({"x-expires": 315360000001}, "invalid arg 'x-expires' {}: {{value_too_large,315360000001}}"),
        ({"x-max-length": None}, "invalid arg 'x-max-length' {}: \"expected integer, got void\""),
        (
            {"x-single-active-consumer": "yes"},
            "invalid arg 'x-single-active-consumer' {}: {{unacceptable_type,longstr}}",
        ),
        ({"x-queue-mode": "other"}, "invalid arg 'x-queue-mode' {}: \"unsupported queue mode 'other'\""),
        ({"x-expires": 0}, "invalid arg 'x-expires' {}: {{value_zero,0}}"),
        ({"x-max-length": -5}, "invalid arg 'x-max-length' {}: {{value_negative,-5}}"),
        (
            {"x-max-priority": 256},
            "invalid arg 'x-max-priority' {}: {{max_value_exceeded,256}}",
        ),
        ({"x-overflow": "explode"}, "invalid arg 'x-overflow' {}: invalid_overflow"),
        (
            {"x-dead-letter-routing-key": "key"},
            "invalid arg 'x-dead-letter-routing-key' {}: routing_key_but_no_dlx_defined",
        ),
        (
            {"x-queue-type": "heap"},
            "invalid arg 'x-queue-type' {}: \"unsupported queue type 'heap'\"",
        ),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(
    channel: BlockingChannel, queue: str, arguments: dict[str, Any], text: str
) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - " + text.format(f"for queue '{queue}' in vhost '/'")):
        channel.queue_declare(queue, arguments=arguments)


# --- exclusive, auto-delete, x-expires


@pytest.mark.parametrize("what", ["declare", "passive declare", "consume", "get", "purge", "delete", "bind"])
def test_an_exclusive_queue_is_locked_for_other_connections(connect: Connect, queue: str, what: str) -> None:
    owner, other = connect().channel(), connect().channel()
    owner.queue_declare(queue, exclusive=True)
    uses: dict[str, Callable[[], object]] = {
        "declare": lambda: other.queue_declare(queue, exclusive=True),
        "passive declare": lambda: other.queue_declare(queue, passive=True),
        "consume": lambda: Consumer(other, queue),
        "get": lambda: other.basic_get(queue),
        "purge": lambda: other.queue_purge(queue),
        "delete": lambda: other.queue_delete(queue),
        "bind": lambda: other.queue_bind(queue, "amq.direct"),
    }
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration."
    )
    with channel_closed(405, text if len(text) <= 255 else text[:252] + "..."):  # there is no room for more on the wire
        uses[what]()


def test_anyone_may_publish_to_an_exclusive_queue(connect: Connect, queue: str) -> None:
    owner, other = connect().channel(), connect().channel()
    owner.queue_declare(queue, exclusive=True)
    publish(other, queue, b"from outside")
    assert get(owner, queue).body == b"from outside"


def test_an_exclusive_queue_goes_with_its_connection(connect: Connect, queue: str) -> None:
    owner, other = connect(), connect()
    owner.channel().queue_declare(queue, exclusive=True)
    owner.close()
    eventually("its end", lambda: not is_there(other, queue))


def test_an_exclusive_queue_outlives_its_channel(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, exclusive=True)
    channel.close()
    assert is_there(connection, queue)


def test_an_auto_delete_queue_goes_with_its_last_consumer(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    assert is_there(connection, queue)
    first, second = Consumer(channel, queue), Consumer(channel, queue)
    channel.basic_cancel(first.tag)
    assert is_there(connection, queue)
    channel.basic_cancel(second.tag)
    eventually("its end", lambda: not is_there(connection, queue))


def test_an_auto_delete_queue_goes_with_the_channel_of_its_consumer(
    connection: pika.BlockingConnection, queue: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, auto_delete=True)
    Consumer(channel, queue)
    channel.close()
    eventually("its end", lambda: not is_there(connection, queue))


def test_an_unused_queue_expires(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, arguments={"x-expires": 400})
    started_s = time.monotonic()
    publish(channel, queue, b"messages are no use")
    # A passive declare would be a use of it; a publish that comes back is none.
    channel.confirm_delivery()

    def gone() -> bool:
        try:
            channel.basic_publish("", queue, b"are you there?", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
        return False

    eventually("its end", gone)
    assert time.monotonic() - started_s > 0.35


def test_a_consumer_keeps_its_queue_from_expiring(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue, arguments={"x-expires": 700})
    consumer = Consumer(channel, queue, auto_ack=True)
    connection.process_data_events(time_limit=1.5)
    publish(channel, queue, b"still here")
    assert consumer.wait(1) == [b"still here"]
    channel.basic_cancel(consumer.tag)
    eventually("its end", lambda: connection.process_data_events(0.9) or not is_there(connection, queue))


# --- time to live


def test_a_message_of_a_queue_with_a_time_to_live_expires(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-message-ttl": 500})
    started_s = time.monotonic()
    publish(confirming, queue, b"brief")
    assert count(confirming, queue) == 1
    eventually("its end", lambda: count(confirming, queue) == 0)
    assert time.monotonic() - started_s > 0.45


def test_a_message_with_an_expiration_expires(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, b"brief", expiration="500")
    assert count(confirming, queue) == 1
    eventually("its end", lambda: count(confirming, queue) == 0)


def test_the_shorter_time_to_live_counts(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-message-ttl": 500})
    publish(confirming, queue, b"brief", expiration="60000")
    assert count(confirming, queue) == 1
    eventually("its end", lambda: count(confirming, queue) == 0)


def test_a_time_to_live_of_0_reaches_only_a_waiting_consumer(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-message-ttl": 0})
    publish(confirming, queue, b"nobody waits")
    assert get_now(confirming, queue) is None
    consumer = Consumer(confirming, queue)
    publish(confirming, queue, b"somebody waits")
    assert consumer.wait(1) == [b"somebody waits"]


def test_a_held_message_does_not_expire_but_does_once_it_is_back(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-message-ttl": 500})
    publish(confirming, queue, b"held")
    message = get(confirming, queue, ack=False)
    confirming.connection.process_data_events(time_limit=0.8)
    confirming.basic_nack(message.tag, requeue=True)
    eventually("its end", lambda: get_now(confirming, queue) is None)


# --- lengths


def test_the_oldest_are_dropped_when_the_queue_is_full(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-length": 3})
    publish(confirming, queue, *"abcde")
    assert bodies_in(confirming, queue) == [b"c", b"d", b"e"]


def test_drop_head_can_be_asked_for_by_name(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "drop-head"})
    publish(confirming, queue, *"ab")
    assert bodies_in(confirming, queue) == [b"b"]


def test_bytes_can_be_bounded_too(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-length-bytes": 100_000})
    publish(confirming, queue, b"a" * 40_000, b"b" * 40_000, b"c" * 40_000)
    assert [body[:1] for body in bodies_in(confirming, queue)] == [b"b", b"c"]


def test_bytes_can_be_bounded_by_rejecting(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-length-bytes": 100_000, "x-overflow": "reject-publish"})
    publish(confirming, queue, b"a" * 90_000)
    with pytest.raises(NackError):
        publish(confirming, queue, b"b" * 11_000)
    publish(confirming, queue, b"c" * 9_000)
    assert [body[:1] for body in bodies_in(confirming, queue)] == [b"a", b"c"]


def test_held_messages_do_not_count_as_length(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-length": 2})
    publish(confirming, queue, *"ab")
    get(confirming, queue, ack=False)
    publish(confirming, queue, *"cd")
    assert bodies_in(confirming, queue) == [b"c", b"d"]


def test_a_full_priority_queue_drops(broker: Broker, confirming: BlockingChannel, queue: str) -> None:
    """RabbitMQ drops what it would deliver next, which is the most urgent; Laneway the least urgent, on purpose."""
    confirming.queue_declare(queue, arguments={"x-max-length": 2, "x-max-priority": 5})
    publish(confirming, queue, b"low", priority=1)
    publish(confirming, queue, b"high", priority=5)
    publish(confirming, queue, b"middle", priority=3)
    kept = {"rabbitmq": [b"middle", b"low"], "laneway": [b"high", b"middle"]}
    assert bodies_in(confirming, queue) == kept[broker.name]


# --- purging and deleting


def test_purge_tells_how_many_it_removed(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abcd")
    held = get(channel, queue, ack=False)
    assert channel.queue_purge(queue).method.message_count == 3
    channel.basic_nack(held.tag, requeue=True)
    assert bodies_in(channel, queue) == [b"a"]


def test_purge_of_a_queue_that_is_not_there(channel: BlockingChannel, queue: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        channel.queue_purge(queue)


def test_delete_tells_how_many_it_removed(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abc")
    round_trip(channel)
    assert channel.queue_delete(queue).method.message_count == 3
    assert channel.queue_delete(queue).method.message_count == 0  # there is none any more, which is fine


def test_a_queue_in_use_is_not_deleted_if_unused(connection: pika.BlockingConnection, queue: str) -> None:
    channel, deleting = connection.channel(), connection.channel()
    channel.queue_declare(queue)
    consumer = Consumer(channel, queue)
    with channel_closed(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' in use"):
        deleting.queue_delete(queue, if_unused=True)
    channel.basic_cancel(consumer.tag)
    channel.queue_delete(queue, if_unused=True)
    assert not is_there(connection, queue)


def test_a_queue_with_messages_is_not_deleted_if_empty(connection: pika.BlockingConnection, queue: str) -> None:
    channel, deleting = connection.channel(), connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, b"1")
    round_trip(channel)
    with channel_closed(406, f"PRECONDITION_FAILED - queue '{queue}' in vhost '/' not empty"):
        deleting.queue_delete(queue, if_empty=True)
    assert get(channel, queue).body == b"1"
    channel.queue_delete(queue, if_empty=True)
    assert not is_there(connection, queue)


def test_a_new_queue_of_a_deleted_name_is_empty(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    confirming.queue_bind(queue, "amq.fanout")
    publish(confirming, queue, b"old")
    confirming.queue_delete(queue)
    confirming.queue_declare(queue)
    confirming.basic_publish("amq.fanout", "", b"its binding went too")
    assert get_now(confirming, queue) is None
