"""What one request may put into queues in one turn of the loop. A publish that is larger is cut into parts; what must
be done at once, as a transaction, is refused.

A message that goes to many queues costs something for each of them, and more for each queue that is new to a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby, repeat
from operator import add
from typing import Any

from laneway.broker.interface import Publish, Spread, Targets, Transact
from laneway.broker.values import Arrival
from laneway.core.message import RECORD_PREFIX_BYTES
from laneway.core.rows import ROW_BYTES
from laneway.errors import BatchTooLarge, LanewayError

#: A copy of a message in a queue counts as one, a queue as so many: roughly microseconds.
QUEUE_COST = 20
#: One part of a publish.
MAX_COST = 20_000
#: What cannot be cut.
MAX_ATOMIC_COST = 200_000
#: Fewer copies are never too many.
_FEW = MAX_COST // (QUEUE_COST + 1)


def _cost(targets: Targets | list[Targets], count: int, most: int) -> int:
    """At least: what is above `most` is too much, however much it is."""
    if type(targets) is list:
        copies = sum(map(len, targets))
        if copies <= _FEW or copies > most:
            return copies
        return copies + QUEUE_COST * len(set(chain.from_iterable(targets)))
    return len(targets) * (count + QUEUE_COST)


def is_long(targets: Targets | list[Targets], count: int) -> bool:
    return _cost(targets, count, MAX_COST) > MAX_COST


def check_atomic(targets: Targets | list[Targets], count: int) -> None:
    cost = _cost(targets, count, MAX_ATOMIC_COST)
    if cost > MAX_ATOMIC_COST:
        raise BatchTooLarge(
            f"{count} messages that are published as one would cost {cost} for the queues they reach (a copy counts as "
            f"1, a queue as {QUEUE_COST}), {MAX_ATOMIC_COST} is allowed; publish fewer, or to fewer queues, at once"
        )


def stored_bytes(request: Publish | Transact | Spread) -> int:
    """What a publish will take of the journal: a record for each message, and a row for each queue it goes to."""
    props, bodies, targets = request.messages.props, request.messages.bodies, request.targets
    row_count = sum(map(len, targets)) if type(targets) is list else len(targets) * len(bodies)
    return sum(map(len, props)) + sum(map(len, bodies)) + RECORD_PREFIX_BYTES * len(bodies) + ROW_BYTES * row_count


def stored_bytes_in_parts(request: Publish) -> int:
    """The same if it goes in parts: a message has a record in each part that it is in."""
    props, bodies = request.messages.props, request.messages.bodies
    sizes = map(add, map(len, props), map(len, bodies))
    before = list(accumulate(map(add, sizes, repeat(RECORD_PREFIX_BYTES)), initial=0))
    return sum(
        before[run.stop] - before[run.start] + ROW_BYTES * len(run) * len(some)
        for pieces in _cut(request)
        for run, some in pieces
    )


def parts(request: Publish) -> Iterator[tuple[Publish, Sequence[int]]]:
    """A publish as several, and which of its messages each of them has. Every queue gets its messages in order."""
    for pieces in _cut(request):
        yield _part(request, pieces)


def _cut(request: Publish) -> Iterator[list[tuple[range, Targets]]]:
    """Of each part: which messages go to which queues."""
    count = len(request.messages.bodies)
    given = request.targets
    per_message: list[Targets] = given if isinstance(given, list) else [given] * count
    pieces: list[tuple[range, Targets]] = []
    cost = first = 0
    for targets, same in groupby(per_message):
        run = range(first, first + len(list(same)))
        first = run.stop
        most = max(1, MAX_COST // (QUEUE_COST + len(run)))
        for at in range(0, len(targets), most):
            some = targets[at : at + most]
            piece_cost = len(some) * (QUEUE_COST + len(run))
            if pieces and cost + piece_cost > MAX_COST:
                yield pieces
                pieces, cost = [], 0
            pieces.append((run, some))
            cost += piece_cost
    if pieces:
        yield pieces


def _part(request: Publish, pieces: Sequence[tuple[range, Targets]]) -> tuple[Publish, Sequence[int]]:
    places = [place for run, _ in pieces for place in run]
    targets = [some for run, some in pieces for _ in run]
    messages = request.messages
    if len(places) < len(messages.bodies):
        messages = messages.at(places)
    return Publish(targets, messages, request.key, request.protocol), places


def placed(answer: Any, part: Publish, places: Sequence[int]) -> Iterator[Arrival]:
    """What became of a part, in the places that its messages have in the whole."""
    if isinstance(answer, LanewayError):
        for number in dict.fromkeys(chain.from_iterable(part.targets)):  # type: ignore[arg-type]
            yield Arrival(number, places, answer)
        return
    for arrival in answer:
        own = arrival.places
        yield Arrival(arrival.queue, places if own is None else [places[at] for at in own], arrival.result)
