"""The one ordered inbox: what is merged does what it would do one by one, in the order in which it came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from laneway.broker import interface as i
from laneway.broker.values import Arrival, Deliveries, Draft, Messages, Properties, Receipt, Receipts, Settlement
from laneway.core.events import Event, Kind
from laneway.core.invariants import check_invariants
from laneway.core.message import messages_of
from laneway.errors import (
    DiskFull,
    IdempotencyConflict,
    InvalidInput,
    LanewayError,
    LeaseStale,
    LimitExceeded,
    QueueFull,
    QueueNotFound,
)
from laneway.journal.history import inspect

from .conftest import Bench, bodies, publish, results
from .consuming import Connection, Consumer, get, numbered

Run = Callable[..., None]


def kinds(events: list[Event]) -> list[str]:
    return [event.kind.name for event in events]


# Order


def test_requests_of_one_turn_are_carried_out_in_the_order_in_which_they_came(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        await b.publish(b"0", b"1")
        first, second = await b.lease(2)
        staged = b.staged()
        b.send(i.Ack(b.id(), [first.token]))
        b.send(publish(b, [Draft(b"2")]))
        stale = b.send(i.Settle(b.id(), [Settlement("release", first.token)]))
        leased = b.send(i.Lease(b.id(), 5))
        b.send(i.Settle(b.id(), [Settlement("release", second.token)]))
        b.send(publish(b, [Draft(b"3")], "other"))
        leased_after = b.send(i.Lease(b.id("other"), 5))
        await b.durable()
        assert kinds(staged) == ["ACKED", "PUBLISHED", "LEASED", "RELEASED", "PUBLISHED", "LEASED"]
        assert isinstance(stale[0][0], LeaseStale)
        assert (bodies(leased[0]), bodies(leased_after[0])) == ([b"2"], [b"3"])

    run(scenario)


def test_neighbours_of_one_kind_are_one_event_whatever_their_queues(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        staged = b.staged()
        told = [b.send(publish(b, [Draft(b"%d" % n)], ("q", "other")[n % 2])) for n in range(6)]
        await b.durable()
        assert kinds(staged) == ["PUBLISHED"]
        assert all(isinstance(result, Receipt) for answers in told for result in results(answers[0]))
        assert bodies(await b.lease()) == [b"0", b"2", b"4"]
        assert bodies(await b.lease(queue="other")) == [b"1", b"3", b"5"]

    run(scenario)


def test_what_an_answer_asks_for_comes_behind_all_that_is_being_carried_out(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        names = ("a", "b")
        for name in names:
            await b.queue(name)
            await b.publish(name.encode(), queue=name)
        connection = Connection(b)
        held = [await b.ask(i.Lease(b.id(name), 1, session=connection.session)) for name in names]
        purged: list[Any] = []
        # Whoever gets the first of what is given back has the queue of the second purged.
        b.broker.send(
            i.Lease(b.id("a"), 1, wait_ms=20_000), lambda _: b.broker.send(i.PurgeQueue("/", "b"), purged.append)
        )
        await asyncio.sleep(0)
        for some in held:
            b.send(i.SettleHeld(connection.session, some.queue, some.seqs, some.leases, "release"))
        await b.durable()
        await b.durable()
        assert purged == [1] and (await b.stats("b")).ready == 0

    run(scenario)


def test_a_message_that_is_asked_for_from_an_answer_comes_behind_what_is_being_carried_out(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        for name in ("a", "b"):
            await b.queue(name)
            await b.publish(name.encode(), queue=name)
        connection = Connection(b)
        held = [await b.ask(i.Lease(b.id(name), 1, session=connection.session)) for name in ("a", "b")]
        got: list[Any] = []
        request = i.Lease(b.id("b"), 1, session=connection.session)
        b.broker.send(i.Lease(b.id("a"), 1, wait_ms=20_000), lambda _: b.broker.send(request, got.append))
        await asyncio.sleep(0)
        for some in held:
            b.send(i.SettleHeld(connection.session, some.queue, some.seqs, some.leases, "release"))
        await b.durable()
        assert [bodies(deliveries) for deliveries in got] == [[b"b"]]

    run(scenario)


def test_a_wait_that_begins_in_an_answer_lets_no_lease_expire_whose_ack_came_in_time(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000)
        await b.queue("other", lease_ms=60_000)
        await b.publish(b"x")
        await b.publish(b"y", queue="other")
        (held,) = await b.lease()
        (given,) = await b.lease(queue="other")

        def wait(_: Deliveries) -> None:
            b.clock.ms += 2_000
            b.send(i.Lease(b.id(), 1))

        b.broker.send(i.Lease(b.id("other"), 1, wait_ms=20_000), wait)
        await asyncio.sleep(0)
        b.send(i.Settle(b.id("other"), [Settlement("release", given.token)]))
        acked = b.send(i.Ack(b.id(), [held.token]))
        await b.durable()
        assert acked == [[0]]

    run(scenario)


def test_one_who_fails_to_take_an_answer_keeps_nobody_from_theirs(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(b: Bench) -> None:
        def fail(_: object) -> None:
            raise RuntimeError("clumsy")

        await b.queue()
        number, clumsy = b.id(), b.broker.open_session(fail)
        told: list[Any] = []
        for done in (fail, told.append):
            b.broker.send(publish(b, [Draft(b"x")]), done)
            b.broker.send(i.Lease(number, 1), done)
            b.broker.send(i.Lease(number, 1), done)  # there is nothing for this one
            b.broker.send(i.Ack(number, ["none"]), done)
            b.broker.send(i.Settle(number, [Settlement("ack", "none")]), done)
            b.broker.send(i.DescribeQueue("/", "q"), done)
            b.broker.send(i.DeclareQueue("/", "q", None), done)
            b.broker.send(i.GetTask("none"), done)
            b.broker.send(i.Lease(number, 1, session=clumsy), done)
            b.broker.send(i.ReadHistory(1, 0, 10), done)
        async with asyncio.timeout(5):
            while len(told) < 10:
                await asyncio.sleep(0.001)
        b.broker.send(i.Lease(number, 1, wait_ms=20_000), fail)
        for session in (clumsy, b.broker.open_session(told.append)):
            b.send(i.Subscribe(session, 1, number))
        await b.durable()
        await b.delete()
        assert told[10:] == [[i.ConsumerEnded(1)]]
        assert "clumsy" in caplog.text

    run(scenario)


def test_one_who_gives_back_at_once_whatever_it_is_pushed_does_not_keep_the_others_waiting(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_receives=None)
        await b.queue("other")
        pushes = 0

        def give_back(pushed: list[i.Push]) -> None:
            nonlocal pushes
            (push,) = pushed
            assert isinstance(push, i.Delivered)
            pushes += 1
            some = push.deliveries
            b.send(i.SettleHeld(session, some.queue, some.seqs, some.leases, "release", push.consumer))

        session = b.broker.open_session(give_back)
        b.send(i.Subscribe(session, 1, b.id(), credit=2))
        await b.publish(*numbered(3))
        for n in range(5):
            assert isinstance((await b.publish(b"%d" % n, queue="other"))[0], Receipt)
            assert await b.settle("ack", await b.lease(queue="other"), queue="other") == [0]
        assert pushes > 10
        b.send(i.EndSession(session))
        await b.turns()
        assert (await b.stats()).ready == 3
        check_invariants(b.engine.state)

    run(scenario)


def test_what_is_published_from_an_answer_is_in_the_next_commit(run: Run) -> None:
    """Also if the answer is given while a commit is sealed: nobody else may come to ask for one."""

    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        await b.publish(b"x")
        (held,) = await b.lease()
        told: list[Any] = []
        b.broker.send(
            i.Lease(b.id(), 1, wait_ms=20_000),
            lambda _: b.broker.send(publish(b, [Draft(b"y")], "other"), told.append),
        )
        await asyncio.sleep(0)
        await b.settle("release", [held])  # which is carried out when the commit is sealed
        async with asyncio.timeout(1):
            while not told:
                await asyncio.sleep(0.001)
        assert isinstance(results(told[0])[0], Receipt)

    run(scenario)


# Merging changes nothing


class Walk:
    """Random requests, some in each turn. Carried out together or one by one, they must come to the same."""

    QUEUES = ("plain", "small", "drops", "grouped")

    def __init__(self, b: Bench, seed: int, *, one_by_one: bool) -> None:
        self._b = b
        self._random = Random(seed)
        self._one_by_one = one_by_one
        self._sent = 0
        self.log: list[Any] = []
        self._held: dict[str, dict[bytes, tuple[str, int, int]]] = {name: {} for name in self.QUEUES}
        self._session = b.broker.open_session(lambda push: None)

    async def walk(self) -> None:
        b = self._b
        await b.queue("plain", max_priority=9)
        await b.queue("small", max_messages=6)
        await b.queue("drops", max_messages=6, overflow="drop_oldest", keep_dead=False)
        await b.queue("grouped")
        for _ in range(60):
            # What each turn asks for depends on what was known before it, not on what it does itself.
            steps = [self._step() for _ in range(self._random.randint(1, 12))]
            for request, done in steps:
                b.broker.send(request, done)
                if self._one_by_one:
                    b.partition.inbox.drain()
            await b.durable()
            self.log.append("turn")
        for name in self.QUEUES:
            stats = await b.stats(name)
            self.log.append((name, stats.ready, stats.leased, stats.totals))
            self.log.append([(d.body, d.receives, d.priority) for d in await b.lease(100, queue=name)])
        check_invariants(b.engine.state)

    def _step(self) -> tuple[i.Request, Callable[[Any], None]]:
        kind = self._random.choice(("publish", "publish", "lease", "lease", "ack", "settle", "held", "get", "keyed"))
        number = len(self.log)
        name = self._random.choice(self.QUEUES)
        queue = self._b.id(name)
        if kind in ("publish", "keyed"):
            return self._publish(number, name, keyed=kind == "keyed")
        if kind == "lease":
            return i.Lease(queue, self._random.randint(1, 4)), lambda given: self._leased(name, given)
        if kind == "get":
            request = i.Lease(queue, 1, session=self._session)
            return request, lambda given: self._leased(name, given)
        held = self._held[name]
        chosen = self._random.sample(sorted(held), min(len(held), self._random.randint(1, 3)))
        tokens = [held[body][0] for body in chosen] or ["0" * 28]
        if self._random.random() < 0.8:
            for body in chosen:
                del held[body]  # else it is settled once more
        if kind == "ack":
            return i.Ack(queue, tokens), self._settled
        if kind == "settle":
            actions = [self._random.choice(("ack", "release", "reject", "extend")) for _ in tokens]
            batch = [
                Settlement(action, token, lease_ms=9_000 if action == "extend" else None)  # type: ignore[arg-type]
                for action, token in zip(actions, tokens, strict=True)
            ]
            return i.Settle(queue, batch), self._settled
        seqs, leases = [int(token[16:], 16) for token in tokens], [int(token[:16], 16) for token in tokens]
        action = self._random.choice(("ack", "release", "reject"))
        return i.SettleHeld(self._session, queue, seqs, leases, action), self._settled  # type: ignore[arg-type]

    def _publish(self, number: int, name: str, *, keyed: bool) -> tuple[i.Request, Callable[[Any], None]]:
        random, count = self._random, self._random.randint(1, 4)
        drafts = []
        for _ in range(count):
            self._sent += 1
            properties = Properties(group=random.choice("ab")) if name == "grouped" else Properties()
            priority = random.choice((None, 1, 9, 10))
            drafts.append(Draft(b"%d" % self._sent, priority, properties))
        messages = messages_of(drafts, clamps=random.random() < 0.5)
        ids = {each: self._b.id(each) for each in self.QUEUES}
        if keyed:
            key = random.choice("klm")
            return i.Publish((ids[name],), messages, (key, b"%d" % count)), self._published
        others = [tuple(ids[each] for each in random.sample(self.QUEUES[:3], random.randint(1, 3))) for _ in drafts]
        targets: Any = (ids[name],) if name == "grouped" or random.random() < 0.5 else others
        return i.Publish(targets, messages), self._published

    # Answers, without the numbers that merging may change

    def _published(self, arrivals: list[Arrival]) -> None:
        told = []
        for arrival in sorted(arrivals, key=lambda arrival: arrival.queue):
            outcome: list[Any] = [type(arrival.result).__name__]
            if isinstance(arrival.result, Receipts):
                outcome = [
                    (one.priority, one.duplicate) if isinstance(one, Receipt) else type(one).__name__
                    for one in arrival.result.each()
                ]
            told.append((arrival.queue, arrival.places and list(arrival.places), outcome))
        self.log.append(("published", told))

    def _leased(self, name: str, given: Deliveries) -> None:
        for at, delivery in enumerate(given):
            self._held[name][delivery.body] = (delivery.token, given.seqs[at], given.leases[at])
        self.log.append(("leased", name, [(d.body, d.receives, d.priority) for d in given]))

    def _settled(self, outcome: list[Any]) -> None:
        self.log.append(("settled", [one if isinstance(one, int) else type(one).__name__ for one in outcome]))


def by_turn(log: list[Any]) -> list[Any]:
    """The answers of each turn, whatever their order: an answer that waits for a commit comes behind one that does
    not."""
    turns: list[list[Any]] = [[]]
    for entry in log:
        if entry == "turn":
            turns[-1].sort(key=repr)
            turns.append([])
        else:
            turns[-1].append(entry)
    return turns


@pytest.mark.parametrize("seed", range(12))
def test_what_is_merged_does_what_it_would_do_one_by_one(tmp_path: Path, seed: int) -> None:
    logs = []
    for one_by_one in (False, True):

        async def main(one_by_one: bool = one_by_one) -> None:
            b = Bench(tmp_path / str(one_by_one))
            await b.start()
            walk = Walk(b, seed, one_by_one=one_by_one)
            await walk.walk()
            await b.stop()
            logs.append(by_turn(walk.log))

        asyncio.run(main())
    for together, singly in zip(*logs, strict=True):
        assert together == singly


# Idempotency keys


def test_a_key_that_comes_twice_in_one_turn_publishes_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        targets, key = (b.id(), b.id("other")), ("k", b"fp")
        first, again, conflict = (
            b.send(i.Publish(targets, messages_of([Draft(body)]), (key[0], print_)))
            for body, print_ in ((b"1", b"fp"), (b"1", b"fp"), (b"2", b"other"))
        )
        behind = b.send(publish(b, [Draft(b"3")]))
        await b.durable()
        ids = [[one.result.each()[0].message_id for one in answers[0]] for answers in (first, again)]
        assert ids[0] == ids[1]
        assert [one.result.each()[0].duplicate for one in again[0]] == [True, True]
        assert all(isinstance(one.result, IdempotencyConflict) for one in conflict[0])
        assert isinstance(results(behind[0])[0], Receipt)
        assert bodies(await b.lease()) == [b"1", b"3"] and bodies(await b.lease(queue="other")) == [b"1"]

    run(scenario)


def test_what_was_refused_under_a_key_and_is_tried_again_overtakes_nothing(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_messages=1)
        key = ("k", b"fp")
        taken, refused = await b.publish_drafts([Draft(b"1"), Draft(b"2")], key=key)
        assert isinstance(taken, Receipt) and isinstance(refused, QueueFull)
        await b.ask(i.ChangeQueue("/", "q", {"max_messages": 10}))
        b.send(publish(b, [Draft(b"3")]))
        again = b.send(publish(b, [Draft(b"1"), Draft(b"2")], key=key))
        b.send(publish(b, [Draft(b"4")]))
        await b.durable()
        assert [one.duplicate for one in results(again[0])] == [True, False]  # type: ignore[union-attr]
        assert bodies(await b.lease()) == [b"1", b"3", b"2", b"4"]

    run(scenario)


def test_a_batch_under_one_key_goes_to_the_same_queues(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        messages = messages_of([Draft(b"1"), Draft(b"2")])
        with pytest.raises(InvalidInput, match="goes to the same queues"):
            await b.ask(i.Publish([(b.id(),), (b.id("other"),)], messages, ("k", b"")))
        assert len(await b.ask(i.Publish([(b.id(), b.id("other"))] * 2, messages, ("k", b"")))) == 2

    run(scenario)


# Transactions


def test_a_transaction_is_one_commit_of_the_journal(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        for name in ("q", "r", "s"):
            await b.queue(name)
        await b.publish(b"1", b"2")
        held = await get(b)
        session = b.broker.open_session(lambda push: None)
        settlement = i.SettleHeld(session, b.id(), held.seqs, held.leases, "ack")
        # Others of the same turn, before and behind it, and one that is so large that it is carried out at once.
        b.send(publish(b, [Draft(b"x" * 200_000)] * 30))
        done = b.send(
            i.Transact([(b.id("r"),), (b.id("r"), b.id("s"))], messages_of([Draft(b"3"), Draft(b"4")]), [settlement])
        )
        b.send(publish(b, [Draft(b"y" * 200_000)] * 30))
        await b.durable()
        assert [(arrival.queue, arrival.places) for arrival in done[0]] == [(b.id("r"), [0, 1]), (b.id("s"), [1])]
        mine = {b.id("r"), b.id("s")}
        events = [
            e
            for e in inspect.dump(str(b.folder), kinds=["published", "acked"])
            if e["kind"] == "acked" or e["queue"] in mine
        ]
        assert [e["kind"] for e in events] == ["published", "published", "acked"]
        assert len({e["position"] for e in events}) == 1

    run(scenario)


def test_what_a_transaction_settles_may_be_gone(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("gone")
        await b.publish(b"1", queue="gone")
        held, number = await get(b, "gone"), b.id("gone")
        await b.delete("gone")
        settlement = i.SettleHeld(1, number, held.seqs, held.leases, "ack")
        done = await b.ask(i.Transact([(b.id(), number)], messages_of([Draft(b"2")]), [settlement]))
        assert [arrival.queue for arrival in done] == [b.id()]
        assert await b.ask(i.Transact([], Messages([], []), [settlement])) == []

    run(scenario)


def test_a_transaction_that_fails_is_no_business_of_the_one_before_it(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        settled = b.partition.sessions.settled

        def fails(request: i.SettleHeld) -> None:
            if request.session == 99:
                raise RuntimeError("a mistake")
            settled(request)

        b.partition.sessions.settled = fails  # type: ignore[method-assign]
        good = b.send(i.Transact([(b.id(),)], messages_of([Draft(b"x")]), []))
        bad = b.send(i.Transact([], Messages([], []), [i.SettleHeld(99, b.id(), [], [], "ack")]))
        await b.durable()
        assert [type(answer) for answer in bad] == [LanewayError]
        assert len(good) == 1 and isinstance(good[0][0].result, Receipts) and (await b.stats()).ready == 1

    run(scenario)


# Waiting and withdrawing


def test_one_who_withdraws_and_wants_an_answer_gets_what_there_is(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told: list[Any] = []
        request = i.Lease(b.id(), 5, wait_ms=20_000)
        waiting = b.broker.send(request, told.append)
        await asyncio.sleep(0)
        b.broker.withdraw(waiting, answer=True)
        assert [len(deliveries) for deliveries in told] == [0]
        await b.publish(b"x")
        b.broker.withdraw(b.broker.send(request, told.append), answer=True)  # of the same turn
        await b.durable()
        assert [bodies(deliveries) for deliveries in told] == [[], [b"x"]]
        b.broker.withdraw(waiting, answer=True)
        b.broker.withdraw(0)
        b.broker.withdraw(b.broker.send(request, told.append))
        await b.publish(b"y")
        assert len(told) == 2 and (await b.stats()).ready == 1

    run(scenario)


def test_one_who_no_longer_awaits_a_lease_does_not_wait(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        waiting = asyncio.ensure_future(b.broker.ask(i.Lease(b.id(), 1, wait_ms=20_000)))
        await asyncio.sleep(0)
        assert (await b.stats()).consumers_waiting == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await b.stats()).consumers_waiting == 0
        await b.publish(b"x")
        assert (await b.stats()).ready == 1

    run(scenario)


def test_a_queue_that_goes_before_a_request_is_carried_out_is_told(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("stays")
        await b.publish(b"x")
        (held,) = await b.lease()
        number = b.id()
        acked, settled = b.send(i.Ack(number, [held.token])), b.send(i.Settle(number, [Settlement("ack", held.token)]))
        published = b.send(i.Publish((number, b.id("stays")), messages_of([Draft(b"y")])))
        waits, asks = b.send(i.Lease(number, 1, wait_ms=20_000)), b.send(i.Lease(number, 1))
        queues = b.engine.state.queues
        gone = queues.pop(number)  # as if it were deleted before they are carried out: nothing does that today
        b.partition.inbox.drain()
        await b.durable()
        queues[number] = gone
        assert isinstance(acked[0][0], QueueNotFound) and isinstance(settled[0][0], QueueNotFound)
        assert [arrival.queue for arrival in published[0]] == [b.id("stays")]
        assert [len(deliveries) for deliveries in (*waits, *asks)] == [0, 0]
        for request in (i.Ack(999, ["x"]), i.Settle(999, [Settlement("ack", "x")]), i.Lease(999, 1)):
            with pytest.raises(QueueNotFound):
                await b.ask(request)

    run(scenario)


# Refusals


def refuse(b: Bench, *refused: Kind) -> Callable[[], None]:
    """The journal takes no more events of these kinds, until it is told to."""
    stage = b.journal.stage

    def refusing(event: Event) -> int:
        if event.kind in refused:
            raise LimitExceeded("no more")
        return stage(event)

    def take_again() -> None:
        b.journal.stage = stage  # type: ignore[method-assign]

    b.journal.stage = refusing  # type: ignore[method-assign]
    return take_again


def test_what_the_journal_does_not_take_is_refused_on_every_way(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        await b.publish(*numbered(4))
        held = await b.lease(3)
        connection = Connection(b)
        mine = await b.ask(i.Lease(b.id(), 1, session=connection.session))
        await b.publish(b"4")
        take_again = refuse(b, Kind.PUBLISHED, Kind.ACKED, Kind.LEASED, Kind.RELEASED, Kind.QUEUE_PUT)
        both = b.send(i.Publish((b.id(), b.id("other")), messages_of([Draft(b"x")])))
        acked = b.send(i.Ack(b.id(), [held[0].token, held[1].token]))
        settled = b.send(i.Settle(b.id(), [Settlement("release", held[2].token)]))
        ended = b.send(i.SettleHeld(connection.session, b.id(), mine.seqs, mine.leases, "ack"))
        transacted = b.send(
            i.Transact([], Messages([], []), [i.SettleHeld(connection.session, b.id(), mine.seqs, mine.leases, "ack")])
        )
        leased = b.send(i.Lease(b.id(), 1))
        waits = b.send(i.Lease(b.id(), 1, wait_ms=20_000))
        got = b.send(i.Lease(b.id(), 1, session=connection.session))
        made = b.send(i.PutQueue("/", "new", b.topology.find_queue("/", "q").settings))
        await b.durable()
        take_again()
        assert [type(arrival.result) for arrival in both[0]] == [LimitExceeded] * 2
        assert [type(one) for one in (*acked[0], *settled[0])] == [LimitExceeded] * 3
        for answers in (ended, transacted, leased, waits, got, made):
            assert [type(answer) for answer in answers] == [LimitExceeded]
        check_invariants(b.engine.state)
        stats = await b.stats()
        assert (stats.ready, stats.leased, stats.consumers_waiting) == (1, 4, 0)
        assert b.find("new") is None and (await b.stats("other")).ready == 0
        assert await b.settle("ack", held) == [0, 0, 0]

    run(scenario)


def test_a_publish_counts_even_if_those_who_wait_for_it_cannot_be_served_at_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        waits = b.send(i.Lease(b.id(), 1, wait_ms=20_000))
        await asyncio.sleep(0)
        take_again = refuse(b, Kind.LEASED)
        told = b.send(publish(b, [Draft(b"x")]))
        b.partition.inbox.drain()
        take_again()
        await b.durable()
        assert isinstance(results(told[0])[0], Receipt)
        await b.turns()
        assert [bodies(deliveries) for deliveries in waits] == [[b"x"]], "they are served as soon as that is possible"

    run(scenario)


def test_consumers_are_served_as_soon_as_the_journal_takes_leases_again(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        consumers = [Consumer(b), Consumer(b, "other")]
        await b.turns()
        take_again = refuse(b, Kind.LEASED)
        for queue in ("q", "other"):
            assert isinstance((await b.publish(b"x", queue=queue))[0], Receipt)
        take_again()
        await b.turns(5)
        assert [consumer.got for consumer in consumers] == [[b"x"], [b"x"]]

    run(scenario)


def test_a_disk_without_room_takes_what_makes_room(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        has_room, b.journal.has_room = b.journal.has_room, lambda need_bytes=0: False  # type: ignore[method-assign]
        session, settings = Connection(b).session, b.topology.find_queue("/", "q").settings
        for request in (
            publish(b, [Draft(b"x")]),
            i.Transact([(b.id(),)], messages_of([Draft(b"x")]), []),
            i.PutQueue("/", "new", settings),
            i.DeclareQueue("/", "new", settings),
            i.PutDocument("things", "a", b""),
            i.CreateVhost("v"),
            i.StagePart("p", "s", "0", [], [], "anna"),
            i.CommitBatch("p", 1, "s", [], "anna"),
        ):
            with pytest.raises(DiskFull, match="publishing waits"):
                await b.ask(request)
        one, two = await b.lease(2)
        got = await b.ask(i.Lease(b.id(), 1, session=session))
        assert await b.ask(i.Ack(b.id(), [one.token])) == [0]
        assert len(await b.settle("release", [two])) == 1
        held = i.SettleHeld(session, b.id(), got.seqs, got.leases, "ack")
        assert await b.ask(i.Transact([], messages_of([]), [held])) == []
        stats = await b.stats()
        assert (stats.ready, stats.leased) == (1, 0)
        assert await b.ask(i.PurgeQueue("/", "q")) == 1
        b.journal.has_room = has_room  # type: ignore[method-assign]
        await b.publish(b"x")

    run(scenario)


def test_a_disk_that_takes_nothing_at_all_refuses_everything_that_writes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*numbered(3))
        (held,) = await b.lease(1)
        consumer = Consumer(b, credit=1)
        await b.turns()
        b.partition.committer.stuck = DiskFull("no space")
        for request in (
            publish(b, [Draft(b"x")]),
            i.Transact([(b.id(),)], messages_of([Draft(b"x")]), []),
            i.Lease(b.id(), 1),
            i.Lease(b.id(), 1, session=consumer.connection.session),
            i.Ack(b.id(), [held.token]),
            i.Settle(b.id(), [Settlement("ack", held.token)]),
            i.LeaseAgain(b.id(), [held.token], held.deadline_ms),
            i.DeleteQueue("/", "q"),
            i.PurgeQueue("/", "q"),
            i.Unbind("/", b.topology.bindings("/", source="")[0]),
        ):
            with pytest.raises(LanewayError) as refused:
                await b.ask(request)
            assert isinstance(refused.value, DiskFull), request
        assert (await b.stats()).leased == 2
        # What connections settle is not refused: nobody could tell them. It is written when there is room again.
        consumer.settle("ack")
        b.partition.committer.stuck = None
        await b.turns()
        assert (await b.stats()).totals["acked"] == 1

    run(scenario)


def test_a_mistake_in_the_program_is_told_to_those_whose_requests_it_hits(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        waits = [b.send(i.Lease(b.id(), 1, wait_ms=20_000)) for _ in range(2)]
        serve = b.partition.waiting.serve

        def stumble(number: int) -> None:
            raise RuntimeError("a mistake")

        b.partition.waiting.serve = stumble  # type: ignore[method-assign]
        b.partition.inbox.drain()
        b.partition.waiting.serve = serve  # type: ignore[method-assign]
        assert [[type(answer) for answer in answers] for answers in waits] == [[LanewayError]] * 2
        await b.publish(b"x")
        assert [len(answers) for answers in waits] == [1, 1] and (await b.stats()).ready == 1
        assert "a mistake" in caplog.text

    run(scenario)


def test_a_long_publish_takes_no_room_that_others_have_used_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(b: Bench) -> None:
        for at in range(30):
            await b.queue(f"q{at}")
        monkeypatch.setattr("laneway.broker.parts.MAX_COST", 210)
        monkeypatch.setattr("laneway.broker.parts._FEW", 10)
        staged = b.staged()
        numbers = tuple(b.id(f"q{at}") for at in range(30))
        answers = b.send(i.Publish(numbers, messages_of([Draft(b"x")])))
        await asyncio.sleep(0)  # the first part is on its way
        has_room = b.journal.has_room
        b.journal.has_room = lambda need_bytes=0: False  # type: ignore[method-assign]
        while not answers:
            await b.durable()
        assert [len(event.queues) for event in staged] == [10]  # type: ignore[union-attr]
        arrivals = answers[0]
        assert [arrival.queue for arrival in arrivals] == list(numbers)
        assert [isinstance(arrival.result, DiskFull) for arrival in arrivals] == [False] * 10 + [True] * 20
        b.journal.has_room = has_room  # type: ignore[method-assign]

    run(scenario)


def test_transactions_do_not_make_the_inbox_forget_how_full_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        monkeypatch.setattr("laneway.broker.inbox.MAX_WAITING_BYTES", 1_000)
        for _ in range(3):  # as much as fits, again and again
            b.send(i.Transact([(b.id(),)], messages_of([Draft(b"x" * 600)]), []))
            assert b.engine.state.queues[b.id()].ready == 0, "it waits for the commit"
            await b.durable()
            await b.settle("ack", await b.lease())

    run(scenario)
