"""Hot: a socket read full of publishes that look alike, or of acks, taken in one loop.

A publish is three frames, and from the second one of its kind on, all but the body is known:

    method frame │ content header frame, with the body's size │ head of the body frame │ body │ 0xCE
    └──────────────────────── a Stamp: these bytes, always the same ─────────┘

So a look-alike costs a comparison and a slice instead of a parse. Bodies are gathered in runs, one for each set of
queues and priority, and handed to the broker together when the read ends, or before the connection does anything else.
No two runs share a lane, so what has one priority stays in order.
A stamp holds while nothing changes that it rests on: routes, permissions, the channel's mode. incoming.py drops them
all as soon as another method comes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from laneway.frontends.amqp.spec import FRAME_END

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

#: So many kinds of publishes are recognised at a time on one connection.
MAX_STAMPS = 64

_FEW, _MANY = 8, 1024  # look-alikes that are looked for at once

_ACK_BYTES = 21
_ACK = struct.Struct(">QB")
_ACK_ROW = struct.Struct(">11sQBB")
_SKIPS = 16


class Run:
    """Bodies of one channel, bound for the same queues with the same priorities, in the order they came."""

    __slots__ = ("add", "blocks", "bodies", "channel", "exchange", "priorities", "queues", "stamp")

    def __init__(self, channel: Channel, exchange: str, queues: tuple[int, ...], priorities: tuple[int, ...]) -> None:
        self.channel = channel
        self.exchange = exchange
        self.queues = queues
        self.priorities = priorities  # in each of the queues
        self.bodies: list[bytes] = []
        self.add = self.bodies.append
        self.blocks: list[tuple[int, bytes]] = []  # from which body on they have which encoded properties
        self.stamp: Stamp | None = None  # of the last body

    def begin(self, stamp: Stamp) -> None:
        self.stamp = stamp
        self.blocks.append((len(self.bodies), stamp.block))

    def props(self) -> list[bytes]:
        """One for each body."""
        if len(self.blocks) == 1:
            return [self.blocks[0][1]] * len(self.bodies)
        ends = [start for start, _ in self.blocks[1:]] + [len(self.bodies)]
        return [block for (start, block), end in zip(self.blocks, ends, strict=True) for _ in range(end - start)]

    def clear(self) -> None:
        self.bodies = []
        self.add = self.bodies.append
        self.blocks = []
        self.stamp = None


class Stamp:
    __slots__ = ("_most", "_row", "block", "following", "prefix", "run", "size", "step")

    def __init__(self, prefix: bytes, size: int, block: bytes, run: Run) -> None:
        self.prefix = prefix
        self.size = size  # of the body
        self.block = block
        self.run = run
        self.following: Stamp | None = None  # the other one that came after it the last time
        self.step = len(prefix) + size + 1
        self._row = struct.Struct(f"{len(prefix)}s{size}sB")
        self._most = _FEW  # so many are looked for at once: more, the more there were the last time

    def rows(self, data: bytes, at: int, count: int) -> tuple[tuple[bytes, ...], tuple[bytes, ...], tuple[int, ...]]:
        """(prefixes, bodies, frame ends), if these were so many look-alikes one after the other."""
        rows = self._row.iter_unpack(memoryview(data)[at : at + count * self.step])
        return tuple(zip(*rows, strict=True))  # type: ignore[return-value]

    def bodies(self, data: bytes, at: int) -> Sequence[bytes]:
        """Those of the look-alikes that stand one after the other from here on; the first is known to be one."""
        count = min((len(data) - at) // self.step, self._most)
        prefixes, bodies, ends = self.rows(data, at, count)
        if prefixes.count(self.prefix) == count and ends.count(FRAME_END) == count:
            self._most = min(2 * self._most, _MANY)
            return bodies
        alike = 1
        while prefixes[alike] == self.prefix and ends[alike] == FRAME_END:
            alike += 1
        self._most = max(alike, _FEW)
        return bodies[:alike]


class LookAlikes:
    """The publishes that one connection is known to send, and what came of them in this read."""

    def __init__(self) -> None:
        self._stamps: dict[bytes, Stamp] = {}
        self._runs: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Run] = {}
        self._lengths: list[int] = []  # of the stamps' prefixes
        self.version = -1  # of the routes that the stamps rest on
        self.has_runs = False
        self.is_waiting = False  # what comes next is a look-alike, and not all of it is here
        self._most = _FEW  # as that of a Stamp, of look-alikes of different kinds
        self._skips = 0  # so often it is not worth a look

    @property
    def is_empty(self) -> bool:
        return not self._stamps

    def learn(self, prefix: bytes, size: int, block: bytes, run: Run) -> None:
        if len(self._stamps) >= MAX_STAMPS:
            self._stamps.clear()
            self._lengths.clear()
        self._stamps[prefix] = Stamp(prefix, size, block, run)
        if len(prefix) not in self._lengths:
            self._lengths.append(len(prefix))

    def run(self, channel: Channel, exchange: str, queues: tuple[int, ...], priorities: tuple[int, ...]) -> Run | None:
        """None if it would share a lane with another run: then these must stay among those in the order of coming."""
        found = self._runs.get((channel.number, queues, priorities))
        if found is None:
            lanes = set(zip(queues, priorities, strict=True))
            for other in self._runs.values():
                if other.channel is channel and not lanes.isdisjoint(zip(other.queues, other.priorities, strict=True)):
                    return None
            found = self._runs[channel.number, queues, priorities] = Run(channel, exchange, queues, priorities)
        return found

    def forget(self) -> None:
        """Something may have changed. Runs must have been taken before."""
        if self._stamps:
            self._stamps.clear()
            self._lengths.clear()
            self._runs.clear()

    def take_runs(self) -> list[Run]:
        """Those that came since the last time, highest priority first."""
        self.has_runs = False
        found = [run for run in self._runs.values() if run.bodies]
        found.sort(key=_priorities, reverse=True)
        return found

    def take(self, data: bytes, at: int) -> int:
        """Take look-alikes off the front; where the first thing begins that is none, or is not all here."""
        size = len(data)
        self.is_waiting = False
        stamp = self._find(data, at)
        while stamp is not None:
            prefix, run = stamp.prefix, stamp.run
            start = at + len(prefix)
            end = start + stamp.size
            if end >= size or data[end] != FRAME_END:
                self.is_waiting = end >= size
                break
            if run.stamp is not stamp:
                run.begin(stamp)
                self.has_runs = True
            if data.startswith(prefix, end + 1):
                bodies = stamp.bodies(data, at)
                run.bodies += bodies
                at += len(bodies) * stamp.step
            else:
                run.add(data[start:end])
                at = end + 1
            if not data.startswith(prefix, at):
                following = stamp.following
                if following is None or not data.startswith(following.prefix, at):
                    following = stamp.following = self._find(data, at)
                if following is not None and following.step == stamp.step:
                    mixed = self._take_mixed(following, data, at)
                    if mixed != at:
                        at, following = mixed, self._find(data, mixed)
                stamp = following
        return at

    def _take_mixed(self, stamp: Stamp, data: bytes, at: int) -> int:
        """Take look-alikes of different kinds and one size, such as messages of all priorities, off the front."""
        count = min((len(data) - at) // stamp.step, self._most)
        if count < _FEW or self._skips:
            self._skips = max(self._skips - 1, 0)
            return at
        prefixes, bodies, ends = stamp.rows(data, at, count)
        found = list(map(self._stamps.get, prefixes))
        good = found.index(None) if None in found else count
        if ends.count(FRAME_END) != count:
            good = min(good, next(i for i, end in enumerate(ends) if end != FRAME_END))
        known = cast(list[Stamp], found[:good])
        kinds = set(known)
        if (
            good < _FEW
            or len({kind.run for kind in kinds}) < len(kinds)
            or {kind.step for kind in kinds} != {stamp.step}
        ):
            self._skips, self._most = _SKIPS, _FEW
            return at
        for kind in kinds:
            if kind.run.stamp is not kind:
                kind.run.begin(kind)
        for kind, body in zip(known, bodies, strict=False):
            kind.run.add(body)
        self.has_runs = True
        self._most = min(2 * self._most, _MANY) if good == count else max(good, _FEW)
        return at + good * stamp.step

    def _find(self, data: bytes, at: int) -> Stamp | None:
        for length in self._lengths:
            stamp = self._stamps.get(data[at : at + length])
            if stamp is not None:
                return stamp
        return None


def _priorities(run: Run) -> tuple[int, ...]:
    return run.priorities


class Acks:
    """basic.ack of the channel that acked last, one after the other."""

    __slots__ = ("_most", "_prefix", "_skips", "channel")

    def __init__(self) -> None:
        self.channel = 0
        self._prefix = b""
        self._most = _FEW  # as that of a Stamp
        self._skips = 0  # so often it is not worth a look

    def learn(self, channel: int) -> None:
        if channel != self.channel:
            self.channel = channel
            self._prefix = b"\x01" + channel.to_bytes(2, "big") + b"\x00\x00\x00\x0d\x00\x3c\x00\x50"

    def take(self, data: bytes, at: int) -> tuple[int, list[tuple[int, int, bool]]]:
        """(where the acks end, them as (first tag, last tag, multiple): neighbouring single ones as one)"""
        prefix, size = self._prefix, len(data)
        found: list[tuple[int, int, bool]] = []
        first = last = -1  # of neighbouring single ones
        while data.startswith(prefix, at) and at + _ACK_BYTES <= size and data[at + 20] == FRAME_END:
            tag, bits = _ACK.unpack_from(data, at + 11)
            at += _ACK_BYTES
            if first >= 0 and tag == last + 1 and not bits & 1:
                more = self._following(data, at, tag)
                last = tag + more
                at += more * _ACK_BYTES
                continue
            if first >= 0:
                found.append((first, last, False))
            if bits & 1:
                found.append((tag, tag, True))
                first = last = -1
            else:
                first = last = tag
        if first >= 0:
            found.append((first, last, False))
        return at, found

    def _following(self, data: bytes, at: int, tag: int) -> int:
        """How many acks of the next tags stand here one by one; 0 also if there are too few to be looked at at once."""
        count = min((len(data) - at) // _ACK_BYTES, self._most)
        if count < _FEW or self._skips:
            self._skips = max(self._skips - 1, 0)
            return 0
        rows = _ACK_ROW.iter_unpack(memoryview(data)[at : at + count * _ACK_BYTES])
        heads, tags, bits, ends = zip(*rows, strict=True)
        if (
            heads.count(self._prefix) == count
            and ends.count(FRAME_END) == count
            and not any(bits)
            and tags == tuple(range(tag + 1, tag + 1 + count))
        ):
            self._most = min(2 * self._most, _MANY)
            return count
        self._most, self._skips = _FEW, _SKIPS
        return 0
