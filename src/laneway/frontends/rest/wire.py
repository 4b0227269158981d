"""Requests as they come over the wire (publishing's are in publishing.py) and how they become the broker's values.

The structs say what is allowed (names, types, ranges): msgspec refuses everything else while decoding, and
openapi.py describes the API from these same structs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Permission
from laneway.broker.values import DeadLetterFilter, RedriveRequest
from laneway.core.message import Settlement
from laneway.core.settings import RANGES
from laneway.errors import InvalidInput
from laneway.frontends.rest.errors import invalid_json
from laneway.frontends.rest.words import BY_WIRE, milliseconds

_T = TypeVar("_T")


def _range(core: str) -> Meta:
    lowest, highest = RANGES[core]
    if core.endswith("_ms"):
        return Meta(ge=lowest / 1000, le=highest / 1000, description="seconds")
    return Meta(ge=lowest, le=highest)


# --- receiving and settling


class DequeueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    max_messages: Annotated[int, Meta(ge=1)] = 1
    visibility_timeout: Annotated[float, _range("lease_ms")] | None = None
    consumer_id: Annotated[str, Meta(max_length=256)] | None = None
    wait_seconds: Annotated[float, Meta(ge=0)] = 0


class AckRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    receipt_handle: str
    message_id: str | None = None


class NackRequest(AckRequest, kw_only=True):
    delay_seconds: Annotated[float, _range("lease_ms")] | None = None
    backoff: Annotated[bool, Meta(description="wait 2^receives seconds, at most 900")] | None = None


class RejectRequest(AckRequest, kw_only=True):
    reason: Annotated[str, Meta(max_length=1024)] | None = None


class VisibilityRequest(AckRequest, kw_only=True):
    visibility_timeout: Annotated[float, _range("lease_ms")]


def ack_of(request: AckRequest) -> Settlement:
    return Settlement("ack", request.receipt_handle, request.message_id)


def nack_of(request: NackRequest) -> Settlement:
    if request.backoff and request.delay_seconds:
        raise InvalidInput("give delay_seconds or backoff, not both", field="backoff")
    delay_ms = milliseconds(request.delay_seconds or 0, "delay_seconds")
    return Settlement("release", request.receipt_handle, request.message_id, delay_ms, bool(request.backoff))


def reject_of(request: RejectRequest) -> Settlement:
    return Settlement("reject", request.receipt_handle, request.message_id, reason=request.reason or "")


def extension_of(request: VisibilityRequest) -> Settlement:
    lease_ms = milliseconds(request.visibility_timeout, "visibility_timeout")
    return Settlement("extend", request.receipt_handle, request.message_id, lease_ms=lease_ms)


# --- queues


class QueueSettingsRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A queue's settings. What is left out takes its default when a queue is put, and stays when it is changed."""

    max_priority: Annotated[int, _range("max_priority")] | UnsetType = UNSET
    default_priority: Annotated[int, _range("default_priority")] | UnsetType | None = UNSET
    visibility_timeout: Annotated[float, _range("lease_ms")] | UnsetType = UNSET
    retention_seconds: Annotated[float, _range("retention_ms")] | UnsetType | None = UNSET
    delay_seconds: Annotated[float, _range("delay_ms")] | UnsetType = UNSET
    message_ttl_seconds: Annotated[float, _range("message_ttl_ms")] | UnsetType | None = UNSET
    max_receive_count: Annotated[int, _range("max_receives")] | UnsetType | None = UNSET
    dead_letter_queue: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType | None = UNSET
    max_messages: Annotated[int, _range("max_messages")] | UnsetType | None = UNSET
    max_bytes: Annotated[int, _range("max_bytes")] | UnsetType | None = UNSET
    overflow: Annotated[str, Meta(pattern="^(reject|drop_oldest|reject_dead_letter)$")] | UnsetType = UNSET
    dedup_window_seconds: Annotated[float, _range("dedup_window_ms")] | UnsetType = UNSET
    max_message_bytes: Annotated[int, _range("max_message_bytes")] | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    auto_delete: bool | UnsetType = UNSET
    expires_seconds: Annotated[float, _range("expires_ms")] | UnsetType | None = UNSET
    dead_letter_exchange: Annotated[str, Meta(max_length=255)] | UnsetType | None = UNSET
    dead_letter_routing_key: Annotated[str, Meta(max_length=255)] | UnsetType | None = UNSET
    keep_dead: bool | UnsetType = UNSET
    single_active_consumer: bool | UnsetType = UNSET
    retry_delay_seconds: Annotated[float, _range("retry_delay_ms")] | UnsetType | None = UNSET
    max_retry_delay_seconds: Annotated[float, _range("max_retry_delay_ms")] | UnsetType | None = UNSET
    retry_delay_after: Annotated[str, Meta(pattern="^(any|failure|return)$")] | UnsetType = UNSET
    tier: Annotated[str, Meta(pattern="^(critical|normal|low)$")] | UnsetType = UNSET
    fair: bool | UnsetType = UNSET


