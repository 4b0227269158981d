"""Leases: the order of delivery, what a token is good for, and every way a lease ends."""

from __future__ import annotations

import pytest

from laneway.core import lease_commands
from laneway.core.digits import token
from laneway.core.events import Acked, Cause, DeadLettered, Event, Extended, Leased, Moved, Opened, Released
from laneway.core.invariants import check_invariants
from laneway.core.lease_commands import MAX_BACKOFF_MS, MAX_LEASE_MS, check_lease, parse_tokens, settle_held
from laneway.core.message import Settlement, message_id
from laneway.core.queue import ACKED
from laneway.errors import InvalidInput
from tests.core.runner import START_MS, TAG, Core, codes, draft

LEASE_1 = 1 << 40 | 1  # the first lease id of epoch 1


def one_queue(**settings: object) -> Core:
    core = Core()
    core.put(**settings)
    return core


# The order


def test_a_late_ack_or_extension_counts_unless_the_message_was_leased_since() -> None:
    core = Core()
    core.put()
    core.publish(*[draft() for _ in range(3)])
    (_, one), (_, two), (_, three) = core.take(3)
    core.tick(30_000)
    assert (
        codes(core.settle(Settlement("ack", one), Settlement("extend", two, lease_ms=1000))[1]) == ["lease_stale"] * 2
    )
    late = [Settlement("ack", one, late=True), Settlement("extend", two, lease_ms=1000, late=True)]
    assert codes(core.settle(*late)[1]) == [0, core.now_ms + 1000]
    ((again, _),) = core.take(10)
    assert again == 3
    assert codes(core.settle(Settlement("ack", three, late=True), Settlement("ack", one, late=True))[1]) == (
        ["lease_stale"] * 2
    )
    for recover in ("replay", "snapshot"):
        core.restart(recover)
        assert core["q"].leased == 2
    core.tick(1000)
    ((second, _),) = core.take(10)
    assert second == 2
    assert core["q"].totals[ACKED] == 1


def test_highest_priority_first_and_first_in_first_out_inside_it() -> None:
    core = one_queue()
    for priority in (1, 9, 5, 9, 1):
        core.publish(draft(priority=priority))
    (event,) = core.lease(4)
    assert event == Leased(1, START_MS, [2, 4, 3, 1], [1, 1, 1, 1], LEASE_1, START_MS + 30_000, "")
    assert core.lease(4) == [Leased(1, START_MS, range(5, 6), [1], LEASE_1 + 4, START_MS + 30_000, "")]
    assert core.lease(4) == []


def test_numbers_of_one_batch_go_by_priority_and_by_arrival_inside_it() -> None:
    core = one_queue()
    given = [draft(body, priority=p) for body, p in ((b"a", 1), (b"b", 9), (b"c", 5), (b"d", 9), (b"e", 1))]
    (event,), results = core.publish(*given)
    assert event.bodies == [b"b", b"d", b"c", b"a", b"e"]
    assert event.priorities == [9, 9, 5, 1, 1]
    assert [(int(r.message_id[-12:], 16), r.priority) for r in results] == [(4, 1), (1, 9), (3, 5), (2, 9), (5, 1)]
    assert [seq for seq, _ in core.take(5)] == [1, 2, 3, 4, 5]


def test_a_newcomer_of_higher_priority_overtakes() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    core.take(1)
    core.publish(draft(priority=6))
    assert [seq for seq, _ in core.take()] == [3, 2]


def test_a_lease_may_be_longer_or_shorter_than_the_queue_says() -> None:
    core = one_queue(lease_ms=1000)
    core.publish(b"1", b"2")
    assert core.lease(1)[0].deadline_ms == START_MS + 1000
    assert core.lease(1, lease_ms=77)[0].deadline_ms == START_MS + 77


def test_one_lease_hands_out_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_commands, "MAX_LEASE_BYTES", 100)  # a record is 24 bytes and the body
    core = one_queue()
    core.publish(b"x" * 26, b"x" * 26, b"x", b"x" * 500, b"x")
    core.publish(draft(b"", group="g"), draft(b"", group="g"))  # 57 bytes each
    assert [core.lease(10)[0].seqs for _ in range(4)] == [[1, 2], [3], [4], [5, 6]]
    assert core.lease(10) == []  # the group waits for its first
    check_invariants(core.state)


