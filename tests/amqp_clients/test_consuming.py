"""Consuming with pika: get, push, prefetch, settling, order, priorities, fail-over, reply-to."""

from __future__ import annotations

import random
from collections.abc import Callable

import amqp
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .servers import Broker
from .speaking import (
    WAIT_S,
    Consumer,
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

# --- basic.get


def test_get_tells_how_many_are_left(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, b"1", b"2", b"3")
    assert [get(confirming, queue).method.message_count for _ in range(3)] == [2, 1, 0]
    assert get_now(confirming, queue) is None


def test_get_from_a_queue_that_is_not_there(channel: BlockingChannel, queue: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        channel.basic_get(queue)


def test_a_gotten_message_is_gone_after_its_ack(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, b"1", b"2")
    channel.basic_ack(get(channel, queue, ack=False).tag)
    get(channel, queue, ack=False)
    channel.close()
    assert bodies_in(connection.channel(), queue) == [b"2"]


# --- settling


def test_a_requeued_message_returns_to_its_place(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, *(str(number) for number in range(5)))
    taken = [get(confirming, queue, ack=False) for _ in range(3)]
    confirming.basic_nack(taken[1].tag, requeue=True)
    confirming.basic_reject(taken[0].tag, requeue=True)
    confirming.basic_ack(taken[2].tag)
    again = [get(confirming, queue) for _ in range(4)]
    assert [message.body for message in again] == [b"0", b"1", b"3", b"4"]
    assert [message.method.redelivered for message in again] == [True, True, False, False]


def test_ack_of_several_reaches_back_to_the_first(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, *"abcde")
    taken = [get(channel, queue, ack=False) for _ in range(5)]
    channel.basic_ack(taken[2].tag, multiple=True)
    channel.close()
    assert bodies_in(connection.channel(), queue) == [b"d", b"e"]


def test_ack_of_several_with_tag_0_is_of_all(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, *"abc")
    for _ in range(3):
        get(channel, queue, ack=False)
    channel.basic_ack(0, multiple=True)
    channel.close()
    assert bodies_in(connection.channel(), queue) == []


def test_nack_of_several_requeues_them_in_order(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, *"abcde")
    taken = [get(confirming, queue, ack=False) for _ in range(4)]
    confirming.basic_nack(taken[2].tag, multiple=True, requeue=True)
    assert bodies_in(confirming, queue) == [b"a", b"b", b"c", b"e"]


def test_nack_without_requeue_drops(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, *"ab")
    confirming.basic_nack(get(confirming, queue, ack=False).tag, requeue=False)
    assert bodies_in(confirming, queue) == [b"b"]


@pytest.mark.parametrize("settle", ["basic_ack", "basic_nack", "basic_reject"])
def test_settling_an_unknown_tag_closes_the_channel(channel: BlockingChannel, settle: str) -> None:
    getattr(channel, settle)(42)
    with channel_closed(406, "PRECONDITION_FAILED - unknown delivery tag 42"):
        round_trip(channel)


def test_settling_twice_closes_the_channel(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, b"1")
    message = get(channel, queue, ack=False)
    channel.basic_ack(message.tag)
    channel.basic_ack(message.tag)
    with channel_closed(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        round_trip(channel)


def test_delivery_tags_belong_to_their_channel(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue)
    publish(first, queue, *"ab")
    assert [get(one, queue, ack=False).tag for one in (first, second)] == [1, 1]


def test_a_tag_of_another_channel_is_unknown(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue)
    publish(first, queue, b"mine")
    second.basic_ack(get(first, queue, ack=False).tag)
    with channel_closed(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        round_trip(second)


def test_recover_delivers_again(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"ab")
    consumer = Consumer(channel, queue)
    consumer.wait(2)
    channel.basic_recover(requeue=True)
    assert consumer.wait(4) == [b"a", b"b", b"a", b"b"]
    assert [message.method.redelivered for message in consumer.messages] == [False, False, True, True]
    assert [message.tag for message in consumer.messages] == [1, 2, 3, 4]


def test_recover_without_requeue_is_not_implemented(
    connection: pika.BlockingConnection, channel: BlockingChannel
) -> None:
    with connection_closed(540, "NOT_IMPLEMENTED - requeue=false"):
        channel.basic_recover(requeue=False)


def test_a_closed_channel_gives_back_what_it_held(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, *"abc")
    Consumer(channel, queue).wait(3)
    channel.close()
    other = connection.channel()
    again = [get(other, queue) for _ in range(3)]
    assert [(message.body, message.method.redelivered) for message in again] == [
        (b"a", True),
        (b"b", True),
        (b"c", True),
    ]


def test_a_closed_connection_gives_back_what_it_held(connect: Connect, queue: str) -> None:
    going, staying = connect(), connect()
    channel = going.channel()
    channel.queue_declare(queue)
    publish(channel, queue, *"abc")
    Consumer(channel, queue).wait(3)
    going.close()
    other = staying.channel()
    again = [get(other, queue) for _ in range(3)]
    assert [(message.body, message.method.redelivered) for message in again] == [
        (b"a", True),
        (b"b", True),
        (b"c", True),
    ]


def test_a_broken_connection_gives_back_what_it_held(broker: Broker, channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abc")
    breaking = amqp.Connection(f"127.0.0.1:{broker.port}", "guest", "guest")
    breaking.connect()
    taken: list[amqp.Message] = []
    breaking.channel().basic_consume(queue, callback=taken.append)
    while len(taken) < 3:
        breaking.drain_events(timeout=WAIT_S)
    breaking.collect()  # closes the socket, without a goodbye
    assert [get(channel, queue).body for _ in range(3)] == [b"a", b"b", b"c"]


# --- push


def test_messages_are_pushed_in_order(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    consumer = Consumer(channel, queue)
    sent = [str(number).encode() for number in range(500)]
    publish(channel, queue, *sent)
    assert consumer.wait(500) == sent
    assert [message.tag for message in consumer.messages] == list(range(1, 501))
    assert {message.method.consumer_tag for message in consumer.messages} == {consumer.tag}


def test_what_needs_no_ack_is_gone_when_delivered(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, *"abc")
    Consumer(channel, queue, auto_ack=True).wait(3)
    channel.close()
    assert count(connection.channel(), queue) == 0


def test_prefetch_bounds_what_a_consumer_holds(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abcdef")
    channel.basic_qos(prefetch_count=2)
    consumer = Consumer(channel, queue)
    consumer.wait(2)
    assert consumer.settle_down() == [b"a", b"b"]
    channel.basic_ack(consumer.messages[0].tag)
    consumer.wait(3)
    assert consumer.settle_down() == [b"a", b"b", b"c"]
    channel.basic_ack(consumer.messages[2].tag, multiple=True)
    consumer.wait(5)
    assert consumer.settle_down() == [b"a", b"b", b"c", b"d", b"e"]


def test_prefetch_counts_for_each_consumer(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abcdefghij")
    channel.basic_qos(prefetch_count=1)
    one = Consumer(channel, queue)
    channel.basic_qos(prefetch_count=3)
    three = Consumer(channel, queue)
    one.wait(1)
    three.wait(3)
    assert (len(one.settle_down()), len(three.settle_down())) == (1, 3)


def test_global_prefetch_counts_for_the_channel(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abcdefghij")
    channel.basic_qos(prefetch_count=3, global_qos=True)
    consumers = [Consumer(channel, queue) for _ in range(2)]

    def taken() -> int:
        return sum(len(consumer.settle_down()) for consumer in consumers)

    eventually("three deliveries", lambda: taken() >= 3)
    assert taken() == 3
    message = next(consumer for consumer in consumers if consumer.messages).messages[0]
    channel.basic_ack(message.tag)
    eventually("one more", lambda: taken() >= 4)
    assert taken() == 4


def test_get_is_not_bound_by_prefetch(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abc")
    channel.basic_qos(prefetch_count=1)
    assert [get(channel, queue, ack=False).body for _ in range(3)] == [b"a", b"b", b"c"]


def test_prefetch_by_size_is_not_implemented(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    with connection_closed(540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)"):
        channel.basic_qos(prefetch_size=10)


def test_prefetch_of_0_is_no_bound(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    channel.basic_qos(prefetch_count=1)
    channel.basic_qos(prefetch_count=0)
    publish(channel, queue, *"abcdef")
    assert len(Consumer(channel, queue).wait(6)) == 6


def test_what_a_consumer_without_acks_gets_is_not_bound_by_prefetch(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, *"abcdef")
    channel.basic_qos(prefetch_count=1)
    assert len(Consumer(channel, queue, auto_ack=True).wait(6)) == 6


def test_flow_goes_on_and_cannot_be_stopped(connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
    assert channel.flow(True) is True
    with connection_closed(540, "NOT_IMPLEMENTED - active=false"):
        channel.flow(False)


def test_consumers_take_turns(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue)
    consumers = [Consumer(first, queue), Consumer(second, queue)]
    publish(first, queue, *(str(number) for number in range(10)))
    eventually("ten deliveries", lambda: sum(len(consumer.settle_down()) for consumer in consumers) == 10)
    assert [len(consumer.messages) for consumer in consumers] == [5, 5]


def test_a_cancelled_consumer_gets_nothing_more_and_keeps_what_it_has(
    connection: pika.BlockingConnection, queue: str
) -> None:
    channel, other = connection.channel(), connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, b"held")
    consumer = Consumer(channel, queue)
    consumer.wait(1)
    channel.basic_cancel(consumer.tag)
    publish(channel, queue, b"later")
    assert consumer.settle_down() == [b"held"]
    assert bodies_in(other, queue) == [b"later"]
    channel.basic_nack(consumer.messages[0].tag, requeue=True)
    assert get(other, queue).body == b"held"


def test_cancelling_an_unknown_consumer_is_answered(channel: BlockingChannel) -> None:
    answers: list[object] = []
    channel._impl.add_callback(answers.append, [pika.spec.Basic.CancelOk])
    channel._impl._send_method(pika.spec.Basic.Cancel(consumer_tag="nobody", nowait=False))
    eventually("an answer", lambda: channel.connection.process_data_events(0.02) or answers)
    assert answers[0].method.consumer_tag == "nobody"


def test_a_consumer_is_told_when_its_queue_goes(connect: Connect, queue: str) -> None:
    watching, deleting = connect().channel(), connect().channel()
    watching.queue_declare(queue)
    told: list[str] = []
    watching.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    consumer = Consumer(watching, queue)
    deleting.queue_delete(queue)
    eventually("the notice", lambda: watching.connection.process_data_events(0.02) or told)
    assert told == [consumer.tag]
    assert watching.is_open


def test_consuming_from_a_queue_that_is_not_there(channel: BlockingChannel, queue: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        Consumer(channel, queue)


def test_an_exclusive_consumer_lets_no_other_in(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue)
    Consumer(first, queue, exclusive=True)
    with channel_closed(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        Consumer(second, queue)


def test_after_an_exclusive_consumer_left_another_may_come(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue)
    first.basic_cancel(Consumer(first, queue, exclusive=True).tag)
    publish(first, queue, b"1")
    assert Consumer(second, queue).wait(1) == [b"1"]


def test_a_consumer_that_is_not_alone_cannot_be_exclusive(connection: pika.BlockingConnection, queue: str) -> None:
    first, second = connection.channel(), connection.channel()
    first.queue_declare(queue)
    Consumer(first, queue)
    with channel_closed(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        Consumer(second, queue, exclusive=True)


def test_a_consumer_tag_is_used_once_in_a_channel(connection: pika.BlockingConnection, queue: str) -> None:
    channel = connection.channel()
    channel.queue_declare(queue)
    Consumer(channel, queue, consumer_tag="me")
    again = pika.spec.Basic.Consume(queue=queue, consumer_tag="me")
    channel._impl._send_method(again)
    with connection_closed(530, "NOT_ALLOWED - attempt to reuse consumer tag 'me'"):
        connection.process_data_events(time_limit=10)


def test_a_higher_consumer_is_served_first(connection: pika.BlockingConnection, queue: str) -> None:
    low, high = connection.channel(), connection.channel()
    low.queue_declare(queue)
    low.basic_qos(prefetch_count=5)
    high.basic_qos(prefetch_count=2)
    ordinary = Consumer(low, queue)
    preferred = Consumer(high, queue, arguments={"x-priority": 10})
    publish(low, queue, *"abc")
    assert preferred.wait(2) == [b"a", b"b"]
    assert ordinary.wait(1) == [b"c"]
    high.basic_ack(preferred.messages[0].tag)
    round_trip(high)
    publish(low, queue, b"d")
    assert preferred.wait(3) == [b"a", b"b", b"d"]


def test_only_one_consumer_is_active_and_the_next_takes_over(connection: pika.BlockingConnection, queue: str) -> None:
    first, second, publisher = connection.channel(), connection.channel(), connection.channel()
    publisher.queue_declare(queue, arguments={"x-single-active-consumer": True})
    active, waiting = Consumer(first, queue), Consumer(second, queue)
    publish(publisher, queue, *"ab")
    assert active.wait(2) == [b"a", b"b"]
    assert waiting.settle_down() == []
    first.basic_ack(active.messages[0].tag)
    first.close()
    assert waiting.wait(1) == [b"b"]
    assert waiting.messages[0].method.redelivered
    publish(publisher, queue, b"c")
    assert waiting.wait(2) == [b"b", b"c"]


def test_a_higher_newcomer_gets_nothing_while_the_active_consumer_holds_messages(
    connection: pika.BlockingConnection, queue: str
) -> None:
    first, second, publisher = connection.channel(), connection.channel(), connection.channel()
    publisher.queue_declare(queue, arguments={"x-single-active-consumer": True})
    active = Consumer(first, queue)
    publish(publisher, queue, b"a")
    assert active.wait(1) == [b"a"]
    higher = Consumer(second, queue, arguments={"x-priority": 10})
    publish(publisher, queue, b"b")
    assert higher.settle_down() == []
    first.close()
    assert sorted(higher.wait(2)) == [b"a", b"b"]  # pika cancels first, and gives back then


def test_a_queue_with_one_active_consumer_takes_no_exclusive_one(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue, arguments={"x-single-active-consumer": True})
    with channel_closed(403, f"ACCESS_REFUSED - queue '{queue}' in vhost '/' in exclusive use"):
        Consumer(channel, queue, exclusive=True)


def test_a_cancelled_active_consumer_hands_over(connection: pika.BlockingConnection, queue: str) -> None:
    first, second, publisher = connection.channel(), connection.channel(), connection.channel()
    publisher.queue_declare(queue, arguments={"x-single-active-consumer": True})
    active, waiting = Consumer(first, queue), Consumer(second, queue)
    publish(publisher, queue, b"a")
    active.wait(1)
    first.basic_cancel(active.tag)
    publish(publisher, queue, b"b")
    assert waiting.wait(1) == [b"b"]
    assert active.bodies == [b"a"]


# --- priorities


def test_ten_priorities_come_highest_first_and_in_order_inside_each(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, durable=True, arguments={"x-max-priority": 10})
    sent = [(priority, number) for number in range(5) for priority in range(11)]
    random.Random(7).shuffle(sent)
    for priority, number in sent:
        publish(confirming, queue, f"{priority}.{number}", priority=priority)
    wanted = sorted(range(len(sent)), key=lambda at: (-sent[at][0], at))
    assert bodies_in(confirming, queue) == [f"{sent[at][0]}.{sent[at][1]}".encode() for at in wanted]


def test_a_priority_beyond_the_queues_highest_counts_as_that(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-priority": 5})
    publish(confirming, queue, b"none")
    publish(confirming, queue, b"5", priority=5)
    publish(confirming, queue, b"200", priority=200)
    publish(confirming, queue, b"0", priority=0)
    messages = [get(confirming, queue) for _ in range(4)]
    assert [message.body for message in messages] == [b"5", b"200", b"none", b"0"]
    assert [message.properties.priority for message in messages] == [5, 200, None, 0]


def test_without_priorities_a_priority_changes_nothing(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    publish(confirming, queue, b"low", priority=0)
    publish(confirming, queue, b"high", priority=9)
    assert bodies_in(confirming, queue) == [b"low", b"high"]


def test_a_requeued_message_keeps_its_priority(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue, arguments={"x-max-priority": 10})
    for priority in (1, 5, 5, 9):
        publish(confirming, queue, str(priority), priority=priority)
    taken = [get(confirming, queue, ack=False) for _ in range(3)]
    for message in reversed(taken):
        confirming.basic_nack(message.tag, requeue=True)
    assert bodies_in(confirming, queue) == [b"9", b"5", b"5", b"1"]


# --- direct reply-to

REPLY_TO = "amq.rabbitmq.reply-to"


def test_a_call_is_answered_without_a_reply_queue(connect: Connect, queue: str) -> None:
    caller, server = connect().channel(), connect().channel()
    server.queue_declare(queue)
    answers = Consumer(caller, REPLY_TO, auto_ack=True)
    caller.basic_publish("", queue, b"2+2", pika.BasicProperties(reply_to=REPLY_TO, correlation_id="77"))
    call = get(server, queue)
    address = call.properties.reply_to
    assert address.startswith(REPLY_TO + ".") and len(address) > len(REPLY_TO) + 10
    server.basic_publish("", address, b"4", pika.BasicProperties(correlation_id=call.properties.correlation_id))
    assert answers.wait(1) == [b"4"]
    [answer] = answers.messages
    assert (answer.properties.correlation_id, answer.method.exchange) == ("77", "")
    assert answer.method.routing_key == address


def test_two_callers_get_their_own_answers(connect: Connect, queue: str) -> None:
    server, callers = connect().channel(), [connect().channel() for _ in range(2)]
    server.queue_declare(queue)
    answers = [Consumer(caller, REPLY_TO, auto_ack=True) for caller in callers]
    for number, caller in enumerate(callers):
        publish(caller, queue, str(number), reply_to=REPLY_TO)
    for _ in callers:
        call = get(server, queue)
        server.basic_publish("", call.properties.reply_to, b"to " + call.body)
    assert [consumer.wait(1) for consumer in answers] == [[b"to 0"], [b"to 1"]]


def test_a_call_needs_a_consumer_of_its_answers(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    publish(channel, queue, b"?", reply_to=REPLY_TO)
    with channel_closed(406, "PRECONDITION_FAILED - fast reply consumer does not exist"):
        round_trip(channel)


def test_answers_cannot_be_acked(channel: BlockingChannel) -> None:
    with channel_closed(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"):
        Consumer(channel, REPLY_TO)


def test_a_second_consumer_of_answers_is_refused(channel: BlockingChannel) -> None:
    Consumer(channel, REPLY_TO, auto_ack=True)
    with channel_closed(406, "PRECONDITION_FAILED - reply consumer already set"):
        Consumer(channel, REPLY_TO, auto_ack=True)


def test_a_caller_that_is_there_can_be_asked_for(connect: Connect, queue: str) -> None:
    caller, server = connect().channel(), connect().channel()
    server.queue_declare(queue)
    Consumer(caller, REPLY_TO, auto_ack=True)
    publish(caller, queue, b"?", reply_to=REPLY_TO)
    address = get(server, queue).properties.reply_to
    answer = server.queue_declare(address, passive=True).method
    assert (answer.queue, answer.message_count, answer.consumer_count) == (address, 0, 1)
    caller.close()
    with channel_closed(404, f"NOT_FOUND - no queue '{address}' in vhost '/'"):
        eventually("its absence", lambda: server.queue_declare(address, passive=True) is None)


def test_an_answer_to_a_caller_that_left_is_unroutable(
    connect: Connect, confirming: BlockingChannel, name: Callable[[str], str]
) -> None:
    queue = name("calls")
    confirming.queue_declare(queue)
    caller = connect()
    asking = caller.channel()
    Consumer(asking, REPLY_TO, auto_ack=True)
    publish(asking, queue, b"?", reply_to=REPLY_TO)
    address = get(confirming, queue).properties.reply_to
    caller.close()

    def returned() -> bool:
        try:
            confirming.basic_publish("", address, b"too late", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
        return False

    eventually("the return", returned)
