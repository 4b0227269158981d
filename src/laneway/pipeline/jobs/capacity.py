"""capacity: how much comes and how much is done, by the hour; what it takes; and when a queue will be too long.

A consumer counts for the minutes in which it leased or acked something, as far as there is history of them. Its rate is
what it acked in them: lower than what it could do if it waits for work in between, so the numbers of consumers are on
the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from laneway.pipeline.options import read_options
from laneway.pipeline.runner import Options, Result
from laneway.pipeline.stays import COLUMNS, KINDS, stays

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HOUR_SECONDS = 3600
MARGIN = 1.5
PARTITION_RATE = 10_000.0
TREND_PERIODS = 24
TREND_HOURS = 1.0  # of history, at least: two minutes tell nothing of next week

QUEUE = ("vhost", "queue")

#: Columns of capacity_queues that the command prints.
SHOWN = (
    *("vhost", "queue", "arrival_max_per_second", "consumer_per_second", "consumers", "consumers_needed"),
    *("backlog", "backlog_per_hour", "backlog_limit", "exceeds_at"),
)


def per_period(
    stays: DataFrame,
    begin: datetime,
    end: datetime,
    *,
    period_seconds: int = HOUR_SECONDS,
    margin: float = MARGIN,
    partition_rate: float = PARTITION_RATE,
) -> DataFrame:
    """The table capacity: every queue in every period from `begin` to `end`, the times of the first and last event."""
    changes = _changes(stays, period_seconds)
    every = _periods(stays, begin, end, period_seconds)
    queue = Window.partitionBy(*QUEUE)
    so_far = queue.orderBy("period").rowsBetween(Window.unboundedPreceding, 0)
    counted = (
        every.join(changes, [*QUEUE, "period"], "left")
        .join(_consumers(stays, begin, end, period_seconds), [*QUEUE, "period"], "left")
        .join(_before(stays), list(QUEUE), "left")
        .na.fill(0, ["arrived", "acked", "ended", "peak", "consumers", "consumer_seconds", "before"])
    )
    needed = F.col("arrival_per_second") * margin
    return (
        counted.withColumn("arrival_per_second", F.col("arrived") / F.col("period_seconds"))
        .withColumn("service_per_second", F.col("acked") / F.col("period_seconds"))
        .withColumn(
            "consumer_per_second",
            F.try_divide(F.sum("acked").over(queue), F.sum("consumer_seconds").over(queue)),
        )
        .select(
            *("period", "period_seconds", *QUEUE, "arrived", "acked", "ended", "arrival_per_second"),
            (F.col("peak") / _slot(period_seconds)).alias("arrival_peak_per_second"),
            *("service_per_second", "consumers", "consumer_per_second"),
            _ceil(F.try_divide(needed, F.col("consumer_per_second"))).alias("consumers_needed"),
            _ceil(needed / partition_rate).alias("partitions_needed"),
            (F.col("before") + F.sum(F.col("arrived") - F.col("ended")).over(so_far)).alias("backlog"),
        )
        .orderBy("period", *QUEUE)
    )


def _ceil(value: Column) -> Column:
    """Rounded up; a billionth above a whole number is the division's doing."""
    return F.ceil(F.round(value, 9)).cast("bigint")


def _period(time: Column, seconds: int) -> Column:
    return F.timestamp_seconds(F.floor(F.unix_seconds(time) / seconds) * seconds)


def _slot(period_seconds: int) -> int:
    """A minute, or the longest part of one that periods are made of."""
    return math.gcd(60, period_seconds)


def _changes(stays: DataFrame, seconds: int) -> DataFrame:
    """What came and went, per queue and period."""
    came = F.when(F.col("began_at").isNotNull(), F.struct(F.lit("came").alias("what"), F.col("began_at").alias("at")))
    went = F.when(F.col("ended_at").isNotNull(), F.struct(F.col("ended").alias("what"), F.col("ended_at").alias("at")))
    changes = (
        stays.select(*QUEUE, F.explode(F.array_compact(F.array(came, went))).alias("change"))
        .select(*QUEUE, "change.*")
        .groupBy(
            *QUEUE, _period(F.col("at"), seconds).alias("period"), _period(F.col("at"), _slot(seconds)).alias("slot")
        )
        .agg(
            F.count_if(F.col("what") == "came").alias("arrived"),
            F.count_if(F.col("what") == "acked").alias("acked"),
            F.count_if(F.col("what") != "came").alias("ended"),
        )
    )
    return changes.groupBy(*QUEUE, "period").agg(
        F.sum("arrived").alias("arrived"),
        F.sum("acked").alias("acked"),
        F.sum("ended").alias("ended"),
        F.max("arrived").alias("peak"),
    )


