"""What AMQP clients do, for the load generator: publish with confirms, consume with acks, as cheaply as Python can.

All messages of a queue have one size, so a stretch of them is a table with rows of equal length. Numbers are written
into it and read out of it a column of bytes at a time, with strided slices: that costs some tens of nanoseconds a
message, and still every delivery is looked at: where its frames end, its tag, whether it was redelivered, which it is.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from benchmarks import amqp_frames as amqp
from benchmarks.load import Connection, LoadFailed

WINDOW = 2_000  # messages that a publisher has on the way to their confirms
LEAST_WRITE = 100  # it waits until it may send this many: a write for each confirm would measure system calls
PREFETCH = 1_000
ACK_EVERY = 100
SERIAL_BYTES = 4
_BUFFER_BYTES = 4 << 20

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
    """Publishes to one queue, with a window of unconfirmed messages, until it is stopped.

    Every message carries its serial number at the head of its body. The messages of a window are laid out beforehand;
    before a write only the serials in it are renewed, which is safe since the write before it has wholly left.
    """

    def __init__(
        self,
        address: tuple[str, int],
        queue: str,
        bodies: Sequence[bytes],
        *,
        priorities: Sequence[int] = (),
        window: int = WINDOW,
        least_write: int = LEAST_WRITE,
        limit: int | None = None,
        on_confirm: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(address)
        self.ask(amqp.method(amqp.SELECT, b"\0"), amqp.SELECT_OK)
        self.window, self.least_write, self.limit = window, least_write, limit
        self.published = 0
        self.confirms = Confirms()
        self.stopped = False
        self._on_confirm = on_confirm
        self._cycle = max(1, len(priorities))  # where a write begins in the layout keeps the priorities in turn
        messages = [
            amqp.published(queue, bodies[at % len(bodies)], priorities[at % len(priorities)] if priorities else None)
            for at in range(window + self._cycle)
        ]
        self._size = len(messages[0])
        if {len(message) for message in messages} != {self._size}:
            raise LoadFailed("the messages of a publisher must have one size")
        self._serial_at = self._size - len(bodies[0]) - 1
        self._layout = bytearray(b"".join(messages))
        self._view = memoryview(self._layout)
        self._buffer, self._filled = bytearray(1 << 18), 0

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
        first = self.published
        at = first % self._cycle * self._size
        end = at + count * self._size
        write_numbers(self._layout, at + self._serial_at, end, self._size, first, count)
        self.published += count
        self.send(self._view[at:end])

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
    """Consumes one queue with manual acks: with `multiple` one for every `ack_every` deliveries; if that is 1, each."""

    def __init__(
        self,
        address: tuple[str, int],
        queue: str,
        *,
        body_bytes: int,
        ack_every: int = ACK_EVERY,
        prefetch: int = PREFETCH,
        on_delivery: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(address)
        self.queue = queue
        self.ask(amqp.method(amqp.QOS, struct.pack(">IHB", 0, prefetch, 0)), amqp.QOS_OK)
        self.deliveries = Deliveries(body_bytes)
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
        self.socket.sendall(consuming(self.queue, "bench"))
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
        """Ack what is left and ask for the queue's counts: the answer comes when all acks have reached the queue."""
        self.ack(self.deliveries.count, rest=True)
        self._syncing = True
        self.say(_passive_declare(self.queue))

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
    """The deliveries that came, in order: tags rise by one, none is a redelivery, all have the first one's shape."""

    def __init__(self, body_bytes: int) -> None:
        self.count = 0
        self._body_bytes = body_bytes
        self._serials: list[bytes] = []
        self._size = 0
        self._first = b""
        self._fixed: list[tuple[int, int]] = []  # (offset, byte) of what must be the same in all
        self._tag_at = 0
        self._serial_at = 0

    def take(self, data: bytearray, filled: int) -> int:
        """Look at the whole deliveries at the head of these bytes; how many bytes that were."""
        at = 0
        if not self._size:
            at = self._learn(data, filled)
            if not self._size:
                return at
        size = self._size
        count = (filled - at) // size
        end = at + count * size
        if count and not self._alike(data, at, end, count):
            count = self._run(data, at, filled)
            end = at + count * size
        if count:
            if read_numbers(data, at + self._tag_at, end, size) != numbers(self.count + 1, count):
                raise LoadFailed(f"the {count} deliveries after {self.count} have wrong tags")
            self._serials.append(read_numbers(data, at + self._serial_at, end, size))
            self.count += count
        self._check_rest(data, end, filled)
        return end

    def _learn(self, data: bytearray, filled: int) -> int:
        """The shape of deliveries, from the first one; where it begins. consume-ok may come before it."""
        begins, found = 0, []
        for kind, at, end in amqp.frames(bytes(data[:filled])):
            if kind == amqp.METHOD and amqp.which_method(data, at) == amqp.CONSUME_OK:
                begins = end
                continue
            found.append((kind, at, end))
            if len(found) == 3:
                break
        if found and (found[0][0] != amqp.METHOD or amqp.which_method(data, found[0][1]) != amqp.DELIVER):
            if amqp.which_method(data, found[0][1]) == amqp.DECLARE_OK:
                return begins
            raise LoadFailed(f"expected a delivery, got {bytes(data[begins : found[0][2]])[:200]!r}")
        if len(found) < 3:
            return begins
        (_, method_at, method_end), (_, _, header_end), (kind, body_at, body_end) = found
        if kind != amqp.BODY or body_end - 1 - body_at != self._body_bytes:
            raise LoadFailed(f"a delivery has a body of {body_end - 1 - body_at} bytes, not {self._body_bytes}")
        self._size = body_end - begins
        self._first = bytes(data[begins:body_end])
        tag_at = method_at + 4 + 1 + data[method_at + 4] - begins
        self._tag_at, self._serial_at = tag_at + 4, body_at - begins
        # Frame types, sizes and ends, and that it is no redelivery.
        offsets = [0, 5, 6, method_at + 3 - begins, tag_at + 8]
        for _, at, _ in found[1:]:
            offsets += [at - 7 - begins, at - 2 - begins, at - 1 - begins]
        offsets += [method_end - 1 - begins, header_end - 1 - begins, body_end - 1 - begins]
        if self._first[tag_at + 8]:
            raise LoadFailed("the first delivery is a redelivery")
        self._fixed = [(offset, self._first[offset]) for offset in offsets]
        return begins

    def _alike(self, data: bytearray, at: int, end: int, count: int) -> bool:
        return all(data[at + offset : end : self._size] == bytes([byte]) * count for offset, byte in self._fixed)

    def _run(self, data: bytearray, at: int, filled: int) -> int:
        """How many deliveries there are before something else."""
        count, size = 0, self._size
        while filled - at >= size and self._alike(data, at, at + size, 1):
            count, at = count + 1, at + size
        return count

    def _check_rest(self, data: bytearray, at: int, filled: int) -> None:
        """What follows may be the part of a delivery that came already, or an answer that its consumer asked for."""
        rest = filled - at
        if rest < 12 or rest < amqp.frame_length(data, at):
            return
        which = amqp.which_method(data, at + 7) if data[at] == amqp.METHOD else None
        if rest >= self._size and which == amqp.DELIVER:
            raise LoadFailed(f"a delivery has another shape than the first, or is a redelivery: {data[at : at + 80]!r}")
        if which not in (amqp.DELIVER, amqp.DECLARE_OK):
            raise LoadFailed(f"expected deliveries, got {bytes(data[at : at + 200])!r}")

    def serials(self) -> array[int]:
        """The serial numbers of the messages, in the order of delivery."""
        found = array("I")
        found.frombytes(b"".join(self._serials))
        return _network_order(found)


