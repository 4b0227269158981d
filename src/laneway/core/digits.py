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
SHORT_RUN = 8  # neighbours are worth looking for if there are as many together
SEQ_MASK = (1 << 48) - 1


def token(lease_id: int, seq: int) -> str:
    return (lease_id << 48 | seq).to_bytes(14, "big").hex()


class Tokens(Sequence[str]):
    """Tokens as runs of neighbours that were leased as neighbours: (message numbers, lease ids) of each run."""

    __slots__ = ("runs",)

    def __init__(self, runs: list[tuple[range, range]]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        return sum([len(seqs) for seqs, _ in self.runs])

    def __iter__(self) -> Iterator[str]:
        for seqs, leases in self.runs:
            yield from map(token, leases, seqs)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        return list(self)[i]


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


def tokens_text(seqs: range, leases: range, between: bytes) -> bytes:
    """The tokens of neighbours that were leased as neighbours, with this between them."""
    pieces: list[bytes] = []
    for at, count in by_block(seqs, leases.start):
        columns = [high_digits(seqs[at], SEQ_DIGITS)] * (4 * count)
        before = high_digits(leases[at], LEASE_DIGITS)
        columns[0::4] = [between + before] * count
        columns[1::4] = low_digits(leases[at], count)
        columns[3::4] = low_digits(seqs[at], count)
        pieces += columns
    return b"".join(pieces)[len(between) :]


def tokens_in(text: bytes, between: bytes) -> Tokens | None:
    """Hot: the tokens that are this text, with this between them; None if it is anything else, or if so many of them
    are no neighbours that it would take longer than to look at each."""
    width = TOKEN_CHARS + len(between)
    left, rest = divmod(len(text) + len(between), width)
    if rest or left < SHORT_RUN:
        return None
    found: list[tuple[range, range]] = []
    fewest, at = left // SHORT_RUN, 0
    while left:
        beginning = text[at : at + TOKEN_CHARS]
        try:
            value = int(beginning, 16)
        except ValueError:
            return None
        lease, seq = value >> 48, value & SEQ_MASK
        if (seq + left) >> 48 or (lease + left) >> 64:
            return None  # no such numbers were ever given
        count = _length_of_run(text, at, width, left, lease, seq)
        run = range(seq, seq + count), range(lease, lease + count)
        end = at + width * count
        if len(found) == fewest or text[at : end - len(between)] != tokens_text(*run, between):
            return None
        if text[end - len(between) : end] != between and count < left:
            return None
        found.append(run)
        at, left = end, left - count
    return Tokens(found)


def _length_of_run(text: bytes, at: int, width: int, left: int, lease: int, seq: int) -> int:
    """How many of `left` tokens count up from this one, if those that do are at the beginning."""
    few, many = 1, left  # `few` do, more than `many` are not there
    ask = many  # mostly all do
    while few < many:
        start = at + width * (ask - 1)
        if text[start : start + TOKEN_CHARS] == token(lease + ask - 1, seq + ask - 1).encode():
            few = ask
        else:
            many = ask - 1
        ask = (few + many + 1) // 2
    return few
