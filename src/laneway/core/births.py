"""Which messages an event is about: what its rows say beside their numbers, so that they can be read without the state.

Whoever stages events calls `note` on each right before, while the messages are still where the event finds them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from laneway.core.events import (
    Acked,
    Births,
    Copied,
    DeadLettered,
    Event,
    Extended,
    Leased,
    Moved,
    Released,
    Relocated,
    Removed,
    Reserved,
)
from laneway.core.runs import Seqs, runs
from laneway.core.state import State
from laneway.core.table import SLAB_BITS, SLAB_MASK

_NONE: dict[int, int] = {}
_ABOUT_MESSAGES = frozenset(
    (Leased, Acked, Released, Extended, Reserved, DeadLettered, Moved, Copied, Removed, Relocated)
)


def note(state: State, event: Event) -> None:
    """Fill in the births of an event about messages that there are."""
    if type(event) in _ABOUT_MESSAGES:
        seqs: Sequence[int] = event.seqs  # type: ignore[union-attr]
        if len(seqs) > 1 and type(seqs) is list:
            seqs = event.seqs = Seqs(seqs)  # type: ignore[union-attr]  # applying it asks for its runs too
        event.births = births(state, seqs)  # type: ignore[union-attr]


def births(state: State, seqs: Sequence[int]) -> Births:
    """Hot: neighbours cost a slice."""
    slabs, stories = state.table.slabs, state.stories
    enqueued_ms: Sequence[int]
    if len(seqs) == 1:
        slab, i = slabs[seqs[0] >> SLAB_BITS], seqs[0] & SLAB_MASK
        enqueued_ms = ((slab.enqueued_ms or slab.since_ms)[i],)
    else:
        enqueued_ms = array("Q")
        for first, count in runs(seqs):
            slab, i = slabs[first >> SLAB_BITS], first & SLAB_MASK
            enqueued_ms += (slab.enqueued_ms or slab.since_ms)[i : i + count]
    if not stories or stories.keys().isdisjoint(seqs):
        return Births(enqueued_ms, _NONE)
    told = [(i, seq, s) for i, seq in enumerate(seqs) if (s := stories.get(seq)) is not None]
    numbers = {i: s.record_seq for i, seq, s in told if s.record_seq != seq}
    return Births(enqueued_ms, numbers, {i: s.tag for i, _, s in told if s.tag})
