"""A copy of the topology, kept by a process that does not have the partition that leads it.

It begins with an image of all there is and follows the events that change it, in the order of the journal. Messages
are no part of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

import msgspec

from laneway.broker.interface import OnDocument
from laneway.broker.topology import Change, Owned, TopologyModel
from laneway.core.events import (
    Bound,
    DocumentPut,
    DocumentRemoved,
    ExchangeDeleted,
    ExchangePut,
    Kind,
    QueueDeleted,
    QueuePut,
    Unbound,
)
from laneway.core.exchanges import Binding, ExchangeSettings, RoutingTable
from laneway.core.settings import QueueSettings
from laneway.core.state import QueueDocument
from laneway.core.world import DEFAULT_VHOST, VHOSTS


class FollowedQueue(msgspec.Struct, gc=False):
    """What is known of a queue of another process."""

    number: int
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int


class TopologyImage(msgspec.Struct):
    """All of it at one moment."""

    queues: list[FollowedQueue]
    exchanges: list[tuple[str, str, ExchangeSettings, int]]
    bindings: list[tuple[str, Binding]]
    documents: dict[str, dict[str, bytes]]
    owners: dict[int, int]


def image_of(model: TopologyModel) -> TopologyImage:
    queues = [
        FollowedQueue(q.number, q.vhost, q.name, q.settings, q.created_at_ms, q.changed_at_ms)
        for q in model.by_name.values()
    ]
    exchanges = [e for there in model.routing.exchanges.values() for e in there.values()]
    return TopologyImage(
        queues,
        [(e.vhost, e.name, e.settings, e.created_at_ms) for e in exchanges],
        [(e.vhost, binding) for e in exchanges for binding in e.bindings.values()],
        {name: dict(documents) for name, documents in model.documents.items()},
        dict(model.owners),
    )


class FollowedTopology:
    """A model of the topology (broker/topology.py) that other processes' events are applied to."""

    def __init__(self) -> None:
        self._on_vhost_deleted: list[Callable[[str], None]] = []
        self._on_document: list[OnDocument] = []
        self._appliers: dict[Kind, Callable[[Any], None]] = {
            Kind.QUEUE_PUT: self._queue_put,
            Kind.QUEUE_DELETED: self._queue_deleted,
            Kind.EXCHANGE_PUT: self._exchange_put,
            Kind.EXCHANGE_DELETED: self._exchange_deleted,
            Kind.BOUND: self._bound,
            Kind.UNBOUND: self._unbound,
            Kind.DOCUMENT_PUT: self._document_put,
            Kind.DOCUMENT_REMOVED: self._document_removed,
        }
        self.vhosts: set[str] = {DEFAULT_VHOST}
        self._clear(0)

    def _clear(self, version: int) -> None:
        self.queues: dict[int, FollowedQueue] = {}
        self.by_name: dict[tuple[str, str], FollowedQueue] = {}
        self.names: list[tuple[str, str]] = []
        self.routing = RoutingTable(self.queues, self.by_name)
        self.routing.version = version
        self.documents: dict[str, dict[str, bytes]] = {}
        self.owners: dict[int, int] = {}

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        self._on_vhost_deleted.append(call)

    def on_document(self, call: OnDocument) -> None:
        self._on_document.append(call)

    def begin(self, image: TopologyImage) -> None:
        """Be this from now on; what was known before is forgotten."""
        before, documents, version = self.vhosts, self.documents, self.routing.version
        self._clear(version)
        for queue in image.queues:
            self.queues[queue.number] = self.by_name[queue.vhost, queue.name] = queue
        self.names = sorted(self.by_name)
        for vhost, name, settings, at_ms in image.exchanges:
            self.routing.put(vhost, name, settings, at_ms)
        for vhost, binding in image.bindings:
            self.routing.bind(vhost, binding)
        self.documents = image.documents
        self.owners = image.owners
        self.vhosts = {DEFAULT_VHOST, *self.documents.get(VHOSTS, ())}
        self.routing.version = max(self.routing.version, version + 1)
        for gone in sorted(before - self.vhosts):
            self._tell_vhost_deleted(gone)
        self._tell_differences(documents)

    def apply(self, change: Change) -> None:
        if isinstance(change, Owned):
            self.owners[change.queue] = change.session
        else:
            self._appliers[change.kind](change)

    def _queue_put(self, e: QueuePut) -> None:
        document = msgspec.json.decode(e.document, type=QueueDocument)
        queue = self.queues.get(e.queue)
        if queue is None:
            queue = FollowedQueue(e.queue, document.vhost, document.name, document.settings, e.at_ms, e.at_ms)
            self.queues[e.queue] = self.by_name[queue.vhost, queue.name] = queue
            insort(self.names, (queue.vhost, queue.name))
        else:
            queue.settings, queue.changed_at_ms = document.settings, e.at_ms
        self.routing.changed()

    def _queue_deleted(self, e: QueueDeleted) -> None:
        queue = self.queues[e.queue]
        self.routing.queue_deleted(queue)
        del self.queues[e.queue], self.by_name[queue.vhost, queue.name]
        del self.names[bisect_left(self.names, (queue.vhost, queue.name))]
        self.owners.pop(e.queue, None)

    def _exchange_put(self, e: ExchangePut) -> None:
        self.routing.put(*msgspec.msgpack.decode(e.document, type=tuple[str, str, ExchangeSettings]), e.at_ms)

    def _exchange_deleted(self, e: ExchangeDeleted) -> None:
        self.routing.delete(*msgspec.msgpack.decode(e.document, type=tuple[str, str]))

    def _bound(self, e: Bound) -> None:
        self.routing.bind(*msgspec.msgpack.decode(e.document, type=tuple[str, Binding]))

    def _unbound(self, e: Unbound) -> None:
        self.routing.unbind(*msgspec.msgpack.decode(e.document, type=tuple[str, Binding]))

    def _document_put(self, e: DocumentPut) -> None:
        self.documents.setdefault(e.collection, {})[e.key] = e.document
        if e.collection == VHOSTS:
            self.vhosts.add(e.key)
        self._tell_document(e.collection, e.key, e.document)

    def _document_removed(self, e: DocumentRemoved) -> None:
        self.documents.get(e.collection, {}).pop(e.key, None)
        if e.collection == VHOSTS:
            self.vhosts.discard(e.key)
            self._tell_vhost_deleted(e.key)
        self._tell_document(e.collection, e.key, None)

    def _tell_differences(self, before: dict[str, dict[str, bytes]]) -> None:
        """What happened to documents while nobody told of it."""
        for collection in sorted({*before, *self.documents}):
            then, now = before.get(collection, {}), self.documents.get(collection, {})
            for key in {*then, *now}:
                if then.get(key) != now.get(key):
                    self._tell_document(collection, key, now.get(key))

    def _tell_document(self, collection: str, key: str, document: bytes | None) -> None:
        for call in self._on_document:
            call(collection, key, document)

    def _tell_vhost_deleted(self, name: str) -> None:
        for call in self._on_vhost_deleted:
            call(name)
