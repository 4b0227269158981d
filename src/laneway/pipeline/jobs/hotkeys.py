"""hotkeys: where the load is, by partition, key and tenant; which partitions are hot; and a plan that cools them.

Load is messages published. A journal is one partition; as long as there is one journal, the partitions are those there
would be: crc32 of `vhost/queue` (or `vhost/queue/key` for messages that have a key) modulo so many. A partition is hot
above twice the mean. What is moved is a unit: a queue, or one key of a queue; one that is hot all by itself is no
better off elsewhere and has to be split.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from laneway.pipeline.runner import Options, Result

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("partition", "time", "kind", "vhost", "queue", "tenant", "key", "size")

HOT = 2.0
FORMAT = 1  # of plan.json
MOST_UNITS = 1000  # of a hot partition that are looked at; the largest
MOST_MOVES = 1000


def units(events: DataFrame, by: str = "queue", partitions: int | None = 8) -> DataFrame:
    """partition, vhost, queue, key (by key only), published, bytes: what can be moved, and its load. `partitions`
    None: the journals themselves are the partitions."""
    published = events.where(F.col("kind") == "published")
    key = F.col("key") if by == "key" else F.lit(None).cast("string")
    name = F.concat_ws("/", "vhost", "queue", key)  # a null is left out
    where = F.col("partition") if partitions is None else F.pmod(F.crc32(name.cast("binary")), F.lit(partitions))
    return (
        published.select(where.cast("int").alias("partition"), "vhost", "queue", key.alias("key"), "size")
        .groupBy("partition", "vhost", "queue", "key")
        .agg(F.count("*").alias("published"), F.sum("size").alias("bytes"))
    )


def per_partition(units: DataFrame, partitions: int, seconds: float, hot: float = HOT) -> DataFrame:
    """The table hotkeys_partitions: every partition, those without any load too."""
    load = units.groupBy("partition").agg(
        F.sum("published").alias("published"),
        F.sum("bytes").alias("bytes"),
        F.count("*").alias("units"),
        F.max_by(F.struct("vhost", "queue", "key"), "published").alias("top"),
    )
    every = units.sparkSession.range(partitions).select(F.col("id").cast("int").alias("partition"))
    everything = Window.partitionBy()  # as many rows as there are partitions
    return (
        every.join(load, "partition", "left")
        .na.fill(0, ["published", "bytes", "units"])
        .withColumn("mean", F.avg("published").over(everything))
        .select(
            *("partition", "published", "bytes", "units"),
            (F.col("published") / seconds).alias("per_second"),
            _share(F.col("published"), F.sum("published").over(everything)).alias("share"),
            _share(F.col("published"), F.col("mean")).alias("times_mean"),
            (F.col("published") > F.col("mean") * hot).alias("is_hot"),
            F.col("top.vhost").alias("top_vhost"),
            F.col("top.queue").alias("top_queue"),
            F.col("top.key").alias("top_key"),
        )
        .orderBy("partition")
    )


def _share(part: Any, whole: Any) -> Any:
    return F.when(whole > 0, part / whole).otherwise(F.lit(0.0))


def top_keys(events: DataFrame, seconds: float, most: int = 10) -> DataFrame:
    """The table hotkeys_keys: the keys with the most messages, of one queue each."""
    return _ranked(events.where(F.col("key").isNotNull()), ["vhost", "queue", "key"], seconds, events).limit(most)


def per_tenant(events: DataFrame, seconds: float) -> DataFrame:
    """The table hotkeys_tenants: all tenants, the messages that name none as null."""
    return _ranked(events, ["tenant"], seconds, events)


def _ranked(events: DataFrame, by: list[str], seconds: float, everything: DataFrame) -> DataFrame:
    total = everything.agg(F.count_if(F.col("kind") == "published").alias("total"))
    counted = (
        events.where(F.col("kind") == "published")
        .groupBy(*by)
        .agg(F.count("*").alias("published"), F.sum("size").alias("bytes"))
    )
    return (
        counted.crossJoin(F.broadcast(total))
        .select(
            *by,
            *("published", "bytes"),
            (F.col("published") / seconds).alias("per_second"),
            (F.col("published") / F.col("total")).alias("share"),
        )
        .orderBy(F.desc("published"), *by)
    )


# --- the plan: plain Python, of few numbers


@dataclass(frozen=True)
class Unit:
    partition: int
    vhost: str
    queue: str
    key: str | None
    published: int


def rebalanced(
    loads: Sequence[int], found: Sequence[Unit], hot: float = HOT
) -> tuple[list[tuple[Unit, int, int]], list[Unit]]:
    """Moves as (unit, from, to), and units to split. The largest that fits goes from the hottest partition to the
    coldest, until none is hot or nothing helps. A move never makes another partition hot."""
    now = list(loads)
    limit = hot * sum(now) / len(now)
    at_home: dict[int, list[Unit]] = {}
    for unit in sorted(found, key=lambda one: (-one.published, one.vhost, one.queue, one.key or "")):
        at_home.setdefault(unit.partition, []).append(unit)
    moves: list[tuple[Unit, int, int]] = []
    given_up: set[int] = set()
    while len(moves) < MOST_MOVES:
        hottest = max((one for one in range(len(now)) if one not in given_up), key=now.__getitem__, default=None)
        if hottest is None or now[hottest] <= limit:
            break
        coldest = min(range(len(now)), key=now.__getitem__)
        fitting = (one for one in at_home.get(hottest, []) if now[coldest] + one.published <= limit)
        chosen = next(fitting, None)
        if chosen is None:
            given_up.add(hottest)
            continue
        at_home[hottest].remove(chosen)
        now[hottest] -= chosen.published
        now[coldest] += chosen.published
        moves.append((chosen, hottest, coldest))
    return moves, [one for one in found if one.published > limit]


def plan(
    by: str,
    loads: Sequence[int],
    found: Sequence[Unit],
    seconds: float,
    span: tuple[datetime, datetime],
    hot: float = HOT,
) -> dict[str, Any]:
    """What plan.json holds and the server takes with PUT /rebalancing."""
    moves, splits = rebalanced(loads, found, hot)
    limit = hot * sum(loads) / len(loads)

    def named(unit: Unit) -> dict[str, Any]:
        key = {} if unit.key is None else {"key": unit.key}
        rate = round(unit.published / seconds, 6)
        return {"vhost": unit.vhost, "queue_name": unit.queue, **key, "per_second": rate}

    return {
        "format": FORMAT,
        "made_at": _text(datetime.now(UTC)),
        "since": _text(span[0]),
        "until": _text(span[1]),
        "by": by,
        "partition_count": len(loads),
        "hot_above": hot,
        "partitions": [
            {"partition": at, "per_second": round(load / seconds, 6), "is_hot": load > limit}
            for at, load in enumerate(loads)
        ],
        "moves": [{**named(unit), "from": here, "to": there} for unit, here, there in moves],
        "splits": [{**named(unit), "partition": unit.partition} for unit in splits],
    }


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def run(spark: SparkSession, options: Options) -> Result:
    by, wanted, hot, most = (options[name] for name in ("by", "partitions", "hot_above", "top"))
    events = options.events(spark, *COLUMNS, kinds=("published",)).persist()
    try:
        options.say("hotkeys: counting what was published")
        highest, first, last = events.agg(
            F.max("partition"), F.min(F.unix_millis("time")), F.max(F.unix_millis("time"))
        ).collect()[0]
        since = options.since or datetime.fromtimestamp((first or 0) / 1000, UTC)
        until = options.until or datetime.fromtimestamp((last or 0) / 1000, UTC)
        seconds = max(1.0, (until - since).total_seconds())
        count = wanted if not highest else int(highest) + 1
        found = units(events, by, wanted if not highest else None).persist()
        warehouse, run_id = options.warehouse, options.run_id
        written = {
            "hotkeys_partitions": warehouse.overwrite(
                "hotkeys_partitions", per_partition(found, count, seconds, hot), run_id
            ),
            "hotkeys_keys": warehouse.overwrite("hotkeys_keys", top_keys(events, seconds, most), run_id),
            "hotkeys_tenants": warehouse.overwrite("hotkeys_tenants", per_tenant(events, seconds), run_id),
        }
        options.say("hotkeys: making a plan")
        rows = warehouse.read_arrow("hotkeys_partitions").sort_by("partition").to_pylist()
        largest = _largest(found, [row["partition"] for row in rows if row["is_hot"]])
        found.unpersist()
    finally:
        events.unpersist()
    made = plan(by, [row["published"] for row in rows], largest, seconds, (since, until), hot)
    file = warehouse.write_file("plan.json", json.dumps(made, indent=2, ensure_ascii=False) + "\n")
    shown = ("partition", "published", "per_second", "times_mean", "is_hot", "top_vhost", "top_queue", "top_key")
    return Result(
        shown,
        [tuple(row[name] for name in shown) for row in sorted(rows, key=lambda row: -row["published"])[:10]],
        notes=_notes(made, warehouse.read_arrow("hotkeys_keys").to_pylist()),
        tables=written,
        files=[str(file)],
        facts={"moves": made["moves"], "splits": made["splits"]},
    )


def _largest(found: DataFrame, hot: list[int]) -> list[Unit]:
    if not hot:
        return []
    order = Window.partitionBy("partition").orderBy(F.desc("published"), "vhost", "queue", "key")
    rows = (
        found.where(F.col("partition").isin(*hot))
        .withColumn("rank", F.row_number().over(order))
        .where(F.col("rank") <= MOST_UNITS)
        .collect()
    )
    return [Unit(row.partition, row.vhost, row.queue, row.key, row.published) for row in rows]


def _notes(made: dict[str, Any], keys: list[dict[str, Any]]) -> list[str]:
    def name(one: dict[str, Any]) -> str:
        return f"{one['queue_name']}" + (f" key {one['key']}" if one.get("key") is not None else "")

    hot = [one["partition"] for one in made["partitions"] if one["is_hot"]]
    notes = [f"hot: partition {', '.join(map(str, hot))}" if hot else "no partition is hot"]
    notes += [f"move {name(one)} from partition {one['from']} to {one['to']}" for one in made["moves"][:10]]
    notes += [f"split {name(one)}: it alone makes partition {one['partition']} hot" for one in made["splits"][:10]]
    if keys:
        shares = (f"{one['key']} of {one['queue']} {one['share']:.1%}" for one in keys[:10])
        notes.append(f"top keys: {', '.join(shares)}")
    return notes
