"""How tests speak to the management API: plain requests, and rabbitmqadmin as Debian ships it."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: Debian's rabbitmq-server has the program twice: as it is, and to be downloaded from the server.
_PLACES = [
    Path("/usr/bin/rabbitmqadmin"),
    *Path("/usr/lib/rabbitmq/lib").glob("*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"),
]


WAIT_S = 30.0


class Told(NamedTuple):
    status: int
    json: Any
    headers: Mapping[str, str]


class Api:
    def __init__(self, port: int, user: str = "guest", password: str | None = None) -> None:
        self.root = f"http://127.0.0.1:{port}/api"
        self._port = port
        self._auth = base64.b64encode(f"{user}:{user if password is None else password}".encode()).decode()

    def as_(self, user: str, password: str | None = None) -> Api:
        return Api(self._port, user, password)

    def __call__(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> Told:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Basic {self._auth}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.root + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return _told(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return _told(error.code, error.read(), error.headers)

    def get(self, path: str) -> Any:
        told = self("GET", path)
        assert told.status == 200, told
        return told.json


def _told(status: int, body: bytes, headers: Mapping[str, str]) -> Told:
    return Told(status, json.loads(body) if body else None, headers)


def eventually(look: Callable[[], Any], wanted: Any) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while (seen := look()) != wanted:
        assert time.monotonic() < deadline_s, f"{seen} never became {wanted}"
        time.sleep(0.05)


def rabbitmqadmin(port: int, *words: str) -> str:
    place = next((path for path in _PLACES if path.exists()), None) or shutil.which("rabbitmqadmin")
    assert place, "rabbitmqadmin is not there: tools/services.sh test installs it with Debian's rabbitmq-server"
    command = [sys.executable, str(place), "--host=127.0.0.1", f"--port={port}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout} {done.stderr}"
    return done.stdout
