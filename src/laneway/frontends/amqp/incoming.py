"""From the bytes of a connection to commands: cuts frames, joins the frames of a published message.

What comes out is handed to the connection at once, one command after the other. Publishes and acks, of which a socket
read is mostly full, are cut out in loops of their own. While it is held (a password is being checked, the disk is full,
an answer is waited for) nothing more is read; what came already waits here.
"""

from __future__ import annotations

import struct
from time import monotonic
from typing import Protocol

from laneway.frontends.amqp.acks import Acks
from laneway.frontends.amqp.errors import AmqpError
from laneway.frontends.amqp.spec import BODY, FRAME_END, FRAME_OVERHEAD_BYTES, HEADER, HEARTBEAT, METHOD

PUBLISH = 60 << 16 | 40
ACK = 60 << 16 | 80
#: Methods that are followed by content; only the first is for a client to send.
_WITH_CONTENT = (PUBLISH, 60 << 16 | 50, 60 << 16 | 60, 60 << 16 | 71)
_CONTENT_HEAD_BYTES = 14  # class, weight, body size, and the first flags of the properties

_MIB = 1 << 20
_SMALL_BYTES = 1 << 20  # of messages that have not come whole, before small ones count as large ones do
_PUBLISH_BYTES = 1024  # its method has half of that at most

_FRAME = struct.Struct(">BHI")
_METHOD_FRAME = struct.Struct(">BHII")
_U32 = struct.Struct(">I")
_CONTENT = struct.Struct(">HHQ")
_CONTENT_FRAME = struct.Struct(">BHIIQ")
_CLASS_60 = 60 << 16  # class 60, weight 0
_unpack_frame, _unpack_method, _unpack_content = (
    _FRAME.unpack_from,
    _METHOD_FRAME.unpack_from,
    _CONTENT_FRAME.unpack_from,
)


class Sink(Protocol):
    def takes(self, channel: int, method: int) -> bool:
        """Whether content is wanted on this channel: it may be closing. Raises if it was never opened."""

    def on_method(self, channel: int, number: int, payload: bytes) -> None: ...

    def on_content_size(self, channel: int, size: int) -> None:
        """Raises if that is too much."""

    def on_large_content(self, size: int, *, is_alone: bool) -> None:
        """A message of several frames begins, or one more of many; `is_alone`: on this connection. Raises if it can not
        be taken, and may hold the connection until it can."""

    def on_large_content_end(self, size: int) -> None:
        """… it is all here, or will not be."""

    def on_publishes(self, channel: int, publishes: list[tuple[bytes, bytes, bytes]]) -> None:
        """As (method, properties, body)."""

    def on_acks(self, channel: int, acks: list[tuple[int, int, bool]]) -> None:
        """As (first tag, last tag, multiple)."""

    def give_way(self) -> None:
        """It had its share of this turn: the rest is fed in another one."""


