"""make bench, the SQS part: Laneway beside moto's server, and beside a bare Starlette echo of the same requests.

Every request is signed on its own, and Laneway verifies every signature; moto does not, and keeps its queues in memory
alone. What boto3 itself costs is a case of its own: there the client is the bottleneck.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from benchmarks import sqs_load as load
from benchmarks.http_load import HttpConnection, Script, ask
from benchmarks.laneway_load import Tally, payload_texts
from benchmarks.load import Load, LoadFailed
from benchmarks.machine import Cores, Watch, assign_cores, describe
from benchmarks.report import Goal, Report
from benchmarks.servers import AGAINST, LanewayServer, MotoServer, Server, StarletteEcho
from benchmarks.turns import Turn, Turns, is_chosen, takes_part

KILOBYTE = 1024
CONNECTIONS = 32
VARIANTS = 64
BATCH = 10
SIGNED_MESSAGES = 16_384  # in requests that were signed before the load began; then they come again
SEND, SEND_BATCH = "SQS send, 1 × 1 KB", f"SQS send, {BATCH} × 1 KB"
RECEIVE, RECEIVE_BATCH = "SQS receive + delete, 1 × 1 KB", f"SQS receive + delete, {BATCH} × 1 KB"
SEND_ATTRIBUTES = f"SQS send, {BATCH} with three attributes"
RECEIVE_ATTRIBUTES = f"SQS receive + delete, {BATCH} with three attributes"
BOTO3 = "boto3 send, 1 × 1 KB, one thread"
CASES = (SEND, SEND_BATCH, SEND_ATTRIBUTES, RECEIVE, RECEIVE_BATCH, RECEIVE_ATTRIBUTES, BOTO3)


class SqsBench:
    def __init__(self, options: argparse.Namespace, report: Report, cores: Cores, folder: Path) -> None:
        self.options = options
        self.report = report
        self.laneways: list[Server] = [LanewayServer(folder / "laneway", cores.server)]
        if options.against is not None:
            self.laneways.append(LanewayServer(folder / "against", cores.server, checkout=options.against))
        self.moto: list[Server] = [MotoServer(folder / "moto", cores.server)] if takes_part("moto", options) else []
        self.starlette: list[Server] = []
        if takes_part("Starlette", options):
            self.starlette = [StarletteEcho(folder / "starlette", cores.server)]
        self.keys: dict[str, tuple[str, str]] = {}
        self._queue_count = 0

    def prepare(self) -> None:
        """An account with an access key: what Laneway verifies with."""
        for server in self.laneways:
            ask(server.address, "PUT", "/accounts/bench", {"roles": ["operator"]})
            made: Any = ask(server.address, "POST", "/accounts/bench/keys", {"kind": "aws"}, user="guest:guest")
            self.keys[server.name] = made["key_id"], made["key"]

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

    def requests(self, server: Server, url: str, batch: int, *, with_attributes: bool = False) -> Iterator[bytes]:
        signer, count = load.Signer(server.address, self.key(server)), SIGNED_MESSAGES // batch
        texts = payload_texts(KILOBYTE, VARIANTS)
        if batch == 1:
            return signer.requests("SendMessage", [load.send_body(url, text) for text in texts], count)
        bodies = [
            load.batch_body(
                url,
                [texts[(at + number) % VARIANTS] for number in range(batch)],
                [_attributes(at * batch + number) for number in range(batch)] if with_attributes else (),
            )
            for at in range(count if with_attributes else 16)
        ]
        return signer.requests("SendMessageBatch", bodies, count)

    def send(self, case: str, batch: int, server: Server) -> None:
        is_echo = server in self.starlette
        url = "http://127.0.0.1/000000000000/q" if is_echo else self.new_queue(server)
        requests, tally = self.requests(server, url, batch, with_attributes=case == SEND_ATTRIBUTES), Tally()
        script = _echoed if is_echo else load.sender
        clients = [HttpConnection(server.address, script(requests, batch, tally)) for _ in range(CONNECTIONS)]
        with Load(clients) as running:
            running.run(seconds=self.options.seconds / 4)
            before, watch = sum(one.reply_count for one in clients), Watch(server.pid)
            took = running.run(seconds=self.options.seconds)
            count = (sum(one.reply_count for one in clients) - before) * batch
            notes = watch.notes(count)
        self.note(case, server, count / took, **notes)
        if not is_echo:
            self.client(server).delete_queue(QueueUrl=url)

    def receive(self, case: str, batch: int, messages: int, server: Server) -> None:
        """From a queue that holds so many already, until it is empty."""
        url, with_attributes = self.new_queue(server), case == RECEIVE_ATTRIBUTES
        signer, tally = load.Signer(server.address, self.key(server)), Tally()
        requests = self.requests(server, url, BATCH, with_attributes=with_attributes)
        filling = [load.sender(requests, BATCH, tally, limit=messages) for _ in range(8)]
        fillers = [HttpConnection(server.address, script) for script in filling]
        with Load(fillers) as running:
            running.run(seconds=300, until=lambda: all(one.finished for one in fillers))
        body = load.receive_body(url, batch, with_attributes=with_attributes)
        asks = signer.requests("ReceiveMessage", [body], SIGNED_MESSAGES // batch)
        scripts = [load.receiver(signer, asks, url, tally) for _ in range(CONNECTIONS)]
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

    def run(self) -> None:
        few = max(self.options.messages // 1_000, 200)  # moto needs minutes for what takes Laneway seconds
        some = max(self.options.messages // 4, few)

        def sends(case: str, batch: int, servers: Sequence[Server]) -> list[Turn]:
            return [partial(self.send, case, batch, server) for server in servers]

        def receives(case: str, batch: int, count: int, moto: Sequence[Server]) -> list[Turn]:
            turns: list[Turn] = [partial(self.receive, case, batch, count, server) for server in self.laneways]
            return turns + [partial(self.receive, case, batch, few, server) for server in moto]

        both = [*self.laneways, *self.moto]
        cases = {
            SEND: sends(SEND, 1, [*both, *self.starlette]),
            SEND_BATCH: sends(SEND_BATCH, BATCH, both),
            SEND_ATTRIBUTES: sends(SEND_ATTRIBUTES, BATCH, self.laneways),
            RECEIVE: receives(RECEIVE, 1, some, self.moto),
            RECEIVE_BATCH: receives(RECEIVE_BATCH, BATCH, some * 2, self.moto),
            RECEIVE_ATTRIBUTES: receives(RECEIVE_ATTRIBUTES, BATCH, some * 2, ()),
            BOTO3: [partial(self.boto3_send, BOTO3, server) for server in both],
        }
        chosen = [turns for case, turns in cases.items() if is_chosen(case, self.options)]
        Turns(self.report, self.options).rounds(*chosen)


def _attributes(number: int) -> dict[str, str]:
    return {"customer": f"customer-{number}", "region": f"region-{number % 17}", "trace": f"{number * 7919:032x}"}


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
        Goal(SEND_ATTRIBUTES, "Laneway", at_least=0.7, beside="Laneway", beside_case=SEND_BATCH),
        Goal(RECEIVE_ATTRIBUTES, "Laneway", at_least=0.7, beside="Laneway", beside_case=RECEIVE_BATCH),
        *(Goal(case, "Laneway", at_least=0.9, beside=AGAINST) for case in CASES),
    ]


def measure(options: argparse.Namespace, folder: Path) -> Report:
    cores = assign_cores()
    report = Report("sqs", describe(folder, cores, options.against))
    report.goals = goals()
    bench = SqsBench(options, report, cores, folder)
    os.sched_setaffinity(0, cores.generator)
    try:
        with ExitStack() as running:
            for server in [*bench.laneways, *bench.moto, *bench.starlette]:
                running.enter_context(server)
            bench.prepare()
            bench.run()
    finally:
        os.sched_setaffinity(0, cores.everything)
    return report
