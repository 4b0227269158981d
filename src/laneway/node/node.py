"""One process of a server: partitions that it leads, a broker that reaches them all, front ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from laneway.access import Access
from laneway.broker.documents import Documents
from laneway.broker.interface import Broker
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.survey import ranked, survey
from laneway.cluster.edge import Edge, PartitionBroker
from laneway.cluster.following import FollowedTopology, image_of
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.replies import ReplyLinks
from laneway.cluster.serving import PartitionServer
from laneway.cluster.tidying import Tidying
from laneway.config import Address, Config
from laneway.errors import StartError
from laneway.first_admin import FirstAdmin
from laneway.frontends.doors.directory import Directory, LocalDirectory
from laneway.frontends.doors.door import Door
from laneway.frontends.rest.answers import ReloadAnswer
from laneway.logs import set_up_logging
from laneway.node.alerting import Alerting
from laneway.node.doors import FrontEnds, first_account_advice, refuse_open_doors
from laneway.node.folder import partition_socket, replies_socket
from laneway.node.leading import build_partition, start_partition, wall_clock_ms
from laneway.node.shares import broker_limits, history_limits, shares_of
from laneway.node.siblings import (
    ServerDirectory,
    Siblings,
    history_everywhere,
    loads_everywhere,
    reload_everywhere,
    stats_everywhere,
)
from laneway.node.storage import storage_of, wanted_count
from laneway.node.watching import Watching
from laneway.reloading import Reloading, described
from laneway.resources.memory import MemoryWatch, resident_bytes
from laneway.telemetry.alerts import FiringAlert
from laneway.telemetry.floods import FloodLog
from laneway.telemetry.history import HistoryRow
from laneway.telemetry.load import Choice, CpuMeter, Loads, ProcessLoad, QueueLoad, RaisedAlarm, StatsQuery
from laneway.telemetry.turns import LoopTurns, TurnWatch

log = logging.getLogger("laneway.node")


class Seat(msgspec.Struct, frozen=True):
    """Which one of a server's processes this is, and where it reaches the others."""

    process: int = 0
    process_count: int = 1
    sockets: Path = Path()
    ports: dict[str, int] = {}  # that all of them listen at, by setting; else those of the settings

    @property
    def is_alone(self) -> bool:
        return self.process_count == 1

    def led(self, partition_count: int) -> range:
        """The partitions that this process leads."""
        return range(self.process, partition_count, self.process_count)


async def _as_it_is(broker: LocalBroker) -> Broker:
    return broker


