"""Processes that are stopped, gone without a word, or not who they say they are: over real sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from laneway.broker.interface import (
    DeclareQueue,
    Delivered,
    DescribeQueue,
    Lease,
    Publish,
    Request,
    SettleHeld,
    Subscribe,
)
from laneway.broker.values import QueueSettings
from laneway.cluster import asking, link
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.core.message import Messages
from laneway.errors import ConfigInvalid, OutcomeUnknown, Unavailable
from tests.cluster.test_remote import NOW_MS, Pair, declare, publish, run, until

ROOT = Path(__file__).parent.parent.parent
SECRET = b"a secret of all processes"


@contextmanager
def leader(folder: Path, address: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A leader in a process of its own, and where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.leading_process", str(folder), address],
        cwd=ROOT,
        env={**os.environ, "SECRET": "" if "/" in address else SECRET.decode()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        assert said[:1] == ["ready"]
        yield process, address if len(said) == 1 else f"127.0.0.1:{said[1]}"
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


async def edge_of(address: str, **others: Any) -> RemoteBroker:
    edge = RemoteBroker(address, 1, lambda: NOW_MS, **others)
    await edge.start()
    return edge


def ask(edge: RemoteBroker, request: Request) -> list[Any]:
    answers: list[Any] = []
    edge.send(request, answers.append)
    return answers


@pytest.mark.parametrize("tcp", [False, True], ids=["Unix", "TCP"])
def test_a_leader_that_is_stopped_costs_its_edge_no_memory_and_slows_nobody_else(tmp_path: Path, tcp: bool) -> None:
    async def work(pair: Pair) -> None:
        other = await pair.edge()
        quick = await declare(other)
        with leader(tmp_path / "led", "127.0.0.1:0" if tcp else str(tmp_path / "led.sock")) as (process, address):
            edge = await edge_of(address, secret=SECRET if tcp else b"", beat_s=60)
            slow = (await edge.ask(DeclareQueue("/", "slow", QueueSettings()))).info.queue
            pushed: list[Delivered] = []
            session = edge.open_session(pushed.extend)  # type: ignore[arg-type]
            await edge.ask(Subscribe(session, 1, slow, credit=10))
            await publish(edge, slow, *[b"first"] * 10)
            await until(lambda: pushed)
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answers: list[Any] = []
            count = 500
            for i in range(count):
                body = f"{i:08d}".encode() * 25_000  # not the same one
                edge.send(Publish((slow,), Messages([body], [b""])), answers.append)
                if i % 20 == 0:
                    await publish(other, quick, b"x")
            refused = len(answers)
            assert refused >= count - 1 - asking.MAX_BYTES // 200_000
            assert {type(answer) for answer in answers} == {Unavailable}, "refused at once"
            assert edge._asking._bytes < asking.MAX_BYTES + 1_000_000
            lease = ask(edge, Lease(slow, 1, wait_ms=20_000))
            for push in pushed:
                d = push.deliveries
                edge.send(SettleHeld(session, slow, d.seqs, d.leases, "ack", 1), lambda answer: None)
            await asyncio.sleep(0)
            assert edge._link is not None and edge._link._transport is not None
            assert edge._link._transport.get_write_buffer_size() < asking.MAX_BYTES
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4 * asking.MAX_BYTES // 1024
            process.send_signal(signal.SIGCONT)
            await until(lambda: len(answers) == count)
            assert not any(isinstance(answer, Exception) for answer in answers[refused:])
            await until(lambda: lease and sum(len(push.deliveries) for push in pushed) > 10)
            stats = await edge.ask(DescribeQueue("/", "slow"))
            assert stats.totals["published"] == 10 + count - refused and stats.totals["acked"] == 10
            await edge.stop()

    run(tmp_path, work)


def test_what_is_asked_of_a_leader_that_is_killed_has_an_unknown_outcome(tmp_path: Path) -> None:
    async def main() -> None:
        with leader(tmp_path / "led", str(tmp_path / "led.sock")) as (process, address):
            edge = await edge_of(address, patience_s=0.01)
            queue = (await edge.ask(DeclareQueue("/", "q", QueueSettings()))).info.queue
            process.send_signal(signal.SIGSTOP)
            answers = [ask(edge, one) for one in (Publish((queue,), Messages([b"a"], [b""])), DescribeQueue("/", "q"))]
            await asyncio.sleep(0)
            process.kill()
            await until(lambda: all(answers))
            assert [type(answer) for (answer,) in answers] == [OutcomeUnknown, OutcomeUnknown]
            await edge.stop()

    asyncio.run(main())


class Proxy:
    """Between an edge and its leader; when it swallows, both ends hear nothing more, and nobody tells them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.swallows = False
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, back]
        await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not self.swallows:
                writer.write(data)
        if not self.swallows:
            writer.close()

    def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()


