"""Dead letters: how a message dies, where it is kept, what it carries, and how it comes back or goes for good."""

from __future__ import annotations

import pytest

from laneway.core import burial, commands
from laneway.core.events import Cause, DeadLettered, Moved, Removed
from laneway.core.invariants import check_invariants
from laneway.core.message import Death, Settlement, message_id
from laneway.core.queue import TOTALS
from laneway.core.stories import MAX_DEATHS
from laneway.errors import MessageNotFound
from tests.core.runner import START_MS, TAG, Core, draft


def with_dead_letter_queue(**settings: object) -> Core:
    core = Core()
    core.put("dead")
    core.put(dead_letter_queue="dead", **settings)
    return core


def reject_all(core: Core, queue: str = "q", reason: str = "") -> None:
    core.settle(*[Settlement("reject", t, reason=reason) for _, t in core.take(100, queue)], queue=queue)


def delete_dead(core: Core, seqs: list[int], queue: str = "q") -> list[object]:
    return core.run(burial.delete_dead(core.state, core[queue], seqs, core.now_ms))  # type: ignore[return-value]


def test_dead_lettering_moves_in_one_event() -> None:
    core = with_dead_letter_queue(max_receives=1)
    core.publish(b"1", b"2", b"3")
    core.take(2)
    assert core.tick(30_000) == [Moved(2, START_MS + 30_000, [1, 2], Cause.MAX_RECEIVES, 1, 4, "")]
    assert (core["q"].ready, core["q"].leased, core["dead"].ready) == (1, 0, 2)
    assert (core["q"].dead_elsewhere, len(core["q"].dead)) == (2, 0)
    check_invariants(core.state)


def test_without_a_dead_letter_queue_it_is_kept_where_it_died() -> None:
    core = Core()
    core.put(max_receives=1)
    core.publish(b"1")
    core.take()
    assert core.tick(30_000) == [DeadLettered(1, START_MS + 30_000, [1], Cause.MAX_RECEIVES, "")]
    assert list(core["q"].dead) == [1]
    assert core.take() == []


def test_a_dead_letter_stands_at_the_end_of_its_new_queue_with_no_receives() -> None:
    core = with_dead_letter_queue()
    core.publish(b"old", queue="dead")
    core.publish(draft(priority=5))
    reject_all(core)
    core.publish(b"new", queue="dead")
    (event,) = core.lease(queue="dead")
    assert (event.seqs, event.receives) == ([1, 3, 4], [1, 1, 1])


def test_a_death_tells_where_why_when_and_after_how_many_receives() -> None:
    core = with_dead_letter_queue(max_receives=2)
    core.publish(draft(ttl_ms=100), b"rejected", b"tried")
    core.tick(100)
    core.take(2)
    core.tick(30_000)
    at_ms = core.now_ms
    leased = core.take(2)
    core.settle(Settlement("reject", leased[0][1], reason="no such customer"), Settlement("release", leased[1][1]))
    assert [core.state.stories[seq].deaths for seq in (4, 5, 6)] == [
        (Death("q", "expired", START_MS + 100, 0, "", 1, START_MS + 100, True),),
        (Death("q", "rejected", at_ms, 2, "no such customer", 1, at_ms, True),),
        (Death("q", "max_receives", at_ms, 2, "", 1, at_ms, True),),
    ]
    assert {core.state.stories[seq].origin for seq in (4, 5, 6)} == {core["q"].number}


def test_a_message_is_found_by_its_first_id_wherever_it_went() -> None:
    core = with_dead_letter_queue()
    core.publish(b"1")
    text = message_id(START_MS, TAG, 1)
    assert burial.find_message(core.state, core["q"], text) == 1
    reject_all(core)
    assert burial.find_message(core.state, core["dead"], text) == 2
    core.redrive([2], "dead")
    assert burial.find_message(core.state, core["q"], text) == 3
    for queue, wrong in (("dead", text), ("q", message_id(START_MS, TAG + 1, 1)), ("q", message_id(START_MS, TAG, 9))):
        with pytest.raises(MessageNotFound):
            burial.find_message(core.state, core[queue], wrong)
    core.ack(core.take()[0][1])
    with pytest.raises(MessageNotFound):
        burial.find_message(core.state, core["q"], text)
    assert core.state.moved == {} and core.state.stories == {}


# Expiry


