"""The PROXY protocol: whose word counts, and what those get who lie, stutter or stay silent."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from laneway.config import Address, Config, Networks, load_config
from laneway.errors import ConfigInvalid
from laneway.node import Node
from laneway.node.doors import proxied_settings
from tests.amqp.test_tls import external
from tests.amqp.wire import HEADER, Wire
from tests.attacks.whole_node import WholeNode
from tests.certificates import Certificates
from tests.in_thread import wait_for

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 5672\r\n"


def version_2(command: int, family: int, addresses: bytes) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(addresses)) + addresses


IPV4 = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + struct.pack(">HH", 4711, 5672)
IPV6 = ipaddress.ip_address("2001:db8::7").packed * 2 + struct.pack(">HH", 4711, 5672)
V2 = version_2(0x21, 0x11, IPV4)


def networks(*texts: str) -> Networks:
    return Networks(tuple(ipaddress.ip_network(text) for text in texts))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeNode]:
    settings = {"trusted_proxies": networks("127.0.0.1"), "proxy_protocol": "amqp", "tls_handshake_seconds": 1.0}
    with WholeNode(tmp_path_factory.mktemp("proxied"), **settings) as node:
        yield node


def address_of(node: WholeNode) -> Any:
    with node.http() as root:
        wait_for(lambda: len(_amqp(root)) == 1, "there is one connection")
        return _amqp(root)[0]["address"]


def _amqp(root: Any) -> list[Any]:
    return list(root.get("/connections", params={"protocol": "amqp"}).json()["connections"])


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (V1, "192.0.2.7:4711"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 4711 5672\r\n", "[2001:db8::7]:4711"),
        (V2, "192.0.2.7:4711"),
        (version_2(0x21, 0x11, IPV4 + b"\x04\x00\x01\x00"), "192.0.2.7:4711"),  # with more that is passed over
        (version_2(0x21, 0x21, IPV6), "[2001:db8::7]:4711"),
    ],
)
@pytest.mark.parametrize("in_crumbs", [False, True])
def test_client_is_whom_the_proxy_names(header: bytes, address: str, in_crumbs: bool, node: WholeNode) -> None:
    with node.amqp_wire() as wire:
        for piece in [header[at : at + 1] for at in range(len(header))] if in_crumbs else [header]:
            wire.send(piece)
        wire.log_in("root", "secret")
        assert address_of(node) == address
        assert wire.ask(1, "queue.declare", queue="q").name == "queue.declare-ok"


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", version_2(0x20, 0, b""), version_2(0x21, 0x31, b"\0" * 216)])
def test_proxy_that_speaks_for_itself_is_known_by_its_own_address(header: bytes, node: WholeNode) -> None:
    with node.amqp_wire() as wire:
        wire.send(header)
        wire.log_in("root", "secret")
        assert address_of(node).startswith("127.0.0.1:")


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", version_2(0x20, 0, b""), version_2(0x21, 0, b"")])
def test_client_whom_the_proxy_does_not_name_cannot_name_itself(header: bytes, tmp_path: Path) -> None:
    settings = {"trusted_proxies": networks("127.0.0.1"), "proxy_protocol": "http"}
    with WholeNode(tmp_path, is_new=True, **settings) as new, new.http_wire() as wire:
        wire.send(header)
        assert wire.ask("GET", "/whoami", headers="X-Forwarded-For: 127.0.0.1\r\n").status == 401


def test_client_who_is_said_to_be_here_is_not_guest(node: WholeNode) -> None:
    """What is loopback to a proxy may be another machine's, and a proxy on this machine speaks for anybody."""
    for header in (V1.replace(b"192.0.2.7", b"127.0.0.1"), b"PROXY UNKNOWN\r\n"):
        with node.amqp_wire() as wire, pytest.raises(AssertionError, match=r"connection\.close"):
            wire.send(header)
            wire.log_in("guest", "guest")


@pytest.mark.parametrize(("name", "method_expected"), [("guest", "connection.close"), ("root", "connection.tune")])
def test_certificate_of_guest_is_good_on_this_machine_only(
    name: str, method_expected: str, certificates: Certificates, tmp_path: Path
) -> None:
    certificates.sign(name, name)
    settings: dict[str, Any] = certificates.settings(tls_ca=certificates.ca)
    proxied = {"trusted_proxies": networks("127.0.0.1"), "proxy_protocol": "amqps"}
    with WholeNode(tmp_path, amqps=Address("127.0.0.1", 0), **proxied, **settings) as node:
        plain = socket.create_connection(node.address("amqps"), timeout=10)
        plain.sendall(V1)
        with Wire(("", 0), certificates.client(name).wrap_socket(plain, server_hostname="localhost")) as wire:
            external(wire)
            assert wire.read().name == method_expected


@pytest.mark.parametrize(
    "header",
    [
        HEADER + b"\0" * 20,  # none at all
        b"PROXY TCP4 192.0.2.7\r\n",
        b"PROXY TCP4 nonsense 198.51.100.1 4711 5672\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 -1 5672\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 5672\r\n",
        b"PROXY " + b"x" * 5000,
        version_2(0x21, 0x11, b"\0" * 4),
        version_2(0x2F, 0x11, IPV4),
        SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 65535) + b"\0" * 2000,
    ],
)
def test_connection_without_a_proper_header_is_ended(header: bytes, node: WholeNode) -> None:
    with node.amqp_wire() as wire:
        wire.send(header)
        assert b"AMQP" not in wire.read_until_closed()


@pytest.mark.parametrize("begun", [b"", b"PRO", SIGNATURE, V2[:-1]])
def test_header_that_does_not_come_is_not_waited_for(begun: bytes, node: WholeNode) -> None:
    with node.amqp_wire() as wire:
        wire.send(begun)
        assert wire.read_until_closed() == b""


def test_word_of_those_who_are_not_trusted_is_no_word(tmp_path: Path) -> None:
    """They are answered as if nobody knew the PROXY protocol here: AMQP begins otherwise."""
    with WholeNode(tmp_path / "data", trusted_proxies=networks("192.0.2.1"), proxy_protocol="amqp") as node:
        with node.amqp_wire() as wire:
            wire.send(V1)
            assert wire.read_until_closed() == HEADER
        with node.amqp_wire() as wire:
            wire.log_in("root", "secret")
            assert address_of(node).startswith("127.0.0.1:")


def test_proxies_that_are_trusted_are_asked_for_it_where_the_setting_says_so_alone(node: WholeNode) -> None:
    with node.http() as root:
        assert root.get("/whoami").json()["name"] == "root"


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="trusted_proxies"):
        Node(Config(data=tmp_path / "data", proxy_protocol="amqp"))
    with pytest.raises(ConfigInvalid, match="smtp"):
        proxied_settings(load_config({"proxy_protocol": "amqp, smtp", "trusted_proxies": "10.0.0.1"}, {}))
    given = load_config({"proxy_protocol": "amqp, https", "trusted_proxies": "10.0.0.1"}, {})
    assert proxied_settings(given) == {"amqp", "https"}
