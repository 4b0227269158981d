"""Who of a queue's consumers is next, and how much it takes: subscriptions, their limits, and their turns. Nothing of
the broker is in here, and of the queue no more than what it says of itself; sessions.py leases for them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from laneway.broker.interface import Subscribe
from laneway.core.queue import Queue

#: A subscription gets so many messages at once at most; with unlimited credit, so many are on their way to it.
MAX_BATCH = 2_000


class Keeper(Protocol):
    """Who keeps the subscriptions of all queues, and hands out to them."""

    def wake(self, subscription: Subscription) -> None: ...


class Limit:
    """How many messages may be held: by one subscription, or by several together, which then take turns."""

    __slots__ = ("held", "most", "subscriptions", "turn")

    def __init__(self, most: int) -> None:
        self.most = most  # 0: as many as there are
        self.held = 0
        self.subscriptions: OrderedDict[Subscription, None] = OrderedDict()  # first the one served longest ago
        self.turn = 0  # rises with every one that is served

    def room(self, enough: int) -> int:
        return min(enough, self.most - self.held) if self.most else enough

    def share(self, enough: int) -> int:
        """How much one of the subscriptions gets at once, so that there is something for the others."""
        return self.room(min(enough, -(-self.most // len(self.subscriptions)))) if self.most else enough

    def served(self, subscription: Subscription) -> None:
        self.turn = subscription.turn = self.turn + 1
        if subscription in self.subscriptions:
            self.subscriptions.move_to_end(subscription)

    def grant(self, count: int) -> None:
        """So many are held no longer."""
        was_full = self.most and self.held >= self.most
        self.held -= count
        if was_full and self.held < self.most:
            for subscription in list(self.subscriptions):
                subscription.wake()

    def set(self, most: int) -> None:
        self.most = most
        for subscription in list(self.subscriptions):
            subscription.wake()


class Subscription:
    """A consumer that messages of one queue are pushed to, as long as it may hold more."""

    __slots__ = (
        "_keeper",
        "credit",
        "gives_way",
        "held",
        "is_cancelled",
        "is_paused",
        "is_reading",
        "is_told_of_its_end",
        "lease_ms",
        "limits",
        "no_ack",
        "number",
        "on_its_way",
        "pool",
        "priority",
        "queue",
        "request",
        "turn",
    )

    def __init__(self, keeper: Keeper, request: Subscribe, pool: Limit | None) -> None:
        self._keeper = keeper
        self.request = request
        self.number = request.consumer
        self.queue = request.queue
        self.priority = request.priority
        self.no_ack = request.no_ack
        self.lease_ms = request.lease_ms
        self.credit = Limit(request.credit)
        self.pool = pool
        self.turn = 0  # of its pool, when it was served last
        self.limits = (self.credit,) if pool is None else (self.credit, pool)
        for limit in self.limits:
            limit.subscriptions[self] = None
        self.is_paused = False
        self.is_reading = False  # messages for it are read back from the journal; until then it takes no more
        self.is_cancelled = False
        self.is_told_of_its_end = False  # because its queue goes: nothing may follow
        self.on_its_way = 0  # leased, and pushed as soon as the messages are durable and read
        self.held = 0  # leased and not settled; if it does not acknowledge, it holds nothing
        self.gives_way = False  # gets nothing more: another takes over once it holds nothing

    def room(self) -> int:
        """How many messages it takes now."""
        if self.is_paused or self.is_reading or self.is_cancelled:
            return 0
        room = self.credit.room(MAX_BATCH) if self.credit.most else MAX_BATCH - self.on_its_way
        return room if self.pool is None else self.pool.share(room)

    def demand(self, enough: int) -> int:
        """How many messages it would take in the end, however much is on its way to it now."""
        if self.is_paused or self.is_cancelled:
            return 0
        wanted = self.credit.room(enough)
        return wanted if self.pool is None else self.pool.room(wanted)

    def charge(self, count: int) -> None:
        self.on_its_way += count
        if not self.no_ack:
            self.held += count
            for limit in self.limits:
                limit.held += count
            if self.pool is not None:
                self.pool.served(self)

    def take_over(self, count: int) -> None:
        """It holds so many that it was given elsewhere."""
        self.held += count
        for limit in self.limits:
            limit.held += count

    def grant(self, count: int) -> None:
        """So many of its messages were settled."""
        self.held -= count
        for limit in self.limits:
            limit.grant(count)
        if self.gives_way and not self.held:
            self.wake()

    def pause(self, paused: bool) -> None:
        self.is_paused = paused
        if not paused:
            self.wake()

    def wake(self) -> None:
        """It may take more than a moment ago."""
        if not self.is_cancelled:
            self._keeper.wake(self)

    def leave_limits(self) -> None:
        """It is gone; what it holds still counts for those it shares a limit with, until it is settled."""
        self.is_cancelled = True
        for limit in self.limits:
            del limit.subscriptions[self]


class Audience:
    """The subscriptions of one queue. If it is to have a single active consumer, one alone is served, until it goes or
    one of a higher priority comes: that one takes over when nothing is held that the other could still settle."""

    __slots__ = ("_queue", "active", "members", "one")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.members: OrderedDict[Subscription, None] = OrderedDict()  # in the order of their coming
        self.one: Subscription | None = None  # the single active consumer, if there is to be one
        # Those that may take something, by priority, highest first; the next in turn is first.
        self.active: dict[int, OrderedDict[Subscription, None]] = {}

    def add(self, subscription: Subscription) -> None:
        self.members[subscription] = None
        self.wake(subscription)

    def discard(self, subscription: Subscription) -> None:
        self.members.pop(subscription, None)
        if self.one is subscription:
            self.one = None
        self.rest(subscription)

    def wake(self, subscription: Subscription) -> None:
        ring = self.active.get(subscription.priority)
        if ring is None:
            ring = self.active[subscription.priority] = OrderedDict()
            self.active = dict(sorted(self.active.items(), reverse=True))
        ring[subscription] = None

    def rest(self, subscription: Subscription) -> None:
        ring = self.active.get(subscription.priority)
        if ring is not None:
            ring.pop(subscription, None)
            if not ring:
                del self.active[subscription.priority]

    def next(self) -> tuple[Subscription, int, int] | None:
        """The one whose turn it is, how much it takes, and among how many the waiting ones are to be shared."""
        if self._queue.settings.single_active_consumer:
            return self._next_of_one()
        for ring in list(self.active.values()):
            while ring:
                subscription = next(iter(ring))
                room = subscription.room()
                if room > 0:
                    ring.move_to_end(subscription)
                    return subscription, room, len(ring)
                self.rest(subscription)
        return None

    def room(self, enough: int) -> int:
        """How many messages all of them take now, counted no further than `enough`."""
        if self._queue.settings.single_active_consumer:
            chosen = self._chosen()
            return min(enough, max(0, chosen.room())) if chosen is not None else 0
        total = 0
        for ring in self.active.values():
            for subscription in ring:
                total += max(0, subscription.room())
                if total >= enough:
                    return enough
        return total

    def demand(self, enough: int) -> int:
        """How many messages its consumers still have credit for, counted no further than `enough`."""
        if self._queue.settings.single_active_consumer:
            chosen = self._chosen()
            return max(0, chosen.demand(enough)) if chosen is not None else 0
        total = 0
        for subscription in self.members:
            total += max(0, subscription.demand(enough))
            if total >= enough:
                return enough
        return total

    def last_turn(self) -> int:
        """When the one whose turn it is was served last, as its pool counts; 0 if it shares no limit with others."""
        for ring in self.active.values():
            for subscription in ring:
                pool = subscription.pool
                return subscription.turn if pool is not None and pool.most else 0
        return 0

    def return_turn(self, subscription: Subscription) -> None:
        """There was nothing for it: it is next again."""
        ring = self.active.get(subscription.priority)
        if ring is not None and subscription in ring:
            ring.move_to_end(subscription, last=False)

    def _next_of_one(self) -> tuple[Subscription, int, int] | None:
        chosen = self._chosen()
        if self.one is not None:
            self.one.gives_way = chosen is None
        if chosen is None:
            return None
        self.one = chosen
        room = chosen.room()
        return (chosen, room, 1) if room > 0 else None

    def _chosen(self) -> Subscription | None:
        """Who is the single active consumer from now on; None as long as one is to give way and holds messages. Those
        whose leases ran out it holds no longer, whatever it says of them: with none leased, nobody holds any."""
        first = max(self.members, key=lambda s: s.priority, default=None)  # the first that came, of several
        one = self.one
        if one is None or first is None:
            return first
        if first.priority <= one.priority:
            return one
        return None if one.held and self._queue.leased else first