def test_the_consumer_of_a_lease_is_known_until_it_ends() -> None:
    core = one_queue()
    core.publish(b"1", b"2", b"3", b"4")
    leased = core.take(4, consumer="worker-7")
    assert core.state.consumers == dict.fromkeys([1, 2, 3, 4], "worker-7")
    core.ack(leased[0][1])
    core.settle(Settlement("release", leased[1][1]), Settlement("reject", leased[2][1]))
    core.tick(30_000)
    assert core.state.consumers == {}


@pytest.mark.parametrize("lease_ms", [-1, MAX_LEASE_MS + 1])
def test_a_lease_out_of_range_is_refused(lease_ms: int) -> None:
    with pytest.raises(InvalidInput, match="a lease is from 0 to 43200 seconds"):
        check_lease(lease_ms, "")


def test_a_consumer_name_of_too_many_bytes_is_refused() -> None:
    check_lease(None, "é" * 128)
    with pytest.raises(InvalidInput, match="at most 256 bytes"):
        check_lease(None, "é" * 129)


# Ack


def test_an_acked_message_is_gone() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    leased = core.take()
    events, results = core.ack(*[t for _, t in leased])
    assert events == [Acked(1, START_MS, [1, 2], [LEASE_1, LEASE_1 + 1])]
    assert results == [0, 0]
    assert core.tick(100_000) == [] and core.take() == []
    assert core.state.extents == {} and len(core.state.table) == 0


def test_ack_twice_in_one_batch_is_stale_the_second_time() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    (_, one), (_, two) = core.take()
    events, results = core.ack(one, one, two, one)
    assert codes(results) == [0, "lease_stale", 0, "lease_stale"]
    assert events == [Acked(1, START_MS, [1, 2], [LEASE_1, LEASE_1 + 1])]


def test_a_settled_lease_is_stale_for_every_action() -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take()
    core.ack(t)
    for action in ("ack", "release", "reject", "extend"):
        events, results = core.settle(Settlement(action, t, lease_ms=1))  # type: ignore[arg-type]
        assert (events, codes(results)) == ([], ["lease_stale"])


def test_stale_token_never_removes_a_message_someone_else_holds() -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, old),) = core.take()
    core.tick(30_000)
    ((_, new),) = core.take()
    assert old != new
    assert codes(core.ack(old)[1]) == ["lease_stale"]
    assert codes(core.ack(old, old)[1]) == ["lease_stale"] * 2
    assert core["q"].leased == 1
    assert core.ack(new)[1] == [0]


def test_a_token_is_stale_from_its_deadline_on_even_before_a_tick() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    (_, one), (_, two) = core.take()
    core.now_ms += 29_999
    assert core.ack(one)[1] == [0]
    core.now_ms += 1
    assert codes(core.ack(two, two)[1]) == ["lease_stale"] * 2
    assert codes(core.settle(Settlement("extend", two, lease_ms=1000))[1]) == ["lease_stale"]


def test_a_token_is_stale_in_another_queue() -> None:
    core = one_queue()
    core.put("other")
    core.publish(b"1")
    ((_, t),) = core.take()
    assert codes(core.ack(t, queue="other")[1]) == ["lease_stale"]
    assert codes(core.ack(t, t, queue="other")[1]) == ["lease_stale"] * 2


def test_a_token_of_an_earlier_epoch_is_never_given_again() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    core.take(1)
    core.run(iter([Opened(START_MS, 2, TAG)]))
    ((_, t),) = core.take(1)
    assert t == token(2 << 40 | 1, 2)


@pytest.mark.parametrize(
    "text", ["", ".", "x", "1", "1.1", "g" * 28, "1" * 27, "1" * 29, "ü" * 28, "\ud800" * 28, "\0" * 28]
)
def test_what_is_no_token_is_refused_as_such(text: str) -> None:
    core = one_queue()
    core.publish(b"1")
    core.take()
    assert codes(core.ack(text)[1]) == ["receipt_invalid"]
    assert codes(core.ack(text, text)[1]) == ["receipt_invalid"] * 2


