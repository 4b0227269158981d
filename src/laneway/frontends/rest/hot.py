"""The frequent requests beside dequeue: publish, and the four ways to settle.

Nothing here awaits. A handler checks, calls the broker, and returns; the broker calls back when the answer is known
(and durable), and the answer is put together right there. So a request costs no task and no future.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.core.digits import tokens_in
from laneway.core.message import Draft, Receipt, Receipts, Settlement
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answering import answer_anyway, answers_anyway
from laneway.frontends.rest.answers import encode
from laneway.frontends.rest.errors import InvalidRequest, encode_error
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.publishing import PlainBatch, PublishOptions, colons_of, decode_publish, draft_of_bytes
from laneway.frontends.rest.singles import Singles
from laneway.frontends.rest.wire import (
    AckOptions,
    AckRequest,
    NackRequest,
    RejectRequest,
    VisibilityRequest,
    ack_of,
    check_names_once,
    decoder,
    extension_of,
    nack_of,
    reject_of,
)
from laneway.frontends.rest.writing import Writer

REPLAYED = b"Idempotency-Replayed: true\r\n"
#: What stands before, between and behind the receipt handles of a list of them, without blanks and as Python writes it.
_BARE = (
    (b'[{"receipt_handle":"', b'"},{"receipt_handle":"', b'"}]'),
    (b'[{"receipt_handle": "', b'"}, {"receipt_handle": "', b'"}]'),
)


class SettleForm:
    """What tells one way of settling from another."""

    def __init__(self, status: str, request: Any, to_settlement: Callable[[Any], Settlement], time_name: str) -> None:
        self.status = status
        self.decode_one = decoder(request)
        self.decode_many = decoder(list[request])
        self.to_settlement = to_settlement
        self.time_name = time_name  # of the time in its result, if it has one
        self.plain_result = f'{{"status":"{status}"}}'.encode()


ACK = SettleForm("acked", AckRequest, ack_of, "")
NACK = SettleForm("released", NackRequest, nack_of, "visible_at")
REJECT = SettleForm("rejected", RejectRequest, reject_of, "")
VISIBILITY = SettleForm("extended", VisibilityRequest, extension_of, "visible_until")


class HotPaths:
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: Writer) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer
        self._tell_published = self._published  # one and the same for all calls
        self._singles = Singles(broker, writer, self._publish_alone)

    # --- publish

    def publish(self, call: Call) -> None:
        plan: Plan = call.head.plan
        if not plan.is_allowed:
            plan.check(self._access, call.account, "write")
        if plan.is_gathered and call.is_alone and call.body.startswith(b"{"):
            self._singles.add(call, plan.place)
        else:
            self._publish_alone(call)

    def _publish_alone(self, call: Call) -> None:
        head = call.head
        plan: Plan = head.plan
        decoded: PlainBatch | list[Draft] | Draft
        if plan.is_json:
            if plan.query:
                raise InvalidRequest(
                    "the body is JSON, so what is said about the message belongs into it", field="query"
                )
            decoded = decode_publish(call.body)
        else:
            decoded = self._draft_of_bytes(call, plan)
        vhost, queue, key = plan.vhost, plan.queue, head.idempotency_key
        if type(decoded) is Draft and key is None:
            self._broker.publish_one(vhost, queue, decoded, self._tell_published, call)
            return
        idempotency = None if key is None else idempotency_of(call, key)
        if isinstance(decoded, PlainBatch):
            self._check_count(len(decoded.bodies))
            if idempotency is None and self._broker.publish_bodies(
                vhost, queue, decoded.bodies, decoded.priorities, partial(self._published_plain, call)
            ):
                return
            decoded = decoded.drafts()
        if isinstance(decoded, list):
            self._check_count(len(decoded))
            self._broker.publish(vhost, queue, decoded, partial(self._published_many, call), idempotency=idempotency)
        else:
            self._broker.publish(vhost, queue, (decoded,), partial(self._published, [call]), idempotency=idempotency)

    def _published(self, calls: list[Call], results: list[Receipt | LanewayError]) -> None:
        """Hot: of those that share a commit, mostly all but the id is the same, the head of the answer too."""
        last, before, behind = None, b"", b""
        for call, result in zip(calls, results, strict=True):
            try:
                if isinstance(result, LanewayError):
                    call.refuse(result)
                    continue
                head = call.head
                if result.duplicate or not head.is_plain or call.connection.shared.is_stopping:
                    is_replay = result.duplicate and head.idempotency_key is not None
                    body = self._writer.receipts((result,), head.plan.queue_json)[0].encode()
                    call.answer(201, body, REPLAYED if is_replay else b"")
                    continue
                shared = (head.plan.queue_json, result.priority, result.enqueued_at_ms, result.visible_at_ms)
                if shared != last:
                    start, behind = self._writer.around_id(result, head.plan.queue_json)
                    size = len(start) + len(result.message_id) + len(behind)
                    before, last = call.head_of_answer(201, size) + start, shared
                call.answer_with(b"%b%b%b" % (before, result.message_id.encode(), behind))
            except Exception as trouble:
                answer_anyway(call, trouble)

    @answers_anyway
    def _published_plain(self, call: Call, told: Receipts | LanewayError) -> None:
        if isinstance(told, LanewayError):
            raise told
        call.answer(201, self._writer.plain_receipts(told, call.head.plan.queue_json))

    @answers_anyway
    def _published_many(self, call: Call, results: list[Receipt | LanewayError]) -> None:
        texts = self._writer.receipts(results, call.head.plan.queue_json)
        failed = any(isinstance(result, LanewayError) for result in results)
        is_replay = call.head.idempotency_key is not None and not failed and all(map(_is_duplicate, results))
        body = f"[{','.join(texts)}]".encode()
        call.answer(207 if failed else 201, body, REPLAYED if is_replay else b"")

    def _draft_of_bytes(self, call: Call, plan: Plan) -> Draft:
        """The body is the message itself, whatever it is; what else there is to say is in the query string."""
        return draft_of_bytes(call.body, plan.content_type, plan.options(PublishOptions))

    # --- settle

    def ack(self, call: Call) -> None:
        plan: Plan = call.head.plan
        if call.body:
            self._settle(call, ACK)
            return
        handle = plan.options(AckOptions).receipt_handle
        if not handle:
            raise InvalidInput("a receipt_handle is needed, in the body or the query string", field="receipt_handle")
        self._begin(call, ACK, Settlement("ack", handle, plan.item))

    def nack(self, call: Call) -> None:
        self._settle(call, NACK)

    def reject(self, call: Call) -> None:
        self._settle(call, REJECT)

    def change_visibility(self, call: Call) -> None:
        self._settle(call, VISIBILITY)

    def _settle(self, call: Call, form: SettleForm) -> None:
        body = call.body
        request = form.decode_one(body)
        if colons_of(body) != 1:
            check_names_once(body)
        named = call.head.plan.item
        if request.message_id is not None and request.message_id != named:
            raise InvalidInput(
                f"the body is about message {request.message_id!r}, the path about {named!r}", field="message_id"
            )
        settlement = form.to_settlement(request)
        settlement.message_id = named
        self._begin(call, form, settlement)

    def _begin(self, call: Call, form: SettleForm, settlement: Settlement) -> None:
        plan: Plan = call.head.plan
        plan.check(self._access, call.account, "read")
        self._broker.settle(plan.vhost, plan.queue, (settlement,), partial(self._settled, call, form))

    @answers_anyway
    def _settled(self, call: Call, form: SettleForm, results: list[int | LanewayError]) -> None:
        result = results[0]
        if isinstance(result, LanewayError):
            call.refuse(result)
        elif form.time_name:
            message_id = encode(call.head.plan.item)
            at = self._writer.times.text(result)
            call.answer(200, b'{"message_id":%b,"%b":"%b"}' % (message_id, form.time_name.encode(), at.encode()))
        else:
            call.answer(204)

    def ack_many(self, call: Call) -> None:
        self._settle_many(call, ACK)

    def nack_many(self, call: Call) -> None:
        self._settle_many(call, NACK)

    def reject_many(self, call: Call) -> None:
        self._settle_many(call, REJECT)

    def change_visibility_many(self, call: Call) -> None:
        self._settle_many(call, VISIBILITY)

    def _settle_many(self, call: Call, form: SettleForm) -> None:
        plan: Plan = call.head.plan
        plan.check(self._access, call.account, "read")
        body = call.body
        if form is ACK and (handles := bare_handles(body)) is not None:
            self._check_count(len(handles))
            self._broker.ack_tokens(plan.vhost, plan.queue, handles, partial(self._acked_many, call))
            return
        requests = form.decode_many(body)
        self._check_count(len(requests))
        if colons_of(body) != len(requests):  # more than the receipt handles alone: see publishing.decode_publish
            check_names_once(body)
        settlements = list(map(form.to_settlement, requests))
        self._broker.settle(plan.vhost, plan.queue, settlements, partial(self._settled_many, call, form, settlements))

    @answers_anyway
    def _acked_many(self, call: Call, results: list[int | LanewayError]) -> None:
        if any(results):
            entries = [encode_error(one) if isinstance(one, LanewayError) else ACK.plain_result for one in results]
            call.answer(207, b"[%b]" % b",".join(entries))
        else:
            call.answer(200, b"[%b]" % b",".join([ACK.plain_result] * len(results)))

    @answers_anyway
    def _settled_many(
        self, call: Call, form: SettleForm, settlements: list[Settlement], results: list[int | LanewayError]
    ) -> None:
        plain, time_name = form.plain_result, form.time_name
        all_well = True
        entries: list[bytes] = []
        for settlement, result in zip(settlements, results, strict=True):
            if type(result) is not int:
                assert isinstance(result, LanewayError)
                entries.append(encode_error(result))
                all_well = False
            elif settlement.message_id is None and not time_name:
                entries.append(plain)
            else:
                told = {"status": form.status}
                if settlement.message_id is not None:
                    told["message_id"] = settlement.message_id
                if time_name:
                    told[time_name] = self._writer.times.text(result)
                entries.append(encode(told))
        call.answer(200 if all_well else 207, b"[%b]" % b",".join(entries))

    def _check_count(self, count: int) -> None:
        most = self._limits.batch_count
        if not 1 <= count <= most:
            raise InvalidInput(f"a batch has 1 to {most} entries, this one has {count}", limit=most)


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


def _is_duplicate(result: Receipt | LanewayError) -> bool:
    return isinstance(result, Receipt) and result.duplicate


def idempotency_of(call: Call, key: bytes) -> tuple[str, bytes]:
    """The key, and a fingerprint of everything that makes the request what it is."""
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
    return key.decode("ascii"), digest.digest()
