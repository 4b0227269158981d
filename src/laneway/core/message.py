"""A message: what publishers hand in (Messages) and get for it (Receipts), and how it is stored (the record). What
consumers get is in deliveries.py.

The record is the only stored form of a message. It never changes after it was written, whatever becomes of the
message, so it can be read back from the journal, checked, and handed out without knowing anything else.

    record      0 u32 checksum        low half of xxh3_64 over everything after it
                4 u32 props_size      0: the body is valid JSON, and there is nothing else
                8 u64 seq             the number given at the first publish; of the first queue, if it went to several
               16 u64 enqueued_at_ms
               24 props, props_size bytes
                … body, to the end

    props       0 u16 × 8 lengths of the strings below, in this order
               16 content_type group key tenant dedup_id correlation_id exchange routing_key, UTF-8
                … a MessagePack map {"a": attributes, "x": extra}, absent when both are empty;
                  or what an AMQP client published, byte for byte: 0xC1 (which begins no MessagePack), u8 encoding
                  (1: a property list of AMQP 0-9-1; 2: one whose header BCC is not to be shown), the list

The fixed prefix and the length table let a reader of millions of records find every string without decoding.
To change the layout: raise journal.history.format.VERSION and teach decode_record to read both.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from operator import add, attrgetter, invert
from typing import Any, Literal, TypeVar

import msgspec
import xxhash

from laneway.core import property_lists
from laneway.core.digits import hex_lines
from laneway.errors import InvalidInput, LanewayError

RECORD_PREFIX_BYTES = 24
JSON_TYPE = "application/json"

_PREFIX = struct.Struct("<IIQQ")
_UNCHECKED = struct.Struct("<IQQ")  # the prefix without its checksum
_LENGTHS = struct.Struct("<8H")
_U32 = struct.Struct("<I")
_SUMS = 16
_LOW_HALVES = struct.Struct("4s4x" * _SUMS)  # of so many hashes
_JOIN = b"".join
_hash = xxhash.xxh3_64_intdigest
_pack_unchecked, _pack_u32, _unpack_prefix = _UNCHECKED.pack, _U32.pack, _PREFIX.unpack_from

MAX_TEXT_BYTES = 1024  # of each string property; the protocols carried here allow 255 to 512
MAX_ATTRIBUTES = 128
MAX_ATTRIBUTE_BYTES = 64 * 1024  # names and values together, encoded

_V = TypeVar("_V")

AttributeValue = Any  # str, int, float, bool, bytes; protocol front ends may nest lists and dicts


class Properties(msgspec.Struct, frozen=True, gc=False):
    """What a message carries beside its body and priority."""

    content_type: str = JSON_TYPE
    group: str = ""
    key: str = ""
    tenant: str = ""
    dedup_id: str = ""
    correlation_id: str = ""
    exchange: str = ""
    routing_key: str = ""
    attributes: dict[str, AttributeValue] = {}
    extra: dict[str, Any] = {}  # what one protocol needs back verbatim


def routing_keys(p: Properties) -> tuple[str, ...]:
    """All that a message was routed by and shows: its routing key, and those in its attribute CC."""
    more = p.attributes.get("CC")
    return (p.routing_key, *(k for k in more if isinstance(k, str))) if isinstance(more, list) else (p.routing_key,)


#: Nothing but a body that is known to be valid JSON. Whoever publishes unchecked JSON makes a Properties of their own,
#: so that a reader can pass on the body of a PLAIN message as JSON without looking at it.
PLAIN = Properties()


class Draft(msgspec.Struct, gc=False):
    """A message as it is handed in. Times left at None take the queue's default."""

    body: bytes
    priority: int | None = None
    properties: Properties = PLAIN
    delay_ms: int | None = None
    visible_at_ms: int | None = None  # an absolute time instead of a delay
    ttl_ms: int | None = None


