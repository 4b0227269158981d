"""The topology as front ends see it: a read model that answers at once, in values. What it reads is the state of the
partition that leads the topology, or a copy that follows it (cluster/following.py)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from laneway.broker.interface import OnDocument, OnQueue, QueueId, SessionId, Targets
from laneway.broker.values import Binding, ExchangeInfo, QueueInfo, Route
from laneway.core.commands import no_queue
from laneway.core.events import DocumentPut, DocumentRemoved, Event, QueueDeleted, QueuePut
from laneway.core.exchanges import BUILT_IN, Exchange, RoutingTable, check_routing_key
from laneway.core.settings import QueueSettings
from laneway.core.state import HIDDEN, QueueDocument
from laneway.errors import VhostNotFound

if TYPE_CHECKING:
    from laneway.broker.partition import Partition


class ListedQueue(Protocol):
    """What the topology knows of a queue."""

    number: QueueId
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int
    placed: bool


class Owned(msgspec.Struct, frozen=True, gc=False):
    """A session has a queue for itself alone. It is no event of the journal, because it ends with the process."""

    queue: QueueId
    session: SessionId


class StandsStill(msgspec.Struct, frozen=True, gc=False):
    """A queue stands still from now on, as it goes to another partition; None: it stays, and goes on here."""

    queue: QueueId
    to: int | None


Change = Event | Owned | StandsStill


class TopologyModel(Protocol):
    """What the topology is read from."""

    @property
    def queues(self) -> Mapping[int, ListedQueue]: ...

    @property
    def by_name(self) -> Mapping[tuple[str, str], ListedQueue]: ...

    @property
    def names(self) -> Sequence[tuple[str, str]]:
        """Of all queues, in order."""

    @property
    def routing(self) -> RoutingTable: ...

    @property
    def vhosts(self) -> Collection[str]: ...

    @property
    def documents(self) -> Mapping[str, Mapping[str, bytes]]: ...

    @property
    def owners(self) -> Mapping[int, int]:
        """By number of a queue, the session that has it for itself alone."""

    @property
    def moving(self) -> Mapping[int, int]:
        """By number of a queue that goes to another partition, which one that is."""

    @property
    def forwards(self) -> Mapping[int, int]:
        """By number of a queue that went to another partition, the id that it has there."""

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None: ...

    def on_document(self, call: OnDocument) -> None: ...

    def on_queue(self, call: OnQueue) -> None: ...


class PartitionModel:
    """The topology as the partition itself has it."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def queues(self) -> Mapping[int, ListedQueue]:
        return self._partition.engine.state.queues

    @property
    def by_name(self) -> Mapping[tuple[str, str], ListedQueue]:
        return self._partition.engine.state.by_name

    @property
    def names(self) -> Sequence[tuple[str, str]]:
        return self._partition.queues.names

    @property
    def routing(self) -> RoutingTable:
        return self._partition.engine.state.topology

    @property
    def vhosts(self) -> Collection[str]:
        return self._partition.vhosts.names

    @property
    def documents(self) -> Mapping[str, Mapping[str, bytes]]:
        return self._partition.engine.state.documents

    @property
    def owners(self) -> Mapping[int, int]:
        return self._partition.sessions.owners

    @property
    def moving(self) -> Mapping[int, int]:
        return self._partition.moves.moving

    @property
    def forwards(self) -> Mapping[int, int]:
        return self._partition.engine.state.forwards

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        self._partition.vhosts.on_deleted.append(call)

    def on_document(self, call: OnDocument) -> None:
        def tell(change: Event) -> None:
            if isinstance(change, DocumentPut):
                call(change.collection, change.key, change.document)
            elif isinstance(change, DocumentRemoved):
                call(change.collection, change.key, None)

        self._partition.engine.state.follow(tell)

    def on_queue(self, call: OnQueue) -> None:
        def tell(change: Event) -> None:
            if isinstance(change, QueuePut | QueueDeleted):
                document = msgspec.json.decode(change.document, type=QueueDocument)
                call(document.vhost, document.name, isinstance(change, QueuePut))

        self._partition.engine.state.follow(tell)


