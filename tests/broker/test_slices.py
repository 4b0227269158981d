"""Purging, deleting and giving back very much goes in slices: others have their turns in between, and nothing that
comes meanwhile is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laneway.broker import interface as i
from laneway.broker.values import Draft
from laneway.core import purging
from laneway.core.events import Event, Kind
from laneway.core.invariants import check_invariants
from laneway.core.message import Properties, Settlement, messages_of
from laneway.core.settings import QueueSettings
from laneway.errors import Conflict, DiskFull, LanewayError, QueueNotFound

from .conftest import Bench
from .consuming import Connection, Consumer, numbered

Run = Callable[..., None]
COUNT = 3_500  # four slabs


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "SLICE", 1_000)


async def filled(b: Bench, name: str = "q", count: int = COUNT, **settings: Any) -> None:
    """A queue whose messages go one by one."""
    await b.queue(name, **settings)
    drafts = [Draft(b"%d" % n, properties=Properties(group=str(n % 9))) for n in range(count)]
    await b.publish_drafts(drafts, name)


def begun(b: Bench, request: i.Request) -> list[Any]:
    """Where the answer will be found. Of what is asked for, the first slice is done, and no more."""
    answers = b.send(request)
    assert not answers, "it takes more than one turn"
    return answers


async def told(answers: list[Any]) -> Any:
    async with asyncio.timeout(5):
        while not answers:
            await asyncio.sleep(0)
    return answers[0]


def events(staged: list[Event], kind: Kind) -> list[Event]:
    return [event for event in staged if event.kind is kind]


def test_a_purge_of_very_much_goes_in_slices_and_tells_how_many_went_in_all(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await filled(b)
        staged = b.staged()
        answers = begun(b, i.PurgeQueue("/", "q"))
        first = (await b.stats()).ready
        assert COUNT - 2_200 < first < COUNT
        await b.publish(b"meanwhile")
        assert await told(answers) == COUNT
        assert len(events(staged, Kind.QUEUE_PURGED)) >= 3
        stats = await b.stats()
        assert (stats.ready, stats.totals["purged"]) == (1, COUNT)
        assert [one.body for one in await b.lease()] == [b"meanwhile"]
        check_invariants(b.engine.state)

    run(scenario)


def test_what_is_little_goes_at_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await filled(b, count=900)
        staged = b.staged()
        b.send(i.PurgeQueue("/", "q"))
        assert (await b.stats()).ready == 0 and len(staged) == 1
        await filled(b, "other", count=900)
        b.send(i.DeleteQueue("/", "other"))
        assert b.find("other") is None

    run(scenario)


def test_a_purge_with_what_consumers_hold_takes_that_too(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await filled(b)
        held = await b.lease(2_000)
        answers = begun(b, i.PurgeQueue("/", "q", leased=True))
        await b.settle("release", held[-3:])  # whether they went already or not: they go
        assert await told(answers) == COUNT
        assert not purging.weight(b.engine.state.by_name["/", "q"])
        (result,) = await b.settle("ack", held[:1])
        assert isinstance(result, LanewayError)
        check_invariants(b.engine.state)

    run(scenario)


def test_a_crash_in_the_middle_of_a_purge_leaves_what_is_not_purged_yet(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await filled(b)
        answers = begun(b, i.PurgeQueue("/", "q"))
        left = (await b.stats()).ready
        await b.restart()
        assert isinstance(answers[0], LanewayError), "the node stopped before it was done"
        assert 0 < (await b.stats()).ready <= left
        assert await b.ask(i.PurgeQueue("/", "q")) <= left
        check_invariants(b.engine.state)

    run(scenario)


def test_a_purge_that_the_disk_stops_says_so_and_can_be_asked_for_again(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await filled(b)
        answers = begun(b, i.PurgeQueue("/", "q"))
        b.partition.committer.stuck = DiskFull("no space")
        assert isinstance(await told(answers), DiskFull)
        b.partition.committer.stuck = None
        left = (await b.stats()).ready
        assert 0 < left < COUNT
        assert await b.ask(i.PurgeQueue("/", "q")) == left

    run(scenario)


def test_a_queue_that_is_being_deleted_is_gone_for_everybody_but_for_its_name(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await filled(b)
        held = await b.lease(50)
        consumer = Consumer(b, credit=1)
        waits = b.send(i.Lease(b.id(), 1, wait_ms=20_000))
        number = b.id()
        await b.turns()
        ready = (await b.stats()).ready
        answers = begun(b, i.DeleteQueue("/", "q"))
        await asyncio.sleep(0)
        assert consumer.has_ended and waits
        for refused in (
            i.Lease(number, 1),
            i.Settle(number, [Settlement("ack", held[0].token)]),
            i.Subscribe(consumer.connection.session, 9, number),
            i.PurgeQueue("/", "q"),
            i.DeleteQueue("/", "q"),
        ):
            with pytest.raises(QueueNotFound):
                await b.ask(refused)
            assert not answers
        for conflict in (
            i.PutQueue("/", "q", QueueSettings()),
            i.PutQueue("/", "letters", QueueSettings(dead_letter_queue="q")),
            i.DeclareQueue("/", "q", None),
        ):
            with pytest.raises(Conflict, match="is being deleted"):
                await b.ask(conflict)
        assert not answers
        assert await told(answers) == ready
        assert b.find() is None and not b.partition.queues.going
        await b.queue()
        assert (await b.stats()).ready == 0
        check_invariants(b.engine.state)
        assert len(b.engine.state.table) == 0

    run(scenario)


def test_what_is_published_into_a_queue_that_is_being_deleted_goes_with_it(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await filled(b)
        number, published = b.id(), 0
        answers = begun(b, i.DeleteQueue("/", "q"))
        while not answers:
            b.send(i.Publish((number,), messages_of([Draft(b"x")])))
            published += 1
            await asyncio.sleep(0)
        assert published > 2 and b.find() is None
        await b.turns()
        assert len(b.engine.state.table) == 0
        check_invariants(b.engine.state)

    run(scenario)


@pytest.mark.parametrize("way", ["exclusive", "auto_delete"])
def test_a_deep_queue_that_goes_with_its_users_goes_in_slices(run: Run, way: str) -> None:
    async def scenario(b: Bench) -> None:
        connection = Connection(b)
        session = connection.session if way == "exclusive" else 0
        await b.ask(i.DeclareQueue("/", "q", QueueSettings(**{way: True}), session))
        Consumer(b, on=connection, credit=1)
        drafts = [Draft(b"x", properties=Properties(group=str(n % 9))) for n in range(COUNT)]
        await b.publish_drafts(drafts)
        await b.turns()
        connection.end()
        assert b.find() is not None, "it takes more than one turn"
        async with asyncio.timeout(5):
            while b.find() is not None:
                await asyncio.sleep(0)
        assert not b.partition.sessions.owners and not len(b.engine.state.table)
        check_invariants(b.engine.state)

    run(scenario)


def test_a_virtual_host_with_a_deep_queue_goes_in_slices(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.ask(i.CreateVhost("v"))
        await b.ask(i.PutQueue("v", "q", QueueSettings()))
        number = b.topology.find_queue("v", "q").queue
        drafts = [Draft(b"x", properties=Properties(group=str(n % 9))) for n in range(COUNT)]
        await b.ask(i.Publish((number,), messages_of(drafts)))
        staged = b.staged()
        await b.ask(i.DeleteVhost("v"))
        assert len(events(staged, Kind.QUEUE_PURGED)) >= 3
        assert len(b.engine.state.table) == 0

    run(scenario)


@pytest.mark.parametrize("action", ["release", "reject"])
def test_what_a_connection_gives_back_goes_in_slices_in_order(run: Run, action: str) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(COUNT))
        consumer = Consumer(b)
        await b.turns()
        assert len(consumer.held) == COUNT
        connection = consumer.connection
        seqs, leases, _ = zip(*consumer.held, strict=True)
        b.send(i.EndSession(connection.session))
        connection.is_over = True
        for at in range(0, COUNT, 100):  # as they were delivered: not one of the requests is large
            part = slice(at, at + 100)
            b.send(i.SettleHeld(connection.session, b.id(), list(seqs[part]), list(leases[part]), action))
        b.partition.inbox.drain()
        queue = b.engine.state.by_name["/", "q"]
        back = COUNT - queue.leased
        assert 0 < back <= 2_000, "others have their turns"
        assert await b.publish(b"of another")
        await b.turns(COUNT // 1_000 + 2)
        stats = await b.stats()
        assert stats.leased == 0 and (stats.dead if action == "reject" else stats.ready - 1) == COUNT
        if action == "release":
            assert [one.body for one in await b.lease(COUNT + 1)] == [*numbered(COUNT), b"of another"]
        check_invariants(b.engine.state)

    run(scenario)


def test_a_queue_that_goes_while_it_is_given_back_to_hinders_nobody(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(COUNT))
        consumer = Consumer(b)
        await b.turns()
        seqs, leases, _ = zip(*consumer.held, strict=True)
        b.send(i.SettleHeld(consumer.connection.session, b.id(), list(seqs), list(leases), "release"))
        b.partition.inbox.drain()
        await b.delete()
        await b.turns(5)
        assert b.find() is None and len(b.engine.state.table) == 0
        await b.queue()
        await b.publish(b"x")

    run(scenario)
