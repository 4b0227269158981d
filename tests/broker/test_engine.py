"""State and journal as one: what is kept in memory, and what becomes of a command that the journal refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laneway.broker.engine import RECORD_OVERHEAD_BYTES, RecordCache
from laneway.core.events import Event
from laneway.core.invariants import check_invariants
from laneway.errors import LimitExceeded

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
