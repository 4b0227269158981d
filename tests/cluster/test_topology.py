"""The topology of several partitions: every process has it when whoever changed it is answered, and what one partition
deletes has its consequences in the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.broker.interface import (
    Bind,
    ChangeQueue,
    CreateVhost,
    DeclareExchange,
    DeclareQueue,
    DeleteQueue,
    DeleteVhost,
    EndSession,
    PutDocument,
    RemoveDocument,
    Unbind,
)
from laneway.broker.values import Binding, BrokerLimits, ExchangeSettings, QueueSettings
from laneway.cluster import tidying
from laneway.core.partitions import partition_of, queue_id
from laneway.errors import (
    Conflict,
    InvalidInput,
    LimitExceeded,
    QueueElsewhere,
    QueueInUse,
    QueueNotFound,
    Unavailable,
    VhostNotFound,
)
from tests.cluster.partitions import SeveralPartitions, declare, name_at, publish, run, until

IN_ONE_AND_IN_TWO = pytest.mark.parametrize("processes", [1, 2], ids=["one process", "two processes"])


def edges(server: SeveralPartitions) -> list[Any]:
    return [process.edge for process in server.processes]


@IN_ONE_AND_IN_TWO
def test_bindings_lead_to_queues_of_other_partitions_in_every_process(tmp_path: Path, processes: int) -> None:
    async def work(server: SeveralPartitions) -> None:
        queue, near = await declare(server.edge, name_at(1)), await declare(server.edge, name_at(0))
        await server.edge.ask(DeclareExchange("/", "x", ExchangeSettings(type="topic")))
        for edge in edges(server):
            assert await edge.ask(Bind("/", Binding("x", "queue", name_at(1), "a.*"))) is (edge is server.edge)
        await server.edge.ask(Bind("/", Binding("x", "queue", name_at(0), "a.b")))
        for edge in edges(server):
            assert set(edge.topology.route("/", "x", "a.b")) == {queue, near}
            assert edge.topology.route("/", "x", "a.c") == (queue,)
            assert [route.queue for route in edge.topology.explain("/", "x", "a.c")] == [name_at(1)]
        assert await edges(server)[-1].ask(Unbind("/", Binding("x", "queue", name_at(1), "a.*"))) is True
        for edge in edges(server):
            assert edge.topology.route("/", "x", "a.c") == ()

    run(tmp_path, work, processes=processes)


@IN_ONE_AND_IN_TWO
def test_bindings_go_with_their_queue_and_take_their_exchange_along(tmp_path: Path, processes: int) -> None:
    async def work(server: SeveralPartitions) -> None:
        await declare(server.edge, name_at(1))
        await server.edge.ask(DeclareExchange("/", "brief", ExchangeSettings(auto_delete=True)))
        await server.edge.ask(DeclareExchange("/", "lasting", ExchangeSettings()))
        for exchange in ("brief", "lasting"):
            await server.edge.ask(Bind("/", Binding(exchange, "queue", name_at(1), "k")))
        await edges(server)[-1].ask(DeleteQueue("/", name_at(1)))
        topology = edges(server)[-1].topology
        assert topology.exchange("/", "brief") is None
        assert topology.bindings("/", source="lasting") == [] and topology.route("/", "lasting", "k") == ()
        again = await declare(server.edge, name_at(1))
        assert topology.route("/", "lasting", "k") == ()
        assert await server.edge.ask(Bind("/", Binding("lasting", "queue", name_at(1), "k"))) is True
        assert topology.route("/", "lasting", "k") == (again,)
        for partition in server.partitions.values():
            assert partition.engine.state.topology.exchanges.get("/", {}).keys() <= {"lasting"}

    run(tmp_path, work, processes=processes)


def test_bindings_of_many_queues_go_a_few_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after the end of a process whose clients had queues of their own."""
    monkeypatch.setattr(tidying, "STEP_COUNT", 2)

    async def work(server: SeveralPartitions) -> None:
        session = server.edge.open_session(lambda pushes: None)
        names = [name_at(1, nth=nth) for nth in range(7)]
        for name in names:
            await declare(server.edge, name, session)
            await server.edge.ask(Bind("/", Binding("amq.direct", "queue", name, "k"), session))
        await declare(server.edge, name_at(1, nth=7))
        await server.edge.ask(Bind("/", Binding("amq.direct", "queue", name_at(1, nth=7), "k")))
        unbinds, turns = server.partitions[0].exchanges.unbind_gone, [0]

        def unbind_gone(vhost: str, name: str) -> None:
            turns[-1] += 1
            server.edge.call_soon(lambda: turns.append(0))
            unbinds(vhost, name)

        server.partitions[0].exchanges.unbind_gone = unbind_gone  # type: ignore[method-assign]
        server.edge.send(EndSession(session), lambda _: None)
        await until(lambda: len(server.edge.topology.bindings("/")) == 1)
        assert sum(turns) == 7 and max(turns) <= 2

    run(tmp_path, work)


