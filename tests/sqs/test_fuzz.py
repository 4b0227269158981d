"""Whatever comes in: an answer that is no mistake of ours, and a server that goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sqs.serving import ACCOUNT_ID, SqsServing

QUEUE = f"http://localhost/{ACCOUNT_ID}/fuzz"
ARN = f"arn:aws:sqs:us-east-1:{ACCOUNT_ID}:fuzz"
ENTRY = {"Id": "a", "MessageBody": "x", "ReceiptHandle": "0" * 28, "VisibilityTimeout": 1}
TYPED = {"DataType": "String", "StringValue": "x"}
#: A right request of each kind, to be spoilt here and there.
GOOD: dict[str, dict[str, Any]] = {
    "AddPermission": {"QueueUrl": QUEUE, "Label": "l", "AWSAccountIds": [ACCOUNT_ID], "Actions": ["*"]},
    "CancelMessageMoveTask": {"TaskHandle": "cmVkcml2ZQ=="},
    "ChangeMessageVisibility": {"QueueUrl": QUEUE, "ReceiptHandle": "0" * 28, "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {"QueueUrl": QUEUE, "Entries": [ENTRY]},
    "CreateQueue": {"QueueName": "fuzz", "Attributes": {"VisibilityTimeout": "1", "RedrivePolicy": "{}"}, "tags": {}},
    "DeleteMessage": {"QueueUrl": QUEUE, "ReceiptHandle": "0" * 28},
    "DeleteMessageBatch": {"QueueUrl": QUEUE, "Entries": [ENTRY]},
    "GetQueueAttributes": {"QueueUrl": QUEUE, "AttributeNames": ["All"]},
    "GetQueueUrl": {"QueueName": "fuzz", "QueueOwnerAWSAccountId": ACCOUNT_ID},
    "ListDeadLetterSourceQueues": {"QueueUrl": QUEUE, "MaxResults": 1, "NextToken": "YQ=="},
    "ListMessageMoveTasks": {"SourceArn": ARN, "MaxResults": 1},
    "ListQueueTags": {"QueueUrl": QUEUE},
    "ListQueues": {"QueueNamePrefix": "f", "MaxResults": 1, "NextToken": "YQ=="},
    "PurgeQueue": {"QueueUrl": QUEUE},
    "ReceiveMessage": {
        "QueueUrl": QUEUE,
        "MaxNumberOfMessages": 1,
        "VisibilityTimeout": 0,
        "MessageAttributeNames": ["All"],
        "MessageSystemAttributeNames": ["All"],
    },
    "RemovePermission": {"QueueUrl": QUEUE, "Label": "l"},
    "SendMessage": {
        "QueueUrl": QUEUE,
        "MessageBody": "x",
        "DelaySeconds": 0,
        "MessageGroupId": "g",
        "MessageAttributes": {"a": TYPED, "Laneway.Priority": TYPED, "Laneway.DeliverAt": TYPED},
        "MessageSystemAttributes": {"AWSTraceHeader": TYPED},
    },
    "SendMessageBatch": {"QueueUrl": QUEUE, "Entries": [ENTRY]},
    "SetQueueAttributes": {
        "QueueUrl": QUEUE,
        "Attributes": {"RedrivePolicy": "{}", "RedriveAllowPolicy": "{}", "Policy": "{}", "VisibilityTimeout": "1"},
    },
    "StartMessageMoveTask": {"SourceArn": ARN, "DestinationArn": ARN, "MaxNumberOfMessagesPerSecond": 1},
    "TagQueue": {"QueueUrl": QUEUE, "Tags": {"a": "b"}},
    "UntagQueue": {"QueueUrl": QUEUE, "TagKeys": ["a"]},
}

texts = st.text(max_size=12) | st.sampled_from(
    [
        "",
        "null",
        "[]",
        "{}",
        '{"redrivePermission":"byQueue"}',
        "1e999",
        "-1",
        "٣",
        "\ud800",
        "\x00",
        QUEUE,
        ARN,
        "9" * 40,
    ]
)
odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def spoilt(draw: st.DrawFn, value: Any) -> Any:
    """The value, with some of it replaced by something odd."""
    if draw(st.integers(0, 4)) == 0:
        return draw(odd | texts)
    if isinstance(value, dict):
        return {name: draw(spoilt(inner)) for name, inner in value.items() if draw(st.integers(0, 9))}
    if isinstance(value, list):
        return [draw(spoilt(inner)) for inner in value * draw(st.integers(0, 3))]
    return value


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, Any]:
    action = draw(st.sampled_from(sorted(GOOD)))
    return action, draw(spoilt(GOOD[action]))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with SqsServing(tmp_path_factory.mktemp("fuzz"), anonymous=True) as serving, serving.client() as client:
        serving.sqs(("test", "test")).create_queue(QueueName="fuzz")
        yield client


def check(answer: httpx.Response) -> None:
    assert answer.status_code in (200, 400, 403, 404), (answer.status_code, answer.text)
    assert len(answer.headers["x-amzn-RequestId"]) == 36


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """A request as the Query form has it, more or less."""
    names = {
        "Entries": "SendMessageBatchRequestEntry",
        "Attributes": "Attribute",
        "MessageAttributes": "MessageAttribute",
    }
    names |= {"AttributeNames": "AttributeName", "TagKeys": "TagKey", "Tags": "Tag", "tags": "Tag"}
    if isinstance(value, dict):
        for at, (key, inner) in enumerate(value.items(), 1):
            if name.endswith(("Attribute", "Tag")):
                yield f"{name}.{at}.Name", key
                yield from flat(inner, f"{name}.{at}.Value")
            else:
                yield from flat(inner, f"{name}.{names.get(key, key)}".lstrip("."))
    elif isinstance(value, list):
        for at, inner in enumerate(value, 1):
            yield from flat(inner, f"{name}.{at}")
    else:
        yield name, str(value)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=requests())
def test_json_requests(fuzzed: httpx.Client, asked: tuple[str, Any]) -> None:
    action, body = asked
    headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    check(fuzzed.post("/", content=json.dumps(body).encode(), headers=headers))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(asked=requests(), more=st.dictionaries(texts, texts, max_size=2))
def test_query_requests(fuzzed: httpx.Client, asked: tuple[str, Any], more: dict[str, str]) -> None:
    action, body = asked
    pairs = [("Action", action), ("Version", "2012-11-05"), *flat(body), *more.items()]
    form = urlencode(pairs, errors="surrogatepass").encode()
    check(fuzzed.post("/", content=form, headers={"Content-Type": "application/x-www-form-urlencoded"}))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=60), is_json=st.booleans())
def test_bodies_that_are_anything(fuzzed: httpx.Client, raw: bytes, is_json: bool) -> None:
    if is_json:
        check(fuzzed.post("/", content=raw, headers={"X-Amz-Target": "AmazonSQS.SendMessage"}))
    else:
        check(fuzzed.post("/", content=raw, headers={"Content-Type": "application/x-www-form-urlencoded"}))


def test_names_nested_without_end(fuzzed: httpx.Client) -> None:
    form = "Action=ListQueues&" + ".1.".join(["SendMessageBatchRequestEntry"] * 5000) + "=x"
    check(fuzzed.post("/", content=form.encode(), headers={"Content-Type": "application/x-www-form-urlencoded"}))


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(alphabet=st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=80))
def test_authorizations_that_are_anything(fuzzed: httpx.Client, text: str) -> None:
    headers = {
        b"Authorization": b"AWS4-HMAC-SHA256 " + text.encode("latin-1") + b",",
        b"X-Amz-Date": b"20260101T000000Z",
        b"X-Amz-Target": b"AmazonSQS.ListQueues",
    }
    check(fuzzed.post("/", content=b"{}", headers=headers))
