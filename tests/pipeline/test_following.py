"""Reading from a running server: what it lets out is what its folder holds, and cursors hold back what was not read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from laneway.errors import CursorLost, InvalidInput, PipelineError
from laneway.pipeline.datasource import BatchReader, StreamReader
from laneway.pipeline.jobs.archive import _hold
from laneway.pipeline.options import read_options
from laneway.pipeline.sources import FolderSource, ServerSource
from tests.pipeline.test_planning import chosen, followed, places, rows
from tests.rest.serving import Serving

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING = ("position", "index", "time", "kind", "queue", "tier", "message_id", "tenant", "body", "attributes")


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with Serving(tmp_path / "data") as server, server.client() as http:
        http.put("/queues/orders", json={"tier": "critical"})
        publish(http, 1)
        yield server


def publish(http: httpx.Client, turns: int, *, count: int = 10) -> None:
    """A few commits a turn: messages published, and some of them leased and acked."""
    for turn in range(turns):
        made = [{"payload": {"n": n}, "tenant": f"t{n % 2}", "attributes": {"turn": turn}} for n in range(count)]
        assert http.post("/queues/orders/messages", json=made).status_code == 201
        got = http.post("/queues/orders/dequeue", json={"max_messages": 5}).json()["messages"]
        acks = [{"receipt_handle": one["receipt_handle"]} for one in got]
        assert http.post("/queues/orders/ack", json=acks).status_code == 200


def address(serving: Serving) -> str:
    with serving.client() as http:
        return str(http.base_url).rstrip("/")


def reader_of(serving: Serving, **options: str) -> StreamReader:
    return StreamReader(read_options({"url": address(serving), **options}), chosen("position", "index", "partition"))


def cursor(serving: Serving, name: str = "c") -> dict[str, Any] | None:
    return ServerSource(address(serving)).cursors().get(name)


def test_a_server_shows_what_its_folder_holds(serving: Serving) -> None:
    with serving.client() as http:
        publish(http, 20)
    server, folder = ServerSource(address(serving)), FolderSource(str(serving.folder))
    end = server.end()
    assert end == folder.end()
    assert server.identity() == folder.identity()
    assert server.segments(end) == folder.segments(end)
    assert server.catalogue() == folder.catalogue()
    assert server.first_position() == folder.first_position() == 1
    place = server.place(3)
    assert place == folder.place(3)
    assert server.advance(place, end, 40) == folder.advance(place, end, 40)
    assert server.advance(place, server.place(4), 400) == server.place(4)
    assert server.epoch(1) == folder.epoch(1)
    for names in (EVERYTHING, ("time", "message")):
        found = []
        for where in ({"url": address(serving)}, {"path": str(serving.folder)}):
            reader = BatchReader(read_options({**where, "endPosition": str(end.position)}), chosen(*names))
            found.append(rows(reader, reader.partitions()))
        assert found[0] == found[1] and len(found[0]) > 300


def test_who_may_not_and_what_is_not_there_is_said(serving: Serving) -> None:
    with pytest.raises(PipelineError, match=r"/journal was answered with 401 unauthenticated"):
        ServerSource(address(serving), user="nobody", password="wrong").end()
    with pytest.raises(PipelineError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        ServerSource("127.0.0.1:9").end()
    with pytest.raises(InvalidInput, match="no commit"):
        ServerSource(address(serving)).place(10**6)


def test_a_cursor_follows_what_was_read_and_an_idle_server_is_left_in_peace(serving: Serving) -> None:
    reader = reader_of(serving, cursor="c")
    start = reader.initialOffset()
    held = cursor(serving)
    assert held is not None and held["position"] == start["position"] == 1
    with serving.client() as http:
        publish(http, 5)
    batches, end = followed(reader, start, ReadMaxRows(30))  # comes to an end although moving a cursor is an event
    found = [place for one in batches for place in one]
    assert found == sorted(set(found)) and len(batches) > 3
    held = cursor(serving)
    assert held is not None and held["lag_commits"] <= 2
    with serving.client() as http:
        publish(http, 1)
    again = reader_of(serving, cursor="c")  # without a checkpoint it goes on where the cursor is
    assert again.initialOffset()["position"] == held["position"]
    more, _ = followed(reader, end, ReadAllAvailable())
    assert next(place for one in more for place in one) == (end["position"], 0)


def test_a_batch_asks_the_server_for_no_more_than_it_must(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StreamReader(read_options({"url": address(serving), "cursor": "c"}), chosen("position", "queue"))
    asked: list[str] = []
    request = ServerSource._request

    def counted(source: ServerSource, method: str, path: str, **how: Any) -> Any:
        asked.append(f"{method} {path}")
        return request(source, method, path, **how)

    monkeypatch.setattr(ServerSource, "_request", counted)

    def turn(start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        asked.clear()
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        found = rows(reader, parts)
        reader.commit(end)
        return end, found

    with serving.client() as http:
        end, _ = turn(reader.initialOffset())
        publish(http, 3)
        end, found = turn(end)
        assert {row["queue"] for row in found} - {None} == {"orders"}
        once = ["GET /journal", "GET /journal/segments/1", "GET /journal/segments/1"]
        moved = ["GET /journal/cursors", "PUT /journal/cursors/c"]
        assert asked == once + moved
        http.put("/queues/later", json={})
        assert http.post("/queues/later/messages", json=[{"payload": 1}]).status_code == 201
        publish(http, 3)
        end, found = turn(end)
        assert {row["queue"] for row in found} - {None} == {"orders", "later"}
        assert asked == [once[0], "GET /journal/queues", *once[1:], *moved]


def test_two_streams_with_cursors_do_not_keep_one_another_busy(serving: Serving) -> None:
    readers = [reader_of(serving, cursor=name) for name in ("a", "b")]
    offsets = [reader.initialOffset() for reader in readers]
    with serving.client() as http:
        publish(http, 5)
    deadline, quiet = time.monotonic() + 20, 0
    while quiet < 2:
        assert time.monotonic() < deadline, "they never come to an end"
        quiet += 1
        for at, reader in enumerate(readers):
            end = reader.latestOffset(offsets[at], ReadAllAvailable())
            if end != offsets[at]:
                quiet = 0
                reader.partitions(offsets[at], end)
                reader.commit(end)
                offsets[at] = end


def test_a_lost_cursor_is_an_error_unless_history_may_be_lost(serving: Serving) -> None:
    reader = reader_of(serving, cursor="c")
    start = reader.initialOffset()
    with serving.client() as http:
        publish(http, 3)
    end = reader.latestOffset(start, ReadAllAvailable())
    serving.call(serving.partition.cursors._lose, "c", "this test says so")
    with pytest.raises(CursorLost, match="c"):
        reader.commit(end)
    reader_of(serving, cursor="c", failOnDataLoss="false").commit(end)
    held = cursor(serving)
    assert held is not None and (held["state"], held["position"]) == ("ok", end["position"])


def test_a_stream_of_spark_reads_a_server_once_through_failures(
    spark: SparkSession, serving: Serving, tmp_path: Path
) -> None:
    with serving.client() as http:
        publish(http, 10)
    options = {"url": address(serving), "cursor": "spark", "maxEventsPerBatch": "60"}
    events = spark.readStream.format("laneway").options(**options).load().select("position", "index", "message_id")
    seen: dict[int, list[tuple[int, int]]] = {}
    failing = [2]

    def take(frame: DataFrame, batch: int) -> None:
        if batch in failing:
            failing.remove(batch)
            raise RuntimeError("the sink fails once")
        assert batch not in seen
        seen[batch] = sorted((row["position"], row["index"]) for row in frame.collect())

    def run() -> None:
        query = (
            events.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    with pytest.raises(Exception, match="the sink fails once"):
        run()
    assert sorted(seen) == [0, 1]
    run()  # batch 2 again, and what follows
    with serving.client() as http:
        publish(http, 3)
    run()
    found = [place for batch in sorted(seen) for place in seen[batch]]
    reader = BatchReader(read_options({"path": str(serving.folder)}), chosen("position", "index"))
    assert found == places(rows(reader, reader.partitions()))[: len(found)]
    assert len(found) > 250 and max(map(len, seen.values())) <= 60
    held = cursor(serving, "spark")
    last = max(seen)
    assert held is not None and seen[last - 1][0][0] <= held["position"] <= seen[last][-1][0] + 1


def test_the_archive_takes_its_cursor_to_where_the_lake_is_and_leaves_it_while_nothing_happens(
    serving: Serving,
) -> None:
    source = ServerSource(address(serving))

    def held_after(position: int) -> tuple[str, int]:
        _hold(source, "archive", position)
        held = cursor(serving, "archive")
        assert held is not None
        return held["state"], held["position"]

    assert held_after(2) == ("ok", 2)
    end = source.end().position
    assert held_after(end) == ("ok", end)
    assert held_after(source.end().position) == ("ok", end)  # nothing happened but that it was moved
    assert held_after(3) == ("ok", 3)
    serving.call(serving.partition.cursors._lose, "archive", "this test says so")
    assert held_after(3) == ("ok", 3)  # that history is there
