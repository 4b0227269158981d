"""Writing from a real Spark: tasks that fail and drivers that are killed, and every row is there exactly once."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laneway.client import Client
from tests.pipeline import spark_writer
from tests.pipeline.drivers import committed_by_spark, kill_where_it_stands_still
from tests.rest.serving import Serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES, ROWS = 3, 25


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("spark-writing") / "data") as serving:
        yield serving


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with Client(serving.url) as client:
        yield client


def received(client: Client, queue: str) -> Counter[object]:
    found: Counter[object] = Counter()
    while messages := client.receive(queue, 1000, visibility_timeout=600):
        found.update(message.payload for message in messages)
    return found


@pytest.mark.timeout(300)
def test_a_table_is_written_with_everything_its_columns_say(
    spark: SparkSession, serving: Serving, client: Client
) -> None:
    client.put_queue("table", max_priority=10)
    table = spark.range(0, 100, 1, 3).selectExpr(
        "to_json(struct(id)) AS body",
        "CAST(id % 10 AS INT) AS priority",
        "map('parity', IF(id % 2 = 0, 'even', 'odd')) AS attributes",
        "concat('customer-', id % 7) AS key",
        "IF(id = 5, 'table', NULL) AS queue",
    )
    options = {"url": serving.url, "queue": "table", "contentType": "application/json"}
    table.write.format("laneway").mode("append").options(**options).save()
    messages = client.receive("table", 1000)
    assert sorted(m.payload["id"] for m in messages) == list(range(100))
    for message in messages:
        n = message.payload["id"]
        assert (message.priority, message.raw["key"]) == (n % 10, f"customer-{n % 7}")
        assert message.attributes == {"parity": "odd" if n % 2 else "even"}


def test_rows_go_through_an_exchange_and_none_does_if_one_would_reach_no_queue(
    spark: SparkSession, serving: Serving, client: Client
) -> None:
    for queue in ("even", "odd"):
        client.put_queue(queue)
        client.bind("amq.topic", queue, f"*.{queue}")
    table = spark.range(0, 20, 1, 2).selectExpr(
        "CAST(id AS STRING) AS body", "IF(id % 2 = 0, 'number.even', 'number.odd') AS routing_key"
    )
    written = table.write.format("laneway").mode("append").options(url=serving.url, exchange="amq.topic")
    client.unbind("amq.topic", "odd", "*.odd")
    with pytest.raises(Exception, match="unroutable: 10 of 20 messages reach no queue"):
        written.save()
    assert received(client, "even") == Counter()
    client.bind("amq.topic", "odd", "*.odd")
    written.save()
    assert received(client, "even") == Counter(str(n) for n in range(0, 20, 2))
    assert received(client, "odd") == Counter(str(n) for n in range(1, 20, 2))


def test_a_mistake_is_told_before_anything_is_written(spark: SparkSession, serving: Serving, client: Client) -> None:
    client.put_queue("untouched")
    options = {"url": serving.url, "queue": "untouched"}
    for table, words in (
        (spark.range(3).selectExpr("CAST(id AS STRING) AS text"), "a message has no column 'text'"),
        (spark.range(3).selectExpr("id AS body"), "column 'body' is binary or string, not bigint"),
    ):
        with pytest.raises(Exception, match=words):
            table.write.format("laneway").mode("append").options(**options).save()
    good = spark.range(3).selectExpr("CAST(id AS STRING) AS body")
    with pytest.raises(Exception, match="mode append"):
        good.write.format("laneway").mode("overwrite").options(**options).save()
    with pytest.raises(Exception, match="there is no option 'que'"):
        good.write.format("laneway").mode("append").options(url=serving.url, que="untouched").save()
    assert client.stats("untouched")["totals"]["published"] == 0


@pytest.mark.timeout(600)
def test_a_stream_is_written_once_though_tasks_fail_and_die_and_its_driver_is_killed_before_and_after_a_commit(
    spark: SparkSession, serving: Serving, client: Client, tmp_path: Path
) -> None:
    for queue in ("orders", "payments"):
        client.put_queue(queue)
    _write_files(tmp_path / "input")
    _run_until_it_stands_still(serving, tmp_path, "before", "--stop-before", "0", "--batch-of", "30")
    there = client.producer("nightly")
    assert there["last_batch"] is None, "nothing is committed"
    assert there["staged"]["messages"] == 2 * ROWS, "by attempts that failed or died, and by those that count"
    _run_until_it_stands_still(serving, tmp_path, "after", "--stop-after", "1")
    assert client.producer("nightly")["last_batch"] == 1
    assert committed_by_spark(tmp_path / "checkpoint") == [0], "Spark does not know that batch 1 is written"
    spark_writer.rows(spark, str(tmp_path / "input")).writeStream.format("laneway").options(
        url=serving.url, producer="nightly", checkpointLocation=str(tmp_path / "checkpoint")
    ).trigger(availableNow=True).start().awaitTermination()
    assert committed_by_spark(tmp_path / "checkpoint") == [0, 1, 2] and client.producer("nightly")["last_batch"] == 2
    wanted = [f"{file}-{row}" for file in range(FILES) for row in range(ROWS)]
    assert received(client, "payments") == Counter(body for body in wanted if _queue_of(body) == "payments")
    assert received(client, "orders") == Counter(
        [*(body for body in wanted if _queue_of(body) == "orders"), *(f"batch {n}" for n in range(30))]
    )


def _queue_of(body: str) -> str:
    return "payments" if int(body.split("-")[1]) % 3 == 0 else "orders"


def _write_files(folder: Path) -> None:
    """One file a batch, in this order: Spark takes the oldest first."""
    folder.mkdir()
    for file in range(FILES):
        bodies = [f"{file}-{row}" for row in range(ROWS)]
        path = folder / f"{file}.json"
        path.write_text("\n".join(json.dumps({"body": body, "queue": _queue_of(body)}) for body in bodies))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))


def _run_until_it_stands_still(serving: Serving, folder: Path, when: str, *options: str) -> None:
    paths = {name: str(folder / name) for name in ("input", "checkpoint")}
    where = ["--url", serving.url, "--producer", "nightly", *(f"--{name}={path}" for name, path in paths.items())]
    kill_where_it_stands_still("spark_writer", folder / f"note-{when}", folder / f"driver-{when}.log", *where, *options)
