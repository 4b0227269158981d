"""Rows as messages: which options and columns say what of them, checked before anything is written."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t

from laneway.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

#: Every option for writing, with what it does.
WRITE_OPTIONS = {
    "url": "the address of the server",
    "user": "who writes, with `password`",
    "password": "of `user`",
    "token": "a key instead of a user and a password",
    "producer": "the name under which the server remembers the last batch; needed for streams",
    "batchId": "the number of this batch, above those before it (batch)",
    "queue": "where messages go that name nothing else in their columns",
    "exchange": "the same through an exchange",
    "routingKey": "for that exchange, where the column `routing_key` says nothing",
    "unrouted": "fail or ignore: what becomes of a batch with rows that an exchange leads to no queue",
    "vhost": "the virtual host of these; / unless said",
    "contentType": "of bodies whose column `content_type` says nothing; text/plain for strings otherwise",
    "chunkBytes": "about how large the parts are that a task stages; 4 MiB",
    "retrySeconds": "how long a server that cannot be reached or is full is tried again; 60",
    "timeoutSeconds": "how long one answer is waited for; 60",
}
_ALSO = ("checkpointLocation", "queryName", "outputMode")  # Spark's own, which it hands to the sink as well
_SPELLED = {name.lower(): name for name in (*WRITE_OPTIONS, *_ALSO)}

DEFAULT_CHUNK_BYTES = 4 << 20
MAX_CHUNK_MESSAGES = 5_000  # the server checks a part in one go
OVERHEAD_BYTES = 64  # of a message beside its body, about

_WHOLE = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_TEXT = (t.StringType,)
_SECONDS = (*_WHOLE, t.FloatType, t.DoubleType, t.DecimalType)
_TEXTS = (
    "queue",
    "exchange",
    "routing_key",
    "vhost",
    "key",
    "group",
    "tenant",
    "dedup_id",
    "correlation_id",
    "content_type",
)

#: Every column a row may have, with the types it may be of and how these are called.
COLUMNS: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "body": ((t.BinaryType, t.StringType), "binary or string"),
    "priority": (_WHOLE, "a whole number"),
    "attributes": ((t.MapType,), "map<string,string>"),
    **dict.fromkeys(_TEXTS, (_TEXT, "string")),
    "delay_seconds": (_SECONDS, "a number"),
    "ttl_seconds": (_SECONDS, "a number"),
}


@dataclass(frozen=True)
class WriteOptions:
    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    producer: str | None = None
    batch: int | None = None
    queue: str | None = None
    exchange: str | None = None
    routing_key: str = ""
    unrouted: str = "fail"
    vhost: str = "/"
    content_type: str | None = None
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    retry_s: float = 60.0
    timeout_s: float = 60.0


def write_options(given: Mapping[str, str]) -> WriteOptions:
    named: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in _SPELLED:
            raise InvalidInput(
                f"there is no option {name!r} for writing; there are {', '.join(WRITE_OPTIONS)}", field=name
            )
        named[_SPELLED[name.lower()]] = value
    if "url" not in named:
        raise InvalidInput("say where to write: option('url', 'http://host:8080')", field="url")
    if "token" in named and "user" in named:
        raise InvalidInput("give a token, or a user and a password, not both", field="token")
    if "queue" in named and "exchange" in named:
        raise InvalidInput("a message goes to a queue or through an exchange: give one of the two", field="exchange")
    if "routingKey" in named and "queue" in named:
        raise InvalidInput("a routing key is for an exchange, and option queue names a queue", field="routingKey")
    return WriteOptions(
        url=named["url"],
        user=named.get("user"),
        password=named.get("password"),
        token=named.get("token"),
        producer=named.get("producer"),
        batch=_number(named, "batchId", lowest=0),
        queue=named.get("queue"),
        exchange=named.get("exchange"),
        routing_key=named.get("routingKey", ""),
        unrouted=_unrouted(named),
        vhost=named.get("vhost", "/"),
        content_type=named.get("contentType"),
        chunk_bytes=_number(named, "chunkBytes", lowest=1) or DEFAULT_CHUNK_BYTES,
        retry_s=_seconds(named, "retrySeconds", 60.0),
        timeout_s=_seconds(named, "timeoutSeconds", 60.0),
    )


def _number(named: Mapping[str, str], name: str, *, lowest: int) -> int | None:
    text = named.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and lowest <= int(text) < 1 << 63):
        raise InvalidInput(f"{name} is a whole number from {lowest} on, not {text!r}", field=name)
    return int(text)


def _unrouted(named: Mapping[str, str]) -> str:
    text = named.get("unrouted", "fail").lower()
    if text not in ("fail", "ignore"):
        raise InvalidInput(f"unrouted is fail or ignore, not {text!r}", field="unrouted")
    return text


def _seconds(named: Mapping[str, str], name: str, default: float) -> float:
    text = named.get(name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise InvalidInput(f"{name} is a number of seconds from 0 to 86400, not {text!r}", field=name)
    return seconds


def check_columns(schema: t.StructType, options: WriteOptions) -> None:
    """Raise what is wrong with a table that is to be written, naming the column."""
    seen: set[str] = set()
    for field in schema.fields:
        name = field.name
        if name in seen:
            raise InvalidInput(f"there are two columns {name!r}", field=name)
        seen.add(name)
        if name not in COLUMNS:
            close = difflib.get_close_matches(name.lower(), list(COLUMNS), n=1)
            hint = f" (is {close[0]} meant?)" if close else ""
            raise InvalidInput(
                f"a message has no column {name!r}{hint}; there are {', '.join(COLUMNS)}; what else a message is to "
                "carry goes into its body or its attributes",
                field=name,
            )
        kinds, words = COLUMNS[name]
        is_right = isinstance(field.dataType, kinds)
        if isinstance(field.dataType, t.MapType):
            held = (field.dataType.keyType, field.dataType.valueType)
            is_right = is_right and all(isinstance(kind, t.StringType) for kind in held)
        if not is_right:
            raise InvalidInput(f"column {name!r} is {words}, not {field.dataType.simpleString()}", field=name)
    if "body" not in seen:
        raise InvalidInput(
            "a message needs a column 'body', binary or string: to_json(struct(…)) makes one", field="body"
        )
    if options.queue is None and options.exchange is None and not seen & {"queue", "exchange"}:
        raise InvalidInput("say where messages go: option or column queue, or exchange", field="queue")


class MessageChunks:
    """Turns Arrow batches into messages as the server takes them."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def chunks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
        """Lists of messages, each about as large as a part is to be and never empty."""
        chunk: list[dict[str, Any]] = []
        size = 0
        for batch in batches:
            for message in self.rows(batch):
                chunk.append(message)
                size += len(message["body"]) + OVERHEAD_BYTES
                if size >= self._options.chunk_bytes or len(chunk) >= MAX_CHUNK_MESSAGES:
                    yield chunk
                    chunk, size = [], 0
        if chunk:
            yield chunk

    def rows(self, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        names = batch.schema.names
        columns = [column.to_pylist() for column in batch.columns]
        for values in zip(*columns, strict=True):
            row = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            yield self._message(row)

    def _message(self, row: dict[str, Any]) -> dict[str, Any]:
        body = row.get("body")
        if body is None:
            raise InvalidInput("a row has no body; filter it out, or give it an empty one", field="body")
        options = self._options
        if "content_type" not in row:
            if options.content_type is not None:
                row["content_type"] = options.content_type
            elif isinstance(body, str):
                row["content_type"] = "text/plain"
        if isinstance(body, str):
            row["body"] = body.encode()
        self._address(row)
        if "attributes" in row:
            row["attributes"] = {name: value for name, value in row["attributes"] if value is not None}
        for name in ("delay_seconds", "ttl_seconds"):
            if name in row:
                row[name] = float(row[name])
        return row

    def _address(self, row: dict[str, Any]) -> None:
        options = self._options
        if "queue" in row and "exchange" in row:
            raise InvalidInput(
                f"a row names both queue {row['queue']!r} and exchange {row['exchange']!r}", field="exchange"
            )
        if "queue" not in row and "exchange" not in row:
            if options.queue is not None:
                row["queue"] = options.queue
            elif options.exchange is not None:
                row["exchange"] = options.exchange
            else:
                raise InvalidInput("a row names neither a queue nor an exchange, nor do the options", field="queue")
        if "exchange" in row:
            row.setdefault("routing_key", options.routing_key)
        else:
            row.pop("routing_key", None)  # it says something of those rows alone that go through an exchange
        row.setdefault("vhost", options.vhost)
