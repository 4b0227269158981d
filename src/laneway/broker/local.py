"""The broker of a node with one partition of its own: takes requests, checks what can be told from them alone, and puts
them into the partition's inbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from itertools import chain
from typing import Any

from laneway.broker import interface as i
from laneway.broker.inbox import Entry, tell
from laneway.broker.partition import Partition
from laneway.broker.parts import check_atomic, is_long, parts, placed, stored_bytes, stored_bytes_in_parts
from laneway.broker.topology import Change, Owned, PartitionModel, StandsStill, TopologyModel, TopologyView
from laneway.broker.values import Arrival, BatchOutcome, HistoryInfo, PlannedMove, QueueName, Task
from laneway.core import lease_commands
from laneway.core.deliveries import Deliveries
from laneway.core.departing import current_tokens
from laneway.core.digits import SESSION_LEASE, own_tokens
from laneway.core.partitions import partition_of
from laneway.errors import InvalidInput, LanewayError, LimitExceeded

MAX_BATCH = 10_000
MAX_WAIT_MS = 20_000
#: What is asked of the first partition alone: the others keep queues and no more.
KEPT_BY_THE_FIRST = {
    i.DeclareExchange,
    i.DeleteExchange,
    i.Bind,
    i.Unbind,
    i.CreateVhost,
    i.DeleteVhost,
    i.PutDocument,
    i.RemoveDocument,
}
IN_PARTS = -1  # instead of the number of a request: it is not carried out yet, and others may overtake it

Done = Callable[[Any], None]

log = logging.getLogger("laneway.broker")


class LocalBroker:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.limits = partition.limits
        self.model: TopologyModel = PartitionModel(partition)
        self.topology: i.Topology = TopologyView(self.model)
        self.now = partition.now
        self.health = partition.health
        self.open_session = partition.sessions.open
        self.call_soon = partition.call_soon
        self._naming = asyncio.Lock()
        self._asking: set[asyncio.Task[None]] = set()
        p = partition
        # Frequent: merged with their neighbours in the inbox.
        self._frequent: dict[type, Callable[[Any, Done], int | None]] = {
            i.Publish: self._publish,
            i.Lease: self._lease,
            i.Settle: self._settle,
            i.Ack: self._ack,
            i.SettleHeld: self._settle_held,
            i.Transact: self._transact,
            i.Spread: self._spread,
            i.Receive: self._receive,
        }
        # Carried out at once, behind all that came before; answered when durable.
        self._changes: dict[type, Callable[[Any], Any]] = {
            i.Sync: lambda r: None,
            i.LeaseAgain: self._lease_again,
            i.Unsubscribe: lambda r: p.sessions.unsubscribe(r.session, r.consumer),
            i.DeclareQueue: lambda r: p.queues.declare(r.vhost, r.name, r.settings, r.session),
            i.PutQueue: lambda r: p.queues.put(r.vhost, r.name, r.settings),
            i.ChangeQueue: lambda r: p.queues.change(r.vhost, r.name, r.changes),
            i.DeleteQueue: self._delete_queue,
            i.PurgeQueue: lambda r: p.queues.purge(r.vhost, r.name, r.session, leased=r.leased),
            i.DeclareExchange: lambda r: p.exchanges.declare(r.vhost, r.name, r.settings),
            i.DeleteExchange: lambda r: p.exchanges.delete(r.vhost, r.name, if_unused=r.if_unused),
            i.Bind: lambda r: p.exchanges.bind(r.vhost, r.binding, r.session),
            i.Unbind: lambda r: p.exchanges.unbind(r.vhost, r.binding, r.session),
            i.CreateVhost: lambda r: p.vhosts.create(r.name),
            i.PutDocument: lambda r: p.put_document(r.collection, r.key, r.document, r.seen),
            i.RemoveDocument: lambda r: p.remove_document(r.collection, r.key, r.seen),
            i.Reserve: lambda r: p.crossing.reserve(r),
            i.StartMoves: lambda r: p.moves.plan(r),
            i.CancelMoves: lambda r: p.moves.cancel(),
        }
        # The same, but answered at once: they promise nothing that could be lost.
        self._looks: dict[type, Callable[[Any], Any]] = {
            i.Subscribe: lambda r: p.sessions.subscribe(r),
            i.LimitPool: lambda r: p.sessions.limit_pool(r.session, r.pool, r.limit),
            i.Flow: lambda r: p.sessions.pause(r.session, r.paused),
            i.ListConsumers: lambda r: p.sessions.consumers(r),
            i.PlanMoves: self._plan_moves,
            i.ListMoves: lambda r: [p.moves.info()],
            i.Quiet: lambda r: p.moves.quiet(r.queue, r.process),
            i.EndSession: lambda r: p.sessions.end(r.session),
            i.DescribeQueue: lambda r: p.queues.stats(r.vhost, r.name),
            i.ListTasks: self._list_tasks,
            i.GetTask: lambda r: p.redrives.task(r.task_id),
            i.GiveUpStage: lambda r: p.producers.give_up(r.producer, r.stage),
            i.DescribeStage: lambda r: p.producers.describe_stage(r.producer, r.stage, r.parts),
            i.ListProducers: lambda r: p.producers.list(),
            i.DescribeProducer: lambda r: p.producers.info(r.producer),
            i.ListCursors: lambda r: p.cursors.all(),
            i.GetCursor: lambda r: p.cursors.get(r.name),
        }
        # Those that take their time: they wait for something between their steps.
        self._slow: dict[type, Callable[[Any], Awaitable[Any]]] = {
            i.DeleteVhost: lambda r: p.vhosts.delete(r.name),
            i.Peek: lambda r: p.peek(r.vhost, r.name, r.query),
            i.DeleteDeadLetters: lambda r: p.delete_dead_letters(r.vhost, r.name, r.filter),
            i.FindOrigins: lambda r: p.redrives.origins(p.open_queue(r.vhost, r.name), r.filter),
            i.StartRedrive: lambda r: p.redrives.begin(p.open_queue(r.vhost, r.name), r.request),
            i.CancelTask: lambda r: p.redrives.cancel(r.task_id),
            i.StagePart: lambda r: p.producers.stage(r.producer, r.stage, r.part, r.messages, r.targets, r.owner),
            i.CommitBatch: self._commit_batch,
            i.ForgetProducer: lambda r: p.producers.forget(r.producer),
            i.PutCursor: lambda r: p.cursors.put(r.name, r.position, rewind=r.rewind),
            i.DeleteCursor: lambda r: p.cursors.delete(r.name),
            i.DescribeHistory: self._describe_history,
            i.FindPlace: lambda r: asyncio.to_thread(p.engine.journal.history.place, r.position),
            i.AdvancePlace: lambda r: asyncio.to_thread(p.engine.journal.history.advance, r.place, r.max_events),
            i.ReadHistory: lambda r: asyncio.to_thread(p.engine.journal.history.read, r.segment, r.offset, r.size),
            i.NameQueues: self._name_queues,
        }
        partition.carry_out = self._carry_out
        if partition.engine.state.partition:
            for table in (self._changes, self._slow):
                table.update(dict.fromkeys(set(table) & KEPT_BY_THE_FIRST, self._refuse))

    # For processes that follow this one (cluster/serving.py)

    def follow(self, call: Callable[[Change], None]) -> None:
        """Have this called with every change of the topology, before whoever caused it is answered."""
        self._partition.engine.state.follow(call)
        before = self._partition.sessions.on_owned

        def owned(queue: i.QueueId, session: i.SessionId) -> None:
            before(queue, session)
            call(Owned(queue, session))

        self._partition.sessions.on_owned = owned
        moving_before = self._partition.moves.on_moving

        def moving(queue: i.QueueId, to: int | None) -> None:
            moving_before(queue, to)
            call(StandsStill(queue, to))

        self._partition.moves.on_moving = moving

    def unbind_gone(self, vhost: str, name: str) -> None:
        """Remove the bindings to queues of this name that other partitions had and have no more."""
        self._partition.exchanges.unbind_gone(vhost, name)

    def bound_to_gone(self) -> set[tuple[str, str]]:
        """Virtual host and name of the queues that other partitions had and have no more, and bindings lead to."""
        state = self._partition.engine.state
        own, queues = state.partition, state.world.queues
        return {
            (exchange.vhost, exchange.bindings[key].destination)
            for there in state.topology.exchanges.values()
            for exchange in there.values()
            for key, queue in exchange.ids.items()
            if queue not in queues and partition_of(queue) != own
        }

    def delete_queues_in(self, is_gone: Callable[[str], bool], done: Callable[[object], None]) -> None:
        """Delete the queues of virtual hosts that are gone, in slices."""
        queues = self._partition.engine.state.by_name
        numbers = [queue.number for (vhost, _), queue in queues.items() if is_gone(vhost)]
        if numbers:
            self._partition.in_slices(self._delete_all(numbers), done)

    def _delete_all(self, numbers: list[int]) -> Generator[None, None, None]:
        self._partition.begin_change(adds=False)
        yield from self._partition.queues.delete_all(numbers)

    def when_durable(self, call: Callable[[Any], None]) -> None:
        """Have this called once everything done so far is durable; with an error if that cannot be."""
        self._partition.when_durable(call, None)

    def rebind(self, vhost: str, name: str) -> None:
        """The queue of this name has moved: bindings that lead to where it was lead to where it is."""
        self._partition.exchanges.rebind(vhost, name)

    def find_holders(self, call: Callable[[int], dict[int, int]]) -> None:
        """Have this called for a queue: by lease id, the process (plus 1) whose session has it."""
        self._partition.moves.holders = call

    def process_gone(self, process: int) -> None:
        """The clients of a process are gone: what they held goes back, also what they were given elsewhere."""
        self._partition.moves.process_gone(process)

    def is_carried(self, lease: int) -> bool:
        """Whether a lease was given in another partition."""
        return lease in self._partition.engine.state.carried

    def next_lease(self) -> int:
        """What a session is handed from now on has lease ids that are not below this."""
        return self._partition.engine.state.next_lease | SESSION_LEASE

    def held(self, number: i.QueueId, seqs: Sequence[int], leases: Sequence[int]) -> Sequence[bool]:
        """Which of these are still leased so."""
        held = lease_commands.still_held(self._partition.engine.state, [(number, len(seqs))], seqs, leases)
        return [True] * len(seqs) if held is None else held

    # Taking requests

    def send(self, request: i.Request, done: Done) -> int:
        kind = type(request)
        frequent = self._frequent.get(kind)
        if frequent is not None:
            try:
                return frequent(request, done) or 0
            except LanewayError as refusal:
                self._note_refusal(request, refusal)
                tell(done, refusal)
        elif kind in self._slow:
            self._begin(self.ask(request), done)
        elif kind in self._changes:
            self._partition.inbox.add_now(Entry(request, lambda answer: self._when_durable(done, answer)))
        else:
            self._partition.inbox.add_now(Entry(request, done))
        return 0

    def _note_refusal(self, request: i.Request, refusal: LanewayError) -> None:
        count = len(request.messages.bodies) if isinstance(request, i.Publish | i.Spread) else 1
        self._partition.meter.refused(getattr(request, "protocol", ""), refusal.code, count)

    def _begin(self, work: Coroutine[Any, Any, Any], done: Done) -> None:
        task = asyncio.ensure_future(self._answer(work, done))
        self._asking.add(task)  # nobody else holds it
        task.add_done_callback(self._asking.discard)

    async def _answer(self, work: Awaitable[Any], done: Done) -> None:
        try:
            answer = await work
        except LanewayError as refusal:
            answer = refusal
        except Exception:
            log.exception("a request could not be carried out")
            answer = LanewayError("something went wrong inside the server; its log says what")
        tell(done, answer)

    async def ask(self, request: i.Request) -> Any:
        slow = self._slow.get(type(request))
        if slow is not None:
            return await slow(request)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(given: Any) -> None:
            if not answer.done():  # whoever asked may be gone
                answer.set_result(given)

        if type(request) in self._frequent:
            number = self.send(request, done)
            try:
                given = await answer
            except asyncio.CancelledError:
                self.withdraw(number)
                raise
        else:
            self._partition.inbox.add_now(Entry(request, done))
            given = await answer
        if isinstance(given, LanewayError):
            raise given
        if type(request) in self._changes:
            await self._partition.durable()
        return given

    def withdraw(self, number: int, *, answer: bool = False) -> None:
        self._partition.waiting.withdraw(number, answer=answer)

    def _carry_out(self, request: i.Request) -> Any:
        kind = type(request)
        return (self._changes.get(kind) or self._looks[kind])(request)

    def _when_durable(self, done: Done, answer: Any) -> None:
        if isinstance(answer, LanewayError):
            done(answer)
        else:
            self._partition.when_durable(done, answer)

    # The frequent ones

    def _publish(self, request: i.Publish, done: Done) -> int:
        partition, targets, count = self._partition, request.targets, len(request.messages.bodies)
        size_bytes = stored_bytes(request)
        if partition.is_memory_short:
            partition.check_memory()
        partition.check_writable(size_bytes)
        if not 1 <= count <= MAX_BATCH:
            raise InvalidInput(f"a batch has 1 to {MAX_BATCH} messages, not {count}")
        if request.key is not None:
            if not self.limits.max_idempotency_keys:
                raise LimitExceeded("this server remembers no idempotency keys; publish without one")
            if isinstance(targets, list) and targets.count(targets[0]) != len(targets):
                raise InvalidInput("a batch with an idempotency key goes to the same queues as a whole")
        if (type(targets) is list or len(targets) != 1) and is_long(targets, count):
            partition.check_writable(stored_bytes_in_parts(request))
            self._begin(self._publish_in_parts(request), done)
            return IN_PARTS
        partition.inbox.add(Entry(request, done), size_bytes)
        return 0

    async def _publish_in_parts(self, request: i.Publish) -> list[Arrival]:
        """One after the other, each in a turn of its own and durable before the next. Others may have used the room
        that there was when it began: what there is none for any more is refused, like any other publish."""
        given = request.targets
        queues = set(chain.from_iterable(given)) if isinstance(given, list) else set(given)
        with self._partition.moves.in_parts(queues):
            return await self._publish_parts(request)

    async def _publish_parts(self, request: i.Publish) -> list[Arrival]:
        arrivals: list[Arrival] = []
        for part, places in parts(request):
            size_bytes = stored_bytes(part)
            try:
                self._partition.check_writable(size_bytes)
            except LanewayError as refusal:
                arrivals += placed(refusal, part, places)
                continue
            answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._partition.inbox.add(Entry(part, answer.set_result), size_bytes)
            arrivals += placed(await answer, part, places)
        return arrivals

    def _transact(self, request: i.Transact, done: Done) -> None:
        """Whether the disk has room is asked once, for all of it: it is all or nothing. One that only settles makes
        room."""
        size_bytes = 0
        if request.messages.bodies:
            check_atomic(request.targets, len(request.messages.bodies))
            size_bytes = stored_bytes(request)
            self._partition.check_memory()
            self._partition.check_writable(size_bytes)
        else:
            self._partition.check_open()
        self._partition.inbox.add(Entry(request, done), size_bytes)

    def _spread(self, request: i.Spread, done: Done) -> None:
        partition, size_bytes = self._partition, 0
        partition.crossing.check(request)
        if request.messages.bodies:
            check_atomic(request.targets, len(request.messages.bodies))
            size_bytes = stored_bytes(request)
            partition.check_memory()
            partition.check_writable(size_bytes)
        else:
            partition.check_open()
        partition.inbox.add(Entry(request, done), size_bytes)

    def _receive(self, request: i.Receive, done: Done) -> None:
        self._partition.check_open()
        self._partition.inbox.add(Entry(request, done))

    def _lease(self, request: i.Lease, done: Done) -> int:
        partition = self._partition
        partition.check_open()
        queue = partition.find_number(request.queue)
        if request.session:
            partition.inbox.add_now(Entry(request, done))
            return 0
        lease_commands.check_lease(request.lease_ms, request.consumer)
        partition.check_owner(queue)
        if not 1 <= request.max_messages <= MAX_BATCH:
            raise InvalidInput(
                f"max_messages is from 1 to {MAX_BATCH}, not {request.max_messages}", field="max_messages"
            )
        if not 0 <= request.wait_ms <= MAX_WAIT_MS:
            raise InvalidInput(
                f"a wait is from 0 to {MAX_WAIT_MS // 1000} seconds, not {request.wait_ms / 1000:g}", field="wait_ms"
            )
        if queue.settings.expires_ms is not None:
            partition.sessions.used(queue)
        waiter = partition.waiting.new(request, done)
        partition.inbox.add_soon(Entry(waiter, waiter.fail))
        return waiter.number

    def _settle(self, request: i.Settle, done: Done) -> None:
        self._check_settling(request.queue, len(request.settlements))
        carried = self._partition.engine.state.carried
        for settlement in request.settlements:
            (settlement.token,) = own_tokens((settlement.token,), request.account)
            if carried:
                (settlement.token,) = current_tokens(carried, (settlement.token,))
        self._partition.inbox.add(Entry(request, done, self._partition.now()))

    def _ack(self, request: i.Ack, done: Done) -> None:
        self._check_settling(request.queue, len(request.tokens))
        request.tokens = own_tokens(request.tokens, request.account)
        carried = self._partition.engine.state.carried
        if carried:
            request.tokens = current_tokens(carried, request.tokens)
        self._partition.inbox.add(Entry(request, done, self._partition.now()))

    def _check_settling(self, queue: i.QueueId, count: int) -> None:
        self._partition.check_open()
        if not 1 <= count <= MAX_BATCH:
            raise InvalidInput(f"a batch has 1 to {MAX_BATCH} entries, not {count}")
        self._partition.check_owner(self._partition.find_number(queue))

    def _settle_held(self, request: i.SettleHeld, done: Done) -> None:
        """What is given back or rejected others may have, so that is done in this turn. Credit counts at once."""
        inbox = self._partition.inbox
        if request.action == "set_aside":
            pass  # credit is all that changes
        elif request.action == "ack":
            inbox.add_later(Entry(request, done))
        else:
            inbox.add_soon(Entry(request, done))
        self._partition.sessions.settled(request)

    # Others that are more than one call

    def _refuse(self, request: i.Request) -> Any:
        raise InvalidInput(f"{type(request).__name__} is for the first partition, which keeps that")

    def _lease_again(self, request: i.LeaseAgain) -> Deliveries:
        partition = self._partition
        partition.check_open()
        queue = partition.find_number(request.queue)
        partition.tick_if_due()
        tokens = current_tokens(partition.engine.state.carried, request.tokens)
        return partition.lease_again(queue, tokens, request.deadline_ms, request.lease_ms)

    def _plan_moves(self, r: i.PlanMoves) -> tuple[list[PlannedMove], None]:
        """There is no other partition."""
        if r.name is not None:
            self._partition.find_queue(r.vhost, r.name)
        if r.to:
            raise InvalidInput(f"there is no partition {r.to}, there is one", field="to")
        return [], None

    def _delete_queue(self, r: i.DeleteQueue) -> Generator[None, None, int]:
        return self._partition.queues.delete(
            r.vhost, r.name, r.session, if_empty=r.if_empty, if_none_ready=r.if_none_ready, if_unused=r.if_unused
        )

    def _list_tasks(self, request: i.ListTasks) -> list[Task]:
        return [
            task
            for task in self._partition.redrives.tasks()
            if request.vhost in (None, task.vhost) and request.queue in (None, task.queue)
        ]

    async def _commit_batch(self, r: i.CommitBatch) -> BatchOutcome:
        outcome = await self._partition.producers.commit(
            r.producer, r.batch, r.stage, r.parts, r.owner, temporary=r.temporary, mandatory=r.mandatory
        )
        if not outcome.already:
            self._partition.meter.messages[i.HTTP, "publish"] += outcome.published
        return outcome

    async def _describe_history(self, request: i.DescribeHistory) -> HistoryInfo:
        engine = self._partition.engine
        history = engine.journal.history
        named_position, end = history.named_position, history.end()
        segments = await asyncio.to_thread(history.extents)
        first = len(segments) - 1
        while first > 0 and segments[first - 1].number + 1 == segments[first].number:
            first -= 1
        return HistoryInfo(
            history.store(),
            engine.state.tag,
            segments[first].first_position if segments else end.position,
            end,
            named_position,
            segments,
            self._partition.cursors.alarms(),
        )

    async def _name_queues(self, request: i.NameQueues) -> dict[int, QueueName]:
        async with self._naming:
            return await asyncio.to_thread(self._partition.engine.journal.history.catalogue)
