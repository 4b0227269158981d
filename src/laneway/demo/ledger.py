"""The demo's own count of what became of its messages, by message id: nothing here comes from the server's statistics.

A message that was published and neither acked nor rejected nor delivered for the last time must have expired (it had a
time to live) or been pushed out (its queue is bounded). Where neither can be, it is lost, and the demo says so.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass
class Tally:
    """What happened in one queue. The names are those of the server's totals, where it has such a total."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    released: int = 0
    rejected: int = 0
    abandoned: int = 0  # deliveries that their consumer never settled
    stale: int = 0  # settled too late; refused
    exhausted: int = 0  # out of tries
    expired: int = 0
    overflowed: int = 0
    lost: int = 0

    @property
    def dead_lettered(self) -> int:
        return self.rejected + self.exhausted + self.expired + self.overflowed

    def as_dict(self) -> dict[str, int]:
        return {**asdict(self), "dead_lettered": self.dead_lettered}


class Ledger:
    """One queue's messages. Used by several threads; a message may be acked before its publisher hears of it."""

    def __init__(self, max_receives: int, *, is_bounded: bool) -> None:
        self._max_receives = max_receives
        self._is_bounded = is_bounded
        self._lock = threading.Lock()
        self._published: dict[str, bool] = {}  # id -> whether it has a time to live
        self._ended: set[str] = set()  # acked or rejected
        self._last_tries: set[str] = set()  # delivered for the last time
        self._counts = Tally()

    def published(self, message_id: str, *, is_expiring: bool) -> None:
        with self._lock:
            if message_id in self._published:
                raise AssertionError(f"the server gave the id {message_id} to two messages")
            self._published[message_id] = is_expiring
            self._counts.published += 1

    def delivered(self, message_id: str, receive_count: int) -> None:
        with self._lock:
            self._counts.delivered += 1
            self._counts.redelivered += receive_count > 1
            if receive_count >= self._max_receives:
                self._last_tries.add(message_id)

    def acked(self, message_id: str) -> None:
        with self._lock:
            self._end(message_id)
            self._counts.acked += 1

    def rejected(self, message_id: str) -> None:
        with self._lock:
            self._end(message_id)
            self._counts.rejected += 1

    def released(self, receive_count: int) -> None:
        """Given back; after the last try there is no way back, and it is a dead letter."""
        with self._lock:
            self._counts.released += receive_count < self._max_receives

    def abandoned(self) -> None:
        with self._lock:
            self._counts.abandoned += 1

    def refused(self) -> None:
        """A settlement came too late: the lease was over."""
        with self._lock:
            self._counts.stale += 1

    def _end(self, message_id: str) -> None:
        if message_id in self._ended:
            raise AssertionError(f"the server took two ends for the message {message_id}")
        self._ended.add(message_id)

    def so_far(self) -> Tally:
        with self._lock:
            return Tally(**asdict(self._counts))

    def balance(self) -> Tally:
        """The final count, once the queue is empty: whatever has no other end has one of those only the server sees."""
        tally = self.so_far()
        for message_id, is_expiring in self._published.items():
            if message_id in self._ended:
                continue
            if message_id in self._last_tries:
                tally.exhausted += 1
            elif is_expiring:
                tally.expired += 1
            elif self._is_bounded:
                tally.overflowed += 1
            else:
                tally.lost += 1
        return tally


#: What the server counts too, under the same name.
SHARED = (
    *("published", "delivered", "redelivered", "acked", "released"),
    *("rejected", "expired", "overflowed", "dead_lettered"),
)


def disagreements(tallies: Mapping[str, Tally], totals: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Where the demo's count and the server's totals, both by queue, say different things; empty when all is well."""
    found = []
    for queue, tally in tallies.items():
        ours = tally.as_dict()
        found += [
            f"{queue}: {name} is {ours[name]} by the demo's count, {totals[queue][name]} by the server's"
            for name in SHARED
            if ours[name] != totals[queue][name]
        ]
        if tally.lost:
            found.append(f"{queue}: {tally.lost} messages were confirmed and never seen again")
    return found
