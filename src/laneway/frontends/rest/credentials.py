"""Who is asking: from the Authorization header to a question that the access layer answers, and the guard that keeps
web pages from asking as guest."""

from __future__ import annotations

import base64
import binascii
import re

from laneway.access import Access, Account
from laneway.errors import Forbidden, LanewayError, Unauthenticated
from laneway.frontends.rest.head import Head

_LOCAL_HOST = re.compile(rb"(localhost\.?|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(:\d*)?", re.IGNORECASE)


class Credentials:
    """What one head says about its sender. Asked anew for every request, so that what was revoked is refused at
    once, on open connections too; only the reading of the header is remembered, with its head."""

    __slots__ = ("_key", "_name", "_password", "_refusal")

    def __init__(self, head: Head) -> None:
        self._key: str | None = None
        self._name: str | None = None
        self._password = ""
        self._refusal: LanewayError | None = None
        if head.authorization is None:
            self._refusal = _browser_refusal(head)
            return
        scheme, _, value = head.authorization.partition(b" ")
        value = value.strip()
        if scheme.lower() == b"bearer" and value:
            self._key = value.decode("latin-1")
        elif scheme.lower() == b"basic" and value:
            self._read_basic(value)
        else:
            self._refusal = Unauthenticated("the Authorization header must say Bearer and an API key, or Basic")

    def _read_basic(self, value: bytes) -> None:
        try:
            text = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            self._refusal = Unauthenticated("Basic is followed by name:password in UTF-8, as base64")
            return
        self._name, colon, self._password = text.partition(":")
        if not colon:
            self._refusal = Unauthenticated("Basic is followed by name:password, and there is no colon")

    def account_now(self, access: Access, from_loopback: bool) -> Account | None:
        """The account, or None if finding out takes a password check (account_later)."""
        if self._refusal is not None:
            if isinstance(self._refusal, Forbidden):
                access.anonymous(from_loopback=from_loopback)  # where nobody is guest, 401 says more than 403
            # A new one each time: an exception that is raised again collects tracebacks.
            raise type(self._refusal)(self._refusal.message, field=self._refusal.field)
        if self._key is not None:
            return access.authenticate_key(self._key)
        if self._name is not None:
            return access.password_cached(self._name, self._password, from_loopback=from_loopback)
        return access.anonymous(from_loopback=from_loopback)

    async def account_later(self, access: Access, from_loopback: bool) -> Account:
        assert self._name is not None
        return await access.authenticate_password(self._name, self._password, from_loopback=from_loopback)


def _browser_refusal(head: Head) -> Forbidden | None:
    """Without credentials a caller on this machine acts as guest, and any page in a browser on this machine is such a
    caller. Browsers give themselves away: by Origin or Sec-Fetch-Site, and by the Host of a name that was re-bound to
    127.0.0.1."""
    host = head.host or b""
    if head.host is not None and not _LOCAL_HOST.fullmatch(host):
        return Forbidden(
            "without credentials this server is reached as localhost or 127.0.0.1 only, not as "
            f"{host.decode('latin-1')!r}: send an API key or a name and password",
            field="Host",
        )
    if head.origin is not None and head.origin.lower() not in (b"http://" + host.lower(), b"https://" + host.lower()):
        return Forbidden(
            f"a page of {head.origin.decode('latin-1')!r} may not act here without credentials:"
            " send an API key or a name and password",
            field="Origin",
        )
    # Not every request that a page makes has an Origin: an image's has none, and a GET can take messages from a queue.
    if head.fetch_site is not None and head.fetch_site.lower() not in (b"same-origin", b"none"):
        return Forbidden(
            "a page of another site may not act here without credentials: send an API key or a name and password",
            field="Sec-Fetch-Site",
        )
    return None


def is_loopback(address: str) -> bool:
    """127.0.0.0/8, ::1, and the former written as the latter's kind."""
    address = address.removeprefix("::ffff:")
    return address.startswith("127.") or address == "::1"
