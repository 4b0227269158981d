"""A door: what happens to a socket before it is a connection, and how much of that there may be at once.

asyncio's own servers take any number of handshakes, say nothing to who speaks no TLS, and know no proxies. So sockets
are looked at here first:

    accepted ─▶ PROXY header ─▶ first byte (peeked at) ─▶ TLS handshake ─▶ connection_made of the front end's protocol
              from trusted proxies   │ no TLS               │ too slow, or the slowest of too many
              where it is asked for  ▼                      ▼
                                 refusal, closed          closed

Where there is neither TLS nor a PROXY header to read, a socket goes through no door.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from laneway.access import Peer, TrustedProxies
from laneway.frontends.doors.proxied import read_client, readable
from laneway.telemetry.floods import FloodLog

log = logging.getLogger("laneway.doors")

_HANDSHAKE_RECORD = b"\x16"  # what TLS begins with
_READ_BYTES = 1 << 16
_FAIR_SHARE = 0.05  # of its time that a handshake has for itself, however many others there are
_GOODBYE_S = 1.0  # for a client to answer the end of TLS; many never do

#: With the other end of the connection, where a proxy has said who that is.
NewProtocol = Callable[[Peer | None], asyncio.BaseProtocol]


class Door:
    """Without a context it leads to plain connections."""

    def __init__(
        self,
        context: ssl.SSLContext | None,
        *,
        handshake_ms: int = 10_000,
        handshake_count: int = 256,
        floods: FloodLog | None = None,
    ) -> None:
        self._context = context
        self._floods = floods or FloodLog()
        self._handshake_s = handshake_ms / 1000
        self._handshake_count = handshake_count
        self._fair_s = self._handshake_s * _FAIR_SHARE
        self._under_way: dict[asyncio.Task[None], float] = {}  # since when; the oldest first

    @property
    def handshakes_under_way(self) -> int:
        return len(self._under_way)

    def renew(self, context: ssl.SSLContext) -> None:
        """Who connects from now on is served with this; connections that are open go on as they are."""
        self._context = context

    def is_open(self) -> bool:
        """Whether one more may begin. Where there are too many, the oldest makes room once it has had a fair time:
        who holds on to many loses them, and newcomers, who wait for that to be accepted, get in."""
        if len(self._under_way) < self._handshake_count:
            return True
        oldest, since_s = next(iter(self._under_way.items()))
        if asyncio.get_running_loop().time() - since_s < self._fair_s:
            return False
        del self._under_way[oldest]
        oldest.cancel()
        return True

    def admit(
        self, accepted: socket.socket, new_protocol: NewProtocol, *, refusal: bytes, proxies: TrustedProxies | None
    ) -> None:
        """Begin with a socket. Who speaks no TLS is sent the refusal; the proxies, if there are any, begin with the
        PROXY protocol."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._greet(accepted, new_protocol, refusal, proxies))
        self._under_way[task] = loop.time()
        task.add_done_callback(lambda done: self._under_way.pop(done, None))

    def stop(self) -> None:
        """End the handshakes that are under way."""
        for task in list(self._under_way):
            task.cancel()

    async def _greet(
        self, accepted: socket.socket, new_protocol: NewProtocol, refusal: bytes, proxies: TrustedProxies | None
    ) -> None:
        peer = Peer("", 0, False, False)
        is_ours = True  # until it is a transport's
        try:
            async with asyncio.timeout(self._handshake_s):
                peer, told = await _peer(accepted, proxies)
                first = await _first_byte(accepted) if self._context is not None else _HANDSHAKE_RECORD
                if first == _HANDSHAKE_RECORD:
                    is_ours = False
                    await self._connect(accepted, lambda: new_protocol(told))
                elif first:
                    self._tell(peer, "it spoke no TLS")
                    await _refuse(accepted, refusal)
        except (OSError, TimeoutError, ValueError) as trouble:  # OSError: of which the errors of TLS are a kind
            self._tell(peer, str(trouble) or "it took too long")
        finally:
            if is_ours:
                accepted.close()

    async def _connect(self, accepted: socket.socket, new_protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        loop = asyncio.get_running_loop()
        if self._context is None:
            await loop.connect_accepted_socket(new_protocol, accepted)
            return
        await loop.connect_accepted_socket(
            new_protocol,
            accepted,
            ssl=self._context,
            ssl_handshake_timeout=self._handshake_s,
            ssl_shutdown_timeout=_GOODBYE_S,
        )

    def _tell(self, peer: Peer, why: str) -> None:
        kind = "failed handshakes"
        self._floods.say(log, logging.INFO, kind, peer.address, "the handshake with %s failed: %s", peer, why)


async def _peer(accepted: socket.socket, proxies: TrustedProxies | None) -> tuple[Peer, Peer | None]:
    """Who is at the other end, and the same if a proxy has said so."""
    peer = (proxies or TrustedProxies()).peer(accepted.getpeername())
    if proxies is None or not peer.is_proxy:
        return peer, None
    client = await read_client(accepted)
    # Where it names nobody, what comes may still be anybody's: no header of it is taken for the proxy's own.
    told = Peer(peer.address, peer.port, False, False) if client is None else proxies.announced(*client)
    return told, told


async def _first_byte(accepted: socket.socket) -> bytes:
    """What the client begins with, left in the socket; empty if it is gone."""
    while True:
        await readable(accepted)
        try:
            return accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue


async def _refuse(accepted: socket.socket, refusal: bytes) -> None:
    """Say what is wrong and listen, deaf, until the client has gone: a plain close would tear the words away."""
    accepted.send(refusal)  # it fits: nothing was sent before
    accepted.shutdown(socket.SHUT_WR)
    while True:
        await readable(accepted)
        try:
            if not accepted.recv(_READ_BYTES):
                return
        except BlockingIOError:
            continue
