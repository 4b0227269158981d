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
    # Given back, it is next again, though the one behind it is still held; and holds up those behind itself.
    handles = [message["ReceiptHandle"] for message in rest["Messages"]]
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=handles[0], VisibilityTimeout=0)
    (again,) = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)["Messages"]
    assert again["Body"] == "a2"
    sqs.change_message_visibility(QueueUrl=fifo, ReceiptHandle=handles[1], VisibilityTimeout=0)
    assert bodies(sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)) == []
    sqs.delete_message(QueueUrl=fifo, ReceiptHandle=again["ReceiptHandle"])
    assert bodies(sqs.receive_message(QueueUrl=fifo, ReceiveRequestAttemptId="try1")) == ["a3"]


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


# --- ReceiveRequestAttemptId


def attempt(sqs: Any, queue: str, name: str = "try-1", **more: Any) -> list[tuple[str, str]]:
    """(body, receipt handle) of what an attempt gets."""
    answer = sqs.receive_message(QueueUrl=queue, ReceiveRequestAttemptId=name, MaxNumberOfMessages=10, **more)
    return [(message["Body"], message["ReceiptHandle"]) for message in answer.get("Messages", [])]


@pytest.fixture
def waiting(sqs: Any, fifo: str) -> str:
    """A FIFO queue with two messages of one group and one of another."""
    for group, text in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        sqs.send_message(QueueUrl=fifo, MessageBody=text, MessageGroupId=group)
    return fifo


def test_a_repeated_attempt_gets_the_same_messages_and_handles(sqs: Any, waiting: str) -> None:
    first = attempt(sqs, waiting)
    assert [body for body, _ in first] == ["a1", "a2", "b1"]
    sqs.send_message(QueueUrl=waiting, MessageBody="c1", MessageGroupId="c")
    assert attempt(sqs, waiting) == first
    assert attempt(sqs, waiting, MessageSystemAttributeNames=["ApproximateReceiveCount"]) == first
    answer = sqs.receive_message(
        QueueUrl=waiting, ReceiveRequestAttemptId="try-1", AttributeNames=["ApproximateReceiveCount"]
    )
    assert [m["Attributes"]["ApproximateReceiveCount"] for m in answer["Messages"]] == ["1"] * 3
    assert [body for body, _ in attempt(sqs, waiting, "try-2")] == ["c1"]
    for _, handle in first:
        sqs.delete_message(QueueUrl=waiting, ReceiptHandle=handle)
    assert attempt(sqs, waiting) == []


@pytest.mark.parametrize("change", ["delete", "visibility", "release"])
def test_after_a_change_an_attempt_is_a_receive(sqs: Any, waiting: str, change: str) -> None:
    first = attempt(sqs, waiting)
    sqs.send_message(QueueUrl=waiting, MessageBody="c1", MessageGroupId="c")
    one = {"QueueUrl": waiting, "ReceiptHandle": first[2][1]}
    if change == "delete":
        sqs.delete_message(**one)
    else:
        sqs.change_message_visibility(**one, VisibilityTimeout=600 if change == "visibility" else 0)
    wanted = ["c1", "b1"] if change == "release" else ["c1"]
    second = attempt(sqs, waiting)
    assert [body for body, _ in second] == wanted
    assert attempt(sqs, waiting) == second


def test_how_long_an_attempt_is_remembered(tmp_path: Path) -> None:
    with SqsServing(tmp_path) as serving:  # of its own: its clock is moved
        sqs = serving.sqs()
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
        fifo = sqs.create_queue(QueueName="q.fifo", Attributes=attributes)["QueueUrl"]
        sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g")
        first = attempt(sqs, fifo, VisibilityTimeout=60)
        for _ in range(2):  # a repeat begins the visibility timeout anew
            serving.ahead_ms += 50_000
            assert attempt(sqs, fifo, VisibilityTimeout=60) == first != []
        serving.ahead_ms += 61_000
        second = attempt(sqs, fifo, VisibilityTimeout=3600)  # it ran out: another delivery
        assert [body for body, _ in second] == ["x"] and second != first
        serving.ahead_ms += 299_000
        assert attempt(sqs, fifo, VisibilityTimeout=3600) == second
        serving.ahead_ms += 2_000
        assert attempt(sqs, fifo) == []  # five minutes after it was answered first


def test_an_attempt_that_got_nothing_is_not_remembered(sqs: Any, fifo: str) -> None:
    assert attempt(sqs, fifo) == []
    sqs.send_message(QueueUrl=fifo, MessageBody="x", MessageGroupId="g")
    assert [body for body, _ in attempt(sqs, fifo)] == ["x"]


def test_attempts_of_other_queues_and_accounts_are_others(
    sqs: Any, waiting: str, new_queue: NewQueue, serving: SqsServing
) -> None:
    first = attempt(sqs, waiting)
    other = new_queue(".fifo", ContentBasedDeduplication="true")
    sqs.send_message(QueueUrl=other, MessageBody="x", MessageGroupId="g")
    assert [body for body, _ in attempt(sqs, other)] == ["x"]
    serving.run(serving.access.put_account("else", password="secret", roles=["admin"]))
    assert attempt(serving.sqs(serving.new_key("else")), waiting) == []
    assert attempt(sqs, waiting) == first


def test_a_standard_queue_knows_no_attempts(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    assert [body for body, _ in attempt(sqs, queue)] == ["x"]
    assert attempt(sqs, queue) == []


def test_what_an_attempt_may_be_called(sqs: Any, fifo: str) -> None:
    for name in ("a b", "x" * 129, "ü"):
        assert refusal(attempt, sqs=sqs, queue=fifo, name=name)[0] == "InvalidParameterValue"
    assert attempt(sqs, fifo, "!" * 128) == []
