"""HTTP and SQS over TLS, with the clients that people have."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pika
import pytest
from botocore.config import Config as BotoConfig

from laneway.client import Client, ClientError
from laneway.config import load_config
from laneway.errors import ConfigInvalid
from laneway.node import tls_door
from tests.certificates import Certificates
from tests.doors.tls_node import TlsNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[TlsNode]:
    with TlsNode(tmp_path_factory.mktemp("https"), certificates) as node:
        yield node


def laneway(*arguments: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "laneway", *arguments],
        env={**inherited, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


# --- clients


def test_python_client(node: TlsNode, certificates: Certificates) -> None:
    with Client(node.https_url, user="root", password="secret", ca=str(certificates.ca)) as client:
        client.put_queue("by-client")
        client.publish("by-client", {"n": 1})
        [message] = client.receive("by-client", wait_seconds=5)
        client.ack("by-client", message)
        assert message.payload == {"n": 1}


def test_command_line(node: TlsNode, certificates: Certificates) -> None:
    env = {"LANEWAY_USER": "root", "LANEWAY_PASSWORD": "secret"}
    where = ("--url", node.https_url, "--ca", str(certificates.ca))
    laneway("queue", "create", "by-cli", *where, **env)
    laneway("send", "by-cli", '{"n": 1}', *where, **env)
    got = laneway("receive", "by-cli", "--json", LANEWAY_URL=node.https_url, LANEWAY_CA=str(certificates.ca), **env)
    assert json.loads(got.stdout)["payload"] == {"n": 1}
    laneway("bench", "--messages", "20", "--connections", "1", *where, **env)


def test_curl(node: TlsNode, certificates: Certificates) -> None:
    asked = ("curl", "-sS", "--cacert", str(certificates.ca), "-u", "root:secret", f"{node.https_url}/whoami")
    done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(done.stdout)["name"] == "root"


def sqs_over_tls(url: str, key: tuple[str, str], ca: Path) -> Any:
    session = boto3.Session(aws_access_key_id=key[0], aws_secret_access_key=key[1], region_name="us-east-1")
    return session.client(
        "sqs", endpoint_url=url, verify=str(ca), config=BotoConfig(retries={"total_max_attempts": 1}, read_timeout=30)
    )


def test_boto3_which_is_given_queue_urls_that_lead_back_over_tls(node: TlsNode, certificates: Certificates) -> None:
    node.account("ann", "pw", roles=["admin"])
    sqs = sqs_over_tls(node.https_url, node.key("ann", "aws"), certificates.ca)
    url = sqs.create_queue(QueueName="by-boto3")["QueueUrl"]
    assert url.startswith(f"{node.https_url}/")
    sqs.send_message(QueueUrl=url, MessageBody="over TLS")
    [message] = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "over TLS"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def test_long_answers_and_long_requests_arrive_whole(node: TlsNode, certificates: Certificates) -> None:
    with Client(node.https_url, user="root", password="secret", ca=str(certificates.ca)) as client:
        client.put_queue("large", max_message_bytes=8 << 20)
        payload = os.urandom(6 << 20)
        client.publish("large", payload)
        assert client.receive("large")[0].payload == payload


def test_request_that_is_refused_half_way_is_answered(node: TlsNode, certificates: Certificates) -> None:
    with node.https_wire(certificates.client()) as wire:
        wire.send(b"POST /queues/q/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n")
        wire.send(b"x" * 100_000)
        assert wire.read().status == 413


# --- what goes wrong is told


def test_client_without_the_authority_is_told_of_it(node: TlsNode) -> None:
    with Client(node.https_url, attempts=1) as client, pytest.raises(ClientError, match="not trusted") as refused:
        client.ready()
    assert refused.value.code == "tls_failed"
    assert "--ca" in laneway("stats", "--url", node.https_url, code=3).stderr


def test_client_that_takes_a_plain_port_for_one_with_tls_is_told(node: TlsNode) -> None:
    with Client(node.url.replace("http://", "https://"), attempts=1) as client:
        with pytest.raises(ClientError, match="plain HTTP"):
            client.ready()


def test_plain_request_to_the_port_for_tls_is_told(node: TlsNode) -> None:
    with Client(node.https_url.replace("https://", "http://"), attempts=1) as client:
        with pytest.raises(ClientError, match="https://") as refused:
            client.ready()
    assert (refused.value.status, refused.value.code) == (400, "tls_expected")


def test_authority_that_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        Client("https://localhost:1", ca=str(tmp_path / "nowhere.pem"))


# --- settings


def test_https_without_a_certificate_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="https needs tls_cert"):
        tls_door(load_config({"https": "127.0.0.1:0"}, {}), 9)


def test_plain_http_can_be_off(tmp_path: Path, certificates: Certificates) -> None:
    with TlsNode(tmp_path / "data", certificates, http=None) as node:
        assert list(node.node.addresses) == ["amqp", "https", "amqps"]
        with Client(node.https_url, user="root", password="secret", ca=str(certificates.ca)) as client:
            assert client.ready() == {"state": "ready"}


@pytest.mark.parametrize("setting", ["https", "amqps"])
def test_oldest_version_of_tls_is_kept_to(setting: str, tmp_path: Path, certificates: Certificates) -> None:
    old = certificates.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with TlsNode(tmp_path / "data", certificates, tls_min_version="1.3") as node:
        with pytest.raises(OSError):
            node.tls(setting, old)
        with node.tls(setting, certificates.client()) as new:
            assert new.version() == "TLSv1.3"
    with TlsNode(tmp_path / "data2", certificates) as node, node.tls(setting, old) as spoken:
        assert spoken.version() == "TLSv1.2"


def test_certificates_of_clients_can_be_required(tmp_path: Path, certificates: Certificates) -> None:
    cert, key = certificates.of("robot")
    credentials = {"user": "root", "password": "secret", "ca": str(certificates.ca)}
    with TlsNode(tmp_path / "data", certificates, tls_ca=certificates.ca, tls_clients="required") as node:
        with Client(node.https_url, **credentials, attempts=1) as client, pytest.raises(ClientError):
            client.whoami()
        with Client(node.https_url, **credentials, cert=cert, cert_key=key) as client:
            assert client.whoami()["name"] == "root"
        shown = (
            "--ca",
            str(certificates.ca),
            "--cert",
            cert,
            "--cert-key",
            key,
            "--user",
            "root",
            "--password",
            "secret",
        )
        laneway("stats", "--url", node.https_url, *shown)
        for name, is_welcome in ((None, False), ("robot", True)):
            options = pika.SSLOptions(certificates.client(name), "localhost")
            where = pika.ConnectionParameters(
                "localhost",
                node.address("amqps")[1],
                credentials=pika.PlainCredentials("root", "secret"),
                ssl_options=options,
                connection_attempts=1,
            )
            if is_welcome:
                pika.BlockingConnection(where).close()
            else:
                with pytest.raises(pika.exceptions.AMQPConnectionError):
                    pika.BlockingConnection(where)


def test_required_certificates_need_an_authority(certificates: Certificates) -> None:
    flags = {name: str(value) for name, value in certificates.settings(tls_clients="required").items()}
    with pytest.raises(ConfigInvalid, match="tls_ca"):
        tls_door(load_config(flags, {}), 9)


# --- certificates change


def test_new_certificate_is_for_new_connections_and_old_ones_go_on(tmp_path: Path) -> None:
    own = Certificates(tmp_path)
    with TlsNode(tmp_path / "data", own) as node:
        with node.https_wire(own.client()) as wire, node.amqps_wire(own.client()).log_in("root", "secret") as amqp:
            before = _serial(node, own)
            own.sign("server", "localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1")
            assert _serial(node, own) == before  # not by itself: half a file must not be read
            node.call(node.node.reloading.reload)
            assert _serial(node, own) != before
            assert wire.ask("GET", "/healthz").status == 200
            assert amqp.ask(1, "queue.declare", queue="q").name == "queue.declare-ok"


def test_certificate_that_cannot_be_read_leaves_the_old_one_in_force(tmp_path: Path) -> None:
    own = Certificates(tmp_path)
    with TlsNode(tmp_path / "data", own) as node:
        before = _serial(node, own)
        (tmp_path / "server.pem").write_text("half a certi")
        with pytest.raises(ConfigInvalid, match="tls_cert"):
            node.call(node.node.reloading.reload)
        assert _serial(node, own) == before


def _serial(node: TlsNode, certificates: Certificates) -> Any:
    with node.tls("https", certificates.client()) as tls:
        shown = tls.getpeercert()
    assert shown is not None
    return shown["serialNumber"]
