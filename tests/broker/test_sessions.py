"""Subscriptions, single messages on demand, settling by number, and queues that live and die with their users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from laneway.broker import interface as i
from laneway.broker.values import Arrival, Deliveries, Draft, Messages, Receipts
from laneway.core.events import Acked
from laneway.core.invariants import check_invariants
from laneway.core.message import messages_of
from laneway.core.settings import QueueSettings
from laneway.errors import Conflict, DiskFull, LanewayError, QueueFull, QueueInUse, QueueNotFound, Unavailable

from .conftest import Bench, bodies, publish
from .consuming import Connection, Consumer, get, numbered

Run = Callable[..., None]


# Subscriptions and credit


def test_what_waits_and_what_comes_is_pushed(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        consumer = Consumer(b)
        await b.turns()
        assert consumer.got == numbered(3)
        await b.publish(*numbered(2, 3))
        assert consumer.got == numbered(5)
        declared = await b.ask(i.DeclareQueue("/", "q", None))
        assert (declared.ready, declared.consumers, declared.is_new) == (0, 1, False)

    run(scenario)


def test_no_more_is_outstanding_than_there_is_credit_for(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(10))
        consumer = Consumer(b, credit=3)
        await b.turns()
        assert consumer.got == numbered(3)
        consumer.settle("ack", b"1")
        await b.turns()
        assert consumer.got == numbered(4)
        held = list(consumer.held)
        consumer.settle("ack", grant=False)
        await b.turns()
        assert consumer.got == numbered(4), "settling gives no credit by itself"
        consumer.held = held
        consumer.settle("ack")  # what is no longer held is passed over, and its credit is given back
        await b.turns()
        assert consumer.got == numbered(7)

    run(scenario)


def test_subscriptions_that_share_a_pool_share_its_credit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("a")
        await b.queue("b")
        await b.publish(*numbered(5), queue="a")
        await b.publish(*numbered(5), queue="b")
        both = Connection(b)
        both.limit_pool(7, 4)
        one, other = Consumer(b, "a", on=both, credit=3, pool=7), Consumer(b, "b", on=both, pool=7)
        await b.turns()
        assert len(one.got) + len(other.got) == 4 and len(one.got) <= 3
        both.limit_pool(7, 10)
        await b.turns()
        assert len(one.got) == 3 and len(other.got) == 5
        one.settle("ack")
        await b.turns()
        assert one.got == numbered(5)

    run(scenario)


def test_a_pool_that_shrinks_is_owed_before_it_gives_again(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(9))
        connection = Connection(b)
        connection.limit_pool(1, 4)
        consumer = Consumer(b, on=connection, pool=1)
        await b.turns()
        connection.limit_pool(1, 1)
        consumer.settle("ack", b"0", b"1", b"2")
        await b.turns()
        assert consumer.got == numbered(4)
        consumer.settle("ack", b"3")
        await b.turns()
        assert consumer.got == numbered(5)

    run(scenario)


def test_an_extended_lease_gives_no_credit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(2))
        consumer = Consumer(b, credit=1)
        await b.turns()
        consumer.settle("extend", lease_ms=60_000)
        await b.turns()
        assert consumer.got == [b"0"]

    run(scenario)


def test_what_a_cancelled_consumer_holds_counts_for_those_it_shares_a_pool_with(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(5))
        connection = Connection(b)
        connection.limit_pool(1, 3)
        first = Consumer(b, on=connection, pool=1)
        await b.turns()
        assert first.got == numbered(3)
        first.cancel()
        second = Consumer(b, on=connection, pool=1)
        await b.turns()
        assert second.got == []
        first.settle("release", b"1")
        first.settle("ack", b"0")
        await b.turns()
        assert second.got == [b"1", b"3"]
        first.settle("ack")
        second.settle("ack")
        await b.turns()
        assert second.got == [b"1", b"3", b"4"]
        session = b.partition.sessions.find(connection.session)
        assert session is not None and list(session.subscriptions) == [second.number], "nothing is left of the first"
        assert session.pools[1].held == 1

    run(scenario)


def test_the_credit_of_messages_whose_queue_is_gone_is_given_back_when_they_are_settled(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("gone")
        await b.queue()
        await b.publish(*numbered(2), queue="gone")
        await b.publish(*numbered(3))
        connection = Connection(b)
        connection.limit_pool(1, 2)
        first = Consumer(b, "gone", on=connection, pool=1)
        await b.turns()
        second = Consumer(b, on=connection, pool=1)
        await b.delete("gone")
        await b.turns()
        assert first.has_ended and (first.got, second.got) == (numbered(2), [])
        first.settle("ack", b"0")
        await b.turns()
        assert second.got == [b"0"]
        first.settle("reject")
        await b.turns()
        assert second.got == [b"0", b"1"]
        second.settle("ack")
        await b.turns()
        assert second.got == numbered(3)

    run(scenario)


def test_a_transaction_gives_the_credit_of_what_it_settles_back(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        await b.publish(*numbered(4))
        consumer = Consumer(b, credit=2)
        await b.turns()
        assert consumer.got == numbered(2)
        (seq, lease, _), (other_seq, other_lease, _) = consumer.held
        session = consumer.connection.session
        staged = b.staged()
        arrivals = await b.ask(
            i.Transact(
                [(b.id("other"),)],
                messages_of([Draft(b"x")]),
                [
                    i.SettleHeld(session, b.id(), [seq], [lease], "ack", consumer.number),
                    i.SettleHeld(session, b.id(), [other_seq], [other_lease], "reject", consumer.number),
                ],
            )
        )
        assert [arrival.queue for arrival in arrivals] == [b.id("other")]
        await b.turns()
        assert consumer.got == numbered(4)
        assert [event.kind.name for event in staged[:3]] == ["PUBLISHED", "ACKED", "DEAD_LETTERED"]
        assert (await b.stats()).dead == 1 and (await b.stats("other")).ready == 1

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
        await b.turns()
        await b.publish(b"3")
        assert (high.got[-1], low.got) == (b"3", [b"2"])

    run(scenario)


def test_a_single_active_consumer_has_a_successor(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(single_active_consumer=True)
        first, second, urgent = Consumer(b, credit=1), Consumer(b), Consumer(b, priority=1)
        await b.publish(*numbered(2))
        assert (first.got, second.got, urgent.got) == ([], [], numbered(2))
        urgent.cancel()
        await b.publish(*numbered(2, 2))
        assert (first.got, second.got) == ([b"2"], []), "without credit it is still the one"
        first.cancel()
        await b.turns()
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
        await b.turns()
        assert (first.got, urgent.got) == (numbered(2), [])
        first.settle("ack", b"1")
        await b.turns()
        assert (first.got, urgent.got) == (numbered(2), [b"2"])
        Consumer(b, priority=1)
        await b.publish(b"3")
        assert urgent.got == [b"2", b"3"], "one of the same priority waits"

    run(scenario)


def test_a_higher_consumer_does_not_wait_for_those_who_hold_without_being_subscribed(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(single_active_consumer=True)
        await b.publish(b"elsewhere")
        assert len(await get(b)) == 1
        first = Consumer(b, credit=10)
        await b.publish(b"0")
        urgent = Consumer(b, priority=1)
        await b.publish(b"1")
        assert (first.got, urgent.got) == ([b"0"], [])
        first.settle("ack")
        await b.turns()
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
        await b.turns()
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
        urgent.cancel()
        await b.turns()
        assert (first.got, urgent.got) == ([b"0", b"1"], [])

    run(scenario)


def test_whether_one_consumer_alone_is_active_may_change_while_they_are_connected(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        first, second = Consumer(b, credit=1), Consumer(b, credit=1)
        await b.publish(*numbered(2))
        assert (first.got, second.got) == ([b"0"], [b"1"])
        await b.ask(i.ChangeQueue("/", "q", {"single_active_consumer": True}))
        second.settle("ack")
        await b.publish(b"2")
        assert (first.got, second.got) == ([b"0"], [b"1"]), "the first is the one, and may hold no more"
        await b.ask(i.ChangeQueue("/", "q", {"single_active_consumer": False}))
        await b.turns()
        assert (first.got, second.got) == ([b"0"], [b"1", b"2"])

    run(scenario)


def test_an_exclusive_consumer_is_alone(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        alone = Consumer(b, exclusive=True)
        for exclusive in (False, True):
            with pytest.raises(QueueInUse):
                Consumer(b, exclusive=exclusive)
        alone.cancel()
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
        paused.connection.flow(False)
        await b.publish(*numbered(3))
        assert (paused.got, other.got) == ([], [b"0"])
        paused.connection.flow(True)
        await b.turns()
        assert paused.got == [b"1", b"2"]

    run(scenario)


def test_what_is_not_to_be_acked_is_gone_when_it_is_handed_out(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        consumer = Consumer(b, no_ack=True)
        await b.turns()
        assert consumer.got == numbered(3)
        await b.restart()
        assert len(await get(b)) == 0

    run(scenario)


def test_a_cancelled_consumer_gets_nothing_more_and_may_settle(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(2))
        consumer = Consumer(b)
        await b.turns()
        consumer.cancel()
        consumer.cancel()
        await b.publish(b"2")
        assert consumer.got == numbered(2) and not consumer.has_ended
        consumer.settle("ack")
        await b.turns()
        assert bodies(await get(b)) == [b"2"]

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
        sessions, number = b.partition.sessions, b.id()
        sessions.dispatch([number])
        b.send(i.Publish((number,), Messages([b"high"], [b""], [9])))
        b.partition.inbox.drain()
        assert consumer.got == [b"low"] and (await b.stats()).leased == 1
        sessions.find(consumer.connection.session).grant(1, 1)  # type: ignore[union-attr]
        sessions.dispatch([number])
        assert consumer.got == [b"low", b"lower"]
        sessions.find(consumer.connection.session).grant(1, 1)  # type: ignore[union-attr]
        sessions.dispatch([number])
        assert consumer.got == [b"low", b"lower"] and (await b.stats()).leased == 2
        await b.turns()
        assert consumer.got == [b"low", b"lower", b"high"]

    run(scenario)


def test_deliveries_to_one_consumer_are_in_order_whatever_commits_do(run: Run) -> None:

    async def scenario(b: Bench) -> None:
        random = Random(7)
        await b.queue(max_receives=None)
        consumers = [Consumer(b, credit=credit) for credit in (0, 0, 5)]
        number = b.id()
        sent, priorities = 0, dict[bytes, int]()
        for _ in range(300):
            for _ in range(random.randint(1, 3)):
                some = numbered(random.randint(1, 4), sent)
                sent += len(some)
                priority = random.choice((1, 5))
                priorities |= dict.fromkeys(some, priority)
                if random.random() < 0.5:
                    columns = Messages(some, [b""] * len(some), [priority] * len(some))
                    b.send(i.Publish([(number,)] * len(some), columns))
                else:
                    b.send(publish(b, [Draft(body, priority) for body in some]))
                if random.random() < 0.3:
                    random.choice(consumers).connection.flow(False)
            for consumer in consumers:
                if random.random() < 0.7:
                    consumer.connection.flow(True)
            await asyncio.sleep(random.choice((0, 0, 0, 0.001)))
            for consumer in consumers:
                if consumer.held and random.random() < 0.5:
                    consumer.settle("ack", *[held[2] for held in consumer.held[: random.randint(1, 6)]])
        for consumer in consumers:
            consumer.connection.flow(True)
        while sum(len(consumer.got) for consumer in consumers) < sent:
            await asyncio.sleep(0.001)
            for consumer in consumers:
                if consumer.held:
                    consumer.settle("ack")
        for consumer in consumers:
            for priority in (1, 5):
                of_one = [int(body) for body in consumer.got if priorities[body] == priority]
                assert of_one == sorted(of_one)
            leases = [deliveries.leases[0] for deliveries in consumer.taken]
            assert leases == sorted(leases), "a batch overtook another"
        assert sorted(int(body) for consumer in consumers for body in consumer.got) == list(range(sent))
        check_invariants(b.engine.state)

    run(scenario)


# Those that leave while something is on its way to them


def on_the_way(b: Bench, *some: bytes) -> None:
    """Publish messages that are leased at once, because they may expire before they are durable: they are pushed when
    they are."""
    b.send(publish(b, [Draft(body, ttl_ms=60_000) for body in some]))
    b.partition.inbox.drain()


def test_what_is_on_its_way_to_a_session_that_ends_goes_back(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        consumer = Consumer(b)
        await b.turns()
        on_the_way(b, *numbered(2))
        assert (await b.stats()).leased == 2
        consumer.connection.end()
        await b.turns()
        stats = await b.stats()
        assert (stats.ready, stats.leased, consumer.got) == (2, 0, [])
        assert bodies(await b.lease()) == numbered(2)

    run(scenario)


def test_the_answer_to_unsubscribing_is_behind_what_was_on_its_way(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        for no_ack in (False, True):
            consumer = Consumer(b, no_ack=no_ack)
            await b.turns()
            on_the_way(b, *numbered(2))
            consumer.cancel()
            assert not consumer.is_cancelled and consumer.got == []
            await b.turns()
            assert consumer.is_cancelled and consumer.got == numbered(2)
            consumer.settle("ack")
            await b.turns()
            stats = await b.stats()
            assert (stats.ready, stats.leased) == (0, 0)

    run(scenario)


def test_nothing_follows_the_end_of_a_queue_and_what_was_on_its_way_takes_no_credit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        connection = Connection(b)
        connection.limit_pool(1, 2)
        consumer, other = Consumer(b, on=connection, pool=1), Consumer(b, "other", on=connection, pool=1)
        await b.turns()
        on_the_way(b, *numbered(2))
        await b.delete()
        await b.publish(*numbered(3), queue="other")
        await b.turns()
        assert consumer.has_ended and (consumer.got, other.got) == ([], numbered(2))

    run(scenario)


def test_a_message_that_was_asked_for_by_a_session_that_ended_goes_back(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        connection = Connection(b)
        b.send(publish(b, [Draft(b"x")]))
        got = b.send(i.Lease(b.id(), 1, session=connection.session))
        connection.end()
        assert got == [] and (await b.stats()).leased == 1
        await b.durable()
        assert [len(deliveries) for deliveries in got] == [0]
        await b.turns()
        assert bodies(await b.lease()) == [b"x"]

    run(scenario)


# Settling


def test_released_messages_go_back_to_their_place_and_say_so(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        consumer = Consumer(b, credit=2)
        await b.turns()
        consumer.settle("release", b"0", grant=False)
        consumer.settle("ack", b"1", grant=False)
        await b.turns()
        again = await get(b)
        assert (bodies(again), list(again.receives)) == ([b"0"], [2])

    run(scenario)


def test_rejected_messages_are_dead(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("dead")
        await b.queue(dead_letter_queue="dead")
        await b.publish(b"bad")
        consumer = Consumer(b)
        await b.turns()
        consumer.settle("reject")
        await b.turns()
        (dead,) = await get(b, "dead")
        assert (dead.body, [death.reason for death in dead.deaths]) == (b"bad", ["rejected"])

    run(scenario)


def test_leases_that_ended_are_passed_over(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000, max_receives=None)
        await b.publish(*numbered(3))
        first = Consumer(b, credit=3)
        await b.turns()
        first.connection.flow(False)
        held = list(first.held)
        first.settle("ack", b"0")
        b.pass_time(2_000)
        second = Consumer(b)
        await b.turns()
        assert second.got == [b"1", b"2"]
        queue, session = b.id(), first.connection.session
        seqs, leases = [seq for seq, _, _ in held], [lease for _, lease, _ in held]
        for action in ("ack", "release", "reject", "extend"):
            b.send(i.SettleHeld(session, queue, seqs, leases, action, lease_ms=1_000))  # type: ignore[arg-type]
        b.send(i.SettleHeld(session, 999, seqs, leases, "ack"))
        b.send(i.SettleHeld(session, queue, [1 << 40], [7], "ack"))
        await b.turns()
        assert (await b.stats()).leased == 2, "the second one holds them"
        seq, lease, _ = second.held[0]
        b.send(i.SettleHeld(second.connection.session, queue, [seq] * 2, [lease] * 2, "ack"))
        assert (await b.stats()).leased == 1
        check_invariants(b.engine.state)

    run(scenario)


def test_an_extended_lease_holds_longer(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000)
        await b.publish(b"x")
        consumer = Consumer(b, credit=1)
        await b.turns()
        consumer.settle("extend", lease_ms=60_000)
        await b.turns()
        b.pass_time(30_000)
        assert (await b.stats()).leased == 1
        b.pass_time(40_000)
        assert (await b.stats()).ready == 1

    run(scenario)


def test_a_restart_gives_back_what_connections_held_and_nothing_else(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_800_000, max_receives=2)
        await b.publish(*numbered(4))
        plain = await b.lease(1)
        consumer = Consumer(b, credit=1)
        await b.turns()
        assert consumer.got == [b"1"]
        await b.restart()
        assert ((await b.stats()).ready, (await b.stats()).leased) == (3, 1)
        assert await b.settle("ack", plain) == [0]
        again = await get(b)
        assert (bodies(again), list(again.receives)) == ([b"1"], [2])
        await b.restart()
        assert (await b.stats()).dead == 1, "that was its last try"

    run(scenario)


# One at a time


def test_get_hands_out_one_and_none_if_there_is_none(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        assert len(await get(b)) == 0
        await b.publish(b"low", priority=1)
        await b.publish(b"high", priority=9)
        high = await get(b)
        assert (bodies(high), bytes(high.priorities)) == ([b"high"], b"\x09")
        assert bodies(await get(b, no_ack=True)) == [b"low"]
        await b.turns()
        assert ((await b.stats()).leased, (await b.stats()).ready) == (1, 0)
        number = b.id()
        await b.delete()
        with pytest.raises(QueueNotFound):
            await b.ask(i.Lease(number, 1, session=Connection(b).session))

    run(scenario)


def test_get_waits_until_the_message_is_durable(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        b.send(publish(b, [Draft(b"x")]))
        got = b.send(i.Lease(b.id(), 1, session=Connection(b).session))
        assert got == []
        await b.durable()
        assert [bodies(deliveries) for deliveries in got] == [[b"x"]]

    run(scenario)


# Publishing


def refusals(arrival: Arrival) -> dict[int, LanewayError]:
    assert isinstance(arrival.result, Receipts)
    return arrival.result.refusals()


def test_one_message_for_several_queues_is_capped_in_each(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("narrow", max_priority=2)
        await b.queue("wide", max_priority=9)
        numbers = (b.id("narrow"), b.id("wide"))
        arrivals: list[Arrival] = await b.ask(i.Publish([numbers], messages_of([Draft(b"x", priority=7)], clamps=True)))
        assert [refusals(arrival) for arrival in arrivals] == [{}, {}]
        for queue, priority in (("narrow", 2), ("wide", 7)):
            assert list((await get(b, queue)).priorities) == [priority]

    run(scenario)


def test_columns_reach_all_their_queues_in_order(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("a", max_priority=9)
        await b.queue("b", max_priority=9)
        await b.queue("small", max_messages=3)
        a, other, small = (b.id(name) for name in ("a", "b", "small"))
        messages = Messages(numbered(5), [b""] * 5, [5, 5, 5, 1, 1])
        arrivals: list[Arrival] = await b.ask(i.Publish([(a, other, small)] * 4 + [(a, small)], messages))
        assert [(arrival.queue, arrival.places) for arrival in arrivals] == [
            (a, [0, 1, 2, 3, 4]),
            (other, [0, 1, 2, 3]),
            (small, [0, 1, 2, 3, 4]),
        ]
        none, nothing, full = map(refusals, arrivals)
        assert (none, nothing, list(full)) == ({}, {}, [3, 4]) and isinstance(full[3], QueueFull)
        (arrival,) = await b.ask(i.Publish([(a,), (999,)], Messages([b"5", b"nowhere"], [b""] * 2, [1, 1])))
        assert (arrival.queue, arrival.places) == (a, [0])
        await b.restart()
        assert bodies(await b.lease(10, "a")) == numbered(6)
        assert bodies(await b.lease(10, "b")) == numbered(4)
        assert bodies(await b.lease(10, "small")) == numbered(3)

    run(scenario)


# Queues and their users


def test_an_auto_delete_queue_goes_with_its_last_consumer(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.ask(i.DeclareQueue("/", "q", QueueSettings(auto_delete=True)))
        one, other = Consumer(b), Consumer(b)
        one.cancel()
        assert b.find() is not None
        other.cancel()
        assert b.find() is None

    run(scenario)


def test_consumers_are_told_when_their_queue_goes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(2))
        consumer = Consumer(b, credit=1)
        await b.turns()
        with pytest.raises(QueueInUse):
            await b.delete(if_unused=True)
        for condition in ("if_empty", "if_none_ready"):
            with pytest.raises(Conflict):
                await b.delete(**{condition: True})
        assert await b.delete() == 1
        assert consumer.has_ended
        consumer.settle("ack")
        consumer.cancel()
        await b.queue()
        await b.publish(b"new")
        assert consumer.got == [b"0"]

    run(scenario)


def test_a_queue_without_ready_messages_may_be_deleted_though_some_are_held(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"0")
        await b.lease()
        with pytest.raises(Conflict):
            await b.delete(if_empty=True)
        assert await b.delete(if_none_ready=True) == 0
        assert b.find() is None

    run(scenario)


def test_an_unused_queue_expires_and_a_used_one_does_not(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        for name in ("unused", "consumed", "asked"):
            await b.ask(i.DeclareQueue("/", name, QueueSettings(expires_ms=60)))
        consumer = Consumer(b, "consumed")
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + 5
        while b.find("unused") is not None:
            assert loop.time() < deadline_s
            await get(b, "asked")
            await asyncio.sleep(0.005)
        assert b.find("consumed") is not None and b.find("asked") is not None
        consumer.cancel()
        while b.find("consumed") is not None or b.find("asked") is not None:
            assert loop.time() < deadline_s
            await asyncio.sleep(0.005)

    run(scenario)


def test_a_queue_has_its_owner_until_it_goes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        owner, other = Connection(b), Connection(b)
        alone = QueueSettings(exclusive=True)
        for connection in (owner, other):
            declared = await b.ask(i.DeclareQueue("/", "q", alone, connection.session))
            assert declared.info.owner == b.topology.find_queue("/", "q").owner == owner.session
        other.end()
        assert b.find() is not None
        for session in (0, other.session):
            with pytest.raises(QueueInUse):
                await b.delete(session=session)
        await b.delete(session=owner.session)
        await b.ask(i.DeclareQueue("/", "q", QueueSettings()))
        assert b.topology.find_queue("/", "q").owner == 0
        await b.ask(i.DeclareQueue("/", "mine", alone, owner.session))
        owner.end()
        assert b.find("mine") is None and b.find() is not None
        with pytest.raises(Unavailable, match="a connection that has ended"):
            await b.ask(i.DeclareQueue("/", "late", alone, owner.session))
        assert b.find("late") is None
        await b.ask(i.DeclareQueue("/", "own", alone, Connection(b).session))
        await b.restart()
        assert b.find("own") is None and b.find() is not None

    run(scenario)


@pytest.mark.parametrize("way", ["exclusive", "auto_delete"])
def test_a_queue_that_goes_with_its_users_does_so_as_soon_as_the_disk_has_room_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr("laneway.broker.sessions.RETRY_MS", 10)

    async def scenario(b: Bench) -> None:
        connection = Connection(b)
        declare = i.DeclareQueue(
            "/", "q", QueueSettings(**{way: True}), connection.session if way != "auto_delete" else 0
        )
        await b.ask(declare)
        Consumer(b, on=connection)
        await b.turns()
        b.partition.committer.stuck = DiskFull("no space")
        tries: list[str] = []
        delete = b.partition.queues.delete
        monkeypatch.setattr(b.partition.queues, "delete", lambda *names: (tries.append(names[1]), delete(*names))[1])
        connection.end()
        async with asyncio.timeout(5):
            while len(tries) < 3:
                await asyncio.sleep(0.001)
        assert b.find() is not None, "nothing can be written"
        b.partition.committer.stuck = None
        async with asyncio.timeout(5):
            while b.find() is not None:
                await asyncio.sleep(0.005)
        assert not b.partition.sessions.owners

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
        await b.turns()
        assert consumer.got == [sent[0], sent[2]]
        consumer.settle("ack")
        await b.turns()
        assert consumer.got == [sent[0], sent[2], sent[3]]
        assert (await b.stats()).leased == 2, "it is not lost: it comes back when its lease ends"
        consumer.cancel()
        b.pass_time(5_000)
        assert (await b.stats()).ready == 2

    run(scenario)


def test_get_and_consumers_without_acks_pass_over_a_damaged_message(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_receives=None, lease_ms=1_000)
        sent = [b"body number %d" % i for i in range(3)]
        await b.publish(*sent)
        damage(b, sent[0])
        assert bodies(await get(b)) == [sent[1]]
        b.pass_time(5_000)
        consumer = Consumer(b, no_ack=True)
        await b.turns()
        assert consumer.got == [sent[1], sent[2]]
        assert (await b.stats()).leased == 1, "what nobody got is not taken for acked"

    run(scenario)


def test_a_consumer_can_say_that_it_has_enough_before_all_large_messages_are_read_for_it(run: Run) -> None:
    class Busy(Consumer):
        def take(self, deliveries: Deliveries) -> None:
            super().take(deliveries)
            asyncio.get_running_loop().call_soon(self.connection.flow, False)  # as a connection does that has written

    async def scenario(b: Bench) -> None:
        await b.queue()
        sent = [bytes([i]) * 250_000 for i in range(150)]
        await b.publish(*sent)
        consumer = Busy(b, credit=1000)
        await b.turns()
        assert 0 < len(consumer.got) < 150
        while len(consumer.got) < 150:
            before = len(consumer.got)
            consumer.connection.flow(True)
            await b.turns()
            assert len(consumer.got) > before
        assert consumer.got == sent

    run(scenario)


def test_nothing_is_remembered_of_owned_queues_that_went_by_themselves(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        owner, sessions = Connection(b), b.partition.sessions
        for _ in range(3):
            await b.ask(i.DeclareQueue("/", "q", QueueSettings(exclusive=True, auto_delete=True), owner.session))
            assert sessions.owners == {b.id(): owner.session}
            Consumer(b).cancel()
            assert b.find() is None
            assert not sessions.owners and not sessions.find(owner.session).owned  # type: ignore[union-attr]

    run(scenario)


def test_consumers_of_many_thin_queues_are_served_and_acked_with_one_event_each(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        names = [f"q{n}" for n in range(20)]
        for name in names:
            await b.queue(name)
        one, other = Connection(b), Connection(b)
        # The last has no credit left for its second message, and the one before it does not acknowledge.
        consumers = [Consumer(b, name, on=(one, other)[n % 2], credit=100) for n, name in enumerate(names[:18])]
        consumers += [Consumer(b, names[18], on=other, no_ack=True), Consumer(b, names[19], on=one, credit=1)]
        staged = b.staged()
        for round_ in range(2):
            for n in range(20):
                b.send(publish(b, [Draft(b"%d" % (20 * round_ + n))], names[n]))
        await b.turns()
        assert [event.kind.name for event in staged] == ["PUBLISHED", "LEASED", "ACKED"]
        assert [consumer.got for consumer in consumers] == [
            *([b"%d" % n, b"%d" % (20 + n)] for n in range(19)),
            [b"19"],
        ]
        del staged[:]
        stale = consumers[0].held.pop()
        for consumer in consumers[:18]:
            consumer.settle("ack")
        consumers[19].settle("ack")
        b.send(i.SettleHeld(one.session, b.id("q0"), [stale[0]], [stale[1] + 1], "ack"))  # of another lease
        await b.turns()
        acked = [event for event in staged if isinstance(event, Acked)]
        assert [(len(event.queues), len(event.seqs)) for event in acked] == [(19, 2 * 18)]
        assert consumers[19].got == [b"19", b"39"]
        leased = {name: (await b.stats(name)).leased for name in names}
        assert {name for name, count in leased.items() if count} == {"q0", "q19"}
        await b.restart()
        for name in names:
            assert bodies(await b.lease(queue=name)) == {"q0": [b"20"], "q19": [b"39"]}.get(name, [])

    run(scenario)
