"""Stays of messages in queues, from events written by hand."""

from __future__ import annotations

from typing import Any

from laneway.pipeline.stays import stays
from tests.pipeline.conftest import MakeEvents
from tests.pipeline.events import at, row

DEAD = {"queue": "dead", "queue_number": 2, "tier": "low"}


def test_a_message_is_followed_through_its_queues(make_events: MakeEvents) -> None:
    moves = {"target_vhost": "/", "target_queue": "dead", "target_message": 11}
    back = {"target_vhost": "/", "target_queue": "orders", "target_message": 12}
    rows = [
        row(0, "queue_put", **DEAD),
        row(0, "queue_put"),
        row(1, "published", 10, priority=7, visible_at=3),
        row(4, "leased", 10, receive_count=1, consumer="a"),
        row(5, "released", 10, reason="released"),
        row(6, "leased", 10, receive_count=2, consumer="b"),
        row(7, "moved", 10, reason="max_receives", **moves),
        row(9, "moved", 11, message_id="m10", reason="redriven", **DEAD, **back),
        row(11, "leased", 12, message_id="m10", receive_count=1, consumer="c"),
        row(13, "acked", 12, message_id="m10"),
    ]
    found = {one.message: one for one in stays(make_events(rows)).collect()}
    assert found.keys() == {10, 11, 12}
    assert {one.message_id for one in found.values()} == {"m10"}
    assert {one.priority for one in found.values()} == {7}
    first, dead, again = found[10], found[11], found[12]
    assert (first.began, first.began_at, first.visible_at) == ("published", utc(1), utc(3))
    assert [(one.at, one.receive_count, one.consumer) for one in first.leases] == [(utc(4), 1, "a"), (utc(6), 2, "b")]
    assert (first.ended, first.ended_at, first.ended_reason) == ("moved", utc(7), "max_receives")
    assert (dead.queue, dead.queue_number, dead.tier) == ("dead", 2, "low")
    assert (dead.began, dead.began_at, dead.visible_at, dead.leases) == ("max_receives", utc(7), utc(7), [])
    assert (dead.ended, dead.ended_at, dead.ended_reason) == ("moved", utc(9), "redriven")
    assert (again.queue, again.began, again.began_at, again.enqueued_at) == ("orders", "redriven", utc(9), utc(1))
    assert (again.ended, again.ended_at, len(again.leases)) == ("acked", utc(13), 1)


def utc(seconds: float) -> Any:
    """As Spark hands it to Python: without its zone, in that of the machine."""
    return at(seconds).astimezone().replace(tzinfo=None)


def test_a_purge_takes_what_waits_below_its_number(make_events: MakeEvents) -> None:
    rows = [
        row(0, "queue_put"),
        *(row(1, "published", number) for number in (1, 2, 3, 4)),
        row(2, "leased", 2, receive_count=1),
        row(2, "leased", 3, receive_count=1),
        row(3, "queue_purged", 4),  # 1 goes; 2 and 3 are leased; 4 is the first number kept
        row(4, "released", 3),
        row(5, "queue_purged", 4),  # 3 waits again, and goes
        row(6, "queue_purged", 4),
    ]
    found = {one.message: (one.ended, one.ended_at) for one in stays(make_events(rows)).collect()}
    assert found == {1: ("purged", utc(3)), 2: (None, None), 3: ("purged", utc(5)), 4: (None, None)}


def test_a_deleted_queue_takes_all_and_another_of_its_name_does_not(make_events: MakeEvents) -> None:
    goes = {"reason": "expired", "target_vhost": "/", "target_queue": "dead"}
    rows = [
        row(0, "queue_put", **DEAD),
        row(1, "published", 1),
        row(2, "moved", 1, target_message=2, **goes),
        row(3, "queue_deleted", **DEAD),
        row(4, "queue_put", **{**DEAD, "queue_number": 3}),
        row(5, "published", 3),
        row(6, "moved", 3, target_message=4, **goes),
        row(7, "leased", 9, receive_count=3),  # its beginning is not in the history
    ]
    found = {one.message: one for one in stays(make_events(rows)).collect()}
    assert (found[2].queue_number, found[2].ended, found[2].ended_at) == (2, "deleted", utc(3))
    assert (found[4].queue_number, found[4].ended) == (3, None)
    assert (found[9].began, found[9].began_at, found[9].priority, found[9].ended) == (None, None, None, None)


FAR = {"partition": 1, "queue": "far", "queue_number": 7, "tier": "low"}


def test_a_message_that_departed_stays_where_it_arrives(make_events: MakeEvents) -> None:
    bound = {"target_vhost": "/", "target_queue": "far", "target_partition": 1, "target_message": 11}
    back = {"target_vhost": "/", "target_queue": "orders", "target_partition": 0, "target_message": 51}
    rows = [
        row(1, "published", 10, priority=7),
        row(3, "moved", 10, reason="expired", **bound),
        row(4, "arrived", 50, message_id="m10", reason="expired", sender=0, priority=7, **FAR),
        row(4, "told", 50, **FAR),
        row(9, "moved", 50, message_id="m10", reason="redriven", **FAR, **back),
        row(10, "arrived", 12, message_id="m10", reason="redriven", sender=1, priority=7),
        row(11, "leased", 12, message_id="m10", receive_count=1),
        row(12, "acked", 12, message_id="m10"),
    ]
    found = {(one.partition, one.message): one for one in stays(make_events(rows)).collect()}
    assert found.keys() == {(0, 10), (1, 50), (0, 12)}, "none in an outbox, none twice"
    assert {(one.message_id, one.priority) for one in found.values()} == {("m10", 7)}
    assert [(one.began, one.ended, one.ended_reason) for one in found.values()] == [
        ("published", "moved", "expired"),
        ("redriven", "acked", None),
        ("expired", "moved", "redriven"),
    ]
    there = found[1, 50]
    assert (there.queue, there.queue_number, there.tier, there.began_at) == ("far", 7, "low", utc(4))


def test_one_that_came_back_is_dead_where_it_left(make_events: MakeEvents) -> None:
    bound = {"target_vhost": "/", "target_queue": "far", "target_partition": 1, "target_message": 11}
    rows = [
        row(1, "published", 10),
        row(3, "moved", 10, reason="expired", **bound),
        row(5, "arrived", 12, message_id="m10", reason="returned", sender=1, priority=5),
    ]
    found = {one.message: (one.began, one.ended, one.ended_reason) for one in stays(make_events(rows)).collect()}
    assert found == {10: ("published", "moved", "expired"), 12: ("returned", "dead_lettered", "returned")}
