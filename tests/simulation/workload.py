"""What callers do: every step is drawn from the seed, given to the broker, and entered in the ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import msgspec

from laneway.broker import peeking
from laneway.broker.values import DeadLetterFilter, PeekQuery, RedriveRequest
from laneway.core.exchanges import Binding, ExchangeSettings
from laneway.core.message import Delivery, Draft, Glimpse, Properties, Receipt, Settlement
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
    LanewayError,
    LeaseStale,
    QueueInUse,
    QueueNotFound,
    Unavailable,
)

from .ledger import Batch, Held, Ledger, marked
from .node import Node
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
    "settle": 26,
    "session": 60,
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
    "check": 1,
}


class Workload:
    def __init__(self, random: Random, ledger: Ledger, *, disk_full: bool = True, sessions: bool = True) -> None:
        self.random = random
        self.ledger = ledger
        self.failures: list[str] = []  # what was found in a callback
        self.counts: Counter[str] = Counter()  # what was done, for the reader of a report
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
            weights["session"] = 0
        self._steps = list(weights)
        self._weights = list(weights.values())
        self._body_bytes = random.choice((20, 60, 200, 500))
        self._batch = random.choice((1, 3, 3, 12))
        self._gap_ms = random.choice((0, 1, 3, 20))
        self._bodies = 0
        self.full_until_step: int | None = None
        self.step_count = 0
        self.sessions = SessionWorkload(self)
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

    def in_background(self, node: Node, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except (Unavailable, DiskFull, QueueNotFound):
                pass  # stopping, stuck, or deleted in the meantime
            except AssertionError as wrong:
                self.failures.append(str(wrong))

        node.loop.create_task(run())

    async def open_queues(self, node: Node) -> None:
        """Create those of the seed's queues that are not there."""
        for name in self.all_names:
            if ("/", name) not in node.engine.state.by_name:
                await self._put_queue(node, name, self.settings[name])

    async def _put_queue(self, node: Node, name: str, settings: QueueSettings) -> None:
        ticket = self.ledger.queues.ask(name, settings)
        try:
            await node.broker.queues.put("/", name, settings)
        except InvalidInput:  # its dead-letter queue was deleted a moment ago
            self.ledger.queues.withdraw(name, ticket)
        except (DiskFull, Unavailable, QueueNotFound):
            pass  # perhaps only after it had been changed: in doubt until the next start
        else:
            self.ledger.queues.answer(name, ticket)

    def _a_queue(self, node: Node) -> str | None:
        names = [name for name in self.names if ("/", name) in node.engine.state.by_name]
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
        number = node.broker.find_queue("/", queue).number
        now_ms = node.broker.now()
        batch = self.ledger.send(queue, number, drafts, now_ms, idempotency=idempotency, is_plain=is_plain)
        done = self.guarded(node, lambda results: self._published(batch, results))
        try:
            node.broker.publish("/", queue, drafts, done, idempotency=idempotency)
        except IdempotencyConflict as conflict:
            self.ledger.conflicted(batch, conflict)
        except DiskFull:
            self.counts["refused, disk full"] += 1
            self.ledger.refused(batch)

    def _published(self, batch: Batch, results: Sequence[Receipt | LanewayError]) -> None:
        self.ledger.answered(batch, results, DEDUP_WINDOW_MS)

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
        self._bodies += 1
        draft.body = b"%d:" % self._bodies + random.randbytes(random.randint(0, self._body_bytes))
        if random.random() < 0.01:
            draft.body += random.randbytes(3_000)  # more than a segment
        return draft

    # Leasing

    async def _lease(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return
        random = self.random
        wait_ms = random.choice((0, 0, 0, 5, 1_000))
        options = {
            "max_messages": random.choice((1, 1, 2, 5, 20)),
            "lease_ms": random.choice((None, None, 0, 30, 1_000, 20_000)),
            "wait_ms": wait_ms,
            "consumer": random.choice(("", "", "ann", "bob")),
        }
        try:
            expected = self._expected(node, queue) if not wait_ms and random.random() < 0.5 else None
            done = self.guarded(node, lambda d: self._delivered(node, queue, d, expected, options["max_messages"]))
            node.broker.lease("/", queue, done=done, **options)
        except DiskFull:
            assert node.broker.committer.stuck, "leasing was refused, though acks can be written"

    def _expected(self, node: Node, queue: str) -> list[Glimpse] | None:
        """What peek shows to be next, checked against the order of publishing."""
        state = node.engine.state
        node.catch_up()
        while (due_ms := state.deadlines.next_ms()) is not None and due_ms <= node.broker.now():
            node.broker.tick_if_due()  # it does no more than so much at once
        number = node.broker.find_queue("/", queue).number
        page, _ = node.broker.peek("/", queue, PeekQuery(states=("ready",), limit=10_000))
        page = [marked(queue, g) for g in page]
        at_home = [g for g in page if self.ledger.sent(g.body).queue == queue and not g.deaths]
        keys = [(-g.priority, self.ledger.sent(g.body).order) for g in at_home]
        assert keys == sorted(keys), f"{queue} is out of order: {[g.body[:8] for g in at_home]}"
        assert len(page) == state.queues[number].ready, f"{queue}: peek shows {len(page)} of those that are ready"
        found = state.queues[number]
        if number in node.broker.waiting or found.groups or found.tenants is not None:
            return None
        return page

    def _delivered(
        self, node: Node, queue: str, deliveries: list[Delivery], expected: list[Glimpse] | None, limit: int
    ) -> None:
        self.counts["delivered"] += len(deliveries)
        deliveries = [marked(queue, d) for d in deliveries]
        if expected is not None:
            wanted = [g.message_id for g in expected[:limit]]
            assert [d.message_id for d in deliveries] == wanted, f"{queue}: {deliveries} instead of {wanted}"
        assert len(deliveries) <= limit
        seen: dict[str, int] = {}
        for d in deliveries:
            group = d.properties.group
            if group and not d.deaths:
                order = self.ledger.sent(d.body).order
                assert seen.get(group, 0) < order, f"group {group} of {queue} was delivered out of order"
                seen[group] = order
        self.ledger.delivered(queue, deliveries, node.broker.now())

    # Settling

    async def _settle(self, node: Node) -> None:
        holds = self._some_holds(node)
        if not holds:
            return
        queue, now_ms = holds[0].queue, node.broker.now()
        settlements = [self._settlement(hold, now_ms) for hold in holds]
        expectations = [self.ledger.expectation(hold, now_ms) for hold in holds]
        for hold, settlement in zip(holds, settlements, strict=True):
            hold.settling += 1
            if settlement.action == "ack":
                hold.sent.leaving += 1
            if settlement.action == "extend":
                hold.latest_ms = max(hold.latest_ms, now_ms + (settlement.lease_ms or 0))

        def done(results: list[int | LanewayError]) -> None:
            for entry in zip(holds, settlements, expectations, results, strict=True):
                self._settled(*entry)

        try:
            node.broker.settle("/", queue, settlements, self.guarded(node, done))
        except DiskFull:
            assert node.broker.committer.stuck, "settling was refused, though acks can be written"
            for hold, settlement in zip(holds, settlements, strict=True):
                hold.settling -= 1
                hold.sent.leaving -= settlement.action == "ack"

    async def ack_all(self, node: Node, queue: str) -> None:
        """Ack everything that is held of a queue, and wait for the answer."""
        now_ms = node.broker.now()
        good = [h for h in self.ledger.holds.values() if h.queue == queue and self.ledger.expectation(h, now_ms)]
        if not good:
            return
        settlements = [Settlement("ack", hold.token) for hold in good]
        answer: asyncio.Future[list[int | LanewayError]] = node.loop.create_future()
        for hold in good:
            hold.settling += 1
            hold.sent.leaving += 1
        node.broker.settle("/", queue, settlements, answer.set_result)
        for hold, settlement, result in zip(good, settlements, await answer, strict=True):
            self._settled(hold, settlement, True, result)

    def _some_holds(self, node: Node) -> list[Held]:
        """Tokens of one queue: mostly such as should be good, and a few that are not."""
        there = [h for h in self.ledger.holds.values() if ("/", h.queue) in node.engine.state.by_name]
        if not there:
            return []
        queue = self.random.choice(there).queue
        there = [h for h in there if h.queue == queue]
        fresh = [h for h in there if not h.ended and not h.superseded]
        stale = [h for h in there if h.ended or h.superseded]
        for old in stale[:-20]:
            del self.ledger.holds[old.token]
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

    # Administration

    async def _document(self, node: Node) -> None:
        self.in_background(node, self._change_document(node))

    async def _change_document(self, node: Node) -> None:
        documents, key = self.ledger.documents, f"note-{self.random.randrange(4)}"
        value = None if self.random.random() < 0.3 else self.random.randbytes(20)
        ticket = documents.ask(key, value)
        try:
            if value is None:
                await node.broker.remove_document(COLLECTION, key)
            else:
                await node.broker.put_document(COLLECTION, key, value)
        except DiskFull:
            documents.withdraw(key, ticket)
        else:
            documents.answer(key, ticket)

    async def _cursor(self, node: Node) -> None:
        self.in_background(node, self._change_cursor(node))

    async def _change_cursor(self, node: Node) -> None:
        """A reader moves on, goes back to what may be gone by now, or gives up."""
        cursors, key = self.ledger.cursors, self.random.choice(("fast", "slow"))
        known, end = cursors.latest(key), node.journal.history.end().position
        if known is not None and self.random.random() < 0.1:
            position = None
        else:
            step = self.random.choice((0, 1, 5, end // 2))
            position = max(end - step, 1) if key == "fast" else min((known or 1) + step, end)
        ticket = cursors.ask(key, position)
        try:
            if position is None:
                await node.broker.cursors.delete(key)
            else:
                await node.broker.cursors.put(key, position, rewind=self.random.random() < 0.5)
        except (Conflict, CursorNotFound, DiskFull, Gone) as refused:
            self.counts[f"refused, {refused.code}"] += 1
            cursors.withdraw(key, ticket)
        else:
            cursors.answer(key, ticket)

    async def _change_queue(self, node: Node) -> None:
        queue = self._a_queue(node)
        before = None if queue is None else self.ledger.queues.latest(queue)
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
            doomed = self._leaving(node, lambda: node.seqs(queue, *states))
            try:
                count = await node.broker.queues.purge("/", queue, leased=leased)
            except DiskFull:
                return self._spared(doomed)
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
            ticket = self.ledger.queues.ask(queue, None)
            try:
                await node.broker.queues.delete("/", queue)
            except (DiskFull, QueueInUse):
                self._spared(doomed)
                self.ledger.queues.withdraw(queue, ticket)
                return
            self._ended(doomed)
            self.ledger.queues.answer(queue, ticket)

        self.in_background(node, delete())

    async def _redrive(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return
        random = self.random
        targets = [n for n in self.names if n != "brief" and ("/", n) in node.engine.state.by_name]
        request = RedriveRequest(
            filter=DeadLetterFilter(reason=random.choice((None, None, "rejected", "expired"))),
            target=random.choice((None, None, *targets)),
            max_per_second=random.choice((None, None, 5)),
        )

        async def redrive() -> None:
            await node.broker.start_redrive("/", queue, request)

        self.in_background(node, redrive())

    async def _delete_dead(self, node: Node) -> None:
        queue = self._a_queue(node)
        if queue is None:
            return

        async def delete() -> None:
            source = node.broker.find_queue("/", queue)
            doomed = self._leaving(node, lambda: peeking.all_dead_letters(node.engine, source))
            try:
                await node.broker.delete_dead_letters("/", queue, DeadLetterFilter())
            except DiskFull:
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
        register, name = self.ledger.exchanges, self.random.choice(list(EXCHANGES))
        settings = EXCHANGES[name] if self.random.random() < 0.7 else None
        ticket = register.ask(name, settings)
        try:
            if settings is None:
                node.broker.exchanges.delete("/", name)
            else:
                node.broker.exchanges.declare("/", name, settings)
        except (DiskFull, Unavailable, ExchangeNotFound):
            register.withdraw(name, ticket)
            return
        await node.broker.committer.durable()
        register.answer(name, ticket)

    async def _change_binding(self, node: Node) -> None:
        """What becomes of a binding when one of its ends goes is left to the other oracle."""
        random = self.random
        source, key = random.choice([*EXCHANGES, "fleeting", "amq.direct"]), random.choice(("a.*", "b.#", "c"))
        if random.random() < 0.3:
            binding = Binding(source, "exchange", random.choice(list(EXCHANGES)), key)
        else:
            binding = Binding(source, "queue", random.choice(self.names), key, random.choice(({}, {"n": 1})))
        there = node.broker.exchanges.bindings("/")
        try:
            if there and random.random() < 0.3:
                node.broker.exchanges.unbind("/", random.choice(there))
            else:
                if source == "fleeting":
                    node.broker.exchanges.declare("/", source, FLEETING)
                node.broker.exchanges.bind("/", binding)
        except (ExchangeNotFound, QueueNotFound):
            return
        await node.broker.committer.durable()

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
                assert not node.broker.committer.stuck, "there is space again, but nothing is written"

        self.in_background(node, recovers())

    async def _sleep(self, node: Node) -> None:
        await asyncio.sleep(self.random.choice((0.05, 0.5, 2.5, 12.0)))

    async def _check(self, node: Node) -> None:
        if not node.broker.committer.stuck:
            node.check()
