"""Strangers who ask and do not take the answers hold little memory, and none for long once it is short."""

from __future__ import annotations

import contextlib
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.attacks.test_descriptors import descriptors
from tests.attacks.test_memory import locked, resident_mib
from tests.crash.server import Server, eventually

COUNT = 200
ASK = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100


def ask_and_read_nothing(server: Server, stack: ExitStack) -> None:
    for _ in range(COUNT):
        stream = socket.socket()
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stream.connect(("127.0.0.1", server.port))
        stack.enter_context(stream)
        stream.settimeout(10)
        with contextlib.suppress(OSError):
            stream.sendall(ASK)


def test_answers_that_strangers_do_not_take_are_few(tmp_path: Path) -> None:
    with Server(tmp_path / "data") as server, ExitStack() as stack:
        locked(server)
        before = resident_mib(server)
        ask_and_read_nothing(server, stack)
        assert server.connect().call("GET", "/healthz")[0] == 200
        assert resident_mib(server) - before < COUNT * 0.6  # it was 2.2 MiB each


def test_who_takes_no_answers_is_cut_off_once_memory_is_short(tmp_path: Path) -> None:
    """Long before the 60 s that it takes otherwise."""
    with Server(tmp_path / "data", "--max-memory-bytes", "50MiB") as server, ExitStack() as stack:
        locked(server)
        ask_and_read_nothing(server, stack)
        assert "memory is short" in eventually(
            "it is short", lambda: "memory is short" in server.log() and server.log()
        )
        eventually("they are cut off", lambda: descriptors(server) < 50)
