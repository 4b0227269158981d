"""HAProxy and nginx, started with the files in deploy/: their own text, with ports, paths and the user of a test."""

from __future__ import annotations

import getpass
import grp
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Self

import httpx

from tests.certificates import Certificates
from tests.doors.tls_node import TlsNode
from tests.in_thread import wait_for

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Proxy:
    """Where it listens is in `https`, `passed_through`, `amqp`, `amqps`: ports on this machine."""

    file: str

    def __init__(self, folder: Path, node: TlsNode, certificates: Certificates) -> None:
        self.folder = folder
        self.node = node
        self.https, self.passed_through, self.amqp, self.amqps = (free_port() for _ in range(4))
        cert, key = (Path(path).read_text() for path in certificates.of("server"))
        (folder / "proxy.pem").write_text(cert + key)
        (folder / "proxy.key").write_text(key)
        self._process: subprocess.Popen[bytes] | None = None

    def replacements(self) -> dict[str, str]:
        upstream = {8080: "http", 8444: "https", 5673: "amqp"}
        return {
            "/etc/laneway/": f"{self.folder}/",
            **{f"127.0.0.1:{port}": f"127.0.0.1:{self.node.address(name)[1]}" for port, name in upstream.items()},
        }

    def command(self, config: Path) -> list[str]:
        raise NotImplementedError

    def written(self) -> Path:
        text = (DEPLOY / self.file).read_text()
        for old, new in self.replacements().items():
            assert old in text, f"{self.file} has no {old!r}: the test must know what it starts"
            text = text.replace(old, new)
        config = self.folder / self.file
        config.write_text(text)
        return config

    @property
    def url(self) -> str:
        return f"https://localhost:{self.https}"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def __enter__(self) -> Self:
        command = self.command(self.written())
        assert shutil.which(command[0]), f"{command[0]} is missing: tools/services.sh test installs it"
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(self._is_up, f"{self.file} serves; it said {self.log()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _is_up(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log()
        try:
            with httpx.Client(verify=False) as client:
                return client.get(f"{self.url}/readyz/consume").status_code == 200
        except httpx.TransportError:
            return False

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class HaProxy(Proxy):
    file = "haproxy.cfg"

    def replacements(self) -> dict[str, str]:
        return {
            "user haproxy": f"user {getpass.getuser()}",
            "group haproxy": f"group {grp.getgrgid(os.getgid()).gr_name}",
            "maxconn 20000": "maxconn 500",
            "bind :443 ": f"bind 127.0.0.1:{self.https} ",
            "bind :8443": f"bind 127.0.0.1:{self.passed_through}",
            "bind :5672": f"bind 127.0.0.1:{self.amqp}",
            "bind :5671": f"bind 127.0.0.1:{self.amqps}",
            " port 8080": f" port {self.node.address('http')[1]}",
            **super().replacements(),
        }

    def command(self, config: Path) -> list[str]:
        return ["haproxy", "-db", "-f", str(config)]


class Nginx(Proxy):
    file = "nginx.conf"

    def replacements(self) -> dict[str, str]:
        return {
            "user www-data;": f"user {getpass.getuser()};",
            "worker_processes auto": "worker_processes 1",
            "worker_rlimit_nofile 65536": "worker_rlimit_nofile 1024",
            "worker_connections 16384": "worker_connections 256",
            "/run/nginx.pid": f"{self.folder}/nginx.pid",
            "/var/log/nginx/error.log": f"{self.folder}/error.log",
            "listen 443 ": f"listen 127.0.0.1:{self.https} ",
            "listen 8443;": f"listen 127.0.0.1:{self.passed_through};",
            "listen 5672;": f"listen 127.0.0.1:{self.amqp};",
            "listen 5671 ": f"listen 127.0.0.1:{self.amqps} ",
            **super().replacements(),
        }

    def command(self, config: Path) -> list[str]:
        return ["nginx", "-g", "daemon off;", "-e", f"{self.folder}/error.log", "-c", str(config)]

    def log(self) -> str:
        error = self.folder / "error.log"
        return super().log() + (error.read_text(errors="replace") if error.exists() else "")
