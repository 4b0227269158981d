"""Answers as structs: what they say, for the OpenAPI document, and the way the rare ones are sent.

The frequent ones are put together from pieces of text by writing.py; tests decode those with these structs, strictly.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Permission, TopicPermission, VhostPermission

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]

encode = msgspec.json.Encoder(enc_hook=str).encode


class Answer(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Ancestor of all answers: every field without a default is always there."""


# --- errors


class ErrorObject(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What went wrong: a stable code, a sentence for people, and the part of the request it is about."""

    code: str
    message: str
    field: str | UnsetType = UNSET


class ErrorAnswer(Answer):
    error: ErrorObject


# --- messages


class PublishAnswer(Answer):
    message_id: str
    queue_name: str
    priority: int
    enqueued_at: Time
    visible_at: Time
    duplicate: bool = False


class DeathAnswer(Answer, kw_only=True):
    """The deaths in one queue for one reason: how many, when the first and the last one was, and more of the last."""

    queue_name: str
    reason: str
    died_at: Time
    receive_count: int
    detail: str = ""
    count: int
    first_died_at: Time
    exchange: str = ""
    routing_keys: list[str] = []


class DeadLetterAnswer(Answer, kw_only=True):
    """Why and where from; the last of its deaths, and all of them, the latest last."""

    origin: str
    reason: str
    died_at: Time
    receive_count: int
    detail: str = ""
    deaths: list[DeathAnswer]


class PropertiesAnswer(Answer, kw_only=True):
    """What a message that came over AMQP, or was published with properties, says about itself."""

    content_encoding: str | UnsetType = UNSET
    delivery_mode: int | UnsetType = UNSET
    reply_to: str | UnsetType = UNSET
    expiration: str | UnsetType = UNSET
    message_id: str | UnsetType = UNSET
    timestamp: Annotated[int, Meta(description="seconds since 1970")] | UnsetType = UNSET
    type: str | UnsetType = UNSET
    user_id: str | UnsetType = UNSET
    app_id: str | UnsetType = UNSET


#: Values of attributes: text, numbers, booleans, {"binary": base64}; those of AMQP's headers also null, lists, objects.
AnyAttributes = dict[str, Any]


class _MessageAnswer(Answer, kw_only=True):
    message_id: str
    priority: int
    payload: msgspec.Raw | UnsetType = UNSET
    payload_base64: bytes | UnsetType = UNSET
    content_type: str | UnsetType = UNSET
    attributes: AnyAttributes
    properties: PropertiesAnswer | UnsetType = UNSET
    correlation_id: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    tenant: str | UnsetType = UNSET
    dedup_id: str | UnsetType = UNSET
    exchange: str | UnsetType = UNSET
    routing_key: str | UnsetType = UNSET
    enqueued_at: Time
    receive_count: int
    dead_letter: DeadLetterAnswer | UnsetType = UNSET


class DeliveryAnswer(_MessageAnswer, kw_only=True):
    receipt_handle: str
    visible_until: Time


class DequeueAnswer(Answer):
    messages: list[DeliveryAnswer]


class GotAnswer(_MessageAnswer, kw_only=True):
    """A message that was taken with get; only with ack_mode=manual there is a lease left to settle."""

    receipt_handle: str | UnsetType = UNSET
    visible_until: Time | UnsetType = UNSET


class GetAnswer(Answer):
    messages: list[GotAnswer]


class PeekedAnswer(_MessageAnswer, kw_only=True):
    state: str
    visible_at: Time
    consumer_id: str | UnsetType = UNSET


class PeekAnswer(Answer):
    messages: list[PeekedAnswer]
    next_cursor: str | None


class NackAnswer(Answer):
    message_id: str
    visible_at: Time


class VisibilityAnswer(Answer):
    message_id: str
    visible_until: Time


class SettledAnswer(Answer):
    status: str
    message_id: str | UnsetType = UNSET
    visible_at: Time | UnsetType = UNSET
    visible_until: Time | UnsetType = UNSET


# --- queues


class QueueAnswer(Answer):
    queue_name: str
    vhost: str
    max_priority: int
    default_priority: int | None
    visibility_timeout: float
    retention_seconds: float | None
    delay_seconds: float
    message_ttl_seconds: float | None
    max_receive_count: int | None
    dead_letter_queue: str | None
    max_messages: int | None
    max_bytes: int | None
    overflow: str
    dedup_window_seconds: float
    max_message_bytes: int
    durable: bool
    exclusive: bool
    auto_delete: bool
    expires_seconds: float | None
    dead_letter_exchange: str | None
    dead_letter_routing_key: str | None
    keep_dead: bool
    single_active_consumer: bool
    retry_delay_seconds: float | None
    max_retry_delay_seconds: float | None
    retry_delay_after: str
    tier: str
    fair: bool
    arguments: dict[str, Any]
    policy: str
    operator_policy: str
    created_at: Time
    changed_at: Time


class QueuesAnswer(Answer):
    queues: list[QueueAnswer]
    next_cursor: str | None


class VhostAnswer(Answer):
    vhost: str
    queue_count: int


class VhostsAnswer(Answer):
    vhosts: list[VhostAnswer]


# --- exchanges and bindings


class ExchangeAnswer(Answer):
    exchange_name: str
    vhost: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    alternate_exchange: str | None
    delayed: bool
    arguments: dict[str, Any]
    built_in: bool
    binding_count: int
    created_at: Time | None


class ExchangesAnswer(Answer):
    exchanges: list[ExchangeAnswer]
    next_cursor: str | None


class BindingAnswer(Answer):
    source: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, Any]


class BindingsAnswer(Answer):
    bindings: list[BindingAnswer]
    next_cursor: str | None


class ArrivalAnswer(Answer, kw_only=True):
    """What a message came to in one of the queues it was routed to."""

    queue_name: str
    message_id: str | UnsetType = UNSET
    duplicate: bool = False
    error: ErrorObject | UnsetType = UNSET


class RoutedAnswer(Answer):
    """Whether the message reached a queue, and how many; of those that the account may see also which."""

    routed: bool
    queue_count: int
    queues: list[ArrivalAnswer]


class HopAnswer(Answer):
    """One step on the way to a queue, and why the message takes it."""

    exchange: str
    destination: str
    destination_type: str
    routing_key: str
    arguments: dict[str, Any]
    why: str


class RouteAnswer(Answer):
    queue_name: str
    hops: list[HopAnswer]


class RoutesAnswer(Answer):
    """Which queues a message would reach, and the steps to each; if none, why not."""

    routed: bool
    queues: list[str]
    routes: list[RouteAnswer]
    why_not: str = ""


class RatesAnswer(Answer):
    per_second_1s: float
    per_second_1m: float
    per_second_5m: float


class StatsAnswer(Answer):
    queue_name: str
    approximate_message_count: int
    messages_by_priority: dict[str, int]
    oldest_message_age_seconds: float | None
    in_flight_count: int
    delayed_count: int
    dlq_count: int
    waiting_bytes: int
    consumers_waiting: int
    subscriber_count: int
    noisy_tenants: list[str]
    totals: dict[str, int]
    rates: dict[str, RatesAnswer]


class ReloadAnswer(Answer):
    """Names of settings: now in force with another value; of files that were read again; in force after a restart."""

    changed: list[str]
    read_again: list[str]
    needs_restart: list[str]


class PurgeAnswer(Answer):
    purged: int


class DeletedAnswer(Answer):
    deleted: int


class TaskAnswer(Answer):
    task_id: str
    kind: str
    queue_name: str
    vhost: str
    state: str
    moved: int
    matched: int | None
    failed: int
    created_at: Time
    finished_at: Time | None
    error: str | None


class TasksAnswer(Answer):
    tasks: list[TaskAnswer]


# --- accounts and the server


class AccountAnswer(Answer):
    name: str
    roles: list[str]
    permissions: list[Permission]
    vhost_permissions: list[VhostPermission]
    topic_permissions: list[TopicPermission]
    created_at: Time | None


class AccountsAnswer(Answer):
    accounts: list[AccountAnswer]


class KeyAnswer(Answer):
    key_id: str
    account: str
    label: str
    kind: Literal["api", "aws"]
    created_at: Time


class KeysAnswer(Answer):
    keys: list[KeyAnswer]


class NewKeyAnswer(Answer):
    """The only place where the key itself is ever shown; of the kind aws, it is the secret that goes with key_id."""

    key_id: str
    key: str
    account: str
    label: str
    kind: Literal["api", "aws"]


class HealthAnswer(Answer):
    state: str


class AliveAnswer(HealthAnswer):
    slow_turns: int  # how often one piece of work kept everybody else waiting for 100 ms and more, since the start
    longest_turn_ms: int  # the longest of them


class RootAnswer(Answer):
    name: str
    version: str
    links: dict[str, str]


# --- producers


class StagedAnswer(Answer):
    messages: int
    bytes: int


class StagedTotals(Answer):
    parts: int
    messages: int
    bytes: int


class ProducerAnswer(Answer):
    producer: str
    owner: str
    last_batch: int | None
    committed_at: Time | None
    staged: StagedTotals


class ProducersAnswer(Answer):
    producers: list[ProducerAnswer]


class CommittedAnswer(Answer):
    """published: messages put into queues. already: the batch was committed before, and nothing was done now."""

    producer: str
    batch: int
    published: int
    unrouted: int
    duplicates: int
    already: bool


# --- processes


class ProcessAnswer(Answer):
    process: int
    pid: int | None
    state: str
    partitions: list[int]
    uptime_seconds: float
    cpu_share: float
    resident_bytes: int
    connection_count: int
    published_per_second: float
    delivered_per_second: float
    acked_per_second: float
    slow_turns: int
    longest_turn_ms: int


class PartitionAnswer(Answer):
    """A partition: all its queues together. What is not known of one that nobody leads is 0."""

    partition: int
    process: int
    state: str
    queue_count: int
    waiting: int
    leased: int
    delayed: int
    dead: int
    oldest_message_age_seconds: float
    consumer_count: int
    journal_bytes: int
    published_per_second: float
    delivered_per_second: float
    acked_per_second: float


class BusyQueueAnswer(Answer):
    queue_name: str
    vhost: str
    partition: int
    waiting: int
    leased: int
    delayed: int
    dead: int
    oldest_message_age_seconds: float | None
    consumer_count: int
    published_per_second: float
    delivered_per_second: float
    acked_per_second: float


class ProcessesAnswer(Answer):
    processes: list[ProcessAnswer]
    partitions: list[PartitionAnswer]
    busiest_queues: list[BusyQueueAnswer]


# --- connections


class ConnectionAnswer(Answer):
    connection_id: str
    protocol: Literal["amqp", "http"]
    state: str
    account: str | None
    vhost: str | None
    address: str
    tls: str | None
    connected_at: str
    client_properties: dict[str, str | int | bool]
    channel_count: int
    consumer_count: int
    unacked_count: int
    heartbeat_seconds: int
    request_count: int
    waiting_count: int


class ConnectionsAnswer(Answer):
    connections: list[ConnectionAnswer]
    next_cursor: str | None
    counts: dict[str, int] | UnsetType = UNSET  # of all there are, for administrators


class ChannelAnswer(Answer):
    channel: int
    state: Literal["open", "closing"]
    mode: Literal["plain", "confirm", "transaction"]
    consumer_count: int
    unacked_count: int
    prefetch: int
    shared_prefetch: int


class ChannelsAnswer(Answer):
    channels: list[ChannelAnswer]
    next_cursor: str | None


class ConsumerAnswer(Answer):
    consumer: int
    vhost: str
    queue_name: str
    priority: int
    prefetch: int
    held_count: int
    no_ack: bool
    exclusive: bool
    is_active: bool
    # Unless they are another account's
    consumer_tag: str | UnsetType = UNSET
    channel: int | UnsetType = UNSET
    connection_id: str | UnsetType = UNSET
    account: str | UnsetType = UNSET
    address: str | UnsetType = UNSET


class ConsumersAnswer(Answer):
    consumers: list[ConsumerAnswer]
    next_cursor: str | None
