"""Publishing and getting single messages, as people do who look into a queue. No way for much traffic."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, Literal

from laneway.broker import interface as i
from laneway.broker.arguments import MAX_EXPIRY_MS
from laneway.broker.values import Arrival, Death, Deliveries, Delivery, message_delay_ms
from laneway.core import property_lists
from laneway.core.message import AMQP_NAMES, Messages, Settlement, amqp_props_head, split_amqp_props
from laneway.core.settings import RANGES, check_bounds
from laneway.errors import InvalidInput, LanewayError, LeaseStale
from laneway.frontends.management.asking import ManagementAsk, ManagementReply, integer, reply, table, text
from laneway.frontends.management.errors import bad_request, not_found
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope, exchange_of, refused_for, shown_exchange

MAX_GET = 1_000  # messages of one request
MAX_GET_BYTES = 16 * 1024 * 1024  # … and of their bodies; one message may be larger
_BATCH = 100
_LEASE_MS = 60_000
_MOST_BODY_BYTES = 256 * 1024 * 1024  # what a message may have is asked of the broker

_WORDS = {"content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id"}
#: How a lease ends, by ackmode; reject takes the way of a dead letter.
_ACK_MODES: dict[str, Literal["ack", "release", "reject"]] = {
    "ack_requeue_true": "release",
    "ack_requeue_false": "ack",
    "reject_requeue_true": "release",
    "reject_requeue_false": "reject",
}
#: Laneway's reasons of death in RabbitMQ's words.
_REASONS = {"max_receives": "delivery_limit", "overflow": "maxlen"}


class MessagesPart:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._broker = scope.broker
        self._access = scope.access

    @at("POST /exchanges/{vhost}/{exchange}/publish", max_body_bytes=_MOST_BODY_BYTES)
    async def publish(self, ask: ManagementAsk) -> ManagementReply:
        vhost, name = self._scope.vhost(ask), exchange_of(ask.names["exchange"])
        given = ask.body(needed=("properties", "routing_key", "payload", "payload_encoding"))
        info = self._broker.topology.exchange(vhost, name)
        if not self._access.allowed(ask.account, vhost, shown_exchange(name), "write"):
            raise refused_for(ask.account, vhost, "exchange", shown_exchange(name), "write")
        if info is None:
            raise bad_request(f"404 NOT_FOUND - no exchange '{name}' in vhost '{vhost}'")
        if info.settings.internal:
            raise bad_request(f"403 ACCESS_REFUSED - cannot publish to internal exchange '{name}' in vhost '{vhost}'")
        body, key = _body(given), text(given, "routing_key")
        properties = read_properties(table(given, "properties"), ask.account.name)
        headers: dict[str, Any] = properties.get("headers", {})
        try:
            head = amqp_props_head(name.encode(), key.encode())
            raw = property_lists.encode(properties)
        except UnicodeEncodeError:
            raise bad_request("text has no surrogates in it") from None
        copies = [*_copies(headers, "CC"), *_copies(headers, "BCC")]
        if info.settings.type == "topic":
            for way in (key, *copies):
                self._access.check_topic(ask.account, vhost, name, way, "write")
        targets = self._broker.topology.route(vhost, name, key, headers, more=copies)
        ttl_ms = _expiration_ms(properties["expiration"]) if "expiration" in properties else None
        delay_ms = message_delay_ms(headers) if info.settings.delayed else 0
        messages = Messages(
            [body],
            [head + raw],
            [properties.get("priority")],
            ttls_ms=None if ttl_ms is None else [ttl_ms],
            delays_ms=[delay_ms] if delay_ms else None,
            clamps=True,
        )
        arrivals: list[Arrival] = (
            await self._broker.ask(i.Publish([tuple(targets)], messages, None, i.HTTP)) if targets else []
        )
        results = [
            arrival.result if isinstance(arrival.result, LanewayError) else arrival.result[0] for arrival in arrivals
        ]
        refusals = [result for result in results if isinstance(result, LanewayError)]
        for refusal in refusals:
            if isinstance(refusal, InvalidInput) or len(refusals) == len(results):
                raise refusal
        return reply({"routed": bool(results)})

    @at("POST /queues/{vhost}/{queue}/get")
    async def get(self, ask: ManagementAsk) -> ManagementReply:
        vhost, name = self._scope.vhost(ask), ask.names["queue"]
        given = ask.body(needed=("count", "ackmode", "encoding"))
        if not self._access.allowed(ask.account, vhost, name, "read"):
            raise refused_for(ask.account, vhost, "queue", name, "read")
        info = self._broker.topology.queue(vhost, name)
        if info is None:
            raise not_found(f"NOT_FOUND - no queue '{name}' in vhost '{vhost}'")
        if info.settings.exclusive:
            raise bad_request(
                f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '{vhost}'"
            )
        action = _ACK_MODES.get(text(given, "ackmode"))
        if action is None:
            raise bad_request(f"ackmode is one of {', '.join(_ACK_MODES)}, not {given['ackmode'][:80]!r}")
        encoding = text(given, "encoding")
        if encoding not in ("auto", "base64"):
            raise bad_request(f"encoding is auto or base64, not {encoding[:80]!r}")
        count = integer(given, "count")
        if not 0 <= count <= MAX_GET:
            raise bad_request(f"count is from 0 to {MAX_GET}, not {count}")
        truncate = integer(given, "truncate") if "truncate" in given else None
        if truncate is not None and truncate < 0:
            raise bad_request("truncate is not negative")
        return reply(await self._take(ask, info.queue, count, action, encoding, truncate))

    async def _take(
        self,
        ask: ManagementAsk,
        queue: int,
        count: int,
        action: Literal["ack", "release", "reject"],
        encoding: str,
        truncate: int | None,
    ) -> list[dict[str, Any]]:
        """Leased, looked at, and settled when all are there: else one that goes back would be had twice."""
        rows: list[dict[str, Any]] = []
        tokens: list[str] = []
        size = 0
        account = ask.account.name
        try:
            while len(rows) < count and size < MAX_GET_BYTES:
                wanted = 1 if not rows else min(_BATCH, count - len(rows))
                batch: Deliveries = await self._broker.ask(
                    i.Lease(queue, wanted, _LEASE_MS, account=account, consumer="management", protocol=i.HTTP)
                )
                if not len(batch):
                    break
                tokens += batch.tokens()
                left = batch.left + len(batch)
                for at_, delivery in enumerate(batch):
                    left -= 1
                    rows.append(message_row(delivery, batch.props[at_], left, encoding, truncate))
                    size += len(delivery.body)
        except BaseException:
            action = "release"
            raise
        finally:
            if tokens:
                settlements = [Settlement(action, token) for token in tokens]
                outcome = await self._broker.ask(i.Settle(queue, settlements, account, i.HTTP))
        for one in outcome if tokens else ():
            if isinstance(one, LanewayError) and not isinstance(one, LeaseStale):
                raise one
        return rows


def _body(given: dict[str, Any]) -> bytes:
    payload, encoding = text(given, "payload"), text(given, "payload_encoding")
    if encoding == "string":
        try:
            return payload.encode()
        except UnicodeEncodeError:
            raise bad_request("payload has surrogates in it, which are no text") from None
    if encoding != "base64":
        raise bad_request(f"unsupported_encoding {encoding[:80]!r}")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("payload is no base64") from None


def read_properties(given: dict[str, Any], user: str) -> dict[str, Any]:
    """A property list's values; what is no property is passed over, as RabbitMQ does."""
    values: dict[str, Any] = {}
    for name in _WORDS & set(given):
        values[name] = word = text(given, name)
        if len(word.encode("utf-8", "surrogatepass")) > 255:
            raise bad_request(f"{name} has at most 255 bytes")
    if values.get("user_id", user) != user:
        told = values["user_id"]
        raise bad_request(
            f"406 PRECONDITION_FAILED - user_id property set to '{told}' but authenticated user was '{user}'"
        )
    for name, most in (("delivery_mode", 255), ("priority", 255), ("timestamp", (1 << 63) - 1)):
        if name in given:
            values[name] = integer(given, name)
            if not 0 <= values[name] <= most:
                raise bad_request(f"{name} is from 0 to {most}")
    if "expiration" in given:
        values["expiration"] = (
            str(given["expiration"]) if isinstance(given["expiration"], int) else text(given, "expiration")
        )
    if given.get("headers"):
        values["headers"] = headers = table(given, "headers")
        check_bounds(headers)
    return values