@pytest.mark.parametrize("seq", [0, 1, 2, 5, 1023, 1024, (1 << 48) - 1])
@pytest.mark.parametrize("lease_id", [0, 1, LEASE_1 - 1, LEASE_1 + 1, (1 << 64) - 1])
def test_a_made_up_token_is_stale_and_harmless(lease_id: int, seq: int) -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    core.take(1)
    text = token(lease_id, seq)
    assert codes(core.ack(text)[1]) == ["lease_stale"]
    assert codes(core.ack(text, text)[1]) == ["lease_stale"] * 2
    assert (core["q"].leased, core["q"].ready) == (1, 1)


@pytest.mark.parametrize("text", ["-" + "0" * 27, "-" + "f" * 27, "+" + "1" * 27, "0x" + "1" * 26, "1_" * 13 + "11"])
def test_what_only_looks_like_a_token_does_no_harm(text: str) -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    core.take(1)
    assert set(codes(core.ack(text)[1] + core.ack(text, text)[1])) <= {"lease_stale", "receipt_invalid"}
    assert (core["q"].leased, core["q"].ready) == (1, 1)


def test_good_and_bad_entries_of_a_batch_are_answered_in_order() -> None:
    core = one_queue()
    core.publish(b"1", b"2", b"3")
    (_, one), (_, two), (_, three) = core.take()
    events, results = core.ack(one, "nonsense", two, token(1, 1), three)
    assert codes(results) == [0, "receipt_invalid", 0, "lease_stale", 0]
    assert [e.seqs for e in events] == [[1, 2, 3]]


def test_a_message_id_beside_a_token_must_be_its_own() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    (_, one), (_, two) = core.take()
    mine, other = message_id(START_MS, TAG, 1), message_id(START_MS, TAG, 2)
    wrong = Settlement("ack", one, message_id=other)
    assert codes(core.settle(wrong)[1]) == ["receipt_invalid"]
    assert codes(core.settle(Settlement("ack", one, message_id="1"))[1]) == ["receipt_invalid"]
    assert core.settle(Settlement("ack", one, message_id=mine.upper()))[1] == [0]
    assert core["q"].leased == 1
    assert core.settle(Settlement("ack", two, message_id=other))[1] == [0]


def test_a_moved_message_still_answers_to_its_first_id() -> None:
    core = one_queue()
    core.put("dead")
    core.put(dead_letter_queue="dead")
    core.publish(b"1")
    core.settle(Settlement("reject", core.take()[0][1]))
    ((seq, t),) = core.take(queue="dead")
    assert seq == 2
    assert core.settle(Settlement("ack", t, message_id=message_id(START_MS, TAG, 1)), queue="dead")[1] == [0]


# Release and expiry


def test_released_message_returns_to_its_place() -> None:
    core = one_queue()
    core.publish(b"1", b"2", b"3")
    (_, one), (_, two) = core.take(2)
    events, results = core.settle(Settlement("release", two), Settlement("release", one))
    assert events == [Released(1, START_MS, [2, 1], [0, 0], Cause.RELEASED)]
    assert results == [START_MS, START_MS]
    assert core.lease(3)[0].seqs == [1, 2, 3]


def test_expired_lease_returns_to_its_place() -> None:
    core = one_queue()
    core.publish(b"1", b"2", b"3")
    core.take(2)
    assert core.tick(29_999) == []
    assert core.tick(1) == [Released(1, START_MS + 30_000, [1, 2], [0, 0], Cause.LEASE_EXPIRED)]
    (event,) = core.lease(3)
    assert (event.seqs, event.receives) == ([1, 2, 3], [2, 2, 1])


def test_a_message_released_with_a_delay_is_away_and_then_back_in_its_place() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    ((_, one),) = core.take(1)
    events, results = core.settle(Settlement("release", one, delay_ms=5000))
    assert events == [Released(1, START_MS, [1], [START_MS + 5000], Cause.RELEASED)]
    assert results == [START_MS + 5000]
    core.tick(4999)
    assert core["q"].delayed == 1
    core.tick(1)
    assert core.lease()[0].seqs == [1, 2]


