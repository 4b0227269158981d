"""AMQP 0-9-1 as bytes: what the load generator and the sink say, encoded once, and what they must understand.

    frame     type u8 · channel u16 · size u32 · payload · 0xCE
    method    class u16 · method u16 · arguments
    header    class u16 · weight u16 · body size u64 · property flags u16 · properties

Only what a benchmark needs: a message is three frames, since no body here is longer than a frame may be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.load import LoadFailed

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
CHANNEL = 1
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

START, START_OK = (10, 10), (10, 11)
TUNE, TUNE_OK = (10, 30), (10, 31)
OPEN, OPEN_OK = (10, 40), (10, 41)
CLOSE, CLOSE_OK = (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
CHANNEL_CLOSE = (20, 40)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = (40, 10), (40, 11)
EXCHANGE_DELETE, EXCHANGE_DELETE_OK = (40, 20), (40, 21)
DECLARE, DECLARE_OK = (50, 10), (50, 11)
BIND, BIND_OK = (50, 20), (50, 21)
DELETE, DELETE_OK = (50, 40), (50, 41)
QOS, QOS_OK = (60, 10), (60, 11)
CONSUME, CONSUME_OK = (60, 20), (60, 21)
PUBLISH, DELIVER, ACK = (60, 40), (60, 60), (60, 80)
SELECT, SELECT_OK = (85, 10), (85, 11)

# basic.ack as a whole frame: frame head, class and method, delivery tag, multiple, end.
ACK_FRAME = struct.Struct(">BHIHHQBB")
ACK_HEAD = struct.pack(">BHIHH", METHOD, CHANNEL, 13, *ACK)

_FRAME_HEAD = struct.Struct(">BHI")
_FRAME_SIZE = struct.Struct(">3xI")
_HEADER_FRAME = struct.Struct(">B2xI4xQ")  # type, size, and the size of the body

Value = None | bool | int | str | Sequence["Value"]


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_FRAME_HEAD.pack(kind, channel, len(payload)), payload)


def method(which: tuple[int, int], arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


def short_text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long_bytes(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def table(values: Mapping[str, Value]) -> bytes:
    return long_bytes(b"".join([short_text(key) + _field(value) for key, value in values.items()]))


def _field(value: Value) -> bytes:
    if value is None:
        return b"V"
    if isinstance(value, bool):
        return b"t\x01" if value else b"t\x00"
    if isinstance(value, int):
        return b"I" + struct.pack(">i", value)
    if isinstance(value, str):
        return b"S" + long_bytes(value.encode())
    return b"A" + long_bytes(b"".join(map(_field, value)))


def ack(tag: int, *, multiple: bool) -> bytes:
    return ACK_FRAME.pack(METHOD, CHANNEL, 13, *ACK, tag, multiple, END)


def properties(
    *,
    content_type: str | None = None,
    content_encoding: str | None = None,
    headers: Mapping[str, Value] | None = None,
    priority: int | None = None,
    correlation_id: str | None = None,
    reply_to: str | None = None,
    message_id: str | None = None,
    timestamp_s: int | None = None,
) -> bytes:
    """The flags and the property list of a persistent message."""
    encoded = {
        15: None if content_type is None else short_text(content_type),
        14: None if content_encoding is None else short_text(content_encoding),
        13: None if headers is None else table(headers),
        12: b"\x02",
        11: None if priority is None else bytes([priority]),
        10: None if correlation_id is None else short_text(correlation_id),
        9: None if reply_to is None else short_text(reply_to),
        7: None if message_id is None else short_text(message_id),
        6: None if timestamp_s is None else struct.pack(">Q", timestamp_s),
    }
    present = {bit: data for bit, data in encoded.items() if data is not None}
    return struct.pack(">H", sum(1 << bit for bit in present)) + b"".join(present.values())


PERSISTENT = properties()


def published(routing_key: str, body: bytes, properties: bytes = PERSISTENT, *, exchange: str = "") -> bytes:
    """A message as its three frames."""
    to = method(PUBLISH, b"\x00\x00" + short_text(exchange) + short_text(routing_key) + b"\x00")
    return to + frame(HEADER, CHANNEL, struct.pack(">HHQ", 60, 0, len(body)) + properties) + frame(BODY, CHANNEL, body)


def delivered(tag: int, consumer_tag: str, queue: str, message: bytes) -> bytes:
    """What was published, as it comes out again: the frames behind the method are the same bytes."""
    arguments = short_text(consumer_tag) + struct.pack(">QB", tag, 0) + short_text("") + short_text(queue)
    return method(DELIVER, arguments) + message[frame_length(message, 0) :]


GOODBYE = method(CLOSE, struct.pack(">H", 200) + b"\0" + bytes(4), 0)


def frame_length(data: bytes | bytearray, at: int) -> int:
    return 8 + int.from_bytes(data[at + 3 : at + 7], "big")


def frames(data: bytes | bytearray, at: int = 0) -> Iterator[tuple[int, int, int]]:
    """(type, where its payload begins, where the frame ends) of every frame that has wholly arrived."""
    while len(data) >= at + 8 and len(data) >= (end := at + frame_length(data, at)):
        if data[end - 1] != END:
            raise LoadFailed(f"a frame of type {data[at]} ends with {data[end - 1]:#x}, not with 0xce")
        yield data[at], at + 7, end
        at = end


def which_method(data: bytes | bytearray, payload_at: int) -> tuple[int, int]:
    class_id, method_id = struct.unpack_from(">HH", data, payload_at)
    return class_id, method_id


def find_content(data: bytes | bytearray, at: int, filled: int) -> tuple[int, int, int] | None:
    """Where the header frame begins, where the body begins and where the body frame ends, of the message whose method
    frame begins at `at`; None while some of it is still to come."""
    if filled < at + 7:
        return None
    header_at = at + 8 + _FRAME_SIZE.unpack_from(data, at)[0]
    if filled < header_at + 19:
        return None
    kind, header_bytes, body_bytes = _HEADER_FRAME.unpack_from(data, header_at)
    body_frame_at = header_at + 8 + header_bytes
    end = body_frame_at + 8 + body_bytes
    if filled < end:
        return None
    in_step = data[header_at - 1] == data[body_frame_at - 1] == data[end - 1] == END
    if kind != HEADER or data[body_frame_at] != BODY or not in_step:
        raise LoadFailed(f"the frames of a message are out of step: {bytes(data[at : at + 200])!r}")
    return header_at, body_frame_at + 7, end
