"""What stands on the wire, as the API reference has it: requests without an SDK, in both forms, and their answers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.sqs.serving import ACCOUNT_ID, SqsServing

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server to which everybody here is guest."""
    with SqsServing(tmp_path_factory.mktemp("wire"), anonymous=True) as serving:
        yield serving.url


def ask(base: str, form: str, action: str, path: str = "/", **parameters: Any) -> httpx.Response:
    if form == "json":
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        return httpx.post(base + path, headers=headers, content=json.dumps(parameters))
    return httpx.post(base + path, data={"Action": action, "Version": "2012-11-05", **flat(parameters)})


SINGULAR = {
    "Entries": None,
    "Attributes": ("Attribute", "Name"),
    "Tags": ("Tag", "Key"),
    "AttributeNames": "AttributeName",
    "MessageAttributeNames": "MessageAttributeName",
}


def flat(parameters: dict[str, Any]) -> dict[str, str]:
    """As a form says lists and maps."""
    found: dict[str, str] = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            singular, key = SINGULAR[name]  # type: ignore[misc]
            for i, (one, text) in enumerate(value.items(), 1):
                found |= {f"{singular}.{i}.{key}": one, f"{singular}.{i}.Value": text}
        elif isinstance(value, list):
            found |= {f"{SINGULAR[name]}.{i}": text for i, text in enumerate(value, 1)} or {name: ""}
        else:
            found[name] = str(value)
    return found


@pytest.fixture
def queue(base: str) -> str:
    """Its path."""
    name = f"wire{next(_numbers)}"
    assert ask(base, "json", "CreateQueue", QueueName=name).status_code == 200
    return f"/{ACCOUNT_ID}/{name}"


def error_of(answer: httpx.Response) -> tuple[str, str, str]:
    """(code, fault, text)"""
    if answer.headers["content-type"] == "application/x-amz-json-1.0":
        code, fault = answer.headers["x-amzn-query-error"].split(";")
        return code, fault, answer.json()["message"]
    pattern = (
        r'<\?xml version="1.0"\?><ErrorResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><Error>'
        r"<Type>(.*)</Type><Code>(.*)</Code><Message>(.*)</Message><Detail/></Error><RequestId>.{36}</RequestId>"
        r"</ErrorResponse>"
    )
    found = re.fullmatch(pattern, answer.text, re.DOTALL)
    assert found is not None, answer.text
    return found[2], found[1], found[3].replace("&quot;", '"')


NONE = f"/{ACCOUNT_ID}/no-such-queue"


