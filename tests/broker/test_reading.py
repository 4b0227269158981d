"""Messages that are read back from the journal while the loop goes on: their order, and what may happen meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from laneway.broker import engine, reading, sessions
from laneway.broker import interface as i
from laneway.broker.committer import OnWritten, write_or_mark
from laneway.broker.reading import ReaderThread
from laneway.broker.values import Draft, Properties, Settlement
from laneway.core.invariants import check_invariants
from laneway.core.message import messages_of
from laneway.errors import JournalDamaged
from laneway.journal.interface import Commit, Journal

from .conftest import Bench, bodies, publish
from .consuming import Connection, Consumer, numbered

Run = Callable[..., None]


class SlowDisk:
    """In place of the reader's thread: reads when it is told to."""

    def __init__(self, b: Bench) -> None:
        reader = b.partition.reader
        assert isinstance(reader, ReaderThread)
        reader._pool.shutdown()
        reader._pool = self  # type: ignore[assignment]
        self._reads: list[Callable[[], None]] = []

    def submit(self, read: Callable[[], None]) -> None:
        self._reads.append(read)

    def __len__(self) -> int:
        return len(self._reads)

    async def turn(self) -> None:
        """Read the first of what is to be read, and let it come in."""
        self._reads.pop(0)()
        await asyncio.sleep(0)

    def shutdown(self) -> None:
        while self._reads:
            self._reads.pop(0)()


class SlowWriter:
    """Writes commits at once, unless it is slow: then when it is told to."""

    def __init__(self, journal: Journal, loop: asyncio.AbstractEventLoop, on_written: OnWritten) -> None:
        self._journal = journal
        self._on_written = on_written
        self._commits: list[Commit] = []
        self.is_slow = False

    def put(self, commit: Commit) -> None:
        self._commits.append(commit)
        if not self.is_slow:
            self.write()

    def write(self) -> None:
        self.is_slow = False
        while self._commits:
            commit = self._commits.pop(0)
            error = write_or_mark(self._journal, commit)
            if commit.position or error is not None:
                self._on_written(commit, error)

    async def close(self) -> None:
        self.write()


async def settled(b: Bench) -> None:
    """All that can happen without the disk."""
    for _ in range(4):
        await b.durable()
        await asyncio.sleep(0)


async def forgotten(b: Bench, *some: bytes, queue: str = "q", **draft: Any) -> None:
    """Publish messages that are no longer in memory."""
    await b.publish(*some, queue=queue, **draft)
    b.engine.cache._slabs.clear()
    b.engine.cache._bytes = 0


