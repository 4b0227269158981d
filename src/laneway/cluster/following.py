"""A copy of the topology, kept by a process from what the partitions of its server tell it.

Each partition has a feed: it begins with an image of all that is there, in parts, and follows the events that change
it, in the order of the journal. Feeds do not wait for each other, so what one says of another partition's queue may
come before that queue, or after it has gone. Queues have their ids here (core/partitions.py). Messages are no part of
it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from laneway.broker.interface import OnDocument, OnQueue
from laneway.broker.topology import Change, ListedQueue, Owned, StandsStill, TopologyModel
from laneway.core.events import (
    Bound,
    DocumentPut,
    DocumentRemoved,
    ExchangeDeleted,
    ExchangePut,
    Kind,
    QueueDeleted,
    QueueDeparted,
    QueuePut,
    Unbound,
)
from laneway.core.exchanges import Binding, ExchangeSettings, RoutingTable
from laneway.core.partitions import home, partition_of, queue_id
from laneway.core.settings import QueueSettings
from laneway.core.state import QueueDocument, decoded_binding
from laneway.core.world import DEFAULT_VHOST, VHOSTS

_V = TypeVar("_V")


class FollowedQueue(msgspec.Struct, gc=False):
    """What is known of a queue of any partition."""

    number: int  # its id
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int
    placed: bool = False  # somebody said which partition it is to be in


class TopologyPart(msgspec.Struct):
    """Some of what one partition keeps of the topology. Its queues have their numbers."""

    queues: list[FollowedQueue] = []
    exchanges: list[tuple[str, str, ExchangeSettings, int]] = []
    bindings: list[tuple[str, Binding, int | None]] = []  # with the id of the queue it leads to
    documents: list[tuple[str, str, bytes]] = []  # collection, key, document
    owners: list[tuple[int, int]] = []  # of a queue
    moving: list[tuple[int, int]] = []  # queues that go to other partitions, and to which
    forwards: list[tuple[int, int]] = []  # queues that have gone there, and their ids


#: One part has so much at most: it is made, sent and taken within a turn of the loop each.
PART_COUNT = 1_000
PART_BYTES = 256 * 1024  # of documents


def image_of(model: TopologyModel) -> Iterator[TopologyPart]:
    """All that a partition keeps of the topology at one moment, in parts; exchanges come before bindings. They may be
    taken one by one while it goes on changing: a queue then comes as it is by then, which the change says again."""
    queues, routing = list(model.by_name.values()), model.routing
    exchanges = [e for there in routing.exchanges.values() for e in there.values()]
    bindings = [
        (e.vhost, binding, _id(routing.target(e.vhost, binding))) for e in exchanges for binding in e.bindings.values()
    ]
    put = [(e.vhost, e.name, e.settings, e.created_at_ms) for e in exchanges]
    documents = [(name, *document) for name, there in model.documents.items() for document in there.items()]
    owners = list(model.owners.items())
    moving, forwards = list(model.moving.items()), list(model.forwards.items())
    return chain(
        (TopologyPart(queues=list(map(_followed, some))) for some in _pieces(queues)),
        (TopologyPart(exchanges=some) for some in _pieces(put)),
        (TopologyPart(bindings=some) for some in _pieces(bindings)),
        (TopologyPart(documents=some) for some in _pieces(documents, lambda document: len(document[2]))),
        (TopologyPart(owners=some) for some in _pieces(owners)),
        (TopologyPart(moving=some) for some in _pieces(moving)),
        (TopologyPart(forwards=some) for some in _pieces(forwards)),
    )


def _pieces(values: list[_V], size_of: Callable[[_V], int] = lambda value: 0) -> Iterator[list[_V]]:
    some: list[_V] = []
    size_bytes = 0
    for value in values:
        some.append(value)
        size_bytes += size_of(value)
        if len(some) >= PART_COUNT or size_bytes >= PART_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def _followed(queue: ListedQueue) -> FollowedQueue:
    q = queue
    return FollowedQueue(q.number, q.vhost, q.name, q.settings, q.created_at_ms, q.changed_at_ms, q.placed)


def _id(target: int | str | None) -> int | None:
    return target if isinstance(target, int) else None


class _Beginning:
    """What came of an image so far."""

    def __init__(self, topology: FollowedTopology) -> None:
        self.queues: set[int] = set()
        self.routing = RoutingTable(topology.queues, topology.by_name)
        self.documents: dict[str, dict[str, bytes]] = {}
        self.owners: dict[int, int] = {}
        self.moving: dict[int, int] = {}
        self.forwards: dict[int, int] = {}
        self.changes: list[Change] = []  # since it was made


class Feed:
    """What one partition tells."""

    def __init__(self, topology: FollowedTopology, partition: int) -> None:
        self.topology = topology
        self._partition = partition
        self._keeps_all = partition == 0  # exchanges, bindings, virtual hosts and documents too
        self._beginning: _Beginning | None = None
        self._appliers: dict[Kind, Callable[[Any], None]] = {
            Kind.QUEUE_PUT: self._queue_put,
            Kind.QUEUE_DELETED: self._queue_deleted,
            Kind.QUEUE_DEPARTED: self._queue_departed,
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

    def begin(self, image: Iterable[TopologyPart]) -> None:
        """This is what the partition keeps from now on; what it said before is forgotten."""
        self.expect_image()
        for part in image:
            self.add(part)
        self.end_image()

    def expect_image(self) -> None:
        """It comes in parts. Until it is whole, what the partition said before holds, and changes wait."""
        self._beginning = _Beginning(self.topology)

    def add(self, part: TopologyPart) -> None:
        beginning, partition = self._beginning, self._partition
        assert beginning is not None
        for queue in part.queues:
            queue.number = queue_id(partition, queue.number)
            beginning.queues.add(queue.number)
        self.topology.know(*part.queues)
        for vhost, name, settings, at_ms in part.exchanges:
            beginning.routing.put(vhost, name, settings, at_ms)
        for vhost, binding, target in part.bindings:
            beginning.routing.bind(vhost, binding, target)
        for collection, key, document in part.documents:
            beginning.documents.setdefault(collection, {})[key] = document
        for number, owner in part.owners:
            beginning.owners[queue_id(partition, number)] = owner
        beginning.moving.update((queue_id(partition, number), to) for number, to in part.moving)
        beginning.forwards.update((queue_id(partition, number), there) for number, there in part.forwards)

    def end_image(self) -> None:
        """It is whole."""
        topology, beginning, partition = self.topology, self._beginning, self._partition
        assert beginning is not None
        self._beginning = None
        topology.forwards |= beginning.forwards
        # Those that have left are known until they are where they went.
        there = beginning.queues | beginning.forwards.keys()
        gone = [n for n in topology.queues if partition_of(n) == partition and n not in there]
        topology.forget(*gone, keeps_bindings=True)
        others = {queue: owner for queue, owner in topology.owners.items() if partition_of(queue) != partition}
        topology.owners = others | beginning.owners
        if self._keeps_all:
            topology.keep(beginning.routing, beginning.documents)
        if topology.forwards:
            topology.routing.readdress(topology.routed)
        for number in [n for n in topology.moving if partition_of(n) == partition and n not in beginning.moving]:
            if number not in topology.forwards:
                topology.stands_still(number, None)
        for number, to in beginning.moving.items():
            topology.stands_still(number, to)
        for number in [n for n in beginning.forwards if n in topology.queues]:
            topology.arrive(number)
        for change in beginning.changes:
            self.apply(change)
        topology.heard_of(partition)

    def apply(self, change: Change) -> None:
        if self._beginning is not None:
            self._beginning.changes.append(change)
            return
        if isinstance(change, Owned):
            self.topology.owners[queue_id(self._partition, change.queue)] = change.session
            return
        if isinstance(change, StandsStill):
            self.topology.stands_still(queue_id(self._partition, change.queue), change.to)
            return
        applier = self._appliers.get(change.kind)
        if applier is not None:  # others keep documents of their own, which concern nobody else
            applier(change)

    def _queue_put(self, e: QueuePut) -> None:
        document, number = msgspec.json.decode(e.document, type=QueueDocument), queue_id(self._partition, e.queue)
        known = self.topology.queues.get(number)
        created_at_ms = (document.created_at_ms or e.at_ms) if known is None else known.created_at_ms
        named = document.vhost, document.name
        queue = FollowedQueue(number, *named, document.settings, created_at_ms, e.at_ms, document.placed)
        self.topology.know(queue)

    def _queue_departed(self, e: QueueDeparted) -> None:
        number = queue_id(self._partition, e.queue)
        self.topology.forwards[number] = e.target
        self.topology.arrive(number)

    def _queue_deleted(self, e: QueueDeleted) -> None:
        self.topology.forget(queue_id(self._partition, e.queue), keeps_bindings=not self._keeps_all)

    def _exchange_put(self, e: ExchangePut) -> None:
        self.topology.routing.put(*msgspec.msgpack.decode(e.document, type=tuple[str, str, ExchangeSettings]), e.at_ms)

    def _exchange_deleted(self, e: ExchangeDeleted) -> None:
        self.topology.routing.delete(*msgspec.msgpack.decode(e.document, type=tuple[str, str]))

    def _bound(self, e: Bound) -> None:
        vhost, binding, elsewhere = decoded_binding(e)
        self.topology.routing.bind(vhost, binding, self.topology.routed(elsewhere or e.queue) or None)

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
        self._on_queue: list[OnQueue] = []
        self._on_heard: list[Callable[[int], None]] = []
        self._on_still: list[Callable[[int, int | None], None]] = []
        self._on_moved: list[Callable[[int, int], None]] = []
        self._waiting: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self.queues: dict[int, FollowedQueue] = {}
        self.by_name: dict[tuple[str, str], FollowedQueue] = {}
        self._names: list[tuple[str, str]] = []
        self._is_sorted = True
        self.senders: dict[tuple[str, str], set[int]] = {}
        self.routing = RoutingTable(self.queues, self.by_name)
        self.documents: dict[str, dict[str, bytes]] = {}
        self.owners: dict[int, int] = {}
        self.vhosts: set[str] = {DEFAULT_VHOST}
        self.moving: dict[int, int] = {}  # queues that go to other partitions, and to which
        self.forwards: dict[int, int] = {}  # ids of queues that have left, and those that they have where they went
        self._landed: dict[int, FollowedQueue] = {}  # by the id before: queues that are there, and have not left yet

    def whereabouts(self, queue: int) -> int:
        while queue in self.forwards:
            queue = self.forwards[queue]
        return queue

    def routed(self, queue: int) -> int:
        """The id that a binding leads to which was made for this one: that of before as long as the queue is known by
        it."""
        while queue in self.forwards and queue not in self.queues:
            queue = self.forwards[queue]
        return queue

    def home(self, vhost: str, name: str) -> int:
        return home(vhost, name, len(self.feeds))

    @property
    def is_complete(self) -> bool:
        return not self._unheard

    @property
    def names(self) -> list[tuple[str, str]]:
        if not self._is_sorted:
            self._names.sort()
            self._is_sorted = True
        return self._names

    def has_queues(self, vhost: str) -> bool:
        at = bisect_left(self.names, (vhost, ""))
        return at < len(self.names) and self.names[at][0] == vhost

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        self._on_vhost_deleted.append(call)

    def on_document(self, call: OnDocument) -> None:
        self._on_document.append(call)

    def on_queue(self, call: OnQueue) -> None:
        self._on_queue.append(call)

    def on_queue_gone(self, call: Callable[[int, str, str], None]) -> None:
        """Have this called with id, virtual host and name of each queue that goes."""
        self._on_queue_gone.append(call)

    def on_still(self, call: Callable[[int, int | None], None]) -> None:
        """Have this called with the id of each queue that stands still, and the partition that it goes to; or None if
        it stays. It may be called again with one that stands still already."""
        self._on_still.append(call)

    def on_moved(self, call: Callable[[int, int], None]) -> None:
        """Have this called with the id that a queue had, and the one that it has where it went."""
        self._on_moved.append(call)

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
        changes = 0
        for queue in queues:
            before = self.queues.get(queue.number)
            if before == queue:
                continue
            leaving = self.by_name.get((queue.vhost, queue.name)) if self.moving or self.forwards else None
            if leaving is not None and self._goes_to(leaving.number, partition_of(queue.number)):
                self._landed[leaving.number] = queue
                self.arrive(leaving.number)
                continue
            changes += 1
            if before is not None:
                self._drop_sender(before)
                former = before.vhost, before.name
                if former != (queue.vhost, queue.name) and self.by_name.get(former) is before:
                    self._drop_names([former])
            name = queue.vhost, queue.name
            if name not in self.by_name:
                added.append(name)
            self.queues[queue.number] = self.by_name[name] = queue
            for call in self._on_queue:
                call(*name, True)
            target = queue.settings.dead_letter_queue
            if target is not None:
                self.senders.setdefault((queue.vhost, target), set()).add(queue.number)
        if len(added) == 1:
            insort(self.names, added[0])
        elif added:  # one part of an image, perhaps: they are sorted when all are there
            self._names += added
            self._is_sorted = False
        if changes:
            self.routing.changed()

    def _goes_to(self, number: int, partition: int) -> bool:
        return partition_of(number) != partition and (
            self.moving.get(number) == partition or partition_of(self.forwards.get(number, number)) == partition
        )

    def stands_still(self, number: int, to: int | None) -> None:
        """A queue stands still, as it goes to another partition; None: it does not any more, and stays."""
        if to is None:
            self.moving.pop(number, None)
        elif number in self.queues:
            self.moving[number] = to
        for call in self._on_still:
            call(number, to)

    def arrive(self, number: int) -> None:
        """A queue that goes to another partition has its new id, once it has left here and is there."""
        now = self.forwards.get(number)
        queue = self._landed.get(number) or self.queues.get(now or 0)
        before = self.queues.get(number)
        if now is None or queue is None or before is None:
            return
        self._landed.pop(number, None)
        self.moving.pop(number, None)
        self._drop_sender(before)
        if self.by_name.get((before.vhost, before.name)) is before:
            self._drop_names([(before.vhost, before.name)])
        if now in self.queues:  # it was known before this one
            self._drop_sender(queue)
            del self.queues[now]
        self.know(queue)
        self.routing.queue_departed(before, now)
        del self.queues[number]
        self.owners.pop(number, None)
        self.routing.changed()
        for call in self._on_moved:
            call(number, now)
        self.tell_changed()

    def forget(self, *numbers: int, keeps_bindings: bool) -> None:
        """Queues are gone. `keeps_bindings`: it is told of each that they go."""
        for number in numbers:
            if number in self.moving:
                self._landed.pop(number, None)
                self.stands_still(number, None)
        gone = [self.queues[number] for number in numbers if number in self.queues]
        if not gone:
            return
        names = [name for queue in gone if self.by_name.get(name := (queue.vhost, queue.name)) is queue]
        for queue in gone:
            if not keeps_bindings:
                self.routing.queue_deleted(queue)
            self._drop_sender(queue)
            del self.queues[queue.number]
            self.owners.pop(queue.number, None)
        self._drop_names(names)
        self.routing.changed()
        for queue in gone:
            for call in self._on_queue_gone:
                call(queue.number, queue.vhost, queue.name)
            for tell in self._on_queue:
                tell(queue.vhost, queue.name, (queue.vhost, queue.name) in self.by_name)
        self.tell_changed()

    def _drop_names(self, names: list[tuple[str, str]]) -> None:
        for name in names:
            del self.by_name[name]
        if len(names) == 1:
            del self.names[bisect_left(self.names, names[0])]
        elif names:
            self._names = [name for name in self._names if name in self.by_name]

    def _drop_sender(self, queue: FollowedQueue) -> None:
        target = queue.settings.dead_letter_queue
        senders: Collection[int] = self.senders.get((queue.vhost, target), ()) if target is not None else ()
        if isinstance(senders, set) and target is not None:
            senders.discard(queue.number)
            if not senders:
                del self.senders[queue.vhost, target]

    def keep(self, routing: RoutingTable, documents: dict[str, dict[str, bytes]]) -> None:
        """All but queues is this from now on."""
        vhosts, before = self.vhosts, self.documents
        routing.version += self.routing.version + 1
        self.routing, self.documents = routing, documents
        self.vhosts = {DEFAULT_VHOST, *self.documents.get(VHOSTS, ())}
        for gone in sorted(vhosts - self.vhosts):
            self._tell_vhost_deleted(gone)
        self._tell_differences(before)

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
