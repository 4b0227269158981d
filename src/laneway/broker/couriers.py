"""Takes the entries of one outbox to the partition that they are for: in order, one request at a time, each until it is
answered. An entry is removed when its partition has durably done what it says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from laneway.broker.engine import Columns
from laneway.broker.interface import Receive
from laneway.core.events import Cause, Removed
from laneway.core.letters import Outline, letter, outlines
from laneway.core.outbox import OutboxEntry, decoded_parcel, entries_of
from laneway.core.table import SLAB_BITS, SLAB_MASK
from laneway.errors import JournalDamaged, LanewayError

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.broker")

#: One request has so much at most, unless a single entry is larger: its receiver does all of it in one turn.
MAX_COUNT = 200
MAX_BYTES = 2 * 1024 * 1024
#: Between attempts while the partition is away or takes nothing; the last one again and again.
RETRY_MS = (10, 20, 50, 100, 200, 500)

Done = Callable[[Any], None]
OnDelivered = Callable[[int, Sequence[int], Sequence[Any]], None]


class Courier:
    def __init__(
        self,
        partition: Partition,
        receiver: int,
        deliver: Callable[[Receive, Done], object],
        on_delivered: OnDelivered,
    ) -> None:
        """`on_delivered` is called with the receiver, numbers of entries and what each was answered with."""
        self._partition = partition
        self._receiver = receiver
        self._deliver = deliver
        self._on_delivered = on_delivered
        self._below = 0  # entries below this number may leave
        self._is_under_way = False
        self._is_stopped = False
        self._attempts = 0
        self._damaged: set[int] = set()  # entries that cannot be read: they stay where they are

    def look(self, below: int) -> None:
        """Entries below this number may leave."""
        self._below = max(self._below, below)
        if not self._is_under_way:
            self._go()

    def stop(self) -> None:
        self._is_stopped = True

    def _go(self) -> None:
        self._is_under_way = False
        if self._is_stopped or self._partition.engine.closed:
            return
        seqs = self._next()
        if seqs:
            self._is_under_way = True
            state = self._partition.engine.state
            self._partition.reader.columns(seqs, partial(self._read, seqs, outlines(state, seqs)))

    def _next(self) -> list[int]:
        state = self._partition.engine.state
        found: list[int] = []
        total_bytes = 0
        for seq in entries_of(state, state.outboxes[self._receiver]):
            if seq >= self._below or len(found) == MAX_COUNT:
                break
            if seq in self._damaged:
                continue
            total_bytes += state.table.slabs[seq >> SLAB_BITS].size[seq & SLAB_MASK]
            if found and total_bytes > MAX_BYTES:
                break
            found.append(seq)
        return found

    def _read(self, seqs: list[int], known: list[Outline], columns: Columns) -> None:
        own = self._partition.engine.state.partition
        entries: list[OutboxEntry] = []
        for seq, outline, props, body in zip(seqs, known, columns[1], columns[2], strict=True):
            if body is None:
                self._lose(seq)
            elif outline.story is None:
                entries.append(OutboxEntry(seq, decoded_parcel(body)))
            else:
                entries.append(OutboxEntry(seq, letter(own, outline, bytes(props), bytes(body))))
        if entries:
            numbers = [entry.number for entry in entries]
            self._deliver(Receive(own, entries), partial(self._answered, numbers))
        else:
            self._go()

    def _lose(self, seq: int) -> None:
        log.error(
            "entry %d for partition %d is damaged in the journal and cannot be sent; what follows it is sent",
            seq,
            self._receiver,
        )
        self._damaged.add(seq)
        self._on_delivered(self._receiver, [seq], [JournalDamaged("what was to be done there is damaged")])

    def _answered(self, numbers: list[int], answer: Any) -> None:
        if self._is_stopped:
            return
        if isinstance(answer, LanewayError):
            self._try_again(answer)
            return
        self._attempts = 0
        partition = self._partition
        state = partition.engine.state
        outbox = state.outboxes[self._receiver]
        try:
            partition.run_now(iter([Removed(outbox.number, partition.now(), numbers, Cause.DEPARTED)]))
        except LanewayError as refusal:  # the journal takes no more; they are passed over when they are sent again
            log.info("entries for partition %d are removed after the next start: %s", self._receiver, refusal)
            self.stop()
        self._on_delivered(self._receiver, numbers, answer)
        self._go()

    def _try_again(self, refusal: LanewayError) -> None:
        if self._attempts == len(RETRY_MS):
            log.warning("partition %d takes no entries: %s; trying again", self._receiver, refusal)
        pause_ms = RETRY_MS[min(self._attempts, len(RETRY_MS) - 1)]
        self._attempts += 1
        self._partition.call_later(pause_ms, self._go)
