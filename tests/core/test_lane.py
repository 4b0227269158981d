"""Lanes: an index that may be out of date and is never wrong."""

from __future__ import annotations

import random

import pytest

from laneway.core import lane as lane_module
from laneway.core.lane import Lane
from laneway.core.table import DELAYED, FREE, LEASED, READY, SLAB_MASK, Table


class Setup:
    """A lane with a table; messages change their state as state.py changes it."""

    def __init__(self, count: int = 0) -> None:
        self.table = Table()
        self.lane = Lane()
        self.publish(count)

    def publish(self, count: int) -> None:
        if count:
            first = self.table.next_seq
            self.table.append([0] * count, [1] * count, 0, [1] * count, [5] * count, READY)
            self.lane.extend(range(first, first + count))
            self.lane.count += count

    def set(self, seq: int, state: int) -> None:
        self.table.owned(seq).state[seq & SLAB_MASK] = state

    def leave(self, seq: int, state: int = FREE) -> None:
        """A message goes without having been given out by the lane, as an expired one does."""
        self.lane.count -= 1
        self.lane.skip(seq, 1, self.table)
        self.set(seq, state)

    def pop(self, limit: int) -> list[int]:
        out = list(self.lane.pop(limit, self.table))
        for seq in out:
            self.set(seq, LEASED)
        self.lane.count -= len(out)
        return out

    def give_back(self, seq: int) -> None:
        self.set(seq, READY)
        self.lane.give_back(seq)
        self.lane.count += 1

    def ready(self) -> list[int]:
        return list(self.lane.after(0, self.table))


def test_messages_come_out_as_they_went_in() -> None:
    s = Setup(5)
    assert (s.pop(2), s.pop(10), s.pop(1)) == ([1, 2], [3, 4, 5], [])


def test_a_long_lane_crosses_its_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "CHUNK_ROWS", 3)
    s = Setup()
    for _ in range(10):
        s.publish(1)
    s.publish(7)
    assert [len(chunk) for chunk in s.lane.chunks] == [3, 3, 3, 8]
    assert s.pop(4) == [1, 2, 3, 4]
    assert s.pop(13) == list(range(5, 18))
    assert s.lane.entries == 0 and not s.lane.chunks


def test_one_that_comes_back_is_next() -> None:
    s = Setup(4)
    s.pop(3)
    s.give_back(2)
    s.give_back(1)
    assert s.pop(3) == [1, 2, 4]


def test_one_that_left_is_passed_over() -> None:
    s = Setup(4)
    s.leave(2)
    s.leave(4, DELAYED)
    assert s.ready() == [1, 3]
    assert s.pop(10) == [1, 3]


def test_one_with_two_entries_comes_out_once() -> None:
    """A replayed lane still has the entry of a message that was leased, when it comes back."""
    s = Setup(4)
    s.leave(2)
    s.leave(3, LEASED)
    s.give_back(3)
    assert list(s.lane.returned) == [3] and 3 in s.lane.chunks[0]
    assert s.ready() == [1, 3, 4]
    assert s.pop(2) == [1, 3]
    s.give_back(3)
    assert s.pop(10) == [3, 4]


def test_peek_takes_nothing() -> None:
    s = Setup(3)
    assert [s.lane.peek(s.table) for _ in range(3)] == [1, 1, 1]
    assert s.lane.returned == [] and s.lane.entries == 3
    assert s.pop(3) == [1, 2, 3]
    assert s.lane.peek(s.table) == 0


def test_peek_drops_what_has_gone() -> None:
    s = Setup(5)
    s.pop(1)
    s.set(2, FREE)
    s.set(3, FREE)
    s.lane.count -= 2
    s.give_back(1)
    s.leave(1, DELAYED)
    assert s.lane.peek(s.table) == 4
    assert s.lane.entries == 2 and s.lane.returned == []


def test_take_removes_every_entry_of_a_message() -> None:
    s = Setup(4)
    s.leave(2, LEASED)
    s.give_back(2)
    found = []
    while seq := s.lane.peek(s.table):  # no state changes in between, as in one selection
        found.append(seq)
        s.lane.take(seq)
    assert found == [1, 2, 3, 4]