@pytest.mark.parametrize("form", ["json", "query"])
@pytest.mark.parametrize(
    ("action", "parameters", "status", "type", "code", "text"),
    [
        ("GetQueueUrl", {"QueueName": "none"}, 400, "sqs#QueueDoesNotExist", "NonExistentQueue", None),
        ("SendMessage", {"QueueUrl": NONE, "MessageBody": "x"}, 400, "sqs#QueueDoesNotExist", "NonExistentQueue", None),
        (
            "DeleteMessage",
            {"QueueUrl": "QUEUE", "ReceiptHandle": "garbage"},
            404,
            "sqs#ReceiptHandleIsInvalid",
            "ReceiptHandleIsInvalid",
            'The input receipt handle "garbage" is not a valid receipt handle.',
        ),
        (
            "GetQueueAttributes",
            {"QueueUrl": "http://elsewhere/queue"},
            404,
            "sqs#InvalidAddress",
            "InvalidAddress",
            "The address http://elsewhere/queue is not valid for this endpoint.",
        ),
        (
            "GetQueueAttributes",
            {"QueueUrl": "QUEUE", "AttributeNames": ["Foobar"]},
            400,
            "sqs#InvalidAttributeName",
            "InvalidAttributeName",
            "Unknown Attribute Foobar.",
        ),
        (
            "SetQueueAttributes",
            {"QueueUrl": "QUEUE", "Attributes": {"VisibilityTimeout": "43201"}},
            400,
            "sqs#InvalidAttributeValue",
            "InvalidAttributeValue",
            "Invalid value for the parameter VisibilityTimeout.",
        ),
        (
            "SendMessage",
            {"QueueUrl": "QUEUE"},
            400,
            "service#MissingRequiredParameterException",
            "MissingParameter",
            "The request must contain the parameter MessageBody.",
        ),
        (
            "SendMessage",
            {"QueueUrl": "QUEUE", "MessageBody": "x", "DelaySeconds": 901},
            400,
            "service#InvalidParameterValueException",
            "InvalidParameterValue",
            "Value 901 for parameter DelaySeconds is invalid. Reason: DelaySeconds must be &gt;= 0 and &lt;= 900.",
        ),
        (
            "SendMessage",
            {"QueueUrl": "QUEUE", "MessageBody": "a\u0001"},
            400,
            "sqs#InvalidMessageContents",
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to "
            "#xFFFD | #x10000 to #x10FFFF",
        ),
        (
            "SendMessageBatch",
            {"QueueUrl": "QUEUE", "Entries": []},
            400,
            "sqs#EmptyBatchRequest",
            "AWS.SimpleQueueService.EmptyBatchRequest",
            "There should be at least one SendMessageBatchRequestEntry in the request.",
        ),
        (
            "DeleteMessageBatch",
            {"QueueUrl": "QUEUE"},
            400,
            "sqs#EmptyBatchRequest",
            "AWS.SimpleQueueService.EmptyBatchRequest",
            "There should be at least one DeleteMessageBatchRequestEntry in the request.",
        ),
        (
            "CancelMessageMoveTask",
            {"TaskHandle": "foobared"},
            400,
            "service#InvalidParameterValueException",
            "InvalidParameterValue",
            "Value for parameter TaskHandle is invalid.",
        ),
        (
            "ListMessageMoveTasks",
            {"SourceArn": f"arn:aws:sqs:us-east-1:{ACCOUNT_ID}:none"},
            404,
            "sqs#ResourceNotFoundException",
            "ResourceNotFoundException",
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
        (
            "FooBar",
            {},
            400,
            "service#UnknownOperationException",
            "InvalidAction",
            "The action FooBar is not valid for this endpoint.",
        ),
    ],
)
def test_errors_have_their_status_type_code_and_text(
    base: str,
    queue: str,
    form: str,
    action: str,
    parameters: dict[str, Any],
    status: int,
    type: str,
    code: str,
    text: str | None,
) -> None:
    given = {name: queue if value == "QUEUE" else value for name, value in parameters.items()}
    answer = ask(base, form, action, **given)
    assert answer.status_code == status
    if text is None:
        code = f"AWS.SimpleQueueService.{code}"
        text = "The specified queue does not exist" + ("." if form == "json" else " for this wsdl version.")
    if form == "json":
        text = text.replace("&gt;", ">").replace("&lt;", "<")
        assert answer.json()["__type"] == ("com.amazonaws." if type.startswith("sqs#") else "com.amazon.coral.") + type
    assert error_of(answer) == (code, "Sender", text)
    assert len(answer.headers["x-amzn-requestid"]) == 36


# --- at a queue's URL


def test_a_queue_is_asked_by_get_at_its_url(base: str, queue: str) -> None:
    got = httpx.get(base + queue, params={"Action": "GetQueueAttributes", "AttributeName.1": "All"})
    assert got.status_code == 200 and got.headers["content-type"] == "text/xml"
    assert "<GetQueueAttributesResponse " in got.text
    assert "<Attribute><Name>VisibilityTimeout</Name><Value>30</Value></Attribute>" in got.text
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT_ID}:{queue.rsplit('/', 1)[1]}"
    assert f"<Attribute><Name>QueueArn</Name><Value>{arn}</Value></Attribute>" in got.text
    only = httpx.get(base + queue, params={"Action": "GetQueueAttributes", "AttributeName.1": "QueueArn"})
    assert "VisibilityTimeout" not in only.text and arn in only.text
    sent = httpx.get(base + queue, params={"Action": "SendMessage", "MessageBody": "foobar"})
    assert sent.status_code == 200 and "<MD5OfMessageBody>3858f62230ac3c915f300c664312c63f<" in sent.text
    message = httpx.get(base + queue, params={"Action": "ReceiveMessage"}).text
    assert "<Body>foobar</Body>" in message
    empty = httpx.get(base + queue, params={"Action": "ReceiveMessage"}).text
    assert "<ReceiveMessageResult/>" in empty
    assert "<DeleteQueueResponse " in httpx.get(base + queue, params={"Action": "DeleteQueue"}).text
    gone = httpx.get(base + queue, params={"Action": "GetQueueAttributes", "AttributeName.1": "QueueArn"})
    assert (gone.status_code, error_of(gone)[0]) == (400, "AWS.SimpleQueueService.NonExistentQueue")


