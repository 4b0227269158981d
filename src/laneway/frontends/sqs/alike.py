"""Hot: signed heads of one client differ in little: the date, the signature, an id, a length.

What was made of one such head is kept as a HeadShape: a pattern of its bytes with those few values left open. The next
head that fits is not parsed again: its values are put where the others stood, also in what is signed. Everything else
in it is byte for byte what was parsed before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter

from laneway.frontends.http.head import Head
from laneway.frontends.sqs.signing import Signature

#: What each request has its own value of, and what that may look like: nothing that could end a header.
_OPEN = {
    b"content-length": rb"[0-9]{1,9}",
    b"x-amz-date": rb"[0-9]{8}T[0-9]{6}Z",
    b"x-amz-content-sha256": rb"[0-9a-f]{64}",
    b"amz-sdk-invocation-id": rb"[0-9A-Za-z-]{1,64}",
    b"amz-sdk-request": rb"attempt=[0-9]{1,3}; max=[0-9]{1,3}",
}
_AUTHORIZATION = b"authorization"
_SIGNATURE = re.compile(rb"(.*Signature=)([0-9a-f]{64})")

#: Of the lines that are signed: before them are method, path and query, behind them an empty line, names, and the hash.
_SIGNED_HEADERS = slice(3, -3)

_SHAPES = 64
_SHAPE_BYTES = 4096


class HeadShape:
    """A head that was parsed, and how to tell others like it."""

    __slots__ = (
        "date_at",
        "fits",
        "head",
        "length_at",
        "names",
        "own_of",
        "sha256_at",
        "signature",
        "signature_at",
        "signed",
    )

    def __init__(self, raw: bytes, head: Head, signature: Signature) -> None:
        self.head = head
        self.signature = signature
        self.names: list[bytes] = []  # of the headers with open values, in their order
        first, *lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
        pattern = [re.escape(first), *map(self._open, lines)]
        self.fits = re.compile(rb"\r\n".join(pattern) + rb"\r\n\r\n").fullmatch
        self.length_at, self.date_at = self._at(b"content-length"), self._at(b"x-amz-date")
        self.signature_at, self.sha256_at = self._at(_AUTHORIZATION), self._at(b"x-amz-content-sha256")
        # What is signed, before the body's hash, with places for the open values, and which of these stand there.
        signed_at: list[int] = []
        lines = signature.before_body.replace(b"%", b"%%").split(b"\n")
        for at in range(*_SIGNED_HEADERS.indices(len(lines))):
            name = lines[at].partition(b":")[0]
            if name in self.names:
                signed_at.append(self._at(name))
                lines[at] = name + b":%b"
        self.signed = b"\n".join(lines)
        self.own_of: Callable[[tuple[bytes, ...]], object] = itemgetter(*signed_at) if signed_at else _nothing

    def _at(self, name: bytes) -> int:
        """Where the value of a header stands among the open ones; -1 if it is none of them."""
        return self.names.index(name) if name in self.names else -1

    def _open(self, line: bytes) -> bytes:
        """The pattern of a header line."""
        name, colon, text = line.partition(b":")
        key, value = name.lower(), text.strip(b" \t")
        before, _, behind = text.partition(value) if value else (text, b"", b"")
        begin = name + colon + before
        if key == _AUTHORIZATION and (found := _SIGNATURE.fullmatch(value)):
            begin += found[1]
            form = rb"[0-9a-f]{64}"
        elif key in _OPEN and re.fullmatch(_OPEN[key], value):
            form = _OPEN[key]
        else:
            return re.escape(line)
        self.names.append(key)
        return re.escape(begin) + b"(" + form + b")" + re.escape(behind)


class Shapes:
    """Those of the clients of these days. A client that asks for this and that in turn does so with heads of different
    lengths: so the shape that a head of the same length had is tried first."""

    def __init__(self) -> None:
        self._known: list[HeadShape] = []  # the one found last by looking through them first
        self._by_length: dict[int, HeadShape] = {}

    def learn(self, raw: bytes, head: Head, signature: Signature) -> None:
        if head.chunked or head.expects_continue or not head.keep_alive or len(raw) > _SHAPE_BYTES:
            return
        shape = HeadShape(raw, head, signature)
        if min(shape.signature_at, shape.length_at, shape.date_at) < 0:
            return
        found = shape.fits(raw)
        if found is None or signature_of(shape, found.groups()).before_body != signature.before_body:
            return  # a header that comes twice
        self._known.insert(0, shape)
        if len(self._known) > _SHAPES:
            del self._known[_SHAPES:]
            self._by_length.clear()  # also of the one that went

    def find(self, raw: bytes) -> tuple[HeadShape, tuple[bytes, ...]] | None:
        """The shape that a head has, and its own values in their order."""
        likely = self._by_length.get(len(raw))
        if likely is not None and (found := likely.fits(raw)) is not None:
            return likely, found.groups()
        if b"Signature=" not in raw:
            return None
        for at, shape in enumerate(self._known):
            found = shape.fits(raw)
            if found is not None:
                self._known.insert(0, self._known.pop(at))
                self._by_length[len(raw)] = shape
                return shape, found.groups()
        return None


def _nothing(values: tuple[bytes, ...]) -> tuple[()]:
    return ()


def signature_of(shape: HeadShape, values: tuple[bytes, ...]) -> Signature:
    """The signature of a head of this shape with these values."""
    return shape.signature.like(
        values[shape.date_at].decode(),
        values[shape.signature_at].decode(),
        "" if shape.sha256_at < 0 else values[shape.sha256_at].decode(),
        shape.signed % shape.own_of(values),
    )
