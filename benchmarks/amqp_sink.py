"""An AMQP server that does nothing: it confirms at once what was published and hands it to the queue's consumer.

It keeps no queue, no message and no disk. What the load generator reaches against it is the ceiling of all figures.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
from collections import defaultdict
from typing import Protocol

from benchmarks import amqp_frames as amqp
from benchmarks.load import Connection

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
    """One accepted connection, which publishes or consumes."""

    def __init__(self, accepted: socket.socket, consumers: dict[str, Client]) -> None:
        self.socket = accepted
        self.unsent = None
        self.consumers = consumers
        self._buffer, self._filled = bytearray(4 << 20), 0
        self._published = self._delivered = 0
        self._said: list[bytes] = []

    def readable(self) -> None:
        count = self.socket.recv_into(memoryview(self._buffer)[self._filled :])
        self._filled += count
        if not count or self._buffer.endswith(amqp.GOODBYE, 0, self._filled):
            raise ConnectionError("closed")
        used = self._take_messages() if self._published else self._talk()
        self._buffer[: self._filled - used] = self._buffer[used : self._filled]
        self._filled -= used

    def _talk(self) -> int:
        at = 0
        if self._buffer.startswith(b"AMQP"):
            at = len(amqp.PROTOCOL_HEADER)
            self.say(_START)
        for kind, payload_at, end in amqp.frames(bytes(self._buffer[: self._filled]), at):
            which = amqp.which_method(self._buffer, payload_at) if kind == amqp.METHOD else None
            if which == amqp.PUBLISH:
                return at + self._take_messages(at)
            if which is not None:
                self._answer(which, bytes(self._buffer[payload_at + 4 : end - 1]))
            at = end
        return at

    def _answer(self, which: tuple[int, int], arguments: bytes) -> None:
        queue = arguments[3 : 3 + arguments[2]].decode() if len(arguments) > 3 else ""
        if which in _ANSWERS:
            self.say(_ANSWERS[which])
        elif which == amqp.DECLARE:
            self.say(amqp.method(amqp.DECLARE_OK, amqp.short_text(queue) + bytes(8)))
        elif which == amqp.CONSUME:
            self.consumers[queue] = self
            self.say(amqp.method(amqp.CONSUME_OK, amqp.short_text(queue)))

    def _take_messages(self, at: int = 0) -> int:
        """Hand on what was published by way of the default exchange; how many bytes that were."""
        first, data, deliveries = at, self._buffer, defaultdict(list)
        while (found := amqp.find_content(data, at, self._filled)) is not None:
            header_at, _, end = found
            deliveries[bytes(data[at + 15 : at + 15 + data[at + 14]])].append(data[header_at:end])
            at = end
            self._published += 1
        if deliveries:
            self.say(amqp.ack(self._published, multiple=True))
        for queue, contents in deliveries.items():
            self.consumers[queue.decode()].deliver(queue.decode(), contents)
        return at - first

    def deliver(self, queue: str, contents: list[bytearray]) -> None:
        # The consumer's tag is the name of its queue, as with this load generator's consumers.
        before = amqp.method(amqp.DELIVER, amqp.short_text(queue) + bytes(9) + b"\0" + amqp.short_text(queue))
        tag_at = 12 + len(queue)
        head, rest = before[:tag_at], before[tag_at + 8 :]
        tags = range(self._delivered + 1, self._delivered + len(contents) + 1)
        self._delivered += len(contents)
        self.say(
            b"".join(
                [
                    b"%b%b%b%b" % (head, tag.to_bytes(8, "big"), rest, one)
                    for tag, one in zip(tags, contents, strict=True)
                ]
            )
        )

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
