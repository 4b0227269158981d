"""`laneway top`, against one process and several."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from laneway.cli.top import ranges
from tests.crash.server import Server, eventually
from tests.processes.several import SeveralProcesses


def top(server: Server, *options: str) -> str:
    command = [sys.executable, "-m", "laneway", "top", "--url", f"http://127.0.0.1:{server.port}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_top_shows_processes_and_busy_queues(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        http = server.connect()
        http.call("PUT", "/queues/busy")

        def is_busy() -> bool:
            http.must(201, "POST", "/queues/busy/messages", {"payload": "x"})
            return bool(http.must(200, "GET", "/processes")["busiest_queues"])

        eventually("it is busy", is_busy)
        written = top(server, "--times", "2", "--every", "10ms")
        assert written.count("process  pid") == 2 and written.count("busy ") == 2
        assert written.count("partition  process") == 2
        lines = [json.loads(line) for line in top(server, "--json", "--times", "2", "--every", "10ms").splitlines()]
        assert [[one["pid"] for one in line["processes"]] for line in lines] == [server.children()] * 2
        assert lines[0]["busiest_queues"][0]["queue_name"] == "busy"
        own = http.must(200, "GET", "/stats?prefix=busy")["queues"][0]
        partitions = {one["partition"]: one for one in lines[0]["partitions"]}
        assert {number: one["process"] for number, one in partitions.items()} == {0: 0, 1: 1}
        assert partitions[own["partition"]]["waiting"] == own["waiting_count"] > 0
        http.must(201, "PUT", "/queues/deep")
        http.must(201, "POST", "/queues/deep/messages", [{"payload": "x"}] * 1000)
        for sort in ("depth", "age"):
            (line,) = top(server, "--json", "--times", "1", "--sort", sort, "--queues", "1").splitlines()
            assert json.loads(line)["busiest_queues"][0]["queue_name"] == {"depth": "deep", "age": "busy"}[sort]
        assert json.loads(line)["alerts"] == []
        assert "busy" not in top(server, "--queues", "0", "--times", "1")


def test_top_of_a_server_of_one_process_shows_that_one(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        (line,) = top(server, "--json", "--times", "1").splitlines()
        (process,) = json.loads(line)["processes"]
        assert (process["process"], process["pid"], process["partitions"]) == (0, server.pid, [0])


def test_many_partitions_are_shown_in_short() -> None:
    assert [ranges(list(range(0, end, 2))) for end in (0, 1, 8, 20)] == ["-", "0", "0,2,4,6", "0,2,…,18 (10)"]
