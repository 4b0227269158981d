"""What AMQP clients do, for the load generator: publish with confirms, consume with acks, as cheaply as Python can.

Messages are encoded before the measurement (amqp_messages.py), so publishing is slicing a buffer. Every delivery is
looked at: where its frames end, its tag, whether it was redelivered, which message it is. That takes about a
microsecond.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from benchmarks import amqp_frames as amqp
from benchmarks.amqp_messages import SERIAL_AT, SERIAL_DIGITS, Pool
from benchmarks.load import Connection, LoadFailed

WINDOW = 2_000  # messages that a publisher has on the way to their confirms
LEAST_WRITE = 100  # it waits until it may send this many: a write for each confirm would measure system calls
PREFETCH = 1_000
ACK_EVERY = 100
_BUFFER_BYTES = 4 << 20
_TAG = struct.Struct(">QB")  # of a delivery: its tag, and whether it is a redelivery
_DELIVER = struct.pack(">HH", *amqp.DELIVER)

Settings = Mapping[str, int | str]


class AmqpConnection(Connection):
    """A connection with one open channel. It talks in turns until it is given to a Load."""

    def __init__(self, address: tuple[str, int], *, heartbeat_seconds: int = 0) -> None:
        super().__init__(address)
        self.socket.settimeout(30)
        self._early = bytearray()
        self.socket.sendall(amqp.PROTOCOL_HEADER)
        self.answer(amqp.START)
        start_ok = (
            amqp.table({}) + amqp.short_text("PLAIN") + amqp.long_bytes(b"\0guest\0guest") + amqp.short_text("en_US")
        )
        tune = self.ask(amqp.method(amqp.START_OK, start_ok, 0), amqp.TUNE)
        channel_max, frame_max, _ = struct.unpack(">HIH", tune)
        tune_ok = amqp.method(amqp.TUNE_OK, struct.pack(">HIH", channel_max, frame_max, heartbeat_seconds), 0)
        self.ask(tune_ok + amqp.method(amqp.OPEN, amqp.short_text("/") + b"\0\0", 0), amqp.OPEN_OK)
        self.ask(amqp.method(amqp.CHANNEL_OPEN, b"\0"), amqp.CHANNEL_OPEN_OK)

    def ask(self, said: bytes, expected: tuple[int, int]) -> bytes:
        """Send this and return the arguments of the method that must be the answer."""
        self.socket.sendall(said)
        return self.answer(expected)

    def answer(self, expected: tuple[int, int]) -> bytes:
        while True:
            for kind, at, end in amqp.frames(self._early):
                payload = bytes(self._early[at : end - 1])
                del self._early[:end]
                if kind == amqp.HEARTBEAT:
                    break
                if kind != amqp.METHOD or amqp.which_method(payload, 0) != expected:
                    raise LoadFailed(f"expected method {expected}, got a frame of type {kind}: {payload[:200]!r}")
                return payload[4:]
            else:
                piece = self.socket.recv(65536)
                if not piece:
                    raise LoadFailed(f"the server closed the connection instead of answering {expected}")
                self._early += piece

    def declare(self, queue: str, settings: Settings) -> None:
        """A durable queue with these arguments."""
        arguments = b"\0\0" + amqp.short_text(queue) + b"\x02" + amqp.table(settings)
        self.ask(amqp.method(amqp.DECLARE, arguments), amqp.DECLARE_OK)

    def declare_exchange(self, exchange: str, kind: str) -> None:
        arguments = b"\0\0" + amqp.short_text(exchange) + amqp.short_text(kind) + b"\x02" + amqp.table({})
        self.ask(amqp.method(amqp.EXCHANGE_DECLARE, arguments), amqp.EXCHANGE_DECLARE_OK)

    def delete_exchange(self, exchange: str) -> None:
        arguments = b"\0\0" + amqp.short_text(exchange) + b"\0"
        self.ask(amqp.method(amqp.EXCHANGE_DELETE, arguments), amqp.EXCHANGE_DELETE_OK)

    def bind(self, queue: str, exchange: str, pattern: str) -> None:
        names = amqp.short_text(queue) + amqp.short_text(exchange) + amqp.short_text(pattern)
        self.ask(amqp.method(amqp.BIND, b"\0\0" + names + b"\0" + amqp.table({})), amqp.BIND_OK)

    def counts(self, queue: str) -> tuple[int, int]:
        """(messages that wait, consumers) of a queue, by a passive declare."""
        answer = self.ask(_passive_declare(queue), amqp.DECLARE_OK)
        return struct.unpack(">II", answer[-8:])

    def delete(self, queue: str) -> None:
        self.ask(amqp.method(amqp.DELETE, b"\0\0" + amqp.short_text(queue) + b"\0"), amqp.DELETE_OK)

    def ask_all(self, said: Sequence[bytes], expected: tuple[int, int]) -> None:
        """Send all of these at once; each must be answered with this method."""
        self.socket.sendall(b"".join(said))
        for _ in said:
            self.answer(expected)

    def close(self) -> None:
        """Say goodbye, and read what still comes until the answer: deliveries may be on their way."""
        self.socket.settimeout(30)
        self.socket.sendall(amqp.GOODBYE)
        goodbye, said = amqp.method(amqp.CLOSE_OK, b"", 0), b""
        with suppress(ConnectionResetError):  # as RabbitMQ closes, if it is quick
            while not said.endswith(goodbye) and (piece := self.socket.recv(65536)):
                said = said[-len(goodbye) :] + piece
        self.socket.close()

    def begin(self) -> None:
        self.socket.setblocking(False)

    def receive(self, buffer: bytearray, filled: int) -> int:
        """Read what there is behind what was not understood yet; how much there is now."""
        try:
            count = self.socket.recv_into(memoryview(buffer)[filled:])
        except BlockingIOError:
            return filled
        if count == 0:
            raise LoadFailed("the server closed the connection")
        return filled + count


class Publisher(AmqpConnection):
    """Publishes the messages of a pool from `first` to before `last`, over and over, with a window of unconfirmed ones,
    until it is stopped."""

    def __init__(
        self,
        address: tuple[str, int],
        pool: Pool,
        *,
        first: int = 0,
        last: int | None = None,
        window: int = WINDOW,
        least_write: int = LEAST_WRITE,
        limit: int | None = None,
        on_confirm: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(address)
        self.ask(amqp.method(amqp.SELECT, b"\0"), amqp.SELECT_OK)
        self.pool, self.first, self.last = pool, first, pool.count if last is None else last
        self.window, self.least_write, self.limit = window, least_write, limit
        self.published = 0
        self.confirms = Confirms()
        self.stopped = False
        self._on_confirm = on_confirm
        self._buffer, self._filled = bytearray(1 << 18), 0

    def serials(self) -> list[int]:
        """Which messages of the pool were published, in order."""
        length = self.last - self.first
        return [self.first + number % length for number in range(self.published)]

    @property
    def confirmed(self) -> int:
        return self.confirms.count

    @property
    def finished(self) -> bool:
        done = self.stopped or (self.limit is not None and self.published >= self.limit)
        return done and self.unsent is None and self.confirms.count == self.published

    def begin(self) -> None:
        super().begin()
        self.publish()

    def publish(self) -> None:
        """Send what the window has room for, if that is worth a write."""
        if self.stopped or self.unsent is not None:
            return
        count = self.window - (self.published - self.confirms.count)
        if self.limit is not None:
            count = min(count, self.limit - self.published)
            if count < self.least_write and self.published + count < self.limit:
                return
        elif count < self.least_write:
            return
        if count > 0:
            self.send_messages(count)

    def send_messages(self, count: int) -> None:
        """So many, or fewer where the pool ends: the rest goes with the next write."""
        at = self.first + self.published % (self.last - self.first)
        end = min(at + count, self.last)
        self.published += end - at
        self.send(self.pool.data[self.pool.starts[at] : self.pool.starts[end]])

    def writable(self) -> None:
        super().writable()
        self.publish()

    def readable(self) -> None:
        filled = self.receive(self._buffer, self._filled)
        used = self.confirms.take(self._buffer, filled)
        if self._on_confirm is not None:
            self._on_confirm(self.confirms.count)
        self._buffer[: filled - used] = self._buffer[used:filled]
        self._filled = filled - used
        self.publish()


class Confirms:
    """Which of the messages 1, 2, 3 … are confirmed. Each must be, once; a server may go about it in any order."""

    def __init__(self) -> None:
        self._floor = 0  # all up to here
        self._above: set[int] = set()

    @property
    def count(self) -> int:
        return self._floor + len(self._above)

    def take(self, data: bytearray, filled: int) -> int:
        """Count the confirms among these bytes; how many bytes that were."""
        size = amqp.ACK_FRAME.size
        used = filled - filled % size
        for row in amqp.ACK_FRAME.iter_unpack(memoryview(data)[:used]):
            if row[:5] != (amqp.METHOD, amqp.CHANNEL, 13, *amqp.ACK) or row[7] != amqp.END:
                return self._take_others(data, filled)
            self.confirm(row[5], multiple=bool(row[6]))
        return used

    def _take_others(self, data: bytearray, filled: int) -> int:
        # Nothing but confirms is expected; this is here to say what came instead.
        for kind, at, end in amqp.frames(bytes(data[:filled])):
            if kind == amqp.METHOD and amqp.which_method(data, at) != amqp.ACK:
                raise LoadFailed(f"expected a confirm, got {bytes(data[at : end - 1])[:200]!r}")
        raise LoadFailed(f"expected confirms only, got {bytes(data[:200])!r}")

    def confirm(self, tag: int, *, multiple: bool) -> None:
        above = self._above
        if multiple:
            if tag < self._floor:
                raise LoadFailed(f"messages up to {tag} were confirmed again")
            self._floor = tag
            if above:
                self._above = above = {one for one in above if one > tag}
        elif tag == self._floor + 1:
            self._floor = tag
        elif tag <= self._floor or tag in above:
            raise LoadFailed(f"message {tag} was confirmed twice")
        else:
            above.add(tag)
        while above and self._floor + 1 in above:
            self._floor += 1
            above.remove(self._floor)


class Consumer(AmqpConnection):
    """Consumes queues with manual acks: with `multiple` one for every `ack_every` deliveries; if that is 1, each."""

    def __init__(
        self,
        address: tuple[str, int],
        queues: Sequence[str],
        *,
        ack_every: int = ACK_EVERY,
        prefetch: int = PREFETCH,
        on_delivery: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(address)
        self.queues = queues
        self.ask(amqp.method(amqp.QOS, struct.pack(">IHB", 0, prefetch, 0)), amqp.QOS_OK)
        self.deliveries = Deliveries()
        self.acked = 0
        self.ack_every = ack_every
        self.synced = False
        self._on_delivery = on_delivery
        self._buffer, self._filled = bytearray(_BUFFER_BYTES), 0
        self._waiting: list[bytes] = []
        self._syncing = False

    @property
    def received(self) -> int:
        return self.deliveries.count

    def begin(self) -> None:
        self.ask_all([consuming(queue, queue) for queue in self.queues], amqp.CONSUME_OK)
        self._filled = len(self._early)  # deliveries of messages that waited
        self._buffer[: self._filled] = self._early
        super().begin()

    def readable(self) -> None:
        filled = self.receive(self._buffer, self._filled)
        used = self.deliveries.take(self._buffer, filled)
        if self._on_delivery is not None:
            self._on_delivery(self.deliveries.count)
        if used < filled and self._is_method(used, filled, amqp.DECLARE_OK) and self._syncing:
            used = filled
            self.synced = True
        self._buffer[: filled - used] = self._buffer[used:filled]
        self._filled = filled - used
        self.ack(self.deliveries.count)

    def _is_method(self, at: int, filled: int, which: tuple[int, int]) -> bool:
        whole = filled - at >= 12 and filled - at >= amqp.frame_length(self._buffer, at)
        return whole and self._buffer[at] == amqp.METHOD and amqp.which_method(self._buffer, at + 7) == which

    def ack(self, count: int, *, rest: bool = False) -> None:
        """Ack what is due of the first `count` deliveries, or, with `rest`, all of them."""
        if self.ack_every == 1:
            said = single_acks(self.acked + 1, count - self.acked)
            self.acked = count
        else:
            due = count if rest else count - count % self.ack_every
            tags = [*range(self.acked + self.ack_every, due + 1, self.ack_every)]
            if rest and due > self.acked and (not tags or tags[-1] < due):
                tags.append(due)
            said = b"".join([amqp.ack(tag, multiple=True) for tag in tags])
            self.acked = max(self.acked, due if tags else 0)
        if said:
            self.say(said)

    def finish(self) -> None:
        """Ack what is left and ask for a queue's counts: the answer comes when all acks have reached that queue."""
        self.ack(self.deliveries.count, rest=True)
        self._syncing = True
        self.say(_passive_declare(self.queues[-1]))

    def say(self, said: bytes) -> None:
        if self.unsent is None:
            self.send(said)
        else:
            self._waiting.append(said)

    def writable(self) -> None:
        super().writable()
        if self.unsent is None and self._waiting:
            said, self._waiting = b"".join(self._waiting), []
            self.send(said)


