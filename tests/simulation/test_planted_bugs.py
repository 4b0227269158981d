"""The simulator can fail: each of these plants one mistake in the code under test, and the seeds must find it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from random import Random
from typing import Any
from unittest import mock

import pytest

from laneway.broker import inbox
from laneway.broker.audiences import Limit, Subscription
from laneway.broker.committer import Committer
from laneway.broker.cursors import Cursors
from laneway.broker.engine import Engine
from laneway.broker.inbox import Entry, Inbox
from laneway.broker.interface import Delivered, Publish
from laneway.broker.partition import Partition
from laneway.broker.producers import Producers
from laneway.broker.reading import ReaderThread
from laneway.broker.sessions import Sessions
from laneway.broker.upkeep import Upkeep
from laneway.core import lease_commands, publishing, rows, snapshot, table
from laneway.core.events import Acked, Event, Kind, Leased, Moved, Opened, Published, Relocated, Removed
from laneway.core.keys import Keys
from laneway.core.lane import Lane
from laneway.core.state import State
from laneway.journal import stored
from laneway.journal.history import recovery, scan
from laneway.journal.history.snapshots import Snapshot
from laneway.journal.segments.journal import SegmentJournal
from laneway.journal.segments.space import Space
from laneway.journal.segments.writer import SegmentWriter

from .faulty_files import FaultyFiles
from .node import Sizes
from .simulator import Failure, run_seed
from .small import small_parts

SEEDS = range(1_000)

Plant = AbstractContextManager[Any]


def confirmed_before_it_is_written() -> Plant:
    tell = Committer._tell

    def flush(self: Any) -> None:
        told, self._waiting = self._waiting, []
        original(self)
        tell(self, told)

    original = Committer._flush
    return mock.patch.object(Committer, "_flush", flush)


def written_without_a_sync() -> Plant:
    original = FaultyFiles.write

    def write(self: Any, file: int, buffers: Sequence[bytes], offset: int, *, sync: bool = False) -> None:
        original(self, file, buffers, offset, sync=False)

    return mock.patch.object(FaultyFiles, "write", write)


def zeros_written_over_the_last_commit() -> Plant:
    original = SegmentWriter._fill

    def fill(self: Any, current: Any) -> int:
        self._filled_end, self._end, end = 0, self._end - 128, self._end
        try:
            return original(self, current)
        finally:
            self._end = end

    return mock.patch.object(SegmentWriter, "_fill", fill)


def names_never_synced() -> Plant:
    return mock.patch.object(FaultyFiles, "sync_folder", lambda self, path: None)


def snapshot_not_synced_before_it_replaces_history() -> Plant:
    original = FaultyFiles.sync

    def sync(self: Any, file: int) -> None:
        if "snapshot" not in self._files[file][1]:
            original(self, file)

    return mock.patch.object(FaultyFiles, "sync", sync)


def needed_segment_dropped() -> Plant:
    original = SegmentJournal.drop

    def drop(self: Any) -> list[int]:
        if self._snapshot is not None:
            self._snapshot = self._snapshot._replace(needed={})
        return original(self)

    return mock.patch.object(SegmentJournal, "drop", drop)


def segment_dropped_before_the_snapshot_is_durable() -> Plant:
    original = Upkeep.sealed

    def sealed(self: Any, commit: Any) -> None:
        original(self, commit)
        if self._frozen is not None:
            position, _, live = self._frozen
            newest = max(self._engine.journal._writer.segments)
            described = Snapshot(position, 0, newest, dict.fromkeys(live, 0), 0)
            with mock.patch.object(self._engine.journal, "_snapshot", described):
                self._engine.journal.drop()

    return mock.patch.object(Upkeep, "sealed", sealed)


def snapshot_frozen_too_late() -> Plant:
    """When its commit is durable, not when it was sealed: it then says more than the commits up to it."""
    original = Upkeep.durable

    def durable(self: Any, commit: Any) -> None:
        if self._frozen is not None:
            self._frozen = (self._frozen[0], snapshot.freeze(self._engine.state), list(self._engine.state.extents))
        original(self, commit)

    return mock.patch.object(Upkeep, "durable", durable)


def lease_ids_begin_anew_after_a_restart() -> Plant:
    def opened(self: Any, e: Opened) -> None:
        self.epoch, self.tag = e.epoch, e.tag

    return mock.patch.object(State, "_opened", opened)


def new_epoch_not_synced() -> Plant:
    """Where commits are not synced one by one, a power cut then takes the epoch with it."""
    original = Sizes.__init__

    def init(self: Any, random: Random) -> None:
        original(self, random)
        self.durability = "none"

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Sizes, "__init__", init))
    stack.enter_context(mock.patch.object(SegmentJournal, "sync", lambda self: None))
    return stack


def stale_token_taken() -> Plant:
    """A token is looked at for its message alone."""
    original = lease_commands._held

    def held(state: Any, queue: Any, s: Any, now_ms: int) -> tuple[int, int, bool]:
        seq = int(s.token[16:], 16)
        if state.table.state(seq) == 2 and state.table.owned(seq).queue[seq & table.SLAB_MASK] == queue.number:
            return seq, state.table.owned(seq).lease[seq & table.SLAB_MASK], True
        return original(state, queue, s, now_ms)

    return mock.patch.multiple(lease_commands, _held=held, _ack_plain=lambda state, queue, rest, *_: rest)


def ack_not_journaled() -> Plant:
    def encode(e: Acked, offset: int) -> tuple[bytes, Sequence[bytes]]:
        packed, blobs = original(e, offset)
        return (packed[:-64] if len(e.seqs) > 1 else packed), blobs

    original = rows._ENCODERS[Kind.ACKED]
    return mock.patch.dict(rows._ENCODERS, {Kind.ACKED: encode})


def dead_letter_not_in_one_step() -> Plant:
    """Taken from its queue in one commit and put nowhere."""
    original = lease_commands.bury

    def bury(*args: Any) -> Iterator[Event]:
        for event in original(*args):
            if isinstance(event, Moved) and len(event.seqs) > 1:
                yield Removed(event.queue, event.at_ms, event.seqs[1:], event.cause)
                event = Moved(*(getattr(event, f) for f in Moved.__struct_fields__))
                event.seqs = event.seqs[:1]
            yield event

    return mock.patch.object(lease_commands, "bury", bury)


def delivered_before_it_is_durable() -> Plant:
    at_once = property(lambda self: 1 << 60, lambda self, value: None)
    return mock.patch.object(Committer, "durable_next_seq", at_once, create=True)


def torn_commit_taken_for_whole() -> Plant:
    return mock.patch.object(scan, "checksum", lambda data: AlwaysEqual())


class AlwaysEqual:
    def __ne__(self, other: object) -> bool:
        return False


def torn_tail_left_where_it_is() -> Plant:
    original = recovery.Replay.commits

    def commits(self: Any) -> Iterator[Any]:
        yield from original(self)
        self.tail_is_empty = True
        self.unproven.clear()

    return mock.patch.object(recovery.Replay, "commits", commits)


def compacted_records_all_stand_at_the_same_place() -> Plant:
    original = State._relocated

    def relocated(self: Any, e: Relocated) -> None:
        original(self, e)
        for seq in e.seqs:
            if seq in self.table:
                self.table.owned(seq).location[seq & table.SLAB_MASK] = e.location

    return mock.patch.object(State, "_relocated", relocated)


def shared_records_taken_for_those_that_come_next() -> Plant:
    """Rows of the second queue name what stands behind the records of the first."""
    original = stored.located

    def located(locations: Any, sizes: Any, start: int) -> list[int]:
        found = original(locations, sizes, start)
        return [at if location == 0 else at + 64 for location, at in zip(locations, found, strict=True)]

    return mock.patch.object(stored, "located", located)


def replay_takes_shared_records_for_neighbours() -> Plant:
    return mock.patch.object(rows, "_located", lambda found, location: (location(found[0][12]), ()))


def a_shared_record_goes_with_its_first_message() -> Plant:
    """The segment is thought to be empty when the first of those who share a record is gone."""
    original = State._published

    def published(self: Any, e: Published) -> None:
        original(self, e)
        if e.locations and len(e.locations) > len(set(e.locations)):
            self.extents[e.locations[0] >> 32] -= len(e.locations) - len(set(e.locations))

    return mock.patch.object(State, "_published", published)


def dedup_ids_forgotten_by_a_snapshot() -> Plant:
    original = snapshot._thaw_queue

    def thaw_queue(state: Any, q: Any) -> None:
        original(state, q)
        state.queues[q.number].dedup.clear()

    return mock.patch.object(snapshot, "_thaw_queue", thaw_queue)


def keys_forgotten_by_a_restart() -> Plant:
    original = Engine.recover

    def recover(self: Any, now_ms: int) -> Any:
        recovery = original(self, now_ms)
        self.state.keys = Keys()
        return recovery

    return mock.patch.object(Engine, "recover", recover)


def bindings_forgotten_by_a_snapshot() -> Plant:
    original = snapshot.freeze

    def freeze(state: State, at_ms: int = 0) -> Any:
        frozen = original(state, at_ms)
        frozen.head["exchanges"] = [(*about, []) for *about, _ in frozen.head["exchanges"]]
        return frozen

    return mock.patch.object(snapshot, "freeze", freeze)


def exchange_forgotten_by_a_crash() -> Plant:
    """Told to the caller before it is durable."""

    async def durable(self: Any) -> None:
        await asyncio.sleep(0)

    return mock.patch.object(Committer, "durable", durable)


def released_message_goes_to_the_end() -> Plant:
    return mock.patch.object(Lane, "give_back", Lane.append)


def stop_that_does_not_wait() -> Plant:
    async def close(self: Any) -> None:
        await asyncio.sleep(0)

    return mock.patch.object(Committer, "close", close)


def disk_full_is_never_over() -> Plant:
    original = Space._set_room
    return mock.patch.object(Space, "_set_room", lambda self, room, why: original(self, room and self.room, why))


def connections_of_before_keep_what_they_held() -> Plant:
    return mock.patch.object(lease_commands, "end_sessions", lambda state, now_ms: iter(()))


def acks_of_a_transaction_in_another_commit() -> Plant:
    original = Inbox._transact

    def transact(self: Any, entries: Any) -> None:
        for entry in entries:
            later, entry.request.settlements = entry.request.settlements, []
            original(self, [entry])
            for settlement in later:
                self._partition.sessions.settled(settlement)
                self.add_later(Entry(settlement, lambda answer: None))

    return mock.patch.object(Inbox, "_transact", transact)


def copies_for_several_queues_in_several_commits() -> Plant:
    original = Partition.publish

    def publish(self: Any, shares: Any, messages: Any, now_ms: Any = None, records: Any = None) -> Any:
        receipts = original(self, shares, messages, now_ms)  # records are shared inside a commit only
        self.committer._flush()
        return receipts

    return mock.patch.object(Partition, "publish", publish)


def last_of_a_batch_lost() -> Plant:
    original = publishing._published

    def published(*args: Any) -> Published:
        event = original(*args)
        if len(event.bodies) > 1:
            for name in ("priorities", "visible_at", "expires_at", "sizes", "props", "bodies"):
                setattr(event, name, getattr(event, name)[:-1])
        return event

    return mock.patch.object(publishing, "_published", published)


def merged_publishes_reordered() -> Plant:
    original = inbox.joined_messages
    return mock.patch.object(inbox, "joined_messages", lambda parts: original(parts[::-1]))


def answers_of_merged_publishes_mixed_up() -> Plant:
    original = Inbox._publish_into

    def publish_into(self: Any, numbers: list[int], gathered: Any, *rest: Any) -> None:
        original(self, numbers, gathered, *rest)
        entries = [entry for entry, _, _ in gathered.parts[numbers[0]]]
        if len({len(entry.request.messages.bodies) for entry in entries}) == 1:
            entries[0].arrivals[-1], entries[-1].arrivals[-1] = entries[-1].arrivals[-1], entries[0].arrivals[-1]

    return mock.patch.object(Inbox, "_publish_into", publish_into)


def publishes_carried_out_before_what_came_earlier() -> Plant:
    original = Inbox.drain

    def drain(self: Any) -> None:
        self._entries.sort(key=lambda entry: type(entry.request) is not Publish)
        original(self)

    return mock.patch.object(Inbox, "drain", drain)


def message_settled_twice_in_one_drain() -> Plant:
    return mock.patch.object(lease_commands, "_once", lambda seqs, held: list(held))


def lease_journaled_after_its_ack() -> Plant:
    """What follows a lease in the journal, such as its ack, is written before it."""
    original = SegmentJournal.stage
    kept: dict[int, Leased] = {}  # by journal

    def stage(self: Any, event: Event) -> int:
        if isinstance(event, Leased) and id(self) not in kept:
            kept[id(self)] = event
            return 0
        location = original(self, event)
        late = kept.pop(id(self), None)
        if late is not None:
            original(self, late)
        return location

    return mock.patch.object(SegmentJournal, "stage", stage)


def confirmed_when_it_is_carried_out() -> Plant:
    """A publish is confirmed before its commit."""
    original = Inbox._publish

    def publish(self: Any, entries: Any) -> None:
        committer = self._partition.committer
        with mock.patch.object(committer, "when_durable", lambda done, result: done(result)):
            original(self, entries)

    return mock.patch.object(Inbox, "_publish", publish)


def settlements_answered_when_they_are_carried_out() -> Plant:
    original = Inbox._ack

    def ack(self: Any, entries: Any) -> None:
        committer = self._partition.committer
        with mock.patch.object(committer, "when_durable", lambda done, result: done(result)):
            original(self, entries)

    return mock.patch.object(Inbox, "_ack", ack)


def deliveries_overtake_those_that_wait_for_the_disk() -> Plant:
    return mock.patch.object(Subscription, "on_its_way", property(lambda self: 0, lambda self, value: None))


def deliveries_overtake_those_that_are_read() -> Plant:
    return mock.patch.object(Subscription, "is_reading", property(lambda self: False, lambda self, value: None))


def read_messages_delivered_after_they_were_settled() -> Plant:
    return mock.patch.object(Engine, "left_of", lambda self, queue, leased: None)


def reads_forgotten_at_a_stop() -> Plant:
    async def close(self: Any) -> None:
        self._pool._work.clear()

    return mock.patch.object(ReaderThread, "close", close)


def what_was_read_too_late_pushed_all_the_same() -> Plant:
    def give_back(self: Any, subscription: Any, deliveries: Any) -> None:
        session = self.find(subscription.request.session)
        if session is not None:
            session.push([Delivered(subscription.number, deliveries)])

    return mock.patch.object(Sessions, "_give_back", give_back)


def credit_given_back_wakes_nobody() -> Plant:
    def grant(self: Any, count: int) -> None:
        self.held -= count

    return mock.patch.object(Limit, "grant", grant)


def credit_of_a_transaction_not_given_back() -> Plant:
    original = Inbox._transact

    def transact(self: Any, entries: Any) -> None:
        with mock.patch.object(self._partition.sessions, "settled", lambda request: None):
            original(self, entries)

    return mock.patch.object(Inbox, "_transact", transact)


def fence_of_a_producer_forgotten() -> Plant:
    original = Producers.start

    def start(self: Any) -> None:
        original(self)
        self._fences.clear()

    return mock.patch.object(Producers, "start", start)


def batch_of_a_producer_confirmed_before_its_commit() -> Plant:
    original = Producers.commit

    async def commit(self: Any, *args: Any, **options: Any) -> Any:
        async def durable() -> None:
            await asyncio.sleep(0)

        with mock.patch.object(self._partition, "durable", durable):
            return await original(self, *args, **options)

    return mock.patch.object(Producers, "commit", commit)


def credit_not_charged() -> Plant:
    original = Subscription.charge

    def charge(self: Any, count: int) -> None:
        original(self, 0)
        self.on_its_way += count

    return mock.patch.object(Subscription, "charge", charge)


def lease_ids_not_compared() -> Plant:
    """What another holds by now is settled as well."""

    def still_held(state: Any, queues: Any, seqs: Any, leases: Any) -> list[bool]:
        return [seq in state.table and state.table.state(seq) == table.LEASED for seq in seqs]

    return mock.patch.object(lease_commands, "still_held", still_held)


def history_dropped_before_it_is_known_who_reads_it() -> Plant:
    original = Cursors.start

    def start(self: Any) -> None:
        self._partition.engine.journal.drop()
        original(self)

    return mock.patch.object(Cursors, "start", start)


def history_let_go_before_its_reader_is_safe() -> Plant:
    """A crash then brings back an older position, and what it wants is gone."""
    original = Cursors._keep

    def keep(self: Any, name: str, position: int) -> None:
        original(self, name, position)
        self._holding[name] = position
        self._hold()
        self._partition.engine.journal.drop()

    return mock.patch.object(Cursors, "_keep", keep)


LOST = "is lost|cannot be read|was durable|given twice"
DIFFERENT = "recovered differently|KeyError|is next|is lost|came back|unwritten"

#: What is planted, and what the simulator must say about it.
PLANTS: dict[Callable[[], Plant], str] = {
    confirmed_before_it_is_written: LOST,
    written_without_a_sync: LOST,
    zeros_written_over_the_last_commit: f"{LOST}|is damaged|cannot be read",
    names_never_synced: "is missing",
    snapshot_not_synced_before_it_replaces_history: "snapshot-.* is damaged",
    needed_segment_dropped: "is missing|peek shows",
    segment_dropped_before_the_snapshot_is_durable: "is missing",
    snapshot_frozen_too_late: DIFFERENT,
    lease_ids_begin_anew_after_a_restart: "lease id",
    new_epoch_not_synced: "given twice",
    stale_token_taken: "a token that had ended|was refused",
    ack_not_journaled: DIFFERENT,
    dead_letter_not_in_one_step: "is lost",
    delivered_before_it_is_durable: "is lost",
    torn_commit_taken_for_whole: "cannot be decoded|cannot be read|recovered differently|that nobody sent",
    torn_tail_left_where_it_is: "cannot be read|is damaged|recovered differently",
    compacted_records_all_stand_at_the_same_place: "cannot be read|there twice|has become|nobody sent|peek shows",
    shared_records_taken_for_those_that_come_next: "cannot be read|damaged|is lost|ValueError",
    replay_takes_shared_records_for_neighbours: f"{LOST}|{DIFFERENT}|damaged|nobody sent|there twice|has become",
    a_shared_record_goes_with_its_first_message: "KeyError|is missing|recovered differently|extents",
    dedup_ids_forgotten_by_a_snapshot: "dedup id",
    keys_forgotten_by_a_restart: "keys",
    bindings_forgotten_by_a_snapshot: "exchanges: |which is not there",
    exchange_forgotten_by_a_crash: "exchange (news|rest) is None",
    released_message_goes_to_the_end: "out of order",
    stop_that_does_not_wait: DIFFERENT,
    disk_full_is_never_over: "publishing is still refused",
    connections_of_before_keep_what_they_held: "a connection of before still holds",
    acks_of_a_transaction_in_another_commit: "of one transaction|came back|after its end was answered",
    copies_for_several_queues_in_several_commits: "of one publish",
    last_of_a_batch_lost: "is lost|there twice|is next|differently",
    merged_publishes_reordered: "out of order|answered|results|has become|overtook",
    answers_of_merged_publishes_mixed_up: "has become|have the same id|answered with|is said to repeat|priority",
    publishes_carried_out_before_what_came_earlier: "was sent after the lease that got it|out of order|overtook",
    message_settled_twice_in_one_drain: "slab",
    lease_journaled_after_its_ack: DIFFERENT,
    confirmed_when_it_is_carried_out: LOST,
    settlements_answered_when_they_are_carried_out: "came back|was durable",
    deliveries_overtake_those_that_wait_for_the_disk: "overtook another",
    deliveries_overtake_those_that_are_read: "overtook another",
    read_messages_delivered_after_they_were_settled: "was delivered after its end was answered",
    reads_forgotten_at_a_stop: "was never answered",
    what_was_read_too_late_pushed_all_the_same: "told of its end|has ended",
    credit_given_back_wakes_nobody: "nobody gives them",
    credit_of_a_transaction_not_given_back: "nobody gives them",
    fence_of_a_producer_forgotten: "the fence does not know it|was published twice|with . messages",
    batch_of_a_producer_confirmed_before_its_commit: f"{LOST}|the fence does not know it",
    credit_not_charged: "may be outstanding",
    lease_ids_not_compared: "a token that had ended|is lost",
    history_dropped_before_it_is_known_who_reads_it: "were lost without need|a cursor holds|has been dropped",
    history_let_go_before_its_reader_is_safe: "were lost without need|a cursor holds|has been dropped",
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[], Plant]) -> None:
    others: list[str] = []
    with small_parts(), plant():
        for seed in SEEDS:
            try:
                run_seed(seed)
            except Failure as failure:
                assert f"--seeds {seed}" in str(failure)
                if re.search(PLANTS[plant], str(failure)):
                    return
                others.append(str(failure).splitlines()[0])
    pytest.fail(f"{len(SEEDS)} seeds did not say so, but {others[:5]}")
