"""The frequent actions: send, delete, change visibility, each alone and as a batch; and receive (receiving.py).

Nothing here awaits: a handler checks, sends a request to the broker, and returns; the broker calls back when the answer
is known and durable, and the callback puts the client's answer together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import repeat

from laneway.broker.interface import SQS, Ack, Broker, Publish, Settle
from laneway.broker.values import Arrival, Receipts, Settlement
from laneway.core.message import message_ids
from laneway.errors import LanewayError, LeaseStale, ReceiptInvalid
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask, answering
from laneway.frontends.sqs.errors import SqsError, invalid, missing, no_such_queue, sqs_error, value_invalid
from laneway.frontends.sqs.message_attributes import sequence_number
from laneway.frontends.sqs.queue_attributes import MAX_MESSAGE_BYTES, View, visibility_ms
from laneway.frontends.sqs.receiving import Receiving
from laneway.frontends.sqs.recent import Recent
from laneway.frontends.sqs.sending import Outgoing, no_dedup_id
from laneway.frontends.sqs.views import Views

BATCH_COUNT = 10
_REMEMBERED_MD5S = 1 << 16
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")


class FrequentActions:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._views = Views(broker)
        #: The MD5s that senders were told. Without them a third of the time that it takes to receive a message of a
        #: kilobyte would go into computing its MD5 again.
        self._md5s: Recent[str] = Recent(_REMEMBERED_MD5S)
        receiving = Receiving(broker, self._views, self._md5s)
        self.receive, self.end_wait, self.recheck = receiving.receive, receiving.end_wait, receiving.recheck

    # --- send

    def send(self, ask: Ask, asked: w.SendMessage) -> None:
        view = self._views.view(ask, asked.QueueUrl, "write")
        outgoing = self._outgoing(ask, (asked,), view)
        if outgoing.refused:
            raise outgoing.refused[0]
        publish = Publish((view.queue,), outgoing.messages, None, SQS)
        self._broker.send(publish, partial(self._sent, ask, view, outgoing))

    def _outgoing(self, ask: Ask, entries: Sequence[w.MessageEntry], view: View) -> Outgoing:
        return Outgoing(
            entries, view, ask.caller.account.name, ask.trace(), self._broker.now, is_allowed=ask.is_allowed()
        )

    @answering
    def _sent(self, ask: Ask, view: View, outgoing: Outgoing, arrivals: list[Arrival]) -> None:
        (result,), refused = self._results(view, outgoing, (None,), arrivals)
        if refused:
            raise refused[0]
        ask.answer(result)

    def send_batch(self, ask: Ask, asked: w.SendMessageBatch) -> None:
        view = self._views.view(ask, asked.QueueUrl, "write")
        ids = _checked_ids(ask, asked.Entries)
        if view.is_fifo:
            _check_fifo_ids(view, asked.Entries)
        outgoing = self._outgoing(ask, asked.Entries, view)
        if outgoing.size_bytes > MAX_MESSAGE_BYTES:
            raise SqsError(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {MAX_MESSAGE_BYTES} bytes. "
                f"You have sent {outgoing.size_bytes} bytes.",
            )
        done = partial(self._sent_batch, ask, view, outgoing, ids)
        self._broker.send(Publish((view.queue,), outgoing.messages, None, SQS), done)

    @answering
    def _sent_batch(self, ask: Ask, view: View, outgoing: Outgoing, ids: list[str], arrivals: list[Arrival]) -> None:
        results, refused = self._results(view, outgoing, ids, arrivals)
        if refused:
            results = [result for i, result in enumerate(results) if i not in refused]
        ask.answer(w.SendMessageBatchResult(results, _failed(ids, refused)))

    def _results(
        self, view: View, outgoing: Outgoing, entry_ids: Sequence[str | None], arrivals: list[Arrival]
    ) -> tuple[list[w.SendMessageResult], dict[int, LanewayError]]:
        """What a sender is told of each message, and which of them were refused after all."""
        if not arrivals:
            raise no_such_queue()
        receipts = arrivals[0].result
        if not isinstance(receipts, Receipts):
            raise receipts
        self._md5s.note(receipts.tag, receipts.seqs, outgoing.md5s)
        ids = message_ids(receipts.enqueued_at_ms, receipts.tag, receipts.seqs)
        refused: dict[int, LanewayError] = {}
        for i, other in receipts.others.items():
            if isinstance(other, LanewayError):
                refused[i] = outgoing.refused.get(i, other)
            else:
                ids[i] = other.message_id
        numbers = map(sequence_number, ids) if view.is_fifo else repeat(None)
        columns = outgoing.md5s, ids, outgoing.attribute_md5s, outgoing.system_md5s, numbers, entry_ids
        return list(map(w.SendMessageResult, *columns)), refused

    # --- settle

    def delete(self, ask: Ask, asked: w.DeleteMessage) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        handles = (asked.ReceiptHandle,)
        # Whoever deletes too late is done with it all the same, unless somebody else has it by now.
        request = Ack(view.queue, handles, ask.caller.account.name, SQS, not view.is_fifo)
        self._broker.send(request, partial(self._deleted, ask, view, handles))

    @answering
    def _deleted(self, ask: Ask, view: View, handles: Sequence[str], results: list[int | LanewayError]) -> None:
        for error in _delete_errors(view, handles, results).values():
            raise error
        ask.answer(None)

    def delete_batch(self, ask: Ask, asked: w.DeleteMessageBatch) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        ids, handles = _checked_ids(ask, asked.Entries), [entry.ReceiptHandle for entry in asked.Entries]
        request = Ack(view.queue, handles, ask.caller.account.name, SQS, not view.is_fifo)
        self._broker.send(request, partial(self._deleted_batch, ask, view, handles, ids))

    @answering
    def _deleted_batch(
        self, ask: Ask, view: View, handles: Sequence[str], ids: list[str], results: list[int | LanewayError]
    ) -> None:
        _answer_settled(ask, ids, _delete_errors(view, handles, results))

    def change_visibility(self, ask: Ask, asked: w.ChangeMessageVisibility) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        lease_ms = visibility_ms(asked.VisibilityTimeout)
        settlement = Settlement("extend", asked.ReceiptHandle, lease_ms=lease_ms, late=not view.is_fifo)
        request = Settle(view.queue, (settlement,), ask.caller.account.name, SQS)
        self._broker.send(request, partial(self._changed, ask, (asked.ReceiptHandle,)))

    @answering
    def _changed(self, ask: Ask, handles: Sequence[str], results: list[int | LanewayError]) -> None:
        for error in _change_errors(handles, results).values():
            raise error
        ask.answer(None)

    def change_visibility_batch(self, ask: Ask, asked: w.ChangeMessageVisibilityBatch) -> None:
        view = self._views.view(ask, asked.QueueUrl, "read")
        ids, handles = _checked_ids(ask, asked.Entries), [entry.ReceiptHandle for entry in asked.Entries]
        refused: dict[int, LanewayError] = {}
        settlements: list[Settlement] = []
        for i, entry in enumerate(asked.Entries):
            try:
                seconds = entry.VisibilityTimeout
                lease_ms = view.lease_ms if seconds is None else visibility_ms(seconds)
                settlements.append(Settlement("extend", entry.ReceiptHandle, lease_ms=lease_ms, late=not view.is_fifo))
            except LanewayError as error:
                refused[i] = error
        done = partial(self._changed_batch, ask, ids, handles, refused)
        if settlements:
            self._broker.send(Settle(view.queue, settlements, ask.caller.account.name, SQS), done)
        else:
            done([])

    @answering
    def _changed_batch(
        self,
        ask: Ask,
        ids: list[str],
        handles: list[str],
        refused: dict[int, LanewayError],
        results: list[int | LanewayError],
    ) -> None:
        rest = iter(results)
        ends = [refused[i] if i in refused else next(rest) for i in range(len(ids))]
        _answer_settled(ask, ids, _change_errors(handles, ends))


def _errors(handles: Sequence[str], results: Sequence[int | LanewayError]) -> dict[int, LanewayError]:
    errors = {i: result for i, result in enumerate(results) if isinstance(result, LanewayError)}
    for i, error in errors.items():
        if isinstance(error, ReceiptInvalid):
            text = f'The input receipt handle "{handles[i]}" is not a valid receipt handle.'
            errors[i] = SqsError("ReceiptHandleIsInvalid", text)
    return errors


def _delete_errors(
    view: View, handles: Sequence[str], results: Sequence[int | LanewayError]
) -> dict[int, LanewayError]:
    """A message that is no longer held counts as deleted on a standard queue: it may be gone already, and a client that
    repeats a delete is right to. On a FIFO queue the holder must hear that others may have it."""
    errors = _errors(handles, results)
    for i, error in list(errors.items()):
        if isinstance(error, LeaseStale):
            if view.is_fifo:
                errors[i] = value_invalid(handles[i], "ReceiptHandle", "The receipt handle has expired.")
            else:
                del errors[i]
    return errors


def _change_errors(handles: Sequence[str], results: Sequence[int | LanewayError]) -> dict[int, LanewayError]:
    errors = _errors(handles, results)
    for i, error in errors.items():
        if isinstance(error, LeaseStale):
            reason = "Message does not exist or is not available for visibility timeout change."
            errors[i] = value_invalid(handles[i], "ReceiptHandle", reason)
    return errors


def _check_fifo_ids(view: View, entries: Sequence[w.SendMessageBatchEntry]) -> None:
    """An entry without its ids fails the whole batch; any other fault fails its entry alone."""
    for entry in entries:
        if not (view.dedups_content or entry.MessageDeduplicationId):
            raise no_dedup_id()
        if not entry.MessageGroupId:
            raise invalid(missing("MessageGroupId").message)


def _checked_ids(ask: Ask, entries: Sequence[w.HandleEntry | w.SendMessageBatchEntry]) -> list[str]:
    """The ids of a batch's entries, if it is one as AWS wants it."""
    if not entries:
        text = f"There should be at least one {ask.action}RequestEntry in the request."
        raise SqsError("EmptyBatchRequest", text)
    if len(entries) > BATCH_COUNT:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {BATCH_COUNT}. You have sent {len(entries)}.",
        )
    ids = [entry.Id for entry in entries]
    if not all(map(_ENTRY_ID.fullmatch, ids)):
        raise SqsError(
            "InvalidBatchEntryId",
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            "It can be at most 80 letters long.",
        )
    if len(set(ids)) < len(ids):
        repeated = next(entry_id for i, entry_id in enumerate(ids) if entry_id in ids[:i])
        raise SqsError("BatchEntryIdsNotDistinct", f"Id {repeated} repeated.")
    return ids


def _answer_settled(ask: Ask, ids: list[str], errors: dict[int, LanewayError]) -> None:
    good = ids if not errors else [entry_id for i, entry_id in enumerate(ids) if i not in errors]
    ask.answer(w.SettledBatchResult(list(map(w.IdEntry, good)), _failed(ids, errors)))


def _failed(ids: list[str], errors: dict[int, LanewayError]) -> list[w.BatchResultErrorEntry]:
    failed: list[w.BatchResultErrorEntry] = []
    for i in sorted(errors):
        told = sqs_error(errors[i])
        failed.append(
            w.BatchResultErrorEntry(
                Id=ids[i], SenderFault=told.kind.is_senders, Code=told.kind.code, Message=told.message
            )
        )
    return failed
