"""The interface of the broker: what front ends may ask of it, as values that could cross a socket.

A front end holds a `Broker` and nothing behind it. It looks names up in the broker's `Topology`, a read model that
every node has and that answers at once; everything else is a request. A request is a value and so is its answer; what
cannot be done is answered with a LanewayError. An answer that promises something leaves when that is durable.

    send(request, done)   done(answer) is called later, or at once: for what is frequent
    ask(request)          the same, to be awaited; raises the error: for what is rare
    open_session(push)    a session is a connection as the broker sees it: a number, and a way to push lists of values

Requests of one session are carried out in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from laneway.broker.values import (
    Addressed,
    Binding,
    BrokerLimits,
    DeadLetterFilter,
    ExchangeInfo,
    ExchangeSettings,
    PeekQuery,
    Place,
    QueueInfo,
    QueueMove,
    RedriveRequest,
    Route,
    Target,
)
from laneway.core.deliveries import Deliveries
from laneway.core.message import Messages, Settlement
from laneway.core.outbox import OutboxEntry
from laneway.core.settings import QueueSettings

QueueId = int  # names a queue and the partition it lives in; never used again after the queue is gone
SessionId = int
Targets = tuple[QueueId, ...]  # the queues that a message goes to
IdempotencyKey = tuple[str, bytes]  # the key, and a fingerprint of what came with it
SeenDocument = tuple[str, str, bytes | None]  # collection, key, and the document as whoever asks for a change saw it
#: Whose client asks, as it is counted.
AMQP, HTTP, SQS = "amqp", "http", "sqs"

OnDocument = Callable[[str, str, bytes | None], None]  # collection, key, document
OnQueue = Callable[[str, str, bool], None]  # virtual host, name, whether it is there


class Request(msgspec.Struct, gc=False):
    """Something asked of the broker. The docstring of each kind says what it is answered with."""

    is_answered: ClassVar[bool] = True  # else `done` is not called, unless it is refused

    def doing(self) -> str:
        """In short, for a log line."""
        names = ("vhost", "name", "queue", "targets", "session")
        given = [f"{name} {str(getattr(self, name))[:100]!r}" for name in names if hasattr(self, name)]
        return " ".join([type(self).__name__, *given])


# --- messages


class Publish(Request):
    """Messages for queues. Answer: list[Arrival], one for each queue that was still there."""

    targets: Targets | list[Targets]  # the same for all messages, or for each its own
    messages: Messages
    key: IdempotencyKey | None = None
    protocol: str = ""  # whose client asks; "": nobody's, or it was counted before


class Lease(Request):
    """Up to so many messages of a queue, as soon as there are some. Answer: Deliveries, none when the wait is over.
    With a session the messages are its own, to be settled with SettleHeld; then nothing is waited for."""

    queue: QueueId
    max_messages: int
    lease_ms: int | None = None  # None: the queue's
    wait_ms: int = 0
    consumer: str = ""
    account: str = ""  # whose the tokens are: they are good in its requests alone
    protocol: str = ""  # whose client asks
    session: SessionId = 0
    no_ack: bool = False  # of a session: they are acked as they are handed out


class LeaseAgain(Request):
    """The deliveries of these tokens once more, for one whose answer was lost; their deadline counts from now.
    Answer: Deliveries, with none if one of them was settled, extended or ran out since they were given."""

    queue: QueueId
    tokens: Sequence[str]
    deadline_ms: int
    lease_ms: int | None = None


class Settle(Request):
    """Ack, release, reject or extend leases by their tokens. Answer: list[int | LanewayError], one for each: the time
    that it is visible again, or leased until, where that is of interest."""

    queue: QueueId
    settlements: Sequence[Settlement]
    account: str = ""  # that leased them: tokens of others are as tokens of leases that have ended
    protocol: str = ""


class Ack(Request):
    """As Settle, with an ack of each of these tokens and nothing else: the frequent case."""

    queue: QueueId
    tokens: Sequence[str]
    account: str = ""
    protocol: str = ""
    late: bool = False  # as in Settlement


class SettleHeld(Request):
    """Settle what a session holds, by number and lease. What it no longer holds is passed over. `fail`: they come back
    as with `release`, because the consumer could not cope with them. `set_aside`: they stay leased, until their leases
    run out, and are no burden of the consumer's meanwhile. Not answered."""

    is_answered = False

    session: SessionId
    queue: QueueId
    seqs: Sequence[int]
    leases: Sequence[int]
    action: Literal["ack", "release", "fail", "reject", "extend", "set_aside"]
    consumer: int = 0  # whose credit is given back; 0: nobody's
    lease_ms: int | None = None  # extend: None is the queue's


