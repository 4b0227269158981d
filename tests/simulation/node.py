"""One life of a node: the real broker, committer, upkeep and journal on an imagined loop, clock and disk."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from laneway.broker.clock import Clock as MachineClock
from laneway.broker.committer import OnWritten, write_or_mark
from laneway.broker.engine import Engine, Recovery
from laneway.broker.interface import DescribeQueue, ListCursors, Request
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.reading import ReaderThread
from laneway.broker.values import BrokerLimits
from laneway.core.commands import find_queue
from laneway.core.events import Acked, Event, Leased
from laneway.core.invariants import check_invariants
from laneway.core.message import Glimpse
from laneway.core.table import FREE
from laneway.core.world import World
from laneway.journal.history import follow
from laneway.journal.history.files import FileSystem
from laneway.journal.interface import Commit, Journal
from laneway.journal.segments import Durability, SegmentJournal

from . import small
from .faulty_files import FaultyFiles, SimulatedCrash
from .history import History
from .ledger import marked
from .loop import Clock, SimulatedLoop

FOLDER = "/data"


class Sizes:
    """What a seed decides about a node, the same in all its lives."""

    def __init__(self, random: Random) -> None:
        self.segment_bytes = random.choice((1024, 2048, 2048, 4096, 8192))
        self.reserve_bytes = random.choice((0, 4096))
        self.snapshot_events = random.choice((8, 20, 20, 50, 100_000))
        self.cache_bytes = random.choice((0, 0, 1000, 1 << 20))
        self.durability: Durability = random.choice(("commit",) * 8 + ("interval", "none"))
        self.max_open_files = random.choice((1, 2, 128))


class LifeFiles:
    """The disk as one process sees it. Once the process is gone, what is left of it closes its files unheard."""

    def __init__(self, files: FaultyFiles) -> None:
        self._close = files.close
        self._is_gone = False
        for name in FILE_CALLS:
            setattr(self, name, getattr(files, name))

    def close(self, file: int) -> None:
        try:
            if not self._is_gone:
                self._close(file)
        except SimulatedCrash:
            pass  # the operating system does it

    def leave(self) -> None:
        self._is_gone = True


FILE_CALLS = [name for name in dir(FileSystem) if not name.startswith("_") and name != "close"]


class WatchedJournal(SegmentJournal):
    """Takes a picture of the state whenever a commit is sealed: it then holds just what the commits do."""

    def watch(self, disk: FaultyFiles, history: History, engine: Engine, clock: Clock, counts: Counter[str]) -> None:
        self._disk, self._history, self._engine, self._clock, self._counts = disk, history, engine, clock, counts
        self.acked: set[tuple[int, int]] = set()  # (message, lease) of every ack that was staged

    def stage(self, event: Event) -> int:
        self._counts[event.kind.name.lower()] += 1
        if type(event) is Acked:
            self.acked.update(zip(event.seqs, event.leases, strict=True))
        return super().stage(event)

    def sync(self) -> None:
        super().sync()
        self._history.note(written=self._writer.written, durable=self._writer._durable)

    def save_snapshot(self, position: int, chunks: Iterable[bytes], live_extents: Iterable[int]) -> None:
        super().save_snapshot(position, chunks, live_extents)
        self._counts["snapshot"] += 1

    def prepare(self) -> bool:
        self._counts["prepared"] += 1
        return super().prepare()

    def drop(self) -> list[int]:
        dropped = super().drop()
        self._counts["dropped segment"] += len(dropped)
        return dropped

    def seal(self) -> Commit | None:
        if self._disk.crashed:
            raise SimulatedCrash
        commit = super().seal()
        if commit is not None:
            self._history.seal(commit.position, self._engine.state, self._clock.wall_ms())
        return commit


class WatchedEngine(Engine):
    """Lets the oracles look at what was recovered before anything happens to it."""

    def watch(self, history: History, look: Callable[[], None]) -> None:
        self._history, self._look = history, look

    def run(self, command: Iterator[Event]) -> list[Event]:
        events = super().run(command)
        for event in events:
            if isinstance(event, Leased):
                self._history.leased(event)
        return events

    def replay(self, now_ms: int) -> Recovery:
        recovery = super().replay(now_ms)
        self._history.recovered(recovery.position, self.state, now_ms)
        return recovery

    def recover(self, now_ms: int, uptime_ms: int = 0, boot: str = "") -> Recovery:
        recovery = super().recover(now_ms, uptime_ms, boot)
        self._look()
        return recovery


class SimulatedWriter:
    """Writes one commit after the other, each some time after it was put, and reports some time after that."""

    def __init__(self, journal: Journal, loop: SimulatedLoop, on_written: OnWritten, history: History) -> None:
        self._journal = journal
        self._loop = loop
        self._on_written = on_written
        self._history = history
        self._work: deque[Commit] = deque()
        self._busy = False

    def put(self, commit: Commit) -> None:
        self._work.append(commit)
        if not self._busy:
            self._busy = True
            self._loop.call_later(self._loop.latency_s(), self._write)

    def _write(self) -> None:
        if not self._work:
            return
        commit = self._work.popleft()
        error = write_or_mark(self._journal, commit)
        if isinstance(error, SimulatedCrash):
            return  # the loop ends it all
        if error is None:
            writer = self._journal._writer  # type: ignore[attr-defined]
            self._history.note(written=writer.written, durable=writer._durable)
        if commit.position or error is not None:
            self._loop.call_later(self._loop.latency_s(), self._on_written, commit, error)
        self._busy = bool(self._work)
        if self._work:
            self._loop.call_later(self._loop.latency_s(), self._write)

    async def close(self) -> None:
        while self._work:
            self._write()
        self._busy = True  # nothing put from now on is ever written


class SimulatedReads:
    """In place of the reader's thread: one read after the other, each some time after it was asked for."""

    def __init__(self, loop: SimulatedLoop, counts: Counter[str]) -> None:
        self._loop = loop
        self._counts = counts
        self._work: deque[Callable[[], None]] = deque()

    def submit(self, read: Callable[[], None]) -> None:
        self._counts["read back"] += 1
        self._work.append(read)
        if len(self._work) == 1:
            self._loop.call_later(self._loop.latency_s(), self._read)

    def _read(self) -> None:
        if not self._work:
            return
        self._read_next()
        if self._work:
            self._loop.call_later(self._loop.latency_s(), self._read)

    def _read_next(self) -> None:
        try:
            self._work[0]()
        except SimulatedCrash:
            return  # the loop ends it all
        self._work.popleft()

    def shutdown(self) -> None:
        while self._work:
            self._read_next()


