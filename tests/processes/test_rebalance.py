"""`laneway rebalance` on a real server of several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.core.partitions import home
from tests.crash.server import Server, eventually
from tests.processes.several import SeveralProcesses

QUEUES = [f"queue-{number}" for number in range(12)]
AWAY = [name for name in QUEUES if home("/", name, 4)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SeveralProcesses]:
    """Of four partitions in two processes, on a folder that had one, with queues in it."""
    with Server(tmp_path / "data") as one:
        connection = one.connect()
        for name in QUEUES:
            connection.must(201, "PUT", f"/queues/{name}", {"visibility_timeout": 300})
            connection.must(201, "POST", f"/queues/{name}/messages", {"payload": f"before {name}"})
        connection.close()
        one.stop()
    with SeveralProcesses(tmp_path / "data", processes=2, partitions=4) as several:
        yield several


def rebalance(server: Server, *options: str) -> Any:
    command = [sys.executable, "-m", "laneway", "rebalance", "--url", f"http://127.0.0.1:{server.port}", *options]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def homes(server: Server) -> dict[str, int]:
    """Where each queue is, as a dry run of all moves elsewhere says."""
    (dry,) = rebalance(server, "--dry-run", "--all")
    return {one["queue_name"]: one["from"] for one in dry["moves"]}


def test_raising_the_number_leaves_queues_and_rebalancing_takes_them_home(server: SeveralProcesses) -> None:
    connection = server.connect()
    assert homes(server) == dict.fromkeys(AWAY, 0)
    new = next(name for name in (f"new-{number}" for number in range(99)) if home("/", name, 4) == 3)
    connection.must(201, "PUT", f"/queues/{new}")
    assert new not in homes(server)
    handle = _taken(connection, AWAY[0])["receipt_handle"]

    begun, status = rebalance(server)
    assert sorted(one["queue_name"] for one in begun["moves"]) == sorted(AWAY)
    assert (status["moved_queues"], status["failed"], status["is_running"]) == (len(AWAY), [], False)
    assert status["moved_messages"] == len(AWAY)
    assert homes(server) == {} and rebalance(server) == [{"move_count": 0, "moves": [], "is_dry_run": False}]
    for each in server.by_process().values():
        for name in QUEUES[1:]:
            found = each.must(200, "GET", f"/queues/{name}/messages?state=ready,leased")["messages"]
            assert [one["payload"] for one in found] == [f"before {name}"]
        each.close()
    connection.must(200, "POST", f"/queues/{AWAY[0]}/ack", [{"receipt_handle": handle}])

    # One that is moved by name stays where it was moved to.
    at_home = home("/", QUEUES[0], 4)
    there = (at_home + 1) % 4
    (begun,) = rebalance(server, "--queue", QUEUES[0], "--to", str(there), "--no-wait")
    assert begun["moves"] == [{"vhost": "/", "queue_name": QUEUES[0], "from": at_home, "to": there}]
    eventually("it has moved", lambda: not connection.must(200, "GET", "/rebalance")["is_running"])
    assert rebalance(server)[0]["move_count"] == 0 and homes(server) == {QUEUES[0]: there}
    server.stop()
    server.start()
    assert homes(server) == {QUEUES[0]: there}
    rebalance(server, "--queue", QUEUES[0])
    assert homes(server) == {}


def _taken(connection: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = connection.must(200, "POST", f"/queues/{name}/dequeue", {"max_messages": 1})["messages"][0]
    return found
