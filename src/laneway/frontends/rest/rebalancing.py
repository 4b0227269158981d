"""The rebalancing plan over HTTP: what the job hotkeys found hot and where it would be better off (docs/pipeline.md).

The server checks a plan against its queues and keeps it, one at a time, as a document of the journal, for whoever
places queues in partitions.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Access
from laneway.broker.interface import Broker, PutDocument, RemoveDocument
from laneway.errors import InvalidInput, NotFound, QueueNotFound
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import Answer, Time, encode
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.frontends.rest.wire import check_names_once, decoder
from laneway.frontends.rest.writing import AnswerWriter

COLLECTION = "rebalancing"
KEY = "plan"

MAX_PARTITIONS = 1024
MAX_UNITS = 1000

Number = Annotated[int, Meta(ge=0, lt=MAX_PARTITIONS)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Rate = Annotated[float, Meta(ge=0, le=1e12)]


class PartitionLoad(msgspec.Struct, forbid_unknown_fields=True):
    partition: Number
    per_second: Rate
    is_hot: bool


class LoadUnit(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A queue, or one key of it."""

    vhost: Name
    queue_name: Name
    key: Annotated[str, Meta(max_length=1024)] | UnsetType = UNSET
    per_second: Rate


class Move(LoadUnit, kw_only=True):
    """A queue, or one key of it, and the partitions it goes from and to."""

    here: Number = msgspec.field(name="from")
    there: Number = msgspec.field(name="to")


class Split(LoadUnit, kw_only=True):
    """A queue, or one key of it, that alone makes its partition hot."""

    partition: Number


class RebalancingPlan(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """plan.json of the job hotkeys."""

    format: Literal[1]
    made_at: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    since: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    until: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    by: Literal["queue", "key"]
    partition_count: Annotated[int, Meta(ge=1, le=MAX_PARTITIONS)]
    hot_above: Annotated[float, Meta(gt=0, le=1e6)] | UnsetType = UNSET
    partitions: Annotated[list[PartitionLoad], Meta(max_length=MAX_PARTITIONS)]
    moves: Annotated[list[Move], Meta(max_length=MAX_UNITS)]
    splits: Annotated[list[Split], Meta(max_length=MAX_UNITS)]


class RebalancingAnswer(Answer):
    stored_at: Time
    stored_by: str
    plan: RebalancingPlan


def check_plan(plan: RebalancingPlan) -> None:
    """What the types cannot say: InvalidInput names the first entry that is wrong."""
    listed = [one.partition for one in plan.partitions]
    numbers = {
        **{f"partitions[{at}].partition": number for at, number in enumerate(listed)},
        **{f"moves[{at}].from": move.here for at, move in enumerate(plan.moves)},
        **{f"moves[{at}].to": move.there for at, move in enumerate(plan.moves)},
        **{f"splits[{at}].partition": split.partition for at, split in enumerate(plan.splits)},
    }
    for field, number in numbers.items():
        if number >= plan.partition_count:
            raise InvalidInput(
                f"there are {plan.partition_count} partitions, numbered from 0: {number} is none", field=field
            )
    for at, number in enumerate(listed):
        if number in listed[:at]:
            raise InvalidInput(f"partition {number} is listed twice", field=f"partitions[{at}].partition")
    seen: set[object] = set()
    for at, move in enumerate(plan.moves):
        if move.here == move.there:
            raise InvalidInput(f"a move from partition {move.here} to itself is none", field=f"moves[{at}].to")
        if plan.by == "queue" and move.key is not UNSET:
            raise InvalidInput("a plan by queue moves whole queues: leave the key out", field=f"moves[{at}].key")
        if (move.vhost, move.queue_name, move.key) in seen:
            raise InvalidInput(f"{move.queue_name!r} is moved twice", field=f"moves[{at}].queue_name")
        seen.add((move.vhost, move.queue_name, move.key))


class Rebalancing:
    def __init__(self, broker: Broker, access: Access, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._writer = writer
        self._decode = decoder(RebalancingPlan)

    @ApiRoute("PUT", "/rebalancing", request=RebalancingPlan, answers={200: RebalancingAnswer}, refusals=(404, 507))
    async def put_rebalancing(self, call: Call) -> Reply:
        """Keep a rebalancing plan, in place of the one there is."""
        self._access.check_admin(call.account)
        plan: RebalancingPlan = self._decode(call.body)
        check_names_once(call.body)
        check_plan(plan)
        for at, move in enumerate(plan.moves):
            self._check_queue(move, f"moves[{at}].queue_name")
        for at, split in enumerate(plan.splits):
            self._check_queue(split, f"splits[{at}].queue_name")
        answer = RebalancingAnswer(self._writer.times.text(self._broker.now()), call.account.name, plan)
        await self._broker.ask(PutDocument(COLLECTION, KEY, encode(answer)))
        return Reply(200, encode(answer))

    def _check_queue(self, unit: LoadUnit, field: str) -> None:
        try:
            self._broker.topology.find_queue(unit.vhost, unit.queue_name)
        except QueueNotFound:
            raise QueueNotFound(
                f"there is no queue {unit.queue_name!r} in the virtual host {unit.vhost!r}: the plan is of another "
                "server, or too old",
                field=field,
                queue=unit.queue_name,
            ) from None

    @ApiRoute("GET", "/rebalancing", answers={200: RebalancingAnswer}, refusals=(404,))
    async def get_rebalancing(self, call: Call) -> Reply:
        """The rebalancing plan that is kept."""
        self._access.check_admin(call.account)
        stored = self._broker.topology.documents(COLLECTION).get(KEY)
        if stored is None:
            raise NotFound("there is no rebalancing plan; the job hotkeys makes one")
        return Reply(200, stored)

    @ApiRoute("DELETE", "/rebalancing", answers={204: None})
    async def delete_rebalancing(self, call: Call) -> Reply:
        """Forget the rebalancing plan, if there is one."""
        self._access.check_admin(call.account)
        if KEY in self._broker.topology.documents(COLLECTION):
            await self._broker.ask(RemoveDocument(COLLECTION, KEY))
        return Reply(204)
