"""A real server and its history: audited against its own counts, letters redriven and let go, messages replayed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from laneway.client import Client, ClientError
from laneway.errors import InvalidInput
from laneway.journal.history.follow import first_position
from laneway.journal.history.format import segment_name
from laneway.pipeline.jobs import archive, replay
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, REDRIVE, Job, Options, Result, run
from laneway.pipeline.sources import ServerSource
from tests.in_thread import wait_for
from tests.pipeline.histories import write
from tests.pipeline.traffic import traffic
from tests.rest.serving import Serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

MESSAGES = 40
SOON_HOURS = "0.000001"


class Place:
    """A server, its data folder, and a warehouse."""

    def __init__(self, spark: SparkSession, serving: Serving, client: Client, folder: Path) -> None:
        self.spark, self.serving, self.client, self.folder = spark, serving, client, folder

    def run(
        self, job: Job, source: str | None = None, typed: tuple[str | None, str | None] = (None, None), **settings: Any
    ) -> Result:
        options = Options(
            source or str(self.folder / "data"),
            Warehouse(self.folder / "lake"),
            server=self.serving.url,
            settings=settings,
            typed=typed,
        )
        return run(job, self.spark, options)

    def totals(self, queue: str) -> dict[str, int]:
        return dict(self.client.stats(queue)["totals"])


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Forty messages: the first thirty received, of which each third was rejected and the others acked."""
    folder = tmp_path_factory.mktemp("back")
    with Serving(folder / "data") as serving, Client(serving.url) as client:
        client.put_queue("orders", max_priority=10)
        client.put_queue("copies", max_priority=1)
        for n in range(MESSAGES):
            given = {"region": "eu" if n % 2 else "us"}
            client.publish("orders", {"n": n}, priority=n % 4, attributes=given, key=f"k{n % 5}", dedup_id=f"d{n}")
        for message in client.receive("orders", 30):
            if message.payload["n"] % 3 == 0:
                client.reject("orders", message, reason=f"cannot read field {message.payload['n']}")
            else:
                client.ack("orders", message)
        yield Place(spark, serving, client, folder)


def test_the_audit_of_a_server_is_clean_and_counts_as_it_does(place: Place) -> None:
    result = place.run(JOBS["audit"])
    assert not result.is_failure and result.facts["verdict"]["verdict"] == "clean"
    stats = place.client.stats("orders")
    verdict = result.facts["verdict"]
    assert verdict["is_whole"] and verdict["published"] == MESSAGES == stats["totals"]["published"]
    assert verdict["acked"] == stats["totals"]["acked"] > 0
    assert verdict["dead"] == stats["totals"]["dead_lettered"] > 0
    assert verdict["waiting"] == MESSAGES - 30
    assert result.tables["audit_violations"] == 0


def test_letters_chosen_with_sql_are_shown_first_and_then_redriven(place: Place) -> None:
    where = "reason = 'rejected' AND attributes['region'] = 'eu'"
    dead = place.totals("orders")["dead_lettered"]
    shown = place.run(REDRIVE, where=where)
    count = shown.facts["matched"]
    assert 0 < count < dead and shown.facts["is_dry_run"]
    assert shown.notes == [f"{count} dead letters would be redriven; --yes does it"]
    row = dict(zip(shown.columns, shown.rows[0], strict=True))
    assert (row["queue"], row["reason"], row["signature"]) == ("orders", "rejected", "cannot read field <n>")
    assert row["letters"] == count and 0 < len(row["samples"]) <= 5
    assert place.totals("orders")["redriven"] == 0

    done = place.run(REDRIVE, where=where, yes=True)
    assert not done.facts["is_dry_run"] and len(done.facts["tasks"]) == 1
    task = done.facts["tasks"][0]["task_id"]
    wait_for(lambda: place.client.task(task)["state"] == "completed", "the redrive")
    assert place.client.task(task)["moved"] == count == place.totals("orders")["redriven"]
    assert place.run(REDRIVE, where=where).facts["matched"] == 0
    with pytest.raises(InvalidInput, match="say which dead letters"):
        place.run(REDRIVE)


def test_messages_of_the_lake_are_published_again_each_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run(JOBS["archive"])
    monkeypatch.setattr(replay, "BATCH_MESSAGES", 4)
    commit = Client.commit_batch
    calls = Counter[str]()

    def commit_and_lose_the_answer(self: Client, *given: Any, **more: Any) -> Any:
        answer = commit(self, *given, **more)
        calls["commit"] += 1
        if calls["commit"] == 2:
            raise ClientError("unreachable", "the answer was lost")
        return answer

    wanted = {"where": "queue = 'orders' AND attributes['region'] = 'us'", "to": "copies", "name": "again"}
    with monkeypatch.context() as patched:
        patched.setattr(Client, "commit_batch", commit_and_lose_the_answer)
        with pytest.raises(ClientError, match="the answer was lost"):
            place.run(JOBS["replay"], **wanted)
    assert place.totals("copies")["published"] == 8
    assert place.run(JOBS["replay"], **wanted).facts["published"] == MESSAGES // 2 - 8
    again = place.run(JOBS["replay"], **wanted)
    assert again.facts["published"] == 0 and again.notes == ["this run had published everything already"]
    messages = place.client.receive("copies", 100)
    assert [message.payload["n"] for message in messages] == list(range(0, MESSAGES, 2))
    assert {message.attributes["region"] for message in messages} == {"us"}
    assert {message.raw["key"] for message in messages} == {f"k{n}" for n in range(5)}
    with pytest.raises(InvalidInput, match="was begun with other options"):
        place.run(JOBS["replay"], **wanted | {"to": "orders"})


