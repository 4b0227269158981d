"""Seeds of two processes with a partition each: any of them crashes at any moment, and comes back while the other goes
on. What crosses is done once, in order and whole; and the simulator finds what is planted to break that."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

import pytest

from laneway.broker.couriers import Courier
from laneway.broker.crossing import Crossing
from laneway.broker.engine import Engine
from laneway.broker.inbox import tell
from laneway.broker.interface import Publish, Request
from laneway.broker.local import LocalBroker
from laneway.broker.values import Arrival, Receipts
from laneway.cluster.remote import RemoteBroker
from laneway.cluster.serving import PartitionServer
from laneway.cluster.spreading import Spreading
from laneway.core import snapshot
from laneway.core.events import Event, Received
from laneway.core.state import State

from .several import run_seed_of_several
from .simulator import Failure
from .small import small_parts

SEEDS = 300
PART = 50
PLANTED_SEEDS = range(1000)  # one of them shows in one seed of three hundred

Plant = AbstractContextManager[Any]


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_what_crosses_is_done_once_in_order_and_whole(first: int) -> None:
    with small_parts():
        for seed in range(first, first + PART):
            run_seed_of_several(seed)


def test_the_seeds_reach_every_kind_of_moment() -> None:
    counts: Counter[str] = Counter()
    with small_parts():
        for seed in range(40):
            simulation = run_seed_of_several(seed)
            counts.update(simulation.counts)
            counts.update(simulation.ends)
    wanted = {
        *("crash", "kill", "stop", "fail", "power lost", "crash while starting", "forgiven", "restart of its own"),
        *("published", "leased", "acked", "moved", "arrived", "told", "received", "reserved", "removed", "snapshot"),
        *("transactions over partitions", "produced", "redrive", "keyed_again", "hang_up", "cut", "outcome unknown"),
        *("delivered", "refused"),
    }
    assert not wanted - {name for name, count in counts.items() if count}


# Planted bugs


def entry_carried_out_twice() -> Plant:
    original = Crossing._carry_out

    def carry_out(self: Any, sender: int, what: Any) -> Any:
        original(self, sender, what)
        return original(self, sender, what)

    return mock.patch.object(Crossing, "_carry_out", carry_out)


def entry_that_comes_again_done_again() -> Plant:
    return mock.patch.object(State, "_received", lambda self, e: self.received.update({e.sender: 0}))


def mark_that_is_not_durable() -> Plant:
    """It is known as long as the process is there."""
    original = Engine.run

    def run(self: Any, command: Iterator[Event]) -> list[Event]:
        events = list(command) if isinstance(command, type(iter([]))) else command
        if isinstance(events, list) and events and isinstance(events[0], Received):
            self.state.received[events[0].sender] = events[0].number
            return []
        return original(self, iter(events))

    return mock.patch.object(Engine, "run", run)


def mark_in_another_commit() -> Plant:
    original = Engine.run

    def run(self: Any, command: Iterator[Event]) -> list[Event]:
        events = list(command) if isinstance(command, type(iter([]))) else command
        if isinstance(events, list) and events and isinstance(events[0], Received):
            asyncio.get_running_loop().call_later(0.02, original, self, iter(events))
            return []
        return original(self, iter(events))

    return mock.patch.object(Engine, "run", run)


def mark_forgotten_by_a_snapshot() -> Plant:
    original = snapshot.freeze

    def freeze(state: State, at_ms: int = 0) -> Any:
        frozen = original(state, at_ms)
        frozen.head["received"] = []
        return frozen

    return mock.patch.object(snapshot, "freeze", freeze)


def confirm_from_the_hop_before_the_leader() -> Plant:
    original = RemoteBroker.send

    def send(self: Any, request: Request, done: Callable[[Any], None]) -> int:
        if not isinstance(request, Publish) or isinstance(request.targets, list):
            return original(self, request, done)
        count = len(request.messages.bodies)
        receipts = Receipts(1, range(1, 1 + count), [0] * count, 1)
        done([Arrival(queue, None, receipts) for queue in request.targets])
        return original(self, request, lambda answer: None)

    return mock.patch.object(RemoteBroker, "send", send)


def entry_forgotten_when_it_is_sent() -> Plant:
    original = Courier._read

    def read(self: Any, *what: Any) -> None:
        deliver = self._deliver

        def sent(request: Any, done: Any) -> None:
            deliver(request, lambda answer: None)
            done([None] * len(request.entries))

        with mock.patch.object(self, "_deliver", sent):
            original(self, *what)

    return mock.patch.object(Courier, "_read", read)


def receiver_answers_before_it_is_durable() -> Plant:
    def receive(self: Any, entries: Any) -> None:
        for entry in entries:
            tell(entry.done, self._receive(entry.request))

    return mock.patch.object(Crossing, "receive", receive)


def entry_leaves_before_it_is_durable() -> Plant:
    original = Crossing._spread

    def spread(self: Any, *what: Any) -> None:
        original(self, *what)
        for receiver, outbox in self._partition.engine.state.outboxes.items():
            if outbox.ready:
                self._courier(receiver).look(1 << 60)

    return mock.patch.object(Crossing, "_spread", spread)


def entries_sent_last_first() -> Plant:
    original = Courier._next
    return mock.patch.object(Courier, "_next", lambda self: original(self)[::-1])


def what_a_transaction_settles_elsewhere_not_held_for_it() -> Plant:
    def reserve(self: Any, job: Any, settlement: Any) -> None:
        job.reserved.append(settlement)

    return mock.patch.object(Spreading, "_reserve", reserve)


def held_for_a_transaction_before_that_is_durable() -> Plant:
    original = LocalBroker._when_durable

    def when_durable(self: Any, done: Any, answer: Any) -> None:
        if isinstance(answer, list) and answer and isinstance(answer[0], int):
            done(answer)
        else:
            original(self, done, answer)

    return mock.patch.object(LocalBroker, "_when_durable", when_durable)


def what_crosses_is_overtaken() -> Plant:
    stack = ExitStack()
    for name in ("_begin", "_end"):
        stack.enter_context(mock.patch.object(Spreading, name, lambda self, queues: None))
    return stack


def link_of_before_ends_the_sessions_of_now() -> Plant:
    return mock.patch.object(PartitionServer, "_drop_earlier", lambda self, number: None)


TWICE = "is there twice|came back|after its ack was answered"
LOST = "is lost|of what was to be whole|of one transaction"

#: What is planted, and what the simulator must say about it.
PLANTS: dict[Callable[[], Plant], str] = {
    entry_carried_out_twice: TWICE,
    entry_that_comes_again_done_again: f"{TWICE}|recovered differently",
    mark_that_is_not_durable: f"{TWICE}|recovered differently",
    mark_in_another_commit: TWICE,
    mark_forgotten_by_a_snapshot: f"{TWICE}|recovered differently",
    confirm_from_the_hop_before_the_leader: LOST,
    entry_forgotten_when_it_is_sent: LOST,
    receiver_answers_before_it_is_durable: LOST,
    entry_leaves_before_it_is_durable: f"{LOST}|{TWICE}",
    entries_sent_last_first: f"{LOST}|too late",
    what_a_transaction_settles_elsewhere_not_held_for_it: LOST,
    held_for_a_transaction_before_that_is_durable: LOST,
    what_crosses_is_overtaken: "too late",
    link_of_before_ends_the_sessions_of_now: "something went wrong|too late|a caller failed",
}


@pytest.mark.timeout(300)  # hundreds of seeds, some of them
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[], Plant]) -> None:
    others: list[str] = []
    with small_parts(), plant():
        for seed in PLANTED_SEEDS:
            try:
                run_seed_of_several(seed)
            except Failure as failure:
                assert f"--partitions 2 --seeds {seed}" in str(failure)
                if re.search(PLANTS[plant], str(failure)):
                    return
                others.append(str(failure).splitlines()[0])
    pytest.fail(f"{len(PLANTED_SEEDS)} seeds did not say so, but {others[:5]}")
