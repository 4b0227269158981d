"""PostgresJournal: the history of one partition in a PostgreSQL database, which other journals may share.

The parts: database.py (connections, errors, schema), writer.py (who may write, appending), files.py (the tables read as
segment files), and what all journals share: ../stored.py and ../history/.

    stage ─▶ gathering ─seal─▶ _sealed ─write─▶ row ─commit, on the standby too─▶ durable
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from typing import ClassVar

from laneway.journal.history.files import ReadableFiles
from laneway.journal.history.format import MAX_SEGMENT_BYTES, UNIT_BYTES
from laneway.journal.history.recovery import Replay, Survey
from laneway.journal.history.snapshots import Snapshot
from laneway.journal.interface import DiskUse
from laneway.journal.postgres.database import Database, draw_store
from laneway.journal.postgres.files import PostgresFiles
from laneway.journal.postgres.writer import CLAIM_PATIENCE_S, PostgresWriter
from laneway.journal.stored import StoredJournal

DEFAULT_SEGMENT_BYTES = 64 << 20
MAX_ROW_BYTES = 512 << 20  # PostgreSQL takes 1 GiB at most, of all that is in a statement


class PostgresJournal(StoredJournal):
    writes_on_loop = False
    most_staged_bytes: ClassVar[int] = MAX_ROW_BYTES - 3 * UNIT_BYTES

    def __init__(
        self,
        database: Database,
        partition: int = 0,
        *,
        epoch: int | None = None,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        draw_store: Callable[[], int] = draw_store,
        patience_s: float = CLAIM_PATIENCE_S,
    ) -> None:
        """Claim the journal, which is made if need be. load_snapshot() and replay() come next.

        With an epoch, given by who elects leaders, whoever had the journal loses it at this moment. Without one, it is
        refused if somebody has it, after so much patience: one that was killed is not gone at once.
        """
        if not 0 < segment_bytes <= MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes must be from 1 to {MAX_SEGMENT_BYTES}, not {segment_bytes}")
        self._segment_bytes = segment_bytes
        folder = f"{database.name} partition {partition}"
        files: ReadableFiles = PostgresFiles(database, partition)
        self._writer = PostgresWriter(
            database,
            partition,
            folder,
            epoch=epoch,
            draw_store=draw_store,
            holder_name=f"process {os.getpid()} on {socket.gethostname()}",
            patience_s=patience_s,
        )
        self._database = database
        super().__init__(files, folder, self._writer, max_open_files=1 << 20)
        self.claimed_epoch = self._writer.claim.epoch

    def _open(self, found: Survey, replay: Replay, snapshot: Snapshot | None) -> None:
        self._writer.open(found, replay)

    def abandon(self) -> None:
        self._database.abandon()

    def close(self) -> None:
        self._writer.close()
        self._reader.close()

    # --- room: the database's is not seen from here; if it has none, write() says so

    def has_room(self, need_bytes: int = 0) -> bool:
        return True

    def has_free(self, need_bytes: int) -> bool:
        return True

    def disk(self) -> DiskUse:
        last, end = self._writer.written_location >> 32, self._writer.written_location & 0xFFFFFFFF
        sizes = {segment.number: segment.file_bytes for segment in tuple(self._writer.segments.values())}
        snapshot_bytes = self._snapshot.file_bytes if self._snapshot is not None else 0
        return DiskUse(sum({**sizes, last: end}.values()) + snapshot_bytes, None)

    def is_prepared(self) -> bool:
        return True

    def prepare(self) -> bool:
        return False

    def _is_roll_due(self, offset: int) -> bool:
        return offset >= self._segment_bytes

    # --- snapshots and dropping

    def save_snapshot(self, position: int, chunks: Iterable[bytes], live_extents: Iterable[int]) -> None:
        snapshot = self._writer.describe_snapshot(position, live_extents)
        self._snapshot = self._writer.save_snapshot(snapshot, chunks)

    def _remove_segment(self, number: int) -> bool:
        return self._writer.drop_extent(number)
