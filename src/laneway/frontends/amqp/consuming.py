"""basic.consume, cancel, get, qos, ack, nack, reject, recover: how messages reach a channel, and how they end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from laneway.broker.arguments import ack_timeout_ms
from laneway.broker.interface import AMQP, Lease, LimitPool, SettleHeld, Subscribe, Unsubscribe
from laneway.broker.values import Deliveries, QueueSettings
from laneway.core.field_tables import encode_short_text, table_types
from laneway.errors import LanewayError, QueueInUse, Unavailable
from laneway.frontends.amqp import replies
from laneway.frontends.amqp.delivering import Dress, frames, get_ok_frames
from laneway.frontends.amqp.errors import (
    AmqpError,
    access_refused,
    amqp_error,
    not_allowed,
    not_implemented,
    precondition_failed,
    resource,
)
from laneway.frontends.amqp.outbox import Data, Slot
from laneway.frontends.amqp.settling import Action
from laneway.frontends.amqp.spec import BY_NAME, Arguments
from laneway.frontends.amqp.unacked import Taken

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

log = logging.getLogger("laneway.amqp")

_GET = BY_NAME["basic.get"]
_GET_EMPTY = BY_NAME["basic.get-empty"]


#: Arguments of consumers that are not for queues of a type.
_OF_OTHER_TYPES = {"classic": ("x-stream-offset",), "quorum": ("x-cancel-on-ha-failover", "x-stream-offset")}


class Consumer:
    """One basic.consume."""

    __slots__ = ("channel", "dress", "lease_ms", "no_ack", "number", "queue", "tag")

    def __init__(
        self, channel: Channel, number: int, queue: str, tag: str, no_ack: bool, lease_ms: int | None, counted: bool
    ):
        self.channel = channel
        self.queue = queue
        self.number = number  # of the connection's consumers, as the broker knows it
        self.tag = tag
        self.no_ack = no_ack
        self.lease_ms = lease_ms
        # If it is counted, it is told how often a message was delivered before.
        self.dress = Dress(channel.number, encode_short_text(tag), channel.shared.wheres, counted=counted)

    def ended(self) -> None:
        """The queue went. The client hears of it once that is durable, and after the reply to whoever deleted it."""
        ch = self.channel
        if ch.consumers.pop(self.tag, None) is self:
            if ch.connection.client_capabilities.get("consumer_cancel_notify") is True:
                ch.connection.call_soon(self._tell_ended)

    def _tell_ended(self) -> None:
        if not self.channel.is_closing:
            self.channel.send_when_durable("basic.cancel", self.tag, True)


def deliver(ch: Channel, parts: list[tuple[Consumer, Deliveries]]) -> None:
    """Put what the broker delivers to consumers of a channel on the wire."""
    if ch.is_closing:
        for consumer, deliveries in parts:
            if not consumer.no_ack:  # it came too late: back to its place
                _give_back(ch, deliveries, consumer.number)
        return
    try:
        data = _framed(ch, parts)
    except Exception:
        kept = [(consumer, _deliverable(ch, consumer, deliveries)) for consumer, deliveries in parts]
        parts = [(consumer, deliveries) for consumer, deliveries in kept if len(deliveries)]
        if not parts:
            return
        data = _framed(ch, parts)
    for consumer, deliveries in parts:
        if not consumer.no_ack:
            ch.unacked.add(consumer, deliveries.queue, ch.last_delivery + 1, deliveries.seqs, deliveries.leases)
        ch.last_delivery += len(deliveries.seqs)
    for piece in data:
        ch.outbox.send(piece)


def _framed(ch: Channel, parts: list[tuple[Consumer, Deliveries]]) -> Sequence[Data]:
    dressed = [(consumer.dress, deliveries) for consumer, deliveries in parts]
    return frames(ch.number, dressed, ch.last_delivery + 1, ch.connection.frame_bytes)


def _deliverable(ch: Channel, consumer: Consumer, deliveries: Deliveries) -> Deliveries:
    def build(some: Deliveries) -> Sequence[Data]:
        return _framed(ch, [(consumer, some)])

    return _set_aside(ch, deliveries, build, 0 if consumer.no_ack else consumer.number)


def consume(ch: Channel, a: Arguments) -> None:
    if a.queue == replies.REPLY_TO:
        replies.consume(ch, a)
        return
    tag = a.consumer_tag or f"amq.ctag-{ch.shared.random_name()}"
    if tag in ch.consumers or tag == ch.reply_tag:
        raise not_allowed(f"attempt to reuse consumer tag '{tag}'")
    name = ch.queue_name(a.queue)
    ch.check_access("queue", name, "read")
    info = ch.queue(name)
    where = resource("queue", name, ch.vhost)
    if a.exclusive and info.settings.single_active_consumer:
        raise access_refused(f"{where} in exclusive use")
    if len(ch.connection.consumers) >= ch.limits.consumer_count:
        raise AmqpError(506, f"a connection has at most {ch.limits.consumer_count} consumers")
    quorum = is_quorum(info.settings)
    priority = _integer(ch, name, a, "x-priority") or 0
    lease_ms = _timeout_ms(ch, name, a)
    _check_other_arguments(ch, name, a, "quorum" if quorum else "classic")
    if quorum and ch.shared_prefetch:
        raise not_implemented(f"{where} does not support global qos")
    number = ch.connection.next_number()
    consumer = Consumer(ch, number, name, tag, a.no_ack, lease_ms, quorum)
    ch.consumers[tag] = ch.connection.consumers[number] = consumer

    def refused(error: LanewayError) -> AmqpError:
        ch.consumers.pop(tag, None)
        ch.connection.forget_consumer(number)
        if isinstance(error, QueueInUse):
            return access_refused(f"{where} in exclusive use")
        return AmqpError(506, error.message) if isinstance(error, Unavailable) else amqp_error(error)

    credit = 0 if a.no_ack else ch.prefetch or ch.limits.unacked_count
    request = Subscribe(
        ch.connection.session, number, info.queue, credit, ch.pool, priority, a.exclusive, a.no_ack, lease_ms
    )
    ch.ask(request, lambda _: ch.frame("basic.consume-ok", tag, nowait=a.nowait), refused, waits=False)


def is_quorum(settings: QueueSettings) -> bool:
    return settings.arguments.get("x-queue-type") == "quorum"


def _integer(ch: Channel, queue: str, a: Arguments, name: str) -> int | None:
    if name not in a.arguments:
        return None
    value: Any = a.arguments[name]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    kind = table_types(a.raw, a.table_at)[name]
    where = resource("queue", queue, ch.vhost)
    raise AmqpError(406, f"invalid arg '{name}' for {where}: \"expected integer, got {kind}\"")


def _timeout_ms(ch: Channel, queue: str, a: Arguments) -> int | None:
    name = "x-consumer-timeout"
    if ch.shared.version == "3.10" and not isinstance(a.arguments.get(name), int):
        return None  # which it does not know
    asked_ms = _integer(ch, queue, a, name)
    return None if asked_ms is None else ack_timeout_ms(asked_ms)


def _check_other_arguments(ch: Channel, queue: str, a: Arguments, queue_type: str) -> None:
    where = resource("queue", queue, ch.vhost)
    name = "x-cancel-on-ha-failover"
    if name in a.arguments and not isinstance(a.arguments[name], bool) and queue_type == "classic":
        kind = table_types(a.raw, a.table_at)[name]
        raise precondition_failed(f"invalid arg '{name}' for {where}: {{unacceptable_type,{kind}}}")
    for name in _OF_OTHER_TYPES[queue_type]:
        if name in a.arguments:
            raise precondition_failed(f"invalid arg '{name}' for {where} of queue type rabbit_{queue_type}_queue")


def cancel(ch: Channel, a: Arguments) -> None:
    tag = a.consumer_tag
    consumer = ch.consumers.pop(tag, None)
    if consumer is not None:
        number = consumer.number
        slot = ch.outbox.hold()  # behind what is on its way to the consumer

        def done(_: object) -> None:
            ch.connection.forget_consumer(number)
            slot.fill(b"" if a.nowait else BY_NAME["basic.cancel-ok"].encode(ch.number, tag))

        ch.broker.send(Unsubscribe(ch.connection.session, number), done)
        return
    if tag == ch.reply_tag:
        replies.forget(ch)
    if not a.nowait:
        ch.send_when_durable("basic.cancel-ok", tag)


def cancel_by_server(consumer: Consumer) -> None:
    """Somebody ended it from outside: its client is told, behind what is on its way to it."""
    ch, tag = consumer.channel, consumer.tag
    del ch.consumers[tag]

    def done(_: object) -> None:
        ch.connection.forget_consumer(consumer.number)
        if not ch.is_closing:
            ch.send("basic.cancel", tag, True)

    ch.broker.send(Unsubscribe(ch.connection.session, consumer.number), done)


def qos(ch: Channel, a: Arguments) -> None:
    if a.prefetch_size:
        raise not_implemented(f"prefetch_size!=0 ({a.prefetch_size})")
    # `global` is a word of Python's.
    if vars(a)["global"]:
        ch.shared_prefetch = a.prefetch_count
        ch.broker.send(LimitPool(ch.connection.session, ch.pool, a.prefetch_count), _not_answered)
    else:
        ch.prefetch = a.prefetch_count
    ch.send("basic.qos-ok")


def get(ch: Channel, a: Arguments) -> None:
    name = ch.queue_name(a.queue)
    ch.check_access("queue", name, "read")
    info = ch.queue(name)
    most, unacked = ch.limits.unacked_count, ch.unacked
    if not a.no_ack and unacked.count >= most and unacked.count - unacked.owned_count() >= most:
        raise AmqpError(506, f"a channel holds at most {most} messages it asked for")
    request = Lease(info.queue, 1, protocol=AMQP, session=ch.connection.session, no_ack=a.no_ack)
    ch.broker.send(request, partial(_got, ch, request, is_quorum(info.settings), ch.outbox.hold()))


def _got(ch: Channel, request: Lease, counted: bool, slot: Slot, answer: Deliveries | LanewayError) -> None:
    no_ack = request.no_ack
    if isinstance(answer, LanewayError):
        slot.fill(b"")
        ch.connection.fail_channel(ch, amqp_error(answer), _GET.number)
        return
    if not len(answer):
        slot.fill(_GET_EMPTY.encode(ch.number, ""))
        return
    if ch.is_closing:
        if not no_ack:
            _give_back(ch, answer, 0)
        slot.fill(b"")
        return
    build = partial(get_ok_frames, ch.number, ch.last_delivery + 1, frame_bytes=ch.connection.frame_bytes)
    try:
        frames = build(answer, counted=counted)
    except Exception:
        if not len(_set_aside(ch, answer, partial(build, counted=counted), 0)):
            ch.broker.send(request, partial(_got, ch, request, counted, slot))  # the next one, if there is one
            return
        frames = build(answer, counted=counted)
    ch.last_delivery += 1
    if not no_ack:
        ch.unacked.add(None, answer.queue, ch.last_delivery, answer.seqs, answer.leases)
    slot.fill(*frames)


def _set_aside(ch: Channel, deliveries: Deliveries, build: Callable[[Deliveries], object], consumer: int) -> Deliveries:
    """All but those that cannot be delivered on this connection. These stay leased without being anybody's burden: when
    their leases run out they count as tried, and in the end they are dead letters, as others that nobody acks."""
    broken = deliveries.broken(build)
    for i, trouble in broken.items():
        log.error(
            "message %s of queue %r cannot be delivered over AMQP and is set aside: %s",
            deliveries.message_id(i),
            deliveries.queue_name,
            trouble,
            exc_info=None if isinstance(trouble, ValueError) else trouble,
        )
    at = list(broken)
    seqs, leases = [deliveries.seqs[i] for i in at], [deliveries.leases[i] for i in at]
    request = SettleHeld(ch.connection.session, deliveries.queue, seqs, leases, "set_aside", consumer)
    ch.broker.send(request, _not_answered)
    return deliveries.without(broken)


def _give_back(ch: Channel, deliveries: Deliveries, consumer: int) -> None:
    session = ch.connection.session
    request = SettleHeld(session, deliveries.queue, deliveries.seqs, deliveries.leases, "release", consumer)
    ch.broker.send(request, _not_answered)


def _not_answered(answer: object) -> None:
    pass


# --- settling


def ack(ch: Channel, a: Arguments) -> None:
    settle(ch, "ack", ch.settling.take(a.delivery_tag, a.multiple))


def reject(ch: Channel, a: Arguments) -> None:
    settle(ch, "fail" if a.requeue else "reject", ch.settling.take(a.delivery_tag, False))


def nack(ch: Channel, a: Arguments) -> None:
    settle(ch, "release" if a.requeue else "reject", ch.settling.take(a.delivery_tag, a.multiple))


def settle(ch: Channel, action: Action, taken: list[Taken]) -> None:
    if ch.transaction is not None:
        ch.transaction.add_settlement(action, taken)
    else:
        ch.settling.settle(taken, action)


def recover(ch: Channel, a: Arguments) -> None:
    if not a.requeue:
        raise not_implemented("requeue=false")
    ch.settling.settle(ch.unacked.take_all(), "release")
    if a.method.name == "basic.recover":
        ch.send("basic.recover-ok")


HANDLERS = {
    "basic.consume": consume,
    "basic.cancel": cancel,
    "basic.qos": qos,
    "basic.get": get,
    "basic.ack": ack,
    "basic.reject": reject,
    "basic.nack": nack,
    "basic.recover": recover,
    "basic.recover-async": recover,
}
