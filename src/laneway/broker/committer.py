"""Group commit: while one commit is being written and synced, the next one gathers. Every confirm leaves through here.

Nothing waits for a timer: batching emerges from load, and a lone message pays one sync. The blocking work happens in
one writer thread; everything else of this module runs on the loop. The crash simulator stands in a writer of its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from laneway.broker.engine import Engine
from laneway.errors import DiskFull, LanewayError
from laneway.journal.interface import Commit, Journal

log = logging.getLogger("laneway.broker")

MAX_COMMIT_BYTES = 8 * 1024 * 1024
DISK_FULL_RETRY_S = 0.25

Done = Callable[[Any], None]
OnWritten = Callable[[Commit, BaseException | None], None]


class Writer(Protocol):
    """Who makes commits durable, one after the other, and reports each on the loop."""

    def put(self, commit: Commit) -> None: ...

    async def close(self) -> None:
        """Return when all that was put has been dealt with."""


class WriterThread:
    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, on_written: OnWritten) -> None:
        self._journal = journal
        self._loop = loop
        self._on_written = on_written
        self._work: SimpleQueue[Commit | None] = SimpleQueue()
        self.put = self._work.put
        self._thread = threading.Thread(target=self._write_forever, name="laneway-writer", daemon=True)
        self._thread.start()

    def _write_forever(self) -> None:
        while (commit := self._work.get()) is not None:
            error = write_or_mark(self._journal, commit)
            if commit.position or error is not None:
                self._loop.call_soon_threadsafe(self._on_written, commit, error)

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
    ) -> None:
        self._engine = engine
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
        self._writing_next_seq = 0
        self._flush_at_turn_end = False
        self.durable_next_seq = engine.state.table.next_seq  # messages below this number are durable
        self.stuck = False  # the disk is so full that not even acks can be written
        self.failed: BaseException | None = None
        self._closing: asyncio.Future[None] | None = None
        self._awaiting: set[asyncio.Future[None]] = set()  # of durable(): they must hear of a failure too
        self._writer = new_writer(engine.journal, loop, self._written)

    def when_durable(self, done: Done, result: Any) -> None:
        """Call done(result) once everything staged so far is durable."""
        self._waiting.append((done, result))
        self.touch()

    def touch(self) -> None:
        """Something was staged: write it at the end of this turn of the loop, or as soon as the writer is free."""
        if not self._flush_at_turn_end and self._writing is None:
            self._flush_at_turn_end = True
            self._loop.call_soon(self._flush)
        elif self._journal.staged_bytes() > MAX_COMMIT_BYTES and self._writing is None:
            self._flush()

    def _flush(self) -> None:
        if self._is_busy() or self.failed is not None:
            self._flush_at_turn_end = False
            return
        self._flush_at_turn_end = True  # what is staged by the next line needs no flush of its own
        self._before_seal()
        self._flush_at_turn_end = False
        if self._is_busy():  # so much was staged that it is being written already
            return
        commit = self._journal.seal()
        if commit is None:
            told, self._waiting = self._waiting, []
            self._tell(told)  # nothing was staged since the last durable commit
            return
        self._writing = commit
        self._writing_next_seq = self._table.next_seq
        self._told, self._waiting = self._waiting, []
        self._on_sealed(commit)
        self._writer.put(commit)

    def _is_busy(self) -> bool:
        return self._writing is not None

    def _written(self, commit: Commit, error: BaseException | None) -> None:
        if error is not None:
            self._not_written(commit, error)
            return
        self.stuck = False
        told, self._told = self._told, []
        self.durable_next_seq = self._writing_next_seq
        self._writing = None
        self._on_durable(commit)
        self._flush()  # before telling: the writer works while callers are answered
        if self._writing is None:
            self._mark_later()
        self._tell(told)

    def _not_written(self, commit: Commit, error: BaseException) -> None:
        if isinstance(error, DiskFull) and commit.position:
            if not self.stuck:
                log.error("the disk is full: nothing can be written, not even acks: %s", error)
            self.stuck = True
            self._end_closing()
            self._loop.call_later(DISK_FULL_RETRY_S, self._writer.put, commit)
            return
        if isinstance(error, DiskFull):
            return  # a mark is a convenience
        self.failed = error
        log.critical("the journal cannot be written, nothing more is confirmed: %s", error)
        self._end_closing()
        for future in self._awaiting:
            if not future.done():
                future.set_exception(self._failure())
        self._on_failed(error)

    def _mark_later(self) -> None:
        """Once nothing was written for a while, leave a mark: under load the next commit proves as much."""
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(self._idle_s, self._mark)

    def _mark(self) -> None:
        self._idle_timer = None
        if self._writing is None and self.failed is None:
            self._writer.put(_MARK)

    @staticmethod
    def _tell(told: list[tuple[Done, Any]]) -> None:
        for done, result in told:
            try:
                done(result)
            except Exception:
                log.exception("a caller failed to take its answer")

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
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._writer.close()

    def _end_closing(self, _: None = None) -> None:
        if self._closing is not None and not self._closing.done():
            self._closing.set_result(None)


_MARK = Commit(0, 0, 0, None)
