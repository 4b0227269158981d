"""The broker: the few calls every front end uses. Wraps the engine in asyncio: who waits, who is told when, timers.

All calls are made on the loop's thread. A confirm leaves only through the committer, after its commit is durable.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from laneway.broker import peeking
from laneway.broker.committer import Committer, NewWriter, WriterThread
from laneway.broker.cursors import Cursors
from laneway.broker.engine import Engine, Recovery
from laneway.broker.exchanges import Exchanges
from laneway.broker.producers import Producers, StagingLimits
from laneway.broker.queues import Queues
from laneway.broker.sessions import MAX_GATHERED_BYTES, Columns, Place, Sessions
from laneway.broker.tasks import Redrives
from laneway.broker.upkeep import Upkeep
from laneway.broker.values import (
    DeadLetterFilter,
    PeekQuery,
    RedriveRequest,
    Task,
)
from laneway.broker.vhosts import Vhosts
from laneway.broker.waiting import Waiter, Waiting, shareable
from laneway.core import burial, commands, lease_commands
from laneway.core.events import DocumentPut, DocumentRemoved, Event, Extended, Kind, Leased, Published
from laneway.core.message import (
    PLAIN,
    Delivery,
    Draft,
    Glimpse,
    Properties,
    Receipt,
    Receipts,
    Settlement,
    encode_props,
    message_id,
    parse_message_id,
)
from laneway.core.queue import Queue
from laneway.core.runs import runs
from laneway.core.table import SLAB_BITS, SLAB_MASK
from laneway.errors import DiskFull, InvalidInput, LanewayError, LimitExceeded, QueueInUse, Unavailable

log = logging.getLogger("laneway.broker")

MAX_BATCH = 10_000
MAX_WAIT_MS = 20_000
LOOK_AGAIN_MS = 30_000  # a timer waits no longer before it looks at the wall clock again
MAX_STAGED_BYTES = 256 * 1024 * 1024


_T = TypeVar("_T")

PublishDone = Callable[[list[Receipt | LanewayError]], None]
#: Told of single publishes that were gathered, those of one caller together: who asked, and what each came to.
SinglesDone = Callable[[list[Any], list[Receipt | LanewayError]], None]
SettleDone = Callable[[list[int | LanewayError]], None]


class BrokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_queues: int = 200_000
    max_vhosts: int = 10_000
    max_exchanges: int = 100_000
    max_bindings: int = 500_000
    max_message_bytes: int = 256 * 1024
    max_idempotency_keys: int = 1_000_000
    max_waiters_per_queue: int = 50_000
    max_document_bytes: int = 256 * 1024
    snapshot_events: int = 500_000
    history_limit_bytes: int = 10 << 30  # of history that is kept for readers alone
    history_ms: int = 0  # so much of it is kept in any case
    staging: StagingLimits = StagingLimits()


class Broker:
    def __init__(
        self,
        engine: Engine,
        *,
        now_ms: Callable[[], int],
        limits: BrokerLimits | None = None,
        on_failed: Callable[[BaseException], None] | None = None,
        idle_ms: int = 20,
        new_writer: NewWriter = WriterThread,
        staging_folder: Path | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits or BrokerLimits()
        self._now_ms = now_ms
        self._last_ms = 0
        self._on_failed = on_failed or (lambda _: None)
        self._idle_ms = idle_ms
        self._new_writer = new_writer
        self._phase = "starting"
        # Single publishes and settlements by their queue, with whom to tell and since when: see run_gathered.
        self._gathered_bytes = 0
        self._gatherers: list[Callable[[], None]] = []  # front ends that gather publishes of their own: see gather
        self._publishes: dict[tuple[str, str], _Singles] = {}  # by virtual host and name of their queue
        self._settlements: dict[int, tuple[list[Settlement], list[SettleDone], int]] = {}
        self._acks: dict[int, tuple[list[Sequence[str]], list[SettleDone], int]] = {}  # tokens, by whose they are
        self._encoded: tuple[Properties, bytes] = (PLAIN, b"")  # those of publish_bodies, who often comes with the same
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self.redrives = Redrives(self)
        self.vhosts = Vhosts(self)
        self.queues = Queues(self)
        self.waiting = Waiting(self)
        self.exchanges = Exchanges(self)
        self.sessions = Sessions(self)
        self.producers = Producers(self, staging_folder, self.limits.staging)
        self.cursors = Cursors(self, limit_bytes=self.limits.history_limit_bytes, history_ms=self.limits.history_ms)

    # Start and stop

    async def start(self) -> Recovery:
        self._loop = asyncio.get_running_loop()
        recovery = self.engine.recover(self.now())
        self._state = self.engine.state
        self._state.wanted = self._wanted
        self.queues.start()
        self.upkeep = Upkeep(self.engine, self._loop, self.now, self.limits.snapshot_events)
        self.committer = Committer(
            self.engine,
            self._loop,
            before_seal=self.run_gathered,
            on_sealed=self.upkeep.sealed,
            on_durable=self.upkeep.durable,
            on_failed=self._fail,
            idle_s=self._idle_ms / 1000,
            new_writer=self._new_writer,
        )
        self.upkeep.start(recovery.event_count, self.committer.touch, self.cursors.look)
        self.cursors.start()
        await asyncio.to_thread(self.engine.journal.drop)  # finishes one that was interrupted
        self.vhosts.start()
        self.producers.start()
        await self.committer.durable()
        # Whatever the durability: were the new epoch lost in a power cut, its lease ids would be given twice.
        await asyncio.to_thread(self.engine.journal.sync)
        self._phase = "ready"
        self.set_timer()
        self.sessions.start()
        self.redrives.resume()
        return recovery

    async def stop(self) -> None:
        """Answer those who wait, make everything durable, keep a snapshot so that the next start is quick."""
        self.run_gathered()
        self._phase = "stopping"
        if self._timer is not None:
            self._timer.cancel()
        self.sessions.stop()
        self.producers.stop()
        await self.redrives.stop()
        self.waiting.end_all()
        await self.upkeep.stop()
        await self.committer.close()
        if self.committer.failed is None and not self.committer.stuck:
            await self.upkeep.final_snapshot()
            await asyncio.to_thread(self.engine.journal.close)

    def _fail(self, error: BaseException) -> None:
        self._phase = "failed"
        self._on_failed(error)

    def now(self) -> int:
        """Milliseconds since 1970; never goes back."""
        now_ms = self._now_ms()
        if now_ms > self._last_ms:
            self._last_ms = now_ms
        return self._last_ms

    def health(self) -> dict[str, object]:
        phase = self._phase
        if phase == "ready" and not self.engine.journal.has_room():
            phase = "disk_full"
        return {"state": phase, "epoch": self.engine.state.epoch, "queues": len(self.engine.state.queues)}

    async def durable(self) -> None:
        """Return once everything done so far is durable."""
        await self.committer.durable()

    def when_durable(self, done: Callable[[_T], None], result: _T) -> None:
        """Call done(result) once everything done so far is durable."""
        self.committer.when_durable(done, result)

    def call_later(self, delay_ms: int, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call, *arguments)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Soon, when more of the same may have come together."""
        self.committer.soon(call)

    # Publishing

    def publish(
        self,
        vhost: str,
        queue: str,
        drafts: Sequence[Draft],
        done: PublishDone,
        *,
        idempotency: tuple[str, bytes] | None = None,
    ) -> None:
        if len(drafts) == 1 and idempotency is None:
            self.publish_one(vhost, queue, drafts[0], _tell_each, done)
            return
        target = self._open_for_writing(vhost, queue)
        self.run_gathered()
        if not 1 <= len(drafts) <= MAX_BATCH:
            raise InvalidInput(f"a batch has 1 to {MAX_BATCH} messages, not {len(drafts)}")
        now_ms = self.now()
        if idempotency is not None:
            self._publish_once(target, drafts, done, idempotency, now_ms)
            return
        results: list[Receipt | LanewayError] = []
        self.publish_now(target, drafts, now_ms, results)
        self.committer.when_durable(done, results)

    def publish_one(self, vhost: str, queue: str, draft: Draft, done: SinglesDone, asker: object) -> None:
        """Hot: gathered with others for the same queue, of which only the first looks closely at whether it may be."""
        if self._gatherers:
            self._run_gatherers()  # they came before this one
        gathered, committer = self._publishes.get((vhost, queue)), self.committer
        if gathered is None:
            target = self._open_for_writing(vhost, queue)
            self.sessions.run_gathered()  # which came before this one
            gathered = self._publishes[vhost, queue] = _Singles(target.number, self.now())
        elif self._phase != "ready" or committer.stuck:
            self._check_open()
        committer.touch()
        gathered.drafts.append(draft)
        gathered.told.append(done)
        gathered.askers.append(asker)
        self._gathered_bytes += len(draft.body)
        if self._gathered_bytes > MAX_GATHERED_BYTES:
            self.run_gathered()

    def publish_bodies(
        self,
        vhost: str,
        queue: str,
        bodies: list[bytes],
        priorities: Sequence[int | None],
        done: Callable[[Receipts | LanewayError], None],
        properties: Properties = PLAIN,
    ) -> bool:
        """Publish messages with nothing of their own but body and priority, as columns; without properties the bodies
        are known to be valid JSON. False, and nothing is done, if one of them or the queue wants a closer look.
        Gathered with what else comes until the commit is sealed, as single ones are."""
        target = self._open_for_writing(vhost, queue)
        settings = target.settings
        chosen: list[Any] = list(priorities)
        if None in priorities:
            usual = settings.priority_when_unset
            chosen = [usual if priority is None else priority for priority in priorities]
        if properties is not self._encoded[0]:
            self._encoded = (properties, encode_props(properties))
        block = self._encoded[1]
        if (
            len(bodies) > MAX_BATCH
            or max(chosen) > settings.max_priority
            or not commands.takes_columns(target, max(map(len, bodies)) + len(block))
        ):
            return False
        columns: list[Columns] = []
        order = commands.by_priority(chosen)
        if isinstance(order, range):
            columns.append(((target.number,), (chosen[0],), [block] * len(bodies), bodies))
        else:
            for priority, alike in groupby(order, chosen.__getitem__):
                some = [bodies[i] for i in alike]
                columns.append(((target.number,), (priority,), [block] * len(some), some))
        places: list[Place] = [[] for _ in columns]
        published = partial(self._published_bodies, done, columns, places, order, chosen)
        self.sessions.publish_columns(columns, sum(map(len, bodies)), published, places)
        return True

    def _published_bodies(
        self,
        done: Callable[[Receipts | LanewayError], None],
        runs: list[Columns],
        places: list[Place],
        order: Sequence[int],
        priorities: list[int],
        trouble: LanewayError | None,
    ) -> None:
        if not places[0]:
            done(trouble or Unavailable("the queue is gone; try again later"))
            return
        at_ms = places[0][1]
        seqs: Sequence[int] = range(places[0][0], places[0][0] + len(priorities))
        if not isinstance(order, range):
            given = [range(first, first + len(run[3])) for (first, _), run in zip(places, runs, strict=True)]
            numbers = dict(zip(order, chain.from_iterable(given), strict=True))
            seqs = list(map(numbers.__getitem__, range(len(order))))
        done(Receipts(self._state.tag, seqs, priorities, at_ms))

    def publish_now(
        self, target: Queue, drafts: Sequence[Draft], now_ms: int, results: list[Receipt | LanewayError]
    ) -> None:
        events = self.engine.run(commands.publish(self._state, target, drafts, now_ms, results))
        self._wake(events)
        self.set_timer()

    def _publish_once(
        self, target: Queue, drafts: Sequence[Draft], done: PublishDone, idempotency: tuple[str, bytes], now_ms: int
    ) -> None:
        """What this key did not publish before. Those that are refused are remembered as such: a repeat tries them,
        and them alone, again."""
        most = self.limits.max_idempotency_keys
        if not most:
            raise LimitExceeded("this server remembers no idempotency keys; publish without one")
        known = commands.check_key(self._state, target, *idempotency, now_ms) or [""] * len(drafts)
        fresh: list[Receipt | LanewayError] = []
        self.publish_now(target, [d for d, i in zip(drafts, known, strict=True) if not i], now_ms, fresh)
        rest = iter(fresh)
        results = [self._repeated(d, target, i) if i else next(rest) for d, i in zip(drafts, known, strict=True)]
        if any(isinstance(r, Receipt) for r in fresh):
            ids = [r.message_id if isinstance(r, Receipt) else "" for r in results]
            self.engine.run(commands.remember_key(self._state, target, *idempotency, ids, now_ms, max_ids=most))
        # Of a repeat, the first publish may still be on its way to the disk: it is answered no sooner.
        self.committer.when_durable(done, results)

    def _repeated(self, draft: Draft, queue: Queue, text: str) -> Receipt:
        at_ms = parse_message_id(text)[0]
        priority = queue.settings.priority_when_unset if draft.priority is None else draft.priority
        visible_ms = draft.visible_at_ms or at_ms + (
            queue.settings.delay_ms if draft.delay_ms is None else draft.delay_ms
        )
        return Receipt(text, priority, at_ms, max(at_ms, visible_ms), duplicate=True)

    def gather(self, publish: Callable[[], None]) -> None:
        """For a front end that has something to publish which costs less together with more of the same: it is called
        when everything else that is gathered is carried out. For what is added until then, see gather_more."""
        self.check_writable()
        self._gatherers.append(publish)
        self.committer.touch()

    def gather_more(self) -> None:
        """Hot: for each that is added. The commit it goes with was asked for by gather()."""
        committer = self.committer
        if committer.stuck or self._phase != "ready":
            self._check_open()
        committer.touches += 1

    def run_gathered(self) -> None:
        """Carry out the single publishes and settlements that came since the last commit was sealed, as one batch a
        queue: a message then costs half. Called before the next seal, and before anything that could tell the order.
        """
        if self._gatherers:
            self._run_gatherers()
        self.sessions.run_gathered()
        self.run_gathered_singles()

    def run_gathered_before_publish(self) -> None:
        """What came before a publish that is gathered, and could be told to have come after it; acks could not."""
        if self._gatherers:
            self._run_gatherers()
        if self._publishes or self._settlements:
            self.run_gathered_singles()

    def _run_gatherers(self) -> None:
        gatherers, self._gatherers = self._gatherers, []
        for publish in gatherers:
            publish()

    def run_gathered_singles(self) -> None:
        if self._publishes:
            self._gathered_bytes = 0
            publishes, self._publishes = self._publishes, {}
            for one in publishes.values():
                tell = partial(_tell_askers, one.told, one.askers)
                self._run_batch(commands.publish, one.number, one.drafts, tell, one.at_ms)
        if self._settlements:
            settlements, self._settlements = self._settlements, {}
            for number, (batch, told_of, at_ms) in settlements.items():
                self._run_batch(lease_commands.settle, number, batch, partial(_tell_each, told_of), at_ms)
        if self._acks:
            acks, self._acks = self._acks, {}
            for number, (parts, told, at_ms) in acks.items():
                self._run_acks(self._state.queues[number], parts, told, at_ms)

    def _run_batch(
        self,
        command: Callable[..., Iterator[Event]],
        number: int,
        batch: list[Any],
        tell: Callable[[list[Any]], None],
        at_ms: int,
    ) -> None:
        results: list[Any] = []
        try:
            queue = self._state.queues[number]
            events = self.engine.run(command(self._state, queue, batch, at_ms, results))
        except LanewayError as wrong:  # the journal takes no more: then nothing of it was done
            events, results = [], [wrong] * len(batch)
        self._wake(events)
        self.set_timer()
        self.committer.when_durable(tell, results)

    def _run_acks(self, queue: Queue, parts: list[Sequence[str]], told: list[SettleDone], at_ms: int) -> None:
        """All of them as one event, if every one is in order; else each asker's on their own."""
        events: list[Event] = []
        results: list[list[int | LanewayError]] = []
        now_ms = self.now()  # not when the first came: what others ack may have been leased since then
        try:
            acked = lease_commands.ack_tokens(self._state, queue, parts, now_ms, came_ms=at_ms)
            if acked is not None:
                events = self.engine.run(iter((acked,)))
                results = [[0] * len(tokens) for tokens in parts]
            else:
                for tokens in parts:
                    outcome: list[int | LanewayError] = []
                    batch = [Settlement("ack", token) for token in tokens]
                    settled = lease_commands.settle(self._state, queue, batch, now_ms, outcome, came_ms=at_ms)
                    events += self.engine.run(settled)
                    results.append(outcome)
        except LanewayError as wrong:  # the journal takes no more
            results += [[wrong] * len(tokens) for tokens in parts[len(results) :]]
        self._wake(events)
        self.set_timer()
        self.committer.when_durable(partial(_tell_all, told), results)

    # Leasing

    def lease(
        self,
        vhost: str,
        queue: str,
        *,
        max_messages: int,
        done: Callable[[Sequence[Delivery]], None],
        lease_ms: int | None = None,
        wait_ms: int = 0,
        consumer: str = "",
    ) -> Waiter | None:
        source = self._open_for_leasing(vhost, queue, lease_ms, consumer)
        if not 1 <= max_messages <= MAX_BATCH:
            raise InvalidInput(f"max_messages is from 1 to {MAX_BATCH}, not {max_messages}", field="max_messages")
        if not 0 <= wait_ms <= MAX_WAIT_MS:
            raise InvalidInput(
                f"a wait is from 0 to {MAX_WAIT_MS // 1000} seconds, not {wait_ms / 1000:g}", field="wait_ms"
            )
        if source.ready and source.number not in self.waiting:
            leased = self.lease_now(source, max_messages, lease_ms, consumer)
            if leased is not None:
                self.hand_over(done, self.engine.deliveries(leased), self.is_durable(leased.seqs))
                return None
        if wait_ms == 0:
            done([])
            return None
        waiter = self.waiting.add(source, max_messages, lease_ms, consumer, done)
        waiter.expire_after(wait_ms, self._loop)
        return waiter

    def lease_durable(
        self, vhost: str, queue: str, count: int, *, lease_ms: int | None = None, consumer: str = ""
    ) -> Sequence[Delivery]:
        """For several that ask at once: up to so many messages, of those that are durable, as one lease. There are none
        if others wait already, or if what one gets depends on what the one before it holds. What is gathered stays so,
        if it changes nothing about which messages are next: publishes are not durable yet, and acks are of others."""
        self._check_open()
        if self._settlements:
            self.run_gathered()
        source = self._found_for_leasing(vhost, queue, lease_ms, consumer)
        if not source.ready or source.number in self.waiting or source.heads or source.tenants is not None:
            return ()
        leased = self.lease_now(source, min(count, shareable(source)), lease_ms, consumer, durable_only=True)
        return () if leased is None else self.engine.deliveries(leased)

    def _open_for_leasing(self, vhost: str, queue: str, lease_ms: int | None, consumer: str) -> Queue:
        self._check_open()
        self.run_gathered()
        return self._found_for_leasing(vhost, queue, lease_ms, consumer)

    def _found_for_leasing(self, vhost: str, queue: str, lease_ms: int | None, consumer: str) -> Queue:
        source = commands.find_queue(self._state, vhost, queue)
        lease_commands.check_lease(lease_ms, consumer)
        self.check_shared(source)
        if source.settings.expires_ms is not None:
            self.sessions.used(source)
        self.tick_if_due()
        return source

    def lease_again(
        self, vhost: str, queue: str, tokens: Sequence[str], deadline_ms: int, lease_ms: int | None
    ) -> list[Delivery] | None:
        """The deliveries of these tokens once more, for one whose answer was lost; their deadline counts from now.
        None, and nothing is done, if one of them was settled, extended or ran out since they were given."""
        source = self.open_queue(vhost, queue)
        self.run_gathered()
        self.tick_if_due()
        out: list[Delivery] = []
        for event in self.run_now(
            lease_commands.hold_again(self._state, source, tokens, deadline_ms, lease_ms, self.now())
        ):
            assert isinstance(event, Extended)
            for seq in event.seqs:
                slab, i = self._state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK
                receives, lease = (slab.receives[i],), slab.lease[i]
                held = Leased(source.number, event.at_ms, (seq,), receives, lease, event.deadline_ms, "")
                out += self.engine.deliveries(held)
        return out or None

    def lease_now(
        self,
        queue: Queue,
        limit: int,
        lease_ms: int | None,
        consumer: str = "",
        *,
        of_session: bool = False,
        durable_only: bool = False,
    ) -> Leased | None:
        """`durable_only`: pass over messages that are not durable yet, unless there are groups."""
        below = self.committer.durable_next_seq if durable_only else 0
        now_ms = self.now()
        command = lease_commands.lease(
            self._state, queue, limit, lease_ms, consumer, now_ms, of_session=of_session, below=below
        )
        for event in self.engine.run(command):
            self.set_timer()
            self.committer.touch_later()
            return event  # type: ignore[return-value]
        return None

    @property
    def all_is_durable(self) -> bool:
        """Whether every message is, wherever it is."""
        return self._state.table.next_seq <= self.committer.durable_next_seq

    def is_durable(self, seqs: Sequence[int]) -> bool:
        """Whether all of these messages are."""
        return max([first + count for first, count in runs(seqs)], default=0) <= self.committer.durable_next_seq

    def hand_over(self, deliver: Callable[[_T], None], what: _T, is_durable: bool) -> None:
        """At once, unless one of the messages is itself not durable yet."""
        if not is_durable:
            self.committer.when_durable(deliver, what)
            return
        try:
            deliver(what)
        except Exception:  # of a consumer: whoever published or released the message has nothing to do with it
            log.exception("a consumer failed to take its messages")

    def run_now(self, command: Iterator[Event]) -> list[Event]:
        """Carry out a command that nobody waits for, and serve those it makes happy."""
        events = self.engine.run(command)
        if events:
            self._wake(events)
            self.set_timer()
            self.committer.touch_later()
        return events

    def _wake(self, events: Sequence[Event]) -> None:
        """Serve those who wait for the queues that these events touched."""
        if not self.waiting and not self.sessions.audiences:
            return
        for event in events:
            if event.kind is Kind.PUBLISHED:
                self._serve_published(event)  # type: ignore[arg-type]
            else:
                for number in dict.fromkeys((getattr(event, "queue", 0), getattr(event, "target", 0))):
                    self.serve(number)

    def _serve_published(self, event: Published) -> None:
        """Messages are pushed when they are durable; before, if they may expire until then."""
        self.waiting.serve(event.queue)
        if event.queue in self.sessions.audiences:
            if any(event.expires_at):
                self.sessions.dispatch(event.queue, at_once=True)
            else:
                self.sessions.dispatch_when_durable(event.queue)

    def _wanted(self, number: int, enough: int) -> int:
        """How many messages those who wait for a queue would take at once, counted no further than `enough`."""
        total = self.waiting.wanted(number, enough)
        audience = self.sessions.audiences.get(number)
        return total + (audience.room(enough - total) if audience is not None else 0)

    def serve(self, number: int) -> None:
        """First those who wait for an answer, then those that messages are pushed to."""
        self.waiting.serve(number)
        if number in self.sessions.audiences:
            self.sessions.dispatch(number)

    # Settling

    def settle(
        self,
        vhost: str,
        queue: str,
        settlements: Sequence[Settlement],
        done: SettleDone,
    ) -> None:
        self._check_open()
        source = commands.find_queue(self._state, vhost, queue)
        if len(settlements) == 1:
            if self._acks:
                self.run_gathered()  # they came before, and may be of the same messages
            gathered = self._settlements.get(source.number)
            if gathered is None:
                gathered = self._settlements[source.number] = ([], [], self.now())
            self.committer.touch()
            gathered[0].append(settlements[0])
            gathered[1].append(done)
            return
        self.run_gathered()
        if not 1 <= len(settlements) <= MAX_BATCH:
            raise InvalidInput(f"a batch has 1 to {MAX_BATCH} entries, not {len(settlements)}")
        self.tick_if_due()
        results: list[int | LanewayError] = []
        events = self.engine.run(lease_commands.settle(self._state, source, settlements, self.now(), results))
        if events:
            self._wake(events)
            self.set_timer()
        self.committer.when_durable(done, results)

    def ack_tokens(self, vhost: str, queue: str, tokens: Sequence[str], done: SettleDone) -> None:
        """Hot: as settle() with an ack of each, gathered with others of the same queue until the commit is sealed."""
        self._check_open()
        source = commands.find_queue(self._state, vhost, queue)
        if not 1 <= len(tokens) <= MAX_BATCH:
            raise InvalidInput(f"a batch has 1 to {MAX_BATCH} entries, not {len(tokens)}")
        if self._settlements:
            self.run_gathered()  # they came before, and may be of the same messages
        gathered = self._acks.get(source.number)
        if gathered is None:
            gathered = self._acks[source.number] = ([], [], self.now())
        self.committer.touch()
        gathered[0].append(tokens)
        gathered[1].append(done)

    # Time

    def set_timer(self) -> None:
        due_ms = self._state.deadlines.next_ms()
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        # Looked at again from time to time: a wall clock that was set ahead brings deadlines nearer.
        wait_ms = min(max(0, due_ms - self.now()), LOOK_AGAIN_MS)
        self._timer = self._loop.call_later(wait_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._phase != "ready":
            return  # stopping, or failed: what is due waits for the next start
        if not self.committer.stuck:
            self.tick_if_due()
        if self.committer.stuck:
            self._timer_ms = self.now() + 250
            self._timer = self._loop.call_later(0.25, self._on_timer)
        else:
            self.set_timer()

    def tick_if_due(self) -> None:
        due_ms = self._state.deadlines.next_ms()
        if due_ms is None or due_ms > self.now():
            return
        self.run_gathered()  # they came before the deadline did
        events = self.engine.tick(self.now())
        if events:
            self.committer.touch()
            self._wake(events)
        ripened, self._state.ripened = self._state.ripened, set()  # a delay that ended is no event
        for number in ripened:
            self.serve(number)

    # Looking and dead letters

    def peek(self, vhost: str, name: str, query: PeekQuery) -> tuple[list[Glimpse], str | None]:
        return peeking.peek(self.engine, self.queue_to_look_at(vhost, name), query, self.now())

    async def delete_dead_letters(self, vhost: str, name: str, filter: DeadLetterFilter) -> int:
        queue = self.open_queue(vhost, name)
        if filter.message_ids is not None:
            peeking.check_dead_letters(self.engine, queue, filter.message_ids)
        deleted = 0
        for seqs in peeking.dead_letters(self.engine, queue, filter, self.now()):
            before = len(queue.dead) + queue.ready + queue.delayed
            self.engine.run(burial.delete_dead(self._state, queue, seqs, self.now()))
            deleted += before - len(queue.dead) - queue.ready - queue.delayed
            await self.committer.durable()
        return deleted

    async def start_redrive(self, vhost: str, name: str, request: RedriveRequest) -> Task:
        return await self.redrives.begin(self.open_queue(vhost, name), request)

    def task(self, task_id: str) -> Task:
        return self.redrives.task(task_id)

    def tasks(self, vhost: str | None = None, queue: str | None = None) -> list[Task]:
        return [
            t
            for t in self.redrives.tasks()
            if (vhost is None or t.vhost == vhost) and (queue is None or t.queue == queue)
        ]

    async def cancel_task(self, task_id: str) -> Task:
        return await self.redrives.cancel(task_id)

    async def redrive_batch(
        self, queue: Queue, seqs: Sequence[int], target: Queue | None, progress: Callable[[int, int], Event]
    ) -> int:
        """How many were moved in one step of a redrive, once durable. What `progress(moved, failed)` makes of it is in
        the same commit, so that a task's count is that of what was moved, also after a crash."""
        failed: list[int] = []

        def step() -> Iterator[Event]:
            yield from burial.redrive(self._state, queue, seqs, target, self.now(), failed)
            yield progress(len(seqs) - len(failed), len(failed))

        events = self.engine.run(step())
        self._wake(events)
        self.set_timer()
        await self.committer.durable()
        return len(seqs) - len(failed)

    # Documents of other layers

    def documents(self, collection: str) -> dict[str, bytes]:
        return dict(self._state.documents.get(collection, {}))

    async def put_document(self, collection: str, key: str, document: bytes) -> None:
        self.check_writable()
        if len(document) > self.limits.max_document_bytes:
            raise InvalidInput(
                f"{collection} {key!r} has {len(document)} bytes, {self.limits.max_document_bytes} are allowed"
            )
        self.engine.run(iter([DocumentPut(self.now(), collection, key, document)]))
        await self.committer.durable()

    async def remove_document(self, collection: str, key: str) -> None:
        self._check_open()
        self.engine.run(iter([DocumentRemoved(self.now(), collection, key)]))
        await self.committer.durable()

    def message_id(self, seq: int, enqueued_at_ms: int) -> str:
        return message_id(enqueued_at_ms, self._state.tag, self.engine.record_seq(seq))

    # Guards

    def begin_change(self, *, adds: bool) -> None:
        """What a change of another part of the broker begins with: may it be, and what came before it is done."""
        if adds:
            self.check_writable()
        else:
            self._check_open()
        self.run_gathered()

    def open_queue(self, vhost: str, name: str) -> Queue:
        self._check_open()
        self.run_gathered()
        return commands.find_queue(self._state, vhost, name)

    def queue_to_look_at(self, vhost: str, name: str) -> Queue:
        """For calls that change nothing: they are answered also while nothing can be written, with how things stand."""
        if self._phase != "ready":
            raise self._not_ready()
        if not self.committer.stuck:
            self.run_gathered()
            self.tick_if_due()
        return commands.find_queue(self._state, vhost, name)

    def _open_for_writing(self, vhost: str, name: str) -> Queue:
        self.check_writable()
        return commands.find_queue(self._state, vhost, name)

    @staticmethod
    def check_shared(queue: Queue) -> None:
        if queue.settings.exclusive:
            raise QueueInUse(f"queue {queue.name!r} belongs to the connection that declared it alone", field="queue")

    def find_queue(self, vhost: str, name: str) -> Queue:
        return commands.find_queue(self._state, vhost, name)

    def _not_ready(self) -> Unavailable:
        return Unavailable(f"the node is {self._phase}; try again later")

    def _check_open(self) -> None:
        if self._phase != "ready":
            raise self._not_ready()
        if self.committer.stuck:
            raise DiskFull("the disk is full and nothing can be written; free some space, then try again")

    def check_writable(self) -> None:
        self._check_open()
        if self.engine.journal.staged_bytes() > MAX_STAGED_BYTES:
            raise Unavailable(
                f"{MAX_STAGED_BYTES >> 20} MiB wait to be written, the disk does not keep up; try again later"
            )
        if not self.engine.journal.has_room():
            self.cursors.look_at_disk()
            raise DiskFull("the disk is full: consuming and acking go on, publishing waits until there is space again")


class _Singles:
    """Single publishes for one queue that wait for the next commit to be sealed."""

    __slots__ = ("askers", "at_ms", "drafts", "number", "told")

    def __init__(self, number: int, at_ms: int) -> None:
        self.number = number
        self.at_ms = at_ms
        self.drafts: list[Draft] = []
        self.told: list[SinglesDone] = []
        self.askers: list[Any] = []


def _tell_askers(told: list[SinglesDone], askers: list[Any], results: list[Any]) -> None:
    """Hot: neighbours who are told by the same one, and mostly all are, hear it in one go."""
    start = 0
    for done, alike in groupby(told):
        end = start + len(list(alike))
        try:
            done(askers[start:end], results[start:end])
        except Exception:
            log.exception("callers failed to take their answers")
        start = end


def _tell_each(told: list[Callable[[list[Any]], None]], results: list[Any]) -> None:
    """Each is told of the one thing it asked for."""
    _tell_all(told, [[result] for result in results])


def _tell_all(told: list[Callable[[list[Any]], None]], results: list[list[Any]]) -> None:
    for done, result in zip(told, results, strict=True):
        try:
            done(result)
        except Exception:
            log.exception("a caller failed to take its answer")