class Node:
    """A broker on a folder with its front ends. `async with Node(config) as node:` for tests and embedding.

    `wrap` puts something between the broker and the front ends, `read_config` reads the settings again on a reload."""

    def __init__(
        self,
        config: Config,
        *,
        wrap: Callable[[LocalBroker], Awaitable[Broker]] = _as_it_is,
        read_config: Callable[[], Config] | None = None,
        first_admin: FirstAdmin | None = None,
        seat: Seat | None = None,
    ) -> None:
        self.reloading = Reloading(config, read_config)
        self._first_admin = first_admin
        self.seat = seat = seat or Seat()
        self.failed: asyncio.Event = asyncio.Event()
        self.turns = LoopTurns()
        self._watch = TurnWatch(self.turns)
        self.floods = FloodLog()
        self._storage = storage = storage_of(config)
        self._unlock = storage.lock() if seat.is_alone else lambda: None
        self.partition_count = count = wanted_count(storage, config.partitions, seat.process_count)
        self._shares = shares = shares_of(config, seat.process_count, len(seat.led(count)))
        self._front = FrontEnds(config, shares, self.floods)
        self.intake = self._front.intake
        self._memory = MemoryWatch(shares.memory_bytes, self._memory_changed)
        limits = broker_limits(config, count)
        # Of all partitions; a server of one process and one partition has no need of it.
        self._model = None if seat.is_alone and count == 1 else FollowedTopology(count)
        self._limits = limits
        self.partitions: dict[int, Partition] = {}  # that are led here
        for number in seat.led(count):
            journal = storage.open(number, shares)
            if seat.is_alone and not number:  # from here on no other server does so
                storage.make_partitions(count)
            self.partitions[number] = build_partition(
                config,
                journal,
                storage.staging_folder(number),
                number=number,
                model=self._model,
                shares=shares,
                limits=limits,
                turns=self.turns,
                on_failed=self.failed.set,
            )
        self._cpu = CpuMeter()
        self._watching = Watching(lambda: self._load(Choice()))
        # Of several processes the first does it for all.
        self._alerting = None if seat.process else Alerting(self._find_loads, config.alert_webhook, config.alert_form)
        self._own_connections = LocalDirectory(wall_clock_ms, process=seat.process, process_count=seat.process_count)
        self._directory: Directory = self._own_connections  # of the whole server
        self._siblings: Siblings | None = None
        self._replies: ReplyLinks | None = None
        if not seat.is_alone:
            self._join()
        self._servers: dict[int, PartitionServer] = {}
        self._remotes: dict[int, RemoteBroker] = {}
        self._wrap = wrap
        self.broker: Broker
        self.access: Access | None = None

    @property
    def config(self) -> Config:
        """The settings in force."""
        return self.reloading.running

    @property
    def addresses(self) -> dict[str, Address]:
        """Where it listens, by setting."""
        return self._front.addresses

    @property
    def tls(self) -> Door | None:
        return self._front.tls

    async def open(self) -> Access:
        """Recover what is in the folder, reach the other partitions, and listen nowhere."""
        led = {number: await self._lead(number) for number in self.partitions}
        self.broker = await (self._wrap(led[0]) if self._model is None else self._reach_all(led, self._model))
        if self._siblings is not None:
            await self._siblings.start()
        self.access = Access(Documents(self.broker), now_ms=wall_clock_ms, floods=self.floods)
        if self._first_admin is not None and 0 in self.partitions and await self._first_admin.create(self.access):
            log.info("created the first account, %r with the role admin, and deleted guest", self._first_admin.name)
        return self.access

    async def _lead(self, number: int) -> LocalBroker:
        """Recover a partition; have it tell the model what it has, and serve it to the other processes."""
        await start_partition(self.partitions[number], self._storage.name(number))
        broker = LocalBroker(self.partitions[number])
        if self._model is not None:
            feed = self._model.feeds[number]
            feed.begin(image_of(broker.model))
            broker.follow(feed.apply)
            Tidying(broker, self._model, number)
            policies = self.partitions[number].policies
            self._model.on_document(policies.document)
            self._model.on_heard(lambda _, policies=policies: policies.changed())  # type: ignore[misc]
        if not self.seat.is_alone:
            server = self._servers[number] = PartitionServer(broker)
            path = partition_socket(self.seat.sockets, number)
            Path(path).unlink(missing_ok=True)  # of a process that was killed
            await server.start(path)
        return broker

    async def _reach_all(self, led: dict[int, LocalBroker], model: FollowedTopology) -> Broker:
        """Wait until the other processes serve what they lead."""
        for number in range(self.partition_count):
            if number not in led:
                path = partition_socket(self.seat.sockets, number)
                self._remotes[number] = RemoteBroker(path, self.seat.process, wall_clock_ms, model.feeds[number])
        others = [remote.start() for remote in self._remotes.values()]
        if self._replies is not None:
            others.append(self._replies.start())
        await asyncio.gather(*others)
        brokers: dict[int, PartitionBroker] = {**led, **self._remotes}
        edge = Edge(
            [brokers[number] for number in range(self.partition_count)],
            model,
            limits=self._limits,
            process=self.seat.process,
            led=list(led),
            barriers={number: server.barrier.wait for number, server in self._servers.items()},
        )
        for partition in self.partitions.values():
            partition.crossing.start(edge.to_partition)
            partition.moves.go(self.seat.process, self.seat.process_count)
        return edge

    async def start(self) -> None:
        await self.open()
        await self.listen()

    async def listen(self) -> None:
        assert self.access is not None
        access, config = self.access, self.config
        refuse_open_doors(config, access)
        if access.guest_only and config.trusted_proxies.networks:
            log.warning(
                "guest is the only account and does not come through trusted_proxies, so nobody can log in there. %s",
                first_account_advice(config),
            )
        self._front.build(
            self.broker,
            access,
            self._own_connections,
            directory=self._directory,
            reload=self._reload,
            find_loads=self._find_loads,
            find_stats=self._find_stats,
            find_history=self._find_history,
            find_alarms=self._find_alarms,
            find_firing=self._find_firing,
            memory_bytes=self._shares.memory_bytes * self.seat.process_count,
            turns=self.turns,
            reply_post=self._replies,
        )
        await self._front.listen(self.seat.ports, is_shared=not self.seat.is_alone)
        self._front.follow(self.reloading)
        on, number = self.reloading.on, None if self.seat.is_alone else self.seat.process
        on(("log_level", "log_format"), lambda c: partial(set_up_logging, c.log_level, c.log_format, number))
        on(("history_limit_bytes", "history_seconds"), lambda c: partial(self._keep_history, c))
        on(("shutdown_grace_seconds",), lambda c: lambda: None)  # is looked up when it is needed
        # What recovery built stays: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        self._watch.start()
        self._memory.start()
        self._cpu.start()
        self._watching.start()
        if self._alerting is not None:
            self._alerting.start()

    def _keep_history(self, config: Config) -> None:
        for partition in self.partitions.values():
            partition.cursors.keep(*history_limits(config, self.partition_count))

    def _memory_changed(self, is_short: bool) -> None:
        self.intake.is_memory_short = is_short
        for partition in self.partitions.values():
            partition.set_memory_short(is_short)

    # What others ask about this process, and this one about others

    def _join(self) -> None:
        """Be one of the server's processes to the others."""
        own = self._own_connections
        answerers = {
            **ServerDirectory.answerers(own),
            "reload": self._reload_here,
            "load": self._load_for_another,
            "stats": self._stats_for_another,
            "history": self._history,
            "alarms": self._alarms,
            "firing": self._firing,
        }
        seat = self.seat
        self._siblings = Siblings(seat.sockets, seat.process, seat.process_count, answerers)
        self._directory = ServerDirectory(own, self._siblings)
        addresses = [replies_socket(seat.sockets, number) for number in range(seat.process_count)]
        self._replies = ReplyLinks(seat.process, addresses)

    async def _reload_here(self) -> ReloadAnswer:
        done = self.reloading.reload()
        log.info("reloaded: %s", described(done))
        return ReloadAnswer(changed=done.changed, read_again=done.read_again, needs_restart=done.needs_restart)

    async def _reload(self) -> ReloadAnswer:
        return await (
            self._reload_here() if self._siblings is None else reload_everywhere(self._reload_here, self._siblings)
        )

    async def _load_for_another(self, choice: dict[str, object]) -> Loads:
        return await self._load(msgspec.convert(choice, Choice))

    async def _load(self, choice: Choice) -> Loads:
        found = Loads()
        for partition in self.partitions.values():
            its_load, queues = await survey(partition, choice)
            found.partitions.append(its_load)
            found.queues += queues
        published, delivered, acked = map(sum, zip(*[one.rates for one in found.partitions], (0, 0, 0), strict=True))
        connections = await self._own_connections.counts()
        load = ProcessLoad(
            process=self.seat.process,
            pid=os.getpid(),
            state=str(self.broker.health()["state"]),
            partitions=list(self.partitions),
            uptime_s=self._cpu.uptime_s,
            cpu_share=self._cpu.share(),
            cpu_s=self._cpu.used_s,
            resident_bytes=resident_bytes(),
            memory_limit_bytes=self._shares.memory_bytes,
            connection_count=sum(connections.values()),
            connections={str(protocol): count for protocol, count in connections.items()},
            channel_count=self._front.channel_count,
            waiting=sum(one.waiting for one in found.partitions),
            leased=sum(one.leased for one in found.partitions),
            published_per_second=published,
            delivered_per_second=delivered,
            acked_per_second=acked,
            slow_turns=self.turns.slow_count,
            slow_turns_s=self.turns.slow_ms / 1000,
            longest_turn_ms=self.turns.longest_ms,
            errors=[(*what, count) for what, count in self._front.errors.counts.items()],
        )
        found.processes.append(load)
        return found

    async def _find_loads(self, choice: Choice) -> Loads:
        return await loads_everywhere(await self._load(choice), self._siblings, choice, self.partition_count)

    async def _stats_for_another(self, query: dict[str, object]) -> list[QueueLoad]:
        return await self._stats(msgspec.convert(query, StatsQuery))

    async def _stats(self, query: StatsQuery) -> list[QueueLoad]:
        return [load for partition in self.partitions.values() for load in await ranked(partition, query)]

    async def _find_stats(self, query: StatsQuery) -> list[QueueLoad]:
        return await stats_everywhere(await self._stats(query), self._siblings, query)

    async def _history(self) -> list[HistoryRow]:
        return list(self._watching.history.rows)

    async def _find_history(self) -> list[HistoryRow]:
        return await history_everywhere(await self._history(), self._siblings)

    async def _alarms(self) -> list[RaisedAlarm]:
        return [
            RaisedAlarm(partition=number, name=a.name, level=a.level, message=a.message, since_ms=a.since_ms)
            for number, partition in self.partitions.items()
            for a in partition.cursors.alarms()
        ]

    async def _find_alarms(self) -> list[RaisedAlarm]:
        theirs = await self._siblings.answers(list[RaisedAlarm], "alarms") if self._siblings is not None else []
        return [*await self._alarms(), *(alarm for some in theirs for alarm in some)]

    async def _firing(self) -> list[FiringAlert]:
        return self._alerting.firing() if self._alerting is not None else []

    async def _find_firing(self) -> list[FiringAlert]:
        if self._siblings is None or self._alerting is not None:
            return await self._firing()
        return await self._siblings.ask(0, list[FiringAlert], "firing")

    async def stop_listening(self) -> None:
        """Take nobody any more, and let those who are there finish."""
        self._watch.stop()
        self._memory.stop()
        self._cpu.stop()
        await self._watching.stop()
        if self._alerting is not None:
            await self._alerting.stop()
        await self._front.stop(int(self.config.shutdown_grace_seconds * 1000))
        self.floods.flush(is_last=True)

    async def close(self) -> None:
        """No process asks any more: make everything durable."""
        if self._siblings is not None:
            await self._siblings.stop()
        if self._replies is not None:
            await self._replies.stop()
        for remote in self._remotes.values():
            await remote.stop()
        for server in self._servers.values():
            await server.stop()
        for partition in self.partitions.values():
            await partition.stop(self.config.shutdown_grace_seconds)
        self._storage.close()
        self._unlock()

    async def stop(self) -> None:
        await self.stop_listening()
        await self.close()

    async def __aenter__(self) -> Node:
        try:
            await self.start()
        except StartError:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


@asynccontextmanager
async def offline(config: Config) -> AsyncIterator[Access]:
    """The accounts in a folder that no server runs on; JournalLocked if one does."""
    node = Node(msgspec.structs.replace(config, tls_cert=None, tls_key=None, tls_ca=None, https=None))
    access = await node.open()
    try:
        yield access
    finally:
        await node.stop()
