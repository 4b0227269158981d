"""Signature Version 4: what a request says about its signature, and whether it is right.

    Authorization: AWS4-HMAC-SHA256 Credential=AKIA…/20260131/us-east-1/sqs/aws4_request,
        SignedHeaders=host;…, Signature=…

or the same as X-Amz-… parts of the query (a presigned URL). The signature is an HMAC over the method, the path, the
query, the signed headers and the SHA-256 of the body, under a key derived from the secret for one day, region and
service.
"""

from __future__ import annotations

import hmac
import re
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

import msgspec

from laneway.frontends.http.head import Head
from laneway.frontends.sqs.errors import SqsError
from laneway.frontends.sqs.names import check_region

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "sqs"
SKEW_S = 15 * 60  # between the clocks of client and server
LONGEST_PRESIGNED_S = 7 * 24 * 3600
_SAYS = b"x-amz-"  # what headers of this service begin with; x-amz-target is the action
_LONGEST_CREDENTIAL = 256
_LONGEST_NAMES = 1024
_SPACES = re.compile(b" +")
_PRESIGNED = re.compile(b"(?:^|&)X-Amz-Signature=")
_USUAL = re.compile(rf"{ALGORITHM} Credential=([^,\s]+), ?SignedHeaders=([^,\s]+), ?Signature=([^,\s]+)")


class Credential(NamedTuple):
    """Whose key it was signed with, and for what."""

    text: str  # all of it
    access_key: str
    day: str
    region: str
    scope: str


class Signature(msgspec.Struct, frozen=True, gc=False):
    """What one head says about its signature; everything but the body is at hand."""

    credential: Credential
    timestamp: str
    at_s: float
    signature: str
    content_sha256: str
    before_body: bytes
    expires_s: int = 0  # of a presigned URL

    def like(self, timestamp: str, signature: str, content_sha256: str, before_body: bytes) -> Signature:
        """That of another head with the same credential and the same signed headers."""
        credential = self.credential
        at_s = _read_time(timestamp, credential.day)
        return Signature(credential, timestamp, at_s, signature, content_sha256, before_body)

    def check(self, key: SigningKey, body: bytes, now_s: float) -> None:
        """Raise unless this is what the owner of the key would have signed, and not too long ago."""
        body_sha256 = sha256(body).hexdigest()
        if self.content_sha256 and self.content_sha256 != body_sha256:
            raise _mismatch("The body does not have the SHA-256 that x-amz-content-sha256 says.")
        request = sha256(self.before_body + body_sha256.encode()).hexdigest()
        to_sign = f"{ALGORITHM}\n{self.timestamp}\n{self.credential.scope}\n{request}"
        if not compare_digest(key.sign(to_sign.encode()).encode(), self.signature.encode("utf-8", "replace")):
            raise _mismatch(
                "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
                "Access Key and signing method. Consult the service documentation for details."
            )
        if self.expires_s or abs(now_s - self.at_s) > SKEW_S:
            self._check_time(now_s)

    def _check_time(self, now_s: float) -> None:
        if self.expires_s:
            if now_s > self.at_s + self.expires_s:
                raise SqsError("RequestExpired", "Request has expired.")
            if now_s < self.at_s - SKEW_S:
                raise SqsError("SignatureDoesNotMatch", f"Signature not yet current: {self.timestamp} is ahead.")
        else:
            word = "expired" if self.at_s < now_s else "not yet current"
            now = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M%SZ")
            raise _mismatch(f"Signature {word}: {self.timestamp} is more than 15 minutes from {now}.")


class SigningKey:
    """HMAC-SHA256 under one key (RFC 2104), with the half of the work that depends on the key alone done beforehand."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        padded = key.ljust(64, b"\0")  # a derived key has 32 bytes
        self._inner = sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in padded))

    def sign(self, message: bytes) -> str:
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.hexdigest()


def derive_key(secret: str, credential: Credential) -> SigningKey:
    """Four HMACs, so whoever asks keeps it."""
    key = ("AWS4" + secret).encode()
    for part in (credential.day, credential.region, SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return SigningKey(key)


def read_signature(head: Head, path: bytes, query: bytes) -> Signature:
    """`path`: as normal_path() makes it."""
    headers = dict(head.headers)
    if len(headers) < len(head.headers):
        headers = _joined(head.headers)
    parts = _query_parts(query) if query else []
    expires_s = 0
    if head.authorization is not None:
        credential_text, signed_headers, signature = _read_authorization(head.authorization.decode("latin-1"))
        timestamp = headers.get(b"x-amz-date", b"").strip().decode("latin-1")
        if not timestamp:
            raise _incomplete("Authorization header requires existence of a 'X-Amz-Date' header.")
    else:
        given = dict(parts)
        if given.get("X-Amz-Algorithm") != ALGORITHM:
            raise _incomplete(f"X-Amz-Algorithm must be {ALGORITHM}.")
        credential_text, signed_headers = given.get("X-Amz-Credential", ""), given.get("X-Amz-SignedHeaders", "")
        signature, timestamp = given["X-Amz-Signature"], given.get("X-Amz-Date", "")
        expires_s = _read_expiry(given.get("X-Amz-Expires", ""))
        parts = [(name, value) for name, value in parts if name != "X-Amz-Signature"]
    credential = _read_credential(credential_text)
    at_s = _read_time(timestamp, credential.day)
    content_sha256 = headers.get(b"x-amz-content-sha256", b"").strip().decode("latin-1")
    names = _read_names(signed_headers)
    _check_all_signed(headers, names)
    lines = [b"%b\n%b\n%b\n" % (head.method.encode(), _canonical_path(path), _canonical_query(parts) if parts else b"")]
    for name in names:
        value = headers.get(name, b"").strip()
        if b"  " in value:
            value = _SPACES.sub(b" ", value)
        lines.append(b"%b:%b\n" % (name, value))
    lines.append(b"\n%b\n" % signed_headers.encode("utf-8", "replace"))
    return Signature(credential, timestamp, at_s, signature, content_sha256, b"".join(lines), expires_s)


def is_signed(head: Head, query: bytes) -> bool:
    if head.authorization is not None:
        return head.authorization.startswith(ALGORITHM.encode())
    return _PRESIGNED.search(query) is not None


def _check_all_signed(headers: dict[bytes, bytes], names: tuple[bytes, ...]) -> None:
    """Whatever says what is asked for must be signed, or another could ask for something else with this signature."""
    unsigned = [name.decode("latin-1") for name in headers if name.startswith(_SAYS) and name not in names]
    if unsigned:
        raise _mismatch(
            f"There were headers present in the request which were not signed: {', '.join(unsigned)[:200]}."
        )


def _joined(pairs: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The values of a header that comes more than once, with commas between."""
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        headers[name] = headers[name] + b"," + value.strip() if name in headers else value.strip()
    return headers


