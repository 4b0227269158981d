"""Passwords at rest: salted scrypt, with the parameters kept beside the hash so that they can be raised later.

scrypt$<n>$<r>$<p>$<salt, base64>$<hash, base64>

Hashes that were made by RabbitMQ, and come with its definitions, are kept as they are until the password is changed:

rabbitmq_sha256$<4 bytes of salt and the hash of salt and password, base64>, or rabbitmq_sha512$…
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

from laneway.errors import InvalidInput

N, R, P = 2**14, 8, 1  # 16 MiB and some tens of milliseconds for each attempt
SALT_BYTES = 16
HASH_BYTES = 32
MAX_PASSWORD_BYTES = 1024
OWN_ALGORITHM = "laneway_scrypt"

#: RabbitMQ's, and what they hash with.
FOREIGN_SCHEMES = {"rabbitmq_sha256": "sha256", "rabbitmq_sha512": "sha512"}
FOREIGN_SALT_BYTES = 4

#: The hash of "guest", the password that everybody knows: computing it at every start would buy nothing.
WELL_KNOWN_GUEST = "scrypt$16384$8$1$bGFuZXdheS1ndWVzdC0wMQ==$Xs/CTneTH7gkek9CY+0obyOso4uwtbkbswGBSw7Xhz4="


def hash_password(password: str, random_bytes: Callable[[int], bytes]) -> str:
    """The stored form of a password. Blocks for as long as scrypt takes: call it off the event loop."""
    salt = random_bytes(SALT_BYTES)
    return _stored(salt, _scrypt(password, salt, N, R, P, HASH_BYTES))


def unmatchable_hash(random_bytes: Callable[[int], bytes]) -> str:
    """A hash no password is known for: comparing with it costs what comparing with a real one costs."""
    return _stored(random_bytes(SALT_BYTES), random_bytes(HASH_BYTES))


def stored_form(given: str, algorithm: str) -> str:
    """The stored form of a password of which only the hash is known: one of Laneway's own, or one of RabbitMQ's."""
    scheme = {"rabbit_password_hashing_sha256": "rabbitmq_sha256", "rabbit_password_hashing_sha512": "rabbitmq_sha512"}
    try:
        if algorithm in scheme:
            kind = scheme[algorithm]
            raw = base64.b64decode(given, validate=True)
            if len(raw) == FOREIGN_SALT_BYTES + hashlib.new(FOREIGN_SCHEMES[kind]).digest_size:
                return f"{kind}${given}"
        elif algorithm == OWN_ALGORITHM:
            _, n, r, p, salt, expected = given.split("$")
            sizes = (len(base64.b64decode(salt, validate=True)), len(base64.b64decode(expected, validate=True)))
            if given.startswith("scrypt$") and (int(n), int(r), int(p), *sizes) == (N, R, P, SALT_BYTES, HASH_BYTES):
                return given
    except ValueError:
        pass
    raise InvalidInput(
        f"this is no hash of {', '.join((*scheme, OWN_ALGORITHM))}, or the algorithm is another", field="password_hash"
    )


def as_told(stored: str) -> tuple[str, str]:
    """(hash, algorithm) of a stored form, for a file of definitions."""
    scheme, _, rest = stored.partition("$")
    return (rest, f"rabbit_password_hashing_{scheme[9:]}") if scheme in FOREIGN_SCHEMES else (stored, OWN_ALGORITHM)


def password_matches(password: str, stored: str) -> bool:
    """Blocks for as long as scrypt takes: call it off the event loop."""
    scheme, _, rest = stored.partition("$")
    if scheme in FOREIGN_SCHEMES:
        raw = base64.b64decode(rest)
        secret = password.encode("utf-8", "surrogatepass")
        digest = hashlib.new(FOREIGN_SCHEMES[scheme], raw[:FOREIGN_SALT_BYTES] + secret).digest()
        return hmac.compare_digest(digest, raw[FOREIGN_SALT_BYTES:])
    _, n, r, p, salt, expected = stored.split("$")
    wanted = base64.b64decode(expected)
    return hmac.compare_digest(_scrypt(password, base64.b64decode(salt), int(n), int(r), int(p), len(wanted)), wanted)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int, size: int) -> bytes:
    secret = password.encode("utf-8", "surrogatepass")
    needed_bytes = 128 * r * (n + p + 2)  # more than OpenSSL grants by itself once the parameters are raised
    return hashlib.scrypt(secret, salt=salt, n=n, r=r, p=p, maxmem=needed_bytes, dklen=size)


def _stored(salt: bytes, digest: bytes) -> str:
    return f"scrypt${N}${R}${P}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
