"""The job report: its table against counts made by hand, and the page it writes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laneway.pipeline.jobs.report import STEPS, step_of, traffic
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import Options, job, run
from tests.pipeline.conftest import MakeEvents
from tests.pipeline.events import NOON, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize(
    ("seconds", "step"), [(0, 1), (119, 1), (120, 2), (90, 1), (3_600, 60), (86_400, 900), (86_400 * 365, 604_800)]
)
def test_a_step_is_the_smallest_that_makes_a_chart_readable(seconds: float, step: int) -> None:
    assert step_of(seconds) == step
    assert seconds / step < 120 and step in STEPS


def told(found: DataFrame) -> dict[tuple[int, str], tuple[object, ...]]:
    """{(seconds after noon, queue): (published, delivered, redelivered, acked, died, waiting, p95)}"""
    names = ("published", "delivered", "redelivered", "acked", "died", "waiting", "wait_p95_ms")
    rows = found.toPandas().astype({"wait_p95_ms": object}).to_dict("records")
    return {
        (int((one["time"].tz_localize("UTC") - NOON) / timedelta(seconds=1)), one["queue"]): tuple(
            None if one[name] != one[name] else one[name] for name in names
        )
        for one in rows
    }


def test_traffic_counts_each_step_and_what_is_left_at_its_end(make_events: MakeEvents) -> None:
    events = make_events(
        [
            row(0.1, "published", 1),
            row(0.2, "published", 2),
            row(0.9, "leased", 1, lease=1, receive_count=1),
            row(2.0, "acked", 1, lease=1),
            row(2.5, "leased", 2, lease=2, receive_count=1),
            row(3.0, "released", 2, reason="lease_expired"),
            row(3.5, "leased", 2, lease=3, receive_count=2),
            row(4.0, "moved", 2, reason="rejected", target_vhost="/", target_queue="dead", target_message=3),
            # Of this one the history has only the end: it was there all the same.
            row(4.2, "leased", 99, queue="mail", queue_number=2, lease=4, receive_count=1, enqueued_at=-3.0),
            row(4.4, "acked", 99, queue="mail", queue_number=2, lease=4, enqueued_at=-3.0),
        ]
    )
    found = told(traffic(events, 2))
    assert found == {
        (0, "orders"): (2, 1, 0, 0, 0, 2, 800.0),
        (2, "orders"): (0, 2, 1, 1, 0, 1, 2300.0),
        (4, "orders"): (0, 0, 0, 0, 1, 0, None),
        (0, "dead"): (0, 0, 0, 0, 0, 0, None),
        (2, "dead"): (0, 0, 0, 0, 0, 0, None),
        (4, "dead"): (0, 0, 0, 0, 0, 1, None),
        (0, "mail"): (0, 0, 0, 0, 0, 0, None),
        (2, "mail"): (0, 0, 0, 0, 0, 0, None),
        (4, "mail"): (0, 1, 0, 1, 0, 0, 7200.0),
    }


def test_traffic_tells_how_many_wait_to_be_received_for_the_first_time(make_events: MakeEvents) -> None:
    events = make_events(
        [
            row(0.1, "published", 1),
            row(0.2, "published", 2, visible_at=5.0),  # delayed: nobody can receive it yet
            row(0.3, "published", 3),
            row(3.0, "leased", 1, lease=1, receive_count=1),
            row(3.2, "released", 1, reason="lease_expired"),
            row(7.0, "moved", 3, reason="expired", target_vhost="/", target_queue="dead", target_message=4),
            row(7.1, "leased", 1, lease=2, receive_count=2),
        ]
    )
    rows = traffic(events, 2).toArrow().to_pylist()
    assert [one["unreceived"] for one in rows if one["queue"] == "orders"] == [2, 1, 2, 1]
    assert {one["unreceived"] for one in rows if one["queue"] == "dead"} == {0}


def test_the_job_writes_the_page_and_names_what_is_missing(
    spark: SparkSession, make_events: MakeEvents, tmp_path: Path
) -> None:
    warehouse = Warehouse(tmp_path / "warehouse")
    history = [row(0, "queue_put"), *(row(1 + at, "published", at, queue="<i>" if at else "orders") for at in range(3))]
    make_events(history).write.parquet(str(warehouse.events))
    options = Options(source="lake", warehouse=warehouse, settings={"title": "Of today"})
    result = run(job("report"), spark, options)
    page = (tmp_path / "warehouse" / "report.html").read_text()
    assert result.files == [str(tmp_path / "warehouse" / "report.html")]
    assert dict(result.tables) == {"traffic": 2 * 3}
    assert "<h1>Of today</h1>" in page and "&lt;i&gt;" in page and "<i>" not in page
    assert "slo_queues, hotkeys_keys" in result.notes[0] and result.facts["missing"][0] == "slo_queues"
    assert warehouse.read_arrow("traffic").num_rows == 6
