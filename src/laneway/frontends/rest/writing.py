"""The broker's values as answers; the frequent ones, receipts and deliveries, as text around the stored bytes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from laneway.access import Account, KeyInfo
from laneway.broker.values import QueueInfo, QueueStats, Task
from laneway.core.digits import LEASE_DIGITS, LOW_DIGITS, SEQ_DIGITS, by_block, high_digits, low_digits
from laneway.core.message import (
    JSON_TYPE,
    PLAIN,
    Death,
    Deliveries,
    Delivery,
    Glimpse,
    Properties,
    Receipt,
    Receipts,
    message_id_prefix,
)
from laneway.errors import LanewayError
from laneway.frontends.rest.answers import (
    AccountAnswer,
    DeadLetterAnswer,
    DeathAnswer,
    KeyAnswer,
    PropertiesAnswer,
    QueueAnswer,
    RatesAnswer,
    StatsAnswer,
    TaskAnswer,
    encode,
)
from laneway.frontends.rest.errors import encode_error
from laneway.frontends.rest.publishing import Binary, is_json_text, is_json_type, is_text_type
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.words import BY_CORE, seconds

_K = TypeVar("_K")

_ID_AT = len('{"message_id":"')  # where in a receipt
_DUPLICATE = ',"duplicate":true}'

Pieces = tuple[list[bytes | memoryview], int]  # of a text, and how many bytes they are together


def _column(keys: Sequence[_K], make: Callable[[_K], bytes]) -> list[bytes]:
    """What is made of each key, made once for equal ones: mostly they all are."""
    if keys.count(keys[0]) == len(keys):
        return [make(keys[0])] * len(keys)
    made = {key: make(key) for key in set(keys)}
    return list(map(made.__getitem__, keys))


class Writer:
    """Makes answers of the broker's values."""

    def __init__(self, times: Timestamps) -> None:
        self.times = times
        self._text = times.text

    # --- the frequent ones, as text and bytes

    @staticmethod
    def numbers(seqs: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
        """The beginnings and ends of message numbers as they stand in ids."""
        highs: list[bytes] = []
        lows: list[bytes] = []
        for at, count in by_block(seqs):
            highs += [high_digits(seqs[at], SEQ_DIGITS)] * count
            lows += low_digits(seqs[at], count)
        return highs, lows

    def plain_receipts(self, told: Receipts, queue_json: str) -> bytes:
        """Hot: as receipts(), of columns."""
        head = self._before_number(told)

        def rest(priority: int) -> bytes:
            return b"%b,%b" % (self.around_number(told, priority, queue_json)[1], head)

        columns = [b""] * (3 * len(told.seqs))
        columns[0::3], columns[1::3] = self.numbers(told.seqs)
        columns[2::3] = _column(told.priorities, rest)
        columns[-1] = columns[-1][: -len(head) - 1]  # there is none after the last one
        return b"[%b%b]" % (head, b"".join(columns))

    def around_number(self, told: Receipts, priority: int, queue_json: str) -> tuple[bytes, bytes]:
        """What stands before and behind the number in the id of a message with this priority, when it is told of it."""
        at = self._text(told.enqueued_at_ms)
        end = f'","queue_name":{queue_json},"priority":{priority},"enqueued_at":"{at}","visible_at":"{at}"}}'
        return self._before_number(told), end.encode()

    @staticmethod
    def _before_number(told: Receipts) -> bytes:
        return b'{"message_id":"' + _prefix(told.enqueued_at_ms, told.tag)

    def around_id(self, r: Receipt, queue_json: str) -> tuple[bytes, bytes]:
        """What stands before and behind the id when it is told what a message came to."""
        text = self.receipts((r,), queue_json)[0].encode()
        return text[:_ID_AT], text[_ID_AT + len(r.message_id) :]

    def receipts(self, results: Sequence[Receipt | LanewayError], queue_json: str) -> list[str]:
        """What each message of a publish came to. queue_json is the queue's name as JSON; ids need no escaping."""
        texts: list[str] = []
        last_ms, enqueued_at = -1, ""
        for r in results:
            if isinstance(r, LanewayError):
                texts.append(encode_error(r).decode())
                continue
            if r.enqueued_at_ms != last_ms:
                last_ms = r.enqueued_at_ms
                enqueued_at = self._text(last_ms)
            visible_at = enqueued_at if r.visible_at_ms == last_ms else self._text(r.visible_at_ms)
            texts.append(
                f'{{"message_id":"{r.message_id}","queue_name":{queue_json},"priority":{r.priority},'
                f'"enqueued_at":"{enqueued_at}","visible_at":"{visible_at}"{_DUPLICATE if r.duplicate else "}"}'
            )
        return texts

    def delivery_pieces(self, deliveries: Sequence[Delivery]) -> Pieces:
        """Hot: as deliveries(), to be joined by whoever puts something in front of it."""
        if isinstance(deliveries, Deliveries) and not any(deliveries.props):
            return self._plain_deliveries(deliveries)
        text = self.deliveries(deliveries)
        return [text], len(text)

    def deliveries(self, deliveries: Sequence[Delivery]) -> bytes:
        """One text a message, encoded all at once. Neighbours mostly share their times, so those are kept."""
        texts: list[str] = []
        since_ms, since, until_ms, until = -1, "", -1, ""
        for d in deliveries:
            if d.enqueued_at_ms != since_ms:
                since_ms, since = d.enqueued_at_ms, self._text(d.enqueued_at_ms)
            if d.deadline_ms != until_ms:
                until_ms, until = d.deadline_ms, self._text(d.deadline_ms)
            if d.properties is PLAIN and not d.deaths:  # so the body is known to be valid JSON
                texts.append(
                    f'{{"message_id":"{d.message_id}","priority":{d.priority},"payload":{d.body.decode()},'
                    f'"attributes":{{}},"receipt_handle":"{d.token}","enqueued_at":"{since}",'
                    f'"receive_count":{d.receives},"visible_until":"{until}"}}'
                )
            else:
                content = self._content(d.body, d.properties, d.deaths).decode()
                texts.append(
                    f'{{"message_id":"{d.message_id}","priority":{d.priority},{content},'
                    f'"receipt_handle":"{d.token}","enqueued_at":"{since}",'
                    f'"receive_count":{d.receives},"visible_until":"{until}"}}'
                )
        return f'{{"messages":[{",".join(texts)}]}}'.encode()

    def _plain_deliveries(self, d: Deliveries) -> Pieces:
        """Hot: bodies that are known to be JSON and have nothing else, with columns around them, run by run."""
        until = self._text(d.deadline_ms)

        def head(at_ms: int) -> bytes:
            return b'{"message_id":"' + _prefix(at_ms, d.tag)

        def tail(key: tuple[int, int]) -> bytes:
            at = self._text(key[0])
            return f'","enqueued_at":"{at}","receive_count":{key[1]},"visible_until":"{until}"}},'.encode()

        pieces: list[bytes | memoryview] = [b'{"messages":[']
        size = len(pieces[0]) + sum(map(len, d.bodies))
        for at, count in by_block(d.seqs, d.first_lease):
            here, seq, lease = slice(at, at + count), d.seqs[at], d.first_lease + at
            since, number = d.enqueued_at_ms[here], high_digits(seq, SEQ_DIGITS)
            handle = b',"attributes":{},"receipt_handle":"' + high_digits(lease, LEASE_DIGITS)
            heads = _column(since, head)
            middles = _column(d.priorities[here], b'","priority":%d,"payload":'.__mod__)
            tails = _column(list(zip(since, d.receives[here], strict=True)), tail)
            columns: list[bytes | memoryview] = [number] * (10 * count)
            columns[0::10] = heads
            columns[2::10] = columns[8::10] = low_digits(seq, count)
            columns[3::10] = middles
            columns[4::10] = d.bodies[here]
            columns[5::10] = [handle] * count
            columns[6::10] = low_digits(lease, count)
            columns[9::10] = tails
            pieces += columns
            size += count * (2 * SEQ_DIGITS + len(handle) + LOW_DIGITS)
            size += sum(map(len, heads)) + sum(map(len, middles)) + sum(map(len, tails))
        pieces[-1] = bytes(pieces[-1])[:-1] + b"]}"
        return pieces, size + 1

    def gotten(self, deliveries: Sequence[Delivery], *, with_handles: bool) -> bytes:
        """Deliveries, without their handles if they are settled already."""
        if with_handles:
            return self.deliveries(deliveries)
        texts = [
            b'{"message_id":"%b","priority":%d,%b,"enqueued_at":"%b","receive_count":%d}'
            % (
                d.message_id.encode(),
                d.priority,
                self._content(d.body, d.properties, d.deaths),
                self._text(d.enqueued_at_ms).encode(),
                d.receives,
            )
            for d in deliveries
        ]
        return b'{"messages":[%b]}' % b",".join(texts)

    def _content(self, body: bytes, p: Properties, deaths: Sequence[Death]) -> bytes:
        """Body, properties and history of any message, as members of its JSON object."""
        members: list[bytes] = []
        if is_json_type(p.content_type) and is_json_text(body):
            members += (b'"payload":', body)
            if p.content_type != JSON_TYPE:
                members += (b',"content_type":', encode(p.content_type))
        else:
            text = _utf8_or_none(body) if is_text_type(p.content_type) else None
            if text is not None:
                members += (b'"payload":', encode(text))
            else:
                members += (b'"payload_base64":"', base64.b64encode(body), b'"')
            members += (b',"content_type":', encode(p.content_type))
        members += (b',"attributes":', encode({name: attribute_to_wire(value) for name, value in p.attributes.items()}))
        if p.extra:
            told = {name: p.extra[name] for name in PropertiesAnswer.__struct_fields__ if name in p.extra}
            if told:
                members += (b',"properties":', encode({name: attribute_to_wire(value) for name, value in told.items()}))
        for name in ("correlation_id", "group", "key", "tenant", "dedup_id", "exchange", "routing_key"):
            value = getattr(p, name)
            if value:
                members += (b',"', name.encode(), b'":', encode(value))
        if deaths:
            members += (b',"dead_letter":', encode(self._dead_letter(deaths)))
        return b"".join(members)

    def _dead_letter(self, deaths: Sequence[Death]) -> DeadLetterAnswer:
        last = deaths[-1]
        return DeadLetterAnswer(
            origin=last.queue,
            reason=last.reason,
            died_at=self._text(last.at_ms),
            receive_count=last.receives,
            detail=last.detail,
            deaths=[
                DeathAnswer(
                    queue_name=d.queue,
                    reason=d.reason,
                    died_at=self._text(d.at_ms),
                    receive_count=d.receives,
                    detail=d.detail,
                    count=d.count,
                    first_died_at=self._text(d.first_at_ms or d.at_ms),
                    exchange=d.exchange or "",
                    routing_keys=[key for key in d.routing_keys or () if key],
                )
                for d in deaths
            ],
        )

    def page(self, glimpses: Sequence[Glimpse], next_cursor: str | None) -> bytes:
        return b'{"messages":[%b],"next_cursor":%b}' % (b",".join(map(self._glimpse, glimpses)), encode(next_cursor))

    def _glimpse(self, g: Glimpse) -> bytes:
        consumer = b',"consumer_id":' + encode(g.consumer) if g.consumer else b""
        start = f'{{"message_id":"{g.message_id}","state":"{g.state}","priority":{g.priority},'
        end = (
            f',"enqueued_at":"{self._text(g.enqueued_at_ms)}","visible_at":"{self._text(g.visible_at_ms)}",'
            f'"receive_count":{g.receives}'
        )
        return b"%b%b%b%b}" % (start.encode(), self._content(g.body, g.properties, g.deaths), end.encode(), consumer)

    def results(self, entries: Sequence[bytes | LanewayError]) -> bytes:
        """A batch's answer: what each entry came to, in order."""
        return b"[%b]" % b",".join([e if isinstance(e, bytes) else encode_error(e) for e in entries])

    # --- the rare ones, as structs

    def queue(self, info: QueueInfo) -> QueueAnswer:
        values: dict[str, Any] = {}
        for core in info.settings.__struct_fields__:
            value = getattr(info.settings, core)
            word = BY_CORE.get(core)
            if value is not None and core.endswith("_ms"):
                value = seconds(value)
            values[word.wire if word else core] = value
        return QueueAnswer(
            queue_name=info.name,
            vhost=info.vhost,
            created_at=self._text(info.created_at_ms),
            changed_at=self._text(info.changed_at_ms),
            **values,
        )

    def stats(self, queue: str, s: QueueStats) -> StatsAnswer:
        return StatsAnswer(
            queue_name=queue,
            approximate_message_count=s.ready + s.delayed,
            messages_by_priority={str(p): s.ready_by_priority[p] for p in sorted(s.ready_by_priority, reverse=True)},
            oldest_message_age_seconds=None if s.oldest_age_ms is None else s.oldest_age_ms / 1000,
            in_flight_count=s.leased,
            delayed_count=s.delayed,
            dlq_count=s.dead + s.dead_elsewhere,
            waiting_bytes=s.waiting_bytes,
            consumers_waiting=s.consumers_waiting,
            subscriber_count=s.subscribers,
            noisy_tenants=s.noisy_tenants,
            totals=s.totals,
            rates={
                name: RatesAnswer(
                    per_second_1s=r.per_second_1s, per_second_1m=r.per_second_1m, per_second_5m=r.per_second_5m
                )
                for name, r in s.rates.items()
            },
        )

    def task(self, t: Task) -> TaskAnswer:
        return TaskAnswer(
            task_id=t.task_id,
            kind=t.kind,
            queue_name=t.queue,
            vhost=t.vhost,
            state=t.state,
            moved=t.moved,
            matched=t.matched,
            failed=t.failed,
            created_at=self._text(t.created_at_ms),
            finished_at=self.times.text_or_none(t.finished_at_ms),
            error=t.error,
        )

    def account(self, account: Account) -> AccountAnswer:
        return AccountAnswer(
            name=account.name,
            roles=list(account.roles),
            permissions=list(account.permissions),
            created_at=self._text(account.created_at_ms) if account.created_at_ms else None,
        )

    def key(self, info: KeyInfo) -> KeyAnswer:
        return KeyAnswer(
            key_id=info.key_id,
            account=info.account,
            label=info.label,
            kind=info.kind,
            created_at=self._text(info.created_at_ms),
        )


def _prefix(at_ms: int, tag: int) -> bytes:
    return message_id_prefix(at_ms, tag).encode()


def _utf8_or_none(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def attribute_to_wire(value: Any) -> Any:
    """Bytes, also inside what other protocols nest, in the form that publishing takes."""
    if isinstance(value, bytes):
        return Binary(value)
    if isinstance(value, dict):
        return {str(name): attribute_to_wire(held) for name, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [attribute_to_wire(held) for held in value]
    return value