class _Content:
    """A message that is not all here."""

    __slots__ = ("body", "frame_count", "large_bytes", "method", "missing", "properties", "small_bytes", "ticks")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.properties: bytes | None = None  # None: its header did not come yet
        self.body: bytes | bytearray = b""
        self.frame_count = 0  # of the body
        self.missing = 0
        self.large_bytes = 0  # its size, if it counts as large
        self.small_bytes = 0  # … or as small
        self.ticks = 0  # since it began

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
    def __init__(
        self, sink: Sink, frame_bytes: int, most_unfinished_bytes: int, body_bytes: int, turn_ms: int = 50
    ) -> None:
        self._sink = sink
        self.frame_bytes = frame_bytes
        self._body_bytes = body_bytes
        self._turn_s = turn_ms / 1000
        self._most_unfinished_bytes = most_unfinished_bytes
        self._unfinished_bytes = 0  # of the bodies in _contents
        self._small_bytes = 0  # of the small messages there, when they will be whole
        self.is_held = False
        self._acks = Acks()
        self._rest = b""
        self._contents: dict[int, _Content] = {}

    def feed(self, data: bytes) -> None:
        """Raises AmqpError for what ends the connection."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, size = 0, len(data)
        most = self.frame_bytes  # as RabbitMQ: without what frames a payload, which was not to be counted
        end_s = monotonic() + self._turn_s
        try:
            while not self.is_held and size - at >= 7:
                if not self._contents:
                    before = at
                    at = self._take_acks(data, at)
                    at = self._take_publishes(data, at, most)
                    if at != before:
                        if monotonic() > end_s:
                            self._sink.give_way()
                        continue
                kind, channel, length = _unpack_frame(data, at)
                if length > most:
                    raise _frame_error(kind, b"", f"{{frame_too_large,{length},{most - FRAME_OVERHEAD_BYTES}}}")
                end = at + 7 + length
                if end >= size:
                    break
                payload = data[at + 7 : end]
                if data[end] != FRAME_END:
                    raise _frame_error(kind, payload, f"{{invalid_frame_end_marker,{data[end]}}}")
                at = end + 1
                self._frame(kind, channel, payload)
                if monotonic() > end_s:
                    self._sink.give_way()
        finally:
            self._rest = data[at:] if at else data

    def _take_acks(self, data: bytes, at: int) -> int:
        if self._acks.channel:
            at, acks = self._acks.take(data, at)
            if acks:
                self._sink.on_acks(self._acks.channel, acks)
        return at

    def _take_publishes(self, data: bytes, at: int, most: int) -> int:
        """Hot: cut out the whole publishes of one channel that stand here, and hand them over together. Where they end.

        A publish is three frames of its channel; whatever looks otherwise is left to the careful way:

            1 channel u32 │ 60 40 … │ CE │ 2 channel u32 │ 60 0 u64 size, properties │ CE │ 3 channel u32 │ body │ CE
        """
        publishes: list[tuple[bytes, bytes, bytes]] = []
        size = len(data)
        first_channel = -1
        largest = self._body_bytes
        while size - at >= 34:
            kind, channel, length, number = _unpack_method(data, at)
            head = at + 8 + length
            if kind != METHOD or number != PUBLISH or length > most or head + 26 > size or data[head - 1] != FRAME_END:
                break
            if channel != first_channel:
                if first_channel >= 0:
                    break
                first_channel = channel
            kind, same, content_length, class_60, body_size = _unpack_content(data, head)
            body_head = head + 8 + content_length
            if (
                kind != HEADER
                or same != channel
                or class_60 != _CLASS_60
                or not _CONTENT_HEAD_BYTES <= content_length <= most
                or not 0 < body_size <= most
                or body_size > largest
            ):
                break
            end = body_head + 7 + body_size
            if end >= size:
                break
            if (
                _unpack_frame(data, body_head) != (BODY, channel, body_size)
                or data[end] != FRAME_END
                or data[body_head - 1] != FRAME_END
            ):
                break
            publishes.append((data[at + 7 : head - 1], data[head + 19 : body_head - 1], data[body_head + 7 : end]))
            at = end + 1
        if publishes and self._sink.takes(first_channel, PUBLISH):
            self._sink.on_publishes(first_channel, publishes)
        return at

    def forget(self, channel: int) -> None:
        """The channel ended: what it began to publish is not published."""
        self._drop(channel)

    def forget_all(self) -> None:
        """The connection ends: what all channels began to publish is not published."""
        for channel in list(self._contents):
            self._drop(channel)

    def is_overdue(self, ticks_a_mib: float) -> bool:
        """Called at every tick: whether a large message takes longer than it may."""
        for content in self._contents.values():
            if content.large_bytes:
                content.ticks += 1
                if content.ticks > ticks_a_mib * -(-content.large_bytes // _MIB):
                    return True
        return False

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD and len(payload) >= 4:
            self._method(channel, payload)
        elif kind in (HEADER, BODY) and channel:
            content = self._contents.get(channel)
            if content is not None:
                self._part(kind, channel, content, payload)
            elif self._sink.takes(channel, 0):
                raise AmqpError(505, "expected method frame, got non method frame instead")
        elif kind in (METHOD, HEADER, BODY):
            raise AmqpError(505, _shown(kind, payload))
        elif kind != HEARTBEAT:
            raise _frame_error(kind, payload, "unknown_frame")

    def _method(self, channel: int, payload: bytes) -> None:
        content = self._contents.get(channel)
        if content is not None:
            raise _out_of_place(content)
        number = _U32.unpack_from(payload)[0]
        if number in _WITH_CONTENT and channel:
            if len(payload) > _PUBLISH_BYTES:
                raise _frame_error(METHOD, payload, f"{{method_too_large,{len(payload)},{_PUBLISH_BYTES}}}")
            if self._sink.takes(channel, number):
                self._contents[channel] = _Content(payload)
            return
        if number == ACK:
            self._acks.learn(channel)
        self._sink.on_method(channel, number, payload)

    def _part(self, kind: int, channel: int, content: _Content, payload: bytes) -> None:
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

    def _header(self, channel: int, content: _Content, payload: bytes) -> None:
        if len(payload) < _CONTENT_HEAD_BYTES:
            raise _frame_error(HEADER, payload, "unknown_frame")
        class_id, weight, content.missing = _CONTENT.unpack_from(payload)
        if class_id != 60 or weight:
            explanation = f"expected content header for class 60, got one for class {class_id} instead"
            raise AmqpError(505, explanation, method=content.number)
        content.properties = payload[12:]
        self._sink.on_content_size(channel, content.missing)
        if not content.missing or self._contents.get(channel) is not content:
            return
        size = content.missing + len(payload)
        if content.missing <= self.frame_bytes and self._small_bytes + size <= _SMALL_BYTES:
            self._small_bytes += size
            content.small_bytes = size
        else:
            is_alone = not any(other.large_bytes for other in self._contents.values())
            self._sink.on_large_content(size, is_alone=is_alone)
            content.large_bytes = size

    def _complete(self, channel: int, content: _Content) -> None:
        # The channel may have been closed by what its size said.
        if self._drop(channel) is content:
            assert content.properties is not None
            if content.number == PUBLISH:
                self._sink.on_publishes(channel, [(content.method, content.properties, bytes(content.body))])
            else:
                self._sink.on_method(channel, content.number, content.method)

    def _drop(self, channel: int) -> _Content | None:
        content = self._contents.pop(channel, None)
        if content is not None:
            self._unfinished_bytes -= len(content.body)
            self._small_bytes -= content.small_bytes
            if content.large_bytes:
                self._sink.on_large_content_end(content.large_bytes)
        return content


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
