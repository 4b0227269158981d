"""Whether messages were leased in the right order, and whether history has gaps.

The rule (core/queue.py, Queue.select): the highest priority first, inside a priority the lowest number first. It is
looked at from the side of a *plain* message: published here, in no group, and now visible, because it was so at once
when it was published or released. While such a message waits, nothing that comes behind it may be leased.

Not looked at: messages with a delay while it may last (the clock ends it, no event says when), messages that were moved
in (the target's settings cut their priority), and, inside a priority, what tenants take from one another: a fair queue
lets the quiet ones go first. A plain message that was released is compared inside its priority with plain ones that are
leased for the first time, not with others that were released. Groups have an order of their own: groups.py.

A connection gets only what is durable, and one commit may be on its way to the disk while the next one gathers. So a
message of commit n may rightly be passed over by *lower priorities* in n and n + 1, and is looked at from n + 2 on.
Inside a priority no such allowance is needed: if the later message was durable, so was the earlier one.

Both questions would need a sort of a queue's whole history in one task. Instead it is cut into blocks which are sorted
each on its own, and what the other blocks have to say is a small table, added afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from laneway.pipeline.jobs.lives import INDEX_BITS, LATER, LEASED, PUBLISHED, RELEASED

#: A block has about so many rows, and they are sorted in one task.
BLOCK_ROWS = 1 << 20
DURABLE_AFTER_COMMITS = 2

QUEUE = ("partition", "queue_number")
LANE = (*QUEUE, "priority", "tenant")


def passed_over(lives: DataFrame, *, has_untenanted: bool, block_rows: int = BLOCK_ROWS) -> DataFrame:
    """Plain messages that waited when a later one of the same queue and priority was leased. `has_untenanted`: whether
    there are any of no tenant; if not, nothing waits in the lanes of all."""
    step = F.col("step")
    row = (*QUEUE, "priority", _lanes(has_untenanted), "message", "at", left_at().alias("left_at"))
    published = lives.where(step == PUBLISHED).select(
        *row, F.when(F.col("next") == LEASED, F.col("next_at")).alias("leased_at")
    )
    return _overtaken(overtaken_afresh(published, LANE, block_rows))


def passed_over_again(lives: DataFrame, *, has_untenanted: bool, block_rows: int = BLOCK_ROWS) -> DataFrame:
    """Released messages that waited when a later one of the same queue and priority was leased for the first time."""
    step = F.col("step")
    is_back = (step == RELEASED) & F.col("is_plain")
    is_first_lease = (step == LEASED) & (F.col("previous") == PUBLISHED) & F.col("was_plain")
    moments = lives.where(is_back | is_first_lease).select(
        *QUEUE,
        "priority",
        _lanes(has_untenanted),
        "message",
        "at",
        left_at().alias("left_at"),
        is_back.alias("is_back"),
    )
    moments = moments.where("waits or not is_back").withColumn("waits", F.col("is_back")).drop("is_back")
    return _overtaken(overtaken_again(moments, LANE, block_rows))


def _lanes(has_untenanted: bool) -> Column:
    """A message of a tenant is compared with those of the same tenant, which may have been noisy and let the others of
    a fair queue go first; all others with all. So it stands in two lanes, and waits in one of them."""
    anybody, waits = F.lit("").alias("tenant"), F.col("is_plain").alias("waits")
    if not has_untenanted:
        return F.inline(F.array(F.struct("tenant", waits)))
    of_tenant = F.array(F.struct(anybody, F.lit(False).alias("waits")), F.struct("tenant", waits))
    return F.inline(F.when(F.col("tenant").isNull(), F.array(F.struct(anybody, waits))).otherwise(of_tenant))


def overtaken_afresh(arrived: DataFrame, lane: tuple[str, ...], block_rows: int) -> DataFrame:
    """Those that wait since they arrived (`waits`), and still did so when a later one of their lane was first leased.
    Arrived are all of the lane: whatever is later has a higher number, and could not be leased before they waited."""
    # By a hash of the lane first: see lives.
    cut = arrived.withColumn("block", F.expr(f"message div {block_rows}")).withColumn("hash", F.xxhash64(*lane))
    within = Window.partitionBy("hash", *lane, "block").orderBy(F.desc("message"))
    blocks = cut.groupBy(*lane, "block").agg(F.min("leased_at").alias("leased_at"))
    behind = Window.partitionBy(*lane).orderBy(F.desc("block")).rowsBetween(Window.unboundedPreceding, -1)
    later_blocks = blocks.select(*lane, "block", F.min("leased_at").over(behind).alias("leased_behind")).where(
        "leased_behind is not null"
    )
    first_behind = F.least(F.min("leased_at").over(within.rowsBetween(Window.unboundedPreceding, -1)), "leased_behind")
    return (
        cut.join(later_blocks, [*lane, "block"], "left")
        .withColumn("overtaken_at", first_behind)
        .where("waits and overtaken_at < left_at")
        .select(*lane, "message", "overtaken_at")
    )


def overtaken_again(moments: DataFrame, lane: tuple[str, ...], block_rows: int) -> DataFrame:
    """Those that came back (`waits`), and still waited when a later one of their lane was first leased: the other
    moments. First leases go by number, so the next one after a message came back is the one to look at."""
    sizes = moments.groupBy(*lane).agg(
        F.count("*").alias("count"), F.min("at").alias("low"), F.max("at").alias("high"), F.max("waits").alias("waits")
    )
    width = F.expr(f"(high - low) div ceil(count / {block_rows}) + 1").alias("width")
    cut = moments.join(sizes.where("waits").select(*lane, "low", width), [*lane]).withColumn(
        "block", F.expr("(at - low) div width")
    )
    lease = F.when(~F.col("waits"), F.struct("at", "message"))
    cut = cut.withColumn("hash", F.xxhash64(*lane))
    within = Window.partitionBy("hash", *lane, "block").orderBy(F.desc("at")).rowsBetween(Window.unboundedPreceding, -1)
    blocks = cut.groupBy(*lane, "block").agg(F.min(lease).alias("lease"))
    behind = Window.partitionBy(*lane).orderBy(F.desc("block")).rowsBetween(Window.unboundedPreceding, -1)
    later_blocks = blocks.select(*lane, "block", F.min("lease").over(behind).alias("lease_behind")).where(
        "lease_behind is not null"
    )
    return (
        cut.join(later_blocks, [*lane, "block"], "left")
        .withColumn("following", F.coalesce(F.min(lease).over(within), "lease_behind"))
        .where("waits and following.message > message and following.at < left_at")
        .select(*lane, "message", F.col("following.at").alias("overtaken_at"))
    )


def left_at() -> Column:
    """When a message that began to wait with this step stopped waiting."""
    return F.least(F.coalesce("next_at", F.lit(LATER)), F.coalesce("ended_at", F.lit(LATER)))


def overtakings(found: DataFrame, type: str, words: Column) -> DataFrame:
    """Rows of audit_violations: each message that was overtaken, and when."""
    return found.select(
        "partition",
        F.col("overtaken_at").alias("at"),
        F.lit(type).alias("type"),
        "queue_number",
        "message",
        words.alias("words"),
    )


def _overtaken(found: DataFrame) -> DataFrame:
    words = F.concat(F.lit("leased: a later message of priority "), "priority", F.lit(", while this one waited"))
    return overtakings(found, "order", words)


def inversions(
    lives: DataFrame, levels: Sequence[int], large: Sequence[Row], *, block_rows: int = BLOCK_ROWS
) -> DataFrame:
    """Leases of messages while plain ones of a higher priority waited in the same queue. `levels`: all priorities there
    are. `large`: queues with many rows (partition, queue_number, count, low, high), the latter two the first and the
    last place in history."""
    moments = _moments(lives)
    if len(levels) < 2:
        return _found(moments.limit(0).withColumn("above", F.lit(0)))
    levels = sorted(levels)
    return _found(_in_blocks(moments, levels, large, block_rows) if large else _running(moments, levels, QUEUE))


def _moments(lives: DataFrame) -> DataFrame:
    """When plain messages begin and cease to wait (change +1, -1), and the leases."""
    durable_at = _durable_after(F.col("at"))
    left = left_at()
    counts = F.col("is_plain") & (left > durable_at)
    is_lease = (F.col("step") == LEASED) & F.col("priority").isNotNull()
    # The lease of a plain message is also the moment it ceases to wait: one row says both. It is known from the row
    # before whether the message counted at all.
    was_counted = F.col("was_plain") & (F.col("at") > _durable_after(F.col("previous_at")))

    def moment(at: Column, change: Column, leased: bool) -> Column:
        return F.struct(at.alias("at"), change.alias("change"), F.lit(leased).alias("is_lease"))

    left_otherwise = (left < LATER) & ~((F.col("next") == LEASED) & (left == F.col("next_at")))
    begin, end = moment(durable_at, F.lit(1), False), moment(left, F.lit(-1), False)
    lease = moment(F.col("at"), F.when(was_counted, -1).otherwise(0), True)
    return (
        lives.where(counts | is_lease)
        .withColumn(
            "moment",
            F.explode(
                F.when(is_lease, F.array(lease))
                .when(F.coalesce(left_otherwise, left < LATER), F.array(begin, end))
                .otherwise(F.array(begin))
            ),
        )
        .select(*QUEUE, "message", "priority", "moment.*")
    )


def _durable_after(at: Column) -> Column:
    return F.shiftleft(F.shiftright(at, INDEX_BITS) + DURABLE_AFTER_COMMITS, INDEX_BITS) - 1


def _running(moments: DataFrame, levels: Sequence[int], share: tuple[str, ...]) -> DataFrame:
    """Adds `above`: how many messages of higher priorities wait at each moment, of those whose moments are in the
    share. One running sum for each level, all in one pass; what a lease needs of them is picked at once."""
    so_far = (
        Window.partitionBy(*reversed(share))
        .orderBy("at", "change")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    sums = {
        f"from_{level}": F.sum(F.when(F.col("priority") >= level, F.col("change")).otherwise(0)).over(so_far)
        for level in levels[1:]
    }
    above = F.lit(0)
    for level, higher in pairwise(levels):
        above = F.when(F.col("priority") == level, F.col(f"from_{higher}")).otherwise(above)
    return moments.withColumns(sums).withColumn("above", above).drop(*sums)


def _in_blocks(moments: DataFrame, levels: Sequence[int], large: Sequence[Row], block_rows: int) -> DataFrame:
    """As _running for whole queues, where the big ones are cut into blocks by position."""
    wide = [
        (one["partition"], one["queue_number"], one["low"], (one["high"] - one["low"]) * block_rows // one["count"] + 1)
        for one in large
    ]
    plan = moments.sparkSession.createDataFrame(wide, "partition int, queue_number int, low bigint, width bigint")
    cut = moments.join(F.broadcast(plan), [*QUEUE], "left").withColumn(
        "block", F.coalesce(F.expr("(at - low) div width"), F.lit(0))
    )
    net = (
        cut.where("low is not null and change != 0")
        .groupBy(*QUEUE, "block", "priority")
        .agg(F.sum("change").alias("change"))
    )
    blocks = cut.where("low is not null").select(*QUEUE, F.col("block").alias("of")).distinct()
    before = (
        net.join(blocks, [*QUEUE])
        .where("block < of")
        .groupBy(*QUEUE, F.col("of").alias("block"), "priority")
        .agg(F.sum("change").alias("change"))
        .groupBy(*QUEUE, "block")
        .agg(F.collect_list(F.struct("priority", "change")).alias("before"))
    )
    higher = F.filter(F.col("before"), lambda one: one["priority"] > F.col("priority"))
    carried = F.coalesce(F.aggregate(higher, F.lit(0).cast("bigint"), lambda sum, one: sum + one["change"]), F.lit(0))
    return (
        _running(cut, levels, (*QUEUE, "block"))
        .join(F.broadcast(before), [*QUEUE, "block"], "left")
        .withColumn("above", F.col("above") + carried)
    )


def _found(moments: DataFrame) -> DataFrame:
    words = F.concat(
        F.lit("leased: priority "), "priority", F.lit(" while "), "above", F.lit(" of a higher one waited")
    )
    return moments.where("is_lease and above > 0").select(
        "partition", "at", F.lit("inversion").alias("type"), "queue_number", "message", words.alias("words")
    )


# Gaps


def commits(lives: DataFrame) -> DataFrame:
    """What the events of each commit add up to."""
    index = F.col("at").bitwiseAND((1 << INDEX_BITS) - 1)
    return (
        lives.where("is_event")
        .groupBy(F.shiftright("at", INDEX_BITS).alias("position"), "partition")
        .agg(
            F.count("*").alias("count"),
            F.max(index).alias("last"),
            F.sum(index).alias("sum"),
            F.sum(index * index).alias("squares"),
        )
    )


def gaps(commits: DataFrame, lives: DataFrame, *, block_rows: int = BLOCK_ROWS) -> DataFrame:
    """Positions that are missing or come twice, and rows that are missing inside a commit or come twice."""
    # Cheaper than telling the rows of every commit apart: only where these do not add up it is done.
    whole = "count = last + 1 and sum = last * count div 2 and squares = last * count * (2 * last + 1) div 6"
    rows = lives.where("is_event").select("partition", "at", F.shiftright("at", INDEX_BITS).alias("position"))
    odd = (
        rows.join(
            F.broadcast(commits.where(f"not ({whole})").select("partition", "position", "last")),
            ["partition", "position"],
        )
        .groupBy("partition", "position", "last")
        .agg(F.count("*").alias("count"), F.count_distinct("at").alias("distinct"))
    )
    twice = F.concat(F.col("count") - F.col("distinct"), F.lit(" rows of this commit come twice"))
    lost = F.concat(F.col("last") + 1 - F.col("distinct"), F.lit(" rows of this commit are missing"))
    wrong = F.array(
        F.when(F.expr("count > distinct"), F.struct(F.lit("position_double").alias("type"), twice.alias("words"))),
        F.when(F.expr("distinct <= last"), F.struct(F.lit("row_gap").alias("type"), lost.alias("words"))),
    )
    torn = odd.select("partition", F.shiftleft("position", INDEX_BITS).alias("at"), F.inline(F.array_compact(wrong)))
    numbers = commits.select("partition", F.col("position").alias("number"), F.lit(0).cast("bigint").alias("at"))
    missing = _missing(numbers, block_rows=block_rows).select(
        "partition",
        F.shiftleft("first", INDEX_BITS).alias("at"),
        F.lit("position_gap").alias("type"),
        F.concat(F.lit("positions "), "first", F.lit(" to "), "last", F.lit(" are missing")).alias("words"),
    )
    return _of_no_message(torn.unionByName(missing))


def number_gaps(lives: DataFrame, whole: Sequence[int], *, block_rows: int = BLOCK_ROWS) -> DataFrame:
    """Message numbers that were never given. They count up by one, so a beginning is missing. `whole`: as in
    lives.impossible_steps; there they begin with 1."""
    begun = lives.where("previous is null and step <= 3").select("partition", F.col("message").alias("number"), "at")
    missing = _missing(begun, from_one=whole, block_rows=block_rows)
    return _of_no_message(
        missing.select(
            "partition",
            F.col("at"),
            F.lit("number_gap").alias("type"),
            F.concat(F.lit("messages "), "first", F.lit(" to "), "last", F.lit(" were never published")).alias("words"),
        )
    )


def _missing(numbers: DataFrame, *, from_one: Sequence[int] = (), block_rows: int = BLOCK_ROWS) -> DataFrame:
    """Ranges (first, last) that are missing in between, and `at` of the number behind them. No number comes twice, so
    the lowest, the highest and the count of a block tell whether it is whole; only those that are not are sorted."""
    blocked = numbers.withColumn("block", F.expr(f"number div {block_rows}"))
    blocks = blocked.groupBy("block", "partition").agg(
        F.min(F.struct("number", "at")).alias("low"), F.max("number").alias("high"), F.count("*").alias("count")
    )
    torn = blocks.where("count <= high - low.number").select("partition", "block")
    inside = Window.partitionBy("block", "partition").orderBy("number")
    across = Window.partitionBy("partition").orderBy("block")
    start = F.when(F.col("partition").isin(*from_one), F.lit(0))
    both = (
        blocked.join(F.broadcast(torn), ["partition", "block"], "left_semi")
        .withColumn("before", F.lag("number").over(inside))
        .select("partition", "number", "at", "before")
        .where("before is not null")
        .unionByName(
            blocks.select(
                "partition",
                "low.number",
                "low.at",
                F.coalesce(F.lag("high").over(across), start).alias("before"),
            )
        )
    )
    return both.where("number > before + 1").select(
        "partition", (F.col("before") + 1).alias("first"), (F.col("number") - 1).alias("last"), "at"
    )


def _of_no_message(found: DataFrame) -> DataFrame:
    return found.select(
        "partition",
        "at",
        "type",
        F.lit(None).cast("int").alias("queue_number"),
        F.lit(None).cast("bigint").alias("message"),
        "words",
    )
