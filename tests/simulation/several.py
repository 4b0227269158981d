"""One seed of a server whose partitions are led by a process each. Any of them crashes at any moment and comes back of
its own accord, while the others go on; the links between them are lost and made again.

all start ─▶ what is there, in all of them together, is looked at ─▶ steps, crashes, restarts … ─▶ all are down ─▶ …
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from laneway.broker import interface as i
from laneway.cluster.edge import Edge
from laneway.cluster.following import FollowedTopology, image_of
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.cluster.tidying import Tidying
from laneway.core.invariants import check_invariants
from laneway.core.outbox import decoded_parcel
from laneway.core.state import HIDDEN
from laneway.core.table import LEASED

from . import small
from .crossing import COUNT, QUEUES, CrossingWorkload, key_of
from .crossing_ledger import CrossingLedger
from .faulty_files import SimulatedCrash
from .loop import SimulatedLoop
from .network import Network
from .node import Node
from .processes import Process
from .simulator import Life, Simulation

JOIN_S = 20.0  # who does not reach the others by then goes down again


def _path(partition: int) -> str:
    return f"/sockets/{partition}"


class SeveralNode(Node):
    """A process that leads one partition, and reaches those of the others."""

    model: FollowedTopology
    edge: Edge

    async def join(self) -> None:
        own = self.engine.state.partition
        self.model.feeds[own].begin(image_of(self.broker.model))
        self.broker.follow(self.model.feeds[own].apply)
        Tidying(self.broker, self.model, own)
        self._server = PartitionServer(self.broker)
        await self._server.start(_path(own))
        self._links = dict.fromkeys(range(COUNT), 0)
        self._remotes = {
            other: RemoteBroker(_path(other), own, self.broker.now, self.model.feeds[other])
            for other in range(COUNT)
            if other != own
        }
        for other, remote in self._remotes.items():
            self._count_links(other, remote)
        await asyncio.gather(*(remote.start() for remote in self._remotes.values()))
        brokers: list[Any] = [self._remotes.get(number, self.broker) for number in range(COUNT)]
        self.edge = Edge(
            brokers,
            self.model,
            limits=self.broker.limits,
            process=own,
            led=[own],
            barriers={own: self._server.barrier.wait},
        )
        self.partition.crossing.start(self.edge.to_partition)
        self.partition.moves.go(own, COUNT)

    def _count_links(self, other: int, remote: RemoteBroker) -> None:
        lost = remote.link_lost

        def link_lost(link: Any) -> None:
            self._links[other] += 1
            lost(link)

        remote.link_lost = link_lost  # type: ignore[method-assign]

    def link_count(self, partition: int) -> int:
        """How many links to a partition were lost: what was delivered over one ends with it."""
        return self._links[partition]

    async def stop(self) -> None:
        for remote in self._remotes.values():
            await remote.stop()
        await self._server.stop()
        await self.partition.stop()
        await asyncio.sleep(0.1)  # who waited for others hears of it


class Contents:
    """What one partition had when it had started."""

    def __init__(self, node: Node, ledger: CrossingLedger) -> None:
        state = node.engine.state
        self.received = dict(state.received)
        self.keys = {known for known, _ in state.keys.items()}
        self.names = {queue.number: queue.name for queue in state.queues.values() if queue.vhost != HIDDEN}
        outboxes = {queue.number: receiver for receiver, queue in state.outboxes.items()}
        self.messages: dict[int, tuple[bytes, int]] = {}  # key, and its lease or 0, by number
        self.entries: list[tuple[int, int, Any]] = []  # number, receiver, and a key or a parcel
        latest: dict[tuple[str, tuple[int, int]], int] = {}
        seqs = node.seqs()
        for seq, glimpse in zip(seqs, node.engine.glimpses(seqs), strict=True):
            assert glimpse is not None, f"the record of message {seq} cannot be read"
            slab, at = state.table.slabs[seq >> small.SLAB_BITS], seq & small.SLAB_MASK
            queue, story = slab.queue[at], state.stories.get(seq)
            if queue in outboxes:
                what = decoded_parcel(glimpse.body) if story is None else key_of("", glimpse.body)
                self.entries.append((seq, outboxes[queue], what))
                continue
            key = key_of(self.names[queue], glimpse.body)
            self.messages[seq] = key, slab.lease[at] if slab.state[at] == LEASED else 0
            copy = ledger.copies.get(key)
            if copy is not None and copy.line is not None and story is None:
                line = self.names[queue], copy.line
                assert copy.order > latest.get(line, 0), f"{copy} stands in {self.names[queue]} too late"
                latest[line] = copy.order


def all_there(contents: list[Contents]) -> tuple[set[bytes], set[bytes]]:
    """Every message that is in a queue, or on its way to one, but for those whose ack is on its way: these are the
    second answer. What is on its way and was done there already is passed over."""
    found: dict[bytes, str] = {}
    keyed: set[tuple[int, int, str]] = set()  # what is sent again may be on its way again

    def add(key: bytes, where: str) -> None:
        assert key not in found, f"{key[:24]!r} is there twice, in {found[key]} and in {where}"
        found[key] = where

    acked: set[tuple[int, int]] = set()
    for sender, its in enumerate(contents):
        for number, receiver, what in its.entries:
            there = contents[receiver]
            if number <= there.received.get(sender, 0):
                continue
            where = f"the outbox of {sender}"
            if isinstance(what, bytes):
                add(what, where)
                continue
            queues = {queue for route in what.targets for queue in route}
            if what.key is not None:
                queues = {
                    q for q in queues if (q, what.key[0]) not in there.keys and (receiver, q, what.key[0]) not in keyed
                }
                keyed.update((receiver, queue, what.key[0]) for queue in queues)
            for route, body in zip(what.targets, what.bodies, strict=True):
                for queue in queues.intersection(route):
                    if queue in there.names:  # else a crash took it before anybody was told that it is there
                        add(key_of(there.names[queue], body), where)
            for settlement in what.settlements:
                held = [there.messages.get(seq, (b"", 0))[1] for seq in settlement.seqs]
                is_held = (lease == one for lease, one in zip(settlement.leases, held, strict=True))
                acked.update((receiver, seq) for seq, its_own in zip(settlement.seqs, is_held, strict=True) if its_own)
    for partition, its in enumerate(contents):
        for key, _ in its.messages.values():
            add(key, f"partition {partition}")
    going = {contents[partition].messages[seq][0] for partition, seq in acked}
    return set(found) - going, going


class SeveralSimulation(Simulation):
    options = f" --partitions {COUNT}"

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.network = Network(self.random)

    def make_processes(self) -> list[Process]:
        self.deeds = CrossingLedger(self.clock)
        made = [
            Process(number, self.seed, self.random, self.clock, self.deeds, CrossingWorkload) for number in range(COUNT)
        ]
        self.doubtful: list[Any] = []
        for process in made:
            if process.sizes.durability == "none":  # it promises nothing of this to whoever loses power
                process.sizes.durability = "interval"
            process.workload.doubtful = self.doubtful
            process.workload.cut = self._cut
        return made

    def _cut(self) -> None:
        self.network.cut_one()

    def run(self) -> None:
        with self.network.in_use():
            super().run()

    # Lives

    def live(self) -> None:
        for process in self.processes:
            process.lives_left = self.random.choice((0, 0, 1, 2))
        super().live()

    def _run(self, life: Life, down: Callable[[Process, bool], None]) -> None:
        self._is_looked = False
        super()._run(life, down)

    def _down(self, process: Process, crashed: bool) -> None:
        super()._down(process, crashed)
        # Who has lost what others were told of stays away until what is left is looked at.
        if process.lives_left and self._is_looked and not process.has_lost:
            process.lives_left -= 1
            self.ends["restart of its own"] += 1
            process.draw_end()
            process.restart_us = self.clock.us + self.random.choice((0, 1_000, 200_000, 3_000_000, 8_000_000))

    def left(self, loop: SimulatedLoop) -> None:
        self.network.gone(loop)

    def new_node(self, process: Process, look: Callable[[Node], None]) -> SeveralNode:
        model = FollowedTopology(COUNT)
        node = SeveralNode(
            *process.node_parts(), look, process.workload.counts, process.staging_folder, model, process.partition
        )
        node.model = model
        return node

    async def start(self, process: Process, look: Callable[[Node], None] | None = None) -> Node:
        node = await super().start(process, look)
        assert isinstance(node, SeveralNode)
        joining = asyncio.ensure_future(node.join())
        await asyncio.wait([joining], timeout=JOIN_S)
        if not joining.done():
            process.files.crashed = True
            raise SimulatedCrash
        await joining
        return node

    # What is looked at after a start

    def _look(self, process: Process, node: Node) -> None:
        check_invariants(node.engine.state)
        if self._is_looked:
            return  # the others are amid their work: what is there is looked at when all have started together
        process.found = Contents(node, self.deeds)
        found = [other.found for other in self.processes]
        if all(one is not None for one in found):
            self._is_looked = True
            self._look_at_all(found)

    def _look_at_all(self, contents: list[Any]) -> None:
        has_lost = any(process.has_lost for process in self.processes)
        there, acked = all_there(contents)
        if has_lost:
            self.ends["forgiven"] += 1
            self.deeds.forgive(there | acked)
            self.doubtful.clear()  # a key may be forgotten with what it was answered with
        for process in self.processes:
            process.has_lost = False
        self.deeds.queues = {name for its in contents for name in its.names.values()}
        self.deeds.look_up(there, acked)

    # The end

    def finish(self) -> None:
        self._is_drained = False
        for process in self.processes:
            process.node = None
        super().finish()

    async def _drain(self, process: Process) -> None:
        node: Any = await self.start(process)
        process.workload.begin_life()
        process.node = node
        if process.partition:
            while not self._is_drained:
                await asyncio.sleep(1)
        else:
            await self._drain_all(process, node)
            self._is_drained = True
        await node.stop()

    async def _drain_all(self, process: Process, node: SeveralNode) -> None:
        for _ in range(100):  # a transaction that was never ended holds what it was to settle for two minutes
            taken = sum([await self._drain_some(process, node, name) for name in QUEUES])
            if not taken and not any(map(self._has_more, self.processes)):
                return
            await asyncio.sleep(3)
        left = [self._has_more(other) for other in self.processes]
        raise AssertionError(f"{left} could not be consumed")

    def _has_more(self, process: Process) -> list[tuple[str, int]]:
        if process.node is None:
            return [("not started", 0)]
        queues = process.node.engine.state.queues.values()
        return [(q.name, q.ready + q.delayed + q.leased) for q in queues if q.ready + q.delayed + q.leased]

    async def _drain_some(self, process: Process, node: SeveralNode, name: str) -> int:
        known = node.model.by_name.get(("/", name))
        if known is None:
            return 0
        taken = await node.edge.ask(i.Lease(known.number, 1_000, 60_000))
        if not len(taken):
            return 0
        holds = process.workload._take(node, taken)
        deeds = [self.deeds.deed(acks=[hold.copy]) for hold in holds]
        answer = await node.edge.ask(i.Ack(known.number, taken.tokens()))
        for deed, told in zip(deeds, answer, strict=True):
            assert not isinstance(told, Exception), f"an ack was answered with {told!r}"
            self.deeds.done(deed)
        return len(taken)


def run_seed_of_several(seed: int) -> SeveralSimulation:
    simulation = SeveralSimulation(seed)
    simulation.run()
    return simulation
