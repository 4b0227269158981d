"""One request of the management API: who asks, what its path, query and body say, and what it is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from laneway.access import Account
from laneway.core.settings import is_shallow
from laneway.frontends.http.protocol import Call
from laneway.frontends.management.errors import bad_request

_LARGEST_INTEGER = 1 << 63


class ManagementReply(msgspec.Struct, frozen=True):
    status: int
    body: bytes = b""
    headers: bytes = b""  # whole lines


CREATED = ManagementReply(201)
NO_CONTENT = ManagementReply(204)


def reply(value: Any, status: int = 200) -> ManagementReply:
    return ManagementReply(status, msgspec.json.encode(value))


class ManagementAsk:
    __slots__ = ("account", "call", "names", "query")

    def __init__(self, call: Call, account: Account, names: Mapping[str, str], query: Mapping[str, str]) -> None:
        self.call = call
        self.account = account
        self.names = names
        self.query = query

    def body(self, *, needed: tuple[str, ...] = ()) -> dict[str, Any]:
        """The object in the body; none at all is an empty one."""
        given = read_object(self.call.body) if self.call.body.strip() else {}
        missing = [name for name in needed if name not in given]
        if missing:
            raise bad_request("[" + ",".join(f"{{key_missing,{name}}}" for name in missing) + "]")
        return given


def read_object(raw: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise bad_request("not_json") from None
    if not isinstance(given, dict):
        raise bad_request("not_json")
    return given


def flag(given: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """True or false, or as text: rabbitmqadmin sends all its arguments as text."""
    value = given.get(name, default)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise bad_request(f"{name} is true or false, not {shown(value)}")


def integer(given: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = given.get(name, default)
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_INTEGER:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"{name} is a whole number, not {shown(value)}")
    return value


def text(given: Mapping[str, Any], name: str, default: str = "") -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise bad_request(f"{name} is text, not {shown(value)}")
    return value


def table(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object, which some clients write as an empty list when it is empty."""
    value = given.get(name)
    if value is None or value == []:
        return {}
    if not isinstance(value, dict) or not is_shallow(value):
        raise bad_request(f"{name} is an object that is not nested too deep, not {shown(value)}")
    return value


def shown(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= 80 else told[:79] + "…"
