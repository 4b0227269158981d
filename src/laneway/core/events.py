"""The event vocabulary: everything that ever happens to a partition.

An event covers one or more messages (batch first), mostly of one queue: those that are frequent may be of several, so
that a thousand thin queues cost one event. Its stored form is in rows.py.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from enum import IntEnum
from typing import ClassVar

import msgspec

from laneway.core.message import encode_record


class Kind(IntEnum):
    OPENED = 1
    QUEUE_PUT = 2
    QUEUE_DELETED = 3
    QUEUE_PURGED = 4
    QUEUE_DEPARTED = 5
    QUEUE_TOLD = 6
    PUBLISHED = 10
    LEASED = 11
    ACKED = 12
    RELEASED = 13
    EXTENDED = 14
    DEAD_LETTERED = 15
    MOVED = 16
    REMOVED = 17
    RELOCATED = 18
    COPIED = 19
    KEY_REMEMBERED = 20
    DOCUMENT_PUT = 21
    DOCUMENT_REMOVED = 22
    ARRIVED = 24
    TOLD = 25
    RECEIVED = 26
    RESERVED = 27
    RESUMED = 28
    EXCHANGE_PUT = 30
    EXCHANGE_DELETED = 31
    BOUND = 32
    UNBOUND = 33
    CLOCK_SET = 40


class Cause(IntEnum):
    NONE = 0
    RELEASED = 1  # by its consumer
    LEASE_EXPIRED = 2
    MAX_RECEIVES = 3
    EXPIRED = 4  # time to live
    REJECTED = 5
    OVERFLOW = 6
    RETENTION = 7
    DELETED = 8  # by an administrator
    REDRIVEN = 9
    DEPARTED = 10  # from an outbox: the partition that it was for has it
    RETURNED = 11  # from another partition, where the queue it was bound for is gone
    REBALANCED = 12  # its whole queue goes to another partition, and it goes on there as it was


#: What an event of several queues says of them, in the order of its messages: (queue, how many); its `queue` is the
#: first of them. Stored it is an event for each, so that replaying one sees a single queue. Empty: all are of `queue`.
Queues = Sequence[tuple[int, int]]


class Births(msgspec.Struct, gc=False):
    """Which messages an event is about, for whoever reads the history without the state: with their numbers it makes
    their ids. Filled in when an event is staged (births.py); a replay has no use for it, and leaves it out."""

    enqueued_ms: Sequence[int]  # when each was first published, 0: not known
    numbers: dict[int, int]  # that its record was written under, by index, of the few that have another now
    tags: dict[int, int] = {}  # of the store it was born in, by index, of those that came from another partition


class Opened(msgspec.Struct, gc=False):
    """The store was opened for writing; its epoch fences lease ids and, in a cluster, older leaders."""

    kind: ClassVar[Kind] = Kind.OPENED
    at_ms: int
    epoch: int
    tag: int


class QueuePut(msgspec.Struct, gc=False):
    kind: ClassVar[Kind] = Kind.QUEUE_PUT
    queue: int
    at_ms: int
    document: bytes  # JSON {"vhost", "name", "settings"}


class QueueDeleted(msgspec.Struct, gc=False):
    kind: ClassVar[Kind] = Kind.QUEUE_DELETED
    queue: int
    at_ms: int
    document: bytes = b""  # as in QueuePut; none in a history of before


class QueuePurged(msgspec.Struct, gc=False):
    """All that waits (ready and delayed) below `before_seq` is gone; leased and dead ones stay."""

    kind: ClassVar[Kind] = Kind.QUEUE_PURGED
    queue: int
    at_ms: int
    before_seq: int
    forgets_dedups: bool = False  # and with it all deduplication ids


class QueueDeparted(msgspec.Struct, gc=False):
    """All that the queue had is in the outbox of another partition, where it has the id `target` from now on."""

    kind: ClassVar[Kind] = Kind.QUEUE_DEPARTED
    queue: int
    at_ms: int
    target: int
    document: bytes  # as in QueuePut


class QueueTold(msgspec.Struct, gc=False):
    """What a queue brought from another partition beside its messages. There may be several; they add up."""

    kind: ClassVar[Kind] = Kind.QUEUE_TOLD
    queue: int
    at_ms: int
    document: bytes  # MessagePack: stories.QueueBaggage


class Published(msgspec.Struct, gc=False):
    """Messages first_seq … in one queue. `groups`, `dedups` and `tenants` hold the few that have one, by index; tenants
    only count in a fair queue.

    Messages that were published together share a record if they are one message in several queues. `locations` says so,
    and is empty if none do. Until the event is staged it holds 0 for a record that the event brings, ~n for that of the
    event's message n, and the location of one that an earlier event of the commit brought; afterwards, all locations.
    """

    kind: ClassVar[Kind] = Kind.PUBLISHED
    queue: int
    at_ms: int
    first_seq: int
    priorities: Sequence[int]
    visible_at: Sequence[int]  # 0: at once
    expires_at: Sequence[int]  # 0: never
    sizes: Sequence[int]  # of the records
    props: Sequence[bytes]  # of which the records are made, with the bodies; empty when replayed
    bodies: Sequence[bytes]
    groups: dict[int, str]
    dedups: dict[int, str]
    location: int = 0  # of the first record that it brings; the others follow it
    tenants: dict[int, str] = {}
    queues: Queues = ()
    named_times: Set[int] = frozenset()  # those that are visible at a time of day that their publisher named, by index
    locations: Sequence[int] = ()

    @property
    def records(self) -> list[bytes]:
        """The messages as they are stored."""
        numbered = enumerate(zip(self.props, self.bodies, strict=True), self.first_seq)
        return [encode_record(seq, self.at_ms, props, body) for seq, (props, body) in numbered]


class Leased(msgspec.Struct, gc=False):
    """lease ids are first_lease, first_lease + 1, …"""

    kind: ClassVar[Kind] = Kind.LEASED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    receives: Sequence[int]
    first_lease: int
    deadline_ms: int
    consumer: str
    births: Births | None = None
    queues: Queues = ()

    def part(self, queue: int, at: int, end: int) -> Leased:
        """Those from `at` up to `end`, which are of this queue."""
        seqs, receives = self.seqs[at:end], self.receives[at:end]
        return Leased(queue, self.at_ms, seqs, receives, self.first_lease + at, self.deadline_ms, self.consumer)


class Acked(msgspec.Struct, gc=False):
    kind: ClassVar[Kind] = Kind.ACKED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    leases: Sequence[int]
    births: Births | None = None
    queues: Queues = ()


class Released(msgspec.Struct, gc=False):
    """Back to their place, at once (due 0) or when due."""

    kind: ClassVar[Kind] = Kind.RELEASED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    due_ms: Sequence[int]
    cause: Cause
    births: Births | None = None


class Extended(msgspec.Struct, gc=False):
    """The leases go on until then; also those that had run out, of messages that nobody has leased since."""

    kind: ClassVar[Kind] = Kind.EXTENDED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    deadline_ms: int
    births: Births | None = None


class Reserved(msgspec.Struct, gc=False):
    """Leases go on under other ids, first_lease, first_lease + 1, …, in no session's name: until what a transaction in
    another partition says of them arrives."""

    kind: ClassVar[Kind] = Kind.RESERVED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    first_lease: int
    deadline_ms: int
    births: Births | None = None


class DeadLettered(msgspec.Struct, gc=False):
    """Dead, and kept in the queue it died in."""

    kind: ClassVar[Kind] = Kind.DEAD_LETTERED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    cause: Cause
    detail: str = ""
    births: Births | None = None


class Moved(msgspec.Struct, gc=False):
    """To another queue, under new numbers first_seq …, in one step: dead-lettered there, or redriven (REDRIVEN)."""

    kind: ClassVar[Kind] = Kind.MOVED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    cause: Cause
    target: int
    first_seq: int
    detail: str = ""
    exchange: str | None = None  # that led to the target; None: there was none
    routing_key: str | None = None  # that they were given for it; None: they keep theirs
    #: That they were published with, if this queue took them at lower ones than the target may; empty: those they have.
    priorities: Sequence[int] = ()
    births: Births | None = None
    tenants: Sequence[str] = ()  # "": none; empty: nobody has one, or the target is not fair
    bound_for: int = 0  # if the target is an outbox: the id of the queue of another partition
    # Of REBALANCED, what the state does not say of each message; empty: nothing to be said of any.
    expires_at: Sequence[int] = ()
    holders: Sequence[int] = ()  # as Baggage.holder


class Copied(msgspec.Struct, gc=False):
    """As Moved, but they also stay where they are: dead letters that an exchange leads to several queues are copied
    to all but one, and then moved. So none is lost if only the first of these events happen. The record is shared."""

    kind: ClassVar[Kind] = Kind.COPIED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    cause: Cause
    target: int
    first_seq: int
    detail: str = ""
    exchange: str | None = None
    routing_key: str | None = None
    priorities: Sequence[int] = ()
    births: Births | None = None
    tenants: Sequence[str] = ()
    bound_for: int = 0


class Arrived(msgspec.Struct, gc=False):
    """A message that came from another partition. It keeps its id and has a record of its own here. What it brought
    beside is in the Told event behind this one. RETURNED: it is dead in the queue at once. REBALANCED: it is nowhere in
    the queue until the Resumed event behind this one, which says where."""

    kind: ClassVar[Kind] = Kind.ARRIVED
    queue: int
    at_ms: int
    seq: int
    cause: Cause
    sender: int  # the partition
    tag: int  # of the store it was born in
    number: int  # in its id
    enqueued_ms: int  # in its id: when it was first published
    priority: int  # that it was published with
    size: int  # of the record
    props: bytes  # of which the record is made, with the body; empty when replayed
    body: bytes
    group: str = ""
    tenant: str = ""  # "" also if the queue is not fair
    location: int = 0

    @property
    def record(self) -> bytes:
        return encode_record(self.number, self.enqueued_ms, self.props, self.body)


class Told(msgspec.Struct, gc=False):
    """The story that a message brought from another partition."""

    kind: ClassVar[Kind] = Kind.TOLD
    queue: int
    at_ms: int
    seq: int
    story: bytes  # MessagePack: stories.Story


class Resumed(msgspec.Struct, gc=False):
    """A message that came with its whole queue goes on as it was in the other partition."""

    kind: ClassVar[Kind] = Kind.RESUMED
    queue: int
    at_ms: int
    seq: int
    state: int  # table.READY, LEASED, DELAYED or DEAD
    receives: int
    lease: int  # 0: it is not leased
    due_ms: int  # deadline of the lease, end of the delay
    expires_ms: int  # 0: never
    story: bytes  # MessagePack: stories.Story, with the baggage


class Received(msgspec.Struct, gc=False):
    """Entries of another partition's outbox up to this number are done: by this commit, or before."""

    kind: ClassVar[Kind] = Kind.RECEIVED
    at_ms: int
    sender: int
    number: int


