"""basic.publish and confirm.select: from a publisher's bytes to queues.

The publishes of a channel that came in one read become one batch of columns. A property list stays as it came: it is
walked once for what the broker must know, and its bytes travel on. Where a message goes follows from its method alone
(exchange and routing key), so that is worked out once and remembered as a Destination, until some route changes; only
an exchange that looks at headers has them decoded for each message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.arguments import MAX_EXPIRY_MS
from laneway.broker.interface import AMQP, Publish, Targets
from laneway.broker.values import Arrival, Messages, message_delay_ms
from laneway.core import property_lists
from laneway.core.field_tables import TYPE_NAMES, Malformed, split_table
from laneway.core.message import amqp_props_head, split_amqp_props
from laneway.core.settings import RANGES
from laneway.errors import InvalidInput, LanewayError, TooLargeForDisk
from laneway.frontends.amqp import delivering, replies
from laneway.frontends.amqp.confirms import Confirms
from laneway.frontends.amqp.errors import (
    AmqpError,
    access_refused,
    amqp_error,
    may_be_sent_again,
    not_found,
    not_implemented,
    precondition_failed,
    resource,
)
from laneway.frontends.amqp.outbox import Data
from laneway.frontends.amqp.spec import BY_NAME, Arguments

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

#: What is published under this key to the default exchange extends the channel's acknowledgement timeouts.
EXTEND = "amq.laneway.extend"

MAX_ROUTING_KEYS = 100  # in CC, and in BCC: each is routed
MAX_TTL_MS = RANGES["message_ttl_ms"][1]

_PUBLISH = BY_NAME["basic.publish"]
_RETURN = BY_NAME["basic.return"]
_REPLY_TO = replies.REPLY_TO.encode()


class Destination(msgspec.Struct):
    """Where a publish goes, as far as its method says it."""

    exchange: str
    routing_key: str
    mandatory: bool
    targets: Targets
    props_head: bytes  # what stands before the property list in the stored form
    version: int  # of the topology
    is_delayed: bool
    asks_headers: bool  # the exchange looks at them: `targets` is not the last word
    is_internal: bool  # a direct reply or an extension: it reaches no queue
    is_plain: bool  # `targets` are all that there is to know
    is_topic: bool  # not everybody may use each routing key


class Destinations:
    """For all connections, by virtual host and method."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[tuple[str, bytes], Destination] = {}

    def of(self, ch: Channel, method: bytes) -> Destination:
        found = self._known.get((ch.vhost, method))
        if found is None or found.version != ch.broker.topology.version:
            if len(self._known) >= self._most:
                self._known.clear()
            found = self._known[ch.vhost, method] = _destination(ch, method)
        return found


def _destination(ch: Channel, method: bytes) -> Destination:
    try:
        a = _PUBLISH.decode(method)
    except Malformed:
        raise AmqpError(501, f"cannot decode <<{','.join(map(str, method[4:]))}>>") from None
    if a.immediate:
        raise not_implemented("immediate=true")
    ch.check_access("exchange", a.exchange, "write")
    topology = ch.broker.topology
    info = topology.exchange(ch.vhost, a.exchange)
    if info is None:
        raise not_found("exchange", a.exchange, ch.vhost)
    if info.settings.internal:
        raise access_refused(f"cannot publish to internal {resource('exchange', a.exchange, ch.vhost)}")
    try:
        props_head = amqp_props_head(a.exchange.encode(), a.routing_key.encode())
    except UnicodeEncodeError:
        raise precondition_failed("a routing key is valid Unicode") from None
    is_internal = not a.exchange and (a.routing_key == EXTEND or a.routing_key.startswith(replies.PREFIX))
    targets = () if is_internal else topology.route(ch.vhost, a.exchange, a.routing_key)
    is_delayed, asks_headers = info.settings.delayed, topology.asks_headers(ch.vhost, a.exchange, a.routing_key)
    return Destination(
        a.exchange,
        a.routing_key,
        a.mandatory,
        targets,
        props_head,
        topology.version,
        is_delayed,
        asks_headers,
        is_internal,
        bool(targets) and not is_delayed and not asks_headers,
        info.settings.type == "topic",
    )


