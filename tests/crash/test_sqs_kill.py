"""kill -9 at random moments under the load of SQS's clients: what SendMessage was answered for is received, what
DeleteMessage was answered for never comes back, and a FIFO queue keeps its order and takes a repeat once."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from .server import BROKEN, Server, eventually
from .test_kill import HASTY, SMALL, end

KILLS = 8
STANDARD, FIFO = "load", "load.fifo"
VISIBILITY_S = 3


class Told(NamedTuple):
    """One message as it was sent. A sender has groups of its own: tenants on the standard queue."""

    queue: str
    sender: str
    group: str
    number: int

    @property
    def body(self) -> str:
        return json.dumps(self).ljust(60 + 900 * (self.number % 5 == 0), ".")


def told_by(body: str) -> Told:
    return Told(*json.loads(body.rstrip(".")))


class Refused(Exception):
    """The server is stopping."""


class Client:
    """One keep-alive connection that speaks AWS JSON 1.0, unsigned."""

    def __init__(self, server: Server) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        self._http.connect()

    def ask(self, action: str, queue: str, **given: Any) -> Any:
        head = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": f"AmazonSQS.{action}"}
        body = json.dumps({**({"QueueUrl": queue} if action != "CreateQueue" else {"QueueName": queue}), **given})
        self._http.request("POST", "/", body, head)
        response = self._http.getresponse()
        data = response.read()
        if response.status == 503:
            raise Refused
        assert response.status == 200, f"{action}: {response.status} {data!r}"
        return json.loads(data) if data else {}

    def close(self) -> None:
        self._http.close()


class Account:
    """What was answered; everything under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: set[Told] = set()
        self.confirmed: set[Told] = set()
        self.received: dict[Told, int] = defaultdict(int)
        self.ids: dict[Told, str] = {}
        self.deleted_s: dict[Told, float] = {}  # when the answer came
        self.latest: dict[tuple[str, str], int] = defaultdict(lambda: -1)  # of a group of the FIFO queue
        self.wrong: list[str] = []

    def receive(self, asked_s: float, messages: list[dict[str, Any]]) -> list[Told]:
        with self.lock:
            return [self._receive(asked_s, message) for message in messages]

    def _receive(self, asked_s: float, message: dict[str, Any]) -> Told:
        told = told_by(message["Body"])
        if self.deleted_s.get(told, asked_s) < asked_s:
            self.wrong.append(f"{told} came again after its deletion was answered")
        if message["Body"] != told.body:
            self.wrong.append(f"{told} has another body: {message}")
        if self.ids.setdefault(told, message["MessageId"]) != message["MessageId"]:
            self.wrong.append(f"{told} is there twice: {message}")
        group = told.sender, told.group
        if told.queue == FIFO and not self.received[told]:
            if told.number <= self.latest[group]:
                self.wrong.append(f"{told} came for the first time after {self.latest[group]}")
            self.latest[group] = told.number
        self.received[told] += 1
        return told


class Load:
    """Threads that work until told to stop; a broken connection is made anew, to wherever the server is then."""

    def __init__(self, server: Server, account: Account, seed: int) -> None:
        self.server = server
        self.account = account
        self._seed = seed
        self._threads: list[tuple[threading.Thread, threading.Event]] = []

    def spawn(self, name: str, once: Callable[[Client, Random], None], pause_s: float = 0) -> None:
        stop, random = threading.Event(), Random(f"{self._seed}-{name}")

        def run() -> None:
            while not stop.is_set():
                try:
                    client = Client(self.server)
                except BROKEN:
                    stop.wait(0.01)
                    continue
                try:
                    while not stop.wait(pause_s):
                        once(client, random)
                except (*BROKEN, Refused):
                    stop.wait(0.01)
                except Exception as error:
                    self.account.wrong.append(f"{name} ended with {error!r}")
                    return
                finally:
                    client.close()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append((thread, stop))
        thread.start()

    def stop(self, prefix: str = "") -> None:
        ending = [entry for entry in self._threads if entry[0].name.startswith(prefix)]
        for _, stop in ending:
            stop.set()
        for thread, _ in ending:
            thread.join(40)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self._threads = [entry for entry in self._threads if entry not in ending]

    def sender(self, name: str, queue: str, most: int) -> None:
        """Sends one by one, or in batches. To the FIFO queue a batch that was not answered is sent again, until it is:
        nobody needs to know whether it had arrived."""
        number = 0
        waiting: list[Told] = []

        def once(client: Client, random: Random) -> None:
            nonlocal number
            if not waiting or queue == STANDARD:
                waiting[:] = [
                    Told(queue, name, random.choice("aaab"), number + i) for i in range(random.randint(1, most))
                ]
                number += len(waiting)
            with self.account.lock:
                self.account.sent.update(waiting)
            entries = [
                {"MessageBody": told.body, "MessageGroupId": f"{name}-{told.group}"}
                | ({"MessageDeduplicationId": f"{name}-{told.number}"} if queue == FIFO else {})
                for told in waiting
            ]
            if most == 1:
                client.ask("SendMessage", queue, **entries[0])
                done = list(waiting)
            else:
                batch = [{"Id": str(i), **entry} for i, entry in enumerate(entries)]
                answer = client.ask("SendMessageBatch", queue, Entries=batch)
                done = [waiting[int(entry["Id"])] for entry in answer["Successful"]]
                assert len(done) == len(waiting), answer
            with self.account.lock:
                self.account.confirmed.update(done)
            waiting.clear()

        self.spawn(name, once, 0.02)  # no more than the receivers take

    def receiver(self, name: str, queue: str, most: int) -> None:
        """Deletes what it received over the same connection, so that the lease it holds is of this life."""

        def once(client: Client, random: Random) -> None:
            asked_s = time.monotonic()
            answer = client.ask("ReceiveMessage", queue, MaxNumberOfMessages=random.randint(1, most), WaitTimeSeconds=1)
            messages = answer.get("Messages", [])
            told = self.account.receive(asked_s, messages)
            if not messages or random.random() < 0.1:
                return  # it forgets about them: they come again
            handles = [message["ReceiptHandle"] for message in messages]
            if most == 1 or random.random() < 0.3:
                for one, handle in zip(told, handles, strict=True):
                    client.ask("DeleteMessage", queue, ReceiptHandle=handle)
                    self._deleted(asked_s, [one])
                return
            batch = [{"Id": str(i), "ReceiptHandle": handle} for i, handle in enumerate(handles)]
            answer = client.ask("DeleteMessageBatch", queue, Entries=batch)
            self._deleted(asked_s, [told[int(entry["Id"])] for entry in answer["Successful"]])

        self.spawn(name, once)

    def _deleted(self, asked_s: float, told: list[Told]) -> None:
        """An answer that came when the visibility timeout may be over says nothing on a standard queue."""
        now_s = time.monotonic()
        if now_s < asked_s + VISIBILITY_S - 0.5:
            with self.account.lock:
                for one in told:
                    self.account.deleted_s.setdefault(one, now_s)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("seed", [1])
