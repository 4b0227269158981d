"""Publishing as laneway.client does it: through the client itself, and with its bytes sent by the load generator, which
is cheaper than the client, so that the server is what limits."""

from __future__ import annotations

import json
import os
import socket
import threading
import time

from benchmarks.http_load import Script
from benchmarks.load import LoadFailed
from laneway.client import Client

_KEY = "the-key-goes-here-______"  # as long as the client's own ones
_ANSWER = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def keyed_publish(address: tuple[str, int], queue: str, payload: str) -> tuple[bytes, bytes]:
    """What the client sends for a publish, before and after its Idempotency-Key."""
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while payload.encode()[-20:] not in heard:
                    heard.extend(connection.recv(65536))
                connection.sendall(_ANSWER)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Client(f"http://127.0.0.1:{port}") as client:
            client.publish(queue, json.loads(payload), idempotency_key=_KEY)
        thread.join(10)
    before, key, after = bytes(heard).partition(_KEY.encode())
    if not key:
        raise LoadFailed(f"the client sent no key: {before[:600]!r}")
    return before.replace(b"127.0.0.1:%d" % port, b"127.0.0.1:%d" % address[1]), after


def keyed_publisher(before: bytes, after: bytes) -> Script:
    while True:
        yield b"%b%b%b" % (before, os.urandom(len(_KEY) // 2).hex().encode(), after)


def publish_from_threads(address: tuple[str, int], queue: str, payload: object, threads: int, seconds: float) -> int:
    """How many publishes that many threads, with a client each, manage in this time."""
    counts = [0] * threads
    deadline = time.perf_counter() + seconds

    def publish(number: int) -> None:
        with Client("http://{}:{}".format(*address)) as client:
            while time.perf_counter() < deadline:
                client.publish(queue, payload)
                counts[number] += 1

    running = [threading.Thread(target=publish, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts)
