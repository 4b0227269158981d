"""AMQP 0-9-1 as bytes: what the load generator and the sink say, encoded once, and what they must understand.

    frame     type u8 · channel u16 · size u32 · payload · 0xCE
    method    class u16 · method u16 · arguments
    header    class u16 · weight u16 · body size u64 · property flags u16 · properties

Only what a benchmark needs. Whole messages are told apart by their length alone, see amqp_load.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

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
DECLARE, DECLARE_OK = (50, 10), (50, 11)
DELETE, DELETE_OK = (50, 40), (50, 41)
QOS, QOS_OK = (60, 10), (60, 11)
CONSUME, CONSUME_OK = (60, 20), (60, 21)
PUBLISH, DELIVER, ACK = (60, 40), (60, 60), (60, 80)
SELECT, SELECT_OK = (85, 10), (85, 11)

# basic.ack as a whole frame: frame head, class and method, delivery tag, multiple, end.
ACK_FRAME = struct.Struct(">BHIHHQBB")
ACK_HEAD = struct.pack(">BHIHH", METHOD, CHANNEL, 13, *ACK)

_FRAME_HEAD = struct.Struct(">BHI")


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return b"%b%b\xce" % (_FRAME_HEAD.pack(kind, channel, len(payload)), payload)


def method(which: tuple[int, int], arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


def short_text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long_bytes(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def table(values: Mapping[str, int | str]) -> bytes:
    fields = (
        short_text(key)
        + (b"I" + struct.pack(">i", value) if isinstance(value, int) else b"S" + long_bytes(value.encode()))
        for key, value in values.items()
    )
    return long_bytes(b"".join(fields))


def ack(tag: int, *, multiple: bool) -> bytes:
    return ACK_FRAME.pack(METHOD, CHANNEL, 13, *ACK, tag, multiple, END)


def published(queue: str, body: bytes, priority: int | None) -> bytes:
    """A persistent message for this queue, by way of the default exchange, as its three frames."""
    to = method(PUBLISH, b"\x00\x00" + short_text("") + short_text(queue) + b"\x00")
    if priority is None:
        properties = struct.pack(">HB", 1 << 12, 2)
    else:
        properties = struct.pack(">HBB", 1 << 12 | 1 << 11, 2, priority)
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
            raise ValueError(f"a frame of type {data[at]} ends with {data[end - 1]:#x}, not with 0xce")
        yield data[at], at + 7, end
        at = end


def which_method(data: bytes | bytearray, payload_at: int) -> tuple[int, int]:
    class_id, method_id = struct.unpack_from(">HH", data, payload_at)
    return class_id, method_id
