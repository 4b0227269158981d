"""One message in several queues is stored once, and is in each of them a message of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from laneway.broker import interface as i
from laneway.broker import upkeep
from laneway.broker.values import Arrival, Draft, Properties
from laneway.core.events import Kind
from laneway.core.invariants import check_invariants
from laneway.core.message import messages_of
from laneway.core.table import SLAB_BITS, SLAB_MASK
from laneway.errors import QueueFull

from .conftest import Bench, bodies
from .test_upkeep import settled_upkeep

Run = Callable[..., None]
NAMES = tuple("abcdefgh")


async def queues(b: Bench, /, **settings: dict[str, Any]) -> tuple[int, ...]:
    for name in NAMES:
        await b.queue(name, **settings.get(name, {}))
    return tuple(b.id(name) for name in NAMES)


def locations(b: Bench, queue: str) -> list[int]:
    """Where the records of the messages of a queue stand."""
    number, slabs = b.id(queue), b.engine.state.table.slabs
    return [
        slab.location[seq & SLAB_MASK]
        for state in (1, 2, 3, 4)
        for seq in b.engine.state.table.find(number, state)
        for slab in (slabs[seq >> SLAB_BITS],)
    ]


def written(b: Bench) -> int:
    """How many bytes of commits there are."""
    end = b.journal.history.end()
    return sum(b.journal.extent_bytes().values()) + end.offset


def ids(arrivals: Sequence[Arrival]) -> dict[int, list[str]]:
    return {one.queue: [receipt.message_id for receipt in one.result.each()] for one in arrivals}  # type: ignore[union-attr]


def drafts(count: int, size: int = 1_000, **fields: Any) -> list[Draft]:
    return [Draft(b"%d:" % n + bytes(size), **fields) for n in range(count)]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_message_is_stored_once_whatever_its_queues_make_of_it(run: Run, cache_bytes: int) -> None:
    """Their settings differ, so they are published by several events; the record is that of the first."""

    async def scenario(b: Bench) -> None:
        b.cache_bytes = cache_bytes
        await b.restart()
        numbers = await queues(
            b, b={"message_ttl_ms": 60_000}, c={"max_priority": 1, "default_priority": 0}, d={"delay_ms": 5_000}
        )
        before = written(b)
        messages = [
            Draft(b"%d:" % n + bytes(1_000), priority=n % 2, properties=Properties(key=f"k{n}")) for n in range(10)
        ]
        arrivals = await b.ask(i.Publish(numbers, messages_of(messages, clamps=True)))
        assert written(b) - before < 10 * 1_100 + 80 * 64 + 200
        at = [sorted(locations(b, name)) for name in NAMES]
        assert len(set(at[0])) == 10 and all(some == at[0] for some in at)
        check_invariants(b.engine.state)
        told = ids(arrivals)
        assert len({text for some in told.values() for text in some}) == 80, "each has an id of its own"
        for _ in range(2):
            for number, name in zip(numbers, NAMES, strict=True):
                if name != "d":
                    got = await b.lease(20, name, lease_ms=1)
                    assert sorted(bodies(got)) == [one.body for one in messages]
                    assert sorted(one.message_id for one in got) == sorted(told[number])
                    assert {one.properties.key for one in got} == {f"k{n}" for n in range(10)}
            b.pass_time(100)
            await b.restart()
        b.pass_time(5_000)
        assert len(await b.lease(20, "d")) == 10

    run(scenario)


def test_messages_with_different_queues_share_what_they_can(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        numbers = await queues(b)
        targets = [numbers[:3], (), numbers[2:3], numbers[1:], numbers]
        messages = drafts(5)
        await b.ask(i.Publish(targets, messages_of(messages)))
        found: dict[int, set[int]] = {}
        for n, name in enumerate(NAMES):
            some = [m for m, route in enumerate(targets) if numbers[n] in route]
            assert bodies(await b.lease(10, name)) == [messages[m].body for m in some], "in the order they came"
            for m, location in zip(some, locations(b, name), strict=True):
                found.setdefault(m, set()).add(location)
        assert {m: len(some) for m, some in found.items()} == {0: 1, 2: 1, 3: 1, 4: 1}
        check_invariants(b.engine.state)

    run(scenario)


def test_publishes_and_transactions_that_are_merged_share_each_their_own(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        numbers = await queues(b, c={"max_messages": 100})
        messages = drafts(6)
        for at in range(0, 6, 2):
            some = messages_of(messages[at : at + 2])
            b.send(i.Publish(numbers, some) if at < 4 else i.Transact([numbers] * 2, some, []))
        await b.durable()
        for name in NAMES:
            assert bodies(await b.lease(10, name)) == [one.body for one in messages]
        assert all(locations(b, name) == locations(b, "a") for name in NAMES)
        assert len(set(locations(b, "a"))) == 6

    run(scenario)


def test_a_queue_that_refuses_keeps_nothing_from_the_others(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("letters")
        full = {"max_messages": 1, "overflow": "reject_dead_letter", "dead_letter_queue": "letters"}
        numbers = await queues(b, a=full, b={"max_messages": 2})
        messages = drafts(3)
        arrivals = await b.ask(i.Publish(numbers, messages_of(messages)))
        refused = {NAMES[numbers.index(one.queue)]: sorted(one.result.refusals()) for one in arrivals}
        assert refused == {"a": [1, 2], "b": [2], **{name: [] for name in "cdefgh"}}
        assert all(isinstance(error, QueueFull) for one in arrivals for error in one.result.refusals().values())
        expected = [one.body for one in messages]
        assert bodies(await b.lease(5, "c")) == expected
        assert bodies(await b.lease(5, "letters")) == expected[1:]
        assert locations(b, "letters") == locations(b, "c")[1:], "dead at once, and the record is that of the others"
        check_invariants(b.engine.state)

    run(scenario)


def test_what_is_done_to_one_of_them_concerns_no_other(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue("letters")
        numbers = await queues(b, c={"dead_letter_queue": "letters"})
        await b.ask(i.Publish(numbers, messages_of(drafts(4))))
        await b.settle("ack", await b.lease(4, "a"), "a")
        await b.ask(i.PurgeQueue("/", "b"))
        await b.settle("reject", await b.lease(4, "c"), "c")
        await b.delete("d")
        await b.restart()
        check_invariants(b.engine.state)
        expected = [one.body for one in drafts(4)]
        for name in ("letters", "e", "f", "g", "h"):
            assert bodies(await b.lease(10, name)) == expected

    run(scenario)


def test_a_body_in_several_queues_is_kept_in_memory_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        b.cache_bytes = 2_000_000
        await b.restart()
        numbers = await queues(b)
        await b.ask(i.Publish(numbers, messages_of(drafts(10, 100_000))))
        cache = b.engine.cache
        assert 1_000_000 < cache._bytes < 1_100_000
        one, *others = [await b.lease(10, name) for name in NAMES]
        assert b.engine.kept([seq for d in others for seq in [int(text.token[16:], 16) for text in d]]) is not None
        await b.settle("ack", one, "a")
        assert cache._bytes > 1_000_000, "the others still have it"
        for name, some in zip(NAMES[1:], others, strict=True):
            await b.settle("ack", some, name)
        assert cache._bytes < 100_000 and not cache._shared
        for _ in range(5):
            await b.ask(i.Publish(numbers, messages_of(drafts(10, 100_000))))
            assert cache._bytes <= 2_000_000
        for name in NAMES:
            await b.ask(i.PurgeQueue("/", name))

    run(scenario)


def test_compaction_copies_a_shared_record_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "RECORDS_PER_STEP", 3)

    async def scenario(b: Bench) -> None:
        numbers = await queues(b)
        await b.queue("q")
        survivors = drafts(4)
        for one in survivors:
            await b.ask(i.Publish(numbers, messages_of([one])))
        before = set(locations(b, "a"))
        events = b.staged()
        for _ in range(100):
            await b.publish(*[b"x" * 10_000] * 10)
            await b.settle("ack", await b.lease(10))
            await settled_upkeep(b)
        moved = [event for event in events if event.kind is Kind.RELOCATED]
        assert moved and all(len(event.seqs) == 8 * len(event.records) for event in moved)  # type: ignore[union-attr]
        after = locations(b, "a")
        assert before.isdisjoint(after) and all(locations(b, name) == after for name in NAMES)
        check_invariants(b.engine.state)
        await b.restart()
        for name in NAMES:
            assert bodies(await b.lease(10, name)) == [one.body for one in survivors]

    run(scenario, snapshot_events=50)
