"""Segment journals on the simulated disk, for the tests beside this file."""

from __future__ import annotations

from laneway.core.events import Event, Opened
from laneway.journal.history.format import segment_name
from laneway.journal.segments import SegmentJournal
from tests.journal.contract import commit, fill_extents, published
from tests.simulation.faulty_files import FaultyFiles

FOLDER = "data"


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0

    def __call__(self) -> int:
        return self.now_ms


def open_on(files: FaultyFiles, **options: object) -> SegmentJournal:
    settings: dict[str, object] = {"segment_bytes": 4096, "reserve_bytes": 0, "draw_store": lambda: 77, **options}
    return SegmentJournal(FOLDER, files=files, **settings)  # type: ignore[arg-type]


def start(files: FaultyFiles, **options: object) -> tuple[SegmentJournal, list[tuple[int, list[Event]]]]:
    """Open as a broker does: the snapshot, then what follows it."""
    journal = open_on(files, **options)
    loaded = journal.load_snapshot()
    return journal, list(journal.replay(loaded[0] if loaded else 0))


def positions(history: list[tuple[int, list[Event]]]) -> list[int]:
    return [position for position, _ in history]


def path_of(number: int) -> str:
    return f"{FOLDER}/{segment_name(number)}"


def killed(files: FaultyFiles) -> FaultyFiles:
    """The process died, the machine did not."""
    files.restart(power_loss=False)
    return files


def three_commits(*, mark_last: bool) -> tuple[FaultyFiles, list[int]]:
    """A store with three commits in one segment, killed; and where each begins, with the end of the last."""
    files = FaultyFiles(0)
    journal, _ = start(files)
    offsets = [64]
    for seq in (1, 2, 3):
        sealed, _ = commit(journal, Opened(at_ms=seq, epoch=seq, tag=1), published(seq, size=150))
        offsets.append(offsets[-1] + sealed.byte_count)
    if mark_last:
        journal.mark()
    return killed(files), offsets


def store_of_segments(count: int) -> tuple[FaultyFiles, int]:
    files = FaultyFiles(0)
    journal, _ = start(files)
    written = fill_extents(journal, count - 1)
    journal.close()
    return files, len(written)
