"""State and journal as one: runs commands, so that whatever is applied is also staged, and recovers both at a start.

No asyncio here: the broker decides when commits are written and who is told; the crash simulator drives this directly.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from operator import sub

import msgspec

from laneway.core import births, clockwork, lease_commands, snapshot, stepping
from laneway.core.deliveries import Deliveries
from laneway.core.events import Arrived, Cause, Event, Kind, Leased, Opened, Published
from laneway.core.message import Death, Glimpse, decode_props, message_id, record_is_intact, split_record
from laneway.core.queue import Queue
from laneway.core.runs import runs
from laneway.core.state import State
from laneway.core.stories import fill_in
from laneway.core.table import LEASED, SLAB_BITS, SLAB_MASK, SLAB_ROWS, STATE_NAMES
from laneway.core.topology_commands import drop_transient
from laneway.core.world import World
from laneway.errors import JournalDamaged, Unavailable
from laneway.journal.interface import Commit, Journal

log = logging.getLogger("laneway.broker")

Content = tuple[int, bytes, bytes]  # enqueued at, props, body
Columns = tuple[list[int], list[bytes], list[bytes | memoryview | None]]  # the same of many; None: it is damaged

KEPT_OVERHEAD_BYTES = 100  # what a kept message takes beside its bytes
#: A body of more is not kept: it is read back once for all who get it at the time (reading.py).
LARGE_BYTES = 4 * 1024 * 1024


class _KeptSlab:
    """Contents of the messages of one slab, from `start` on; None stands for what is not kept."""

    __slots__ = ("at_ms", "bodies", "byte_count", "is_shared", "live", "props", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.live = 0
        self.byte_count = 0
        self.is_shared = False  # some of the bodies may be those of other messages too, and not in byte_count
        self.at_ms: list[int] = []
        self.props: list[bytes | None] = []
        self.bodies: list[bytes | None] = []


class ContentCache:
    """The messages published last, so that one that is consumed soon is never read back from the journal. Kept in
    columns, slab by slab as in the table of core, because neighbours come and go together. The body of a message that
    is in several queues is kept, and counted, once."""

    def __init__(self, max_bytes: int) -> None:
        self._slabs: dict[int, _KeptSlab] = {}  # oldest first
        self._bytes = 0
        self._max_bytes = self._usual_bytes = max_bytes
        self._shared: Counter[int] = Counter()  # id of a shared body that is kept -> how often

    def keep_less(self, is_less: bool) -> None:
        self._max_bytes = 0 if is_less else self._usual_bytes
        while self._bytes > self._max_bytes and self._slabs:
            self._drop(next(iter(self._slabs)))

    def keep(self, event: Published) -> None:
        self.add(event.first_seq, event.at_ms, event.props, event.bodies, is_shared=bool(event.locations))

    def add(
        self, first_seq: int, at_ms: int, props: Sequence[bytes], bodies: Sequence[bytes], *, is_shared: bool = False
    ) -> None:
        done, count = 0, len(bodies)
        while done < count:
            seq = first_seq + done
            number = seq >> SLAB_BITS
            slab = self._slabs.get(number)
            if slab is None:
                slab = self._slabs[number] = _KeptSlab(seq)
            gap = seq - slab.start - len(slab.bodies)
            if gap:  # numbers that were given to moved messages
                slab.at_ms += [0] * gap
                slab.props += [None] * gap
                slab.bodies += [None] * gap
            n = min(count - done, SLAB_ROWS - (seq & SLAB_MASK))
            some = bodies if n == count else bodies[done : done + n]
            done += n
            kept: Sequence[bytes | None] = some
            size = sum(map(len, some))
            slab.at_ms += [at_ms] * n
            slab.props += props if n == count else props[done - n : done]
            if size > LARGE_BYTES:
                kept = [body if len(body) <= LARGE_BYTES else None for body in some]
                n -= kept.count(None)
                size = sum(len(body) for body in kept if body is not None)
            slab.bodies += kept
            slab.live += n
            if is_shared:
                self._share(slab, kept)
                size = 0
            size += KEPT_OVERHEAD_BYTES * n
            slab.byte_count += size
            self._bytes += size
        while self._bytes > self._max_bytes and self._slabs:
            self._drop(next(iter(self._slabs)))

    def _share(self, slab: _KeptSlab, bodies: Sequence[bytes | None]) -> None:
        slab.is_shared = True
        for number, body in dict(zip(map(id, bodies), bodies, strict=True)).items():
            if number not in self._shared and body is not None:
                self._bytes += len(body)
        self._shared.update(map(id, bodies))
        self._shared.pop(id(None), None)

    def _unshare(self, bodies: Sequence[bytes | None]) -> None:
        shared, gone = self._shared, Counter(map(id, bodies))
        numbers = list(gone.keys() & shared.keys())
        left = list(map(sub, map(shared.__getitem__, numbers), map(gone.__getitem__, numbers)))
        dict.update(shared, zip(numbers, left, strict=True))
        if min(left, default=1) <= 0:  # of some this was the last message
            for body in bodies:
                if body is not None and shared.get(id(body), 1) <= 0:
                    del shared[id(body)]
                    self._bytes -= len(body)

    def _drop(self, number: int) -> None:
        slab = self._slabs.pop(number)
        self._bytes -= slab.byte_count
        if slab.is_shared:
            self._unshare(slab.bodies)

    def discard(self, seqs: Sequence[int]) -> None:
        """Forget what was settled: a slab goes with the last of its messages."""
        for first, count in runs(seqs):
            slab = self._slabs.get(first >> SLAB_BITS)
            if slab is not None and first >= slab.start:
                i = first - slab.start
                kept = slab.bodies[i : i + count]  # fewer, if the last of them have moved here
                slab.bodies[i : i + len(kept)] = [None] * len(kept)
                if slab.is_shared:
                    self._unshare(kept)
                gone = len(kept) - kept.count(None)
                freed = slab.byte_count * gone // max(slab.live, 1)  # about: to know better would cost more
                slab.live -= gone
                slab.byte_count -= freed
                self._bytes -= freed
                if slab.live <= 0 and len(slab.bodies) + (slab.start & SLAB_MASK) == SLAB_ROWS:
                    self._drop(first >> SLAB_BITS)

    def get(self, seq: int) -> Content | None:
        slab = self._slabs.get(seq >> SLAB_BITS)
        i = seq - slab.start if slab is not None else -1
        if slab is None or not 0 <= i < len(slab.bodies) or slab.bodies[i] is None:
            return None
        return slab.at_ms[i], slab.props[i], slab.bodies[i]  # type: ignore[return-value]

    def keeps_some(self, first: int, count: int) -> bool:
        """Whether any of these neighbours of one slab is kept."""
        slab = self._slabs.get(first >> SLAB_BITS)
        if slab is None:
            return False
        kept = slab.bodies[max(first - slab.start, 0) : max(first - slab.start + count, 0)]
        return kept.count(None) != len(kept)

    def run(self, first: int, count: int) -> tuple[list[int], list[bytes], list[bytes]] | None:
        """The columns of neighbours of one slab, if all are kept."""
        slab = self._slabs.get(first >> SLAB_BITS)
        i = first - slab.start if slab is not None else -1
        if slab is None or i < 0 or i + count > len(slab.bodies):
            return None
        bodies = slab.bodies[i : i + count]
        if None in bodies:
            return None
        return slab.at_ms[i : i + count], slab.props[i : i + count], bodies  # type: ignore[return-value]


def filled(outline: Deliveries, columns: Columns) -> Deliveries:
    """Deliveries with their contents, but without those that are damaged."""
    outline.enqueued_at_ms, outline.props, bodies = columns
    outline.bodies = bodies  # type: ignore[assignment]
    if None not in bodies:
        return outline
    return outline.without([i for i, body in enumerate(bodies) if body is None])


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
    jumped_ms: int = 0  # how far the wall clock jumped since, as far as can be told


class Engine:
    def __init__(
        self,
        journal: Journal,
        *,
        new_tag: Callable[[], int],
        cache_bytes: int = 128 * 1024 * 1024,
        partition: int = 0,
        world: World | None = None,
    ) -> None:
        self.journal = journal
        self._partition = partition
        self._world = world  # None: there is no other partition
        self._begin(State())
        self.cache = ContentCache(cache_bytes)
        self.keep_less = self.cache.keep_less
        self.closed = False  # nothing more is taken: what is staged now would not be written any more
        # Told when an event was staged and not applied, so that state and journal differ: it must not be written.
        self.on_broken: Callable[[BaseException], None] = lambda _: None
        self._new_tag = new_tag

    def _begin(self, state: State) -> None:
        self.state = state
        state.partition = self._partition
        if self._world is not None:
            state.world = self._world

    def recover(self, now_ms: int, uptime_ms: int = 0, boot: str = "") -> Recovery:
        """Rebuild the state from the journal, and stage what begins a new life with it: durations go on from where they
        were. No connection of the old one is left, so what belonged to them goes, and what they held goes back."""
        recovery = self.replay(now_ms)
        for event in self.run(stepping.set_clock(self.state, now_ms, uptime_ms, boot)):
            if event.at_ms != event.was_ms:  # type: ignore[union-attr]
                log.warning("%s since this was last open", stepping.jump_in_words(event))  # type: ignore[arg-type]
                recovery = msgspec.structs.replace(recovery, jumped_ms=event.at_ms - event.was_ms)  # type: ignore[union-attr]
        self.run(drop_transient(self.state, now_ms))
        self.run(lease_commands.end_sessions(self.state, now_ms))
        return recovery

    def replay(self, now_ms: int) -> Recovery:
        """The state as it was, but for the event that opens a new epoch."""
        found = self.journal.load_snapshot()
        start = 0
        if found is not None:
            start, source = found
            self._begin(snapshot.thaw(source, self._partition))
        end, event_count = start, 0
        apply = self.state.apply
        for position, events in self.journal.replay(start):
            for event in events:
                apply(event)
                self.state.known_ms = event.at_ms
            end = position
            event_count += sum(map(message_count, events))
        epoch = max(self.state.epoch + 1, self.journal.claimed_epoch)
        self.state.read_props = self.props
        self.run(iter([Opened(now_ms, epoch, self.state.tag or self._new_tag())]))
        return Recovery(start, end, event_count, epoch)

    def run(self, command: Iterator[Event]) -> list[Event]:
        """Stage and apply what a command yields, event by event; the events."""
        if self.closed:
            raise Unavailable("the node is stopping; try again later")
        events: list[Event] = []
        stage, apply, state = self.journal.stage, self.state.apply, self.state
        staged_count = 0
        try:
            for event in command:
                births.note(state, event)
                location = stage(event)
                staged_count += 1
                kind = event.kind
                if kind is Kind.PUBLISHED or kind is Kind.RELOCATED:
                    event.location = location  # type: ignore[union-attr]
                    if kind is Kind.PUBLISHED:
                        self.cache.keep(event)  # type: ignore[arg-type]
                elif kind is Kind.ACKED:
                    self.cache.discard(event.seqs)  # type: ignore[union-attr]
                elif kind is Kind.ARRIVED:
                    event.location = location  # type: ignore[union-attr]
                    self._keep_arrived(event)  # type: ignore[arg-type]
                elif kind is Kind.REMOVED and event.cause is Cause.DEPARTED:  # type: ignore[union-attr]
                    self.cache.discard(event.seqs)  # type: ignore[union-attr]
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

    def _keep_arrived(self, event: Arrived) -> None:
        self.cache.add(event.seq, event.enqueued_ms, [event.props], [event.body])

    def tick(self, now_ms: int) -> list[Event]:
        return self.run(clockwork.tick(self.state, now_ms))

    def freeze_at(self, commit: Commit, now_ms: int) -> tuple[int, snapshot.Frozen, list[int]]:
        """A snapshot of this moment, which must be right after `commit` was sealed."""
        return commit.position, snapshot.freeze(self.state, now_ms), list(self.state.extents)

    # Reading

    def kept_as(self, seq: int) -> int:
        """The number a message's content was kept under: that which its record was written under."""
        told = self.state.stories.get(seq)
        return told.record_seq if told is not None and not told.tag else seq

    def contents(self, seqs: Sequence[int]) -> Columns:
        """(enqueued at, props, bodies) of messages, as columns. Bodies may be views of what was read with them, so they
        are for those who pass them on at once; None where the record is damaged, which is logged with its place."""
        at_ms: list[int] = []
        props: list[bytes] = []
        bodies: list[bytes | memoryview | None] = []
        stories = self.state.stories
        for first, count in runs(seqs):
            found = (self.cache.run(first, count) or self._read_run(first, count)) if not stories else None
            if found is not None:
                at_ms += found[0]
                props += found[1]
                bodies += found[2]
                continue
            for content in self._contents(range(first, first + count)):
                at_ms.append(content[0])
                props.append(content[1])
                bodies.append(content[2])
        return at_ms, props, bodies

    def kept(self, seqs: Sequence[int]) -> Columns | None:
        """The contents of messages if all of them are in memory."""
        if self.state.stories:
            found = [self.cache.get(self.kept_as(seq)) for seq in seqs]
            return None if None in found else tuple(map(list, zip(*found, strict=True)))  # type: ignore[return-value]
        at_ms: list[int] = []
        props: list[bytes] = []
        bodies: list[bytes | memoryview | None] = []
        for first, count in runs(seqs):
            run = self.cache.run(first, count)
            if run is None:
                return None
            at_ms += run[0]
            props += run[1]
            bodies += run[2]
        return at_ms, props, bodies

    def locations(self, seqs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where the records of messages stand in the journal, and their sizes."""
        locations: list[int] = []
        sizes: list[int] = []
        for first, count in runs(seqs):
            slab, i = self.state.table.slabs[first >> SLAB_BITS], first & SLAB_MASK
            locations += slab.location[i : i + count]
            sizes += slab.size[i : i + count]
        return locations, sizes

    def read_columns(self, locations: Sequence[int], sizes: Sequence[int]) -> Columns | None:
        """The contents of records, from the journal; None if one cannot be read. Safe in any thread."""
        try:
            return self.journal.read_contents(locations, sizes)  # type: ignore[return-value]
        except JournalDamaged:
            return None

    def _read_run(self, first: int, count: int) -> tuple[list[int], list[bytes], list[bytes | memoryview]] | None:
        """Hot: the columns of neighbours of one slab, from the journal; None if some are kept in memory, or damaged."""
        if self.cache.keeps_some(first, count):
            return None
        slab, i = self.state.table.slabs[first >> SLAB_BITS], first & SLAB_MASK
        try:
            return self.journal.read_contents(slab.location[i : i + count], slab.size[i : i + count])
        except JournalDamaged:
            return None

    def props(self, seqs: Sequence[int]) -> list[bytes | None]:
        """The props of messages; None where the record is damaged."""
        _, props, bodies = self.contents(seqs)
        return [block if body is not None else None for block, body in zip(props, bodies, strict=True)]

    def _contents(self, seqs: Sequence[int]) -> list[Content | tuple[int, bytes, None]]:
        found: list[Content | tuple[int, bytes, None] | None] = [self.cache.get(self.kept_as(seq)) for seq in seqs]
        missing = [i for i, content in enumerate(found) if content is None]
        if missing:
            for i, record in zip(missing, self.records([seqs[i] for i in missing]), strict=True):
                found[i] = split_record(record) if record is not None else (0, b"", None)
        return found  # type: ignore[return-value]

    def records(self, seqs: Sequence[int]) -> list[bytes | None]:
        """The records of messages, from the journal; None for one that is damaged."""
        slabs = self.state.table.slabs
        places = [slabs[seq >> SLAB_BITS].location[seq & SLAB_MASK] for seq in seqs]
        sizes = [slabs[seq >> SLAB_BITS].size[seq & SLAB_MASK] for seq in seqs]
        return self._read(places, sizes)

    def _read(self, places: Sequence[int], sizes: Sequence[int]) -> list[bytes | None]:
        try:
            return list(map(bytes, self.journal.read(places, sizes)))
        except JournalDamaged:
            pass  # find out which one it is, so that the others are still served
        found: list[bytes | None] = []
        for place, size in zip(places, sizes, strict=True):
            try:
                record = bytes(self.journal.read([place], [size])[0])
                found.append(record if record_is_intact(record) else None)
            except JournalDamaged as damage:
                log.error("a message record is damaged and cannot be delivered: %s", damage)
                found.append(None)
        return found

    def deliveries(self, queue: Queue, leased: Leased, columns: Columns | None = None) -> Deliveries:
        """What the consumer of a lease gets, from its contents. Damaged messages are left out."""
        return filled(self.outline(queue, leased), columns or self.contents(leased.seqs))

    def outline(self, queue: Queue, leased: Leased) -> Deliveries:
        """Deliveries without the contents, which are still to be read; all that the state says is in it."""
        state, seqs = self.state, leased.seqs
        stories = {seq: state.stories[seq] for seq in seqs if seq in state.stories} if state.stories else {}
        return Deliveries(
            queue.number,
            queue.name,
            state.tag,
            leased.deadline_ms,
            seqs,
            range(leased.first_lease, leased.first_lease + len(seqs)),
            leased.receives,
            (),
            (),
            (),
            state.table.priorities(runs(seqs)),
            stories,
            queue.ready,
        )

    def left_of(self, queue: Queue, leased: Leased) -> list[bool] | None:
        """Which messages of a lease that was given a while ago are still there, held or not; None if all are."""
        seqs, leases = leased.seqs, range(leased.first_lease, leased.first_lease + len(leased.seqs))
        if lease_commands.still_held(self.state, [(queue.number, len(seqs))], seqs, leases) is None:
            return None
        return [seq in self.state.table for seq in seqs]

    def glimpses(self, seqs: Sequence[int]) -> list[Glimpse | None]:
        """Messages as peek shows them; None for one whose record is damaged."""
        out: list[Glimpse | None] = []
        state = self.state
        deaths: tuple[Death, ...]
        for seq, at_ms, props, body in zip(seqs, *self.contents(seqs), strict=True):
            if body is None:
                out.append(None)
                continue
            slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
            found = STATE_NAMES[slab.state[i]]
            told = state.stories.get(seq)
            properties, deaths = decode_props(props), ()
            if told is not None:
                properties, deaths = fill_in(told, properties)
            out.append(
                Glimpse(
                    message_id(at_ms, (told and told.tag) or state.tag, told.record_seq if told is not None else seq),
                    found,
                    slab.priority[i],
                    bytes(body),
                    properties,
                    at_ms,
                    slab.due_ms[i] if found in ("leased", "delayed") else slab.since_ms[i],
                    slab.receives[i],
                    state.consumers.get(seq, "") if slab.state[i] == LEASED else "",
                    deaths,
                )
            )
        return out
