"""Clients other than boto3, unchanged: aiobotocore, kombu, and a Celery worker in a process of its own."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import kombu
import pytest
from aiobotocore.session import get_session

from tests.celery_worker import WAIT_S, worker
from tests.sqs.serving import REGION, SqsServing

NewName = Callable[..., str]


def url_of(serving: SqsServing) -> str:
    access_key, secret = serving.key
    return f"sqs://{quote(access_key, safe='')}:{quote(secret, safe='')}@127.0.0.1:{serving.address[1]}"


OPTIONS = {"region": REGION, "is_secure": False, "wait_time_seconds": 1, "polling_interval": 0.1}


def test_aiobotocore(serving: SqsServing, new_name: NewName) -> None:
    async def spoken() -> list[str]:
        access_key, secret = serving.key
        async with get_session().create_client(
            "sqs",
            endpoint_url=serving.url,
            region_name=REGION,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret,
        ) as sqs:
            queue = (await sqs.create_queue(QueueName=new_name()))["QueueUrl"]
            waiting = asyncio.ensure_future(sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20))
            await asyncio.gather(*(sqs.send_message(QueueUrl=queue, MessageBody=str(n)) for n in range(30)))
            messages = (await waiting)["Messages"]
            while len(messages) < 30:
                messages += (await sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)).get("Messages", [])
            await asyncio.gather(
                *(sqs.delete_message(QueueUrl=queue, ReceiptHandle=one["ReceiptHandle"]) for one in messages)
            )
            left = await sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])
            assert left["Attributes"]["ApproximateNumberOfMessagesNotVisible"] == "0"
            return [one["Body"] for one in messages]

    assert sorted(asyncio.run(spoken()), key=int) == [str(n) for n in range(30)]


def test_kombu_publishes_and_consumes(serving: SqsServing, new_name: NewName) -> None:
    got: list[Any] = []
    with kombu.Connection(url_of(serving), transport_options=OPTIONS) as connection:
        queue = kombu.Queue(new_name("-kombu"))
        with connection.Producer() as producer:
            for n in range(5):
                producer.publish({"n": n}, routing_key=queue.name, declare=[queue])

        def take(body: Any, message: kombu.Message) -> None:
            got.append(body["n"])
            message.ack()

        with connection.Consumer(queue, callbacks=[take]):
            while len(got) < 5:
                connection.drain_events(timeout=10)
        assert sorted(got) == [0, 1, 2, 3, 4]
        assert queue(connection.default_channel).queue_declare(passive=True).message_count == 0


def test_a_message_that_kombu_rejects_with_requeue_comes_again(serving: SqsServing, new_name: NewName) -> None:
    with kombu.Connection(url_of(serving), transport_options=OPTIONS) as connection:
        with connection.SimpleQueue(new_name("-simple")) as simple:
            simple.put("again")
            message = simple.get(timeout=10)
            message.requeue()
            message = simple.get(timeout=10)
            assert message.payload == "again"
            message.ack()


@pytest.fixture(scope="module")
def tasks(shared_serving: SqsServing, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The application's module, with a worker running beside it."""
    folder: Path = tmp_path_factory.mktemp("celery")
    (folder / "results").mkdir()
    os.environ.update(
        LANEWAY_TEST_BROKER_URL=url_of(shared_serving), LANEWAY_TEST_BACKEND_URL=f"file://{folder / 'results'}"
    )
    application = importlib.import_module("tests.sqs.celery_app")
    with worker(application, folder, ["--concurrency", "1"]):
        yield application


def test_celery_tasks_have_results(tasks: ModuleType) -> None:
    results = [tasks.add.delay(n, 1) for n in range(20)]
    assert [result.get(timeout=WAIT_S) for result in results] == list(range(1, 21))
    with pytest.raises(KeyError, match="gone"):
        tasks.breaks.delay().get(timeout=WAIT_S)


def test_celery_retries_and_countdowns(tasks: ModuleType) -> None:
    assert tasks.fails_twice.delay().get(timeout=WAIT_S) == {"retries": 2}
    assert tasks.add.apply_async((1, 2), countdown=1).get(timeout=WAIT_S) == 3
