"""A journal in PostgreSQL, read as if it were a folder of segment files: extents are segments with the same addresses
and bytes, snapshots are snapshot files. So all that reads a history (../history/) reads this one.
"""

from __future__ import annotations

import itertools
import os
import threading
from typing import NamedTuple

from laneway.journal.history.format import (
    HEADER_BYTES,
    pack_segment_header,
    segment_name,
    segment_numbers,
    snapshot_name,
    snapshot_positions,
)
from laneway.journal.postgres.database import Connection, Database

_EXTENT = """
    SELECT e.first_position, e.epoch, e.version, j.store
    FROM laneway.extents e JOIN laneway.journals j ON j.number = e.journal
    WHERE e.journal = %s AND e.number = %s
"""

#: The rows that hold bytes from one offset to another, each cut to these. Large values are read in part.
_READ = """
    SELECT substring(data FROM greatest(%(start)s - "offset", 0)::integer + 1
                     FOR (least(%(end)s - "offset", length) - greatest(%(start)s - "offset", 0))::integer)
    FROM {table}
    WHERE "offset" < %(end)s AND "offset" + length > %(start)s AND "offset" >= coalesce(
        (SELECT "offset" FROM {table} WHERE "offset" <= %(start)s ORDER BY "offset" DESC LIMIT 1), 0)
    ORDER BY "offset"
"""

_END = 'SELECT "offset" + length FROM {table} ORDER BY "offset" DESC LIMIT 1'


class _Opened(NamedTuple):
    table: str
    header: bytes  # what stands before the first row


class PostgresFiles:
    """Of one journal. Of paths only the last part counts; the rest is for people."""

    def __init__(self, database: Database, journal: int) -> None:
        self._database = database
        self._journal = journal
        self._opened: dict[int, _Opened] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def list_folder(self, path: str) -> list[str]:
        with self._database.reading() as connection:
            extents = connection.execute("SELECT number FROM laneway.extents WHERE journal = %s", [self._journal])
            names = [segment_name(number) for (number,) in extents]
            found = connection.execute("SELECT position FROM laneway.snapshots WHERE journal = %s", [self._journal])
            return names + [snapshot_name(position) for (position,) in found]

    def open(self, path: str) -> int:
        name = os.path.basename(path)
        with self._database.reading() as connection:
            opened = self._find(connection, name)
        if opened is None:
            raise FileNotFoundError(f"there is no {path}")
        with self._lock:
            file = next(self._numbers)
            self._opened[file] = opened
        return file

    def _find(self, connection: Connection, name: str) -> _Opened | None:
        for number in segment_numbers([name]):
            row = connection.execute(_EXTENT, [self._journal, number]).fetchone()
            if row is not None:
                first_position, epoch, version, store = row
                header = pack_segment_header(number, first_position, unsigned(store), epoch, 0, version)
                return _Opened(extent_table(self._journal, number), header)
        for position in snapshot_positions([name]):
            row = connection.execute(
                "SELECT claim FROM laneway.snapshots WHERE journal = %s AND position = %s", [self._journal, position]
            ).fetchone()
            if row is not None:
                return _Opened(snapshot_table(self._journal, position, row[0]), b"")
        return None

    def close(self, file: int) -> None:
        with self._lock:
            del self._opened[file]

    def size(self, file: int) -> int:
        opened = self._opened[file]
        with self._database.reading() as connection:
            row = connection.execute(_END.format(table=opened.table)).fetchone()
        return int(row[0]) if row is not None else len(opened.header)

    def read(self, file: int, size: int, offset: int) -> bytes:
        opened = self._opened[file]
        head = opened.header[offset : offset + size]
        start, end = offset + len(head), offset + size
        if start >= end:
            return head
        query = _READ.format(table=opened.table)
        with self._database.reading() as connection, connection.cursor(binary=True) as cursor:
            cursor.execute(query, {"start": start, "end": end})
            found = [row[0] for row in cursor]
        return found[0] if len(found) == 1 and not head else b"".join((head, *found))

    def read_ahead(self, file: int, offset: int, size: int) -> None:
        """PostgreSQL does what it wants."""


def extent_table(journal: int, extent: int) -> str:
    return f"laneway.commits_{journal}_{extent}"


def snapshot_table(journal: int, position: int, claim: int) -> str:
    return f"laneway.snapshot_{journal}_{position}_{claim}"


def unsigned(store: int) -> int:
    """As database.signed() was given it."""
    return store + (1 << 64) if store < 0 else store


assert HEADER_BYTES == len(pack_segment_header(1, 1, 0, 0, 0))
