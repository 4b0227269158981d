"""One priority of one queue: which messages are next, first in first out.

A lane is an index, not the truth: it may still name a message that has gone (the state column of the table says
so, and the entry is skipped when its turn comes), but every ready message has an entry. Eight bytes per message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from laneway.core.runs import as_array, joined, runs
from laneway.core.table import READY, Table

CHUNK_ROWS = 8192
STALE_SLACK = 4096  # so many dead entries are tolerated before a lane is rebuilt


class Lane:
    __slots__ = ("chunks", "count", "entries", "head", "returned")

    def __init__(self) -> None:
        self.chunks: list[array[int]] = []
        self.head = 0  # index of the next entry in the first chunk
        self.entries = 0  # in all chunks, from the head on
        self.returned: list[int] = []  # a heap: those that came back to their place
        self.count = 0  # ready messages of this lane: exact, kept by state.py

    def append(self, seq: int) -> None:
        if not self.chunks or len(self.chunks[-1]) >= CHUNK_ROWS:
            self.chunks.append(array("Q"))
        self.chunks[-1].append(seq)
        self.entries += 1

    def extend(self, seqs: range) -> None:
        if not self.chunks or len(self.chunks[-1]) >= CHUNK_ROWS:
            self.chunks.append(array("Q"))
        if len(seqs) > 1:
            self.chunks[-1] += as_array(seqs)
        else:
            self.chunks[-1].append(seqs.start)
        self.entries += len(seqs)

    def give_back(self, seq: int) -> None:
        heappush(self.returned, seq)

    def pass_over(self, seqs: Sequence[int], table: Table) -> None:
        """Drop the entries of messages that just left, which stand in order, if they are next."""
        last = seqs[-1]
        if (self.entries and self.chunks[0][self.head] <= last) or (self.returned and self.returned[0] <= last):
            for first, count in runs(seqs):
                self.skip(first, count, table)

    def skip(self, first: int, count: int, table: Table) -> None:
        """Drop the entries of neighbours that just left, if they are next, and the dead ones that are next then.

        A live lane gave them out itself and has nothing to drop; a replayed one would only grow without this.
        """
        end, dropped = first + count, False
        while self.entries and first <= self.chunks[0][self.head] < end:
            self._advance(bisect_left(self.chunks[0], end, self.head) - self.head)
            dropped = True
        while self.returned and first <= self.returned[0] < end:
            heappop(self.returned)
            dropped = True
        if dropped:
            self.peek(table)

    def _advance(self, count: int) -> None:
        self.head += count
        self.entries -= count
        if self.head == len(self.chunks[0]):
            del self.chunks[0]
            self.head = 0

    def pop(self, limit: int, table: Table, below: int = 0) -> Sequence[int]:
        """Take up to `limit` ready messages off the front, in order; if `below` is given, of lower numbers only."""
        if not self.returned and self.entries == self.count:
            return self._pop_plain(limit, below)
        out: list[int] = []
        last = 0
        while len(out) < limit:
            if not self.returned and self.entries == self.count - len(out):
                # Nothing came back, nothing is stale from here on.
                plain = self._pop_plain(limit - len(out), below)
                return [*out, *plain] if out else plain
            seq = self._next_entry()
            if seq == 0 or (below and seq >= below):
                break
            self._pop_entry()
            if seq != last and table.state(seq) == READY:
                out.append(seq)
                last = seq
        return out

    def _pop_plain(self, limit: int, below: int) -> Sequence[int]:
        parts: list[Sequence[int]] = []
        while self.entries and limit:
            chunk, start = self.chunks[0], self.head
            end = min(start + limit, len(chunk))
            if below and chunk[end - 1] >= below:
                end = bisect_left(chunk, below, start, end)
                if end == start:
                    break
            count, first = end - start, chunk[start]
            # They ascend, so that they are neighbours if the last is as far from the first as there are others.
            are_neighbours = chunk[end - 1] - first == count - 1
            parts.append(range(first, first + count) if are_neighbours else chunk[start:end].tolist())
            self.entries -= count
            if end == len(chunk):
                del self.chunks[0]
                end = 0
            self.head = end
            limit -= count
        return parts[0] if len(parts) == 1 else joined(parts) if parts else ()

    def _pop_entry(self) -> int:
        returned = self.returned
        if self.entries:
            first = self.chunks[0][self.head]
            if not returned or first <= returned[0]:
                self._advance(1)
                return first
        return heappop(returned) if returned else 0

    def peek(self, table: Table) -> int:
        """The next ready message, 0 if there is none; drops dead entries on the way."""
        while seq := self._next_entry():
            if table.state(seq) == READY:
                return seq
            self._pop_entry()
        return 0

    def take(self, seq: int) -> None:
        """Take the message that peek() found off the front: all its entries, as its state still says ready."""
        while self._next_entry() == seq:
            self._pop_entry()

    def _next_entry(self) -> int:
        returned = self.returned
        if self.entries:
            first = self.chunks[0][self.head]
            return first if not returned or first <= returned[0] else returned[0]
        return returned[0] if returned else 0

    def after(self, seq: int, table: Table) -> Iterator[int]:
        """Ready messages with a number above `seq`, in order, without taking them."""
        behind = sorted(s for s in self.returned if s > seq)
        position = 0
        last = seq
        for index, chunk in enumerate(self.chunks):
            start = self.head if index == 0 else 0
            if chunk[-1] <= seq:
                continue
            for entry in chunk[max(start, bisect_right(chunk, seq, start)) :]:
                while position < len(behind) and behind[position] < entry:
                    if behind[position] != last and table.state(behind[position]) == READY:
                        last = behind[position]
                        yield last
                    position += 1
                if entry != last and table.state(entry) == READY:
                    last = entry
                    yield entry
        for entry in behind[position:]:
            if entry != last and table.state(entry) == READY:
                last = entry
                yield entry

    def clear(self) -> None:
        self.chunks, self.head, self.entries, self.returned = [], 0, 0, []

    def tidy(self, table: Table) -> None:
        """Rebuild a lane of which most entries are dead."""
        if self.entries + len(self.returned) > 2 * self.count + STALE_SLACK:
            alive = array("Q", list(self.after(0, table)))
            self.chunks = [alive[i : i + CHUNK_ROWS] for i in range(0, len(alive), CHUNK_ROWS)]
            self.head, self.entries, self.returned = 0, len(alive), []
