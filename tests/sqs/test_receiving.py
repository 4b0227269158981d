"""Receives that come together: each gets what it would have got alone."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from laneway.broker.interface import Publish
from laneway.broker.values import Messages
from tests.in_thread import wait_for
from tests.rest.serving import Wire
from tests.sqs.serving import SqsServing, bodies


def receive(serving: SqsServing, url: str, **more: Any) -> bytes:
    """A whole ReceiveMessage request, signed."""
    body = json.dumps({"QueueUrl": url, **more}).encode()
    signed = AWSRequest("POST", serving.url + "/", headers={"X-Amz-Target": "AmazonSQS.ReceiveMessage"}, data=body)
    SigV4Auth(Credentials(*serving.key), "sqs", "us-east-1").add_auth(signed)
    lines = "".join(f"{key}: {value}\r\n" for key, value in signed.headers.items())
    host = f"Host: 127.0.0.1:{serving.address[1]}\r\n"
    return f"POST / HTTP/1.1\r\n{host}{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


def answers(wire: Wire, count: int) -> list[list[dict[str, Any]]]:
    """The messages of so many answers."""
    return [json.loads(wire.read().body).get("Messages", []) for _ in range(count)]


def test_receives_that_come_together_share_out_what_there_is(serving: SqsServing, new_name: Any) -> None:
    sqs = serving.sqs()
    name = new_name()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    texts = [f'{{"n":"{n}"}} \\ é \t{"x" * n}' for n in range(12)]
    for text in texts:
        sqs.send_message(QueueUrl=url, MessageBody=text)
    asked = [
        receive(serving, url, MaxNumberOfMessages=5),
        receive(serving, url),
        receive(serving, url, MaxNumberOfMessages=3, AttributeNames=["All"]),
        receive(serving, url, MaxNumberOfMessages=10),
        receive(serving, url, MaxNumberOfMessages=10),
    ]
    with serving.connect() as wire:
        wire.send(b"".join(asked))
        found = answers(wire, 5)
    assert [[m["Body"] for m in one] for one in found] == [texts[:5], texts[5:6], texts[6:9], texts[9:], []]
    messages = [message for one in found for message in one]
    assert all(m["MD5OfBody"] == hashlib.md5(m["Body"].encode()).hexdigest() for m in messages)
    assert ["Attributes" in m for m in messages] == [False] * 6 + [True] * 3 + [False] * 3
    assert all(m["Attributes"]["ApproximateReceiveCount"] == "1" for m in found[2])
    assert len({m["MessageId"] for m in messages}) == 12
    entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages[:10])]
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in deleted["Successful"]] == [str(n) for n in range(10)] and "Failed" not in deleted
    assert serving.stats(name).leased == 2


def test_a_message_that_comes_again_has_the_same_md5_and_its_first_receive(serving: SqsServing, new_name: Any) -> None:
    sqs = serving.sqs()
    url = sqs.create_queue(QueueName=new_name())["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="once more")
    (first,) = sqs.receive_message(QueueUrl=url)["Messages"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=0)
    (second,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert second["MD5OfBody"] == first["MD5OfBody"] == hashlib.md5(b"once more").hexdigest()
    attributes = second["Attributes"]
    assert attributes["ApproximateReceiveCount"] == "2"
    assert int(attributes["SentTimestamp"]) <= int(attributes["ApproximateFirstReceiveTimestamp"])


def test_a_body_that_is_no_text_is_shown_in_base64_beside_others(serving: SqsServing, new_name: Any) -> None:
    sqs = serving.sqs()
    name = new_name()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    number = serving.call(serving.broker.topology.find_queue, "/", name).queue
    serving.ask(Publish((number,), Messages([b"\xff\x00"], [b""])))
    sqs.send_message(QueueUrl=url, MessageBody="text")
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [m["Body"] for m in found] == ["/wA=", "text"]
    assert [m["MD5OfBody"] for m in found] == [hashlib.md5(body).hexdigest() for body in (b"/wA=", b"text")]


def test_those_for_whom_nothing_is_left_wait(serving: SqsServing, new_name: Any) -> None:
    sqs = serving.sqs()
    name = new_name()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="first")
    with serving.connect() as wire:
        wire.send(receive(serving, url, WaitTimeSeconds=20) + receive(serving, url, WaitTimeSeconds=20))
        assert [m["Body"] for m in answers(wire, 1)[0]] == ["first"]
        wait_for(lambda: serving.stats(name).consumers_waiting == 1, "it waits")
        sqs.send_message(QueueUrl=url, MessageBody="second")
        assert [m["Body"] for m in answers(wire, 1)[0]] == ["second"]
    assert bodies(sqs.receive_message(QueueUrl=url)) == []
