"""What a process of the server has to do: said as values, for whoever shows it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

import msgspec

_LOOK_S = 1.0
_LOOKS = 5  # the share is that of so many seconds


class ProcessLoad(msgspec.Struct, frozen=True, kw_only=True):
    process: int
    pid: int | None  # None: it does not answer
    state: str
    partitions: list[int]  # that it leads
    uptime_s: float = 0.0
    cpu_share: float = 0.0  # of one core
    resident_bytes: int = 0
    connection_count: int = 0
    waiting: int = 0  # messages in its partitions that could be had now
    leased: int = 0
    published_per_second: float = 0.0  # into its partitions, whichever process took them
    delivered_per_second: float = 0.0
    acked_per_second: float = 0.0
    slow_turns: int = 0
    longest_turn_ms: int = 0


class QueueLoad(msgspec.Struct, frozen=True, kw_only=True):
    vhost: str
    name: str
    partition: int
    waiting: int
    leased: int
    published_per_second: float
    delivered_per_second: float
    acked_per_second: float

    @property
    def per_second(self) -> float:
        return self.published_per_second + self.delivered_per_second + self.acked_per_second


class CpuMeter:
    """How much of a core this process uses."""

    def __init__(
        self, now_s: Callable[[], float] = time.monotonic, used_s: Callable[[], float] = time.process_time
    ) -> None:
        self._now_s = now_s
        self._used_s = used_s
        self._began_s = now_s()
        self._looks = deque([(now_s(), used_s())], _LOOKS)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def uptime_s(self) -> float:
        return self._now_s() - self._began_s

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_again(self) -> None:
        self.look()
        self.start()

    def look(self) -> None:
        self._looks.append((self._now_s(), self._used_s()))

    def share(self) -> float:
        since_s, used_s = self._looks[0]
        return (self._used_s() - used_s) / max(self._now_s() - since_s, 0.001)
