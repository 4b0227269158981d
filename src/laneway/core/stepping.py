"""What the state does when the clock is set: durations go on, times of day stay.

Times are kept as times of day. When the clock that they are read from jumps, what is left of every lease, delay, time
to live, retention and memory has to stay the same, so all of these times move along. What does not move is a time that
a publisher named: a message for nine o'clock comes when the clock says nine. Part of State.apply.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from laneway.core.events import ClockSet
from laneway.core.table import DELAYED, NAMED_TIME, SLAB_BITS, Slab, Table

if TYPE_CHECKING:
    from laneway.core.state import State

#: By less than this a clock has not been set, it drifts.
STEP_MS = 1000


class ClockMark(msgspec.Struct, frozen=True, array_like=True):
    """Where a clock stood when it was last set: `ahead_ms` is time of day less uptime, in this boot of the machine."""

    boot: str
    ahead_ms: int


def set_clock(state: State, now_ms: int, uptime_ms: int, boot: str) -> Iterator[ClockSet]:
    """The command of a start. In the same boot of the machine, its uptime tells what time it would be had nobody set
    the clock. After another boot only the wall clock knows how long that took; a time before the last one known is
    wrong in any case, and then no time has passed."""
    mark = state.clock
    was_ms = now_ms
    if mark is not None and mark.boot == boot and boot:
        was_ms = mark.ahead_ms + uptime_ms
    was_ms = max(was_ms, state.known_ms)
    yield ClockSet(now_ms, was_ms if abs(was_ms - now_ms) >= STEP_MS else now_ms, uptime_ms, boot)


def clock_set(state: State, e: ClockSet) -> None:
    state.clock = ClockMark(e.boot, e.at_ms - e.uptime_ms)
    if e.at_ms != e.was_ms:
        _ripen(state, e.was_ms)
        _move(state, e.at_ms - e.was_ms)


def jump_in_words(e: ClockSet) -> str:
    by_s = abs(e.at_ms - e.was_ms) / 1000
    return f"the wall clock jumped {by_s:.1f} seconds {'ahead' if e.at_ms > e.was_ms else 'back'}"


def moved(at_ms: int, by_ms: int) -> int:
    """0 means that there is no time, and stays."""
    return max(at_ms + by_ms, 1) if at_ms else 0


def _ripen(state: State, was_ms: int) -> None:
    """Delays that had ended have ended, whatever the clock says from now on. A replay hears of them here."""
    for number, slab in list(state.table.slabs.items()):
        for i in _delayed(slab):
            if slab.due_ms[i] <= was_ms:
                state.ripen(state.queues[slab.queue[i]], ((number << SLAB_BITS) + i,), was_ms)


def _move(state: State, by_ms: int) -> None:
    staying = {
        (number << SLAB_BITS) + i
        for number, slab in state.table.slabs.items()
        for i in _delayed(slab)
        if slab.flags[i] & NAMED_TIME
    }
    _move_messages(state.table, by_ms, staying)
    state.deadlines.move(lambda at_ms: moved(at_ms, by_ms), staying)
    state.keys.move(lambda at_ms: moved(at_ms, by_ms))
    for queue in state.queues.values():
        queue.retention_armed_ms = moved(queue.retention_armed_ms, by_ms)
        queue.dedup = OrderedDict((key, (told, moved(at_ms, by_ms))) for key, (told, at_ms) in queue.dedup.items())
        for rates in queue.rates:
            rates[0] += by_ms // 1000
        for seq in queue.dead:
            story = state.stories[seq]
            state.stories[seq] = msgspec.structs.replace(story, moved_ms=story.moved_ms + by_ms)


def _move_messages(table: Table, by_ms: int, staying: set[int]) -> None:
    for number in list(table.slabs):
        slab = table.owned(number << SLAB_BITS)
        if not slab.live:
            continue
        stay = [(i, slab.since_ms[i], slab.due_ms[i]) for i in _delayed(slab) if (number << SLAB_BITS) + i in staying]
        slab.enqueued_ms = slab.enqueued_ms or slab.since_ms[:]  # is part of ids, so it never changes
        slab.since_ms = array("Q", [moved(at_ms, by_ms) for at_ms in slab.since_ms])
        slab.due_ms = array("Q", [moved(at_ms, by_ms) for at_ms in slab.due_ms])
        for i, since_ms, due_ms in stay:
            slab.since_ms[i], slab.due_ms[i] = since_ms, due_ms


def _delayed(slab: Slab) -> Iterator[int]:
    i = slab.state.find(DELAYED)
    while i >= 0:
        yield i
        i = slab.state.find(DELAYED, i + 1)
