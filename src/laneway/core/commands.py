"""Commands: what callers want, checked against the state and turned into events.

Each command is a generator. Whoever runs it applies every event it yields before asking for the next, so a later
event of the same command sees what the earlier one did. What cannot be done is said per entry, in `results`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from operator import attrgetter, is_
from typing import Any

import msgspec

from laneway.core import queue as q_
from laneway.core.burial import bury, shed
from laneway.core.events import (
    Cause,
    Event,
    KeyRemembered,
    Published,
    QueueDeleted,
    QueuePurged,
    QueuePut,
    Removed,
)
from laneway.core.message import (
    PLAIN,
    RECORD_PREFIX_BYTES,
    Draft,
    Receipt,
    encode_props,
    message_ids,
)
from laneway.core.queue import Queue
from laneway.core.settings import DAY_MS, RANGES, QueueSettings, check_queue_name, check_settings
from laneway.core.state import QueueDocument, State, queue_document
from laneway.core.table import LEASED
from laneway.errors import (
    Conflict,
    IdempotencyConflict,
    InvalidInput,
    LanewayError,
    LimitExceeded,
    MessageTooLarge,
    QueueFull,
    QueueInUse,
    QueueNotFound,
)

MAX_DELAY_MS = RANGES["delay_ms"][1]
MAX_SCHEDULE_MS = 90 * DAY_MS
MAX_TTL_MS = RANGES["message_ttl_ms"][1]
KEY_LIFE_MS = DAY_MS


# Queues


def find_queue(state: State, vhost: str, name: str) -> Queue:
    queue = state.by_name.get((vhost, name))
    if queue is None:
        where = "" if vhost == "/" else f" in virtual host {vhost!r}"
        raise QueueNotFound(f"there is no queue {name!r}{where}; create it first", field="queue", queue=name)
    return queue


def put_queue(
    state: State,
    vhost: str,
    name: str,
    settings: QueueSettings,
    now_ms: int,
    *,
    max_queues: int,
    max_message_bytes: int = RANGES["max_message_bytes"][1],
) -> Iterator[Event]:
    """Create a queue, or replace the settings of one that exists."""
    check_queue_name(name)
    check_queue_name(vhost, field="vhost")
    check_settings(settings)
    if settings.max_message_bytes > max_message_bytes:
        raise InvalidInput(
            f"max_message_bytes {settings.max_message_bytes} is above the server's {max_message_bytes}",
            field="max_message_bytes",
        )
    target = settings.dead_letter_queue
    if target == name:
        raise InvalidInput(f"queue {name!r} cannot be its own dead-letter queue", field="dead_letter_queue")
    if target is not None and (vhost, target) not in state.by_name:
        raise InvalidInput(f"dead-letter queue {target!r} does not exist; create it first", field="dead_letter_queue")
    queue = state.by_name.get((vhost, name))
    if queue is None and len(state.queues) >= max_queues:
        raise LimitExceeded(f"there are {len(state.queues)} queues already, {max_queues} are allowed", field="queue")
    if queue is None or queue.settings != settings:
        document = msgspec.json.encode(QueueDocument(vhost, name, settings))
        yield QueuePut(queue.number if queue else state.next_queue, now_ms, document)


def changed_settings(queue: Queue, changes: dict[str, Any]) -> QueueSettings:
    merged = {**msgspec.structs.asdict(queue.settings), **changes}
    try:
        return msgspec.convert(merged, QueueSettings)
    except msgspec.ValidationError as wrong:
        field = next((name for name in changes if f"`{name}`" in str(wrong) or f"$.{name}" in str(wrong)), None)
        raise InvalidInput(str(wrong), field=field) from None


def delete_queue(state: State, queue: Queue, now_ms: int, *, if_empty: bool) -> Iterator[Event]:
    if if_empty and (queue.ready or queue.leased or queue.delayed or queue.dead):
        raise Conflict(f"queue {queue.name!r} is not empty", field="if_empty")
    senders = state.senders.get((queue.vhost, queue.name))
    if senders is not None:
        other = state.queues[min(senders)]
        raise QueueInUse(
            f"dead letters of queue {other.name!r} go to {queue.name!r}; change that queue first", field="queue"
        )
    yield QueueDeleted(queue.number, now_ms, queue_document(queue))


def purge_queue(state: State, queue: Queue, now_ms: int, *, leased: bool = False) -> Iterator[Event]:
    """Delete what waits; with `leased`, also what consumers hold, who can no longer settle it."""
    if queue.ready or queue.delayed:
        yield QueuePurged(queue.number, now_ms, state.table.next_seq)
    if leased and queue.leased:
        held = list(islice(state.table.find(queue.number, LEASED), queue.leased))
        yield Removed(queue.number, now_ms, held, Cause.DELETED)


# Publishing


def publish(
    state: State, queue: Queue, drafts: Sequence[Draft], now_ms: int, results: list[Receipt | LanewayError]
) -> Iterator[Event]:
    """Hot: look-alikes go in as columns. Else, per message this loop checks, and leaves all else to the rare cases."""
    plain = _plain_columns(queue, drafts)
    if plain is not None:
        block, given, texts = plain
        order = by_priority(given)
        results += _receipts(state, state.table.next_seq, order, given, [0] * len(order), now_ms)
        if not isinstance(order, range):
            given, texts = [given[i] for i in order], [texts[i] for i in order]
        yield from publish_columns(state, queue, [block] * len(order), texts, given, now_ms)
        return
    settings = queue.settings
    default_priority, max_priority = settings.priority_when_unset, settings.max_priority
    max_bytes = settings.max_message_bytes
    limited = settings.max_messages is not None or settings.max_bytes is not None
    bounded = limited and settings.overflow != "drop_oldest"
    wanted = state.wanted(queue.number, queue.ready + queue.delayed + len(drafts)) if bounded else 0
    timeless = not settings.delay_ms and settings.message_ttl_ms is None  # no times unless a message has its own
    blocks: list[bytes] = []
    bodies: list[bytes] = []
    priorities: list[int] = []
    visible: list[int] = []
    expires: list[int] = []
    groups: dict[int, str] = {}
    dedups: dict[int, str] = {}
    tenants: dict[int, str] = {}
    fresh: dict[str, int] = {}  # dedup ids of this very batch -> which of its messages
    answers: list[int | Receipt | LanewayError] = []  # a number stands for that message
    repeats: set[int] = set()
    refused: list[Draft] = []
    total_bytes = 0
    known_properties, props = PLAIN, b""  # look-alikes share one Properties, which is encoded once
    for draft in drafts:
        priority, properties, body = draft.priority, draft.properties, draft.body
        visible_ms = expires_ms = 0
        try:
            if priority is None:
                priority = default_priority
            elif not 0 <= priority <= max_priority:
                raise InvalidInput(
                    f"priority {priority} is out of range: queue {queue.name!r} takes 0 to {max_priority}",
                    field="priority",
                )
            if properties is not known_properties:
                props = encode_props(properties)
                known_properties = properties
            if len(body) + len(props) > max_bytes:
                raise MessageTooLarge(
                    f"the message has {len(body) + len(props)} bytes with its properties, queue {queue.name!r} takes "
                    f"{max_bytes}",
                    field="payload",
                )
            if not (timeless and draft.delay_ms is None and draft.visible_at_ms is None and draft.ttl_ms is None):
                visible_ms = _visible_at(draft, settings, now_ms)
                expires_ms = _expires_at(draft, settings, visible_ms or now_ms)
            if properties.dedup_id:
                known = fresh.get(properties.dedup_id, -1)
                earlier = None if known >= 0 else _deduplicated(queue, properties.dedup_id, priority, now_ms)
                if known >= 0 or earlier is not None:
                    queue.totals[q_.DEDUPLICATED] += 1
                    if earlier is None:
                        repeats.add(len(answers))
                        answers.append(known)
                    else:
                        answers.append(msgspec.structs.replace(earlier, duplicate=True))
                    continue
            if bounded:
                size = RECORD_PREFIX_BYTES + len(props) + len(body)
                total_bytes += _take_room(queue, len(bodies) - wanted, total_bytes, size)
        except LanewayError as wrong:
            answers.append(wrong)
            if isinstance(wrong, QueueFull):
                refused.append(draft)
            continue
        if props:
            if properties.group:
                groups[len(bodies)] = properties.group
            elif properties.tenant and settings.fair:
                tenants[len(bodies)] = properties.tenant
            if properties.dedup_id and settings.dedup_window_ms:
                dedups[len(bodies)] = properties.dedup_id
                fresh[properties.dedup_id] = len(bodies)
        answers.append(len(bodies))
        blocks.append(props)
        bodies.append(body)
        priorities.append(priority)
        visible.append(visible_ms)
        expires.append(expires_ms)
    if bodies:
        order = range(len(bodies)) if groups else by_priority(priorities)
        first = state.table.next_seq
        receipts = _receipts(state, first, order, priorities, [visible[i] for i in order], now_ms)
        results += _answered(answers, receipts, repeats)
        batch = (priorities, visible, expires, blocks, bodies)
        yield _in_order(queue, now_ms, first, order, batch, groups, dedups, tenants)
        if limited and settings.overflow == "drop_oldest":
            yield from shed(state, queue, now_ms)
    else:
        results += _answered(answers, [], repeats)
    if refused and settings.overflow == "reject_dead_letter":
        yield from _bury_refused(state, queue, refused, now_ms)


def _plain_columns(queue: Queue, drafts: Sequence[Draft]) -> tuple[bytes, Sequence[int], Sequence[bytes]] | None:
    """Encoded properties that all share, priorities and bodies, if publish_columns will do for these messages."""
    if not drafts:
        return None
    bodies, asked, properties, *times = zip(*map(_FIELDS, drafts), strict=True)
    count, shared = len(drafts), properties[0]
    if not all(map(is_, properties, repeat(shared))) or shared.group or shared.dedup_id or shared.tenant:
        return None
    if any(column.count(None) != count for column in times):
        return None
    settings = queue.settings
    priorities: Sequence[int] = asked
    if None in asked:
        priorities = [settings.priority_when_unset if priority is None else priority for priority in asked]
    try:
        block = encode_props(shared)
    except InvalidInput:
        return None
    fits = 0 <= min(priorities) and max(priorities) <= settings.max_priority
    return (block, priorities, bodies) if fits and takes_columns(queue, max(map(len, bodies)) + len(block)) else None


_FIELDS = attrgetter("body", "priority", "properties", "delay_ms", "visible_at_ms", "ttl_ms")


def by_priority(priorities: Sequence[int]) -> Sequence[int]:
    """In which order the messages of a batch are numbered: what will be delivered together then stands together, on
    disk and in memory."""
    if priorities.count(priorities[0]) == len(priorities):
        return range(len(priorities))
    return sorted(range(len(priorities)), key=priorities.__getitem__, reverse=True)


def _in_order(
    queue: Queue,
    now_ms: int,
    first: int,
    order: Sequence[int],
    batch: tuple[list[int], list[int], list[int], list[bytes], list[bytes]],
    groups: dict[int, str],
    dedups: dict[int, str],
    tenants: dict[int, str],
) -> Published:
    priorities, visible, expires, blocks, bodies = batch
    if not isinstance(order, range):
        priorities, visible, expires = ([column[i] for i in order] for column in (priorities, visible, expires))
        blocks, bodies = ([column[i] for i in order] for column in (blocks, bodies))
        dedups = {at: dedups[i] for at, i in enumerate(order) if i in dedups} if dedups else dedups
        tenants = {at: tenants[i] for at, i in enumerate(order) if i in tenants} if tenants else tenants
    sizes = [RECORD_PREFIX_BYTES + len(block) + len(body) for block, body in zip(blocks, bodies, strict=True)]
    return Published(
        queue.number,
        now_ms,
        first,
        priorities,
        visible,
        expires,
        sizes,
        blocks,
        bodies,
        groups,
        dedups,
        tenants=tenants,
    )


def _receipts(
    state: State, first: int, order: Sequence[int], priorities: Sequence[int], visible: Sequence[int], now_ms: int
) -> list[Receipt]:
    """What the publishers of messages get, in the order they gave them; `order` says which got which number."""
    ids = message_ids(now_ms, state.tag, range(first, first + len(order)))
    since = [visible_ms or now_ms for visible_ms in visible] if any(visible) else repeat(now_ms)
    if isinstance(order, range):
        return list(map(Receipt, ids, priorities, repeat(now_ms), since))
    made = list(map(Receipt, ids, [priorities[i] for i in order], repeat(now_ms), since))
    receipts = made[:]
    for i, receipt in zip(order, made, strict=True):
        receipts[i] = receipt
    return receipts


def _answered(
    answers: list[int | Receipt | LanewayError], receipts: list[Receipt], repeats: set[int]
) -> list[Receipt | LanewayError]:
    if len(answers) == len(receipts):
        return [*receipts]
    out: list[Receipt | LanewayError] = []
    for at, answer in enumerate(answers):
        if not isinstance(answer, int):
            out.append(answer)
        elif at in repeats:
            out.append(msgspec.structs.replace(receipts[answer], duplicate=True))
        else:
            out.append(receipts[answer])
    return out


def takes_columns(queue: Queue, size: int) -> bool:
    """Whether messages of this size, with their encoded properties, can go in by publish_columns if they have no times,
    no group, no dedup id and no tenant."""
    s = queue.settings
    return (
        not s.delay_ms
        and s.message_ttl_ms is None
        and s.max_messages is None
        and s.max_bytes is None
        and size <= s.max_message_bytes
    )


def publish_columns(
    state: State,
    queue: Queue,
    blocks: Sequence[bytes],
    bodies: Sequence[bytes],
    priorities: Sequence[int],
    now_ms: int,
) -> Iterator[Event]:
    """Publish checked messages with nothing special about them; those of one priority should stand together."""
    around, size = RECORD_PREFIX_BYTES + len(blocks[0]), len(bodies[0])
    if blocks.count(blocks[0]) == len(bodies) and set(map(len, bodies)) == {size}:
        sizes = [around + size] * len(bodies)
    else:
        sizes = [RECORD_PREFIX_BYTES + len(block) + len(body) for block, body in zip(blocks, bodies, strict=True)]
    never = [0] * len(sizes)
    yield Published(queue.number, now_ms, state.table.next_seq, priorities, never, never, sizes, blocks, bodies, {}, {})


def _bury_refused(state: State, queue: Queue, drafts: Sequence[Draft], now_ms: int) -> Iterator[Event]:
    """Messages there is no room for come in and are dead at once; their publishers hear that there was no room."""
    s = queue.settings
    if not s.keep_dead and s.dead_letter_queue is None and s.dead_letter_exchange is None:
        return
    first = state.table.next_seq
    none = [0] * len(drafts)
    blocks = [encode_props(draft.properties) for draft in drafts]
    bodies = [draft.body for draft in drafts]
    sizes = [RECORD_PREFIX_BYTES + len(block) + len(body) for block, body in zip(blocks, bodies, strict=True)]
    priorities = [s.priority_when_unset if draft.priority is None else draft.priority for draft in drafts]
    groups = {i: draft.properties.group for i, draft in enumerate(drafts) if draft.properties.group}
    # No dedup ids: whoever hears that there was no room may well try again. No tenants: nobody waits for a turn.
    yield Published(queue.number, now_ms, first, priorities, none, none, sizes, blocks, bodies, groups, {})
    yield from bury(state, queue, range(first, first + len(drafts)), Cause.OVERFLOW, "", now_ms)


def _visible_at(draft: Draft, settings: QueueSettings, now_ms: int) -> int:
    """When the message becomes visible, 0 for at once."""
    if draft.visible_at_ms is not None:
        if draft.delay_ms is not None:
            raise InvalidInput("give a delay or an absolute time, not both", field="visible_at_ms")
        if draft.visible_at_ms > now_ms + MAX_SCHEDULE_MS:
            raise InvalidInput("the time is more than 90 days ahead", field="visible_at_ms")
        return draft.visible_at_ms if draft.visible_at_ms > now_ms else 0
    delay_ms = draft.delay_ms
    if delay_ms is None:
        delay_ms = settings.delay_ms
    elif not 0 <= delay_ms <= MAX_DELAY_MS:
        raise InvalidInput(
            f"a delay is from 0 to {MAX_DELAY_MS // 1000} seconds, not {delay_ms / 1000:g}; "
            f"use an absolute time for more",
            field="delay_ms",
        )
    return now_ms + delay_ms if delay_ms else 0


def _expires_at(draft: Draft, settings: QueueSettings, from_ms: int) -> int:
    """When the time to live ends, 0 for never; the shorter of the message's and the queue's."""
    ttl_ms = draft.ttl_ms
    if ttl_ms is not None and not 0 <= ttl_ms <= MAX_TTL_MS:
        raise InvalidInput(
            f"a time to live is from 0 to {MAX_TTL_MS // 1000} seconds, not {ttl_ms / 1000:g}", field="ttl_ms"
        )
    if settings.message_ttl_ms is not None:
        ttl_ms = settings.message_ttl_ms if ttl_ms is None else min(ttl_ms, settings.message_ttl_ms)
    return 0 if ttl_ms is None else from_ms + ttl_ms


def _deduplicated(queue: Queue, dedup_id: str, priority: int, now_ms: int) -> Receipt | None:
    known = queue.dedup.get(dedup_id)
    if known is None or known[1] + queue.settings.dedup_window_ms <= now_ms:
        return None
    return Receipt(known[0], priority, known[1], known[1], duplicate=True)


def _take_room(queue: Queue, more: int, more_bytes: int, size: int) -> int:
    """The bytes that a newcomer takes up, none if waiting consumers have it at once; QueueFull if there is no room.
    `more` came before it in the same batch, less what consumers will take."""
    settings = queue.settings
    waiting = queue.ready + queue.delayed + more
    if waiting < 0:
        return 0
    if settings.max_messages is not None and waiting >= settings.max_messages:
        raise QueueFull(f"queue {queue.name!r} is full: it holds {settings.max_messages} messages at most")
    if settings.max_bytes is not None and queue.bytes_waiting + more_bytes + size > settings.max_bytes:
        raise QueueFull(f"queue {queue.name!r} is full: it holds {settings.max_bytes} bytes at most")
    return size


def check_key(state: State, queue: Queue, key: str, fingerprint: bytes, now_ms: int) -> list[str] | None:
    """The message ids an idempotency key was answered with, "" for a message that was refused; None if the key is new;
    IdempotencyConflict if it came with something else."""
    known = state.keys.get(queue.number, key)
    if known is None or known.expires_ms <= now_ms:
        return None
    if known.fingerprint != fingerprint:
        raise IdempotencyConflict(
            "this idempotency key was used with a different body",
            field="Idempotency-Key",
            message_id=next(filter(None, known.message_ids)),
            message_ids=[message_id for message_id in known.message_ids if message_id],
        )
    return known.message_ids


def remember_key(
    state: State, queue: Queue, key: str, fingerprint: bytes, ids: list[str], now_ms: int, *, max_ids: int
) -> Iterator[Event]:
    """The oldest keys are forgotten, if together they would have been answered with more ids than that."""
    document = msgspec.msgpack.encode((key, fingerprint, ids))
    forget_ms = state.keys.crowded_until(max_ids - len(ids))
    # A clock that was set back between two starts does not make a younger key expire before an older one.
    expires_ms = max(now_ms + KEY_LIFE_MS, state.keys.youngest_ms())
    yield KeyRemembered(queue.number, now_ms, expires_ms, document, forget_ms)
