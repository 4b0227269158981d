"""The frequent requests: publish, dequeue, and the four ways to settle.

Nothing here awaits. A handler checks, calls the broker, and returns; the broker calls back when the answer is known
(and durable), and the answer is put together right there. So a request costs no task and no future.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.core.message import Delivery, Draft, Receipt, Settlement
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.rest.answers import Writer, encode
from laneway.frontends.rest.errors import INTERNAL, InvalidRequest, encode_error
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.protocol import Exchange
from laneway.frontends.rest.publishing import PublishOptions, colons_of, decode_publish, draft_of_bytes
from laneway.frontends.rest.wire import (
    AckOptions,
    AckRequest,
    DequeueRequest,
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
from laneway.frontends.rest.words import milliseconds

log = logging.getLogger("laneway.http")

_REPLAYED = b"Idempotency-Replayed: true\r\n"
_REMEMBERED_BODIES = 1024
_REMEMBERED_BODY_BYTES = 512


class _Dequeue(NamedTuple):
    """A dequeue request in the broker's words."""

    max_messages: int
    lease_ms: int | None
    wait_ms: int
    consumer: str


def _answers_anyway(callback: Callable[..., None]) -> Callable[..., None]:
    """If an answer cannot be put together, its client is told so, and the log why."""

    @wraps(callback)
    def guarded(self: HotPaths, exchange: Exchange, *rest: Any) -> None:
        try:
            callback(self, exchange, *rest)
        except Exception:
            log.exception("the answer to %s %s could not be made", exchange.head.method, exchange.head.target)
            exchange.refuse(INTERNAL)

    return guarded


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
        self._decode_dequeue = decoder(DequeueRequest)
        self._dequeues: dict[bytes, _Dequeue] = {}

    # --- publish

    def publish(self, exchange: Exchange) -> None:
        plan: Plan = exchange.head.plan
        decoded: list[Draft] | Draft
        vhost, queue = plan.vhost, plan.queue
        self._access.check(exchange.account, vhost, queue, "write")
        if plan.is_json:
            if plan.query:
                raise InvalidRequest(
                    "the body is JSON, so what is said about the message belongs into it", field="query"
                )
            decoded = decode_publish(exchange.body)
        else:
            decoded = self._draft_of_bytes(exchange, plan)
        key = exchange.head.idempotency_key
        idempotency = None if key is None else _idempotency(exchange, key)
        if isinstance(decoded, list):
            self._check_count(len(decoded))
            self._broker.publish(
                vhost, queue, decoded, partial(self._published_many, exchange), idempotency=idempotency
            )
        else:
            self._broker.publish(vhost, queue, (decoded,), partial(self._published, exchange), idempotency=idempotency)

    @_answers_anyway
    def _published(self, exchange: Exchange, results: list[Receipt | LanewayError]) -> None:
        result = results[0]
        if isinstance(result, LanewayError):
            exchange.refuse(result)
            return
        body = self._writer.receipts(results, exchange.head.plan.queue_json)[0].encode()
        is_replay = result.duplicate and exchange.head.idempotency_key is not None
        exchange.answer(201, body, _REPLAYED if is_replay else b"")

    @_answers_anyway
    def _published_many(self, exchange: Exchange, results: list[Receipt | LanewayError]) -> None:
        texts = self._writer.receipts(results, exchange.head.plan.queue_json)
        failed = any(isinstance(result, LanewayError) for result in results)
        is_replay = exchange.head.idempotency_key is not None and not failed and all(map(_is_duplicate, results))
        body = f"[{','.join(texts)}]".encode()
        exchange.answer(207 if failed else 201, body, _REPLAYED if is_replay else b"")

    def _draft_of_bytes(self, exchange: Exchange, plan: Plan) -> Draft:
        """The body is the message itself, whatever it is; what else there is to say is in the query string."""
        return draft_of_bytes(exchange.body, plan.content_type, plan.options(PublishOptions))

    # --- dequeue

    def dequeue(self, exchange: Exchange) -> None:
        plan: Plan = exchange.head.plan
        self._access.check(exchange.account, plan.vhost, plan.queue, "read")
        asked = self._dequeues.get(exchange.body) or self._dequeue_of(exchange.body)
        waiter = self._broker.lease(
            plan.vhost,
            plan.queue,
            max_messages=asked.max_messages,
            done=partial(self._leased, exchange),
            lease_ms=asked.lease_ms,
            wait_ms=asked.wait_ms,
            consumer=asked.consumer,
        )
        if exchange.response is None:
            exchange.waiter = waiter

    def _dequeue_of(self, body: bytes) -> _Dequeue:
        """What a body asks for. Consumers ask for the same thing again and again, so it is remembered."""
        request: DequeueRequest = self._decode_dequeue(body) if body else DequeueRequest()
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
            if len(self._dequeues) >= _REMEMBERED_BODIES:
                self._dequeues.clear()
            self._dequeues[body] = asked
        return asked

    @_answers_anyway
    def _leased(self, exchange: Exchange, deliveries: list[Delivery]) -> None:
        exchange.waiter = None
        if exchange.is_abandoned or exchange.response is not None:
            self._give_back(exchange.head.plan, deliveries)
            return
        exchange.answer(200, self._writer.deliveries(deliveries))

    def _give_back(self, plan: Plan, deliveries: list[Delivery]) -> None:
        """Nobody is there any more to take these: others may have them now rather than when the leases expire."""
        if deliveries:
            returned = [Settlement("release", delivery.token) for delivery in deliveries]
            try:
                self._broker.settle(plan.vhost, plan.queue, returned, _ignore)
            except LanewayError:
                pass  # then the leases expire

    def end_wait(self, exchange: Exchange) -> None:
        if exchange.waiter is not None:
            exchange.waiter.cancel()
            exchange.waiter = None
            exchange.answer(200, b'{"messages":[]}')

    # --- settle

    def ack(self, exchange: Exchange) -> None:
        plan: Plan = exchange.head.plan
        if exchange.body:
            self._settle(exchange, ACK)
            return
        handle = plan.options(AckOptions).receipt_handle
        if not handle:
            raise InvalidInput("a receipt_handle is needed, in the body or the query string", field="receipt_handle")
        self._begin(exchange, ACK, Settlement("ack", handle, plan.item))

    def nack(self, exchange: Exchange) -> None:
        self._settle(exchange, NACK)

    def reject(self, exchange: Exchange) -> None:
        self._settle(exchange, REJECT)

    def change_visibility(self, exchange: Exchange) -> None:
        self._settle(exchange, VISIBILITY)

    def _settle(self, exchange: Exchange, form: SettleForm) -> None:
        body = exchange.body
        request = form.decode_one(body)
        if colons_of(body) != 1:
            check_names_once(body)
        named = exchange.head.plan.item
        if request.message_id is not None and request.message_id != named:
            raise InvalidInput(
                f"the body is about message {request.message_id!r}, the path about {named!r}", field="message_id"
            )
        settlement = form.to_settlement(request)
        settlement.message_id = named
        self._begin(exchange, form, settlement)

    def _begin(self, exchange: Exchange, form: SettleForm, settlement: Settlement) -> None:
        plan: Plan = exchange.head.plan
        self._access.check(exchange.account, plan.vhost, plan.queue, "read")
        self._broker.settle(plan.vhost, plan.queue, (settlement,), partial(self._settled, exchange, form))

    @_answers_anyway
    def _settled(self, exchange: Exchange, form: SettleForm, results: list[int | LanewayError]) -> None:
        result = results[0]
        if isinstance(result, LanewayError):
            exchange.refuse(result)
        elif form.time_name:
            message_id = encode(exchange.head.plan.item)
            at = self._writer.times.text(result)
            exchange.answer(200, b'{"message_id":%b,"%b":"%b"}' % (message_id, form.time_name.encode(), at.encode()))
        else:
            exchange.answer(204)

    def ack_many(self, exchange: Exchange) -> None:
        self._settle_many(exchange, ACK)

    def nack_many(self, exchange: Exchange) -> None:
        self._settle_many(exchange, NACK)

    def reject_many(self, exchange: Exchange) -> None:
        self._settle_many(exchange, REJECT)

    def change_visibility_many(self, exchange: Exchange) -> None:
        self._settle_many(exchange, VISIBILITY)

    def _settle_many(self, exchange: Exchange, form: SettleForm) -> None:
        plan: Plan = exchange.head.plan
        self._access.check(exchange.account, plan.vhost, plan.queue, "read")
        body = exchange.body
        requests = form.decode_many(body)
        self._check_count(len(requests))
        if colons_of(body) != len(requests):  # more than the receipt handles alone: see wire.decode_publish
            check_names_once(body)
        settlements = list(map(form.to_settlement, requests))
        self._broker.settle(
            plan.vhost, plan.queue, settlements, partial(self._settled_many, exchange, form, settlements)
        )

    @_answers_anyway
    def _settled_many(
        self, exchange: Exchange, form: SettleForm, settlements: list[Settlement], results: list[int | LanewayError]
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
        exchange.answer(200 if all_well else 207, b"[%b]" % b",".join(entries))

    def _check_count(self, count: int) -> None:
        most = self._limits.batch_count
        if not 1 <= count <= most:
            raise InvalidInput(f"a batch has 1 to {most} entries, this one has {count}", limit=most)


def _is_duplicate(result: Receipt | LanewayError) -> bool:
    return isinstance(result, Receipt) and result.duplicate


def _ignore(results: object) -> None:
    pass


def _idempotency(exchange: Exchange, key: bytes) -> tuple[str, bytes]:
    """The key, and a fingerprint of everything that makes the request what it is."""
    if not 1 <= len(key) <= 255 or not all(33 <= byte <= 126 for byte in key):
        raise InvalidInput(
            f"an Idempotency-Key has 1 to 255 visible ASCII characters: {key[:80].decode('latin-1')!r}",
            field="Idempotency-Key",
        )
    head = exchange.head
    digest = hashlib.blake2b(digest_size=16)
    for part in (head.target, head.content_type or b"", exchange.body):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return key.decode("ascii"), digest.digest()
