"""hotkeys: the plan without Spark, small cases by hand, and a made-up afternoon counted again."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from laneway.pipeline.jobs.hotkeys import Unit, per_partition, per_tenant, plan, rebalanced, top_keys, units
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from tests.pipeline.afternoon import afternoon
from tests.pipeline.conftest import MakeEvents
from tests.pipeline.events import at, filled, frame, row


def unit(partition: int, queue: str, published: int) -> Unit:
    return Unit(partition, "/", queue, None, published)


def test_the_largest_that_fits_goes_from_the_hottest_to_the_coldest() -> None:
    found = [unit(0, "a", 40), unit(0, "b", 30), unit(0, "c", 10), unit(1, "d", 10)]
    moves, splits = rebalanced([80, 10, 4, 2], found)  # the mean is 24: hot above 48
    assert [(one.queue, here, there) for one, here, there in moves] == [("a", 0, 3)]
    assert splits == []
    assert rebalanced([30, 20, 20, 26], found) == ([], [])


def test_what_is_hot_all_by_itself_is_split_and_not_moved_about() -> None:
    found = [unit(0, "big", 90), unit(0, "small", 6)]
    moves, splits = rebalanced([96, 1, 1, 2], found)  # hot above 50
    assert [(one.queue, here, there) for one, here, there in moves] == [("small", 0, 1)]
    assert [one.queue for one in splits] == ["big"]


def test_no_move_makes_another_partition_hot() -> None:
    found = [unit(0, f"q{number}", 10) for number in range(30)]
    loads = [300, 0, 0, 0, 0]
    moves, _ = rebalanced(loads, found)
    for _, here, there in moves:
        loads[here] -= 10
        loads[there] += 10
    assert max(loads) <= 2 * 60 and len(moves) == 18


def test_the_plan_says_what_the_server_reads() -> None:
    found = [Unit(0, "/", "orders", "vip", 40), unit(0, "mail", 30)]
    made = plan("key", [70, 10, 4, 4], found, 10.0, (at(0), at(10)))
    del made["made_at"]
    assert made == {
        "format": 1,
        "since": "2026-11-16T12:00:00.000Z",
        "until": "2026-11-16T12:00:10.000Z",
        "by": "key",
        "partition_count": 4,
        "hot_above": 2.0,
        "partitions": [
            {"partition": 0, "per_second": 7.0, "is_hot": True},
            {"partition": 1, "per_second": 1.0, "is_hot": False},
            {"partition": 2, "per_second": 0.4, "is_hot": False},
            {"partition": 3, "per_second": 0.4, "is_hot": False},
        ],
        "moves": [{"vhost": "/", "queue_name": "orders", "key": "vip", "per_second": 4.0, "from": 0, "to": 2}],
        "splits": [],
    }


def test_a_few_messages_counted_by_hand(make_events: MakeEvents) -> None:
    rows = [
        *(row(second, "published", second, key="a", tenant="acme", size=100) for second in range(1, 7)),
        row(7, "published", 7, key="b", size=50),
        row(8, "published", 8, queue="mail", key="a", tenant="acme", size=10),
        row(9, "leased", 8, queue="mail", receive_count=1),
    ]
    events = make_events(rows).persist()
    keys = top_keys(events, 10.0, most=2).toArrow().to_pylist()
    first = {
        "vhost": "/",
        "queue": "orders",
        "key": "a",
        "published": 6,
        "bytes": 600,
        "per_second": 0.6,
        "share": 0.75,
    }
    assert keys[0] == first and len(keys) == 2
    tenants = {one["tenant"]: one["published"] for one in per_tenant(events, 10.0).toArrow().to_pylist()}
    assert tenants == {"acme": 7, None: 1}
    orders, mail = (zlib.crc32(name) % 4 for name in (b"//orders", b"//mail"))
    found = per_partition(units(events, "queue", 4), 4, 10.0).toArrow().to_pylist()
    assert [one["partition"] for one in found] == [0, 1, 2, 3]
    assert orders != mail
    assert (found[orders]["published"], found[orders]["times_mean"], found[orders]["is_hot"]) == (7, 3.5, True)
    assert (found[mail]["published"], found[mail]["is_hot"], found[mail]["top_queue"]) == (1, False, "mail")
    by_journal = per_partition(units(events, "queue", None), 1, 10.0).toArrow().to_pylist()
    assert [(one["published"], one["is_hot"]) for one in by_journal] == [(8, False)]
    events.unpersist()


@pytest.mark.parametrize("by", ["queue", "key"])
def test_a_made_up_afternoon_counted_again(spark: SparkSession, tmp_path: Path, by: str) -> None:
    rows = afternoon(seed=3, seconds=400)
    warehouse = Warehouse(tmp_path)
    frame(spark, rows).write.parquet(str(warehouse.events))
    settings = {"by": by, "partitions": "5", "hot_above": "1.3"}
    result = run(JOBS["hotkeys"], spark, Options(source="lake", warehouse=warehouse, settings=settings))

    published = [one for one in filled(rows) if one["kind"] == "published"]
    seconds = (published[-1]["time"] - published[0]["time"]) / timedelta(seconds=1)
    names = ["/".join([one["vhost"], one["queue"], *([one["key"]] if by == "key" else [])]) for one in published]
    loads = Counter(zlib.crc32(name.encode()) % 5 for name in names)
    table = warehouse.read_arrow("hotkeys_partitions").to_pylist()
    assert {one["partition"]: one["published"] for one in table} == {number: loads[number] for number in range(5)}
    hot = {number for number in range(5) if loads[number] > 1.3 * len(published) / 5}
    assert {one["partition"] for one in table if one["is_hot"]} == hot and hot
    assert sum(one["bytes"] for one in table) == sum(one["size"] for one in published)

    keys = Counter((one["queue"], one["key"]) for one in published)
    best = sorted(keys.items(), key=lambda item: (-item[1], item[0]))[:10]
    shown = warehouse.read_arrow("hotkeys_keys").to_pylist()
    assert [((one["queue"], one["key"]), one["published"]) for one in shown] == best
    assert [one["per_second"] for one in shown] == [pytest.approx(count / seconds) for _, count in best]
    tenants = Counter(one["tenant"] for one in published)
    assert {one["tenant"]: one["published"] for one in warehouse.read_arrow("hotkeys_tenants").to_pylist()} == tenants

    made = json.loads((tmp_path / "plan.json").read_text())
    assert result.files == [str(tmp_path / "plan.json")] and made["moves"] == result.facts["moves"]
    load = dict(loads)
    for move in made["moves"]:
        name = "/".join([move["vhost"], move["queue_name"], *([move["key"]] if by == "key" else [])])
        assert zlib.crc32(name.encode()) % 5 == move["from"] != move["to"]
        count = names.count(name)
        assert move["per_second"] == pytest.approx(count / seconds, abs=1e-6)
        load[move["from"]] -= count
        load[move["to"]] = load.get(move["to"], 0) + count
    if by == "key":
        assert made["moves"] and max(load.values()) <= 1.3 * len(published) / 5  # and now none is hot
