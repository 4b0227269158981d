"""Running a node until it is told to stop: what `laneway serve` does."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable

import msgspec
import uvloop

from laneway.config import Config
from laneway.errors import JournalAway, LanewayError
from laneway.first_admin import FirstAdmin
from laneway.logs import announce, set_up_logging
from laneway.node.doors import where_served
from laneway.node.node import Node, Seat
from laneway.node.shares import handshake_count, share
from laneway.node.storage import storage_at
from laneway.resources import descriptors

log = logging.getLogger("laneway.node")

#: The writer thread gets its turn after this long at the latest, instead of Python's 5 ms: while it waits, so do all
#: who wait for its commit. Only a thread that waits makes the other give way, so this costs nothing otherwise.
SWITCH_INTERVAL_S = 0.00005


def serve(
    config: Config, read_config: Callable[[], Config] | None = None, first_admin: FirstAdmin | None = None
) -> int:
    """Run a server until it is told to stop; the exit code of the process."""
    if config.processes > 1:
        from laneway.node.supervisor import Supervisor

        return Supervisor(config, read_config, first_admin).run()
    set_up_logging(config.log_level, config.log_format)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is a node to reload
    tune(config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, read_config, first_admin))


def tune(config: Config, process_count: int = 1) -> None:
    """Give this process the descriptors it needs, and settings of the interpreter that suit a server."""
    descriptors.raise_limit(share(config.max_connections, process_count) + handshake_count(config, process_count))
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
    announce(node.config.log_format, f"Laneway serves {where_served(node.addresses)} from {storage_at(node.config)}")
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


# --- one of several


def run_child(
    config: Config,
    read_config: Callable[[], Config] | None,
    first_admin: FirstAdmin | None,
    seat: Seat,
    control: socket.socket,
) -> int:
    """The exit code. What is said on `control` stands in supervisor.py."""
    set_up_logging(config.log_level, config.log_format, seat.process)
    tune(config, seat.process_count)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Child(config, read_config, first_admin, seat).run(control))


class _Child:
    def __init__(
        self,
        config: Config,
        read_config: Callable[[], Config] | None,
        first_admin: FirstAdmin | None,
        seat: Seat,
    ) -> None:
        self._arguments = config, read_config, first_admin, seat
        self._orders = {"listen": asyncio.Event(), "close": asyncio.Event()}
        self._stopping = asyncio.Event()

    async def run(self, control: socket.socket) -> int:
        reader, self._writer = await asyncio.open_connection(sock=control)
        hearing = asyncio.create_task(self._hear(reader))
        config, read_config, first_admin, seat = self._arguments
        try:
            node = Node(config, read_config=read_config, first_admin=first_admin, seat=seat)
            await node.open()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._stopping.set)
            self._say("open")
            is_listening = await self._until(node, self._orders["listen"])
            if is_listening:
                await node.listen()
        except JournalAway as trouble:  # which is no fault of the settings: the next start may find it
            log.critical("%s", trouble.message)
            return 1
        except LanewayError as refusal:
            said = {"message": refusal.message, "code": refusal.code, "field": refusal.field}
            self._say("refused", **said, details=refusal.details)
            await self._writer.drain()
            return 1
        loop.add_signal_handler(signal.SIGHUP, node.reloading.reload_and_log)
        node.reloading.on_reloaded(lambda done: self._say("reloaded", changed=done.changed))
        if is_listening:
            self._say("ready", addresses={name: (a.host, a.port) for name, a in node.addresses.items()})
            await self._until(node, self._stopping)
        if node.failed.is_set():
            log.critical("the journal cannot be written: see above. Nothing confirmed was lost.")
            return 1
        await node.stop_listening()
        self._say("drained")
        await self._until(node, self._orders["close"])
        await node.close()
        hearing.cancel()
        return 0

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._orders[msgspec.json.decode(line)["do"]].set()
        self._stopping.set()  # nobody is there who would say it
        self._orders["close"].set()

    async def _until(self, node: Node, event: asyncio.Event) -> bool:
        """Whether it came: not if the process is to stop, or its journal failed."""
        events = {event, node.failed} if event is self._orders["close"] else {event, self._stopping, node.failed}
        waits = [asyncio.ensure_future(each.wait()) for each in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return event.is_set()

    def _say(self, state: str, **said: object) -> None:
        self._writer.write(msgspec.json.encode({"is": state, **said}) + b"\n")
