"""Events tables from short rows written by hand: only what matters to a test is named, the rest is filled in."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from laneway.pipeline.schema import EVENTS, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Noon of some day: the second 0 of the short rows.
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)

TIMES = [column.name for column in EVENTS if column.type == "timestamp"]

Row = dict[str, Any]


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def row(time: float, kind: str, message: int | None = None, **given: Any) -> Row:
    """One short row: row(3, "published", 7, priority=5)."""
    return {"time": time, "kind": kind, "message": message, **given}


def filled(rows: Iterable[Row]) -> list[Row]:
    """The rows with all columns. Times may be seconds after noon. Each row is a commit of its own unless it says which;
    queue orders in /, tier normal; a message's id is m<number>; when it was published is known from its row."""
    made: list[Row] = []
    enqueued: dict[str, datetime] = {}
    for number, short in enumerate(rows, 1):
        unknown = short.keys() - {column.name for column in EVENTS}
        assert not unknown, f"no columns of events: {unknown}"
        whole: Row = {column.name: None for column in EVENTS}
        whole |= {"partition": 0, "position": number, "index": 0, "vhost": "/", "queue": "orders", "queue_number": 1}
        whole |= {"tier": "normal", **short}
        for name in TIMES:
            if isinstance(whole[name], int | float):
                whole[name] = at(whole[name])
        if whole["message"] is not None and whole["message_id"] is None:
            whole["message_id"] = f"m{whole['message']}"
        if whole["kind"] in ("published", "released") and whole["visible_at"] is None:
            whole["visible_at"] = whole["time"]
        if whole["kind"] == "published":
            whole["priority"] = 5 if whole["priority"] is None else whole["priority"]
            whole["size"] = 100 if whole["size"] is None else whole["size"]
            enqueued.setdefault(whole["message_id"], whole["time"])
        if whole["enqueued_at"] is None:
            whole["enqueued_at"] = enqueued.get(whole["message_id"])
        made.append(whole)
    return made


def arrow(rows: Iterable[Row], *, body: bool = False, attributes: bool = False) -> pa.Table:
    schema = arrow_schema(body=body, attributes=attributes)
    return pa.Table.from_pylist([{name: one[name] for name in schema.names} for one in filled(rows)], schema=schema)


def frame(spark: SparkSession, rows: Iterable[Row], *, body: bool = False, attributes: bool = False) -> DataFrame:
    return spark.createDataFrame(arrow(rows, body=body, attributes=attributes))
