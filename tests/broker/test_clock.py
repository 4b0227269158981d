"""The clock of a partition: wall clock and uptime in, time out; and what a broker does when the wall clock jumps."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from laneway.broker.clock import SLEW_MS, Clock, boot_id, machine_uptime_ns
from laneway.core.message import Properties
from tests.broker.conftest import Bench, bodies
from tests.broker.test_broker import Run

HOUR_MS = 3_600_000
MS = 1_000_000
jumps = pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS, 48 * HOUR_MS, -48 * HOUR_MS])

# --- readings in, times out


class Readings:
    """A wall clock and an uptime, both set by hand, in milliseconds."""

    def __init__(self, wall_ms: int, uptime_ms: int) -> None:
        self.wall_ms, self.uptime_ms = wall_ms, uptime_ms
        self.clock = Clock(lambda: self.wall_ms * MS, lambda: self.uptime_ms * MS)

    def at(self, wall_ms: int, uptime_ms: int) -> int:
        """What the clock says then."""
        self.wall_ms, self.uptime_ms = wall_ms, uptime_ms
        return self.clock.now_ms()


def test_time_passes_as_uptime_does_whatever_the_wall_clock_says() -> None:
    readings = Readings(1_000_000, 500)
    said = [readings.at(*at) for at in [(1_000_000, 500), (1_000_010, 510), (5_000_000, 520), (3, 530)]]
    assert said == [1_000_000, 1_000_010, 1_000_020, 1_000_030]


def test_a_small_difference_is_made_up_for_bit_by_bit_and_time_never_goes_back() -> None:
    readings = Readings(1_000_000, 0)
    seen = []
    for second in range(1, 61):
        seen.append(readings.at(1_000_000 + 1000 * second - 300, 1000 * second))  # 300 ms behind
        assert readings.clock.look() == 0
        seen.append(readings.clock.now_ms())
    assert seen == sorted(seen)
    assert seen[:4] == [1_001_000, 1_001_000, 1_002_000 - SLEW_MS, 1_002_000 - SLEW_MS]
    assert seen[-1] == readings.wall_ms, "by now they agree"


@pytest.mark.parametrize("by_ms", [1_000, -1_000, HOUR_MS, -HOUR_MS])
def test_a_large_difference_is_a_jump_which_is_told_and_not_followed_until_somebody_steps(by_ms: int) -> None:
    readings = Readings(10 * HOUR_MS, 0)
    assert readings.at(10 * HOUR_MS + 500 + by_ms, 500) == 10 * HOUR_MS + 500
    assert readings.clock.look() == by_ms
    assert readings.clock.look() == by_ms
    assert readings.clock.now_ms() == 10 * HOUR_MS + 500
    readings.clock.step(by_ms)
    assert readings.clock.now_ms() == readings.wall_ms
    assert readings.clock.look() == 0
    assert readings.at(readings.wall_ms + 20, 520) == 10 * HOUR_MS + 520 + by_ms


def test_time_in_suspension_is_time_that_passed() -> None:
    readings = Readings(1_000_000, 500)
    assert readings.at(1_000_000 + HOUR_MS, 500 + HOUR_MS) == 1_000_000 + HOUR_MS
    assert readings.clock.look() == 0


def test_the_clock_of_this_machine_says_the_time_of_day() -> None:
    clock = Clock.of_machine()
    assert clock.look() == 0
    assert clock.boot == boot_id() == boot_id()
    first_ns = machine_uptime_ns()
    assert 0 < first_ns <= machine_uptime_ns()


# --- a broker whose wall clock jumps


def jump(b: Bench, by_ms: int) -> None:
    b.jumped_ms += by_ms
    b.partition.look_at_clock()


@jumps
def test_leases_delays_and_times_to_live_go_on_as_they_were(run: Run, by_ms: int) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=30_000)
        await b.publish(b"held")
        held = await b.lease()
        await b.publish(b"late", delay_ms=40_000)
        await b.publish(b"brief", ttl_ms=35_000, priority=0)
        b.pass_time(10_000)
        jump(b, by_ms)
        assert b.broker.now() == b.clock.ms + by_ms
        b.pass_time(19_000)
        assert (await b.settle("extend", held, lease_ms=1_500)) == [b.broker.now() + 1_500], "it is still held"
        b.pass_time(1_600)
        assert bodies(await b.lease(1)) == [b"held"], "and comes back when it is not"
        stats = await b.stats()
        assert (stats.ready, stats.delayed) == (1, 1)
        b.pass_time(4_500)
        assert (await b.stats()).ready == 0, "its time to live has ended"
        b.pass_time(5_000)
        assert bodies(await b.lease(1)) == [b"late"]

    run(scenario)


def test_an_hour_ahead_and_back_leaves_no_trace(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=30_000)
        await b.publish(b"m")
        await b.lease()
        jump(b, HOUR_MS)
        b.pass_time(3_000)
        jump(b, -HOUR_MS)
        b.pass_time(26_999)
        assert (await b.stats()).ready == 0
        b.pass_time(1)
        assert (await b.stats()).ready == 1

    with caplog.at_level(logging.WARNING):
        run(scenario)
    assert [record.message for record in caplog.records] == [
        "the wall clock jumped 3600.0 seconds ahead: leases, delays and times to live go on as they were",
        "the wall clock jumped 3600.0 seconds back: leases, delays and times to live go on as they were",
    ]


def test_two_days_ahead_delete_nothing(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(retention_ms=24 * HOUR_MS)
        await b.publish(b"m")
        jump(b, 48 * HOUR_MS)
        b.pass_time(HOUR_MS)
        assert (await b.stats()).ready == 1
        b.pass_time(24 * HOUR_MS)
        assert (await b.stats()).ready == 0

    run(scenario)


def test_whoever_waits_is_served_when_the_clock_jumps_to_a_named_time(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"m", visible_at_ms=b.clock.ms + HOUR_MS)
        waiting = asyncio.ensure_future(b.lease(wait_ms=20_000))
        await asyncio.sleep(0)
        jump(b, HOUR_MS - 1_000)
        b.pass_time(999)
        await asyncio.sleep(0)
        assert not waiting.done()
        jump(b, 1_001)
        assert bodies(await waiting) == [b"m"]

    run(scenario)


def test_a_partition_looks_by_itself_and_wakes_up_with_the_machine(tmp_path: Path) -> None:
    """Timers stand still while a machine is suspended, so what fell due meanwhile is found by looking."""

    async def main() -> None:
        b = Bench(tmp_path / "data")
        b.look_every_ms = 5
        await b.start()
        await b.queue(lease_ms=HOUR_MS)
        await b.publish(b"m")
        await b.lease()
        waiting = asyncio.ensure_future(b.lease(wait_ms=20_000))
        await asyncio.sleep(0)
        b.clock.ms += HOUR_MS
        assert bodies(await waiting) == [b"m"]
        b.jumped_ms = HOUR_MS
        async with asyncio.timeout(10):
            while b.broker.now() < b.clock.ms + HOUR_MS:
                await asyncio.sleep(0.001)
        await b.stop()

    asyncio.run(main())


def test_what_was_made_up_for_little_by_little_is_no_jump_at_the_next_start(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(b: Bench) -> None:
        b.boot = "one"
        await b.restart()
        await b.queue()
        events = b.staged()
        for _ in range(500):
            b.jumped_ms += SLEW_MS
            b.clock.ms += 1_000
            b.partition.look_at_clock()
        assert 5 <= len(events) <= 12, "that is noted now and then"
        await b.publish(b"late", delay_ms=60_000)
        b.clock.ms += 30_000  # in which it is down
        await b.restart()
        assert b.recovery.jumped_ms == 0 and "jumped" not in caplog.text
        b.pass_time(29_000)
        assert not await b.lease()
        b.pass_time(1_001)
        assert bodies(await b.lease()) == [b"late"]

    run(scenario)


@jumps
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_restart_keeps_what_was_left_although_the_clock_was_set_meanwhile(
    tmp_path: Path, by_ms: int, is_clean: bool
) -> None:
    async def main() -> None:
        b = Bench(tmp_path / "data")
        b.boot = "the only one"
        await b.start()
        await b.queue(lease_ms=30_000, dedup_window_ms=60_000)
        await b.publish(b"held")
        held = await b.lease()
        await b.publish(b"late", delay_ms=40_000)
        await b.publish(b"brief", ttl_ms=35_000)
        await b.publish(b"once", properties=Properties(dedup_id="one"), delay_ms=600_000)
        await b.durable()
        if not is_clean:  # what a kill would leave
            shutil.copytree(b.folder, tmp_path / "killed")
        await b.stop()
        b.folder = b.folder if is_clean else tmp_path / "killed"
        b.clock.ms += 20_000  # it is down for a while
        b.jumped_ms = by_ms
        await b.start()
        stats = await b.stats()
        assert (stats.ready, stats.leased, stats.delayed) == (1, 1, 2)
        (again,) = await b.publish(b"once", properties=Properties(dedup_id="one"))
        assert again.duplicate  # type: ignore[union-attr]
        b.pass_time(9_999)
        assert (await b.stats()).leased == 1
        assert isinstance((await b.settle("extend", held, lease_ms=100_000))[0], int), "the same lease as before"
        b.pass_time(5_100)
        assert (await b.stats()).ready == 0, "its time to live has ended"
        b.pass_time(5_000)
        assert bodies(await b.lease()) == [b"late"]
        await b.stop()

    asyncio.run(main())