class TopologyView:
    """Answers look-ups from a model."""

    def __init__(self, model: TopologyModel) -> None:
        self._model = model
        self._infos: dict[tuple[str, str], QueueInfo] = {}  # made once for each queue, until something changes
        self._infos_version = -1

    @property
    def version(self) -> int:
        return self._model.routing.version

    # Virtual hosts

    def vhosts(self) -> list[str]:
        return sorted(self._model.vhosts)

    def has_vhost(self, name: str) -> bool:
        return name in self._model.vhosts

    def check_vhost(self, name: str) -> None:
        if name not in self._model.vhosts:
            raise no_vhost(name)

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        self._model.on_vhost_deleted(call)

    # Queues

    def queue(self, vhost: str, name: str) -> QueueInfo | None:
        version = self._model.routing.version
        if self._infos_version != version:
            self._infos, self._infos_version = {}, version
        info = self._infos.get((vhost, name))
        if info is None:
            queue = self._model.by_name.get((vhost, name))
            if queue is None:
                return None
            info = self._info(queue)
            if not queue.settings.exclusive:  # its owner is noted after it was made
                self._infos[vhost, name] = info
        return info

    def find_queue(self, vhost: str, name: str) -> QueueInfo:
        info = self._infos.get((vhost, name)) if self._infos_version == self._model.routing.version else None
        info = info or self.queue(vhost, name)
        if info is None:
            raise no_queue(vhost, name)
        return info

    def queue_at(self, queue: QueueId) -> QueueInfo | None:
        found = self._model.queues.get(queue)
        return None if found is None or found.vhost == HIDDEN else self._info(found)

    def _info(self, queue: ListedQueue) -> QueueInfo:
        return queue_info(queue, self._model.owners)

    def queues(
        self, *, vhost: str | None, prefix: str = "", limit: int = 100, after: tuple[str, str] | None = None
    ) -> list[QueueInfo]:
        names, by_name = self._model.names, self._model.by_name
        start = bisect_left(names, (vhost, prefix)) if vhost is not None else 0
        if after is not None:
            start = max(start, bisect_right(names, after))
        out: list[QueueInfo] = []
        for key in names[start:] if vhost is None else self._between(start, vhost, prefix):
            if key[1].startswith(prefix):
                out.append(self._info(by_name[key]))
                if len(out) >= limit:
                    break
        return out

    def _between(self, start: int, vhost: str, prefix: str) -> Iterator[tuple[str, str]]:
        names = self._model.names
        for i in range(start, len(names)):
            if names[i][0] != vhost or not names[i][1].startswith(prefix):
                return
            yield names[i]

    def queue_count(self, vhost: str) -> int:
        names = self._model.names
        return bisect_left(names, (vhost + "\0",)) - bisect_left(names, (vhost,))

    # Exchanges

    def exchange(self, vhost: str, name: str) -> ExchangeInfo | None:
        found = self._model.routing.find(vhost, name)
        return None if found is None else exchange_info(vhost, found)

    def exchanges(self, vhost: str) -> list[ExchangeInfo]:
        """By name; the default exchange first."""
        routing = self._model.routing
        names = sorted({*BUILT_IN, *routing.exchanges.get(vhost, ())})
        return [exchange_info(vhost, routing.get(vhost, name)) for name in names]

    def bindings(
        self, vhost: str, *, source: str | None = None, destination: str | None = None, kind: str | None = None
    ) -> list[Binding]:
        routing = self._model.routing
        if source == "":
            if destination is None:
                names = [name for at, name in self._model.by_name if at == vhost]
            else:
                names = [destination] if (vhost, destination) in self._model.by_name else []
            found = [Binding("", "queue", name, name) for name in names]
        elif source is not None:
            exchange = routing.find(vhost, source)
            found = list(exchange.bindings.values()) if exchange is not None else []
        elif destination is not None:
            found = [*routing.into(vhost, "queue", destination), *routing.into(vhost, "exchange", destination)]
        else:
            there = routing.exchanges.get(vhost, {})
            found = [binding for name in sorted(there) for binding in there[name].bindings.values()]
        return [b for b in found if destination in (None, b.destination) and kind in (None, b.kind)]

    def route(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any] | None = None,
        *,
        more: Sequence[str] = (),
    ) -> Targets:
        check_routing_key(routing_key)
        return self._model.routing.route(vhost, exchange, routing_key, headers, more=more)

    def asks_headers(self, vhost: str, exchange: str, routing_key: str) -> bool:
        return self._model.routing.asks_headers(vhost, exchange, routing_key)

    def explain(
        self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None
    ) -> list[Route]:
        check_routing_key(routing_key)
        return self._model.routing.explain(vhost, exchange, routing_key, headers)

    # Documents of other layers

    def documents(self, collection: str) -> dict[str, bytes]:
        return dict(self._model.documents.get(collection, {}))

    def document(self, collection: str, key: str) -> bytes | None:
        return self._model.documents.get(collection, {}).get(key)

    def on_document(self, call: OnDocument) -> None:
        self._model.on_document(call)

    def on_queue(self, call: OnQueue) -> None:
        self._model.on_queue(call)


def queue_info(queue: ListedQueue, owners: Mapping[int, int]) -> QueueInfo:
    created_ms, changed_ms, owner = queue.created_at_ms, queue.changed_at_ms, owners.get(queue.number, 0)
    return QueueInfo(queue.vhost, queue.name, queue.settings, created_ms, changed_ms, queue.number, owner)


def exchange_info(vhost: str, exchange: Exchange) -> ExchangeInfo:
    created_ms, is_built_in = exchange.created_at_ms, exchange.name in BUILT_IN
    return ExchangeInfo(vhost, exchange.name, exchange.settings, created_ms, is_built_in, len(exchange.bindings))


def no_vhost(name: str) -> VhostNotFound:
    return VhostNotFound(f"there is no virtual host {name!r}; create it first", field="vhost", vhost=name)
