"""slo: small cases counted by hand, and a made-up afternoon counted again without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from laneway.pipeline.jobs.slo import OBJECTIVES, measured, per_minute, per_queue
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from tests.pipeline.afternoon import afternoon
from tests.pipeline.conftest import MakeEvents
from tests.pipeline.events import Row, at, filled, frame, row

DEATHS = {"max_receives", "expired", "rejected", "overflow"}


def rows_of(frame: DataFrame) -> list[Row]:
    """As UTC, whatever zone this machine is in."""
    return list(frame.toArrow().to_pylist())


def test_a_minute_counted_by_hand(make_events: MakeEvents) -> None:
    critical = {"tier": "critical"}
    rows = [
        row(1, "published", 1, priority=9, **critical),
        row(2, "published", 2, priority=9, visible_at=12, **critical),  # delayed: it waits from 12 on
        row(3, "leased", 1, receive_count=1, **critical),  # 2 s
        row(4.5, "acked", 1, **critical),  # 1.5 s of work
        row(20, "leased", 2, receive_count=1, **critical),  # 8 s: late
        row(21, "released", 2, reason="released", **critical),
        row(30, "leased", 2, receive_count=2, **critical),  # a redelivery is not measured
        row(40, "acked", 2, **critical),  # worked on for 10 s, from the last delivery
        row(50, "published", 3, priority=9, expires_at=55, **critical),
        row(55, "dead_lettered", 3, reason="expired", **critical),  # nobody received it: missed
        row(58, "published", 4, priority=1, **critical),  # still waits
    ]
    found = measured(make_events(rows))
    low, high = sorted(rows_of(per_minute(found, 0.9)), key=lambda one: one["priority"])
    assert high == {
        "minute": at(0),
        "vhost": "/",
        "queue": "orders",
        "tier": "critical",
        "priority": 9,
        "published": 3,
        "delivered": 3,
        "acked": 2,
        "published_per_second": 3 / 60,
        "delivered_per_second": 3 / 60,
        "acked_per_second": 2 / 60,
        "wait_p50_ms": 5000.0,
        "wait_p95_ms": pytest.approx(7700.0),
        "wait_p99_ms": pytest.approx(7940.0),
        "wait_max_ms": 8000,
        "processing_p50_ms": 5750.0,
        "processing_p95_ms": pytest.approx(9575.0),
        "processing_p99_ms": pytest.approx(9915.0),
        "processing_max_ms": 10_000,
        "redelivered": 1,
        "dead_lettered": 1,
        "measured": 2,
        "late": 1,
        "missed": 1,
        "objective_seconds": 5.0,
        "within_share": pytest.approx(1 / 3),
        "budget_left_hours": pytest.approx(720 * (0.1 - 2 / 3)),
    }
    assert (low["published"], low["delivered"], low["within_share"], low["wait_max_ms"]) == (1, 0, None, None)
    (soon,) = rows_of(per_queue(found, at(60), 0.9))
    assert (soon["measured"], soon["late"], soon["missed"], soon["overdue"]) == (2, 1, 1, 0)
    assert soon["budget_hours"] == pytest.approx(72.0)
    (later,) = rows_of(per_queue(found, at(64), 0.9))
    assert (later["overdue"], later["within_share"]) == (1, pytest.approx(1 / 4))
    assert later["budget_left_hours"] == pytest.approx(720 * (0.1 - 3 / 4))


def test_the_budget_forgets_what_is_older_than_its_window(make_events: MakeEvents) -> None:
    day = 86_400
    rows = [
        row(0, "published", 1),
        row(40, "leased", 1, receive_count=1),  # late
        row(day, "published", 2),
        row(day + 1, "leased", 2, receive_count=1),
        row(2 * day, "published", 3),
        row(2 * day + 1, "leased", 3, receive_count=1),
    ]
    found = measured(make_events(rows))
    left = [one["budget_left_hours"] for one in rows_of(per_minute(found, 0.5, window_days=2))]
    assert left == [pytest.approx(48 * (0.5 - share)) for share in (1.0, 0.5, 0.0)]
    (queue,) = rows_of(per_queue(found, at(2 * day + 60), 0.5, window_days=2))
    assert (queue["measured"], queue["late"]) == (2, 0)


def test_dead_letters_are_measured_where_they_died(make_events: MakeEvents) -> None:
    dead = {"queue": "dead", "queue_number": 2}
    goes = {"target_vhost": "/", "target_queue": "dead", "target_message": 2}
    rows = [
        row(0, "queue_put"),
        row(0, "queue_put", **dead),
        row(1, "published", 1),
        row(2, "leased", 1, receive_count=1),
        row(3, "moved", 1, reason="rejected", **goes),
        row(500, "leased", 2, message_id="m1", receive_count=1, **dead),
    ]
    found = measured(make_events(rows))
    counted = {
        one["queue"]: (one["measured"], one["late"], one["missed"]) for one in rows_of(per_queue(found, at(600)))
    }
    assert counted == {"orders": (1, 0, 0), "dead": (0, 0, 0)}
    assert sum(one["dead_lettered"] for one in rows_of(per_minute(found))) == 1


# --- counted again


@dataclass
class Minute:
    published: int = 0
    delivered: int = 0
    acked: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    missed: int = 0
    waits: list[float] = field(default_factory=list)
    works: list[float] = field(default_factory=list)


@dataclass
class Known:
    """What is known of a message's number while the history is read once, in order."""

    priority: int
    is_measured: bool
    visible: Any
    leased: Any = None
    is_over: bool = False


