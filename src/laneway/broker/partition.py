"""A partition: one journal, one state, and the one ordered inbox through which everything reaches them.

It owns the engine, the committer, who waits, who is pushed to, timers and upkeep. Requests come in through
`local.LocalBroker`; nothing else of it is public. Everything here runs on the loop's thread. A confirm leaves only
through the committer, after its commit is durable.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from laneway.broker import peeking
from laneway.broker.clock import Clock
from laneway.broker.committer import Committer, NewWriter, WriterThread
from laneway.broker.crossing import Crossing
from laneway.broker.cursors import Cursors
from laneway.broker.engine import Engine, Recovery
from laneway.broker.exchanges import Exchanges
from laneway.broker.inbox import Inbox, tell, told_of
from laneway.broker.interface import SeenDocument, SessionId
from laneway.broker.moves import Moves
from laneway.broker.policies import Policies
from laneway.broker.producers import Producers
from laneway.broker.queues import Queues, check_owned
from laneway.broker.reading import NewReader, Reader, ReaderThread
from laneway.broker.sessions import Sessions
from laneway.broker.tasks import Redrives
from laneway.broker.topology import queue_info
from laneway.broker.upkeep import Upkeep
from laneway.broker.values import BrokerLimits, DeadLetterFilter, PeekQuery, QueueInfo
from laneway.broker.vhosts import Vhosts
from laneway.broker.waiting import Waiting
from laneway.core import burial, commands, lease_commands, publishing
from laneway.core.deliveries import NOTHING, Deliveries
from laneway.core.digits import chances, secret_lease
from laneway.core.events import ClockSet, DocumentPut, DocumentRemoved, Event, Extended, Kind, Leased, Published
from laneway.core.message import Glimpse, Messages, Receipts
from laneway.core.queue import Queue
from laneway.core.runs import runs
from laneway.core.stepping import STEP_MS, jump_in_words
from laneway.core.table import SLAB_BITS, SLAB_MASK
from laneway.errors import (
    DiskFull,
    DocumentChanged,
    InvalidInput,
    LanewayError,
    MemoryLow,
    QueueNotFound,
    TooLargeForDisk,
    Unavailable,
)
from laneway.journal.interface import Commit
from laneway.telemetry.meter import Meter
from laneway.telemetry.turns import LoopTurns

log = logging.getLogger("laneway.broker")

STOP_PATIENCE_S = 10.0
MAX_STAGED_BYTES = 256 * 1024 * 1024

_T = TypeVar("_T")


class Partition:
    def __init__(
        self,
        engine: Engine,
        *,
        clock: Clock,
        limits: BrokerLimits | None = None,
        on_failed: Callable[[BaseException], None] | None = None,
        idle_ms: int = 20,
        new_writer: NewWriter = WriterThread,
        new_reader: NewReader = ReaderThread,
        staging_folder: Path | None = None,
        turns: LoopTurns | None = None,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.engine = engine
        self._turns = turns or LoopTurns()
        self.meter = Meter()
        self.limits = limits or BrokerLimits()
        self.clock = clock
        self.now = clock.now_ms
        self._on_failed = on_failed or (lambda _: None)
        self._idle_ms = idle_ms
        self._new_writer = new_writer
        self._new_reader = new_reader
        self.reader: Reader
        self._phase = "starting"
        self.is_memory_short = False
        self._chances = chances(random_bytes)
        self.carry_out: Callable[[Any], Any]  # carries out a request that is rare; local.py sets it
        self.crossing = Crossing(self)
        self.inbox = Inbox(self)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._look_timer: asyncio.TimerHandle | None = None
        self.redrives = Redrives(self)
        self.vhosts = Vhosts(self)
        self.queues = Queues(self)
        self.policies = Policies(self)
        self.waiting = Waiting(self)
        self.exchanges = Exchanges(self)
        self.sessions = Sessions(self)
        self.moves = Moves(self)
        self.producers = Producers(self, staging_folder, self.limits.staging)
        self.cursors = Cursors(self, limit_bytes=self.limits.history_limit_bytes, history_ms=self.limits.history_ms)

    # Start and stop

    async def start(self) -> Recovery:
        self._loop = asyncio.get_running_loop()
        recovery = self.engine.recover(self.now(), self.clock.uptime_ms(), self.clock.boot)
        self.cursors.clock_jumped(recovery.jumped_ms)
        self._state = self.engine.state
        self._state.wanted = self._demand
        self._state.most_dedups = self.limits.max_dedups
        self.reader = self._new_reader(self.engine, self._loop)
        self.queues.start()
        self.upkeep = Upkeep(self.engine, self._loop, self.now, self.limits.snapshot_events)
        self.committer = Committer(
            self.engine,
            self._loop,
            before_seal=self.inbox.drain,
            on_sealed=self.upkeep.sealed,
            on_durable=self._durable,
            on_failed=self._fail,
            idle_s=self._idle_ms / 1000,
            new_writer=self._new_writer,
            meter=self.meter,
        )
        self.upkeep.start(recovery.event_count, self.committer.touch, self.cursors.look, self.cursors.look_at_disk)
        self.cursors.start()
        await asyncio.to_thread(self.engine.journal.drop)  # finishes one that was interrupted
        self.vhosts.start()
        self.moves.start()
        self.producers.start()
        self.producers.clock_jumped(recovery.jumped_ms)
        await self.committer.durable()
        # Whatever the durability: were the new epoch lost in a power cut, its lease ids would be given twice.
        await asyncio.to_thread(self.engine.journal.sync)
        self._phase = "ready"
        self.set_timer()
        self._look_later()
        self.sessions.start()
        self.redrives.resume()
        self.policies.start()
        return recovery

    async def stop(self, patience_s: float = STOP_PATIENCE_S) -> None:
        """Answer those who wait, make everything durable, keep a snapshot so that the next start is quick. After so
        long nobody waits for a journal that others hold, and what is under way there is left to the next start."""
        impatience = asyncio.get_running_loop().call_later(patience_s, self.engine.journal.abandon)
        self.inbox.drain()
        self._phase = "stopping"
        self.crossing.stop()
        for timer in (self._timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        self.sessions.stop()
        self.producers.stop()
        await self.moves.stop()
        await self.redrives.stop()
        self.waiting.end_all()
        await self.upkeep.stop()
        await self.reader.close()
        await self.committer.close()
        impatience.cancel()
        if self.committer.failed is None and not self.committer.stuck:
            await self.upkeep.final_snapshot()
            await asyncio.to_thread(self.engine.journal.close)

    def _durable(self, commit: Commit) -> None:
        self.upkeep.durable(commit)
        self.crossing.durable(commit)

    def _fail(self, error: BaseException) -> None:
        self._phase = "failed"
        self._on_failed(error)

    def health(self) -> dict[str, object]:
        phase = self._phase
        if phase == "ready" and not self.has_room():
            phase = "disk_full"
        if phase == "ready" and self.is_memory_short:
            phase = "memory_low"
        return {
            "state": phase,
            "epoch": self.engine.state.epoch,
            "queues": len(self.engine.state.by_name),
            "slow_turns": self._turns.slow_count,
            "longest_turn_ms": self._turns.longest_ms,
        }

    async def durable(self) -> None:
        """Return once everything done so far is durable."""
        await self.committer.durable()

    def when_durable(self, done: Callable[[_T], None], result: _T) -> None:
        """Call done(result) once everything done so far is durable."""
        self.committer.when_durable(done, result)

    def call_later(self, delay_ms: int, call: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call, *arguments)

    def next_turn(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def in_slices(self, work: Generator[None, None, Any], done: Callable[[Any], None]) -> None:
        """Do work as far as it goes in one turn of the loop now, the rest in the next ones; then tell its result."""
        try:
            next(work)
        except StopIteration as end:
            tell(done, end.value)
        except Exception as trouble:
            tell(done, told_of(trouble))
        else:
            self.next_turn(partial(self.in_slices, work, done))

    def call_soon(self, call: Callable[[], None]) -> None:
        """Soon, when more of the same may have come together."""
        self.committer.soon(call)

    # Publishing and leasing

    def publish(
        self,
        shares: publishing.Shares,
        messages: Messages,
        now_ms: int | None = None,
        records: publishing.SharedRecords | None = None,
    ) -> Receipts:
        """Carry out a publish, and serve those who wait for it."""
        results: list[Receipts] = []
        now_ms = self.now() if now_ms is None else now_ms
        self.after(self.engine.run(publishing.publish(self._state, shares, messages, now_ms, results, records)))
        return results[0]

    def lease(
        self,
        demands: Sequence[tuple[Queue, int]],
        lease_ms: int | None,
        consumer: str = "",
        *,
        account: str = "",
        of_session: bool = False,
        durable_only: bool = False,
    ) -> Leased | None:
        """`durable_only`: pass over messages that are not durable yet, unless there are groups."""
        below = self.committer.durable_next_seq if durable_only else 0
        command = lease_commands.lease(
            self._state,
            demands,
            lease_ms,
            consumer,
            self.now(),
            of_session=of_session,
            # What a session holds is settled by number: no token leads there, so those need not be secret.
            first_lease=None if of_session else self.secret_lease(account),
            below=below,
        )
        for event in self.engine.run(command):
            self.set_timer()
            self.committer.touch_later()
            return event  # type: ignore[return-value]
        return None

    def secret_lease(self, account: str = "") -> int:
        """A lease id that nobody can guess."""
        return secret_lease(account, next(self._chances))

    def lease_again(self, queue: Queue, tokens: Sequence[str], deadline_ms: int, lease_ms: int | None) -> Deliveries:
        """The deliveries of these tokens once more; none, and nothing is done, if they are not held as they were."""
        found = NOTHING
        command = lease_commands.hold_again(self._state, queue, tokens, deadline_ms, lease_ms, self.now())
        for event in self.run_now(command):
            assert isinstance(event, Extended)
            slabs = [(self._state.table.slabs[seq >> SLAB_BITS], seq & SLAB_MASK) for seq in event.seqs]
            receives = [slab.receives[i] for slab, i in slabs]
            held = Leased(queue.number, event.at_ms, event.seqs, receives, 0, event.deadline_ms, "")
            found = self.engine.deliveries(queue, held)
            leases = dict(zip(event.seqs, [slab.lease[i] for slab, i in slabs], strict=True))
            found.leases = [leases[seq] for seq in found.seqs]
        return found

    def read(self, queue: Queue, leased: Leased, then: Callable[[Deliveries], None]) -> None:
        """Call `then` with what was leased: at once if it is in memory, else when it has been read from the journal,
        which does not block the loop."""
        kept = self.engine.kept(leased.seqs)
        if kept is not None:
            then(self.engine.deliveries(queue, leased, kept))
        else:
            self.reader.read(queue, leased, then)

    def note_delivered(self, protocol: str, deliveries: Deliveries) -> None:
        meter, seqs = self.meter, deliveries.seqs
        meter.messages[protocol, "deliver"] += len(seqs)
        if meter.now_s() >= meter.lease_due_s and len(seqs):
            meter.leased(protocol, seqs, deliveries.receives, deliveries.enqueued_at_ms, self.now())

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
            self.after(events)
            self.committer.touch_later()
        return events

    def after(self, events: Sequence[Event]) -> None:
        """What follows from events that were applied: those who wait are served, and the next deadline is minded. The
        events stand, whatever becomes of that: if the journal takes no more now, those who wait are served later."""
        if events:
            try:
                self._wake(events)
            except LanewayError as refusal:
                log.warning("those who wait are not served yet: %s", refusal)
                self.committer.when_durable(self._serve_again, events)
            self.set_timer()

    def follow_on(self, events: Sequence[Event]) -> None:
        """Have the meter see what becomes of the messages that it follows: called with events that end leases."""
        for event in events if self.meter.followed else ():
            if event.kind is Kind.ACKED:
                self.meter.acked(event.seqs)  # type: ignore[union-attr]
            elif event.kind in (Kind.RELEASED, Kind.DEAD_LETTERED):
                self.meter.let_go(event.seqs)  # type: ignore[union-attr]

    def _serve_again(self, events: Sequence[Event]) -> None:
        if not self.engine.closed:
            self.after(events)

    def _wake(self, events: Sequence[Event]) -> None:
        """Serve those who wait for the queues that these events touched."""
        if not self.waiting and not self.sessions.audiences:
            return
        for event in events:
            if event.kind is Kind.PUBLISHED:
                self._serve_published(event)  # type: ignore[arg-type]
            else:
                queues = getattr(event, "queues", ())
                self.serve(dict(queues) if queues else (getattr(event, "queue", 0), getattr(event, "target", 0)))

    def _serve_published(self, event: Published) -> None:
        """Messages are pushed when they are durable; before, if they may expire until then."""
        numbers = [number for number, _ in event.queues] if event.queues else [event.queue]
        if self.waiting:
            for number in numbers:
                self.waiting.serve(number)
        if any(event.expires_at):
            self.sessions.dispatch(numbers, at_once=True)
        else:
            self.sessions.dispatch_when_durable(numbers)

    def _demand(self, number: int, enough: int) -> int:
        """How many messages those who wait for a queue would take at once, counted no further than `enough`."""
        total = self.waiting.demand(number, enough)
        audience = self.sessions.audiences.get(number)
        return total + (audience.room(enough - total) if audience is not None else 0)

    def serve(self, numbers: Iterable[int]) -> None:
        """First those who wait for an answer, then those that messages are pushed to."""
        queues = self._state.queues
        numbers = [number for number in numbers if number in queues and queues[number].ready]
        if self.waiting:
            for number in numbers:
                self.waiting.serve(number)
        self.sessions.dispatch(numbers)

    # Time

    def set_timer(self) -> None:
        due_ms = self._state.deadlines.next_ms()
        if due_ms is None or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        self._timer = self._loop.call_later(max(0, due_ms - self.now()) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._phase != "ready":
            return  # stopping, or failed: what is due waits for the next start
        if not self.committer.stuck:
            self.tick_if_due()
        if self.committer.stuck or not self._state.world.is_complete:
            self._timer_ms = self.now() + 250
            self._timer = self._loop.call_later(0.25, self._on_timer)
        else:
            self.set_timer()

    def _look_later(self) -> None:
        if self.clock.look_every_ms:
            self._look_timer = self._loop.call_later(self.clock.look_every_ms / 1000, self._look)

    def _look(self) -> None:
        self._look_later()
        if self._phase == "ready":
            self.look_at_clock()

    def look_at_clock(self) -> None:
        """Notice a jump of the wall clock; and that a suspended machine is awake again, which timers do not."""
        by_ms = self.clock.look()
        try:
            if by_ms:
                self._step(by_ms)
            elif self._has_drifted():
                self._mark_clock()
        except LanewayError as refusal:
            log.warning("what the wall clock did is looked at again soon: %s", refusal)
            return
        if self._timer is not None and self._timer_ms <= self.now():
            self._timer.cancel()
            self._on_timer()

    def _has_drifted(self) -> bool:
        """Whether the next start would take for a jump what was made up for little by little."""
        mark = self._state.clock
        return mark is not None and abs(self.now() - self.clock.uptime_ms() - mark.ahead_ms) >= STEP_MS // 2

    def _mark_clock(self) -> None:
        now_ms = self.now()
        self.engine.run(iter([ClockSet(now_ms, now_ms, self.clock.uptime_ms(), self.clock.boot)]))
        self.committer.touch_later()

    def _step(self, by_ms: int) -> None:
        self.inbox.drain()  # what came before the jump
        was_ms = self.now()
        event = ClockSet(was_ms + by_ms, was_ms, self.clock.uptime_ms(), self.clock.boot)
        self.engine.run(iter([event]))
        self.clock.step(by_ms)
        self.cursors.clock_jumped(by_ms)
        self.producers.clock_jumped(by_ms)
        log.warning("%s: leases, delays and times to live go on as they were", jump_in_words(event))
        self.committer.touch()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._serve_ripened()
        self.set_timer()

    def tick_if_due(self) -> None:
        due_ms = self._state.deadlines.next_ms()
        if due_ms is None or due_ms > self.now() or not self._state.world.is_complete:
            return
        self.inbox.drain()  # what came before the deadline did
        events = self.engine.tick(self.now())
        if events:
            self.follow_on(events)
            self.committer.touch()
            self._wake(events)
        self._serve_ripened()

    def _serve_ripened(self) -> None:
        ripened, self._state.ripened = self._state.ripened, set()  # a delay that ended is no event
        self.serve(ripened)

    # Looking and dead letters

    async def peek(self, vhost: str, name: str, query: PeekQuery) -> tuple[list[Glimpse], str | None]:
        queue = self.queue_to_look_at(vhost, name)
        self.check_owner(queue)
        return await peeking.peek(self.engine, queue, query, self.now())

    async def delete_dead_letters(self, vhost: str, name: str, filter: DeadLetterFilter) -> int:
        queue = self.open_queue(vhost, name)
        if filter.message_ids is not None:
            peeking.check_dead_letters(self.engine, queue, filter.message_ids)
        deleted = 0
        async for seqs in peeking.dead_letters(self.engine, queue, filter, self.now()):
            before = len(queue.dead) + queue.ready + queue.delayed
            self.engine.run(burial.delete_dead(self._state, queue, seqs, self.now()))
            deleted += before - len(queue.dead) - queue.ready - queue.delayed
            await self.committer.durable()
        return deleted

    async def redrive_batch(
        self, queue: Queue, seqs: Sequence[int], target: int | None, progress: Callable[[int, int], Event]
    ) -> int:
        """How many were moved in one step of a redrive, once durable. What `progress(moved, failed)` makes of it is in
        the same commit, so that a task's count is that of what was moved, also after a crash."""
        failed: list[int] = []

        def step() -> Iterator[Event]:
            yield from burial.redrive(self._state, queue, seqs, target, self.now(), failed)
            yield progress(len(seqs) - len(failed), len(failed))

        self.after(self.engine.run(step()))
        await self.committer.durable()
        return len(seqs) - len(failed)

    # Documents of other layers

    def documents(self, collection: str) -> dict[str, bytes]:
        return dict(self._state.documents.get(collection, {}))

    def put_document(self, collection: str, key: str, document: bytes, seen: Sequence[SeenDocument] = ()) -> None:
        self._check_seen(seen)
        self.check_writable(len(document))
        if len(document) > self.limits.max_document_bytes:
            raise InvalidInput(
                f"{collection} {key!r} has {len(document)} bytes, {self.limits.max_document_bytes} are allowed"
            )
        self.engine.run(iter([DocumentPut(self.now(), collection, key, document)]))
        self.committer.touch_later()

    def remove_document(self, collection: str, key: str, seen: Sequence[SeenDocument] = ()) -> None:
        self._check_seen(seen)
        self.check_open()
        self.engine.run(iter([DocumentRemoved(self.now(), collection, key)]))
        self.committer.touch_later()

    def _check_seen(self, seen: Sequence[SeenDocument]) -> None:
        for collection, key, document in seen:
            if self._state.documents.get(collection, {}).get(key) != document:
                raise DocumentChanged(f"{collection} {key!r} was changed meanwhile: look at it again")

    # Guards

    def begin_change(self, *, adds: bool) -> None:
        """What a change of another part of the broker begins with: may it be, and what came before it is done."""
        if adds:
            self.check_writable()
        else:
            self.check_open()
        self.inbox.drain()

    def open_queue(self, vhost: str, name: str, session: SessionId = 0) -> Queue:
        """A queue that this session may change; 0: any caller without one."""
        self.check_open()
        self.inbox.drain()
        queue = self.find_number(commands.find_queue(self._state, vhost, name).number)
        self.check_owner(queue, session)
        return queue

    def queue_to_look_at(self, vhost: str, name: str) -> Queue:
        """For calls that change nothing: they are answered also while nothing can be written, with how things stand."""
        if self._phase != "ready":
            raise self._not_ready()
        if not self.committer.stuck:
            self.inbox.drain()
            self.tick_if_due()
        return commands.find_queue(self._state, vhost, name)

    def check_owner(self, queue: Queue, session: SessionId = 0) -> None:
        if queue.settings.exclusive:
            check_owned(queue, self.sessions.owners.get(queue.number, 0), session)

    def find_number(self, number: int) -> Queue:
        queue = self._state.queues.get(number)
        if queue is None or number in self.moves.frozen:
            self.moves.check(number)
        if queue is None or number in self.queues.going:
            raise QueueNotFound("the queue was deleted meanwhile", field="queue")
        return queue

    def info(self, queue: Queue) -> QueueInfo:
        return queue_info(queue, self.sessions.owners)

    def find_queue(self, vhost: str, name: str) -> Queue:
        return commands.find_queue(self._state, vhost, name)

    def _not_ready(self) -> Unavailable:
        return Unavailable(f"the node is {self._phase}; try again later")

    def check_open(self) -> None:
        if self._phase != "ready":
            raise self._not_ready()
        stuck = self.committer.stuck
        if isinstance(stuck, DiskFull):
            raise DiskFull("the disk is full and nothing can be written; free some space, then try again")
        if stuck is not None:
            raise Unavailable(f"nothing can be written: {stuck.message}")

    def set_memory_short(self, is_short: bool) -> None:
        """While memory is short nothing is published, and what is kept to be quick goes."""
        self.is_memory_short = is_short
        self.engine.keep_less(is_short)

    def check_memory(self) -> None:
        if self.is_memory_short:
            raise MemoryLow("memory is short: consuming and acking go on, publishing waits until there is room again")

    def check_writable(self, need_bytes: int = 0) -> None:
        """Whether what adds to the journal may be done, by what it will take."""
        if self._phase != "ready" or self.committer.stuck is not None:
            self.check_open()
        journal, need_now_bytes = self.engine.journal, self.inbox.waiting_bytes + need_bytes
        if journal.staged_bytes() > MAX_STAGED_BYTES:
            raise Unavailable(
                f"{MAX_STAGED_BYTES >> 20} MiB wait to be written, the disk does not keep up; try again later"
            )
        if not journal.has_room(need_now_bytes) and not self.has_room(need_now_bytes):
            if need_bytes and journal.has_room(self.inbox.waiting_bytes):
                raise TooLargeForDisk(
                    f"the disk has room for messages, but not for the {need_bytes} bytes that this takes of the "
                    "journal; publish less at once, or free some space"
                )
            raise DiskFull("the disk is full: consuming and acking go on, publishing waits until there is space again")

    def check_free(self, need_bytes: int) -> None:
        """Whether so much may be written on the disk beside the journal."""
        if not self.engine.journal.has_free(need_bytes):
            self.upkeep.make_room()
            raise TooLargeForDisk(f"the disk has no room for {need_bytes} bytes beside what is held in reserve")

    def has_room(self, need_bytes: int = 0) -> bool:
        """Whether there is room for messages; if there is not, some is made."""
        if self.engine.journal.has_room(need_bytes):
            return True
        self.upkeep.make_room()
        return False
