"""How long the turns of the loop take. One thread does everything, so a turn that takes seconds keeps everybody
waiting: those above a bound are counted, and logged with what they did.

A timer on the loop stamps the time. A thread beside it looks at the stamp; once that is late, it notes where the loop's
thread is. The next stamp knows how late it was. So a request costs nothing: no code on its way takes part.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import msgspec

log = logging.getLogger("laneway.turns")

SLOW_MS = 100
_STAMP_S = 0.025  # a turn is seen to be this much shorter than it was, at most
_LOOK_S = 0.05
_PACKAGE = "laneway."
_MOST_FRAMES = 100
_MOST_FUNCTIONS = 5  # named in the log, the innermost ones


class LoopTurns(msgspec.Struct):
    """The counts, for whoever shows them."""

    slow_count: int = 0  # turns of SLOW_MS and more
    slow_ms: int = 0  # that they took, together
    longest_ms: int = 0
    longest_busy_ms: int = 0  # the most that the loop's thread computed in a slow turn; the rest it waited

    def counts(self) -> dict[str, object]:
        """As they are shown."""
        return {"slow_turns": self.slow_count, "longest_turn_ms": self.longest_ms}


class TurnWatch:
    """Watches the loop that it is started on."""

    def __init__(self, turns: LoopTurns) -> None:
        self._turns = turns
        self._seen: Counter[str] = Counter()  # what the present turn was seen doing, since it is slow
        self._stamped_s = 0.0
        self._busy_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stamped_s = time.monotonic()
        self._busy_s = time.thread_time()
        self._timer = self._loop.call_later(_STAMP_S, self._stamp)
        watcher = threading.Thread(target=self._look, args=(threading.get_ident(),), name="laneway-turns", daemon=True)
        watcher.start()

    def stop(self) -> None:
        self._ended.set()
        if self._timer is not None:
            self._timer.cancel()

    def _stamp(self) -> None:
        """On the loop. How late this is says how long the turn before it took."""
        now_s, busy_s = time.monotonic(), time.thread_time()
        late_ms = int((now_s - self._stamped_s - _STAMP_S) * 1000)
        seen, self._seen = self._seen, Counter()  # also of a turn that was not slow in the end
        if late_ms >= SLOW_MS:
            self._note(late_ms, int((busy_s - self._busy_s) * 1000), seen)
        self._stamped_s, self._busy_s = now_s, busy_s
        self._timer = self._loop.call_later(_STAMP_S, self._stamp)

    def _note(self, took_ms: int, busy_ms: int, seen: Counter[str]) -> None:
        turns = self._turns
        turns.slow_count += 1
        turns.slow_ms += took_ms
        turns.longest_ms = max(turns.longest_ms, took_ms)
        turns.longest_busy_ms = max(turns.longest_busy_ms, busy_ms)
        what = seen.most_common(1)[0][0] if seen else "what it did was over before it was seen"
        log.warning("a turn of the loop took %d ms, %d ms of it computing: %s", took_ms, busy_ms, what)

    def _look(self, thread: int) -> None:
        while not self._ended.wait(_LOOK_S):
            if time.monotonic() - self._stamped_s > SLOW_MS / 1000:
                frame = sys._current_frames().get(thread)
                if frame is not None:
                    stamped_s, what = self._stamped_s, _what(frame)
                    if stamped_s == self._stamped_s:  # else it is another turn by now
                        self._seen[what] += 1


def _what(innermost: FrameType) -> str:
    """What a thread is doing: its innermost functions, and what those it is working for say of themselves."""
    functions: list[str] = []
    subjects: dict[str, None] = {}
    frame: FrameType | None = innermost
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_PACKAGE):
            functions.append(f"{module.removeprefix(_PACKAGE)}.{frame.f_code.co_qualname}")
            subjects.update(dict.fromkeys(_subjects(frame)))
        frame = frame.f_back
    return f"{'; '.join(subjects) or 'nothing of a client'} (in {' < '.join(functions[:_MOST_FUNCTIONS]) or 'asyncio'})"


def _subjects(frame: FrameType) -> Iterator[str]:
    """Whatever a function works with and can say what it stands for: a request, a connection, a queue."""
    try:
        values = list(frame.f_locals.values())
    except Exception:  # the loop's thread goes on meanwhile
        return
    for value in values:
        count = 1
        if type(value) is list and value:
            count, value = len(value), value[0]
        doing = _doing(value)
        if doing:
            yield doing if count == 1 else f"{doing} and {count - 1} more"


def _doing(value: Any) -> str:
    if not hasattr(type(value), "doing"):
        return ""
    try:
        return str(value.doing())
    except Exception:
        return ""
