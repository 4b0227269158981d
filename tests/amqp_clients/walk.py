"""Random walks over one connection: whatever a client can do at once, and everything it can see of the answers.

A walk is the same for every server as long as the answers are, because it is drawn from a seed. So what RabbitMQ
answered is recorded once, and Laneway must answer the same, step by step, to the letter:

    LANEWAY_TEST_PEER=rabbitmq python -m tests.amqp_clients.walk > tests/amqp_clients/walks.jsonl

Left out is what RabbitMQ leaves to chance or does otherwise on purpose (docs/amqp.md): times, the order among several
consumers, what a full queue pushes out, quorum queues.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, NackError, UnroutableError

from . import servers
from .servers import Broker
from .speaking import WAIT_S, round_trip

SEEDS = range(16)
STEPS = 100

_ODDS = {
    "declare_queue": 8, "declare_exchange": 5, "delete_queue": 1, "delete_exchange": 1, "purge": 1, "bind": 8,
    "unbind": 2, "bind_exchange": 3, "publish": 30, "get": 20, "settle": 25, "recover": 1, "reopen": 2, "count": 4,
    "tx_select": 1, "tx_commit": 2, "tx_rollback": 1, "confirm": 1, "consume": 5, "cancel": 2, "qos": 2,
}  # fmt: skip


class Walk:
    def __init__(self, broker: Broker, seed: int) -> None:
        self._broker = broker
        self._random = random.Random(seed)
        self._prefix = f"walk{seed}."
        self._published = 0
        self._connection: pika.BlockingConnection
        self._channel: BlockingChannel
        self._connect()

    def steps(self, deliveries: Sequence[int | None]) -> Iterator[list[Any]]:
        """[what, with what result, what was delivered meanwhile], as JSON would bring it back. `deliveries` says how
        many to wait for at each step; None: for as many as come."""
        for expected in deliveries:
            what = self._random.choices(list(_ODDS), list(_ODDS.values()))[0]
            try:
                result = getattr(self, f"_{what}")()
                self._settle_down(expected)
            except ChannelClosedByBroker as closed:
                result = ["channel closed", closed.reply_code, closed.reply_text]
                self._open()
            except ConnectionClosedByBroker as closed:
                result = ["connection closed", closed.reply_code, closed.reply_text]
                self._connect()
            delivered, self._delivered = self._delivered, []
            yield json.loads(json.dumps([what, result, delivered], default=str))
        self._connection.close()

    def _connect(self) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(servers.url(self._broker)))
        self._open()

    def _open(self) -> None:
        self._channel = self._connection.channel()
        self._channel.add_on_return_callback(self._take_back)
        self._channel.add_on_cancel_callback(lambda _: setattr(self, "_consuming", None))
        self._returned: list[Any] = []
        self._delivered: list[Any] = []
        self._held: list[int] = []
        self._consuming: str | None = None

    def _settle_down(self, expected: int | None = 0) -> None:
        """Until nothing more is to be expected. RabbitMQ passes messages on between queues behind the scenes."""
        round_trip(self._channel)
        if self._broker.name == "rabbitmq":
            time.sleep(0.02)
        self._connection.process_data_events(0.1 if expected is None and self._consuming else 0)
        deadline_s = time.monotonic() + WAIT_S
        while len(self._delivered) < (expected or 0) and time.monotonic() < deadline_s:
            self._connection.process_data_events(0.01)

    def _take_back(self, _: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self._returned.append(
            [method.reply_code, method.exchange, method.routing_key, body.decode(), properties.headers]
        )

    # --- what steps are drawn from

    def _queue(self) -> str:
        return self._prefix + self._random.choice("abcd")

    def _exchange(self) -> str:
        return self._prefix + self._random.choice("XYZ")

    def _key(self) -> str:
        return self._random.choice(["", "k", "k.l", "k.l.m", "*", self._queue()])

    def _chance(self, odds: float) -> bool:
        return self._random.random() < odds

    def _match(self) -> dict[str, Any] | None:
        any_of, all_of = {"x-match": "any", "h": 1}, {"x-match": "all", "h": 1, "g": "x"}
        return self._random.choice([None, None, any_of, all_of, {"h": 2}, {"x-match": "all-with-x", "x-h": 1}])

    # --- steps: each returns what it did and what came of it

    def _declare_queue(self) -> Any:
        arguments: dict[str, Any] = {}
        if self._chance(0.25):
            arguments["x-max-priority"] = self._random.choice([1, 5])
        if self._chance(0.25):
            arguments["x-max-length"] = self._random.choice([1, 3, 6])
            arguments["x-overflow"] = self._random.choice(["reject-publish", "reject-publish-dlx"])
        if self._chance(0.5):
            exchanges = ["", self._prefix + "X", self._prefix + "Y", self._prefix + "nowhere"]
            arguments["x-dead-letter-exchange"] = self._random.choice(exchanges)
            key = self._random.choice([None, "k", self._queue(), self._queue()])
            if key is not None:
                arguments["x-dead-letter-routing-key"] = key
        queue, durable, passive = self._queue(), self._chance(0.8), self._chance(0.1)
        answer = self._channel.queue_declare(queue, durable=durable, passive=passive, arguments=arguments).method
        return [queue, durable, passive, arguments, answer.message_count]

    def _declare_exchange(self) -> Any:
        exchange, kind = self._exchange(), self._random.choice(["direct", "topic", "fanout", "headers"])
        arguments = {"alternate-exchange": self._exchange()} if self._chance(0.2) else {}
        auto_delete, internal = self._chance(0.2), self._chance(0.05)
        self._channel.exchange_declare(exchange, kind, auto_delete=auto_delete, internal=internal, arguments=arguments)
        return [exchange, kind, auto_delete, internal, arguments]

    def _delete_queue(self) -> Any:
        queue, if_empty = self._queue(), self._chance(0.5)
        return [queue, if_empty, self._channel.queue_delete(queue, if_empty=if_empty).method.message_count]

    def _delete_exchange(self) -> Any:
        exchange, if_unused = self._exchange(), self._chance(0.5)
        self._channel.exchange_delete(exchange, if_unused=if_unused)
        return [exchange, if_unused]

    def _purge(self) -> Any:
        queue = self._queue()
        return [queue, self._channel.queue_purge(queue).method.message_count]

    def _bind(self) -> Any:
        binding = self._queue(), self._exchange(), self._key(), self._match()
        self._channel.queue_bind(*binding)
        return binding

    def _unbind(self) -> Any:
        binding = self._queue(), self._exchange(), self._key(), self._match()
        self._channel.queue_unbind(*binding)
        return binding

    def _bind_exchange(self) -> Any:
        binding = self._exchange(), self._exchange(), self._key(), self._match()
        self._channel.exchange_bind(*binding)
        return binding

    def _publish(self) -> Any:
        exchange = self._random.choice(["", "", self._exchange()])
        key = self._key() if exchange else self._queue()
        given = {
            "h": self._random.choice([1, 2]),
            "g": "x",
            "x-h": 1,
            "CC": [self._key() or "z"],
            "BCC": [self._queue()],
        }
        odds = {"h": 0.3, "g": 0.2, "x-h": 0.1, "CC": 0.1, "BCC": 0.1}
        headers = {name: given[name] for name in given if self._chance(odds[name])}
        priority, mandatory = self._random.choice([None, 0, 1, 3, 9]), self._chance(0.5)
        self._published += 1
        body, outcome = f"m{self._published}", "sent"
        self._returned.clear()
        properties = pika.BasicProperties(headers=headers or None, priority=priority)
        try:
            self._channel.basic_publish(exchange, key, body, properties, mandatory=mandatory)
        except UnroutableError as error:
            outcome = f"returned {[one.method.reply_code for one in error.messages]}"
        except NackError:
            outcome = "nacked"
        self._settle_down()
        return [exchange, key, headers, priority, mandatory, body, outcome, self._returned]

    def _get(self) -> Any:
        queue, no_ack = self._queue(), self._chance(0.4)
        method, properties, body = self._channel.basic_get(queue, auto_ack=no_ack)
        if method is None:
            return [queue, no_ack, None]
        if not no_ack:
            self._held.append(method.delivery_tag)
        return [queue, no_ack, _shown(method, properties, body), method.message_count]

    def _consume(self) -> Any:
        queue, no_ack, exclusive = self._queue(), self._chance(0.2), self._chance(0.1)
        if self._consuming is not None:
            return None

        def take(_: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
            if not no_ack:
                self._held.append(method.delivery_tag)
            self._delivered.append([method.delivery_tag, *_shown(method, properties, body)])

        self._consuming = self._channel.basic_consume(queue, take, auto_ack=no_ack, exclusive=exclusive)
        return [queue, no_ack, exclusive]

    def _cancel(self) -> Any:
        if self._consuming is not None:
            self._channel.basic_cancel(self._consuming)
            self._consuming = None

    def _qos(self) -> Any:
        count = self._random.choice([0, 1, 3])
        self._channel.basic_qos(prefetch_count=count)
        return count

    def _settle(self) -> Any:
        if not self._held:
            return None
        tag = sorted(self._held)[int(self._random.random() * len(self._held))]
        how = self._random.choice(["ack", "nack", "reject"])
        requeue, multiple = self._chance(0.5), how != "reject" and self._chance(0.2)
        self._held = [one for one in self._held if one != tag and not (multiple and one < tag)]
        if how == "ack":
            self._channel.basic_ack(tag, multiple=multiple)
        elif how == "nack":
            self._channel.basic_nack(tag, multiple=multiple, requeue=requeue)
        else:
            self._channel.basic_reject(tag, requeue=requeue)
        return [how, tag, multiple, requeue]

    def _recover(self) -> None:
        self._channel.basic_recover(requeue=True)
        self._held = []

    def _reopen(self) -> None:
        self._channel.close()
        self._open()

    def _count(self) -> Any:
        answer = self._channel.queue_declare(self._queue(), passive=True).method
        return [answer.queue, answer.message_count, answer.consumer_count]

    def _tx_select(self) -> None:
        self._channel.tx_select()

    def _tx_commit(self) -> None:
        self._channel.tx_commit()

    def _tx_rollback(self) -> None:
        self._channel.tx_rollback()
        self._held = []  # some of them are held again, and stay so

    def _confirm(self) -> None:
        self._channel.confirm_delivery()


def _shown(method: Any, properties: pika.BasicProperties, body: bytes) -> list[Any]:
    headers = dict(properties.headers or {})
    for death in headers.get("x-death", ()):
        del death["time"]
    where = [method.exchange, method.routing_key, method.redelivered]
    return [body.decode(), *where, properties.priority, {name: headers[name] for name in sorted(headers)}]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        server = servers.start_one(Path(folder))
        try:
            for number in SEEDS:
                print(json.dumps([number, list(Walk(server, number).steps([None] * STEPS))]), flush=True)
        finally:
            server.stop()
        print(f"recorded from {server.name}", file=sys.stderr)
