"""The events table: one row per message that an event concerns, in journal order. Its columns stand here and nowhere
else; the decoder, the data source, the archive and the documents all take them from EVENTS.

(partition, position, index) names a row and is the order of history.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from laneway.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    name: str
    type: str  # as Spark's DDL writes it
    doc: str
    is_default: bool = True  # False: only there when asked for, because it is big


EVENTS: tuple[Column, ...] = (
    Column("partition", "int", "of the server; of several journals, the number of the one"),
    Column("position", "bigint", "of the commit that the event is part of"),
    Column("index", "int", "of the row inside its commit"),
    Column("time", "timestamp", "when it happened"),
    Column("kind", "string", "what happened: published, leased, acked, …"),
    Column("vhost", "string", "of the queue"),
    Column("queue", "string", "its name, as last known; null for events of no queue"),
    Column("queue_number", "int", "never reused, while a name may be; null for events of no queue"),
    Column("tier", "string", "critical, normal or low, of the queue as last known"),
    Column(
        "message",
        "bigint",
        "its number in the partition, which changes when it is moved or copied; null for events of no message; "
        "queue_purged: the first number that was kept; received: of the last entry that was done",
    ),
    Column("message_id", "string", "as the API shows it; stays the same wherever the message goes"),
    Column("priority", "int", "published, arrived; moved and copied if it was published with another one"),
    Column("tenant", "string", "published, arrived; null when empty, as all texts of a message"),
    Column("key", "string", "published, arrived"),
    Column("group", "string", "published, arrived"),
    Column("dedup_id", "string", "published, arrived"),
    Column("correlation_id", "string", "published, arrived"),
    Column("content_type", "string", "published, arrived"),
    Column("exchange", "string", "published, arrived; moved and copied: that led to the target"),
    Column("routing_key", "string", "published, arrived; moved and copied: that they were given for it"),
    Column("size", "int", "bytes of the message as it is stored; published, arrived"),
    Column("lease", "bigint", "leased, acked, reserved, resumed"),
    Column("consumer", "string", "leased"),
    Column("receive_count", "int", "how often the message was leased by now; leased"),
    Column(
        "reason", "string", "why it was released, dead-lettered, moved, copied, removed, or why it arrived, resumed"
    ),
    Column("detail", "string", "the same in words; dead_lettered, moved, copied, removed"),
    Column("enqueued_at", "timestamp", "when the message was first published; every row about a message"),
    Column("visible_at", "timestamp", "published, arrived, released, resumed: from when on it can be leased"),
    Column("deadline", "timestamp", "leased, extended, reserved, resumed: until when"),
    Column("expires_at", "timestamp", "published with a time to live: its end"),
    Column("target_vhost", "string", "moved, copied: of the queue it went to, or is on its way to"),
    Column("target_queue", "string", "moved, copied"),
    Column("target_partition", "int", "moved, copied: of that queue; if it is another one, this row is its departure"),
    Column("target_queue_number", "int", "moved, copied: as queue_number, of that queue; departed: of the outbox"),
    Column("target_message", "bigint", "moved, copied: its number there; departed: in the outbox"),
    Column("sender", "int", "arrived, received: the partition that it came from"),
    Column("body", "binary", "published, arrived; only when asked for", False),
    Column(
        "attributes",
        "map<string,string>",
        "published, arrived; texts as they are, bytes in base64, anything else as JSON; only when asked for",
        False,
    ),
)

_BY_NAME = {column.name: column for column in EVENTS}


def column(name: str) -> Column:
    """The column of this name; InvalidInput names those there are."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise InvalidInput(
            f"{name!r} is no column of events; there are {', '.join(_BY_NAME)}", field="schema"
        ) from None


def columns(*, body: bool = False, attributes: bool = False) -> list[Column]:
    asked = {"body": body, "attributes": attributes}
    return [one for one in EVENTS if one.is_default or asked[one.name]]


def spark_schema(*, body: bool = False, attributes: bool = False) -> StructType:
    """The table as Spark sees it; what the columns mean comes along as their comments."""
    from pyspark.sql.types import (
        BinaryType,
        DataType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    types: dict[str, DataType] = {
        "int": IntegerType(),
        "bigint": LongType(),
        "string": StringType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    wanted = columns(body=body, attributes=attributes)
    return StructType([StructField(one.name, types[one.type], metadata={"comment": one.doc}) for one in wanted])


def arrow_schema(names: Iterable[str] | None = None, *, body: bool = False, attributes: bool = False) -> pa.Schema:
    """The same in Arrow, as Spark wants its batches: all columns, or those named, in that order."""
    import pyarrow as pa

    types = {
        "int": pa.int32(),
        "bigint": pa.int64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    wanted = columns(body=body, attributes=attributes) if names is None else [column(name) for name in names]
    return pa.schema([pa.field(one.name, types[one.type]) for one in wanted])
