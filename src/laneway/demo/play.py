"""Plays a plan against a server: a publisher and some consumers for each queue, each a thread with the plain client."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from laneway.client import Client, ClientError, Message
from laneway.demo.ledger import Ledger, Tally
from laneway.demo.plan import ALWAYS, CRASH, CRASH_ONCE, LANES, POISON, TRANSIENT, DemoQueue, Plan

TICK_S = 0.05  # between two publishes of a publisher
LOOK_S = 0.5  # between two looks at the queues
WAIT_S = 0.5  # how long a consumer waits for messages
DRAIN_S = 60.0  # most that the end may take beyond the plan
MOST = 200  # messages in one publish


@dataclass(frozen=True)
class Progress:
    """How it stands, for whoever looks on."""

    at_s: float
    chapter: str
    tallies: dict[str, Tally]
    waiting: dict[str, int]  # by the server's word: waiting, delayed and leased
    dead: dict[str, int]


@dataclass(frozen=True)
class Outcome:
    tallies: dict[str, Tally]
    seconds: float
    is_drained: bool  # else some messages still wait, and the count of ends is not complete
    was_stopped: bool


class Player:
    """One run. `stop` may be set from elsewhere to end it early; then messages stay behind in the queues."""

    def __init__(self, plan: Plan, url: str, stop: threading.Event | None = None) -> None:
        self.plan = plan
        self.stop = stop or threading.Event()
        self._url = url
        self._ledgers = {lane.name: Ledger(lane.max_receives, is_bounded=lane.is_bounded) for lane in LANES}
        self._failures: list[BaseException] = []
        self._done = threading.Event()  # the consumers may go home
        self._began_at = 0.0

    def set_up(self, client: Client) -> None:
        """Create the queues."""
        for lane in LANES:
            if lane.dead_letter_queue:
                client.put_queue(lane.dead_letter_queue)
            client.put_queue(lane.name, **self.plan.settings(lane))

    def play(self, told: Callable[[Progress], None] = lambda _: None) -> Outcome:
        with Client(self._url) as client:
            self.set_up(client)
            self._began_at = time.monotonic()
            publishers = [self._thread(self._publish, lane) for lane in LANES]
            consumers = [self._thread(self._consume, lane, n) for lane in LANES for n in range(lane.consumers)]
            is_drained = was_stopped = False
            try:
                is_drained = self._watch(client, publishers, told)
                was_stopped = self.stop.is_set()
            finally:
                self._done.set()
                if not is_drained:
                    self.stop.set()
                for thread in (*publishers, *consumers):
                    thread.join()
        if self._failures:
            raise self._failures[0]
        tallies = {name: ledger.balance() if is_drained else ledger.so_far() for name, ledger in self._ledgers.items()}
        return Outcome(tallies, self._now_s(), is_drained, was_stopped)

    def _watch(self, client: Client, publishers: list[threading.Thread], told: Callable[[Progress], None]) -> bool:
        """Until everything is published and settled; whether it came to that."""
        while not self.stop.wait(LOOK_S) and self._now_s() < self.plan.seconds + DRAIN_S:
            are_all_published = not any(thread.is_alive() for thread in publishers)
            stats = {lane.name: client.stats(lane.name) for lane in LANES}
            waiting = {
                name: found["approximate_message_count"] + found["in_flight_count"] for name, found in stats.items()
            }
            told(
                Progress(
                    self._now_s(),
                    self.plan.chapter(self._now_s()),
                    {name: ledger.so_far() for name, ledger in self._ledgers.items()},
                    waiting,
                    {name: found["dlq_count"] for name, found in stats.items()},
                )
            )
            if are_all_published and not any(waiting.values()):
                return True
        return False

    def _now_s(self) -> float:
        return time.monotonic() - self._began_at

    def _thread(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                with Client(self._url) as client:
                    work(client, *arguments)
            except BaseException as failure:
                self._failures.append(failure)
                self.stop.set()

        thread = threading.Thread(target=run, name=f"demo {work.__name__} {arguments[0].name}", daemon=True)
        thread.start()
        return thread

    # --- publishing

    def _publish(self, client: Client, lane: DemoQueue) -> None:
        planned, at = self.plan.messages[lane.name], 0
        ledger = self._ledgers[lane.name]
        while at < len(planned) and not self.stop.is_set():
            due = at
            while due < len(planned) and due - at < MOST and planned[due].at_s <= self._now_s():
                due += 1
            if due == at:
                self.stop.wait(TICK_S)
                continue
            batch = planned[at:due]
            answers = client.publish_batch(lane.name, [message.to_client() for message in batch])
            for message, answer in zip(batch, answers, strict=True):
                if isinstance(answer, ClientError):
                    raise answer
                ledger.published(answer["message_id"], is_expiring=message.ttl_s is not None)
            at = due

    # --- consuming

    def _consume(self, client: Client, lane: DemoQueue, number: int) -> None:
        random = Random(f"{self.plan.seed}/{lane.name}/{number}")
        ledger = self._ledgers[lane.name]
        consumer = f"{lane.name}-worker-{number + 1}"
        while not (self._done.is_set() or self.stop.is_set()):
            if self.plan.is_out(lane, self._now_s()):
                self._done.wait(TICK_S)
                continue
            messages = client.receive(lane.name, lane.batch, wait_seconds=WAIT_S, consumer_id=consumer)
            for message in messages:
                ledger.delivered(message.message_id, message.receive_count)
            if messages:
                # Working takes its time; how long it takes varies, and sometimes it takes much longer.
                self.stop.wait(len(messages) * self.plan.service_s(lane) * random.lognormvariate(-0.125, 0.5))
                self._settle(client, lane, ledger, messages)

    def _settle(self, client: Client, lane: DemoQueue, ledger: Ledger, messages: list[Message]) -> None:
        by_fate: dict[str, list[Message]] = defaultdict(list)
        for message in messages:
            by_fate[_fate(message)].append(message)
        if by_fate["ack"]:
            answers = client.ack_batch(lane.name, by_fate["ack"])
            for message, answer in zip(by_fate["ack"], answers, strict=True):
                if _was_taken(answer, ledger):
                    ledger.acked(message.message_id)
        if by_fate["release"]:
            delay_s = round(min(1.0, self.plan.seconds / 60), 3)
            answers = client.release_batch(lane.name, by_fate["release"], delay_seconds=delay_s)
            for message, answer in zip(by_fate["release"], answers, strict=True):
                if _was_taken(answer, ledger):
                    ledger.released(message.receive_count)
        for message in by_fate["reject"]:
            [answer] = client.reject_batch(lane.name, [message], reason=message.payload["error"])
            if _was_taken(answer, ledger):
                ledger.rejected(message.message_id)
        for _ in by_fate["abandon"]:
            ledger.abandoned()


def _fate(message: Message) -> str:
    fault = message.payload.get("fault")
    if fault == POISON:
        return "reject"
    if fault == CRASH or (fault == CRASH_ONCE and message.receive_count == 1):
        return "abandon"
    if fault == ALWAYS or (fault == TRANSIENT and message.receive_count == 1):
        return "release"
    return "ack"


def _was_taken(answer: dict[str, Any] | ClientError, ledger: Ledger) -> bool:
    if not isinstance(answer, ClientError):
        return True
    if answer.code != "lease_stale":
        raise answer
    ledger.refused()  # a slow machine: the message comes back, and is counted then
    return False