def test_sends_and_deletes_hold_after_kills_under_load(tmp_path: Path, seed: int) -> None:
    run(Server(tmp_path / "data", *SMALL), seed, KILLS)


@pytest.mark.timeout(180)
def test_a_server_that_answers_sqs_before_it_writes_is_found_out(tmp_path: Path) -> None:
    """So the test above can fail."""
    server = Server(tmp_path / "data", *SMALL, program=("-c", HASTY))
    with pytest.raises(AssertionError, match=r"were lost|after its deletion was answered|for the first time after"):
        run(server, 1, 4)


def run(server: Server, seed: int, kills: int) -> None:
    print(f"seed {seed}, {kills} kills")
    random, account = Random(seed), Account()
    with server:
        client = Client(server)
        client.ask("CreateQueue", STANDARD, Attributes={"VisibilityTimeout": str(VISIBILITY_S)})
        client.ask("CreateQueue", FIFO, Attributes={"VisibilityTimeout": str(VISIBILITY_S), "FifoQueue": "true"})
        client.close()
        load = Load(server, account, seed)
        for name, queue, most in (
            ("send-1", STANDARD, 1),
            ("send-2", STANDARD, 10),
            ("send-3", FIFO, 10),
            ("send-4", FIFO, 1),
        ):
            load.sender(name, queue, most)
        for name, queue, most in (("take-1", STANDARD, 10), ("take-2", STANDARD, 1), ("take-3", FIFO, 10)):
            load.receiver(name, queue, most)
        try:
            for kill in range(kills):
                work_goes_on(account)
                moment_s = random.random() ** 2
                time.sleep(moment_s)  # the seed draws the moment; nothing is waited for
                print(f"kill {kill}: {moment_s:.3f} s after work went on")
                end(server, random)
                server.start()
            load.stop("send")
        finally:
            server.kill()
            load.stop()
        server.start()
        for queue in (STANDARD, FIFO):
            drain(server, queue, account)
    print(f"{len(account.confirmed)} of {len(account.sent)} confirmed, {len(account.deleted_s)} deleted")
    assert not account.wrong, account.wrong[:5]
    lost = account.confirmed - account.received.keys()
    assert not lost, f"{len(lost)} of {len(account.confirmed)} confirmed messages were lost: {sorted(lost)[:5]}"
    assert account.received.keys() <= account.sent, "there is a message that nobody sent"


def work_goes_on(account: Account) -> None:
    """In both queues, both ways."""

    def progress() -> list[int]:
        with account.lock:
            assert not account.wrong, account.wrong[:5]
            parts = (account.confirmed, account.deleted_s)
            return [sum(told.queue == queue for told in part) for part in parts for queue in (STANDARD, FIFO)]

    before = progress()
    eventually("work goes on", lambda: all(now > then + 10 for now, then in zip(progress(), before, strict=True)))


def drain(server: Server, queue: str, account: Account) -> None:
    client = Client(server)

    def left() -> int:
        wanted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = client.ask("GetQueueAttributes", queue, AttributeNames=wanted)["Attributes"]
        return sum(int(found[name]) for name in wanted)

    deadline_s = time.monotonic() + 60
    while left():
        assert time.monotonic() < deadline_s, f"{left()} are still in {queue}"
        asked_s = time.monotonic()
        messages = client.ask("ReceiveMessage", queue, MaxNumberOfMessages=10, WaitTimeSeconds=5).get("Messages", [])
        account.receive(asked_s, messages)
        if messages:
            batch = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)]
            client.ask("DeleteMessageBatch", queue, Entries=batch)
    client.close()
