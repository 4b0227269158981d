"""Celery's monitor flower shows the broker's queues through the management API."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery
import pytest

from tests.amqp_clients.servers import Laneway, RabbitMQ, end, free_port, url

from .speaking import WAIT_S, Api, eventually

PAGE = Path(__file__).parents[2] / "docs" / "management-api.md"


@pytest.fixture
def flower(server: Laneway | RabbitMQ, tmp_path: Path) -> Iterator[int]:
    """The port of a flower that looks at the server."""
    port = free_port()
    told = re.search(r"^\$ (celery .* flower .*)$", PAGE.read_text(), re.MULTILINE)
    assert told is not None
    command = told[1].replace("amqp://guest:guest@localhost:5672//", url(server))
    command = command.replace("localhost:15672", f"127.0.0.1:{server.management_port}")
    options = [f"--port={port}", "--address=127.0.0.1", "--enable-events=false", "--inspect-timeout=100"]
    environment = {"PATH": "/usr/bin:/bin", "FLOWER_UNAUTHENTICATED_API": "true", "HOME": str(tmp_path)}
    with (tmp_path / "flower.log").open("wb") as log:
        program = [sys.executable, "-m", *command.split(), *options]
        process = subprocess.Popen(program, cwd=tmp_path, env=environment, stdout=log, stderr=log)
    try:
        yield port
    finally:
        end(process)


def read(port: int, path: str) -> bytes:
    """Once flower serves."""
    deadline_s = time.monotonic() + WAIT_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return bytes(answer.read())
        except urllib.error.URLError as error:
            assert time.monotonic() < deadline_s, error
            time.sleep(0.1)


def test_flower_shows_how_much_waits(server: Laneway | RabbitMQ, api: Api, flower: int) -> None:
    application = celery.Celery(broker=url(server))
    for number in range(3):
        application.send_task("add", (number, 1))

    def length() -> Any:
        queues = json.loads(read(flower, "/api/queues/length"))["active_queues"]
        return next((queue for queue in queues if queue["name"] == "celery"), {})

    eventually(lambda: length().get("messages"), 3)
    page = read(flower, "/broker").decode()
    row = page[page.index(">celery<") :]
    assert "3" in row[: row.index("</tr>")]
    assert api("DELETE", "/queues/%2F/celery").status == 204
