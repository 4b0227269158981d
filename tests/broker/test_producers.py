"""Batches staged in parts and published exactly once: the fence, what is all or nothing, and what limits it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from laneway.broker.interface import (
    Bind,
    CommitBatch,
    DeclareExchange,
    DescribeProducer,
    DescribeStage,
    ForgetProducer,
    GiveUpStage,
    ListProducers,
    StagePart,
)
from laneway.broker.producers import COLLECTION, TEMPORARY_MS
from laneway.broker.values import (
    Addressed,
    BatchOutcome,
    Binding,
    Draft,
    ExchangeSettings,
    ProducerInfo,
    Properties,
    StageInfo,
    StagingLimits,
)
from laneway.core.events import Published
from laneway.core.invariants import check_invariants
from laneway.errors import (
    BatchFenced,
    BatchTooLarge,
    InvalidInput,
    LanewayError,
    LimitExceeded,
    MessageTooLarge,
    PartsMissing,
    ProducerNotFound,
    QueueFull,
    QueueNotFound,
    TooLargeForDisk,
    Unavailable,
    Unroutable,
    VhostNotFound,
)
from laneway.journal.history import inspect

from .conftest import Bench, bodies

Run = Callable[..., None]


def to(queue: str, *bodies: bytes, **draft: Any) -> list[Addressed]:
    return [Addressed("/", queue, "", "", Draft(body, **draft)) for body in bodies]


def through(exchange: str, routing_key: str, *bodies: bytes, **draft: Any) -> list[Addressed]:
    return [Addressed("/", None, exchange, routing_key, Draft(body, **draft)) for body in bodies]


async def stage(b: Bench, messages: list[Addressed], part: str = "0", *, stage: str = "s", producer: str = "p") -> int:
    size: int = await b.ask(StagePart(producer, stage, part, messages, [("/", "queue", "q")], "anna"))
    return size


async def commit(
    b: Bench, batch: int, parts: Iterable[str] = ("0",), *, stage: str = "s", producer: str = "p", **options: Any
) -> BatchOutcome:
    done: BatchOutcome = await b.ask(CommitBatch(producer, batch, stage, list(parts), "anna", **options))
    return done


async def info(b: Bench, producer: str = "p") -> ProducerInfo:
    found: ProducerInfo = await b.ask(DescribeProducer(producer))
    return found


def files(b: Bench) -> list[Path]:
    return sorted((b.folder / "staged").iterdir())


def test_staged_messages_are_not_there_before_the_commit_and_are_after_it(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1", b"2"), "0")
        await stage(b, to("q", b"3"), "1")
        assert await b.lease() == []
        assert await commit(b, 0, ["1", "0"]) == BatchOutcome(0, published=3, unrouted=0, duplicates=0)
        assert bodies(await b.lease()) == [b"3", b"1", b"2"], "in the order of the parts as the commit names them"
        assert files(b) == []

    run(scenario)


def test_messages_of_all_queues_and_the_fence_are_one_commit_of_the_journal(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        for name in ("q", "r", "s"):
            await b.queue(name)
        await b.ask(DeclareExchange("/", "x", ExchangeSettings(type="fanout")))
        for name in ("r", "s"):
            await b.ask(Bind("/", Binding("x", "queue", name, "")))
        await stage(b, [*to("q", b"1"), *through("x", "k", b"2"), *to("s", b"3")])
        done = await commit(b, 7)
        assert (done.published, done.unrouted) == (4, 0)
        assert [bodies(await b.lease(queue=name)) for name in ("q", "r", "s")] == [[b"1"], [b"2"], [b"2", b"3"]]
        events = [e for e in inspect.dump(b.folder) if e["kind"] in ("published", "document_put")]
        assert [e["kind"] for e in events] == ["published"] * 3 + ["document_put"], "one event a queue"
        assert len({e["position"] for e in events}) == 1, events
        check_invariants(b.engine.state)

    run(scenario)


def test_the_last_batch_again_publishes_nothing_and_an_older_one_is_refused(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1", b"2"))
        await commit(b, 5)
        again = await commit(b, 5)  # its answer was lost: nothing is staged any more
        assert again == BatchOutcome(5, published=2, unrouted=0, duplicates=0, already=True)
        await stage(b, to("q", b"1", b"2"), stage="replayed")
        assert (await commit(b, 5, stage="replayed")).already
        assert files(b) == [], "what was staged for nothing is dropped"
        await stage(b, to("q", b"0"), stage="zombie")
        with pytest.raises(BatchFenced, match="has committed batch 5 already") as refused:
            await commit(b, 4, stage="zombie")
        assert refused.value.details["last_batch"] == 5
        assert bodies(await b.lease()) == [b"1", b"2"]

    run(scenario)


def test_two_commits_of_one_batch_at_once_publish_it_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"), stage="a")
        await stage(b, to("q", b"1"), stage="b")
        done = await asyncio.gather(commit(b, 1, stage="a"), commit(b, 1, stage="b"))
        assert sorted(outcome.already for outcome in done) == [False, True]
        assert bodies(await b.lease()) == [b"1"]

    run(scenario)


def test_the_fence_survives_a_restart_and_what_is_staged_does_not(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"))
        await commit(b, 1)
        await stage(b, to("q", b"2"))
        await b.restart()
        assert files(b) == []
        assert (await commit(b, 1)).already
        with pytest.raises(PartsMissing, match="1 of 1 parts are not staged") as refused:
            await commit(b, 2)
        assert refused.value.details["missing"] == ["0"]
        await stage(b, to("q", b"2"))
        await commit(b, 2)
        await b.restart()
        assert (await info(b)).last_batch == 2
        assert bodies(await b.lease()) == [b"1", b"2"]

    run(scenario)


def test_parts_that_the_commit_does_not_name_are_never_published(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"half", b"of a failed attempt"), "0.0")
        await stage(b, to("q", b"whole"), "0.1")
        await commit(b, 1, ["0.1"])
        await stage(b, to("q", b"late"), "0.0")  # an attempt that nobody waits for any more
        with pytest.raises(PartsMissing):
            await commit(b, 2, ["0.1"])
        assert bodies(await b.lease()) == [b"whole"]

    run(scenario)


def test_a_part_staged_twice_counts_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"))
        await stage(b, to("q", b"1"))
        assert len(files(b)) == 1 and (await info(b)).staged_messages == 1
        assert (await commit(b, 1)).published == 1

    run(scenario)


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        (to("gone", b"x"), QueueNotFound, "message 1: there is no queue 'gone'"),
        ([Addressed("no", None, "amq.direct", "k", Draft(b"x"))], VhostNotFound, "no virtual host 'no'"),
        (to("q", b"x", priority=11), InvalidInput, "message 1: priority 11 is out of range"),
        (to("q", b"x" * 2000), MessageTooLarge, "message 1: the message has"),
        (to("q", b"x", properties=Properties(key="k" * 2000)), InvalidInput, "key has 2000 bytes"),
        (through("amq.direct", "k" * 300, b"x"), InvalidInput, "routing key"),
        (to("q", b"x", delay_ms=10**9), InvalidInput, "a delay is from 0"),
    ],
)
def test_what_could_not_be_published_is_not_staged(
    run: Run, bad: list[Addressed], error: type[LanewayError], words: str
) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_message_bytes=1024)
        with pytest.raises(error, match=words) as refused:
            await stage(b, [*to("q", b"good"), *bad])
        assert str(refused.value.field).startswith("[1].")
        with pytest.raises(ProducerNotFound):
            (await info(b))

    run(scenario)


def test_a_batch_that_cannot_be_published_as_a_whole_any_more_is_not_published_at_all(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("q")
        await b.queue("r", max_messages=2, overflow="reject")
        await b.publish(b"there", queue="r")
        await stage(b, [*to("q", b"1"), *to("r", b"2", b"3")])
        with pytest.raises(QueueFull, match="message 2: queue 'r' is full"):
            await commit(b, 1)
        assert (await b.stats()).totals["published"] == 0
        assert (await b.stats("r")).totals["published"] == 1
        assert b.topology.documents(COLLECTION) == {}
        await b.settle("ack", await b.lease(queue="r"), queue="r")
        assert (await commit(b, 1)).published == 3, "what is staged is still there when there is room again"
        await stage(b, [*to("q", b"4"), *to("r", b"5")])
        await b.delete("r")
        with pytest.raises(QueueNotFound):
            await commit(b, 2)
        assert bodies(await b.lease()) == [b"1"]

    run(scenario)


def test_priorities_delays_and_times_to_live_count_from_the_commit(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        batch = [*to("q", b"low", priority=1), *to("q", b"high", priority=9), *to("q", b"late", delay_ms=5_000)]
        await stage(b, [*batch, *to("q", b"short", ttl_ms=5_000)])
        b.pass_time(60_000)
        await commit(b, 1)
        assert bodies(await b.lease(3)) == [b"high", b"short", b"low"]
        b.pass_time(5_000)
        assert bodies(await b.lease()) == [b"late"]

    run(scenario)


def test_dedup_ids_hold_inside_a_batch_and_before_it_and_are_counted_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await b.publish(b"0", properties=Properties(dedup_id="a"))
        batch = [to("q", b"x", properties=Properties(dedup_id=d))[0] for d in ("a", "b", "b", "c")]
        await stage(b, batch)
        done = await commit(b, 1)
        assert (done.published, done.duplicates) == (2, 2)
        assert (await b.stats()).totals["deduplicated"] == 2
        assert len(await b.lease()) == 3

    run(scenario)


def test_staged_parts_leave_the_disk_what_the_journal_holds_in_reserve(run: Run) -> None:
    """They are files beside it: what they take of the disk it cannot have."""

    async def scenario(b: Bench) -> None:
        await b.queue("q")
        free_bytes = b.journal._files.free_bytes
        reserve = b.journal._space._reserve_bytes + b.journal._space.snapshot_bytes
        b.journal._files.free_bytes = lambda path: reserve + 5_000  # type: ignore[method-assign]
        await stage(b, to("q", bytes(4_000)))
        with pytest.raises(TooLargeForDisk, match="beside what is held in reserve"):
            await stage(b, to("q", bytes(6_000)), "1")
        b.journal._files.free_bytes = free_bytes  # type: ignore[method-assign]
        await stage(b, to("q", bytes(6_000)), "1")
        assert (await commit(b, 1, ("0", "1"))).published == 2

    run(scenario)


def test_a_message_of_a_batch_that_several_queues_take_is_stored_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.ask(DeclareExchange("/", "fan", ExchangeSettings(type="fanout")))
        await b.queue("narrow", max_priority=1)
        names = ["a", "b", "c", "narrow"]
        for name in names:
            if name != "narrow":
                await b.queue(name)
            await b.ask(Bind("/", Binding("fan", "queue", name, "")))
        await b.queue("q")
        messages = [
            *through("fan", "", *[b"%d" % n + bytes(10_000) for n in range(5)], priority=1),
            *to("q", b"alone"),
            # This one remembers its priority where it is taken at a lower one, and so is another record there.
            *through("fan", "", b"5" + bytes(10_000), priority=9),
        ]
        await stage(b, messages)
        events = b.staged()
        before = b.journal.history.end().offset
        assert (await commit(b, 1)).published == 6 * 4 + 1
        assert b.journal.history.end().offset - before < 8 * 10_100 + 25 * 64
        published = [event for event in events if isinstance(event, Published)]
        places = {event.queue: set(event.locations) for event in published}
        assert len(set.union(*places.values())) == 6 + 1 + 1
        check_invariants(b.engine.state)
        await b.restart()
        for name in names:
            assert sorted(body[:1] for body in bodies(await b.lease(10, name))) == [b"%d" % n for n in range(6)]

    run(scenario)


def test_through_an_exchange_each_queue_takes_its_own_priorities_and_what_reaches_none_is_told(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("wide", max_priority=255)
        await b.queue("narrow", max_priority=3)
        for name in ("wide", "narrow"):
            await b.ask(Bind("/", Binding("amq.direct", "queue", name, "k")))
        await stage(b, [*through("amq.direct", "k", b"x", priority=200), *through("amq.direct", "none", b"y")])
        done = await commit(b, 1)
        assert (done.published, done.unrouted) == (2, 1)
        (wide,), (narrow,) = await b.lease(queue="wide"), await b.lease(queue="narrow")
        assert (wide.priority, narrow.priority) == (200, 3)
        assert (narrow.properties.exchange, narrow.properties.routing_key) == ("amq.direct", "k")

    run(scenario)


def test_a_mandatory_batch_is_refused_as_a_whole_if_a_message_reaches_no_queue(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("there")
        await b.ask(Bind("/", Binding("amq.direct", "queue", "there", "k")))
        await stage(b, [*through("amq.direct", "k", b"x"), *through("amq.direct", "none", b"y", b"z")])
        with pytest.raises(Unroutable, match=r"2 of 3 messages .* message 1, .* 'amq.direct' .* 'none'") as refused:
            await commit(b, 1, mandatory=True)
        assert refused.value.details["unrouted"] == 2
        assert await b.lease(queue="there") == []
        await b.ask(Bind("/", Binding("amq.direct", "queue", "there", "none")))
        done = await commit(b, 1, mandatory=True)  # what was staged is still there
        assert (done.published, done.unrouted) == (3, 0)

    run(scenario)


def test_a_waiting_consumer_gets_what_a_commit_publishes(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        waiting = asyncio.ensure_future(b.lease(wait_ms=20_000))
        await stage(b, to("q", b"1"))
        assert not waiting.done()
        await commit(b, 1)
        assert bodies(await waiting) == [b"1"]

    run(scenario)


def test_an_empty_batch_moves_an_existing_fence_and_makes_none(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        assert await commit(b, 0, []) == BatchOutcome(0, 0, 0, 0)
        assert b.topology.documents(COLLECTION) == {}
        await stage(b, to("q", b"1"))
        await commit(b, 1)
        await commit(b, 2, [])
        assert (await info(b)).last_batch == 2

    run(scenario)


def test_a_stage_tells_whose_it_is_and_where_its_messages_go(run: Run) -> None:
    """Whoever commits it must be allowed to publish there: front ends ask before they do."""

    async def scenario(b: Bench) -> None:
        await b.queue()
        assert await b.ask(DescribeStage("p", "s")) == StageInfo(None, set())
        await stage(b, to("q", b"1"))
        assert await b.ask(DescribeStage("p", "s")) == StageInfo("anna", set())
        assert await b.ask(DescribeStage("p", "s", ["0"])) == StageInfo("anna", {("/", "queue", "q")})
        with pytest.raises(PartsMissing):
            await b.ask(DescribeStage("p", "s", ["0", "1"]))
        assert await b.lease() == []
        await commit(b, 1)
        assert await b.ask(DescribeStage("p")) == StageInfo("anna", set())

    run(scenario)


def test_what_is_staged_is_given_up_on_request_and_after_its_lifetime(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"), stage="a")
        assert await b.ask(GiveUpStage("p", "a")) and not await b.ask(GiveUpStage("p", "a"))
        await stage(b, to("q", b"1"), stage="b")
        b.clock.ms += 59_999
        await stage(b, to("q", b"2"), "1", stage="b")
        b.clock.ms += 59_999
        assert (await info(b)).staged_parts == 2, "a new part keeps all of a stage"
        b.clock.ms += 1
        with pytest.raises(ProducerNotFound):
            (await info(b))
        with pytest.raises(PartsMissing, match="60 seconds without news"):
            await commit(b, 1, stage="b")
        assert files(b) == []

    run(scenario, staging=StagingLimits(lifetime_ms=60_000))


def test_what_is_staged_goes_by_itself_when_nobody_asks_any_more(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"))
        b.clock.ms += 30
        deadline_s = asyncio.get_running_loop().time() + 5
        while files(b):
            assert asyncio.get_running_loop().time() < deadline_s
            await asyncio.sleep(0.01)

    run(scenario, staging=StagingLimits(lifetime_ms=30))


def test_limits_of_bytes_parts_stages_and_batches(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        with pytest.raises(BatchTooLarge, match="a batch has 3000 at most"):
            await stage(b, to("q", b"x" * 3_000))
        await stage(b, to("q", b"x" * 2_000), "0")
        await stage(b, to("q", b"x" * 2_000), "1")
        with pytest.raises(LimitExceeded, match="2 parts at most"):
            await stage(b, to("q", b"x"), "2")
        with pytest.raises(LimitExceeded, match="1 stages are open"):
            await stage(b, to("q", b"x"), "0", stage="other")
        with pytest.raises(BatchTooLarge, match="published in one commit"):
            await commit(b, 1, ["0", "1"])
        with pytest.raises(LimitExceeded, match="5000 are allowed"):
            await stage(b, to("q", b"x" * 2_000), "0")
        await commit(b, 1, ["0"])
        await stage(b, to("q", *[b"x"] * 11), "0")
        with pytest.raises(BatchTooLarge, match="11 messages"):
            await commit(b, 2, ["0"])

    limits = StagingLimits(
        max_bytes=5_000, max_batch_bytes=3_000, max_batch_messages=10, max_parts=2, max_stages=1, lifetime_ms=10**6
    )
    run(scenario, staging=limits)


@pytest.mark.parametrize(
    ("producer", "batch", "parts", "words"),
    [("", 1, [], "1 to 255 bytes"), ("a\nb", 1, [], "control"), ("p", -1, [], "from 0"), ("p", 1, ["0", "0"], "twice")],
)
def test_nonsense_is_refused(run: Run, producer: str, batch: int, parts: list[str], words: str) -> None:
    async def scenario(b: Bench) -> None:
        with pytest.raises(InvalidInput, match=words):
            await commit(b, batch, parts, producer=producer)

    run(scenario)


def test_the_fence_of_a_temporary_producer_goes_after_a_day_and_others_stay(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"), producer="lasting")
        await commit(b, 1, producer="lasting")
        await stage(b, to("q", b"2"), producer="once")
        await commit(b, 1, producer="once", temporary=True)
        await b.restart()
        b.clock.ms += TEMPORARY_MS - 1
        assert (await info(b, "once")).last_batch == 1
        b.clock.ms += 1
        with pytest.raises(ProducerNotFound):
            (await info(b, "once"))
        await b.durable()
        await b.restart()
        assert [one.name for one in await b.ask(ListProducers())] == ["lasting"]

    run(scenario)


def test_a_forgotten_producer_begins_again(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"))
        await commit(b, 9)
        await b.ask(ForgetProducer("p"))
        await stage(b, to("q", b"2"))
        assert not (await commit(b, 0)).already
        await b.restart()
        assert (await info(b)).last_batch == 0

    run(scenario)


def test_a_part_that_arrives_while_its_stage_is_committed_is_refused_and_leaves_nothing(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        await stage(b, to("q", b"1"), "0")
        arriving = asyncio.ensure_future(stage(b, to("q", b"2"), "1"))
        await asyncio.sleep(0)
        b.send(GiveUpStage("p", "s"))
        with pytest.raises(LanewayError, match="while part '1' arrived"):
            await arriving
        assert files(b) == []

    run(scenario)


def test_without_a_folder_nothing_is_staged(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        b.partition.producers._staging._folder = None
        with pytest.raises(Unavailable, match="no folder"):
            await stage(b, to("q", b"1"))

    run(scenario)
