"""The frequent actions: send, receive, delete, change visibility, each alone and as a batch.

Nothing here awaits: a handler checks, calls the broker, and returns; the broker calls back when the answer is known and
durable, and the answer is put together right there.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from functools import partial, wraps
from hashlib import md5
from typing import Any, TypeVar

from laneway.broker.broker import Broker
from laneway.broker.values import Delivery, Receipt, Settlement
from laneway.core.message import Deliveries, Receipts, message_id_prefix, token
from laneway.errors import LanewayError, LeaseStale
from laneway.frontends.http.protocol import Call
from laneway.frontends.sqs import message_attributes
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.attempts import AttemptKey, Attempts
from laneway.frontends.sqs.drafts import Senders, Sent, plain_bodies
from laneway.frontends.sqs.errors import SqsError, no_such_queue, sqs_error, value_invalid
from laneway.frontends.sqs.message_attributes import Wanted
from laneway.frontends.sqs.queue_attributes import MAX_MESSAGE_BYTES, View

BATCH_COUNT = 10
MAX_WAIT_S = 20
MAX_VISIBILITY_S = 43_200
_REMEMBERED_RECEIVES = 50_000  # at least, and at most twice as many
_REMEMBERED_VIEWS = 10_000
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
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

_E = TypeVar("_E", bound="w.HandleEntry | w.SendMessageBatchEntry")


def answers_anyway(callback: Callable[..., None]) -> Callable[..., None]:
    """If an answer cannot be put together, its client is told so, and the log why."""

    @wraps(callback)
    def guarded(self: object, ask: Ask, *rest: Any) -> None:
        try:
            callback(self, ask, *rest)
        except Exception as error:
            ask.refuse(error)

    return guarded


def sequence_number(message_id: str) -> str:
    """Twenty digits that rise with every message: the number that a message id ends with."""
    return f"{int(message_id[-12:], 16):020d}"


class Messages:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._senders = Senders()
        self._attempts = Attempts(broker)
        self._views: dict[tuple[str, str], View] = {}
        #: message id -> when it was first received. Bounded, and of this process: SQS calls it approximate. In two
        #: generations, of which the older goes as a whole: a dict that is emptied from its front gets slow.
        self._first_received_ms: dict[str, int] = {}
        self._older_first_received_ms: dict[str, int] = {}

    def _view(self, ask: Ask, name: str) -> View:
        info = self._broker.find_info(ask.vhost, name)
        if info is None:
            raise no_such_queue()
        view = self._views.get((ask.vhost, name))
        if view is None or view.settings is not info.settings:
            if len(self._views) >= _REMEMBERED_VIEWS:
                self._views.clear()
            view = self._views[ask.vhost, name] = View(name, info.settings)
        return view

    # --- send

    def send(self, ask: Ask, asked: w.SendMessage) -> None:
        name = ask.queue(asked.QueueUrl, "write")
        view = self._view(ask, name)
        sent = self._senders.sent(asked, view, ask.account.name)
        self._broker.publish_one(ask.vhost, name, sent.draft, partial(self._sent, ask, view, sent))

    @answers_anyway
    def _sent(self, ask: Ask, view: View, sent: Sent, results: list[Receipt | LanewayError]) -> None:
        receipt = results[0]
        if isinstance(receipt, LanewayError):
            raise receipt
        ask.answer(
            w.SendMessageResult(
                MD5OfMessageBody=sent.md5_body,
                MD5OfMessageAttributes=sent.md5_attributes,
                MD5OfMessageSystemAttributes=sent.md5_system,
                MessageId=receipt.message_id,
                SequenceNumber=sequence_number(receipt.message_id) if view.is_fifo else None,
            )
        )

    def send_batch(self, ask: Ask, asked: w.SendMessageBatch) -> None:
        name = ask.queue(asked.QueueUrl, "write")
        view = self._view(ask, name)
        _check_batch(asked.Entries)
        if self._send_plain(ask, name, view, asked.Entries):
            return
        good: list[tuple[str, Sent]] = []
        result = w.SendMessageBatchResult(Successful=[], Failed=[])
        for entry in asked.Entries:
            try:
                good.append((entry.Id, self._senders.sent(entry, view, ask.account.name)))
            except LanewayError as error:
                result.Failed.append(_failed(entry.Id, error))
        total_bytes = sum(sent.size_bytes for _, sent in good)
        if total_bytes > MAX_MESSAGE_BYTES:
            raise SqsError(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. You have sent {total_bytes} bytes.",
            )
        if not good:
            ask.answer(result)
            return
        drafts = [sent.draft for _, sent in good]
        self._broker.publish(ask.vhost, name, drafts, partial(self._sent_batch, ask, view, good, result))

    def _send_plain(self, ask: Ask, name: str, view: View, entries: list[w.SendMessageBatchEntry]) -> bool:
        """Hot: a batch of nothing but bodies, as columns. False, and nothing is done, if it is none."""
        bodies = None if view.is_fifo else plain_bodies(entries, view)
        if bodies is None or sum(map(len, bodies)) > MAX_MESSAGE_BYTES:
            return False
        none = [None] * len(bodies)
        done = partial(self._sent_plain, ask, entries, bodies)
        return self._broker.publish_bodies(ask.vhost, name, bodies, none, done, self._senders.plain(ask.account.name))

    @answers_anyway
    def _sent_plain(
        self, ask: Ask, entries: list[w.SendMessageBatchEntry], bodies: list[bytes], told: Receipts | LanewayError
    ) -> None:
        if isinstance(told, LanewayError):
            raise told
        prefix = message_id_prefix(told.enqueued_at_ms, told.tag)
        results = [
            w.SendMessageBatchResultEntry(
                Id=entry.Id,
                MD5OfMessageBody=md5(body, usedforsecurity=False).hexdigest(),
                MessageId=f"{prefix}{seq:012x}",
            )
            for entry, body, seq in zip(entries, bodies, told.seqs, strict=True)
        ]
        ask.answer(w.SendMessageBatchResult(Successful=results))

    @answers_anyway
    def _sent_batch(
        self,
        ask: Ask,
        view: View,
        good: list[tuple[str, Sent]],
        result: w.SendMessageBatchResult,
        receipts: list[Receipt | LanewayError],
    ) -> None:
        for (entry_id, sent), receipt in zip(good, receipts, strict=True):
            if isinstance(receipt, LanewayError):
                result.Failed.append(_failed(entry_id, receipt))
                continue
            result.Successful.append(
                w.SendMessageBatchResultEntry(
                    Id=entry_id,
                    MD5OfMessageBody=sent.md5_body,
                    MD5OfMessageAttributes=sent.md5_attributes,
                    MD5OfMessageSystemAttributes=sent.md5_system,
                    MessageId=receipt.message_id,
                    SequenceNumber=sequence_number(receipt.message_id) if view.is_fifo else None,
                )
            )
        ask.answer(result)

    # --- receive

    def receive(self, ask: Ask, asked: w.ReceiveMessage) -> None:
        name = ask.queue(asked.QueueUrl, "read")
        view = self._view(ask, name)
        count = 1 if asked.MaxNumberOfMessages is None else asked.MaxNumberOfMessages
        if not 1 <= count <= BATCH_COUNT:
            raise value_invalid(count, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
        wait_ms = view.wait_ms
        if asked.WaitTimeSeconds is not None:
            if not 0 <= asked.WaitTimeSeconds <= MAX_WAIT_S:
                raise value_invalid(asked.WaitTimeSeconds, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
            wait_ms = asked.WaitTimeSeconds * 1000
        lease_ms = None
        if asked.VisibilityTimeout is not None:
            lease_ms = _visibility_ms(asked.VisibilityTimeout)
        system = frozenset(asked.AttributeNames) | frozenset(asked.MessageSystemAttributeNames)
        for unknown in system - _SYSTEM:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {unknown}.")
        shape = (view, name, system, Wanted(asked.MessageAttributeNames))
        attempt = self._attempts.key(ask, view, name, asked.ReceiveRequestAttemptId)
        call = ask.call
        call.state = ask
        if attempt is not None and (again := self._attempts.again(attempt, lease_ms)) is not None:
            self._received(ask, shape, attempt, again)
            return
        waiter = self._broker.lease(
            ask.vhost,
            name,
            max_messages=count,
            done=partial(self._received, ask, shape, attempt),
            lease_ms=lease_ms,
            wait_ms=wait_ms,
            consumer=ask.account.name[:64],
        )
        if call.response is None:
            call.waiter = waiter

    @answers_anyway
    def _received(
        self,
        ask: Ask,
        shape: tuple[View, str, frozenset[str], Wanted],
        attempt: AttemptKey | None,
        deliveries: Sequence[Delivery],
    ) -> None:
        call = ask.call
        call.waiter = None
        view, name, system, wanted = shape
        if call.is_abandoned or call.response is not None:
            self._give_back(ask, name, deliveries)
            return
        if attempt is not None:
            self._attempts.note(attempt, deliveries)
        if isinstance(deliveries, Deliveries) and not system and not wanted:
            messages = self._plain_messages(deliveries)
        else:
            messages = [self._message(ask, view, system, wanted, d) for d in deliveries]
        ask.answer(w.ReceiveMessageResult(Messages=messages))

    def _plain_messages(self, d: Deliveries) -> list[w.Message]:
        """Hot: messages without their attributes, from columns."""
        now_ms = self._broker.now()
        prefixes = {at_ms: message_id_prefix(at_ms, d.tag) for at_ms in set(d.enqueued_at_ms)}
        messages: list[w.Message] = []
        for i, (seq, body) in enumerate(zip(d.seqs, d.bodies, strict=True)):
            message_id = f"{prefixes[d.enqueued_at_ms[i]]}{seq:012x}"
            if d.receives[i] == 1:
                self._note_first_receive(message_id, now_ms)
            messages.append(_bare_message(message_id, token(d.first_lease + i, seq), body))
        return messages

    def _note_first_receive(self, message_id: str, now_ms: int) -> None:
        known = self._first_received_ms
        if message_id not in known and message_id not in self._older_first_received_ms:
            if len(known) >= _REMEMBERED_RECEIVES:
                self._older_first_received_ms, self._first_received_ms = known, {}
                known = self._first_received_ms
            known[message_id] = now_ms

    def _first_receive_ms(self, message_id: str, now_ms: int) -> int:
        return self._first_received_ms.get(message_id) or self._older_first_received_ms.get(message_id, now_ms)

    def _message(self, ask: Ask, view: View, system: frozenset[str], wanted: Wanted, d: Delivery) -> w.Message:
        now_ms = self._broker.now()
        if d.receives == 1:
            self._note_first_receive(d.message_id, now_ms)
        message = _bare_message(d.message_id, d.token, d.body)
        if system:
            everything = self._system_attributes(ask, view, d, now_ms)
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

    def _system_attributes(self, ask: Ask, view: View, d: Delivery, now_ms: int) -> dict[str, str]:
        own: dict[str, Any] = d.properties.extra.get("sqs", {})
        attributes = {
            "SenderId": own.get("sender", "laneway"),
            "SentTimestamp": str(d.enqueued_at_ms),
            "ApproximateReceiveCount": str(d.receives),
            "ApproximateFirstReceiveTimestamp": str(self._first_receive_ms(d.message_id, now_ms)),
        }
        if view.is_fifo:
            attributes["SequenceNumber"] = sequence_number(d.message_id)
            attributes["MessageGroupId"] = d.properties.group
            attributes["MessageDeduplicationId"] = own.get("dedup_id", d.properties.dedup_id)
        elif d.properties.tenant:
            attributes["MessageGroupId"] = d.properties.tenant
        if "trace" in own:
            attributes["AWSTraceHeader"] = own["trace"]
        if d.deaths:
            attributes["DeadLetterQueueSourceArn"] = ask.arn(d.deaths[-1].queue)
        return attributes

    def _give_back(self, ask: Ask, name: str, deliveries: Sequence[Delivery]) -> None:
        """Nobody is there any more to take these: others may have them now rather than when the leases expire."""
        if deliveries:
            try:
                self._broker.settle(
                    ask.vhost, name, [Settlement("release", d.token) for d in deliveries], lambda _: None
                )
            except LanewayError:
                pass  # then the leases expire

    def end_wait(self, call: Call) -> None:
        if call.waiter is not None:
            call.waiter.cancel()
            call.waiter = None
            call.state.answer(w.ReceiveMessageResult())

    # --- settle

    def delete(self, ask: Ask, asked: w.DeleteMessage) -> None:
        name = ask.queue(asked.QueueUrl, "read")
        view = self._view(ask, name)
        handle = asked.ReceiptHandle
        self._broker.ack_tokens(ask.vhost, name, (handle,), partial(self._deleted, ask, view, handle))

    @answers_anyway
    def _deleted(self, ask: Ask, view: View, handle: str, results: list[int | LanewayError]) -> None:
        error = _delete_error(view, handle, results[0])
        if error is not None:
            raise error
        ask.answer(None)

    def delete_batch(self, ask: Ask, asked: w.DeleteMessageBatch) -> None:
        name = ask.queue(asked.QueueUrl, "read")
        view = self._view(ask, name)
        _check_batch(asked.Entries)
        handles = [entry.ReceiptHandle for entry in asked.Entries]
        self._broker.ack_tokens(ask.vhost, name, handles, partial(self._deleted_batch, ask, view, asked.Entries))

    @answers_anyway
    def _deleted_batch(
        self, ask: Ask, view: View, entries: list[w.HandleEntry], results: list[int | LanewayError]
    ) -> None:
        errors = [_delete_error(view, e.ReceiptHandle, r) for e, r in zip(entries, results, strict=True)]
        good, failed = _sorted_out(entries, errors)
        ask.answer(w.DeleteMessageBatchResult(Successful=good, Failed=failed))

    def change_visibility(self, ask: Ask, asked: w.ChangeMessageVisibility) -> None:
        name = ask.queue(asked.QueueUrl, "read")
        self._view(ask, name)
        settlement = Settlement("extend", asked.ReceiptHandle, lease_ms=_visibility_ms(asked.VisibilityTimeout))
        self._broker.settle(ask.vhost, name, (settlement,), partial(self._changed, ask))

    @answers_anyway
    def _changed(self, ask: Ask, results: list[int | LanewayError]) -> None:
        if isinstance(results[0], LanewayError):
            raise results[0]
        ask.answer(None)

    def change_visibility_batch(self, ask: Ask, asked: w.ChangeMessageVisibilityBatch) -> None:
        name = ask.queue(asked.QueueUrl, "read")
        view = self._view(ask, name)
        _check_batch(asked.Entries)
        errors: list[LanewayError | None] = []
        settlements: list[Settlement] = []
        for entry in asked.Entries:
            try:
                seconds = entry.VisibilityTimeout
                lease_ms = view.settings.lease_ms if seconds is None else _visibility_ms(seconds)
                settlements.append(Settlement("extend", entry.ReceiptHandle, lease_ms=lease_ms))
                errors.append(None)
            except LanewayError as error:
                errors.append(error)
        if not settlements:
            self._changed_batch(ask, asked.Entries, errors, [])
            return
        done = partial(self._changed_batch, ask, asked.Entries, errors)
        self._broker.settle(ask.vhost, name, settlements, done)

    @answers_anyway
    def _changed_batch(
        self,
        ask: Ask,
        entries: list[w.ChangeEntry],
        errors: list[LanewayError | None],
        results: list[int | LanewayError],
    ) -> None:
        rest = iter(results)
        ends = [error if error is not None else next(rest) for error in errors]
        good, failed = _sorted_out(entries, [end if isinstance(end, LanewayError) else None for end in ends])
        ask.answer(w.ChangeMessageVisibilityBatchResult(Successful=good, Failed=failed))


def _bare_message(message_id: str, handle: str, body: bytes) -> w.Message:
    try:
        text = body.decode()
    except UnicodeDecodeError:  # of another protocol
        text = base64.b64encode(body).decode()
        body = text.encode()
    return w.Message(
        MessageId=message_id,
        ReceiptHandle=handle,
        MD5OfBody=md5(body, usedforsecurity=False).hexdigest(),
        Body=text,
    )


def _visibility_ms(seconds: int) -> int:
    if not 0 <= seconds <= MAX_VISIBILITY_S:
        raise value_invalid(seconds, "VisibilityTimeout", "Must be between 0 and 43200, if provided.")
    return seconds * 1000


def _delete_error(view: View, handle: str, result: int | LanewayError) -> LanewayError | None:
    """A message that is no longer held counts as deleted on a standard queue: it may be gone already, and a client that
    repeats a delete is right to. On a FIFO queue the holder must hear that others may have it."""
    if not isinstance(result, LanewayError):
        return None
    if isinstance(result, LeaseStale):
        if not view.is_fifo:
            return None
        return value_invalid(handle, "ReceiptHandle", "The receipt handle has expired.")
    return result


def _check_batch(entries: Sequence[_E]) -> None:
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > BATCH_COUNT:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {BATCH_COUNT}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry.Id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if entry.Id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry.Id} repeated.")
        seen.add(entry.Id)


def _sorted_out(
    entries: Sequence[w.HandleEntry], errors: Sequence[LanewayError | None]
) -> tuple[list[w.IdEntry], list[w.BatchResultErrorEntry]]:
    good: list[w.IdEntry] = []
    failed: list[w.BatchResultErrorEntry] = []
    for entry, error in zip(entries, errors, strict=True):
        if error is None:
            good.append(w.IdEntry(Id=entry.Id))
        else:
            failed.append(_failed(entry.Id, error))
    return good, failed


def _failed(entry_id: str, error: LanewayError) -> w.BatchResultErrorEntry:
    told = sqs_error(error)
    return w.BatchResultErrorEntry(
        Id=entry_id, SenderFault=told.kind.is_senders, Code=told.kind.code, Message=told.message
    )