def _consumers(stays: DataFrame, begin: datetime, end: datetime, seconds: int) -> DataFrame:
    """Who worked: consumers, and for how long each did something, by the minute."""
    slot = _slot(seconds)
    start, first, last = F.unix_seconds("slot"), F.lit(begin.timestamp()), F.lit(end.timestamp())
    covered = F.greatest(F.least(start + slot, last) - F.greatest(start.cast("double"), first), F.lit(1.0))
    last = F.try_element_at("leases", F.lit(-1))
    acked = F.when(
        (F.col("ended") == "acked") & last.isNotNull(),
        F.array(F.struct(F.col("ended_at").alias("at"), last["consumer"].alias("consumer"))),
    ).otherwise(F.array().cast("array<struct<at:timestamp,consumer:string>>"))
    leased = F.transform("leases", lambda one: F.struct(one["at"].alias("at"), one["consumer"].alias("consumer")))
    return (
        stays.select(*QUEUE, F.explode(F.concat(leased, acked)).alias("work"))
        .select(
            *QUEUE,
            _period(F.col("work.at"), seconds).alias("period"),
            _period(F.col("work.at"), slot).alias("slot"),
            F.coalesce("work.consumer", F.lit("")).alias("consumer"),
        )
        .distinct()
        .groupBy(*QUEUE, "period")
        .agg(F.countDistinct("consumer").alias("consumers"), F.sum(covered).alias("consumer_seconds"))
    )


def _before(stays: DataFrame) -> DataFrame:
    """How many were there when the history begins."""
    return stays.groupBy(*QUEUE).agg(F.count_if(F.col("began_at").isNull()).alias("before"))


def _periods(stays: DataFrame, begin: datetime, end: datetime, seconds: int) -> DataFrame:
    """Every queue with every period, and how much of the period there is history of: at least a second."""
    first, last = (F.unix_millis(F.lit(time)) for time in (begin, end))
    step = seconds * 1000
    starts = F.sequence(F.floor(first / step) * step, F.floor(last / step) * step, F.lit(step))
    covered = F.least(F.col("start") + step, last) - F.greatest(F.col("start"), first)
    return (
        stays.select(*QUEUE)
        .distinct()
        .select(*QUEUE, F.explode(starts).alias("start"))
        .select(
            *QUEUE,
            F.timestamp_millis("start").alias("period"),
            F.greatest(covered / 1000, F.lit(1.0)).alias("period_seconds"),
        )
    )


def per_queue(
    periods: DataFrame,
    limits: DataFrame,
    end: datetime,
    *,
    period_seconds: int = HOUR_SECONDS,
    trend_periods: int = TREND_PERIODS,
    trend_hours: float = TREND_HOURS,
) -> DataFrame:
    """The table capacity_queues: each queue now, and when its backlog exceeds its limit if it goes on as in the last
    periods (a straight line through their backlogs), unless these are too short to tell. `limits` has vhost, queue,
    backlog_limit."""
    latest = Window.partitionBy(*QUEUE).orderBy(F.desc("period"))
    recent = periods.withColumn("nth", F.row_number().over(latest))
    # The backlog of a period is that of its end: the last one ends with the history.
    at_end = F.least(F.unix_seconds("period") + period_seconds, F.lit(end.timestamp())) / HOUR_SECONDS
    is_trend = F.col("nth") <= trend_periods
    queues = recent.groupBy(*QUEUE).agg(
        F.sum("arrived").alias("arrived"),
        F.sum("acked").alias("acked"),
        F.max("arrival_per_second").alias("arrival_max_per_second"),
        F.max("arrival_peak_per_second").alias("arrival_peak_per_second"),
        F.max("consumer_per_second").alias("consumer_per_second"),
        F.max_by("consumers", "period").alias("consumers"),
        F.max("consumers_needed").alias("consumers_needed"),
        F.max("partitions_needed").alias("partitions_needed"),
        F.max_by("backlog", "period").alias("backlog"),
        F.when(
            F.sum(F.when(is_trend, F.col("period_seconds"))) >= trend_hours * HOUR_SECONDS,
            F.regr_slope(F.when(is_trend, F.col("backlog")), F.when(is_trend, at_end)),
        ).alias("backlog_per_hour"),
    )
    left = F.col("backlog_limit") - F.col("backlog")
    hours = F.when(left < 0, F.lit(0.0)).when(F.col("backlog_per_hour") > 0, left / F.col("backlog_per_hour"))
    at = F.timestamp_millis((F.lit(end.timestamp() * 1000) + F.col("exceeds_in_hours") * 3_600_000).cast("bigint"))
    return (
        queues.join(limits, list(QUEUE), "left")
        .withColumn("exceeds_in_hours", hours)
        .withColumn("exceeds_at", at)
        .orderBy(*QUEUE)
    )


