"""A wrong master is one line after a few seconds, whatever Spark itself would do about it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from laneway.cli import cli
from laneway.errors import InvalidInput, PipelineUnavailable
from laneway.pipeline import masters
from laneway.pipeline.masters import addresses, check_master, check_reachable
from tests.pipeline.drivers import ROOT, environment
from tests.pipeline.histories import write
from tests.pipeline.traffic import traffic


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[2]", "local[*]", "local[*,3]", "local-cluster[2,1,700]", "spark://host:7077"),
        *("spark://one:7077,two:7077", "spark://[::1]:7077", "k8s://https://host", "yarn", "sc://host"),
        *("sc://host:443/;token=x", "sc://host/;use_ssl=true"),
    ],
)
def test_masters_that_spark_knows_are_taken(master: str) -> None:
    check_master(master)


@pytest.mark.parametrize(
    ("master", "words"),
    [
        *((one, "is no Spark") for one in ("", "host:7077", "local[", "local[x]", "local[0]", "mesos://h", "http://h")),
        *((one, "is no Spark") for one in ("local-cluster[2,1]", "spark://", "sc://", "nonsense")),
        *((one, "names no address") for one in ("spark://host", "spark://h:99999", "sc://h:0", "k8s://:443")),
    ],
)
def test_a_master_that_is_none_is_named(master: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        check_master(master)
    assert repr(master) in refused.value.message


def test_addresses_have_the_usual_ports() -> None:
    assert addresses("spark://one:7077,[::1]:7078") == [("one", 7077), ("::1", 7078)]
    assert addresses("sc://host/;token=x") == [("host", 15002)]
    assert addresses("k8s://https://host") == [("host", 443)] and addresses("k8s://http://host") == [("host", 80)]
    assert addresses("local[2]") == addresses("yarn") == []


@pytest.fixture
def closed_port() -> Iterator[int]:
    """One that nobody listens on: it is taken, and nobody else gets it meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def mute_port() -> Iterator[int]:
    """Connections are taken here, and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize("form", ["spark://{}:{}", "k8s://https://{}:{}", "sc://{}:{}"])
@pytest.mark.parametrize("host", ["127.0.0.1", "nowhere.invalid"])
def test_a_command_tells_in_one_line_and_a_few_seconds_that_nobody_is_there(
    form: str, host: str, closed_port: int, tmp_path: Path
) -> None:
    write(tmp_path / "data", traffic(1))
    master = form.format(host, closed_port)
    where = ("--source", str(tmp_path / "data"), "--warehouse", str(tmp_path / "lake"), "--master", master)
    began = time.monotonic()
    failed = CliRunner().invoke(cli, ("pipeline", "run", "slo", *where), prog_name="laneway")
    assert time.monotonic() - began < 15
    assert failed.exit_code == 1 and failed.stderr.count("\n") == 1
    assert failed.stderr.startswith(f"laneway: there is no Spark at {master}: ")
    assert ("no host is called nowhere" if host != "127.0.0.1" else "Connection refused") in failed.stderr


def test_one_of_several_masters_is_enough(closed_port: int, mute_port: int) -> None:
    check_reachable(f"spark://127.0.0.1:{closed_port},127.0.0.1:{mute_port}")


def test_a_listener_that_is_no_spark_connect_server_is_told_from_one(
    mute_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masters, "GREETING_SECONDS", 0.5)
    with pytest.raises(PipelineUnavailable, match="is no Spark Connect server"):
        check_reachable(f"sc://127.0.0.1:{mute_port}")


def test_yarn_without_its_configuration_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(PipelineUnavailable, match="HADOOP_CONF_DIR"):
        check_reachable("yarn")


STARTS = """
from laneway.cli.pipeline import quiet_session
from laneway.errors import PipelineUnavailable
from laneway.pipeline import session
session.START_SECONDS["spark://"] = 6.0
try:
    quiet_session({master!r}, "laneway-tests", {{"spark.driver.memory": "500m"}})
except PipelineUnavailable as error:
    print(error.message)
"""


def test_a_start_that_does_not_end_is_ended(mute_port: int) -> None:
    master = f"spark://127.0.0.1:{mute_port}"
    ran = subprocess.run(
        [sys.executable, "-c", STARTS.format(master=master)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stderr == ""
    assert ran.stdout.startswith(f"there is no Spark at {master}: it did not take us in within 6 seconds")


def test_who_says_how_finely_to_shuffle_is_heard(spark: SparkSession) -> None:
    """The session of the tests was started with 1, which no machine would be given."""
    assert spark.conf.get(masters.SHUFFLE_PARTITIONS) == "1"
    masters.fit_shuffles(spark, "local[1]", {masters.SHUFFLE_PARTITIONS: "200"})
    assert spark.conf.get(masters.SHUFFLE_PARTITIONS) == "1"


def test_a_cluster_that_gives_no_executor_is_not_waited_for_for_ever(spark: SparkSession) -> None:
    """A local Spark has none beside its driver."""
    with pytest.raises(PipelineUnavailable, match="gave no executor within 0 seconds"):
        masters.await_executors(spark, "spark://host:7077", seconds=0.2)