class Deliveries:
    """The deliveries that came: their tags rise by one, and none is a redelivery."""

    def __init__(self) -> None:
        self.count = 0
        self.content_bytes = 0  # of header and body frames
        self._serials: list[bytearray] = []

    def take(self, data: bytearray, filled: int) -> int:
        """Look at the whole deliveries at the head of these bytes; how many bytes that were."""
        at, count, content_bytes = 0, self.count, self.content_bytes
        find, unpack_tag, add = amqp.find_content, _TAG.unpack_from, self._serials.append
        while data[at + 7 : at + 11] == _DELIVER and (found := find(data, at, filled)) is not None:
            header_at, body_at, end = found
            count += 1
            tag, is_redelivery = unpack_tag(data, at + 12 + data[at + 11])
            if tag != count or is_redelivery:
                raise LoadFailed(f"delivery {count} has the tag {tag}" + " and is a redelivery" * is_redelivery)
            add(data[body_at + SERIAL_AT : body_at + SERIAL_AT + SERIAL_DIGITS])
            content_bytes += end - header_at
            at = end
        self.count, self.content_bytes = count, content_bytes
        self._check_rest(data, at, filled)
        return at

    def _check_rest(self, data: bytearray, at: int, filled: int) -> None:
        """What follows may be the part of a delivery that came already, or an answer that its consumer asked for."""
        rest = filled - at
        if rest < 12 or rest < amqp.frame_length(data, at):
            return
        which = amqp.which_method(data, at + 7) if data[at] == amqp.METHOD else None
        if which not in (amqp.DELIVER, amqp.DECLARE_OK):
            raise LoadFailed(f"expected deliveries, got {bytes(data[at : min(filled, at + 200)])!r}")

    def serials(self) -> list[int]:
        """The serial numbers of the messages, in the order of delivery."""
        return list(map(int, self._serials))


def single_acks(first: int, count: int) -> bytes:
    """An ack for each of so many deliveries; the tags are written a column of bytes at a time, which is cheap."""
    said = bytearray(amqp.ack(0, multiple=False) * count)
    tags = array("I", range(first, first + count))
    if sys.byteorder == "little":
        tags.byteswap()
    raw, tag_at = tags.tobytes(), len(amqp.ACK_HEAD) + 8 - tags.itemsize
    for column in range(tags.itemsize if count else 0):
        said[tag_at + column :: amqp.ACK_FRAME.size] = raw[column :: tags.itemsize]
    return bytes(said)


def _passive_declare(queue: str) -> bytes:
    return amqp.method(amqp.DECLARE, b"\0\0" + amqp.short_text(queue) + b"\x01" + amqp.table({}))


def consuming(queue: str, tag: str) -> bytes:
    arguments = b"\0\0" + amqp.short_text(queue) + amqp.short_text(tag) + b"\0" + amqp.table({})
    return amqp.method(amqp.CONSUME, arguments)
