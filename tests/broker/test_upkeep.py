"""Snapshots, dropping and compaction, seen from outside: what a restart replays, which files are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest import mock

import pytest

from laneway.broker import upkeep
from laneway.broker.upkeep import Upkeep
from laneway.core.invariants import check_invariants

from .conftest import Bench, bodies

Run = Callable[..., None]


async def settled_upkeep(b: Bench) -> None:
    """Wait for a snapshot that is being saved."""
    while b.partition.upkeep._saving is not None or b.partition.upkeep._frozen is not None:
        await b.durable()
        await asyncio.sleep(0)


def test_a_restart_replays_only_what_came_after_the_snapshot(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        for _ in range(60):
            await b.publish(b"x" * 100)
        await settled_upkeep(b)
        await b.publish(b"last")
        b.partition.upkeep._events = 0  # no snapshot at the end: as if killed
        await b.restart()
        assert b.recovery.snapshot_position > 0
        assert b.recovery.event_count < 60
        assert len(await b.lease(100)) == 61
        check_invariants(b.engine.state)

    run(scenario, snapshot_events=40)


def test_segments_of_settled_messages_are_dropped(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        for _ in range(80):
            await b.publish(*[b"x" * 10_000] * 10)
            await b.settle("ack", await b.lease(10))
        await settled_upkeep(b)
        used = sum(f.stat().st_size for f in b.folder.iterdir())
        assert used < 80 * 100_000 / 2, "most of what was settled is gone"
        await b.restart()
        assert (await b.stats()).totals["acked"] == 800

    run(scenario, snapshot_events=100)


def test_a_segment_pinned_by_a_few_survivors_is_compacted(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_priority=1)
        survivors = []
        for i in range(60):
            await b.publish(b"survivor %d" % i, priority=0)
            survivors.append(b"survivor %d" % i)
            await b.publish(*[b"x" * 10_000] * 10, priority=1)
            await b.settle("ack", await b.lease(10))
        for _ in range(40):  # two snapshots more: one that compacts, one that lets the old segments go
            await b.publish(*[b"x" * 100] * 5, priority=1)
            await b.settle("ack", await b.lease(5))
            await settled_upkeep(b)
        assert len(b.engine.state.extents) <= 2, "the survivors stood in as many segments as there were"
        assert 1 not in b.journal.extent_bytes(), "the first segment is gone though it held survivors"
        check_invariants(b.engine.state)
        await b.restart()
        assert bodies(await b.lease(100)) == survivors

    run(scenario, snapshot_events=50)


def test_a_backlog_that_is_being_consumed_is_not_compacted(run: Run) -> None:
    """The segment it has come to is nearly empty at one snapshot and gone at the next."""

    async def scenario(b: Bench) -> None:
        await b.queue()
        for _ in range(100):
            await b.publish(*[b"x" * 4_000] * 20)
        with mock.patch.object(Upkeep, "_survivors", side_effect=AssertionError("looked for survivors")) as survivors:
            for _ in range(200):
                await b.settle("ack", await b.lease(10))
                await settled_upkeep(b)
        assert not survivors.called
        assert len(b.journal.extent_bytes()) <= 2, "there were snapshots"

    run(scenario, snapshot_events=100)


def test_changes_after_a_snapshot_was_frozen_are_not_in_it(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        for i in range(30):
            await b.publish(b"%d" % i)
            if i % 3 == 0:
                await b.settle("ack", await b.lease(1))
        await settled_upkeep(b)
        expected = await b.stats()
        await b.restart()
        found = await b.stats()
        assert (found.ready, found.leased, found.totals) == (expected.ready, expected.leased, expected.totals)
        check_invariants(b.engine.state)

    run(scenario, snapshot_events=7)


def test_the_deeper_the_backlog_the_more_must_have_happened_for_a_snapshot(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot costs as much as there are messages, so it is taken for a share of them."""
    monkeypatch.setattr(upkeep, "LOOK_EVERY_COMMITS", 1)
    monkeypatch.setattr(upkeep, "DEAD_EXTENTS", 2)

    async def scenario(b: Bench) -> None:
        def is_due() -> bool:
            return b.partition.upkeep._is_due()

        async def settle_extents(count: int) -> None:
            """So many more extents have no live record, and more extents are begun."""
            before = b.engine.state.extents.copy()
            while len(before.keys() - b.engine.state.extents.keys()) < count:
                await b.settle("ack", await b.lease(1))

        await b.queue()
        b.partition.upkeep._stopping = True  # no snapshot is taken: what is asked is whether one would be
        while len(b.engine.journal.extent_bytes()) < 16:
            await b.publish(b"x" * 200_000)
        assert not is_due()
        await settle_extents(3)
        assert not is_due(), "for a small backlog two would have been enough"
        await settle_extents(1)
        assert is_due()
        b.partition.upkeep._stopping = False

    run(scenario)


def test_events_are_counted_against_the_messages_there_are(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        b.partition.upkeep._stopping = True
        await b.queue()
        await b.publish(*[b"x"] * 1000)
        b.partition.upkeep._events = 499
        assert not b.partition.upkeep._is_due()
        b.partition.upkeep._events = 500
        assert b.partition.upkeep._is_due()
        b.partition.upkeep._stopping = False

    run(scenario, snapshot_events=100)
