"""From messages to the bytes that a consumer gets: basic.deliver or basic.get-ok, content header, body frames.

A batch's look-alikes have equal property bytes, so what is written before each body is worked out once and remembered.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.values import Batch, Properties
from laneway.core.message import decode_props
from laneway.frontends.amqp import mapping
from laneway.frontends.amqp.deaths import with_history
from laneway.frontends.amqp.properties import change_headers
from laneway.frontends.amqp.spec import BODY, FRAME_OVERHEAD_BYTES, HEADER, METHOD, encode_short_text
from laneway.frontends.amqp.tables import Long

if TYPE_CHECKING:
    from laneway.frontends.amqp.shared import Shared

_METHOD_HEAD = struct.Struct(">BHIHH")
_FRAME_HEAD = struct.Struct(">BHI")
_CONTENT_HEAD = struct.Struct(">BHIHHQ")
_TAG = struct.Struct(">QB")
_END = b"\xce"
_pack_tag = struct.Struct(">Q").pack
_U32 = struct.Struct(">I")


#: So many kinds of messages are remembered for each consumer, as far as they fit into so many bytes: where no two
#: messages are alike it would be for nothing, and there may be very many consumers.
MAX_FRAMES = 64
MAX_FRAMES_BYTES = 16 * 1024


class Face(msgspec.Struct, frozen=True):
    """What look-alikes have in common on the wire."""

    where: bytes  # exchange and routing key, as short strings
    raw: bytes | None  # their AMQP properties; None: each has its own, because no AMQP client published them
    properties: Properties


#: Larger properties are hardly anybody's look-alikes, and would take too much memory.
MAX_REMEMBERED_BYTES = 8192


class Faces:
    """By property bytes, for all connections."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[bytes, Face] = {}

    def of(self, props: bytes) -> Face:
        face = self._known.get(props)
        if face is None:
            face = _face(decode_props(props))
            if len(props) <= MAX_REMEMBERED_BYTES:
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[props] = face
        return face


def _face(p: Properties) -> Face:
    raw = p.extra.get("amqp")
    where = encode_short_text(p.exchange) + encode_short_text(p.routing_key)
    return Face(where, raw if isinstance(raw, bytes) else None, p)


class Message(msgspec.Struct, frozen=True):
    """One message, ready to be framed."""

    where: bytes
    raw: bytes
    body: bytes
    redelivered: bool


def message(batch: Batch, at: int, shared: Shared, *, counted: bool = False) -> Message:
    """`counted`: a quorum queue, which tells how often it delivered a message before."""
    face = shared.faces.of(batch.props[at])
    where, raw = face.where, face.raw
    seq = batch.seqs[at]
    story: Any = batch.stories.get(seq) if batch.stories else None
    if raw is None:
        p = face.properties
        if not p.routing_key and not p.exchange:
            where = b"\0" + encode_short_text(batch.name)
        enqueued_at_ms = batch.enqueued_at_ms[at]
        message_id = shared.broker.message_id(seq, enqueued_at_ms)
        raw = mapping.amqp_properties(p, message_id, batch.priorities[at], enqueued_at_ms)
    if story is not None:
        where, raw = with_history(story, face.properties, where, raw)
    if counted and batch.receives[at] > 1:
        raw = change_headers(raw, (), {"x-delivery-count": Long(batch.receives[at] - 1)})
    return Message(where, raw, bytes(batch.bodies[at]), batch.receives[at] > 1)


class _Frame(msgspec.Struct, frozen=True):
    """What is written of look-alikes to one consumer: up to the delivery tag, and from there to the body."""

    before_tag: bytes
    before_body: bytes


