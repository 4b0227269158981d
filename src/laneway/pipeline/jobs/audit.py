"""The proof that nothing was lost: every message has exactly one end or is still there, and all happened in order.

Three tables come out: audit_verdict, one row; audit_fates, what has become of the messages of each queue; and
audit_violations, empty if all is well. docs/pipeline.md describes the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from laneway.pipeline.jobs import groups, order
from laneway.pipeline.jobs import lives as lives_
from laneway.pipeline.jobs.lives import FATES, INDEX_BITS, READ
from laneway.pipeline.options import read_options
from laneway.pipeline.runner import HIDDEN, Options, Result


@dataclass(frozen=True)
class Findings:
    verdict: DataFrame
    fates: DataFrame
    violations: DataFrame


@contextmanager
def audit(events: DataFrame, folder: Path, *, block_rows: int = order.BLOCK_ROWS) -> Iterator[Findings]:
    """Look at a history, whole or from some position on. What is found can be read inside the `with` block.

    The history is read once, and the lives put together from it are kept in the folder meanwhile: as Parquet, which
    every check reads only the columns of that it needs, and whose plan does not grow with what was done before.
    """
    spark = events.sparkSession
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def keep_as(name: str, frame: DataFrame) -> DataFrame:
        frame.write.parquet(str(folder / name))
        return spark.read.parquet(str(folder / name))

    try:
        rows = keep_as("lives", lives_.lives(events))
        queues = keep(_queues(rows))
        spans = _spans(queues, block_rows)
        whole = [span["partition"] for span in spans if span["first"] == 1]
        has_ends = any(span["ends"] for span in spans)
        has_untenanted = any(span["untenanted"] for span in spans)
        levels = sorted({level for span in spans for level in span["levels"]})
        large = [one for span in spans for one in span["large"]]
        lives = lives_.ended_with_queues(rows, has_ends=has_ends)
        checks = [
            lives_.impossible_steps(lives, whole, has_ends=has_ends),
            order.passed_over(lives, has_untenanted=has_untenanted, block_rows=block_rows),
            order.inversions(lives, levels, large, block_rows=block_rows),
            order.gaps(keep(order.commits(rows)), rows, block_rows=block_rows),
            order.number_gaps(lives, whole, block_rows=block_rows),
        ]
        if any(span["released"] for span in spans):
            checks.append(order.passed_over_again(lives, has_untenanted=has_untenanted, block_rows=block_rows))
        if any(span["grouped"] for span in spans):
            members = keep_as("members", groups.members(lives))
            checks.append(groups.out_of_order(members, block_rows=block_rows))
        found = keep(reduce(DataFrame.unionByName, checks))
        count = found.count()
        named = _named(found, rows, queues, events if count else None)
        fates = keep(_by_queue(lives_.fates(lives, _until_ms(spans)), queues))
        yield Findings(_verdict(fates, spans, count, is_whole=len(whole) == len(spans)), fates, named)
    finally:
        for frame in reversed(kept):
            frame.unpersist()


def _queues(rows: DataFrame) -> DataFrame:
    """The names that queue numbers have; and, also of what is of no queue, what history there is, and what is in it
    that a check must know."""
    position, step = F.shiftright("at", INDEX_BITS), F.col("step")
    return rows.groupBy("queue_number", "partition").agg(
        F.max("vhost").alias("vhost"),
        F.max("queue").alias("queue"),
        F.min(position).alias("first"),
        F.max(position).alias("last"),
        F.max("ms").alias("until_ms"),
        F.count_if("is_event").alias("events"),
        F.count("group").alias("grouped"),
        F.count_if(step == lives_.RELEASED).alias("released"),
        F.count_if(step < lives_.OTHER).alias("ends"),
        F.count_if((step == lives_.PUBLISHED) & F.col("tenant").isNull()).alias("untenanted"),
        F.collect_set("priority").alias("levels"),
        F.count("*").alias("count"),
        F.min("at").alias("low"),
        F.max("at").alias("high"),
    )


def _spans(queues: DataFrame, block_rows: int) -> list[Row]:
    """What is known of queues, of each partition."""
    sums = ("events", "grouped", "released", "ends", "untenanted")
    is_large = F.col("queue_number").isNotNull() & (F.col("count") > block_rows)
    return (
        queues.groupBy("partition")
        .agg(
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.max("until_ms").alias("until_ms"),
            *(F.sum(name).alias(name) for name in sums),
            F.array_distinct(F.flatten(F.collect_set("levels"))).alias("levels"),
            F.collect_list(F.when(is_large, F.struct(*order.QUEUE, "count", "low", "high"))).alias("large"),
        )
        .collect()
    )


def _until_ms(spans: Sequence[Row]) -> Column:
    """When the history of a partition ends: what is visible later than that is still delayed."""
    ends = [F.lit(x) for span in spans for x in (span["partition"], span["until_ms"])]
    return F.create_map(*ends)[F.col("partition")] if ends else F.lit(None)


def _with_names(found: DataFrame, queues: DataFrame) -> DataFrame:
    names = queues.where("queue_number is not null").select("partition", "queue_number", "vhost", "queue")
    return found.join(names, ["partition", "queue_number"], "left")


def _named(found: DataFrame, rows: DataFrame, queues: DataFrame, events: DataFrame | None) -> DataFrame:
    """Violations as they are shown, in the order of history: with time, queue and message id, for which the events are
    read once more."""
    position = F.shiftright("at", INDEX_BITS)
    index = F.col("at").bitwiseAND((1 << INDEX_BITS) - 1).cast("int")
    shown = found.withColumns({"position": position, "index": index})
    if events is None:
        shown = shown.withColumns({"time": F.lit(None).cast("timestamp"), "message_id": F.lit(None).cast("string")})
        shown = shown.withColumns({"vhost": F.lit(None).cast("string"), "queue": F.lit(None).cast("string")})
    else:
        places = found.select("partition", "at").distinct()
        times = (
            rows.where("is_event")
            .join(F.broadcast(places), ["partition", "at"])
            .groupBy("partition", "at")
            .agg(F.max(F.timestamp_millis("ms")).alias("time"))
        )
        wanted = found.where("message is not null").select("partition", "message").distinct()
        here = events.where("message_id is not null").select(
            F.coalesce("partition", F.lit(0)).alias("partition"),
            F.explode(F.array_compact(F.array("message", "target_message"))).alias("message"),
            "message_id",
        )
        ids = (
            here.join(F.broadcast(wanted), ["partition", "message"])
            .groupBy("partition", "message")
            .agg(F.min("message_id").alias("message_id"))
        )
        dated = shown.join(times, ["partition", "at"], "left").join(ids, ["partition", "message"], "left")
        shown = _with_names(dated, queues)
    columns = "partition position index time type vhost queue queue_number message message_id words".split()
    return shown.select(*columns).orderBy("partition", "position", "index", "type", "message")


def _by_queue(fates: DataFrame, queues: DataFrame) -> DataFrame:
    began = ["published", "moved_in", "copied_in", "from_before"]
    return (
        _with_names(fates, queues)
        .where(F.coalesce(F.col("vhost") != HIDDEN, F.lit(True)))  # what waited for other partitions is no user's
        .select("partition", "vhost", "queue", "queue_number", *began, *FATES)
        .orderBy("partition", "vhost", "queue", "queue_number")
    )


def _verdict(fates: DataFrame, spans: Sequence[Row], violations: int, *, is_whole: bool) -> DataFrame:
    began = ["published", "moved_in", "copied_in", "from_before"]
    totals = [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in (*began, *FATES)]
    return fates.agg(*totals).select(
        F.lit("violated" if violations else "clean").alias("verdict"),
        F.lit(violations).cast("bigint").alias("violations"),
        F.lit(is_whole).alias("is_whole"),
        F.lit(min((span["first"] for span in spans), default=None)).cast("bigint").alias("first_position"),
        F.lit(max((span["last"] for span in spans), default=None)).cast("bigint").alias("last_position"),
        F.timestamp_millis(F.lit(max((span["until_ms"] for span in spans), default=None))).alias("until"),
        F.lit(sum(span["events"] for span in spans)).cast("bigint").alias("events"),
        *began,
        *FATES,
    )


SHOWN = ("vhost", "queue", "published", "moved_in", "copied_in", "from_before", *FATES)


def whole_since(options: Options) -> dict[int, int]:
    """By partition: from which position on history is without a gap, where that is not the first one. A server drops
    settled segments between others that are still needed, and what is before the last of these gaps is not whole. The
    lake has none unless history was lost."""
    if options.is_lake:
        return {}
    journals = read_options(options.source_options()).journals
    found = {number: journals.source(number).first_position() for number in journals.ends()}
    return {number: first for number, first in found.items() if first > 1}


def run(spark: SparkSession, options: Options) -> Result:
    warehouse = options.warehouse
    # An outbox has its share of every commit, and of the numbers: without it there would be gaps.
    events = options.events(spark, *READ, outboxes=True)
    for partition, first in whole_since(options).items():
        events = events.where((F.col("partition") != partition) | (F.col("position") >= first))
    with warehouse.scratch(options.run_id) as folder, audit(events, folder) as findings:
        options.say("audit: following every message through its life")
        tables = {
            "audit_violations": warehouse.overwrite("audit_violations", findings.violations, options.run_id),
            "audit_fates": warehouse.overwrite("audit_fates", findings.fates, options.run_id),
            "audit_verdict": warehouse.overwrite("audit_verdict", findings.verdict, options.run_id),
        }
    verdict = warehouse.read_arrow("audit_verdict").to_pylist()[0]
    fates = warehouse.read_arrow("audit_fates").select(SHOWN).to_pylist()
    used = [name for name in SHOWN if name in ("vhost", "queue") or any(one[name] for one in fates)]
    violations = warehouse.read_arrow("audit_violations").slice(0, options["show"]).to_pylist()
    notes = [
        f"{verdict['verdict']}: {verdict['events']} events, positions {verdict['first_position'] or '-'} to "
        f"{verdict['last_position'] or '-'}{'' if verdict['is_whole'] else ' (not from the beginning)'}, "
        f"{verdict['violations']} violations",
        *(["no events were read, so nothing is proven"] if not verdict["events"] else []),
        *(f"{one['type']} at {one['position']}: {one['message_id'] or '-'}: {one['words']}" for one in violations),
    ]
    return Result(
        used,
        [[one[name] for name in used] for one in fates],
        notes,
        tables,
        facts={"verdict": verdict},
        is_failure=verdict["violations"] > 0,
    )
