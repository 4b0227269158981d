"""Errors as RabbitMQ's management API tells them: {"error": …, "reason": …}, with its status codes."""

from __future__ import annotations

import msgspec

from laneway.errors import (
    Forbidden,
    LanewayError,
    NotFound,
    TooManyLogins,
    Unauthenticated,
    Unavailable,
)
from laneway.frontends.http.errors import HttpError

CHALLENGE = b'WWW-Authenticate: Basic realm="Laneway management"\r\n'
INTERNAL = LanewayError("something went wrong inside the server; its log says more")


def bad_request(reason: str) -> HttpError:
    return HttpError(400, "bad_request", reason)


def not_there() -> HttpError:
    """What RabbitMQ says of anything that a path names and that is not there."""
    return HttpError(404, "Object Not Found", "Not Found")


def not_found(reason: str) -> HttpError:
    return HttpError(404, "not_found", reason)


def not_authorised(reason: str) -> HttpError:
    return HttpError(401, "not_authorised", reason)


def key_missing(*names: str) -> HttpError:
    return bad_request("[" + ",".join(f"{{key_missing,{name}}}" for name in names) + "]")


def refusal(error: LanewayError) -> tuple[int, bytes, bytes]:
    """(status, body, header lines)"""
    status, word, reason, headers = _told(error)
    return status, msgspec.json.encode({"error": word, "reason": reason}), headers


def _told(error: LanewayError) -> tuple[int, str, str, bytes]:
    if isinstance(error, HttpError):
        return error.status, error.code, error.message, error.headers
    if isinstance(error, TooManyLogins):
        return 429, "too_many_requests", error.message, b"Retry-After: 1\r\n"
    if isinstance(error, Unauthenticated):
        return 401, "not_authorized", "Login failed", CHALLENGE
    if isinstance(error, Forbidden):
        return 401, "not_authorised", error.message, b""
    if isinstance(error, NotFound):
        return 404, "Object Not Found", "Not Found", b""
    if isinstance(error, Unavailable):
        return 503, "service_unavailable", error.message, b"Retry-After: 1\r\n"
    if error.code == LanewayError.code:
        return 500, "internal_server_error", error.message, b""
    # What is wrong with a request, what a limit is in the way of, and what is used by others: RabbitMQ says 400 to all.
    return 400, "bad_request", error.message, b""
