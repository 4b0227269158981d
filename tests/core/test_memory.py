"""A backlog is cheap: tens of bytes a waiting message, whatever its size."""

from __future__ import annotations

import gc
import sys
import tracemalloc

import pytest

from laneway.core import clockwork, commands, deadlines
from laneway.core.message import Draft, Settlement
from laneway.core.state import State
from laneway.core.table import COLUMNS
from tests.core.runner import Core

MESSAGES = 200_000
BATCH = 1000


def deep_queue(priorities: int = 1, messages: int = MESSAGES) -> Core:
    """The journal keeps no records here, so that only the state is measured."""
    core = Core(extent_bytes=1 << 40)
    core.paper.write = lambda event: 1 << 32  # type: ignore[method-assign]
    core.put()
    for n in range(messages // BATCH):
        core.publish(*[Draft(b"x" * 100, priority=(n + i) % priorities) for i in range(BATCH)])
    return core


def table_and_lane_bytes(state: State) -> int:
    slabs = state.table.slabs
    total = sys.getsizeof(slabs)
    for slab in slabs.values():
        total += sys.getsizeof(slab) + sum(sys.getsizeof(getattr(slab, name)) for name, _ in COLUMNS)
    for queue in state.queues.values():
        for lane in queue.lanes.values():
            total += sys.getsizeof(lane) + sys.getsizeof(lane.returned) + sum(map(sys.getsizeof, lane.chunks))
    return total


def test_a_waiting_message_takes_less_than_60_bytes() -> None:
    core = deep_queue()
    assert core["q"].ready == MESSAGES
    assert table_and_lane_bytes(core.state) < 60 * MESSAGES


def test_ten_interleaved_priorities_take_no_more() -> None:
    core = deep_queue(priorities=10)
    assert table_and_lane_bytes(core.state) < 60 * MESSAGES


def test_nothing_else_in_the_state_grows_with_a_backlog() -> None:
    count = 50_000  # tracing is slow
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        core = deep_queue(messages=count)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert core["q"].ready == count
    assert after - before < 60 * count


def test_a_drained_queue_gives_its_memory_back() -> None:
    core = deep_queue(priorities=3)
    while leased := core.take(10_000):
        core.ack(*[t for _, t in leased])
    core.tick(30_000)
    assert len(core.state.table.slabs) <= 1
    assert table_and_lane_bytes(core.state) < 100_000
    assert core.state.deadlines.buckets.keys() == {core["q"].retention_armed_ms}


def test_a_replay_of_settled_messages_leaves_nothing_behind() -> None:
    core = Core(extent_bytes=1 << 20)
    core.put(max_receives=None)
    for _ in range(20):
        core.publish(*[Draft(b"x", ttl_ms=60_000 if i % 100 == 7 else None) for i in range(BATCH)])
        leased = core.take(BATCH - 10)
        core.settle(*[Settlement("release", t) for _, t in leased[:50]])
        core.ack(*[t for _, t in leased[50:]])
    core.tick(60_000)
    while leased := core.take(300):
        core.ack(*[t for _, t in leased])
    core.restart()
    (lane,) = core["q"].lanes.values()
    assert (lane.count, lane.entries, lane.returned) == (0, 0, [])


def test_two_hundred_thousand_leases_share_one_reminder() -> None:
    core = deep_queue()
    while core.take(MESSAGES):
        pass
    assert core["q"].leased == MESSAGES
    at_ms = core.now_ms + 30_000
    assert len(core.state.deadlines.buckets[at_ms]) == 1
    assert table_and_lane_bytes(core.state) < 60 * MESSAGES


@pytest.fixture
def tidy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "TIDY_BYTES", 10_000)


def reminders(core: Core) -> int:
    return sum(len(seqs) for bucket in core.state.deadlines.buckets.values() for seqs in bucket.values())


@pytest.mark.usefixtures("tidy")
def test_reminders_of_messages_that_have_gone_do_not_pile_up() -> None:
    core = Core()
    core.put(message_ttl_ms=86_400_000, lease_ms=43_200_000)
    core.fill(1)
    stays = core.take(1)
    for _ in range(100):
        core.now_ms += 1
        core.fill(200)
        core.ack(*[token for _, token in core.take(200)])
    assert reminders(core) < 4_000
    core.settle(Settlement("release", stays[0][1]))
    core.tick(90_000_000)
    assert list(core["q"].dead) == [stays[0][0]]


@pytest.mark.usefixtures("tidy")
def test_reminders_of_a_lease_that_is_extended_again_and_again_do_not_pile_up() -> None:
    core = Core()
    core.put()
    core.fill(1)
    ((_, token),) = core.take(1)
    for i in range(2_000):
        core.now_ms += 1
        core.settle(Settlement("extend", token, lease_ms=43_200_000 - 20_000_000 * (i % 2)))
    assert reminders(core) < 50
    deadline_ms = core.now_ms + 23_200_000
    core.tick(23_200_000 - 1)
    assert core["q"].leased == 1
    core.tick(1)
    assert core["q"].ready == 1 and core.now_ms == deadline_ms


@pytest.mark.usefixtures("tidy")
def test_reminders_of_purged_delays_do_not_pile_up_and_those_of_others_still_come() -> None:
    core = Core()
    core.put()
    core.put("other", delay_ms=900_000)
    core.fill(1, queue="other")
    for _ in range(300):
        core.now_ms += 1
        core.fill(10, delay_ms=900_000)
        core.run(commands.purge_queue(core.state, core["q"], core.now_ms))
    assert reminders(core) < 300
    core.tick(900_000)
    assert core["other"].ready == 1


@pytest.mark.usefixtures("tidy")
def test_what_a_bounded_tick_left_over_survives_tidying() -> None:
    core = Core()
    core.put(lease_ms=1_000, max_receives=None)
    for _ in range(12):
        core.fill(1_000)
    core.lease(12_000)
    core.now_ms += 2_000
    core.run(clockwork.tick(core.state, core.now_ms))
    assert 0 < core["q"].leased < 12_000
    for i in range(200):  # reminders of other times, until it is tidied
        core.now_ms += 1
        core.lease(1, lease_ms=5_000 + i)
    core.tick()
    assert core["q"].leased == 200
