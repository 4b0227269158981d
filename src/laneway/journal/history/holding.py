"""History that is kept for readers, though no message and no start needs it any more: from a commit on, since a time.

Only history without a gap up to its end counts: a piece that cannot be read on from is of no use to a reader.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from itertools import pairwise

from laneway.errors import LanewayError
from laneway.journal.history import follow
from laneway.journal.history.files import ReadableFiles
from laneway.journal.history.recovery import Segment
from laneway.journal.interface import Held


class Holding:
    """What was asked for, and which segments that means. `lock` is held while segments are chosen to be dropped, so
    that what was promised a moment before stays."""

    def __init__(self, files: ReadableFiles, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._position: int | None = None
        self._since_ms: int | None = None
        self._times: dict[int, int] = {}  # of the first event of segments
        self.lock = threading.Lock()

    def ask(self, position: int | None, since_ms: int | None) -> None:
        self._position, self._since_ms = position, since_ms

    def held(self, segments: Collection[Segment]) -> list[Held]:
        """The segments to keep, oldest first. The last one, which is being written, is never among them."""
        if self._position is None and self._since_ms is None:
            return []
        found: list[Held] = []
        for following, segment in pairwise(reversed(whole(segments))):
            first_ms = self._first_time_ms(segment.number) if self._since_ms is not None else 0
            if not self._is_wanted(following):
                break
            found.append(Held(segment.number, segment.first_position, segment.file_bytes, first_ms))
        found.reverse()
        return found

    def _is_wanted(self, following: Segment) -> bool:
        """Whether the segment before this one holds something that was asked for."""
        if self._position is not None and following.first_position > self._position:
            return True
        if self._since_ms is None:
            return False
        first_ms = self._first_time_ms(following.number)
        return not first_ms or first_ms > self._since_ms

    def _first_time_ms(self, number: int) -> int:
        found = self._times.get(number, 0)
        if not found:
            try:
                found = follow.first_time_ms(self._folder, number, files=self._files)
            except (OSError, LanewayError):
                found = 0  # it is damaged, or dropped meanwhile; who reads it will hear of that
            self._times[number] = found
        return found

    def forget(self, number: int) -> None:
        self._times.pop(number, None)


def whole(segments: Collection[Segment]) -> list[Segment]:
    """The segments that have all others behind them, up to the last one, oldest first."""
    known = [s for s in segments if s.first_position]
    return follow.whole_since(sorted(known))
