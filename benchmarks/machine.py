"""The machine under the benchmarks: which core does what, what a process has used, how fast the disk syncs.

The server under test has one core and the load generator another, for every system alike, so that neither steals time
from the other and a rate is a rate per core.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_SECTOR_BYTES = 512  # what the kernel counts in, whatever the disk has
_CORES = sorted(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Cores:
    """Who runs where. With a single core all share it, and the report says so."""

    server: frozenset[int]
    generator: frozenset[int]
    everything: frozenset[int]

    @property
    def separate(self) -> bool:
        return not self.server & self.generator


def assign_cores() -> Cores:
    everything = frozenset(_CORES)
    if len(_CORES) < 2:
        return Cores(everything, everything, everything)
    return Cores(frozenset(_CORES[:1]), frozenset(_CORES[1:2]), everything)


def cpu_seconds(pid: int) -> float:
    """What a process and its children have used up to now."""
    seconds = 0.0
    for one in [pid, *_descendants(pid)]:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # a child that just ended; its share is small
        seconds += (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    return seconds


def disk_bytes() -> int:
    """What was written to the disks of this machine since it started, by anyone. What the kernel notes of a process is
    no measure: it takes a large page in memory for written as a whole when a few bytes of it were."""
    disks = [disk for disk in Path("/sys/block").iterdir() if (disk / "device").exists()]
    return sum(int((disk / "stat").read_text().split()[6]) * _SECTOR_BYTES for disk in disks)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            found += [child, *_descendants(child)]
    return found


def busy_seconds() -> float:
    """CPU time that all cores together have spent on anything, since the machine started."""
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND


def stolen_seconds() -> float:
    """CPU time that the host of this machine gave to others while it was wanted here, since the machine started."""
    return int(Path("/proc/stat").read_text().split()[8]) / _TICKS_PER_SECOND


class Watch:
    """What was used since its making: by the server, by this process, and by what is no part of the measurement."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpu_seconds = cpu_seconds(pid)
        self._disk_bytes = disk_bytes()
        self._generator_seconds = time.process_time()
        self._busy_seconds = busy_seconds()
        self._began = time.perf_counter()

    def notes(self, message_count: int, *, generator_seconds: float | None = None) -> dict[str, float]:
        """`generator_seconds`: what generators have used that are processes of their own."""
        took = time.perf_counter() - self._began
        server_seconds = cpu_seconds(self._pid) - self._cpu_seconds
        if generator_seconds is None:
            generator_seconds = time.process_time() - self._generator_seconds
        elsewhere = busy_seconds() - self._busy_seconds - server_seconds - generator_seconds
        return {
            "server_us_per_message": server_seconds * 1e6 / message_count,
            "bytes_written_per_message": (disk_bytes() - self._disk_bytes) / message_count,
            "generator_us_per_message": generator_seconds * 1e6 / message_count,
            "generator_busy": generator_seconds / took,
            "elsewhere_busy": max(0.0, elsewhere) / took,
        }


def resident_bytes(pid: int) -> int:
    """Of a process and its children, what each has for itself alone and its share of what they have in common."""
    total = 0
    for one in [pid, *_descendants(pid)]:
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    if not total:
        raise ProcessLookupError(f"process {pid} has no memory: it has ended")
    return total


def children(pid: int) -> list[int]:
    """In the order in which they were started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def sockets(pid: int) -> set[str]:
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found.add(os.readlink(fd))
    return found


def connected_process(port: int, pids: Sequence[int]) -> int:
    """Which of these has the other end of a connection from this port."""
    for _ in range(100):  # the kernel's list may pass over one while others come and go
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        ends = {f"socket:[{row[9]}]" for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"}
        for pid in pids:
            if not ends.isdisjoint(sockets(pid)):
                return pid
        time.sleep(0.01)
    raise ProcessLookupError(f"none of {pids} has the connection from port {port}")


def sync_ms(folder: Path, *, size_bytes: int = 4096, rounds: int = 100) -> float:
    """The median time of appending a little and fdatasync: the floor under every durable answer on this disk."""
    taken: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        block = os.urandom(size_bytes)
        for _ in range(rounds):
            began = time.perf_counter()
            file.write(block)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def describe(folder: Path, cores: Cores, against: Path | None = None) -> dict[str, object]:
    other = {} if against is None else {"against": _commit(against)}
    return {
        "cpu": _cpu_model(),
        "cores": len(cores.everything),
        "pinned": cores.separate,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "commit": _commit(Path(__file__).parent),
        **other,
        "sync_ms": round(sync_ms(folder), 3),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"
