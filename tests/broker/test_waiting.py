"""Consumers that wait: who shares a lease with whom, and that each gets its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from laneway.broker import waiting
from laneway.core.events import Event, Kind
from laneway.core.message import Delivery, Properties
from laneway.errors import Unavailable
from tests.broker.conftest import Bench

Run = Callable[[Callable[[Bench], Coroutine[Any, Any, None]]], None]


def wait(b: Bench, *limits: int, **options: Any) -> list[list[bytes]]:
    """Consumers that wait, and what each of them was told, in the order it was."""
    told: list[list[bytes]] = []

    def done(deliveries: Sequence[Delivery]) -> None:
        told.append([delivery.body for delivery in deliveries])

    for limit in limits:
        b.broker.lease("/", "q", max_messages=limit, wait_ms=20_000, done=done, **options)
    return told


def leases(b: Bench) -> list[int]:
    """How many messages each lease from now on is of."""
    found: list[int] = []
    stage = b.engine.journal.stage

    def noted(event: Event) -> int:
        if event.kind is Kind.LEASED:
            found.append(len(event.seqs))  # type: ignore[union-attr]
        return stage(event)

    b.engine.journal.stage = noted  # type: ignore[method-assign]
    return found


def test_those_who_want_the_same_share_a_lease(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told, counted = wait(b, 2, 1, 3, 2), leases(b)
        await b.publish(*[b"%d" % n for n in range(5)])
        assert told == [[b"0", b"1"], [b"2"], [b"3", b"4"]]
        assert counted == [5]
        await b.publish(b"5")
        assert told[3:] == [[b"5"]]

    run(scenario)


def test_those_who_want_something_else_have_their_own(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        first, second, third = wait(b, 1), wait(b, 1, lease_ms=9_000), wait(b, 1, lease_ms=9_000, consumer="c")
        counted = leases(b)
        await b.publish(b"0", b"1", b"2")
        assert (first, second, third) == ([[b"0"]], [[b"1"]], [[b"2"]])
        assert counted == [1, 1, 1]

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
        told, counted = wait(b, *[1] * 9, 20), leases(b)
        await b.publish(*[b"%d" % n for n in range(12)])
        assert told == [[b"%d" % n] for n in range(9)] + [[b"9", b"10", b"11"]]
        assert counted == [4, 4, 4]

    run(scenario)


def test_one_who_went_away_holds_nothing(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told = wait(b, 1)
        gone = b.broker.lease("/", "q", max_messages=1, wait_ms=20_000, done=lambda _: pytest.fail("told"))
        last = wait(b, 1)
        assert gone is not None
        gone.cancel()
        await b.publish(b"0", b"1")
        assert (told, last) == ([[b"0"]], [[b"1"]])
        assert b.broker.queues.stats("/", "q").leased == 2

    run(scenario)


def test_a_queue_that_goes_sends_them_away(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told = wait(b, 1, 1)
        await b.broker.queues.delete("/", "q")
        assert told == [[], []]

    run(scenario)


def test_there_is_a_limit_to_how_many_may_wait(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        b.broker.limits = type(b.broker.limits)(max_waiters_per_queue=2)
        await b.queue()
        wait(b, 1, 1)
        with pytest.raises(Unavailable, match="2 consumers wait for queue 'q' already"):
            wait(b, 1)

    run(scenario)
