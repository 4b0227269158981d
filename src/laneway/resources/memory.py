"""How much memory there is and how much is used, and the mark above which publishers are held back.

What counts is the resident set of the process, as the kernel counts it when it decides whom to kill. Consumers go on,
so it falls again; publishers are let in again once it is well below the mark, so that they do not flicker.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("laneway.memory")

DEFAULT_SHARE = 0.6  # of what there is
_ENOUGH_SHARE = 0.9  # of the mark: publishers are let in again below it
_LOOK_S = 0.25
_TRIM_LOOKS = 20  # between attempts to give back to the system what is free

_CGROUPS = Path("/sys/fs/cgroup")
_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2, of version 1


def available_bytes(own_cgroups: Path = Path("/proc/self/cgroup"), mounted: Path = _CGROUPS) -> int:
    """What the machine has, or less if this process runs in a container that may use less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        lines = own_cgroups.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            root = mounted / "memory" if controllers else mounted
            limits += _limits(root, path.strip("/"))
    return min(limits)


def _limits(root: Path, path: str) -> list[int]:
    """Of a control group and all above it. In a container its own group is often mounted as the root."""
    found = []
    folder = root / path
    while True:
        for name in _LIMIT_FILES:
            try:
                found.append(int((folder / name).read_text()))
            except (OSError, ValueError):  # not there, or "max"
                pass
        if folder == root:
            return found
        folder = folder.parent


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _trim() -> None:
    """Give back what is free: the allocator keeps it otherwise, and it counts as used."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class MemoryWatch:
    """`on_change` is told when memory becomes short, and when it no longer is."""

    def __init__(
        self, most_bytes: int, on_change: Callable[[bool], None], used_bytes: Callable[[], int] = resident_bytes
    ) -> None:
        self._most_bytes = most_bytes
        self._on_change = on_change
        self._used_bytes = used_bytes
        self._looks = 0  # since memory is short
        self._trimming: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_short = False

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look_again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_again(self) -> None:
        self.look()
        if self.is_short:
            if self._looks % _TRIM_LOOKS == 0:
                self._trimming = asyncio.get_running_loop().run_in_executor(None, _trim)
            self._looks += 1
        self.start()

    def look(self) -> None:
        try:
            used_bytes = self._used_bytes()
        except OSError:  # no descriptor for the moment
            return
        if not self.is_short and used_bytes > self._most_bytes:
            log.warning(
                "memory is short: %d MiB are used, max_memory_bytes is %d MiB; publishers wait, consumers go on",
                used_bytes >> 20,
                self._most_bytes >> 20,
            )
            self._change(True)
        elif self.is_short and used_bytes < self._most_bytes * _ENOUGH_SHARE:
            log.info("memory is no longer short: %d MiB are used; publishers go on", used_bytes >> 20)
            self._change(False)

    def _change(self, is_short: bool) -> None:
        self.is_short = is_short
        self._looks = 0
        self._on_change(is_short)
