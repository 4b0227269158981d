"""make bench, the SQS part: Laneway beside moto's server, and beside a bare Starlette echo of the same requests.

Every request is signed on its own, and Laneway verifies every signature; moto does not, and keeps its queues in memory
alone. What boto3 itself costs is a case of its own: there the client is the bottleneck.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from benchmarks import sqs_load as load
from benchmarks.http_load import HttpConnection, Script, ask
from benchmarks.laneway_load import Tally, payload_texts
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Watch, assign_cores, describe
from benchmarks.report import Goal, Report
from benchmarks.servers import LanewayServer, MotoServer, Server, StarletteEcho
from benchmarks.turns import Turns

KILOBYTE = 1024
CONNECTIONS = 32
VARIANTS = 64
BATCH = 10
SIGNED_MESSAGES = 16_384  # in requests that were signed before the load began; then they come again
SEND, SEND_BATCH = "SQS send, 1 × 1 KB", f"SQS send, {BATCH} × 1 KB"
RECEIVE, RECEIVE_BATCH = "SQS receive + delete, 1 × 1 KB", f"SQS receive + delete, {BATCH} × 1 KB"
BOTO3 = "boto3 send, 1 × 1 KB, one thread"
CASES = (SEND, SEND_BATCH, RECEIVE, RECEIVE_BATCH, BOTO3)


class SqsBench:
    def __init__(self, options: argparse.Namespace, report: Report, servers: Sequence[Server]) -> None:
        self.options = options
        self.report = report
        self.laneway, self.moto, self.starlette = servers
        self.keys: dict[str, tuple[str, str]] = {}
        self._queue_count = 0

    def prepare(self) -> None:
        """An account with an access key: what Laneway verifies with."""
        address = self.laneway.address
        ask(address, "PUT", "/accounts/bench", {"roles": ["operator"]})
        made: Any = ask(address, "POST", "/accounts/bench/keys", {"kind": "aws"}, user="guest:guest")
        self.keys = {self.laneway.name: (made["key_id"], made["key"])}

    def key(self, server: Server) -> tuple[str, str]:
        return self.keys.get(server.name, ("any", "any"))

    def client(self, server: Server) -> Any:
        key_id, secret = self.key(server)
        return boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{server.port}",
            region_name=load.REGION,
            aws_access_key_id=key_id,
            aws_secret_access_key=secret,
            config=Config(retries={"total_max_attempts": 1}),
        )

    def new_queue(self, server: Server) -> str:
        self._queue_count += 1
        return str(self.client(server).create_queue(QueueName=f"bench-{self._queue_count}")["QueueUrl"])

    def note(self, case: str, server: Server, value: float, **notes: float) -> None:
        self.report.add(case, server.name, "msg/s", value, **notes)
        said = ", ".join(f"{key.replace('_', ' ')} {number:.3g}" for key, number in notes.items())
        print(f"  {case:38} {server.name:10} {value:12,.1f} msg/s  {said}", file=sys.stderr, flush=True)

    def rounds(self, turns: Sequence[Callable[[], None]]) -> None:
        Turns(self.report, self.options).rounds(turns)

    def bodies(self, url: str, batch: int) -> list[bytes]:
        texts = payload_texts(KILOBYTE, VARIANTS)
        if batch == 1:
            return [load.send_body(url, text) for text in texts]
        return [load.batch_body(url, (texts * 2)[at : at + batch]) for at in range(16)]

    def requests(self, server: Server, url: str, batch: int) -> Iterator[bytes]:
        signer = load.Signer(server.address, self.key(server))
        action = "SendMessage" if batch == 1 else "SendMessageBatch"
        return signer.requests(action, self.bodies(url, batch), SIGNED_MESSAGES // batch)

    def send(self, case: str, server: Server, batch: int, connections: int) -> None:
        url = "http://127.0.0.1/000000000000/q" if server is self.starlette else self.new_queue(server)
        requests, tally = self.requests(server, url, batch), Tally()
        script = _echoed if server is self.starlette else load.sender
        clients = [HttpConnection(server.address, script(requests, batch, tally)) for _ in range(connections)]
        with Load(clients) as running:
            running.run(seconds=self.options.seconds / 4)
            before, watch = sum(one.reply_count for one in clients), Watch(server.pid)
            took = running.run(seconds=self.options.seconds)
            count = (sum(one.reply_count for one in clients) - before) * batch
            notes = watch.notes(count)
        self.note(case, server, count / took, **notes)
        if server is not self.starlette:
            self.client(server).delete_queue(QueueUrl=url)

    def receive(self, case: str, server: Server, batch: int, connections: int, messages: int) -> None:
        """From a queue that holds so many already, until it is empty."""
        url = self.new_queue(server)
        signer, tally = load.Signer(server.address, self.key(server)), Tally()
        requests = self.requests(server, url, BATCH)
        filling = [load.sender(requests, BATCH, tally, limit=messages) for _ in range(8)]
        fillers = [HttpConnection(server.address, script) for script in filling]
        with Load(fillers) as running:
            running.run(seconds=300, until=lambda: all(one.finished for one in fillers))
        asks = signer.requests("ReceiveMessage", [load.receive_body(url, batch)], SIGNED_MESSAGES // batch)
        scripts = [load.receiver(signer, asks, url, tally) for _ in range(connections)]
        clients = [HttpConnection(server.address, script) for script in scripts]
        watch = Watch(server.pid)
        with Load(clients) as running:
            took = running.run(seconds=300, until=lambda: tally.acked >= tally.published)
        if tally.received != tally.published:
            raise LoadFailed(f"{tally.published} were sent and {tally.received} received")
        self.note(case, server, tally.acked / took, **watch.notes(tally.acked))
        self.client(server).delete_queue(QueueUrl=url)

    def boto3_send(self, case: str, server: Server) -> None:
        client, url = self.client(server), self.new_queue(server)
        text, count = payload_texts(KILOBYTE, 1)[0], 0
        client.send_message(QueueUrl=url, MessageBody=text)
        watch, began = Watch(server.pid), time.perf_counter()
        while time.perf_counter() - began < self.options.seconds:
            client.send_message(QueueUrl=url, MessageBody=text)
            count += 1
        self.note(case, server, count / (time.perf_counter() - began), **watch.notes(count))
        client.delete_queue(QueueUrl=url)

    def run(self, only: str) -> None:
        few = max(self.options.messages // 1_000, 200)  # moto needs minutes for what takes Laneway seconds
        some = max(self.options.messages // 4, few)

        def sends(case: str, batch: int, servers: Sequence[Server], connections: int) -> None:
            self.rounds([lambda server=server: self.send(case, server, batch, connections) for server in servers])  # type: ignore[misc]

        def receives(case: str, batch: int, count: int) -> None:
            self.rounds(
                [
                    lambda: self.receive(case, self.laneway, batch, CONNECTIONS, count),
                    lambda: self.receive(case, self.moto, batch, CONNECTIONS, few),
                ]
            )

        everybody, both = (self.laneway, self.moto, self.starlette), (self.laneway, self.moto)
        cases: dict[str, Callable[[], None]] = {
            SEND: lambda: sends(SEND, 1, everybody, CONNECTIONS),
            SEND_BATCH: lambda: sends(SEND_BATCH, BATCH, both, CONNECTIONS),
            RECEIVE: lambda: receives(RECEIVE, 1, some),
            RECEIVE_BATCH: lambda: receives(RECEIVE_BATCH, BATCH, some * 2),
            BOTO3: lambda: self.rounds([lambda server=server: self.boto3_send(BOTO3, server) for server in both]),  # type: ignore[misc]
        }
        for case, measured in cases.items():
            if only in case:
                measured()


def _echoed(requests: Iterator[bytes], batch: int, tally: Tally) -> Script:
    """The same requests, to a server that only decodes and echoes them."""
    while True:
        yield next(requests)


def goals() -> list[Goal]:
    return [
        Goal(SEND, "Laneway", at_least=15_000),
        Goal(SEND, "Laneway", at_least=1.5, beside="Starlette"),
        Goal(SEND_BATCH, "Laneway", at_least=60_000),
        Goal(RECEIVE_BATCH, "Laneway", at_least=60_000),
        Goal(SEND, "Laneway", at_least=1, beside="moto"),
    ]


def measure(options: argparse.Namespace, folder: Path) -> Report:
    cores = assign_cores()
    report = Report("sqs", describe(folder, cores))
    report.goals = goals()
    laneway = LanewayServer(folder / "laneway", cores.server)
    moto = MotoServer(folder / "moto", cores.server)
    starlette = StarletteEcho(folder / "starlette", cores.server)
    os.sched_setaffinity(0, cores.generator)
    try:
        with laneway, moto, starlette:
            bench = SqsBench(options, report, (laneway, moto, starlette))
            bench.prepare()
            bench.run(options.only)
    finally:
        os.sched_setaffinity(0, cores.everything)
    return report
