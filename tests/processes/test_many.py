"""Many queues and many connections in a server of several processes. benchmarks/scale.py has fifty times as many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import amqp_frames as amqp
from benchmarks.amqp_load import AmqpConnection, consuming
from benchmarks.http_load import HttpConnection, Script, queue_path, request
from benchmarks.load import Load
from tests.crash.server import Connection, eventually
from tests.processes.several import SeveralProcesses

QUEUES, CONNECTIONS, CREATORS = 2_000, 100, 8


def name(number: int) -> str:
    return f"q-{number:06d}"


def create(server: SeveralProcesses) -> None:
    def creator(first: int) -> Script:
        for number in range(first, QUEUES, CREATORS):
            yield request("PUT", queue_path(name(number)), {})

    clients = [HttpConnection(("127.0.0.1", server.port), creator(first)) for first in range(CREATORS)]
    with Load(clients) as load:
        load.run(seconds=60, until=lambda: all(client.finished for client in clients))


def listed(http: Connection) -> Iterator[str]:
    cursor = ""
    while True:
        page = http.must(200, "GET", f"/queues?limit=1000{cursor}")
        yield from (queue["queue_name"] for queue in page["queues"])
        if page["next_cursor"] is None:
            return
        cursor = f"&cursor={page['next_cursor']}"


def test_every_process_has_all_queues_also_when_one_was_killed(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data", partitions=4) as server:
        create(server)
        names = [name(number) for number in range(QUEUES)]
        for http in server.by_process().values():
            assert list(listed(http)) == names
        first = next(iter(server.by_process().values()))
        some = names[:: QUEUES // 20]
        for queue in some:
            first.must(201, "POST", f"/queues/{queue}/messages", {"payload": queue})
        server.kill_child(1)
        eventually("all is served again", lambda: server.whole() and first.call("GET", "/readyz")[0] == 200)
        for http in server.by_process().values():
            assert list(listed(http)) == names
        for queue in some:
            (message,) = first.must(200, "POST", f"/queues/{queue}/dequeue", {})["messages"]
            assert message["payload"] == queue


def test_consumers_of_all_processes_get_what_is_for_them(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data", partitions=4) as server:
        address = ("127.0.0.1", server.amqp_port)
        clients = [AmqpConnection(address) for _ in range(CONNECTIONS)]
        for number, client in enumerate(clients):
            client.declare(name(number), {})
            client.ask(consuming(name(number), "me"), amqp.CONSUME_OK)
        http = server.connect()
        shown = http.must(200, "GET", "/processes")["processes"]
        assert sum(one["connection_count"] for one in shown) >= CONNECTIONS
        assert all(one["connection_count"] > 10 for one in shown)
        publisher = AmqpConnection(address)
        publisher.socket.sendall(b"".join(amqp.published(name(at), b"hello") for at in range(CONNECTIONS)))
        for client in clients:
            client.answer(amqp.DELIVER)
            client.socket.close()
        publisher.close()
