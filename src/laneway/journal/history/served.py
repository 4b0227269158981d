"""The history of a journal that is open for writing, let out as far as it is durable: what a server shows readers."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from laneway.core.catalogue import QueueName
from laneway.errors import InvalidInput, JournalDamaged, JournalGap
from laneway.journal.history import follow
from laneway.journal.history.files import ReadableFiles
from laneway.journal.history.format import HEADER_BYTES, segment_name
from laneway.journal.interface import Extent, Place

_MOST_NOTED = 4096  # commits that name queues; if nobody asks for so long, the history is searched for them


class ServedHistory:
    def __init__(self, files: ReadableFiles, folder: str, end: Callable[[], Place], store: Callable[[], int]) -> None:
        self._files = files
        self._folder = folder
        self._end = end
        self._store = store
        self._names: dict[int, follow.Named] = {}
        self._names_until: Place | None = None
        self._naming: deque[Place] = deque()  # commits that name queues, noted as they are gathered
        self._not_noted = 0  # the last of them that there was no room for
        self._known: dict[int, follow.SegmentInfo] = {}
        self.named_position = 0

    def note_naming(self, place: Place) -> None:
        """The commit that is being gathered will begin here, and names a queue or deletes one. Called on the loop."""
        if place.position == self.named_position:
            return
        if len(self._naming) < _MOST_NOTED:
            self._naming.append(place)
        else:
            self._not_noted = place.position
        self.named_position = place.position

    def store(self) -> int:
        return self._store()

    def end(self) -> Place:
        return self._end()

    def extents(self) -> list[Extent]:
        return [Extent(*info) for info in self._segments()]

    def _segments(self) -> list[follow.SegmentInfo]:
        end = self._end()
        found = follow.segments(self._folder, until=end, known=self._known, files=self._files)
        self._known = {info.number: info for info in found if info.number < end.segment}  # the last one still grows
        return found

    def place(self, position: int) -> Place:
        return follow.start(self._folder, position, until=self._end(), files=self._files)

    def advance(self, place: Place, max_events: int) -> Place:
        try:
            return follow.advance(self._folder, place, self._end(), max_events, files=self._files)
        except JournalDamaged as damage:
            # Whoever asks says where to look, and may be mistaken.
            raise InvalidInput(
                f"no commit {place.position} begins at byte {place.offset} of segment {place.segment}: {damage}",
                field="position",
            ) from damage

    def read(self, number: int, offset: int, size: int) -> bytes:
        end = self._end()
        if number > end.segment:
            raise InvalidInput(f"there is no segment {number} yet; the last one is {end.segment}", field="segment")
        if number == end.segment:
            size = max(min(size, end.offset - offset), 0)
        if number < 1 or offset < 0 or size < 0:
            raise InvalidInput("segments count from 1, bytes from 0", field="offset")
        try:
            file = self._files.open(os.path.join(self._folder, segment_name(number)))
            try:
                return self._files.read(file, size, offset)
            finally:
                self._files.close(file)
        except FileNotFoundError:
            first = follow.first_position(self._folder, files=self._files)
            raise JournalGap(
                f"segment {number} has been dropped; history is kept from commit {first} on", first_position=first
            ) from None

    def catalogue(self) -> dict[int, QueueName]:
        """Looks at what came since it was last asked; the first time at all there is."""
        end = self._end()
        try:
            if self._names_until is None:
                self._names = follow.named_queues(self._folder, files=self._files)
            else:
                self._names.update(self._named_since(self._names_until, end))
        except JournalGap:  # nobody asked for so long that what came since is dropped
            self._names.update(follow.named_queues(self._folder, files=self._files))
        self._names_until = end
        while self._naming and self._naming[0].position < end.position:
            self._naming.popleft()
        first = follow.whole_since(self._segments())[0].first_position
        self._names = {n: named for n, named in self._names.items() if not named.is_deleted or named.position >= first}
        return {number: named.name for number, named in sorted(self._names.items())}

    def _named_since(self, since: Place, end: Place) -> dict[int, follow.Named]:
        if self._not_noted >= since.position:
            return dict(follow.named_between(self._folder, since, end, files=self._files))
        noted = [place for place in tuple(self._naming) if since.position <= place.position < end.position]
        return dict(follow.named_at(self._folder, noted, files=self._files))


#: Where a journal begins that has no commit yet.
BEGINNING = Place(1, HEADER_BYTES, 1)
