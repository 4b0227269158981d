"""Messages as they are published over the wire: one or many, as JSON or as any bytes, and how they become drafts."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from operator import add, attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.core.message import JSON_TYPE, PLAIN, Draft, Properties
from laneway.core.settings import RANGES
from laneway.errors import InvalidInput
from laneway.frontends.rest.errors import InvalidRequest, invalid_json
from laneway.frontends.rest.times import at_ms_of
from laneway.frontends.rest.wire import check_names_once
from laneway.frontends.rest.words import milliseconds

BYTES_TYPE = "application/octet-stream"

Text = Annotated[str, Meta(max_length=1024)]
ShortText = Annotated[str, Meta(max_length=255)]


class Binary(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Bytes as an attribute's value."""

    binary: bytes


Attributes = dict[str, str | int | float | bool | Binary]


class MessageProperties(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False, omit_defaults=True):
    """What AMQP's clients know as properties of a message, as far as nothing else here says it."""

    content_encoding: ShortText | None = None
    reply_to: ShortText | None = None
    message_id: ShortText | None = None
    timestamp: Annotated[int, Meta(ge=0, le=2**63 - 1, description="seconds since 1970")] | None = None
    type: ShortText | None = None
    app_id: ShortText | None = None


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

_routed_decoder = msgspec.json.Decoder(RoutedRequest)
_publish_decoder = msgspec.json.Decoder(PublishBody)
_raw_decoder = msgspec.json.Decoder(msgspec.Raw)
_text_decoder = msgspec.json.Decoder(str)


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


class PlainBatch(msgspec.Struct, gc=False):
    """A list of the usual messages: bodies that are valid JSON, perhaps with priorities."""

    bodies: list[bytes]
    priorities: list[int | None]

    def drafts(self) -> list[Draft]:
        return list(map(Draft, self.bodies, self.priorities))


def decode_publish(body: bytes) -> PlainBatch | list[Draft] | Draft:
    """One message or a list of them; a list with an entry that cannot be meant is refused as a whole, by its place.

    msgspec lets two things pass that are refused here: bad UTF-8 inside a payload, and a name that comes twice.
    """
    try:
        if not body.isascii():
            body.decode()
        plain = _decode_plain_one(body) if body.startswith(b"{") else _decode_plain(body)
        if plain is not None:
            return plain
        decoded = _publish_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(error, body) from None
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


def decode_routed(body: bytes) -> tuple[str, Draft]:
    """One message for an exchange, and its routing key."""
    try:
        if not body.isascii():
            body.decode()
        decoded = _routed_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_json(error, body) from None
    _check_names([decoded], body)
    return decoded.routing_key, to_draft(decoded)


