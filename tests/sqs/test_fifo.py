"""FIFO queues with boto3, in both forms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sqs.serving import SqsServing, attribute, bodies, refusal

NewQueue = Callable[..., str]


@pytest.fixture
def fifo(new_queue: NewQueue) -> str:
    return new_queue(".fifo", ContentBasedDeduplication="true")


def test_attributes_of_a_fifo_queue(sqs: Any, fifo: str) -> None:
    told = sqs.get_queue_attributes(QueueUrl=fifo, AttributeNames=["All"])["Attributes"]
    assert {name: told[name] for name in told if "Fifo" in name or "Dedup" in name} == {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "true",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }
    high = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes=high)
    assert attribute(sqs, fifo, "FifoThroughputLimit") == "perMessageGroupId"
    said = refusal(sqs.set_queue_attributes, QueueUrl=fifo, Attributes={"DeduplicationScope": "queue"})
    assert said[0] == "InvalidAttributeValue"


def test_the_name_and_the_attribute_go_together(sqs: Any) -> None:
    assert refusal(sqs.create_queue, QueueName="plain", Attributes={"FifoQueue": "true"}) == (
        "InvalidParameterValue",
        "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, "
        "must end with .fifo suffix and be 1 to 80 in length",
    )


def test_a_group_is_held_while_one_of_it_is_out(sqs: Any, fifo: str) -> None:
    for group, text in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")):
        sqs.send_message(QueueUrl=fifo, MessageBody=text, MessageGroupId=group)
    (first,) = sqs.receive_message(QueueUrl=fifo)["Messages"]
    assert first["Body"] == "a1"
    assert bodies(sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)) == ["b1"]
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=first["ReceiptHandle"])
    rest = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)
    assert bodies(rest) == ["a2", "a3"]
    # Given back, it is next again; the one behind it is still held.
    handles = [message["ReceiptHandle"] for message in rest["Messages"]]
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=handles[0], VisibilityTimeout=0)
    assert bodies(sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)) == []
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=handles[1])
    assert bodies(sqs.receive_message(QueueUrl=fifo, ReceiveRequestAttemptId="try1")) == ["a2"]


def test_sequence_numbers_and_ids_are_told(sqs: Any, fifo: str) -> None:
    sent = [
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g", MessageDeduplicationId=f"d{n}")
        for n in range(3)
    ]
    numbers = [one["SequenceNumber"] for one in sent]
    assert numbers == sorted(numbers) and all(len(number) == 20 for number in numbers)
    messages = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    told = [message["Attributes"] for message in messages]
    assert [one["SequenceNumber"] for one in told] == numbers
    assert [(one["MessageGroupId"], one["MessageDeduplicationId"]) for one in told] == [
        ("g", "d0"),
        ("g", "d1"),
        ("g", "d2"),
    ]


def test_a_repeat_is_taken_once(sqs: Any, fifo: str) -> None:
    first = sqs.send_message(QueueUrl=fifo, MessageBody="same", MessageGroupId="g")
    again = sqs.send_message(QueueUrl=fifo, MessageBody="same", MessageGroupId="other")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    batch = sqs.send_message_batch(
        QueueUrl=fifo,
        Entries=[
            {"Id": str(n), "MessageBody": f"b{n}", "MessageGroupId": "g", "MessageDeduplicationId": "one"}
            for n in range(3)
        ],
    )
    assert len({one["MessageId"] for one in batch["Successful"]}) == 1
    assert attribute(sqs, fifo, "ApproximateNumberOfMessages") == "2"


def test_a_dedup_id_is_forgotten_after_five_minutes(tmp_path: Path) -> None:
    with SqsServing(tmp_path) as serving:  # of its own: its clock is moved
        sqs = serving.sqs()
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        fifo = sqs.create_queue(QueueName="q.fifo", Attributes=attributes)["QueueUrl"]

        def send() -> str:
            return str(sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g")["MessageId"])

        first = send()
        serving.ahead_ms += 299_000
        assert send() == first
        serving.ahead_ms += 2_000
        assert send() != first


def test_the_window_can_be_that_of_a_group(sqs: Any, new_queue: NewQueue) -> None:
    queue = new_queue(".fifo", ContentBasedDeduplication="true", DeduplicationScope="messageGroup")
    ids = [
        sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId=group)["MessageId"]
        for group in ("a", "b", "a")
    ]
    assert ids[0] != ids[1] and ids[0] == ids[2]
    sqs.send_message(QueueUrl=queue, MessageBody="y", MessageGroupId="c", MessageDeduplicationId="mine")
    messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    assert messages[-1]["Attributes"]["MessageDeduplicationId"] == "mine"


def test_what_a_fifo_queue_wants(sqs: Any, new_queue: NewQueue) -> None:
    queue = new_queue(".fifo")
    assert refusal(sqs.send_message, QueueUrl=queue, MessageBody="x") == (
        "MissingParameter",
        "The request must contain the parameter MessageGroupId.",
    )
    code, text = refusal(sqs.send_message, QueueUrl=queue, MessageBody="x", MessageGroupId="g")
    assert code == "InvalidParameterValue" and "ContentBasedDeduplication" in text
    good = {"QueueUrl": queue, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    assert refusal(sqs.send_message, **{**good, "DelaySeconds": 1})[0] == "InvalidParameterValue"
    assert refusal(sqs.send_message, **{**good, "MessageGroupId": "a b"})[0] == "InvalidParameterValue"
    assert refusal(sqs.send_message, **{**good, "MessageDeduplicationId": "x" * 129})[0] == "InvalidParameterValue"
    sqs.send_message(**good)


def test_a_handle_that_ran_out_is_told(sqs: Any, fifo: str) -> None:
    sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g")
    (message,) = sqs.receive_message(QueueUrl=fifo, VisibilityTimeout=0)["Messages"]
    code, text = refusal(sqs.delete_message, QueueUrl=fifo, ReceiptHandle=message["ReceiptHandle"])
    assert code == "InvalidParameterValue" and text.endswith("Reason: The receipt handle has expired.")


def test_a_group_on_a_standard_queue_names_a_tenant(sqs: Any, queue: str, serving: SqsServing) -> None:
    for n in range(2):
        sqs.send_message(QueueUrl=queue, MessageBody=str(n), MessageGroupId="tenant")
    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["0"]
    (message,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["MessageGroupId"])["Messages"]
    assert message["Attributes"] == {"MessageGroupId": "tenant"}  # nothing is held
