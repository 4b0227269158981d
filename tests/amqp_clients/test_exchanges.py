"""Exchanges and bindings with pika: every type, bindings between exchanges, alternates, equivalence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from .servers import Broker
from .speaking import bodies_in, channel_closed, connection_closed, get, get_now, round_trip

Name = Callable[[str], str]


def is_there(connection: pika.BlockingConnection, exchange: str) -> bool:
    channel = connection.channel()
    try:
        channel.exchange_declare(exchange, passive=True)
    except ChannelClosedByBroker as closed:
        assert (closed.reply_code, closed.reply_text) == (404, f"NOT_FOUND - no exchange '{exchange}' in vhost '/'")
        return False
    channel.close()
    return True


def reached(channel: BlockingChannel, exchange: str, key: str, queues: list[str], **properties: Any) -> set[str]:
    """Publish, and tell which of the queues got it."""
    channel.basic_publish(exchange, key, b"x", pika.BasicProperties(**properties))
    return {queue for queue in queues if bodies_in(channel, queue)}


# --- types


def test_a_direct_exchange_compares_the_whole_key(confirming: BlockingChannel, name: Name) -> None:
    exchange, red, blue, both = name("exchange"), name("red"), name("blue"), name("both")
    confirming.exchange_declare(exchange, exchange_type="direct")
    for queue, keys in ((red, ["red"]), (blue, ["blue"]), (both, ["red", "blue"])):
        confirming.queue_declare(queue)
        for key in keys:
            confirming.queue_bind(queue, exchange, routing_key=key)
    queues = [red, blue, both]
    assert reached(confirming, exchange, "red", queues) == {red, both}
    assert reached(confirming, exchange, "blue", queues) == {blue, both}
    assert reached(confirming, exchange, "red.blue", queues) == set()


def test_a_fanout_exchange_ignores_the_key(confirming: BlockingChannel, name: Name) -> None:
    exchange, one, two = name("exchange"), name("one"), name("two")
    confirming.exchange_declare(exchange, exchange_type="fanout")
    for queue in (one, two):
        confirming.queue_declare(queue)
        confirming.queue_bind(queue, exchange, routing_key=queue)
    assert reached(confirming, exchange, "whatever", [one, two]) == {one, two}


TOPICS = ["orders.eu.new", "orders.*.new", "orders.#", "#", "*", "*.*", "#.new", "orders.#.new", "#.eu.#", "*.eu.*", ""]


@pytest.mark.parametrize(
    ("key", "matching"),
    [
        (
            "orders.eu.new",
            {"orders.eu.new", "orders.*.new", "orders.#", "#", "#.new", "orders.#.new", "#.eu.#", "*.eu.*"},
        ),
        ("orders.us.new", {"orders.*.new", "orders.#", "#", "#.new", "orders.#.new"}),
        ("orders.new", {"orders.#", "#", "*.*", "#.new", "orders.#.new"}),
        ("orders", {"orders.#", "#", "*"}),
        ("new", {"#", "*", "#.new"}),
        ("a.b.eu", {"#", "#.eu.#"}),
        ("", {"#", ""}),
        ("orders..new", {"orders.*.new", "orders.#", "#", "#.new", "orders.#.new"}),
        ("*.*", {"#", "*.*"}),
    ],
)
def test_a_topic_exchange_compares_words(confirming: BlockingChannel, name: Name, key: str, matching: set[str]) -> None:
    exchange = name("exchange")
    confirming.exchange_declare(exchange, exchange_type="topic")
    queues = {name(topic): topic for topic in TOPICS}
    for queue, topic in queues.items():
        confirming.queue_declare(queue)
        confirming.queue_bind(queue, exchange, routing_key=topic)
    assert {queues[queue] for queue in reached(confirming, exchange, key, list(queues))} == matching


HEADERS: dict[str, dict[str, Any]] = {
    "all": {"x-match": "all", "format": "pdf", "pages": 2},
    "default": {"format": "pdf", "pages": 2},
    "any": {"x-match": "any", "format": "pdf", "pages": 2},
    "all, x- ignored": {"x-match": "all", "format": "pdf", "x-color": "red"},
    "all-with-x": {"x-match": "all-with-x", "format": "pdf", "x-color": "red"},
    "any-with-x": {"x-match": "any-with-x", "pages": 9, "x-color": "red"},
    "any, x- ignored": {"x-match": "any", "pages": 9, "x-color": "red"},
    "present": {"x-match": "all", "format": None},
    "nothing, all": {"x-match": "all"},
    "nothing, any": {"x-match": "any"},
}


@pytest.mark.parametrize(
    ("headers", "matching"),
    [
        ({"format": "pdf", "pages": 2}, {"all", "default", "any", "all, x- ignored", "present", "nothing, all"}),
        ({"format": "pdf"}, {"any", "all, x- ignored", "present", "nothing, all"}),
        ({"format": "zip", "pages": 2}, {"any", "present", "nothing, all"}),
        (
            {"format": "pdf", "x-color": "red"},
            {"any", "all, x- ignored", "all-with-x", "any-with-x", "present", "nothing, all"},
        ),
        ({"x-color": "red"}, {"any-with-x", "nothing, all"}),
        ({"pages": "2"}, {"nothing, all"}),
        ({}, {"nothing, all"}),
        (None, {"nothing, all"}),
    ],
)
def test_a_headers_exchange_compares_headers(
    confirming: BlockingChannel, name: Name, headers: dict[str, Any] | None, matching: set[str]
) -> None:
    exchange = name("exchange")
    confirming.exchange_declare(exchange, exchange_type="headers")
    queues = {name(what): what for what in HEADERS}
    for queue, what in queues.items():
        confirming.queue_declare(queue)
        confirming.queue_bind(queue, exchange, arguments=HEADERS[what])
    assert {queues[queue] for queue in reached(confirming, exchange, "", list(queues), headers=headers)} == matching


def test_an_unknown_x_match_is_refused(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    text = 'PRECONDITION_FAILED - Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x'
    with channel_closed(406, text):
        channel.queue_bind(queue, "amq.headers", arguments={"x-match": "some"})


def test_every_queue_is_bound_to_the_default_exchange(confirming: BlockingChannel, queue: str) -> None:
    confirming.queue_declare(queue)
    assert reached(confirming, "", queue, [queue]) == {queue}


@pytest.mark.parametrize("what", ["queue_bind", "queue_unbind", "exchange_bind", "exchange_declare", "exchange_delete"])
def test_the_default_exchange_cannot_be_changed(channel: BlockingChannel, queue: str, what: str) -> None:
    channel.queue_declare(queue)
    changes: dict[str, Callable[[], object]] = {
        "queue_bind": lambda: channel.queue_bind(queue, "", routing_key="a"),
        "queue_unbind": lambda: channel.queue_unbind(queue, "", routing_key=queue),
        "exchange_bind": lambda: channel.exchange_bind("amq.fanout", ""),
        "exchange_declare": lambda: channel.exchange_declare(""),
        "exchange_delete": lambda: channel.exchange_delete(""),
    }
    with channel_closed(403, "ACCESS_REFUSED - operation not permitted on the default exchange"):
        changes[what]()


@pytest.mark.parametrize(
    ("exchange", "kind"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_exchanges_that_are_always_there(channel: BlockingChannel, exchange: str, kind: str) -> None:
    channel.exchange_declare(exchange, exchange_type=kind, passive=True)
    channel.exchange_declare(exchange, exchange_type=kind, durable=True)
    with channel_closed(403, f"ACCESS_REFUSED - deletion of system exchange '{exchange}' in vhost '/' not allowed"):
        channel.exchange_delete(exchange)


# --- bindings


def test_a_binding_made_twice_routes_once(confirming: BlockingChannel, queue: str) -> None:
    confirming.exchange_declare(queue)
    confirming.queue_declare(queue)
    for _ in range(2):
        confirming.queue_bind(queue, queue, routing_key="a")
    confirming.basic_publish(queue, "a", b"once")
    assert bodies_in(confirming, queue) == [b"once"]


def test_a_queue_reached_by_two_bindings_gets_one_copy(confirming: BlockingChannel, queue: str) -> None:
    confirming.exchange_declare(queue, exchange_type="topic")
    confirming.queue_declare(queue)
    for pattern in ("a.#", "*.b", "a.b"):
        confirming.queue_bind(queue, queue, routing_key=pattern)
    confirming.basic_publish(queue, "a.b", b"once")
    assert bodies_in(confirming, queue) == [b"once"]


def test_an_unbound_queue_gets_nothing_more(confirming: BlockingChannel, queue: str) -> None:
    confirming.exchange_declare(queue)
    confirming.queue_declare(queue)
    confirming.queue_bind(queue, queue, routing_key="a")
    confirming.queue_bind(queue, queue, routing_key="b")
    confirming.queue_unbind(queue, queue, routing_key="a")
    assert reached(confirming, queue, "a", [queue]) == set()
    assert reached(confirming, queue, "b", [queue]) == {queue}


def test_unbinding_what_is_not_bound_is_no_error(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    channel.queue_unbind(queue, "amq.direct", routing_key="never")
    round_trip(channel)


def test_binding_to_an_exchange_that_is_not_there(channel: BlockingChannel, queue: str) -> None:
    channel.queue_declare(queue)
    with channel_closed(404, f"NOT_FOUND - no exchange '{queue}' in vhost '/'"):
        channel.queue_bind(queue, queue)


def test_binding_a_queue_that_is_not_there(channel: BlockingChannel, queue: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost '/'"):
        channel.queue_bind(queue, "amq.direct")


def test_exchanges_are_bound_to_exchanges(confirming: BlockingChannel, name: Name) -> None:
    source, middle, queue = name("source"), name("middle"), name("queue")
    confirming.exchange_declare(source, exchange_type="topic")
    confirming.exchange_declare(middle, exchange_type="direct")
    confirming.queue_declare(queue)
    confirming.exchange_bind(middle, source, routing_key="orders.#")
    confirming.queue_bind(queue, middle, routing_key="orders.new")
    assert reached(confirming, source, "orders.new", [queue]) == {queue}
    assert reached(confirming, source, "orders.old", [queue]) == set()
    confirming.exchange_unbind(middle, source, routing_key="orders.#")
    assert reached(confirming, source, "orders.new", [queue]) == set()


def test_exchanges_bound_in_a_circle_route_once(confirming: BlockingChannel, name: Name) -> None:
    first, second, queue = name("first"), name("second"), name("queue")
    for exchange in (first, second):
        confirming.exchange_declare(exchange, exchange_type="fanout")
    confirming.exchange_bind(second, first)
    confirming.exchange_bind(first, second)
    confirming.queue_declare(queue)
    confirming.queue_bind(queue, first)
    confirming.queue_bind(queue, second)
    confirming.basic_publish(first, "", b"once")
    assert bodies_in(confirming, queue) == [b"once"]


def test_an_alternate_exchange_takes_what_has_no_route(confirming: BlockingChannel, name: Name) -> None:
    main, alternate, wanted, others = name("main"), name("alternate"), name("wanted"), name("others")
    confirming.exchange_declare(alternate, exchange_type="fanout")
    confirming.exchange_declare(main, arguments={"alternate-exchange": alternate})
    for queue, exchange in ((wanted, main), (others, alternate)):
        confirming.queue_declare(queue)
        confirming.queue_bind(queue, exchange, routing_key="known")
    confirming.basic_publish(main, "known", b"x", mandatory=True)
    confirming.basic_publish(main, "unknown", b"y", mandatory=True)  # routed by the alternate: it is not returned
    assert bodies_in(confirming, wanted) == [b"x"]
    message = get(confirming, others)
    assert (message.body, message.method.exchange, message.method.routing_key) == (b"y", main, "unknown")
    assert get_now(confirming, others) is None


def test_what_has_no_route_in_the_alternate_either_comes_back(confirming: BlockingChannel, name: Name) -> None:
    main, alternate = name("main"), name("alternate")
    confirming.exchange_declare(alternate, exchange_type="direct")
    confirming.exchange_declare(main, arguments={"alternate-exchange": alternate})
    with pytest.raises(UnroutableError):
        confirming.basic_publish(main, "unknown", b"y", mandatory=True)


def test_an_alternate_exchange_that_is_not_there_is_no_error(confirming: BlockingChannel, name: Name) -> None:
    main = name("main")
    confirming.exchange_declare(main, arguments={"alternate-exchange": name("nowhere")})
    confirming.basic_publish(main, "unknown", b"dropped")


# --- declaring and deleting


def test_a_passive_declare_does_not_create(channel: BlockingChannel, queue: str) -> None:
    with channel_closed(404, f"NOT_FOUND - no exchange '{queue}' in vhost '/'"):
        channel.exchange_declare(queue, passive=True)


@pytest.mark.parametrize(
    ("first", "then", "text"),
    [
        (
            {},
            {"exchange_type": "fanout"},
            "'type' for exchange '{}' in vhost '/': received 'fanout' but current is 'direct'",
        ),
        ({}, {"durable": True}, "'durable' for exchange '{}' in vhost '/': received 'true' but current is 'false'"),
        (
            {},
            {"auto_delete": True},
            "'auto_delete' for exchange '{}' in vhost '/': received 'true' but current is 'false'",
        ),
        ({"internal": True}, {}, "'internal' for exchange '{}' in vhost '/': received 'false' but current is 'true'"),
        (
            {"arguments": {"alternate-exchange": "one"}},
            {},
            "'alternate-exchange' for exchange '{}' in vhost '/': "
            "received none but current is the value 'one' of type 'longstr'",
        ),
    ],
)
def test_declaring_otherwise_is_refused(
    channel: BlockingChannel, queue: str, first: dict[str, Any], then: dict[str, Any], text: str
) -> None:
    channel.exchange_declare(queue, **first)
    with channel_closed(406, "PRECONDITION_FAILED - inequivalent arg " + text.format(queue)):
        channel.exchange_declare(queue, **then)


def test_an_unknown_type_closes_what_it_closes_in_the_version_that_is_announced(
    connection: pika.BlockingConnection, queue: str
) -> None:
    version = connection._impl.server_properties["version"]
    refused = connection_closed(503, "COMMAND_INVALID - unknown exchange type 'x-magic'")
    if not version.startswith("3."):
        refused = channel_closed(406, "PRECONDITION_FAILED - unknown exchange type 'x-magic'")
    with refused:
        connection.channel().exchange_declare(queue, exchange_type="x-magic")


def test_names_of_the_server_cannot_be_declared(channel: BlockingChannel) -> None:
    with channel_closed(403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'"):
        channel.exchange_declare("amq.mine")


def test_deleting_what_is_not_there_is_no_error(channel: BlockingChannel, queue: str) -> None:
    channel.exchange_delete(queue)
    round_trip(channel)


def test_an_exchange_in_use_is_not_deleted_if_unused(connection: pika.BlockingConnection, queue: str) -> None:
    channel, deleting = connection.channel(), connection.channel()
    channel.exchange_declare(queue)
    channel.queue_declare(queue)
    channel.queue_bind(queue, queue)
    with channel_closed(406, f"PRECONDITION_FAILED - exchange '{queue}' in vhost '/' in use"):
        deleting.exchange_delete(queue, if_unused=True)
    channel.queue_unbind(queue, queue)
    channel.exchange_delete(queue, if_unused=True)
    assert not is_there(connection, queue)


def test_an_auto_delete_exchange_goes_with_its_last_binding(connection: pika.BlockingConnection, name: Name) -> None:
    exchange, one, two = name("exchange"), name("one"), name("two")
    channel = connection.channel()
    channel.exchange_declare(exchange, auto_delete=True)
    assert is_there(connection, exchange)
    for queue in (one, two):
        channel.queue_declare(queue)
        channel.queue_bind(queue, exchange)
    channel.queue_unbind(one, exchange)
    assert is_there(connection, exchange)
    channel.queue_delete(two)
    assert not is_there(connection, exchange)


def test_an_internal_exchange_is_reached_through_another(confirming: BlockingChannel, name: Name) -> None:
    outer, inner, queue = name("outer"), name("inner"), name("queue")
    confirming.exchange_declare(outer, exchange_type="fanout")
    confirming.exchange_declare(inner, exchange_type="fanout", internal=True)
    confirming.exchange_bind(inner, outer)
    confirming.queue_declare(queue)
    confirming.queue_bind(queue, inner)
    assert reached(confirming, outer, "", [queue]) == {queue}


def test_a_delayed_exchange_holds_a_message_back(broker: Broker, confirming: BlockingChannel, queue: str) -> None:
    if broker.name == "rabbitmq":
        pytest.skip("x-delayed-message is a plugin that Debian does not have")
    confirming.exchange_declare(queue, exchange_type="x-delayed-message", arguments={"x-delayed-type": "topic"})
    confirming.queue_declare(queue)
    confirming.queue_bind(queue, queue, routing_key="a.*")
    confirming.basic_publish(queue, "a.b", b"later", pika.BasicProperties(headers={"x-delay": 1000}))
    confirming.basic_publish(queue, "a.b", b"now")
    assert get(confirming, queue).body == b"now"
    assert get_now(confirming, queue) is None
    assert get(confirming, queue).body == b"later"
