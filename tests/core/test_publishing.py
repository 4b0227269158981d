"""Publishing: what is accepted, when it becomes visible, what a full queue does, what counts as a repetition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laneway.core import commands
from laneway.core.commands import KEY_LIFE_MS
from laneway.core.events import Cause, DeadLettered, Event, KeyRemembered, Moved, Published
from laneway.core.invariants import check_invariants
from laneway.core.message import PLAIN, Draft, Properties, Receipt, Settlement, decode_record, message_id
from laneway.core.publishing import MAX_DELAY_MS, MAX_SCHEDULE_MS, MAX_TTL_MS
from laneway.core.table import Table
from laneway.errors import IdempotencyConflict, MessageTooLarge, QueueNotFound
from tests.core.runner import START_MS, TAG, Core, codes, draft


def ids(results: list[object]) -> list[str]:
    return [r.message_id for r in results if isinstance(r, Receipt)]


def test_a_batch_is_one_event_with_a_receipt_per_entry() -> None:
    core = Core()
    core.put()
    events, results = core.publish(Draft(b"one", priority=7), draft(b"two", group="g", dedup_id="d", ttl_ms=1000))

    (event,) = events
    assert isinstance(event, Published)
    assert (event.queue, event.at_ms, event.first_seq) == (1, START_MS, 1)
    assert (event.priorities, event.visible_at, event.expires_at) == ([7, 5], [0, 0], [0, START_MS + 1000])
    assert (event.groups, event.dedups) == ({1: "g"}, {1: "d"})
    assert event.sizes == [len(record) for record in event.records]
    assert [decode_record(record)[0] for record in event.records] == [1, 2]
    assert [decode_record(record)[3] for record in event.records] == [b"one", b"two"]
    assert results == [
        Receipt(message_id(START_MS, TAG, 1), 7, START_MS, START_MS),
        Receipt(message_id(START_MS, TAG, 2), 5, START_MS, START_MS),
    ]


@pytest.mark.parametrize("properties", [PLAIN, Properties("text/plain", correlation_id="c")])
@pytest.mark.parametrize("priorities", [[5, 5, None], [1, 9, None, 9, 1]])
def test_look_alikes_go_in_as_they_would_beside_others(priorities: list[int | None], properties: Properties) -> None:
    alike, mixed = Core(), Core()
    alike.put()
    mixed.put()
    drafts = [Draft(b"%d" % n, priority, properties) for n, priority in enumerate(priorities)]
    (event,), results = alike.publish(*drafts)
    (other,), others = mixed.publish(*drafts, Draft(b"with a time of its own", 0, delay_ms=1000))

    assert isinstance(event, Published) and isinstance(other, Published)
    assert results == others[:-1]
    assert event.records == other.records[:-1]
    assert list(event.priorities) == list(other.priorities)[:-1]
    assert list(event.sizes) == list(other.sizes)[:-1]


def test_properties_that_are_equal_but_not_the_same_are_kept_apart() -> None:
    core = Core()
    core.put()
    drafts = [Draft(b"x", properties=Properties(attributes={"a": value})) for value in (1, True)]
    (event,), _ = core.publish(*drafts)
    assert isinstance(event, Published)
    kept = [decode_record(record)[2].attributes["a"] for record in event.records]
    assert [type(value) for value in kept] == [int, bool]


def test_what_cannot_be_published_is_said_per_entry_and_leaves_no_gap() -> None:
    core = Core()
    core.put(max_priority=10, max_message_bytes=100)
    events, results = core.publish(
        draft(priority=11),
        draft(priority=-1),
        draft(b"x" * 101),
        draft(delay_ms=MAX_DELAY_MS + 1),
        draft(delay_ms=-1),
        draft(delay_ms=1, visible_at_ms=START_MS + 1),
        draft(visible_at_ms=START_MS + MAX_SCHEDULE_MS + 1),
        draft(ttl_ms=-1),
        draft(ttl_ms=MAX_TTL_MS + 1),
        Draft(b"", properties=Properties(group="g" * 1025)),
        draft(b"fine"),
    )
    assert codes(results)[:-1] == ["invalid_input"] * 2 + ["message_too_large"] + ["invalid_input"] * 7
    fields = [getattr(r, "field", None) for r in results[:-1]]
    assert fields == [
        "priority",
        "priority",
        "payload",
        "delay_ms",
        "delay_ms",
        "visible_at_ms",
        "visible_at_ms",
        "ttl_ms",
        "ttl_ms",
        "group",
    ]
    assert ids(results) == [message_id(START_MS, TAG, 1)]
    assert len(events) == 1 and core.waiting() == [1]


def test_a_batch_of_which_nothing_is_accepted_is_no_event() -> None:
    core = Core()
    core.put()
    assert core.publish(draft(priority=99))[0] == []


@pytest.mark.parametrize("size,accepted", [(100, True), (101, False)])
def test_the_largest_message_counts_body_and_properties(size: int, accepted: bool) -> None:
    core = Core()
    core.put(max_message_bytes=size)
    properties = Properties(content_type="text/plain")  # 16 bytes of lengths and 10 of text
    _, (result,) = core.publish(Draft(b"x" * (size - 26), properties=properties))
    assert isinstance(result, Receipt)
    _, (result,) = core.publish(Draft(b"x" * (size - 25), properties=properties))
    assert isinstance(result, MessageTooLarge)


@pytest.mark.parametrize(("max_priority", "middle"), [(10, 5), (0, 0), (1, 1), (255, 128), (9, 5)])
def test_without_a_priority_a_message_gets_the_middle_one(max_priority: int, middle: int) -> None:
    core = Core()
    core.put(max_priority=max_priority)
    (event,), _ = core.publish(b"x")
    assert event.priorities == [middle]


def test_every_priority_up_to_255_has_its_place() -> None:
    core = Core()
    core.put(max_priority=255)
    core.publish(*[draft(priority=p) for p in range(256)])
    core.publish(*[draft(priority=p) for p in range(256)])
    order = [seq for seq, _ in core.take(512)]
    assert order == [seq for p in range(256) for seq in (p + 1, p + 257)]  # numbers of a batch go by priority


def test_a_delay_hides_a_message_until_its_time() -> None:
    core = Core()
    core.put()
    _, (receipt,) = core.publish(draft(delay_ms=1000))
    assert isinstance(receipt, Receipt) and receipt.visible_at_ms == START_MS + 1000
    core.tick(999)
    assert core.take() == []
    assert (core["q"].ready, core["q"].delayed) == (0, 1)
    assert core.tick(1) == []  # the clock says so, hence no event does
    assert (core["q"].ready, core["q"].delayed) == (1, 0)
    assert [seq for seq, _ in core.take()] == [1]


def test_a_delayed_message_takes_the_place_its_number_gives_it() -> None:
    core = Core()
    core.put()
    core.publish(draft(delay_ms=1000), b"second")
    core.tick(1000)
    assert [seq for seq, _ in core.take()] == [1, 2]


def test_a_queue_delays_what_does_not_say_otherwise() -> None:
    core = Core()
    core.put(delay_ms=500)
    (event,), _ = core.publish(b"x", draft(delay_ms=0), draft(delay_ms=100), draft(visible_at_ms=START_MS + 7))
    assert event.visible_at == [START_MS + 500, 0, START_MS + 100, START_MS + 7]


def test_an_absolute_time_in_the_past_means_at_once() -> None:
    core = Core()
    core.put(delay_ms=500)
    (event,), (receipt,) = core.publish(draft(visible_at_ms=START_MS - 5))
    assert event.visible_at == [0]
    assert receipt.visible_at_ms == START_MS


def test_an_absolute_time_may_be_ninety_days_ahead() -> None:
    core = Core()
    core.put()
    core.publish(draft(visible_at_ms=START_MS + MAX_SCHEDULE_MS))
    core.tick(MAX_SCHEDULE_MS - 1)
    assert core.take() == []
    core.tick(1)
    assert [seq for seq, _ in core.take()] == [1]


def test_a_time_to_live_counts_from_visibility_and_the_shorter_one_holds() -> None:
    core = Core()
    core.put(message_ttl_ms=5000)
    (event,), _ = core.publish(b"x", draft(ttl_ms=100), draft(ttl_ms=9000), draft(ttl_ms=100, delay_ms=1000))
    assert event.expires_at == [START_MS + 5000, START_MS + 100, START_MS + 5000, START_MS + 1100]


# A full queue


def test_a_full_queue_refuses_newcomers_one_by_one() -> None:
    core = Core()
    core.put(max_messages=3)
    _, results = core.publish(b"1", b"2", b"3", b"4", b"5")
    assert [isinstance(r, Receipt) for r in results] == [True] * 3 + [False] * 2
    assert codes(results)[3:] == ["queue_full", "queue_full"]


def test_leased_messages_leave_room_and_delayed_ones_do_not() -> None:
    core = Core()
    core.put(max_messages=2)
    core.publish(b"1", draft(delay_ms=1000))
    assert codes(core.publish(b"3")[1]) == ["queue_full"]
    core.take(1)
    assert len(ids(core.publish(b"3")[1])) == 1


def test_bytes_are_counted_as_they_are_stored() -> None:
    core = Core()
    core.put(max_bytes=100)  # a record is 24 bytes and the body
    assert codes(core.publish(b"x" * 77)[1]) == ["queue_full"]
    _, results = core.publish(b"x" * 26, b"x" * 27, b"x" * 26)
    assert [isinstance(r, Receipt) for r in results] == [True, False, True]
    assert core["q"].bytes_waiting == 100


def test_overflow_pushes_out_the_oldest_of_the_lowest_priority_in_one_event() -> None:
    core = Core()
    core.put(max_messages=2, overflow="drop_oldest")
    events, results = core.publish(draft(priority=1), draft(priority=2), draft(priority=1), draft(priority=3))
    assert [int(i[-12:], 16) for i in ids(results)] == [3, 2, 4, 1]  # by priority
    assert events[1:] == [DeadLettered(1, START_MS, [3, 4], Cause.OVERFLOW, "")]
    assert core.waiting() == [1, 2]


def test_overflow_may_push_out_the_newcomer_itself() -> None:
    core = Core()
    core.put(max_messages=1, overflow="drop_oldest")
    core.publish(draft(priority=5))
    events, _ = core.publish(draft(priority=4))
    assert events[1:] == [DeadLettered(1, START_MS, [2], Cause.OVERFLOW, "")]


def test_overflow_moves_to_the_dead_letter_queue() -> None:
    core = Core()
    core.put("dead")
    core.put(max_messages=1, overflow="drop_oldest", dead_letter_queue="dead")
    events, _ = core.publish(b"1", b"2")
    assert events[1:] == [Moved(2, START_MS, [1], Cause.OVERFLOW, 1, 3, "")]


@pytest.mark.parametrize("grouped_first", [True, False])
def test_overflow_takes_the_oldest_whether_it_is_in_a_group_or_not(grouped_first: bool) -> None:
    core = Core()
    core.put(max_messages=1, overflow="drop_oldest")
    first, second = (draft(group="g"), draft()) if grouped_first else (draft(), draft(group="g"))
    core.publish(first)
    events, _ = core.publish(second)
    assert events[1:] == [DeadLettered(1, START_MS, [1], Cause.OVERFLOW, "")]


def test_overflow_spares_what_is_leased_and_takes_delayed_ones_last() -> None:
    core = Core()
    core.put(max_messages=2, overflow="drop_oldest")
    core.publish(draft(priority=1))
    core.take(1)
    core.publish(draft(delay_ms=1000, priority=5), draft(delay_ms=1000, priority=3), draft(delay_ms=1000, priority=3))
    assert list(core["q"].dead) == [3]
    events, _ = core.publish(draft(priority=9))
    assert events[1:] == [DeadLettered(1, START_MS, [5], Cause.OVERFLOW, "")]  # the only one that is ready


def test_a_full_queue_of_delayed_messages_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core, searched = Core(), 0
    find = Table.find

    def counted(self: Table, queue: int, state: int, after: int = 0, upto: int | None = None) -> Iterator[int]:
        nonlocal searched
        searched += 1
        return find(self, queue, state, after, upto)

    monkeypatch.setattr(Table, "find", counted)
    core.put(max_messages=3, overflow="drop_oldest", dead_letter_queue=None, keep_dead=True)
    for priority in (5, 3, 3, 4, 1, 3, 9, 2):
        core.publish(draft(delay_ms=1000, priority=priority))
    assert list(core["q"].dead) == [2, 5, 3, 6, 8]
    assert searched == 1
    # What came back with a delay has its place as well, and what is delayed no more has none.
    core.tick(1000)
    ((seq, token),) = core.take(1)
    assert seq == 7
    core.settle(Settlement("release", token, delay_ms=5_000))
    check_invariants(core.state)


def test_overflow_by_bytes_pushes_out_as_many_as_it_takes() -> None:
    core = Core()
    core.put(max_bytes=110, overflow="drop_oldest")
    core.publish(b"12345678", b"12345678", b"12345678")  # 32 bytes each
    events, _ = core.publish(b"x" * 50)
    assert [e.seqs for e in events[1:]] == [[1], [2]]
    assert core.waiting() == [3, 4]


# Repetitions


def test_a_repeated_dedup_id_answers_with_the_first_message() -> None:
    core = Core()
    core.put(dedup_window_ms=1000)
    _, (first,) = core.publish(draft(b"one", dedup_id="d"))
    core.tick(999)
    events, (again,) = core.publish(draft(b"two", dedup_id="d"))
    assert events == []
    assert (again.message_id, again.duplicate) == (first.message_id, True)


def test_a_dedup_id_counts_within_one_batch() -> None:
    core = Core()
    core.put()
    (event,), results = core.publish(draft(dedup_id="d"), draft(dedup_id="e"), draft(dedup_id="d"))
    assert event.dedups == {0: "d", 1: "e"}
    assert ids(results)[2] == ids(results)[0]
    assert [r.duplicate for r in results] == [False, False, True]


def test_a_dedup_id_is_forgotten_after_the_window() -> None:
    core = Core()
    core.put(dedup_window_ms=1000)
    core.publish(draft(dedup_id="d"))
    core.now_ms += 1000  # not even a tick is needed
    (_,), (result,) = core.publish(draft(dedup_id="d"))
    assert not result.duplicate
    core.tick(999)
    assert core.publish(draft(dedup_id="d"))[0] == []
    core.tick(1)
    assert core["q"].dedup == {}


def test_a_dedup_id_outlives_its_message() -> None:
    core = Core()
    core.put()
    _, (first,) = core.publish(draft(dedup_id="d"))
    core.ack(*[t for _, t in core.take()])
    _, (again,) = core.publish(draft(dedup_id="d"))
    assert again.message_id == first.message_id


def test_a_window_of_zero_switches_dedup_off() -> None:
    core = Core()
    core.put(dedup_window_ms=0)
    (event,), results = core.publish(draft(dedup_id="d"), draft(dedup_id="d"))
    assert len(set(ids(results))) == 2
    assert event.dedups == {} and core["q"].dedup == {}


def test_the_window_in_force_now_decides() -> None:
    core = Core()
    core.put(dedup_window_ms=1000)
    core.publish(draft(dedup_id="d"))
    core.put(dedup_window_ms=100)
    core.now_ms += 100
    _, (result,) = core.publish(draft(dedup_id="d"))
    assert not result.duplicate


def test_a_refused_message_is_not_remembered() -> None:
    core = Core()
    core.put(max_messages=1)
    core.publish(b"x")
    assert codes(core.publish(draft(dedup_id="d"))[1]) == ["queue_full"]
    core.take(1)
    _, (result,) = core.publish(draft(dedup_id="d"))
    assert not result.duplicate


def test_dedup_ids_are_per_queue() -> None:
    core = Core()
    core.put("a")
    core.put("b")
    core.publish(draft(dedup_id="d"), queue="a")
    _, (result,) = core.publish(draft(dedup_id="d"), queue="b")
    assert not result.duplicate


# Idempotency keys


def check_key(core: Core, key: str, fingerprint: bytes) -> list[str] | None:
    return commands.check_key(core.state, core["q"], key, fingerprint, core.now_ms)


def remember_key(core: Core, key: str, *ids: str, max_ids: int = 10) -> list[Event]:
    command = commands.remember_key(core.state, core["q"], key, b"body", list(ids), core.now_ms, max_ids=max_ids)
    return core.run(command)


def test_an_idempotency_key_is_remembered_for_a_day() -> None:
    core = Core()
    core.put()
    assert check_key(core, "k", b"body") is None
    (event,) = remember_key(core, "k", "id")
    assert isinstance(event, KeyRemembered) and event.expires_ms == START_MS + KEY_LIFE_MS
    assert check_key(core, "k", b"body") == ["id"]
    with pytest.raises(IdempotencyConflict) as conflict:
        check_key(core, "k", b"other")
    assert conflict.value.details["message_ids"] == ["id"]
    core.now_ms += KEY_LIFE_MS - 1
    core.tick()
    assert check_key(core, "k", b"body") == ["id"]
    core.now_ms += 1
    assert check_key(core, "k", b"other") is None
    core.tick()
    assert not core.state.keys


@pytest.mark.parametrize("recover", ["replay", "snapshot"])
def test_the_oldest_idempotency_keys_are_forgotten_when_their_messages_are_too_many(recover: str) -> None:
    core = Core()
    core.put()
    for i in range(3):
        remember_key(core, f"k{i}", "id", "id", max_ids=7)
        core.now_ms += 1
    core.restart(recover)
    assert [check_key(core, f"k{i}", b"body") is not None for i in range(3)] == [True, True, True]
    remember_key(core, "k3", "id", "id", max_ids=7)
    core.restart(recover)
    assert [check_key(core, f"k{i}", b"body") is not None for i in range(4)] == [False, True, True, True]
    core.now_ms += 1
    remember_key(core, "large", *["id"] * 9, max_ids=7)
    core.restart(recover)
    assert [key for (_, key), _ in core.state.keys.items()] == ["large"]
    check_invariants(core.state)


def test_a_key_that_expired_does_not_stand_for_one_that_was_forgotten() -> None:
    core = Core()
    core.put()
    remember_key(core, "old", "id", max_ids=2)
    core.now_ms += KEY_LIFE_MS
    core.tick()
    remember_key(core, "k0", "id", max_ids=2)
    for i in range(1, 3):
        core.now_ms += 1
        remember_key(core, f"k{i}", "id", max_ids=2)
    core.restart()  # a replay does not know when "old" expired
    assert [key for (_, key), _ in core.state.keys.items()] == ["k1", "k2"]


def test_idempotency_keys_go_with_their_queue() -> None:
    core = Core()
    core.put()
    remember_key(core, "k", "id")
    core.run(commands.delete_queue(core.state, core["q"], core.now_ms, if_empty=False))
    core.put()
    assert check_key(core, "k", b"other") is None
    assert not core.state.keys


def test_a_missing_queue_is_named() -> None:
    core = Core()
    with pytest.raises(QueueNotFound, match="there is no queue 'nowhere'"):
        commands.find_queue(core.state, "/", "nowhere")
    with pytest.raises(QueueNotFound, match="in virtual host 'other'"):
        commands.find_queue(core.state, "other", "nowhere")


def test_a_clock_set_back_does_not_make_a_younger_key_expire_first() -> None:
    core = Core()
    core.put("q")
    remember_key(core, "old", "id")
    core.now_ms -= 60_000
    (event,) = remember_key(core, "young", "id")
    assert isinstance(event, KeyRemembered) and event.expires_ms == core.now_ms + 60_000 + KEY_LIFE_MS
    check_invariants(core.state)
