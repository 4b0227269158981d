"""What time alone does: ticks with a limit, reminders, retention, and what happens when the journal takes no event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core import clockwork, commands
from laneway.core.clockwork import TICK_MESSAGES
from laneway.core.deadlines import DELAY, LEASE, Deadlines, coarse
from laneway.core.events import Cause, DeadLettered, Event, Released, Removed
from laneway.core.invariants import check_invariants
from laneway.core.message import Settlement
from tests.core.runner import START_MS, Core, draft

KEEP_MS = 60_000  # the shortest retention there is


# Reminders


def test_reminders_come_in_the_order_of_their_times_and_only_when_due() -> None:
    deadlines = Deadlines()
    assert deadlines.next_ms() is None and deadlines.pop_due(10**15) is None
    deadlines.add(300, LEASE, 1, [3])
    deadlines.add(100, LEASE, 1, [1])
    deadlines.add(100, LEASE, 1, range(5, 7))
    deadlines.add(100, DELAY, 1, [2])
    deadlines.add(100, LEASE, 2, ())
    assert deadlines.next_ms() == 100
    assert deadlines.pop_due(99) is None
    bucket = deadlines.pop_due(100)
    assert bucket is not None
    assert {key: list(seqs) for key, seqs in bucket.items()} == {(LEASE, 1): [1, 5, 6], (DELAY, 1): [2], (LEASE, 2): []}
    assert deadlines.pop_due(299) is None and deadlines.next_ms() == 300
    deadlines.add(100, LEASE, 1, [9])  # a time that is over comes at once
    assert list(deadlines.pop_due(299) or {}) == [(LEASE, 1)]


@given(now_ms=st.integers(0, 2**42), distance_ms=st.integers(-1000, 2**40))
def test_a_coarse_deadline_is_never_early_and_at_most_a_thousandth_late(now_ms: int, distance_ms: int) -> None:
    at_ms = now_ms + distance_ms
    rounded = coarse(at_ms, now_ms)
    assert 0 <= rounded - at_ms <= max(0, distance_ms) / 1024


def test_far_deadlines_share_buckets() -> None:
    week_ms = 7 * 86_400_000
    assert len({coarse(START_MS + week_ms + i, START_MS + i) for i in range(60_000)}) <= 2


def test_reminders_of_a_million_leases_are_one_bucket_each_millisecond() -> None:
    deadlines = Deadlines()
    for first in range(0, 1_000_000, 1000):
        deadlines.add(500, LEASE, 1, range(first, first + 1000))
    assert list(deadlines.buckets) == [500]
    (entry,) = deadlines.buckets[500].values()
    assert entry.itemsize * len(entry) == 8_000_000


# Ticks


def test_a_tick_handles_a_bounded_number_of_messages_and_goes_on_where_it_stopped() -> None:
    core = Core(extent_bytes=1 << 20)
    core.put()
    core.fill(TICK_MESSAGES * 2 + 10)
    core.take(TICK_MESSAGES * 2 + 10)
    core.now_ms += 30_000
    counts = []
    for _ in range(3):
        assert core.state.deadlines.next_ms() <= core.now_ms
        events = core.run(clockwork.tick(core.state, core.now_ms))
        counts.append(sum(len(e.seqs) for e in events))
    assert counts == [TICK_MESSAGES, TICK_MESSAGES, 10]
    assert core["q"].ready == TICK_MESSAGES * 2 + 10
    assert core.state.deadlines.next_ms() > core.now_ms
    check_invariants(core.state)


def test_a_reminder_of_an_earlier_lease_does_not_end_a_later_one() -> None:
    core = Core()
    core.put()
    core.publish(b"1")
    ((_, t),) = core.take(lease_ms=1000)
    core.settle(Settlement("release", t))
    core.take(lease_ms=5000)
    assert core.tick(1000) == []
    assert [type(e) for e in core.tick(4000)] == [Released]


def test_a_reminder_of_a_delay_that_was_cut_short_finds_nothing_to_do() -> None:
    core = Core()
    core.put()
    core.publish(draft(delay_ms=1000))
    core.run(commands.purge_queue(core.state, core["q"], core.now_ms))
    core.publish(b"2")
    assert core.tick(1000) == []
    assert core["q"].ready == 1


def test_ticks_of_an_idle_partition_find_nothing_due() -> None:
    core = Core()
    for i in range(50):
        core.put(f"q{i}")
    assert core.state.deadlines.next_ms() is None
    core.publish(b"1", queue="q7")
    core.ack(core.take(queue="q7")[0][1], queue="q7")
    core.tick(10 * 86_400_000)
    assert core.state.deadlines.next_ms() is None  # an empty queue asks for no more looks


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_what_falls_due_while_the_journal_takes_nothing_stays_due(accepted: int) -> None:
    core = Core()
    core.put(max_receives=2)
    core.publish(b"1", b"2", draft(ttl_ms=1000))
    core.take(1, lease_ms=500)
    core.tick(500)
    core.take(2, lease_ms=500)  # of 1 it is the last receive
    core.now_ms += 500
    assert len(core.tick_refused(accepted)) == accepted
    events = core.tick()
    expected: list[Event] = [
        DeadLettered(1, core.now_ms, [3], Cause.EXPIRED, ""),
        Released(1, core.now_ms, [2], [0], Cause.LEASE_EXPIRED),
        DeadLettered(1, core.now_ms, [1], Cause.MAX_RECEIVES, ""),
    ]
    assert events == expected[accepted:]
    check_invariants(core.state)


def test_a_sweep_the_journal_does_not_take_is_made_up_for() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    core.publish(b"1")
    core.now_ms += KEEP_MS + 100
    assert core.tick_refused(0) == []
    assert core.tick() == [Removed(1, core.now_ms, [1], Cause.RETENTION)]


def test_a_sweep_that_was_refused_is_made_up_for_even_if_something_dies_first() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    core.publish(b"1", b"2")
    ((_, one),) = core.take(1, lease_ms=KEEP_MS * 2)
    core.now_ms += KEEP_MS + 100
    assert core.tick_refused(0) == []
    core.settle(Settlement("reject", one))
    assert core.tick() == [Removed(1, core.now_ms, [2], Cause.RETENTION)]


# Retention


def over_ms(since_ms: int = START_MS, keep_ms: int = KEEP_MS) -> int:
    return coarse(since_ms + keep_ms, since_ms)


def test_a_message_is_kept_for_the_retention_and_no_longer() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    core.publish(b"1", draft(priority=9), draft(group="g"))
    core.now_ms = over_ms() - 1
    assert core.tick() == []
    (event,) = core.tick(1)
    assert isinstance(event, Removed) and event.cause is Cause.RETENTION
    assert sorted(event.seqs) == [1, 2, 3]
    assert core.state.extents == {}


def test_each_message_has_its_own_retention() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    gone: dict[int, int] = {}
    since: dict[int, int] = {}
    for _ in range(40):
        core.publish(b"x")
        since[core.state.table.next_seq - 1] = core.now_ms
        for event in core.tick(7_000):
            gone |= dict.fromkeys(event.seqs, core.now_ms)
    for seq, at_ms in gone.items():
        assert over_ms(since[seq]) <= at_ms < over_ms(since[seq]) + 7_000


def test_a_leased_message_is_spared_and_removed_when_it_comes_back() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS, max_receives=None)
    core.publish(b"1", b"2")
    (_, one), _ = core.take(lease_ms=KEEP_MS * 3)
    assert core.tick(KEEP_MS * 2) == []
    core.settle(Settlement("release", one))
    assert core.tick() == [Removed(1, core.now_ms, [1], Cause.RETENTION)]
    events = core.tick(KEEP_MS)
    assert [type(e) for e in events] == [Released, Removed]


def test_a_message_away_with_a_delay_is_removed_when_it_comes_back() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    core.publish(b"1")
    core.settle(Settlement("release", core.take()[0][1], delay_ms=KEEP_MS * 2))
    assert core.tick(KEEP_MS * 2 - 1) == []
    assert core.tick(1) == [Removed(1, core.now_ms, [1], Cause.RETENTION)]


def test_a_scheduled_message_is_kept_from_its_time_on() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    visible_ms = START_MS + KEEP_MS * 3
    core.publish(draft(visible_at_ms=visible_ms))
    core.now_ms = over_ms(visible_ms) - 1
    assert core.tick() == []
    assert core.tick(1) == [Removed(1, core.now_ms, [1], Cause.RETENTION)]


@pytest.mark.parametrize("group", ["", "g"])
def test_a_scheduled_message_in_front_does_not_keep_those_behind_it(group: str) -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    core.publish(draft(group=group, delay_ms=KEEP_MS - 1000), draft(group=group), draft(group=group))
    core.now_ms = over_ms()
    assert core.tick() == [Removed(1, core.now_ms, [2, 3], Cause.RETENTION)]


def test_a_dead_letter_is_kept_from_its_death_on() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS)
    core.publish(b"1")
    core.tick(KEEP_MS // 2)
    died_ms = core.now_ms
    core.settle(Settlement("reject", core.take()[0][1]))
    core.now_ms = over_ms(died_ms) - 1
    assert core.tick() == []
    assert core.tick(1) == [Removed(1, core.now_ms, [1], Cause.RETENTION)]


def test_a_shorter_retention_takes_effect_at_once_and_a_longer_one_too() -> None:
    core = Core()
    core.put(retention_ms=KEEP_MS * 10)
    core.publish(b"1")
    core.tick(KEEP_MS * 2)
    core.put(retention_ms=KEEP_MS)
    assert core.tick() == [Removed(1, core.now_ms, [1], Cause.RETENTION)]
    core.publish(b"2")
    core.put(retention_ms=KEEP_MS * 5)
    assert core.tick(KEEP_MS * 4) == []
    assert [e.seqs for e in core.tick(KEEP_MS * 2)] == [[2]]


def test_a_mass_outlives_its_retention_in_several_ticks() -> None:
    core = Core(extent_bytes=1 << 20)
    core.put(retention_ms=KEEP_MS)
    core.fill(TICK_MESSAGES + 10)
    core.now_ms = over_ms()
    assert [len(e.seqs) for e in core.tick()] == [TICK_MESSAGES]
    assert [len(e.seqs) for e in core.tick(1)] == [10]
    check_invariants(core.state)


def test_without_a_retention_a_message_is_kept() -> None:
    core = Core()
    core.put(retention_ms=None)
    core.publish(b"old")
    assert core.tick(400 * 86_400_000) == []
    assert [seq for seq, _ in core.take(1)] == [1]
