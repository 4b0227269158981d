"""What a disk does to files that nobody touches: bits flip, ends go missing, files vanish. And what a start says then.

A node runs and ends with nothing lost: by a clean stop, or killed while idle. One thing is damaged. The next start must
refuse and name the place, or must not have needed what was damaged: the state is whole, and a record that cannot be
read is noticed and never handed out. After a refusal the folder is as it was, so that undoing the damage undoes all.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random
from typing import NamedTuple

from laneway.broker.interface import Lease
from laneway.core import table
from laneway.core.invariants import check_invariants
from laneway.core.message import decode_record
from laneway.errors import JournalDamaged
from laneway.journal.history.format import parse_segment_header

from .faulty_files import SimulatedCrash
from .loop import SimulatedLoop
from .node import FOLDER, Node
from .simulator import Failure, Simulation, listening
from .workload import Workload

IDLE_S = 10.0  # long enough for the last commit to be written and marked, with little luck


class Damage(NamedTuple):
    kind: str
    path: str
    offset: int
    undamaged: bytes


class DamageSimulation(Simulation):
    history_is_safe = False

    def __init__(self, seed: int, kinds: tuple[str, ...]) -> None:
        super().__init__(seed)
        (self.process,) = self.processes
        self.process.sizes.durability = (
            "commit"  # without syncs there are no marks either: damage may look like a torn tail
        )
        self.process.workload = Workload(self.random, self.ledger, disk_full=False, sessions=False)
        self.kinds = kinds
        self.outcomes: Counter[str] = Counter()

    def run(self) -> None:
        with listening() as complaints:
            self.process.complaints = complaints.found
            try:
                for _ in range(self.random.randint(1, 3)):
                    with self.process.new_loop("stop") as loop:
                        self._live_well(loop)
                    self.process.files.restart(power_loss=False)
                    self.clock.advance(self.random.choice((0, 50, 30_000)))
                self._damage_and_start()
            except AssertionError as wrong:
                raise Failure(self.seed, str(wrong), list(self.process.files.trace), self.options) from wrong
            except Exception as wrong:
                raise Failure(self.seed, repr(wrong), list(self.process.files.trace), self.options) from wrong

    def _live_well(self, loop: SimulatedLoop) -> None:
        try:
            loop.run_until_complete(self._good_life(loop))
        except SimulatedCrash:
            pass
        assert self.process.history.written == self.process.history.sealed, "something was left unwritten"

    async def _good_life(self, loop: SimulatedLoop) -> None:
        node = await self.start(self.process)
        self.process.workload.begin_life()
        self.process.workload.in_background(node, self.process.workload.open_queues(node))
        for _ in range(self.random.randint(5, 50)):
            await self.process.workload.step(node)
        await asyncio.sleep(IDLE_S)
        while not (self.process.history.written == self.process.history.sealed and node.journal._writer._is_marked):
            await asyncio.sleep(0.1)
        if self.random.random() < 0.5:
            await node.partition.stop()
        else:
            self.process.files.crashed = True
            raise SimulatedCrash

    # One thing goes wrong

    def _damage_and_start(self) -> None:
        damage = self._damage()
        if damage is None:
            self.outcomes["nothing to damage"] += 1
            return
        before = self._contents()
        refusal = self._start_damaged(damage)
        if refusal is None:
            self.outcomes["started"] += 1
            return
        self.outcomes["refused"] += 1
        self._check_refusal(damage, refusal)
        assert self._contents() == before, "a start that refused has changed the folder"
        self.process.files.restart(power_loss=False)
        self.process.files.put_contents(damage.path, damage.undamaged)
        with self.process.new_loop("stop") as loop:
            loop.run_until_complete(self.start(self.process))

    def _contents(self) -> dict[str, bytes]:
        return {path: self.process.files.contents(path) for path in self.process.files.paths()}

    def _damage(self) -> Damage | None:
        kind = self.random.choice(self.kinds)
        names = [n for n in self.process.files.paths() if n.endswith(".segment") or "snapshot-" in n]
        if kind == "snapshot":
            names = [n for n in names if "snapshot-" in n]
        elif kind in ("segment", "end"):
            names = [n for n in names if n.endswith(".segment")]
            names = names[-1:] if kind == "end" else names
            if len([n for n in self.process.files.paths() if n.endswith(".segment") or "snapshot-" in n]) == 1:
                return None  # the only file there is: without it this is a new folder
        if not names:
            return None
        path = self.random.choice(names)
        data = self.process.files.contents(path)
        return DAMAGES[kind](self, path, data, self.random)

    def flip(self, path: str, data: bytes, random: Random) -> Damage:
        used = len(data.rstrip(b"\0"))
        offset = random.randrange(min(len(data), used + 100))
        self.process.files.flip_bit(path, offset, random.randrange(8))
        return Damage("flip", path, offset, data)

    def cut(self, path: str, data: bytes, random: Random) -> Damage:
        # What a large commit added to the size it was begun with may go missing unnoticed.
        header = parse_segment_header(data)
        assert header is not None
        offset = random.randrange(min(len(data.rstrip(b"\0")), header.begun_bytes))
        self.process.files.put_contents(path, data[:offset])
        return Damage("end", path, offset, data)

    def lose(self, path: str, data: bytes, random: Random) -> Damage:
        self.process.files.delete(path)
        return Damage("lose", path, 0, data)

    def _start_damaged(self, damage: Damage) -> JournalDamaged | None:
        """What the start says; None if it starts, and then all is as it must be."""
        with self.process.new_loop("fail") as loop:
            self.damage = damage
            try:
                loop.run_until_complete(self._consume_damaged(loop))
            except JournalDamaged as refusal:
                return refusal
        return None

    async def _consume_damaged(self, loop: SimulatedLoop) -> None:
        node = await self.start(self.process, self._look_at_damaged)
        for queue in node.broker.topology.queues(vhost="/"):
            got = await node.broker.ask(Lease(queue.queue, 1_000, 60_000))
            self.ledger.delivered(queue.name, got, node.broker.now())

    def _look_at_damaged(self, node: Node) -> None:
        """All the messages are there; each body is right, or cannot be read and stands where the damage is."""
        check_invariants(node.engine.state)
        found, unreadable = {}, set()
        for seq in node.seqs():
            record = node.engine.records([seq])[0]
            if record is None:
                slab = node.engine.state.table.slabs[seq >> table.SLAB_BITS]
                i = seq & table.SLAB_MASK
                self._check_place(slab.location[i], slab.size[i])
                unreadable.add(node.engine.kept_as(seq))
            else:
                body = decode_record(record)[3]
                self.ledger.check_content(self.ledger.sent(body), node.glimpses([seq])[0])
                assert body not in found, f"{body[:20]!r} is there twice"
                found[body] = seq
        self.outcomes["record noticed"] += len(unreadable)
        expected = {
            body for body, sent in self.ledger.by_body.items() if sent.confirmed and not sent.gone and not sent.leaving
        }
        missing = [self.ledger.by_body[body] for body in expected - found.keys()]
        missing = [s for s in missing if int(s.message_id[-12:], 16) not in unreadable and s.queue != "brief"]
        missing = [s for s in missing if s.queue not in self.ledger.unacked]  # it may have gone with its queue
        assert not missing, f"{missing} are not there any more"

    def _check_place(self, location: int, size: int) -> None:
        damage, offset = self.damage, location & 0xFFFFFFFF
        path = os.path.join(FOLDER, f"{location >> 32:016d}.segment")
        assert path == damage.path, f"a record in {path} cannot be read, {damage.path} was damaged"
        assert damage.kind != "flip" or offset <= damage.offset < offset + size, "a good record cannot be read"

    def _check_refusal(self, damage: Damage, refusal: JournalDamaged) -> None:
        file, offset = refusal.details["file"], refusal.details["offset"]
        assert isinstance(offset, int) and str(file) in refusal.message
        if damage.kind == "flip":
            assert file == damage.path, f"{damage.path} was damaged, but {file} is blamed: {refusal}"
            assert f"byte {offset}" in refusal.message


DAMAGES = {
    "flip": DamageSimulation.flip,
    "end": DamageSimulation.cut,
    "segment": DamageSimulation.lose,
    "snapshot": DamageSimulation.lose,
}


def run_damage_seed(seed: int, kinds: tuple[str, ...]) -> DamageSimulation:
    simulation = DamageSimulation(seed, kinds)
    simulation.run()
    return simulation
