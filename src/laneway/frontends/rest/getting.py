"""`get`: take messages and say in the same request what becomes of them, in the words of RabbitMQ's management API.

A GET that changes something is against the custom of HTTP, so nothing but GET itself leads here: HEAD is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.core.message import Delivery, Settlement
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answering import answers_anyway
from laneway.frontends.rest.answers import GetAnswer
from laneway.frontends.rest.dequeuing import give_back
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.routing import Route
from laneway.frontends.rest.writing import Writer

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
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: Writer) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer

    def get(self, call: Call) -> None:
        plan: Plan = call.head.plan
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
        done = partial(self._taken, call, action)
        self._broker.lease(plan.vhost, plan.queue, max_messages=count, done=done)

    @answers_anyway
    def _taken(self, call: Call, action: Action | None, deliveries: Sequence[Delivery]) -> None:
        plan: Plan = call.head.plan
        if call.is_abandoned or call.response is not None:
            give_back(self._broker, plan, deliveries)
        elif action is None or not deliveries:
            call.answer(200, self._writer.gotten(deliveries, with_handles=True))
        else:
            settlements = [Settlement(action, delivery.token) for delivery in deliveries]
            done: Callable[[list[int | LanewayError]], None] = partial(self._settled, call, deliveries)
            self._broker.settle(plan.vhost, plan.queue, settlements, done)

    @answers_anyway
    def _settled(self, call: Call, deliveries: Sequence[Delivery], results: Sequence[int | LanewayError]) -> None:
        """Those whose lease ended in between, if any, are not this caller's: they are left out."""
        settled = [d for d, result in zip(deliveries, results, strict=True) if not isinstance(result, LanewayError)]
        call.answer(200, self._writer.gotten(settled, with_handles=False))


def get_routes(getting: Getting) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="{Q}/get",
            short=True,
            has_head=False,
            name="get_messages",
            summary="Take messages; ack_mode says what becomes of them",
            fast=getting.get,
            options=GetOptions,
            answers={200: GetAnswer},
            refusals=(404,),
        ),
    ]
