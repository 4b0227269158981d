"""Reading messages back from the journal without blocking the loop: a thread of its own reads, the loop goes on."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from laneway.broker.engine import LARGE_BYTES, Columns, Engine, filled
from laneway.core.deliveries import Deliveries
from laneway.core.events import Leased
from laneway.core.queue import Queue
from laneway.errors import JournalAway

AWAY_RETRY_S = 0.25

log = logging.getLogger("laneway.broker")

Then = Callable[[Deliveries], None]

#: Bodies of more than LARGE_BYTES that are on their way to consumers take so much memory together, unless it is one
#: alone; the others stay on the disk until some have left.
MOST_LARGE_BYTES = 512 * 1024 * 1024


class Reader(Protocol):
    def read(self, queue: Queue, leased: Leased, then: Then) -> None:
        """Read what was leased, then call `then` with it on the loop."""

    def columns(self, seqs: Sequence[int], then: Callable[[Columns], None]) -> None:
        """Call `then` with the contents of messages: at once if they are in memory, else when they have been read."""

    async def close(self) -> None:
        """Return when nothing is being read any more, and all that was read has been handed out."""


NewReader = Callable[[Engine, asyncio.AbstractEventLoop], Reader]


class _Large(bytearray):
    """A large body, which all who get it share; it goes with the last view of it."""

    at_ms: int
    props: bytes


class _LargeRead(NamedTuple):
    places: list[tuple[int, int]]  # location and size of the large ones among what is read
    read: Callable[[], None]


class ReaderThread:
    """Reads in a thread: the system call and the check of each record's checksum happen there."""

    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, most_large_bytes: int = MOST_LARGE_BYTES
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._pool = ThreadPoolExecutor(1, "laneway-reader")
        self._is_closing = threading.Event()
        self._most_large_bytes = most_large_bytes
        self._large_bytes = 0  # of large bodies that are being read, or that somebody holds
        self._large: WeakValueDictionary[int, _Large] = WeakValueDictionary()  # by the location of their records
        self._waiting: deque[_LargeRead] = deque()  # for some of them to leave

    def read(self, queue: Queue, leased: Leased, then: Then) -> None:
        outline = self._engine.outline(queue, leased)  # the state may say something else when they have been read
        self._read(leased.seqs, lambda columns: self._done(queue, leased, outline, columns, then))

    def columns(self, seqs: Sequence[int], then: Callable[[Columns], None]) -> None:
        kept = self._engine.kept(seqs)
        if kept is not None:
            then(kept)
        else:
            self._read(seqs, lambda columns: then(columns or self._again(seqs, None)))

    def _read(self, seqs: Sequence[int], done: Callable[[Columns | None], None]) -> None:
        """`done` is called with None if something could not be read."""
        kept = [self._engine.kept((seq,)) for seq in seqs]
        missing = [i for i, content in enumerate(kept) if content is None]
        locations, sizes = self._engine.locations([seqs[i] for i in missing])

        def read() -> None:
            columns = None
            try:
                columns = self._columns(locations, sizes)
                if columns is not None and len(missing) < len(kept):
                    columns = _filled_in(kept, missing, columns)
            except Exception:  # as the file went with the last of its messages: the loop knows more
                log.info("messages could not be read back at once", exc_info=True)
            self._loop.call_soon_threadsafe(done, columns)

        large = [(at, size) for at, size in zip(locations, sizes, strict=True) if size > LARGE_BYTES]
        if large:
            self._waiting.append(_LargeRead(large, read))
            self._read_large()
        else:
            self._pool.submit(read)

    def _columns(self, locations: Sequence[int], sizes: Sequence[int]) -> Columns | None:
        """In the thread. A large body that somebody holds is not read again: all who get it share it."""
        if max(sizes, default=0) <= LARGE_BYTES:
            return self._read_patiently(locations, sizes)
        parts: list[Columns] = []
        for location, size in zip(locations, sizes, strict=True):
            found = self._large.get(location)
            if found is not None:
                parts.append(([found.at_ms], [found.props], [memoryview(found)]))
                continue
            part = self._read_patiently([location], [size])
            if part is None:
                return None
            if size > LARGE_BYTES:
                (at_ms,), (props,), (body,) = part
                assert body is not None
                held = self._large[location] = _Large(body)
                held.at_ms, held.props = at_ms, props
                part = [at_ms], [props], [memoryview(held)]
            parts.append(part)
        return tuple([column[0] for column in columns] for columns in zip(*parts, strict=True))  # type: ignore[return-value]

    def _read_large(self) -> None:
        """Begin the reads of large bodies that there is room for, in order."""
        while self._waiting:
            places, read = self._waiting[0]
            new = {at: size for at, size in places if at not in self._large}
            if self._large_bytes and self._large_bytes + sum(new.values()) > self._most_large_bytes:
                return
            self._waiting.popleft()
            self._large_bytes += sum(new.values())
            self._pool.submit(partial(self._read_and_watch, new, read))

    def _read_and_watch(self, new: dict[int, int], read: Callable[[], None]) -> None:
        """In the thread: what was taken for them counts until nobody holds them any more."""
        before = {at: held for at in new if (held := self._large.get(at)) is not None}  # read since, for another one
        read()
        for at, size in new.items():
            held = self._large.get(at) if at not in before else None
            if held is None:
                self._loop.call_soon_threadsafe(self._left, size)
            else:
                weakref.finalize(held, self._left_from_anywhere, size).atexit = False

    def _left_from_anywhere(self, size: int) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._left, size)

    def _left(self, size: int) -> None:
        self._large_bytes -= size
        self._read_large()

    def _read_patiently(self, locations: Sequence[int], sizes: Sequence[int]) -> Columns | None:
        """Waits while what holds the journal is away: it is this thread that waits, and those who read."""
        while True:
            try:
                return self._engine.read_columns(locations, sizes)
            except JournalAway:
                if self._is_closing.wait(AWAY_RETRY_S):
                    raise

    def _done(self, queue: Queue, leased: Leased, outline: Deliveries, columns: Columns | None, then: Then) -> None:
        seqs, left = leased.seqs, self._engine.left_of(queue, leased)
        try:
            if columns is None:  # something is damaged, has moved, or is gone: look at each record by itself
                columns = self._again(seqs, left)
        except Exception:
            log.exception("messages could not be read back; their leases will expire")
            columns = _nothing(len(seqs))
        if left is not None:  # settled meanwhile: nobody gets a message whose end was confirmed
            columns = *columns[:2], [body if is_left else None for body, is_left in zip(columns[2], left, strict=True)]
        then(filled(outline, columns))

    def _again(self, seqs: Sequence[int], left: list[bool] | None) -> Columns:
        if left is None:
            return self._engine.contents(seqs)
        at_ms, props, bodies = _nothing(len(seqs))
        for i in [i for i, is_left in enumerate(left) if is_left]:
            (at_ms[i],), (props[i],), (bodies[i],) = self._engine.contents((seqs[i],))
        return at_ms, props, bodies

    async def close(self) -> None:
        self._is_closing.set()
        self._waiting.clear()
        await asyncio.to_thread(self._pool.shutdown)  # what was read is on the loop by then, before whoever waits here


def _filled_in(kept: list[Columns | None], missing: list[int], read: Columns) -> Columns:
    """The contents of all messages, from those that were in memory and those that were read."""
    for at, i in enumerate(missing):
        kept[i] = ([read[0][at]], [read[1][at]], [read[2][at]])
    return tuple([column[0] for column in columns] for columns in zip(*kept, strict=True))  # type: ignore[return-value]


def _nothing(count: int) -> Columns:
    return [0] * count, [b""] * count, [None] * count


class InlineReader:
    """Reads on the spot: for whoever wants everything to happen in one order."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine

    def read(self, queue: Queue, leased: Leased, then: Then) -> None:
        then(self._engine.deliveries(queue, leased))

    def columns(self, seqs: Sequence[int], then: Callable[[Columns], None]) -> None:
        then(self._engine.contents(seqs))

    async def close(self) -> None:
        pass
