"""The history over HTTP: where it is, its bytes, the names of queues in it, and the cursors that hold it back.

For administrators alone: the bytes hold all messages, and the documents of other layers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from laneway.access import Access
from laneway.broker import interface as i
from laneway.broker.values import Alarm, CursorInfo, HistoryInfo, Place, QueueName
from laneway.errors import InvalidInput
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import Answer, Time, encode
from laneway.frontends.rest.routing import ApiRoute, Each, Reply
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.wire import read_body

MAX_READ_BYTES = 8 << 20
MAX_EVENTS = 1_000_000_000
_LARGEST = (1 << 53) - 1  # what every JSON reader can count to
OCTETS = b"application/octet-stream"

_Position = Annotated[int, Meta(ge=1, le=_LARGEST)]
_Offset = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]


class PlaceAnswer(Answer):
    segment: int
    offset: int
    position: int


class SegmentAnswer(Answer):
    number: int
    first_position: int
    used_bytes: int
    first_time_ms: int


class AlarmAnswer(Answer):
    name: str
    level: str
    message: str
    since: Time


class JournalAnswer(Answer):
    store: int
    tag: int
    first_position: int
    end: PlaceAnswer
    named_position: int
    segments: list[SegmentAnswer]
    alarms: list[AlarmAnswer]


class NamedQueueAnswer(Answer):
    number: int
    vhost: str
    name: str
    tier: str
    max_messages: int | None


class CursorAnswer(Answer):
    name: str
    position: int
    lag_commits: int
    held_bytes: int
    updated_at: Time
    state: str


class PlaceOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    position: _Position


class AdvanceOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    segment: Annotated[int, Meta(ge=1, le=_LARGEST)]
    offset: _Offset
    position: _Position
    max_events: Annotated[int, Meta(ge=1, le=MAX_EVENTS)]


class ReadSegmentOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    offset: _Offset = 0
    length: Annotated[int, Meta(ge=0, le=MAX_READ_BYTES)] = MAX_READ_BYTES


class PutCursorRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    position: _Position
    rewind: bool = False


class JournalApi:
    def __init__(self, broker: i.Broker, access: Access) -> None:
        self._broker = broker
        self._access = access
        self._times = Timestamps()

    @ApiRoute("GET", "/journal", answers={200: JournalAnswer})
    async def get_journal(self, call: Call) -> Reply:
        """The history: where it begins and ends, its segments, alarms about it."""
        self._access.check_admin(call.account)
        history: HistoryInfo = await self._broker.ask(i.DescribeHistory())
        answer = JournalAnswer(
            store=history.store,
            tag=history.tag,
            first_position=history.first_position,
            end=PlaceAnswer(*history.end),
            named_position=history.named_position,
            segments=[SegmentAnswer(*one) for one in history.segments],
            alarms=[self._alarm(alarm) for alarm in history.alarms],
        )
        return Reply(200, encode(answer))

    @ApiRoute("GET", "/journal/place", options=PlaceOptions, answers={200: PlaceAnswer}, refusals=(410,))
    async def get_place(self, call: Call) -> Reply:
        """Where a commit begins."""
        self._access.check_admin(call.account)
        options: PlaceOptions = call.head.plan.options(PlaceOptions)
        place: Place = await self._broker.ask(i.FindPlace(options.position))
        return Reply(200, encode(PlaceAnswer(*place)))

    @ApiRoute("GET", "/journal/advance", options=AdvanceOptions, answers={200: PlaceAnswer}, refusals=(410,))
    async def advance(self, call: Call) -> Reply:
        """The place so many events further, one commit at least, the end at most."""
        self._access.check_admin(call.account)
        options: AdvanceOptions = call.head.plan.options(AdvanceOptions)
        start = Place(segment=options.segment, offset=options.offset, position=options.position)
        place: Place = await self._broker.ask(i.AdvancePlace(start, options.max_events))
        return Reply(200, encode(PlaceAnswer(*place)))

    @ApiRoute("GET", "/journal/segments/{segment}", options=ReadSegmentOptions, answers={200: bytes}, refusals=(410,))
    async def read_segment(self, call: Call) -> Reply:
        """Bytes of a segment, as far as they are durable."""
        self._access.check_admin(call.account)
        number = call.head.plan.names["segment"]
        if not (number.isascii() and number.isdigit() and len(number) <= 16):
            raise InvalidInput(f"the number of a segment is a number, not {number[:80]!r}", field="segment")
        options: ReadSegmentOptions = call.head.plan.options(ReadSegmentOptions)
        data: bytes = await self._broker.ask(i.ReadHistory(int(number), options.offset, options.length))
        return Reply(200, data, content_type=OCTETS)

    @ApiRoute("GET", "/journal/queues", answers={200: Each((NamedQueueAnswer,))})
    async def list_named_queues(self, call: Call) -> Reply:
        """The names of all queues in the history by their numbers, of deleted ones too."""
        self._access.check_admin(call.account)
        found: dict[int, QueueName] = await self._broker.ask(i.NameQueues())
        names = [NamedQueueAnswer(number=number, **name._asdict()) for number, name in found.items()]
        return Reply(200, encode(names))

    # --- cursors

    @ApiRoute("GET", "/journal/cursors", answers={200: Each((CursorAnswer,))})
    async def list_cursors(self, call: Call) -> Reply:
        """All cursors, and how far behind they are."""
        self._access.check_admin(call.account)
        return Reply(200, encode([self._cursor(info) for info in await self._broker.ask(i.ListCursors())]))

    @ApiRoute("GET", "/journal/cursors/{cursor}", answers={200: CursorAnswer}, refusals=(404,))
    async def get_cursor(self, call: Call) -> Reply:
        """One cursor."""
        self._access.check_admin(call.account)
        return Reply(200, encode(self._cursor(await self._broker.ask(i.GetCursor(call.head.plan.names["cursor"])))))

    @ApiRoute(
        "PUT",
        "/journal/cursors/{cursor}",
        request=PutCursorRequest,
        answers={200: CursorAnswer, 201: CursorAnswer},
        refusals=(409, 410, 429, 507),
    )
    async def put_cursor(self, call: Call) -> Reply:
        """Keep history from a position on, and let go of what is before it."""
        self._access.check_admin(call.account)
        if not call.body:
            raise InvalidInput("say which position: history from there on is kept", field="position")
        body = read_body(call.body, PutCursorRequest)
        name = call.head.plan.names["cursor"]
        info, is_new = await self._broker.ask(i.PutCursor(name, body.position, body.rewind))
        return Reply(201 if is_new else 200, encode(self._cursor(info)))

    @ApiRoute("DELETE", "/journal/cursors/{cursor}", answers={204: None}, refusals=(404, 507))
    async def delete_cursor(self, call: Call) -> Reply:
        """Delete a cursor; what only it held back goes."""
        self._access.check_admin(call.account)
        await self._broker.ask(i.DeleteCursor(call.head.plan.names["cursor"]))
        return Reply(204)

    def _cursor(self, info: CursorInfo) -> CursorAnswer:
        updated_at = self._times.text(info.updated_at_ms)
        return CursorAnswer(info.name, info.position, info.lag_commits, info.held_bytes, updated_at, info.state)

    def _alarm(self, alarm: Alarm) -> AlarmAnswer:
        return AlarmAnswer(alarm.name, alarm.level, alarm.message, self._times.text(alarm.since_ms))