def numbers(first: int, count: int) -> bytes:
    """`count` numbers from `first`, four bytes each, the highest byte first."""
    return _network_order(array("I", range(first, first + count))).tobytes()


def _network_order(values: array[int]) -> array[int]:
    if sys.byteorder == "little":
        values.byteswap()
    return values


def write_numbers(rows: bytearray, at: int, end: int, size: int, first: int, count: int) -> None:
    """Put a number into each row of this size, four columns of bytes beginning at `at`."""
    raw = numbers(first, count)
    for column in range(SERIAL_BYTES):
        rows[at + column : end : size] = raw[column::SERIAL_BYTES]


def read_numbers(rows: bytearray, at: int, end: int, size: int) -> bytes:
    raw = bytearray(SERIAL_BYTES * -(-(end - at) // size))
    for column in range(SERIAL_BYTES):
        raw[column::SERIAL_BYTES] = rows[at + column : end : size]
    return bytes(raw)


def single_acks(first: int, count: int) -> bytes:
    said = bytearray(amqp.ack(0, multiple=False) * count)
    if count:
        write_numbers(said, len(amqp.ACK_HEAD) + 4, len(said), amqp.ACK_FRAME.size, first, count)
    return bytes(said)


def _passive_declare(queue: str) -> bytes:
    return amqp.method(amqp.DECLARE, b"\0\0" + amqp.short_text(queue) + b"\x01" + amqp.table({}))


def consuming(queue: str, tag: str) -> bytes:
    arguments = b"\0\0" + amqp.short_text(queue) + amqp.short_text(tag) + b"\0" + amqp.table({})
    return amqp.method(amqp.CONSUME, arguments)
