"""The plain values that go in and out of the broker's calls. Front ends hold on to these, never to objects of core."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from laneway.core.exchanges import Binding, ExchangeSettings, Hop, Route
from laneway.core.message import Death, Delivery, Draft, Glimpse, Properties, Receipt, Settlement
from laneway.core.settings import QueueSettings
from laneway.core.stories import Story
from laneway.errors import LanewayError

__all__ = [
    "Arrival",
    "Batch",
    "Binding",
    "DeadLetterFilter",
    "Death",
    "Delivery",
    "Draft",
    "ExchangeInfo",
    "ExchangeSettings",
    "Glimpse",
    "Hop",
    "PeekQuery",
    "Properties",
    "QueueInfo",
    "QueueSettings",
    "QueueStats",
    "Rates",
    "Receipt",
    "RedriveRequest",
    "Route",
    "Settlement",
    "Task",
]


class QueueInfo(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    settings: QueueSettings
    created_at_ms: int
    changed_at_ms: int


class ExchangeInfo(msgspec.Struct, frozen=True):
    vhost: str
    name: str
    settings: ExchangeSettings
    created_at_ms: int  # 0 for a built-in one
    is_built_in: bool
    binding_count: int  # from it; those of the default exchange are not counted


class Arrival(msgspec.Struct, frozen=True):
    """What a message that went through an exchange came to in one of the queues it reached."""

    queue: str
    result: Receipt | LanewayError


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Messages of one queue as a session gets them, in columns: a session handles thousands at once."""

    queue: int  # its number, for settling
    name: str
    seqs: Sequence[int]
    first_lease: int  # the others follow it
    receives: Sequence[int]
    enqueued_at_ms: Sequence[int]
    props: Sequence[bytes]  # core.message.decode_props reads one; look-alikes have equal ones
    bodies: Sequence[bytes | memoryview]
    priorities: Sequence[int]
    stories: dict[int, Story] | None  # of those that died or moved before


class Rates(msgspec.Struct, frozen=True):
    """Averages over the last full second, minute and five minutes."""

    per_second_1s: float
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
