"""Responses as bytes. The lines before the length are the same for a whole second, so they are made once a second."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON = b"application/json"


class Framer:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now  # seconds since 1970
        self._second = -1
        self._date = b""
        self._starts: dict[tuple[int, bytes], bytes] = {}  # (status, type) -> everything up to the length
        self._empty = b""

    def head(self, status: int, size: int, content_type: bytes = JSON, headers: bytes = b"") -> bytes:
        """What stands before a body of this size in the usual answer, on a connection that stays open."""
        if int(self._now()) != self._second:
            self._new_second()
        start = self._starts.get((status, content_type))
        if start is None:
            start = b"%bContent-Type: %b\r\nContent-Length: " % (self._start(status), content_type)
            self._starts[status, content_type] = start
        return b"%b%d\r\n%b\r\n" % (start, size, headers)

    def no_content(self) -> bytes:
        if int(self._now()) != self._second:
            self._new_second()
        if not self._empty:
            self._empty = self._start(204) + b"\r\n"
        return self._empty

    def special(
        self,
        status: int,
        body: bytes | bytearray,
        headers: bytes,
        *,
        connection: bytes,
        omit_body: bool,
        content_type: bytes = JSON,
    ) -> bytes:
        """Any answer: with further header lines, a word about the connection, or without its body (to HEAD)."""
        if int(self._now()) != self._second:
            self._new_second()
        if connection:
            headers += b"Connection: %b\r\n" % connection
        if status == 204:
            return self._start(status) + headers + b"\r\n"
        start = b"%bContent-Type: %b\r\n%b" % (self._start(status), content_type, headers)
        head = b"%bContent-Length: %d\r\n\r\n" % (start, len(body))
        return head if omit_body else head + body

    def stream_head(self, content_type: bytes) -> bytes:
        """Of an answer that ends with its connection."""
        if int(self._now()) != self._second:
            self._new_second()
        rest = b"Cache-Control: no-store\r\nX-Accel-Buffering: no\r\nConnection: close\r\n\r\n"
        return b"%bContent-Type: %b\r\n%b" % (self._start(200), content_type, rest)

    def _start(self, status: int) -> bytes:
        return b"HTTP/1.1 %d %b\r\nDate: %b\r\n" % (status, HTTPStatus(status).phrase.encode(), self._date)

    def _new_second(self) -> None:
        now = self._now()
        self._second = int(now)
        self._date = formatdate(now, usegmt=True).encode()
        self._starts.clear()
        self._empty = b""
