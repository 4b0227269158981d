"""PostgresJournal keeps the contract, in a real PostgreSQL; who may write, doubtful appends, tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest

from laneway.core.events import Opened
from laneway.errors import JournalFailed, JournalLocked, StartError
from laneway.journal.history import inspect
from laneway.journal.postgres import Database, PostgresJournal, writer
from tests.crash.server import eventually
from tests.journal.contract import JournalContract, commit, fill_extents, locations_of, published, replayed
from tests.postgres import PostgresServer, Wire

PAUSED_AT_COMMIT = """
    CREATE FUNCTION laneway.pause() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER pause AFTER INSERT ON laneway.commits_0_1 DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION laneway.pause()
"""


class DatabaseStore:
    def __init__(self, url: str, partition: int = 0) -> None:
        self.url = url
        self.database = Database(url)
        self.database.migrate()
        self.partition = partition

    def open(self, *, epoch: int | None = None, segment_bytes: int = 4096) -> PostgresJournal:
        return PostgresJournal(self.database, self.partition, epoch=epoch, segment_bytes=segment_bytes, patience_s=0.2)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def store(postgres_server: PostgresServer) -> Iterator[DatabaseStore]:
    store = DatabaseStore(postgres_server.new_database())
    yield store
    store.database.close()


@pytest.fixture
def journal(store: DatabaseStore) -> Iterator[PostgresJournal]:
    journal = store.open()
    replayed(journal)
    yield journal
    journal.close()


class TestInPostgres(JournalContract):
    @pytest.fixture
    def store(self, store: DatabaseStore) -> DatabaseStore:
        return store

    @pytest.fixture
    def journal(self, open_journal: Callable[[], Any]) -> Any:
        journal = open_journal()
        assert replayed(journal) == []
        return journal


def started(call: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as trouble:
            future.set_exception(trouble)

    threading.Thread(target=run, daemon=True).start()
    return future


def write_later(journal: PostgresJournal, seq: int) -> Future[Any]:
    return started(lambda: commit(journal, published(seq)))


# --- who may write --------------------------------------------------------------------------------------------------


def test_later_epoch_takes_the_journal_from_whoever_has_it(store: DatabaseStore, journal: PostgresJournal) -> None:
    commit(journal, Opened(at_ms=1, epoch=journal.claimed_epoch, tag=1), published(1))
    later = store.open(epoch=journal.claimed_epoch + 5)
    with pytest.raises(JournalFailed, match="another server has claimed it"):
        commit(journal, published(2))
    with pytest.raises(JournalFailed, match="another server has claimed it"):
        journal.sync()
    assert [position for position, _ in replayed(later)] == [1]
    commit(later, Opened(at_ms=2, epoch=later.claimed_epoch, tag=1), published(3))
    with pytest.raises(JournalFailed, match="with epoch 3 or a later one"):
        store.open(epoch=3)
    later.close()
    again = store.open()
    assert [position for position, _ in replayed(again)] == [1, 2]
    assert again.claimed_epoch == later.claimed_epoch + 1
    again.close()


def test_older_leader_saves_no_snapshot_and_drops_nothing(store: DatabaseStore, journal: PostgresJournal) -> None:
    written = fill_extents(journal, 3)
    journal.save_snapshot(len(written) // 2, [b"one"], [])
    later = store.open(epoch=100)
    with pytest.raises(JournalFailed, match="another server has claimed it"):
        journal.save_snapshot(len(written), [b"two"], [])
    with pytest.raises(JournalFailed, match="another server has claimed it"):
        journal.drop()
    found = later.load_snapshot()
    assert found is not None and list(found[1]) == [b"one"]
    assert [position for position, _ in replayed(later, found[0])][-1] == len(written)
    later.close()


def claimed_while_paused_at_commit(store: DatabaseStore, journal: PostgresJournal) -> None:
    """A writer stops between its statement and its COMMIT while another server claims the journal."""
    commit(journal, published(1))
    store.execute(PAUSED_AT_COMMIT)
    with psycopg.connect(store.url, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(1)")
        paused = write_later(journal, 2)
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        eventually("the writer is at its COMMIT", lambda: store.execute(waiting))
        claiming = started(lambda: store.open(epoch=100))
        held_up = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%claim = claim + 1%'"
        eventually("the claim waits for the writer, or is through", lambda: claiming.done() or store.execute(held_up))
        is_ordered = not claiming.done()
        gate.execute("SELECT pg_advisory_unlock(1)")
        paused.result(20)  # confirmed …
        later = claiming.result(20)
    try:
        assert is_ordered, "the claim went by a writer that was about to commit"
        assert [position for position, _ in replayed(later)] == [1, 2], "… and so it is there"
    finally:
        later.close()


def test_writer_paused_between_statement_and_commit_is_not_overtaken(
    store: DatabaseStore, journal: PostgresJournal
) -> None:
    claimed_while_paused_at_commit(store, journal)


def test_claim_that_is_only_read_would_be_overtaken(
    store: DatabaseStore, journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test above can fail."""
    only_read = """
        WITH mine AS (SELECT number FROM laneway.journals WHERE %b::bigint > -1 AND number = %b AND claim = %b
            AND %b::bigint > -1)
        INSERT INTO {table} (journal, extent, "offset", length, data) SELECT number, %b, %b, %b, %b FROM mine
    """
    monkeypatch.setattr(writer, "_APPEND", only_read)
    with pytest.raises(AssertionError, match="the claim went by"):
        claimed_while_paused_at_commit(store, journal)


