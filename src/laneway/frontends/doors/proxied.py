"""The PROXY protocol: how a proxy that passes bytes through says, before the first of them, for whom it speaks.

version 1   "PROXY TCP4 192.0.2.1 198.51.100.1 40812 5672\r\n", or "PROXY UNKNOWN…\r\n"; at most 107 bytes
version 2   signature 12 · version and command 1 · family 1 · length 2 · addresses, and more that is passed over
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_LINE_BYTES = 107
_MORE_BYTES = 1024  # of version 2, behind its first 16
_LOCAL, _FOR_A_CLIENT = 0x20, 0x21
_ADDRESS_BYTES = {0x11: 4, 0x21: 16}  # of TCP over IPv4, over IPv6

Client = tuple[str, int]


async def read_client(accepted: socket.socket) -> Client | None:
    """The client's address and port; None if the proxy speaks for itself, or does not know. What follows the header
    stays in the socket. ValueError if there is no header."""
    first = await _read(accepted, len(_SIGNATURE))
    if first == _SIGNATURE:
        return await _read_version_2(accepted)
    if first.startswith(b"PROXY "):
        return _version_1(first + await _read_line(accepted, _LINE_BYTES - len(first)))
    raise ValueError("it does not begin with the PROXY protocol, which proxy_protocol asks for")


async def _read_version_2(accepted: socket.socket) -> Client | None:
    command, family, *length = await _read(accepted, 4)
    size = int.from_bytes(bytes(length), "big")
    if command not in (_LOCAL, _FOR_A_CLIENT) or size > _MORE_BYTES:
        raise ValueError("its PROXY header is not understood")
    more = await _read(accepted, size)
    width = _ADDRESS_BYTES.get(family)
    if command == _LOCAL or width is None:
        return None
    if size < 2 * width + 4:
        raise ValueError("its PROXY header is too short")
    port = int.from_bytes(more[2 * width : 2 * width + 2], "big")
    return str(ipaddress.ip_address(more[:width])), port


def _version_1(line: bytes) -> Client | None:
    parts = line.decode("latin-1").removesuffix("\r\n").split(" ")
    if parts[1] == "UNKNOWN":
        return None
    if parts[1] not in ("TCP4", "TCP6") or len(parts) != 6 or not parts[4].isascii() or not parts[4].isdigit():
        raise ValueError("its PROXY header is not understood")
    port = int(parts[4])
    if port > 65_535:
        raise ValueError("its PROXY header has no port")
    return str(ipaddress.ip_address(parts[2])), port


async def _read(accepted: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await _some(accepted, size - len(data))
    return data


async def _read_line(accepted: socket.socket, most: int) -> bytes:
    """Through the end of the line, and nothing behind it."""
    line = b""
    while not line.endswith(b"\n"):
        if len(line) >= most:
            raise ValueError("its PROXY header has no end")
        there = await _some(accepted, most - len(line), socket.MSG_PEEK)
        end = there.find(b"\n") + 1
        line += await _some(accepted, end or len(there))
    return line


async def _some(accepted: socket.socket, most: int, flags: int = 0) -> bytes:
    while True:
        await readable(accepted)
        try:
            data = accepted.recv(most, flags)
        except BlockingIOError:
            continue
        if not data:
            raise ConnectionResetError("it went before it had said for whom it speaks")
        return data


async def readable(accepted: socket.socket) -> None:
    """Until there is something to read."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(accepted.fileno(), lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(accepted.fileno())
