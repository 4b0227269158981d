"""Statistics over HTTP: of many queues in one call, and the main figures of the last hour."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import MONITOR, OPERATOR, Access
from laneway.broker.interface import Broker
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import Answer, Time, encode
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.processes import RANKINGS
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.wire import PageOptions, QueueRanking
from laneway.telemetry.history import FIGURES, STEP_S, HistoryRow
from laneway.telemetry.load import QueueLoad, StatsQuery

_PAGE = 100
_LOOKED_AT = 1_000  # queues at once, for an account that may not see all of them
_MOST_LOOKS = 10  # for one answer

FindStats = Callable[[StatsQuery], Awaitable[list[QueueLoad]]]
FindHistory = Callable[[], Awaitable[list[HistoryRow]]]


async def no_stats(query: StatsQuery) -> list[QueueLoad]:
    """Of a server that is no node."""
    return []


async def no_history() -> list[HistoryRow]:
    return []


class StatsOptions(PageOptions, forbid_unknown_fields=True, kw_only=True):
    sort: QueueRanking | UnsetType = UNSET
    vhost: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    prefix: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET


class QueueStatsAnswer(Answer):
    queue_name: str
    vhost: str
    partition: int
    tier: str
    approximate_message_count: int
    waiting_count: int
    delayed_count: int
    in_flight_count: int
    dlq_count: int
    waiting_bytes: int
    oldest_message_age_seconds: float | None
    messages_by_priority: dict[str, int]
    subscriber_count: int
    consumers_waiting: int
    published_per_second: float
    delivered_per_second: float
    acked_per_second: float
    totals: dict[str, int]


class ManyStatsAnswer(Answer):
    queues: list[QueueStatsAnswer]
    next_cursor: str | None


class HistoryAnswer(Answer):
    """times: when each row was noted, the oldest first. figures: by name, one number for each of the times."""

    step_seconds: int
    times: list[Time]
    figures: dict[str, list[float]]


class StatisticsApi:
    def __init__(
        self, broker: Broker, access: Access, times: Timestamps, find_stats: FindStats, find_history: FindHistory
    ) -> None:
        self._broker = broker
        self._access = access
        self._times = times
        self._find_stats = find_stats
        self._find_history = find_history

    @ApiRoute("GET", "/stats", options=StatsOptions, answers={200: ManyStatsAnswer}, refusals=(404,))
    async def stats_of_queues(self, call: Call) -> Reply:
        """Counts, ages and rates of many queues, the highest first: by depth, age, rate or dead letters.

        Those whose counts the caller may not see are passed over."""
        options: StatsOptions = call.head.plan.options(StatsOptions)
        if options.vhost is not UNSET:
            self._access.check_may_enter(call.account, options.vhost)
            self._broker.topology.check_vhost(options.vhost)
        limit = options.limit or _PAGE
        query = StatsQuery(
            ranking=RANKINGS[options.sort or "depth"],
            limit=limit + 1,
            vhost=options.vhost or None,
            prefix=options.prefix or "",
            after=None if options.cursor is UNSET else decode_cursor(options.cursor, tuple[float, str, str]),
        )
        shown: list[QueueLoad] = []
        after = query.after
        for _ in range(_MOST_LOOKS):
            page = await self._find_stats(msgspec.structs.replace(query, after=after))
            shown += [one for one in page if self._access.allowed(call.account, one.vhost, one.name, "stats")]
            after = page[-1].place(query.ranking) if len(page) == query.limit else None
            if len(shown) > limit or after is None:
                break
            query = msgspec.structs.replace(query, limit=_LOOKED_AT)
        if len(shown) > limit:
            shown, after = shown[:limit], shown[limit - 1].place(query.ranking)
        next_cursor = encode_cursor(after) if after is not None else None
        return Reply(200, encode(ManyStatsAnswer(queues=list(map(_queue, shown)), next_cursor=next_cursor)))

    @ApiRoute("GET", "/stats/history", answers={200: HistoryAnswer})
    async def stats_history(self, call: Call) -> Reply:
        """The main figures of the whole server, of the last hour.

        Takes the role monitor or operator."""
        self._access.check_role(call.account, MONITOR, OPERATOR)
        rows = await self._find_history()
        answer = HistoryAnswer(
            step_seconds=STEP_S,
            times=[self._times.text(row.at_s * 1000) for row in rows],
            figures={name: [row.figures[place] for row in rows] for place, name in enumerate(FIGURES)},
        )
        return Reply(200, encode(answer))


def _queue(load: QueueLoad) -> QueueStatsAnswer:
    return QueueStatsAnswer(
        queue_name=load.name,
        vhost=load.vhost,
        partition=load.partition,
        tier=load.tier,
        approximate_message_count=load.waiting + load.delayed,
        waiting_count=load.waiting,
        delayed_count=load.delayed,
        in_flight_count=load.leased,
        dlq_count=load.dead,
        waiting_bytes=load.waiting_bytes,
        oldest_message_age_seconds=load.oldest_age_s,
        messages_by_priority={str(priority): count for priority, count in load.waiting_by_priority.items()},
        subscriber_count=load.consumers,
        consumers_waiting=load.consumers_waiting,
        published_per_second=load.published_per_second,
        delivered_per_second=load.delivered_per_second,
        acked_per_second=load.acked_per_second,
        totals=load.totals,
    )
