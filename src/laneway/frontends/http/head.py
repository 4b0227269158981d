"""The head of an HTTP request: from bytes, by httptools, to a value that says all the server wants to know.

A head is parsed on its own, without its body: clients repeat their heads, so the server remembers what it made of
one (see HeadCache) and the next request with the same bytes costs a look-up instead of a parse.
"""

from __future__ import annotations

from typing import Any

import httptools
import msgspec

from laneway.frontends.http.errors import HttpError, malformed
from laneway.frontends.http.limits import HttpLimits

_TLS_RECORD = b"\x16\x03"
_REMEMBERED_HEADS = 4096
_REMEMBERED_HEAD_BYTES = 2048  # longer ones carry tokens or cookies that rarely come twice

#: What proxies add, and clients that speak for themselves do not; and all that begins with x-forwarded-.
_FORWARDING = frozenset({b"forwarded", b"via", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"cf-connecting-ip"})
_X_FORWARDED = b"x-forwarded-"

#: The headers that mean something here. One that comes twice would leave room for two readings of a request.
_READ_HEADERS = frozenset(
    {
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"authorization",
        b"content-type",
        b"idempotency-key",
        b"expect",
        b"transfer-encoding",
        b"x-amz-target",
    }
)


class Forwarding(msgspec.Struct):
    """What proxies on the way added to a head. Anybody can write that: it counts if it came from a trusted one."""

    header: str  # that shows there was one
    addresses: list[str] = []  # who called the first proxy, who called the second …
    proto: str = ""  # that the client spoke with the last proxy which says so


class Head(msgspec.Struct):
    method: str
    target: bytes
    version: str
    keep_alive: bool
    content_length: int = 0
    chunked: bool = False
    expects_continue: bool = False
    host: bytes | None = None
    origin: bytes | None = None
    fetch_site: bytes | None = None
    authorization: bytes | None = None
    accept: bytes | None = None  # the first, if there are several
    content_type: bytes | None = None
    idempotency_key: bytes | None = None
    x_amz_target: bytes | None = None
    forwarding: Forwarding | None = None
    headers: list[tuple[bytes, bytes]] = []  # all of them, names in small letters, until the head is planned
    is_plain: bool = False  # its answer needs nothing special
    is_repeated: bool = True  # the application says if no other request will have the same head
    application: Any = None  # who answers requests with this head
    plan: Any = None  # what the application made of this head, remembered with it
    raw: bytes = b""  # its bytes, until the application knows who asks: nothing is remembered for strangers
    own: Any = None  # what the application read that this one request alone says, and others like it do not

    def __post_init__(self) -> None:
        self.is_plain = self.keep_alive and self.version == "1.1" and self.method != "HEAD"

    def like(self, content_length: int, own: object) -> Head:
        """Hot: one with the same plan, that differs in its length and in what is its own alone."""
        other: Head = self.__copy__()  # type: ignore[attr-defined]  # copy.copy() takes as long as making one anew
        other.content_length, other.own = content_length, own
        return other


def is_worth_keeping(raw: bytes, head: Head) -> bool:
    """Whether a cache may keep a head. Only one with a plain length, so that a hit never changes framing."""
    is_unusual = head.chunked or head.expects_continue or head.idempotency_key is not None
    return is_short(raw) and not is_unusual


def is_short(raw: bytes) -> bool:
    return len(raw) <= _REMEMBERED_HEAD_BYTES


class HeadCache:
    """What identical bytes were parsed to."""

    def __init__(self) -> None:
        self.known: dict[bytes, Head] = {}

    def remember(self, raw: bytes, head: Head) -> None:
        if not is_worth_keeping(raw, head):
            return
        if len(self.known) >= _REMEMBERED_HEADS:
            self.known.clear()
        self.known[raw] = head


