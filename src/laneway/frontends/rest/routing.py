"""Paths to handlers. A route says everything about its endpoint once: the router, the reader of requests and the
OpenAPI document all take it from there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from laneway.errors import InvalidInput
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.protocol import Call
from laneway.frontends.http.responses import JSON
from laneway.frontends.rest.errors import invalid_json

DEFAULT_VHOST = "/"

_REMEMBERED_TARGETS = 16_384
_REMEMBERED_TARGET_BYTES = 512
_MAX_OPTIONS = 64  # in one query string
_BAD_PERCENT = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Reply(msgspec.Struct, frozen=True):
    """The answer of a handler that is awaited."""

    status: int
    body: bytes = b""
    headers: bytes = b""
    content_type: bytes = JSON


FastHandler = Callable[[Call], None]
SlowHandler = Callable[[Call], Awaitable[Reply]]
_Handler = TypeVar("_Handler", bound=Callable[..., Any])


#: What stands for a path that has several forms. `/vhosts/{vhost}/…` always works.
_FORMS = {
    "{Q}": ("/queues/{queue}", "/vhosts/{vhost}/queues/{queue}"),
    "{QS}": ("/queues", "/vhosts/{vhost}/queues"),
    "{X}": ("/exchanges/{vhost}/{exchange}", "/vhosts/{vhost}/exchanges/{exchange}"),
    "{XS}": ("/exchanges/{vhost}", "/vhosts/{vhost}/exchanges"),
    "{B}": ("/bindings/{vhost}", "/vhosts/{vhost}/bindings"),
}
#: Where it could as well be a plain path (/queues/{queue}/stats), it is the plain one.
SHORT_FORM = "/queues/{vhost}/{queue}"
#: What is another one in most requests.
_VARIED = ("message_id", "task_id", "stage", "part", "batch", "segment", "connection")


class Each(msgspec.Struct, frozen=True):
    """A list of which each entry is one of these types, for the OpenAPI document."""

    kinds: tuple[Any, ...]


class Text(msgspec.Struct, frozen=True):
    """A body that is text, for the OpenAPI document."""

    content_type: str = "text/plain"


#: Settings, arguments, permissions: whoever sends more of them is refused before any of it is looked at.
SETTINGS_BYTES = 256 * 1024
#: Names and ids of many things.
LIST_BYTES = 1024 * 1024


class ApiRoute(msgspec.Struct, frozen=True):
    """One method on one path. As a decorator it marks a method as its handler: routes_of() takes the name from the
    method, and the summary from the first line of its docstring. A route that shares its handler with others gives
    name, summary and handler itself."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    pattern: str  # "{Q}" and its like stand for several paths: see paths()
    name: str = ""
    summary: str = ""
    short: bool = False  # also at /queues/{vhost}/{queue}
    has_head: bool = True  # of a GET: HEAD does the same without the body
    public: bool = False  # no account is needed
    for_scrapers: bool = False  # … where the settings say so, and then by programs on this machine alone
    request: Any = None  # type of the body
    body_optional: bool = False
    max_body_bytes: int | None = SETTINGS_BYTES  # of one that is awaited; None: as many as the server takes
    takes_bytes: bool = False  # a body that is not JSON is fine
    takes_msgpack: bool = False  # the same as MessagePack is fine
    options: type[msgspec.Struct] | None = None  # of the query string
    answers: dict[int, Any] = {}  # status -> type, Each or Text; bytes: a body that is not JSON; None: no body
    refusals: tuple[int, ...] = ()  # statuses of errors, beside those that every route has
    fast: FastHandler | None = None  # answers through callbacks
    slow: SlowHandler | None = None  # is awaited in a task

    def __call__(self, handler: _Handler) -> _Handler:
        handler.__dict__["api_route"] = self
        return handler

    @property
    def is_repeated(self) -> bool:
        """Whether clients ask for the same target again and again, so that remembering it pays."""
        return not any(f"{{{name}}}" in self.pattern for name in _VARIED)

    def paths(self) -> list[str]:
        """The pattern in full, once for each form of a path."""
        head, brace, rest = self.pattern.partition("}")
        forms = _FORMS.get(head + brace)
        if forms is None:
            return [self.pattern]
        return [form + rest for form in (*forms, *([SHORT_FORM] if self.short else []))]


def routes_of(api: object) -> list[ApiRoute]:
    """The routes of this object's methods, in the order in which its class has them."""
    routes: list[ApiRoute] = []
    for name, function in vars(type(api)).items():
        route: ApiRoute | None = getattr(function, "api_route", None)
        if route is not None:
            summary = (inspect.getdoc(function) or "").partition("\n")[0].removesuffix(".")
            kind = "slow" if inspect.iscoroutinefunction(function) else "fast"
            handler = {kind: getattr(api, name)}
            routes.append(msgspec.structs.replace(route, name=name, summary=summary, **handler))
    return routes


