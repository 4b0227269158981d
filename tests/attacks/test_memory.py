"""Strangers cannot fill the memory: nothing is remembered for them, and what they send is bounded for all together."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from laneway.resources.intake import Intake
from tests.amqp.wire import HEADER, Wire, frame, method
from tests.attacks.whole_node import WholeNode
from tests.crash.server import Connection, Server, eventually
from tests.in_thread import wait_for

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


def begin_body(server: Server, stack: ExitStack, size: int, sent: int, headers: str = "") -> socket.socket:
    stream = speak(server, stack)
    head = f"POST /queues/q/messages HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {size}\r\n\r\n"
    stream.sendall(head.encode())
    with contextlib.suppress(OSError):  # refused meanwhile
        stream.sendall(bytes(sent))
    return stream


def test_unfinished_bodies_of_strangers_have_one_bound_and_leave_room_for_others(tmp_path: Path) -> None:
    options = ("--max-body-bytes", "8MiB", "--max-message-bytes", "8MiB", "--max-receiving-bytes", "32MiB")
    with Server(tmp_path / "data", *options) as server, ExitStack() as stack:
        root = locked(server)
        root.must(201, "PUT", "/queues/q", {"max_message_bytes": 8 * MIB})
        before = resident_mib(server)
        size, sent = 8 * MIB, 8 * MIB - 1000
        refused = 0
        for _ in range(20):
            stream = begin_body(server, stack, size, sent)
            stream.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                answer = stream.recv(2000)
                assert answer.startswith(b"HTTP/1.1 503") and b"Retry-After" in answer and b"too_much_at_once" in answer
                refused += 1
        assert refused == 20 - 2  # half of 32 MiB, with two that fit
        assert resident_mib(server) - before < 48
        root.must(201, "POST", "/queues/q/messages", {"payload": "x" * (7 * MIB)})
        stack.close()
        # What they held is free again, for strangers too.
        eventually(
            "it is free",
            lambda: begin_and_answer(server, size) == b"401",
        )


def begin_and_answer(server: Server, size: int) -> bytes:
    with ExitStack() as stack:
        stream = begin_body(server, stack, size, size)
        return stream.recv(2000).split()[1]


def large_publish(size: int) -> bytes:
    """In frames of 64 KiB."""
    pieces = [method(1, "basic.publish", exchange="", key="q"), frame(2, 1, struct.pack(">HHQH", 60, 0, size, 0))]
    while size:
        part = min(size, 65_000)
        pieces.append(frame(3, 1, bytes(part)))
        size -= part
    return b"".join(pieces)


def test_unfinished_messages_over_amqp_wait_for_room(tmp_path: Path) -> None:
    options = ("--max-body-bytes", "4MiB", "--max-message-bytes", "8MiB", "--max-receiving-bytes", "16MiB")
    with Server(tmp_path / "data", *options) as server, ExitStack() as stack:
        server.connect().must(201, "PUT", "/queues/q", {"max_message_bytes": 8 * MIB})
        before = resident_mib(server)
        left = []
        for _ in range(6):
            wire = stack.enter_context(Wire(("127.0.0.1", server.amqp_port))).log_in("guest", "guest")
            assert wire.ask(1, "confirm.select").name == "confirm.select-ok"
            whole = large_publish(7 * MIB)
            sent = 0
            wire.socket.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                while sent < len(whole) - 1000:
                    sent += wire.socket.send(whole[sent : min(sent + MIB, len(whole) - 1000)])
            wire.socket.settimeout(20)
            left.append((wire, whole[sent:]))
        assert resident_mib(server) - before < 30  # of 42 MiB
        assert sum(len(rest) == 1000 for _, rest in left) == 2, "two of them fit"
        for wire, rest in left:
            wire.socket.sendall(rest)
            wire.expect("basic.ack")
        assert server.connect().must(200, "GET", "/queues/q/stats")["approximate_message_count"] == 6


def test_frame_before_a_login_is_small(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, Wire(("127.0.0.1", server.amqp_port)) as wire:
        wire.send(HEADER)
        wire.expect("connection.start")
        wire.send(struct.pack(">BHI", 1, 0, 20_000))
        assert "frame_too_large,20000" in wire.expect("connection.close").fields["text"]


def test_unfinished_heads_count_too(tmp_path: Path) -> None:
    options = ("--max-body-bytes", "1MiB", "--max-message-bytes", "1MiB", "--max-receiving-bytes", "2MiB")
    with Server(tmp_path / "data", *options) as server, ExitStack() as stack:
        locked(server)
        refused = 0
        for _ in range(60):
            stream = speak(server, stack)
            stream.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + (b"X: " + b"x" * 9_000 + b"\r\n") * 3)
            stream.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                refused += stream.recv(2000).startswith(b"HTTP/1.1 503")
        assert 10 < refused < 40
        assert server.connect().call("GET", "/healthz")[0] == 200


def test_what_is_broken_off_counts_no_longer(tmp_path: Path) -> None:
    post = "POST /queues/q/messages HTTP/1.1\r\nHost: x\r\n"
    begun = [
        post + "Content-Length: 90000\r\n\r\n" + "x" * 9_000,
        post + "Transfer-Encoding: chunked\r\n\r\nffff\r\n" + "x" * 9_000,
        post + "Expect: 100-continue\r\nContent-Length: 9000\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" + post + "X: " + "x" * 9_000,
        post.replace("messages", "dequeue") + "Content-Length: 20\r\n\r\n",  # its body comes apart
    ]
    with WholeNode(tmp_path) as node:
        node.new_queue("q")
        credentials = ["", "Authorization: Bearer lw_none\r\n", f"Authorization: Bearer {node.key('root')[1]}\r\n"]
        intake = node.node.intake
        for number, (data, said) in enumerate(list(product(begun, credentials)) * 10):
            with socket.create_connection(node.address("http"), timeout=10) as stream:
                stream.sendall(data.replace("Host: x\r\n", f"Host: x\r\n{said}").encode())
                if "dequeue" in data:
                    stream.sendall(b'{"wait_seconds": 20}')
                if number % 2:  # torn off, not closed
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: intake.connection_count == 0, "they are gone")
        assert intake.byte_count == 0 and intake.take(128 * MIB, is_known=False), "strangers have their whole half"


def test_who_waits_for_room_gets_it_in_turn() -> None:
    intake = Intake(most_connections=1, most_bytes=100)
    told: list[str] = []
    assert intake.take(80, is_known=True)
    assert not intake.take(30, is_known=True) and not intake.take(60, is_known=False)
    intake.take_later(150, lambda: told.append("more than there is"))
    gone = intake.take_later(10, lambda: told.append("gone"))
    intake.take_later(30, lambda: told.append("small"))
    intake.stop_waiting(gone)
    intake.give_back(50)
    assert told == [] and intake.byte_count == 30
    intake.give_back(30)
    assert told == ["more than there is"] and intake.byte_count == 150
    intake.give_back(150)
    assert told == ["more than there is", "small"] and intake.byte_count == 30
    intake.give_back(30)
    assert intake.byte_count == 0
