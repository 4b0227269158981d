"""laneway journal migrate, copy, check and dump with journals in PostgreSQL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.server import Server
from tests.postgres import PostgresServer

COUNT = 200
QUEUES = "abcdefgh"  # some of them in each partition


def laneway(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
    return subprocess.run(
        [sys.executable, "-m", "laneway", *arguments], capture_output=True, text=True, env=environment, timeout=60
    )


def done(*arguments: str) -> str:
    run = laneway(*arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout


def fill(server: Server) -> None:
    connection = server.connect()
    for queue in QUEUES:
        connection.must(201, "PUT", f"/queues/{queue}", {})
        for first in range(0, COUNT, 100):
            batch = [{"payload": n, "priority": n % 10} for n in range(first, first + 100)]
            connection.must(201, "POST", f"/queues/{queue}/messages", batch)
        connection.must(200, "POST", f"/queues/{queue}/dequeue", {"max_messages": 7, "visibility_timeout": 3600})
    connection.close()


def contents(server: Server) -> dict[str, Any]:
    connection = server.connect()
    found: dict[str, Any] = {}
    for queue in QUEUES:
        answer = connection.must(200, "POST", f"/queues/{queue}/dequeue", {"max_messages": COUNT})
        found[queue] = [(m["message_id"], m["payload"], m["priority"]) for m in answer["messages"]]
    connection.close()
    return found


def test_a_folder_goes_into_postgresql_and_back(tmp_path: Path, postgres_server: PostgresServer) -> None:
    """With what is leased, with message ids, of two partitions; and each is a server's to go on with."""
    url, folder, again = postgres_server.new_database(), tmp_path / "data", tmp_path / "again"
    with Server(folder, "--partitions", "2", "--segment-bytes", "1048576") as server:
        fill(server)
        running = laneway("journal", "copy", str(folder), url)
        assert running.returncode == 1 and "in use by process" in running.stderr
        server.stop()
    unready = laneway("journal", "copy", str(folder), url)
    assert unready.returncode == 1 and "run `laneway journal migrate URL` first" in unready.stderr
    assert "ran 0001-journals" in done("journal", "migrate", url)
    assert "is up to date" in done("journal", "migrate", url)
    there = json.loads(done("--json", "journal", "copy", str(folder), url))
    assert [one["partition"] for one in there] == [0, 1] and all(one["event_count"] > 10 for one in there)
    assert laneway("journal", "copy", str(folder), url).returncode == 1, "it is not empty any more"
    back = json.loads(done("--json", "journal", "copy", url, str(again)))
    assert back == there
    for number, place in enumerate((folder, folder / "partitions" / "1")):
        for flags, part in (((), place), (("--partition", str(number)), url)):
            report = json.loads(done("--json", "journal", "check", str(part), *flags))
            assert report["is_sound"]
            assert sum(one["commit_count"] for one in report["segments"]) == there[number]["commit_count"]
        assert _dumped(str(place)) == _dumped(url, "--partition", str(number))
    with Server(again) as server:
        expected = contents(server)
    assert [len(found) for found in expected.values()] == [COUNT - 7] * len(QUEUES)
    with Server(tmp_path / "other", "--journal", url) as server:
        assert contents(server) == expected
        held = laneway("journal", "copy", url, str(tmp_path / "third"))
        assert held.returncode == 1 and "is in use by process" in held.stderr


def _dumped(*arguments: str) -> list[str]:
    return done("journal", "dump", *arguments).splitlines()


def test_a_damaged_journal_is_not_copied(tmp_path: Path, postgres_server: PostgresServer) -> None:
    url, folder = postgres_server.new_database(), tmp_path / "data"
    done("journal", "migrate", url)
    with Server(folder, "--partitions", "1") as server:
        fill(server)
        server.stop()
    segment = folder / "0000000000000001.segment"
    data = bytearray(segment.read_bytes())
    data[1_000] ^= 1
    segment.write_bytes(data)
    refused = laneway("journal", "copy", str(folder), url)
    assert refused.returncode == 1 and "is damaged at byte" in refused.stderr and "Nothing was copied" in refused.stderr
    assert postgres_server.execute("SELECT 1 FROM laneway.journals", database=url.rpartition("/")[2]) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--durability", "none"), "durability is none, which is for journals in the data folder"),
        (("--partitions", "1", "--journal", "postgresql://127.0.0.1:1/none"), "cannot be reached"),
    ],
)
def test_a_server_says_what_is_wrong_with_its_journal(
    tmp_path: Path, postgres_server: PostgresServer, options: tuple[str, ...], complaint: str
) -> None:
    url = postgres_server.new_database()
    run = laneway("serve", "--data", str(tmp_path), "--http", "127.0.0.1:0", "--journal", url, *options)
    assert run.returncode == 1 and complaint in run.stderr, run.stderr


def test_a_folder_with_a_journal_is_not_left_unused_in_silence(tmp_path: Path) -> None:
    (tmp_path / "0000000000000001.segment").touch()
    run = laneway("serve", "--data", str(tmp_path), "--journal", "postgresql://ann:secret@127.0.0.1:1/none")
    assert run.returncode == 1 and "has a journal, and the setting journal names another one" in run.stderr


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    environment = os.environ | {"LANEWAY_JOURNAL": "postgresql://ann:secret@db/queue?password=secret"}
    shown = subprocess.run(
        [sys.executable, "-m", "laneway", "config"], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert shown.returncode == 0 and "ann:***@db" in shown.stdout and "secret" not in shown.stdout, shown.stdout


def test_only_a_journal_in_postgresql_needs_the_driver(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None; import laneway.node.node, laneway.node.supervisor; "
        "from laneway.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "serve", "--data", str(tmp_path), "--journal", "postgresql://db/queue"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 1 and "not installed: pip install laneway[postgres]" in run.stderr, run.stderr
