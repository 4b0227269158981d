"""Where a process of the server listens for the others: the path of a Unix socket, or HOST:PORT."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from laneway.cluster.greeting import MIN_SECRET_BYTES
from laneway.errors import ConfigInvalid

NewProtocol = Callable[[], asyncio.BaseProtocol]


def is_path(address: str) -> bool:
    return "/" in address


def host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ConfigInvalid(f"a process listens on the path of a socket or on HOST:PORT, not on {address!r}")
    return host.strip("[]"), int(port)


def check_secret(address: str, secret: bytes) -> None:
    if not is_path(address) and len(secret) < MIN_SECRET_BYTES:
        raise ConfigInvalid(
            f"links between processes over TCP take a secret of at least {MIN_SECRET_BYTES} bytes, this one has "
            f"{len(secret)}"
        )


async def connect(new_protocol: NewProtocol, address: str) -> None:
    loop = asyncio.get_running_loop()
    if is_path(address):
        await loop.create_unix_connection(new_protocol, address)
    else:
        await loop.create_connection(new_protocol, *host_and_port(address))


async def listen(new_protocol: NewProtocol, address: str) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    if is_path(address):
        return await loop.create_unix_server(new_protocol, sock=socket_of_the_owner(address))
    return await loop.create_server(new_protocol, *host_and_port(address))


def socket_of_the_owner(path: str) -> socket.socket:
    """Whoever may open it may do everything: from the first moment on it is this user alone."""
    found = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o177)
    try:
        found.bind(path)
    finally:
        os.umask(mask)
    return found
