"""What a restart of the server leaves: durable things and persistent messages, and nothing of the others."""

from __future__ import annotations

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from . import servers
from .speaking import get, publish


def test_durable_things_and_persistent_messages_outlive_a_restart(tmp_path_factory: pytest.TempPathFactory) -> None:
    broker = servers.start_one(tmp_path_factory.mktemp("restarted"))
    try:
        with pika.BlockingConnection(pika.URLParameters(servers.url(broker))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.exchange_declare("kept", exchange_type="topic", durable=True)
            channel.exchange_declare("lost")
            channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 5, "x-max-length": 100})
            channel.queue_declare("lost")
            channel.queue_bind("kept", "kept", routing_key="a.*")
            for number in range(3):
                properties = pika.BasicProperties(delivery_mode=2, priority=number, headers={"number": number})
                channel.basic_publish("kept", "a.b", str(number), properties)
            held = get(channel, "kept", ack=False)
            assert held.body == b"2"
        broker.stop()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(servers.url(broker))) as connection:
            channel = connection.channel()
            messages = [get(channel, "kept") for _ in range(3)]
            assert [(one.body, one.headers["number"]) for one in messages] == [(b"2", 2), (b"1", 1), (b"0", 0)]
            assert (messages[0].method.redelivered, messages[1].method.redelivered) == (True, False)
            channel.queue_declare("kept", durable=True, arguments={"x-max-priority": 5, "x-max-length": 100})
            channel.basic_publish("kept", "a.c", b"still bound")
            assert get(channel, "kept").body == b"still bound"
            publish(channel, "kept", b"x")
            for declare in (channel.queue_declare, connection.channel().exchange_declare):
                with pytest.raises(ChannelClosedByBroker) as info:
                    declare("lost", passive=True)
                assert info.value.reply_code == 404
    finally:
        broker.stop()
