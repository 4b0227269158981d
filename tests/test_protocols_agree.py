"""The same scenario through HTTP, AMQP and SQS, on one node: each leaves the same events in the journal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import boto3
import httpx
import pika
import pytest

from laneway.config import Address, load_config
from laneway.errors import ConfigInvalid
from laneway.journal.history.inspect import dump
from laneway.node import Node
from tests.wire_broker import folder_of_queues


class Speaker(Protocol):
    """What the three protocols have in common, in Laneway's words."""

    def create(self, queue: str, *, dead_letters: str | None = None) -> None: ...
    def publish(self, queue: str, text: str, priority: int) -> None: ...
    def lease(self, queue: str) -> tuple[str, Any]:
        """(body, what settles it)"""

    def ack(self, queue: str, handle: Any) -> None: ...
    def release(self, queue: str, handle: Any) -> None: ...
    def purge(self, queue: str) -> None: ...
    def delete(self, queue: str) -> None: ...


class OverHttp:
    def __init__(self, node: dict[str, Address]) -> None:
        self._client = httpx.Client(base_url=f"http://{node['http']}", timeout=30)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._client.request(method, f"/queues/{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def create(self, queue: str, *, dead_letters: str | None = None) -> None:
        self._ask("PUT", queue, {"dead_letter_queue": dead_letters, "max_receive_count": 2 if dead_letters else None})

    def publish(self, queue: str, text: str, priority: int) -> None:
        self._ask("POST", f"{queue}/messages", {"payload": text, "priority": priority})

    def lease(self, queue: str) -> tuple[str, Any]:
        (message,) = self._ask("POST", f"{queue}/dequeue", {})["messages"]
        return message["payload"], (message["message_id"], message["receipt_handle"])

    def ack(self, queue: str, handle: Any) -> None:
        self._ask("DELETE", f"{queue}/messages/{handle[0]}", {"receipt_handle": handle[1]})

    def release(self, queue: str, handle: Any) -> None:
        self._ask("POST", f"{queue}/messages/{handle[0]}/nack", {"receipt_handle": handle[1]})

    def purge(self, queue: str) -> None:
        self._ask("POST", f"{queue}/purge")

    def delete(self, queue: str) -> None:
        self._ask("DELETE", queue)


class OverAmqp:
    def __init__(self, node: dict[str, Address]) -> None:
        address = node["amqp"]
        self._channel = pika.BlockingConnection(pika.ConnectionParameters(address.host, address.port)).channel()
        self._channel.confirm_delivery()

    def create(self, queue: str, *, dead_letters: str | None = None) -> None:
        arguments: dict[str, Any] = {"x-max-priority": 10}
        if dead_letters:
            arguments = {
                "x-queue-type": "quorum",
                "x-delivery-limit": 1,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": dead_letters,
            }
        self._channel.queue_declare(queue, durable=True, arguments=arguments)

    def publish(self, queue: str, text: str, priority: int) -> None:
        self._channel.basic_publish("", queue, text.encode(), pika.BasicProperties(priority=priority, delivery_mode=2))

    def lease(self, queue: str) -> tuple[str, Any]:
        method, _, body = self._channel.basic_get(queue)
        return body.decode(), method.delivery_tag

    def ack(self, queue: str, handle: Any) -> None:
        self._channel.basic_ack(handle)
        self._channel.queue_declare(queue, passive=True)  # what is answered after it

    def release(self, queue: str, handle: Any) -> None:
        self._channel.basic_nack(handle, requeue=True)
        self._channel.queue_declare(queue, passive=True)

    def purge(self, queue: str) -> None:
        self._channel.queue_purge(queue)

    def delete(self, queue: str) -> None:
        self._channel.queue_delete(queue)


class OverSqs:
    def __init__(self, node: dict[str, Address]) -> None:
        self._client = boto3.client(
            "sqs",
            endpoint_url=f"http://{node['http']}",
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )

    def create(self, queue: str, *, dead_letters: str | None = None) -> None:
        attributes = {}
        if dead_letters:
            told = self._client.get_queue_attributes(QueueUrl=dead_letters, AttributeNames=["QueueArn"])["Attributes"]
            policy = {"deadLetterTargetArn": told["QueueArn"], "maxReceiveCount": 2}
            attributes["RedrivePolicy"] = json.dumps(policy)
        self._client.create_queue(QueueName=queue, Attributes=attributes)

    def publish(self, queue: str, text: str, priority: int) -> None:
        attributes = {"Laneway.Priority": {"DataType": "Number", "StringValue": str(priority)}}
        self._client.send_message(QueueUrl=queue, MessageBody=text, MessageAttributes=attributes)

    def lease(self, queue: str) -> tuple[str, Any]:
        (message,) = self._client.receive_message(QueueUrl=queue)["Messages"]
        return message["Body"], message["ReceiptHandle"]

    def ack(self, queue: str, handle: Any) -> None:
        self._client.delete_message(QueueUrl=queue, ReceiptHandle=handle)

    def release(self, queue: str, handle: Any) -> None:
        self._client.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)

    def purge(self, queue: str) -> None:
        self._client.purge_queue(QueueUrl=queue)

    def delete(self, queue: str) -> None:
        self._client.delete_queue(QueueUrl=queue)


