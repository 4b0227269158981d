"""`laneway pipeline` as far as it needs no Spark: what it says when it cannot run, and the tables it shows."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from laneway.cli import cli
from laneway.cli.pipeline import job_command, run_
from laneway.pipeline.runner import Job, JobSetting, whole


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli, ("pipeline", *arguments), prog_name="laneway", env=env)


@pytest.fixture
def warehouse(tmp_path: Path) -> str:
    table = pa.table({"queue": ["a", "b", "c"], "late": [1, 30, 2], "share": [0.5, None, 1234.5]})
    (tmp_path / "slo").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "slo" / "part.parquet")
    return str(tmp_path)


@pytest.fixture(autouse=True)
def _a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("count", "Counts.", "nowhere", (JobSetting("partition_count", "So many.", 8, whole, "N"),))
    monkeypatch.setitem(run_.commands, "count", job_command(job))


def test_tables_are_shown_to_people_and_programs(warehouse: str) -> None:
    shown = run("show", "slo", "--warehouse", warehouse, "--sort", "-late", "--limit", "2").stdout.splitlines()
    assert shown == [
        "queue  late  share",
        "b        30      -",
        "c         2   1234",
        "… 1 more: --limit shows them",
    ]
    rows = run("show", "slo", "--warehouse", warehouse, "--json", "--columns", "queue,late").stdout.splitlines()
    assert json.loads(rows[0]) == {"queue": "a", "late": 1}
    listed = run("list", "--warehouse", warehouse, "--json").stdout.splitlines()
    assert json.loads(listed[-1])["rows"] == 3
    assert any(line.split()[:2] == ["slo", "3"] for line in run("list", "--warehouse", warehouse).stdout.splitlines())


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (("show", "slow"), "there is no table 'slow'", 1),
        (("show", "slo", "--sort", "-lat"), "slo has no column 'lat'; it has queue, late, share", 2),
        (("run", "cont"), "did you mean count?", 2),
        (("run", "count", "--since", "soon"), "'soon' is no point in time", 2),
        (("run", "count", "--since", "1h", "--until", "2h"), "is not before --until", 2),
        (("run", "count", "--once", "--every", "5"), "contradict", 2),
        (("run", "count", "--partition-count", "none"), "'none' is no whole number above 0", 2),
        (("run", "count", "--conf", "novalue"), "'novalue' is not NAME=VALUE", 2),
        (("run", "count", "--master", "host"), "'host' is no Spark", 1),
        (("run", "count", "--warehouse", "s3a://x"), "'s3a://x' is no folder", 1),
        (("run", "count", "--source", "/nowhere"), "there is no journal folder /nowhere", 1),
    ],
)
def test_what_is_wrong_is_one_line(warehouse: str, arguments: tuple[str, ...], says: str, code: int) -> None:
    where = () if "--warehouse" in arguments or arguments == ("run", "cont") else ("--warehouse", warehouse)
    failed = run(*arguments, *where)
    assert failed.exit_code == code, failed.output
    assert says in failed.stderr and failed.stderr.count("\n") == 1


def test_without_spark_or_java_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = run("run", "count", env={"JAVA_HOME": str(tmp_path)})
    assert failed.exit_code == 1
    assert failed.stderr.startswith("laneway: Spark needs Java 17 or newer and there is none in JAVA_HOME=")
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in ("pyspark", "pyarrow") else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    for arguments in (("run", "count"), ("show", "slo")):
        failed = run(*arguments)
        assert failed.exit_code == 1 and "pip install 'laneway[pipeline]'" in failed.stderr
    assert run("list").exit_code == 0


def test_options_of_a_job_are_explained() -> None:
    shown = run("run", "count", "--help").stdout
    assert "--partition-count N" in shown and "So many. Default: 8." in shown