def _copies(headers: dict[str, Any], name: str) -> list[str]:
    keys = headers.get(name, [])
    if not isinstance(keys, list) or len(keys) > 100:
        raise bad_request(f"{name} is a list of at most 100 routing keys")
    return [key for key in keys if isinstance(key, str)]


def _expiration_ms(told: str) -> int:
    if re.fullmatch(r"[0-9]{1,18}", told) is None or int(told) > MAX_EXPIRY_MS:
        raise bad_request(f"406 PRECONDITION_FAILED - invalid expiration '{told[:80]}'")
    return min(int(told), RANGES["message_ttl_ms"][1])


def message_row(delivery: Delivery, props: bytes, left: int, encoding: str, truncate: int | None) -> dict[str, Any]:
    p = delivery.properties
    body = delivery.body if truncate is None else delivery.body[:truncate]
    payload, told = "", encoding
    if encoding == "auto":
        try:
            payload, told = body.decode(), "string"
        except UnicodeDecodeError:
            told = "base64"
    if told == "base64":
        payload = base64.b64encode(body).decode()
    properties = _properties(delivery, props)
    return {
        "payload_bytes": len(delivery.body),
        "redelivered": delivery.receives > 1,
        "exchange": p.exchange,
        "routing_key": p.routing_key,
        "message_count": left,
        "properties": properties or [],  # as RabbitMQ writes an empty one
        "payload": payload,
        "payload_encoding": told,
    }


def _properties(delivery: Delivery, props: bytes) -> dict[str, Any]:
    p = delivery.properties
    if split_amqp_props(props) is not None:
        values = {name: p.extra[name] for name in AMQP_NAMES if name in p.extra}
        came = property_lists.decode_leniently(split_amqp_props(props)[2])  # type: ignore[index]
        values |= {name: came[name] for name in ("content_type", "correlation_id") if name in came}
    else:
        values = {"content_type": p.content_type, "delivery_mode": 2, "priority": delivery.priority}
        values |= {"message_id": delivery.message_id, "timestamp": delivery.enqueued_at_ms // 1000}
        if p.correlation_id:
            values["correlation_id"] = p.correlation_id
    headers = {name: _plain(value) for name, value in p.attributes.items()}
    if delivery.deaths:
        headers["x-death"] = [_death(death, p.exchange, p.routing_key) for death in delivery.deaths]
    if headers:
        values["headers"] = headers
    return values


def _death(death: Death, exchange: str, routing_key: str) -> dict[str, Any]:
    return {
        "count": death.count,
        "reason": _REASONS.get(death.reason, death.reason),
        "queue": death.queue,
        "time": (death.first_at_ms or death.at_ms) // 1000,
        "exchange": exchange if death.exchange is None else death.exchange,
        "routing-keys": [routing_key] if death.routing_keys is None else list(death.routing_keys),
    }


def _plain(value: Any) -> Any:
    """Bytes are text as far as they can be: JSON knows no others."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
