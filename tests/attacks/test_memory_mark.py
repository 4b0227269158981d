"""Above the memory mark publishers are held back, in the way of their protocol, and consumers go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from laneway.resources import memory
from laneway.resources.memory import MemoryWatch
from tests.amqp.wire import method, publish
from tests.attacks.test_memory import MIB, resident_mib
from tests.attacks.whole_node import WholeNode, may
from tests.crash.server import Server, eventually
from tests.in_thread import wait_for


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WholeNode]:
    with WholeNode(tmp_path) as node:
        node.new_queue("work")
        yield node


def squeeze(node: WholeNode, most_bytes: int) -> None:
    """Move the mark, and look."""

    def move() -> None:
        node.node._memory._most_bytes = most_bytes
        node.node._memory.look()

    node.call(move)


def test_publishers_wait_and_consumers_go_on(node: WholeNode) -> None:
    node.account("ann", "pw", may("*", "read", "write", "configure"))
    sqs = node.sqs(node.key("ann", "aws"))
    url = sqs.get_queue_url(QueueName="work")["QueueUrl"]
    with node.http() as root, node.amqp("root", "secret") as publisher, node.amqp("root", "secret") as consumer:
        for number in range(4):
            assert root.post("/queues/work/messages", json={"payload": number}).status_code == 201
        assert publisher.ask(1, "confirm.select").name == "confirm.select-ok"
        squeeze(node, 1)

        told = publisher.expect("connection.blocked")
        assert told.fields["reason"] == "low on memory"
        answer = root.post("/queues/work/messages", json={"payload": 9})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "memory_low")
        assert answer.headers["Retry-After"] == "1"
        with pytest.raises(ClientError) as refused:
            sqs.send_message(QueueUrl=url, MessageBody="x")
        assert refused.value.response["Error"]["Code"] == "RequestThrottled"
        publisher.send(publish(1, "work", b"held"))
        ready = root.get("/readyz")
        assert (ready.status_code, ready.json()["error"]["state"]) == (503, "memory_low")
        assert root.get("/readyz/publish").status_code == 503
        assert root.get("/readyz/consume").status_code == 200

        # Consuming, acks and deletes, over each protocol.
        got = root.post("/queues/work/dequeue", json={}).json()["messages"][0]
        handle = {"receipt_handle": got["receipt_handle"]}
        assert root.delete(f"/queues/work/messages/{got['message_id']}", params=handle).status_code == 204
        taken = sqs.receive_message(QueueUrl=url)["Messages"][0]
        sqs.delete_message(QueueUrl=url, ReceiptHandle=taken["ReceiptHandle"])
        consumer.expect("connection.blocked")
        consumer.send(method(1, "basic.consume", queue="work", tag="t"))
        consumer.expect("basic.consume-ok")
        for _ in range(2):
            tag = consumer.expect("basic.deliver").fields["delivery"]
            consumer.read(), consumer.read()
            consumer.send(method(1, "basic.ack", delivery=tag))
        wait_for(lambda: root.get("/queues/work/stats").json()["approximate_message_count"] == 0, "all is consumed")

        squeeze(node, 1 << 40)
        assert publisher.expect("connection.unblocked")
        assert publisher.expect("basic.ack")
        consumer.expect("connection.unblocked")
        consumer.expect("basic.deliver")
        assert root.post("/queues/work/messages", json={"payload": 9}).status_code == 201
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert root.get("/readyz").status_code == 200


def test_memory_of_a_server_stays_near_the_mark(tmp_path: Path) -> None:
    """What is kept to be quick goes first; nothing that was confirmed is lost."""
    with Server(tmp_path / "empty") as server:
        mark = int(resident_mib(server)) + 14  # so that what is kept to be quick does not fit below it
    with Server(tmp_path / "data", "--max-memory-bytes", f"{mark}MiB") as server:
        client = server.connect()
        client.must(201, "PUT", "/queues/q", {"max_message_bytes": 2 * MIB})
        sent = 0
        while sent < 200:
            status, answer = client.call("POST", "/queues/q/messages", {"payload": f"{sent:06d}" + "x" * MIB})
            if status == 201:
                sent += 1
            else:
                assert (status, answer["error"]["code"]) == (503, "memory_low")
                eventually("it goes on", lambda: client.call("GET", "/readyz")[0] == 200)
            assert resident_mib(server) < mark + 40
        for number in range(sent):
            message = client.must(200, "POST", "/queues/q/dequeue", {})["messages"][0]
            assert message["payload"].startswith(f"{number:06d}")


def test_mark_has_two_sides() -> None:
    told: list[bool] = []
    used = 0
    watch = MemoryWatch(1000, told.append, lambda: used)
    for used in (999, 1000, 1001, 2000, 1001, 950, 900, 899, 950, 1000, 1001):  # noqa: B007
        watch.look()
    assert told == [True, False, True]


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "1000\n"}, 1000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "500\n"}, 500),
        ("4:memory:/c\n0::/\n", {"memory/c/memory.limit_in_bytes": "700\n"}, 700),
        ("4:cpu,memory:/gone\n", {"memory/memory.limit_in_bytes": "800\n"}, 800),  # mounted as its own root
        ("4:memory:/c\n", {"memory/c/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("", {}, None),
    ],
)
def test_limit_of_a_container_counts(tmp_path: Path, groups: str, files: dict[str, str], expected: int | None) -> None:
    own = tmp_path / "cgroup"
    own.write_text(groups)
    for name, text in files.items():
        path = tmp_path / "mounted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = memory.available_bytes(own, tmp_path / "mounted")
    assert found == expected if expected is not None else found > 1 << 28