class Removed(msgspec.Struct, gc=False):
    """Gone for good without an ack. A dead letter that is not kept goes by the cause of its death."""

    kind: ClassVar[Kind] = Kind.REMOVED
    queue: int
    at_ms: int
    seqs: Sequence[int]
    cause: Cause
    detail: str = ""  # of a dead letter: why it was not kept
    births: Births | None = None


class Relocated(msgspec.Struct, gc=False):
    """The records were copied to a new place, so that the old one can be dropped. Nothing else changes."""

    kind: ClassVar[Kind] = Kind.RELOCATED
    at_ms: int
    seqs: Sequence[int]
    sizes: Sequence[int]  # of the record of each
    records: Sequence[bytes]  # each once; empty when replayed
    location: int = 0
    locations: Sequence[int] = ()  # as in Published
    births: Births | None = None


class KeyRemembered(msgspec.Struct, gc=False):
    """An idempotency key and what it was answered with. Older ones may have to go to make room for it."""

    kind: ClassVar[Kind] = Kind.KEY_REMEMBERED
    queue: int
    at_ms: int
    expires_ms: int
    document: bytes  # MessagePack [key, fingerprint, [message ids]]
    forget_ms: int = 0  # keys that expire by then are forgotten


class DocumentPut(msgspec.Struct, gc=False):
    """A small named document of another layer (accounts, tasks), kept here because the journal alone is durable."""

    kind: ClassVar[Kind] = Kind.DOCUMENT_PUT
    at_ms: int
    collection: str
    key: str
    document: bytes