def test_an_expired_message_dies_where_it_waits() -> None:
    core = Core()
    core.put()
    core.publish(draft(ttl_ms=100), draft(ttl_ms=100, delay_ms=50), draft(ttl_ms=300))
    assert core.tick(99) == []
    assert core.tick(1) == [DeadLettered(1, START_MS + 100, [1], Cause.EXPIRED, "")]
    assert core.tick(50) == [DeadLettered(1, START_MS + 150, [2], Cause.EXPIRED, "")]
    assert [seq for seq, _ in core.take()] == [3]


def test_a_message_released_with_a_delay_expires_while_it_is_away() -> None:
    core = Core()
    core.put()
    core.publish(draft(ttl_ms=100))
    core.settle(Settlement("release", core.take()[0][1], delay_ms=1000))
    assert core.tick(100) == [DeadLettered(1, START_MS + 100, [1], Cause.EXPIRED, "")]
    assert core.tick(1000) == []


def test_a_leased_message_may_be_acked_after_its_time_to_live() -> None:
    core = Core()
    core.put()
    core.publish(draft(ttl_ms=100))
    ((_, t),) = core.take()
    assert core.tick(200) == []
    assert core.ack(t)[1] == [0]


@pytest.mark.parametrize("how", ["release", "extend to 0", "expiry"])
def test_a_leased_message_whose_time_to_live_ended_dies_when_it_comes_back(how: str) -> None:
    core = Core()
    core.put(max_receives=1)  # expiry comes before the limit
    core.publish(draft(ttl_ms=100))
    ((_, t),) = core.take(lease_ms=1000)
    core.tick(200)
    if how == "release":
        events, _ = core.settle(Settlement("release", t, delay_ms=5000))
    elif how == "extend to 0":
        events, _ = core.settle(Settlement("extend", t, lease_ms=0))
    else:
        events = core.tick(800)
    assert events == [DeadLettered(1, core.now_ms, [1], Cause.EXPIRED, "")]


def test_an_extended_lease_survives_the_end_of_the_time_to_live() -> None:
    core = Core()
    core.put()
    core.publish(draft(ttl_ms=100))
    ((_, t),) = core.take(lease_ms=1000)
    core.tick(200)
    core.settle(Settlement("extend", t, lease_ms=10_000))
    core.tick(9000)
    assert core.ack(t)[1] == [0]


def test_a_dead_letter_no_longer_expires_unless_its_new_queue_says_so() -> None:
    core = Core()
    core.put("dead", message_ttl_ms=700)
    core.put(dead_letter_queue="dead")
    core.publish(draft(ttl_ms=100))
    reject_all(core)
    assert core.tick(100) == []
    assert core.tick(600) == [DeadLettered(1, START_MS + 700, [2], Cause.EXPIRED, "")]


# Coming back


def test_a_redriven_dead_letter_is_a_fresh_message_at_the_end_with_its_history() -> None:
    core = Core()
    core.put(max_receives=1)
    core.publish(b"1", b"2")
    core.take(1)
    core.tick(30_000)
    events, failed = core.redrive([1])
    assert (events, failed) == ([Moved(1, START_MS + 30_000, [1], Cause.REDRIVEN, 1, 3)], [])
    (event,) = core.lease()
    assert (list(event.seqs), event.receives) == ([2, 3], [1, 1])
    assert [d.reason for d in core.state.stories[3].deaths] == ["max_receives"]
    check_invariants(core.state)


def test_dead_letters_go_back_to_their_origins_in_one_event_each() -> None:
    core = Core()
    core.put("dead")
    core.put("a", dead_letter_queue="dead")
    core.put("b", dead_letter_queue="dead")
    for queue in ("a", "b", "a"):
        core.publish(b"x", queue=queue)
        reject_all(core, queue)
    assert (core["a"].dead_elsewhere, core["b"].dead_elsewhere) == (2, 1)
    events, failed = core.redrive([2, 4, 6], "dead")
    assert events == [
        Moved(1, START_MS, [2, 6], Cause.REDRIVEN, 2, 7),
        Moved(1, START_MS, [4], Cause.REDRIVEN, 3, 9),
    ]
    assert failed == []
    assert (core["a"].ready, core["b"].ready, core["dead"].ready) == (2, 1, 0)
    assert (core["a"].dead_elsewhere, core["b"].dead_elsewhere) == (0, 0)


def test_dead_letters_may_go_to_another_queue() -> None:
    core = with_dead_letter_queue()
    core.put("other")
    core.publish(b"1")
    reject_all(core)
    events, _ = core.redrive([2], "dead", "other")
    assert events == [Moved(1, START_MS, [2], Cause.REDRIVEN, 3, 3)]
    assert core["other"].ready == 1 and core["q"].dead_elsewhere == 0