def limits_of(spark: SparkSession, queues: Iterable[tuple[str, str, int | None]]) -> DataFrame:
    rows = [{"vhost": vhost, "queue": queue, "backlog_limit": limit} for vhost, queue, limit in queues]
    return spark.createDataFrame(rows, "vhost string, queue string, backlog_limit bigint")


def run(spark: SparkSession, options: Options) -> Result:
    found = stays(options.events(spark, *COLUMNS, kinds=KINDS)).persist()
    try:
        options.say("capacity: following messages through their queues")
        first, last = (
            options.events(spark, "time").agg(F.min(F.unix_millis("time")), F.max(F.unix_millis("time"))).collect()[0]
        )
        begin = datetime.fromtimestamp((first or 0) / 1000, UTC)
        end = datetime.fromtimestamp((last or 0) / 1000, UTC)
        warehouse, run_id = options.warehouse, options.run_id
        periods = per_period(
            found,
            begin,
            end,
            period_seconds=options["period_seconds"],
            margin=options["margin"],
            partition_rate=options["partition_rate"],
        )
        written = {"capacity": warehouse.overwrite("capacity", periods, run_id)}
        table = warehouse.read(spark, "capacity")
        options.say("capacity: looking ahead")
        limits = _limits(spark, options, [(row.vhost, row.queue) for row in found.select(*QUEUE).distinct().collect()])
        ahead = per_queue(
            table,
            limits,
            end,
            period_seconds=options["period_seconds"],
            trend_periods=options["trend_periods"],
            trend_hours=options["trend_hours"],
        )
        written["capacity_queues"] = warehouse.overwrite("capacity_queues", ahead, run_id)
    finally:
        found.unpersist()
    rows = warehouse.read_arrow("capacity_queues").select(SHOWN).to_pylist()
    total = sum(row["arrival_max_per_second"] for row in rows) * options["margin"] / options["partition_rate"]
    notes = [f"partitions needed for all queues together: {max(1, -int(-total // 1))}"]
    if any(row["backlog_per_hour"] is None for row in rows):
        notes.append(
            f"{(end - begin).total_seconds():.0f} seconds of history are too short to look ahead: it takes two periods "
            f"and {options['trend_hours']:g} hours"
        )
    return Result(SHOWN, [tuple(row.values()) for row in rows], notes=notes, tables=written)


def _limits(spark: SparkSession, options: Options, queues: list[tuple[str, str]]) -> DataFrame:
    """What is configured: max_messages of each queue as the journal last tells it, else what the option says. The lake
    knows the names of queues alone."""
    told: dict[tuple[str, str], int | None] = {}
    if not options.is_lake:
        journals = read_options(options.source_options()).journals
        for number in journals.ends():
            names = journals.source(number).catalogue()
            told.update({(one.vhost, one.name): one.max_messages for _, one in sorted(names.items())})
    usual: int | None = options["backlog_limit"]
    limits = [usual if (told_of := told.get(queue)) is None else told_of for queue in queues]
    return limits_of(spark, [(*queue, limit) for queue, limit in zip(queues, limits, strict=True)])
