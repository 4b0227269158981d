"""A message: what a publisher hands in (Draft), how it is stored (the record), what a consumer gets (Delivery).

The record is the only stored form of a message. It never changes after it was written, whatever becomes of the
message, so it can be read back from the journal, checked, and handed out without knowing anything else.

    record      0 u32 checksum        low half of xxh3_64 over everything after it
                4 u32 props_size      0: the body is valid JSON, and there is nothing else
                8 u64 seq             the number given at the first publish
               16 u64 enqueued_at_ms
               24 props, props_size bytes
                … body, to the end

    props       0 u16 × 8 lengths of the strings below, in this order
               16 content_type group key tenant dedup_id correlation_id exchange routing_key, UTF-8
                … a MessagePack map {"a": attributes, "x": extra}, absent when both are empty

The fixed prefix and the length table let a reader of millions of records find every string without decoding.
To change the layout: raise journal.segments.format.VERSION and teach decode_record to read both.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby, repeat
from operator import add
from typing import Any, Literal, overload

import msgspec
import xxhash

from laneway.core.digits import hex_lines, token
from laneway.errors import InvalidInput

RECORD_PREFIX_BYTES = 24
JSON_TYPE = "application/json"

_PREFIX = struct.Struct("<IIQQ")
_UNCHECKED = struct.Struct("<IQQ")  # the prefix without its checksum
_LENGTHS = struct.Struct("<8H")
_U32 = struct.Struct("<I")
_SUMS = 16
_LOW_HALVES = struct.Struct("4s4x" * _SUMS)  # of so many hashes
_hash = xxhash.xxh3_64_intdigest
_running_hash = xxhash.xxh3_64
_pack_unchecked, _pack_u32, _unpack_prefix = _UNCHECKED.pack, _U32.pack, _PREFIX.unpack_from

MAX_TEXT_BYTES = 1024  # of each string property; the protocols carried here allow 255 to 512
MAX_ATTRIBUTES = 128
MAX_ATTRIBUTE_BYTES = 64 * 1024  # names and values together, encoded

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


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One leased message as a consumer gets it."""

    message_id: str
    priority: int
    body: bytes
    properties: Properties
    enqueued_at_ms: int
    receives: int
    deadline_ms: int
    token: str
    deaths: tuple[Death, ...] = ()


class Deliveries(Sequence[Delivery]):
    """Leased messages in columns. Whoever wants them one by one has them made then; the hot paths never do."""

    __slots__ = (
        "bodies",
        "deadline_ms",
        "enqueued_at_ms",
        "first_lease",
        "priorities",
        "props",
        "receives",
        "seqs",
        "tag",
    )

    def __init__(
        self,
        tag: int,
        seqs: Sequence[int],
        first_lease: int,
        deadline_ms: int,
        receives: Sequence[int],
        enqueued_at_ms: Sequence[int],
        props: Sequence[bytes],
        bodies: Sequence[bytes | memoryview],
        priorities: bytes,
    ) -> None:
        self.tag = tag  # of the store, for message ids
        self.seqs = seqs  # none of them has a history
        self.first_lease = first_lease
        self.deadline_ms = deadline_ms
        self.receives = receives
        self.enqueued_at_ms = enqueued_at_ms
        self.props = props
        self.bodies = bodies
        self.priorities = priorities

    def __len__(self) -> int:
        return len(self.seqs)

    def part(self, at: int, end: int) -> Deliveries:
        """Some of them, still in columns."""
        here = slice(at, end)
        return Deliveries(
            self.tag,
            self.seqs[here],
            self.first_lease + at,
            self.deadline_ms,
            self.receives[here],
            self.enqueued_at_ms[here],
            self.props[here],
            self.bodies[here],
            self.priorities[here],
        )

    @overload
    def __getitem__(self, i: int) -> Delivery: ...
    @overload
    def __getitem__(self, i: slice) -> list[Delivery]: ...
    def __getitem__(self, i: int | slice) -> Delivery | list[Delivery]:
        if isinstance(i, slice):
            return [self[at] for at in range(len(self))[i]]
        i = range(len(self))[i]
        seq = self.seqs[i]
        return Delivery(
            message_id(self.enqueued_at_ms[i], self.tag, seq),
            self.priorities[i],
            bytes(self.bodies[i]),
            decode_props(self.props[i]),
            self.enqueued_at_ms[i],
            self.receives[i],
            self.deadline_ms,
            token(self.first_lease + i, seq),
        )


