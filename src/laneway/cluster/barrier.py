"""Holds answers back until every process has the changes of the topology that came before them.

A process that is gone is not waited for, as it begins anew with all there is. Nor is one that has said nothing for a
while: what stands still keeps nobody waiting for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable

PATIENCE_S = 2.0


class Barrier:
    def __init__(self) -> None:
        self._told = 0  # changes so far
        self._seen: dict[Hashable, int] = {}  # by each process that follows, how many of them it has
        self._waiting: deque[tuple[int, float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """A change is on its way to everybody."""
        self._told += 1

    def joined(self, follower: Hashable) -> None:
        """It has everything up to now."""
        self._seen[follower] = self._told

    def left(self, follower: Hashable) -> None:
        if self._seen.pop(follower, None) is not None:
            self._let_pass()

    def seen(self, follower: Hashable, count: int) -> None:
        """It has so many more changes."""
        self._seen[follower] += count
        if self._waiting:
            self._let_pass()

    def wait(self, call: Callable[[], None]) -> None:
        """Call when every process has all changes that there were up to now."""
        if not self._waiting and all(seen >= self._told for seen in self._seen.values()):
            call()
            return
        loop = asyncio.get_running_loop()
        self._waiting.append((self._told, loop.time() + PATIENCE_S, call))
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE_S, self._lose_patience)

    def _let_pass(self) -> None:
        least = min(self._seen.values(), default=self._told)
        while self._waiting and self._waiting[0][0] <= least:
            self._waiting.popleft()[2]()

    def _lose_patience(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and self._waiting[0][1] <= loop.time():
            self._waiting.popleft()[2]()
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][1], self._lose_patience)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._waiting.popleft()[2]()
