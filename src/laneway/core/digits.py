"""Numbers as hexadecimal digits, many at once, and the tokens and ids that are made of them.

Neighbours differ in their last digits alone, so those are taken from a list of all there are, and what stands before
them is made once. Hence blocks: numbers that share all but their last three digits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import overload

from laneway.core.runs import runs

LOW_DIGITS = 3
BLOCK = 16**LOW_DIGITS
_LOW = [b"%03x" % number for number in range(BLOCK)]

#: A token is the lease id and the message number, eight and six bytes in hexadecimal. A lease id is never given twice
#: (its upper bits are the epoch), so a token is good for one delivery alone.
LEASE_DIGITS, SEQ_DIGITS = 16, 12
TOKEN_CHARS = LEASE_DIGITS + SEQ_DIGITS
_SEQ_MASK = (1 << 48) - 1


def token(lease_id: int, seq: int) -> str:
    return (lease_id << 48 | seq).to_bytes(14, "big").hex()


class TokenRun(Sequence[str]):
    """The tokens of neighbours that were leased as neighbours."""

    __slots__ = ("leases", "seqs")

    def __init__(self, seqs: range, leases: range) -> None:
        self.seqs = seqs
        self.leases = leases

    def __len__(self) -> int:
        return len(self.seqs)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return list(map(token, self.leases[i], self.seqs[i]))
        return token(self.leases[i], self.seqs[i])


def hex_lines(numbers: Sequence[int]) -> str:
    """Numbers as sixteen hexadecimal digits each, each behind a line break, so that one replace puts something before
    every one of them, or takes four digits away that are known to be 0."""
    return "\n" + struct.pack(f">{len(numbers)}Q", *numbers).hex("\n", 8)


def by_block(seqs: Sequence[int], lease: int = 0) -> Iterator[tuple[int, int]]:
    """(where, how many) of neighbours among these message numbers that are in one block, and so are the numbers that
    count up from `lease` beside them."""
    at = 0
    for first, left in runs(seqs):
        while left:
            count = min(left, BLOCK - first % BLOCK, BLOCK - (lease + at) % BLOCK if lease else left)
            yield at, count
            at, first, left = at + count, first + count, left - count


def high_digits(number: int, digits: int) -> bytes:
    """What all numbers of a block begin with."""
    return b"%0*x" % (digits - LOW_DIGITS, number // BLOCK)


def low_digits(first: int, count: int) -> list[bytes]:
    """What neighbours of one block end with."""
    low = first % BLOCK
    return _LOW[low : low + count]


def tokens_text(run: TokenRun, between: bytes) -> bytes:
    """The tokens of a run, with this between them."""
    seqs, leases = run.seqs, run.leases
    pieces: list[bytes] = []
    for at, count in by_block(seqs, leases.start):
        columns = [high_digits(seqs[at], SEQ_DIGITS)] * (4 * count)
        before = high_digits(leases[at], LEASE_DIGITS)
        columns[0::4] = [between + before] * count
        columns[1::4] = low_digits(leases[at], count)
        columns[3::4] = low_digits(seqs[at], count)
        pieces += columns
    return b"".join(pieces)[len(between) :]


def token_run(text: bytes, between: bytes) -> TokenRun | None:
    """Hot: the run whose tokens, with this between them, are this text, if there is one."""
    count, rest = divmod(len(text) + len(between), TOKEN_CHARS + len(between))
    if rest or count < 2:
        return None
    try:
        value = int(text[:TOKEN_CHARS], 16)
    except ValueError:
        return None
    lease, seq = value >> 48, value & _SEQ_MASK
    run = TokenRun(range(seq, seq + count), range(lease, lease + count))
    return run if tokens_text(run, between) == text else None
