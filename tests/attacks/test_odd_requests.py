"""Odd requests are answered with what is wrong with them: never with 500, and never with an exception in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from laneway.broker.values import Binding
from laneway.core import topology_commands
from tests.amqp.wire import frame, method, properties, publish
from tests.attacks.whole_node import WholeNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("odd")) as node:
        yield node


@pytest.fixture(autouse=True)
def nothing_goes_wrong(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    wrong = [
        record for record in caplog.get_records("call") if record.exc_info or record.levelname in ("ERROR", "CRITICAL")
    ]
    assert not wrong, wrong


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


# --- SQS


def _queues_of_amqp(node: WholeNode) -> list[str]:
    kept: list[Any] = [
        "text",
        7,
        [],
        {"attributes": "text"},
        {"attributes": {"MaximumMessageSize": "many", "Policy": "{", "RedriveAllowPolicy": "[]"}, "tags": [1]},
        {"attributes": {"RedriveAllowPolicy": '{"redrivePermission": "byQueue", "sourceQueueArns": 5}'}},
        {"attributes": {"Policy": '{"Statement": 5}', "ReceiveMessageWaitTimeSeconds": "-1"}, "tags": {"a": 1}},
    ]
    names = ["of-amqp", *(f"of-amqp-{i}" for i in range(len(kept)))]
    with node.amqp("root", "secret") as wire:
        for name, sqs in zip(names, [None, *kept], strict=True):
            arguments = {} if sqs is None else {"sqs": sqs}
            assert wire.ask(1, "queue.declare", queue=name, arguments=arguments).name == "queue.declare-ok", sqs
    return names


def test_queues_that_were_declared_over_amqp_are_described_and_used_over_sqs(node: WholeNode) -> None:
    sqs = node.sqs(node.key("root", "aws"))
    dead = "arn:aws:sqs:us-east-1:000000000000:{}"
    for name in _queues_of_amqp(node):
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert attributes["MessageRetentionPeriod"] == "1209600", "for ever is what SQS has no word for"
        assert attributes["VisibilityTimeout"] == "1800"
        sqs.send_message(QueueUrl=url, MessageBody="x")
        assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
        assert sqs.list_queue_tags(QueueUrl=url).get("Tags", {}) == {}
        sqs.tag_queue(QueueUrl=url, Tags={"a": "b"})
        sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["000000000000"], Actions=["SendMessage"])
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "30"})
        policy = json.dumps({"deadLetterTargetArn": dead.format(name), "maxReceiveCount": 2})
        try:
            sqs.create_queue(QueueName=f"to-{name}", Attributes={"RedrivePolicy": policy})
        except ClientError as refused:
            assert refused.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize("attribute", ["Policy", "RedrivePolicy", "RedriveAllowPolicy"])
@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000, '{"a":' * 900 + "1" + "}" * 900])
def test_deep_json_in_a_policy_is_refused(node: WholeNode, attribute: str, text: str) -> None:
    sqs = node.sqs(node.key("root", "aws"))
    with pytest.raises(ClientError) as refused:
        sqs.create_queue(QueueName="deep", Attributes={attribute: text})
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


@pytest.mark.parametrize(
    "target",
    [
        "/?aX-Amz-Signature=1",
        "/?X-Amz-Signature=1",
        "/?X-Amz-Signature=",
        "/?a=X-Amz-Signature=1&Action=ListQueues",
        "/000000000000/q?X-Amz-Signature=%C3%A9&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=60"
        "&X-Amz-Credential={key}/20260101/us-east-1/sqs/aws4_request&X-Amz-Date=20260101T000000Z"
        "&X-Amz-SignedHeaders=host",
    ],
)
def test_odd_signatures_in_a_query_are_refused(node: WholeNode, target: str) -> None:
    key_id, _ = node.key("root", "aws")
    with node.http_wire() as wire:
        answer = wire.ask("GET", target.format(key=key_id))
        assert answer.status < 500, answer.body


@pytest.mark.parametrize("signature", ["é" * 64, "\xff", "\u0131", "", "a" * 4000])
def test_odd_signatures_in_a_header_are_refused(node: WholeNode, signature: str) -> None:
    key_id, _ = node.key("root", "aws")
    credential = f"Credential={key_id}/20260101/us-east-1/sqs/aws4_request"
    head = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: AmazonSQS.ListQueues\r\nX-Amz-Date: 20260101T000000Z\r\n"
        f"Authorization: AWS4-HMAC-SHA256 {credential}, SignedHeaders=host;x-amz-date;x-amz-target, "
        f"Signature={signature}\r\nContent-Length: 2\r\n\r\n{{}}"
    )
    with node.http_wire() as wire:
        wire.send(head.encode())
        assert 400 <= wire.read().status < 500


# --- nesting


def test_deep_arguments_are_refused_over_http(node: WholeNode) -> None:
    with node.http() as root:
        root.put("/queues/bound").raise_for_status()
        root.put("/exchanges/%2F/deep", json={"type": "headers"}).raise_for_status()
        for levels in (17, 480, 900):
            for answer in (
                root.post("/bindings/%2F/e/deep/q/bound", json={"arguments": _deep(levels)}),
                root.request("DELETE", "/bindings/%2F/e/deep/q/bound", json={"arguments": _deep(levels)}),
                root.put("/exchanges/%2F/deep-too", json={"type": "headers", "arguments": _deep(levels)}),
                root.put("/queues/deep", json={"arguments": _deep(levels)}),
            ):
                assert answer.status_code == 400 and "nested" in answer.text, answer.text
        deepest = root.post("/bindings/%2F/e/deep/q/bound", json={"arguments": _deep(16)})
        assert deepest.status_code == 201, deepest.text
        assert root.get("/bindings/%2F").status_code == 200


@pytest.mark.parametrize("levels", [17, 33, 2000])
def test_deep_arguments_are_refused_over_amqp(node: WholeNode, levels: int) -> None:
    table = b"\x01aI\x00\x00\x00\x01"
    for _ in range(levels):
        table = b"\x01aF" + len(table).to_bytes(4, "big") + table
    table = len(table).to_bytes(4, "big") + table
    queue_bind = method(1, "queue.bind", queue="amqp-bound", exchange="amq.headers")
    payload = queue_bind[7:-5] + table
    with node.amqp("root", "secret") as wire:
        assert wire.ask(1, "queue.declare", queue="amqp-bound").name == "queue.declare-ok"
        wire.send(frame(1, 1, payload))
        assert wire.read().name in ("channel.close", "connection.close")


def test_message_with_deep_headers_is_delivered_as_it_came(node: WholeNode) -> None:
    headers: Any = {"!I": 1}
    for _ in range(200):
        headers = {"deep": headers}
    with node.amqp("root", "secret") as wire, node.http() as root:
        assert wire.ask(1, "queue.declare", queue="deep-headers").name == "queue.declare-ok"
        for _ in range(3):
            wire.send(publish(1, "deep-headers", b"x", headers=headers))
        assert wire.ask(1, "basic.get", queue="deep-headers").name == "basic.get-ok"
        wire.read(), wire.read()
        assert root.get("/queues/deep-headers/messages").status_code == 200
        assert len(root.post("/queues/deep-headers/dequeue", json={"max_messages": 5}).json()["messages"]) == 2


def test_folder_with_a_binding_that_is_nested_too_deep_starts_and_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such bindings could be made before there was a bound."""
    with WholeNode(tmp_path) as old:
        old.new_queue("q")
        with old.http() as root:
            monkeypatch.setattr(topology_commands, "check_binding", lambda *_: None)
            binding = Binding("amq.headers", "queue", "q", "key", _deep(480))
            assert old.call(old.node.partitions[0].exchanges.bind, "/", binding)
            monkeypatch.undo()
            assert root.get("/bindings/%2F").status_code == 200
    with WholeNode(tmp_path) as node, node.http() as root:
        for path in (
            "/bindings/%2F",
            "/exchanges/%2F/amq.headers",
            "/bindings/%2F/e/amq.headers/q/q",
        ):
            answer = root.get(path)
            assert answer.status_code == 200, answer.text
        assert "nested too deep to be shown" in root.get("/bindings/%2F").text
        assert root.delete("/queues/q").status_code == 204
        assert root.get("/bindings/%2F").json()["bindings"] == []


# --- AMQP: the end in the middle


@pytest.mark.parametrize("part", ["method", "header", "body"])
@pytest.mark.parametrize("how", ["close", "mistake"])
def test_connection_that_ends_in_the_middle_of_a_publish_just_ends(node: WholeNode, part: str, how: str) -> None:
    start = method(1, "basic.publish", key="q")
    header = frame(2, 1, b"\0\x3c\0\0" + (10).to_bytes(8, "big") + properties())
    parts = [start, header, frame(3, 1, b"12345"), frame(3, 1, b"12345")]
    cut = {"method": 1, "header": 2, "body": 3}[part]
    with node.amqp("root", "secret") as wire:
        end = method(0, "connection.close", code=200) if how == "close" else frame(1, 1, b"\0\x3c\0\x28")
        wire.send(b"".join(parts[:cut]) + end + b"".join(parts[cut:]) + b"".join(parts))
        answer = wire.read()
        assert answer.name == ("connection.close-ok" if how == "close" else "connection.close"), str(answer)
