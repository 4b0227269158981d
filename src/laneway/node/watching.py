"""What a process does now and then to know how it is doing: it notes its figures, so that a page that is opened now
shows the last hour."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from laneway.telemetry.history import STEP_S, FigureHistory
from laneway.telemetry.load import Loads

log = logging.getLogger("laneway.node")

_REST = 100  # so many times as long as a look takes, nothing is looked at: with 100,000 queues it takes its time


class Watching:
    """`look`: the loads of this process, without queues by name."""

    def __init__(self, look: Callable[[], Awaitable[Loads]], now_s: Callable[[], float] = time.time) -> None:
        self._look = look
        self._now_s = now_s
        self.history = FigureHistory()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            began_s = time.thread_time()
            try:
                self.history.note(self._now_s(), await self._look())
            except Exception:
                log.exception("the figures of this process could not be noted")
            took_s = time.thread_time() - began_s
            await asyncio.sleep(max(STEP_S - self._now_s() % STEP_S, took_s * _REST) + 0.01)
