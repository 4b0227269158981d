"""Direct replies between processes: order, who is gone, who does not keep up, and links that come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from laneway.cluster import replies
from laneway.cluster.replies import Reply, ReplyLinks

WAIT_S = 20.0


class Process:
    """One process's end; keeps what comes to its callers."""

    def __init__(self, links: ReplyLinks, *callers: str) -> None:
        self.links = links
        self.came: list[tuple[str, Reply]] = []
        self._callers = callers
        links.deliver = self._deliver

    def _deliver(self, name: str, what: Reply | None) -> bool:
        if name in self._callers and what is not None:
            self.came.append((name, what))
        return name in self._callers


class Server:
    def __init__(self, folder: Path, count: int, **options: Any) -> None:
        self._addresses = [str(folder / f"{number}.sock") for number in range(count)]
        self._options = options
        self.processes = [self.new(number) for number in range(count)]

    def new(self, number: int) -> Process:
        return Process(ReplyLinks(number, self._addresses, **self._options), f"caller-{number}")

    async def __aenter__(self) -> Server:
        await asyncio.gather(*(one.links.start() for one in self.processes))
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.processes:
            await one.links.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def heard(at: Process, process: int, name: str, what: Reply | None) -> bool:
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    if not at.links.send(process, name, what, answer.set_result):
        return False
    async with asyncio.timeout(WAIT_S):
        return await answer


def test_every_process_reaches_the_callers_of_every_other_in_order(tmp_path: Path) -> None:
    async def work() -> None:
        async with Server(tmp_path, 3) as server:
            pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
            for number in range(50):
                for a, b in pairs:
                    assert server.processes[a].links.send(b, f"caller-{b}", (b"%d" % a, b"%d" % number))
            for b, process in enumerate(server.processes):
                await until(lambda process=process: len(process.came) == 100)
                for a in {0, 1, 2} - {b}:
                    of_a = [what[1] for _, what in process.came if what[0] == b"%d" % a]
                    assert of_a == [b"%d" % number for number in range(50)]

    run(work())


def test_whoever_wants_to_know_hears_whether_the_caller_is_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with Server(tmp_path, 2) as server:
            for a, b in ((0, 1), (1, 0)):
                asking, other = server.processes[a], server.processes[b]
                assert await heard(asking, b, f"caller-{b}", None)
                assert other.came == []
                assert await heard(asking, b, f"caller-{b}", (b"", b"4"))
                assert not await heard(asking, b, "nobody", (b"", b"4"))
                assert other.came == [(f"caller-{b}", (b"", b"4"))]
                assert not await heard(asking, 7, "caller-7", (b"", b"4"))

    run(work())


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_goes_takes_no_replies_until_it_is_back(tmp_path: Path, lost: int) -> None:
    async def work() -> None:
        async with Server(tmp_path, 2) as server:
            left = server.processes[1 - lost]
            answers: list[bool] = []
            assert left.links.send(lost, f"caller-{lost}", (b"", b"lost"), answers.append)
            server.processes[lost].links.deliver = lambda *_: pytest.fail("it was gone")
            await server.processes[lost].links.stop()
            await until(lambda: answers == [False])
            await until(lambda: not left.links.send(lost, f"caller-{lost}", (b"", b"lost")))
            server.processes[lost] = again = server.new(lost)
            await again.links.start()
            # Whoever comes back has been seen by all the others by then: its first caller gets its answer.
            assert await heard(left, lost, f"caller-{lost}", (b"", b"4"))
            assert await heard(again, 1 - lost, f"caller-{1 - lost}", (b"", b"5"))
            assert again.came == [(f"caller-{lost}", (b"", b"4"))]

    run(work())


def test_replies_to_a_process_that_does_not_keep_up_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replies, "MAX_UNSENT_BYTES", 1_000_000)

    async def work() -> None:
        async with Server(tmp_path, 2) as server:
            a, b = server.processes
            sent = 0
            while a.links.send(1, "caller-1", (b"", bytes(100_000))):  # in one turn: nothing is read meanwhile
                sent += 1
                assert sent < 100, "10 MB of replies wait"
            assert not await heard(a, 1, "caller-1", None)
            await until(lambda: len(b.came) == sent)
            assert await heard(a, 1, "caller-1", (b"", b"4"))
        assert caplog.text.count("does not keep up") == 1

    run(work())


def test_unanswered_replies_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_COUNT", 10)

    async def work() -> None:
        async with Server(tmp_path, 2) as server:
            answers: list[bool] = []
            sent = [server.processes[0].links.send(1, "caller-1", (b"", b"4"), answers.append) for _ in range(15)]
            assert sent == [True] * 10 + [False] * 5
            await until(lambda: answers == [True] * 10)

    run(work())


def test_a_process_that_says_nothing_holds_up_nobody(tmp_path: Path) -> None:
    """It is stopped, and its kernel still takes what it is sent."""

    async def work() -> None:
        async with Server(tmp_path, 2, beat_s=0.05) as server:
            a, b = server.processes
            (link,) = b.links._by_link
            assert link._transport is not None
            link._transport.pause_reading()
            link._timer.cancel()  # type: ignore[union-attr]
            answers: list[bool] = []
            assert a.links.send(1, "caller-1", (b"", b"4"), answers.append)
            await until(lambda: answers == [False])

    run(work())
