"""State and journal as one: what is kept in memory, and what becomes of a command that the journal refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from laneway.broker.engine import KEPT_OVERHEAD_BYTES, ContentCache
from laneway.broker.values import Draft
from laneway.core import rows
from laneway.core.events import Event, Kind
from laneway.core.invariants import check_invariants
from laneway.core.message import message_id
from laneway.errors import LanewayError, LimitExceeded, Unavailable
from tests.core.runner import row_births

from .conftest import Bench, bodies, publish

Run = Callable[..., None]


def kept(cache: ContentCache, upto: int) -> list[int]:
    return [seq for seq in range(1, upto) if cache.get(seq) is not None]


def test_the_cache_keeps_the_latest_messages_within_its_bounds() -> None:
    each = 100 + KEPT_OVERHEAD_BYTES
    cache = ContentCache(5_000 * each)
    for first in range(1, 20_001, 100):
        cache.add(first, 7, [b"props"] * 100, [b"%d" % seq + b"." * 95 for seq in range(first, first + 100)])
        assert cache._bytes <= 5_000 * each
    left = kept(cache, 20_001)
    assert left == list(range(20_001 - len(left), 20_001)) and len(left) > 3_900
    assert cache.get(20_000) == (7, b"props", b"20000" + b"." * 95)
    columns = cache.run(19_990, 3)
    assert columns is not None and columns[0] == [7] * 3 and columns[2][0].startswith(b"19990")
    cache.discard(range(1, 19_456))
    assert kept(cache, 19_456) == []
    cache.discard(range(19_456, 20_001))
    assert kept(cache, 20_001) == []


def test_what_was_settled_is_not_kept_and_its_neighbours_are() -> None:
    cache = ContentCache(1 << 20)
    cache.add(1, 1, [b""] * 10, [b"%d" % i for i in range(10)])
    cache.discard([3, 4, 5])
    assert kept(cache, 11) == [1, 2, 6, 7, 8, 9, 10]
    assert cache.run(1, 2) is not None and cache.run(2, 2) is None
    cache.add(15, 1, [b""], [b"later"])  # numbers between were given to messages that moved
    assert kept(cache, 16) == [1, 2, 6, 7, 8, 9, 10, 15] and cache.get(15) == (1, b"", b"later")


def test_a_message_larger_than_the_cache_is_not_kept() -> None:
    cache = ContentCache(1_000)
    cache.add(1, 1, [b""], [b"small"])
    cache.add(2, 1, [b""], [b"." * 2_000])
    assert kept(cache, 3) == [] and cache._bytes == 0
    cache.add(3, 1, [b""], [b"small"])
    assert kept(cache, 4) == [3]


def test_a_lease_the_journal_refused_is_next_again_even_while_the_refusal_is_looked_at(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"first", b"second")
        stage = b.journal.stage

        def refuse(event: Event) -> int:
            raise LimitExceeded("no more")

        b.journal.stage = refuse  # type: ignore[method-assign]
        with pytest.raises(LimitExceeded) as refusal:
            await b.lease(1)
        b.journal.stage = stage  # type: ignore[method-assign]
        check_invariants(b.engine.state)
        assert bodies(await b.lease(1)) == [b"first"]
        assert refusal.value.message == "no more"

    run(scenario)


@pytest.mark.parametrize("count", [1, 3])
def test_an_event_that_cannot_be_applied_is_not_written_and_ends_the_broker(run: Run, count: int) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"before")
        failed = asyncio.Event()
        b.partition._on_failed = lambda _: failed.set()
        apply = b.engine.state.apply

        def stumble(event: Event) -> None:
            if event.kind is Kind.PUBLISHED:
                raise RuntimeError("a mistake in the program")
            apply(event)

        b.engine.state.apply = stumble  # type: ignore[method-assign]
        told = b.send(publish(b, [Draft(b"x")] * count))
        await asyncio.wait_for(failed.wait(), 5)
        with pytest.raises(Unavailable):
            await b.publish(b"y")
        await b.stop()
        b.journal.close()
        await b.start()
        assert [type(one) for one in told] == [LanewayError]  # not that it was published
        assert bodies(await b.lease()) == [b"before"]

    run(scenario)


def test_settling_what_was_never_kept_leaves_the_kept_ones_whole() -> None:
    """Messages that moved have numbers in a slab of which the cache knows the ones before and after them."""
    cache = ContentCache(1 << 20)
    cache.add(1, 5, [b"", b""], [b"one", b"two"])
    cache.discard([2, 3, 4])
    cache.discard([2, 3])
    cache.add(5, 6, [b"p"], [b"five"])
    assert [cache.get(seq) for seq in range(1, 6)] == [(5, b"", b"one"), None, None, None, (6, b"p", b"five")]
    assert cache.run(5, 1) == ([6], [b"p"], [b"five"])
    assert cache.run(1, 5) is None


def test_what_is_written_of_a_message_tells_its_id(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        told: list[tuple[str, str]] = []
        stage = b.journal.stage

        def watched(event: Event) -> int:
            for _, _, (at_ms, _, number) in row_births(rows.encode(event, 0)[0]):
                told.append((event.kind.name, message_id(at_ms, 77, number)))
            return stage(event)

        b.journal.stage = watched  # type: ignore[method-assign]
        await b.queue("dead")
        await b.queue(dead_letter_queue="dead")
        (late,) = await b.publish(b"late", delay_ms=1_000)
        b.pass_time(400)
        (early,) = await b.publish(b"early")
        b.pass_time(1_000)
        deliveries = await b.lease()
        assert [d.message_id for d in deliveries] == [late.message_id, early.message_id]
        await b.settle("release", deliveries[1:])
        await b.settle("reject", deliveries[:1])
        await b.settle("ack", await b.lease(queue="dead"), queue="dead")
        assert told == [
            ("LEASED", late.message_id),
            ("LEASED", early.message_id),
            ("RELEASED", early.message_id),
            ("MOVED", late.message_id),
            ("LEASED", late.message_id),
            ("ACKED", late.message_id),
        ]

    run(scenario)
