"""What is remembered of messages is remembered of the right ones, and the rest is made anew."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from laneway.frontends.sqs.recent import Md5s, Recent

COUNT = 16


def values(numbers: Sequence[int]) -> bytes:
    return b"".join(number.to_bytes(4, "big") for number in numbers)


@pytest.mark.parametrize(
    "numbers",
    [range(5, 9), [7], range(14, 20), [3, 9, 4], [4, 3, 2], [2, 4, 3, 5]],
    ids=["neighbours", "alone", "over the end", "scattered", "falling", "swapped"],
)
def test_what_was_noted_is_found(numbers: Sequence[int]) -> None:
    recent = Recent(COUNT, 4)
    recent.note(numbers, values(numbers))
    assert [recent.get(number) for number in numbers] == [values([number]) for number in numbers]
    assert recent.get(13) is None
    assert recent.get_neighbours(numbers) in (None, values(numbers))


def test_neighbours_are_found_together_only_if_all_are_known_and_in_order() -> None:
    recent = Recent(COUNT, 4)
    recent.note(range(2, 8), values(range(2, 8)))
    assert recent.get_neighbours([3, 4, 5]) == values([3, 4, 5])
    assert recent.get_neighbours([3, 5]) is None
    assert recent.get_neighbours([4, 3]) is None
    assert recent.get_neighbours([6, 7, 8]) is None
    assert recent.get_neighbours(range(14, 18)) is None


def test_a_message_pushes_out_the_one_that_stood_in_its_place() -> None:
    recent = Recent(COUNT, 4)
    recent.note([1, 2], values([1, 2]))
    recent.note([1 + COUNT], values([1 + COUNT]))
    assert recent.get(1) is None
    assert recent.get(2) == values([2])
    assert recent.get_neighbours([1, 2]) is None


def test_md5s_are_those_noted_and_otherwise_those_of_the_bodies() -> None:
    md5s = Md5s(COUNT)
    noted = [f"{number:032x}" for number in (3, 4)]
    md5s.note([3, 4], bytes.fromhex("".join(noted)))
    assert md5s.of([3, 4], [b"a", b"b"]) == md5s.of_neighbours([3, 4]) == noted
    assert md5s.of_neighbours([4, 5]) is None
    assert md5s.of([4, 5], [b"b", b"c"]) == [noted[1], hashlib.md5(b"c").hexdigest()]
