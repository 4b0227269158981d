"""One queue of a partition: its settings, lanes, groups, remembered dedup ids and counts.

Plain state: state.py changes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

from laneway.core.deadlines import coarse
from laneway.core.lane import STALE_SLACK, Lane
from laneway.core.runs import joined
from laneway.core.settings import QueueSettings
from laneway.core.table import DELAYED, READY, SLAB_BITS, SLAB_MASK, TENANTED, Table
from laneway.core.tenants import Tenants, Turns

TOTALS = (
    "published",
    "delivered",
    "redelivered",
    "acked",
    "released",
    "lease_expired",
    "dead_lettered",
    "moved_in",
    "expired",
    "rejected",
    "redriven",
    "purged",
    "deleted",
    "overflowed",
    "deduplicated",
    "dropped",
)
(
    PUBLISHED,
    DELIVERED,
    REDELIVERED,
    ACKED,
    RELEASED,
    LEASE_EXPIRED,
    DEAD_LETTERED,
    MOVED_IN,
    EXPIRED,
    REJECTED,
    REDRIVEN,
    PURGED,
    DELETED,
    OVERFLOWED,
    DEDUPLICATED,
    DROPPED,
) = range(len(TOTALS))

RATED = ("published", "delivered", "acked")
_RATE_COLUMN = {PUBLISHED: 1, DELIVERED: 2, ACKED: 3}  # in Queue.rates
RATE_WINDOW_S = 300
FOREVER_MS = 1 << 42  # over a hundred years
STALE_OFFERS = 1_000  # so many offers that no longer hold are tolerated


def _alike(priorities: Sequence[int]) -> Sequence[tuple[int, int]]:
    """(priority, how many) of neighbours that have the same."""
    first, count = priorities[0], len(priorities)
    if priorities.count(first) == count:
        return ((first, count),)
    return [(priority, len(list(alike))) for priority, alike in groupby(priorities)]


class Group:
    """Messages that are delivered in arrival order: a member can be leased when all before it are gone, or are leased
    together with it. Among groups of equal priority the place is that of the first member: its number, or, once it was
    leased before, that which was next when one of the group last came back. So a group whose messages come back again
    and again lets the others have their turn."""

    __slots__ = ("members", "name", "offered", "place", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: OrderedDict[int, None] = OrderedDict()  # waiting, delayed and leased ones, by number
        self.turn = 0  # the number that was next when a member last came back
        self.offered = 0  # the member now standing in Queue.heads, 0 if none
        self.place = (0, 0, 0)  # … and with which priority and place: it may have stood there before with others

    def __lt__(self, other: Group) -> bool:
        return False  # equal entries of a heap are offers of the same head: either may come first


Offer = tuple[int, int, int, Group]  # -priority, place, number of its first member


class Queue:
    __slots__ = (
        "arriving",
        "bitmap",
        "bytes_waiting",
        "changed_at_ms",
        "created_at_ms",
        "dead",
        "dead_elsewhere",
        "dedup",
        "delayed",
        "delayed_order",
        "group_of",
        "grouped_ready",
        "groups",
        "heads",
        "lanes",
        "leased",
        "name",
        "number",
        "placed",
        "rates",
        "ready",
        "retention_armed_ms",
        "rules",
        "settings",
        "tenants",
        "totals",
        "vhost",
    )

    def __init__(self, number: int, vhost: str, name: str, settings: QueueSettings, at_ms: int) -> None:
        self.number = number
        self.vhost = vhost
        self.name = name
        self.set(settings)
        self.created_at_ms = at_ms
        self.changed_at_ms = at_ms
        self.placed = False  # somebody said which partition it is to be in
        # While it is on its way here: the partition that it comes from, and its number there. Nobody finds it by name.
        self.arriving: tuple[int, int] | None = None
        self.lanes: dict[int, Lane] = {}
        self.bitmap = 0  # bit p is set while lane p has a ready message
        self.ready = 0  # those of groups and tenants included
        self.leased = 0
        self.delayed = 0
        # A heap of (priority, number), made when it is first asked for. What is delayed no more goes in passing.
        self.delayed_order: list[tuple[int, int]] | None = None
        self.bytes_waiting = 0  # of ready and delayed ones, as stored
        self.dead: dict[int, None] = {}  # numbers, in the order of their deaths
        self.dead_elsewhere = 0  # died here, kept in another queue
        self.groups: dict[str, Group] = {}
        self.group_of: dict[int, Group] = {}
        self.heads: list[Offer] = []  # a heap: the first members of groups, as far as they may be leased
        self.grouped_ready: dict[int, int] = {}
        self.tenants: Tenants | None = None  # of messages that came while the queue was fair; None if there are none
        self.dedup: OrderedDict[str, tuple[str, int]] = OrderedDict()  # id -> (message id, when)
        self.retention_armed_ms = 0
        self.totals = [0] * len(TOTALS)
        self.rates: list[list[int]] = []  # [second, published, delivered, acked], of the last seconds with traffic

    def set(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.rules = (
            settings.priority_when_unset,
            settings.max_priority,
            settings.max_message_bytes,
            settings.delay_ms,
            settings.message_ttl_ms,
            settings.fair,
            # A queue that may be full is looked at for itself.
            0 if settings.max_messages is None and settings.max_bytes is None else self.number,
        )

    def lane(self, priority: int) -> Lane:
        lane = self.lanes.get(priority)
        if lane is None:
            lane = self.lanes[priority] = Lane()
        return lane

    def append(self, first: int, priorities: Sequence[int]) -> None:
        """New messages are ready, numbered from `first` on, behind all others of their priorities."""
        for priority, count in _alike(priorities):
            lane = self.lane(priority)
            lane.extend(range(first, first + count))
            lane.count += count
            self.bitmap |= 1 << priority
            first += count
        self.ready += len(priorities)

    def take(self, seqs: Sequence[int], priorities: Sequence[int], table: Table) -> None:
        """Messages that stood in lanes are ready no more."""
        at = 0
        for priority, count in _alike(priorities):
            lane = self.lanes[priority]
            lane.count -= count
            if not lane.count:
                self.bitmap &= ~(1 << priority)
            lane.pass_over(seqs[at : at + count], table)
            at += count
        self.ready -= at

    def keeps_until(self, since_ms: int) -> int:
        """When the retention of a message of this age ends; rounded, so that a sweep finds many at once."""
        retention_ms = self.settings.retention_ms
        return coarse(since_ms + (FOREVER_MS if retention_ms is None else retention_ms), since_ms)

    def count(self, total: int, second: int, count: int) -> None:
        self.totals[total] += count
        rates = self.rates
        if not rates or rates[-1][0] < second:
            rates.append([second, 0, 0, 0])
            while rates[0][0] < second - RATE_WINDOW_S:
                del rates[0]
        rates[-1][_RATE_COLUMN[total]] += count

    def rate(self, rated: int, now_ms: int, window_s: int) -> float:
        """Events per second over the last `window_s` full seconds."""
        this = now_ms // 1000
        return sum(r[rated + 1] for r in self.rates if this - window_s <= r[0] < this) / window_s

    def ready_by_priority(self) -> dict[int, int]:
        counts = {p: lane.count for p, lane in self.lanes.items() if lane.count}
        for elsewhere in (self.grouped_ready, self.tenants.ready if self.tenants is not None else {}):
            for priority, count in elsewhere.items():
                counts[priority] = counts.get(priority, 0) + count
        return dict(sorted(counts.items(), reverse=True))

    def oldest_ms(self, table: Table) -> int | None:
        """Since when the message waits that waits longest, of those that may be next; None if none is ready."""
        heads = [lane.peek(table) for lane in self.lanes.values() if lane.count]
        heads += self.offered()
        if self.tenants is not None:
            heads += [head[0] for p in self.tenants.ready if (head := self.tenants.first(p, table)) is not None]
        return min((table.slabs[seq >> SLAB_BITS].since_ms[seq & SLAB_MASK] for seq in heads if seq), default=None)

    def offer(self, group: Group, table: Table) -> None:
        """Let a group compete with the priority of its first member, if that is ready."""
        if not group.members:
            return
        head = next(iter(group.members))
        if group.offered == head:
            return
        slab = table.slabs[head >> SLAB_BITS]
        if slab.state[head & SLAB_MASK] == READY:
            group.offered = head
            place = max(head, group.turn) if slab.receives[head & SLAB_MASK] else head
            group.place = (-slab.priority[head & SLAB_MASK], place, head)
            heappush(self.heads, (*group.place, group))
            if len(self.heads) > 2 * len(self.groups) + STALE_OFFERS:  # heads that died one after the other
                self.heads = list({e[2]: e for e in self.heads if self._holds(e)}.values())
                heapify(self.heads)

    @staticmethod
    def _holds(offer: Offer) -> bool:
        group = offer[3]
        return group.offered != 0 and group.place == offer[:3]

    def offered(self) -> Iterator[int]:
        """The first members of groups that may be leased."""
        return (offer[2] for offer in self.heads if self._holds(offer))

    def best_offer(self) -> Offer | None:
        """The best group that may be leased from; drops offers that no longer hold."""
        while self.heads:
            if self._holds(self.heads[0]):
                return self.heads[0]
            heappop(self.heads)
        return None

    def select(self, limit: int, table: Table, below: int = 0) -> Sequence[int]:
        """Take the next messages off the lanes: highest priority first, then by number, those of noisy tenants last. If
        `below` is given, those with higher numbers are passed over, unless there are groups."""
        if self.heads or self.tenants is not None:
            return self._select_one_by_one(limit, table, 0 if self.heads else below)
        parts: list[Sequence[int]] = []
        bitmap = self.bitmap
        while bitmap and limit:
            priority = bitmap.bit_length() - 1
            bitmap ^= 1 << priority
            some = self.lanes[priority].pop(limit, table, below)
            if some:
                parts.append(some)
                limit -= len(some)
        return parts[0] if len(parts) == 1 else joined(parts) if parts else ()

    def lowest_delayed(self, limit: int, table: Table) -> list[int]:
        """The oldest delayed messages of the lowest priority, and of the next one if there are no more."""
        order = self.delayed_order
        if order is None or len(order) > 2 * self.delayed + STALE_SLACK:
            seqs = table.find(self.number, DELAYED)
            order = [(table.slabs[seq >> SLAB_BITS].priority[seq & SLAB_MASK], seq) for seq in seqs]
            heapify(order)
            self.delayed_order = order
        found: list[tuple[int, int]] = []
        while order and len(found) < limit:
            entry = heappop(order)
            if table.state(entry[1]) == DELAYED and entry not in found[-1:]:
                found.append(entry)
        for entry in found:
            heappush(order, entry)
        return [seq for _, seq in found]

    def unselect(self, seqs: Sequence[int], table: Table) -> None:
        """Undo a selection that came to nothing."""
        for seq in seqs:
            group = self.group_of.get(seq)
            if group is not None:
                group.offered = 0
                self.offer(group, table)
                continue
            slab, i = table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
            if self.tenants is not None and slab.flags[i] & TENANTED:
                self.tenants.give_back(slab.tenant[i], seq, slab.priority[i])
            else:
                self.lanes[slab.priority[i]].give_back(seq)

    def _select_one_by_one(self, limit: int, table: Table, below: int) -> list[int]:
        """As select, where a group's next member competes with its own priority as soon as its head was taken, and a
        tenant is noisy as soon as it has taken too much. Among groups of equal priority those already taken from go
        first: the more of one group a consumer gets, the more groups are left for others."""
        out: list[int] = []
        turns = Turns(self.tenants, self.settings.fair, table, below) if self.tenants is not None else None
        opened: list[tuple[int, int, Group, Iterator[int]]] = []  # a heap: next members of groups already taken from
        while len(out) < limit:
            best: tuple[int, int, int] | None = None  # -priority, place, number
            source = 0
            if self.bitmap:
                priority = self.bitmap.bit_length() - 1
                found = self.lanes[priority].peek(table)
                while (not found or 0 < below <= found) and priority >= 0:  # taken in this selection: look further down
                    priority = (self.bitmap & ((1 << priority) - 1)).bit_length() - 1
                    found = self.lanes[priority].peek(table) if priority >= 0 else 0
                if found:
                    best, source = (-priority, found, found), 1
            offer = self.best_offer()
            if opened and (offer is None or opened[0][0] <= offer[0]):
                if best is None or opened[0][:2] < best[:2]:
                    best, source = (*opened[0][:2], opened[0][1]), 3
            elif offer is not None and (best is None or offer[:3] < best):
                best, source = offer[:3], 2
            turn = turns.best(self.leased + len(out)) if turns is not None else None
            if turns is not None and turn is not None and (best is None or turn[:3] < (best[0], False, best[1])):
                turns.take(turn[2], turn[3])
                out.append(turn[2])
                continue
            if best is None:
                break
            out.append(best[2])
            if source == 1:
                self.lanes[-best[0]].take(best[2])
                continue
            if source == 2:
                group = heappop(self.heads)[3]
                group.offered = 0
                members = iter(group.members)
                next(members)
            else:
                _, _, group, members = heappop(opened)
            following = next(members, 0)
            if following and table.state(following) == READY:
                slab = table.slabs[following >> SLAB_BITS]
                heappush(opened, (-slab.priority[following & SLAB_MASK], following, group, members))
        if turns is not None:
            turns.end()
        return out
