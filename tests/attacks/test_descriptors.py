"""File descriptors run out: connections are turned away, and what is promised is still written."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from laneway.errors import OutOfDescriptors
from laneway.journal.history.files import RealFiles
from tests.crash.server import Server, eventually

SMALL = 256  # descriptors; with 1,024 the same takes four times as long
BODY = "x" * 65_536


def limited(soft: int, hard: int) -> list[str]:
    """Run what follows with so many descriptors."""
    return ["sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh"]


@pytest.fixture(autouse=True)
def enough_for_the_test() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def idle(stack: ExitStack, port: int, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    made = []
    for _ in range(count):
        made.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
    return made


def descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def segments(server: Server) -> int:
    return len([name for name in os.listdir(server.folder) if name.endswith(".segment")])


def test_idle_connections_do_not_stop_the_journal(tmp_path: Path) -> None:
    """Segments are rolled, history is read and snapshots are saved while strangers hold all that can be held."""
    options = ("--segment-bytes", "1MiB", "--snapshot-events", "1000")
    with Server(tmp_path / "data", *options, before=limited(SMALL, SMALL)) as server, ExitStack() as stack:
        publisher = server.connect()
        publisher.must(201, "PUT", "/queues/q", {})
        before = segments(server)
        idle(stack, server.port, SMALL)
        idle(stack, server.amqp_port, SMALL)
        sent = 0
        while segments(server) < before + 5:
            publisher.must(201, "POST", "/queues/q/messages", {"payload": BODY})
            sent += 1
            assert sent < 500, "the segment never rolls"
        assert publisher.must(200, "GET", "/queues/q/stats")["approximate_message_count"] == sent
        assert descriptors(server) < SMALL
        stack.close()
        eventually("a new connection is served", lambda: server.connect().call("GET", "/healthz")[0] == 200)
        assert server.stop() == 0


def test_connections_that_come_all_at_once_do_not_stop_the_journal(tmp_path: Path) -> None:
    """More than there are descriptors, and the server accepts them in one turn of its loop."""
    with Server(tmp_path / "data", "--segment-bytes", "1MiB", before=limited(SMALL, SMALL)) as server:
        publisher = server.connect()
        publisher.must(201, "PUT", "/queues/q", {})
        before, sent = segments(server), 0
        for _ in range(3):
            with ExitStack() as stack:
                os.kill(server.pid, signal.SIGSTOP)
                idle(stack, server.port, SMALL)
                idle(stack, server.amqp_port, SMALL)
                os.kill(server.pid, signal.SIGCONT)
                for _ in range(40):
                    publisher.must(201, "POST", "/queues/q/messages", {"payload": BODY})
                    sent += 1
        assert segments(server) > before + 3
        assert publisher.must(200, "GET", "/queues/q/stats")["approximate_message_count"] == sent
        assert server.stop() == 0


def test_soft_limit_is_raised_as_far_as_connections_need(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--max-connections", "500", before=limited(SMALL, 4 * SMALL)) as server:
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        assert 500 < soft <= hard == 4 * SMALL
        with ExitStack() as stack:
            idle(stack, server.port, 300)
            assert server.connect().call("GET", "/healthz")[0] == 200


def test_connections_of_all_protocols_count_together(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--max-connections", "20") as server, ExitStack() as stack:
        before = descriptors(server)
        idle(stack, server.port, 10)
        idle(stack, server.amqp_port, 10)
        eventually("all are accepted", lambda: descriptors(server) == before + 20)
        for port in (server.port, server.amqp_port):
            extra = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            extra.settimeout(10)
            told = b""
            with contextlib.suppress(ConnectionResetError):
                while more := extra.recv(1000):
                    told += more
            assert told == b"" if port == server.amqp_port else told.startswith(b"HTTP/1.1 503"), told


def test_files_are_opened_from_the_reserve_and_refill_it(tmp_path: Path) -> None:
    files = RealFiles(reserve_count=3)
    path = str(tmp_path / "a file")
    files.close(files.open(path, write=True, create=True))
    files.sync_folder(str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    strangers: list[int] = []
    opened: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                strangers.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(2):
            opened += [files.open(path) for _ in range(3)]
            with pytest.raises(OutOfDescriptors):
                files.open(path)
            files.sync_folder(str(tmp_path))  # needs none
            while opened:
                files.close(opened.pop())
            with pytest.raises(OSError, match="Too many open files"):
                os.open(path, os.O_RDONLY)  # nobody else gets what was closed
        assert files.list_folder(str(tmp_path)) == ["a file"]
    finally:
        for file in strangers:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
