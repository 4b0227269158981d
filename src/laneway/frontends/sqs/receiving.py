"""ReceiveMessage. Those that come in one turn of the loop and ask for the same are gathered, and share one lease."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from operator import add
from typing import Any

from laneway.broker.broker import Broker
from laneway.broker.values import Delivery, Settlement
from laneway.core.digits import hex_lines
from laneway.core.message import Deliveries, message_id_prefix
from laneway.errors import LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.sqs import message_attributes
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask, answers_anyway
from laneway.frontends.sqs.attempts import AttemptKey, Attempts
from laneway.frontends.sqs.errors import SqsError, value_invalid
from laneway.frontends.sqs.message_attributes import Wanted, sequence_number
from laneway.frontends.sqs.queue_attributes import View, visibility_ms
from laneway.frontends.sqs.recent import Md5s, Recent
from laneway.frontends.sqs.views import Views

MOST_MESSAGES = 10
MAX_WAIT_S = 20
_REMEMBERED_RECEIVES = 1 << 16
_NOTHING: frozenset[str] = frozenset()
_NOT_WANTED = Wanted([])
_SYSTEM = frozenset(
    {
        "All",
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "SequenceNumber",
        "MessageDeduplicationId",
        "MessageGroupId",
        "AWSTraceHeader",
        "DeadLetterQueueSourceArn",
    }
)


class Receive:
    """One request, checked; while it is gathered, what its call waits for."""

    __slots__ = (
        "ask",
        "attempt",
        "count",
        "is_cancelled",
        "is_plain",
        "lease_ms",
        "system",
        "view",
        "wait_ms",
        "wanted",
    )

    def __init__(self, ask: Ask, asked: w.ReceiveMessage, view: View) -> None:
        self.ask = ask
        self.view = view
        self.attempt: AttemptKey | None = None
        self.is_cancelled = False
        self.count = 1 if asked.MaxNumberOfMessages is None else asked.MaxNumberOfMessages
        if not 1 <= self.count <= MOST_MESSAGES:
            raise value_invalid(self.count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
        self.wait_ms = view.wait_ms
        if asked.WaitTimeSeconds is not None:
            if not 0 <= asked.WaitTimeSeconds <= MAX_WAIT_S:
                raise value_invalid(asked.WaitTimeSeconds, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
            self.wait_ms = asked.WaitTimeSeconds * 1000
        self.lease_ms = None if asked.VisibilityTimeout is None else visibility_ms(asked.VisibilityTimeout)
        self.system, self.wanted = _NOTHING, _NOT_WANTED
        if asked.AttributeNames or asked.MessageSystemAttributeNames:
            self.system = frozenset(asked.AttributeNames) | frozenset(asked.MessageSystemAttributeNames)
            for unknown in self.system - _SYSTEM:
                raise SqsError("InvalidAttributeName", f"Unknown Attribute {unknown}.")
        if asked.MessageAttributeNames:
            self.wanted = Wanted(asked.MessageAttributeNames)
        self.is_plain = not (self.system or asked.MessageAttributeNames)

    def cancel(self) -> None:
        self.is_cancelled = True


class Plain:
    """Hot: what those who want nothing but bodies are told of deliveries, in columns."""

    __slots__ = ("bodies", "handles", "ids", "md5s")

    def __init__(self, d: Deliveries, md5s: Md5s) -> None:
        numbers = hex_lines(d.seqs).replace("\n0000", "\n")[1:].split("\n")
        leases = hex_lines(range(d.first_lease, d.first_lease + len(numbers)))[1:].split("\n")
        prefixes = {at_ms: message_id_prefix(at_ms, d.tag) for at_ms in set(d.enqueued_at_ms)}
        self.ids = list(map(add, map(prefixes.__getitem__, d.enqueued_at_ms), numbers))
        self.handles = list(map(add, leases, numbers))
        known = md5s.of_neighbours(d.seqs)
        bodies = list(map(bytes, d.bodies))
        self.bodies = bodies if known is not None else _shown(bodies)
        self.md5s = known if known is not None else md5s.of(d.seqs, self.bodies)

    def result(self, at: int, end: int) -> w.PlainReceiveResult:
        """Of some of them. Texts are made no sooner than they are needed: kilobytes are dear to keep around."""
        columns = self.ids[at:end], self.handles[at:end], self.md5s[at:end], map(bytes.decode, self.bodies[at:end])
        return w.PlainReceiveResult(list(map(w.PlainMessage, *columns)))


class Receiving:
    def __init__(self, broker: Broker, views: Views, md5s: Md5s) -> None:
        self._broker = broker
        self._views = views
        self._md5s = md5s
        self._attempts = Attempts(broker)
        #: By queue, length of the lease and consumer; dealt with when this turn of the loop has brought all it has.
        self._gathered: dict[tuple[str, str, int | None, str], list[Receive]] = {}
        #: When messages were first received, as far as this process knows: SQS calls it approximate.
        self._first_received_ms = Recent(_REMEMBERED_RECEIVES, 8)

    def receive(self, ask: Ask, asked: w.ReceiveMessage) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        one = Receive(ask, asked, view)
        if asked.ReceiveRequestAttemptId is not None:
            one.attempt = self._attempts.key(ask, view, asked.ReceiveRequestAttemptId)
        call = ask.call
        call.state = ask
        if view.is_fifo:  # what one gets depends on the groups that the one before it holds
            self._lease(ask, one)
            return
        if not self._gathered:
            self._broker.call_soon(self._deal_gathered)
        call.waiter = one
        self._gathered.setdefault((ask.caller.vhost, view.name, one.lease_ms, ask.caller.account.name), []).append(one)

    def end_wait(self, call: Call) -> None:
        if call.waiter is not None:
            call.waiter.cancel()
            call.waiter = None
            call.state.answer(w.ReceiveMessageResult())

    # --- leasing

    def _deal_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for (vhost, name, lease_ms, account), ones in gathered.items():
            waiting = [one for one in ones if not one.is_cancelled]
            try:
                self._deal(waiting, self._leased(vhost, name, lease_ms, account, waiting))
            except Exception as trouble:
                for one in waiting:
                    one.ask.refuse(trouble)  # unless it was answered before

    def _leased(
        self, vhost: str, name: str, lease_ms: int | None, account: str, waiting: list[Receive]
    ) -> Sequence[Delivery]:
        if len(waiting) < 2:
            return ()
        total = sum([one.count for one in waiting])
        try:
            return self._broker.lease_durable(vhost, name, total, lease_ms=lease_ms, consumer=account[:64])
        except LanewayError:
            return ()  # each of them hears of it

    def _deal(self, waiting: list[Receive], deliveries: Sequence[Delivery]) -> None:
        """To each in turn as many as it asked for; those for whom nothing is left ask on their own."""
        plain = None
        if isinstance(deliveries, Deliveries) and any(one.is_plain for one in waiting):
            plain = self._plain(deliveries)
        at, end = 0, len(deliveries)
        for one in waiting:
            call = one.ask.call
            call.waiter = None
            if at >= end:
                self._lease(one.ask, one)
            elif plain is not None and one.is_plain and not call.is_abandoned:
                one.ask.answer(plain.result(at, at + one.count))
            else:
                self._received(one.ask, one, deliveries[at : at + one.count])
            at += one.count

    @answers_anyway
    def _lease(self, ask: Ask, one: Receive) -> None:
        if one.attempt is not None and (again := self._attempts.again(one.attempt, one.lease_ms)) is not None:
            self._received(ask, one, again)
            return
        waiter = self._broker.lease(
            ask.caller.vhost,
            one.view.name,
            max_messages=one.count,
            done=partial(self._received, ask, one),
            lease_ms=one.lease_ms,
            wait_ms=one.wait_ms,
            consumer=ask.caller.account.name[:64],
        )
        if ask.call.response is None:
            ask.call.waiter = waiter

    # --- answering

    @answers_anyway
    def _received(self, ask: Ask, one: Receive, deliveries: Sequence[Delivery]) -> None:
        call = ask.call
        call.waiter = None
        if call.is_abandoned or call.response is not None:
            self._give_back(ask, one.view.name, deliveries)
            return
        if one.attempt is not None:
            self._attempts.note(one.attempt, deliveries)
        if one.is_plain and isinstance(deliveries, Deliveries):
            ask.answer(self._plain(deliveries).result(0, len(deliveries)))
        else:
            ask.answer(w.ReceiveMessageResult(Messages=[self._message(one, d) for d in deliveries]))

    def _plain(self, d: Deliveries) -> Plain:
        seqs = d.seqs
        firsts = (
            seqs if d.receives.count(1) == len(seqs) else [s for s, n in zip(seqs, d.receives, strict=True) if n == 1]
        )
        if firsts:
            self._first_received_ms.note(firsts, self._broker.now().to_bytes(8, "big") * len(firsts))
        return Plain(d, self._md5s)

    def _message(self, one: Receive, d: Delivery) -> w.Message:
        now_ms = self._broker.now()
        number = int(d.message_id[-12:], 16)
        first_received = self._first_received_ms.get(number)
        if first_received is None:
            first_received = now_ms.to_bytes(8, "big")
            if d.receives == 1:
                self._first_received_ms.note((number,), first_received)
        bodies = _shown((d.body,))
        message = w.Message(
            MessageId=d.message_id,
            ReceiptHandle=d.token,
            MD5OfBody=self._md5s.of((number,), bodies)[0],
            Body=bodies[0].decode(),
        )
        system, wanted = one.system, one.wanted
        if system:
            everything = self._system_attributes(one, d, int.from_bytes(first_received, "big"))
            message.Attributes = (
                everything if "All" in system else {name: v for name, v in everything.items() if name in system}
            )
        if wanted and d.properties.attributes:
            types = d.properties.extra.get("sqs", {}).get("types", {})
            shown = message_attributes.shown(d.properties.attributes, types, wanted)
            if shown:
                message.MessageAttributes = shown
                message.MD5OfMessageAttributes = message_attributes.md5_of(shown)
        return message

    def _system_attributes(self, one: Receive, d: Delivery, first_receive_ms: int) -> dict[str, str]:
        own: dict[str, Any] = d.properties.extra.get("sqs", {})
        attributes = {
            "SenderId": own.get("sender", "laneway"),
            "SentTimestamp": str(d.enqueued_at_ms),
            "ApproximateReceiveCount": str(d.receives),
            "ApproximateFirstReceiveTimestamp": str(first_receive_ms),
        }
        if one.view.is_fifo:
            attributes["SequenceNumber"] = sequence_number(d.message_id)
            attributes["MessageGroupId"] = d.properties.group
            attributes["MessageDeduplicationId"] = own.get("dedup_id", d.properties.dedup_id)
        elif d.properties.tenant:
            attributes["MessageGroupId"] = d.properties.tenant
        if "trace" in own:
            attributes["AWSTraceHeader"] = own["trace"]
        if d.deaths:
            attributes["DeadLetterQueueSourceArn"] = one.ask.arn(d.deaths[-1].queue)
        return attributes

    def _give_back(self, ask: Ask, name: str, deliveries: Sequence[Delivery]) -> None:
        """Nobody is there any more to take these: others may have them now rather than when the leases expire."""
        if deliveries:
            try:
                self._broker.settle(
                    ask.caller.vhost, name, [Settlement("release", d.token) for d in deliveries], lambda _: None
                )
            except LanewayError:
                pass  # then the leases expire


def _shown(bodies: Sequence[bytes]) -> Sequence[bytes]:
    """Bodies as they are shown, and as the MD5s are of. One of another protocol that is no text is shown in Base64."""
    if all(map(bytes.isascii, bodies)):
        return bodies
    return [body if _is_text(body) else base64.b64encode(body) for body in bodies]


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
