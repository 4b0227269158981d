"""Numbers many at once: whatever form they have, they are the numbers that were given, in that order."""

from __future__ import annotations

from array import array
from itertools import chain, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laneway.core.runs import Seqs, as_array, joined, runs
from laneway.core.table import SLAB_ROWS

#: Near the ends of what the low bits of a number can tell, near those of a slab, and as large as lease ids are.
EDGES = (1, SLAB_ROWS, 1 << 16, 5 << 16, (7 << 40) + (1 << 39) + (1 << 16))


def near(edge: int) -> st.SearchStrategy[int]:
    return st.integers(max(1, edge - 300), edge + 300)


ranges = st.builds(
    lambda first, count: range(first, first + count), st.sampled_from(EDGES).flatmap(near), st.integers(1, 500)
)
parts = st.lists(ranges | ranges.map(list), min_size=1, max_size=5)


@given(ranges)
@example(range(65_530, 65_536))
@example(range(65_530, 65_537))
@example(range(1, 200_000))
def test_a_range_becomes_the_same_array(numbers: range) -> None:
    assert as_array(numbers) == array("Q", numbers)


@given(parts)
def test_joined_parts_are_all_their_numbers_in_order(given_parts: list[range | list[int]]) -> None:
    whole = joined(given_parts)
    assert list(whole) == list(chain.from_iterable(given_parts))
    assert as_array(whole) == array("Q", whole)
    # Its runs are those that are found number by number.
    assert list(chain.from_iterable(range(first, first + count) for first, count in runs(whole))) == list(whole)
    assert all(first // SLAB_ROWS == (first + count - 1) // SLAB_ROWS for first, count in runs(whole))


@given(ranges, st.lists(st.integers(0, 500), max_size=4))
def test_what_was_cut_from_a_range_makes_one_again(whole: range, cuts: list[int]) -> None:
    ends = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[start:end] for start, end in pairwise(ends)]
    assert joined(pieces) == whole and type(joined(pieces)) is range


@pytest.mark.parametrize("form", [list, Seqs, tuple])
def test_neighbours_in_other_forms_are_found_as_well(form: type) -> None:
    assert runs(form([4, 5, 6, 9, 3])) == [(4, 3), (9, 1), (3, 1)]
    assert as_array(form([4, 5, 6, 9, 3])) == array("Q", [4, 5, 6, 9, 3])
