"""Requests of an edge that name a queue, or concern all partitions: where each goes, and one answer made of several."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker import interface as i
from laneway.broker.values import ConsumerState, MovesInfo, PlannedMove, QueueDeclared, QueueInfo, QueueMove, Task
from laneway.cluster.following import FollowedQueue
from laneway.core.commands import no_queue
from laneway.core.partitions import local_number, partition_of, queue_id
from laneway.errors import Conflict, InvalidInput, LanewayError, QueueElsewhere, QueueNotFound

if TYPE_CHECKING:
    from laneway.cluster.edge import Done, Edge, WhenKnown

#: A partition that says that a queue is elsewhere knows more than this process does. So often it is asked again, and
#: so long in between.
LOOKS = 40
LOOK_S = 0.05
#: The longest wait for what follows from a deletion in other partitions.
FOLLOW_S = 2.0

#: They change the topology or documents: their answers leave when every process has the change.
CHANGES = {
    i.DeclareQueue,
    i.PutQueue,
    i.ChangeQueue,
    i.DeleteQueue,
    i.DeclareExchange,
    i.DeleteExchange,
    i.Bind,
    i.Unbind,
    i.CreateVhost,
    i.DeleteVhost,
    i.PutDocument,
    i.RemoveDocument,
    i.Sync,
}
BY_NAME = (
    i.DeclareQueue,
    i.PutQueue,
    i.ChangeQueue,
    i.DeleteQueue,
    i.PurgeQueue,
    i.DescribeQueue,
    i.Peek,
    i.DeleteDeadLetters,
    i.FindOrigins,
    i.StartRedrive,
)
_OF_THE_FIRST = (
    i.DeclareExchange,
    i.DeleteExchange,
    i.Bind,
    i.Unbind,
    i.CreateVhost,
    i.DeleteVhost,
    i.PutDocument,
    i.RemoveDocument,
    # What a producer committed last is known in one place.
    i.StagePart,
    i.GiveUpStage,
    i.DescribeStage,
    i.CommitBatch,
    i.ListProducers,
    i.DescribeProducer,
    i.ForgetProducer,
)
_BY_PARTITION = (
    i.DescribeHistory,
    i.FindPlace,
    i.AdvancePlace,
    i.ReadHistory,
    i.NameQueues,
    i.ListCursors,
    i.GetCursor,
    i.PutCursor,
    i.DeleteCursor,
)
#: What one partition has, all front ends say.
_LOW = ("disk_full", "memory_low")


class Overall:
    def __init__(self, edge: Edge, barriers: Mapping[int, WhenKnown]) -> None:
        self._edge = edge
        self._barriers = barriers
        self.takers: dict[type, Callable[[Any, Done], int]] = {
            **dict.fromkeys(BY_NAME, self._by_name),
            **dict.fromkeys(_OF_THE_FIRST, partial(self._to, 0)),
            **dict.fromkeys(_BY_PARTITION, self._by_partition),
            i.DeleteQueue: self._delete_queue,
            i.CreateVhost: self._create_vhost,
            i.DeleteVhost: self._delete_vhost,
            i.Sync: self._sync,
            i.ListConsumers: self._list_consumers,
            i.ListTasks: self._list_tasks,
            i.GetTask: self._by_task,
            i.CancelTask: self._by_task,
            i.PlanMoves: self._plan_moves,
            i.StartMoves: self._start_moves,
            i.ListMoves: self._list_moves,
            i.CancelMoves: self._cancel_moves,
        }

    @property
    def _count(self) -> int:
        return self._edge.limits.partition_count

    def health(self, healths: Sequence[dict[str, object]], led: Sequence[int]) -> dict[str, object]:
        """Of this process, and of what it leads. A partition elsewhere that takes no more keeps publishers from all of
        them; one that is not there keeps nobody from the others."""
        own = [healths[partition] for partition in led] or [healths[0]]
        states = [health["state"] for health in own] + [h["state"] for h in healths if h["state"] in _LOW]
        return {
            **own[0],
            "state": next((state for state in states if state != "ready"), "ready"),
            "queues": len(self._edge.model.by_name),
            "partitions": {partition: health["state"] for partition, health in enumerate(healths)},
        }

    # To one partition

    def _to(self, partition: int, request: i.Request, done: Done) -> int:
        if type(request) in CHANGES:
            done = partial(self._followed, partition, done)
        return self._edge.to_partition(partition, request, done)

    def _followed(self, partition: int, done: Done, answer: Any) -> None:
        barrier = self._barriers.get(partition)
        if barrier is None or isinstance(answer, LanewayError):
            done(answer)
        else:
            barrier(partial(done, answer))

    def _by_partition(self, request: Any, done: Done) -> int:
        if not 0 <= request.partition < self._count:
            done(InvalidInput(f"there is no partition {request.partition}, there are {self._count}", field="partition"))
            return 0
        return self._edge.to_partition(request.partition, request, done)

    def partition_of(self, vhost: str, name: str) -> int:
        known = self._edge.model.by_name.get((vhost, name))
        return self._edge.model.home(vhost, name) if known is None else partition_of(known.number)

    def _by_name(self, request: Any, done: Done) -> int:
        known, spreading = self._edge.model.by_name.get((request.vhost, request.name)), self._edge.spreading
        if known is not None and known.number in spreading.queues:
            spreading.after(known.number, partial(self._look_for, request, done))
            return 0
        return self._look_for(request, done)

    def _look_for(self, request: Any, done: Done, looks: int = 0) -> int:
        partition = self.partition_of(request.vhost, request.name)
        session = getattr(request, "session", 0)
        if session:
            self._edge.visit(session, partition)

        def answered(answer: Any) -> None:
            if isinstance(answer, QueueElsewhere) and looks < LOOKS:
                call = partial(self._look_for, request, done, looks + 1)
                asyncio.get_running_loop().call_later(LOOK_S if looks else 0, call)
            elif (
                isinstance(answer, QueueNotFound)
                and looks < LOOKS
                and self.partition_of(request.vhost, request.name) != partition
            ):
                self._look_for(request, done, looks + 1)
            else:
                done(_with_ids(partition, answer))

        return self._to(partition, request, answered)

    def _by_task(self, request: Any, done: Done) -> int:
        """The partition that began a task is in its id."""
        parts = request.task_id.split("-")
        partition = int(parts[3]) if len(parts) == 4 and parts[3].isdecimal() and len(parts[3]) < 6 else 0
        return self._edge.to_partition(partition if partition < self._count else 0, request, done)

    # What has consequences in other partitions

    def _delete_queue(self, request: i.DeleteQueue, done: Done) -> int:
        """The first partition removes the bindings that led there."""
        model = self._edge.model
        known = model.by_name.get((request.vhost, request.name))

        def answered(answer: Any) -> None:
            if isinstance(answer, LanewayError) or known is None or not partition_of(known.number):
                done(answer)
            else:
                self._when(partial(self._is_unbound, known.vhost, known.name, known.number), partial(done, answer))

        return self._by_name(request, answered)

    def _is_unbound(self, vhost: str, name: str, number: int) -> bool:
        routing = self._edge.model.routing
        return all(routing.target(vhost, binding) != number for binding in routing.into(vhost, "queue", name))

    def _create_vhost(self, request: i.CreateVhost, done: Done) -> int:
        model = self._edge.model
        if request.name not in model.vhosts and model.has_queues(request.name):
            being = f"virtual host {request.name!r} is being deleted; create it again when it is gone"
            done(Conflict(being, field="vhost"))
            return 0
        return self._to(0, request, done)

    def _delete_vhost(self, request: i.DeleteVhost, done: Done) -> int:
        """Each partition deletes its own queues."""
        model = self._edge.model

        def answered(answer: Any) -> None:
            if isinstance(answer, LanewayError):
                done(answer)
            else:
                self._when(lambda: not model.has_queues(request.name), partial(done, answer))

        return self._to(0, request, answered)

    def _when(self, condition: Callable[[], bool], call: Callable[[], None]) -> None:
        if condition():
            call()
            return
        loop = asyncio.get_running_loop()

        def ripe() -> None:
            timer.cancel()
            call()

        def late() -> None:
            give_up()
            call()

        give_up = self._edge.model.when(condition, ripe)
        timer = loop.call_later(FOLLOW_S, late)

    # To all of them

    def _all(self, request: i.Request, made: Callable[[list[Any]], Any], done: Done) -> int:
        answers: list[Any] = [None] * self._count
        missing = self._count

        def answered(partition: int, answer: Any) -> None:
            nonlocal missing
            answers[partition] = answer
            missing -= 1
            if not missing:
                refusal = next((answer for answer in answers if isinstance(answer, LanewayError)), None)
                done(made(answers) if refusal is None else refusal)

        for partition in range(self._count):
            self._to(partition, request, partial(answered, partition))
        return 0

    def _sync(self, request: i.Sync, done: Done) -> int:
        return self._all(request, lambda answers: None, done)

    def _list_tasks(self, request: i.ListTasks, done: Done) -> int:
        def made(answers: list[list[Task]]) -> list[Task]:
            return sorted((task for tasks in answers for task in tasks), key=attrgetter("created_at_ms"), reverse=True)

        return self._all(request, made, done)

    def _plan_moves(self, r: i.PlanMoves, done: Done) -> int:
        """From the copy of the topology; so many names in one turn of the loop."""
        model = self._edge.model
        if r.to is not None and not 0 <= r.to < self._count:
            done(InvalidInput(f"there is no partition {r.to}, there are {self._count}", field="to"))
            return 0
        if r.name is not None:
            queue = model.by_name.get((r.vhost, r.name))
            done(no_queue(r.vhost, r.name) if queue is None else ([*self._planned(queue, r.to, is_all=True)], None))
            return 0
        start = bisect_right(model.names, r.after)
        names = model.names[start : start + r.limit]
        moves = [m for name in names for m in self._planned(model.by_name[name], None, is_all=r.is_all)]
        done((moves, names[-1] if len(names) == r.limit else None))
        return 0

    def _planned(self, queue: FollowedQueue, to: int | None, *, is_all: bool) -> Iterator[PlannedMove]:
        home, here = self._edge.model.home(queue.vhost, queue.name), partition_of(queue.number)
        there = home if to is None else to
        placed = there != home
        if (there != here or (to is not None and placed != queue.placed)) and (is_all or not queue.placed):
            yield PlannedMove(queue.vhost, queue.name, here, there, placed)

    def _start_moves(self, request: i.StartMoves, done: Done) -> int:
        """Each partition is told of its own queues."""
        shares: dict[int, list[QueueMove]] = {}
        for move in request.moves:
            if not 0 <= move.to < self._count:
                done(InvalidInput(f"there is no partition {move.to}, there are {self._count}", field="to"))
                return 0
            shares.setdefault(self.partition_of(move.vhost, move.name), []).append(move)
        answers: list[Any] = []

        def answered(answer: Any) -> None:
            answers.append(answer)
            if len(answers) >= len(shares):
                done(next((a for a in answers if isinstance(a, LanewayError)), None) or sum(answers))

        for partition, moves in shares.items():
            self._to(partition, i.StartMoves(moves), answered)
        if not shares:
            done(0)
        return 0

    def _list_moves(self, request: i.ListMoves, done: Done) -> int:
        def made(answers: list[list[MovesInfo]]) -> list[MovesInfo]:
            return [one for answer in answers for one in answer]

        return self._all(request, made, done)

    def _cancel_moves(self, request: i.CancelMoves, done: Done) -> int:
        return self._all(request, sum, done)

    def _list_consumers(self, request: i.ListConsumers, done: Done) -> int:
        if request.session is None and request.queue is not None:
            partition = partition_of(request.queue)
            numbered = msgspec.structs.replace(request, queue=local_number(request.queue))
            return self._edge.to_partition(partition, numbered, lambda answer: done(_with_ids(partition, answer)))

        def made(answers: list[list[ConsumerState]]) -> list[ConsumerState]:
            found = [one for partition, answer in enumerate(answers) for one in _with_ids(partition, answer)]
            return sorted(found, key=attrgetter("session", "consumer"))[: request.limit]

        return self._all(request, made, done)


def _with_ids(partition: int, answer: Any) -> Any:
    """An answer that says numbers of queues, with ids."""
    if not partition:
        return answer
    if isinstance(answer, QueueInfo):
        return msgspec.structs.replace(answer, queue=queue_id(partition, answer.queue))
    if isinstance(answer, QueueDeclared):
        return msgspec.structs.replace(answer, info=_with_ids(partition, answer.info))
    if isinstance(answer, list) and answer and isinstance(answer[0], ConsumerState):
        return [msgspec.structs.replace(one, queue=queue_id(partition, one.queue)) for one in answer]
    return answer
