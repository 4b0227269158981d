"""A PostgreSQL with a synchronous standby: what is confirmed is there too, whoever dies or cancels a commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from laneway.errors import JournalAway
from laneway.journal.postgres import Acks, Database, PostgresJournal, writer
from tests.crash.server import BROKEN, Server, eventually
from tests.journal.contract import published, replayed
from tests.postgres import PostgresServer, program, run

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


class Pair:
    def __init__(self) -> None:
        self.primary, self.standby = PostgresServer(), PostgresServer("hot_standby_feedback=on")
        self.primary.make()
        self.primary.start()
        self.standby.make_standby_of(self.primary, "second")
        self.primary.settings += ["synchronous_standby_names=second"]
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'second'")
        self.primary.execute("SELECT pg_reload_conf()")
        self.standby.start()
        self.is_in_sync()
        self.url = self.primary.new_database()
        Database(self.url).migrate()
        self._journal_count = 0

    def is_in_sync(self) -> None:
        state = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        eventually("the standby follows", lambda: self.primary.execute(state))

    def journal(self, acks: Acks = "all") -> PostgresJournal:
        self._journal_count += 1
        journal = PostgresJournal(Database(self.url, acks=acks), self._journal_count, patience_s=1)
        assert replayed(journal) == []
        return journal

    def close(self) -> None:
        self.primary.close()
        self.standby.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    try:
        yield pair
    finally:
        pair.close()


def written(journal: PostgresJournal, seq: int) -> Future[Any]:
    """Written by a thread, again and again if it has to be, as the broker's writer does it."""
    journal.stage(published(seq))
    sealed = journal.seal()
    assert sealed is not None
    future: Future[Any] = Future()
    over = threading.Event()

    def write() -> None:
        while True:
            try:
                future.set_result(journal.write(sealed))
            except JournalAway:
                if over.wait(0.05):
                    return
            except BaseException as trouble:
                future.set_exception(trouble)
            else:
                return
            if future.done():
                return

    threading.Thread(target=write, daemon=True).start()
    return future


def cancelled_while_waiting(pair: Pair) -> None:
    """Somebody cancels the statement of a commit that waits for the standby, which PostgreSQL calls a success."""
    journal = pair.journal()
    written(journal, 1).result(20)
    pair.standby.kill()
    doubtful = written(journal, 2)
    (pid,) = eventually("the commit waits", lambda: pair.primary.execute(WAITING))[0]
    pair.primary.execute("SELECT pg_cancel_backend(%s)", [pid])
    other = f"{WAITING} AND pid <> {pid}"
    try:
        eventually("it waits again, or is confirmed", lambda: doubtful.done() or pair.primary.execute(other))
        assert not doubtful.done(), "confirmed, and no standby has it"
    finally:
        pair.standby.start()
        doubtful.result(20)
        journal.close()


def test_cancelled_commit_is_not_confirmed_before_the_standby_has_it(pair: Pair) -> None:
    cancelled_while_waiting(pair)


def test_a_warning_that_is_overlooked_would_confirm_it(pair: Pair) -> None:
    """So the test above can fail."""
    deaf = mock.patch.object(writer.PostgresWriter, "_connect", lambda self: self._database.connect())
    with deaf, pytest.raises(AssertionError, match="confirmed, and no standby has it"):
        cancelled_while_waiting(pair)


def test_with_acks_of_the_leader_nobody_waits_for_the_standby(pair: Pair) -> None:
    pair.standby.kill()
    try:
        journal = pair.journal("leader")
        written(journal, 1).result(20)
        journal.close()
    finally:
        pair.standby.start()


def test_server_stops_though_its_commit_waits_for_the_standby(pair: Pair, tmp_path: Path) -> None:
    """What nobody was told is done is there or not, whole, at the next start."""
    Database(url := pair.primary.new_database()).migrate()
    options = ("--journal", url, "--shutdown-grace-seconds", "1")
    with Server(tmp_path / "data", *options) as server:
        connection = server.connect()
        connection.must(201, "PUT", "/queues/a", {})
        connection.must(201, "POST", "/queues/a/messages", {"payload": 1})
        pair.standby.kill()
        try:
            publishing = threading.Thread(target=_ignoring, args=(server, {"payload": 2}), daemon=True)
            publishing.start()
            eventually("the commit waits", lambda: pair.primary.execute(WAITING))
            assert server.stop() == 0
        finally:
            pair.standby.start()
    with Server(tmp_path / "data", *options) as server:
        found = server.connect().must(200, "POST", "/queues/a/dequeue", {"max_messages": 10})["messages"]
        assert [one["payload"] for one in found] in ([1], [1, 2])


def _ignoring(server: Server, message: dict[str, int]) -> None:
    try:
        server.connect().call("POST", "/queues/a/messages", message)
    except BROKEN:
        pass


def test_confirmed_commits_survive_the_primary(pair: Pair) -> None:
    """And a commit that becomes visible by a restart of the primary is not confirmed for that."""
    journal = pair.journal()
    number = journal._writer._journal
    for seq in range(1, 6):
        written(journal, seq).result(20)
    pair.standby.kill()
    doubtful = written(journal, 6)
    eventually("the commit waits", lambda: pair.primary.execute(WAITING))
    pair.primary.kill()
    pair.primary.start()
    database = pair.url.rpartition("/")[2]
    seen = "SELECT 1 FROM laneway.journals WHERE number = %s AND position = 6"
    eventually("it is visible", lambda: pair.primary.execute(seen, [number], database=database))
    eventually("the claim waits, or it is confirmed", lambda: doubtful.done() or pair.primary.execute(WAITING))
    assert not doubtful.done(), "confirmed because it is visible, and no standby has it"
    pair.standby.start()
    doubtful.result(20)
    written(journal, 7).result(20)
    pair.primary.kill()
    run(program("pg_ctl"), "promote", "-w", "-D", str(pair.standby.data))
    second = PostgresJournal(Database(pair.standby.url(database)), number, patience_s=1)
    assert [position for position, _ in replayed(second)] == list(range(1, 8))
    second.close()
