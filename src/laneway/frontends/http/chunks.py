"""Chunked request bodies, put together again.

    body   = *chunk last-chunk *trailer CRLF
    chunk  = size-in-hex [;extension] CRLF bytes CRLF          last-chunk: size 0, no bytes

Strict on purpose: whatever two readers could read differently is refused, because that is how requests are smuggled.
Extensions and trailers are read and forgotten.
"""

from __future__ import annotations

from laneway.frontends.http.errors import malformed
from laneway.frontends.http.head import body_too_large
from laneway.frontends.http.limits import HttpLimits

_LINE_BYTES = 1024  # of a size with its extension, or of all trailers together
_HEX = frozenset(b"0123456789abcdefABCDEF")

_SIZE, _DATA, _DATA_END, _TRAILER = range(4)


class ChunkedBody:
    __slots__ = ("_limits", "_line", "_missing", "_received", "_size_bytes", "_state", "_trailer_bytes", "is_complete")

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._state = _SIZE
        self._line = b""  # the part of a line that has come so far
        self._missing = 0  # of the current chunk
        self._received = bytearray()  # one buffer: a body of one-byte chunks must not cost an object a byte
        self._size_bytes = 0
        self._trailer_bytes = 0
        self.is_complete = False

    @property
    def body(self) -> bytes:
        return bytes(self._received)

    def feed(self, data: bytes, at: int) -> int:
        """Take what belongs to this body from data[at:]; where the rest begins."""
        while at < len(data) and not self.is_complete:
            if self._state == _DATA:
                at = self._take_data(data, at)
                continue
            end = data.find(b"\n", at) + 1
            self._line += data[at : end or len(data)]
            if len(self._line) > _LINE_BYTES:
                raise malformed(f"a chunk's size line or trailer has more than {_LINE_BYTES} bytes")
            if not end:
                return len(data)
            at = end
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):
                raise malformed("a line of the chunked body does not end with CR LF")
            self._take_line(line[:-2])
        return at

    def _take_data(self, data: bytes, at: int) -> int:
        part = data[at : at + self._missing]
        self._received += part
        self._missing -= len(part)
        if not self._missing:
            self._state = _DATA_END
        return at + len(part)

    def _take_line(self, line: bytes) -> None:
        if self._state == _SIZE:
            digits, semicolon, extension = line.partition(b";")
            digits = digits.rstrip(b" \t") if semicolon else digits
            if not 1 <= len(digits) <= 16 or not _HEX.issuperset(digits) or b"\r" in extension:
                raise malformed(f"a chunk's size is no hexadecimal number: {line[:40]!r}")
            self._missing = int(digits, 16)
            self._size_bytes += self._missing
            if self._size_bytes > self._limits.body_bytes:
                raise body_too_large(self._size_bytes, self._limits.body_bytes)
            self._state = _DATA if self._missing else _TRAILER
        elif self._state == _DATA_END:
            if line:
                raise malformed("a chunk is longer than its size says")
            self._state = _SIZE
        elif line:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > _LINE_BYTES or b":" not in line:
                raise malformed("the trailers of the chunked body are too long, or no trailers")
        else:
            self.is_complete = True
