"""The topology of a partition as front ends see it: a read model that answers at once, in values."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from laneway.broker.interface import QueueId, Targets
from laneway.broker.values import Binding, ExchangeInfo, QueueInfo, Route
from laneway.core.commands import find_queue
from laneway.core.exchanges import check_routing_key

if TYPE_CHECKING:
    from laneway.broker.partition import Partition


class LocalTopology:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._infos: dict[tuple[str, str], QueueInfo] = {}  # made once for each queue, until something changes
        self._infos_version = -1

    @property
    def version(self) -> int:
        return self._partition.engine.state.topology.version

    # Virtual hosts

    def vhosts(self) -> list[str]:
        return self._partition.vhosts.list()

    def has_vhost(self, name: str) -> bool:
        return self._partition.vhosts.exists(name)

    def check_vhost(self, name: str) -> None:
        self._partition.vhosts.check(name)

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        self._partition.vhosts.on_deleted.append(call)

    # Queues

    def queue(self, vhost: str, name: str) -> QueueInfo | None:
        state = self._partition.engine.state
        if self._infos_version != state.topology.version:
            self._infos, self._infos_version = {}, state.topology.version
        info = self._infos.get((vhost, name))
        if info is None:
            queue = state.by_name.get((vhost, name))
            if queue is None:
                return None
            info = self._partition.info(queue)
            if not queue.settings.exclusive:  # its owner is noted after it was made
                self._infos[vhost, name] = info
        return info

    def find_queue(self, vhost: str, name: str) -> QueueInfo:
        info = self.queue(vhost, name)
        if info is None:
            find_queue(self._partition.engine.state, vhost, name)  # raises that there is none
            raise AssertionError(name)
        return info

    def queue_at(self, queue: QueueId) -> QueueInfo | None:
        found = self._partition.engine.state.queues.get(queue)
        return None if found is None else self._partition.info(found)

    def queues(
        self, *, vhost: str | None, prefix: str = "", limit: int = 100, after: tuple[str, str] | None = None
    ) -> list[QueueInfo]:
        names, by_name = self._partition.queues.names, self._partition.engine.state.by_name
        start = bisect_left(names, (vhost, prefix)) if vhost is not None else 0
        if after is not None:
            start = max(start, bisect_right(names, after))
        out: list[QueueInfo] = []
        for key in names[start:] if vhost is None else self._between(start, vhost, prefix):
            if key[1].startswith(prefix):
                out.append(self._partition.info(by_name[key]))
                if len(out) >= limit:
                    break
        return out

    def _between(self, start: int, vhost: str, prefix: str) -> Iterator[tuple[str, str]]:
        names = self._partition.queues.names
        for i in range(start, len(names)):
            if names[i][0] != vhost or not names[i][1].startswith(prefix):
                return
            yield names[i]

    def queue_count(self, vhost: str) -> int:
        names = self._partition.queues.names
        return bisect_left(names, (vhost + "\0",)) - bisect_left(names, (vhost,))

    # Exchanges

    def exchange(self, vhost: str, name: str) -> ExchangeInfo | None:
        return self._partition.exchanges.info(vhost, name)

    def exchanges(self, vhost: str) -> list[ExchangeInfo]:
        return self._partition.exchanges.list(vhost)

    def bindings(
        self, vhost: str, *, source: str | None = None, destination: str | None = None, kind: str | None = None
    ) -> list[Binding]:
        return self._partition.exchanges.bindings(vhost, source=source, destination=destination, kind=kind)

    def route(self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None) -> Targets:
        check_routing_key(routing_key)
        return self._partition.engine.state.topology.route(vhost, exchange, routing_key, headers)

    def asks_headers(self, vhost: str, exchange: str, routing_key: str) -> bool:
        return self._partition.engine.state.topology.asks_headers(vhost, exchange, routing_key)

    def explain(
        self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None
    ) -> list[Route]:
        check_routing_key(routing_key)
        return self._partition.engine.state.topology.explain(vhost, exchange, routing_key, headers)

    # Documents of other layers

    def documents(self, collection: str) -> dict[str, bytes]:
        return self._partition.documents(collection)
