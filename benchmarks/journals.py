"""A journal of any length for the benchmarks of the pipeline, written through the real SegmentJournal: what a busy
server leaves behind, only faster."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import msgspec

from laneway.core.events import (
    Acked,
    Births,
    Cause,
    DeadLettered,
    Event,
    Leased,
    Opened,
    Published,
    QueuePut,
    Released,
)
from laneway.core.message import RECORD_PREFIX_BYTES, Properties, encode_props
from laneway.journal.segments import SegmentJournal

START_MS = 1_794_830_400_000
TAG = 0x1234567
QUEUES = 20
TENANTS = 500
KEYS = 20_000
SHAPES = 5_000  # different properties and bodies
BATCH = 250  # messages of an event
BODY_BYTES = 100
TIERS = ("critical", "normal", "low")
ONE_QUEUE = "queue-07"


def write_journal(folder: Path, event_count: int, *, seed: int = 1) -> int:
    """Rows written. Messages of twenty queues are published, leased and acked; of every 50th batch some are released
    and taken again, of every 80th one dies."""
    chance = random.Random(seed)
    shapes = [_shape(chance) for _ in range(SHAPES)]
    journal = SegmentJournal(folder, durability="none", reserve_bytes=0)
    for _ in journal.replay(0):
        pass
    written = _commit(journal, [Opened(START_MS, 1, TAG), *_queues()])
    waiting: deque[tuple[int, int, int]] = deque()  # (queue, first number, published at)
    taken: deque[tuple[int, int, int]] = deque()
    turn, next_seq, next_lease = 0, 1, 1 << 40
    while written < event_count:
        turn += 1
        at_ms = START_MS + 2 * turn
        queue = 1 + turn % QUEUES
        events: list[Event] = [_published(queue, at_ms, next_seq, chance, shapes)]
        waiting.append((queue, next_seq, at_ms))
        next_seq += BATCH
        if len(taken) > QUEUES:
            events += _ended(turn, at_ms, *taken.popleft())
        if len(waiting) > QUEUES:
            its_queue, first, born_ms = waiting.popleft()
            seqs, births = range(first, first + BATCH), Births([born_ms] * BATCH, {})
            consumer = f"worker-{its_queue}-{turn % 7}"
            events.append(Leased(its_queue, at_ms, seqs, [1] * BATCH, next_lease, at_ms + 30_000, consumer, births))
            taken.append((its_queue, first, born_ms))
            next_lease += BATCH
        written += _commit(journal, events)
    journal.close()
    return written


def _queues() -> list[Event]:
    found: list[Event] = []
    for number in range(1, QUEUES + 1):
        document = {"vhost": "/", "name": f"queue-{number:02d}", "settings": {"tier": TIERS[number % 3]}}
        found.append(QueuePut(number, START_MS, msgspec.json.encode(document)))
    return found


def _shape(chance: random.Random) -> tuple[bytes, bytes]:
    properties = Properties(
        tenant=f"tenant-{int(chance.paretovariate(0.8)) % TENANTS}",
        key=f"customer-{int(chance.paretovariate(0.5)) % KEYS}",
        correlation_id=f"{chance.getrandbits(64):016x}" if chance.random() < 0.5 else "",
        attributes={"region": chance.choice(("eu", "us")), "try": chance.randrange(3)} if chance.random() < 0.5 else {},
    )
    return encode_props(properties), chance.randbytes(BODY_BYTES)


def _published(
    queue: int, at_ms: int, first: int, chance: random.Random, shapes: list[tuple[bytes, bytes]]
) -> Published:
    chosen = chance.choices(shapes, k=BATCH)
    props, bodies = [one[0] for one in chosen], [one[1] for one in chosen]
    sizes = [RECORD_PREFIX_BYTES + len(block) + BODY_BYTES for block in props]
    zeros = [0] * BATCH
    priorities = sorted(chance.choices((1, 5, 5, 5, 9), k=BATCH), reverse=True)  # as a server numbers a batch
    return Published(queue, at_ms, first, priorities, zeros, zeros, sizes, props, bodies, {}, {})


def _ended(turn: int, at_ms: int, queue: int, first: int, born_ms: int) -> list[Event]:
    seqs = range(first, first + BATCH)
    lease = (1 << 40) + first - 1
    if turn % 80 == 0:
        died = DeadLettered(
            queue, at_ms, seqs[:1], Cause.REJECTED, "HTTPError: 502 from the warehouse", Births([born_ms], {})
        )
        return [died, _acked(queue, at_ms, seqs[1:], lease + 1, born_ms)]
    if turn % 50 == 0:
        some = seqs[:10]
        births = Births([born_ms] * 10, {})
        released = Released(queue, at_ms, some, [at_ms + 1000] * 10, Cause.LEASE_EXPIRED, births)
        return [released, _acked(queue, at_ms, seqs[10:], lease + 10, born_ms)]
    return [_acked(queue, at_ms, seqs, lease, born_ms)]


def _acked(queue: int, at_ms: int, seqs: range, lease: int, born_ms: int) -> Acked:
    return Acked(queue, at_ms, seqs, range(lease, lease + len(seqs)), Births([born_ms] * len(seqs), {}))


def _commit(journal: SegmentJournal, events: list[Event]) -> int:
    for event in events:
        journal.stage(event)
    commit = journal.seal()
    assert commit is not None
    journal.write(commit)
    return commit.event_count
