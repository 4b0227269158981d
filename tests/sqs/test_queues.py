"""Queues over SQS with boto3, in both forms: create, find, list, attributes, tags, permissions, purge, delete."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from laneway.access import Permission
from tests.sqs.serving import ACCOUNT_ID, REGION, SqsServing, attribute, bodies, refusal

NewQueue = Callable[..., str]
NewName = Callable[..., str]


def test_a_queue_is_created_found_and_deleted(sqs: Any, serving: SqsServing, new_name: NewName) -> None:
    name = new_name("-A_z")
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert url == f"{serving.url}/{ACCOUNT_ID}/{name}"
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=ACCOUNT_ID)["QueueUrl"] == url
    sqs.delete_queue(QueueUrl=url)
    is_json = sqs.meta.service_model.metadata["protocol"] == "json"  # the other model names no classes
    with pytest.raises(sqs.exceptions.QueueDoesNotExist if is_json else ClientError) as caught:
        sqs.get_queue_url(QueueName=name)
    error = caught.value.response["Error"]
    assert error["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    words = "The specified queue does not exist"
    assert error["Message"] == (f"{words}." if is_json else f"{words} for this wsdl version.")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    for call in (sqs.delete_queue, sqs.receive_message, sqs.purge_queue, sqs.list_queue_tags):
        assert refusal(call, QueueUrl=url)[0] == "AWS.SimpleQueueService.NonExistentQueue"


def test_a_request_id_comes_with_every_answer(sqs: Any, queue: str) -> None:
    first, second = (sqs.list_queues()["ResponseMetadata"]["RequestId"] for _ in range(2))
    assert len(first) == 36 and first != second


@pytest.mark.parametrize("name", ["", "a.b", "x" * 81, "späß", "name.fifo", "a b"])
def test_names_that_no_queue_can_have(sqs: Any, name: str) -> None:
    assert refusal(sqs.create_queue, QueueName=name)[0] in ("InvalidParameterValue", "MissingParameter")


def test_a_queue_is_not_created_anew_with_other_attributes(sqs: Any, new_name: NewName) -> None:
    name = new_name()
    given = {"VisibilityTimeout": "5", "MaximumMessageSize": "2048", "SqsManagedSseEnabled": "true"}
    url = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    assert sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    for other in ({"VisibilityTimeout": "6"}, {"MaximumMessageSize": "1024"}, {"DelaySeconds": "1"}):
        code, text = refusal(sqs.create_queue, QueueName=name, Attributes=other)
        assert code == "QueueAlreadyExists"
        assert text == (
            f"A queue already exists with the same name and a different value for attribute {next(iter(other))}"
        )


def test_queues_are_listed_by_prefix_and_in_pages(sqs: Any, new_name: NewName) -> None:
    stem = new_name("-list-")
    urls = [sqs.create_queue(QueueName=f"{stem}{n}")["QueueUrl"] for n in range(5)]
    assert sqs.list_queues(QueueNamePrefix=stem)["QueueUrls"] == urls
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=stem + "none")
    pages = sqs.get_paginator("list_queues").paginate(QueueNamePrefix=stem, PaginationConfig={"PageSize": 2})
    assert [page["QueueUrls"] for page in pages] == [urls[:2], urls[2:4], urls[4:]]
    assert refusal(sqs.list_queues, MaxResults=1001)[0] == "InvalidParameterValue"
    assert refusal(sqs.list_queues, MaxResults=1, NextToken="\u00e4")[0] == "InvalidParameterValue"


def test_attributes_have_their_defaults(sqs: Any, queue: str) -> None:
    told = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert int(told.pop("CreatedTimestamp")) <= int(told.pop("LastModifiedTimestamp"))
    assert told == {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": f"arn:aws:sqs:{REGION}:{ACCOUNT_ID}:{queue.rsplit('/', 1)[1]}",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "30",
    }
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)
    assert refusal(sqs.get_queue_attributes, QueueUrl=queue, AttributeNames=["Colour"])[0] == "InvalidAttributeName"


def test_booleans_may_be_written_as_python_writes_them(sqs: Any, new_name: NewName) -> None:
    name = new_name(".fifo")
    given = {"FifoQueue": "True", "ContentBasedDeduplication": "TRUE", "SqsManagedSseEnabled": "False"}
    url = sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"]
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(given))["Attributes"]
    assert told == {"FifoQueue": "true", "ContentBasedDeduplication": "true", "SqsManagedSseEnabled": "false"}
    lower = {attribute: value.lower() for attribute, value in given.items()}
    for same in (given, lower):
        assert sqs.create_queue(QueueName=name, Attributes=same)["QueueUrl"] == url
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": "False", "FifoQueue": "True"})
    assert attribute(sqs, url, "ContentBasedDeduplication") == "false"
    assert refusal(sqs.create_queue, QueueName=new_name(), Attributes={"FifoQueue": "True"})[0] == (
        "InvalidParameterValue"
    )


def test_the_kind_of_a_queue_does_not_change(sqs: Any, queue: str, new_queue: NewQueue) -> None:
    for value in ("true", "false"):
        assert refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"FifoQueue": value}) == (
            "InvalidAttributeName",
            "Unknown Attribute FifoQueue.",
        )
    fifo = new_queue(".fifo")
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"FifoQueue": "true"})
    assert refusal(sqs.set_queue_attributes, QueueUrl=fifo, Attributes={"FifoQueue": "false"}) == (
        "InvalidAttributeValue",
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    )
    for name in ("DeduplicationScope", "FifoThroughputLimit"):
        assert refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={name: "queue"}) == (
            "InvalidAttributeName",
            f"You can specify the {name} only when FifoQueue is set to true.",
        )


def test_one_kind_of_encryption_takes_the_place_of_the_other(sqs: Any, queue: str) -> None:
    names = ["KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled"]

    def told() -> dict[str, str]:
        attributes: dict[str, str] = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=names)["Attributes"]
        return attributes

    assert told() == {"SqsManagedSseEnabled": "true"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"KmsMasterKeyId": "k", "KmsDataKeyReusePeriodSeconds": "600"})
    assert told() == {
        "KmsMasterKeyId": "k",
        "KmsDataKeyReusePeriodSeconds": "600",
        "SqsManagedSseEnabled": "false",
    }
    both = {"KmsMasterKeyId": "k", "SqsManagedSseEnabled": "true"}
    assert refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes=both) == (
        "InvalidAttributeName",
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    )
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"SqsManagedSseEnabled": "true"})
    assert "KmsMasterKeyId" not in told() and told()["SqsManagedSseEnabled"] == "true"


def test_attributes_are_set_and_told(sqs: Any, queue: str, serving: SqsServing) -> None:
    policy = json.dumps({"Version": "2012-10-17", "Statement": []})
    given = {
        "DelaySeconds": "1",
        "KmsDataKeyReusePeriodSeconds": "60",
        "KmsMasterKeyId": "alias/aws/sqs",
        "MaximumMessageSize": "1024",
        "MessageRetentionPeriod": "60",
        "Policy": policy,
        "ReceiveMessageWaitTimeSeconds": "2",
        "RedriveAllowPolicy": '{"redrivePermission":"denyAll"}',
        "SqsManagedSseEnabled": "false",
        "VisibilityTimeout": "0",
    }
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=given)
    assert sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=list(given))["Attributes"] == given
    assert refusal(sqs.send_message, QueueUrl=queue, MessageBody="x" * 1025) == (
        "InvalidParameterValue",
        "One or more parameters are invalid. Reason: Message must be shorter than 1024 bytes.",
    )
    with serving.client(auth=("root", "secret")) as http:
        settings = http.get(f"/queues/{queue.rsplit('/', 1)[1]}").json()
    assert (settings["visibility_timeout"], settings["delay_seconds"], settings["retention_seconds"]) == (0, 1, 60)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": "", "KmsMasterKeyId": ""})
    told = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert "Policy" not in told and "KmsMasterKeyId" not in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VisibilityTimeout", "43201"),
        ("VisibilityTimeout", "-1"),
        ("VisibilityTimeout", "ten"),
        ("DelaySeconds", "901"),
        ("MaximumMessageSize", "1023"),
        ("MaximumMessageSize", "1048577"),
        ("MessageRetentionPeriod", "59"),
        ("MessageRetentionPeriod", "1209601"),
        ("ReceiveMessageWaitTimeSeconds", "21"),
        ("KmsDataKeyReusePeriodSeconds", "59"),
        ("SqsManagedSseEnabled", "maybe"),
        ("Policy", "no json"),
    ],
)
def test_values_that_an_attribute_cannot_have(sqs: Any, queue: str, name: str, value: str) -> None:
    said = refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={name: value})
    assert said == ("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


@pytest.mark.parametrize("name", ["Colour", "FifoQueue", "ContentBasedDeduplication", "QueueArn"])
def test_attributes_that_cannot_be_set(sqs: Any, queue: str, name: str) -> None:
    said = refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={name: "true"})
    assert said == ("InvalidAttributeName", f"Unknown Attribute {name}.")


def test_tags(sqs: Any, new_name: NewName) -> None:
    url = sqs.create_queue(QueueName=new_name(), tags={"team": "a", "Owner": ""})["QueueUrl"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "a", "Owner": ""}
    sqs.tag_queue(QueueUrl=url, Tags={"team": "b", "stage": "<dev>"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["Owner", "none"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "b", "stage": "<dev>"}
    sqs.untag_queue(QueueUrl=url, TagKeys=["team", "stage"])
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=url)
    many = {f"t{n}": "x" for n in range(51)}
    name = url.rsplit("/", 1)[1]
    assert refusal(sqs.tag_queue, QueueUrl=url, Tags=many) == (
        "InvalidParameterValue",
        f"Too many tags added for queue {name}.",
    )
    assert refusal(sqs.tag_queue, QueueUrl=url, Tags={}) == (
        "MissingParameter",
        "The request must contain the parameter Tags.",
    )
    assert refusal(sqs.untag_queue, QueueUrl=url, TagKeys=[]) == (
        "InvalidParameterValue",
        "Tag keys must be between 1 and 128 characters in length.",
    )


def test_permissions_are_kept_in_the_policy(sqs: Any, queue: str) -> None:
    sqs.add_permission(
        QueueUrl=queue, Label="share", AWSAccountIds=["111122223333"], Actions=["SendMessage", "ReceiveMessage"]
    )
    policy = json.loads(attribute(sqs, queue, "Policy"))
    (statement,) = policy["Statement"]
    assert statement["Sid"] == "share" and statement["Action"] == ["SQS:SendMessage", "SQS:ReceiveMessage"]
    assert statement["Principal"] == {"AWS": "arn:aws:iam::111122223333:root"}
    arn = attribute(sqs, queue, "QueueArn")
    assert (policy["Version"], policy["Id"]) == ("2008-10-17", f"{arn}/SQSDefaultPolicy")
    assert (statement["Effect"], statement["Resource"]) == ("Allow", arn)
    two = ["111122223333", "444455556666"]
    sqs.add_permission(QueueUrl=queue, Label="two", AWSAccountIds=two, Actions=["ReceiveMessage"])
    first, second = json.loads(attribute(sqs, queue, "Policy"))["Statement"]
    assert first == statement and second["Action"] == "SQS:ReceiveMessage"
    assert second["Principal"] == {"AWS": [f"arn:aws:iam::{account}:root" for account in two]}
    sqs.remove_permission(QueueUrl=queue, Label="two")
    assert json.loads(attribute(sqs, queue, "Policy")) == policy
    assert refusal(sqs.remove_permission, QueueUrl=queue, Label="none") == (
        "InvalidParameterValue",
        "Value none for parameter Label is invalid. Reason: can't find label on existing policy.",
    )
    sqs.remove_permission(QueueUrl=queue, Label="share")
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"])
    assert refusal(sqs.remove_permission, QueueUrl=queue, Label="share") == (
        "InvalidParameterValue",
        "Value share for parameter Label is invalid. Reason: can't find label.",
    )


def test_a_permission_goes_into_the_policy_that_is_there(sqs: Any, queue: str) -> None:
    own = {"Sid": "own", "Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Resource": "*"}
    given = {"Version": "2012-10-17", "Id": "mine", "Statement": own}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": json.dumps(given)})
    sqs.add_permission(QueueUrl=queue, Label="more", AWSAccountIds=["111122223333"], Actions=["*"])
    policy = json.loads(attribute(sqs, queue, "Policy"))
    assert (policy["Version"], policy["Id"], policy["Statement"][0]) == ("2012-10-17", "mine", own)
    assert policy["Statement"][1]["Action"] == "SQS:*"


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({}, "InvalidParameterValue", "Value share for parameter Label is invalid. Reason: Already exists."),
        (
            {"Actions": ["Fly"]},
            "InvalidParameterValue",
            "Value SQS:Fly for parameter ActionName is invalid. Reason: Please refer to the appropriate WSDL for a "
            "list of valid actions. ",
        ),
        (
            {"Actions": ["RemovePermission"]},
            "InvalidParameterValue",
            "Value SQS:RemovePermission for parameter ActionName is invalid. Reason: Only the queue owner is allowed "
            "to invoke this action.",
        ),
        ({"Actions": []}, "MissingParameter", "The request must contain the parameter Actions."),
        ({"Actions": ["*"] * 8}, "OverLimit", "8 Actions were found, maximum allowed is 7."),
        (
            {"AWSAccountIds": []},
            "InvalidParameterValue",
            "Value [] for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
        (
            {"AWSAccountIds": ["12"]},
            "InvalidParameterValue",
            "Value 12 for parameter PrincipalId is invalid. Reason: Unable to verify.",
        ),
    ],
)
def test_permissions_that_are_refused(sqs: Any, queue: str, changes: dict[str, Any], code: str, text: str) -> None:
    given = {"QueueUrl": queue, "Label": "share", "AWSAccountIds": ["111122223333"], "Actions": ["SendMessage"]}
    sqs.add_permission(**given)
    assert refusal(sqs.add_permission, **{**given, **changes}) == (code, text)


def test_a_queue_is_purged(sqs: Any, queue: str) -> None:
    for n in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=str(n))
    (held,) = sqs.receive_message(QueueUrl=queue)["Messages"]
    sqs.purge_queue(QueueUrl=queue)
    assert bodies(sqs.receive_message(QueueUrl=queue)) == []
    assert attribute(sqs, queue, "ApproximateNumberOfMessagesNotVisible") == "0", "those in flight are gone too"
    late = {"QueueUrl": queue, "ReceiptHandle": held["ReceiptHandle"]}
    assert refusal(sqs.change_message_visibility, **late, VisibilityTimeout=0) == (
        "InvalidParameterValue",
        f"Value {held['ReceiptHandle']} for parameter ReceiptHandle is invalid. Reason: Message does not exist or is "
        "not available for visibility timeout change.",
    )
    sqs.delete_message(**late)  # too late, which is no error on a standard queue


def test_a_queue_of_http_is_a_queue_of_sqs(sqs: Any, serving: SqsServing, new_name: NewName) -> None:
    name = new_name(".with.dots")
    with serving.client(auth=("root", "secret")) as http:
        assert http.put(f"/queues/{name}", json={"visibility_timeout": 7}).status_code == 201
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    assert url in sqs.list_queues(QueueNamePrefix=name)["QueueUrls"]
    assert attribute(sqs, url, "VisibilityTimeout") == "7"
    assert attribute(sqs, url, "MaximumMessageSize") == str(256 * 1024)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(sqs.receive_message(QueueUrl=url)) == ["x"]


def test_what_only_sqs_knows_outlives_a_change_over_http(sqs: Any, serving: SqsServing, new_queue: NewQueue) -> None:
    queue = new_queue(".fifo", ContentBasedDeduplication="true", MaximumMessageSize="2048")
    sqs.tag_queue(QueueUrl=queue, Tags={"team": "a"})
    path = f"/queues/{queue.rsplit('/', 1)[1]}"
    with serving.client(auth=("root", "secret")) as http:
        assert http.patch(path, json={"visibility_timeout": 7}).status_code == 200
        assert attribute(sqs, queue, "ContentBasedDeduplication") == "true"
        assert http.put(path, json={"visibility_timeout": 8}).status_code == 200
    told = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    assert (told["VisibilityTimeout"], told["ContentBasedDeduplication"]) == ("8", "true")
    assert told["MaximumMessageSize"] == "2048"
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"team": "a"}


def test_regions_are_kept_apart(sqs: Any, serving: SqsServing, new_name: NewName) -> None:
    name = new_name("-region")
    here, there = sqs, serving.sqs(region="eu-west-1")
    here.create_queue(QueueName=name)
    assert refusal(there.get_queue_url, QueueName=name)[0] == "AWS.SimpleQueueService.NonExistentQueue"
    url = there.create_queue(QueueName=name)["QueueUrl"]
    there.send_message(QueueUrl=url, MessageBody="there")
    assert attribute(there, url, "QueueArn") == f"arn:aws:sqs:eu-west-1:{ACCOUNT_ID}:{name}"
    assert bodies(here.receive_message(QueueUrl=url)) == []
    assert bodies(there.receive_message(QueueUrl=url)) == ["there"]
    assert serving.call(serving.broker.topology.queue, "eu-west-1", name) is not None


def test_a_region_begins_with_a_queue_of_an_operator(serving: SqsServing, new_name: NewName) -> None:
    """It is a virtual host, and creating one needs that role over HTTP too."""
    anywhere = Permission(queue="*", vhost="*", read=True, write=True, configure=True)
    serving.run(serving.access.put_account("roamer", permissions=[anywhere]))
    roamer = serving.sqs(serving.new_key("roamer"), region="ap-south-1")
    code, words = refusal(roamer.create_queue, QueueName=new_name())
    assert (code, "no queues in ap-south-1 yet" in words) == ("AccessDenied", True)
    assert not serving.call(serving.broker.topology.has_vhost, "ap-south-1")
    serving.run(serving.access.put_account("keeper", roles=["operator"]))
    serving.sqs(serving.new_key("keeper"), region="ap-south-1").create_queue(QueueName=new_name())
    assert roamer.create_queue(QueueName=new_name())["QueueUrl"]


def test_actions_and_parameters_that_are_wrong(serving: SqsServing) -> None:
    sqs = serving.sqs()

    def retarget(request: Any, **_: Any) -> None:
        del request.headers["X-Amz-Target"]
        request.headers["X-Amz-Target"] = target

    sqs.meta.events.register("before-sign.sqs", retarget)
    target = "AmazonSQS.Fly"
    code, text = refusal(sqs.list_queues)
    assert (code, text) == ("InvalidAction", "The action Fly is not valid for this endpoint.")
    target = "AmazonSQS.SendMessage"
    assert refusal(sqs.list_queues) == ("MissingParameter", "The request must contain the parameter MessageBody.")


def test_a_body_that_is_no_json(serving: SqsServing) -> None:
    sqs = serving.sqs()

    def spoil(request: Any, **_: Any) -> None:
        request.data = b"{"

    sqs.meta.events.register("before-sign.sqs", spoil)
    with pytest.raises(ClientError) as caught:
        sqs.list_queues()
    assert caught.value.response["Error"]["Code"] == "MalformedInput"


def test_a_queue_that_is_created_again_is_another_one(tmp_path: Path) -> None:
    with SqsServing(tmp_path, waiting_periods=False) as serving:
        sqs = serving.sqs()
        name = "again"
        url = sqs.create_queue(QueueName=name)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="old")
        sqs.delete_queue(QueueUrl=url)
        assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x")[0] == "AWS.SimpleQueueService.NonExistentQueue"
        sqs.create_queue(QueueName=name, Attributes={"MaximumMessageSize": "1024"})
        assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x" * 1025)[0] == "InvalidParameterValue"
        sqs.send_message(QueueUrl=url, MessageBody="new")
        assert bodies(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)) == ["new"]
