"""The warehouse: one folder with the archive and the tables that jobs make, as Parquet.

    warehouse/
      events/                     the archive, partitioned by day and queue (the job archive)
      slo -> .versions/slo/RUN    a table: a link to its current version, which is what a run wrote
      audit_runs/run=RUN/         a table that grows: what each run added, `run` is a column
      plan.json report.html       files
      .versions/ .staging/        versions of tables; what is being written. Nobody reads here by name

A version is written whole before the link is turned to it, and a run's share of a growing table is renamed into its
place: a reader sees all of it or nothing. The version before stays until the next run, for those who read it now.
The folder is on this machine, or mounted under the same path wherever Spark runs.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from laneway.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

VERSIONS = ".versions"
STAGING = ".staging"
EVENTS = "events"
RUN = "run"

#: What a run that died left behind goes after so long; a run that lasts longer than this is not expected.
LEFTOVER_SECONDS = 86_400


@dataclass(frozen=True)
class TableInfo:
    name: str
    rows: int
    bytes: int
    files: int
    written_at: datetime
    run_id: str | None  # None: it grows, or is the archive


def new_run_id(job: str, now: datetime | None = None) -> str:
    """Sorts by time, says which job, and is nobody else's."""
    return f"{now or datetime.now(UTC):%Y%m%dT%H%M%S}-{job}-{secrets.token_hex(3)}"


