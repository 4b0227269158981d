"""The writing side of a journal in PostgreSQL: who may write, and commits appended in order.

Whoever opens a journal *claims* it: its row in laneway.journals gets a higher `claim`, durably. Each append updates the
row in the statement that inserts the commit, where claim and position are still its own. The row's lock orders it with
a claim of another: what was appended before is seen by whoever claims next, and nothing is appended after.

An append whose answer was lost is in doubt. It is resolved on a new connection by claiming again, as the same holder:
the old connection can append nothing from then on, the row says what the last commit is, and because the claim was
acknowledged after that, the commit is as durable as the claim is. Only then it is confirmed, or appended again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import NamedTuple

import psycopg
from psycopg.types.numeric import Int8

from laneway.errors import JournalAway, JournalDamaged, JournalFailed
from laneway.journal.history.format import HEADER_BYTES, NO_MARK, Sealed, pack_commit
from laneway.journal.history.recovery import Replay, Segment, Survey, describe_snapshot
from laneway.journal.history.snapshots import Snapshot, parts
from laneway.journal.interface import Place
from laneway.journal.postgres.database import (
    HOLDER,
    Connection,
    Database,
    draw_store,
    in_use,
    make_journal,
    translated,
)
from laneway.journal.postgres.files import extent_table, snapshot_table, unsigned

CLAIM_PATIENCE_S = 15.0  # a holder that was killed is seen to be gone when its connection is
_LOOK_EVERY_S = 0.1
SNAPSHOT_PIECE_BYTES = 1 << 20
DROP_PATIENCE_MS = 200  # for somebody who reads, a backup for instance: nobody else may look meanwhile

_CLAIM = """
    UPDATE laneway.journals
    SET claim = claim + 1, epoch = CASE WHEN %(epoch)s > 0 THEN %(epoch)s ELSE epoch + 1 END, holder = %(holder)s,
        holder_name = %(name)s, holder_pid = pg_backend_pid(),
        holder_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
    WHERE number = %(number)s AND (%(seen)s < 0 OR claim = %(seen)s) AND (%(epoch)s = 0 OR epoch < %(epoch)s)
    RETURNING claim, epoch, position, store
"""

_CLAIM_AGAIN = """
    UPDATE laneway.journals
    SET claim = claim + 1, holder_pid = pg_backend_pid(),
        holder_since = (SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())
    WHERE number = %s AND holder = %s
    RETURNING claim, position
"""

_RELEASE = "UPDATE laneway.journals SET holder_pid = NULL WHERE number = %s AND holder = %s"

#: Locks the journal's row; nothing is found if somebody else has claimed it.
_CHECK_CLAIM = "SELECT FROM laneway.journals WHERE number = %s AND claim = %s FOR UPDATE"

_APPEND = """
    WITH mine AS (
        UPDATE laneway.journals SET position = position + 1, epoch = greatest(epoch, %b)
        WHERE number = %b AND claim = %b AND position = %b
        RETURNING number
    )
    INSERT INTO {table} (journal, extent, "offset", length, data) SELECT number, %b, %b, %b, %b FROM mine
