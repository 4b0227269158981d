"""Connections, as AMQP has them: subscriptions with credit, messages settled by number, publishing in columns and into
several queues at once, transactions, and connections that end and give back what they hold.

Two queues, FANNED, get one message each of the same body. In the ledger each copy has the queue's name at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.audiences import Credit, Subscription
from laneway.broker.values import Batch as Columns
from laneway.core import lease_commands
from laneway.core.digits import token
from laneway.core.message import Delivery, Draft, Properties, Settlement, decode_props, encode_props, message_id
from laneway.core.settings import QueueSettings
from laneway.core.stories import fill_in
from laneway.core.table import LEASED
from laneway.errors import DiskFull, LanewayError, LeaseStale, QueueFull, QueueInUse, Unavailable

from .ledger import FANNED, Batch, Held, Sent, marked
from .node import Node
from .small import SLAB_BITS, SLAB_MASK

if TYPE_CHECKING:
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
    "settle_stale": 1,
}


EXTEND_MS = 5_000


class SessionHeld(Held):
    """A message that a connection holds."""

    __slots__ = ("consumer", "number", "seq")

    def __init__(self, sent: Sent, queue: str, delivery: Delivery, incarnation: int) -> None:
        super().__init__(sent, queue, delivery, incarnation)
        self.seq = int(delivery.token[16:], 16)
        self.number = 0
        self.consumer: Consumer | None = None


class Connection:
    def __init__(self, pool: int) -> None:
        self.pool_limit = pool  # 0: none
        self.pool = Credit(pool) if pool else None
        self.consumers: list[Consumer] = []
        self.held: dict[str, SessionHeld] = {}
        self.is_closing = False
        self.outstanding = 0


class Consumer:
    """One subscription, and what it has to say about the order and the number of what it gets."""

    def __init__(self, connection: Connection, queue: str, credit: int, *, no_ack: bool) -> None:
        self.connection = connection
        self.queue = queue
        self.no_ack = no_ack
        self.credit = credit
        self.outstanding = 0
        self.last_lease = 0
        #: (priority, tenant if it counts) -> order of the message that came last for the first time
        self.latest: dict[tuple[int, str], int] = {}
        self.subscription: Subscription

    def check(self, batch: Columns) -> None:
        assert batch.first_lease > self.last_lease, f"{self.queue}: a batch overtook another on its way to a consumer"
        self.last_lease = batch.first_lease + len(batch.seqs) - 1
        if self.no_ack:
            return
        self.outstanding += len(batch.seqs)
        assert not self.credit or self.outstanding <= self.credit, (
            f"{self.credit} may be outstanding, not {self.outstanding}"
        )
        self.connection.outstanding += len(batch.seqs)
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
        if sent.queue == self.queue:
            line = delivery.priority, draft.properties.tenant if self.queue == "shared" else ""
            latest = self.latest.get(line, 0)
            assert sent.order > latest, f"{sent} came to a consumer of {self.queue} after {latest}, out of order"
            self.latest[line] = sent.order


class SessionWorkload:
    def __init__(self, workload: Workload) -> None:
        self.work = workload
        self.random: Random = workload.random
        self.ledger = workload.ledger
        self.connections: list[Connection] = []
        self.stale: list[SessionHeld] = []  # of connections that are gone
        self._life: Node | None = None
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
        try:
            self._actions[name](node)
        except (DiskFull, Unavailable):
            assert node.broker.committer.stuck or node.failed or not node.journal.has_room(), (
                f"{name} was refused on a good disk"
            )

    def _queues(self, node: Node) -> list[str]:
        return [name for name in self.work.all_names if ("/", name) in node.engine.state.by_name]

    def _connection(self) -> Connection:
        if not self.connections or (len(self.connections) < 4 and self.random.random() < 0.3):
            self.connections.append(Connection(self.random.choice((0, 0, 3, 10))))
        return self.random.choice(self.connections)

    # Consuming

    def _subscribe(self, node: Node) -> None:
        names, connection = self._queues(node), self._connection()
        if not names or len(connection.consumers) >= 4:
            return
        queue = self.random.choice(names)
        no_ack = queue == UNACKED and self.random.random() < 0.1
        consumer = Consumer(connection, queue, self.random.choice((0, 1, 3, 20)) * (not no_ack), no_ack=no_ack)
        try:
            consumer.subscription = node.broker.sessions.subscribe(
                "/",
                consumer.queue,
                tag="",
                credit=consumer.credit,
                pool=connection.pool,
                deliver=self.work.guarded(node, lambda _, batch: self._delivered(node, consumer, batch)),
                cancelled=self.work.guarded(node, lambda _: connection.consumers.remove(consumer)),
                priority=self.random.choice((0, 0, 1)),
                exclusive=self.random.random() < 0.05,
                lease_ms=self.random.choice((None, None, 300, 600_000)),
                no_ack=no_ack,
            )
        except QueueInUse:
            return
        if no_ack:
            self.ledger.unacked.add(queue)
        connection.consumers.append(consumer)

    def _delivered(self, node: Node, consumer: Consumer, batch: Columns) -> None:
        if consumer.no_ack:
            consumer.check(batch)
            self._gone(node, self._note(node, None, batch))
            return
        if consumer.connection.is_closing:
            self._settle_now(node, self._note(node, consumer, batch), "release")
            return
        consumer.check(batch)
        for hold, delivery in self._note(node, consumer, batch, with_deliveries=True):
            consumer.connection.held[hold.token] = hold
            consumer.check_order(hold.sent, delivery)

    def _gone(self, node: Node, holds: list[SessionHeld]) -> None:
        """They were acked when they were handed out."""
        self.work.counts["not acked"] += len(holds)
        for hold in holds:
            hold.sent.leaving += 1
            hold.settling += 1

        def durable(_: None) -> None:
            for hold in holds:
                hold.settling -= 1
                hold.sent.leaving -= 1
                hold.sent.gone = hold.ended = True

        node.broker.when_durable(self.work.guarded(node, durable), None)

    def _note(self, node: Node, consumer: Consumer | None, batch: Columns, *, with_deliveries: bool = False) -> Any:
        self.work.counts["pushed" if consumer is not None else "got"] += len(batch.seqs)
        deliveries = [marked(batch.name, d) for d in deliveries_of(node, batch)]
        holds = self.ledger.delivered(batch.name, deliveries, node.broker.now(), kind=SessionHeld)
        for hold in holds:
            hold.consumer, hold.number = consumer, batch.queue  # type: ignore[attr-defined]
        return list(zip(holds, deliveries, strict=True)) if with_deliveries else holds

    def _get(self, node: Node) -> None:
        names, connection = self._queues(node), self._connection()
        if not names:
            return

        queue = self.random.choice(names)
        no_ack = queue == UNACKED and self.random.random() < 0.1
        if no_ack:
            self.ledger.unacked.add(queue)

        def got(batch: Columns | None) -> None:
            if batch is not None:
                assert len(batch.seqs) == 1
                holds = self._note(node, None, batch)
                if no_ack:
                    self._gone(node, holds)
                elif connection.is_closing:
                    self._settle_now(node, holds, "release")
                else:
                    connection.held.update((hold.token, hold) for hold in holds)

        node.broker.sessions.get("/", queue, self.work.guarded(node, got), no_ack=no_ack)

    def _cancel(self, node: Node) -> None:
        consumers = [consumer for connection in self.connections for consumer in connection.consumers]
        if consumers:
            consumer = self.random.choice(consumers)
            consumer.subscription.cancel()
            consumer.connection.consumers.remove(consumer)

    def _pause(self, node: Node) -> None:
        for connection in self.connections:
            for consumer in connection.consumers:
                consumer.subscription.pause() if self.random.random() < 0.3 else consumer.subscription.resume()

    def _hang_up(self, node: Node) -> None:
        """A connection ends, and gives back all that it holds."""
        if not self.connections:
            return
        connection = self.connections.pop(self.random.randrange(len(self.connections)))
        connection.is_closing = True
        for consumer in connection.consumers:
            consumer.subscription.cancel()
        self._settle_now(node, list(connection.held.values()), "release")

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

    def _settle_now(self, node: Node, holds: Sequence[SessionHeld], action: str) -> list[SessionHeld]:
        """Settle what a connection holds, queue by queue; those that will be taken."""
        taken: list[SessionHeld] = []
        for number in dict.fromkeys(hold.number for hold in holds):
            taken += self._settle_some(node, number, [hold for hold in holds if hold.number == number], action)
        return taken

    def _settle_some(self, node: Node, number: int, holds: list[SessionHeld], action: str) -> list[SessionHeld]:
        now_ms, queue = node.broker.now(), node.engine.state.queues.get(number)
        expectations = [self.expectation(hold, now_ms) for hold in holds]
        seqs, leases = [hold.seq for hold in holds], [hold.lease_id for hold in holds]
        good: list[bool] | None = [False] * len(holds)
        if queue is not None:
            node.catch_up()
            good = lease_commands.still_held(node.engine.state, queue, seqs, leases) or [True] * len(holds)
        entries = []
        for hold, expectation, is_good in zip(holds, expectations, good, strict=True):
            result = now_ms + EXTEND_MS if is_good else LeaseStale("not held")
            settlement = Settlement(action, hold.token, lease_ms=EXTEND_MS)  # type: ignore[arg-type]
            entries.append((hold, settlement, expectation, result))
            hold.settling += 1
            if action == "ack":
                hold.sent.leaving += 1
            elif action == "extend":
                hold.latest_ms = hold.deadline_ms = now_ms
        node.broker.sessions.settle(number, seqs, leases, action, lease_ms=EXTEND_MS)
        if action != "extend":
            for hold in holds:
                self._let_go(hold)

        def durable(_: None) -> None:
            for entry in entries:
                self.work._settled(*entry)

        node.broker.when_durable(self.work.guarded(node, durable), None)
        return [hold for hold, is_good in zip(holds, good, strict=True) if is_good]

    def expectation(self, hold: SessionHeld, now_ms: int) -> bool | None:
        """True if it must be taken, False if it must be passed over, None if either is right."""
        if hold.incarnation != self.ledger.incarnation:
            return False  # given back at the start
        if hold.settling:
            return None
        if hold.ended or hold.superseded or hold.sent.gone:
            return False
        return True if hold.deadline_ms > now_ms and not hold.sent.leaving else None

    @staticmethod
    def _let_go(hold: SessionHeld) -> None:
        consumer = hold.consumer
        if consumer is not None and consumer.connection.held.pop(hold.token, None) is not None:
            consumer.outstanding -= 1
            consumer.connection.outstanding -= 1
            consumer.subscription.grant(1)

    # Publishing

    def _send(self, node: Node) -> None:
        batch = self._batch(node)
        try:
            self._publish_some(node, batch)
        except LanewayError:
            self.ledger.refused(batch)
            raise
        self._confirm_later(node, batch)

    def _transact(self, node: Node) -> None:
        """Publishes and settlements without anything else in between: all of it survives, or none."""
        batch, settled = self._batch(node), []
        done: list[Sent] = []
        try:
            for _ in range(self.random.randint(1, 4)):
                self._publish_some(node, batch)
                done = list(batch.sent)
            holds = self._some_held()
            settled = self._settle_now(node, holds, "ack")
        except LanewayError:
            for sent in batch.sent[len(done) :]:
                del self.ledger.by_body[sent.draft.body]
            batch.sent, batch.is_plain = done, False
            self._confirm_later(node, batch)
            raise
        if batch.is_plain:
            batch.settled = [hold.sent for hold in settled]
        self._confirm_later(node, batch)

    def _batch(self, node: Node) -> Batch:
        return self.ledger.send("", 0, [], node.broker.now(), is_plain=True)

    def _publish_some(self, node: Node, batch: Batch) -> None:
        """One publish call of a batch."""
        names = self._targets(node)
        if not names:
            return
        sessions = node.broker.sessions
        numbers = tuple(sessions.number("/", name) for name in names)
        if self.random.random() < 0.5 and sessions.takes_columns(numbers, 5_000):
            runs = []
            for priority in sorted(self.random.sample((None, 0, 1, 2), self.random.randint(1, 3)), key=str):
                drafts = [self._draft(priority) for _ in range(self.random.randint(1, 5))]
                chosen = sessions.priorities(numbers, priority)
                runs.append((numbers, chosen, [encode_props(d.properties) for d in drafts], [d.body for d in drafts]))
                for draft in drafts:
                    self._enter(batch, names, chosen, draft)
            sessions.publish_columns(runs, sum(len(body) for run in runs for body in run[3]))
            self.work.counts["columns"] += 1
            return
        draft = self._draft(self.random.choice((None, 0, 1, 2)))
        if self.random.random() < 0.1:
            draft.ttl_ms = self.random.choice((50, 3_000))
        if any(self.work.settings[name].max_messages is not None for name in names):
            batch.is_plain = False
        entered = self._enter(batch, names, sessions.priorities(numbers, draft.priority), draft)
        sessions.publish(numbers, draft, self.work.guarded(node, lambda refusal: self._told(batch, entered, refusal)))

    def _told(self, batch: Batch, entered: list[Sent], refusal: LanewayError | None) -> None:
        if refusal is not None:
            assert isinstance(refusal, QueueFull) and len(entered) == 1, f"{entered} was refused: {refusal!r}"
            batch.sent.remove(entered[0])
            del self.ledger.by_body[entered[0].draft.body]

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

    def _enter(self, batch: Batch, names: list[str], priorities: tuple[int, ...], draft: Draft) -> list[Sent]:
        entered = []
        for name, priority in zip(names, priorities, strict=True):
            copy = marked(name, msgspec.structs.replace(draft, priority=priority))
            entered.append(self.ledger.add(batch, name, copy))
        return entered

    def _confirm_later(self, node: Node, batch: Batch) -> None:
        node.broker.when_durable(self.work.guarded(node, self.ledger.confirmed), batch)


def deliveries_of(node: Node, batch: Columns) -> list[Delivery]:
    """A batch as single deliveries, so that the ledger has one kind of them."""
    state = node.engine.state
    out = []
    for i, seq in enumerate(batch.seqs):
        story = batch.stories.get(seq) if batch.stories else None
        properties, deaths = decode_props(batch.props[i]), ()
        if story is not None:
            properties, deaths = fill_in(story, properties)
        at_ms, lease_id = batch.enqueued_at_ms[i], batch.first_lease + i
        text = message_id(at_ms, state.tag, story.record_seq if story is not None else seq)
        slab = state.table.slabs.get(seq >> SLAB_BITS)
        row = seq & SLAB_MASK
        still = slab is not None and slab.state[row] == LEASED and slab.lease[row] == lease_id
        deadline_ms = slab.due_ms[row] if still else 0  # its time may have come while it was on its way
        held_by = token(lease_id, seq)
        out.append(
            Delivery(
                text,
                batch.priorities[i],
                bytes(batch.bodies[i]),
                properties,
                at_ms,
                batch.receives[i],
                deadline_ms,
                held_by,
                deaths,
            )
        )
    return out
