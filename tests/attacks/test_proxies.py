"""A proxy on this machine is no reason to believe that whoever is behind it is on this machine too."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

import httpx
import pytest

from laneway.config import Networks
from tests.attacks.whole_node import WholeNode

GUEST = ("guest", "guest")
LOOPBACK = Networks((ip_network("127.0.0.1"),))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    with WholeNode(tmp_path_factory.mktemp("bare"), is_new=True) as node:
        yield node


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    folder = tmp_path_factory.mktemp("trusting")
    with WholeNode(folder, is_new=True, trusted_proxies=LOOPBACK) as node:
        yield node


def create_queue(node: WholeNode, **headers: str) -> httpx.Response:
    headers = {"X-Amz-Target": "AmazonSQS.CreateQueue", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return httpx.post(node.url, content=b'{"QueueName": "q"}', headers=headers)


@pytest.mark.parametrize(
    "header",
    [
        "Forwarded: for=192.0.2.60;proto=http;by=203.0.113.43",
        "X-Forwarded-For: 203.0.113.195",
        "X-Forwarded-For: 127.0.0.1",
        "X-Forwarded-For:",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Host: queue.example",
        "x-forwarded-port: 443",
        "X-Forwarded-Prefix: /queue",
        "X-Real-IP: 203.0.113.195",
        "Via: 1.1 proxy",
        "CF-Connecting-IP: 203.0.113.195",
        "True-Client-IP: 203.0.113.195",
    ],
)
def test_whoever_comes_through_a_proxy_is_not_guest(node: WholeNode, header: str) -> None:
    name, _, value = header.partition(": ")
    headers = {name.rstrip(":"): value}
    assert httpx.get(f"{node.url}/queues", headers=headers).status_code == 401
    with node.http(*GUEST, headers=headers) as http:
        assert http.put("/accounts/evil", json={"password": "x", "roles": ["admin"]}).status_code == 401
    refused = httpx.post(node.url, headers={"X-Amz-Target": "AmazonSQS.ListQueues", **headers})
    assert "MissingAuthenticationToken" in refused.text


def test_one_who_was_guest_directly_is_not_through_a_proxy_on_the_same_connection(node: WholeNode) -> None:
    with node.http(*GUEST) as http:
        assert http.get("/whoami").status_code == 200
        assert http.get("/whoami", headers={"X-Forwarded-For": "203.0.113.195"}).status_code == 401
        assert http.get("/whoami").status_code == 200


def test_a_proxy_that_speaks_http_1_0_and_adds_nothing_is_not_guest(node: WholeNode) -> None:
    with node.http_wire() as wire:
        wire.send(b"GET /queues HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert wire.read().status == 401


@pytest.mark.parametrize(
    ("chain", "status"),
    [
        ("203.0.113.195", 401),
        ("127.0.0.1, 203.0.113.195", 401),  # the client claims to be here, and the proxy says where it is
        ("203.0.113.195, 127.0.0.1", 401),
        ("unknown", 401),
        ("", 401),
        ("127.0.0.1", 200),
    ],
)
def test_a_trusted_proxy_says_who_is_on_this_machine(trusting: WholeNode, chain: str, status: int) -> None:
    headers = {"X-Forwarded-For": chain}
    assert httpx.get(f"{trusting.url}/queues", headers=headers).status_code == status
    with trusting.http(*GUEST, headers=headers) as http:
        assert http.get("/queues").status_code == status
    assert create_queue(trusting, X_Forwarded_For=chain).status_code == (200 if status == 200 else 403)


def test_a_trusted_proxy_that_says_nothing_speaks_for_strangers(trusting: WholeNode) -> None:
    assert httpx.get(f"{trusting.url}/queues").status_code == 401
    assert httpx.get(f"{trusting.url}/healthz").status_code == 200
    # What is forwarded as a stream of bytes says nothing at all.
    with trusting.amqp_wire() as wire, pytest.raises(AssertionError, match="ACCESS_REFUSED"):
        wire.log_in(*GUEST)


@pytest.mark.parametrize(
    ("proto", "scheme"), [("https", "https"), ("http", "http"), ("https, http", "http"), ("evil", "http")]
)
def test_the_scheme_counts_from_a_trusted_proxy(trusting: WholeNode, proto: str, scheme: str) -> None:
    created = create_queue(trusting, X_Forwarded_For="127.0.0.1", X_Forwarded_Proto=proto)
    assert created.json()["QueueUrl"].startswith(f"{scheme}://127.0.0.1:")
