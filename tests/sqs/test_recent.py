"""What a process remembers of messages is about the right ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from laneway.frontends.sqs.recent import Recent

COUNT = 16


@pytest.mark.parametrize(
    "numbers",
    [range(5, 9), [7], range(14, 20), [3, 9, 4], [4, 3, 2]],
    ids=["neighbours", "alone", "over the end", "scattered", "falling"],
)
def test_what_was_noted_is_found(numbers: Sequence[int]) -> None:
    recent: Recent[str] = Recent(COUNT)
    recent.note(1, numbers, map(str, numbers))
    assert recent.get(1, numbers) == list(map(str, numbers))
    assert recent.get(1, [0, 13]) == [None, None]


def test_messages_of_other_stores_are_others() -> None:
    recent: Recent[str] = Recent(COUNT)
    recent.note(1, [5, 6], ["a", "b"])
    recent.note(2, [6], ["c"])
    assert recent.get(1, [5, 6]) == ["a", "b"]
    assert recent.get(2, [5, 6]) == [None, "c"]
    assert recent.get(3, [5]) == [None]


def test_a_message_pushes_out_the_one_that_stood_in_its_place() -> None:
    recent: Recent[str] = Recent(COUNT)
    recent.note(1, [1, 2], ["a", "b"])
    recent.note(1, [1 + COUNT], ["c"])
    assert recent.get(1, [1, 2, 1 + COUNT]) == [None, "b", "c"]
