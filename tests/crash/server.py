"""A real server process on a folder, started, stopped and killed at will, and a plain HTTP connection to it."""

from __future__ import annotations

import base64
import http.client
import json
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 30.0
STOP_S = 30.0

#: Everything that can go wrong on a connection whose server is being killed.
BROKEN = (OSError, http.client.HTTPException, json.JSONDecodeError)


class Server:
    """`before` is put in front of the command, for instance to run it in a mount namespace of its own; `program` is
    what Python runs."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        before: Sequence[str] = (),
        program: Sequence[str] = ("-m", "laneway"),
        log: Path | None = None,
    ) -> None:
        self.folder = folder
        self.port = self.amqp_port = 0
        self.first_line = ""
        self._command = [
            *before,
            *(sys.executable, *program, "serve", "--data", str(folder), "--http", "127.0.0.1:0"),
            *("--amqp", "127.0.0.1:0"),
            *options,
        ]
        self._log = log or folder.with_name(f"{folder.name}.log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once it serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=log)
        self.first_line = line = self._first_line()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            self.kill()
            raise AssertionError(f"the server did not start, it said {line!r} and\n{self.log()[-2000:]}")
        self.port = int(found[1])
        amqp = re.search(r"amqp://127\.0\.0\.1:(\d+)", line)
        self.amqp_port = int(amqp[1]) if amqp is not None else 0

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_S)
        return self._process.stdout.readline().decode() if readable else ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        finally:
            process.kill()
            assert process.stdout is not None
            process.stdout.close()
            process.wait()

    def connect(self, timeout_s: float = 20.0, *, user: str = "", password: str = "") -> Connection:
        return Connection(self.port, timeout_s, user=user, password=password)

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int, timeout_s: float, *, user: str = "", password: str = "") -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        self._headers = {"Content-Type": "application/json"}
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, decoded answer)"""
        self.send(method, path, body)
        return self.answer()

    def send(self, method: str, path: str, body: Any = None) -> None:
        self._http.request(method, path, None if body is None else json.dumps(body), self._headers)

    def answer(self) -> tuple[int, Any]:
        """To what was sent."""
        response = self._http.getresponse()
        data = response.read()
        return response.status, json.loads(data) if data else None

    def must(self, status: int, method: str, path: str, body: Any = None) -> Any:
        got, answer = self.call(method, path, body)
        assert got == status, f"{method} {path}: {got} instead of {status}: {answer}"
        return answer

    @property
    def local_port(self) -> int:
        assert self._http.sock is not None
        return int(self._http.sock.getsockname()[1])

    def close(self) -> None:
        self._http.close()


def eventually(what: str, check: Any, *, within_s: float = 20.0) -> Any:
    """The first true thing check() returns, asked again and again until then."""
    deadline_s = time.monotonic() + within_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < deadline_s, f"{what}: not within {within_s:g} s"
        time.sleep(0.05)
