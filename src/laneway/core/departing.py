"""A whole queue on its way to another partition (docs/decisions/0014-queues-move-frozen.md): which messages go next,
what goes with them, and leases that were given where the queue was before."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice

from laneway.core.deadlines import TTL
from laneway.core.digits import SEQ_MASK, SESSION_LEASE, TOKEN_CHARS, token
from laneway.core.events import Cause, Event, Moved
from laneway.core.outbox import put_outbox
from laneway.core.partitions import partition_of
from laneway.core.queue import Queue
from laneway.core.state import State
from laneway.core.stories import Carried
from laneway.core.table import DEAD, FREE, LEASED, SLAB_BITS, SLAB_MASK

#: So many slabs are looked at in one turn of the loop.
MAX_SLABS = 500


def some_alive(state: State, queue: Queue, after: int, limit: int) -> tuple[list[int], int | None]:
    """The next messages of a queue above a number but for the dead ones, and up to where that looked; None: to the
    end."""
    wanted = array("I", (queue.number,)).tobytes()
    found: list[int] = []
    numbers = sorted(n for n in state.table.slabs if n >= (after + 1) >> SLAB_BITS)
    for looked, number in enumerate(numbers):
        base, slab = number << SLAB_BITS, state.table.slabs[number]
        if looked == MAX_SLABS:
            return found, base - 1
        if wanted not in slab.queue.tobytes():
            continue
        for i in range(max(0, after + 1 - base), len(slab.state)):
            if slab.queue[i] == queue.number and slab.state[i] not in (FREE, DEAD):
                found.append(base + i)
                if len(found) == limit:
                    return found, base + i
    return found, None


def some_dead(queue: Queue, limit: int) -> list[int]:
    """In the order of their deaths, as they are to be there too."""
    return list(islice(queue.dead, limit))


def times_to_live(state: State, queue: Queue) -> Iterator[tuple[int, array[int]]]:
    """When messages of a queue expire, and which; some of them may be gone."""
    for at_ms, bucket in list(state.deadlines.buckets.items()):
        seqs = bucket.get((TTL, queue.number))
        if seqs is not None:
            yield at_ms, seqs


def depart(
    state: State,
    queue: Queue,
    seqs: Sequence[int],
    target: int,
    expires_at: Mapping[int, int],
    holders: Mapping[int, int],
    usual_holder: int,
    now_ms: int,
) -> Iterator[Event]:
    """Into the outbox of the partition in which the queue has the id `target`. `holders`: by lease id, of those of
    sessions that are not the usual holder's."""
    yield from put_outbox(state, partition_of(target), now_ms)
    outbox = state.outboxes[partition_of(target)]
    event = Moved(queue.number, now_ms, seqs, Cause.REBALANCED, outbox.number, state.table.next_seq)
    event.bound_for = target
    event.expires_at = [expires_at.get(seq, 0) for seq in seqs]
    event.holders = [_holder(state, seq, holders, usual_holder) for seq in seqs]
    yield event


def _holder(state: State, seq: int, holders: Mapping[int, int], usual: int) -> int:
    slab, i = state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
    lease = slab.lease[i] if slab.state[i] == LEASED else 0
    return holders.get(lease, usual) if lease & SESSION_LEASE else 0


class Line:
    """Where groups stand in line that came back (Group.turn), while their queue leaves in the order of numbers. Such a
    place is a number of this partition; there it is the next number after all that stands before it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: dict[str, int] = {}  # by group some of which has left, its place
        self._due: list[tuple[int, str]] = []  # a heap; those that are not as in _known no longer hold

    def note(self, seqs: Sequence[int]) -> None:
        """These are about to leave."""
        for seq in seqs if self._queue.group_of else ():
            group = self._queue.group_of.get(seq)
            if group is not None and group.turn > seq and self._known.get(group.name) != group.turn:
                self._known[group.name] = group.turn
                heappush(self._due, (group.turn, group.name))

    def due(self, seq: int, limit: int) -> list[str]:
        """Groups of which some has left, and whose places are before this message."""
        found: list[str] = []
        while self._due and self._due[0][0] <= seq and len(found) < limit:
            turn, name = heappop(self._due)
            if self._known.get(name) == turn:
                del self._known[name]
                found.append(name)
        return found

    def up_to(self, seqs: Sequence[int]) -> Sequence[int]:
        """Those before the next place of a group."""
        return seqs[: bisect_left(seqs, self._due[0][0])] if self._due else seqs


# Leases that were given elsewhere


def current_tokens(carried: Mapping[int, Carried], tokens: Sequence[str]) -> Sequence[str]:
    """Tokens with the numbers that their messages have now."""
    return [_current(carried, text) for text in tokens]


def _current(carried: Mapping[int, Carried], text: str) -> str:
    if len(text) != TOKEN_CHARS:
        return text
    try:
        value = int(text, 16)
    except ValueError:
        return text
    known = carried.get(value >> 48)
    return text if known is None or known.given_seq != value & SEQ_MASK else token(value >> 48, known.seq)


def current_seqs(carried: Mapping[int, Carried], seqs: Sequence[int], leases: Sequence[int]) -> Sequence[int]:
    """The numbers that messages have now which are held by these leases."""
    if carried.keys().isdisjoint(leases):
        return seqs
    known = [carried.get(lease) for lease in leases]
    return [seq if one is None or one.given_seq != seq else one.seq for seq, one in zip(seqs, known, strict=True)]


def held_by(state: State, holder: int) -> dict[int, list[tuple[int, int]]]:
    """By queue, number and lease of what sessions of a process hold that was leased elsewhere."""
    found: dict[int, list[tuple[int, int]]] = {}
    for lease, known in state.carried.items():
        if known.holder == holder:
            slab = state.table.slabs[known.seq >> SLAB_BITS]
            found.setdefault(slab.queue[known.seq & SLAB_MASK], []).append((known.seq, lease))
    return found
