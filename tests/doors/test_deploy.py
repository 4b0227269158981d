"""The files in deploy/ do what they say: real proxies started with them, and real clients that go through."""

from __future__ import annotations

import ipaddress
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pika
import pytest

from laneway.client import Client, ClientError
from laneway.config import Networks
from tests.amqp.wire import Wire as AmqpWire
from tests.certificates import Certificates
from tests.doors.proxies import DEPLOY, HaProxy, Nginx, Proxy
from tests.doors.test_https import sqs_over_tls
from tests.doors.tls_node import TlsNode
from tests.in_thread import wait_for
from tests.rest.serving import Wire as HttpWire

LOOPBACK = Networks((ipaddress.ip_network("127.0.0.1"),))


@pytest.fixture(scope="module", params=[HaProxy, Nginx])
def proxy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp(request.param.__name__)
    settings = {"trusted_proxies": LOOPBACK, "proxy_protocol": "https,amqp"}
    with TlsNode(folder / "data", certificates, **settings) as node:
        with request.param(folder, node, certificates) as proxy:
            yield proxy


@pytest.fixture(params=["https", "passed_through"])
def url(request: pytest.FixtureRequest, proxy: Proxy) -> str:
    return f"https://localhost:{getattr(proxy, request.param)}"


def client(url: str, certificates: Certificates, **options: Any) -> Client:
    return Client(url, user="root", password="secret", ca=str(certificates.ca), **options)


def test_every_file_is_tested() -> None:
    folders = {"keda", "prometheus"}  # tests/telemetry/test_alerts.py
    assert {file.name for file in DEPLOY.iterdir()} == {HaProxy.file, Nginx.file} | folders


def test_python_client(url: str, certificates: Certificates) -> None:
    with client(url, certificates) as root:
        root.put_queue("a/b c")  # percent-encoded on its way
        root.publish("a/b c", {"n": 1}, priority=3)
        [message] = root.receive("a/b c", wait_seconds=5)
        root.ack("a/b c", message)
        assert message.payload == {"n": 1}


def test_large_messages_arrive_whole(url: str, certificates: Certificates) -> None:
    with client(url, certificates) as root:
        root.put_queue("large", max_message_bytes=16 << 20)
        root.publish("large", b"x" * (12 << 20))
        [message] = root.receive("large")
        root.ack("large", message)
        assert message.payload == b"x" * (12 << 20)


def test_long_poll_waits_and_ends_with_a_message(url: str, certificates: Certificates) -> None:
    with client(url, certificates) as root, client(url, certificates) as waiting:
        root.put_queue("poll")
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend(waiting.receive("poll", wait_seconds=20)))
        began_s = time.monotonic()
        thread.start()
        wait_for(lambda: root.stats("poll")["consumers_waiting"] == 1, "it waits")
        root.publish("poll", "now")
        thread.join(10)
        assert [message.payload for message in got] == ["now"] and time.monotonic() - began_s < 19
        root.ack("poll", got[0])


def test_boto3_and_its_signatures(url: str, proxy: Proxy, certificates: Certificates) -> None:
    proxy.node.account("ann", "pw", roles=["admin"])
    sqs = sqs_over_tls(url, proxy.node.key("ann", "aws"), certificates.ca)
    queue = sqs.create_queue(QueueName="by-boto3")["QueueUrl"]
    assert queue.startswith(f"{url}/")  # so that it leads back through the proxy, with TLS
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    [message] = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])


def test_curl(url: str, certificates: Certificates) -> None:
    asked = ("curl", "-sSf", "--cacert", str(certificates.ca), "-u", "root:secret", f"{url}/whoami")
    assert '"name":"root"' in subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout


@pytest.mark.parametrize("setting", ["amqp", "amqps"])
def test_pika(setting: str, proxy: Proxy, certificates: Certificates) -> None:
    options = pika.SSLOptions(certificates.client(), "localhost") if setting == "amqps" else None
    where = pika.ConnectionParameters(
        "127.0.0.1",
        getattr(proxy, setting),
        credentials=pika.PlainCredentials("root", "secret"),
        ssl_options=options,
    )
    connection = pika.BlockingConnection(where)
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("jobs", durable=True)
        for n in range(200):
            channel.basic_publish("", "jobs", b"%d" % n)
        got = []
        for method, _, body in channel.consume("jobs"):
            channel.basic_ack(method.delivery_tag)
            got.append(int(body))
            if len(got) == 200:
                break
        assert got == list(range(200))
    finally:
        connection.close()


