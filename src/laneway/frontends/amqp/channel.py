"""One channel: what it has declared, consumes, holds and publishes; hands each method to the module that knows it.

Replies leave in the order of their methods. One that promises something durable waits for the disk, and those behind it
wait with it (outbox.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from laneway.access import Need
from laneway.broker.interface import LimitPool, Request, Sync, Unsubscribe
from laneway.broker.values import QueueInfo
from laneway.errors import LanewayError
from laneway.frontends.amqp import consuming, exchanges, publishing, queues, replies, transactions
from laneway.frontends.amqp.confirms import Confirms
from laneway.frontends.amqp.errors import (
    NOT_NOW,
    AmqpError,
    access_refused,
    amqp_error,
    not_found,
    not_implemented,
    resource,
)
from laneway.frontends.amqp.outbox import Outbox
from laneway.frontends.amqp.settling import Settling
from laneway.frontends.amqp.spec import BY_NAME, Arguments
from laneway.frontends.amqp.unacked import Unacked

if TYPE_CHECKING:
    from laneway.frontends.amqp.connection import AmqpConnection
    from laneway.frontends.amqp.consuming import Consumer

Handler = Callable[["Channel", Arguments], None]


class Channel:
    def __init__(self, connection: AmqpConnection, number: int) -> None:
        assert connection.account is not None
        self.connection = connection
        self.shared = connection.shared
        self.broker = connection.shared.broker
        self.limits = connection.shared.limits
        self.account = connection.account
        self.vhost = connection.vhost
        self.number = number
        self.is_closing = False
        self.outbox = Outbox(connection.write)
        self.last_queue = ""  # the one declared last, which methods without a queue's name mean
        # Consuming
        self.consumers: dict[str, Consumer] = {}
        self.unacked = Unacked()
        self.settling = Settling(self)
        self.last_delivery = 0
        self.prefetch = 0  # of consumers to come; 0: no limit
        self.shared_prefetch = 0  # of all together
        self.pool = connection.next_number()  # the limit that all its consumers share, as the broker knows it
        self.reply_tag: str | None = None  # of the consumer of direct replies
        self.reply_name = ""
        # Publishing
        self.confirms: Confirms | None = None
        self.transaction: transactions.Transaction | None = None

    # --- methods

    def on_method(self, arguments: Arguments) -> None:
        handler = HANDLERS.get(arguments.method.number)
        if handler is None:
            raise AmqpError(503, "unimplemented method")
        handler(self, arguments)

    def ack(self, acks: list[tuple[int, int, bool]]) -> None:
        """basic.ack, many at once: (first tag, last tag, multiple)."""
        for first, last, multiple in acks:
            taken = self.settling.take(last, True) if multiple else self.settling.take_range(first, last)
            consuming.settle(self, "ack", taken)

    def send(self, name: str, *values: Any) -> None:
        """A reply that may leave as soon as those before it have left."""
        self.outbox.send(BY_NAME[name].encode(self.number, *values))

    def frame(self, name: str, *values: Any, nowait: bool = False) -> bytes:
        """A reply as bytes; nothing if the client wants none."""
        return b"" if nowait else BY_NAME[name].encode(self.number, *values)

    def send_when_durable(self, name: str, *values: Any) -> None:
        slot = self.outbox.hold()
        data = BY_NAME[name].encode(self.number, *values)
        self.broker.send(Sync(), lambda _: slot.fill(data))

    def ask(
        self,
        request: Request,
        reply: Callable[[Any], bytes],
        refused: Callable[[LanewayError], AmqpError] = amqp_error,
        *,
        waits: bool = True,
    ) -> None:
        """Have the broker do something, then send the reply to its answer."""
        self.wait_for(partial(self.broker.send, request), reply, refused, waits=waits)

    def wait_for(
        self,
        begin: Callable[[Callable[[Any], None]], object],
        reply: Callable[[Any], bytes],
        refused: Callable[[LanewayError], AmqpError],
        *,
        waits: bool = True,
    ) -> None:
        """Begin something that is answered now or later, then send the reply to the answer. Until then the connection
        reads nothing more: what the client sends next may rest on it. A refusal ends the channel; `refused` puts it
        into RabbitMQ's words. `waits`: while the disk takes nothing, try again later instead."""
        connection, method = self.connection, self.connection.method
        is_answered = is_held = False
        slot = self.outbox.hold()

        def done(answer: Any) -> None:
            nonlocal is_answered
            is_answered = True
            if isinstance(answer, LanewayError):
                slot.fill(b"")
                if waits and isinstance(answer, NOT_NOW):
                    connection.block(lambda: self.wait_for(begin, reply, refused))
                else:
                    connection.fail_channel(self, refused(answer), method)
            else:
                slot.fill(connection.guarded(reply, answer))
            if is_held:
                connection.release()

        begin(done)
        if not is_answered:
            is_held = True
            connection.hold()

    # --- what methods have in common

    def check_access(self, kind: str, name: str, need: Need) -> None:
        shown = "amq.default" if kind == "exchange" and not name else name
        if not self.shared.access.allowed(self.account, self.vhost, shown, need):
            where = resource(kind, shown, self.vhost)
            raise access_refused(f"access to {where} refused for user '{self.account.name}'")

    def check_topic(self, exchange: str, key: str, need: Need) -> None:
        if not self.shared.access.topic_allowed(self.account, self.vhost, exchange, key, need):
            raise access_refused(
                f"access to topic '{key}' in {resource('exchange', exchange, self.vhost)} refused for user "
                f"'{self.account.name}'"
            )

    def check_may_see(self, kind: str, name: str) -> None:
        """Whoever may do nothing with it is not told whether it is there."""
        if not self.shared.access.may_see(self.account, self.vhost, name):
            self.check_access(kind, name, "stats")

    def consumer_refusal(self) -> AmqpError | None:
        """Why one of its consumers may no longer read its queue; None if all may."""
        for consumer in self.consumers.values():
            try:
                self.check_access("queue", consumer.queue, "read")
            except AmqpError as error:
                return error
        return None

    def queue_name(self, given: str) -> str:
        """The queue that a method means."""
        if given:
            return given
        if not self.last_queue:
            raise AmqpError(404, "no previously declared queue")
        return self.last_queue

    def queue(self, name: str) -> QueueInfo:
        """A queue that exists and that this connection may use."""
        info = self.broker.topology.queue(self.vhost, name)
        if info is None:
            raise not_found("queue", name, self.vhost)
        if info.settings.exclusive and info.owner != self.connection.session:
            raise locked(name, self.vhost)
        return info

    # --- the end

    def close(self) -> None:
        """The client ends it."""
        self.end(keep_outbox=True)
        self.send_when_durable("channel.close-ok")

    def fail(self, close: bytes) -> None:
        """The client made a mistake; the channel is no use until it confirmed that."""
        self.end(keep_outbox=True)
        self.outbox.send(close)

    def end(self, *, keep_outbox: bool = False) -> None:
        """Give back everything it holds."""
        self.is_closing = True
        if not keep_outbox:
            self.outbox.clear()
        for consumer in self.consumers.values():
            forget = partial(self.connection.forget_consumer, consumer.number)
            self.broker.send(Unsubscribe(self.connection.session, consumer.number), forget)
        self.consumers.clear()
        replies.forget(self)
        if self.confirms is not None:
            self.confirms.end()
        if self.transaction is not None:
            self.transaction.restore()
        self.settling.settle(self.unacked.take_all(), "fail")
        self.broker.send(LimitPool(self.connection.session, self.pool, 0), _not_answered)


def _not_answered(answer: object) -> None:
    """The request has no answer."""


def locked(name: str, vhost: str) -> AmqpError:
    return AmqpError(
        405,
        f"cannot obtain exclusive access to locked {resource('queue', name, vhost)}. It could be originally declared "
        "on another connection or the exclusive property value does not match that of the original declaration.",
    )


def _flow(channel: Channel, a: Arguments) -> None:
    if not a.active:
        raise not_implemented("active=false")
    channel.send("channel.flow-ok", True)


def _access_request(channel: Channel, a: Arguments) -> None:
    channel.send("access.request-ok", 1)  # from AMQP 0-8, and still asked for by old clients


_BY_NAME: dict[str, Handler] = {
    "channel.flow": _flow,
    "access.request": _access_request,
    **exchanges.HANDLERS,
    **queues.HANDLERS,
    **consuming.HANDLERS,
    **publishing.HANDLERS,
    **transactions.HANDLERS,
}
HANDLERS = {BY_NAME[name].number: handler for name, handler in _BY_NAME.items()}