class Transact(Request):
    """Publish and settle in one commit. Answer: list[Arrival] of all publishes together."""

    targets: list[Targets]
    messages: Messages
    settlements: list[SettleHeld]


# --- sessions


class Subscribe(Request):
    """Push messages of a queue to a consumer of a session. Answer: None."""

    session: SessionId
    consumer: int  # its number, chosen by the session
    queue: QueueId
    credit: int = 0  # messages that it may hold; 0: as many as there are
    pool: int = 0  # the number of a limit that several consumers of the session share; 0: none
    priority: int = 0
    exclusive: bool = False
    no_ack: bool = False
    lease_ms: int | None = None
    held: int = 0  # messages that it holds already: its queue came from another partition, and so did it


class Unsubscribe(Request):
    """Push nothing more to a consumer; what it holds it may still settle. Answer: None, behind its last push."""

    session: SessionId
    consumer: int


class LimitPool(Request):
    """So many messages may the consumers of a pool hold together; 0: as many as there are. Not answered."""

    is_answered = False

    session: SessionId
    pool: int
    limit: int


class Flow(Request):
    """Stop pushing to a session, or go on. Not answered."""

    is_answered = False

    session: SessionId
    paused: bool


class EndSession(Request):
    """The connection is gone: its subscriptions end and its exclusive queues go. Not answered."""

    is_answered = False

    session: SessionId


class ListConsumers(Request):
    """Those of a queue, or of a session, by session and number. Answer: list[ConsumerState]."""

    queue: QueueId | None = None
    session: SessionId | None = None
    after: tuple[SessionId, int] = (0, 0)  # session and number
    limit: int = 100


# --- what a session is pushed


class Delivered(msgspec.Struct, frozen=True, gc=False):
    consumer: int
    deliveries: Deliveries


class ConsumerEnded(msgspec.Struct, frozen=True, gc=False):
    """The queue went, and with it the subscription."""

    consumer: int


class ConsumerLeft(msgspec.Struct, frozen=True, gc=False):
    """Its queue goes to another partition, where the consumer is to be subscribed again. No front end hears of it."""

    consumer: int
    held: int


Push = Delivered | ConsumerEnded | ConsumerLeft


class Sync(Request):
    """Answer: None, when all that was carried out so far is durable."""


# --- queues


class DeclareQueue(Request):
    """Create a queue unless there is one, or find it as it is. Answer: QueueDeclared."""

    vhost: str
    name: str
    settings: QueueSettings | None  # None: it must exist
    session: SessionId = 0  # that has it for itself alone; 0: it is everybody's


class PutQueue(Request):
    """Create a queue, or give it these settings. Answer: QueueDeclared."""

    vhost: str
    name: str
    settings: QueueSettings


class ChangeQueue(Request):
    """Change some settings of a queue. Answer: QueueInfo."""

    vhost: str
    name: str
    changes: dict[str, Any]


class DeleteQueue(Request):
    """Answer: how many ready messages went with it."""

    vhost: str
    name: str
    session: SessionId = 0  # who asks: what a connection has for itself alone is left alone by all others
    if_empty: bool = False
    if_none_ready: bool = False  # as RabbitMQ understands "empty": what consumers hold does not count
    if_unused: bool = False


class PurgeQueue(Request):
    """Answer: how many messages went: those that wait, and with `leased` also those that consumers hold; then
    deduplication ids are forgotten too."""

    vhost: str
    name: str
    leased: bool = False
    session: SessionId = 0


class DescribeQueue(Request):
    """Answer: QueueStats."""

    vhost: str
    name: str


class Peek(Request):
    """Answer: (list[Glimpse], the cursor of the next page or None)."""

    vhost: str
    name: str
    query: PeekQuery


# --- exchanges, virtual hosts, documents of other layers


class DeclareExchange(Request):
    """Create an exchange, or find it as it is; ExchangeExists if it has other settings. Answer: ExchangeInfo."""

    vhost: str
    name: str
    settings: ExchangeSettings


class DeleteExchange(Request):
    """Answer: None."""

    vhost: str
    name: str
    if_unused: bool = False


class Bind(Request):
    """Answer: whether the binding is new."""

    vhost: str
    binding: Binding
    session: SessionId = 0


class Unbind(Request):
    """Answer: whether the binding was there."""

    vhost: str
    binding: Binding
    session: SessionId = 0


class CreateVhost(Request):
    """Answer: whether it is new."""

    name: str


class DeleteVhost(Request):
    """With its queues, exchanges and bindings, in one step. Answer: None."""

    name: str


