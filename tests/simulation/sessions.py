"""Connections, as AMQP has them: subscriptions with credit, messages settled by number, publishing into several queues
at once, transactions, and connections that end and give back what they hold.

Two queues, FANNED, get one message each of the same body. In the ledger each copy has the queue's name at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker import interface as i
from laneway.broker.values import Arrival, Deliveries, Receipt, Receipts
from laneway.core import lease_commands, purging
from laneway.core.message import Draft, Properties, Settlement, messages_of
from laneway.core.queue import Queue
from laneway.core.settings import QueueSettings
from laneway.errors import (
    DiskFull,
    LanewayError,
    LeaseStale,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    TooLargeForDisk,
    Unavailable,
)

from .ledger import FANNED, Batch, Held, Sent, marked
from .node import Node

if TYPE_CHECKING:
    from laneway.broker.values import Delivery

    from .workload import Workload

SETTINGS = {
    "left": QueueSettings(max_receives=None, lease_ms=4_000, max_priority=3, default_priority=0),
    "right": QueueSettings(max_receives=3, lease_ms=1_000_000, single_active_consumer=True),
}
UNACKED = "left"  # the queue that may have consumers without acks
ACTIONS = {
    "subscribe": 6,
    "send": 10,
    "transact": 12,
    "settle": 12,
    "get": 6,
    "hang_up": 1,
    "cancel": 1,
    "pause": 1,
    "raise_limit": 1,
    "own": 1,
    "settle_stale": 1,
}
EXTEND_MS = 5_000
POOL = 7  # the number of the pool of every connection that has one
ALONE = QueueSettings(exclusive=True)


class SessionHeld(Held):
    """A message that a connection holds."""

    __slots__ = ("consumer", "number", "seq")

    def __init__(self, sent: Sent, queue: str, delivery: Delivery, partition: int, incarnation: int) -> None:
        super().__init__(sent, queue, delivery, partition, incarnation)
        self.seq = int(delivery.token[16:], 16)
        self.number = 0  # of the queue
        self.consumer: Consumer | None = None


class Connection:
    def __init__(self, pool_limit: int) -> None:
        self.session = 0
        self.pool_limit = pool_limit  # 0: none
        self.consumers: list[Consumer] = []  # those that want messages
        self.by_number: dict[int, Consumer] = {}  # all there ever were
        self.held: dict[str, SessionHeld] = {}
        self.owned: list[str] = []  # queues that it has for itself alone
        self.is_paused = False
        self.is_closing = False  # its consumers were cancelled, and what comes all the same goes back
        self.is_over = False  # it has ended
        self.outstanding = 0


class Consumer:
    """One subscription, and what it has to say about the order and the number of what it gets."""

    def __init__(self, connection: Connection, queue: str, credit: int, *, no_ack: bool) -> None:
        self.connection = connection
        self.number = len(connection.by_number) + 1
        self.queue = queue
        self.no_ack = no_ack
        self.credit = credit
        self.outstanding = 0
        self.last_lease = 0
        self.is_over = False  # whoever cancelled it was told that nothing follows; or it heard that its queue went
        #: (priority, tenant if it counts) -> order of the message that came last for the first time
        self.latest: dict[tuple[int, str], int] = {}

    def check(self, deliveries: Deliveries) -> None:
        assert len(deliveries), f"{self.queue}: a consumer was pushed nothing"
        assert deliveries.leases[0] > self.last_lease, (
            f"{self.queue}: a batch overtook another on its way to a consumer"
        )
        self.last_lease = deliveries.leases[-1]
        if self.no_ack:
            return
        self.outstanding += len(deliveries)
        assert not self.credit or self.outstanding <= self.credit, (
            f"{self.credit} may be outstanding, not {self.outstanding}"
        )
        self.connection.outstanding += len(deliveries)
        limit, outstanding = self.connection.pool_limit, self.connection.outstanding
        assert not limit or outstanding <= limit, f"{limit} may be outstanding, not {outstanding}"

    def check_order(self, sent: Sent, delivery: Delivery) -> None:
        draft = sent.draft
        if (
            delivery.receives > 1
            or delivery.deaths
            or draft.delay_ms
            or draft.properties.group
            or self.queue == "brief"
        ):
            return
        if sent.is_ordered_in(self.queue):
            line = delivery.priority, draft.properties.tenant if self.queue == "shared" else ""
            latest = self.latest.get(line, 0)
            assert sent.order > latest, f"{sent} came to a consumer of {self.queue} after {latest}, out of order"
            self.latest[line] = sent.order

    def has_room(self) -> bool:
        connection = self.connection
        is_full = self.credit and self.outstanding >= self.credit
        pool_is_full = connection.pool_limit and connection.outstanding >= connection.pool_limit
        return not (self.no_ack or connection.is_paused or is_full or pool_is_full)


class SessionWorkload:
    def __init__(self, workload: Workload) -> None:
        self.work = workload
        self.random: Random = workload.random
        self.ledger = workload.ledger
        self.connections: list[Connection] = []
        self.stale: list[SessionHeld] = []  # of connections that are gone
        self._life: Node | None = None
        self._own_count = 0
        self._weights = [weight * self.random.choice((0.3, 1, 1, 2)) for weight in ACTIONS.values()]
        self._actions: dict[str, Callable[[Node], None]] = {name: getattr(self, f"_{name}") for name in ACTIONS}

    def step(self, node: Node) -> None:
        if node is not self._life:  # the connections of before are gone
            self.stale = [hold for c in self.connections for hold in c.held.values()][-20:]
            for hold in self.stale:
                hold.consumer = None
            self.connections, self._life = [], node
        name = self.random.choices(list(ACTIONS), self._weights)[0]
        self.work.counts[f"session {name}"] += 1
        self._actions[name](node)

    def unserved(self, node: Node, queue: Queue) -> list[Any]:
        """Consumers of a queue that could take messages; if only one is to be active, as long as none holds any."""
        connections = self.connections if node is self._life else []
        of_queue = [c for connection in connections for c in connection.consumers if c.queue == queue.name]
        if queue.settings.single_active_consumer and any(c.outstanding or not c.has_room() for c in of_queue):
            return []
        return [(queue.name, c, queue.ready) for c in of_queue if c.has_room()]

    def _queues(self, node: Node) -> list[str]:
        return [name for name in self.work.all_names if node.has(name)]

    def _connection(self, node: Node) -> Connection:
        if not self.connections or (len(self.connections) < 4 and self.random.random() < 0.3):
            self.connections.append(self._connect(node))
        return self.random.choice(self.connections)

    def _connect(self, node: Node) -> Connection:
        connection = Connection(self.random.choice((0, 0, 3, 10)))

        def pushed(pushes: list[i.Push]) -> None:
            for push in pushes:
                take(push)

        def take(push: i.Push) -> None:
            assert not connection.is_over, f"{push} was pushed to a session that has ended"
            consumer = connection.by_number[push.consumer]
            assert not consumer.is_over, f"{push} was pushed to a consumer that was told of its end"
            if isinstance(push, i.Delivered):
                self._delivered(node, consumer, push.deliveries)
            else:
                consumer.is_over = True
                if consumer in connection.consumers:
                    connection.consumers.remove(consumer)

        connection.session = node.broker.open_session(self.work.guarded(node, pushed))
        if connection.pool_limit:
            self._limit(node, connection)
        return connection

    def _limit(self, node: Node, connection: Connection) -> None:
        node.answer(i.LimitPool(connection.session, POOL, connection.pool_limit))

    def _raise_limit(self, node: Node) -> None:
        limited = [connection for connection in self.connections if connection.pool_limit]
        if limited:
            connection = self.random.choice(limited)
            connection.pool_limit += self.random.choice((1, 5))
            self._limit(node, connection)

    def _when_durable(self, node: Node, done: Callable[[], None]) -> None:
        """Call when all that was asked for so far is durable. Asked for a little later: what is merged is not cut."""

        def ask() -> None:
            self.work.send(node, i.Sync(), lambda answer: done() if answer is None else None)

        node.loop.call_later(self.random.choice((0, 0.002, 0.02)), self.work.guarded(node, ask))

    # Consuming

    def _subscribe(self, node: Node) -> None:
        names, connection = self._queues(node), self._connection(node)
        if not names or len(connection.consumers) >= 4:
            return
        queue = self.random.choice(names)
        no_ack = queue == UNACKED and self.random.random() < 0.1
        consumer = Consumer(connection, queue, self.random.choice((0, 1, 3, 20)) * (not no_ack), no_ack=no_ack)
        connection.by_number[consumer.number] = consumer
        request = i.Subscribe(
            connection.session,
            consumer.number,
            node.id(queue),
            consumer.credit,
            POOL if connection.pool_limit else 0,
            priority=self.random.choice((0, 0, 1)),
            exclusive=self.random.random() < 0.05,
            lease_ms=self.random.choice((None, None, 300, 600_000)),
            no_ack=no_ack,
        )
        if no_ack:
            self.ledger.unacked.add(queue)
        connection.consumers.append(consumer)
        refused = node.answer(request)
        if refused is not None:
            is_known = isinstance(refused, QueueInUse) or self.work.refused(node, refused)
            assert is_known, f"subscribing was answered with {refused!r}"
            connection.consumers.remove(consumer)

    def _delivered(self, node: Node, consumer: Consumer, deliveries: Deliveries) -> None:
        if consumer.no_ack:
            consumer.check(deliveries)
            self._gone(node, self._note(node, None, deliveries))
            return
        consumer.check(deliveries)
        holds = self._note(node, consumer, deliveries)
        for hold in holds:
            consumer.connection.held[hold.token] = hold
        if consumer.connection.is_closing:
            self._settle_now(node, holds, "release")
            return
        for hold, delivery in zip(holds, deliveries, strict=True):
            consumer.check_order(hold.sent, marked(consumer.queue, delivery))

    def _gone(self, node: Node, holds: list[SessionHeld]) -> None:
        """They were acked when they were handed out."""
        self.work.counts["not acked"] += len(holds)
        for hold in holds:
            hold.sent.leaving += 1
            hold.settling += 1

        def durable() -> None:
            for hold in holds:
                hold.settling -= 1
                hold.sent.leaving -= 1
                hold.sent.gone = hold.ended = True

        self._when_durable(node, durable)

    def _note(self, node: Node, consumer: Consumer | None, given: Deliveries) -> list[SessionHeld]:
        self.work.counts["pushed" if consumer is not None else "got"] += len(given)
        deliveries = [marked(given.queue_name, d) for d in given]
        holds = self.ledger.delivered(
            given.queue_name, deliveries, node.broker.now(), kind=SessionHeld, partition=self.work.partition
        )
        for hold in holds:
            hold.consumer, hold.number = consumer, given.queue  # type: ignore[attr-defined]
        return holds  # type: ignore[return-value]

    def _get(self, node: Node) -> None:
        names, connection = self._queues(node), self._connection(node)
        if not names:
            return
        queue = self.random.choice(names)
        no_ack = queue == UNACKED and self.random.random() < 0.1
        if no_ack:
            self.ledger.unacked.add(queue)

        def got(answer: Deliveries | LanewayError) -> None:
            if isinstance(answer, LanewayError):
                is_gone = isinstance(answer, QueueNotFound)  # deleted while the message was read
                assert is_gone or self.work.refused(node, answer), f"asking for a message was answered with {answer!r}"
                return
            if not len(answer):
                return
            assert len(answer) == 1 and not connection.is_over, "a session that has ended was given a message"
            holds = self._note(node, None, answer)
            if no_ack:
                self._gone(node, holds)
            elif connection.is_closing:
                self._settle_now(node, holds, "release")
            else:
                connection.held.update((hold.token, hold) for hold in holds)

        self.work.send(node, i.Lease(node.id(queue), 1, session=connection.session, no_ack=no_ack), got)

    def _cancel(self, node: Node) -> None:
        consumers = [consumer for connection in self.connections for consumer in connection.consumers]
        if consumers:
            self._unsubscribe(node, self.random.choice(consumers))

    def _unsubscribe(self, node: Node, consumer: Consumer) -> None:
        consumer.connection.consumers.remove(consumer)

        def done(answer: object) -> None:
            assert answer is None, f"unsubscribing was answered with {answer!r}"
            consumer.is_over = True

        self.work.send(node, i.Unsubscribe(consumer.connection.session, consumer.number), done)

    def _pause(self, node: Node) -> None:
        for connection in self.connections:
            connection.is_paused = self.random.random() < 0.3
            node.answer(i.Flow(connection.session, connection.is_paused))

    def _hang_up(self, node: Node) -> None:
        """A connection ends, or one of its channels, and gives back all that it holds."""
        if not self.connections:
            return
        connection = self.connections.pop(self.random.randrange(len(self.connections)))
        connection.is_closing = True
        ends = self.random.random() < 0.7
        if not ends or self.random.random() < 0.3:
            for consumer in list(connection.consumers):
                self._unsubscribe(node, consumer)
        self._settle_now(node, list(connection.held.values()), "release")
        if ends:
            owned = [name for name in connection.owned if node.has(name)]
            goes_in_slices = sum(1 + len(node.seqs(name)) for name in owned) > purging.SLICE
            node.answer(i.EndSession(connection.session))
            connection.is_over = True
            if not node.partition.committer.stuck:
                left = [name for name in connection.owned if node.has(name)]
                assert not left or goes_in_slices, "a queue outlives its connection"

    def _own(self, node: Node) -> None:
        """A queue that goes with the connection; what is in it is of no interest to anybody else."""
        connection = self._connection(node)
        self._own_count += 1
        name = f"own-{self._own_count}"

        def declared(answer: Any) -> None:
            if isinstance(answer, LanewayError):
                assert isinstance(answer, DiskFull | Unavailable), f"declaring was answered with {answer!r}"
            else:
                assert answer.info.owner == connection.session and answer.is_new
                connection.owned.append(name)

        self.work.send(node, i.DeclareQueue("/", name, ALONE, connection.session), declared)
        if node.has(name) and self.random.random() < 0.5:
            connection.owned.append(name)
            request = i.Publish((node.id(name),), messages_of([Draft(f"{name}: {n}".encode()) for n in range(3)]))
            self.work.send(node, request, lambda answer: None)

    # Settling

    def _some_held(self) -> list[SessionHeld]:
        connections = [connection for connection in self.connections if connection.held]
        if not connections:
            return []
        connection = self.random.choice(connections)
        held = list(connection.held.values())
        if self.random.random() < 0.5:  # those that came first, as a client with multiple=1 does
            return held[: self.random.choice((1, 2, 5, 20))]
        return self.random.sample(held, min(len(held), self.random.choice((1, 2, 5))))

    def _settle(self, node: Node) -> None:
        action = self.random.choices(("ack", "release", "reject", "extend"), (12, 3, 2, 1))[0]
        self._settle_now(node, self._some_held(), action)

    def _settle_stale(self, node: Node) -> None:
        self._settle_now(node, self.stale, self.random.choice(("ack", "release", "reject")))

    def _settle_now(self, node: Node, holds: Sequence[SessionHeld], action: str) -> None:
        """Settle what a connection holds, consumer by consumer."""
        if not holds:
            return
        ending = Ending(self, node, holds, action)
        for request in ending.requests:
            node.broker.send(request, self.work.guarded(node, _not_answered))
        if self.random.random() < 0.1:  # once more: what is held no longer is passed over
            for request in ending.requests:
                again = msgspec.structs.replace(request, consumer=0)
                node.broker.send(again, self.work.guarded(node, _not_answered))
        self._when_durable(node, ending.durable)

    def expectation(self, hold: SessionHeld, now_ms: int) -> bool | None:
        """True if it must be taken, False if it must be passed over, None if either is right."""
        if hold.incarnation != self.ledger.incarnations[hold.partition]:
            return False  # given back at the start
        if hold.settling:
            return None
        if hold.ended or hold.superseded or hold.sent.gone:
            return False
        return True if hold.deadline_ms > now_ms and not hold.sent.leaving else None

    # Publishing

    def _send(self, node: Node) -> None:
        publishing = self._messages(node)
        if publishing is None:
            return
        targets, drafts, entered = publishing
        same = targets[0] if targets.count(targets[0]) == len(targets) and self.random.random() < 0.5 else targets
        request = i.Publish(same, messages_of(drafts, clamps=True))
        self.work.send(node, request, lambda answer: self._told(node, entered, answer))

    def _transact(self, node: Node) -> None:
        """Publishes and settlements without anything else in between: all of it survives, or none."""
        holds = self._some_held()
        ending = Ending(self, node, holds, self.random.choice(("ack", "ack", "release", "reject"))) if holds else None
        publishing = self._messages(node)
        if publishing is None:
            publishing = [], [], Entered(self.ledger.send("", 0, [], node.broker.now(), is_plain=True))
        targets, drafts, entered = publishing
        if ending is not None and ending.action == "ack" and entered.batch.is_plain:
            entered.batch.settled = [hold.sent for hold in ending.taken]

        def done(answer: list[Arrival] | LanewayError) -> None:
            self._told(node, entered, answer)
            if ending is not None:
                if isinstance(answer, LanewayError):
                    ending.refused()
                else:
                    ending.durable()

        settlements = ending.requests if ending is not None else []
        self.work.send(node, i.Transact(targets, messages_of(drafts, clamps=True), settlements), done)

    def _messages(self, node: Node) -> tuple[list[i.Targets], list[Draft], Entered] | None:
        """Messages for several queues, mostly all of them for the same; entered in the ledger."""
        names, random = self._targets(node), self.random
        if not names:
            return None
        is_plain = all(self.work.settings[name].max_messages is None for name in names)
        entered = Entered(self.ledger.send("", 0, [], node.broker.now(), is_plain=is_plain))
        numbers = [node.id(name) for name in names]
        entered.names = dict(zip(numbers, names, strict=True))
        targets: list[i.Targets] = []
        drafts = [self._draft(random.choice((None, 0, 1, 2))) for _ in range(random.choice((1, 1, 4, 9)))]
        for place, draft in enumerate(drafts):
            if random.random() < 0.1:
                draft.ttl_ms = random.choice((50, 3_000))
            some = random.randint(1, len(names)) if random.random() < 0.3 else len(names)
            targets.append(tuple(numbers[:some]))
            for name in names[:some]:
                copy = marked(name, msgspec.structs.replace(draft, priority=self._priority(name, draft)))
                entered.sent[place, name] = self.ledger.add(entered.batch, name, copy)
        self.work.counts["columns"] += len(drafts) > 1
        self.work.counts["columns for several"] += len(set(targets)) > 1
        return targets, drafts, entered

    def _priority(self, name: str, draft: Draft) -> int:
        """That it has in a queue: the usual one if it has none, the highest at most."""
        settings = self.work.settings[name]
        return settings.priority_when_unset if draft.priority is None else min(draft.priority, settings.max_priority)

    def _told(self, node: Node, entered: Entered, answer: list[Arrival] | LanewayError) -> None:
        if isinstance(answer, LanewayError):
            assert isinstance(answer, DiskFull | TooLargeForDisk | Unavailable), (
                f"publishing was answered with {answer!r}"
            )
            self.ledger.refused(entered.batch)
            return
        left = dict(entered.sent)
        for arrival in answer:
            name = entered.names[arrival.queue]
            assert isinstance(arrival.result, Receipts), f"publishing was answered with {arrival.result!r}"
            count = len(arrival.result)
            for place, told in zip(arrival.places or range(count), arrival.result.each(), strict=True):
                sent = left.pop((place, name))
                if isinstance(told, Receipt):
                    self.ledger.stored(sent, told, 0)
                else:
                    assert isinstance(told, QueueFull), f"{sent} was refused: {told!r}"
                    entered.batch.sent.remove(sent)
                    del self.ledger.by_body[sent.draft.body]
        assert not left, f"nobody was told what became of {left}"
        self.ledger.confirmed(entered.batch)

    def _targets(self, node: Node) -> list[str]:
        there = self._queues(node)
        if self.random.random() < 0.5:
            return [self.random.choice(there)] if there else []
        others = [name for name in there if name not in FANNED and self.work.settings[name].max_messages is None]
        return [name for name in FANNED if name in there] + self.random.sample(others, min(1, len(others)))

    def _draft(self, priority: int | None) -> Draft:
        draft = self.work.a_body(Draft(b"", priority=priority))
        if self.random.random() < 0.2:
            draft.properties = Properties(attributes={"n": self.random.randrange(3)})
        return draft


class Entered:
    """One publish, as the ledger knows it."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.sent: dict[tuple[int, str], Sent] = {}  # by place in the request, and name of the queue
        self.names: dict[int, str] = {}  # by number of the queue


