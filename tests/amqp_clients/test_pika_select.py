"""pika without blocking: many messages under way, confirms that may cover several at once."""

from __future__ import annotations

from typing import Any

import pika
from pika.channel import Channel

COUNT = 2000


class Run:
    """Publishes COUNT messages without waiting, and consumes and acks them all, on one connection."""

    def __init__(self, url: str, queue: str) -> None:
        self.queue = queue
        self.unconfirmed: set[int] = set()
        self.confirms: list[tuple[int, bool]] = []
        self.nacked = 0
        self.bodies: list[bytes] = []
        self.closed_with: Any = None
        self.connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._opened),
            on_close_callback=self._closed,
            on_open_error_callback=self._closed,
        )

    def run(self) -> None:
        self.connection.ioloop.call_later(20, self.connection.ioloop.stop)
        self.connection.ioloop.start()

    def _closed(self, connection: pika.SelectConnection, reason: Any) -> None:
        self.closed_with = reason
        connection.ioloop.stop()

    def _opened(self, channel: Channel) -> None:
        self.channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._declare())

    def _declare(self) -> None:
        self.channel.queue_declare(self.queue, durable=True, callback=lambda _: self._start())

    def _start(self) -> None:
        self.channel.basic_qos(prefetch_count=100)
        self.channel.basic_consume(self.queue, self._delivered)
        properties = pika.BasicProperties(delivery_mode=2)
        for number in range(COUNT):
            self.unconfirmed.add(number + 1)
            self.channel.basic_publish("", self.queue, str(number).encode(), properties)

    def _confirmed(self, frame: Any) -> None:
        method = frame.method
        self.nacked += isinstance(method, pika.spec.Basic.Nack)
        self.confirms.append((method.delivery_tag, method.multiple))
        if method.multiple:
            self.unconfirmed = {tag for tag in self.unconfirmed if tag > method.delivery_tag}
        else:
            self.unconfirmed.remove(method.delivery_tag)
        self._finish()

    def _delivered(self, channel: Channel, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        self.bodies.append(body)
        channel.basic_ack(method.delivery_tag)
        self._finish()

    def _finish(self) -> None:
        if not self.unconfirmed and len(self.bodies) == COUNT:
            self.connection.close()


def test_thousands_under_way_are_all_confirmed_and_delivered_in_order(broker_url: str, queue: str) -> None:
    run = Run(broker_url, queue)
    run.run()
    assert run.bodies == [str(number).encode() for number in range(COUNT)]
    assert (run.unconfirmed, run.nacked) == (set(), 0)
    assert max(tag for tag, _ in run.confirms) == COUNT
    assert (run.closed_with.reply_code, run.closed_with.reply_text) == (200, "Normal shutdown")
