"""Publishing with pika: confirms, returns, refusals, properties, copies, transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from .conftest import Connect
from .speaking import (
    Message,
    bodies_in,
    channel_closed,
    connection_closed,
    count,
    eventually,
    get,
    get_now,
    publish,
    round_trip,
)


def test_a_confirmed_message_is_in_its_queue(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, durable=True)
    publish(confirming, queue, b"hello", delivery_mode=2)
    message = get_now(confirming, queue)
    assert message is not None and message.body == b"hello"
    assert (message.method.exchange, message.method.routing_key, message.method.redelivered) == ("", queue, False)


def test_an_unroutable_message_is_confirmed_when_it_is_not_mandatory(confirming: BlockingChannel, queue: str) -> None:
    publish(confirming, queue, b"into the void")


def test_an_unroutable_mandatory_message_comes_back(channel: BlockingChannel, queue: str) -> None:
    returned: list[tuple[object, ...]] = []
    channel.add_on_return_callback(lambda *what: returned.append(what))
    properties = pika.BasicProperties(content_type="text/plain", headers={"n": 1}, priority=3)
    channel.basic_publish("amq.direct", queue, b"nobody wants me", properties, mandatory=True)
    eventually("the return", lambda: channel.connection.process_data_events(0.02) or returned)
    [(_, method, came_back, body)] = returned
    assert (method.reply_code, method.reply_text) == (312, "NO_ROUTE")
    assert (method.exchange, method.routing_key) == ("amq.direct", queue)
    assert (came_back, body) == (properties, b"nobody wants me")


def test_a_return_comes_before_its_confirm(confirming: BlockingChannel, queue: str) -> None:
    with pytest.raises(UnroutableError) as info:
        confirming.basic_publish("", queue, b"lost", mandatory=True)
    [returned] = info.value.messages
    assert (returned.method.reply_code, returned.body) == (312, b"lost")


def test_a_mandatory_message_with_a_route_is_not_returned(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    confirming.basic_publish("", queue, b"wanted", mandatory=True)
    assert count(confirming, queue) == 1


def test_a_queue_that_is_full_and_rejects_makes_a_nack(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    publish(confirming, queue, b"1", b"2")
    with pytest.raises(NackError):
        publish(confirming, queue, b"3")
    assert bodies_in(confirming, queue) == [b"1", b"2"]
    publish(confirming, queue, b"4")
    assert bodies_in(confirming, queue) == [b"4"]


def test_one_of_several_queues_that_rejects_makes_a_nack(
    confirming: BlockingChannel, name: Callable[[str], str]
) -> None:
    full, roomy, fanout = name("full"), name("roomy"), name("fanout")
    confirming.exchange_declare(fanout, exchange_type="fanout")
    confirming.queue_declare(full, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    confirming.queue_declare(roomy)
    publish(confirming, full, b"first")
    for one in (full, roomy):
        confirming.queue_bind(one, fanout)
    with pytest.raises(NackError):
        confirming.basic_publish(fanout, "", b"second")
    assert bodies_in(confirming, full) == [b"first"]
    assert bodies_in(confirming, roomy) == [b"second"]


def test_publishing_to_an_exchange_that_is_not_there_closes_the_channel(channel: BlockingChannel, queue: str) -> None:
    channel.basic_publish(queue, "key", b"?")
    with channel_closed(404, f"NOT_FOUND - no exchange '{queue}' in vhost '/'"):
        round_trip(channel)


def test_publishing_to_an_internal_exchange_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.exchange_declare(queue, internal=True)
    channel.basic_publish(queue, "key", b"?")
    with channel_closed(403, f"ACCESS_REFUSED - cannot publish to internal exchange '{queue}' in vhost '/'"):
        round_trip(channel)


def test_the_channels_that_are_not_closed_go_on(connection: pika.BlockingConnection, queue: str) -> None:
    broken, healthy = connection.channel(), connection.channel()
    with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        broken.queue_declare(queue, passive=True)
    healthy.queue_declare(queue)
    reopened = connection.channel(broken.channel_number)
    assert count(reopened, queue) == 0


def test_immediate_is_not_implemented(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    method = pika.spec.Basic.Publish(exchange="", routing_key="any", immediate=True)
    channel._impl._send_method(method, (pika.BasicProperties(), b"now"))
    with connection_closed(540, "NOT_IMPLEMENTED - immediate=true"):
        connection.process_data_events(time_limit=10)


@pytest.mark.parametrize("delivery_mode", [None, 1, 2])
def test_a_delivery_mode_is_delivered_as_it_was_sent(
    confirming: BlockingChannel, queue: str, delivery_mode: int | None
) -> None:
    confirming.queue_declare(queue, durable=True)
    publish(confirming, queue, b"body", delivery_mode=delivery_mode)
    assert get(confirming, queue).properties.delivery_mode == delivery_mode


def test_every_property_is_delivered_as_it_was_sent(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "text": "grüße",
            "small": 1,
            "large": 2**40,
            "negative": -5,
            "yes": True,
            "no": False,
            "nothing": None,
            "decimal": Decimal("3.14"),
            "bytes": b"\x00\xff",
            "time": datetime(2024, 2, 29, 12, 30, tzinfo=UTC),
            "table": {"inner": {"deep": [1, "two", {"three": 3}]}},
            "list": ["a", 2, [True, None]],
        },
        delivery_mode=2,
        priority=9,
        correlation_id="cor",
        reply_to="answers",
        expiration="60000",
        message_id="id-1",
        timestamp=1_700_000_000,
        type="order.created",
        user_id="guest",
        app_id="shop",
        cluster_id="c",
    )
    confirming.basic_publish("", queue, b"{}", sent)
    assert get(confirming, queue).properties == sent


def test_an_empty_body_is_delivered(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, b"")
    assert get(confirming, queue).body == b""


@pytest.mark.parametrize("size", [131_072 - 8, 131_072 - 7, 1_000_000])
def test_a_body_of_several_frames_is_delivered_whole(confirming: BlockingChannel, queue: str, size: int) -> None:
    confirming.queue_declare(queue, durable=True)
    body = bytes(range(256)) * (size // 256 + 1)
    publish(confirming, queue, body[:size], delivery_mode=2)
    assert get(confirming, queue).body == body[:size]


def test_a_user_id_that_is_not_the_own_one_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, b"I am somebody else", user_id="ann")
    text = "PRECONDITION_FAILED - user_id property set to 'ann' but authenticated user was 'guest'"
    with channel_closed(406, text):
        round_trip(channel)


@pytest.mark.parametrize(
    ("expiration", "why"),
    [
        ("soon", "no_integer"),
        ("", "no_integer"),
        (" 5", "no_integer"),
        ("5.5", '{leftover_string,".5"}'),
        ("-1", "{value_negative,-1}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_an_expiration_that_makes_no_sense_is_refused(
    channel: BlockingChannel, queue: str, expiration: str, why: str
) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, b"soon", expiration=expiration)
    with channel_closed(406, f"PRECONDITION_FAILED - invalid expiration '{expiration}': {why}"):
        round_trip(channel)


# --- copies


def test_cc_and_bcc_route_to_more_queues_and_only_cc_is_shown(
    confirming: BlockingChannel, name: Callable[[str], str]
) -> None:
    queues = [name(one) for one in ("to", "cc1", "cc2", "bcc")]
    for queue in queues:
        confirming.queue_declare(queue)
    publish(confirming, queues[0], b"all", headers={"CC": queues[1:3], "BCC": [queues[3]], "other": 1})
    for queue in queues:
        message = get(confirming, queue)
        assert message.headers == {"CC": queues[1:3], "other": 1}
        assert message.method.routing_key == queues[0]


def test_nothing_but_bcc_leaves_no_headers(confirming: BlockingChannel, name: Callable[[str], str]) -> None:
    confirming.queue_declare(name("bcc"))
    publish(confirming, name("to"), b"x", headers={"BCC": [name("bcc")]})
    assert get(confirming, name("bcc")).properties.headers == {}


def test_a_queue_named_twice_gets_one_copy(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, b"once", headers={"CC": [queue, queue]})
    assert bodies_in(confirming, queue) == [b"once"]


def test_cc_that_is_no_list_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, b"?", headers={"CC": "one"})
    text = 'PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr}'
    with channel_closed(406, text):
        round_trip(channel)


# --- transactions


def test_what_a_transaction_publishes_is_there_after_the_commit(connect: Connect, queue: str) -> None:
    channel, watching = connect().channel(), connect().channel()
    channel.queue_declare(queue)
    channel.tx_select()
    publish(channel, queue, b"1", b"2")
    round_trip(channel)
    assert count(watching, queue) == 0
    channel.tx_commit()
    assert bodies_in(watching, queue) == [b"1", b"2"]


def test_what_a_transaction_rolled_back_is_never_there(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    channel.tx_select()
    publish(channel, queue, b"no")
    channel.tx_rollback()
    publish(channel, queue, b"yes")
    channel.tx_commit()
    assert bodies_in(channel, queue) == [b"yes"]


def test_acks_of_a_transaction_count_from_its_commit(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, b"1", b"2")
    channel.tx_select()
    first = get(channel, queue, ack=False)
    channel.basic_ack(first.tag)
    channel.tx_commit()
    second = get(channel, queue, ack=False)
    channel.basic_ack(second.tag)
    channel.close()  # without a commit
    other = connection.channel()
    again = get(other, queue)
    assert (again.body, again.method.redelivered) == (b"2", True)
    assert get_now(other, queue) is None


def test_a_rolled_back_ack_can_be_made_again(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, b"1")
    channel.tx_select()
    message = get(channel, queue, ack=False)
    channel.basic_ack(message.tag)
    channel.tx_rollback()
    channel.basic_ack(message.tag)
    channel.tx_commit()
    channel.tx_rollback()
    assert get_now(channel, queue) is None


def test_a_mandatory_message_of_a_transaction_comes_back_at_the_commit(channel: BlockingChannel, queue: str) -> None:
    returned: list[Message] = []
    channel.add_on_return_callback(
        lambda _, method, properties, body: returned.append(Message(method, properties, body))
    )
    channel.tx_select()
    channel.basic_publish("", queue, b"nobody", mandatory=True)
    channel.tx_commit()
    eventually("the return", lambda: channel.connection.process_data_events(0.02) or returned)
    assert [message.body for message in returned] == [b"nobody"]


def test_a_commit_without_a_transaction_is_refused(channel: BlockingChannel) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - channel is not transactional"):
        channel.tx_commit()


def test_a_rollback_without_a_transaction_is_refused(channel: BlockingChannel) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - channel is not transactional"):
        channel.tx_rollback()


def test_a_confirming_channel_cannot_have_transactions(confirming: BlockingChannel) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"):
        confirming.tx_select()


def test_a_transactional_channel_cannot_confirm(channel: BlockingChannel) -> None:
    channel.tx_select()
    with channel_closed(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"):
        channel.confirm_delivery()
