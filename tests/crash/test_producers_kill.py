"""kill -9 while batches are staged and committed, with retries after every loss: each batch is there exactly once."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from .server import BROKEN, Connection, Server, eventually

KILLS = 10
SMALL = ("--segment-bytes", "1048576", "--snapshot-events", "1000", "--log-level", "warning")
QUEUES = ("direct", "left", "right")  # the last two are reached through an exchange as well

#: A server with a planted bug: the fence follows its messages in a commit of its own.
TORN = """
import asyncio
from laneway.broker.engine import Engine
from laneway.broker.producers import COLLECTION, Producers
from laneway.core.events import Kind
run, commit = Engine.run, Producers.commit
held = []

def run_without_fences(self, command):
    def passing():
        for event in command:
            if event.kind is Kind.DOCUMENT_PUT and event.collection == COLLECTION:
                held.append(event)
            else:
                yield event
    return run(self, passing())

async def torn_commit(self, *arguments, **options):
    done = await commit(self, *arguments, **options)
    await asyncio.sleep(0.02)
    run(self._partition.engine, iter(held))
    held.clear()
    await self._partition.durable()
    return done

Engine.run, Producers.commit = run_without_fences, torn_commit
from laneway.cli import main
main()
"""


class Writer(threading.Thread):
    """Writes batch after batch: each is staged in parts, some of them by several attempts, and committed until the
    server says that it is there."""

    def __init__(self, server: Server, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._server = server
        self._random = Random(f"{seed}-{name}")
        self._stop_asked = threading.Event()
        self._stages = 0
        self.sent: Counter[tuple[str, int, int, str]] = Counter()  # what each queue has to have got, once
        self.batches = 0
        self.replays = 0  # commits that turned out to have been done before
        self.restaged = 0  # batches whose parts were lost with the server
        self.wrong: list[str] = []

    def end(self) -> None:
        self._stop_asked.set()
        self.join(60)
        assert not self.is_alive(), f"{self.name} does not end"

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self._write(self.batches)
                self.batches += 1
        except Exception as error:
            self.wrong.append(f"{self.name} ended with {error!r}")

    def _write(self, batch: int) -> None:
        parts = [[self._message(batch, n) for n in range(first, first + 20)] for first in range(0, 60, 20)]
        staged = ""
        while True:
            connection = self._server.connect()
            try:
                staged = staged or self._stage(connection, parts)
                answer = self._commit(connection, batch, staged)
                if answer is not None:
                    self.replays += answer["already"]
                    return
                self.restaged += 1
                staged = ""
            except BROKEN:
                time.sleep(0.01)  # it is being started again
            finally:
                connection.close()

    def _message(self, batch: int, n: int) -> dict[str, Any]:
        body = base64.b64encode(json.dumps({"told": [self.name, batch, n]}).encode()).decode()
        message = {"body": body, "content_type": "application/json", "priority": self._random.randint(0, 3)}
        if self._random.random() < 0.3:
            for queue in QUEUES[1:]:
                self.sent[self.name, batch, n, queue] += 1
            return {**message, "exchange": "both"}
        queue = self._random.choice(QUEUES)
        self.sent[self.name, batch, n, queue] += 1
        return {**message, "queue": queue}

    def _stage(self, connection: Connection, parts: list[list[dict[str, Any]]]) -> str:
        self._stages += 1
        stage = f"run-{self._stages}"
        path = f"/producers/{self.name}/stages/{stage}/parts"
        for i, messages in enumerate(parts):
            if self._random.random() < 0.3:  # an attempt that failed half-way
                connection.must(201, "PUT", f"{path}/{i}.0", messages[:7])
            connection.must(201, "PUT", f"{path}/{i}.1", messages)
        return stage

    def _commit(self, connection: Connection, batch: int, stage: str) -> Any:
        """What the server says of a batch that is there; None if it has to be staged again."""
        parts = [f"{i}.1" for i in range(3)]
        path = f"/producers/{self.name}/batches/{batch}/commit"
        status, answer = connection.call("POST", path, {"stage": stage, "parts": parts})
        if status == 409 and answer["error"]["code"] == "parts_missing":
            return None
        assert status == 200, answer
        return answer


@pytest.mark.timeout(180)
def test_every_batch_is_there_exactly_once_after_kills(tmp_path: Path) -> None:
    writers = run(Server(tmp_path / "data", *SMALL), KILLS)
    assert sum(writer.restaged + writer.replays for writer in writers) > 0, "no kill hit a batch: it showed nothing"


@pytest.mark.timeout(180)
def test_a_fence_in_a_commit_of_its_own_is_found_out(tmp_path: Path) -> None:
    """So the test above can fail."""
    with pytest.raises(AssertionError, match="more than once"):
        run(Server(tmp_path / "data", *SMALL, program=("-c", TORN)), 6)


def run(server: Server, kills: int) -> list[Writer]:
    random = Random(5)
    with server:
        connection = server.connect()
        for queue in QUEUES:
            connection.must(201, "PUT", f"/queues/{queue}", {"visibility_timeout": 600})
        connection.must(201, "PUT", "/exchanges/%2F/both", {"type": "fanout"})
        for queue in QUEUES[1:]:
            connection.must(201, "POST", f"/bindings/%2F/e/both/q/{queue}", {})
        connection.close()
        writers = [Writer(server, name, 5) for name in ("one", "two")]
        for writer in writers:
            writer.start()
        try:
            for _ in range(kills):
                done = [writer.batches for writer in writers]
                eventually("batches are written", lambda done=done: _all_went_on(writers, done))
                time.sleep(random.random() / 10)  # the seed draws the moment; nothing is waited for
                server.kill()
                server.start()
            for writer in writers:
                writer.end()
        except BaseException:
            server.kill()
            raise
        assert [wrong for writer in writers for wrong in writer.wrong] == []
        got = Counter(received(server))
    sent = sum((writer.sent for writer in writers), Counter())
    assert not got - sent, f"messages are there more than once: {sorted(got - sent)[:5]}"
    assert not sent - got, f"messages were lost: {sorted(sent - got)[:5]}"
    assert {name for name, *_ in got} == {"one", "two"}
    return writers


def _all_went_on(writers: list[Writer], done: list[int]) -> bool:
    assert [wrong for writer in writers for wrong in writer.wrong] == []
    return all(writer.batches > before for writer, before in zip(writers, done, strict=True))


def received(server: Server) -> Iterator[tuple[str, int, int, str]]:
    connection = server.connect()
    for queue in QUEUES:
        while messages := connection.must(200, "POST", f"/queues/{queue}/dequeue", {"max_messages": 1000})["messages"]:
            for message in messages:
                name, batch, n = message["payload"]["told"]
                yield name, batch, n, queue
    for name in ("one", "two"):
        assert connection.must(200, "GET", f"/producers/{name}")["staged"]["messages"] == 0
    connection.close()
