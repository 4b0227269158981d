"""Receipt handles whose visibility timeout has ended, on standard and FIFO queues; boto3, in both forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sqs.serving import SqsServing, attribute, bodies, refusal

NewQueue = Callable[..., str]
NOT_THERE = "Message does not exist or is not available for visibility timeout change."


@pytest.fixture
def serving(aging: SqsServing) -> SqsServing:
    return aging


@pytest.fixture(params=["json", "query"])
def sqs(request: pytest.FixtureRequest, aging: SqsServing) -> Any:
    return aging.sqs(form=request.param)


def received(sqs: Any, queue: str, **more: Any) -> str:
    (message,) = sqs.receive_message(QueueUrl=queue, **more)["Messages"]
    return str(message["ReceiptHandle"])


@pytest.fixture
def late(sqs: Any, queue: str, serving: SqsServing) -> str:
    """The handle of a message whose visibility timeout is over."""
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    handle = received(sqs, queue, VisibilityTimeout=10)
    serving.ahead_ms += 11_000
    return handle


def test_a_late_delete_deletes(sqs: Any, queue: str, late: str) -> None:
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=late)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=late)
    assert attribute(sqs, queue, "ApproximateNumberOfMessages") == "0"
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []


def test_a_late_delete_in_a_batch_deletes(sqs: Any, queue: str, late: str) -> None:
    entries = [{"Id": "a", "ReceiptHandle": late}, {"Id": "b", "ReceiptHandle": "none"}]
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=entries)
    assert [one["Id"] for one in answer["Successful"]] == ["a"]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in answer["Failed"]] == [
        ("b", "ReceiptHandleIsInvalid", True)
    ]
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []


def test_a_late_delete_does_nothing_to_a_message_that_somebody_received_since(sqs: Any, queue: str, late: str) -> None:
    newer = received(sqs, queue)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=late)
    assert attribute(sqs, queue, "ApproximateNumberOfMessagesNotVisible") == "1"
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=newer)
    assert attribute(sqs, queue, "ApproximateNumberOfMessagesNotVisible") == "0"


def test_a_delete_after_the_visibility_was_ended_deletes(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    handle = received(sqs, queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []


def test_a_late_change_hides_the_message_again(sqs: Any, queue: str, late: str, serving: SqsServing) -> None:
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=late, VisibilityTimeout=10)
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []
    assert attribute(sqs, queue, "ApproximateNumberOfMessagesNotVisible") == "1"
    serving.ahead_ms += 11_000
    sqs.change_message_visibility_batch(
        QueueUrl=queue, Entries=[{"Id": "a", "ReceiptHandle": late, "VisibilityTimeout": 5}]
    )
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=late, VisibilityTimeout=0)
    (message,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["ApproximateReceiveCount"])["Messages"]
    assert message["Attributes"] == {"ApproximateReceiveCount": "2"}


def test_a_change_is_refused_once_the_message_is_gone_or_anothers(sqs: Any, queue: str, late: str) -> None:
    newer = received(sqs, queue)
    said = f"Value {late} for parameter ReceiptHandle is invalid. Reason: {NOT_THERE}"
    change = {"QueueUrl": queue, "ReceiptHandle": late, "VisibilityTimeout": 5}
    assert refusal(sqs.change_message_visibility, **change) == ("InvalidParameterValue", said)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=newer)
    assert refusal(sqs.change_message_visibility, **change) == ("InvalidParameterValue", said)
    answer = sqs.change_message_visibility_batch(
        QueueUrl=queue, Entries=[{"Id": "a", "ReceiptHandle": late, "VisibilityTimeout": 5}]
    )
    assert [(one["Code"], one["Message"]) for one in answer["Failed"]] == [("InvalidParameterValue", said)]


def test_on_a_fifo_queue_a_late_handle_is_refused(sqs: Any, new_queue: NewQueue, serving: SqsServing) -> None:
    fifo = new_queue(".fifo", ContentBasedDeduplication="true")
    sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g")
    handle = received(sqs, fifo, VisibilityTimeout=10)
    serving.ahead_ms += 11_000
    value = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: "
    assert refusal(sqs.delete_message, QueueUrl=fifo, ReceiptHandle=handle) == (
        "InvalidParameterValue",
        value + "The receipt handle has expired.",
    )
    change = {"QueueUrl": fifo, "ReceiptHandle": handle, "VisibilityTimeout": 5}
    assert refusal(sqs.change_message_visibility, **change) == ("InvalidParameterValue", value + NOT_THERE)
    assert bodies(sqs.receive_message(QueueUrl=fifo)) == ["x"]


def test_handles_of_another_account_are_no_handles(sqs: Any, queue: str, late: str, serving: SqsServing) -> None:
    serving.run(serving.access.put_account("thief", password="secret", roles=["admin"]))
    thief = serving.sqs(serving.new_key("thief"))
    thief.delete_message(QueueUrl=queue, ReceiptHandle=late)
    change = {"QueueUrl": queue, "ReceiptHandle": late, "VisibilityTimeout": 5}
    assert refusal(thief.change_message_visibility, **change)[0] == "InvalidParameterValue"
    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["x"]
