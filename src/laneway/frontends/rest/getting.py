"""`get`: take messages and say in the same request what becomes of them, in the words of RabbitMQ's management API.

A GET that changes something is against the custom of HTTP, so nothing but GET itself leads here: HEAD is refused.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Access
from laneway.broker.interface import HTTP, Broker, Lease, Settle
from laneway.broker.values import Deliveries
from laneway.core.message import Settlement
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answering import answering
from laneway.frontends.rest.answers import GetAnswer
from laneway.frontends.rest.dequeuing import give_back
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.routing import ApiRoute
from laneway.frontends.rest.writing import AnswerWriter

Action = Literal["ack", "release", "reject"]

#: What becomes of the messages; None: whoever took them says so, with their receipt handles.
ACK_MODES: dict[str, Action | None] = {
    "manual": None,
    "ack_requeue_false": "ack",
    "ack_requeue_true": "release",
    "reject_requeue_true": "release",
    "reject_requeue_false": "reject",
}


class GetOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    count: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    ack_mode: Annotated[str, Meta(pattern=f"^({'|'.join(ACK_MODES)})$")] | UnsetType = UNSET


class Getting:
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer

    @ApiRoute(
        "GET", "{Q}/get", short=True, has_head=False, options=GetOptions, answers={200: GetAnswer}, refusals=(404,)
    )
    def get_messages(self, call: Call) -> None:
        """Take messages; ack_mode says what becomes of them."""
        plan: HeadPlan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.queue, "read")
        options: GetOptions = plan.options(GetOptions)
        count = options.count or 1
        if count > self._limits.batch_count:
            raise InvalidInput(
                f"count is {count}, at most {self._limits.batch_count} can be had at once",
                field="count",
                limit=self._limits.batch_count,
            )
        action = ACK_MODES[options.ack_mode or "manual"]
        source = self._broker.topology.find_queue(plan.vhost, plan.queue)
        lease = Lease(source.queue, count, account=call.account.name, protocol=HTTP)
        self._broker.send(lease, partial(self._taken, call, action))

    @answering
    def _taken(self, call: Call, action: Action | None, deliveries: Deliveries) -> None:
        if call.is_abandoned or call.response is not None:
            give_back(self._broker, call, deliveries)
            return
        if action is not None:
            deliveries = self._writer.showable(deliveries)
        if action is None or not len(deliveries):
            call.answer_pieces(200, *self._writer.deliveries(deliveries))
        else:
            settlements = [Settlement(action, token) for token in deliveries.tokens()]
            settle = Settle(deliveries.queue, settlements, call.account.name, HTTP)
            self._broker.send(settle, partial(self._settled, call, deliveries))

    @answering
    def _settled(self, call: Call, deliveries: Deliveries, results: list[int | LanewayError]) -> None:
        """Those whose lease ended in between, if any, are not this caller's: they are left out."""
        gone = [i for i, result in enumerate(results) if isinstance(result, LanewayError)]
        settled = deliveries.without(gone) if gone else deliveries
        call.answer_pieces(200, *self._writer.deliveries(settled, with_handles=False))
