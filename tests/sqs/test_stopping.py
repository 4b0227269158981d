"""A receive that waits: what becomes of it when the server stops, or its client goes away."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.in_thread import wait_for
from tests.sqs.serving import SqsServing, bodies


@pytest.mark.parametrize("form", ["json", "query"])
def test_a_stopping_server_answers_those_who_wait(tmp_path: Path, form: str) -> None:
    answers: list[Any] = []
    with SqsServing(tmp_path) as serving:
        sqs = serving.sqs(form=form)
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        asking = threading.Thread(target=lambda: answers.append(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=20)))
        asking.start()
        wait_for(lambda: serving.stats("q").consumers_waiting == 1, "somebody waits")
        began_s = time.monotonic()
    asking.join(10)
    assert time.monotonic() - began_s < 10
    assert [bodies(answer) for answer in answers] == [[]]


def test_a_message_is_not_lost_on_a_client_that_went_away(serving: SqsServing, new_name: Any) -> None:
    sqs = serving.sqs()
    name = new_name()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    body = b'{"QueueUrl": "%b", "WaitTimeSeconds": 20}' % url.encode()
    signed = AWSRequest("POST", serving.url + "/", headers={"X-Amz-Target": "AmazonSQS.ReceiveMessage"}, data=body)
    SigV4Auth(Credentials(*serving.key), "sqs", "us-east-1").add_auth(signed)
    lines = "".join(f"{key}: {value}\r\n" for key, value in signed.headers.items())
    host = f"Host: 127.0.0.1:{serving.address[1]}\r\n"
    with serving.connect() as wire:
        wire.send(f"POST / HTTP/1.1\r\n{host}{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_for(lambda: serving.stats(name).consumers_waiting == 1, "it waits")
    wait_for(lambda: serving.stats(name).consumers_waiting == 0, "it is noticed")
    sqs.send_message(QueueUrl=url, MessageBody="x")
    assert bodies(sqs.receive_message(QueueUrl=url)) == ["x"]
