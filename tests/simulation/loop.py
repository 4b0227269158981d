"""An event loop whose time is imagined: waiting costs nothing, and what a thread would do happens at a drawn moment.

With it the real broker runs in one thread and the same way for the same seed, down to the order of every callback.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import warnings
from asyncio import events
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable
from random import Random
from typing import Any

from .faulty_files import FaultyFiles, SimulatedCrash

START_MS = 1_800_000_000_000
MAX_TURNS = 20_000  # of the loop in one life; a busy one has a few hundred


class Clock:
    """Imagined time. It goes on over restarts; only the wall clock may be set back."""

    def __init__(self) -> None:
        self.us = 0
        self.offset_ms = START_MS
        self._latest_ms = 0
        self.set_back_ms = 0  # in all

    def wall_ms(self) -> int:
        return self.offset_ms + self.us // 1000

    def monotonic_ms(self) -> int:
        return self.us // 1000

    def latest_ms(self) -> int:
        """The latest the wall clock ever showed."""
        return max(self._latest_ms, self.wall_ms())

    def running_ms(self) -> int:
        """The time of day if nobody had set the clock back: durations go by this."""
        return self.wall_ms() + self.set_back_ms

    def advance(self, ms: int) -> None:
        self.us += ms * 1000

    def set_back(self, ms: int) -> None:
        self._latest_ms = self.latest_ms()
        self.offset_ms -= ms
        self.set_back_ms += ms


class Deadlock(AssertionError):
    """Nothing is ready and nothing is scheduled: someone waits for what will never come."""


class SimulatedLoop(BaseEventLoop):
    def __init__(self, clock: Clock, files: FaultyFiles, random: Random) -> None:
        super().__init__()
        self._clock = clock
        self._files = files
        self._random = random
        self._selector = self
        self._turns = 0
        self.errors: list[str] = []  # of callbacks and tasks that nobody waits for
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        return self._clock.us / 1e6

    def latency_s(self) -> float:
        """How long a thread takes to come to its work: mostly next to nothing, at times long."""
        drawn = self._random.random()
        return 0.0 if drawn < 0.4 else drawn * 0.004 if drawn < 0.95 else drawn * 0.1

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except SimulatedCrash:
                return  # select() ends it all
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_later(self.latency_s(), work)
        return future

    def abandon(self) -> None:
        """The process is gone, and with it all that was going on: nothing of it runs any more."""
        ended: set[asyncio.Task[Any]] = set()
        while left := asyncio.all_tasks(self) - ended:  # what ends may begin something else at the last moment
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException), warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that never came to run
                    task.get_coro().close()  # type: ignore[union-attr]
            ended |= left
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self.close()

    def _note_error(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, SimulatedCrash):
            where = context.get("task") or context.get("future") or context.get("handle")
            self.errors.append(f"{context.get('message')}: {error!r} in {where}")

    # One of several loops that share the time: whoever runs them gives each its turns (processes.py).

    def next_s(self) -> float:
        """When it has something to do: now, at the time of a timer, or never."""
        if self._ready:  # type: ignore[attr-defined]
            return self.time()
        timers = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        return timers[0].when() if timers else math.inf

    def turn(self) -> None:
        events._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            events._set_running_loop(None)

    # What BaseEventLoop asks of its selector and its subclass.

    def select(self, timeout: float | None) -> list[Any]:
        if self._files.crashed:
            raise SimulatedCrash
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise Deadlock("this goes on and on")
        if timeout is None:
            raise Deadlock("nothing is ready and nothing is scheduled")
        if timeout > 0:
            self._clock.us += math.ceil(timeout * 1e6)
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass
