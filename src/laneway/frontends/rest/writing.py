"""The broker's values as answers; the frequent ones, receipts and deliveries, as text around the stored bytes."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, TypeVar

import msgspec

from laneway.access import Account, KeyInfo
from laneway.broker.values import Deliveries, QueueInfo, QueueStats, Task
from laneway.core.digits import LEASE_DIGITS, SEQ_DIGITS, by_block, high_digits, low_digits
from laneway.core.message import (
    JSON_TYPE,
    UNKNOWN_TYPE,
    Death,
    Glimpse,
    Properties,
    Receipt,
    Receipts,
    message_id_prefix,
)
from laneway.errors import LanewayError
from laneway.frontends.rest import answers as a
from laneway.frontends.rest.answers import encode
from laneway.frontends.rest.errors import encode_error
from laneway.frontends.rest.props import BlockReader, show
from laneway.frontends.rest.publishing import are_json_texts, is_json_text, is_json_type, is_text_type
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.words import BY_CORE, seconds

log = logging.getLogger("laneway.http")

_K = TypeVar("_K")
_UNKNOWN = Properties(content_type=UNKNOWN_TYPE)

Piece = bytes | memoryview
Pieces = tuple[list[Piece], int]  # of a text, and how many bytes they are together

_MESSAGES = b'{"messages":['
_NO_MESSAGES = _MESSAGES + b"]}"
_NO_PROPERTIES = b'"attributes":{}'
_HANDLE = b',"receipt_handle":"'


def _column(keys: Sequence[_K], make: Callable[[_K], bytes]) -> list[bytes]:
    """What is made of each key, made once for equal ones: mostly they all are."""
    if keys.count(keys[0]) == len(keys):
        return [make(keys[0])] * len(keys)
    made = {key: make(key) for key in set(keys)}
    return list(map(made.__getitem__, keys))


def _digits(numbers: Sequence[int], width: int, before: bytes = b"") -> tuple[list[bytes], list[bytes]]:
    """Numbers in hexadecimal, each in two pieces: its beginning, which neighbours share, and its end."""
    highs: list[bytes] = []
    lows: list[bytes] = []
    for at, count in by_block(numbers):
        highs += [before + high_digits(numbers[at], width)] * count
        lows += low_digits(numbers[at], count)
    return highs, lows


class AnswerWriter:
    """Makes answers of the broker's values."""

    def __init__(self, times: Timestamps) -> None:
        self.times = times
        self._text = times.text
        self._blocks = BlockReader()

    # --- the frequent ones, as text and bytes

    def receipts(self, receipts: Receipts, queue_json: str) -> bytes:
        """What became of each message of a publish, as a list. queue_json is the queue's name as JSON."""
        count = len(receipts)
        keys = list(zip(receipts.priorities, receipts.visible_at_ms or repeat(0, count), strict=True))
        columns = [_before_number(receipts.enqueued_at_ms, receipts.tag)] * (4 * count)
        columns[1::4], columns[2::4] = _digits(receipts.seqs, SEQ_DIGITS)
        columns[3::4] = _column(keys, lambda key: self._behind_number(receipts, *key, queue_json) + b",")
        for i, other in receipts.others.items():
            columns[4 * i : 4 * i + 4] = b"", b"", b"", self._other(other, queue_json) + b","
        columns[-1] = columns[-1][:-1]
        return b"[%b]" % b"".join(columns)

    def around_number(self, receipts: Receipts, queue_json: str) -> tuple[bytes, bytes]:
        """What stands before and behind the number of a single message that is visible at once."""
        start = _before_number(receipts.enqueued_at_ms, receipts.tag)
        return start, self._behind_number(receipts, receipts.priorities[0], 0, queue_json)

    def _behind_number(self, receipts: Receipts, priority: int, visible_ms: int, queue_json: str) -> bytes:
        at_ms = receipts.enqueued_at_ms
        return self._behind_id(priority, at_ms, visible_ms or at_ms, queue_json) + b"}"

    def _behind_id(self, priority: int, at_ms: int, visible_ms: int, queue_json: str) -> bytes:
        return (
            f'","queue_name":{queue_json},"priority":{priority},'
            f'"enqueued_at":"{self._text(at_ms)}","visible_at":"{self._text(visible_ms)}"'
        ).encode()

    def _other(self, other: Receipt | LanewayError, queue_json: str) -> bytes:
        """A message that was refused, or was there already."""
        if isinstance(other, LanewayError):
            return encode_error(other)
        end = self._behind_id(other.priority, other.enqueued_at_ms, other.visible_at_ms, queue_json)
        duplicate = b',"duplicate":true' if other.duplicate else b""
        return b'{"message_id":"%b%b%b}' % (other.message_id.encode(), end, duplicate)

    def deliveries(self, d: Deliveries, *, with_handles: bool = True) -> Pieces:
        """The pieces of an answer, without messages that cannot be shown. These stay leased: when their leases run out
        they count as tried, and in the end they are dead letters, as others that nobody acks."""
        try:
            return self._deliveries(d, with_handles=with_handles)
        except Exception:
            return self._deliveries(self._without_broken(d), with_handles=with_handles)

    def showable(self, d: Deliveries) -> Deliveries:
        """For those who settle what they show, before they show it."""
        try:
            self._deliveries(d, with_handles=False)
        except Exception:
            return self._without_broken(d)
        return d

    def _without_broken(self, d: Deliveries) -> Deliveries:
        broken = d.broken(lambda one: self._deliveries(one, with_handles=False))
        for i, trouble in broken.items():
            log.error(
                "message %s of queue %r cannot be shown and is set aside",
                d.message_id(i),
                d.queue_name,
                exc_info=trouble,
            )
        return d.without(broken)

    def _deliveries(self, d: Deliveries, *, with_handles: bool) -> Pieces:
        """Hot: the pieces of an answer, to be joined once, with the head of the response in front of them. Messages
        that are settled already are shown without handles."""
        count = len(d)
        if not count:
            return [_NO_MESSAGES], len(_NO_MESSAGES)
        ids = numbers = _digits(d.seqs, SEQ_DIGITS)
        heads = _column(d.enqueued_at_ms, lambda at_ms: _before_number(at_ms, d.tag))
        middles = _column(d.priorities, b'","priority":%d,"payload":'.__mod__)
        bodies: Sequence[Piece] = d.bodies
        members = [_NO_PROPERTIES] * count
        if any(d.props):
            bodies, members = self._described(d, middles)
        if d.stories:
            ids = self._tell_stories(d, heads, members)
        tails = self._tails(d, with_handles=with_handles)
        columns: list[Piece] = [b","] * (12 * count)
        columns[0::12], columns[1::12], columns[2::12] = heads, *ids
        columns[3::12], columns[4::12], columns[6::12] = middles, bodies, members
        size = len(_MESSAGES) + 1 + count * (len(heads[0]) + SEQ_DIGITS + 1)
        if with_handles:
            columns[7::12], columns[8::12] = _digits(d.leases, LEASE_DIGITS, _HANDLE)
            columns[9::12], columns[10::12] = numbers
            size += count * (len(_HANDLE) + LEASE_DIGITS + SEQ_DIGITS)
        else:
            columns[7::12] = columns[8::12] = columns[9::12] = columns[10::12] = [b""] * count
        columns[11::12] = tails
        for column in (middles, bodies, members, tails):
            size += sum(map(len, column))
        columns[0] = _MESSAGES + heads[0]
        columns[-1] = tails[-1][:-1] + b"]}"
        return columns, size

    def _tails(self, d: Deliveries, *, with_handles: bool) -> list[bytes]:
        quote, until = '"', f',"visible_until":"{self._text(d.deadline_ms)}"'
        if not with_handles:
            quote = until = ""

        def tail(key: tuple[int, int]) -> bytes:
            return f'{quote},"enqueued_at":"{self._text(key[0])}","receive_count":{key[1]}{until}}},'.encode()

        return _column(list(zip(d.enqueued_at_ms, d.receives, strict=True)), tail)

    def _described(self, d: Deliveries, middles: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """(bodies, members behind them) of messages of which some have properties. Those without are known to be JSON;
        of others, publishers of other protocols may have said so unchecked."""
        members, types = self._blocks.describe(set(d.props))
        bodies = list(map(bytes, d.bodies))
        if types or not are_json_texts(bodies):
            for i, block in enumerate(d.props):
                if block:
                    middles[i] = b'","priority":%d,' % d.priorities[i]
                    bodies[i] = payload_of(bodies[i], types.get(block, JSON_TYPE))
        return bodies, list(map(members.__getitem__, d.props))

    def _tell_stories(self, d: Deliveries, heads: list[bytes], members: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Show what messages went through that died or moved. The numbers in all ids: these keep the one of their
        record, and the tag of the store they were born in."""
        seqs = list(d.seqs)
        for i, seq in enumerate(d.seqs):
            story = d.stories.get(seq)
            if story is not None:
                seqs[i] = story.record_seq
                if story.tag:
                    heads[i] = _before_number(d.enqueued_at_ms[i], story.tag)
                one = d[i]
                members[i] = self._members(one.properties, one.deaths)
        return _digits(seqs, SEQ_DIGITS)

    def _members(self, p: Properties, deaths: Sequence[Death]) -> bytes:
        """The properties and the history of a single message, as the members behind its payload."""
        shown = show(p)
        if deaths:
            shown["dead_letter"] = self._dead_letter(deaths)
        return encode(shown)[1:-1]

    def _dead_letter(self, deaths: Sequence[Death]) -> a.DeadLetterAnswer:
        last = deaths[-1]
        return a.DeadLetterAnswer(
            origin=last.queue,
            reason=last.reason,
            died_at=self._text(last.at_ms),
            receive_count=last.receives,
            detail=last.detail,
            deaths=[
                a.DeathAnswer(
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
        return b'{"messages":[%b],"next_cursor":%b}' % (b",".join(map(self._peeked, glimpses)), encode(next_cursor))

    def _peeked(self, g: Glimpse) -> bytes:
        """A message whose properties cannot be shown is shown without them."""
        try:
            return self._glimpse(g)
        except Exception:
            log.exception("message %s cannot be shown as it is", g.message_id)
            return self._glimpse(msgspec.structs.replace(g, properties=_UNKNOWN))

    def _glimpse(self, g: Glimpse) -> bytes:
        consumer = b',"consumer_id":' + encode(g.consumer) if g.consumer else b""
        start = f'{{"message_id":"{g.message_id}","state":"{g.state}","priority":{g.priority},'
        end = (
            f',"enqueued_at":"{self._text(g.enqueued_at_ms)}","visible_at":"{self._text(g.visible_at_ms)}",'
            f'"receive_count":{g.receives}'
        )
        payload, members = payload_of(g.body, g.properties.content_type), self._members(g.properties, g.deaths)
        return b"%b%b,%b%b%b}" % (start.encode(), payload, members, end.encode(), consumer)

    # --- the rare ones, as structs

    def queue(self, info: QueueInfo) -> a.QueueAnswer:
        values: dict[str, Any] = {}
        for core in info.settings.__struct_fields__:
            if core == "beneath":
                continue
            value = getattr(info.settings, core)
            word = BY_CORE.get(core)
            if value is not None and core.endswith("_ms"):
                value = seconds(value)
            values[word.wire if word else core] = value
        return a.QueueAnswer(
            queue_name=info.name,
            vhost=info.vhost,
            created_at=self._text(info.created_at_ms),
            changed_at=self._text(info.changed_at_ms),
            **values,
        )

    def stats(self, queue: str, s: QueueStats) -> a.StatsAnswer:
        return a.StatsAnswer(
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
                name: a.RatesAnswer(r.per_second_1s, r.per_second_1m, r.per_second_5m) for name, r in s.rates.items()
            },
        )

    def task(self, t: Task) -> a.TaskAnswer:
        return a.TaskAnswer(
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

    def account(self, account: Account) -> a.AccountAnswer:
        return a.AccountAnswer(
            name=account.name,
            roles=list(account.roles),
            permissions=list(account.permissions),
            vhost_permissions=list(account.vhost_permissions),
            topic_permissions=list(account.topic_permissions),
            created_at=self._text(account.created_at_ms) if account.created_at_ms else None,
        )

    def key(self, info: KeyInfo) -> a.KeyAnswer:
        return a.KeyAnswer(
            key_id=info.key_id,
            account=info.account,
            label=info.label,
            kind=info.kind,
            created_at=self._text(info.created_at_ms),
        )


def _before_number(at_ms: int, tag: int) -> bytes:
    return b'{"message_id":"' + message_id_prefix(at_ms, tag).encode()


def payload_of(body: bytes, content_type: str) -> bytes:
    """The member that shows a body: as JSON if it is JSON, as a string if it is text, else in base64."""
    if is_json_type(content_type):
        if is_json_text(body):
            return b'"payload":' + body
    elif is_text_type(content_type):
        try:
            return b'"payload":' + encode(body.decode())
        except UnicodeDecodeError:
            pass
    member = b'"payload_base64":"%b"' % base64.b64encode(body)
    # The type that is not shown elsewhere, because it goes without saying of a payload.
    return member + b',"content_type":"%b"' % JSON_TYPE.encode() if content_type == JSON_TYPE else member
