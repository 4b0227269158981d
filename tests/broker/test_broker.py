"""What is asked of the broker: who is told what, when, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from laneway.broker import interface as i
from laneway.broker import peeking
from laneway.broker.values import (
    Arrival,
    DeadLetterFilter,
    Deliveries,
    Delivery,
    Draft,
    PeekQuery,
    Properties,
    Receipt,
    RedriveRequest,
    Settlement,
)
from laneway.core import lease_commands
from laneway.core.events import Kind
from laneway.core.invariants import check_invariants
from laneway.errors import (
    DiskFull,
    DocumentChanged,
    IdempotencyConflict,
    InvalidInput,
    LanewayError,
    LeaseStale,
    LimitExceeded,
    MessageNotFound,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    ReceiptInvalid,
    Unavailable,
)

from .conftest import Bench, bodies, publish, results

Run = Callable[..., None]


def test_highest_priority_first_and_first_in_first_out_across_a_restart(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        for n in range(6):
            await b.publish(b"%d" % n, priority=1 + n % 2)
        await b.restart()
        assert bodies(await b.lease(3)) == [b"1", b"3", b"5"]
        assert bodies(await b.lease(9)) == [b"0", b"2", b"4"]

    run(scenario)


def test_no_confirm_leaves_before_its_commit_is_durable(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        loop = asyncio.get_running_loop()
        order: list[str] = []
        write = b.journal.write

        def watched(commit: object) -> None:
            write(commit)  # type: ignore[arg-type]
            order.append("durable")

        b.journal.write = watched  # type: ignore[method-assign]
        told = loop.create_future()
        b.broker.send(publish(b, [Draft(b"x")]), lambda r: (order.append("confirmed"), told.set_result(r)))
        assert order == []
        await told
        assert order == ["durable", "confirmed"]

    run(scenario)


def test_a_message_is_not_delivered_before_its_publish_is_durable(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        loop = asyncio.get_running_loop()
        order: list[str] = []
        told = loop.create_future()
        b.broker.send(publish(b, [Draft(b"x")]), lambda _: order.append("confirmed"))
        b.broker.send(i.Lease(b.id(), 1), lambda d: (order.append("delivered"), told.set_result(d)))
        assert order == []
        assert bodies(await told) == [b"x"]
        assert order == ["confirmed", "delivered"]

    run(scenario)


def test_waiting_consumers_are_served_first_come_first_served(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        served: list[tuple[str, bytes]] = []
        for name in ("first", "second", "third"):
            b.broker.send(
                i.Lease(b.id(), 1, wait_ms=20_000), lambda ds, name=name: served.extend((name, d.body) for d in ds)
            )
        assert (await b.stats()).consumers_waiting == 3
        await b.publish(b"a", b"b")
        assert served == [("first", b"a"), ("second", b"b")]
        assert (await b.stats()).consumers_waiting == 1

    run(scenario)


def test_a_wait_wakes_when_a_delay_ends_a_lease_expires_or_a_message_is_released(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"later", delay_ms=5_000)
        loop = asyncio.get_running_loop()
        held: list[Delivery] = []
        for trigger in ("delay", "lease", "release"):
            woken = loop.create_future()
            b.broker.send(i.Lease(b.id(), 1, wait_ms=20_000, lease_ms=1_000), woken.set_result)
            assert (await b.stats()).consumers_waiting == 1
            assert not woken.done()
            if trigger == "delay":
                b.pass_time(5_000)
            elif trigger == "lease":
                b.pass_time(1_000)
            else:
                await b.settle("release", held)
            held = list(await asyncio.wait_for(woken, 5))
            assert bodies(held) == [b"later"]

    run(scenario)


def test_a_wait_ends_empty_when_its_time_is_over_and_a_cancelled_one_is_never_told(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told: list[object] = []
        number = b.broker.send(i.Lease(b.id(), 1, wait_ms=20_000), told.append)
        assert (await b.stats()).consumers_waiting == 1
        b.broker.withdraw(number)
        assert (await b.stats()).consumers_waiting == 0
        b.broker.withdraw(b.broker.send(i.Lease(b.id(), 1, wait_ms=20_000), told.append))  # it is in the inbox
        assert await b.lease(1, wait_ms=5) == []
        (receipt,) = await b.publish(b"x")
        assert isinstance(receipt, Receipt)
        assert bodies(await b.lease(1)) == [b"x"]
        assert told == []

    run(scenario)


def test_a_stale_token_never_removes_a_message_someone_else_holds(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000)
        await b.publish(b"x")
        stale = await b.lease(1)
        b.pass_time(1_000)
        fresh = await b.lease(1)
        assert fresh[0].receives == 2
        (answer,) = await b.settle("ack", stale)
        assert isinstance(answer, LeaseStale)
        assert await b.settle("ack", fresh) == [0]

    run(scenario)


def test_leases_stay_valid_across_a_restart_and_new_ones_never_look_alike(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"x", b"y")
        held = await b.lease(1)
        await b.restart()
        other = await b.lease(1)
        assert other[0].token[:16] != held[0].token[:16], "lease ids are never given twice"
        assert await b.settle("ack", held) == [0]
        await b.restart()
        assert (await b.stats()).leased == 1
        assert await b.settle("ack", other) == [0]

    run(scenario)


def test_an_idempotency_key_answers_with_the_first_ids_also_after_a_restart(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        (first,) = await b.publish_drafts([Draft(b"x")], key=("k", b"fp"))
        await b.restart()
        (again,) = await b.publish_drafts([Draft(b"x")], key=("k", b"fp"))
        assert again.message_id == first.message_id and again.duplicate
        with pytest.raises(IdempotencyConflict) as conflict:
            await b.publish_drafts([Draft(b"y")], key=("k", b"other"))
        assert conflict.value.details["message_id"] == first.message_id
        b.pass_time(24 * 3_600_000)
        (later,) = await b.publish_drafts([Draft(b"y")], key=("k", b"other"))
        assert later.message_id != first.message_id

    run(scenario)


def test_a_repeated_batch_publishes_only_what_was_refused_the_first_time(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        async def publish() -> list[Receipt | LanewayError]:
            drafts = [Draft(b"%d" % n) for n in range(5)]
            return await b.publish_drafts(drafts, key=("key", b"print"))

        await b.queue(max_messages=3)
        first = await publish()
        assert [isinstance(r, Receipt) for r in first] == [True, True, True, False, False]
        assert [isinstance(r, QueueFull) for r in await publish()] == [False, False, False, True, True]
        await b.settle("ack", await b.lease())
        await b.restart()
        second = await publish()
        assert [r.duplicate for r in second if isinstance(r, Receipt)] == [True, True, True, False, False]
        assert [r.message_id for r in second[:3]] == [r.message_id for r in first[:3]]  # type: ignore[union-attr]
        assert bodies(await b.lease()) == [b"3", b"4"]
        third = await publish()
        assert all(isinstance(r, Receipt) and r.duplicate for r in third)

    run(scenario)


def test_a_new_idempotency_key_is_taken_however_many_there_are(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        async def duplicates(key: str, count: int = 1) -> bool:
            drafts = [Draft(b"x")] * count
            (first, *_) = await b.publish_drafts(drafts, key=(key, b"fp"))
            b.pass_time(1)
            return bool(first.duplicate)

        await b.queue()
        assert [await duplicates(key) for key in ("k0", "k1", "k2", "k1")] == [False, False, False, True]
        assert not await duplicates("batch", 2)
        await b.restart()
        assert [await duplicates(key) for key in ("k2", "k1", "k0")] == [True, False, False]

    run(scenario, max_idempotency_keys=3)


def test_a_server_that_remembers_no_idempotency_keys_says_so(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        with pytest.raises(LimitExceeded, match="remembers no idempotency keys"):
            await b.publish_drafts([Draft(b"x")], key=("k", b"fp"))

    run(scenario, max_idempotency_keys=0)


def test_peek_looks_at_so_much_of_other_queues_and_no_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.queue("other")
        await b.publish(b"first")
        await b.publish(*[b"x"] * 4_000, queue="other")
        await b.publish(b"last")
        mine = await b.lease()
        assert len(await b.lease(4_000, queue="other")) == 4_000
        shown: list[list[bytes]] = []
        query = PeekQuery(states=("leased", "delayed", "dead"))
        while True:
            page, cursor = await b.ask(i.Peek("/", "q", query))
            shown.append([g.body for g in page])
            if cursor is None:
                break
            query = PeekQuery(states=query.states, cursor=cursor)
        assert shown == [[b"first"], [], [], [b"last"]]
        await b.settle("ack", mine)
        monkeypatch.setattr(peeking, "MAX_SLABS", 0)  # there is nothing: it need not look
        assert (await b.ask(i.Peek("/", "q", PeekQuery(states=("leased", "delayed", "dead"))))) == ([], None)

    monkeypatch.setattr(peeking, "MAX_SLABS", 1)
    run(scenario)


def test_peek_passes_over_what_goes_while_it_reads(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*[b"%d" % n for n in range(3_000)])
        fetch, reads = peeking.fetch, 0

        async def purge_meanwhile(*args: Any) -> None:
            nonlocal reads
            reads += 1
            await fetch(*args)
            if reads == 2:
                await b.ask(i.PurgeQueue("/", "q"))

        monkeypatch.setattr(peeking, "fetch", purge_meanwhile)
        page, cursor = await b.ask(i.Peek("/", "q", PeekQuery(limit=2_000)))
        assert [g.body for g in page] == [b"%d" % n for n in range(peeking.READ_BATCH)] and cursor is None
        assert not b.engine.state.table

    run(scenario)


def test_peek_pages_through_every_state_without_leasing(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_receives=1)
        for n in range(7):
            await b.publish(b"%d" % n, priority=n % 3, properties=Properties(attributes={"n": n, "even": n % 2 == 0}))
        await b.publish(b"late", delay_ms=60_000)
        rejected = await b.lease(1)
        await b.settle("reject", rejected, reason="poison")
        held = await b.lease(1, consumer="me")
        pages: list[bytes] = []
        cursor = None
        while True:
            query = PeekQuery(states=("ready", "leased", "delayed", "dead"), limit=2, cursor=cursor)
            page, cursor = await b.ask(i.Peek("/", "q", query))
            pages += [g.body for g in page]
            if cursor is None:
                break
        assert pages == [b"1", b"4", b"0", b"3", b"6", held[0].body, b"late", b"2"]
        even, _ = await b.ask(i.Peek("/", "q", PeekQuery(attribute=("even", "true"))))
        assert [g.body for g in even] == [b"4", b"0", b"6"]
        dead, _ = await b.ask(i.Peek("/", "q", PeekQuery(states=("dead",), reason="rejected")))
        assert dead[0].deaths[0].detail == "poison" and dead[0].state == "dead"
        leased, _ = await b.ask(i.Peek("/", "q", PeekQuery(states=("leased",))))
        assert leased[0].consumer == "me" and leased[0].visible_at_ms == held[0].deadline_ms
        assert (await b.ask(i.Peek("/", "q", PeekQuery(older_than_ms=1))))[0] == []
        with pytest.raises(InvalidInput):
            (await b.ask(i.Peek("/", "q", PeekQuery(states=("alive",)))))
        with pytest.raises(InvalidInput):
            (await b.ask(i.Peek("/", "q", PeekQuery(cursor="nonsense"))))

    run(scenario)


async def finish(b: Bench, task_id: str) -> str:
    async def poll() -> str:
        while (await b.ask(i.GetTask(task_id))).state == "running":
            await asyncio.sleep(0)
        return (await b.ask(i.GetTask(task_id))).state

    return await asyncio.wait_for(poll(), 10)


def test_redrive_brings_dead_letters_back_with_their_history(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("dead")
        await b.queue("q", dead_letter_queue="dead")
        receipts = await b.publish(*(b"%d" % n for n in range(500)))
        while held := await b.lease(100):
            await b.settle("reject", held, reason="no")
        stats = await b.stats("dead")
        assert stats.ready == 500 and (await b.stats()).dead_elsewhere == 500
        task = await b.ask(i.StartRedrive("/", "dead", RedriveRequest()))
        assert await finish(b, task.task_id) == "completed"
        ended = await b.ask(i.GetTask(task.task_id))
        assert (ended.moved, ended.matched, ended.failed) == (500, 500, 0)
        back = await b.lease(500)
        assert [d.message_id for d in back] == [r.message_id for r in receipts if isinstance(r, Receipt)]
        assert back[0].receives == 1 and back[0].deaths[0].reason == "rejected" and back[0].deaths[0].queue == "q"
        assert (await b.stats()).dead_elsewhere == 0
        check_invariants(b.engine.state)

    run(scenario)


def test_redrive_by_ids_by_reason_and_to_another_queue(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("q", max_receives=1)
        await b.queue("other")
        await b.publish(b"rejected", b"worn out", b"kept")
        held = await b.lease(3)
        await b.settle("reject", held[:1])
        await b.settle("release", held[1:2])
        by_reason = RedriveRequest(filter=DeadLetterFilter(reason="rejected"), target="other")
        assert await finish(b, (await b.ask(i.StartRedrive("/", "q", by_reason))).task_id) == "completed"
        assert bodies(await b.lease(9, queue="other")) == [b"rejected"]
        by_id = RedriveRequest(filter=DeadLetterFilter(message_ids=(held[1].message_id,)))
        assert await finish(b, (await b.ask(i.StartRedrive("/", "q", by_id))).task_id) == "completed"
        assert bodies(await b.lease(9)) == [b"worn out"]
        alive = RedriveRequest(filter=DeadLetterFilter(message_ids=(held[2].message_id,)))
        with pytest.raises(MessageNotFound):
            await b.ask(i.StartRedrive("/", "q", alive))
        with pytest.raises(QueueNotFound):
            await b.ask(i.StartRedrive("/", "q", RedriveRequest(target="nowhere")))

    run(scenario)


def test_a_redrive_is_slowed_cancelled_and_resumed_at_the_next_start(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*(b"%d" % n for n in range(50)))
        await b.settle("reject", await b.lease(50))
        slow = await b.ask(i.StartRedrive("/", "q", RedriveRequest(max_per_second=1)))
        while (await b.ask(i.GetTask(slow.task_id))).moved == 0:
            await asyncio.sleep(0)
        await b.restart()
        resumed = await b.ask(i.GetTask(slow.task_id))
        assert resumed.state == "running"
        cancelled = await b.ask(i.CancelTask(slow.task_id))
        assert cancelled.state == "cancelled"
        assert (await b.stats()).dead > 0
        deleted = await b.ask(i.DeleteDeadLetters("/", "q", DeadLetterFilter()))
        assert deleted == 50 - (await b.stats()).ready
        assert (await b.stats()).dead == 0

    run(scenario)


def test_a_redrive_by_ids_goes_on_after_a_restart_with_those_that_are_left(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*(b"%d" % n for n in range(4)))
        dead = await b.lease()
        await b.settle("reject", dead)
        some = DeadLetterFilter(message_ids=tuple(d.message_id for d in dead[:3]))
        slow = await b.ask(i.StartRedrive("/", "q", RedriveRequest(filter=some, max_per_second=2)))
        while (await b.ask(i.GetTask(slow.task_id))).moved == 0:
            await asyncio.sleep(0)
        await b.restart()
        while (resumed := (await b.ask(i.GetTask(slow.task_id)))).state == "running":
            await asyncio.sleep(0)
        assert (resumed.state, resumed.error) == ("completed", None)
        assert (resumed.moved, resumed.matched, resumed.failed) == (3, 3, 0)  # before and after the restart
        assert bodies(await b.lease()) == [b"0", b"1", b"2"]
        assert (await b.stats()).dead == 1

    run(scenario)


def test_a_redrive_that_goes_on_after_a_restart_takes_ages_as_they_were_when_it_began(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*(b"%d" % n for n in range(4)))
        await b.settle("reject", await b.lease(3))
        b.pass_time(10_000)
        await b.settle("reject", await b.lease())
        old = RedriveRequest(filter=DeadLetterFilter(older_than_ms=5_000), max_per_second=2)
        slow = await b.ask(i.StartRedrive("/", "q", old))
        while (await b.ask(i.GetTask(slow.task_id))).moved == 0:
            await asyncio.sleep(0)
        b.clock.ms += 10_000  # while it is down
        await b.restart()
        while (resumed := (await b.ask(i.GetTask(slow.task_id)))).state == "running":
            await asyncio.sleep(0)
        assert (resumed.state, resumed.moved, resumed.matched) == ("completed", 3, 3)
        assert (await b.stats()).dead == 1

    run(scenario)


def test_a_redrive_ends_when_its_queue_is_deleted_also_if_there_is_a_new_one(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*(b"%d" % n for n in range(4)))
        await b.settle("reject", await b.lease())
        task = await b.ask(i.StartRedrive("/", "q", RedriveRequest(max_per_second=2)))
        while (await b.ask(i.GetTask(task.task_id))).moved == 0:
            await asyncio.sleep(0)
        await b.delete()
        await b.queue()
        assert await finish(b, task.task_id) == "failed"
        ended = await b.ask(i.GetTask(task.task_id))
        assert (ended.moved, ended.failed, ended.error) == (2, 0, "queue 'q' was deleted")

    run(scenario)


def test_a_redrive_that_cannot_be_kept_is_no_task(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        has_room = b.journal.has_room
        b.journal.has_room = lambda need_bytes=0: False  # type: ignore[method-assign]
        with pytest.raises(DiskFull):
            await b.ask(i.StartRedrive("/", "q", RedriveRequest()))
        b.journal.has_room = has_room  # type: ignore[method-assign]
        assert await b.ask(i.ListTasks()) == []

    run(scenario)


def test_what_only_looks_is_answered_while_nothing_can_be_written(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"1")
        b.partition.committer.stuck = DiskFull("no space")
        with pytest.raises(DiskFull):
            await b.lease()
        b.clock.ms += 30 * 86_400_000  # what is due waits: it could not be written
        assert (await b.stats()).ready == 1
        assert b.topology.find_queue("/", "q").name == "q"
        assert [g.body for g in (await b.ask(i.Peek("/", "q", PeekQuery())))[0]] == [b"1"]
        b.partition.committer.stuck = None
        assert (await b.stats()).ready == 0

    run(scenario)


def test_queues_are_listed_in_order_by_prefix_and_page(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        for name in ("b", "a2", "a1", "c"):
            await b.queue(name)
        await b.restart()
        names = [q.name for q in b.topology.queues(vhost="/", limit=3)]
        assert names == ["a1", "a2", "b"]
        assert [q.name for q in b.topology.queues(vhost="/", after=("/", "b"))] == ["c"]
        assert [q.name for q in b.topology.queues(vhost="/", prefix="a")] == ["a1", "a2"]
        assert [q.name for q in b.topology.queues(vhost=None)] == ["a1", "a2", "b", "c"]
        assert b.topology.queues(vhost="other") == []

    run(scenario)


def test_a_dead_letter_queue_must_exist_and_is_not_deleted_while_in_use(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        with pytest.raises(InvalidInput):
            await b.queue("q", dead_letter_queue="dead")
        await b.queue("dead")
        await b.queue("q", dead_letter_queue="dead")
        with pytest.raises(QueueInUse):
            await b.delete("dead")
        await b.delete()
        await b.delete("dead")
        assert b.topology.queues(vhost="/") == []
        with pytest.raises(QueueNotFound):
            await b.publish(b"x")

    run(scenario)


def test_a_stopping_broker_refuses_and_ends_waits(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        told = b.send(i.Lease(b.id(), 1, wait_ms=20_000))
        await b.stop()
        assert [len(deliveries) for deliveries in told] == [0]
        with pytest.raises(Unavailable):
            await b.publish(b"x")
        await b.start()

    run(scenario)


def test_rates_count_full_seconds(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*[b"x"] * 30)
        b.pass_time(1_000)
        rates = (await b.stats()).rates["published"]
        assert (rates.per_second_1s, rates.per_second_1m, rates.per_second_5m) == (30, 0.5, 0.1)
        b.pass_time(1_000)
        assert (await b.stats()).rates["published"].per_second_1s == 0

    run(scenario)


def test_documents_survive(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.ask(i.PutDocument("things", "a", b"1"))
        await b.ask(i.PutDocument("things", "b", b"2"))
        await b.ask(i.RemoveDocument("things", "a"))
        await b.restart()
        assert b.topology.documents("things") == {"b": b"2"}

    run(scenario)


def test_a_change_of_a_document_is_told_before_its_answer_and_rests_on_what_was_seen(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        told: list[tuple[str, str, bytes | None]] = []
        b.topology.on_document(lambda *change: told.append(change))
        await b.ask(i.PutDocument("things", "a", b"1", [("things", "a", None)]))
        assert told == [("things", "a", b"1")]
        for change in (
            i.PutDocument("things", "b", b"2", [("things", "a", b"0")]),
            i.PutDocument("things", "a", b"2", [("things", "a", None)]),
            i.RemoveDocument("things", "a", [("things", "a", b"1"), ("things", "b", b"2")]),
        ):
            with pytest.raises(DocumentChanged):
                await b.ask(change)
        assert b.topology.documents("things") == {"a": b"1"} and len(told) == 1
        await b.ask(i.RemoveDocument("things", "a", [("things", "a", b"1"), ("things", "b", None)]))
        assert told[1:] == [("things", "a", None)] and b.topology.document("things", "a") is None

    run(scenario)


def test_single_publishes_and_acks_of_one_turn_share_a_commit_and_keep_their_order(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        before = b.engine.journal._next_position  # type: ignore[attr-defined]
        receipts = await asyncio.gather(*(b.publish(b"%d" % n) for n in range(20)))
        assert b.engine.journal._next_position == before + 1  # type: ignore[attr-defined]
        assert len({r[0].message_id for r in receipts}) == 20  # type: ignore[union-attr]
        held = await b.lease(20)
        assert bodies(held) == [b"%d" % n for n in range(20)]
        answers = await asyncio.gather(*(b.settle("ack", [d]) for d in [*held, held[0]]))
        assert [a[0] for a in answers[:20]] == [0] * 20
        assert isinstance(answers[20][0], LeaseStale)

    run(scenario)


def test_publishes_of_one_turn_are_one_batch_and_each_publisher_hears_of_its_own(run: Run) -> None:
    """And one who fails to take its answers keeps nobody else from theirs."""

    async def scenario(b: Bench) -> None:
        await b.queue(max_messages=5)
        staged = b.staged()
        told: list[tuple[int, list[str]]] = []

        def teller(number: int) -> Callable[[Any], None]:
            def done(arrivals: list[Arrival]) -> None:
                told.append((number, [type(result).__name__ for result in results(arrivals)]))
                if number == 3:
                    raise RuntimeError("oh")

            return done

        for number in range(7):
            b.broker.send(publish(b, [Draft(b"%d" % number)] * (2 if number == 1 else 1)), teller(number))
        await b.durable()
        assert told == [
            (0, ["Receipt"]),
            (1, ["Receipt", "Receipt"]),
            (2, ["Receipt"]),
            (3, ["Receipt"]),
            (4, ["QueueFull"]),
            (5, ["QueueFull"]),
            (6, ["QueueFull"]),
        ]
        assert [event.kind for event in staged] == [Kind.PUBLISHED]
        assert bodies(await b.lease(10)) == [b"0", b"1", b"1", b"2", b"3"]

    run(scenario)


def test_an_ack_that_came_before_the_deadline_counts_though_the_deadline_passed_before_its_commit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(lease_ms=1_000)
        await b.publish(b"x", b"y")
        held, other = await b.lease(2)
        settled = b.send(i.Settle(b.id(), [Settlement("ack", held.token)]))
        acked = b.send(i.Ack(b.id(), [other.token]))
        b.pass_time(1_000)
        await b.durable()
        assert (settled, acked) == ([[0]], [[0]])
        assert (await b.stats()).ready == 0

    run(scenario)


def test_acks_by_token_of_one_turn_are_one_event_and_each_asker_hears_of_its_own(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(*[b"%d" % n for n in range(9)])
        tokens = [d.token for d in await b.lease(9)]
        staged = b.staged()

        def ack(some: list[str]) -> Coroutine[Any, Any, list[object]]:
            return b.ask(i.Ack(b.id(), some))

        assert await asyncio.gather(ack(tokens[3:6]), ack([tokens[0]]), ack([tokens[2], tokens[1]])) == [
            [0, 0, 0],
            [0],
            [0, 0],
        ]
        assert [(event.kind, event.seqs) for event in staged] == [(Kind.ACKED, list(range(1, 7)))]  # type: ignore[union-attr]
        good, again, mixed = await asyncio.gather(
            ack([tokens[6]]), ack([tokens[5]]), ack([tokens[7], "none", tokens[6]])
        )
        assert good == [0] and isinstance(again[0], LeaseStale)
        assert mixed[0] == 0 and isinstance(mixed[1], ReceiptInvalid) and isinstance(mixed[2], LeaseStale)
        assert (await b.stats()).leased == 1

    run(scenario)


def test_leases_of_one_turn_share_one_and_pass_nobody_who_waits(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"1", b"2", b"3")
        leases = b.staged()
        both = await asyncio.gather(b.lease(2), b.lease(9))
        assert [bodies(one) for one in both] == [[b"1", b"2"], [b"3"]]
        assert [event.kind for event in leases] == [Kind.LEASED]
        waiting = asyncio.ensure_future(b.lease(1, wait_ms=20_000))
        await asyncio.sleep(0)
        b.send(publish(b, [Draft(b"6"), Draft(b"7")]))
        late = asyncio.ensure_future(b.lease(1))
        assert bodies(await waiting) == [b"6"] and bodies(await late) == [b"7"]

    run(scenario)


def test_an_ack_by_token_and_a_settlement_of_one_turn_keep_their_order(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"1", b"2")
        first, second = await b.lease(2)
        extend = [Settlement("extend", d.token, lease_ms=9_000) for d in (first, second)]
        acked = b.send(i.Ack(b.id(), [first.token]))
        stale = b.send(i.Settle(b.id(), extend[:1]))
        good = b.send(i.Settle(b.id(), extend[1:]))
        acked_after = b.send(i.Ack(b.id(), [second.token]))
        await b.durable()
        assert acked == [[0]] and acked_after == [[0]]
        assert isinstance(stale[0][0], LeaseStale) and isinstance(good[0][0], int)

    run(scenario)


def test_a_lease_sees_what_was_published_before_it_in_the_same_turn(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        b.send(publish(b, [Draft(b"low", 1)]))
        b.send(publish(b, [Draft(b"high", 9)]))
        assert bodies(await b.lease(1)) == [b"high"]

    run(scenario)


def test_one_lease_hands_out_a_bounded_number_of_bytes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        for n in range(8):
            await b.publish(*[b"%d" % (n * 10 + k) + b"." * 250_000 for k in range(10)])
        first, second = await b.lease(80), await b.lease(80)
        assert 0 < len(first) < 80 and sum(len(d.body) for d in first) <= lease_commands.MAX_LEASE_BYTES
        assert [int(d.body.partition(b".")[0]) for d in (*first, *second)] == list(range(80))
        check_invariants(b.engine.state)

    run(scenario)


def test_a_consumer_that_fails_to_take_its_messages_harms_nobody_else(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        def fail(_: Deliveries) -> None:
            raise RuntimeError("gone")

        await b.queue()
        await b.publish(b"m")
        held = await b.lease(1)
        b.broker.send(i.Lease(b.id(), 1, wait_ms=1_000), fail)
        assert (await b.settle("release", held))[0] == b.clock.ms
        await b.publish(b"next")
        assert bodies(await b.lease()) == [b"next"]

    run(scenario)


def test_what_waits_in_the_inbox_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        monkeypatch.setattr("laneway.broker.inbox.MAX_WAITING_BYTES", 1_600)
        queue, told = b.engine.state.queues[b.id()], list[object]()
        seen = []
        for _ in range(4):  # in one turn of the loop, so that nothing is sealed meanwhile
            b.broker.send(publish(b, [Draft(b"x" * 200)] * 2), told.append)
            seen.append(queue.ready)
        assert seen == [0, 0, 6, 6]
        await b.durable()
        assert queue.ready == 8 and len(told) == 4

    run(scenario)


def test_what_waits_to_be_written_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        monkeypatch.setattr("laneway.broker.inbox.MAX_WAITING_BYTES", 1_000)
        monkeypatch.setattr("laneway.broker.partition.MAX_STAGED_BYTES", 10_000)
        answers: list[Any] = []
        for _ in range(100):  # in one turn of the loop, so that nothing is written meanwhile
            b.broker.send(publish(b, [Draft(b"x" * 500)]), answers.append)
        refused = list(answers)
        assert refused and all(isinstance(r, Unavailable) and "does not keep up" in r.message for r in refused)
        await b.durable()
        told = [result for arrivals in answers[len(refused) :] for result in results(arrivals)]
        assert 0 < len(told) < 30 and all(isinstance(r, Receipt) for r in told)
        assert (await b.stats()).ready == len(told)
        await b.publish(b"and now it goes on")

    run(scenario)
