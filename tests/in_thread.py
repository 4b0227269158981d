"""A server on a loop in a thread of its own, so that a test talks to it from outside, over sockets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import uvloop

T = TypeVar("T")

DEADLINE_S = 10.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until it holds; for what happens in another thread and announces itself nowhere."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.005)


class InThread:
    """Subclasses say what is started and how it ends."""

    def __init__(self, *, loop: str = "uvloop") -> None:
        self._new_loop = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
        self.ahead_ms = 0  # how far the server's clock is moved ahead
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._started = threading.Event()
        self._stop: asyncio.Event
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    async def _start(self) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        raise NotImplementedError

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            try:
                runner.run(self._main())
            except BaseException as failure:
                self._failure = failure
                self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self._start()
        self._started.set()
        await self._stop.wait()
        await self._end()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(DEADLINE_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the server did not stop"
        if self._failure is not None:
            raise self._failure

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def call(self, function: Callable[..., T], *args: object) -> T:
        """Call something on the server's loop."""

        async def called() -> T:
            return function(*args)

        return self.run(called())
