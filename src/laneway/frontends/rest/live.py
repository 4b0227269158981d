"""What changes, as it happens: an event stream for pages that show it (server-sent events).

A stream is the last answer of its connection. Nothing is kept for those who are not there: the first event of each
stream says how things stand, and whoever comes back begins with that again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import MONITOR, OPERATOR, Access
from laneway.broker.interface import Broker
from laneway.errors import LanewayError, Unavailable
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import encode
from laneway.frontends.rest.routing import ApiRoute, Text
from laneway.telemetry.load import RaisedAlarm

log = logging.getLogger("laneway.http")

MAX_STREAMS = 100  # of one process
_TURN_S = 0.25  # between looks at what changed
_ALARM_TURNS = 8  # of these, between looks at alarms
_PING_TURNS = 60  # without an event: proxies end what is silent
_MOST_QUEUES = 1_000  # in one turn; of more it is only said that there are many

FindAlarms = Callable[[], Awaitable[list[RaisedAlarm]]]


async def no_alarms() -> list[RaisedAlarm]:
    """Of a server that is no node."""
    return []


class LiveOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    seconds: Annotated[float, Meta(gt=0, le=86_400, description="the stream ends then")] | UnsetType = UNSET


class LiveStream:
    """A client that is told."""

    def __init__(self, call: Call, ends_s: float) -> None:
        self.call = call
        self.ends_s = ends_s


class LiveApi:
    def __init__(self, broker: Broker, access: Access, find_alarms: FindAlarms) -> None:
        self._broker = broker
        self._access = access
        self._find_alarms = find_alarms
        self._streams: list[LiveStream] = []
        self._queues: dict[tuple[str, str], bool] = {}  # that changed since the last turn -> whether they are there
        self._modes: dict[str, Any] = {}
        self._alarms: dict[tuple[int, str], RaisedAlarm] = {}
        self._last = 0
        self._task: asyncio.Task[None] | None = None
        broker.topology.on_queue(self._note_queue)

    @ApiRoute("GET", "/events/live", options=LiveOptions, has_head=False, answers={200: Text("text/event-stream")})
    def live(self, call: Call) -> None:
        """What changes, as server-sent events: queues, modes of the server, alarms.

        Takes the role monitor or operator."""
        self._access.check_role(call.account, MONITOR, OPERATOR)
        options: LiveOptions = call.head.plan.options(LiveOptions)
        if len(self._streams) >= MAX_STREAMS:
            raise Unavailable(f"{MAX_STREAMS} clients are told of changes already: try again later")
        call.begin_stream(b"text/event-stream")
        ends_s = time.monotonic() + options.seconds if options.seconds is not UNSET else float("inf")
        stream = call.waiter = LiveStream(call, ends_s)
        if not self._streams:
            self._modes, self._queues = self._modes_now(), {}
        self._streams.append(stream)
        known = [msgspec.to_builtins(alarm) for alarm in self._alarms.values()]
        call.stream(self._event("now", {**self._modes, "alarms": known}))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._tell_on())

    def end(self, stream: LiveStream) -> None:
        """Its client is gone, or it is to go."""
        if stream in self._streams:
            self._streams.remove(stream)
        stream.call.end_stream()

    def recheck(self, stream: LiveStream) -> None:
        """Accounts were changed."""
        try:
            self._access.check_role(stream.call.account, MONITOR, OPERATOR)
        except LanewayError:
            self.end(stream)

    def _note_queue(self, vhost: str, name: str, is_there: bool) -> None:
        if self._streams and len(self._queues) <= _MOST_QUEUES:
            self._queues[vhost, name] = is_there

    async def _tell_on(self) -> None:
        turn = told = 0
        while self._streams:
            await asyncio.sleep(_TURN_S)
            try:
                events = self._changes()
                if turn % _ALARM_TURNS == 0:
                    events += await self._changes_of_alarms()
            except Exception:
                log.exception("what changes cannot be told")
                events = []
            turn += 1
            if events:
                told = turn
            elif turn - told >= _PING_TURNS:
                events, told = [b": nothing has changed\n\n"], turn
            now_s, data = time.monotonic(), b"".join(events)
            for stream in list(self._streams):
                if data:
                    stream.call.stream(data)
                if now_s >= stream.ends_s:
                    self.end(stream)
        self._task = None

    def _changes(self) -> list[bytes]:
        queues, self._queues = self._queues, {}
        events = [
            self._event("queue", {"vhost": vhost, "queue_name": name, "change": "put" if is_there else "deleted"})
            for (vhost, name), is_there in queues.items()
        ]
        if len(queues) > _MOST_QUEUES:
            events = [self._event("queues", {"change": "many"})]
        modes = self._modes_now()
        if modes != self._modes:
            self._modes = modes
            events.append(self._event("modes", modes))
        return events

    def _modes_now(self) -> dict[str, Any]:
        health = self._broker.health()
        partitions = health.get("partitions", {0: health["state"]})
        assert isinstance(partitions, dict)
        return {"state": health["state"], "partitions": {str(number): state for number, state in partitions.items()}}

    async def _changes_of_alarms(self) -> list[bytes]:
        before = self._alarms
        self._alarms = after = {(alarm.partition, alarm.name): alarm for alarm in await self._find_alarms()}
        return [
            *(self._event("alarm", {"change": "raised", **_shown(after[key])}) for key in after.keys() - before.keys()),
            *(self._event("alarm", {"change": "over", **_shown(before[key])}) for key in before.keys() - after.keys()),
        ]

    def _event(self, kind: str, data: dict[str, Any]) -> bytes:
        self._last += 1
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (self._last, kind.encode(), encode(data))


def _shown(alarm: RaisedAlarm) -> dict[str, Any]:
    return dict(msgspec.to_builtins(alarm))
