"""Who is asking: from the Authorization header to a question that the access layer answers."""

from __future__ import annotations

import base64
import binascii

from laneway.access import Access, Account
from laneway.errors import Forbidden, LanewayError, Unauthenticated
from laneway.frontends.http.browsers import browser_refusal
from laneway.frontends.http.head import Head


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
            self._refusal = browser_refusal(head)
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
