"""What a message that died or moved carries on, beside its record: its deaths, and how it came where it is.

The record never changes, so whatever became different since it was written stands in its story. A death that says
nothing of an exchange or a routing key means those of the record; `fill_in` adds them when someone looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from laneway.core.events import Cause
from laneway.core.message import Death, Properties, routing_keys

REASONS = {
    Cause.MAX_RECEIVES: "max_receives",
    Cause.EXPIRED: "expired",
    Cause.REJECTED: "rejected",
    Cause.OVERFLOW: "overflow",
}

NUMBER_BITS = 48  # of message numbers, in ids

#: A message that dies in very many queues keeps its first death and the latest ones.
MAX_DEATHS = 32


class Baggage(msgspec.Struct, frozen=True, array_like=True):
    """How a message was in its queue when that left for another partition."""

    state: int  # as in table.py
    flags: int  # of them, OVERDUE, SCHEDULED and NAMED_TIME
    receives: int
    since_ms: int
    due_ms: int = 0
    expires_ms: int = 0
    lease: int = 0  # the last one, also if it has ended: who had it may still settle late. 0: none, or a session's
    seq: int = 0  # the number that its lease was given with
    holder: int = 0  # the process whose session holds it, and 1; 0: it is leased by a token
    consumer: str = ""


class Carried(msgspec.Struct, frozen=True, array_like=True):
    """A lease that was given in the partition that the queue came from: until the message is leased anew or is gone, a
    session's until it ends."""

    given_seq: int  # the number that the message had then
    seq: int  # … and has now
    holder: int  # as Baggage.holder


class QueueBaggage(msgspec.Struct, frozen=True, array_like=True):
    """What a queue takes along to another partition, beside its messages."""

    totals: list[int] = []
    rates: list[list[int]] = []
    dedups: list[tuple[str, str, int]] = []  # as remembered, the message's id, and when
    turns: list[str] = []  # groups that stand in line behind all that has come so far


class Story(msgspec.Struct, frozen=True, array_like=True):
    record_seq: int  # the number its record was written under
    origin: int  # id of the queue a redrive takes it back to, if it is kept in another; 0: it is no dead letter
    deaths: tuple[Death, ...]  # one for each queue and reason, the latest last
    group: str = ""  # of one that is dead in its queue, or in an outbox: it joins it again when redriven, or there
    exchange: str | None = None  # that it came through as a dead letter; None: that of its record
    routing_key: str | None = None  # that it was given then; None: those of its record
    redriven: int = 0  # so many of its deaths, the first ones, came before it was last redriven
    priority: int | None = None  # that it was published with, if the queue it is in takes less
    moved_ms: int = 0  # by how much the clock was set since it died: its retention counts from then and this
    bound_for: int = 0  # of one in an outbox: the id of the queue of another partition that it is on its way to
    left: int = 0  # … and the number of the queue that it left; 0: it goes back, as the one it came for is gone
    tag: int = 0  # of the store it was born in; 0: of this one
    baggage: Baggage | None = None  # of one in an outbox that leaves with its whole queue

    @property
    def identity(self) -> int:
        """What its id says beside the time: it has the same in every queue of this partition."""
        return self.tag << NUMBER_BITS | self.record_seq


def died(story: Story | None, seq: int, queue: str, cause: Cause, detail: str, receives: int, at_ms: int) -> Story:
    """The story with one more death. A death of the same queue and reason counts up, and is the latest again."""
    reason = REASONS.get(cause, "moved")
    if story is None:
        return Story(seq, 0, (Death(queue, reason, at_ms, receives, detail, 1, at_ms, True),))
    same = next((d for d in story.deaths if d.queue == queue and d.reason == reason), None)
    if same is None:
        keys = None if story.routing_key is None else (story.routing_key,)
        is_first = not story.deaths
        death = Death(queue, reason, at_ms, receives, detail, 1, at_ms, is_first, story.exchange, keys)
    else:
        death = msgspec.structs.replace(
            same,
            at_ms=at_ms,
            receives=receives,
            detail=detail,
            count=same.count + 1,
            first_at_ms=same.first_at_ms or same.at_ms,
        )
    deaths, redriven = list(story.deaths), story.redriven
    gone = None
    if same is not None:
        gone = deaths.index(same)
    elif len(deaths) >= MAX_DEATHS:
        gone = 1 if deaths[0] is first_death(deaths) else 0
    if gone is not None:
        del deaths[gone]
        redriven -= gone < redriven
    return msgspec.structs.replace(story, deaths=(*deaths, death), redriven=redriven, moved_ms=0)


def first_death(deaths: Sequence[Death]) -> Death:
    """The one that came before all others; of those kept by an older version, which did not say it, the earliest."""
    return next((d for d in deaths if d.is_first), deaths[0])


class Shown(NamedTuple):
    properties: Properties
    deaths: tuple[Death, ...]


def fill_in(story: Story, properties: Properties) -> Shown:
    """A message's properties and deaths as they are shown: what its story leaves open, its record says."""
    deaths = tuple([_fill_in(death, properties) for death in story.deaths])
    if story.exchange is not None:
        key = properties.routing_key if story.routing_key is None else story.routing_key
        properties = msgspec.structs.replace(properties, exchange=story.exchange, routing_key=key)
    return Shown(properties, deaths)


def _fill_in(death: Death, properties: Properties) -> Death:
    if death.exchange is not None and death.routing_keys is not None and not death.is_first:
        return death
    keys = routing_keys(properties)
    return msgspec.structs.replace(
        death,
        first_at_ms=death.first_at_ms or death.at_ms,
        exchange=properties.exchange if death.exchange is None else death.exchange,
        routing_keys=keys if death.routing_keys is None else death.routing_keys,
        # Only its first time to live is the publisher's: a dead letter has that of the queue it is in.
        original_expiration=str(properties.extra.get("expiration", "")) if death.is_first else "",
    )
