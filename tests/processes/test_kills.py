"""kill -9 of the processes of one server: nothing is lost or done twice, and clients of the others notice a pause."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import connected_process
from tests.amqp.wire import Frame, Wire, method, publish
from tests.crash.server import Connection, eventually
from tests.crash.test_kill import HASTY
from tests.processes import kills
from tests.processes.kills import FIFO, MOVING, PLAIN, Account, Killed, check
from tests.processes.several import SeveralProcesses, resident_bytes

HERE, THERE = PLAIN  # led by the first process, and by the second one


@pytest.mark.timeout(400)
def test_nothing_confirmed_is_lost_and_nothing_acked_comes_back(tmp_path: Path) -> None:
    account = kills.run(Killed(tmp_path / "data"), seed=1, kills=5)
    assert sum(map(len, account.confirmed.values())) > 300


@pytest.mark.timeout(400)
def test_a_server_that_answers_before_it_writes_is_found_out(tmp_path: Path) -> None:
    """So the test above can fail."""
    with pytest.raises(AssertionError, match=r"are lost|came back|after its ack was answered|reached one queue"):
        kills.run(Killed(tmp_path / "data", program=("-c", HASTY)), seed=1, kills=4)


@pytest.mark.parametrize(
    ("queue", "left", "message"),
    [
        (PLAIN[0], [], "are lost in"),
        (PLAIN[0], ["sent", "sent"], "twice"),
        (FIFO[0], ["sent", "gone"], "came back"),
        (MOVING[1], ["sent", "gone"], "were moved and stayed"),
    ],
)
def test_the_account_finds_what_is_wrong(queue: str, left: list[str], message: str) -> None:
    account = Account()
    found: kills.Left = {name: ([], []) for name in kills.QUEUES}
    account.confirm(queue, body="sent")
    account.gone(FIFO[0], "gone")
    found[queue] = left, []
    if queue == MOVING[1]:
        found[MOVING[0]] = [], ["gone"]
    with pytest.raises(AssertionError, match=message):
        check(account, found)


# A process dies that others' clients need


class Clients:
    """Of the first process: a publisher and a consumer of AMQP, and one of HTTP."""

    def __init__(self, server: SeveralProcesses) -> None:
        self.server = server
        self.http, other = server.by_process().values()
        other.close()
        for queue in PLAIN:
            self.http.must(201, "PUT", f"/queues/{queue}")
        self.publisher, self.consumer = self.wire(), self.wire()
        assert self.publisher.ask(1, "confirm.select").name == "confirm.select-ok"
        self.consumer.ask(1, "basic.qos", count=10)
        assert self.consumer.ask(1, "basic.consume", queue=THERE, tag="kept").name == "basic.consume-ok"

    def wire(self) -> Wire:
        while True:
            wire = Wire(("127.0.0.1", self.server.amqp_port)).log_in()
            if is_of_the_first(self.server, wire.socket.getsockname()[1]):
                return wire
            wire.close()

    def publish(self, *bodies: bytes, queue: str = THERE) -> None:
        self.publisher.send(b"".join(publish(1, queue, body, delivery_mode=2) for body in bodies))

    def confirms(self, count: int) -> list[str]:
        """What each of so many was answered with."""
        found: list[str] = []
        while len(found) < count:
            got = self.publisher.read()
            first = len(found) + 1 if got.fields["multiple"] else 0
            assert got.name in ("basic.ack", "basic.nack") and first >= 0, str(got)
            new = got.fields["delivery"] - self._confirmed if got.fields["multiple"] else 1
            self._confirmed += new
            found += [got.name] * new
        return found

    _confirmed = 0

    def deliveries(self, count: int) -> list[tuple[Frame, bytes]]:
        found = []
        for _ in range(count):
            deliver = self.consumer.expect("basic.deliver")
            assert deliver.fields["tag"] == "kept"
            self.consumer.expect("header")
            found.append((deliver, self.consumer.read().payload))
        return found

    def ack(self, delivery: int) -> None:
        self.consumer.send(method(1, "basic.ack", delivery=delivery, multiple=1))

    def close(self) -> None:
        self.publisher.close()
        self.consumer.close()
        self.http.close()


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Clients]:
    with SeveralProcesses(tmp_path / "data") as server:
        found = Clients(server)
        yield found
        found.close()


def test_clients_of_other_processes_notice_a_pause(clients: Clients) -> None:
    server = clients.server
    clients.publish(b"0", b"1", b"2")
    assert clients.confirms(3) == ["basic.ack"] * 3
    held = clients.deliveries(3)
    assert [body for _, body in held] == [b"0", b"1", b"2"]
    clients.ack(held[0][0].fields["delivery"])
    clients.http.must(200, "GET", f"/queues/{THERE}/stats")
    asked, waiting = Asked(server), Asked(server)
    # What is under way when it dies has an unknown outcome.
    gone = server.children()[1]
    os.kill(gone, signal.SIGSTOP)
    clients.publish(b"unknown")
    asked.ask("POST", f"/queues/{THERE}/messages", {"payload": "unknown"})
    os.kill(server.pid, signal.SIGSTOP)  # so that nobody starts another one yet
    os.kill(gone, signal.SIGKILL)
    assert clients.confirms(1) == ["basic.nack"]
    eventually("the process knows", lambda: clients.http.call("GET", "/readyz")[0] == 503)
    # What is asked while it is away waits for it.
    clients.publish(b"later", b"latest")
    waiting.ask("POST", f"/queues/{THERE}/messages", {"payload": "waited"})
    clients.publish(b"elsewhere", queue=HERE)  # … and is confirmed before those
    os.kill(server.pid, signal.SIGCONT)
    assert clients.confirms(3) == ["basic.ack"] * 3
    assert waiting.answer()[0] == 201
    status, answer = asked.answer()
    assert (status, answer["error"]["code"]) == (503, "outcome_unknown")
    # The consumer is the same, and gets again what it held.
    bodies: list[bytes] = []
    while b"latest" not in bodies or b'"waited"' not in bodies:
        ((deliver, body),) = clients.deliveries(1)
        bodies.append(body)
        assert deliver.fields["redelivered"] or body not in (b"1", b"2")
        clients.ack(deliver.fields["delivery"])
    known = [body for body in bodies if b"unknown" not in body and b"waited" not in body and body != b"0"]
    assert known == [b"1", b"2", b"later", b"latest"]


class Asked:
    """A request over a connection to the first process, whose answer is read later."""

    def __init__(self, server: SeveralProcesses) -> None:
        self._connection = first_of(server)

    def ask(self, method: str, path: str, body: Any) -> None:
        self._connection.send(method, path, body)

    def answer(self) -> tuple[int, Any]:
        found = self._connection.answer()
        self._connection.close()
        return found


def is_of_the_first(server: SeveralProcesses, port: int) -> bool:
    pids = server.children()
    return connected_process(port, pids) == pids[0]


def first_of(server: SeveralProcesses) -> Connection:
    while True:
        connection = server.connect()
        connection.call("GET", "/healthz")
        if is_of_the_first(server, connection.local_port):
            return connection
        connection.close()


def test_a_stopped_process_slows_no_queue_of_the_others(clients: Clients) -> None:
    """It is there, and does nothing. What is sent to its queues is bounded, and the others' go on."""
    server = clients.server
    first, second = server.children()
    wire = clients.wire()  # before: it takes new connections as well, and lets them wait
    os.kill(second, signal.SIGSTOP)
    try:
        before = resident_bytes(first)
        flood = Flood(wire)
        for number in range(100):
            clients.http.must(201, "POST", f"/queues/{HERE}/messages", {"payload": number})
            (message,) = clients.http.must(200, "POST", f"/queues/{HERE}/dequeue", {})["messages"]
            path = f"/queues/{HERE}/messages/{message['message_id']}"
            clients.http.must(204, "DELETE", path, {"receipt_handle": message["receipt_handle"]})
            assert message["payload"] == number
        clients.publish(b"on", queue=HERE)
        assert clients.confirms(1) == ["basic.ack"]
        flood.stands()
        assert resident_bytes(first) - before < 300 << 20, "what waits for the other process has no bound"
    finally:
        os.kill(second, signal.SIGCONT)
    assert set(flood.answers()) <= {"basic.ack", "basic.nack"}
    clients.publish(b"again")
    assert clients.confirms(1) == ["basic.ack"]


class Flood:
    """A publisher that sends 600 MB to a queue that takes nothing, as far as it is let."""

    COUNT, BODY = 3_000, bytes(200_000)

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._wire.ask(1, "confirm.select")
        self._wire.socket.settimeout(60)
        self._sent = 0
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        message = publish(1, THERE, self.BODY)
        for _ in range(self.COUNT):
            self._wire.send(message)
            self._sent += 1

    def stands(self) -> None:
        """Wait until it gets no further: all is sent and refused, or it is not read from."""
        marks = [-1, -2]

        def is_still() -> bool:
            marks.append(self._sent)
            return self._sent == self.COUNT or marks[-1] == marks[-10:][0] != -1

        eventually("it gets no further", is_still, within_s=60)

    def answers(self) -> list[str]:
        found: list[str] = []
        count = 0
        while count < self.COUNT:
            got = self._wire.read()
            if got.name in ("connection.blocked", "connection.unblocked"):
                continue
            found.append(got.name)
            count = max(count, got.fields["delivery"]) if got.fields["multiple"] else count + 1
        self._thread.join(30)
        self._wire.close()
        return found
