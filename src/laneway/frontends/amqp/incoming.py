"""From the bytes of a connection to commands: cuts frames, joins the frames of a published message.

What comes out is handed to the connection at once, one command after the other; look-alike publishes and acks are taken
many at a time (lookalikes.py). While it is held (a password is being
checked, the disk is full) nothing more is read; what came already waits here.
"""

from __future__ import annotations

import struct
from typing import Protocol

from laneway.frontends.amqp.errors import AmqpError
from laneway.frontends.amqp.lookalikes import Acks, LookAlikes, Run
from laneway.frontends.amqp.spec import BODY, FRAME_END, FRAME_OVERHEAD_BYTES, HEADER, HEARTBEAT, METHOD, METHODS

PUBLISH = 60 << 16 | 40
ACK = 60 << 16 | 80
#: Methods that are followed by content; only the first is for a client to send.
_WITH_CONTENT = (PUBLISH, 60 << 16 | 50, 60 << 16 | 60, 60 << 16 | 71)
_CONTENT_HEAD_BYTES = 14  # class, weight, body size, and the first flags of the properties

_FRAME = struct.Struct(">BHI")
_U32 = struct.Struct(">I")
_CONTENT = struct.Struct(">HHQ")


class Sink(Protocol):
    def takes(self, channel: int, method: int) -> bool:
        """Whether content is wanted on this channel: it may be closing. Raises if it was never opened."""

    def on_method(self, channel: int, number: int, payload: bytes) -> None: ...

    def on_content_size(self, channel: int, size: int) -> None:
        """Raises if that is too much."""

    def on_publish(self, channel: int, method: bytes, properties: bytes, body: bytes) -> None: ...

    def on_acks(self, channel: int, acks: list[tuple[int, int, bool]]) -> None:
        """As (first tag, last tag, multiple)."""

    def route_version(self) -> int: ...

    def run_of(self, channel: int, method: bytes, properties: bytes, size: int) -> tuple[bytes, Run] | None:
        """The encoded properties and the run of the look-alikes of a publish; None if they need a closer look."""

    def on_runs(self) -> None:
        """Look-alikes have come, and something else comes now."""


class _Content:
    """A message that is not all here."""

    __slots__ = ("body", "frame_count", "method", "missing", "properties", "start")

    def __init__(self, method: bytes, start: int) -> None:
        self.method = method
        self.start = start  # where in the data at hand it begins; -1: in earlier data
        self.properties: bytes | None = None  # None: its header did not come yet
        self.body: bytes | bytearray = b""
        self.frame_count = 0  # of the body
        self.missing = 0

    def add(self, payload: bytes) -> None:
        """Joined as they come: a list of them would take many times the memory of a body that is sent in crumbs."""
        self.frame_count += 1
        if self.frame_count == 1:
            self.body = payload
        else:
            if isinstance(self.body, bytes):
                self.body = bytearray(self.body)
            self.body += payload

    @property
    def number(self) -> int:
        return int(_U32.unpack_from(self.method)[0])