def test_a_queue_that_is_named_counts_and_not_the_one_in_the_path(base: str, queue: str) -> None:
    name = f"wire{next(_numbers)}"
    ask(base, "json", "CreateQueue", QueueName=name)
    parameters = {"Action": "GetQueueAttributes", "QueueUrl": f"{base}/{ACCOUNT_ID}/{name}", "AttributeName.1": "All"}
    assert f":{name}<" in httpx.get(base + queue, params=parameters).text
    parameters = {"Action": "GetQueueUrl", "QueueName": name}
    assert f"<QueueUrl>{base}/{ACCOUNT_ID}/{name}</QueueUrl>" in httpx.get(base + queue, params=parameters).text


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "Fly"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_cannot_be_asked_at_a_queues_url(base: str, queue: str, action: str, method: str) -> None:
    answer = httpx.request(method, base + queue, params={"Action": action, "QueueName": "other"})
    assert answer.status_code == 400
    assert error_of(answer) == ("InvalidAction", "Sender", f"The action {action} is not valid for this endpoint.")


def test_queues_are_listed_by_get_at_the_root(base: str, queue: str) -> None:
    listed = httpx.get(base, params={"Action": "ListQueues", "Version": "2012-11-05"})
    assert listed.status_code == 200 and f"<QueueUrl>{base}{queue}</QueueUrl>" in listed.text


@pytest.mark.parametrize("accept", ["*/*", "application/json"])
def test_a_request_without_an_action_is_an_unknown_operation(base: str, queue: str, accept: str) -> None:
    for method in ("GET", "POST"):
        answer = httpx.request(method, base + queue, headers={"Accept": accept})
        assert (answer.status_code, answer.text) == (404, "<UnknownOperationException/>\n")
        assert answer.headers["content-type"] == "text/xml"


def test_json_can_be_sent_to_a_queues_url(base: str, queue: str) -> None:
    sent = ask(base, "json", "SendMessage", queue, MessageBody="x")
    assert sent.status_code == 200 and sent.json()["MD5OfMessageBody"]
    (message,) = ask(base, "json", "ReceiveMessage", queue).json()["Messages"]
    assert message["Body"] == "x"


# --- Accept: application/json


def as_json(base: str, queue: str, **parameters: str) -> httpx.Response:
    answer = httpx.get(base + queue, params=parameters, headers={"Accept": "application/json"})
    assert answer.headers["content-type"] == "application/json"
    return answer


