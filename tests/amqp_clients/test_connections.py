"""Connections and channels: capabilities, log-in, virtual hosts, permissions, tuning, heartbeats, misuse."""

from __future__ import annotations

import contextlib
import socket
import time

import amqp
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from . import servers
from .conftest import Connect
from .servers import Broker
from .speaking import Consumer, channel_closed, connection_closed, eventually, get, publish, round_trip

# --- opening


def test_clients_are_told_what_the_server_can_do(connection: pika.BlockingConnection) -> None:
    properties = connection._impl.server_properties
    assert properties["capabilities"] == {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    }
    assert {"product", "version", "platform", "information", "cluster_name"} <= properties.keys()


def test_localhost_is_served(broker: Broker) -> None:
    pika.BlockingConnection(pika.ConnectionParameters("localhost", broker.port)).close()


def test_a_wrong_password_is_refused(broker: Broker) -> None:
    parameters = pika.URLParameters(f"amqp://guest:wrong@127.0.0.1:{broker.port}/%2F")
    with pytest.raises(ProbableAuthenticationError) as info:
        pika.BlockingConnection(parameters)
    assert "(403)" in str(info.value)
    text = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    )
    assert text in str(info.value)


def test_an_unknown_user_is_refused_alike(broker: Broker) -> None:
    parameters = pika.URLParameters(f"amqp://nobody:wrong@127.0.0.1:{broker.port}/%2F")
    with pytest.raises(ProbableAuthenticationError, match="Login was refused using authentication mechanism PLAIN"):
        pika.BlockingConnection(parameters)


@pytest.mark.parametrize("mechanism", [amqp.sasl.PLAIN, amqp.sasl.AMQPLAIN])
def test_both_ways_to_send_a_password_work(broker: Broker, mechanism: type) -> None:
    login = mechanism("limited", "limited")
    with amqp.Connection(f"127.0.0.1:{broker.port}", authentication=login) as connection:
        assert connection.connected


def test_a_virtual_host_that_is_not_there(broker: Broker) -> None:
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError)) as info:
        pika.BlockingConnection(pika.URLParameters(servers.url(broker, vhost="nowhere")))
    assert "(530)" in str(info.value)
    assert "NOT_ALLOWED - vhost nowhere not found" in str(info.value)


def test_a_virtual_host_without_permission(broker: Broker) -> None:
    with pytest.raises((ConnectionClosedByBroker, ProbableAccessDeniedError)) as info:
        pika.BlockingConnection(pika.URLParameters(servers.url(broker, user="limited", vhost="other")))
    assert "NOT_ALLOWED - access to vhost 'other' refused for user 'limited'" in str(info.value)


def test_virtual_hosts_are_separate(connect: Connect, queue: str) -> None:
    here, there = connect().channel(), connect(vhost="other").channel()
    here.queue_declare(queue)
    publish(here, queue, b"here")
    with channel_closed(404, f"NOT_FOUND - no queue '{queue}' in vhost 'other'"):
        there.queue_declare(queue, passive=True)


def test_the_smaller_limit_is_agreed_on(connect: Connect, queue: str) -> None:
    connection = connect(channel_max=7, frame_max=4096, heartbeat=17)
    assert (connection._impl.params.channel_max, connection._impl.params.frame_max) == (7, 4096)
    assert connection._impl.params.heartbeat == 17
    channel = connection.channel()
    channel.queue_declare(queue)
    publish(channel, queue, b"z" * 50_000)
    assert get(channel, queue).body == b"z" * 50_000


def test_what_the_server_proposes(connection: pika.BlockingConnection) -> None:
    assert (connection._impl.params.channel_max, connection._impl.params.frame_max) == (2047, 131072)
    assert connection._impl.params.heartbeat == 60


def test_a_secret_can_be_renewed(connection: pika.BlockingConnection) -> None:
    connection.update_secret("guest", "it was about to expire")
    round_trip(connection.channel())


def test_something_that_is_not_amqp_is_told_which_version_is(broker: Broker) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), 10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.recv(100) == b"AMQP\x00\x00\x09\x01"
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) == b""


# --- permissions

REFUSED = "ACCESS_REFUSED - access to {} '{}' in vhost '/' refused for user 'limited'"