def test_a_binding_to_a_queue_that_is_gone_gives_way_to_one_to_its_successor(tmp_path: Path) -> None:
    """Also before anybody has tidied up."""

    async def work(server: SeveralPartitions) -> None:
        first = await declare(server.edge, name_at(1))
        await server.edge.ask(DeclareExchange("/", "x", ExchangeSettings(auto_delete=True)))
        binding = Binding("x", "queue", name_at(1), "k")
        await server.edge.ask(Bind("/", binding))
        server.partitions[0].exchanges.unbind_gone = lambda vhost, name: None  # type: ignore[method-assign]
        server.edge.send(DeleteQueue("/", name_at(1)), lambda _: None)
        await until(lambda: server.edge.topology.queue("/", name_at(1)) is None)
        assert server.edge.topology.route("/", "x", "k") == ()
        second = await declare(server.edge, name_at(1))
        assert second != first
        assert server.edge.topology.route("/", "x", "k") == ()
        assert await server.edge.ask(Bind("/", binding)) is True
        assert server.edge.topology.route("/", "x", "k") == (second,)
        assert server.edge.topology.bindings("/", source="x") == [binding]

    run(tmp_path, work)


def test_bindings_know_their_queues_after_a_restart_also_from_a_snapshot(tmp_path: Path) -> None:
    async def before(server: SeveralPartitions) -> None:
        queue = await declare(server.edge, name_at(1))
        assert queue == queue_id(1, 1)
        await declare(server.edge, name_at(0))
        await server.edge.ask(Bind("/", Binding("amq.direct", "queue", name_at(1), "k")))
        await server.edge.ask(Bind("/", Binding("amq.direct", "queue", name_at(0), "k")))

    async def after(server: SeveralPartitions) -> None:
        assert set(server.edge.topology.route("/", "amq.direct", "k")) == {queue_id(1, 1), 1}

    run(tmp_path, before)
    run(tmp_path, after)  # from the snapshot that a stop leaves
    for snapshot in (tmp_path / "data").rglob("*.snapshot*"):
        snapshot.unlink()
    run(tmp_path, after)


@IN_ONE_AND_IN_TWO
def test_a_virtual_host_goes_with_its_queues_in_all_partitions(tmp_path: Path, processes: int) -> None:
    async def work(server: SeveralPartitions) -> None:
        await server.edge.ask(CreateVhost("v"))
        for edge in edges(server):
            assert edge.topology.has_vhost("v")
        for partition in (0, 1):
            await declare(edges(server)[-1], name_at(partition, vhost="v"), vhost="v")
            await declare(server.edge, name_at(partition))
        told: list[str] = []
        edges(server)[-1].topology.on_vhost_deleted(told.append)
        await server.edge.ask(DeleteVhost("v"))
        assert told == ["v"]
        assert [info.vhost for info in server.edge.topology.queues(vhost=None)] == ["/", "/"]
        await until(lambda: all(len(p.engine.state.queues) == 1 for p in server.partitions.values()))
        with pytest.raises(VhostNotFound):
            await declare(server.edge, name_at(1, vhost="v"), vhost="v")

    run(tmp_path, work, processes=processes)


