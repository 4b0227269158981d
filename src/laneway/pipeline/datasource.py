"""The data source `laneway` of Spark: the events of a journal as a table or as a stream, and messages written into
queues. This is what Spark calls; planning, decoding and writing are elsewhere and know nothing of Spark.

    spark.read.format("laneway").load("./data")                               a journal folder
    spark.readStream.format("laneway").option("url", "http://…").load()       a running server
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from laneway.errors import Gone, InvalidInput, JournalGap, LanewayError
from laneway.journal.interface import Place
from laneway.pipeline.options import LATEST, ReadOptions, flag, read_options
from laneway.pipeline.planning import JournalParts, Portion, between, placed, portions, read, survey
from laneway.pipeline.pushdown import push
from laneway.pipeline.schema import column, spark_schema
from laneway.pipeline.selection import Selection
from laneway.pipeline.sources import ServerSource, Source
from laneway.pipeline.writing import stream_writer, writer

POLL_SECONDS = 0.2


class LanewayDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "laneway"

    def schema(self) -> StructType:
        return spark_schema(body=flag(self.options, "body"), attributes=flag(self.options, "attributes"))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        if options.cursor is not None or options.max_events is not None:
            raise InvalidInput("cursor and maxEventsPerBatch are for streams (readStream)", field="cursor")
        # A reader that takes filters fails a query unless spark.sql.python.filterPushdown.enabled is set, and nothing
        # tells a source whether it is: except for who calls.
        caller = sys._getframe(1).f_code.co_filename
        kind = FilteringReader if caller.endswith("data_source_pushdown_filters.py") else BatchReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return StreamReader(read_options(self.options), schema)
        except LanewayError as refusal:
            return RefusedStream(refusal)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self.options, schema, overwrite)


class Portions(InputPartition):
    """What one task of a batch read reads; the journals are part of the reader."""

    def __init__(self, portion: Portion) -> None:
        self.portion = portion


class StreamPortion(InputPartition):
    """What one task of a stream reads, with what it must know: a reader of a stream is older than its batches."""

    def __init__(self, portion: Portion, journal: JournalParts, selection: Selection) -> None:
        self.portion = portion
        self.journal = journal
        self.selection = selection


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._names = column_names(schema)
        # Planned here and not in partitions(): Spark sends the reader on its way before it calls that.
        self._journals = survey(options, self._names)
        self._selections = [options.selection(journal.catalogue) for journal in self._journals]

    def partitions(self) -> Sequence[InputPartition]:
        found = []
        for journal, selection in zip(self._journals, self._selections, strict=True):
            found += [Portions(one) for one in portions(journal, selection, self._options.partition_bytes)]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Portions):  # Spark makes up one of its own when there is nothing to read
            at = partition.portion.journal
            yield from read(
                self._journals[at],
                partition.portion,
                self._names,
                self._selections[at],
                fail_on_data_loss=self._options.fail_on_data_loss,
            )


class FilteringReader(BatchReader):
    """The same for sessions with spark.sql.python.filterPushdown.enabled. There each table must be loaded anew for each
    query that filters it otherwise: Spark remembers what was pushed with the table (see session.py)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        left: list[Filter] = filters
        for at, journal in enumerate(self._journals):
            self._selections[at], left = push(filters, self._selections[at], journal.catalogue)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are places: {"position", "segment", "offset"}, or one of those by number for each of several journals."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.end_position is not None:
            raise InvalidInput("endPosition is for batch reads; a stream ends when it is stopped", field="endPosition")
        self._options = options
        self._names = column_names(schema)
        self._ends: list[Place] | None = None  # with the trigger availableNow: where it ends
        self._newest: list[Place] = []
        self._asked_at, self._asked_for = 0.0, list[Place]()

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:
        return self._as_offset([self._first(source) for source in self._options.sources])

    def _first(self, source: Source) -> Place:
        options = self._options
        start: int | str | None = options.start
        if options.cursor is not None and start is None:
            held = _server(source).cursor(options.cursor)
            start = held["position"] if held is not None else None
        if start == LATEST:
            place = source.end()
        elif isinstance(start, int):
            place = placed(source, start, options.fail_on_data_loss)
        else:
            place = source.place(source.first_position())
        if options.cursor is not None:  # from here on nothing is dropped that was not read
            _server(source).put_cursor(options.cursor, place.position, rewind=True)
        return place

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        sources = self._options.sources
        places = self._places(start)
        ends = self._ends or self._ends_now(places)
        if not isinstance(limit, ReadMaxRows):
            return self._as_offset(ends)
        share = max(limit.max_rows // len(sources), 1)
        reached = []
        for source, first, end in zip(sources, places, ends, strict=True):
            if first.position >= end.position:
                reached.append(first)
                continue
            try:
                reached.append(source.advance(first, end, share))
            except JournalGap:
                first = placed(source, first.position, self._options.fail_on_data_loss)
                reached.append(source.advance(first, end, share))
        return self._as_offset(reached)

    def _ends_now(self, places: Sequence[Place]) -> list[Place]:
        """Spark asks for news every few milliseconds while there are none; servers are asked less often."""
        if list(places) == self._asked_for:
            time.sleep(max(0.0, self._asked_at + POLL_SECONDS - time.monotonic()))
        self._asked_at, self._asked_for = time.monotonic(), list(places)
        self._newest = [source.end() for source in self._options.sources]
        return self._newest

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_events is None:
            return super().getDefaultReadLimit()
        return ReadMaxRows(self._options.max_events)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._as_offset(self._newest) if self._newest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = self._newest = [source.end() for source in self._options.sources]

    # --- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        found: list[InputPartition] = []
        for number, (source, first, last) in enumerate(
            zip(options.sources, self._places(start), self._places(end), strict=True)
        ):
            parts = between(source, first, last, fail_on_data_loss=options.fail_on_data_loss)
            if parts:
                journal = JournalParts(number, source, source.identity()[1], source.catalogue(), [])
                selection = options.selection(journal.catalogue)
                found += [
                    StreamPortion(one, journal, selection)
                    for one in portions(journal._replace(parts=parts), selection, options.partition_bytes)
                ]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, StreamPortion):
            yield from read(
                partition.journal,
                partition.portion,
                self._names,
                partition.selection,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.cursor is None:
            return
        for source, place in zip(self._options.sources, self._places(end), strict=True):
            _move_cursor(_server(source), self._options.cursor, place.position, self._options.fail_on_data_loss)

    def _as_offset(self, places: Sequence[Place]) -> dict[str, Any]:
        if len(places) == 1:
            return places[0]._asdict()
        return {str(number): place._asdict() for number, place in enumerate(places)}

    def _places(self, offset: dict[str, Any]) -> list[Place]:
        count = len(self._options.sources)
        found = [offset] if "position" in offset else [offset[key] for key in sorted(offset, key=int)]
        if len(found) != count:
            raise InvalidInput(f"the checkpoint is of {len(found)} journals, and {count} are given", field="path")
        return [Place(one["segment"], one["offset"], one["position"]) for one in found]


class RefusedStream(DataSourceStreamReader):
    """Says what was wrong when it is first asked for something. If making a reader fails, Spark 4.3 stumbles over the
    missing reader while it fails, and shows that mistake of its own as the reason."""

    def __init__(self, refusal: LanewayError) -> None:
        self._refusal = refusal

    def initialOffset(self) -> dict[str, Any]:
        raise self._refusal

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._refusal

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._refusal

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._refusal


def column_names(schema: StructType) -> list[str]:
    """Of the wanted columns, which may be any of those there are, in any order; their types are not converted."""
    known = spark_schema(body=True, attributes=True)
    for field in schema.fields:
        wanted = column(field.name)
        if field.dataType != known[field.name].dataType:
            raise InvalidInput(
                f"the column {field.name} is of type {wanted.type}, not {field.dataType.simpleString()}; "
                "read it as it is and cast it",
                field="schema",
            )
    return list(schema.names)


def _move_cursor(server: ServerSource, name: str, position: int, fail_on_data_loss: bool) -> None:
    """To move a cursor is an event too, and comes by as the next thing to read. If that alone moved it on, an idle
    server would be followed in circles: so a cursor stays while no more happened than all cursors being moved once."""
    known = server.cursors()
    held = known.get(name)
    if held is not None and held["state"] == "ok" and 0 <= position - held["position"] <= len(known):
        return
    try:
        server.put_cursor(name, position)
    except Gone:
        if fail_on_data_loss:
            raise
        server.put_cursor(name, position, rewind=True)


def _server(source: Source) -> ServerSource:
    if not isinstance(source, ServerSource):
        raise InvalidInput("a cursor is kept by a server: read from its url", field="cursor")
    return source
