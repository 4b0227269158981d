"""Subscriptions, single messages on demand, settling by number, and queues that live and die with their users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from laneway.broker.audiences import Credit, Subscription
from laneway.broker.values import Batch, Draft
from laneway.core.invariants import check_invariants
from laneway.core.message import encode_props
from laneway.core.settings import QueueSettings
from laneway.errors import Conflict, QueueInUse, QueueNotFound, Unavailable

from .conftest import Bench, bodies

Run = Callable[..., None]


class Consumer:
    """Notes what it gets, and settles what it is told to."""

    def __init__(self, b: Bench, queue: str = "q", *, credit: int = 0, **options: Any) -> None:
        self.b = b
        self.got: list[bytes] = []
        self.held: list[tuple[int, int, int, bytes]] = []  # queue, seq, lease, body
        self.batches: list[Batch] = []
        self.was_cancelled = False
        self.subscription: Subscription = b.broker.sessions.subscribe(
            "/", queue, tag="t", credit=credit, deliver=self._deliver, cancelled=self._cancelled, **options
        )

    def _deliver(self, subscription: Subscription, batch: Batch) -> None:
        assert subscription is self.subscription
        self.batches.append(batch)
        self.got += batch.bodies
        rows = zip(batch.seqs, batch.bodies, strict=True)
        self.held += [(batch.queue, seq, batch.first_lease + i, body) for i, (seq, body) in enumerate(rows)]

    def _cancelled(self, subscription: Subscription) -> None:
        self.was_cancelled = True

    def settle(self, action: str, *chosen: bytes, grant: bool = True) -> None:
        """Those with these bodies; all that it holds if none are named."""
        picked = [entry for entry in self.held if not chosen or entry[3] in chosen]
        assert picked
        self.held = [entry for entry in self.held if entry not in picked]
        queue = picked[0][0]
        self.b.broker.sessions.settle(queue, [p[1] for p in picked], [p[2] for p in picked], action)
        if grant:
            self.subscription.grant(len(picked))


async def turns(b: Bench, count: int = 3) -> None:
    """Let what is planned happen, and what is staged become durable."""
    for _ in range(count):
        await b.broker.durable()
        await asyncio.sleep(0)


async def get(b: Bench, queue: str = "q", **options: Any) -> Batch | None:
    answer: asyncio.Future[Batch | None] = asyncio.get_running_loop().create_future()
    b.broker.sessions.get("/", queue, answer.set_result, **options)
    return await asyncio.wait_for(answer, 5)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]


# Subscriptions and credit


def test_what_waits_and_what_comes_is_pushed(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        consumer = Consumer(b)
        await turns(b)
        assert consumer.got == numbered(3)
        await b.publish(*numbered(2, 3))
        assert consumer.got == numbered(5)
        assert b.broker.sessions.counts("/", "q") == (0, 1)

    run(scenario)


def test_no_more_is_outstanding_than_there_is_credit_for(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(10))
        consumer = Consumer(b, credit=3)
        await turns(b)
        assert consumer.got == numbered(3)
        consumer.settle("ack", b"1")
        await turns(b)
        assert consumer.got == numbered(4)
        consumer.settle("ack", grant=False)
        await turns(b)
        assert consumer.got == numbered(4), "settling gives no credit by itself"
        consumer.subscription.grant(3)
        await turns(b)
        assert consumer.got == numbered(7)

    run(scenario)


def test_subscriptions_that_share_a_pool_share_its_credit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("a")
        await b.queue("b")
        await b.publish(*numbered(5), queue="a")
        await b.publish(*numbered(5), queue="b")
        pool = Credit(4)
        one, other = Consumer(b, "a", credit=3, pool=pool), Consumer(b, "b", pool=pool)
        await turns(b)
        assert len(one.got) + len(other.got) == 4 and len(one.got) <= 3
        pool.set(6)  # six more than now
        await turns(b)
        assert len(one.got) == 3 and len(other.got) == 5
        one.settle("ack")
        await turns(b)
        assert one.got == numbered(5)

    run(scenario)


def test_a_pool_that_shrinks_is_owed_before_it_gives_again(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(9))
        pool = Credit(4)
        consumer = Consumer(b, pool=pool)
        await turns(b)
        pool.set(1 - 4)
        consumer.settle("ack", b"0", b"1", b"2")
        await turns(b)
        assert consumer.got == numbered(4)
        consumer.settle("ack", b"3")
        await turns(b)
        assert consumer.got == numbered(5)

    run(scenario)


def test_consumers_take_turns(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        consumers = [Consumer(b), Consumer(b), Consumer(b)]
        for body in numbered(6):
            await b.publish(body)
        assert [consumer.got for consumer in consumers] == [[b"0", b"3"], [b"1", b"4"], [b"2", b"5"]]
        await b.publish(*numbered(6, 6))
        assert [len(consumer.got) for consumer in consumers] == [4, 4, 4]

    run(scenario)


def test_a_higher_priority_is_served_first_as_long_as_it_has_credit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        low, high = Consumer(b), Consumer(b, credit=2, priority=5)
        await b.publish(*numbered(3))
        assert (high.got, low.got) == ([b"0", b"1"], [b"2"])
        high.settle("ack")
        await turns(b)
        await b.publish(b"3")
        assert (high.got[-1], low.got) == (b"3", [b"2"])

    run(scenario)


def test_a_single_active_consumer_has_a_successor(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(single_active_consumer=True)
        first, second, urgent = Consumer(b, credit=1), Consumer(b), Consumer(b, priority=1)
        await b.publish(*numbered(2))
        assert (first.got, second.got, urgent.got) == ([], [], numbered(2))
        urgent.subscription.cancel()
        await b.publish(*numbered(2, 2))
        assert (first.got, second.got) == ([b"2"], []), "without credit it is still the one"
        first.subscription.cancel()
        await turns(b)
        assert second.got == [b"3"]

    run(scenario)


def test_a_single_active_consumer_gives_way_to_a_higher_one_when_it_holds_nothing(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(single_active_consumer=True)
        first = Consumer(b, credit=10)
        await b.publish(*numbered(2))
        urgent = Consumer(b, priority=1)
        await b.publish(b"2")
        assert (first.got, urgent.got) == (numbered(2), []), "one holds messages, and gets no more"
        first.settle("ack", b"0")
        await turns(b)
        assert (first.got, urgent.got) == (numbered(2), [])
        first.settle("ack", b"1")
        await turns(b)
        assert (first.got, urgent.got) == (numbered(2), [b"2"])
        Consumer(b, priority=1)
        await b.publish(b"3")
        assert urgent.got == [b"2", b"3"], "one of the same priority waits"

    run(scenario)


def test_a_higher_consumer_does_not_wait_for_those_who_hold_without_being_subscribed(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(single_active_consumer=True)
        await b.publish(b"elsewhere")
        assert await get(b) is not None
        first = Consumer(b, credit=10)
        await b.publish(b"0")
        urgent = Consumer(b, priority=1)
        await b.publish(b"1")
        assert (first.got, urgent.got) == ([b"0"], [])
        first.settle("ack")
        await turns(b)
        assert (first.got, urgent.got) == ([b"0"], [b"1"])

    run(scenario)


def test_what_holds_up_a_higher_consumer_ends_with_the_lease(run: Run) -> None:
    """It may never say that it is done with the message: it holds nothing then, and the queue must not stand still."""

    async def scenario(b: Bench) -> None:
        await b.queue(single_active_consumer=True, lease_ms=60_000)
        first = Consumer(b, credit=10)
        await b.publish(b"0")
        urgent = Consumer(b, priority=1)
        await b.publish(b"1")
        assert (first.got, urgent.got) == ([b"0"], [])
        b.pass_time(61_000)
        await turns(b)
        assert (first.got, urgent.got) == ([b"0"], [b"0", b"1"])

    run(scenario)


def test_a_single_active_consumer_goes_on_when_the_higher_one_leaves(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(single_active_consumer=True)
        first = Consumer(b, credit=10)
        await b.publish(b"0")
        urgent = Consumer(b, priority=1)
        await b.publish(b"1")
        assert (first.got, urgent.got) == ([b"0"], [])
        urgent.subscription.cancel()
        await turns(b)
        assert (first.got, urgent.got) == ([b"0", b"1"], [])

    run(scenario)


def test_whether_one_consumer_alone_is_active_may_change_while_they_are_connected(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        first, second = Consumer(b, credit=1), Consumer(b, credit=1)
        await b.publish(*numbered(2))
        assert (first.got, second.got) == ([b"0"], [b"1"])
        await b.broker.queues.change("/", "q", {"single_active_consumer": True})
        second.settle("ack")
        await b.publish(b"2")
        assert (first.got, second.got) == ([b"0"], [b"1"]), "the first is the one, and may hold no more"
        await b.broker.queues.change("/", "q", {"single_active_consumer": False})
        await turns(b)
        assert (first.got, second.got) == ([b"0"], [b"1", b"2"])

    run(scenario)


def test_an_exclusive_consumer_is_alone(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        alone = Consumer(b, exclusive=True)
        for exclusive in (False, True):
            with pytest.raises(QueueInUse):
                Consumer(b, exclusive=exclusive)
        alone.subscription.cancel()
        Consumer(b)
        with pytest.raises(QueueInUse):
            Consumer(b, exclusive=True)

    run(scenario)


def test_there_are_only_so_many_consumers(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        Consumer(b), Consumer(b)
        with pytest.raises(Unavailable):
            Consumer(b)

    run(scenario, max_waiters_per_queue=2)


def test_a_paused_consumer_gets_nothing_until_it_resumes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        paused, other = Consumer(b), Consumer(b, credit=1)
        paused.subscription.pause()
        await b.publish(*numbered(3))
        assert (paused.got, other.got) == ([], [b"0"])
        paused.subscription.resume()
        await turns(b)
        assert paused.got == [b"1", b"2"]

    run(scenario)


def test_what_is_not_to_be_acked_is_gone_when_it_is_handed_out(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        consumer = Consumer(b, no_ack=True)
        await turns(b)
        assert consumer.got == numbered(3)
        await b.restart()
        assert await get(b) is None

    run(scenario)


def test_a_cancelled_consumer_gets_nothing_more_and_may_settle(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(2))
        consumer = Consumer(b)
        await turns(b)
        consumer.subscription.cancel()
        consumer.subscription.cancel()
        await b.publish(b"2")
        assert consumer.got == numbered(2) and not consumer.was_cancelled
        consumer.settle("ack")
        await turns(b)
        batch = await get(b)
        assert batch is not None and batch.bodies == [b"2"]

    run(scenario)


def test_waiting_requests_come_before_subscriptions(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        consumer = Consumer(b)
        waiting = asyncio.create_task(b.lease(1, wait_ms=5_000))
        await asyncio.sleep(0)
        await b.publish(*numbered(2))
        assert bodies(await waiting) == [b"0"]
        assert consumer.got == [b"1"]

    run(scenario)


def test_what_is_durable_does_not_wait_for_what_is_not_yet(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_priority=9)
        await b.publish(b"low", b"lower", priority=1)
        consumer = Consumer(b, credit=1)
        sessions, number = b.broker.sessions, b.broker.sessions.number("/", "q")
        sessions.dispatch(number)
        sessions.publish_columns([((number,), (9,), [b""], [b"high"])], 4)
        b.broker.run_gathered()
        assert consumer.got == [b"low"] and b.broker.queues.stats("/", "q").leased == 1
        consumer.subscription.grant(1)
        sessions.dispatch(number)
        assert consumer.got == [b"low", b"lower"]
        consumer.subscription.grant(1)
        sessions.dispatch(number)
        assert consumer.got == [b"low", b"lower"] and b.broker.queues.stats("/", "q").leased == 2
        await turns(b)
        assert consumer.got == [b"low", b"lower", b"high"]

    run(scenario)


def test_deliveries_to_one_consumer_are_in_order_whatever_commits_do(run: Run) -> None:

    async def scenario(b: Bench) -> None:
        random = Random(7)
        await b.queue(max_receives=None)
        consumers = [Consumer(b, credit=credit) for credit in (0, 0, 5)]
        number = b.broker.sessions.number("/", "q")
        sent, priorities = 0, dict[bytes, int]()
        for _ in range(300):
            for _ in range(random.randint(1, 3)):
                some = numbered(random.randint(1, 4), sent)
                sent += len(some)
                priority = random.choice((1, 5))
                priorities |= dict.fromkeys(some, priority)
                if random.random() < 0.5:
                    b.broker.sessions.publish_columns(
                        [((number,), (priority,), [b""] * len(some), some)], sum(map(len, some))
                    )
                else:
                    b.broker.publish("/", "q", [Draft(body, priority) for body in some], lambda _: None)
                if random.random() < 0.3:
                    random.choice(consumers).subscription.pause()
            for consumer in consumers:
                if random.random() < 0.7:
                    consumer.subscription.resume()
            await asyncio.sleep(random.choice((0, 0, 0, 0.001)))
            for consumer in consumers:
                if consumer.held and random.random() < 0.5:
                    consumer.settle("ack", *[held[3] for held in consumer.held[: random.randint(1, 6)]])
        for consumer in consumers:
            consumer.subscription.resume()
        while sum(len(consumer.got) for consumer in consumers) < sent:
            await asyncio.sleep(0.001)
            for consumer in consumers:
                if consumer.held:
                    consumer.settle("ack")
        for consumer in consumers:
            for priority in (1, 5):
                of_one = [int(body) for body in consumer.got if priorities[body] == priority]
                assert of_one == sorted(of_one)
            leases = [batch.first_lease for batch in consumer.batches]
            assert leases == sorted(leases), "a batch overtook another"
        assert sorted(int(body) for consumer in consumers for body in consumer.got) == list(range(sent))
        check_invariants(b.engine.state)

    run(scenario)


# Settling


def test_released_messages_go_back_to_their_place_and_say_so(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        consumer = Consumer(b, credit=2)
        await turns(b)
        consumer.settle("release", b"0", grant=False)
        consumer.settle("ack", b"1", grant=False)
        await turns(b)
        batch = await get(b)
        assert batch is not None and (batch.bodies, list(batch.receives)) == ([b"0"], [2])

    run(scenario)


def test_rejected_messages_are_dead(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("dead")
        await b.queue(dead_letter_queue="dead")
        await b.publish(b"bad")
        consumer = Consumer(b)
        await turns(b)
        consumer.settle("reject")
        await turns(b)
        batch = await get(b, "dead")
        assert batch is not None and batch.bodies == [b"bad"] and batch.stories is not None
        assert [death.reason for death in batch.stories[batch.seqs[0]].deaths] == ["rejected"]

    run(scenario)


def test_leases_that_ended_are_passed_over(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000, max_receives=None)
        await b.publish(*numbered(3))
        first = Consumer(b, credit=3)
        await turns(b)
        first.subscription.pause()
        held = list(first.held)
        first.settle("ack", b"0")
        b.pass_time(2_000)
        second = Consumer(b)
        await turns(b)
        assert second.got == [b"1", b"2"]
        seqs, leases = [seq for _, seq, _, _ in held], [lease for _, _, lease, _ in held]
        for action in ("ack", "release", "reject", "extend"):
            b.broker.sessions.settle(held[0][0], seqs, leases, action, lease_ms=1_000)
        b.broker.sessions.settle(999, seqs, leases, "ack")
        b.broker.sessions.settle(held[0][0], [1 << 40], [7], "ack")
        await turns(b)
        assert b.broker.queues.stats("/", "q").leased == 2, "the second one holds them"
        twice = [second.held[0][1]] * 2
        b.broker.sessions.settle(held[0][0], twice, [second.held[0][2]] * 2, "ack")
        assert b.broker.queues.stats("/", "q").leased == 1
        check_invariants(b.engine.state)

    run(scenario)


def test_an_extended_lease_holds_longer(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000)
        await b.publish(b"x")
        consumer = Consumer(b, credit=1)
        await turns(b)
        queue, seq, lease, _ = consumer.held[0]
        b.broker.sessions.settle(queue, [seq], [lease], "extend", lease_ms=60_000)
        b.pass_time(30_000)
        assert b.broker.queues.stats("/", "q").leased == 1
        b.pass_time(40_000)
        assert b.broker.queues.stats("/", "q").ready == 1

    run(scenario)


def test_a_restart_gives_back_what_connections_held_and_nothing_else(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_800_000, max_receives=2)
        await b.publish(*numbered(4))
        plain = await b.lease(1)
        consumer = Consumer(b, credit=1)
        await turns(b)
        assert consumer.got == [b"1"]
        await b.restart()
        assert (b.broker.queues.stats("/", "q").ready, b.broker.queues.stats("/", "q").leased) == (3, 1)
        assert await b.settle("ack", plain) == [0]
        batch = await get(b)
        assert batch is not None and (batch.bodies, list(batch.receives)) == ([b"1"], [2])
        await b.restart()
        assert b.broker.queues.stats("/", "q").dead == 1, "that was its last try"

    run(scenario)


# One at a time


def test_get_hands_out_one_and_none_if_there_is_none(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        assert await get(b) is None
        await b.publish(b"low", priority=1)
        await b.publish(b"high", priority=9)
        batch = await get(b)
        assert batch is not None and (batch.bodies, bytes(batch.priorities)) == ([b"high"], b"\x09")
        batch = await get(b, no_ack=True)
        assert batch is not None and batch.bodies == [b"low"]
        await turns(b)
        assert (b.broker.queues.stats("/", "q").leased, b.broker.queues.stats("/", "q").ready) == (1, 0)
        with pytest.raises(QueueNotFound):
            await get(b, "none")

    run(scenario)


def test_get_waits_until_the_message_is_durable(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        got: list[Batch | None] = []
        b.broker.publish("/", "q", [Draft(b"x")], lambda _: None)
        b.broker.sessions.get("/", "q", got.append)
        assert got == []
        await b.broker.durable()
        assert got[0] is not None and got[0].bodies == [b"x"]

    run(scenario)


# Publishing


def test_one_message_for_several_queues_is_capped_in_each(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("narrow", max_priority=2)
        await b.queue("wide", max_priority=9)
        sessions = b.broker.sessions
        numbers = [sessions.number("/", "narrow"), sessions.number("/", "wide")]
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sessions.publish(numbers, Draft(b"x", priority=7), answer.set_result)
        assert await answer is None
        assert sessions.priorities(numbers, 7) == (2, 7)
        for queue, priority in (("narrow", 2), ("wide", 7)):
            batch = await get(b, queue)
            assert batch is not None and list(batch.priorities) == [priority]

    run(scenario)


def test_columns_reach_all_their_queues_in_order(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("a", max_priority=9)
        await b.queue("b", max_priority=9)
        await b.queue("small", max_messages=3)
        sessions = b.broker.sessions
        a, other, small = (sessions.number("/", name) for name in ("a", "b", "small"))
        assert sessions.takes_columns((a, other), 100) and not sessions.takes_columns((a, small), 100)
        assert not sessions.takes_columns((a, 999), 100) and not sessions.takes_columns((a,), 1 << 30)
        props = encode_props(Draft(b"").properties)
        runs = [((a, other), (5, 5), [props] * 3, numbered(3)), ((a,), (1,), [props] * 2, numbered(2, 3))]
        sessions.publish_columns(runs, 5)
        await b.restart()
        assert bodies(await b.lease(10, "a")) == numbered(5)
        assert bodies(await b.lease(10, "b")) == numbered(3)

    run(scenario)


# Queues and their users


def test_an_auto_delete_queue_goes_with_its_last_consumer(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        b.broker.sessions.declare_queue("/", "q", QueueSettings(auto_delete=True))
        one, other = Consumer(b), Consumer(b)
        one.subscription.cancel()
        assert b.broker.queues.find("/", "q") is not None
        other.subscription.cancel()
        assert b.broker.queues.find("/", "q") is None

    run(scenario)


def test_consumers_are_told_when_their_queue_goes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(2))
        consumer = Consumer(b, credit=1)
        await turns(b)
        with pytest.raises(QueueInUse):
            b.broker.sessions.delete_queue("/", "q", if_unused=True)
        with pytest.raises(Conflict):
            b.broker.sessions.delete_queue("/", "q", if_empty=True)
        assert b.broker.sessions.delete_queue("/", "q") == 1
        assert consumer.was_cancelled
        consumer.settle("ack")
        consumer.subscription.cancel()
        await b.queue()
        await b.publish(b"new")
        assert consumer.got == [b"0"]

    run(scenario)


def test_an_unused_queue_expires_and_a_used_one_does_not(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        for name in ("unused", "consumed", "asked"):
            b.broker.sessions.declare_queue("/", name, QueueSettings(expires_ms=60))
        consumer = Consumer(b, "consumed")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 5
        while b.broker.queues.find("/", "unused") is not None:
            assert loop.time() < deadline_s
            await get(b, "asked")
            await asyncio.sleep(0.005)
        assert b.broker.queues.find("/", "consumed") is not None and b.broker.queues.find("/", "asked") is not None
        consumer.subscription.cancel()
        while b.broker.queues.find("/", "consumed") is not None or b.broker.queues.find("/", "asked") is not None:
            assert loop.time() < deadline_s
            await asyncio.sleep(0.005)

    run(scenario)


def test_a_queue_has_its_owner_until_it_goes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        owner, other = object(), object()
        sessions = b.broker.sessions
        sessions.declare_queue("/", "q", QueueSettings(exclusive=True), owner)
        sessions.declare_queue("/", "q", QueueSettings(exclusive=True), other)
        assert sessions.queue_owner("/", "q") is owner
        assert sessions.owned_by(owner) == ["q"] and sessions.owned_by(other) == []
        sessions.delete_queue("/", "q")
        sessions.declare_queue("/", "q", QueueSettings())
        assert sessions.queue_owner("/", "q") is None
        assert sessions.owned_by(owner) == []
        sessions.declare_queue("/", "own", QueueSettings(exclusive=True), owner)
        await b.restart()
        assert b.broker.queues.find("/", "own") is None and b.broker.queues.find("/", "q") is not None

    run(scenario)


# Damage


def damage(b: Bench, body: bytes) -> None:
    """Change a body where it is kept, and forget what is in memory."""
    b.engine.cache._slabs.clear()
    for path in b.folder.glob("*.segment"):
        data = path.read_bytes()
        if body in data:
            with path.open("r+b") as file:
                file.seek(data.index(body))
                file.write(bytes(len(body)))
            return
    raise AssertionError("not found")


def test_a_damaged_message_is_passed_over_and_takes_no_credit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_receives=None, lease_ms=1_000)
        sent = [b"body number %d" % i for i in range(4)]
        await b.publish(*sent)
        damage(b, sent[1])
        consumer = Consumer(b, credit=2)
        await turns(b)
        assert consumer.got == [sent[0], sent[2]]
        consumer.settle("ack")
        await turns(b)
        assert consumer.got == [sent[0], sent[2], sent[3]]
        assert b.broker.queues.stats("/", "q").leased == 2, "it is not lost: it comes back when its lease ends"
        consumer.subscription.cancel()
        b.pass_time(5_000)
        assert b.broker.queues.stats("/", "q").ready == 2

    run(scenario)


def test_get_and_consumers_without_acks_pass_over_a_damaged_message(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_receives=None, lease_ms=1_000)
        sent = [b"body number %d" % i for i in range(3)]
        await b.publish(*sent)
        damage(b, sent[0])
        batch = await get(b)
        assert batch is not None and batch.bodies == [sent[1]]
        b.pass_time(5_000)
        consumer = Consumer(b, no_ack=True)
        await turns(b)
        assert consumer.got == [sent[1], sent[2]]
        assert b.broker.queues.stats("/", "q").leased == 1, "what nobody got is not taken for acked"

    run(scenario)


def test_a_consumer_can_say_that_it_has_enough_before_all_large_messages_are_read_for_it(run: Run) -> None:
    class Busy(Consumer):
        def _deliver(self, subscription: Subscription, batch: Batch) -> None:
            super()._deliver(subscription, batch)
            asyncio.get_running_loop().call_soon(subscription.pause)  # as a connection does once it has written

    async def scenario(b: Bench) -> None:
        await b.queue()
        sent = [bytes([i]) * 250_000 for i in range(150)]
        await b.publish(*sent)
        consumer = Busy(b, credit=1000)
        await turns(b)
        assert 0 < len(consumer.got) < 150
        while len(consumer.got) < 150:
            before = len(consumer.got)
            consumer.subscription.resume()
            await turns(b)
            assert len(consumer.got) > before
        assert consumer.got == sent

    run(scenario)


def test_nothing_is_remembered_of_owned_queues_that_went_by_themselves(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        owner, sessions = object(), b.broker.sessions
        for _ in range(3):
            sessions.declare_queue("/", "q", QueueSettings(exclusive=True, auto_delete=True), owner)
            assert sessions.owned_by(owner) == ["q"]
            Consumer(b).subscription.cancel()
            assert b.broker.queues.find("/", "q") is None
            assert sessions.owned_by(owner) == [] and not sessions._owned

    run(scenario)
