"""A leader in a process of its own: `python -m tests.cluster.leading_process FOLDER ADDRESS`, its secret in the
environment. It says "ready" and serves until its standard input ends."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from laneway.broker.clock import Clock
from laneway.broker.engine import Engine
from laneway.broker.local import LocalBroker
from laneway.broker.partition import Partition
from laneway.cluster.serving import PartitionServer
from laneway.journal.segments.journal import SegmentJournal

NOW_MS = 1_800_000_000_000


async def lead(folder: Path, address: str) -> None:
    partition = Partition(Engine(SegmentJournal(folder), new_tag=lambda: 7), clock=Clock.steady(lambda: NOW_MS))
    await partition.start()
    server = PartitionServer(LocalBroker(partition), secret=os.environ.get("SECRET", "").encode(), beat_s=0.1)
    await server.start(address)
    print("ready", "" if "/" in address else server.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await partition.stop()


if __name__ == "__main__":
    asyncio.run(lead(Path(sys.argv[1]), sys.argv[2]))
