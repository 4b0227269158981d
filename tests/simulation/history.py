"""The first oracle: a recovered state is the state as it was after a commit, no earlier one than the last durable.

It knows nothing of what the state means. A picture of it is taken whenever a commit is sealed; after a start the state
must equal the picture of the commit that recovery ended with. So commits are atomic, nothing durable is missing, and
replay, snapshots and compaction change nothing. What the clock alone does (a delay that ended, a memory that expired)
is no event, so it is left out of the comparison.
"""

from __future__ import annotations

from typing import Any

from laneway.core import table
from laneway.core.events import Leased
from laneway.core.exchanges import Exchange
from laneway.core.queue import TOTALS, Queue
from laneway.core.state import LOST_QUEUES, PARTITION_BIT, State
from laneway.core.table import DELAYED, FREE, LEASED, STATE_NAMES, TENANTED, Slab

from .loop import Clock

UNRECORDED = TOTALS.index("deduplicated")  # answers without an event


class Picture:
    """The state of one moment as plain values."""

    def __init__(self, state: State, at_ms: int) -> None:
        self.at_ms = at_ms
        self.epoch = state.epoch
        self.next_lease = state.next_lease
        self.rest = {
            "tag": state.tag,
            "next_seq": state.table.next_seq,
            "next_queue": state.next_queue,
            "documents": {c: dict(d) for c, d in state.documents.items() if d},
            "moved": dict(state.moved),
            "copies": {record: list(numbers) for record, numbers in state.copies.items()},
            "keys": dict(state.keys.items()),
            "received": dict(state.received),
            "exchanges": {name: _exchange(x) for name, x in state.topology.exchanges.get("/", {}).items()},
            "queues": {number: _queue(queue) for number, queue in state.queues.items()},
        }
        self.dedups = {(q.number, text): known for q in state.queues.values() for text, known in q.dedup.items()}
        self.windows = {number: q.settings.dedup_window_ms for number, q in state.queues.items()}
        self.messages = _messages(state)

    def differences(self, other: Picture, latest_ms: int) -> list[str]:
        """How a recovered state differs from this one, but for what the clock did by then; empty if it does not."""
        out = [
            f"{name}: {value!r}, recovered {other.rest[name]!r}"
            for name, value in self.rest.items()
            if value != other.rest[name]
        ]
        mine, recovered = self.waiting_by(latest_ms), other.waiting_by(latest_ms)
        if mine != recovered:
            out += [
                f"message {seq}: {mine.get(seq)}, recovered {recovered.get(seq)}"
                for seq in sorted(mine.keys() | recovered.keys())
                if mine.get(seq) != recovered.get(seq)
            ]
        for (queue, text), known in self.dedups.items():
            if known[1] + self.windows[queue] > latest_ms and other.dedups.get((queue, text)) != known:
                out.append(f"dedup id {text!r}: {known}, recovered {other.dedups.get((queue, text))}")
        return out

    def waiting_by(self, at_ms: int) -> dict[int, tuple[Any, ...]]:
        """The messages, where a delay that has ended by then counts as ready: nothing but the clock says so."""
        return {
            seq: ("ready", 0, *row[2:]) if row[0] == "delayed" and row[1] <= at_ms else row
            for seq, row in self.messages.items()
        }


def _exchange(x: Exchange) -> tuple[Any, ...]:
    return (x.settings, x.created_at_ms, sorted(map(repr, x.bindings.values())))


def _queue(q: Queue) -> tuple[Any, ...]:
    totals = [total for i, total in enumerate(q.totals) if i != UNRECORDED]
    return (
        q.vhost,
        q.name,
        q.settings,
        q.created_at_ms,
        q.changed_at_ms,
        q.ready + q.delayed,
        q.leased,
        q.bytes_waiting,
        q.dead_elsewhere,
        list(q.dead),
        totals,
    )


def _messages(state: State) -> dict[int, tuple[Any, ...]]:
    groups = {seq: group.name for q in state.queues.values() for seq, group in q.group_of.items()}
    stories, consumers = state.stories, state.consumers
    out: dict[int, tuple[Any, ...]] = {}
    for number, slab in state.table.slabs.items():
        base = number * table.SLAB_ROWS
        for i, found in enumerate(slab.state):
            if found == FREE:
                continue
            seq = base + i
            timed = found == LEASED or found == DELAYED
            out[seq] = (
                STATE_NAMES[found],
                slab.due_ms[i] if timed else 0,
                slab.lease[i] if found == LEASED else 0,
                slab.queue[i],
                slab.priority[i],
                slab.receives[i],
                slab.size[i],
                slab.since_ms[i],
                (slab.enqueued_ms or slab.since_ms)[i],
                groups.get(seq),
                _tenant(state, slab, i),
                stories.get(seq),
                consumers.get(seq) if found == LEASED else None,
            )
    return out


def _tenant(state: State, slab: Slab, i: int) -> str | None:
    tenants = state.queues[slab.queue[i]].tenants
    return tenants.by_number[slab.tenant[i]].name if tenants is not None and slab.flags[i] & TENANTED else None


class History:
    """Which commits there were, and up to which one they are certain to survive."""

    def __init__(self, clock: Clock, lease_order: dict[int, int]) -> None:
        self._clock = clock
        self.pictures: dict[int, Picture] = {0: Picture(State(), 0)}
        self.sealed = 0
        self.written = 0  # survives the process
        self.durable = 0  # survives a power cut
        self.lease_order = lease_order  # the how-manieth each lease was, by its id, which does not say

    def leased(self, event: Leased) -> None:
        for lease_id in range(event.first_lease, event.first_lease + len(event.seqs)):
            self.lease_order[lease_id] = len(self.lease_order)

    def seal(self, position: int, state: State, at_ms: int) -> None:
        assert position == self.sealed + 1, f"commit {position} was sealed after {self.sealed}"
        self.sealed = position
        self.pictures[position] = Picture(state, at_ms)

    def note(self, *, written: int, durable: int) -> None:
        self.written = max(self.written, written)
        self.durable = max(self.durable, durable)
        for older in [p for p in self.pictures if p < self.durable]:
            del self.pictures[older]

    def lose_power(self) -> bool:
        """True if commits may be lost that callers had been told of."""
        lossy = self.durable < self.written
        self.written = self.durable
        return lossy

    def recovered(self, position: int, state: State, at_ms: int) -> None:
        """Called when recovery has ended, before anything else happens; `state` has already entered its new epoch."""
        assert self.written <= position <= self.sealed, (
            f"recovery ended with commit {position}; {self.written} was durable and {self.sealed} the last one"
        )
        then = self.pictures[position]
        now = Picture(state, at_ms)
        if not position:
            now.rest["tag"] = then.rest["tag"]  # drawn a moment ago
        now.rest["next_queue"] -= LOST_QUEUES if then.epoch else 0
        assert now.epoch == then.epoch + 1, f"epoch {now.epoch} came after {then.epoch}"
        first_lease = (state.partition << PARTITION_BIT) + (now.epoch << 40) + 1
        assert now.next_lease == first_lease, f"lease ids go on with {now.next_lease:x} in epoch {now.epoch}"
        differences = then.differences(now, self._clock.latest_ms())
        assert not differences, f"the state after commit {position} was recovered differently: " + "; ".join(
            differences[:5]
        )
        self.sealed = position
        self.pictures = {position: then}
        self.written = self.durable = position
