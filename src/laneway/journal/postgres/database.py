"""A PostgreSQL database that holds journals: connections to it, its errors in our words, the version of its schema.

No statement has a time limit: cancelling a commit that waits for its standby would report success. What takes too long
is ended by dropping the connection, and whoever wrote finds out later what became of it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any, Literal

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from laneway.errors import DiskFull, JournalAway, JournalFailed, JournalLocked, StartError

Acks = Literal["all", "leader"]
Connection = psycopg.Connection[tuple[Any, ...]]

CONNECT_S = 3
REMEMBERED_S = 0.25  # so long after a failed attempt nobody else tries
IDLE_CONNECTIONS = 4
_SCHEMA_LOCK = 0x4C616E65  # of pg_advisory_xact_lock: one migration at a time

#: Who claimed a journal last, and whether its connection is still there.
HOLDER = """
    SELECT claim, holder_name, holder_pid IS NOT NULL AND EXISTS (
        SELECT FROM pg_stat_activity WHERE pid = holder_pid AND backend_start = holder_since)
    FROM laneway.journals WHERE number = %s
"""

#: How connections behave unless the URL says otherwise. A server that vanished is noticed by both sides in some ten
#: seconds, and of several hosts the one that can be written to is taken.
_DEFAULTS: dict[str, str | int] = {
    "application_name": "laneway",
    "connect_timeout": CONNECT_S,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "target_session_attrs": "read-write",
}

#: And whatever the role or the database are set to.
_SESSION = """
    SELECT set_config(name, value, false) FROM (VALUES
        ('statement_timeout', '0'), ('lock_timeout', '0'), ('idle_in_transaction_session_timeout', '0'),
        ('client_min_messages', 'warning'), ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '2'),
        ('tcp_keepalives_count', '3'), ('synchronous_commit', %s)
    ) AS settings (name, value)
