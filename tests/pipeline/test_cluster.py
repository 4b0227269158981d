"""Spark on other processes: a standalone cluster, and Spark Connect on top of it. The source, the jobs and the writer
do there what they do on `local`, and a command says on stderr nothing but what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.client import Client
from laneway.pipeline.lake import Warehouse
from tests.pipeline.cluster import EXECUTOR, WORKERS, Cluster, cluster_environment
from tests.pipeline.cluster_job import ROWS
from tests.pipeline.drivers import QUICK, ROOT
from tests.pipeline.histories import expected, write
from tests.pipeline.traffic import traffic
from tests.rest.serving import Serving

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal")
    write(folder, traffic(12), segment_bytes=64 << 10)
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=cluster_environment(),
        capture_output=True,
        text=True,
        timeout=380,
    )


def check(master: str, journal: Path, folder: Path) -> None:
    """The source, the jobs and the writer on `master`."""
    with Serving(folder / "served") as serving, Client(serving.url) as client:
        client.put_queue("written")
        ran = run("tests.pipeline.cluster_job", master, str(journal), str(folder / "warehouse"), serving.url)
        assert ran.returncode == 0, ran.stderr[-6000:]
        check_what_was_written(client)
    found = json.loads(ran.stdout.splitlines()[-1])
    check_what_was_read(found["read"], journal)
    check_jobs(found["jobs"], journal, Warehouse(folder / "warehouse"))
    assert found["shuffle_partitions"] == str(2 * WORKERS) and found["time_zone"] == "UTC"


def check_what_was_written(client: Client) -> None:
    bodies: Counter[Any] = Counter()
    while messages := client.receive("written", 1000, visibility_timeout=600):
        bodies.update(message.payload for message in messages)
    batch = [f"batch {n}" for n in range(ROWS)]
    assert bodies == Counter([*batch, *(f"unlucky {body}" for body in batch), *(f"stream {n}" for n in range(ROWS))])
    assert client.producer("nightly")["last_batch"] == 7 and client.producer("stream")["last_batch"] == 0


def check_what_was_read(found: dict[str, Any], journal: Path) -> None:
    rows = expected(journal)
    counts = Counter(row["kind"] for row in rows)
    assert found["kinds"] == {
        kind: [count, sum(row["message"] or 0 for row in rows if row["kind"] == kind)] for kind, count in counts.items()
    }
    assert found["processes"] == WORKERS


def check_jobs(said: dict[str, Any], journal: Path, warehouse: Warehouse) -> None:
    rows = expected(journal)
    published = sum(row["kind"] == "published" for row in rows)
    for name in ("audit of journal", "audit of lake"):
        verdict = said[name]["verdict"]
        assert (verdict["verdict"], verdict["events"], verdict["published"]) == ("clean", len(rows), published)
        assert verdict["acked"] == published
    assert sum(one["published"] for one in warehouse.read_arrow("slo").to_pylist()) == published
    assert sum(one["published"] for one in warehouse.read_arrow("hotkeys_tenants").to_pylist()) == published
    assert sum(one["arrived"] for one in warehouse.read_arrow("capacity_queues").to_pylist()) == published
    assert "Nothing was lost" in (warehouse.path / "report.html").read_text()


def check_command(master: str, journal: Path, folder: Path, *confs: str) -> None:
    """A command ends cleanly: with 0, and with nothing on stderr."""
    where = ("--source", str(journal), "--warehouse", str(folder / "lake"), "--master", master, "--json", *confs)
    ran = run("laneway", "pipeline", "run", "slo", *where)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["tables"]["slo_queues"] == 3


def test_a_standalone_cluster_reads_computes_and_writes_each_row_once(
    cluster: Cluster, journal: Path, tmp_path: Path
) -> None:
    check(cluster.url, journal, tmp_path)


def test_a_command_on_this_machine_says_nothing_but_its_result(journal: Path, tmp_path: Path) -> None:
    confs = [f"--conf={name}={value}" for name, value in {**QUICK, "spark.driver.memory": "600m"}.items()]
    check_command("local[1]", journal, tmp_path, *confs)


def test_a_command_on_a_standalone_cluster_says_nothing_but_its_result(
    cluster: Cluster, journal: Path, tmp_path: Path
) -> None:
    confs = [f"--conf={name}={value}" for name, value in {**QUICK, **EXECUTOR}.items()]
    check_command(cluster.url, journal, tmp_path, *confs)


@pytest.fixture(scope="module")
def connect(cluster: Cluster) -> str:
    """The last to need the cluster: its executors are the server's from here on."""
    return cluster.connect()


def test_spark_connect_reads_computes_and_writes_each_row_once(connect: str, journal: Path, tmp_path: Path) -> None:
    check(connect, journal, tmp_path)


def test_a_command_on_spark_connect_says_nothing_but_its_result(connect: str, journal: Path, tmp_path: Path) -> None:
    check_command(connect, journal, tmp_path)
