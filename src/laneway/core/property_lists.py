"""The property list of an AMQP message as bytes: finding, taking out and putting in single properties without touching
the others, so that what a publisher sent reaches the consumer byte for byte.

    u16 flags, one bit a property from the highest down · the values of those present, in this order:
    content-type content-encoding headers delivery-mode priority correlation-id reply-to expiration message-id
    timestamp type user-id app-id cluster-id
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

from laneway.core.field_tables import Malformed, decode_table, encode_short_text, encode_table, split_table

_TEXT, _TABLE, _OCTET, _TIME = range(4)

_KINDS = {
    "content_type": _TEXT,
    "content_encoding": _TEXT,
    "headers": _TABLE,
    "delivery_mode": _OCTET,
    "priority": _OCTET,
    "correlation_id": _TEXT,
    "reply_to": _TEXT,
    "expiration": _TEXT,
    "message_id": _TEXT,
    "timestamp": _TIME,
    "type": _TEXT,
    "user_id": _TEXT,
    "app_id": _TEXT,
    "cluster_id": _TEXT,
}
_FLAGS = {name: 1 << 15 - at for at, name in enumerate(_KINDS)}
_UNUSED_FLAGS = 0b11  # of which the lowest would say that more flags follow; no property needs them

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


def _spans(raw: bytes) -> dict[str, tuple[int, int]]:
    """Where the value of each property stands."""
    if len(raw) < 2:
        raise Malformed("no property flags")
    flags = _U16.unpack_from(raw)[0]
    if flags & _UNUSED_FLAGS:
        raise Malformed("properties that do not exist")
    at, spans = 2, {}
    for name, flag in _FLAGS.items():
        if flags & flag:
            end = at + _size(raw, at, _KINDS[name])
            if end > len(raw):
                raise Malformed(f"the properties end within {name}")
            spans[name] = (at, end)
            at = end
    return spans


def _size(raw: bytes, at: int, kind: int) -> int:
    if kind == _OCTET:
        return 1
    if kind == _TIME:
        return 8
    if kind == _TEXT:
        return 1 + raw[at] if at < len(raw) else 1
    return 4 + int(_U32.unpack_from(raw, at)[0]) if at + 4 <= len(raw) else 4


def decode(raw: bytes) -> dict[str, Any]:
    """The values by name; raises Malformed. Text that is not UTF-8 is made readable: the bytes themselves are kept."""
    values: dict[str, Any] = {}
    for name, (at, end) in _spans(raw).items():
        kind = _KINDS[name]
        if kind != _TABLE:
            values[name] = _decode_value(raw, kind, at, end)
            continue
        values[name], stop = decode_table(raw, at)
        if stop != end:
            raise Malformed("the headers end elsewhere than they say")
    return values


def decode_leniently(raw: bytes) -> dict[str, Any]:
    """As decode(), of a list that nobody has looked at closely: what cannot be decoded is left out."""
    try:
        return decode(raw)
    except Malformed:
        pass
    try:
        spans = _spans(raw)
    except Malformed:
        return {}
    texts = {name: span for name, span in spans.items() if _KINDS[name] != _TABLE}
    return {name: _decode_value(raw, _KINDS[name], *span) for name, span in texts.items()}


def _decode_value(raw: bytes, kind: int, at: int, end: int) -> Any:
    if kind == _TEXT:
        return raw[at + 1 : end].decode("utf-8", "backslashreplace")
    return raw[at] if kind == _OCTET else _U64.unpack_from(raw, at)[0]


#: What a broker must know of a property list before it can take the message: priority, expiration, reply-to, user id.
Needed = tuple[int | None, bytes | None, bytes, bytes | None]

_from_bytes = int.from_bytes


def needed(raw: bytes) -> Needed:
    """Walk a list once for what the broker must know; raises Malformed if it ends too early. Hot: headers are skipped,
    and text stays bytes."""
    try:
        flags = raw[0] << 8 | raw[1]
        if flags & _UNUSED_FLAGS:
            raise Malformed("properties that do not exist")
        at = 2
        priority = expiration = user_id = None
        reply_to = b""
        if flags & 0x8000:  # content type
            at += 1 + raw[at]
        if flags & 0x4000:  # content encoding
            at += 1 + raw[at]
        if flags & 0x2000:  # headers
            at += 4 + _from_bytes(raw[at : at + 4], "big")
        if flags & 0x1000:  # delivery mode
            at += 1
        if flags & 0x0800:
            priority = raw[at]
            at += 1
        if flags & 0x0400:  # correlation id
            at += 1 + raw[at]
        if flags & 0x0200:
            reply_to = raw[at + 1 : at + 1 + raw[at]]
            at += 1 + raw[at]
        if flags & 0x01FC:
            if flags & 0x0100:
                expiration = raw[at + 1 : at + 1 + raw[at]]
                at += 1 + raw[at]
            if flags & 0x0080:  # message id
                at += 1 + raw[at]
            if flags & 0x0040:  # timestamp
                at += 8
            if flags & 0x0020:  # type
                at += 1 + raw[at]
            if flags & 0x0010:
                user_id = raw[at + 1 : at + 1 + raw[at]]
                at += 1 + raw[at]
            if flags & 0x0008:  # app id
                at += 1 + raw[at]
            if flags & 0x0004:  # cluster id
                at += 1 + raw[at]
    except IndexError:
        raise Malformed("the properties end too early") from None
    if at > len(raw):
        raise Malformed("the properties end too early")
    return priority, expiration, reply_to, user_id


def encode(values: dict[str, Any]) -> bytes:
    flags, parts = 0, []
    for name, kind in _KINDS.items():
        if name in values:
            flags |= _FLAGS[name]
            parts.append(_encode_value(kind, values[name]))
    return _U16.pack(flags) + b"".join(parts)


def _encode_value(kind: int, value: Any) -> bytes:
    if kind == _TEXT:
        return encode_short_text(value)
    if kind == _OCTET:
        return bytes((value,))
    if kind == _TIME:
        return _U64.pack(value)
    return encode_table(value)


def change(raw: bytes, changes: dict[str, Any]) -> bytes:
    """The same list with some values put in, or taken out where None is given."""
    spans = _spans(raw)
    flags, parts = 0, []
    for name, kind in _KINDS.items():
        if name in changes:
            if changes[name] is not None:
                flags |= _FLAGS[name]
                parts.append(_encode_value(kind, changes[name]))
        elif name in spans:
            flags |= _FLAGS[name]
            parts.append(raw[slice(*spans[name])])
    return _U16.pack(flags) + b"".join(parts)


def change_headers(raw: bytes, without: tuple[str, ...], added: dict[str, Any]) -> bytes:
    """The same list with some headers taken out and others put in front; the rest stays as it is. Headers that cannot
    be decoded are left out."""
    spans = _spans(raw)
    kept: list[tuple[str, bytes]] = []
    if "headers" in spans:
        with suppress(Malformed):
            kept = split_table(raw, spans["headers"][0])
    gone = set(without) | set(added)
    content = encode_table(added)[4:] + b"".join(entry for name, entry in kept if name not in gone)
    table = _U32.pack(len(content)) + content
    flags = sum(_FLAGS[name] for name in spans if name != "headers")
    parts = [raw[slice(*span)] for name, span in spans.items() if name != "headers"]
    if content or "headers" in spans:
        flags |= _FLAGS["headers"]
        before = sum(1 for name in spans if name in ("content_type", "content_encoding"))
        parts.insert(before, table)
    return _U16.pack(flags) + b"".join(parts)


def headers_at(raw: bytes) -> int:
    """Where the table of headers begins, in a list that has one."""
    return _spans(raw)["headers"][0]
