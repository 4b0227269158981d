"""Changing exchanges and bindings, and routing through them. Every call is carried out at once, on the loop: what it
raises was not done, and what it did is durable when `await partition.durable()` returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from laneway.broker.interface import SessionId
from laneway.broker.queues import check_owned
from laneway.broker.topology import exchange_info
from laneway.broker.values import Binding, Draft, ExchangeInfo, ExchangeSettings
from laneway.core import topology_commands as commands
from laneway.core.events import Event
from laneway.core.exchanges import RoutingTable, check_routing_key, message_delay_ms
from laneway.core.world import KnownQueue
from laneway.errors import InvalidInput

if TYPE_CHECKING:
    from laneway.broker.partition import Partition


class Exchanges:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def _topology(self) -> RoutingTable:
        return self._partition.engine.state.topology

    # Changing

    def declare(self, vhost: str, name: str, settings: ExchangeSettings) -> ExchangeInfo:
        """Create an exchange, or find it as it is; ExchangeExists if it has other settings."""
        self._partition.vhosts.check(vhost)
        state, limit = self._partition.engine.state, self._partition.limits.max_exchanges
        self._run(
            commands.declare_exchange(state, vhost, name, settings, self._partition.now(), max_exchanges=limit),
            adds=True,
        )
        return exchange_info(vhost, self._topology.get(vhost, name))

    def delete(self, vhost: str, name: str, *, if_unused: bool = False) -> None:
        state = self._partition.engine.state
        self._run(commands.delete_exchange(state, vhost, name, self._partition.now(), if_unused=if_unused))

    def bind(self, vhost: str, binding: Binding, session: SessionId = 0) -> bool:
        """Whether it is new."""
        self._partition.vhosts.check(vhost)
        self._check_owner(vhost, binding, session)
        state, limit = self._partition.engine.state, self._partition.limits.max_bindings
        return self._run(commands.bind(state, vhost, binding, self._partition.now(), max_bindings=limit), adds=True)

    def unbind(self, vhost: str, binding: Binding, session: SessionId = 0) -> bool:
        """Whether it was there."""
        self._check_owner(vhost, binding, session)
        return self._run(commands.unbind(self._partition.engine.state, vhost, binding, self._partition.now()))

    def _check_owner(self, vhost: str, binding: Binding, session: SessionId) -> None:
        state = self._partition.engine.state
        queue = state.by_name.get((vhost, binding.destination))
        if binding.kind == "queue" and queue is not None:
            self._partition.check_owner(queue, session)
        elif binding.kind == "queue" and state.world is not state:
            known = state.world.by_name.get((vhost, binding.destination))
            if known is not None:
                check_owned(known, state.world.owners.get(known.number, 0), session)

    def unbind_gone(self, vhost: str, name: str) -> None:
        """Remove the bindings to a queue that another partition had, and has no more."""
        self._run(commands.unbind_gone(self._partition.engine.state, vhost, name, self._partition.now()))

    def rebind(self, vhost: str, name: str) -> None:
        """Have the bindings to a queue that has moved lead to where it is."""
        self._run(commands.rebind(self._partition.engine.state, vhost, name, self._partition.now()))

    def clear(self, vhost: str) -> None:
        """Remove all exchanges and bindings of a virtual host that is to go."""
        self._run(commands.clear_exchanges(self._partition.engine.state, vhost, self._partition.now()))

    def _run(self, command: Iterator[Event], *, adds: bool = False) -> bool:
        """Whether there was something to do."""
        partition = self._partition
        partition.begin_change(adds=adds)
        if not partition.engine.run(command):
            return False
        partition.committer.touch()
        return True

    # Routing

    def targets(self, vhost: str, exchange: str, routing_key: str, draft: Draft) -> tuple[list[KnownQueue], Draft]:
        """The queues of the server that a message reaches through an exchange, and the message as it comes out."""
        self._partition.vhosts.check(vhost)
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
                draft.visible_at_ms = self._partition.now() + delay_ms
        world = self._partition.engine.state.world
        numbers = world.routing.route(vhost, exchange, routing_key, properties.attributes)
        return [world.queues[number] for number in numbers if number in world.queues], draft


def fitting(draft: Draft, queue: KnownQueue) -> Draft:
    """One message for queues of many ranges: each takes it at its own highest priority at most. If that is less than it
    has, it remembers its own, for a queue it may go to as a dead letter."""
    priority, highest = draft.priority, queue.settings.max_priority
    if priority is None or priority <= highest:
        return draft
    extra = draft.properties.extra | {"priority": priority}
    properties = msgspec.structs.replace(draft.properties, extra=extra)
    return msgspec.structs.replace(draft, priority=highest, properties=properties)
