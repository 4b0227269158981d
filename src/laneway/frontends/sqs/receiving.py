"""ReceiveMessage: one Lease for each request, and an answer written from the columns of its Deliveries."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from operator import add
from typing import Any

from laneway.broker.interface import SQS, Broker, Lease, LeaseAgain, Settle
from laneway.broker.values import Deliveries, Properties, Settlement
from laneway.core.digits import SEQ_DIGITS
from laneway.core.message import decode_props, message_id_prefix
from laneway.errors import LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask, answering
from laneway.frontends.sqs.attempts import AttemptKey, Attempts
from laneway.frontends.sqs.callers import Caller
from laneway.frontends.sqs.errors import SqsError, value_invalid
from laneway.frontends.sqs.message_attributes import Wanted, md5_text, sequence_number, show_attributes
from laneway.frontends.sqs.queue_attributes import View, visibility_ms
from laneway.frontends.sqs.recent import Recent
from laneway.frontends.sqs.views import Views

log = logging.getLogger("laneway.sqs")

MOST_MESSAGES = 10
MAX_WAIT_S = 20
_REMEMBERED_RECEIVES = 1 << 16
_NOTHING: dict[str, Any] = {}
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


class _Receive:
    """One request, checked; its call knows its wait by it."""

    __slots__ = ("ask", "attempt", "count", "lease_ms", "number", "system", "url", "view", "wait_ms", "wanted")

    def __init__(self, ask: Ask, asked: w.ReceiveMessage, view: View) -> None:
        self.ask = ask
        self.url = asked.QueueUrl
        self.number = 0  # of the Lease, once it is sent
        self.view = view
        self.attempt: AttemptKey | None = None
        self.count = 1 if asked.MaxNumberOfMessages is None else asked.MaxNumberOfMessages
        if not 1 <= self.count <= MOST_MESSAGES:
            raise value_invalid(self.count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
        self.wait_ms = view.wait_ms
        if asked.WaitTimeSeconds is not None:
            if not 0 <= asked.WaitTimeSeconds <= MAX_WAIT_S:
                raise value_invalid(asked.WaitTimeSeconds, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
            self.wait_ms = asked.WaitTimeSeconds * 1000
        self.lease_ms = None if asked.VisibilityTimeout is None else visibility_ms(asked.VisibilityTimeout)
        self.system = {*asked.AttributeNames, *asked.MessageSystemAttributeNames}
        for unknown in self.system - _SYSTEM:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {unknown}.")
        self.wanted = Wanted(asked.MessageAttributeNames)


class Receiving:
    def __init__(self, broker: Broker, views: Views, md5s: Recent[str]) -> None:
        self._broker = broker
        self._views = views
        self._md5s = md5s
        self._attempts = Attempts(broker)
        #: When messages were first received, as far as this process knows: SQS calls it approximate.
        self._first_received_ms: Recent[int] = Recent(_REMEMBERED_RECEIVES)

    def receive(self, ask: Ask, asked: w.ReceiveMessage) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        one = _Receive(ask, asked, view)
        if asked.ReceiveRequestAttemptId is not None:
            one.attempt = self._attempts.key(ask, view, asked.ReceiveRequestAttemptId)
        ask.call.waiter = one
        earlier = None if one.attempt is None else self._attempts.find(one.attempt)
        if earlier is None:
            self._lease(ask, one)
        else:
            again = LeaseAgain(view.queue, earlier.tokens, earlier.deadline_ms, one.lease_ms)
            self._broker.send(again, partial(self._leased_again, ask, one))

    def end_wait(self, call: Call) -> None:
        one: _Receive = call.waiter
        one.wait_ms = 0  # if it repeats an earlier one, its Lease may not be sent yet
        if one.number:
            self._broker.withdraw(one.number, answer=not call.is_abandoned)

    def recheck(self, call: Call, who: Callable[[], tuple[Caller, object]]) -> None:
        """Refuse a receive that waits if it would be refused now."""
        one: _Receive = call.waiter
        try:
            one.ask.caller = who()[0]
            one.ask.queue(one.url, "read")
        except LanewayError as error:
            self._broker.withdraw(one.number)
            call.waiter = None
            one.ask.refuse(error)

    @answering
    def _leased_again(self, ask: Ask, one: _Receive, deliveries: Deliveries) -> None:
        if len(deliveries):
            self._received(ask, one, deliveries)
        elif ask.call.response is None:
            self._lease(ask, one)

    def _lease(self, ask: Ask, one: _Receive) -> None:
        account = ask.caller.account.name
        lease = Lease(one.view.queue, one.count, one.lease_ms, one.wait_ms, account[:64], account, SQS)
        one.number = self._broker.send(lease, partial(self._received, ask, one))

    @answering
    def _received(self, ask: Ask, one: _Receive, deliveries: Deliveries) -> None:
        call = ask.call
        call.waiter = None
        if call.is_abandoned or call.response is not None:
            self._give_back(one, deliveries)
            return
        if one.attempt is not None:
            self._attempts.note(one.attempt, deliveries)
        ask.answer(w.ReceiveMessageResult(self._shown(ask, one, deliveries)))

    def _give_back(self, one: _Receive, deliveries: Deliveries) -> None:
        """Nobody is there any more to take these: others may have them now rather than when the leases expire."""
        released = [Settlement("release", token) for token in deliveries.tokens()]
        if released:
            self._broker.send(Settle(one.view.queue, released, one.ask.caller.account.name), lambda _: None)

    # --- from the columns of deliveries to messages

    def _shown(self, ask: Ask, one: _Receive, d: Deliveries) -> list[w.ReceivedMessage]:
        """All but those that cannot be shown. These stay in flight until their visibility timeouts end, count as
        received, and in the end are dead letters."""
        try:
            return self._messages(ask, one, d)
        except Exception:
            broken = d.broken(partial(self._messages, ask, one))
            for i, trouble in broken.items():
                log.error(
                    "message %s of queue %r cannot be received and is set aside",
                    d.message_id(i),
                    d.queue_name,
                    exc_info=trouble,
                )
            return self._messages(ask, one, d.without(broken))

    def _messages(self, ask: Ask, one: _Receive, d: Deliveries) -> list[w.ReceivedMessage]:
        handles = d.tokens()
        ids = _message_ids(d, handles)
        md5s, texts = self._bodies(d)
        now_ms = self._broker.now()
        fresh = [seq for seq, receives in zip(d.seqs, d.receives, strict=True) if receives == 1]
        self._first_received_ms.note(d.tag, fresh, repeat(now_ms))
        system: Iterable[dict[str, str]] = repeat(_NOTHING)
        attribute_md5s: Iterable[str | None] = repeat(None)
        attributes: Iterable[w.AttributeValues] = repeat(_NOTHING)
        properties = list(map(decode_props, d.props)) if one.system or one.wanted else []
        if one.system:
            system = self._system_attributes(ask, one, d, properties, ids, now_ms)
        if one.wanted:
            shown = [show_attributes(p, one.wanted) for p in properties]
            attribute_md5s, attributes = [md5 for md5, _ in shown], [values for _, values in shown]
        return list(map(w.ReceivedMessage, ids, handles, md5s, texts, system, attribute_md5s, attributes))

    def _bodies(self, d: Deliveries) -> tuple[list[str], list[str]]:
        """(MD5s, texts). A body of another protocol that is no text is shown in Base64, and its MD5 is of that."""
        md5s: list[str] = []
        texts: list[str] = []
        for body, md5 in zip(d.bodies, self._md5s.get(d.tag, d.seqs), strict=True):
            try:
                texts.append(str(body, "utf-8"))
            except UnicodeDecodeError:
                body = base64.b64encode(body)
                texts.append(body.decode())
            md5s.append(md5 or md5_text(body))
        return md5s, texts

    def _system_attributes(
        self, ask: Ask, one: _Receive, d: Deliveries, properties: list[Properties], ids: list[str], now_ms: int
    ) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        first_received_ms = self._first_received_ms.get(d.tag, d.seqs)
        for i, p in enumerate(properties):
            own: dict[str, Any] = p.extra.get("sqs", {})  # what this front end kept of it, if it was sent here
            story = d.stories.get(d.seqs[i])
            receives = d.receives[i]
            if story is not None:  # it goes on being counted where it was moved to; a redrive begins anew
                receives += sum([death.receives for death in story.deaths[story.redriven :]])
            attributes = {
                "SenderId": own.get("sender", "laneway"),
                "SentTimestamp": str(d.enqueued_at_ms[i]),
                "ApproximateReceiveCount": str(receives),
                "ApproximateFirstReceiveTimestamp": str(first_received_ms[i] or now_ms),
            }
            if one.view.is_fifo:
                attributes["SequenceNumber"] = sequence_number(ids[i])
                attributes["MessageGroupId"] = p.group
                attributes["MessageDeduplicationId"] = own.get("dedup_id", p.dedup_id)
            elif p.tenant:
                attributes["MessageGroupId"] = p.tenant
            if "trace" in own:
                attributes["AWSTraceHeader"] = own["trace"]
            if story is not None and story.deaths:
                attributes["DeadLetterQueueSourceArn"] = ask.arn(story.deaths[-1].queue)
            if "All" not in one.system:
                attributes = {name: text for name, text in attributes.items() if name in one.system}
            found.append(attributes)
        return found


def _message_ids(d: Deliveries, handles: list[str]) -> list[str]:
    if d.stories:
        return list(map(d.message_id, range(len(d))))
    # A handle ends with the digits of the message's number, and so does its id.
    numbers = [handle[-SEQ_DIGITS:] for handle in handles]
    return list(map(add, map(message_id_prefix, d.enqueued_at_ms, repeat(d.tag)), numbers))
