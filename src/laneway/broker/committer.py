"""Group commit: while one commit is being written and synced, the next one gathers. Every confirm leaves through here.

Nothing waits for a timer: batching emerges from load, and a lone message pays one sync. The blocking work happens in
one writer thread; everything else of this module runs on the loop. The crash simulator stands in a writer of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from laneway.broker.engine import Engine
from laneway.errors import DiskFull, JournalAway, LanewayError, OutOfDescriptors
from laneway.journal.interface import Commit, Journal
from laneway.telemetry.meter import Meter

log = logging.getLogger("laneway.broker")

MAX_COMMIT_BYTES = 8 * 1024 * 1024
NOT_NOW = (DiskFull, OutOfDescriptors, JournalAway)
NOT_NOW_RETRY_S = 0.25
SPOT_BYTES = 64 * 1024
SPOT_S = 0.0005
LATER_S = 0.01
CLOCK_S = 0.001  # timers are no finer than that
GATHER_S = 0.001  # how long a commit is held open at most while more keeps coming

Done = Callable[[Any], None]
OnWritten = Callable[[Commit, BaseException | None], None]


class Writer(Protocol):
    """Who makes commits durable, one after the other, and reports each on the loop."""

    def put(self, commit: Commit) -> None: ...

    async def close(self) -> None:
        """Return when all that was put has been dealt with."""


class WriterThread:
    """A thread that writes, or the loop itself: if the journal allows it, a small commit to a disk that has been quick
    is written on the spot, because handing it over and back costs more time than the disk takes. After a slow write
    the thread has them all for a while, the longer the slower it was; then the loop tries again."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, on_written: OnWritten) -> None:
        self._journal = journal
        self._loop = loop
        self._on_written = on_written
        self._usual_s = 0.0  # how long a write on the spot took lately
        self._work: SimpleQueue[Commit | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write_forever, name="laneway-writer", daemon=True)
        self._thread.start()

    def put(self, commit: Commit) -> None:
        if not self._journal.writes_on_loop or not 0 < commit.byte_count <= SPOT_BYTES:
            self._work.put(commit)
        elif self._usual_s > SPOT_S:
            self._usual_s *= 0.97  # its own writes tell nothing: they wait for their turn, not for the disk
            self._work.put(commit)
        else:
            started_s = time.perf_counter()
            error = write_or_mark(self._journal, commit)
            took_s = time.perf_counter() - started_s
            self._usual_s += (took_s - self._usual_s) / 4
            self._on_written(commit, error)

    def _write_forever(self) -> None:
        while (commit := self._work.get()) is not None:
            error = write_or_mark(self._journal, commit)
            if commit.position or error is not None:
                self._loop.call_soon_threadsafe(self._on_written, commit, error)
            del commit  # its messages may be large, and the next commit may be long in coming

    async def close(self) -> None:
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)


def write_or_mark(journal: Journal, commit: Commit) -> BaseException | None:
    """What went wrong, if anything did: it is handed to the loop, which decides."""
    try:
        if commit.position:
            journal.write(commit)
        else:
            journal.mark()
    except BaseException as trouble:
        return trouble
    return None


NewWriter = Callable[[Journal, asyncio.AbstractEventLoop, OnWritten], Writer]