def test_holder_that_is_gone_is_no_obstacle(store: DatabaseStore, journal: PostgresJournal) -> None:
    commit(journal, published(1))
    with pytest.raises(JournalLocked, match=r"partition 0 is in use by process \d+ on "):
        store.open()
    store.execute("SELECT pg_terminate_backend(holder_pid) FROM laneway.journals")
    again = eventually("its connection is gone", lambda: _opened(store))
    assert [position for position, _ in replayed(again)] == [1]
    again.close()
    with pytest.raises(JournalFailed, match="another server has claimed it"):
        commit(journal, published(2))


def _opened(store: DatabaseStore) -> PostgresJournal | None:
    try:
        return store.open()
    except JournalLocked:
        return None


# --- doubtful appends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swallowed", ["requests_are_swallowed", "answers_are_swallowed"])
def test_append_whose_connection_is_cut_is_there_once(
    store: DatabaseStore, postgres_server: PostgresServer, swallowed: str
) -> None:
    """Before the server had it, or between its COMMIT and the answer: nobody can tell but by looking."""
    wire = Wire(postgres_server.port)
    database = Database(store.url.replace(f":{postgres_server.port}/", f":{wire.port}/"))
    journal = PostgresJournal(database, segment_bytes=4096)
    replayed(journal)
    events = [published(seq) for seq in range(1, 41)]
    for i, event in enumerate(events):
        if i % 4 == 3:
            setattr(wire, swallowed, True)
        _, (location,) = commit(journal, event)
        assert journal.read([location], event.sizes) == event.records
    assert wire.cut_count == 10
    journal.close()
    again = store.open()
    assert [position for position, _ in replayed(again)] == list(range(1, 41))
    again.close()
    database.close()
    wire.close()


def test_commit_that_somebody_else_replaced_is_not_taken_for_ones_own(
    store: DatabaseStore, postgres_server: PostgresServer
) -> None:
    wire = Wire(postgres_server.port)
    journal = PostgresJournal(Database(store.url.replace(f":{postgres_server.port}/", f":{wire.port}/")))
    replayed(journal)
    commit(journal, published(1))
    wire.requests_are_swallowed = True
    later = store.open(epoch=100)  # claims while the first one is about to lose its connection
    replayed(later)
    commit(later, published(50))
    with pytest.raises(JournalFailed, match="another server has claimed it"):
        commit(journal, published(2))
    later.close()
    wire.close()


# --- tables ---------------------------------------------------------------------------------------------------------


def test_extents_are_tables_whose_bytes_are_stored_as_they_are(store: DatabaseStore, journal: PostgresJournal) -> None:
    written = fill_extents(journal, 3)
    found = store.execute(
        "SELECT c.relname, a.attstorage FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid "
        "WHERE a.attname = 'data' AND c.relkind = 'r' AND c.relispartition ORDER BY 1"
    )
    assert found == [(f"commits_0_{number}", "e") for number in (1, 2, 3, 4)]
    assert store.execute("SELECT count(*) FROM laneway.commits WHERE journal = 0")[0][0] == len(written)
    journal.save_snapshot(len(written), [b"state"], [2])
    assert journal.drop() == [1, 3]
    left = store.execute(
        "SELECT relname FROM pg_inherits JOIN pg_class ON inhrelid = oid "
        "WHERE inhparent = 'laneway.commits_0'::regclass ORDER BY 1"
    )
    assert left == [("commits_0_2",), ("commits_0_4",)]


