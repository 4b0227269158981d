"""What crosses partitions: fan-outs, transactions, dead letters, redrives. Each is done once, in order, and whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from laneway.broker.interface import (
    Ack,
    ChangeQueue,
    CommitBatch,
    DeleteQueue,
    Delivered,
    DescribeQueue,
    Lease,
    Peek,
    Publish,
    Receive,
    Settle,
    SettleHeld,
    StagePart,
    StartRedrive,
    Subscribe,
    Sync,
    Transact,
)
from laneway.broker.values import Addressed, Draft, PeekQuery, RedriveRequest
from laneway.core.invariants import check_invariants
from laneway.core.message import Messages, Settlement
from laneway.core.outbox import OutboxEntry, Parcel
from laneway.core.partitions import local_number
from laneway.errors import InvalidInput, LeaseStale, OutcomeUnknown, Unavailable
from laneway.journal.segments.journal import SegmentJournal
from tests.cluster.partitions import SeveralPartitions, declare, name_at, publish, run, until

Work = Callable[[SeveralPartitions], Coroutine[Any, Any, None]]


@pytest.fixture(params=[(2, 1), (2, 2), (3, 3)], ids=["one process", "two processes", "three processes"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Work], None]:
    partitions, processes = request.param

    async def checked(work: Work, server: SeveralPartitions) -> None:
        await work(server)
        for partition in server.partitions.values():
            check_invariants(partition.engine.state)

    return lambda work: run(tmp_path, lambda s: checked(work, s), partitions=partitions, processes=processes)


async def queues_of(server: SeveralPartitions, **settings: Any) -> list[int]:
    """One in each partition."""
    names = [name_at(partition, server.partition_count) for partition in range(server.partition_count)]
    return [await declare(server.edge, name, **settings) for name in names]


async def bodies(server: SeveralPartitions, queue: int, count: int = 100, wait_ms: int = 0) -> list[bytes]:
    taken = await server.edge.ask(Lease(queue, count, wait_ms=wait_ms))
    found = list(map(bytes, taken.bodies))
    if found:
        await server.edge.ask(Ack(queue, taken.tokens()))
    return found


def messages(*given: bytes, **columns: Any) -> Messages:
    return Messages(list(given), [b""] * len(given), **columns)


def test_a_fan_out_reaches_queues_of_all_partitions(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        queues = await queues_of(server)
        for process in server.processes:
            arrivals = await publish(process.edge, queues, b"one", b"two")
            assert sorted(arrival.queue for arrival in arrivals) == sorted(queues)
            assert all(arrival.result.each()[1].message_id for arrival in arrivals)
        for queue in queues:
            assert await bodies(server, queue) == [b"one", b"two"] * len(server.processes)

    server(work)


def test_messages_of_one_publish_may_go_different_ways(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        first, second = (await queues_of(server))[:2]
        wrong = InvalidInput("no")
        given = messages(b"both", b"first", b"none", b"second", b"refused", refused={4: wrong})
        routes = [(first, second), (first,), (), (second,), (first, second)]
        arrivals = await server.edge.ask(Publish(list(routes), given))
        found: dict[int, set[int]] = {}
        refused = set()
        for arrival in arrivals:
            places = range(5) if arrival.places is None else arrival.places
            if arrival.result is wrong or type(arrival.result) is InvalidInput:
                refused |= {(arrival.queue, place) for place in places}
                continue
            for place, one in zip(places, arrival.result.each(), strict=True):
                if isinstance(one, InvalidInput):
                    refused.add((arrival.queue, place))
                else:
                    found.setdefault(arrival.queue, set()).add(place)
        assert found == {first: {0, 1}, second: {0, 3}}
        assert refused == {(first, 4), (second, 4)}
        assert await bodies(server, first) == [b"both", b"first"]
        assert await bodies(server, second) == [b"both", b"second"]

    server(work)


def test_what_follows_a_fan_out_stays_behind_it(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        queues = await queues_of(server)
        edge = server.processes[-1].edge
        asked = []
        for i in range(20):
            asked.append(asyncio.ensure_future(publish(edge, queues, b"all %d" % i)))
            asked += [asyncio.ensure_future(publish(edge, [queue], b"own %d" % i)) for queue in queues]
        await asyncio.gather(*asked)
        expected = [b"%s %d" % (kind, i) for i in range(20) for kind in (b"all", b"own")]
        for queue in queues:
            assert await bodies(server, queue) == expected

    server(work)


def test_a_repeated_key_publishes_to_no_partition_again(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        queues = await queues_of(server)
        for duplicate in (False, True):
            arrivals = await server.edge.ask(Publish(tuple(queues), messages(b"once"), ("key", b"print")))
            assert [one.duplicate for arrival in arrivals for one in arrival.result.each()] == [duplicate] * len(queues)
        for queue in queues:
            assert await bodies(server, queue) == [b"once"]

    server(work)


def test_a_transaction_publishes_and_settles_in_several_partitions(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        queues = await queues_of(server)
        edge = server.processes[-1].edge
        pushed: list[Any] = []
        session = edge.open_session(pushed.extend)
        for consumer, queue in enumerate(queues, 1):
            await publish(edge, [queue], b"work")
            await edge.ask(Subscribe(session, consumer, queue, credit=1))
        await until(lambda: len(pushed) == len(queues))
        settlements = [
            SettleHeld(session, d.queue, d.seqs, d.leases, "ack", one.consumer)
            for one in pushed
            if isinstance(one, Delivered) and (d := one.deliveries)
        ]
        pushed.clear()
        arrivals = await edge.ask(
            Transact([(queue,) for queue in queues], messages(*[b"result"] * len(queues)), settlements)
        )
        assert sorted(arrival.queue for arrival in arrivals) == sorted(queues)
        await until(lambda: len(pushed) == len(queues))  # credit came back
        assert [bytes(one.deliveries.bodies[0]) for one in pushed] == [b"result"] * len(queues)
        for partition in range(server.partition_count):
            stats = await edge.ask(DescribeQueue("/", name_at(partition, server.partition_count)))
            assert (stats.ready, stats.leased) == (0, 1)

    server(work)


def test_a_transaction_that_settles_what_went_back_is_not_done(server: Callable[[Work], None]) -> None:
    """What it made of those messages would be made again by whoever gets them next."""

    async def work(server: SeveralPartitions) -> None:
        edge, count = server.processes[0].edge, server.partition_count
        held, gone = [await declare(edge, name_at(1, count, nth=nth)) for nth in range(2)]
        own = await declare(edge, name_at(0, count))
        pushed: list[Any] = []
        session = edge.open_session(pushed.extend)
        await publish(edge, [held], b"work", b"more")
        await edge.ask(Subscribe(session, 1, held, credit=2))
        await until(lambda: pushed)
        d = pushed[0].deliveries
        settlements = [
            SettleHeld(session, held, d.seqs, d.leases, "ack", 1),
            SettleHeld(session, gone, [77], [d.leases[0]], "ack", 2),
        ]
        with pytest.raises(LeaseStale, match="nothing of it was done"):
            await edge.ask(Transact([(own,)], messages(b"result"), settlements))
        assert await bodies(server, own) == []
        await until(lambda: sum(len(push.deliveries) for push in pushed) == 4)  # they went back, and came again

    server(work)


def test_acks_of_what_is_held_no_longer_keep_no_others_from_being_done(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        edge, count = server.processes[0].edge, server.partition_count
        held, gone = [await declare(edge, name_at(1, count, nth=nth)) for nth in range(2)]
        pushed: list[Any] = []
        session = edge.open_session(pushed.extend)
        await publish(edge, [held], b"work", b"more")
        await edge.ask(Subscribe(session, 1, held))
        await until(lambda: pushed)
        d = pushed[0].deliveries
        assert len(d) == 2
        edge.send(SettleHeld(session, held, d.seqs, d.leases, "ack", 1), lambda answer: None)
        edge.send(SettleHeld(session, gone, [], [], "ack", 2), lambda answer: None)
        await edge.ask(Sync())
        stats = await edge.ask(DescribeQueue("/", name_at(1, count)))
        assert (stats.ready, stats.leased, stats.totals["acked"]) == (0, 0, 2)

    server(work)


def test_dead_letters_go_to_a_queue_of_another_partition_and_back(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        count = server.partition_count
        dead = await declare(server.edge, name_at(0, count, nth=1))
        settings = {"dead_letter_queue": name_at(0, count, nth=1), "max_receives": 1}
        name = name_at(1, count)
        queue = await declare(server.edge, name, **settings)
        await publish(server.edge, [queue], b"letter")
        taken = await server.edge.ask(Lease(queue, 1))
        (settled,) = await server.edge.ask(Settle(queue, [Settlement("reject", taken.tokens()[0], reason="no")]))
        assert settled == 0
        there = await server.edge.ask(Lease(dead, 1, wait_ms=5_000))
        assert [bytes(body) for body in there.bodies] == [b"letter"]
        await server.edge.ask(Settle(dead, [Settlement("release", there.tokens()[0])]))
        (glimpse,), _ = await server.edge.ask(Peek("/", name_at(0, count, nth=1), PeekQuery()))
        assert [(death.queue, death.reason, death.detail) for death in glimpse.deaths] == [(name, "rejected", "no")]
        assert glimpse.message_id == taken.message_id(0)
        task = await server.edge.ask(StartRedrive("/", name_at(0, count, nth=1), RedriveRequest()))
        assert task.state == "running"
        again = await server.edge.ask(Lease(queue, 1, wait_ms=5_000))
        assert [bytes(body) for body in again.bodies] == [b"letter"] and list(again.receives) == [1]

    server(work)


def test_a_letter_whose_queue_is_gone_comes_back_and_stays_dead(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        count = server.partition_count
        name, target = name_at(1, count), name_at(0, count, nth=1)
        await declare(server.edge, target)
        queue = await declare(server.edge, name, dead_letter_queue=target)
        await publish(server.edge, [queue], b"letter")
        partition = server.partitions[1]
        deliver = partition.crossing._deliver
        assert deliver is not None
        held: list[tuple[Any, ...]] = []
        partition.crossing._deliver = lambda *asked: held.append(asked)
        taken = await server.edge.ask(Lease(queue, 1))
        await server.edge.ask(Settle(queue, [Settlement("reject", taken.tokens()[0])]))
        await until(lambda: held)
        await server.edge.ask(ChangeQueue("/", name, {"dead_letter_queue": None}))
        assert await server.edge.ask(DeleteQueue("/", target)) == 0
        deliver(*held[0])
        partition.crossing._deliver = deliver
        await until(lambda: local_number(queue) in {q.number for q in partition.engine.state.queues.values() if q.dead})
        (glimpse,), _ = await server.edge.ask(Peek("/", name, PeekQuery(states=("dead",))))
        assert (glimpse.body, [death.reason for death in glimpse.deaths]) == (b"letter", ["rejected"])
        assert not partition.engine.state.outboxes[0].ready

    server(work)


def test_entries_are_done_once_however_often_they_come(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        queue = await declare(server.edge, name_at(1))
        entry = OutboxEntry(7, Parcel([(local_number(queue),)], [b"x"], [b""]))
        leader = server.processes[0].locals[1]
        first = await leader.ask(Receive(0, [entry]))
        assert len(first[0]) == 1
        assert await leader.ask(Receive(0, [entry])) == first  # its answer was lost
        later = OutboxEntry(9, Parcel([(local_number(queue),)], [b"y"], [b""]))
        ((answer), _) = await leader.ask(Receive(0, [entry, later]))
        assert answer == first[0]
        (forgotten,) = await leader.ask(Receive(0, [OutboxEntry(3, entry.what)]))
        assert isinstance(forgotten, OutcomeUnknown)
        assert await bodies(server, queue) == [b"x", b"y"]

    run(tmp_path, work)


def test_a_fan_out_stays_behind_what_waits_for_a_partition_that_does_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that leads no partition: what it sends to one may take another way than what that passes on."""
    monkeypatch.setattr("laneway.cluster.asking.MAX_BYTES", 2_000)

    async def work(server: SeveralPartitions) -> None:
        first, second = await queues_of(server)
        third = await declare(server.edge, name_at(0, nth=1))
        edge, remote, answers = server.processes[2].edge, server.processes[2].remotes[1], list[Any]()
        assert remote._link is not None
        remote.link_full(remote._link, True)
        edge.send(Publish((second,), messages(b"first".ljust(3_000))), answers.append)
        edge.send(Publish((first, second), messages(b"second")), answers.append)
        for _ in range(20):  # time for the second to overtake the first
            await publish(edge, [third], b"another")
        assert answers == []
        remote.link_full(remote._link, False)
        await until(lambda: len(answers) == 2)
        assert [body.strip() for body in await bodies(server, second)] == [b"first", b"second"]

    run(tmp_path, work, partitions=2, processes=3)


