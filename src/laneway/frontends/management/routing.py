"""From a path to its handler. Parts of a path are percent-encoded each for itself: %2F is the virtual host "/"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from laneway.errors import LanewayError
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head
from laneway.frontends.management.asking import ManagementAsk, ManagementReply
from laneway.frontends.management.errors import bad_request, not_there

Handler = Callable[[ManagementAsk], Awaitable[ManagementReply]]

MAX_BODY_BYTES = 1024 * 1024  # of a request that carries no message and no definitions
MAX_QUERY_FIELDS = 50


class Endpoint(msgspec.Struct, frozen=True):
    method: str
    pattern: str  # {name} is one part of the path
    handler: Handler
    max_body_bytes: int = MAX_BODY_BYTES


def at(*patterns: str, max_body_bytes: int = MAX_BODY_BYTES) -> Callable[[Any], Any]:
    """Marks a handler with what it answers: "GET /queues/{vhost}"."""

    def mark(handler: Any) -> Any:
        handler.answers = [(*pattern.split(" ", 1), max_body_bytes) for pattern in patterns]
        return handler

    return mark


def routes_of(part: object) -> list[Endpoint]:
    found: list[Endpoint] = []
    for name in dir(type(part)):
        for method, pattern, most in getattr(getattr(type(part), name), "answers", ()):
            found.append(Endpoint(method, pattern, getattr(part, name), most))
    return found


class EndpointMatch(msgspec.Struct):
    route: Endpoint | None
    names: dict[str, str] = {}
    query: dict[str, str] = {}
    refusal: LanewayError | None = None


class EndpointRouter:
    def __init__(self, routes: Sequence[Endpoint]) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Endpoint]]]] = {}
        patterns: dict[tuple[str, ...], dict[str, Endpoint]] = {}
        for route in routes:
            patterns.setdefault(tuple(route.pattern.strip("/").split("/")), {})[route.method] = route
        # Where a name could be a word of another pattern, the word counts: /users/without-permissions.
        for pattern in sorted(patterns, key=lambda parts: sum(part.startswith("{") for part in parts)):
            self._by_length.setdefault(len(pattern), []).append((pattern, patterns[pattern]))

    def match(self, head: Head) -> EndpointMatch:
        path, _, query = path_of(head).partition("?")
        parts = path.removeprefix("/api").removeprefix("/").split("/")
        if parts[-1] == "" and len(parts) > 1:
            parts.pop()  # a slash at the end says nothing
        try:
            parts = [unquote(part, errors="strict") for part in parts]
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS, errors="strict")
        except UnicodeDecodeError:
            return EndpointMatch(None, refusal=bad_request("the path and the query are UTF-8, percent-encoded"))
        except ValueError:
            return EndpointMatch(None, refusal=bad_request(f"a query has at most {MAX_QUERY_FIELDS} fields"))
        for pattern, methods in self._by_length.get(len(parts), ()):
            names = _fit(pattern, parts)
            if names is None:
                continue
            route = methods.get("GET" if head.method == "HEAD" else head.method)
            if route is None:
                return EndpointMatch(None, refusal=_not_allowed(methods, head.method))
            return EndpointMatch(route, names, dict(fields))
        return EndpointMatch(None, refusal=not_there())


def path_of(head: Head) -> str:
    target = head.target.decode("latin-1")
    if not target.startswith("/"):  # the form with a scheme and host that proxies are sent
        target = "/" + target.partition("://")[2].partition("/")[2]
    return target


def _fit(pattern: Sequence[str], parts: Sequence[str]) -> dict[str, str] | None:
    names: dict[str, str] = {}
    for expected, part in zip(pattern, parts, strict=True):
        if expected.startswith("{"):
            names[expected[1:-1]] = part
        elif expected != part:
            return None
    return names


def _not_allowed(methods: dict[str, Endpoint], asked: str) -> HttpError:
    allowed = sorted({*methods, "OPTIONS", *(["HEAD"] if "GET" in methods else [])})
    line = f"Allow: {', '.join(allowed)}\r\n".encode()
    if asked == "OPTIONS":
        return HttpError(200, "", "", headers=line)
    return HttpError(405, "method_not_allowed", f"{asked} is not done here", headers=line)
