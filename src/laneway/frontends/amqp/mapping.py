"""AMQP's properties of a message that came over another protocol (the table is in docs/amqp.md)."""

from __future__ import annotations

from typing import Any

from laneway.broker.values import Properties
from laneway.core import property_lists
from laneway.core.message import AMQP_NAMES


def amqp_properties(p: Properties, message_id: str, priority: int, enqueued_at_ms: int) -> bytes:
    """The property list of a message that did not come over AMQP."""
    values: dict[str, Any] = {
        "content_type": p.content_type,
        "delivery_mode": 2,
        "priority": priority,
        "message_id": message_id,
        "timestamp": enqueued_at_ms // 1000,
    }
    values |= {name: p.extra[name] for name in AMQP_NAMES if name in p.extra}  # what its publisher said counts
    if p.attributes:
        values["headers"] = p.attributes
    if p.correlation_id:
        values["correlation_id"] = p.correlation_id
    return property_lists.encode(values)
