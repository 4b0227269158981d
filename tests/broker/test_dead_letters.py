"""Dead letters with a real journal: routed by what their records say, with their history, there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from laneway.broker import tasks
from laneway.broker.interface import Bind, GetTask, Lease, StartRedrive
from laneway.broker.values import Binding, DeadLetterFilter, RedriveRequest
from laneway.core.message import Properties
from laneway.journal.history import inspect
from tests.broker.conftest import Bench

Run = Callable[..., None]


async def ladder(b: Bench) -> None:
    """Letters of "work" go to "wait" and "audit", by their routing keys."""
    await b.queue(
        "wait", message_ttl_ms=1_000, dead_letter_exchange="", dead_letter_routing_key="work", keep_dead=False
    )
    await b.queue("audit")
    await b.queue("work", dead_letter_exchange="amq.topic", keep_dead=False)
    for name, pattern in (("wait", "job.#"), ("audit", "*.slow")):
        await b.ask(Bind("/", Binding("amq.topic", "queue", name, pattern)))


def job(key: str) -> Properties:
    return Properties(content_type="text/plain", exchange="jobs", routing_key=key, extra={"expiration": "5000"})


def test_letters_are_routed_by_their_records_and_carry_their_history(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await ladder(b)
        for key in ("job.fast", "job.slow", "else.slow", "else.fast"):
            await b.publish(key.encode(), queue="work", properties=job(key))
        await b.restart()  # so that the records are read from the journal
        await b.settle("reject", await b.lease(queue="work"), "work", reason="busy")
        stats = {name: (await b.stats(name)) for name in ("work", "wait", "audit")}
        assert (stats["wait"].ready, stats["audit"].ready, stats["work"].dead) == (2, 2, 0)
        assert (stats["work"].totals["dead_lettered"], stats["work"].totals["dropped"]) == (3, 1)
        await b.restart()
        audited = await b.lease(queue="audit")
        assert [d.body for d in audited] == [b"job.slow", b"else.slow"]
        (death,) = audited[0].deaths
        assert (death.queue, death.reason, death.detail) == ("work", "rejected", "busy")
        assert (death.exchange, death.routing_keys, death.original_expiration) == ("jobs", ("job.slow",), "5000")
        assert (audited[0].properties.exchange, audited[0].properties.routing_key) == ("amq.topic", "job.slow")
        b.pass_time(1_001)
        back = await b.lease(queue="work")
        assert [(d.body, d.properties.exchange, d.properties.routing_key) for d in back] == [
            (b"job.fast", "", "work"),
            (b"job.slow", "", "work"),
        ]
        assert [(d.queue, d.reason, d.count, d.exchange) for d in back[1].deaths] == [
            ("work", "rejected", 1, "jobs"),
            ("wait", "expired", 1, "amq.topic"),
        ]
        await b.settle("ack", back, "work")
        await b.settle("ack", audited, "audit")
        assert b.engine.state.extents == {}

    run(scenario)


def test_letters_that_came_through_an_exchange_go_back_to_where_they_died(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await ladder(b)
        ids = [r.message_id for r in await b.publish(b"1", b"2", queue="work", properties=job("job.slow"))]  # type: ignore[union-attr]
        await b.settle("reject", await b.lease(queue="work"), "work")
        one = RedriveRequest(filter=DeadLetterFilter(message_ids=(ids[0],)))
        task = await b.ask(StartRedrive("/", "audit", one))
        while (await b.ask(GetTask(task.task_id))).state == "running":
            await asyncio.sleep(0)
        assert [d.message_id for d in await b.lease(queue="work")] == [ids[0]]
        assert [d.message_id for d in await b.lease(queue="audit")] == [ids[1]]

    run(scenario)


def test_the_journal_tells_of_copies_and_of_letters_that_were_dropped(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await ladder(b)
        await b.publish(b"1", queue="work", properties=job("job.slow"))
        await b.publish(b"2", queue="work", properties=job("nobody"))
        await b.settle("reject", await b.lease(queue="work"), "work", reason="busy")
        dumped = list(inspect.dump(str(b.folder), kinds=["copied", "moved", "removed"]))
        told = [(e["kind"], e["seqs"], e["cause"], e["detail"], e.get("exchange")) for e in dumped]
        assert told == [
            ("removed", [2], "rejected", "no route: busy", None),
            ("copied", [1], "rejected", "busy", "amq.topic"),
            ("moved", [1], "rejected", "busy", "amq.topic"),
        ]
        await b.restart()
        assert inspect.check(str(b.folder)).is_sound

    run(scenario)


def test_queues_that_are_not_durable_are_gone_after_a_restart(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("kept")
        await b.queue("fleeting", durable=False)
        await b.queue("private", exclusive=True)
        for name in ("kept", "fleeting", "private"):
            await b.publish(b"1", queue=name)
        await b.restart()
        assert [q.name for q in b.topology.queues(vhost="/")] == ["kept"]
        assert len(b.engine.state.table) == 1
        await b.queue("fleeting")
        assert await b.lease(queue="fleeting") == []

    run(scenario)


def test_a_message_with_no_time_to_live_is_for_whoever_waits(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(keep_dead=False)
        done: list[bytes] = []
        b.broker.send(Lease(b.id(), 1, wait_ms=1_000), lambda d: done.extend(x.body for x in d))
        await b.publish(b"1", b"2", ttl_ms=0)
        assert done == [b"1"]
        session = b.broker.open_session(lambda push: None)
        gotten = b.send(Lease(b.id(), 1, session=session))
        assert [len(deliveries) for deliveries in gotten] == [0]
        assert (await b.stats()).totals["dropped"] == 1

    run(scenario)


def test_what_a_waiting_consumer_takes_does_not_fill_its_queue(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_messages=1, overflow="drop_oldest", keep_dead=False)
        done: list[bytes] = []
        b.broker.send(Lease(b.id(), 2, wait_ms=1_000), lambda d: done.extend(x.body for x in d))
        await b.publish(b"1", b"2", b"3", b"4")
        assert done == [b"1", b"2"]
        assert [d.body for d in await b.lease()] == [b"4"]

    run(scenario)


def test_a_redrive_waits_while_the_disk_has_no_room(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds to the journal and frees nothing, so it would use up what acks live on."""
    looked = asyncio.Event()

    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"one", b"two")
        await b.settle("reject", await b.lease())
        task = await b.ask(StartRedrive("/", "q", RedriveRequest()))

        def has_room(need_bytes: int = 0) -> bool:
            looked.set()
            return False

        with monkeypatch.context() as full:
            full.setattr(tasks, "WAIT_FOR_ROOM_S", 0.001)
            full.setattr(b.journal, "has_room", has_room)
            for _ in range(3):
                looked.clear()
                await asyncio.wait_for(looked.wait(), 5)
            assert (await b.stats()).ready == 0 and (await b.ask(GetTask(task.task_id))).state == "running"
        while (await b.ask(GetTask(task.task_id))).state == "running":
            await asyncio.sleep(0)
        assert (await b.stats()).ready == 2

    run(scenario)
