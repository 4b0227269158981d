"""The audit: each check on a history written by hand, whole histories of the real core, and damage done to them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

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


def opened() -> Row:
    return row(0, "opened", queue=None, vhost=None, queue_number=None)


DEAD = {"queue": "dead", "queue_number": 2}

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
}


SEEDS = (1, 2, 3)


class Judged:
    """All histories of this file, audited in one go, each as a partition of its own."""

    def __init__(self, spark: SparkSession, histories: dict[str, list[Row]], block_rows: int) -> None:
        rows = [one | {"partition": i} for i, history in enumerate(histories.values()) for one in history]
        names = list(histories)
        self.found: dict[str, Found] = {name: [] for name in names}
        self.fates: dict[str, dict[int, Any]] = {name: {} for name in names}
        with audit(frame(spark, rows), block_rows=block_rows) as findings:
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
    for core in made.values():
        core.tick(0)
        core.put("last")
    return made


@pytest.fixture(scope="module", params=[1 << 20, SMALL_BLOCK], ids=["one block", "small blocks"])
def judged(request: pytest.FixtureRequest, spark: SparkSession, cores: dict[str, Recorded]) -> Judged:
    histories = {name: filled(case) for name, (case, _) in CASES.items()}
    histories |= {name: core.rows for name, core in cores.items()}
    histories |= damaged(cores["seed 1"])
    histories |= swapped(taken_one_by_one())
    return Judged(spark, histories, request.param)


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

    def exchanged(first: int, second: int) -> list[Row]:
        """With the messages of two leases, and of their acks, exchanged."""
        out = list(rows)
        for offset in (0, 1):
            i, j = leases[first] + offset, leases[second] + offset
            out[i] = rows[i] | {name: rows[j][name] for name in ("message", "message_id")}
            out[j] = rows[j] | {name: rows[i][name] for name in ("message", "message_id")}
        return out

    return {"in order": rows, "order swapped": exchanged(3, 4), "priority inverted": exchanged(19, 20)}


def test_swapped_order_and_inverted_priority_are_found(judged: Judged) -> None:
    leases = [one for one in taken_one_by_one() if one["kind"] == "leased"]
    assert judged.found["in order"] == []
    assert [one[:3] for one in judged.found["order swapped"]] == [
        ("order", leases[3]["position"], leases[3]["message"]),
    ]
    assert [one[:3] for one in judged.found["priority inverted"]] == [
        ("inversion", leases[19]["position"], leases[20]["message"]),
    ]
