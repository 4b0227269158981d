"""What Spark's JVM writes on stderr, kept away from who runs a command: what counts comes back as an error anyway."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

KEPT_BYTES = 16 << 10


class Noise:
    """The end of all that was written."""

    def __init__(self) -> None:
        self._bytes = b""

    def drain(self, end: int) -> None:
        with os.fdopen(end, "rb", buffering=0) as pipe:
            while part := pipe.read(KEPT_BYTES):
                self._bytes = (self._bytes + part)[-KEPT_BYTES:]

    def last_line(self) -> str:
        lines = [line.strip() for line in self._bytes.decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")


@contextmanager
def keeping_quiet() -> Iterator[Noise]:
    """Processes that are started inside write into a pipe for as long as they live, and not on our stderr."""
    noise = Noise()
    read_end, write_end = os.pipe()
    ours = os.dup(2)
    threading.Thread(target=noise.drain, args=(read_end,), daemon=True).start()
    sys.stderr.flush()
    os.dup2(write_end, 2)
    os.close(write_end)
    try:
        yield noise
    finally:
        sys.stderr.flush()
        os.dup2(ours, 2)
        os.close(ours)
