"""Publishes and acks that are cut out many at a time do what they would do frame by frame, wherever the bytes are cut
and whatever is between them."""

from __future__ import annotations

import inspect
import struct
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from laneway.frontends.amqp import incoming
from laneway.frontends.amqp.errors import AmqpError
from laneway.frontends.amqp.incoming import ACK, Incoming
from tests.amqp.serving import Serving
from tests.amqp.wire import Wire, frame, method, properties, publish
from tests.in_thread import wait_for

FRAME_MAX = 4096
CHANNELS = (1, 2, 3)
LAST_TAG = 500  # what is acked beyond it was never delivered
LARGEST = 10_000

ROUTES: list[dict[str, tuple[int, ...]]] = [
    {"a": (1,), "b": (2,), "ab": (1, 2), "nowhere": ()},
    {"a": (2,), "b": (1,), "ab": (2, 3), "nowhere": ()},
]
UNSET = properties(delivery_mode=2)
PRIORITIES = {UNSET: 0} | {properties(delivery_mode=2, priority=p): p for p in (0, 1, 5)}


Shape = tuple[int, str, bytes, int, bool]  # channel, key, properties, size of the body, mandatory


class FakeChannel:
    def __init__(self, number: int) -> None:
        self.number = number
        self.is_closing = False
        self.lanes: dict[tuple[int, int], list[tuple[bytes, bytes]]] = defaultdict(list)
        self.events: list[Any] = []
        self.acks: list[Any] = []
        self.published = 0


class Recorder:
    """A connection that notes what happens to whom. One lane of one channel is in order; lanes are independent."""

    def __init__(self, kind: type[Incoming], largest: int) -> None:
        self.version = 0
        self.largest = largest
        self.channels = {number: FakeChannel(number) for number in CHANNELS}
        self.incoming = kind(self, FRAME_MAX, 1 << 26, largest)
        self.together_count = 0  # publishes that came with others
        self.connection_events: list[Any] = []

    def takes(self, channel: int, method: int) -> bool:
        if channel not in self.channels:
            raise AmqpError(504, "expected 'channel.open'", method=method)
        return not self.channels[channel].is_closing

    def on_method(self, channel: int, number: int, payload: bytes) -> None:
        found = self.channels.get(channel)
        if found is None:
            self.connection_events.append((channel, number, payload))
        elif number == ACK:
            tag, multiple = struct.unpack(">QB", payload[4:])
            self._ack(found, tag, bool(multiple & 1))
        elif not found.is_closing:
            found.events.append((number, payload, found.published))

    def on_large_content(self, size: int, *, is_alone: bool) -> None:
        pass

    def on_large_content_end(self, size: int) -> None:
        pass

    def give_way(self) -> None:
        """It goes on at once: when the rest is fed makes no difference."""

    def on_acks(self, channel: int, acks: list[tuple[int, int, bool]]) -> None:
        for first, last, multiple in acks:
            for tag in range(first, last + 1):
                self._ack(self.channels[channel], tag, multiple)

    def _ack(self, channel: FakeChannel, tag: int, multiple: bool) -> None:
        if not channel.is_closing:
            channel.acks.append((tag, multiple, len(channel.events)))
            if tag > LAST_TAG or (tag == 0 and not multiple):
                self._end(channel)

    def on_content_size(self, channel: int, size: int) -> None:
        if size > self.largest:
            self._end(self.channels[channel])

    def on_publishes(self, channel: int, publishes: list[tuple[bytes, bytes, bytes]]) -> None:
        found = self.channels[channel]
        if len(publishes) > 1:
            self.together_count += len(publishes)
        for head, block, body in publishes:
            exchange, key = self._address(head)
            if exchange:
                self._end(found)
                return
            self._publish(found, ROUTES[self.version % 2][key], block, [body])

    def _publish(self, channel: FakeChannel, queues: tuple[int, ...], block: bytes, bodies: list[bytes]) -> None:
        for queue in queues:
            channel.lanes[queue, PRIORITIES.get(block, 0)] += [(block, body) for body in bodies]
        channel.published += len(bodies)

    def _end(self, channel: FakeChannel) -> None:
        self.incoming.forget(channel.number)
        channel.is_closing = True
        channel.events.append(("end", channel.published))

    @staticmethod
    def _address(method: bytes) -> tuple[str, str]:
        size = method[6]
        key_at = 7 + size
        return method[7:key_at].decode(), method[key_at + 1 : key_at + 1 + method[key_at]].decode()

    def seen(self) -> Any:
        channels = {n: (dict(c.lanes), c.events, c.acks, c.published, c.is_closing) for n, c in self.channels.items()}
        return channels, self.connection_events


