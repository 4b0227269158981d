"""Metrics over HTTP, for Prometheus and whatever reads its form."""

from __future__ import annotations

import asyncio
import time

from laneway.access import MONITOR, OPERATOR, Access
from laneway.frontends.http.guests import cross_site_refusal, rebinding_refusal
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.processes import FindLoads
from laneway.frontends.rest.routing import ApiRoute, Reply, Text
from laneway.telemetry.load import Choice, Ranking

_RANKINGS: tuple[Ranking, ...] = ("depth", "age", "rate", "dead")


class MetricsOptions:
    """What is set up about metrics, and may change while they are served."""

    def __init__(self, is_open: bool = False, busiest: int = 20, pattern: str | None = None) -> None:
        self.set(is_open, busiest, pattern)

    def set(self, is_open: bool, busiest: int, pattern: str | None) -> None:
        self.is_open = is_open
        self.choice = Choice(rankings=dict.fromkeys(_RANKINGS, busiest), pattern=pattern)

    def are_open_to(self, call: Call) -> bool:
        """Whether no account is needed. A page of another site that this machine's browser shows is not let in."""
        head = call.head
        return (
            self.is_open
            and head.authorization is None
            and call.is_from_here
            and rebinding_refusal(head) is None
            and cross_site_refusal(head) is None
        )


class MetricsApi:
    def __init__(self, access: Access, options: MetricsOptions, find_loads: FindLoads) -> None:
        self._access = access
        self._options = options
        self._find_loads = find_loads
        self._under_way: dict[str, asyncio.Task[tuple[bytes, str]]] = {}  # by the form asked for

    @ApiRoute("GET", "/metrics", for_scrapers=True, answers={200: Text()})
    async def metrics(self, call: Call) -> Reply:
        """Metrics of the whole server, in the form that Prometheus reads.

        Takes the role monitor or operator; none where metrics_open lets programs on this machine in."""
        if call.account is not None:
            self._access.check_role(call.account, MONITOR, OPERATOR)
        accept = (call.head.accept or b"").decode("latin-1")
        form = accept if len(accept) <= 1000 else ""
        task = self._under_way.get(form)
        if task is None:  # those who ask at the same time get the same
            task = self._under_way[form] = asyncio.ensure_future(self._collect(form))
            task.add_done_callback(lambda _: self._under_way.pop(form))
        body, content_type = await asyncio.shield(task)
        return Reply(200, body, content_type=content_type.encode())

    async def _collect(self, accept: str) -> tuple[bytes, str]:
        from laneway.telemetry.exposition import render  # whoever does not scrape need not wait for it at a start

        began_s = time.monotonic()
        loads = await self._find_loads(self._options.choice)
        return await asyncio.to_thread(render, loads, time.monotonic() - began_s, accept)
