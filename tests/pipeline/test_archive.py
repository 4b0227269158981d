"""The archive: every event once, whatever dies on the way; what it keeps of bodies; letters that may go."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet
import pytest

from laneway.core.events import Births, Cause, DeadLettered
from laneway.errors import Conflict, InvalidInput
from laneway.journal.history import follow
from laneway.journal.history.format import segment_name
from laneway.pipeline.archive import STATE, Archive, Archived, ArchivedPartition
from laneway.pipeline.jobs.archive import archived, folder, letters, with_bodies_of_the_dead
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, Result, run
from laneway.pipeline.schema import EVENTS
from tests.pipeline.drivers import ROOT, environment
from tests.pipeline.events import at, row
from tests.pipeline.histories import expected, write
from tests.pipeline.traffic import COMMITS_A_ROUND, FIRST_COMMITS, NOON_MS, QUEUES, ROWS_A_ROUND, published, traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.pipeline.conftest import MakeEvents

pytestmark = pytest.mark.timeout(600)

NAMES = [column.name for column in EVENTS]


# The files, without Spark


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "events", tmp_path / "staging")


def staged(archive: Archive, *names: str) -> Path:
    folder = archive.stage()
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def test_a_batch_is_in_once_its_end_is_noted(archive: Archive) -> None:
    with archive.locked():
        batch = staged(archive, "day=2026-11-16/folder=a/part-0.parquet", "day=2026-11-16/folder=b/part-0.parquet")
        assert archive.take_in(batch, 1, Archived("s", next_position=8, events=20)) == 2
        assert archive.clean() == 0
    assert archive.state() == Archived("s", 8, 20)
    assert [(path.parent.name, first, last) for path, _, first, last in archive.files()] == [
        ("folder=a", 1, 7),
        ("folder=b", 1, 7),
    ]
    assert not batch.exists()


def test_what_was_moved_in_and_not_noted_is_removed(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    with archive.locked():
        archive.take_in(staged(archive, "day=2026-11-16/folder=a/part-0.parquet"), 1, Archived("s", 8, 20))
        with monkeypatch.context() as patched:
            patched.setattr(archive, "save", lambda state: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                archive.take_in(staged(archive, "day=2026-11-16/folder=a/part-0.parquet"), 8, Archived("s", 9, 30))
        assert len(list(archive.files())) == 2
        assert archive.clean() == 1
    assert [first for *_, first, _ in archive.files()] == [1]
    assert archive.state().next_position == 8


def test_two_cannot_write_at_once(archive: Archive) -> None:
    with archive.locked(), pytest.raises(Conflict, match="another run is writing to the archive"), archive.locked():
        pass


def test_a_damaged_note_is_named(archive: Archive) -> None:
    archive.folder.mkdir(parents=True)
    (archive.folder / STATE).write_text("{")
    with pytest.raises(InvalidInput, match=rf"{STATE} is damaged"):
        archive.state()


# With Spark


def archive_once(spark: SparkSession, source: Path, warehouse: Path, **settings: Any) -> Result:
    return run(JOBS["archive"], spark, Options(str(source), Warehouse(warehouse), settings=settings))


def lake_rows(spark: SparkSession, warehouse: Path) -> list[dict[str, Any]]:
    events = spark.read.parquet(str(warehouse / "events"))
    return events.select(*NAMES).orderBy("position", "index").toArrow().to_pylist()


def plain_rows(source: Path, **instead: Any) -> list[dict[str, Any]]:
    return [{name: one.get(name) for name in NAMES} | instead for one in expected(source, QUEUES)]


def test_history_is_archived_once_and_more_of_it_later(spark: SparkSession, tmp_path: Path) -> None:
    source, warehouse = tmp_path / "data", tmp_path / "lake"
    write(source, traffic(3), segment_bytes=128 << 10)
    first = archive_once(spark, source, warehouse, batch_events=600)
    assert first.facts["archived"] == FIRST_COMMITS + 3 * ROWS_A_ROUND
    assert lake_rows(spark, warehouse) == plain_rows(source)
    days = [path.name for path in (warehouse / "events").glob("day=*")]
    assert days == ["day=2026-11-16"]
    folders = {path.name.removeprefix("folder=") for path in (warehouse / "events" / days[0]).iterdir()}
    assert {"orders", "mails", "none"} < folders and len(folders) == 4
    files = list(Archive(warehouse / "events", tmp_path).files())
    assert len({begin for *_, begin, _ in files}) > 1, "several batches"

    assert archive_once(spark, source, warehouse).facts["archived"] == 0
    write(source, traffic(1, 3, epoch=2), segment_bytes=128 << 10)
    assert archive_once(spark, source, warehouse, bodies="none").facts["archived"] == 1 + ROWS_A_ROUND
    rows = lake_rows(spark, warehouse)
    assert [(one["position"], one["index"]) for one in rows] == [
        (one["position"], one["index"]) for one in expected(source, QUEUES)
    ]
    later = [one for one in rows if one["kind"] == "published" and one["message"] > 3 * 3 * 40]
    assert later and all(one["body"] is None and one["attributes"] for one in later)

    other = tmp_path / "other"
    write(other, traffic(1))
    with pytest.raises(InvalidInput, match="is of another journal than"):
        archive_once(spark, other, warehouse)


def test_with_bodies_of_the_dead_a_reader_is_never_stopped_in_the_middle(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, warehouse = tmp_path / "data", tmp_path / "lake"
    write(source, traffic(1))
    dead, births = range(1_000, 1_003), Births([NOON_MS + 60_000] * 3, {})
    died = DeadLettered(1, NOON_MS + 61_000, dead, Cause.REJECTED, "", births)
    write(source, [[published(1, NOON_MS + 60_000, 1_000)], [died]])

    def stops(*_: object) -> bool:
        raise AssertionError("Spark stops a reader once it has a row, and its Python tells of a broken pipe")

    monkeypatch.setattr(type(spark.range(1)), "isEmpty", stops)
    archive_once(spark, source, warehouse, bodies="dead")
    kept = [one for one in lake_rows(spark, warehouse) if one["body"] is not None]
    assert [(one["kind"], one["body"]) for one in kept] == [("dead_lettered", b"body %d" % seq) for seq in dead]


def test_what_is_no_single_journal_is_not_archived_and_what_had_gone_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, other = tmp_path / "data", tmp_path / "other"
    write(source, traffic(4), segment_bytes=16 << 10)
    gone = follow.segments(str(source))[:-1]
    write(source, traffic(1, 4, epoch=2), segment_bytes=16 << 10)
    write(other, traffic(1))
    both = Options(f"{source},{other}", Warehouse(tmp_path / "lake"))
    with pytest.raises(InvalidInput, match="an archive is of one server, and several are given"):
        run(JOBS["archive"], spark, both)
    for one in gone:
        (source / segment_name(one.number)).unlink()
    first = follow.first_position(str(source))
    result = archive_once(spark, source, tmp_path / "lake")
    assert result.notes == [f"history from position 1 to {first - 1} had gone before it was archived"]
    assert archive_once(spark, source, tmp_path / "lake").notes == []


def test_every_event_is_there_once_though_a_task_dies_and_the_driver_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, warehouse, note = tmp_path / "data", tmp_path / "lake", tmp_path / "note"
    write(source, traffic(6), segment_bytes=128 << 10)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.archive_driver", str(source), str(warehouse), str(note)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert note.exists(), "no task has died"
    left = Archive(warehouse / "events", tmp_path)
    noted = left.state()
    assert 1 < noted.next_position < FIRST_COMMITS + 6 * 9
    early = [first for *_, first, _ in left.files() if first >= noted.next_position]
    assert early, "it was not killed between moving and noting"

    result = archive_once(spark, source, warehouse)
    assert f"{len(early)} files of a run that died were removed" in result.notes
    assert lake_rows(spark, warehouse) == plain_rows(source)
    assert result.facts["events"] == FIRST_COMMITS + 6 * ROWS_A_ROUND


def test_folders_are_told_apart_and_fit_a_file_system(spark: SparkSession) -> None:
    names = [("/", "orders"), ("eu", "orders"), ("/", "a/b c"), ("/", "a_b_c"), ("/", "ü" * 127), (None, None)]
    table = spark.createDataFrame(names, "vhost string, queue string").select(folder().alias("folder"))
    found = [one["folder"] for one in table.collect()]
    assert found[0] == "orders" and found[3] == "a_b_c" and found[-1] == "none"
    assert found[1].startswith("orders-") and found[2].startswith("a_b_c-")
    assert len(set(found)) == len(found) and max(len(one.encode()) for one in found) < 200


def test_bodies_of_the_dead_come_with_their_deaths(make_events: MakeEvents) -> None:
    rows = [
        row(0, "published", 1, body=b"one"),
        row(0, "published", 2, body=b"two"),
        row(0, "published", 3, body=b"three"),
        row(1, "dead_lettered", 1, reason="expired"),
        row(1, "moved", 2, reason="rejected", target_queue="dead", target_vhost="/", target_message=4),
        row(1, "moved", 3, reason="redriven", target_queue="orders", target_vhost="/", target_message=5),
        row(2, "acked", 5, message_id="m3"),
    ]
    full = make_events(rows, body=True, attributes=True)
    kept = with_bodies_of_the_dead(full.drop("body"), full.where("kind = 'published'").select("message_id", "body"))
    found = {(one["kind"], one["message"]): one["body"] for one in archived(kept).collect()}
    assert found == {
        ("published", 1): None,
        ("published", 2): None,
        ("published", 3): None,
        ("dead_lettered", 1): b"one",
        ("moved", 2): b"two",
        ("moved", 3): None,
        ("acked", 5): None,
    }


def test_letters_may_go_if_they_died_in_time_and_their_body_is_in_the_lake(make_events: MakeEvents) -> None:
    rows = [
        row(0, "published", 1, body=b"one"),
        row(0, "published", 2),
        row(0, "published", 3, body=b"three"),
        row(5, "dead_lettered", 1, reason="expired"),
        row(5, "dead_lettered", 2, reason="expired"),
        row(6, "moved", 3, reason="rejected", target_queue="dead", target_vhost="/", target_message=4),
    ]
    events = make_events(rows, body=True)
    noon_ms = int(at(0).timestamp() * 1000)
    assert noon_ms == NOON_MS

    def between(since: float, until: float) -> set[tuple[str, str]]:
        chosen = letters(events, noon_ms + int(since * 1000), noon_ms + int(until * 1000))
        return {(one["queue"], one["message_id"]) for one in chosen.collect()}

    assert between(0, 5) == {("orders", "m1")}
    assert between(5, 6) == {("dead", "m3")}
    assert between(6, 9) == set()


def test_all_partitions_of_a_folder_are_archived_each_from_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    source, warehouse = tmp_path / "data", tmp_path / "lake"
    write(source, traffic(1))
    archive_once(spark, source, warehouse)
    write(source / "partitions" / "1", traffic(2))
    archive_once(spark, source, warehouse, batch_events=400)
    write(source / "partitions" / "1", traffic(1, 2, epoch=2))
    assert archive_once(spark, source, warehouse).facts["archived"] == 1 + ROWS_A_ROUND
    events = Warehouse(warehouse).read_events(spark)
    found = events.select("partition", "position", "index").orderBy("partition", "position", "index").collect()
    there = [
        (number, one["position"], one["index"]) for number in (0, 1) for one in expected(folder_of(source, number))
    ]
    assert [tuple(one) for one in found] == there
    state = Archive(warehouse / "events", tmp_path).state()
    last = {number: position for number, position, _ in there}
    assert (state.next_position, state.of(1).next_position) == (last[0] + 1, last[1] + 1)
    assert state.events == len(there)
    assert {(partition, first) for _, partition, first, _ in Archive(warehouse / "events", tmp_path).files()} > {
        (0, 1),
        (1, 1),
        (1, last[1] - COMMITS_A_ROUND),
    }


def folder_of(source: Path, partition: int) -> Path:
    return source / "partitions" / str(partition) if partition else source


def test_what_a_run_that_died_has_moved_in_too_early_is_told_from_other_partitions(archive: Archive) -> None:
    with archive.locked():
        state = Archived("s", 8, 20).having(1, ArchivedPartition("t", 5))
        archive.take_in(staged(archive, "day=2026-11-16/folder=a/part-0.parquet"), 1, state, 1)
        archive.save(Archived("s", 8, 20).having(1, ArchivedPartition("t", 1)))
        assert archive.clean() == 1
        archive.take_in(staged(archive, "day=2026-11-16/folder=a/part-0.parquet"), 5, state)
        assert archive.clean() == 0


def test_columns_that_an_older_archive_has_not_are_null(spark: SparkSession, tmp_path: Path) -> None:
    source, warehouse = tmp_path / "data", Warehouse(tmp_path / "lake")
    write(source, traffic(1))
    archive_once(spark, source, warehouse.path)
    for path in warehouse.events.glob("day=*/folder=*/*.parquet"):
        older = pyarrow.parquet.read_table(path, partitioning=None).drop(["tier"])
        pyarrow.parquet.write_table(older.replace_schema_metadata(None), path)
    assert "tier" not in warehouse.read(spark, "events").columns
    assert warehouse.read_events(spark).select("tier").distinct().collect() == [(None,)]
