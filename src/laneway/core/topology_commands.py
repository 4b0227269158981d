"""Commands on exchanges and bindings: checked against the state and turned into events, as in commands.py."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from laneway.core.commands import no_queue
from laneway.core.events import Bound, Event, ExchangeDeleted, ExchangePut, QueueDeleted, Unbound
from laneway.core.exchanges import (
    BUILT_IN,
    Binding,
    ExchangeSettings,
    check_binding,
    check_exchange_name,
    check_exchange_settings,
)
from laneway.core.matching import Target, pack
from laneway.core.partitions import partition_of
from laneway.core.settings import check_bounds, check_queue_name
from laneway.core.state import State, binding_document, queue_document
from laneway.errors import ExchangeExists, ExchangeInUse, InvalidInput, LimitExceeded

RESERVED = "amq."

_encode = msgspec.msgpack.encode


def declare_exchange(
    state: State, vhost: str, name: str, settings: ExchangeSettings, now_ms: int, *, max_exchanges: int
) -> Iterator[Event]:
    """Create an exchange; nothing if there is one with these settings."""
    topology = state.topology
    check_queue_name(vhost, field="vhost")
    check_exchange_settings(settings)
    known = topology.find(vhost, name)
    if known is not None:
        if pack(known.settings) != pack(settings):
            raise ExchangeExists(f"exchange {name!r} exists with other settings", field="exchange")
        return
    check_exchange_name(name)
    if name.startswith(RESERVED):
        raise InvalidInput(f"names that begin with {RESERVED!r} are reserved: {name!r}", field="exchange")
    if topology.declared_count >= max_exchanges:
        raise LimitExceeded(
            f"there are {topology.declared_count} exchanges already, {max_exchanges} are allowed", field="exchange"
        )
    yield ExchangePut(now_ms, _encode((vhost, name, settings)))


def delete_exchange(state: State, vhost: str, name: str, now_ms: int, *, if_unused: bool = False) -> Iterator[Event]:
    exchange = state.topology.get(vhost, name)
    if name in BUILT_IN:
        raise InvalidInput(
            f"exchange {name or 'amq.default'!r} is always there, it cannot be deleted", field="exchange"
        )
    if if_unused and exchange.bindings:
        raise ExchangeInUse(f"exchange {name!r} has {len(exchange.bindings)} bindings", field="if_unused")
    yield ExchangeDeleted(now_ms, _encode((vhost, name)))


def bind(state: State, vhost: str, binding: Binding, now_ms: int, *, max_bindings: int) -> Iterator[Event]:
    """Add a binding; nothing if it is there already."""
    topology = state.topology
    check_binding(binding, topology.get(vhost, binding.source))
    target = _destination(state, vhost, binding)
    if topology.target(vhost, binding) == target:
        return
    if topology.binding_count >= max_bindings:
        raise LimitExceeded(f"there are {max_bindings} bindings already, more are not allowed", field="routing_key")
    number, elsewhere = _row(target)
    yield Bound(number, now_ms, binding_document(vhost, binding, elsewhere))


def unbind(state: State, vhost: str, binding: Binding, now_ms: int) -> Iterator[Event]:
    """Remove a binding; nothing if it is not there, or neither is what it binds."""
    check_bounds(binding.arguments)
    if state.topology.has(vhost, binding):
        _destination(state, vhost, binding)
        yield _unbound(state, vhost, binding, now_ms)


def unbind_gone(state: State, vhost: str, name: str, now_ms: int) -> Iterator[Event]:
    """Remove the bindings to queues of this name that other partitions had and have no more."""
    queues = state.world.queues
    for binding in state.topology.into(vhost, "queue", name):
        target = state.topology.target(vhost, binding)
        if not isinstance(target, int) or partition_of(target) == state.partition:
            continue
        if state.world.whereabouts(target) not in queues:
            yield _unbound(state, vhost, binding, now_ms)


def rebind(state: State, vhost: str, name: str, now_ms: int) -> Iterator[Event]:
    """Have the bindings to a queue that has moved lead to where it is."""
    for binding in state.topology.into(vhost, "queue", name):
        target = state.topology.target(vhost, binding)
        there = state.world.whereabouts(target) if isinstance(target, int) else target
        if there is not None and there != target:
            number, elsewhere = _row(there)
            yield Bound(number, now_ms, binding_document(vhost, binding, elsewhere))


def _unbound(state: State, vhost: str, binding: Binding, now_ms: int) -> Unbound:
    target = state.topology.target(vhost, binding)
    assert target is not None
    number, elsewhere = _row(target)
    return Unbound(number, now_ms, binding_document(vhost, binding, elsewhere))


def _row(target: Target) -> tuple[int, int | None]:
    """What the row of a binding says, and what its document does."""
    if isinstance(target, str):
        return 0, None
    return (0, target) if partition_of(target) else (target, None)


def _destination(state: State, vhost: str, binding: Binding) -> Target:
    """The queue's id or the exchange's name; both must be there. The default exchange has the bindings it has."""
    if not binding.source or (binding.kind == "exchange" and not binding.destination):
        raise InvalidInput("nothing can be bound to or from the default exchange", field="exchange")
    if binding.kind == "queue":
        queue = state.by_name.get((vhost, binding.destination))
        known = queue or state.world.by_name.get((vhost, binding.destination))
        if known is None:
            raise no_queue(vhost, binding.destination)
        return known.number
    state.topology.get(vhost, binding.destination)
    return binding.destination


def clear_exchanges(state: State, vhost: str, now_ms: int) -> Iterator[Event]:
    """Remove all exchanges and bindings of a virtual host."""
    topology = state.topology
    for name in list(topology.exchanges.get(vhost, ())):
        exchange = topology.exchanges.get(vhost, {}).get(name)
        if exchange is None:
            continue  # auto-delete: it went with one before it
        if name not in BUILT_IN:
            yield ExchangeDeleted(now_ms, _encode((vhost, name)))
            continue
        for binding in list(exchange.bindings.values()):
            yield _unbound(state, vhost, binding, now_ms)


def drop_transient(state: State, now_ms: int) -> Iterator[Event]:
    """What is not durable, and what belonged to one connection, does not outlive the process."""
    queues = [q for q in state.queues.values() if q.settings.exclusive or not q.settings.durable]
    yield from (QueueDeleted(queue.number, now_ms, queue_document(queue)) for queue in queues)
    exchanges = [
        (vhost, name)
        for vhost, there in state.topology.exchanges.items()
        for name, exchange in there.items()
        if not exchange.settings.durable
    ]
    for vhost, name in exchanges:
        if state.topology.find(vhost, name) is not None:  # auto-delete: it may have gone with one before it
            yield ExchangeDeleted(now_ms, _encode((vhost, name)))
