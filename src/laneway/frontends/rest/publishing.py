"""Messages as they are published over the wire: one or many, as JSON or as any bytes, and how they become columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.core.message import JSON_TYPE, PLAIN, Draft, Messages, Properties, messages_of
from laneway.core.settings import RANGES
from laneway.errors import InvalidInput
from laneway.frontends.rest.attributes import Attributes, attribute_values
from laneway.frontends.rest.errors import InvalidRequest, invalid_json
from laneway.frontends.rest.props import TEXTS, encode_blocks
from laneway.frontends.rest.times import at_ms_of
from laneway.frontends.rest.wire import check_names_once
from laneway.frontends.rest.words import milliseconds

BYTES_TYPE = "application/octet-stream"

_T = TypeVar("_T")

Text = Annotated[str, Meta(max_length=1024)]
ShortText = Annotated[str, Meta(max_length=255)]
Priority = Annotated[int, Meta(ge=0, le=255)]
DelaySeconds = Annotated[float, Meta(ge=0, le=900)]
TtlSeconds = Annotated[float, Meta(gt=0, le=RANGES["message_ttl_ms"][1] / 1000)]


class MessageProperties(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False, omit_defaults=True):
    """What AMQP's clients know as properties of a message, as far as nothing else here says it."""

    content_encoding: ShortText | None = None
    reply_to: ShortText | None = None
    message_id: ShortText | None = None
    timestamp: Annotated[int, Meta(ge=0, le=2**63 - 1, description="seconds since 1970")] | None = None
    type: ShortText | None = None
    app_id: ShortText | None = None


class PublishRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False, omit_defaults=True):
    """A message to publish. Either payload or payload_base64 is required; null counts as a payload."""

    payload: Annotated[msgspec.Raw, Meta(description="any JSON, kept byte for byte")] | UnsetType = UNSET
    payload_base64: bytes | None = None
    content_type: Text | None = None
    priority: Priority | None = None
    delay_seconds: DelaySeconds | None = None
    deliver_at: Annotated[datetime, Meta(tz=True, description="at most 90 days ahead")] | None = None
    ttl_seconds: TtlSeconds | None = None
    attributes: Attributes | None = None
    properties: MessageProperties | None = None
    correlation_id: Text | None = None
    group: Text | None = None
    key: Text | None = None
    tenant: Text | None = None
    dedup_id: Text | None = None


class RoutedRequest(PublishRequest, kw_only=True, gc=False):
    """A message to publish through an exchange; its attributes are the headers that a headers exchange looks at."""

    routing_key: ShortText = ""


class PublishOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What goes into the query string when the body is the message itself."""

    priority: Priority | UnsetType = UNSET
    delay_seconds: DelaySeconds | UnsetType = UNSET
    deliver_at: Annotated[datetime, Meta(tz=True)] | UnsetType = UNSET
    ttl_seconds: TtlSeconds | UnsetType = UNSET
    correlation_id: Text | UnsetType = UNSET
    group: Text | UnsetType = UNSET
    key: Text | UnsetType = UNSET
    tenant: Text | UnsetType = UNSET
    dedup_id: Text | UnsetType = UNSET


PublishBody = PublishRequest | list[PublishRequest]


class _UsualRequest(msgspec.Struct, forbid_unknown_fields=True, gc=False, omit_defaults=True):
    """What most messages are: the same fields, only fewer, so that decoding them takes less time."""

    payload: msgspec.Raw
    priority: Priority | None = None


_routed_decoder = msgspec.json.Decoder(RoutedRequest)
_usual_decoder = msgspec.json.Decoder(_UsualRequest | list[_UsualRequest])
_publish_decoder = msgspec.json.Decoder(PublishBody)
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)
_text_decoder = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode

#: The fields of requests that become columns without a look at each message.
_IN_COLUMNS = {"priority", "delay_seconds", "deliver_at", "ttl_seconds", "attributes", *TEXTS} - {"content_type"}
_DESCRIBING = {"attributes", *TEXTS}
_SHORTEST_REPEAT = len('"":0,')  # of an attribute
_PAYLOAD_BYTES = len('"payload":,')  # what stands around a payload, at least
_BOTH_BYTES = len('{"payload":,"priority":5}')
_FLOAT = b"\xcb"  # begins one in the props
_deliver_at_of = attrgetter("deliver_at")


def colons_of(text: bytes) -> int:
    """How many colons there are. bytes.count looks at every byte in turn; replace leaps from one to the next."""
    return len(text) - len(text.replace(b":", b""))


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


def are_json_texts(bodies: Sequence[bytes]) -> bool:
    """Hot: whether is_json_text is true of all of them."""
    if not all(map(bytes.isascii, bodies)):
        return all(map(is_json_text, bodies))
    try:
        for _ in map(_raw_decoder.decode, bodies):
            pass
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def check_count(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise InvalidInput(f"a batch has 1 to {most} entries, this one has {count}", limit=most)


def decode_publish(body: bytes, most: int) -> Messages:
    """One message or a list of so many at most. A list with an entry that makes no sense is refused as a whole; the
    error names the entry by its index."""
    try:
        if not body.isascii():
            body.decode()  # msgspec does not check the UTF-8 inside a payload
        try:
            decoded: Any = _usual_decoder.decode(body)
        except msgspec.ValidationError:
            decoded = _publish_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(error, body) from None
    requests = decoded if isinstance(decoded, list) else [decoded]
    check_count(len(requests), most)
    if type(decoded) is _UsualRequest:
        return _single(decoded, body)
    messages = _columns(requests)
    again = _encode(decoded)
    if messages is None or not _is_as_short(body, again, messages):
        _check_names(requests, again, body)
    return _one_by_one(requests, is_list=requests is decoded) if messages is None else messages


def _single(request: _UsualRequest, body: bytes) -> Messages:
    """Hot: one message that is no more than its payload and perhaps its priority."""
    payload, priority = bytes(request.payload), request.priority
    usual_bytes = len(payload) + (_PAYLOAD_BYTES if priority is None else _BOTH_BYTES)
    if len(body) - usual_bytes >= _PAYLOAD_BYTES:  # there is room for a name that comes twice
        check_names_once(body)
    return Messages([payload], [b""], None if priority is None else [priority])


def decode_routed(body: bytes) -> RoutedRequest:
    """One message for an exchange."""
    try:
        if not body.isascii():
            body.decode()
        decoded = _routed_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(error, body) from None
    _check_names([decoded], _encode(decoded), body)
    return decoded


# A name that comes twice in one object is refused. msgspec keeps the last one, so what it decoded is shorter than the
# body when it is encoded again, and has fewer colons. Most bodies pass one of these two tests, without a closer look.


def _is_as_short(body: bytes, again: bytes, messages: Messages) -> bool:
    """Hot: whether the body is too short to have a name twice. Times and floats may be encoded longer than they came:
    then this cannot tell."""
    if len(body) - len(again) >= _SHORTEST_REPEAT:
        return False
    has_times = messages.delays_ms or messages.visible_at_ms or messages.ttls_ms
    return not has_times and _FLOAT not in b"".join(messages.props)


def _check_names(requests: Sequence[Any], again: bytes, body: bytes) -> None:
    if colons_of(again) != colons_of(body) or not _keeps_colons(requests, body):
        check_names_once(body)


def _keeps_colons(requests: Sequence[Any], body: bytes) -> bool:
    """Whether encoding adds no colons. It does where one was escaped, and may in a time with an offset from UTC."""
    if type(requests[0]) is _UsualRequest:
        return True  # a payload is encoded as it came
    if b"\\" in body and (b"\\u003a" in body or b"\\u003A" in body):
        return False
    return not any(moment.utcoffset() for moment in filter(None, map(_deliver_at_of, requests)))


def _columns(requests: Sequence[Any]) -> Messages | None:
    """Hot: messages with JSON payloads. None if other content is among them, or something is wrong: then each must be
    looked at."""
    count = len(requests)
    values = zip(*map(msgspec.structs.astuple, requests), strict=True)
    columns = dict(zip(requests[0].__struct_fields__, values, strict=True))
    payloads = columns.pop("payload")
    given: dict[str, Any] = {name: column for name, column in columns.items() if column.count(None) != count}
    if not given.keys() <= _IN_COLUMNS or UNSET in payloads:
        return None
    messages = Messages(list(map(bytes, payloads)), [b""] * count)
    if "priority" in given:
        messages.priorities = list(given["priority"])
    if len(given) > ("priority" in given):
        try:
            messages.delays_ms = _times(given.get("delay_seconds"), delay_ms_of)
            messages.visible_at_ms = _times(given.get("deliver_at"), _deliver_at_ms)
            messages.ttls_ms = _times(given.get("ttl_seconds"), ttl_ms_of)
        except InvalidInput:
            return None
        if not given.keys().isdisjoint(_DESCRIBING):
            blocks = encode_blocks(count, given, given.get("attributes"))
            if blocks is None:
                return None
            messages.props = blocks
            messages.groups = _texts(given.get("group"))
            messages.dedup_ids = _texts(given.get("dedup_id"))
            messages.tenants = _texts(given.get("tenant"))
    return messages


def _times(column: Sequence[_T | None] | None, to_ms: Callable[[_T], int]) -> list[int | None] | None:
    return None if column is None else [None if given is None else to_ms(given) for given in column]


def _texts(column: Sequence[str | None] | None) -> dict[int, str]:
    return {} if column is None else {i: text for i, text in enumerate(column) if text}


def _one_by_one(requests: Sequence[PublishRequest], *, is_list: bool) -> Messages:
    drafts: list[Draft] = []
    for i, request in enumerate(requests):
        try:
            drafts.append(to_draft(request))
        except InvalidInput as error:
            if not is_list:
                raise
            raise InvalidRequest(error.message, field=f"[{i}].{error.field}") from None
    return messages_of(drafts)


def to_draft(message: PublishRequest) -> Draft:
    payload = message.payload
    if payload is UNSET or message.content_type is not None or message.payload_base64 is not None:
        body, content_type = _body_of(message)
    else:
        body, content_type = bytes(payload), JSON_TYPE
    return Draft(
        body,
        message.priority,
        _properties_of(message, content_type),
        None if message.delay_seconds is None else delay_ms_of(message.delay_seconds),
        None if message.deliver_at is None else _deliver_at_ms(message.deliver_at),
        None if message.ttl_seconds is None else ttl_ms_of(message.ttl_seconds),
    )


def _properties_of(m: PublishRequest, content_type: str) -> Properties:
    made = Properties(
        content_type,
        m.group or "",
        m.key or "",
        m.tenant or "",
        m.dedup_id or "",
        m.correlation_id or "",
        attributes=attribute_values(m.attributes) if m.attributes else {},
        extra=extra_of(m.properties) if m.properties is not None else {},
    )
    return PLAIN if made == PLAIN else made


def extra_of(properties: MessageProperties) -> dict[str, Any]:
    """What was given, by AMQP's names; each is a short string there, so it has 255 bytes at most."""
    extra = {name: value for name, value in msgspec.structs.asdict(properties).items() if value is not None}
    for name, value in extra.items():
        if isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) > 255:
            raise InvalidInput(f"{name} has more than 255 bytes", field=f"properties.{name}")
    return extra


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


def delay_ms_of(seconds: float) -> int:
    return milliseconds(seconds, "delay_seconds")


def _deliver_at_ms(moment: datetime) -> int:
    return at_ms_of(moment, "deliver_at")


def ttl_ms_of(seconds: float) -> int:
    return milliseconds(seconds, "ttl_seconds") or 1  # a millisecond is the shortest life there is


def draft_of_bytes(body: bytes, content_type: str, o: PublishOptions) -> Draft:
    return Draft(
        body,
        None if o.priority is UNSET else o.priority,
        Properties(content_type, o.group or "", o.key or "", o.tenant or "", o.dedup_id or "", o.correlation_id or ""),
        None if o.delay_seconds is UNSET else delay_ms_of(o.delay_seconds),
        None if o.deliver_at is UNSET else _deliver_at_ms(o.deliver_at),
        None if o.ttl_seconds is UNSET else ttl_ms_of(o.ttl_seconds),
    )
