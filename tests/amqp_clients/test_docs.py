"""Every example of docs/clients.md does what is printed below it, except the one in Java."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .servers import end
from .speaking import eventually

DOCS = Path(__file__).parent.parent.parent / "docs" / "clients.md"
ADDRESS = "amqp://guest:guest@127.0.0.1:5672/%2F"

SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL))


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)


def run(program: list[str], folder: Path, **environment: str) -> str:
    found = subprocess.run(
        program, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("section", ["pika", "aio-pika", "kombu"])
def test_python_example(section: str, broker_url: str, tmp_path: Path) -> None:
    [program] = blocks(section, "python")
    [output] = blocks(section, "text")
    assert ADDRESS in program
    assert run([sys.executable, "-c", program.replace(ADDRESS, broker_url)], tmp_path) == output


def test_celery_example(broker_url: str, tmp_path: Path) -> None:
    tasks, caller = blocks("Celery", "python")
    [command] = blocks("Celery", "console")
    [output] = blocks("Celery", "text")
    assert ADDRESS in tasks
    (tmp_path / "tasks.py").write_text(tasks.replace(ADDRESS, broker_url))
    with worker(command.removeprefix("$ ").strip(), tmp_path):
        assert run([sys.executable, "-c", caller], tmp_path) == output


@contextmanager
def worker(command: str, folder: Path) -> Iterator[None]:
    log_path = folder / "worker.log"
    with log_path.open("wb") as log:
        program = [sys.executable, "-m", *shlex.split(command), "--concurrency", "1", "--loglevel", "INFO"]
        process = subprocess.Popen(program, cwd=folder, stdout=log, stderr=log)
    try:
        eventually("the worker", lambda: " ready." in log_path.read_text(errors="replace"), within_s=30)
        yield
    finally:
        end(process)


def test_node_example(amqplib: Path, broker_url: str, tmp_path: Path) -> None:
    [program] = blocks("amqplib (Node.js)", "js")
    [output] = blocks("amqplib (Node.js)", "text")
    assert ADDRESS in program
    environment = {"NODE_PATH": str(amqplib / "node_modules")}
    assert run(["node", "-e", program.replace(ADDRESS, broker_url)], tmp_path, **environment) == output
