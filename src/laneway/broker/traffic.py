"""How much goes through the queues of a partition at the moment, and which are the busiest."""

from __future__ import annotations

import asyncio
import heapq

from laneway.broker.partition import Partition
from laneway.telemetry.load import QueueLoad

WINDOW_S = 5
_LOOKED_AT_ONCE = 5_000  # queues, before others get their turn


async def traffic(partition: Partition, number: int, most: int) -> tuple[list[float], list[int], list[QueueLoad]]:
    """Messages published, delivered and acked per second, over the last seconds; how many wait and are leased; and so
    many of the busiest queues."""
    now_ms = partition.now()
    since_s = now_ms // 1000 - WINDOW_S
    totals, held = [0.0, 0.0, 0.0], [0, 0]
    busiest: list[tuple[float, int, QueueLoad]] = []
    for at, queue in enumerate(list(partition.engine.state.queues.values())):
        if at % _LOOKED_AT_ONCE == _LOOKED_AT_ONCE - 1:
            await asyncio.sleep(0)
        if not queue.vhost:
            continue
        held[0] += queue.ready
        held[1] += queue.leased
        if not queue.rates or queue.rates[-1][0] < since_s:
            continue
        rates = [queue.rate(rated, now_ms, WINDOW_S) for rated in range(3)]
        totals = [total + rate for total, rate in zip(totals, rates, strict=True)]
        if any(rates):
            found = QueueLoad(
                vhost=queue.vhost,
                name=queue.name,
                partition=number,
                waiting=queue.ready,
                leased=queue.leased,
                published_per_second=rates[0],
                delivered_per_second=rates[1],
                acked_per_second=rates[2],
            )
            if len(busiest) < most:
                heapq.heappush(busiest, (found.per_second, queue.number, found))
            elif most:
                heapq.heappushpop(busiest, (found.per_second, queue.number, found))
    return totals, held, [found for _, _, found in sorted(busiest, reverse=True)]