def run_over_tcp(folder: Path, work: Callable[[Pair, str, Proxy], Coroutine[Any, Any, None]]) -> None:
    """With a leader that listens on TCP, and a proxy before it."""

    async def wrapped(pair: Pair) -> None:
        server = PartitionServer(pair.local, secret=SECRET, beat_s=0.02)
        await server.start("127.0.0.1:0")
        proxy = Proxy(server.port)
        try:
            await work(pair, await proxy.start(), proxy)
        finally:
            proxy.stop()
            await server.stop()

    run(folder, wrapped)


def test_a_link_over_tcp_does_what_one_over_a_unix_socket_does(tmp_path: Path) -> None:
    async def work(pair: Pair, address: str, proxy: Proxy) -> None:
        edge = await edge_of(address, secret=SECRET, beat_s=0.02)
        queue = await declare(edge)
        await publish(edge, queue, b"a", *[b"x" * 200_000] * 15)
        assert [len(body) for body in (await edge.ask(Lease(queue, 16, wait_ms=1000))).bodies] == [1] + [200_000] * 15
        await edge.stop()

    run_over_tcp(tmp_path, work)


def test_an_edge_notices_a_leader_that_went_without_a_word(tmp_path: Path) -> None:
    async def work(pair: Pair, address: str, proxy: Proxy) -> None:
        edge = await edge_of(address, secret=SECRET, beat_s=0.02)
        queue = await declare(edge)
        await asyncio.sleep(0.02 * link.SILENT_BEATS * 3)
        assert edge.health()["state"] == "ready", "beats keep a link that nobody uses"
        proxy.swallows = True
        answers = ask(edge, Publish((queue,), Messages([b"a"], [b""])))
        await until(lambda: answers)
        assert type(answers[0]) is OutcomeUnknown
        proxy.swallows = False
        await until(lambda: edge.health()["state"] == "ready")
        await publish(edge, queue, b"b")
        await edge.stop()

    run_over_tcp(tmp_path, work)


def test_a_leader_notices_an_edge_that_went_without_a_word(tmp_path: Path) -> None:
    async def work(pair: Pair, address: str, proxy: Proxy) -> None:
        edge = await edge_of(address, secret=SECRET, beat_s=60)  # it would notice much later
        queue = await declare(edge)
        pushed: list[Any] = []
        session = edge.open_session(pushed.extend)
        await edge.ask(Subscribe(session, 1, queue))
        await publish(edge, queue, b"a")
        await until(lambda: pushed)
        proxy.swallows = True
        await until(lambda: pair.partition.engine.state.queues[queue].ready == 1)  # given back
        await edge.stop()

    run_over_tcp(tmp_path, work)


def test_an_edge_with_another_secret_is_refused_with_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(pair: Pair, address: str, proxy: Proxy) -> None:
        edge = RemoteBroker(address, 1, lambda: NOW_MS, secret=b"not the secret of the others")
        starting = asyncio.ensure_future(edge.start())
        await until(lambda: proxy.connections > 2)
        assert not starting.done()
        starting.cancel()
        lines = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
        assert [line.partition(": ")[2] for line in lines] == ["it does not know the secret of this server"]
        await edge.stop()

    run_over_tcp(tmp_path, work)


def test_strangers_are_bounded_and_leave_room_for_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laneway.cluster.serving.MAX_STRANGERS", 3)
    monkeypatch.setattr(link, "GREETING_S", 0.2)

    async def work(pair: Pair, address: str, proxy: Proxy) -> None:
        strangers = [await asyncio.open_connection(*address.split(":")) for _ in range(10)]
        edge = await edge_of(address, secret=SECRET)  # when those before it were too slow
        assert edge.health()["state"] == "ready"
        for _, writer in strangers:
            writer.close()
        await edge.stop()

    run_over_tcp(tmp_path, work)


def test_over_tcp_a_secret_is_needed() -> None:
    with pytest.raises(ConfigInvalid, match="at least 16 bytes"):
        RemoteBroker("127.0.0.1:1", 1, lambda: NOW_MS, secret=b"short")
    for address in ("localhost", "localhost:", ":1", "host:http", "host:70000"):
        with pytest.raises(ConfigInvalid):
            asyncio.run(RemoteBroker(address, 1, lambda: NOW_MS, secret=SECRET)._try_to_reach())
