"""/metrics: a real server asked by Prometheus' own tools, and everything in it traced back to what was done."""

from __future__ import annotations

import asyncio
import http.client
import re
import subprocess
import time
from pathlib import Path

import boto3
import pika
import pytest
from botocore.config import Config as BotoConfig
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.partition import Partition
from laneway.broker.survey import survey
from laneway.core.message import Draft, messages_of
from laneway.core.queue import Queue
from laneway.core.settings import QueueSettings
from laneway.journal.segments.journal import SegmentJournal
from laneway.telemetry.exposition import render
from laneway.telemetry.families import FAMILIES
from laneway.telemetry.load import Choice, Loads, ProcessLoad, chosen
from tests.crash.server import Connection, Server, eventually
from tests.processes.several import SeveralProcesses

DOCS = Path(__file__).parent.parent.parent / "docs" / "metrics.md"
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def scrape(server: Server, **headers: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request("GET", "/metrics", headers=headers)
    response = connection.getresponse()
    found = response.status, response.getheader("Content-Type") or "", response.read().decode()
    connection.close()
    return found


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum over all samples with these labels."""
    return sum(
        each for given, each in found.get(f"laneway_{name}", {}).items() if labels.items() <= dict(given).items()
    )


def test_the_page_says_what_the_metrics_are() -> None:
    rows = re.findall(r"^\| `(laneway_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", DOCS.read_text(), re.MULTILINE)
    said = [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows]
    assert sorted(said) == sorted((f.shown_name, f.kind, f.labels, f.help) for f in FAMILIES)


# --- over three protocols


def use_http(http: Connection) -> None:
    http.must(201, "PUT", "/queues/by-http", {"max_messages": 4})
    for priority in (1, 1, 5):
        http.must(201, "POST", "/queues/by-http/messages", {"payload": "x", "priority": priority})
    _, refused = http.call("POST", "/queues/by-http/messages", [{"payload": "x"}] * 2)
    assert [one.get("error", {}).get("code") for one in refused] == [None, "queue_full"]
    http.must(400, "POST", "/queues/by-http/messages", {"payload": "x", "priority": 1000})
    (first, second) = http.must(200, "POST", "/queues/by-http/dequeue", {"max_messages": 2})["messages"]
    http.must(200, "POST", "/queues/by-http/ack", [{"receipt_handle": first["receipt_handle"]}])
    where = f"/queues/by-http/messages/{second['message_id']}"
    http.must(200, "POST", f"{where}/nack", {"receipt_handle": second["receipt_handle"]})


def use_sqs(server: Server) -> None:
    keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "us-east-1"}
    where = f"http://127.0.0.1:{server.port}"
    sqs = boto3.client("sqs", endpoint_url=where, config=BotoConfig(signature_version="v4"), **keys)
    url = sqs.create_queue(QueueName="by-sqs")["QueueUrl"]
    entries = [{"Id": str(i), "MessageBody": "x"} for i in range(3)]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=received[0]["ReceiptHandle"])
    with pytest.raises(sqs.exceptions.ClientError):
        sqs.get_queue_attributes(QueueUrl=url + "-none", AttributeNames=["All"])


def use_amqp(server: Server) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp_port))
    channel = connection.channel()
    channel.queue_declare("by-amqp", durable=True)
    channel.confirm_delivery()
    for _ in range(4):
        channel.basic_publish("", "by-amqp", b"x")
    got: list[int] = []
    channel.basic_qos(prefetch_count=2)
    channel.basic_consume("by-amqp", lambda _, method, __, ___: got.append(method.delivery_tag))
    while len(got) < 2:
        connection.process_data_events(0.1)
    channel.basic_ack(got[0])
    channel.basic_reject(got[1], requeue=False)
    while len(got) < 4:
        connection.process_data_events(0.1)
    connection.close()


def test_metrics_of_any_process_say_what_was_done_over_each_protocol(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        http = server.connect()
        use_http(http)
        use_amqp(server)

        def all_done() -> Samples:
            found = samples(scrape(server)[2])
            counted = value(found, "operations_total", protocol="amqp", operation="reject")
            return found if counted else {}

        found = eventually("what AMQP settled is counted", all_done)
        operations = {
            ("http", "publish"): 5, ("http", "deliver"): 2, ("http", "ack"): 1, ("http", "release"): 1,
            ("amqp", "publish"): 4, ("amqp", "deliver"): 4, ("amqp", "ack"): 1, ("amqp", "reject"): 1,
        }  # fmt: skip
        for (protocol, operation), count in operations.items():
            got = value(found, "operations_total", protocol=protocol, operation=operation)
            assert got == count, (protocol, operation)
        assert value(found, "refused_messages_total", protocol="http", code="queue_full") == 1
        assert value(found, "errors_total", protocol="http", cause="client", code="invalid_input") == 1
        assert value(found, "process_up") == value(found, "partition_led") == 2
        assert value(found, "queue_messages", queue="by-http", state="waiting") == 3
        assert value(found, "queue_priority_messages", queue="by-http", priority="1") == 2
        assert value(found, "message_events_total", event="rejected") == 1
        assert value(found, "message_events_total", event="published") == 8
        assert value(found, "journal_bytes") > 0 < value(found, "disk_free_bytes")
        one, other = (samples(scrape_over(each)) for each in server.by_process().values())
        assert one["laneway_message_events_total"] == other["laneway_message_events_total"]
        http.must(204, "DELETE", "/queues/by-amqp")  # with what it counted
        after = samples(scrape(server)[2])
        assert value(after, "message_events_total", event="published") == 8
        assert value(after, "queue_messages", queue="by-amqp") == 0


def scrape_over(connection: Connection) -> str:
    connection._http.request("GET", "/metrics")
    return connection._http.getresponse().read().decode()


def test_times_are_those_of_the_protocol_that_waited(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        use_amqp(server)
        http = server.connect()
        http.must(201, "PUT", "/queues/timed")

        def all_timed() -> Samples:
            """Not every commit and lease is timed while they come quickly."""
            http.must(201, "POST", "/queues/timed/messages", {"payload": "x"})
            (message,) = http.must(200, "POST", "/queues/timed/dequeue", {})["messages"]
            http.must(200, "POST", "/queues/timed/ack", [{"receipt_handle": message["receipt_handle"]}])
            found = samples(scrape(server)[2])
            names = ("publish", "waiting", "processing")
            return found if all(value(found, f"{n}_seconds_count", protocol="http") for n in names) else {}

        found = eventually("each step is timed", all_timed)
        assert value(found, "publish_seconds_count", protocol="amqp") == 4
        assert value(found, "waiting_seconds_count", protocol="amqp") >= 1
        assert 0 < value(found, "publish_seconds_sum", protocol="http") < 60
        assert value(found, "commit_seconds_count") == value(found, "commit_bytes_count") >= 1


def test_metrics_of_sqs_and_what_promtool_says_to_the_form(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server:
        use_sqs(server)
        http = server.connect()
        http.must(201, "PUT", "/queues/a%22b%5Ccd%F0%9F%90%87")  # a queue's name may be almost anything
        http.must(201, "POST", "/queues/a%22b%5Ccd%F0%9F%90%87/messages", {"payload": "x"})
        status, kind, text = scrape(server)
        assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
        found = samples(text)
        operations = {"publish": 3, "deliver": 3, "ack": 1}
        assert {o: value(found, "operations_total", protocol="sqs", operation=o) for o in operations} == operations
        assert value(found, "errors_total", protocol="sqs", code="NonExistentQueue") == 1
        assert value(found, "queue_messages", queue='a"b\\cd🐇', state="waiting") == 1
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        _, kind, text = scrape(server, Accept="application/openmetrics-text; version=1.0.0")
        assert kind.startswith("application/openmetrics-text")
        assert {"laneway_commit_seconds", "laneway_messages"} <= {family.name for family in open_metrics(text)}


# --- who may


def test_monitor_may_scrape_and_strangers_only_where_the_settings_say_so(tmp_path: Path) -> None:
    file = tmp_path / "laneway.toml"
    file.write_text("metrics_open = false\n")
    with Server(tmp_path / "data", "--config", str(file)) as server:
        assert scrape(server)[0] == 200  # guest
        http = server.connect()
        http.must(201, "PUT", "/accounts/root", {"password": "a long password", "roles": ["admin"]})
        assert scrape(server)[0] == 401
        root = server.connect(user="root", password="a long password")
        keys = {}
        for role in ("monitor", "user"):
            root.must(201, "PUT", f"/accounts/{role}", {"roles": [role]})
            keys[role] = root.must(201, "POST", f"/accounts/{role}/keys")["key"]
        assert scrape(server, Authorization=f"Bearer {keys['monitor']}")[0] == 200
        assert scrape(server, Authorization=f"Bearer {keys['user']}")[0] == 403
        file.write_text("metrics_open = true\n")
        assert root.must(200, "POST", "/config/reload")["changed"] == ["metrics_open"]
        assert scrape(server)[0] == 200
        assert scrape(server, Authorization=f"Bearer {keys['user']}")[0] == 403
        assert scrape(server, Authorization="Bearer lw_none")[0] == 401
        assert scrape(server, **{"X-Forwarded-For": "10.0.0.1"})[0] == 401
        assert scrape(server, Origin="http://elsewhere.example")[0] == 401
        assert scrape(server, Host="elsewhere.example")[0] == 401
        assert http.call("GET", "/processes")[0] == 401  # it opens nothing else


# --- very many queues


def test_scrape_of_100_000_queues_is_small_quick_and_holds_nobody_up(tmp_path: Path) -> None:
    async def run() -> None:
        partition = Partition(Engine(SegmentJournal(tmp_path), new_tag=lambda: 1), clock=Clock.of_machine())
        await partition.start()
        settings, queues = QueueSettings(), partition.engine.state.queues
        for number in range(1, 100_001):
            partition.engine.state.add_queue(Queue(number, "/", f"a-queue-with-a-name-{number}", settings, 1))
        for first in (*range(1, 100_001, 10_000), 5):  # three in every tenth queue, and three in one more
            some = [queues[number] for number in range(first, first + (10_000 if first % 10 == 1 else 1), 10)]
            bodies = messages_of([Draft(b"x", priority=priority) for _ in some for priority in range(3)])
            partition.publish([(queue, 3) for queue in some], bodies)
        slices: list[float] = []
        ticking = asyncio.ensure_future(_tick(slices))
        await asyncio.sleep(0)
        began_s = time.thread_time()
        choice = Choice(rankings={"depth": 20, "age": 20, "rate": 20, "dead": 20}, pattern=r"\n.*-99\Z")
        load, named = await survey(partition, choice)
        process = ProcessLoad(process=0, pid=1, state="ready", partitions=[0])
        text, _ = render(Loads(processes=[process], partitions=[load], queues=chosen(named, choice)), 0.1, "")
        took_s = time.thread_time() - began_s
        ticking.cancel()
        found = samples(text.decode())
        assert value(found, "queues") == 100_000
        assert value(found, "messages", state="waiting") == 30_003
        assert value(found, "queue_messages", queue="a-queue-with-a-name-99") == 0
        assert 21 <= len(named) <= 1_061 and value(found, "other_queues") == 100_000 - len(chosen(named, choice))
        assert value(found, "other_queues_messages", state="waiting") + value(
            found, "queue_messages", state="waiting"
        ) == value(found, "messages", state="waiting")
        assert took_s < 1 and len(text) < 5_000_000, (took_s, len(text))
        assert max(slices) < 0.05, max(slices)
        partition.engine.closed = True

    asyncio.run(run())


async def _tick(slices: list[float]) -> None:
    """What others did between two turns of this."""
    while True:
        before_s = time.thread_time()
        await asyncio.sleep(0)
        slices.append(time.thread_time() - before_s)
