"""Queues that go to other partitions while they are used: nothing of them is lost, changed or twice, and clients notice
a pause alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from laneway.broker import moves
from laneway.broker.crossing import Crossing
from laneway.broker.interface import (
    Ack,
    Bind,
    CancelMoves,
    ConsumerEnded,
    DeclareExchange,
    DeleteQueue,
    Delivered,
    DescribeQueue,
    EndSession,
    Lease,
    LimitPool,
    ListMoves,
    Peek,
    PlanMoves,
    Publish,
    PurgeQueue,
    PutQueue,
    Settle,
    SettleHeld,
    StartMoves,
    StartRedrive,
    Subscribe,
    Sync,
    Transact,
    Unsubscribe,
)
from laneway.broker.values import (
    Binding,
    ExchangeSettings,
    MovesInfo,
    PeekQuery,
    QueueMove,
    QueueSettings,
    QueueStats,
    RedriveRequest,
)
from laneway.cluster import standstill
from laneway.core.invariants import check_invariants
from laneway.core.message import Messages, Properties, Settlement, encode_props
from laneway.core.partitions import local_number, partition_of
from laneway.core.state import State
from laneway.errors import InvalidInput, LeaseStale, QueueNotFound
from tests.cluster.partitions import SeveralPartitions, declare, name_at, publish, run, until

Work = Callable[[SeveralPartitions], Coroutine[Any, Any, None]]


@pytest.fixture(params=[(2, 1), (3, 3)], ids=["one process", "three processes"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Work], None]:
    partitions, processes = request.param

    async def checked(work: Work, server: SeveralPartitions) -> None:
        await work(server)
        check(server)

    return lambda work: run(tmp_path, lambda s: checked(work, s), partitions=partitions, processes=processes)


def check(server: SeveralPartitions) -> None:
    for partition in server.partitions.values():
        check_invariants(partition.engine.state)


async def infos(server: SeveralPartitions) -> list[MovesInfo]:
    found: list[MovesInfo] = await server.edge.ask(ListMoves())
    return found


async def moved(server: SeveralPartitions) -> None:
    """Return when nothing is left to move, and every process knows."""
    async with asyncio.timeout(20):
        while any(one.waiting or one.under_way for one in await infos(server)):
            await asyncio.sleep(0.005)
    assert [failed for one in await infos(server) for failed in one.failed] == []
    await until(lambda: not any(process.model.moving for process in server.processes))


async def move(server: SeveralPartitions, name: str, to: int = 1, *, placed: bool = False) -> int:
    """Its id afterwards."""
    assert await server.edge.ask(StartMoves([QueueMove("/", name, to, placed)])) == 1
    await moved(server)
    number = id_of(server, name)
    assert partition_of(number) == to
    return number


def id_of(server: SeveralPartitions, name: str) -> int:
    ids = {process.edge.topology.find_queue("/", name).queue for process in server.processes}
    assert len(ids) == 1
    return ids.pop()


def state_at(server: SeveralPartitions, queue: int) -> State:
    return server.partitions[partition_of(queue)].engine.state


async def stats(server: SeveralPartitions, name: str) -> QueueStats:
    found: QueueStats = await server.edge.ask(DescribeQueue("/", name))
    return found


def messages(*bodies: bytes, **columns: Any) -> Messages:
    return Messages(list(bodies), [b""] * len(bodies), **columns)


def of_group(name: str, *bodies: bytes) -> Messages:
    props = encode_props(Properties(group=name))
    return Messages(list(bodies), [props] * len(bodies), groups=dict.fromkeys(range(len(bodies)), name))


async def bodies(server: SeveralPartitions, queue: int, count: int = 1000) -> list[bytes]:
    taken = await server.edge.ask(Lease(queue, count))
    found = list(map(bytes, taken.bodies))
    if found:
        await server.edge.ask(Ack(queue, taken.tokens()))
    return found


class Consumer:
    def __init__(self, server: SeveralPartitions, process: int = -1) -> None:
        self.edge = server.processes[process].edge
        self.session = self.edge.open_session(self.take)
        self.delivered: list[Delivered] = []
        self.ended: list[int] = []

    def take(self, pushes: list[Any]) -> None:
        for push in pushes:
            if isinstance(push, Delivered):
                self.delivered.append(push)
            else:
                assert isinstance(push, ConsumerEnded)
                self.ended.append(push.consumer)

    async def subscribe(self, queue: int, number: int = 1, **options: Any) -> None:
        assert await self.edge.ask(Subscribe(self.session, number, queue, **options)) is None

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(body) for push in self.delivered for body in push.deliveries.bodies]

    def settle(self, at: int, action: Any = "ack") -> None:
        push = self.delivered[at]
        d = push.deliveries
        self.edge.send(SettleHeld(self.session, d.queue, d.seqs, d.leases, action, push.consumer), print)


# What a queue is


def test_a_queue_goes_with_everything_it_has(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, server.partition_count)
        queue = await declare(server.edge, name, max_priority=9, dedup_window_ms=600_000, lease_ms=60_000)
        edge = server.edge
        await publish(edge, [queue], *(b"first %d" % n for n in range(5)))
        await edge.ask(Publish((queue,), messages(b"urgent", b"low", priorities=[9, 0])))
        await edge.ask(Publish((queue,), of_group("g", b"g1", b"g2", b"g3")))
        await edge.ask(Publish((queue,), messages(b"later", b"dies", delays_ms=[30_000, None], ttls_ms=[None, 20_000])))
        await edge.ask(Publish((queue,), messages(b"once", dedup_ids={0: "d"})))
        keyed = await edge.ask(Publish((queue,), messages(b"keyed"), ("key", b"print")))
        taken = await edge.ask(Lease(queue, 3, consumer="worker"))
        await edge.ask(Settle(queue, [Settlement("reject", taken.tokens()[0])]))  # "urgent" is dead now
        before = await stats(server, name)
        ids = [one.message_id for one in (await edge.ask(Peek("/", name, PeekQuery(limit=100))))[0]]

        now = await move(server, name)
        assert now != queue and partition_of(now) == 1
        check(server)
        after = await stats(server, name)
        assert (after.ready, after.leased, after.delayed, after.dead) == (10, 2, 1, 1)
        assert (after.totals, after.waiting_bytes) == (before.totals, before.waiting_bytes)
        assert after.ready_by_priority == before.ready_by_priority
        assert [one.message_id for one in (await edge.ask(Peek("/", name, PeekQuery(limit=100))))[0]] == ids
        (dead,), _ = await edge.ask(Peek("/", name, PeekQuery(states=("dead",))))
        assert dead.body == b"urgent" and [death.reason for death in dead.deaths] == ["rejected"]
        leased, _ = await edge.ask(Peek("/", name, PeekQuery(states=("leased",))))
        assert {one.consumer for one in leased} == {"worker"} and {one.receives for one in leased} == {1}

        again = await edge.ask(Publish((now,), messages(b"keyed"), ("key", b"print")))
        assert again[0].result[0].duplicate and again[0].result[0].message_id == keyed[0].result[0].message_id
        repeated = await edge.ask(Publish((now,), messages(b"once", dedup_ids={0: "d"})))
        assert repeated[0].result[0].duplicate

        # Tokens of before are good, by the id of before too; one is given back to its place.
        assert await edge.ask(Settle(queue, [Settlement("release", taken.tokens()[1])])) != []
        assert isinstance((await edge.ask(Settle(now, [Settlement("ack", taken.tokens()[0])])))[0], LeaseStale)
        assert await edge.ask(Ack(now, [taken.tokens()[2]])) == [0]
        assert await bodies(server, now, 4) == [b"first 0", b"first 2", b"first 3", b"first 4"]
        assert await bodies(server, now, 3) == [b"g1", b"g2", b"g3"]
        server.now_ms += 25_000
        assert await bodies(server, now) == [b"once", b"keyed", b"low"]
        server.now_ms += 10_000
        assert await bodies(server, now) == [b"later"]
        assert (await stats(server, name)).totals["expired"] == 1

    server(work)


def test_nothing_is_left_where_a_queue_was_and_its_segments_go(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, server.partition_count)
        queue = await declare(server.edge, name)
        for at in range(0, 2_500, 500):
            await publish(server.edge, [queue], *(b"%d" % n for n in range(at, at + 500)))
        now = await move(server, name)
        left = state_at(server, queue)
        await until(lambda: not left.outboxes[1].ready)
        assert left.extents == {} and left.stories == {} and not left.moved
        assert left.forwards == {local_number(queue): now}
        assert await bodies(server, now, 5_000) == [b"%d" % n for n in range(2_500)]
        assert state_at(server, now).carried == {}

    server(work)


def test_a_queue_goes_on_and_comes_back(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, server.partition_count)
        first = await declare(server.edge, name)
        await publish(server.edge, [first], b"1", b"2", b"3")
        token = (await server.edge.ask(Lease(first, 1))).tokens()
        consumer = Consumer(server)
        await consumer.subscribe(first, credit=1)
        await until(lambda: consumer.bodies == [b"2"])
        for to in (server.partition_count - 1, 0, 1, 0):
            await move(server, name, to)
            check(server)
        assert (await stats(server, name)).leased == 2
        assert await server.edge.ask(Ack(first, token)) == [0]
        consumer.settle(0)
        await until(lambda: consumer.bodies == [b"2", b"3"])
        assert (await stats(server, name)).totals["acked"] == 2

    server(work)


def test_groups_keep_their_places_in_line(server: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that came back stands behind what was published before, and in front of what came since: as in a queue
    that stays. Here there is more to say of such places than one turn of the loop is for."""
    monkeypatch.setattr(moves, "SLICE", 4)

    async def fill(server: SeveralPartitions, queue: int) -> None:
        edge = server.edge
        for again in range(4):
            for group in range(6):
                name = f"{again} {group}"
                await edge.ask(Publish((queue,), of_group(name, f"{name} a".encode(), f"{name} b".encode())))
            await edge.ask(Publish((queue,), messages(b"plain %d" % again)))
            for count in (3, 5):
                taken = await edge.ask(Lease(queue, count))
                await edge.ask(Settle(queue, [Settlement("release", token) for token in taken.tokens()]))
                await edge.ask(Publish((queue,), messages(b"plain %d %d" % (again, count))))

    async def drained(server: SeveralPartitions, queue: int) -> list[bytes]:
        found: list[bytes] = []
        while some := await bodies(server, queue, 1):
            found += some
        return found

    async def work(server: SeveralPartitions) -> None:
        stays, goes = (name_at(0, server.partition_count, nth=nth) for nth in range(2))
        for name in (stays, goes):
            await fill(server, await declare(server.edge, name, max_receives=None))
        for to in (1, 0, server.partition_count - 1):
            if partition_of(id_of(server, goes)) != to:
                await move(server, goes, to)
                check(server)
        expected = await drained(server, id_of(server, stays))
        assert len(expected) == 60 and expected != sorted(expected)
        assert await drained(server, id_of(server, goes)) == expected

    server(work)


