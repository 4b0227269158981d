"""The two servers that these tests can speak to, each a real process in a temporary folder with free ports.

Laneway is what is tested. RabbitMQ is the oracle: with LANEWAY_TEST_PEER=rabbitmq the very same tests run against it,
which shows that they ask for what RabbitMQ does and not for what we believe it does.

Both are given the same inhabitants:
    guest/guest        may do everything in "/"
    limited/limited    may touch only names that begin with "limited." in "/"
    vhost "other"      where guest may do everything and limited nothing
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pika

from tests.wire_serve import server_module, server_options

ROOT = Path(__file__).parents[2]
START_S = 60.0
STOP_S = 30.0

#: Large enough for the message of several frames that the tests send.
MAX_MESSAGE_BYTES = 4 * 1024 * 1024


class Broker(Protocol):
    name: str
    port: int

    def start(self) -> None: ...
    def stop(self) -> None: ...


def url(broker: Broker, user: str = "guest", vhost: str = "/") -> str:
    """Every account's password is its name."""
    return f"amqp://{user}:{user}@127.0.0.1:{broker.port}/{quote(vhost, safe='')}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Laneway:
    name = "laneway"

    def __init__(self, folder: Path, *options: str) -> None:
        self._options = options
        self.port = 0
        self.http_port = 0
        self.management_port = 0
        self._folder = folder
        self._log = folder / "laneway.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._is_new = True

    def start(self) -> None:
        """Return once it serves; a second start finds what the first one left."""
        options = ("--http", "127.0.0.1:0", "--management", "127.0.0.1:0", "--amqp", "127.0.0.1:0")
        options += ("--max-message-bytes", str(MAX_MESSAGE_BYTES), *self._options, *server_options())
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", server_module(), "serve", "--data", str(self._folder / "data"), *options],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        said = self._read_until_it_serves()
        self.http_port = int(re.search(r"http://127\.0\.0\.1:(\d+)", said)[1])  # type: ignore[index]
        self.management_port = int(re.search(r"management://127\.0\.0\.1:(\d+)", said)[1])  # type: ignore[index]
        self.port = int(re.search(r"amqp://127\.0\.0\.1:(\d+)", said)[1])  # type: ignore[index]
        if self._is_new:
            self._settle_in()
            self._is_new = False

    def _read_until_it_serves(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        said = ""
        deadline_s = time.monotonic() + START_S
        while not ("http://" in said and "amqp://" in said):
            left_s = deadline_s - time.monotonic()
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, left_s))
            line = self._process.stdout.readline().decode() if readable else ""
            if not line:
                self.stop()
                raise AssertionError(f"the server did not start, it said {said!r} and\n{self._log.read_text()[-2000:]}")
            said += line
        return said

    def _settle_in(self) -> None:
        permissions = [{"queue": "limited.*", "vhost": "/", "read": True, "write": True, "configure": True}]
        self._call("PUT", "/vhosts/other", {})
        self._call("PUT", "/accounts/limited", {"password": "limited", "permissions": permissions})

    def _call(self, method: str, path: str, body: Any) -> None:
        headers = {"Content-Type": "application/json", "Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        address = f"http://127.0.0.1:{self.http_port}{path}"
        request = urllib.request.Request(address, json.dumps(body).encode(), headers, method=method)
        with urllib.request.urlopen(request, timeout=10):
            pass

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            end(process)


class RabbitMQ:
    """Debian's rabbitmq-server, without its system service: own folders, ports, cookie and epmd."""

    name = "rabbitmq"
    _PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

    def __init__(self, folder: Path, *, has_management: bool = False) -> None:
        self.management_port = free_port() if has_management else 0
        assert self._PROGRAM.exists(), "LANEWAY_TEST_PEER=rabbitmq needs Debian's rabbitmq-server"
        self.port = free_port()
        self._folder = folder
        self._epmd_port = str(free_port())
        self._dist_port = str(free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        folder = self._folder
        has_port = self.management_port > 0
        (folder / "definitions.json").write_text(json.dumps(_DEFINITIONS))
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\nload_definitions = {folder / 'definitions.json'}\n"
            + (f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {self.management_port}\n" * has_port)
        )
        (folder / "env.conf").touch()
        (folder / "plugins").write_text("[rabbitmq_management]." if self.management_port else "[].")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"peer{self.port}@localhost",
            "RABBITMQ_DIST_PORT": self._dist_port,
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        }
        with (folder / "console.log").open("ab") as log:
            self._process = subprocess.Popen([str(self._PROGRAM)], env=environment, cwd=folder, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S
        while not self._serves():
            assert self._process.poll() is None, (folder / "console.log").read_text()[-2000:]
            assert time.monotonic() < deadline_s, "RabbitMQ does not start"
            time.sleep(0.1)

    def _serves(self) -> bool:
        try:
            pika.BlockingConnection(pika.URLParameters(url(self, vhost="other"))).close()
        except (pika.exceptions.AMQPError, OSError):
            return False
        return True

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            end(process)
        epmd = shutil.which("epmd")
        if epmd is not None:
            subprocess.run([epmd, "-port", self._epmd_port, "-kill"], capture_output=True, timeout=10)


_DEFINITIONS: dict[str, Any] = {
    "vhosts": [{"name": "/"}, {"name": "other"}],
    "users": [
        {"name": "guest", "password": "guest", "tags": "administrator"},
        {"name": "limited", "password": "limited", "tags": ""},
    ],
    "permissions": [
        {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"},
        {"user": "guest", "vhost": "other", "configure": ".*", "write": ".*", "read": ".*"},
        *({"user": "limited", "vhost": "/", "configure": own, "write": own, "read": own} for own in [r"^limited\."]),
    ],
    "topic_permissions": [],
    "parameters": [],
    "global_parameters": [],
    "policies": [],
    "queues": [],
    "exchanges": [],
    "bindings": [],
}


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def start_one(folder: Path) -> Broker:
    peer = os.environ.get("LANEWAY_TEST_PEER", "laneway")
    kinds: dict[str, type[Laneway] | type[RabbitMQ]] = {"laneway": Laneway, "rabbitmq": RabbitMQ}
    assert peer in kinds, f"LANEWAY_TEST_PEER is {peer!r}; it can be one of {', '.join(kinds)}"
    broker = kinds[peer](folder)
    broker.start()
    return broker