def simulated_reader(engine: Engine, loop: Any, counts: Counter[str]) -> ReaderThread:
    reader = ReaderThread(engine, loop)
    reader._pool.shutdown()
    reader._pool = SimulatedReads(loop, counts)  # type: ignore[assignment]
    return reader


class Node:
    def __init__(
        self,
        sizes: Sizes,
        files: FaultyFiles,
        view: LifeFiles,
        clock: Clock,
        history: History,
        loop: SimulatedLoop,
        random: Random,
        look: Callable[[Node], None],
        counts: Counter[str],
        staging_folder: Path | None = None,
        world: World | None = None,
        partition: int = 0,
    ) -> None:
        self.files = files
        self.clock = clock
        self.loop = loop
        self.failed: list[BaseException] = []
        self.checks_history = True
        self.journal = WatchedJournal(
            FOLDER,
            durability=sizes.durability,
            segment_bytes=sizes.segment_bytes,
            reserve_bytes=sizes.reserve_bytes,
            max_open_files=sizes.max_open_files,
            files=view,  # type: ignore[arg-type]
            now_ms=clock.monotonic_ms,
            draw_store=lambda: random.getrandbits(64),
        )
        self.engine = WatchedEngine(
            self.journal,
            new_tag=lambda: 1 + random.getrandbits(20),
            cache_bytes=sizes.cache_bytes,
            partition=partition,
            world=world,
        )
        self.engine.watch(history, lambda: look(self))
        self.journal.watch(files, history, self.engine, clock, counts)
        self.partition = Partition(
            self.engine,
            clock=MachineClock(
                lambda: clock.wall_ms() * 1_000_000,
                lambda: clock.monotonic_ms() * 1_000_000,
                boot="simulated",
                look_every_ms=0,
            ),
            limits=BrokerLimits(snapshot_events=sizes.snapshot_events),
            on_failed=self.failed.append,
            new_writer=lambda journal, loop, on_written: SimulatedWriter(journal, loop, on_written, history),
            new_reader=lambda engine, loop: simulated_reader(engine, loop, counts),
            staging_folder=staging_folder,
            random_bytes=random.randbytes,
        )
        self.broker = LocalBroker(self.partition)

    async def stop(self) -> None:
        await self.partition.stop()

    def catch_up(self) -> None:
        """Have the broker do what it has put off, so that the state shows it."""
        self.partition.inbox.drain()

    def id(self, queue: str) -> int:
        return find_queue(self.engine.state, "/", queue).number

    def has(self, queue: str) -> bool:
        return ("/", queue) in self.engine.state.by_name

    def answer(self, request: Request) -> Any:
        """To a request that is answered at once."""
        answers: list[Any] = []
        self.broker.send(request, answers.append)
        (answer,) = answers
        return answer

    def seqs(self, queue: str | None = None, *states: int) -> list[int]:
        """Numbers of the messages there are, of one queue and in some states if asked for."""
        self.catch_up()  # what was asked for before this question was asked
        number = None if queue is None else self.id(queue)
        return [
            (slab_number << small.SLAB_BITS) + i
            for slab_number, slab in sorted(self.engine.state.table.slabs.items())
            for i, found in enumerate(slab.state)
            if found != FREE and (not states or found in states) and number in (None, slab.queue[i])
        ]

    def glimpses(self, seqs: list[int]) -> list[Glimpse]:
        found = self.engine.glimpses(seqs)
        missing = [seq for seq, glimpse in zip(seqs, found, strict=True) if glimpse is None]
        assert not missing, f"the records of messages {missing} cannot be read"
        queues, slabs = self.engine.state.queues, self.engine.state.table.slabs
        names = [queues[slabs[seq >> small.SLAB_BITS].queue[seq & small.SLAB_MASK]].name for seq in seqs]
        return [marked(name, glimpse) for name, glimpse in zip(names, found, strict=True) if glimpse is not None]

    def messages(self) -> dict[bytes, Glimpse]:
        """All the messages there are, read back from the journal; each must be there once."""
        out: dict[bytes, Glimpse] = {}
        for glimpse in self.glimpses(self.seqs()):
            assert glimpse.body not in out, f"{glimpse} is there twice"
            out[glimpse.body] = glimpse
        return out

    def check(self) -> None:
        check_invariants(self.engine.state)
        for (vhost, name), queue in self.engine.state.by_name.items():
            stats = self.answer(DescribeQueue(vhost, name))
            counts = (stats.ready, stats.leased, stats.delayed, stats.dead)
            assert counts == (queue.ready, queue.leased, queue.delayed, len(queue.dead)), f"{name}: {stats}"
        for cursor in self.answer(ListCursors()):
            if cursor.state == "ok" and self.checks_history:
                self._check_history(cursor.position)

    def _check_history(self, position: int) -> None:
        """What a cursor holds is all there, and whole."""
        history = self.journal.history
        end = history.end()
        commits = follow.commits(FOLDER, history.place(position), end, files=self.files)
        found = [commit.header.position for commit, _ in commits]
        assert found == list(range(position, end.position)), f"a cursor holds from {position} to {end}, found {found}"
