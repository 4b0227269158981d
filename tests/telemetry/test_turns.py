"""A turn of the loop that takes too long is counted, and the log says what it did."""

from __future__ import annotations

import asyncio
import time

import pytest

from laneway.telemetry.turns import SLOW_MS, LoopTurns, TurnWatch


class _Work:
    def doing(self) -> str:
        return "PurgeQueue of somebody"


def _compute(ms: int) -> None:
    """Without giving way, as a request does that is not bounded."""
    end_s = time.thread_time() + ms / 1000
    while time.thread_time() < end_s:
        pass


async def _watched(ms: int) -> LoopTurns:
    turns = LoopTurns()
    watch = TurnWatch(turns)
    watch.start()
    await asyncio.sleep(0.05)
    work = _Work()
    _compute(ms)
    assert work is not None  # it stands in this function as requests do in those that carry them out
    before = turns.slow_count
    while ms >= SLOW_MS and turns.slow_count == before:
        await asyncio.sleep(0.01)
    watch.stop()
    return turns


def test_slow_turn_is_counted_and_its_work_is_named(caplog: pytest.LogCaptureFixture) -> None:
    turns = asyncio.run(_watched(500))
    assert turns.slow_count >= 1
    assert turns.longest_busy_ms >= 400
    assert turns.longest_ms >= turns.longest_busy_ms - 50
    line = next(text for text in caplog.messages if "a turn of the loop took" in text)
    assert "ms of it computing" in line


def test_what_a_function_works_with_is_asked_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from laneway.telemetry import turns

    monkeypatch.setitem(globals(), "__name__", "laneway.some.module")
    work = [_Work(), _Work()]
    text = turns._what(sys._getframe())
    assert work and text.startswith("PurgeQueue of somebody and 1 more (in some.module.test_what_a_function")


def test_what_a_turn_did_that_was_not_slow_in_the_end_is_not_said_of_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watch = TurnWatch(LoopTurns())
        watch.start()
        watch._seen["innocent"] += 1  # it was about to become slow
        watch._stamp()
        watch._stamped_s -= 1
        watch._stamp()
        watch.stop()

    asyncio.run(main())
    (line,) = [text for text in caplog.messages if "a turn of the loop took" in text]
    assert "innocent" not in line
