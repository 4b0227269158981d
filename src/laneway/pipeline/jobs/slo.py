"""slo: what was promised and what was kept, per minute, queue, tier and priority; and what is left of the error budget.

A message is *measured* once, at its first delivery: it is in time if it waited no longer than the objective of its
queue's tier, from when it became visible until it was leased. One that dies before anyone received it is *missed*. One
that still waits, for longer than the objective, is *overdue*. Dead letters are not measured where they arrive: that was
done in the queue they died in; redriven ones are measured again.

The error budget is what the objective leaves: of a window of 30 days at 99.9 % that is 0.72 hours in which everything
may be late. hours left = window × ((1 − objective) − share that was late or missed inside the window); below zero it is
overspent.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from laneway.pipeline.runner import Options, Result
from laneway.pipeline.stays import COLUMNS, DEATHS, KINDS, millis, stays

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Seconds in which a message is first delivered, by the tier of its queue.
OBJECTIVES = {"critical": 5.0, "normal": 30.0, "low": 300.0}
OBJECTIVE_SHARE = 0.999
WINDOW_DAYS = 30.0

MINUTE_SECONDS = 60

#: Columns of slo_queues that the command prints.
SHOWN = (
    *("vhost", "queue", "tier", "measured", "late", "missed", "overdue"),
    *("wait_p99_ms", "within_share", "budget_left_hours"),
)


def measured(events: DataFrame, objectives: Mapping[str, float] = OBJECTIVES) -> DataFrame:
    """The stays with tier and objective_ms filled in, waited_ms of those that are measured, and is_missed."""
    tier = F.coalesce("tier", F.lit("normal"))
    objective = F.lit(None).cast("double")
    for name, seconds in objectives.items():
        objective = F.when(tier == name, F.lit(seconds * 1000.0)).otherwise(objective)
    found = stays(events)
    first = F.try_element_at("leases", F.lit(1))
    # Of a message from before the history it is known when it was published, and how often it was received.
    counts = F.coalesce("began", F.lit("published")).isin("published", "redriven")
    since = F.coalesce("visible_at", "enqueued_at")
    waited = F.when(counts & (first["receive_count"] == 1), F.greatest(millis(first["at"], since), F.lit(0)))
    dies = F.col("ended").isin("dead_lettered", "moved", "removed") & F.col("ended_reason").isin(*DEATHS)
    missed = counts & F.col("began").isNotNull() & dies & (F.size("leases") == 0)
    return found.select(
        "*", waited.alias("waited_ms"), F.coalesce(missed, F.lit(False)).alias("is_missed"), counts.alias("counts")
    ).withColumns({"tier": tier, "objective_ms": objective})


def per_minute(
    stays: DataFrame, objective_share: float = OBJECTIVE_SHARE, window_days: float = WINDOW_DAYS
) -> DataFrame:
    """The table slo, of what `measured` made."""
    moments = _moments(stays)
    ranks = [F.lit(share) for share in (0.5, 0.95, 0.99)]

    def quantiles(name: str) -> list[Column]:
        return [F.percentile(name, F.array(*ranks)).alias(f"{name}_ranks"), F.max(name).alias(f"{name}_max")]

    late = F.col("waited_ms") > F.col("objective_ms")
    minutes = moments.groupBy("minute", "vhost", "queue", "tier", "priority").agg(
        F.first("objective_ms").alias("objective_ms"),
        *(
            F.count_if(F.col("what") == what).alias(name)
            for what, name in (("published", "published"), ("leased", "delivered"), ("acked", "acked"))
        ),
        F.count_if((F.col("what") == "leased") & (F.col("receive_count") > 1)).alias("redelivered"),
        F.count_if(F.col("what") == "died").alias("dead_lettered"),
        *quantiles("waited_ms"),
        *quantiles("worked_ms"),
        F.count("waited_ms").alias("measured"),
        F.count_if(late).alias("late"),
        F.count_if((F.col("what") == "died") & F.col("is_missed")).alias("missed"),
    )
    in_all = F.col("measured") + F.col("missed")
    return (
        _with_budget(minutes, objective_share, window_days)
        .select(
            *("minute", "vhost", "queue", "tier", "priority", "published", "delivered", "acked"),
            *(
                (F.col(name) / MINUTE_SECONDS).alias(f"{name}_per_second")
                for name in ("published", "delivered", "acked")
            ),
            *_spread("waited_ms", "wait"),
            *_spread("worked_ms", "processing"),
            *("redelivered", "dead_lettered", "measured", "late", "missed"),
            (F.col("objective_ms") / 1000).alias("objective_seconds"),
            F.when(in_all > 0, (F.col("measured") - F.col("late")) / in_all).alias("within_share"),
            "budget_left_hours",
        )
        .orderBy("minute", "vhost", "queue", "priority")
    )


def _moments(stays: DataFrame) -> DataFrame:
    """One row for each thing that counts in a minute: what, when, and what is measured by it."""
    lease = F.try_element_at("leases", F.lit(-1))["at"]
    nothing = {"receive_count": F.lit(None).cast("int"), "worked_ms": F.lit(None).cast("bigint")}

    def moment(what: str, at: Column, **given: Column) -> Column:
        fields = {**nothing, "waited_ms": F.lit(None).cast("bigint"), **given}
        return F.struct(
            F.lit(what).alias("what"), at.alias("at"), *(fields[name].alias(name) for name in sorted(fields))
        )

    dies = F.col("ended").isin("dead_lettered", "moved", "removed") & F.col("ended_reason").isin(*DEATHS)
    singles = F.array(
        F.when(F.col("began") == "published", moment("published", F.col("began_at"))),
        F.when(
            F.col("ended") == "acked", moment("acked", F.col("ended_at"), worked_ms=millis(F.col("ended_at"), lease))
        ),
        F.when(dies, moment("died", F.col("ended_at"))),
    )
    leases = F.transform(
        "leases",
        lambda one, at: moment(
            "leased",
            one["at"],
            receive_count=one["receive_count"],
            waited_ms=F.when(at == 0, F.col("waited_ms")),
        ),
    )
    return (
        stays.select(
            *("vhost", "queue", "tier", "priority", "objective_ms", "is_missed"),
            F.explode(F.array_compact(F.concat(singles, leases))).alias("moment"),
        )
        .select("vhost", "queue", "tier", "priority", "objective_ms", "is_missed", "moment.*")
        .withColumn("minute", F.date_trunc("minute", "at"))
    )


def _spread(name: str, called: str) -> list[Column]:
    ranks = F.col(f"{name}_ranks")
    return [
        *(ranks[at].alias(f"{called}_{rank}_ms") for at, rank in enumerate(("p50", "p95", "p99"))),
        F.col(f"{name}_max").alias(f"{called}_max_ms"),
    ]


def _with_budget(minutes: DataFrame, objective_share: float, window_days: float) -> DataFrame:
    """budget_left_hours: of the queue as a whole, at the end of the minute, over the window that ends there."""
    seconds = int(window_days * 86_400)
    of_queue = Window.partitionBy("vhost", "queue", "tier").orderBy(F.unix_seconds("minute"))
    window = of_queue.rangeBetween(MINUTE_SECONDS - seconds, 0)
    bad, good = F.sum(F.col("late") + F.col("missed")), F.sum(F.col("measured") + F.col("missed"))
    return minutes.withColumn(
        "budget_left_hours", budget_left(bad.over(window), good.over(window), objective_share, window_days)
    )


def budget_left(bad: Column, measured: Column, objective_share: float, window_days: float) -> Column:
    share = F.when(measured > 0, bad / measured).otherwise(F.lit(0.0))
    return F.lit(window_days * 24) * (F.lit(1 - objective_share) - share)


def per_queue(
    stays: DataFrame,
    end: datetime,
    objective_share: float = OBJECTIVE_SHARE,
    window_days: float = WINDOW_DAYS,
) -> DataFrame:
    """The table slo_queues, of what `measured` made: each queue over the window that ends at `end`."""
    now = F.lit(end)
    begin = now - F.expr(f"INTERVAL '{int(window_days * 86_400)}' SECOND")
    first = F.try_element_at("leases", F.lit(1))["at"]
    recent = stays.where((F.coalesce(first, F.col("ended_at"), now) >= begin) & (F.coalesce("began_at", now) < now))
    waits = F.col("counts") & F.col("began").isNotNull() & F.col("ended").isNull() & (F.size("leases") == 0)
    late = F.col("waited_ms") > F.col("objective_ms")
    overdue = waits & (millis(now, F.col("visible_at")) > F.col("objective_ms"))
    queues = recent.groupBy("vhost", "queue", "tier").agg(
        F.first("objective_ms").alias("objective_ms"),
        F.count("waited_ms").alias("measured"),
        F.count_if(late).alias("late"),
        F.count_if("is_missed").alias("missed"),
        F.count_if(overdue).alias("overdue"),
        F.percentile("waited_ms", F.array(F.lit(0.5), F.lit(0.95), F.lit(0.99))).alias("waited_ms_ranks"),
        F.max("waited_ms").alias("waited_ms_max"),
    )
    bad = F.col("late") + F.col("missed") + F.col("overdue")
    in_all = F.col("measured") + F.col("missed") + F.col("overdue")
    return queues.select(
        *("vhost", "queue", "tier", "measured", "late", "missed", "overdue"),
        *_spread("waited_ms", "wait"),
        (F.col("objective_ms") / 1000).alias("objective_seconds"),
        F.lit(objective_share).alias("objective_share"),
        F.when(in_all > 0, 1 - bad / in_all).alias("within_share"),
        F.lit(window_days * 24 * (1 - objective_share)).alias("budget_hours"),
        budget_left(bad, in_all, objective_share, window_days).alias("budget_left_hours"),
    ).orderBy("vhost", "queue")


def run(spark: SparkSession, options: Options) -> Result:
    share = options["objective"] / 100
    days = options["window_days"]
    objectives = {tier: options[f"{tier}_seconds"] for tier in OBJECTIVES}
    events = options.events(spark, *COLUMNS, kinds=KINDS)
    found = measured(events, objectives).persist()
    try:
        options.say("slo: following messages through their queues")
        warehouse = options.warehouse
        minutes = warehouse.overwrite("slo", per_minute(found, share, days), options.run_id)
        options.say("slo: summing up queues")
        end = options.until or _end(options.events(spark, "time"))
        queues = warehouse.overwrite("slo_queues", per_queue(found, end, share, days), options.run_id)
    finally:
        found.unpersist()
    rows = warehouse.read_arrow("slo_queues").select(SHOWN).sort_by("budget_left_hours").to_pylist()
    return Result(SHOWN, [tuple(row.values()) for row in rows], tables={"slo": minutes, "slo_queues": queues})


def _end(events: DataFrame) -> datetime:
    last = events.agg(F.max(F.unix_millis("time"))).collect()[0][0]
    return datetime.fromtimestamp((last or 0) / 1000, UTC)
