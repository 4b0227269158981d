"""The sockets that a front end listens on, with TLS and without; certificates change while they listen."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable

_BACKLOG = 4096


class Listeners:
    def __init__(self, new_protocol: Callable[[], asyncio.BaseProtocol], *, handshake_s: float) -> None:
        self._new_protocol = new_protocol
        self._handshake_s = handshake_s  # for the handshake of TLS
        self._plain: list[asyncio.Server] = []
        self._secure: list[asyncio.Server] = []

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listen on all addresses of this name; the first that was bound (port 0 takes a free one)."""
        hosts = ["127.0.0.1", "::1"] if host == "localhost" else [host]
        first: tuple[str, int] | None = None
        for each in hosts:
            try:
                server = await asyncio.get_running_loop().create_server(
                    self._new_protocol,
                    each,
                    first[1] if first is not None else port,
                    backlog=_BACKLOG,
                    reuse_address=True,
                    ssl=tls,
                    ssl_handshake_timeout=self._handshake_s if tls is not None else None,
                )
            except OSError as trouble:
                if first is None or trouble.errno == errno.EADDRINUSE:
                    raise
                continue  # a machine without the other address family
            (self._plain if tls is None else self._secure).append(server)
            if first is None:
                bound = server.sockets[0].getsockname()
                first = (bound[0], bound[1])
        assert first is not None
        return first

    async def renew(self, tls: ssl.SSLContext) -> None:
        """Who connects from now on is served with this; connections that are open go on as they are. The sockets stay,
        so nobody who connects meanwhile is turned away."""
        before, self._secure = self._secure, []
        for server in before:
            for there in server.sockets:
                self._secure.append(
                    await asyncio.get_running_loop().create_server(
                        self._new_protocol,
                        sock=socket.fromfd(there.fileno(), there.family, there.type),
                        backlog=_BACKLOG,
                        ssl=tls,
                        ssl_handshake_timeout=self._handshake_s,
                    )
                )
            server.close()

    def close(self) -> None:
        """Accept no more."""
        for server in (*self._plain, *self._secure):
            server.close()

    async def wait_closed(self) -> None:
        for server in (*self._plain, *self._secure):
            await server.wait_closed()
