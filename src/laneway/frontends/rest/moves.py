"""Moving queues between partitions over HTTP: each to its home, or one of them to a partition that is named."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from laneway.access import Access
from laneway.broker.interface import Broker, CancelMoves, ListMoves, PlanMoves, StartMoves
from laneway.broker.values import MovesInfo, PlannedMove, QueueMove
from laneway.errors import InvalidInput
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import Answer, encode
from laneway.frontends.rest.rebalancing import Name, Number
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.frontends.rest.wire import check_names_once, decoder

#: So many moves are shown; the others are counted.
MAX_SHOWN = 1000
_PAGE = 1000  # queues that are planned, or told to go, at once


class RebalanceRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which queues are to move. Without a queue: all that are not at home, but those that were moved by name."""

    queue_name: Name | UnsetType = UNSET
    vhost: Name | UnsetType = UNSET
    to: Number | UnsetType = UNSET
    all: bool = False
    dry_run: bool = False


class QueueMoveAnswer(Answer, rename={"here": "from", "there": "to"}):
    vhost: str
    queue_name: str
    here: int
    there: int


class RebalanceAnswer(Answer):
    move_count: int
    moves: list[QueueMoveAnswer]
    is_dry_run: bool


class UnderWayAnswer(QueueMoveAnswer):
    moved_messages: int
    messages: int


class FailedMoveAnswer(QueueMoveAnswer):
    why: str


class RebalanceStatus(Answer):
    is_running: bool
    waiting: int
    under_way: list[UnderWayAnswer]
    moved_queues: int
    moved_messages: int
    failed: list[FailedMoveAnswer]


class CancelAnswer(Answer):
    cancelled: int


class MovesApi:
    def __init__(self, broker: Broker, access: Access) -> None:
        self._broker = broker
        self._access = access
        self._decode = decoder(RebalanceRequest)

    @ApiRoute("POST", "/rebalance", request=RebalanceRequest, answers={202: RebalanceAnswer}, refusals=(404, 409, 507))
    async def start_rebalance(self, call: Call) -> Reply:
        """Move queues to the partitions that are their homes, or one queue to a partition of your choice.

        They are used meanwhile: clients notice a pause. A queue that is moved by name to another partition than its
        home stays there until it is named again, or `all` is given. Takes the role admin."""
        self._access.check_admin(call.account)
        asked: RebalanceRequest = self._decode(call.body)
        check_names_once(call.body)
        vhost = "/" if asked.vhost is UNSET else asked.vhost
        name = None if asked.queue_name is UNSET else asked.queue_name
        if name is None and (asked.to is not UNSET or asked.vhost is not UNSET):
            raise InvalidInput("a partition and a virtual host go with a queue_name", field="queue_name")
        shown, count, after = list[PlannedMove](), 0, ("", "")
        while True:
            plan = PlanMoves(vhost, name, None if asked.to is UNSET else asked.to, asked.all, after, _PAGE)
            moves, end = await self._broker.ask(plan)
            if moves and not asked.dry_run:
                await self._broker.ask(StartMoves([QueueMove(m.vhost, m.name, m.to, m.placed) for m in moves]))
            going = [move for move in moves if move.here != move.to]
            count += len(going)
            shown += going[: MAX_SHOWN - len(shown)]
            if end is None:
                break
            after = end
        answers = [QueueMoveAnswer(m.vhost, m.name, m.here, m.to) for m in shown]
        return Reply(202, encode(RebalanceAnswer(count, answers, asked.dry_run)))

    @ApiRoute("GET", "/rebalance", answers={200: RebalanceStatus})
    async def get_rebalance(self, call: Call) -> Reply:
        """How far the moves of queues are: those that wait, the ones under way, and what became of the others since
        they began. Takes the role admin."""
        self._access.check_admin(call.account)
        partitions: list[MovesInfo] = await self._broker.ask(ListMoves())
        under_way = [
            UnderWayAnswer(p.vhost, p.name, here, p.to, p.moved, p.total)
            for here, one in enumerate(partitions)
            if (p := one.under_way) is not None
        ]
        failed = [
            FailedMoveAnswer(f.vhost, f.name, here, f.to, f.why)
            for here, one in enumerate(partitions)
            for f in one.failed
        ]
        waiting = sum(one.waiting for one in partitions)
        status = RebalanceStatus(
            is_running=bool(waiting or under_way),
            waiting=waiting,
            under_way=under_way,
            moved_queues=sum(one.moved_queues for one in partitions),
            moved_messages=sum(one.moved_messages for one in partitions),
            failed=failed[:MAX_SHOWN],
        )
        return Reply(200, encode(status))

    @ApiRoute("DELETE", "/rebalance", answers={200: CancelAnswer})
    async def cancel_rebalance(self, call: Call) -> Reply:
        """Leave queues that have not begun to move where they are; one that is under way goes on. Takes the role
        admin."""
        self._access.check_admin(call.account)
        return Reply(200, encode(CancelAnswer(await self._broker.ask(CancelMoves()))))
