"""`laneway pipeline run` with Spark, as a shell sees it: what is printed, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

import laneway.pipeline.session
from laneway.cli import cli
from laneway.core.events import Acked, Births
from laneway.journal.history import follow
from laneway.journal.history.format import segment_name
from laneway.pipeline.lake import Warehouse
from tests.pipeline.histories import write
from tests.pipeline.traffic import COMMITS_A_ROUND, FIRST_COMMITS, MESSAGES, NOON_MS, traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(autouse=True)
def _with_the_spark_that_is_there(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command starts a Spark and stops it; here all share one."""
    monkeypatch.setattr(laneway.pipeline.session, "session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)


def run(job: str, source: Path | str, warehouse: Path, *options: str) -> Result:
    given = ("pipeline", "run", job, "--source", str(source), "--warehouse", str(warehouse), *options)
    return CliRunner().invoke(cli, given, prog_name="laneway")


def test_an_audit_ends_with_0_if_all_is_well_and_with_1_if_not(tmp_path: Path) -> None:
    source = tmp_path / "data"
    write(source, traffic(1))
    clean = run("audit", source, tmp_path / "lake")
    assert (clean.exit_code, clean.stderr) == (0, "")
    assert "clean: " in clean.stdout and " 0 violations" in clean.stdout

    seqs, births = range(1, MESSAGES + 1), Births([NOON_MS] * MESSAGES, {})
    write(source, [[Acked(1, NOON_MS + 60_000, seqs, seqs, births)]])  # as they have been acked before
    violated = run("audit", source, tmp_path / "lake", "--show", "2", "--json")
    assert violated.exit_code == 1
    assert json.loads(violated.stderr)["error"]["code"] == "violations_found"
    told = json.loads(violated.stdout)
    assert told["is_failure"] is True and told["verdict"]["violations"] == MESSAGES
    assert [note.split()[0] for note in told["notes"]] == ["violated:", "double_end", "double_end"]
    found = Warehouse(tmp_path / "lake").read_arrow("audit_violations").to_pylist()
    assert {(one["type"], one["message"]) for one in found} == {("double_end", seq) for seq in seqs}


def test_an_archive_stops_where_history_has_gone_unless_a_gap_is_allowed(spark: SparkSession, tmp_path: Path) -> None:
    source, lake = tmp_path / "data", tmp_path / "lake"
    write(source, traffic(2))
    assert run("archive", source, lake).exit_code == 0
    write(source, traffic(4, 2, epoch=2), segment_bytes=16 << 10)
    gone = follow.segments(str(source))[:-1]
    write(source, traffic(1, 6, epoch=3), segment_bytes=16 << 10)
    for one in gone:
        (source / segment_name(one.number)).unlink()
    first, end = follow.first_position(str(source)), follow.end(str(source)).position
    stopped = run("archive", source, lake)
    assert stopped.exit_code == 1 and f"history is kept from commit {first} on" in stopped.stderr, stopped.output
    went_on = run("archive", source, lake, "--allow-gap", "--json")
    assert went_on.exit_code == 0, went_on.output
    assert json.loads(went_on.stdout)["next_position"] == end
    positions = {row["position"] for row in spark.read.parquet(str(lake / "events")).select("position").collect()}
    assert positions == {*range(1, FIRST_COMMITS + 2 * COMMITS_A_ROUND + 1), *range(first, end)}
