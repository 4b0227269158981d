"""The data source as Spark sees it: a journal folder as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from laneway.pipeline.schema import EVENTS
from tests.pipeline.histories import expected, when, write
from tests.pipeline.traffic import MESSAGES, NOON_MS, QUEUES, traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMES = [column.name for column in EVENTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty rounds in several segments."""
    path = tmp_path_factory.mktemp("journal")
    write(path, traffic(20), segment_bytes=128 << 10)
    assert len(list(path.glob("*.segment"))) > 4
    return path


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """In the order of history, with times as the plain reading has them."""
    table = frame.orderBy("position", "index").toArrow()
    return table.to_pylist()


def test_a_folder_is_read_as_a_plain_reading_does(spark: SparkSession, folder: Path) -> None:
    read = spark.read.format("laneway").options(body="true", attributes="true", partitionBytes=100_000)
    frame = read.load(str(folder))
    assert frame.columns == NAMES
    plain = expected(folder, QUEUES)
    assert collected(frame) == [{name: row.get(name) for name in NAMES} for row in plain]
    assert frame.rdd.getNumPartitions() > 4


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.usefixtures("pushing")
def test_two_columns_and_filters_on_time_kind_and_queue(spark: SparkSession, folder: Path) -> None:
    table = spark.read.format("laneway").schema("message_id string, kind string").load(str(folder))
    plain = expected(folder, QUEUES)
    rows = sorted((row.get("message_id") or "", row["kind"]) for row in plain)
    assert sorted((row.message_id or "", row.kind) for row in table.collect()) == rows

    frame = spark.read.format("laneway").load(str(folder))
    frame.createOrReplaceTempView("events")
    cases = {
        "kind = 'acked' AND queue = 'mails'": lambda r: r["kind"] == "acked" and r["queue"] == "mails",
        "kind IN ('leased', 'opened') AND vhost <=> 'other'": lambda r: r["kind"] == "leased" and r["vhost"] == "other",
        "time >= '2026-11-16 12:00:05' AND time < '2026-11-16 12:00:07.015'": lambda r: (
            when(NOON_MS + 5000) <= r["time"] < when(NOON_MS + 7015)
        ),
        "queue IS NULL": lambda r: r["queue"] is None,
        "queue <> 'mails'": lambda r: r["queue"] not in (None, "mails"),
        "queue > 'm' AND tier LIKE '%l' AND priority = 3": lambda r: r["tier"] != "low" and r.get("priority") == 3,
    }
    for condition, wanted in cases.items():
        found = spark.sql(f"SELECT position, index FROM events WHERE {condition}")
        plan = found._jdf.queryExecution().executedPlan().toString()
        assert sorted(tuple(row) for row in found.collect()) == [
            (row["position"], row["index"]) for row in plain if wanted(row)
        ], condition
        if "priority" not in condition:
            assert "Filter (" not in plan, f"Spark filters {condition} itself: {plan}"


def test_one_table_is_read_with_several_filters_and_without(spark: SparkSession, folder: Path) -> None:
    # Spark remembers filters that were pushed down with the table, not with the query: our sessions push none.
    frame = spark.read.format("laneway").load(str(folder))
    plain = expected(folder, QUEUES)
    kinds = [row["kind"] for row in plain]
    acked = frame.where("queue = 'mails' AND kind = 'acked'").select("kind")
    leased = frame.where("kind = 'leased'").select("kind")
    assert acked.count() == 20 * MESSAGES
    assert frame.count() == len(plain)
    both = acked.union(leased).groupBy("kind").count().collect()
    assert {row.kind: row["count"] for row in both} == {"acked": 20 * MESSAGES, "leased": kinds.count("leased")}


def test_wrong_columns_and_options_are_named(spark: SparkSession, folder: Path) -> None:
    read = spark.read.format("laneway")
    cases = [
        (lambda: read.schema("size bigint").load(str(folder)), "the column size is of type int, not bigint"),
        (lambda: spark.read.format("laneway").option("kinds", "pblished").load(str(folder)), "'pblished' is no kind"),
        (lambda: spark.read.format("laneway").load(str(folder / "no")), "there is no journal folder"),
    ]
    for make, complaint in cases:
        with pytest.raises(Exception, match=complaint):
            make().collect()
