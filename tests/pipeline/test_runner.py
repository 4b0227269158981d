"""How a job is found, given its options and run; what is left of an error of Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from laneway.errors import InvalidInput, JobFailed, LanewayError, NotFound, PipelineError
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.reasons import reason
from laneway.pipeline.runner import (
    JOBS,
    Job,
    JobSetting,
    Options,
    Result,
    job,
    moment,
    number,
    run,
    run_every,
    settled,
    whole,
)
from tests.pipeline.events import at, frame, row

COUNT = Job("count", "Counts.", "tests.pipeline.counting", (JobSetting("share", "Of all.", 0.5, number),))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module like those in laneway.pipeline.jobs."""
    module = ModuleType("tests.pipeline.counting")

    def count(spark: SparkSession, options: Options) -> Result:
        events = options.events(spark, "time", "kind", kinds=["published"])
        written = options.warehouse.overwrite("counted", events, options.run_id)
        return Result(("published", "share"), [(events.count(), options["share"])], tables={"counted": written})

    module.run = count  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def lake(spark: SparkSession, folder: Path) -> Warehouse:
    """A warehouse with an archive of four events, a minute apart."""
    rows = [row(0, "published", 1), row(60, "published", 2), row(120, "leased", 1), row(180, "published", 3)]
    warehouse = Warehouse(folder)
    frame(spark, rows).write.parquet(str(warehouse.events))
    return warehouse


def test_a_job_reads_what_was_asked_for(spark: SparkSession, counting: ModuleType, tmp_path: Path) -> None:
    warehouse = lake(spark, tmp_path)
    options = Options(source="lake", warehouse=warehouse, since=at(60), until=at(180), settings={"share": "0.25"})
    result = run(COUNT, spark, options)
    assert result.as_dict() == {
        "is_failure": False,
        "tables": {"counted": 1},
        "files": [],
        "notes": [],
        "rows": [{"published": 1, "share": 0.25}],
    }
    assert "-count-" in (warehouse.version("counted").name)
    runs = run_every(COUNT, spark, options, 0.001)
    assert next(runs).rows == next(runs).rows == [(1, 0.25)]
    forever = run_every(COUNT, spark, Options("lake", warehouse, since=at(0), typed=("1s", None)), 0.001)
    assert next(forever).rows == [(0, 0.5)], "a second ago is so in every run, not when the first was asked for"


def test_run_after_run_goes_on_after_a_failure_but_for_the_first(
    spark: SparkSession, counting: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers: list[Result | LanewayError] = []

    def run_next(spark: SparkSession, options: Options) -> Result:
        answer = answers.pop(0)
        if isinstance(answer, LanewayError):
            raise answer
        return answer

    monkeypatch.setattr(counting, "run", run_next)
    waits: list[float] = []
    options = Options("lake", lake(spark, tmp_path))
    answers[:] = [Result(notes=["a"]), PipelineError("out of reach"), Result(notes=["b"]), InvalidInput("no such")]
    runs = run_every(COUNT, spark, options, 60, waits.append)
    seen = [next(runs) for _ in range(3)]
    assert [one.message if isinstance(one, PipelineError) else one.notes for one in seen] == [
        ["a"],
        "out of reach",
        ["b"],
    ]
    assert len(waits) == 2 and all(59 < wait <= 60 for wait in waits)
    with pytest.raises(InvalidInput):  # which another try does not mend
        next(runs)
    answers[:] = [PipelineError("out of reach")]
    with pytest.raises(PipelineError):
        next(run_every(COUNT, spark, options, 60, waits.append))


def test_a_lake_without_an_archive_or_without_bodies_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no table 'events'"):
        Options(source="lake", warehouse=Warehouse(tmp_path / "empty")).events(spark)
    with pytest.raises(InvalidInput, match="has no body: it was made without"):
        Options(source="lake", warehouse=lake(spark, tmp_path / "full")).events(spark, "time", "body")


def test_an_error_of_spark_is_cut_to_what_was_wrong(
    spark: SparkSession, counting: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(spark: SparkSession, options: Options) -> Result:
        spark.range(1).selectExpr("nothing").collect()
        return Result()

    monkeypatch.setattr(counting, "run", fails)
    with pytest.raises(JobFailed, match=r"the job count failed: .*nothing.*cannot be resolved") as failed:
        run(COUNT, spark, Options())
    assert "\n" not in failed.value.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Job aborted\n  File x\nlaneway.errors.NotFound: no folder ./x\n at org.apache", "no folder ./x"),
        ("[PYTHON] Failed\nTraceback\nValueError: no such\n\tat java", "no such"),
        ("\n[CODE] what it is\nmore", "[CODE] what it is"),
        (
            "An error occurred while calling None.x.\n: java.lang.A$Exception: outer\n\tat x\n"
            "Caused by: java.io.IOException: inner",
            "inner",
        ),
        ("", "no reason was given"),
    ],
)
def test_the_reason_is_found_in_many_lines(text: str, expected: str) -> None:
    assert reason(text) == expected


def test_options_of_a_job_are_checked() -> None:
    assert settled(COUNT, {}) == {"share": 0.5}
    assert settled(COUNT, {"share": "2"}) == {"share": 2.0}
    with pytest.raises(InvalidInput, match="count has no option shares; it has: share"):
        settled(COUNT, {"shares": "1"})
    with pytest.raises(InvalidInput, match="share: '-1' is no number above 0"):
        settled(COUNT, {"share": "-1"})
    with pytest.raises(ValueError, match="no whole number above 0"):
        whole("0")
    with pytest.raises(InvalidInput, match="there is no job 'nope'"):
        job("nope")


def test_every_job_can_be_loaded() -> None:
    for name, one in JOBS.items():
        assert name == one.name
        assert callable(one.load())


def test_points_in_time() -> None:
    now = datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert moment("90m", now) == now - timedelta(minutes=90)
    assert moment("7d", now) == now - timedelta(days=7)
    assert moment("2026-11-16") == datetime(2026, 11, 16, tzinfo=UTC)
    assert moment("2026-11-16T13:00+01:00") == now
    with pytest.raises(InvalidInput, match="'soon' is no point in time"):
        moment("soon")


def test_a_source_is_checked_without_spark(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no journal folder"):
        Options(source=str(tmp_path / "none")).check_source()
    with pytest.raises(NotFound, match="there is no journal in"):
        Options(source=str(tmp_path)).check_source()
    (tmp_path / "events").mkdir()
    with pytest.raises(NotFound, match=r"there is no archive in .* makes one"):
        Options(source="lake", warehouse=Warehouse(tmp_path)).check_source()
    with pytest.raises(PipelineError, match="cannot be reached"):
        Options(source="http://127.0.0.1:1").check_source()


def test_the_source_is_told_from_its_form() -> None:
    assert Options(source="http://h:1", key="k").source_options() == {"url": "http://h:1", "token": "k"}
    assert Options(source="./data", key="k").source_options() == {"path": "./data"}
    assert Options(source="lake").is_lake and not Options(source="lakes").is_lake
