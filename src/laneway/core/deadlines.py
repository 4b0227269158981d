"""What falls due when. Cost follows what is due, never what is waiting: entries of one millisecond, kind and
queue share a bucket (leases of all queues: queue 0), and a bucket is looked at once, when its time has come.

An entry is a reminder, not a decision: whoever handles it looks at the message and may find nothing to do. So nothing
is taken out when a lease ends early or a message goes; once there are too many such reminders, tidy() drops them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence, Set
from heapq import heapify, heappop, heappush

from laneway.core.runs import as_array

LEASE, DELAY, TTL, RETENTION, DEDUP, KEYS = range(6)

#: About what a bucket and each of its entries take beside eight bytes for each message.
BUCKET_BYTES = 400
ENTRY_BYTES = 200
#: Nothing is tidied below this.
TIDY_BYTES = 64 * 1024 * 1024


class Deadlines:
    def __init__(self) -> None:
        self.buckets: dict[int, dict[tuple[int, int], array[int]]] = {}
        self._times: list[int] = []
        self._bytes = 0  # about what all this takes
        self._tidy_above_bytes = TIDY_BYTES
        self._due_ms = 0  # up to here all has fallen due: what is not handled yet will be soon

    def add(self, at_ms: int, kind: int, queue: int, seqs: Sequence[int]) -> None:
        bucket = self.buckets.get(at_ms)
        if bucket is None:
            bucket = self.buckets[at_ms] = {}
            heappush(self._times, at_ms)
            self._bytes += BUCKET_BYTES
        entry = bucket.get((kind, queue))
        if entry is None:
            bucket[kind, queue] = as_array(seqs)
            self._bytes += ENTRY_BYTES
        else:
            entry += as_array(seqs)
        self._bytes += 8 * len(seqs)

    def next_ms(self) -> int | None:
        return self._times[0] if self._times else None

    def pop_due(self, now_ms: int) -> dict[tuple[int, int], array[int]] | None:
        """The entries of the earliest bucket that is due, None if none is."""
        if not self._times or self._times[0] > now_ms:
            return None
        self._due_ms = max(self._due_ms, now_ms)
        bucket = self.buckets.pop(heappop(self._times))
        self._bytes -= _size(bucket)
        return bucket

    def move(self, moved: Callable[[int], int], staying: Set[int]) -> None:
        """The clock was set: all is due when `moved` says, but delays and times to live of these messages stay."""
        before, self.buckets, self._times, self._bytes = self.buckets, {}, [], 0
        self._due_ms = moved(self._due_ms)
        for at_ms, bucket in before.items():
            for (kind, number), seqs in bucket.items():
                stay = [s for s in seqs if s in staying] if staying and kind in (DELAY, TTL) else []
                if stay:
                    self.add(at_ms, kind, number, stay)
                    seqs = array("Q", [s for s in seqs if s not in staying])
                if seqs or not stay:
                    self.add(moved(at_ms), kind, number, seqs)

    @property
    def is_untidy(self) -> bool:
        return self._bytes > self._tidy_above_bytes

    def tidy(self, still_due: Callable[[int, int, int, array[int]], array[int] | None]) -> None:
        """Keep what still_due(at_ms, kind, queue, seqs) gives back, None to drop the entry. The next time is when twice
        as much has come together, so that each reminder is looked at a few times at most."""
        kept: dict[int, dict[tuple[int, int], array[int]]] = {}
        for at_ms, bucket in self.buckets.items():
            if at_ms > self._due_ms:
                checked = {key: still_due(at_ms, *key, seqs) for key, seqs in bucket.items()}
                bucket = {key: seqs for key, seqs in checked.items() if seqs is not None}
            if bucket:
                kept[at_ms] = bucket
        self.buckets = kept
        self._times = list(kept)
        heapify(self._times)
        self._bytes = sum(map(_size, kept.values()))
        self._tidy_above_bytes = max(TIDY_BYTES, 2 * self._bytes)


def _size(bucket: dict[tuple[int, int], array[int]]) -> int:
    return BUCKET_BYTES + ENTRY_BYTES * len(bucket) + 8 * sum(map(len, bucket.values()))


def coarse(at_ms: int, now_ms: int) -> int:
    """A deadline rounded up by at most a thousandth of its distance, so that far ones share buckets."""
    step = (at_ms - now_ms) >> 10
    if step <= 1:
        return at_ms
    step = 1 << (step.bit_length() - 1)
    return -(-at_ms // step) * step
