"""Several processes whose partitions have their journals in two PostgreSQL databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.journal.postgres import Database
from tests.crash.server import BROKEN, eventually
from tests.postgres import PostgresServer
from tests.processes.several import SeveralProcesses

QUEUES = "abcdefgh"  # some of them in each partition


@pytest.mark.timeout(120)
def test_partitions_are_shared_by_databases_and_survive_their_processes(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    urls = [postgres_server.new_database() for _ in range(2)]
    databases = [Database(url) for url in urls]
    for database in databases:
        database.migrate()
    both = ("--journal", " ".join(urls))
    with SeveralProcesses(tmp_path / "data", *both, partitions=3) as server:
        connection = server.connect()
        for queue in QUEUES:
            connection.must(201, "PUT", f"/queues/{queue}", {})
            connection.must(201, "POST", f"/queues/{queue}/messages", [{"payload": n} for n in range(50)])
        assert [database.journals() for database in databases] == [[0, 2], [1]]
        assert all(database.has_history() for database in databases)
        for at in (0, 1):
            server.kill_child(at)
            eventually("both processes run", server.whole)

            def answers() -> bool:
                try:
                    asked = [server.connect().call("GET", f"/queues/{queue}/stats")[0] for queue in QUEUES]
                except BROKEN:
                    return False
                return asked == [200] * len(QUEUES)

            eventually("all queues answer", answers)
        connection = server.connect()
        for queue in QUEUES:
            found = connection.must(200, "POST", f"/queues/{queue}/dequeue", {"max_messages": 20})["messages"]
            assert [one["payload"] for one in found] == list(range(20))
            handles = [{"receipt_handle": one["receipt_handle"]} for one in found]
            connection.must(200, "POST", f"/queues/{queue}/ack", handles)
        assert server.stop() == 0
    one_missing = SeveralProcesses(tmp_path / "data", "--journal", urls[0], partitions=3)
    with pytest.raises(AssertionError, match="the journal of partition 1 is at none of the servers"):
        one_missing.start()
    with SeveralProcesses(tmp_path / "data", *both, partitions=3) as server:
        connection = server.connect()
        for queue in QUEUES:
            found = connection.must(200, "POST", f"/queues/{queue}/dequeue", {"max_messages": 100})["messages"]
            assert [one["payload"] for one in found] == list(range(20, 50))
    for database in databases:
        database.close()
