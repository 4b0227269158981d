"""How two processes find out who is at the other end, before either reads anything else of it.

    edge ─▶ leader    hello      both say hello as soon as they are connected
    leader ─▶ edge    hello
    edge ─▶ leader    proof      the one that connected goes first
    leader ─▶ edge    proof

    hello   0 7 bytes   "laneway"
            7 u16       version of the link, big endian; the other's is checked before anything behind it is read
            9 32 bytes  a challenge, new for every link
    proof   HMAC-SHA256 with the secret of the server, of the prover's role and both hellos

On a Unix socket, whose file only its owner may open, the secret is empty: there the proof shows that both mean the same
thing, and no more. What is read here has a fixed length and is compared, never decoded.
"""

from __future__ import annotations

import hmac
from collections.abc import Generator
from typing import Literal

Role = Literal["edge", "leader"]

#: Two processes of one server are of one version. What would misread the other is refused.
VERSION = 2

MAGIC = b"laneway"
CHALLENGE_BYTES = 32
#: A shorter one could be found by trying, once somebody has seen a proof.
MIN_SECRET_BYTES = 16

_START = MAGIC + VERSION.to_bytes(2, "big")


class Stranger(Exception):
    """The other end is none of ours."""


def greeting(role: Role, secret: bytes, challenge: bytes) -> Generator[tuple[bytes, int], bytes, None]:
    """Yields (what to send, how many bytes to wait for), is sent those bytes, and returns when the other end has shown
    that it knows the secret; raises Stranger if it has not."""
    hello = _START + challenge
    theirs = yield hello, len(_START)
    if theirs[: len(MAGIC)] != MAGIC:
        raise Stranger("it is no process of Laneway")
    if theirs != _START:
        raise Stranger(
            f"its links are of version {int.from_bytes(theirs[len(MAGIC) :], 'big')}, those of this one {VERSION}"
        )
    theirs += yield b"", CHALLENGE_BYTES
    hellos = hello + theirs if role == "edge" else theirs + hello
    other: Role = "leader" if role == "edge" else "edge"
    own, expected = _proof(secret, role, hellos), _proof(secret, other, hellos)
    found = yield own if role == "edge" else b"", len(expected)
    if not hmac.compare_digest(found, expected):
        raise Stranger("it does not know the secret of this server")
    yield own if role == "leader" else b"", 0


def _proof(secret: bytes, role: Role, hellos: bytes) -> bytes:
    return hmac.digest(secret, role.encode() + hellos, "sha256")
