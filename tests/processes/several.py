"""A real server of several processes, and what a test does to them one by one."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

from benchmarks.machine import children, connected_process
from tests.crash.server import Connection, Server, eventually


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
        """The pid that it had. The supervisor knows that it is gone when this returns."""
        before = self.children()
        os.kill(before[at], signal.SIGKILL)
        eventually("it is gone", lambda: before[at] not in self.children())
        return before[at]

    def whole(self) -> bool:
        return len(self.children()) == self._count

    def by_process(self) -> dict[int, Connection]:
        """A connection to each process, by its pid, in the order of the processes. The kernel chooses which one takes
        a connection, so as many are made as it takes."""
        found: dict[int, Connection] = {}
        pids = self.children()
        for _ in range(1000):
            connection = self.connect()
            connection.call("GET", "/healthz")
            pid = connected_process(connection.local_port, pids)
            if pid in found:
                connection.close()
            else:
                found[pid] = connection
            if len(found) == len(pids):
                return {pid: found[pid] for pid in pids}
        raise AssertionError(f"only {list(found)} of {pids} took a connection")


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
