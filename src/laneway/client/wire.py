"""Python values to the API's JSON and back: payloads, attributes, times, and a received message."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

JSON_TYPE = "application/json"
BYTES_TYPE = "application/octet-stream"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A message as received or peeked at. `payload` is bytes if it was published as other than JSON or text."""

    message_id: str
    priority: int
    payload: Any
    content_type: str
    attributes: dict[str, Any]
    enqueued_at: datetime
    receive_count: int
    receipt_handle: str | None  # None when peeked at
    raw: dict[str, Any] = dataclasses.field(repr=False, compare=False)  # the answer as it came, with all else it holds

    @classmethod
    def from_wire(cls, raw: dict[str, Any]) -> Message:
        payload = base64.b64decode(raw["payload_base64"]) if "payload_base64" in raw else raw.get("payload")
        return cls(
            message_id=raw["message_id"],
            priority=raw["priority"],
            payload=payload,
            content_type=raw.get("content_type", JSON_TYPE),
            attributes={name: attribute_from_wire(value) for name, value in raw.get("attributes", {}).items()},
            enqueued_at=parse_time(raw["enqueued_at"]),
            receive_count=raw["receive_count"],
            receipt_handle=raw.get("receipt_handle"),
            raw=raw,
        )


def payload_to_wire(payload: object, content_type: str | None) -> dict[str, Any]:
    """Bytes travel in base64 with their content type, JSON too, so that not a digit of it changes on the way; anything
    else is JSON unless a content type says otherwise."""
    raw = bytes(payload) if isinstance(payload, (bytes, bytearray, memoryview)) else None
    if content_type is None:
        content_type = JSON_TYPE if raw is None else BYTES_TYPE
    if content_type == JSON_TYPE and raw is None:
        return {"payload": payload}
    if isinstance(payload, str):
        raw = payload.encode()
    if raw is None:
        raise ValueError(f"a payload of type {content_type} is given as bytes or text, not {type(payload).__name__}")
    return {"payload_base64": base64.b64encode(raw).decode(), "content_type": content_type}


def attributes_to_wire(attributes: Mapping[str, object]) -> dict[str, object]:
    return {
        name: {"binary": base64.b64encode(value).decode()} if isinstance(value, bytes) else value
        for name, value in attributes.items()
    }


def attribute_from_wire(value: Any) -> Any:
    """Bytes come as {"binary": base64}, at any depth of what was published over AMQP."""
    if isinstance(value, dict):
        if list(value) == ["binary"]:
            try:
                return base64.b64decode(value["binary"], validate=True)
            except (binascii.Error, TypeError):
                return value
        return {name: attribute_from_wire(held) for name, held in value.items()}
    if isinstance(value, list):
        return [attribute_from_wire(held) for held in value]
    return value


def time_to_wire(time: datetime | str) -> str:
    if isinstance(time, str):
        return time
    if time.tzinfo is None:
        raise ValueError(f"{time!r} names no time zone, so it could mean several moments")
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def message_to_wire(
    payload: object,
    *,
    content_type: str | None = None,
    priority: int | None = None,
    delay_seconds: float | None = None,
    deliver_at: datetime | str | None = None,
    ttl_seconds: float | None = None,
    attributes: Mapping[str, object] | None = None,
    correlation_id: str | None = None,
    group: str | None = None,
    key: str | None = None,
    tenant: str | None = None,
    dedup_id: str | None = None,
) -> dict[str, Any]:
    """One message as POST …/messages takes it; what is None is left to the queue."""
    options: dict[str, Any] = {
        "priority": priority,
        "delay_seconds": delay_seconds,
        "deliver_at": None if deliver_at is None else time_to_wire(deliver_at),
        "ttl_seconds": ttl_seconds,
        "attributes": None if attributes is None else attributes_to_wire(attributes),
        "correlation_id": correlation_id,
        "group": group,
        "key": key,
        "tenant": tenant,
        "dedup_id": dedup_id,
    }
    return {**payload_to_wire(payload, content_type), **without_none(options)}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