class _Plain(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The usual message: a payload, perhaps a priority, nothing else."""

    payload: msgspec.Raw
    priority: Annotated[int, Meta(ge=0, le=255)] | None = None


_plain_decoder = msgspec.json.Decoder(_Plain | list[_Plain])
_plain_many_decoder = msgspec.json.Decoder(list[_Plain])
_plain_one_decoder = msgspec.json.Decoder(_Plain)
#: priority -> bytes of the shortest JSON of a message around its payload, with the comma after it
_AROUND: dict[int | None, int] = {
    None: len('{"payload":},'),
    **{n: len(f'{{"priority":{n},"payload":}},') for n in range(256)},
}
_payload_of, _priority_of = attrgetter("payload"), attrgetter("priority")
_SHORTEST_REPEAT = len('"payload":0,')


def decode_singles(bodies: list[bytes]) -> PlainBatch | None:
    """Hot: messages that came one by one, if all are the usual ones in the usual form; None if one is not.

    They are decoded as one list. No entry is shorter than its shortest text, and together they are as long as the
    list; so if each body is as long as the shortest text of the entry in its place, it is that text. Longer ones are
    compared with what they should be.
    """
    text = b"[%b]" % b",".join(bodies)
    try:
        if not text.isascii():
            text.decode()
        messages = _plain_many_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    payloads = list(map(bytes, map(_payload_of, messages)))
    priorities = list(map(_priority_of, messages))
    shortest = map(add, map(len, payloads), map(_AROUND.__getitem__, priorities))
    if [size - 1 for size in shortest] != list(map(len, bodies)):
        if len(messages) != len(bodies) or not all(map(_says, bodies, payloads, priorities)):
            return None
    return PlainBatch(payloads, priorities)


def _says(body: bytes, payload: bytes, priority: int | None) -> bool:
    """Whether a body is a message with this payload and priority and nothing else, as programs write it: with a blank
    after commas and colons, or with none."""
    if priority is None:
        return body in (b'{"payload":%b}' % payload, b'{"payload": %b}' % payload)
    return body in (
        b'{"priority":%d,"payload":%b}' % (priority, payload),
        b'{"priority": %d, "payload": %b}' % (priority, payload),
        b'{"payload":%b,"priority":%d}' % (payload, priority),
        b'{"payload": %b, "priority": %d}' % (payload, priority),
    )


def _decode_plain_one(body: bytes) -> Draft | None:
    """As _decode_plain, of one message."""
    try:
        message = _plain_one_decoder.decode(body)
    except msgspec.ValidationError:
        return None
    payload, priority = bytes(message.payload), message.priority
    if len(body) - len(payload) - _AROUND[priority] + 1 >= _SHORTEST_REPEAT:
        if colons_of(payload) + (1 if priority is None else 2) != colons_of(body):
            check_names_once(body)
    return Draft(payload, priority)


def _decode_plain(body: bytes) -> PlainBatch | Draft | None:
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
    bodies = list(map(bytes, map(_payload_of, messages)))
    priorities = list(map(_priority_of, messages))
    shortest = 1 if is_list else -1  # a list has its brackets, and no comma after its last entry
    shortest += sum(map(len, bodies)) + sum(map(_AROUND.__getitem__, priorities))
    if len(body) - shortest >= _SHORTEST_REPEAT:
        colons = sum(map(colons_of, bodies)) + 2 * len(bodies) - priorities.count(None)
        if colons != colons_of(body):
            check_names_once(body)
    return PlainBatch(bodies, priorities) if is_list else Draft(bodies[0], priorities[0])


def _check_names(messages: Sequence[PublishRequest], body: bytes) -> None:
    if sum(map(_colons_in, messages)) != colons_of(body):
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
            colons += colons_of(bytes(value))
        elif isinstance(value, str):
            colons += value.count(":")
        elif isinstance(value, MessageProperties):
            colons += sum(
                1 + str(held).count(":") for held in msgspec.structs.asdict(value).values() if held is not None
            )
        elif isinstance(value, dict):
            for name, held in value.items():
                colons += 1 + name.count(":")
                colons += held.count(":") if isinstance(held, str) else isinstance(held, Binary)
    return colons


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
        and m.properties is None
        and m.correlation_id is None
        and m.group is None
        and m.key is None
        and m.tenant is None
        and m.dedup_id is None
        and content_type == JSON_TYPE
    ):
        return PLAIN
    return Properties(
        content_type,
        m.group or "",
        m.key or "",
        m.tenant or "",
        m.dedup_id or "",
        m.correlation_id or "",
        attributes=attribute_values(m.attributes) if m.attributes else {},
        extra=extra_of(m.properties) if m.properties is not None else {},
    )


def extra_of(properties: MessageProperties) -> dict[str, Any]:
    """What was given, by AMQP's names; each is a short string there, so it has 255 bytes at most."""
    extra = {name: value for name, value in msgspec.structs.asdict(properties).items() if value is not None}
    for name, value in extra.items():
        if isinstance(value, str) and len(value.encode("utf-8", "surrogatepass")) > 255:
            raise InvalidInput(f"{name} has more than 255 bytes", field=f"properties.{name}")
    return extra


def attribute_values(attributes: Attributes) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in attributes.items():
        if type(value) is Binary:
            values[name] = value.binary
        elif type(value) is int and not -(2**63) <= value < 2**64:
            raise InvalidInput(f"attribute {name!r} is an integer of more than 64 bits", field=f"attributes.{name}")
        else:
            values[name] = value
    return values


def attribute_from_wire(value: Any) -> Any:
    """The inverse of how attributes are shown: {"binary": base64} is bytes, at any depth."""
    if isinstance(value, dict):
        if value.keys() == {"binary"} and isinstance(value["binary"], str):
            try:
                return base64.b64decode(value["binary"], validate=True)
            except ValueError:
                raise InvalidInput("binary is base64", field="binary") from None
        return {name: attribute_from_wire(held) for name, held in value.items()}
    if isinstance(value, list):
        return [attribute_from_wire(held) for held in value]
    return value


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
