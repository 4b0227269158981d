"""deadletters: what died, grouped by queue, reason and error signature, over time; and every single letter.

A letter is a death: a message that was kept dead in its queue, moved on, or dropped. Its *signature* is what was said
of it with all that differs from case to case (numbers, ids, quoted text) replaced, so that one fault is one group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from laneway.pipeline.runner import HIDDEN, Options, Result
from laneway.pipeline.stays import DEATHS, is_death

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

COLUMNS: tuple[str, ...] = (
    *("partition", "position", "index", "time", "kind", "vhost", "queue", "tier", "message", "message_id", "priority"),
    *("tenant", "key", "group", "dedup_id", "correlation_id", "content_type", "exchange", "routing_key", "size"),
    *("receive_count", "reason", "detail", "enqueued_at", "target_vhost", "target_queue", "target_message"),
    *("queue_number", "target_queue_number", "target_partition", "sender"),
)
KINDS: tuple[str, ...] = (
    *("published", "arrived", "leased", "released", "acked", "dead_lettered", "moved", "copied", "removed"),
    *("queue_purged", "queue_deleted"),
)

#: Replaced one after the other; Java's words for what is looked for.
SIGNATURE = (
    (r"\"[^\"]*\"|'[^']*'|`[^`]*`|“[^”]*”", "<text>"),
    (r"(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
    (r"(?i)\b0x[0-9a-f]+\b", "<hex>"),
    (r"(?i)\b(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{6,}\b", "<hex>"),
    (r"\b(?=\w*\d)(?=\w*[a-zA-Z_])\w{16,}\b", "<id>"),
    (r"[+-]?\d+(?:[.,:]\d+)*", "<n>"),
    (r"\s+", " "),
)
SIGNATURE_LENGTH = 200
SAMPLES = 5

#: What a published row says of a message, which its letter says too.
SAID = ("tenant", "key", "group", "dedup_id", "correlation_id", "content_type", "exchange", "routing_key", "size")


def signature(detail: Column) -> Column:
    text = F.coalesce(detail, F.lit(""))
    for pattern, word in SIGNATURE:
        text = F.regexp_replace(text, pattern, word)
    return F.substring(F.trim(text), 1, SIGNATURE_LENGTH)


def letters(events: DataFrame) -> DataFrame:
    """The table deadletters_messages: one row per death, with what is known of the message and what became of it. Of
    hidden queues, events must have the rows `arrived`, or all."""
    order = Window.partitionBy("partition", "message_id").orderBy("position", "index")
    before = order.rowsBetween(Window.unboundedPreceding, 0)
    after = order.rowsBetween(1, Window.unboundedFollowing)
    kind, number = F.col("kind"), F.col("message")
    departs = kind.isin("moved", "copied") & F.coalesce(F.col("target_partition") != F.col("partition"), F.lit(False))
    said = [*SAID, *(["attributes"] if "attributes" in events.columns else [])]
    # Where the letter is: under its new number if it was moved. The next event that ends that number tells its fate.
    now = F.when(departs, F.lit(None)).when(kind == "moved", F.col("target_message")).otherwise(number)
    step = F.struct(number.alias("number"), kind.alias("kind"), F.col("reason").alias("reason"), "position")
    here = Window.partitionBy("partition", "message_id", "message").orderBy("position", "index")
    received = F.max("receive_count").over(here.rowsBetween(Window.unboundedPreceding, 0))
    # What departs for a partition arrives there in the same order: the first time, the second time, …
    other = F.when(departs, F.col("target_partition")).when(kind == "arrived", F.col("sender"))
    times = Window.partitionBy("message_id", "partition", "is_there", "other").orderBy("position", "index")
    # Most messages never die: theirs are left out before anything is sorted.
    died = events.where(is_death()).select("message_id").distinct()
    rows = (
        events.join(died, ["message_id"], "left_semi")
        .select(
            *("partition", "position", "index", "time", "kind", "vhost", "queue", "tier", "message", "message_id"),
            *("reason", "detail", "enqueued_at", "target_vhost", "target_queue"),
            now.alias("letter"),
            F.last("priority", ignorenulls=True).over(before).alias("priority"),
            *(
                F.last(F.when(kind.isin("published", "arrived"), F.col(name)), ignorenulls=True)
                .over(before)
                .alias(name)
                for name in said
            ),
            F.coalesce(received, F.lit(0)).alias("receive_count"),
            F.collect_list(step).over(after).alias("steps"),
            F.when(kind == "moved", F.col("target_queue_number"))
            .when(kind.isin("dead_lettered", "arrived"), F.col("queue_number"))
            .alias("holder_number"),
            other.alias("other"),
            (kind == "arrived").alias("is_there"),
            departs.alias("departs"),
        )
        .withColumn("nth", F.row_number().over(times))
    )
    known = _arrived(rows.where(is_death()), rows.where("is_there"))
    steps = F.filter("steps", lambda one: one["number"] == F.col("letter"))
    ends = F.filter(steps, lambda one: one["kind"].isin("acked", "moved", "removed", "dead_lettered"))
    known = known.withColumn("fate", F.try_element_at(ends, F.lit(1))).withColumn(
        "last", F.try_element_at(steps, F.lit(-1))
    )
    return known.join(F.broadcast(_queue_ends(events)), ["holder_partition", "holder_number"], "left").select(
        F.col("time").alias("died_at"),
        *("vhost", "queue", "tier", "reason", "detail"),
        signature(F.col("detail")).alias("signature"),
        "message_id",
        F.when(kind != "removed", F.col("letter")).alias("message"),
        F.when(kind == "moved", F.col("target_vhost"))
        .when(kind == "dead_lettered", F.col("vhost"))
        .alias("holder_vhost"),
        F.when(kind == "moved", F.col("target_queue"))
        .when(kind == "dead_lettered", F.col("queue"))
        .alias("holder_queue"),
        _state().alias("state"),
        *("enqueued_at", "receive_count", "priority"),
        *said,
        *("partition", "position", "index"),
    )


def _arrived(died: DataFrame, arrived: DataFrame) -> DataFrame:
    """Deaths with where their letters are: those that departed to another partition are what arrived there."""
    there = arrived.select(
        "message_id",
        F.col("partition").alias("other"),
        F.col("other").alias("partition"),
        "nth",
        F.lit(True).alias("departs"),
        F.struct("letter", "steps", "holder_number", "position", "vhost").alias("there"),
    )
    joined = died.join(there, ["message_id", "partition", "other", "nth", "departs"], "left")
    departs = F.col("departs")
    return joined.withColumns(
        {
            "came": F.when(departs, F.col("there.position")).otherwise(F.col("position")),
            "letter": F.when(departs, F.col("there.letter")).otherwise(F.col("letter")),
            "steps": F.when(departs, F.col("there.steps")).otherwise(F.col("steps")),
            "holder_number": F.when(departs, F.col("there.holder_number")).otherwise(F.col("holder_number")),
            "holder_partition": F.when(departs, F.col("other")).otherwise(F.col("partition")),
        }
    )


def _state() -> Column:
    """waiting: it is there to be redriven. Everything else says how it left."""
    how, why = F.col("fate")["kind"], F.col("fate")["reason"]
    return (
        F.when(F.col("kind") == "removed", F.lit("dropped"))
        .when(F.col("departs") & F.col("there").isNull(), F.lit("under_way"))
        .when(F.col("departs") & (F.col("there.vhost") == HIDDEN), F.lit("returned"))
        .when(how.isNull() & (F.coalesce("is_deleted", F.lit(False)) | _is_purged()), F.lit("removed"))
        .when(how.isNull(), F.lit("waiting"))
        .when(how == "acked", F.lit("consumed"))
        .when(why == "redriven", F.lit("redriven"))
        .when(why.isin(*DEATHS), F.lit("died_again"))
        .otherwise(F.lit("removed"))
    )


def _is_purged() -> Column:
    """A purge takes what waits below a number: letters that were moved there, not those that are kept as dead ones."""
    last = F.coalesce(F.col("last")["position"], F.col("came"))
    later = F.exists("purges", lambda one: (one["position"] > last) & (one["before"] > F.col("letter")))
    is_leased = F.coalesce(F.col("last")["kind"] == "leased", F.lit(False))
    return (F.col("kind") == "moved") & ~is_leased & F.coalesce(later, F.lit(False))


def _queue_ends(events: DataFrame) -> DataFrame:
    """Of queues that were purged or deleted, which takes letters away that have no event of their own."""
    kind = F.col("kind")
    purge = F.struct("position", F.col("message").alias("before"))
    return (
        events.where(kind.isin("queue_purged", "queue_deleted"))
        .groupBy(F.col("partition").alias("holder_partition"), F.col("queue_number").alias("holder_number"))
        .agg(
            F.collect_list(F.when(kind == "queue_purged", purge)).alias("purges"),
            F.max(kind == "queue_deleted").alias("is_deleted"),
        )
    )


def grouped(letters: DataFrame) -> DataFrame:
    """The table deadletters: letters per hour, queue, reason and signature."""
    keys = ["hour", "vhost", "queue", "reason", "signature"]
    hourly = letters.withColumn("hour", F.date_trunc("hour", "died_at"))
    order = Window.partitionBy(*keys).orderBy("position", "index")
    numbered = hourly.withColumn("nth", F.row_number().over(order))
    sample = F.when(F.col("nth") <= SAMPLES, F.struct("nth", "message_id"))
    return (
        numbered.groupBy(*keys)
        .agg(
            F.count("*").alias("letters"),
            F.count_if(F.col("state") == "waiting").alias("waiting"),
            F.min("died_at").alias("first_at"),
            F.max("died_at").alias("last_at"),
            F.min_by("detail", F.struct("position", "index")).alias("example"),
            F.array_sort(F.collect_list(sample)).alias("samples"),
        )
        .withColumn("sample_message_ids", F.transform("samples", lambda one: one["message_id"]))
        .drop("samples")
        .orderBy(*keys)
    )


def run(spark: SparkSession, options: Options) -> Result:
    notes: list[str] = []
    names: tuple[str, ...] = (*COLUMNS, "attributes")
    if options["no_attributes"]:
        names = COLUMNS
    elif options.is_lake and "attributes" not in options.warehouse.read_events(spark).columns:
        names = COLUMNS
        notes.append("the archive has no attributes")
    events = options.events(spark, *names, kinds=KINDS, outboxes=True)
    warehouse, run_id = options.warehouse, options.run_id
    options.say("deadletters: finding what died")
    single = warehouse.overwrite("deadletters_messages", letters(events), run_id)
    options.say("deadletters: grouping")
    found = warehouse.read(spark, "deadletters_messages")
    groups = warehouse.overwrite("deadletters", grouped(found), run_id)
    worst = (
        warehouse.read(spark, "deadletters")
        .groupBy("vhost", "queue", "reason", "signature")
        .agg(F.sum("letters").alias("letters"), F.sum("waiting").alias("waiting"), F.max("last_at").alias("last_at"))
        .orderBy(F.desc("letters"), "vhost", "queue", "reason", "signature")
        .limit(20)
    )
    return Result(
        worst.columns,
        [tuple(row.values()) for row in worst.toArrow().to_pylist()],
        notes=notes if single else [*notes, "nothing died"],
        tables={"deadletters": groups, "deadletters_messages": single},
    )
