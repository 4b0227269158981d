"""Dead-letter queues and message move tasks with boto3, in both forms."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.in_thread import wait_for
from tests.sqs.serving import ACCOUNT_ID, REGION, attribute, bodies, refusal

NewQueue = Callable[..., str]


def policy(sqs: Any, target: str, count: object) -> str:
    return json.dumps({"deadLetterTargetArn": attribute(sqs, target, "QueueArn"), "maxReceiveCount": count})


@pytest.fixture
def dead(new_queue: NewQueue) -> str:
    return new_queue("-dead")


@pytest.fixture
def source(sqs: Any, new_queue: NewQueue, dead: str) -> str:
    return new_queue(RedrivePolicy=policy(sqs, dead, 2))


def task_handle(arn: str) -> str:
    told = {"taskId": "10f57157-fc38-4da9-a113-4de7e12d05dd", "sourceArn": arn}
    return base64.b64encode(json.dumps(told).encode()).decode()


def exhaust(sqs: Any, queue: str) -> None:
    for _ in range(2):
        assert sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0)["Messages"]
    assert bodies(sqs.receive_message(QueueUrl=queue, VisibilityTimeout=0)) == []


def test_a_message_received_too_often_is_moved(sqs: Any, source: str, dead: str) -> None:
    sent = sqs.send_message(QueueUrl=source, MessageBody="poison")
    exhaust(sqs, source)
    (message,) = sqs.receive_message(QueueUrl=dead, AttributeNames=["All"])["Messages"]
    assert (message["Body"], message["MessageId"]) == ("poison", sent["MessageId"])
    assert message["Attributes"]["DeadLetterQueueSourceArn"] == attribute(sqs, source, "QueueArn")
    assert message["Attributes"]["ApproximateReceiveCount"] == "3"


def test_the_policy_is_told_and_taken_away(sqs: Any, source: str, dead: str) -> None:
    told = json.loads(attribute(sqs, source, "RedrivePolicy"))
    assert told == {"deadLetterTargetArn": attribute(sqs, dead, "QueueArn"), "maxReceiveCount": 2}
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [source]
    sqs.set_queue_attributes(QueueUrl=source, Attributes={"RedrivePolicy": ""})
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=source, AttributeNames=["RedrivePolicy"])
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead).get("queueUrls", []) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "Redrive policy is not a valid JSON map."),
        ("{}", "Redrive policy does not contain mandatory attribute: deadLetterTargetArn."),
        ('{"deadLetterTargetArn": "DEAD"}', "Redrive policy does not contain mandatory attribute: maxReceiveCount."),
        ('{"deadLetterTargetArn": "DEAD", "maxReceiveCount": 0}', "Invalid value for maxReceiveCount"),
        ('{"deadLetterTargetArn": "DEAD", "maxReceiveCount": "x"}', "Invalid value for maxReceiveCount"),
        ('{"deadLetterTargetArn": "nonsense", "maxReceiveCount": 1}', "Invalid value for deadLetterTargetArn."),
        (
            '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:none", "maxReceiveCount": 1}',
            "Dead letter target does not exist.",
        ),
        (
            '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:none.fifo", "maxReceiveCount": 1}',
            "Dead-letter queue must be same type",
        ),
    ],
)
def test_policies_that_are_refused(sqs: Any, queue: str, dead: str, text: str, reason: str) -> None:
    text = text.replace("DEAD", attribute(sqs, dead, "QueueArn"))
    code, said = refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"RedrivePolicy": text})
    assert code == "InvalidParameterValue"
    assert said.startswith(f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}")


def test_a_dead_letter_queue_may_refuse_sources(sqs: Any, queue: str, new_queue: NewQueue, dead: str) -> None:
    def allow(permission: str, *arns: str) -> None:
        value = {"redrivePermission": permission} | ({"sourceQueueArns": list(arns)} if arns else {})
        sqs.set_queue_attributes(QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps(value)})

    wanted = {"QueueUrl": queue, "Attributes": {"RedrivePolicy": policy(sqs, dead, 1)}}
    allow("denyAll")
    assert "permission" in refusal(sqs.set_queue_attributes, **wanted)[1]
    allow("byQueue", attribute(sqs, new_queue(), "QueueArn"))
    assert "permission" in refusal(sqs.set_queue_attributes, **wanted)[1]
    allow("byQueue", attribute(sqs, queue, "QueueArn"))
    sqs.set_queue_attributes(**wanted)
    bad = {"RedriveAllowPolicy": '{"redrivePermission": "perhaps"}'}
    assert refusal(sqs.set_queue_attributes, QueueUrl=dead, Attributes=bad)[0] == "InvalidParameterValue"


def test_a_dead_letter_queue_can_be_deleted(sqs: Any, source: str, dead: str) -> None:
    sqs.delete_queue(QueueUrl=dead)
    sqs.send_message(QueueUrl=source, MessageBody="x")
    for _ in range(3):  # it stays, however often it is received
        assert bodies(sqs.receive_message(QueueUrl=source, VisibilityTimeout=0)) == ["x"]


def test_dead_letters_are_moved_back(sqs: Any, source: str, dead: str) -> None:
    for n in range(3):
        sqs.send_message(QueueUrl=source, MessageBody=str(n))
    for _ in range(2):
        sqs.receive_message(QueueUrl=source, MaxNumberOfMessages=10, VisibilityTimeout=0)
    assert attribute(sqs, dead, "ApproximateNumberOfMessages") == "3"
    arn = attribute(sqs, dead, "QueueArn")
    handle = sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]

    def status() -> str:
        return str(sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]["Status"])

    wait_for(lambda: status() == "COMPLETED", "the task ends")
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert task["SourceArn"] == arn and task["ApproximateNumberOfMessagesMoved"] == 3
    assert bodies(sqs.receive_message(QueueUrl=source, MaxNumberOfMessages=10)) == ["0", "1", "2"]
    assert refusal(sqs.cancel_message_move_task, TaskHandle=handle)[0] == "AWS.SimpleQueueService.UnsupportedOperation"


def test_a_move_goes_slowly_elsewhere_and_is_cancelled(sqs: Any, source: str, dead: str, new_queue: NewQueue) -> None:
    target = new_queue("-target")
    for n in range(5):
        sqs.send_message(QueueUrl=source, MessageBody=str(n))
    for _ in range(2):
        sqs.receive_message(QueueUrl=source, MaxNumberOfMessages=10, VisibilityTimeout=0)
    arn = attribute(sqs, dead, "QueueArn")
    started = sqs.start_message_move_task(
        SourceArn=arn, DestinationArn=attribute(sqs, target, "QueueArn"), MaxNumberOfMessagesPerSecond=1
    )
    assert refusal(sqs.start_message_move_task, SourceArn=arn) == (
        "InvalidParameterValue",
        "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
    )

    def moved_count() -> int:
        return int(sqs.list_message_move_tasks(SourceArn=arn)["Results"][0]["ApproximateNumberOfMessagesMoved"])

    wait_for(lambda: moved_count() > 0, "the first is moved")
    (task,) = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    assert (task["Status"], task["TaskHandle"]) == ("RUNNING", started["TaskHandle"])
    moved = sqs.cancel_message_move_task(TaskHandle=started["TaskHandle"])["ApproximateNumberOfMessagesMoved"]
    assert 1 <= moved < 5
    told = json.loads(base64.b64decode(started["TaskHandle"]))
    assert uuid.UUID(told["taskId"]) and told["sourceArn"] == arn
    assert int(attribute(sqs, target, "ApproximateNumberOfMessages")) == moved


def test_moves_that_cannot_be(sqs: Any, queue: str, dead: str, source: str) -> None:
    arn, plain = attribute(sqs, dead, "QueueArn"), attribute(sqs, queue, "QueueArn")
    assert refusal(sqs.start_message_move_task, SourceArn=plain) == (
        "InvalidParameterValue",
        "Source queue must be configured as a Dead Letter Queue.",
    )
    none = f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:none"
    assert refusal(sqs.start_message_move_task, SourceArn=none)[0] == "ResourceNotFoundException"
    assert refusal(sqs.start_message_move_task, SourceArn=arn, DestinationArn=none)[0] == "ResourceNotFoundException"
    said = refusal(sqs.start_message_move_task, SourceArn=arn, MaxNumberOfMessagesPerSecond=501)
    assert said[0] == "InvalidParameterValue"
    assert refusal(sqs.cancel_message_move_task, TaskHandle="nonsense") == (
        "InvalidParameterValue",
        "Value for parameter TaskHandle is invalid.",
    )
    assert refusal(sqs.cancel_message_move_task, TaskHandle=task_handle(none)) == (
        "ResourceNotFoundException",
        "The resource that you specified for the SourceArn parameter doesn't exist.",
    )
    assert refusal(sqs.cancel_message_move_task, TaskHandle=task_handle(arn)) == (
        "ResourceNotFoundException",
        "Task does not exist.",
    )
    assert (
        "Results" not in sqs.list_message_move_tasks(SourceArn=arn)
        or not sqs.list_message_move_tasks(SourceArn=arn)["Results"]
    )
    code, text = refusal(sqs.list_message_move_tasks, SourceArn="nonsense")
    assert code == "InvalidParameterValue" and text.startswith("You must use this format to specify the SourceArn: ")