@pytest.mark.parametrize("what", ["declare", "delete", "purge", "get", "consume", "bind"])
def test_a_queue_of_others_is_refused(connect: Connect, queue: str, what: str) -> None:
    connect().channel().queue_declare(queue)
    channel = connect(user="limited").channel()
    with channel_closed(403, REFUSED.format("queue", queue)):
        if what == "declare":
            channel.queue_declare(queue)
        elif what == "delete":
            channel.queue_delete(queue)
        elif what == "purge":
            channel.queue_purge(queue)
        elif what == "get":
            channel.basic_get(queue)
        elif what == "consume":
            Consumer(channel, queue)
        else:
            channel.queue_bind(queue, "limited.exchange")


def test_an_own_queue_is_not(connect: Connect, queue: str) -> None:
    channel = connect(user="limited").channel()
    own = f"limited.{queue}"
    channel.queue_declare(own)
    channel.exchange_declare(own)
    channel.queue_bind(own, own, routing_key="a")
    channel.basic_publish(own, "a", b"mine")
    assert get(channel, own).body == b"mine"


def test_an_exchange_of_others_cannot_be_declared(connect: Connect, queue: str) -> None:
    channel = connect(user="limited").channel()
    with channel_closed(403, REFUSED.format("exchange", queue)):
        channel.exchange_declare(queue)


@pytest.mark.parametrize(("exchange", "shown"), [("amq.direct", "amq.direct"), ("", "amq.default")])
def test_an_exchange_of_others_cannot_be_published_to(connect: Connect, exchange: str, shown: str) -> None:
    channel = connect(user="limited").channel()
    channel.basic_publish(exchange, "limited.x", b"?")
    with channel_closed(403, REFUSED.format("exchange", shown)):
        channel.queue_declare("limited.x", exclusive=True)


def test_an_exchange_of_others_cannot_be_bound_to(connect: Connect, queue: str) -> None:
    channel = connect(user="limited").channel()
    channel.queue_declare(f"limited.{queue}")
    with channel_closed(403, REFUSED.format("exchange", "amq.fanout")):
        channel.queue_bind(f"limited.{queue}", "amq.fanout")


# --- misuse


def test_opening_a_channel_twice_closes_the_connection(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    channel._impl._send_method(pika.spec.Channel.Open())
    with connection_closed(504, "CHANNEL_ERROR - second 'channel.open' seen"):
        connection.process_data_events(time_limit=10)


def test_a_method_on_a_channel_that_is_not_open_closes_the_connection(connection: pika.BlockingConnection) -> None:
    connection.channel()
    connection._impl._send_method(9, pika.spec.Queue.Declare(queue="any"))
    with connection_closed(504, "CHANNEL_ERROR - expected 'channel.open'"):
        connection.process_data_events(time_limit=10)


def test_a_channel_beyond_the_agreed_number_closes_the_connection(connect: Connect) -> None:
    connection = connect(channel_max=3)
    for _ in range(3):
        connection.channel()
    connection._impl._send_method(4, pika.spec.Channel.Open())
    with connection_closed(
        530, "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    ):
        connection.process_data_events(time_limit=10)


def test_a_channel_number_is_free_after_its_close(connection: pika.BlockingConnection) -> None:
    for _ in range(5):
        channel = connection.channel(1)
        round_trip(channel)
        channel.close()


# --- heartbeats


def test_the_server_sends_heartbeats(broker: Broker) -> None:
    with amqp.Connection(f"127.0.0.1:{broker.port}", heartbeat=1) as connection:
        started_s = time.monotonic()
        received = connection.bytes_recv
        while time.monotonic() - started_s < 2.5:
            try:
                connection.drain_events(timeout=0.25)
            except TimeoutError:
                connection.send_heartbeat()
        assert connection.heartbeat == 1
        assert connection.bytes_recv - received >= 2
        round_trip_of = connection.channel()
        round_trip_of.close()


def test_a_silent_client_is_dropped(broker: Broker, connect: Connect, queue: str) -> None:
    watching = connect().channel()
    silent = amqp.Connection(f"127.0.0.1:{broker.port}", heartbeat=1)
    silent.connect()
    silent.channel().queue_declare(queue, exclusive=True)
    started_s = time.monotonic()

    def is_gone() -> bool:
        watching.basic_publish("", queue, b"?", mandatory=True)
        watching.connection.process_data_events(0.05)
        return bool(returned)

    returned: list[object] = []
    watching.add_on_return_callback(lambda *what: returned.append(what))
    eventually("the end of its exclusive queue", is_gone)
    assert 1.5 < time.monotonic() - started_s < 12
    silent.collect()
