"""Answers wait until every process has the changes before them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from laneway.cluster import barrier as module
from laneway.cluster.barrier import Barrier


def run(work: Callable[[Barrier, list[str]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        barrier = Barrier()
        await work(barrier, [])
        barrier.stop()

    asyncio.run(main())


def test_an_answer_passes_when_the_last_process_has_its_change() -> None:
    async def work(barrier: Barrier, told: list[str]) -> None:
        barrier.joined("a"), barrier.joined("b")
        barrier.changed()
        barrier.wait(lambda: told.append("first"))
        barrier.changed()
        barrier.wait(lambda: told.append("second"))
        barrier.seen("a", 2)
        assert told == []
        barrier.seen("b", 1)
        assert told == ["first"]
        barrier.seen("b", 1)
        assert told == ["first", "second"]
        barrier.wait(lambda: told.append("nothing new"))
        assert told[-1] == "nothing new"

    run(work)


def test_who_joins_later_has_what_was_before() -> None:
    async def work(barrier: Barrier, told: list[str]) -> None:
        barrier.changed()
        barrier.joined("late")
        barrier.wait(lambda: told.append("at once"))
        assert told == ["at once"]

    run(work)


def test_a_process_that_is_lost_is_not_waited_for() -> None:
    async def work(barrier: Barrier, told: list[str]) -> None:
        barrier.joined("a"), barrier.joined("b")
        barrier.changed()
        barrier.wait(lambda: told.append("x"))
        barrier.seen("a", 1)
        barrier.left("b")
        assert told == ["x"]

    run(work)


def test_a_process_that_stands_still_is_waited_for_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)

    async def work(barrier: Barrier, told: list[str]) -> None:
        barrier.joined("stopped")
        barrier.changed()
        barrier.wait(lambda: told.append("x"))
        await asyncio.sleep(0)
        assert told == []
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0.005)

    run(work)
