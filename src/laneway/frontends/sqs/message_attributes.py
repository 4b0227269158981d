"""Message attributes: what is allowed in them, their MD5, and how they are kept so that the other protocols read them.

A String is kept as text, a Number as a number if that gives its text back, a Binary as bytes. What the kept value does
not tell (a label as in String.json, a Number as 007) stands in extra["sqs"]["types"].
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from laneway.frontends.sqs.errors import SqsError, invalid
from laneway.frontends.sqs.wire import AttributeValues, MessageAttributeValue

MOST = 10
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROL = bytes(code for code in range(32) if code not in (9, 10, 13))


def has_only_allowed(text: str, encoded: bytes) -> bool:
    """Whether a text has only characters that AWS lets through: those of XML. ASCII is told by one C loop."""
    if text.isascii():
        return len(encoded.translate(None, _CONTROL)) == len(encoded)
    return _NOT_ALLOWED.search(text) is None


def check(attributes: AttributeValues, *, most: int = MOST) -> int:
    """Raise unless all are as AWS wants them; how many bytes they take."""
    if len(attributes) > most:
        raise invalid(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{most}].")
    return sum(_check_one(name, value) for name, value in attributes.items())


def _check_one(name: str, value: MessageAttributeValue) -> int:
    if (
        not _NAME.fullmatch(name)
        or name.lower().startswith(("aws.", "amazon."))
        or name[0] == "."
        or name[-1] == "."
        or ".." in name
    ):
        raise invalid(
            f"The message attribute name '{name[:260]}' is invalid. Attribute name can contain A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.) characters, and must not start with AWS. or Amazon."
        )
    kind = value.DataType
    if not kind:
        raise invalid(f"The message attribute '{name}' must contain non-empty message attribute type.")
    prefix = kind.partition(".")[0]
    if prefix not in ("String", "Number", "Binary") or len(kind) > 256 or kind == prefix + ".":
        raise invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String."
        )
    if value.StringListValues or value.BinaryListValues:
        raise SqsError(
            "UnsupportedOperation", f"Message attribute list values in SendMessage operation are not supported: {name}."
        )
    if prefix == "Binary":
        if not value.BinaryValue:
            raise _empty(name, kind)
        return len(name) + len(kind) + len(value.BinaryValue)
    text = value.StringValue
    if not text:
        raise _empty(name, kind)
    if prefix == "Number" and (not _NUMBER.fullmatch(text) or len(text) > 60):
        raise invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    encoded = text.encode()
    if not has_only_allowed(text, encoded):
        raise SqsError("InvalidMessageContents", f"The value of message attribute '{name}' has characters not allowed.")
    return len(name) + len(kind) + len(encoded)


def _empty(name: str, kind: str) -> SqsError:
    return invalid(
        f"The message attribute '{name}' must contain non-empty message attribute value for message attribute type "
        f"'{kind}'."
    )


def md5_of(attributes: AttributeValues) -> str:
    """Of each, by name: name, type, a byte for the kind of value, value; lengths before all but that byte."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        is_binary = value.DataType.startswith("Binary")
        content = (value.BinaryValue or b"") if is_binary else (value.StringValue or "").encode()
        for part in (name.encode(), value.DataType.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update((b"\2" if is_binary else b"\1") + len(content).to_bytes(4, "big") + content)
    return digest.hexdigest()


def kept(attributes: AttributeValues) -> tuple[dict[str, Any], dict[str, str]]:
    """(attributes as Laneway keeps them, the types that these do not tell)"""
    values: dict[str, Any] = {}
    types: dict[str, str] = {}
    for name, given in attributes.items():
        prefix = given.DataType.partition(".")[0]
        text = given.StringValue or ""
        value: Any = given.BinaryValue if prefix == "Binary" else text
        if prefix == "Number":
            value = _number(text)
        values[name] = value
        if given.DataType != _usual_type(value):
            types[name] = given.DataType
    return values, types


def _number(text: str) -> int | float | str:
    """The number, if it is written as this text again; else the text."""
    try:
        whole = int(text)
        return whole if str(whole) == text and -(1 << 63) <= whole < 1 << 64 else text
    except ValueError:
        pass
    number = float(text)
    return number if math.isfinite(number) and repr(number) == text else text


def _usual_type(value: Any) -> str:
    if isinstance(value, bytes):
        return "Binary"
    return "Number" if isinstance(value, int | float) and not isinstance(value, bool) else "String"


def shown(values: Mapping[str, Any], types: Mapping[str, str], wanted: Wanted) -> AttributeValues:
    """What a receiver who wants these gets of what was kept, whichever protocol it came by."""
    return {
        name: _shown_one(value, types.get(name))
        for name, value in values.items()
        if value is not None and value != "" and value != b"" and wanted(name)
    }


def _shown_one(value: Any, kind: str | None) -> MessageAttributeValue:
    if isinstance(value, bytes):
        return MessageAttributeValue(DataType=kind or "Binary", BinaryValue=value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        text = msgspec.json.encode(value).decode()
    else:
        text = value if isinstance(value, str) else str(value)
    return MessageAttributeValue(DataType=kind or _usual_type(value), StringValue=text)


class Wanted:
    """Which attributes a receiver asked for: names, All, or the beginning of names followed by .*"""

    def __init__(self, names: list[str]) -> None:
        self._all = "All" in names or ".*" in names
        self._names = frozenset(names)
        self._beginnings = tuple(name[:-1] for name in names if name.endswith(".*"))

    def __bool__(self) -> bool:
        return bool(self._names)

    def __call__(self, name: str) -> bool:
        return self._all or name in self._names or name.startswith(self._beginnings)


def sequence_number(message_id: str) -> str:
    """Twenty digits that rise with every message: the number that a message id ends with."""
    return f"{int(message_id[-12:], 16):020d}"
