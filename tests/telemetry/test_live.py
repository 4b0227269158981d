"""GET /events/live: what changes, told to whoever listens to any process, and to no more than there is room for."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.frontends.rest import live
from tests.crash.server import Connection, Server, eventually
from tests.processes.several import SeveralProcesses
from tests.rest.serving import Serving


class Listener:
    def __init__(self, port: int, query: str = "", headers: dict[str, str] | None = None) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._http.request("GET", f"/events/live{query}", headers=headers or {})
        self.response = self._http.getresponse()

    def events(self) -> Iterator[tuple[str, Any]]:
        """Kind and data of each, until the stream ends."""
        kind = ""
        for raw in self.response:
            name, _, text = raw.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = text
            elif name == "data":
                yield kind, json.loads(text)

    def wait_for(self, kind: str, **wanted: Any) -> Any:
        for found, data in self.events():
            if found == kind and wanted.items() <= data.items():
                return data
        raise AssertionError(f"the stream ended without {kind} {wanted}")

    def close(self) -> None:
        self._http.close()


def test_changes_of_queues_reach_listeners_of_every_process(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        by_process = server.by_process()
        listeners = [Listener(server.port) for _ in range(8)]  # so that both processes have one, all but surely
        for listener in listeners:
            kind = listener.response.getheader("Content-Type")
            assert (listener.response.status, kind) == (200, "text/event-stream")
            assert listener.wait_for("now")["partitions"] == {"0": "ready", "1": "ready"}
        one = next(iter(by_process.values()))
        for name in "abcd":  # in both partitions
            one.must(201, "PUT", f"/queues/{name}")
        one.must(200, "PATCH", "/queues/a", {"max_priority": 7})
        one.must(204, "DELETE", "/queues/b")
        for listener in listeners:
            listener.wait_for("queue", queue_name="a", change="put")
            listener.wait_for("queue", queue_name="b", change="deleted")
        for listener in listeners:
            listener.close()


def test_other_mode_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = {"state": "ready", "partitions": {"0": "ready"}}
    monkeypatch.setattr(live.LiveApi, "_modes_now", lambda _: dict(modes))
    with Serving(tmp_path) as serving:
        listener = Listener(int(serving.url.rpartition(":")[2]), "?seconds=2")
        listener.wait_for("now", state="ready")
        modes["state"] = "disk_full"
        assert [data for kind, data in listener.events() if kind == "modes"] == [modes]


def test_lost_cursor_is_an_alarm_that_is_told_and_one_that_is_over_too(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--segment-bytes", "1MiB", "--history-limit-bytes", "0") as server:
        http = server.connect()
        http.must(201, "PUT", "/queues/q")
        http.must(201, "PUT", "/journal/cursors/nightly", {"position": 1})
        listener = Listener(server.port)

        def is_lost() -> bool:
            """Everything but the last segments is kept for the cursor alone, and that is more than is allowed."""
            for _ in range(4):
                http.must(201, "POST", "/queues/q/messages", [{"payload": "x" * 100_000}] * 5)
            http.must(200, "POST", "/queues/q/purge")
            return bool(http.must(200, "GET", "/journal/cursors/nightly")["state"] == "lost")

        eventually("the cursor is lost", is_lost)
        raised = listener.wait_for("alarm", change="raised", name="cursor_lost:nightly")
        assert raised["level"] == "alarm" and raised["partition"] == 0
        http.must(204, "DELETE", "/journal/cursors/nightly")
        assert listener.wait_for("alarm", change="over", name="cursor_lost:nightly")["since_ms"] == raised["since_ms"]
        listener.close()


def test_stream_ends_when_it_should(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        assert [kind for kind, _ in Listener(server.port, "?seconds=0.1").events()] == ["now"]
        server.connect().must(201, "PUT", "/accounts/root", {"password": "a long password", "roles": ["admin"]})
        root = server.connect(user="root", password="a long password")
        root.must(201, "PUT", "/accounts/eye", {"roles": ["monitor"]})
        root.must(201, "PUT", "/accounts/ann", {"roles": ["user"]})
        keys = {name: root.must(201, "POST", f"/accounts/{name}/keys") for name in ("eye", "ann")}
        bearer = {name: {"Authorization": f"Bearer {key['key']}"} for name, key in keys.items()}
        assert Listener(server.port).response.status == 401
        assert Listener(server.port, headers=bearer["ann"]).response.status == 403
        listener, other = (Listener(server.port, headers=bearer["eye"]) for _ in range(2))
        assert listener.wait_for("now") and other.wait_for("now")
        assert root.call("GET", "/events/live?seconds=0")[0] == 400
        root.must(204, "DELETE", f"/accounts/eye/keys/{keys['eye']['key_id']}")
        assert list(listener.events()) == []
        third = Listener(server.port, headers={"Authorization": _basic()})
        assert third.wait_for("now")
        assert server.stop() == 0
        assert list(third.events()) == []


def _basic() -> str:
    return Connection(0, 1, user="root", password="a long password")._headers["Authorization"]


def test_clients_have_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 2)
    with Serving(tmp_path) as serving:
        port = int(serving.url.rpartition(":")[2])
        request = b"GET /events/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        deaf, other = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for one in (deaf, other):
            one.sendall(request)
            assert one.recv(64).startswith(b"HTTP/1.1 200 OK")
        assert Listener(port).response.status == 503
        other.close()
        eventually("there is room again", lambda: Listener(port, "?seconds=0.1").response.status == 200)
        body = b'{"wait_seconds":1}'
        waits = b"POST /queues/q/dequeue HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (
            len(body),
            body,
        )
        with serving.client() as client:
            client.put("/queues/q").raise_for_status()
        with socket.create_connection(("127.0.0.1", port)) as pipelined:
            pipelined.sendall(waits + request)
            answers = b""
            while answers.count(b"HTTP/1.1") < 2:
                answers += pipelined.recv(65_536)
            assert b"on a connection of its own" in answers
        deaf.close()


def test_client_that_takes_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = itertools.count()
    large = {"state": "x" * 4_000_000, "partitions": {}}
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    monkeypatch.setattr(live.LiveApi, "_modes_now", lambda _: {**large, "turn": next(turns)})
    with Serving(tmp_path) as serving:
        port = int(serving.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as deaf:
            deaf.sendall(b"GET /events/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert deaf.recv(64).startswith(b"HTTP/1.1 200 OK")
            eventually("there is room for another", lambda: Listener(port, "?seconds=0.1").response.status == 200)
