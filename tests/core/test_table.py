"""The table of live messages: packed columns in slabs that go when they are empty and are copied when frozen."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.core import commands, snapshot
from laneway.core.invariants import check_invariants
from laneway.core.message import Settlement
from laneway.core.runs import Seqs, runs
from laneway.core.table import COLUMNS, FREE, LEASED, READY, SLAB_BITS, SLAB_MASK, SLAB_ROWS, Slab, Table
from tests.core.runner import Core, draft


def filled(count: int) -> Table:
    table = Table()
    table.append(list(range(count)), [7] * count, 123, [1] * count, [5] * count, READY)
    return table


def test_number_zero_is_no_message() -> None:
    table = Table()
    assert table.next_seq == 1
    assert 0 not in table and len(table) == 0 and list(table.find(0, FREE)) == []


def test_rows_are_spread_over_slabs_of_consecutive_numbers() -> None:
    table = filled(2 * SLAB_ROWS + 10)
    assert {n: len(slab.state) for n, slab in table.slabs.items()} == {0: SLAB_ROWS, 1: SLAB_ROWS, 2: 11}
    assert len(table) == 2 * SLAB_ROWS + 10
    assert table.slabs[2].location[10] == 2 * SLAB_ROWS + 9
    assert table.next_seq == 2 * SLAB_ROWS + 11


def test_numbers_beyond_the_last_and_before_the_first_slab_are_free() -> None:
    table = filled(5)
    assert [table.state(seq) for seq in (5, 6, SLAB_ROWS - 1, SLAB_ROWS, 10**15)] == [READY, FREE, FREE, FREE, FREE]


def test_a_full_slab_goes_with_its_last_message() -> None:
    table = filled(SLAB_ROWS + 5)
    for seq in range(1, SLAB_ROWS - 1):
        table.free(seq)
    assert 0 in table.slabs
    table.free(SLAB_ROWS - 1)
    assert list(table.slabs) == [1]


def test_an_unfinished_slab_stays_so_that_numbers_go_on() -> None:
    table = filled(5)
    for seq in range(1, 6):
        table.free(seq)
    assert list(table.slabs) == [0]
    table.append([0], [1], 0, [1], [5], READY)
    assert table.state(6) == READY and len(table) == 1


def test_find_goes_through_slabs_in_order_and_behind_a_number() -> None:
    core = Core(extent_bytes=1 << 20)
    core.put("a")
    core.put("b")
    for _ in range(3):
        core.fill(900, "a")
        core.fill(100, "b")
    table = core.state.table
    expected = [*range(901, 1001), *range(1901, 2001), *range(2901, 3001)]
    assert list(table.find(core["b"].number, READY)) == expected
    for after in (0, 900, 901, 950, 1000, 1023, 1024, 1950, 3000, 9999):
        assert list(table.find(core["b"].number, READY, after)) == [seq for seq in expected if seq > after]
    assert list(table.find(core["b"].number, LEASED)) == []


def test_the_columns_of_leases_are_made_when_first_needed() -> None:
    core = Core(extent_bytes=1 << 20)
    core.put()
    core.fill(3000)
    assert [len(slab.lease) for slab in core.state.table.slabs.values()] == [0, 0, 0]
    core.take(5)
    assert [len(slab.lease) for slab in core.state.table.slabs.values()] == [SLAB_ROWS, 0, 0]
    core.publish(draft(delay_ms=1000))
    assert [len(slab.due_ms) for slab in core.state.table.slabs.values()] == [SLAB_ROWS, 0, SLAB_ROWS]


def columns(slab: Slab) -> list[bytes]:
    return [bytes(getattr(slab, name)) for name, _ in COLUMNS]


@pytest.mark.parametrize(
    "change",
    ["publish", "lease", "lease many", "ack", "ack many", "release", "expire", "ripen", "relocate", "purge", "delete"],
)
def test_a_frozen_slab_is_never_written_to(change: str) -> None:
    core = Core(extent_bytes=1 << 20)
    core.put()
    core.fill(2500)
    core.publish(draft(delay_ms=100), draft(ttl_ms=100), draft(group="g"))
    leased = core.take(1500)
    core.settle(*[Settlement("reject", t) for _, t in leased[:3]])
    frozen = snapshot.freeze(core.state)
    before = {number: columns(slab) for number, slab in frozen.slabs}
    if change == "publish":
        core.fill(10)
        core.publish(draft(group="g", delay_ms=5))
    elif change.startswith("lease"):
        core.take(1 if change == "lease" else 900)
    elif change.startswith("ack"):
        core.ack(*[t for _, t in leased[3 : 4 if change == "ack" else 1400]])
    elif change == "release":
        core.settle(Settlement("release", leased[5][1]), Settlement("extend", leased[6][1], lease_ms=9))
    elif change == "expire":
        core.tick(30_000)
    elif change == "ripen":
        core.tick(100)
    elif change == "relocate":
        core.relocate([1600, 2400])
    elif change == "purge":
        core.run(commands.purge_queue(core.state, core["q"], core.now_ms))
    else:
        core.run(commands.delete_queue(core.state, core["q"], core.now_ms, if_empty=False))
    assert {number: columns(slab) for number, slab in frozen.slabs} == before
    check_invariants(core.state)


def test_a_change_copies_only_the_slab_it_touches() -> None:
    core = Core(extent_bytes=1 << 20)
    core.put()
    core.fill(4 * SLAB_ROWS)
    frozen = dict(snapshot.freeze(core.state).slabs)
    core.take(1)
    core.publish(b"x")
    same = {number: core.state.table.slabs[number] is frozen[number] for number in frozen}
    assert same == {0: False, 1: True, 2: True, 3: True, 4: False}


@pytest.mark.parametrize(
    ("seqs", "expected"),
    [
        ([], []),
        ([5], [(5, 1)]),
        ([5, 6, 7], [(5, 3)]),
        ([5, 7, 8], [(5, 1), (7, 2)]),
        ([7, 6, 5], [(7, 1), (6, 1), (5, 1)]),
        ([1022, 1023, 1024, 1025], [(1022, 2), (1024, 2)]),
        ([1, 3, 2, 4], [(1, 1), (3, 1), (2, 1), (4, 1)]),
        ([1, 2, 9, 4], [(1, 2), (9, 1), (4, 1)]),
        ([1, 1, 2], [(1, 1), (1, 2)]),
        ([1, 3, 3], [(1, 1), (3, 1), (3, 1)]),
    ],
)
def test_runs_are_neighbours_in_the_given_order(seqs: list[int], expected: list[tuple[int, int]]) -> None:
    assert list(runs(seqs)) == expected


def test_priorities_are_told_in_the_order_that_was_asked_for() -> None:
    table = Table()
    table.append([1, 2, 3, 4], [1] * 4, 0, [1] * 4, [10, 20, 30, 40], READY)
    for asked, expected in (([1, 2, 3, 4], [10, 20, 30, 40]), ([1, 3, 2, 4], [10, 30, 20, 40]), ([4], [40])):
        assert list(table.priorities(runs(asked))) == expected
        assert list(table.priorities(runs(Seqs(asked)))) == expected


def test_when_a_message_was_published_takes_memory_only_where_its_age_counts_from_elsewhere() -> None:
    table = filled(SLAB_ROWS + 5)
    assert not any(slab.enqueued_ms for slab in table.slabs.values())
    table.owned(3).set_times(3, 500, 200)
    first, second = table.slabs[0], table.slabs[1]
    assert (list(first.since_ms[2:5]), list(first.enqueued_ms[2:5])) == ([123, 500, 123], [123, 200, 123])
    assert not second.enqueued_ms
    table.owned(SLAB_ROWS).set_times(0, 500, 200)
    table.append([1], [1], 600, [1], [5], READY)
    table.append([1, 2], [1, 1], 700, [1, 1], [5, 5], READY)
    assert list(second.enqueued_ms[-4:]) == [123, 600, 700, 700]
    assert len(second.enqueued_ms) == len(second.state)


@given(st.lists(st.tuples(st.integers(1, 3 * SLAB_ROWS), st.integers(1, 40)), max_size=6), st.booleans())
def test_runs_are_the_neighbours_of_each_slab_in_the_given_order(parts: list[tuple[int, int]], known: bool) -> None:
    seqs = [first + i for first, count in parts for i in range(count)]
    found = runs(Seqs(seqs) if known else seqs)
    assert [first + i for first, count in found for i in range(count)] == seqs
    assert all(first >> SLAB_BITS == first + count - 1 >> SLAB_BITS for first, count in found)
    for (first, count), (following, _) in pairwise(found):
        assert following != first + count or not following & SLAB_MASK
