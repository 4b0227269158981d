"""The state of a partition and the one way it changes: apply(event). Live traffic and recovery both come here.

In memory only, all of it rebuilt from the journal: a snapshot plus the events after it.

                 publish                lease                   ack
    (nothing) ───────────▶ ready ─────────────────▶ leased ───────────▶ (gone)
        │                  ▲  ▲ ▲                    │ │ │
        │ with a delay     │  │ └──── release ───────┘ │ └─ reject, too many receives ─▶ dead
        └────▶ delayed ────┘  │      lease expired     │                                 │
                  ▲      when due                      │ release with a delay            │
                  └────────────────────────────────────┘        redrive, under a new number, in any queue
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from heapq import heappush
from itertools import chain, groupby, islice, repeat, starmap
from typing import Any

import msgspec

from laneway.core import graves, stepping
from laneway.core import queue as q_
from laneway.core.deadlines import DEDUP, DELAY, KEYS, LEASE, RETENTION, TTL, Deadlines, coarse
from laneway.core.dedups import dedup_key
from laneway.core.digits import SECRET_LEASE, SESSION_LEASE
from laneway.core.events import (
    Acked,
    Bound,
    Cause,
    DocumentPut,
    DocumentRemoved,
    Event,
    ExchangeDeleted,
    ExchangePut,
    Extended,
    KeyRemembered,
    Kind,
    Leased,
    Opened,
    Published,
    QueueDeleted,
    QueueDeparted,
    QueuePurged,
    QueuePut,
    QueueTold,
    Received,
    Released,
    Relocated,
    Reserved,
    Unbound,
)
from laneway.core.exchanges import Binding, ExchangeSettings, RoutingTable
from laneway.core.keys import Keys, Remembered
from laneway.core.message import message_id, places
from laneway.core.partitions import local_number, partition_of, queue_id
from laneway.core.queue import Group, Queue
from laneway.core.runs import as_array, runs
from laneway.core.settings import QueueSettings
from laneway.core.stories import Carried, QueueBaggage, Story
from laneway.core.table import (
    DEAD,
    DELAYED,
    FREE,
    GROUPED,
    HAS_CONSUMER,
    LEASED,
    NAMED_TIME,
    READY,
    SCHEDULED,
    SLAB_BITS,
    SLAB_MASK,
    SLAB_ROWS,
    STORIED,
    TENANTED,
    Slab,
    Table,
    column,
)
from laneway.core.tenants import Tenants
from laneway.core.world import DEFAULT_VHOST, VHOSTS, World

#: Of lease ids: above it is the partition, below it the epoch.
PARTITION_BIT = 52

#: Queues that a crash may have taken before they were durable. Other partitions may have heard of them, and have
#: something on its way there: so many numbers are left out after a start, so that it reaches no queue made since.
LOST_QUEUES = 1 << 14

#: The virtual host of queues that only partitions know: their outboxes (outbox.py). They have no place in `by_name`, so
#: that nobody finds or lists them.
HIDDEN = ""

#: What a copy of the topology must be told.
FOLLOWED = (
    Kind.QUEUE_PUT,
    Kind.QUEUE_DELETED,
    Kind.QUEUE_DEPARTED,
    Kind.EXCHANGE_PUT,
    Kind.EXCHANGE_DELETED,
    Kind.BOUND,
    Kind.UNBOUND,
    Kind.DOCUMENT_PUT,
    Kind.DOCUMENT_REMOVED,
)


class QueueDocument(msgspec.Struct, omit_defaults=True):
    """What an event says of a queue that it creates, changes or deletes, as JSON."""

    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int = 0  # 0: when the event says
    placed: bool = False  # as in Queue; of a new one
    arriving: tuple[int, int] | None = None  # as in Queue: until a document comes that does not say so


def queue_document(queue: Queue) -> bytes:
    return msgspec.json.encode(QueueDocument(queue.vhost, queue.name, queue.settings))


def binding_document(vhost: str, binding: Binding, elsewhere: int | None) -> bytes:
    """`elsewhere`: the id of the queue it leads to, if that is in another partition."""
    return msgspec.msgpack.encode((vhost, binding) if elsewhere is None else (vhost, binding, elsewhere))


def decoded_binding(e: Bound | Unbound) -> tuple[str, Binding, int | None]:
    """The virtual host, the binding, and the id of the queue it leads to if that is in another partition."""
    return msgspec.structs.astuple(_decode_binding(e.document))


class _BindingDocument(msgspec.Struct, array_like=True):
    vhost: str
    binding: Binding
    elsewhere: int | None = None


_decode_binding = msgspec.msgpack.Decoder(_BindingDocument).decode


class State:
    def __init__(self) -> None:
        self.epoch = 0
        self.tag = 0
        self.table = Table()
        self.deadlines = Deadlines()
        self.queues: dict[int, Queue] = {}
        self.by_name: dict[tuple[str, str], Queue] = {}
        self.topology = self.routing = RoutingTable(self.queues, self.by_name)
        self.partition = 0  # which one this is; set before anything is applied
        self.outboxes: dict[int, Queue] = {}  # other partition -> what is on its way there
        self.received: dict[int, int] = {}  # other partition -> number of the last entry of its outbox that was done
        self.forwards: dict[int, int] = {}  # number of a queue that left for another partition -> its id there
        self.arriving: dict[tuple[int, int], Queue] = {}  # (partition, number there) -> a queue on its way here
        self.carried: dict[int, Carried] = {}  # by lease id: the last ones of messages, where given elsewhere
        self.dead_of_others: dict[int, int] = {}  # id of a queue of another partition -> its dead letters that are here
        self.next_queue = 1
        self.next_lease = 1
        self.extents: dict[int, int] = {}  # extent of the journal -> live records in it
        self.stories: dict[int, Story] = {}
        self.moved: dict[int, int] = {}  # identity of a message (stories.py) -> the number that it has now
        self.copies: dict[int, list[int]] = {}  # … -> all numbers, of those that went to several queues
        # What commands may ask, and what applies events may not, as it is no part of the history: the props of messages
        # (None where a record is damaged), and how many messages the consumers that wait for a queue would take at
        # once, counted no further than to a number.
        self.read_props: Callable[[Sequence[int]], list[bytes | None]] = lambda seqs: [None] * len(seqs)
        self.wanted: Callable[[int, int], int] = lambda queue, enough: 0
        # … and the queues of the whole server: this partition's own, unless somebody knows others (world.py).
        self.world: World = self
        self.consumers: dict[int, str] = {}  # of leased messages whose consumer gave a name
        self.keys = Keys()
        self.dedup_count = 0  # ids that are remembered, of all queues together
        self.most_dedups = 1 << 62  # for commands: so many may be
        self.senders: dict[tuple[str, str], set[int]] = {}  # name of a dead-letter queue -> queues that name it
        self.documents: dict[str, dict[str, bytes]] = {}
        self.clock: stepping.ClockMark | None = None  # where it stood when it was last set
        self.known_ms = 0  # of what was replayed, the time of the last event
        self.ripened: set[int] = set()  # numbers of queues where delays have ended: whoever serves consumers clears it
        self._appliers: dict[Kind, Callable[[Any], None]] = {
            Kind.OPENED: self._opened,
            Kind.QUEUE_PUT: self._queue_put,
            Kind.QUEUE_DELETED: self._queue_deleted,
            Kind.QUEUE_PURGED: self._queue_purged,
            Kind.QUEUE_DEPARTED: self._queue_departed,
            Kind.QUEUE_TOLD: self._queue_told,
            Kind.PUBLISHED: self._published,
            Kind.LEASED: self._leased,
            Kind.ACKED: self._acked,
            Kind.RELEASED: self._released,
            Kind.EXTENDED: self._extended,
            Kind.RESERVED: self._reserved,
            Kind.DEAD_LETTERED: partial(graves.dead_lettered, self),
            Kind.MOVED: partial(graves.moved, self),
            Kind.REMOVED: partial(graves.removed, self),
            Kind.COPIED: partial(graves.copied, self),
            Kind.ARRIVED: partial(graves.arrived, self),
            Kind.TOLD: partial(graves.told, self),
            Kind.RESUMED: partial(graves.resumed, self),
            Kind.RECEIVED: self._received,
            Kind.RELOCATED: self._relocated,
            Kind.KEY_REMEMBERED: self._key_remembered,
            Kind.DOCUMENT_PUT: self._document_put,
            Kind.DOCUMENT_REMOVED: self._document_removed,
            Kind.EXCHANGE_PUT: self._exchange_put,
            Kind.EXCHANGE_DELETED: self._exchange_deleted,
            Kind.BOUND: self._bound,
            Kind.UNBOUND: self._unbound,
            Kind.CLOCK_SET: partial(stepping.clock_set, self),
        }

    # As its own world

    is_complete = True

    def home(self, vhost: str, name: str) -> int:
        return self.partition

    @property
    def vhosts(self) -> Collection[str]:
        return {DEFAULT_VHOST, *self.documents.get(VHOSTS, ())}

    @property
    def owners(self) -> Mapping[int, int]:
        return {}

    # Events

    def apply(self, event: Event) -> None:
        self._appliers[event.kind](event)
        if self.deadlines.is_untidy:
            self.deadlines.tidy(self._still_due)

    def follow(self, call: Callable[[Event], None]) -> None:
        """Have this called with every event that changes the topology or a document, once it is applied."""
        for kind in FOLLOWED:
            self._appliers[kind] = partial(self._and_tell, self._appliers[kind], call)

    def _and_tell(self, apply: Callable[[Event], None], call: Callable[[Event], None], event: Event) -> None:
        apply(event)
        if event.kind is Kind.QUEUE_PUT:
            queue = self.queues[event.queue]  # type: ignore[union-attr]
            if queue.vhost == HIDDEN or queue.arriving is not None:
                return
        call(event)

    # The store and its queues

    def _opened(self, e: Opened) -> None:
        if self.epoch:
            self.next_queue += LOST_QUEUES
        self.epoch = e.epoch
        self.tag = e.tag
        # A message may go to another partition while it is leased, so no two of them give the same lease id.
        self.next_lease = max(self.next_lease, (self.partition << PARTITION_BIT) + (e.epoch << 40) + 1)

    def _queue_put(self, e: QueuePut) -> None:
        document = msgspec.json.decode(e.document, type=QueueDocument)
        queue = self.queues.get(e.queue)
        if queue is None:
            at_ms = document.created_at_ms or e.at_ms
            queue = Queue(e.queue, document.vhost, document.name, document.settings, at_ms)
            queue.changed_at_ms = e.at_ms
            queue.placed, queue.arriving = document.placed, document.arriving
            self.add_queue(queue)
            self.next_queue = max(self.next_queue, e.queue + 1)
            self.topology.changed()
        else:
            self._drop_sender(queue)
            queue.set(document.settings)
            self._add_sender(queue)
            queue.placed = document.placed
            if queue.arriving is not None:
                del self.arriving[queue.arriving]
                queue.arriving = None
                self.by_name[queue.vhost, queue.name] = queue
            queue.changed_at_ms = e.at_ms
            self.topology.changed()  # what was planned for publishing into it may no longer hold
            if queue.retention_armed_ms:
                self.arm_retention(queue, e.at_ms)

    def add_queue(self, queue: Queue) -> None:
        self.queues[queue.number] = queue
        if queue.vhost == HIDDEN:
            self.outboxes[int(queue.name.rpartition(" ")[2])] = queue
            return
        if queue.arriving is not None:
            self.arriving[queue.arriving] = queue
        else:
            self.by_name[queue.vhost, queue.name] = queue
        self._add_sender(queue)

    def _add_sender(self, queue: Queue) -> None:
        target = queue.settings.dead_letter_queue
        if target is not None:
            self.senders.setdefault((queue.vhost, target), set()).add(queue.number)

    def _drop_sender(self, queue: Queue) -> None:
        target = queue.settings.dead_letter_queue
        if target is not None:
            senders = self.senders[queue.vhost, target]
            senders.remove(queue.number)
            if not senders:
                del self.senders[queue.vhost, target]

    def _queue_deleted(self, e: QueueDeleted) -> None:
        queue = self.queues[e.queue]
        self._purge(queue, self.table.next_seq)
        for seq in [*islice(self.table.find(queue.number, LEASED), queue.leased), *queue.dead]:
            self.leave(queue, seq)
            self.forget(seq)
        if queue.arriving is None:
            self.topology.queue_deleted(queue)
        self._drop_queue(queue)

    def _drop_queue(self, queue: Queue) -> None:
        self.keys.queue_deleted(queue.number)
        self.dedup_count -= len(queue.dedup)
        self._drop_sender(queue)
        del self.queues[queue.number]
        if queue.arriving is not None:
            del self.arriving[queue.arriving]
        else:
            del self.by_name[queue.vhost, queue.name]

    def _queue_departed(self, e: QueueDeparted) -> None:
        queue = self.queues[e.queue]
        self.topology.queue_departed(queue, e.target)
        self._drop_queue(queue)
        self.forwards[e.queue] = e.target
        if queue.dead_elsewhere:
            self.count_origin(queue_id(self.partition, e.queue), queue.dead_elsewhere)

    def _queue_told(self, e: QueueTold) -> None:
        queue, brought = self.queues[e.queue], msgspec.msgpack.decode(e.document, type=QueueBaggage)
        for at, total in enumerate(brought.totals[: len(queue.totals)]):
            queue.totals[at] += total
        queue.rates = brought.rates or queue.rates
        if brought.dedups and not queue.dedup:
            self.deadlines.add(brought.dedups[0][2] + queue.settings.dedup_window_ms, DEDUP, queue.number, ())
        before = len(queue.dedup)
        queue.dedup.update((key, (message, at_ms)) for key, message, at_ms in brought.dedups)
        self.dedup_count += len(queue.dedup) - before
        for group in [queue.groups[name] for name in brought.turns if name in queue.groups]:
            group.turn, group.offered = self.table.next_seq, 0
            queue.offer(group, self.table)

    def _queue_purged(self, e: QueuePurged) -> None:
        queue = self.queues[e.queue]
        queue.totals[q_.PURGED] += self._purge(queue, e.before_seq)
        if e.forgets_dedups:
            self.dedup_count -= len(queue.dedup)
            queue.dedup.clear()

    def _purge(self, queue: Queue, before_seq: int) -> int:
        """What waits below a number goes. It is taken off the front of what is in order, so that several purges over
        rising numbers cost no more than one."""
        waited = queue.ready + queue.delayed
        for lane in queue.lanes.values():
            while 0 < (seq := lane.peek(self.table)) < before_seq:
                self._purge_from(queue, seq, before_seq)
        tenants = queue.tenants
        for priority in list(tenants.ready) if tenants is not None else ():
            while (head := tenants.first(priority, self.table)) is not None and head[0] < before_seq:  # type: ignore[union-attr]
                self._purge_from(queue, head[0], before_seq)
        # All that is ready below the number now has a group.
        for state, count in ((READY, sum(queue.grouped_ready.values())), (DELAYED, queue.delayed)):
            for seq in list(islice(self.table.find(queue.number, state, upto=before_seq - 1), count)):
                if seq < before_seq:
                    self.leave(queue, seq)
                    self.forget(seq)
        return waited - queue.ready - queue.delayed

    def _purge_from(self, queue: Queue, seq: int, before_seq: int) -> None:
        """The next ready message of a lane goes, and with it its slab, if that holds nothing but messages like it."""
        number = seq >> SLAB_BITS
        slab = self.table.slabs[number]
        flags = self.table.goes_whole(number, queue.number) if slab.live == SLAB_ROWS else None
        if flags is None or (number + 1) << SLAB_BITS > before_seq:
            self.leave(queue, seq)
            self.forget(seq)
            return
        self.table.free_slab(number)
        first = number << SLAB_BITS
        queue.ready -= SLAB_ROWS
        queue.bytes_waiting -= sum(slab.size)
        if flags:
            for (tenant, priority), count in Counter(zip(slab.tenant, slab.priority, strict=True)).items():
                _tenants(queue).forget_ready(tenant, priority, count, first, self.table)
            if not _tenants(queue).by_number:
                queue.tenants = None
        else:
            for priority, count in Counter(slab.priority).items():
                lane = queue.lanes[priority]
                lane.count -= count
                lane.skip(first, SLAB_ROWS, self.table)
                if not lane.count:
                    queue.bitmap &= ~(1 << priority)
        extent = min(slab.location) >> 32
        if max(slab.location) >> 32 == extent:
            self._extent_loses(extent, SLAB_ROWS)
        else:
            for extent, count in Counter(location >> 32 for location in slab.location).items():
                self._extent_loses(extent, count)

    # Exchanges and bindings

    def _exchange_put(self, e: ExchangePut) -> None:
        self.topology.put(*msgspec.msgpack.decode(e.document, type=tuple[str, str, ExchangeSettings]), e.at_ms)

    def _exchange_deleted(self, e: ExchangeDeleted) -> None:
        self.topology.delete(*msgspec.msgpack.decode(e.document, type=tuple[str, str]))

    def _bound(self, e: Bound) -> None:
        self.topology.bind(*decoded_binding(e))

    def _unbound(self, e: Unbound) -> None:
        vhost, binding, _ = decoded_binding(e)
        self.topology.unbind(vhost, binding)

    # The life of messages

    def _published(self, e: Published) -> None:
        count = len(e.sizes)
        first = e.first_seq
        table = self.table
        if first != table.next_seq:
            raise AssertionError(f"published {first}, but {table.next_seq} is next")
        if count == 1:
            locations: Sequence[int] = e.locations or (e.location,)
            total = e.sizes[0]
        elif e.locations:
            locations, total = e.locations, sum(e.sizes)
        else:
            locations = places(e.sizes, e.location)
            total = locations[-1] + e.sizes[-1] - e.location
        numbers = array("I", chain.from_iterable(starmap(repeat, e.queues or ((e.queue, count),))))
        table.append(locations, e.sizes, e.at_ms, numbers, e.priorities, READY)
        extent = locations[0] >> 32  # of all: an event is in one commit
        self.extents[extent] = self.extents.get(extent, 0) + count
        is_plain = not (e.groups or e.tenants or any(e.visible_at))
        expires = any(e.expires_at)
        second, at = e.at_ms // 1000, 0
        for number, n in e.queues or ((e.queue, count),):
            queue = self.queues[number]
            end = at + n
            queue.bytes_waiting += total if n == count else sum(e.sizes[at:end])
            queue.count(q_.PUBLISHED, second, n)
            if not queue.retention_armed_ms:
                self.arm_retention(queue, queue.keeps_until(e.at_ms))
            if e.dedups:
                self._remember_dedups(queue, e, at, end)
            if is_plain:
                queue.append(first + at, e.priorities if n == count else e.priorities[at:end])
            else:
                self._place_each(queue, e, at, end)
            if expires:
                self._arm_times_to_live(queue, e, at, end)
            at = end

    def _arm_times_to_live(self, queue: Queue, e: Published, at: int, end: int) -> None:
        """One reminder for all that expire at about the same time."""
        for expires_ms, same in groupby(e.expires_at[at:end]):
            first, at = e.first_seq + at, at + len(list(same))
            if expires_ms:
                seqs = range(first, e.first_seq + at)
                self.deadlines.add(coarse(expires_ms, e.at_ms), TTL, queue.number, seqs)

    def _place_each(self, queue: Queue, e: Published, at: int, end: int) -> None:
        for i in range(at, end):
            priority, visible_ms, seq = e.priorities[i], e.visible_at[i], e.first_seq + i
            slab = self.table.owned(seq)
            name = e.groups.get(i)
            if name is not None:
                self.join_group(queue, slab, seq, name)
            elif i in e.tenants:
                self.join_tenant(queue, slab, seq, e.tenants[i])
            if visible_ms > e.at_ms:
                slab.set_times(seq & SLAB_MASK, visible_ms, e.at_ms)
                slab.flags[seq & SLAB_MASK] |= SCHEDULED | NAMED_TIME if i in e.named_times else SCHEDULED
                self.delay(queue, slab, seq, visible_ms)
            else:
                self.make_ready(queue, slab, seq, priority, fresh=True)

    def join_group(self, queue: Queue, slab: Slab, seq: int, name: str) -> None:
        slab.flags[seq & SLAB_MASK] |= GROUPED
        group = queue.groups.get(name)
        if group is None:
            group = queue.groups[name] = Group(name)
        group.members[seq] = None
        queue.group_of[seq] = group

    def join_tenant(self, queue: Queue, slab: Slab, seq: int, name: str) -> None:
        slab.flags[seq & SLAB_MASK] |= TENANTED
        if not slab.tenant:
            slab.widen_tenants()
        if queue.tenants is None:
            queue.tenants = Tenants()
        slab.tenant[seq & SLAB_MASK] = queue.tenants.join(name).number

    def _remember_dedups(self, queue: Queue, e: Published, at: int, end: int) -> None:
        window_ms = queue.settings.dedup_window_ms
        found = {i: text for i, text in e.dedups.items() if at <= i < end}
        if found and not queue.dedup:
            self.deadlines.add(e.at_ms + window_ms, DEDUP, queue.number, ())
        before = len(queue.dedup)
        for i, dedup_id in found.items():
            key = dedup_key(dedup_id)
            queue.dedup.pop(key, None)
            queue.dedup[key] = (message_id(e.at_ms, self.tag, e.first_seq + i), e.at_ms)
        self.dedup_count += len(queue.dedup) - before

    def _leased(self, e: Leased) -> None:
        seqs, receives = e.seqs, e.receives
        count = len(seqs)
        is_plain = self._are_plain(seqs, READY)
        sizes, priorities = self._lease_runs(e) if is_plain else (array("I"), bytearray())
        is_first = receives.count(1) == count
        second, at = e.at_ms // 1000, 0
        for number, n in e.queues or ((e.queue, count),):
            queue = self.queues[number]
            end = at + n
            if is_plain:
                queue.bytes_waiting -= sum(sizes[at:end])
                queue.take(seqs[at:end], priorities[at:end], self.table)
            else:
                for i in range(at, end):
                    self._lease_one(queue, seqs[i], receives[i], e.first_lease + i, e.deadline_ms)
            queue.leased += n
            queue.count(q_.DELIVERED, second, n)
            if not is_first:
                queue.totals[q_.REDELIVERED] += n - receives[at:end].count(1)
            at = end
        if not e.first_lease & SECRET_LEASE:
            self.next_lease = max(self.next_lease, e.first_lease + count & ~SESSION_LEASE)
        if e.consumer:
            self._note_consumer(seqs, e.consumer)
        self.deadlines.add(e.deadline_ms, LEASE, 0, seqs)

    def _note_consumer(self, seqs: Sequence[int], consumer: str) -> None:
        """Who holds these, which have just been leased."""
        self.consumers.update(dict.fromkeys(seqs, consumer))
        for first, count in runs(seqs):
            flags, i = self.table.slabs[first >> SLAB_BITS].flags, first & SLAB_MASK
            if flags.count(0, i, i + count) == count:
                flags[i : i + count] = bytes((HAS_CONSUMER,)) * count
            else:
                flags[i : i + count] = bytes([flag | HAS_CONSUMER for flag in flags[i : i + count]])

    def _are_plain(self, seqs: Sequence[int], state: int) -> bool:
        """Whether all of these are in a state, and nothing is to be known of them beside their rows."""
        for first, count in runs(seqs):
            slab, i = self.table.slabs[first >> SLAB_BITS], first & SLAB_MASK
            j = i + count
            if slab.state.count(state, i, j) != count or slab.flags.count(0, i, j) != count:
                return False
        return True

    def _lease_runs(self, e: Leased) -> tuple[array[int], bytearray]:
        """Write leases into the rows of messages that are ready and plain; their sizes and priorities."""
        sizes, priorities = array("I"), bytearray()
        done = 0
        for first, n in runs(e.seqs):
            slab, i = self.table.owned(first), first & SLAB_MASK
            if not slab.lease:
                slab.widen()
            lease, j = e.first_lease + done, i + n
            slab.state[i:j] = bytes((LEASED,)) * n
            slab.receives[i:j] = column("I", e.receives[done : done + n])
            slab.lease[i:j] = as_array(range(lease, lease + n))
            slab.due_ms[i:j] = array("Q", (e.deadline_ms,)) * n
            sizes += slab.size[i:j]
            priorities += slab.priority[i:j]
            done += n
        return sizes, priorities

    def _lease_one(self, queue: Queue, seq: int, receives: int, lease: int, deadline_ms: int) -> None:
        self.leave(queue, seq)
        slab, i = self.table.owned(seq), seq & SLAB_MASK
        if not slab.lease:
            slab.widen()
        if self.carried:
            self.forget_carried(slab, i)
        if slab.flags[i] & GROUPED:
            group = queue.group_of[seq]
            if group.offered == seq:
                group.offered = 0
        elif slab.flags[i] & TENANTED:
            _tenants(queue).lease(slab.tenant[i])
        slab.state[i] = LEASED
        slab.receives[i] = receives
        slab.lease[i] = lease
        slab.due_ms[i] = deadline_ms

    def _acked(self, e: Acked) -> None:
        for first, count in runs(e.seqs):
            if not self._ack_run(first, count):
                for seq in range(first, first + count):
                    if not self._ack_run(seq, 1):
                        slab, i = self.table.owned(seq), seq & SLAB_MASK
                        self._end_lease(self.queues[slab.queue[i]], slab, seq)
                        self.forget(seq)
        second = e.at_ms // 1000
        for number, n in e.queues or ((e.queue, len(e.seqs)),):
            queue = self.queues[number]
            queue.leased -= n
            queue.count(q_.ACKED, second, n)

    def _ack_run(self, first: int, count: int) -> bool:
        """Forget leased neighbours of one slab at once if they are plain, but for who holds them, and their records
        stand together."""
        number, i = first >> SLAB_BITS, first & SLAB_MASK
        slab, j = self.table.slabs[number], i + count
        locations = slab.location[i:j]
        extent = min(locations) >> 32
        flags = slab.flags[i]
        if (
            flags & ~HAS_CONSUMER
            or slab.flags.count(flags, i, j) != count
            or slab.state.count(LEASED, i, j) != count
            or max(locations) >> 32 != extent
        ):
            return False
        if slab.frozen:
            slab = self.table.owned(first)
        if flags:
            slab.flags[i:j] = bytes(count)
            for seq in range(first, first + count):
                del self.consumers[seq]
        slab.state[i:j] = bytes(count)
        slab.live -= count
        if not slab.live and len(slab.state) == SLAB_ROWS:
            del self.table.slabs[number]
        self._extent_loses(extent, count)
        return True

    def _released(self, e: Released) -> None:
        queue = self.queues[e.queue]
        for seq, due_ms in zip(e.seqs, e.due_ms, strict=True):
            self.leave(queue, seq)
            slab = self.table.owned(seq)
            group = queue.group_of[seq] if slab.flags[seq & SLAB_MASK] & GROUPED else None
            if group is not None:
                group.turn, group.offered = self.table.next_seq, 0
            if due_ms > e.at_ms:
                self.delay(queue, slab, seq, due_ms)
            else:
                self.make_ready(queue, slab, seq, slab.priority[seq & SLAB_MASK])
            if group is not None:
                queue.offer(group, self.table)
            queue.bytes_waiting += slab.size[seq & SLAB_MASK]
        queue.totals[q_.LEASE_EXPIRED if e.cause == Cause.LEASE_EXPIRED else q_.RELEASED] += len(e.seqs)

    def _extended(self, e: Extended) -> None:
        for seq in e.seqs:
            slab = self.table.owned(seq)
            if slab.state[seq & SLAB_MASK] != LEASED:
                slab = self._lease_on(seq)
            slab.due_ms[seq & SLAB_MASK] = e.deadline_ms
        self.deadlines.add(e.deadline_ms, LEASE, 0, e.seqs)

    def _lease_on(self, seq: int) -> Slab:
        """A message that came back and waits is leased again, by the lease it had: nobody received it once more."""
        slab, i = self.table.owned(seq), seq & SLAB_MASK
        queue = self.queues[slab.queue[i]]
        self.leave(queue, seq)
        slab.state[i] = LEASED
        queue.leased += 1
        if slab.flags[i] & GROUPED and queue.group_of[seq].offered == seq:
            queue.group_of[seq].offered = 0
        elif slab.flags[i] & TENANTED:
            _tenants(queue).lease(slab.tenant[i])
        return slab

    def _reserved(self, e: Reserved) -> None:
        for lease, seq in enumerate(e.seqs, e.first_lease):
            slab = self.table.owned(seq)
            known = self.carried.pop(slab.lease[seq & SLAB_MASK], None)
            if known is not None:
                self.carried[lease] = Carried(known.given_seq, known.seq, 0)
            slab.lease[seq & SLAB_MASK], slab.due_ms[seq & SLAB_MASK] = lease, e.deadline_ms
        self.deadlines.add(e.deadline_ms, LEASE, 0, e.seqs)

    def _relocated(self, e: Relocated) -> None:
        locations = e.locations or places(e.sizes, e.location)
        extent = locations[0] >> 32
        for seq, location in zip(e.seqs, locations, strict=True):
            if seq in self.table:  # it may have been settled while its record was copied
                slab = self.table.owned(seq)
                self._extent_loses(slab.location[seq & SLAB_MASK] >> 32, 1)
                slab.location[seq & SLAB_MASK] = location
                self.extents[extent] = self.extents.get(extent, 0) + 1

    def ripen(self, queue: Queue, seqs: Sequence[int], now_ms: int) -> None:
        """Delayed messages whose time has come are ready. The clock says so, hence no event does."""
        for seq in seqs:
            if self.table.state(seq) == DELAYED:
                slab = self.table.owned(seq)
                i = seq & SLAB_MASK
                if slab.queue[i] == queue.number and slab.due_ms[i] <= now_ms:
                    queue.delayed -= 1
                    slab.flags[i] &= ~NAMED_TIME
                    self.make_ready(queue, slab, seq, slab.priority[i])
                    self.ripened.add(queue.number)

    # The steps they share

    def make_ready(self, queue: Queue, slab: Slab, seq: int, priority: int, *, fresh: bool = False) -> None:
        i = seq & SLAB_MASK
        slab.state[i] = READY
        queue.ready += 1
        if not fresh:  # while it was away, nobody looked at its age
            until_ms = queue.keeps_until(slab.since_ms[i])
            if until_ms < queue.retention_armed_ms or not queue.retention_armed_ms:
                self.arm_retention(queue, until_ms)
        if slab.flags[i] & GROUPED:
            queue.grouped_ready[priority] = queue.grouped_ready.get(priority, 0) + 1
            queue.offer(queue.group_of[seq], self.table)
            return
        if slab.flags[i] & TENANTED:
            _tenants(queue).add(slab.tenant[i], seq, priority, fresh=fresh)
            return
        lane = queue.lane(priority)
        if fresh:
            lane.append(seq)
        else:
            lane.give_back(seq)
        lane.count += 1
        queue.bitmap |= 1 << priority

    def delay(self, queue: Queue, slab: Slab, seq: int, due_ms: int) -> None:
        if not slab.due_ms:
            slab.widen()
        slab.state[seq & SLAB_MASK] = DELAYED
        slab.due_ms[seq & SLAB_MASK] = due_ms
        queue.delayed += 1
        if queue.delayed_order is not None:
            heappush(queue.delayed_order, (slab.priority[seq & SLAB_MASK], seq))
        self.deadlines.add(due_ms, DELAY, queue.number, (seq,))

    def leave(self, queue: Queue, seq: int) -> None:
        """Take a message out of the state it is in, counts included; the caller puts it into the next one."""
        slab = self.table.owned(seq)
        i = seq & SLAB_MASK
        state, flags, priority = slab.state[i], slab.flags[i], slab.priority[i]
        if state == LEASED:
            queue.leased -= 1
            self._end_lease(queue, slab, seq)
            return
        if state == DEAD:
            del queue.dead[seq]
            return
        queue.bytes_waiting -= slab.size[i]
        if state == DELAYED:
            queue.delayed -= 1
            slab.flags[i] = flags & ~NAMED_TIME
            return
        queue.ready -= 1
        if flags & GROUPED:
            queue.grouped_ready[priority] -= 1
            if not queue.grouped_ready[priority]:
                del queue.grouped_ready[priority]
            return
        if flags & TENANTED:
            slab.state[i] = FREE  # so that its lane does not see it as ready
            _tenants(queue).remove(slab.tenant[i], seq, priority, self.table)
            return
        lane = queue.lanes[priority]
        lane.count -= 1
        lane.skip(seq, 1, self.table)
        if not lane.count:
            queue.bitmap &= ~(1 << priority)
        else:
            lane.tidy(self.table)

    def _end_lease(self, queue: Queue, slab: Slab, seq: int) -> None:
        """What others know of a lease that ends; the count of the queue is left to the caller."""
        i = seq & SLAB_MASK
        flags = slab.flags[i]
        if flags & HAS_CONSUMER:
            del self.consumers[seq]
            slab.flags[i] = flags & ~HAS_CONSUMER
        if self.carried and slab.lease[i] & SESSION_LEASE:
            self.forget_carried(slab, i)
        if flags & TENANTED:
            _tenants(queue).unlease(slab.tenant[i])

    def forget_carried(self, slab: Slab, i: int) -> None:
        """Nobody can settle by the last lease of a message any more: it is leased anew, or gone, or dead."""
        if slab.lease:
            self.carried.pop(slab.lease[i], None)

    def leave_group(self, queue: Queue, slab: Slab, seq: int) -> None:
        i = seq & SLAB_MASK
        if not slab.flags[i] & GROUPED:
            return
        slab.flags[i] &= ~GROUPED
        group = queue.group_of.pop(seq)
        del group.members[seq]
        if group.offered == seq:
            group.offered = 0  # the next head may be delayed: then nothing of the group is on offer
        if group.members:
            queue.offer(group, self.table)
        else:
            del queue.groups[group.name]

    def leave_tenant(self, queue: Queue, slab: Slab, seq: int) -> None:
        i = seq & SLAB_MASK
        if slab.flags[i] & TENANTED:
            slab.flags[i] &= ~TENANTED
            tenants = _tenants(queue)
            tenants.part(slab.tenant[i])
            if not tenants.by_number:
                queue.tenants = None

    def forget(self, seq: int) -> None:
        """The end of a message that has already left its state."""
        slab = self.table.slabs[seq >> SLAB_BITS]
        i = seq & SLAB_MASK
        flags = slab.flags[i]
        if flags & GROUPED:
            self.leave_group(self.queues[slab.queue[i]], self.table.owned(seq), seq)
        elif flags & TENANTED:
            self.leave_tenant(self.queues[slab.queue[i]], self.table.owned(seq), seq)
        if flags & STORIED:
            story = self.stories.pop(seq)
            graves.forget_number(self, story.identity, seq)
            self.count_origin(story.origin, -1)
        if self.carried:
            self.forget_carried(slab, i)
        self._extent_loses(slab.location[i] >> 32, 1)
        self.table.free(seq)

    def _extent_loses(self, extent: int, count: int) -> None:
        left = self.extents[extent] - count
        if left:
            self.extents[extent] = left
        else:
            del self.extents[extent]

    def arm_retention(self, queue: Queue, at_ms: int) -> None:
        queue.retention_armed_ms = at_ms
        self.deadlines.add(at_ms, RETENTION, queue.number, ())

    def _still_due(self, at_ms: int, kind: int, number: int, seqs: array[int]) -> array[int] | None:
        """Those of the reminders of a time that will find something to do, None if there are none."""
        if kind == KEYS:
            return seqs
        if kind == LEASE:
            return self._still_waiting(seqs, LEASED, at_ms) or None
        queue = self.queues.get(number)
        if queue is None or (kind == RETENTION and queue.retention_armed_ms != at_ms):
            return None
        if kind in (RETENTION, DEDUP):
            return seqs
        if kind == TTL:
            return self._still_in_the_table(seqs) or None
        return self._still_waiting(seqs, DELAYED, at_ms) or None

    def _still_waiting(self, seqs: array[int], state: int, at_ms: int) -> array[int]:
        """Those that are still leased, or delayed, until this time."""
        kept = array("Q")
        for seq in seqs:
            slab, i = self.table.slabs.get(seq >> SLAB_BITS), seq & SLAB_MASK
            if slab is not None and slab.state[i] == state and slab.due_ms[i] == at_ms:
                kept.append(seq)
        return kept

    def _still_in_the_table(self, seqs: array[int]) -> array[int]:
        """All but those whose whole slab has gone, which is quick to tell: they stand in the order of publishing."""
        kept = array("Q")
        i = 0
        while i < len(seqs):
            number = seqs[i] >> SLAB_BITS
            j = bisect_left(seqs, (number + 1) << SLAB_BITS, i)
            if number in self.table.slabs:
                kept.extend(seqs[i:j])
            i = j
        return kept

    # Ids of queues, which may lie in other partitions

    def own(self, queue: int) -> Queue | None:
        """The queue of an id if it is of this partition."""
        return self.queues.get(local_number(queue)) if partition_of(queue) == self.partition else None

    def whereabouts(self, queue: int) -> int:
        """The id that a queue has now, as far as the history of this partition can tell."""
        while partition_of(queue) == self.partition and local_number(queue) in self.forwards:
            queue = self.forwards[local_number(queue)]
        return queue

    def may_be_there(self, queue: int) -> bool:
        """Whether a queue is there, as far as the history of this partition can tell."""
        queue = self.whereabouts(queue)
        return queue != 0 and (partition_of(queue) != self.partition or local_number(queue) in self.queues)

    def count_origin(self, queue: int, count: int) -> None:
        """So many more dead letters of a queue (0: of none) are kept elsewhere than in it."""
        if not queue:
            return
        queue = self.whereabouts(queue)
        if partition_of(queue) == self.partition:
            origin = self.queues.get(local_number(queue))
            if origin is not None:
                origin.dead_elsewhere += count
            return
        total = self.dead_of_others.get(queue, 0) + count
        if total:
            self.dead_of_others[queue] = total
        else:
            del self.dead_of_others[queue]

    def _received(self, e: Received) -> None:
        self.received[e.sender] = e.number

    # What other layers keep here

    def _key_remembered(self, e: KeyRemembered) -> None:
        key, fingerprint, ids = msgspec.msgpack.decode(e.document)
        if e.forget_ms:
            self.keys.forget_until(e.forget_ms)
        if not self.keys:
            self.deadlines.add(e.expires_ms, KEYS, 0, ())
        self.keys.remember(e.queue, key, Remembered(fingerprint, ids, e.expires_ms))

    def _document_put(self, e: DocumentPut) -> None:
        self.documents.setdefault(e.collection, {})[e.key] = e.document

    def _document_removed(self, e: DocumentRemoved) -> None:
        self.documents.get(e.collection, {}).pop(e.key, None)


def _tenants(queue: Queue) -> Tenants:
    """Those of a queue that holds a message with a tenant."""
    assert queue.tenants is not None, f"queue {queue.name!r} knows no tenants"
    return queue.tenants
