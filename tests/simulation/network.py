"""Sockets between simulated processes: bytes take their time, come in pieces and in order, and may be cut off at any
moment. Real links (laneway/cluster/link.py) run over them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any
from unittest import mock

from .loop import SimulatedLoop

NewProtocol = Callable[[], Any]


class Socket:
    """One end of a connection: the transport of its protocol."""

    def __init__(self, network: Network, loop: SimulatedLoop, protocol: Any) -> None:
        self._network = network
        self.loop = loop
        self.protocol = protocol
        self.peer: Socket
        self._pending = bytearray()  # written by the other end, not read here
        self._is_made = self._is_paused = self._has_timer = False
        self._is_closing = False  # by this end
        self._is_cut = False  # by the other one, or in between
        self.is_gone = False  # its protocol knows, or is no more

    def made(self) -> None:
        self._is_made = True
        self.protocol.connection_made(self)
        self.wake()

    def wake(self, delay_s: float | None = None) -> None:
        if not self._has_timer and self._is_made and not self.is_gone and (self._pending or self._is_cut):
            self._has_timer = True
            self.loop.call_later(self.loop.latency_s() if delay_s is None else delay_s, self._read)

    def _read(self) -> None:
        self._has_timer = False
        if self.is_gone or (self._is_paused and not self._is_cut):
            return
        random = self._network.random
        size = len(self._pending)
        if random.random() < 0.2:
            size = random.randint(0, size)
        data = self._pending[:size]
        del self._pending[:size]
        while data and not self._is_closing:
            buffer = self.protocol.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            del data[:count]
            self.protocol.buffer_updated(count)
        if self._is_cut and not self._pending:
            self._lose()
        self.wake()

    def _lose(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self.protocol.connection_lost(None)

    def cut(self, keep: int | None = None) -> None:
        """Nothing comes any more behind this many bytes of what is on its way; None: all of it comes."""
        self._is_cut = True
        if keep is not None:
            del self._pending[keep:]
        if self.loop.is_closed():
            self.is_gone = True
        self.wake(0.0)

    @property
    def pending_bytes(self) -> int:
        return len(self._pending)

    # As a transport

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def write(self, data: bytes) -> None:
        if not (self._is_closing or self._is_cut or self.peer.is_gone):
            self.peer._pending += data
            self.peer.wake()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.loop.call_soon(self._lose)
            self.peer.cut()

    abort = close

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> None:
        pass

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.wake()


class Listener:
    def __init__(self, loop: SimulatedLoop, new_protocol: NewProtocol) -> None:
        self.loop = loop
        self.new_protocol = new_protocol
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class Network:
    def __init__(self, random: Random) -> None:
        self.random = random
        self._listeners: dict[str, Listener] = {}
        self._pairs: list[tuple[Socket, Socket]] = []

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Links are made over this network."""
        with (
            mock.patch("laneway.cluster.remote.connect", self._connect),
            mock.patch("laneway.cluster.serving.listen", self._listen),
        ):
            yield

    async def _listen(self, new_protocol: NewProtocol, address: str) -> Listener:
        loop: Any = asyncio.get_running_loop()
        self._listeners[address] = found = Listener(loop, new_protocol)
        return found

    async def _connect(self, new_protocol: NewProtocol, address: str) -> None:
        loop: Any = asyncio.get_running_loop()
        await asyncio.sleep(loop.latency_s())
        listener = self._listeners.get(address)
        if listener is None or not listener.is_open or listener.loop.is_closed():
            raise ConnectionRefusedError(f"nobody listens at {address}")
        here = Socket(self, loop, new_protocol())
        there = Socket(self, listener.loop, listener.new_protocol())
        here.peer, there.peer = there, here
        self._pairs = [pair for pair in self._pairs if not all(end.is_gone for end in pair)]
        self._pairs.append((here, there))
        listener.loop.call_later(listener.loop.latency_s(), there.made)
        here.made()

    def gone(self, loop: SimulatedLoop) -> None:
        """A process is: what it wrote before still comes."""
        for pair in self._pairs:
            for end in pair:
                if end.loop is loop:
                    end.is_gone = True
                    if not end.peer.is_gone:
                        end.peer.cut()

    def cut_one(self) -> None:
        """A connection is lost, with some of what was on its way."""
        pairs = [pair for pair in self._pairs if not any(end.is_gone for end in pair)]
        if pairs:
            for end in self.random.choice(pairs):
                end.cut(self.random.randint(0, end.pending_bytes))
