"""report: one HTML page over the tables that the other jobs made, and the table it needs beside them, traffic.

traffic has one row for each step of time and each queue: what came and went in the step, how many messages were in the
queue at its end, and how long those had waited that were first delivered in it. The step is chosen so that a chart has
enough of them: a second of an hour that took a minute, a day of a year.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from laneway.pipeline.lake import Warehouse
from laneway.pipeline.report.page import page
from laneway.pipeline.runner import Options, Result
from laneway.pipeline.stays import COLUMNS, DEATHS, KINDS, millis, stays

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Seconds of a step, as clocks divide time.
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800)
MOST_STEPS = 120

#: What the page shows, and how many rows of each it looks at: the page is for people, and fits in their memory.
TABLES = {
    "traffic": 200_000,
    "slo_queues": 10_000,
    "hotkeys_keys": 1_000,
    "hotkeys_tenants": 10_000,
    "hotkeys_partitions": 10_000,
    "deadletters": 50_000,
    "capacity_queues": 10_000,
    "audit_verdict": 1,
    "audit_fates": 10_000,
    "audit_violations": 1_000,
}


def step_of(span_seconds: float) -> int:
    """The smallest step that a span of time has few enough of."""
    return next((step for step in STEPS if span_seconds / step < MOST_STEPS), STEPS[-1])


def traffic(events: DataFrame, step_seconds: int) -> DataFrame:
    """The table traffic. A queue has a row for each step of the whole time, also where nothing happened in it."""
    found = _moments(stays(events)).withColumn(
        "step", F.floor(F.unix_millis("at") / F.lit(step_seconds * 1000)).cast("bigint")
    )
    what = F.col("what")
    counted = found.groupBy("step", "vhost", "queue").agg(
        *(F.count_if(what == name).alias(name) for name in _COUNTED),
        F.count_if((what == "delivered") & (F.col("receive_count") > 1)).alias("redelivered"),
        F.percentile("waited_ms", F.lit(0.95)).alias("wait_p95_ms"),
    )
    ends = found.agg(F.min("step").alias("first"), F.max("step").alias("last"))
    steps = ends.where("first is not null").select(F.explode(F.sequence("first", "last")).alias("step"))
    queues = found.select("vhost", "queue").distinct()
    so_far = Window.partitionBy("vhost", "queue").orderBy("step").rowsBetween(Window.unboundedPreceding, 0)

    def filled(name: str) -> Column:
        return F.coalesce(F.col(name), F.lit(0))

    return (
        steps.crossJoin(queues)
        .join(counted, ["step", "vhost", "queue"], "left")
        .select(
            F.timestamp_seconds(F.col("step") * step_seconds).alias("time"),
            F.lit(step_seconds).alias("step_seconds"),
            "vhost",
            "queue",
            *(filled(name).alias(name) for name in ("published", "delivered", "redelivered", "acked", "died")),
            F.sum(filled("came") - filled("left")).over(so_far).alias("waiting"),
            F.sum(filled("visible") - filled("taken")).over(so_far).alias("unreceived"),
            "wait_p95_ms",
        )
        .orderBy("time", "vhost", "queue")
    )


_COUNTED = ("published", "delivered", "acked", "died", "came", "left", "visible", "taken")


def _moments(stays: DataFrame) -> DataFrame:
    """One row for each thing that is counted: what, when, and how long a first delivery had been waited for. What was
    in a queue before the history begins came when the first thing happened to it."""

    def moment(what: str, at: Column, **given: Column) -> Column:
        waited = given.get("waited_ms", F.lit(None).cast("bigint"))
        receives = given.get("receive_count", F.lit(None).cast("int"))
        return F.struct(
            F.lit(what).alias("what"), at.alias("at"), waited.alias("waited_ms"), receives.alias("receive_count")
        )

    ended, ended_at = F.col("ended"), F.col("ended_at")
    first = F.try_element_at("leases", F.lit(1))
    begins = F.coalesce("began_at", first["at"], ended_at)
    dies = ended.isin("dead_lettered", "moved", "removed") & F.col("ended_reason").isin(*DEATHS)
    # Received for the first time, or gone unreceived; a dead letter that arrived is for nobody to receive.
    is_offered = F.col("began").isin("published", "redriven")
    taken = F.coalesce(first["at"], ended_at)
    singles = F.array(
        F.when(is_offered, moment("visible", F.least("visible_at", taken))),
        F.when(is_offered & taken.isNotNull(), moment("taken", taken)),
        F.when(begins.isNotNull(), moment("came", begins)),
        F.when(F.col("began") == "published", moment("published", F.col("began_at"))),
        F.when(ended.isNotNull() & begins.isNotNull(), moment("left", ended_at)),
        F.when(ended == "acked", moment("acked", ended_at)),
        F.when(dies, moment("died", ended_at)),
    )
    waited = F.greatest(millis(first["at"], F.coalesce("visible_at", "enqueued_at")), F.lit(0))
    leases = F.transform(
        "leases",
        lambda one, at: moment(
            "delivered",
            one["at"],
            receive_count=one["receive_count"],
            waited_ms=F.when((at == 0) & (one["receive_count"] == 1), waited),
        ),
    )
    return stays.select("vhost", "queue", F.explode(F.array_compact(F.concat(singles, leases))).alias("moment")).select(
        "vhost", "queue", "moment.*"
    )


def rows_of(warehouse: Warehouse) -> dict[str, list[dict[str, Any]]]:
    """The tables there are, as far as the page looks at them."""
    import pyarrow.dataset

    found = {}
    for name, most in TABLES.items():
        if warehouse.has(name):
            data = pyarrow.dataset.dataset(warehouse.version(name), format="parquet", partitioning="hive")
            found[name] = data.head(most).to_pylist()
    return found


def run(spark: SparkSession, options: Options) -> Result:
    events = options.events(spark, *COLUMNS, kinds=KINDS).persist()
    try:
        span = (
            events.where(F.col("message_id").isNotNull())
            .agg(F.min(F.unix_millis("time")), F.max(F.unix_millis("time")))
            .collect()[0]
        )
        seconds = 0.0 if span[0] is None else (span[1] - span[0]) / 1000
        options.say("report: what came and went")
        written = options.warehouse.overwrite("traffic", traffic(events, step_of(seconds)), options.run_id)
    finally:
        events.unpersist()
    tables = rows_of(options.warehouse)
    missing = [name for name in TABLES if name not in tables]
    text = page(tables, made_at=datetime.now(UTC), source=str(options.source), title=options["title"])
    path = options.warehouse.write_file("report.html", text)
    notes = [f"not in the warehouse yet, so not in the report: {', '.join(missing)}"] if missing else []
    return Result(files=[str(path)], tables={"traffic": written}, notes=notes, facts={"missing": missing})
