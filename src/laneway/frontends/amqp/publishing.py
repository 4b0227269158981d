"""basic.publish and confirm.select: from a publisher's bytes to queues.

What can be said of a publish from its method and property bytes alone (where it goes, with which properties) is worked
out once for all look-alikes and remembered as a Plan, until some route changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.broker.exchanges import message_delay_ms
from laneway.broker.sessions import Columns
from laneway.broker.values import Draft
from laneway.core.message import encode_props
from laneway.errors import InvalidInput, LanewayError
from laneway.frontends.amqp import delivering, properties, replies
from laneway.frontends.amqp.confirms import Confirms
from laneway.frontends.amqp.errors import (
    NOT_NOW,
    AmqpError,
    access_refused,
    amqp_error,
    not_found,
    not_implemented,
    precondition_failed,
    resource,
)
from laneway.frontends.amqp.lookalikes import LookAlikes, Run
from laneway.frontends.amqp.mapping import Shape, shape_of
from laneway.frontends.amqp.spec import BY_NAME, Arguments
from laneway.frontends.amqp.tables import Malformed

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

#: What is published under this key to the default exchange extends the channel's acknowledgement timeouts.
EXTEND = "amq.laneway.extend"

#: Larger properties are hardly anybody's look-alikes, and would take too much memory.
MAX_REMEMBERED_BYTES = 4096

_PUBLISH = BY_NAME["basic.publish"]
_RETURN = BY_NAME["basic.return"]


class Plan(msgspec.Struct):
    exchange: str
    routing_key: str
    mandatory: bool
    shape: Shape
    queues: tuple[int, ...]
    version: int  # of the routes
    is_delayed: bool
    is_special: bool  # must be looked at each time: replies, user ids, extensions
    uses: int = 0


class Plans:
    """For all connections, by virtual host and bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[tuple[str, bytes, bytes], Plan] = {}

    def of(self, ch: Channel, method: bytes, raw: bytes) -> Plan:
        plan = self._known.get((ch.vhost, method, raw))
        if plan is None or plan.version != ch.broker.exchanges.version:
            plan = _plan(ch, method, raw)
            if len(raw) <= MAX_REMEMBERED_BYTES:
                if len(self._known) >= self._most:
                    self._known.clear()
                self._known[ch.vhost, method, raw] = plan
        return plan


def _plan(ch: Channel, method: bytes, raw: bytes) -> Plan:
    try:
        a = _PUBLISH.decode(method)
    except Malformed:
        raise AmqpError(501, f"cannot decode <<{','.join(map(str, method[4:]))}>>") from None
    if a.immediate:
        raise not_implemented("immediate=true")
    ch.check_access("exchange", a.exchange, "write")
    info = ch.broker.exchanges.info(ch.vhost, a.exchange)
    if info is None:
        raise not_found("exchange", a.exchange, ch.vhost)
    if info.settings.internal:
        raise access_refused(f"cannot publish to internal {resource('exchange', a.exchange, ch.vhost)}")
    shape = shape_of(a.exchange, a.routing_key, raw)
    headers = shape.properties.attributes
    found: dict[int, None] = {}
    for key in shape.keys:
        found.update(dict.fromkeys(ch.broker.exchanges.route(ch.vhost, a.exchange, key, headers)))
    is_internal = not a.exchange and (a.routing_key == EXTEND or a.routing_key.startswith(replies.PREFIX))
    return Plan(
        a.exchange,
        a.routing_key,
        a.mandatory,
        shape,
        tuple(found),
        ch.broker.exchanges.version,
        info.settings.delayed,
        is_internal or shape.user_id is not None or shape.reply_to == replies.REPLY_TO,
    )


def run_of(ch: Channel, alikes: LookAlikes, method: bytes, raw: bytes, size: int) -> tuple[bytes, Run] | None:
    """Where the look-alikes of a publish go, from the second one on; None if each needs a closer look."""
    plan = ch.shared.plans.of(ch, method, raw)
    plan.uses += 1
    shape = plan.shape
    if plan.uses < 2 or plan.is_special or plan.is_delayed or not plan.queues:
        return None
    if ch.transaction is not None or shape.ttl_ms is not None:
        return None
    try:
        block = encode_props(shape.properties)
    except LanewayError:
        return None
    if not ch.broker.sessions.takes_columns(plan.queues, len(block) + size):
        return None
    priorities = ch.broker.sessions.priorities(plan.queues, shape.priority)
    run = alikes.run(ch, plan.exchange, plan.queues, priorities)
    return (block, run) if run is not None else None


def publish_runs(runs: list[Run]) -> list[tuple[Channel, AmqpError]]:
    """Publish what look-alikes brought, highest priority first; the channels that must end, and why."""
    by_channel: dict[Channel, list[Run]] = {}
    for run in runs:
        if run.channel.is_closing:  # an error ended it in this very read
            run.clear()
        else:
            by_channel.setdefault(run.channel, []).append(run)
    errors: list[tuple[Channel, AmqpError]] = []
    for ch, own in by_channel.items():
        columns = [(run.queues, run.priorities, run.props(), run.bodies) for run in own]
        for run in own:
            run.clear()
        try:
            for exchange in {run.exchange for run in own}:
                ch.check_access("exchange", exchange, "write")
            count = sum(len(bodies) for _, _, _, bodies in columns)
            last = ch.confirms.next(count) if ch.confirms is not None else 0
            carry_out_columns(ch, columns, last - count + 1 if last else 0, last)
        except AmqpError as error:
            errors.append((ch, error))
        except LanewayError as error:
            errors.append((ch, amqp_error(error)))
    return errors