class Batch:
    """Publishes of one channel on their way to the broker, in columns."""

    __slots__ = (
        "awaited",
        "bodies",
        "delays_ms",
        "is_held",
        "mandatory",
        "priorities",
        "props",
        "returns",
        "size_bytes",
        "targets",
        "ttls_ms",
        "when_heard",
    )

    def __init__(self) -> None:
        self.targets: list[Targets] = []
        self.bodies: list[bytes] = []
        self.props: list[bytes] = []
        self.priorities: list[int | None] = []
        self.ttls_ms: dict[int, int] = {}  # of those that have one, by index
        self.delays_ms: dict[int, int] = {}
        self.mandatory: dict[int, Destination] = {}  # what to return if its queues are gone when it comes there
        self.returns: list[int] = []  # mandatory ones that have no queue to go to
        self.awaited = 0  # mandatory direct replies to callers at other processes, who may have taken them or not
        self.when_heard: Callable[[], None] | None = None  # called when none is left
        self.size_bytes = 0
        self.is_held = False  # the connection reads nothing more until this is answered

    def messages(self) -> Messages:
        priorities: list[int | None] | None = self.priorities
        if self.priorities.count(None) == len(self.priorities):
            priorities = None
        count = len(self.bodies)
        return Messages(
            self.bodies,
            self.props,
            priorities,
            ttls_ms=_column(self.ttls_ms, count),
            delays_ms=_column(self.delays_ms, count),
            clamps=True,
        )

    def unrouted(self, answer: list[Arrival] | LanewayError) -> list[int]:
        """The mandatory ones whose queues were all gone by the time they came there."""
        if not self.mandatory or isinstance(answer, LanewayError):
            return []
        there = {arrival.queue for arrival in answer}
        return [i for i in self.mandatory if there.isdisjoint(self.targets[i])]


def _column(some: dict[int, int], count: int) -> list[int | None] | None:
    return [some.get(i) for i in range(count)] if some else None


def publish(ch: Channel, publishes: Sequence[tuple[bytes, bytes, bytes]]) -> int:
    """Publishes of one read, as (method, properties, body); how many were taken before the time was up. A mistake in
    one of them is raised after those before it have been published."""
    batch = Batch() if ch.transaction is None else ch.transaction.batch
    before = len(batch.bodies)
    known: dict[bytes, Destination] = {}
    exchanges: set[str] = set()  # to which it may write
    size = 0
    end_s = monotonic() + ch.limits.turn_ms / 1000
    is_late = False
    error: AmqpError | None = None
    add_target, add_body, add_props = batch.targets.append, batch.bodies.append, batch.props.append
    add_priority, mandatory, bodies = batch.priorities.append, batch.mandatory, batch.bodies
    needed = property_lists.needed
    try:
        for method, raw, body in publishes:
            there = known.get(method)
            if there is None:
                if is_late:
                    break
                there = known[method] = ch.shared.destinations.of(ch, method)
                if there.exchange not in exchanges:
                    ch.check_access("exchange", there.exchange, "write")
                    exchanges.add(there.exchange)
                if there.is_topic:
                    ch.check_topic(there.exchange, there.routing_key, "write")
                is_late = monotonic() > end_s
            priority, expiration, reply_to, user_id = needed(raw)
            if user_id is None and expiration is None and reply_to != _REPLY_TO and there.is_plain and b"CC" not in raw:
                if there.mandatory:
                    mandatory[len(bodies)] = there
                add_target(there.targets)
                add_props(there.props_head + raw)
                add_body(body)
                add_priority(priority)
                size += len(body) + len(raw)
            else:
                if is_late:
                    break
                size += _add_unusual(ch, batch, there, raw, body)
                is_late = monotonic() > end_s
    except Malformed as wrong:
        error = AmqpError(501, f"cannot decode the properties: {wrong}")
    except AmqpError as wrong:
        error = wrong
    except LanewayError as wrong:
        error = amqp_error(wrong)
    batch.size_bytes += size
    count = len(batch.bodies) - before
    if ch.transaction is not None:
        ch.transaction.exchanges |= exchanges
        ch.transaction.note_queues(batch.targets[before:])
        ch.transaction.count(count, size)
    else:
        if batch.returns:
            ch.outbox.send(returned(ch, batch, batch.returns))
        if count:
            send(ch, batch, ch.confirms.next(count) if ch.confirms is not None else 0)
    if error is not None:
        raise error
    return count if is_late else len(publishes)


