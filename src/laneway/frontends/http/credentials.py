"""Who is asking: from the Authorization header to a question that the access layer answers."""

from __future__ import annotations

import base64
import binascii
from copy import copy

from laneway.access import GUEST, Access, Account
from laneway.errors import LanewayError, Unauthenticated
from laneway.frontends.http.guests import cross_site_refusal, guest, rebinding_refusal
from laneway.frontends.http.head import Head
from laneway.frontends.http.protocol import Call


class Credentials:
    """What one head says about its sender. Asked anew for every request, so that what was revoked is refused at
    once, on open connections too; only the reading of the header is remembered, with its head."""

    __slots__ = ("_key", "_name", "_password", "_refusal")

    @property
    def is_basic(self) -> bool:
        """Whether it is a name and a password."""
        return self._name is not None

    def __init__(self, head: Head) -> None:
        self._key: str | None = None
        self._name: str | None = None
        self._password = ""
        self._refusal: LanewayError | None = None
        if head.authorization is None:
            return
        scheme, _, value = head.authorization.partition(b" ")
        value = value.strip()
        if scheme.lower() == b"bearer" and value:
            self._key = value.decode("latin-1")
        elif scheme.lower() == b"basic" and value:
            try:
                self._name, self._password = _read_basic(value)
            except Unauthenticated as refusal:
                self._refusal = copy(refusal)
            else:
                self._refusal = cross_site_refusal(head)
                if self._name == GUEST:  # a page may know that password, too
                    self._refusal = self._refusal or rebinding_refusal(head)
        else:
            self._refusal = Unauthenticated("the Authorization header must say Bearer and an API key, or Basic")

    def are_known(self, access: Access, call: Call) -> bool:
        """As account_now, but nothing is refused, counted or logged: it is asked before the request is all here."""
        if self._refusal is not None:
            return False
        if self._key is not None:
            return access.knows_key(self._key)
        if self._name is not None:
            return access.password_cached(self._name, self._password, from_loopback=call.is_from_here) is not None
        try:
            guest(access, call)
        except LanewayError:
            return False
        return True

    def account_now(self, access: Access, call: Call) -> Account | None:
        """The account, or None if finding out takes a password check (account_later)."""
        if self._refusal is not None:
            raise copy(self._refusal)  # a traceback in it would lead back here, and be freed late
        if self._key is not None:
            return access.authenticate_key(self._key, call.origin("HTTP Bearer"))
        if self._name is not None:
            return access.password_cached(self._name, self._password, from_loopback=call.is_from_here)
        return guest(access, call)

    async def account_later(self, access: Access, call: Call) -> Account:
        assert self._name is not None
        return await access.authenticate_password(
            self._name, self._password, from_loopback=call.is_from_here, origin=call.origin("HTTP Basic")
        )


def _read_basic(value: bytes) -> tuple[str, str]:
    """(name, password)"""
    try:
        text = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthenticated("Basic is followed by name:password in UTF-8, as base64") from None
    name, colon, password = text.partition(":")
    if not colon:
        raise Unauthenticated("Basic is followed by name:password, and there is no colon")
    return name, password
