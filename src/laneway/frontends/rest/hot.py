"""The frequent requests beside dequeue: publish, and the four ways to settle.

Nothing here awaits. A handler checks, sends a request to the broker, and returns; the broker calls back when the answer
is known (and durable), and the callback writes the answer. So a request costs no task and no future.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from laneway.access import Access
from laneway.broker.interface import HTTP, Ack, Broker, Publish, QueueId, Settle
from laneway.broker.values import Arrival
from laneway.core.digits import SEQ_DIGITS, tokens_in
from laneway.core.message import Receipt, Receipts, Settlement, messages_of
from laneway.errors import InvalidInput, LanewayError, QueueNotFound
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest import wire as w
from laneway.frontends.rest.answering import answering
from laneway.frontends.rest.errors import InvalidRequest, encode_error
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.publishing import (
    PublishBody,
    PublishOptions,
    check_count,
    colons_of,
    decode_publish,
    draft_of_bytes,
)
from laneway.frontends.rest.routing import ApiRoute, Each, convert_query
from laneway.frontends.rest.writing import AnswerWriter

REPLAYED = b"Idempotency-Replayed: true\r\n"
#: What stands before, between and behind the receipt handles of a list of them, without blanks and as Python writes it.
_BARE = (
    (b'[{"receipt_handle":"', b'"},{"receipt_handle":"', b'"}]'),
    (b'[{"receipt_handle": "', b'"}, {"receipt_handle": "', b'"}]'),
)


class SettleForm:
    """What tells one way of settling from another."""

    def __init__(
        self, name: str, status: str, request: Any, to_settlement: Callable[[Any], Settlement], time_name: str = ""
    ) -> None:
        self.name = name
        self.status = status
        self.request_many: Any = list[request]
        self.decode_one = w.decoder(request)
        self.decode_many = w.decoder(self.request_many)
        self.to_settlement = to_settlement
        self.time_name = time_name  # of the time in its result, if it has one
        self.plain_result = f'{{"status":"{status}"}}'.encode()


ACK = SettleForm("ack", "acked", w.AckRequest, w.ack_of)
NACK = SettleForm("nack", "released", w.NackRequest, w.nack_of, "visible_at")
REJECT = SettleForm("reject", "rejected", w.RejectRequest, w.reject_of)
VISIBILITY = SettleForm("visibility", "extended", w.VisibilityRequest, w.extension_of, "visible_until")


class PublishApi:
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer
        # What stood around the number in the answer to the last single publish, and what that depends on.
        self._last: tuple[str, int, int, int] | None = None
        self._start = self._whole_start = self._end = b""

    @ApiRoute(
        "POST",
        "{Q}/messages",
        request=PublishBody,
        takes_bytes=True,
        options=PublishOptions,
        answers={201: a.PublishAnswer | list[a.PublishAnswer], 207: Each((a.PublishAnswer, a.ErrorAnswer))},
        refusals=(404, 409, 413, 429, 507),
    )
    def publish(self, call: Call) -> None:
        """Publish one message, or a list of them."""
        head, plan = call.head, call.head.plan
        if not plan.is_allowed:
            plan.check(self._access, call.account, "write")
        is_list = False
        if not plan.is_json:  # the body is the message itself; the query string describes it
            messages = messages_of([draft_of_bytes(call.body, plan.content_type, plan.options(PublishOptions))])
        elif plan.query:
            raise InvalidRequest("the body is JSON, so what describes the message belongs into it", field="query")
        else:
            messages = decode_publish(call.body, self._limits.batch_count)
            is_list = call.body.lstrip().startswith(b"[")
        key = None if head.idempotency_key is None else idempotency_of(call, head.idempotency_key)
        target = self._broker.topology.find_queue(plan.vhost, plan.queue)
        self._broker.send(Publish((target.queue,), messages, key, HTTP), partial(self._arrived, call, is_list))

    @answering
    def _arrived(self, call: Call, is_list: bool, arrivals: list[Arrival]) -> None:
        plan: HeadPlan = call.head.plan
        receipts = arrivals[0].result if arrivals else queue_gone(plan.queue)
        if isinstance(receipts, LanewayError):
            call.refuse(receipts)
            return
        if not is_list:
            if not receipts.others and receipts.visible_at_ms is None:
                self._answer_one(call, receipts)
                return
            if isinstance(refusal := receipts.others.get(0), LanewayError):
                call.refuse(refusal)
                return
        body = self._writer.receipts(receipts, plan.queue_json)
        is_replay = call.head.idempotency_key is not None and _is_repeated(receipts)
        status = 207 if receipts.refusals() else 201
        call.answer(status, body if is_list else body[1:-1], REPLAYED if is_replay else b"")

    def _answer_one(self, call: Call, receipts: Receipts) -> None:
        """Hot: the answers to messages that share a commit mostly differ in the number of the message alone."""
        head = call.head
        shared = (head.plan.queue_json, receipts.tag, receipts.priorities[0], receipts.enqueued_at_ms)
        if shared != self._last:
            self._start, self._end = self._writer.around_number(receipts, head.plan.queue_json)
            size = len(self._start) + SEQ_DIGITS + len(self._end)
            self._whole_start = call.head_of_answer(201, size) + self._start
            self._last = shared
        number = b"%012x" % receipts.seqs[0]
        if head.is_plain and not call.connection.shared.is_stopping:
            call.answer_with(self._whole_start + number + self._end)
        else:
            call.answer(201, self._start + number + self._end)


class SettleApi:
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer

    def batch_routes(self) -> list[ApiRoute]:
        return [
            ApiRoute(
                "POST",
                f"{{Q}}/{form.name}",
                f"{form.name}_batch",
                f"The batch form of {form.name}: one result for each entry, in order",
                short=True,
                request=form.request_many,
                answers={200: list[a.SettledAnswer], 207: Each((a.SettledAnswer, a.ErrorAnswer))},
                refusals=(404,),
                fast=partial(self._settle_many, form),
            )
            for form in (ACK, NACK, REJECT, VISIBILITY)
        ]

    @ApiRoute(
        "DELETE",
        "{Q}/messages/{message_id}",
        request=w.AckRequest,
        body_optional=True,
        options=w.AckOptions,
        answers={204: None},
        refusals=(404, 409),
    )
    def ack(self, call: Call) -> None:
        """Acknowledge a leased message: it is done, and gone."""
        if call.body:
            self._settle(ACK, call)
            return
        message_id, query = call.head.own
        handle = convert_query(query, w.AckOptions).receipt_handle
        if not handle:
            raise InvalidInput("a receipt_handle is needed, in the body or the query string", field="receipt_handle")
        settlement = Settlement("ack", handle, message_id)
        request = Settle(self._source(call), (settlement,), call.account.name, HTTP)
        self._broker.send(request, partial(self._settled, call, ACK))

    @ApiRoute(
        "POST",
        "{Q}/messages/{message_id}/nack",
        request=w.NackRequest,
        answers={200: a.NackAnswer},
        refusals=(404, 409),
    )
    def nack(self, call: Call) -> None:
        """Give a leased message back: now, after a delay, or with a growing back-off."""
        self._settle(NACK, call)

    @ApiRoute(
        "POST", "{Q}/messages/{message_id}/reject", request=w.RejectRequest, answers={204: None}, refusals=(404, 409)
    )
    def reject(self, call: Call) -> None:
        """Make a leased message a dead letter at once."""
        self._settle(REJECT, call)

    @ApiRoute(
        "PATCH",
        "{Q}/messages/{message_id}/visibility",
        request=w.VisibilityRequest,
        answers={200: a.VisibilityAnswer},
        refusals=(404, 409),
    )
    def change_visibility(self, call: Call) -> None:
        """Let a lease end so many seconds from now; 0 gives the message back."""
        self._settle(VISIBILITY, call)

    def _settle(self, form: SettleForm, call: Call) -> None:
        body = call.body
        request = form.decode_one(body)
        if colons_of(body) != 1:
            w.check_names_once(body)
        message_id = call.head.own[0]
        if request.message_id is not None and request.message_id != message_id:
            raise InvalidInput(
                f"the body is about message {request.message_id!r}, the path about {message_id!r}", field="message_id"
            )
        settlement = form.to_settlement(request)
        settlement.message_id = message_id
        request = Settle(self._source(call), (settlement,), call.account.name, HTTP)
        self._broker.send(request, partial(self._settled, call, form))

    def _source(self, call: Call) -> QueueId:
        """The queue of the path, if the caller may read from it."""
        plan: HeadPlan = call.head.plan
        plan.check(self._access, call.account, "read")
        return self._broker.topology.find_queue(plan.vhost, plan.queue).queue

    @answering
    def _settled(self, call: Call, form: SettleForm, results: list[int | LanewayError]) -> None:
        result = results[0]
        if isinstance(result, LanewayError):
            call.refuse(result)
        elif form.time_name:
            message_id = a.encode(call.head.own[0])
            at = self._writer.times.text(result)
            call.answer(200, b'{"message_id":%b,"%b":"%b"}' % (message_id, form.time_name.encode(), at.encode()))
        else:
            call.answer(204)

    def _settle_many(self, form: SettleForm, call: Call) -> None:
        source, body = self._source(call), call.body
        if form is ACK and (handles := bare_handles(body)) is not None:
            check_count(len(handles), self._limits.batch_count)
            request = Ack(source, handles, call.account.name, HTTP)
            self._broker.send(request, partial(self._settled_many, call, form, ()))
            return
        requests = form.decode_many(body)
        check_count(len(requests), self._limits.batch_count)
        if colons_of(body) != len(requests):  # there is more than the receipt handles
            w.check_names_once(body)
        settlements = list(map(form.to_settlement, requests))
        message_ids = [settlement.message_id for settlement in settlements]
        done = partial(self._settled_many, call, form, message_ids)
        self._broker.send(Settle(source, settlements, call.account.name, HTTP), done)

    @answering
    def _settled_many(
        self, call: Call, form: SettleForm, message_ids: Sequence[str | None], results: list[int | LanewayError]
    ) -> None:
        """One entry each. The id of a message is repeated if its request named it."""
        entries = [form.plain_result] * len(results)
        if form.time_name or any(message_ids):
            entries = [self._result(form, *one) for one in zip(message_ids, results, strict=True)]
        status = 200
        if any(results):  # times, or errors
            for i, result in enumerate(results):
                if isinstance(result, LanewayError):
                    entries[i], status = encode_error(result), 207
        call.answer(status, b"[%b]" % b",".join(entries))

    def _result(self, form: SettleForm, message_id: str | None, result: int | LanewayError) -> bytes:
        shown = {"status": form.status}
        if message_id is not None:
            shown["message_id"] = message_id
        if form.time_name and isinstance(result, int):
            shown[form.time_name] = self._writer.times.text(result)
        return a.encode(shown)


def queue_gone(name: str) -> QueueNotFound:
    return QueueNotFound(f"queue {name!r} was deleted meanwhile", field="queue")


def _is_repeated(receipts: Receipts) -> bool:
    """Whether all of these messages were there already."""
    others = receipts.others.values()
    return len(others) == len(receipts) and all(isinstance(other, Receipt) and other.duplicate for other in others)


def bare_handles(body: bytes) -> Sequence[str] | None:
    """Hot: the receipt handles of a list of nothing else, cut out of its JSON as programs write it. None if it does not
    look like that: what is cut out wrongly has more in it than letters and digits."""
    for begin, between, end in _BARE:
        if body.startswith(begin) and body.endswith(end):
            text = body[len(begin) : -len(end)]
            tokens = tokens_in(text, between)
            if tokens is not None:
                return tokens
            handles = text.decode("latin-1").split(between.decode())
            joined = "".join(handles)
            return handles if joined.isalnum() and joined.isascii() else None
    return None


def idempotency_of(call: Call, key: bytes) -> tuple[str, bytes]:
    """What the key is remembered as, and a fingerprint of everything that makes the request what it is. Accounts that
    choose the same key do not hear of each other. It is remembered as a digest, as small as a short key."""
    if not 1 <= len(key) <= 255 or not all(33 <= byte <= 126 for byte in key):
        raise InvalidInput(
            f"an Idempotency-Key has 1 to 255 visible ASCII characters: {key[:80].decode('latin-1')!r}",
            field="Idempotency-Key",
        )
    head = call.head
    digest = hashlib.blake2b(digest_size=16)
    for part in (head.target, head.content_type or b"", call.body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    name = hashlib.blake2b(key, digest_size=16, key=hashlib.sha256(call.account.name.encode()).digest())
    return name.hexdigest(), digest.digest()
