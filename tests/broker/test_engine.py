"""State and journal as one: what is kept in memory, and what becomes of a command that the journal refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from laneway.broker.engine import RECORD_OVERHEAD_BYTES, RecordCache
from laneway.broker.values import Draft
from laneway.core.events import Event, Kind
from laneway.core.invariants import check_invariants
from laneway.errors import LimitExceeded, Unavailable

from .conftest import Bench, bodies

Run = Callable[..., None]


def test_the_cache_keeps_the_latest_records_within_its_bounds() -> None:
    each = 100 + RECORD_OVERHEAD_BYTES
    cache = RecordCache(50 * each)
    for first in range(1, 201, 4):
        cache.add(first, [b"." * 100] * 4)
        assert len(cache.records) <= 50
    assert list(cache.records) == list(range(201 - len(cache.records), 201))
    assert len(cache.records) > 40
    cache.discard(range(1, 201))
    assert not cache.records and cache._bytes == 0


def test_a_record_larger_than_the_cache_is_not_kept() -> None:
    cache = RecordCache(1_000)
    cache.add(1, [b"small"])
    cache.add(2, [b"." * 2_000])
    assert not cache.records and cache._bytes == 0


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
        b.broker._on_failed = lambda _: failed.set()
        apply = b.engine.state.apply

        def stumble(event: Event) -> None:
            if event.kind is Kind.PUBLISHED:
                raise RuntimeError("a mistake in the program")
            apply(event)

        b.engine.state.apply = stumble  # type: ignore[method-assign]
        told: list[object] = []
        try:
            b.broker.publish("/", "q", [Draft(b"x")] * count, told.append)
        except RuntimeError:
            assert count > 1
        await asyncio.wait_for(failed.wait(), 5)
        with pytest.raises(Unavailable):
            b.broker.publish("/", "q", [Draft(b"y")], told.append)
        await b.broker.stop()
        b.journal.close()
        await b.start()
        assert not told
        assert bodies(await b.lease()) == [b"before"]

    run(scenario)
