"""The alerts of deploy/prometheus/laneway-alerts.yml as the server itself evaluates them, where there is no Prometheus.

Pure: it is given the loads of the server and the time, and says what fires since when.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from laneway.telemetry.histograms import WAITING_SECONDS
from laneway.telemetry.load import Choice, Loads, QueueLoad

#: The queues that are looked at: so many of the deepest and as many of the oldest.
LOOKED_AT = 100
CHOICE = Choice(rankings={"depth": LOOKED_AT, "age": LOOKED_AT})

DEEP, OLD_S, CRITICAL_OLD_S = 10_000, 300, 30
DEAD_AN_HOUR, SLOW_S, ERROR_SHARE = 100, 30, 0.01
FREE_BYTES, LAG_COMMITS = 2 << 30, 100_000
_HOUR_S, _WINDOW_S = 3600.0, 300.0

Severity = Literal["warning", "critical"]


class FiringAlert(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    severity: Severity
    labels: dict[str, str]
    summary: str
    since_ms: int  # when its condition began to hold


class _Found(msgspec.Struct, frozen=True):
    """A condition that holds now."""

    name: str
    severity: Severity
    labels: dict[str, str]
    summary: str
    for_s: float = 60.0  # so long it has to hold

    @property
    def key(self) -> tuple[Any, ...]:
        return self.name, *sorted(self.labels.items())


class _Increases:
    """How much counters rose, and when: a process that is away for a while, or began anew, makes no step."""

    def __init__(self) -> None:
        self._last: dict[Any, float] = {}
        self._sums: Counter[Any] = Counter()
        self._rows: deque[tuple[float, dict[Any, float]]] = deque()

    def note(self, whose: Any, what: Any, value: float) -> None:
        before = self._last.get((whose, what))
        self._last[whose, what] = value
        if before is not None:
            self._sums[what] += value - before if value >= before else value  # type: ignore[assignment]

    def end_round(self, now_s: float) -> None:
        self._rows.append((now_s, dict(self._sums)))
        while len(self._rows) > 1 and self._rows[1][0] <= now_s - _HOUR_S:
            self._rows.popleft()

    def within(self, what: Any, window_s: float) -> float:
        now_s = self._rows[-1][0]
        before = next(row for at_s, row in self._rows if at_s >= now_s - window_s)
        return self._sums[what] - before.get(what, 0)


class AlertWatch:
    def __init__(self) -> None:
        self._since: dict[tuple[Any, ...], float] = {}  # of conditions that hold
        self._increases = _Increases()
        self.firing: dict[tuple[Any, ...], FiringAlert] = {}

    def look(self, now_s: float, loads: Loads) -> tuple[list[FiringAlert], list[FiringAlert]]:
        """Those that fire now and did not before, and those that are over."""
        self._note(loads)
        self._increases.end_round(now_s)
        found = {one.key: one for one in self._conditions(loads)}
        self._since = {key: self._since.get(key, now_s) for key in found}
        before = self.firing
        self.firing = {
            key: FiringAlert(
                name=one.name,
                severity=one.severity,
                labels=one.labels,
                summary=one.summary,
                since_ms=int(self._since[key] * 1000),
            )
            for key, one in found.items()
            if key in before or now_s - self._since[key] >= one.for_s
        }
        fresh = [alert for key, alert in self.firing.items() if key not in before]
        return fresh, [alert for key, alert in before.items() if key not in self.firing]

    def _note(self, loads: Loads) -> None:
        note = self._increases.note
        for process in loads.processes:
            for cause in ("server", "client"):
                if process.pid is not None:
                    note(process.process, cause, sum(n for _, whose, _, n in process.errors if whose == cause))
        for one in loads.partitions:
            if one.meter is None:
                continue
            note(one.partition, "dead", one.totals.get("dead_lettered", 0))
            note(one.partition, "operations", sum(sum(counts.values()) for counts in one.meter.messages.values()))
            for protocol, buckets in one.meter.processing.items():
                for place, count in enumerate(buckets.counts):
                    note(one.partition, (protocol, place), count)

    def _conditions(self, loads: Loads) -> Iterator[_Found]:
        for queue in loads.queues:
            yield from _of_queue(queue)
        yield from self._of_work(loads)
        yield from _of_server(loads)

    def _of_work(self, loads: Loads) -> Iterator[_Found]:
        within = self._increases.within
        dead = within("dead", _HOUR_S)
        if dead > DEAD_AN_HOUR:
            yield _Found("DeadLetters", "warning", {}, f"{dead:.0f} messages became dead letters within an hour", 0)
        for protocol in {name for one in loads.partitions if one.meter is not None for name in one.meter.processing}:
            counts = [within((protocol, place), _WINDOW_S) for place in range(len(WAITING_SECONDS) + 1)]
            slow_s = quantile(0.95, counts)
            if slow_s > SLOW_S:
                text = f"Consumers over {protocol} take {slow_s:.0f} s for one message in twenty"
                yield _Found("ProcessingSlow", "warning", {"protocol": protocol}, text)
        ours = within("server", _WINDOW_S)
        asked = within("operations", _WINDOW_S) + ours + within("client", _WINDOW_S)
        if asked and ours / asked > ERROR_SHARE:
            text = f"{ours / asked:.1%} of what clients ask for is refused or fails"
            yield _Found("Errors", "critical", {}, text)


def _of_queue(q: QueueLoad) -> Iterator[_Found]:
    labels, name = {"vhost": q.vhost, "queue": q.name, "tier": q.tier}, f"{q.name} of {q.vhost}"
    age_s = q.oldest_age_s or 0.0
    if q.waiting > DEEP:
        yield _Found("QueueDeep", "warning", labels, f"Queue {name} has {q.waiting} messages waiting")
    if age_s > OLD_S:
        yield _Found("QueueOld", "warning", labels, f"The oldest message of queue {name} waits since {age_s:.0f} s")
    if q.tier == "critical" and age_s > CRITICAL_OLD_S:
        text = f"The oldest message of the critical queue {name} waits since {age_s:.0f} s"
        yield _Found("CriticalQueueOld", "critical", labels, text, 30)
    if q.waiting and not (q.consumers or q.consumers_waiting or q.delivered_per_second):
        text = f"Nobody consumes queue {name}, where {q.waiting} messages wait"
        yield _Found("QueueWithoutConsumer", "warning", labels, text)


def _of_server(loads: Loads) -> Iterator[_Found]:
    for process in loads.processes:
        if process.pid is None:
            number = str(process.process)
            text = f"Process {number} does not answer the others"
            yield _Found("ProcessDown", "critical", {"process": number}, text, 30)
    for one in loads.partitions:
        number = str(one.partition)
        labels = {"partition": number}
        if one.meter is None:
            yield _Found("PartitionWithoutLeader", "critical", labels, f"Nobody leads partition {number}", 30)
            continue
        if one.state != "ready":
            text = f"Partition {number} takes no messages: {one.state}"
            yield _Found("DiskFull", "critical", labels, text, 15)
        if one.free_bytes is not None and one.free_bytes < FREE_BYTES:
            text = f"{one.free_bytes >> 20} MiB are free on the disk of partition {number}"
            yield _Found("DiskFilling", "warning", labels, text)
        for cursor in one.cursors:
            whose = {**labels, "cursor": cursor.name}
            if cursor.lag_commits > LAG_COMMITS:
                text = f"Cursor {cursor.name} is {cursor.lag_commits} commits behind"
                yield _Found("CursorBehind", "warning", whose, text, 300)
            if cursor.is_lost:
                text = f"Cursor {cursor.name} is lost: history that its reader had not read is gone"
                yield _Found("CursorLost", "critical", whose, text, 0)


def quantile(share: float, counts: list[float]) -> float:
    """As Prometheus estimates it: evenly spread inside a bucket; of what is above all bounds, the highest bound."""
    rank, seen, lower = share * sum(counts), 0.0, 0.0
    if not rank:
        return 0.0
    for bound, count in zip(WAITING_SECONDS, counts, strict=False):
        if seen + count >= rank:
            return lower + (bound - lower) * (rank - seen) / count
        seen, lower = seen + count, bound
    return lower
