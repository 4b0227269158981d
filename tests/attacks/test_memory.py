"""Strangers cannot fill the memory: nothing is remembered for them, and what they send is bounded for all together."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.crash.server import Connection, Server

MIB = 1 << 20


def resident_mib(server: Server) -> float:
    with open(f"/proc/{server.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MIB


def locked(server: Server) -> Connection:
    """From now on nobody is guest unasked; somebody who is root."""
    connection = server.connect()
    connection.must(201, "PUT", "/accounts/root", {"password": "secret", "roles": ["admin"]})
    connection.close()
    return server.connect(user="root", password="secret")


def speak(server: Server, stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))


def answers(stream: socket.socket, count: int, status: bytes) -> None:
    """Read so many answers with this status."""
    data = b""
    while data.count(b"HTTP/1.1 ") < count or not data.endswith(b"}"):
        more = stream.recv(1 << 16)
        assert more, data[-300:]
        data = data + more
    assert data.count(b"HTTP/1.1 " + status) == count, data[:300]


def test_targets_of_strangers_are_not_remembered(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, ExitStack() as stack:
        locked(server)
        stream = speak(server, stack)
        before = resident_mib(server)
        for batch in range(60):
            requests = [
                b"GET /queues/%06d%s HTTP/1.1\r\nHost: x\r\n\r\n" % (batch * 100 + i, b"%c3%a4" * 1300)
                for i in range(100)
            ]
            stream.sendall(b"".join(requests))
            answers(stream, 100, b"401")
        assert resident_mib(server) - before < 40


def test_heads_of_strangers_are_not_remembered(tmp_path: Path) -> None:
    """Neither as they are, nor what is made of signatures in them."""
    with Server(tmp_path / "data") as server, ExitStack() as stack:
        locked(server)
        stream = speak(server, stack)
        before = resident_mib(server)
        for batch in range(20):
            requests = []
            for i in range(100):
                number = batch * 100 + i
                names = b";".join(b"h%d-%d" % (number, n) for n in range(2000))
                signature = (
                    b"AWS4-HMAC-SHA256 Credential=AKIA%d%s/20260131/us-east-1/sqs/aws4_request, SignedHeaders=host;%s, "
                    b"Signature=00" % (number, b"x" * 5000, names)
                )
                requests.append(
                    b"POST / HTTP/1.1\r\nHost: x\r\nX-Amz-Target: AmazonSQS.ListQueues\r\n"
                    b"X-Amz-Date: 20260131T000000Z\r\nAuthorization: %s\r\nContent-Length: 2\r\n\r\n{}" % signature
                )
            stream.sendall(b"".join(requests))
            answers(stream, 100, b"40")
        assert resident_mib(server) - before < 40
