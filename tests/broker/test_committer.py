"""What goes into which commit: who waits gets one at once, what nobody waits for goes with whichever comes next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laneway.broker import committer
from laneway.broker.sessions import Subscription
from laneway.broker.values import Batch

from .conftest import Bench

Run = Callable[..., None]


class Acker:
    """Acks whatever it gets."""

    def __init__(self, b: Bench, log: list[str]) -> None:
        self._sessions, self._log = b.broker.sessions, log
        self._sessions.subscribe("/", "q", tag="t", credit=0, deliver=self._deliver, cancelled=lambda _: None)

    def _deliver(self, subscription: Subscription, batch: Batch) -> None:
        self._log.append("delivered")
        leases = range(batch.first_lease, batch.first_lease + len(batch.seqs))
        self._sessions.settle(batch.queue, batch.seqs, leases, "ack")


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

    number = b.broker.sessions.number("/", "q")
    b.broker.sessions.publish_columns(
        [((number,), (0,), [b""], [body])], len(body), lambda refusal: b.broker.call_soon(tell)
    )


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
        assert b.broker.sessions.counts("/", "q")[0] == 0

    run(scenario)


def test_what_nobody_waits_for_is_written_after_a_while(run: Run) -> None:
    async def scenario(b: Bench) -> None:
        await b.queue()
        log: list[str] = []
        Acker(b, log)
        publish(b, b"1", log)
        await until(lambda: "delivered" in log)
        await until(lambda: not b.journal.staged_bytes() and b.broker.committer._writing is None)

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
