"""The jobs on the journal of a real server: what they find is what the server itself counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from tests.cli.conftest import Server

pytestmark = pytest.mark.timeout(300)  # a server and a Spark start first

QUEUES: dict[str, dict[str, Any]] = {
    "dead": {"tier": "low"},
    "orders": {"tier": "critical", "dead_letter_queue": "dead", "max_messages": 100},
    "mail": {},
}


def work(http: httpx.Client) -> None:
    """Messages that are acked, rejected, given back and purged; some wait at the end."""
    for name, settings in QUEUES.items():
        assert http.put(f"/queues/{name}", json=settings).status_code == 201
    for number in range(60):
        message = {"payload": number, "priority": number % 3, "key": f"k{number % 7}", "tenant": "acme"}
        attributes = {"region": "eu" if number % 2 else "us"}
        queue = "orders" if number % 3 else "mail"
        assert http.post(f"/queues/{queue}/messages", json={**message, "attributes": attributes}).status_code == 201
    for number in range(40):
        queue = "orders" if number % 2 else "mail"
        asked = {"consumer_id": f"worker-{number % 4}"}
        for one in http.post(f"/queues/{queue}/dequeue", json=asked).json()["messages"]:
            path, receipt = f"/queues/{queue}/messages/{one['message_id']}", {"receipt_handle": one["receipt_handle"]}
            if number % 5 == 0:
                http.post(f"{path}/reject", json={**receipt, "reason": f"item {number} is out of stock"})
            elif number % 7 == 0:
                http.post(f"{path}/nack", json=receipt)
            else:
                http.request("DELETE", path, json=receipt)
    http.post("/queues/mail/purge")
    http.post("/queues/mail/messages", json={"payload": "after the purge"})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    running = Server(tmp_path_factory.mktemp("server") / "data")
    with httpx.Client(base_url=running.url) as http:
        work(http)
    yield running
    assert running.stop() == 0, running.output


@pytest.fixture(scope="module")
def totals(server: Server) -> dict[str, dict[str, Any]]:
    with httpx.Client(base_url=server.url) as http:
        return {name: http.get(f"/queues/{name}/stats").json() for name in QUEUES}


@pytest.mark.parametrize("kind", ["folder", "url"])
def test_the_jobs_find_what_the_server_counted(
    spark: SparkSession, server: Server, totals: dict[str, dict[str, Any]], tmp_path: Path, kind: str
) -> None:
    warehouse = Warehouse(tmp_path)
    options = Options(source=str(server.data) if kind == "folder" else server.url, warehouse=warehouse)
    sums: dict[str, Counter[str]] = {name: Counter() for name in QUEUES}

    run(JOBS["slo"], spark, options)
    for one in warehouse.read_arrow("slo").to_pylist():
        for name in ("published", "delivered", "redelivered", "acked", "dead_lettered"):
            sums[one["queue"]][name] += one[name]
    for queue, stats in totals.items():
        assert sums[queue] == {name: stats["totals"][name] for name in sums[queue]}, queue
    tiers = {one["queue"]: one["tier"] for one in warehouse.read_arrow("slo_queues").to_pylist()}
    assert tiers == {"dead": "low", "orders": "critical", "mail": "normal"}

    run(JOBS["capacity"], spark, options)
    ahead = {one["queue"]: one for one in warehouse.read_arrow("capacity_queues").to_pylist()}
    for queue, stats in totals.items():
        waiting = stats["approximate_message_count"] + stats["in_flight_count"] + stats["delayed_count"]
        assert ahead[queue]["backlog"] == waiting, queue
    limits = {queue: one["backlog_limit"] for queue, one in ahead.items()}
    assert limits == {"orders": 100, "mail": None, "dead": None}
    if kind == "url":
        return  # the others read one table, once

    run(JOBS["hotkeys"], spark, options)
    tenants = {one["tenant"]: one["published"] for one in warehouse.read_arrow("hotkeys_tenants").to_pylist()}
    assert tenants == {"acme": 60, None: 1}
    run(JOBS["deadletters"], spark, options)
    letters = warehouse.read_arrow("deadletters_messages").to_pylist()
    assert Counter(one["queue"] for one in letters) == {
        queue: stats["totals"]["dead_lettered"] for queue, stats in totals.items() if queue != "dead"
    }
    assert {one["signature"] for one in letters} == {"item <n> is out of stock"}
    assert {one["state"] for one in letters} == {"waiting"}
    assert all(dict(one["attributes"])["region"] in ("eu", "us") and one["tenant"] == "acme" for one in letters)
