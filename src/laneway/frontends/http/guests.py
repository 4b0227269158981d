"""Who is guest, and the guard that keeps web pages from asking in the name of whoever sits at the browser.

A browser proves by itself who asks: with the password that was typed into its window, and by being on this machine. It
does so for a page of any site. It also says which site's page asks: by Origin or Sec-Fetch-Site. What a page must add
itself (an API key, a signature) it has to know, so there this does not matter. A way to log in that a browser adds by
itself, such as a certificate or a cookie, has to ask cross_site_refusal() as well.
"""

from __future__ import annotations

import re

from laneway.access import Access, Account
from laneway.errors import Forbidden
from laneway.frontends.http.head import Head
from laneway.frontends.http.protocol import Call

_LOCAL_HOST = re.compile(rb"(localhost\.?|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(:\d*)?", re.IGNORECASE)
_HINT = "send an API key"


def guest(access: Access, call: Call) -> Account:
    """The account of one who asks without credentials, or with those that everybody knows; raises if it may not."""
    account = access.anonymous(from_loopback=call.is_from_here)
    refusal = rebinding_refusal(call.head) or cross_site_refusal(call.head)
    if refusal is not None:
        raise refusal
    return account


def cross_site_refusal(head: Head) -> Forbidden | None:
    """Why this may not be asked with what a browser adds by itself; None if it may."""
    site, origin = head.fetch_site, head.origin
    if site is not None:  # not every request that a page makes has an Origin, but each has this, in browsers of today
        if site.lower() in (b"same-origin", b"none"):
            return None
        return Forbidden(f"a page of another site may not act here: {_HINT}", field="Sec-Fetch-Site")
    host = (head.host or b"").lower()
    if origin is not None and origin.lower() not in (b"http://" + host, b"https://" + host):
        shown = origin[:200].decode("latin-1")
        return Forbidden(f"a page of {shown!r} may not act here: {_HINT}", field="Origin")
    return None


def rebinding_refusal(head: Head) -> Forbidden | None:
    """Why this may not be guest; None if it may. A page can have its own name re-bound to 127.0.0.1, so that this
    server is its site."""
    if head.host is None or _LOCAL_HOST.fullmatch(head.host):
        return None
    return Forbidden(
        "guest, and whoever has no credentials, reaches this server as localhost or 127.0.0.1 only, not as "
        f"{head.host[:200].decode('latin-1')!r}: send the credentials of another account",
        field="Host",
    )