def test_what_came_back_before_can_be_settled_late_afterwards(server: Callable[[Work], None]) -> None:
    """By who had it last, as long as nobody else got it: whether its lease ended before the move, or after."""

    async def work(server: SeveralPartitions) -> None:
        edge, name = server.edge, name_at(0, server.partition_count)
        queue = await declare(edge, name, lease_ms=5_000)
        await publish(edge, [queue], *(b"%d" % n for n in range(8)))
        before = (await edge.ask(Lease(queue, 6))).tokens()
        await edge.ask(
            Settle(queue, [Settlement("release", before[0]), Settlement("release", before[1], delay_ms=60_000)])
        )
        await edge.ask(Settle(queue, [Settlement("release", before[2]), Settlement("release", before[3])]))
        for to in (1, 0, server.partition_count - 1):
            if partition_of(id_of(server, name)) != to:
                await move(server, name, to)
                check(server)
        now = id_of(server, name)
        assert await edge.ask(Ack(now, before[:2], late=True)) == [0, 0]
        extended = await edge.ask(Settle(queue, [Settlement("extend", before[2], lease_ms=60_000, late=True)]))
        assert extended == [server.now_ms + 60_000]
        server.now_ms += 6_000
        await until(lambda: state_at(server, now).by_name["/", name].leased == 1)
        assert isinstance((await edge.ask(Ack(now, before[4:5])))[0], LeaseStale)
        assert await edge.ask(Ack(now, before[4:5], late=True)) == [0]
        again = await edge.ask(Lease(now, 10))
        assert list(map(bytes, again.bodies)) == [b"3", b"5", b"6", b"7"]
        for token in (before[3], before[5]):
            assert isinstance((await edge.ask(Ack(now, [token], late=True)))[0], LeaseStale)
        assert await edge.ask(Ack(now, [before[2], *again.tokens()])) == [0] * 5
        assert (await stats(server, name)).totals["acked"] == 8
        assert state_at(server, now).carried == {}

    server(work)


