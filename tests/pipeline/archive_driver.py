"""A driver that archives and meets trouble: run as a program by test_archive.py.

The first task of the first batch dies with its process, once. When the third batch has been moved into the lake, and
before that is noted, the driver is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laneway.pipeline.archive import Archive, Archived
from laneway.pipeline.jobs import archive
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from tests.pipeline.drivers import die, quick_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def main(source: str, warehouse: str, note: str) -> None:
    spark = quick_session()
    read, save = archive._read, Archive.save
    saved = 0

    def dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not Path(note).exists():
            Path(note).touch()
            die()
        yield from batches

    def read_and_die(*given: Any) -> DataFrame:
        events = read(*given)
        return events.mapInArrow(dying, events.schema)

    def save_and_die(self: Archive, state: Archived) -> None:
        nonlocal saved
        saved += 1
        if saved == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, state)

    archive._read = read_and_die
    Archive.save = save_and_die  # type: ignore[method-assign]
    run(JOBS["archive"], spark, Options(source, Warehouse(warehouse), settings={"batch_events": 700}))


if __name__ == "__main__":
    main(*sys.argv[1:])
