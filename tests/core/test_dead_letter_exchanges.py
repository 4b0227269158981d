"""Dead letters through exchanges: where they go, what they carry, what becomes of those that have no place to go."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from laneway.core import burial, topology_commands
from laneway.core.events import Cause, Copied, DeadLettered, Moved, Published, Removed
from laneway.core.exchanges import Binding, ExchangeSettings
from laneway.core.invariants import check_invariants
from laneway.core.message import Death, Draft, Properties, Settlement, message_id
from laneway.core.queue import TOTALS
from laneway.core.stories import Story, fill_in, first_death
from laneway.errors import MessageNotFound, QueueFull
from tests.core.runner import START_MS, TAG, Core, draft


def declare(core: Core, name: str, kind: Any) -> None:
    core.run(
        topology_commands.declare_exchange(
            core.state, "/", name, ExchangeSettings(type=kind), core.now_ms, max_exchanges=99
        )
    )


def bind(core: Core, exchange: str, queue: str, key: str = "", **arguments: Any) -> None:
    binding = Binding(exchange, "queue", queue, key, arguments)
    core.run(topology_commands.bind(core.state, "/", binding, core.now_ms, max_bindings=99))


def routed(key: str, **attributes: Any) -> Draft:
    return Draft(b"x", properties=Properties(exchange="ex", routing_key=key, attributes=attributes))


def reject_all(core: Core, queue: str = "q", reason: str = "") -> list[Any]:
    return core.settle(*[Settlement("reject", t, reason=reason) for _, t in core.take(100, queue)], queue=queue)[0]


def totals(core: Core, queue: str) -> dict[str, int]:
    return {name: n for name, n in zip(TOTALS, core[queue].totals, strict=True) if n}


def test_a_dead_letter_takes_its_own_routing_key_or_the_one_its_queue_gives_it() -> None:
    core = Core()
    for name in ("low", "high", "fixed"):
        core.put(name)
    declare(core, "dlx", "topic")
    bind(core, "dlx", "low", "order.low.#")
    bind(core, "dlx", "high", "order.high.#")
    bind(core, "dlx", "fixed", "fixed")
    core.put("q", dead_letter_exchange="dlx")
    core.publish(routed("order.low.1"), routed("order.high.1"), routed("order.low.2"))
    number = {name: core[name].number for name in ("low", "high", "q", "fixed")}
    assert reject_all(core, reason="bad") == [
        Moved(number["q"], START_MS, [1, 3], Cause.REJECTED, number["low"], 4, "bad", "dlx", None),
        Moved(number["q"], START_MS, [2], Cause.REJECTED, number["high"], 6, "bad", "dlx", None),
    ]
    core.put("q", dead_letter_exchange="dlx", dead_letter_routing_key="fixed")
    core.publish(routed("order.low.1"))
    (event,) = reject_all(core)
    assert (event.target, event.exchange, event.routing_key) == (number["fixed"], "dlx", "fixed")
    check_invariants(core.state)


def test_a_routing_key_given_on_the_way_is_the_one_it_has_from_then_on() -> None:
    core = Core()
    core.put("c")
    core.put("b", dead_letter_exchange="")  # with the routing key it has
    core.put("a", dead_letter_exchange="", dead_letter_routing_key="b")
    core.publish(routed("c"), queue="a")
    reject_all(core, "a")
    assert reject_all(core, "b")[0].cause == Cause.REJECTED
    assert core["b"].ready == 1  # it is called "b" now, not "c"
    assert core["c"].ready == 0


def test_a_queue_takes_a_dead_letter_at_its_highest_priority_at_most_and_the_next_one_as_it_was_published() -> None:
    core = Core()
    core.put("a", max_priority=9, dead_letter_exchange="", dead_letter_routing_key="b")
    core.put("b", max_priority=2, dead_letter_exchange="", dead_letter_routing_key="c")
    core.put("c", max_priority=5, dead_letter_exchange="", dead_letter_routing_key="d")
    core.put("d", max_priority=9)
    core.publish(*(Draft(b"x", priority) for priority in (1, 9, 4)), queue="a")
    reject_all(core, "a")
    assert core["b"].ready_by_priority() == {2: 2, 1: 1}
    reject_all(core, "b")
    assert core["c"].ready_by_priority() == {5: 1, 4: 1, 1: 1}
    check_invariants(core.state)
    core.restart()
    reject_all(core, "c")
    assert core["d"].ready_by_priority() == {9: 1, 4: 1, 1: 1}
    check_invariants(core.state)


def test_a_priority_that_its_first_queue_did_not_take_counts_in_the_next() -> None:
    core = Core()
    core.put("a", max_priority=0, dead_letter_exchange="", dead_letter_routing_key="b")
    core.put("b", max_priority=9)
    core.publish(*(Draft(b"x", 0, Properties(extra={"priority": p})) for p in (3, 200)), Draft(b"x", 0), queue="a")
    (event,) = reject_all(core, "a")
    assert event.priorities == [3, 200, 0]
    assert core["b"].ready_by_priority() == {9: 1, 3: 1, 0: 1}
    core.restart()
    assert core["b"].ready_by_priority() == {9: 1, 3: 1, 0: 1}
    check_invariants(core.state)


def test_a_letter_that_was_published_with_more_keys_goes_by_all_of_them() -> None:
    core = Core()
    core.put("one")
    core.put("two")
    core.put("three")
    core.put("q", dead_letter_exchange="")
    properties = Properties(routing_key="one", attributes={"CC": ["two", 7]}, extra={"BCC": ["three"]})
    core.publish(Draft(b"x", properties=properties))
    reject_all(core)
    assert [core[name].ready for name in ("one", "two", "three")] == [1, 1, 1]


def test_headers_of_the_message_lead_it() -> None:
    core = Core()
    core.put("red")
    declare(core, "dlx", "headers")
    bind(core, "dlx", "red", color="red")
    core.put("q", dead_letter_exchange="dlx", dead_letter_routing_key="whatever")
    core.publish(routed("k", color="blue"), routed("k", color="red"))
    kept, went = reject_all(core)
    assert (kept.seqs, went.seqs) == ([1], [2])


def fanned_out(*queues: str, **settings: Any) -> Core:
    core = Core()
    core.put("q", dead_letter_exchange="amq.fanout", **settings)
    for name in queues:
        core.put(name)
        bind(core, "amq.fanout", name)
    return core


@pytest.mark.parametrize("recover", ["replay", "snapshot"])
def test_a_letter_for_several_queues_is_copied_and_then_moved(recover: str) -> None:
    core = fanned_out("a", "b", "c")
    core.publish(draft(b"1", group="g"), b"2")
    q, a, b, c = (core[name].number for name in "qabc")
    assert reject_all(core) == [
        Copied(q, START_MS, [1, 2], Cause.REJECTED, b, 3, "", "amq.fanout"),
        Copied(q, START_MS, [1, 2], Cause.REJECTED, c, 5, "", "amq.fanout"),
        Moved(q, START_MS, [1, 2], Cause.REJECTED, a, 7, "", "amq.fanout"),
    ]
    assert (core["q"].dead_elsewhere, totals(core, "q")["dead_lettered"]) == (6, 2)
    core.restart(recover)
    check_invariants(core.state)
    text = message_id(START_MS, TAG, 1)
    assert [burial.find_message(core.state, core[name], text) for name in "abc"] == [7, 3, 5]
    with pytest.raises(MessageNotFound):
        burial.find_message(core.state, core["q"], text)
    assert [seq for seq, _ in core.take(queue="b")] == [3, 4]
    assert set(core["c"].groups) == {"g"}
    core.settle(*[Settlement("ack", t) for _, t in core.take(queue="a")], queue="a")
    assert [burial.find_message(core.state, core[name], text) for name in "bc"] == [3, 5]
    core.redrive([5, 6], "c")
    assert (core["q"].ready, core["q"].dead_elsewhere) == (2, 2)
    check_invariants(core.state)


def test_records_stay_until_the_last_copy_is_gone() -> None:
    core = fanned_out("a", "b")
    core.publish(b"1")
    reject_all(core)
    assert list(core.state.extents.values()) == [2]
    core.settle(Settlement("ack", core.take(queue="a")[0][1]), queue="a")
    assert list(core.state.extents.values()) == [1]
    core.settle(Settlement("ack", core.take(queue="b")[0][1]), queue="b")
    assert (core.state.extents, core.state.stories, core.state.moved, core.state.copies) == ({}, {}, {}, {})


def test_no_copy_is_lost_when_the_journal_takes_only_some_of_the_events() -> None:
    core = fanned_out("a", "b")
    core.publish(draft(ttl_ms=100))
    core.now_ms += 100
    (event,) = core.tick_refused(1)
    assert isinstance(event, Copied)
    assert (core["q"].ready, core["a"].ready, core["b"].ready) == (1, 0, 1)
    core.tick(1)
    assert (core["q"].ready, core["a"].ready, core["b"].ready) == (0, 1, 2)  # one twice, none missing
    check_invariants(core.state)


# No place to go


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "not kept"),
        ({"dead_letter_exchange": "not there"}, "no route"),
        ({"dead_letter_exchange": "amq.direct"}, "no route"),
        ({"dead_letter_exchange": "", "dead_letter_routing_key": "nobody"}, "no route"),
    ],
)
def test_a_letter_without_a_place_is_kept_or_dropped_as_its_queue_says(settings: dict[str, Any], why: str) -> None:
    core = Core()
    core.put(**settings)
    core.publish(b"1")
    assert reject_all(core, reason="bad") == [DeadLettered(1, START_MS, [1], Cause.REJECTED, "bad")]
    core.put(**settings, keep_dead=False)
    core.publish(b"2", b"3")
    assert reject_all(core, reason="bad") == [Removed(1, START_MS, [2, 3], Cause.REJECTED, f"{why}: bad")]
    assert totals(core, "q") == {"published": 3, "delivered": 3, "dead_lettered": 1, "rejected": 3, "dropped": 2}
    check_invariants(core.state)


@pytest.mark.parametrize(
    ("cause", "total"), [("expired", "expired"), ("overflow", "overflowed"), ("max_receives", None)]
)
def test_what_is_dropped_is_counted_by_its_cause(cause: str, total: str | None) -> None:
    core = Core()
    core.put(keep_dead=False, max_receives=1, max_messages=1, overflow="drop_oldest")
    core.publish(draft(ttl_ms=100))
    if cause == "overflow":
        core.publish(b"2")
    elif cause == "max_receives":
        core.settle(Settlement("release", core.take()[0][1]))
    core.tick(100)
    found = totals(core, "q")
    assert found["dropped"] == 1 and "dead_lettered" not in found
    assert total is None or found[total] == 1


def test_a_damaged_letter_that_cannot_be_read_goes_nowhere() -> None:
    core = Core()
    core.put("other")
    core.put(dead_letter_exchange="")
    core.publish(routed("other"))
    core.state.read_props = lambda seqs: [None for _ in seqs]
    assert reject_all(core) == [DeadLettered(2, START_MS, [1], Cause.REJECTED, "")]


# Rounds


def ladder(**settings: Any) -> Core:
    """Work that failed waits a second and comes back."""
    core = Core()
    core.put("wait", message_ttl_ms=1000, dead_letter_exchange="", dead_letter_routing_key="work", keep_dead=False)
    core.put("work", dead_letter_exchange="", dead_letter_routing_key="wait", keep_dead=False, **settings)
    core.publish(routed("work"), queue="work")
    return core


def test_a_retry_ladder_goes_on_for_ever() -> None:
    core = ladder()
    for turn in range(1, 50):
        reject_all(core, "work", reason="busy")
        core.tick(1001)
        (story,) = core.state.stories.values()
        assert [(d.queue, d.reason, d.count) for d in story.deaths] == [
            ("work", "rejected", turn),
            ("wait", "expired", turn),
        ]
        assert (story.origin, core["work"].dead_elsewhere, core["wait"].dead_elsewhere) == (0, 0, 0)
    check_invariants(core.state)


def test_so_does_one_whose_messages_ran_out_of_tries() -> None:
    core = ladder(max_receives=2)
    for _ in range(20):
        for _ in range(2):
            core.settle(Settlement("release", core.take(queue="work")[0][1]), queue="work")
        assert core["wait"].ready == 1
        core.tick(1001)
        assert core["work"].ready == 1


def test_a_round_that_nobody_sees_ends() -> None:
    core = ladder(message_ttl_ms=500)
    core.tick(500)
    assert core["wait"].ready == 1
    wait = core["wait"].number
    assert core.tick(1001) == [Removed(wait, core.now_ms, [2], Cause.EXPIRED, "would go round for ever")]
    assert len(core.state.table) == 0


def test_after_a_redrive_it_may_go_the_same_way_again() -> None:
    core = Core()
    core.put("b")
    core.put("a", message_ttl_ms=0, dead_letter_exchange="", dead_letter_routing_key="b")
    core.put("b", message_ttl_ms=1000, dead_letter_exchange="", dead_letter_routing_key="a")
    core.publish(b"1", queue="a")
    core.tick(1)
    core.tick(1001)
    assert list(core["b"].dead) == [2]
    core.redrive([2], "b")
    core.tick(0)
    assert (core["a"].ready, core["b"].ready) == (0, 1)


def test_a_queue_does_not_send_expired_letters_to_itself() -> None:
    core = Core()
    core.put(message_ttl_ms=0, dead_letter_exchange="", dead_letter_routing_key="q")
    core.publish(b"1")
    assert core.tick(0) == [DeadLettered(1, START_MS, [1], Cause.EXPIRED, "")]


def test_a_rejected_letter_may_come_back_to_the_end_of_its_own_queue() -> None:
    core = Core()
    core.put(dead_letter_exchange="", dead_letter_routing_key="q")
    core.publish(b"1", b"2")
    ((_, t),) = core.take(1)
    core.settle(Settlement("reject", t))
    assert [seq for seq, _ in core.take()] == [2, 3]
    assert core["q"].dead_elsewhere == 0


# Bounds


def test_letters_push_out_others_where_they_arrive() -> None:
    core = Core()
    core.put("third")
    core.put("second", max_messages=1, overflow="drop_oldest", dead_letter_exchange="", dead_letter_routing_key="third")
    core.put("first", max_messages=1, overflow="drop_oldest", dead_letter_exchange="", dead_letter_routing_key="second")
    core.publish(b"1", b"2", b"3", queue="first")
    assert [core[name].ready for name in ("first", "second", "third")] == [1, 1, 1]
    assert [core.take(queue=name)[0][0] for name in ("first", "second", "third")] == [3, 5, 6]
    check_invariants(core.state)


def test_queues_that_push_out_to_each_other_come_to_an_end() -> None:
    core = Core()
    core.put("b")
    full = {"max_messages": 1, "overflow": "drop_oldest", "dead_letter_exchange": "", "keep_dead": False}
    core.put("a", dead_letter_routing_key="b", **full)
    core.put("b", dead_letter_routing_key="a", **full)
    core.publish(b"1", b"2", b"3", b"4", queue="a")
    assert (core["a"].ready, core["b"].ready, len(core.state.table)) == (1, 1, 2)
    check_invariants(core.state)


def test_a_refused_newcomer_becomes_a_dead_letter_and_its_publisher_hears_of_it() -> None:
    core = Core()
    core.put("dead")
    core.put(max_messages=1, overflow="reject_dead_letter", dead_letter_exchange="", dead_letter_routing_key="dead")
    events, (taken, *refused) = core.publish(
        draft(dedup_id="1"), draft(dedup_id="2", group="g", delay_ms=50), draft(priority=99)
    )
    assert [type(e) for e in events] == [Published, Published, Moved]
    assert events[2].cause == Cause.OVERFLOW and events[2].seqs == [2]
    assert [type(r).__name__ for r in (taken, *refused)] == ["Receipt", "QueueFull", "InvalidInput"]
    assert (core["q"].ready, core["dead"].ready) == (1, 1)
    core.ack(core.take()[0][1])
    _, (again,) = core.publish(draft(dedup_id="2"))
    assert not again.duplicate
    check_invariants(core.state)


def test_a_refused_newcomer_that_nobody_would_keep_never_comes_in() -> None:
    core = Core()
    core.put(max_messages=0, overflow="reject_dead_letter", keep_dead=False)
    events, (refused,) = core.publish(b"1")
    assert events == [] and isinstance(refused, QueueFull)


@pytest.mark.parametrize("bound", [{"max_messages": 1}, {"max_bytes": 30}])
@pytest.mark.parametrize("overflow", ["reject", "drop_oldest", "reject_dead_letter"])
def test_what_waiting_consumers_take_at_once_does_not_fill_a_queue(overflow: str, bound: dict[str, int]) -> None:
    core = Core()
    core.put(**bound, overflow=overflow, keep_dead=False)
    core.state.wanted = lambda queue, enough: min(2, enough)
    core.publish(b"1", b"2", b"3")
    assert core.waiting() == [1, 2, 3]
    core.publish(b"4")
    assert core.waiting() == ([1, 2, 4] if overflow == "drop_oldest" else [1, 2, 3])
    check_invariants(core.state)


def test_a_message_without_time_to_live_is_delivered_if_someone_takes_it_at_once() -> None:
    core = Core()
    core.put(message_ttl_ms=0, keep_dead=False)
    core.publish(b"1", b"2")
    ((_, t),) = core.take(1)
    (event,) = core.tick(0)
    assert event == Removed(1, START_MS, [2], Cause.EXPIRED, "not kept")
    core.ack(t)
    assert totals(core, "q")["acked"] == 1


# What is told


def test_what_a_story_leaves_open_the_record_says() -> None:
    core = Core()
    core.put("b", dead_letter_exchange="amq.direct", dead_letter_routing_key="last")
    core.put("c")
    bind(core, "amq.direct", "c", "last")
    core.put("a", dead_letter_exchange="", dead_letter_routing_key="b")
    properties = Properties(exchange="ex", routing_key="key", attributes={"CC": ["more"]}, extra={"expiration": "5000"})
    core.publish(Draft(b"x", properties=properties, ttl_ms=5000), queue="a")
    core.tick(5010)
    first_ms = core.now_ms
    core.now_ms += 1
    reject_all(core, "b", reason="bad")
    (story,) = core.state.stories.values()
    told = fill_in(story, properties)
    assert told.properties == msgspec.structs.replace(properties, exchange="amq.direct", routing_key="last")
    assert told.deaths == (
        Death("a", "expired", first_ms, 0, "", 1, first_ms, True, "ex", ("key", "more"), "5000"),
        Death("b", "rejected", first_ms + 1, 1, "bad", 1, first_ms + 1, False, "", ("b",), ""),
    )
    assert first_death(told.deaths) is told.deaths[0]


def test_a_redriven_letter_is_routed_as_it_was_published() -> None:
    core = Core()
    core.put("b")
    core.put("a", dead_letter_exchange="", dead_letter_routing_key="b")
    core.publish(routed("key"), queue="a")
    reject_all(core, "a")
    core.redrive([2], "b")
    (story,) = core.state.stories.values()
    assert (story.exchange, story.routing_key, story.origin) == (None, None, 0)
    assert core["a"].ready == 1


def test_stories_of_an_older_version_are_read() -> None:
    """Without the fields that came with exchanges, and with a death for each time."""
    old = msgspec.msgpack.encode([7, 3, [["q", "rejected", 5, 1, "bad"], ["q", "rejected", 6, 1]], ""])
    story = msgspec.msgpack.decode(old, type=Story)
    assert [d.at_ms for d in story.deaths] == [5, 6]
    assert first_death(story.deaths).at_ms == 5
    told = fill_in(story, Properties(exchange="ex", routing_key="key"))
    assert [(d.first_at_ms, d.exchange, d.routing_keys) for d in told.deaths] == [
        (5, "ex", ("key",)),
        (6, "ex", ("key",)),
    ]


# Copies of copies


def full_ring(count: int, **settings: Any) -> Core:
    """Full queues, each of which sends what it pushes out to all others."""
    core = Core(extent_bytes=1 << 20)
    for i in range(count):
        core.put(f"q{i}", max_messages=1, overflow="drop_oldest", dead_letter_exchange="amq.fanout", **settings)
        bind(core, "amq.fanout", f"q{i}")
        core.publish(b"x", queue=f"q{i}")
    return core


@pytest.mark.parametrize("keep_dead", [True, False])
def test_what_full_queues_push_out_to_each_other_is_copied_so_often_and_no_more(
    monkeypatch: pytest.MonkeyPatch, keep_dead: bool
) -> None:
    monkeypatch.setattr(burial, "MAX_COPIES", 20)
    core = full_ring(5, keep_dead=keep_dead)
    events, _ = core.publish(b"1", queue="q0")
    copies = sum(len(event.seqs) for event in events if isinstance(event, Copied))
    assert 20 < copies <= 20 + 3  # what the publish itself pushes out is not counted
    check_invariants(core.state)
    assert [core[f"q{i}"].ready for i in range(5)] == [1] * 5
    if keep_dead:
        assert any(isinstance(event, DeadLettered) for event in events)
    else:
        assert burial.TOO_MANY in {e.detail for e in events if isinstance(e, Removed)}
    core.restart()
    check_invariants(core.state)


def test_what_a_publish_itself_pushes_out_is_copied_however_much_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burial, "MAX_COPIES", 1)
    core = fanned_out("a", "b", "c", max_messages=10, overflow="drop_oldest")
    core.fill(10)
    core.fill(10)
    assert [core[name].ready for name in "qabc"] == [10] * 4


def test_a_chain_of_full_queues_passes_on_all_that_is_pushed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burial, "MAX_COPIES", 0)
    core = Core()
    core.put("end")
    for name, after in (("c", "end"), ("b", "c"), ("q", "b")):
        core.put(name, max_messages=1, overflow="drop_oldest", dead_letter_queue=after)
    core.fill(10)
    assert [core[name].ready for name in ("q", "b", "c", "end")] == [1, 1, 1, 7]


@pytest.mark.parametrize("keep_dead", [True, False])
def test_letters_that_one_step_cannot_copy_stay_where_they_died(
    monkeypatch: pytest.MonkeyPatch, keep_dead: bool
) -> None:
    """Whatever the queue says of dead letters without a place to go: these have one, and can be redriven to it."""
    monkeypatch.setattr(burial, "MAX_FIRST_COPIES", 7)
    core = fanned_out("a", "b", "c", keep_dead=keep_dead)
    core.fill(10)
    events = reject_all(core)
    assert sum(len(event.seqs) for event in events if isinstance(event, Copied)) == 6
    assert [core[name].ready for name in "abc"] == [3, 3, 3]
    assert len(core["q"].dead) == 7
    check_invariants(core.state)
    core.restart()
    assert len(core["q"].dead) == 7


def test_letters_whose_way_is_too_long_stay_where_they_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burial, "MAX_ROUTE_STEPS", 0)
    core = fanned_out("a", "b", keep_dead=False)
    core.fill(3)
    reject_all(core)
    assert (len(core["q"].dead), core["a"].ready) == (3, 0)
    check_invariants(core.state)
