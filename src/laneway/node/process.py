"""Running a node until it is told to stop: what `laneway serve` does."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable

import uvloop

from laneway.config import Config
from laneway.first_admin import FirstAdmin
from laneway.logs import announce, set_up_logging
from laneway.node.doors import where_served
from laneway.node.node import Node
from laneway.node.shares import handshake_count
from laneway.resources import descriptors

log = logging.getLogger("laneway.node")

#: The writer thread gets its turn after this long at the latest, instead of Python's 5 ms: while it waits, so do all
#: who wait for its commit. Only a thread that waits makes the other give way, so this costs nothing otherwise.
SWITCH_INTERVAL_S = 0.00005


def serve(
    config: Config, read_config: Callable[[], Config] | None = None, first_admin: FirstAdmin | None = None
) -> int:
    """Run a server until it is told to stop; the exit code of the process."""
    set_up_logging(config.log_level, config.log_format)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a node to reload
    descriptors.raise_limit(config.max_connections + handshake_count(config))
    tune()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, read_config, first_admin))


def tune() -> None:
    """What suits a server in the interpreter's own settings."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(100_000, 50, 100)


async def _serve(config: Config, read_config: Callable[[], Config] | None, first_admin: FirstAdmin | None) -> int:
    node = Node(config, read_config=read_config, first_admin=first_admin)
    await node.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, node.reloading.reload_and_log)
    announce(node.config.log_format, f"Laneway serves {where_served(node.addresses)} from {node.config.data}")
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(node.failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if node.failed.is_set():
        log.critical("the journal cannot be written: see above. Nothing confirmed was lost.")
        return 1
    log.info("stopping")
    await node.stop()
    return 0
