"""A real server of several processes, and what a test does to them one by one."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.crash.server import Connection, Server, eventually


def children(pid: int) -> list[int]:
    """Of a process, in the order in which they were started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(one) for one in found]


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class SeveralProcesses(Server):
    def __init__(self, folder: Path, *options: str, processes: int = 2, partitions: int = 2, **more: Any) -> None:
        numbers = ("--processes", str(processes), "--partitions", str(partitions))
        super().__init__(folder, *numbers, *options, **more)
        self._count = processes

    def children(self) -> list[int]:
        return children(self.pid)

    def kill_child(self, at: int) -> int:
        """The pid that it had. It is another one when this returns."""
        before = self.children()
        os.kill(before[at], signal.SIGKILL)
        eventually("it is gone", lambda: not is_alive(before[at]))
        return before[at]

    def whole(self) -> bool:
        return len(self.children()) == self._count

    def on_every_process(self) -> list[Connection]:
        """A connection to each process: the kernel chooses, so as many are made as it takes."""
        return [self.connect() for _ in range(self._count * 4)]
