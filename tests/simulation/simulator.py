"""One seed: the lives of one node, each ended by a crash or a stop, and what must be true after every start.

life ─▶ crash at a file operation │ kill │ clean stop │ failed sync ─▶ power lost or not ─▶ next life …
start ─▶ both oracles look ─▶ steps of the workload ─▶ …
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import msgspec

from laneway.broker.cursors import COLLECTION as CURSORS
from laneway.broker.cursors import Cursor
from laneway.broker.interface import Lease
from laneway.core.invariants import check_invariants
from laneway.core.state import SESSION_LEASE
from laneway.core.table import LEASED
from laneway.errors import JournalFailed

from .faulty_files import FaultyFiles, SimulatedCrash
from .history import History
from .ledger import Ledger
from .loop import Clock, SimulatedLoop
from .node import LifeFiles, Node, Sizes
from .workload import COLLECTION, EXCHANGES, PLENTY_BYTES, SHORT_RETENTION_MS, Workload

MAX_STEPS = 60


class Failure(AssertionError):
    """A seed that went wrong, with all that is needed to look at it."""

    def __init__(self, seed: int, what: str, trace: list[str], damage: Sequence[str] = ()) -> None:
        options = "".join(f" --damage {kind}" for kind in damage)
        super().__init__(
            f"seed {seed}: {what}\n  the last file operations: {'; '.join(trace)}\n"
            f"  replay it with: python -m tests.simulation --seeds {seed}{options}"
        )
        self.seed = seed


class _Complaints(logging.Handler):
    """Errors that the code under test only logs. None is expected unless the disk fails."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.torn_tails = 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.ERROR:
            self.torn_tails += "cut off" in record.msg
            return
        reason = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self.found.append(record.getMessage() + reason)