"""

#: The connection is of no use, or leads to a server that cannot be written to. What was under way may be done.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, pg.ReadOnlySqlTransaction)


class Database:
    """One server. `acks`: whether a commit waits for the standbys that PostgreSQL is configured to wait for."""

    def __init__(self, url: str, *, acks: Acks = "all") -> None:
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError as trouble:
            raise StartError(f"journal is no URL of a PostgreSQL database: {trouble}") from None
        self._conninfo = make_conninfo(**{**_DEFAULTS, **given})  # type: ignore[arg-type]
        self.acks = acks
        self.name = _shown(given)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._away: tuple[float, str] | None = None
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._is_abandoned = False

    def __repr__(self) -> str:
        return self.name

    def connect(self) -> Connection:
        """JournalAway if that cannot be done now."""
        if self._is_abandoned:
            raise JournalAway(f"{self.name} is not waited for any more")
        away = self._away
        if away is not None and time.monotonic() - away[0] < REMEMBERED_S:
            raise JournalAway(away[1])
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=1)
            try:
                connection.execute(_SESSION, ["on" if self.acks == "all" else "local"])
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as trouble:
            message = f"{self.name} cannot be reached: {_first_line(trouble)}"
            self._away = time.monotonic(), message
            raise JournalAway(message) from trouble
        self._away = None
        with self._lock:
            self._open.add(connection)
        return connection

    def abandon(self) -> None:
        """End all connections, whatever is under way on them, and make no other one. A statement is not cancelled by
        that: what it does is in doubt, and the next start finds out."""
        self._is_abandoned = True
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            try:
                with socket.socket(fileno=os.dup(connection.fileno())) as one:
                    one.shutdown(socket.SHUT_RDWR)  # which wakes the thread that waits for an answer
            except (OSError, psycopg.Error):
                pass  # it is closed

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection for what only reads, or can be repeated; its errors are ours."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self.connect()
        try:
            with translated(self.name):
                yield connection
        finally:
            if connection.closed:
                self.close()  # the others were to the same server
            else:
                self._give_back(connection)

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    # --- the schema

    def migrate(self) -> list[str]:
        """Bring the schema up to date; the names of the migrations that were run."""
        with self.reading() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SCHEMA_LOCK])
            connection.execute("CREATE SCHEMA IF NOT EXISTS laneway")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS laneway.migrations "
                "(number integer PRIMARY KEY, name text NOT NULL, run_at timestamptz NOT NULL DEFAULT now())"
            )
            version = _version(connection)
            self._check_known(version)
            run = []
            for number, name, script in migrations():
                if number > version:
                    connection.execute(script)
                    connection.execute("INSERT INTO laneway.migrations VALUES (%s, %s)", [number, name])
                    run.append(name)
            return run

    def check_schema(self) -> None:
        """StartError if it is not of this version."""
        with self.reading() as connection:
            found = connection.execute("SELECT to_regclass('laneway.migrations')").fetchone()
            version = _version(connection) if found is not None and found[0] is not None else 0
        self._check_known(version)
        if version < migrations()[-1][0]:
            state = "has no journals yet" if not version else f"has version {version} of the schema"
            raise StartError(f"{self.name} {state}: run `laneway journal migrate URL` first, as a role that may")

    def _check_known(self, version: int) -> None:
        newest = migrations()[-1][0]
        if version > newest:
            raise StartError(
                f"{self.name} has version {version} of the schema, and this Laneway knows {newest}: use a newer one"
            )

    def waits_for_standby(self) -> bool:
        with self.reading() as connection:
            found = connection.execute("SHOW synchronous_standby_names").fetchone()
        return found is not None and bool(found[0])

    def journals(self) -> list[int]:
        """The partitions whose journals are here."""
        with self.reading() as connection:
            found = connection.execute("SELECT number FROM laneway.journals ORDER BY number").fetchall()
        return [number for (number,) in found]

    def check_unused(self, number: int) -> None:
        """JournalLocked if a server has this journal."""
        with self.reading() as connection:
            row = connection.execute(HOLDER, [number]).fetchone()
        if row is not None and row[2]:
            raise in_use(f"{self.name} partition {number}", row[1])

    def has_history(self) -> bool:
        with self.reading() as connection:
            return connection.execute("SELECT FROM laneway.journals WHERE position > 0 LIMIT 1").fetchone() is not None

    def make_journal(self, number: int) -> None:
        with self.reading() as connection:
            make_journal(connection, number, draw_store)


def in_use(journal: str, holder: str | None) -> JournalLocked:
    holder = holder or "another server"
    return JournalLocked(
        f"{journal} is in use by {holder}. Stop that one first, or give this one another database.",
        folder=journal,
        pid=holder,
    )


def make_journal(connection: Connection, number: int, draw_store: Callable[[], int]) -> None:
    """If it is not there."""
    if connection.execute("SELECT FROM laneway.journals WHERE number = %s", [number]).rowcount:
        return
    with connection.transaction():
        added = connection.execute(
            "INSERT INTO laneway.journals (number, store, epoch, claim, position) VALUES (%s, %s, 0, 0, 0) "
            "ON CONFLICT DO NOTHING",
            [number, signed(draw_store())],
        ).rowcount
        if added:
            connection.execute(
                f"CREATE TABLE laneway.commits_{number} PARTITION OF laneway.commits "
                f"FOR VALUES IN ({number}) PARTITION BY RANGE (extent)"
            )


def draw_store() -> int:
    return secrets.randbits(64)


def signed(store: int) -> int:
    """PostgreSQL has no unsigned numbers."""
    return store - (1 << 64) if store >> 63 else store


@contextmanager
def translated(name: str) -> Iterator[None]:
    try:
        yield
    except pg.DiskFull as trouble:
        raise DiskFull(
            f"no space is left at {name}: {_first_line(trouble)}. Free some there; work goes on by itself then."
        ) from trouble
    except LOST as trouble:
        raise JournalAway(f"{name} cannot be reached: {_first_line(trouble)}") from trouble
    except pg.UndefinedTable as trouble:  # history that was dropped meanwhile
        raise FileNotFoundError(_first_line(trouble)) from trouble
    except psycopg.Error as trouble:
        raise JournalFailed(f"{name} refused a statement: {_first_line(trouble)}") from trouble


def migrations() -> list[tuple[int, str, str]]:
    """(number, name, SQL), in order."""
    folder = resources.files("laneway.journal.postgres") / "schema"
    names = sorted(one.name for one in folder.iterdir() if one.name.endswith(".sql"))
    return [(int(name[:4]), name.removesuffix(".sql"), (folder / name).read_text("utf-8")) for name in names]


def _version(connection: Connection) -> int:
    found = connection.execute("SELECT coalesce(max(number), 0) FROM laneway.migrations").fetchone()
    return int(found[0]) if found is not None else 0


def _shown(given: dict[str, Any]) -> str:
    """Without the password."""
    hosts = str(given.get("host") or given.get("hostaddr") or "localhost").split(",")
    ports = str(given.get("port") or "").split(",")
    where = [host + (f":{port}" if port else "") for host, port in zip(hosts, ports * len(hosts), strict=False)]
    return f"postgresql://{','.join(where)}/{given.get('dbname') or given.get('user') or ''}"


def _first_line(trouble: BaseException) -> str:
    return (str(trouble).strip() or type(trouble).__name__).splitlines()[0]
