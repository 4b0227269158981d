"""What every journal offers. Everything above works on any implementation; tests/journal/contract.py runs against all.

Three threads of thought meet here, so the calls are split by who may make them:
- the broker's loop gathers:   stage(), staged_bytes(), seal(), has_room(), has_free(), is_prepared()
- one writer at a time:        write(), mark(), sync(), close()              (they block, and release the GIL): a thread
                               of its own, or the loop's thread for small commits if writes_on_loop says so
- any one thread at a time:    save_snapshot(), drop(); beside a write() if need be
- any one thread at a time:    prepare(); beside all the others
- any thread reads:            read(), read_contents(), extent_bytes(), disk(), hold(), held(), and all of history

A *position* is the number of a commit: 1, 2, 3, … A *location* names where a blob stands; its upper bits
(location >> 32) are its *extent*: the unit in which history is dropped (a segment file, a row).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from laneway.core.catalogue import QueueName
from laneway.core.events import Event


class Place(NamedTuple):
    """Where in the history the commit `position` begins, or will begin: behind the one before it."""

    segment: int
    offset: int
    position: int


class Held(NamedTuple):
    """An extent that is kept for readers of the history."""

    extent: int
    first_position: int
    byte_count: int
    first_time_ms: int  # 0: not known


class Extent(NamedTuple):
    """A piece of the history. Where their numbers have a gap, the history has one too."""

    number: int
    first_position: int
    used_bytes: int  # where its last commit ends
    first_time_ms: int  # of its first event; 0 while it has none


class DiskUse(NamedTuple):
    journal_bytes: int  # what the journal takes, what it holds in advance included
    #: Of the disk that it is on; it stops taking messages before nothing is left. None: that cannot be seen from here.
    free_bytes: int | None


class History(Protocol):
    """What was written, for readers: as far as it is durable. Raises JournalGap for what has been dropped."""

    #: No later commit names a queue or deletes one: until it changes, neither does the catalogue. It may not be
    #: durable yet, and is then behind the end.
    named_position: int

    def store(self) -> int:
        """What tells this journal from others."""

    def end(self) -> Place:
        """Behind the last commit that may be read."""

    def extents(self) -> list[Extent]: ...

    def place(self, position: int) -> Place:
        """Where a commit begins."""

    def advance(self, place: Place, max_events: int) -> Place:
        """So many events further at most, and one commit at least unless the end is reached."""

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Bytes of an extent; fewer at its end."""

    def catalogue(self) -> dict[int, QueueName]:
        """The names of queues by their numbers, of deleted ones as long as the history knows them. Calls must not
        overlap."""


class Commit(NamedTuple):
    """A sealed group of events, ready to be written. Only its own journal looks inside `payload`."""

    position: int
    event_count: int  # one for every message an event concerns: what replaying it will cost
    byte_count: int
    payload: object


class Journal(Protocol):
    #: Whether a small commit may be written on the loop's thread while no other is being written: write() then takes a
    #: fraction of a millisecond on a quick disk, and never waits for a network.
    writes_on_loop: bool

    #: No older epoch can write here any more. 0 where nobody else can open the journal meanwhile.
    claimed_epoch: int

    def load_snapshot(self) -> tuple[int, Iterator[bytes]] | None:
        """The newest snapshot as (position it covers, the chunks given to save_snapshot), checked while read."""

    def replay(self, after: int) -> Iterator[tuple[int, list[Event]]]:
        """Every commit after a position, as (position, events). Must be exhausted before the first stage().

        Cuts a torn tail with a log line; raises JournalDamaged, naming file and offset, for anything else.
        """

    def stage(self, event: Event) -> int:
        """Add an event to the commit being gathered; the location of its first blob (0 if it has none). Of one whose
        messages share records, `locations` is filled in."""

    def staged_bytes(self) -> int:
        """How large the commit being gathered has become."""

    def seal(self) -> Commit | None:
        """Close the commit being gathered, if it holds anything; the next stage() begins a new one."""

    def write(self, commit: Commit) -> None:
        """Write a sealed commit; on return it is as durable as the journal was told to make it. In seal() order.

        Raises DiskFull when there is no space left for it, OutOfDescriptors when no file can be opened, JournalAway
        when what holds the journal cannot be reached: the same commit may be given again later, and no other can be
        written before it. Raises JournalFailed for any other trouble, and then for every call that would write.
        """

    def mark(self) -> None:
        """Leave a trace, unsynced, that all written so far was made durable: called when there is nothing to do.

        Where durability is by interval, it syncs what is not yet synced: call it no later than an interval after the
        last write, because a journal has no thread of its own.
        """

    def sync(self) -> None:
        """Make everything written durable now, whatever the durability the journal was told."""

    def has_room(self, need_bytes: int = 0) -> bool:
        """False once disk space runs out: publishing must stop while settling can go on. Also if there is not enough
        for this and what is staged and not yet written. Cheap; call it often, and before the work is done."""

    def has_free(self, need_bytes: int) -> bool:
        """Whether so much may be written beside the journal, on the disk it is on."""

    def is_prepared(self) -> bool:
        """Whether prepare() would do nothing. Cheap; call it often."""

    def prepare(self) -> bool:
        """Do a piece of work now that makes later writes quicker; False when there is none left for the moment."""

    def read(self, locations: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        """The message records at these places, neighbours in one go, each checked against its own checksum. They are
        views of all that was read with them: whoever keeps one copies it.

        Raises JournalDamaged if one cannot be read, JournalAway if none can for the moment.
        """

    def read_contents(
        self, locations: Sequence[int], sizes: Sequence[int]
    ) -> tuple[list[int], list[bytes], list[bytes | memoryview]]:
        """When messages came, their props and their bodies, as columns; of one at least, and read as read() does."""

    def save_snapshot(self, position: int, chunks: Iterable[bytes], live_extents: Iterable[int]) -> None:
        """Durably keep a snapshot that covers everything up to a position, replacing the one before.

        `live_extents` are those that hold a record the snapshot refers to. They are stored with it, so that one that
        has gone missing is noticed at the next start. Raises DiskFull, leaving the one before in force.
        """

    def drop(self) -> list[int]:
        """Delete the extents the newest snapshot neither refers to nor has still to be followed by, and that hold()
        does not keep; which they were. Nothing is deleted before the first call of this."""

    def hold(self, position: int | None, since_ms: int | None) -> int:
        """Keep the history from a commit on, and since a time, as far as it is still there; this replaces what was said
        before. The first commit from which on history is there without a gap."""

    def held(self) -> list[Held]:
        """The extents that hold() keeps, oldest first, whether something else needs them too or not."""

    @property
    def history(self) -> History: ...

    def extent_bytes(self) -> dict[int, int]:
        """Every extent that is no longer written to, with its size: what compaction chooses from."""

    def disk(self) -> DiskUse:
        """How much there is of it. It may wait for the disk."""

    def abandon(self) -> None:
        """Wait no longer for others, as whoever holds the journal elsewhere: what is being written there raises
        JournalAway, and so does all that comes. Any thread may say so. Of a disk nothing is given up."""

    def close(self) -> None:
        """Leave a durable trace of a clean end and give up the lock."""
