"""Sessions: connections as the partition sees them. Subscriptions that messages are pushed to, and queues that live and
die with their users. A session is a number; what it is pushed are values."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from laneway.broker.audiences import Audience, Limit, Subscription
from laneway.broker.engine import LARGE_BYTES
from laneway.broker.interface import (
    AMQP,
    ConsumerEnded,
    ConsumerLeft,
    Delivered,
    ListConsumers,
    Push,
    QueueId,
    SessionId,
    SettleHeld,
    Subscribe,
)
from laneway.broker.values import ConsumerState
from laneway.core import purging
from laneway.core.deliveries import NOTHING, Deliveries
from laneway.core.events import Event, Leased
from laneway.core.lease_commands import settle_held
from laneway.core.queue import Queue
from laneway.errors import LanewayError, QueueInUse, Unavailable

if TYPE_CHECKING:
    import asyncio

    from laneway.broker.partition import Partition

#: So much is leased together at most, unless it is of one queue; after so many bytes of that, consumers get time to say
#: that they cannot take more at the moment.
MAX_DISPATCH_BYTES = 4 * 1024 * 1024
RETRY_MS = 1_000  # a queue that should go with its users and could not be deleted is tried again

log = logging.getLogger("laneway.broker")


class Session:
    __slots__ = ("is_paused", "number", "owned", "pools", "postponed", "push", "subscriptions")

    def __init__(self, number: SessionId, push: Callable[[list[Push]], None]) -> None:
        self.number = number
        self.push = push
        self.subscriptions: dict[int, Subscription] = {}  # by consumer; a cancelled one as long as it holds something
        self.pools: dict[int, Limit] = {}
        self.owned: dict[QueueId, None] = {}  # queues that it has for itself alone
        self.is_paused = False
        self.postponed: deque[tuple[Subscription, Deliveries]] = deque()  # large ones, until it takes something again

    def pool(self, number: int) -> Limit | None:
        if not number:
            return None
        return self.pools.setdefault(number, Limit(0))

    def grant(self, consumer: int, count: int) -> None:
        """A consumer holds so many messages less."""
        subscription = self.subscriptions.get(consumer)
        if subscription is not None:
            subscription.grant(count)
            if subscription.is_cancelled:
                self.forget_if_done(subscription)

    def forget_if_done(self, subscription: Subscription) -> None:
        """A cancelled one is known as long as it holds something, which counts for those it shares a limit with."""
        if subscription.is_cancelled and subscription.held <= 0:
            self.subscriptions.pop(subscription.number, None)


class _Dealer:
    """Deals out what is ready in a queue to its consumers."""

    __slots__ = ("_left_bytes", "_share", "_turns", "audience", "lease_ms", "limit", "queue", "subscription")

    def __init__(self, queue: Queue, audience: Audience) -> None:
        self.queue = queue
        self.audience = audience
        self._turns = 0
        self._left_bytes = queue.bytes_waiting - MAX_DISPATCH_BYTES  # with less than this left it is enough
        self._share: int
        self.subscription: Subscription  # whose turn it is
        self.limit: int  # how many messages it gets
        self.lease_ms: int

    def begin_turn(self) -> bool:
        """Find out whose turn it is; False if no consumer takes anything."""
        turn = self.audience.next()
        if turn is None:
            return False
        subscription, room, sharers = turn
        if not self._turns:  # as if they were dealt out one by one: equal shares, then one each
            self._share, self._turns = max(1, self.queue.ready // sharers), sharers
        self._turns -= 1
        self.limit = min(room, self._share)
        self.subscription = subscription
        lease_ms = subscription.lease_ms
        self.lease_ms = self.queue.settings.lease_ms if lease_ms is None else lease_ms
        return True

    def has_dealt_enough(self) -> bool:
        return self.queue.bytes_waiting < self._left_bytes


class Sessions:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.audiences: dict[int, Audience] = {}  # by queue number
        self.owners: dict[int, SessionId] = {}  # by queue number
        self.on_owned: Callable[[QueueId, SessionId], None] = lambda queue, session: None
        self._sessions: dict[SessionId, Session] = {}
        self._last = 0
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._is_stopped = False
        self._pools_with_limit = 0
        # In the order in which their messages came: what is leased together then has neighbouring numbers.
        self._planned: dict[int, None] = {}  # queues to be looked at in the next turn of the loop
        self._undurable: dict[int, None] = {}  # queues to be looked at when what they hold is durable

    # Beginning and end

    def start(self) -> None:
        for queue in self._partition.engine.state.queues.values():
            self.used(queue)

    def stop(self) -> None:
        """Hand out nothing more. What is settled from now on counts as long as there is a commit to go with."""
        self._is_stopped = True
        for timer in self._expiries.values():
            timer.cancel()
        self._expiries.clear()

    def open(self, push: Callable[[list[Push]], None], number: SessionId = 0) -> SessionId:
        """`number`: that another process has given it."""
        if not number:
            number = self._last = self._last + 1
        self._sessions[number] = Session(number, push)
        return number

    def find(self, number: SessionId) -> Session | None:
        return self._sessions.get(number)

    def end(self, number: SessionId) -> None:
        """A connection is gone: its subscriptions end, and its exclusive queues go."""
        session = self._sessions.pop(number, None)
        if session is None:
            return
        session.push = _nobody
        self._pools_with_limit -= sum(1 for pool in session.pools.values() if pool.most)
        for subscription in list(session.subscriptions.values()):
            if not subscription.is_cancelled:
                self._leave(subscription)
        self._give_back_postponed(session)
        self._partition.in_slices(self._delete_owned(list(session.owned)), lambda _: None)

    def _delete_owned(self, numbers: list[QueueId]) -> Generator[None, None, None]:
        """They may be very many, so others have their turns meanwhile."""
        spent = 0
        for number in numbers:
            if spent > purging.SLICE:
                yield
                spent = 0
            queue = self._partition.engine.state.queues.get(number)
            if queue is not None and not self._is_stopped:
                spent += purging.deletion_cost(queue)
                try:
                    yield from self._partition.queues.delete(queue.vhost, queue.name, self.owners.get(number, 0))
                except LanewayError:  # a full disk: tried again until there is space
                    self._partition.call_later(RETRY_MS, self._retry, number)

    def _retry(self, number: QueueId) -> None:
        self._partition.in_slices(self._delete_owned([number]), lambda _: None)

    # Queues

    def own(self, session: SessionId, queue: Queue) -> None:
        """A session has a new queue for itself alone."""
        found = self._sessions.get(session)
        if found is not None:
            self.owners[queue.number] = session
            self.on_owned(queue.number, session)
            found.owned[queue.number] = None

    def consumer_count(self, number: int) -> int:
        audience = self.audiences.get(number)
        return len(audience.members) if audience is not None else 0

    def consumers(self, request: ListConsumers) -> list[ConsumerState]:
        session = self._sessions.get(request.session or 0)
        audience = self.audiences.get(request.queue or 0)
        found: Iterable[Subscription] = ()
        if session is not None:
            found = (one for one in session.subscriptions.values() if not one.is_cancelled)
        elif audience is not None:
            found = audience.members
        later = (one for one in found if (one.request.session, one.number) > request.after)
        page = heapq.nsmallest(request.limit, later, key=lambda one: (one.request.session, one.number))
        return [self._consumer_state(one) for one in page]

    def _consumer_state(self, subscription: Subscription) -> ConsumerState:
        r = subscription.request
        audience = self.audiences.get(r.queue)
        is_active = audience is None or audience.one in (None, subscription)
        return ConsumerState(
            r.session, r.consumer, r.queue, r.priority, r.credit, subscription.held, r.no_ack, r.exclusive, is_active
        )

    def is_delivering(self, number: int) -> bool:
        """Whether something leased is on its way to consumers of a queue: not durable yet, or not read."""
        audience = self.audiences.get(number)
        return audience is not None and any(one.on_its_way > 0 or one.is_reading for one in audience.members)

    def consumers_leave(self, number: int) -> bool:
        """The queue goes to another partition, and its consumers with it, each told how much it holds. Whether there
        are any."""
        audience = self.audiences.pop(number, None)
        for session in self._sessions.values():
            for one in [one for one in session.subscriptions.values() if one.queue == number]:
                if not one.is_cancelled:
                    one.leave_limits()
                    left: list[Push] = [ConsumerLeft(one.number, one.held)]
                    self._partition.hand_over(session.push, left, True)
                one.grant(one.held)  # it counts where it is settled
                del session.subscriptions[one.number]
        return audience is not None

    def queue_left(self, number: int) -> None:
        """The queue has gone to another partition; whoever has it for itself has it there."""
        timer = self._expiries.pop(number, None)
        if timer is not None:
            timer.cancel()
        owner = self._sessions.get(self.owners.pop(number, 0))
        if owner is not None:
            owner.owned.pop(number, None)

    def queue_gone(self, number: int) -> None:
        """Called when a queue was deleted, however that came about."""
        owner = self._sessions.get(self.owners.pop(number, 0))
        if owner is not None:
            owner.owned.pop(number, None)
        self.end_consumers(number)

    def end_consumers(self, number: int) -> None:
        timer = self._expiries.pop(number, None)
        if timer is not None:
            timer.cancel()
        audience = self.audiences.pop(number, None)
        for subscription in list(audience.members) if audience is not None else ():
            subscription.leave_limits()
            session = self._sessions.get(subscription.request.session)
            if session is not None:
                subscription.is_told_of_its_end = True
                self._give_back_postponed(session)
                session.forget_if_done(subscription)
                ended: list[Push] = [ConsumerEnded(subscription.number)]
                self._partition.hand_over(session.push, ended, True)

    def used(self, queue: Queue) -> None:
        """A queue that expires when nobody uses it was used, or has just lost its last consumer."""
        timer = self._expiries.pop(queue.number, None)
        if timer is not None:
            timer.cancel()
        expires_ms = queue.settings.expires_ms
        if expires_ms is not None and queue.number not in self.audiences:
            self._expiries[queue.number] = self._partition.call_later(expires_ms, self.expire, queue.number)

    def expire(self, number: int) -> None:
        queue = self._partition.engine.state.queues.get(number)
        if queue is None or number in self.audiences:
            return
        if number in self._partition.waiting:
            self.used(queue)
            return
        deletion = self._partition.queues.delete(queue.vhost, queue.name, self.owners.get(number, 0))
        self._partition.in_slices(deletion, partial(self._expired, queue))

    def _expired(self, queue: Queue, answer: int | LanewayError) -> None:
        number = queue.number
        if isinstance(answer, LanewayError) and number in self._partition.engine.state.queues and not self._is_stopped:
            # Not now: a full disk, or another queue's dead letters go there.
            self.used(queue)
            if queue.settings.auto_delete and number not in self._expiries:
                self._expiries[number] = self._partition.call_later(RETRY_MS, self.expire, number)

    # Subscriptions

    def subscribe(self, request: Subscribe) -> None:
        session = self._sessions.get(request.session)
        queue = self._partition.find_number(request.queue)
        if session is None:
            return  # it ended meanwhile
        audience = self.audiences.get(queue.number)
        if audience is not None:
            if request.exclusive or next(iter(audience.members)).request.exclusive:  # one that is, is alone
                raise QueueInUse(
                    f"queue {queue.name!r} has a consumer that wants it for itself alone", field="exclusive"
                )
            if len(audience.members) >= self._partition.limits.max_waiters_per_queue:
                raise Unavailable(f"queue {queue.name!r} has {len(audience.members)} consumers already")
        else:
            audience = self.audiences[queue.number] = Audience(queue)
        subscription = Subscription(self, request, session.pool(request.pool))
        subscription.is_paused = session.is_paused
        if request.held and not request.no_ack:
            subscription.take_over(request.held)
        session.subscriptions[request.consumer] = subscription
        audience.add(subscription)
        self.used(queue)
        self._plan(queue.number)

    def unsubscribe(self, session: SessionId, consumer: int) -> None:
        """It wants no more; what it holds it may still settle."""
        found = self._sessions.get(session)
        subscription = found.subscriptions.get(consumer) if found is not None else None
        if found is not None and subscription is not None and not subscription.is_cancelled:
            self._leave(subscription)
            self._give_back_postponed(found)
            found.forget_if_done(subscription)

    def _leave(self, subscription: Subscription) -> None:
        subscription.leave_limits()
        audience = self.audiences.get(subscription.queue)
        if audience is None:
            return
        audience.discard(subscription)
        queue = self._partition.engine.state.queues[subscription.queue]
        if audience.members:
            self._plan(queue.number)  # a single active consumer has a successor
            return
        del self.audiences[subscription.queue]
        if queue.settings.auto_delete:
            self.expire(queue.number)
        else:
            self.used(queue)

    def settled(self, request: SettleHeld) -> None:
        """What a consumer of a session has settled it no longer holds."""
        session = self._sessions.get(request.session)
        if session is not None and request.consumer and request.action != "extend":
            session.grant(request.consumer, len(request.seqs))

    def limit_pool(self, session: SessionId, pool: int, limit: int) -> None:
        found = self._sessions.get(session)
        shared = found.pool(pool) if found is not None else None
        if found is not None and shared is not None:
            self._pools_with_limit += bool(limit) - bool(shared.most)
            shared.set(limit)
            if not limit and not shared.subscriptions:
                del found.pools[pool]  # as if it had never been; clients open any number of channels in turn

    def pause(self, session: SessionId, paused: bool) -> None:
        found = self._sessions.get(session)
        if found is not None:
            found.is_paused = paused
            for subscription in found.subscriptions.values():
                subscription.pause(paused)
            if not paused and found.postponed:
                self._partition.call_later(0, self._push_postponed, session)

    # Pushing

    def wake(self, subscription: Subscription) -> None:
        audience = self.audiences.get(subscription.queue)
        if audience is not None:
            audience.wake(subscription)
            if self._partition.engine.state.queues[subscription.queue].ready:
                self._plan(subscription.queue)

    def dispatch_when_durable(self, numbers: Sequence[int]) -> None:
        if self._partition.all_is_durable:
            return  # it is something else that holds them back
        if not self._undurable:
            self._partition.committer.when_durable(self._dispatch_durable, None)
        self._undurable.update(dict.fromkeys(numbers))

    def _dispatch_durable(self, _: None) -> None:
        numbers, self._undurable = self._undurable, {}
        for number in numbers:
            if number in self.audiences:
                self._plan(number)  # behind what waited for the same commit longer

    def _plan(self, number: int) -> None:
        if not self._planned:
            self._partition.committer.last(self._dispatch_planned)
        self._planned[number] = None

    def _dispatch_planned(self) -> None:
        planned, self._planned = self._planned, {}
        self.dispatch(planned)

    def dispatch(self, numbers: Iterable[int], *, at_once: bool = False) -> None:
        """Push what is ready and durable, in turn, as far as limits go. What is not durable yet follows when it is:
        were it leased before, all that is leased after it would have to wait with it. `at_once`: lease it all the same,
        because it may expire before."""
        queues = self._partition.engine.state.queues
        dealers: list[_Dealer] = []
        if self._pools_with_limit and not at_once:
            # Consumers that share a limit take turns, also with those of other queues: look at all that wait together.
            numbers = [*numbers, *self._planned]
            self._planned.clear()
        for number in dict.fromkeys(numbers) if not self._is_stopped else ():
            if number in self.audiences and queues[number].ready:
                dealers.append(_Dealer(queues[number], self.audiences[number]))
        if self._pools_with_limit:
            dealers.sort(key=lambda dealer: dealer.audience.last_turn())
        while dealers:
            going_on: list[_Dealer] = []
            together: list[_Dealer] = []
            size = 0
            for dealer in dealers:
                if not dealer.begin_turn():
                    continue
                size += dealer.queue.bytes_waiting
                if together and (size > MAX_DISPATCH_BYTES or dealer.lease_ms != together[0].lease_ms):
                    going_on += self._deal(together, at_once)
                    together, size = [], dealer.queue.bytes_waiting
                together.append(dealer)
                pool = dealer.subscription.pool
                if pool is not None and pool.most:  # it tells the others how much room there is when this one is served
                    going_on += self._deal(together, at_once)
                    together, size = [], 0
            dealers = going_on + (self._deal(together, at_once) if together else [])

    def _deal(self, dealers: list[_Dealer], at_once: bool) -> list[_Dealer]:
        """Lease for those whose turn it is and push it; the dealers that have more to deal out."""
        demands = [(dealer.queue, dealer.limit) for dealer in dealers]
        lease = self._partition.lease
        try:
            leased = lease(demands, dealers[0].lease_ms, of_session=True, durable_only=not at_once)
        except LanewayError as refusal:  # the journal takes no more at the moment
            log.warning("consumers of queue %r are not served yet: %s", dealers[0].queue.name, refusal)
            for dealer in dealers:
                dealer.audience.return_turn(dealer.subscription)
                self._partition.committer.when_durable(self._plan, dealer.queue.number)
            return []
        counts = dict(leased.queues or ((leased.queue, len(leased.seqs)),)) if leased is not None else {}
        if len(counts) < len(dealers):
            for dealer in dealers:
                if dealer.queue.number not in counts:
                    dealer.audience.return_turn(dealer.subscription)
                    self.dispatch_when_durable((dealer.queue.number,))
            dealers = [dealer for dealer in dealers if dealer.queue.number in counts]
        if leased is not None:
            self._push(dealers, leased, counts)
        going_on = [dealer for dealer in dealers if dealer.queue.ready]
        for dealer in going_on:
            if dealer.has_dealt_enough():
                self._plan(dealer.queue.number)
        return [dealer for dealer in going_on if not dealer.has_dealt_enough()]

    def _push(self, dealers: list[_Dealer], leased: Leased, counts: dict[int, int]) -> None:
        """Push what was leased for subscriptions, behind what is on its way to each already: one takes no more while it
        waits for something to be read, so what is read never overtakes anything."""
        partition, engine = self._partition, self._partition.engine
        is_durable = partition.is_durable(leased.seqs)
        columns = engine.kept(leased.seqs)
        whole = engine.deliveries(dealers[0].queue, leased, columns) if columns is not None else None
        if whole is not None:
            partition.note_delivered(AMQP, whole)
        now: list[tuple[Subscription, Deliveries]] = []
        later: list[tuple[Subscription, Deliveries]] = []
        at = 0
        for dealer in dealers:
            queue, subscription = dealer.queue, dealer.subscription
            count = counts[queue.number]
            ways = now if is_durable and subscription.on_its_way <= 0 else later
            subscription.charge(count)
            if whole is None:
                self._read(queue, subscription, leased.part(queue.number, at, at + count), ways is later)
            else:
                deliveries = whole if len(dealers) == 1 else whole.part(at, at + count)
                deliveries.queue, deliveries.queue_name, deliveries.left = queue.number, queue.name, queue.ready
                if subscription.no_ack:
                    self._settled(deliveries, "ack")
                ways.append((subscription, deliveries))
            at += count
        if later:
            partition.committer.when_durable(self._deliver, later)
        if now:
            self._deliver(now)

    def _read(self, queue: Queue, subscription: Subscription, leased: Leased, must_wait: bool) -> None:
        """Push what was leased as soon as it has been read from the journal."""
        partition, count = self._partition, len(leased.seqs)
        is_read_later = False

        def deliver(deliveries: Deliveries) -> None:
            subscription.is_reading = False
            if is_read_later:
                subscription.wake()
            partition.note_delivered(AMQP, deliveries)
            self._let_go(subscription, count - len(deliveries))  # the damaged ones are nobody's burden
            if subscription.is_cancelled:  # while they were read; whoever cancelled it was told that nothing follows
                self._give_back(subscription, deliveries)
                return
            acked = self._settled(deliveries, "ack") if subscription.no_ack and len(deliveries) else []
            if must_wait:
                partition.committer.when_durable(self._deliver_read, (subscription, deliveries))
            else:
                self._deliver_read((subscription, deliveries))
            if is_read_later:  # else dispatch() itself goes on
                partition.after(acked)

        subscription.is_reading = True
        partition.reader.read(queue, leased, deliver)
        is_read_later = subscription.is_reading

    def _deliver_read(self, what: tuple[Subscription, Deliveries]) -> None:
        """A large message is not pushed to a session that takes nothing at the moment: what it has not taken yet would
        be in memory many times over."""
        subscription, deliveries = what
        session = self._sessions.get(subscription.request.session)
        if session is None or not (session.is_paused or session.postponed) or not _is_large(deliveries):
            self._deliver([what])
            return
        subscription.is_reading = True  # it takes nothing else before this
        session.postponed.append(what)

    def _push_postponed(self, number: SessionId) -> None:
        """One in each turn of the loop: each may be as much as the session takes."""
        session = self._sessions.get(number)
        if session is None or session.is_paused or not session.postponed:
            return
        subscription, deliveries = session.postponed.popleft()
        subscription.is_reading = False
        self._deliver([(subscription, deliveries)])
        subscription.wake()
        if session.postponed:
            self._partition.call_later(0, self._push_postponed, number)

    def _give_back_postponed(self, session: Session) -> None:
        """Those of consumers that are gone."""
        gone = [what for what in session.postponed if what[0].is_cancelled]
        if gone:
            session.postponed = deque(what for what in session.postponed if not what[0].is_cancelled)
            for subscription, deliveries in gone:
                subscription.is_reading = False
                self._give_back(subscription, deliveries)

    def _deliver(self, what: list[tuple[Subscription, Deliveries]]) -> None:
        pushes: dict[SessionId, list[Push]] = {}
        queues = self._partition.engine.state.queues
        for subscription, deliveries in what:
            session = subscription.request.session
            if session not in self._sessions or deliveries.queue not in queues or subscription.is_told_of_its_end:
                self._give_back(subscription, deliveries)
                continue
            subscription.on_its_way -= len(deliveries)
            if len(deliveries):
                pushes.setdefault(session, []).append(Delivered(subscription.number, deliveries))
            if not subscription.credit.most:
                subscription.wake()
        for number, its in pushes.items():
            if (found := self._sessions.get(number)) is not None:
                self._partition.hand_over(found.push, its, True)

    def _give_back(self, subscription: Subscription, deliveries: Deliveries) -> None:
        """They were on their way to one that takes nothing any more. If it does not acknowledge, they may be acked
        already; those are passed over."""
        self._let_go(subscription, len(deliveries))
        if len(deliveries):
            self._settle(deliveries, "release")

    def _let_go(self, subscription: Subscription, count: int) -> None:
        """So many messages that were on their way to a subscription do not reach it."""
        if count:
            subscription.on_its_way -= count
            if not subscription.no_ack:
                subscription.grant(count)
                session = self._sessions.get(subscription.request.session)
                if session is not None:
                    session.forget_if_done(subscription)

    def get(self, queue: Queue, session: SessionId, done: Callable[[Any], None], *, no_ack: bool) -> None:
        """The next message of a queue, if there is one; handed over as soon as it is durable."""
        partition = self._partition
        self.used(queue)
        partition.tick_if_due()  # what has expired is not handed out
        leased = None
        if queue.ready and not self._is_consumed(queue):
            leased = partition.lease([(queue, 1)], None, of_session=True)
        if leased is None:
            partition.hand_over(done, NOTHING, True)
            return
        is_durable = partition.is_durable(leased.seqs)

        def hand_over(deliveries: Deliveries) -> None:
            if session not in self._sessions:  # nobody is there any more to settle it
                self._settle(deliveries, "release")
                deliveries = NOTHING
            done(deliveries)

        def got(deliveries: Deliveries) -> None:
            if not len(deliveries):  # it is damaged, or went while it was read
                self._get_another(queue, session, done, no_ack=no_ack)
                return
            partition.note_delivered(AMQP, deliveries)
            if no_ack and session in self._sessions:
                self._settle(deliveries, "ack")
            partition.hand_over(hand_over, deliveries, is_durable)

        partition.read(queue, leased, got)

    def _is_consumed(self, queue: Queue) -> bool:
        """Whether all that is ready goes to consumers that have credit. They waited for it longer."""
        if queue.number in self.audiences:
            self.dispatch((queue.number,), at_once=True)
        audience = self.audiences.get(queue.number)  # a push may have ended the last consumer
        return audience is not None and audience.demand(queue.ready) >= queue.ready

    def _get_another(self, queue: Queue, session: SessionId, done: Callable[[Any], None], *, no_ack: bool) -> None:
        try:
            self._partition.find_number(queue.number)
            self.get(queue, session, done, no_ack=no_ack)
        except LanewayError as refusal:
            self._partition.hand_over(done, refusal, True)

    def _settle(self, deliveries: Deliveries, action: str) -> None:
        self._partition.after(self._settled(deliveries, action))

    def _settled(self, deliveries: Deliveries, action: str) -> list[Event]:
        partition = self._partition
        state, now_ms = partition.engine.state, partition.now()
        if deliveries.queue not in state.queues or partition.engine.closed:
            return []
        queues = [(deliveries.queue, len(deliveries.seqs))]
        try:
            events = partition.engine.run(
                settle_held(state, queues, deliveries.seqs, deliveries.leases, action, now_ms)
            )
        except LanewayError as refusal:  # the journal takes no more: their leases will expire
            log.warning("messages could not be settled: %s", refusal)
            return []
        partition.committer.touch_later()
        return events


def _is_large(deliveries: Deliveries) -> bool:
    return sum(map(len, deliveries.bodies)) > LARGE_BYTES


def _nobody(pushes: list[Push]) -> None:
    """The session is gone."""
