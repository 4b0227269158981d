"""What it takes to run the core in a test: a journal that is a piece of memory, a State, and how to look at one."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from laneway.core import births, burial, clockwork, commands, lease_commands, publishing, rows, snapshot
from laneway.core.deadlines import TTL
from laneway.core.digits import token
from laneway.core.events import Arrived, Event, Kind, Opened, Published, Relocated
from laneway.core.message import (
    PLAIN,
    Draft,
    Properties,
    Receipt,
    Receipts,
    Settlement,
    located,
    messages_of,
    split_record,
)
from laneway.core.queue import DEDUPLICATED, TOTALS, Queue
from laneway.core.settings import QueueSettings
from laneway.core.state import State
from laneway.core.table import DELAYED, FREE, LEASED, OVERDUE, SLAB_BITS, SLAB_MASK, STATE_NAMES
from laneway.errors import LanewayError

CORE_FOLDER = str(Path(commands.__file__).parent)
START_MS = 1_800_000_000_000
TAG = 0x2ABCDEF


class Paper:
    """Keeps every event in its stored form, in extents that are turned over after some records."""

    def __init__(self, extent_bytes: int = 400) -> None:
        self.extents: list[bytearray] = [bytearray(7)]  # location 0 stands for "no record": never begin there
        self.commits: list[tuple[int, bytes]] = []  # (extent, rows)
        self._extent_bytes = extent_bytes

    def write(self, event: Event) -> int:
        """The location of its first record."""
        if len(self.extents[-1]) >= self._extent_bytes:
            self.turn_over()
        page = self.extents[-1]
        at = len(page)
        starts: list[int] = []
        if isinstance(event, Published | Relocated) and event.locations:
            starts = located(event.locations, event.sizes, at)
            event.locations = [len(self.extents) << 32 | start for start in starts]
        stored, blobs = rows.encode(event, at, starts)
        for blob in blobs:
            page += blob
        self.commits.append((len(self.extents), stored))
        return len(self.extents) << 32 | at

    def turn_over(self) -> None:
        """Begin the next extent."""
        self.extents.append(bytearray(7))

    def read(self, first: int = 0) -> Iterator[Event]:
        for extent, stored in self.commits[first:]:
            page = self.extents[extent - 1]
            yield from rows.decode(
                stored, lambda at, size, page=page: bytes(page[at : at + size]), lambda at, n=extent: n << 32 | at
            )

    def record(self, location: int, size: int) -> bytes:
        at = location & 0xFFFFFFFF
        return bytes(self.extents[(location >> 32) - 1][at : at + size])


Birth = tuple[int, int, int]  # first published at, tag of the store it was born in (0: this one), number in its id


def row_births(stored: bytes) -> Iterator[tuple[int, int, Birth]]:
    """(number, new number if it gets one, its birth) of each row that is about a message, read as rows.py documents
    them and not as it writes them."""
    for kind, _, rank, flags, _, seq, _, due, lease, expires, receives, low, _, _ in rows.ROW.iter_unpack(stored):
        at_ms, upper = expires & (1 << 48) - 1, expires >> 48
        if kind in (Kind.MOVED, Kind.COPIED):
            yield seq, lease, (expires, receives, due)
        elif Kind.LEASED <= kind <= Kind.REMOVED or kind in (Kind.RELOCATED, Kind.RESERVED):
            tag = due >> 48 | rank << 16 | (flags >> 1 & 3) << 24 if flags & 64 else 0
            yield seq, 0, (at_ms, tag, upper << 32 | low if flags & 32 else seq)


class Core:
    """A State with a clock and a journal; commands run as the broker runs them."""

    def __init__(self, *, extent_bytes: int = 400, partition: int = 0, tag: int = TAG) -> None:
        self.state = State()
        self.state.partition = partition
        self.state.read_props = self.props
        self.paper = Paper(extent_bytes)
        self.now_ms = START_MS
        self._batches: list[tuple[int, int]] = []  # (first number, published at), to check what rows say
        self._moved: dict[int, Birth] = {}  # by the numbers of messages that moved or came from elsewhere
        self.run(iter([Opened(self.now_ms, 1, tag)]))

    def run(self, command: Iterator[Event]) -> list[Event]:
        events = []
        for event in command:
            told = msgspec.structs.replace(event)  # as the broker does; tests compare what commands say
            births.note(self.state, told)
            location = self.paper.write(told)
            self._check_births(event)
            if event.kind in (Kind.PUBLISHED, Kind.RELOCATED):
                event.location, event.locations = location, told.locations  # type: ignore[union-attr]
            elif event.kind is Kind.ARRIVED:
                event.location = location  # type: ignore[union-attr]
            self.state.apply(event)
            events.append(event)
        return events

    def _check_births(self, event: Event) -> None:
        """Each row about a message tells its id without any other."""
        if isinstance(event, Published):
            self._batches.append((event.first_seq, event.at_ms))
        elif isinstance(event, Arrived):
            tag = event.tag if event.tag != self.state.tag else 0
            self._moved[event.seq] = (event.enqueued_ms, tag, event.number)
        else:
            for seq, new, found in row_births(self.paper.commits[-1][1]):
                at = bisect_right(self._batches, seq, key=lambda batch: batch[0]) - 1
                known = self._moved.get(seq) or (self._batches[at][1], 0, seq)
                assert found == known, f"the row of message {seq} says {found}, it is {known}"
                if new:
                    self._moved[new] = known

    def __getitem__(self, name: str) -> Queue:
        return self.state.by_name["/", name]

    def put(self, name: str = "q", **settings: Any) -> list[Event]:
        return self.run(
            commands.put_queue(self.state, "/", name, QueueSettings(**settings), self.now_ms, max_queues=100)
        )

    def publish(self, *drafts: Draft | bytes, queue: str = "q") -> tuple[list[Event], list[Receipt | LanewayError]]:
        results: list[Receipts] = []
        batch = messages_of([Draft(d) if isinstance(d, bytes) else d for d in drafts])
        events = self.run(publishing.publish(self.state, [(self[queue], len(drafts))], batch, self.now_ms, results))
        return events, results[0].each()

    def fill(self, count: int, queue: str = "q", **draft: Any) -> None:
        self.publish(*[Draft(b"x", **draft) for _ in range(count)], queue=queue)

    def lease(self, limit: int = 10, queue: str = "q", lease_ms: int | None = None, consumer: str = "") -> list[Event]:
        return self.run(lease_commands.lease(self.state, [(self[queue], limit)], lease_ms, consumer, self.now_ms))

    def lease_refused(self, limit: int = 10, queue: str = "q") -> list[int]:
        """A lease whose event the journal does not take; what it would have been."""
        command = lease_commands.lease(self.state, [(self[queue], limit)], None, "", self.now_ms)
        seqs = [seq for event in islice(command, 1) for seq in event.seqs]
        command.close()  # what becomes of a generator that nobody goes on with
        return seqs

    def tick_refused(self, accepted: int) -> list[Event]:
        """A tick of which the journal takes so many events; those."""
        command = clockwork.tick(self.state, self.now_ms)
        events = self.run(islice(command, accepted))
        next(command, None)
        command.close()
        return events

    def restart(self, recover: str = "replay") -> None:
        """Begin again with what is stored, under a new epoch."""
        if recover == "snapshot":
            self.state = snapshot.thaw(list(snapshot.chunks(snapshot.freeze(self.state))))
        else:
            self.state = replay(self.paper.read())
        self.open()

    def open(self) -> None:
        self.state.read_props = self.props
        self.run(iter([Opened(self.now_ms, self.state.epoch + 1, self.state.tag)]))

    def props(self, seqs: Sequence[int]) -> list[bytes | None]:
        slabs = self.state.table.slabs
        found = [(slabs[seq >> SLAB_BITS], seq & SLAB_MASK) for seq in seqs]
        return [split_record(self.paper.record(slab.location[i], slab.size[i]))[1] for slab, i in found]

    def take(self, limit: int = 10, queue: str = "q", **options: Any) -> list[tuple[int, str]]:
        """Lease; (number, token) of each."""
        events = self.lease(limit, queue, **options)
        return [(seq, token(e.first_lease + i, seq)) for e in events for i, seq in enumerate(e.seqs)]  # type: ignore[union-attr]

    def settle(self, *settlements: Settlement, queue: str = "q") -> tuple[list[Event], list[int | LanewayError]]:
        results: list[int | LanewayError] = []
        return self.run(lease_commands.settle(self.state, self[queue], settlements, self.now_ms, results)), results

    def ack(self, *tokens: str, queue: str = "q") -> tuple[list[Event], list[int | LanewayError]]:
        return self.settle(*[Settlement("ack", t) for t in tokens], queue=queue)

    def tick(self, after_ms: int = 0) -> list[Event]:
        self.now_ms += after_ms
        return tick_until_done(self.state, self.now_ms, self.run)

    def redrive(self, seqs: Sequence[int], queue: str = "q", to: str | None = None) -> tuple[list[Event], list[int]]:
        failed: list[int] = []
        target = None if to is None else self[to].number
        return self.run(burial.redrive(self.state, self[queue], seqs, target, self.now_ms, failed)), failed

    def relocate(self, seqs: Iterable[int]) -> list[Event]:
        """What compaction does: copy the records of these messages to the end of the journal."""
        slabs = self.state.table.slabs
        found = [(seq, slabs[seq >> SLAB_BITS], seq & SLAB_MASK) for seq in seqs if seq in self.state.table]
        records = [self.paper.record(slab.location[i], slab.size[i]) for _, slab, i in found]
        if not found:
            return []
        return self.run(iter([Relocated(self.now_ms, [f[0] for f in found], [len(r) for r in records], records)]))

    def waiting(self, queue: str = "q") -> list[int]:
        """Numbers in the order they would be delivered, as far as lanes go."""
        lanes = self[queue].lanes
        return [seq for p in sorted(lanes, reverse=True) for seq in lanes[p].after(0, self.state.table)]


def tick_until_done(state: State, now_ms: int, run: Callable[[Iterator[Event]], list[Event]]) -> list[Event]:
    """One tick does a bounded amount of work, so a mass of due messages takes several."""
    events: list[Event] = []
    while (due_ms := state.deadlines.next_ms()) is not None and due_ms <= now_ms:
        events += run(clockwork.tick(state, now_ms))
    return events


def draft(body: bytes = b"x", *, group: str = "", dedup_id: str = "", **times: Any) -> Draft:
    properties = Properties(group=group, dedup_id=dedup_id) if group or dedup_id else PLAIN
    return Draft(body, properties=properties, **times)


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of the core a call runs, also if it is refused: a count that is the same on every machine."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(CORE_FOLDER):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except LanewayError:
        pass
    finally:
        sys.settrace(before)
    return count


def codes(results: Iterable[object]) -> list[object]:
    """Errors as their codes, all else as it is."""
    return [r.code if isinstance(r, LanewayError) else r for r in results]


def replay(events: Iterable[Event], state: State | None = None) -> State:
    state = state or State()
    for event in events:
        state.apply(event)
    return state


def dump(state: State, now_ms: int) -> dict[str, Any]:
    """All of a state that can ever be noticed, in one form whatever the history: reminders that will find nothing to
    do, dead entries of lanes, and memories that are over are left out."""
    table = state.table
    alive = {
        (number << SLAB_BITS) + i: (slab, i)
        for number, slab in table.slabs.items()
        for i, found in enumerate(slab.state)
        if found != FREE
    }
    return {
        "counters": (state.epoch, state.tag, table.next_seq, state.next_queue, state.next_lease),
        "extents": dict(sorted(state.extents.items())),
        "messages": {seq: _dump_message(*alive[seq]) for seq in sorted(alive)},
        "stories": dict(sorted(state.stories.items())),
        "moved": dict(sorted(state.moved.items())),
        "copies": dict(sorted(state.copies.items())),
        "consumers": dict(sorted(state.consumers.items())),
        "keys": [(k, v) for k, v in state.keys.items() if v.expires_ms > now_ms],
        "documents": {name: dict(documents) for name, documents in sorted(state.documents.items()) if documents},
        "queues": {number: _dump_queue(state, queue, now_ms) for number, queue in sorted(state.queues.items())},
        "exchanges": {
            (vhost, name): (x.settings, x.created_at_ms, sorted(map(repr, x.bindings.values())))
            for vhost, there in sorted(state.topology.exchanges.items())
            for name, x in sorted(there.items())
        },
        "names": {key: queue.number for key, queue in sorted(state.by_name.items())},
        "ttl": sorted(
            (at_ms, number, seq)
            for at_ms, bucket in state.deadlines.buckets.items()
            for (kind, number), seqs in bucket.items()
            for seq in seqs
            if kind == TTL and seq in alive and alive[seq][0].queue[seq & SLAB_MASK] == number
        ),
    }


def _dump_message(slab: Any, i: int) -> tuple[Any, ...]:
    held = slab.state[i] == LEASED
    return (
        STATE_NAMES[slab.state[i]],
        slab.flags[i] if held else slab.flags[i] & ~OVERDUE,
        slab.priority[i],
        slab.queue[i],
        slab.receives[i],
        slab.size[i],
        slab.location[i],
        slab.since_ms[i],
        (slab.enqueued_ms or slab.since_ms)[i],
        slab.lease[i] if held else 0,
        slab.due_ms[i] if held or slab.state[i] == DELAYED else 0,
    )


def _dump_queue(state: State, q: Queue, now_ms: int) -> dict[str, Any]:
    totals = {name: q.totals[i] for i, name in enumerate(TOTALS) if i != DEDUPLICATED}  # the one no event counts
    return {
        "about": (q.number, q.vhost, q.name, q.settings, q.created_at_ms, q.changed_at_ms),
        "counts": (q.ready, q.leased, q.delayed, q.bytes_waiting, q.dead_elsewhere, list(q.dead)),
        "totals": totals,
        "rates": [tuple(r) for r in q.rates],
        "lanes": {p: list(lane.after(0, state.table)) for p, lane in sorted(q.lanes.items()) if lane.count},
        "groups": {
            g.name: (list(g.members), g.turn, g.offered, g.offered and g.place) for _, g in sorted(q.groups.items())
        },
        "grouped_ready": dict(sorted(q.grouped_ready.items())),
        "tenants": {
            t.name: (
                t.leased,
                t.count,
                {p: list(n.after(0, state.table)) for p, n in sorted(t.lanes.items()) if n.count},
            )
            for _, t in sorted(q.tenants.by_name.items() if q.tenants is not None else ())
        },
        "dedup": [(k, v) for k, v in q.dedup.items() if v[1] + q.settings.dedup_window_ms > now_ms],
    }
