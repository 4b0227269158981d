"""Redrives as tasks: dead letters moved in small durable steps, with progress, a rate limit and a way to stop.

A task is kept as a document of the journal, so one that was running when the node stopped goes on at the next start;
what it had moved by then is moved and counted, and the filter finds the rest: ages are those when the task began.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from laneway.broker import peeking
from laneway.broker.values import DeadLetterFilter, RedriveRequest, Task
from laneway.core import burial, commands
from laneway.core.events import DocumentPut
from laneway.core.queue import Queue
from laneway.errors import InvalidInput, LanewayError, LimitExceeded, QueueNotFound, no_task

if TYPE_CHECKING:
    from laneway.broker.partition import Partition

log = logging.getLogger("laneway.broker")

COLLECTION = "tasks"
MAX_RUNNING = 100
MAX_KEPT = 1_000
MAX_RATE = 1_000_000
WAIT_FOR_ROOM_S = 1.0


class Redrives:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._tasks: dict[str, Task] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._begun = 0

    def resume(self) -> None:
        """Take up the tasks that the last stop interrupted."""
        for document in self._partition.documents(COLLECTION).values():
            task = msgspec.json.decode(document, type=Task)
            self._tasks[task.task_id] = task
            if task.state == "running":
                self._launch(task)

    async def stop(self) -> None:
        """Leave running tasks as they are, to be resumed."""
        running = list(self._running.values())
        for job in running:
            job.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def tasks(self) -> list[Task]:
        return sorted(self._tasks.values(), key=lambda t: t.created_at_ms, reverse=True)

    def task(self, task_id: str) -> Task:
        try:
            return self._tasks[task_id]
        except KeyError:
            raise no_task(task_id) from None

    async def origins(self, queue: Queue, wanted: DeadLetterFilter) -> list[str]:
        """The queues to which a redrive without a target would take these dead letters."""
        engine, found = self._partition.engine, dict[int, None]()
        async for batch in peeking.dead_letters(engine, queue, wanted, self._partition.now()):
            found.update(dict.fromkeys([burial.origin_of(engine.state, queue, seq) for seq in batch]))
            await asyncio.sleep(0)
        known = engine.state.world.queues
        return [known[number].name for number in found if number in known]

    async def begin(self, queue: Queue, request: RedriveRequest) -> Task:
        if request.max_per_second is not None and not 1 <= request.max_per_second <= MAX_RATE:
            raise InvalidInput(f"max_per_second is from 1 to {MAX_RATE}", field="max_per_second")
        if request.target is not None:
            commands.find_known(self._partition.engine.state, queue.vhost, request.target)
        if len(self._running) >= MAX_RUNNING:
            raise LimitExceeded(f"{MAX_RUNNING} tasks are running already; try again later")
        if request.filter.message_ids is not None:
            peeking.check_dead_letters(self._partition.engine, queue, request.filter.message_ids)
        now_ms = self._partition.now()
        self._begun += 1
        task_id = f"redrive-{now_ms:x}-{self._begun}{self._suffix()}"
        task = Task(task_id, "redrive", queue.vhost, queue.name, "running", 0, None, 0, now_ms, None, None, request)
        await self._keep(task)
        self._launch(task)
        return task

    def _suffix(self) -> str:
        """Of several partitions each has tasks of its own, and no two have one of the same id."""
        partition = self._partition.engine.state.partition
        return f"-{partition}" if partition else ""

    async def cancel(self, task_id: str) -> Task:
        task = self.task(task_id)
        job = self._running.get(task_id)
        if job is not None:
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            task = self._ended(self._tasks[task_id], "cancelled")
            await self._keep(task)
        return task

    def _launch(self, task: Task) -> None:
        job = asyncio.get_running_loop().create_task(self._run(task.task_id))
        self._running[task.task_id] = job
        job.add_done_callback(lambda _: self._running.pop(task.task_id, None))

    async def _run(self, task_id: str) -> None:
        try:
            await self._redrive(task_id)
            task = self._ended(self._tasks[task_id], "completed")
        except LanewayError as trouble:
            task = self._ended(self._tasks[task_id], "failed", trouble.message)
        except Exception as trouble:
            log.exception("task %s failed", task_id)
            task = self._ended(self._tasks[task_id], "failed", str(trouble))
        try:
            await self._keep(task)
        except LanewayError as trouble:  # stopping, or no space: the next start takes it up again and finds it done
            log.warning("the end of task %s could not be recorded: %s", task_id, trouble)

    async def _redrive(self, task_id: str) -> None:
        partition = self._partition
        task = self._tasks[task_id]
        request = task.request
        queue = partition.find_queue(task.vhost, task.queue)
        matched: list[int] = []
        async for batch in peeking.dead_letters(partition.engine, queue, request.filter, task.created_at_ms):
            matched += self._of_origins(queue, batch, request)
            await asyncio.sleep(0)  # picking may read many records: let others have their turn
        self._note(task_id, matched=task.moved + task.failed + len(matched))
        step = peeking.READ_BATCH if request.max_per_second is None else min(peeking.READ_BATCH, request.max_per_second)
        loop = asyncio.get_running_loop()
        started_s, moved = loop.time(), 0
        for i in range(0, len(matched), step):
            # It adds to the journal, so it waits as publishers do, and until it is known which queues there are.
            while not partition.has_room() or not partition.engine.state.world.is_complete:
                await asyncio.sleep(WAIT_FOR_ROOM_S)
            if partition.find_queue(task.vhost, task.queue) is not queue:
                raise QueueNotFound(f"queue {task.queue!r} was deleted")
            state, target = partition.engine.state, request.target
            whither = None if target is None else commands.find_known(state, task.vhost, target).number
            moved += await partition.redrive_batch(
                queue, matched[i : i + step], whither, partial(self._advance, task_id)
            )
            if request.max_per_second is not None:
                ahead_s = moved / request.max_per_second - (loop.time() - started_s)
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)

    def _of_origins(self, queue: Queue, seqs: list[int], request: RedriveRequest) -> list[int]:
        if request.target is not None or request.origins is None:
            return seqs
        state = self._partition.engine.state
        found = [(seq, state.world.queues.get(burial.origin_of(state, queue, seq))) for seq in seqs]
        return [seq for seq, origin in found if origin is None or origin.name in request.origins]

    def _advance(self, task_id: str, moved: int, failed: int) -> DocumentPut:
        task = self._tasks[task_id]
        task = self._note(task_id, moved=task.moved + moved, failed=task.failed + failed)
        return DocumentPut(self._partition.now(), COLLECTION, task_id, msgspec.json.encode(task))

    def _note(self, task_id: str, **changes: int) -> Task:
        task = self._tasks[task_id] = msgspec.structs.replace(self._tasks[task_id], **changes)
        return task

    def _ended(self, task: Task, state: str, error: str | None = None) -> Task:
        return msgspec.structs.replace(task, state=state, finished_at_ms=self._partition.now(), error=error)

    async def _keep(self, task: Task) -> None:
        """Show how the task stands, and have it in the journal; a new one that cannot be kept is not shown."""
        is_new = task.task_id not in self._tasks
        self._tasks[task.task_id] = task
        try:
            self._partition.put_document(COLLECTION, task.task_id, msgspec.json.encode(task))
            await self._partition.durable()
        except BaseException:
            if is_new:
                del self._tasks[task.task_id]
            raise
        ended = [t for t in reversed(self.tasks()) if t.state != "running"]
        for old in ended[: max(0, len(self._tasks) - MAX_KEPT)]:
            self._tasks.pop(old.task_id, None)
            self._partition.remove_document(COLLECTION, old.task_id)
