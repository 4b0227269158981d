"""What every journal must do, whatever it is made of. An implementation subclasses JournalContract and gives a `store`.

These tests see only journal/interface.py; what is particular to segment files is in test_segments.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec
import pytest

from laneway.core.events import (
    Acked,
    Bound,
    Cause,
    DeadLettered,
    DocumentPut,
    DocumentRemoved,
    Event,
    ExchangeDeleted,
    ExchangePut,
    Extended,
    KeyRemembered,
    Leased,
    Moved,
    Opened,
    Published,
    QueueDeleted,
    QueuePurged,
    QueuePut,
    Released,
    Relocated,
    Removed,
    Unbound,
)
from laneway.core.message import RECORD_PREFIX_BYTES, Properties, encode_props, encode_record, split_record
from laneway.errors import InvalidInput, JournalGap, JournalLocked
from laneway.journal.interface import Commit, Journal


def check_read(journal: Journal, places: Sequence[int], sizes: Sequence[int], records: Sequence[bytes]) -> None:
    """Whole, and taken apart."""
    assert journal.read(places, sizes) == list(records)
    if places:
        assert list(zip(*journal.read_contents(places, sizes), strict=True)) == list(map(split_record, records))


class Store(Protocol):
    """Somewhere a journal lives. Extents are small (a few kilobytes), so that a test can fill several."""

    def open(self) -> Journal:
        """A journal on this store, locked but not yet replayed."""


def published(first_seq: int, count: int = 1, *, size: int = 100, queue: int = 7, group: str = "") -> Published:
    props = encode_props(Properties(group=group)) if group else b""
    bodies = [bytes([1 + i % 251]) * size for i in range(count)]
    return Published(
        queue=queue,
        at_ms=1_000,
        first_seq=first_seq,
        priorities=[5] * count,
        visible_at=[0] * count,
        expires_at=[0] * count,
        sizes=[RECORD_PREFIX_BYTES + len(props) + size] * count,
        props=[props] * count,
        bodies=bodies,
        groups=dict.fromkeys(range(count), group) if group else {},
        dedups={},
    )


def shared(first_seq: int, count: int = 1, times: int = 2, *, size: int = 100) -> Published:
    """Messages that were published several times, and share their records."""
    event = published(first_seq, count, size=size)
    for name in ("priorities", "visible_at", "expires_at", "sizes", "props", "bodies"):
        setattr(event, name, getattr(event, name) * times)
    event.locations = [0] * count + [~i for i in range(count)] * (times - 1)
    return event


def as_replayed(event: Event, location: int) -> Event:
    """An event as replay gives it back: records left where they are, named by their location."""
    if not isinstance(event, Published | Relocated):
        return event
    places = locations_of(event, location)
    plain = msgspec.structs.replace(event, location=places[0], locations=())
    follow = places == locations_of(plain, places[0])
    left = plain if follow else msgspec.structs.replace(event, location=0, locations=places)
    if isinstance(left, Published):
        return msgspec.structs.replace(left, props=(), bodies=())
    return msgspec.structs.replace(left, records=())


def replayed(journal: Journal, after: int = 0) -> list[tuple[int, list[Event]]]:
    return list(journal.replay(after))


def commit(journal: Journal, *events: Event) -> tuple[Commit, list[int]]:
    """Stage, seal and write; the commit and the locations."""
    locations = [journal.stage(event) for event in events]
    sealed = journal.seal()
    assert sealed is not None
    journal.write(sealed)
    return sealed, locations


def records_of(event: Published, first: int) -> list[bytes]:
    """The record of each message of an event that was staged; the same where they share one."""
    found: dict[int, bytes] = {}
    return [found.setdefault(*one) for one in zip(locations_of(event, first), event.records, strict=True)]


def locations_of(event: Published | Relocated, first: int) -> list[int]:
    if event.locations:
        return list(event.locations)
    places = []
    for size in event.sizes:
        places.append(first)
        first += size
    return places


def fill_extents(journal: Journal, extent_count: int, *, first_seq: int = 1) -> list[tuple[Published, int]]:
    """Publish until this many extents are no longer written to; the events with the location of their first record."""
    written: list[tuple[Published, int]] = []
    for _ in range(10_000):
        if len(journal.extent_bytes()) >= extent_count:
            return written
        event = published(first_seq, 2, size=300)
        first_seq += 2
        written.append((event, commit(journal, event)[1][0]))
    raise AssertionError(f"no {extent_count} extents after {len(written)} commits")


ONE_OF_EACH: list[Event] = [
    Opened(at_ms=1, epoch=3, tag=99),
    QueuePut(queue=7, at_ms=2, document=b'{"name":"q"}'),
    published(1, 3),
    published(4, 2, group="g"),
    Leased(queue=7, at_ms=3, seqs=[1, 2], receives=[1, 4], first_lease=10, deadline_ms=500, consumer="c1"),
    Leased(queue=7, at_ms=3, seqs=[3], receives=[1], first_lease=12, deadline_ms=500, consumer=""),
    Extended(queue=7, at_ms=4, seqs=[1], deadline_ms=900),
    Released(queue=7, at_ms=5, seqs=[2, 3], due_ms=[0, 77], cause=Cause.LEASE_EXPIRED),
    Acked(queue=7, at_ms=6, seqs=[1], leases=[10]),
    DeadLettered(queue=7, at_ms=7, seqs=[2], cause=Cause.REJECTED, detail="poison"),
    Moved(queue=7, at_ms=8, seqs=[3], cause=Cause.REDRIVEN, target=8, first_seq=6, detail="by hand"),
    Removed(queue=7, at_ms=9, seqs=[4], cause=Cause.RETENTION),
    Relocated(at_ms=10, seqs=[5], sizes=[124], records=[encode_record(5, 1, b"", b"r" * 100)]),
    KeyRemembered(queue=7, at_ms=11, expires_ms=99_999, document=b"key", forget_ms=12),
    DocumentPut(at_ms=12, collection="accounts", key="ann", document=b"{}"),
    DocumentRemoved(at_ms=13, collection="accounts", key="ann"),
    QueuePurged(queue=7, at_ms=14, before_seq=6, forgets_dedups=True),
    QueueDeleted(queue=7, at_ms=15),
    ExchangePut(at_ms=16, document=b"put"),
    Bound(queue=7, at_ms=17, document=b"bound"),
    Unbound(queue=0, at_ms=18, document=b"unbound"),
    ExchangeDeleted(at_ms=19, document=b"deleted"),
]


class JournalContract:
    @pytest.fixture
    def open_journal(self, store: Store) -> Iterable[Callable[[], Journal]]:
        """Opens journals and closes them at the end of the test, if the test has not."""
        opened: list[Journal] = []

        def open_one() -> Journal:
            opened.append(store.open())
            return opened[-1]

        yield open_one
        for journal in opened:
            journal.close()

    @pytest.fixture
    def journal(self, open_journal: Callable[[], Journal]) -> Journal:
        journal = open_journal()
        assert replayed(journal) == []
        return journal

    # --- commits ----------------------------------------------------------------------------------------------------

    def test_new_store_has_no_snapshot_and_no_history(self, open_journal: Callable[[], Journal]) -> None:
        journal = open_journal()
        assert journal.load_snapshot() is None
        assert replayed(journal) == []
        assert journal.has_room()

    def test_every_kind_of_event_comes_back_as_it_was(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        sealed, locations = commit(journal, *ONE_OF_EACH)
        messages = sum(len(getattr(e, "sizes", ()) or getattr(e, "seqs", ())) or 1 for e in ONE_OF_EACH)
        assert (sealed.position, sealed.event_count) == (1, messages)
        journal.close()
        expected = [as_replayed(event, at) for event, at in zip(ONE_OF_EACH, locations, strict=True)]
        assert replayed(open_journal()) == [(1, expected)]

    def test_commits_come_back_in_order_with_their_positions(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        expected = []
        for position in range(1, 60):
            event = published(position * 10, 3)
            sealed, (location,) = commit(journal, event)
            assert sealed.position == position
            expected.append((position, [as_replayed(event, location)]))
        journal.close()
        assert replayed(open_journal()) == expected

    def test_replay_begins_after_the_position_asked_for(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        for seq in range(1, 41):
            commit(journal, published(seq))
        journal.close()
        assert [position for position, _ in replayed(open_journal(), after=17)] == list(range(18, 41))

    def test_positions_go_on_after_a_restart(self, journal: Journal, open_journal: Callable[[], Journal]) -> None:
        commit(journal, published(1))
        journal.close()
        again = open_journal()
        replayed(again)
        assert commit(again, published(2))[0].position == 2
        again.close()
        assert [position for position, _ in replayed(open_journal())] == [1, 2]

    def test_commit_that_was_sealed_but_not_written_is_not_history(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        commit(journal, published(1))
        journal.stage(published(2))
        assert journal.seal() is not None
        journal.stage(published(3))
        journal.close()
        assert [position for position, _ in replayed(open_journal())] == [1]

    def test_sealing_nothing_gives_no_commit(self, journal: Journal) -> None:
        assert journal.seal() is None
        assert journal.staged_bytes() == 0

    def test_staged_bytes_grow_with_what_is_staged_and_begin_anew_after_seal(self, journal: Journal) -> None:
        journal.stage(published(1, size=1_000))
        one = journal.staged_bytes()
        journal.stage(published(2, size=1_000))
        assert 1_000 < one < journal.staged_bytes() < 2_500
        assert journal.seal() is not None
        assert journal.staged_bytes() == 0

    def test_commits_must_be_written_in_the_order_they_were_sealed(self, journal: Journal) -> None:
        journal.stage(published(1))
        first = journal.seal()
        journal.stage(published(2))
        second = journal.seal()
        assert first is not None and second is not None
        with pytest.raises(ValueError, match="not the next one"):
            journal.write(second)
        journal.write(first)
        journal.write(second)
        with pytest.raises(ValueError, match="not the next one"):
            journal.write(second)

    def test_staging_before_replay_is_refused(self, open_journal: Callable[[], Journal]) -> None:
        with pytest.raises(RuntimeError, match="replay"):
            open_journal().stage(published(1))

    def test_older_epoch_can_write_nothing(self, journal: Journal, open_journal: Callable[[], Journal]) -> None:
        commit(journal, Opened(at_ms=1, epoch=5, tag=1))
        journal.close()
        again = open_journal()
        replayed(again)
        with pytest.raises(ValueError, match="epoch 4 is older than epoch 5"):
            again.stage(Opened(at_ms=2, epoch=4, tag=1))

    def test_marks_and_syncs_change_no_history(self, journal: Journal, open_journal: Callable[[], Journal]) -> None:
        journal.mark()
        journal.sync()
        for seq in range(1, 30):
            commit(journal, published(seq, size=400))
            journal.mark()
            journal.mark()
            journal.sync()
        journal.close()
        again = open_journal()
        assert [position for position, _ in replayed(again)] == list(range(1, 30))
        again.mark()
        assert commit(again, published(99))[0].position == 30

    # --- reading ----------------------------------------------------------------------------------------------------

    def test_record_can_be_read_from_the_moment_it_is_staged(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        commit(journal, published(1, 5))
        event = published(10, 4, size=222)
        places = locations_of(event, journal.stage(event))
        check_read(journal, places, event.sizes, event.records)
        sealed = journal.seal()
        check_read(journal, places, event.sizes, event.records)
        journal.stage(published(20))
        assert sealed is not None
        journal.write(sealed)
        check_read(journal, places, event.sizes, event.records)
        journal.close()
        again = open_journal()
        replayed(again)
        check_read(again, places, event.sizes, event.records)

    def test_messages_of_a_commit_share_their_records(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        commit(journal, published(1, 5))
        event, alone, again = shared(6, 3, 10, size=1_000), published(36, 2), published(38, 3, size=1_000)
        first = journal.stage(event)
        assert journal.staged_bytes() < 5 * 1_024 + 30 * 64, "each record is there once"
        records, places = records_of(event, first), locations_of(event, first)
        assert len(set(places)) == 3 and places == places[:3] * 10
        alone_at = journal.stage(alone)
        again.locations = [places[2], 0, places[0]]  # an event may share some of its records, in any order
        again_at = journal.stage(again)
        assert list(again.locations) == [places[2], again_at, places[0]]
        sealed = journal.seal()
        assert sealed is not None
        everything = [*places, *locations_of(alone, alone_at), *again.locations]
        sizes = [*event.sizes, *alone.sizes, *again.sizes]
        expected = [*records, *alone.records, records[2], again.records[1], records[0]]
        check_read(journal, everything, sizes, expected)
        journal.write(sealed)
        check_read(journal, everything, sizes, expected)
        journal.close()
        opened = open_journal()
        _, events = replayed(opened)[1]
        assert events == [as_replayed(event, first), as_replayed(alone, alone_at), as_replayed(again, again_at)]
        check_read(opened, everything, sizes, expected)

    def test_relocated_records_may_be_shared(self, journal: Journal, open_journal: Callable[[], Journal]) -> None:
        records = [encode_record(n, 1, b"", b"r" * n) for n in (50, 60)]
        sizes = [len(records[0]), len(records[1]), len(records[0])]
        event = Relocated(at_ms=10, seqs=[5, 6, 9], sizes=sizes, records=records, locations=[0, 0, ~0])
        _, (first,) = commit(journal, event)
        assert locations_of(event, first) == [first, first + sizes[0], first]
        journal.close()
        again = open_journal()
        assert replayed(again) == [(1, [as_replayed(event, first)])]
        check_read(again, list(event.locations), sizes, [records[0], records[1], records[0]])

    def test_a_record_of_another_commit_is_not_shared(self, journal: Journal) -> None:
        """Rows name records by where they stand in their commit."""
        event = published(1)
        _, (first,) = commit(journal, event)
        late = published(2)
        late.locations = [first]
        with pytest.raises(ValueError, match="inside a commit"):
            journal.stage(late)

    def test_records_come_in_the_order_asked_for(self, journal: Journal) -> None:
        everything = [
            (place, size, record)
            for event, first in fill_extents(journal, 3)
            for place, size, record in zip(locations_of(event, first), event.sizes, event.records, strict=True)
        ]
        for wanted in (everything, everything[::-1], everything[::3] + everything[1::3], everything[:1] * 3, []):
            check_read(journal, [w[0] for w in wanted], [w[1] for w in wanted], [w[2] for w in wanted])

    def test_written_and_unwritten_records_can_be_read_together(self, journal: Journal) -> None:
        old, new = published(1, 2), published(3, 2)
        old_places = locations_of(old, commit(journal, old)[1][0])
        new_places = locations_of(new, journal.stage(new))
        check_read(journal, [*new_places, *old_places], [*new.sizes, *old.sizes], [*new.records, *old.records])

    def test_record_larger_than_an_extent_is_kept(self, journal: Journal, open_journal: Callable[[], Journal]) -> None:
        big = published(1, 1, size=100_000)
        places = [commit(journal, big)[1][0]]
        after = published(2)
        places.append(commit(journal, after)[1][0])
        journal.close()
        again = open_journal()
        assert [position for position, _ in replayed(again)] == [1, 2]
        assert again.read(places, [*big.sizes, *after.sizes]) == [*big.records, *after.records]

    # --- snapshots and dropping -------------------------------------------------------------------------------------

    @pytest.mark.parametrize("chunks", [[], [b""], [b"one", b"", b"x" * 3_000_000, b"two"], [b"c"] * 1_000])
    def test_snapshot_gives_back_its_chunks(
        self, journal: Journal, open_journal: Callable[[], Journal], chunks: list[bytes]
    ) -> None:
        commit(journal, published(1))
        journal.save_snapshot(1, iter(chunks), [])
        commit(journal, published(2))
        journal.close()
        again = open_journal()
        loaded = again.load_snapshot()
        assert loaded is not None
        assert (loaded[0], list(loaded[1])) == (1, chunks)
        assert [position for position, _ in replayed(again, after=1)] == [2]

    def test_newest_snapshot_is_the_one_in_force(self, journal: Journal, open_journal: Callable[[], Journal]) -> None:
        for position in (1, 2, 3):
            commit(journal, published(position))
            journal.save_snapshot(position, [b"state %d" % position], [])
        journal.close()
        loaded = open_journal().load_snapshot()
        assert loaded is not None
        assert (loaded[0], list(loaded[1])) == (3, [b"state 3"])

    def test_snapshot_may_lag_behind_what_is_written(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        for position in range(1, 40):
            commit(journal, published(position, size=500))
        journal.save_snapshot(11, [b"state"], [])
        journal.close()
        again = open_journal()
        assert again.load_snapshot() is not None
        assert [position for position, _ in replayed(again, after=11)] == list(range(12, 40))

    def test_snapshot_of_what_is_not_written_is_refused(self, journal: Journal) -> None:
        commit(journal, published(1))
        journal.stage(published(2))
        journal.seal()
        with pytest.raises(ValueError, match="commit 2 has not been written"):
            journal.save_snapshot(2, [], [])

    def test_nothing_is_dropped_without_a_snapshot(self, journal: Journal) -> None:
        fill_extents(journal, 3)
        assert journal.drop() == []

    def test_extents_without_live_records_are_dropped_and_the_others_stay_readable(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        written = fill_extents(journal, 5)
        before = journal.extent_bytes()
        assert all(size > 0 for size in before.values())
        keep = sorted(before)[1]
        journal.save_snapshot(len(written), [b"state"], [keep])
        assert journal.drop() == [extent for extent in sorted(before) if extent != keep]
        assert journal.drop() == []
        assert set(journal.extent_bytes()) == {keep}
        kept = [(event, first) for event, first in written if first >> 32 == keep]
        assert kept
        for round_trip in range(2):
            for event, first in kept:
                assert journal.read(locations_of(event, first), event.sizes) == event.records
            if round_trip == 0:
                journal.close()
                journal = open_journal()
                loaded = journal.load_snapshot()
                assert loaded is not None
                assert list(loaded[1]) == [b"state"]
                replayed(journal, after=loaded[0])
        assert commit(journal, published(1_000))[0].position == len(written) + 1

    def test_history_after_the_snapshot_is_never_dropped(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        written = fill_extents(journal, 5)
        middle = len(written) // 2
        journal.save_snapshot(middle, [], [])
        assert journal.drop()
        journal.close()
        again = open_journal()
        assert again.load_snapshot() is not None
        expected = [
            (number, [as_replayed(event, first)]) for number, (event, first) in enumerate(written, 1) if number > middle
        ]
        assert replayed(again, after=middle) == expected

    def test_what_it_takes_grows_with_what_is_written(self, journal: Journal) -> None:
        before = journal.disk().journal_bytes
        for seq in range(1, 6):
            commit(journal, published(seq, size=100_000))
        assert journal.disk().journal_bytes >= before + 400_000

    # --- history for readers ----------------------------------------------------------------------------------------

    def test_held_history_is_dropped_when_it_is_let_go(
        self, journal: Journal, open_journal: Callable[[], Journal]
    ) -> None:
        written = fill_extents(journal, 6)
        extents = journal.history.extents()
        wanted = extents[2].first_position + 1
        assert journal.hold(wanted, None) == 1
        journal.save_snapshot(len(written), [b"state"], [])
        assert journal.drop() == [e.number for e in extents[:2]]
        for _ in range(2):
            held = journal.held()
            assert [one.extent for one in held] == [e.number for e in extents[2:-1]]
            assert [one.first_position for one in held] == [e.first_position for e in extents[2:-1]]
            assert {one.extent: one.byte_count for one in held} == journal.extent_bytes()
            assert journal.drop() == []
            assert journal.history.place(wanted).position == wanted
            with pytest.raises(JournalGap) as gap:
                journal.history.place(extents[2].first_position - 1)
            assert gap.value.details["first_position"] == extents[2].first_position
            journal.close()
            journal = open_journal()  # nothing is dropped before it is said what to hold
            assert journal.load_snapshot() is not None
            replayed(journal, after=len(written))
            assert journal.hold(wanted, None) == extents[2].first_position
        assert journal.hold(extents[4].first_position, None) == extents[2].first_position
        assert journal.drop() == [e.number for e in extents[2:4]]
        assert journal.hold(None, None) == extents[4].first_position
        assert journal.drop() == [extents[4].number, extents[5].number]
        assert journal.held() == []

    def test_history_is_held_by_its_age(self, journal: Journal) -> None:
        times: list[int] = []
        seq = 1
        while len(journal.extent_bytes()) < 5:
            event = msgspec.structs.replace(published(seq, 2, size=300), at_ms=seq * 1_000)
            commit(journal, event)
            times.append(event.at_ms)
            seq += 2
        journal.save_snapshot(len(times), [b"state"], [])
        extents = journal.history.extents()
        third = extents[2].first_time_ms
        assert third == times[extents[2].first_position - 1]
        journal.hold(None, third)
        assert journal.drop() == [e.number for e in extents[:2]]
        journal.hold(None, extents[3].first_time_ms - 1)  # something of the third is younger
        assert journal.drop() == []
        journal.hold(None, times[-1])
        assert journal.drop() == [e.number for e in extents[2:-1]]

    def test_history_is_read_as_far_as_it_is_durable(self, journal: Journal) -> None:
        history = journal.history
        begin = history.end()
        assert begin.position == 1
        fill_extents(journal, 3)
        end = history.end()
        place, seen = history.place(1), b""
        while place != end:
            target = history.advance(place, 4)
            assert place.position < target.position <= place.position + 2  # each commit has two events
            place = target
        for extent in history.extents():
            seen += history.read(extent.number, 0, 1 << 20)
        journal.stage(published(90_000))
        sealed = journal.seal()
        assert history.end() == end
        again = b"".join(history.read(e.number, 0, 1 << 20) for e in history.extents())
        assert again == seen, "what is not durable is not shown"
        assert sealed is not None
        journal.write(sealed)
        assert history.end().position == end.position + 1
        for wrong in (end._replace(offset=end.offset - 1, position=end.position - 1), begin._replace(offset=128)):
            with pytest.raises(InvalidInput, match="no commit"):
                history.advance(wrong, 10)
        with pytest.raises(InvalidInput, match="there is no segment"):
            history.read(history.end().segment + 1, 0, 10)

    # --- one at a time ----------------------------------------------------------------------------------------------

    def test_store_is_locked_while_open(self, journal: Journal, store: Store) -> None:
        with pytest.raises(JournalLocked):
            store.open()
        journal.close()
        journal.close()
        again = store.open()
        again.close()
