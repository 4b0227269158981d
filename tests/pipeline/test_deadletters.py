"""deadletters: signatures, a few deaths by hand, and a made-up afternoon counted again."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from laneway.pipeline.jobs.deadletters import grouped, letters, signature
from laneway.pipeline.lake import Warehouse
from laneway.pipeline.runner import JOBS, Options, run
from tests.pipeline.afternoon import afternoon
from tests.pipeline.conftest import MakeEvents
from tests.pipeline.events import at, filled, frame, row

SIGNATURES = {
    None: "",
    "no stock for item 4711": "no stock for item <n>",
    "no stock  for\nitem 12,5": "no stock for item <n>",
    "user 'ann o' unknown": "user <text> unknown",
    'key "a\'b" at line 3:14': "key <text> at line <n>",
    "code 0x00ff at 7f3a9c2be1": "code <hex> at <hex>",
    "order 123e4567-e89b-12d3-a456-426614174000 is gone": "order <id> is gone",
    "token lw_9fKq2Zx81LmPq0 refused": "token <id> refused",
    "timeout after -30.5 s": "timeout after <n> s",
    "connection refused": "connection refused",
    "x" * 300: "x" * 200,
}


def test_one_fault_has_one_signature(spark: SparkSession) -> None:
    given = [(number, detail) for number, detail in enumerate(SIGNATURES)]
    frame = spark.createDataFrame(given, "number int, detail string")
    found = frame.select("number", signature(F.col("detail")).alias("signature")).orderBy("number").collect()
    assert [one.signature for one in found] == list(SIGNATURES.values())


def test_letters_go_with_their_queue_and_with_a_purge(make_events: MakeEvents) -> None:
    dead = {"queue": "dead", "queue_number": 2}

    def dies(number: int) -> dict[str, Any]:
        target = {"target_vhost": "/", "target_queue": "dead", "target_queue_number": 2, "target_message": 10 + number}
        return row(number, "moved", number, reason="rejected", **target)

    rows = [
        *(row(0, "published", number) for number in range(1, 7)),
        *(dies(number) for number in range(1, 5)),
        row(10, "leased", 12, message_id="m2", **dead),
        row(10, "leased", 13, message_id="m3", **dead),
        row(11, "released", 13, message_id="m3", **dead),
        row(12, "queue_purged", 14, **dead),  # 11 and 13 waited; 12 was leased, 14 is kept
        row(13, "published", 7, queue="old", queue_number=3),
        row(14, "dead_lettered", 7, reason="expired", queue="old", queue_number=3),
        row(15, "dead_lettered", 6, reason="expired"),
        row(16, "queue_purged", 9),  # what is kept as dead stays
        row(17, "queue_deleted", queue="old", queue_number=3),
    ]
    found = {one["message_id"]: one["state"] for one in letters(make_events(rows)).collect()}
    assert {name for name, state in found.items() if state == "removed"} == {"m1", "m3", "m7"}
    assert {name for name, state in found.items() if state == "waiting"} == {"m2", "m4", "m6"}


def test_letters_say_where_they_are_and_what_became_of_them(make_events: MakeEvents) -> None:
    dead = {"queue": "dead", "queue_number": 2}

    def moved(number: int) -> dict[str, Any]:
        return {"target_vhost": "/", "target_queue": "dead", "target_message": number}

    rows = [
        *(row(number, "published", number, tenant="acme", attributes={"n": str(number)}) for number in range(1, 7)),
        row(10, "leased", 1, receive_count=1),
        row(11, "leased", 1, receive_count=2),
        row(12, "moved", 1, reason="rejected", detail="bad 1", **moved(11)),  # waits in dead
        row(13, "moved", 2, reason="expired", **moved(12)),
        row(14, "acked", 12, message_id="m2", **dead),  # consumed there
        row(15, "dead_lettered", 3, reason="rejected", detail="bad 2"),  # kept
        row(16, "moved", 3, reason="redriven", target_vhost="/", target_queue="orders", target_message=13),
        row(17, "dead_lettered", 13, message_id="m3", reason="max_receives"),  # and died again
        row(18, "removed", 4, reason="overflow", detail="not kept"),
        row(19, "removed", 5, reason="deleted"),  # by an administrator: no death
        row(20, "acked", 6),
        row(4000, "dead_lettered", 7, reason="rejected", detail="bad 3"),  # published before the history
    ]
    events = make_events(rows, attributes=True)
    found = letters(events).persist()
    rows_found = sorted(found.toArrow().to_pylist(), key=lambda one: one["position"])
    shown = [
        tuple(one[name] for name in ("message_id", "message", "holder_queue", "reason", "state", "receive_count"))
        for one in rows_found
    ]
    assert shown == [
        ("m1", 11, "dead", "rejected", "waiting", 2),
        ("m2", 12, "dead", "expired", "consumed", 0),
        ("m3", 3, "orders", "rejected", "redriven", 0),
        ("m3", 13, "orders", "max_receives", "waiting", 0),
        ("m4", None, None, "overflow", "dropped", 0),
        ("m7", 7, "orders", "rejected", "waiting", 0),
    ]
    assert [dict(one["attributes"]) for one in rows_found[:5]] == [{"n": number} for number in "12334"]
    assert (rows_found[0]["tenant"], rows_found[0]["priority"], rows_found[0]["died_at"]) == ("acme", 5, at(12))
    assert rows_found[5]["attributes"] is None
    groups = [one for one in grouped(found).toArrow().to_pylist() if one["reason"] == "rejected"]
    found.unpersist()
    assert groups == [
        {
            "hour": at(0),
            "vhost": "/",
            "queue": "orders",
            "reason": "rejected",
            "signature": "bad <n>",
            "letters": 2,
            "waiting": 1,
            "first_at": at(12),
            "last_at": at(15),
            "example": "bad 1",
            "sample_message_ids": ["m1", "m3"],
        },
        {
            "hour": at(3600),
            "vhost": "/",
            "queue": "orders",
            "reason": "rejected",
            "signature": "bad <n>",
            "letters": 1,
            "waiting": 1,
            "first_at": at(4000),
            "last_at": at(4000),
            "example": "bad 3",
            "sample_message_ids": ["m7"],
        },
    ]


def words_of(detail: str | None) -> str:
    """The signatures of what the afternoon says, known from how it says it."""
    known = {"no stock for item": "no stock for item <n>", "user '": "user <text> unknown", "code 0x": "code <hex>"}
    kept = "" if not detail or not detail.startswith("not kept") else "not kept"
    for begin, shown in known.items():
        if detail and begin in detail:
            return f"{kept}: {shown}" if kept else shown
    return kept


@pytest.mark.parametrize("with_attributes", [True, False])
def test_a_made_up_afternoon_counted_again(spark: SparkSession, tmp_path: Path, with_attributes: bool) -> None:
    rows = afternoon(seed=11, seconds=600)
    warehouse = Warehouse(tmp_path)
    frame(spark, rows, attributes=with_attributes).write.parquet(str(warehouse.events))
    result = run(JOBS["deadletters"], spark, Options(source="lake", warehouse=warehouse))
    assert ("the archive has no attributes" in result.notes) != with_attributes

    history = filled(rows)
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    regions: dict[str, str] = {}
    there: set[int] = set()  # numbers under which dead letters wait
    for one in history:
        if one["kind"] == "published":
            regions[one["message_id"]] = one["attributes"]["region"]
        if one["kind"] in ("acked", "moved", "removed", "dead_lettered"):
            there.discard(one["message"])
        if one["reason"] in ("max_receives", "expired", "rejected", "overflow"):
            groups[one["queue"], one["reason"], words_of(one["detail"])].append(one["message_id"])
            if one["kind"] != "removed":
                there.add(one["target_message"] or one["message"])
    table = warehouse.read_arrow("deadletters").to_pylist()
    assert {
        (one["queue"], one["reason"], one["signature"]): (one["letters"], one["sample_message_ids"]) for one in table
    } == {key: (len(ids), ids[:5]) for key, ids in groups.items()}
    single = warehouse.read_arrow("deadletters_messages").to_pylist()
    assert len(single) == sum(map(len, groups.values())) > 50
    assert {one["message"] for one in single if one["state"] == "waiting"} == there
    assert sum(one["waiting"] for one in table) == len(there) > 5
    if with_attributes:
        assert all(dict(one["attributes"])["region"] == regions[one["message_id"]] for one in single)
        eu = warehouse.read(spark, "deadletters_messages").where("reason='expired' AND attributes['region']='eu'")
        expected = sum(one["reason"] == "expired" and regions[one["message_id"]] == "eu" for one in single)
        assert eu.count() == expected > 0


def test_letters_are_followed_into_another_partition(make_events: MakeEvents) -> None:
    there = {"partition": 1, "queue": "far", "queue_number": 7, "sender": 0}
    hidden = {"partition": 1, "vhost": "", "queue": "partition 0", "queue_number": 9, "sender": 0}

    def departs(time: float, number: int, entry: int, of: int | None = None) -> dict[str, Any]:
        bound = {"target_vhost": "/", "target_queue": "far", "target_partition": 1, "target_queue_number": 3}
        return row(
            time, "moved", number, message_id=f"m{of or number}", reason="rejected", target_message=entry, **bound
        )

    def arrives(time: float, number: int, of: int, **where: Any) -> dict[str, Any]:
        return row(time, "arrived", number, message_id=f"m{of}", reason="rejected", **where)

    rows = [
        *(row(0, "published", number, key=f"k{number}") for number in range(1, 7)),
        *(departs(1, number, 10 + number) for number in range(1, 7)),
        arrives(2, 101, 1, **there),
        arrives(2, 102, 2, **there),
        arrives(2, 103, 3, **there),
        arrives(2, 104, 4, **hidden),  # its queue is gone there: it goes back
        arrives(2, 105, 5, **there),
        row(3, "leased", 102, message_id="m2", receive_count=1, **there),
        row(3, "acked", 102, message_id="m2", **there),
        row(4, "moved", 103, message_id="m3", reason="redriven", target_partition=0, target_message=201, **there),
        row(5, "arrived", 21, message_id="m3", reason="redriven", sender=1),
        departs(6, 21, 22, of=3),  # it dies a second time
        arrives(7, 106, 3, **there),
        row(8, "queue_purged", 106, **there),
    ]
    found = letters(make_events(rows)).orderBy("died_at", "message_id").collect()
    assert [(one.message_id, one.message, one.state) for one in found] == [
        ("m1", 101, "removed"),
        ("m2", 102, "consumed"),
        ("m3", 103, "redriven"),
        ("m4", 104, "returned"),
        ("m5", 105, "removed"),
        ("m6", None, "under_way"),
        ("m3", 106, "waiting"),
    ]
    assert {(one.holder_vhost, one.holder_queue, one.partition) for one in found} == {("/", "far", 0)}
    assert [one.key for one in found] == ["k1", "k2", "k3", "k4", "k5", "k6", "k3"]