class Warehouse:
    def __init__(self, path: str | Path) -> None:
        text = str(path).removeprefix("file://")
        if re.match(r"[a-z0-9+.-]+://", text, re.IGNORECASE):
            raise InvalidInput(
                f"the warehouse {text!r} is no folder: give one on this machine, or mounted on all that Spark runs on",
                field="warehouse",
            )
        self.path = Path(text).absolute()

    # --- places

    @property
    def events(self) -> Path:
        """The archive's folder, whether there is one or not."""
        return self.path / EVENTS

    def place(self, name: str) -> Path:
        """Where the table is for readers, whether it is there or not."""
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise InvalidInput(f"{name!r} is no name of a table: lower-case letters, digits and _", field="table")
        return self.path / name

    def checkpoint(self, name: str) -> Path:
        """Where a stream called so keeps how far it came."""
        return self.path / ".checkpoints" / name

    def has(self, name: str) -> bool:
        return self.place(name).is_dir()

    def version(self, name: str) -> Path:
        """The folder that holds the table's rows now: it stays as it is while another version is made."""
        place = self.place(name)
        if not place.is_dir():
            there = ", ".join(table.name for table in self.tables()) or "none yet"
            raise NotFound(f"there is no table {name!r} in {self.path}; there are: {there}", field="table")
        return place.resolve()

    # --- writing

    def overwrite(self, name: str, frame: DataFrame, run_id: str, *, partition_by: Sequence[str] = ()) -> int:
        """Make the frame the table's new version; the count of its rows."""
        place = self.place(name)
        version = self.path / VERSIONS / name / run_id
        if place.is_dir() and not place.is_symlink():
            raise InvalidInput(f"the table {name!r} in {self.path} grows: it is not overwritten", field="table")
        _write(frame, version, partition_by)
        self._turn(place, version)
        self._clean(version.parent, {version, place.resolve()})
        return _rows(version)

    def append(self, name: str, frame: DataFrame, run_id: str, *, partition_by: Sequence[str] = ()) -> int:
        """Add the frame as this run's share, once: a run that did so already adds nothing. The count of its rows."""
        place = self.place(name)
        if place.is_symlink():
            raise InvalidInput(f"the table {name!r} in {self.path} is overwritten by each run: it does not grow")
        share = place / f"{RUN}={run_id}"
        if not share.is_dir():
            staged = self.path / STAGING / f"{name}-{run_id}-{secrets.token_hex(3)}"
            _write(frame, staged, partition_by)
            place.mkdir(parents=True, exist_ok=True)
            try:
                staged.rename(share)
            except OSError:
                if not share.is_dir():
                    raise
                shutil.rmtree(staged)  # the same run, started twice: the other one was first
            self._clean(self.path / STAGING, set())
        return _rows(share)

    def write_file(self, name: str, text: str) -> Path:
        """A file beside the tables: whole, or as it was before."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / name
        written = path.with_name(f".{name}-{secrets.token_hex(3)}")
        written.write_text(text, encoding="utf-8")
        os.replace(written, path)
        return path

    @contextmanager
    def scratch(self, run_id: str) -> Iterator[Path]:
        """A folder for what a run keeps while it lasts, where all of Spark can reach it."""
        folder = self.path / STAGING / run_id
        if folder.parent.is_dir():
            self._clean(folder.parent, set())
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    # --- reading

    def read(self, spark: SparkSession, name: str) -> DataFrame:
        return spark.read.parquet(str(self.version(name)))

    def read_events(self, spark: SparkSession) -> DataFrame:
        """The archive. Columns of events that were not there yet when a file was written are null in it."""
        from laneway.pipeline.schema import EVENTS as COLUMNS

        there = self.read(spark, EVENTS).columns
        known = [one for one in COLUMNS if one.is_default or one.name in there]
        schema = ", ".join(f"`{one.name}` {one.type}" for one in known)
        return spark.read.schema(schema).parquet(str(self.version(EVENTS)))

    def read_arrow(self, name: str) -> pa.Table:
        """The table without Spark: for showing it, and for charts."""
        import pyarrow.dataset

        return pyarrow.dataset.dataset(self.version(name), format="parquet", partitioning="hive").to_table()

    def tables(self) -> list[TableInfo]:
        if not self.path.is_dir():
            return []
        names = sorted(one.name for one in self.path.iterdir() if one.is_dir() and one.name[0] not in "._")
        return [self._info(name) for name in names]

    def _info(self, name: str) -> TableInfo:
        place = self.path / name
        version = place.resolve()
        files = _files(version)
        written = max((file.stat().st_mtime for file in files), default=version.stat().st_mtime)
        return TableInfo(
            name,
            rows=_rows(version),
            bytes=sum(file.stat().st_size for file in files),
            files=len(files),
            written_at=datetime.fromtimestamp(written, UTC),
            run_id=version.name if place.is_symlink() else None,
        )

    # --- inside

    def _turn(self, place: Path, version: Path) -> None:
        """Renaming a link over another is one step; the link before is kept by name for those who read it now."""
        before = place.resolve() if place.is_symlink() else None
        link = place.with_name(f".{place.name}-{secrets.token_hex(3)}")
        link.symlink_to(version.relative_to(self.path))
        os.replace(link, place)
        (version.parent / "before").write_text(before.name if before is not None else "")

    def _clean(self, folder: Path, kept: set[Path]) -> None:
        """Remove what nobody reads any more: finished versions but the last two, and leftovers of runs that died."""
        note = folder / "before"
        before = note.read_text().strip() if note.exists() else ""
        for one in folder.iterdir():
            if one in kept or one.name == before or not one.is_dir():
                continue
            is_finished = folder.name != STAGING and (one / "_SUCCESS").exists()
            if is_finished or time.time() - one.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(one, ignore_errors=True)


def _write(frame: DataFrame, folder: Path, partition_by: Sequence[str]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    writer = frame.write.mode("overwrite")
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    writer.parquet(str(folder))


def _files(folder: Path) -> list[Path]:
    return [
        file
        for file in folder.rglob("*.parquet")
        if not any(part[0] in "._" for part in file.relative_to(folder).parts)
    ]


def _rows(folder: Path) -> int:
    """From the files' footers: no Spark is needed to count."""
    import pyarrow.parquet

    return sum(pyarrow.parquet.read_metadata(file).num_rows for file in _files(folder))
