"""A broker that is reached over a socket: what both ends do when all is well, and when the link is lost."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.interface import (
    Bind,
    ConsumerEnded,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteVhost,
    Delivered,
    DescribeQueue,
    EndSession,
    Flow,
    Lease,
    Publish,
    PutDocument,
    RemoveDocument,
    SettleHeld,
    Subscribe,
)
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.topology import TopologyView
from laneway.broker.values import Binding, ExchangeSettings, QueueSettings, QueueStats
from laneway.cluster import following
from laneway.cluster.following import FollowedTopology
from laneway.cluster.remote import RETRY_S, RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.core.message import Messages
from laneway.errors import DiskFull, DocumentChanged, OutcomeUnknown, QueueInUse, QueueNotFound, Unavailable
from laneway.journal.segments.journal import SegmentJournal

NOW_MS = 1_800_000_000_000


class Pair:
    """A leader, and edges that reach it over a socket, on one loop."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "leader")
        self.partition = Partition(
            Engine(SegmentJournal(folder / "data"), new_tag=lambda: 7), clock=Clock.steady(lambda: NOW_MS)
        )
        self.local = LocalBroker(self.partition)
        self.server: PartitionServer
        self.edges: list[RemoteBroker] = []

    async def serve(self) -> None:
        self.server = PartitionServer(self.local)
        await self.server.start(self.path)

    async def edge(self, patience_s: float = 0.01) -> RemoteBroker:
        edge = RemoteBroker(self.path, len(self.edges) + 1, lambda: NOW_MS, patience_s=patience_s)
        await edge.start()
        self.edges.append(edge)
        return edge

    async def lose_leader(self) -> None:
        """Its process is gone, as far as edges see: its sessions end, and nobody listens."""
        await self.server.stop()
        Path(self.path).unlink(missing_ok=True)
        for edge in self.edges:
            await until(lambda edge=edge: edge.health()["state"] == "unreachable")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def run(folder: Path, work: Callable[[Pair], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        pair = Pair(folder)
        await pair.partition.start()
        await pair.serve()
        try:
            await work(pair)
        finally:
            for edge in pair.edges:
                await edge.stop()
            await pair.server.stop()
            await pair.partition.stop()

    asyncio.run(main())


async def declare(broker: RemoteBroker, name: str = "q", session: int = 0) -> int:
    settings = QueueSettings(exclusive=bool(session))
    queue: int = (await broker.ask(DeclareQueue("/", name, settings, session))).info.queue
    return queue


async def publish(broker: RemoteBroker, queue: int, *bodies: bytes) -> None:
    await broker.ask(Publish((queue,), Messages(list(bodies), [b""] * len(bodies))))


def test_what_changes_while_an_edge_is_told_what_there_is_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PART_COUNT", 1)

    async def work(pair: Pair) -> None:
        local: Any = pair.local
        for name in ("a", "b", "c", "d"):
            await declare(local, name)
        for exchange in ("x", "y"):
            await local.ask(DeclareExchange("/", exchange, ExchangeSettings(type="fanout")))
            for name in ("a", "d"):
                await local.ask(Bind("/", Binding(exchange, "queue", name)))
        model = FollowedTopology()
        feed, parts = model.feeds[0], following.image_of(local.model)
        local.follow(feed.apply)
        feed.expect_image()
        for change in (
            DeleteQueue("/", "d"),  # which is told of later, though it is gone by then
            DeleteQueue("/", "a"),
            DeclareQueue("/", "a", QueueSettings()),
            DeclareQueue("/", "e", QueueSettings()),
            Bind("/", Binding("x", "queue", "e")),
            DeleteExchange("/", "y"),
            DeclareExchange("/", "y", ExchangeSettings()),
            PutDocument("things", "one", b"{}"),
        ):
            feed.add(next(parts))
            await local.ask(change)
        for part in parts:
            feed.add(part)
        feed.end_image()
        view = TopologyView(model)
        assert view.queues(vhost=None) == local.topology.queues(vhost=None) and view.queue("/", "e") is not None
        assert view.exchanges("/") == local.topology.exchanges("/")
        assert view.bindings("/") == local.topology.bindings("/") == [Binding("x", "queue", "e")]
        assert view.route("/", "x", "") == local.topology.route("/", "x", "")
        assert view.documents("things") == {"one": b"{}"}

    run(tmp_path, work)


def test_an_answer_to_a_declare_comes_behind_the_change(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge, other = await pair.edge(), await pair.edge()
        version = edge.topology.version
        queue = await declare(edge)
        assert edge.topology.find_queue("/", "q") == pair.local.topology.find_queue("/", "q")
        assert edge.topology.version > version
        await edge.ask(DeclareExchange("/", "x", ExchangeSettings(type="topic")))
        await edge.ask(Bind("/", Binding("x", "queue", "q", "a.*")))
        assert edge.topology.route("/", "x", "a.b") == (queue,)
        await edge.ask(PutDocument("things", "one", b"{}"))
        await edge.ask(CreateVhost("v"))
        await until(lambda: other.topology.has_vhost("v"))
        assert other.topology.route("/", "x", "a.b") == (queue,) and other.topology.documents("things") == {
            "one": b"{}"
        }
        gone: list[str] = []
        other.topology.on_vhost_deleted(gone.append)
        await edge.ask(DeleteVhost("v"))
        await edge.ask(DeleteQueue("/", "q"))
        await until(lambda: gone == ["v"] and other.topology.queue("/", "q") is None)
        assert other.topology.route("/", "x", "a.b") == () and other.topology.bindings("/") == []

    run(tmp_path, work)


@pytest.mark.parametrize("part_count", [1, following.PART_COUNT])
def test_an_edge_that_comes_later_begins_with_all_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_count: int
) -> None:
    monkeypatch.setattr(following, "PART_COUNT", part_count)

    async def work(pair: Pair) -> None:
        first = await pair.edge()
        session = first.open_session(lambda push: None)
        await declare(first, "mine", session)
        queue = await declare(first)
        await first.ask(DeclareExchange("/", "x", ExchangeSettings(type="fanout")))
        await first.ask(Bind("/", Binding("x", "queue", "q")))
        await first.ask(CreateVhost("v"))
        later, mine = await pair.edge(), first.topology.find_queue("/", "mine")
        assert later.topology.queues(vhost=None) == pair.local.topology.queues(vhost=None)
        assert later.topology.find_queue("/", "mine") == mine and mine.owner == session
        assert later.topology.route("/", "x", "") == (queue,) and later.topology.vhosts() == ["/", "v"]
        assert later.limits == pair.local.limits and later.health()["state"] == "ready"

    run(tmp_path, work)


def test_an_edge_is_told_of_each_document_and_of_what_changed_while_it_was_cut_off(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge, other = await pair.edge(), await pair.edge()
        told: list[tuple[str, str, bytes | None]] = []
        other.topology.on_document(lambda *change: told.append(change))
        await edge.ask(PutDocument("things", "one", b"1"))
        await edge.ask(PutDocument("things", "two", b"2"))
        with pytest.raises(DocumentChanged):
            await other.ask(RemoveDocument("things", "one", [("things", "one", b"0")]))
        await other.ask(RemoveDocument("things", "one", [("things", "one", b"1")]))
        assert told == [("things", "one", b"1"), ("things", "two", b"2"), ("things", "one", None)]
        await pair.lose_leader()
        told.clear()
        await pair.local.ask(PutDocument("things", "three", b"3"))
        await pair.local.ask(RemoveDocument("things", "two"))
        await pair.local.ask(PutDocument("others", "one", b"1"))
        await pair.serve()
        await until(lambda: other.health()["state"] == "ready")
        assert sorted(told, key=str) == [
            ("others", "one", b"1"),
            ("things", "three", b"3"),
            ("things", "two", None),
        ]

    run(tmp_path, work)


def test_errors_of_the_leader_are_raised_at_the_edge(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        with pytest.raises(QueueNotFound, match="there is no queue 'none'"):
            await (await pair.edge()).ask(DescribeQueue("/", "none"))

    run(tmp_path, work)


def test_what_waits_for_an_answer_hears_that_the_outcome_is_unknown(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        answers: list[Any] = []
        edge.send(Publish((queue,), Messages([b"a"], [b""])), answers.append)
        await pair.lose_leader()
        (answer,) = answers
        assert isinstance(answer, OutcomeUnknown) or answer[0].queue == queue  # it was confirmed before
        edge.send(Publish((queue,), Messages([b"b"], [b""])), answers.append)
        await until(lambda: len(answers) == 2)
        assert type(answers[1]) is Unavailable  # nothing was sent: that is known
        edge.send(Publish((queue,), Messages([b"c"], [b""])), answers.append)
        assert type(answers[2]) is Unavailable, "it waited long enough for a leader"

    run(tmp_path, work)


def test_what_is_asked_while_the_leader_is_away_waits_for_the_next_one(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge(patience_s=20)
        queue = await declare(edge)
        await pair.lose_leader()
        pushed: list[Delivered] = []
        session = edge.open_session(pushed.extend)  # type: ignore[arg-type]
        answers: list[Any] = []
        for request in (
            Subscribe(session, 1, queue, credit=1),
            Publish((queue,), Messages([b"a", b"b"], [b"", b""])),
            DescribeQueue("/", "q"),
        ):
            edge.send(request, answers.append)
        await pair.serve()
        await until(lambda: len(answers) == 3 and pushed)
        (stats,) = (answer for answer in answers if isinstance(answer, QueueStats))
        assert (stats.subscribers, stats.ready) == (1, 2), "they came in order, and the consumer once"

    run(tmp_path, work)


def test_a_lease_that_waits_goes_on_waiting_at_the_next_leader(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        lease = asyncio.ensure_future(edge.ask(Lease(queue, 1, wait_ms=20_000)))
        await until(lambda: pair.partition.waiting)
        await pair.lose_leader()
        await until(lambda: not pair.partition.waiting)  # nobody is there to take what it would get
        await pair.serve()
        await until(lambda: pair.partition.waiting)
        await publish(edge, queue, b"a")
        assert (await lease).bodies == [b"a"]

    run(tmp_path, work)


def test_what_was_sent_has_an_unknown_outcome_when_the_edge_stops(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue, other = await declare(edge), await declare(edge, "other")
        answers: list[Any] = []
        edge.send(Publish((queue,), Messages([b"a"], [b""])), answers.append)
        edge.send(Lease(other, 1, wait_ms=20_000), answers.append)
        await edge.stop()
        await until(lambda: len(answers) == 2)
        assert [type(answer) for answer in answers] == [OutcomeUnknown, Unavailable]
        await until(lambda: pair.partition.engine.state.queues[queue].ready == 1)  # so it is no refusal

    run(tmp_path, work)


def test_an_edge_that_comes_anew_has_its_sessions_of_before_ended_first(tmp_path: Path) -> None:
    """Its leader may notice much later that the earlier link is lost."""

    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        pushed: list[Delivered] = []
        session = edge.open_session(pushed.extend)  # type: ignore[arg-type]
        await edge.ask(Subscribe(session, 1, queue))
        await publish(edge, queue, b"a")
        await until(lambda: pushed)
        earlier = edge._link
        assert earlier is not None
        edge.link_lost(earlier)  # it gives it up, and its leader hears nothing of that
        await until(lambda: edge._link is not None)
        await until(lambda: len(pushed) == 2)
        assert not earlier.is_open
        await publish(edge, queue, b"b")
        await until(lambda: len(pushed) == 3)
        assert [list(push.deliveries.bodies) for push in pushed] == [[b"a"], [b"a"], [b"b"]]

    run(tmp_path, work)


def test_a_wait_that_is_withdrawn_is_over(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        answers: list[Any] = []
        number = edge.send(Lease(queue, 1, wait_ms=20_000), answers.append)
        await until(lambda: pair.partition.waiting)
        edge.withdraw(number)
        await until(lambda: not pair.partition.waiting)
        again = edge.send(Lease(queue, 1, wait_ms=20_000), answers.append)
        edge.withdraw(again, answer=True)
        await until(lambda: answers)
        assert [len(answer) for answer in answers] == [0]  # of the second; the first gets none

    run(tmp_path, work)


def test_messages_that_cross_a_withdrawal_reach_whoever_asked(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        await publish(edge, queue, b"a")
        answers: list[Any] = []
        number = edge.send(Lease(queue, 1, wait_ms=20_000), answers.append)
        await until(lambda: pair.partition.engine.state.queues[queue].leased)
        edge.withdraw(number)  # the answer is on its way: whoever asked has to give the message back
        await until(lambda: answers)
        assert answers[0].bodies == [b"a"]

    run(tmp_path, work)


def test_a_consumer_is_subscribed_again_behind_its_back(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        pushed: list[Delivered] = []
        session = edge.open_session(pushed.extend)  # type: ignore[arg-type]
        await edge.ask(Subscribe(session, 1, queue, credit=1))
        await publish(edge, queue, b"a")
        await until(lambda: pushed)
        await pair.lose_leader()
        await until(lambda: pair.partition.engine.state.queues[queue].ready == 1)  # what it held is given back
        await pair.serve()
        await until(lambda: len(pushed) == 2)
        assert [bytes(push.deliveries.bodies[0]) for push in pushed] == [b"a", b"a"]
        assert pushed[1].deliveries.receives == [2]
        old, new = (push.deliveries for push in pushed)
        edge.send(SettleHeld(session, queue, old.seqs, old.leases, "ack", 1), lambda answer: None)
        stats = await edge.ask(DescribeQueue("/", "q"))
        assert stats.leased == 1  # an ack of the old delivery is passed over
        await publish(edge, queue, b"b")
        assert (await edge.ask(DescribeQueue("/", "q"))).ready == 1  # nor does it give the consumer credit
        edge.send(SettleHeld(session, queue, new.seqs, new.leases, "ack", 1), lambda answer: None)
        await until(lambda: bytes(pushed[-1].deliveries.bodies[0]) == b"b")
        assert (await edge.ask(DescribeQueue("/", "q"))).totals["acked"] == 1

    run(tmp_path, work)


def test_a_consumer_that_was_refused_is_not_made_one_by_the_next_leader(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        pushed: list[Any] = []
        other, session = edge.open_session(lambda pushes: None), edge.open_session(pushed.extend)
        await edge.ask(Subscribe(other, 1, queue, exclusive=True))
        with pytest.raises(QueueInUse):
            await edge.ask(Subscribe(session, 1, queue))
        edge.send(EndSession(other), lambda answer: None)
        await pair.lose_leader()
        with pytest.raises(Unavailable):
            await edge.ask(Subscribe(session, 2, queue))
        await pair.serve()
        await until(lambda: edge.health()["state"] == "ready")
        await publish(edge, queue, b"a")
        stats = await edge.ask(DescribeQueue("/", "q"))
        assert (stats.subscribers, stats.ready, pushed) == (0, 1, [])

    run(tmp_path, work)


def test_a_consumer_whose_queue_went_while_the_leader_was_away_hears_of_it(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        gone, there = await declare(edge, "gone"), await declare(edge, "there")
        pushed: list[Any] = []
        session = edge.open_session(pushed.extend)
        await edge.ask(Subscribe(session, 1, gone))
        await edge.ask(Subscribe(session, 2, there))
        await pair.lose_leader()
        await pair.local.ask(DeleteQueue("/", "gone"))
        await pair.serve()
        await until(lambda: pushed)
        assert pushed == [ConsumerEnded(1)]
        await edge.ask(DeleteQueue("/", "there"))
        await until(lambda: pushed[1:] == [ConsumerEnded(2)])
        assert not edge._sessions[session].subscriptions, "nothing is left to be told again"

    run(tmp_path, work)


def test_a_client_that_takes_nothing_is_pushed_nothing_when_its_link_does_again(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        pushed: list[Any] = []
        session = edge.open_session(pushed.extend)
        await edge.ask(Subscribe(session, 1, queue))
        (leaders,) = pair.server._edges.values()
        flow: list[bool] = []
        pause = pair.partition.sessions.pause
        pair.partition.sessions.pause = lambda session, paused: (flow.append(paused), pause(session, paused))[1]  # type: ignore[method-assign]
        edge.send(Flow(session, True), lambda answer: None)
        await edge.ask(DescribeQueue("/", "q"))
        leaders.hold_back(True)
        leaders.hold_back(False)
        assert flow == [True, True, True]
        leaders.hold_back(True)
        edge.send(Flow(session, False), lambda answer: None)
        await publish(edge, queue, b"a")
        assert flow[3:] == [True, True] and not pushed, "its link takes nothing yet"
        leaders.hold_back(False)
        await until(lambda: pushed)

    run(tmp_path, work)


def test_an_edge_that_is_not_welcome_does_not_knock_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(pair: Pair) -> None:
        slept: list[float] = []
        sleep = asyncio.sleep

        async def counted(seconds: float) -> None:
            if seconds in RETRY_S:
                slept.append(seconds)
            await sleep(0)

        monkeypatch.setattr("laneway.cluster.remote.asyncio.sleep", counted)
        monkeypatch.setattr("laneway.cluster.serving.image_of", lambda model: 1 // 0)  # whatever is wrong with it
        edge = RemoteBroker(pair.path, 1, lambda: NOW_MS)
        starting = asyncio.ensure_future(edge.start())
        pair.edges.append(edge)
        await until(lambda: len(slept) > len(RETRY_S))
        assert slept[: len(RETRY_S) + 1] == [*RETRY_S, RETRY_S[-1]]
        starting.cancel()

    run(tmp_path, work)


def test_only_what_may_be_overtaken_says_so(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        messages = Messages([b"x"], [b""])
        answers: list[Any] = []
        assert edge.send(Publish((queue,), messages), answers.append) == 0
        assert edge.send(Publish(tuple(range(queue, 2_000)), messages), answers.append) != 0
        await until(lambda: len(answers) == 2)

    run(tmp_path, work)


def test_what_an_edge_held_goes_back_when_it_is_gone(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge, other = await pair.edge(), await pair.edge()
        queue = await declare(edge)
        pushed: list[Delivered] = []
        session = edge.open_session(pushed.extend)  # type: ignore[arg-type]
        await declare(edge, "mine", session)
        await edge.ask(Subscribe(session, 1, queue, credit=5_000))
        for _ in range(30):  # so much that the settled are looked for
            await publish(edge, queue, *[b"x"] * 100)
        await until(lambda: sum(len(push.deliveries) for push in pushed) == 3_000)
        for push in pushed[:-1]:
            d = push.deliveries
            edge.send(SettleHeld(session, queue, d.seqs, d.leases, "ack", 1), lambda answer: None)
        held = len(pushed[-1].deliveries)
        assert (await edge.ask(DescribeQueue("/", "q"))).leased == held
        await publish(edge, queue, b"last")
        await until(lambda: bytes(pushed[-1].deliveries.bodies[-1]) == b"last")
        assert edge._link is not None
        edge._is_stopping = True
        edge._link.close()
        await until(lambda: pair.partition.engine.state.queues[queue].ready == held + 1)
        await until(lambda: other.topology.queue("/", "mine") is None)

    run(tmp_path, work)


def test_the_socket_is_its_owners_alone(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        assert stat.S_IMODE(Path(pair.path).stat().st_mode) == 0o600

    run(tmp_path, work)


def test_what_comes_behind_a_refused_publish_is_refused_too_until_the_edge_has_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        check, refusals = pair.partition.check_writable, [DiskFull("the disk is full")]

        def check_writable(need_bytes: int = 0) -> None:
            if refusals:
                raise refusals.pop()
            check(need_bytes)

        monkeypatch.setattr(pair.partition, "check_writable", check_writable)
        answers: list[Any] = []
        for body in (b"a", b"b", b"c"):
            edge.send(Publish((queue,), Messages([body], [b""])), answers.append)
        await until(lambda: len(answers) == 3)
        assert [type(answer) for answer in answers] == [DiskFull] * 3, "what is sent again must not be overtaken"
        await publish(edge, queue, b"a")
        assert (await edge.ask(DescribeQueue("/", "q"))).ready == 1

    run(tmp_path, work)


def test_an_edge_that_takes_nothing_is_leased_nothing(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        edge = await pair.edge()
        queue = await declare(edge)
        (leaders,) = pair.server._edges.values()
        answers: dict[str, Any] = {}

        def lease(name: str, session: int = 0) -> int:
            return edge.send(
                Lease(queue, 1, wait_ms=0 if session else 20_000, session=session),
                lambda answer: answers.__setitem__(name, list(map(bytes, answer.bodies))),
            )

        session = edge.open_session(lambda pushes: None)
        lease("waits")
        await until(lambda: pair.partition.waiting)
        leaders.hold_back(True)
        lease("comes later"), lease("of a session", session)
        gone = lease("gone")
        await publish(edge, queue, b"a", b"b", b"c", b"d")
        edge.withdraw(gone, answer=True)
        await until(lambda: answers == {"gone": []})
        assert pair.partition.engine.state.queues[queue].ready == 4
        leaders.hold_back(False)
        await until(lambda: len(answers) == 4)
        assert sorted(map(tuple, answers.values())) == [(), (b"a",), (b"b",), (b"c",)]

    run(tmp_path, work)
