"""basic.consume, cancel, get, qos, ack, nack, reject, recover: how messages reach a channel, and how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.broker.arguments import ack_timeout_ms
from laneway.broker.audiences import Credit, Subscription
from laneway.broker.values import Batch, QueueSettings
from laneway.errors import LanewayError, QueueInUse, Unavailable
from laneway.frontends.amqp import replies
from laneway.frontends.amqp.delivering import Writer, get_ok_frames, message
from laneway.frontends.amqp.errors import AmqpError, access_refused, not_allowed, not_implemented, resource
from laneway.frontends.amqp.outbox import Slot
from laneway.frontends.amqp.spec import BY_NAME, Arguments, encode_short_text
from laneway.frontends.amqp.tables import table_types
from laneway.frontends.amqp.unacked import Taken

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

_GET_EMPTY = BY_NAME["basic.get-empty"]


class Consumer:
    """One basic.consume: takes batches from the broker and puts them on the wire."""

    __slots__ = ("_writer", "channel", "no_ack", "subscription", "tag")

    def __init__(self, channel: Channel, tag: str, no_ack: bool, counted: bool) -> None:
        self.channel = channel
        self.tag = tag
        # If it is counted, it is told how often a message was delivered before.
        self._writer = Writer(
            channel.number, encode_short_text(tag), channel.shared, channel.connection.frame_bytes, counted=counted
        )
        self.no_ack = no_ack
        self.subscription: Subscription

    def deliver(self, subscription: Subscription, batch: Batch) -> None:
        ch = self.channel
        if ch.is_closing:
            if not self.no_ack:  # it came too late: back to its place
                leases = range(batch.first_lease, batch.first_lease + len(batch.seqs))
                ch.broker.sessions.settle(batch.queue, batch.seqs, leases, "release")
            return
        first = ch.last_delivery + 1
        ch.last_delivery += len(batch.seqs)
        if not self.no_ack:
            ch.unacked.add(self, batch.queue, first, batch.seqs, batch.first_lease)
        ch.outbox.send(self._writer.write(batch, first))

    def cancelled(self, subscription: Subscription) -> None:
        """The queue went. Told once that is durable, and after the reply to whoever deleted it."""
        ch = self.channel
        if ch.consumers.pop(self.tag, None) is self:
            ch.connection.consumer_count -= 1
            if ch.connection.client_capabilities.get("consumer_cancel_notify") is True:
                ch.connection.call_soon(self._tell_cancelled)

    def _tell_cancelled(self) -> None:
        if not self.channel.is_closing:
            self.channel.send_when_durable("basic.cancel", self.tag, True)


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
    if a.exclusive and info.settings.single_active_consumer:
        raise access_refused(f"{resource('queue', name, ch.vhost)} in exclusive use")
    if ch.connection.consumer_count >= ch.limits.consumer_count:
        raise AmqpError(506, f"a connection has at most {ch.limits.consumer_count} consumers")
    priority = _integer(ch, name, a, "x-priority") or 0
    lease_ms = _integer(ch, name, a, "x-consumer-timeout")
    consumer = Consumer(ch, tag, a.no_ack, is_quorum(info.settings))
    try:
        consumer.subscription = ch.broker.sessions.subscribe(
            ch.vhost,
            name,
            tag=tag,
            credit=0 if a.no_ack else ch.prefetch or ch.limits.unacked_count,
            pool=_pool(ch),
            deliver=consumer.deliver,
            cancelled=consumer.cancelled,
            priority=priority,
            exclusive=a.exclusive,
            no_ack=a.no_ack,
            lease_ms=None if lease_ms is None else ack_timeout_ms(lease_ms),
        )
    except QueueInUse:
        raise access_refused(f"{resource('queue', name, ch.vhost)} in exclusive use") from None
    except Unavailable as refusal:
        raise AmqpError(506, refusal.message) from None
    ch.consumers[tag] = consumer
    ch.connection.consumer_count += 1
    if ch.connection.is_writing_paused:
        consumer.subscription.pause()
    if not a.nowait:
        ch.send("basic.consume-ok", tag)


def is_quorum(settings: QueueSettings) -> bool:
    return settings.arguments.get("x-queue-type") == "quorum"


def _pool(ch: Channel) -> Credit:
    if ch.pool is None:
        ch.pool = Credit(None)
    return ch.pool


def _integer(ch: Channel, queue: str, a: Arguments, name: str) -> int | None:
    value: Any = a.arguments.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    kind = table_types(a.raw, a.table_at)[name]
    where = resource("queue", queue, ch.vhost)
    raise AmqpError(406, f"invalid arg '{name}' for {where}: \"expected integer, got {kind}\"")


def cancel(ch: Channel, a: Arguments) -> None:
    tag = a.consumer_tag
    consumer = ch.consumers.pop(tag, None)
    if consumer is not None:
        ch.connection.consumer_count -= 1
        consumer.subscription.cancel()
    elif tag == ch.reply_tag:
        replies.forget(ch)
    if not a.nowait:
        ch.send_when_durable("basic.cancel-ok", tag)  # behind what is on its way to the consumer


def qos(ch: Channel, a: Arguments) -> None:
    if a.prefetch_size:
        raise not_implemented(f"prefetch_size!=0 ({a.prefetch_size})")
    # `global` is a word of Python's.
    if vars(a)["global"]:
        outstanding = ch.unacked.owned_count() + sum(c.subscription.on_its_way for c in ch.consumers.values())
        _pool(ch).set(a.prefetch_count - outstanding if a.prefetch_count else None)
    else:
        ch.prefetch = a.prefetch_count
    ch.send("basic.qos-ok")


def get(ch: Channel, a: Arguments) -> None:
    name = ch.queue_name(a.queue)
    ch.check_access("queue", name, "read")
    ch.queue(name)
    most, unacked = ch.limits.unacked_count, ch.unacked
    if not a.no_ack and unacked.count >= most and unacked.count - unacked.owned_count() >= most:
        raise AmqpError(506, f"a channel holds at most {most} messages it asked for")
    slot = ch.outbox.hold()
    try:
        ch.broker.sessions.get(ch.vhost, name, lambda batch: _got(ch, name, a.no_ack, slot, batch), no_ack=a.no_ack)
    except LanewayError:
        slot.fill(b"")
        raise


def _got(ch: Channel, name: str, no_ack: bool, slot: Slot, batch: Batch | None) -> None:
    if batch is None:
        slot.fill(_GET_EMPTY.encode(ch.number, ""))
        return
    if ch.is_closing:
        if not no_ack:
            ch.broker.sessions.settle(batch.queue, batch.seqs, [batch.first_lease], "release")
        slot.fill(b"")
        return
    ch.last_delivery += 1
    if not no_ack:
        ch.unacked.add(None, batch.queue, ch.last_delivery, batch.seqs, batch.first_lease)
    info = ch.broker.queues.find(ch.vhost, name)
    left = ch.broker.sessions.counts(ch.vhost, name)[0] if info is not None else 0
    one = message(batch, 0, ch.shared, counted=info is not None and is_quorum(info.settings))
    slot.fill(get_ok_frames(ch.number, ch.last_delivery, one, left, ch.connection.frame_bytes))


# --- settling


def ack(ch: Channel, a: Arguments) -> None:
    settle(ch, "ack", ch.settling.take(a.delivery_tag, a.multiple))


def reject(ch: Channel, a: Arguments) -> None:
    settle(ch, "release" if a.requeue else "reject", ch.settling.take(a.delivery_tag, False))


def nack(ch: Channel, a: Arguments) -> None:
    settle(ch, "release" if a.requeue else "reject", ch.settling.take(a.delivery_tag, a.multiple))


def settle(ch: Channel, action: str, taken: list[Taken]) -> None:
    if ch.transaction is not None:
        ch.transaction.add_settlement(action, taken)
    elif action == "ack":
        ch.settling.ack(taken)
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