# --- nobody gains by the way they come


def test_guest_does_not_get_through(url: str, proxy: Proxy, certificates: Certificates) -> None:
    with Client(url, ca=str(certificates.ca)) as nobody, pytest.raises(ClientError) as refused:
        nobody.whoami()
    assert refused.value.status == 401
    with AmqpWire(("127.0.0.1", proxy.amqp)) as wire, pytest.raises(AssertionError, match=r"403|ACCESS_REFUSED"):
        wire.log_in("guest", "guest")


def test_what_a_client_says_of_its_own_address_is_not_passed_on(
    proxy: Proxy, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    claims = {"X-Forwarded-For": "8.8.8.8", "X-Forwarded-Proto": "http", "Forwarded": "for=8.8.8.8"}
    with httpx.Client(verify=certificates.client(), headers=claims) as http:
        assert http.get(f"{proxy.url}/whoami", auth=("somebody", "wrong")).status_code == 401
    [line] = [record.getMessage() for record in caplog.records if "login refused" in record.getMessage()]
    assert "127.0.0.1" in line and "8.8.8.8" not in caplog.text


def test_clients_behind_a_proxy_are_told_apart(proxy: Proxy, certificates: Certificates) -> None:
    """By their own address and port, whether TLS is passed through or bytes of AMQP are."""
    with proxy.node.http() as root, AmqpWire(("127.0.0.1", proxy.amqp)) as wire:
        wire.log_in("root", "secret")
        [one] = root.get("/connections", params={"protocol": "amqp"}).json()["connections"]
        assert one["address"] == f"127.0.0.1:{wire.socket.getsockname()[1]}"
        with HttpWire(("", 0), _tls(proxy.passed_through, certificates)) as passed:
            basic = "Authorization: Basic cm9vdDpzZWNyZXQ=\r\n"
            listed = passed.ask("GET", "/connections?protocol=http", headers=basic).json()["connections"]
            [own] = [one for one in listed if one["state"] == "answering" and one["tls"]]
            assert own["address"] == f"127.0.0.1:{passed.socket.getsockname()[1]}"


def _tls(port: int, certificates: Certificates) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port), timeout=10)
    return certificates.client().wrap_socket(plain, server_hostname="localhost")


# --- health


def test_full_disk_does_not_cut_off_consumers(url: str, proxy: Proxy, certificates: Certificates) -> None:
    partition = proxy.node.node.partitions[0]
    with client(url, certificates) as root:
        root.put_queue("full")
        root.publish("full", "x")
        has_room = partition.has_room
        partition.has_room = lambda *_: False  # type: ignore[method-assign]
        try:
            if isinstance(proxy, HaProxy):
                time.sleep(3)  # nothing is to happen: two checks, a second apart, would give the server up
            with pytest.raises(ClientError) as refused:
                root._call("GET", "/readyz")
            assert refused.value.details["state"] == "disk_full"
            [message] = root.receive("full")
            root.ack("full", message)
        finally:
            partition.has_room = has_room  # type: ignore[method-assign]


def test_server_that_serves_nobody_is_not_asked(proxy: Proxy, certificates: Certificates) -> None:
    """HAProxy finds out by itself; nginx passes on what the server says."""
    partition = proxy.node.node.partitions[0]
    with httpx.Client(verify=certificates.client(), auth=("root", "secret")) as http:
        partition._phase = "stopping"
        try:
            path = "/whoami" if isinstance(proxy, HaProxy) else "/readyz/consume"
            wait_for(lambda: http.get(f"{proxy.url}{path}").status_code == 503, "the proxy says so")
        finally:
            partition._phase = "ready"
        wait_for(lambda: http.get(f"{proxy.url}/whoami").status_code == 200, "it is asked again")