@pytest.mark.parametrize("recover", ["replay", "snapshot"])
def test_a_redrive_keeps_to_the_bounds_of_the_queue_it_goes_to(recover: str) -> None:
    core = Core()
    core.put("dead")
    core.put(dead_letter_queue="dead")
    core.fill(4)
    core.settle(*[Settlement("reject", t) for _, t in core.take()])
    core.put(max_messages=2, overflow="drop_oldest", dead_letter_queue="dead")
    core.fill(2)
    events, failed = core.redrive([5, 6, 7], "dead")
    assert [(type(e), e.seqs, e.cause) for e in events] == [  # type: ignore[union-attr]
        (Moved, [5, 6, 7], Cause.REDRIVEN),
        (Moved, [9, 10, 11], Cause.OVERFLOW),
    ]
    assert (failed, core["q"].ready, core["dead"].ready) == ([], 2, 4)
    core.restart(recover)
    check_invariants(core.state)
    assert core.waiting() == [12, 13]


def test_a_redrive_fills_a_queue_that_would_refuse_beyond_its_bound() -> None:
    core = Core()
    core.put()
    core.fill(3)
    core.settle(*[Settlement("reject", t) for _, t in core.take()])
    core.put(max_messages=2)
    events, failed = core.redrive([1, 2, 3])
    assert (len(events), failed, core["q"].ready) == (1, [], 3)


def test_only_dead_letters_are_redriven_or_deleted() -> None:
    core = with_dead_letter_queue()
    core.publish(b"published there", queue="dead")
    core.publish(b"2", b"3")
    reject_all(core)
    core.take(2, queue="dead")  # 1, and the dead letter 4 is leased as well
    events, failed = core.redrive([1, 4, 5, 99, 0], "dead")
    assert failed == [1, 4, 99, 0]
    assert [e.seqs for e in events] == [[5]]
    assert delete_dead(core, [1, 4, 5, 99], "dead") == []


def test_a_redriven_message_is_no_dead_letter_any_more() -> None:
    core = Core()
    core.put()
    core.publish(b"1")
    reject_all(core)
    core.redrive([1])
    assert core.redrive([2]) == ([], [2])


def test_a_dead_letter_named_twice_moves_once() -> None:
    core = with_dead_letter_queue()
    core.publish(b"1", b"2")
    reject_all(core)
    events, failed = core.redrive([3, 3, 4, 3], "dead")
    assert [e.seqs for e in events] == [[3, 4]]
    assert failed == [3, 3]
    check_invariants(core.state)


def test_a_dead_letter_named_twice_is_deleted_once() -> None:
    core = Core()
    core.put()
    core.publish(b"1", b"2")
    reject_all(core)
    assert delete_dead(core, [1, 1, 2, 1]) == [Removed(1, START_MS, [1, 2], Cause.DELETED)]
    check_invariants(core.state)
    assert len(core.state.table) == 0


def test_dead_letters_of_a_deleted_origin_need_a_target() -> None:
    core = with_dead_letter_queue()
    core.publish(b"1")
    reject_all(core)
    core.run(commands.delete_queue(core.state, core["q"], core.now_ms, if_empty=False))
    assert core.redrive([2], "dead") == ([], [2])
    core.put("q")
    assert core.redrive([2], "dead") == ([], [2])  # another queue of the same name is not the origin
    assert core.redrive([2], "dead", "q")[1] == []


def test_a_dead_letter_that_dies_in_the_dead_letter_queue_still_belongs_to_its_origin() -> None:
    core = with_dead_letter_queue()
    core.publish(b"1")
    reject_all(core)
    reject_all(core, "dead", reason="again")
    assert (list(core["dead"].dead), core["q"].dead_elsewhere) == ([2], 1)
    check_invariants(core.state)
    assert [d.queue for d in core.state.stories[2].deaths] == ["q", "dead"]
    core.redrive([2], "dead")
    assert (core["q"].ready, core["q"].dead_elsewhere) == (1, 0)


def test_deleting_a_dead_letter_is_told_to_its_origin() -> None:
    core = with_dead_letter_queue()
    core.publish(b"1")
    reject_all(core)
    delete_dead(core, [2], "dead")
    assert core["q"].dead_elsewhere == 0