def test_back_off_doubles_with_every_receive_up_to_fifteen_minutes() -> None:
    core = one_queue(max_receives=None)
    core.publish(b"1")
    waits = []
    for _ in range(12):
        ((_, t),) = core.take(lease_ms=1000)
        _, (visible_ms,) = core.settle(Settlement("release", t, backoff=True))
        waits.append(visible_ms - core.now_ms)
        core.tick(waits[-1])
    assert waits == [2000, 4000, 8000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, *[MAX_BACKOFF_MS] * 3]


def test_back_off_after_a_million_receives_is_still_fifteen_minutes() -> None:
    core = one_queue(max_receives=None)
    core.publish(b"1")
    ((seq, t),) = core.take()
    core.state.table.owned(seq).receives[seq] = 1_000_000
    assert core.settle(Settlement("release", t, backoff=True))[1] == [START_MS + MAX_BACKOFF_MS]


@pytest.mark.parametrize("delay_ms", [-1, MAX_LEASE_MS + 1])
def test_a_release_delay_out_of_range_leaves_the_lease_as_it_is(delay_ms: int) -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take()
    events, results = core.settle(Settlement("release", t, delay_ms=delay_ms), Settlement("ack", t))
    assert codes(results) == ["invalid_input", 0]
    assert [type(e) for e in events] == [Acked]


def test_the_last_receive_ends_in_death_when_it_comes_back() -> None:
    core = one_queue(max_receives=2)
    core.publish(b"1", b"2", b"3")
    core.tick()
    core.take(3, lease_ms=1000)
    core.tick(1000)
    (_, one), (_, two), _ = core.take(3, lease_ms=1000)
    events, results = core.settle(Settlement("release", one, delay_ms=60_000), Settlement("extend", two, lease_ms=0))
    at_ms = START_MS + 1000
    assert events == [DeadLettered(1, at_ms, [1, 2], Cause.MAX_RECEIVES, "")]
    assert results == [at_ms, at_ms]
    assert core.tick(1000) == [DeadLettered(1, at_ms + 1000, [3], Cause.MAX_RECEIVES, "")]


def test_an_ack_at_the_last_receive_is_fine() -> None:
    core = one_queue(max_receives=1)
    core.publish(b"1")
    assert core.ack(core.take()[0][1])[1] == [0]
    assert len(core["q"].dead) == 0


def test_without_a_limit_a_message_comes_back_for_ever() -> None:
    core = one_queue(max_receives=None)
    core.publish(b"1")
    for count in range(1, 50):
        assert core.lease(1)[0].receives == [count]
        core.tick(30_000)


# Extend


def test_an_extended_lease_ends_later() -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take()
    core.tick(20_000)
    events, results = core.settle(Settlement("extend", t, lease_ms=30_000))
    until_ms = START_MS + 50_000
    assert (events, results) == ([Extended(1, START_MS + 20_000, [1], until_ms)], [until_ms])
    assert core.tick(29_999) == []
    assert [type(e) for e in core.tick(1)] == [Released]


def test_a_shortened_lease_ends_sooner() -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take()
    core.settle(Settlement("extend", t, lease_ms=10))
    assert [type(e) for e in core.tick(10)] == [Released]


def test_a_lease_extended_to_zero_gives_the_message_back_at_once() -> None:
    core = one_queue()
    core.publish(b"1", b"2")
    ((_, t),) = core.take(1)
    events, results = core.settle(Settlement("extend", t, lease_ms=0))
    assert (events, results) == ([Released(1, START_MS, [1], [0], Cause.RELEASED)], [START_MS])
    assert core.lease()[0].seqs == [1, 2]


def test_extending_keeps_the_token_and_the_consumer() -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take(consumer="me")
    core.settle(Settlement("extend", t, lease_ms=1000))
    assert core.state.consumers == {1: "me"}
    assert core.ack(t)[1] == [0]


