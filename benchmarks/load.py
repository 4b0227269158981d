"""The load generator: connections on one epoll loop, as little work per reply as Python allows.

It knows nothing of a protocol. A Connection is told when its socket can be read and when more can be written; what the
bytes mean is its own business (http_load.py; other protocols go beside it). One process drives any number of
connections; machine.Watch tells how busy it was, so that a report can show that it was not the bottleneck.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections.abc import Callable, Sequence

_READ, _READ_WRITE = select.EPOLLIN, select.EPOLLIN | select.EPOLLOUT
_SOCKET_BUFFER_BYTES = 1 << 20


class LoadFailed(Exception):
    """The server answered something that makes the measurement worthless."""


class Connection:
    """One socket. A protocol fills in `begin` and `readable`, and sends with `send`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BUFFER_BYTES)
        self.socket.setblocking(False)
        self.unsent: memoryview | None = None
        self.watch_writable: Callable[[bool], None] = lambda _: None

    def begin(self) -> None:
        raise NotImplementedError

    def readable(self) -> None:
        raise NotImplementedError

    def send(self, data: bytes | memoryview) -> None:
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.unsent = memoryview(data)[sent:]
            self.watch_writable(True)

    def writable(self) -> None:
        if self.unsent is not None:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
            if not self.unsent:
                self.unsent = None
        if self.unsent is None:
            self.watch_writable(False)


class Load:
    """Drives connections until a time has passed or a condition holds. May be run again: requests under way stay so."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = {connection.socket.fileno(): connection for connection in connections}
        self._epoll = select.epoll()
        self._begun = False
        for fileno, connection in self._connections.items():
            self._epoll.register(fileno, _READ)
            connection.watch_writable = lambda on, fileno=fileno: self._epoll.modify(  # type: ignore[misc]
                fileno, _READ_WRITE if on else _READ
            )

    def run(self, *, seconds: float, until: Callable[[], bool] | None = None) -> float:
        """The seconds it took: exactly these, or, with `until`, until it holds, which it must within that time."""
        connections, poll, clock = self._connections, self._epoll.poll, time.perf_counter
        # A collection in the middle would show up as a server's slow answer.
        gc.collect()
        gc.disable()
        try:
            began = clock()
            deadline = began + seconds
            if not self._begun:
                self._begun = True
                for connection in connections.values():
                    connection.begin()
            while (left := deadline - clock()) > 0:
                for fileno, what in poll(left):
                    connection = connections[fileno]
                    if what & ~select.EPOLLOUT:
                        connection.readable()
                    if what & select.EPOLLOUT:
                        connection.writable()
                if until is not None and until():
                    break
            else:
                if until is not None:
                    raise LoadFailed(f"the work was not done within {seconds:.0f} s")
            return clock() - began
        finally:
            gc.enable()

    def close(self) -> None:
        self._epoll.close()
        for connection in self._connections.values():
            connection.socket.close()

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
