"""Field tables: the typed name-value lists of AMQP, to and from plain Python values.

A client may send anything, so every length is checked before it is used, nesting is bounded, and nothing is copied
twice. What Python has no word for is simplified (a decimal becomes a float, a timestamp its seconds): whoever needs a
table back byte for byte keeps the bytes.

    table   u32 size, then  u8 length, name, value …
    array   u32 size, then  value …
    value   u8 type, then what the type says
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 32

_U32 = struct.Struct(">I")


class Malformed(Exception):
    """Bytes that are no value of the kind that stands there."""


class Timestamp(int):
    """Seconds since 1970, to be written as such; read, they are plain integers."""


class Long(int):
    """Written with 64 bits however small it is."""


_FIXED: dict[int, struct.Struct] = {
    ord(letter): struct.Struct(">" + layout)
    for letter, layout in {
        "b": "b", "B": "B", "s": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q", "f": "f", "d": "d", "T": "Q",
    }.items()
}  # fmt: skip

_BOOL, _DECIMAL, _LONG_TEXT, _BYTES, _TABLE, _ARRAY, _VOID = b"tDSxFAV"

#: How RabbitMQ calls the types in its error texts.
TYPE_NAMES = {
    ord(letter): name
    for letter, name in {
        "b": "byte", "B": "unsignedbyte", "s": "short", "u": "unsignedshort", "I": "signedint", "i": "unsignedint",
        "l": "long", "L": "long", "f": "float", "d": "double", "T": "timestamp", "t": "bool", "D": "decimal",
        "S": "longstr", "x": "binary", "F": "table", "A": "array", "V": "void",
    }.items()
}  # fmt: skip


def decode_table(data: bytes, at: int, depth: int = 0) -> tuple[dict[str, Any], int]:
    """The table that begins here, and where it ends."""
    at, end = _extent(data, at)
    table: dict[str, Any] = {}
    while at < end:
        name_end = at + 1 + data[at]
        if name_end > end:
            raise Malformed("a name reaches beyond its table")
        name = data[at + 1 : name_end].decode("utf-8", "backslashreplace")
        table[name], at = _decode_value(data, name_end, end, depth)
    return table, at


def table_types(data: bytes, at: int) -> dict[str, str]:
    """What RabbitMQ calls the types of a (well-formed) table's values, by name."""
    return {name: TYPE_NAMES[entry[1 + entry[0]]] for name, entry in split_table(data, at)}


def split_table(data: bytes, at: int) -> list[tuple[str, bytes]]:
    """The entries of a (well-formed) table: each name, and the bytes of name and value together."""
    at, end = _extent(data, at)
    entries: list[tuple[str, bytes]] = []
    while at < end:
        name_end = at + 1 + data[at]
        name = data[at + 1 : name_end].decode("utf-8", "backslashreplace")
        _, stop = _decode_value(data, name_end, end, 0)
        entries.append((name, data[at:stop]))
        at = stop
    return entries


def _extent(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise Malformed("no room for a size")
    end = at + 4 + _U32.unpack_from(data, at)[0]
    if end > len(data):
        raise Malformed("a size reaches beyond the data")
    return at + 4, end


def _decode_value(data: bytes, at: int, end: int, depth: int) -> tuple[Any, int]:
    if at >= end:
        raise Malformed("a value is missing")
    kind = data[at]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        stop = at + fixed.size
        if stop > end:
            raise Malformed("a value reaches beyond its table")
        return fixed.unpack_from(data, at)[0], stop
    if kind in (_LONG_TEXT, _BYTES):
        start, stop = _extent(data, at)
        value: Any = text_or_bytes(data[start:stop]) if kind == _LONG_TEXT else data[start:stop]
    elif kind == _BOOL:
        value, stop = data[at : at + 1] != b"\0", at + 1
    elif kind == _VOID:
        value, stop = None, at
    elif kind == _DECIMAL:
        value, stop = _decimal(data, at, end)
    elif depth >= MAX_DEPTH:
        raise Malformed(f"tables are nested more than {MAX_DEPTH} deep")
    elif kind == _TABLE:
        value, stop = decode_table(data, at, depth + 1)
    elif kind == _ARRAY:
        value, stop = _array(data, at, depth + 1)
    else:
        raise Malformed(f"there is no type {chr(kind)!r}")
    if stop > end:
        raise Malformed("a value reaches beyond its table")
    return value, stop


def _array(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    at, end = _extent(data, at)
    values: list[Any] = []
    while at < end:
        value, at = _decode_value(data, at, end, depth)
        values.append(value)
    return values, at


def _decimal(data: bytes, at: int, end: int) -> tuple[float, int]:
    if at + 5 > end:
        raise Malformed("a value reaches beyond its table")
    return float(_U32.unpack_from(data, at + 1)[0] / 10.0 ** data[at]), at + 5


def text_or_bytes(raw: bytes) -> str | bytes:
    """AMQP does not say which it is."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


# --- encoding


def encode_short_text(text: str) -> bytes:
    """Cut at 255 bytes, never within a character."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > 255:
        raw = raw[:255].decode("utf-8", "ignore").encode()
    return bytes((len(raw),)) + raw


def encode_table(table: dict[str, Any]) -> bytes:
    """Names longer than AMQP can carry are left out."""
    parts: list[bytes] = []
    for name, value in table.items():
        raw = name.encode("utf-8", "surrogateescape")
        if len(raw) <= 255:
            parts += (bytes((len(raw),)), raw, _encode_value(value))
    content = b"".join(parts)
    return _U32.pack(len(content)) + content


def _encode_value(value: Any) -> bytes:
    encode = _ENCODERS.get(type(value))
    return encode(value) if encode is not None else _encode_text(str(value))


def _encode_int(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"I" + value.to_bytes(4, "big", signed=True)
    if -(1 << 63) <= value < 1 << 63:
        return b"l" + value.to_bytes(8, "big", signed=True)
    return _encode_text(str(value))


def _encode_text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")
    return b"S" + _U32.pack(len(raw)) + raw


def _encode_list(values: list[Any]) -> bytes:
    content = b"".join(map(_encode_value, values))
    return b"A" + _U32.pack(len(content)) + content


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: _encode_text,
    bool: lambda value: b"t\1" if value else b"t\0",
    int: _encode_int,
    Long: lambda value: b"l" + value.to_bytes(8, "big", signed=True),
    Timestamp: lambda value: b"T" + value.to_bytes(8, "big"),
    float: lambda value: b"d" + struct.pack(">d", value),
    bytes: lambda value: b"x" + _U32.pack(len(value)) + value,
    type(None): lambda value: b"V",
    dict: lambda value: b"F" + encode_table(value),
    list: _encode_list,
    tuple: lambda value: _encode_list(list(value)),
}
