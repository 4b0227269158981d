"""The audit of what servers leave whose processes were killed, once in the middle of moving queues. What clients see is
checked where the kills are made; here the whole history is, of all partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from tests.processes import kills
from tests.processes.kills import Killed
from tests.processes.test_rebalance import grown, kill_in_the_middle

pytestmark = pytest.mark.timeout(400)


def audited(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The verdict, after it was seen to be a clean one on a whole history."""
    warehouse = Warehouse(folder.parent / "warehouse")
    run(JOBS["audit"], spark, Options(source=str(folder), warehouse=warehouse))
    assert warehouse.read_arrow("audit_violations").to_pylist()[:10] == []
    [verdict] = warehouse.read_arrow("audit_verdict").to_pylist()
    assert (verdict["verdict"], verdict["violations"], verdict["is_whole"]) == ("clean", 0, True)
    return verdict  # type: ignore[no-any-return]


def test_killed_processes_leave_a_clean_history(spark: SparkSession, tmp_path: Path) -> None:
    account = kills.run(Killed(tmp_path / "data"), seed=2, kills=4, keeps_history=True)
    verdict = audited(spark, tmp_path / "data")
    assert verdict["published"] >= sum(map(len, account.confirmed.values())) > 200
    assert verdict["acked"] >= len(account.gone_s)


def test_processes_killed_while_queues_move_leave_a_clean_history(spark: SparkSession, tmp_path: Path) -> None:
    with grown(tmp_path / "data") as server:
        kill_in_the_middle(server, 0, 1)
        assert server.stop() == 0, server.log()[-2000:]
    assert audited(spark, tmp_path / "data")["published"] > 4_000
