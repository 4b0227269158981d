"""A message's stay in a queue: from its arrival to its end, one row each. What the jobs measure, they measure on stays.

A message that is moved or copied gets a new number, so a number is one stay. It begins when the message is published,
or arrives as a dead letter or redriven, maybe from another partition; it ends when the message is acked, dies, is
moved, removed, purged, or goes with its queue. History may begin or end in the middle of a stay: then its beginning or
its end is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: Why a message is a dead letter, as `reason` says it.
DEATHS = ("max_receives", "expired", "rejected", "overflow")

#: The columns of events that stays are made of, and the kinds.
COLUMNS = (
    *("partition", "position", "index", "time", "kind", "vhost", "queue", "queue_number", "tier", "message"),
    *("message_id", "priority", "lease", "consumer", "receive_count", "reason", "enqueued_at", "visible_at"),
    *("target_vhost", "target_queue", "target_partition", "target_message"),
)
KINDS = (
    *("published", "leased", "acked", "released", "dead_lettered", "moved", "removed", "copied"),
    *("arrived", "queue_purged", "queue_deleted", "queue_put"),
)

#: The beginning of a stay: of messages from other partitions it has a row, of those of the same one it is made of the
#: rows moved and copied.
ARRIVED = "arrived"
RETURNED = "returned"  # it arrives dead in the queue it left


def is_death() -> Column:
    """Whether the event makes a dead letter, here, elsewhere, or of a message that is not kept. A letter that goes to
    several queues is copied to all but one and then moved: it died once."""
    return F.col("kind").isin("dead_lettered", "moved", "removed") & F.col("reason").isin(*DEATHS)


def millis(later: Column, earlier: Column) -> Column:
    return F.unix_millis(later) - F.unix_millis(earlier)


def with_arrivals(events: DataFrame) -> DataFrame:
    """The events, and beside each moved or copied one a row `arrived` in the queue and with the number it went to.
    Its queue_number is not known and null. What departs to another partition arrives by a row there."""
    same = {name: F.col(name) for name in events.columns}
    there = {
        **same,
        "kind": F.lit(ARRIVED),
        "vhost": F.col("target_vhost"),
        "queue": F.col("target_queue"),
        "queue_number": F.lit(None).cast("int"),
        "tier": F.lit(None).cast("string"),
        "message": F.col("target_message"),
    }
    here = F.struct(*(column.alias(name) for name, column in same.items()))
    both = F.array(here, F.struct(*(column.alias(name) for name, column in there.items())))
    stays_here = F.coalesce(F.col("target_partition") == F.col("partition"), F.lit(True))
    is_going = F.col("kind").isin("moved", "copied") & F.col("target_message").isNotNull() & stays_here
    return events.select(F.inline(F.when(is_going, both).otherwise(F.array(here))))


def stays(events: DataFrame) -> DataFrame:
    """One row per stay:

    partition, message, message_id, vhost, queue, queue_number, tier    what, where
    priority          that it was published with; null if that is not in the history
    began             published · redriven · a reason of death, if it arrived as a dead letter · returned: to where it
                      died, and it is dead again · arrived: for another reason · null: before history
    began_at          when it came; visible_at: from when on it could be leased first
    enqueued_at       when it was first published, maybe in another queue
    leases            array of (at, receive_count, consumer), in order
    ended             acked · dead_lettered · moved · removed · purged · deleted · null: it has not ended
    ended_at, ended_reason
    """
    order = F.struct("position", "index")

    def first(when: Column, value: str) -> Column:
        return F.min_by(F.when(when, F.col(value)), F.when(when, order))

    kind = F.col("kind")
    begins = kind.isin("published", ARRIVED)
    is_back = (kind == ARRIVED) & F.coalesce(F.col("reason") == RETURNED, F.lit(False))
    ends = kind.isin("acked", "dead_lettered", "moved", "removed") | is_back
    # Rows of one message travel together once, by its id; what follows is grouped and numbered inside these shares.
    rows = (
        with_arrivals(events)
        .where(kind.isin("published", ARRIVED, "leased", "acked", "released", "dead_lettered", "moved", "removed"))
        .withColumn("id", F.coalesce("message_id", F.concat(F.lit("#"), F.col("message"))))
        .repartition("partition", "id")
    )
    lease = F.struct("position", "index", F.col("time").alias("at"), "receive_count", "consumer")
    grouped = rows.groupBy("partition", "id", "message").agg(
        F.first("message_id", ignorenulls=True).alias("message_id"),
        F.max("vhost").alias("vhost"),
        F.max("queue").alias("queue"),
        F.max("queue_number").alias("queue_number"),
        F.max("tier").alias("tier"),
        F.min_by("priority", F.when(F.col("priority").isNotNull(), order)).alias("own_priority"),
        F.min(F.when(begins, order)).alias("begin"),
        first(begins, "kind").alias("begin_kind"),
        first(begins, "reason").alias("begin_reason"),
        first(begins, "time").alias("began_at"),
        first(kind == "published", "visible_at").alias("first_visible_at"),
        F.min("enqueued_at").alias("enqueued_at"),
        F.array_sort(F.collect_list(F.when(kind == "leased", lease))).alias("all_leases"),
        F.max_by("kind", order).alias("last_kind"),
        F.max(order).alias("last"),
        F.min_by(F.when(is_back, "dead_lettered").when(ends, kind), F.when(ends, order)).alias("end_kind"),
        first(ends, "time").alias("end_at"),
        first(ends, "reason").alias("end_reason"),
    )
    # A copy or a redriven one has the priority of the message it comes from.
    of_message = Window.partitionBy("partition", "id").orderBy("begin").rowsBetween(Window.unboundedPreceding, 0)
    known = grouped.withColumn("priority", F.last("own_priority", ignorenulls=True).over(of_message))
    return _with_queues(known, _fates(events)).select(
        *("partition", "message", "message_id", "vhost", "queue", "queue_number", "tier", "priority"),
        F.when(F.col("begin_kind") == ARRIVED, F.coalesce("begin_reason", F.lit(ARRIVED)))
        .otherwise(F.col("begin_kind"))
        .alias("began"),
        "began_at",
        F.coalesce("first_visible_at", "began_at").alias("visible_at"),
        "enqueued_at",
        F.transform(
            "all_leases",
            lambda one: F.struct(
                one["at"].alias("at"), one["receive_count"].alias("receive_count"), one["consumer"].alias("consumer")
            ),
        ).alias("leases"),
        F.coalesce(
            "end_kind",
            F.when(F.col("purge").isNotNull(), F.lit("purged")),
            F.when(F.col("deleted_at").isNotNull(), F.lit("deleted")),
        ).alias("ended"),
        F.coalesce("end_at", F.col("purge")["at"], "deleted_at").alias("ended_at"),
        F.col("end_reason").alias("ended_reason"),
    )


def _fates(events: DataFrame) -> DataFrame:
    """What happened to queues as a whole, by name: each queue that had it, with its purges and its end. Few rows, and
    read from few: a source that can leaves out all other kinds."""
    kind = F.col("kind")
    purge = F.struct("position", F.col("time").alias("at"), F.col("message").alias("before"))
    queues = (
        events.where(kind.isin("queue_put", "queue_purged", "queue_deleted"))
        .groupBy("partition", "vhost", "queue", "queue_number")
        .agg(
            F.min("position").alias("since"),
            F.max("tier").alias("tier"),
            F.array_sort(F.collect_list(F.when(kind == "queue_purged", purge))).alias("purges"),
            F.min(F.when(kind == "queue_deleted", F.col("time"))).alias("deleted_at"),
        )
    )
    one = F.struct("since", "queue_number", "tier", "purges", "deleted_at")
    return queues.groupBy("partition", "vhost", "queue").agg(F.array_sort(F.collect_list(one)).alias("queues"))


def _with_queues(stays: DataFrame, fates: DataFrame) -> DataFrame:
    """The stays with what became of their queues. One that began by a move knows the name of its queue alone, until
    something happens to it there: it is the one that had the name then."""
    joined = stays.join(F.broadcast(fates), ["partition", "vhost", "queue"], "left")
    by_number = F.filter("queues", lambda one: one["queue_number"] == F.col("queue_number"))
    by_name = F.filter("queues", lambda one: one["since"] <= F.col("begin")["position"])
    found = F.when(F.col("queue_number").isNotNull(), F.try_element_at(by_number, F.lit(1))).otherwise(
        F.try_element_at(by_name, F.lit(-1))
    )
    # What waits below the number of a purge is gone. After its last event nothing happened to it: if it waited then, it
    # still did when the purge came; if it was leased then, it still is.
    waits = F.col("end_kind").isNull() & (F.col("last_kind") != "leased")
    purges = F.filter(
        F.col("fate")["purges"],
        lambda purge: (purge["position"] > F.col("last")["position"]) & (purge["before"] > F.col("message")),
    )
    return (
        joined.withColumn("fate", found)
        .withColumn("queue_number", F.coalesce("queue_number", F.col("fate")["queue_number"]))
        .withColumn("tier", F.coalesce("tier", F.col("fate")["tier"]))
        .withColumn("purge", F.when(waits, F.try_element_at(purges, F.lit(1))))
        .withColumn("deleted_at", F.col("fate")["deleted_at"])
    )
