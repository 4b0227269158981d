"""The plain values that go in and out of the broker. Front ends hold on to these, never to objects of core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from laneway.core.catalogue import QueueName
from laneway.core.deliveries import Deliveries, Delivery
from laneway.core.exchanges import Binding, ExchangeSettings, Hop, Route, message_delay_ms
from laneway.core.message import (
    Death,
    Draft,
    Glimpse,
    Messages,
    Properties,
    Receipt,
    Receipts,
    Settlement,
)
from laneway.core.settings import QueueSettings
from laneway.core.stories import Story
from laneway.core.world import VHOSTS
from laneway.errors import LanewayError
from laneway.journal.interface import Extent, Place

__all__ = [
    "POLICIES",
    "VHOSTS",
    "Addressed",
    "Alarm",
    "Arrival",
    "BatchOutcome",
    "Binding",
    "BrokerLimits",
    "CursorInfo",
    "DeadLetterFilter",
    "Death",
    "Deliveries",
    "Delivery",
    "Draft",
    "ExchangeInfo",
    "ExchangeSettings",
    "Extent",
    "FailedMove",
    "Glimpse",
    "HistoryInfo",
    "Hop",
    "Messages",
    "MoveProgress",
    "MovesInfo",
    "PeekQuery",
    "Place",
    "PlannedMove",
    "Policy",
    "ProducerInfo",
    "Properties",
    "QueueDeclared",
    "QueueInfo",
    "QueueMove",
    "QueueName",
    "QueueSettings",
    "QueueStats",
    "Rates",
    "Receipt",
    "Receipts",
    "RedriveRequest",
    "Route",
    "Settlement",
    "StageInfo",
    "StagingLimits",
    "Story",
    "Target",
    "Task",
    "message_delay_ms",
]

Target = tuple[str, str, str]  # virtual host, "queue" or "exchange", name


class StagingLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_bytes: int = 1024 * 1024 * 1024  # of all that is staged
    max_batch_bytes: int = 256 * 1024 * 1024  # a commit holds its batch in memory, and publishes it at once
    max_batch_messages: int = 200_000
    max_parts: int = 10_000  # of one stage
    max_stages: int = 10_000
    lifetime_ms: int = 3_600_000  # since the last part of a stage came


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_queues: int = 200_000
    max_vhosts: int = 10_000
    max_exchanges: int = 100_000
    max_bindings: int = 500_000
    max_message_bytes: int = 256 * 1024
    max_idempotency_keys: int = 1_000_000
    max_dedups: int = 700_000
    max_waiters_per_queue: int = 50_000
    max_document_bytes: int = 256 * 1024
    snapshot_events: int = 500_000
    history_limit_bytes: int = 10 << 30  # of history that is kept for readers alone
    history_ms: int = 0  # so much of it is kept in any case
    staging: StagingLimits = StagingLimits()
    partition_count: int = 1  # that this broker reaches


class QueueInfo(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int
    queue: int  # its QueueId, for requests
    owner: int = 0  # the session that has it for itself alone; 0: it is everybody's


class QueueDeclared(msgspec.Struct, frozen=True):
    info: QueueInfo
    is_new: bool
    ready: int  # messages that wait
    consumers: int


class ExchangeInfo(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    settings: ExchangeSettings
    created_at_ms: int  # 0 for a built-in one
    is_built_in: bool
    binding_count: int  # from it; those of the default exchange are not counted


class Arrival(msgspec.Struct, frozen=True):
    """What became in one queue of messages that were published together."""

    queue: int  # its QueueId
    places: Sequence[int] | None  # which of the messages went there; None: all
    result: Receipts | LanewayError  # an error: none of them was taken


class Rates(msgspec.Struct, frozen=True):
    """Averages over the last full second, five seconds, minute and five minutes."""

    per_second_1s: float
    per_second_5s: float
    per_second_1m: float
    per_second_5m: float


class QueueStats(msgspec.Struct, frozen=True):
    ready: int
    leased: int
    delayed: int
    dead: int  # dead letters kept in this queue
    dead_elsewhere: int  # dead letters of this queue, kept in its dead-letter queue
    waiting_bytes: int
    ready_by_priority: dict[int, int]
    oldest_age_ms: int | None
    consumers_waiting: int  # for an answer
    subscribers: int  # that messages are pushed to
    noisy_tenants: list[str]  # that let the others go first, in a fair queue
    totals: dict[str, int]
    rates: dict[str, Rates]


class PeekQuery(msgspec.Struct, frozen=True, kw_only=True):
    states: tuple[str, ...] = ("ready",)
    priority: int | None = None
    attribute: tuple[str, str] | None = None  # name, value as text
    older_than_ms: int | None = None
    newer_than_ms: int | None = None
    reason: str | None = None  # of dead letters
    limit: int = 50
    max_bytes: int = 8 * 1024 * 1024
    cursor: str | None = None


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; everything given must hold. Ages count from the death."""

    message_ids: tuple[str, ...] | None = None
    reason: str | None = None
    attribute: tuple[str, str] | None = None
    older_than_ms: int | None = None
    newer_than_ms: int | None = None


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True):
    filter: DeadLetterFilter = DeadLetterFilter()
    target: str | None = None  # None: each to the queue it died in
    origins: list[str] | None = None  # without a target: those that died in one of these alone; None: all
    max_per_second: int | None = None


