"""What a channel holds, against a dictionary that does the same one message at a time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from laneway.frontends.amqp.unacked import Taken, Unacked

Message = tuple[object, int, int, int]  # owner, queue, number, lease


class UnackedMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.unacked = Unacked()
        self.model: dict[int, Message] = {}
        self.taken: list[Taken] = []
        self.next_tag = 1

    @rule(owner=st.sampled_from([None, "a", "b"]), queue=st.integers(1, 2), count=st.integers(1, 5))
    def deliver(self, owner: str | None, queue: int, count: int) -> None:
        first = self.next_tag
        self.unacked.add(
            owner, queue, first, [first * 10 + at for at in range(count)], range(first * 100, first * 100 + count)
        )
        for at in range(count):
            self.model[first + at] = (owner, queue, first * 10 + at, first * 100 + at)
        self.next_tag += count

    def _check(self, taken: list[Taken], tags: list[int]) -> None:
        assert [tag for part in taken for tag in part.tags] == tags
        for part in taken:
            for tag, seq, lease in zip(part.tags, part.seqs, part.leases, strict=True):
                assert self.model.pop(tag) == (part.owner, part.queue, seq, lease)
        self.taken += taken

    @rule(data=st.data())
    def take_one(self, data: st.DataObject) -> None:
        tag = data.draw(st.integers(0, self.next_tag))
        one = self.unacked.take(tag)
        assert (one is not None) == (tag in self.model)
        if one is not None:
            self._check([one], [tag])

    @rule(data=st.data())
    def take_through(self, data: st.DataObject) -> None:
        tag = data.draw(st.integers(0, self.next_tag))
        self._check(self.unacked.take_through(tag), sorted(t for t in self.model if t <= tag))

    @rule()
    def take_all(self) -> None:
        self._check(self.unacked.take_all(), sorted(self.model))

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        part = self.taken.pop(data.draw(st.integers(0, len(self.taken) - 1)))
        self.unacked.restore(part)
        for tag, seq, lease in zip(part.tags, part.seqs, part.leases, strict=True):
            self.model[tag] = (part.owner, part.queue, seq, lease)

    @invariant()
    def agrees(self) -> None:
        assert self.unacked.count == len(self.model)
        assert self.unacked.owned_count() == sum(owner is not None for owner, *_ in self.model.values())
        shown = {
            tag: (part.owner, part.queue, seq, lease)
            for part in self.unacked.peek()
            for tag, seq, lease in zip(part.tags, part.seqs, part.leases, strict=True)
        }
        assert shown == self.model


TestUnacked = UnackedMachine.TestCase
TestUnacked.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