# Clients


def test_clients_that_use_it_notice_a_pause_alone(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, server.partition_count)
        queue = await declare(server.edge, name)
        consumer = Consumer(server)
        await consumer.subscribe(queue, credit=20)
        sent: dict[int, list[bytes]] = {}
        is_over = False

        async def produce(number: int) -> None:
            edge = server.processes[number % server.process_count].edge
            while not is_over:
                body = b"%d %d" % (number, len(sent.setdefault(number, [])))
                (arrival,) = await publish(edge, [queue], body)  # by the id that it had when this began
                assert arrival.queue == queue and arrival.result.each()[0].message_id
                sent[number].append(body)

        async def settle() -> None:
            done = 0
            while True:
                await asyncio.sleep(0)
                while done < len(consumer.delivered):
                    consumer.settle(done)
                    done += 1

        work = [asyncio.ensure_future(produce(number)) for number in range(4)]
        settling = asyncio.ensure_future(settle())
        for to in (1, 0, 1):
            await until(lambda: sent and min(map(len, sent.values())) > 5)
            await move(server, name, to)
        is_over = True
        await asyncio.gather(*work)
        await until(lambda: len(consumer.bodies) == sum(map(len, sent.values())))
        await asyncio.sleep(0)
        settling.cancel()
        for number, its in sent.items():
            assert [body for body in consumer.bodies if body.startswith(b"%d " % number)] == its
        await until(lambda: state_at(server, id_of(server, name)).by_name["/", name].leased == 0)
        assert consumer.ended == []

    server(work)


