"""The audit: each check on a history written by hand, whole histories of the real core, and damage done to them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from laneway.core.message import Draft, Properties, message_id
from laneway.core.queue import TOTALS, Queue
from laneway.pipeline.jobs.audit import audit
from laneway.pipeline.jobs.lives import FATES
from tests.pipeline.events import Row, filled, row
from tests.pipeline.recorded import Recorded, frame, traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

SMALL_BLOCK = 5

Found = list[tuple[str, int, int | None, str]]  # type, position, message, words


def published(time: float, message: int, **given: Any) -> Row:
    return row(time, "published", message, **given)


def leased(time: float, message: int, lease: int, count: int = 1, **given: Any) -> Row:
    return row(time, "leased", message, lease=lease, receive_count=count, **given)


def acked(time: float, message: int, lease: int) -> Row:
    return row(time, "acked", message, lease=lease)


def purged(time: float, kept: int) -> Row:
    return row(time, "queue_purged", kept, message_id=None)


def moved(time: float, message: int, to: int, kind: str = "moved", **given: Any) -> Row:
    target = {"target_message": to, "target_vhost": "/", "target_queue": "dead", "target_queue_number": 2}
    return row(time, kind, message, reason="rejected", **target, **given)


def batch(time: float, position: int, first_lease: int, *messages: int, count: int = 1, **given: Any) -> list[Row]:
    """Leased in one commit."""
    numbered = enumerate(messages)
    return [leased(time, m, first_lease + i, count, position=position, index=i, **given) for i, m in numbered]


def released(time: float, message: int, **given: Any) -> Row:
    return row(time, "released", message, reason="released", **given)


def opened() -> Row:
    return row(0, "opened", queue=None, vhost=None, queue_number=None)


def ids(number: int) -> str:
    return message_id(0, 0, number)


DEAD = {"queue": "dead", "queue_number": 2}
GROUPED = {"group": "g"}

#: Histories by hand, each with what is wrong with it: (type, position, message).
CASES: dict[str, tuple[list[Row], list[tuple[str, int, int | None]]]] = {
    "one end each": (
        [
            published(0, 1),
            published(0, 2),
            leased(1, 1, 10),
            leased(1, 2, 11),
            row(2, "released", 2, reason="released"),
            acked(2, 1, 10),
            leased(3, 2, 12, 2),
            row(3, "extended", 2),
            acked(4, 2, 12),
        ],
        [],
    ),
    "double ack": ([published(0, 1), leased(1, 1, 10), acked(2, 1, 10), acked(3, 1, 10)], [("double_end", 4, 1)]),
    "expired after an ack": (
        [published(0, 1), leased(1, 1, 10), acked(2, 1, 10), row(3, "removed", 1, reason="expired")],
        [("double_end", 4, 1)],
    ),
    "delivered after an ack": (
        [published(0, 1), leased(1, 1, 10), acked(2, 1, 10), leased(3, 1, 11, 2)],
        [("delivered_after_end", 4, 1)],
    ),
    "released after an ack": (
        [published(0, 1), leased(1, 1, 10), acked(2, 1, 10), row(3, "released", 1)],
        [("event_after_end", 4, 1)],
    ),
    "an ack of an earlier lease": (
        [published(0, 1), leased(1, 1, 10), row(2, "released", 1), leased(3, 1, 11, 2), acked(4, 1, 10)],
        [("stale_ack", 5, 1)],
    ),
    "an ack of what nobody holds": (
        [published(0, 1), leased(1, 1, 10), row(2, "released", 1), acked(3, 1, 10)],
        [("not_leased", 4, 1)],
    ),
    "leased by two": ([published(0, 1), leased(1, 1, 10), leased(2, 1, 11, 2)], [("delivered_twice", 3, 1)]),
    "the dead rise": (
        [published(0, 1), row(1, "dead_lettered", 1, reason="expired"), leased(2, 1, 10)],
        [("delivered_dead", 3, 1)],
    ),
    "never published": ([opened(), leased(1, 1, 10), acked(2, 1, 10)], [("never_published", 2, 1)]),
    "a number given twice": ([published(0, 1), published(1, 1)], [("published_twice", 2, 1)]),
    "a number left out": ([published(0, 1), published(1, 4)], [("number_gap", 2, None)]),
    "the first number left out": ([published(0, 2)], [("number_gap", 1, None)]),
    "receive counts jump": (
        [published(0, 1), leased(1, 1, 10), row(2, "released", 1), leased(3, 1, 11, 3)],
        [("receive_count", 4, 1)],
    ),
    "the first receive is the second": ([published(0, 1), leased(1, 1, 10, 2)], [("receive_count", 2, 1)]),
    "acked in another queue": (
        [published(0, 1), leased(1, 1, 10), acked(2, 1, 10) | DEAD],
        [("wrong_queue", 3, 1)],
    ),
    "a commit is missing": (
        [published(0, 1), leased(1, 1, 10, position=5), acked(2, 1, 10) | {"position": 6}],
        [("position_gap", 2, None)],
    ),
    "a row is missing inside a commit": (
        [published(0, 1), opened() | {"position": 2, "index": 2}, opened() | {"position": 2}],
        [("row_gap", 2, None)],
    ),
    "a row comes twice": (
        [published(0, 1), opened() | {"position": 2}, opened() | {"position": 2}],
        [("position_double", 2, None)],
    ),
    "purged are those that wait": (
        [
            published(0, 1),
            published(0, 2),
            published(0, 3, visible_at=100),
            leased(1, 1, 10),
            purged(2, 4),
            published(3, 4),
            leased(4, 4, 11),
            acked(5, 1, 10),
        ],
        [],
    ),
    "delivered after a purge": ([published(0, 1), purged(1, 2), leased(2, 1, 10)], [("delivered_after_end", 3, 1)]),
    "expired after a purge": (
        [published(0, 1), purged(1, 2), row(2, "removed", 1, reason="expired")],
        [("double_end", 3, 1)],
    ),
    "a queue goes with all it has": (
        [
            published(0, 1),
            published(0, 2),
            published(0, 3),
            leased(1, 1, 10),
            leased(1, 2, 11),
            acked(2, 2, 11),
            row(3, "queue_deleted"),
        ],
        [],
    ),
    "published into a deleted queue": ([row(0, "queue_deleted"), published(1, 1)], [("after_queue_deleted", 2, 1)]),
    "acked after its queue": (
        [published(0, 1), leased(1, 1, 10), row(2, "queue_deleted"), acked(3, 1, 10)],
        [("after_queue_deleted", 4, 1)],
    ),
    "moved: an end here and a beginning there": (
        [
            published(0, 1),
            leased(1, 1, 10),
            moved(2, 1, 2, "copied"),
            moved(2, 1, 3),
            leased(3, 2, 11, **DEAD),
            acked(4, 2, 11) | DEAD,
        ],
        [],
    ),
    "delivered here after it was moved": (
        [published(0, 1), moved(1, 1, 2), leased(2, 1, 10)],
        [("delivered_after_end", 3, 1)],
    ),
    "a later one first": (
        [published(0, 1), published(0, 2), leased(1, 2, 10), leased(2, 1, 11)],
        [("order", 3, 1)],
    ),
    "a later one first, and the earlier one never": (
        [published(0, 1), published(0, 2), leased(1, 2, 10)],
        [("order", 3, 1)],
    ),
    "a released one goes back to its place": (
        [
            published(0, 1),
            published(0, 2),
            leased(1, 1, 10),
            leased(2, 2, 11),
            row(3, "released", 1),
            leased(4, 1, 12, 2),
        ],
        [],
    ),
    "groups, delays and tenants have an order of their own": (
        [
            published(0, 1, group="g"),
            published(0, 2, visible_at=3),
            published(0, 3, tenant="t"),
            published(0, 4),
            leased(1, 4, 10),
            leased(2, 1, 11),
            leased(4, 2, 12),
            leased(4, 3, 13),
        ],
        [],
    ),
    "inside a tenant there is an order": (
        [published(0, 1, tenant="t"), published(0, 2, tenant="t"), leased(1, 2, 10), leased(2, 1, 11)],
        [("order", 3, 1)],
    ),
    "what is no tenant's goes before a later one of a tenant": (
        [published(0, 1), published(0, 2, tenant="t"), leased(1, 2, 10), leased(2, 1, 11)],
        [("order", 3, 1)],
    ),
    "a lower priority first, of another tenant": (
        [published(0, 1, priority=9, tenant="t"), published(0, 2, priority=1), opened(), leased(1, 2, 10)],
        [("inversion", 4, 2)],
    ),
    "a lower priority first": (
        [published(0, 1, priority=1), published(0, 2, priority=9), opened(), leased(1, 1, 10), leased(2, 2, 11)],
        [("inversion", 4, 1)],
    ),
    "a lower priority first, and the higher one never": (
        [published(0, 1, priority=0), published(0, 2, priority=1), opened(), leased(1, 1, 10)],
        [("inversion", 4, 1)],
    ),
    "a lower priority while the higher one was not durable yet": (
        [published(0, 1, priority=1), published(0, 2, priority=9), leased(1, 1, 10), leased(2, 2, 11)],
        [],
    ),
    "a lower priority once the higher ones are leased, gone or purged": (
        [
            published(0, 1, priority=1),
            published(0, 2, priority=1),
            published(0, 3, priority=9),
            published(0, 4, priority=8),
            opened(),
            opened(),
            leased(1, 3, 10),
            row(1, "removed", 4, reason="expired"),
            leased(1, 1, 11),
            published(2, 5, priority=7),
            opened(),
            purged(3, 6),
            published(4, 6, priority=0),
            leased(5, 6, 12),
        ],
        [],
    ),
    "another queue has its own": (
        [
            published(0, 1, priority=9),
            opened(),
            opened(),
            published(1, 2, priority=1, **DEAD),
            leased(2, 2, 10, **DEAD),
        ],
        [],
    ),
    "leased before it was visible": (
        [published(0, 1, visible_at=3), leased(2.635, 1, 10)],
        [("early", 2, 1)],
    ),
    "leased again before it was visible": (
        [published(0, 1), leased(1, 1, 10), released(2, 1, visible_at=5), leased(4, 1, 11, 2)],
        [("early", 4, 1)],
    ),
    "leased as soon as it was visible": (
        [published(0, 1, visible_at=3), leased(3, 1, 10), released(4, 1, visible_at=5), leased(5, 1, 11, 2)],
        [],
    ),
    "a released one still waited when a later one was first leased": (
        [published(0, 1), published(0, 2), leased(1, 1, 10), released(2, 1), leased(3, 2, 11), leased(4, 1, 12, 2)],
        [("order", 5, 1)],
    ),
    "one released with a delay may be overtaken": (
        [published(0, 1), published(0, 2), leased(1, 1, 10), released(2, 1, visible_at=9), leased(3, 2, 11)],
        [],
    ),
    "a lower priority while a released one of a higher priority waited": (
        [
            published(0, 1, priority=9),
            published(0, 2, priority=1),
            leased(1, 1, 10),
            released(2, 1),
            opened(),
            leased(3, 2, 11),
        ],
        [("inversion", 6, 2)],
    ),
    "a group's messages of a tenant do not wait for the tenant's turn": (
        [published(0, 1, tenant="t"), published(0, 2, tenant="t", **GROUPED), leased(1, 2, 10)],
        [],
    ),
    "a group, batch after batch": (
        [
            published(0, 1, priority=1, **GROUPED),
            published(0, 2, priority=9, **GROUPED),
            published(0, 3, visible_at=6, **GROUPED),
            *batch(1, 4, 10, 1, 2),
            released(2, 1, position=5),
            acked(3, 2, 11) | {"position": 6},
            leased(4, 1, 12, 2, position=7),
            row(5, "dead_lettered", 1, reason="rejected", position=8),
            leased(6, 3, 13, position=9),
        ],
        [],
    ),
    "groups of two names, or in two queues, know nothing of each other": (
        [
            published(0, 1, **GROUPED),
            published(0, 2, group="h"),
            published(0, 3, **GROUPED | DEAD),
            leased(1, 3, 10, **DEAD),
            leased(1, 1, 11),
            leased(1, 2, 12),
        ],
        [],
    ),
    "a later one of a group first": (
        [published(0, 1, **GROUPED), published(0, 2, **GROUPED), leased(1, 2, 10)],
        [("group_order", 3, 1)],
    ),
    "a later one of a group first in its batch": (
        [published(0, 1, **GROUPED), published(0, 2, **GROUPED), *batch(1, 3, 10, 2, 1)],
        [("group_order", 3, 1)],
    ),
    "the first of a group is delayed, and the next one leased": (
        [published(0, 1, visible_at=9, **GROUPED), published(0, 2, **GROUPED), leased(1, 2, 10)],
        [("group_order", 3, 1)],
    ),
    "a group's next one while its elder is held": (
        [published(0, 1, **GROUPED), published(0, 2, **GROUPED), leased(1, 1, 10), leased(2, 2, 11)],
        [("group_held", 4, 2)],
    ),
    "a released member goes out while a later one of its batch is held": (
        [
            published(0, 1, **GROUPED),
            published(0, 2, **GROUPED),
            *batch(1, 3, 10, 1, 2),
            released(2, 1, position=4),
            leased(3, 1, 12, 2, position=5),
            acked(4, 1, 12) | {"position": 6},
            released(5, 2, position=7),
            leased(6, 2, 13, 2, position=8),
        ],
        [],
    ),
    "two that were released together go out together again": (
        [
            published(0, 1, **GROUPED),
            published(0, 2, **GROUPED),
            *batch(1, 3, 10, 1, 2),
            released(2, 1, position=4),
            released(2, 2, position=5),
            leased(3, 1, 12, 2, position=6),
            leased(3, 2, 13, 2, position=6, index=1),
        ],
        [],
    ),
    "a released member goes out while an earlier one of its batch is held": (
        [
            published(0, 1, **GROUPED),
            published(0, 2, **GROUPED),
            *batch(1, 3, 10, 1, 2),
            released(2, 2, position=4),
            leased(3, 2, 12, 2, position=5),
        ],
        [("group_held", 5, 2)],
    ),
    "a released member goes out while an earlier one of its batch is held again": (
        [
            published(0, 1, **GROUPED),
            published(0, 2, **GROUPED),
            *batch(1, 3, 10, 1, 2),
            released(2, 1, position=4),
            leased(3, 1, 12, 2, position=5),
            released(4, 2, position=6),
            leased(5, 2, 13, 2, position=7),
        ],
        [("group_held", 7, 2)],
    ),
    "a released member is passed over by a new one": (
        [
            published(0, 1, **GROUPED),
            published(0, 2, **GROUPED),
            leased(1, 1, 10),
            released(2, 1, visible_at=9),
            leased(3, 2, 11),
        ],
        [("group_order", 5, 1)],
    ),
    "a released member is passed over by one of its batch": (
        [
            published(0, 1, **GROUPED),
            published(0, 2, **GROUPED),
            *batch(1, 3, 10, 1, 2),
            released(2, 1, position=4),
            released(2, 2, position=5),
            leased(3, 2, 12, 2, position=6),
        ],
        [("group_order", 6, 1)],
    ),
    "a dead letter takes its group along": (
        [
            published(0, 1, message_id=ids(1), **GROUPED),
            published(0, 2, message_id=ids(2), **GROUPED),
            *batch(1, 3, 10, 1, 2),
            moved(2, 1, 3, message_id=ids(1), position=4),
            moved(2, 2, 4, message_id=ids(2), position=5),
            leased(3, 4, 12, message_id=ids(2), position=6, **DEAD),
        ],
        [("group_order", 6, 3)],
    ),
}


SEEDS = (1, 2, 3)


class Judged:
    """All histories of this file, audited in one go, each as a partition of its own."""

    def __init__(self, spark: SparkSession, histories: dict[str, list[Row]], folder: Path, block_rows: int) -> None:
        rows = [one | {"partition": i} for i, history in enumerate(histories.values()) for one in history]
        names = list(histories)
        self.found: dict[str, Found] = {name: [] for name in names}
        self.fates: dict[str, dict[int, Any]] = {name: {} for name in names}
        with audit(frame(spark, rows), folder, block_rows=block_rows) as findings:
            self.verdict = findings.verdict.first()
            for one in findings.fates.collect():
                self.fates[names[one["partition"]]][one["queue_number"]] = one
            for one in findings.violations.collect():
                told = (one["type"], one["position"], one["message"], one["words"])
                self.found[names[one["partition"]]].append(told)
                assert one["time"] is not None or one["type"] in ("position_gap", "row_gap"), one
                assert one["message"] is None or None not in (one["message_id"], one["queue"]), one

    def types(self, name: str) -> set[str]:
        return {one[0] for one in self.found[name]}


@pytest.fixture(scope="module")
def cores() -> dict[str, Recorded]:
    """Histories of the core, with the last event at the time up to which all was done that time alone does."""
    made = {f"seed {seed}": traffic(seed, 400) for seed in SEEDS}
    made |= {f"groups, seed {seed}": traffic(seed, 400, grouped=0.8) for seed in SEEDS}
    for core in made.values():
        core.tick(0)
        core.put("last")
    return made


@pytest.fixture(scope="module", params=[1 << 20, SMALL_BLOCK], ids=["one block", "small blocks"])
def judged(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    cores: dict[str, Recorded],
    tmp_path_factory: pytest.TempPathFactory,
) -> Judged:
    histories = {name: filled(case) for name, (case, _) in CASES.items()}
    histories |= {name: core.rows for name, core in cores.items()}
    histories |= damaged(cores["seed 1"])
    histories |= swapped(taken_one_by_one())
    histories |= planted(GROUPED_CORE.rows, DELAYED_CORE.rows)
    return Judged(spark, histories, tmp_path_factory.mktemp("audit"), request.param)


def test_what_is_kept_is_not_planned_again(spark: SparkSession, tmp_path: Path) -> None:
    """Lives are put together once, with windows over the history: no check has that in its plan, or the history."""
    with audit(frame(spark, filled(CASES["one end each"][0])), tmp_path) as findings:
        plan = findings.fates._jdf.queryExecution().toString()
        assert "FileScan parquet" in plan and "Window" not in plan and "ExistingRDD" not in plan
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_what_is_skipped_where_no_queue_ended_or_all_have_tenants_is_not_missed(
    spark: SparkSession, tmp_path: Path, tenant: str | None
) -> None:
    history = [
        *(published(0, number, tenant=tenant) for number in (1, 2, 3)),
        *(leased(1, 2, 10), leased(2, 1, 11), released(3, 1), leased(4, 3, 12), acked(5, 3, 12), acked(6, 3, 12)),
    ]
    with audit(frame(spark, filled(history)), tmp_path) as findings:
        found = [(one["type"], one["position"], one["message"]) for one in findings.violations.collect()]
    assert found == [("order", 4, 1), ("order", 7, 1), ("double_end", 9, 3)]


def test_each_case_is_judged_as_it_was_by_hand(judged: Judged) -> None:
    told = {name: sorted(one[:3] for one in judged.found[name]) for name in CASES}
    assert told == {name: sorted(wrong) for name, (_, wrong) in CASES.items()}


def test_words_say_what_is_wrong(judged: Judged) -> None:
    def words(case: str) -> str:
        return judged.found[case][0][3]

    assert words("double ack") == "acked: it had been acked"
    assert words("delivered after a purge") == "leased: it had been purged"
    assert words("an ack of an earlier lease") == "acked: with lease 10, the last one was 11"
    assert words("receive counts jump") == "leased: receive count 3 after 1"
    assert words("a commit is missing") == "positions 2 to 4 are missing"
    assert words("a number left out") == "messages 2 to 3 were never published"
    assert words("leased before it was visible") == "leased: 365 ms before it was visible"
    later = "leased: a later message of group 'g', while this one waited"
    assert words("a later one of a group first") == later
    assert words("a group's next one while its elder is held") == "leased: an earlier message of group 'g' was held"
    assert words("a lower priority first") == "leased: priority 1 while 1 of a higher one waited"


def test_fates_of_the_cases(judged: Judged) -> None:
    def of(case: str, queue: int = 1) -> dict[str, int]:
        one = judged.fates[case][queue]
        return {name: one[name] for name in ("published", "moved_in", "copied_in", *FATES) if one[name]}

    assert of("one end each") == {"published": 2, "acked": 2}
    assert of("purged are those that wait") == {"published": 4, "acked": 1, "purged": 2, "leased": 1}
    assert of("a queue goes with all it has") == {"published": 3, "acked": 1, "queue_deleted": 2}
    there = "moved: an end here and a beginning there"
    assert of(there) == {"published": 1, "moved": 1}
    assert of(there, 2) == {"moved_in": 1, "copied_in": 1, "acked": 1, "waiting": 1}
    assert of("groups, delays and tenants have an order of their own") == {"published": 4, "leased": 4}


def test_histories_of_the_core_are_clean_and_counted_as_it_counts(judged: Judged, cores: dict[str, Recorded]) -> None:
    seen: Counter[str] = Counter()
    for name, core in cores.items():
        assert judged.found[name] == []
        fates = judged.fates[name]
        began = sum(one["published"] + one["moved_in"] + one["copied_in"] for one in fates.values())
        ends = {fate: sum(one[fate] for one in fates.values()) for fate in FATES}
        assert began == sum(ends.values()) == core.state.table.next_seq - 1
        for number, queue in core.state.queues.items():
            if number in fates:
                assert counted(fates[number]) == core_counts(queue)
            else:
                assert not any(queue.totals)
        seen.update(ends)
    assert all(seen[fate] for fate in FATES), f"no message ended so: {[fate for fate in FATES if not seen[fate]]}"


def counted(fates: Any) -> dict[str, int]:
    return {
        "published": fates["published"],
        "moved_in": fates["moved_in"] + fates["copied_in"],
        "acked": fates["acked"],
        "purged": fates["purged"],
        "deleted": fates["deleted"],
        "redriven": fates["redriven"],
        "dropped": fates["expired"] + fates["shed"] + fates["rejected"] + fates["max_receives"],
        "ready": fates["waiting"],
        "delayed": fates["delayed"],
        "leased": fates["leased"],
        "dead": fates["dead"],
    }


def core_counts(queue: Queue) -> dict[str, int]:
    totals = dict(zip(TOTALS, queue.totals, strict=True))
    there = {"ready": queue.ready, "delayed": queue.delayed, "leased": queue.leased, "dead": len(queue.dead)}
    ended = ("published", "moved_in", "acked", "purged", "deleted", "redriven", "dropped")
    return {name: totals[name] for name in ended} | there


def damaged(core: Recorded) -> dict[str, list[Row]]:
    """Its history, with damage done to the second half."""
    rows = core.rows
    middle = len(rows) // 2

    def first(kind: str, **has: Any) -> Row:
        return next(one for one in rows[middle:] if one["kind"] == kind and has.items() <= one.items())

    begun, ack, removed = first("published", index=0), first("acked"), first("removed")
    lease = next(one for one in rows if one["kind"] == "leased" and one["lease"] == ack["lease"])
    back = next(
        one
        for i, one in enumerate(rows[:middle])
        if one["kind"] == "released"
        and any(later["kind"] == "leased" and later["message"] == one["message"] for later in rows[i:])
    )
    return {
        "a publish removed": [one for one in rows if one is not begun],
        "a lease removed": [one for one in rows if one is not lease],
        "a release removed": [one for one in rows if one is not back],
        "an ack doubled": [*rows, ack | {"position": core.position + 1, "index": 0}],
        "a row doubled": [*rows, removed],
        "a commit removed": [one for one in rows if one["position"] != ack["position"]],
        "only the second half": [one for one in rows if one["position"] > rows[middle]["position"]],
    }


def test_planted_damage_is_found(judged: Judged) -> None:
    assert judged.types("a publish removed") & {"never_published", "number_gap"}
    assert judged.types("a lease removed") & {"not_leased", "receive_count"}
    assert "delivered_twice" in judged.types("a release removed")
    assert judged.types("an ack doubled") == {"double_end"}
    assert judged.types("a row doubled") == {"position_double", "double_end"}
    assert "position_gap" in judged.types("a commit removed")
    assert judged.verdict["verdict"] == "violated"


def test_history_from_some_position_on_is_no_violation(judged: Judged) -> None:
    assert judged.found["only the second half"] == []
    assert sum(one["from_before"] for one in judged.fates["only the second half"].values()) > 0
    assert not judged.verdict["is_whole"]


def taken_one_by_one(messages: int = 40) -> list[Row]:
    """Plain messages of two priorities."""
    core = Recorded()
    core.put("q")
    for i in range(messages):
        core.fill(1, priority=i % 2)
    for _ in range(messages):
        core.ack(core.take(1)[0][1])
    return core.rows


def swapped(rows: list[Row]) -> dict[str, list[Row]]:
    leases = [i for i, one in enumerate(rows) if one["kind"] == "leased"]

    return {
        "in order": rows,
        "order swapped": exchanged(rows, leases[3], leases[4]),
        "priority inverted": exchanged(rows, leases[19], leases[20]),
    }


def exchanged(rows: list[Row], first: int, second: int) -> list[Row]:
    """With the messages of two leases, and of their acks, exchanged."""
    out = list(rows)
    for offset in (0, 1):
        i, j = first + offset, second + offset
        out[i] = rows[i] | {name: rows[j][name] for name in ("message", "message_id")}
        out[j] = rows[j] | {name: rows[i][name] for name in ("message", "message_id")}
    return out


def test_swapped_order_and_inverted_priority_are_found(judged: Judged) -> None:
    leases = [one for one in taken_one_by_one() if one["kind"] == "leased"]
    assert judged.found["in order"] == []
    assert [one[:3] for one in judged.found["order swapped"]] == [
        ("order", leases[3]["position"], leases[3]["message"]),
    ]
    assert [one[:3] for one in judged.found["priority inverted"]] == [
        ("inversion", leases[19]["position"], leases[20]["message"]),
    ]


def of_groups(messages: int = 20) -> Recorded:
    """Messages of two groups in turn, each acked before the next one is leased."""
    core = Recorded()
    core.put("q")
    for i in range(messages):
        core.publish(Draft(b"x", properties=Properties(group="gh"[i % 2]), priority=i % 3))
    while taken := core.take(1):
        core.ack(taken[0][1])
    return core


def of_delays() -> Recorded:
    """Two messages that become visible 365 ms after one another, each leased at that moment."""
    core = Recorded()
    core.put("q")
    for delay_ms in (1_000, 1_365):
        core.publish(Draft(b"x", delay_ms=delay_ms))
    for wait_ms in (1_000, 365):
        core.tick(wait_ms)
        core.ack(core.take(1)[0][1])
    return core


GROUPED_CORE, DELAYED_CORE = of_groups(), of_delays()


def leases_of(rows: list[Row], *messages: int) -> list[int]:
    return [i for i, one in enumerate(rows) if one["kind"] == "leased" and (not messages or one["message"] in messages)]


def planted(grouped: list[Row], delayed: list[Row]) -> dict[str, list[Row]]:
    """Violations of groups and delays, in histories of the core that have none."""
    third, fifth = leases_of(grouped, 3, 5)
    late = list(grouped)  # the ack of message 3 comes only after the lease of message 5
    for name in ("position", "time"):
        late[third + 1] = late[third + 1] | {name: grouped[fifth][name]}
        late[fifth] = late[fifth] | {name: grouped[third + 1][name]}
    return {
        "groups": grouped,
        "a group swapped": exchanged(grouped, third, fifth),
        "an elder still held": late,
        "delays": delayed,
        "delays swapped": exchanged(delayed, *leases_of(delayed)),
    }


def test_planted_violations_of_groups_and_delays_are_found(judged: Judged) -> None:
    grouped, delayed = GROUPED_CORE.rows, DELAYED_CORE.rows
    third, first = leases_of(grouped, 3)[0], leases_of(delayed)[0]
    assert judged.found["groups"] == judged.found["delays"] == []
    assert ("group_order", grouped[third]["position"], 3) in [one[:3] for one in judged.found["a group swapped"]]
    assert ("group_held", grouped[third + 1]["position"], 5) in [one[:3] for one in judged.found["an elder still held"]]
    assert ("early", delayed[first]["position"], 2) in [one[:3] for one in judged.found["delays swapped"]]
    assert judged.types("a group swapped") <= {"group_order", "order", "inversion"}


def test_walks_with_groups_have_what_the_audit_looks_at(cores: dict[str, Recorded]) -> None:
    """Members that were leased again, that were delayed, and that came as dead letters or were redriven."""
    seen: Counter[str] = Counter()
    for core in (core for name, core in cores.items() if name.startswith("groups")):
        in_group = {one["message"] for one in core.rows if one.get("group")}
        for one in core.rows:
            if one["message"] in in_group if "message" in one else False:
                seen["again"] += one["kind"] == "leased" and one["receive_count"] > 1
                seen["delayed"] += "visible_at" in one and one["visible_at"] > one["time"]
                if one["kind"] in ("moved", "copied"):
                    in_group.add(one["target_message"])
                    seen[one["reason"]] += 1
    assert min(seen[name] for name in ("again", "delayed", "redriven", "max_receives", "expired")) > 10
