"""Fair queues with boto3, and the same queue over HTTP and AMQP: a noisy tenant does not keep the others waiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pika
import pytest

from laneway.config import Address, load_config
from laneway.node import Node
from tests.in_thread import wait_for

BACKLOG = 3_000


class Clients:
    """One of each protocol, on one node."""

    def __init__(self, addresses: dict[str, Address]) -> None:
        url, amqp = f"http://{addresses['http']}", addresses["amqp"]
        self.sqs: Any = boto3.client(
            "sqs", endpoint_url=url, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x"
        )
        self.http = httpx.Client(base_url=url, timeout=30)
        self.amqp: Any = pika.BlockingConnection(pika.ConnectionParameters(amqp.host, amqp.port)).channel()
        self.amqp.confirm_delivery()

    def close(self) -> None:
        self.amqp.connection.close()
        self.http.close()
        self.sqs.close()

    def stats(self, queue: str) -> dict[str, Any]:
        return dict(self.http.get(f"/queues/{queue}/stats").raise_for_status().json())

    def publish(self, queue: str, tenant: str, texts: list[str]) -> None:
        """Over HTTP, a thousand at a time."""
        for first in range(0, len(texts), 1000):
            batch = [{"payload": text, "tenant": tenant} for text in texts[first : first + 1000]]
            assert self.http.post(f"/queues/{queue}/messages", json=batch).status_code == 201

    def receive(self, queue: str, count: int = 10) -> list[tuple[str, str]]:
        """(tenant, receipt handle) of what boto3 gets."""
        answer = self.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=count, AttributeNames=["MessageGroupId"])
        return [
            (message.get("Attributes", {}).get("MessageGroupId", ""), message["ReceiptHandle"])
            for message in answer.get("Messages", [])
        ]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder: Path = tmp_path_factory.mktemp("fair") / "data"
    flags = {"data": str(folder), "http": "127.0.0.1:0", "amqp": "127.0.0.1:0"}
    loop = asyncio.new_event_loop()
    node = Node(load_config(flags, {}))
    loop.run_until_complete(node.__aenter__())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    made = Clients(node.addresses)
    yield made
    made.close()
    asyncio.run_coroutine_threadsafe(node.__aexit__(None, None, None), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


def besieged(clients: Clients, queue: str) -> list[str]:
    """A queue with thousands of messages of one tenant, of which fifty are in flight; their receipt handles."""
    clients.sqs.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": "600"})
    clients.publish(queue, "noisy", [f"noisy {n}" for n in range(BACKLOG)])
    return [handle for _ in range(5) for _, handle in clients.receive(queue)]


def test_quiet_tenants_come_first(clients: Clients) -> None:
    handles = besieged(clients, "orders")
    assert clients.stats("orders")["noisy_tenants"] == ["noisy"]
    for n in range(6):
        clients.sqs.send_message(QueueUrl="orders", MessageBody=f"quiet {n}", MessageGroupId=f"quiet-{n % 3}")
    clients.sqs.send_message(QueueUrl="orders", MessageBody="of nobody")
    entries = [{"Id": str(n), "MessageBody": f"late {n}", "MessageGroupId": "late"} for n in range(3)]
    assert len(clients.sqs.send_message_batch(QueueUrl="orders", Entries=entries)["Successful"]) == 3
    first = [tenant for tenant, _ in clients.receive("orders")]
    assert first == ["quiet-0", "quiet-1", "quiet-2", "quiet-0", "quiet-1", "quiet-2", "", "late", "late", "late"]
    assert {tenant for tenant, _ in clients.receive("orders")} == {"noisy"}
    # With few in flight it is like any other again, and has its turn by age.
    for handle in handles:
        clients.sqs.delete_message(QueueUrl="orders", ReceiptHandle=handle)
    assert clients.stats("orders")["noisy_tenants"] == []
    clients.sqs.send_message(QueueUrl="orders", MessageBody="x", MessageGroupId="quiet-0")
    assert {tenant for tenant, _ in clients.receive("orders")} == {"noisy"}


def test_the_same_queue_over_http(clients: Clients) -> None:
    besieged(clients, "over-http")
    clients.publish("over-http", "quiet", ["a", "b"])
    answer = clients.http.post("/queues/over-http/dequeue", json={"max_messages": 4}).raise_for_status().json()
    assert [message["tenant"] for message in answer["messages"]] == ["quiet", "quiet", "noisy", "noisy"]
    assert [message["payload"] for message in answer["messages"]] == ["a", "b", "noisy 50", "noisy 51"]


def test_the_same_queue_over_amqp(clients: Clients) -> None:
    besieged(clients, "over-amqp")
    clients.publish("over-amqp", "quiet", ["a", "b"])
    channel = clients.amqp
    assert channel.basic_get("over-amqp", auto_ack=True)[2] == b'"a"'
    channel.basic_publish("", "over-amqp", b"of nobody", pika.BasicProperties(priority=5))
    channel.basic_qos(prefetch_count=3)
    got = []
    for _, _, body in channel.consume("over-amqp"):
        got.append(body)
        if len(got) == 3:
            break
    channel.cancel()
    assert got == [b'"b"', b"of nobody", b'"noisy 50"']


def test_what_a_consumer_of_amqp_holds_counts_as_in_flight(clients: Clients) -> None:
    clients.sqs.create_queue(QueueName="pushed")
    clients.publish("pushed", "noisy", [str(n) for n in range(100)])
    channel = clients.amqp
    channel.basic_qos(prefetch_count=40)
    tags = [method.delivery_tag for method, _, _ in (channel.basic_get("pushed") for _ in range(40))]
    clients.publish("pushed", "quiet", ["a"])
    assert [tenant for tenant, _ in clients.receive("pushed", 2)] == ["quiet", "noisy"]
    channel.basic_nack(tags[-1], multiple=True, requeue=True)
    channel.queue_declare("pushed", passive=True)  # answered after it
    assert clients.stats("pushed")["noisy_tenants"] == []


def test_dead_letters_come_back_to_their_tenant(clients: Clients) -> None:
    """A redrive of a noisy tenant's dead letters does not get in the way of the others."""
    sqs = clients.sqs
    sqs.create_queue(QueueName="died")
    arn = sqs.get_queue_attributes(QueueUrl="died", AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
    sqs.create_queue(QueueName="dying", Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "600"})
    clients.publish("dying", "noisy", [str(n) for n in range(80)])
    for _ in range(8):
        for _, handle in clients.receive("dying"):
            sqs.change_message_visibility(QueueUrl="dying", ReceiptHandle=handle, VisibilityTimeout=0)
    assert clients.stats("died")["approximate_message_count"] == 80
    assert clients.http.post("/queues/died/redrive", json={}).status_code == 202
    wait_for(lambda: clients.stats("dying")["approximate_message_count"] == 80, "the redrive is done")
    assert sum(len(clients.receive("dying")) for _ in range(4)) == 40
    clients.publish("dying", "quiet", ["a"])
    assert [tenant for tenant, _ in clients.receive("dying", 2)] == ["quiet", "noisy"]


def test_the_setting_can_be_taken_back_and_given_to_any_queue(clients: Clients) -> None:
    http = clients.http
    clients.sqs.create_queue(QueueName="standard")
    clients.sqs.create_queue(QueueName="first.fifo", Attributes={"FifoQueue": "true"})
    assert [http.get(f"/queues/{name}").json()["fair"] for name in ("standard", "first.fifo")] == [True, False]
    assert http.patch("/queues/standard", json={"fair": False}).json()["fair"] is False
    # SQS has no word for it, and leaves it alone.
    clients.sqs.set_queue_attributes(QueueUrl="standard", Attributes={"VisibilityTimeout": "7"})
    clients.sqs.create_queue(QueueName="standard")
    assert http.get("/queues/standard").json()["fair"] is False
    assert http.put("/queues/plain").json()["fair"] is False
    assert http.put("/queues/plain", json={"fair": True}).json()["fair"] is True
