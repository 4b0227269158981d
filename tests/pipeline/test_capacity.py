"""capacity: two hours by hand, and a made-up afternoon counted again."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from laneway.pipeline.jobs.capacity import limits_of, per_period, per_queue
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from laneway.pipeline.stays import stays
from tests.pipeline.afternoon import QUEUES, afternoon
from tests.pipeline.conftest import MakeEvents
from tests.pipeline.events import at, filled, frame, row


def test_two_hours_counted_by_hand(make_events: MakeEvents, spark: SparkSession) -> None:
    rows = [
        *(row(number, "published", number) for number in range(1, 61)),  # sixty in the first minute
        row(60, "leased", 1, receive_count=1, consumer="a"),
        row(61, "leased", 2, receive_count=1, consumer="a"),
        row(62, "acked", 1),
        row(63, "acked", 2),  # two in the one minute in which a worked
        row(3600, "published", 61),
        row(3660, "leased", 3, receive_count=1, consumer="b"),
        row(3720, "acked", 3),  # one in two minutes of b: 3 messages in 3 consumer-minutes
        row(5400, "published", 62),
    ]
    found = stays(make_events(rows)).persist()
    table = per_period(found, at(1), at(5400), partition_rate=0.01)
    first, second = table.toArrow().to_pylist()
    rate = 60 / 3599
    assert first == {
        "period": at(0),
        "period_seconds": 3599.0,
        "vhost": "/",
        "queue": "orders",
        "arrived": 60,
        "acked": 2,
        "ended": 2,
        "arrival_per_second": pytest.approx(rate),
        "arrival_peak_per_second": pytest.approx(59 / 60),  # the last of them came with the next minute
        "service_per_second": pytest.approx(2 / 3599),
        "consumers": 1,
        "consumer_per_second": pytest.approx(1 / 60),
        "consumers_needed": 2,  # 1.0003 × 1.5, rounded up
        "partitions_needed": 3,  # 0.0167 ÷ 0.01 × 1.5, rounded up
        "backlog": 58,
    }
    assert (second["period"], second["period_seconds"], second["backlog"]) == (at(3600), 1800.0, 59)
    assert second["consumers_needed"] == 1
    limits = limits_of(spark, [("/", "orders", 60), ("/", "other", None)])
    (ahead,) = per_queue(table, limits, at(5400)).toArrow().to_pylist()
    found.unpersist()
    assert ahead["backlog_per_hour"] == pytest.approx(2.0)  # one more in half an hour
    assert ahead["exceeds_in_hours"] == pytest.approx(0.5)
    assert ahead["exceeds_at"] == at(7200)
    assert (ahead["backlog"], ahead["consumers"], ahead["consumers_needed"]) == (59, 1, 2)


def test_a_queue_that_is_too_long_already_or_never_will_be(make_events: MakeEvents, spark: SparkSession) -> None:
    rows = [
        *(row(number, "published", number) for number in range(1, 5)),
        *(row(3600 + number, "leased", number, receive_count=1) for number in range(1, 4)),
        *(row(3700 + number, "acked", number) for number in range(1, 4)),
        *(row(3800, "published", number, queue="mail", queue_number=2) for number in range(10, 15)),
        row(7200, "acked", 99),  # of a message from before the history
    ]
    found = stays(make_events(rows)).persist()
    table = per_period(found, at(1), at(7200)).persist()
    backlogs = defaultdict(list)
    for one in table.toArrow().to_pylist():
        backlogs[one["queue"]].append(one["backlog"])
    assert backlogs == {"orders": [5, 2, 1], "mail": [0, 5, 5]}
    limits = limits_of(spark, [("/", "orders", 10), ("/", "mail", 3)])
    ahead = {one["queue"]: one for one in per_queue(table, limits, at(7200)).toArrow().to_pylist()}
    assert ahead["orders"]["exceeds_at"] is None and ahead["orders"]["backlog_per_hour"] < 0
    assert ahead["mail"]["exceeds_at"] == at(7200)
    assert ahead["mail"]["consumers_needed"] is None  # nobody ever consumed: it is not known
    table.unpersist()
    found.unpersist()


def test_two_minutes_of_history_tell_nothing_of_next_week(spark: SparkSession, tmp_path: Path) -> None:
    """Also where they lie on both sides of an hour, so that there are two periods to draw a line through."""
    warehouse = Warehouse(tmp_path)
    rows = [row(3540 + number, "published", number) for number in range(1, 121)]
    frame(spark, rows).write.parquet(str(warehouse.events))
    options = Options(source="lake", warehouse=warehouse, settings={"backlog_limit": "1000"})
    result = run(JOBS["capacity"], spark, options)
    [queue] = warehouse.read_arrow("capacity_queues").to_pylist()
    assert result.tables["capacity"] == 2 and queue["backlog"] == 120
    assert queue["backlog_per_hour"] is queue["exceeds_in_hours"] is queue["exceeds_at"] is None
    assert "119 seconds of history are too short to look ahead: it takes two periods and 1 hours" in result.notes


def test_a_made_up_afternoon_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    rows = afternoon(seed=5)
    warehouse = Warehouse(tmp_path)
    frame(spark, rows).write.parquet(str(warehouse.events))
    settings = {"period_seconds": "180", "backlog_limit": "500", "trend_periods": "3", "trend_hours": "0.1"}
    result = run(JOBS["capacity"], spark, Options(source="lake", warehouse=warehouse, settings=settings))

    history = filled(rows)
    begin, end = history[0]["time"], history[-1]["time"]
    periods = range(0, 900, 180)
    inside: dict[str, dict[int, str]] = {queue: {} for queue in QUEUES}  # number -> waiting or leased
    arrived: Counter[tuple[str, int]] = Counter()
    acked: Counter[tuple[str, int]] = Counter()
    backlog: dict[tuple[str, int], int] = {}
    worked: dict[str, set[Any]] = defaultdict(set)
    consumer: dict[int, str] = {}
    left = list(periods)
    for one in [*history, {"time": at(900), "kind": "end", "queue": "orders", "message": None}]:
        second = (one["time"] - at(0)).total_seconds()
        while left and second >= left[0] + 180:
            backlog.update({(queue, left[0]): len(there) for queue, there in inside.items()})
            left.pop(0)
        queue, kind, number, period = one["queue"], one["kind"], one["message"], int(second // 180) * 180
        if kind == "published":
            arrived[queue, period] += 1
            inside[queue][number] = "waiting"
        elif kind == "queue_purged":
            inside[queue] = {n: how for n, how in inside[queue].items() if n >= number or how == "leased"}
        elif kind == "leased":
            inside[queue][number] = "leased"
            consumer[number] = one["consumer"]
            worked[queue].add((one["consumer"], int(second // 60)))
        elif kind == "released":
            inside[queue][number] = "waiting"
        elif kind in ("acked", "dead_lettered", "moved", "removed"):
            inside[queue].pop(number, None)
            if kind == "acked":
                acked[queue, period] += 1
                worked[queue].add((consumer[number], int(second // 60)))
            if kind == "moved":
                arrived[one["target_queue"], period] += 1
                inside[one["target_queue"]][one["target_message"]] = "waiting"
    table = warehouse.read_arrow("capacity").to_pylist()
    assert result.tables == {"capacity": 20, "capacity_queues": 4} and len(table) == 20
    for one in table:
        start = (one["period"] - at(0)).total_seconds()
        place = one["queue"], int(start)
        assert (one["arrived"], one["acked"], one["backlog"]) == (arrived[place], acked[place], backlog[place]), place
        covered = min(start + 180, (end - at(0)).total_seconds()) - max(start, (begin - at(0)).total_seconds())
        assert one["period_seconds"] == pytest.approx(covered)
        done = sum(count for (queue, _), count in acked.items() if queue == one["queue"])
        last = (end - at(0)).total_seconds()
        seconds = sum(min(60 * minute + 60, last) - 60 * minute for _, minute in worked[one["queue"]])
        rate = done / seconds if done else None
        assert one["consumer_per_second"] == (pytest.approx(rate) if rate else None)
        if rate:
            assert one["consumers_needed"] == math.ceil(round(arrived[place] / covered * 1.5 / rate, 9))
    ends = [min(start + 180, (end - at(0)).total_seconds()) / 3600 for start in periods]
    for one in warehouse.read_arrow("capacity_queues").to_pylist():
        values = [backlog[one["queue"], start] for start in periods]
        slope = float(np.polyfit(ends[-3:], values[-3:], 1)[0])
        assert one["backlog"] == values[-1] and one["backlog_limit"] == 500
        assert one["backlog_per_hour"] == pytest.approx(slope, abs=1e-6)
        if slope > 0:
            assert one["exceeds_in_hours"] == pytest.approx((500 - values[-1]) / slope)
