"""Where a journal that is copied goes (../copying.py): into tables, in the transaction of the copy."""

from __future__ import annotations

from collections.abc import Iterator

from laneway.journal.history.format import NO_MARK, CommitHeader
from laneway.journal.history.recovery import Segment
from laneway.journal.postgres.database import Connection, make_journal, signed
from laneway.journal.postgres.files import extent_table, snapshot_table
from laneway.journal.postgres.writer import make_extent, make_snapshot_table

COPY_BYTES = 4 << 20  # that are sent in one statement


class DatabaseTarget:
    def __init__(self, connection: Connection, journal: int) -> None:
        self._connection = connection
        self._journal = journal
        make_journal(connection, journal, lambda: 0)  # its store is known at the end
        self._rows: list[tuple[int, int, int, int, bytes]] = []
        self._row_bytes = 0

    def begin_segment(self, segment: Segment, store: int, used_bytes: int) -> None:
        self._number = segment.number
        make_extent(self._connection, self._journal, segment)

    def commit(self, offset: int, header: CommitHeader, data: bytes) -> None:
        self._rows.append((self._journal, self._number, offset, header.length, data + NO_MARK))
        self._row_bytes += header.length
        if self._row_bytes > COPY_BYTES:
            self._flush()

    def _flush(self) -> None:
        rows, self._rows, self._row_bytes = self._rows, [], 0
        table = extent_table(self._journal, self._number)
        with self._connection.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(["int4", "int4", "int8", "int4", "bytea"])
            for row in rows:
                copy.write_row(row)

    def end_segment(self, last: tuple[int, CommitHeader] | None, *, is_last: bool) -> None:
        self._flush()

    def snapshot(self, position: int, pieces: Iterator[bytes]) -> None:
        table, size = snapshot_table(self._journal, position, 0), 0
        make_snapshot_table(self._connection, table)
        for piece in pieces:
            self._connection.execute(f"INSERT INTO {table} VALUES (%b, %b, %b)", [size, len(piece), piece])
            size += len(piece)
        self._connection.execute(
            "INSERT INTO laneway.snapshots VALUES (%s, %s, 0, %s)", [self._journal, position, size]
        )

    def end(self, store: int, epoch: int, position: int) -> None:
        self._connection.execute(
            "UPDATE laneway.journals SET store = %s, epoch = %s, position = %s WHERE number = %s",
            [signed(store), epoch, position, self._journal],
        )