class Death(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The dead-letterings of one message from one queue for one reason: how many, and what the last of them was."""

    queue: str
    reason: str
    at_ms: int  # the last time
    receives: int
    detail: str = ""
    count: int = 1
    first_at_ms: int = 0  # 0: as at_ms
    is_first: bool = False  # whether the message never died before this
    exchange: str | None = None  # it had come through, the first time; None: as its record says
    routing_keys: tuple[str, ...] | None = None
    original_expiration: str = ""  # the time to live its publisher gave it, in milliseconds


class Glimpse(msgspec.Struct, frozen=True, gc=False):
    """One message as peek shows it: no lease, no token."""

    message_id: str
    state: str  # ready, leased, delayed, dead
    priority: int
    body: bytes
    properties: Properties
    enqueued_at_ms: int
    visible_at_ms: int  # when it became or becomes available; the lease's deadline if leased
    receives: int
    consumer: str = ""
    deaths: tuple[Death, ...] = ()


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What a publisher gets for a message once it is durable."""

    message_id: str
    priority: int
    enqueued_at_ms: int
    visible_at_ms: int
    duplicate: bool = False


class Messages(msgspec.Struct, gc=False):
    """Messages that are handed in together, in columns: what a front end parses into, and all that the broker and the
    core take. The usual columns are lists with an entry for each message; None stands for a column that nobody needs.
    Groups, dedup ids and tenants are those of the messages that have one, by index; their text is in the props too."""

    bodies: list[bytes]
    props: list[bytes]  # as a record stores them
    priorities: list[int | None] | None = None  # None: the queue's usual one
    ttls_ms: list[int | None] | None = None
    delays_ms: list[int | None] | None = None
    visible_at_ms: list[int | None] | None = None  # an absolute time instead of a delay
    groups: dict[int, str] = {}
    dedup_ids: dict[int, str] = {}
    tenants: dict[int, str] = {}
    refused: dict[int, LanewayError] = {}  # what its maker found wrong: these are not published
    # They came through an exchange: a priority above the queue's highest counts as the highest, instead of being
    # refused, and a delay may be as long as a time may be away.
    clamps: bool = False
    is_promised: bool = False  # another partition has committed to them: a full queue takes them too

    def __len__(self) -> int:
        return len(self.bodies)

    def at(self, places: Sequence[int]) -> Messages:
        """Those of these indexes, in this order."""
        priorities, ttls, delays, visible = self.priorities, self.ttls_ms, self.delays_ms, self.visible_at_ms
        return Messages(
            list(map(self.bodies.__getitem__, places)),
            list(map(self.props.__getitem__, places)),
            list(map(priorities.__getitem__, places)) if priorities is not None else None,
            list(map(ttls.__getitem__, places)) if ttls is not None else None,
            list(map(delays.__getitem__, places)) if delays is not None else None,
            list(map(visible.__getitem__, places)) if visible is not None else None,
            _taken(self.groups, places),
            _taken(self.dedup_ids, places),
            _taken(self.tenants, places),
            _taken(self.refused, places),
            self.clamps,
            self.is_promised,
        )


def _taken(some: dict[int, _V], places: Sequence[int]) -> dict[int, _V]:
    return {at: some[i] for at, i in enumerate(places) if i in some} if some else {}


def joined_messages(parts: Sequence[Messages]) -> Messages:
    """All of these behind one another. They must agree about what is said of them as a whole."""
    if len(parts) == 1:
        return parts[0]
    bodies, props, priorities, ttls, delays, visible = zip(*map(_COLUMNS, parts), strict=True)
    whole = Messages(
        list(chain.from_iterable(bodies)),
        list(chain.from_iterable(props)),
        _joined_column(priorities, parts),
        _joined_column(ttls, parts),
        _joined_column(delays, parts),
        _joined_column(visible, parts),
        clamps=parts[0].clamps,
        is_promised=parts[0].is_promised,
    )
    if any(map(any, map(_SPARSE_COLUMNS, parts))):
        start = 0
        for part in parts:
            whole.groups |= {start + i: text for i, text in part.groups.items()}
            whole.dedup_ids |= {start + i: text for i, text in part.dedup_ids.items()}
            whole.tenants |= {start + i: text for i, text in part.tenants.items()}
            whole.refused |= {start + i: error for i, error in part.refused.items()}
            start += len(part.bodies)
    return whole


_COLUMNS = attrgetter("bodies", "props", "priorities", "ttls_ms", "delays_ms", "visible_at_ms")
_SPARSE_COLUMNS = attrgetter("groups", "dedup_ids", "tenants", "refused")


def _joined_column(columns: Sequence[list[int | None] | None], parts: Sequence[Messages]) -> list[int | None] | None:
    if columns.count(None) == len(columns):
        return None
    whole: list[int | None] = []
    for column, part in zip(columns, parts, strict=True):
        whole += [None] * len(part.bodies) if column is None else column
    return whole


_DRAFT_FIELDS = attrgetter("body", "priority", "ttl_ms", "delay_ms", "visible_at_ms", "properties")


def messages_of(drafts: Sequence[Draft], *, clamps: bool = False) -> Messages:
    """The columns of messages that were made one by one."""
    messages = Messages([], [], clamps=clamps)
    if not drafts:
        return messages
    bodies, priorities, ttls, delays, visible, all_properties = map(list, zip(*map(_DRAFT_FIELDS, drafts), strict=True))
    messages.bodies = bodies
    for name, column in (("priorities", priorities), ("ttls_ms", ttls), ("delays_ms", delays)):
        if column.count(None) != len(column):
            setattr(messages, name, column)
    if visible.count(None) != len(visible):
        messages.visible_at_ms = visible
    known, block = PLAIN, b""
    for i, properties in enumerate(all_properties):
        if properties is not known:
            try:
                known, block = properties, encode_props(properties)
            except InvalidInput as wrong:
                messages.refused[i] = wrong
                known, block = PLAIN, b""
        if block:
            if properties.group:
                messages.groups[i] = properties.group
            if properties.dedup_id:
                messages.dedup_ids[i] = properties.dedup_id
            if properties.tenant:
                messages.tenants[i] = properties.tenant
        messages.props.append(block)
    return messages


class Receipts(msgspec.Struct, gc=False):
    """What became of messages that were published into one queue, in columns and in the order they were handed in."""

    tag: int  # of the store, for message ids
    seqs: Sequence[int]  # 0: see `others`
    priorities: Sequence[int]
    enqueued_at_ms: int
    visible_at_ms: Sequence[int] | None = None  # 0: at once; None: all of them at once
    others: dict[int, Receipt | LanewayError] = {}  # the refused and the repeated ones, by index

    def __len__(self) -> int:
        return len(self.seqs)

    def __getitem__(self, i: int) -> Receipt | LanewayError:
        other = self.others.get(i) if self.others else None
        if other is not None:
            return other
        visible_ms = self.visible_at_ms[i] if self.visible_at_ms is not None else 0
        text = message_id(self.enqueued_at_ms, self.tag, self.seqs[i])
        return Receipt(text, self.priorities[i], self.enqueued_at_ms, visible_ms or self.enqueued_at_ms)

    def each(self) -> list[Receipt | LanewayError]:
        """As single values, made all at once."""
        since = repeat(self.enqueued_at_ms)
        if self.visible_at_ms is not None:
            since = iter([visible_ms or self.enqueued_at_ms for visible_ms in self.visible_at_ms])  # type: ignore[assignment]
        ids = message_ids(self.enqueued_at_ms, self.tag, self.seqs)
        found: list[Receipt | LanewayError] = list(
            map(Receipt, ids, self.priorities, repeat(self.enqueued_at_ms), since)
        )
        for i, other in self.others.items():
            found[i] = other
        return found

    def part(self, start: int, end: int) -> Receipts:
        part = Receipts(self.tag, self.seqs[start:end], self.priorities[start:end], self.enqueued_at_ms)
        if self.visible_at_ms is not None:
            part.visible_at_ms = self.visible_at_ms[start:end]
        if self.others:
            part.others = {i - start: other for i, other in self.others.items() if start <= i < end}
        return part

    def refusals(self) -> dict[int, LanewayError]:
        return {i: other for i, other in self.others.items() if isinstance(other, LanewayError)}


class Settlement(msgspec.Struct, gc=False):
    """How one lease is to end, or to go on. Which fields count depends on the action."""

    action: Literal["ack", "release", "reject", "extend"]
    token: str
    message_id: str | None = None  # if given, it must be the token's message
    delay_ms: int = 0  # release
    backoff: bool = False  # release: 2^receives seconds, at most 900, instead of delay_ms
    reason: str = ""  # reject
    lease_ms: int | None = None  # extend: the new deadline is so far from now; 0 gives it back at once
    late: bool = False  # the lease may have ended, unless somebody else has leased the message since


def encode_record(seq: int, enqueued_at_ms: int, props: bytes, body: bytes) -> bytes:
    rest = _pack_unchecked(len(props), seq, enqueued_at_ms) + props + body
    return _pack_u32(_hash(rest) & 0xFFFFFFFF) + rest


def places(sizes: Sequence[int], start: int) -> Sequence[int]:
    """Where things of these sizes stand that follow one another; a range if they all have one size."""
    size, count = sizes[0], len(sizes)
    if size and sizes.count(size) == count:
        return range(start, start + size * count, size)
    return list(accumulate(sizes[:-1], initial=start))


def located(locations: Sequence[int], sizes: Sequence[int], start: int) -> list[int]:
    """Where the records of an event stand whose own ones begin at `start` (events.Published.locations)."""
    own = locations.count(0)
    if any(locations[:own]):  # rare: one that it brings comes behind one that it does not
        found: list[int] = []
        for location, size in zip(locations, sizes, strict=True):
            if not location:
                location, start = start, start + size
            found.append(location if location > 0 else found[~location])
        return found
    brought = list(places(sizes[:own], start)) if own else []
    others = locations[own:]
    if max(locations) <= 0:
        return brought + list(map(brought.__getitem__, map(invert, others)))
    return brought + [location if location > 0 else brought[~location] for location in others]


def record_pieces(seqs: Sequence[int], at_ms: int, props: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """What records that follow one another are made of, two pieces each, in order. Hot: in columns."""
    count = len(bodies)
    heads = map(_pack_unchecked, map(len, props), seqs, repeat(at_ms))
    records = list(map(_JOIN, zip(heads, props, bodies, strict=True)))
    if count < _SUMS:
        sums = [_pack_u32(_hash(record) & 0xFFFFFFFF) for record in records]
    else:
        hashes = struct.pack(f"<{count}Q", *map(_hash, records)) + bytes(-count % _SUMS * 8)
        sums = list(chain.from_iterable(_LOW_HALVES.iter_unpack(hashes)))[:count]
    pieces = [b""] * (2 * count)
    pieces[0::2] = sums
    pieces[1::2] = records
    return pieces


def record_is_intact(record: bytes | memoryview) -> bool:
    if len(record) < RECORD_PREFIX_BYTES:
        return False
    return bool(_U32.unpack_from(record)[0] == _hash(record[4:]) & 0xFFFFFFFF)


def open_records(
    data: memoryview, offsets: Sequence[int], sizes: Sequence[int]
) -> tuple[list[int], list[bytes], list[memoryview]] | None:
    """Hot: (enqueued_at_ms, props, bodies) of the records at these offsets, as columns; None if one is not intact. The
    bodies are views of data."""
    ends = list(map(add, offsets, sizes))
    if min(sizes) < RECORD_PREFIX_BYTES or max(ends) > len(data):
        return None
    sums, props_sizes, _, at_ms = zip(*map(_unpack_prefix, repeat(data), offsets), strict=True)
    places = list(zip(offsets, ends, strict=True))
    if list(sums) != [_hash(data[at + 4 : end]) & 0xFFFFFFFF for at, end in places]:
        return None
    if not any(props_sizes):
        return list(at_ms), [b""] * len(places), [data[at + RECORD_PREFIX_BYTES : end] for at, end in places]
    starts = [at + RECORD_PREFIX_BYTES for at in offsets]
    middles = list(map(add, starts, props_sizes))
    alike: dict[bytes, bytes] = {}  # those that are equal become one
    props = [alike.setdefault(block, block) for block in map(bytes, map(data.__getitem__, map(slice, starts, middles)))]
    return list(at_ms), props, list(map(data.__getitem__, map(slice, middles, ends)))


def split_record(record: bytes | memoryview) -> tuple[int, bytes, bytes]:
    """(enqueued_at_ms, props, body)"""
    _, props_size, _, enqueued_at_ms = _unpack_prefix(record)
    end = RECORD_PREFIX_BYTES + props_size
    return enqueued_at_ms, bytes(record[RECORD_PREFIX_BYTES:end]), bytes(record[end:])


def decode_record(record: bytes) -> tuple[int, int, Properties, bytes]:
    """(seq, enqueued_at_ms, properties, body)"""
    _, props_size, seq, enqueued_at_ms = _unpack_prefix(record)
    if not props_size:
        return seq, enqueued_at_ms, PLAIN, record[RECORD_PREFIX_BYTES:]
    end = RECORD_PREFIX_BYTES + props_size
    return seq, enqueued_at_ms, decode_props(record[RECORD_PREFIX_BYTES:end]), record[end:]


def encode_props(p: Properties) -> bytes:
    """The props block of a record; raises InvalidInput naming what is too long."""
    if p is PLAIN:
        return b""
    given = (p.content_type, p.group, p.key, p.tenant, p.dedup_id, p.correlation_id, p.exchange, p.routing_key)
    try:
        texts = [text.encode() for text in given]
    except UnicodeEncodeError as wrong:
        field = Properties.__struct_fields__[given.index(wrong.object)]
        raise InvalidInput(f"{field} is not valid Unicode: {wrong.object[:80]!r}", field=field) from None
    for text, field in zip(texts, Properties.__struct_fields__, strict=False):
        if len(text) > MAX_TEXT_BYTES:
            raise InvalidInput(f"{field} has {len(text)} bytes, {MAX_TEXT_BYTES} are allowed", field=field)
    rest = b""
    if p.attributes or p.extra:
        if len(p.attributes) > MAX_ATTRIBUTES:
            raise InvalidInput(f"{len(p.attributes)} attributes, {MAX_ATTRIBUTES} are allowed", field="attributes")
        try:
            rest = msgspec.msgpack.encode({"a": p.attributes, "x": p.extra} if p.extra else {"a": p.attributes})
        except (OverflowError, RecursionError, TypeError, ValueError) as wrong:
            raise InvalidInput(f"the attributes cannot be stored: {wrong}", field="attributes") from None
        if len(rest) > MAX_ATTRIBUTE_BYTES:
            raise InvalidInput(
                f"the attributes take {len(rest)} bytes, {MAX_ATTRIBUTE_BYTES} are allowed", field="attributes"
            )
    return _LENGTHS.pack(*map(len, texts)) + b"".join(texts) + rest


FOREIGN = b"\xc1"  # what stands behind it in a props block is a property list in the encoding of its protocol
UNKNOWN_TYPE = "application/octet-stream"

#: Properties of AMQP that Properties has no field for; they are kept under these names in `extra`.
AMQP_NAMES = (
    "content_encoding",
    "delivery_mode",
    "priority",  # it has one, but a queue may take the message at a lower one
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
)


def amqp_props_head(exchange: bytes, routing_key: bytes, *, hides_bcc: bool = False) -> bytes:
    """What stands in a props block before the property list of a message that came over AMQP."""
    head = _LENGTHS.pack(0, 0, 0, 0, 0, 0, len(exchange), len(routing_key)) + exchange + routing_key
    return head + (b"\xc1\x02" if hides_bcc else b"\xc1\x01")


def split_amqp_props(props: bytes) -> tuple[bytes, bytes, bytes, bool] | None:
    """(exchange, routing key, property list, whether BCC is hidden) of a message that came over AMQP; None if it did
    not."""
    if len(props) < _LENGTHS.size:
        return None
    lengths = _LENGTHS.unpack_from(props)
    at = _LENGTHS.size + sum(lengths)
    if props[at : at + 1] != FOREIGN:
        return None
    key_at = at - lengths[7]
    return props[key_at - lengths[6] : key_at], props[key_at:at], props[at + 2 :], props[at + 1] == 2


def amqp_attributes(rest: bytes) -> dict[str, Any]:
    """The headers of a message that came over AMQP, from what stands in its props behind the strings."""
    headers: dict[str, Any] = property_lists.decode_leniently(rest[2:]).get("headers", {})
    return headers if rest[1] != 2 else {name: value for name, value in headers.items() if name != "BCC"}


def _amqp_properties(exchange: str, routing_key: str, raw: bytes, *, hides_bcc: bool) -> Properties:
    given = property_lists.decode_leniently(raw)
    headers: dict[str, Any] = given.get("headers", {})
    extra: dict[str, Any] = {}
    if hides_bcc and "BCC" in headers:
        copies = headers["BCC"]  # never shown, and yet it routes when the message dies
        extra["BCC"] = [key for key in copies if isinstance(key, str)] if isinstance(copies, list) else []
        headers = {name: value for name, value in headers.items() if name != "BCC"}
        raw = property_lists.change_headers(raw, ("BCC",), {})
    extra |= {"amqp": raw} | {name: given[name] for name in AMQP_NAMES if name in given}
    return Properties(
        content_type=given.get("content_type") or UNKNOWN_TYPE,
        correlation_id=given.get("correlation_id", ""),
        exchange=exchange,
        routing_key=routing_key,
        attributes=headers,
        extra=extra,
    )


def decode_props(props: bytes) -> Properties:
    if not props:
        return PLAIN
    lengths = _LENGTHS.unpack_from(props)
    at = _LENGTHS.size
    texts: list[str] = []
    for length in lengths:
        texts.append(props[at : at + length].decode("utf-8", "backslashreplace"))
        at += length
    if props[at : at + 1] == FOREIGN:
        return _amqp_properties(texts[6], texts[7], props[at + 2 :], hides_bcc=props[at + 1] == 2)
    rest = msgspec.msgpack.decode(props[at:]) if at < len(props) else {}
    content_type, group, key, tenant, dedup_id, correlation_id, exchange, routing_key = texts
    return Properties(
        content_type,
        group,
        key,
        tenant,
        dedup_id,
        correlation_id,
        exchange,
        routing_key,
        rest.get("a", {}),
        rest.get("x", {}),
    )


# Message ids are UUIDv7: 48 bits of milliseconds, then instead of random bits the store's tag (26 bits, drawn once
# when a store is created) and the message's number (48 bits). So an id costs no memory: it names its message.
#
#   milliseconds:48 | 7:4 | tag high:12 | 2:2 | tag low:14 | seq:48


@lru_cache(maxsize=64)
def message_id_prefix(enqueued_at_ms: int, tag: int) -> str:
    """All of an id but its last twelve digits, which are the number: shared by what came in one millisecond."""
    value = (enqueued_at_ms & 0xFFFFFFFFFFFF) << 32 | 0x7 << 28 | (tag >> 14 & 0xFFF) << 16 | 0x2 << 14 | tag & 0x3FFF
    h = f"{value:020x}"
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-"


def message_id(enqueued_at_ms: int, tag: int, seq: int) -> str:
    return f"{message_id_prefix(enqueued_at_ms, tag)}{seq:012x}"


def message_ids(enqueued_at_ms: int, tag: int, seqs: Sequence[int]) -> list[str]:
    """The ids of messages that came in one millisecond. Hot: all at once, without a step of Python for each."""
    lines = hex_lines(seqs).replace("\n0000", "\n" + message_id_prefix(enqueued_at_ms, tag))
    return lines[1:].split("\n")


def parse_message_id(text: str) -> tuple[int, int, int]:
    """(enqueued_at_ms, tag, seq); raises InvalidInput when it is no message id."""
    try:
        value = uuid.UUID(text).int
    except ValueError:
        raise InvalidInput(f"not a message id: {text[:80]!r}", field="message_id") from None
    return value >> 80, (value >> 64 & 0xFFF) << 14 | (value >> 48 & 0x3FFF), value & 0xFFFFFFFFFFFF
