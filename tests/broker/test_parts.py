"""A publish to more queues than one turn of the loop may serve goes in parts: all arrive, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from laneway.broker.interface import Publish
from laneway.broker.parts import (
    MAX_ATOMIC_COST,
    MAX_COST,
    QUEUE_COST,
    check_atomic,
    is_long,
    parts,
    placed,
    stored_bytes,
    stored_bytes_in_parts,
)
from laneway.broker.values import Arrival, Messages
from laneway.errors import BatchTooLarge, QueueNotFound


def _publish(targets: Any, count: int) -> Publish:
    return Publish(targets, Messages([b"%d" % i for i in range(count)], [b""] * count))


def _cost(part: Publish) -> int:
    targets = part.targets
    return sum(map(len, targets)) + QUEUE_COST * len({number for route in targets for number in route})  # type: ignore[union-attr,arg-type]


def _arrived(request: Publish) -> dict[int, list[bytes]]:
    arrived: dict[int, list[bytes]] = {}
    targets = request.targets if isinstance(request.targets, list) else [request.targets] * len(request.messages)
    for body, route in zip(request.messages.bodies, targets, strict=True):
        for number in route:
            arrived.setdefault(number, []).append(body)
    return arrived


@pytest.mark.parametrize(
    "request_",
    [
        _publish(tuple(range(1, 30_000)), 1),
        _publish(tuple(range(1, 3_000)), 100),
        _publish([tuple(range(1, 5_000)), (7,), tuple(range(4, 9_000))] * 3, 9),
        _publish([(), (1,), tuple(range(1, 5_000)), ()], 4),
        _publish([tuple(random.Random(i).sample(range(1, 50), 20)) for i in range(5_000)], 5_000),
    ],
)
def test_parts_are_small_and_together_they_are_the_whole_in_order(request_: Publish) -> None:
    assert is_long(request_.targets, len(request_.messages))
    found: dict[int, list[bytes]] = {}
    count = 0
    for part, places in parts(request_):
        count += 1
        assert _cost(part) <= MAX_COST
        assert part.messages.bodies == [request_.messages.bodies[place] for place in places]
        for number, bodies in _arrived(part).items():
            found.setdefault(number, []).extend(bodies)
    assert count > 1 and found == _arrived(request_)
    assert stored_bytes_in_parts(request_) == sum(stored_bytes(part) for part, _ in parts(request_))


def test_small_publishes_are_not_cut() -> None:
    assert not is_long((1,), 10_000)
    assert not is_long([(1,), (2,)] * 4_000, 8_000)
    assert not is_long(tuple(range(900)), 1)


def test_arrivals_of_a_part_are_told_in_the_places_of_the_whole() -> None:
    part = _publish([(1, 2), (1,)], 2)
    answer = [Arrival(1, None, "both"), Arrival(2, [0], "one")]  # type: ignore[arg-type]
    assert [(a.queue, a.places, a.result) for a in placed(answer, part, [5, 9])] == [
        (1, [5, 9], "both"),
        (2, [5], "one"),
    ]
    refusal = QueueNotFound("no")
    assert {(a.queue, a.result) for a in placed(refusal, part, [5, 9])} == {(1, refusal), (2, refusal)}


def test_what_cannot_be_cut_is_refused() -> None:
    check_atomic([(1, 2)] * 50_000, 50_000)
    assert MAX_ATOMIC_COST > MAX_COST
    with pytest.raises(BatchTooLarge, match="publish fewer, or to fewer queues"):
        check_atomic([tuple(range(100))] * 5_000, 5_000)


def test_it_costs_little_to_see_how_large_a_publish_is() -> None:
    """However many copies it makes: all of that is done in one turn of the loop."""
    looked = 0

    class Route(tuple[int, ...]):
        def __iter__(self) -> Iterator[int]:
            nonlocal looked
            looked += len(self)
            return super().__iter__()

    request = _publish([Route(range(1_000))] * 5_000, 5_000)
    assert is_long(request.targets, 5_000) and stored_bytes_in_parts(request) > 64 * 5_000 * 1_000
    with pytest.raises(BatchTooLarge):
        check_atomic(request.targets, 5_000)
    assert looked <= MAX_ATOMIC_COST
