"""Where every live message of a partition is, by its number: a few bytes in packed columns, whatever its size.

Rows stand in slabs of 1,024 consecutive numbers; a slab goes when its last message went. A slab handed to a
snapshot is frozen: the next change copies it first, so a snapshot costs the loop nothing per message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

SLAB_BITS = 10
SLAB_ROWS = 1 << SLAB_BITS
SLAB_MASK = SLAB_ROWS - 1

# States. A message is in exactly one of them, in exactly one queue.
FREE, READY, LEASED, DELAYED, DEAD = range(5)
STATE_NAMES = ("free", "ready", "leased", "delayed", "dead")

# Flags: which of the sparse side tables of state.py know this message too; OVERDUE: its time to live ended while
# it was leased; SCHEDULED: published with a delay, so that it is younger than its number says; TENANTED: in a fair
# queue, and it has a tenant; NAMED_TIME: delayed until a time of day that its publisher named.
GROUPED, STORIED, HAS_CONSUMER, OVERDUE, SCHEDULED, TENANTED, NAMED_TIME = 1, 2, 4, 8, 16, 32, 64

_ZEROS_8 = bytes(8 * SLAB_ROWS)

#: The columns of a slab, in the order of a snapshot, with their array type; None stands for a bytearray.
COLUMNS: tuple[tuple[str, str | None], ...] = (
    ("state", None),
    ("flags", None),
    ("priority", None),
    ("queue", "I"),
    ("receives", "I"),
    ("size", "I"),
    ("location", "Q"),
    ("since_ms", "Q"),
    ("lease", "Q"),
    ("due_ms", "Q"),
    ("enqueued_ms", "Q"),
    ("tenant", "I"),
)


class Slab:
    """`lease` and `due_ms` stay empty until a message of the slab is first leased or delayed, `enqueued_ms` as long as
    it would say the same as `since_ms`, `tenant` until a message has one."""

    __slots__ = (
        "due_ms",
        "enqueued_ms",
        "flags",
        "frozen",
        "lease",
        "live",
        "location",
        "priority",
        "queue",
        "receives",
        "since_ms",
        "size",
        "state",
        "tenant",
    )

    def __init__(self) -> None:
        self.frozen = False
        self.live = 0
        self.state = bytearray()
        self.flags = bytearray()
        self.priority = bytearray()
        self.queue = array("I")
        self.receives = array("I")
        self.size = array("I")
        self.location = array("Q")
        self.since_ms = array("Q")  # age and retention count from here: when it was published or became visible
        self.lease = array("Q")
        self.due_ms = array("Q")  # deadline of a lease, end of a delay
        self.enqueued_ms = array("Q")  # when it was first published, in whichever queue; 0: not known
        self.tenant = array("I")  # a number of Queue.tenants

    def clone(self) -> Slab:
        copy = Slab()
        copy.live = self.live
        for name, _ in COLUMNS:
            setattr(copy, name, getattr(self, name)[:])
        return copy

    def widen(self) -> None:
        self.lease = array("Q", _ZEROS_8)
        self.due_ms = array("Q", _ZEROS_8)

    def set_times(self, i: int, since_ms: int, enqueued_ms: int) -> None:
        """Of a message whose age does not count from when it was first published."""
        if not self.enqueued_ms:
            self.enqueued_ms = self.since_ms[:]
        self.since_ms[i] = since_ms
        self.enqueued_ms[i] = enqueued_ms

    def widen_tenants(self) -> None:
        self.tenant = array("I", bytes(self.tenant.itemsize * SLAB_ROWS))


class Table:
    def __init__(self) -> None:
        self.slabs: dict[int, Slab] = {}
        self.next_seq = 1  # number 0 means "no message"
        self._pad_first_slab()

    def _pad_first_slab(self) -> None:
        slab = self.slabs[0] = Slab()
        _extend(slab, [0], [0], 0, [0], [0], FREE)

    def __contains__(self, seq: int) -> bool:
        return self.state(seq) != FREE

    def __len__(self) -> int:
        return sum(slab.live for slab in self.slabs.values())

    def state(self, seq: int) -> int:
        slab = self.slabs.get(seq >> SLAB_BITS)
        if slab is None:
            return FREE
        i = seq & SLAB_MASK
        return slab.state[i] if i < len(slab.state) else FREE

    def priorities(self, runs: Sequence[tuple[int, int]]) -> bytes:
        """The priorities of messages, given as (first, count) of neighbours inside one slab."""
        slabs = self.slabs
        parts = [slabs[n >> SLAB_BITS].priority[n & SLAB_MASK : (n & SLAB_MASK) + count] for n, count in runs]
        return b"".join(parts)

    def owned(self, seq: int) -> Slab:
        """The slab of a message, safe to change."""
        number = seq >> SLAB_BITS
        slab = self.slabs[number]
        if slab.frozen:
            slab = self.slabs[number] = slab.clone()
        return slab

    def append(
        self,
        locations: Sequence[int],
        sizes: Sequence[int],
        since_ms: int,
        queues: Sequence[int],
        priorities: Sequence[int],
        state: int,
    ) -> None:
        """Rows for the next numbers, all in one state."""
        done, count = 0, len(sizes)
        while done < count:
            slab = self._tail()
            take = min(count - done, SLAB_ROWS - len(slab.state))
            if take == count:
                _extend(slab, locations, sizes, since_ms, queues, priorities, state)
            else:
                here = slice(done, done + take)
                _extend(slab, locations[here], sizes[here], since_ms, queues[here], priorities[here], state)
            slab.live += take
            self.next_seq += take
            done += take

    def _tail(self) -> Slab:
        number = self.next_seq >> SLAB_BITS
        slab = self.slabs.get(number)
        if slab is None:
            slab = self.slabs[number] = Slab()
        elif slab.frozen:
            slab = self.slabs[number] = slab.clone()
        return slab

    def free(self, seq: int) -> None:
        slab = self.owned(seq)
        slab.state[seq & SLAB_MASK] = FREE
        slab.live -= 1
        if not slab.live and len(slab.state) == SLAB_ROWS:
            del self.slabs[seq >> SLAB_BITS]

    def free_slab(self, number: int) -> None:
        """Forget a full slab all of whose messages go at once."""
        del self.slabs[number]

    def goes_whole(self, number: int, queue: int) -> int | None:
        """The flags of all rows of a slab that holds nothing but ready messages of one queue which are plain, or which
        all have tenants; None for any other."""
        slab = self.slabs[number]
        if slab.state.count(READY) != SLAB_ROWS or slab.queue.tobytes() != array("I", (queue,)).tobytes() * SLAB_ROWS:
            return None
        flags = slab.flags[0]
        return flags if flags in (0, TENANTED) and slab.flags.count(flags) == SLAB_ROWS else None

    def find(self, queue: int, state: int, after: int = 0, upto: int | None = None) -> Iterator[int]:
        """Numbers above `after` of a queue's messages in a state, ascending: a C-speed search of the state bytes. It
        ends with the slab of `upto`, if that is given."""
        wanted, its = bytes((state,)), array("I", (queue,)).tobytes()
        for number in sorted(n for n in self.slabs if n >= (after + 1) >> SLAB_BITS):
            if upto is not None and number > upto >> SLAB_BITS:
                return
            slab = self.slabs[number]
            base = number << SLAB_BITS
            i = slab.state.find(wanted, max(0, after + 1 - base))
            if i >= 0 and its not in slab.queue.tobytes():
                continue  # most slabs hold messages of few queues
            while i >= 0:
                if slab.queue[i] == queue:
                    yield base + i
                i = slab.state.find(wanted, i + 1)

    def reach(self, state: int, after: int, slab_count: int) -> int | None:
        """How far a search above `after` goes that looks into so many slabs with messages in a state, of whichever
        queue; None if that is to the end."""
        wanted = bytes((state,))
        numbers = sorted(n for n in self.slabs if n >= (after + 1) >> SLAB_BITS)
        holding = (n for n in numbers if wanted in self.slabs[n].state)
        looked = list(islice(holding, slab_count))
        return (looked[-1] << SLAB_BITS) + SLAB_MASK if next(holding, None) is not None else None


def column(code: str, values: Sequence[int]) -> array[int]:
    """Hot: an array of these values, which are mostly all the same."""
    first, count = values[0], len(values)
    return array(code, (first,)) * count if values.count(first) == count else array(code, values)


def _extend(
    slab: Slab,
    locations: Sequence[int],
    sizes: Sequence[int],
    since_ms: int,
    queues: Sequence[int],
    priorities: Sequence[int],
    state: int,
) -> None:
    count = len(sizes)
    if count == 1:
        slab.state.append(state)
        slab.flags.append(0)
        slab.priority.append(priorities[0])
        slab.queue.append(queues[0])
        slab.receives.append(0)
        slab.size.append(sizes[0])
        slab.location.append(locations[0])
        slab.since_ms.append(since_ms)
        if slab.enqueued_ms:
            slab.enqueued_ms.append(since_ms)
        return
    slab.state.extend(bytes((state,)) * count)
    slab.flags.extend(bytes(count))
    slab.priority.extend(bytes(priorities[:1]) * count if priorities.count(priorities[0]) == count else priorities)
    slab.queue.extend(queues)
    slab.receives += array("I", (0,)) * count
    slab.size += column("I", sizes)
    slab.location.extend(locations)
    since = array("Q", (since_ms,)) * count
    slab.since_ms += since
    if slab.enqueued_ms:
        slab.enqueued_ms += since
