"""Dequeue: a lease, and its wait. The broker lets those who ask for the same in one turn of the loop share a lease."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from laneway.access import Access
from laneway.broker.interface import HTTP, Broker, Lease, Settle
from laneway.broker.values import Deliveries
from laneway.core.message import Settlement
from laneway.errors import InvalidInput
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answering import answering
from laneway.frontends.rest.answers import DequeueAnswer
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.routing import ApiRoute
from laneway.frontends.rest.wire import DequeueRequest, check_names_once, decoder
from laneway.frontends.rest.words import milliseconds
from laneway.frontends.rest.writing import AnswerWriter

_REMEMBERED_BODIES = 1024
_REMEMBERED_BODY_BYTES = 512


class _Dequeue(NamedTuple):
    """A dequeue request in the broker's words."""

    max_messages: int
    lease_ms: int | None
    wait_ms: int
    consumer: str


class Dequeuing:
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer
        self._decode = decoder(DequeueRequest)
        self._known: dict[bytes, _Dequeue] = {}

    @ApiRoute(
        "POST", "{Q}/dequeue", request=DequeueRequest, body_optional=True, answers={200: DequeueAnswer}, refusals=(404,)
    )
    def dequeue(self, call: Call) -> None:
        """Lease messages, highest priority first; wait for the first one if asked to."""
        plan: HeadPlan = call.head.plan
        if not plan.is_allowed:
            plan.check(self._access, call.account, "read")
        asked = self._known.get(call.body) or self._asked(call.body)
        source = self._broker.topology.find_queue(plan.vhost, plan.queue)
        if not asked.wait_ms and call.connection.is_pipelined:
            call.connection.hold(call)  # or one client could have many large answers in memory at once
        number = self._broker.send(Lease(source.queue, *asked, call.account.name, HTTP), partial(self._leased, call))
        if number and call.response is None:
            call.waiter = number

    def _asked(self, body: bytes) -> _Dequeue:
        """What a body asks for. Consumers ask for the same thing again and again, so it is remembered."""
        request: DequeueRequest = self._decode(body) if body else DequeueRequest()
        if body:
            check_names_once(body)
        limits = self._limits
        lease = request.visibility_timeout
        asked = _Dequeue(
            request.max_messages,
            None if lease is None else milliseconds(lease, "visibility_timeout"),
            milliseconds(request.wait_seconds, "wait_seconds"),
            request.consumer_id or "",
        )
        if asked.max_messages > limits.batch_count:
            raise InvalidInput(
                f"max_messages is {asked.max_messages}, at most {limits.batch_count} can be had at once",
                field="max_messages",
                limit=limits.batch_count,
            )
        if asked.wait_ms > limits.wait_ms:
            raise InvalidInput(
                f"wait_seconds is {request.wait_seconds:g}, the longest wait is {limits.wait_ms / 1000:g} seconds",
                field="wait_seconds",
                limit=limits.wait_ms / 1000,
            )
        if len(body) <= _REMEMBERED_BODY_BYTES:
            if len(self._known) >= _REMEMBERED_BODIES:
                self._known.clear()
            self._known[body] = asked
        return asked

    def end_wait(self, call: Call) -> None:
        self._broker.withdraw(call.waiter, answer=not call.is_abandoned)

    @answering
    def _leased(self, call: Call, deliveries: Deliveries) -> None:
        call.waiter = None
        if call.is_abandoned or call.response is not None:
            give_back(self._broker, call, deliveries)
        else:
            call.answer_pieces(200, *self._writer.deliveries(deliveries))


def give_back(broker: Broker, call: Call, deliveries: Deliveries) -> None:
    """Release what nobody is there to take, so that others have it now and not when the leases expire."""
    if len(deliveries):
        released = [Settlement("release", token) for token in deliveries.tokens()]
        broker.send(Settle(deliveries.queue, released, call.account.name), _ignore)


def _ignore(answer: object) -> None:
    pass
