"""A small HTTP load for `laneway bench`: keep-alive connections, each sending its next request once answered.

Written on asyncio streams because a general HTTP client would spend more time than the server it measures.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from laneway.client import ClientTls


class LoadFailed(Exception):
    """The server answered something that ends the measurement."""


@dataclass
class Target:
    """Where to send, and as whom."""

    url: str
    key: str | None
    user: str | None
    password: str | None
    tls: ClientTls

    def head(self) -> bytes:
        """The headers that all requests share."""
        host = urlsplit(self.url).netloc
        lines = [f"host: {host}", "content-type: application/json"]
        if self.key is not None:
            lines.append(f"authorization: Bearer {self.key}")
        elif self.user is not None:
            credentials = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
            lines.append(f"authorization: Basic {credentials}")
        return "\r\n".join(lines).encode()


@dataclass
class Phase:
    """What was measured: messages over time, and how long each request took."""

    name: str
    messages: int = 0
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        ordered = sorted(self.latencies)

        def percentile(share: float) -> float:
            return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000, 3)

        return {
            "messages": self.messages,
            "requests": len(ordered),
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(self.messages / self.seconds, 1) if self.seconds else 0.0,
            "latency_ms": {
                "p50": percentile(0.5),
                "p90": percentile(0.9),
                "p99": percentile(0.99),
                "max": percentile(1),
            }
            if ordered
            else {},
        }


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        self._reader = reader
        self._writer = writer
        self._head = head

    @classmethod
    async def open(cls, target: Target) -> Connection:
        parts = urlsplit(target.url)
        secure = target.tls.context() if parts.scheme == "https" else None
        port = parts.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure, limit=1 << 20)
        return cls(reader, writer, target.head())

    async def post(self, path: str, body: bytes) -> bytes:
        self._writer.write(
            b"POST %b HTTP/1.1\r\n%b\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), self._head, len(body), body)
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        lowered = head.lower()
        at = lowered.find(b"\r\ncontent-length:")
        size = int(lowered[at + 17 : lowered.index(b"\r\n", at + 2)]) if at >= 0 else 0
        answer = await self._reader.readexactly(size) if size else b""
        if head[9:12] not in (b"200", b"201"):
            raise LoadFailed(f"{path} was answered {head[9:12].decode()}: {answer[:300].decode(errors='replace')}")
        return answer

    def close(self) -> None:
        self._writer.close()


Step = Callable[[Connection, Phase], Awaitable[bool]]  # one request; False ends this connection's part


async def run_phase(target: Target, phase: Phase, connections: int, step: Step, told: Callable[[int], None]) -> Phase:
    """Let every connection take steps until each was told to end."""
    opened = await asyncio.gather(*(Connection.open(target) for _ in range(connections)))

    async def work(connection: Connection) -> None:
        while await step(connection, phase):
            told(phase.messages)

    began_at = time.perf_counter()
    try:
        await asyncio.gather(*(work(connection) for connection in opened))
    finally:
        for connection in opened:
            connection.close()
    phase.seconds = time.perf_counter() - began_at
    return phase


async def timed(phase: Phase, call: Awaitable[bytes]) -> bytes:
    began_at = time.perf_counter()
    answer = await call
    phase.latencies.append(time.perf_counter() - began_at)
    return answer


def publishing(path: str, body: Callable[[int], bytes], messages: int, batch: int) -> Step:
    left = messages

    async def step(connection: Connection, phase: Phase) -> bool:
        nonlocal left
        count = min(batch, left)
        if count <= 0:
            return False
        left -= count
        await timed(phase, connection.post(path, body(count)))
        phase.messages += count
        return True

    return step


def receiving(queue_path: str, messages: int, batch: int, acks: Phase) -> Step:
    """Receive and ack in turn; the acks are measured on their own."""
    left = messages

    async def step(connection: Connection, phase: Phase) -> bool:
        nonlocal left
        count = min(batch, left)
        if count <= 0:
            return False
        left -= count
        body = b'{"max_messages":%d,"wait_seconds":5}' % count
        answer = json.loads(await timed(phase, connection.post(f"{queue_path}/dequeue", body)))
        received = answer["messages"]
        if not received:
            raise LoadFailed("no message came within 5 s: does somebody else receive from this queue?")
        left += count - len(received)
        phase.messages += len(received)
        handles = [{"receipt_handle": message["receipt_handle"]} for message in received]
        await timed(acks, connection.post(f"{queue_path}/ack", json.dumps(handles).encode()))
        acks.messages += len(received)
        return True

    return step
