"""Short words for what most tests with pika say: publish, get, wait, be refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

WAIT_S = 15.0

Found = TypeVar("Found")


class Message(NamedTuple):
    method: Any
    properties: pika.BasicProperties
    body: bytes

    @property
    def tag(self) -> int:
        return int(self.method.delivery_tag)

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}


def eventually(what: str, check: Callable[[], Found], *, within_s: float = WAIT_S) -> Found:
    """The first true thing that check() returns, asked again and again until then."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what}: not within {within_s:g} s"
        time.sleep(0.02)


def publish(channel: BlockingChannel, queue: str, *bodies: str | bytes, **properties: Any) -> None:
    """Through the default exchange, to this queue."""
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def get_now(channel: BlockingChannel, queue: str, *, ack: bool = True) -> Message | None:
    method, properties, body = channel.basic_get(queue, auto_ack=ack)
    return None if method is None else Message(method, properties, body)


def get(channel: BlockingChannel, queue: str, *, ack: bool = True) -> Message:
    """The next message, waited for if need be."""
    found = eventually(f"a message in {queue}", lambda: get_now(channel, queue, ack=ack))
    assert found is not None
    return found


def bodies_in(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Take all that is in the queue now."""
    found = []
    while (message := get_now(channel, queue)) is not None:
        found.append(message.body)
    return found


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


class Consumer:
    """Keeps what was delivered to it; acks only when told to."""

    def __init__(self, channel: BlockingChannel, queue: str, **options: Any) -> None:
        self.channel = channel
        self.messages: list[Message] = []
        self.tag = channel.basic_consume(queue, self._take, **options)

    def _take(self, channel: BlockingChannel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.messages.append(Message(method, properties, body))

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def wait(self, number: int) -> list[bytes]:
        """The bodies so far, once there are this many."""
        deadline_s = time.monotonic() + WAIT_S
        while len(self.messages) < number:
            assert time.monotonic() < deadline_s, f"{len(self.messages)} messages came instead of {number}"
            self.channel.connection.process_data_events(time_limit=0.05)
        return self.bodies

    def settle_down(self) -> list[bytes]:
        """The bodies once the server has said all that it had to say: answers come after deliveries made before."""
        for _ in range(3):
            round_trip(self.channel)
            self.channel.connection.process_data_events(time_limit=0.05)
        return self.bodies


def round_trip(channel: BlockingChannel) -> None:
    """Ask something harmless and wait for the answer: what was sent before has been dealt with, or has failed."""
    channel.exchange_declare("amq.direct", exchange_type="direct", passive=True)


@contextmanager
def channel_closed(code: int, text: str) -> Iterator[None]:
    with pytest.raises(ChannelClosedByBroker) as info:
        yield
    assert (info.value.reply_code, info.value.reply_text) == (code, text)


@contextmanager
def connection_closed(code: int, text: str) -> Iterator[None]:
    with pytest.raises(ConnectionClosedByBroker) as info:
        yield
    assert (info.value.reply_code, info.value.reply_text) == (code, text)
