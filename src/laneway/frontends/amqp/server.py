"""The AMQP server: listens, counts the time of all connections, notices what is low, stops in good order."""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial

from laneway.access import Access, TrustedProxies
from laneway.broker.arguments import Version
from laneway.broker.interface import Broker
from laneway.frontends.amqp.connection import AmqpConnection
from laneway.frontends.amqp.limits import AmqpLimits
from laneway.frontends.amqp.replies import ReplyPost, deliver_here
from laneway.frontends.amqp.shared import LOW_ON, AmqpShared
from laneway.frontends.doors.directory import LocalDirectory
from laneway.frontends.doors.door import Door
from laneway.frontends.doors.listening import Listeners
from laneway.resources.intake import Intake
from laneway.telemetry.floods import FloodLog
from laneway.telemetry.meter import ErrorCounts

log = logging.getLogger("laneway.amqp")

_LONGEST_SWEEP_MS = 500
_SWEEPS_A_TIMEOUT = 4  # so that a time limit is kept to a quarter of itself


class AmqpServer:
    def __init__(
        self,
        broker: Broker,
        access: Access,
        limits: AmqpLimits | None = None,
        *,
        version: Version = "4.0",
        intake: Intake | None = None,
        floods: FloodLog | None = None,
        proxies: TrustedProxies | None = None,
        directory: LocalDirectory | None = None,
        errors: ErrorCounts | None = None,
        reply_post: ReplyPost | None = None,
    ) -> None:
        self._broker = broker
        limits = limits or AmqpLimits()
        shortest_ms = min(limits.handshake_ms, limits.closing_ms, limits.linger_ms, limits.send_timeout_ms)
        self._sweep_ms = max(10, min(_LONGEST_SWEEP_MS, shortest_ms // _SWEEPS_A_TIMEOUT))
        intake = intake or Intake(most_connections=limits.connection_count, most_bytes=limits.receiving_bytes)
        proxies = proxies or TrustedProxies()
        directory, floods = directory or LocalDirectory(), floods or FloodLog()
        names = partial(secrets.token_urlsafe, 16)
        self.shared = AmqpShared(
            broker, access, limits, intake, names, proxies, floods, directory, version, errors, reply_post
        )
        if reply_post is not None:
            reply_post.deliver = partial(deliver_here, self.shared)
        self.shared.on_connection = self._sweep_later
        broker.topology.on_vhost_deleted(self._leave)
        access.on_change(self._recheck)
        self._listeners = Listeners(lambda peer: AmqpConnection(self.shared, peer))
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connection_count(self) -> int:
        return len(self.shared.connections)

    @property
    def channel_count(self) -> int:
        return sum(len(connection.channels) for connection in self.shared.connections)

    async def start(
        self,
        host: str,
        port: int,
        door: Door | None = None,
        proxies: TrustedProxies | None = None,
        *,
        is_shared: bool = False,
    ) -> tuple[str, int]:
        """Listen on all addresses of this name; the first that was bound (port 0 takes a free one)."""
        self._loop = asyncio.get_running_loop()
        return await self._listeners.listen(host, port, door, proxies, is_shared=is_shared)

    async def stop(self, grace_ms: int) -> None:
        """Accept no more, tell everybody that this is the end, cut off who has not gone after the grace."""
        shared = self.shared
        shared.is_stopping = True
        self._listeners.close()
        all_gone = asyncio.get_running_loop().create_future()
        shared.on_empty = lambda: None if all_gone.done() else all_gone.set_result(None)
        for connection in list(shared.connections):
            connection.stop()
        if shared.connections:
            await asyncio.wait([all_gone], timeout=grace_ms / 1000)
        for connection in list(shared.connections):
            connection.abort()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        await self._listeners.wait_closed()

    def _leave(self, vhost: str) -> None:
        """A virtual host was deleted: nobody has any business there."""
        for connection in list(self.shared.connections):
            if connection.vhost == vhost:
                connection.stop(f"vhost '{vhost}' is deleted")

    def _recheck(self, account: str) -> None:
        """An account was changed: its connections may have lost what they rest on."""
        for connection in list(self.shared.connections):
            if connection.account is not None and connection.account.name == account:
                connection.recheck()

    # One timer for all connections, and none while there are none.

    def _sweep_later(self) -> None:
        if self._sweep_timer is None and self._loop is not None:
            self._sweep_timer = self._loop.call_later(self._sweep_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        self._look_at_room()
        self.shared.floods.flush()
        for connection in list(self.shared.connections):
            try:
                connection.sweep(1000 / self._sweep_ms)
            except Exception:  # of one connection: time goes on for the others
                log.exception("a connection is given up")
                connection.abort()
        if self.shared.connections:
            self._sweep_later()

    def _look_at_room(self) -> None:
        blocked_by = LOW_ON.get(str(self._broker.health()["state"]), "")
        if blocked_by != self.shared.blocked_by:
            self.shared.blocked_by = blocked_by
            for connection in list(self.shared.connections):
                connection.tell_blocked()
