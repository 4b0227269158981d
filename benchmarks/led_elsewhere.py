"""A server whose AMQP clients are all connected to a process that leads nothing: what forwarding costs at its dearest.

`python -m benchmarks.led_elsewhere FOLDER HTTP_PORT AMQP_PORT` leads the partition, and starts the process that has the
clients, which is its child so that their CPU time is counted together.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from laneway.access import Access
from laneway.broker.documents import Documents
from laneway.broker.interface import Broker
from laneway.broker.local import LocalBroker
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.config import Address, Config
from laneway.frontends.amqp.server import AmqpServer
from laneway.node import SWITCH_INTERVAL_S, Node, wall_clock_ms

GRACE_MS = 1_000


async def until_stopped() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


async def lead(folder: str, http_port: int, amqp_port: int) -> None:
    link = f"{folder}.sock"

    async def serve(broker: LocalBroker) -> Broker:
        await PartitionServer(broker).start(link)
        return broker

    node = Node(Config(data=Path(folder), http=Address("127.0.0.1", http_port), amqp=None), wrap=serve)
    await node.start()
    edge = subprocess.Popen([sys.executable, "-m", "benchmarks.led_elsewhere", link, str(amqp_port)])
    await until_stopped()
    edge.terminate()
    edge.wait()
    await node.stop()


async def take_clients(link: str, amqp_port: int) -> None:
    broker = RemoteBroker(link, 1, wall_clock_ms)
    await broker.start()
    server = AmqpServer(broker, Access(Documents(broker), now_ms=wall_clock_ms))
    await server.start("127.0.0.1", amqp_port)
    gc.collect()
    gc.freeze()
    await until_stopped()
    await server.stop(GRACE_MS)
    await broker.stop()


def main(arguments: Sequence[str]) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(100_000, 50, 100)
    *where, port = arguments
    work = lead(where[0], int(where[1]), int(port)) if len(where) == 2 else take_clients(where[0], int(port))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