@pytest.mark.parametrize("lease_ms", [None, -1, MAX_LEASE_MS + 1])
def test_an_extension_must_say_how_long_within_the_range(lease_ms: int | None) -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take()
    events, results = core.settle(Settlement("extend", t, lease_ms=lease_ms))
    assert (events, codes(results)) == ([], ["invalid_input"])


def test_extensions_to_one_deadline_are_one_event() -> None:
    core = one_queue()
    core.publish(b"1", b"2", b"3")
    tokens = [t for _, t in core.take()]
    spans = (1000, 2000, 1000)
    events, _ = core.settle(*[Settlement("extend", t, lease_ms=ms) for t, ms in zip(tokens, spans, strict=True)])
    assert events == [
        Extended(1, START_MS, [1, 3], START_MS + 1000),
        Extended(1, START_MS, [2], START_MS + 2000),
    ]


def test_a_lease_of_zero_is_a_receive_that_comes_back_with_the_next_tick() -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take(lease_ms=0)
    assert codes(core.ack(t)[1]) == ["lease_stale"]
    assert core.tick() == [Released(1, START_MS, [1], [0], Cause.LEASE_EXPIRED)]
    assert core.lease()[0].receives == [2]


# Reject, and all together


def test_a_rejected_message_dies_at_once_with_its_reason() -> None:
    core = one_queue(max_receives=None)
    core.publish(b"1", b"2", b"3")
    (_, one), (_, two), (_, three) = core.take()
    events, results = core.settle(
        Settlement("reject", one, reason="bad"), Settlement("reject", two), Settlement("reject", three, reason="bad")
    )
    assert events == [
        DeadLettered(1, START_MS, [1, 3], Cause.REJECTED, "bad"),
        DeadLettered(1, START_MS, [2], Cause.REJECTED, ""),
    ]
    assert results == [0, 0, 0]


def test_a_reason_of_too_many_bytes_is_refused() -> None:
    core = one_queue()
    core.publish(b"1")
    ((_, t),) = core.take()
    assert codes(core.settle(Settlement("reject", t, reason="é" * 513))[1]) == ["invalid_input"]
    assert core.settle(Settlement("reject", t, reason="é" * 512))[1] == [0]


def test_a_mixed_batch_is_one_event_per_kind() -> None:
    core = one_queue()
    core.put("dead")
    core.put(dead_letter_queue="dead")
    core.publish(*[b"x"] * 5)
    tokens = [t for _, t in core.take()]
    events, results = core.settle(
        Settlement("reject", tokens[0], reason="r"),
        Settlement("release", tokens[1], delay_ms=100),
        Settlement("ack", tokens[2]),
        Settlement("extend", tokens[3], lease_ms=500),
        Settlement("ack", tokens[4]),
        Settlement("ack", tokens[0]),
    )
    assert events == [
        Acked(1, START_MS, [3, 5], [LEASE_1 + 2, LEASE_1 + 4]),
        Released(1, START_MS, [2], [START_MS + 100], Cause.RELEASED),
        Extended(1, START_MS, [4], START_MS + 500),
        Moved(1, START_MS, [1], Cause.REJECTED, 2, 6, "r"),
    ]
    assert codes(results) == [0, START_MS + 100, 0, START_MS + 500, 0, "lease_stale"]


def test_a_lease_the_journal_does_not_take_leaves_everything_as_it_was() -> None:
    core = one_queue()
    core.publish(b"1", draft(group="g"), draft(group="g"), b"4", draft(priority=9))
    refused = core.lease_refused(3)
    assert refused == [5, 1, 2]
    assert core.lease(10)[0].seqs == [5, 1, 2, 3, 4]


@pytest.mark.parametrize("wrong", ["", "zz" * 14, "ab" * 13, "ab" * 15, " a" * 14, "ab" * 13 + "  ", "é" * 28])
def test_handles_are_parsed_together_or_not_at_all(wrong: str) -> None:
    good = [token(1 << 40 | 7, 5), token(1 << 40 | 8, 6)]
    assert parse_tokens(good) == ([5, 6], [1 << 40 | 7, 1 << 40 | 8])
    assert parse_tokens([*good, wrong]) is None
    assert parse_tokens([*good, good[0]]) is None


