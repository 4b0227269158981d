"""A full disk: publishing is refused, consuming goes on, and all is well again when space returns.

The random seeds meet full disks too; here is the whole story in order, with much and with little left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from laneway.broker.interface import (
    Ack,
    DescribeHistory,
    GetCursor,
    Lease,
    ListCursors,
    Publish,
    PurgeQueue,
    PutCursor,
    PutQueue,
    Request,
    Settle,
    Transact,
)
from laneway.broker.values import Alarm, Deliveries
from laneway.core.message import Draft, Receipt, Settlement, messages_of
from laneway.core.settings import QueueSettings
from laneway.errors import DiskFull, TooLargeForDisk, Unavailable

from .loop import SimulatedLoop
from .node import Node
from .simulator import Simulation, listening
from .small import small_parts
from .workload import PLENTY_BYTES

LOOK_S = 1.5  # the journal looks at the disk once a second
RESERVE_BYTES = 24 << 10
MESSAGES = 40


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_parts():
        yield


class FullDisk(Simulation):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        (self.process,) = self.processes
        self.sizes, self.files = self.process.sizes, self.process.files
        self.sizes.segment_bytes, self.sizes.reserve_bytes = 4096, RESERVE_BYTES
        self.sizes.snapshot_events, self.sizes.durability = 20, "commit"
        self.bodies: list[bytes] = []

    def life(self, story: Callable[[Node], Any], *, power_loss: bool = True) -> None:
        async def live(loop: SimulatedLoop) -> None:
            await story(await self.start(self.process, lambda node: None))

        with listening(), self.process.new_loop("stop") as loop:
            loop.run_until_complete(live(loop))
        self.files.crashed = False
        self.files.restart(power_loss=power_loss)

    async def call(self, node: Node, request: Request) -> Any:
        return await asyncio.wait_for(node.broker.ask(request), 10)

    async def publish(self, node: Node, count: int) -> None:
        for _ in range(count):
            body = b"message %d " % len(self.bodies) + bytes(100)
            self.bodies.append(body)
            try:
                arrivals = await self.call(node, Publish((node.id("q"),), messages_of([Draft(body)])))
            except (DiskFull, Unavailable):
                self.bodies.pop()
                raise
            assert isinstance(arrivals[0].result[0], Receipt)

    async def consume(self, node: Node, count: int) -> None:
        """The next messages, in order, acked."""
        for _ in range(count):
            deliveries: Deliveries = await self.call(node, Lease(node.id("q"), 1))
            assert [d.body for d in deliveries] == [self.bodies.pop(0)]
            assert await self.call(node, Ack(node.id("q"), deliveries.tokens())) == [0]


@pytest.mark.parametrize("left_bytes", [RESERVE_BYTES - 1, RESERVE_BYTES // 2])
@pytest.mark.parametrize("seed", range(5))
def test_consuming_goes_on_while_publishing_is_refused(seed: int, left_bytes: int) -> None:
    disk = FullDisk(seed)

    async def fill(node: Node) -> None:
        await disk.call(node, PutQueue("/", "q", QueueSettings()))
        await disk.publish(node, MESSAGES)
        await asyncio.sleep(LOOK_S)  # snapshots are saved and segments dropped by now
        disk.files.capacity_bytes = disk.files.used_bytes + left_bytes
        await asyncio.sleep(LOOK_S)
        with pytest.raises(DiskFull, match="consuming and acking go on"):
            await disk.publish(node, 3)  # the first may be what makes the journal look
        assert node.broker.health()["state"] == "disk_full"
        await disk.consume(node, MESSAGES // 4)

    async def go_on(node: Node) -> None:
        await asyncio.sleep(LOOK_S)
        with pytest.raises(DiskFull):
            await disk.publish(node, 3)
        await disk.consume(node, MESSAGES // 4)
        disk.files.capacity_bytes = PLENTY_BYTES
        await asyncio.sleep(LOOK_S)
        await disk.publish(node, 10)

    async def finish(node: Node) -> None:
        await disk.consume(node, len(disk.bodies))
        assert not disk.bodies and not node.seqs()

    disk.life(fill)
    disk.life(go_on)  # started with the disk still full
    disk.life(finish)


@pytest.mark.parametrize("seed", range(5))
def test_a_drained_node_has_room_again_though_no_commit_comes(seed: int) -> None:
    disk = FullDisk(seed)
    disk.sizes.snapshot_events = 100_000

    async def story(node: Node) -> None:
        await disk.call(node, PutQueue("/", "q", QueueSettings()))
        await disk.publish(node, MESSAGES)
        deliveries = await disk.call(node, Lease(node.id("q"), MESSAGES, 600_000))
        disk.files.capacity_bytes = disk.files.used_bytes + RESERVE_BYTES - 1
        await asyncio.sleep(LOOK_S)
        with pytest.raises(DiskFull):
            await disk.publish(node, 3)  # the first may be what makes the journal look
        assert await disk.call(node, Ack(node.id("q"), deliveries.tokens())) == [0] * MESSAGES
        position = node.journal.history.end().position
        await asyncio.sleep(3 * LOOK_S)
        assert node.journal.history.end().position == position, "what made room was no commit"
        assert node.broker.health()["state"] == "ready"
        del disk.bodies[:MESSAGES]
        await disk.publish(node, 3)

    async def finish(node: Node) -> None:
        await disk.consume(node, len(disk.bodies))
        assert not disk.bodies and not node.seqs()

    disk.life(story)
    disk.life(finish)


@pytest.mark.parametrize("seed", range(5))
def test_a_publish_larger_than_the_free_disk_is_refused_and_all_else_goes_on(seed: int) -> None:
    disk = FullDisk(seed)

    async def story(node: Node) -> None:
        for name in "q", "other":
            await disk.call(node, PutQueue("/", name, QueueSettings()))
        await disk.publish(node, 6)
        await asyncio.sleep(LOOK_S)
        left_bytes = 3 * 4096
        disk.files.capacity_bytes = disk.files.used_bytes + RESERVE_BYTES + left_bytes
        large = [Draft(bytes(1000))] * (left_bytes // 1000)
        small = Publish((node.id("other"),), messages_of([Draft(b"small")]))
        for request in (
            Publish((node.id("q"),), messages_of(large)),
            Transact([(node.id("q"),)] * len(large), messages_of(large), []),
        ):
            answers: list[Any] = []
            node.broker.send(small, answers.append)  # what is refused is refused alone
            with pytest.raises(TooLargeForDisk, match="publish less at once"):
                await disk.call(node, request)
            await node.partition.durable()
            assert isinstance(answers[0][0].result[0], Receipt)
        assert node.broker.health()["state"] == "ready"
        await disk.consume(node, 3)
        assert await disk.call(node, PurgeQueue("/", "q")) == 3
        assert not node.partition.committer.stuck
        disk.bodies.clear()
        await disk.publish(node, 3)

    disk.life(story)
    disk.life(lambda node: disk.consume(node, 3))


@pytest.mark.parametrize("seed", range(5))
def test_a_disk_without_a_single_byte_holds_everything_up_and_loses_nothing(seed: int) -> None:
    disk = FullDisk(seed)

    async def story(node: Node) -> None:
        await disk.call(node, PutQueue("/", "q", QueueSettings()))
        await disk.publish(node, MESSAGES)
        leased = list(await disk.call(node, Lease(node.id("q"), MESSAGES, 600_000)))
        disk.files.capacity_bytes = 0
        acked: list[bytes] = []
        for d in leased:
            ack = Settle(node.id("q"), [Settlement("ack", d.token)])
            node.broker.send(ack, lambda r, d=d: acked.append(d.body) if r == [0] else None)  # type: ignore[misc]
            await asyncio.sleep(0.02)
            if node.partition.committer.stuck:
                break
        assert node.partition.committer.stuck and len(acked) < MESSAGES
        with pytest.raises(DiskFull, match="nothing can be written"):
            await disk.call(node, Lease(node.id("q"), 1))
        asked = leased.index(d) + 1
        disk.files.capacity_bytes = PLENTY_BYTES
        await asyncio.sleep(LOOK_S)
        assert len(acked) == asked and not node.partition.committer.stuck
        await disk.publish(node, 3)
        disk.bodies[:] = [body for body in disk.bodies if body not in acked]
        for later in leased[asked:]:
            release = Settle(node.id("q"), [Settlement("release", later.token)])
            assert isinstance((await disk.call(node, release))[0], int)

    async def finish(node: Node) -> None:
        await disk.consume(node, len(disk.bodies))
        assert not node.seqs()

    disk.life(story)
    disk.life(finish)


@pytest.mark.parametrize("seed", range(5))
def test_history_that_is_held_for_readers_gives_way_before_publishers_do_for_long(seed: int) -> None:
    disk = FullDisk(seed)

    async def story(node: Node) -> None:
        async def alarms() -> list[Alarm]:
            return (await disk.call(node, DescribeHistory())).alarms  # type: ignore[no-any-return]

        await disk.call(node, PutQueue("/", "q", QueueSettings()))
        await disk.call(node, PutCursor("dead", 1))
        await disk.publish(node, MESSAGES)
        await disk.consume(node, MESSAGES)
        await disk.call(node, PutCursor("quick", node.journal.history.end().position))
        held = (await disk.call(node, GetCursor("dead"))).held_bytes
        assert held > 3 * 4096 and await alarms() == []
        await asyncio.sleep(LOOK_S)
        disk.files.capacity_bytes = disk.files.used_bytes + RESERVE_BYTES - 1
        await asyncio.sleep(LOOK_S)
        with pytest.raises(DiskFull):
            await disk.publish(node, 3)
        await asyncio.sleep(LOOK_S)
        await disk.publish(node, 3)
        assert {c.name: c.state for c in await disk.call(node, ListCursors())} == {"dead": "lost", "quick": "ok"}
        (alarm,) = await alarms()
        assert alarm.name == "cursor_lost:dead" and "the disk is short of space" in alarm.message
        node.check()

    async def finish(node: Node) -> None:
        cursors = await disk.call(node, ListCursors())
        assert [(c.name, c.state) for c in cursors] == [("dead", "lost"), ("quick", "ok")]
        await disk.consume(node, len(disk.bodies))

    disk.life(story)
    disk.life(finish)


@pytest.mark.parametrize("seed", range(5))
def test_no_descriptor_holds_everything_up_and_loses_nothing(seed: int) -> None:
    """Segments end, snapshots are due and messages are read back, and no file can be opened."""
    disk = FullDisk(seed)

    async def story(node: Node) -> None:
        await disk.call(node, PutQueue("/", "q", QueueSettings()))
        await disk.publish(node, MESSAGES)
        disk.files.has_descriptors = False
        answers: list[Any] = []
        sent = 0
        while node.partition.committer.stuck is None:
            body = b"message %d " % len(disk.bodies) + bytes(100)
            disk.bodies.append(body)
            node.broker.send(Publish((node.id("q"),), messages_of([Draft(body)])), answers.append)
            sent += 1
            assert sent < 1000
            await asyncio.sleep(0.02)
        assert len(answers) < sent
        with pytest.raises(Unavailable, match="no more files can be opened"):
            await disk.publish(node, 1)
        disk.files.has_descriptors = True
        await asyncio.sleep(LOOK_S)
        assert node.partition.committer.stuck is None and node.partition.committer.failed is None
        assert [type(answer[0].result[0]) for answer in answers] == [Receipt] * sent
        await disk.publish(node, 10)

    async def finish(node: Node) -> None:
        await disk.consume(node, len(disk.bodies))
        assert not node.seqs()

    disk.life(story)
    disk.life(finish)
