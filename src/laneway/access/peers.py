"""Where a caller is: on this machine, elsewhere, or behind a proxy that is trusted to say for whom it speaks."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import msgspec

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """The networks of the proxies whose word about their callers counts."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)

    def trust(self, networks: Sequence[Network]) -> None:
        """These from now on. Connections that are open stay what they are."""
        self._networks = tuple(networks)

    def peer(self, peername: object) -> Peer:
        """The other end of a connection, as its socket names it."""
        if not isinstance(peername, tuple) or (ip := _ip_of(peername[0])) is None:
            return Peer("", 0, False, False)
        return Peer(str(ip), peername[1], ip.is_loopback, self._has(ip))

    def announced(self, address: str, port: int) -> Peer:
        """The client for whom a trusted proxy passes bytes through. Wherever it is, it is not on this machine: what is
        loopback to the proxy may be another machine's."""
        ip = _ip_of(address)
        return Peer(
            address if ip is None else str(ip), port, False, ip is not None and not ip.is_loopback and self._has(ip)
        )

    def client(self, peer: Peer, forwarded_for: Sequence[str]) -> str:
        """Who is at the far end of a chain of proxies. Each has added the address that it was called from, so the
        chain is read from its end, as far as the addresses are those of trusted proxies: before those, anybody may
        have written anything."""
        address = peer.address
        if not peer.is_proxy:
            return address
        for text in reversed(forwarded_for):
            ip = _ip_of(text)
            if ip is None:
                break
            address = str(ip)
            if not self._has(ip):
                break
        return address

    def are_here(self, forwarded_for: Sequence[str]) -> bool:
        """Whether everybody whom proxies name is on this machine, and they name somebody. Not only whoever is at the
        far end: that may be an invention of one who is not here."""
        return bool(forwarded_for) and all(map(is_loopback, forwarded_for))

    def _has(self, ip: _Ip) -> bool:
        return any(ip in network for network in self._networks)


class Peer(msgspec.Struct, frozen=True):
    """The other end of a connection."""

    address: str  # empty if it is not known
    port: int
    is_loopback: bool
    is_proxy: bool  # a trusted one

    def __str__(self) -> str:
        if not self.address:
            return "somewhere"
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def kind(self) -> int:
        """The same number for peers whose requests are believed in the same way."""
        return self.is_loopback + 2 * self.is_proxy

    @property
    def is_here(self) -> bool:
        """Whether it is a program on this machine that speaks for itself."""
        return self.is_loopback and not self.is_proxy


def is_loopback(address: str) -> bool:
    """127.0.0.0/8, ::1, and the former written as the latter's kind."""
    ip = _ip_of(address)
    return ip is not None and ip.is_loopback


def _ip_of(text: object) -> _Ip | None:
    """The address that is meant, with or without a port; one of IPv4 written as one of IPv6 is that of IPv4."""
    if not isinstance(text, str):
        return None
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip
