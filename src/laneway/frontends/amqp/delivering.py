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
_U32 = struct.Struct(">I")


class Face(msgspec.Struct, frozen=True):
    """What look-alikes have in common on the wire."""

    where: bytes  # exchange and routing key, as short strings
    raw: bytes | None  # their AMQP properties; None: each has its own, because no AMQP client published them
    properties: Properties


class Faces:
    """By property bytes, for all connections."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[bytes, Face] = {}

    def of(self, props: bytes) -> Face:
        face = self._known.get(props)
        if face is None:
            if len(self._known) >= self._most:
                self._known.clear()
            face = self._known[props] = _face(decode_props(props))
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
    return Message(where, raw, batch.bodies[at], batch.receives[at] > 1)


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