def test_fan_outs_that_wait_for_a_partition_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laneway.cluster.spreading.MAX_BYTES", 10_000)

    async def work(server: SeveralPartitions) -> None:
        own, other = await queues_of(server)
        remote, answers = server.processes[0].remotes[1], list[Any]()
        assert remote._link is not None
        remote.link_full(remote._link, True)
        for _ in range(20):
            server.edge.send(Publish((own, other), messages(b"x" * 1_000)), answers.append)
        assert len(answers) == 13 and all(isinstance(answer, Unavailable) for answer in answers)
        assert "7 publishes for queues of several partitions wait" in str(answers[0])
        remote.link_full(remote._link, False)
        await until(lambda: len(answers) == 20)
        assert len(await bodies(server, own)) == len(await bodies(server, other)) == 7
        await publish(server.edge, [own, other], b"all have left")

    run(tmp_path, work, processes=2)


def test_one_timer_looks_whether_commits_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsynced = partial(SegmentJournal, durability="interval", interval_ms=60_000)
    monkeypatch.setattr("tests.cluster.partitions.SegmentJournal", unsynced)

    async def work(server: SeveralPartitions) -> None:
        own, other = await queues_of(server)
        timers: list[Callable[..., None]] = []
        server.partitions[0].call_later = lambda delay_ms, call, *given: timers.append(call)  # type: ignore[method-assign]
        server.edge.send(Publish((own, other), messages(b"to both")), lambda answer: None)
        for _ in range(20):
            await publish(server.edge, [own], b"another commit")
        assert len(timers) == 1
        timers.pop()()
        assert len(timers) == 1, "it is not synced yet"

    run(tmp_path, work)


