"""What callers of a server of several partitions were told, and what its partitions must hold after a start because of
that. What is done at once wherever it happens is a Deed: all of it, or nothing.

    asked ──answered──▶ done          what it published is there until it is acked, what it acked is gone
      ├─ refused ─────▶ undone        nothing of it is there
      └─ outcome not known            one or the other: looked up once all partitions have started
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from .loop import Clock

#: What a transaction settles elsewhere is held for it so long (spreading.RESERVED_MS). After that it may come again.
HELD_FOR_IT_MS = 110_000


class Copy:
    """One message in one queue."""

    __slots__ = ("acked_by", "born", "gone", "key", "line", "order", "seen")

    def __init__(self, key: bytes, born: Deed, line: tuple[int, int] | None, order: int) -> None:
        self.key = key
        self.born = born
        self.line = line  # of those who have the same one, it keeps the order; None: it is not known
        self.order = order
        self.seen = False  # by a consumer
        self.gone = False
        self.acked_by: list[Deed] = []  # those that may have

    def __repr__(self) -> str:
        return f"<{self.key[:24]!r}, {self.born.status}, gone {self.gone}, seen {self.seen}>"


class Deed:
    __slots__ = ("acks", "asked_ms", "born", "is_sure", "status")

    def __init__(self, asked_ms: int, acks: Sequence[Copy] = (), *, is_sure: bool = True) -> None:
        self.asked_ms = asked_ms
        self.born: list[Copy] = []
        self.acks = list(acks)
        self.is_sure = is_sure  # all that it acks was held when it was asked
        self.status = "asked"
        for copy in acks:
            copy.acked_by.append(self)


class CrossingLedger:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lease_orders: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.incarnations: Counter[int] = Counter()  # of each partition
        self.copies: dict[bytes, Copy] = {}
        self.open: list[Deed] = []
        self.queues: set[str] = set()  # that are there for certain
        self.order = 0

    def crash(self, partition: int) -> None:
        self.incarnations[partition] += 1

    # What callers do

    def deed(
        self,
        keys: Sequence[bytes] = (),
        acks: Sequence[Copy] = (),
        *,
        line: tuple[int, int] | None = None,
        is_sure: bool = True,
    ) -> Deed:
        deed = Deed(self._clock.monotonic_ms(), acks, is_sure=is_sure)
        for key in keys:
            self.order += 1
            copy = self.copies[key] = Copy(key, deed, line, self.order)
            deed.born.append(copy)
        self.open.append(deed)
        return deed

    def done(self, deed: Deed) -> None:
        assert deed.status != "undone", f"{deed.born[:1]} was refused, and is done"
        if deed.status == "asked":
            self.open.remove(deed)
        deed.status = "done"
        if deed.is_sure and self._clock.monotonic_ms() - deed.asked_ms < HELD_FOR_IT_MS:
            for copy in deed.acks:
                copy.gone = True

    def undone(self, deed: Deed) -> None:
        if deed.status != "asked":
            return
        self.open.remove(deed)
        deed.status = "undone"
        seen = [copy for copy in deed.born if copy.seen]
        assert not seen, f"{seen[0]} was refused, and somebody has got it"
        for copy in deed.acks:
            copy.acked_by.remove(deed)

    def asked_again(self, deed: Deed) -> None:
        """It was not done, and may be now."""
        if deed.status == "undone":
            deed.status = "asked"
            for copy in deed.born:
                copy.gone = False
            self.open.append(deed)

    def delivered(self, key: bytes) -> Copy:
        copy = self.copies.get(key)
        assert copy is not None, f"there is a message that nobody sent: {key!r}"
        assert copy.born.status != "undone", f"{copy} was refused, and is delivered"
        assert not copy.gone, f"{copy} was delivered after its ack was answered"
        copy.seen = True
        return copy

    # What is there after a start

    def look_up(self, found: set[bytes], acked: set[bytes]) -> None:
        """`acked`: messages that are there, and whose ack is on its way. It may come too late."""
        for key in found:
            copy = self.copies.get(key)
            assert copy is not None, f"there is a message that nobody sent: {key!r}"
            assert copy.born.status != "undone", f"{copy} was refused, and is there"
            assert not copy.gone, f"{copy} came back"
        for deed in self.open:
            self._look_up_one(deed, found)
        self.open.clear()
        for copy in self.copies.values():
            if copy.born.status == "undone" or copy.gone:
                continue
            if copy.key in acked:
                copy.acked_by = [Deed(0, is_sure=False)]
                continue
            if copy.key not in found:
                assert copy.acked_by, f"{copy} was confirmed and is lost"
                copy.gone = True
            copy.acked_by.clear()

    def _look_up_one(self, deed: Deed, found: set[bytes]) -> None:
        there = [copy for copy in deed.born if copy.seen or copy.key in found]
        absent = [copy for copy in deed.born if not (copy.seen or copy.key in found)]
        assert not (there and absent), f"of what was to be whole {there[0]} is there, {absent[0]} is not"
        # Whoever else may have acked it would explain that it is not there.
        sole = [copy for copy in deed.acks if copy.acked_by == [deed] and not copy.gone]
        left = [copy for copy in sole if copy.key in found]
        acked = [copy for copy in sole if copy.key not in found]
        age_ms = self._clock.monotonic_ms() - deed.asked_ms
        if there and deed.is_sure and age_ms < HELD_FOR_IT_MS:
            assert not left, f"of one transaction {there[0]} is there, and the ack of {left[0]} is not"
        if deed.born and not there:
            assert not acked, f"of one transaction the ack of {acked[0:1]} is there, and {absent[0]} is not"
        if not deed.born and deed.is_sure and age_ms < HELD_FOR_IT_MS:
            assert not (left and acked), f"of one transaction the ack of {acked[0:1]} is there, that of {left[0:1]} not"
        deed.status = "undone" if deed.born and not there else "done"

    def forgive(self, found: set[bytes]) -> None:
        """The end of history may be lost, as not every commit was to be synced: begin with what is there."""
        for deed in self.open:
            deed.status = "done" if any(copy.key in found for copy in deed.born) else "undone"
        self.open.clear()
        for copy in self.copies.values():
            copy.gone = copy.key not in found
            copy.acked_by.clear()
            if not copy.gone:
                copy.born.status = "done"
