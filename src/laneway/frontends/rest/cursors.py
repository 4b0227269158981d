"""Where a page of a list ends, as a text that the next request brings back."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from laneway.errors import InvalidInput


def encode_cursor(last: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(last)).decode().rstrip("=")


def decode_cursor(cursor: str, kind: Any) -> Any:
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
        return msgspec.msgpack.decode(raw, type=kind)
    except (binascii.Error, UnicodeEncodeError, UnicodeDecodeError, msgspec.DecodeError):
        raise InvalidInput("this cursor is not one that this server gave out", field="cursor") from None
