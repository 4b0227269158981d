"""Random exchanges, bindings and messages: what reaches which queue is what the model of the core tests says.

With LANEWAY_TEST_PEER=rabbitmq this shows that the model says what RabbitMQ does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from laneway.core.exchanges import Binding, ExchangeSettings
from laneway.core.matching import X_MATCHES
from tests.core.exchange_model import Model

STEPS = 25
MESSAGES_A_STEP = 3
VALUES = [1, True, "1", b"1", None]  # those that pika can send


class World:
    """A few exchanges and queues of a real server, and what the model thinks of them."""

    def __init__(self, random: Random, connection: pika.BlockingConnection, name: Callable[[str], str]) -> None:
        self.random = random
        self.connection = connection
        self.channel: BlockingChannel = connection.channel()
        self.channel.confirm_delivery()
        self.model = Model()
        self.queues = [name(letter) for letter in "abc"]
        self.exchanges = [name(letter) for letter in "xyz"]
        for queue in self.queues:
            self.channel.queue_declare(queue)
            self.model.queues.add(queue)
        for exchange in self.exchanges:
            self.declare(exchange)

    def declare(self, exchange: str) -> None:
        alternate = self.random.choice([None, None, *self.exchanges, "nowhere", ""])
        settings = ExchangeSettings(
            type=self.random.choice(["direct", "topic", "fanout", "headers"]),  # type: ignore[arg-type]
            auto_delete=self.random.random() < 0.4,
            alternate_exchange=alternate,
        )
        self.channel.exchange_declare(
            exchange,
            settings.type,
            durable=True,
            auto_delete=settings.auto_delete,
            arguments=None if alternate is None else {"alternate-exchange": alternate},
        )
        assert self.model.declare(exchange, settings) is None

    def step(self) -> None:
        what = self.random.random()
        if what < 0.65:
            self.bind()
        elif what < 0.85 and self.model.bindings:
            self.unbind(self.random.choice(self.model.bindings))
        elif what < 0.9:
            exchange = self.random.choice(self.exchanges)
            self.channel.exchange_delete(exchange)
            self.model.delete(exchange, if_unused=False)
        elif what < 0.95:
            queue = self.random.choice(self.queues)
            self.channel.queue_delete(queue)
            self.model.delete_queue(queue)

    def bind(self) -> None:
        source = self.random.choice(self.exchanges)
        if source not in self.model.exchanges:
            self.declare(source)
        words = [self.random.choice(["a", "b", "*", "#", ""]) for _ in range(self.random.randint(0, 4))]
        arguments = self.some_headers()
        if self.random.random() < 0.7:
            arguments["x-match"] = self.random.choice(X_MATCHES)
        to_queue = self.random.random() < 0.7
        destination = self.random.choice(self.queues if to_queue else self.exchanges)
        binding = Binding(source, "queue" if to_queue else "exchange", destination, ".".join(words), arguments)
        if self.model.bind(binding) is None:
            bind = self.channel.queue_bind if to_queue else self.channel.exchange_bind
            bind(destination, source, binding.routing_key, arguments=arguments or None)

    def unbind(self, binding: Binding) -> None:
        unbind = self.channel.queue_unbind if binding.kind == "queue" else self.channel.exchange_unbind
        unbind(binding.destination, binding.source, binding.routing_key, arguments=binding.arguments or None)
        self.model.unbind(binding)

    def some_headers(self) -> dict[str, Any]:
        names = self.random.sample(["p", "q", "x-p"], self.random.randint(0, 3))
        return {name: self.random.choice(VALUES) for name in names}

    def check(self) -> None:
        there = {exchange for exchange in self.exchanges if self.is_there(exchange)}
        assert there == set(self.exchanges) & set(self.model.exchanges)
        for _ in range(MESSAGES_A_STEP if there else 0):
            exchange = self.random.choice(sorted(there))
            words = [self.random.choice(["a", "b", "", "*"]) for _ in range(self.random.randint(0, 4))]
            self.check_message(exchange, ".".join(words), self.some_headers())

    def is_there(self, exchange: str) -> bool:
        channel = self.connection.channel()
        try:
            channel.exchange_declare(exchange, passive=True)
        except ChannelClosedByBroker:
            return False
        channel.close()
        return True

    def check_message(self, exchange: str, key: str, headers: dict[str, Any]) -> None:
        self.channel.basic_publish(exchange, key, b"x", pika.BasicProperties(headers=headers))
        found = {queue: self.drain(queue) for queue in self.model.queues}
        expected = self.model.route(exchange, key, headers)
        assert found == {queue: int(queue in expected) for queue in found}, (
            f"{exchange} {self.model.exchanges[exchange]}, key {key!r}, headers {headers}, bindings "
            + "\n".join(map(repr, self.model.bindings))
        )

    def drain(self, queue: str) -> int:
        count = 0
        while self.channel.basic_get(queue, auto_ack=True)[0] is not None:
            count += 1
        return count


@pytest.mark.parametrize("seed", range(12))
def test_messages_go_where_the_model_says(
    seed: int, connection: pika.BlockingConnection, name: Callable[[str], str]
) -> None:
    world = World(Random(seed), connection, name)
    for _ in range(STEPS):
        world.step()
        world.check()
