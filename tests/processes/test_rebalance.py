"""`laneway rebalance` on a real server of several processes: its clients use the queues throughout, processes are
killed in the middle, and afterwards nothing is lost, twice or out of order."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pika
import pytest
from botocore.config import Config

from laneway.core.partitions import home
from tests.crash.server import BROKEN, Server, eventually
from tests.processes.several import SeveralProcesses

QUEUES = [f"queue-{number}" for number in range(12)]
AWAY = [name for name in QUEUES if home("/", name, 4)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SeveralProcesses]:
    with grown(tmp_path / "data") as several:
        yield several


@contextmanager
def grown(folder: Path) -> Iterator[SeveralProcesses]:
    """Four partitions in two processes, on a folder that had one, with queues in it."""
    with Server(folder) as one:
        connection = one.connect()
        for name in QUEUES:
            connection.must(201, "PUT", f"/queues/{name}", {"visibility_timeout": 300})
            connection.must(201, "POST", f"/queues/{name}/messages", {"payload": f"before {name}"})
        connection.close()
        one.stop()
    with SeveralProcesses(folder, processes=2, partitions=4) as several:
        yield several


def rebalance(server: Server, *options: str) -> Any:
    command = [sys.executable, "-m", "laneway", "rebalance", "--url", f"http://127.0.0.1:{server.port}", *options]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def homes(server: Server) -> dict[str, int]:
    """Where each queue is, as a dry run of all moves elsewhere says."""
    (dry,) = rebalance(server, "--dry-run", "--all")
    return {one["queue_name"]: one["from"] for one in dry["moves"]}


def test_raising_the_number_leaves_queues_and_rebalancing_takes_them_home(server: SeveralProcesses) -> None:
    connection = server.connect()
    assert homes(server) == dict.fromkeys(AWAY, 0)
    new = next(name for name in (f"new-{number}" for number in range(99)) if home("/", name, 4) == 3)
    connection.must(201, "PUT", f"/queues/{new}")
    assert new not in homes(server)
    handle = _taken(connection, AWAY[0])["receipt_handle"]

    begun, status = rebalance(server)
    assert sorted(one["queue_name"] for one in begun["moves"]) == sorted(AWAY)
    assert (status["moved_queues"], status["failed"], status["is_running"]) == (len(AWAY), [], False)
    assert status["moved_messages"] == len(AWAY)
    assert homes(server) == {} and rebalance(server) == [{"move_count": 0, "moves": [], "is_dry_run": False}]
    for each in server.by_process().values():
        for name in QUEUES[1:]:
            found = each.must(200, "GET", f"/queues/{name}/messages?state=ready,leased")["messages"]
            assert [one["payload"] for one in found] == [f"before {name}"]
        each.close()
    connection.must(200, "POST", f"/queues/{AWAY[0]}/ack", [{"receipt_handle": handle}])

    # One that is moved by name stays where it was moved to.
    at_home = home("/", QUEUES[0], 4)
    there = (at_home + 1) % 4
    (begun,) = rebalance(server, "--queue", QUEUES[0], "--to", str(there), "--no-wait")
    assert begun["moves"] == [{"vhost": "/", "queue_name": QUEUES[0], "from": at_home, "to": there}]
    eventually("it has moved", lambda: not connection.must(200, "GET", "/rebalance")["is_running"])
    assert rebalance(server)[0]["move_count"] == 0 and homes(server) == {QUEUES[0]: there}
    server.stop()
    server.start()
    assert homes(server) == {QUEUES[0]: there}
    rebalance(server, "--queue", QUEUES[0])
    assert homes(server) == {}


def _taken(connection: Any, name: str) -> dict[str, Any]:
    found: dict[str, Any] = connection.must(200, "POST", f"/queues/{name}/dequeue", {"max_messages": 1})["messages"][0]
    return found


class Load:
    """Clients that publish to and consume from one queue each, until they are told to stop. What was confirmed and
    what was received stands in order."""

    def __init__(self, server: SeveralProcesses, name: str, *, survives: bool) -> None:
        self.server = server
        self.name = name
        self.survives = survives  # errors of a connection are met with another one
        self.sent: list[str] = []
        self.doubtful: set[str] = set()  # it is not known whether they were published
        self.received: list[str] = []
        self.errors: list[BaseException] = []
        self._is_over = threading.Event()
        self._is_sent = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(one,)) for one in (self.produce, self.consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"a client of {self.name} hangs"

    def _run(self, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
                return
            except Exception as trouble:
                if not self.survives:
                    self.errors.append(trouble)
                    return
                time.sleep(0.05)
            finally:
                if work == self.produce and (self._is_over.is_set() or not self.survives):
                    self._is_sent.set()

    def next_body(self) -> str:
        body = f"{len(self.sent) + len(self.doubtful)} {self.name}"
        self.doubtful.add(body)
        return body

    def confirmed(self, body: str) -> None:
        self.doubtful.discard(body)
        self.sent.append(body)

    def is_done(self) -> bool:
        return self._is_sent.is_set() and set(self.sent) <= set(self.received)

    def produce(self) -> None:
        raise NotImplementedError

    def consume(self) -> None:
        raise NotImplementedError

    def check(self) -> None:
        assert self.errors == []
        received = [body for body in self.received if not body.startswith("before")]
        first = list(dict.fromkeys(received))  # what a client was given again after a crash
        assert set(self.sent) <= set(first) <= {*self.sent, *self.doubtful}, f"{self.name} lost messages"
        if not self.survives:
            assert received == self.sent, f"{self.name} has messages twice or out of order"
        at = {body: place for place, body in enumerate(first)}
        order = [at[body] for body in self.sent]
        if not self.survives:
            assert order == sorted(order)


class HttpLoad(Load):
    def produce(self) -> None:
        connection = self.server.connect()
        while not self._is_over.is_set():
            body = self.next_body()
            connection.must(201, "POST", f"/queues/{self.name}/messages", {"payload": body})
            self.confirmed(body)

    def consume(self) -> None:
        connection = self.server.connect()
        path = f"/queues/{self.name}"
        while not self.is_done():
            asked = {"max_messages": 10, "wait_seconds": 1}
            found = connection.must(200, "POST", f"{path}/dequeue", asked)["messages"]
            if found:
                self.received += [one["payload"] for one in found]  # the answer to the ack may get lost
                handles = [{"receipt_handle": one["receipt_handle"]} for one in found]
                results = connection.must(200, "POST", f"{path}/ack", handles)
                assert all("error" not in one for one in results), results


class AmqpLoad(Load):
    """It holds up to ten messages unacked while queues move."""

    def _channel(self) -> Any:
        parameters = pika.ConnectionParameters("127.0.0.1", self.server.amqp_port, heartbeat=0)
        return pika.BlockingConnection(parameters).channel()

    def produce(self) -> None:
        channel = self._channel()
        channel.confirm_delivery()
        while not self._is_over.is_set():
            body = self.next_body()
            channel.basic_publish("", self.name, json.dumps(body), pika.BasicProperties(delivery_mode=2), True)
            self.confirmed(body)

    def consume(self) -> None:
        channel = self._channel()
        channel.basic_qos(prefetch_count=10)
        tags: list[int] = []
        for method, _, body in channel.consume(self.name, inactivity_timeout=0.2):
            if method is not None:
                assert len(tags) < 10
                tags.append(method.delivery_tag)
                self.received.append(json.loads(body))
            if len(tags) == 10 or (method is None and tags):
                channel.basic_ack(tags[-1], multiple=True)
                tags.clear()
            if method is None and self.is_done():
                break
        channel.connection.close()


class SqsLoad(Load):
    def _client(self) -> Any:
        return boto3.client(
            "sqs",
            endpoint_url=f"http://127.0.0.1:{self.server.port}",
            region_name="us-east-1",
            aws_access_key_id="guest",
            aws_secret_access_key="guest",
            config=Config(retries={"total_max_attempts": 1}, read_timeout=30),
        )

    def produce(self) -> None:
        client = self._client()
        url = client.get_queue_url(QueueName=self.name)["QueueUrl"]
        while not self._is_over.is_set():
            body = self.next_body()
            client.send_message(QueueUrl=url, MessageBody=body)
            self.confirmed(body)

    def consume(self) -> None:
        client = self._client()
        url = client.get_queue_url(QueueName=self.name)["QueueUrl"]
        while not self.is_done():
            found = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
            for one in found:
                self.received.append(one["Body"])
                client.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])


def loads(server: SeveralProcesses, *, survives: bool = False) -> list[Load]:
    kinds = (HttpLoad, AmqpLoad, SqsLoad)
    return [kinds[at % 3](server, name, survives=survives) for at, name in enumerate(AWAY[:6])]


def clear(server: Server, **settings: Any) -> None:
    """Loads find what they publish, and nothing else."""
    connection = server.connect()
    for name in QUEUES:
        connection.must(200, "POST", f"/queues/{name}/purge")
        if settings:
            connection.must(200, "PATCH", f"/queues/{name}", settings)
    connection.close()


def test_clients_notice_nothing_but_a_pause(server: SeveralProcesses) -> None:
    clear(server)
    working = loads(server)
    for load in working:
        load.start()
    try:
        eventually("all work", lambda: all(len(load.received) > 5 for load in working) or _broken(working))
        assert rebalance(server)[-1]["failed"] == []
        for name in AWAY[:6]:
            rebalance(server, "--queue", name, "--to", str((home("/", name, 4) + 1) % 4), "--every", "100ms")
        seen = [len(load.received) for load in working]
        eventually(
            "they go on",
            lambda: all(len(o.received) > n + 5 for o, n in zip(working, seen, strict=True)) or _broken(working),
        )
    finally:
        for load in working:
            load.stop()
    for load in working:
        load.check()
    assert homes(server).keys() == set(AWAY[:6])


def _have_gone_on(working: list[Load], seen: list[int]) -> bool:
    return all(len(load.received) > count for load, count in zip(working, seen, strict=True))


def _broken(working: list[Load]) -> bool:
    return any(load.errors for load in working)


@pytest.mark.parametrize("victim", [0, 1], ids=["the first process", "the second process"])
def test_a_kill_in_the_middle_loses_nothing(server: SeveralProcesses, victim: int) -> None:
    kill_in_the_middle(server, victim)


def kill_in_the_middle(server: SeveralProcesses, *victims: int) -> None:
    """tests/pipeline/test_audit_of_kills.py kills both, and looks at the history afterwards."""
    clear(server, visibility_timeout=3)  # what was leased for an answer that got lost comes again
    working = loads(server, survives=True)
    deep = AWAY[6]
    connection = server.connect()
    for at in range(0, 4_000, 500):
        connection.must(201, "POST", f"/queues/{deep}/messages", [{"payload": n} for n in range(at, at + 500)])
    for load in working:
        load.start()
    try:
        eventually("all work", lambda: all(load.received for load in working))
        rebalance(server, "--no-wait")
        eventually("some have moved", lambda: 0 < _moved(server))
        for at in victims:
            server.kill_child(at)
        eventually("they are there again", server.whole)
        eventually("all are home", lambda: _quietly(lambda: homes(server) == {}) and not _is_running(server))
        seen = [len(load.received) for load in working]
        eventually("they go on", lambda: _have_gone_on(working, seen))
    finally:
        for load in working:
            load.stop()
    for load in working:
        load.check()
    connection = server.connect()
    found: list[int] = []
    while some := connection.must(200, "POST", f"/queues/{deep}/dequeue", {"max_messages": 1000})["messages"]:
        found += [one["payload"] for one in some]
    assert found == list(range(4_000))
    connection.close()


def _moved(server: Server) -> int:
    return _quietly(lambda: int(_status(server)["moved_queues"]))


def _is_running(server: Server) -> bool:
    return bool(_quietly(lambda: _status(server)["is_running"]))


def _status(server: Server) -> dict[str, Any]:
    connection = server.connect()
    try:
        found: dict[str, Any] = connection.must(200, "GET", "/rebalance")
        return found
    finally:
        connection.close()


def _quietly(look: Callable[[], Any]) -> Any:
    """0 while processes are away."""
    try:
        return look()
    except (*BROKEN, AssertionError):
        return 0
