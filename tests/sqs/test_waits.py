"""What AWS makes callers wait for, 60 seconds each; with boto3, in both forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from laneway.frontends.sqs.waits import COLLECTION
from tests.sqs.serving import SqsServing, bodies, refusal

NewName = Callable[..., str]
NewQueue = Callable[..., str]
DELETED = (
    "AWS.SimpleQueueService.QueueDeletedRecently",
    "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
)


@pytest.fixture
def serving(aging: SqsServing) -> SqsServing:
    return aging


@pytest.fixture(params=["json", "query"])
def sqs(request: pytest.FixtureRequest, aging: SqsServing) -> Any:
    return aging.sqs(form=request.param)


def test_a_name_is_free_a_minute_after_its_queue_was_deleted(sqs: Any, serving: SqsServing, new_name: NewName) -> None:
    name = new_name()
    sqs.delete_queue(QueueUrl=sqs.create_queue(QueueName=name)["QueueUrl"])
    with pytest.raises(ClientError) as caught:
        sqs.create_queue(QueueName=name)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    error = caught.value.response["Error"]
    assert (error["Code"], error["Message"]) == DELETED
    serving.ahead_ms += 59_000
    assert refusal(sqs.create_queue, QueueName=name) == DELETED
    serving.ahead_ms += 1_001
    assert sqs.create_queue(QueueName=name)["QueueUrl"]


def test_a_queue_is_purged_once_a_minute(sqs: Any, serving: SqsServing, queue: str, new_queue: NewQueue) -> None:
    sqs.purge_queue(QueueUrl=queue)
    with pytest.raises(ClientError) as caught:
        sqs.purge_queue(QueueUrl=queue)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    error = caught.value.response["Error"]
    assert error["Code"] == "AWS.SimpleQueueService.PurgeQueueInProgress"
    name = queue.rsplit("/", 1)[1]
    assert error["Message"] == f"Only one PurgeQueue operation on {name} is allowed every 60 seconds."
    sqs.purge_queue(QueueUrl=new_queue())
    serving.ahead_ms += 60_001
    sqs.purge_queue(QueueUrl=queue)


def test_a_restart_does_not_shorten_the_wait(tmp_path: Path) -> None:
    with SqsServing(tmp_path) as serving:
        sqs = serving.sqs()
        sqs.delete_queue(QueueUrl=sqs.create_queue(QueueName="q")["QueueUrl"])
    with SqsServing(tmp_path) as serving:
        assert refusal(serving.sqs(serving.key).create_queue, QueueName="q") == DELETED


def test_what_is_kept_of_it_goes_again(tmp_path: Path) -> None:
    with SqsServing(tmp_path) as serving:
        sqs = serving.sqs()

        def delete(count: int) -> int:
            for _ in range(count):
                serving.names = getattr(serving, "names", 0) + 1
                sqs.delete_queue(QueueUrl=sqs.create_queue(QueueName=f"q{serving.names}")["QueueUrl"])
            return len(serving.call(serving.broker.topology.documents, COLLECTION))

        assert delete(5) == 5
        serving.ahead_ms += 61_000
        assert delete(1) == 4
        assert delete(3) == 4


def send(sqs: Any, queue: str, group: str, dedup_id: str) -> str:
    sent = sqs.send_message(QueueUrl=queue, MessageBody="x", MessageGroupId=group, MessageDeduplicationId=dedup_id)
    return str(sent["MessageId"])


@pytest.mark.parametrize("before", ["queue", "messageGroup"])
def test_another_scope_of_deduplication_counts_after_a_minute(
    sqs: Any, serving: SqsServing, new_queue: NewQueue, before: str
) -> None:
    wide, narrow = (
        {"DeduplicationScope": "queue", "FifoThroughputLimit": "perQueue"},
        {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"},
    )
    first, second = (wide, narrow) if before == "queue" else (narrow, wide)
    queue = new_queue(".fifo", **first)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=second)
    told = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=list(second))["Attributes"]
    assert told == second
    is_one = send(sqs, queue, "a", "early") == send(sqs, queue, "b", "early")
    assert is_one == (before == "queue")
    serving.ahead_ms += 60_001
    is_one = send(sqs, queue, "a", "late") == send(sqs, queue, "b", "late")
    assert is_one == (before == "messageGroup")


@pytest.mark.parametrize("form", ["json", "query"])
def test_a_setting_switches_all_of_it_off(impatient: SqsServing, form: str) -> None:
    sqs = impatient.sqs(form=form)
    for body in ("a", "b"):
        queue = sqs.create_queue(QueueName=f"q-{form}")["QueueUrl"]
        sqs.send_message(QueueUrl=queue, MessageBody=body)
        for _ in range(2):
            sqs.purge_queue(QueueUrl=queue)
        assert bodies(sqs.receive_message(QueueUrl=queue)) == []
        sqs.delete_queue(QueueUrl=queue)
    assert not impatient.call(impatient.broker.topology.documents, COLLECTION)
    queue = sqs.create_queue(QueueName=f"q-{form}.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DeduplicationScope": "messageGroup"})
    assert send(sqs, queue, "a", "same") != send(sqs, queue, "b", "same")


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServing]:
    with SqsServing(tmp_path_factory.mktemp("impatient"), waiting_periods=False) as serving:
        yield serving


def test_a_purge_forgets_deduplication_ids(sqs: Any, new_queue: NewQueue) -> None:
    queue = new_queue(".fifo")
    first = send(sqs, queue, "g", "same")
    assert send(sqs, queue, "g", "same") == first
    sqs.purge_queue(QueueUrl=queue)
    assert send(sqs, queue, "g", "same") != first
    assert bodies(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)) == ["x"]