class _Collector:
    """What httptools calls while it reads one head."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun_count = 0
        self.is_complete = False
        self.keep_alive = False
        self.version = ""
        self.method = b""
        self._parser: Any = None

    def feed(self, raw: bytes) -> None:
        self._parser = parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(raw)
        finally:
            self.version, self.method = parser.get_http_version(), parser.get_method()
            self._parser = None  # it holds this object: what anybody may send must not wait for the garbage collector

    def on_message_begin(self) -> None:
        self.begun_count += 1

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.is_complete = True
        self.keep_alive = self._parser.should_keep_alive()  # only told while the head is being read


def parse_head(raw: bytes, limits: HttpLimits) -> Head | None:
    """The request whose head ends with these bytes; None if they are nothing but empty lines between requests."""
    if not raw.strip(b"\r\n"):
        return None
    read = _Collector()
    try:
        read.feed(raw)
    except httptools.HttpParserUpgrade:
        pass  # an offer to speak something else: it may be declined by answering in HTTP/1.1
    except httptools.HttpParserInvalidMethodError:
        raise malformed("this is no HTTP request: it does not begin with a method") from None
    except httptools.HttpParserError as error:
        raise malformed(f"this is no HTTP request: {error}") from None
    if not read.is_complete or read.begun_count != 1:
        raise malformed("this is no HTTP request: its head is not complete")
    version = read.version
    if version not in ("1.0", "1.1"):
        raise HttpError(505, "version_not_supported", f"HTTP/{version} is not spoken here, HTTP/1.1 is")
    _check_size(raw, read, limits)
    head = Head(read.method.decode("ascii"), read.target, version, read.keep_alive)
    _take_headers(head, read.headers)
    if head.content_length > limits.body_bytes:
        raise body_too_large(head.content_length, limits.body_bytes)
    return head


def check_beginning(raw: bytes, limits: HttpLimits) -> None:
    """Raise if the beginning of a head shows already that it will be none, or that it will be too large."""
    if raw.startswith(_TLS_RECORD):
        raise malformed("this is a TLS handshake, and this port speaks plain HTTP: its address begins with http://")
    read = _Collector()
    try:
        read.feed(raw)
    except httptools.HttpParserError as error:
        raise malformed(f"this is no HTTP request: {error}") from None
    _check_size(raw, read, limits)


def body_too_large(size_bytes: int, most: int) -> HttpError:
    return HttpError(
        413,
        "body_too_large",
        f"the body of this request has {size_bytes} bytes or more, {most} are allowed: send fewer at once",
        limit=most,
    )


def _check_size(raw: bytes, read: _Collector, limits: HttpLimits) -> None:
    if len(read.target) > limits.target_bytes:
        raise HttpError(
            414,
            "target_too_long",
            f"the path and query of this request have {len(read.target)} bytes, {limits.target_bytes} are allowed",
            limit=limits.target_bytes,
        )
    if len(raw) > limits.head_bytes:
        raise HttpError(
            431,
            "head_too_large",
            f"the headers of this request have {len(raw)} bytes, {limits.head_bytes} are allowed",
            limit=limits.head_bytes,
        )
    if len(read.headers) > limits.header_count:
        raise HttpError(
            431,
            "too_many_headers",
            f"this request has {len(read.headers)} headers or more, {limits.header_count} are allowed",
            limit=limits.header_count,
        )


def _take_headers(head: Head, headers: list[tuple[bytes, bytes]]) -> None:
    seen: dict[bytes, bytes] = {}
    head.headers = headers = [(name.lower(), value) for name, value in headers]
    for name, value in headers:
        if name in _READ_HEADERS:
            if name in seen:
                raise malformed(f"the header {name.decode()} comes more than once")
            seen[name] = value.strip()
        elif name == b"accept":
            head.accept = head.accept or value
        elif name == b"content-length":
            head.content_length = int(value)  # httptools refuses one that is repeated or is no number
        elif name in _FORWARDING or name.startswith(_X_FORWARDED):
            _take_forwarding(head, name, value.decode("latin-1"))
    if head.version == "1.1" and b"host" not in seen:
        raise malformed("an HTTP/1.1 request needs a Host header")
    coding = seen.get(b"transfer-encoding")
    if coding is not None:
        if coding.lower() != b"chunked" or head.version != "1.1":
            raise HttpError(501, "coding_not_supported", "only Transfer-Encoding: chunked is understood")
        head.chunked = True
    expected = seen.get(b"expect")
    if expected is not None:
        if expected.lower() != b"100-continue":
            raise HttpError(417, "expectation_failed", "only Expect: 100-continue is understood")
        head.expects_continue = head.version == "1.1" and (head.chunked or head.content_length > 0)
    head.host = seen.get(b"host")
    head.origin = seen.get(b"origin")
    head.fetch_site = seen.get(b"sec-fetch-site")
    head.authorization = seen.get(b"authorization")
    head.content_type = seen.get(b"content-type")
    head.idempotency_key = seen.get(b"idempotency-key")
    head.x_amz_target = seen.get(b"x-amz-target")


def _take_forwarding(head: Head, name: bytes, value: str) -> None:
    forwarding = head.forwarding
    if forwarding is None:
        forwarding = head.forwarding = Forwarding(name.decode("latin-1"))
    if name == b"x-forwarded-for":
        forwarding.addresses += [address.strip() for address in value.split(",")]
    elif name == b"x-forwarded-proto":
        forwarding.proto = value.rpartition(",")[2].strip().lower()