class PutQueueRequest(QueueSettingsRequest, kw_only=True):
    """A queue's settings; or the arguments it is declared with over AMQP, beside which there is nothing but durable
    and auto_delete."""

    arguments: dict[str, Any] | UnsetType = UNSET


def settings_changes(request: QueueSettingsRequest) -> dict[str, Any]:
    """What was given, in core's words and units."""
    changes: dict[str, Any] = {}
    for wire in request.__struct_fields__:
        value = getattr(request, wire)
        if value is UNSET:
            continue
        word = BY_WIRE.get(wire)
        core = word.core if word else wire
        changes[core] = milliseconds(value, wire) if core.endswith("_ms") and value is not None else value
    return changes


Reason = Annotated[str, Meta(pattern="^(max_receives|expired|rejected|overflow)$")]


class ListOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    prefix: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET


class PageOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET


#: What queues are ranked by.
QueueRanking = Literal["depth", "age", "rate", "dead_letters"]


class ProcessOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    queues: Annotated[int, Meta(ge=0, le=100)] | UnsetType = UNSET  # how many are shown
    sort: QueueRanking | UnsetType = UNSET


class ConnectionOptions(PageOptions, forbid_unknown_fields=True, kw_only=True):
    protocol: Literal["amqp", "http"] | UnsetType = UNSET
    account: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET


class CloseOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=100)] | UnsetType = UNSET


class DeleteOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    if_empty: bool | UnsetType = UNSET


class AckOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    receipt_handle: str | UnsetType = UNSET


class PeekOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    state: Annotated[str, Meta(pattern="^(ready|leased|delayed|dead)(,(ready|leased|delayed|dead))*$")] | UnsetType = (
        UNSET
    )
    priority: Annotated[int, Meta(ge=0, le=255)] | UnsetType = UNSET
    attribute: Annotated[str, Meta(pattern="^[^:]+:", description="name:value")] | UnsetType = UNSET
    older_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | UnsetType = UNSET
    newer_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET


# --- dead letters


class AttributeMatch(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: str | int | float | bool


class DeadLetterSelection(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    message_ids: Annotated[list[str], Meta(max_length=1000)] | None = None
    reason: Reason | None = None
    attribute: AttributeMatch | None = None
    older_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    newer_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None


class RedriveBody(DeadLetterSelection, kw_only=True):
    target: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    max_per_second: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None


class DeleteDeadLettersBody(DeadLetterSelection, kw_only=True):
    all: bool = False


def filter_of(body: DeadLetterSelection) -> DeadLetterFilter:
    older, newer = body.older_than_seconds, body.newer_than_seconds
    return DeadLetterFilter(
        message_ids=None if body.message_ids is None else tuple(body.message_ids),
        reason=body.reason,
        attribute=None if body.attribute is None else (body.attribute.name, attribute_text(body.attribute.value)),
        older_than_ms=None if older is None else milliseconds(older, "older_than_seconds"),
        newer_than_ms=None if newer is None else milliseconds(newer, "newer_than_seconds"),
    )


def attribute_text(value: str | int | float | bool) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def redrive_of(body: RedriveBody) -> RedriveRequest:
    return RedriveRequest(filter=filter_of(body), target=body.target, max_per_second=body.max_per_second)


# --- accounts


class AccountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    password: str | None = None
    roles: list[str] | None = None
    permissions: list[Permission] | None = None


class KeyRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    label: str = ""
    kind: Literal["api", "aws"] = "api"


# --- decoding


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Decodes a body to this type, with a clear error for everything that does not fit."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_body(body: bytes) -> Any:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid_json(error, body) from None

    return decode_body


def read_body(body: bytes, kind: type[_T]) -> _T:
    """The body of a rare request; an empty one means that nothing was said."""
    if not body:
        return kind()
    decoded: _T = decoder(kind)(body)
    check_names_once(body)
    return decoded


def check_names_once(body: bytes) -> None:
    """Refuse a request whose JSON gives a name twice: which of the two was meant, nobody can know."""
    try:
        json.loads(body, object_pairs_hook=_no_repeats, parse_int=_ignored, parse_float=_ignored)
    except RecursionError as error:
        raise invalid_json(error) from None


def _ignored(number: str) -> None:
    return None  # only names matter here, and a number of a million digits would take its time


def _no_repeats(pairs: list[tuple[str, object]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise InvalidInput(f"the name {name[:80]!r} comes twice in one object", field=name[:80])
        names.add(name)
