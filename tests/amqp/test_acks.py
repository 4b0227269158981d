"""Stretches of acks are cut out of a read many at a time: what comes out is what stands there."""

from __future__ import annotations

import random
import struct

import pytest

from laneway.frontends.amqp.acks import Acks

END = b"\xce"


def ack(tag: int, *, multiple: bool = False, channel: int = 1) -> bytes:
    return struct.pack(">BHIHHQB", 1, channel, 13, 60, 80, tag, multiple) + END


def acks_in(data: bytes) -> tuple[int, list[tuple[int, bool]]]:
    """(where they end, tags and whether they mean all before), over several reads, so that what is learned is used."""
    acks = Acks()
    acks.learn(1)
    for _ in range(4):
        acks.take(b"".join(ack(tag) for tag in range(1, 100)), 0)
    end, found = acks.take(data, 0)
    return end, [(tag, multiple) for first, last, multiple in found for tag in range(first, last + 1)]


@pytest.mark.parametrize("seed", range(40))
def test_acks_are_those_that_stand_there(seed: int) -> None:
    chance = random.Random(seed)
    said: list[tuple[int, bool]] = []
    tag = 100
    while len(said) < 300:
        tag += chance.choice((1, 1, 1, 2, -1)) if chance.random() < 0.2 else 1
        for _ in range(chance.choice((1, 3, 7, 8, 9, 40))):
            said.append((tag, False))
            tag += 1
        if chance.random() < 0.2:
            said.append((tag, True))
            tag += 1
    data = b"".join(ack(tag, multiple=multiple) for tag, multiple in said)
    assert acks_in(data) == (len(data), said)
    assert acks_in(data + data[:20]) == (len(data), said), "the last one is not all here"


@pytest.mark.parametrize("at", [0, 5, 20, 77])
@pytest.mark.parametrize("other", [ack(1, channel=2), ack(1)[:-1] + b"\0", b"\x08\0\0\0\0\0\0\xce" + bytes(13)])
def test_acks_end_where_something_else_begins(at: int, other: bytes) -> None:
    frames = [ack(tag) for tag in range(1, 101)]
    frames[at:at] = [other]
    assert acks_in(b"".join(frames)) == (at * 21, [(tag, False) for tag in range(1, at + 1)])
