"""What is remembered to find repeats is bounded in bytes, however long the ids are that clients choose."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from laneway.core.dedups import DEDUP_BYTES, dedup_key
from tests.attacks.whole_node import WholeNode
from tests.core.runner import Core, draft
from tests.in_thread import wait_for

MOST = (1 << 20) // DEDUP_BYTES
WINDOW_S = 2


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("remembered"), max_dedup_bytes=1 << 20) as node:
        yield node


def sent(root: httpx.Client, queue: str, ids: range) -> list[Any]:
    """Messages with ids of a kilobyte; what became of each."""
    messages = [{"payload": 1, "dedup_id": f"{i:01000}"} for i in ids]
    return list(root.post(f"/queues/{queue}/messages", json=messages).json())


def codes(results: list[Any]) -> set[str]:
    return {result["error"]["code"] if "error" in result else "published" for result in results}


def test_new_ids_are_refused_when_there_is_no_room_and_old_ones_are_still_known(node: WholeNode) -> None:
    with node.http() as root:
        root.put("/queues/long", json={"dedup_window_seconds": 3600})
        root.put("/queues/other", json={"dedup_window_seconds": 3600})
        for at in range(0, MOST // 1000 * 1000, 1000):
            assert codes(sent(root, "long", range(at, at + 1000))) == {"published"}
        results = sent(root, "long", range(MOST - 10, MOST + 10))
        results = sent(root, "long", range(MOST - MOST % 1000, MOST)) + results
        assert codes(results) == {"published", "limit_exceeded"}
        # All queues share the room, and a batch of new ids alone is refused as a whole.
        assert codes(sent(root, "other", range(1))) == {"limit_exceeded"}
        single = root.post("/queues/other/messages", json={"payload": 1, "dedup_id": "new"})
        assert (single.status_code, single.json()["error"]["field"]) == (429, "dedup_id")
        assert "max_dedup_bytes" in single.json()["error"]["message"]
        repeated = sent(root, "long", range(1000))
        assert all(result["duplicate"] for result in repeated)
        assert root.post("/queues/other/messages", json={"payload": 1}).status_code == 201  # without an id
        assert root.delete("/queues/long").status_code == 204  # what it remembered goes with it
        assert codes(sent(root, "other", range(1000))) == {"published"}
        root.delete("/queues/other")


def test_there_is_room_again_when_windows_have_passed(node: WholeNode) -> None:
    with node.http() as root:
        root.put("/queues/brief", json={"dedup_window_seconds": WINDOW_S})
        at = 0
        while codes(sent(root, "brief", range(at, at + 1000))) == {"published"}:
            at += 1000
            assert at < 100 * MOST
        wait_for(lambda: codes(sent(root, "brief", range(at + 5000, at + 5100))) == {"published"}, "there is room")
        root.delete("/queues/brief")


def test_sqs_is_told_so_as_well(node: WholeNode) -> None:
    with node.http() as root:
        root.put("/queues/full", json={"dedup_window_seconds": 3600})
        for at in range(0, MOST + 1000, 1000):
            sent(root, "full", range(at, at + 1000))
        sqs = node.sqs(node.key("root", "aws"))
        url = sqs.create_queue(QueueName="q.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
        with pytest.raises(ClientError) as refused:
            sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")
        assert refused.value.response["Error"]["Code"] == "OverLimit"
        root.delete("/queues/full")
        assert sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g", MessageDeduplicationId="d")


# --- what one takes


def measured(fill: Callable[[], None]) -> int:
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    fill()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return after - before


@pytest.mark.parametrize("text", ["x", "x" * 58, "ü" * 29, "x" * 1018, "€" * 335])
def test_an_id_takes_what_is_counted_for_it_whatever_its_length(text: str) -> None:
    core = Core(extent_bytes=1 << 40)
    core.put(dedup_window_ms=3_600_000, message_ttl_ms=1)
    count = 4_000
    core.publish(draft(dedup_id="first"))
    held = core["q"].dedup

    def fill() -> None:
        for i in range(count):
            held[dedup_key(f"{text}{i:06}")] = (f"0190{i:032}", 1_800_000_000_000 + i)

    assert measured(fill) / count < DEDUP_BYTES


def test_long_ids_that_differ_are_told_apart() -> None:
    texts = ["a" * 64, "a" * 65, "a" * 64 + "b", "ü" * 32, "ü" * 33, "b" * 1024]
    assert len({dedup_key(text) for text in texts}) == len(texts)
    assert max(len(dedup_key(text)) for text in texts) == 64


def test_a_long_id_is_known_after_a_restart_by_replay_and_by_snapshot() -> None:
    for recover in ("replay", "snapshot"):
        core = Core()
        core.put(dedup_window_ms=3_600_000)
        core.publish(draft(dedup_id="y" * 900))
        core.restart(recover)
        _, (again,) = core.publish(draft(dedup_id="y" * 900))
        assert again.duplicate and core.state.dedup_count == 1  # type: ignore[union-attr]


def test_idempotency_keys_are_kept_as_digests(node: WholeNode) -> None:
    """However long they are, so that their number bounds what they take."""
    node.new_queue("keyed")
    with node.http() as root:
        for length in (1, 255):
            key = {"Idempotency-Key": "k" * length}
            first = root.post("/queues/keyed/messages", json={"payload": 1}, headers=key)
            again = root.post("/queues/keyed/messages", json={"payload": 1}, headers=key)
            assert first.json()["message_id"] == again.json()["message_id"]
    keys = node.node.partitions[0].engine.state.keys
    assert {len(key) for (_, key), _ in keys.items()} == {32}
