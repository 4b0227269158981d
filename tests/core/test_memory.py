"""A backlog is cheap: tens of bytes a waiting message, whatever its size."""

from __future__ import annotations

import gc
import sys
import tracemalloc

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