class Task(msgspec.Struct, frozen=True):
    task_id: str
    kind: str
    vhost: str
    queue: str
    state: str  # running, completed, cancelled, failed
    moved: int
    matched: int | None
    failed: int
    created_at_ms: int
    finished_at_ms: int | None
    error: str | None
    request: RedriveRequest


class Addressed(msgspec.Struct, array_like=True, gc=False):
    """A message and where it is to go: to a queue, or through an exchange."""

    vhost: str
    queue: str | None
    exchange: str
    routing_key: str
    draft: Draft


class BatchOutcome(msgspec.Struct, frozen=True):
    """What the commit of a batch did."""

    batch: int
    published: int  # messages put into queues; more than were staged when exchanges lead to several
    unrouted: int  # messages that no queue is reached by
    duplicates: int  # messages whose dedup id was known
    already: bool = False  # it had been committed before, and nothing was done now


class ConsumerState(msgspec.Struct, frozen=True):
    """A subscription, as the broker keeps it."""

    session: int
    consumer: int  # its number in that session
    queue: int
    priority: int
    prefetch: int  # 0: no limit
    held_count: int  # messages it has not settled
    no_ack: bool
    exclusive: bool
    is_active: bool  # false of one that waits for the single active consumer to go


class ProducerInfo(msgspec.Struct, frozen=True):
    name: str
    owner: str
    last_batch: int | None
    committed_at_ms: int | None
    staged_parts: int
    staged_messages: int
    staged_bytes: int


class StageInfo(msgspec.Struct, frozen=True):
    owner: str | None  # the account that committed under the producer's name, or staged there
    targets: set[Target]


#: The collection of documents that policies are.
POLICIES = "policies"


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """A document of the collection. Its key is [kind, virtual host, name] as JSON."""

    kind: Literal["policy", "operator"]
    vhost: str
    name: str
    pattern: str
    definition: dict[str, Any]
    priority: int = 0
    apply_to: str = "all"  # of queues: all, queues, classic_queues or quorum_queues; others have none here

    @property
    def key(self) -> str:
        return msgspec.json.encode((self.kind, self.vhost, self.name)).decode()


class CursorInfo(msgspec.Struct, frozen=True):
    name: str
    position: int
    lag_commits: int
    held_bytes: int  # of history that is kept for nobody but readers, from its position on
    updated_at_ms: int
    state: Literal["ok", "lost"]


class Alarm(msgspec.Struct, frozen=True):
    """Something that somebody should look at."""

    name: str
    level: Literal["warning", "alarm"]
    message: str
    since_ms: int


class HistoryInfo(msgspec.Struct, frozen=True):
    store: int  # what tells this journal from others
    tag: int  # of its message ids
    first_position: int
    end: Place
    named_position: int
    segments: list[Extent]
    alarms: list[Alarm]


class QueueMove(msgspec.Struct, frozen=True):
    """A queue that is to go to another partition."""

    vhost: str
    name: str
    to: int
    placed: bool = False  # it is to stay there, wherever its home is


class PlannedMove(msgspec.Struct, frozen=True):
    """A queue that is to go from one partition to another."""

    vhost: str
    name: str
    here: int
    to: int
    placed: bool


class MoveProgress(msgspec.Struct):
    """The queue that is on its way, and how many of its messages have left."""

    vhost: str
    name: str
    to: int
    moved: int
    total: int


class FailedMove(msgspec.Struct, frozen=True):
    """A queue that stayed where it was, and why."""

    vhost: str
    name: str
    to: int
    why: str


class MovesInfo(msgspec.Struct, frozen=True):
    """Of one partition: queues that are still to go, and what became of the others since rebalancing began."""

    waiting: int
    under_way: MoveProgress | None
    moved_queues: int
    moved_messages: int
    failed: list[FailedMove]
