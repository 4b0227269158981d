"""The life of every message, from the events table: what happened to it, step by step, and what cannot have happened.

A message number has one beginning (published, moved in, copied in), at most one end, and in between it waits, is leased
or is dead. Which step may follow which is the state diagram in core/state.py:

    step       published · moved_in · copied_in · released   leased · extended   dead_lettered   acked · removed · moved
    then it    waits                                         is held             is dead         has ended

Purges and deletions of queues have no row for each message: they end all that wait, or all, in one event or, where
there is much, in a few over rising numbers. So they are a small table beside, joined to every step. They and all other
events of no message stand among the steps, each as a life of its own: what is made here is all that an audit looks at,
from one reading of the history.

One shuffle by message, one sort, no collected lists: memory does not grow with the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from laneway.pipeline.runner import HIDDEN

#: Steps of a life; the order matters to the comparisons below.
PUBLISHED, MOVED_IN, COPIED_IN, RELEASED, LEASED, EXTENDED, DEAD, ACKED, REMOVED, MOVED = range(1, 11)

#: Events of no message, which are below all steps.
OTHER, QUEUE_PURGED, QUEUE_DELETED = 0, -1, -2
STEPS = {
    PUBLISHED: "published",
    MOVED_IN: "moved in",
    COPIED_IN: "copied in",
    RELEASED: "released",
    LEASED: "leased",
    EXTENDED: "extended",
    DEAD: "dead-lettered",
    ACKED: "acked",
    REMOVED: "removed",
    MOVED: "moved",
}
_OF_ONE_MESSAGE = {
    "published": PUBLISHED,
    "released": RELEASED,
    "leased": LEASED,
    "extended": EXTENDED,
    "reserved": EXTENDED,  # under another lease id
    "dead_lettered": DEAD,
    "acked": ACKED,
    "removed": REMOVED,
    "moved": MOVED,
}
#: The reason of a message that goes on as it was in another partition.
GOES_ON = "rebalanced"
_OF_A_QUEUE = {"queue_purged": QUEUE_PURGED, "queue_deleted": QUEUE_DELETED}

#: Where in history a row stands, as one number: the position of its commit, then its place in there.
INDEX_BITS = 26
LATER = 1 << 62  # than everything

#: What is taken from the events table. All the rest is worked out from these.
READ = (
    "partition position index time kind vhost queue queue_number message priority tenant group lease receive_count "
    "reason visible_at target_vhost target_queue target_queue_number target_message target_partition message_id"
).split()

VIOLATION = "partition int, at bigint, type string, queue_number int, message bigint, words string"


def steps(events: DataFrame) -> DataFrame:
    """One row per step of a life, and per event of no message. A move ends one number and begins another; a copy begins
    one. `is_event`: of the rows that an event makes, the one that stands for it."""
    kind = F.col("kind")
    known = {**_OF_ONE_MESSAGE, **_OF_A_QUEUE}
    step_of = F.coalesce(F.create_map(*[F.lit(x) for pair in known.items() for x in pair])[kind], F.lit(OTHER))
    # One that came with its whole queue goes on as it was: leased, dead, or it waits.
    is_held, waits = F.col("lease").isNotNull(), F.col("visible_at").isNotNull()
    goes_on = F.when(is_held, LEASED).when(waits, RELEASED).otherwise(DEAD)
    step_of = F.when(kind == "resumed", goes_on).when(kind == "arrived", MOVED_IN).otherwise(step_of)
    at = F.shiftleft("position", INDEX_BITS) + F.col("index")
    is_step = kind.isin(*_OF_ONE_MESSAGE, "copied", "arrived", "resumed")

    def row(step: Column, message: Column, prefix: str, is_event: Column) -> Column:
        names = (F.col(f"{prefix}{name}").alias(name) for name in ("queue_number", "vhost", "queue"))
        # An event of no message has a number that no message has, and no other event.
        return F.struct(
            step.alias("step"),
            F.when(is_step, message).otherwise(-at).alias("message"),
            *names,
            is_event.alias("is_event"),
        )

    old = row(step_of, F.col("message"), "", F.lit(True))
    new_step = F.when(kind == "moved", MOVED_IN).otherwise(COPIED_IN)
    new = row(new_step, F.col("target_message"), "target_", kind == "copied")
    dead = row(F.lit(DEAD), F.col("message"), "", F.lit(False))  # one that came back from another partition
    # The target of one that departs is the queue that it is bound for, and it waits in a hidden one until it has left.
    departs = F.coalesce(F.col("target_partition") != F.coalesce("partition", F.lit(0)), F.lit(False))
    new = F.when(
        departs, new.withField("vhost", F.lit(HIDDEN)).withField("queue", F.lit(None).cast("string"))
    ).otherwise(new)
    of = (
        F.when(kind == "moved", F.array(old, new))
        .when(kind == "copied", F.array(new))
        .when((kind == "arrived") & (F.col("reason") == "returned"), F.array(old, dead))
        .otherwise(F.array(old))
    )
    # An id ends with the number that its message was published under, whatever number it has by now.
    # That of one from another partition says nothing here.
    own_number = F.conv(F.substring("message_id", -12, 12), 16, 10).cast("bigint")
    born = F.when(kind == "arrived", F.col("message")).otherwise(own_number)
    return events.withColumn("of", F.explode(of)).select(
        F.coalesce("partition", F.lit(0)).alias("partition"),
        "of.*",
        at.alias("at"),
        F.unix_millis("time").alias("ms"),
        "lease",
        "receive_count",
        "reason",
        F.unix_millis("visible_at").alias("visible_ms"),
        F.when(F.col("of.step") == PUBLISHED, F.col("priority")).alias("priority"),
        "group",
        F.when(F.col("group").isNull(), F.col("tenant")).alias("tenant"),  # in a group, tenants do not count
        F.when(F.col("of.step").isin(MOVED_IN, COPIED_IN), born).alias("born"),
        F.when(F.col("of.step") == QUEUE_PURGED, F.col("message")).alias("kept"),
    )


def lives(events: DataFrame) -> DataFrame:
    """Every step with the one before and the one after it in the same life, and what the message was published with.

    `is_plain`: from this step on it waits, visible at once, in no group, under the number it was published with;
    `was_plain`: so it did before this step.
    `batch`, `last_batch`: in groups, what is leased in one event has the same, this time or the time before.

    These are null unless the step is wrong, for columns of nulls cost next to nothing to write and to read:
    `early_ms`: leased so long before it was visible. `stale_lease`: acked with this lease, though the last one was
    `last_lease`. `wrong_count`: leased for so many times, after `last_count` times. `first_queue`: where it was before.
    """
    # By the message first: Spark compares rows by their first column, and by the others only where that is the same.
    life = Window.partitionBy("message", "partition").orderBy("at", "step")
    so_far = life.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = life.rowsBetween(Window.unboundedPreceding, -1)
    step = F.col("step")
    goes_on = F.coalesce(F.col("reason") == GOES_ON, F.lit(False))
    batch = F.when(
        (step == LEASED) & ~goes_on, F.col("at") - F.col("lease")
    )  # both go up by one from message to message
    is_ready, visible_before = F.col("visible_ms") <= F.col("ms"), F.lag("visible_ms").over(life)
    known = steps(events).withColumns(
        {
            "previous": F.lag("step").over(life),
            "previous_at": F.lag("at").over(life),
            "next": F.lead("step").over(life),
            "next_at": F.lead("at").over(life),
            "first": F.first("step").over(so_far),
            "first_queue": F.first("queue_number").over(so_far),
            "priority": F.first("priority").over(so_far),
            "tenant": F.first("tenant").over(so_far),
            "group": F.first("group").over(so_far),
            "born": F.first("born").over(so_far),
            "is_plain": is_ready,
            "was_plain": F.lag(is_ready).over(life),
            "early_ms": F.when((step == LEASED) & (visible_before > F.col("ms")), visible_before - F.col("ms")),
            "batch": batch,
            "last_batch": F.last(batch, ignorenulls=True).over(before),
            "last_lease": F.last(F.when(_is_held(step), F.col("lease")), ignorenulls=True).over(so_far),
            "last_count": F.last("receive_count", ignorenulls=True).over(before),
        }
    )
    of_no_group = F.col("group").isNull() & (F.col("first") == PUBLISHED)
    of_group = F.col("group").isNotNull() | F.col("born").isNotNull()
    is_stale = (step == ACKED) & _is_held(F.col("previous")) & (F.col("lease") != F.col("last_lease"))
    last_count = F.coalesce("last_count", F.when(F.col("first") <= COPIED_IN, F.lit(0)))
    is_miscounted = (step == LEASED) & ~goes_on & (F.col("receive_count") != last_count + 1)
    return known.withColumns(
        {
            **{name: F.coalesce(F.col(name) & of_no_group, F.lit(False)) for name in ("is_plain", "was_plain")},
            **{name: F.when(of_group, F.col(name)) for name in ("batch", "last_batch")},
            "stale_lease": F.when(is_stale, F.col("lease")),
            "last_lease": F.when(is_stale, F.col("last_lease")),
            "wrong_count": F.when(is_miscounted, F.col("receive_count")),
            "last_count": F.when(is_miscounted, last_count),
            "first_queue": F.when(F.col("queue_number") != F.col("first_queue"), F.col("first_queue")),
        }
    ).drop("first", "lease", "receive_count")


def queue_ends(lives: DataFrame) -> DataFrame:
    """Per queue: when it was deleted, and its purges in order, each with the first message that was kept."""
    purge = F.struct("at", "kept")
    return (
        lives.where(F.col("step").isin(QUEUE_PURGED, QUEUE_DELETED))
        .groupBy("partition", "queue_number")
        .agg(
            F.min(F.when(F.col("step") == QUEUE_DELETED, F.col("at"))).alias("deleted_at"),
            F.sort_array(F.collect_list(F.when(F.col("step") == QUEUE_PURGED, purge))).alias("purges"),
        )
    )


def ended_with_queues(lives: DataFrame, *, has_ends: bool) -> DataFrame:
    """The steps of lives, without events of no message, and how the queue ended the life, if it did so while the
    message waited here: `ended_at` is a purge or the deletion of the queue, before the next step or after the last one,
    `purged_at` a purge. `has_ends`: whether a queue was purged or deleted at all."""
    step = F.col("step")
    known = lives.where(step > OTHER)
    if not has_ends:
        never = F.lit(None).cast("bigint")
        return known.withColumns({"purged_at": never, "ended_at": never, "queue_deleted_at": never})
    later = F.coalesce("next_at", F.lit(LATER))

    def ends_it(purge: Column) -> Column:
        return (purge["at"] > F.col("at")) & (purge["at"] < later) & (purge["kept"] > F.col("message"))

    purged = F.when(_waits(step) & F.col("purges").isNotNull(), F.get(F.filter("purges", ends_it), F.lit(0))["at"])
    deleted = F.when((step < ACKED) & (F.col("deleted_at") > F.col("at")) & (F.col("deleted_at") < later), 1)
    return (
        known.join(F.broadcast(queue_ends(lives)), ["partition", "queue_number"], "left")
        .withColumn("purged_at", purged)
        .withColumn("ended_at", F.coalesce("purged_at", F.when(deleted == 1, F.col("deleted_at"))))
        .withColumn("queue_deleted_at", F.col("deleted_at"))
        .drop("purges", "deleted_at")
    )


def _waits(step: Column) -> Column:
    return step <= RELEASED


def _is_held(step: Column) -> Column:
    return step.isin(LEASED, EXTENDED)


def _has_ended(step: Column) -> Column:
    return step >= ACKED


def impossible_steps(lives: DataFrame, whole: Sequence[int], *, has_ends: bool) -> DataFrame:
    """Steps that cannot follow what came before them. `whole`: the partitions whose history begins with the first
    commit, so that every message must have a beginning; in the others, those that have none are from before.
    `has_ends`: as in ended_with_queues."""
    step, previous = F.col("step"), F.col("previous")
    begins, was_there = step <= COPIED_IN, previous.isNotNull()
    gone = _has_ended(previous)
    found = [
        (
            "never_published",
            ~was_there & ~begins & F.col("partition").isin(*whole),
            F.lit("of a message that was never published"),
        ),
        ("published_twice", was_there & begins, F.lit("a number that another message has")),
        ("delivered_after_end", gone & (step == LEASED), _after(previous)),
        ("double_end", gone & _has_ended(step), _after(previous)),
        ("event_after_end", gone & ~begins & (step != LEASED) & ~_has_ended(step), _after(previous)),
        ("after_queue_deleted", F.col("at") > F.col("queue_deleted_at"), F.lit("its queue had been deleted")),
        ("delivered_twice", (step == LEASED) & _is_held(previous), F.lit("another lease of it had not ended")),
        (
            "early",
            F.col("early_ms").isNotNull(),
            F.concat("early_ms", F.lit(" ms before it was visible")),
        ),
        ("delivered_dead", (step == LEASED) & (previous == DEAD), F.lit("it was dead")),
        (
            "not_leased",
            (
                step.isin(ACKED, RELEASED)
                & (_waits(previous) | (previous == DEAD))
                & F.coalesce(F.col("reason") != GOES_ON, F.lit(True))
            )
            | ((step == EXTENDED) & (previous.isin(PUBLISHED, MOVED_IN, COPIED_IN, DEAD))),
            F.lit("nobody held it"),
        ),
        (
            "stale_ack",
            F.col("stale_lease").isNotNull(),
            F.concat(F.lit("with lease "), "stale_lease", F.lit(", the last one was "), "last_lease"),
        ),
        ("dead_twice", (step == DEAD) & (previous == DEAD), F.lit("it was dead already")),
        (
            "receive_count",
            F.col("wrong_count").isNotNull(),
            F.concat(F.lit("receive count "), "wrong_count", F.lit(" after "), "last_count"),
        ),
        (
            "wrong_queue",
            F.col("first_queue").isNotNull(),
            F.concat(F.lit("it was in queue number "), "first_queue"),
        ),
    ]
    checks = F.array(
        *[F.when(wrong, F.struct(F.lit(name).alias("type"), words.alias("words"))) for name, wrong, words in found]
    )
    any_wrong = reduce(or_, [F.coalesce(wrong, F.lit(False)) for _, wrong, _ in found])
    named = F.create_map(*[F.lit(x) for pair in STEPS.items() for x in pair])
    own = lives.where(any_wrong).select(
        "partition",
        "at",
        "queue_number",
        "message",
        named[step].alias("did"),
        F.explode(F.filter(checks, lambda check: check.isNotNull())).alias("found"),
    )
    if has_ends:
        own = own.unionByName(_after_purges(lives))
    return own.select(
        "partition",
        "at",
        "found.type",
        "queue_number",
        "message",
        F.concat("did", F.lit(": "), "found.words").alias("words"),
    )


def _after_purges(lives: DataFrame) -> DataFrame:
    """A purge stands between two steps, so what came after it is told from the step before."""
    named = F.create_map(*[F.lit(x) for pair in STEPS.items() for x in pair])
    return lives.where("purged_at is not null and next_at is not null").select(
        "partition",
        F.col("next_at").alias("at"),
        "queue_number",
        "message",
        named[F.col("next")].alias("did"),
        F.struct(
            F.when(F.col("next") == LEASED, "delivered_after_end")
            .when(_has_ended(F.col("next")), "double_end")
            .otherwise("event_after_end")
            .alias("type"),
            F.lit("it had been purged").alias("words"),
        ).alias("found"),
    )


def _after(previous: Column) -> Column:
    named = F.create_map(*[F.lit(x) for pair in STEPS.items() for x in pair])
    return F.concat(F.lit("it had been "), named[previous])


FATES = (
    "acked expired shed rejected max_receives deleted retention purged queue_deleted moved redriven dead waiting "
    "delayed leased"
).split()


def fate(now_ms: Column) -> Column:
    """What has become of a message, told from the last step of its life."""
    step, reason = F.col("step"), F.col("reason")
    return (
        F.when(step == ACKED, "acked")
        .when((step == MOVED) & (reason == "redriven"), "redriven")
        .when(step == MOVED, "moved")
        .when((step == REMOVED) & (reason == "overflow"), "shed")
        .when(step == REMOVED, reason)
        .when(F.col("purged_at").isNotNull(), "purged")
        .when(F.col("ended_at").isNotNull(), "queue_deleted")
        .when(step == DEAD, "dead")
        .when(_is_held(step), "leased")
        .when(F.col("visible_ms") > now_ms, "delayed")
        .otherwise("waiting")
    )


def fates(lives: DataFrame, now_ms: Column) -> DataFrame:
    """Per queue number: how many messages began there and how, and what has become of all it had."""

    def count(condition: Column | str) -> Column:
        return F.count_if(F.expr(condition) if isinstance(condition, str) else condition)

    is_first = F.col("previous").isNull()
    told = lives.withColumn("fate", F.when(F.col("next").isNull(), fate(now_ms)))
    return told.groupBy("partition", "queue_number").agg(
        count(F.col("step") == PUBLISHED).alias("published"),
        count(F.col("step") == MOVED_IN).alias("moved_in"),
        count(F.col("step") == COPIED_IN).alias("copied_in"),
        count(is_first & (F.col("step") > COPIED_IN)).alias("from_before"),
        *[count(F.col("fate") == name).alias(name) for name in FATES],
    )
