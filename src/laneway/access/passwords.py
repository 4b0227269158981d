"""Passwords at rest: salted scrypt, with the parameters kept beside the hash so that they can be raised later.

scrypt$<n>$<r>$<p>$<salt, base64>$<hash, base64>
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

N, R, P = 2**14, 8, 1  # 16 MiB and some tens of milliseconds for each attempt
SALT_BYTES = 16
HASH_BYTES = 32
MAX_PASSWORD_BYTES = 1024

#: The hash of "guest", the password that everybody knows: computing it at every start would buy nothing.
WELL_KNOWN_GUEST = "scrypt$16384$8$1$bGFuZXdheS1ndWVzdC0wMQ==$Xs/CTneTH7gkek9CY+0obyOso4uwtbkbswGBSw7Xhz4="


def hash_password(password: str, random_bytes: Callable[[int], bytes]) -> str:
    """The stored form of a password. Blocks for as long as scrypt takes: call it off the event loop."""
    salt = random_bytes(SALT_BYTES)
    return _stored(salt, _scrypt(password, salt, N, R, P, HASH_BYTES))


def unmatchable_hash(random_bytes: Callable[[int], bytes]) -> str:
    """A hash no password is known for: comparing with it costs what comparing with a real one costs."""
    return _stored(random_bytes(SALT_BYTES), random_bytes(HASH_BYTES))


def password_matches(password: str, stored: str) -> bool:
    """Blocks for as long as scrypt takes: call it off the event loop."""
    _, n, r, p, salt, expected = stored.split("$")
    wanted = base64.b64decode(expected)
    return hmac.compare_digest(_scrypt(password, base64.b64decode(salt), int(n), int(r), int(p), len(wanted)), wanted)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int, size: int) -> bytes:
    secret = password.encode("utf-8", "surrogatepass")
    needed_bytes = 128 * r * (n + p + 2)  # more than OpenSSL grants by itself once the parameters are raised
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, maxmem=needed_bytes, dklen=size)


def _stored(salt: bytes, digest: bytes) -> str:
    return f"scrypt${N}${R}${P}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
