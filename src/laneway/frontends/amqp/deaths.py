"""The history of a dead letter as AMQP clients read it: x-death and x-first-death-*, made when it is delivered."""

from __future__ import annotations

from typing import Any

from laneway.broker.values import Death, Properties, Story
from laneway.core import property_lists
from laneway.core.field_tables import Long, Timestamp, encode_short_text

#: Of the history that a message was published with, the latest entries: as many as Laneway keeps of its own.
MAX_EARLIER = 32
_MOST_DEATHS = (1 << 63) - 1  # that a count can say
_LAST_SECOND = (1 << 64) - 1  # that a timestamp can say

#: Laneway's reasons in RabbitMQ's words.
REASONS = {"max_receives": "delivery_limit", "overflow": "maxlen", "expired": "expired", "rejected": "rejected"}


def with_history(story: Story, p: Properties, where: bytes, raw: bytes) -> tuple[bytes, bytes]:
    """(exchange and routing key, property list) of a message that died or moved, from those it was published with."""
    if story.exchange is not None:
        key = p.routing_key if story.routing_key is None else story.routing_key
        where = encode_short_text(story.exchange) + encode_short_text(key)
    without = () if story.routing_key is None else ("CC",)  # a key of its own leaves no others
    if not story.deaths:
        return where, property_lists.change_headers(raw, without, {}) if without else raw
    expiration = p.extra.get("expiration", "")
    if expiration:
        raw = property_lists.change(raw, {"expiration": None})  # it has had its effect, and must not have it again
    return where, property_lists.change_headers(raw, without, _headers(story.deaths, p, expiration))


def _headers(deaths: tuple[Death, ...], p: Properties, expiration: str) -> dict[str, Any]:
    first = next((death for death in deaths if death.is_first), deaths[0])
    entries = [_entry(death, p, expiration if death is first else "") for death in deaths]
    headers: dict[str, Any] = {"x-death": _after(_earlier(p), entries)}
    if "x-first-death-reason" not in p.attributes:
        headers["x-first-death-exchange"] = p.exchange if first.exchange is None else first.exchange
        headers["x-first-death-queue"] = first.queue
        headers["x-first-death-reason"] = REASONS.get(first.reason, first.reason)
    return headers


def _earlier(p: Properties) -> list[dict[str, Any]]:
    """The history that a message was published with: a consumer that sends what it got once more sends it along. Any
    publisher may write anything there, so numbers are kept where they can be written and added to."""
    history = p.attributes.get("x-death")
    earlier = []
    for entry in history[:MAX_EARLIER] if isinstance(history, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("count"), int) and isinstance(entry.get("time"), int):
            time_s = Timestamp(min(max(0, entry["time"]), _LAST_SECOND))
            earlier.append(entry | {"count": _deaths(entry["count"]), "time": time_s})
    return earlier


def _deaths(count: int) -> Long:
    return Long(min(max(0, count), _MOST_DEATHS))


def _after(earlier: list[dict[str, Any]], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One history of both, the latest first. What died in the same queue for the same reason before counts up."""
    history = earlier
    for entry in entries:
        for known in history:
            if (known.get("queue"), known.get("reason")) == (entry["queue"], entry["reason"]):
                history.remove(known)
                entry = known | {"count": _deaths(known["count"] + entry["count"])}
                break
        history.insert(0, entry)
    return history


def _entry(death: Death, p: Properties, expiration: str) -> dict[str, Any]:
    entry = {
        "count": _deaths(death.count),
        "reason": REASONS.get(death.reason, death.reason),
        "queue": death.queue,
        "time": Timestamp((death.first_at_ms or death.at_ms) // 1000),
        "exchange": p.exchange if death.exchange is None else death.exchange,
        "routing-keys": list(_routing_keys(p) if death.routing_keys is None else death.routing_keys),
    }
    if expiration:
        entry["original-expiration"] = expiration
    return entry


def _routing_keys(p: Properties) -> list[str]:
    copies = p.attributes.get("CC")
    return [p.routing_key, *(copies if isinstance(copies, list) else [])]
