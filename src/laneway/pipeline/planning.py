"""What is to be read, cut into portions for tasks: which segments, from where to where, and what tasks must know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from laneway.errors import JournalGap, PipelineError
from laneway.journal.history.follow import SegmentInfo
from laneway.journal.interface import Place
from laneway.pipeline.commits import Span
from laneway.pipeline.decode import Decoder
from laneway.pipeline.options import LATEST, ReadOptions, check_positions
from laneway.pipeline.selection import FAR_FUTURE_MS, FAR_PAST_MS, Catalogue, Selection
from laneway.pipeline.sources import Source, spans


class JournalParts(NamedTuple):
    """One of the journals that are read, as it was when the read was planned."""

    number: int  # the column `partition`
    source: Source
    tag: int
    catalogue: Catalogue
    parts: list[tuple[SegmentInfo, Span]]
    elsewhere: Catalogue | None = None  # queues of all partitions, by their ids


class Portion(NamedTuple):
    """What one task reads."""

    journal: int
    spans: tuple[Span, ...]


#: Columns that take the names of queues; where none is wanted, the history is not searched for them.
TARGETS = frozenset({"target_vhost", "target_queue"})
_NAMES = TARGETS | {"vhost", "queue", "tier"}


def survey(options: ReadOptions, names: Sequence[str]) -> list[JournalParts]:
    """All that a batch read of these columns concerns, up to now."""
    is_named = options.queues is not None or not _NAMES.isdisjoint(names)
    ends = options.journals.ends()
    check_positions(options, len(ends))
    found = [
        _survey(number, options.journals.source(number), end, options, is_named) for number, end in sorted(ends.items())
    ]
    elsewhere = elsewhere_of(options, names)
    return [journal._replace(elsewhere=elsewhere) for journal in found]


def elsewhere_of(options: ReadOptions, names: Sequence[str]) -> Catalogue:
    """What must be known of other partitions for these columns."""
    return {} if TARGETS.isdisjoint(names) else options.journals.elsewhere()


def _survey(number: int, source: Source, end: Place, options: ReadOptions, is_named: bool) -> JournalParts:
    if options.end_position is not None and options.end_position < end.position:
        end = source.place(options.end_position)
    if options.start == LATEST:
        start: Place | None = end
    elif isinstance(options.start, int):
        start = end if options.start >= end.position else placed(source, options.start, options.fail_on_data_loss)
    else:
        start = None
    if start is None:
        parts = spans(source, None, end)
    else:  # from a given commit on, nothing may be missing
        parts = between(source, start, end, fail_on_data_loss=options.fail_on_data_loss)
    _, tag = source.identity()
    return JournalParts(number, source, tag, source.catalogue() if is_named else {}, parts)


def placed(source: Source, position: int, fail_on_data_loss: bool) -> Place:
    """Where a commit begins, or the first one that is still there."""
    try:
        return source.place(position)
    except JournalGap:
        first = source.first_position()
        if fail_on_data_loss or first <= position:
            raise
        return source.place(first)


def between(source: Source, start: Place, end: Place, *, fail_on_data_loss: bool) -> list[tuple[SegmentInfo, Span]]:
    """The spans from one place to another, without a gap: JournalGap if there is one, or what follows it."""
    if start.position > end.position:
        raise PipelineError(
            f"{source.name} ends with commit {end.position - 1}, and {start.position} was to come next: it is another "
            "journal than the checkpoint is of, or it was restored from a backup"
        )
    if start.position == end.position:
        return []
    found = spans(source, start, end)
    is_whole = bool(found) and found[0][0].number == start.segment
    if not is_whole:  # all of that segment had been read, and it may be gone
        start = placed(source, start.position, fail_on_data_loss)
        found = spans(source, start, end)
    for (before, _), (after, _) in pairwise(found):
        if before.number + 1 != after.number and fail_on_data_loss:
            raise JournalGap(
                f"{source.name} has no history between segments {before.number} and {after.number} any more: it was "
                "dropped before it was read. A cursor holds back what was not read; failOnDataLoss=false goes on"
            )
    return found


def portions(journal: JournalParts, selection: Selection, partition_bytes: int) -> Iterator[Portion]:
    """Neighbouring spans, until they are large enough for a task; segments are not cut. Whole segments before or after
    the wanted time are left out."""
    if selection.is_nothing:
        return
    gathered: list[Span] = []
    gathered_bytes = 0
    for _, span in _in_time(journal, selection):
        size = span.end - span.start
        if gathered and gathered_bytes + size > partition_bytes:
            yield Portion(journal.number, tuple(gathered))
            gathered, gathered_bytes = [], 0
        gathered.append(span)
        gathered_bytes += size
    if gathered:
        yield Portion(journal.number, tuple(gathered))


def _in_time(journal: JournalParts, selection: Selection) -> Iterator[tuple[SegmentInfo, Span]]:
    """Time never goes back while one epoch lasts, so a segment without a change of epoch lies between its first time
    and that of the next. It may go back when a server starts anew on a clock that was set back. (When
    the clock is set while a server runs, events around that moment may be left out.)"""
    parts = journal.parts
    if selection.since_ms == FAR_PAST_MS and selection.until_ms == FAR_FUTURE_MS:
        yield from parts
        return
    for (info, span), following in zip(parts, [*parts[1:], None], strict=True):
        if following is not None and following[0].number == info.number + 1:
            last_ms = following[0].first_time_ms
            is_outside = last_ms < selection.since_ms or info.first_time_ms > selection.until_ms
            if is_outside and journal.source.epoch(info.number) == journal.source.epoch(following[0].number):
                continue
        yield info, span


def read(
    journal: JournalParts,
    portion: Portion,
    names: Sequence[str],
    selection: Selection,
    *,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """In a task: the batches of a portion, in order."""
    decoder = Decoder(
        names,
        tag=journal.tag,
        catalogue=journal.catalogue,
        partition=journal.number,
        selection=selection,
        elsewhere=journal.elsewhere,
    )
    for span in portion.spans:
        try:
            with journal.source.open(span.segment) as segment:
                yield from decoder.read(segment, span)
        except JournalGap:
            if fail_on_data_loss:
                raise
