"""HTTP for the load generator: requests encoded beforehand, replies framed by Content-Length and looked at no further.

What a client says is a script: a generator that yields whole requests and is sent whole replies.

    def publisher(request):
        while True:
            reply = yield request
"""

from __future__ import annotations

import base64
import json
import time
from array import array
from collections.abc import Generator
from urllib.parse import quote

from benchmarks.load import Connection, LoadFailed

Script = Generator[bytes, bytes, None]

_GOOD = (b"200", b"201", b"204")
_BUFFER_BYTES = 2 << 20


def request(method: str, path: str, body: object = None, *, host: str = "127.0.0.1") -> bytes:
    """A whole request. `body` is bytes as they are, or anything else as JSON; no headers but the needed ones."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}\r\n".encode() + content


def queue_path(queue: str, rest: str = "") -> str:
    return f"/queues/{quote(queue, safe='')}{rest}"


class HttpConnection(Connection):
    """One keep-alive connection with one request under way at a time."""

    def __init__(self, address: tuple[str, int], script: Script, *, latencies_ns: array[int] | None = None) -> None:
        super().__init__(address)
        self.reply_count = 0
        self.finished = False
        self.latencies_ns = latencies_ns
        self._script = script
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._wanted = 0  # the size of the whole reply, once its head was read
        self._length_header = b""  # as this server spells it
        self._sent_at_ns = 0

    def begin(self) -> None:
        self._sent_at_ns = time.perf_counter_ns()
        self.send(next(self._script))

    def readable(self) -> None:
        received = self.socket.recv_into(self._view[self._filled :] if self._filled else self._buffer)
        if not received:
            raise LoadFailed("the server closed a connection that was in use")
        self._filled += received
        if not self._wanted:
            self._wanted = self._frame()
        if self._filled < self._wanted or not self._wanted:
            if self._filled == _BUFFER_BYTES:
                raise LoadFailed(f"a reply is larger than {_BUFFER_BYTES} bytes")
            return
        now_ns = time.perf_counter_ns()
        reply = bytes(self._view[: self._wanted])
        if reply[9:12] not in _GOOD:
            raise LoadFailed(f"the server answered: {reply[:600].decode(errors='replace')}")
        if self.latencies_ns is not None:
            self.latencies_ns.append(now_ns - self._sent_at_ns)
        self.reply_count += 1
        self._filled = self._wanted = 0
        try:
            following = self._script.send(reply)
        except StopIteration:
            self.finished = True
            return
        self._sent_at_ns = time.perf_counter_ns()
        self.send(following)

    def _frame(self) -> int:
        """The size of the reply whose first bytes have come in; 0 while its head is incomplete."""
        end = self._buffer.find(b"\r\n\r\n", 0, self._filled)
        if end < 0:
            return 0
        if not self._length_header:
            head = bytes(self._view[:end])
            at = head.lower().find(b"\r\ncontent-length:")
            if at < 0:
                if head[9:12] == b"204":
                    return end + 4
                raise LoadFailed(f"a reply without Content-Length: {head.decode(errors='replace')}")
            self._length_header = head[at : head.index(b":", at) + 1]
        at = self._buffer.find(self._length_header, 0, end)
        if at < 0:
            return end + 4  # 204 has none
        at += len(self._length_header)
        stop = self._buffer.find(b"\r", at)
        return end + 4 + int(self._buffer[at:stop])


def ask(address: tuple[str, int], method: str, path: str, body: object = None, *, user: str = "") -> object:
    """One request on a connection of its own, for preparing a measurement; the decoded JSON of a good answer."""
    from http.client import HTTPConnection  # here alone: the load itself never goes through it

    connection = HTTPConnection(*address, timeout=60)
    try:
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if content else {}
        if user:
            headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
        connection.request(method, path, content, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise LoadFailed(f"{method} {path} → {answer.status}: {text[:600].decode(errors='replace')}")
        return json.loads(text) if text else None
    finally:
        connection.close()
