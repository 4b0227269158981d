"""The load generator's SQS scripts: what they count is what happened, and every request of theirs is rightly signed."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import sqs_load
from benchmarks.http_load import HttpConnection
from benchmarks.laneway_load import Tally
from benchmarks.load import Load, LoadFailed
from tests.sqs.serving import SqsServing, attribute


@pytest.mark.parametrize("batch", [1, 10])
def test_everything_sent_is_received_and_deleted(serving: SqsServing, new_name: Any, batch: int) -> None:
    sqs = serving.sqs()
    url = sqs.create_queue(QueueName=new_name())["QueueUrl"]
    signer, tally = sqs_load.Signer(serving.address, serving.key), Tally()
    if batch == 1:
        requests = signer.requests("SendMessage", [sqs_load.send_body(url, "x")], 7)
    else:
        requests = signer.requests("SendMessageBatch", [sqs_load.batch_body(url, ["x"] * batch)], 7)
    senders = [HttpConnection(serving.address, sqs_load.sender(requests, batch, tally, limit=60)) for _ in range(3)]
    with Load(senders) as load:
        load.run(seconds=30, until=lambda: all(one.finished for one in senders))
    assert tally.published == 60 and attribute(sqs, url, "ApproximateNumberOfMessages") == "60"
    asks = signer.requests("ReceiveMessage", [sqs_load.receive_body(url, batch)], 7)
    receivers = [HttpConnection(serving.address, sqs_load.receiver(signer, asks, url, tally)) for _ in range(3)]
    with Load(receivers) as load:
        load.run(seconds=30, until=lambda: tally.acked >= 60)
    assert tally.received == tally.acked == 60
    assert attribute(sqs, url, "ApproximateNumberOfMessagesNotVisible") == "0"


def test_a_refusal_ends_the_measurement(serving: SqsServing) -> None:
    signer = sqs_load.Signer(serving.address, (serving.key[0], "wrong"))
    asks = signer.requests("ReceiveMessage", [sqs_load.receive_body("q", 1)], 1)
    client = HttpConnection(serving.address, sqs_load.receiver(signer, asks, "q", Tally()))
    with Load([client]) as load, pytest.raises(LoadFailed, match="SignatureDoesNotMatch"):
        load.run(seconds=10, until=lambda: client.finished)