class PutDocument(Request):
    """Answer: None; DocumentChanged if one of `seen` is not as it was, and then nothing is done."""

    collection: str
    key: str
    document: bytes
    seen: Sequence[SeenDocument] = ()


class RemoveDocument(Request):
    """Answer: None; DocumentChanged as for PutDocument."""

    collection: str
    key: str
    seen: Sequence[SeenDocument] = ()


# --- dead letters and tasks


class DeleteDeadLetters(Request):
    """Answer: how many went."""

    vhost: str
    name: str
    filter: DeadLetterFilter


class FindOrigins(Request):
    """Where a redrive without a target would take these dead letters. Answer: list[str], names of queues."""

    vhost: str
    name: str
    filter: DeadLetterFilter


class StartRedrive(Request):
    """Answer: Task."""

    vhost: str
    name: str
    request: RedriveRequest


class ListTasks(Request):
    """Answer: list[Task]."""

    vhost: str | None = None
    queue: str | None = None


class GetTask(Request):
    """Answer: Task."""

    task_id: str


class CancelTask(Request):
    """Answer: Task."""

    task_id: str


# --- producers: batches that are published exactly once


class StagePart(Request):
    """Keep a part of a batch until it is committed. Answer: its size in bytes."""

    producer: str
    stage: str
    part: str
    messages: list[Addressed]
    targets: list[Target]  # where they go, as permissions name it
    owner: str


class GiveUpStage(Request):
    """Forget what is staged. Answer: whether there was something."""

    producer: str
    stage: str


class DescribeStage(Request):
    """Answer: StageInfo: whose it is, and where the messages of these parts go."""

    producer: str
    stage: str = ""
    parts: Sequence[str] = ()


class CommitBatch(Request):
    """Publish these parts in this order, once, however often it is asked for. Answer: BatchOutcome."""

    producer: str
    batch: int
    stage: str
    parts: Sequence[str]
    owner: str
    temporary: bool = False
    mandatory: bool = False


class ListProducers(Request):
    """Answer: list[ProducerInfo]."""


class DescribeProducer(Request):
    """Answer: ProducerInfo."""

    producer: str


class ForgetProducer(Request):
    """Answer: None."""

    producer: str


# --- history for readers: each partition has its own, and keeps its own position of a cursor


class DescribeHistory(Request):
    """Answer: HistoryInfo."""

    partition: int = 0


class FindPlace(Request):
    """Answer: Place: where a commit begins."""

    position: int
    partition: int = 0


class AdvancePlace(Request):
    """Answer: Place: so many events further at most, and one commit at least unless the end is reached."""

    place: Place
    max_events: int
    partition: int = 0


class ReadHistory(Request):
    """Answer: bytes of a segment, as far as they are durable."""

    segment: int
    offset: int
    size: int
    partition: int = 0


class NameQueues(Request):
    """Answer: dict[int, QueueName]: the names of queues by their numbers in the history, of deleted ones too."""

    partition: int = 0


class ListCursors(Request):
    """Answer: list[CursorInfo]."""

    partition: int = 0


class GetCursor(Request):
    """Answer: CursorInfo."""

    name: str
    partition: int = 0


class PutCursor(Request):
    """Answer: (CursorInfo, whether it is new)."""

    name: str
    position: int
    rewind: bool = False
    partition: int = 0


class DeleteCursor(Request):
    """Answer: None."""

    name: str
    partition: int = 0


# --- between the partitions of one server (docs/decisions/0013-several-partitions.md)


class Spread(Request):
    """Publish and settle in several partitions, all or nothing: one commit of the partition that is asked, with entries
    of its outbox for the others. Here queues are named by their ids. Answer: list[Arrival] of all queues (ids), when
    every partition has done its part."""

    targets: list[Targets]  # for each message its own
    messages: Messages
    settlements: list[SettleHeld]  # of this partition's; and, with leases that Reserve gave, of others
    key: IdempotencyKey | None = None
    protocol: str = ""


class Reserve(Request):
    """Lease what a session holds anew, in no session's name, so that no end of a session gives it back. Answer:
    list[int], the new lease ids, 0 for what the session no longer holds."""

    session: SessionId
    queue: QueueId
    seqs: Sequence[int]
    leases: Sequence[int]
    lease_ms: int
    consumer: int = 0  # whose credit is given back; 0: nobody's


class Receive(Request):
    """Entries of the outbox of another partition, in order. Those that came before are passed over. Answer: list[Any],
    one for each: what its sender's caller is to be told, durable."""

    sender: int  # its partition
    entries: list[OutboxEntry]  # number, and a parcel or a letter (core/outbox.py)


