"""Cursors: names under which readers of the history say how far they are, so that what they have not read is kept.

A cursor is a document of the journal and survives a restart. It cannot fill the disk: when history that nobody but
readers needs outgrows its limit, or the disk is short, the cursor furthest behind is lost, with an alarm.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import msgspec

from laneway.broker.values import Alarm, CursorInfo
from laneway.core.events import DocumentPut, DocumentRemoved
from laneway.core.settings import check_queue_name
from laneway.errors import Conflict, CursorLost, CursorNotFound, InvalidInput, JournalGap, LimitExceeded
from laneway.journal.interface import Held

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.broker")

COLLECTION = "cursors"
MAX_CURSORS = 1_000
WARNING_SHARE = 0.8  # of the limit
PATIENCE_MS = 2_000  # so long after a cursor was given up for the disk's sake, it is looked whether that was enough


class Cursor(msgspec.Struct, frozen=True):
    """As it is kept in the journal: history from commit `position` on is wanted."""

    position: int
    updated_at_ms: int
    state: Literal["ok", "lost"] = "ok"


class Cursors:
    def __init__(self, partition: Partition, *, limit_bytes: int, history_ms: int) -> None:
        self._partition = partition
        self._limit_bytes = limit_bytes
        self._history_ms = history_ms
        self._cursors: dict[str, Cursor] = {}
        self._holding: dict[str, int] = {}  # positions that are kept: of a cursor that moves on, the old one until then
        self._since_ms = 0  # a later time than history_ms says, while there is no room for all of it
        self._given_up_ms = 0
        self._looked_ms = 0
        self._jumped_ms = 0  # how far the wall clock jumped ahead while this ran: so much older the history looks
        self._alarms: dict[str, Alarm] = {}

    def start(self) -> None:
        """Right after recovery, before anything is dropped."""
        for name, document in self._partition.documents(COLLECTION).items():
            self._cursors[name] = msgspec.json.decode(document, type=Cursor)
        self._holding = {name: cursor.position for name, cursor in self._cursors.items() if cursor.state == "ok"}
        first, end = self._hold(), self._partition.engine.journal.history.end().position
        for name, position in list(self._holding.items()):
            if position < first:
                self._lose(name, f"the history is there only from commit {first} on")
            elif position > end:
                self._lose(name, f"the history ends before commit {end}: its end was lost in a crash")
        for name, cursor in self._cursors.items():
            if cursor.state == "lost":
                self._raise(f"cursor_lost:{name}", "alarm", _lost_words(name, cursor, first))
        self._hold()

    @property
    def is_holding(self) -> bool:
        return bool(self._holding) or self._history_ms > 0

    # What readers ask for

    def all(self) -> list[CursorInfo]:
        held = self._spare()
        return [self._info(name, cursor, held) for name, cursor in sorted(self._cursors.items())]

    def get(self, name: str) -> CursorInfo:
        return self._info(name, self._find(name), self._spare())

    async def put(self, name: str, position: int, *, rewind: bool = False) -> tuple[CursorInfo, bool]:
        """Keep history from a position on, and no longer what is before it; and whether the cursor is new."""
        partition = self._partition
        partition.begin_change(adds=False)
        check_queue_name(name, field="cursor", noun="the name of a cursor")
        known = self._cursors.get(name)
        end = partition.engine.journal.history.end().position
        if not 1 <= position <= end:
            raise InvalidInput(
                f"history ends with commit {end - 1}, so a position is from 1 to {end}, not {position}",
                field="position",
            )
        if known is None and len(self._cursors) >= MAX_CURSORS:
            raise LimitExceeded(f"there are {MAX_CURSORS} cursors already; delete those nobody uses", field="cursor")
        if known is not None and not rewind:
            self._check_forward(name, known, position)
        self._keep(name, position)
        cursor = self._cursors[name] = Cursor(position, partition.now())
        partition.engine.run(iter([DocumentPut(partition.now(), COLLECTION, name, msgspec.json.encode(cursor))]))
        self._clear(f"cursor_lost:{name}")
        await partition.durable()
        if self._cursors.get(name) is cursor:  # only now may go what is before it
            self._holding[name] = position
            self._let_go()
        return self._info(name, cursor, self._spare()), known is None

    async def delete(self, name: str) -> None:
        partition = self._partition
        partition.begin_change(adds=False)
        self._find(name)
        del self._cursors[name]
        partition.engine.run(iter([DocumentRemoved(partition.now(), COLLECTION, name)]))
        self._clear(f"cursor_lost:{name}")
        await partition.durable()
        if name not in self._cursors:
            self._holding.pop(name, None)
            self._let_go()

    def _find(self, name: str) -> Cursor:
        try:
            return self._cursors[name]
        except KeyError:
            raise CursorNotFound(f"there is no cursor {name!r}", field="cursor") from None

    def _check_forward(self, name: str, known: Cursor, position: int) -> None:
        if known.state == "lost":
            first = self._hold()
            raise CursorLost(_lost_words(name, known, first), first_position=first)
        if position < known.position:
            raise Conflict(
                f"cursor {name!r} is at {known.position} and moves forward only; to go back to {position}, if it is "
                "still there, ask for it with rewind",
                field="position",
            )

    def _keep(self, name: str, position: int) -> None:
        """From now on, what is at and behind this position is not dropped; JournalGap if it was already."""
        before = self._holding.get(name)
        self._holding[name] = position if before is None else min(before, position)
        first = self._hold()
        if position >= first:
            return
        if before is None:
            del self._holding[name]
        else:
            self._holding[name] = before
        self._hold()
        raise JournalGap(
            f"commit {position} has been dropped; history is kept from commit {first} on",
            field="position",
            first_position=first,
        )

    def _info(self, name: str, cursor: Cursor, spare: list[tuple[Held, int]]) -> CursorInfo:
        lag = max(self._partition.engine.journal.history.end().position - cursor.position, 0)
        held = sum(one.byte_count for one, until in spare if until > cursor.position) if cursor.state == "ok" else 0
        return CursorInfo(name, cursor.position, lag, held, cursor.updated_at_ms, cursor.state)

    # Holding history, and letting it go

    def _hold(self) -> int:
        """Tell the journal what to keep; the first position of the history that is there."""
        since_ms = self._wanted_since_ms() if self._history_ms else None
        return self._partition.engine.journal.hold(min(self._holding.values(), default=None), since_ms)

    def _wanted_since_ms(self) -> int:
        return max(self._partition.now() - self._history_ms - self._jumped_ms, self._since_ms)

    def keep(self, limit_bytes: int, history_ms: int) -> None:
        """Change how much is kept for readers."""
        self._limit_bytes, self._history_ms = limit_bytes, history_ms
        self._let_go()

    def clock_jumped(self, by_ms: int) -> None:
        """A jump ahead makes no history older than it is."""
        self._jumped_ms = max(0, self._jumped_ms + by_ms)

    def _let_go(self) -> None:
        self._hold()
        self._partition.upkeep.drop_soon()
        self.look()

    def _spare(self) -> list[tuple[Held, int]]:
        """The extents that are kept for nobody but readers, oldest first, each with the position where it ends."""
        upkeep = self._partition.upkeep
        held = self._partition.engine.journal.held()
        ends = [one.first_position for one in held[1:]]
        if held:
            ends.append(self._partition.engine.journal.history.end().position)
        return [(one, end) for one, end in zip(held, ends, strict=True) if upkeep.is_spare(one.extent, one.byte_count)]

    def look(self) -> None:
        """Called from time to time: is what is kept for readers within its limit, and is there room on the disk?"""
        if not self.is_holding:
            self._clear("history_limit", "history_cut")
            return
        if self._partition.engine.closed:
            return
        self._looked_ms = self._partition.clock.uptime_ms()
        self._hold()
        has_room = self._partition.engine.journal.has_room()
        spare = [one for one, _ in self._spare()]
        total = sum(one.byte_count for one in spare)
        if total > self._limit_bytes:
            self._cut(spare, total)
            total = sum(one.byte_count for one, _ in self._spare())
        elif not has_room and spare and self._partition.clock.uptime_ms() >= self._given_up_ms + PATIENCE_MS:
            self._make_room()
        elif self._since_ms and has_room and total < self._limit_bytes * WARNING_SHARE:
            self._since_ms = 0
            self._clear("history_cut")
        if total >= self._limit_bytes * WARNING_SHARE:
            self._raise(
                "history_limit",
                "warning",
                f"{total} bytes of history are kept for readers, {self._limit_bytes} are allowed: at the limit the "
                "cursor furthest behind is lost (`laneway cursor list`)",
            )
        else:
            self._clear("history_limit")

    def look_at_disk(self) -> None:
        """Called whenever somebody was refused for want of space."""
        if self.is_holding and self._partition.clock.uptime_ms() >= self._looked_ms + PATIENCE_MS // 8:
            self.look()

    def _cut(self, spare: list[Held], total: int) -> None:
        """What is oldest goes until the rest is within the limit, whoever kept it."""
        for one, following in zip(spare, [*spare[1:], None], strict=True):
            if total <= self._limit_bytes:
                break
            total -= one.byte_count
            first = following.first_position if following else self._partition.engine.journal.history.end().position
            self._give_up(first, following, f"more than {self._limit_bytes} bytes of history would have to be kept")
        self._partition.upkeep.drop_soon()

    def _make_room(self) -> None:
        """The disk is short: all goes that is kept because it is young; next time, the cursor furthest behind."""
        self._given_up_ms = self._partition.clock.uptime_ms()
        if self._history_ms and self._cut_time(self._partition.now()):
            self._hold()
        elif self._holding:
            self._give_up(min(self._holding.values()) + 1, None, "the disk is short of space")
        self._partition.upkeep.drop_soon()

    def _give_up(self, first: int, following: Held | None, why: str) -> None:
        """No longer keep what is before a position."""
        for name in [name for name, position in self._holding.items() if position < first]:
            self._lose(name, why)
        if self._history_ms and following is not None:
            self._cut_time(following.first_time_ms)
        self._hold()

    def _cut_time(self, since_ms: int) -> bool:
        """Keep less than history_seconds asks for; False if that would change nothing."""
        if since_ms <= self._wanted_since_ms():
            return False
        self._since_ms = since_ms
        self._raise(
            "history_cut",
            "alarm",
            f"there is no room for the history of the last {self._history_ms // 1000} seconds, as history_seconds asks "
            "for: the oldest of it is dropped",
        )
        return True

    def _lose(self, name: str, why: str) -> None:
        self._holding.pop(name, None)
        if name not in self._cursors:
            return  # it is being deleted
        cursor = self._cursors[name] = msgspec.structs.replace(self._cursors[name], state="lost")
        partition = self._partition
        partition.engine.run(iter([DocumentPut(partition.now(), COLLECTION, name, msgspec.json.encode(cursor))]))
        partition.committer.touch()
        self._raise(f"cursor_lost:{name}", "alarm", f"cursor {name!r} at commit {cursor.position} is lost: {why}")

    # Alarms

    def alarms(self) -> list[Alarm]:
        return sorted(self._alarms.values(), key=lambda alarm: (alarm.since_ms, alarm.name))

    def _raise(self, name: str, level: Literal["warning", "alarm"], message: str) -> None:
        known = self._alarms.get(name)
        since_ms = known.since_ms if known is not None else self._partition.now()
        self._alarms[name] = Alarm(name, level, message, since_ms)
        if known is None:
            log.log(logging.ERROR if level == "alarm" else logging.WARNING, "%s", message)

    def _clear(self, *names: str) -> None:
        for name in names:
            if self._alarms.pop(name, None) is not None:
                log.info("alarm %s is over", name)


def _lost_words(name: str, cursor: Cursor, first: int) -> str:
    return (
        f"cursor {name!r} at commit {cursor.position} is lost: history behind it was dropped, and is kept from commit "
        f"{first} on. Set it there with rewind, or delete it"
    )
