"""What the leader knows of the messages that a session in another process may still hold."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from laneway.cluster import serving
from laneway.cluster.serving import Holdings
from laneway.core.deliveries import Deliveries


def handed(leases: Sequence[int], queue: int = 1) -> Deliveries:
    some = [b""] * len(leases)
    return Deliveries(queue, "q", 1, 0, leases, leases, leases, leases, some, some, leases)


def noted(holdings: Holdings) -> list[int]:
    return [lease for _, _, leases in holdings.all() for lease in leases]


def test_what_is_settled_in_order_is_forgotten_at_once() -> None:
    def held(queue: int, seqs: Sequence[int], leases: Sequence[int]) -> Sequence[bool]:
        raise AssertionError("nothing need be asked")

    holdings = Holdings()
    for at in range(0, 100_000, 200):
        holdings.add(handed(range(at, at + 200) if at % 400 else list(range(at, at + 200))), held)
        if at >= 1_600:
            for first in (at - 1_600, at - 1_450):  # the last of these ends in the middle of what was handed together
                holdings.settled(1, range(first, first + (150 if first == at - 1_600 else 50)))
    assert noted(holdings) == list(range(98_400, 100_000))


@pytest.mark.parametrize("seed", range(5))
def test_what_is_held_is_known_in_whatever_order_it_is_settled(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_TIDY_FROM", 20)
    chance, holdings = random.Random(seed), Holdings()
    held: list[int] = []
    last = asked = 0

    def are_held(queue: int, seqs: Sequence[int], leases: Sequence[int]) -> Sequence[bool]:
        nonlocal asked
        asked += 1
        return [lease in held for lease in leases]

    for _ in range(500):
        count = chance.randrange(1, 20)
        holdings.add(handed(range(last, last + count)), are_held)
        held += range(last, last + count)
        last += count
        assert len(noted(holdings)) <= 2 * len(held) + 20
        for _ in range(chance.randrange(4)):
            if chance.random() < 0.7:
                some = held[: chance.randrange(20)]
            else:
                some = chance.sample(held, min(len(held), chance.randrange(10)))
            holdings.settled(1, some)
            held = [lease for lease in held if lease not in some]
        assert set(held) <= set(noted(holdings))
    assert asked


def test_queues_are_forgotten_when_nothing_of_them_is_held_or_they_are_gone() -> None:
    holdings, gone = Holdings(), set[int]()
    for queue in range(10_000):  # as with a reply queue for each request
        holdings.add(handed([queue], queue), lambda queue, seqs, leases: [queue not in gone])
        if queue % 2:
            holdings.settled(queue, [queue])
            assert holdings.leases(queue) == []
        else:
            gone.add(queue)
    assert len(holdings) <= serving._TIDY_QUEUES
