"""The HTTP server: listens, sweeps out connections that take too long, and stops without cutting anyone off."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from laneway.access import TrustedProxies
from laneway.frontends.doors.directory import LocalDirectory
from laneway.frontends.doors.door import Door
from laneway.frontends.doors.listening import Listeners
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.limits import HttpLimits
from laneway.frontends.http.protocol import Application, HttpConnection, HttpShared, Ticks
from laneway.frontends.http.responses import Framer
from laneway.resources.intake import Intake
from laneway.telemetry.floods import FloodLog
from laneway.telemetry.meter import ErrorCounts

_LONGEST_SWEEP_MS = 1000
_SWEEPS_A_TIMEOUT = 4  # so that a time limit is kept to a quarter of itself
_TLS_EXPECTED = "this port speaks TLS, and this request was plain HTTP: its address begins with https://"


class HttpServer:
    def __init__(
        self,
        applications: Sequence[Application],
        limits: HttpLimits,
        *,
        intake: Intake | None = None,
        floods: FloodLog | None = None,
        proxies: TrustedProxies | None = None,
        directory: LocalDirectory | None = None,
        errors: ErrorCounts | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        shortest_ms = min(self._limits.idle_timeout_ms, self._limits.receive_timeout_ms, self._limits.send_timeout_ms)
        self._sweep_ms = max(10, min(_LONGEST_SWEEP_MS, shortest_ms // _SWEEPS_A_TIMEOUT))
        intake = intake or Intake(most_connections=limits.connection_count, most_bytes=limits.receiving_bytes)
        ticks = Ticks(limits, self._sweep_ms)
        proxies, directory = proxies or TrustedProxies(), directory or LocalDirectory()
        self._shared = HttpShared(
            applications, limits, intake, Framer(now), ticks, proxies, floods or FloodLog(), directory, errors
        )
        self._shared.on_connection = self._sweep_later
        refusal = self._shared.farewell(HttpError(400, "tls_expected", _TLS_EXPECTED))
        self._listeners = Listeners(lambda peer: HttpConnection(self._shared, peer), refusal=refusal)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connection_count(self) -> int:
        return len(self._shared.connections)

    async def start(
        self,
        host: str,
        port: int,
        door: Door | None = None,
        proxies: TrustedProxies | None = None,
        *,
        is_shared: bool = False,
    ) -> tuple[str, int]:
        """Listen, perhaps on one more address; the one that was bound (port 0 takes a free one)."""
        self._loop = asyncio.get_running_loop()
        return await self._listeners.listen(host, port, door, proxies, is_shared=is_shared)

    async def stop(self, grace_ms: int) -> None:
        """Accept no more, answer what is being worked on, end long polls with empty answers, close what is idle; cut
        off what is left after the grace."""
        shared = self._shared
        shared.is_stopping = True
        self._listeners.close()
        loop = asyncio.get_running_loop()
        all_gone = loop.create_future()
        shared.on_empty = lambda: None if all_gone.done() else all_gone.set_result(None)
        for connection in list(shared.connections):
            connection.stop()
        if shared.connections:
            await asyncio.wait([all_gone], timeout=grace_ms / 1000)
        for connection in [*shared.connections, *shared.turned_away]:
            connection.abort()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        await self._listeners.wait_closed()

    def recheck(self, account: str) -> None:
        """An account was changed: whoever waits may no longer have what they wait for."""
        for connection in list(self._shared.connections):
            connection.recheck()

    # One timer for all connections, and none while there are none.

    def _sweep_later(self) -> None:
        if self._sweep_timer is None and self._loop is not None:
            self._sweep_timer = self._loop.call_later(self._sweep_ms / 1000, self._sweep)

    def _sweep(self) -> None:
        self._sweep_timer = None
        shared = self._shared
        shared.floods.flush()
        for connection in [*shared.connections, *shared.turned_away]:
            connection.sweep()
        if shared.connections or shared.turned_away:
            self._sweep_later()
