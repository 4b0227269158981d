"""An edge before several partitions: where requests go, and that ids and numbers are never taken for each other. Each
test runs with all partitions in one process, and with one partition in each of several processes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from laneway.broker.interface import (
    Ack,
    ChangeQueue,
    DeleteQueue,
    Delivered,
    DescribeQueue,
    EndSession,
    Lease,
    LimitPool,
    ListConsumers,
    Peek,
    Publish,
    PurgeQueue,
    SettleHeld,
    Subscribe,
    Unsubscribe,
)
from laneway.broker.values import PeekQuery
from laneway.core.message import Messages
from laneway.core.partitions import local_number, partition_of, queue_id
from laneway.errors import QueueNotFound
from tests.cluster.partitions import SeveralPartitions, declare, name_at, publish, run, until

Work = Callable[[SeveralPartitions], Coroutine[Any, Any, None]]


@pytest.fixture(params=[(2, 1), (2, 2), (3, 3)], ids=["one process", "two processes", "three processes"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Work], None]:
    partitions, processes = request.param
    return lambda work: run(tmp_path, work, partitions=partitions, processes=processes)


def test_a_queue_is_made_in_its_home_and_found_by_every_process(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        for partition in range(server.partition_count):
            name = name_at(partition, server.partition_count)
            queue = await declare(server.edge, name)
            assert partition_of(queue) == partition
            for process in server.processes:
                assert process.edge.topology.find_queue("/", name).queue == queue
                assert await declare(process.edge, name) == queue
        names = [info.name for info in server.edge.topology.queues(vhost="/")]
        assert names == sorted(name_at(p, server.partition_count) for p in range(server.partition_count))

    server(work)


def test_messages_go_to_queues_of_any_partition_and_come_back(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        for partition in range(server.partition_count):
            queue = await declare(server.edge, name_at(partition, server.partition_count))
            (arrival,) = await publish(server.edge, [queue], b"one", b"two")
            assert arrival.queue == queue
            taken = await server.processes[-1].edge.ask(Lease(queue, 10))
            assert (taken.queue, [bytes(body) for body in taken.bodies]) == (queue, [b"one", b"two"])
            assert await server.edge.ask(Ack(queue, taken.tokens())) == [0, 0]
            stats = await server.edge.ask(DescribeQueue("/", name_at(partition, server.partition_count)))
            assert (stats.ready, stats.leased) == (0, 0)

    server(work)


def test_a_batch_is_cut_by_partition(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        count = server.partition_count
        queues = [await declare(server.edge, name_at(partition, count)) for partition in range(count)]
        bodies = [b"%d" % i for i in range(12)]
        targets: list[Any] = [(queues[i % count],) for i in range(12)]
        targets[5] = ()
        arrivals = await server.edge.ask(Publish(targets, Messages(bodies, [b""] * 12)))
        where = {arrival.queue: list(arrival.places) for arrival in arrivals}
        assert where == {queue: [i for i in range(12) if targets[i] == (queue,)] for queue in queues}
        for queue in queues:
            taken = await server.edge.ask(Lease(queue, 100))
            assert [bytes(body) for body in taken.bodies] == [bodies[i] for i in where[queue]]

    server(work)


def test_requests_by_name_find_the_partition(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        count = server.partition_count
        for partition in range(count):
            name, edge = name_at(partition, count), server.processes[-1].edge
            queue = await declare(server.edge, name)
            await publish(server.edge, [queue], b"x")
            assert (await edge.ask(ChangeQueue("/", name, {"lease_ms": 5000}))).queue == queue
            assert server.edge.topology.find_queue("/", name).settings.lease_ms == 5000
            glimpses, _ = await edge.ask(Peek("/", name, PeekQuery()))
            assert [glimpse.body for glimpse in glimpses] == [b"x"]
            assert await edge.ask(PurgeQueue("/", name)) == 1
            await publish(server.edge, [queue], b"y")
            assert await edge.ask(DeleteQueue("/", name)) == 1
            assert server.edge.topology.queue("/", name) is None
            with pytest.raises(QueueNotFound):
                await edge.ask(DescribeQueue("/", name))
            again = await declare(edge, name)
            assert again != queue and partition_of(again) == partition

    server(work)


def test_a_session_consumes_from_several_partitions(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        count, edge = server.partition_count, server.processes[-1].edge
        queues = [await declare(server.edge, name_at(partition, count)) for partition in range(count)]
        pushed: list[Any] = []
        session = edge.open_session(pushed.extend)
        for consumer, queue in enumerate(queues, 1):
            await edge.ask(Subscribe(session, consumer, queue, credit=1))
            await publish(server.edge, [queue], b"a", b"b")
        await until(lambda: len(pushed) == count)
        assert {one.consumer: one.deliveries.queue for one in pushed} == dict(enumerate(queues, 1))
        states = await server.edge.ask(ListConsumers(session=session))
        assert [(state.consumer, state.queue) for state in states] == list(enumerate(queues, 1))
        assert [s.queue for s in await server.edge.ask(ListConsumers(queue=queues[-1]))] == [queues[-1]]
        for one in list(pushed):
            assert isinstance(one, Delivered)
            d = one.deliveries
            edge.send(SettleHeld(session, d.queue, d.seqs, d.leases, "ack", one.consumer), lambda _: None)
        await until(lambda: len(pushed) == 2 * count)
        for consumer in range(1, count + 1):
            await edge.ask(Unsubscribe(session, consumer))
        edge.send(EndSession(session), lambda _: None)
        for partition in range(count):
            for taken in (pushed[count + partition].deliveries,):
                edge.send(SettleHeld(session, taken.queue, taken.seqs, taken.leases, "release"), lambda _: None)
        for queue in queues:
            assert len(await edge.ask(Lease(queue, 10, wait_ms=5000))) == 1

    server(work)


def test_a_limit_holds_over_partitions_also_when_one_of_its_consumers_is_cancelled(
    server: Callable[[Work], None],
) -> None:
    async def work(server: SeveralPartitions) -> None:
        edge, pushed = server.edge, list[Any]()
        names = [name_at(0, server.partition_count)]
        names += [name_at(1, server.partition_count, nth=nth) for nth in (0, 1)]
        session = edge.open_session(pushed.extend)
        edge.send(LimitPool(session, 1, 3), lambda answer: None)
        queues = [await declare(edge, name) for name in names]
        for consumer, queue in enumerate(queues, 1):
            await edge.ask(Subscribe(session, consumer, queue, pool=1))
        for queue in queues[:2]:  # the first one takes all that the limit allows
            await publish(edge, [queue], b"1", b"2", b"3")
        await until(lambda: len(edge._visitors[session]._pools[1].waiting) and pushed)
        await edge.ask(Unsubscribe(session, 2))
        assert edge._visitors[session].pooled.keys() == {1, 3}, "it holds nothing"
        await until(lambda: _ready(server, queues[1]) == 3)
        await publish(edge, [queues[2]], b"4", b"5", b"6")
        await until(lambda: edge._visitors[session]._pools[1].waiting)
        assert [push.consumer for push in pushed] == [1]
        d = pushed[0].deliveries
        edge.send(SettleHeld(session, d.queue, d.seqs[:2], d.leases[:2], "ack", 1), lambda answer: None)
        await until(lambda: sum(len(push.deliveries) for push in pushed) == 5)
        assert {push.consumer for push in pushed[1:]} == {3}
        await edge.ask(Unsubscribe(session, 1))
        assert 1 in edge._visitors[session].pooled, "it holds one yet"
        edge.send(SettleHeld(session, d.queue, d.seqs[2:], d.leases[2:], "ack", 1), lambda answer: None)
        assert edge._visitors[session].pooled.keys() == {3}

    def _ready(server: SeveralPartitions, queue: int) -> int:
        return server.partitions[partition_of(queue)].engine.state.queues[local_number(queue)].ready

    server(work)


def test_numbers_of_two_partitions_are_not_confused(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        first = await declare(server.edge, name_at(0, server.partition_count))
        second = await declare(server.edge, name_at(1, server.partition_count))
        assert second == queue_id(1, first)  # or this would test nothing
        await publish(server.edge, [first], b"first")
        await publish(server.edge, [second], b"second")
        for edge in (server.edge, server.processes[-1].edge):
            for queue, body in ((first, b"first"), (second, b"second")):
                session = edge.open_session(lambda pushes: None)
                got = await edge.ask(Lease(queue, 1, session=session))
                assert (got.queue, bytes(got.bodies[0])) == (queue, body)
                edge.send(SettleHeld(session, queue, got.seqs, got.leases, "release"), lambda _: None)

    server(work)


def test_an_exclusive_queue_of_another_partition_goes_with_its_session(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        edge = server.edge
        session = edge.open_session(lambda pushes: None)
        name = name_at(1, server.partition_count)
        await declare(edge, name, session)
        for process in server.processes:
            assert process.edge.topology.find_queue("/", name).owner == session
        edge.send(EndSession(session), lambda _: None)
        await until(lambda: all(one.edge.topology.queue("/", name) is None for one in server.processes))

    server(work)


def test_a_wait_for_messages_of_any_partition_can_be_withdrawn(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        for partition in range(server.partition_count):
            queue = await declare(server.edge, name_at(partition, server.partition_count))
            answers: list[Any] = []
            number = server.edge.send(Lease(queue, 1, wait_ms=20_000), answers.append)
            assert number > 0
            server.edge.withdraw(number, answer=True)
            await until(lambda answers=answers: answers)
            assert len(answers[0]) == 0

    server(work)
