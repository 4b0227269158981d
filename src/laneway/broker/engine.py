"""State and journal as one: runs commands, so that whatever is applied is also staged, and recovers both at a start.

No asyncio here: the broker decides when commits are written and who is told; the crash simulator drives this directly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice

import msgspec

from laneway.core import clockwork, snapshot
from laneway.core.commands import token
from laneway.core.events import Event, Kind, Leased, Opened
from laneway.core.message import (
    Death,
    Delivery,
    Glimpse,
    decode_record,
    message_id,
    message_id_prefix,
    record_is_intact,
)
from laneway.core.state import State
from laneway.core.table import LEASED, SLAB_BITS, SLAB_MASK, STATE_NAMES
from laneway.core.topology_commands import drop_transient
from laneway.errors import JournalDamaged, Unavailable
from laneway.journal.interface import Commit, Journal

log = logging.getLogger("laneway.broker")

RECORD_OVERHEAD_BYTES = 160  # what a kept record takes beside its bytes: two objects and a place in a dictionary
MOST_EVICTED = 4096  # at once


class RecordCache:
    """The records published last, so that a message that is consumed soon is never read back from the journal."""

    def __init__(self, max_bytes: int) -> None:
        self.records: dict[int, bytes] = {}  # oldest first
        self._bytes = 0
        self._max_bytes = max_bytes

    def add(self, first_seq: int, records: Sequence[bytes]) -> None:
        kept = self.records
        kept.update(zip(range(first_seq, first_seq + len(records)), records, strict=True))
        self._bytes += sum(map(len, records)) + RECORD_OVERHEAD_BYTES * len(records)
        while self._bytes > self._max_bytes and kept:
            # Some at a time: the front of a dictionary is slow to find again after each removal.
            self.discard(list(islice(kept, min(len(kept) // 16 + 1, MOST_EVICTED))))

    def discard(self, seqs: Sequence[int]) -> None:
        pop = self.records.pop
        for seq in seqs:
            record = pop(seq, None)
            if record is not None:
                self._bytes -= len(record) + RECORD_OVERHEAD_BYTES


def message_count(event: Event) -> int:
    """How many messages an event concerns, at least one: what it costs to replay."""
    if event.kind is Kind.PUBLISHED:
        return len(event.sizes)  # type: ignore[union-attr]
    return len(getattr(event, "seqs", ())) or 1


class Recovery(msgspec.Struct, frozen=True):
    """What a start found."""

    snapshot_position: int
    position: int
    event_count: int
    epoch: int


class Engine:
    def __init__(self, journal: Journal, *, new_tag: Callable[[], int], cache_bytes: int = 64 * 1024 * 1024) -> None:
        self.journal = journal
        self.state = State()
        self.cache = RecordCache(cache_bytes)
        self.closed = False  # nothing more is taken: what is staged now would not be written any more
        # Told when an event was staged and not applied, so that state and journal differ: it must not be written.
        self.on_broken: Callable[[BaseException], None] = lambda _: None
        self._new_tag = new_tag

    def recover(self, now_ms: int) -> Recovery:
        """Rebuild the state from the journal and stage the event that opens a new epoch."""
        found = self.journal.load_snapshot()
        start = 0
        if found is not None:
            start, source = found
            self.state = snapshot.thaw(source)
        end, event_count = start, 0
        apply = self.state.apply
        for position, events in self.journal.replay(start):
            for event in events:
                apply(event)
            end = position
            event_count += sum(map(message_count, events))
        epoch = self.state.epoch + 1
        self.run(iter([Opened(now_ms, epoch, self.state.tag or self._new_tag())]))
        self.run(drop_transient(self.state, now_ms))
        return Recovery(start, end, event_count, epoch)

    def run(self, command: Iterator[Event]) -> list[Event]:
        """Stage and apply what a command yields, event by event; the events."""
        if self.closed:
            raise Unavailable("the node is stopping; try again later")
        events: list[Event] = []
        stage, apply = self.journal.stage, self.state.apply
        staged_count = 0
        try:
            for event in command:
                location = stage(event)
                staged_count += 1
                kind = event.kind
                if kind is Kind.PUBLISHED:
                    event.location = location  # type: ignore[union-attr]
                    self.cache.add(event.first_seq, event.records)  # type: ignore[union-attr]
                elif kind is Kind.ACKED:
                    self.cache.discard(event.seqs)  # type: ignore[union-attr]
                elif kind is Kind.RELOCATED:
                    event.location = location  # type: ignore[union-attr]
                apply(event)
                events.append(event)
        except BaseException as trouble:
            # What the command took in hand it gives back now, not when the last trace of the exception is gone.
            if isinstance(command, Generator):
                command.close()
            if staged_count != len(events):
                self.closed = True
                self.on_broken(trouble)
            raise
        return events

    def tick(self, now_ms: int) -> list[Event]:
        return self.run(clockwork.tick(self.state, now_ms))

    def freeze_at(self, commit: Commit) -> tuple[int, snapshot.Frozen, list[int]]:
        """A snapshot of this moment, which must be right after `commit` was sealed."""
        return commit.position, snapshot.freeze(self.state), list(self.state.extents)

    # Reading

    def record_seq(self, seq: int) -> int:
        """The number a message's record was written under: its own, unless it has moved."""
        told = self.state.stories.get(seq)
        return told.record_seq if told is not None else seq

    def records(self, seqs: Sequence[int]) -> list[bytes | None]:
        """The records of messages; None for one that is damaged, which is logged with its place."""
        kept = self.cache.records
        stories = self.state.stories
        if stories:
            found = [kept.get(self.record_seq(seq)) for seq in seqs]
        else:
            found = [kept.get(seq) for seq in seqs]
        if None not in found:
            return found
        missing = [i for i, record in enumerate(found) if record is None]
        slabs = self.state.table.slabs
        places = [slabs[seqs[i] >> SLAB_BITS].location[seqs[i] & SLAB_MASK] for i in missing]
        sizes = [slabs[seqs[i] >> SLAB_BITS].size[seqs[i] & SLAB_MASK] for i in missing]
        for i, record in zip(missing, self._read(places, sizes), strict=True):
            found[i] = record
        return found

    def _read(self, places: Sequence[int], sizes: Sequence[int]) -> list[bytes | None]:
        try:
            return list(self.journal.read(places, sizes))
        except JournalDamaged:
            pass  # find out which one it is, so that the others are still served
        found: list[bytes | None] = []
        for place, size in zip(places, sizes, strict=True):
            try:
                record = self.journal.read([place], [size])[0]
                found.append(record if record_is_intact(record) else None)
            except JournalDamaged as damage:
                log.error("a message record is damaged and cannot be delivered: %s", damage)
                found.append(None)
        return found

    def deliveries(self, leased: Leased) -> list[Delivery]:
        """What the consumer of a lease gets. A damaged message is left out: its lease will expire, and in the end
        it becomes a dead letter."""
        out: list[Delivery] = []
        state = self.state
        stories, tag, slabs = state.stories, state.tag, state.table.slabs
        lease_id, deadline_ms = leased.first_lease, leased.deadline_ms
        prefix, prefix_ms = "", -1
        slab_number, priorities = -1, bytearray()
        deaths: tuple[Death, ...] = ()
        for seq, receives, record in zip(leased.seqs, leased.receives, self.records(leased.seqs), strict=True):
            if record is not None:
                record_seq, enqueued_at_ms, properties, body = decode_record(record)
                if enqueued_at_ms != prefix_ms:
                    prefix, prefix_ms = message_id_prefix(enqueued_at_ms, tag), enqueued_at_ms
                if seq >> SLAB_BITS != slab_number:
                    slab_number = seq >> SLAB_BITS
                    priorities = slabs[slab_number].priority
                if stories:
                    deaths = stories[seq].deaths if seq in stories else ()
                out.append(
                    Delivery(
                        prefix + record_seq.to_bytes(6, "big").hex(),
                        priorities[seq & SLAB_MASK],
                        body,
                        properties,
                        enqueued_at_ms,
                        receives,
                        deadline_ms,
                        token(lease_id, seq),
                        deaths,
                    )
                )
            lease_id += 1
        return out

    def glimpses(self, seqs: Sequence[int]) -> list[Glimpse | None]:
        """Messages as peek shows them; None for one whose record is damaged."""
        out: list[Glimpse | None] = []
        state = self.state
        for seq, record in zip(seqs, self.records(seqs), strict=True):
            if record is None:
                out.append(None)
                continue
            slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
            record_seq, enqueued_at_ms, properties, body = decode_record(record)
            found = STATE_NAMES[slab.state[i]]
            told = state.stories.get(seq)
            out.append(
                Glimpse(
                    message_id(enqueued_at_ms, state.tag, record_seq),
                    found,
                    slab.priority[i],
                    body,
                    properties,
                    enqueued_at_ms,
                    slab.due_ms[i] if found in ("leased", "delayed") else slab.since_ms[i],
                    slab.receives[i],
                    state.consumers.get(seq, "") if slab.state[i] == LEASED else "",
                    told.deaths if told is not None else (),
                )
            )
        return out