def _add_unusual(ch: Channel, batch: Batch, there: Destination, raw: bytes, body: bytes) -> int:
    """Add a message that must be looked at closely; its size. Direct replies and extensions reach no queue, and count
    only for confirms."""
    try:
        given = property_lists.decode(raw)
    except Malformed as wrong:
        raise AmqpError(501, f"cannot decode the properties: {wrong}") from None
    user = given.get("user_id")
    if user is not None and user != ch.account.name:
        raise precondition_failed(f"user_id property set to '{user}' but authenticated user was '{ch.account.name}'")
    if given.get("reply_to") == replies.REPLY_TO:
        raw = property_lists.change(raw, {"reply_to": replies.own_name(ch)})
    headers: dict[str, Any] = given.get("headers", {})
    copies = [*_copies(headers, "CC", raw), *_copies(headers, "BCC", raw)]
    if there.is_topic:
        for key in copies:
            ch.check_topic(there.exchange, key, "write")
    ttl_ms = _ttl_ms(given["expiration"]) if "expiration" in given else None
    i = len(batch.bodies)
    targets, is_taken, is_awaited = there.targets, False, False
    if there.asks_headers or copies:
        route = ch.broker.topology.route
        targets = route(ch.vhost, there.exchange, there.routing_key, headers, more=copies)
    if there.routing_key == EXTEND and there.is_internal:
        _extend(ch, headers)
        targets, is_taken = (), True
    elif not there.exchange:
        is_taken, is_awaited = _reply(ch, batch, there, copies, raw, body)
    if there.mandatory and not is_taken:
        batch.mandatory[i] = there
        if not targets and not is_awaited:
            batch.returns.append(i)
    if ttl_ms is not None:
        batch.ttls_ms[i] = ttl_ms
    delay_ms = message_delay_ms(headers) if there.is_delayed else 0
    if delay_ms:
        batch.delays_ms[i] = delay_ms
    head = there.props_head
    if "BCC" in headers:
        head = amqp_props_head(there.exchange.encode(), there.routing_key.encode(), hides_bcc=True)
    batch.targets.append(targets)
    batch.props.append(head + raw)
    batch.bodies.append(body)
    batch.priorities.append(given.get("priority"))
    return len(body) + len(raw)


def _reply(
    ch: Channel, batch: Batch, there: Destination, copies: list[str], raw: bytes, body: bytes
) -> tuple[bool, bool]:
    """Deliver a message to the callers that it names, if any. Whether one took it, and whether one is at another
    process: whether that one takes it is known later, and the batch waits for it if the message is mandatory."""
    heard = partial(_heard, batch, len(batch.bodies)) if there.mandatory else None
    names = {key for key in (there.routing_key, *copies) if key.startswith(replies.PREFIX)}
    outcomes = [replies.deliver(ch.shared, name, (raw, body), heard) for name in sorted(names)]
    if heard is not None:
        batch.awaited += outcomes.count(None)
    return True in outcomes, None in outcomes


def _heard(batch: Batch, i: int, is_taken: bool) -> None:
    batch.awaited -= 1
    if is_taken:
        batch.mandatory.pop(i, None)
    if not batch.awaited and batch.when_heard is not None:
        batch.when_heard()


