"""What writing from Spark does on its own side: options and columns, rows as messages, staging and committing against
a real server. No JVM: the writers are plain Python, called here as Spark calls them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from laneway.client import Client
from laneway.errors import InvalidInput, PipelineError
from laneway.pipeline.messages import COLUMNS, WRITE_OPTIONS, MessageChunks, WriteOptions, check_columns, write_options
from laneway.pipeline.writing import Staged, stream_writer, writer
from tests.rest.serving import Serving

URL = "http://127.0.0.1:1"
BODY = t.StructType([t.StructField("body", t.BinaryType())])


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("writing") / "data") as serving:
        yield serving


@pytest.fixture
def client(serving: Serving) -> Iterator[Client]:
    with Client(serving.url) as client:
        yield client


@pytest.fixture
def queue(client: Client, request: pytest.FixtureRequest) -> str:
    client.put_queue(request.node.name)
    return str(request.node.name)


def rows(*bodies: bytes, **columns: Any) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"body": list(bodies), **columns})


def payloads(client: Client, queue: str) -> list[object]:
    return [message.payload for message in client.receive(queue, 1000)]


# --- options and columns


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({}, "url", "say where to write"),
        ({"url": URL, "colour": "red"}, "colour", "no option 'colour'"),
        ({"url": URL, "queue": "q", "exchange": "x"}, "exchange", "one of the two"),
        ({"url": URL, "queue": "q", "routingKey": "k"}, "routingKey", "for an exchange"),
        ({"url": URL, "token": "t", "user": "u"}, "token", "not both"),
        ({"url": URL, "unrouted": "keep"}, "unrouted", "fail or ignore"),
        ({"url": URL, "batchId": "-1"}, "batchId", "from 0 on"),
        ({"url": URL, "batchId": "one"}, "batchId", "from 0 on"),
        ({"url": URL, "chunkBytes": "0"}, "chunkBytes", "from 1 on"),
        ({"url": URL, "retrySeconds": "soon"}, "retrySeconds", "seconds"),
        ({"url": URL, "retrySeconds": "nan"}, "retrySeconds", "seconds"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        write_options(options)
    assert refused.value.field == field


def test_options_are_known_in_any_case_and_what_spark_adds_is_let_pass() -> None:
    given = {"URL": URL, "batchid": "7", "routingkey": "k", "EXCHANGE": "x", "checkpointLocation": "/c", "token": "lw"}
    assert write_options(given) == WriteOptions(URL, token="lw", batch=7, exchange="x", routing_key="k")


@pytest.mark.parametrize(
    ("schema", "field", "words"),
    [
        ("queue string", "body", "needs a column 'body'"),
        ("body int", "body", "is binary or string, not int"),
        ("body binary, prioritty int", "prioritty", r"no column 'prioritty' \(is priority meant\?\)"),
        ("body binary, message_id string", "message_id", "into its body or its attributes"),
        ("body binary, priority string", "priority", "a whole number, not string"),
        ("body binary, attributes map<string,int>", "attributes", "map<string,string>, not map<string,int>"),
        ("body binary, attributes string", "attributes", "map<string,string>, not string"),
        ("body binary, key binary", "key", "string, not binary"),
        ("body binary, delay_seconds timestamp", "delay_seconds", "a number, not timestamp"),
        ("body binary, priority int", "queue", "say where messages go"),
    ],
)
def test_wrong_columns_are_named_before_anything_is_written(schema: str, field: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        check_columns(_schema(schema), WriteOptions(URL))
    assert refused.value.field == field


def _schema(ddl: str) -> t.StructType:
    """What Spark would make of this, without asking it."""
    kinds: dict[str, t.DataType] = {
        "string": t.StringType(),
        "int": t.IntegerType(),
        "binary": t.BinaryType(),
        "timestamp": t.TimestampType(),
        "map<string,int>": t.MapType(t.StringType(), t.IntegerType()),
    }
    return t.StructType([t.StructField(*(name, kinds[kind])) for name, kind in (c.split() for c in ddl.split(", "))])


def test_every_column_there_is_is_taken() -> None:
    kinds: dict[str, t.DataType] = {
        "body": t.StringType(),
        "priority": t.ByteType(),
        "attributes": t.MapType(t.StringType(), t.StringType()),
        "delay_seconds": t.DecimalType(10, 3),
        "ttl_seconds": t.LongType(),
    }
    schema = t.StructType([t.StructField(name, kinds.get(name, t.StringType())) for name in COLUMNS])
    check_columns(schema, WriteOptions(URL))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"producer": "p"}, "give producer and batchId"),
        ({"batchId": "1"}, "give producer and batchId"),
    ],
)
def test_a_batch_has_both_a_producer_and_a_number_or_neither(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        writer({"url": URL, "queue": "q", **options}, BODY, False)


def test_a_stream_has_a_producer_and_no_number() -> None:
    with pytest.raises(InvalidInput, match="a stream needs option"):
        stream_writer({"url": URL, "queue": "q"}, BODY, False)
    with pytest.raises(InvalidInput, match="numbered by Spark"):
        stream_writer({"url": URL, "queue": "q", "producer": "p", "batchId": "1"}, BODY, False)


@pytest.mark.parametrize("make", [writer, stream_writer])
def test_nothing_is_overwritten(make: Any) -> None:
    with pytest.raises(InvalidInput, match="mode append"):
        make({"url": URL, "queue": "q", "producer": "p"}, BODY, True)


# --- rows as messages


def made(options: WriteOptions, **columns: Any) -> list[dict[str, Any]]:
    return list(MessageChunks(options).rows(pa.RecordBatch.from_pydict(columns)))


def test_columns_become_fields_and_what_is_null_is_left_out() -> None:
    attributes = pa.array([[("a", "1"), ("b", None)], None], pa.map_(pa.string(), pa.string()))
    first, second = made(
        WriteOptions(URL, queue="q"),
        body=["text", None or b"".decode()],
        priority=[7, None],
        attributes=attributes,
        ttl_seconds=[Decimal("1.500"), None],
        key=["k", None],
    )
    assert first == {
        "body": b"text",
        "content_type": "text/plain",
        "priority": 7,
        "attributes": {"a": "1"},
        "ttl_seconds": 1.5,
        "key": "k",
        "queue": "q",
        "vhost": "/",
    }
    assert second == {"body": b"", "content_type": "text/plain", "queue": "q", "vhost": "/"}


def test_a_row_goes_where_its_columns_say_and_otherwise_where_the_options_say() -> None:
    sent = made(
        WriteOptions(URL, exchange="x", routing_key="usual", vhost="v"),
        body=[b"1", b"2", b"3", b"4"],
        queue=["q", None, None, None],
        exchange=[None, "y", None, None],
        routing_key=["k", "k", None, "k"],
        vhost=[None, "w", None, None],
    )
    wheres = [{k: m.get(k) for k in ("queue", "exchange", "routing_key", "vhost")} for m in sent]
    assert wheres == [
        {"queue": "q", "exchange": None, "routing_key": None, "vhost": "v"},
        {"queue": None, "exchange": "y", "routing_key": "k", "vhost": "w"},
        {"queue": None, "exchange": "x", "routing_key": "usual", "vhost": "v"},
        {"queue": None, "exchange": "x", "routing_key": "k", "vhost": "v"},
    ]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": [None], "queue": ["q"]}, "no body"),
        ({"body": [b""], "queue": ["q"], "exchange": ["x"]}, "both queue 'q' and exchange 'x'"),
        ({"body": [b""], "queue": pa.array([None], pa.string())}, "neither a queue nor an exchange"),
    ],
)
def test_a_row_that_is_no_message_is_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        made(WriteOptions(URL), **columns)


def test_content_types_come_from_the_row_then_the_option_then_the_kind_of_body() -> None:
    types = [
        m.get("content_type") for m in made(WriteOptions(URL, queue="q"), body=["x", "x"], content_type=["a", None])
    ]
    assert types == ["a", "text/plain"]
    chosen = WriteOptions(URL, queue="q", content_type="application/json")
    assert [m["content_type"] for m in made(chosen, body=[b"1", b"2"], content_type=["a", None])] == [
        "a",
        "application/json",
    ]
    assert "content_type" not in made(WriteOptions(URL, queue="q"), body=[b"1"])[0]


def test_chunks_are_about_as_large_as_asked_and_never_empty() -> None:
    batches = [*rows(*[b"x" * 100] * 5), *rows(), *rows(b"y" * 1000)]
    chunks = list(MessageChunks(WriteOptions(URL, queue="q", chunk_bytes=400)).chunks(iter(batches)))
    assert [len(chunk) for chunk in chunks] == [3, 3]
    assert list(MessageChunks(WriteOptions(URL, queue="q")).chunks(rows())) == []


# --- as Spark calls them


def test_a_batch_is_published_in_the_order_of_its_partitions_when_it_is_committed(
    serving: Serving, client: Client, queue: str
) -> None:
    options = {"url": serving.url, "queue": queue, "producer": queue, "batchId": "3", "chunkBytes": "1"}
    made = writer(options, BODY, False)
    first, second = made.write(rows(b"1", b"2")), made.write(rows(b"3"))
    second.partition = 1
    assert len(first.parts) == 2 and payloads(client, queue) == []
    committing = pickle.loads(pickle.dumps(made))  # Spark commits with a copy, in another process
    committing.commit([second, first])
    committing.commit([second, first])
    assert payloads(client, queue) == [b"1", b"2", b"3"]
    again = writer(options, BODY, False)
    again.commit([again.write(rows(b"1", b"2", b"3"))])
    assert payloads(client, queue) == []
    late = writer({**options, "batchId": "2"}, BODY, False)
    with pytest.raises(PipelineError, match="batch_fenced"):
        late.commit([late.write(rows(b"0"))])


def test_without_a_producer_each_batch_is_its_own_and_forgotten_after_a_day(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as serving, Client(serving.url) as client:
        client.put_queue("q")
        for body in (b"1", b"2"):
            made = writer({"url": serving.url, "queue": "q"}, BODY, False)
            made.commit([made.write(rows(body))])
        assert payloads(client, "q") == [b"1", b"2"]
        assert len(client.producers()) == 2
        serving.ahead_ms = 25 * 3_600_000
        assert client.producers() == []


def test_a_stream_commits_what_its_tasks_staged_from_a_writer_of_its_own(
    serving: Serving, client: Client, queue: str
) -> None:
    options = {"url": serving.url, "queue": queue, "producer": queue}
    for batch, body in enumerate((b"0", b"1")):
        tasks, driver = stream_writer(options, BODY, False), stream_writer(options, BODY, False)
        failed, staged = tasks.write(rows(b"of an attempt that failed")), tasks.write(rows(body))
        driver.commit([staged], batch)
        assert set(failed.parts).isdisjoint(staged.parts)
    stream_writer(options, BODY, False).commit([Staged("s", 0, [], 0)], 2)  # a batch without rows
    replayed = stream_writer(options, BODY, False)
    replayed.commit([replayed.write(rows(b"1"))], 2)
    with pytest.raises(PipelineError, match="batch_fenced"):
        replayed.commit([replayed.write(rows(b"1"))], 1)
    assert payloads(client, queue) == [b"0", b"1"]
    assert client.producer(queue)["last_batch"] == 2


def test_what_is_aborted_is_given_up(serving: Serving, client: Client, queue: str) -> None:
    batch = writer({"url": serving.url, "queue": queue, "producer": queue, "batchId": "1"}, BODY, False)
    stream = stream_writer({"url": serving.url, "queue": queue, "producer": f"{queue}-s"}, BODY, False)
    batch.write(rows(b"1"))
    batch.abort([None, None])
    message = stream.write(rows(b"1"))
    assert client.producer(f"{queue}-s")["staged"]["messages"] == 1
    stream_writer({"url": serving.url, "queue": queue, "producer": f"{queue}-s"}, BODY, False).abort([None, message], 1)
    assert {queue, f"{queue}-s"}.isdisjoint(p["producer"] for p in client.producers())
    assert payloads(client, queue) == []


def test_what_the_server_refuses_is_told_with_its_words_and_not_tried_again(serving: Serving) -> None:
    made = writer({"url": serving.url, "queue": "no such queue"}, BODY, False)
    with pytest.raises(PipelineError, match=r"queue_not_found: message 0: there is no queue 'no such queue'"):
        made.write(rows(b"1"))


def test_a_server_that_is_away_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    made = writer({"url": URL, "queue": "q", "retrySeconds": "0.3"}, BODY, False)
    with pytest.raises(PipelineError, match=r"http://127\.0\.0\.1:1: unreachable"):
        made.write(rows(b"1"))
    made.abort([None])  # nothing to be done about it, and nothing to fail with


def test_a_full_queue_is_waited_for(serving: Serving, client: Client, queue: str) -> None:
    client.put_queue(queue, max_messages=1, overflow="reject")
    client.publish(queue, "there")
    made = writer({"url": serving.url, "queue": queue, "retrySeconds": "20"}, BODY, False)
    staged = made.write(rows(b"1"))
    tries = []
    commit = Client.commit_batch

    def emptied_after_the_first_try(self: Client, *arguments: Any, **options: Any) -> Any:
        if tries:
            client.purge(queue)
        tries.append(1)
        return commit(self, *arguments, **options)

    Client.commit_batch = emptied_after_the_first_try  # type: ignore[method-assign]
    try:
        made.commit([staged])
    finally:
        Client.commit_batch = commit  # type: ignore[method-assign]
    assert len(tries) == 2 and payloads(client, queue) == [b"1"]


def test_rows_that_reach_no_queue_fail_their_batch_or_are_counted_in_a_warning(
    serving: Serving, client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    def written(**options: str) -> None:
        made = writer({"url": serving.url, "exchange": "amq.default", **options}, BODY, False)
        made.commit([made.write(rows(b"1", b"2", b"3", routing_key=[queue, "nowhere", "nor here"]))])

    with pytest.raises(PipelineError, match=r"unroutable: 2 of 3 messages reach no queue, .* routing key 'nowhere'"):
        written()
    assert payloads(client, queue) == [] and not caplog.records
    written(unrouted="ignore")
    assert payloads(client, queue) == [b"1"]
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        "2 messages reached no queue and are gone"
    ]


def test_every_option_and_column_is_on_the_page() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "pipeline.md").read_text()
    told = page.split("\n## Writing from Spark\n", 1)[1].split("\n## ", 1)[0]
    assert [name for name in (*WRITE_OPTIONS, *COLUMNS) if f"`{name}`" not in told] == []
