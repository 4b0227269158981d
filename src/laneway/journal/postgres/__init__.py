"""The journal in PostgreSQL: a row for each commit, fenced by the statement that appends it (docs/journal.md)."""

from laneway.journal.postgres.database import Acks, Database
from laneway.journal.postgres.files import PostgresFiles
from laneway.journal.postgres.journal import PostgresJournal

__all__ = ["Acks", "Database", "PostgresFiles", "PostgresJournal"]