def _read_authorization(text: str) -> tuple[str, str, str]:
    usual = _USUAL.fullmatch(text)
    if usual is not None:
        return usual[1], usual[2], usual[3]
    fields: dict[str, str] = {}
    for part in text.removeprefix(ALGORITHM).split(","):
        name, _, value = part.strip().partition("=")
        fields[name] = value
    try:
        return fields["Credential"], fields["SignedHeaders"], fields["Signature"]
    except KeyError as absent:
        raise _incomplete(f"Authorization header requires '{absent.args[0]}' parameter.") from None


# Clients say the same again and again: what was made of it is remembered, and the request's own part is small.


@lru_cache(maxsize=1024)
def _read_credential(text: str) -> Credential:
    if len(text) > _LONGEST_CREDENTIAL:  # also because anybody may send them, and the last ones are remembered
        raise _incomplete(f"Credential has more than {_LONGEST_CREDENTIAL} characters.")
    scope = text.split("/")
    if len(scope) != 5 or scope[4] != "aws4_request":
        raise _incomplete("Credential must be KEY/DATE/REGION/sqs/aws4_request")
    if scope[3] != SERVICE:
        raise _mismatch(f"Credential should be scoped to correct service: '{SERVICE}'.")
    return Credential(text, scope[0], scope[1], check_region(scope[2]), "/".join(scope[1:]))


@lru_cache(maxsize=256)
def _read_names(signed_headers: str) -> tuple[bytes, ...]:
    if len(signed_headers) > _LONGEST_NAMES:
        raise _incomplete(f"SignedHeaders has more than {_LONGEST_NAMES} characters.")
    names = tuple(signed_headers.encode("latin-1", "replace").split(b";"))
    if b"host" not in names:
        raise _mismatch("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    return names


@lru_cache(maxsize=1024)
def _read_time(text: str, day: str) -> float:
    try:
        at = datetime.strptime(text, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise _incomplete(f"Date must be in ISO-8601 'basic format': {text[:40]!r}.") from None
    if not text.startswith(day):
        raise _mismatch(f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date: {text}.")
    return at.timestamp()


def _read_expiry(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 1 <= int(text) <= LONGEST_PRESIGNED_S:
        raise _incomplete(f"X-Amz-Expires must be from 1 to {LONGEST_PRESIGNED_S} seconds.")
    return int(text)


def _query_parts(query: bytes) -> list[tuple[str, str]]:
    """What is signed is sorted: of a name that came twice, the order would be anybody's choice."""
    try:
        parts = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except ValueError:
        raise SqsError("SerializationException", "The query string cannot be read.") from None
    if len(dict(parts)) < len(parts):
        raise SqsError("SerializationException", "A parameter comes more than once in the query string.")
    return parts


def _canonical_query(parts: list[tuple[str, str]]) -> bytes:
    encoded = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parts)
    return "&".join(f"{name}={value}" for name, value in encoded).encode()


def _canonical_path(path: bytes) -> bytes:
    """Encoded once more: so it is for every service but S3."""
    return quote(path, safe="/~").encode()


def normal_path(path: bytes) -> bytes:
    """The path that is signed. Nothing may be read from one that is not."""
    if path == b"/":
        return path
    kept: list[bytes] = []
    for segment in path.split(b"/"):
        if segment == b"..":
            kept = kept[:-1]
        elif segment not in (b"", b"."):
            kept.append(segment)
    last = b"/" if kept and path.endswith(b"/") else b""
    return b"/" + b"/".join(kept) + last


def _incomplete(message: str) -> SqsError:
    return SqsError("IncompleteSignature", message)


def _mismatch(message: str) -> SqsError:
    return SqsError("SignatureDoesNotMatch", message)
