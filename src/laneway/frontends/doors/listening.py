"""The sockets that a front end listens on."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Sequence

from laneway.access import TrustedProxies
from laneway.frontends.doors.door import Door, NewProtocol

log = logging.getLogger("laneway.listening")

#: What connections of an earlier server leave behind for a minute keeps nobody from its port.
REUSED = (socket.SO_REUSEADDR,)

_BACKLOG = 4096
_ACCEPTED_A_TURN = 64
_LOOK_AGAIN_S = 0.02  # where as many handshakes as there may be are under way
_OUT_OF_DESCRIPTORS_S = 0.5


class Listeners:
    """`refusal` is what somebody without TLS is told at a port for TLS."""

    def __init__(self, new_protocol: NewProtocol, *, refusal: bytes = b"") -> None:
        self._new_protocol = new_protocol
        self._refusal = refusal
        self._servers: list[asyncio.Server] = []
        self._guarded: dict[socket.socket, tuple[Door, TrustedProxies | None]] = {}

    async def listen(
        self,
        host: str,
        port: int,
        door: Door | None = None,
        proxies: TrustedProxies | None = None,
        *,
        is_shared: bool = False,
    ) -> tuple[str, int]:
        """Listen on all addresses of this name; the first that was bound (port 0 takes a free one). localhost means
        both address families, where there are both. `proxies` are those that begin with the PROXY protocol, which
        takes a door. `is_shared`: other processes of the same server have sockets of their own there."""
        bound = await bind(host, port, (socket.SO_REUSEADDR, socket.SO_REUSEPORT) if is_shared else REUSED)
        address = bound[0].getsockname()
        for listener in bound:
            if door is None:
                loop = asyncio.get_running_loop()
                server = await loop.create_server(lambda: self._new_protocol(None), sock=listener, backlog=_BACKLOG)
                self._servers.append(server)
            else:
                listener.listen(_BACKLOG)
                self._guarded[listener] = door, proxies
                self._resume(listener)
        return address[0], address[1]

    def close(self) -> None:
        """Accept no more."""
        for server in self._servers:
            server.close()
        for listener, (door, _) in self._guarded.items():
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
            door.stop()
        self._guarded.clear()

    async def wait_closed(self) -> None:
        for server in self._servers:
            await server.wait_closed()

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._guarded:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        door, proxies = self._guarded[listener]
        for _ in range(_ACCEPTED_A_TURN):
            if not door.is_open():
                self._pause(_LOOK_AGAIN_S, listener)
                return
            try:
                accepted, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as trouble:
                log.warning("no connection can be accepted now: %s", trouble)
                self._pause(_OUT_OF_DESCRIPTORS_S, listener)
                return
            accepted.setblocking(False)
            door.admit(accepted, self._new_protocol, refusal=self._refusal, proxies=proxies)

    def _pause(self, seconds: float, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.fileno())
        loop.call_later(seconds, self._resume, listener)


async def bind(host: str, port: int, options: Sequence[int] = REUSED) -> list[socket.socket]:
    """A socket for each address of this name, all with the same port. They do not listen yet."""
    bound: list[socket.socket] = []
    is_either = host == "localhost"  # a machine may lack one of the address families
    try:
        for each in ("127.0.0.1", "::1") if is_either else (host,):
            found = await asyncio.get_running_loop().getaddrinfo(
                each, bound[0].getsockname()[1] if bound else port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in dict.fromkeys(found):
                try:
                    bound.append(_bound(family, kind, protocol, address, options))
                except OSError as trouble:
                    if not (is_either and bound) or trouble.errno == errno.EADDRINUSE:
                        raise
    except OSError:
        for listener in bound:
            listener.close()
        raise
    return bound


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...], options: Sequence[int]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        for option in options:
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