def carry_out_columns(ch: Channel, runs: list[Columns], first: int, last: int) -> None:
    """Publish now; the confirms' numbers are `first` to `last`, 0 if there are none to give."""
    connection, confirms = ch.connection, ch.confirms
    size = sum(sum(map(len, bodies)) for _, _, _, bodies in runs)

    def done(refusal: LanewayError | None) -> None:
        connection.written(size)
        if last and confirms is not None:
            confirms.settle(first, last, refusal is None)

    connection.writing(size)
    try:
        ch.broker.sessions.publish_columns(runs, size, done)
    except NOT_NOW:
        connection.written(size)
        connection.block(lambda: carry_out_columns(ch, runs, first, last))
    except LanewayError as refusal:
        done(refusal)
        if not last:
            raise


def publish(ch: Channel, method: bytes, raw: bytes, body: bytes) -> None:
    plan = ch.shared.plans.of(ch, method, raw)
    ch.check_access("exchange", plan.exchange, "write")
    if plan.is_special:
        _check_user(ch, plan)
        if plan.shape.reply_to == replies.REPLY_TO:
            raw = properties.change(raw, {"reply_to": replies.own_name(ch)})
            plan = msgspec.structs.replace(plan, shape=shape_of(plan.exchange, plan.routing_key, raw))
        if _is_for_the_server(ch, plan, body):
            return
    if ch.transaction is not None:
        ch.transaction.add_publish(plan, body)
        return
    number = ch.confirms.next() if ch.confirms is not None else 0
    carry_out(ch, plan, body, number)


def _check_user(ch: Channel, plan: Plan) -> None:
    user = plan.shape.user_id
    if user is not None and user != ch.account.name:
        raise precondition_failed(f"user_id property set to '{user}' but authenticated user was '{ch.account.name}'")


def _is_for_the_server(ch: Channel, plan: Plan, body: bytes) -> bool:
    """Direct replies and extensions, which reach no queue."""
    if plan.exchange:
        return False
    if plan.routing_key == EXTEND:
        _extend(ch, plan)
    elif not plan.routing_key.startswith(replies.PREFIX):
        return False
    elif not replies.deliver(ch, plan.routing_key, plan.shape.raw, body) and plan.mandatory:
        give_back(ch, plan, body)
    if ch.confirms is not None:
        number = ch.confirms.next()
        ch.confirms.settle(number, number, True)
    return True


def _extend(ch: Channel, plan: Plan) -> None:
    """Give what the channel holds, or the delivery that a header names, its full time again."""
    tag = plan.shape.properties.attributes.get("delivery-tag")
    held = ch.unacked.peek(tag if isinstance(tag, int) else None)
    if isinstance(tag, int) and not held:
        raise precondition_failed(f"unknown delivery tag {tag}")
    ch.settling.extend(held)


def carry_out(ch: Channel, plan: Plan, body: bytes, number: int) -> None:
    """Publish now; `number` is the confirm's, 0 if there is none to give."""
    if not plan.queues:
        if plan.mandatory:
            give_back(ch, plan, body)
        if number and ch.confirms is not None:
            ch.confirms.settle(number, number, True)
        return
    connection, confirms, size = ch.connection, ch.confirms, len(body) + len(plan.shape.raw)

    def done(refusal: LanewayError | None) -> None:
        connection.written(size)
        if number and confirms is not None:
            confirms.settle(number, number, refusal is None)
        elif isinstance(refusal, InvalidInput):  # a full queue drops; what no queue can take is the publisher's mistake
            connection.fail_channel(ch, amqp_error(refusal), _PUBLISH.number)

    connection.writing(size)
    try:
        ch.broker.sessions.publish(plan.queues, draft_of(ch, plan, body), done)
    except NOT_NOW:
        connection.written(size)
        connection.block(lambda: carry_out(ch, plan, body, number))
    except LanewayError as refusal:
        if not number:
            connection.written(size)
            raise
        done(refusal)


def draft_of(ch: Channel, plan: Plan, body: bytes) -> Draft:
    shape = plan.shape
    draft = Draft(body, shape.priority, shape.properties, ttl_ms=shape.ttl_ms)
    if plan.is_delayed:
        delay_ms = message_delay_ms(shape.properties.attributes)
        if delay_ms:
            draft.visible_at_ms = ch.broker.now() + delay_ms
    return draft


def give_back(ch: Channel, plan: Plan, body: bytes) -> None:
    """basic.return: it reached no queue, and its publisher wants to know."""
    head = _RETURN.encode(ch.number, 312, "NO_ROUTE", plan.exchange, plan.routing_key)
    content = delivering.content(ch.number, plan.shape.raw, body, ch.connection.frame_bytes)
    ch.outbox.send(b"".join([head, *content]))


def select_confirms(ch: Channel, a: Arguments) -> None:
    if ch.transaction is not None:
        raise precondition_failed("cannot switch from tx to confirm mode")
    if ch.confirms is None:
        ch.confirms = Confirms(ch.number, ch.outbox.send, ch.connection.call_soon)
    if not a.nowait:
        ch.send("confirm.select-ok")


HANDLERS = {"confirm.select": select_confirms}
