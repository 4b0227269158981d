"""Send, receive, delete and change visibility with boto3, which checks the MD5s itself; in both forms."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from hypothesis import example, given
from hypothesis import strategies as st

from laneway.frontends.sqs.json_form import JsonForm
from laneway.frontends.sqs.message_attributes import has_only_allowed
from tests.in_thread import wait_for
from tests.sqs.serving import ACCOUNT_ID, SqsServing, attribute, bodies, refusal

NewQueue = Callable[..., str]


def test_a_message_is_sent_received_and_deleted(sqs: Any, queue: str) -> None:
    text = 'hällo <&> "wörld"\r\n\t😀'
    sent = sqs.send_message(QueueUrl=queue, MessageBody=text)
    assert sent["MD5OfMessageBody"] == hashlib.md5(text.encode()).hexdigest()
    assert "SequenceNumber" not in sent and "MD5OfMessageAttributes" not in sent
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    assert message["Body"] == text
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert "Attributes" not in message and "MessageAttributes" not in message
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])  # a repeat is no error
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)


def test_attributes_of_all_types_come_back_as_they_were(sqs: Any, queue: str) -> None:
    attributes = {
        "text": {"DataType": "String", "StringValue": "wörd <&>"},
        "labelled": {"DataType": "String.json", "StringValue": "{}"},
        "whole": {"DataType": "Number", "StringValue": "42"},
        "odd": {"DataType": "Number", "StringValue": "007"},
        "fraction": {"DataType": "Number.float", "StringValue": "2.50"},
        "large": {"DataType": "Number", "StringValue": "123456789012345678901234567890"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff\x01"},
        "png": {"DataType": "Binary.png", "BinaryValue": b"x" * 300},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793"}}
    sent = sqs.send_message(
        QueueUrl=queue, MessageBody="x", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageAttributes"] and sent["MD5OfMessageSystemAttributes"]
    (message,) = sqs.receive_message(
        QueueUrl=queue, MessageAttributeNames=["All"], MessageSystemAttributeNames=["All"]
    )["Messages"]
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["Attributes"]["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]


def test_the_md5_of_attributes_is_the_one_that_aws_documents(sqs: Any, queue: str) -> None:
    """Worked out here from the description: boto3 checks bodies, and leaves attributes alone."""
    value, blob = "value", b"\x01\x02"
    digest = hashlib.md5()
    for name, kind, mark, content in (("a", "String", 1, value.encode()), ("b", "Binary", 2, blob)):
        for part in (name.encode(), kind.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update(bytes([mark]) + len(content).to_bytes(4, "big") + content)
    sent = sqs.send_message(
        QueueUrl=queue,
        MessageBody="x",
        MessageAttributes={
            "b": {"DataType": "Binary", "BinaryValue": blob},
            "a": {"DataType": "String", "StringValue": value},
        },
    )
    assert sent["MD5OfMessageAttributes"] == digest.hexdigest()


def test_a_receiver_gets_the_attributes_it_names(sqs: Any, queue: str) -> None:
    names = ["one", "two.a", "two.b", "twofold"]
    sqs.send_message(
        QueueUrl=queue,
        MessageBody="x",
        MessageAttributes={name: {"DataType": "String", "StringValue": name} for name in names},
    )

    def got(wanted: list[str]) -> list[str]:
        (message,) = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=wanted, VisibilityTimeout=0)["Messages"]
        return sorted(message.get("MessageAttributes", {}))

    assert got([]) == []
    assert got(["one"]) == ["one"]
    assert got(["two.*"]) == ["two.a", "two.b", "twofold"]
    assert got(["two..*"]) == ["two.a", "two.b"]
    assert got([".*"]) == got(["*"]) == got(["All"]) == sorted(names)
    assert got(["missing"]) == got(["two"]) == got(["AWS."]) == got(["..foo"]) == []
    assert got(["one", "missing", "twof.*"]) == ["one", "twofold"]


def test_system_attributes(sqs: Any, queue: str, serving: SqsServing) -> None:
    before_ms = serving.now_ms()
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    (first,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["All"], VisibilityTimeout=0)["Messages"]
    told = first["Attributes"]
    assert told["SenderId"] == "root" and told["ApproximateReceiveCount"] == "1"
    assert before_ms <= int(told["SentTimestamp"]) <= int(told["ApproximateFirstReceiveTimestamp"]) <= serving.now_ms()
    (second,) = sqs.receive_message(QueueUrl=queue, AttributeNames=["ApproximateReceiveCount"])["Messages"]
    assert second["Attributes"] == {"ApproximateReceiveCount": "2"}
    code, text = refusal(sqs.receive_message, QueueUrl=queue, AttributeNames=["Colour"])
    assert (code, text) == ("InvalidAttributeName", "Unknown Attribute Colour.")


def test_a_batch_is_sent_received_and_deleted(sqs: Any, queue: str) -> None:
    entries = [{"Id": f"e{n}", "MessageBody": f"m{n}"} for n in range(10)]
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [one["Id"] for one in sent["Successful"]] == [f"e{n}" for n in range(10)] and "Failed" not in sent
    messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in messages] == [f"m{n}" for n in range(10)]
    assert [message["MessageId"] for message in messages] == [one["MessageId"] for one in sent["Successful"]]
    handles = [{"Id": str(n), "ReceiptHandle": message["ReceiptHandle"]} for n, message in enumerate(messages)]
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=[*handles[:9], {"Id": "bad", "ReceiptHandle": "x"}])
    assert [one["Id"] for one in answer["Successful"]] == [str(n) for n in range(9)]
    (failed,) = answer["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "ReceiptHandleIsInvalid", True)
    assert int(attribute(sqs, queue, "ApproximateNumberOfMessagesNotVisible")) == 1


def test_an_entry_that_is_refused_leaves_the_others(sqs: Any, queue: str) -> None:
    answer = sqs.send_message_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "good", "MessageBody": "x"},
            {"Id": "late", "MessageBody": "x", "DelaySeconds": 901},
            {"Id": "typed", "MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Colour", "StringValue": "r"}}},
        ],
    )
    assert [one["Id"] for one in answer["Successful"]] == ["good"]
    assert {one["Id"]: one["Code"] for one in answer["Failed"]} == {
        "late": "InvalidParameterValue",
        "typed": "InvalidParameterValue",
    }


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "AWS.SimpleQueueService.EmptyBatchRequest"),
        ([("a", "x")] * 2, "AWS.SimpleQueueService.BatchEntryIdsNotDistinct"),
        ([("a b", "x")], "AWS.SimpleQueueService.InvalidBatchEntryId"),
        ([("a,b", "x"), ("c", "y")], "AWS.SimpleQueueService.InvalidBatchEntryId"),
        ([("", "x")], "AWS.SimpleQueueService.InvalidBatchEntryId"),
        ([(f"e{n}", "x") for n in range(11)], "AWS.SimpleQueueService.TooManyEntriesInBatchRequest"),
        ([(f"e{n}", "x" * 600_000) for n in range(2)], "AWS.SimpleQueueService.BatchRequestTooLong"),
    ],
)
def test_batches_that_are_refused_as_a_whole(sqs: Any, queue: str, entries: list[tuple[str, str]], code: str) -> None:
    given = [{"Id": entry_id, "MessageBody": body} for entry_id, body in entries]
    assert refusal(sqs.send_message_batch, QueueUrl=queue, Entries=given)[0] == code
    assert attribute(sqs, queue, "ApproximateNumberOfMessages") == "0"


def test_visibility_can_be_changed(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    handle = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=600)
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    (again,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    answer = sqs.change_message_visibility_batch(
        QueueUrl=queue,
        Entries=[
            {"Id": "a", "ReceiptHandle": again["ReceiptHandle"], "VisibilityTimeout": 0},
            {"Id": "b", "ReceiptHandle": again["ReceiptHandle"], "VisibilityTimeout": 43201},
        ],
    )
    assert [one["Id"] for one in answer["Successful"]] == ["a"]
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [("b", "InvalidParameterValue")]
    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["x"]


def test_a_lease_runs_out(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    assert bodies(sqs.receive_message(QueueUrl=queue, VisibilityTimeout=1)) == ["x"]
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []
    assert bodies(sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)) == ["x"]


def test_delays_of_messages_and_queues(sqs: Any, queue: str, new_queue: NewQueue) -> None:
    sqs.send_message(QueueUrl=queue, MessageBody="later", DelaySeconds=1)
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []
    assert attribute(sqs, queue, "ApproximateNumberOfMessagesDelayed") == "1"
    assert bodies(sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)) == ["later"]
    slow = new_queue(DelaySeconds="900")
    sqs.send_message(QueueUrl=slow, MessageBody="later")
    sqs.send_message(QueueUrl=slow, MessageBody="now", DelaySeconds=0)
    assert bodies(sqs.receive_message(QueueUrl=slow, MaxNumberOfMessages=10)) == ["now"]


def test_a_long_poll_ends_with_the_message_that_comes(serving: SqsServing, sqs: Any, new_queue: NewQueue) -> None:
    queue = new_queue(ReceiveMessageWaitTimeSeconds="20")
    got: list[str] = []
    waiting = threading.Thread(target=lambda: got.extend(bodies(sqs.receive_message(QueueUrl=queue))))
    waiting.start()
    name = queue.rsplit("/", 1)[1]
    wait_for(lambda: serving.stats(name).consumers_waiting == 1, "somebody waits")
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    waiting.join(10)
    assert got == ["x"]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"MaxNumberOfMessages": 11}, "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: "),
        ({"MaxNumberOfMessages": 0}, "Value 0 for parameter MaxNumberOfMessages is invalid. Reason: "),
        ({"WaitTimeSeconds": 21}, "Value 21 for parameter WaitTimeSeconds is invalid. Reason: "),
        ({"VisibilityTimeout": 43201}, "Value 43201 for parameter VisibilityTimeout is invalid. Reason: "),
    ],
)
def test_what_cannot_be_received(sqs: Any, queue: str, parameters: dict[str, int], text: str) -> None:
    code, said = refusal(sqs.receive_message, QueueUrl=queue, **parameters)
    assert code == "InvalidParameterValue" and said.startswith(text)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"MessageBody": ""}, "MissingParameter"),
        ({"MessageBody": "a\x00b"}, "InvalidMessageContents"),
        ({"MessageBody": "a\bb"}, "InvalidMessageContents"),
        ({"MessageBody": "a\fb"}, "InvalidMessageContents"),
        ({"MessageBody": "a\ufffeb"}, "InvalidMessageContents"),
        ({"MessageBody": "x" * (1024 * 1024 + 1)}, "InvalidParameterValue"),
        ({"MessageBody": "x", "DelaySeconds": -1}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageDeduplicationId": "d"}, "InvalidParameterValue"),
        ({"MessageBody": "x", "MessageAttributes": {"": {"DataType": "String", "StringValue": "x"}}}, None),
        ({"MessageBody": "x", "MessageAttributes": {"AWS.x": {"DataType": "String", "StringValue": "x"}}}, None),
        ({"MessageBody": "x", "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "ten"}}}, None),
        ({"MessageBody": "x", "MessageAttributes": {"n": {"DataType": "String", "StringValue": ""}}}, None),
        (
            {
                "MessageBody": "x",
                "MessageAttributes": {f"n{i}": {"DataType": "String", "StringValue": "x"} for i in range(11)},
            },
            None,
        ),
        ({"MessageBody": "x", "MessageSystemAttributes": {"Colour": {"DataType": "String", "StringValue": "x"}}}, None),
    ],
)
def test_what_cannot_be_sent(sqs: Any, queue: str, parameters: dict[str, Any], code: str | None) -> None:
    assert refusal(sqs.send_message, QueueUrl=queue, **parameters)[0] == (code or "InvalidParameterValue")
    assert attribute(sqs, queue, "ApproximateNumberOfMessages") == "0"


def test_characters_of_a_batch_are_looked_at_one_by_one(sqs: Any, queue: str) -> None:
    texts = ["plain", 'c:\\\\users "b" \t\r\n \x7f', "a\fb", "ä", "a\ufffeb"]
    entries = [{"Id": str(at), "MessageBody": text} for at, text in enumerate(texts)]
    told = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [(one["Id"], one["Code"]) for one in told["Failed"]] == [
        ("2", "InvalidMessageContents"),
        ("4", "InvalidMessageContents"),
    ]
    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == [texts[0], texts[1], texts[3]]


@given(st.text(), st.booleans())
@example("\x08", False)
@example("\x0c", False)
@example("\ufffe", False)
@example("\ufffe", True)
def test_what_is_allowed_is_told_from_json_alone_only_if_it_is_so(text: str, only_ascii: bool) -> None:
    said = json.dumps({"MessageBody": text}, ensure_ascii=only_ascii).encode()
    assert not JsonForm().is_allowed(said) or has_only_allowed(text, text.encode())


def test_a_message_may_have_a_mebibyte(sqs: Any, queue: str) -> None:
    text = "x" * (1024 * 1024)
    sqs.send_message(QueueUrl=queue, MessageBody=text)
    assert bodies(sqs.receive_message(QueueUrl=queue)) == [text]


def test_handles_that_are_none(sqs: Any, queue: str) -> None:
    for call, more in ((sqs.delete_message, {}), (sqs.change_message_visibility, {"VisibilityTimeout": 1})):
        assert refusal(call, QueueUrl=queue, ReceiptHandle="nonsense", **more) == (
            "ReceiptHandleIsInvalid",
            'The input receipt handle "nonsense" is not a valid receipt handle.',
        )


def test_priority_and_an_absolute_time_by_attributes(sqs: Any, queue: str, serving: SqsServing) -> None:
    def send(body: str, **attributes: tuple[str, str]) -> None:
        given = {f"Laneway.{name}": {"DataType": kind, "StringValue": v} for name, (kind, v) in attributes.items()}
        sqs.send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=given)

    send("low", Priority=("Number", "1"))
    send("high", Priority=("Number", "9"))
    send("hidden", DeliverAt=("Number", str(serving.now_ms() / 1000 + 3600)))
    send("past", DeliverAt=("String", "2020-01-01T00:00:00+00:00"))
    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == ["high", "past", "low"]
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        send("x", Priority=("Number", "11"))
    with pytest.raises(ClientError, match="InvalidParameterValue"):
        send("x", DeliverAt=("String", "tomorrow"))


@pytest.mark.parametrize("delay", [0, 5])
def test_a_delay_and_an_absolute_time_are_one_too_many(sqs: Any, queue: str, delay: int) -> None:
    at = {"Laneway.DeliverAt": {"DataType": "String", "StringValue": "2020-01-01T00:00:00+00:00"}}
    message = {"MessageBody": "x", "MessageAttributes": at, "DelaySeconds": delay}
    code, words = refusal(sqs.send_message, QueueUrl=queue, **message)
    assert code == "InvalidParameterValue" and "Give DelaySeconds or Laneway.DeliverAt, not both." in words
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "a", **message}])
    assert [(one["Id"], one["Code"]) for one in answer["Failed"]] == [("a", "InvalidParameterValue")]
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []


def test_the_same_message_over_http(sqs: Any, queue: str, serving: SqsServing) -> None:
    """What is sent over SQS is read over HTTP, and the other way round."""
    name = queue.rsplit("/", 1)[1]
    with serving.client(auth=("root", "secret")) as http:
        sqs.send_message(
            QueueUrl=queue,
            MessageBody="text",
            MessageAttributes={
                "n": {"DataType": "Number", "StringValue": "7"},
                "b": {"DataType": "Binary", "BinaryValue": b"\xff"},
            },
        )
        (message,) = _dequeued(http, name)
        assert (message["payload"], message["content_type"]) == ("text", "text/plain")
        assert message["attributes"] == {"n": 7, "b": {"binary": base64.b64encode(b"\xff").decode()}}
        assert http.post(
            f"/queues/{name}/messages",
            json={"payload": {"a": [1]}, "attributes": {"who": "ann", "n": 3, "ok": True}},
        ).status_code == 201  # fmt: skip
        assert http.post(
            f"/queues/{name}/messages", content=b"\xff\x00", headers={"Content-Type": "image/png"}
        ).status_code == 201  # fmt: skip
    first, second = sqs.receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["SenderId"]
    )["Messages"]
    assert first["Body"] == '{"a":[1]}' and first["Attributes"]["SenderId"] == "laneway"
    assert first["MessageAttributes"] == {
        "who": {"DataType": "String", "StringValue": "ann"},
        "n": {"DataType": "Number", "StringValue": "3"},
        "ok": {"DataType": "String", "StringValue": "true"},
    }
    assert base64.b64decode(second["Body"]) == b"\xff\x00"


def _dequeued(http: httpx.Client, name: str) -> list[dict[str, Any]]:
    answer = http.post(f"/queues/{name}/dequeue", json={"max_messages": 10})
    assert answer.status_code == 200
    return list(answer.json()["messages"])


def test_a_queue_may_be_called_by_its_bare_name(sqs: Any, queue: str) -> None:
    name = queue.rsplit("/", 1)[1]
    sqs.send_message(QueueUrl=name, MessageBody="x")
    assert bodies(sqs.receive_message(QueueUrl=f"https://sqs.us-east-1.amazonaws.com/{ACCOUNT_ID}/{name}")) == ["x"]
    wrong_account = f"http://localhost/999999999999/{name}"
    assert refusal(sqs.send_message, QueueUrl=wrong_account, MessageBody="x")[0].endswith("NonExistentQueue")
    assert refusal(sqs.send_message, QueueUrl="http://localhost/x", MessageBody="x")[0] == "InvalidAddress"