class Incoming:
    def __init__(self, sink: Sink, frame_bytes: int, most_unfinished_bytes: int) -> None:
        self._sink = sink
        self.frame_bytes = frame_bytes
        self._most_unfinished_bytes = most_unfinished_bytes
        self._unfinished_bytes = 0  # of the bodies in _contents
        self.is_held = False
        self.alikes = LookAlikes()
        self._acks = Acks()
        self._data = self._rest = b""
        self._contents: dict[int, _Content] = {}

    def feed(self, data: bytes) -> None:
        """Raises AmqpError for what ends the connection."""
        if self._rest:
            data = self._rest + data
        self._data = data
        at, size = 0, len(data)
        most = self.frame_bytes - FRAME_OVERHEAD_BYTES
        alikes = self.alikes
        if not alikes.is_empty and alikes.version != self._sink.route_version():
            alikes.forget()
        try:
            while not self.is_held and size - at >= 7:
                if not self._contents:
                    if not alikes.is_empty:
                        at = alikes.take(data, at)
                        if alikes.is_waiting:
                            break
                    at = self._take_acks(data, at)
                    if size - at < 7:
                        break
                kind, channel, length = _FRAME.unpack_from(data, at)
                if length > most:
                    raise _frame_error(kind, b"", f"{{frame_too_large,{length},{most}}}")
                end = at + 7 + length
                if end >= size:
                    break
                payload = data[at + 7 : end]
                if data[end] != FRAME_END:
                    raise _frame_error(kind, payload, f"{{invalid_frame_end_marker,{data[end]}}}")
                start, at = at, end + 1
                if alikes.has_runs:
                    self._sink.on_runs()
                self._frame(kind, channel, payload, start)
        finally:
            self._rest = data[at:] if at else data
            self._data = b""
            for content in self._contents.values():
                content.start = -1
            if alikes.has_runs:
                self._sink.on_runs()

    def _take_acks(self, data: bytes, at: int) -> int:
        if self._acks.channel:
            at, acks = self._acks.take(data, at)
            if acks:
                self._sink.on_acks(self._acks.channel, acks)
        return at

    def forget(self, channel: int) -> None:
        """The channel ended: what it began to publish is not published, and what comes now is not recognised."""
        self._drop(channel)
        if self.alikes.has_runs:
            self._sink.on_runs()  # they came before the end
        self.alikes.forget()

    def _frame(self, kind: int, channel: int, payload: bytes, start: int) -> None:
        if kind == METHOD and len(payload) >= 4:
            self._method(channel, payload, start)
        elif kind in (HEADER, BODY) and channel:
            content = self._contents.get(channel)
            if content is not None:
                self._part(kind, channel, content, payload, start)
            elif self._sink.takes(channel, 0):
                raise AmqpError(505, "expected method frame, got non method frame instead")
        elif kind in (METHOD, HEADER, BODY):
            raise AmqpError(505, _shown(kind, payload))
        elif kind != HEARTBEAT:
            raise _frame_error(kind, payload, "unknown_frame")

    def _method(self, channel: int, payload: bytes, start: int) -> None:
        content = self._contents.get(channel)
        if content is not None:
            raise _out_of_place(content)
        number = _U32.unpack_from(payload)[0]
        if number in _WITH_CONTENT and channel:
            if self._sink.takes(channel, number):
                self._contents[channel] = _Content(payload, start)
        elif number == ACK:
            self._acks.learn(channel)
            self._sink.on_method(channel, number, payload)
        else:
            self.alikes.forget()
            self._sink.on_method(channel, number, payload)

    def _part(self, kind: int, channel: int, content: _Content, payload: bytes, start: int) -> None:
        if kind == HEADER and content.properties is None:
            self._header(channel, content, payload)
        elif kind == BODY and content.properties is not None:
            content.missing -= len(payload)
            if content.missing < 0:
                raise _frame_error(kind, payload, "{body_too_large," + str(-content.missing) + "}")
            content.add(payload)
            self._unfinished_bytes += len(payload)
            if content.missing and self._unfinished_bytes > self._most_unfinished_bytes:
                most = self._most_unfinished_bytes
                raise AmqpError(506, f"unfinished messages of one connection have at most {most} bytes together")
        else:
            raise _out_of_place(content)
        if content.missing == 0 and content.properties is not None:
            self._complete(channel, content)
            if kind == BODY and content.frame_count == 1 and content.start >= 0:
                self._learn(channel, content, self._data[content.start : start + 7])

    def _header(self, channel: int, content: _Content, payload: bytes) -> None:
        if len(payload) < _CONTENT_HEAD_BYTES:
            raise _frame_error(HEADER, payload, "unknown_frame")
        class_id, weight, content.missing = _CONTENT.unpack_from(payload)
        if class_id != 60 or weight:
            explanation = f"expected content header for class 60, got one for class {class_id} instead"
            raise AmqpError(505, explanation, method=content.number)
        content.properties = payload[12:]
        self._sink.on_content_size(channel, content.missing)

    def _complete(self, channel: int, content: _Content) -> None:
        # The channel may have been closed by what its size said.
        if self._drop(channel) is content:
            assert content.properties is not None
            if content.number == PUBLISH:
                self._sink.on_publish(channel, content.method, content.properties, bytes(content.body))
            else:
                self._sink.on_method(channel, content.number, content.method)

    def _drop(self, channel: int) -> _Content | None:
        content = self._contents.pop(channel, None)
        if content is not None:
            self._unfinished_bytes -= len(content.body)
        return content

    def _learn(self, channel: int, content: _Content, prefix: bytes) -> None:
        """Recognise the next one that looks like this publish, whose bytes up to the body are the prefix."""
        assert content.properties is not None
        size = len(content.body)
        found = self._sink.run_of(channel, content.method, content.properties, size)
        if found is not None and len(prefix) == _look_alike_bytes(content):
            if self.alikes.is_empty:
                self.alikes.version = self._sink.route_version()
            self.alikes.learn(prefix, size, *found)


def _look_alike_bytes(content: _Content) -> int:
    """How long the prefix of a publish is if nothing of another channel stands in between."""
    assert content.properties is not None
    return 3 * 7 + 2 + len(content.method) + 12 + len(content.properties)


def _out_of_place(content: _Content) -> AmqpError:
    part = "content body, got non content body"
    if content.properties is None:
        part = f"content header for class {content.number >> 16}, got non content header"
    return AmqpError(505, f"expected {part} frame instead", method=content.number)


def _frame_error(kind: int, payload: bytes, reason: str) -> AmqpError:
    return AmqpError(501, f"{_shown(kind, payload)}: {reason}")


def _shown(kind: int, payload: bytes) -> str:
    """A frame as RabbitMQ writes it into its errors."""
    count = "all" if len(payload) <= 16 else "first 16"
    octets = ",".join(map(str, payload[:16]))
    return f"type {kind}, {count} octets = <<{octets}>>"


def is_known(number: int) -> bool:
    return number in METHODS
