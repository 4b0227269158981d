"""Looking at messages without leasing them: pages of any state, filters, and picking dead letters for a redrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from heapq import merge
from itertools import islice

from laneway.broker.engine import Engine
from laneway.broker.values import DeadLetterFilter, PeekQuery
from laneway.core.burial import find_message, is_dead_letter, number_of
from laneway.core.message import Glimpse
from laneway.core.queue import Queue
from laneway.core.table import DEAD, DELAYED, LEASED, READY, SLAB_BITS, SLAB_MASK
from laneway.errors import InvalidInput, MessageNotFound

STATES = {"ready": READY, "leased": LEASED, "delayed": DELAYED, "dead": DEAD}
MAX_SCANNED = 20_000  # messages looked at for one page; a page may come back short, with a cursor
MAX_SLABS = 256  # looked into for one page, each with up to 1,024 messages that may all be of other queues
READ_BATCH = 200
TOP_PRIORITY = 255


async def fetch(engine: Engine, seqs: Sequence[int]) -> None:
    """Have the records of messages read in a thread, so that the loop finds them in the system's cache and does not
    wait for the disk."""
    missing = [seq for seq in seqs if engine.kept((seq,)) is None]
    if missing:
        await asyncio.to_thread(engine.read_columns, *engine.locations(missing))


async def peek(engine: Engine, queue: Queue, query: PeekQuery, now_ms: int) -> tuple[list[Glimpse], str | None]:
    page: list[Glimpse] = []
    page_bytes = scanned = 0
    states, position = _resume(query)
    for name in states:
        reached = None
        if name == "ready":
            candidates = _ready(engine, queue, *position)
        else:
            candidates, reached = _others(engine, queue, name, position[1])
        position = (TOP_PRIORITY, 0)
        end = None
        while found := list(islice(candidates, READ_BATCH)):
            scanned += len(found)
            batch = _still(engine, name, found)  # since they were picked
            if batch:
                end = _cursor(engine, name, batch[-1])
                await fetch(engine, batch)
                batch = _still(engine, name, batch)
            for seq, glimpse in zip(batch, engine.glimpses(batch), strict=True):
                if glimpse is not None and _wanted(glimpse, query, now_ms):
                    page.append(glimpse)
                    page_bytes += len(glimpse.body)
                    if len(page) >= query.limit or page_bytes >= query.max_bytes:
                        return page, _cursor(engine, name, seq)
            if scanned >= MAX_SCANNED and end is not None:
                return page, end
        if reached is not None:
            return page, f"{name}.0.{reached}"
    return page, None


def _still(engine: Engine, name: str, seqs: Sequence[int]) -> list[int]:
    """Those that are in a state, and not gone or elsewhere by now."""
    return [seq for seq in seqs if engine.state.table.state(seq) == STATES[name]]


def _cursor(engine: Engine, name: str, seq: int) -> str:
    priority = engine.state.table.slabs[seq >> SLAB_BITS].priority[seq & SLAB_MASK]
    return f"{name}.{priority}.{seq}"


def _resume(query: PeekQuery) -> tuple[tuple[str, ...], tuple[int, int]]:
    """The states still to be shown and (priority, number) to go on after."""
    unknown = [s for s in query.states if s not in STATES]
    if unknown:
        raise InvalidInput(f"unknown state {unknown[0]!r}: use {', '.join(STATES)}", field="state")
    if query.cursor is None:
        return query.states, (TOP_PRIORITY, 0)
    try:
        name, priority, seq = query.cursor.split(".")
        at = query.states.index(name)
        return query.states[at:], (int(priority), int(seq))
    except ValueError:
        raise InvalidInput("this cursor is not of this query", field="cursor") from None


def _others(engine: Engine, queue: Queue, name: str, after: int) -> tuple[Iterator[int], int | None]:
    """Numbers of leased, delayed or dead ones, ascending, and how far was looked if that is not to the end."""
    table, state = engine.state.table, STATES[name]
    count = {LEASED: queue.leased, DELAYED: queue.delayed, DEAD: len(queue.dead)}[state]
    reached = table.reach(state, after, MAX_SLABS) if count else None
    most = min(count, MAX_SCANNED)
    found = list(islice(table.find(queue.number, state, after, reached), most))
    return iter(found), None if len(found) == most else reached


def _ready(engine: Engine, queue: Queue, priority: int, after: int) -> Iterator[int]:
    """Numbers of ready ones, highest priority first, and by number, which is the order of delivery where nobody has to
    wait for another of its group or for quieter tenants."""
    table = engine.state.table
    for p in sorted(queue.ready_by_priority(), reverse=True):
        if p > priority:
            continue
        start = after if p == priority else 0
        sources = []
        if p in queue.lanes:
            sources.append(list(islice(queue.lanes[p].after(start, table), MAX_SCANNED)))
        if queue.tenants is not None and queue.tenants.ready.get(p):
            of_tenants = merge(*(lane.after(start, table) for there, lane in queue.tenants.lanes() if there == p))
            sources.append(list(islice(of_tenants, MAX_SCANNED)))
        if queue.grouped_ready.get(p):
            sources.append(
                sorted(
                    s
                    for s in queue.group_of
                    if s > start
                    and table.state(s) == READY
                    and table.slabs[s >> SLAB_BITS].priority[s & SLAB_MASK] == p
                )
            )
        yield from merge(*sources)


def _wanted(g: Glimpse, query: PeekQuery, now_ms: int) -> bool:
    if query.priority is not None and g.priority != query.priority:
        return False
    if query.attribute is not None and not has_attribute(g, query.attribute):
        return False
    age_ms = now_ms - g.enqueued_at_ms
    if query.older_than_ms is not None and age_ms < query.older_than_ms:
        return False
    if query.newer_than_ms is not None and age_ms > query.newer_than_ms:
        return False
    return query.reason is None or (bool(g.deaths) and g.deaths[-1].reason == query.reason)


def has_attribute(g: Glimpse, wanted: tuple[str, str]) -> bool:
    name, text = wanted
    if name not in g.properties.attributes:
        return False
    value = g.properties.attributes[name]
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    if isinstance(value, bytes):
        return value == text.encode()
    return str(value) == text


def all_dead_letters(engine: Engine, queue: Queue) -> list[int]:
    """Numbers of the dead letters this queue holds: its own, and those of others that wait in it."""
    state = engine.state
    here = (s for s, story in state.stories.items() if story.origin and is_dead_letter(state, queue, s))
    return sorted({*queue.dead, *here})


async def dead_letters(engine: Engine, queue: Queue, wanted: DeadLetterFilter, now_ms: int) -> AsyncIterator[list[int]]:
    """Numbers of the dead letters that match, in batches; each batch is looked at when it is asked for.

    An id that is no dead letter of the queue (any more) is passed over: see check_dead_letters.
    """
    if wanted.message_ids is not None:
        seqs = [number_of(engine.state, queue, text) for text in dict.fromkeys(wanted.message_ids)]
    else:
        seqs = all_dead_letters(engine, queue)
    for i in range(0, len(seqs), READ_BATCH):
        batch = [s for s in seqs[i : i + READ_BATCH] if is_dead_letter(engine.state, queue, s)]
        if wanted.attribute is not None:
            await fetch(engine, batch)
            batch = [s for s in batch if is_dead_letter(engine.state, queue, s)]
        yield [s for s in batch if _matches(engine, s, wanted, now_ms)]


def check_dead_letters(engine: Engine, queue: Queue, message_ids: Sequence[str]) -> None:
    """Say which id is wrong, before anything is done."""
    for text in message_ids:
        if not is_dead_letter(engine.state, queue, find_message(engine.state, queue, text)):
            raise MessageNotFound(f"message {text} is no dead letter of queue {queue.name!r}", field="message_ids")


def _matches(engine: Engine, seq: int, wanted: DeadLetterFilter, now_ms: int) -> bool:
    death = engine.state.stories[seq].deaths[-1]
    age_ms = now_ms - death.at_ms
    if wanted.reason is not None and death.reason != wanted.reason:
        return False
    if wanted.older_than_ms is not None and age_ms < wanted.older_than_ms:
        return False
    if wanted.newer_than_ms is not None and age_ms > wanted.newer_than_ms:
        return False
    if wanted.attribute is None:
        return True
    glimpse = engine.glimpses([seq])[0]
    return glimpse is not None and has_attribute(glimpse, wanted.attribute)
