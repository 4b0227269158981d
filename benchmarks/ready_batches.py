"""A data source in Python that has nothing to do: it yields Arrow batches as they lie in files, of the rows and the
columns that the journal's reader yields, cut into the same portions. What Spark makes of such a source is the most that
any can reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from laneway.pipeline.options import read_options
from laneway.pipeline.planning import portions, read, survey
from laneway.pipeline.schema import EVENTS


class ReadyBatches(DataSource):
    """`path` is a folder of Arrow files, one a task."""

    @classmethod
    def name(cls) -> str:
        return "ready_batches"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(Path(self.options["path"]))


class ReadyReader(DataSourceReader):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(str(path)) for path in sorted(self._folder.glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as file:
            batches = pa.ipc.open_file(file)
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


def write_ready(folder: Path, journal: Path, names: Sequence[str] = (), **options: str) -> int:
    """Rows that were written: those of a journal, as its reader yields them to Spark."""
    names = names or [column.name for column in EVENTS if column.is_default]
    wanted: Mapping[str, str] = {"path": str(journal), **options}
    read_from = read_options(wanted)
    [parts] = survey(read_from, names)
    selection = read_from.selection(parts.catalogue)
    folder.mkdir(parents=True)
    rows = 0
    for number, portion in enumerate(portions(parts, selection, read_from.partition_bytes)):
        writer = None
        for batch in read(parts, portion, names, selection, fail_on_data_loss=True):
            writer = writer or pa.ipc.new_file(str(folder / f"{number:04d}.arrow"), batch.schema)
            writer.write_batch(batch)
            rows += batch.num_rows
        if writer is not None:
            writer.close()
    return rows