# What connections hold


@pytest.mark.parametrize("action", ["ack", "release", "reject", "extend"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_message_that_a_connection_names_twice_is_settled_once(action: str, gone: bool) -> None:
    """Also if others that it names are not held any more, or the first time was with an older lease."""
    core = one_queue()
    core.publish(b"1", b"2", b"3")
    held = [(event.first_lease + at, seq) for event in core.lease(3) for at, seq in enumerate(event.seqs)]
    (first_lease, first), (second_lease, second), (third_lease, third) = held
    if gone:
        core.run(lease_commands.settle_held(core.state, [(1, 1)], [third], [third_lease], "ack", core.now_ms))
    seqs = [second, first, first, third, second, first]
    leases = [second_lease, 7, first_lease, third_lease, second_lease, first_lease]
    (event,) = core.run(
        lease_commands.settle_held(core.state, [(1, len(seqs))], seqs, leases, action, core.now_ms, 1_000)
    )
    assert sorted(event.seqs) == ([first, second] if gone else [first, second, third])
    check_invariants(core.state)


# Coming back


def held(core: Core, action: str) -> list[Event]:
    """All that a session has leased, settled alike."""
    (event,) = core.lease()
    assert isinstance(event, Leased)
    leases = range(event.first_lease, event.first_lease + len(event.seqs))
    counts = [(event.queue, len(event.seqs))]
    return core.run(settle_held(core.state, counts, event.seqs, leases, action, core.now_ms))


@pytest.mark.parametrize(
    ("after", "action", "waits"),
    [
        ("any", "release", True),
        ("any", "fail", True),
        ("return", "release", True),
        ("return", "fail", False),
        ("failure", "release", False),
        ("failure", "fail", True),
    ],
)
def test_what_comes_back_waits_longer_each_time(after: str, action: str, waits: bool) -> None:
    core = one_queue(retry_delay_ms=100, max_retry_delay_ms=250, retry_delay_after=after, max_receives=None)
    core.publish(b"1")
    for expected_ms in (100, 200, 250, 250):
        (released,) = held(core, action)
        assert released.due_ms == [core.now_ms + expected_ms if waits else 0]  # type: ignore[union-attr]
        core.tick(expected_ms - 1)
        assert core["q"].ready == (not waits)
        core.tick(1)
        assert core["q"].ready == 1
    check_invariants(core.state)


def test_a_token_that_is_released_waits_as_the_queue_says_unless_it_says_it_itself() -> None:
    core = one_queue(retry_delay_ms=100, lease_ms=1000)
    core.publish(b"1", b"2")
    (_, first), (_, second) = core.take()
    (released,), _ = core.settle(Settlement("release", first), Settlement("release", second, delay_ms=7))
    assert released.due_ms == [core.now_ms + 100, core.now_ms + 7]  # type: ignore[union-attr]
    core.take(1)
    core.tick(100)
    core.take()
    events = core.tick(1000)
    assert [event.due_ms for event in events if isinstance(event, Released)] == [[core.now_ms + 200] * 2]


@pytest.mark.parametrize("action", ["release", "fail", "expire", "token"])
def test_a_message_that_comes_back_to_a_full_queue_pushes_out_the_oldest(action: str) -> None:
    core = one_queue(max_messages=2, overflow="drop_oldest", lease_ms=1000)
    core.publish(b"1", b"2", b"3")
    if action == "token":
        ((_, text),) = core.take(1)
        core.publish(b"4")
        core.settle(Settlement("release", text))
    else:
        (event,) = core.lease(1)
        assert isinstance(event, Leased)
        core.publish(b"4")
        if action == "expire":
            core.tick(2000)
        else:
            core.run(settle_held(core.state, [(1, 1)], event.seqs, [event.first_lease], action, core.now_ms))
    assert (core["q"].ready, list(core["q"].dead)) == (2, [1, 2]), "the one that came back was the oldest"
    check_invariants(core.state)
