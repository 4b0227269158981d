"""The outbox of a partition: what is on its way to others, and the values that travel (docs/decisions/0013).

For each other partition there is a hidden queue. A message in it is an entry, its number is the entry's, and its place
in the queue says which comes first. An entry is a parcel, which was published there, or a letter, which left a queue
for one of the other partition.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from laneway.core.events import Cause, QueuePut
from laneway.core.message import Messages, Properties, encode_props
from laneway.core.queue import Queue
from laneway.core.settings import QueueSettings
from laneway.core.state import HIDDEN, QueueDocument, State
from laneway.core.stories import Baggage, QueueBaggage, Story


class ParcelledSettlement(msgspec.Struct, frozen=True, array_like=True):
    """As interface.SettleHeld, of nobody's session: the leases are such as Reserve gives."""

    queue: int
    seqs: list[int]
    leases: list[int]
    action: str
    lease_ms: int | None = None


class MoveStep(msgspec.Struct, frozen=True, array_like=True):
    """What the partition that a queue goes to is to do beside taking its messages. `begin` makes the queue, under a
    name that nobody finds; its answer is the number that it has there. `tell` brings what it remembers. `end` gives it
    its name; `drop` forgets it, as it is gone. Each may come twice."""

    step: str  # begin, tell, end, drop
    number: int  # of the queue, at the sender
    queue: bytes = b""  # begin: a QueueDocument as JSON
    baggage: QueueBaggage = QueueBaggage()  # tell, end
    keys: list[tuple[str, bytes, list[str], int]] = []  # tell: idempotency keys, with when they expire
    owner: int = 0  # end: the session that has it for itself alone
    is_watched: bool = False  # end: it has consumers, who come as well
    gone: list[int] = []  # end: processes whose sessions have ended meanwhile


class Parcel(msgspec.Struct, frozen=True, array_like=True):
    """What of a Spread concerns one other partition. Queues have the numbers that they have there. In the journal it is
    MessagePack: fields are only ever added at the end."""

    targets: list[tuple[int, ...]]  # for each message its own
    bodies: list[bytes]
    props: list[bytes]
    priorities: list[int | None] | None = None
    ttls_ms: list[int | None] | None = None
    delays_ms: list[int | None] | None = None
    visible_at_ms: list[int | None] | None = None
    groups: dict[int, str] = {}
    dedup_ids: dict[int, str] = {}
    tenants: dict[int, str] = {}
    clamps: bool = False
    settlements: list[ParcelledSettlement] = []
    key: tuple[str, bytes] | None = None
    is_promised: bool = False
    move: MoveStep | None = None  # then there is nothing else

    def messages(self) -> Messages:
        return Messages(
            self.bodies,
            self.props,
            self.priorities,
            self.ttls_ms,
            self.delays_ms,
            self.visible_at_ms,
            self.groups,
            self.dedup_ids,
            self.tenants,
            clamps=self.clamps,
            is_promised=self.is_promised,
        )


def parcel(
    targets: list[tuple[int, ...]],
    messages: Messages,
    settlements: list[ParcelledSettlement],
    key: tuple[str, bytes] | None = None,
) -> Parcel:
    """What nobody refused of these messages: those that their maker found wrong stay behind."""
    m = messages
    return Parcel(
        targets,
        m.bodies,
        m.props,
        m.priorities,
        m.ttls_ms,
        m.delays_ms,
        m.visible_at_ms,
        m.groups,
        m.dedup_ids,
        m.tenants,
        m.clamps,
        settlements,
        key,
        m.is_promised,
    )


class Letter(msgspec.Struct, frozen=True, gc=False):
    """A message that left a queue of the sender for one of the receiver. It keeps its id."""

    target: int  # number of the queue there
    cause: Cause
    detail: str
    at_ms: int  # when it left
    tag: int  # of the store it was born in, for its id
    number: int  # in its id
    enqueued_ms: int  # in its id: when it was first published
    priority: int  # that it was published with
    props: bytes
    body: bytes
    story: Story
    receives: int = 0
    group: str = ""
    tenant: str = ""
    visible_at: int = 0
    expires_at: int = 0
    left: int = 0  # id of the queue that it left; 0: it comes back, as the queue that it was for is gone
    baggage: Baggage | None = None  # it comes with its whole queue


class OutboxEntry(msgspec.Struct, frozen=True, gc=False):
    number: int  # rises from one entry of a sender to the next one for the same receiver
    what: Parcel | Letter


_decode_parcel = msgspec.msgpack.Decoder(Parcel).decode
#: Of the messages that are parcels, for whoever reads the history.
PARCEL_PROPS = encode_props(Properties(content_type="application/vnd.laneway.parcel+msgpack"))


def encoded_parcel(given: Parcel) -> bytes:
    return msgspec.msgpack.encode(given)


def decoded_parcel(body: bytes | memoryview) -> Parcel:
    return _decode_parcel(body)


# The hidden queues

#: Nothing in it dies, expires or is refused, and all have one priority: entries leave in the order of their numbers.
OUTBOX_SETTINGS = QueueSettings(
    max_priority=0,
    default_priority=0,
    retention_ms=None,
    max_receives=None,
    dedup_window_ms=0,
    max_message_bytes=256 * 1024 * 1024,
)


def outbox_name(partition: int) -> str:
    return f"partition {partition}"


def put_outbox(state: State, partition: int, now_ms: int) -> Iterator[QueuePut]:
    """Make the hidden queue of what goes to another partition, unless there is one: afterwards it is in
    state.outboxes."""
    assert partition != state.partition, "a partition has no outbox for itself"
    if partition not in state.outboxes:
        document = msgspec.json.encode(QueueDocument(HIDDEN, outbox_name(partition), OUTBOX_SETTINGS))
        yield QueuePut(state.next_queue, now_ms, document)


def entries_of(state: State, outbox: Queue) -> Iterator[int]:
    """The numbers of the entries that are in an outbox, in order."""
    lane = outbox.lanes.get(0)
    return lane.after(0, state.table) if lane is not None else iter(())