def test_what_consumers_hold_counts_where_the_queue_is(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, server.partition_count)
        queue = await declare(server.edge, name)
        one, shared = Consumer(server), Consumer(server, 0)
        await publish(server.edge, [queue], *(b"%d" % n for n in range(10)))
        await one.subscribe(queue, credit=2)
        await until(lambda: len(one.bodies) == 2)
        shared.edge.send(LimitPool(shared.session, 7, 3), print)
        await shared.subscribe(queue, pool=7)
        await until(lambda: len(shared.bodies) == 3)
        await move(server, name)
        await server.edge.ask(Sync())
        assert (len(one.bodies), len(shared.bodies)) == (2, 3)
        one.settle(0)
        await until(lambda: len(one.bodies) == 4)
        shared.settle(0)
        await until(lambda: len(shared.bodies) == 6)
        assert (await stats(server, name)).subscribers == 2
        # What a connection held when it ended, its front end gives back.
        shared.edge.send(EndSession(shared.session), print)
        for at in range(len(shared.delivered)):
            shared.settle(at, "release")
        await until(lambda: state_at(server, id_of(server, name)).by_name["/", name].ready == 3)
        assert await one.edge.ask(Unsubscribe(one.session, 1)) is None

    server(work)


def test_leases_that_are_waited_for_go_on_waiting(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, server.partition_count)
        queue = await declare(server.edge, name)
        waits = [asyncio.ensure_future(p.edge.ask(Lease(queue, 1, wait_ms=20_000))) for p in server.processes]
        withdrawn: list[Any] = []
        number = server.edge.send(Lease(queue, 1, wait_ms=20_000), withdrawn.append)
        await until(lambda: server.partitions[0].waiting.count(local_number(queue)) == len(waits) + 1)
        now = await move(server, name)
        waiting = server.partitions[1].waiting
        await until(lambda: waiting.count(local_number(now)) == len(waits) + 1)
        server.edge.withdraw(number, answer=True)
        await until(lambda: withdrawn)
        assert not len(withdrawn[0])
        await publish(server.edge, [queue], *(b"%d" % n for n in range(len(waits))))
        assert sorted([bytes((await one).bodies[0]) for one in waits]) == [b"%d" % n for n in range(len(waits))]
        assert server.edge.standstill._sent == {}

    server(work)


