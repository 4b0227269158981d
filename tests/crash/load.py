"""Publishers and consumers that go on whatever happens to the server, and an account of what they were told."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from .server import BROKEN, Connection, Server

QUEUE = "/queues/load"
PRIORITIES = (1, 5, 10)


class Told(NamedTuple):
    """One message as it was sent: by whom, the how manieth of that one, with which priority."""

    publisher: str
    number: int
    priority: int


class Account:
    """What was answered. Every list is appended to by one thread or under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.confirmed: set[Told] = set()
        self.unanswered: list[list[Told]] = []  # batches whose fate nobody was told
        self.received: dict[Told, int] = defaultdict(int)
        self.acked_s: dict[Told, float] = {}  # when the answer to the ack came
        self.ids: dict[Told, str] = {}
        self.wrong: list[str] = []

    def receive(self, asked_s: float, messages: list[dict[str, Any]]) -> list[Told]:
        seen = []
        with self.lock:
            for message in messages:
                told = Told(*message["payload"]["told"])
                seen.append(told)
                self.received[told] += 1
                if self.acked_s.get(told, float("inf")) < asked_s:
                    self.wrong.append(f"{told} was delivered after its ack was answered")
                if message["payload"]["filling"] != filling(told) or message["priority"] != told.priority:
                    self.wrong.append(f"{told} has another body or priority: {message}")
                if self.ids.setdefault(told, message["message_id"]) != message["message_id"]:
                    self.wrong.append(f"{told} has two ids")
        return seen

    def acked(self, told: Told) -> None:
        with self.lock:
            self.acked_s[told] = time.monotonic()


def filling(told: Told) -> str:
    return f"{told.publisher}-{told.number} " * (1 + told.number % 40)


def draft(told: Told) -> dict[str, Any]:
    return {"priority": told.priority, "payload": {"told": told, "filling": filling(told)}}


class Load:
    """Threads that work until told to stop; a broken connection is made anew, to wherever the server is then."""

    def __init__(self, server: Server, account: Account, seed: int) -> None:
        self.server = server
        self.account = account
        self._seed = seed
        self._threads: list[tuple[threading.Thread, threading.Event]] = []

    def publish(self, name: str, batch: int) -> None:
        self._spawn(name, lambda stop: self._publish(name, batch, stop))

    def consume(self, name: str, limit: int) -> None:
        self._spawn(name, lambda stop: self._consume(name, limit, stop))

    def stop(self, prefix: str = "") -> None:
        ending = [entry for entry in self._threads if entry[0].name.startswith(prefix)]
        for _, stop in ending:
            stop.set()
        for thread, _ in ending:
            thread.join(40)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self._threads = [entry for entry in self._threads if entry not in ending]

    def _spawn(self, name: str, work: Callable[[threading.Event], None]) -> None:
        stop = threading.Event()

        def run() -> None:
            try:
                work(stop)
            except Exception as error:
                self.account.wrong.append(f"{name} ended with {error!r}")

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append((thread, stop))
        thread.start()

    def _connected(self, stop: threading.Event, work: Callable[[Connection], None]) -> None:
        """Repeat the work over one connection; when that breaks, over the next one."""
        while not stop.is_set():
            connection = self.server.connect()
            try:
                while not stop.is_set():
                    work(connection)
            except BROKEN:
                stop.wait(0.01)
            finally:
                connection.close()

    def _publish(self, name: str, batch: int, stop: threading.Event) -> None:
        random = Random(f"{self._seed}-{name}")
        sent = 0

        def once(connection: Connection) -> None:
            nonlocal sent
            told = [Told(name, sent + i, random.choice(PRIORITIES)) for i in range(random.randint(1, batch))]
            sent += len(told)
            body: Any = draft(told[0]) if batch == 1 else [draft(one) for one in told]
            with self.account.lock:
                self.account.unanswered.append(told)
            status, answer = connection.call("POST", f"{QUEUE}/messages", body)
            with self.account.lock:
                if status == 201:
                    self.account.unanswered.remove(told)
                    self.account.confirmed.update(told)
                elif status != 503:  # it is stopping: some other moment
                    self.account.wrong.append(f"publishing was answered {status}: {answer}")

        self._connected(stop, once)

    def _consume(self, name: str, limit: int, stop: threading.Event) -> None:
        random = Random(f"{self._seed}-{name}")

        def once(connection: Connection) -> None:
            asked_s = time.monotonic()
            wanted = {"max_messages": random.randint(1, limit), "visibility_timeout": 2, "wait_seconds": 1}
            status, answer = connection.call("POST", f"{QUEUE}/dequeue", wanted)
            if status == 503:
                return
            assert status == 200, answer
            told = self.account.receive(asked_s, answer["messages"])
            if limit == 1 or random.random() < 0.3:
                for one, message in zip(told, answer["messages"], strict=True):
                    path = f"{QUEUE}/messages/{message['message_id']}"
                    self._note(one, *connection.call("DELETE", path, {"receipt_handle": message["receipt_handle"]}))
            elif told:
                handles = [{"receipt_handle": message["receipt_handle"]} for message in answer["messages"]]
                status, results = connection.call("POST", f"{QUEUE}/ack", handles)
                for one, result in zip(told, results if status in (200, 207) else [], strict=False):
                    self._note(one, 409 if "error" in result else 204, result)

        self._connected(stop, once)

    def _note(self, told: Told, status: int, answer: Any) -> None:
        if status == 204:
            self.account.acked(told)
        elif status not in (409, 503):
            self.account.wrong.append(f"ack of {told} was answered {status}: {answer}")
