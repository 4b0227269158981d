"""Opening a folder that may have been left by a crash: which segments must be there, what they hold, where they end.

Nothing is written here. The journal repairs what recovery found repairable: a torn tail.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from laneway.core.events import Event
from laneway.errors import JournalDamaged, JournalVersionUnknown
from laneway.journal.history.files import ReadableFiles
from laneway.journal.history.format import (
    HEADER_BYTES,
    LAST_MARK,
    VERSION,
    is_known,
    parse_segment_header,
    segment_name,
    segment_numbers,
)
from laneway.journal.history.scan import SegmentScan, damaged
from laneway.journal.history.snapshots import Snapshot


class Segment(NamedTuple):
    """One segment file as the journal keeps it in mind."""

    number: int
    first_position: int
    epoch: int
    file_bytes: int
    begun_bytes: int = 0  # its size when it was begun
    version: int = VERSION

    @property
    def is_cut_short(self) -> bool:
        """True of a last segment that lost its end: until the next one begins, a segment never gets smaller."""
        return self.file_bytes < self.begun_bytes


class Survey(NamedTuple):
    """The segments of a folder, by what they are for."""

    store: int
    needed: list[Segment]  # hold records the snapshot refers to; not replayed
    chain: list[Segment]  # to be replayed, without a gap
    leftovers: list[int]  # neither; an interrupted drop left them


def survey(files: ReadableFiles, folder: str, snapshot: Snapshot | None, after: int) -> Survey:
    """Check that every segment that must be there is; only their headers are read."""
    numbers = segment_numbers(files.list_folder(folder))
    replay_from = snapshot.replay_from if snapshot else _replay_from(files, folder, numbers, after)
    needed_numbers = sorted(snapshot.needed) if snapshot else [n for n in numbers if n < replay_from]
    present = set(numbers)
    chain_numbers = [n for n in numbers if n >= replay_from]
    expected = [*needed_numbers, *range(replay_from, max(chain_numbers, default=replay_from) + 1)]
    if snapshot is None and not numbers:
        expected = []
    for number in expected:
        if number not in present:
            raise missing(folder, number)
    segments = {number: read_segment(files, folder, number) for number in expected}
    store = snapshot.store if snapshot else segments[expected[0]][1] if expected else 0
    for number, (segment, its_store) in segments.items():
        path = os.path.join(folder, segment_name(number))
        if its_store != store:
            raise damaged(path, 0, "it belongs to another journal")
        if snapshot and snapshot.needed.get(number, segment.first_position) != segment.first_position:
            raise damaged(path, 0, f"it begins with commit {segment.first_position}, not {snapshot.needed[number]}")
    chain = [segments[number][0] for number in chain_numbers]
    _check_chain(folder, chain, after)
    needed = [segments[number][0] for number in needed_numbers]
    return Survey(store, needed, chain, sorted(present - segments.keys()))


def read_segment(files: ReadableFiles, folder: str, number: int) -> tuple[Segment, int]:
    """What the header of a segment says, and the store it belongs to."""
    path = os.path.join(folder, segment_name(number))
    file = files.open(path)
    try:
        data = files.read(file, HEADER_BYTES, 0)
        file_bytes = files.size(file)
    except OSError as error:
        raise damaged(path, 0, f"it cannot be read ({error})") from error
    finally:
        files.close(file)
    header = parse_segment_header(data)
    if header is None:
        raise damaged(path, 0, "the segment header does not check out")
    if not is_known(header.version):
        raise JournalVersionUnknown(
            f"{path} has format version {header.version}; this Laneway reads version {VERSION}. "
            "Use the Laneway that wrote it, or a newer one.",
            file=path,
            version=header.version,
        )
    if header.number != number:
        raise damaged(path, 0, f"its header says it is segment {header.number}")
    begun_bytes, version = header.begun_bytes, header.version
    return Segment(number, header.first_position, header.epoch, file_bytes, begun_bytes, version), header.store


def missing(folder: str, number: int) -> JournalDamaged:
    path = os.path.join(folder, segment_name(number))
    return JournalDamaged(
        f"{path} is missing, and messages with it. Nothing was changed. Put the file back if it was moved away, or "
        f"restore the folder from a backup; `laneway journal check {folder}` lists what is there.",
        file=path,
        offset=0,
    )


def describe_snapshot(
    position: int, store: int, segments: Mapping[int, Segment], live_extents: Iterable[int], folder: str
) -> Snapshot:
    """What a snapshot of this position rests on, which must be durable."""
    replay_from = max(s.number for s in segments.values() if s.first_position <= position + 1)
    needed = {}
    for number in live_extents:
        if number < replay_from:
            if number not in segments:
                raise missing(folder, number)
            needed[number] = segments[number].first_position
    return Snapshot(position, store, replay_from, needed, 0)


def _replay_from(files: ReadableFiles, folder: str, numbers: list[int], after: int) -> int:
    """Without a snapshot all history must be there, from the first segment on, unless asked for a later part."""
    if after == 0:
        return 1
    for number in reversed(numbers):
        if read_segment(files, folder, number)[0].first_position <= after + 1:
            return number
    return 1


def _check_chain(folder: str, chain: list[Segment], after: int) -> None:
    if chain and chain[0].first_position > after + 1:
        path = os.path.join(folder, segment_name(chain[0].number))
        raise damaged(path, 0, f"it begins with commit {chain[0].first_position}, but {after + 1} has to come next")
    for before, segment in pairwise(chain):
        if segment.first_position <= before.first_position or segment.epoch < before.epoch:
            path = os.path.join(folder, segment_name(segment.number))
            raise damaged(path, 0, f"commit {segment.first_position} or epoch {segment.epoch} is out of order")


class Replay:
    """Reads the chain once, commit by commit; when commits() is exhausted the other attributes hold how it ended."""

    def __init__(self, files: ReadableFiles, folder: str, found: Survey, after: int) -> None:
        self._files = files
        self._folder = folder
        self._found = found
        self._after = after
        self.position = after  # of the last good commit
        self.epoch = found.chain[0].epoch if found.chain else 0
        self.durable = 0  # the highest position some header or mark calls durable
        self.end = HEADER_BYTES  # offset in the last segment after its last good commit
        self.torn_end = self.end  # offset after the last byte of what stands behind that; `end` if there is nothing
        #: Commits of the last segment not proven durable, as (position, offset): in doubt until synced again.
        self.unproven: deque[tuple[int, int]] = deque()

    def commits(self) -> Iterator[tuple[int, list[Event]]]:
        chain = self._found.chain
        for index, segment in enumerate(chain):
            following = chain[index + 1] if index + 1 < len(chain) else None
            path = os.path.join(self._folder, segment_name(segment.number))
            file = self._files.open(path)
            try:
                scan = SegmentScan(self._files, path, file, number=segment.number, store=self._found.store)
                yield from self._segment(scan, segment, following)
            finally:
                self._files.close(file)
        if chain and self.position < self._after:
            path = os.path.join(self._folder, segment_name(chain[-1].number))
            raise damaged(path, self.end, f"history ends with commit {self.position}, the snapshot has {self._after}")

    def _segment(
        self, scan: SegmentScan, segment: Segment, following: Segment | None
    ) -> Iterator[tuple[int, list[Event]]]:
        offset, position, mark = HEADER_BYTES, segment.first_position, 0
        self.unproven.clear()
        while True:
            if position <= self._after:
                header, events = scan.header_at(offset), None
            elif (commit := scan.commit_at(offset)) is not None:
                header, events = commit.header, commit
            else:
                header = None
            if header is None:
                break
            if header.position != position or header.epoch < self.epoch:
                raise damaged(
                    scan.path,
                    offset,
                    f"commit {header.position} of epoch {header.epoch} stands where commit {position} "
                    f"of epoch {self.epoch} or later has to",
                )
            self.epoch = header.epoch
            if events is not None:
                yield position, scan.events(events)
            mark = scan.mark_of(offset, header)
            self._note_durable(header.durable, position, offset, marked=mark != 0)
            offset += header.length
            position += 1
        self.position, self.end = position - 1, offset
        self._check_end(scan, segment, following, mark)

    def _note_durable(self, durable: int, position: int, offset: int, *, marked: bool) -> None:
        self.unproven.append((position, offset))
        self.durable = max(self.durable, position if marked else durable)
        while self.unproven and self.unproven[0][0] <= self.durable:
            self.unproven.popleft()

    def _check_end(self, scan: SegmentScan, segment: Segment, following: Segment | None, mark: int) -> None:
        position = self.position + 1
        if following is not None:
            # A segment is synced before the next one begins, so a commit that is not good here is no torn tail.
            if position != following.first_position:
                raise damaged(scan.path, self.end, f"commit {position} does not check out, and later ones follow it")
            return
        tail = scan.tail(self.end, position)
        if tail.proof_at is not None:
            raise damaged(
                scan.path,
                self.end,
                f"commit {position} does not check out, but had been made durable: byte {tail.proof_at} says so",
            )
        if mark == LAST_MARK:
            raise missing(self._folder, segment.number + 1)
        if segment.is_cut_short:
            raise damaged(scan.path, segment.file_bytes, f"it ends here, but had {segment.begun_bytes} bytes")
        self.torn_end = tail.end
