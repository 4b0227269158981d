"""What several processes show of themselves is one server: connections, settings, loads, health."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.crash.server import Connection, eventually
from tests.processes.several import SeveralProcesses


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeveralProcesses]:
    folder = tmp_path_factory.mktemp("one")
    (folder / "laneway.toml").write_text('log_level = "info"\n')
    with SeveralProcesses(folder / "data", "--config", str(folder / "laneway.toml")) as server:
        yield server


def amqp(server: SeveralProcesses) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp_port))


@pytest.fixture
def http(server: SeveralProcesses) -> Iterator[dict[int, Connection]]:
    """A connection to each process, by its pid."""
    found = server.by_process()
    assert len(found) == 2
    yield found
    for connection in found.values():
        connection.close()


def listed(connection: Connection, protocol: str = "amqp") -> list[dict[str, Any]]:
    return list(connection.must(200, "GET", f"/connections?protocol={protocol}")["connections"])


def test_connections_of_all_processes_are_listed_by_each(server: SeveralProcesses, http: dict[int, Connection]) -> None:
    made = [amqp(server) for _ in range(8)]
    try:
        seen = [[one["connection_id"] for one in listed(each)] for each in http.values()]
        assert seen[0] == seen[1] and len(seen[0]) == 8
        first = next(iter(http.values()))
        pages, cursor = [], ""
        while True:
            page = first.must(200, "GET", f"/connections?protocol=amqp&limit=3{cursor}")
            pages += [one["connection_id"] for one in page["connections"]]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert pages == seen[0]
        assert page["counts"]["amqp"] == 8 and page["counts"]["http"] >= 2
    finally:
        for connection in made:
            connection.close()


def test_connection_is_shown_and_closed_by_whichever_process_is_asked(
    server: SeveralProcesses, http: dict[int, Connection]
) -> None:
    for asked in http.values():
        made = [amqp(server) for _ in range(6)]
        for connection in made:
            channel = connection.channel()
            channel.queue_declare("watched", durable=True)
            channel.basic_consume("watched", lambda *_: None, consumer_tag="me")
        ids = [one["connection_id"] for one in listed(asked)]
        for connection_id in ids:
            shown = asked.must(200, "GET", f"/connections/{connection_id}")
            assert shown["channel_count"] == 1
            (channel_shown,) = asked.must(200, "GET", f"/connections/{connection_id}/channels")["channels"]
            assert channel_shown["consumer_count"] == 1
            (consumer,) = asked.must(200, "GET", f"/connections/{connection_id}/consumers")["consumers"]
            assert (consumer["queue_name"], consumer["consumer_tag"]) == ("watched", "me")
        of_queue = asked.must(200, "GET", "/queues/watched/consumers")["consumers"]
        assert sorted(one["connection_id"] for one in of_queue) == sorted(ids)
        for connection_id in ids:
            asked.must(204, "DELETE", f"/connections/{connection_id}?reason=test")
        for connection in made:
            with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="test"):
                connection.process_data_events(10)
        eventually("they are gone", lambda asked=asked: listed(asked) == [])


def test_processes_tell_what_each_has_to_do(server: SeveralProcesses, http: dict[int, Connection]) -> None:
    for asked in http.values():
        asked.call("PUT", "/queues/busy")
        asked.must(201, "POST", "/queues/busy/messages", {"payload": "x"})

        def busy(asked: Connection = asked) -> Any:
            shown = asked.must(200, "GET", "/processes")
            return shown if any(one["queue_name"] == "busy" for one in shown["busiest_queues"]) else None

        shown = eventually("the queue is among the busiest", busy)
        assert [one["pid"] for one in shown["processes"]] == server.children()
        assert [one["partitions"] for one in shown["processes"]] == [[0], [1]]
        assert all(one["state"] == "ready" and one["resident_bytes"] > 1e7 for one in shown["processes"])
        assert all(one["uptime_seconds"] > 0 and one["connection_count"] for one in shown["processes"])
        assert sum(one["published_per_second"] for one in shown["processes"]) > 0
        assert asked.must(200, "GET", "/processes?queues=0")["busiest_queues"] == []


def test_reload_reaches_all_processes_and_those_that_are_started_later(
    server: SeveralProcesses, http: dict[int, Connection]
) -> None:
    file = server.folder.with_name("laneway.toml")
    asked = list(http.values())[1]
    file.write_text('log_level = "nonsense"\n')
    assert asked.call("POST", "/config/reload")[0] == 409
    file.write_text('log_level = "debug"\nmax_queues = 7\n')
    done = asked.must(200, "POST", "/config/reload")
    assert done["changed"] == ["log_level"] and done["needs_restart"] == ["max_queues"]
    again = [each.must(200, "POST", "/config/reload") for each in http.values()]
    assert [one["changed"] for one in again] == [[], []]
    file.write_text('log_level = "debug"\nmax_queues = 7\nshutdown_grace_seconds = 5\n')
    server.signal(signal.SIGHUP)
    said = "reloaded: changed: shutdown_grace_seconds"
    eventually("all have reloaded", lambda: server.log().count(said) == 2)
    os.kill(list(http)[1], signal.SIGKILL)
    eventually("another one took its place", lambda: list(http)[1] not in server.children() and server.whole())
    for each in server.by_process().values():
        done = each.must(200, "POST", "/config/reload")
        assert done["changed"] == [] and done["needs_restart"] == ["max_queues"]


def test_ready_as_long_as_every_partition_is_reached(server: SeveralProcesses, http: dict[int, Connection]) -> None:
    first, second = http
    os.kill(second, signal.SIGSTOP)
    try:
        assert http[first].must(200, "GET", "/readyz") == {"state": "ready"}  # stopped, and nobody knows it yet
    finally:
        os.kill(second, signal.SIGCONT)
    assert http[second].must(200, "GET", "/healthz")["state"] == "alive"
    os.kill(second, signal.SIGKILL)
    status, answer = eventually(
        "the process that is left says so", lambda: _unless(200, http[first].call("GET", "/readyz/consume"))
    )
    assert status == 503 and "partition 1 is not ready: its state is unreachable" in answer["error"]["message"]
    eventually("it is whole again", lambda: http[first].call("GET", "/readyz")[0] == 200)


def _unless(status: int, found: tuple[int, Any]) -> tuple[int, Any] | None:
    return None if found[0] == status else found
