"""An AMQP server that does nothing: it confirms at once what was published and hands it to the queue's consumer.

It keeps no queue, no message and no disk. What the load generator reaches against it is the ceiling of all figures.
Messages of a queue have one size and are numbered, so only numbers need to be written into deliveries laid out before.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from typing import Protocol

from benchmarks import amqp_frames as amqp
from benchmarks.amqp_load import SERIAL_BYTES, write_numbers
from benchmarks.load import Connection

_ROWS = 1_000  # deliveries laid out beforehand, and so the most in one write
_ANSWERS = {
    amqp.START_OK: amqp.method(amqp.TUNE, struct.pack(">HIH", 2047, 131072, 0), 0),
    amqp.OPEN: amqp.method(amqp.OPEN_OK, b"\0", 0),
    amqp.CHANNEL_OPEN: amqp.method(amqp.CHANNEL_OPEN_OK, bytes(4)),
    amqp.SELECT: amqp.method(amqp.SELECT_OK),
    amqp.QOS: amqp.method(amqp.QOS_OK),
    amqp.DELETE: amqp.method(amqp.DELETE_OK, bytes(4)),
}
_START = amqp.method(amqp.START, b"\0\x09" + amqp.table({}) + amqp.long_bytes(b"PLAIN") + amqp.long_bytes(b"en_US"), 0)


class Watcher(Protocol):
    def __call__(self, on: bool) -> None: ...


class Client(Connection):
    """One accepted connection: talks until it publishes, then counts bytes."""

    def __init__(self, accepted: socket.socket, consumers: dict[str, Client]) -> None:
        self.socket = accepted
        self.unsent = None
        self.consumers = consumers
        self._read = bytearray()
        self._buffer = bytearray(4 << 20)
        # As a publisher:
        self._queue = ""
        self._size = 0
        self._part = 0  # bytes of a message whose rest is still to come
        self._published = 0
        # As a consumer:
        self._rows = bytearray()
        self._row_bytes = self._tag_at = self._serial_at = 0
        self._delivered = self._owed = 0
        self._said: list[bytes] = []

    def readable(self) -> None:
        count = self.socket.recv_into(self._buffer)
        if not count or self._buffer.endswith(amqp.GOODBYE, 0, count):
            raise ConnectionError("closed")
        if self._size:
            self._count(count)
        elif not self._rows:  # acks are not even looked at
            self._talk(bytes(self._buffer[:count]))
        elif count < 200 and amqp.frame_length(self._buffer, 0) != amqp.ACK_FRAME.size:
            self._talk(bytes(self._buffer[:count]))
        elif b"\x00\x32\x00\x0a" in self._buffer[max(0, count - 200) : count]:
            at = self._buffer.rindex(b"\x00\x32\x00\x0a", 0, count) - 7
            self._talk(bytes(self._buffer[at:count]))

    def _talk(self, data: bytes) -> None:
        self._read += data
        at = 0
        if self._read.startswith(b"AMQP"):
            at = len(amqp.PROTOCOL_HEADER)
            self.say(_START)
        for kind, payload_at, end in amqp.frames(bytes(self._read), at):
            if kind == amqp.METHOD:
                which = amqp.which_method(self._read, payload_at)
                if which == amqp.PUBLISH:
                    break
                self._answer(which, bytes(self._read[payload_at + 4 : end - 1]))
            at = end
        del self._read[:at]
        if self._read:
            self._learn(bytes(self._read))

    def _answer(self, which: tuple[int, int], arguments: bytes) -> None:
        if which in _ANSWERS:
            self.say(_ANSWERS[which])
        elif which == amqp.DECLARE:
            queue = arguments[3 : 3 + arguments[2]].decode()
            self.say(amqp.method(amqp.DECLARE_OK, amqp.short_text(queue) + bytes(8)))
        elif which == amqp.CONSUME:
            queue = arguments[3 : 3 + arguments[2]].decode()
            tag_at = 3 + arguments[2]
            tag = arguments[tag_at + 1 : tag_at + 1 + arguments[tag_at]].decode()
            self.consumers[queue] = self
            self._queue = tag
            self.say(amqp.method(amqp.CONSUME_OK, amqp.short_text(tag)))

    def _learn(self, data: bytes) -> None:
        """The size of a message, from the first one that has wholly arrived."""
        found = list(amqp.frames(data))[:3]
        if len(found) < 3:
            return
        (_, at, _), _, (_, body_at, self._size) = found
        self._queue = data[at + 8 : at + 8 + data[at + 7]].decode()
        self.consumers[self._queue].lay_out(self._queue, data[: self._size], self._size - body_at - 1)
        self._read.clear()
        self._count(len(data))

    def _count(self, received: int) -> None:
        count, self._part = divmod(self._part + received, self._size)
        if count:
            self._published += count
            self.say(amqp.ack(self._published, multiple=True))
            self.consumers[self._queue].deliver(count)

    def lay_out(self, queue: str, message: bytes, body_bytes: int) -> None:
        row = amqp.delivered(0, self._queue, queue, message)
        self._row_bytes = len(row)
        self._tag_at = 7 + 4 + 1 + len(self._queue) + 8 - SERIAL_BYTES
        self._serial_at = len(row) - 1 - body_bytes
        self._rows = bytearray(row * _ROWS)

    def deliver(self, count: int) -> None:
        self._owed += count
        view = memoryview(self._rows)
        while self._owed and self.unsent is None and not self._said:
            count = min(self._owed, _ROWS)
            end = count * self._row_bytes
            write_numbers(self._rows, self._tag_at, end, self._row_bytes, self._delivered + 1, count)
            write_numbers(self._rows, self._serial_at, end, self._row_bytes, self._delivered, count)
            self._owed -= count
            self._delivered += count
            self.send(view[:end])

    def say(self, said: bytes) -> None:
        if self.unsent is None:
            self.send(said)
        else:
            self._said.append(said)

    def writable(self) -> None:
        super().writable()
        if self.unsent is None and self._said:
            said, self._said = b"".join(self._said), []
            self.send(said)
        self.deliver(0)


def serve(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    clients: dict[int, Client] = {}
    consumers: dict[str, Client] = {}

    def watcher(fileno: int) -> Watcher:
        return lambda on: epoll.modify(fileno, select.EPOLLIN | (select.EPOLLOUT if on else 0))

    while True:
        for fileno, what in epoll.poll():
            if fileno == listener.fileno():
                accepted, _ = listener.accept()
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client = clients[accepted.fileno()] = Client(accepted, consumers)
                client.watch_writable = watcher(accepted.fileno())
                epoll.register(accepted.fileno(), select.EPOLLIN)
                continue
            try:
                if what & ~select.EPOLLOUT:
                    clients[fileno].readable()
                if what & select.EPOLLOUT:
                    clients[fileno].writable()
            except ConnectionError:
                epoll.unregister(fileno)
                clients.pop(fileno).socket.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
