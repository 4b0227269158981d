"""The embedded journal: segment files in one folder."""

from laneway.journal.segments.journal import SegmentJournal
from laneway.journal.segments.writer import Durability

__all__ = ["Durability", "SegmentJournal"]
