"""Message numbers and lease ids, many at once.

What is published, leased and acked together mostly has neighbouring numbers. Then they are a `range`, always with a
step of 1, which costs nothing to make, cut or join, and whoever needs them as an array gets it without a step of Python
for each.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import sub

from laneway.core.table import SLAB_MASK, SLAB_ROWS

_LOW_BITS = 16
_LOW_COUNT = 1 << _LOW_BITS
_LOW = memoryview(array("H", range(_LOW_COUNT)))
_IS_LITTLE_ENDIAN = memoryview(array("H", (1,))).cast("B")[0] == 1
_FEW = 16  # so few are made one by one in less time


class Seqs(list[int]):
    """Message numbers that do not change any more, so that their runs are looked for once."""

    __slots__ = ("found",)

    def __init__(self, seqs: Iterable[int], found: list[tuple[int, int]] | None = None) -> None:
        super().__init__(seqs)
        self.found = found


def runs(seqs: Sequence[int]) -> list[tuple[int, int]]:
    """Message numbers as (first, count) of neighbours inside one slab, in the given order."""
    if type(seqs) is range:
        first, size = seqs.start, len(seqs)
        if 0 < size <= SLAB_ROWS - (first & SLAB_MASK):
            return [(first, size)]
        return list(_by_slab(first, size))
    if type(seqs) is Seqs:
        if seqs.found is None:
            seqs.found = _runs(seqs)
        return seqs.found
    return _runs(seqs)


def _runs(seqs: Sequence[int]) -> list[tuple[int, int]]:
    end = len(seqs)
    if end and seqs[-1] - seqs[0] == end - 1 and list(seqs) == list(range(seqs[0], seqs[0] + end)):
        return list(_by_slab(seqs[0], end))
    found: list[tuple[int, int]] = []
    at = 0
    for gap, alike in groupby(map(sub, seqs, range(end))):  # neighbours are all equally far from their place
        size = len(list(alike))
        found += _by_slab(gap + at, size)
        at += size
    return found


def _by_slab(first: int, size: int) -> Iterator[tuple[int, int]]:
    while size:
        some = min(size, SLAB_ROWS - (first & SLAB_MASK))
        yield first, some
        first += some
        size -= some


def joined(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    """The numbers of all parts in this order: a range if they make one."""
    if len(parts) == 1:
        return parts[0]
    if set(map(type, parts)) != {range}:
        return Seqs(chain.from_iterable(parts))
    neighbours: list[range] = []
    start = end = -1
    for part in parts:
        if part.start != end:  # type: ignore[attr-defined]
            if end >= 0:
                neighbours.append(range(start, end))
            start = part.start  # type: ignore[attr-defined]
        end = part.stop  # type: ignore[attr-defined]
    neighbours.append(range(start, end))
    if len(neighbours) == 1:
        return neighbours[0]
    return Seqs(chain.from_iterable(neighbours), list(chain.from_iterable(map(runs, neighbours))))


def as_array(numbers: Sequence[int]) -> array[int]:
    """Hot: what `array("Q", numbers)` is; neighbours in a fraction of its time."""
    if type(numbers) is range:
        return _count_up(numbers.start, len(numbers))
    if type(numbers) is Seqs and numbers.found is not None and len(numbers) > _FEW * len(numbers.found):
        out = array("Q")
        for first, count in numbers.found:
            out += _count_up(first, count)
        return out
    return array("Q", numbers)


def _count_up(first: int, count: int) -> array[int]:
    """Numbers differ from their neighbours in the low bits alone, and those are copied from a list of all there are."""
    low = first % _LOW_COUNT
    if count <= _FEW or not _IS_LITTLE_ENDIAN:
        return array("Q", range(first, first + count))
    if low + count > _LOW_COUNT:
        some = _LOW_COUNT - low
        return _count_up(first, some) + _count_up(first + some, count - some)
    out = array("Q", (first - low,)) * count
    memoryview(out).cast("B").cast("H")[::4] = _LOW[low : low + count]
    return out
