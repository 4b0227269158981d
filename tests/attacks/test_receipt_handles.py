"""A receipt handle is good for whoever was given it: it can neither be guessed nor passed on to another account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError

from laneway.core.digits import token
from tests.amqp.wire import publish
from tests.attacks.whole_node import WholeNode, may

TRIES = 1000  # in one request


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("handles")) as node:
        for name in ("ann", "bob"):
            node.account(name, "pw", may("*", "read", "write"))
        yield node


def taken(http: httpx.Client, queue: str, count: int = 1) -> list[str]:
    answer = http.post(f"/queues/{queue}/dequeue", json={"max_messages": count, "visibility_timeout": 600})
    return [message["receipt_handle"] for message in answer.json()["messages"]]


def held(node: WholeNode, queue: str) -> int:
    with node.http() as root:
        return int(root.get(f"/queues/{queue}/stats").json()["in_flight_count"])


def acked(http: httpx.Client, queue: str, handles: list[str]) -> int:
    """How many of these were good, by the batch and one by one."""
    results = http.post(f"/queues/{queue}/ack", json=[{"receipt_handle": handle} for handle in handles]).json()
    assert {one["error"]["code"] for one in results if "error" in one} <= {"lease_stale"}
    return sum("error" not in one for one in results)


def near(handle: str) -> list[str]:
    """What a counter would have given just before and after this."""
    lease, seq = int(handle[:16], 16), int(handle[16:], 16)
    return [
        token(lease + i, seq + j) for j in (-1, 1, 2) for i in range(-TRIES // 6, TRIES // 6) if 0 < lease + i < 1 << 64
    ]


def test_neighbours_of_a_handle_lead_nowhere(node: WholeNode) -> None:
    """Of an account's own as well: consumers of one account are kept apart by chance."""
    node.new_queue("work")
    with node.http("ann", "pw") as ann, node.http("bob", "pw") as bob:
        ann.post("/queues/work/messages", json=[{"payload": i} for i in range(3)])
        first, (mine,), last = taken(ann, "work"), taken(bob, "work"), taken(ann, "work")
        for who in (ann, bob):
            assert acked(who, "work", near(mine)) == 0
        assert acked(ann, "work", near(first[0])) == 0
        assert held(node, "work") == 3
        assert (acked(bob, "work", [mine]), acked(ann, "work", [*first, *last])) == (1, 2)


def test_a_handle_of_another_account_is_as_one_that_has_ended(node: WholeNode) -> None:
    node.new_queue("shared")
    with node.http("ann", "pw") as ann, node.http("bob", "pw") as bob, node.http() as root:
        ann.post("/queues/shared/messages", json=[{"payload": i} for i in range(20)])
        hers = taken(ann, "shared", 20)
        assert acked(bob, "shared", hers) == acked(bob, "shared", hers[:1]) == acked(root, "shared", hers) == 0
        one = {"receipt_handle": hers[0]}
        for answer in (
            bob.post("/queues/shared/nack", json=[one]),
            bob.post("/queues/shared/reject", json=[one]),
            bob.post("/queues/shared/visibility", json=[{**one, "visibility_timeout": 0}]),
        ):
            assert [result["error"]["code"] for result in answer.json()] == ["lease_stale"]
        assert held(node, "shared") == 20
        assert acked(ann, "shared", hers) == 20


def test_some_of_a_batch_may_be_of_others(node: WholeNode) -> None:
    node.new_queue("mixed")
    with node.http("ann", "pw") as ann, node.http("bob", "pw") as bob:
        ann.post("/queues/mixed/messages", json=[{"payload": i} for i in range(4)])
        hers, his = taken(ann, "mixed", 2), taken(bob, "mixed", 2)
        assert acked(ann, "mixed", [hers[0], his[0], hers[1], his[1]]) == 2
        assert held(node, "mixed") == 2


def test_sqs_handles_are_bound_as_well(node: WholeNode) -> None:
    node.new_queue("simple")
    ann, bob = (node.sqs(node.key(name, "aws")) for name in ("ann", "bob"))
    url = ann.get_queue_url(QueueName="simple")["QueueUrl"]
    ann.send_message(QueueUrl=url, MessageBody="x")
    (message,) = ann.receive_message(QueueUrl=url, VisibilityTimeout=600)["Messages"]
    handle = message["ReceiptHandle"]
    bob.delete_message(QueueUrl=url, ReceiptHandle=handle)  # on a standard queue that is no error, and does nothing
    bob.delete_message_batch(QueueUrl=url, Entries=[{"Id": "1", "ReceiptHandle": handle}])
    with pytest.raises(ClientError):
        bob.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=0)
    assert held(node, "simple") == 1
    ann.delete_message(QueueUrl=url, ReceiptHandle=handle)
    assert held(node, "simple") == 0


def test_what_an_amqp_consumer_holds_has_no_handle(node: WholeNode) -> None:
    """Its lease ids are counted, and no handle leads to them."""
    node.new_queue("consumed")
    with node.http("bob", "pw") as bob, node.amqp("ann", "pw") as wire:
        wire.send(publish(1, "consumed", b"x"))
        assert wire.ask(1, "basic.consume", queue="consumed", tag="t").name == "basic.consume-ok"
        wire.expect("basic.deliver")
        state = node.node.partitions[0].engine.state
        seq = state.table.next_seq - 1
        lease = state.table.slabs[seq >> 10].lease[seq & 1023]  # as good a guess as can be
        assert acked(bob, "consumed", [token(lease, seq)]) == 0
        assert held(node, "consumed") == 1


def test_handles_are_good_after_a_restart(tmp_path: Path) -> None:
    def account(node: WholeNode) -> Any:
        node.account("ann", "pw", may("*", "read", "write"))
        return node.http("ann", "pw")

    with WholeNode(tmp_path) as node, account(node) as ann:
        node.new_queue("q")
        ann.post("/queues/q/messages", json=[{"payload": i} for i in range(20)])
        handles = taken(ann, "q", 20)
    with WholeNode(tmp_path) as node, account(node) as ann:
        assert acked(ann, "q", handles) == 20
        assert held(node, "q") == 0


def test_handles_say_nothing_of_each_other(node: WholeNode) -> None:
    node.new_queue("many")
    with node.http("ann", "pw") as ann:
        ann.post("/queues/many/messages", json=[{"payload": i} for i in range(100)])
        leases = [int(handle[:16], 16) for _ in range(100) for handle in taken(ann, "many")]
    assert len({lease >> 48 for lease in leases}) == 1  # whose they are
    steps = {abs(one - other) for i, one in enumerate(leases) for other in leases[:i]}
    assert min(steps) > 1 << 20  # of 5,000 pairs of numbers of 46 bits
