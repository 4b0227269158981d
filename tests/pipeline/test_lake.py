"""The warehouse: tables that change as a whole, tables that grow, and what is left behind."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laneway.errors import InvalidInput, NotFound
from laneway.pipeline.lake import LEFTOVER_SECONDS, Warehouse


def numbers(warehouse: Warehouse, name: str) -> list[int]:
    return sorted(row["id"] for row in warehouse.read_arrow(name).to_pylist())


def test_a_table_is_overwritten_as_a_whole_and_its_readers_go_on(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "lake")
    assert warehouse.tables() == []
    assert warehouse.overwrite("counts", spark.range(3), "run-1") == 3
    reading = warehouse.read(spark, "counts")  # files are listed now, read later
    assert warehouse.overwrite("counts", spark.range(10, 12), "run-2") == 2
    assert sorted(row.id for row in reading.collect()) == [0, 1, 2]
    assert numbers(warehouse, "counts") == [10, 11]
    assert sorted(row.id for row in spark.read.parquet(str(tmp_path / "lake" / "counts")).collect()) == [10, 11]
    warehouse.overwrite("counts", spark.range(1), "run-3")
    assert not (tmp_path / "lake" / ".versions" / "counts" / "run-1").exists()
    assert (tmp_path / "lake" / ".versions" / "counts" / "run-2").exists()
    (info,) = warehouse.tables()
    assert (info.name, info.rows, info.run_id) == ("counts", 1, "run-3")


def test_a_run_that_fails_leaves_the_table_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    warehouse.overwrite("counts", spark.range(3), "run-1")
    failing = spark.range(3).selectExpr("if(id = 2, raise_error('no'), id) AS id")
    with pytest.raises(Exception, match="no"):
        warehouse.overwrite("counts", failing, "run-2")
    assert numbers(warehouse, "counts") == [0, 1, 2]


def test_what_is_half_written_stays_for_a_day(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    half, old = (tmp_path / ".versions" / "counts" / name for name in ("half", "old"))
    half.mkdir(parents=True)
    old.mkdir()
    long_ago = time.time() - LEFTOVER_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    warehouse.overwrite("counts", spark.range(1), "run-1")
    assert half.exists() and not old.exists()


def test_a_run_adds_its_share_once(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path)
    assert warehouse.append("growing", spark.range(2), "run-1") == 2
    assert warehouse.append("growing", spark.range(5, 6), "run-2") == 1
    assert warehouse.append("growing", spark.range(100), "run-1") == 2  # tried again: it is there already
    assert numbers(warehouse, "growing") == [0, 1, 5]
    assert {row.run for row in warehouse.read(spark, "growing").collect()} == {"run-1", "run-2"}
    assert list((tmp_path / ".staging").iterdir()) == []
    with pytest.raises(InvalidInput, match="grows"):
        warehouse.overwrite("growing", spark.range(1), "run-3")
    warehouse.overwrite("whole", spark.range(1), "run-3")
    with pytest.raises(InvalidInput, match="does not grow"):
        warehouse.append("whole", spark.range(1), "run-4")


def test_a_warehouse_can_be_moved(spark: SparkSession, tmp_path: Path) -> None:
    Warehouse(tmp_path / "here").overwrite("counts", spark.range(3), "run-1")
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert numbers(Warehouse(tmp_path / "there"), "counts") == [0, 1, 2]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    warehouse = Warehouse(tmp_path / "new")
    assert warehouse.write_file("plan.json", "{}").read_text() == "{}"
    warehouse.write_file("plan.json", "[]")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["plan.json"]


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="s3a://bucket/lake"):
        Warehouse("s3a://bucket/lake")
    with pytest.raises(InvalidInput, match="no name of a table"):
        Warehouse(tmp_path).place("../etc")
    with pytest.raises(NotFound, match=r"'slo'.*none yet"):
        Warehouse(tmp_path).version("slo")
    assert Warehouse(f"file://{tmp_path}").path == tmp_path
