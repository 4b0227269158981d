"""Emptying a queue in steps, each of which is small enough for one turn of the loop (commands.purge_queue).

A step takes what there is between two numbers, so what is published meanwhile stays, and a crash leaves a queue that
is emptied in part.
"""

from __future__ import annotations

from collections.abc import Iterator

from laneway.core.queue import Queue
from laneway.core.state import State
from laneway.core.table import SLAB_BITS, SLAB_ROWS

#: What one step may cost: 1 is a message that goes on its own, some microseconds.
SLICE = 10_000
#: A slab that goes as a whole, or in which there is nothing to do.
_SLAB_COST = 10
#: Of a queue that is deleted, whatever it holds.
_QUEUE_COST = 20


def weight(queue: Queue) -> int:
    """How many messages a queue has, in whatever state."""
    return queue.ready + queue.delayed + queue.leased + len(queue.dead)


def deletion_cost(queue: Queue) -> int:
    return _QUEUE_COST + weight(queue)


def spans(state: State, queue: Queue) -> Iterator[tuple[int, int]]:
    """(first number, number behind the last) of the steps that empty a queue of what it holds now."""
    table, end = state.table, state.table.next_seq
    first = cost = 0
    for number in sorted(table.slabs) if weight(queue) > SLICE else ():
        cost += _cost(state, queue, number)
        if cost >= SLICE:
            yield first, min((number + 1) << SLAB_BITS, end)
            first, cost = (number + 1) << SLAB_BITS, 0
    if first < end:
        yield first, end


def _cost(state: State, queue: Queue, number: int) -> int:
    slab = state.table.slabs.get(number)
    if slab is None or (slab.live == SLAB_ROWS and state.table.goes_whole(number, queue.number) is not None):
        return _SLAB_COST
    return _SLAB_COST + min(slab.live, slab.queue.count(queue.number))
