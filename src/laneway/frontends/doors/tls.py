"""TLS at the doors: the certificate in force, and the handshakes under way at all of them.

asyncio's own servers take any number of handshakes and say nothing to who speaks no TLS. So each socket is looked at
here before it becomes a connection:

    accepted ─▶ first byte (peeked at) ─▶ handshake ─▶ connection_made of the front end's protocol
                     │ no TLS               │ too slow, or the slowest of too many
                     ▼                      ▼
                 refusal, closed          closed
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from laneway.telemetry.floods import FloodLog

log = logging.getLogger("laneway.tls")

_HANDSHAKE_RECORD = b"\x16"  # what TLS begins with
_READ_BYTES = 1 << 16
_FAIR_SHARE = 0.05  # of its time that a handshake has for itself, however many others there are
_GOODBYE_S = 1.0  # for a client to answer the end of TLS; many never do

NewProtocol = Callable[[], asyncio.BaseProtocol]


class TlsDoor:
    def __init__(
        self,
        context: ssl.SSLContext,
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

    def admit(self, accepted: socket.socket, new_protocol: NewProtocol, refusal: bytes) -> None:
        """Begin the handshake on a socket; who speaks no TLS is sent the refusal."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._greet(accepted, new_protocol, refusal))
        self._under_way[task] = loop.time()
        task.add_done_callback(lambda done: self._under_way.pop(done, None))

    def stop(self) -> None:
        """End the handshakes that are under way."""
        for task in list(self._under_way):
            task.cancel()

    async def _greet(self, accepted: socket.socket, new_protocol: NewProtocol, refusal: bytes) -> None:
        peer = "?"
        is_ours = True  # until it is a transport's
        try:
            peer = str(accepted.getpeername()[0])
            async with asyncio.timeout(self._handshake_s):
                first = await _first_byte(accepted)
                if first == _HANDSHAKE_RECORD:
                    is_ours = False
                    await asyncio.get_running_loop().connect_accepted_socket(
                        new_protocol,
                        accepted,
                        ssl=self._context,
                        ssl_handshake_timeout=self._handshake_s,
                        ssl_shutdown_timeout=_GOODBYE_S,
                    )
                elif first:
                    self._tell(peer, "it spoke no TLS")
                    await _refuse(accepted, refusal)
        except (OSError, TimeoutError) as trouble:  # of which the errors of TLS are a kind
            self._tell(peer, str(trouble) or "it took too long")
        finally:
            if is_ours:
                accepted.close()

    def _tell(self, peer: str, why: str) -> None:
        text = "the TLS handshake with %s failed: %s"
        self._floods.say(log, logging.INFO, "failed TLS handshakes", peer, text, peer, why)


async def _first_byte(accepted: socket.socket) -> bytes:
    """What the client begins with, left in the socket; empty if it is gone."""
    while True:
        await _readable(accepted)
        try:
            return accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            continue


async def _refuse(accepted: socket.socket, refusal: bytes) -> None:
    """Say what is wrong and listen, deaf, until the client has gone: a plain close would tear the words away."""
    accepted.send(refusal)  # it fits: nothing was sent before
    accepted.shutdown(socket.SHUT_WR)
    while True:
        await _readable(accepted)
        try:
            if not accepted.recv(_READ_BYTES):
                return
        except BlockingIOError:
            continue


async def _readable(accepted: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(accepted.fileno())