class Writer:
    """Puts the messages of one consumer on the wire.

    Hot: neighbours that look alike differ in their tags and bodies alone. What stands around those is made once, and
    the parts are laid side by side as columns instead of one message after the other.
    """

    def __init__(self, channel: int, tag: bytes, shared: Shared, frame_bytes: int, *, counted: bool) -> None:
        self._channel = channel
        self._counted = counted
        self._tag = tag  # the consumer's, as a short string
        self._shared = shared
        self._frame_bytes = frame_bytes
        self._frames: dict[tuple[bytes, int, bool], _Frame | None] = {}
        self._frames_bytes = 0  # of the properties in there; each has them twice

    def write(self, batch: Batch, first_delivery: int) -> bytes:
        parts: list[bytes | memoryview] = []
        at, count = 0, len(batch.bodies)
        while at < count:
            end = at + 1 if batch.stories else _end_of_look_alikes(batch, at)
            frame = None if batch.stories else self._frame(batch, at)
            if frame is None:
                for i in range(at, end):
                    one = message(batch, i, self._shared, counted=self._counted)
                    parts.append(deliver_frames(self._channel, self._tag, first_delivery + i, [one], self._frame_bytes))
            else:
                row: list[bytes | memoryview] = [_END] * (5 * (end - at))
                row[0::5] = [frame.before_tag] * (end - at)
                row[1::5] = map(_pack_tag, range(first_delivery + at, first_delivery + end))
                row[2::5] = [frame.before_body] * (end - at)
                row[3::5] = batch.bodies[at:end]
                parts += row
            at = end
        return b"".join(parts)

    def _frame(self, batch: Batch, at: int) -> _Frame | None:
        """None if it is not known before each message, or if a body needs more frames than one."""
        key = batch.props[at], len(batch.bodies[at]), batch.receives[at] > 1
        if key in self._frames:
            return self._frames[key]
        self._frames_bytes += 2 * len(key[0])
        if len(self._frames) >= MAX_FRAMES or self._frames_bytes > MAX_FRAMES_BYTES:
            self._frames.clear()
            self._frames_bytes = 2 * len(key[0])
        frame = self._frames[key] = self._make(*key)
        return frame

    def _make(self, props: bytes, size: int, redelivered: bool) -> _Frame | None:
        face = self._shared.faces.of(props)
        fits = 0 < size <= self._frame_bytes - FRAME_OVERHEAD_BYTES
        if face.raw is None or not fits or (redelivered and self._counted):
            return None
        one = Message(face.where, face.raw, bytes(size), redelivered)
        frames = deliver_frames(self._channel, self._tag, 0, [one], self._frame_bytes)
        tag_at = _METHOD_HEAD.size + len(self._tag)
        return _Frame(frames[:tag_at], frames[tag_at + 8 : -size - 1])


def _end_of_look_alikes(batch: Batch, at: int) -> int:
    """Up to where messages have the same properties, size and number of receives as the first of them."""
    props, size, receives = batch.props[at], len(batch.bodies[at]), batch.receives[at]
    count = len(batch.bodies)
    if (
        at == 0
        and batch.props.count(props) == count
        and batch.receives.count(receives) == count
        and set(map(len, batch.bodies)) == {size}
    ):
        return count
    end = at + 1
    while (
        end < count and batch.props[end] is props and len(batch.bodies[end]) == size and batch.receives[end] == receives
    ):
        end += 1
    return end


def content(channel: int, raw: bytes, body: bytes, frame_bytes: int) -> list[bytes]:
    """Header and body frames."""
    parts = [_CONTENT_HEAD.pack(HEADER, channel, 12 + len(raw), 60, 0, len(body)), raw, b"\xce"]
    most = frame_bytes - FRAME_OVERHEAD_BYTES
    for at in range(0, len(body), most):
        part = body[at : at + most] if len(body) > most else body
        parts += (_FRAME_HEAD.pack(BODY, channel, len(part)), part, b"\xce")
    return parts


def deliver_frames(
    channel: int, tag: bytes, first_delivery: int, messages: Sequence[Message], frame_bytes: int
) -> bytes:
    """`tag` is the consumer's, as a short string."""
    parts: list[bytes] = []
    delivery = first_delivery
    for one in messages:
        payload = tag + _TAG.pack(delivery, one.redelivered) + one.where
        parts += (_METHOD_HEAD.pack(METHOD, channel, len(payload) + 4, 60, 60), payload, b"\xce")
        parts += content(channel, one.raw, one.body, frame_bytes)
        delivery += 1
    return b"".join(parts)


def get_ok_frames(channel: int, delivery: int, one: Message, message_count: int, frame_bytes: int) -> bytes:
    payload = _TAG.pack(delivery, one.redelivered) + one.where + _U32.pack(message_count)
    head = _METHOD_HEAD.pack(METHOD, channel, len(payload) + 4, 60, 71)
    return b"".join([head, payload, b"\xce", *content(channel, one.raw, one.body, frame_bytes)])
