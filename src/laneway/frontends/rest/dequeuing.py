"""Dequeue. Those that come in one turn of the loop and ask for the same are gathered, and share one lease."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.core.message import Delivery, Settlement, part_of
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answering import answer_anyway, answers_anyway
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.wire import DequeueRequest, check_names_once, decoder
from laneway.frontends.rest.words import milliseconds
from laneway.frontends.rest.writing import Writer

_REMEMBERED_BODIES = 1024
_REMEMBERED_BODY_BYTES = 512


class _Dequeue(NamedTuple):
    """A dequeue request in the broker's words."""

    max_messages: int
    lease_ms: int | None
    wait_ms: int
    consumer: str


class _Asker:
    """One who asks, and what its call waits for while it is gathered."""

    __slots__ = ("asked", "call", "is_cancelled")

    def __init__(self, call: Call, asked: _Dequeue) -> None:
        self.call = call
        self.asked = asked
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Dequeuing:
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: Writer) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer
        self._decode = decoder(DequeueRequest)
        self._known: dict[bytes, _Dequeue] = {}
        #: By queue, length of the lease and consumer; dealt with when this turn of the loop has brought all it has.
        self._gathered: dict[tuple[str, str, int | None, str], list[_Asker]] = {}

    def dequeue(self, call: Call) -> None:
        plan: Plan = call.head.plan
        if not plan.is_allowed:
            plan.check(self._access, call.account, "read")
        asked = self._known.get(call.body) or self._asked(call.body)
        if not call.is_alone:  # those behind it must not overtake it, nor it those before it
            if self._gathered:
                self._deal_gathered()
            self._lease(call, asked)
            return
        if not self._gathered:
            self._broker.call_soon(self._deal_gathered)
        call.waiter = one = _Asker(call, asked)
        self._gathered.setdefault((plan.vhost, plan.queue, asked.lease_ms, asked.consumer), []).append(one)

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
        if call.waiter is not None:
            call.waiter.cancel()
            call.waiter = None
            call.answer(200, b'{"messages":[]}')

    # --- leasing

    def _deal_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for (vhost, queue, lease_ms, consumer), askers in gathered.items():
            waiting = [one for one in askers if not one.is_cancelled]
            deliveries: Sequence[Delivery] = ()
            if len(waiting) > 1:
                total = sum([one.asked.max_messages for one in waiting])
                try:
                    deliveries = self._broker.lease_durable(vhost, queue, total, lease_ms=lease_ms, consumer=consumer)
                except LanewayError:
                    pass  # each of them hears of it
                except Exception as trouble:
                    for one in waiting:
                        answer_anyway(one.call, trouble)
                    continue
            self._deal(waiting, deliveries)

    def _deal(self, waiting: list[_Asker], deliveries: Sequence[Delivery]) -> None:
        """To each in turn as many as it asked for; those for whom nothing is left ask on their own."""
        at, end = 0, len(deliveries)
        for one in waiting:
            call, count = one.call, one.asked.max_messages
            call.waiter = None
            if at >= end:
                self._lease_or_refuse(call, one.asked)
            else:
                self._leased(call, part_of(deliveries, at, at + count))
            at += count

    @answers_anyway
    def _lease_or_refuse(self, call: Call, asked: _Dequeue) -> None:
        self._lease(call, asked)

    def _lease(self, call: Call, asked: _Dequeue) -> None:
        plan: Plan = call.head.plan
        waiter = self._broker.lease(
            plan.vhost,
            plan.queue,
            max_messages=asked.max_messages,
            done=partial(self._leased, call),
            lease_ms=asked.lease_ms,
            wait_ms=asked.wait_ms,
            consumer=asked.consumer,
        )
        if call.response is None:
            call.waiter = waiter

    @answers_anyway
    def _leased(self, call: Call, deliveries: Sequence[Delivery]) -> None:
        call.waiter = None
        if call.is_abandoned or call.response is not None:
            give_back(self._broker, call.head.plan, deliveries)
            return
        call.answer_pieces(200, *self._writer.delivery_pieces(deliveries))


def give_back(broker: Broker, plan: Plan, deliveries: Sequence[Delivery]) -> None:
    """Nobody is there any more to take these: others may have them now rather than when the leases expire."""
    if deliveries:
        returned = [Settlement("release", delivery.token) for delivery in deliveries]
        try:
            broker.settle(plan.vhost, plan.queue, returned, _ignore)
        except LanewayError:
            pass  # then the leases expire


def _ignore(results: object) -> None:
    pass
