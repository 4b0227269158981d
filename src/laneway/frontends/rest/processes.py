"""The processes of the server over HTTP: what each has to do, and which queues are the busiest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import UNSET

from laneway.access import MONITOR, OPERATOR, Access
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest import wire as w
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.telemetry.load import Choice, Loads, PartitionSurvey, ProcessLoad, QueueLoad, Ranking

_QUEUES = 10

RANKINGS: dict[str, Ranking] = {"depth": "depth", "age": "age", "rate": "rate", "dead_letters": "dead"}

#: Of the whole server, with the queues that are chosen.
FindLoads = Callable[[Choice], Awaitable[Loads]]


async def no_loads(choice: Choice) -> Loads:
    """Of a server that is no node."""
    return Loads()


class ProcessesApi:
    def __init__(self, access: Access, find_loads: FindLoads) -> None:
        self._access = access
        self._find_loads = find_loads

    @ApiRoute("GET", "/processes", options=w.ProcessOptions, answers={200: a.ProcessesAnswer})
    async def list_processes(self, call: Call) -> Reply:
        """The processes of the server and its partitions, what each has to do, and the busiest queues.

        Takes the role monitor or operator."""
        self._access.check_role(call.account, MONITOR, OPERATOR)
        options: w.ProcessOptions = call.head.plan.options(w.ProcessOptions)
        most = _QUEUES if options.queues is UNSET else options.queues
        ranking = RANKINGS[options.sort or "rate"]
        loads = await self._find_loads(Choice(rankings={ranking: most}))
        leaders = {number: one.process for one in loads.processes for number in one.partitions}
        answer = a.ProcessesAnswer(
            processes=list(map(_process, loads.processes)),
            partitions=[_partition(one, leaders.get(one.partition, 0)) for one in loads.partitions],
            busiest_queues=[_queue(one) for one in sorted(loads.queues, key=lambda one: one.place(ranking))],
        )
        return Reply(200, a.encode(answer))


def _process(load: ProcessLoad) -> a.ProcessAnswer:
    return a.ProcessAnswer(
        process=load.process,
        pid=load.pid,
        state=load.state,
        partitions=load.partitions,
        uptime_seconds=round(load.uptime_s, 1),
        cpu_share=round(load.cpu_share, 3),
        resident_bytes=load.resident_bytes,
        connection_count=load.connection_count,
        published_per_second=load.published_per_second,
        delivered_per_second=load.delivered_per_second,
        acked_per_second=load.acked_per_second,
        slow_turns=load.slow_turns,
        longest_turn_ms=load.longest_turn_ms,
    )


def _partition(load: PartitionSurvey, process: int) -> a.PartitionAnswer:
    published, delivered, acked = load.rates
    return a.PartitionAnswer(
        partition=load.partition,
        process=process,
        state=load.state,
        queue_count=load.queue_count,
        waiting=load.waiting,
        leased=load.leased,
        delayed=load.delayed,
        dead=load.dead,
        oldest_message_age_seconds=load.oldest_age_s,
        consumer_count=load.consumers + load.consumers_waiting,
        journal_bytes=load.journal_bytes,
        published_per_second=published,
        delivered_per_second=delivered,
        acked_per_second=acked,
    )


def _queue(load: QueueLoad) -> a.BusyQueueAnswer:
    return a.BusyQueueAnswer(
        queue_name=load.name,
        vhost=load.vhost,
        partition=load.partition,
        waiting=load.waiting,
        leased=load.leased,
        delayed=load.delayed,
        dead=load.dead,
        oldest_message_age_seconds=load.oldest_age_s,
        consumer_count=load.consumers + load.consumers_waiting,
        published_per_second=load.published_per_second,
        delivered_per_second=load.delivered_per_second,
        acked_per_second=load.acked_per_second,
    )
