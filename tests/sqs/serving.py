"""A server with SQS and the HTTP API on one port, as a node has them, and clients of it: boto3's, in both forms."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from laneway.access import Access
from laneway.broker.clock import Clock
from laneway.broker.documents import Documents
from laneway.broker.engine import Engine
from laneway.broker.interface import DescribeQueue
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.broker.values import BrokerLimits, QueueStats
from laneway.frontends.http.server import HttpServer
from laneway.frontends.rest.api import RestApi
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.sqs.api import SqsApi
from laneway.frontends.sqs.names import SqsOptions
from tests.journals import journal_for
from tests.rest.serving import Serving
from tests.wire_broker import for_tests

ACCOUNT_ID = "123456789012"
REGION = "us-east-1"


def refusal(call: Callable[..., Any], **parameters: Any) -> tuple[str, str]:
    """(code, text) of the error that a call is answered with."""
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def bodies(answer: dict[str, Any]) -> list[str]:
    return [message["Body"] for message in answer.get("Messages", [])]


def attribute(sqs: Any, queue: str, name: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[name])["Attributes"][name])


class SqsServing(Serving):
    """`key` is the access key of an admin called root."""

    def __init__(self, folder: Path, *, anonymous: bool = False, waiting_periods: bool = True) -> None:
        super().__init__(folder)
        self._options = SqsOptions(account_id=ACCOUNT_ID, region=REGION, waiting_periods=waiting_periods)
        self._has_root = not anonymous
        self.signing_ahead_s = 0  # how far the clock that signatures are judged by is ahead
        self.key: tuple[str, str] = ("none", "none")

    async def _start(self) -> None:
        limits = BrokerLimits(max_message_bytes=16 * 1024 * 1024)
        engine = Engine(journal_for(self.folder), new_tag=lambda: 7)
        self.partition = Partition(engine, clock=Clock.steady(self.now_ms), limits=limits)
        await self.partition.start()
        self.broker = await for_tests(LocalBroker(self.partition))
        self.access = Access(Documents(self.broker), now_ms=self.now_ms)
        sqs = SqsApi(self.broker, self.access, self._options, now_s=lambda: time.time() + self.signing_ahead_s)
        rest_limits = RestLimits()
        self.server = HttpServer([sqs, RestApi(self.broker, self.access, rest_limits)], rest_limits)
        self.access.on_change(self.server.recheck)
        self.address = await self.server.start("127.0.0.1", 0)
        if self._has_root:
            await self.access.put_account("root", password="secret", roles=["admin"])
            self.key = await self.access.create_key("root", kind="aws")

    def sqs(self, key: tuple[str, str] | None = None, *, region: str = REGION, form: str = "json") -> Any:
        """A client of boto3. The key is root's unless another is given."""
        access_key, secret = key or self.key
        session = boto3.Session(aws_access_key_id=access_key, aws_secret_access_key=secret, region_name=region)
        if form == "query":
            from tests.sqs.query_model import speak_query

            speak_query(session)
        return session.client(
            "sqs",
            endpoint_url=self.url,
            config=Config(retries={"total_max_attempts": 1}, read_timeout=30, max_pool_connections=20),
        )

    def stats(self, queue: str) -> QueueStats:
        stats: QueueStats = self.ask(DescribeQueue("/", queue))
        return stats

    def new_key(self, account: str) -> tuple[str, str]:
        return self.run(self.access.create_key(account, kind="aws"))
