"""Handshakes that never end, and words that are no TLS: neither holds up anybody else."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.certificates import Certificates
from tests.doors.tls_node import TlsNode
from tests.in_thread import wait_for

MOST = 8


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[TlsNode]:
    with TlsNode(
        tmp_path_factory.mktemp("tls"), certificates, max_tls_handshakes=MOST, tls_handshake_seconds=3
    ) as node:
        yield node


def until_gone(connected: socket.socket) -> bytes:
    """What comes until the server ends the connection; a time-out means that it did not."""
    received = b""
    try:
        while more := connected.recv(1 << 16):
            received += more
    except ConnectionResetError:
        pass
    return received


def idle(node: TlsNode) -> None:
    wait_for(lambda: node.door.handshakes_under_way == 0, "no handshake is under way")


@pytest.mark.parametrize("setting", ["https", "amqps"])
@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01\x02\x00\x01"])
def test_handshake_that_does_not_end_is_cut_off(
    setting: str, begun: bytes, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> None:
    with TlsNode(tmp_path_factory.mktemp("slow"), certificates, tls_handshake_seconds=0.3) as node:
        with node.tcp(setting) as slow:
            slow.sendall(begun)
            assert until_gone(slow) == b""
        idle(node)


def test_handshakes_under_way_are_bounded_and_newcomers_get_in(node: TlsNode, certificates: Certificates) -> None:
    """Fifty silent connections at each port: they keep nobody out, and make room for newcomers."""
    silent = [node.tcp(setting) for setting in ("https", "amqps") for _ in range(50)]
    for at, one in enumerate(silent):
        if at % 2:
            one.sendall(b"\x16\x03\x01\x02\x00\x01")
    try:
        with node.https_wire(certificates.client()) as wire:
            assert wire.ask("GET", "/healthz").status == 200
        with node.amqps_wire(certificates.client()) as wire:
            wire.log_in("root", "secret")
        assert node.door.handshakes_under_way <= MOST
        assert until_gone(silent[0]) == b""
    finally:
        for one in silent:
            one.close()
    idle(node)


def test_plain_http_at_the_port_for_tls_is_answered_and_ended(node: TlsNode) -> None:
    with node.tcp("https") as plain:
        plain.sendall(b"POST /queues/q/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000)
        answer = until_gone(plain)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"tls_expected" in answer and b"Connection: close" in answer
    idle(node)


def test_plain_amqp_at_the_port_for_tls_is_ended(node: TlsNode) -> None:
    with node.tcp("amqps") as plain:
        plain.sendall(b"AMQP\x00\x00\x09\x01")
        plain.shutdown(socket.SHUT_WR)
        assert until_gone(plain) == b""
    idle(node)


@pytest.mark.parametrize("setting", ["http", "amqp"])
def test_tls_at_a_plain_port_is_ended(setting: str, node: TlsNode, certificates: Certificates) -> None:
    with pytest.raises(OSError):
        node.tls(setting, certificates.client())


def test_what_begins_as_tls_and_is_none_is_ended(node: TlsNode) -> None:
    with node.tcp("https") as garbage:
        garbage.sendall(b"\x16\x03\x01\x00\x05hello" + b"\x00" * 1000)
        until_gone(garbage)
    idle(node)
