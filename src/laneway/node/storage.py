"""Where the journals of a server's partitions are kept: in its data folder, or in PostgreSQL. How many partitions there
are is what is there: no other record could disagree.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from laneway.config import Config, without_password
from laneway.errors import ConfigInvalid, StartError
from laneway.journal.interface import Journal
from laneway.journal.segments.journal import SegmentJournal
from laneway.node.folder import DataFolder
from laneway.node.shares import Shares

if TYPE_CHECKING:
    from laneway.journal.postgres import Database

STAGED = "staged"

log = logging.getLogger("laneway.node")


class Storage(Protocol):
    def lock(self) -> Callable[[], None]:
        """For a server of one process: nobody else uses what it uses, until it calls what is returned. Of what its
        journals lock themselves nothing needs to be locked here."""

    def partition_count(self) -> int:
        """How many there are; of a new server one."""

    def is_new(self) -> bool:
        """Whether nothing was written yet."""

    def make_partitions(self, count: int) -> None:
        """Have so many."""

    def open(self, partition: int, shares: Shares) -> Journal:
        """From here on nobody else opens it."""

    def name(self, partition: int) -> str:
        """For people."""

    def staging_folder(self, partition: int) -> Path:
        """Where producers' batches are until they are committed. Of no use to a later start."""

    def close(self) -> None:
        """No connection is left of what looked at them; journals have their own."""


def storage_of(config: Config) -> Storage:
    return FolderStorage(config) if config.journal is None else DatabaseStorage(config, config.journal)


def storage_at(config: Config) -> str:
    """In a line that says where a server has its messages."""
    return str(config.data) if config.journal is None else without_password(config.journal)


def wanted_count(storage: Storage, wanted: int, process_count: int) -> int:
    """How many partitions the settings want, 0 meaning those there are, and one for each process of a new server."""
    there = storage.partition_count()
    if not wanted:
        return max(there, process_count) if storage.is_new() else there
    if wanted < there:
        raise ConfigInvalid(
            f"partitions is {wanted}, and {storage.name(0)} has {there}: there can be more later, never fewer, "
            f"because each has queues and messages. Leave it out, or say {there}",
            field="partitions",
        )
    return wanted


class FolderStorage:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._folder = DataFolder(config.data)

    def lock(self) -> Callable[[], None]:
        self._folder.check_unlocked()
        return lambda: None

    def partition_count(self) -> int:
        return self._folder.partition_count()

    def is_new(self) -> bool:
        return self._folder.is_new()

    def make_partitions(self, count: int) -> None:
        self._folder.make_partitions(count)

    def open(self, partition: int, shares: Shares) -> SegmentJournal:
        folder, config = self._folder.partition(partition), self._config
        try:
            return SegmentJournal(
                folder,
                durability=config.durability,
                interval_ms=config.sync_interval_ms,
                segment_bytes=config.segment_bytes,
                max_open_files=shares.partition_file_count,
            )
        except OSError as trouble:
            raise StartError(f"cannot use the data folder {folder}: {trouble}; use --data FOLDER") from None

    def name(self, partition: int) -> str:
        return str(self._folder.partition(partition))

    def staging_folder(self, partition: int) -> Path:
        return self._folder.partition(partition) / STAGED

    def close(self) -> None:
        pass


class DatabaseStorage:
    """Several servers share the partitions: each stays where it is, a new one goes where the fewest are."""

    def __init__(self, config: Config, urls: str) -> None:
        if config.durability != "commit":
            raise ConfigInvalid(
                f"durability is {config.durability}, which is for journals in the data folder; with journal set, acks "
                "says what a confirm means",
                field="durability",
            )
        self._config = config
        self._folder = DataFolder(config.data)
        if not self._folder.is_new():
            raise StartError(
                f"{config.data} has a journal, and the setting journal names another one: copy it there with `laneway "
                "journal copy` and move the folder away, or give this server another one with --data"
            )
        self._databases = [_database(url, config) for url in urls.split()]
        self._found: dict[int, Database] = {}
        for database in self._databases:
            database.check_schema()
            for partition in database.journals():
                if partition in self._found:
                    raise StartError(f"partition {partition} is at {self._found[partition]} and at {database}")
                self._found[partition] = database
        missing = [number for number in range(max(self._found, default=-1)) if number not in self._found]
        if missing:
            raise StartError(f"the journal of partition {missing[0]} is at none of the servers that journal names")

    def lock(self) -> Callable[[], None]:
        """What the journals lock is in the database; the folder has parts of batches and the processes' sockets."""
        file = self._folder.lock()
        return lambda: os.close(file)

    def partition_count(self) -> int:
        return max(len(self._found), 1)

    def is_new(self) -> bool:
        return not any(database.has_history() for database in self._databases)

    def make_partitions(self, count: int) -> None:
        for partition in range(count):
            if partition not in self._found:
                places = list(self._found.values())
                database = min(self._databases, key=places.count)
                database.make_journal(partition)
                self._found[partition] = database

    def open(self, partition: int, shares: Shares) -> Journal:
        from laneway.journal.postgres import PostgresJournal

        self.make_partitions(partition + 1)
        database = self._found[partition]
        if self._config.acks == "all" and not database.waits_for_standby():
            log.warning(
                "acks is all, and %s has no synchronous_standby_names: a confirm says that it alone has the commit",
                database,
            )
        return PostgresJournal(database, partition, segment_bytes=self._config.segment_bytes)

    def name(self, partition: int) -> str:
        return f"{self._found.get(partition, self._databases[0])} partition {partition}"

    def staging_folder(self, partition: int) -> Path:
        return self._config.data / STAGED / str(partition)

    def close(self) -> None:
        for database in self._databases:
            database.close()


def _database(url: str, config: Config) -> Database:
    try:
        from laneway.journal.postgres import Database
    except ImportError as missing:
        raise StartError(
            f"journal is set, and the package {missing.name} is not installed: pip install laneway[postgres]"
        ) from None
    return Database(url, acks=config.acks)
