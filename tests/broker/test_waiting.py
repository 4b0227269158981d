"""Consumers that wait: who shares a lease with whom, and that each gets its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laneway.broker import waiting
from laneway.broker.interface import Ack, Lease, Settle
from laneway.broker.values import Deliveries, Properties, Settlement
from laneway.core.digits import mark_of
from laneway.core.events import Acked, Event, Leased
from laneway.errors import Unavailable
from tests.broker.conftest import Bench

Run = Callable[..., None]


def wait(b: Bench, *limits: int, **options: Any) -> list[list[bytes]]:
    """Consumers that wait, and what each of them was told, in the order it was."""
    told: list[list[bytes]] = []

    def done(deliveries: Deliveries) -> None:
        told.append([delivery.body for delivery in deliveries])

    for limit in limits:
        b.broker.send(Lease(b.id(), limit, wait_ms=20_000, **options), done)
    return told


def sizes(seen: list[Event]) -> list[int]:
    """How many messages each lease is of."""
    return [len(event.seqs) for event in seen if isinstance(event, Leased)]


def test_those_who_want_the_same_share_a_lease(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told, seen = wait(b, 2, 1, 3, 2), b.staged()
        await b.publish(*[b"%d" % n for n in range(5)])
        assert told == [[b"0", b"1"], [b"2"], [b"3", b"4"]]
        assert sizes(seen) == [5]
        await b.publish(b"5")
        assert told[3:] == [[b"5"]]

    run(scenario)


def test_those_who_want_something_else_have_their_own(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        first, second, third = wait(b, 1), wait(b, 1, lease_ms=9_000), wait(b, 1, lease_ms=9_000, consumer="c")
        seen = b.staged()
        await b.publish(b"0", b"1", b"2")
        assert (first, second, third) == ([[b"0"]], [[b"1"]], [[b"2"]])
        assert sizes(seen) == [1, 1, 1]

    run(scenario)


def test_a_group_goes_to_one_of_them(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told = wait(b, 1, 5)
        await b.publish(b"a", b"b", properties=Properties(group="g"))
        assert told == [[b"a"]]
        await b.publish(b"c", properties=Properties(group="h"))
        assert told == [[b"a"], [b"c"]]

    run(scenario)


def test_a_lease_is_shared_by_no_more_than_it_pays_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SHARED", 4)

    async def scenario(b: Bench) -> None:
        await b.queue()
        told, seen = wait(b, *[1] * 9, 20), b.staged()
        await b.publish(*[b"%d" % n for n in range(12)])
        assert told == [[b"%d" % n] for n in range(9)] + [[b"9", b"10", b"11"]]
        assert sizes(seen) == [4, 4, 4]

    run(scenario)


def test_one_who_went_away_holds_nothing(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told = wait(b, 1)
        gone = b.broker.send(Lease(b.id(), 1, wait_ms=20_000), lambda _: pytest.fail("told"))
        last = wait(b, 1)
        assert (await b.stats()).consumers_waiting == 3
        b.broker.withdraw(gone)
        await b.publish(b"0", b"1")
        assert (told, last) == ([[b"0"]], [[b"1"]])
        assert (await b.stats()).leased == 2

    run(scenario)


def test_a_queue_that_goes_sends_them_away(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told = wait(b, 1, 1)
        await b.delete()
        assert told == [[], []]

    run(scenario)


def test_there_is_a_limit_to_how_many_may_wait(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told = wait(b, 1, 1)
        with pytest.raises(Unavailable, match="2 consumers wait for queue 'q' already"):
            await b.lease(1, wait_ms=20_000)  # of the same turn, or later
        with pytest.raises(Unavailable, match="2 consumers wait for queue 'q' already"):
            await b.lease(1, wait_ms=20_000)
        assert await b.lease(1) == []
        await b.publish(b"0", b"1")
        assert told == [[b"0"], [b"1"]]

    run(scenario, max_waiters_per_queue=2)


def test_one_who_gives_back_at_once_takes_nothing_from_the_others(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"0", b"1", b"2", b"3")
        held = await b.lease(4)
        given: list[Deliveries] = []

        def hand_back(deliveries: Deliveries) -> None:
            given.append(deliveries)
            b.send(Settle(b.id(), [Settlement("release", token) for token in deliveries.tokens()]))

        b.broker.send(Lease(b.id(), 2, wait_ms=20_000), hand_back)
        second, third = wait(b, 2), wait(b, 2)
        await b.settle("release", held)
        await b.durable()
        assert [[d.body for d in some] for some in given] == [[b"0", b"1"]]
        assert (second, third) == ([[b"2", b"3"]], [[b"0", b"1"]])
        assert (await b.stats()).leased == 4

    run(scenario)


def test_what_was_leased_while_acks_were_gathered_is_acked_after_it_was_leased(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000)
        await b.publish(*[b"%d" % n for n in range(4)])
        first = await b.lease(1)
        acked = b.send(Ack(b.id(), [d.token for d in first]))
        b.clock.ms += 2_000  # no timer ran: the lease is over, but its ack came before that
        seen = b.staged()
        second = await b.lease(2)
        acked_after = b.send(Ack(b.id(), [d.token for d in second]))
        await b.durable()
        assert acked == [[0]] and acked_after == [[0, 0]]
        leased = {seq: e.at_ms for e in seen if isinstance(e, Leased) for seq in e.seqs}
        late = [e.at_ms - leased[seq] for e in seen if isinstance(e, Acked) for seq in e.seqs if seq in leased]
        assert len(late) == 2 and min(late) >= 0

    run(scenario)


def test_accounts_do_not_share_a_lease(run: Run) -> None:
    """Or each could tell the tokens of the other from its own."""

    async def scenario(b: Bench) -> None:
        await b.queue()
        wait(b, 1, 1, account="ann")
        wait(b, 1, account="bob")
        seen = b.staged()
        await b.publish(b"0", b"1", b"2")
        leased = [event for event in seen if isinstance(event, Leased)]
        assert [event.first_lease >> 48 for event in leased] == [mark_of("ann"), mark_of("bob")]
        assert sizes(seen) == [2, 1]

    run(scenario)
