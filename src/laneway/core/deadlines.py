"""What falls due when. Cost follows what is due, never what is waiting: entries of one millisecond, kind and
queue share a bucket, and a bucket is looked at once, when its time has come.

An entry is a reminder, not a decision: whoever handles it looks at the message and may find nothing to do.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush

LEASE, DELAY, TTL, RETENTION, DEDUP, KEYS = range(6)


class Deadlines:
    def __init__(self) -> None:
        self.buckets: dict[int, dict[tuple[int, int], array[int]]] = {}
        self._times: list[int] = []

    def add(self, at_ms: int, kind: int, queue: int, seqs: Iterable[int]) -> None:
        bucket = self.buckets.get(at_ms)
        if bucket is None:
            bucket = self.buckets[at_ms] = {}
            heappush(self._times, at_ms)
        entry = bucket.get((kind, queue))
        if entry is None:
            bucket[kind, queue] = array("Q", seqs)
        else:
            entry.extend(seqs)

    def next_ms(self) -> int | None:
        return self._times[0] if self._times else None

    def pop_due(self, now_ms: int) -> dict[tuple[int, int], array[int]] | None:
        """The entries of the earliest bucket that is due, None if none is."""
        if not self._times or self._times[0] > now_ms:
            return None
        return self.buckets.pop(heappop(self._times))


def coarse(at_ms: int, now_ms: int) -> int:
    """A deadline rounded up by at most a thousandth of its distance, so that far ones share buckets."""
    step = (at_ms - now_ms) >> 10
    if step <= 1:
        return at_ms
    step = 1 << (step.bit_length() - 1)
    return -(-at_ms // step) * step