def part_of(deliveries: Sequence[Delivery], at: int, end: int) -> Sequence[Delivery]:
    """Some of them, in columns if they are."""
    return deliveries.part(at, end) if isinstance(deliveries, Deliveries) else deliveries[at:end]


class Receipts(msgspec.Struct, frozen=True, gc=False):
    """What the publishers of plain messages get, in columns and in the order they gave them."""

    tag: int
    seqs: Sequence[int]
    priorities: Sequence[int]
    enqueued_at_ms: int


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


class Settlement(msgspec.Struct, gc=False):
    """How one lease is to end, or to go on. Which fields count depends on the action."""

    action: Literal["ack", "release", "reject", "extend"]
    token: str
    message_id: str | None = None  # if given, it must be the token's message
    delay_ms: int = 0  # release
    backoff: bool = False  # release: 2^receives seconds, at most 900, instead of delay_ms
    reason: str = ""  # reject
    lease_ms: int | None = None  # extend: the new deadline is so far from now; 0 gives it back at once


def encode_record(seq: int, enqueued_at_ms: int, props: bytes, body: bytes) -> bytes:
    rest = _pack_unchecked(len(props), seq, enqueued_at_ms) + props + body
    return _pack_u32(_hash(rest) & 0xFFFFFFFF) + rest


def places(sizes: Sequence[int], start: int) -> Sequence[int]:
    """Where things of these sizes stand that follow one another; a range if they all have one size."""
    size, count = sizes[0], len(sizes)
    if size and sizes.count(size) == count:
        return range(start, start + size * count, size)
    return list(accumulate(sizes[:-1], initial=start))


def record_pieces(first_seq: int, at_ms: int, props: Sequence[bytes], bodies: Sequence[bytes]) -> list[bytes]:
    """What the records of neighbours are made of, three pieces each, in order.

    Hot: nothing the size of a body is kept here; whoever writes them joins them once.
    """
    count, block = len(bodies), props[0]
    if props.count(block) == count:
        return _alike_pieces(first_seq, at_ms, block, bodies)
    pieces: list[bytes] = []
    at = 0
    for block, alike in groupby(props):  # those of one priority stand together
        end = at + len(list(alike))
        pieces += _alike_pieces(first_seq + at, at_ms, block, bodies[at:end])
        at = end
    return pieces


def _alike_pieces(first_seq: int, at_ms: int, block: bytes, bodies: Sequence[bytes]) -> list[bytes]:
    """Of look-alikes: in columns, without a step of Python for each, if there are some."""
    count, size = len(bodies), len(block)
    columns = [b""] * (3 * count)
    columns[2::3] = bodies
    if count < _SUMS:
        for i, body in enumerate(bodies):
            head = _pack_unchecked(size, first_seq + i, at_ms) + block
            whole = _running_hash(head)
            whole.update(body)
            columns[3 * i] = _pack_u32(whole.intdigest() & 0xFFFFFFFF)
            columns[3 * i + 1] = head
        return columns
    pack = _prefix_struct(size).pack
    heads = list(map(pack, repeat(size), range(first_seq, first_seq + count), repeat(at_ms), repeat(block)))
    hashes = struct.pack(f"<{count}Q", *map(_hash, map(add, heads, bodies))) + bytes(-count % _SUMS * 8)
    columns[0::3] = list(chain.from_iterable(_LOW_HALVES.iter_unpack(hashes)))[:count]
    columns[1::3] = heads
    return columns


@lru_cache(maxsize=256)
def _prefix_struct(size: int) -> struct.Struct:
    """A record's prefix without its checksum, and props of this size."""
    return struct.Struct(f"<IQQ{size}s")


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


def decode_props(props: bytes) -> Properties:
    if not props:
        return PLAIN
    lengths = _LENGTHS.unpack_from(props)
    at = _LENGTHS.size
    texts: list[str] = []
    for length in lengths:
        texts.append(props[at : at + length].decode())
        at += length
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
