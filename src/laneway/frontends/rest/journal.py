"""The history over HTTP: where it is, its bytes, the names of queues in it, and the cursors that hold it back.

For administrators alone: the bytes hold all messages, and the documents of other layers.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.broker.cursors import Alarm, CursorInfo
from laneway.errors import InvalidInput
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.admin import read_body
from laneway.frontends.rest.answers import Answer, Time, encode
from laneway.frontends.rest.routing import Each, Reply, Route
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.wire import decoder

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


class ReadOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    offset: _Offset = 0
    length: Annotated[int, Meta(ge=0, le=MAX_READ_BYTES)] = MAX_READ_BYTES


class PutCursorRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    position: _Position
    rewind: bool = False


class JournalApi:
    def __init__(self, broker: Broker, access: Access) -> None:
        self._broker = broker
        self._access = access
        self._times = Timestamps()
        self._decode_cursor = decoder(PutCursorRequest)
        self._naming = asyncio.Lock()

    async def get_journal(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        history = self._broker.engine.journal.history
        named_position, end = history.named_position, history.end()
        segments = await asyncio.to_thread(history.extents)
        first = len(segments) - 1
        while first > 0 and segments[first - 1].number + 1 == segments[first].number:
            first -= 1
        answer = JournalAnswer(
            store=history.store(),
            tag=self._broker.engine.state.tag,
            first_position=segments[first].first_position if segments else end.position,
            end=PlaceAnswer(*end),
            named_position=named_position,
            segments=[SegmentAnswer(*one) for one in segments],
            alarms=[self._alarm(alarm) for alarm in self._broker.cursors.alarms()],
        )
        return Reply(200, encode(answer))

    async def get_place(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        options: PlaceOptions = call.head.plan.options(PlaceOptions)
        place = await asyncio.to_thread(self._broker.engine.journal.history.place, options.position)
        return Reply(200, encode(PlaceAnswer(*place)))

    async def advance(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        options: AdvanceOptions = call.head.plan.options(AdvanceOptions)
        history = self._broker.engine.journal.history
        place = history.end()._replace(segment=options.segment, offset=options.offset, position=options.position)
        return Reply(200, encode(PlaceAnswer(*await asyncio.to_thread(history.advance, place, options.max_events))))

    async def read_segment(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        number = call.head.plan.names["segment"]
        if not (number.isascii() and number.isdigit() and len(number) <= 16):
            raise InvalidInput(f"the number of a segment is a number, not {number[:80]!r}", field="segment")
        options: ReadOptions = call.head.plan.options(ReadOptions)
        read = self._broker.engine.journal.history.read
        return Reply(200, await asyncio.to_thread(read, int(number), options.offset, options.length), b"", OCTETS)

    async def list_queues(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        async with self._naming:
            found = await asyncio.to_thread(self._broker.engine.journal.history.catalogue)
        names = [NamedQueueAnswer(number=number, **name._asdict()) for number, name in found.items()]
        return Reply(200, encode(names))

    # --- cursors

    async def list_cursors(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        return Reply(200, encode([self._cursor(info) for info in self._broker.cursors.all()]))

    async def get_cursor(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        return Reply(200, encode(self._cursor(self._broker.cursors.get(call.head.plan.names["cursor"]))))

    async def put_cursor(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        body: PutCursorRequest | None = read_body(call, self._decode_cursor, None)
        if body is None:
            raise InvalidInput("say which position: history from there on is kept", field="position")
        info, is_new = await self._broker.cursors.put(call.head.plan.names["cursor"], body.position, rewind=body.rewind)
        return Reply(201 if is_new else 200, encode(self._cursor(info)))

    async def delete_cursor(self, call: Call) -> Reply:
        self._access.check_admin(call.account)
        await self._broker.cursors.delete(call.head.plan.names["cursor"])
        return Reply(204)

    def _cursor(self, info: CursorInfo) -> CursorAnswer:
        return CursorAnswer(
            info.name,
            info.position,
            info.lag_commits,
            info.held_bytes,
            self._times.text(info.updated_at_ms),
            info.state,
        )

    def _alarm(self, alarm: Alarm) -> AlarmAnswer:
        return AlarmAnswer(alarm.name, alarm.level, alarm.message, self._times.text(alarm.since_ms))


def journal_routes(journal: JournalApi) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="/journal",
            name="get_journal",
            summary="The history: where it begins and ends, its segments, alarms about it",
            slow=journal.get_journal,
            answers={200: JournalAnswer},
        ),
        Route(
            method="GET",
            pattern="/journal/place",
            name="get_place",
            summary="Where a commit begins",
            slow=journal.get_place,
            options=PlaceOptions,
            answers={200: PlaceAnswer},
            refusals=(410,),
        ),
        Route(
            method="GET",
            pattern="/journal/advance",
            name="advance",
            summary="The place so many events further, one commit at least, the end at most",
            slow=journal.advance,
            options=AdvanceOptions,
            answers={200: PlaceAnswer},
            refusals=(410,),
        ),
        Route(
            method="GET",
            pattern="/journal/segments/{segment}",
            name="read_segment",
            summary="Bytes of a segment, as far as they are durable",
            slow=journal.read_segment,
            options=ReadOptions,
            answers={200: bytes},
            refusals=(410,),
        ),
        Route(
            method="GET",
            pattern="/journal/queues",
            name="list_named_queues",
            summary="The names of all queues in the history by their numbers, of deleted ones too",
            slow=journal.list_queues,
            answers={200: Each((NamedQueueAnswer,))},
        ),
        Route(
            method="GET",
            pattern="/journal/cursors",
            name="list_cursors",
            summary="All cursors, and how far behind they are",
            slow=journal.list_cursors,
            answers={200: Each((CursorAnswer,))},
        ),
        Route(
            method="GET",
            pattern="/journal/cursors/{cursor}",
            name="get_cursor",
            summary="One cursor",
            slow=journal.get_cursor,
            answers={200: CursorAnswer},
            refusals=(404,),
        ),
        Route(
            method="PUT",
            pattern="/journal/cursors/{cursor}",
            name="put_cursor",
            summary="Keep history from a position on, and let go of what is before it",
            slow=journal.put_cursor,
            request=PutCursorRequest,
            answers={200: CursorAnswer, 201: CursorAnswer},
            refusals=(409, 410, 429, 507),
        ),
        Route(
            method="DELETE",
            pattern="/journal/cursors/{cursor}",
            name="delete_cursor",
            summary="Delete a cursor; what only it held back goes",
            slow=journal.delete_cursor,
            answers={204: None},
            refusals=(404, 507),
        ),
    ]
