"""One process of a server evaluates its alerts, and sends what changes to a webhook."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec

from laneway.telemetry.alerts import CHOICE, AlertWatch, FiringAlert
from laneway.telemetry.load import Choice, Loads

log = logging.getLogger("laneway.alerts")

EVERY_S = 5.0
_REST = 100  # so many times as long as a look takes, nothing is looked at
_MOST_SENT = 100  # alerts in one message; of more it says how many there are
_PATIENCE_S = 10.0
_ATTEMPTS = 5

WebhookForm = Literal["slack", "json"]


class Alerting:
    """`webhook`: a file with the URL, which often is a secret."""

    def __init__(
        self, find_loads: Callable[[Choice], Awaitable[Loads]], webhook: Path | None, form: WebhookForm
    ) -> None:
        self._find_loads = find_loads
        self._webhook = webhook
        self._form = form
        self._watch = AlertWatch()
        self._unsent: list[dict[str, Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._has_news = asyncio.Event()

    def firing(self) -> list[FiringAlert]:
        return sorted(self._watch.firing.values(), key=lambda alert: (alert.since_ms, alert.name))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._look_on())]
        if self._webhook is not None:
            self._tasks.append(loop.create_task(self._send_on(self._webhook)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look_on(self) -> None:
        while True:
            began_s = time.thread_time()
            try:
                fresh, over = self._watch.look(time.time(), await self._find_loads(CHOICE))
            except Exception:
                log.exception("alerts could not be looked at")
                fresh = over = []
            for status, alerts in (("firing", fresh), ("resolved", over)):
                for alert in alerts:
                    log.warning("alert %s is %s: %s", alert.name, status, alert.summary)
                    self._unsent.append({"status": status, **msgspec.to_builtins(alert)})
            del self._unsent[: -10 * _MOST_SENT]
            if fresh or over:
                self._has_news.set()
            await asyncio.sleep(max(EVERY_S, (time.thread_time() - began_s) * _REST))

    async def _send_on(self, webhook: Path) -> None:
        import httpx  # whoever sends nothing need not load it

        logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log the URL
        async with httpx.AsyncClient(timeout=_PATIENCE_S) as client:
            while True:
                await self._has_news.wait()
                self._has_news.clear()
                unsent, self._unsent = self._unsent, []
                body = (
                    as_slack(unsent) if self._form == "slack" else {"alerts": unsent[:_MOST_SENT], "count": len(unsent)}
                )
                for attempt in range(_ATTEMPTS):
                    try:
                        url = (await asyncio.to_thread(webhook.read_text)).strip()
                        (await client.post(url, json=body)).raise_for_status()
                        break
                    except (OSError, httpx.HTTPError, httpx.InvalidURL) as trouble:
                        # Its text may name the URL.
                        log.error("the alert webhook does not take %d alerts: %s", len(unsent), type(trouble).__name__)
                        await asyncio.sleep(2**attempt)


def as_json(alerts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"alerts": alerts[:_MOST_SENT], "count": len(alerts)}


def as_slack(alerts: list[dict[str, Any]]) -> dict[str, str]:
    marks = {"firing": ":fire:", "resolved": ":white_check_mark:"}
    lines = [f"{marks[one['status']]} *{one['name']}* ({one['severity']}): {one['summary']}" for one in alerts]
    more = len(lines) - _MOST_SENT
    return {"text": "\n".join([*lines[:_MOST_SENT], *([f"… and {more} more"] if more > 0 else [])])}
