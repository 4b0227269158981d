"""exchange.declare, delete, bind, unbind. Whether a declaration agrees with what is there is decided here, in
RabbitMQ's words; everything else is the broker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.broker.interface import Bind, DeclareExchange, DeleteExchange, Sync, Unbind
from laneway.broker.values import Binding, ExchangeSettings
from laneway.core.field_tables import table_types
from laneway.errors import ExchangeInUse, ExchangeNotFound, InvalidInput, LanewayError, QueueNotFound
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

DELAYED = "x-delayed-message"
_TYPES = ("direct", "topic", "fanout", "headers")


def declare(ch: Channel, a: Arguments) -> None:
    a.replace(exchange=without_line_ends(a.exchange))
    _check_not_default(a.exchange)
    info = ch.broker.topology.exchange(ch.vhost, a.exchange)
    if a.passive:
        if info is None or not info.is_built_in:
            ch.check_may_see("exchange", a.exchange)
        if info is None:
            raise not_found("exchange", a.exchange, ch.vhost)
        if not a.nowait:
            ch.send("exchange.declare-ok")
        return
    settings = _settings(ch, a)
    ch.check_access("exchange", a.exchange, "configure")
    if info is not None:
        _check_equivalent(ch, a, info.settings, settings)
    else:
        if a.exchange.startswith("amq."):
            raise access_refused(f"exchange name '{a.exchange}' contains reserved prefix 'amq.*'")
        if settings.alternate_exchange is not None:
            ch.check_access("exchange", a.exchange, "read")
            ch.check_access("exchange", settings.alternate_exchange, "write")
    # One that is there is as it was declared, or this would have been refused: the answer waits until it is durable.
    request = Sync() if info is not None else DeclareExchange(ch.vhost, a.exchange, settings)
    ch.ask(request, lambda _: ch.frame("exchange.declare-ok", nowait=a.nowait))


def _settings(ch: Channel, a: Arguments) -> ExchangeSettings:
    kind, delayed = a.type, False
    if kind == DELAYED:
        kind, delayed = a.arguments.get("x-delayed-type"), True
        if kind not in _TYPES:
            raise precondition_failed("Invalid argument, 'x-delayed-type' must be an existing exchange type")
    if kind not in _TYPES:
        raise AmqpError(503 if ch.shared.version == "3.10" else 406, f"unknown exchange type '{a.type}'")
    alternate = a.arguments.get("alternate-exchange")
    if alternate is not None and not isinstance(alternate, str):
        found = table_types(a.raw, a.table_at)["alternate-exchange"]
        where = resource("exchange", a.exchange, ch.vhost)
        raise precondition_failed(f"invalid type '{found}' for arg 'alternate-exchange' in {where}")
    return ExchangeSettings(
        type=kind,
        durable=a.durable,
        auto_delete=a.auto_delete,
        internal=a.internal,
        alternate_exchange=alternate,
        delayed=delayed,
        arguments=a.arguments,
    )


def _check_equivalent(ch: Channel, a: Arguments, current: ExchangeSettings, given: ExchangeSettings) -> None:
    where = resource("exchange", a.exchange, ch.vhost)
    check_field(where, "type", a.type, DELAYED if current.delayed else current.type)
    for field in ("durable", "auto_delete", "internal"):
        check_field(where, field, getattr(given, field), getattr(current, field))
    kept: dict[str, Any] = dict(current.arguments)
    if current.alternate_exchange is not None:
        kept["alternate-exchange"] = current.alternate_exchange
    check_argument(where, "alternate-exchange", a, kept)
    if current.delayed:
        check_argument(where, "x-delayed-type", a, kept)


def delete(ch: Channel, a: Arguments) -> None:
    a.replace(exchange=without_line_ends(a.exchange))
    _check_not_default(a.exchange)
    where = resource("exchange", a.exchange, ch.vhost)
    ch.check_access("exchange", a.exchange, "configure")
    if a.exchange.startswith("amq."):
        raise access_refused(f"deletion of system {where} not allowed")

    def deleted(_: object) -> bytes:
        return ch.frame("exchange.delete-ok", nowait=a.nowait)

    def refused(error: LanewayError) -> AmqpError:
        return precondition_failed(f"{where} in use") if isinstance(error, ExchangeInUse) else amqp_error(error)

    if ch.broker.topology.exchange(ch.vhost, a.exchange) is None:
        ch.outbox.send(deleted(None))  # what is wished for is so already
    else:
        ch.ask(DeleteExchange(ch.vhost, a.exchange, a.if_unused), deleted, refused)


def _check_not_default(name: str) -> None:
    if not name:
        raise access_refused("operation not permitted on the default exchange")


# --- bindings, of queues too


def change_binding(
    ch: Channel, kind: str, name: str, source: str, a: Arguments, reply: str, *, is_unbind: bool = False
) -> None:
    """Bind or unbind, then send the reply, if there is one. What is not bound or not even there is unbound already."""
    source = without_line_ends(source)
    if kind == "exchange":
        name = without_line_ends(name)
        _check_not_default(name)
    _check_not_default(source)
    ch.check_access(kind, name, "write")
    ch.check_access("exchange", source, "read")
    from_ = ch.broker.topology.exchange(ch.vhost, source)
    if from_ is not None and from_.settings.type == "topic":
        ch.check_topic(source, a.routing_key, "read")
    if kind == "queue" and ch.broker.topology.queue(ch.vhost, name) is not None:
        ch.queue(name)
    binding = Binding(source, kind, name, a.routing_key, a.arguments)  # type: ignore[arg-type]

    def changed(_: object) -> bytes:
        return ch.frame(reply) if reply else b""

    def refused(error: LanewayError) -> AmqpError:
        if isinstance(error, QueueNotFound):
            return not_found("queue", name, ch.vhost)
        if isinstance(error, ExchangeNotFound):
            missing = source if ch.broker.topology.exchange(ch.vhost, source) is None else name
            return not_found("exchange", missing, ch.vhost)
        return (_invalid_match(a) if isinstance(error, InvalidInput) else None) or amqp_error(error)

    topology = ch.broker.topology
    there = topology.queue(ch.vhost, name) if kind == "queue" else topology.exchange(ch.vhost, name)
    if is_unbind and (there is None or topology.exchange(ch.vhost, source) is None):
        ch.outbox.send(changed(None))
    else:
        ch.ask((Unbind if is_unbind else Bind)(ch.vhost, binding, ch.connection.session), changed, refused)


def _invalid_match(a: Arguments) -> AmqpError | None:
    match = a.arguments.get("x-match")
    if isinstance(match, str):
        return precondition_failed(
            f'Invalid x-match field value <<"{match}">>; expected all, any, all-with-x, or any-with-x'
        )
    if match is not None:
        kind = table_types(a.raw, a.table_at)["x-match"]
        return precondition_failed(f"Invalid x-match field type {kind} (value {match}); expected longstr")
    return None


def bind(ch: Channel, a: Arguments) -> None:
    reply = "" if a.nowait else "exchange.bind-ok"
    change_binding(ch, "exchange", a.destination, a.source, a, reply)


def unbind(ch: Channel, a: Arguments) -> None:
    reply = "" if a.nowait else "exchange.unbind-ok"
    change_binding(ch, "exchange", a.destination, a.source, a, reply, is_unbind=True)


HANDLERS = {
    "exchange.declare": declare,
    "exchange.delete": delete,
    "exchange.bind": bind,
    "exchange.unbind": unbind,
}
