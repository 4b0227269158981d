"""The one mapping from Laneway's errors, and from msgspec's, to HTTP: status, code, sentence, field."""

from __future__ import annotations

import re

import msgspec

from laneway.errors import (
    BatchTooLarge,
    ConfigInvalid,
    Conflict,
    DiskFull,
    Forbidden,
    Gone,
    InvalidInput,
    LanewayError,
    LimitExceeded,
    MessageTooLarge,
    NotFound,
    QueueFull,
    Refused,
    TooLargeForDisk,
    Unauthenticated,
)
from laneway.frontends.http.errors import HttpError
from laneway.frontends.rest.words import field_on_the_wire, sentence_on_the_wire

#: The nearest class above an error decides; what is not below any of these is a 500.
STATUSES: dict[type[LanewayError], int] = {
    InvalidInput: 400,
    MessageTooLarge: 413,
    BatchTooLarge: 413,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Conflict: 409,
    ConfigInvalid: 409,
    Gone: 410,
    QueueFull: 429,
    LimitExceeded: 429,
    Refused: 503,
    DiskFull: 507,
    TooLargeForDisk: 507,
}

CHALLENGE = b'WWW-Authenticate: Bearer realm="laneway"\r\nWWW-Authenticate: Basic realm="laneway", charset="UTF-8"\r\n'


class InvalidRequest(InvalidInput):
    """Found before the broker was asked, so it speaks of the wire's names already."""


def status_of(error: LanewayError) -> int:
    if isinstance(error, HttpError):
        return error.status
    for ancestor in type(error).__mro__:
        status = STATUSES.get(ancestor)
        if status is not None:
            return status
    return 500


def headers_of(error: LanewayError) -> bytes:
    if isinstance(error, HttpError):
        return error.headers
    if isinstance(error, Unauthenticated):
        return CHALLENGE
    if isinstance(error, Refused):
        return b"Retry-After: 1\r\n"
    return b""


def error_object(error: LanewayError) -> dict[str, object]:
    """The value of "error" in an answer, or in one entry of a batch's answer."""
    message, field = error.message, error.field
    if not isinstance(error, (InvalidRequest, HttpError)):
        message = sentence_on_the_wire(message, field)
        field = field_on_the_wire(field) if field is not None else None
    told: dict[str, object] = {"code": error.code, "message": message}
    if field is not None:
        told["field"] = field
    for name, value in error.details.items():
        told.setdefault(name, value)
    return told


def unsupported_media_type(content_type: str, expected: str) -> HttpError:
    message = f"the body is {content_type[:80]!r}, {expected} is expected"
    return HttpError(415, "unsupported_media_type", message, field="Content-Type")


def encode_error(error: LanewayError) -> bytes:
    return msgspec.json.encode({"error": error_object(error)}, enc_hook=str)


INTERNAL = LanewayError("something went wrong inside the server; its log says more")

_AT = re.compile(r"^(?P<text>.*?)(?: - at `(?P<key>key` in `)?\$(?P<path>.*)`)?$", re.DOTALL)
_CHOICE = re.compile(r"Expected str matching regex '\^\((?P<choices>[a-z_|]+)\)(?P<more>\(,\((?P=choices)\)\)\*)?\$'")
_BOUND = re.compile(r"Expected (?:int|float) (?P<sign>[<>]=?) (?P<number>\S+)")
_BOUNDS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_NAME_AND_VALUE = "Expected str matching regex '^[^:]+:'"
_NAMED = re.compile(r"(?:unknown|required) field `(?P<name>.*)`$", re.DOTALL)


def invalid_json(error: Exception, body: bytes | None = None) -> InvalidRequest:
    """What msgspec found wrong, as our error. Its sentences end in "- at `$.path`", which becomes the field."""
    if body is not None and not body.strip():
        return InvalidRequest("there is no body: JSON is expected")
    if isinstance(error, msgspec.ValidationError):
        return _invalid_value(str(error))
    if isinstance(error, RecursionError):
        return InvalidRequest("the JSON is nested too deeply")
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequest("the body is not valid UTF-8, so it is no JSON")
    return InvalidRequest(f"the body is no valid JSON: {error}")


def _invalid_value(sentence: str) -> InvalidRequest:
    found = _AT.match(sentence)
    assert found is not None  # every part of the pattern is optional
    path = (found["path"] or "").removeprefix(".")
    text = found["text"].replace("`", "")
    named = _NAMED.search(found["text"])
    if named:
        path = f"{path}.{named['name']}" if path else named["name"]
        text = text.replace("Object contains", "contains an").replace("Object missing", "misses the")
        return InvalidRequest(f"the request {text}", field=path)
    if not path:
        return InvalidRequest(f"the request is not as expected: {text}")
    choice = _CHOICE.fullmatch(text)
    if choice is not None:
        text = (
            "one of " + ", ".join(choice["choices"].split("|")) + (", or several with commas" if choice["more"] else "")
        )
        return InvalidRequest(f"{path} is {text}", field=path)
    if text == _NAME_AND_VALUE:
        return InvalidRequest(f"{path} is name:value", field=path)
    bound = _BOUND.fullmatch(text)
    if bound is not None:
        return InvalidRequest(f"{path}: {_BOUNDS[bound['sign']]} {bound['number']}", field=path)
    return InvalidRequest(f"{path}: {text[:1].lower()}{text[1:]}", field=path)