def test_requests_are_held_back_while_it_stands_still(server: Callable[[Work], None]) -> None:
    """In the order in which they came, those that name several queues among them; a wait ends in time."""

    async def work(server: SeveralPartitions) -> None:
        count = server.partition_count
        name, other = name_at(0, count), await declare(server.edge, name_at(1, count))
        queue = await declare(server.edge, name)
        edge = server.edge
        for process in server.processes:  # as if the leader had said so
            process.model.stands_still(queue, 1)
        asked = [
            asyncio.ensure_future(publish(edge, [queue], b"1")),
            asyncio.ensure_future(publish(edge, [queue, other], b"2")),
            asyncio.ensure_future(publish(edge, [other], b"3")),
            asyncio.ensure_future(edge.ask(DescribeQueue("/", name))),
            asyncio.ensure_future(edge.ask(PurgeQueue("/", name))),
        ]
        assert not len(await edge.ask(Lease(queue, 1, wait_ms=1)))
        await edge.ask(Sync())
        assert not any(one.done() for one in asked)
        assert state_at(server, other).queues[local_number(other)].ready == 0
        for process in server.processes:
            process.model.stands_still(queue, None)
        answers = await asyncio.gather(*asked)
        assert answers[3].ready == 2 and answers[4] == 2
        assert await bodies(server, other) == [b"2", b"3"]
        assert not edge.standstill.is_busy and not edge.standstill._blocked

    server(work)


def test_what_is_held_back_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "MAX_BYTES", 4_000)
    monkeypatch.setattr(standstill, "PATIENCE_S", 0.05)

    async def work(server: SeveralPartitions) -> None:
        queue = await declare(server.edge, name_at(0))
        server.processes[0].model.stands_still(queue, 1)
        asked = [asyncio.ensure_future(publish(server.edge, [queue], b"x" * 1000)) for _ in range(4)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(one)[:10] for one in found] == ["its queue "] * 2 + ["2 requests"] * 2
        server.processes[0].model.stands_still(queue, None)
        assert (await publish(server.edge, [queue], b"y"))[0].result.each()[0].message_id

    run(tmp_path, work)


# What leads to it


