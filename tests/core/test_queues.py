"""Queues: created, changed, purged, deleted; and what their settings may be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from laneway.core import commands
from laneway.core.events import QueueDeleted, QueuePurged, QueuePut
from laneway.core.invariants import check_invariants
from laneway.core.message import Settlement
from laneway.core.queue import DELETED, PURGED
from laneway.core.settings import DAY_MS, RANGES, QueueSettings, check_queue_name, check_settings
from laneway.core.table import SLAB_ROWS
from laneway.errors import Conflict, InvalidInput, LeaseStale, LimitExceeded, QueueInUse
from tests.core.runner import START_MS, Core, draft, lines_run


def purge(core: Core, queue: str = "q") -> list[Any]:
    return core.run(commands.purge_queue(core.state, core[queue], core.now_ms))


def delete(core: Core, queue: str = "q", *, if_empty: bool = False) -> list[Any]:
    return core.run(commands.delete_queue(core.state, core[queue], core.now_ms, if_empty=if_empty))


# Settings


def test_the_defaults_are_those_of_the_documentation() -> None:
    s = check_settings(QueueSettings())
    assert (s.max_priority, s.lease_ms, s.retention_ms, s.max_receives) == (10, 30_000, 7 * DAY_MS, 5)
    assert (s.max_message_bytes, s.dead_letter_queue, s.overflow) == (256 * 1024, None, "reject")


@pytest.mark.parametrize("field", sorted(RANGES))
def test_each_setting_is_held_to_its_range(field: str) -> None:
    lowest, highest = RANGES[field]
    extra = {"max_priority": 255} if field == "default_priority" else {}
    for good in (lowest, highest):
        check_settings(QueueSettings(**extra, **{field: good}))
    for bad in (lowest - 1, highest + 1):
        with pytest.raises(InvalidInput, match=f"{field} must be from {lowest} to {highest}, not {bad}") as wrong:
            check_settings(QueueSettings(**extra, **{field: bad}))
        assert wrong.value.field == field


def test_the_default_priority_is_within_the_highest() -> None:
    check_settings(QueueSettings(max_priority=3, default_priority=3))
    with pytest.raises(InvalidInput, match="default_priority 4 is above max_priority 3"):
        check_settings(QueueSettings(max_priority=3, default_priority=4))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"dead_letter_queue": "d", "dead_letter_exchange": "x"}, "dead_letter_exchange"),
        ({"dead_letter_queue": "d", "dead_letter_exchange": ""}, "dead_letter_exchange"),
        ({"dead_letter_exchange": "x" * 256}, "dead_letter_exchange"),
        ({"dead_letter_exchange": "a\nb"}, "dead_letter_exchange"),
        ({"dead_letter_routing_key": "k"}, "dead_letter_routing_key"),
        ({"dead_letter_exchange": "", "dead_letter_routing_key": "k" * 256}, "dead_letter_routing_key"),
        ({"dead_letter_exchange": "", "dead_letter_routing_key": "\ud800"}, "dead_letter_routing_key"),
        ({"arguments": {"x": b"bytes"}}, "arguments"),
        ({"arguments": {"x": float("nan")}}, "arguments"),
        ({"arguments": {"x": [{"y": 1 << 64}]}}, "arguments"),
        ({"arguments": {"\ud800": 1}}, "arguments"),
        ({"arguments": {"x": "y" * 16_384}}, "arguments"),
    ],
)
def test_settings_that_do_not_fit_together_or_cannot_be_kept_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as wrong:
        check_settings(QueueSettings(**settings))
    assert wrong.value.field == field


@pytest.mark.parametrize("name", ["", "x" * 256, "é" * 128, "tab\t", "null\x00", "del\x7f", "\ud800"])
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_queue_name(name)


@pytest.mark.parametrize("name", ["x", "x" * 255, "é" * 127, "with space", "slash/and.dot", "日本", "/"])
def test_names_that_are_fine(name: str) -> None:
    assert check_queue_name(name) == name


def test_changes_name_the_field_that_is_wrong() -> None:
    core = Core()
    core.put(lease_ms=1000)
    assert commands.changed_settings(core["q"], {"max_priority": 3}) == QueueSettings(lease_ms=1000, max_priority=3)
    for changes, field in (
        ({"lease_ms": "long"}, "lease_ms"),
        ({"overflow": "explode"}, "overflow"),
        ({"colour": "red"}, "colour"),
        ({"max_receives": 1.5}, "max_receives"),
        ({"lease_ms": None}, "lease_ms"),
    ):
        with pytest.raises(InvalidInput) as wrong:
            commands.changed_settings(core["q"], changes)
        assert wrong.value.field == field
    assert commands.changed_settings(core["q"], {"max_receives": None}).max_receives is None


# Creating and changing


def test_creating_a_queue_is_one_event_and_again_none() -> None:
    core = Core()
    (event,) = core.put("q", lease_ms=1000)
    assert isinstance(event, QueuePut) and event.queue == 1
    assert core["q"].settings == QueueSettings(lease_ms=1000)
    core.now_ms += 5
    assert core.put("q", lease_ms=1000) == []
    (event,) = core.put("q", lease_ms=2000)
    assert event.queue == 1
    assert (core["q"].created_at_ms, core["q"].changed_at_ms) == (START_MS, START_MS + 5)


def test_one_name_in_two_virtual_hosts_is_two_queues() -> None:
    core = Core()
    for vhost in ("/", "other"):
        core.run(commands.put_queue(core.state, vhost, "q", QueueSettings(), START_MS, max_queues=9))
    assert sorted(core.state.by_name) == [("/", "q"), ("other", "q")]
    assert len(core.state.queues) == 2


def test_the_number_of_queues_is_limited() -> None:
    core = Core()
    core.put("a")
    with pytest.raises(LimitExceeded):
        core.run(commands.put_queue(core.state, "/", "b", QueueSettings(), START_MS, max_queues=1))
    core.run(commands.put_queue(core.state, "/", "a", QueueSettings(lease_ms=5), START_MS, max_queues=1))
    assert core["a"].settings.lease_ms == 5


@pytest.mark.parametrize(("target", "text"), [("q", "its own dead-letter queue"), ("missing", "does not exist")])
def test_a_dead_letter_queue_exists_and_is_another_one(target: str, text: str) -> None:
    core = Core()
    with pytest.raises(InvalidInput, match=text) as wrong:
        core.put("q", dead_letter_queue=target)
    assert wrong.value.field == "dead_letter_queue"


def test_the_server_may_allow_less_than_the_largest_message() -> None:
    core = Core()
    with pytest.raises(InvalidInput, match="above the server's 100"):
        core.run(
            commands.put_queue(
                core.state,
                "/",
                "q",
                QueueSettings(max_message_bytes=101),
                START_MS,
                max_queues=9,
                max_message_bytes=100,
            )
        )


def test_settings_change_while_messages_wait() -> None:
    core = Core()
    core.put(max_priority=10, max_receives=None)
    core.publish(draft(priority=9), draft(priority=1))
    core.take(1)
    core.tick(30_000)
    core.put(max_priority=3, max_receives=1, lease_ms=10)
    assert [seq for seq, _ in core.take()] == [1, 2]  # what was accepted before keeps its place
    core.tick(10)
    assert list(core["q"].dead) == [1, 2]


# Purging


def test_a_purge_removes_what_waits_and_nothing_else() -> None:
    core = Core()
    core.put()
    core.publish(
        b"leased", b"dead", b"ready", draft(delay_ms=1000), draft(group="g"), draft(group="g"), draft(priority=9)
    )
    (_, nine), (_, one), (_, two) = core.take(3)
    core.settle(Settlement("reject", two), Settlement("release", nine))
    (event,) = purge(core)
    assert event == QueuePurged(1, START_MS, 8)
    q = core["q"]
    assert (q.ready, q.leased, q.delayed, list(q.dead), q.bytes_waiting) == (0, 1, 0, [2], 0)
    assert q.totals[PURGED] == 5
    check_invariants(core.state)
    assert core.ack(one)[1] == [0]
    assert core.tick(100_000) == []


def test_a_purge_of_what_is_held_as_well_leaves_the_dead_alone() -> None:
    core = Core()
    core.put()
    core.publish(b"leased", b"dead", draft(group="g"), draft(group="g"), b"ready")
    (_, one), (_, two), (_, three) = core.take(3)
    core.settle(Settlement("reject", two))
    core.run(commands.purge_queue(core.state, core["q"], core.now_ms, leased=True))
    q = core["q"]
    assert (q.ready, q.leased, q.delayed, list(q.dead), q.bytes_waiting) == (0, 0, 0, [2], 0)
    assert (q.totals[PURGED], q.totals[DELETED]) == (2, 2)
    check_invariants(core.state)
    assert [type(told) for told in core.ack(one, three)[1]] == [LeaseStale, LeaseStale]
    assert core.tick(100_000) == [], "and no lease of them ends"
    core.publish(draft(group="g"))
    assert len(core.take(1)) == 1, "their group is free"


def test_a_purge_of_nothing_is_no_event() -> None:
    core = Core()
    core.put()
    core.publish(b"1")
    core.take()
    assert purge(core) == []


def test_a_purge_leaves_other_queues_alone() -> None:
    core = Core(extent_bytes=1 << 20)
    core.put("a")
    core.put("b")
    for _ in range(3):
        core.fill(SLAB_ROWS, "a")
        core.fill(SLAB_ROWS // 2, "b")
    purge(core, "a")
    assert (core["a"].ready, core["b"].ready) == (0, 3 * SLAB_ROWS // 2)
    check_invariants(core.state)


def test_a_hundred_thousand_messages_are_purged_slab_by_slab() -> None:
    core = Core(extent_bytes=1 << 30)
    core.put()
    for _ in range(10):
        core.fill(10_000)
    slabs = len(core.state.table.slabs)
    leased = [seq for seq, _ in core.take(3)]
    purge(core)
    q = core["q"]
    assert (q.ready, q.leased, q.bytes_waiting, q.totals[PURGED]) == (0, 3, 0, 99_997)
    assert slabs == 98 and len(core.state.table.slabs) == 2  # of the leased ones, and the unfinished last
    assert leased == [1, 2, 3]
    check_invariants(core.state)
    core.publish(b"new")
    assert [seq for seq, _ in core.take()] == [100_001]


@pytest.mark.parametrize("extent_bytes", [300, 5_000, 1 << 20])
def test_a_purge_counts_records_where_they_are(extent_bytes: int, either_size: str) -> None:
    core = Core(extent_bytes=extent_bytes)
    core.put()
    for size in (1, 3, 900, 17, 1200):
        core.fill(size)
    core.relocate(range(2, 1000, 3))
    core.settle(*[Settlement("release", t) for _, t in core.take(50)])
    purge(core)
    check_invariants(core.state)
    assert core.state.extents == {}


def test_a_purge_after_a_compaction_of_the_ends_of_a_slab_counts_the_middle(small_sizes: None) -> None:
    core = Core(extent_bytes=1 << 20)
    core.put()
    core.fill(7)
    core.paper.turn_over()
    core.fill(4)
    core.paper.turn_over()
    core.fill(4)
    core.paper.turn_over()
    core.relocate([8, 15])  # of slab 1, numbers 8 to 15, only the first and the last are in the new extent
    core.fill(8)
    purge(core)
    assert core.state.extents == {}
    check_invariants(core.state)


# Deleting


def test_deleting_a_queue_takes_everything_with_it() -> None:
    core = Core()
    core.put("dead")
    core.put(dead_letter_queue="dead")
    core.publish(b"1", draft(group="g"), draft(delay_ms=500), b"4", b"5", queue="dead")
    core.publish(b"6")
    core.settle(Settlement("reject", core.take()[0][1]))
    core.settle(Settlement("reject", core.take(1, "dead", consumer="me")[0][1]), queue="dead")
    core.take(2, "dead", consumer="me")
    core.put()  # no longer in use
    (deleted,) = delete(core, "dead")
    assert deleted == QueueDeleted(1, START_MS, deleted.document)
    named = msgspec.json.decode(deleted.document)  # whoever reads the history later learns what it was called
    assert (named["vhost"], named["name"], named["settings"]["tier"]) == ("/", "dead", "normal")
    assert [q.name for q in core.state.queues.values()] == ["q"]
    assert len(core.state.table) == 0 and core.state.extents == {} and core.state.consumers == {}
    assert core.state.stories == {} and core.state.moved == {}
    assert core["q"].dead_elsewhere == 0
    check_invariants(core.state)
    assert core.tick(100_000_000) == []


def test_a_queue_others_send_their_dead_letters_to_is_not_deleted() -> None:
    core = Core()
    core.put("dead")
    core.put("q", dead_letter_queue="dead")
    with pytest.raises(QueueInUse, match="other queues go to 'dead'"):
        delete(core, "dead")
    delete(core, "q")
    delete(core, "dead")
    assert core.state.queues == {}


@pytest.mark.parametrize("what", ["ready", "delayed", "leased", "dead"])
def test_a_queue_is_deleted_if_empty_only_when_it_is(what: str) -> None:
    core = Core()
    core.put()
    core.publish(draft(delay_ms=500) if what == "delayed" else b"1")
    if what in ("leased", "dead"):
        ((_, t),) = core.take()
        if what == "dead":
            core.settle(Settlement("reject", t))
    with pytest.raises(Conflict, match="not empty"):
        delete(core, if_empty=True)
    assert core["q"].name == "q"


def test_a_queue_of_the_same_name_is_a_new_one() -> None:
    core = Core()
    core.put()
    core.publish(draft(dedup_id="d"))
    ((_, old),) = core.take()
    delete(core, if_empty=False)
    core.put()
    assert core["q"].number == 2
    _, (result,) = core.publish(draft(dedup_id="d"))
    assert not result.duplicate
    assert core.ack(old)[1][0].code == "lease_stale"
    assert core.tick(30_000) == []
    assert [seq for seq, _ in core.take()] == [2]


def test_deleting_a_queue_looks_at_nothing_that_is_not_its_own() -> None:
    def lines_of_a_delete(others: int) -> int:
        core = Core(extent_bytes=1 << 20)
        core.put("dead")
        core.put()
        core.publish(b"1", draft(delay_ms=500))
        core.settle(Settlement("reject", core.take()[0][1]))
        for i in range(others):
            core.put(f"other{i}", dead_letter_queue=None if i % 2 else "dead")
            core.publish(*[draft()] * 20, draft(delay_ms=500), queue=f"other{i}")
            taken = core.take(20, f"other{i}")
            core.settle(*[Settlement("reject", t) for _, t in taken[:10]], queue=f"other{i}")
            core.run(commands.remember_key(core.state, core[f"other{i}"], "k", b"", ["id"], core.now_ms, max_ids=99))
        (event,) = commands.delete_queue(core.state, core["q"], core.now_ms, if_empty=False)
        count = lines_run(lambda: core.state.apply(event))
        check_invariants(core.state)
        return count + lines_run(lambda: list(commands.delete_queue(core.state, core["dead"], 0, if_empty=False)))

    assert lines_of_a_delete(80) - lines_of_a_delete(2) <= 2  # one slab more to pass over, for what is delayed


def test_settings_are_stored_as_they_are() -> None:
    core = Core()
    every = {name: RANGES[name][1] for name in RANGES}
    core.put("dead")
    rest = {"durable": True, "auto_delete": True, "keep_dead": False, "single_active_consumer": True, "tier": "low"}
    arguments = {"x-max-priority": 5, "x-nested": {"list": [1, -2.5, None, True, "é"]}}
    core.put("q", **every, **rest, overflow="drop_oldest", dead_letter_queue="dead", arguments=arguments)
    core.put("r", dead_letter_exchange="", dead_letter_routing_key="dead", overflow="reject_dead_letter")
    core.restart()
    expected = QueueSettings(**every, **rest, overflow="drop_oldest", dead_letter_queue="dead", arguments=arguments)
    assert core["q"].settings == expected
    assert core["r"].settings.dead_letter_exchange == ""
    assert core["r"].settings.dead_letter_routing_key == "dead"
    assert core["r"].settings.overflow == "reject_dead_letter"
    assert msgspec.json.decode(msgspec.json.encode(expected), type=QueueSettings) == expected
