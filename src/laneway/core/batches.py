"""Messages for several queues at once, all or none: what a producer's batch and its commit are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from laneway.core.events import Event, Published
from laneway.core.message import Draft, Receipt, Receipts, messages_of
from laneway.core.publishing import publish
from laneway.core.queue import DEDUPLICATED, Queue
from laneway.core.rows import ROW_BYTES
from laneway.core.state import State
from laneway.errors import LanewayError, Refused


class Share(msgspec.Struct):
    """What one queue gets of a batch, in order, and which message of the batch each of them is."""

    queue: Queue
    drafts: list[Draft] = []
    places: list[int] = []


def check_shares(state: State, shares: Sequence[Share], now_ms: int) -> None:
    """Raise what publishing would be refused with for good. That there is no room now says nothing about later."""
    for share in shares:
        _, _, results = _begin(state, share, now_ms)
        for error in _refusals(share, results):
            if not isinstance(error, Refused):
                raise error


def publish_shares(
    state: State,
    shares: Sequence[Share],
    now_ms: int,
    results: list[Receipt | LanewayError],
    check_bytes: Callable[[int], None],
) -> Iterator[Event]:
    """Publish all of it, or raise before the first event. The ids in `results` are not those that are given in the end:
    all queues are looked at before the first of them takes its numbers. `check_bytes` is given what it will take of the
    journal, and raises if that is too much."""
    begun = [_begin(state, share, now_ms) for share in shares]
    for share, (_, _, found) in zip(shares, begun, strict=True):
        for error in _refusals(share, found):
            raise error
        results += found
    events = [event for _, event, _ in begun if event is not None]
    check_bytes(sum(sum(event.sizes) + ROW_BYTES * len(event.sizes) for event in events))
    for share, (command, event, found) in zip(shares, begun, strict=True):
        share.queue.totals[DEDUPLICATED] += sum(1 for r in found if isinstance(r, Receipt) and r.duplicate)
        if event is not None:
            event.first_seq = state.table.next_seq
            yield event
            yield from command


def _begin(
    state: State, share: Share, now_ms: int
) -> tuple[Iterator[Event], Published | None, list[Receipt | LanewayError]]:
    """The command of one queue up to its first event, which nobody has applied yet; nothing is changed by that."""
    counted = share.queue.totals[DEDUPLICATED]
    results: list[Receipts] = []
    command = publish(state, [(share.queue, len(share.drafts))], messages_of(share.drafts), now_ms, results)
    event = next(command, None)
    share.queue.totals[DEDUPLICATED] = counted
    return command, event if isinstance(event, Published) else None, results[0].each()


def _refusals(share: Share, results: Sequence[Receipt | LanewayError]) -> Iterator[LanewayError]:
    for place, result in zip(share.places, results, strict=True):
        if isinstance(result, LanewayError):
            yield of_message(place, result)


def of_message(place: int, error: LanewayError) -> LanewayError:
    """The same error, saying which message of the batch it is about."""
    field = f"[{place}]" if error.field is None else f"[{place}].{error.field}"
    return type(error)(f"message {place}: {error.message}", field=field, **error.details)
