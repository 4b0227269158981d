"""What a clean stop keeps, and who may open a folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .server import Server

QUEUE = "/queues/q"


def test_a_lease_is_valid_across_a_clean_restart(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with server:
        connection = server.connect()
        connection.must(201, "PUT", QUEUE, {})
        sent = connection.must(201, "POST", f"{QUEUE}/messages", [{"payload": n} for n in range(3)])
        leased = connection.must(
            200, "POST", f"{QUEUE}/dequeue", {"max_messages": 2, "visibility_timeout": 600, "consumer_id": "ann"}
        )["messages"]
        assert [m["message_id"] for m in leased] == [s["message_id"] for s in sent[:2]]
        assert server.stop() == 0
        server.start()
        connection = server.connect()
        handle = {"receipt_handle": leased[0]["receipt_handle"]}
        connection.must(204, "DELETE", f"{QUEUE}/messages/{leased[0]['message_id']}", handle)
        connection.must(409, "DELETE", f"{QUEUE}/messages/{leased[0]['message_id']}", handle)
        rest = connection.must(200, "POST", f"{QUEUE}/dequeue", {"max_messages": 10})["messages"]
        assert [m["message_id"] for m in rest] == [sent[2]["message_id"]], "the other lease holds too"
        nack = {"receipt_handle": leased[1]["receipt_handle"]}
        connection.must(200, "POST", f"{QUEUE}/messages/{leased[1]['message_id']}/nack", nack)
        again = connection.must(200, "POST", f"{QUEUE}/dequeue", {})["messages"]
        assert [(m["message_id"], m["receive_count"]) for m in again] == [(sent[1]["message_id"], 2)]


def test_an_acked_message_and_a_lost_lease_after_a_kill(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    with server:
        connection = server.connect()
        connection.must(201, "PUT", QUEUE, {})
        connection.must(201, "POST", f"{QUEUE}/messages", [{"payload": n} for n in range(2)])
        leased = connection.must(200, "POST", f"{QUEUE}/dequeue", {"max_messages": 2, "visibility_timeout": 1})
        first, second = leased["messages"]
        connection.must(
            204, "DELETE", f"{QUEUE}/messages/{first['message_id']}", {"receipt_handle": first["receipt_handle"]}
        )
        server.kill()
        server.start()
        connection = server.connect()
        again = connection.must(200, "POST", f"{QUEUE}/dequeue", {"max_messages": 10, "wait_seconds": 10})["messages"]
        assert [m["message_id"] for m in again] == [second["message_id"]]
        assert again[0]["receipt_handle"] != second["receipt_handle"]
        stale = {"receipt_handle": second["receipt_handle"]}
        answer = connection.must(409, "DELETE", f"{QUEUE}/messages/{second['message_id']}", stale)
        assert answer["error"]["code"] == "lease_stale"


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        second = subprocess.run(
            [sys.executable, "-m", "laneway", "serve", "--data", str(server.folder), "--http", "127.0.0.1:0"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert second.returncode != 0
        assert f"is in use by process {server.pid}" in second.stderr
        assert "Traceback" not in second.stderr
        server.connect().must(200, "GET", "/readyz")
    with Server(tmp_path / "data") as server:  # the lock of a killed process is no lock
        server.connect().must(200, "GET", "/readyz")
