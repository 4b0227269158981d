"""What callers do: every step is drawn from the seed, given to the broker, and entered in the ledger."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any

import msgspec

from laneway.broker import interface as i
from laneway.broker import peeking
from laneway.broker.values import Arrival, DeadLetterFilter, Deliveries, PeekQuery, Receipts, RedriveRequest
from laneway.core import purging
from laneway.core.digits import Tokens
from laneway.core.exchanges import Binding, ExchangeSettings
from laneway.core.message import Draft, Glimpse, Properties, Settlement, messages_of
from laneway.core.settings import QueueSettings
from laneway.core.table import DELAYED, LEASED, READY
from laneway.errors import (
    Conflict,
    CursorNotFound,
    DiskFull,
    ExchangeNotFound,
    Gone,
    IdempotencyConflict,
    InvalidInput,
    JournalFailed,
    LanewayError,
    LeaseStale,
    QueueInUse,
    QueueNotFound,
    TooLargeForDisk,
    Unavailable,
)

from .ledger import Batch, Held, Ledger, Registers, marked
from .node import Node
from .producing import Producing
from .sessions import SETTINGS, SessionWorkload

COLLECTION = "notes"
SHORT_RETENTION_MS = 60_000
DEDUP_WINDOW_MS = 20_000
PLENTY_BYTES = 1 << 40
EXCHANGES = {
    "news": ExchangeSettings(type="topic", alternate_exchange="rest"),
    "rest": ExchangeSettings(type="headers"),
}
FLEETING = ExchangeSettings(type="fanout", auto_delete=True)  # no caller knows whether it is there

#: The queues there may be. A seed picks some; "graveyard" takes the dead letters of others.
QUEUES = {
    "graveyard": QueueSettings(max_receives=None),
    "work": QueueSettings(dead_letter_queue="graveyard", max_receives=2, lease_ms=2_000),
    "groups": QueueSettings(max_receives=3, lease_ms=3_000, max_priority=3),
    "narrow": QueueSettings(overflow="drop_oldest", max_messages=6, dead_letter_queue="graveyard", lease_ms=1_000),
    "tight": QueueSettings(overflow="reject", max_messages=8, max_bytes=3_000, max_receives=2, lease_ms=5_000),
    "brief": QueueSettings(message_ttl_ms=4_000, retention_ms=SHORT_RETENTION_MS, lease_ms=6_000, delay_ms=500),
    "ladder": QueueSettings(
        dead_letter_exchange="",
        dead_letter_routing_key="graveyard",
        message_ttl_ms=6_000,
        max_receives=2,
        lease_ms=2_000,
    ),
    "shared": QueueSettings(fair=True, dead_letter_queue="graveyard", max_receives=4, lease_ms=3_000, max_priority=2),
    "passing": QueueSettings(message_ttl_ms=9_000, dead_letter_queue="graveyard", max_receives=1, lease_ms=1_500),
}
STEPS: dict[str, int] = {
    "publish": 30,
    "lease": 26,
    "lease_again": 4,
    "withdraw": 3,
    "peek": 2,
    "settle": 26,
    "session": 60,
    "produce": 3,
    "document": 3,
    "cursor": 4,
    "change_queue": 2,
    "purge": 1,
    "delete_queue": 1,
    "redrive": 4,
    "topology": 5,
    "delete_dead": 1,
    "fill_disk": 1,
    "sleep": 5,
    "jump": 2,
    "check": 1,
}


class Workload:
    def __init__(
        self,
        random: Random,
        ledger: Ledger,
        *,
        disk_full: bool = True,
        sessions: bool = True,
        partition: int = 0,
    ) -> None:
        self.random = random
        self.ledger = ledger
        self.partition = partition  # whose callers these are
        self.registers = Registers()
        self.failures: list[str] = []  # what was found in a callback
        self.counts: Counter[str] = Counter()  # what was done, for the reader of a report
        self.unanswered: dict[int, i.Request] = {}  # requests of this life
        self._withdrawn: set[int] = set()
        self._asked = 0
        self._waits: list[tuple[int, int]] = []  # leases that are waited for: number of the request, and in unanswered
        self._recent: deque[list[Held]] = deque(maxlen=10)  # what was leased together
        names = [name for name in QUEUES if name != "graveyard"]
        self.names = ["graveyard", *random.sample(names, random.randint(1, 3))]
        self.settings = {
            name: msgspec.structs.replace(QUEUES[name], dedup_window_ms=DEDUP_WINDOW_MS) for name in self.names
        }
        self.all_names = [*self.names, *SETTINGS] if sessions else self.names
        self.settings.update(SETTINGS)
        weights = {name: weight * random.choice((0.2, 1, 1, 3)) for name, weight in STEPS.items()}
        if not disk_full or random.random() < 0.7:
            weights["fill_disk"] = 0
        if not sessions:
            weights["session"] = weights["produce"] = 0
        self._steps = list(weights)
        self._weights = list(weights.values())
        self._body_bytes = random.choice((20, 60, 200, 500))
        self._batch = random.choice((1, 3, 3, 12))
        self._gap_ms = random.choice((0, 1, 3, 20))
        self.full_until_step: int | None = None
        self.step_count = 0
        self.sessions = SessionWorkload(self)
        self.producing = Producing(self)
        self._steps_done: dict[str, Callable[[Node], Awaitable[None]]] = {
            name: getattr(self, f"_{name}") for name in STEPS
        }

    async def step(self, node: Node) -> None:
        self.step_count += 1
        if self.full_until_step is not None and self.step_count >= self.full_until_step:
            self._free_disk(node)
        if self.random.random() < 0.03:
            self.in_background(node, self.open_queues(node))
        name = self.random.choices(self._steps, self._weights)[0]
        self.counts[name] += 1
        await self._steps_done[name](node)
        gap_ms = self.random.randint(0, self._gap_ms)
        await asyncio.sleep(gap_ms / 1000)

    def guarded(self, node: Node, check: Callable[..., None]) -> Callable[..., None]:
        """A callback whose failure is kept, and which is deaf once the node has crashed: nobody was told then."""

        def callback(*args: Any) -> None:
            if node.files.crashed:
                return
            try:
                check(*args)
            except AssertionError as wrong:
                self.failures.append(str(wrong))

        return callback

    def send(self, node: Node, request: i.Request, done: Callable[[Any], None]) -> int:
        """Send a request, which is answered once: see `unanswered`."""
        self._asked += 1
        at = self._asked
        self.unanswered[at] = request

        def once(answer: Any) -> None:
            assert self.unanswered.pop(at, None) is not None, f"{request} was answered twice, now with {answer!r}"
            done(answer)

        return node.broker.send(request, self.guarded(node, once))

    def begin_life(self) -> None:
        self.unanswered.clear()
        self._withdrawn.clear()
        self._waits.clear()

    def check_answered(self) -> None:
        """After a clean stop, everybody was told something."""
        left = [request for at, request in self.unanswered.items() if at not in self._withdrawn]
        assert not left, f"{left[0]} was never answered"

    def refused(self, node: Node, answer: Any) -> bool:
        """Whether a request was refused, as it may be when the disk is full or the node stops."""
        if isinstance(answer, DiskFull):
            assert node.partition.committer.stuck, "it was refused, though acks can be written"
            return True
        is_going = isinstance(answer, QueueNotFound) and bool(node.partition.queues.going)
        return is_going or isinstance(answer, Unavailable)

    def in_background(self, node: Node, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except (Unavailable, DiskFull, TooLargeForDisk, QueueNotFound):
                pass  # stopping, stuck, or deleted in the meantime
            except Conflict:
                assert node.partition.queues.going  # just this queue
            except AssertionError as wrong:
                self.failures.append(str(wrong))

        node.loop.create_task(run())

    async def open_queues(self, node: Node) -> None:
        """Create those of the seed's queues that are not there."""
        for name in self.all_names:
            if not node.has(name):
                await self._put_queue(node, name, self.settings[name])

    async def _put_queue(self, node: Node, name: str, settings: QueueSettings) -> None:
        ticket = self.registers.queues.ask(name, settings)
        try:
            kind = i.PutQueue if node.has(name) or self.random.random() < 0.5 else i.DeclareQueue
            await node.broker.ask(kind("/", name, settings))
        except InvalidInput:  # its dead-letter queue was deleted a moment ago
            self.registers.queues.withdraw(name, ticket)
        except Conflict:  # one of them is being deleted
            assert node.partition.queues.going
            self.registers.queues.withdraw(name, ticket)
        except (DiskFull, TooLargeForDisk, Unavailable, QueueNotFound):
            pass  # perhaps only after it had been changed: in doubt until the next start
        else:
            self.registers.queues.answer(name, ticket)

    def _a_queue(self, node: Node) -> str | None:
        names = [name for name in self.names if node.has(name)]
        return self.random.choice(names) if names else None

    # Publishing

    async def _publish(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return
        idempotency = None
        count = self.random.randint(1, self._batch)
        if self.random.random() < 0.1:
            number = self.random.randrange(6)
            idempotency = (f"key-{number}", b"other" if self.random.random() < 0.1 else b"same")
            count = 1 + number % 3
        drafts = [self._draft(queue, plain=idempotency is not None) for _ in range(count)]
        is_plain = self.settings[queue].max_messages is None and not any(d.properties.dedup_id for d in drafts)
        number, now_ms = node.id(queue), node.broker.now()
        batch = self.ledger.send(queue, number, drafts, now_ms, idempotency=idempotency, is_plain=is_plain)
        request = i.Publish((number,), messages_of(drafts), idempotency)
        self.send(node, request, lambda answer: self._published(node, batch, answer))

    def _published(self, node: Node, batch: Batch, answer: list[Arrival] | LanewayError) -> None:
        if isinstance(answer, LanewayError):
            assert isinstance(answer, DiskFull | TooLargeForDisk | Unavailable), (
                f"a publish was answered with {answer!r}"
            )
            self.counts["refused, disk full"] += isinstance(answer, DiskFull | TooLargeForDisk)
            self.ledger.refused(batch)
            return
        assert [arrival.queue for arrival in answer] == [batch.queue_number], f"{batch.queue}: {answer}"
        told = answer[0].result
        if isinstance(told, IdempotencyConflict):
            self.ledger.conflicted(batch, told)
        else:
            assert isinstance(told, Receipts), f"a publish was answered with {told!r}"
            self.ledger.answered(batch, told.each(), DEDUP_WINDOW_MS)

    def _draft(self, queue: str, *, plain: bool) -> Draft:
        random = self.random
        top = self.settings[queue].max_priority
        draft = self.a_body(Draft(b"", priority=None if random.random() < 0.3 else random.choice((0, 1, top))))
        group = random.choice("abc") if queue == "groups" and random.random() < 0.7 else ""
        tenant = random.choice("ttttuuvw") if random.random() < (0.8 if queue == "shared" else 0.05) else ""
        dedup_id = f"once-{random.randrange(8)}" if not plain and random.random() < 0.1 else ""
        attributes = {"n": random.randrange(3)} if random.random() < 0.1 else {}
        if group or tenant or dedup_id or attributes:
            draft.properties = Properties(group=group, tenant=tenant, dedup_id=dedup_id, attributes=attributes)
        if random.random() < 0.15:
            draft.delay_ms = random.choice((0, 5, 100, 3_000))
        if random.random() < 0.1:
            draft.ttl_ms = random.choice((0, 50, 2_000, 8_000))
        return draft

    def a_body(self, draft: Draft) -> Draft:
        """With a body that no other message has."""
        random = self.random
        self.ledger.body_count += 1
        draft.body = b"%d:" % self.ledger.body_count + random.randbytes(random.randint(0, self._body_bytes))
        if random.random() < 0.01:
            draft.body += random.randbytes(3_000)  # more than a segment
        return draft

    # Leasing

    async def _lease(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return
        random = self.random
        request = i.Lease(
            node.id(queue),
            random.choice((1, 1, 2, 5, 20)),
            random.choice((None, None, 0, 30, 1_000, 20_000)),
            random.choice((0, 0, 0, 5, 1_000)),
            random.choice(("", "", "ann", "bob")),
        )
        can_expect = not request.wait_ms and random.random() < 0.5 and not node.partition.committer.stuck
        number = self.lease(node, queue, request, self._expected(node, queue) if can_expect else None)
        if request.wait_ms and number:
            self._waits.append((number, self._asked))
        elif random.random() < 0.2:
            await self._publish(node)  # in the same turn, behind it

    def lease(self, node: Node, queue: str, request: i.Lease, expected: list[Glimpse] | None) -> int:
        latest = None if request.wait_ms else self.ledger.order
        is_late = False

        def done(answer: Deliveries | LanewayError) -> None:
            if not isinstance(answer, LanewayError):
                self._delivered(node, queue, answer, expected, request.max_messages, latest, is_late=is_late)
            else:
                assert self.refused(node, answer), f"a lease was answered with {answer!r}"

        number = self.send(node, request, done)
        if expected is not None:
            node.catch_up()  # before anything else changes what is next
            is_late = True
        return number

    def _expected(self, node: Node, queue: str) -> list[Glimpse] | None:
        """What peek shows to be next, checked against the order of publishing."""
        state = node.engine.state
        node.catch_up()
        while (due_ms := state.deadlines.next_ms()) is not None and due_ms <= node.broker.now():
            node.partition.tick_if_due()  # it does no more than so much at once
        number = node.id(queue)
        page = node.glimpses(list(peeking._ready(node.engine, state.queues[number], peeking.TOP_PRIORITY, 0)))
        at_home = [g for g in page if self.ledger.sent(g.body).is_ordered_in(queue) and not g.deaths]
        keys = [(-g.priority, self.ledger.sent(g.body).order) for g in at_home]
        assert keys == sorted(keys), f"{queue} is out of order: {[g.body[:8] for g in at_home]}"
        assert len(page) == state.queues[number].ready, f"{queue}: peek shows {len(page)} of those that are ready"
        found = state.queues[number]
        if number in node.partition.waiting or found.groups or found.tenants is not None:
            return None
        return page

    def _delivered(
        self,
        node: Node,
        queue: str,
        given: Deliveries,
        expected: list[Glimpse] | None,
        limit: int,
        latest: int | None,
        *,
        is_late: bool,
    ) -> None:
        """`latest`: no message that was sent after this one can be among them. `is_late`: they had to be read, or to
        become durable; what was settled meanwhile is left out."""
        self.counts["delivered"] += len(given)
        deliveries = [marked(queue, d) for d in given]
        if expected is not None:
            wanted, got = [g.message_id for g in expected[:limit]], [d.message_id for d in deliveries]
            if is_late:
                wanted = [one for one in wanted if one in got]
            assert got == wanted, f"{queue}: {deliveries} instead of {wanted}"
        assert len(deliveries) <= limit
        seen: dict[str, int] = {}
        for d in deliveries:
            sent = self.ledger.sent(d.body)
            assert latest is None or sent.order <= latest, f"{sent} was sent after the lease that got it"
            group = d.properties.group
            if group and not d.deaths:
                order = self.ledger.sent(d.body).order
                assert seen.get(group, 0) < order, f"group {group} of {queue} was delivered out of order"
                seen[group] = order
        holds = self.ledger.delivered(queue, deliveries, node.broker.now(), partition=self.partition)
        if holds:
            self._recent.append(holds)

    async def _lease_again(self, node: Node) -> None:
        """Somebody's answer was lost, who asks for the same deliveries once more."""
        there = [holds for holds in self._recent if node.has(holds[0].queue)]
        if not there:
            return
        holds = self.random.choice(there)
        queue, now_ms = holds[0].queue, node.broker.now()
        expected = [self.ledger.expectation(hold, now_ms) for hold in holds]
        deadlines = {hold.deadline_ms for hold in holds}
        lease_ms = self.random.choice((None, 30, 5_000))
        for hold in holds:
            hold.settling += 1
        tokens = [hold.token for hold in holds]

        def done(answer: Deliveries | LanewayError) -> None:
            for hold in holds:
                hold.settling -= 1
            if isinstance(answer, LanewayError):
                assert self.refused(node, answer), f"a lease was answered with {answer!r}"
            elif not len(answer):
                assert None in expected or False in expected or len(deadlines) > 1, f"{holds[0].sent} is still held"
            else:
                assert False not in expected, f"of {[hold.sent for hold in holds]} not all were held any more"
                assert answer.tokens() == tokens, f"{answer.tokens()} were given again, not {tokens}"
                self.counts["leased again"] += 1
                for hold, delivery in zip(holds, answer, strict=True):
                    self.ledger.check_content(hold.sent, marked(queue, delivery))
                    hold.deadline_ms = answer.deadline_ms
                    hold.latest_ms = max(hold.latest_ms, answer.deadline_ms) if hold.settling else answer.deadline_ms

        for hold in holds:
            hold.latest_ms = max(hold.latest_ms, now_ms + (lease_ms or 20_000))
        self.send(node, i.LeaseAgain(node.id(queue), tokens, holds[0].deadline_ms, lease_ms), done)

    async def _jump(self, node: Node) -> None:
        """Somebody sets the clock back and at once ahead again: nobody notices, but every time was moved twice."""
        node.partition.tick_if_due()
        by_ms = self.random.choice((1_500, 60_000, 3_600_000))
        for jump_ms in (-by_ms, by_ms):
            node.clock.offset_ms += jump_ms
            node.partition.look_at_clock()
            assert node.partition.clock.look() == 0 or node.engine.closed, "the jump was not followed"

    async def _peek(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return
        states = tuple(self.random.sample(("ready", "leased", "delayed", "dead"), self.random.randint(1, 4)))

        async def peek() -> None:
            cursor, seen = None, 0
            while True:
                query = PeekQuery(states=states, limit=self.random.choice((2, 50)), cursor=cursor)
                page, cursor = await node.broker.ask(i.Peek("/", queue, query))
                for glimpse in page:
                    assert glimpse.state in states, f"{glimpse} is not {states}"
                    self.ledger.check_content(self.ledger.sent(glimpse.body), glimpse, is_old=True)
                seen += len(page)
                if cursor is None or seen > 100:
                    break

        self.in_background(node, peek())

    async def _withdraw(self, node: Node) -> None:
        """A consumer goes away, or wants its answer now."""
        waits = [(number, at) for number, at in self._waits if at in self.unanswered]
        self._waits = waits
        if not waits:
            return
        number, at = waits.pop(self.random.randrange(len(waits)))
        wants_answer = self.random.random() < 0.5
        node.broker.withdraw(number, answer=wants_answer)
        if not wants_answer:  # it may be answered all the same, if messages were on their way to it
            self._withdrawn.add(at)
            self.counts["withdrawn"] += 1

    # Settling

    async def _settle(self, node: Node) -> None:
        holds = self._some_holds(node)
        if not holds:
            return
        queue, now_ms = holds[0].queue, node.broker.now()
        only_acks = self.random.random() < 0.3
        settlements = [Settlement("ack", h.token) if only_acks else self._settlement(h, now_ms) for h in holds]
        expectations = [self.ledger.expectation(hold, now_ms) for hold in holds]
        for hold, settlement in zip(holds, settlements, strict=True):
            hold.settling += 1
            if settlement.action == "ack":
                hold.sent.leaving += 1
            if settlement.action == "extend":
                hold.latest_ms = max(hold.latest_ms, now_ms + (settlement.lease_ms or 0))

        def done(results: list[int | LanewayError] | LanewayError) -> None:
            if isinstance(results, LanewayError):
                assert self.refused(node, results), f"settling was answered with {results!r}"
                for hold, settlement in zip(holds, settlements, strict=True):
                    hold.settling -= 1
                    hold.sent.leaving -= settlement.action == "ack"
                return
            for entry in zip(holds, settlements, expectations, results, strict=True):
                self._settled(*entry)

        request: i.Request = i.Settle(node.id(queue), settlements)
        if only_acks:
            self.counts["acks by token"] += 1
            request = i.Ack(node.id(queue), self._tokens([hold.token for hold in holds]))
        self.send(node, request, done)

    def _tokens(self, tokens: list[str]) -> Sequence[str]:
        """In the form that neighbours have, if they are."""
        seqs, leases = [int(text[16:], 16) for text in tokens], [int(text[:16], 16) for text in tokens]
        run = range(seqs[0], seqs[0] + len(seqs)), range(leases[0], leases[0] + len(leases))
        if self.random.random() < 0.5 or (seqs, leases) != (list(run[0]), list(run[1])):
            return tokens
        self.counts["acks of a run"] += 1
        return Tokens([run])

    async def ack_all(self, node: Node, queue: str) -> None:
        """Ack everything that is held of a queue, and wait for the answer."""
        now_ms = node.broker.now()
        holds = self._holds()
        good = [h for h in holds if h.queue == queue and self.ledger.expectation(h, now_ms)]
        if not good:
            return
        settlements = [Settlement("ack", hold.token) for hold in good]
        answer: asyncio.Future[list[int | LanewayError]] = node.loop.create_future()
        for hold in good:
            hold.settling += 1
            hold.sent.leaving += 1
        node.broker.send(i.Settle(node.id(queue), settlements), answer.set_result)
        for hold, settlement, result in zip(good, settlements, await answer, strict=True):
            self._settled(hold, settlement, True, result)

    def _holds(self) -> list[Held]:
        return [hold for hold in self.ledger.holds.values() if hold.partition == self.partition]

    def _some_holds(self, node: Node) -> list[Held]:
        """Tokens of one queue: mostly such as should be good, and a few that are not."""
        there = [h for h in self._holds() if node.has(h.queue)]
        if not there:
            return []
        queue = self.random.choice(there).queue
        there = [h for h in there if h.queue == queue]
        fresh = [h for h in there if not h.ended and not h.superseded]
        stale = [h for h in there if h.ended or h.superseded]
        for old in stale[:-20]:
            del self.ledger.holds[old.key]
        picked = self.random.sample(fresh, min(len(fresh), self.random.choice((1, 2, 5, 20))))
        if stale and self.random.random() < 0.2:
            picked.append(self.random.choice(stale[-20:]))
        return picked

    def _settlement(self, hold: Held, now_ms: int) -> Settlement:
        random = self.random
        action = random.choices(("ack", "release", "reject", "extend"), (10, 4, 3, 3))[0]
        settlement = Settlement(action, hold.token)  # type: ignore[arg-type]
        if random.random() < 0.3:
            settlement.message_id = hold.sent.message_id
        if action == "release":
            settlement.backoff = random.random() < 0.2
            settlement.delay_ms = random.choice((0, 0, 20, 3_000))
        elif action == "extend":
            settlement.lease_ms = random.choice((0, 20, 2_000, 10_000))
        elif action == "reject":
            settlement.reason = random.choice(("", "bad"))
        return settlement

    def _settled(
        self, hold: Held, settlement: Settlement, expectation: bool | None, result: int | LanewayError
    ) -> None:
        action, sent = settlement.action, hold.sent
        hold.settling -= 1
        sent.leaving -= action == "ack"
        if isinstance(result, LanewayError):
            if isinstance(result, Unavailable):
                return  # the node is stopping
            assert isinstance(result, LeaseStale), f"{action} of {sent}: {result!r}"
            assert expectation is not True, f"{action} of {sent} was refused: {result}"
            self.counts["refused, stale"] += 1
            return
        assert expectation is not False, f"{action} of {sent} was taken with a token that had ended"
        self.counts[action] += 1
        if action == "ack":
            sent.gone = True
        elif action == "reject":
            sent.deaths = max(sent.deaths, hold.deaths + 1)
        elif action == "extend" and settlement.lease_ms:
            hold.deadline_ms = result
            hold.latest_ms = max(hold.latest_ms, result) if hold.settling else result
            return
        hold.ended = True

    # Connections

    async def _session(self, node: Node) -> None:
        self.sessions.step(node)

    async def _produce(self, node: Node) -> None:
        self.producing.step(node)

    # Administration

    async def _document(self, node: Node) -> None:
        self.in_background(node, self._change_document(node))

    async def _change_document(self, node: Node) -> None:
        documents, key = self.registers.documents, f"note-{self.random.randrange(4)}"
        value = None if self.random.random() < 0.3 else self.random.randbytes(20)
        ticket = documents.ask(key, value)
        try:
            if value is None:
                await node.broker.ask(i.RemoveDocument(COLLECTION, key))
            else:
                await node.broker.ask(i.PutDocument(COLLECTION, key, value))
        except (DiskFull, TooLargeForDisk):
            documents.withdraw(key, ticket)
        else:
            documents.answer(key, ticket)

    async def _cursor(self, node: Node) -> None:
        self.in_background(node, self._change_cursor(node))

    async def _change_cursor(self, node: Node) -> None:
        """A reader moves on, goes back to what may be gone by now, or gives up."""
        cursors, key = self.registers.cursors, self.random.choice(("fast", "slow"))
        known, end = cursors.latest(key), node.journal.history.end().position
        if known is not None and self.random.random() < 0.1:
            position = None
        else:
            step = self.random.choice((0, 1, 5, end // 2))
            position = max(end - step, 1) if key == "fast" else min((known or 1) + step, end)
        ticket = cursors.ask(key, position)
        try:
            if position is None:
                await node.broker.ask(i.DeleteCursor(key))
            else:
                await node.broker.ask(i.PutCursor(key, position, rewind=self.random.random() < 0.5))
        except (Conflict, CursorNotFound, DiskFull, TooLargeForDisk, Gone) as refused:
            self.counts[f"refused, {refused.code}"] += 1
            cursors.withdraw(key, ticket)
        else:
            cursors.answer(key, ticket)

    async def _change_queue(self, node: Node) -> None:
        queue = self._a_queue(node)
        before = None if queue is None else self.registers.queues.latest(queue)
        if queue is None or before is None:
            return
        settings = msgspec.structs.replace(
            before,
            lease_ms=self.random.choice((500, 3_000, 10_000)),
            max_receives=self.random.choice((1, 2, 3, None)),
        )
        self.in_background(node, self._put_queue(node, queue, settings))

    async def _purge(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return

        leased = self.random.random() < 0.3  # as SQS does
        states = (READY, DELAYED, LEASED) if leased else (READY, DELAYED)

        async def purge() -> None:
            goes_in_slices = len(node.seqs(queue)) > purging.SLICE
            # Meanwhile some that wait are leased, and stay; some that are leased come back, and go.
            doomed = self._leaving(node, lambda: node.seqs(queue, *(() if goes_in_slices else states)))
            forgetting = self.ledger.forgetting(node.id(queue)) if leased else nullcontext()
            try:
                with forgetting:
                    count = await node.broker.ask(i.PurgeQueue("/", queue, leased=leased))
            except (DiskFull, TooLargeForDisk):
                return self._spared(doomed)
            if goes_in_slices:
                self.counts["purged in slices"] += 1
                return None
            assert count == len(doomed), f"{queue}: {count} purged, there were {len(doomed)}"
            return self._ended(doomed)

        self.in_background(node, purge())

    def _leaving(self, node: Node, pick: Callable[[], list[int]]) -> list[Any]:
        node.catch_up()
        doomed = [self.ledger.sent(g.body) for g in node.glimpses(pick())]
        for sent in doomed:
            sent.leaving += 1
        return doomed

    @staticmethod
    def _ended(doomed: list[Any]) -> None:
        for sent in doomed:
            sent.leaving -= 1
            sent.gone = True

    @staticmethod
    def _spared(doomed: list[Any]) -> None:
        for sent in doomed:
            sent.leaving -= 1

    async def _delete_queue(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return

        async def delete() -> None:
            doomed = self._leaving(node, lambda: node.seqs(queue))
            goes_in_slices = len(node.seqs(queue)) > purging.SLICE
            if goes_in_slices:
                # What is published meanwhile goes with it, and so do dead letters that get there.
                letters = (name for name, its in self.settings.items() if its.dead_letter_exchange is not None)
                self.ledger.unacked.update((queue, *letters))
            ticket = self.registers.queues.ask(queue, None)
            try:
                with self.ledger.forgetting(node.id(queue)):
                    await node.broker.ask(i.DeleteQueue("/", queue))
            except (DiskFull, TooLargeForDisk, QueueInUse):
                self._spared(doomed)
                self.registers.queues.withdraw(queue, ticket)
                return
            if goes_in_slices:  # some were leased meanwhile, and may have gone elsewhere
                self.counts["deleted in slices"] += 1
            else:
                self._ended(doomed)
            self.registers.queues.answer(queue, ticket)

        self.in_background(node, delete())

    async def _redrive(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return
        random = self.random
        targets = [n for n in self.names if n != "brief" and node.has(n)]
        request = RedriveRequest(
            filter=DeadLetterFilter(reason=random.choice((None, None, "rejected", "expired"))),
            target=random.choice((None, None, *targets)),
            max_per_second=random.choice((None, None, 5)),
        )

        async def redrive() -> None:
            await node.broker.ask(i.StartRedrive("/", queue, request))

        self.in_background(node, redrive())

    async def _delete_dead(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return

        async def delete() -> None:
            source = node.engine.state.queues[node.id(queue)]
            doomed = self._leaving(node, lambda: peeking.all_dead_letters(node.engine, source))
            try:
                await node.broker.ask(i.DeleteDeadLetters("/", queue, DeadLetterFilter()))
            except (DiskFull, TooLargeForDisk):
                return  # some of it may have been done: they stay in doubt
            there = node.messages()
            for sent in doomed:
                if sent.draft.body in there:
                    sent.leaving -= 1
                elif sent.leaving == 1:
                    sent.leaving, sent.gone = 0, True
                # Else another request may have been first, and may not be durable yet: the doubt stays.

        self.in_background(node, delete())

    async def _topology(self, node: Node) -> None:
        change = self._change_exchange if self.random.random() < 0.4 else self._change_binding
        self.in_background(node, change(node))

    async def _change_exchange(self, node: Node) -> None:
        register, name = self.registers.exchanges, self.random.choice(list(EXCHANGES))
        settings = EXCHANGES[name] if self.random.random() < 0.7 else None
        ticket = register.ask(name, settings)
        request = i.DeleteExchange("/", name) if settings is None else i.DeclareExchange("/", name, settings)
        try:
            await node.broker.ask(request)
        except JournalFailed:
            raise  # in doubt
        except (DiskFull, TooLargeForDisk, Unavailable, ExchangeNotFound):
            register.withdraw(name, ticket)
            return
        register.answer(name, ticket)

    async def _change_binding(self, node: Node) -> None:
        """What becomes of a binding when one of its ends goes is left to the other oracle."""
        random = self.random
        source, key = random.choice([*EXCHANGES, "fleeting", "amq.direct"]), random.choice(("a.*", "b.#", "c"))
        if random.random() < 0.3:
            binding = Binding(source, "exchange", random.choice(list(EXCHANGES)), key)
        else:
            binding = Binding(source, "queue", random.choice(self.names), key, random.choice(({}, {"n": 1})))
        there = node.broker.topology.bindings("/")
        try:
            if there and random.random() < 0.3:
                await node.broker.ask(i.Unbind("/", random.choice(there)))
            else:
                if source == "fleeting":
                    self.send(node, i.DeclareExchange("/", source, FLEETING), lambda answer: None)
                await node.broker.ask(i.Bind("/", binding))
        except (ExchangeNotFound, QueueNotFound):
            return

    # The world around

    async def _fill_disk(self, node: Node) -> None:
        node.files.capacity_bytes = node.files.used_bytes + self.random.choice((0, 100, 2_000, 10_000))
        self.full_until_step = self.step_count + self.random.randint(5, 30)

    def _free_disk(self, node: Node) -> None:
        self.full_until_step = None
        node.files.capacity_bytes = PLENTY_BYTES

        async def recovers() -> None:
            await asyncio.sleep(2.5)
            if node.files.capacity_bytes == PLENTY_BYTES and not node.failed:
                assert node.journal.has_room(), "there is space again, but publishing is still refused"
                assert not node.partition.committer.stuck, "there is space again, but nothing is written"

        self.in_background(node, recovers())

    async def _sleep(self, node: Node) -> None:
        sleep_s = self.random.choice((0.05, 0.5, 2.5, 12.0))
        await asyncio.sleep(sleep_s)
        if sleep_s > 10:
            await self._check_served(node)

    async def _check_served(self, node: Node) -> None:
        """Nobody waits for messages that are there, but for a moment."""
        before = self._unserved(node)
        if before:
            await asyncio.sleep(1)
            still = [one for one in self._unserved(node) if one in before]
            assert not still or node.failed, f"messages are there, and nobody gives them to {still}"

    def _unserved(self, node: Node) -> list[Any]:
        if node.partition.committer.stuck or node.files.capacity_bytes < PLENTY_BYTES:
            return []
        queues = [q for q in node.engine.state.queues.values() if q.ready and not q.groups and q.tenants is None]
        waiting = [(q.name, "those who wait", q.ready) for q in queues if q.number in node.partition.waiting]
        return waiting + [one for q in queues for one in self.sessions.unserved(node, q)]

    async def _check(self, node: Node) -> None:
        if not node.partition.committer.stuck:
            node.check()
