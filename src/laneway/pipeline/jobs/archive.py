"""archive: history into the lake, exactly once, so that it may leave the hot journal.

A batch is some range of positions, read and written by Spark, then taken into the lake by the driver in one step
(laneway.pipeline.archive says how). Spark's streaming checkpoints are not used: they would be a second truth about what
is in the lake, beside the lake. Spark's file sink has its own, too, which only Spark reads.

On a server, a named cursor holds back the journal from the first position that is not in the lake yet.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F

from laneway.client import Client
from laneway.errors import InvalidInput
from laneway.pipeline.archive import Archive, Archived
from laneway.pipeline.journals import Journals, SeveralJournals
from laneway.pipeline.options import read_options
from laneway.pipeline.runner import Options, Result
from laneway.pipeline.schema import EVENTS
from laneway.pipeline.server import client, of_those_there
from laneway.pipeline.sources import ServerSource, Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BODIES = ("all", "none", "dead")
DEATHS = ("expired", "rejected", "max_receives", "overflow")
DEATH_KINDS = "dead_lettered,moved,copied"
CURSOR = "archive"
DEAD_LETTERS_AFTER_HOURS = 24.0


def is_death() -> Column:
    """Of a row: a message died here and became a dead letter, wherever that is kept."""
    kind, reason = F.col("kind"), F.col("reason")
    return (kind == "dead_lettered") | (kind.isin("moved", "copied") & reason.isin(*DEATHS))


def folder() -> Column:
    """A name for the folder of a queue: its own as far as a file system takes it, and told apart where it does not."""
    plain = F.regexp_replace(F.substring("queue", 1, 80), "[^A-Za-z0-9._-]", "_")
    mark = F.substring(F.md5(F.concat_ws("\0", "vhost", "queue")), 1, 8)
    is_own = (F.col("vhost") == "/") & (plain == F.col("queue"))
    return F.when(F.col("queue").isNull(), "none").when(is_own, plain).otherwise(F.concat_ws("-", plain, mark))


def archived(events: DataFrame) -> DataFrame:
    """Events as they are kept: every column there is, the day, and the folder of the queue; one file for each of these,
    in the order of history."""
    columns = [
        F.col(one.name) if one.name in events.columns else F.lit(None).cast(one.type).alias(one.name) for one in EVENTS
    ]
    return (
        events.select(*columns, F.to_date("time").alias("day"), folder().alias("folder"))
        .repartition("day", "folder")
        .sortWithinPartitions("day", "folder", "partition", "position", "index")
    )


def with_bodies_of_the_dead(events: DataFrame, published: DataFrame) -> DataFrame:
    """Rows of deaths with the body of their message, which `published` has (message_id, body)."""
    died = events.where(is_death()).select("message_id").distinct()
    bodies = (
        published.join(F.broadcast(died), "message_id")
        .groupBy("message_id")
        .agg(F.first("body").alias("body"))
        .withColumnRenamed("message_id", "of")
    )
    joined = events.join(F.broadcast(bodies), (F.col("message_id") == F.col("of")) & is_death(), "left")
    return joined.drop("of")


def run(spark: SparkSession, options: Options) -> Result:
    if options.is_lake:
        raise InvalidInput(
            "the archive is what this job makes: give the folder or the URL of a journal", field="source"
        )
    archive = Archive(options.warehouse.events, options.warehouse.path / ".staging" / "archive")
    journals = _one_server(options)
    begun_s = time.time()  # what happens from now on may not be in the lake in the end
    with archive.locked():
        cleaned = archive.clean()
        notes = [f"{cleaned} files of a run that died were removed"] if cleaned else []
        begun = archive.state()
        for partition, state in _batches(spark, options, archive, journals, notes):
            reached = state.of(partition).next_position - 1
            of = f" of partition {partition}" if state.partitions else ""
            options.say(f"archive: {state.events - begun.events} events, up to position {reached}{of}")
        state = archive.state()
        deleted = 0
        hours = _dead_letters_after(options)
        if hours is not None:
            deleted = _let_go(spark, options, archive, hours, begun_s)
            notes.append(f"{deleted} dead letters are in the lake and were deleted from their queues")
    facts = {
        "archived": state.events - begun.events,
        "next_position": state.next_position,
        **{f"next_position_{partition}": one.next_position for partition, one in sorted(state.partitions.items())},
        "events": state.events,
        "dead_letters_deleted": deleted,
    }
    return Result(list(facts), [list(facts.values())], notes, {"events": state.events}, facts=facts)


def _one_server(options: Options) -> Journals:
    journals = read_options(options.source_options()).journals
    if isinstance(journals, SeveralJournals):
        raise InvalidInput(
            "an archive is of one server, and several are given: archive each into a warehouse of its own",
            field="source",
        )
    return journals


def _begin(
    options: Options, archive: Archive, source: Source, state: Archived, partition: int, notes: list[str]
) -> Archived:
    """Where to go on, which is behind a gap where there may be one: always for a partition that is new here."""
    reached = state.of(partition)
    store = f"{source.identity()[0]:016x}"
    if reached.store not in ("", store):
        raise InvalidInput(
            f"the archive {archive.folder} is of another journal than {source.name}: give another warehouse",
            field="warehouse",
        )
    first = source.first_position()
    if reached.next_position < first and (not reached.store or options["allow_gap"]):
        of = f" of partition {partition}" if partition else ""
        notes.append(
            f"history{of} from position {reached.next_position} to {first - 1} had gone before it was archived"
        )
        reached = msgspec.structs.replace(reached, next_position=first)
    return state.having(partition, msgspec.structs.replace(reached, store=store))


def _batches(
    spark: SparkSession, options: Options, archive: Archive, journals: Journals, notes: list[str]
) -> Iterator[tuple[int, Archived]]:
    """Take in batch after batch, until all is in that was there in the beginning: (partition, state)."""
    ends = journals.ends()
    begun = state = archive.state()
    for partition in ends:
        state = _begin(options, archive, journals.source(partition), state, partition, notes)
    if options.is_server:
        state = msgspec.structs.replace(state, cursor=_cursor(options, begun))
        archive.save(state)  # before the first batch, so that a run that dies leaves no cursor nobody knows of
    for partition in ends:
        _hold(journals.source(partition), state.cursor, state.of(partition).next_position)
    for partition, end in ends.items():
        source, reached = journals.source(partition), state.of(partition)
        while reached.next_position < end.position:
            place = source.place(reached.next_position)
            until = source.advance(place, end, options["batch_events"])
            staged = archive.stage()
            batch = _read(spark, options, partition, reached.next_position, until.position)
            archived(batch).write.partitionBy("day", "folder").parquet(str(staged))
            first, count = reached.next_position, _row_count(staged)
            reached = msgspec.structs.replace(reached, next_position=until.position)
            state = msgspec.structs.replace(state, events=state.events + count, bodies=options["bodies"])
            state = state.having(partition, reached)
            archive.take_in(staged, first, state, partition)
            _hold(source, state.cursor, reached.next_position)
            yield partition, state


def _read(spark: SparkSession, options: Options, partition: int, first: int, end: int) -> DataFrame:
    policy = options["bodies"]
    wanted = [one for one in EVENTS if one.name != "body" or policy == "all"]
    schema = ", ".join(f"`{one.name}` {one.type}" for one in wanted)
    events = _events(spark, options, schema, partition, first, end)
    if policy != "dead" or not _deaths(spark, options, partition, first, end):
        return events
    recorded = "published,arrived"
    published = _events(spark, options, "message_id string, body binary", partition, None, end, kinds=recorded)
    return with_bodies_of_the_dead(events, published)


def _deaths(spark: SparkSession, options: Options, partition: int, first: int, end: int) -> int:
    """All of them are counted: a question that is answered by the first would stop the reader in the middle, which its
    Python tells of as a broken pipe."""
    return (
        _events(spark, options, "kind string, reason string", partition, first, end, kinds=DEATH_KINDS)
        .where(is_death())
        .count()
    )


def _events(
    spark: SparkSession, options: Options, schema: str, partition: int, first: int | None, end: int, **more: str
) -> DataFrame:
    reader = spark.read.format("laneway").schema(schema).options(**options.source_options(), **more)
    reader = reader.option("partitions", str(partition))
    if first is not None:
        reader = reader.option("startPosition", str(first))
    return reader.option("endPosition", str(end)).load()


def _cursor(options: Options, state: Archived) -> str:
    """Each lake has a cursor of its own: were it shared, one would let history go that another has not taken in."""
    if options["cursor"]:
        return str(options["cursor"])
    if state.cursor or not state.store:
        return state.cursor or f"{CURSOR}-{secrets.token_hex(4)}"
    return CURSOR  # of lakes that were begun when all had the same


def _hold(source: Source, cursor: str, position: int) -> None:
    """History from here on is kept for the next batch; JournalGap if it has gone. Where the cursor was, or that it was
    lost, does not matter: the lake knows how far it is. A folder keeps what it likes."""
    if isinstance(source, ServerSource):
        known = source.cursors()
        held = known.get(cursor)
        # To move a cursor is an event too: an idle server would have something new for each run, and each a file.
        if held is None or held["state"] != "ok" or not 0 <= position - held["position"] <= len(known):
            source.put_cursor(cursor, position, rewind=True)


def _row_count(folder: object) -> int:
    import pyarrow.dataset

    return int(pyarrow.dataset.dataset(str(folder), format="parquet").count_rows())


# Dead letters


def _dead_letters_after(options: Options) -> float | None:
    """After how many hours dead letters leave their queues for the lake. Unless it is said, a day where the source is a
    server; a folder is read and nothing more."""
    given: float | None = options["dead_letters_after"]
    if given is None:
        return DEAD_LETTERS_AFTER_HOURS if options.is_server else None
    return None if math.isinf(given) else given


def letters(events: DataFrame, since_ms: int, until_ms: int) -> DataFrame:
    """(vhost, queue, message_id) of dead letters that died in this time, are still there as far as the lake knows, and
    whose body is in it. The queue is the one that keeps them."""
    in_time = F.unix_millis("time").between(since_ms + 1, until_ms)
    there = F.coalesce("target_partition", "partition")
    died = events.where(is_death() & in_time).select(
        F.coalesce("target_vhost", "vhost").alias("vhost"),
        F.coalesce("target_queue", "queue").alias("queue"),
        "message_id",
        there.alias("partition"),
        (there == F.col("partition")).alias("is_here"),
        F.coalesce("target_message", "message").alias("message"),
    )
    # One that departed has a number there when it has arrived: the last one, if it did so more than once.
    arrived = events.where("kind = 'arrived'").groupBy("partition", "message_id").agg(F.max("message").alias("number"))
    known = died.join(arrived, ["partition", "message_id"], "left").withColumn(
        "message", F.when(F.col("is_here"), F.col("message")).otherwise(F.col("number"))
    )
    ended = events.where("kind in ('acked', 'moved', 'removed')").select("partition", "message")
    bodies = events.where("body is not null").select("message_id")
    left = known.where("message is not null").join(ended, ["partition", "message"], "left_anti")
    return left.join(bodies, "message_id", "left_semi").select("vhost", "queue", "message_id").distinct()


def _let_go(spark: SparkSession, options: Options, archive: Archive, hours: float, begun_s: float) -> int:
    """Delete dead letters from their queues that had been dead for long enough when the run began and are in the lake;
    how many. Those that were redriven or deleted meanwhile are not there any more, which is for the server to see."""
    state = archive.state()
    until_ms = int((begun_s - hours * 3600) * 1000)
    if not any(True for _ in archive.files()):
        return 0
    found = letters(options.warehouse.read_events(spark), state.dead_letters_until_ms, until_ms)
    deleted = 0
    rows = found.orderBy("vhost", "queue").toLocalIterator()
    for (vhost, queue), of_queue in groupby(rows, key=lambda row: (row["vhost"], row["queue"])):
        with client(options, vhost) as server:

            def ask(ids: Sequence[str], server: Client = server, queue: str = queue) -> int:
                return server.delete_dead_letters(queue, message_ids=ids, older_than_seconds=hours * 3600)

            deleted += sum(of_those_there([row["message_id"] for row in of_queue], ask))
    archive.save(msgspec.structs.replace(archive.state(), dead_letters_until_ms=until_ms))
    return deleted