class DocumentRemoved(msgspec.Struct, gc=False):
    kind: ClassVar[Kind] = Kind.DOCUMENT_REMOVED
    at_ms: int
    collection: str
    key: str


class ExchangePut(msgspec.Struct, gc=False):
    """An exchange was declared."""

    kind: ClassVar[Kind] = Kind.EXCHANGE_PUT
    at_ms: int
    document: bytes  # MessagePack [vhost, name, {settings}]


class ExchangeDeleted(msgspec.Struct, gc=False):
    """An exchange is gone, with all bindings from it and to it; so are auto-delete exchanges that this leaves without
    any binding, and those that a deleted queue leaves so."""

    kind: ClassVar[Kind] = Kind.EXCHANGE_DELETED
    at_ms: int
    document: bytes  # MessagePack [vhost, name]


class Bound(msgspec.Struct, gc=False):
    kind: ClassVar[Kind] = Kind.BOUND
    queue: int  # 0 if it leads to an exchange, or to a queue of another partition
    at_ms: int
    document: bytes  # MessagePack [vhost, {binding}], or [vhost, {binding}, id of the queue in another partition]


class Unbound(msgspec.Struct, gc=False):
    """A binding was removed, and its exchange with it if that was its last one and it is auto-delete."""

    kind: ClassVar[Kind] = Kind.UNBOUND
    queue: int
    at_ms: int
    document: bytes  # as in Bound


class ClockSet(msgspec.Struct, gc=False):
    """From here on times are told by a clock that says `at_ms` where the one before would say `was_ms`: if the two
    differ, the wall clock was set. Every start has one, with the uptime of the machine at this moment and which boot of
    it that is, so that the next start can tell."""

    kind: ClassVar[Kind] = Kind.CLOCK_SET
    at_ms: int
    was_ms: int
    uptime_ms: int
    boot: str


Event = (
    Opened
    | QueuePut
    | QueueDeleted
    | QueuePurged
    | QueueDeparted
    | QueueTold
    | Published
    | Leased
    | Acked
    | Released
    | Extended
    | Reserved
    | DeadLettered
    | Moved
    | Copied
    | Arrived
    | Told
    | Resumed
    | Received
    | Removed
    | Relocated
    | KeyRemembered
    | DocumentPut
    | DocumentRemoved
    | ExchangePut
    | ExchangeDeleted
    | Bound
    | Unbound
    | ClockSet
)
