"""What callers of a server of several partitions do: every step is drawn from the seed, sent through the edge of their
process, and entered in the ledger. Queues of one kind lie in different partitions, and so do dead letters and what they
come from, so most of it crosses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from laneway.broker import interface as i
from laneway.broker.values import Addressed, Deliveries, Draft, Receipts, RedriveRequest
from laneway.core.message import Messages, Settlement, messages_of
from laneway.core.partitions import home, partition_of
from laneway.core.settings import QueueSettings
from laneway.errors import JournalFailed, LanewayError, LeaseStale, OutcomeUnknown, PartsMissing, Unavailable

from .crossing_ledger import Copy, CrossingLedger, Deed

if TYPE_CHECKING:
    from .several import SeveralNode

COUNT = 2  # partitions
LEASE_MS = 600_000  # what a session holds of some queues, it holds as long as it is there


def _name(kind: str, partition: int) -> str:
    return next(name for n in range(100) if home("/", name := f"{kind}-{n}", COUNT) == partition)


#: Queues that get messages with equal bodies, one each. What is in them stays there until it is acked.
ALL = tuple(_name("all", partition) for partition in range(COUNT))
DEAD = tuple(_name("dead", partition) for partition in range(COUNT))
_PLAIN = QueueSettings(max_receives=None, lease_ms=LEASE_MS)
QUEUES: dict[str, QueueSettings] = {
    **dict.fromkeys(DEAD, _PLAIN),
    **dict.fromkeys(ALL, _PLAIN),
    # Their dead letters go to the other partition.
    **{
        _name("work", at): QueueSettings(dead_letter_queue=DEAD[1 - at], max_receives=2, lease_ms=1_500)
        for at in range(COUNT)
    },
    **{
        _name("brief", at): QueueSettings(dead_letter_queue=DEAD[1 - at], message_ttl_ms=3_000, lease_ms=2_000)
        for at in range(COUNT)
    },
}
#: Those that an edge publishes to, one each.
SINGLE = [name for name in QUEUES if name not in DEAD and name not in ALL]

STEPS: dict[str, int] = {
    "publish": 16,
    "fan_out": 12,
    "mixed": 6,
    "keyed": 6,
    "keyed_again": 8,
    "lease": 14,
    "settle": 14,
    "subscribe": 14,
    "ack_held": 4,
    "transact": 16,
    "hang_up": 1,
    "redrive": 3,
    "produce": 4,
    "cut": 2,
    "sleep": 8,
}


def key_of(queue: str, body: bytes) -> bytes:
    """Of a message in the ledger: every key is there once."""
    return body + b"@" + queue.encode() if queue in ALL else body


class Hold:
    """One delivery of one message."""

    __slots__ = ("consumer", "copy", "lease", "link", "queue", "queue_id", "seq", "session", "token")

    def __init__(self, copy: Copy, queue_id: int, queue: str, seq: int, lease: int, token: str, link: int) -> None:
        self.copy = copy
        self.queue_id = queue_id
        self.queue = queue
        self.seq = seq
        self.lease = lease
        self.token = token
        self.link = link  # that it came over
        self.session = self.consumer = 0


class Keyed:
    """A publish with an idempotency key, which whoever does not know what became of it sends again."""

    def __init__(self, key: str, targets: Sequence[str], bodies: list[bytes], deed: Deed) -> None:
        self.key = key
        self.targets = targets
        self.bodies = bodies
        self.deed = deed


class CrossingWorkload:
    """The callers of one process. `doubtful` and `batches` are of all processes: what one has begun, another one may
    send again."""

    doubtful: list[Keyed]
    cut: Callable[[], None]

    def __init__(self, random: Random, ledger: CrossingLedger, *, partition: int = 0) -> None:
        self.random = random
        self.ledger = ledger
        self.partition = partition
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self._weights = [weight * random.choice((0.3, 1, 1, 3)) for weight in STEPS.values()]
        self._gap_ms = random.choice((0, 1, 3, 20))
        self._body_bytes = random.choice((10, 60, 300))
        self._batch = random.choice((1, 2, 5))
        self._life = 0
        self._bodies = 0
        self._batches = 0
        self.begin_life()

    def begin_life(self) -> None:
        self._life += 1
        self.unanswered: dict[int, i.Request] = {}
        self._holds: list[Hold] = []  # by token
        self._held: list[Hold] = []  # by sessions
        self._sessions: dict[int, int] = {}  # and how many consumers each has
        self._latest: dict[tuple[int, int, Any], int] = {}
        self._asked = 0

    async def step(self, node: SeveralNode) -> None:
        name = self.random.choices(list(STEPS), self._weights)[0]
        self.counts[name] += 1
        await getattr(self, f"_{name}")(node)
        await asyncio.sleep(self.random.randint(0, self._gap_ms) / 1000)

    def check_answered(self) -> None:
        assert not self.unanswered, f"{next(iter(self.unanswered.values()))} was never answered"

    def send(self, node: SeveralNode, request: i.Request, done: Callable[[Any], None]) -> None:
        """Send a request, which is answered once; after a crash nobody hears of it."""
        self._asked += 1
        at = self._asked
        self.unanswered[at] = request

        def once(answer: Any) -> None:
            if node.files.crashed:
                return
            try:
                assert self.unanswered.pop(at, None) is not None, f"{request} was answered twice, now with {answer!r}"
                done(answer)
            except AssertionError as wrong:
                self.failures.append(str(wrong))

        node.edge.send(request, once)

    def in_background(self, node: SeveralNode, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except (Unavailable, PartsMissing):
                pass
            except AssertionError as wrong:
                self.failures.append(str(wrong))

        node.loop.create_task(run())

    async def open_queues(self, node: SeveralNode) -> None:
        for name, settings in QUEUES.items():
            if home("/", name, COUNT) == self.partition and ("/", name) not in node.model.by_name:
                while settings.dead_letter_queue and ("/", settings.dead_letter_queue) not in node.model.by_name:
                    await asyncio.sleep(0.01)
                await node.edge.ask(i.DeclareQueue("/", name, settings))
                if not node.files.crashed:
                    self.ledger.queues.add(name)

    def _id(self, node: SeveralNode, name: str) -> int | None:
        if name not in self.ledger.queues:
            return None  # a crash may take it, and what is in it
        known = node.model.by_name.get(("/", name))
        return None if known is None else known.number

    def _settled(self, deed: Deed, answer: Any) -> None:
        """What an answer says of a deed."""
        if isinstance(answer, OutcomeUnknown | JournalFailed):
            self.counts["outcome unknown"] += 1
        elif isinstance(answer, Unavailable | LeaseStale):  # the latter of a transaction, with what is held no longer
            self.counts["refused"] += 1
            self.ledger.undone(deed)
        else:
            assert not isinstance(answer, LanewayError), f"it was answered with {answer!r}"
            wrong = [one for one in answer if isinstance(one, LanewayError)]
            wrong += [one.result for one in answer if not isinstance(getattr(one, "result", None), Receipts)]
            assert not wrong, f"a part was answered with {wrong[0]!r}"
            self.ledger.done(deed)

    # Publishing

    def _body(self) -> bytes:
        self._bodies += 1
        return (
            b"%d:%d:" % (self.partition, self._bodies)
            + self.random.randbytes(self.random.randint(0, 9))
            + bytes(self.random.choice((0, self._body_bytes)))
        )

    @property
    def _line(self) -> tuple[int, int]:
        """Of what this edge publishes: another life begins another one."""
        return self.partition, self._life

    def _publish_to(self, node: SeveralNode, names: Sequence[str], count: int) -> None:
        ids = [self._id(node, name) for name in names]
        if None in ids:
            return
        bodies = [self._body() for _ in range(count)]
        deed = self.ledger.deed([key_of(name, body) for body in bodies for name in names], line=self._line)
        request = i.Publish(tuple(ids), Messages(bodies, [b""] * count))  # type: ignore[arg-type]
        self.send(node, request, lambda answer: self._settled(deed, answer))

    async def _publish(self, node: SeveralNode) -> None:
        self._publish_to(node, [self.random.choice([*SINGLE, *ALL])], self.random.randint(1, self._batch))

    async def _fan_out(self, node: SeveralNode) -> None:
        self._publish_to(node, ALL, self.random.randint(1, self._batch))

    async def _mixed(self, node: SeveralNode) -> None:
        """Messages that go different ways, as a batch with a target for each does: each for itself."""
        routes = [self.random.choice([ALL, ALL[:1], ALL[1:], *((name,) for name in SINGLE)]) for _ in range(4)]
        if any(self._id(node, name) is None for route in routes for name in route):
            return
        bodies = [self._body() for _ in routes]
        deeds = [
            self.ledger.deed([key_of(name, body) for name in route], line=self._line)
            for route, body in zip(routes, bodies, strict=True)
        ]

        def done(answer: Any) -> None:
            refused: dict[int, LanewayError] = {}
            for arrival in answer if isinstance(answer, list) else ():
                if isinstance(arrival.result, LanewayError):
                    refused.update(
                        dict.fromkeys(range(4) if arrival.places is None else arrival.places, arrival.result)
                    )
            for place, deed in enumerate(deeds):
                self._settled(deed, refused.get(place, [] if isinstance(answer, list) else answer))

        targets: list[i.Targets] = [tuple(self._id(node, name) for name in route) for route in routes]  # type: ignore[misc]
        self.send(node, i.Publish(targets, Messages(bodies, [b""] * 4)), done)

    async def _keyed(self, node: SeveralNode) -> None:
        targets = self.random.choice([ALL, ALL, ALL[:1], ALL[1:]])
        if any(self._id(node, name) is None for name in targets):
            return
        bodies = [self._body() for _ in range(self.random.randint(1, 2))]
        deed = self.ledger.deed([key_of(name, body) for body in bodies for name in targets])
        keyed = Keyed(f"{self.partition}-{self._bodies}", targets, bodies, deed)
        self.doubtful.append(keyed)
        self._send_keyed(node, keyed)

    async def _keyed_again(self, node: SeveralNode) -> None:
        """Of those whose outcome is not known, or even of one that is."""
        if self.doubtful:
            at = self.random.randrange(len(self.doubtful))
            self._send_keyed(node, self.doubtful.pop(at) if self.random.random() < 0.2 else self.doubtful[at])

    def _send_keyed(self, node: SeveralNode, keyed: Keyed) -> None:
        ids = [self._id(node, name) for name in keyed.targets]
        if None in ids:
            return
        self.ledger.asked_again(keyed.deed)

        def done(answer: Any) -> None:
            if isinstance(answer, list):
                self._settled(keyed.deed, answer)

        messages = Messages(keyed.bodies, [b""] * len(keyed.bodies))
        self.send(node, i.Publish(tuple(ids), messages, (keyed.key, b"same")), done)  # type: ignore[arg-type]

    async def _produce(self, node: SeveralNode) -> None:
        self.in_background(node, self._produce_batch(node))

    async def _produce_batch(self, node: SeveralNode) -> None:
        self._batches += 1
        # Each batch has a producer of its own, so that none is fenced by one whose outcome is not known.
        producer = f"p{self.partition}-{self._batches}"
        names = [name for name in [*SINGLE, *ALL] if self._id(node, name) is not None]
        drafts = [(self.random.choice(names), self._body()) for _ in range(self.random.randint(1, 5)) if names]
        deed = self.ledger.deed([key_of(name, body) for name, body in drafts])
        messages = [Addressed("/", name, "", "", Draft(body)) for name, body in drafts]
        try:
            await node.edge.ask(i.StagePart(producer, "stage", "part", messages, [], "anna"))
        except LanewayError as refused:
            assert isinstance(refused, Unavailable) or refused.code.endswith("not_found"), f"staging: {refused!r}"
            return  # nothing is published by that
        for _ in range(3):
            try:
                outcome = await node.edge.ask(i.CommitBatch(producer, 1, "stage", ["part"], "anna"))
            except Unavailable:
                await asyncio.sleep(0.5)
                continue
            if not node.files.crashed:
                assert outcome.published == len(drafts), f"{outcome}, with {len(drafts)} messages"
                self.counts["produced again" if outcome.already else "produced"] += 1
                self.ledger.done(deed)
            return

    # Consuming

    def _take(self, node: SeveralNode, d: Deliveries) -> list[Hold]:
        partition = partition_of(d.queue)
        holds = []
        for at, body in enumerate(d.bodies):
            copy = self.ledger.delivered(key_of(d.queue_name, bytes(body)))
            link = node.link_count(partition)
            holds.append(Hold(copy, d.queue, d.queue_name, d.seqs[at], d.leases[at], d.tokens()[at], link))
        self.counts["delivered"] += len(holds)
        return holds

    async def _lease(self, node: SeveralNode) -> None:
        name = self.random.choice([*SINGLE, *SINGLE, *QUEUES])
        queue = self._id(node, name)
        if queue is None:
            return

        def done(answer: Any) -> None:
            if isinstance(answer, LanewayError):
                assert isinstance(answer, Unavailable), f"a lease was answered with {answer!r}"
            else:
                self._holds += self._take(node, answer)

        wait_ms = self.random.choice((0, 0, 100, 1_000))
        lease_ms = self.random.choice((500, 1_000, 5_000))
        self.send(node, i.Lease(queue, self.random.choice((1, 3, 10)), lease_ms, wait_ms), done)

    async def _settle(self, node: SeveralNode) -> None:
        """By token; what becomes of one says nothing about the others."""
        if not self._holds:
            return
        queue = self.random.choice(self._holds).queue_id
        holds = [hold for hold in self._holds if hold.queue_id == queue][: self.random.choice((1, 3, 10))]
        self._holds = [hold for hold in self._holds if hold not in holds]
        action = self.random.choices(("ack", "reject", "release"), (6, 3, 2))[0]
        if holds[0].queue not in SINGLE and action == "reject":
            action = "ack"
        deeds = [self.ledger.deed(acks=[hold.copy]) if action == "ack" else None for hold in holds]

        def done(answer: Any) -> None:
            for at, deed in enumerate(deeds):
                told = answer if isinstance(answer, LanewayError) else answer[at]
                if deed is None or isinstance(told, OutcomeUnknown | JournalFailed):
                    continue
                if isinstance(told, LeaseStale | Unavailable):
                    self.ledger.undone(deed)
                else:
                    assert not isinstance(told, LanewayError), f"settling was answered with {told!r}"
                    self.counts["acked"] += 1
                    self.ledger.done(deed)

        settlements = [Settlement(action, hold.token) for hold in holds]  # type: ignore[arg-type]
        self.send(node, i.Settle(queue, settlements), done)

    async def _subscribe(self, node: SeveralNode) -> None:
        queue = self._id(node, self.random.choice([*ALL, *ALL, *DEAD, *SINGLE]))
        if queue is None:
            return
        if not self._sessions or (len(self._sessions) < 3 and self.random.random() < 0.4):
            self._open_session(node)
        session = self.random.choice(list(self._sessions))
        if self._sessions[session] >= 6:
            return
        self._sessions[session] += 1
        consumer = self._sessions[session]

        def done(answer: Any) -> None:
            assert answer is None or isinstance(answer, Unavailable), f"subscribing was answered with {answer!r}"

        self.send(node, i.Subscribe(session, consumer, queue, self.random.choice((1, 3, 10))), done)

    def _open_session(self, node: SeveralNode) -> None:
        def pushed(pushes: list[i.Push]) -> None:
            if node.files.crashed:
                return
            try:
                for push in pushes:
                    if isinstance(push, i.Delivered) and session in self._sessions:
                        self._pushed(node, session, push)
            except AssertionError as wrong:
                self.failures.append(str(wrong))

        session = node.edge.open_session(pushed)
        self._sessions[session] = 0

    def _pushed(self, node: SeveralNode, session: int, push: i.Delivered) -> None:
        d = push.deliveries
        for at, hold in enumerate(self._take(node, d)):
            hold.session, hold.consumer = session, push.consumer
            self._held.append(hold)
            copy = hold.copy
            if copy.line is not None and d.receives[at] == 1 and d.seqs[at] not in d.stories:
                # Where the queue's process went, what it had leased may be leased for the first time again.
                line = session, push.consumer, (*copy.line, hold.link)
                assert copy.order > self._latest.get(line, 0), f"{copy} came to a consumer of {d.queue_name} too late"
                self._latest[line] = copy.order

    def _settlements(self, holds: Sequence[Hold]) -> list[i.SettleHeld]:
        settlements = []
        for where in sorted({(hold.session, hold.queue_id, hold.consumer) for hold in holds}):
            those = [hold for hold in holds if (hold.session, hold.queue_id, hold.consumer) == where]
            seqs, leases = [hold.seq for hold in those], [hold.lease for hold in those]
            settlements.append(i.SettleHeld(where[0], where[1], seqs, leases, "ack", where[2]))
        return settlements

    def _some_held(self) -> list[Hold]:
        if not self._held:
            return []
        session = self.random.choice(self._held).session
        there = [hold for hold in self._held if hold.session == session]
        picked = self.random.sample(there, min(len(there), self.random.choice((1, 2, 4))))
        self._held = [hold for hold in self._held if hold not in picked]
        return picked

    async def _ack_held(self, node: SeveralNode) -> None:
        """Nobody is told what becomes of it."""
        holds = self._some_held()
        for settlement in self._settlements(holds):
            its = [
                hold.copy for hold in holds if (hold.queue_id, hold.consumer) == (settlement.queue, settlement.consumer)
            ]
            self.ledger.deed(acks=its, is_sure=False)
            node.edge.send(settlement, lambda answer: None)

    async def _transact(self, node: SeveralNode) -> None:
        holds = self._some_held()
        routes = [self.random.choice([ALL, ALL[:1], ALL[1:], *((name,) for name in SINGLE)]) for _ in range(3)]
        routes = routes[: self.random.randint(0 if holds else 1, 3)]
        if any(self._id(node, name) is None for route in routes for name in route):
            return
        bodies = [self._body() for _ in routes]
        keys = [key_of(name, body) for route, body in zip(routes, bodies, strict=True) for name in route]
        is_sure = all(QUEUES[hold.queue].lease_ms == LEASE_MS for hold in holds)
        deed = self.ledger.deed(keys, [hold.copy for hold in holds], line=self._line, is_sure=is_sure)
        targets: list[i.Targets] = [tuple(self._id(node, name) for name in route) for route in routes]  # type: ignore[misc]
        partitions = {partition_of(hold.queue_id) for hold in holds} | {
            partition_of(q) for route in targets for q in route
        }
        self.counts["transactions over partitions"] += len(partitions) > 1
        messages = messages_of([Draft(body) for body in bodies])
        request = i.Transact(targets, messages, self._settlements(holds))
        self.send(node, request, lambda answer: self._settled(deed, answer))

    async def _hang_up(self, node: SeveralNode) -> None:
        if self._sessions:
            session = self.random.choice(list(self._sessions))
            del self._sessions[session]
            self._held = [hold for hold in self._held if hold.session != session]
            node.edge.send(i.EndSession(session), lambda answer: None)

    async def _redrive(self, node: SeveralNode) -> None:
        name = self.random.choice(DEAD)
        if self._id(node, name) is None:
            return
        target = self.random.choice([None, None, *SINGLE])
        request = i.StartRedrive("/", name, RedriveRequest(target=target))
        self.in_background(node, self._start(node, request))

    async def _start(self, node: SeveralNode, request: i.Request) -> None:
        try:
            await node.edge.ask(request)
        except LanewayError as refused:
            assert isinstance(refused, Unavailable) or refused.code.endswith("not_found"), f"redrive: {refused!r}"

    # The world around

    async def _cut(self, node: SeveralNode) -> None:
        self.cut()

    async def _sleep(self, node: SeveralNode) -> None:
        await asyncio.sleep(self.random.choice((0.05, 0.2, 1.0, 3.0)))
