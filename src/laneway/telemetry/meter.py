"""What a partition counts beside the totals of its queues: what the clients of each protocol ask for, and how long
messages take from one step to the next.

It is told of batches, never of single messages, and only counts; whoever wants to see it looks (broker/survey.py).
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from laneway.telemetry.histograms import COMMIT_BYTES, DISK_SECONDS, WAITING_SECONDS, Buckets, Histogram

#: Everything is counted, but not everything is timed: no more than so many commits and leases of batches a second.
TIMED_EVERY_S = 0.005
#: Of a timed lease one message is followed until it is acknowledged. So many are at once,
MAX_FOLLOWED = 10_000
#: and one that was followed for so long is given up: its lease ended in some other way.
FOLLOWED_S = 4 * 3600.0


class ErrorCounts:
    """Requests of a process's clients that were answered with an error: whose mistake it was, and which."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()  # protocol, client or server, code

    def note(self, protocol: str, code: str, *, is_servers: bool) -> None:
        self.counts[protocol, "server" if is_servers else "client", code] += 1


class MeterReading(msgspec.Struct):
    """The counts, as values. What a partition does for others, or for itself, has no protocol, and is left out."""

    messages: dict[str, dict[str, int]]  # protocol -> operation -> messages
    refused: dict[str, dict[str, int]]  # protocol -> code of the error -> messages
    publish: dict[str, Buckets]
    waiting: dict[str, Buckets]
    processing: dict[str, Buckets]
    commit_bytes: Buckets
    commit_seconds: Buckets


class Meter:
    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self.now_s = now_s
        self.messages: Counter[tuple[str, str]] = Counter()  # protocol and operation -> messages, for all to add to
        self._refused: Counter[tuple[str, str]] = Counter()
        self._timed: dict[str, int] = {}  # protocol -> messages published, up to the last commit that was timed
        self._durable = defaultdict[str, Histogram](partial(Histogram, DISK_SECONDS))
        self._waiting = defaultdict[str, Histogram](partial(Histogram, WAITING_SECONDS))
        self._processing = defaultdict[str, Histogram](partial(Histogram, WAITING_SECONDS))
        self._commit_bytes, self._commit_seconds = Histogram(COMMIT_BYTES), Histogram(DISK_SECONDS)
        self.followed: dict[int, tuple[float, str]] = {}  # number of a leased message -> since when, by which protocol
        self.commit_due_s = self.lease_due_s = 0.0  # when the next one may be timed
        self._turn = 0

    def refused(self, protocol: str, code: str, count: int = 1) -> None:
        self._refused[protocol, code] += count

    def committed(self, byte_count: int, began_s: float, sealed_s: float) -> None:
        """A commit that is to be timed is durable. `began_s`: when its first request came, or a little before. All
        messages published since the last one that was timed count as having waited so long."""
        now_s = self.now_s()
        self.commit_due_s = now_s + TIMED_EVERY_S
        self._commit_bytes.add(byte_count)
        self._commit_seconds.add(now_s - sealed_s)
        for (protocol, operation), count in self.messages.items():
            if operation == "publish":
                more = count - self._timed.get(protocol, 0)
                self._timed[protocol] = count
                if more:
                    self._durable[protocol].add(now_s - began_s, more)

    def leased(
        self, protocol: str, seqs: Sequence[int], receives: Sequence[int], published_at_ms: Sequence[int], now_ms: int
    ) -> None:
        """A lease that is to be timed. How long those waited that are leased for the first time, and one to follow:
        now the first of them, now the last, now one between."""
        if receives.count(1) == len(receives):
            self._waiting[protocol].add_since(now_ms, published_at_ms)
        else:
            first = [at_ms for at_ms, times in zip(published_at_ms, receives, strict=True) if times == 1]
            if first:
                self._waiting[protocol].add_since(now_ms, first)
        now_s = self.now_s()
        self.lease_due_s = now_s + TIMED_EVERY_S
        if len(self.followed) >= MAX_FOLLOWED:
            self.followed = {seq: since for seq, since in self.followed.items() if now_s - since[0] < FOLLOWED_S}
            if len(self.followed) >= MAX_FOLLOWED:
                self.lease_due_s = now_s + 1
                return
        self._turn += 1
        self.followed[seqs[self._turn * 7919 % len(seqs)]] = now_s, protocol

    def acked(self, seqs: Sequence[int]) -> None:
        """Some of these may be followed."""
        followed = self.followed
        if not followed.keys().isdisjoint(seqs):
            now_s = self.now_s()
            for seq in followed.keys() & set(seqs):
                since_s, protocol = followed.pop(seq)
                self._processing[protocol].add(now_s - since_s)

    def let_go(self, seqs: Sequence[int]) -> None:
        """Their leases ended in another way."""
        for seq in self.followed.keys() & set(seqs):
            del self.followed[seq]

    def reading(self) -> MeterReading:
        return MeterReading(
            messages=_by_protocol(self.messages),
            refused=_by_protocol(self._refused),
            publish=_buckets(self._durable),
            waiting=_buckets(self._waiting),
            processing=_buckets(self._processing),
            commit_bytes=self._commit_bytes.buckets(),
            commit_seconds=self._commit_seconds.buckets(),
        )


def _by_protocol(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (protocol, what), count in counts.items():
        if protocol:
            found.setdefault(protocol, {})[what] = count
    return found


def _buckets(histograms: Mapping[str, Histogram]) -> dict[str, Buckets]:
    return {protocol: histogram.buckets() for protocol, histogram in histograms.items() if protocol}
