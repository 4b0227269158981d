"""What goes into which commit: who waits gets one at once, what nobody waits for goes with whichever comes next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from laneway.broker import committer
from laneway.broker.committer import WriterThread
from laneway.broker.interface import Delivered, Publish, Push, SettleHeld, Subscribe
from laneway.broker.values import Messages
from laneway.journal.interface import Commit

from .conftest import Bench

Run = Callable[..., None]


class Acker:
    """Acks whatever it gets."""

    def __init__(self, b: Bench, log: list[str]) -> None:
        self._b, self._log = b, log
        self._session = b.broker.open_session(self._pushed)
        b.send(Subscribe(self._session, 1, b.id()))

    def _pushed(self, pushes: list[Push]) -> None:
        (push,) = pushes
        assert isinstance(push, Delivered)
        self._log.append("delivered")
        held = push.deliveries
        self._b.send(SettleHeld(self._session, held.queue, held.seqs, held.leases, "ack", push.consumer))


def written(b: Bench) -> int:
    return b.journal._writer.written


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


def publish(b: Bench, body: bytes, log: list[str]) -> None:
    """Note the confirm as a front end does: when its neighbours are known too, it is put together, and then sent."""

    def send() -> None:
        log.append("confirmed")

    def tell() -> None:
        b.broker.call_soon(send)

    b.broker.send(Publish((b.id(),), Messages([body], [b""])), lambda _: b.broker.call_soon(tell))


def test_leases_and_acks_go_with_the_next_commit(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "LATER_S", 3600)

    async def scenario(b: Bench) -> None:
        await b.queue()
        log: list[str] = []
        Acker(b, log)
        before = written(b)
        for count in (1, 2, 3):
            publish(b, b"%d" % count, log)
            await until(lambda count=count: log.count("delivered") == count)
            for _ in range(10):
                await asyncio.sleep(0)
            assert written(b) == before + count
        await b.restart()
        assert (await b.stats()).ready == 0

    run(scenario)


def test_what_nobody_waits_for_is_written_after_a_while(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        log: list[str] = []
        Acker(b, log)
        publish(b, b"1", log)
        await until(lambda: "delivered" in log)
        await until(lambda: not b.journal.staged_bytes() and b.partition.committer._writing is None)

    run(scenario)


def test_confirms_leave_before_their_messages_are_handed_out(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        log: list[str] = []
        Acker(b, log)
        publish(b, b"1", log)
        await until(lambda: len(log) == 2)
        assert log == ["confirmed", "delivered"]

    run(scenario)


class SlowJournal:
    """Notes which thread writes."""

    def __init__(self, *, writes_on_loop: bool) -> None:
        self.writes_on_loop = writes_on_loop
        self.threads: list[str] = []

    def write(self, commit: Commit) -> None:
        self.threads.append(threading.current_thread().name)


@pytest.mark.parametrize(("writes_on_loop", "thread"), [(True, "MainThread"), (False, "laneway-writer")])
def test_a_small_commit_is_written_on_the_loop_only_if_the_journal_allows_it(writes_on_loop: bool, thread: str) -> None:
    asyncio.run(_written_by(writes_on_loop, thread))


async def _written_by(writes_on_loop: bool, thread: str) -> None:
    journal = SlowJournal(writes_on_loop=writes_on_loop)
    written: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    writer = WriterThread(
        journal,  # type: ignore[arg-type]
        asyncio.get_running_loop(),
        lambda _, error: written.set_result(error),
    )
    writer.put(Commit(1, 1, 100, None))
    assert await written is None
    await writer.close()
    assert journal.threads == [thread]
