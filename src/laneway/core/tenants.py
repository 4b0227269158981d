"""The tenants of a fair queue, and whose message goes next when one of them holds much of what is in flight.

Every tenant has lanes of its own, so that the oldest message of a quiet one is found whatever waits before it. A heap
per priority names the oldest ready message of each lane. An entry of it may be out of date: the message it names may
have gone, or one that is older may have come back, which has an entry of its own then. So nothing is looked for when a
message leaves; entries are put right when they come to the top. A tenant is not moved when it becomes noisy or quiet:
there are fewer than ten noisy ones at any time, and a selection passes over them.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace

from laneway.core.lane import Lane
from laneway.core.table import SLAB_ROWS, Table

#: A tenant is noisy while it holds so many messages, and more than this share of all that are leased.
NOISY_LEASES = 30
NOISY_PERCENT = 10
STALE_HEADS = 1_000  # so many entries that no longer hold are tolerated


class Tenant:
    __slots__ = ("count", "lanes", "leased", "name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number  # in the table; given to another when the tenant has nothing left
        self.lanes: dict[int, TenantLane] = {}
        self.leased = 0
        self.count = 0  # ready, delayed and leased ones


class TenantLane(Lane):
    """One priority of one tenant."""

    __slots__ = ("offered", "tenant")

    def __init__(self, tenant: Tenant) -> None:
        super().__init__()
        self.tenant = tenant
        self.offered = 0  # the number it stands with in Tenants.heads, 0 if it does not

    def __lt__(self, other: TenantLane) -> bool:
        return False  # equal entries of a heap are of the same lane: either may come first


Head = tuple[int, TenantLane]


class Tenants:
    __slots__ = ("bitmap", "by_name", "by_number", "free", "heads", "ready", "suspects")

    def __init__(self) -> None:
        self.by_name: dict[str, Tenant] = {}
        self.by_number: dict[int, Tenant] = {}
        self.free: list[int] = []  # numbers below the highest that nobody has
        self.heads: dict[int, list[Head]] = {}  # priority -> a heap: the oldest of each lane, or what was
        self.suspects: dict[int, Tenant] = {}  # by number: those that hold so many that they may be noisy
        self.ready: dict[int, int] = {}
        self.bitmap = 0  # bit p is set while there is a ready message of priority p

    def join(self, name: str) -> Tenant:
        """One message more of a tenant, in no state yet."""
        tenant = self.by_name.get(name)
        if tenant is None:
            number = self.free.pop() if self.free else len(self.by_number) + 1
            tenant = self.by_name[name] = self.by_number[number] = Tenant(name, number)
        tenant.count += 1
        return tenant

    def part(self, number: int, count: int = 1) -> None:
        """One message less, or several, in no state any more."""
        tenant = self.by_number[number]
        tenant.count -= count
        if not tenant.count:
            del self.by_name[tenant.name], self.by_number[number]
            self.free.append(number)
            for lane in tenant.lanes.values():
                lane.offered = 0

    def add(self, number: int, seq: int, priority: int, *, fresh: bool) -> None:
        """A message is ready."""
        tenant = self.by_number[number]
        lane = tenant.lanes.get(priority)
        if lane is None:
            lane = tenant.lanes[priority] = TenantLane(tenant)
        if fresh:
            lane.append(seq)
        else:
            lane.give_back(seq)
        lane.count += 1
        self.count_ready(priority, 1)
        self.offer(priority, lane, seq)

    def remove(self, number: int, seq: int, priority: int, table: Table) -> None:
        """A message is no longer ready."""
        lane = self.by_number[number].lanes[priority]
        lane.count -= 1
        lane.skip(seq, 1, table)
        lane.tidy(table)
        self.count_ready(priority, -1)

    def forget_ready(self, number: int, priority: int, count: int, first: int, table: Table) -> None:
        """So many ready messages of a lane are gone with their slab, which began with `first`."""
        lane = self.by_number[number].lanes[priority]
        lane.count -= count
        lane.skip(first, SLAB_ROWS, table)
        self.count_ready(priority, -count)
        self.part(number, count)

    def lease(self, number: int) -> None:
        tenant = self.by_number[number]
        tenant.leased += 1
        if tenant.leased == NOISY_LEASES:
            self.suspects[number] = tenant

    def unlease(self, number: int) -> None:
        tenant = self.by_number[number]
        if tenant.leased == NOISY_LEASES:
            del self.suspects[number]
        tenant.leased -= 1

    def count_ready(self, priority: int, more: int) -> None:
        count = self.ready.get(priority, 0) + more
        if count:
            self.ready[priority] = count
            self.bitmap |= 1 << priority
        else:
            del self.ready[priority]
            self.bitmap &= ~(1 << priority)

    def give_back(self, number: int, seq: int, priority: int) -> None:
        """Undo the selection of a message, which has been ready all the time."""
        lane = self.by_number[number].lanes[priority]
        lane.give_back(seq)
        self.offer(priority, lane, seq)

    def offer(self, priority: int, lane: TenantLane, seq: int) -> None:
        if lane.offered and lane.offered <= seq:
            return
        lane.offered = seq
        heap = self.heads.setdefault(priority, [])
        heappush(heap, (seq, lane))
        if len(heap) > 2 * len(self.by_name) + STALE_HEADS:
            kept = {id(entry[1]): entry for entry in heap if entry[1].offered == entry[0]}
            heap[:] = kept.values()
            heapify(heap)

    def first(self, priority: int, table: Table) -> Head | None:
        """The oldest ready message of a priority; puts entries right on the way."""
        heap = self.heads.get(priority)
        while heap:
            seq, lane = heap[0]
            if lane.offered != seq:
                heappop(heap)
                continue
            oldest = lane.peek(table)
            if oldest == seq:
                return heap[0]
            lane.offered = oldest
            if oldest:
                heapreplace(heap, (oldest, lane))
            else:
                heappop(heap)
        return None

    def set_aside(self, priority: int, head: Head) -> None:
        """Take what first() found off the heap. Until it is put back, its lane has no entry that counts."""
        heappop(self.heads[priority])
        head[1].offered = 0

    def put_back(self, priority: int, head: Head) -> None:
        head[1].offered = head[0]
        heappush(self.heads[priority], head)

    def oldest(self, priority: int, count: int, table: Table) -> list[int]:
        """So many of the oldest ready messages of a priority, whoever they are of. None is taken."""
        out: list[int] = []
        looked_at: list[Head] = []
        opened: list[tuple[int, TenantLane, Iterator[int]]] = []  # a heap: what follows in lanes already looked at
        while len(out) < count:
            head = self.first(priority, table)
            if head is not None and (not opened or head[0] < opened[0][0]):
                self.set_aside(priority, head)
                looked_at.append(head)
                seq, lane = head
                following = lane.after(seq, table)
            elif opened:
                seq, lane, following = heappop(opened)
            else:
                break
            out.append(seq)
            after = next(following, 0)
            if after:
                heappush(opened, (after, lane, following))
        for head in looked_at:
            self.put_back(priority, head)
        return out

    def lanes(self) -> Iterator[tuple[int, TenantLane]]:
        for tenant in self.by_number.values():
            yield from tenant.lanes.items()

    def noisy(self, leased: int) -> list[Tenant]:
        """Those that let the others go first while so many messages of the queue are leased."""
        return [t for t in self.suspects.values() if is_noisy(t.leased, leased)]


def is_noisy(held: int, leased: int) -> bool:
    return held >= NOISY_LEASES and held * 100 > NOISY_PERCENT * leased


class Turns:
    """One selection from the tenants of a queue. What it takes counts as held from then on, so that taking many at once
    gives the same as taking them one by one."""

    __slots__ = ("_aside", "_below", "_bitmap", "_fair", "_held", "_table", "_tenants")

    def __init__(self, tenants: Tenants, fair: bool, table: Table, below: int = 0) -> None:
        self._tenants = tenants
        self._fair = fair
        self._table = table
        self._below = below or 1 << 64  # messages from this number on are passed over
        self._bitmap = tenants.bitmap  # of the priorities that are not exhausted
        self._held: dict[int, int] = {}  # by the number of the tenant, of those taken from
        self._aside: list[Head] = []  # of noisy tenants, taken off the heap of the highest priority

    def _is_noisy(self, lane: TenantLane, leased: int) -> bool:
        tenant = lane.tenant
        return self._fair and is_noisy(self._held.get(tenant.number, tenant.leased), leased)

    def best(self, leased: int) -> tuple[int, bool, int, TenantLane] | None:
        """(-priority, whether its tenant is noisy, number, lane) of the next message while so many are leased."""
        while self._bitmap:
            priority = self._bitmap.bit_length() - 1
            for head in self._aside[:]:
                if not self._is_noisy(head[1], leased):
                    self._aside.remove(head)
                    self._tenants.put_back(priority, head)
            while (first := self._tenants.first(priority, self._table)) and first[0] < self._below:
                if not self._is_noisy(first[1], leased):
                    return -priority, False, *first
                self._tenants.set_aside(priority, first)
                self._aside.append(first)
            if self._aside:
                return -priority, True, *min(self._aside)
            self._bitmap ^= 1 << priority
        return None

    def take(self, seq: int, lane: TenantLane) -> None:
        """Take what best() found."""
        lane.take(seq)
        tenant = lane.tenant
        self._held[tenant.number] = self._held.get(tenant.number, tenant.leased) + 1
        if (seq, lane) in self._aside:
            self._aside.remove((seq, lane))
            following = lane.peek(self._table)
            if 0 < following < self._below:
                self._aside.append((following, lane))
            elif following:
                self._tenants.put_back(self._bitmap.bit_length() - 1, (following, lane))

    def end(self) -> None:
        for head in self._aside:
            self._tenants.put_back(self._bitmap.bit_length() - 1, head)
