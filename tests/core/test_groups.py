"""Groups: arrival order, the priority of the first member, and the turns that groups take."""

from __future__ import annotations

from laneway.core.invariants import check_invariants
from laneway.core.message import Settlement
from tests.core.runner import Core, draft


def grouped(*members: tuple[str, int], **settings: object) -> Core:
    """A queue with messages 1, 2, …, given as (group, priority)."""
    core = Core()
    core.put(**settings)
    if members:
        core.publish(*[draft(group=group, priority=priority) for group, priority in members])
    return core


def leased(core: Core, limit: int = 10) -> list[int]:
    return [seq for seq, _ in core.take(limit)]


def test_a_group_is_delivered_in_arrival_order_whatever_the_priorities() -> None:
    core = grouped(("g", 1), ("g", 9), ("g", 5))
    assert leased(core) == [1, 2, 3]


def test_group_is_held_while_a_batch_is_outstanding() -> None:
    core = grouped(("g", 5), ("g", 5), ("g", 5))
    (_, one), (_, two) = core.take(2)
    assert leased(core) == []
    core.ack(one)
    assert leased(core) == []
    core.ack(two)
    assert leased(core) == [3]


def test_an_earlier_member_that_came_back_is_leased_while_a_later_one_is_out() -> None:
    core = grouped(("g", 5), ("g", 5), ("g", 5))
    (_, one), (_, two) = core.take(2)
    core.settle(Settlement("release", one))
    ((first, again),) = core.take(10)
    assert first == 1
    core.settle(Settlement("release", two))
    assert leased(core) == []
    core.ack(again)
    assert leased(core) == [2, 3]


def test_a_later_member_that_came_back_waits_for_an_earlier_one_that_is_out() -> None:
    core = grouped(("g", 5), ("g", 5))
    (_, one), (_, two) = core.take(2)
    core.settle(Settlement("release", two))
    assert leased(core) == []
    core.ack(one)
    assert leased(core) == [2]


def test_a_lease_takes_as_many_of_a_group_as_it_can() -> None:
    core = grouped(("g", 5), ("h", 5), ("g", 5), ("h", 9), ("g", 5))
    assert leased(core, 3) == [1, 3, 5]
    assert leased(core) == [2, 4]


def test_a_group_that_came_back_lets_those_that_wait_go_first() -> None:
    for recover in ("replay", "snapshot", ""):
        core = grouped(("g", 5), ("g", 5), ("h", 5))
        core.settle(*[Settlement("release", token) for _, token in core.take(2)])
        core.publish(draft(group="i", priority=5))
        if recover:
            core.restart(recover)
        assert leased(core) == [3, 1, 2, 4]


def test_a_new_first_member_has_its_own_place_though_others_came_back() -> None:
    core = grouped(("g", 5), ("g", 5), ("h", 5))
    ((_, one),) = core.take(1)
    core.settle(Settlement("release", one))
    core.publish(draft(group="i", priority=5))
    taken = core.take(2)
    assert [seq for seq, _ in taken] == [3, 1]
    core.ack(*[token for _, token in taken])
    assert leased(core) == [2, 4]


def test_groups_run_in_parallel_and_beside_messages_of_no_group() -> None:
    core = grouped(("g", 5), ("g", 5), ("h", 5), ("", 5), ("h", 5))
    assert leased(core, 1) == [1]
    assert leased(core) == [3, 4, 5]
    assert leased(core) == []


def test_a_group_competes_with_the_priority_of_its_head() -> None:
    core = grouped(("g", 2), ("g", 9), ("", 5))
    assert leased(core, 1) == [3]
    assert leased(core, 1) == [1]


def test_within_a_batch_the_next_member_competes_with_its_own_priority() -> None:
    core = grouped(("g", 5), ("g", 1), ("", 3), ("g", 9), ("", 2))
    assert leased(core) == [1, 3, 5, 2, 4]


def test_members_of_equal_priority_go_by_number_among_others() -> None:
    core = grouped(("g", 5), ("", 5), ("g", 5), ("h", 5), ("", 5))
    assert leased(core) == [1, 2, 3, 4, 5]


def test_a_released_member_blocks_its_group_until_it_is_delivered_again() -> None:
    core = grouped(("g", 5), ("g", 5), ("g", 5))
    (_, one), (_, two) = core.take(2)
    core.settle(Settlement("release", one), Settlement("ack", two))
    assert leased(core) == [1, 3]


def test_a_member_released_with_a_delay_holds_up_those_behind_it() -> None:
    core = grouped(("g", 5), ("g", 5), ("", 5))
    ((_, one),) = core.take(1)
    core.settle(Settlement("release", one, delay_ms=1000))
    assert leased(core) == [3]
    core.tick(1000)
    assert leased(core) == [1, 2]


