"""Commands: what callers want, checked against the state and turned into events.

Each command is a generator. Whoever runs it applies every event it yields before asking for the next, so a later
event of the same command sees what the earlier one did.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from laneway.core.events import (
    Cause,
    Event,
    KeyRemembered,
    QueueDeleted,
    QueuePurged,
    QueuePut,
    Removed,
)
from laneway.core.queue import Queue
from laneway.core.settings import DAY_MS, RANGES, QueueSettings, check_queue_name, check_settings, declared
from laneway.core.state import QueueDocument, State, queue_document
from laneway.core.table import DEAD, LEASED
from laneway.core.world import KnownQueue
from laneway.errors import (
    Conflict,
    IdempotencyConflict,
    InvalidInput,
    LimitExceeded,
    QueueElsewhere,
    QueueInUse,
    QueueNotFound,
    Unavailable,
)

KEY_LIFE_MS = DAY_MS


# Queues


def find_queue(state: State, vhost: str, name: str) -> Queue:
    queue = state.by_name.get((vhost, name))
    if queue is None:
        raise no_queue(vhost, name)
    return queue


def find_known(state: State, vhost: str, name: str) -> KnownQueue:
    """A queue of the server, in whichever partition."""
    queue = state.world.by_name.get((vhost, name))
    if queue is None:
        raise no_queue(vhost, name)
    return queue


def no_queue(vhost: str, name: str) -> QueueNotFound:
    where = "" if vhost == "/" else f" in virtual host {vhost!r}"
    return QueueNotFound(f"there is no queue {name!r}{where}; create it first", field="queue", queue=name)


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
    if target is not None and (vhost, target) not in state.world.by_name:
        raise InvalidInput(f"dead-letter queue {target!r} does not exist; create it first", field="dead_letter_queue")
    queue = state.by_name.get((vhost, name))
    if queue is None and state.world is not state:
        _check_home(state, vhost, name)
    count = len(state.world.by_name)
    if queue is None and count >= max_queues:
        raise LimitExceeded(f"there are {count} queues already, {max_queues} are allowed", field="queue")
    if queue is None or queue.settings != settings:
        placed = queue is not None and queue.placed
        document = msgspec.json.encode(QueueDocument(vhost, name, settings, placed=placed))
        yield QueuePut(queue.number if queue else state.next_queue, now_ms, document)


def _check_home(state: State, vhost: str, name: str) -> None:
    """Whether a queue is made here: nowhere else may be one of that name, and no two partitions may make it."""
    world = state.world
    if not world.is_complete:
        raise Unavailable("not all partitions have been heard of yet; try again in a moment")
    if (vhost, name) in world.by_name or world.home(vhost, name) != state.partition:
        raise QueueElsewhere(f"queue {name!r} belongs to another partition", field="queue")


def changed_settings(queue: Queue, changes: dict[str, Any]) -> QueueSettings:
    merged = {**msgspec.structs.asdict(declared(queue.settings)), **changes}
    try:
        return msgspec.convert(merged, QueueSettings)
    except msgspec.ValidationError as wrong:
        field = next((name for name in changes if f"`{name}`" in str(wrong) or f"$.{name}" in str(wrong)), None)
        raise InvalidInput(str(wrong), field=field) from None


def check_deletion(state: State, queue: Queue, *, if_empty: bool) -> None:
    if if_empty and (queue.ready or queue.leased or queue.delayed or queue.dead):
        raise Conflict(f"queue {queue.name!r} is not empty", field="if_empty")
    if (queue.vhost, queue.name) in state.world.senders:  # which ones, not everybody may know
        raise QueueInUse(f"dead letters of other queues go to {queue.name!r}; change those queues first", field="queue")


def delete_queue(state: State, queue: Queue, now_ms: int, *, if_empty: bool) -> Iterator[Event]:
    check_deletion(state, queue, if_empty=if_empty)
    yield QueueDeleted(queue.number, now_ms, queue_document(queue))


def purge_queue(
    state: State,
    queue: Queue,
    now_ms: int,
    *,
    leased: bool = False,
    dead: bool = False,
    span: tuple[int, int] | None = None,
) -> Iterator[Event]:
    """Delete what waits; with `leased`, also what consumers hold, who can no longer settle it, and the deduplication
    ids of all; with `dead`, also the dead letters. `span`: one step of a purge, from a number to the one behind the
    last; nothing is left below."""
    first, end = span or (0, state.table.next_seq)
    forgets = leased and first == 0 and bool(queue.dedup)
    if queue.ready or queue.delayed or forgets:
        yield QueuePurged(queue.number, now_ms, end, forgets)
    others = (LEASED,) * leased + (DEAD,) * dead
    found = (state.table.find(queue.number, other, max(first - 1, 0), end - 1) for other in others)
    gone = [seq for seq in chain.from_iterable(found) if seq < end]
    if gone:
        yield Removed(queue.number, now_ms, gone, Cause.DELETED)


# Idempotency keys


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