def test_a_replay_of_a_time_ago_goes_on_under_its_name(place: Place) -> None:
    place.run(JOBS["archive"])
    wanted = {"where": "key = 'k2' AND priority = 2", "to": "copies", "name": "ago"}
    first = place.run(JOBS["replay"], typed=("2h", None), **wanted)
    assert first.facts["published"] > 0
    assert place.run(JOBS["replay"], typed=("2h", None), **wanted).facts["published"] == 0
    with pytest.raises(InvalidInput, match="was begun with other options"):
        place.run(JOBS["replay"], typed=("3h", None), **wanted)


def test_a_replay_keeps_to_its_rate(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.run(JOBS["archive"])
    slept: list[float] = []
    monkeypatch.setattr(replay, "sleep", slept.append)
    before = place.totals("orders")["published"]
    result = place.run(JOBS["replay"], where="queue = 'orders' AND key = 'k1' AND priority = 1", rate=1.0)
    assert result.facts["published"] == 2 == place.totals("orders")["published"] - before
    assert len(slept) == 2 and slept[0] == 0 and slept[1] <= 1.0


def test_letters_in_the_lake_are_deleted_from_their_queue(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    there = len(list(place.client.peek("orders", states=["dead"])))
    assert there > 0
    assert place.run(JOBS["archive"], dead_letters_after=None).facts["dead_letters_deleted"] == 0
    result = place.run(JOBS["archive"], dead_letters_after=SOON_HOURS)
    assert result.facts["dead_letters_deleted"] == there
    assert not list(place.client.peek("orders", states=["dead"]))
    assert place.run(JOBS["archive"], dead_letters_after=SOON_HOURS).facts["dead_letters_deleted"] == 0

    letters = archive._let_go

    def one_dies_first(*given: Any) -> int:
        place.client.publish("copies", {"n": 0})
        for message in place.client.receive("copies", 1):
            place.client.reject("copies", message)
        rejected_s = time.time()
        wait_for(lambda: time.time() > rejected_s + 0.05, "it to be dead for long enough")
        return letters(*given)

    with monkeypatch.context() as patched:
        patched.setattr(archive, "_let_go", one_dies_first)
        assert place.run(JOBS["archive"], dead_letters_after=SOON_HOURS).facts["dead_letters_deleted"] == 0
    assert place.run(JOBS["archive"], dead_letters_after=SOON_HOURS).facts["dead_letters_deleted"] == 1
    assert not place.run(JOBS["audit"], source="lake").is_failure


def test_what_a_server_has_dropped_is_no_violation(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "data"
    write(source, traffic(6), segment_bytes=64 << 10)
    (source / segment_name(2)).unlink()  # as if all in it had been settled, and something before it had not
    result = run(JOBS["audit"], spark, Options(str(source), Warehouse(tmp_path / "lake")))
    verdict = result.facts["verdict"]
    assert verdict["first_position"] == first_position(str(source)) > 1 and not verdict["is_whole"]
    types = {one["type"] for one in Warehouse(tmp_path / "lake").read_arrow("audit_violations").to_pylist()}
    assert "position_gap" not in types and "never_published" not in types


def test_a_server_is_archived_and_a_cursor_of_each_lake_holds_what_is_not_in_yet(place: Place, tmp_path: Path) -> None:
    def archive(lake: str) -> Result:
        return run(JOBS["archive"], place.spark, Options(place.serving.url, Warehouse(tmp_path / lake)))

    source = ServerSource(place.serving.url)
    first = archive("one")
    (cursor,) = source.cursors()
    assert source.cursors()[cursor]["position"] == first.facts["next_position"] > 1
    place.client.publish("copies", "one more")
    other = archive("other")  # which is further than the first one, and must not let go what that one has not got
    assert source.cursors()[cursor]["position"] == first.facts["next_position"] < other.facts["next_position"]
    second = archive("one")
    assert len(source.cursors()) == 2
    assert source.cursors()[cursor]["position"] == second.facts["next_position"] > first.facts["next_position"]
    lake = place.spark.read.parquet(str(tmp_path / "one" / "events"))
    places = [(row["position"], row["index"]) for row in lake.select("position", "index").collect()]
    assert len(places) == len(set(places)) == second.facts["events"]
    assert {position for position, _ in places} == set(range(1, second.facts["next_position"]))
    for name in source.cursors():
        source.delete_cursor(name)


def test_dead_letters_of_a_server_go_to_the_lake_after_a_day(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deleted(source: str, **settings: Any) -> int:
        options = Options(source, Warehouse(tmp_path / "lake"), server=serving.url, settings=settings)
        return int(run(JOBS["archive"], spark, options).facts["dead_letters_deleted"])

    with Serving(tmp_path / "data") as serving, Client(serving.url) as client:
        client.put_queue("orders")
        client.publish("orders", {"n": 0})
        (message,) = client.receive("orders", 1)
        client.reject("orders", message)
        assert archive.DEAD_LETTERS_AFTER_HOURS == 24
        assert deleted(serving.url) == 0
        monkeypatch.setattr(archive, "DEAD_LETTERS_AFTER_HOURS", float(SOON_HOURS))
        assert deleted(serving.url, dead_letters_after="none") == 0
        assert deleted(str(tmp_path / "data")) == 0  # of which it is not known who serves it
        assert deleted(serving.url) == 1
        assert not list(client.peek("orders", states=["dead"]))
