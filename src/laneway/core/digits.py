"""Numbers as hexadecimal digits, many at once, and the tokens and ids that are made of them.

Neighbours differ in their last digits alone, so those are taken from a list of all there are, and what stands before
them is made once. Hence blocks: numbers that share all but their last three digits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import overload

from xxhash import xxh3_64_intdigest

from laneway.core.runs import runs

LOW_DIGITS = 3
BLOCK = 16**LOW_DIGITS
_LOW = [b"%03x" % number for number in range(BLOCK)]

#: A token is the lease id and the message number, eight and six bytes in hexadecimal. A lease id is never given twice,
#: so a token is good for one delivery alone.
LEASE_DIGITS, SEQ_DIGITS = 16, 12
TOKEN_CHARS = LEASE_DIGITS + SEQ_DIGITS
_NEVER_GIVEN = "0" * TOKEN_CHARS
_is_hex = re.compile("[0-9a-fA-F]+").fullmatch
SHORT_RUN = 8  # neighbours are worth looking for if there are as many together
SEQ_MASK = (1 << 48) - 1

#: A lease id that goes into tokens cannot be guessed, and says whose it is:
#:
#:     bit 62 set · 61 … 48 the account's mark · 47 … 0 by chance, but for bit 39 and the one that the index may reach
#:
#: The others are counted: bit 62 is clear, the partition stands from bit 52 on, the epoch from bit 40 on, and bit 39 is
#: set in those of sessions.
SECRET_LEASE = 1 << 62
#: Set in those of sessions: connections, which end with the process. Above it is the epoch.
SESSION_LEASE = 1 << 39
_MARK_BITS = 0x3FFF
_CHANCE = 0xFF << 40 | (1 << 38) - 1


@lru_cache(maxsize=1024)
def mark_of(account: str) -> int:
    """What is the same in all lease ids of an account's tokens: their upper 16 bits."""
    return SECRET_LEASE >> 48 | xxh3_64_intdigest(account.encode()) & _MARK_BITS


def chances(random_bytes: Callable[[int], bytes]) -> Iterator[int]:
    """64 bits by chance, again and again; many are drawn at once."""
    while True:
        yield from struct.unpack("512Q", random_bytes(4096))


def secret_lease(account: str, chance: int) -> int:
    """The lease id of the first of a few messages that an account leases; `chance`: 64 bits that nobody can know."""
    return mark_of(account) << 48 | chance & _CHANCE


def own_tokens(tokens: Sequence[str], account: str) -> Sequence[str]:
    """Hot: these tokens, if the account may have them. In place of those of others stands one that was never given, so
    that they are told what is said of a lease that has ended."""
    mark = mark_of(account)
    if type(tokens) is Tokens:
        if [run for _, run in tokens.runs if not run.start >> 48 == mark == run[-1] >> 48] == []:
            return tokens
    digits = f"{mark:04x}"
    if all(map(str.startswith, tokens, repeat(digits))):
        return tokens
    return [text if text.startswith(digits) else _not_yours(text) for text in tokens]


def _not_yours(text: str) -> str:
    """Nothing that is no token becomes one."""
    return _NEVER_GIVEN if len(text) == TOKEN_CHARS and _is_hex(text) else text


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