def test_bindings_dead_letters_and_transactions_find_it(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        edge, count = server.edge, server.partition_count
        name, grave, last = name_at(0, count), name_at(0, count, nth=1), name_at(1, count)
        buried = await declare(edge, grave)
        queue = await declare(edge, name, dead_letter_queue=grave)
        other = await declare(edge, last)
        await edge.ask(DeclareExchange("/", "x", ExchangeSettings(type="topic")))
        for end in (name, last):
            await edge.ask(Bind("/", Binding("x", "queue", end, "k.#")))
        await publish(edge, [queue], b"dies", b"2", b"3")
        one = await edge.ask(Lease(queue, 1))
        await edge.ask(Settle(queue, [Settlement("reject", one.tokens()[0])]))
        held = await edge.ask(Lease(queue, 1))
        consumer = Consumer(server)
        await consumer.subscribe(queue, credit=1)
        await until(lambda: consumer.bodies == [b"3"])

        now = await move(server, name)
        for process in server.processes:
            assert set(process.edge.topology.route("/", "x", "k.1")) == {now, other}
        # Its dead letter lies where it was; both ways go over partitions now.
        await edge.ask(Settle(now, [Settlement("reject", held.tokens()[0])]))
        await until(lambda: state_at(server, buried).by_name["/", grave].ready == 2)
        await edge.ask(StartRedrive("/", grave, RedriveRequest()))
        await until(lambda: state_at(server, now).by_name["/", name].ready == 2)
        d = consumer.delivered[0].deliveries
        held_one = SettleHeld(consumer.session, d.queue, d.seqs, d.leases, "ack", 1)
        await consumer.edge.ask(Transact([(queue,), (other,)], messages(b"4", b"5"), [held_one]))
        await until(lambda: len(consumer.bodies) == 2)
        assert (await stats(server, name)).totals["acked"] == 1
        assert await bodies(server, other) == [b"5"]
        await move(server, grave)
        await move(server, name, 0)
        for process in server.processes:
            assert set(process.edge.topology.route("/", "x", "k.1")) == {id_of(server, name), other}
        topology = server.partitions[0].engine.state.topology
        (binding,) = topology.into("/", "queue", name)
        await until(lambda: topology.target("/", binding) == id_of(server, name))
        assert len(topology.into("/", "queue", name)) == 1

    server(work)


def test_an_exclusive_queue_stays_its_connections(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        count = server.partition_count
        owner, name = Consumer(server), name_at(0, count)
        queue = await declare(owner.edge, name, owner.session)
        await owner.subscribe(queue, credit=5)
        now = await move(server, name)
        await publish(server.edge, [now], b"1")
        await until(lambda: owner.bodies == [b"1"])
        await until(lambda: all(p.edge.topology.find_queue("/", name).owner == owner.session for p in server.processes))
        owner.edge.send(EndSession(owner.session), print)
        await until(lambda: not any(p.edge.topology.queue("/", name) for p in server.processes))

    server(work)


def test_an_auto_delete_queue_goes_with_its_last_consumer_wherever_it_is(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        name, consumer = name_at(0, server.partition_count), Consumer(server)
        queue = await declare(server.edge, name, auto_delete=True)
        await consumer.subscribe(queue)
        now = await move(server, name)
        await until(lambda: local_number(now) in server.partitions[1].sessions.audiences)
        await consumer.edge.ask(Unsubscribe(consumer.session, 1))
        await until(lambda: server.edge.topology.queue("/", name) is None)

    server(work)


# Which ones move


def test_queues_move_home_and_placed_ones_stay(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        edge, count = server.edge, server.partition_count
        at_home, away, placed = name_at(0, count), name_at(1, count), name_at(1, count, nth=1)
        for name in (at_home, away, placed):
            await declare(edge, name)
        await move(server, away, 0)
        await move(server, placed, 0, placed=True)
        await edge.ask(PutQueue("/", placed, QueueSettings(lease_ms=1_000)))  # which changes nothing of that
        moves, end = await edge.ask(PlanMoves())
        assert end is None and [(m.name, m.here, m.to) for m in moves] == [(away, 0, 1)]
        moves, _ = await edge.ask(PlanMoves(is_all=True))
        assert sorted(m.name for m in moves) == sorted((away, placed))
        moves, _ = await edge.ask(PlanMoves("/", at_home, 1))
        assert [(m.name, m.here, m.to, m.placed) for m in moves] == [(at_home, 0, 1, True)]
        moves, _ = await edge.ask(PlanMoves("/", placed))
        assert [(m.name, m.here, m.to, m.placed) for m in moves] == [(placed, 0, 1, False)]
        _, after = await edge.ask(PlanMoves(limit=1))
        assert after == ("/", min(at_home, away, placed))
        assert (await edge.ask(PlanMoves(after=("/", max(at_home, away, placed))))) == ([], None)
        with pytest.raises(InvalidInput, match="there is no partition 9"):
            await edge.ask(PlanMoves("/", away, 9))
        with pytest.raises(InvalidInput, match="there is no partition 9"):
            await edge.ask(StartMoves([QueueMove("/", away, 9)]))
        with pytest.raises(QueueNotFound):
            await edge.ask(PlanMoves("/", "none"))
        assert await edge.ask(StartMoves([QueueMove("/", at_home, 0, True), QueueMove("/", "gone", 1)])) == 0
        await until(lambda: edge.model.by_name["/", at_home].placed)

    server(work)


def test_moves_that_have_not_begun_can_be_cancelled(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        names = [name_at(0, nth=n) for n in range(5)]
        for name in names:
            await declare(server.edge, name)
        asked = [StartMoves([QueueMove("/", n, 1) for n in names]), CancelMoves()]
        assert await asyncio.gather(*map(server.edge.ask, asked)) == [5, 5]
        await moved(server)
        assert {partition_of(id_of(server, name)) for name in names} == {0}

    run(tmp_path, work)


def test_a_queue_that_is_deleted_before_its_turn_is_passed_over(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        names = [name_at(0, nth=n) for n in range(2)]
        for name in names:
            await declare(server.edge, name)
        asked = [StartMoves([QueueMove("/", n, 1) for n in names]), DeleteQueue("/", names[1])]
        assert await asyncio.gather(*map(server.edge.ask, asked)) == [2, 0]
        await moved(server)
        assert partition_of(id_of(server, names[0])) == 1

    run(tmp_path, work)


# Crashes


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["the one it leaves", "the one it goes to", "another"])
def test_a_process_dies_in_the_middle(tmp_path: Path, lost: int) -> None:
    """Of 3,000 messages some have arrived, some are on their way, and the rest is where it was."""

    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, 3)
        queue = await declare(server.edge, name)
        asking = server.processes[2 if lost != 2 else 0].edge
        for at in range(0, 3_000, 500):
            await publish(asking, [queue], *(b"%d" % n for n in range(at, at + 500)))
        token = (await asking.ask(Lease(queue, 1))).tokens()
        doomed = Consumer(server, lost)
        await doomed.subscribe(queue, credit=10)
        await until(lambda: len(doomed.bodies) == 10)
        await asking.ask(StartMoves([QueueMove("/", name, 1)]))
        state = server.partitions[0].engine.state
        await until(lambda: (0, local_number(queue)) in server.partitions[1].engine.state.arriving)
        await until(lambda: 0 < len(state.table) < 2_900 or not state.by_name)
        await server.lose(lost)
        await server.start_again(lost)
        asking = server.processes[2 if lost != 2 else 0].edge
        await until(lambda: partition_of(asking.model.by_name["/", name].number) == 1)
        await until(lambda: not any(process.model.moving for process in server.processes))
        now = id_of(server, name)
        assert await asking.ask(Ack(now, token)) == [0]
        await until(lambda: state_at(server, now).queues[local_number(now)].leased == 0)  # its clients are gone
        found: list[bytes] = []
        while some := await bodies(server, now):
            found += some
        assert found == [b"%d" % n for n in range(1, 3_000)]
        check(server)

    run(tmp_path, work, partitions=3, processes=3)


class Held:
    """What partition 1 is sent waits while this is closed, from the first message of a queue on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_closed = False
        self._waiting: list[tuple[Crossing, Any]] = []
        self._receive = receive = Crossing.receive

        def wait(crossing: Crossing, entries: Any) -> None:
            state = crossing._partition.engine.state
            if self.is_closed and state.partition == 1 and state.arriving:
                self._waiting.append((crossing, entries))
            else:
                receive(crossing, entries)

        monkeypatch.setattr(Crossing, "receive", wait)

    def open(self, *, lost: bool = False) -> None:
        self.is_closed = False
        for crossing, entries in self._waiting if not lost else ():
            self._receive(crossing, entries)


@pytest.mark.parametrize("is_told", [True, False], ids=["it is told", "it hears so itself"])
def test_what_a_process_held_that_died_on_the_way_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """The partition that a queue goes to hears that a process is gone before it gets what that had leased: when all has
    left that it comes from, or it was away, and that partition tells it."""
    monkeypatch.setattr(moves, "SLICE", 20)
    held, may_go_on, pace = Held(monkeypatch), asyncio.Event(), moves.Moves._pace

    async def paced(self: moves.Moves, there: int) -> None:
        await may_go_on.wait()
        await pace(self, there)

    async def work(server: SeveralPartitions) -> None:
        name = name_at(0, 3)
        queue = await declare(server.edge, name)
        await publish(server.edge, [queue], *(b"%d" % n for n in range(30)))
        doomed = Consumer(server, 2)
        await doomed.subscribe(queue, credit=4)
        await until(lambda: len(doomed.bodies) == 4)
        held.is_closed = True
        monkeypatch.setattr(moves.Moves, "_pace", paced)
        here, there = (server.partitions[number] for number in (0, 1))
        its = here.engine.state.queues[local_number(queue)]
        await server.edge.ask(StartMoves([QueueMove("/", name, 1)]))
        await until(lambda: its.ready == 10)  # the first twenty have left
        if is_told:
            await server.lose(2)
            await until(lambda: 2 in here.moves._gone)
            await server.start_again(2)
            await server.lose(1)
            held.open(lost=True)
            await server.start_again(1)
            may_go_on.set()
            there = server.partitions[1]
        else:
            may_go_on.set()
            await until(lambda: local_number(queue) not in here.engine.state.queues)
            await server.lose(2)
            await until(lambda: 2 in there.moves._gone)
            held.open()
        await until(lambda: ("/", name) in there.engine.state.by_name)
        await until(lambda: there.engine.state.by_name["/", name].ready == 30)
        check(server)

    run(tmp_path, work, partitions=3, processes=3)
