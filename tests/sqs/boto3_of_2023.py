"""What a client of boto3 1.26 does, which speaks the Query form: test_boto3_of_2023.py runs this with it on the path.

python boto3_of_2023.py URL KEY SECRET      prints {name of a scenario: null, or how it failed}
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import boto3  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

Scenario = Callable[[Any, str], None]
scenarios: dict[str, Scenario] = {}


def scenario(run: Scenario) -> Scenario:
    scenarios[run.__name__] = run
    return run


def refusal(call: Callable[..., Any], **parameters: Any) -> tuple[str, str, int]:
    try:
        call(**parameters)
    except ClientError as error:
        told = error.response
        return told["Error"]["Code"], told["Error"]["Message"], told["ResponseMetadata"]["HTTPStatusCode"]
    raise AssertionError("it was not refused")


def create(sqs: Any, name: str, **attributes: str) -> str:
    return str(sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])


@scenario
def the_form_is_the_query_form(sqs: Any, name: str) -> None:
    assert boto3.__version__.startswith("1.26.")
    assert sqs.meta.service_model.metadata["protocol"] == "query"


@scenario
def a_message_is_sent_received_and_deleted(sqs: Any, name: str) -> None:
    url = create(sqs, name, VisibilityTimeout="60")
    attributes = {
        "text": {"DataType": "String", "StringValue": "wörd <&>"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="hällo\r\n", MessageAttributes=attributes)
    (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"])["Messages"]
    assert (message["Body"], message["MessageId"]) == ("hällo\r\n", sent["MessageId"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


@scenario
def empty_lists_are_none(sqs: Any, name: str) -> None:
    url = create(sqs, name)
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[])
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes={}, MessageSystemAttributes={})
    (message,) = sqs.receive_message(QueueUrl=url, AttributeNames=[], MessageAttributeNames=[])["Messages"]
    assert sorted(message) == ["Body", "MD5OfBody", "MessageId", "ReceiptHandle"]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={})
    assert create(sqs, name) == url
    for action in ("SendMessage", "DeleteMessage", "ChangeMessageVisibility"):
        call = {
            "SendMessage": sqs.send_message_batch,
            "DeleteMessage": sqs.delete_message_batch,
            "ChangeMessageVisibility": sqs.change_message_visibility_batch,
        }[action]
        assert refusal(call, QueueUrl=url, Entries=[]) == (
            "AWS.SimpleQueueService.EmptyBatchRequest",
            f"There should be at least one {action}BatchRequestEntry in the request.",
            400,
        )


@scenario
def batches(sqs: Any, name: str) -> None:
    url = create(sqs, name)
    sent = sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": f"m{n}"} for n in range(10)])
    assert [one["Id"] for one in sent["Successful"]] == [str(n) for n in range(10)] and "Failed" not in sent
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    handles = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**one, "VisibilityTimeout": 60} for one in handles]
    )
    assert len(changed["Successful"]) == 10
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=[*handles[:9], {"Id": "bad", "ReceiptHandle": "x"}])
    assert [one["Id"] for one in deleted["Successful"]] == [str(n) for n in range(9)]
    assert [(one["Id"], one["Code"], one["SenderFault"]) for one in deleted["Failed"]] == [
        ("bad", "ReceiptHandleIsInvalid", True)
    ]


@scenario
def attributes_tags_and_permissions(sqs: Any, name: str) -> None:
    url = create(sqs, name)
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (told["SqsManagedSseEnabled"], told["MaximumMessageSize"]) == ("true", "1048576")
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"SqsManagedSseEnabled": "False", "DelaySeconds": "0"})
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["SqsManagedSseEnabled"])["Attributes"]
    assert told == {"SqsManagedSseEnabled": "false"}
    sqs.tag_queue(QueueUrl=url, Tags={"a": "b", "c": ""})
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "b", "c": ""}
    sqs.untag_queue(QueueUrl=url, TagKeys=["a", "c"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    sqs.add_permission(QueueUrl=url, Label="l", AWSAccountIds=["111122223333"], Actions=["SendMessage"])
    policy = json.loads(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"])
    assert policy["Statement"][0]["Action"] == "SQS:SendMessage"
    sqs.remove_permission(QueueUrl=url, Label="l")
    assert url in sqs.list_queues(QueueNamePrefix=name)["QueueUrls"]


@scenario
def fifo_queues(sqs: Any, name: str) -> None:
    url = create(sqs, name + ".fifo", FifoQueue="True", ContentBasedDeduplication="True")
    sent = [sqs.send_message(QueueUrl=url, MessageBody=b, MessageGroupId=g) for g, b in ("aA", "aA", "bB", "aC")]
    assert sent[0]["MessageId"] == sent[1]["MessageId"] and len(sent[0]["SequenceNumber"]) == 20
    messages = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["MessageGroupId"])["Messages"]
    assert [message["Body"] for message in messages] == ["A", "C", "B"]
    assert messages[2]["Attributes"] == {"MessageGroupId": "b"}
    assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x") == (
        "MissingParameter",
        "The request must contain the parameter MessageGroupId.",
        400,
    )


@scenario
def errors_have_the_texts_of_the_query_form(sqs: Any, name: str) -> None:
    said = "AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist for this wsdl version.", 400
    assert refusal(sqs.get_queue_url, QueueName=name) == said
    try:
        sqs.get_queue_url(QueueName=name)
    except sqs.exceptions.QueueDoesNotExist as error:
        assert error.response["Error"]["Type"] == "Sender"
    url = create(sqs, name)
    assert refusal(sqs.delete_message, QueueUrl=url, ReceiptHandle="x") == (
        "ReceiptHandleIsInvalid",
        'The input receipt handle "x" is not a valid receipt handle.',
        404,
    )
    sqs.purge_queue(QueueUrl=url)
    assert refusal(sqs.purge_queue, QueueUrl=url)[::2] == ("AWS.SimpleQueueService.PurgeQueueInProgress", 403)
    sqs.delete_queue(QueueUrl=url)
    assert refusal(sqs.create_queue, QueueName=name)[::2] == ("AWS.SimpleQueueService.QueueDeletedRecently", 400)


@scenario
def dead_letters_are_moved(sqs: Any, name: str) -> None:
    dead = create(sqs, name + "-dead")
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    url = create(sqs, name, RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]
    sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)
    (message,) = sqs.receive_message(QueueUrl=dead, AttributeNames=["All"], VisibilityTimeout=0, WaitTimeSeconds=5)[
        "Messages"
    ]
    assert message["Attributes"]["ApproximateReceiveCount"] == "2"
    assert sqs.list_message_move_tasks(SourceArn=arn).get("Results", []) == []
    assert sqs.start_message_move_task(SourceArn=arn)["TaskHandle"]
    (back,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=10)["Messages"]
    assert back["Body"] == "x"
    assert refusal(sqs.cancel_message_move_task, TaskHandle="x")[::2] == ("InvalidParameterValue", 400)


def main(url: str, key: str, secret: str) -> None:
    config = Config(retries={"total_max_attempts": 1}, read_timeout=30)
    session = boto3.Session(aws_access_key_id=key, aws_secret_access_key=secret, region_name="us-east-1")
    sqs = session.client("sqs", endpoint_url=url, config=config)
    found: dict[str, str | None] = {}
    for number, (what, run) in enumerate(scenarios.items()):
        try:
            run(sqs, f"boto3-of-2023-{number}")
            found[what] = None
        except Exception:
            found[what] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
