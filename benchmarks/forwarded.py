"""A server of two processes on one loop: clients are connected to the first, their queues lie in the partition of the
second, and a socket is between them. So counts.py sees what both do for a message."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from laneway.broker.interface import Broker
from laneway.broker.local import LocalBroker
from laneway.cluster.edge import Edge
from laneway.cluster.following import FollowedTopology, image_of
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.core.partitions import home

PARTITIONS = 2

OpenPartition = Callable[[int, FollowedTopology], Awaitable[LocalBroker]]


def name_elsewhere(stem: str) -> str:
    """The name of a queue of the default virtual host that lies in the other process."""
    return name_at(1, PARTITIONS, stem)


def name_at(partition: int, partition_count: int, stem: str, end: str = "") -> str:
    """The name of a queue of the default virtual host that lies there."""
    names = (f"{stem}-{number}{end}" for number in count())
    return next(name for name in names if home("/", name, partition_count) == partition)


@asynccontextmanager
async def forwarding(open_partition: OpenPartition) -> AsyncIterator[Broker]:
    """The broker of the first process."""
    model = FollowedTopology(PARTITIONS)  # of the first process; the commands of the other one ask it as well
    own, other = [await open_partition(number, model) for number in range(PARTITIONS)]
    model.feeds[0].begin(image_of(own.model))
    own.follow(model.feeds[0].apply)
    with tempfile.TemporaryDirectory(prefix="laneway-") as sockets:
        server = PartitionServer(other)
        await server.start(str(Path(sockets) / "1"))
        remote = RemoteBroker(str(Path(sockets) / "1"), 0, lambda: time.time_ns() // 1_000_000, model.feeds[1])
        await remote.start()
        yield Edge([own, remote], model, limits=own.limits, led=[0])
        await remote.stop()
        await server.stop()
