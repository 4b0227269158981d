"""Whether the messages of a group were leased in the order they came.

The rule (core/queue.py, Group): members stand in the order of their numbers, whatever their priorities. A member is in
its group while it waits, delayed or not, and while it is leased; it leaves when it is acked, dies, is moved or removed.
One is leased only if all before it have left, or are leased in the same event: so a member that is leased, delayed or
was released holds up those behind it, and one that came back goes out again whatever is behind it. A dead letter takes
its group along to the queue that it is moved to, and joins it there, and when it is redriven, under its new number:
last.

Time alone changes nothing in this, so no waiting time needs to be guessed. Looked at are all members whose publish is
in the history.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from laneway.pipeline.jobs.lives import COPIED_IN, EXTENDED, LEASED, PUBLISHED, RELEASED
from laneway.pipeline.jobs.order import BLOCK_ROWS, QUEUE, left_at, overtaken_afresh, overtaken_again, overtakings

GROUP = (*QUEUE, "group")


def members(lives: DataFrame) -> DataFrame:
    """The steps of messages in groups. What was moved has its group from where it was published."""
    steps = lives.select(
        *GROUP, "message", "born", "step", "at", "previous", "next", "next_at", "ended_at", "batch", "last_batch"
    )
    named = steps.where("group is not null")
    groups = named.where(F.col("step") == PUBLISHED).select("partition", F.col("message").alias("born"), "group")
    moved = steps.where("born is not null").drop("group").join(groups, ["partition", "born"])
    return named.unionByName(moved)


def out_of_order(members: DataFrame, *, block_rows: int = BLOCK_ROWS) -> DataFrame:
    return (
        _passed_over(members, block_rows)
        .unionByName(_passed_over_by_its_batch(members))
        .unionByName(_beside_another_batch(members))
        .unionByName(_beside_an_elder(members))
    )


def _passed_over(members: DataFrame, block_rows: int) -> DataFrame:
    """Members that waited, for the first time or again, when a later one was leased for the first time."""
    step = F.col("step")
    row = (*GROUP, "message", "at", left_at().alias("left_at"))
    arrived = members.where(step <= COPIED_IN).select(
        *row, F.when(F.col("next") == LEASED, F.col("next_at")).alias("leased_at"), F.lit(True).alias("waits")
    )
    is_back = step == RELEASED
    again = members.where(is_back | ((step == LEASED) & (F.col("previous") <= COPIED_IN)))
    return _found(
        overtaken_afresh(arrived, GROUP, block_rows).unionByName(
            overtaken_again(again.select(*row, is_back.alias("waits")), GROUP, block_rows)
        )
    )


def _passed_over_by_its_batch(members: DataFrame) -> DataFrame:
    """Members that were released and waited when a later one, leased and released with them, was leased again. Together
    with those that were never leased, these are all there can be behind a member as long as the rule was kept."""
    behind = Window.partitionBy(*GROUP, "last_batch").orderBy(F.desc("message"))
    leased_at = F.when(F.col("next") == LEASED, F.col("next_at"))
    back = members.where((F.col("step") == RELEASED) & F.col("last_batch").isNotNull())
    return _found(
        back.withColumns(
            {
                "overtaken_at": F.min(leased_at).over(behind.rowsBetween(Window.unboundedPreceding, -1)),
                "left_at": left_at(),
            }
        ).where("overtaken_at > at and overtaken_at < left_at")
    )


def _beside_another_batch(members: DataFrame) -> DataFrame:
    """First leases of members while something of their group was leased already, in another batch: all before them have
    been leased, so it is an elder, or one that should have come later."""
    history = Window.partitionBy(*GROUP).orderBy("at", "step")
    is_held = F.coalesce(F.col("previous").isin(LEASED, EXTENDED), F.lit(False))
    becomes_held = F.col("step").isin(LEASED, EXTENDED)
    change = becomes_held.cast("int") - is_held.cast("int")
    told = members.withColumns(
        {
            "held": F.sum(change).over(history.rowsBetween(Window.unboundedPreceding, -1)),
            "batch_before": F.lag("batch").over(history),
        }
    )
    is_first = F.coalesce(F.col("previous") != RELEASED, F.lit(True))
    return _held(told.where(is_first).where("batch is not null and held > 0 and not batch <=> batch_before"))


def _beside_an_elder(members: DataFrame) -> DataFrame:
    """Members that came back, and were leased again while an elder was leased that had once been leased with them."""
    behind = Window.partitionBy(*GROUP, "together").orderBy(F.desc("message"))
    is_again = (F.col("previous") == RELEASED) & (F.col("together") == F.col("last_batch"))
    again = F.min(F.when(is_again, F.struct("at", "message", "batch")))
    return _held(
        members.where(F.col("step").isin(LEASED, EXTENDED))
        .withColumn("together", F.explode(F.array_compact(F.array("batch", "last_batch"))))
        .withColumns({"again": again.over(behind.rowsBetween(Window.unboundedPreceding, -1)), "left_at": left_at()})
        .where("again.at > at and again.at < left_at and again.batch != coalesce(batch, last_batch)")
        .select(*GROUP, "again.*")
        .distinct()
    )


def _held(leased: DataFrame) -> DataFrame:
    return leased.select(
        "partition",
        "at",
        F.lit("group_held").alias("type"),
        "queue_number",
        "message",
        F.concat(F.lit("leased: an earlier message of group '"), "group", F.lit("' was held")).alias("words"),
    )


def _found(overtaken: DataFrame) -> DataFrame:
    words = F.concat(F.lit("leased: a later message of group '"), "group", F.lit("', while this one waited"))
    return overtakings(overtaken, "group_order", words)
