"""What the processes of a server have to do, and what waits in it: said as values, for whoever shows it."""

from __future__ import annotations

import asyncio
import heapq
import re
import time
from collections import deque
from collections.abc import Callable
from operator import methodcaller
from typing import Literal

import msgspec

from laneway.telemetry.meter import MeterReading

_LOOK_S = 1.0
_LOOKS = 5  # the share is that of so many seconds

#: What queues are ranked by: messages that wait, how long the oldest of them does, messages a second, dead letters.
Ranking = Literal["depth", "age", "rate", "dead"]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Which queues are shown by name: so many that rank highest, and those whose virtual host, a line end, and name
    fit a regular expression."""

    rankings: dict[Ranking, int] = {}
    pattern: str | None = None
    most_named: int = 1_000  # by the pattern, in each partition

    @property
    def names(self) -> re.Pattern[str] | None:
        return re.compile(self.pattern) if self.pattern is not None else None


class StatsQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of queues in the order of a ranking, the highest first; those that rank alike in the order of names."""

    ranking: Ranking = "depth"
    limit: int = 100
    vhost: str | None = None
    prefix: str = ""
    after: tuple[float, str, str] | None = None  # where the page before ended: minus the rank, virtual host, name

    def is_behind(self, minus_rank: float, vhost: str, name: str) -> bool:
        return self.after is None or (minus_rank, vhost, name) > self.after


class CursorLoad(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    lag_commits: int
    held_bytes: int
    is_lost: bool


class RaisedAlarm(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a partition that somebody should look at."""

    partition: int
    name: str
    level: str
    message: str
    since_ms: int


class PartitionSurvey(msgspec.Struct, kw_only=True):
    """A partition: all its queues together."""

    partition: int
    state: str
    epoch: int = 0
    queue_count: int = 0
    waiting: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    waiting_bytes: int = 0
    waiting_by_priority: dict[int, int] = {}
    oldest_age_s: float = 0.0
    consumers: int = 0  # that messages are pushed to
    consumers_waiting: int = 0  # for an answer
    rates: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])  # published, delivered, acked a second
    totals: dict[str, int] = {}  # since the process began, of queues that are gone too
    journal_bytes: int = 0
    free_bytes: int | None = 0
    cursors: list[CursorLoad] = []
    alarms: list[str] = []
    meter: MeterReading | None = None


class ProcessLoad(msgspec.Struct, frozen=True, kw_only=True):
    process: int
    pid: int | None  # None: it does not answer
    state: str
    partitions: list[int]  # that it leads
    uptime_s: float = 0.0
    cpu_share: float = 0.0  # of one core
    cpu_s: float = 0.0
    resident_bytes: int = 0
    memory_limit_bytes: int = 0  # above it, publishers wait
    connection_count: int = 0
    connections: dict[str, int] = {}  # by protocol
    channel_count: int = 0
    waiting: int = 0  # messages in its partitions that could be had now
    leased: int = 0
    published_per_second: float = 0.0  # into its partitions, whichever process took them
    delivered_per_second: float = 0.0
    acked_per_second: float = 0.0
    slow_turns: int = 0
    slow_turns_s: float = 0.0
    longest_turn_ms: int = 0
    errors: list[tuple[str, str, str, int]] = []  # protocol, whose mistake, code, how often


class QueueLoad(msgspec.Struct, frozen=True, kw_only=True):
    vhost: str
    name: str
    partition: int
    tier: str
    waiting: int
    leased: int
    delayed: int
    dead: int
    dead_elsewhere: int
    waiting_bytes: int
    oldest_age_s: float | None
    consumers: int
    consumers_waiting: int
    waiting_by_priority: dict[int, int]
    totals: dict[str, int]
    published_per_second: float
    delivered_per_second: float
    acked_per_second: float

    @property
    def per_second(self) -> float:
        return self.published_per_second + self.delivered_per_second + self.acked_per_second

    def place(self, ranking: Ranking) -> tuple[float, str, str]:
        """Where it stands in the order of a ranking."""
        return -self.rank(ranking), self.vhost, self.name

    def rank(self, ranking: Ranking) -> float:
        if ranking == "depth":
            return self.waiting + self.delayed
        if ranking == "age":
            return self.oldest_age_s or 0.0
        return self.dead if ranking == "dead" else self.per_second


class Loads(msgspec.Struct, kw_only=True):
    """Of a server: each process, each partition, and the queues that were chosen."""

    processes: list[ProcessLoad] = []
    partitions: list[PartitionSurvey] = []
    queues: list[QueueLoad] = []


def chosen(queues: list[QueueLoad], choice: Choice) -> list[QueueLoad]:
    """Of queues that several partitions have chosen, those of the whole server; the busiest first."""
    names, kept = choice.names, dict[tuple[str, str], QueueLoad]()
    if names is not None:
        fitting = [queue for queue in queues if names.search(f"{queue.vhost}\n{queue.name}")]
        kept |= {(queue.vhost, queue.name): queue for queue in fitting[: choice.most_named]}
    for ranking, most in choice.rankings.items():
        rank = methodcaller("rank", ranking)
        kept |= {(queue.vhost, queue.name): queue for queue in heapq.nlargest(most, filter(rank, queues), rank)}
    return sorted(kept.values(), key=lambda queue: (-queue.per_second, queue.vhost, queue.name))


def pattern_of(names: str | None) -> str | None:
    """What is said in a setting about queues, as the pattern of a Choice: in any virtual host."""
    given = [name.strip() for name in (names or "").split(",") if name.strip()]
    if not given:
        return None
    wild = {"*": ".*", "?": "."}
    one_of = "|".join("".join(wild.get(sign) or re.escape(sign) for sign in name) for name in given)
    return rf"(?s)\n(?:{one_of})\Z"


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
    def used_s(self) -> float:
        return self._used_s()

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
