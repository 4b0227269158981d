"""Which journal a server that a test starts in its own process has: one in its folder, or with LANEWAY_TEST_JOURNAL one
in that PostgreSQL database, for each folder another."""

from __future__ import annotations

import os
from pathlib import Path

from laneway.journal.interface import Journal
from laneway.journal.postgres import Database, PostgresJournal
from laneway.journal.segments.journal import SegmentJournal

_numbers: dict[Path, int] = {}


def journal_for(folder: Path) -> Journal:
    url = os.environ.get("LANEWAY_TEST_JOURNAL")
    if not url:
        return SegmentJournal(folder)
    return PostgresJournal(Database(url), _numbers.setdefault(folder, len(_numbers)))
