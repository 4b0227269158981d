"""Thousands of seeded lives of a segment journal on a disk that fails: what was confirmed is there, as it was.

A failure prints its seed; `live_through(Life(SEED))` runs that one again.
"""

from __future__ import annotations

from random import Random

import pytest

from laneway.core.events import Acked, Event, Published
from laneway.errors import DiskFull, JournalDamaged, JournalFailed, StartError
from laneway.journal.segments import SegmentJournal, writer
from tests.journal.contract import as_replayed, locations_of, published, records_of, shared
from tests.journal.stores import FOLDER, Clock
from tests.simulation.faulty_files import FaultyFiles, SimulatedCrash


class Life:
    """One store over several starts, beside a plain list of what it was told."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.files = FaultyFiles(seed)
        self.clock = Clock()
        self.durability = self.random.choice(("commit", "commit", "interval", "none"))
        self.segment_bytes = self.random.choice((1024, 4096, 16384))
        self.history: dict[int, list[Event]] = {}  # position -> events, as replay has to give them
        self.records: list[tuple[int, int, bytes]] = []  # (location, size, record) of every publish written
        self.written = 0  # write() returned, or may have had its effect
        self.returned = 0  # write() returned
        self.confirmed = 0  # certain to survive a power cut
        self.least = 0  # what the next start has to find at least
        #: position -> extents that may go, of snapshots saved or perhaps saved
        self.snapshots: dict[int, set[int]] = {0: set()}
        self.saved = 0  # position of the last snapshot certain to be there
        self.next_seq = 1

    def start(self) -> SegmentJournal:
        journal = SegmentJournal(
            FOLDER,
            durability=self.durability,  # type: ignore[arg-type]
            interval_ms=50,
            segment_bytes=self.segment_bytes,
            reserve_bytes=0,
            max_open_files=3,
            files=self.files,
            now_ms=self.clock,
            draw_store=lambda: self.seed,
        )
        loaded = journal.load_snapshot()
        position = loaded[0] if loaded else 0
        assert position >= self.saved and position in self.snapshots, "a snapshot was lost or made up"
        if loaded:
            assert list(loaded[1]) == [b"state", str(position).encode()]
        replayed = list(journal.replay(position))
        assert [p for p, _ in replayed] == list(range(position + 1, position + 1 + len(replayed)))
        last = position + len(replayed)
        assert self.least <= last <= self.written, f"{last} is not from {self.least} to {self.written}"
        for p, events in replayed:
            assert events == self.history[p], f"commit {p} changed"
        self.written = self.returned = last
        self.confirmed = last  # starting makes durable what it found
        self.saved = position
        self.snapshots = {position: self.snapshots[position]}
        places, may_go = self.places(), self.snapshots[position]
        self.records = [r for r in self.records if r[0] in places and r[0] >> 32 not in may_go]
        self.read_some(journal, len(self.records))
        return journal

    def places(self) -> set[int]:
        return {
            place
            for p, events in self.history.items()
            if p <= self.written
            for event in events
            if isinstance(event, Published)
            for place in locations_of(event, event.location)
        }

    # --- what may happen --------------------------------------------------------------------------------------------

    def write(self, journal: SegmentJournal) -> None:
        events: list[Event] = []
        locations: list[int] = []
        for _ in range(self.random.randint(1, 3)):
            count = self.random.randint(1, 4)
            size = self.random.choice((1, 50, 300, 2_000))
            event: Event = published(self.next_seq, count, size=size)
            if self.random.random() < 0.3:
                event, count = shared(self.next_seq, count, 3, size=size), 3 * count
            if self.random.random() < 0.3:
                event = Acked(queue=1, at_ms=1, seqs=[self.next_seq], leases=[1])
            self.next_seq += count
            locations.append(journal.stage(event))
            events.append(event)
        sealed = journal.seal()
        assert sealed is not None
        expected = [as_replayed(event, at) for event, at in zip(events, locations, strict=True)]
        self.history[sealed.position] = expected
        self.written = sealed.position
        journal.write(sealed)
        self.returned = sealed.position
        if self.durability == "commit":
            self.confirmed = sealed.position
        for event, at in zip(events, locations, strict=True):
            if isinstance(event, Published):
                self.records += zip(locations_of(event, at), event.sizes, records_of(event, at), strict=True)

    def sync(self, journal: SegmentJournal) -> None:
        journal.sync()
        self.confirmed = self.returned

    def mark(self, journal: SegmentJournal) -> None:
        self.clock.now_ms += self.random.randint(0, 60)
        journal.mark()

    def snapshot(self, journal: SegmentJournal) -> None:
        position = self.random.randint(self.saved, self.returned)
        if position == self.saved:
            return
        finished = journal.extent_bytes()
        live = {extent for extent in finished if self.random.random() < 0.3}
        self.snapshots[position] = set(finished) - live
        journal.save_snapshot(position, [b"state", str(position).encode()], live)
        self.saved = position
        self.confirmed = max(self.confirmed, position)
        self.records = [r for r in self.records if r[0] >> 32 not in self.snapshots[position]]
        if self.random.random() < 0.7:
            journal.drop()

    def prepare(self, journal: SegmentJournal) -> None:
        for _ in range(self.random.randint(1, 30)):
            journal.prepare()

    def read_some(self, journal: SegmentJournal, count: int | None = None) -> None:
        if self.records:
            chosen = self.random.choices(self.records, k=count if count is not None else 5)
            assert journal.read([c[0] for c in chosen], [c[1] for c in chosen]) == [c[2] for c in chosen]

    def go_on(self, journal: SegmentJournal, step_count: int) -> None:
        for _ in range(step_count):
            actions = [self.write] * 8 + [self.mark] * 3 + [self.sync, self.snapshot, self.read_some, self.prepare]
            self.random.choice(actions)(journal)

    def close(self, journal: SegmentJournal) -> None:
        journal.close()
        self.least = self.confirmed = self.returned

    # --- how it may end ---------------------------------------------------------------------------------------------

    def one_run(self) -> None:
        """Start, work, and come to an end in one way or another."""
        end = self.random.choice(("crash", "crash", "crash", "failed sync", "killed", "closed"))
        if end == "crash":
            self.files.crash_at_operation = self.files.operation_count + self.random.randint(1, 60)
        elif end == "failed sync":
            self.files.fail_sync_at = self.files.sync_count + self.random.randint(1, 30)
        try:
            journal = self.start()
            self.go_on(journal, self.random.randint(0, 40))
            if end == "closed":
                self.close(journal)
        except SimulatedCrash:
            pass
        except JournalFailed:
            assert end == "failed sync"
        power_loss = self.random.random() < 0.7
        # If only the process died, the operating system still has all that was written.
        self.least = self.returned = self.confirmed if power_loss else self.returned
        self.files.restart(power_loss=power_loss)


def live_through(life: Life) -> None:
    try:
        for _ in range(5):
            life.one_run()
        life.start().close()
    except (AssertionError, StartError, SimulatedCrash) as error:
        raise AssertionError(f"seed {life.seed}: {error!r}; last operations: {list(life.files.trace)}") from error


@pytest.fixture(autouse=True)
def fills_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "FILL_AFTER_COMMITS", 2)
    monkeypatch.setattr(writer, "FILL_BYTES", 300)


@pytest.mark.parametrize("first_seed", range(0, 2_000, 200))
def test_confirmed_commits_survive_every_crash(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 200):
        live_through(Life(seed))


def test_lives_reach_every_kind_of_moment() -> None:
    """A simulator that never crashes inside a roll or a snapshot proves nothing about them."""
    crashed_in = set()
    for seed in range(300):
        life = Life(seed)
        for _ in range(5):
            life.one_run()
            crashed_in.add(life.files.trace[-1].split()[1] + " " + life.files.trace[-1].split()[2].split("-")[0][-8:])
    assert {
        "write .segment",
        "sync .segment",
        "truncate .segment",
        "rename .segment",
        "remove .segment",
        "create spare",
        "write spare",
        "allocate spare",
        "sync_folder data",
        "write .partial",
        "sync .partial",
        "rename snapshot",
        "remove snapshot",
    } <= crashed_in


@pytest.mark.parametrize("first_seed", range(10_000, 10_600, 200))
def test_flipped_bit_never_silently_changes_or_shortens_history(first_seed: int) -> None:
    noticed = 0
    for seed in range(first_seed, first_seed + 200):
        life = Life(seed)
        journal = life.start()
        life.go_on(journal, life.random.randint(1, 40))
        life.close(journal)
        path = life.random.choice([p for p in life.files.paths() if not p.endswith("lock")])
        size = len(life.files.contents(path).rstrip(b"\0"))
        life.files.flip_bit(path, life.random.randrange(size), life.random.randrange(8))
        saved, snapshots = life.saved, dict(life.snapshots)
        try:
            life.saved, life.snapshots = 0, {0: set(), **snapshots}  # falling back to the whole history is no loss
            life.start()
        except JournalDamaged:
            noticed += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {path} (snapshot {saved}): {error}") from error
    assert noticed > 100


@pytest.mark.parametrize("first_seed", range(20_000, 20_400, 200))
def test_full_disk_loses_nothing(first_seed: int) -> None:
    full_count = 0
    for seed in range(first_seed, first_seed + 200):
        life = Life(seed)
        journal = life.start()
        for _ in range(3):
            life.files.capacity_bytes = life.files.used_bytes + life.random.randint(0, 3 * life.segment_bytes)
            try:
                life.go_on(journal, 30)
            except DiskFull:
                full_count += 1
            life.files.capacity_bytes = 1 << 40
            life.clock.now_ms += 1_000
            life.least = life.confirmed
            life.files.restart(power_loss=True)
            journal = life.start()
            assert journal.has_room()
        life.close(journal)
    assert full_count > 100