def test_dead_letter_queues_may_be_chained() -> None:
    core = Core()
    core.put("third")
    core.put("second", dead_letter_queue="third")
    core.put("first", dead_letter_queue="second")
    core.publish(b"1", queue="first")
    reject_all(core, "first")
    reject_all(core, "second")
    assert (core["first"].dead_elsewhere, core["second"].dead_elsewhere, core["third"].ready) == (1, 0, 1)
    assert [d.queue for d in core.state.stories[3].deaths] == ["first", "second"]
    check_invariants(core.state)
    core.redrive([3], "third")
    assert core["first"].ready == 1  # where it came from, not where it stopped on its way
    check_invariants(core.state)


def test_deaths_of_one_queue_and_reason_are_counted_and_the_latest_stands_last() -> None:
    core = Core()
    core.put("b")
    core.put("a", dead_letter_queue="b")
    core.put("b", dead_letter_queue="a")
    core.publish(b"1", queue="a")
    for turn in range(5):
        core.now_ms += 1
        reject_all(core, "ab"[turn % 2], reason=str(turn))
    (story,) = core.state.stories.values()
    assert story.deaths == (
        Death("b", "rejected", START_MS + 4, 1, "3", 2, START_MS + 2, False),
        Death("a", "rejected", START_MS + 5, 1, "4", 3, START_MS + 1, True),
    )


def test_a_message_that_comes_back_to_where_it_first_died_is_no_dead_letter_there() -> None:
    core = Core()
    core.put("b")
    core.put("a", dead_letter_queue="b")
    core.put("b", dead_letter_queue="a")
    core.publish(b"1", queue="a")
    reject_all(core, "a")
    assert (core["a"].dead_elsewhere, core["b"].dead_elsewhere) == (1, 0)
    reject_all(core, "b")
    assert (core["a"].dead_elsewhere, core["b"].dead_elsewhere) == (0, 0)
    assert core.redrive([3], "a") == ([], [3])


def test_of_very_many_deaths_the_first_and_the_latest_are_kept() -> None:
    core = Core()
    count = MAX_DEATHS + 10
    core.put("q0")
    for n in range(1, count + 1):
        core.put(f"q{n}", dead_letter_queue=f"q{n - 1}")
    core.publish(b"1", queue=f"q{count}")
    for n in range(count, 0, -1):
        reject_all(core, f"q{n}")
    (story,) = core.state.stories.values()
    assert [d.queue for d in story.deaths] == [f"q{count}", *(f"q{n}" for n in range(MAX_DEATHS - 1, 0, -1))]


def round_of_two(**settings: int) -> Core:
    core = Core()
    core.put("b")
    core.put("a", dead_letter_queue="b", **settings)
    core.put("b", dead_letter_queue="a", **settings)
    core.publish(b"1", queue="a")
    return core


def test_a_message_that_expires_unseen_does_not_go_round_for_ever() -> None:
    core = round_of_two(message_ttl_ms=0)
    core.tick(1)
    assert (core["a"].ready, core["b"].ready, len(core["b"].dead)) == (0, 0, 1)
    (story,) = core.state.stories.values()
    assert [(d.queue, d.reason) for d in story.deaths] == [("a", "expired"), ("b", "expired")]
    assert core["a"].dead_elsewhere == 1
    check_invariants(core.state)


def test_a_message_that_was_rejected_may_come_back_by_expiring() -> None:
    core = round_of_two()
    core.put("b", dead_letter_queue="a", message_ttl_ms=1_000)  # a queue to wait in before the next try
    for _ in range(3):
        reject_all(core, "a")
        core.tick(1_001)
        assert (core["a"].ready, core["b"].ready) == (1, 0)
    check_invariants(core.state)


def test_totals_tell_deaths_by_reason() -> None:
    core = with_dead_letter_queue(max_receives=1)
    core.publish(draft(ttl_ms=10), b"2", b"3")
    core.tick(10)
    leased = core.take()
    core.settle(Settlement("reject", leased[0][1]))
    core.tick(30_000)
    core.redrive([4], "dead")
    names = TOTALS
    q, dead = (dict(zip(names, core[n].totals, strict=True)) for n in ("q", "dead"))
    assert {k: v for k, v in q.items() if v} == {
        "published": 3,
        "delivered": 2,
        "dead_lettered": 3,
        "expired": 1,
        "rejected": 1,
        "moved_in": 1,
    }
    assert {k: v for k, v in dead.items() if v} == {"moved_in": 3, "redriven": 1}
