"""AMQP's properties and Laneway's: the one place where the two are translated (the table is in docs/amqp.md).

What AMQP published keeps its property list in extra["amqp"], so that AMQP consumers get it back byte for byte; beside
it the single properties stand under names of their own, for the other protocols to show. What came over another
protocol gets the properties that an AMQP consumer can use.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from laneway.broker.arguments import MAX_EXPIRY_MS
from laneway.broker.values import Properties
from laneway.core.settings import RANGES
from laneway.frontends.amqp import properties
from laneway.frontends.amqp.errors import AmqpError, precondition_failed
from laneway.frontends.amqp.tables import TYPE_NAMES, Malformed, split_table

UNKNOWN_TYPE = "application/octet-stream"
MAX_TTL_MS = RANGES["message_ttl_ms"][1]

#: Properties that Laneway has no field for.
_NAMED = (
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


class Shape(msgspec.Struct, frozen=True):
    """Everything that follows from the exchange, the routing key and the properties of a message: the same for all of
    its look-alikes, so it is worked out once."""

    properties: Properties
    raw: bytes  # what AMQP consumers get
    priority: int | None
    ttl_ms: int | None
    keys: tuple[str, ...]  # all routing keys: its own, CC, BCC
    user_id: str | None
    reply_to: str | None


def shape_of(exchange: str, routing_key: str, raw: bytes) -> Shape:
    """Raises AmqpError for what RabbitMQ refuses too."""
    try:
        given = properties.decode(raw)
    except Malformed as wrong:
        raise AmqpError(501, f"cannot decode the properties: {wrong}") from None
    headers: dict[str, Any] = given.get("headers", {})
    keys = (routing_key, *_copies(headers, "CC", raw), *_copies(headers, "BCC", raw))
    extra: dict[str, Any] = {}
    if "BCC" in headers:
        extra["BCC"] = _copies(headers, "BCC", raw)  # never shown, and yet it routes when the message dies
        raw = properties.change_headers(raw, ("BCC",), {})
        headers = {name: value for name, value in headers.items() if name != "BCC"}
    extra |= {"amqp": raw} | {name: given[name] for name in _NAMED if name in given}
    return Shape(
        properties=Properties(
            content_type=given.get("content_type") or UNKNOWN_TYPE,
            correlation_id=given.get("correlation_id", ""),
            exchange=exchange,
            routing_key=routing_key,
            attributes=headers,
            extra=extra,
        ),
        raw=raw,
        priority=given.get("priority"),
        ttl_ms=_ttl_ms(given["expiration"]) if "expiration" in given else None,
        keys=tuple(dict.fromkeys(keys)),
        user_id=given.get("user_id"),
        reply_to=given.get("reply_to"),
    )


def _copies(headers: dict[str, Any], name: str, raw: bytes) -> list[str]:
    if name not in headers:
        return []
    keys = headers[name]
    if not isinstance(keys, list):
        kind = type_of_header(raw, name)
        raise precondition_failed(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
    return [key for key in keys if isinstance(key, str)]


def type_of_header(raw: bytes, name: str) -> str:
    at = properties.headers_at(raw)
    return next(TYPE_NAMES[entry[1 + entry[0]]] for found, entry in split_table(raw, at) if found == name)


def _ttl_ms(text: str) -> int:
    """An expiration is whole milliseconds as text; the refusals are RabbitMQ's."""
    number = re.match(r"[+-]?[0-9]+", text)
    reason = ""
    if number is None:
        reason = "no_integer"
    elif number.end() < len(text):
        reason = f'{{leftover_string,"{text[number.end() :]}"}}'
    elif int(number[0]) < 0:
        reason = f"{{value_negative,{int(number[0])}}}"
    elif int(number[0]) > MAX_EXPIRY_MS:
        reason = f"{{value_too_large,{int(number[0])}}}"
    if reason or number is None:
        raise precondition_failed(f"invalid expiration '{text}': {reason}")
    return min(int(number[0]), MAX_TTL_MS)


def amqp_properties(p: Properties, message_id: str, priority: int, enqueued_at_ms: int) -> bytes:
    """The property list of a message that did not come over AMQP."""
    values: dict[str, Any] = {
        "content_type": p.content_type,
        "delivery_mode": 2,
        "priority": priority,
        "message_id": message_id,
        "timestamp": enqueued_at_ms // 1000,
    }
    values |= {name: p.extra[name] for name in _NAMED if name in p.extra}  # what its publisher said counts
    if p.attributes:
        values["headers"] = p.attributes
    if p.correlation_id:
        values["correlation_id"] = p.correlation_id
    return properties.encode(values)
