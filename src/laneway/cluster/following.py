"""A copy of the topology, kept by a process from what the partitions of its server tell it.

Each partition has a feed: it begins with an image of all that is there and follows the events that change it, in the
order of the journal. Feeds do not wait for each other, so what one says of another partition's queue may come before
that queue, or after it has gone. Queues have their ids here (core/partitions.py). Messages are no part of it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection
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
from laneway.core.partitions import home, partition_of, queue_id
from laneway.core.settings import QueueSettings
from laneway.core.state import QueueDocument, decoded_binding
from laneway.core.world import DEFAULT_VHOST, VHOSTS


class FollowedQueue(msgspec.Struct, gc=False):
    """What is known of a queue of any partition."""

    number: int  # its id
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int


class TopologyImage(msgspec.Struct):
    """What one partition keeps of the topology, at one moment. Its queues have their numbers."""

    queues: list[FollowedQueue]
    exchanges: list[tuple[str, str, ExchangeSettings, int]]
    bindings: list[tuple[str, Binding, int | None]]  # with the id of the queue it leads to
    documents: dict[str, dict[str, bytes]]
    owners: dict[int, int]


def image_of(model: TopologyModel) -> TopologyImage:
    queues = [
        FollowedQueue(q.number, q.vhost, q.name, q.settings, q.created_at_ms, q.changed_at_ms)
        for q in model.by_name.values()
    ]
    routing = model.routing
    exchanges = [e for there in routing.exchanges.values() for e in there.values()]
    return TopologyImage(
        queues,
        [(e.vhost, e.name, e.settings, e.created_at_ms) for e in exchanges],
        [
            (e.vhost, binding, _id(routing.target(e.vhost, binding)))
            for e in exchanges
            for binding in e.bindings.values()
        ],
        {name: dict(documents) for name, documents in model.documents.items()},
        dict(model.owners),
    )


def _id(target: int | str | None) -> int | None:
    return target if isinstance(target, int) else None


class Feed:
    """What one partition tells."""

    def __init__(self, topology: FollowedTopology, partition: int) -> None:
        self.topology = topology
        self._partition = partition
        self._keeps_all = partition == 0  # exchanges, bindings, virtual hosts and documents too
        self._appliers: dict[Kind, Callable[[Any], None]] = {
            Kind.QUEUE_PUT: self._queue_put,
            Kind.QUEUE_DELETED: self._queue_deleted,
        }
        if self._keeps_all:
            self._appliers |= {
                Kind.EXCHANGE_PUT: self._exchange_put,
                Kind.EXCHANGE_DELETED: self._exchange_deleted,
                Kind.BOUND: self._bound,
                Kind.UNBOUND: self._unbound,
                Kind.DOCUMENT_PUT: self._document_put,
                Kind.DOCUMENT_REMOVED: self._document_removed,
            }

    def begin(self, image: TopologyImage) -> None:
        """This is what the partition keeps from now on; what it said before is forgotten."""
        topology, partition = self.topology, self._partition
        there = {queue_id(partition, queue.number) for queue in image.queues}
        for number in [n for n in topology.queues if partition_of(n) == partition and n not in there]:
            topology.forget(number, keeps_bindings=True)
        for queue in image.queues:
            queue.number = queue_id(partition, queue.number)
        topology.know(*image.queues)
        topology.owners = {
            **{queue: owner for queue, owner in topology.owners.items() if partition_of(queue) != partition},
            **{queue_id(partition, queue): owner for queue, owner in image.owners.items()},
        }
        if self._keeps_all:
            topology.keep(image)
        topology.heard_of(partition)

    def apply(self, change: Change) -> None:
        if isinstance(change, Owned):
            self.topology.owners[queue_id(self._partition, change.queue)] = change.session
            return
        applier = self._appliers.get(change.kind)
        if applier is not None:  # others keep documents of their own, which concern nobody else
            applier(change)

    def _queue_put(self, e: QueuePut) -> None:
        document, number = msgspec.json.decode(e.document, type=QueueDocument), queue_id(self._partition, e.queue)
        known = self.topology.queues.get(number)
        created_at_ms = e.at_ms if known is None else known.created_at_ms
        queue = FollowedQueue(number, document.vhost, document.name, document.settings, created_at_ms, e.at_ms)
        self.topology.know(queue)

    def _queue_deleted(self, e: QueueDeleted) -> None:
        self.topology.forget(queue_id(self._partition, e.queue), keeps_bindings=not self._keeps_all)

    def _exchange_put(self, e: ExchangePut) -> None:
        self.topology.routing.put(*msgspec.msgpack.decode(e.document, type=tuple[str, str, ExchangeSettings]), e.at_ms)

    def _exchange_deleted(self, e: ExchangeDeleted) -> None:
        self.topology.routing.delete(*msgspec.msgpack.decode(e.document, type=tuple[str, str]))

    def _bound(self, e: Bound) -> None:
        vhost, binding, elsewhere = decoded_binding(e)
        self.topology.routing.bind(vhost, binding, elsewhere or e.queue or None)

    def _unbound(self, e: Unbound) -> None:
        vhost, binding, _ = decoded_binding(e)
        self.topology.routing.unbind(vhost, binding)
        self.topology.tell_changed()

    def _document_put(self, e: DocumentPut) -> None:
        self.topology.put_document(e.collection, e.key, e.document)

    def _document_removed(self, e: DocumentRemoved) -> None:
        self.topology.remove_document(e.collection, e.key)


class FollowedTopology:
    """A model of the topology (broker/topology.py) of all partitions, and what commands of any partition ask of the
    others (core/world.py)."""

    def __init__(self, partition_count: int = 1) -> None:
        self.feeds = [Feed(self, partition) for partition in range(partition_count)]
        self._unheard = set(range(partition_count))
        self._on_vhost_deleted: list[Callable[[str], None]] = []
        self._on_document: list[OnDocument] = []
        self._on_queue_gone: list[Callable[[int, str, str], None]] = []
        self._on_heard: list[Callable[[int], None]] = []
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.queues: dict[int, FollowedQueue] = {}
        self.by_name: dict[tuple[str, str], FollowedQueue] = {}
        self.names: list[tuple[str, str]] = []
        self.senders: dict[tuple[str, str], set[int]] = {}
        self.routing = RoutingTable(self.queues, self.by_name)
        self.documents: dict[str, dict[str, bytes]] = {}
        self.owners: dict[int, int] = {}
        self.vhosts: set[str] = {DEFAULT_VHOST}

    def home(self, vhost: str, name: str) -> int:
        return home(vhost, name, len(self.feeds))

    @property
    def is_complete(self) -> bool:
        return not self._unheard

    def has_queues(self, vhost: str) -> bool:
        at = bisect_left(self.names, (vhost, ""))
        return at < len(self.names) and self.names[at][0] == vhost

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        self._on_vhost_deleted.append(call)

    def on_document(self, call: OnDocument) -> None:
        self._on_document.append(call)

    def on_queue_gone(self, call: Callable[[int, str, str], None]) -> None:
        """Have this called with id, virtual host and name of each queue that goes."""
        self._on_queue_gone.append(call)

    def on_heard(self, call: Callable[[int], None]) -> None:
        """Have this called with each partition that begins to tell, or begins anew."""
        self._on_heard.append(call)

    def when(self, condition: Callable[[], bool], call: Callable[[], None]) -> Callable[[], None]:
        """Call once, as soon as this holds, which is looked at when a queue or binding goes; what is returned gives
        that up."""
        waiting = (condition, call)
        self._waiting.append(waiting)
        return lambda: self._waiting.remove(waiting) if waiting in self._waiting else None

    def tell_changed(self) -> None:
        if self._waiting:
            ripe = [waiting for waiting in self._waiting if waiting[0]()]
            for waiting in ripe:
                self._waiting.remove(waiting)
                waiting[1]()

    # What feeds tell

    def know(self, *queues: FollowedQueue) -> None:
        """Queues are there, or are others than they were."""
        added: list[tuple[str, str]] = []
        for queue in queues:
            before = self.queues.get(queue.number)
            if before is not None:
                self._drop_sender(before)
                if (before.vhost, before.name) != (queue.vhost, queue.name):
                    self._drop_name(before)
            name = queue.vhost, queue.name
            if name not in self.by_name:
                added.append(name)
            self.queues[queue.number] = self.by_name[name] = queue
            target = queue.settings.dead_letter_queue
            if target is not None:
                self.senders.setdefault((queue.vhost, target), set()).add(queue.number)
        if len(added) == 1:
            insort(self.names, added[0])
        elif added:
            self.names = sorted([*self.names, *added])
        self.routing.changed()

    def forget(self, number: int, *, keeps_bindings: bool) -> None:
        """A queue is gone. `keeps_bindings`: it is told of each that they go."""
        queue = self.queues.get(number)
        if queue is None:
            return
        if not keeps_bindings:
            self.routing.queue_deleted(queue)
        self._drop_sender(queue)
        self._drop_name(queue)
        del self.queues[number]
        self.owners.pop(number, None)
        self.routing.changed()
        for call in self._on_queue_gone:
            call(number, queue.vhost, queue.name)
        self.tell_changed()

    def _drop_name(self, queue: FollowedQueue) -> None:
        name = queue.vhost, queue.name
        if self.by_name.get(name) is queue:  # else another partition has one of that name by now
            del self.by_name[name]
            del self.names[bisect_left(self.names, name)]

    def _drop_sender(self, queue: FollowedQueue) -> None:
        target = queue.settings.dead_letter_queue
        senders: Collection[int] = self.senders.get((queue.vhost, target), ()) if target is not None else ()
        if isinstance(senders, set) and target is not None:
            senders.discard(queue.number)
            if not senders:
                del self.senders[queue.vhost, target]

    def keep(self, image: TopologyImage) -> None:
        """All but queues is this from now on."""
        version, documents, vhosts = self.routing.version, self.documents, self.vhosts
        self.routing = RoutingTable(self.queues, self.by_name)
        for vhost, name, settings, at_ms in image.exchanges:
            self.routing.put(vhost, name, settings, at_ms)
        for vhost, binding, queue in image.bindings:
            self.routing.bind(vhost, binding, queue)
        self.routing.version += version + 1
        self.documents = image.documents
        self.vhosts = {DEFAULT_VHOST, *self.documents.get(VHOSTS, ())}
        for gone in sorted(vhosts - self.vhosts):
            self._tell_vhost_deleted(gone)
        self._tell_differences(documents)

    def heard_of(self, partition: int) -> None:
        self._unheard.discard(partition)
        for call in self._on_heard:
            call(partition)
        self.tell_changed()

    def put_document(self, collection: str, key: str, document: bytes) -> None:
        self.documents.setdefault(collection, {})[key] = document
        if collection == VHOSTS:
            self.vhosts.add(key)
        self._tell_document(collection, key, document)

    def remove_document(self, collection: str, key: str) -> None:
        self.documents.get(collection, {}).pop(key, None)
        if collection == VHOSTS:
            self.vhosts.discard(key)
            self._tell_vhost_deleted(key)
        self._tell_document(collection, key, None)

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
