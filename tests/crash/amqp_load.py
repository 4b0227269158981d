"""AMQP's publishers, transactions and consumers, which go on whatever happens to the server, and what they were told.

Two things are known without a reply of their own, because commits are durable in order:
    a lease is durable   if a publish sent after its delivery arrived was confirmed
    an ack is durable    if a publish sent after it on its connection was confirmed
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from tests.amqp.wire import Frame, Wire, method, publish

from .server import Server

#: Everything that can go wrong on a connection whose server is being killed.
BROKEN = (OSError, EOFError)

PLAIN, RANKED, LEFT, RIGHT, MARKS = "plain", "ranked", "left", "right", "marks"
SOURCE, MOVED, OTHER = "source", "moved", "other"  # of transactions
QUEUES = (PLAIN, RANKED, LEFT, RIGHT, MARKS, SOURCE, MOVED, OTHER)
FAN = "fan"
TOP_PRIORITY = 9


class Told(NamedTuple):
    """One message as it was sent. `publisher` includes the channel."""

    publisher: str
    number: int
    priority: int

    @property
    def body(self) -> bytes:
        return f"{self.publisher}|{self.number}|{self.priority}|".encode().ljust(
            40 + 300 * (self.number % 7 == 0), b"."
        )


def told_by(body: bytes) -> Told:
    publisher, number, priority, _ = body.decode().split("|")
    return Told(publisher, int(number), int(priority))


class Receipt(NamedTuple):
    life: int
    at_s: float
    redelivered: bool


class Group(NamedTuple):
    """What one transaction publishes: its last message says how many there are."""

    publisher: str
    number: int
    size: int

    def members(self) -> set[bytes]:
        return {b"%s|%d|%d|%d" % (self.publisher.encode(), self.number, i, self.size) for i in range(self.size)}


class Account:
    """What was answered; everything under the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.life = 0  # of the server
        self.sent: dict[str, set[Told]] = defaultdict(set)  # by queue
        self.confirmed: dict[str, set[Told]] = defaultdict(set)
        self.received: dict[tuple[str, Told], list[Receipt]] = defaultdict(list)
        self.acked_s: dict[tuple[str, Told], float] = {}  # when the ack was known to be durable
        self.durable_s: dict[int, float] = defaultdict(float)  # by life: what happened before this is durable
        self.groups: list[Group] = []  # transactions begun
        self.committed: set[Group] = set()
        self.rolled_back: set[Group] = set()
        self.moved = 0
        self.wrong: list[str] = []

    def progress(self) -> tuple[int, ...]:
        with self.lock:
            return *(len(self.confirmed[q]) for q in (PLAIN, RANKED, LEFT)), len(self.committed), self.moved

    def receive(self, queue: str, life: int, deliver: Frame, header: Frame, body: bytes) -> Told:
        told = told_by(body)
        with self.lock:
            now_s = time.monotonic()
            if (queue, told) in self.acked_s:
                self.wrong.append(f"{told} came to {queue} again after its ack was durable")
            if body != told.body or header.fields.get("priority", 0) != told.priority:
                self.wrong.append(f"{told} has another body or priority: {header} {body!r}")
            self.received[queue, told].append(Receipt(life, now_s, bool(deliver.fields["redelivered"])))
        return told


class Client:
    """A connection, and in which life of the server it was made."""

    def __init__(self, server: Server, account: Account, channels: int = 1) -> None:
        self.life = account.life
        self.wire = Wire(("127.0.0.1", server.amqp_port))
        try:
            self.wire.log_in(channels=channels)
            if account.life != self.life:
                raise OSError("the server was killed meanwhile")
        except BaseException:
            self.wire.close()
            raise

    def ask(self, channel: int, name: str, **given: Any) -> Frame:
        self.wire.send(method(channel, name, **given))
        return self.expect(name + "-ok")

    def read(self) -> Frame:
        got = self.wire.read()
        if got.name in ("connection.close", "channel.close"):
            if got.fields["code"] == 320:  # the server stops
                raise EOFError(str(got))
            raise AssertionError(str(got))
        return got

    def expect(self, name: str) -> Frame:
        got = self.read()
        assert got.name == name, f"{name} was expected, not {got}"
        return got

    def message(self, deliver: Frame) -> tuple[Frame, bytes]:
        header = self.expect("header")
        return header, self.read().payload if header.fields["size"] else b""


