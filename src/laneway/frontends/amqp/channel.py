"""One channel: what it has declared, consumes, holds and publishes; hands each method to the module that knows it.

Replies leave in the order of their methods. One that promises something durable waits for the disk, and those behind it
wait with it (outbox.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from laneway.access import Need
from laneway.broker.values import QueueInfo
from laneway.frontends.amqp import consuming, exchanges, publishing, queues, replies, transactions
from laneway.frontends.amqp.confirms import Confirms
from laneway.frontends.amqp.errors import AmqpError, access_refused, not_found, not_implemented, resource
from laneway.frontends.amqp.outbox import Outbox
from laneway.frontends.amqp.settling import Settling
from laneway.frontends.amqp.spec import BY_NAME, Arguments
from laneway.frontends.amqp.unacked import Unacked

if TYPE_CHECKING:
    from laneway.broker.audiences import Credit
    from laneway.frontends.amqp.connection import Connection
    from laneway.frontends.amqp.consuming import Consumer

Handler = Callable[["Channel", Arguments], None]


class Channel:
    def __init__(self, connection: Connection, number: int) -> None:
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
        self.shared_prefetch = 0  # of all consumers together
        self.pool: Credit | None = None
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
        if arguments.method.number not in SETTLING:
            self.settling.flush()  # what follows must see what was settled before it
        handler(self, arguments)

    def ack(self, acks: list[tuple[int, int, bool]]) -> None:
        """basic.ack, many at once: (first tag, last tag, multiple)."""
        for first, last, multiple in acks:
            taken = self.settling.take(last, True) if multiple else self.settling.take_range(first, last)
            consuming.settle(self, "ack", taken)

    def publish(self, method: bytes, properties: bytes, body: bytes) -> None:
        publishing.publish(self, method, properties, body)

    def send(self, name: str, *values: Any) -> None:
        """A reply that may leave as soon as those before it have left."""
        self.outbox.send(BY_NAME[name].encode(self.number, *values))

    def send_when_durable(self, name: str, *values: Any) -> None:
        slot = self.outbox.hold()
        self.broker.when_durable(slot.fill, BY_NAME[name].encode(self.number, *values))

    # --- what methods have in common

    def check_access(self, kind: str, name: str, need: Need) -> None:
        shown = "amq.default" if kind == "exchange" and not name else name
        if not self.shared.access.allowed(self.account, self.vhost, shown, need):
            where = resource(kind, shown, self.vhost)
            raise access_refused(f"access to {where} refused for user '{self.account.name}'")

    def queue_name(self, given: str) -> str:
        """The queue that a method means."""
        if given:
            return given
        if not self.last_queue:
            raise AmqpError(404, "no previously declared queue")
        return self.last_queue

    def queue(self, name: str) -> QueueInfo:
        """A queue that exists and that this connection may use."""
        info = self.broker.queues.find(self.vhost, name)
        if info is None:
            raise not_found("queue", name, self.vhost)
        if info.settings.exclusive and self.broker.sessions.queue_owner(self.vhost, name) is not self.connection:
            raise locked(name, self.vhost)
        return info

    # --- holding back

    def pause(self) -> None:
        for consumer in self.consumers.values():
            consumer.subscription.pause()

    def resume(self) -> None:
        for consumer in self.consumers.values():
            consumer.subscription.resume()

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
        for consumer in list(self.consumers.values()):
            consumer.subscription.cancel()
        self.connection.consumer_count -= len(self.consumers)
        self.consumers.clear()
        replies.forget(self)
        if self.confirms is not None:
            self.confirms.end()
        self.settling.flush()
        if self.transaction is not None:
            self.transaction.restore()
        self.settling.give_back(self.unacked.take_all())


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
SETTLING = {BY_NAME[name].number for name in ("basic.ack", "basic.nack", "basic.reject")}
