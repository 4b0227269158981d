"""One node: the only place that names concrete parts and puts them together."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import secrets
import signal
import sys
import time
from typing import Any

import uvloop

from laneway.access import Access
from laneway.broker.broker import Broker, BrokerLimits
from laneway.broker.engine import Engine
from laneway.config import Config
from laneway.errors import ConfigInvalid, StartError
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.server import RestServer
from laneway.journal.segments.journal import SegmentJournal

log = logging.getLogger("laneway.node")

#: The writer thread gets its turn after this long at the latest, instead of Python's 5 ms.
SWITCH_INTERVAL_S = 0.0005


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Node:
    """A broker on a folder with its front ends. `async with Node(config) as node:` for tests and embedding."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.failed: asyncio.Event = asyncio.Event()
        try:
            journal = SegmentJournal(
                config.data,
                durability=config.durability,
                interval_ms=config.sync_interval_ms,
                segment_bytes=config.segment_bytes,
            )
        except OSError as trouble:
            raise StartError(f"cannot use the data folder {config.data}: {trouble}; use --data FOLDER") from None
        engine = Engine(journal, new_tag=lambda: 1 + secrets.randbelow((1 << 26) - 1))
        self.broker = Broker(
            engine,
            now_ms=wall_clock_ms,
            limits=BrokerLimits(
                max_queues=config.max_queues,
                max_message_bytes=config.max_message_bytes,
                max_idempotency_keys=config.idempotency_keys_max,
                snapshot_events=config.snapshot_events,
            ),
            on_failed=lambda _: self.failed.set(),
            idle_ms=config.sync_interval_ms if config.durability == "interval" else 20,
        )
        self.access: Access | None = None
        self.rest: RestServer | None = None
        self.http_address: tuple[str, int] | None = None

    async def start(self) -> None:
        started_s = time.monotonic()
        recovery = await self.broker.start()
        log.info(
            "recovered %s in %.1f s: snapshot at commit %d, %d events of messages after it, epoch %d",
            self.config.data,
            time.monotonic() - started_s,
            recovery.snapshot_position,
            recovery.event_count,
            recovery.epoch,
        )
        self.access = Access(self.broker, now_ms=wall_clock_ms)
        self._refuse_open_doors(self.access)
        self.rest = RestServer(self.broker, self.access, self._rest_limits())
        try:
            self.http_address = await self.rest.start(self.config.http.host, self.config.http.port)
        except OSError as trouble:
            raise StartError(f"cannot listen on {self.config.http}: {trouble}; use --http HOST:PORT") from None
        # What recovery built stays: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()

    def _refuse_open_doors(self, access: Access) -> None:
        if access.guest_only and not self.config.http.is_loopback:
            raise ConfigInvalid(
                f"http is {self.config.http}, which others can reach, but the only account is guest, whose password "
                "everybody knows. Start on loopback, create an account (`laneway account create NAME --role admin`), "
                "then listen beyond it",
                field="http",
            )

    def _rest_limits(self) -> RestLimits:
        c = self.config
        return RestLimits(
            body_bytes=c.max_body_bytes,
            head_bytes=c.max_header_bytes,
            header_count=c.max_header_count,
            connection_count=c.max_connections,
            idle_timeout_ms=int(c.idle_timeout_seconds * 1000),
            receive_timeout_ms=int(c.request_timeout_seconds * 1000),
        )

    async def stop(self) -> None:
        if self.rest is not None:
            await self.rest.stop(int(self.config.shutdown_grace_seconds * 1000))
        await self.broker.stop()

    async def __aenter__(self) -> Node:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def serve(config: Config) -> int:
    """Run a node until it is told to stop; the exit code of the process."""
    _set_up_logging(config)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(100_000, 50, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: Config) -> int:
    node = Node(config)
    await node.start()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = node.http_address or ("", 0)
    print(f"Laneway serves http://{'[' + host + ']' if ':' in host else host}:{port} from {config.data}", flush=True)
    waits = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(node.failed.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if node.failed.is_set():
        print("laneway: the journal cannot be written; see the log. Nothing confirmed was lost.", file=sys.stderr)
        return 1
    log.info("stopping")
    await node.stop()
    return 0


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _set_up_logging(config: Config) -> None:
    handler = logging.StreamHandler()
    if config.log_format == "json":
        handler.setFormatter(_JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
