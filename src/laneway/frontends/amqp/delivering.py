"""From deliveries to the bytes that a consumer gets: basic.deliver or basic.get-ok, content header, body frames.

What an AMQP client published goes out with the property list that came in, byte for byte. Other messages, and those
that died before, get a list made for them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import repeat

from laneway.broker.values import Deliveries
from laneway.core.field_tables import Long, encode_short_text
from laneway.core.message import decode_props, split_amqp_props
from laneway.core.property_lists import change_headers
from laneway.frontends.amqp import mapping
from laneway.frontends.amqp.deaths import with_history
from laneway.frontends.amqp.spec import BODY, FRAME_OVERHEAD_BYTES, HEADER, METHOD

_METHOD_HEAD = struct.Struct(">BHIHH")
_FRAME_HEAD = struct.Struct(">BHI")
_CONTENT_HEAD = struct.Struct(">BHIHHQ")
_TAG = struct.Struct(">QB")
_END = b"\xce"
_pack_tag, _pack_content = _TAG.pack, _CONTENT_HEAD.pack
_pack_body = struct.Struct(">BBHI").pack  # the end of the frame before it, and the head of a body frame
_U32 = struct.Struct(">I")

MAX_REMEMBERED = 20_000  # exchanges with routing keys, of all connections

#: Exchange and routing key as short strings, by what stands before a property list in the stored form.
Wheres = dict[bytes, bytes]
Face = tuple[bytes, bytes]  # exchange and routing key as short strings; the property list


def face_of(deliveries: Deliveries, i: int, *, counted: bool) -> Face:
    """How a message looks on the wire. `counted`: a quorum queue, which tells how often it delivered it before."""
    props = deliveries.props[i]
    story = deliveries.stories.get(deliveries.seqs[i]) if deliveries.stories else None
    came = split_amqp_props(props) if story is None else None
    if came is not None:
        where = bytes((len(came[0]),)) + came[0] + bytes((len(came[1]),)) + came[1]
        raw = change_headers(came[2], ("BCC",), {}) if came[3] else came[2]
    else:
        p = decode_props(props)
        where = encode_short_text(p.exchange) + encode_short_text(p.routing_key)
        kept = p.extra.get("amqp")
        if isinstance(kept, bytes):
            raw = kept
        else:
            if not p.routing_key and not p.exchange:
                where = b"\0" + encode_short_text(deliveries.queue_name)
            message_id, at_ms = deliveries.message_id(i), deliveries.enqueued_at_ms[i]
            raw = mapping.amqp_properties(p, message_id, deliveries.priorities[i], at_ms)
        if story is not None:
            where, raw = with_history(story, p, where, raw)
    if counted and deliveries.receives[i] > 1:
        raw = change_headers(raw, (), {"x-delivery-count": Long(deliveries.receives[i] - 1)})
    return where, raw


class DeliveryWriter:
    """Puts the messages of one consumer on the wire. Hot: the parts of all messages stand side by side in columns."""

    def __init__(self, channel: int, tag: bytes, frame_bytes: int, wheres: Wheres, *, counted: bool) -> None:
        self._channel = channel
        self._counted = counted
        self._tag = tag  # the consumer's, as a short string
        self._most = frame_bytes - FRAME_OVERHEAD_BYTES
        self._known = wheres
        self._before_tags: dict[int, bytes] = {}  # by the length of what follows the tag

    def write(self, deliveries: Deliveries, first_delivery: int) -> bytes:
        wheres: list[bytes] = []
        raws: list[bytes] = []
        known = self._known
        receives = deliveries.receives
        redelivered: Sequence[bool] = [count > 1 for count in receives]
        if deliveries.stories or (self._counted and any(redelivered)):
            for i in range(len(receives)):
                where, raw = face_of(deliveries, i, counted=self._counted)
                wheres.append(where)
                raws.append(raw)
        else:
            for i, props in enumerate(deliveries.props):
                # A property list of AMQP stands behind the exchange and the routing key, whose lengths are here.
                split = 18 + props[12] + props[14] if len(props) > 18 else 0
                known_where = known.get(props[:split])
                if known_where is not None:
                    wheres.append(known_where)
                    raws.append(props[split:])
                else:
                    where, raw = face_of(deliveries, i, counted=self._counted)
                    wheres.append(where)
                    raws.append(raw)
                    self._remember(props, split, where)
        return self._framed(wheres, raws, redelivered, deliveries.bodies, first_delivery)

    def _remember(self, props: bytes, split: int, where: bytes) -> None:
        came = split_amqp_props(props)
        if came is not None and not came[3] and len(props) - len(came[2]) == split:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[props[:split]] = where

    def _framed(
        self,
        wheres: list[bytes],
        raws: list[bytes],
        redelivered: Sequence[bool],
        bodies: Sequence[bytes | memoryview],
        first_delivery: int,
    ) -> bytes:
        """method frame: tag, redelivered, where │ CE │ content header, properties │ CE │ head of body │ body │ CE"""
        channel, count = self._channel, len(wheres)
        sizes = list(map(len, bodies))
        lengths = [12 + len(raw) for raw in raws]
        if max(lengths) > self._most:
            raise _too_long(max(lengths), self._most)
        if min(sizes) == 0 or max(sizes) > self._most:
            return self._framed_singly(wheres, raws, redelivered, bodies, first_delivery)
        parts: list[bytes | memoryview] = [_END] * (9 * count)
        where_sizes = list(map(len, wheres))
        if where_sizes.count(where_sizes[0]) == count:
            parts[0::9] = [self._before_tag(where_sizes[0])] * count
        else:
            parts[0::9] = map(self._before_tag, where_sizes)
        parts[1::9] = map(_pack_tag, range(first_delivery, first_delivery + count), redelivered)
        parts[2::9] = wheres
        parts[4::9] = map(_pack_content, repeat(HEADER), repeat(channel), lengths, repeat(60), repeat(0), sizes)
        parts[5::9] = raws
        parts[6::9] = map(_pack_body, repeat(0xCE), repeat(BODY), repeat(channel), sizes)
        parts[7::9] = bodies
        return b"".join(parts)

    def _before_tag(self, where_size: int) -> bytes:
        found = self._before_tags.get(where_size)
        if found is None:
            size = 4 + len(self._tag) + _TAG.size + where_size
            found = _METHOD_HEAD.pack(METHOD, self._channel, size, 60, 60) + self._tag
            self._before_tags[where_size] = found
        return found

    def _framed_singly(
        self,
        wheres: list[bytes],
        raws: list[bytes],
        redelivered: Sequence[bool],
        bodies: Sequence[bytes | memoryview],
        first_delivery: int,
    ) -> bytes:
        """Bodies that are empty or need more frames than one."""
        frame_bytes = self._most + FRAME_OVERHEAD_BYTES
        parts: list[bytes] = []
        for i, (where, raw, body) in enumerate(zip(wheres, raws, bodies, strict=True)):
            parts.append(
                deliver_frames(
                    self._channel, self._tag, first_delivery + i, (where, raw), bytes(body), redelivered[i], frame_bytes
                )
            )
        return b"".join(parts)


def _too_long(size: int, most: int) -> ValueError:
    return ValueError(f"its properties take {size} bytes, a frame of this connection holds {most}")


def content(channel: int, raw: bytes, body: bytes, frame_bytes: int) -> list[bytes]:
    """Header and body frames."""
    parts = [_CONTENT_HEAD.pack(HEADER, channel, 12 + len(raw), 60, 0, len(body)), raw, b"\xce"]
    most = frame_bytes - FRAME_OVERHEAD_BYTES
    for at in range(0, len(body), most):
        part = body[at : at + most] if len(body) > most else body
        parts += (_FRAME_HEAD.pack(BODY, channel, len(part)), part, b"\xce")
    return parts


def deliver_frames(
    channel: int, tag: bytes, delivery: int, face: Face, body: bytes, redelivered: bool, frame_bytes: int
) -> bytes:
    """One message; `tag` is the consumer's, as a short string."""
    where, raw = face
    payload = tag + _TAG.pack(delivery, redelivered) + where
    head = _METHOD_HEAD.pack(METHOD, channel, len(payload) + 4, 60, 60)
    return b"".join([head, payload, b"\xce", *content(channel, raw, body, frame_bytes)])


def get_ok_frames(channel: int, delivery: int, deliveries: Deliveries, frame_bytes: int, *, counted: bool) -> bytes:
    where, raw = face_of(deliveries, 0, counted=counted)
    if 12 + len(raw) > frame_bytes - FRAME_OVERHEAD_BYTES:
        raise _too_long(12 + len(raw), frame_bytes - FRAME_OVERHEAD_BYTES)
    payload = _TAG.pack(delivery, deliveries.receives[0] > 1) + where + _U32.pack(deliveries.left)
    head = _METHOD_HEAD.pack(METHOD, channel, len(payload) + 4, 60, 71)
    return b"".join([head, payload, b"\xce", *content(channel, raw, bytes(deliveries.bodies[0]), frame_bytes)])
