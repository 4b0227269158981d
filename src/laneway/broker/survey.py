"""What there is in a partition and how much goes through it: all queues summed, and some of them by name.

Looking at 100,000 queues takes its time, so it is done in slices, and others have their turns in between.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from operator import add

from laneway.broker.partition import Partition
from laneway.core.queue import RATED, TOTALS, Queue
from laneway.telemetry.load import Choice, CursorLoad, PartitionSurvey, QueueLoad, Ranking, StatsQuery

WINDOW_S = 5
_LOOKED_AT_ONCE = 500  # queues, before others get their turn
_MOST_CURSORS = 100

_Ranked = list[tuple[float, int]]  # how high a queue ranks, and its number


async def survey(partition: Partition, choice: Choice) -> tuple[PartitionSurvey, list[QueueLoad]]:
    """The partition as a whole, and the queues that are chosen."""
    state, now_ms = partition.engine.state, partition.now()
    totals = list(partition.queues.gone_totals)
    queues = [queue for queue in state.queues.values() if queue.vhost]  # the others are not the users'
    load = PartitionSurvey(partition=state.partition, state=str(partition.health()["state"]), queue_count=len(queues))
    ranked: dict[Ranking, _Ranked] = {ranking: [] for ranking in choice.rankings}
    names, named = choice.names, set[int]()
    async for some in _slices(queues):
        for column, sums in enumerate(zip(*[queue.totals for queue in some], strict=True)):
            totals[column] += sum(sums)
        if names is not None:
            named.update(queue.number for queue in some if names.search(f"{queue.vhost}\n{queue.name}"))
        _look(partition, some, now_ms, load, ranked)
        for ranking, most in choice.rankings.items():
            if len(ranked[ranking]) > most:
                ranked[ranking] = heapq.nlargest(most, ranked[ranking])
    load.totals = dict(zip(TOTALS, totals, strict=True))
    if len(named) > choice.most_named:
        named = set(sorted(named)[: choice.most_named])
    for found in ranked.values():
        named.update(number for _, number in found)
    chosen = [queue_load(partition, state.queues[number], now_ms) for number in named if number in state.queues]
    await _look_at_partition(partition, load)
    return load, chosen


async def _slices(queues: list[Queue]) -> AsyncIterator[list[Queue]]:
    for at in range(0, len(queues), _LOOKED_AT_ONCE):
        if at:
            await asyncio.sleep(0)
        yield queues[at : at + _LOOKED_AT_ONCE]


def _look(
    partition: Partition, queues: list[Queue], now_ms: int, load: PartitionSurvey, ranked: dict[Ranking, _Ranked]
) -> None:
    table, since_s, by_priority = partition.engine.state.table, now_ms // 1000 - WINDOW_S, load.waiting_by_priority
    for queue in queues:
        load.leased += queue.leased
        dead = len(queue.dead)
        load.dead += dead
        if dead and "dead" in ranked:
            ranked["dead"].append((dead, queue.number))
        if queue.ready or queue.delayed:
            load.waiting += queue.ready
            load.delayed += queue.delayed
            load.waiting_bytes += queue.bytes_waiting
            if "depth" in ranked:
                ranked["depth"].append((queue.ready + queue.delayed, queue.number))
        if queue.ready:
            for priority, count in queue.ready_by_priority().items():
                by_priority[priority] = by_priority.get(priority, 0) + count
            oldest_ms = queue.oldest_ms(table)
            if oldest_ms is not None:
                age_s = max(0.0, (now_ms - oldest_ms) / 1000)
                load.oldest_age_s = max(load.oldest_age_s, age_s)
                if "age" in ranked:
                    ranked["age"].append((age_s, queue.number))
        if queue.rates and queue.rates[-1][0] >= since_s:
            rates = _rates(queue, now_ms)
            load.rates = list(map(add, load.rates, rates))
            if any(rates) and "rate" in ranked:
                ranked["rate"].append((sum(rates), queue.number))


def _rates(queue: Queue, now_ms: int) -> list[float]:
    return [queue.rate(rated, now_ms, WINDOW_S) for rated in range(len(RATED))]


def queue_load(partition: Partition, queue: Queue, now_ms: int) -> QueueLoad:
    oldest_ms = queue.oldest_ms(partition.engine.state.table) if queue.ready else None
    published, delivered, acked = _rates(queue, now_ms)
    return QueueLoad(
        vhost=queue.vhost,
        name=queue.name,
        partition=partition.engine.state.partition,
        tier=queue.settings.tier,
        waiting=queue.ready,
        leased=queue.leased,
        delayed=queue.delayed,
        dead=len(queue.dead),
        dead_elsewhere=queue.dead_elsewhere,
        waiting_bytes=queue.bytes_waiting,
        oldest_age_s=None if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000),
        consumers=partition.sessions.consumer_count(queue.number),
        consumers_waiting=partition.waiting.count(queue.number),
        waiting_by_priority=queue.ready_by_priority(),
        totals=dict(zip(TOTALS, queue.totals, strict=True)),
        published_per_second=published,
        delivered_per_second=delivered,
        acked_per_second=acked,
    )


async def _look_at_partition(partition: Partition, load: PartitionSurvey) -> None:
    sessions, waiting = partition.sessions, partition.waiting
    load.consumers = sum(len(audience.members) for audience in sessions.audiences.values())
    load.consumers_waiting = waiting.total
    load.epoch = partition.engine.state.epoch
    load.cursors = [
        CursorLoad(name=one.name, lag_commits=one.lag_commits, held_bytes=one.held_bytes, is_lost=one.state == "lost")
        for one in heapq.nlargest(_MOST_CURSORS, partition.cursors.all(), lambda one: one.lag_commits)
    ]
    load.alarms = [alarm.name for alarm in partition.cursors.alarms()]
    load.meter = partition.meter.reading()
    use = await asyncio.to_thread(partition.engine.journal.disk)
    load.journal_bytes, load.free_bytes = use.journal_bytes, use.free_bytes


async def ranked(partition: Partition, query: StatsQuery) -> list[QueueLoad]:
    """A page of the queues in the order of a ranking."""
    state, now_ms = partition.engine.state, partition.now()
    best: list[tuple[float, str, str, int]] = []
    async for some in _slices([queue for queue in state.queues.values() if queue.vhost]):
        found = [
            (-_rank(partition, queue, query.ranking, now_ms), queue.vhost, queue.name, queue.number)
            for queue in some
            if query.vhost in (None, queue.vhost) and queue.name.startswith(query.prefix)
        ]
        best = heapq.nsmallest(query.limit, best + [one for one in found if query.is_behind(*one[:3])])
    return [queue_load(partition, state.queues[number], now_ms) for *_, number in best if number in state.queues]


def _rank(partition: Partition, queue: Queue, ranking: Ranking, now_ms: int) -> float:
    """As QueueLoad.rank, without the rest of it."""
    if ranking == "depth":
        return queue.ready + queue.delayed
    if ranking == "dead":
        return len(queue.dead)
    if ranking == "rate":
        is_recent = bool(queue.rates) and queue.rates[-1][0] >= now_ms // 1000 - WINDOW_S
        return sum(_rates(queue, now_ms)) if is_recent else 0.0
    oldest_ms = queue.oldest_ms(partition.engine.state.table) if queue.ready else None
    return 0.0 if oldest_ms is None else max(0.0, (now_ms - oldest_ms) / 1000)
