"""redrive: dead letters chosen with SQL, back to where they came from. First it only shows what it would do.

Chosen are letters that still wait, from the table that the job deadletters makes of the same history
(deadletters_messages, docs/pipeline.md). The server moves them, by their ids, and leaves out what has gone meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from laneway.client import Client
from laneway.errors import InvalidInput
from laneway.pipeline.conditions import matching
from laneway.pipeline.jobs.deadletters import COLUMNS, KINDS, letters
from laneway.pipeline.runner import Options, Result
from laneway.pipeline.server import client, of_those_there

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLES = 5
GROUP = ("holder_vhost", "holder_queue", "queue", "reason", "signature")


def chosen(events: DataFrame, where: str) -> DataFrame:
    """The letters that wait and that a condition in SQL holds for, oldest first."""
    waiting = letters(events).where("state = 'waiting'")
    return matching(waiting, where).orderBy("partition", "position", "index")


def groups(chosen: DataFrame) -> DataFrame:
    """How many of them there are by queue, reason and error, with the ids of some."""
    return (
        chosen.groupBy(*GROUP)
        .agg(
            F.count("*").alias("letters"),
            F.min("died_at").alias("first_died_at"),
            F.max("died_at").alias("last_died_at"),
            F.slice(F.array_sort(F.collect_list("message_id")), 1, SAMPLES).alias("samples"),
        )
        .orderBy(F.desc("letters"), *GROUP)
    )


def run(spark: SparkSession, options: Options) -> Result:
    if not options["where"]:
        raise InvalidInput("say which dead letters: --where with a condition in SQL, or true for all", field="where")
    events = options.events(spark, *COLUMNS, "attributes", kinds=KINDS, outboxes=True)
    found = chosen(events, options["where"]).persist()
    try:
        shown = groups(found)
        rows = [tuple(row.values()) for row in shown.toArrow().to_pylist()]
        count = sum(row[shown.columns.index("letters")] for row in rows)
        if not count:
            return Result(notes=["no dead letter that waits is such a one"], facts={"matched": 0, "is_dry_run": True})
        if not options["yes"]:
            notes = [f"{count} dead letters would be redriven; --yes does it"]
            return Result(shown.columns, rows, notes, facts={"matched": count, "is_dry_run": True})
        tasks = list(_redrive(options, found.select("holder_vhost", "holder_queue", "message_id")))
        there = sum(task["letters"] for task in tasks)
        notes = [f"{there} dead letters are being redriven: {', '.join(task['task_id'] for task in tasks)}"]
        if there < count:
            notes.append(f"{count - there} had gone meanwhile")
        return Result(shown.columns, rows, notes, facts={"matched": count, "is_dry_run": False, "tasks": tasks})
    finally:
        found.unpersist()


def _redrive(options: Options, found: DataFrame) -> Iterator[dict[str, Any]]:
    """Begin a task on the server for each queue that holds some, a thousand letters at a time; their ids."""
    by_queue: dict[tuple[str, str], list[str]] = {}
    for row in found.toLocalIterator():
        by_queue.setdefault((row["holder_vhost"], row["holder_queue"]), []).append(row["message_id"])
    for (vhost, queue), ids in by_queue.items():
        with client(options, vhost) as server:

            def ask(some: Sequence[str], server: Client = server, queue: str = queue) -> dict[str, Any]:
                given = {"target": options["to"], "max_per_second": options["max_per_second"]}
                return {**server.redrive(queue, message_ids=some, **given), "message_count": len(some)}

            for task in of_those_there(ids, ask):
                yield {"task_id": task["task_id"], "vhost": vhost, "queue": queue, "letters": task["message_count"]}
