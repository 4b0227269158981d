"""Requests as they come over the wire, and their translation to the broker's values.

The structs say what is allowed (names, types, ranges): msgspec refuses everything else while decoding, and
openapi.py describes the API from these same structs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Permission
from laneway.broker.values import DeadLetterFilter, RedriveRequest
from laneway.core.message import JSON_TYPE, PLAIN, Draft, Properties, Settlement
from laneway.core.settings import RANGES
from laneway.errors import InvalidInput
from laneway.frontends.rest.errors import InvalidRequest, invalid_json
from laneway.frontends.rest.times import at_ms_of
from laneway.frontends.rest.words import BY_WIRE, milliseconds

BYTES_TYPE = "application/octet-stream"

Text = Annotated[str, Meta(max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=2**53)]


def _range(core: str) -> Meta:
    lowest, highest = RANGES[core]
    if core.endswith("_ms"):
        return Meta(ge=lowest / 1000, le=highest / 1000, description="seconds")
    return Meta(ge=lowest, le=highest)


# --- publishing


class Binary(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Bytes as an attribute's value."""

    binary: bytes


Attributes = dict[str, str | int | float | bool | Binary]


class PublishRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A message to publish. Either payload or payload_base64 is required; null counts as a payload."""

    payload: Annotated[msgspec.Raw, Meta(description="any JSON, kept byte for byte")] | UnsetType = UNSET
    payload_base64: bytes | None = None
    content_type: Text | None = None
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None
    delay_seconds: Annotated[float, Meta(ge=0, le=900)] | None = None
    deliver_at: Annotated[datetime, Meta(tz=True, description="at most 90 days ahead")] | None = None
    ttl_seconds: Annotated[float, Meta(gt=0, le=RANGES["message_ttl_ms"][1] / 1000)] | None = None
    attributes: Attributes | None = None
    correlation_id: Text | None = None
    group: Text | None = None
    key: Text | None = None
    tenant: Text | None = None
    dedup_id: Text | None = None


class PublishOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What goes into the query string when the body is the message itself."""

    priority: Annotated[int, Meta(ge=0, le=255)] | UnsetType = UNSET
    delay_seconds: Annotated[float, Meta(ge=0, le=900)] | UnsetType = UNSET
    deliver_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    ttl_seconds: Annotated[float, Meta(gt=0, le=RANGES["message_ttl_ms"][1] / 1000)] | UnsetType = UNSET
    correlation_id: Text | UnsetType = UNSET
    group: Text | UnsetType = UNSET
    key: Text | UnsetType = UNSET
    tenant: Text | UnsetType = UNSET
    dedup_id: Text | UnsetType = UNSET


PublishBody = PublishRequest | list[PublishRequest]

_publish_decoder = msgspec.json.Decoder(PublishBody)
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)
_text_decoder = msgspec.json.Decoder(str)


