"""Two ends that find out who the other is, byte for byte."""

from __future__ import annotations

import random

import pytest

from laneway.cluster.greeting import CHALLENGE_BYTES, MAGIC, VERSION, Role, Stranger, greeting

SECRET = b"a secret of all processes"


class End:
    """One end, fed as the bytes come."""

    def __init__(self, role: Role, secret: bytes = SECRET, challenge: bytes | None = None) -> None:
        self._steps = greeting(role, secret, challenge or random.Random(role).randbytes(CHALLENGE_BYTES))
        self.said, self._needed = next(self._steps)
        self._came = b""

    @property
    def is_content(self) -> bool:
        return not self._needed

    def hear(self, data: bytes) -> bytes:
        """What it says to this."""
        self._came += data
        before = len(self.said)
        while self._needed and len(self._came) >= self._needed:
            came, self._came = self._came[: self._needed], self._came[self._needed :]
            said, self._needed = self._steps.send(came)
            self.said += said
        return self.said[before:]


def talk(edge: End, leader: End) -> None:
    to_leader, to_edge = edge.said, leader.said
    while to_leader or to_edge:
        to_edge += leader.hear(to_leader)
        to_leader = edge.hear(to_edge)
        to_edge = b""


def test_those_who_know_the_secret_are_content() -> None:
    edge, leader = End("edge"), End("leader")
    talk(edge, leader)
    assert edge.is_content and leader.is_content


def test_an_edge_that_does_not_know_the_secret_is_refused_and_learns_nothing() -> None:
    edge, leader = End("edge", b"another secret"), End("leader")
    before = len(leader.said)
    with pytest.raises(Stranger, match="does not know the secret"):
        talk(edge, leader)
    assert len(leader.said) == before, "the leader has proven nothing"


def test_a_leader_that_does_not_know_the_secret_is_refused() -> None:
    edge, impostor = End("edge"), End("leader")
    impostor.hear(edge.said)
    edge.hear(impostor.said)
    with pytest.raises(Stranger, match="does not know the secret"):
        edge.hear(bytes(32))


def test_a_proof_that_was_heard_before_is_worth_nothing() -> None:
    edge, leader = End("edge"), End("leader")
    talk(edge, leader)
    later = End("leader", challenge=b"n" * CHALLENGE_BYTES)
    with pytest.raises(Stranger, match="does not know the secret"):
        later.hear(edge.said)


def test_what_an_end_says_is_no_proof_of_its_own() -> None:
    leader = End("leader")
    with pytest.raises(Stranger, match="does not know the secret"):
        leader.hear(leader.said + bytes(32))
    edge = End("edge")
    proof = edge.hear(edge.said)  # its own hello comes back
    with pytest.raises(Stranger, match="does not know the secret"):
        edge.hear(proof)


def test_another_version_is_refused_before_anything_behind_it_is_read() -> None:
    leader = End("leader")
    with pytest.raises(Stranger, match=f"version {VERSION + 1}, those of this one {VERSION}"):
        leader.hear(MAGIC + (VERSION + 1).to_bytes(2, "big"))


@pytest.mark.parametrize("role", ["edge", "leader"])
def test_whatever_comes_instead_of_a_greeting_is_refused(role: Role) -> None:
    chance = random.Random(17)
    edge, leader = End("edge"), End("leader")
    talk(edge, leader)
    right = edge.said if role == "leader" else leader.said
    for _ in range(2_000):
        wrong = bytearray(right)
        if chance.random() < 0.2:
            wrong = bytearray(chance.randbytes(len(right)))
        else:
            wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        end = End(role)
        with pytest.raises(Stranger):
            end.hear(bytes(wrong))
