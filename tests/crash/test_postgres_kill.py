"""A server whose journal is in PostgreSQL: either of them is killed under load, and nothing confirmed is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from laneway.journal.postgres import Database
from tests.postgres import PostgresServer

from .load import QUEUE, Account, Load
from .server import BROKEN, Server, eventually
from .test_kill import SMALL, check, drain, run, work_goes_on


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.close()


def new_database(postgres: PostgresServer) -> str:
    Database(url := postgres.new_database()).migrate()
    return url


@pytest.mark.timeout(180)
def test_server_is_killed_under_load(tmp_path: Path, own_postgres: PostgresServer) -> None:
    run(Server(tmp_path / "data", *SMALL, "--journal", new_database(own_postgres)), 1, 4)


@pytest.mark.timeout(180)
def test_postgresql_is_killed_under_load(tmp_path: Path, own_postgres: PostgresServer) -> None:
    """The server goes on by itself once it is back. Meanwhile it says that nothing can be written."""
    random, account = Random(3), Account()
    with Server(tmp_path / "data", *SMALL, "--journal", new_database(own_postgres)) as server:
        connection = server.connect()
        connection.must(201, "PUT", QUEUE, {"max_receive_count": 1_000_000, "retention_seconds": 86_400})
        pid = server.pid
        load = Load(server, account, 3)
        for name, batch in (("publisher-1", 1), ("publisher-2", 30)):
            load.publish(name, batch)
        for name, limit in (("consumer-1", 1), ("consumer-2", 50)):
            load.consume(name, limit)
        try:
            for kill in range(4):
                work_goes_on(account)
                time.sleep(random.random() ** 2 / 2)  # the seed draws the moment; nothing is waited for
                own_postgres.kill()
                if kill == 0:
                    eventually(
                        "publishers are refused",
                        lambda: connection.call("POST", f"{QUEUE}/messages", {"payload": 1})[0] == 503,
                    )
                    assert connection.call("GET", f"{QUEUE}/stats")[0] == 200
                own_postgres.start()
            load.stop("consumer")
            work_goes_on(account)
        finally:
            load.stop()
        assert server.pid == pid
        tail = drain(server, account)
    assert not account.wrong, account.wrong[:5]
    check(account, tail)


def test_server_whose_journal_was_taken_confirms_nothing_more_and_ends(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    url = new_database(own_postgres)
    with Server(tmp_path / "one", "--journal", url) as first:
        connection = first.connect()
        connection.must(201, "PUT", QUEUE, {})
        connection.must(201, "POST", f"{QUEUE}/messages", {"payload": "kept"})
        taken = "UPDATE laneway.journals SET claim = claim + 1, holder = NULL, holder_pid = NULL"
        own_postgres.execute(taken, database=url.rpartition("/")[2])
        try:
            status = connection.call("POST", f"{QUEUE}/messages", {"payload": "of nobody"})[0]
        except BROKEN:
            status = 503
        assert status == 503
        eventually("the first one ends", lambda: first._process is not None and first._process.poll() == 1)
        with Server(tmp_path / "two", "--journal", url) as second:
            found = second.connect().must(200, "POST", f"{QUEUE}/dequeue", {"max_messages": 10})
            assert [message["payload"] for message in found["messages"]] == ["kept"]
