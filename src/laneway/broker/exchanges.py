"""Exchanges and bindings as the broker's callers see them. Every call is carried out at once, on the loop: what it
raises was not done, and what it did is durable when `await broker.durable()` returns."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.values import Arrival, Binding, Draft, ExchangeInfo, ExchangeSettings, Receipt, Route
from laneway.core import topology_commands as commands
from laneway.core.events import Event
from laneway.core.exchanges import BUILT_IN, Exchange, Topology, check_routing_key, message_delay_ms
from laneway.core.queue import Queue
from laneway.errors import InvalidInput, LanewayError

if TYPE_CHECKING:
    from laneway.broker.broker import Broker

__all__ = ["Binding", "ExchangeInfo", "ExchangeSettings", "Exchanges", "Route", "message_delay_ms"]


class Exchanges:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def _topology(self) -> Topology:
        return self._broker.engine.state.topology

    @property
    def version(self) -> int:
        """Rises whenever a route may have changed."""
        return self._topology.version

    # Changing

    def declare(self, vhost: str, name: str, settings: ExchangeSettings) -> ExchangeInfo:
        """Create an exchange, or find it as it is; ExchangeExists if it has other settings."""
        self._broker.vhosts.check(vhost)
        state, limit = self._broker.engine.state, self._broker.limits.max_exchanges
        self._run(
            commands.declare_exchange(state, vhost, name, settings, self._broker.now(), max_exchanges=limit), adds=True
        )
        return _info(vhost, self._topology.get(vhost, name))

    def delete(self, vhost: str, name: str, *, if_unused: bool = False) -> None:
        state = self._broker.engine.state
        self._run(commands.delete_exchange(state, vhost, name, self._broker.now(), if_unused=if_unused))

    def bind(self, vhost: str, binding: Binding) -> bool:
        """Whether it is new."""
        self._broker.vhosts.check(vhost)
        state, limit = self._broker.engine.state, self._broker.limits.max_bindings
        return self._run(commands.bind(state, vhost, binding, self._broker.now(), max_bindings=limit), adds=True)

    def unbind(self, vhost: str, binding: Binding) -> bool:
        """Whether it was there."""
        return self._run(commands.unbind(self._broker.engine.state, vhost, binding, self._broker.now()))

    def clear(self, vhost: str) -> None:
        """Remove all exchanges and bindings of a virtual host that is to go."""
        self._run(commands.clear_exchanges(self._broker.engine.state, vhost, self._broker.now()))

    def _run(self, command: Iterator[Event], *, adds: bool = False) -> bool:
        """Whether there was something to do."""
        broker = self._broker
        broker.begin_change(adds=adds)
        if not broker.engine.run(command):
            return False
        broker.committer.touch()
        return True

    # Publishing

    def publish(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        draft: Draft,
        done: Callable[[builtins.list[Arrival]], None],
        *,
        idempotency: tuple[str, bytes] | None = None,
    ) -> builtins.list[str]:
        """Publish through an exchange: the names of the queues reached, perhaps none. `done` is called once it is
        durable in all of them, with what it came to in each: one that refuses it does not keep it from the others."""
        queues, draft = self.targets(vhost, exchange, routing_key, draft)
        self._publish_to(queues, draft, done, idempotency)
        return [queue.name for queue in queues]

    def targets(self, vhost: str, exchange: str, routing_key: str, draft: Draft) -> tuple[builtins.list[Queue], Draft]:
        """The queues that a message reaches through an exchange, and the message as it comes out of it."""
        self._broker.vhosts.check(vhost)
        check_routing_key(routing_key)
        found = self._topology.get(vhost, exchange)
        if found.settings.internal:
            raise InvalidInput(
                f"exchange {exchange!r} is internal: only other exchanges publish to it", field="exchange"
            )
        properties = msgspec.structs.replace(draft.properties, exchange=exchange, routing_key=routing_key)
        draft = msgspec.structs.replace(draft, properties=properties)
        if found.settings.delayed and draft.visible_at_ms is None and draft.delay_ms is None:
            delay_ms = message_delay_ms(properties.attributes)
            if delay_ms:
                draft.visible_at_ms = self._broker.now() + delay_ms
        numbers = self._topology.route(vhost, exchange, routing_key, properties.attributes)
        return [self._broker.engine.state.queues[number] for number in numbers], draft

    def _publish_to(
        self,
        queues: Sequence[Queue],
        draft: Draft,
        done: Callable[[builtins.list[Arrival]], None],
        idempotency: tuple[str, bytes] | None,
    ) -> None:
        """To each of these queues, in one commit: they are all gathered before the next one is sealed."""
        arrivals: dict[str, Arrival] = {}

        def answer(name: str, results: Sequence[Receipt | LanewayError]) -> None:
            arrivals[name] = Arrival(name, results[0])
            if len(arrivals) == len(queues):
                done([arrivals[queue.name] for queue in queues])

        if not queues:
            self._broker.committer.when_durable(done, [])
        for i, queue in enumerate(queues):
            told = partial(answer, queue.name)
            try:
                self._broker.publish(queue.vhost, queue.name, [fitting(draft, queue)], told, idempotency=idempotency)
            except LanewayError as refused:
                if i == 0:
                    raise  # nothing was done
                told([refused])

    # Asking

    def info(self, vhost: str, name: str) -> ExchangeInfo | None:
        found = self._topology.find(vhost, name)
        return None if found is None else _info(vhost, found)

    def list(self, vhost: str) -> builtins.list[ExchangeInfo]:
        """All of a virtual host, by name; the default exchange first."""
        names = sorted({*BUILT_IN, *self._topology.exchanges.get(vhost, ())})
        return [_info(vhost, self._topology.get(vhost, name)) for name in names]

    def bindings(
        self, vhost: str, *, source: str | None = None, destination: str | None = None, kind: str | None = None
    ) -> builtins.list[Binding]:
        """All of a virtual host, or those from an exchange, or to a queue or exchange. What the default exchange
        implies is given only when it is asked for as the source."""
        topology = self._topology
        if source == "":
            names = [name for at, name in self._broker.engine.state.by_name if at == vhost]
            found = [Binding("", "queue", name, name) for name in names]
        elif source is not None:
            exchange = topology.find(vhost, source)
            found = builtins.list(exchange.bindings.values()) if exchange is not None else []
        elif destination is not None:
            found = [*topology.into(vhost, "queue", destination), *topology.into(vhost, "exchange", destination)]
        else:
            there = topology.exchanges.get(vhost, {})
            found = [binding for name in sorted(there) for binding in there[name].bindings.values()]
        return [b for b in found if destination in (None, b.destination) and kind in (None, b.kind)]

    def route(
        self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None
    ) -> tuple[int, ...]:
        """The numbers of the queues a message reaches; ExchangeNotFound if there is no such exchange."""
        return self._topology.route(vhost, exchange, routing_key, headers)

    def explain(
        self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None
    ) -> builtins.list[Route]:
        """The queues a message would reach and the chain of bindings to each."""
        check_routing_key(routing_key)
        return self._topology.explain(vhost, exchange, routing_key, headers)


def fitting(draft: Draft, queue: Queue) -> Draft:
    """One message for queues of many ranges: each takes it at its own highest priority at most, and remembers the one
    it had for a queue it may go to as a dead letter."""
    highest = queue.settings.max_priority
    if draft.priority is None or draft.priority <= highest:
        return draft
    extra = draft.properties.extra | {"priority": draft.priority}
    properties = msgspec.structs.replace(draft.properties, extra=extra)
    return msgspec.structs.replace(draft, priority=highest, properties=properties)


def _info(vhost: str, exchange: Exchange) -> ExchangeInfo:
    return ExchangeInfo(
        vhost,
        exchange.name,
        exchange.settings,
        exchange.created_at_ms,
        exchange.name in BUILT_IN,
        len(exchange.bindings),
    )
