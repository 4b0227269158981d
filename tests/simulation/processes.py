"""The processes of a server: each has one partition, a disk, a loop and callers of its own, and dies on its own."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

from .faulty_files import FaultyFiles
from .history import History
from .loop import Clock, SimulatedLoop
from .node import LifeFiles, Sizes
from .workload import PLENTY_BYTES, Workload


class Process:
    def __init__(
        self,
        partition: int,
        seed: int,
        random: Random,
        clock: Clock,
        ledger: Any,
        new_workload: Callable[..., Any] = Workload,
    ) -> None:
        self.partition = partition
        self.random = random
        self.clock = clock
        self.ledger = ledger
        self.files = FaultyFiles(seed + partition * 1_000_003, capacity_bytes=PLENTY_BYTES)
        self.history = History(clock, ledger.lease_orders[partition])
        self.sizes = Sizes(random)
        self.workload = new_workload(random, ledger, partition=partition)
        self.staging_folder: Path | None = None
        self.end = ""  # how its life is to end
        self.loop: SimulatedLoop | None = None  # while it is up
        self.node: Any = None  # of a life that others look at
        self.is_starting = False
        self.has_lost = False  # its next life may lack what callers were told of
        self.found: Any = None  # the messages there were at its last start
        self.lives_left = 0  # before all are down
        self.restart_us: int | None = None  # when it comes back, of its own accord
        self.complaints: list[str] = []  # errors that it logged

    def draw_end(self) -> None:
        """How its life is to end; the fault that does it is armed."""
        self.end = self.random.choices(("crash", "kill", "stop", "fail"), (12, 4, 3, 1))[0]
        if self.end == "crash":
            near = self.random.choice((3, 10, 30, 100, 200))
            self.files.crash_at_operation = self.files.operation_count + self.random.randint(1, near)
        elif self.end == "fail":
            self.files.fail_sync_at = self.files.sync_count + self.random.randint(1, 20)

    @contextlib.contextmanager
    def new_loop(self, end: str) -> Iterator[SimulatedLoop]:
        """A life in one go."""
        self.end = end
        loop = self.begin()
        try:
            yield loop
        finally:
            self.leave()
        self.check(loop)

    def begin(self, life: Coroutine[Any, Any, None] | None = None) -> SimulatedLoop:
        self.loop = SimulatedLoop(self.clock, self.files, self.random)
        self.view = LifeFiles(self.files)
        self.restart_us = None
        self._is_over = False
        if life is not None:
            self._life = self.loop.create_task(life)
            self._life.add_done_callback(self._over)
        return self.loop

    def _over(self, _: asyncio.Task[None]) -> None:
        self._is_over = True

    def next_s(self) -> float:
        """When it has something to do."""
        if self.loop is not None:
            return self.loop.next_s()
        return math.inf if self.restart_us is None else self.restart_us / 1e6

    def turn(self) -> bool:
        """Give its loop a turn. True if its life is over; raises what ended it."""
        assert self.loop is not None
        self.loop.turn()
        if self._is_over:
            self._life.result()
        return self._is_over

    def node_parts(self) -> tuple[Any, ...]:
        """What a node of its present life is made of."""
        return self.sizes, self.files, self.view, self.clock, self.history, self.loop, self.random

    def leave(self) -> None:
        """The process is gone, and with it all that was under way."""
        assert self.loop is not None
        loop, self.loop = self.loop, None
        self.view.leave()
        loop.abandon()
        self.ledger.crash(self.partition)

    def check(self, loop: SimulatedLoop) -> None:
        """What went wrong in its life without anybody being told."""
        assert not self.workload.failures, self.workload.failures[0]
        assert not loop.errors, loop.errors[0]
        expected = ("nothing can be written for the moment", "the disk is full", "cursor")
        found = [text for text in self.complaints if self.end != "fail" and not text.startswith(expected)]
        self.complaints.clear()
        assert not found, found[0]
