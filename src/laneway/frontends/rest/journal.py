"""The history over HTTP: where it is, its bytes, the names of queues in it, and the cursors that hold it back.

For administrators alone: the bytes hold all messages, and the documents of other layers.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from laneway.access import Access
from laneway.broker import interface as i
from laneway.broker.values import Alarm, CursorInfo, HistoryInfo, Place, QueueName
from laneway.errors import CursorNotFound, InvalidInput
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import Answer, Time, encode
from laneway.frontends.rest.routing import ApiRoute, Each, Reply
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.wire import read_body

MAX_READ_BYTES = 8 << 20
MAX_EVENTS = 1_000_000_000
_LARGEST = (1 << 53) - 1  # what every JSON reader can count to
OCTETS = b"application/octet-stream"

_Options = TypeVar("_Options", bound="PartitionOptions")

_Partition = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
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
    partition: int
    partition_count: int
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


class CursorPartAnswer(Answer):
    partition: int
    position: int
    lag_commits: int
    held_bytes: int
    updated_at: Time
    state: str


class CursorAnswer(Answer):
    name: str
    position: int
    lag_commits: int
    held_bytes: int
    updated_at: Time
    state: str
    partitions: list[CursorPartAnswer]


class PartitionOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    partition: _Partition = 0


class PlaceOptions(PartitionOptions, forbid_unknown_fields=True, kw_only=True):
    position: _Position


class AdvanceOptions(PartitionOptions, forbid_unknown_fields=True, kw_only=True):
    segment: Annotated[int, Meta(ge=1, le=_LARGEST)]
    offset: _Offset
    position: _Position
    max_events: Annotated[int, Meta(ge=1, le=MAX_EVENTS)]


class ReadSegmentOptions(PartitionOptions, forbid_unknown_fields=True, kw_only=True):
    offset: _Offset = 0
    length: Annotated[int, Meta(ge=0, le=MAX_READ_BYTES)] = MAX_READ_BYTES


class PutCursorRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    position: _Position | None = None
    positions: dict[_Partition, _Position] = {}
    rewind: bool = False


class JournalApi:
    def __init__(self, broker: i.Broker, access: Access) -> None:
        self._broker = broker
        self._access = access
        self._times = Timestamps()

    @ApiRoute("GET", "/journal", options=PartitionOptions, answers={200: JournalAnswer})
    async def get_journal(self, call: Call) -> Reply:
        """The history of a partition: where it begins and ends, its segments, alarms about it."""
        partition = self._options(call, PartitionOptions).partition
        history: HistoryInfo = await self._broker.ask(i.DescribeHistory(partition))
        answer = JournalAnswer(
            partition=partition,
            partition_count=self._broker.limits.partition_count,
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
        options = self._options(call, PlaceOptions)
        place: Place = await self._broker.ask(i.FindPlace(options.position, options.partition))
        return Reply(200, encode(PlaceAnswer(*place)))

    @ApiRoute("GET", "/journal/advance", options=AdvanceOptions, answers={200: PlaceAnswer}, refusals=(410,))
    async def advance(self, call: Call) -> Reply:
        """The place so many events further, one commit at least, the end at most."""
        options = self._options(call, AdvanceOptions)
        start = Place(segment=options.segment, offset=options.offset, position=options.position)
        place: Place = await self._broker.ask(i.AdvancePlace(start, options.max_events, options.partition))
        return Reply(200, encode(PlaceAnswer(*place)))

    @ApiRoute("GET", "/journal/segments/{segment}", options=ReadSegmentOptions, answers={200: bytes}, refusals=(410,))
    async def read_segment(self, call: Call) -> Reply:
        """Bytes of a segment, as far as they are durable."""
        options = self._options(call, ReadSegmentOptions)
        number = call.head.plan.names["segment"]
        if not (number.isascii() and number.isdigit() and len(number) <= 16):
            raise InvalidInput(f"the number of a segment is a number, not {number[:80]!r}", field="segment")
        request = i.ReadHistory(int(number), options.offset, options.length, options.partition)
        data: bytes = await self._broker.ask(request)
        return Reply(200, data, content_type=OCTETS)

    @ApiRoute("GET", "/journal/queues", options=PartitionOptions, answers={200: Each((NamedQueueAnswer,))})
    async def list_named_queues(self, call: Call) -> Reply:
        """The names of all queues in the history of a partition by their numbers, of deleted ones too."""
        options = self._options(call, PartitionOptions)
        found: dict[int, QueueName] = await self._broker.ask(i.NameQueues(options.partition))
        names = [NamedQueueAnswer(number=number, **name._asdict()) for number, name in found.items()]
        return Reply(200, encode(names))

    def _options(self, call: Call, kind: type[_Options]) -> _Options:
        self._access.check_admin(call.account)
        options: _Options = call.head.plan.options(kind)
        self._check(options.partition)
        return options

    def _check(self, partition: int) -> None:
        count = self._broker.limits.partition_count
        if partition >= count:
            raise InvalidInput(
                f"there is no partition {partition}; this server has {_partitions(count)}", field="partition"
            )

    # --- cursors: each partition keeps its own position, and all together are one

    @ApiRoute("GET", "/journal/cursors", answers={200: Each((CursorAnswer,))})
    async def list_cursors(self, call: Call) -> Reply:
        """All cursors, and how far behind they are."""
        self._access.check_admin(call.account)
        parts: dict[str, list[CursorPartAnswer]] = {}
        for partition in range(self._broker.limits.partition_count):
            for info in await self._broker.ask(i.ListCursors(partition)):
                parts.setdefault(info.name, []).append(self._part(partition, info))
        return Reply(200, encode([_cursor(name, found) for name, found in sorted(parts.items())]))

    @ApiRoute("GET", "/journal/cursors/{cursor}", answers={200: CursorAnswer}, refusals=(404,))
    async def get_cursor(self, call: Call) -> Reply:
        """One cursor."""
        self._access.check_admin(call.account)
        return Reply(200, encode(await self._find(call.head.plan.names["cursor"])))

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
        body = read_body(call.body, PutCursorRequest) if call.body else PutCursorRequest()
        name = call.head.plan.names["cursor"]
        are_new = []
        for partition, position in self._positions(body).items():
            _, is_new = await self._broker.ask(i.PutCursor(name, position, body.rewind, partition))
            are_new.append(is_new)
        return Reply(201 if all(are_new) else 200, encode(await self._find(name)))

    def _positions(self, body: PutCursorRequest) -> dict[int, int]:
        """By partition, all of which there are."""
        count = self._broker.limits.partition_count
        if body.position is not None and not body.positions and count == 1:
            return {0: body.position}
        if body.position is not None and (body.positions or count > 1):
            raise InvalidInput(
                f"this server has {_partitions(count)}: say positions, one for each, and not position", field="position"
            )
        if not body.positions:
            field = "position" if count == 1 else "positions"
            raise InvalidInput("say which position: history from there on is kept", field=field)
        self._check(max(body.positions))
        return dict(sorted(body.positions.items()))

    @ApiRoute("DELETE", "/journal/cursors/{cursor}", answers={204: None}, refusals=(404, 507))
    async def delete_cursor(self, call: Call) -> Reply:
        """Delete a cursor; what only it held back goes."""
        self._access.check_admin(call.account)
        name = call.head.plan.names["cursor"]
        for part in (await self._find(name)).partitions:
            try:
                await self._broker.ask(i.DeleteCursor(name, part.partition))
            except CursorNotFound:
                pass  # somebody else deleted it meanwhile
        return Reply(204)

    async def _find(self, name: str) -> CursorAnswer:
        parts = []
        for partition in range(self._broker.limits.partition_count):
            try:
                parts.append(self._part(partition, await self._broker.ask(i.GetCursor(name, partition))))
            except CursorNotFound as unknown:
                not_found = unknown
        if not parts:
            raise not_found
        return _cursor(name, parts)

    def _part(self, partition: int, info: CursorInfo) -> CursorPartAnswer:
        updated_at = self._times.text(info.updated_at_ms)
        return CursorPartAnswer(partition, info.position, info.lag_commits, info.held_bytes, updated_at, info.state)

    def _alarm(self, alarm: Alarm) -> AlarmAnswer:
        return AlarmAnswer(alarm.name, alarm.level, alarm.message, self._times.text(alarm.since_ms))


def _cursor(name: str, parts: list[CursorPartAnswer]) -> CursorAnswer:
    return CursorAnswer(
        name=name,
        position=parts[0].position,
        lag_commits=sum(part.lag_commits for part in parts),
        held_bytes=sum(part.held_bytes for part in parts),
        updated_at=max(part.updated_at for part in parts),
        state="lost" if any(part.state == "lost" for part in parts) else "ok",
        partitions=parts,
    )


def _partitions(count: int) -> str:
    return "one partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
