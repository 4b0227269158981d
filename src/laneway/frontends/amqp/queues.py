"""queue.declare, delete, purge, bind, unbind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.broker.arguments import ArgumentInvalid, agrees, arguments_now, settings_from_arguments
from laneway.broker.values import QueueInfo, QueueSettings
from laneway.errors import Conflict, QueueInUse
from laneway.frontends.amqp import exchanges, replies
from laneway.frontends.amqp.equivalence import check_argument, check_field
from laneway.frontends.amqp.errors import AmqpError, access_refused, precondition_failed, resource
from laneway.frontends.amqp.spec import Arguments
from laneway.frontends.amqp.tables import table_types

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

#: The arguments that a queue's redeclaration is compared by, in the order in which RabbitMQ looks at them.
_COMPARED = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-single-active-consumer",
    "x-queue-type",
    "x-delivery-limit",
)


def declare(ch: Channel, a: Arguments) -> None:
    name = a.queue
    if a.passive or replies.is_reply_name(name):
        _declare_passive(ch, a)
        return
    if not name:
        name = f"amq.gen-{ch.shared.random_name()}"
    elif name.startswith("amq."):
        raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    ch.check_access("queue", name, "configure")
    info = ch.broker.queues.find(ch.vhost, name)
    if info is not None:
        _check_equivalent(ch, name, a, info)
    else:
        _create(ch, name, a)
    _reply(ch, a, name, durable=True)


def _declare_passive(ch: Channel, a: Arguments) -> None:
    if replies.is_reply_name(a.queue):
        replies.check_exists(ch, a.queue)
        ch.last_queue = a.queue
        if not a.nowait:
            ch.send("queue.declare-ok", a.queue, 0, 1)
        return
    ch.queue(a.queue)
    _reply(ch, a, a.queue, durable=False)


def _reply(ch: Channel, a: Arguments, name: str, *, durable: bool) -> None:
    ch.last_queue = name
    if not a.nowait:
        send = ch.send_when_durable if durable else ch.send
        send("queue.declare-ok", name, *ch.broker.sessions.counts(ch.vhost, name))


def _create(ch: Channel, name: str, a: Arguments) -> None:
    settings = _settings(ch, name, a)
    if not _is_classic(a.arguments):
        _check_quorum(ch, name, a)
    if settings.dead_letter_exchange is not None:
        ch.check_access("queue", name, "read")
        ch.check_access("exchange", settings.dead_letter_exchange, "write")
    owner = ch.connection if a.exclusive else None
    ch.broker.sessions.declare_queue(ch.vhost, name, settings, owner)


def _settings(ch: Channel, name: str, a: Arguments) -> QueueSettings:
    try:
        return settings_from_arguments(
            a.arguments,
            durable=a.durable,
            exclusive=a.exclusive,
            auto_delete=a.auto_delete,
            max_message_bytes=ch.broker.limits.max_message_bytes,
        )
    except ArgumentInvalid as wrong:
        raise _invalid(ch, name, a, wrong) from None


def _invalid(ch: Channel, name: str, a: Arguments, wrong: ArgumentInvalid) -> AmqpError:
    where = resource("queue", name, ch.vhost)
    if wrong.argument == "x-dead-letter-exchange":
        kind = table_types(a.raw, a.table_at)[wrong.argument]
        return precondition_failed(f"invalid type '{kind}' for arg '{wrong.argument}' in {where}")
    return precondition_failed(f"invalid arg '{wrong.argument}' for {where}: {wrong.term}")


def _check_quorum(ch: Channel, name: str, a: Arguments) -> None:
    """It could be had, but not in RabbitMQ, whose replicas outlive connections."""
    for wrong, what in (
        (not a.durable, "non-durable"),
        (a.exclusive, "exclusive-owner"),
        (a.auto_delete, "auto-delete"),
    ):
        if wrong:
            raise precondition_failed(f"invalid property '{what}' for {resource('queue', name, ch.vhost)}")


def _check_equivalent(ch: Channel, name: str, a: Arguments, info: QueueInfo) -> None:
    from laneway.frontends.amqp.channel import locked

    current = info.settings
    owner = ch.broker.sessions.queue_owner(ch.vhost, name) if current.exclusive else None
    if owner is not (ch.connection if a.exclusive else None) or current.exclusive != a.exclusive:
        raise locked(name, ch.vhost)
    where = resource("queue", name, ch.vhost)
    check_field(where, "durable", a.durable, current.durable)
    check_field(where, "auto_delete", a.auto_delete, current.auto_delete)
    for argument in _COMPARED:
        if argument == "x-queue-type" and _is_classic(a.arguments) and _is_classic(current.arguments):
            continue
        if not agrees(argument, a.arguments, current):
            check_argument(where, argument, a, arguments_now(current))


def _is_classic(arguments: dict[str, object]) -> bool:
    return arguments.get("x-queue-type", "classic") == "classic"


def delete(ch: Channel, a: Arguments) -> None:
    name = ch.queue_name(a.queue)
    ch.check_access("queue", name, "configure")
    where = resource("queue", name, ch.vhost)
    count = 0
    if ch.broker.queues.find(ch.vhost, name) is not None:
        ch.queue(name)
        try:
            count = ch.broker.sessions.delete_queue(ch.vhost, name, if_unused=a.if_unused, if_empty=a.if_empty)
        except QueueInUse as trouble:
            raise precondition_failed(f"{where} in use" if trouble.field == "if_unused" else trouble.message) from None
        except Conflict:
            raise precondition_failed(f"{where} not empty") from None
    if not a.nowait:
        ch.send_when_durable("queue.delete-ok", count)


def purge(ch: Channel, a: Arguments) -> None:
    name = ch.queue_name(a.queue)
    ch.check_access("queue", name, "read")
    ch.queue(name)
    count = ch.broker.sessions.purge(ch.vhost, name)
    if not a.nowait:
        ch.send_when_durable("queue.purge-ok", count)


def bind(ch: Channel, a: Arguments) -> None:
    name = _name_and_key(ch, a)
    if ch.broker.queues.find(ch.vhost, name) is not None:
        ch.queue(name)
    exchanges.bind_or_complain(ch, "queue", name, a.exchange, a)
    if not a.nowait:
        ch.send_when_durable("queue.bind-ok")


def unbind(ch: Channel, a: Arguments) -> None:
    name = _name_and_key(ch, a)
    if ch.broker.queues.find(ch.vhost, name) is not None:
        ch.queue(name)
    exchanges.unbind_or_ignore(ch, "queue", name, a.exchange, a)
    ch.send_when_durable("queue.unbind-ok")


def _name_and_key(ch: Channel, a: Arguments) -> str:
    """Without a name and a key, both are the queue's that was declared last."""
    if not a.queue and not a.routing_key:
        a.replace(routing_key=ch.queue_name(""))
    return ch.queue_name(a.queue)


HANDLERS = {
    "queue.declare": declare,
    "queue.delete": delete,
    "queue.purge": purge,
    "queue.bind": bind,
    "queue.unbind": unbind,
}