class Ending:
    """What a connection settles, which is not answered. Half of it is looked at before: what was asked for earlier is
    carried out then, and it is known which are held. Of the other half, which may be merged with what came before it,
    the journal tells when it is durable."""

    def __init__(self, sessions: SessionWorkload, node: Node, holds: Sequence[SessionHeld], action: str) -> None:
        self._sessions = sessions
        self._node = node
        self._holds = holds = sorted(holds, key=_owner_of)
        self.action = action
        self.requests: list[i.SettleHeld] = []
        self.taken: list[SessionHeld] = []  # those that are known to be held
        self._entries: list[tuple[SessionHeld, Settlement, bool | None, Any]] | None = None
        if action == "extend" or sessions.random.random() < 0.5:
            self._predict(holds)
        for hold in holds:
            hold.settling += 1
            if action == "ack":
                hold.sent.leaving += 1
            elif action == "extend":
                hold.latest_ms = hold.deadline_ms = node.broker.now()
            self._let_go(hold)
        for (number, session, consumer), some in groupby(holds, key=_owner_of):
            those = list(some)
            seqs, leases = [hold.seq for hold in those], [hold.lease_id for hold in those]
            self.requests.append(i.SettleHeld(session, number, seqs, leases, action, consumer, EXTEND_MS))  # type: ignore[arg-type]

    def _predict(self, holds: Sequence[SessionHeld]) -> None:
        node = self._node
        node.catch_up()
        now_ms = node.broker.now()
        self._entries = []
        for hold in holds:
            queue = node.engine.state.queues.get(hold.number)
            is_held = queue is not None and lease_commands._is_held(
                node.engine.state, hold.number, hold.seq, hold.lease_id
            )
            result = now_ms + EXTEND_MS if is_held else LeaseStale("not held")
            settlement = Settlement(self.action, hold.token, lease_ms=EXTEND_MS)  # type: ignore[arg-type]
            self._entries.append((hold, settlement, self._sessions.expectation(hold, now_ms), result))
            if is_held:
                self.taken.append(hold)

    def _let_go(self, hold: SessionHeld) -> None:
        consumer = hold.consumer
        if self.action != "extend" and consumer is not None:
            if consumer.connection.held.pop(hold.token, None) is not None:
                consumer.outstanding -= 1
                consumer.connection.outstanding -= 1

    def durable(self) -> None:
        if self._entries is not None:
            for entry in self._entries:
                self._sessions.work._settled(*entry)
            return
        for hold in self._holds:
            hold.settling -= 1
            hold.ended = True
            if self.action == "ack":
                hold.sent.leaving -= 1
                if (hold.seq, hold.lease_id) in self._node.journal.acked:
                    hold.sent.gone = True
                    self._sessions.work.counts["ack"] += 1

    def refused(self) -> None:
        """Nothing of it was done: they are held as before."""
        for hold in self._holds:
            hold.settling -= 1
            hold.sent.leaving -= self.action == "ack"
            consumer = hold.consumer
            if consumer is not None:
                consumer.connection.held[hold.token] = hold
                consumer.outstanding += 1
                consumer.connection.outstanding += 1


def _owner_of(hold: SessionHeld) -> tuple[int, int, int]:
    consumer = hold.consumer
    if consumer is None:
        return hold.number, 0, 0
    return hold.number, consumer.connection.session, consumer.number


def _not_answered(answer: object) -> None:
    raise AssertionError(f"what is not answered was answered with {answer!r}")
