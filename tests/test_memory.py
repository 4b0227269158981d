"""How much memory a waiting message takes: measured here, and the same number on every page that gives one.

The messages go through a real engine into a real journal, with a content cache of zero bytes, so that what grows is
the state alone: the table's columns and the lanes. `make bench-scale ARGS="--only backlog"` shows the whole process.
"""

from __future__ import annotations

import gc
import re
import tracemalloc
from pathlib import Path

import pytest

from laneway.broker.engine import Engine
from laneway.core import commands, publishing
from laneway.core.message import Messages, Receipts
from laneway.core.settings import QueueSettings
from laneway.journal.segments.journal import SegmentJournal

WAITING_MESSAGE_BYTES = 45  # as the pages say
TOLERANCE = 0.2

MESSAGES = 200_000
BATCH = 1_000
START_MS = 1_800_000_000_000
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]

_STATEMENT = re.compile(
    r"waiting\s+message\s+takes\s+about\s+(\d+)\s+bytes|about\s+(\d+)\s+bytes\s+a\s+(?:waiting\s+)?message"
)


class Node:
    """An engine that keeps no contents in memory, and one queue."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(SegmentJournal(folder, durability="none"), new_tag=lambda: 7, cache_bytes=0)
        self.engine.recover(START_MS)
        self.engine.run(commands.put_queue(self.engine.state, "/", "q", QueueSettings(), START_MS, max_queues=1))
        self.queue = commands.find_queue(self.engine.state, "/", "q")

    def fill(self, count: int, body: bytes) -> None:
        """Publish in batches, each a commit of its own."""
        state, journal = self.engine.state, self.engine.journal
        for at in range(0, count, BATCH):
            receipts: list[Receipts] = []
            messages = Messages([body] * BATCH, [b""] * BATCH)
            self.engine.run(publishing.publish(state, [(self.queue, len(messages))], messages, START_MS + at, receipts))
            commit = journal.seal()
            assert commit is not None
            journal.write(commit)

    def close(self) -> None:
        self.engine.journal.close()


def bytes_per_message(folder: Path, body: bytes) -> float:
    node = Node(folder)
    node.fill(10 * BATCH, body)  # what is allocated once, such as buffers and open files, is there after these
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        node.fill(MESSAGES, body)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert node.queue.ready == MESSAGES + 10 * BATCH
    node.close()
    return (after - before) / MESSAGES


@pytest.mark.parametrize("body_bytes", [10, 500])
def test_a_waiting_message_takes_what_the_pages_say_whatever_its_size(tmp_path: Path, body_bytes: int) -> None:
    measured = bytes_per_message(tmp_path, b"x" * body_bytes)
    assert measured == pytest.approx(WAITING_MESSAGE_BYTES, rel=TOLERANCE)


def test_every_page_gives_the_same_number() -> None:
    given = {
        f"{page.relative_to(ROOT)}: {found[0]!r}": int(found[1] or found[2])
        for page in PAGES
        for found in _STATEMENT.finditer(page.read_text())
    }
    assert any(place.startswith("docs/performance.md") for place in given)
    assert set(given.values()) == {WAITING_MESSAGE_BYTES}, given
