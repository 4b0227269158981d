"""A short demo, then the jobs over its history: their tables say what the demo counted on its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from laneway.cli.demo import JOBS, Places, run_jobs
from laneway.demo.plan import NOISY, draw
from laneway.demo.play import Player
from laneway.demo.server import OwnServer
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS as KNOWN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(600)
def test_the_tables_of_the_jobs_say_what_the_demo_counted(spark: SparkSession, tmp_path: Path) -> None:
    places = Places(tmp_path / "data", tmp_path / "warehouse")
    plan = draw(6, 3, 150)
    with OwnServer(places.data, places.log) as server:
        outcome = Player(plan, server.url).play()
        results = run_jobs(spark, places, server.url)
    assert outcome.is_drained
    assert list(results) == [name for name in JOBS if name in KNOWN]
    assert not any(result["is_failure"] for result in results.values()), results
    tallies = {name: tally.as_dict() for name, tally in outcome.tallies.items()}
    warehouse = Warehouse(places.warehouse)

    def rows(table: str) -> list[dict[str, Any]]:
        return warehouse.read_arrow(table).to_pylist()

    def summed(table: str, *names: str) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for row in rows(table):
            of_queue = found.setdefault(row["queue"], dict.fromkeys(names, 0))
            for name in names:
                of_queue[name] += row[name]
        found.pop("payments-dead", None)  # the demo publishes nothing there and takes nothing from it
        return found

    def counted(**renamed: str) -> dict[str, dict[str, int]]:
        return {queue: {there: tally[here] for there, here in renamed.items()} for queue, tally in tallies.items()}

    # slo, by the minute, and the traffic of the report, by the step
    flows = {"published": "published", "delivered": "delivered", "acked": "acked", "redelivered": "redelivered"}
    assert summed("slo", *flows, "dead_lettered") == counted(**flows, dead_lettered="dead_lettered")
    assert summed("traffic", *flows, "died") == counted(**flows, died="dead_lettered")
    # What was delivered at least once was measured once; the others died unseen.
    seen = {queue: {"measured": tally["delivered"] - tally["redelivered"]} for queue, tally in tallies.items()}
    assert summed("slo_queues", "measured") == seen
    assert {row["queue"]: row["tier"] for row in rows("slo_queues") if row["queue"] != "payments-dead"} == {
        "payments": "critical",
        "fraud-checks": "critical",
        "orders": "normal",
        "emails": "normal",
        "analytics": "low",
    }

    # hotkeys, against the plan
    everything = [message for messages in plan.messages.values() for message in messages]
    tenants = Counter(message.tenant for message in everything)
    assert {row["tenant"]: row["published"] for row in rows("hotkeys_tenants")} == tenants
    keys = Counter((queue, message.key) for queue, messages in plan.messages.items() for message in messages)
    top = rows("hotkeys_keys")
    assert [row["published"] for row in top] == [count for _, count in keys.most_common(10)]
    assert all(row["published"] == keys[row["queue"], row["key"]] for row in top)
    assert top[0]["key"] == f"{NOISY}-001"

    # deadletters, by reason; and signatures: all errors that were said, each of them once
    reasons = {"rejected": "rejected", "max_receives": "exhausted", "expired": "expired", "overflow": "overflowed"}
    died: Counter[tuple[str, str]] = Counter()
    for row in rows("deadletters"):
        died[row["queue"], row["reason"]] += row["letters"]
    assert died == Counter({(q, reason): t[name] for q, t in tallies.items() for reason, name in reasons.items()})
    kinds = {row["signature"].split(":")[0] for row in rows("deadletters") if row["queue"] == "payments"}
    said = {m.payload["error"].split(":")[0] for m in plan.messages["payments"] if "error" in m.payload}
    assert kinds == said

    # capacity: what came, and that nothing is left
    assert summed("capacity_queues", "arrived", "acked", "backlog") == {
        queue: {"arrived": tally["published"], "acked": tally["acked"], "backlog": 0}
        for queue, tally in tallies.items()
    }

    # the audit: everything has one end, and the same ends
    [verdict] = rows("audit_verdict")
    assert (verdict["verdict"], verdict["violations"], verdict["is_whole"]) == ("clean", 0, True)
    assert rows("audit_violations") == []
    assert summed("audit_fates", "published", "acked") == counted(published="published", acked="acked")
    dead = summed("audit_fates", "dead", "moved")
    assert {queue: sum(fate.values()) for queue, fate in dead.items()} == {
        queue: tally["dead_lettered"] for queue, tally in tallies.items()
    }

    page = (places.warehouse / "report.html").read_text()
    assert "<h1>Laneway demo</h1>" in page and "✓ Nothing was lost" in page and "not in the warehouse yet" not in page
