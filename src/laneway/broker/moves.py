"""Queues that go to other partitions, one after the other, and those that come (docs/decisions/0014).

A queue that goes is noted in a document, so a start takes up where it was. It stands still meanwhile: every process
holds back what is asked of it (cluster/standstill.py), until the topology says where it is.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.inbox import Entry
from laneway.broker.interface import SettleHeld, StartMoves
from laneway.broker.values import FailedMove, MoveProgress, MovesInfo, QueueMove
from laneway.core import purging
from laneway.core.departing import Line, depart, held_by, some_alive, some_dead, times_to_live
from laneway.core.events import (
    DocumentPut,
    DocumentRemoved,
    Event,
    KeyRemembered,
    QueueDeleted,
    QueueDeparted,
    QueuePut,
    QueueTold,
)
from laneway.core.outbox import MoveStep, Parcel
from laneway.core.partitions import queue_id
from laneway.core.queue import Queue
from laneway.core.state import QueueDocument, queue_document
from laneway.core.stories import QueueBaggage
from laneway.errors import Conflict, LanewayError, QueueElsewhere

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.broker")

COLLECTION = "moves"
SUMMARY = "summary"  # its key in the collection; all others are numbers of queues
#: So many messages leave in one turn of the loop, and so many wait in the outbox at most before more do.
SLICE = 500
WINDOW = 2_000
LOOK_S = 0.005
RETRY_S = 0.2
#: How long processes may take to say that they hold back what is asked of a queue.
QUIET_S = 15.0
#: An auto-delete queue whose consumers have not come after it goes.
UNWATCHED_MS = 10_000
MAX_FAILED = 100
_TELLS = 1_000  # dedup ids or idempotency keys in one step


class MoveDocument(msgspec.Struct):
    """A queue that is to go, as the journal keeps it."""

    to: int
    placed: bool  # somebody said that it is to be there, and rebalancing leaves it there
    is_under_way: bool = False  # messages of it may have left


class MovesSummary(msgspec.Struct):
    """What became of the moves from this partition."""

    moved_queues: int = 0
    moved_messages: int = 0
    failed: list[FailedMove] = []


class Moves:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.moving: dict[int, int] = {}  # queues that stand still, and the partition that each goes to
        self.frozen: set[int] = set()  # of those, the ones that nobody is served from
        self.on_moving: Callable[[int, int | None], None] = lambda number, to: None
        #: By lease id, the process whose session has it (plus 1), of all processes but this one.
        self.holders: Callable[[int], dict[int, int]] = lambda number: {}
        self.parts: Counter[int] = Counter()  # queues that publishes in parts are under way to, and how many
        self._waiting: dict[int, MoveDocument] = {}  # in this order
        self._summary = MovesSummary()
        self._progress: MoveProgress | None = None
        self._quiet: set[int] = set()  # processes that hold back what is asked of the queue that goes
        self._gone: set[int] = set()  # processes that have ended since it stands still
        #: The same by queue that comes: what they held may arrive after they ended.
        self._gone_from: dict[tuple[int, int], set[int]] = {}
        self._process = 0
        self._process_count = 0  # 0: the other partitions have not been reached
        self._task: asyncio.Task[None] | None = None

    # Beginning and end

    def start(self) -> None:
        """What the journal has. A queue that was under way stands still from the beginning."""
        self._gone_from = {key: set() for key in self._partition.engine.state.arriving}
        for key, document in self._partition.documents(COLLECTION).items():
            if key == SUMMARY:
                self._summary = msgspec.json.decode(document, type=MovesSummary)
                continue
            move = msgspec.json.decode(document, type=MoveDocument)
            if move.is_under_way:
                self._waiting = {int(key): move, **self._waiting}
                self.moving[int(key)] = move.to
                self.frozen.add(int(key))
            else:
                self._waiting[int(key)] = move

    def go(self, process: int, process_count: int) -> None:
        """The other partitions can be reached; there are so many processes, and this is one of them."""
        self._process, self._process_count = process, process_count
        for gone in self._gone_from.values():
            gone.add(process)
        self._begin()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _begin(self) -> None:
        if self._waiting and self._process_count and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work())

    # Requests

    def plan(self, request: StartMoves) -> Generator[None, None, int]:
        """How many queues are to go now that were not before."""
        partition = self._partition
        partition.begin_change(adds=True)
        self._summary = MovesSummary() if not self._waiting else self._summary
        taken = 0
        for at, move in enumerate(request.moves):
            if at and not at % _TELLS:
                yield
                partition.check_writable()
            taken += self._plan_one(move)
        self._begin()
        return taken

    def _plan_one(self, move: QueueMove) -> bool:
        state, partition = self._partition.engine.state, self._partition
        queue = state.by_name.get((move.vhost, move.name))
        if queue is None:
            return False  # it has gone by itself
        if move.to == state.partition:
            if queue.placed != move.placed:
                partition.run_now(iter([QueuePut(queue.number, partition.now(), _document(queue, move.placed))]))
            return False
        if queue.number in self.moving:
            if self.moving[queue.number] == move.to:
                return False
            raise Conflict(f"queue {queue.name!r} is on its way to partition {self.moving[queue.number]}")
        document = self._waiting[queue.number] = MoveDocument(move.to, move.placed)
        put = DocumentPut(partition.now(), COLLECTION, str(queue.number), msgspec.json.encode(document))
        partition.run_now(iter([put]))
        return True

    def cancel(self) -> int:
        """Queues that do not stand still yet stay; how many."""
        partition = self._partition
        stay = [number for number in self._waiting if number not in self.moving]
        partition.run_now(iter([DocumentRemoved(partition.now(), COLLECTION, str(number)) for number in stay]))
        for number in stay:
            del self._waiting[number]
        return len(stay)

    def info(self) -> MovesInfo:
        waiting = len(self._waiting) - (self._progress is not None)
        s = self._summary
        return MovesInfo(waiting, self._progress, s.moved_queues, s.moved_messages, list(s.failed))

    def quiet(self, number: int, process: int) -> None:
        """A process holds back what is asked of this queue, and all that it had asked before was carried out."""
        if self._progress is not None and number in self.moving:
            self._quiet.add(process)

    def process_gone(self, process: int) -> None:
        """What sessions of a process held goes back, wherever it was leased."""
        for gone in (self._gone, *self._gone_from.values()):
            gone.add(process)
        for number, held in held_by(self._partition.engine.state, process + 1).items():
            self._give_back(number, held)

    def _give_back(self, number: int, held: list[tuple[int, int]]) -> None:
        request = SettleHeld(0, number, [seq for seq, _ in held], [lease for _, lease in held], "release")
        self._partition.inbox.add_soon(Entry(request, _not_answered))

    @contextmanager
    def in_parts(self, queues: set[int]) -> Iterator[None]:
        """A publish to these queues is carried out in several turns of the loop: none of them leaves meanwhile."""
        self.parts.update(queues)
        try:
            yield
        finally:
            self.parts.subtract(queues)
            self.parts = +self.parts

    def check(self, number: int) -> None:
        """Whether a queue can be used here."""
        if number in self.frozen or number in self._partition.engine.state.forwards:
            raise QueueElsewhere("the queue is on its way to another partition", field="queue")

    # A queue goes

    async def _work(self) -> None:
        while self._waiting:
            number, move = next(iter(self._waiting.items()))
            try:
                await self._move(number, move)
            except LanewayError as refusal:
                self._fail(number, refusal.message)
            except Exception:
                log.exception("a queue could not be moved")
                self._fail(number, "something went wrong inside the server; its log says what")
            finally:
                self._progress = None

    def _fail(self, number: int, why: str) -> None:
        """It stays here. What has begun to leave never fails, it goes on after the next start."""
        queue = self._partition.engine.state.queues.get(number)
        move = self._waiting.pop(number, None)
        if move is None or move.is_under_way:
            return
        if self.moving.pop(number, None) is not None:
            self.frozen.discard(number)
            self.on_moving(number, None)
        if queue is not None:
            log.warning("queue %r is not moved to partition %d: %s", queue.name, move.to, why)
            self._summary.failed = [*self._summary.failed, FailedMove(queue.vhost, queue.name, move.to, why)]
            self._summary.failed = self._summary.failed[-MAX_FAILED:]
        now_ms = self._partition.now()
        events: list[Event] = [DocumentRemoved(now_ms, COLLECTION, str(number)), self._summed(now_ms)]
        try:
            self._partition.run_now(iter(events))
        except LanewayError as refusal:
            log.warning("what became of a move is not noted: %s", refusal)

    def _summed(self, now_ms: int) -> DocumentPut:
        return DocumentPut(now_ms, COLLECTION, SUMMARY, msgspec.json.encode(self._summary))

    async def _move(self, number: int, move: MoveDocument) -> None:
        partition = self._partition
        queue = partition.engine.state.queues.get(number)
        if queue is None:
            self._fail(number, "it is gone")
            return
        total = purging.weight(queue)
        self._progress = MoveProgress(queue.vhost, queue.name, move.to, 0, total)
        self._gone = {self._process} if move.is_under_way else set()
        if not move.is_under_way:
            self._check_idle(queue)
        await self._freeze(queue, move)
        there = await self._announce(queue, move)
        if there is not None:
            there = queue_id(move.to, there)
            await self._copy(queue, there, move)
        if there is None or partition.engine.state.queues.get(number) is not queue:
            await self._ask(move.to, MoveStep("drop", number), self._done(queue))

    def _check_idle(self, queue: Queue) -> None:
        for task in self._partition.redrives.tasks():
            if task.state == "running" and (task.vhost, task.queue) == (queue.vhost, queue.name):
                raise Conflict(f"task {task.task_id} redrives its dead letters; try again when that has ended")

    async def _freeze(self, queue: Queue, move: MoveDocument) -> None:
        """Until nothing is under way to the queue, and nobody is served from it."""
        partition, number = self._partition, queue.number
        self._quiet.clear()
        self.moving[number] = move.to
        self.on_moving(number, move.to)
        until_s = asyncio.get_running_loop().time() + QUIET_S
        wanted = set(range(self._process_count))
        while not self._quiet >= wanted or self.parts[number]:
            if asyncio.get_running_loop().time() > until_s and not move.is_under_way:
                missing = ", ".join(map(str, sorted(wanted - self._quiet)))
                raise Conflict(f"process {missing} does not answer" if missing else "a large publish is under way")
            await asyncio.sleep(LOOK_S)
        partition.inbox.drain()
        self.frozen.add(number)
        partition.waiting.end(number, QueueElsewhere("the queue is on its way to another partition"))
        while partition.sessions.is_delivering(number):
            await asyncio.sleep(LOOK_S)
        self._is_watched = partition.sessions.consumers_leave(number) or move.is_under_way
        self._holders = self.holders(number)

    async def _announce(self, queue: Queue, move: MoveDocument) -> int | None:
        """Have it made there, under a name that nobody finds; the number that it has there. None if it is gone."""
        partition, state = self._partition, self._partition.engine.state
        document = _document(queue, move.placed)
        move.is_under_way = True
        noted = DocumentPut(partition.now(), COLLECTION, str(queue.number), msgspec.json.encode(move))
        while state.queues.get(queue.number) is queue:
            try:
                step = MoveStep("begin", queue.number, document)
                number: int = await self._ask(move.to, step, iter([noted]))
                return number
            except LanewayError as refusal:
                log.warning("partition %d does not take queue %r yet: %s", move.to, queue.name, refusal)
                await asyncio.sleep(RETRY_S)
        return None

    async def _ask(self, receiver: int, step: MoveStep, also: Iterable[Event] = ()) -> Any:
        """The answer to a step, which is in one commit with these events."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(given: Any) -> None:
            if not answer.done():
                answer.set_result(given)

        self._partition.run_now(self._step(receiver, step, done, also))
        given = await answer
        if isinstance(given, LanewayError):
            raise given
        return given

    def _step(
        self, receiver: int, step: MoveStep, done: Callable[[Any], None], also: Iterable[Event] = ()
    ) -> Iterator[Event]:
        yield from self._partition.crossing.enclose(receiver, Parcel([], [], [], move=step), done)
        yield from also

    async def _room(self) -> None:
        while not self._partition.has_room():
            await asyncio.sleep(RETRY_S)

    async def _copy(self, queue: Queue, there: int, move: MoveDocument) -> None:
        """Every message, then what else there is to say; with the last of it, in one commit, the queue leaves."""
        partition, state = self._partition, self._partition.engine.state
        number = queue.number
        for step in self._tells(queue):
            await self._room()
            partition.run_now(self._step(move.to, step, _not_answered))
            await partition.durable()
        line = Line(queue)
        while state.queues.get(number) is queue:
            if purging.weight(queue):
                await self._copy_all(queue, there, line)
                continue
            await self._room()
            if state.queues.get(number) is queue and not purging.weight(queue):
                await self._leave(queue, there, move)

    def _tells(self, queue: Queue) -> Iterator[MoveStep]:
        state = self._partition.engine.state
        dedups = [(key, *told) for key, told in queue.dedup.items()]
        for at in range(0, len(dedups), _TELLS):
            yield MoveStep("tell", queue.number, baggage=QueueBaggage(dedups=dedups[at : at + _TELLS]))
        keys: list[tuple[str, bytes, list[str], int]] = []
        count = 0
        known = [(key, state.keys.get(queue.number, key)) for key in state.keys.by_queue.get(queue.number, ())]
        for key, answer in sorted(((k, a) for k, a in known if a is not None), key=lambda one: one[1].expires_ms):
            keys.append((key, answer.fingerprint, answer.message_ids, answer.expires_ms))
            count += len(answer.message_ids)
            if count >= _TELLS:
                yield MoveStep("tell", queue.number, keys=keys)
                keys, count = [], 0
        if keys:
            yield MoveStep("tell", queue.number, keys=keys)

    async def _copy_all(self, queue: Queue, there: int, line: Line) -> None:
        """In the order of numbers, so that the new ones stand in the same order; dead letters last."""
        state, number = self._partition.engine.state, queue.number
        expires_at: dict[int, int] = {}
        for at_ms, seqs in times_to_live(state, queue):
            expires_at.update(dict.fromkeys(seqs, at_ms))
            await asyncio.sleep(0)
        known_below, after = state.table.next_seq, 0
        reached: int | None = 0
        while state.queues.get(number) is queue and reached is not None:
            found, reached = some_alive(state, queue, after, SLICE)
            if found and found[-1] >= known_below:
                return  # it came meanwhile: look once more when it expires
            left = self._send_in_line(queue, found, there, expires_at, line)
            if left:
                reached = left[0] - 1
            after = after if reached is None else reached
            await self._pace(there)
        while state.queues.get(number) is queue and self._tell_line(queue, there, line, state.table.next_seq):
            await self._pace(there)
        while state.queues.get(number) is queue and queue.dead:
            self._send(queue, some_dead(queue, SLICE), there, expires_at)
            await self._pace(there)

    def _send_in_line(
        self, queue: Queue, seqs: Sequence[int], there: int, expires_at: dict[int, int], line: Line
    ) -> Sequence[int]:
        """What is left of these, if there is more to say in between than one turn is for."""
        line.note(seqs)
        told = 0
        while seqs and told < SLICE:
            told += self._tell_line(queue, there, line, seqs[0])
            some = line.up_to(seqs)
            if some:
                self._send(queue, some, there, expires_at)
            seqs = seqs[len(some) :]
        return seqs

    def _tell_line(self, queue: Queue, there: int, line: Line, seq: int) -> int:
        names = line.due(seq, SLICE)
        if names:
            step = MoveStep("tell", queue.number, baggage=QueueBaggage(turns=names))
            self._partition.run_now(self._step(there >> 32, step, _not_answered))
        return len(names)

    def _send(self, queue: Queue, seqs: Sequence[int], there: int, expires_at: dict[int, int]) -> None:
        partition, state, progress = self._partition, self._partition.engine.state, self._progress
        assert progress is not None
        command = depart(state, queue, seqs, there, expires_at, self._holders, self._process + 1, partition.now())
        partition.run_now(command)
        progress.moved += len(seqs)
        progress.total = max(progress.total, progress.moved)

    async def _pace(self, there: int) -> None:
        partition = self._partition
        await partition.durable()
        await asyncio.sleep(0)  # others have their turn, also where there was nothing to write
        outbox = partition.engine.state.outboxes[there >> 32]
        while outbox.ready > WINDOW or not partition.has_room():
            await asyncio.sleep(LOOK_S)

    async def _leave(self, queue: Queue, there: int, move: MoveDocument) -> None:
        """Nothing else is done between its last message and this."""
        partition, progress, number = self._partition, self._progress, queue.number
        assert progress is not None
        self._summary.moved_queues += 1
        self._summary.moved_messages += progress.moved
        owner = partition.sessions.owners.get(number, 0)
        baggage = QueueBaggage(totals=queue.totals, rates=queue.rates)
        gone = sorted(self._gone)
        step = MoveStep("end", number, b"", baggage, [], owner, self._is_watched, gone)
        departed = QueueDeparted(number, partition.now(), there, queue_document(queue))
        try:
            await self._ask(move.to, step, self._done(queue, departed))
        except LanewayError as refusal:  # its answer is lost, no more
            log.info("queue %r has left; partition %d has not said that it is there: %s", queue.name, move.to, refusal)

    def _done(self, queue: Queue, *before: Event) -> Iterator[Event]:
        number, now_ms = queue.number, self._partition.now()
        yield from before
        yield DocumentRemoved(now_ms, COLLECTION, str(number))
        yield self._summed(now_ms)
        self._waiting.pop(number, None)
        if self.moving.pop(number, None) is not None and not before:
            self.on_moving(number, None)
        self.frozen.discard(number)
        if before:
            self._partition.queues.left(queue)

    # A queue comes

    def receive(self, sender: int, step: MoveStep) -> int:
        """Each may come twice."""
        partition, state = self._partition, self._partition.engine.state
        key = sender, step.number
        queue = state.arriving.get(key)
        if step.step == "begin":
            if queue is None:
                partition.check_writable(len(step.queue))
                document = msgspec.json.decode(step.queue, type=QueueDocument)
                document.arriving = key
                put = QueuePut(state.next_queue, partition.now(), msgspec.json.encode(document))
                partition.run_now(iter([put]))
                self._gone_from[key] = set()
            return state.arriving[key].number
        if queue is None:  # it went with its virtual host, or this is done
            self._gone_from.pop(key, None)
            return 0
        if step.step == "drop":
            self._gone_from.pop(key, None)
            partition.in_slices(self._drop(queue), _not_answered)
        elif step.step == "tell":
            partition.run_now(self._told(queue, step))
        else:
            self._land(queue, step)
        return queue.number

    def _told(self, queue: Queue, step: MoveStep) -> Iterator[Event]:
        state, now_ms = self._partition.engine.state, self._partition.now()
        if step.baggage.dedups or any(step.baggage.totals) or step.baggage.rates or step.baggage.turns:
            yield QueueTold(queue.number, now_ms, msgspec.msgpack.encode(step.baggage))
        most = self._partition.limits.max_idempotency_keys
        for key, fingerprint, ids, expires_ms in step.keys:
            if expires_ms > now_ms:
                forget_ms = state.keys.crowded_until(most - len(ids))
                document = msgspec.msgpack.encode((key, fingerprint, ids))
                expires_ms = max(expires_ms, state.keys.youngest_ms())
                yield KeyRemembered(queue.number, now_ms, expires_ms, document, forget_ms)

    def _land(self, queue: Queue, step: MoveStep) -> None:
        """It has its name from now on."""
        partition, state = self._partition, self._partition.engine.state
        document, key = _document(queue, queue.placed), queue.arriving
        assert key is not None

        def command() -> Iterator[Event]:
            yield from self._told(queue, step)
            yield QueuePut(queue.number, partition.now(), document)

        partition.run_now(command())
        insort(partition.queues.names, (queue.vhost, queue.name))
        partition.set_timer()
        if step.owner:
            partition.sessions.own(step.owner, queue)
        is_ownerless = queue.settings.exclusive and queue.number not in partition.sessions.owners
        if is_ownerless or (state.world.is_complete and queue.vhost not in state.world.vhosts):
            partition.in_slices(partition.queues.delete_all([queue.number]), _not_answered)
            return
        partition.policies.renew(queue.vhost, queue.name)  # they may have changed meanwhile
        partition.sessions.used(queue)
        if step.is_watched and queue.settings.auto_delete:
            partition.call_later(UNWATCHED_MS, partition.sessions.expire, queue.number)
        for process in self._gone_from.pop(key, set()).union(step.gone):
            self._give_back(queue.number, held_by(state, process + 1).get(queue.number, []))

    def _drop(self, queue: Queue) -> Generator[None, None, None]:
        partition, state = self._partition, self._partition.engine.state
        while state.queues.get(queue.number) is queue and purging.weight(queue) > purging.SLICE:
            yield from partition.queues.purge_all(queue)
            yield
            partition.begin_change(adds=False)
        if state.queues.get(queue.number) is queue:
            partition.run_now(iter([QueueDeleted(queue.number, partition.now(), queue_document(queue))]))


def _document(queue: Queue, placed: bool) -> bytes:
    return msgspec.json.encode(QueueDocument(queue.vhost, queue.name, queue.settings, queue.created_at_ms, placed))


def _not_answered(answer: Any) -> None:
    """Nobody waits for it."""