def is_json_text(body: bytes) -> bool:
    """Whether these bytes can stand in a JSON document as they are. Other protocols call bodies JSON unchecked."""
    try:
        if not body.isascii():
            body.decode()
        _raw_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def is_json_type(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON_TYPE or kind.endswith("+json")


def is_text_type(content_type: str) -> bool:
    return content_type[:5].lower() == "text/"


def decode_publish(body: bytes) -> list[Draft] | Draft:
    """One message or a list of them; a list with an entry that cannot be meant is refused as a whole, by its place.

    msgspec lets two things pass that are refused here: bad UTF-8 inside a payload, and a name that comes twice.
    """
    try:
        if not body.isascii():
            body.decode()
        plain = _decode_plain(body)
        if plain is not None:
            return plain
        decoded = _publish_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(error) from None
    _check_names(decoded if isinstance(decoded, list) else [decoded], body)
    if not isinstance(decoded, list):
        return to_draft(decoded)
    drafts: list[Draft] = []
    for at, one in enumerate(decoded):
        try:
            drafts.append(to_draft(one))
        except InvalidInput as error:
            raise InvalidRequest(error.message, field=f"[{at}].{error.field}") from None
    return drafts


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The usual message: a payload, perhaps a priority, nothing else."""

    payload: msgspec.Raw
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None


_plain_decoder = msgspec.json.Decoder(_Plain | list[_Plain])
#: priority -> bytes of the shortest JSON of a message around its payload, with the comma after it
_AROUND: dict[int | None, int] = {
    None: len('{"payload":},'),
    **{n: len(f'{{"priority":{n},"payload":}},') for n in range(256)},
}
_SHORTEST_REPEAT = len('"payload":0,')


def _decode_plain(body: bytes) -> list[Draft] | Draft | None:
    """The frequent case, in as few steps as it takes; None if it is another case, or not right.

    A name that comes twice makes the text longer than it needs to be, so a text that is nearly as short as it can be
    has none. Where it is longer, because of blanks or a repeated name, counting the colons tells.
    """
    try:
        decoded = _plain_decoder.decode(body)
    except msgspec.ValidationError:
        return None
    is_list = isinstance(decoded, list)
    messages = decoded if isinstance(decoded, list) else (decoded,)
    drafts: list[Draft] = []
    shortest = 1 if is_list else -1  # a list has its brackets, and no comma after its last entry
    for message in messages:
        payload, priority = bytes(message.payload), message.priority
        shortest += len(payload) + _AROUND[priority]
        drafts.append(Draft(payload, priority))
    if len(body) - shortest >= _SHORTEST_REPEAT:
        colons = sum(draft.body.count(b":") + 1 + (draft.priority is not None) for draft in drafts)
        if colons != body.count(b":"):
            check_names_once(body)
    return drafts if is_list else drafts[0]


def _check_names(messages: Sequence[PublishRequest], body: bytes) -> None:
    if sum(map(_colons_in, messages)) != body.count(b":"):
        check_names_once(body)


def _colons_in(message: PublishRequest) -> int:
    """How many colons the JSON of a message has if each of its names comes once and no string is escaped."""
    colons = 0
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if value is None or value is UNSET:
            continue
        colons += 1
        if isinstance(value, msgspec.Raw):
            colons += bytes(value).count(b":")
        elif isinstance(value, str):
            colons += value.count(":")
        elif isinstance(value, dict):
            for name, held in value.items():
                colons += 1 + name.count(":")
                colons += held.count(":") if isinstance(held, str) else isinstance(held, Binary)
    return colons


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


def to_draft(message: PublishRequest) -> Draft:
    payload = message.payload
    if payload is UNSET or message.content_type is not None or message.payload_base64 is not None:
        body, content_type = _body_of(message)
    else:
        body, content_type = bytes(payload), JSON_TYPE
    delay = message.delay_seconds
    return Draft(
        body,
        message.priority,
        _properties_of(message, content_type),
        None if delay is None else milliseconds(delay, "delay_seconds"),
        None if message.deliver_at is None else at_ms_of(message.deliver_at, "deliver_at"),
        None if message.ttl_seconds is None else _ttl_ms(message.ttl_seconds),
    )


def _properties_of(m: PublishRequest, content_type: str) -> Properties:
    if (
        m.attributes is None
        and m.correlation_id is None
        and m.group is None
        and m.key is None
        and m.tenant is None
        and m.dedup_id is None
        and content_type is JSON_TYPE
    ):
        return PLAIN
    return Properties(
        content_type,
        m.group or "",
        m.key or "",
        m.tenant or "",
        m.dedup_id or "",
        m.correlation_id or "",
        attributes=_attribute_values(m.attributes) if m.attributes else {},
    )


def _attribute_values(attributes: Attributes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in attributes.items():
        if type(value) is Binary:
            values[name] = value.binary
        elif type(value) is int and not -(2**63) <= value < 2**64:
            raise InvalidInput(f"attribute {name!r} is an integer of more than 64 bits", field=f"attributes.{name}")
        else:
            values[name] = value
    return values


def _body_of(message: PublishRequest) -> tuple[bytes, str]:
    """A body that is not simply JSON: base64, or a string that is text of some type."""
    content_type = message.content_type
    encoded, payload = message.payload_base64, message.payload
    if encoded is not None:
        if payload is not UNSET:
            raise InvalidInput("give payload or payload_base64, not both", field="payload_base64")
        if content_type is not None and is_json_type(content_type) and not is_json_text(encoded):
            raise InvalidInput(
                f"payload_base64 holds no valid JSON, but content_type is {content_type}", field="payload_base64"
            )
        return encoded, content_type if content_type is not None else BYTES_TYPE
    if payload is UNSET:
        raise InvalidInput("a message needs payload (any JSON, also null) or payload_base64", field="payload")
    assert content_type is not None
    if is_json_type(content_type):
        return bytes(payload), content_type
    try:
        text = _text_decoder.decode(payload) if is_text_type(content_type) else None
    except msgspec.DecodeError:
        text = None
    if text is None:
        raise InvalidInput(
            f"payload is given as JSON, but content_type is {content_type}: give bytes as payload_base64, "
            "and text of a text/* type as a string",
            field="content_type",
        )
    return text.encode(), content_type


def _ttl_ms(seconds: float) -> int:
    return milliseconds(seconds, "ttl_seconds") or 1  # a millisecond is the shortest life there is


def draft_of_bytes(body: bytes, content_type: str, o: PublishOptions) -> Draft:
    return Draft(
        body,
        None if o.priority is UNSET else o.priority,
        Properties(content_type, o.group or "", o.key or "", o.tenant or "", o.dedup_id or "", o.correlation_id or ""),
        None if o.delay_seconds is UNSET else milliseconds(o.delay_seconds, "delay_seconds"),
        None if o.deliver_at is UNSET else at_ms_of(o.deliver_at, "deliver_at"),
        None if o.ttl_seconds is UNSET else _ttl_ms(o.ttl_seconds),
    )


# --- receiving and settling


class DequeueRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    max_messages: Annotated[int, Meta(ge=1)] = 1
    visibility_timeout: Annotated[float, _range("lease_ms")] | None = None
    consumer_id: Annotated[str, Meta(max_length=256)] | None = None
    wait_seconds: Annotated[float, Meta(ge=0)] = 0


class AckRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    receipt_handle: str
    message_id: str | None = None


class NackRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    receipt_handle: str
    message_id: str | None = None
    delay_seconds: Annotated[float, _range("lease_ms")] | None = None
    backoff: Annotated[bool, Meta(description="wait 2^receives seconds, at most 900")] | None = None


class RejectRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    receipt_handle: str
    message_id: str | None = None
    reason: Annotated[str, Meta(max_length=1024)] | None = None


class VisibilityRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    receipt_handle: str
    message_id: str | None = None
    visibility_timeout: Annotated[float, _range("lease_ms")]


SettleRequest = AckRequest | NackRequest | RejectRequest | VisibilityRequest


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
    retention_seconds: Annotated[float, _range("retention_ms")] | UnsetType = UNSET
    delay_seconds: Annotated[float, _range("delay_ms")] | UnsetType = UNSET
    message_ttl_seconds: Annotated[float, _range("message_ttl_ms")] | UnsetType | None = UNSET
    max_receive_count: Annotated[int, _range("max_receives")] | UnsetType | None = UNSET
    dead_letter_queue: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType | None = UNSET
    max_messages: Annotated[int, _range("max_messages")] | UnsetType | None = UNSET
    max_bytes: Annotated[int, _range("max_bytes")] | UnsetType | None = UNSET
    overflow: Annotated[str, Meta(pattern="^(reject|drop_oldest)$")] | UnsetType = UNSET
    dedup_window_seconds: Annotated[float, _range("dedup_window_ms")] | UnsetType = UNSET
    max_message_bytes: Annotated[int, _range("max_message_bytes")] | UnsetType = UNSET


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


class ListOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    prefix: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET


class DeleteOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    if_empty: bool | UnsetType = UNSET


class AckOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    receipt_handle: str | UnsetType = UNSET


_STATES = "^(ready|leased|delayed|dead)(,(ready|leased|delayed|dead))*$"


class PeekOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    state: Annotated[str, Meta(pattern="^(ready|leased|delayed|dead)(,(ready|leased|delayed|dead))*$")] | UnsetType = (
        UNSET
    )
    priority: Annotated[int, Meta(ge=0, le=255)] | UnsetType = UNSET
    attribute: Annotated[str, Meta(pattern="^[^:]+:", description="name:value")] | UnsetType = UNSET
    older_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | UnsetType = UNSET
    newer_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=1000)] | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET


# --- dead letters


class AttributeMatch(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: str | int | float | bool


class RedriveBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    message_ids: Annotated[list[str], Meta(max_length=1000)] | None = None
    reason: str | None = None
    attribute: AttributeMatch | None = None
    older_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    newer_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    target: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    max_per_second: Annotated[int, Meta(ge=1, le=10_000_000)] | None = None


class DeleteDeadLettersBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    message_ids: Annotated[list[str], Meta(max_length=1000)] | None = None
    reason: str | None = None
    attribute: AttributeMatch | None = None
    older_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    newer_than_seconds: Annotated[float, Meta(ge=0, le=1e10)] | None = None
    all: bool = False


def filter_of(body: RedriveBody | DeleteDeadLettersBody) -> DeadLetterFilter:
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


# --- decoding


def decoder(kind: Any) -> Callable[[bytes], Any]:
    """Decodes a body to this type, with a clear error for everything that does not fit."""
    decode = msgspec.json.Decoder(kind).decode

    def decode_body(body: bytes) -> Any:
        try:
            decoded = decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise invalid_json(error) from None
        return decoded

    return decode_body
