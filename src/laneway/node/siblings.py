"""The processes of one server as one: connections of them all, their loads, and settings that are reloaded in all.

Each process answers for itself over a socket (cluster/calls.py), and asks the others when somebody asks it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from laneway.cluster.calls import CallServer, call
from laneway.cluster.parcels import SESSION_BITS
from laneway.errors import LanewayError, Unavailable
from laneway.frontends.doors.directory import (
    ChannelInfo,
    ConnectionInfo,
    ConnectionProtocol,
    ConsumerName,
    LocalDirectory,
    Ref,
)
from laneway.frontends.rest.answers import ReloadAnswer
from laneway.node.folder import process_socket
from laneway.telemetry.history import HistoryRow, joined_rows
from laneway.telemetry.load import Choice, Loads, PartitionSurvey, ProcessLoad, QueueLoad, StatsQuery, chosen

log = logging.getLogger("laneway.node")

_T = TypeVar("_T")


class Siblings:
    """`answerers`: what this process answers the others with, by the name of the question."""

    def __init__(
        self, folder: Path, process: int, process_count: int, answerers: Mapping[str, Callable[..., Awaitable[Any]]]
    ) -> None:
        self._folder = folder
        self._process = process
        self._others = [number for number in range(process_count) if number != process]
        self._server = CallServer({name: _as_builtins(answerer) for name, answerer in answerers.items()})

    async def start(self) -> None:
        await self._server.start(process_socket(self._folder, self._process))

    async def stop(self) -> None:
        await self._server.stop()

    async def ask(self, process: int, kind: type[_T], name: str, *arguments: Any) -> _T:
        return msgspec.convert(await call(process_socket(self._folder, process), name, *arguments), kind)

    async def ask_all(self, kind: type[_T], name: str, *arguments: Any) -> dict[int, _T | LanewayError]:
        """What each of the others answers, or why not."""
        asked = (self.ask(process, kind, name, *arguments) for process in self._others)
        found: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        for answer in found:
            if isinstance(answer, BaseException) and not isinstance(answer, LanewayError):
                raise answer
        return dict(zip(self._others, found, strict=True))

    async def answers(self, kind: type[_T], name: str, *arguments: Any) -> list[_T]:
        """Of those that answer."""
        found = await self.ask_all(kind, name, *arguments)
        return [answer for answer in found.values() if not isinstance(answer, LanewayError)]


def _as_builtins(answerer: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def answer(*arguments: Any) -> Any:
        return msgspec.to_builtins(await answerer(*arguments))

    return answer


class ServerDirectory:
    """Who is connected to any process of the server. A process that does not answer has no connections."""

    def __init__(self, own: LocalDirectory, siblings: Siblings) -> None:
        self._own = own
        self._siblings = siblings

    @staticmethod
    def answerers(own: LocalDirectory) -> dict[str, Callable[..., Awaitable[Any]]]:
        """What a process answers about its own connections."""

        async def connections(
            account: str | None, protocol: ConnectionProtocol | None, after: int, limit: int
        ) -> list[tuple[int, ConnectionInfo]]:
            return await own.connections(account=account, protocol=protocol, after=after, limit=limit)

        async def connection(connection_id: str, account: str | None) -> ConnectionInfo | None:
            return await own.connection(connection_id, account=account)

        return {
            "counts": own.counts,
            "connections": connections,
            "connection": connection,
            "channels": own.channels,
            "consumer_names": own.consumer_names,
            "close": own.close,
            "close_channel": own.close_channel,
            "cancel_consumer": own.cancel_consumer,
        }

    async def counts(self) -> dict[ConnectionProtocol, int]:
        counts = await self._own.counts()
        for theirs in await self._siblings.answers(dict[ConnectionProtocol, int], "counts"):
            for protocol, count in theirs.items():
                counts[protocol] += count
        return counts

    async def connections(
        self, *, account: str | None, protocol: ConnectionProtocol | None, after: int, limit: int
    ) -> list[tuple[int, ConnectionInfo]]:
        own = await self._own.connections(account=account, protocol=protocol, after=after, limit=limit)
        kind = list[tuple[int, ConnectionInfo]]
        theirs = await self._siblings.answers(kind, "connections", account, protocol, after, limit)
        return sorted([*own, *(found for page in theirs for found in page)], key=lambda found: found[0])[:limit]

    async def connection(self, connection_id: str, *, account: str | None) -> ConnectionInfo | None:
        own = await self._own.connection(connection_id, account=account)
        if own is not None:
            return own
        theirs = await self._siblings.answers(_Found, "connection", connection_id, account)
        return next((found for found in theirs if found is not None), None)

    async def channels(self, connection_id: str) -> Sequence[ChannelInfo]:
        own = await self._own.channels(connection_id)
        if own:
            return own
        theirs = await self._siblings.answers(list[ChannelInfo], "channels", connection_id)
        return next((found for found in theirs if found), ())

    async def consumer_names(self, refs: Sequence[Ref]) -> list[ConsumerName | None]:
        """A session tells in its number which process it is of."""
        found = await self._own.consumer_names(refs)
        missing: dict[int, list[int]] = {}
        for at, name in enumerate(found):
            if name is None:
                missing.setdefault(refs[at][0] >> SESSION_BITS, []).append(at)
        for process, places in missing.items():
            asked = [refs[at] for at in places]
            try:
                names = await self._siblings.ask(process, list[ConsumerName | None], "consumer_names", asked)
            except Unavailable:
                continue
            for at, name in zip(places, names, strict=True):
                found[at] = name
        return found

    async def close(self, connection_id: str, why: str) -> bool:
        return await self._own.close(connection_id, why) or await self._elsewhere("close", connection_id, why)

    async def close_channel(self, connection_id: str, channel: int, why: str) -> bool:
        own = await self._own.close_channel(connection_id, channel, why)
        return own or await self._elsewhere("close_channel", connection_id, channel, why)

    async def cancel_consumer(self, connection_id: str, number: int, why: str) -> bool:
        own = await self._own.cancel_consumer(connection_id, number, why)
        return own or await self._elsewhere("cancel_consumer", connection_id, number, why)

    async def _elsewhere(self, name: str, *arguments: Any) -> bool:
        return any(await self._siblings.answers(bool, name, *arguments))


_Found: Any = ConnectionInfo | None


async def reload_everywhere(own: Callable[[], Awaitable[ReloadAnswer]], siblings: Siblings) -> ReloadAnswer:
    """Here first: what is refused here is in force nowhere."""
    done = await own()
    theirs = await siblings.ask_all(ReloadAnswer, "reload")
    refusals = {process: answer for process, answer in theirs.items() if isinstance(answer, LanewayError)}
    for process, refusal in refusals.items():
        log.error("process %d has not reloaded its settings: %s", process, refusal)
    if refusals:
        which = ", ".join(map(str, refusals))
        raise Unavailable(f"not every process has reloaded: of {which} the log says why; try again in a moment")
    return done


async def loads_everywhere(own: Loads, siblings: Siblings | None, choice: Choice, partition_count: int) -> Loads:
    """Of every process and partition, and the queues that are chosen among them all."""
    theirs = await siblings.ask_all(Loads, "load", msgspec.to_builtins(choice)) if siblings is not None else {}
    process_count = len(theirs) + 1
    found = Loads(processes=list(own.processes), partitions=list(own.partitions), queues=list(own.queues))
    for process, answer in theirs.items():
        if isinstance(answer, LanewayError):
            led = list(range(process, partition_count, process_count))
            found.processes.append(ProcessLoad(process=process, pid=None, state="unreachable", partitions=led))
            found.partitions += [PartitionSurvey(partition=number, state="unreachable") for number in led]
        else:
            found.processes += answer.processes
            found.partitions += answer.partitions
            found.queues += answer.queues
    found.processes.sort(key=lambda one: one.process)
    found.partitions.sort(key=lambda one: one.partition)
    found.queues = chosen(found.queues, choice)
    return found


async def stats_everywhere(own: list[QueueLoad], siblings: Siblings | None, query: StatsQuery) -> list[QueueLoad]:
    """A page of the queues of the whole server. Those of a process that does not answer are left out."""
    found = list(own)
    if siblings is not None:
        for theirs in await siblings.answers(list[QueueLoad], "stats", msgspec.to_builtins(query)):
            found += theirs
    return sorted(found, key=lambda one: one.place(query.ranking))[: query.limit]


async def history_everywhere(own: list[HistoryRow], siblings: Siblings | None) -> list[HistoryRow]:
    theirs = await siblings.answers(list[HistoryRow], "history") if siblings is not None else []
    return joined_rows([own, *theirs])
