"""The alerts that fire, over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from laneway.access import MONITOR, OPERATOR, Access
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import Answer, Time, encode
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.frontends.rest.times import Timestamps
from laneway.telemetry.alerts import FiringAlert

FindFiring = Callable[[], Awaitable[list[FiringAlert]]]


async def nothing_fires() -> list[FiringAlert]:
    """Of a server that is no node."""
    return []


class FiringAlertAnswer(Answer):
    name: str
    severity: str
    labels: dict[str, str]
    summary: str
    since: Time


class AlertsAnswer(Answer):
    alerts: list[FiringAlertAnswer]


class AlertsApi:
    def __init__(self, access: Access, times: Timestamps, find_firing: FindFiring) -> None:
        self._access = access
        self._times = times
        self._find_firing = find_firing

    @ApiRoute("GET", "/alerts", answers={200: AlertsAnswer})
    async def list_alerts(self, call: Call) -> Reply:
        """What fires, and since when its condition holds; the oldest first.

        Takes the role monitor or operator."""
        self._access.check_role(call.account, MONITOR, OPERATOR)
        alerts = [
            FiringAlertAnswer(one.name, one.severity, one.labels, one.summary, self._times.text(one.since_ms))
            for one in await self._find_firing()
        ]
        return Reply(200, encode(AlertsAnswer(alerts)))