def test_a_partition_that_was_away_deletes_what_was_in_virtual_hosts_that_went_meanwhile(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        await server.edge.ask(CreateVhost("v"))
        queue = await declare(server.edge, name_at(1, vhost="v"), vhost="v")
        await server.edge.ask(Bind("v", Binding("amq.direct", "queue", name_at(1, vhost="v"), "k")))
        await server.lose(1)
        done: list[Any] = []
        server.edge.send(DeleteVhost("v"), done.append)
        await until(lambda: not server.edge.topology.has_vhost("v"))
        assert server.edge.topology.queue_at(queue) is not None  # as far as anybody knows
        with pytest.raises(Conflict):
            await server.edge.ask(CreateVhost("v"))
        await server.start_again(1)
        await until(lambda: server.edge.topology.queue_at(queue) is None)
        await until(lambda: done == [None])

    run(tmp_path, work, processes=2)


def test_what_happened_while_a_partition_could_not_tell_is_known_when_it_can(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        lost = await declare(server.edge, name_at(1))
        session = server.processes[1].edge.open_session(lambda pushes: None)
        owned = name_at(1, nth=1)
        await declare(server.processes[1].edge, owned, session)
        await server.edge.ask(DeclareExchange("/", "x", ExchangeSettings(auto_delete=True)))
        await server.edge.ask(Bind("/", Binding("x", "queue", owned, "k"), session))
        assert server.edge.topology.find_queue("/", owned).owner == session
        await server.lose(1)
        await server.start_again(1)  # the connection is gone, and its queue with it
        await until(lambda: server.edge.topology.queue("/", owned) is None)
        await until(lambda: server.edge.topology.exchange("/", "x") is None)
        assert server.edge.topology.find_queue("/", name_at(1)).queue == lost

    run(tmp_path, work, processes=2)


@IN_ONE_AND_IN_TWO
def test_documents_are_known_to_every_process_when_they_are_answered(tmp_path: Path, processes: int) -> None:
    async def work(server: SeveralPartitions) -> None:
        told: list[Any] = []
        edges(server)[-1].topology.on_document(lambda *what: told.append(what))
        for edge in edges(server):
            await edge.ask(PutDocument("things", "one", b"{}"))
            assert all(e.topology.document("things", "one") == b"{}" for e in edges(server))
            await edge.ask(RemoveDocument("things", "one"))
            assert all(e.topology.document("things", "one") is None for e in edges(server))
        assert told == [("things", "one", b"{}"), ("things", "one", None)] * processes

    run(tmp_path, work, processes=processes)


def test_an_answer_waits_for_a_process_that_is_slow_and_no_longer_than_that(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        remote = server.processes[1].remotes[0]
        seen, remote._tell_seen = remote._tell_seen, lambda: None  # type: ignore[method-assign]
        told: list[Any] = []
        server.edge.send(PutDocument("things", "one", b"{}"), told.append)
        await until(lambda: server.processes[1].edge.topology.document("things", "one") is not None)
        await asyncio.sleep(0.05)
        assert told == []
        seen()
        await until(lambda: told == [None])

    run(tmp_path, work, processes=2)


def test_an_answer_does_not_wait_for_a_process_that_is_gone(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        remote = server.processes[1].remotes[0]
        remote._tell_seen = lambda: None  # type: ignore[method-assign]
        told: list[Any] = []
        server.edge.send(PutDocument("things", "one", b"{}"), told.append)
        await until(lambda: server.processes[1].edge.topology.document("things", "one") is not None)
        assert told == []
        await server.lose(1)
        await until(lambda: told == [None])
        await server.start_again(1)

    run(tmp_path, work, processes=2)


def test_the_other_partitions_keep_queues_alone(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        other = server.processes[0].locals[1]
        for request in (
            DeclareExchange("/", "x", ExchangeSettings()),
            Bind("/", Binding("amq.direct", "queue", "q", "k")),
            CreateVhost("v"),
            DeleteVhost("/"),
            PutDocument("things", "one", b"{}"),
        ):
            with pytest.raises(InvalidInput):
                await other.ask(request)
        with pytest.raises(QueueElsewhere):
            await other.ask(DeclareQueue("/", name_at(0), QueueSettings()))
        await declare(server.edge, name_at(0))
        with pytest.raises(QueueElsewhere):
            await other.ask(DeclareQueue("/", name_at(0), QueueSettings()))

    run(tmp_path, work)


def test_a_queue_that_is_not_at_home_is_found_and_not_made_twice(tmp_path: Path) -> None:
    """As it is after the number of partitions was raised."""

    async def before(server: SeveralPartitions) -> None:
        assert partition_of(await declare(server.edge, name_at(1))) == 0

    async def after(server: SeveralPartitions) -> None:
        for edge in edges(server):
            assert partition_of(await declare(edge, name_at(1))) == 0
            await edge.ask(ChangeQueue("/", name_at(1), {"lease_ms": 7000}))
        with pytest.raises(QueueElsewhere):
            await server.processes[1].locals[1].ask(DeclareQueue("/", name_at(1), QueueSettings()))
        await server.edge.ask(DeleteQueue("/", name_at(1)))
        for edge in edges(server):
            assert partition_of(await declare(edge, name_at(1))) == 1

    run(tmp_path, before, partitions=1)
    run(tmp_path, after, processes=2)


def test_nothing_is_made_before_all_partitions_have_been_heard_of(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        server.processes[0].model._unheard.add(1)
        with pytest.raises(Unavailable):
            await server.processes[0].locals[0].ask(DeclareQueue("/", name_at(0), QueueSettings()))
        server.processes[0].model.heard_of(1)
        await declare(server.edge, name_at(0))

    run(tmp_path, work)


@IN_ONE_AND_IN_TWO
def test_dead_letter_queues_of_other_partitions_are_known_and_kept(tmp_path: Path, processes: int) -> None:
    async def work(server: SeveralPartitions) -> None:
        with pytest.raises(InvalidInput):
            await declare(server.edge, name_at(0), dead_letter_queue=name_at(1))
        await declare(server.edge, name_at(1))
        await declare(server.edge, name_at(0), dead_letter_queue=name_at(1))
        with pytest.raises(QueueInUse):
            await server.edge.ask(DeleteQueue("/", name_at(1)))
        await server.edge.ask(DeleteQueue("/", name_at(0)))
        await server.edge.ask(DeleteQueue("/", name_at(1)))

    run(tmp_path, work, processes=processes)


def test_queues_are_counted_together(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        await declare(server.edge, name_at(0))
        await declare(server.edge, name_at(1))
        for partition in (0, 1):
            with pytest.raises(LimitExceeded):
                await declare(server.edge, name_at(partition, nth=1))

    run(tmp_path, work, processes=2, limits=BrokerLimits(max_queues=2))


@IN_ONE_AND_IN_TWO
def test_what_belongs_to_a_connection_is_not_bound_by_another(tmp_path: Path, processes: int) -> None:
    async def work(server: SeveralPartitions) -> None:
        edge = edges(server)[-1]
        session = edge.open_session(lambda pushes: None)
        await declare(edge, name_at(1), session)
        binding = Binding("amq.direct", "queue", name_at(1), "k")
        with pytest.raises(QueueInUse):
            await server.edge.ask(Bind("/", binding))
        with pytest.raises(QueueInUse):
            await server.edge.ask(Bind("/", binding, server.edge.open_session(lambda pushes: None)))
        assert await edge.ask(Bind("/", binding, session)) is True
        edge.send(EndSession(session), lambda _: None)
        await until(lambda: server.edge.topology.bindings("/", source="amq.direct") == [])

    run(tmp_path, work, processes=processes)


def test_requests_for_one_partition_go_on_while_another_is_away(tmp_path: Path) -> None:
    async def work(server: SeveralPartitions) -> None:
        near, far = await declare(server.edge, name_at(0)), await declare(server.edge, name_at(1))
        server.processes[0].remotes[1]._patience_s = 0.05
        await server.lose(1)
        await publish(server.edge, [near], b"x")
        with pytest.raises(Unavailable):
            await publish(server.edge, [far], b"x")
        assert server.edge.health()["state"] == "ready"
        assert server.edge.health()["partitions"] == {0: "ready", 1: "unreachable"}
        with pytest.raises(QueueNotFound):
            await server.edge.ask(DeleteQueue("/", name_at(0, nth=3)))
        await server.start_again(1)
        await publish(server.edge, [far], b"x")

    run(tmp_path, work, processes=2)
