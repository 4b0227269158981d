"""A real Celery worker in a process of its own, for as long as a block lasts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tests.amqp_clients.servers import end
from tests.amqp_clients.speaking import eventually

ROOT = Path(__file__).parent.parent
WAIT_S = 30


@contextmanager
def worker(application: ModuleType, folder: Path, options: Sequence[str]) -> Iterator[ModuleType]:
    """The application's module, once the worker is ready; its log is shown if a test fails."""
    log_path = folder / "worker.log"
    program = [sys.executable, "-m", "celery", "-A", application.__name__, "worker", "--loglevel", "INFO", *options]
    with log_path.open("wb") as log:
        process = subprocess.Popen(program, cwd=ROOT, stdout=log, stderr=log)
    try:
        eventually(
            "the worker",
            lambda: process.poll() is None and " ready." in log_path.read_text(errors="replace"),
            within_s=WAIT_S,
        )
        yield application
    except AssertionError:
        print(log_path.read_text(errors="replace")[-3000:])
        raise
    finally:
        application.app.close()
        end(process)