def test_the_query_form_answers_in_json_to_those_who_want_it(base: str, queue: str) -> None:
    told = as_json(base, queue, **{"Action": "GetQueueAttributes", "AttributeName.1": "VisibilityTimeout"}).json()
    assert len(told["GetQueueAttributesResponse"]["ResponseMetadata"]["RequestId"]) == 36
    assert told["GetQueueAttributesResponse"]["GetQueueAttributesResult"] == {
        "Attributes": [{"Name": "VisibilityTimeout", "Value": "30"}]
    }
    received = as_json(base, queue, Action="ReceiveMessage").json()["ReceiveMessageResponse"]["ReceiveMessageResult"]
    assert received == {"messages": []}
    attribute = {"MessageAttribute.1.Name": "a", "MessageAttribute.1.Value.DataType": "String"}
    attribute["MessageAttribute.1.Value.StringValue"] = "v"
    sent = as_json(base, queue, Action="SendMessage", MessageBody="x", **attribute).json()["SendMessageResponse"]
    assert sent["SendMessageResult"]["MD5OfMessageBody"] == "9dd4e461268c8034f5c8564e155c67a6"
    assert sent["SendMessageResult"]["SequenceNumber"] is None
    told = as_json(base, queue, **{"Action": "ReceiveMessage", "MessageAttributeName.1": "All"}).json()
    (message,) = told["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert message["Body"] == "x" and message["Attributes"] is None
    (pair,) = message["MessageAttributes"]
    assert (pair["Name"], pair["Value"]["StringValue"]) == ("a", "v")
    done = as_json(base, queue, Action="DeleteMessage", ReceiptHandle=message["ReceiptHandle"]).json()
    assert list(done["DeleteMessageResponse"]) == ["ResponseMetadata"]


def test_an_error_in_json_of_the_query_form(base: str, queue: str) -> None:
    answer = as_json(base, queue, Action="ListQueues")
    assert answer.status_code == 400
    told = answer.json()
    assert told["Error"] == {
        "Type": "Sender",
        "Code": "InvalidAction",
        "Message": "The action ListQueues is not valid for this endpoint.",
    }
    assert len(told["RequestId"]) == 36


# --- lists and maps of the Query form


@pytest.mark.parametrize(
    "said",
    ["AttributeNames=", "MessageAttributeNames=", "AttributeName=", "MessageSystemAttributeNames=&AttributeNames="],
)
def test_an_empty_list_is_none(base: str, queue: str, said: str) -> None:
    ask(base, "query", "SendMessage", queue, MessageBody="x")
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = httpx.post(base + queue, content=f"Action=ReceiveMessage&{said}", headers=headers)
    assert answer.status_code == 200 and "<Body>x</Body>" in answer.text and "Attribute>" not in answer.text
    answer = httpx.post(base + queue, content="Action=GetQueueAttributes&AttributeNames=", headers=headers)
    assert answer.status_code == 200 and "<GetQueueAttributesResult/>" in answer.text


def test_one_of_a_list_needs_no_number(base: str, queue: str) -> None:
    given = {"Attribute.Name": "VisibilityTimeout", "Attribute.Value": "7"}
    assert httpx.get(base + queue, params={"Action": "SetQueueAttributes", **given}).status_code == 200
    told = httpx.get(base + queue, params={"Action": "GetQueueAttributes", "AttributeName": "VisibilityTimeout"}).text
    assert "<Attribute><Name>VisibilityTimeout</Name><Value>7</Value></Attribute>" in told


# --- the trace


@pytest.mark.parametrize("form", ["json", "query"])
def test_the_trace_of_a_request_becomes_that_of_its_messages(base: str, queue: str, form: str) -> None:
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"
    headers = {"X-Amzn-Trace-Id": trace}
    if form == "json":
        headers |= {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
        content = json.dumps({"QueueUrl": queue, "MessageBody": "x"})
    else:
        headers |= {"Content-Type": "application/x-www-form-urlencoded"}
        content = urlencode({"Action": "SendMessage", "QueueUrl": queue, "MessageBody": "x"})
    sent = httpx.post(base, headers=headers, content=content)
    assert sent.status_code == 200 and "MD5OfMessageSystemAttributes" not in sent.text
    own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=own"}}
    headers |= {"X-Amz-Target": "AmazonSQS.SendMessage", "Content-Type": "application/x-amz-json-1.0"}
    with_own = json.dumps({"QueueUrl": queue, "MessageBody": "x", "MessageSystemAttributes": own})
    assert httpx.post(base, headers=headers, content=with_own).status_code == 200
    ask(base, "json", "SendMessage", QueueUrl=queue, MessageBody="x")
    told = ask(base, "json", "ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10, AttributeNames=["All"]).json()
    traces = [message["Attributes"].get("AWSTraceHeader") for message in told["Messages"]]
    assert traces == [trace, "Root=own", None]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("a", {"DataType": "String", "StringValue": ""}, "'a' must contain a non-empty value of type 'String'."),
        ("a", {"DataType": "Number.int"}, "'a' must contain a non-empty value of type 'Number'."),
        ("a", {"DataType": "Colour", "StringValue": "x"}, "supported type prefixes: Binary, Number, String."),
        ("a", {"DataType": "", "StringValue": "x"}, "must contain a non-empty message attribute type."),
        ("a", {"DataType": "String", "StringValue": "\b"}, "Invalid characters found."),
        ("a", {"DataType": "Number", "StringValue": "ten"}, "Can't cast the value of message (user) attribute 'a'"),
        ("AWS.a", {"DataType": "String", "StringValue": "x"}, "You can't use message attribute names beginning with"),
        ("aMAZON.a", {"DataType": "String", "StringValue": "x"}, "You can't use message attribute names beginning"),
        (".a", {"DataType": "String", "StringValue": "x"}, "they cannot start or end with '.'"),
        ("a.", {"DataType": "String", "StringValue": "x"}, "they cannot start or end with '.'"),
        ("a..b", {"DataType": "String", "StringValue": "x"}, "they cannot start or end with '.'"),
        ("a!", {"DataType": "String", "StringValue": "x"}, "Message (user) attributes name can only contain"),
        ("x" * 257, {"DataType": "String", "StringValue": "x"}, "names must be shorter than 256 Bytes"),
        ("a", {"DataType": "String." + "x" * 250, "StringValue": "x"}, "types must be shorter than 256 Bytes"),
    ],
)
def test_message_attributes_that_are_refused(base: str, queue: str, name: str, value: Any, text: str) -> None:
    answer = ask(base, "json", "SendMessage", QueueUrl=queue, MessageBody="x", MessageAttributes={name: value})
    code, _, said = error_of(answer)
    assert code == "InvalidParameterValue" and text in said


def test_names_of_message_attributes_may_have_letters_with_accents(base: str, queue: str) -> None:
    value = {"DataType": "String", "StringValue": "x"}
    answer = ask(base, "json", "SendMessage", QueueUrl=queue, MessageBody="x", MessageAttributes={"attr.1øßä": value})
    assert answer.status_code == 200
