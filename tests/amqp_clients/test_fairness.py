"""Who gets how much: consumers that share a queue or a limit get even shares, and basic.get overtakes nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .conftest import Connect
from .speaking import Consumer, get_now, publish, round_trip

Name = Callable[[str], str]

DELIVERIES = 99
#: Chance has a say: RabbitMQ draws among the queues of a channel. 99 draws among 3 give each at least so many.
LEAST = 12


class Shares:
    """Counts deliveries by consumer and acks each at once, until there were enough."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def take(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        if self.counts.total() < DELIVERIES:
            self.counts[method.consumer_tag] += 1
            channel.basic_ack(method.delivery_tag)

    def wait(self, channel: BlockingChannel) -> list[int]:
        for _ in range(1500):
            if self.counts.total() == DELIVERIES:
                break
            channel.connection.process_data_events(time_limit=0.01)
        return sorted(self.counts.values())


def filled(channel: BlockingChannel, queue: str, **options: Any) -> None:
    channel.queue_declare(queue, durable=True, **options)
    publish(channel, queue, *[b"%d" % n for n in range(DELIVERIES + 3)])


@pytest.mark.parametrize("is_global", [True, False], ids=["of-the-channel", "of-each"])
def test_consumers_of_one_queue_get_even_shares(confirming: BlockingChannel, queue: str, *, is_global: bool) -> None:
    filled(confirming, queue)
    channel, shares = confirming.connection.channel(), Shares()
    channel.basic_qos(prefetch_count=1, global_qos=is_global)
    for _ in range(3):
        channel.basic_consume(queue, shares.take)
    counts = shares.wait(channel)
    assert len(counts) == 3 and counts[0] >= LEAST, counts


def test_consumers_of_several_channels_get_even_shares(confirming: BlockingChannel, queue: str) -> None:
    filled(confirming, queue)
    shares = Shares()
    for _ in range(3):
        channel = confirming.connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(queue, shares.take)
    counts = shares.wait(confirming)
    assert len(counts) == 3 and counts[0] >= LEAST, counts


@pytest.mark.parametrize("is_global", [True, False], ids=["of-the-channel", "of-each"])
def test_queues_of_one_channel_get_even_shares(confirming: BlockingChannel, name: Name, *, is_global: bool) -> None:
    queues = [name(f"queue{n}") for n in range(3)]
    for queue in queues:
        filled(confirming, queue)
    channel, shares = confirming.connection.channel(), Shares()
    channel.basic_qos(prefetch_count=1, global_qos=is_global)
    for queue in queues:
        channel.basic_consume(queue, shares.take)
    counts = shares.wait(channel)
    assert len(counts) == 3 and counts[0] >= LEAST, counts


def test_queues_that_are_published_to_meanwhile_get_even_shares(confirming: BlockingChannel, name: Name) -> None:
    queues = [name(f"queue{n}") for n in range(3)]
    for queue in queues:
        filled(confirming, queue)
    channel, shares = confirming.connection.channel(), Shares()
    channel.basic_qos(prefetch_count=1, global_qos=True)

    def take(channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        publish(channel, queues[0], b"more")  # the first queue has news each time; the others wait no longer for that
        shares.take(channel, method, properties, body)

    for queue in queues:
        channel.basic_consume(queue, take)
    counts = shares.wait(channel)
    assert len(counts) == 3 and counts[0] >= LEAST, counts


@pytest.mark.parametrize("prefetch", [0, 5])
def test_get_does_not_overtake_a_consumer_that_waits(connect: Connect, queue: str, prefetch: int) -> None:
    consuming, getting = connect().channel(), connect().channel()
    consuming.queue_declare(queue, durable=True)
    consuming.basic_qos(prefetch_count=prefetch)
    consumer = Consumer(consuming, queue)
    round_trip(consuming)
    for n in range(5):
        publish(getting, queue, b"%d" % n)
        assert get_now(getting, queue) is None, n
    assert consumer.wait(5) == [b"0", b"1", b"2", b"3", b"4"]
    if prefetch:  # its credit is used up: now get has its turn
        publish(getting, queue, b"5")
        message = get_now(getting, queue)
        assert message is not None and message.body == b"5"
