"""Leased messages on their way to whoever leased them: `Deliveries`, in columns. There is no other form: a consumer of
any protocol gets these, and writes its answer from the columns. Whoever needs a single one as a value takes an item."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from laneway.core.digits import token
from laneway.core.message import Death, Properties, decode_props, message_id
from laneway.core.stories import Story, fill_in


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One leased message as a consumer gets it."""

    message_id: str
    priority: int
    body: bytes
    properties: Properties
    enqueued_at_ms: int
    receives: int
    deadline_ms: int
    token: str
    deaths: tuple[Death, ...] = ()


class Deliveries(msgspec.Struct, gc=False):
    """Messages of one queue, in the order in which they are delivered. Damaged ones are left out: their leases expire,
    and in the end they become dead letters."""

    queue: int  # its QueueId
    queue_name: str
    tag: int  # of the store, for message ids
    deadline_ms: int
    seqs: Sequence[int]
    leases: Sequence[int]
    receives: Sequence[int]
    enqueued_at_ms: Sequence[int]
    props: Sequence[bytes]
    bodies: Sequence[bytes | memoryview]
    priorities: Sequence[int]
    stories: dict[int, Story] = {}  # of those that died or moved before, by seq
    left: int = 0  # messages that are ready in the queue after these were taken

    def __len__(self) -> int:
        return len(self.seqs)

    def __getitem__(self, i: int) -> Delivery:
        seq, at_ms = self.seqs[i], self.enqueued_at_ms[i]
        story = self.stories.get(seq) if self.stories else None
        properties, deaths = decode_props(self.props[i]), ()
        if story is not None:
            properties, deaths = fill_in(story, properties)  # type: ignore[assignment]
        return Delivery(
            self.message_id(i),
            self.priorities[i],
            bytes(self.bodies[i]),
            properties,
            at_ms,
            self.receives[i],
            self.deadline_ms,
            token(self.leases[i], seq),
            deaths,
        )

    def __iter__(self) -> Iterator[Delivery]:
        return map(self.__getitem__, range(len(self.seqs)))

    def tokens(self) -> list[str]:
        return list(map(token, self.leases, self.seqs))

    def message_id(self, i: int) -> str:
        story = self.stories.get(self.seqs[i]) if self.stories else None
        if story is None:
            return message_id(self.enqueued_at_ms[i], self.tag, self.seqs[i])
        return message_id(self.enqueued_at_ms[i], story.tag or self.tag, story.record_seq)

    def part(self, at: int, end: int) -> Deliveries:
        """Those from `at` up to `end`."""
        here = slice(at, end)
        return Deliveries(
            self.queue,
            self.queue_name,
            self.tag,
            self.deadline_ms,
            self.seqs[here],
            self.leases[here],
            self.receives[here],
            self.enqueued_at_ms[here],
            self.props[here],
            self.bodies[here],
            self.priorities[here],
            self.stories,
            self.left,
        )

    def broken(self, build: Callable[[Deliveries], object]) -> dict[int, Exception]:
        """Those that cannot be built, and why: asked when all of them together could not."""
        found: dict[int, Exception] = {}
        for i in range(len(self.seqs)):
            try:
                build(self.part(i, i + 1))
            except Exception as trouble:
                found[i] = trouble
        return found

    def without(self, gone: Collection[int]) -> Deliveries:
        """All but those at these indexes."""
        left_out = set(gone)
        kept = [i for i in range(len(self.seqs)) if i not in left_out]
        names = ("seqs", "leases", "receives", "enqueued_at_ms", "props", "bodies", "priorities")
        return msgspec.structs.replace(self, **{name: [getattr(self, name)[i] for i in kept] for name in names})


NOTHING = Deliveries(0, "", 0, 0, (), (), (), (), (), (), ())