def test_a_delayed_head_holds_up_its_group() -> None:
    core = Core()
    core.put()
    core.publish(draft(group="g", delay_ms=1000), draft(group="g"))
    assert leased(core) == []
    core.tick(1000)
    assert leased(core) == [1, 2]


def test_a_batch_stops_before_a_delayed_member() -> None:
    core = Core()
    core.put()
    core.publish(draft(group="g"), draft(group="g", delay_ms=1000), draft(group="g"))
    assert leased(core) == [1]


def test_an_expired_lease_gives_the_group_back_in_order() -> None:
    core = grouped(("g", 5), ("g", 5), ("g", 5))
    core.take(2)
    core.tick(30_000)
    assert leased(core) == [1, 2, 3]


def test_a_member_that_dies_makes_way_for_the_next() -> None:
    core = grouped(("g", 5), ("g", 5))
    ((_, one),) = core.take(1)
    core.settle(Settlement("reject", one))
    assert leased(core) == [2]


def test_a_head_that_expires_is_no_longer_offered() -> None:
    core = Core()
    core.put()
    core.publish(draft(group="g", ttl_ms=100), draft(group="g"))
    core.tick(100)
    assert leased(core) == [2]


def test_a_dead_head_before_a_delayed_member_is_not_delivered() -> None:
    core = Core()
    core.put()
    core.publish(draft(group="g", ttl_ms=100), draft(group="g", delay_ms=5000))
    core.tick(100)
    assert leased(core) == []
    check_invariants(core.state)
    core.tick(4900)
    assert leased(core) == [2]


def test_expired_messages_of_no_group_are_not_delivered_among_groups() -> None:
    core = Core()
    core.put()
    core.publish(draft(), draft(ttl_ms=100), draft(), draft(group="g"))
    core.tick(100)
    assert leased(core) == [1, 3, 4]
    check_invariants(core.state)


def test_after_a_replay_no_message_is_delivered_twice_among_groups() -> None:
    core = Core()
    core.put(max_receives=None)
    core.publish(draft(), draft(ttl_ms=100), draft(), draft(), draft(group="g"))
    core.tick(100)
    core.ack(core.take(1)[0][1])
    ((_, three),) = core.take(1)
    core.settle(Settlement("release", three))
    core.restart()
    assert leased(core) == [3, 4, 5]
    check_invariants(core.state)


def test_a_group_goes_with_its_last_member() -> None:
    core = grouped(("g", 5))
    core.ack(core.take()[0][1])
    assert core["q"].groups == {} and core["q"].group_of == {} and core["q"].grouped_ready == {}


def test_groups_of_one_name_in_two_queues_know_nothing_of_each_other() -> None:
    core = grouped(("g", 5))
    core.put("other")
    core.publish(draft(group="g"), queue="other")
    assert leased(core) == [1]
    assert [seq for seq, _ in core.take(queue="other")] == [2]


def test_a_dead_letter_keeps_its_group_in_the_dead_letter_queue_and_back() -> None:
    core = Core()
    core.put("dead")
    core.put(dead_letter_queue="dead")
    core.publish(draft(group="g"), draft(group="g"), queue="q")
    core.settle(*[Settlement("reject", t) for _, t in core.take()])
    assert [seq for seq, _ in core.take(1, queue="dead")] == [3]
    assert core.take(queue="dead") == []
    core.tick(30_000)
    core.redrive([3, 4], "dead")
    assert leased(core, 1) == [5]
    assert leased(core) == []


def test_a_dead_letter_kept_in_its_queue_joins_its_group_again_when_redriven() -> None:
    core = grouped(("g", 5), ("g", 5), ("g", 5))
    (_, one), (_, two) = core.take(2)
    core.settle(Settlement("reject", one), Settlement("reject", two))
    core.redrive([1, 2])
    assert leased(core, 2) == [3, 4]
    assert leased(core) == []


def test_the_redriven_group_survives_a_snapshot_and_a_replay() -> None:
    for recover in ("replay", "snapshot"):
        core = grouped(("g", 5), ("g", 5))
        core.settle(*[Settlement("reject", t) for _, t in core.take()])
        core.restart(recover)
        core.redrive([1, 2])
        assert leased(core, 1) == [3]
        assert leased(core) == []


def test_offers_of_heads_that_died_do_not_pile_up(small_sizes: None) -> None:
    core = Core()
    core.put()
    for _ in range(100):
        core.publish(draft(group="g", ttl_ms=10))
        core.publish(draft(group="g", ttl_ms=20))
        core.tick(20)
    assert len(core["q"].heads) < 10
    core.publish(draft(group="g"))
    assert leased(core) == [201]
