"""queue.declare, delete, purge, bind, unbind."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from laneway.broker.arguments import ArgumentInvalid, agrees, arguments_now, settings_from_arguments
from laneway.broker.interface import DeclareQueue, DeleteQueue, PurgeQueue
from laneway.broker.values import QueueDeclared, QueueInfo, QueueSettings
from laneway.core.field_tables import table_types
from laneway.errors import Conflict, LanewayError, QueueInUse
from laneway.frontends.amqp import exchanges, replies
from laneway.frontends.amqp.equivalence import check_argument, check_field
from laneway.frontends.amqp.errors import (
    AmqpError,
    access_refused,
    amqp_error,
    not_found,
    precondition_failed,
    resource,
)
from laneway.frontends.amqp.spec import Arguments, without_line_ends

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
    "x-queue-version",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-quorum-initial-group-size",
    "x-queue-leader-locator",
    "x-delayed-retry-type",
    "x-delayed-retry-min",
    "x-delayed-retry-max",
)


def declare(ch: Channel, a: Arguments) -> None:
    a.replace(queue=without_line_ends(a.queue))
    name = a.queue
    if a.passive or replies.is_reply_name(name):
        _declare_passive(ch, a)
        return
    if not name:
        name = f"amq.gen-{ch.shared.random_name()}"
    elif name.startswith("amq."):
        raise access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    ch.check_access("queue", name, "configure")
    info = ch.broker.topology.queue(ch.vhost, name)
    if info is not None:
        _check_equivalent(ch, name, a, info)
        settings = None
    else:
        settings = _new_settings(ch, name, a)
    session = ch.connection.session if a.exclusive else 0
    ch.ask(DeclareQueue(ch.vhost, name, settings, session), lambda declared: _reply(ch, a, declared))


def _declare_passive(ch: Channel, a: Arguments) -> None:
    if replies.is_reply_name(a.queue):
        missing = not_found("queue", a.queue, ch.vhost)
        ch.wait_for(partial(replies.find, ch, a.queue), lambda _: _reply_name_found(ch, a), lambda _: missing)
        return
    ch.check_may_see("queue", a.queue)
    ch.queue(a.queue)
    ch.ask(DeclareQueue(ch.vhost, a.queue, None), lambda declared: _reply(ch, a, declared))


def _reply_name_found(ch: Channel, a: Arguments) -> bytes:
    ch.last_queue = a.queue
    return ch.frame("queue.declare-ok", a.queue, 0, 1, nowait=a.nowait)


def _reply(ch: Channel, a: Arguments, declared: QueueDeclared) -> bytes:
    ch.last_queue = name = declared.info.name
    may_count = ch.shared.access.allowed(ch.account, ch.vhost, name, "stats")
    counts = (declared.ready, declared.consumers) if may_count else (0, 0)
    return ch.frame("queue.declare-ok", name, *counts, nowait=a.nowait)


def _new_settings(ch: Channel, name: str, a: Arguments) -> QueueSettings:
    settings = _settings(ch, name, a)
    if not _is_classic(a.arguments):
        _check_quorum(ch, name, a)
    if settings.dead_letter_exchange is not None:
        ch.check_access("queue", name, "read")
        ch.check_access("exchange", settings.dead_letter_exchange, "write")
    return settings


def _settings(ch: Channel, name: str, a: Arguments) -> QueueSettings:
    try:
        return settings_from_arguments(
            a.arguments,
            durable=a.durable,
            exclusive=a.exclusive,
            auto_delete=a.auto_delete,
            max_message_bytes=ch.broker.limits.max_message_bytes,
            version=ch.shared.version,
        )
    except ArgumentInvalid as wrong:
        raise _invalid(ch, name, a, wrong) from None


def _invalid(ch: Channel, name: str, a: Arguments, wrong: ArgumentInvalid) -> AmqpError:
    where = resource("queue", name, ch.vhost)
    if wrong.argument == "x-dead-letter-exchange":
        kind = table_types(a.raw, a.table_at)[wrong.argument]
        return precondition_failed(f"invalid type '{kind}' for arg '{wrong.argument}' in {where}")
    return precondition_failed(f"invalid arg '{wrong.argument}' for {where}{wrong.said}")


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
    if current.exclusive != a.exclusive or (current.exclusive and info.owner != ch.connection.session):
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
    name = ch.queue_name(without_line_ends(a.queue))
    ch.check_access("queue", name, "configure")
    where = resource("queue", name, ch.vhost)

    def refused(error: LanewayError) -> AmqpError:
        if isinstance(error, QueueInUse):
            return precondition_failed(f"{where} in use" if error.field == "if_unused" else error.message)
        return precondition_failed(f"{where} not empty") if isinstance(error, Conflict) else amqp_error(error)

    def deleted(count: int) -> bytes:
        return ch.frame("queue.delete-ok", count, nowait=a.nowait)

    if ch.broker.topology.queue(ch.vhost, name) is None:
        ch.outbox.send(deleted(0))  # what is wished for is so already
        return
    ch.queue(name)
    request = DeleteQueue(ch.vhost, name, ch.connection.session, if_none_ready=a.if_empty, if_unused=a.if_unused)
    ch.ask(request, deleted, refused)


def purge(ch: Channel, a: Arguments) -> None:
    name = ch.queue_name(a.queue)
    ch.check_access("queue", name, "read")
    ch.queue(name)
    request = PurgeQueue(ch.vhost, name, session=ch.connection.session)
    ch.ask(request, lambda count: ch.frame("queue.purge-ok", count, nowait=a.nowait))


def bind(ch: Channel, a: Arguments) -> None:
    name = _name_and_key(ch, a)
    exchanges.change_binding(ch, "queue", name, a.exchange, a, "" if a.nowait else "queue.bind-ok")


def unbind(ch: Channel, a: Arguments) -> None:
    name = _name_and_key(ch, a)
    exchanges.change_binding(ch, "queue", name, a.exchange, a, "queue.unbind-ok", is_unbind=True)


def _name_and_key(ch: Channel, a: Arguments) -> str:
    """Without a name and a key, both are the queue's that was declared last."""
    if not a.queue and not a.routing_key:
        a.replace(routing_key=ch.queue_name(""))
    return ch.queue_name(without_line_ends(a.queue))


HANDLERS = {
    "queue.declare": declare,
    "queue.delete": delete,
    "queue.purge": purge,
    "queue.bind": bind,
    "queue.unbind": unbind,
}
