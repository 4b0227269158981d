"""The data source `laneway` of Spark: the events of a journal as a table or as a stream, and messages written into
queues. This is what Spark calls; planning, decoding and writing are elsewhere and know nothing of Spark.

    spark.read.format("laneway").load("./data")                               a journal folder
    spark.readStream.format("laneway").option("url", "http://…").load()       a running server
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from laneway.pipeline.journals import SeveralJournals
from laneway.pipeline.options import LATEST, ReadOptions, check_positions, flag, read_options
from laneway.pipeline.planning import JournalParts, Portion, between, elsewhere_of, placed, portions, read, survey
from laneway.pipeline.pushdown import push
from laneway.pipeline.schema import column, spark_schema
from laneway.pipeline.selection import Selection
from laneway.pipeline.sources import ServerSource, Source
from laneway.pipeline.writing import stream_writer, writer

POLL_SECONDS = 0.2
Places = dict[int, Place]  # by number of the journal


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
        self._journals = {journal.number: journal for journal in survey(options, self._names)}
        self._selections = {number: options.selection(journal.catalogue) for number, journal in self._journals.items()}

    def partitions(self) -> Sequence[InputPartition]:
        found = []
        for number, journal in self._journals.items():
            selection = self._selections[number]
            found += [Portions(one) for one in portions(journal, selection, self._options.partition_bytes)]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Portions):  # Spark makes up one of its own when there is nothing to read
            number = partition.portion.journal
            yield from read(
                self._journals[number],
                partition.portion,
                self._names,
                self._selections[number],
                fail_on_data_loss=self._options.fail_on_data_loss,
            )


class FilteringReader(BatchReader):
    """The same for sessions with spark.sql.python.filterPushdown.enabled. There each table must be loaded anew for each
    query that filters it otherwise: Spark remembers what was pushed with the table (see session.py)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        left: list[Filter] = filters
        for number, journal in self._journals.items():
            self._selections[number], left = push(filters, self._selections[number], journal.catalogue)
        return left


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are places: {"position", "segment", "offset"} of partition 0 where there is no other, or one of those by
    number for each partition. One that was added since the stream began is read from its first commit."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.end_position is not None:
            raise InvalidInput("endPosition is for batch reads; a stream ends when it is stopped", field="endPosition")
        self._options = options
        self._journals = options.journals
        self._names = column_names(schema)
        self._ends: Places | None = None  # with the trigger availableNow: where it ends
        self._newest: Places = {}
        self._asked_at, self._asked_for = 0.0, Places()
        self._added: Places = {}

    # --- offsets

    def initialOffset(self) -> dict[str, Any]:
        ends = self._journals.ends()
        check_positions(self._options, len(ends))
        return _as_offset({number: self._first(self._journals.source(number)) for number in ends})

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
        self._hold(source, place)
        return place

    def _hold(self, source: Source, place: Place) -> None:
        """From here on nothing is dropped that was not read."""
        if self._options.cursor is not None:
            _server(source).put_cursor(self._options.cursor, place.position, rewind=True)

    def _begun(self, number: int) -> Place:
        """Where a partition begins that was added after the offset was made: with its first commit, each time."""
        if number not in self._added:
            source = self._journals.source(number)
            place = placed(source, 1, self._options.fail_on_data_loss)
            self._hold(source, place)
            self._added[number] = place
        return self._added[number]

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        places = self._places(start)
        ends = self._ends or self._ends_now(places)
        self._check(places, ends)
        places |= {number: self._begun(number) for number in ends.keys() - places.keys()}
        if not isinstance(limit, ReadMaxRows):
            return _as_offset(ends)
        behind = [number for number, end in ends.items() if places[number].position < end.position]
        share = max(limit.max_rows // max(len(behind), 1), 1)
        return _as_offset(places | {number: self._further(number, places[number], ends, share) for number in behind})

    def _further(self, number: int, first: Place, ends: Places, max_events: int) -> Place:
        source = self._journals.source(number)
        try:
            return source.advance(first, ends[number], max_events)
        except JournalGap:
            first = placed(source, first.position, self._options.fail_on_data_loss)
            return source.advance(first, ends[number], max_events)

    def _ends_now(self, places: Places) -> Places:
        """Spark asks for news every few milliseconds while there are none; servers are asked less often."""
        if places == self._asked_for:
            time.sleep(max(0.0, self._asked_at + POLL_SECONDS - time.monotonic()))
        self._asked_at, self._asked_for = time.monotonic(), dict(places)
        self._newest = self._journals.ends()
        return self._newest

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_events is None:
            return super().getDefaultReadLimit()
        return ReadMaxRows(self._options.max_events)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return _as_offset(self._newest) if self._newest else None

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = self._newest = self._journals.ends()

    # --- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        starts, ends = self._places(start), self._places(end)
        found: list[InputPartition] = []
        elsewhere = elsewhere_of(options, self._names)
        for number, last in ends.items():
            source = self._journals.source(number)
            first = starts[number] if number in starts else self._begun(number)
            parts = between(source, first, last, fail_on_data_loss=options.fail_on_data_loss)
            if parts:
                journal = JournalParts(number, source, source.identity()[1], source.catalogue(), [], elsewhere)
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
        places = self._places(end)
        servers = {number: _server(self._journals.source(number)) for number in places}
        for number, known in _cursors(servers).items():
            position = places[number].position
            _move_cursor(servers[number], known, self._options.cursor, position, self._options.fail_on_data_loss)

    def _places(self, offset: dict[str, Any]) -> Places:
        found = {"0": offset} if "position" in offset else offset
        return {
            number: Place(found[str(number)]["segment"], found[str(number)]["offset"], found[str(number)]["position"])
            for number in sorted(map(int, found))
        }

    def _check(self, places: Places, ends: Places) -> None:
        """Partitions are added and never removed."""
        is_other = isinstance(self._journals, SeveralJournals) and places.keys() != ends.keys()
        if is_other or not places.keys() <= ends.keys():
            there = ", ".join(map(str, sorted(ends)))
            raise InvalidInput(
                f"the checkpoint is of {len(places)} journals, and there are {there} in {self._journals.name}",
                field="path",
            )


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


def _as_offset(places: Places) -> dict[str, Any]:
    """Spark compares offsets as text: always in the same order."""
    if places.keys() == {0}:
        return places[0]._asdict()
    return {str(number): places[number]._asdict() for number in sorted(places)}


def _cursors(servers: Mapping[int, ServerSource]) -> dict[int, dict[str, dict[str, Any]]]:
    """Where all cursors stand, by journal: one request for all partitions of a server."""
    by_url: dict[str, list[int]] = {}
    for number, server in servers.items():
        by_url.setdefault(server.url, []).append(number)
    found = {}
    for numbers in by_url.values():
        parts = servers[numbers[0]].cursors_of(servers[number].partition for number in numbers)
        found.update({number: parts[servers[number].partition] for number in numbers})
    return found


def _move_cursor(
    server: ServerSource, known: dict[str, dict[str, Any]], name: str, position: int, fail_on_data_loss: bool
) -> None:
    """To move a cursor is an event too, and comes by as the next thing to read. If that alone moved it on, an idle
    server would be followed in circles: so a cursor stays while no more happened than all cursors being moved once."""
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
