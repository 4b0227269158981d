"""Cursors: history that readers have not read is kept, over restarts and within a limit; who is too slow is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from laneway.broker.interface import DeleteCursor, DescribeHistory, GetCursor, ListCursors, PutCursor
from laneway.broker.values import Alarm, CursorInfo
from laneway.core.events import Event
from laneway.errors import Conflict, CursorLost, CursorNotFound, InvalidInput, JournalGap
from laneway.journal.history import follow

from .conftest import Bench

Run = Callable[..., None]

BATCH = [b"x" * 10_000] * 10


async def settled(b: Bench) -> None:
    """Look now and not only after some more commits; wait for a snapshot that is being saved, for what is dropped."""
    upkeep = b.partition.upkeep
    b.partition.cursors.look()
    while upkeep._saving is not None or upkeep._frozen is not None or upkeep._dropping is not None:
        await b.durable()
        await asyncio.sleep(0)


async def put(b: Bench, name: str, position: int, **options: Any) -> tuple[CursorInfo, bool]:
    found: tuple[CursorInfo, bool] = await b.ask(PutCursor(name, position, **options))
    return found


async def alarms(b: Bench) -> list[Alarm]:
    found: list[Alarm] = (await b.ask(DescribeHistory())).alarms
    return found


async def work(b: Bench, rounds: int) -> None:
    """Messages that come and go: about 100 KB each round, which nobody but readers needs afterwards."""
    for _ in range(rounds):
        b.clock.ms += 1_000
        await b.publish(*BATCH)
        await b.settle("ack", await b.lease(10))
    await settled(b)


def history(b: Bench, position: int) -> list[tuple[int, list[Event]]]:
    """All commits from a position on; raises if one is missing or damaged."""
    folder = str(b.folder)
    place = follow.start(folder, position)
    return [(c.header.position, scan.events(c)) for c, scan in follow.commits(folder, place, follow.end(folder))]


def used_bytes(b: Bench) -> int:
    return sum(f.stat().st_size for f in b.folder.glob("*.segment"))


def test_history_is_kept_from_a_cursor_on_and_let_go_behind_it(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        info, created = await put(b, "spark", 1)
        assert created and (info.position, info.state) == (1, "ok")
        await work(b, 80)
        positions = [position for position, _ in history(b, 1)]
        assert positions == list(range(1, len(positions) + 1))
        (info,) = await b.ask(ListCursors())
        assert info.lag_commits == len(positions) and 6_000_000 < info.held_bytes < used_bytes(b)
        before = used_bytes(b)
        middle = len(positions) // 2
        info, created = await put(b, "spark", middle)
        await settled(b)
        assert not created and used_bytes(b) < before * 0.7
        assert history(b, middle)[0][0] == middle
        with pytest.raises(JournalGap):
            history(b, 1)
        await b.ask(DeleteCursor("spark"))
        await settled(b)
        assert used_bytes(b) < 4 << 20, "without a cursor, what is settled goes"

    run(scenario, snapshot_events=100)


def test_what_only_cursors_hold_is_no_reason_for_snapshots(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        saved = []
        save = b.journal.save_snapshot

        def counted(position: int, *rest: Any) -> None:
            saved.append(position)
            save(position, *rest)

        b.journal.save_snapshot = counted  # type: ignore[method-assign]
        await b.queue()
        await work(b, 150)  # 15 segments, 450 commits
        without = len(saved)
        assert without >= 1, "dead segments are worth a snapshot"
        await put(b, "slow", b.journal.history.end().position)
        saved.clear()
        await work(b, 300)
        assert len(b.journal.held()) >= 20 and len(saved) <= 1
        await put(b, "slow", b.journal.history.end().position)
        await work(b, 60)
        assert len(saved) >= 1 and len(b.journal.held()) < 12

    run(scenario)


def test_cursors_and_their_history_survive_restarts(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await work(b, 3)
        await put(b, "one", 3)
        await put(b, "two", 5)
        await put(b, "three", 4)
        await work(b, 60)
        await b.ask(DeleteCursor("three"))
        for _ in range(2):
            await b.restart()
            assert [(c.name, c.position, c.state) for c in await b.ask(ListCursors())] == [
                ("one", 3, "ok"),
                ("two", 5, "ok"),
            ]
            positions = [position for position, _ in history(b, 3)]
            assert positions == list(range(3, positions[-1] + 1))
        await b.ask(DeleteCursor("one"))
        await put(b, "two", positions[-1])
        await b.restart()
        assert follow.first_position(str(b.folder)) > 5

    run(scenario, snapshot_events=100)


def test_a_cursor_moves_forward_unless_it_is_told_to_rewind(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await work(b, 3)
        end = b.journal.history.end().position
        for wrong in (0, -1, end + 1):
            with pytest.raises(InvalidInput, match=f"a position is from 1 to {end}, not {wrong}"):
                await put(b, "c", wrong)
        await put(b, "c", end)
        await put(b, "c", end)
        with pytest.raises(Conflict, match=r"is at .* and moves forward only"):
            await put(b, "c", end - 1)
        info, created = await put(b, "c", 2, rewind=True)
        assert (info.position, created) == (2, False)
        with pytest.raises(CursorNotFound):
            await b.ask(GetCursor("other"))
        with pytest.raises(CursorNotFound):
            await b.ask(DeleteCursor("other"))
        for name in ("", "x" * 256, "tab\t"):
            with pytest.raises(InvalidInput, match="the name of a cursor"):
                await put(b, name, 1)

    run(scenario)


def test_what_is_gone_cannot_be_held(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await work(b, 60)
        first = follow.first_position(str(b.folder))
        assert first > 1
        with pytest.raises(JournalGap, match=f"commit 1 has been dropped; history is kept from commit {first} on"):
            await put(b, "late", 1)
        assert await b.ask(ListCursors()) == [] and b.journal.held() == []
        await put(b, "late", first + 2)
        with pytest.raises(JournalGap):
            await put(b, "late", first - 1, rewind=True)
        assert (await b.ask(GetCursor("late"))).position == first + 2

    run(scenario, snapshot_events=100)


def test_the_cursor_furthest_behind_is_lost_when_the_limit_is_reached(run: Run, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario(b: Bench) -> None:
        await b.queue()
        await put(b, "dead", 1)
        await work(b, 25)
        ahead = b.journal.history.end().position
        await put(b, "slow", ahead)
        assert await alarms(b) == []
        await work(b, 22)
        (warning,) = await alarms(b)
        assert (warning.name, warning.level) == ("history_limit", "warning")
        await work(b, 15)
        assert {c.name: c.state for c in await b.ask(ListCursors())} == {"dead": "lost", "slow": "ok"}
        lost = next(a for a in await alarms(b) if a.name == "cursor_lost:dead")
        assert lost.level == "alarm" and "more than 5000000 bytes of history" in lost.message
        assert "cursor 'dead' at commit 1 is lost" in caplog.text
        assert used_bytes(b) < 5_000_000 + (3 << 20)
        assert history(b, ahead)[0][0] == ahead, "the other one lost nothing"
        first = follow.first_position(str(b.folder))
        for _ in range(2):
            with pytest.raises(CursorLost, match=f"history behind it .* is kept from commit {first} on") as told:
                await put(b, "dead", ahead)
            assert told.value.details["first_position"] == first
            await b.restart()
            assert [a.name for a in await alarms(b)] == ["cursor_lost:dead"]
        info, _ = await put(b, "dead", first, rewind=True)
        assert info.state == "ok"
        assert "cursor_lost:dead" not in [a.name for a in await alarms(b)]

    run(scenario, snapshot_events=100, history_limit_bytes=5_000_000)


def test_history_is_kept_for_some_time_without_any_cursor(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        began_ms = b.clock.ms
        await work(b, 100)  # a second each
        kept = history(b, follow.first_position(str(b.folder)))
        oldest = min(event.at_ms for event in kept[0][1])
        assert began_ms + 30_000 < oldest <= b.clock.ms - 40_000, "whole segments, and not much more than asked for"
        await b.restart()
        assert history(b, kept[0][0])[: len(kept)] == kept
        assert await alarms(b) == []

    run(scenario, snapshot_events=100, history_ms=40_000)


def test_history_that_is_kept_by_time_is_within_the_limit_too(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await work(b, 60)
        assert used_bytes(b) < 3_000_000 + (3 << 20)
        assert "history_cut" in [a.name for a in await alarms(b)]
        assert sum(one.byte_count for one in b.journal.held()) > 1_000_000, "the younger part is kept"

    run(scenario, snapshot_events=100, history_ms=3_600_000, history_limit_bytes=3_000_000)


def test_history_of_before_a_jump_of_the_clock_is_within_the_limit_too(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await work(b, 25)
        b.jumped_ms = 2 * 86_400_000
        b.partition.look_at_clock()
        await work(b, 18)
        assert 2_000_000 < sum(one.byte_count for one in b.journal.held()) < 3_000_000 + (1 << 19)

    run(scenario, snapshot_events=100, history_ms=3_600_000, history_limit_bytes=3_000_000)


def test_survivors_of_segments_that_are_held_are_not_copied(run: Run) -> None:
    """It would free nothing; and what they pin counts as held, or a few of them would undo the limit."""

    async def scenario(b: Bench) -> None:
        await b.queue(max_priority=1)
        await put(b, "c", 1)
        for i in range(40):
            await b.publish(b"survivor %d" % i, priority=0)
            await b.publish(*BATCH, priority=1)
            await b.settle("ack", await b.lease(10))
        await settled(b)
        kinds = {event.kind.name for _, events in history(b, 1) for event in events}
        assert "RELOCATED" not in kinds
        assert (await b.ask(GetCursor("c"))).held_bytes > 2_500_000
        await b.ask(DeleteCursor("c"))
        await work(b, 30)
        assert used_bytes(b) < 4 << 20
        assert len(await b.lease(100)) == 40

    run(scenario, snapshot_events=100)


def test_a_cursor_that_is_being_deleted_gives_way_to_a_full_disk(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await put(b, "leaving", 1)
        await work(b, 3)
        deleting = asyncio.ensure_future(b.ask(DeleteCursor("leaving")))
        await asyncio.sleep(0)  # it is deleted, and that is not durable yet
        b.partition.cursors._make_room()
        await deleting
        assert await b.ask(ListCursors()) == [] and await alarms(b) == []

    run(scenario)
