"""From deliveries to the bytes that a consumer gets: basic.deliver or basic.get-ok, content header, body frames.

What an AMQP client published goes out with the property list that came in, byte for byte. Other messages, and those
that died before, get a list made for them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain, repeat

from laneway.broker.values import Deliveries
from laneway.core.field_tables import Long, encode_short_text
from laneway.core.message import decode_props, split_amqp_props
from laneway.core.property_lists import change_headers
from laneway.frontends.amqp import mapping
from laneway.frontends.amqp.deaths import with_history
from laneway.frontends.amqp.outbox import Data
from laneway.frontends.amqp.spec import BODY, FRAME_OVERHEAD_BYTES, HEADER, METHOD

_METHOD_HEAD = struct.Struct(">BHIHH")
_CONTENT_HEAD = struct.Struct(">BHIHHQ")
_TAG = struct.Struct(">QB")
_END = b"\xce"
_ONE = 1
_PROPERTIES_AT = 12  # in the content header
_pack_tag, _pack_content = _TAG.pack, _CONTENT_HEAD.pack
_pack_body = struct.Struct(">BBHI").pack  # the end of the frame before it, and the head of a body frame
_U32 = struct.Struct(">I")

MAX_JOINED_BYTES = 1024 * 1024  # of a body that is copied into what is sent

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


class _BeforeTags(dict[int, bytes]):
    """What stands before the delivery tag in the method frame of a consumer, by the length of what follows the tag."""

    __slots__ = ("_channel", "_tag")

    def __init__(self, channel: int, tag: bytes) -> None:
        self._channel = channel
        self._tag = tag

    def __missing__(self, where_size: int) -> bytes:
        size = 4 + len(self._tag) + _TAG.size + where_size
        found = self[where_size] = _METHOD_HEAD.pack(METHOD, self._channel, size, 60, 60) + self._tag
        return found


class Dress:
    """How deliveries to one consumer look. Hot: it adds to columns, as those of all consumers are framed together."""

    __slots__ = ("_before_tags", "_counted", "_known", "tag")

    def __init__(self, channel: int, tag: bytes, wheres: Wheres, *, counted: bool) -> None:
        self.tag = tag  # the consumer's, as a short string
        self._counted = counted
        self._known = wheres
        self._before_tags = _BeforeTags(channel, tag)

    def put_on(self, deliveries: Deliveries, befores: list[bytes], wheres: list[bytes], raws: list[bytes]) -> None:
        known = self._known
        receives = deliveries.receives
        start = len(wheres)
        if deliveries.stories or (self._counted and any(map(_ONE.__lt__, receives))):
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
        befores += map(self._before_tags.__getitem__, map(len, wheres[start:]))

    def _remember(self, props: bytes, split: int, where: bytes) -> None:
        came = split_amqp_props(props)
        if came is not None and not came[3] and len(props) - len(came[2]) == split:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[props[:split]] = where


def frames(
    channel: int, parts: Sequence[tuple[Dress, Deliveries]], first_delivery: int, frame_bytes: int
) -> Sequence[Data]:
    """What consumers of a channel get. Hot: the parts of all messages stand side by side in columns.

    method frame: tag, redelivered, where │ CE │ content header, properties │ CE │ head of body │ body │ CE
    """
    befores: list[bytes] = []
    wheres: list[bytes] = []
    raws: list[bytes] = []
    bodies: list[bytes | memoryview] = []
    redelivered: list[bool] = []
    for dress, deliveries in parts:
        dress.put_on(deliveries, befores, wheres, raws)
        bodies += deliveries.bodies
        redelivered += map(_ONE.__lt__, deliveries.receives)
    sizes, count = list(map(len, bodies)), len(bodies)
    lengths = map(_PROPERTIES_AT.__add__, map(len, raws))
    most = frame_bytes - FRAME_OVERHEAD_BYTES
    if min(sizes) == 0 or max(sizes) > most:
        tags = chain.from_iterable([(dress.tag,) * len(deliveries) for dress, deliveries in parts])
        numbered = enumerate(zip(tags, wheres, raws, bodies, redelivered, strict=True), first_delivery)
        found = [
            deliver_frames(channel, tag, delivery, (where, raw), body, again, frame_bytes)
            for delivery, (tag, where, raw, body, again) in numbered
        ]
        return list(chain.from_iterable(found))
    pieces: list[bytes | memoryview] = [_END] * (9 * count)
    pieces[0::9] = befores
    pieces[1::9] = map(_pack_tag, range(first_delivery, first_delivery + count), redelivered)
    pieces[2::9] = wheres
    pieces[4::9] = map(_pack_content, repeat(HEADER), repeat(channel), lengths, repeat(60), repeat(0), sizes)
    pieces[5::9] = raws
    pieces[6::9] = map(_pack_body, repeat(0xCE), repeat(BODY), repeat(channel), sizes)
    pieces[7::9] = bodies
    return (b"".join(pieces),)


def content(channel: int, raw: bytes, body: Data, frame_bytes: int) -> list[Data]:
    """Header and body frames. Properties are one frame, however small the frames are that were agreed on: as RabbitMQ
    does it, because there is no way to cut them."""
    head = _CONTENT_HEAD.pack(HEADER, channel, 12 + len(raw), 60, 0, len(body)) + raw
    most, whole = frame_bytes - FRAME_OVERHEAD_BYTES, memoryview(body)
    parts: list[Data] = []
    for at in range(0, len(body), most):
        part = whole[at : at + most]
        parts += (head + _pack_body(0xCE, BODY, channel, len(part)), part)
        head = b""
    return [*parts, head + _END]


def deliver_frames(
    channel: int, tag: bytes, delivery: int, face: Face, body: Data, redelivered: bool, frame_bytes: int
) -> Sequence[Data]:
    """One message; `tag` is the consumer's, as a short string."""
    where, raw = face
    payload = tag + _TAG.pack(delivery, redelivered) + where
    head = _METHOD_HEAD.pack(METHOD, channel, len(payload) + 4, 60, 60)
    return joined([head, payload, _END, *content(channel, raw, body, frame_bytes)], len(body))


def joined(pieces: list[Data], body_bytes: int) -> Sequence[Data]:
    """The frames of one message: as one piece if it is small, else as they are, so that no large body is copied."""
    return (b"".join(pieces),) if body_bytes <= MAX_JOINED_BYTES else pieces


def get_ok_frames(
    channel: int, delivery: int, deliveries: Deliveries, frame_bytes: int, *, counted: bool
) -> Sequence[Data]:
    where, raw = face_of(deliveries, 0, counted=counted)
    payload = _TAG.pack(delivery, deliveries.receives[0] > 1) + where + _U32.pack(deliveries.left)
    head = _METHOD_HEAD.pack(METHOD, channel, len(payload) + 4, 60, 71)
    body = deliveries.bodies[0]
    return joined([head, payload, _END, *content(channel, raw, body, frame_bytes)], len(body))
