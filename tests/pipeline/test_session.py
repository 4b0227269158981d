"""What is said when Spark cannot run here; and that it runs with what the jobs rely on."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laneway.errors import PipelineUnavailable
from laneway.pipeline.session import NEEDED, check_available, check_java


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name in names else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "pyspark", "pandas")
    with pytest.raises(PipelineUnavailable, match=r"needs pyspark, pandas: pip install 'laneway\[pipeline\]'"):
        check_available()


def test_spark_connect_needs_no_java_but_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    without(monkeypatch, "grpc")
    with pytest.raises(PipelineUnavailable, match=r"pyspark\[connect\]"):
        check_available("sc://host")


def java(folder: Path, words: str) -> None:
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{words}' >&2\n")
    program.chmod(0o755)


def test_a_missing_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineUnavailable, match="none in JAVA_HOME"):
        check_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineUnavailable, match="no java on the PATH"):
        check_java()


@pytest.mark.parametrize(("words", "version"), [('openjdk version "11.0.2"', 11), ('java version "1.8.0_292"', 8)])
def test_an_old_java_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str, version: int) -> None:
    java(tmp_path, words)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineUnavailable, match=f"Java 17 or newer and .* is Java {version}:"):
        check_java()


def test_a_new_java_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, 'openjdk version "21" 2023-09-19')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_java()


def test_the_session_is_set_as_the_jobs_need_it(spark: SparkSession) -> None:
    assert {name: spark.conf.get(name) for name in NEEDED} == NEEDED
    assert spark.conf.get("spark.ui.enabled") == "false"
