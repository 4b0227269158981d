"""A small journal of even traffic: every second some messages are published, leased and acked in three queues."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from laneway.core.events import Acked, Births, Event, Leased, Opened, Published, QueuePut
from laneway.core.message import RECORD_PREFIX_BYTES, Properties, encode_props
from tests.pipeline.histories import TAG

NOON_MS = 1_794_830_400_000
QUEUES = {1: ("/", "orders", "critical"), 2: ("/", "mails", "normal"), 3: ("other", "orders", "low")}
MESSAGES = 40  # a commit
FIRST_COMMITS = 4  # before the traffic begins
COMMITS_A_ROUND = 9
ROWS_A_ROUND = COMMITS_A_ROUND * MESSAGES


def published(queue: int, at_ms: int, first: int, count: int = MESSAGES) -> Published:
    given = [Properties(tenant=f"t{n % 3}", key=f"k{n}", attributes={"region": "eu", "n": n % 2}) for n in range(count)]
    blocks = [encode_props(one) for one in given]
    bodies = [b"body %d" % n for n in range(first, first + count)]
    sizes = [RECORD_PREFIX_BYTES + len(block) + len(body) for block, body in zip(blocks, bodies, strict=True)]
    zeros = [0] * count
    return Published(queue, at_ms, first, [n % 10 for n in range(count)], zeros, zeros, sizes, blocks, bodies, {}, {})


def traffic(rounds: int, first_round: int = 0, *, epoch: int = 1, start_ms: int = NOON_MS) -> Iterator[list[Event]]:
    """The commits of so many rounds, one a second; a first round of 0 begins the journal."""
    yield [Opened(start_ms + 1000 * first_round, epoch, TAG)]
    if not first_round:
        for number, (vhost, name, tier) in QUEUES.items():
            document = {"vhost": vhost, "name": name, "settings": {"tier": tier}}
            yield [QueuePut(number, start_ms, msgspec.json.encode(document))]
    for turn in range(first_round, first_round + rounds):
        at_ms = start_ms + 1000 * turn
        for queue in QUEUES:
            first = 1 + (3 * turn + queue - 1) * MESSAGES
            seqs = range(first, first + MESSAGES)
            births = Births([at_ms] * MESSAGES, {})
            yield [published(queue, at_ms, first)]
            yield [Leased(queue, at_ms + 10, seqs, [1] * MESSAGES, first, at_ms + 30_000, f"worker-{queue}", births)]
            yield [Acked(queue, at_ms + 20, seqs, seqs, births)]
