"""replay: messages of the lake, chosen with SQL, published again: each once, however often the run is begun anew.

What is chosen is written down first, in the order of history (warehouse/.replays/NAME). Then it is published batch by
batch through the server's batches that are published exactly once, under the name of the run: the server knows the last
batch it has committed, so a run that died goes on behind it. A run that has finished says so, and does nothing more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from laneway.client import Client, ClientError
from laneway.errors import InvalidInput
from laneway.pipeline.conditions import matching
from laneway.pipeline.runner import Options, Result
from laneway.pipeline.server import client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_MESSAGES = 500
BATCH_BYTES = 8 << 20
#: What is given to the new message as the old one had it. A dedup id is not: a replay is meant to come again.
CARRIED = ("priority", "key", "group", "tenant", "correlation_id", "content_type")


def chosen(events: DataFrame, where: str) -> DataFrame:
    """Messages as they were published, that a condition in SQL holds for and whose body is in the lake, in the order of
    history."""
    return (
        matching(events.where("kind = 'published' and body is not null and vhost <> ''"), where)
        .select("vhost", "queue", "message_id", "body", "attributes", *CARRIED, "partition", "position", "index")
        .orderBy("partition", "position", "index")
    )


def run(spark: SparkSession, options: Options) -> Result:
    name = options["name"] or options.run_id
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise InvalidInput(f"{name!r} is no name of a run: letters, digits, dots, hyphens, underscores", field="name")
    folder = options.warehouse.path / ".replays" / name
    times = (typed or str(at) for typed, at in zip(options.typed, (options.since, options.until), strict=True))
    since, until = times  # as they were typed: 2h is another time when the run is begun again
    asked = {"where": options["where"], "to": options["to"], "since": since, "until": until}
    plan = _plan(spark, options, folder, asked)
    begun = monotonic()
    published = 0
    with client(options) as server:
        if not (folder / "done").exists():
            published = _publish(server, name, options, folder, plan["batch_messages"])
            (folder / "done").touch()
            _forget(server, name)
    took = monotonic() - begun
    facts = {"run": name, "chosen": plan["chosen"], "published": published, "seconds": round(took, 3)}
    notes = (
        [] if published else ["this run had published everything already"] if plan["chosen"] else ["nothing is such"]
    )
    return Result(list(facts), [list(facts.values())], notes, facts=facts)


def _plan(spark: SparkSession, options: Options, folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """What is to be published, written down once."""
    note = folder / "plan.json"
    if note.exists():
        plan: dict[str, Any] = json.loads(note.read_text())
        if plan["asked"] != asked:
            raise InvalidInput(
                f"the run {folder.name!r} was begun with other options ({plan['asked']}): give another --name",
                field="name",
            )
        return plan
    events = options.warehouse.read_events(spark)
    if options.since is not None:
        events = events.where(F.col("time") >= F.lit(options.since))
    if options.until is not None:
        events = events.where(F.col("time") < F.lit(options.until))
    folder.mkdir(parents=True, exist_ok=True)
    chosen(events, options["where"]).write.mode("overwrite").parquet(str(folder / "messages"))
    rate = options["rate"]
    plan = {
        "asked": asked,
        "chosen": sum(len(one) for one in _messages(folder, BATCH_MESSAGES)),
        "batch_messages": BATCH_MESSAGES if rate is None else max(1, min(BATCH_MESSAGES, int(rate))),
    }
    written = folder / "plan.partial"
    written.write_text(json.dumps(plan))
    os.replace(written, note)
    return plan


def _messages(folder: Path, batch_messages: int) -> Iterator[list[dict[str, Any]]]:
    """The chosen messages, batch by batch: the same ones in every run."""
    import pyarrow.parquet

    batch: list[dict[str, Any]] = []
    size = 0
    for path in sorted((folder / "messages").glob("*.parquet")):
        for rows in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1_000):
            for one in rows.to_pylist(maps_as_pydicts="strict"):
                if batch and (len(batch) >= batch_messages or size + len(one["body"]) > BATCH_BYTES):
                    yield batch
                    batch, size = [], 0
                batch.append(one)
                size += len(one["body"])
    if batch:
        yield batch


def _publish(server: Client, name: str, options: Options, folder: Path, batch_messages: int) -> int:
    """Publish what was not published yet, no faster than was asked; how many messages."""
    producer = f"replay-{name}"
    last = _last_batch(server, producer)
    begun, published, rate = monotonic(), 0, options["rate"]
    for number, batch in enumerate(_messages(folder, batch_messages), 1):
        if number <= last:
            continue
        if rate is not None:
            sleep(max(0.0, begun + published / rate - monotonic()))
        stage = f"batch-{number}"
        server.stage_part(producer, stage, "0", [_message(one, options["to"]) for one in batch])
        server.commit_batch(producer, number, stage, ["0"])
        published += len(batch)
        options.say(f"replay: {published} messages")
    return published


def _message(one: dict[str, Any], to: str | None) -> dict[str, Any]:
    given = {name: one[name] for name in CARRIED if one[name] is not None}
    if to is not None:
        given.pop("priority", None)  # another queue may not take it
    return {
        "vhost": one["vhost"],
        "queue": to or one["queue"],
        "body": one["body"],
        **given,
        "attributes": one["attributes"] or {},
    }


def _last_batch(server: Client, producer: str) -> int:
    try:
        return int(server.producer(producer)["last_batch"] or 0)
    except ClientError as refused:
        if refused.code == "producer_not_found":
            return 0
        raise


def _forget(server: Client, name: str) -> None:
    """The server need not remember a run that has finished."""
    try:
        server.delete_producer(f"replay-{name}")
    except ClientError as refused:
        if refused.code != "producer_not_found":
            raise
