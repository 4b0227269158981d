"""Keeps the journal short: snapshots, dropping of settled history, compaction of what a few survivors pin; and quick.

A snapshot is taken of the moment a commit is sealed and saved once that commit is durable, so that it never says
more than the journal does.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable

from laneway.broker.engine import Engine
from laneway.core import snapshot
from laneway.core.events import Relocated
from laneway.core.table import FREE, SLAB_BITS, SLAB_MASK
from laneway.errors import DiskFull, JournalAway, LanewayError, OutOfDescriptors
from laneway.journal.interface import Commit

log = logging.getLogger("laneway.broker")

DEAD_EXTENTS = 8  # so many extents without a live record are worth a snapshot that lets them go …
DEAD_SHARE = 4  # … or this part of all, if that is more: a snapshot costs as much as there are messages
EVENTS_SHARE = 2  # events for this part of all messages are worth a snapshot, for the same reason
LOOK_EVERY_COMMITS = 64
LOOK_EVERY_BYTES = 32 << 20
LOOK_FOR_ROOM_S = 1.0  # between looks at what could be dropped, while there is no room
SPARSE_BYTES_PER_RECORD = 8192  # an extent with fewer live records than this a piece is looked at closely …
SPARSE_SHARE = 0.25  # … and rewritten if they fill less than this share of it
SLABS_PER_STEP = 50
RECORDS_PER_STEP = 256
FINAL_SNAPSHOT_EVENTS = 1_000
_UPPER_HALF = int(sys.byteorder == "little")  # of the two halves of a location: which one is the extent


class Upkeep:
    def __init__(
        self, engine: Engine, loop: asyncio.AbstractEventLoop, now_ms: Callable[[], int], snapshot_events: int
    ) -> None:
        self._engine = engine
        self._loop = loop
        self._now_ms = now_ms
        self._snapshot_events = snapshot_events
        self._events = 0
        self._commits = 0
        self._bytes = 0
        self._last: Commit | None = None
        self._frozen: tuple[int, snapshot.Frozen, list[int]] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._stopping = False  # from now on only the final snapshot is saved: one at a time
        self._dropping: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._drop_again = False
        self._sparse: dict[int, int] = {}  # extents that were sparse at the last snapshot -> their live records then
        self._durable_position = 0
        self._is_short = False  # somebody was refused for want of room since the last look
        self._room_timer: asyncio.TimerHandle | None = None
        self._is_wanted = False  # a snapshot, of the next commit
        self._touch: Callable[[], None] = lambda: None
        self._look_at_history: Callable[[], None] = lambda: None
        self._make_room_of_history: Callable[[], None] = lambda: None

    def start(
        self,
        replayed_events: int,
        touch: Callable[[], None],
        look_at_history: Callable[[], None],
        make_room_of_history: Callable[[], None],
    ) -> None:
        self._events = replayed_events
        self._touch = touch
        self._look_at_history = look_at_history
        self._make_room_of_history = make_room_of_history

    def sealed(self, commit: Commit) -> None:
        """Called right after a commit was sealed, before anything else is staged."""
        self._last = commit
        self._events += commit.event_count
        self._commits += 1
        self._bytes += commit.byte_count
        if self._commits % LOOK_EVERY_COMMITS == 0 or self._bytes > LOOK_EVERY_BYTES:
            self._bytes = 0
            self._loop.call_soon(self._look_at_history)  # it may have something to write
        if not self._engine.journal.has_room():
            self.make_room()
        if self._may_freeze() and (self._is_wanted or self._is_due()):
            self._freeze(commit)

    def _may_freeze(self) -> bool:
        return self._frozen is None and self._saving is None and not self._stopping

    def _freeze(self, commit: Commit) -> None:
        self._frozen = self._engine.freeze_at(commit, self._now_ms())
        self._events, self._is_wanted = 0, False

    def _is_due(self) -> bool:
        if self._events >= self._snapshot_events:
            return self._events >= len(self._engine.state.table) // EVENTS_SHARE
        if self._commits % LOOK_EVERY_COMMITS:
            return False
        extents = self._engine.journal.extent_bytes()
        return self._dead_extents(extents) >= max(DEAD_EXTENTS, len(extents) // DEAD_SHARE)

    def _dead_extents(self, extents: Iterable[int]) -> int:
        """How many a snapshot would let go. What is kept for readers of the history would stay."""
        live, held = self._engine.state.extents, {one.extent for one in self._engine.journal.held()}
        return sum(extent not in live and extent not in held for extent in extents)

    def make_room(self) -> None:
        """There is no room: called by whoever found that. From then on a timer looks once a second until there is, for
        no commit may come along: publishing is refused, and there may be nothing left to consume."""
        self._is_short = True
        if self._room_timer is None and not self._stopping:
            self._room_timer = self._loop.call_later(0, self._look_for_room)

    def _look_for_room(self) -> None:
        self._room_timer = None
        if self._stopping or self._engine.closed:
            return
        journal = self._engine.journal
        is_short, self._is_short = self._is_short, False
        if not is_short and journal.has_room():
            return
        self._room_timer = self._loop.call_later(LOOK_FOR_ROOM_S, self._look_for_room)
        self._make_room_of_history()
        if not self._may_freeze() or not self._dead_extents(journal.extent_bytes()):
            return
        if self._last is not None and self._durable_position == self._last.position and not journal.staged_bytes():
            self._freeze(self._last)
            self._save_soon()
        else:
            self._is_wanted = True

    def durable(self, commit: Commit) -> None:
        self._durable_position = commit.position
        if self._frozen is not None and commit.position >= self._frozen[0]:
            self._save_soon()
        if self._preparing is None and not self._stopping and not self._engine.journal.is_prepared():
            self._preparing = self._loop.create_task(self._prepare())

    def _save_soon(self) -> None:
        assert self._frozen is not None
        frozen, self._frozen = self._frozen, None
        self._saving = self._loop.create_task(self._save(frozen))

    async def _prepare(self) -> None:
        try:
            while not self._stopping and await asyncio.to_thread(self._engine.journal.prepare):
                pass
        finally:
            self._preparing = None

    async def _save(self, frozen: tuple[int, snapshot.Frozen, list[int]]) -> None:
        try:
            if self._dropping is not None:  # one thread at a time
                await asyncio.gather(self._dropping, return_exceptions=True)
            await asyncio.to_thread(self._save_blocking, frozen)
            await self._compact()
        except (DiskFull, OutOfDescriptors, JournalAway) as trouble:
            log.warning("no snapshot for the moment, will try again: %s", trouble)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("a snapshot failed; the journal keeps growing until one succeeds")
        finally:
            self._saving = None
            if self._drop_again:
                self.drop_soon()

    def is_spare(self, extent: int, size: int) -> bool:
        """Whether an extent holds no live records, or so few that they would be copied elsewhere."""
        return self._engine.state.extents.get(extent, 0) <= size // SPARSE_BYTES_PER_RECORD

    def drop_soon(self) -> None:
        """Delete what is not kept any more: readers have read it, or were too slow."""
        self._drop_again = True
        if self._saving is None and self._dropping is None and not self._stopping:
            self._dropping = self._loop.create_task(self._drop())

    async def _drop(self) -> None:
        try:
            while self._drop_again and self._saving is None:
                self._drop_again = False
                await asyncio.to_thread(self._drop_blocking)
        except LanewayError as trouble:  # of the sync; whoever writes next hears of it too
            log.warning("history that is no longer needed was not dropped: %s", trouble)
        finally:
            self._dropping = None

    def _drop_blocking(self) -> None:
        # How far readers are must not be forgotten in a power cut that their history does not survive.
        self._engine.journal.sync()
        self._engine.journal.drop()

    def _save_blocking(self, frozen: tuple[int, snapshot.Frozen, list[int]]) -> None:
        position, state, live = frozen
        self._engine.journal.save_snapshot(position, snapshot.chunks(state), live)
        self._engine.journal.sync()
        dropped = self._engine.journal.drop()
        log.debug("snapshot at %d, dropped extents %s", position, dropped)

    async def final_snapshot(self) -> None:
        """At a clean stop, after the last commit: so that the next start has nothing to replay."""
        if self._last is not None and self._events >= FINAL_SNAPSHOT_EVENTS:
            try:
                await asyncio.to_thread(self._save_blocking, self._engine.freeze_at(self._last, self._now_ms()))
            except LanewayError as trouble:  # the journal has everything; the next start replays it
                log.warning("no snapshot at the end: %s", trouble)

    async def stop(self) -> None:
        self._stopping = True
        self._frozen = None
        if self._room_timer is not None:
            self._room_timer.cancel()
        going_on = [task for task in (self._saving, self._dropping, self._preparing) if task is not None]
        await asyncio.gather(*going_on, return_exceptions=True)

    async def _compact(self) -> None:
        """Copy the survivors of sparse extents to the end of the journal; the next snapshot lets the extents go."""
        journal = self._engine.journal
        held = {one.extent for one in journal.held()}  # it would free nothing to empty these
        sizes = {extent: size for extent, size in journal.extent_bytes().items() if extent not in held}
        live = self._engine.state.extents
        counts = {
            e: live.get(e, 0) for e, size in sizes.items() if 0 < live.get(e, 0) <= size // SPARSE_BYTES_PER_RECORD
        }
        # One that is losing its records quickly is being consumed and will be empty soon, without any help.
        before, self._sparse = self._sparse, counts
        stay = [extent for extent, count in counts.items() if extent in before and count * 4 > before[extent] * 3]
        sparse = {extent: sizes[extent] for extent in stay}
        if not sparse or not journal.has_room():
            return
        survivors = await self._survivors(set(sparse))
        for extent, seqs in survivors.items():
            if self._stopping:
                return
            if sum({self._location(s): self._size(s) for s in seqs}.values()) <= sparse[extent] * SPARSE_SHARE:
                await self._relocate(extent, seqs)

    def _size(self, seq: int) -> int:
        return self._engine.state.table.slabs[seq >> SLAB_BITS].size[seq & SLAB_MASK] if self._lives(seq) else 0

    def _location(self, seq: int) -> int:
        return self._engine.state.table.slabs[seq >> SLAB_BITS].location[seq & SLAB_MASK] if self._lives(seq) else 0

    def _lives(self, seq: int) -> bool:
        return seq in self._engine.state.table

    async def _survivors(self, extents: set[int]) -> dict[int, list[int]]:
        """Numbers of the live messages whose record is in one of these extents."""
        found: dict[int, list[int]] = {}
        slabs = self._engine.state.table.slabs
        for step, number in enumerate(sorted(slabs)):
            slab = slabs.get(number)
            if slab is None:
                continue
            held_in = memoryview(slab.location).cast("B").cast("I")[_UPPER_HALF::2].tolist()
            if not extents.isdisjoint(held_in):  # mostly it is: the records of a slab stand in one extent or two
                for i, extent in enumerate(held_in):
                    if extent in extents and slab.state[i] != FREE:
                        found.setdefault(extent, []).append((number << SLAB_BITS) + i)
            if step % SLABS_PER_STEP == 0:
                await asyncio.sleep(0)
        return found

    async def _relocate(self, extent: int, seqs: list[int]) -> None:
        """Copy records, each once, whichever messages share it."""
        seqs.sort(key=self._location)
        at = 0
        while at < len(seqs):
            by_location: dict[int, list[int]] = {}
            step_end = at + RECORDS_PER_STEP
            while at < len(seqs) and (at < step_end or self._location(seqs[at]) in by_location):
                by_location.setdefault(self._location(seqs[at]), []).append(seqs[at])
                at += 1
            by_location.pop(0, None)  # settled meanwhile
            event = self._relocated(list(by_location.values()))
            if event is None or not self._engine.journal.has_room(sum(map(len, event.records))):
                return
            self._engine.run(iter([event]))
            self._touch()
            await asyncio.sleep(0)
        log.info("compacted extent %d: %d survivors moved", extent, len(seqs))

    def _relocated(self, sharing: list[list[int]]) -> Relocated | None:
        """Of messages that share a record each; None if there is none that can be read."""
        seqs: list[int] = []
        sizes: list[int] = []
        records: list[bytes] = []
        locations: list[int] = []
        for some, record in zip(sharing, self._engine.records([its[0] for its in sharing]), strict=True):
            if record is not None:
                locations += [0, *[~len(seqs)] * (len(some) - 1)]
                seqs += some
                sizes += [len(record)] * len(some)
                records.append(record)
        if not records:
            return None
        return Relocated(self._now_ms(), seqs, sizes, records, locations=locations if any(locations) else ())
