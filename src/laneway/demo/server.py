"""A server of the demo's own, in a process of its own: on loopback, at a free port, on a folder given."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

START_S = 60.0
STOP_S = 30.0


class ServerFailed(Exception):
    """The server did not start; its log says why."""


class OwnServer:
    """`laneway serve` for as long as the `with` statement lasts. What it says goes to a file."""

    def __init__(self, data: Path, log: Path, *flags: str) -> None:
        self.data = data
        self.log = log
        self.url = ""
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> OwnServer:
        # Settings meant for another server have nothing to say about this one, and Ctrl-C is for the demo alone, which
        # then stops the server when it is done with it.
        env = {name: value for name, value in os.environ.items() if not name.startswith("LANEWAY_")}
        with open(self.log, "wb") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "laneway", "serve", "--data", str(self.data)),
                    *("--http", "127.0.0.1:0", "--amqp", "off", *self._flags),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=env,
                cwd=self.log.parent,
                start_new_session=True,
            )
        try:
            self.url = self._wait_for_url(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait_for_url(self, process: subprocess.Popen[bytes]) -> str:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            has_ended = process.poll() is not None
            said = self.log.read_text(errors="replace")
            found = re.search(r"serves (http://\S+)", said)
            if found:
                return found[1]
            if has_ended:
                last = said.strip().splitlines()[-1:] or ["it said nothing"]
                raise ServerFailed(f"the demo's server did not start: {last[0].removeprefix('laneway: ')}")
            time.sleep(0.05)
        raise ServerFailed(f"the demo's server did not start within {START_S:.0f} s; see {self.log}")

    def stop(self) -> None:
        """Let it finish; a server that does not is ended."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None
