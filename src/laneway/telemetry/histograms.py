"""How values are spread: counts by upper bound, as Prometheus has them. To add many costs about what one costs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat

import msgspec

#: Seconds. The first are for what the disk does, the second for what consumers do: those see milliseconds at best.
DISK_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
WAITING_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
COMMIT_BYTES = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)


class Buckets(msgspec.Struct):
    """A histogram as a value. `counts` has one more than there are bounds: of what lies above them all."""

    counts: list[int]
    total: float

    def add(self, other: Buckets) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Histogram:
    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def add_since(self, now_ms: int, times_ms: Sequence[int]) -> None:
        """The seconds since each of these times. Those of a batch are mostly close together, which min and max tell."""
        bounds, count = self._bounds, len(times_ms)
        least_s, most_s = (now_ms - max(times_ms)) / 1000, (now_ms - min(times_ms)) / 1000
        place = bisect_left(bounds, least_s)
        if place == bisect_left(bounds, most_s):
            self._counts[place] += count
        else:
            for place in map(bisect_left, repeat(bounds), [(now_ms - at_ms) / 1000 for at_ms in times_ms]):
                self._counts[place] += 1
        self._total += (now_ms * count - sum(times_ms)) / 1000

    def buckets(self) -> Buckets:
        return Buckets(list(self._counts), self._total)
