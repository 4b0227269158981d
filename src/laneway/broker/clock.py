"""The clock of a partition: time of day that passes as the machine's uptime does, and takes notice when the wall clock
jumps instead of passing.

All times of the state and the journal are read from here. Between two looks only uptime moves it, so whatever somebody
does to the wall clock, a lease of thirty seconds ends after thirty seconds. A look compares it with the wall clock:

    they differ by          what happens
    less than a second      nothing jumped, clocks drift: the difference is made up for, at most 1 % faster or slower
    a second or more        the wall clock jumped. Whoever looks has the state moved along with it (core/stepping.py),
                            and then calls `step`: from there on this is the time of day again
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from laneway.core.stepping import STEP_MS

SLEW_MS = 10  # made up for at one look
LOOK_EVERY_MS = 1000

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Of the clocks that nobody sets, the one that goes on while the machine is suspended, if there is one.
_UPTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def machine_uptime_ns() -> int:
    return time.clock_gettime_ns(_UPTIME)


def boot_id() -> str:
    """What tells one boot of this machine from all others, "" if the system does not say."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


class Clock:
    """`look_every_ms`: how often its owner is to look; 0: never by itself."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        uptime_ns: Callable[[], int] = machine_uptime_ns,
        *,
        boot: str = "",
        look_every_ms: int = LOOK_EVERY_MS,
    ) -> None:
        self.boot = boot
        self.look_every_ms = look_every_ms
        self._wall_ns = wall_ns
        self._uptime_ns = uptime_ns
        self._ahead_ns = wall_ns() - uptime_ns()
        self._last_ms = 0

    @classmethod
    def of_machine(cls) -> Clock:
        return cls(boot=boot_id())

    @classmethod
    def steady(cls, now_ms: Callable[[], int]) -> Clock:
        """One whose wall clock nobody sets."""
        return cls(lambda: now_ms() * 1_000_000, lambda: now_ms() * 1_000_000, look_every_ms=0)

    def now_ms(self) -> int:
        """Milliseconds since 1970; never goes back, but by `step`."""
        now_ms = (self._uptime_ns() + self._ahead_ns) // 1_000_000
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms

    def uptime_ms(self) -> int:
        """For durations that nobody has to know after a restart."""
        return self._uptime_ns() // 1_000_000

    def look(self) -> int:
        """By how many milliseconds the wall clock has jumped; 0 if it has not, and then it is followed."""
        off_ns = self._wall_ns() - (self._uptime_ns() + self._ahead_ns)
        if abs(off_ns) >= STEP_MS * 1_000_000:
            return off_ns // 1_000_000
        most_ns = SLEW_MS * 1_000_000
        self._ahead_ns += max(-most_ns, min(off_ns, most_ns))
        return 0

    def step(self, by_ms: int) -> None:
        """Jump along with the wall clock."""
        self._last_ms += by_ms
        self._ahead_ns += by_ms * 1_000_000