"""

log = logging.getLogger("laneway.journal")


class Claim(NamedTuple):
    number: int
    epoch: int
    position: int  # of the last commit
    store: int


class PostgresWriter:
    def __init__(
        self,
        database: Database,
        journal: int,
        folder: str,
        *,
        epoch: int | None = None,
        draw_store: Callable[[], int] = draw_store,
        holder_name: str = "",
        patience_s: float = CLAIM_PATIENCE_S,
    ) -> None:
        """Claim the journal, which is made if need be. With an epoch, given by a coordinator, whoever holds it loses
        it; without one, JournalLocked if somebody does."""
        self._database = database
        self._journal = journal
        self._folder = folder
        self._lock = threading.Lock()
        self._failed: str | None = None
        self._holder = uuid.uuid4()
        self._warnings: list[str] = []  # of the statement under way
        self._connection: Connection | None = self._connect()
        self._is_open = False
        try:
            with translated(database.name):
                make_journal(self._connection, journal, draw_store)
                self._claim = self._take(self._connection, epoch, holder_name, patience_s)
        except BaseException:
            self._connection.close()
            raise
        self._is_doubtful = False  # whether the commit that comes next is there already
        self.segments: dict[int, Segment] = {}
        self.written = 0  # the last position written
        self.written_location = 0
        self.readable = Place(1, HEADER_BYTES, 1)

    @property
    def store(self) -> int:
        return self._claim.store

    @property
    def claim(self) -> Claim:
        return self._claim

    @property
    def is_open(self) -> bool:
        return self._is_open

    # --- claiming

    def _connect(self) -> Connection:
        connection = self._database.connect()
        connection.add_notice_handler(lambda notice: self._warnings.append(notice.message_primary or "a warning"))
        return connection

    def _take(self, connection: Connection, epoch: int | None, name: str, patience_s: float) -> Claim:
        deadline_s = time.monotonic() + patience_s
        while True:
            seen, holder_name, is_held = connection.execute(HOLDER, [self._journal]).fetchone() or (0, "", False)
            if epoch is not None or not is_held:
                given = {"epoch": epoch or 0, "holder": self._holder, "name": name, "number": self._journal}
                row = self._warned(connection, _CLAIM, {**given, "seen": -1 if epoch is not None else seen})
                if row is not None:
                    return Claim(row[0], row[1], row[2], unsigned(row[3]))
                if epoch is not None:
                    raise JournalFailed(f"{self._folder} was claimed with epoch {epoch} or a later one before")
            elif time.monotonic() > deadline_s:
                raise in_use(self._folder, holder_name)
            time.sleep(_LOOK_EVERY_S)

    def _warned(
        self, connection: Connection, statement: str, given: dict[str, object] | list[object]
    ) -> tuple[int, ...] | None:
        """The row that a statement gives back. A warning of it says that its commit is in doubt, as when somebody
        cancels it while it waits for the standby: PostgreSQL calls that a success."""
        self._warnings.clear()
        row = connection.execute(statement, given).fetchone()
        if self._warnings:
            raise psycopg.OperationalError(self._warnings[0])
        return row

    def _claimed(self) -> Connection:
        """The connection to write with. If the last one was lost, what became of the commit in doubt is known now."""
        if self._connection is not None:
            return self._connection
        connection = self._connect()
        try:
            with translated(self._database.name):
                row = self._warned(connection, _CLAIM_AGAIN, [self._journal, self._holder])
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        if row is None:
            raise self._fenced()
        self._claim = self._claim._replace(number=row[0], position=row[1])
        if self._is_open and self._claim.position not in (self.written, self.written + self._is_doubtful):
            raise self._fail(f"its last commit is {row[1]}, and {self.written} was the last that was written from here")
        log.warning("%s is reached again; commit %d is its last one", self._folder, self._claim.position)
        return connection

    def _lose(self, trouble: BaseException) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            log.warning("the connection to %s was lost: %s", self._folder, str(trouble).strip().split("\n")[0])

    # --- opening

    def open(self, found: Survey, replay: Replay) -> None:
        with self._lock:
            if replay.position != self._claim.position:
                raise JournalDamaged(
                    f"{self._folder} ends with commit {replay.position}, but commit {self._claim.position} was its "
                    "last one: restore the database from a backup",
                    file=self._folder,
                    offset=replay.end,
                )
            self.segments = {segment.number: segment for segment in (*found.needed, *found.chain)}
            for number in found.leftovers:
                self.segments[number] = self._leftover(number)
            self.written = replay.position
            last = found.chain[-1].number if found.chain else 0
            if not last:
                with translated(self._folder):
                    self._begin_extent(self._claimed(), 1, replay.epoch)
                last = 1
            self.written_location = last << 32 | replay.end
            self.readable = Place(last, replay.end, self.written + 1)
            self._is_open = True

    def _leftover(self, number: int) -> Segment:
        with self._database.reading() as connection:
            row = connection.execute(
                f"SELECT first_position, epoch, version, "
                f'(SELECT coalesce(max("offset" + length), 64) FROM {extent_table(self._journal, number)}) '
                "FROM laneway.extents WHERE journal = %s AND number = %s",
                [self._journal, number],
            ).fetchone()
        assert row is not None
        return Segment(number, row[0], row[1], int(row[3]), 0, row[2])

    # --- writing

    def write(self, sealed: Sealed) -> None:
        with self._lock:
            self._check_usable()
            if not self._is_written(sealed) and not self._is_written(sealed):
                raise JournalAway(f"{self._folder} loses each connection; commit {sealed.position} is not written yet")
            self.written, self._is_doubtful = sealed.position, False
            self.written_location = sealed.location + sealed.length
            number, offset = self.written_location >> 32, self.written_location & 0xFFFFFFFF
            self.readable = Place(number, offset, sealed.position + 1)

    def _is_written(self, sealed: Sealed) -> bool:
        """False if the connection was lost: what became of the commit shows on the next one."""
        connection = self._claimed()
        if self._claim.position == sealed.position:
            return True  # it was there already
        self._is_doubtful = True
        try:
            with translated(self._folder):
                self._put(connection, sealed)
        except JournalAway as trouble:
            self._lose(trouble)
            return False
        except JournalFailed as trouble:
            raise self._fail(trouble.message) from trouble
        return True

    def _put(self, connection: Connection, sealed: Sealed) -> None:
        if sealed.location >> 32 not in self.segments:
            self._begin_extent(connection, sealed.location >> 32, sealed.epoch)
        self._append(connection, sealed)

    def _append(self, connection: Connection, sealed: Sealed) -> None:
        header, body = pack_commit(sealed, store=self.store, durable=self.written)
        number, offset = sealed.location >> 32, sealed.location & 0xFFFFFFFF
        statement = _APPEND.format(table=extent_table(self._journal, number))
        self._warnings.clear()
        done = connection.execute(
            statement,
            [
                *map(Int8, (sealed.epoch, self._journal, self._claim.number, sealed.position - 1)),
                *map(Int8, (number, offset, sealed.length)),
                b"".join((header, body, NO_MARK)),
            ],
            prepare=True,
        ).rowcount
        if self._warnings:  # see _warned()
            raise psycopg.OperationalError(self._warnings[0])
        if not done:
            raise self._fenced()
        self._claim = self._claim._replace(position=sealed.position)

    def _begin_extent(self, connection: Connection, number: int, epoch: int) -> None:
        segment = Segment(number, self.written + 1, epoch, HEADER_BYTES)
        self._warnings.clear()
        with connection.transaction():
            self._check_claim(connection)
            make_extent(connection, self._journal, segment)  # it may be there since a connection that was lost
        if self._warnings:
            raise psycopg.OperationalError(self._warnings[0])
        if before := self.segments.get(number - 1):
            self.segments[number - 1] = before._replace(file_bytes=self.written_location & 0xFFFFFFFF)
        self.segments[number] = segment

    def _check_claim(self, connection: Connection) -> None:
        if connection.execute(_CHECK_CLAIM, [self._journal, self._claim.number]).rowcount != 1:
            raise self._fenced()

    def mark(self) -> None:
        """All that was written is durable already."""

    def sync(self) -> None:
        """The same."""
        with self._lock:
            self._check_usable()

    def finished_segments(self) -> list[Segment]:
        last = self.written_location >> 32
        return [segment for segment in tuple(self.segments.values()) if segment.number < last]

    # --- snapshots and dropping

    def describe_snapshot(self, position: int, live_extents: Iterable[int]) -> Snapshot:
        with self._lock:
            self._check_usable()
            if position > self.written:
                raise ValueError(f"commit {position} has not been written, the last one was {self.written}")
            return describe_snapshot(position, self.store, self.segments, live_extents, self._folder)

    def save_snapshot(self, snapshot: Snapshot, chunks: Iterable[bytes]) -> Snapshot:
        """In a table of its own, which counts once it is named; those before it go at the same moment."""
        claim, position = self._claim.number, snapshot.position
        table = snapshot_table(self._journal, position, claim)
        with self._database.reading() as connection:
            connection.execute(f"DROP TABLE IF EXISTS {table}")
            make_snapshot_table(connection, table)
            file_bytes = 0
            for piece in _pieces(parts(snapshot, chunks)):
                connection.execute(f"INSERT INTO {table} VALUES (%b, %b, %b)", [file_bytes, len(piece), piece])
                file_bytes += len(piece)
            with connection.transaction():
                self._check_current(connection)
                connection.execute("DELETE FROM laneway.snapshots WHERE journal = %s", [self._journal])
                connection.execute(
                    "INSERT INTO laneway.snapshots VALUES (%s, %s, %s, %s)",
                    [self._journal, position, claim, file_bytes],
                )
                for (name,) in connection.execute(
                    "SELECT relname FROM pg_class WHERE relnamespace = 'laneway'::regnamespace "
                    "AND relkind = 'r' AND relname LIKE %s",
                    [f"snapshot\\_{self._journal}\\_%"],
                ).fetchall():
                    if f"laneway.{name}" != table:
                        connection.execute(f"DROP TABLE laneway.{name}")
        return snapshot._replace(file_bytes=file_bytes)

    def drop_extent(self, number: int) -> bool:
        """False if somebody reads it; then another time."""
        try:
            with self._database.reading() as connection, connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = {DROP_PATIENCE_MS}")
                self._check_current(connection)
                connection.execute(
                    "DELETE FROM laneway.extents WHERE journal = %s AND number = %s", [self._journal, number]
                )
                # It may be gone since a connection that was lost.
                connection.execute(f"DROP TABLE IF EXISTS {extent_table(self._journal, number)}")
            return True
        except JournalAway as trouble:
            log.info("segment %d of %s is not dropped yet: %s", number, self._folder, trouble)
            return False

    def _check_current(self, connection: Connection) -> None:
        """Lock the journal's row, if it is held from here. The claim's number may rise meanwhile."""
        row = connection.execute(
            "SELECT holder FROM laneway.journals WHERE number = %s FOR UPDATE", [self._journal]
        ).fetchone()
        if row is None or row[0] != self._holder:
            raise self._fenced()

    # --- ends

    def _check_usable(self) -> None:
        if self._failed is not None:
            raise JournalFailed(self._failed)
        if not self._is_open:
            raise RuntimeError("the journal is not open for writing: replay() has to be exhausted first")

    def _fenced(self) -> JournalFailed:
        return self._fail("another server has claimed it since")

    def _fail(self, what: str) -> JournalFailed:
        self._failed = f"nothing more is written to {self._folder} from here: {what}"
        log.critical(self._failed)
        return JournalFailed(self._failed)

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            connection, self._connection = self._connection, None
            if connection is not None:
                try:
                    if self._failed is None:
                        connection.execute(_RELEASE, [self._journal, self._holder])
                except psycopg.Error as trouble:
                    log.info("%s was not released (%s)", self._folder, trouble)
                finally:
                    connection.close()


def make_extent(connection: Connection, journal: int, segment: Segment) -> None:
    """If it is not there; in a transaction."""
    added = connection.execute(
        "INSERT INTO laneway.extents VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        [journal, segment.number, segment.first_position, segment.epoch, segment.version],
    ).rowcount
    if added:
        number, table, whole = segment.number, extent_table(journal, segment.number), f"laneway.commits_{journal}"
        # Nothing is ever updated or deleted in it, so there is nothing to vacuum. Attached and not made as a partition,
        # because that waits for nobody who reads the others.
        connection.execute(
            f'CREATE TABLE {table} (LIKE {whole} INCLUDING STORAGE, PRIMARY KEY ("offset")) '
            "WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false)"
        )
        connection.execute(f"ALTER TABLE {whole} ATTACH PARTITION {table} FOR VALUES FROM ({number}) TO ({number + 1})")


def make_snapshot_table(connection: Connection, table: str) -> None:
    connection.execute(
        f'CREATE TABLE {table} ("offset" bigint PRIMARY KEY, length integer NOT NULL, data bytea NOT NULL)'
    )
    connection.execute(f"ALTER TABLE {table} ALTER COLUMN data SET STORAGE EXTERNAL")


def _pieces(some: Iterable[bytes]) -> Iterable[bytes]:
    gathered: list[bytes] = []
    size = 0
    for one in some:
        gathered.append(one)
        size += len(one)
        if size >= SNAPSHOT_PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)