def test_a_selection_among_stale_entries_finds_ready_ones_only() -> None:
    s = Setup(6)
    for seq in (2, 3, 5):
        s.leave(seq)
    found = []
    while seq := s.lane.peek(s.table):
        found.append(seq)
        s.lane.take(seq)
    assert found == [1, 4, 6]


def test_after_goes_on_behind_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "CHUNK_ROWS", 3)
    s = Setup()
    for _ in range(9):
        s.publish(1)
    s.pop(4)
    s.give_back(2)
    s.give_back(4)
    expected = [2, 4, 5, 6, 7, 8, 9]
    for seq in range(11):
        assert list(s.lane.after(seq, s.table)) == [e for e in expected if e > seq]


def test_skip_keeps_a_replayed_lane_short() -> None:
    """A replay never pops: leases name the messages, whatever stands before them."""
    s = Setup(3000)
    s.leave(500)  # a stale entry in the middle must not stop it
    for first in range(1, 2901, 100):
        run = [seq for seq in range(first, first + 100) if seq != 500]
        for seq in run:
            s.set(seq, LEASED)
        s.lane.count -= len(run)
        s.lane.skip(first, 100, s.table)
    assert s.lane.entries == 100
    for seq in range(2901, 3001):
        s.leave(seq, LEASED)
    assert s.lane.entries == 0


def test_skip_crosses_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "CHUNK_ROWS", 3)
    s = Setup()
    for _ in range(10):
        s.publish(1)
    for seq in range(1, 9):
        s.set(seq, LEASED)
    s.lane.count -= 8
    s.lane.skip(1, 8, s.table)
    assert s.lane.entries == 2 and s.ready() == [9, 10]


def test_many_that_come_and_go_in_a_replay_leave_no_trace() -> None:
    s = Setup(1)
    for _ in range(100):
        s.leave(1, LEASED)
        s.give_back(1)
    assert len(s.lane.returned) == 1


def test_tidy_rebuilds_a_lane_that_is_mostly_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "STALE_SLACK", 10)
    s = Setup(100)
    for seq in range(2, 95):
        s.leave(seq)
        s.lane.tidy(s.table)
    assert s.lane.entries <= 2 * s.lane.count + 10
    assert s.ready() == [1, *range(95, 101)]
    assert s.pop(100) == [1, *range(95, 101)]


def test_tidy_leaves_a_healthy_lane_alone() -> None:
    s = Setup(10)
    chunk = s.lane.chunks[0]
    s.lane.tidy(s.table)
    assert s.lane.chunks[0] is chunk


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_ready_ones_come_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "CHUNK_ROWS", 4)
    monkeypatch.setattr(lane_module, "STALE_SLACK", 3)
    rng = random.Random(seed)
    s = Setup()
    ready: set[int] = set()
    away: list[int] = []
    for _ in range(400):
        action = rng.random()
        if action < 0.3:
            first, count = s.table.next_seq, rng.randrange(1, 5)
            s.publish(count)
            ready |= set(range(first, first + count))
        elif action < 0.55:
            limit = rng.randrange(1, 6)
            expected = sorted(ready)[:limit]
            assert s.pop(limit) == expected
            ready -= set(expected)
            away += expected
        elif action < 0.75 and away:
            seq = away.pop(rng.randrange(len(away)))
            s.give_back(seq)
            ready.add(seq)
        elif action < 0.9 and ready:  # leased in a replay, or expired
            seq = rng.choice(sorted(ready))
            s.leave(seq, LEASED)
            s.lane.tidy(s.table)
            ready.discard(seq)
            away.append(seq)
        else:
            assert s.lane.peek(s.table) == min(ready, default=0)
        assert s.ready() == sorted(ready)
        assert s.lane.count == len(ready)
        assert s.lane.entries == sum(map(len, s.lane.chunks)) - s.lane.head
