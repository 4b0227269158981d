"""What a channel has been given and has not settled: delivery tag → message.

Kept a batch at a time, not a message at a time: a batch's tags are consecutive, its numbers and leases are the columns
it came with. Acknowledging in order or in ranges moves a boundary; one taken from the middle leaves a hole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any


class Taken:
    """Messages of one queue and one consumer, to be settled together."""

    __slots__ = ("leases", "owner", "queue", "seqs", "tags")

    def __init__(self, owner: Any, queue: int, tags: Sequence[int], seqs: Sequence[int], leases: Sequence[int]) -> None:
        self.owner = owner  # the consumer; None if it was asked for with basic.get
        self.queue = queue
        self.tags = tags
        self.seqs = seqs
        self.leases = leases


class _Held:
    __slots__ = ("end", "first_tag", "holes", "leases", "owner", "queue", "seqs", "start")

    def __init__(self, owner: Any, queue: int, first_tag: int, seqs: Sequence[int], leases: Sequence[int]) -> None:
        self.owner = owner
        self.queue = queue
        self.first_tag = first_tag
        self.seqs = seqs
        self.leases = leases
        self.start = 0  # what is before this is settled
        self.end = len(seqs)
        self.holes: set[int] = set()  # settled behind the start

    def take(self, start: int, end: int) -> Taken | None:
        """Those from start to end that are still there."""
        start = max(start, self.start)
        if start >= end:
            return None
        if self.holes:
            return self._take_around_holes(start, end)
        if start == self.start:
            self.start = end
        else:
            self.holes.update(range(start, end))
        tag, seqs, leases = self.first_tag, self.seqs, self.leases
        if end - start < len(seqs):
            seqs, leases = seqs[start:end], leases[start:end]
        return Taken(self.owner, self.queue, range(tag + start, tag + end), seqs, leases)

    def _take_around_holes(self, start: int, end: int) -> Taken | None:
        places = [at for at in range(start, end) if at not in self.holes]
        if not places:
            return None
        if places[0] == self.start:
            self.start = end
            self.holes = {at for at in self.holes if at >= end}
            while self.start in self.holes:
                self.holes.discard(self.start)
                self.start += 1
        else:
            self.holes.update(places)
        return Taken(
            self.owner,
            self.queue,
            [self.first_tag + at for at in places],
            [self.seqs[at] for at in places],
            [self.leases[at] for at in places],
        )

    def restore(self, at: int) -> bool:
        """Whether this place is one of its own."""
        if at >= self.end:
            return False
        if at < self.start:
            self.holes.update(range(at + 1, self.start))
            self.start = at
        self.holes.discard(at)
        return True

    @property
    def is_empty(self) -> bool:
        return self.start + len(self.holes) >= self.end


class Unacked:
    def __init__(self) -> None:
        self._firsts: list[int] = []  # the first tag of each batch, for finding it
        self._held: list[_Held] = []
        self.count = 0

    def add(self, owner: Any, queue: int, first_tag: int, seqs: Sequence[int], leases: Sequence[int]) -> None:
        self._firsts.append(first_tag)
        self._held.append(_Held(owner, queue, first_tag, seqs, leases))
        self.count += len(seqs)

    def take(self, tag: int) -> Taken | None:
        """The one with this tag; None if there is none (any more)."""
        place = bisect_right(self._firsts, tag) - 1
        if place < 0:
            return None
        held = self._held[place]
        at = tag - held.first_tag
        taken = held.take(at, at + 1) if at < held.end else None
        if taken is not None:
            self.count -= 1
            if held.is_empty:
                del self._held[place], self._firsts[place]
        return taken

    def take_range(self, first: int, last: int) -> list[Taken]:
        """Those with neighbouring tags that are there."""
        taken: list[Taken] = []
        place = max(bisect_right(self._firsts, first) - 1, 0)
        while place < len(self._held) and self._firsts[place] <= last:
            held = self._held[place]
            part = held.take(max(first - held.first_tag, 0), min(held.end, last - held.first_tag + 1))
            if part is not None:
                taken.append(part)
                self.count -= len(part.seqs)
            if held.is_empty:
                del self._held[place], self._firsts[place]
            else:
                place += 1
        return taken

    def take_through(self, tag: int) -> list[Taken]:
        """All up to this tag."""
        taken: list[Taken] = []
        done = 0
        for held in self._held:
            if held.first_tag > tag:
                break
            part = held.take(held.start, min(held.end, tag - held.first_tag + 1))
            if part is not None:
                taken.append(part)
                self.count -= len(part.seqs)
            if not held.is_empty:
                break
            done += 1
        del self._held[:done], self._firsts[:done]
        return taken

    def take_all(self) -> list[Taken]:
        return self.take_through(self._held[-1].first_tag + self._held[-1].end) if self._held else []

    def restore(self, taken: Taken) -> None:
        """Put back what was taken: a transaction that is rolled back leaves its acknowledgements undone."""
        for tag, seq, lease in zip(taken.tags, taken.seqs, taken.leases, strict=True):
            place = bisect_right(self._firsts, tag) - 1
            if place < 0 or not self._held[place].restore(tag - self._held[place].first_tag):
                self._firsts.insert(place + 1, tag)
                self._held.insert(place + 1, _Held(taken.owner, taken.queue, tag, [seq], [lease]))
            self.count += 1

    def owned_count(self) -> int:
        """Those that came to consumers, which their prefetch counts."""
        return sum(held.end - held.start - len(held.holes) for held in self._held if held.owner is not None)

    def peek(self, tag: int | None = None) -> list[Taken]:
        """All, or the one with this tag, without taking them."""
        found: list[Taken] = []
        for held in self._held:
            places = [at for at in range(held.start, held.end) if at not in held.holes]
            if tag is not None:
                places = [at for at in places if held.first_tag + at == tag]
            if places:
                tags = [held.first_tag + at for at in places]
                leases = [held.leases[at] for at in places]
                found.append(Taken(held.owner, held.queue, tags, [held.seqs[at] for at in places], leases))
        return found
