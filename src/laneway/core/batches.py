"""Messages for several queues at once, all or none: what a producer's batch and its commit are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter

import msgspec

from laneway.core.events import Event, Published
from laneway.core.message import Draft, Receipt, Receipts, messages_of
from laneway.core.outbox import Parcel, parcel
from laneway.core.partitions import local_number, partition_of
from laneway.core.publishing import SharedRecords, publish
from laneway.core.queue import DEDUPLICATED, Queue
from laneway.core.rows import ROW_BYTES
from laneway.core.state import State
from laneway.core.world import KnownQueue
from laneway.errors import LanewayError, Refused


class Share(msgspec.Struct):
    """What one queue gets of a batch, in order, and which message of the batch each of them is."""

    queue: Queue  # of one in another partition: an empty one with its settings, to check against
    partition: int
    drafts: list[Draft] = []
    places: list[int] = []


#: A batch is cut for another partition, which does one parcel in one turn.
MAX_PARCEL_COUNT = 2_000
MAX_PARCEL_BYTES = 2 * 1024 * 1024


def share_of(state: State, known: KnownQueue) -> Share:
    """An empty one, for a queue of the server."""
    queue = state.own(known.number)
    if queue is None:
        queue = Queue(local_number(known.number), known.vhost, known.name, known.settings, 0)
    return Share(queue, partition_of(known.number))


def parcels(shares: Sequence[Share]) -> Iterator[tuple[int, Parcel]]:
    """What goes to other partitions, and to which: the messages in order, each once for all its queues there."""
    by_partition: dict[int, dict[tuple[int, int], tuple[Draft, list[int]]]] = {}
    for share in shares:
        drafts = by_partition.setdefault(share.partition, {})
        for place, draft in zip(share.places, share.drafts, strict=True):
            drafts.setdefault((place, id(draft)), (draft, []))[1].append(share.queue.number)
    for partition, drafts in by_partition.items():
        for some in _cut([drafts[key] for key in sorted(drafts, key=itemgetter(0))]):
            messages = messages_of([draft for draft, _ in some])
            messages.is_promised = True
            yield partition, parcel([tuple(numbers) for _, numbers in some], messages, [])


def _cut(drafts: list[tuple[Draft, list[int]]]) -> Iterator[list[tuple[Draft, list[int]]]]:
    first = count = byte_count = 0
    for at, (draft, numbers) in enumerate(drafts):
        size = len(draft.body)
        if at > first and (count + len(numbers) > MAX_PARCEL_COUNT or byte_count + size > MAX_PARCEL_BYTES):
            yield drafts[first:at]
            first, count, byte_count = at, 0, 0
        count, byte_count = count + len(numbers), byte_count + size
    if first < len(drafts):
        yield drafts[first:]


def check_shares(state: State, shares: Sequence[Share], now_ms: int) -> None:
    """Raise what publishing would be refused with for good. That there is no room now says nothing about later."""
    for share in shares:
        _, _, results = _begin(state, share, now_ms, None)
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
    records = _shared_records(shares)
    begun = [_begin(state, share, now_ms, its) for share, its in zip(shares, records, strict=True)]
    for share, (_, _, found) in zip(shares, begun, strict=True):
        for error in _refusals(share, found):
            raise error
        results += found
    check_bytes(_stored_bytes([event for _, event, _ in begun], records))
    for share, its, (command, event, found) in zip(shares, records, begun, strict=True):
        share.queue.totals[DEDUPLICATED] += sum(1 for r in found if isinstance(r, Receipt) and r.duplicate)
        if event is not None:
            event.first_seq = state.table.next_seq
            if its is not None:
                event.locations = its.placed()  # the commit has more of them than when the event was made
            yield event
            yield from command


def _shared_records(shares: Sequence[Share]) -> list[SharedRecords | None]:
    """For each share. A draft that several queues take as it is, is one record."""
    numbers = [list(map(id, share.drafts)) for share in shares]
    locations: dict[int, int] = {}
    is_shared = len(set(chain.from_iterable(numbers))) < sum(map(len, numbers))
    return [SharedRecords(its, locations) if is_shared else None for its in numbers]


def _stored_bytes(events: Sequence[Published | None], records: Sequence[SharedRecords | None]) -> int:
    """What these take of the journal."""
    shared: dict[int, int] = {}
    total = 0
    for event, its in zip(events, records, strict=True):
        if event is not None:
            total += ROW_BYTES * len(event.sizes)
            if its is None:
                total += sum(event.sizes)
            else:
                shared.update(zip(its.of_event, event.sizes, strict=True))
    return total + sum(shared.values())


def _begin(
    state: State, share: Share, now_ms: int, records: SharedRecords | None
) -> tuple[Iterator[Event], Published | None, list[Receipt | LanewayError]]:
    """The command of one queue up to its first event, which nobody has applied yet; nothing is changed by that."""
    counted = share.queue.totals[DEDUPLICATED]
    results: list[Receipts] = []
    command = publish(state, [(share.queue, len(share.drafts))], messages_of(share.drafts), now_ms, results, records)
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