def count(rows: Iterable[Row]) -> tuple[dict[Any, Minute], dict[int, Known], dict[int, Row]]:
    minutes: dict[Any, Minute] = defaultdict(Minute)
    known: dict[int, Known] = {}
    places: dict[int, Row] = {}
    for one in rows:
        kind, number = one["kind"], one["message"]
        if kind == "queue_purged":
            for other, place in places.items():
                state = known[other]
                if place["queue"] == one["queue"] and other < number and state.leased in (None, "back"):
                    state.is_over = True
        if kind not in ("published", "leased", "acked", "released", "moved", "dead_lettered", "removed"):
            continue
        if kind == "published":
            known[number] = Known(one["priority"], True, one["visible_at"])
            places[number] = one
        me = known[number]
        minute = minutes[(one["time"].replace(second=0, microsecond=0), one["queue"], me.priority)]
        if kind == "published":
            minute.published += 1
        elif kind == "leased":
            minute.delivered += 1
            minute.redelivered += one["receive_count"] > 1
            if one["receive_count"] == 1 and me.is_measured:
                minute.waits.append((one["time"] - me.visible) / timedelta(milliseconds=1))
            me.leased = one["time"]
        elif kind == "acked":
            minute.acked += 1
            minute.works.append((one["time"] - me.leased) / timedelta(milliseconds=1))
        elif kind == "released":
            me.leased = "back"
        if kind in ("moved", "dead_lettered", "removed") and one["reason"] in DEATHS:
            minute.dead_lettered += 1
            minute.missed += me.is_measured and me.leased is None
        if kind == "moved":
            known[one["target_message"]] = Known(me.priority, one["reason"] == "redriven", one["time"])
            places[one["target_message"]] = {"queue": one["target_queue"]}
        if kind in ("acked", "moved", "dead_lettered", "removed"):
            me.is_over = True
    return minutes, known, places


def test_a_made_up_afternoon_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    rows = afternoon(seed=7)
    warehouse = Warehouse(tmp_path)
    frame(spark, rows).write.parquet(str(warehouse.events))
    result = run(JOBS["slo"], spark, Options(source="lake", warehouse=warehouse, settings={"objective": "99"}))
    history = filled(rows)
    minutes, known, places = count(history)
    table = warehouse.read_arrow("slo").to_pylist()
    assert result.tables == {"slo": len(minutes), "slo_queues": 4} == {**result.tables, "slo": len(table)}
    tiers = {one["queue"]: one["tier"] for one in history}
    for one in table:
        counted = minutes.pop((one["minute"], one["queue"], one["priority"]))
        objective_ms = OBJECTIVES[one["tier"]] * 1000
        late = sum(wait > objective_ms for wait in counted.waits)
        names = ("published", "delivered", "acked", "redelivered", "dead_lettered", "missed")
        assert [one[name] for name in names] == [getattr(counted, name) for name in names]
        assert (one["tier"], one["measured"], one["late"]) == (tiers[one["queue"]], len(counted.waits), late)
        for called, values in (("wait", counted.waits), ("processing", counted.works)):
            for name, rank in (("p50", 50), ("p95", 95), ("p99", 99), ("max", 100)):
                expected = pytest.approx(np.percentile(values, rank)) if values else None
                assert one[f"{called}_{name}_ms"] == expected
    assert not minutes
    _check_queues(warehouse, history, known, places)


def _check_queues(warehouse: Warehouse, history: list[Row], known: dict[int, Known], places: dict[int, Row]) -> None:
    minutes, _, _ = count(history)
    end = history[-1]["time"]
    for one in warehouse.read_arrow("slo_queues").to_pylist():
        limit = timedelta(seconds=OBJECTIVES[one["tier"]])
        waits = [wait for (_, queue, _), minute in minutes.items() if queue == one["queue"] for wait in minute.waits]
        missed = sum(minute.missed for (_, queue, _), minute in minutes.items() if queue == one["queue"])
        late = sum(wait > limit / timedelta(milliseconds=1) for wait in waits)
        overdue = sum(
            me.is_measured and not me.is_over and me.leased is None and end - me.visible > limit
            for number, me in known.items()
            if places[number]["queue"] == one["queue"]
        )
        assert (one["measured"], one["late"], one["missed"], one["overdue"]) == (len(waits), late, missed, overdue)
        in_all = len(waits) + missed + overdue
        bad = (late + missed + overdue) / in_all if in_all else 0
        assert one["budget_left_hours"] == pytest.approx(720 * (0.01 - bad))
    assert sum(row["late"] for row in warehouse.read_arrow("slo_queues").to_pylist()) > 20  # there was an outage
