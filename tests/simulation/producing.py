"""Producers: batches that are staged in parts and published exactly once, however often they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.broker import interface as i
from laneway.broker.values import Addressed, BatchOutcome, Draft
from laneway.errors import (
    BatchFenced,
    DiskFull,
    InvalidInput,
    LanewayError,
    PartsMissing,
    QueueNotFound,
    TooLargeForDisk,
)

from .ledger import FANNED, Batch
from .node import Node

if TYPE_CHECKING:
    from .workload import Workload

PRODUCERS = ("one", "other")


class Produced:
    """A batch, under the number that a producer gave it."""

    def __init__(self, producer: str, number: int, batch: Batch, forgiven: int) -> None:
        self.producer = producer
        self.number = number
        self.batch = batch
        self.forgiven = forgiven
        self.parts: list[str] = []
        self.is_committed = False  # it was answered

    @property
    def stage(self) -> str:
        return f"stage-{self.number}"


class Producing:
    def __init__(self, work: Workload) -> None:
        self.work = work
        self.random = work.random
        self.ledger = work.ledger
        self._latest: dict[str, Produced] = {}
        self._numbers = dict.fromkeys(PRODUCERS, 0)
        self._busy: set[str] = set()
        self._life: Node | None = None

    def step(self, node: Node) -> None:
        if node is not self._life:
            self._life, self._busy = node, set()
        free = [name for name in PRODUCERS if name not in self._busy]
        if free:
            producer = self.random.choice(free)
            self._busy.add(producer)
            again = producer in self._latest and self.random.random() < 0.4
            self.work.in_background(node, self._again(node, producer) if again else self._produce(node, producer))

    async def _produce(self, node: Node, producer: str) -> None:
        # Not where somebody takes messages without acks: whether they were there would not be known after a crash.
        names = [n for n in self.work.names if node.has(n) and self.work.settings[n].max_messages is None]
        names = [name for name in names if name not in FANNED]
        if not names:
            self._busy.discard(producer)
            return
        self._numbers[producer] += self.random.choice((1, 1, 3))
        now_ms = node.broker.now()
        batch = self.ledger.send("", 0, [], now_ms, is_plain=True)
        produced = Produced(producer, self._numbers[producer], batch, self.ledger.forgiven)
        try:
            for part in range(self.random.randint(1, 3)):
                messages = []
                for _ in range(self.random.randint(1, 4)):
                    queue, draft = (
                        self.random.choice(names),
                        self.work.a_body(Draft(b"", self.random.choice((None, 1)))),
                    )
                    self.ledger.add(batch, queue, draft).is_ordered = False  # it is published when that is committed
                    messages.append(Addressed("/", queue, "", "", draft))
                produced.parts.append(f"part-{part}")
                request = i.StagePart(producer, produced.stage, produced.parts[-1], messages, [], "anna")
                await node.broker.ask(request)
        except (DiskFull, TooLargeForDisk, QueueNotFound, InvalidInput):
            self.ledger.refused(batch)
            self._busy.discard(producer)
            return
        self._latest[producer] = produced
        await self._commit(node, produced)

    async def _again(self, node: Node, producer: str) -> None:
        """Whoever does not know whether a batch was committed, or does, commits it again."""
        await self._commit(node, self._latest[producer])

    async def _commit(self, node: Node, produced: Produced) -> None:
        batch = produced.batch
        request = i.CommitBatch(produced.producer, produced.number, produced.stage, produced.parts, "anna")
        try:
            outcome: BatchOutcome = await node.broker.ask(request)
        except PartsMissing:
            there = [sent for sent in batch.sent if sent.confirmed]
            is_known = produced.is_committed or there
            assert not is_known or produced.forgiven != self.ledger.forgiven, (
                f"{there} were committed, and the fence does not know it"
            )
            self._give_up(produced)
        except (DiskFull, LanewayError) as refused:
            assert not isinstance(refused, BatchFenced), refused
            self._busy.discard(produced.producer)
            raise  # perhaps after it was published: in doubt until the next start
        else:
            self.work.counts["produced again" if outcome.already else "produced"] += 1
            assert outcome.published == len(batch.sent), f"{outcome}, with {len(batch.sent)} messages"
            is_known = produced.is_committed and produced.forgiven == self.ledger.forgiven
            assert outcome.already or not is_known, f"{produced.number} was published twice"
            produced.is_committed = True
            if id(batch) in self.ledger.open_batches:
                self.ledger.confirmed(batch)
        self._busy.discard(produced.producer)

    def _give_up(self, produced: Produced) -> None:
        """What was staged is gone, and was never published."""
        del self._latest[produced.producer]
        if id(produced.batch) in self.ledger.open_batches:
            self.ledger.refused(produced.batch)
