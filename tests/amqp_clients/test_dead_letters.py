"""Dead letters with pika: every reason, what x-death says, retry ladders, and circles."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from .speaking import Consumer, bodies_in, count, eventually, get, get_now, publish, round_trip

Name = Callable[[str], str]


def dead_letter_queue(channel: BlockingChannel, name: Name, **more: Any) -> tuple[str, str]:
    """Declare a queue whose dead letters go through an exchange to a second one: (queue, dead)."""
    queue, dead, exchange = name("queue"), name("dead"), name("dlx")
    channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
    channel.queue_declare(dead, durable=True)
    channel.queue_bind(dead, exchange)
    channel.queue_declare(queue, durable=True, arguments={"x-dead-letter-exchange": exchange, **more})
    return queue, dead


def test_a_rejected_message_is_dead_lettered(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name)
    publish(confirming, queue, b"bad", headers={"mine": "kept"}, content_type="text/plain", delivery_mode=2)
    before_s = time.time()
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    message = get(confirming, dead)
    assert (message.body, message.properties.content_type, message.properties.delivery_mode) == (
        b"bad",
        "text/plain",
        2,
    )
    assert (message.method.exchange, message.method.routing_key) == (name("dlx"), queue)
    assert not message.method.redelivered
    [death] = message.headers["x-death"]
    assert abs(death.pop("time").timestamp() - before_s) < 5
    assert death == {"count": 1, "reason": "rejected", "queue": queue, "exchange": "", "routing-keys": [queue]}
    assert message.headers["mine"] == "kept"
    first = {key: value for key, value in message.headers.items() if key.startswith("x-first-death")}
    assert first == {
        "x-first-death-reason": "rejected",
        "x-first-death-queue": queue,
        "x-first-death-exchange": "",
    }


def test_nack_of_several_dead_letters_them_all(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name)
    publish(confirming, queue, *"abc")
    last = [get(confirming, queue, ack=False) for _ in range(3)][-1]
    confirming.basic_nack(last.tag, multiple=True, requeue=False)
    assert [get(confirming, dead).body for _ in range(3)] == [b"a", b"b", b"c"]


def test_what_the_queue_lets_expire_is_dead_lettered(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name, **{"x-message-ttl": 50})
    publish(confirming, queue, b"slow")
    message = get(confirming, dead)
    [death] = message.headers["x-death"]
    del death["time"]
    assert death == {"count": 1, "reason": "expired", "queue": queue, "exchange": "", "routing-keys": [queue]}
    assert message.headers["x-first-death-reason"] == "expired"


def test_an_expired_message_does_not_expire_again(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name)
    publish(confirming, queue, b"slow", expiration="60")
    message = get(confirming, dead)
    [death] = message.headers["x-death"]
    assert (death["reason"], death["original-expiration"]) == ("expired", "60")
    assert message.properties.expiration is None


def test_what_a_full_queue_pushes_out_is_dead_lettered(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name, **{"x-max-length": 2})
    publish(confirming, queue, *"abcd")
    messages = [get(confirming, dead) for _ in range(2)]
    assert [message.body for message in messages] == [b"a", b"b"]
    [death] = messages[0].headers["x-death"]
    del death["time"]
    assert death == {"count": 1, "reason": "maxlen", "queue": queue, "exchange": "", "routing-keys": [queue]}
    assert bodies_in(confirming, queue) == [b"c", b"d"]


def test_what_a_full_queue_rejects_can_be_dead_lettered(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name, **{"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    publish(confirming, queue, b"kept")
    try:
        publish(confirming, queue, b"refused")
    except pika.exceptions.NackError:
        pass
    else:
        raise AssertionError("it was confirmed")
    message = get(confirming, dead)
    [death] = message.headers["x-death"]
    assert (message.body, death["reason"], death["queue"], death["count"]) == (b"refused", "maxlen", queue, 1)
    assert bodies_in(confirming, queue) == [b"kept"]


def test_a_message_delivered_too_often_is_dead_lettered(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name, **{"x-queue-type": "quorum", "x-delivery-limit": 2})
    publish(confirming, queue, b"poison")
    for attempt in range(3):
        message = get(confirming, queue, ack=False)
        assert message.headers.get("x-delivery-count", 0) == attempt
        assert message.method.redelivered == (attempt > 0)
        confirming.basic_nack(message.tag, requeue=True)
    message = get(confirming, dead)
    [death] = message.headers["x-death"]
    del death["time"]
    assert death == {"count": 1, "reason": "delivery_limit", "queue": queue, "exchange": "", "routing-keys": [queue]}
    assert get_now(confirming, queue) is None


def test_a_message_delivered_too_often_is_dropped_where_nothing_takes_it(
    confirming: BlockingChannel, queue: str
) -> None:
    confirming.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum", "x-delivery-limit": 1})
    publish(confirming, queue, b"poison")
    for _ in range(2):
        confirming.basic_nack(get(confirming, queue, ack=False).tag, requeue=True)
    eventually("its end", lambda: count(confirming, queue) == 0)
    assert get_now(confirming, queue) is None


def test_a_routing_key_of_its_own_is_used_for_dead_letters(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = name("queue"), name("dead")
    confirming.queue_declare(dead)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    confirming.queue_declare(queue, arguments=arguments)
    confirming.exchange_declare(name("in"), exchange_type="topic")
    confirming.queue_bind(queue, name("in"), routing_key="orders.#")
    confirming.basic_publish(name("in"), "orders.eu", b"bad")
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    message = get(confirming, dead)
    assert (message.method.exchange, message.method.routing_key) == ("", dead)
    [death] = message.headers["x-death"]
    assert (death["exchange"], death["routing-keys"]) == (name("in"), ["orders.eu"])
    assert message.headers["x-first-death-exchange"] == name("in")


def test_dead_letters_keep_their_routing_key(confirming: BlockingChannel, name: Name) -> None:
    dlx, queue, dead, other = name("dlx"), name("queue"), name("dead"), name("other")
    confirming.exchange_declare(dlx, exchange_type="direct")
    confirming.exchange_declare(name("in"), exchange_type="fanout")
    confirming.queue_declare(queue, arguments={"x-dead-letter-exchange": dlx})
    confirming.queue_bind(queue, name("in"))
    for one, key in ((dead, "red"), (other, "blue")):
        confirming.queue_declare(one)
        confirming.queue_bind(one, dlx, routing_key=key)
    confirming.basic_publish(name("in"), "red", b"bad")
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    assert get(confirming, dead).method.routing_key == "red"
    assert get_now(confirming, other) is None


def test_dead_letters_keep_their_priority(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = name("queue"), name("dead")
    confirming.queue_declare(dead, arguments={"x-max-priority": 9})
    confirming.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    for priority in (1, 9, 5):
        publish(confirming, queue, str(priority), priority=priority)
    last = [get(confirming, queue, ack=False) for _ in range(3)][-1]
    confirming.basic_nack(last.tag, multiple=True, requeue=False)
    eventually("three dead letters", lambda: count(confirming, dead) == 3)
    assert bodies_in(confirming, dead) == [b"9", b"5", b"1"]


def test_a_key_for_dead_letters_ends_the_copies(confirming: BlockingChannel, name: Name) -> None:
    queue, dead, copy = name("queue"), name("dead"), name("copy")
    confirming.queue_declare(dead)
    confirming.queue_declare(copy)
    confirming.queue_declare(queue, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
    publish(confirming, queue, b"bad", headers={"CC": [copy]})
    assert get(confirming, copy).body == b"bad"
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    message = get(confirming, dead)
    assert "CC" not in message.headers
    assert message.headers["x-death"][0]["routing-keys"] == [queue, copy]
    assert get_now(confirming, copy) is None


def test_purged_and_deleted_messages_are_no_dead_letters(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name)
    publish(confirming, queue, *"ab")
    confirming.queue_purge(queue)
    publish(confirming, queue, b"c")
    confirming.queue_delete(queue)
    round_trip(confirming)
    assert get_now(confirming, dead) is None


def test_copies_are_routed_again(confirming: BlockingChannel, name: Name) -> None:
    exchange, queue = name("dlx"), name("queue")
    confirming.exchange_declare(exchange, exchange_type="direct")
    confirming.exchange_declare(name("in"), exchange_type="fanout")
    confirming.queue_declare(queue, arguments={"x-dead-letter-exchange": exchange})
    confirming.queue_bind(queue, name("in"))
    for key in ("own", "cc", "bcc"):
        confirming.queue_declare(name(key))
        confirming.queue_bind(name(key), exchange, routing_key=key)
    properties = pika.BasicProperties(headers={"CC": ["cc"], "BCC": ["bcc"]})
    confirming.basic_publish(name("in"), "own", b"bad", properties)
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    for key in ("own", "cc", "bcc"):
        message = get(confirming, name(key))
        assert message.method.routing_key == "own"
        assert message.headers["x-death"][0]["routing-keys"] == ["own", "cc"]
        assert "BCC" not in message.headers


def test_dead_letters_come_in_the_order_of_their_deaths(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name, **{"x-max-priority": 9})
    for priority in (1, 9, 5):
        publish(confirming, queue, str(priority), priority=priority)
    taken = [get(confirming, queue, ack=False) for _ in range(3)]
    for at in (2, 0, 1):
        confirming.basic_reject(taken[at].tag, requeue=False)
    assert [get(confirming, dead).body for _ in range(3)] == [b"1", b"9", b"5"]


def test_a_detour_without_priorities_does_not_forget_them(confirming: BlockingChannel, name: Name) -> None:
    work, wait = name("work"), name("wait")
    confirming.queue_declare(
        work, arguments={"x-max-priority": 9, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait}
    )
    confirming.queue_declare(
        wait, arguments={"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": work}
    )
    for priority in (1, 9, 5):
        publish(confirming, work, str(priority), priority=priority)
    for message in [get(confirming, work, ack=False) for _ in range(3)]:
        confirming.basic_reject(message.tag, requeue=False)
    eventually("all to be back", lambda: count(confirming, work) == 3)
    assert bodies_in(confirming, work) == [b"9", b"5", b"1"]


def test_copies_are_named_in_the_history(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name)
    publish(confirming, queue, b"bad", headers={"CC": ["copy"]})
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    message = get(confirming, dead)
    assert message.headers["x-death"][0]["routing-keys"] == [queue, "copy"]
    assert message.headers["CC"] == ["copy"]


def test_a_dead_letter_exchange_that_is_not_there_drops(confirming: BlockingChannel, name: Name) -> None:
    queue = name("queue")
    confirming.queue_declare(queue, arguments={"x-dead-letter-exchange": name("nowhere")})
    publish(confirming, queue, b"bad")
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    round_trip(confirming)
    assert count(confirming, queue) == 0


def test_several_queues_get_a_dead_letter(confirming: BlockingChannel, name: Name) -> None:
    queue, dead = dead_letter_queue(confirming, name)
    second = name("second")
    confirming.queue_declare(second)
    confirming.queue_bind(second, name("dlx"))
    publish(confirming, queue, b"bad")
    confirming.basic_reject(get(confirming, queue, ack=False).tag, requeue=False)
    for one in (dead, second):
        message = get(confirming, one)
        assert (message.body, message.headers["x-death"][0]["queue"]) == (b"bad", queue)


def test_deaths_in_several_queues_are_listed_last_first(confirming: BlockingChannel, name: Name) -> None:
    first, second, third = name("first"), name("second"), name("third")
    for queue, after in ((first, second), (second, third)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": after}
        confirming.queue_declare(queue, arguments=arguments)
    confirming.queue_declare(third)
    publish(confirming, first, b"unlucky", expiration="30")
    confirming.basic_nack(get(confirming, second, ack=False).tag, requeue=False)
    message = get(confirming, third)
    deaths = [(death["queue"], death["reason"], death["routing-keys"]) for death in message.headers["x-death"]]
    assert deaths == [(second, "rejected", [second]), (first, "expired", [first])]
    assert (message.headers["x-first-death-queue"], message.headers["x-first-death-reason"]) == (first, "expired")


def test_a_retry_ladder_goes_round_five_times(confirming: BlockingChannel, name: Name) -> None:
    """The usual way to retry later: rejected into a queue that lets expire back into the first one."""
    work, wait = name("work"), name("wait")
    confirming.queue_declare(
        work, durable=True, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": wait}
    )
    confirming.queue_declare(
        wait,
        durable=True,
        arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work, "x-message-ttl": 40},
    )
    publish(confirming, work, b"try me", message_id="1", delivery_mode=2)
    for round_number in range(5):
        message = get(confirming, work, ack=False)
        deaths = {(death["queue"], death["reason"]): death["count"] for death in message.headers.get("x-death", [])}
        wanted = {(wait, "expired"): round_number, (work, "rejected"): round_number} if round_number else {}
        assert deaths == wanted
        confirming.basic_reject(message.tag, requeue=False)
    message = get(confirming, work)
    assert (message.body, message.properties.message_id) == (b"try me", "1")
    assert [(death["queue"], death["count"]) for death in message.headers["x-death"]] == [(wait, 5), (work, 5)]
    assert (message.headers["x-first-death-queue"], message.headers["x-first-death-reason"]) == (work, "rejected")


def test_a_ladder_with_steps_by_message_goes_round(confirming: BlockingChannel, name: Name) -> None:
    """The other usual way: the consumer publishes a copy with a longer expiration each time, and acks."""
    work, wait = name("work"), name("wait")
    confirming.queue_declare(work)
    confirming.queue_declare(wait, arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": work})
    publish(confirming, wait, b"0", expiration="20")
    for round_number in range(1, 5):
        message = get(confirming, work, ack=False)
        assert message.headers["x-death"][0]["count"] == round_number
        properties = pika.BasicProperties(headers=message.headers, expiration=str(20 * (round_number + 1)))
        confirming.basic_publish("", wait, str(round_number), properties)
        confirming.basic_ack(message.tag)
    message = get(confirming, work)
    [death] = message.headers["x-death"]
    assert (message.body, death["count"], death["original-expiration"]) == (b"4", 5, "20")


def test_a_message_that_nobody_touches_does_not_go_in_circles(confirming: BlockingChannel, name: Name) -> None:
    first, second = name("first"), name("second")
    for queue, after in ((first, second), (second, first)):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": after, "x-message-ttl": 30}
        confirming.queue_declare(queue, arguments=arguments)
    publish(confirming, first, b"round")
    eventually("its end", lambda: count(confirming, first) == 0 and count(confirming, second) == 0)
    consumers = [Consumer(confirming, queue) for queue in (first, second)]
    assert [consumer.settle_down() for consumer in consumers] == [[], []]