class Match(msgspec.Struct, frozen=True):
    """What a method and a target lead to: a route with the names from its path, or why there is none."""

    route: ApiRoute | None
    vhost: str = DEFAULT_VHOST
    queue: str = ""
    exchange: str = ""
    query: bytes = b""
    refusal: HttpError | None = None
    queue_json: str = '""'
    names: dict[str, str] = {}  # all that the path gives a name to


class Router:
    def __init__(self, routes: Sequence[ApiRoute]) -> None:
        self._by_length: dict[int, list[tuple[list[str], ApiRoute]]] = {}
        self._short_by_length: dict[int, list[tuple[list[str], ApiRoute]]] = {}
        self._matches: dict[tuple[str, bytes], Match] = {}
        for route in routes:
            for path in route.paths():
                segments = path.split("/")[1:]
                table = self._short_by_length if path.startswith(SHORT_FORM) else self._by_length
                table.setdefault(len(segments), []).append((segments, route))

    def match(self, method: str, target: bytes) -> Match:
        found = self._matches.get((method, target))
        if found is not None:
            return found
        try:
            return self._find(method, target)
        except HttpError as refusal:
            return Match(None, refusal=refusal)

    def remember(self, method: str, target: bytes, match: Match) -> None:
        """Somebody known asked for this."""
        if match.route is not None and match.route.is_repeated and len(target) <= _REMEMBERED_TARGET_BYTES:
            if len(self._matches) >= _REMEMBERED_TARGETS:
                self._matches.clear()
            self._matches[method, target] = match

    def _find(self, method: str, target: bytes) -> Match:
        path, _, query = _origin_form(target).partition(b"?")
        segments = [_decode_segment(raw) for raw in path.split(b"/")[1:]]
        allowed = _allowed(self._by_length.get(len(segments), ()), segments) or _allowed(
            self._short_by_length.get(len(segments), ()), segments
        )
        if not allowed:
            raise HttpError(404, "path_not_found", f"there is nothing at {path.decode()}: see /openapi.json")
        chosen = allowed.get("GET" if method == "HEAD" else method)
        if chosen is None or (method == "HEAD" and not chosen[1].has_head):
            raise _wrong_method(method, allowed)
        pattern, route = chosen
        names = {p: s for p, s in zip(pattern, segments, strict=True) if p[:1] == "{"}
        return _match_of(route, names, query)


def _allowed(
    candidates: Sequence[tuple[list[str], ApiRoute]], segments: list[str]
) -> dict[str, tuple[list[str], ApiRoute]]:
    """By method, the routes whose path these segments are."""
    allowed: dict[str, tuple[list[str], ApiRoute]] = {}
    for pattern, route in candidates:
        if all(p == s or (s and p[:1] == "{") for p, s in zip(pattern, segments, strict=True)):
            allowed.setdefault(route.method, (pattern, route))
    return allowed


def _match_of(route: ApiRoute, names: dict[str, str], query: bytes) -> Match:
    queue = names.get("{queue}", "")
    return Match(
        route,
        vhost=names.get("{vhost}", DEFAULT_VHOST),
        queue=queue,
        exchange=names.get("{exchange}", ""),
        query=query,
        queue_json=msgspec.json.encode(queue).decode(),
        names={name[1:-1]: value for name, value in names.items()},
    )


def _origin_form(target: bytes) -> bytes:
    """/path?query, also of the form with a scheme and host that proxies send."""
    if target.startswith(b"/"):
        return target.partition(b"#")[0]
    found = re.match(rb"https?://[^/?#]*([^#]*)", target, re.IGNORECASE)
    if found is None:
        raise HttpError(400, "malformed_target", f"the target of a request is a path: {target[:80]!r}")
    rest = found[1]
    return rest if rest.startswith(b"/") else b"/" + rest


def _decode_segment(raw: bytes) -> str:
    if _BAD_PERCENT.search(raw):
        shown = raw[:80].decode("latin-1")
        raise HttpError(400, "malformed_target", f"a % in a path is followed by two hexadecimal digits: {shown!r}")
    try:
        return unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "malformed_target", f"the path is not valid UTF-8: {raw[:80]!r}") from None


def _wrong_method(method: str, allowed: dict[str, tuple[list[str], ApiRoute]]) -> HttpError:
    has_head = "GET" in allowed and allowed["GET"][1].has_head
    methods = sorted({*allowed, *(["HEAD"] if has_head else [])})
    return HttpError(
        405,
        "method_not_allowed",
        f"{method} is not possible here; possible are {', '.join(methods)}",
        headers=b"Allow: %b\r\n" % ", ".join(methods).encode(),
    )


def convert_query(query: bytes, kind: type[Any]) -> Any:
    """The query string as a struct; all its values come as text."""
    given: dict[str, str] = {}
    if query:
        try:
            pairs = parse_qsl(
                query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_OPTIONS
            )
        except UnicodeDecodeError:
            raise InvalidInput("the query string is not valid UTF-8") from None
        except ValueError:
            raise InvalidInput(f"the query string has more than {_MAX_OPTIONS} parts") from None
        for name, value in pairs:
            if name in given:
                raise InvalidInput(f"{name[:80]} comes twice in the query string", field=name[:80])
            given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid_json(error) from None
