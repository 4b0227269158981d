"""Deduplication ids as they are remembered: a long one as its digest, so that each takes as little memory as a short
one, and all of them can be bounded by their number."""

from __future__ import annotations

from hashlib import blake2b

#: What one takes of memory at most, with the id of its message and its place among the others.
DEDUP_BYTES = 384
_KEPT_BYTES = 64  # one no longer than that is kept as it is: it takes about as much as a digest
_DIGEST_BYTES = 16


def dedup_key(text: str) -> str:
    """What stands for an id. Two have the same if they are the same; nobody can make two that have."""
    raw = text.encode()
    return text if len(raw) <= _KEPT_BYTES else blake2b(raw, digest_size=_DIGEST_BYTES).hexdigest()