def _copies(headers: dict[str, Any], name: str, raw: bytes) -> list[str]:
    if name not in headers:
        return []
    keys = headers[name]
    if isinstance(keys, list) and len(keys) > MAX_ROUTING_KEYS:
        raise precondition_failed(f"{name} has {len(keys)} routing keys, {MAX_ROUTING_KEYS} are allowed")
    if not isinstance(keys, list):
        at = property_lists.headers_at(raw)
        kind = next(TYPE_NAMES[entry[1 + entry[0]]] for found, entry in split_table(raw, at) if found == name)
        raise precondition_failed(f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
    return [key for key in keys if isinstance(key, str)]


def _ttl_ms(text: str) -> int:
    """An expiration is whole milliseconds as text; the refusals are RabbitMQ's."""
    number = re.match(r"[+-]?[0-9]+", text)
    reason = ""
    if number is None:
        reason = "no_integer"
    elif number.end() < len(text):
        reason = f'{{leftover_string,"{text[number.end() :]}"}}'
    elif int(number[0]) < 0:
        reason = f"{{value_negative,{int(number[0])}}}"
    elif int(number[0]) > MAX_EXPIRY_MS:
        reason = f"{{value_too_large,{int(number[0])}}}"
    if reason or number is None:
        raise precondition_failed(f"invalid expiration '{text}': {reason}")
    return min(int(number[0]), MAX_TTL_MS)


def _extend(ch: Channel, headers: dict[str, Any]) -> None:
    """Give what the channel holds, or the delivery that a header names, its full time again."""
    tag = headers.get("delivery-tag")
    held = ch.unacked.peek(tag if isinstance(tag, int) else None)
    if isinstance(tag, int) and not held:
        raise precondition_failed(f"unknown delivery tag {tag}")
    ch.settling.extend(held)


def send(ch: Channel, batch: Batch, last: int) -> None:
    """Hand a batch to the broker; `last` is the number of its last confirm, 0 if there are none to give."""
    ch.connection.writing(batch.size_bytes)
    if ch.broker.send(Publish(batch.targets, batch.messages(), None, AMQP), partial(_published, ch, batch, last)):
        batch.is_held = True  # it is carried out in parts: what comes next must not overtake it
        ch.connection.hold()


def _published(ch: Channel, batch: Batch, last: int, answer: list[Arrival] | LanewayError) -> None:
    connection, count = ch.connection, len(batch.bodies)
    connection.written(batch.size_bytes)
    if batch.is_held:
        batch.is_held = False
        connection.release()
    if may_be_sent_again(answer):
        connection.block(partial(send, ch, batch, last))
        return
    late: list[int] = []
    if batch.mandatory:
        if batch.awaited:
            connection.writing(batch.size_bytes)  # it is kept until then
            batch.when_heard = partial(_all_heard, ch, batch, last, answer)
            return
        late = batch.unrouted(answer)
    if len(late) > len(batch.returns):  # those have been returned
        ch.outbox.send(returned(ch, batch, sorted({*late}.difference(batch.returns))))
    refusals = refusals_of(answer, count)
    if last and ch.confirms is not None:
        first = last - count + 1
        for i in sorted(refusals):
            if first < last - count + 1 + i:
                ch.confirms.settle(first, last - count + i, True)
            first = last - count + 1 + i
            ch.confirms.settle(first, first, False)
            first += 1
        if first <= last:
            ch.confirms.settle(first, last, True)
        return
    for refusal in refusals.values():
        # A full queue drops; what no queue can take, or not even the disk, the publisher has to know.
        if isinstance(refusal, InvalidInput | TooLargeForDisk):
            connection.fail_channel(ch, amqp_error(refusal), _PUBLISH.number)
            return


def _all_heard(ch: Channel, batch: Batch, last: int, answer: list[Arrival] | LanewayError) -> None:
    if ch.is_closing:  # its number may be that of another channel already
        ch.connection.written(batch.size_bytes)
    else:
        _published(ch, batch, last, answer)


def refusals_of(answer: list[Arrival] | LanewayError, count: int) -> dict[int, LanewayError]:
    """Which messages some queue did not take, and why; by index."""
    if isinstance(answer, LanewayError):
        return dict.fromkeys(range(count), answer)
    refusals: dict[int, LanewayError] = {}
    for arrival in answer:
        result = arrival.result
        if not isinstance(result, LanewayError) and not result.others:
            continue
        places = arrival.places
        if isinstance(result, LanewayError):
            refusals |= dict.fromkeys(range(count) if places is None else places, result)
        else:
            for i, refusal in result.refusals().items():
                refusals.setdefault(i if places is None else places[i], refusal)
    return refusals


def returned(ch: Channel, batch: Batch, places: Sequence[int]) -> bytes:
    """basic.return for messages of a batch: they reached no queue, and their publisher wants to know."""
    parts: list[Data] = []
    for i in places:
        there, props = batch.mandatory[i], batch.props[i]
        came = split_amqp_props(props)
        assert came is not None
        raw = property_lists.change_headers(came[2], ("BCC",), {}) if came[3] else came[2]
        parts.append(_RETURN.encode(ch.number, 312, "NO_ROUTE", there.exchange, there.routing_key))
        parts += delivering.content(ch.number, raw, batch.bodies[i], ch.connection.frame_bytes)
    return b"".join(parts)


def select_confirms(ch: Channel, a: Arguments) -> None:
    if ch.transaction is not None:
        raise precondition_failed("cannot switch from tx to confirm mode")
    if ch.confirms is None:
        ch.confirms = Confirms(ch.number, ch.outbox.send, ch.connection.call_soon)
    if not a.nowait:
        ch.send("confirm.select-ok")


HANDLERS = {"confirm.select": select_confirms}
