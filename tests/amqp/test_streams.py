"""A stream of frames means the same however it is cut into reads: nothing is lost, doubled, mixed or reordered."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.amqp.serving import Serving
from tests.amqp.wire import Wire, method, properties, publish

_numbers = itertools.count(1)
_STREAMS = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

SHAPES: list[dict[str, Any]] = [
    {},
    {"delivery_mode": 2},
    {"delivery_mode": 2, "priority": 3},
    {"delivery_mode": 2, "priority": 9},
    {"headers": {"a": 1}},
    {"headers": {"a": 2}, "correlation_id": "x"},
    {"expiration": "600000"},
    {"message_id": "m"},
]


class Stream:
    """Random publishes on two channels to three queues, and what must come of them."""

    def __init__(self, seed: int, queues: list[str], exchange: str) -> None:
        self.random = Random(seed)
        self.queues = queues
        self.exchange = exchange
        self.data = b""
        self.sent: dict[str, list[tuple[int, bytes, bytes]]] = {queue: [] for queue in queues}
        self.published = {1: 0, 2: 0}
        self.returned = {1: 0, 2: 0}

    def fill(self) -> None:
        while self.random.random() < 0.95:
            channel, shape = self.random.choice((1, 1, 1, 2)), self.random.choice(SHAPES)
            size = self.random.choice((0, 1, 10, 10, 10, 300, 5000))
            for _ in range(self.random.choice((1, 1, 5, 20))):
                self._publish(channel, shape, size)
            if self.random.random() < 0.2:
                self.data += b"\x08\x00\x00\x00\x00\x00\x00\xce"

    def _publish(self, channel: int, shape: dict[str, Any], size: int) -> None:
        body = self.random.randbytes(size)
        self.published[channel] += 1
        where = self.random.random()
        if where < 0.1:
            self.data += publish(channel, "nowhere", body, mandatory=True, **shape)
            self.returned[channel] += 1
        elif where < 0.3:
            self.data += publish(channel, "", body, self.exchange, **shape)
            for queue in self.queues:
                self._expect(queue, channel, shape, body)
        else:
            queue = self.random.choice(self.queues)
            self.data += publish(channel, queue, body, **shape)
            self._expect(queue, channel, shape, body)

    def _expect(self, queue: str, channel: int, shape: dict[str, Any], body: bytes) -> None:
        self.sent[queue].append((channel, properties(**shape), body))

    def pieces(self) -> list[bytes]:
        found, at = [], 0
        while at < len(self.data):
            end = at + self.random.choice((1, 7, 8, 50, 1000, 20_000, 200_000))
            found.append(self.data[at:end])
            at = end
        return found


def take_all(wire: Wire, queue: str) -> list[tuple[bytes, bytes]]:
    taken = []
    while wire.ask(1, "basic.get", queue=queue, no_ack=1).name == "basic.get-ok":
        header = wire.expect("header")
        body = b""
        while len(body) < header.fields["size"]:
            body += wire.read().payload
        taken.append((header.payload[12:], body))
    return taken


@_STREAMS
@given(st.integers(0, 1 << 32))
def test_publishes_arrive_whole_and_in_order_however_they_are_cut(serving: Serving, wire: Wire, seed: int) -> None:
    names = [f"s{next(_numbers)}" for _ in range(3)]
    exchange = names[0] + ".x"
    wire.ask(1, "exchange.declare", exchange=exchange, type="fanout")
    for name, arguments in zip(names, ({}, {"x-max-priority": 5}, {"x-max-length": 1_000_000}), strict=True):
        wire.ask(1, "queue.declare", queue=name, arguments=arguments)
        wire.ask(1, "queue.bind", queue=name, exchange=exchange)
    stream = Stream(seed, names, exchange)
    stream.fill()
    with serving.log_in(channels=2) as publisher:
        for channel in (1, 2):
            publisher.ask(channel, "confirm.select")
        for piece in stream.pieces():
            publisher.send(piece)
        _all_is_told(publisher, stream)
    for name in names:
        _check(stream.sent[name], take_all(wire, name), by_priority=name == names[1])
        wire.ask(1, "queue.delete", queue=name)
    wire.ask(1, "exchange.delete", exchange=exchange)


def _all_is_told(publisher: Wire, stream: Stream) -> None:
    confirmed, returned = {1: 0, 2: 0}, {1: 0, 2: 0}
    while confirmed != stream.published or returned != stream.returned:
        got = publisher.read()
        if got.name == "basic.ack":
            last = got.fields["delivery"]
            assert last > confirmed[got.channel] and (got.fields["multiple"] or last == confirmed[got.channel] + 1)
            confirmed[got.channel] = last
        elif got.name == "basic.return":
            returned[got.channel] += 1
        else:
            assert got.name == "header" or got.kind == 3, str(got)


def _check(sent: list[tuple[int, bytes, bytes]], taken: list[tuple[bytes, bytes]], *, by_priority: bool) -> None:
    """Channels are told apart by what came of them: within each, and within each priority, the order holds."""
    assert sorted((raw, body) for _, raw, body in sent) == sorted(taken)

    def priority(raw: bytes) -> int:
        return min(raw[-1], 5) if by_priority and raw[:1] in (b"\x18", b"\x08") else 0

    levels = [priority(raw) for raw, _ in taken]
    assert levels == sorted(levels, reverse=True)
    for level in set(levels):
        arrived = [one for one in taken if priority(one[0]) == level]
        for channel in (1, 2):
            own = [(raw, body) for c, raw, body in sent if c == channel and priority(raw) == level and len(body) >= 10]
            unique = set(own)
            assert [one for one in arrived if one in unique] == own


@_STREAMS
@given(st.integers(0, 1 << 32))
def test_acks_count_however_they_are_cut(serving: Serving, wire: Wire, seed: int) -> None:
    random = Random(seed)
    queue = f"s{next(_numbers)}"
    wire.ask(1, "queue.declare", queue=queue)
    count = random.choice((1, 5, 60))
    wire.send(b"".join(publish(1, queue, str(n).encode()) for n in range(count)))
    left, data = set(range(count)), b""
    with serving.log_in(channels=1) as consumer:
        consumer.ask(1, "basic.consume", queue=queue, tag="c")
        for _ in range(count):
            consumer.expect("basic.deliver"), consumer.expect("header"), consumer.read()
        while left and random.random() < 0.95:
            tag = random.choice(sorted(left)) + 1
            if random.random() < 0.2:
                data += method(1, "basic.ack", delivery=tag, multiple=1)
                left = {n for n in left if n >= tag}
            elif random.random() < 0.1:
                data += method(1, "basic.nack", delivery=tag)
                left.discard(tag - 1)
            else:
                data += method(1, "basic.ack", delivery=tag)
                left.discard(tag - 1)
        while data:
            size = random.choice((1, 20, 21, 22, 500))
            consumer.send(data[:size])
            data = data[size:]
        assert consumer.ask(1, "basic.qos").name == "basic.qos-ok"
        assert consumer.ask(1, "channel.close").name == "channel.close-ok"
        assert [int(body) for _, body in take_all(wire, queue)] == sorted(left)
    wire.ask(1, "queue.delete", queue=queue)


def test_what_follows_a_mistake_in_the_same_read_is_not_published(serving: Serving, wire: Wire) -> None:
    queue = f"s{next(_numbers)}"
    wire.ask(1, "queue.declare", queue=queue)
    with serving.log_in(channels=2) as publisher:
        publisher.send(b"".join(publish(1, queue, b"%d" % n) for n in range(3)))  # from here on they are look-alikes
        publisher.ask(2, "basic.qos")
        learnt = b"".join(publish(1, queue, b"%d" % n) for n in range(3, 6))
        publisher.send(learnt + method(1, "basic.ack", delivery=77) + publish(1, queue, b"6") + publish(1, queue, b"7"))
        assert publisher.expect("channel.close").fields["text"] == "PRECONDITION_FAILED - unknown delivery tag 77"
        publisher.send(publish(1, queue, b"8") + method(1, "channel.close-ok"))
        publisher.ask(1, "channel.open")
        publisher.send(publish(1, queue, b"9"))
        publisher.ask(1, "basic.qos")
    assert [int(body) for _, body in take_all(wire, queue)] == [0, 1, 2, 3, 4, 5, 9]
    wire.ask(1, "queue.delete", queue=queue)