class Committer:
    def __init__(
        self,
        engine: Engine,
        loop: asyncio.AbstractEventLoop,
        *,
        before_seal: Callable[[], None],
        on_sealed: Callable[[Commit], None],
        on_durable: Callable[[Commit], None],
        on_failed: Callable[[BaseException], None],
        idle_s: float = 0.02,
        new_writer: NewWriter = WriterThread,
        meter: Meter | None = None,
    ) -> None:
        self._engine = engine
        self._meter = meter or Meter()
        self._now_s = self._meter.now_s
        self._journal = engine.journal
        self._table = engine.state.table
        self._loop = loop
        self._before_seal = before_seal
        self._on_sealed = on_sealed
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._idle_s = idle_s  # so long after the last commit a mark is left, which also syncs what is to be synced
        self._idle_timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[Done, Any]] = []  # to be told when the commit now gathering is durable
        self._told: list[tuple[Done, Any]] = []  # … the commit now being written
        self._writing: Commit | None = None
        self._last_position = 0  # of the last commit sealed
        self._writing_next_seq = 0
        self._is_planned = False  # a flush is on its way
        self._planned_s = 0.0
        # As the meter counts time: when the first request of the commit that is gathering came, or a little before; the
        # same of the one being written, and when that was sealed.
        self._began_s = self._writing_began_s = self._sealed_s = 0.0
        self.touches = 0  # how often something was to be written; a turn of the loop that added none is a quiet one
        self._sealed_touches = 0  # at the last seal: were there more since, somebody wants the next commit
        self._later: asyncio.TimerHandle | None = None
        self._later_s: float | None = None  # since when something waits for whichever commit comes next
        self.durable_next_seq = engine.state.table.next_seq  # messages below this number are durable
        self.stuck: LanewayError | None = None  # why nothing can be written for the moment, not even acks
        self.failed: BaseException | None = None
        self._closing: asyncio.Future[None] | None = None
        self._awaiting: set[asyncio.Future[None]] = set()  # of durable(): they must hear of a failure too
        self._is_telling = False
        self._after: list[Callable[[], None]] = []  # what those who are told want to do when all have been told
        self._last: list[Callable[[], None]] = []  # … and what can wait until that is done too
        engine.on_broken = self._give_up
        self._writer = new_writer(engine.journal, loop, self._written)

    def when_durable(self, done: Done, result: Any) -> None:
        """Call done(result) once everything staged so far is durable."""
        self._waiting.append((done, result))
        self.touch()

    def touch(self) -> None:
        """Something is to be written: soon, or when the writer is free."""
        self.touches += 1
        if not self._is_planned and self._writing is None:
            self._plan(self.touches)

    def touch_later(self) -> None:
        """Something is to be written that nobody waits for: with the next commit, or after a while on its own."""
        if self._later_s is None:
            self._later_s = self._loop.time()
            if self._later is None:
                self._later = self._loop.call_later(LATER_S, self._touch_now)

    def _touch_now(self) -> None:
        """Unless what the timer was set for has long gone with another commit, and what waits now came after it."""
        self._later = None
        if self._later_s is not None:
            left_s = self._later_s + LATER_S - self._loop.time()
            if left_s > CLOCK_S:
                self._later = self._loop.call_later(left_s, self._touch_now)
            else:
                self.touch()

    def _plan(self, touches: int) -> None:
        self._is_planned = True
        self._planned_s = self._loop.time()
        self._began_s = self._now_s()
        self._loop.call_soon(self._flush_when_quiet, touches)

    def _flush_when_quiet(self, touches: int) -> None:
        """Seal as soon as a turn of the loop brought nothing new. A commit costs as much as some ten requests do,
        whatever is in it, so those that are about to arrive are taken along; a lone one does not wait at all."""
        is_quiet = touches == self.touches or self._loop.time() - self._planned_s > GATHER_S
        if is_quiet or self._journal.staged_bytes() > MAX_COMMIT_BYTES:
            self._flush()
        else:
            self._loop.call_soon(self._flush_when_quiet, self.touches)

    def _flush(self) -> None:
        if self._is_busy() or self._has_failed() or not self._is_wanted():
            self._is_planned = False
            return
        try:
            self._before_seal()  # while this is planned, so that what it stages plans nothing more
        except Exception as trouble:
            self._give_up(trouble)
        self._is_planned = False
        if self._has_failed():
            return
        self._sealed_touches = self.touches
        self._later_s = None
        commit = self._journal.seal()
        if commit is None:
            told, self._waiting = self._waiting, []
            self._mark_later()
            self._tell(told)  # nothing was staged since the last durable commit
            return
        self._writing = commit
        self._last_position = commit.position
        self._writing_next_seq = self._table.next_seq
        self._writing_began_s, self._sealed_s = self._began_s, self._now_s()
        self._told, self._waiting = self._waiting, []
        self._on_sealed(commit)
        self._writer.put(commit)

    def _is_busy(self) -> bool:
        return self._writing is not None

    def _is_wanted(self) -> bool:
        """If nobody waits for what is staged, it stays for whichever commit comes next: one of its own would only be
        in the way of that."""
        if self.touches != self._sealed_touches:
            return True
        if self._journal.staged_bytes():
            self.touch_later()
        else:
            self._mark_later()
        return False

    def _has_failed(self) -> bool:
        return self.failed is not None

    def _written(self, commit: Commit, error: BaseException | None) -> None:
        if error is not None:
            self._not_written(commit, error)
            return
        self.stuck = None
        told, self._told = self._told, []
        self.durable_next_seq = self._writing_next_seq
        self._writing = None
        if self._sealed_s >= self._meter.commit_due_s:
            self._meter.committed(commit.byte_count, self._writing_began_s, self._sealed_s)
        self._on_durable(commit)
        self._plan(-1)  # at least one turn from now: those who are told may have more to say
        if self.touches != self._sealed_touches:
            self._began_s = self._sealed_s  # something came while the commit was being written
        self._tell(told)

    def _not_written(self, commit: Commit, error: BaseException) -> None:
        if isinstance(error, NOT_NOW) and commit.position:
            if self.stuck is None:
                log.error("nothing can be written for the moment, not even acks: %s", error)
            self.stuck = error
            self._end_closing()
            self._loop.call_later(NOT_NOW_RETRY_S, self._writer.put, commit)
            return
        if isinstance(error, NOT_NOW):
            return  # a mark is a convenience
        self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Fail-stop: nothing more is written, so what is staged and not written is as if it had never been asked."""
        if self.failed is not None:
            return
        self.failed = error
        known = isinstance(error, LanewayError)
        log.critical("nothing more is written or confirmed: %s", error, exc_info=None if known else error)
        self._end_closing()
        for future in self._awaiting:
            if not future.done():
                future.set_exception(self._failure())
        self._on_failed(error)

    def _mark_later(self) -> None:
        """Once nothing was written for a while, leave a mark: under load the next commit proves as much."""
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._idle_s, self._mark, self._last_position)

    def _mark(self, position: int) -> None:
        self._idle_timer = None
        if self._writing is None and self.failed is None:
            if position == self._last_position:
                self._writer.put(_MARK)
            else:
                self._mark_later()

    def soon(self, call: Callable[[], None]) -> None:
        """In the next turn of the loop; in this one if a commit has just become durable, once all have been told."""
        if self._is_telling:
            self._after.append(call)
        else:
            self._loop.call_soon(call)

    def last(self, call: Callable[[], None]) -> None:
        """As soon() does, but behind all that: confirms are on their way before their messages are handed out."""
        if self._is_telling:
            self._last.append(call)
        else:
            self._loop.call_soon(call)

    def _tell(self, told: list[tuple[Done, Any]]) -> None:
        self._is_telling = True
        for done, result in told:
            try:
                done(result)
            except Exception:
                log.exception("a caller failed to take its answer")
        while self._after or self._last:
            calls, self._after = self._after, []
            if not calls:
                calls, self._last = self._last, []
            for call in calls:
                try:
                    call()
                except Exception:
                    log.exception("a caller failed to go on")
        self._is_telling = False

    async def durable(self) -> None:
        """Return once everything staged so far is durable."""
        future: asyncio.Future[None] = self._loop.create_future()

        def resolve(_: None) -> None:
            if not future.done():
                future.set_result(None)

        if self.failed is not None:
            raise self._failure()
        self.when_durable(resolve, None)
        self._awaiting.add(future)
        try:
            await future
        finally:
            self._awaiting.discard(future)

    def _failure(self) -> Exception:
        return self.failed if isinstance(self.failed, LanewayError) else RuntimeError(str(self.failed))

    async def close(self) -> None:
        """Write what is staged, if it can be written, and end the writer. Nothing is staged from now on: whoever is
        told something while the last commit is written may want more, and that would be in no commit."""
        self._engine.closed = True
        if self.failed is None and not self.stuck:
            self._closing = self._loop.create_future()
            self.when_durable(self._end_closing, None)
            await self._closing
        for timer in (self._idle_timer, self._later):
            if timer is not None:
                timer.cancel()
        await self._writer.close()

    def _end_closing(self, _: None = None) -> None:
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)


_MARK = Commit(0, 0, 0, None)
