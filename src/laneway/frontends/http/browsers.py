"""The guard that keeps web pages from asking as guest, and the question where a caller is."""

from __future__ import annotations

import re

from laneway.errors import Forbidden
from laneway.frontends.http.head import Head

_LOCAL_HOST = re.compile(rb"(localhost\.?|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])(:\d*)?", re.IGNORECASE)


def browser_refusal(head: Head) -> Forbidden | None:
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
