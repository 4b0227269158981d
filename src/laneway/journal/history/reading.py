"""Reading message records back: neighbours in one read, with a bounded number of open files.

Plain reads, not mappings, so that a deep backlog lives in the operating system's cache and not in our memory.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from operator import add, le
from typing import TypeVar

from laneway.core.message import open_records, record_is_intact
from laneway.errors import JournalDamaged
from laneway.journal.history.files import ReadableFiles
from laneway.journal.history.format import segment_name
from laneway.journal.history.recovery import missing
from laneway.journal.history.scan import damaged

MAX_GAP_BYTES = 16 << 10  # reading over a gap this small costs less than another call
MAX_READ_BYTES = 4 << 20
READ_AHEAD_BYTES = 16 << 20
_OFFSET = 0xFFFFFFFF

_T = TypeVar("_T")


class RecordReader:
    def __init__(self, files: ReadableFiles, folder: str, *, max_open_files: int) -> None:
        self._files = files
        self._folder = folder
        self._open = _OpenFiles(files, folder, max_open_files)
        self._last_end = 0  # location where the read before ended: the next one beginning nearby is sequential
        self._asked_until = 0  # location up to which the system was asked to read ahead

    def read(self, locations: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        """Whole records."""
        records: list[memoryview] = []
        order = _ascending(locations)
        for data, offsets, lengths, start in self._fetched(*_taken(order, locations, sizes)):
            some = [data[at : at + size] for at, size in zip(offsets, lengths, strict=True)]
            if not all(map(record_is_intact, some)):
                raise self._damaged(data, offsets, lengths, start)
            records += some
        return records if order is None else _put_back(order, records)

    def read_contents(
        self, locations: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[int], list[bytes], list[memoryview]]:
        """What is in records."""
        at_ms: list[int] = []
        props: list[bytes] = []
        bodies: list[memoryview] = []
        order = _ascending(locations)
        for data, offsets, lengths, start in self._fetched(*_taken(order, locations, sizes)):
            found = open_records(data, offsets, lengths)
            if found is None:
                raise self._damaged(data, offsets, lengths, start)
            at_ms += found[0]
            props += found[1]
            bodies += found[2]
        if order is not None:
            return _put_back(order, at_ms), _put_back(order, props), _put_back(order, bodies)
        return at_ms, props, bodies

    def forget(self, number: int) -> None:
        """Close the file of a segment that is being dropped, so that its space comes back."""
        self._open.forget(number)

    def close(self) -> None:
        self._open.close()

    def _fetched(
        self, locations: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[tuple[memoryview, list[int], Sequence[int], int]]:
        """Read after read: its bytes, where in them each record stands, how long these are, and the read's location."""
        first, count = 0, len(locations)
        while first < count:
            start = locations[first]
            after, end = self._reach(locations, sizes, first)
            data = memoryview(self._fetch(start, end - start))
            yield data, [place - start for place in locations[first:after]], sizes[first:after], start
            first = after

    def _damaged(self, data: memoryview, offsets: list[int], sizes: Sequence[int], start: int) -> JournalDamaged:
        bad = next(at for at, n in zip(offsets, sizes, strict=True) if not record_is_intact(data[at : at + n]))
        return damaged(self._path(start >> 32), (start & _OFFSET) + bad, "the message record does not check out")

    @staticmethod
    def _reach(locations: Sequence[int], sizes: Sequence[int], first: int) -> tuple[int, int]:
        """How far one read goes that begins with the record `first`: behind which record, and where it ends."""
        start, count = locations[first], len(locations)
        end = locations[-1] + sizes[-1]
        if first == 0 and end - start <= MAX_READ_BYTES and end - start - sum(sizes) <= MAX_GAP_BYTES:
            return count, max(map(add, locations, sizes))  # all of them, since all gaps together are that small
        end, after = start + sizes[first], first + 1
        while after < count:
            at = locations[after]
            stop = at + sizes[after]
            if at > end + MAX_GAP_BYTES or stop > start + MAX_READ_BYTES:
                break
            if stop > end:
                end = stop
            after += 1
        return after, end

    def _fetch(self, location: int, size: int) -> bytes:
        number, offset = location >> 32, location & _OFFSET
        try:
            file = self._open.borrow(number)
        except FileNotFoundError:
            raise missing(self._folder, number) from None
        try:
            data = self._files.read(file, size, offset)
            end = location + size
            if not 0 <= location - self._last_end <= MAX_GAP_BYTES:
                self._asked_until = 0
            elif end >= self._asked_until - READ_AHEAD_BYTES // 2:
                start = max(self._asked_until, end)  # what is before it was asked for the last time
                self._files.read_ahead(file, start & _OFFSET, end + READ_AHEAD_BYTES - start)
                self._asked_until = end + READ_AHEAD_BYTES
            self._last_end = end
        except OSError as error:
            raise damaged(self._path(number), offset, f"it cannot be read ({error})") from error
        finally:
            self._open.give_back(number)
        return data

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, segment_name(number))


def _ascending(locations: Sequence[int]) -> list[int] | None:
    """In which order to take locations so that they ascend; None if they do."""
    if all(map(le, locations, locations[1:])):
        return None
    return sorted(range(len(locations)), key=locations.__getitem__)


def _taken(
    order: list[int] | None, locations: Sequence[int], sizes: Sequence[int]
) -> tuple[Sequence[int], Sequence[int]]:
    if order is None:
        return locations, sizes
    return [locations[i] for i in order], [sizes[i] for i in order]


def _put_back(order: list[int], found: list[_T]) -> list[_T]:
    out = found[:]
    for i, one in zip(order, found, strict=True):
        out[i] = one
    return out


class _OpenFiles:
    """Segments open for reading, least recently used first. One in use by another thread is never closed."""

    def __init__(self, files: ReadableFiles, folder: str, max_open_files: int) -> None:
        self._files = files
        self._folder = folder
        self._max = max_open_files
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, list[int]] = OrderedDict()  # segment number -> [file, users]
        self._forgotten: set[int] = set()

    def borrow(self, number: int) -> int:
        with self._lock:
            entry = self._entries.get(number)
            if entry is None:
                file = self._files.open(os.path.join(self._folder, segment_name(number)))
                entry = self._entries[number] = [file, 0]
                self._close_surplus()
            else:
                self._entries.move_to_end(number)
            entry[1] += 1
            return entry[0]

    def give_back(self, number: int) -> None:
        with self._lock:
            entry = self._entries[number]
            entry[1] -= 1
            if not entry[1] and number in self._forgotten:
                self._close(number)

    def forget(self, number: int) -> None:
        with self._lock:
            entry = self._entries.get(number)
            if entry is None:
                return
            if entry[1]:
                self._forgotten.add(number)
            else:
                self._close(number)

    def close(self) -> None:
        with self._lock:
            for number in list(self._entries):
                self._close(number)

    def _close_surplus(self) -> None:
        surplus = len(self._entries) - self._max
        if surplus > 0:
            idle = [number for number, (_, users) in self._entries.items() if not users]
            for number in idle[: min(surplus, len(idle) - 1)]:  # the last idle one is the one just opened
                self._close(number)

    def _close(self, number: int) -> None:
        self._forgotten.discard(number)
        self._files.close(self._entries.pop(number)[0])
