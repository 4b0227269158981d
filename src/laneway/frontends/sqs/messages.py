"""The frequent actions: send, delete, change visibility, each alone and as a batch; and receive (receiving.py).

Nothing here awaits: a handler checks, calls the broker, and returns; the broker calls back when the answer is known and
durable, and the answer is put together right there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from laneway.broker.broker import Broker
from laneway.broker.values import Receipt, Settlement
from laneway.core.message import Receipts, message_ids
from laneway.errors import LanewayError, LeaseStale
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask, answers_anyway
from laneway.frontends.sqs.drafts import Senders, Sent, plain_bodies
from laneway.frontends.sqs.errors import SqsError, sqs_error, value_invalid
from laneway.frontends.sqs.json_form import JsonForm, ids_json
from laneway.frontends.sqs.message_attributes import sequence_number
from laneway.frontends.sqs.queue_attributes import MAX_MESSAGE_BYTES, View, visibility_ms
from laneway.frontends.sqs.receiving import Receiving
from laneway.frontends.sqs.recent import Md5s, md5_of, md5_texts
from laneway.frontends.sqs.views import Views

BATCH_COUNT = 10
_REMEMBERED_MD5S = 1 << 17
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ID_LETTERS = re.compile(r"[A-Za-z0-9_-]+")
_id_of, _handle_of = attrgetter("Id"), attrgetter("ReceiptHandle")


class Messages:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._senders = Senders()
        self._views = Views(broker)
        self._md5s = Md5s(_REMEMBERED_MD5S)
        self._tell_sent = self._all_sent  # one and the same for all asks
        receiving = Receiving(broker, self._views, self._md5s)
        self.receive, self.end_wait = receiving.receive, receiving.end_wait

    # --- send

    def send(self, ask: Ask, asked: w.SendMessage) -> None:
        view = self._views.view(ask, asked.QueueUrl, "write")
        sent = self._senders.sent(asked, view, ask.caller.account.name, is_allowed=ask.is_allowed())
        self._broker.publish_one(ask.caller.vhost, view.name, sent.draft, self._tell_sent, (ask, view, sent))

    def _all_sent(self, askers: list[tuple[Ask, View, Sent]], receipts: list[Receipt | LanewayError]) -> None:
        for (ask, view, sent), receipt in zip(askers, receipts, strict=True):
            self._sent(ask, view, sent, receipt)

    @answers_anyway
    def _sent(self, ask: Ask, view: View, sent: Sent, receipt: Receipt | LanewayError) -> None:
        if isinstance(receipt, LanewayError):
            raise receipt
        if not receipt.duplicate:
            self._md5s.note((int(receipt.message_id[-12:], 16),), bytes.fromhex(sent.md5_body))
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
        view = self._views.view(ask, asked.QueueUrl, "write")
        ids = _checked_ids(asked.Entries)
        is_allowed = ask.is_allowed()
        if self._send_plain(ask, view, ids, asked.Entries, is_allowed=is_allowed):
            return
        good: list[tuple[str, Sent]] = []
        result = w.SendMessageBatchResult(Successful=[], Failed=[])
        for entry in asked.Entries:
            try:
                sent = self._senders.sent(entry, view, ask.caller.account.name, is_allowed=is_allowed)
                good.append((entry.Id, sent))
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
        self._broker.publish(ask.caller.vhost, view.name, drafts, partial(self._sent_batch, ask, view, good, result))

    def _send_plain(
        self, ask: Ask, view: View, ids: list[str], entries: list[w.SendMessageBatchEntry], *, is_allowed: bool
    ) -> bool:
        """Hot: a batch of nothing but bodies, as columns. False, and nothing is done, if it is none."""
        bodies = None if view.is_fifo else plain_bodies(entries, view, is_allowed=is_allowed)
        if bodies is None or sum(map(len, bodies)) > MAX_MESSAGE_BYTES:
            return False
        none = [None] * len(bodies)
        done = partial(self._sent_plain, ask, ids, bodies)
        return self._broker.publish_bodies(
            ask.caller.vhost, view.name, bodies, none, done, self._senders.plain(ask.caller.account.name)
        )

    @answers_anyway
    def _sent_plain(self, ask: Ask, ids: list[str], bodies: list[bytes], told: Receipts | LanewayError) -> None:
        if isinstance(told, LanewayError):
            raise told
        digests = b"".join(map(md5_of, bodies))
        self._md5s.note(told.seqs, digests)
        given = message_ids(told.enqueued_at_ms, told.tag, told.seqs)
        ask.answer(w.PlainSentResult(list(map(w.PlainSentEntry, ids, md5_texts(digests), given))))

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

    # --- settle

    def delete(self, ask: Ask, asked: w.DeleteMessage) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        handle = asked.ReceiptHandle
        self._broker.ack_tokens(ask.caller.vhost, view.name, (handle,), partial(self._deleted, ask, view, handle))

    @answers_anyway
    def _deleted(self, ask: Ask, view: View, handle: str, results: list[int | LanewayError]) -> None:
        error = _delete_error(view, handle, results[0])
        if error is not None:
            raise error
        ask.answer(None)

    def delete_batch(self, ask: Ask, asked: w.DeleteMessageBatch) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        entries = asked.Entries
        ids, handles = _checked_ids(entries), list(map(_handle_of, entries))
        done = partial(self._deleted_batch, ask, view, entries, ids)
        self._broker.ack_tokens(ask.caller.vhost, view.name, handles, done)

    @answers_anyway
    def _deleted_batch(
        self, ask: Ask, view: View, entries: list[w.HandleEntry], ids: list[str], results: list[int | LanewayError]
    ) -> None:
        if not any(results) and isinstance(ask.form, JsonForm):
            ask.answer_with(ids_json(ids))
            return
        errors = [_delete_error(view, e.ReceiptHandle, r) for e, r in zip(entries, results, strict=True)]
        good, failed = _sorted_out(entries, errors)
        ask.answer(w.DeleteMessageBatchResult(Successful=good, Failed=failed))

    def change_visibility(self, ask: Ask, asked: w.ChangeMessageVisibility) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        settlement = Settlement("extend", asked.ReceiptHandle, lease_ms=visibility_ms(asked.VisibilityTimeout))
        self._broker.settle(ask.caller.vhost, view.name, (settlement,), partial(self._changed, ask))

    @answers_anyway
    def _changed(self, ask: Ask, results: list[int | LanewayError]) -> None:
        if isinstance(results[0], LanewayError):
            raise results[0]
        ask.answer(None)

    def change_visibility_batch(self, ask: Ask, asked: w.ChangeMessageVisibilityBatch) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        _checked_ids(asked.Entries)
        errors: list[LanewayError | None] = []
        settlements: list[Settlement] = []
        for entry in asked.Entries:
            try:
                seconds = entry.VisibilityTimeout
                lease_ms = view.settings.lease_ms if seconds is None else visibility_ms(seconds)
                settlements.append(Settlement("extend", entry.ReceiptHandle, lease_ms=lease_ms))
                errors.append(None)
            except LanewayError as error:
                errors.append(error)
        if not settlements:
            self._changed_batch(ask, asked.Entries, errors, [])
            return
        done = partial(self._changed_batch, ask, asked.Entries, errors)
        self._broker.settle(ask.caller.vhost, view.name, settlements, done)

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


def _checked_ids(entries: Sequence[w.HandleEntry | w.SendMessageBatchEntry]) -> list[str]:
    """The ids of a batch's entries, if it is one as AWS wants it."""
    if not entries:
        raise SqsError("EmptyBatchRequest", "There should be at least one entry in the request.")
    if len(entries) > BATCH_COUNT:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {BATCH_COUNT}. You have sent {len(entries)}.",
        )
    ids: list[str] = list(map(_id_of, entries))
    if len(set(ids)) == len(ids) and all(ids) and max(map(len, ids)) <= 80 and _ID_LETTERS.fullmatch("".join(ids)):
        return ids  # the usual, told at once
    seen: set[str] = set()
    for entry_id in ids:
        if not _ENTRY_ID.fullmatch(entry_id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                "It can be at most 80 letters long.",
            )
        if entry_id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry_id} repeated.")
        seen.add(entry_id)
    return ids


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
