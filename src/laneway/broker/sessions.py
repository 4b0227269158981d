"""What connections need beyond single calls: subscriptions that messages are pushed to, queues that live and die with
their users, and settling by number instead of by receipt handle.

Everything here is done at once, on the loop; whoever must know that it is durable asks with `Broker.when_durable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from laneway.broker.audiences import Audience, Cancelled, Credit, Deliver, Subscription
from laneway.broker.values import Batch, QueueInfo
from laneway.core import commands, lease_commands
from laneway.core.events import Acked, Event, Leased
from laneway.core.message import Draft, Receipt
from laneway.core.queue import Queue
from laneway.core.runs import joined, runs
from laneway.core.settings import QueueSettings
from laneway.errors import Conflict, LanewayError, QueueInUse, Unavailable

if TYPE_CHECKING:
    import asyncio

    from laneway.broker.broker import Broker

#: After so many bytes of one queue, consumers get time to say that they cannot take more at the moment.
MAX_DISPATCH_BYTES = 4 * 1024 * 1024

#: What waits to be carried out together when a commit is sealed; with more than this it is done before.
MAX_GATHERED_BYTES = 8 * 1024 * 1024

#: Messages with nothing special about them: queues, the priority in each, encoded properties, bodies.
Columns = tuple[tuple[int, ...], tuple[int, ...], list[bytes], list[bytes]]

#: Where it is noted which number the first of some messages got, and when they were published.
Place = list[int]
_Part = tuple[int, list[bytes], list[bytes], "Place | None"]  # priority, encoded properties, bodies

Published = Callable[["LanewayError | None"], None]


class Sessions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.audiences: dict[int, Audience] = {}  # by queue number
        self._owners: dict[int, object] = {}  # by queue number
        self._owned: dict[object, dict[int, None]] = {}  # … and the other way round
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._is_stopped = False
        self._planned: set[int] = set()  # queues to be looked at in the next turn of the loop
        # By publish_columns, to be carried out together.
        self._gathered: list[tuple[Sequence[Columns], Published | None, Sequence[Place] | None]] = []
        self._gathered_bytes = 0
        self._undurable: set[int] = set()  # queues to be looked at when what they hold is durable

    # Queues

    def start(self) -> None:
        for queue in self._broker.engine.state.queues.values():
            self.used(queue)

    def stop(self) -> None:
        """Hand out nothing more. What is settled from now on counts as long as there is a commit to go with."""
        self._is_stopped = True
        for timer in self._expiries.values():
            timer.cancel()
        self._expiries.clear()

    def declare_queue(self, vhost: str, name: str, settings: QueueSettings, owner: object = None) -> QueueInfo:
        """The queue of this name, made now if there is none. `owner` has it for itself alone."""
        info = self._broker.queues.find(vhost, name)
        if info is None:
            info = self._broker.queues.put_now(vhost, name, settings)[0]
            if owner is not None:
                number = self._broker.find_queue(vhost, name).number
                self._owners[number] = owner
                self._owned.setdefault(owner, {})[number] = None
        self.used(self._broker.find_queue(vhost, name))
        return info

    def number(self, vhost: str, name: str) -> int:
        return self._broker.find_queue(vhost, name).number

    def queue_owner(self, vhost: str, name: str) -> object:
        """Who has this queue for itself alone; None if everybody may use it."""
        return self._owners.get(self._broker.find_queue(vhost, name).number)

    def owned_by(self, owner: object) -> list[str]:
        """The names of the queues that it has for itself alone."""
        return [self._broker.engine.state.queues[number].name for number in self._owned.get(owner, ())]

    def counts(self, vhost: str, name: str) -> tuple[int, int]:
        """(ready messages, consumers)"""
        queue = self._broker.find_queue(vhost, name)
        self._broker.run_gathered()
        audience = self.audiences.get(queue.number)
        return queue.ready, len(audience.members) if audience is not None else 0

    def delete_queue(self, vhost: str, name: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """How many ready messages went with it."""
        queue = self._broker.find_queue(vhost, name)
        if if_unused and queue.number in self.audiences:
            raise QueueInUse(f"queue {name!r} has consumers", field="if_unused")
        self._broker.run_gathered()
        if if_empty and queue.ready:
            raise Conflict(f"queue {name!r} is not empty", field="if_empty")
        ready = queue.ready
        self._broker.queues.delete_now(vhost, name)
        return ready

    def purge(self, vhost: str, name: str) -> int:
        return self._broker.queues.purge_now(vhost, name)

    def queue_gone(self, number: int) -> None:
        """Called when a queue was deleted, however that came about."""
        owner = self._owners.pop(number, None)
        if owner is not None:
            del self._owned[owner][number]
            if not self._owned[owner]:
                del self._owned[owner]
        timer = self._expiries.pop(number, None)
        if timer is not None:
            timer.cancel()
        audience = self.audiences.pop(number, None)
        for subscription in list(audience.members) if audience is not None else ():
            self._leave_credit(subscription)
            subscription.cancelled = True
            subscription.told(subscription)

    def used(self, queue: Queue) -> None:
        """A queue that expires when nobody uses it was used, or has just lost its last consumer."""
        timer = self._expiries.pop(queue.number, None)
        if timer is not None:
            timer.cancel()
        expires_ms = queue.settings.expires_ms
        if expires_ms is not None and queue.number not in self.audiences:
            self._expiries[queue.number] = self._broker.call_later(expires_ms, self._expire, queue.number)

    def _expire(self, number: int) -> None:
        queue = self._broker.engine.state.queues.get(number)
        if queue is None or number in self.audiences:
            return
        if number in self._broker.waiting:
            self.used(queue)
            return
        try:
            self._broker.queues.delete_now(queue.vhost, queue.name)
        except LanewayError:  # not now: a full disk, or another queue's dead letters go there
            self.used(queue)

    # Publishing

    def publish(self, numbers: Iterable[int], draft: Draft, done: Published) -> None:
        """One message into several queues, in one commit; `done(None)` once it is durable in all of them."""
        refusals = self.publish_all([(numbers, draft)])
        self._broker.when_durable(done, refusals[0] if refusals else None)

    def publish_all(self, messages: Sequence[tuple[Iterable[int], Draft]]) -> list[LanewayError]:
        """Several messages in one commit, and why some of them were refused by some queues. Whether the disk has room
        is asked once, for all of them: it is all or nothing."""
        broker = self._broker
        broker.check_writable()
        broker.run_gathered()
        now_ms = broker.now()
        results: list[Receipt | LanewayError] = []
        for numbers, draft in messages:
            for number in numbers:
                queue = broker.engine.state.queues.get(number)
                if queue is not None:
                    broker.publish_now(queue, (_fitting(draft, queue),), now_ms, results)
        return [result for result in results if isinstance(result, LanewayError)]

    def takes_columns(self, numbers: Iterable[int], size: int) -> bool:
        """Whether messages of this size with encoded properties, and nothing special about them, may go into these
        queues by publish_columns. The answer holds until `exchanges.version` changes."""
        queues = self._broker.engine.state.queues
        return all(number in queues and commands.takes_columns(queues[number], size) for number in numbers)

    def priorities(self, numbers: Iterable[int], priority: int | None) -> tuple[int, ...]:
        """Which priority a message has in each of these queues: the usual one if it has none, the highest at most."""
        settings = [self._broker.engine.state.queues[number].settings for number in numbers]
        return tuple(s.priority_when_unset if priority is None else min(priority, s.max_priority) for s in settings)

    def publish_columns(
        self,
        runs: Sequence[Columns],
        size_bytes: int,
        done: Published | None = None,
        places: Sequence[Place] | None = None,
    ) -> None:
        """All of these in one commit, together with what else comes until it is sealed: nobody gets them before they
        are durable, so many can be carried out at once. `done(None)` when they are. The caller has asked takes_columns.
        `size_bytes`: of all bodies. `places`: one for each run, if it is to be noted; each run then has one queue.
        """
        broker = self._broker
        broker.check_writable()
        broker.run_gathered_before_publish()
        broker.committer.touch()
        self._gathered.append((runs, done, places))
        self._gathered_bytes += size_bytes
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            broker.run_gathered()

    def run_gathered(self) -> None:
        """Carry out what publish_columns has gathered: one event a queue, highest priority first."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, []
        self._gathered_bytes = 0
        by_queue: dict[int, list[_Part]] = {}
        for columns, _, places in gathered:
            for at, (numbers, priorities, props, bodies) in enumerate(columns):
                place = None if places is None else places[at]
                for number, priority in zip(numbers, priorities, strict=True):
                    by_queue.setdefault(number, []).append((priority, props, bodies, place))
        trouble: LanewayError | None = None
        try:
            for number, parts in by_queue.items():
                self._publish_parts(number, parts)
        except LanewayError as refusal:  # the journal takes no more
            trouble = refusal
        for _, done, _ in gathered:
            if done is not None:
                self._broker.when_durable(done, trouble)

    def _publish_parts(self, number: int, parts: list[_Part]) -> None:
        broker = self._broker
        queue = broker.engine.state.queues.get(number)
        if queue is None:
            return  # deleted since: its messages would have gone with it
        _, props, bodies, _ = parts[0]
        priorities = [parts[0][0]] * len(bodies)
        if len(parts) > 1:
            parts.sort(key=_priority_of, reverse=True)
            props = list(chain.from_iterable([part[1] for part in parts]))
            bodies = list(chain.from_iterable([part[2] for part in parts]))
            priorities = list(chain.from_iterable([[part[0]] * len(part[2]) for part in parts]))
        state, now_ms = broker.engine.state, broker.now()
        first = state.table.next_seq
        broker.run_now(commands.publish_columns(state, queue, props, bodies, priorities, now_ms))
        for _, _, some, place in parts:
            if place is not None:
                place += (first, now_ms)
            first += len(some)

    # Consuming

    def subscribe(
        self,
        vhost: str,
        name: str,
        *,
        tag: str,
        credit: int,
        deliver: Deliver,
        cancelled: Cancelled,
        pool: Credit | None = None,
        priority: int = 0,
        exclusive: bool = False,
        no_ack: bool = False,
        lease_ms: int | None = None,
    ) -> Subscription:
        """`credit` 0 stands for unlimited; `pool` is a further limit shared with others."""
        queue = self._broker.open_queue(vhost, name)
        audience = self.audiences.get(queue.number)
        if audience is not None:
            if exclusive or any(s.exclusive for s in audience.members):
                raise QueueInUse(f"queue {name!r} has a consumer that wants it for itself alone", field="exclusive")
            if len(audience.members) >= self._broker.limits.max_waiters_per_queue:
                raise Unavailable(f"queue {name!r} has {len(audience.members)} consumers already")
        else:
            audience = self.audiences[queue.number] = Audience(queue)
        subscription = Subscription(
            self,
            queue.number,
            tag,
            Credit(credit or None),
            pool,
            deliver,
            cancelled,
            priority=priority,
            exclusive=exclusive,
            no_ack=no_ack,
            lease_ms=lease_ms,
        )
        for limit in (subscription.credit, pool):
            if limit is not None:
                limit.subscriptions.append(subscription)
        audience.add(subscription)
        self.used(queue)
        self._plan(queue.number)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        subscription.cancelled = True
        self._leave_credit(subscription)
        audience = self.audiences.get(subscription.queue)
        if audience is None:
            return
        audience.discard(subscription)
        queue = self._broker.engine.state.queues[subscription.queue]
        if audience.members:
            self._plan(queue.number)  # a single active consumer has a successor
            return
        del self.audiences[subscription.queue]
        if queue.settings.auto_delete:
            self._expire(queue.number)
        else:
            self.used(queue)

    @staticmethod
    def _leave_credit(subscription: Subscription) -> None:
        for limit in (subscription.credit, subscription.pool):
            if limit is not None and subscription in limit.subscriptions:
                limit.subscriptions.remove(subscription)

    def wake(self, subscription: Subscription) -> None:
        audience = self.audiences.get(subscription.queue)
        if audience is not None:
            audience.wake(subscription)
            self._plan(subscription.queue)

    def dispatch_when_durable(self, number: int) -> None:
        if self._broker.all_is_durable:
            return  # it is something else that holds them back
        if not self._undurable:
            self._broker.when_durable(self._dispatch_durable, None)
        self._undurable.add(number)

    def _dispatch_durable(self, _: None) -> None:
        numbers, self._undurable = self._undurable, set()
        for number in numbers:
            self._plan(number)  # behind what waited for the same commit longer

    def _plan(self, number: int) -> None:
        if not self._planned:
            self._broker.committer.last(self._dispatch_planned)
        self._planned.add(number)

    def _dispatch_planned(self) -> None:
        planned, self._planned = self._planned, set()
        for number in planned:
            self.dispatch(number)

    def dispatch(self, number: int, *, at_once: bool = False) -> None:
        """Hand out what is ready and durable, in turn, as far as credit goes. What is not durable yet follows when it
        is: were it leased before, all that is leased after it would have to wait with it. `at_once`: it is leased all
        the same, because it may expire before."""
        audience = self.audiences.get(number)
        queue = self._broker.engine.state.queues.get(number)
        share = turns = size = 0
        if self._is_stopped:
            return
        while audience is not None and queue is not None and queue.ready:
            turn = audience.next()
            if turn is None:
                return
            subscription, room, sharers = turn
            if not turns:  # as if they were dealt out one by one: equal shares, then one each
                share, turns = max(1, queue.ready // sharers), sharers
            turns -= 1
            leased = self._broker.lease_now(
                queue, min(room, share), subscription.lease_ms, of_session=True, durable_only=not at_once
            )
            if leased is None:
                audience.return_turn(subscription)
                self.dispatch_when_durable(number)
                return
            has_more_coming = subscription.on_its_way > 0
            batches = self._batches(queue, leased)
            count = sum([len(batch.seqs) for batch in batches])  # those that are whole
            if not count:
                continue
            subscription.charge(count)
            if subscription.no_ack:
                self._broker.engine.run(_all_acked(batches, leased.at_ms))
            if has_more_coming:  # stay behind those, whose messages may not be durable yet
                self._broker.when_durable(_deliver, (subscription, batches, count))
            else:
                self._broker.hand_over(_deliver, (subscription, batches, count), self._broker.is_durable(leased.seqs))
            if queue.ready:
                size += sum([sum(map(len, batch.bodies)) for batch in batches])
                if size > MAX_DISPATCH_BYTES:
                    self._plan(number)
                    return

    def get(self, vhost: str, name: str, done: Callable[[Batch | None], None], *, no_ack: bool = False) -> None:
        """The next message, None if there is none; told at once unless the message is not durable yet."""
        queue = self._broker.open_queue(vhost, name)
        self.used(queue)
        self._broker.tick_if_due()  # what has expired is not handed out
        while queue.ready:
            leased = self._broker.lease_now(queue, 1, None, of_session=True)
            if leased is None:
                break
            batches = self._batches(queue, leased)
            if batches:
                if no_ack:
                    self._broker.engine.run(_all_acked(batches, leased.at_ms))
                self._broker.hand_over(done, batches[0], self._broker.is_durable(leased.seqs))
                return
        done(None)

    def ack(self, number: int, seqs: Sequence[Sequence[int]], leases: Sequence[Sequence[int]]) -> None:
        """Ack what a session holds, in parts as it was given out."""
        self.settle(number, joined(seqs), joined(leases), "ack")

    def settle(
        self,
        number: int,
        seqs: Sequence[int],
        leases: Sequence[int],
        action: str,
        *,
        lease_ms: int | None = None,
    ) -> None:
        """Ack, release, reject or extend what a session holds; what it no longer holds is passed over. So is all when
        the last commit is under way: the next start gives it back. `lease_ms` is for extending; without it, it is the
        queue's."""
        queue = self._broker.engine.state.queues.get(number)
        if queue is not None and not self._broker.engine.closed:
            lease_ms = queue.settings.lease_ms if lease_ms is None else lease_ms
            command = lease_commands.settle_held(
                self._broker.engine.state, queue, seqs, leases, action, self._broker.now(), lease_ms
            )
            self._broker.run_now(command)

    def _batches(self, queue: Queue, leased: Leased) -> list[Batch]:
        """What a lease hands out, without the damaged ones: those come back when it ends, and die in the end."""
        state = self._broker.engine.state
        at_ms, props, bodies = self._broker.engine.contents(leased.seqs)
        seqs, receives, lease = leased.seqs, leased.receives, leased.first_lease
        priorities = state.table.priorities(runs(seqs))
        stories = None
        if state.stories:
            stories = {seq: state.stories[seq] for seq in seqs if seq in state.stories} or None
        whole = Batch(queue.number, queue.name, seqs, lease, receives, at_ms, props, bodies, priorities, stories)  # type: ignore[arg-type]
        if None not in bodies:
            return [whole]
        return [_one_of(whole, i) for i, body in enumerate(bodies) if body is not None]


def _one_of(batch: Batch, i: int) -> Batch:
    return Batch(
        batch.queue,
        batch.name,
        batch.seqs[i : i + 1],
        batch.first_lease + i,
        batch.receives[i : i + 1],
        batch.enqueued_at_ms[i : i + 1],
        batch.props[i : i + 1],
        batch.bodies[i : i + 1],
        batch.priorities[i : i + 1],
        batch.stories,
    )


def _fitting(draft: Draft, queue: Queue) -> Draft:
    """One message for queues of many ranges: each takes it at its own highest priority at most."""
    highest = queue.settings.max_priority
    if draft.priority is None or draft.priority <= highest:
        return draft
    return msgspec.structs.replace(draft, priority=highest)


def _priority_of(part: _Part) -> int:
    return part[0]


def _all_acked(batches: list[Batch], at_ms: int) -> Iterator[Event]:
    for batch in batches:
        leases = range(batch.first_lease, batch.first_lease + len(batch.seqs))
        yield Acked(batch.queue, at_ms, batch.seqs, leases)


def _deliver(what: tuple[Subscription, list[Batch], int]) -> None:
    subscription, batches, count = what
    subscription.on_its_way -= count
    for batch in batches:
        subscription.deliver(subscription, batch)
    if subscription.credit.left is None:
        subscription.wake()