class PlanMoves(Request):
    """Which queues are not where they belong: of the names behind `after`, so many at most. Or one queue, which is to
    go to a partition, or to its home. Answer: (list[PlannedMove], the last name looked at, or None at the end)."""

    vhost: str = "/"
    name: str | None = None
    to: int | None = None  # of one queue; None: its home
    is_all: bool = False  # also those that somebody placed
    after: tuple[str, str] = ("", "")
    limit: int = 1000


class StartMoves(Request):
    """Queues of this partition are to go to others, one after the other. Answer: how many were not to go before."""

    moves: list[QueueMove]


class ListMoves(Request):
    """Answer: list[MovesInfo], one for each partition."""


class CancelMoves(Request):
    """Queues that have not begun to go stay. Answer: how many."""


class Quiet(Request):
    """A process holds back what is asked of a queue that goes, and this comes behind all that it asked before. Answer:
    None."""

    queue: QueueId
    process: int


# --- the two things that a front end holds


class Topology(Protocol):
    """Which virtual hosts, queues, exchanges and bindings there are. Answers at once, from this node's own copy; an
    answer to a request that changes something leaves when the copy has it."""

    @property
    def version(self) -> int:
        """Rises whenever a route or the settings of a queue may have changed."""

    def vhosts(self) -> list[str]: ...

    def has_vhost(self, name: str) -> bool: ...

    def check_vhost(self, name: str) -> None:
        """Raises VhostNotFound."""

    def on_vhost_deleted(self, call: Callable[[str], None]) -> None:
        """Have this called with the name of each virtual host that goes."""

    def queue(self, vhost: str, name: str) -> QueueInfo | None: ...

    def find_queue(self, vhost: str, name: str) -> QueueInfo:
        """Raises QueueNotFound."""

    def queue_at(self, queue: QueueId) -> QueueInfo | None: ...

    def queues(
        self, *, vhost: str | None, prefix: str = "", limit: int = 100, after: tuple[str, str] | None = None
    ) -> list[QueueInfo]:
        """In the order of (vhost, name), those after `after`."""

    def queue_count(self, vhost: str) -> int: ...

    def exchange(self, vhost: str, name: str) -> ExchangeInfo | None: ...

    def exchanges(self, vhost: str) -> list[ExchangeInfo]: ...

    def bindings(
        self, vhost: str, *, source: str | None = None, destination: str | None = None, kind: str | None = None
    ) -> list[Binding]:
        """All of a virtual host, or those from an exchange, or to a queue or exchange. What the default exchange
        implies is given only when it is asked for as the source."""

    def route(
        self,
        vhost: str,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, Any] | None = None,
        *,
        more: Sequence[str] = (),
    ) -> Targets:
        """The queues that a message reaches; raises ExchangeNotFound, and InvalidInput for what is no routing key.
        `more`: further routing keys that it has."""

    def asks_headers(self, vhost: str, exchange: str, routing_key: str) -> bool:
        """Whether the headers of a message have a say in where it goes."""

    def explain(
        self, vhost: str, exchange: str, routing_key: str, headers: Mapping[str, Any] | None = None
    ) -> list[Route]:
        """The queues a message would reach and the chain of bindings to each."""

    def documents(self, collection: str) -> dict[str, bytes]: ...

    def document(self, collection: str, key: str) -> bytes | None: ...

    def on_document(self, call: OnDocument) -> None:
        """Have this called with each document that is put, or removed (None), by whichever process: before whoever
        did it is answered. It is called amid other work: what it does is to note."""

    def on_queue(self, call: OnQueue) -> None:
        """Have this called with each queue that is made, changed or deleted; in the same way."""


class Broker(Protocol):
    topology: Topology
    limits: BrokerLimits

    def now(self) -> int:
        """Milliseconds since 1970 on this node; goes back only where somebody set the clock back."""

    def health(self) -> dict[str, object]: ...

    def send(self, request: Request, done: Callable[[Any], None]) -> int:
        """Have a request carried out; `done(answer)` is called once, with a LanewayError if it was refused. The number
        of a request that waits (a Lease with a wait), for `withdraw`; also not 0 if what is sent next might overtake
        it: a large Publish is carried out in parts."""

    async def ask(self, request: Request) -> Any:
        """The answer to a request; raises the LanewayError if it is refused."""

    def withdraw(self, number: int, *, answer: bool = False) -> None:
        """Whoever asked waits no longer. `answer`: it still wants what there is, perhaps nothing. A number of which
        nothing waits (any more) is passed over."""

    def open_session(self, push: Callable[[list[Push]], None]) -> SessionId:
        """Pushes are values of the kinds above; they come on the loop's thread."""

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call when all that can be answered now has been answered: what belongs together then leaves together."""