class Load:
    """Threads that work until told to stop; a broken connection is made anew, to wherever the server is then."""

    def __init__(self, server: Server, account: Account, seed: int) -> None:
        self.server = server
        self.account = account
        self._seed = seed
        self._threads: list[tuple[threading.Thread, threading.Event]] = []

    def spawn(self, name: str, work: Callable[[Client, Random, threading.Event], None], channels: int = 1) -> None:
        stop, random = threading.Event(), Random(f"{self._seed}-{name}")

        def run() -> None:
            while not stop.is_set():
                try:
                    client = Client(self.server, self.account, channels)
                except BROKEN:
                    stop.wait(0.01)
                    continue
                try:
                    work(client, random, stop)
                except BROKEN:
                    stop.wait(0.01)
                except Exception as error:
                    self.account.wrong.append(f"{name} ended with {error!r}")
                    return
                finally:
                    client.wire.close()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append((thread, stop))
        thread.start()

    def stop(self) -> None:
        for _, stop in self._threads:
            stop.set()
        for thread, _ in self._threads:
            thread.join(40)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self._threads.clear()

    # Publishing with confirms

    def publisher(self, name: str, queues: tuple[str, ...], *, exchange: str = "", priorities: bool = False) -> None:
        """Bursts of look-alikes on two channels, the next one sent before the last one is confirmed."""
        numbers = {1: 0, 2: 0}

        def work(client: Client, random: Random, stop: threading.Event) -> None:
            outstanding = {1: _Outstanding(), 2: _Outstanding()}
            for channel in outstanding:
                client.ask(channel, "confirm.select")
            while not stop.is_set():
                data = []
                for channel in random.choices((1, 2), k=random.randint(1, 8)):
                    shape = random.randint(0, TOP_PRIORITY) if priorities else 0
                    for _ in range(random.randint(1, 12)):
                        if priorities and random.random() < 0.3:
                            shape = random.randint(0, TOP_PRIORITY)
                        numbers[channel] += 1
                        told = Told(f"{name}-{channel}", numbers[channel], shape)
                        given = {"priority": shape} if priorities else {}
                        key = "" if exchange else queues[0]
                        data.append(publish(channel, key, told.body, exchange, delivery_mode=2, **given))
                        outstanding[channel].send(told)
                with self.account.lock:
                    for queue in queues:
                        self.account.sent[queue].update(t for o in outstanding.values() for t, _ in o.told.values())
                client.wire.send(b"".join(data))
                while sum(len(o.told) for o in outstanding.values()) > 100:
                    self._confirm(client, outstanding, queues)
                stop.wait(0.03)

        self.spawn(name, work, channels=2)

    def _confirm(self, client: Client, outstanding: dict[int, _Outstanding], queues: tuple[str, ...]) -> None:
        got = client.expect("basic.ack")
        confirmed = outstanding[got.channel].confirm(got.fields["delivery"], bool(got.fields["multiple"]))
        with self.account.lock:
            for queue in queues:
                self.account.confirmed[queue].update(told for told, _ in confirmed)
            known_s = self.account.durable_s[client.life]
            self.account.durable_s[client.life] = max(known_s, *(sent_s for _, sent_s in confirmed))

    # Consuming

    def consumer(self, name: str, queue: str) -> None:
        """Acks one by one, many at once or in another order; now and then makes sure that its acks are durable; now
        and then goes away without a word."""

        def work(client: Client, random: Random, stop: threading.Event) -> None:
            client.ask(1, "confirm.select")
            client.ask(1, "basic.qos", count=random.choice((10, 50, 100)))
            client.ask(1, "basic.consume", queue=queue, tag="c")
            held: dict[int, Told] = {}
            acked: list[Told] = []  # since the last mark
            asked: list[list[Told]] = []  # before each mark that is not confirmed yet
            wanted = random.randint(1, 8)
            while not stop.is_set():
                got = client.read()
                if got.name == "basic.deliver":
                    told = self.account.receive(queue, client.life, got, *client.message(got))
                    held[got.fields["delivery"]] = told
                elif got.name == "basic.ack":
                    known = [told for part in asked[: got.fields["delivery"]] for told in part]
                    asked[: got.fields["delivery"]] = [[]] * min(got.fields["delivery"], len(asked))
                    with self.account.lock:
                        for told in known:
                            self.account.acked_s[queue, told] = time.monotonic()
                else:
                    raise AssertionError(f"what is {got}?")
                if len(held) >= wanted:
                    wanted = random.randint(1, 8)
                    client.wire.send(self._acks(held, acked, random))
                    if random.random() < 0.2:
                        client.wire.send(publish(1, MARKS, b"", delivery_mode=2))
                        asked.append(acked)
                        acked = []
                    if random.random() < 0.005:
                        return

        self.spawn(name, work)

    @staticmethod
    def _acks(held: dict[int, Told], acked: list[Told], random: Random) -> bytes:
        tags = list(held)
        if random.random() < 0.5:
            acked += held.values()
            held.clear()
            return method(1, "basic.ack", delivery=tags[-1], multiple=1)
        random.shuffle(tags)
        chosen = tags[: random.randint(1, len(tags))]
        acked += [held.pop(tag) for tag in chosen]
        return b"".join(method(1, "basic.ack", delivery=tag) for tag in chosen)

    # Transactions

    def transactions(self, name: str) -> None:
        """Groups of messages into two queues; some are taken back."""
        number = 0

        def work(client: Client, random: Random, stop: threading.Event) -> None:
            nonlocal number
            client.ask(1, "tx.select")
            while not stop.is_set():
                number += 1
                group = Group(name, number, random.randint(1, 12))
                data = [
                    publish(1, SOURCE if i % 2 else OTHER, body, delivery_mode=2)
                    for i, body in enumerate(sorted(group.members()))
                ]
                with self.account.lock:
                    self.account.groups.append(group)
                client.wire.send(b"".join(data))
                if random.random() < 0.2:
                    with self.account.lock:
                        self.account.rolled_back.add(group)
                    client.ask(1, "tx.rollback")
                    continue
                client.ask(1, "tx.commit")
                with self.account.lock:
                    self.account.committed.add(group)
                stop.wait(0.001)

        self.spawn(name, work)

    def mover(self, name: str) -> None:
        """Takes from one queue and publishes to another, in one transaction each: never in both, never in none."""

        def work(client: Client, random: Random, stop: threading.Event) -> None:
            client.ask(1, "tx.select")
            client.ask(1, "basic.qos", count=10)
            client.ask(1, "basic.consume", queue=SOURCE, tag="m")
            held: list[tuple[int, bytes]] = []
            while not stop.is_set():
                got = client.read()
                if got.name == "basic.deliver":
                    held.append((got.fields["delivery"], client.message(got)[1]))
                    if len(held) >= random.randint(1, 6):
                        data = self._move(held)
                        if random.random() < 0.2:
                            client.wire.send(data + method(1, "tx.rollback"))
                        client.wire.send(data + method(1, "tx.commit"))
                        held.clear()
                elif got.name == "tx.commit-ok":
                    with self.account.lock:
                        self.account.moved += 1
                elif got.name != "tx.rollback-ok":
                    raise AssertionError(f"what is {got}?")

        self.spawn(name, work)

    @staticmethod
    def _move(held: list[tuple[int, bytes]]) -> bytes:
        published = [publish(1, MOVED, body, delivery_mode=2) for _, body in held]
        acks = [method(1, "basic.ack", delivery=tag) for tag, _ in held]
        return b"".join([*published, *acks])


class _Outstanding:
    """What one channel sent and was not told of yet, by its number there."""

    def __init__(self) -> None:
        self.told: dict[int, tuple[Told, float]] = {}
        self._last = self._first = 0

    def send(self, told: Told) -> None:
        self._last += 1
        self.told[self._last] = (told, time.monotonic())

    def confirm(self, tag: int, multiple: bool) -> list[tuple[Told, float]]:
        first = self._first + 1 if multiple else tag
        assert tag <= self._last, f"{tag} is confirmed, {self._last} were sent"
        self._first = max(self._first, tag) if multiple or tag == self._first + 1 else self._first
        return [self.told.pop(number) for number in range(first, tag + 1) if number in self.told]