def test_somebody_who_reads_for_long_holds_up_no_append(store: DatabaseStore, journal: PostgresJournal) -> None:
    written = fill_extents(journal, 3)
    journal.save_snapshot(len(written), [b"state"], [])
    with psycopg.connect(store.url) as backup:
        backup.execute("SELECT count(*) FROM laneway.commits")
        assert journal.drop() == []
        fill_extents(journal, 5, first_seq=90_000)  # makes tables, too
    assert journal.drop() == [1, 2, 3]


def test_extent_that_is_gone_already_is_dropped(store: DatabaseStore, journal: PostgresJournal) -> None:
    """As when the connection was lost behind the COMMIT."""
    written = fill_extents(journal, 2)
    journal.save_snapshot(len(written), [b"state"], [])
    store.execute("DROP TABLE laneway.commits_0_1")
    assert journal.drop() == [1, 2]
    assert store.execute("SELECT number FROM laneway.extents") == [(3,)]


def test_snapshots_that_are_not_in_force_leave_no_tables(store: DatabaseStore, journal: PostgresJournal) -> None:
    commit(journal, published(1))

    def broken() -> Iterator[bytes]:
        yield b"x" * 3_000_000
        raise OSError("the state cannot be packed")

    with pytest.raises(OSError, match="cannot be packed"):
        journal.save_snapshot(1, broken(), [])
    for position in (2, 3):
        commit(journal, published(position))
        journal.save_snapshot(position, [b"state"], [])
    tables = store.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'snapshot\\_%'")
    assert len(tables) == 1 and str(tables[0][0]).startswith("snapshot_0_3_")


def test_journals_share_a_database(store: DatabaseStore) -> None:
    journals = [PostgresJournal(store.database, number, segment_bytes=4096) for number in range(3)]
    written = {}
    for number, journal in enumerate(journals):
        replayed(journal)
        written[number] = fill_extents(journal, 2, first_seq=1 + 1_000 * number)
    assert len({journal.history.store() for journal in journals}) == 3
    for number, journal in enumerate(journals):
        for event, first in written[number]:
            assert journal.read(locations_of(event, first), event.sizes) == event.records
        journal.close()
    assert store.database.journals() == [0, 1, 2]


def test_history_is_checked_and_dumped_as_that_of_a_folder(store: DatabaseStore, journal: PostgresJournal) -> None:
    written = fill_extents(journal, 2)
    journal.save_snapshot(3, [b"state"], [])
    report = inspect.check("journal", files=journal._files)
    assert report.is_sound and [one.number for one in report.segments] == [1, 2, 3]
    assert sum(one.commit_count for one in report.segments) == len(written)
    assert len(list(inspect.dump("journal", files=journal._files))) == len(written)
    table = "laneway.commits_0_2"
    store.execute(f'UPDATE {table} SET data = set_byte(data, 200, get_byte(data, 200) # 1) WHERE "offset" = 64')
    report = inspect.check("journal", files=journal._files)
    assert report.problems[0].offset == 64


# --- the schema -----------------------------------------------------------------------------------------------------


def test_migrations_are_run_once_and_versions_are_checked(postgres_server: PostgresServer) -> None:
    database = Database(url := postgres_server.new_database())
    with pytest.raises(StartError, match=r"has no journals yet: run `laneway journal migrate URL`"):
        database.check_schema()
    assert database.migrate() == ["0001-journals"] and database.migrate() == []
    database.check_schema()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO laneway.migrations VALUES (2, 'of-the-future')")
    with pytest.raises(StartError, match="version 2 of the schema, and this Laneway knows 1"):
        database.check_schema()
    database.close()


def test_names_of_databases_hold_no_password() -> None:
    assert repr(Database("postgresql://ann:secret@db1,db2:5433/queue")) == "postgresql://db1,db2:5433/queue"
    with pytest.raises(StartError, match="no URL of a PostgreSQL database"):
        Database("postgresql://%zz")
