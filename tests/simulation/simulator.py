"""One seed: the lives of the processes of a server, each ended by a crash or a stop, and what must be true after every
start.

life ─▶ crash at a file operation │ kill │ clean stop │ failed sync ─▶ power lost or not ─▶ next life …
start ─▶ both oracles look ─▶ steps of the workload ─▶ …
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from laneway.broker.cursors import COLLECTION as CURSORS
from laneway.broker.cursors import Cursor
from laneway.broker.interface import Lease
from laneway.core.digits import SESSION_LEASE
from laneway.core.invariants import check_invariants
from laneway.core.message import Glimpse
from laneway.core.table import LEASED
from laneway.errors import JournalFailed

from .faulty_files import SimulatedCrash
from .ledger import Ledger
from .loop import Clock, Deadlock, SimulatedLoop
from .node import Node
from .processes import Process
from .workload import COLLECTION, EXCHANGES, PLENTY_BYTES, SHORT_RETENTION_MS

MAX_STEPS = 60

Life = Callable[[Process], Coroutine[Any, Any, None]]


class Failure(AssertionError):
    """A seed that went wrong, with all that is needed to look at it."""

    def __init__(self, seed: int, what: str, trace: list[str], options: str = "") -> None:
        super().__init__(
            f"seed {seed}: {what}\n  the last file operations: {'; '.join(trace)}\n"
            f"  replay it with: python -m tests.simulation{options} --seeds {seed}"
        )
        self.seed = seed


class _Complaints(logging.Handler):
    """Errors that the code under test only logs. None is expected unless the disk fails."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []  # of the process that has its turn
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
    options = ""  # of the command that replays it
    history_is_safe = True  # False: a file that only readers need may be damaged, which no start notices

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.clock = Clock()
        self.ledger = Ledger(self.clock)
        self.processes = self.make_processes()
        self.lives = 0
        self.ends: Counter[str] = Counter()  # how they ended

    def make_processes(self) -> list[Process]:
        return [Process(0, self.seed, self.random, self.clock, self.ledger)]

    @property
    def counts(self) -> Counter[str]:
        """What was done."""
        return sum((process.workload.counts for process in self.processes), Counter())

    @property
    def operation_count(self) -> int:
        return sum(process.files.operation_count for process in self.processes)

    def run(self) -> None:
        """Raise Failure if anything that must hold does not."""
        with listening() as self.complaints, tempfile.TemporaryDirectory() as folder:
            for process in self.processes:
                process.staging_folder = Path(folder, str(process.partition))
                process.staging_folder.mkdir()
            try:
                for _ in range(self.random.randint(2, 6)):
                    self.live()
                for process in self.processes:
                    process.files.capacity_bytes = PLENTY_BYTES
                self.finish()
            except AssertionError as wrong:
                raise self._failure(str(wrong)) from wrong
            except Exception as wrong:
                raise self._failure(repr(wrong)) from wrong
            finally:
                for process in self.processes:
                    if process.loop is not None:
                        process.leave()

    def _failure(self, what: str) -> Failure:
        trace = [one for process in self.processes for one in process.files.trace]
        return Failure(self.seed, what, trace, self.options)

    # Lives

    def live(self) -> None:
        """All processes at once, until they are all down."""
        for process in self.processes:
            process.draw_end()
        self._run(self._life, self._down)
        self.clock.advance(self.random.choice((0, 0, 50, 3_000, 30_000)))
        if self.random.random() < 0.03:
            self.clock.set_back(self.random.choice((1, 500, 5_000)))

    def _run(self, life: Life, down: Callable[[Process, bool], None]) -> None:
        """Whichever has the next thing to do has its turn; what is due in several at once happens in a drawn order."""
        for process in self.processes:
            process.found = None
        for process in self.processes:
            self._begin(process, life)
        while (process := self._next()) is not None:
            if process.loop is None:
                self._begin(process, life)
            elif (crashed := self._turn(process)) is not None:
                down(process, crashed)
                if process.found is None and len(self.processes) > 1:
                    self._begin(process, life)  # the others wait for it

    def _begin(self, process: Process, life: Life) -> None:
        self.lives += 1
        process.begin(life(process))

    def _next(self) -> Process | None:
        """Nobody goes on before all have recovered: what they found together is looked at first."""
        recovering = [process for process in self.processes if process.found is None and process.loop is not None]
        there = recovering or [p for p in self.processes if p.loop is not None or p.restart_us is not None]
        if len(there) < 2:
            return there[0] if there else None
        at_s = [process.next_s() for process in there]
        first_s = min(at_s)
        if first_s == math.inf:
            raise Deadlock("nothing is ready and nothing is scheduled")
        self.clock.us = max(self.clock.us, math.ceil(first_s * 1e6))
        return self.random.choice([process for process, s in zip(there, at_s, strict=True) if s <= first_s])

    def _turn(self, process: Process) -> bool | None:
        """Whether it crashed, if its life is over."""
        self.complaints.found = process.complaints
        crashed = True
        loop = process.loop
        assert loop is not None
        try:
            if not process.turn():
                return None
            crashed = False
        except SimulatedCrash:
            pass
        except JournalFailed:
            assert process.end == "fail", "the journal failed on a good disk"
        process.leave()
        self.left(loop)
        process.check(loop)
        process.workload.counts["torn tail"] += self.complaints.torn_tails
        self.complaints.torn_tails = 0
        return crashed

    def left(self, loop: SimulatedLoop) -> None:
        """A process is gone."""

    def _down(self, process: Process, crashed: bool) -> None:
        end = process.end if crashed else "stop"
        if crashed and process.is_starting:
            self.ends["crash while starting"] += 1
        power_loss = self.random.random() < 0.6
        self.ends.update([end, "power lost"] if power_loss else [end])
        process.files.restart(power_loss=power_loss)
        if power_loss and process.history.lose_power():
            process.has_lost = True

    async def _life(self, process: Process) -> None:
        node, workload = await self.start(process), process.workload
        workload.begin_life()
        workload.in_background(node, workload.open_queues(node))
        for _ in range(self.random.randint(1, MAX_STEPS)):
            await workload.step(node)
            if node.failed:
                raise SimulatedCrash
            if workload.failures or node.loop.errors:
                return
        if process.end == "kill":
            process.files.crashed = True
            raise SimulatedCrash
        process.files.capacity_bytes = PLENTY_BYTES  # a full disk may keep a stop waiting
        if process.end == "stop":
            process.files.crash_at_operation = None
        await node.stop()
        if not node.partition.committer.stuck and not node.partition.committer.failed:
            workload.check_answered()
            history = process.history
            assert history.written == history.sealed, "a clean stop left something unwritten"
            history.note(written=history.sealed, durable=history.sealed)  # in every mode

    def new_node(self, process: Process, look: Callable[[Node], None]) -> Node:
        return Node(*process.node_parts(), look, process.workload.counts, process.staging_folder)

    async def start(self, process: Process, look: Callable[[Node], None] | None = None) -> Node:
        loop = process.loop
        assert loop is not None
        node = self.new_node(process, look or partial(self._look, process))
        node.checks_history = self.history_is_safe
        process.is_starting = True
        starting = loop.create_task(node.partition.start())
        await asyncio.wait([starting], timeout=3)
        if not starting.done():  # there may be no space even for the first commit
            assert process.files.capacity_bytes < PLENTY_BYTES, "the node does not start"
            process.files.capacity_bytes = PLENTY_BYTES
        await starting
        process.is_starting = False
        node.check()
        return node

    # What is looked at after a start

    def _look(self, process: Process, node: Node) -> None:
        """What was recovered is durable by now, and nothing else has happened yet."""
        check_invariants(node.engine.state)
        for slab in node.engine.state.table.slabs.values():
            held = [lease for found, lease in zip(slab.state, slab.lease, strict=False) if found == LEASED]
            assert not any(lease & SESSION_LEASE for lease in held), "a connection of before still holds a message"
        self._look_at_registers(process, node)
        process.found = node.messages()
        if all(other.found is not None for other in self.processes):
            self._look_at_messages()

    def _look_at_messages(self) -> None:
        found: dict[bytes, Glimpse] = {}
        for process in self.processes:
            found.update(process.found or {})
        if any(process.has_lost for process in self.processes):
            self.ends["forgiven"] += 1
            self.ledger.forgive(found)
        for process in self.processes:
            process.has_lost = False
        self.ledger.look_up(found, self.clock.latest_ms(), {"brief": SHORT_RETENTION_MS})

    def _look_at_registers(self, process: Process, node: Node) -> None:
        state, registers = node.engine.state, process.workload.registers
        if process.has_lost:
            registers.forgive()
        registers.documents.look_up("document", state.documents.get(COLLECTION, {}))
        found = state.documents.get(CURSORS, {})
        cursors = {name: msgspec.json.decode(document, type=Cursor) for name, document in found.items()}
        registers.cursors.look_up("cursor", {name: cursor.position for name, cursor in cursors.items()})
        if self.history_is_safe and process.sizes.durability == "commit" and not process.workload.counts["fill_disk"]:
            lost = [name for name, cursor in cursors.items() if cursor.state == "lost"]
            assert not lost, f"cursors {lost} were lost without need"
        registers.queues.look_up("queue", {queue.name: queue.settings for queue in state.queues.values()})
        declared = state.topology.exchanges.get("/", {})
        registers.exchanges.look_up("exchange", {n: declared[n].settings for n in EXCHANGES if n in declared})

    # The end

    def finish(self) -> None:
        """A good disk at last: everything that is not dead can be consumed, in order, and stays away."""
        self.clock.advance(20_000)
        for process in self.processes:
            process.end = "stop"
        for life in (self._drain, self._start_only):
            self._run(life, lambda process, crashed: process.files.restart(power_loss=True))

    async def _start_only(self, process: Process) -> None:
        await self.start(process)

    async def _drain(self, process: Process) -> None:
        node = await self.start(process)
        process.workload.begin_life()
        await node.partition.redrives.stop()
        names = [q.name for q in node.broker.topology.queues(vhost="/")]
        for _ in range(200):  # what is consumed too late moves on to the dead letters of another queue
            await asyncio.sleep(5)
            if not sum([await self._drain_some(process, node, name) for name in names]):
                break
        left = [g.state for g in node.glimpses(node.seqs()) if g.state != "dead"]
        assert not left, f"{left} could not be consumed"
        await node.partition.stop()

    async def _drain_some(self, process: Process, node: Node, name: str) -> int:
        """Lease what there is and ack it; how many there were, waiting ones included."""
        workload = process.workload
        before = workload.counts["delivered"]
        workload.lease(node, name, Lease(node.id(name), 1_000, 60_000), workload._expected(node, name))
        await asyncio.sleep(1)  # they may have to be read
        await workload.ack_all(node, name)
        queue = node.engine.state.queues[node.id(name)]
        return workload.counts["delivered"] - before + queue.ready + queue.delayed + queue.leased


def run_seed(seed: int) -> Simulation:
    simulation = Simulation(seed)
    simulation.run()
    return simulation