def test_the_loop_goes_on_while_messages_are_read(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        await b.queue("other")
        await forgotten(b, *numbered(3))
        leased = b.send(i.Lease(b.id(), 2))
        await b.publish(b"kept", queue="other")
        assert bodies(await b.lease(queue="other")) == [b"kept"]
        assert leased == [] and (await b.stats()).leased == 2
        await disk.turn()
        assert [bodies(deliveries) for deliveries in leased] == [numbered(2)]
        assert await b.settle("ack", list(leased[0])) == [0, 0]

    run(scenario)


def test_what_is_partly_in_memory_is_put_together(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue("dead")
        await b.queue(dead_letter_queue="dead")
        properties = Properties(content_type="text/plain", key="k")
        await forgotten(b, *numbered(2), properties=properties)
        await b.publish(*numbered(2, 2))
        leased = b.send(i.Lease(b.id(), 4))
        await asyncio.sleep(0)
        await disk.turn()
        assert bodies(leased[0]) == numbered(4)
        assert [delivery.properties.key for delivery in leased[0]] == ["k", "k", "", ""]
        await b.settle("reject", list(leased[0]), reason="no")
        dead = b.send(i.Lease(b.id("dead"), 4))
        await asyncio.sleep(0)
        await disk.turn()
        assert bodies(dead[0]) == numbered(4)
        assert [delivery.message_id for delivery in dead[0]] == [delivery.message_id for delivery in leased[0]]
        assert {delivery.deaths[0].detail for delivery in dead[0]} == {"no"}

    run(scenario)


# Order and credit


@pytest.mark.parametrize("credit", [0, 10])
def test_what_is_in_memory_does_not_overtake_what_is_read(run: Run, credit: int) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        consumer = Consumer(b, credit=credit)
        await settled(b)
        consumer.connection.flow(False)
        await forgotten(b, *numbered(2))
        consumer.connection.flow(True)
        await settled(b)
        await b.publish(*numbered(2, 2))  # these are in memory
        await settled(b)
        assert consumer.got == [] and len(disk) == 1
        await disk.turn()
        await settled(b)
        assert consumer.got == numbered(4), "and it goes on by itself"
        assert len(disk) == 0

    run(scenario)


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_is_read_overtakes_nothing_and_nothing_overtakes_it(run: Run, no_ack: bool) -> None:
    async def scenario(b: Bench) -> None:
        writers: list[SlowWriter] = []
        b.options["new_writer"] = lambda *parts: writers.append(SlowWriter(*parts)) or writers[-1]
        await b.restart()
        disk, writer = SlowDisk(b), writers[-1]
        await b.queue()
        await forgotten(b, b"read back")
        await b.publish(b"kept")
        held = b.send(i.Lease(b.id(), 2))
        await asyncio.sleep(0)
        await disk.turn()
        first, second = [i.Settle(b.id(), [Settlement("release", token)]) for token in held[0].tokens()]
        consumer = Consumer(b, no_ack=no_ack)
        await settled(b)
        writer.is_slow = True
        # It may expire before it is durable, so it is leased at once, and pushed when it is.
        b.send(publish(b, [Draft(b"not durable", ttl_ms=60_000)]))
        b.send(first)
        for _ in range(5):
            await asyncio.sleep(0)
        b.send(second)
        b.partition.inbox.drain()
        assert (await b.stats()).ready == 1 and len(disk) == 1
        await disk.turn()
        assert consumer.got == []
        writer.write()
        await settled(b)
        assert consumer.got == [b"not durable", b"read back", b"kept"]

    run(scenario)


def test_others_are_served_while_one_waits_for_the_disk(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        slow, other = Consumer(b, credit=5), Consumer(b, credit=5)
        await settled(b)
        other.connection.flow(False)
        slow.connection.flow(False)
        await forgotten(b, b"0")
        slow.connection.flow(True)
        await settled(b)
        other.connection.flow(True)
        await b.publish(b"1", b"2")
        assert (slow.got, other.got) == ([], [b"1", b"2"])
        await disk.turn()
        await b.publish(*numbered(2, 3))
        assert sorted(slow.got + other.got) == numbered(5) and len(slow.got) == 2

    run(scenario)


def test_no_more_is_on_its_way_than_there_is_credit_for(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        await forgotten(b, *numbered(6))
        connection = Connection(b)
        connection.limit_pool(1, 3)
        consumers = [Consumer(b, on=connection, credit=2, pool=1) for _ in range(2)]
        await settled(b)
        assert (await b.stats()).leased == 3 and len(disk) == 2
        while len(disk):
            await disk.turn()
        await settled(b)
        assert sum(len(consumer.got) for consumer in consumers) == 3 and len(disk) == 0
        for _ in range(6):
            for consumer in consumers:
                if consumer.held:
                    consumer.settle("ack")
            await settled(b)
            while len(disk):
                await disk.turn()
        assert sorted(body for consumer in consumers for body in consumer.got) == numbered(6)

    run(scenario)


def test_a_single_active_consumer_waits_for_the_disk_and_so_does_its_successor(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue(single_active_consumer=True)
        await forgotten(b, b"0")
        first, second = Consumer(b, credit=2), Consumer(b, credit=2)
        await settled(b)
        await b.publish(b"1")
        await settled(b)
        urgent = Consumer(b, credit=2, priority=1)
        await settled(b)
        assert (first.got, second.got, urgent.got) == ([], [], []), "the first holds what is read for it"
        await disk.turn()
        await settled(b)
        assert (first.got, second.got, urgent.got) == ([b"0"], [], [])
        first.settle("ack")
        await settled(b)
        assert (first.got, second.got, urgent.got) == ([b"0"], [], [b"1"])

    run(scenario)


# What may happen meanwhile


@pytest.mark.parametrize("no_ack", [False, True])
@pytest.mark.parametrize("end", ["unsubscribe", "session"])
def test_what_is_read_for_one_that_left_goes_back(run: Run, no_ack: bool, end: str) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        await forgotten(b, *numbered(2))
        connection = Connection(b)
        connection.limit_pool(1, 2)
        consumer = Consumer(b, on=connection, no_ack=no_ack, pool=1)
        await settled(b)
        assert (await b.stats()).leased == 2
        consumer.cancel() if end == "unsubscribe" else connection.end()
        await settled(b)
        assert consumer.is_cancelled == (end == "unsubscribe")
        await disk.turn()
        stats = await b.stats()
        assert (stats.ready, stats.leased, stats.totals["acked"], consumer.got) == (2, 0, 0, [])
        if end == "unsubscribe":
            session = b.partition.sessions.find(connection.session)
            assert session is not None and session.pools[1].held == 0 and not session.subscriptions
        check_invariants(b.engine.state)

    run(scenario)


@pytest.mark.parametrize("no_ack", [False, True])
def test_what_is_read_for_a_consumer_without_acks_is_acked_when_it_is_pushed(run: Run, no_ack: bool) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        await forgotten(b, *numbered(2), properties=Properties(group="g"))
        consumer = Consumer(b, no_ack=no_ack)
        while not consumer.got or (no_ack and len(consumer.got) < 2):
            await settled(b)
            assert (await b.stats()).leased
            await disk.turn()
        await settled(b)
        stats = await b.stats()
        acked = 2 if no_ack else 0
        assert (stats.leased, stats.totals["acked"], consumer.got) == (2 - acked, acked, numbered(2))

    run(scenario)


def test_what_an_ack_without_asking_makes_free_goes_to_those_who_wait_first(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        group = Properties(group="g")
        await forgotten(b, b"0", properties=group)
        consumer = Consumer(b, no_ack=True)
        await settled(b)
        await b.publish(b"1", properties=group)  # it waits for the one before it in its group
        waits = b.send(i.Lease(b.id(), 1, wait_ms=20_000))
        await settled(b)
        assert consumer.got == [] and waits == []
        await disk.turn()
        await settled(b)
        assert consumer.got == [b"0"] and [bodies(deliveries) for deliveries in waits] == [[b"1"]]

    run(scenario)


def test_a_queue_may_be_deleted_while_its_messages_are_read(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        await b.queue("other")
        await forgotten(b, *numbered(3_000))
        connection = Connection(b)
        connection.limit_pool(1, 2_500)
        leased = b.send(i.Lease(b.id(), 10))
        got = b.send(i.Lease(b.id(), 1, session=connection.session))
        await asyncio.sleep(0)
        consumer, other = Consumer(b, on=connection, pool=1), Consumer(b, "other", on=connection, pool=1)
        await settled(b)
        assert len(disk) == 3
        await b.delete()
        assert len(b.engine.state.table) == 0
        while len(disk):
            await disk.turn()
        await settled(b)
        assert consumer.has_ended and consumer.got == []
        # They were leased before the queue went: whoever leased them may have them, or nothing.
        assert [len(deliveries) for deliveries in leased] in ([0], [10])
        assert len(got) == 1
        await b.publish(*numbered(2_500), queue="other")
        await settled(b)
        assert len(other.got) == 2_500, "what went with the queue takes no credit"
        await b.queue()
        await b.publish(b"new")
        assert bodies(await b.lease()) == [b"new"]
        check_invariants(b.engine.state)

    run(scenario)


@pytest.mark.parametrize("trouble", [FileNotFoundError("the segment"), JournalDamaged("a record"), RuntimeError("?")])
def test_a_segment_may_go_while_it_is_read(run: Run, trouble: Exception) -> None:
    """What is still held is looked for once more, where it is now; what is gone is left out."""

    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        await forgotten(b, *numbered(4))
        leased = b.send(i.Lease(b.id(), 4, lease_ms=10_000))
        await asyncio.sleep(0)
        read_contents = b.journal.read_contents

        def fail_once(locations: Sequence[int], sizes: Sequence[int]) -> Any:
            b.journal.read_contents = read_contents  # type: ignore[method-assign]
            raise trouble

        b.journal.read_contents = fail_once  # type: ignore[method-assign]
        slab = b.engine.state.table.slabs[0]
        tokens = [f"{slab.lease[seq]:016x}{seq:012x}" for seq in (1, 3)]
        assert await b.ask(i.Ack(b.id(), tokens)) == [0, 0]
        await disk.turn()
        assert [bodies(deliveries) for deliveries in leased] == [[b"1", b"3"]]
        assert await b.settle("ack", list(leased[0])) == [0, 0]

    run(scenario)


def test_when_nothing_can_be_read_nobody_waits_for_ever_and_the_leases_expire(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue(lease_ms=1_000, max_receives=None)
        await forgotten(b, *numbered(3))

        def fail(*_: object) -> Any:
            raise OSError("the disk is gone")

        read, read_contents = b.journal.read, b.journal.read_contents
        b.journal.read = b.journal.read_contents = fail  # type: ignore[method-assign]
        leased = b.send(i.Lease(b.id(), 1))
        await asyncio.sleep(0)
        consumer = Consumer(b, credit=2)
        await settled(b)
        while len(disk):
            await disk.turn()
        assert [len(deliveries) for deliveries in leased] == [0] and consumer.got == []
        assert "could not be read back; their leases will expire" in caplog.text
        b.journal.read, b.journal.read_contents = read, read_contents  # type: ignore[method-assign]
        b.pass_time(2_000)
        b.pass_time(2_000)
        for _ in range(3):
            await settled(b)
            while len(disk):
                await disk.turn()
        assert len(consumer.got) == 2, "it has all of its credit"

    run(scenario)


def test_those_who_share_a_lease_share_what_is_not_damaged(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue(max_receives=None, lease_ms=60_000)
        sent = [b"body number %d" % n for n in range(4)]
        await forgotten(b, *sent)
        for path in b.folder.glob("*.segment"):
            data = path.read_bytes()
            if sent[1] in data:
                with path.open("r+b") as file:
                    file.seek(data.index(sent[1]))
                    file.write(bytes(len(sent[1])))
        first, second, third = (b.send(i.Lease(b.id(), limit)) for limit in (1, 2, 1))
        await b.turns()
        got = [bodies(deliveries) for answers in (first, second, third) for deliveries in answers]
        assert len(got) == 3 and [body for some in got for body in some] == [sent[0], sent[2], sent[3]]
        assert (await b.stats()).leased == 4, "the damaged one comes back when its lease ends"

    run(scenario)


def test_a_broker_that_stops_hands_out_what_is_being_read(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        SlowDisk(b)
        await b.queue()
        await forgotten(b, *numbered(3))
        connection = Connection(b)
        consumer = Consumer(b, on=connection, credit=1)
        await settled(b)
        leased = b.send(i.Lease(b.id(), 1))
        ended = b.broker.open_session(lambda push: pytest.fail("pushed to a session that has ended"))
        b.send(i.Subscribe(ended, 1, b.id(), no_ack=True))
        await settled(b)
        b.send(i.EndSession(ended))
        await b.stop()
        assert consumer.got == [b"0"] and [bodies(deliveries) for deliveries in leased] == [[b"1"]]
        await b.start()
        stats = await b.stats()
        assert (stats.ready, stats.leased) == (2, 1), "what connections held is back"
        assert await b.ask(i.Ack(b.id(), leased[0].tokens())) == [0]

    run(scenario)


def test_a_wait_that_is_withdrawn_while_its_messages_are_read_is_answered_at_most_once(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        await b.queue()
        for answer in (True, False):
            await forgotten(b, b"x")
            told: list[Any] = []
            number = b.broker.send(i.Lease(b.id(), 1, wait_ms=20_000), told.append)
            await asyncio.sleep(0)
            b.broker.withdraw(number, answer=answer)
            await disk.turn()
            await settled(b)
            assert [bodies(deliveries) for deliveries in told] == [[b"x"]], "its messages were on their way already"
            await b.settle("ack", list(told[0]))

    run(scenario)


# Large messages


@pytest.fixture
def large_is_small(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many bytes are a large message here."""
    for module in (engine, reading, sessions):
        monkeypatch.setattr(module, "LARGE_BYTES", 1000)
    return 1000


def test_a_large_message_is_not_kept_and_is_read_once_for_all_who_get_it(run: Run, large_is_small: int) -> None:
    async def scenario(b: Bench) -> None:
        disk, body = SlowDisk(b), b"x" * 5000
        for name in "abc":
            await b.queue(name)
        targets = tuple(b.id(name) for name in "abc")
        await b.ask(i.Publish(targets, messages_of([Draft(body), Draft(b"small")])))
        assert b.engine.cache._bytes < 2000
        consumers = [Consumer(b, name, credit=1) for name in "abc"]
        reads = []
        read = b.engine.read_columns
        b.engine.read_columns = lambda *what: (reads.append(what), read(*what))[1]  # type: ignore[method-assign]
        await settled(b)
        while len(disk):
            await disk.turn()
        await settled(b)
        assert [consumer.got for consumer in consumers] == [[body]] * 3
        assert len(reads) == 1, "all share it"
        held = {id(consumer.taken[0].bodies[0].obj) for consumer in consumers}  # type: ignore[union-attr]
        assert len(held) == 1

    run(scenario)


def test_large_messages_wait_on_the_disk_for_others_to_leave(run: Run, large_is_small: int) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        b.partition.reader._most_large_bytes = 12_000  # type: ignore[attr-defined]
        for name in "abc":
            await b.queue(name)
            await b.publish(name.encode() * 5000, queue=name)
        consumers = [Consumer(b, name) for name in "abc"]
        await settled(b)
        while len(disk):
            await disk.turn()
        await settled(b)
        assert [len(consumer.got) for consumer in consumers] == [1, 1, 0], "there is no room for a third"
        consumers[0].taken.clear()  # it has left
        gc.collect()
        await settled(b)
        while len(disk):
            await disk.turn()
        await settled(b)
        assert [len(consumer.got) for consumer in consumers] == [1, 1, 1]

    run(scenario)


def test_a_message_larger_than_all_room_is_read_alone(run: Run, large_is_small: int) -> None:
    async def scenario(b: Bench) -> None:
        b.partition.reader._most_large_bytes = 2000  # type: ignore[attr-defined]
        await b.queue()
        await b.publish(b"x" * 5000)
        consumer = Consumer(b)
        await b.turns(6)
        assert consumer.got == [b"x" * 5000]

    run(scenario)


@pytest.mark.parametrize("then", ["goes on", "is cancelled", "ends"])
def test_a_large_message_waits_for_a_session_that_takes_nothing(run: Run, large_is_small: int, then: str) -> None:
    async def scenario(b: Bench) -> None:
        disk = SlowDisk(b)
        for name in "ab":
            await b.queue(name)
            await b.publish(name.encode() * 5000, b"small", queue=name)
        connection = Connection(b)
        first, second = Consumer(b, "a", on=connection, credit=1), Consumer(b, "b", on=connection)
        await settled(b)
        connection.flow(goes_on=False)
        while len(disk):
            await disk.turn()
        await settled(b)
        assert (first.got, second.got) == ([], [])
        if then == "goes on":
            connection.flow(goes_on=True)
            await settled(b)
            while len(disk):
                await disk.turn()
            await settled(b)
            assert (first.got, second.got) == ([b"a" * 5000], [b"b" * 5000, b"small"])
            return
        if then == "is cancelled":
            first.cancel()
            second.cancel()
        else:
            connection.end()
        await settled(b)
        assert [(await b.stats(name)).leased for name in "ab"] == [0, 0]
        check_invariants(b.engine.state)

    run(scenario)
