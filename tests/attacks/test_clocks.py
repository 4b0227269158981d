"""The wall clock of a real server is set while it runs and while it is down. What was left of each duration stays.

libfaketime stands between the server and its wall clock; the clocks that nobody sets are left alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.crash.server import Connection, Server, eventually

LIBRARY = next(
    (str(at) for at in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")),
    "/usr/lib/faketime/libfaketimeMT.so.1",
)
HOUR_S = 3600
AT_ONCE_S = 12.0  # far below an hour, whatever else the machine does
LEASE_S = 4


class FakedClock:
    """The wall clock of the servers that are started with `before`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set_ahead(0)
        self.before = (
            *("env", f"LD_PRELOAD={LIBRARY}", f"FAKETIME_TIMESTAMP_FILE={self._file}"),
            *("FAKETIME_NO_CACHE=1", "DONT_FAKE_MONOTONIC=1"),
        )

    def set_ahead(self, seconds: int) -> None:
        """… of the time of day; negative: behind."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}\n")
        fresh.replace(self._file)


@pytest.fixture
def clock(tmp_path: Path) -> FakedClock:
    assert Path(LIBRARY).exists(), "libfaketime is missing: tools/services.sh test installs it"
    return FakedClock(tmp_path)


def jump(server: Server, clock: FakedClock, seconds: int) -> None:
    """Set the clock, and return once the server has noticed."""
    noticed = server.log().count("the wall clock jumped")
    clock.set_ahead(seconds)
    eventually("a jump in the log", lambda: server.log().count("the wall clock jumped") > noticed)


def test_the_clock_of_the_server_is_really_set(tmp_path: Path, clock: FakedClock) -> None:
    clock.set_ahead(48 * HOUR_S)
    with Server(tmp_path / "data", before=clock.before) as server:
        http = server.connect()
        http.must(201, "PUT", "/queues/q")
        told = http.must(201, "POST", "/queues/q/messages", {"payload": 1})
        day = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 48 * HOUR_S))
        assert told["enqueued_at"].startswith(day)


# --- over HTTP


def ready(http: Connection, queue: str = "q") -> int:
    stats = http.must(200, "GET", f"/queues/{queue}/stats")
    return int(stats["approximate_message_count"] - stats["delayed_count"])


def test_an_hour_ahead_and_back_over_http(tmp_path: Path, clock: FakedClock) -> None:
    with Server(tmp_path / "data", before=clock.before) as server:
        http = server.connect()
        for name in ("leases", "delays", "lives"):
            http.must(201, "PUT", f"/queues/{name}", {"visibility_timeout": LEASE_S})
        http.must(201, "POST", "/queues/leases/messages", {"payload": 1})
        http.must(201, "POST", "/queues/delays/messages", {"payload": 1, "delay_seconds": LEASE_S})
        http.must(201, "POST", "/queues/lives/messages", {"payload": 1, "ttl_seconds": LEASE_S})
        assert len(http.must(200, "POST", "/queues/leases/dequeue")["messages"]) == 1
        jump(server, clock, HOUR_S)
        jump(server, clock, 0)
        eventually("the lease to end", lambda: ready(http, "leases") == 1, within_s=AT_ONCE_S)
        eventually("the delay to end", lambda: ready(http, "delays") == 1, within_s=AT_ONCE_S)
        eventually("the time to live to end", lambda: ready(http, "lives") == 0, within_s=AT_ONCE_S)
        assert server.stop() == 0


def test_two_days_ahead_delete_nothing_and_a_named_time_comes_when_the_clock_says_so(
    tmp_path: Path, clock: FakedClock
) -> None:
    with Server(tmp_path / "data", before=clock.before) as server:
        http = server.connect()
        http.must(201, "PUT", "/queues/kept", {"retention_seconds": 24 * HOUR_S})
        http.must(201, "PUT", "/queues/named")
        http.must(201, "POST", "/queues/kept/messages", {"payload": 1})
        http.must(201, "POST", "/queues/kept/messages", {"payload": 2, "delay_seconds": 900})
        tomorrow = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 24 * HOUR_S))
        http.must(201, "POST", "/queues/named/messages", {"payload": 1, "deliver_at": tomorrow})
        jump(server, clock, 48 * HOUR_S)
        eventually("the named time", lambda: ready(http, "named") == 1)
        jump(server, clock, 0)
        stats = http.must(200, "GET", "/queues/kept/stats")
        assert (stats["approximate_message_count"], stats["delayed_count"]) == (2, 1), "both are there, one is late"


@pytest.mark.parametrize("seconds", [HOUR_S, -HOUR_S])
def test_a_restart_keeps_what_was_left_of_a_lease(tmp_path: Path, clock: FakedClock, seconds: int) -> None:
    server = Server(tmp_path / "data", before=clock.before)
    with server:
        http = server.connect()
        http.must(201, "PUT", "/queues/q")
        for number in (1, 2):
            http.must(201, "POST", "/queues/q/messages", {"payload": number})
        (short,) = http.must(200, "POST", "/queues/q/dequeue", {"visibility_timeout": LEASE_S})["messages"]
        (long,) = http.must(200, "POST", "/queues/q/dequeue", {"visibility_timeout": 600})["messages"]
        http.must(201, "POST", "/queues/q/messages", {"payload": "all of this is durable now"})
        server.kill()
        clock.set_ahead(seconds)
        server.start()
        assert "the wall clock jumped" in server.log()
        http = server.connect()
        eventually("the short lease to end", lambda: ready(http) == 2, within_s=AT_ONCE_S)
        for status, held in ((409, short), (204, long)):
            place = f"/queues/q/messages/{held['message_id']}?receipt_handle={held['receipt_handle']}"
            assert http.call("DELETE", place)[0] == status


# --- over AMQP


@contextmanager
def channel(server: Server) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp_port))
    try:
        yield connection.channel()
    finally:
        connection.close()


def test_an_hour_ahead_and_back_over_amqp(tmp_path: Path, clock: FakedClock) -> None:
    with Server(tmp_path / "data", before=clock.before) as server, channel(server) as amqp:
        amqp.queue_declare("dead")
        dead = {"x-message-ttl": LEASE_S * 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        amqp.queue_declare("brief", arguments=dead)
        amqp.exchange_declare("later", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
        amqp.queue_declare("late")
        amqp.queue_bind("late", "later")
        amqp.confirm_delivery()
        amqp.basic_publish("", "brief", b"x")
        amqp.basic_publish("later", "", b"x", pika.BasicProperties(headers={"x-delay": LEASE_S * 1000}))
        jump(server, clock, HOUR_S)
        jump(server, clock, 0)

        def has_come(queue: str) -> bool:
            return bool(amqp.queue_declare(queue, passive=True).method.message_count)

        eventually("the time to live to end", lambda: has_come("dead"), within_s=AT_ONCE_S)
        eventually("the delay to end", lambda: has_come("late"), within_s=AT_ONCE_S)


# --- over SQS


def sqs(server: Server) -> Any:
    client = boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="us-east-1",
        aws_access_key_id="guest",
        aws_secret_access_key="guest",
    )
    return client


def test_an_hour_ahead_and_back_over_sqs(tmp_path: Path, clock: FakedClock) -> None:
    with Server(tmp_path / "data", before=clock.before) as server:
        client = sqs(server)
        leases = client.create_queue(QueueName="leases", Attributes={"VisibilityTimeout": str(LEASE_S)})["QueueUrl"]
        delays = client.create_queue(QueueName="delays")["QueueUrl"]
        for queue, delay_s in ((leases, 0), (delays, LEASE_S)):
            client.send_message(QueueUrl=queue, MessageBody=json.dumps(1), DelaySeconds=delay_s)
        assert len(client.receive_message(QueueUrl=leases)["Messages"]) == 1
        jump(server, clock, HOUR_S)
        jump(server, clock, 0)

        def comes_back(queue: str) -> bool:
            return bool(client.receive_message(QueueUrl=queue, WaitTimeSeconds=1).get("Messages"))

        eventually("the lease to end", lambda: comes_back(leases), within_s=AT_ONCE_S)
        eventually("the delay to end", lambda: comes_back(delays), within_s=AT_ONCE_S)
