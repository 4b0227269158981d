"""A real server in a process of its own, on a free port and a temporary folder."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

START_SECONDS = 30


class Server:
    """`laneway serve` in a process. `url` is where it says it listens."""

    def __init__(self, data: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
        self.data = data
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "laneway", "serve", "--data", str(data)),
                *("--http", "127.0.0.1:0", "--amqp", "127.0.0.1:0"),
                *flags,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**inherited, **(env or {})},
            cwd=data.parent,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.output = ""
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.url = self._wait_for_url()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _wait_for_url(self) -> str:
        while True:
            line = self._lines.get(timeout=START_SECONDS)
            if line is None:
                raise RuntimeError(f"the server ended before it served:\n{self.output}")
            self.output += line
            found = re.search(r"serves (http://\S+)", line)
            if found:
                return found[1]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=30)
        while (line := self._lines.get(timeout=10)) is not None:
            self.output += line
        return code


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts servers that end with the test; the folder is the test's own unless another is given."""
    started: list[Server] = []

    def start(*flags: str, data: Path | None = None, env: dict[str, str] | None = None) -> Server:
        server = Server(data or tmp_path / "data", *flags, env=env)
        started.append(server)
        return server

    yield start
    for server in started:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a module that do not change who may use it."""
    running = Server(tmp_path_factory.mktemp("server") / "data")
    yield running
    assert running.stop() == 0, running.output