@contextlib.contextmanager
def listening() -> Iterator[_Complaints]:
    logger, complaints = logging.getLogger("laneway"), _Complaints()
    before = logger.level, logger.propagate
    logger.addHandler(complaints)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield complaints
    finally:
        logger.removeHandler(complaints)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class Simulation:
    history_is_safe = True  # False: a file that only readers need may be damaged, which no start notices

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.files = FaultyFiles(seed, capacity_bytes=PLENTY_BYTES)
        self.clock = Clock()
        self.history = History(self.clock)
        self.ledger = Ledger(self.clock, self.history.lease_order)
        self.sizes = Sizes(self.random)
        self.workload = Workload(self.random, self.ledger)
        self.staging_folder: Path | None = None
        self.lives = 0
        self.ends: Counter[str] = Counter()  # how they ended
        self._forgive = False  # the next life may lack what callers were told of
        self._is_starting = False

    def run(self) -> None:
        """Raise Failure if anything that must hold does not."""
        with listening() as self.complaints, tempfile.TemporaryDirectory() as folder:
            self.staging_folder = Path(folder)
            try:
                for _ in range(self.random.randint(2, 6)):
                    self.live()
                self.files.capacity_bytes = PLENTY_BYTES
                self.finish()
            except AssertionError as wrong:
                raise Failure(self.seed, str(wrong), list(self.files.trace)) from wrong
            except Exception as wrong:
                raise Failure(self.seed, f"{wrong!r}", list(self.files.trace)) from wrong

    # One life

    def live(self) -> None:
        end = self.random.choices(("crash", "kill", "stop", "fail"), (12, 4, 3, 1))[0]
        if end == "crash":
            near = self.random.choice((3, 10, 30, 100, 200))
            self.files.crash_at_operation = self.files.operation_count + self.random.randint(1, near)
        elif end == "fail":
            self.files.fail_sync_at = self.files.sync_count + self.random.randint(1, 20)
        if not self.run_node(end):
            end = "stop"
        elif self._is_starting:
            self.ends["crash while starting"] += 1
        power_loss = self.random.random() < 0.6
        self.ends.update([end, "power lost"] if power_loss else [end])
        self.files.restart(power_loss=power_loss)
        if power_loss and self.history.lose_power():
            self._forgive = True
        self.clock.advance(self.random.choice((0, 0, 50, 3_000, 30_000)))
        if self.random.random() < 0.03:
            self.clock.set_back(self.random.choice((1, 500, 5_000)))

    def run_node(self, end: str) -> bool:
        """True if it crashed."""
        with self.new_loop(end) as loop:
            try:
                loop.run_until_complete(self._life(loop, end))
            except SimulatedCrash:
                return True
            except JournalFailed:
                assert end == "fail", "the journal failed on a good disk"
                return True
            return False

    @contextlib.contextmanager
    def new_loop(self, end: str) -> Iterator[SimulatedLoop]:
        self.lives += 1
        loop = SimulatedLoop(self.clock, self.files, self.random)
        self._view = LifeFiles(self.files)
        try:
            yield loop
        finally:
            self._view.leave()
            loop.abandon()
            self.ledger.crash()
        self._complain(loop, end)

    async def _life(self, loop: SimulatedLoop, end: str) -> None:
        node = await self.start(loop)
        self.workload.begin_life()
        self.workload.in_background(node, self.workload.open_queues(node))
        for _ in range(self.random.randint(1, MAX_STEPS)):
            await self.workload.step(node)
            if node.failed:
                raise SimulatedCrash
            if self.workload.failures or loop.errors:
                return
        if end == "kill":
            self.files.crashed = True
            raise SimulatedCrash
        self.files.capacity_bytes = PLENTY_BYTES  # a full disk may keep a stop waiting
        if end == "stop":
            self.files.crash_at_operation = None
        await node.partition.stop()
        if not node.partition.committer.stuck and not node.partition.committer.failed:
            self.workload.check_answered()
            assert self.history.written == self.history.sealed, "a clean stop left something unwritten"
            self.history.note(written=self.history.sealed, durable=self.history.sealed)  # in every mode

    async def start(self, loop: SimulatedLoop, look: Callable[[Node], None] | None = None) -> Node:
        node = Node(
            self.sizes,
            self.files,
            self._view,
            self.clock,
            self.history,
            loop,
            self.random,
            look=look or self._look,
            counts=self.workload.counts,
            staging_folder=self.staging_folder,
        )
        node.checks_history = self.history_is_safe
        self._is_starting = True
        starting = loop.create_task(node.partition.start())
        await asyncio.wait([starting], timeout=3)
        if not starting.done():  # there may be no space even for the first commit
            assert self.files.capacity_bytes < PLENTY_BYTES, "the node does not start"
            self.files.capacity_bytes = PLENTY_BYTES
        await starting
        self._is_starting = False
        node.check()
        return node

    def _look(self, node: Node) -> None:
        """What was recovered is durable by now, and nothing else has happened yet."""
        state, ledger = node.engine.state, self.ledger
        check_invariants(state)
        if self._forgive:
            self.ends["forgiven"] += 1
            ledger.forgive(node.messages())
            self._forgive = False
        ledger.look_up(node.messages(), node.clock.latest_ms(), {"brief": SHORT_RETENTION_MS})
        for slab in state.table.slabs.values():
            held = [lease for found, lease in zip(slab.state, slab.lease, strict=False) if found == LEASED]
            assert not any(lease & SESSION_LEASE for lease in held), "a connection of before still holds a message"
        ledger.documents.look_up("document", state.documents.get(COLLECTION, {}))
        found = state.documents.get(CURSORS, {})
        cursors = {name: msgspec.json.decode(document, type=Cursor) for name, document in found.items()}
        ledger.cursors.look_up("cursor", {name: cursor.position for name, cursor in cursors.items()})
        if self.history_is_safe and self.sizes.durability == "commit" and not self.workload.counts["fill_disk"]:
            lost = [name for name, cursor in cursors.items() if cursor.state == "lost"]
            assert not lost, f"cursors {lost} were lost without need"
        ledger.queues.look_up("queue", {queue.name: queue.settings for queue in state.queues.values()})
        declared = state.topology.exchanges.get("/", {})
        ledger.exchanges.look_up("exchange", {n: declared[n].settings for n in EXCHANGES if n in declared})

    def _complain(self, loop: SimulatedLoop, end: str) -> None:
        assert not self.workload.failures, self.workload.failures[0]
        assert not loop.errors, loop.errors[0]
        expected = ("nothing can be written for the moment", "the disk is full", "cursor") if end != "fail" else ("",)
        found = [text for text in self.complaints.found if not text.startswith(expected)]
        self.complaints.found.clear()
        self.workload.counts["torn tail"] += self.complaints.torn_tails
        self.complaints.torn_tails = 0
        assert not found, found[0]

    # The end

    def finish(self) -> None:
        """A good disk at last: everything that is not dead can be consumed, in order, and stays away."""
        self.clock.advance(20_000)
        for work in (self._drain, self.start):
            with self.new_loop("stop") as loop:
                loop.run_until_complete(work(loop))
            self.files.restart(power_loss=True)

    async def _drain(self, loop: SimulatedLoop) -> None:
        node = await self.start(loop)
        self.workload.begin_life()
        await node.partition.redrives.stop()
        names = [q.name for q in node.broker.topology.queues(vhost="/")]
        for _ in range(200):  # what is consumed too late moves on to the dead letters of another queue
            await asyncio.sleep(5)
            if not sum([await self._drain_some(node, name) for name in names]):
                break
        left = [g.state for g in node.glimpses(node.seqs()) if g.state != "dead"]
        assert not left, f"{left} could not be consumed"
        await node.partition.stop()

    async def _drain_some(self, node: Node, name: str) -> int:
        """Lease what there is and ack it; how many there were, waiting ones included."""
        before = self.workload.counts["delivered"]
        self.workload.lease(node, name, Lease(node.id(name), 1_000, 60_000), self.workload._expected(node, name))
        await asyncio.sleep(1)  # they may have to be read
        await self.workload.ack_all(node, name)
        queue = node.engine.state.queues[node.id(name)]
        return self.workload.counts["delivered"] - before + queue.ready + queue.delayed + queue.leased


def run_seed(seed: int) -> Simulation:
    simulation = Simulation(seed)
    simulation.run()
    return simulation
