"""Single publishes. Those for one queue that share a commit are decoded, published and answered together, as a list of
the usual messages is: most of what a message costs then, many share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from laneway.broker.broker import Broker
from laneway.core.digits import SEQ_DIGITS
from laneway.core.message import Receipts
from laneway.errors import LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answering import answer_anyway
from laneway.frontends.rest.publishing import decode_singles
from laneway.frontends.rest.writing import Writer


class Singles:
    def __init__(self, broker: Broker, writer: Writer, publish_alone: Callable[[Call], None]) -> None:
        self._broker = broker
        self._gather_more = broker.gather_more
        self._writer = writer
        self._publish_alone = publish_alone
        #: By virtual host and queue, until the broker carries out what is gathered.
        self._gathered: dict[tuple[str, str], list[Call]] = {}

    def add(self, call: Call, place: tuple[str, str]) -> None:
        """A connection has one here at most, and those are small (Plan.is_gathered): so much can be gathered."""
        gathered = self._gathered.get(place)
        if gathered is not None:
            self._gather_more()
            gathered.append(call)
            return
        if self._gathered:
            self._gather_more()
        else:
            self._broker.gather(self._publish_gathered)
        self._gathered[place] = [call]

    def _publish_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for place, calls in gathered.items():
            try:
                is_done = len(calls) > 1 and self._are_published(place, calls)
            except Exception as trouble:  # which is no reason for anybody else to hear of it
                for call in calls:
                    answer_anyway(call, trouble)
                continue
            for call in () if is_done else calls:
                try:
                    self._publish_alone(call)
                except Exception as trouble:
                    answer_anyway(call, trouble)

    def _are_published(self, place: tuple[str, str], calls: list[Call]) -> bool:
        """False, and nothing is done, if something about one of them or the queue wants a closer look."""
        plain = decode_singles([call.body for call in calls])
        try:
            return plain is not None and self._broker.publish_bodies(
                *place, plain.bodies, plain.priorities, partial(self._published, calls)
            )
        except LanewayError:
            return False  # each of them hears of it

    def _published(self, calls: list[Call], told: Receipts | LanewayError) -> None:
        """Hot: all but the number in the id is the same for those of one priority, the head of the answer too."""
        if isinstance(told, LanewayError):
            for call in calls:
                answer_anyway(call, told)
            return
        around: dict[int, tuple[bytes, bytes]] = {}
        for call, high, low, priority in zip(calls, *self._writer.numbers(told.seqs), told.priorities, strict=True):
            try:
                if priority not in around:
                    around[priority] = self._around(call, told, priority)
                start, end = around[priority]
                connection = call.connection
                if call.head.is_plain and not connection.shared.is_stopping:
                    connection.send(call, start + high + low + end)
                else:
                    start, end = self._writer.around_number(told, priority, call.head.plan.queue_json)
                    call.answer(201, start + high + low + end)
            except Exception as trouble:
                answer_anyway(call, trouble)

    def _around(self, call: Call, told: Receipts, priority: int) -> tuple[bytes, bytes]:
        """What stands before and behind the number in the usual answer, its head included."""
        start, end = self._writer.around_number(told, priority, call.head.plan.queue_json)
        return call.head_of_answer(201, len(start) + SEQ_DIGITS + len(end)) + start, end
