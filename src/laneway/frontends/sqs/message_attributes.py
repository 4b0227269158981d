"""Message attributes: what AWS allows in them, their MD5, and how Laneway keeps them so that other protocols read them.

A String is kept as text, a Number as a number if that gives its text back, a Binary as bytes. What the kept value does
not tell (a label as in String.json, a Number as 007) stands in extra["sqs"]["types"].
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from hashlib import md5
from typing import Any

import msgspec

from laneway.broker.values import Properties
from laneway.frontends.sqs.errors import SqsError, invalid
from laneway.frontends.sqs.wire import AttributeValues, MessageAttributeValue

MAX_COUNT = 10
_NAME = re.compile(r"[A-Za-z0-9_.\u00c0-\u017f-]+")  # AWS documents the ASCII ones
_RESERVED = re.compile(r"(?i:aws|amazon)\.|\.")  # what a name does not begin with
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_MAX_BYTES = 256  # of a name, and of a type
NOT_ALLOWED = (
    "Invalid characters found. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"
)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROL = bytes(code for code in range(32) if code not in (9, 10, 13))
_MD5_OVERHEAD_BYTES = 13  # of each attribute: three lengths and a mark
_pack_length = struct.Struct(">I").pack


def has_only_allowed(text: str, encoded: bytes) -> bool:
    """Whether a text has only characters that AWS lets through: those of XML. One loop in C looks through ASCII."""
    if text.isascii():
        return len(encoded.translate(None, _CONTROL)) == len(encoded)
    return _NOT_ALLOWED.search(text) is None


def md5_text(content: bytes | memoryview) -> str:
    return md5(content, usedforsecurity=False).hexdigest()


def _md5_head(name: str, kind: str) -> bytes:
    """What the MD5 takes of an attribute before its value: name and type, lengths before each, then 2 for a Binary and
    1 for others."""
    parts = (name.encode(), kind.encode())
    mark = b"\2" if kind.startswith("Binary") else b"\1"
    return b"".join([_pack_length(len(part)) + part for part in parts]) + mark


_known_head = lru_cache(maxsize=4096)(_md5_head)  # the messages of a program have the same few attributes


# --- sent


def read_attributes(
    attributes: AttributeValues, *, is_allowed: bool
) -> tuple[dict[str, Any], dict[str, str], str, int]:
    """(values as Laneway keeps them, the types that these do not tell, the MD5, the bytes that AWS counts) of the
    attributes of a message; raises for what AWS refuses. `is_allowed`: the caller knows that they have only characters
    that AWS lets through."""
    if len(attributes) > MAX_COUNT:
        raise invalid(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{MAX_COUNT}].")
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    hashed: list[bytes] = []
    for name in sorted(attributes):
        given = attributes[name]
        kind = given.DataType
        head = _checked_head(name, kind)
        if kind == "String":
            value: Any = given.StringValue or ""
            content: bytes = value.encode()
        else:
            value, content = _typed_value(name, kind, given)
            if kind != _usual_type(value):
                types[name] = kind
        if not content or given.StringListValues or given.BinaryListValues:
            raise _no_value(name, given)
        if not is_allowed and isinstance(value, str) and not has_only_allowed(value, content):
            raise invalid(f"The value of message (user) attribute '{name}': {NOT_ALLOWED}")
        values[name] = value
        hashed += (head, _pack_length(len(content)), content)
    whole = b"".join(hashed)
    return values, types, md5_text(whole), len(whole) - _MD5_OVERHEAD_BYTES * len(values)


@lru_cache(maxsize=4096)
def _checked_head(name: str, kind: str) -> bytes:
    """The head for the MD5; raises unless name and type are as AWS wants them."""
    if not name:
        raise invalid("The request must contain non-empty message (user) attribute names.")
    if len(name.encode()) > _MAX_BYTES:
        raise invalid(f"Message (user) attribute names must be shorter than {_MAX_BYTES} Bytes")
    if not _NAME.fullmatch(name):
        raise invalid(
            "Message (user) attributes name can only contain upper and lower score characters, digits, periods, "
            "hyphens and underscores."
        )
    if _RESERVED.match(name) or name.endswith(".") or ".." in name:
        raise invalid(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. These strings are reserved for "
            "internal use. Additionally, they cannot start or end with '.'."
        )
    if not kind:
        raise invalid(f"Message (user) attribute '{name}' must contain a non-empty message attribute type.")
    if len(kind.encode()) > _MAX_BYTES:
        raise invalid(f"Message (user) attribute types must be shorter than {_MAX_BYTES} Bytes")
    if not _TYPE.fullmatch(kind):
        raise invalid(
            f"The type of message (user) attribute '{name}' is invalid. You must use only the following supported type "
            "prefixes: Binary, Number, String."
        )
    return _md5_head(name, kind)


def _typed_value(name: str, kind: str, given: MessageAttributeValue) -> tuple[Any, bytes]:
    """(the value as it is kept, as it is hashed). A number is kept as one if it is written as this text again."""
    if kind.startswith("Binary"):
        return given.BinaryValue, given.BinaryValue or b""
    text = given.StringValue or ""
    if not kind.startswith("Number") or not text:
        return text, text.encode()
    if not _NUMBER.fullmatch(text) or len(text) > 60:
        raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    number = int(text) if text.lstrip("+-").isdigit() else float(text)
    is_kept = str(number) == text and (isinstance(number, float) or -(1 << 63) <= number < 1 << 64)
    return number if is_kept else text, text.encode()


def _no_value(name: str, given: MessageAttributeValue) -> SqsError:
    if given.StringListValues or given.BinaryListValues:
        text = f"Message attribute list values in SendMessage operation are not supported: {name}."
        return SqsError("UnsupportedOperation", text)
    kind = given.DataType.partition(".")[0]
    return invalid(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")


def _usual_type(value: Any) -> str:
    if isinstance(value, str):
        return "String"
    if isinstance(value, bytes):
        return "Binary"
    return "Number" if isinstance(value, int | float) and not isinstance(value, bool) else "String"


# --- received


def show_attributes(properties: Properties, wanted: Wanted) -> tuple[str | None, AttributeValues]:
    """(MD5, attributes) of a message as a receiver who wants these gets them, whichever protocol it came by."""
    values = properties.attributes
    types: dict[str, str] = properties.extra.get("sqs", {}).get("types", {})
    shown: AttributeValues = {}
    hashed: list[bytes] = []
    for name in sorted(values if wanted.all else filter(wanted, values)):
        value = values[name]
        kind = types.get(name) or _usual_type(value)
        if isinstance(value, bytes):
            content = value
            one = MessageAttributeValue(kind, None, value)
        else:
            text = value if isinstance(value, str) else _text(value)
            content = text.encode()
            one = MessageAttributeValue(kind, text)
        if content:
            shown[name] = one
            head = _known_head(name, kind) if len(name) <= _MAX_BYTES else _md5_head(name, kind)
            hashed += (head, _pack_length(len(content)), content)
    return (md5_text(b"".join(hashed)) if shown else None), shown


def _text(value: Any) -> str:
    """How a value of another protocol is shown that is neither text nor bytes."""
    if value is None:
        return ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else msgspec.json.encode(value).decode()


class Wanted:
    """Which attributes a receiver asked for: names, "All" or "*", or the beginning of names followed by ".*": bar.* is
    what begins with bar."""

    def __init__(self, names: list[str]) -> None:
        self.all = "All" in names or ".*" in names or "*" in names
        self._names = frozenset(names)
        self._beginnings = tuple(name[:-2] for name in names if name.endswith(".*"))

    def __bool__(self) -> bool:
        return bool(self._names)

    def __call__(self, name: str) -> bool:
        return self.all or name in self._names or name.startswith(self._beginnings)


def sequence_number(message_id: str) -> str:
    """Twenty digits that rise with every message: the number that a message id ends with."""
    return f"{int(message_id[-12:], 16):020d}"