def test_a_fan_out_waits_for_a_partition_that_is_away(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        queues = [await declare(server.edge, name_at(0)), await declare(server.edge, name_at(1))]
        await publish(server.edge, queues, b"before")
        await server.lose(1)
        asked = asyncio.ensure_future(publish(server.edge, queues, b"while away"))
        await until(
            lambda: (
                1 in server.partitions[0].engine.state.outboxes and server.partitions[0].engine.state.outboxes[1].ready
            )
        )
        await server.start_again(1)
        arrivals = await asked
        assert sorted(arrival.queue for arrival in arrivals) == sorted(queues)
        for queue in queues:
            assert await bodies(server, queue) == [b"before", b"while away"]

    run(tmp_path, work, processes=2)


def test_entries_leave_after_a_restart_of_their_sender(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        queues = [await declare(server.edge, name_at(0)), await declare(server.edge, name_at(1))]
        crossing = server.partitions[0].crossing
        crossing._deliver = lambda *asked: None  # nothing leaves any more
        asked = asyncio.ensure_future(publish(server.edge, queues, b"x"))
        await until(lambda: 1 in server.partitions[0].engine.state.outboxes)
        await server.edge.ask(Sync())
        await server.lose(0)
        with pytest.raises(OutcomeUnknown):
            await asked
        await server.start_again(0)
        assert await bodies(server, queues[0]) == [b"x"]
        assert await bodies(server, queues[1], wait_ms=5_000) == [b"x"]

    run(tmp_path, work, processes=2)


def test_a_producers_batch_is_published_once_in_all_partitions(server: Callable[[Work], None]) -> None:
    async def work(server: SeveralPartitions) -> None:
        queues = await queues_of(server, max_messages=3, overflow="reject")
        names = [name_at(partition, server.partition_count) for partition in range(server.partition_count)]
        edge = server.processes[-1].edge
        for queue in queues[1:]:
            await publish(edge, [queue], b"a", b"b", b"c")
        batch = [Addressed("/", names[i % len(names)], "", "", Draft(b"%d" % i)) for i in range(2 * len(names))]
        await edge.ask(StagePart("spark", "s", "1", batch, [], "me"))
        for already in (False, True):
            outcome = await edge.ask(CommitBatch("spark", 1, "s", ["1"], "me"))
            assert (outcome.published, outcome.already) == (len(batch), already)
        for at, queue in enumerate(queues):
            before = [b"a", b"b", b"c"] if at else []  # what was committed elsewhere is taken by a full queue too
            assert await bodies(server, queue) == [*before, b"%d" % at, b"%d" % (at + len(names))]

    server(work)
