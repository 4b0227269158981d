"""An HTTP server with the API alone on it, as tests and tools want it; a node puts several front ends on one port."""

from __future__ import annotations

import time
from collections.abc import Callable

from laneway.access import Access, TrustedProxies
from laneway.broker.interface import Broker
from laneway.frontends.doors.directory import LocalDirectory
from laneway.frontends.http.server import HttpServer
from laneway.frontends.rest.api import RestApi
from laneway.frontends.rest.limits import RestLimits


class RestServer(HttpServer):
    def __init__(
        self,
        broker: Broker,
        access: Access,
        limits: RestLimits | None = None,
        *,
        proxies: TrustedProxies | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        limits = limits or RestLimits()
        directory = LocalDirectory()
        rest = RestApi(broker, access, limits, directory=directory)
        super().__init__([rest], limits, proxies=proxies, directory=directory, now=now)
        access.on_change(self.recheck)
