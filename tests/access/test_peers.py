"""Where a caller is, and which proxies are believed."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from laneway.access import Peer, TrustedProxies, is_loopback

NOBODY = TrustedProxies()
SOME = TrustedProxies([ip_network("127.0.0.1"), ip_network("10.0.0.0/8"), ip_network("fd00::/8")])


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("fe80::1", False),
        ("1270.0.0.1", False),
        ("127.evil.example", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_elsewhere(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
    assert NOBODY.peer((address, 80)).is_here is expected


def test_a_trusted_proxy_on_this_machine_does_not_speak_for_itself() -> None:
    assert SOME.peer(("127.0.0.1", 80)) == Peer("127.0.0.1", 80, True, True)
    assert not SOME.peer(("127.0.0.1", 80)).is_here
    assert SOME.peer(("127.0.0.2", 80)).is_here
    assert SOME.peer(("::ffff:10.1.2.3", 80)) == Peer("10.1.2.3", 80, False, True)


def test_a_peer_is_shown_as_an_address_with_its_port() -> None:
    assert str(NOBODY.peer(("10.0.0.1", 80))) == "10.0.0.1:80"
    assert str(NOBODY.peer(("2001:db8::1", 80, 0, 0))) == "[2001:db8::1]:80"
    assert str(NOBODY.peer("")) == "somewhere"


def test_a_socket_without_an_address_is_nowhere() -> None:
    assert not NOBODY.peer("").is_here
    assert not NOBODY.peer(None).is_here


@pytest.mark.parametrize(
    ("peer", "chain", "client"),
    [
        ("127.0.0.1", ["7.7.7.7"], "7.7.7.7"),
        ("127.0.0.1", ["127.0.0.1", "7.7.7.7"], "7.7.7.7"),  # what the client itself wrote before it
        ("127.0.0.1", ["7.7.7.7", "10.0.0.3"], "7.7.7.7"),
        ("127.0.0.1", ["8.8.8.8", "7.7.7.7:4711", "10.0.0.3"], "7.7.7.7"),
        ("fd00::1", ["[2001:db8::7]:80"], "2001:db8::7"),
        ("127.0.0.1", ["10.0.0.4"], "10.0.0.4"),
        ("127.0.0.1", [], "127.0.0.1"),
        ("127.0.0.1", ["unknown"], "127.0.0.1"),
        ("127.0.0.1", ["7.7.7.7", "unknown", "10.0.0.3"], "10.0.0.3"),
        ("6.6.6.6", ["7.7.7.7"], "6.6.6.6"),  # nobody who is trusted
    ],
)
def test_the_client_is_the_first_before_the_trusted_proxies(peer: str, chain: list[str], client: str) -> None:
    assert SOME.client(SOME.peer((peer, 80)), chain) == client