def settles(speaker: Speaker, queue: str) -> None:
    """Published, leased by priority, released to its place, leased again, acked."""
    speaker.create(queue)
    for text, priority in (("low", 1), ("high", 9), ("middle", 5)):
        speaker.publish(queue, text, priority)
    body, handle = speaker.lease(queue)
    assert body == "high"
    speaker.release(queue, handle)
    for expected in ("high", "middle", "low"):
        body, handle = speaker.lease(queue)
        assert body == expected
        speaker.ack(queue, handle)


def dies(speaker: Speaker, queue: str) -> None:
    """Received as often as it may be, then moved to the dead-letter queue, and acked there."""
    speaker.create(f"{queue}-dead")
    speaker.create(queue, dead_letters=f"{queue}-dead")
    speaker.publish(queue, "poison", 5)
    for _ in range(2):
        speaker.release(queue, speaker.lease(queue)[1])
    body, handle = speaker.lease(f"{queue}-dead")
    assert body == "poison"
    speaker.ack(f"{queue}-dead", handle)


def ends(speaker: Speaker, queue: str) -> None:
    """Purged, then deleted with what came after."""
    speaker.create(queue)
    speaker.publish(queue, "a", 1)
    speaker.purge(queue)
    speaker.publish(queue, "b", 1)
    speaker.delete(queue)


def reads_each_other(addresses: dict[str, Address]) -> None:
    """What SQS sends, AMQP gets with its attributes as headers; and the other way round."""
    over_amqp, over_sqs = OverAmqp(addresses), OverSqs(addresses)
    channel, sqs = over_amqp._channel, over_sqs._client
    over_sqs.create("both")
    sqs.send_message(
        QueueUrl="both",
        MessageBody="wörd",
        MessageAttributes={
            "text": {"DataType": "String", "StringValue": "x"},
            "number": {"DataType": "Number", "StringValue": "7"},
            "bytes": {"DataType": "Binary", "BinaryValue": b"\xff"},
        },
    )
    method, properties, body = channel.basic_get("both")
    assert (body.decode(), properties.content_type) == ("wörd", "text/plain")
    assert properties.headers == {"text": "x", "number": 7, "bytes": b"\xff"}
    channel.basic_ack(method.delivery_tag)
    headers = {"text": "x", "number": 7, "list": [1, "a"]}
    channel.basic_publish("", "both", "wörd".encode(), pika.BasicProperties(headers=headers, content_type="text/x"))
    (message,) = sqs.receive_message(QueueUrl="both", MessageAttributeNames=["All"])["Messages"]
    assert message["Body"] == "wörd"
    assert message["MessageAttributes"] == {
        "text": {"DataType": "String", "StringValue": "x"},
        "number": {"DataType": "Number", "StringValue": "7"},
        "list": {"DataType": "String", "StringValue": '[1,"a"]'},
    }


SPEAKERS: dict[str, Callable[[dict[str, Address]], Speaker]] = {"http": OverHttp, "amqp": OverAmqp, "sqs": OverSqs}


def events_of(folder: Path, queue: str) -> list[tuple[str, int]]:
    """(kind, messages) of a queue's events; neighbours of one kind, which a commit may join, are added up."""
    told: list[tuple[str, int]] = []
    for event in dump(folder_of_queues(folder), queue=queue):
        assert "problem" not in event, event
        kind, count = event["kind"], event.get("count", 1)
        if told and told[-1][0] == kind:
            told[-1] = (kind, told[-1][1] + count)
        else:
            told.append((kind, count))
    return told


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a node on which every scenario was played in every protocol."""
    folder: Path = tmp_path_factory.mktemp("agree") / "data"
    flags = {"data": str(folder), "http": "127.0.0.1:0", "amqp": "127.0.0.1:0"}

    def play(addresses: dict[str, Address]) -> None:
        reads_each_other(addresses)
        for name, speaker_of in SPEAKERS.items():
            speaker = speaker_of(addresses)
            for scenario in (settles, dies, ends):
                scenario(speaker, f"{name}-{scenario.__name__}")

    async def main() -> None:
        async with Node(load_config(flags, {})) as node:
            await asyncio.to_thread(play, node.addresses)

    asyncio.run(main())
    yield folder


@pytest.mark.parametrize("queue", ["settles", "dies", "dies-dead", "ends"])
def test_the_journal_tells_the_same_story(spoken: Path, queue: str) -> None:
    stories = {name: events_of(spoken, f"{name}-{queue}") for name in SPEAKERS}
    assert stories["http"] == stories["amqp"] == stories["sqs"]
    assert len(stories["http"]) > 2


@pytest.mark.parametrize(("setting", "value"), [("sqs_account_id", "12"), ("sqs_region", "Not A Region")])
def test_a_node_with_a_wrong_name_for_sqs_does_not_start(tmp_path: Path, setting: str, value: str) -> None:
    with pytest.raises(ConfigInvalid, match=setting):
        Node(load_config({"data": str(tmp_path), setting: value}, {}))
