"""What all connections of one server have in common."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

from laneway.access import Access, TrustedProxies
from laneway.broker.arguments import Version
from laneway.broker.interface import Broker
from laneway.frontends.amqp.delivering import Wheres
from laneway.frontends.amqp.limits import AmqpLimits
from laneway.frontends.amqp.publishing import Destinations
from laneway.frontends.doors.directory import LocalDirectory
from laneway.resources.intake import Intake
from laneway.telemetry.floods import FloodLog
from laneway.telemetry.meter import ErrorCounts

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel
    from laneway.frontends.amqp.connection import AmqpConnection
    from laneway.frontends.amqp.replies import ReplyPost

log = logging.getLogger("laneway.amqp")

#: Some libraries choose their behaviour by product and version: kombu, and with it Celery, asks for a prefetch of the
#: whole channel only if this says RabbitMQ, and would otherwise wait for a meaning that RabbitMQ never had.
PRODUCT = "RabbitMQ"
_ANNOUNCED: dict[Version, str] = {"3.10": "3.10.8", "4.0": "4.0.0"}
PLATFORM = f"Laneway {version_of('laneway')}"  # looked up once: it takes longer than the rest of a handshake

#: By the state of the node, what clients are told, as RabbitMQ tells it.
LOW_ON = {"disk_full": "low on disk", "memory_low": "low on memory"}


class AmqpShared:
    def __init__(
        self,
        broker: Broker,
        access: Access,
        limits: AmqpLimits,
        intake: Intake,
        random_name: Callable[[], str],
        proxies: TrustedProxies,
        floods: FloodLog,
        directory: LocalDirectory,
        version: Version = "4.0",
        errors: ErrorCounts | None = None,
        reply_post: ReplyPost | None = None,
    ) -> None:
        self.errors = errors or ErrorCounts()
        self.broker = broker
        self.access = access
        self.limits = limits
        self.version = version
        self.intake = intake
        self.proxies = proxies
        self.floods = floods
        self.now_s = time.monotonic
        self.directory = directory
        self.random_name = random_name  # for queues, consumers and replies that nobody named
        self.connections: set[AmqpConnection] = set()
        self.destinations = Destinations(limits.remembered_destinations)
        self.wheres: Wheres = {}
        self.reply_channels: dict[str, Channel] = {}  # by the name their replies are published to
        self.reply_post = reply_post  # where a server has several processes
        self.is_stopping = False
        self.blocked_by = ""  # what is low: publishers wait
        self.on_connection: Callable[[], None] = lambda: None
        self.on_empty: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def server_properties(self) -> dict[str, Any]:
        return {
            "capabilities": {
                "publisher_confirms": True,
                "exchange_exchange_bindings": True,
                "basic.nack": True,
                "consumer_cancel_notify": True,
                "connection.blocked": True,
                "consumer_priorities": True,
                "authentication_failure_close": True,
                "per_consumer_qos": True,
                "direct_reply_to": True,
            },
            "cluster_name": "laneway",
            "copyright": "",
            "information": f"{PLATFORM}, which speaks AMQP 0-9-1 as RabbitMQ does",
            "platform": PLATFORM,
            "product": PRODUCT,
            "version": _ANNOUNCED[self.version],
        }