class FrameByFrame(Incoming):
    """Takes everything the careful way."""

    def _take_publishes(self, data: bytes, at: int, most: int) -> int:
        return at

    def _take_acks(self, data: bytes, at: int) -> int:
        return at


class Stream:
    """Bytes as clients send them, with mistakes now and then."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.tag = 0
        self.number = 0
        self.mistakes = random.random() < 0.3
        self.shapes = [self._shape() for _ in range(random.choice((1, 2, 4, 8)))]

    def _shape(self) -> Shape:
        r = self.random
        channel = r.choice((1, 1, 1, 2, 3))
        size = r.choice((0, 1, 8, 100, 100, 1000, FRAME_MAX - 8, FRAME_MAX - 7, 9_000))
        return channel, r.choice(("a", "a", "b", "ab", "nowhere")), r.choice(list(PRIORITIES)), size, r.random() < 0.2

    def publish_frames(self, shapes: list[Shape] | None = None) -> tuple[int, list[bytes]]:
        channel, key, raw, size, mandatory = self.random.choice(shapes or self.shapes)
        self.number += 1
        body = (b"%d." % self.number * (size // 2 + 1))[:size]
        exchange = "missing" if self.mistakes and self.random.random() < 0.01 else ""
        frames = [method(channel, "basic.publish", exchange=exchange, key=key, mandatory=mandatory)]
        if self.mistakes and self.random.random() < 0.01:
            size = LARGEST + 1
        frames.append(frame(2, channel, struct.pack(">HHQ", 60, 0, size) + raw))
        most = FRAME_MAX - 8
        frames += [frame(3, channel, body[at : at + most]) for at in range(0, len(body), most)]
        return channel, frames

    def ack(self) -> bytes:
        r = self.random
        channel = r.choice((1, 1, 1, 2))
        out = b""
        for _ in range(r.choice((1, 1, 5, 20))):
            self.tag += 1
            tag, multiple = self.tag, r.random() < 0.1
            if r.random() < 0.1:
                tag = r.randint(1, self.tag)
            if r.random() < 0.02:
                tag, multiple = 0, True
            if self.mistakes and r.random() < 0.02:
                tag, multiple = r.choice((0, LAST_TAG + 7)), False
            out += method(channel, "basic.ack", delivery=min(tag, LAST_TAG + 7), multiple=multiple)
        return out

    def malformed(self) -> bytes:
        good = publish(1, "a", b"x", delivery_mode=2)
        return self.random.choice(
            (
                good[:-1] + b"\x00",
                b"".join(self.publish_frames()[1])[:-1] + b"\x00",
                frame(3, 1, b"body out of place"),
                frame(7, 1, b"unknown"),
                frame(2, 0, b""),
                frame(1, 1, b"\x00"),
                struct.pack(">BHI", 3, 1, FRAME_MAX),
                method(1, "basic.publish", key="a") + method(1, "basic.qos"),
                method(1, "basic.publish", key="a")
                + frame(2, 1, struct.pack(">HHQH", 60, 0, 1, 0))
                + frame(3, 1, b"xx"),
                method(1, "basic.publish", key="a") + frame(2, 1, struct.pack(">HHQH", 61, 0, 1, 0)),
                publish(9, "a", b"x"),
            )
        )

    def parts(self) -> Iterator[bytes]:
        r = self.random
        for _ in range(r.choice((5, 20, 60))):
            drawn = r.random()
            if drawn < 0.6:
                for _ in range(r.choice((1, 2, 10))):
                    frames = self.publish_frames()[1]
                    if self.mistakes and r.random() < 0.02:
                        self._damage(frames)
                    yield b"".join(frames)
            elif drawn < 0.75:
                yield self.ack()
            elif drawn < 0.85:
                yield method(r.choice(CHANNELS), "basic.qos", count=r.randrange(100))
            elif drawn < 0.87:
                yield frame(8, 0, b"")
            elif drawn < 0.9:
                yield self.mixed()
            elif drawn < 0.95:
                yield self.interleaved()
            elif self.mistakes and r.random() < 0.3:
                yield self.malformed()
                return

    def mixed(self) -> bytes:
        """Many of one size, in whichever order: of all priorities, on several channels, and now and then a stranger."""
        channel, key, _, size, mandatory = self.random.choice(self.shapes)
        channels = self.random.choice(((channel,), CHANNELS))
        raws = [raw for raw in PRIORITIES if raw != UNSET] if self.random.random() < 0.8 else PRIORITIES
        shapes = [(one, key, raw, size, mandatory) for one in channels for raw in raws]
        strangers = self.shapes if self.random.random() < 0.3 else []
        out = [self.publish_frames(shapes)[1] for _ in range(self.random.choice((10, 40, 150)))]
        for _ in strangers:
            out.insert(self.random.randrange(len(out)), self.publish_frames(strangers)[1])
        if self.mistakes and self.random.random() < 0.5:
            self._damage(self.random.choice(out))
        return b"".join(b"".join(frames) for frames in out)

    def _damage(self, frames: list[bytes]) -> None:
        """Make one of the frames of a publish end wrongly, belong to another channel, or have another size."""
        at = self.random.randrange(len(frames))
        kind, channel, _ = struct.unpack_from(">BHI", frames[at])
        payload = frames[at][7:-1]
        if at == 1 and self.random.random() < 0.3:
            payload = struct.pack(">HH", 61, 0) + payload[4:]
        frames[at] = self.random.choice(
            (
                frames[at][:-1] + b"\x00",
                frame(kind, channel % 3 + 1, payload),
                frame(kind, channel, payload[:-1]),
                frame(kind, channel, payload),
            )
        )

    def interleaved(self) -> bytes:
        """Two channels publish, frame by frame in turns."""
        out, shapes = b"", self.random.choices(self.shapes, k=2)
        in_turns = self.random.random() < 0.5  # then look-alikes are interleaved alike
        for _ in range(self.random.choice((1, 4))):
            (channel, one), (other_channel, other) = self.publish_frames(shapes[:1]), self.publish_frames(shapes[1:])
            if channel == other_channel:
                return b"".join(one + other)
            while one or other:
                out += (one if one and (in_turns or not other or self.random.random() < 0.5) else other).pop(0)
                one, other = (other, one) if in_turns and other else (one, other)
        return out


def fed(recorder: Recorder, pieces: list[bytes], changes: set[int]) -> Any:
    """What happened, and how it ended."""
    for at, piece in enumerate(pieces):
        if at in changes:
            recorder.version += 1
        try:
            recorder.incoming.feed(piece)
        except AmqpError as error:
            return recorder.seen(), error.text, error.method, at
    return recorder.seen(), None, None, len(pieces)


def cut(random: Random, data: bytes) -> list[bytes]:
    most = random.choice((3, 50, 1000) if len(data) < 20_000 else (1_000, 20_000, 1 << 20))
    pieces, at = [], 0
    while at < len(data):
        size = random.randint(1, most)
        pieces.append(data[at : at + size])
        at += size
    return pieces


def compare(seed: int) -> int:
    """How many publishes were taken together."""
    random = Random(seed)
    pieces = cut(random, b"".join(Stream(random).parts()))
    changes = {random.randrange(len(pieces)) for _ in range(random.choice((0, 0, 1, 3)))} if pieces else set()
    largest = random.choice((LARGEST, LARGEST, 4_000))
    one_by_one, together = Recorder(FrameByFrame, largest), Recorder(Incoming, largest)
    expected, found = fed(one_by_one, pieces, changes), fed(together, pieces, changes)
    assert found == expected, f"seed {seed}"
    assert one_by_one.together_count == 0
    return together.together_count


@pytest.mark.parametrize("first", range(0, 1_000, 500))
def test_many_at_a_time_is_as_one_by_one(first: int) -> None:
    count = sum(compare(seed) for seed in range(first, first + 500))
    assert count > 3_000, f"{count} publishes that came together are too few to tell"


# So the test above can fail: mistakes that could have been made.


def _another_way_of_cutting(patch: pytest.MonkeyPatch, wrong: str, right: str) -> None:
    """Replace something in the source of the cutting loop."""
    source = textwrap.dedent(inspect.getsource(Incoming._take_publishes))
    assert right in source, right
    names: dict[str, Any] = {}
    exec(source.replace(right, wrong), vars(incoming), names)
    patch.setattr(Incoming, "_take_publishes", names["_take_publishes"])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("if channel != first_channel:", "if False:"),
        ("or same != channel", ""),
        ("or data[end] != FRAME_END", ""),
        ("or body_size > largest", ""),
        ("data[head - 1] != FRAME_END", "False"),
        ("_unpack_frame(data, body_head) != (BODY, channel, body_size)", "False"),
    ],
)
def test_a_mistake_is_found(right: str, wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _another_way_of_cutting(monkeypatch, wrong, right)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(1_000):
            compare(seed)


# The same with a whole server


def test_what_follows_a_mistake_on_its_channel_is_not_published(wire: Wire, serving: Serving, queue: str) -> None:
    alike = publish(1, queue, b"taken")
    wire.send(alike * 3)
    wire.send(alike * 2 + publish(1, queue, b"mistake", exchange="no-such-exchange") + publish(1, queue, b"after") * 3)
    assert wire.expect("channel.close").fields["code"] == 404
    wire.send(method(1, "channel.close-ok") + method(2, "channel.open"))
    wire.expect("channel.open-ok")
    assert wire.ask(2, "queue.declare", queue=queue, passive=1).fields["messages"] == 5


def test_what_follows_the_end_of_a_connection_is_not_published(serving: Serving, wire: Wire, queue: str) -> None:
    with serving.log_in() as other:
        alike = publish(1, queue, b"taken")
        other.send(alike * 3)
        other.ask(1, "basic.qos")
        other.send(alike * 3 + frame(7, 1, b"unknown") + alike * 3)
        assert other.expect("connection.close").fields["code"] == 501
        other.send(alike * 5 + method(0, "connection.close-ok"))
        other.read_until_closed()
    assert wire.ask(1, "queue.declare", queue=queue, passive=1).fields["messages"] == 6


def test_acks_before_a_wrong_one_count_and_those_behind_it_do_not(wire: Wire, serving: Serving, queue: str) -> None:
    wire.send(publish(1, queue, b"x") * 6 + method(1, "basic.consume", queue=queue))
    wire.expect("basic.consume-ok")
    for _ in range(6):
        wire.expect("basic.deliver")
        wire.read(), wire.read()
    acks = [method(1, "basic.ack", delivery=tag) for tag in (1, 2, 4, 3, 4, 5)]  # 4 comes twice
    wire.send(b"".join(acks))
    assert wire.expect("channel.close").fields["text"] == "PRECONDITION_FAILED - unknown delivery tag 4"
    wire.send(method(1, "channel.close-ok") + method(2, "channel.open"))
    wire.expect("channel.open-ok")
    wait_for(
        lambda: wire.ask(2, "queue.declare", queue=queue, passive=1).fields["messages"] == 2,
        "the others are given back",
    )
