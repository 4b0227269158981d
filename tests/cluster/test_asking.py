"""What an edge keeps for a leader: what goes at once, what is held back, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.broker.interface import Ack, DescribeQueue, Lease, Publish, Request, Subscribe
from laneway.cluster import asking as asking_module
from laneway.cluster.asking import Asked, Asking, size_of
from laneway.core.message import Messages
from laneway.errors import Unavailable

CREDIT = 10_000


def publish(size: int = 3_000) -> Publish:
    return Publish((1,), Messages([b"x" * size], [b""]))


class Edge:
    def __init__(self, credit_bytes: int = CREDIT) -> None:
        self.sent: list[int] = []
        self.asking = Asking(self._send)
        self.asking.open(credit_bytes)

    def _send(self, number: int, asked: Asked) -> None:
        self.sent.append(number)

    def ask(self, request: Request) -> int:
        return self.asking.ask(request, lambda answer: None)

    def answered(self, number: int) -> None:
        self.asking.end(number)


def test_what_is_more_than_the_credit_waits_in_order() -> None:
    edge = Edge()
    first, second, third, fourth = (edge.ask(publish()) for _ in range(4))
    small = edge.ask(DescribeQueue("/", "q"))
    assert edge.sent == [first, second], "what would fit must not overtake what was asked before"
    edge.answered(second)
    assert edge.sent == [first, second, third]
    edge.answered(first)
    edge.answered(third)
    assert edge.sent == [first, second, third, fourth, small]


def test_what_makes_room_goes_past_what_is_held_back() -> None:
    edge = Edge()
    for _ in range(4):
        edge.ask(publish())
    before = len(edge.sent)
    passing = [edge.ask(one) for one in (Lease(1, 1), Ack(1, ["token"]), Subscribe(1, 1, 1))]
    assert edge.sent[before:] == passing


def test_what_is_larger_than_the_credit_goes_alone() -> None:
    edge = Edge()
    small, large, behind = edge.ask(publish()), edge.ask(publish(5 * CREDIT)), edge.ask(publish())
    assert edge.sent == [small]
    edge.answered(small)
    assert edge.sent == [small, large]
    edge.answered(large)
    assert edge.sent == [small, large, behind]


def test_a_leader_that_takes_nothing_is_sent_nothing_but_what_makes_room() -> None:
    edge = Edge()
    edge.asking.is_full = True
    held, passing = edge.ask(publish()), edge.ask(Lease(1, 1))
    assert edge.sent == [passing]
    edge.asking.is_full = False
    edge.asking.go_on()
    assert edge.sent == [passing, held]


@pytest.mark.parametrize("request_", [publish(1_000_000), DescribeQueue("/", "q"), Lease(1, 1), Ack(1, ["t"] * 10_000)])
def test_what_waits_is_bounded_in_count_and_bytes(request_: Any) -> None:
    edge = Edge()
    count = 0
    with pytest.raises(Unavailable, match="wait for the process that has the queue"):
        while count <= 2 * asking_module.MAX_COUNT:
            edge.ask(request_)
            count += 1
    share = 2 if type(request_) in asking_module._PASSES else 1
    assert count <= share * asking_module.MAX_COUNT
    assert count * size_of(request_) <= share * asking_module.MAX_BYTES + size_of(request_)
    for number in edge.asking.numbers():
        edge.answered(number)
    assert edge.asking._bytes == edge.asking._under_way_bytes == 0 and not edge.asking._held


def test_what_makes_room_is_taken_when_nothing_else_is_any_more() -> None:
    edge = Edge()
    with pytest.raises(Unavailable):
        while True:
            edge.ask(publish(1_000_000))
    edge.ask(Ack(1, ["token"]))


def test_without_a_leader_everything_waits_and_goes_in_order_to_the_next_one() -> None:
    edge = Edge()
    edge.asking.close()
    published, lease, described = edge.ask(publish()), edge.ask(Lease(1, 1)), edge.ask(DescribeQueue("/", "q"))
    assert not edge.sent
    edge.answered(lease)  # whoever asked has gone
    edge.asking.open(CREDIT)
    assert edge.sent == [published, described]
