"""Message move tasks: dead letters back to where they came from, which Laneway calls a redrive."""

from __future__ import annotations

import base64
import binascii

from laneway.broker.interface import Broker, CancelTask, FindOrigins, GetTask, ListTasks, StartRedrive
from laneway.broker.values import DeadLetterFilter, RedriveRequest, Task
from laneway.errors import TaskNotFound
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.errors import SqsError, invalid, value_invalid
from laneway.frontends.sqs.queues import queues_of

MOST_A_SECOND = 500
MOST_LISTED = 10


class Moving:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topology = broker.topology

    def _source(self, ask: Ask, arn: str) -> str:
        name = ask.queue_of_arn(arn)
        if name is None:
            raise value_invalid(arn, "SourceArn", "It is no queue of this account and region.")
        ask.check(name, "configure")
        if self._topology.queue(ask.caller.vhost, name) is None:
            raise SqsError(
                "ResourceNotFoundException",
                "The resource that you specified for the SourceArn parameter doesn't exist.",
            )
        return name

    async def start(self, ask: Ask, asked: w.StartMessageMoveTask) -> w.TaskHandleResult:
        name = self._source(ask, asked.SourceArn)
        async for info in queues_of(self._topology, ask.caller.vhost):
            if info.settings.dead_letter_queue == name:
                break
        else:
            raise invalid("Source queue must be configured as a Dead Letter Queue.")
        target = None
        if asked.DestinationArn is not None:
            target = ask.queue_of_arn(asked.DestinationArn)
            if target is not None:
                ask.check(target, "write")
            if target is None or self._topology.queue(ask.caller.vhost, target) is None:
                raise SqsError(
                    "ResourceNotFoundException",
                    "The resource that you specified for the DestinationArn parameter doesn't exist.",
                )
        rate = asked.MaxNumberOfMessagesPerSecond
        if rate is not None and not 1 <= rate <= MOST_A_SECOND:
            raise value_invalid(rate, "MaxNumberOfMessagesPerSecond", f"Must be from 1 to {MOST_A_SECOND}.")
        if any(task.state == "running" for task in await self._tasks(ask, name)):
            raise SqsError(
                "UnsupportedOperation",
                "There is already a task running. Only one active task is allowed for a source queue arn at a given "
                "time.",
            )
        origins = None if target is not None else await self._origins(ask, name)
        request = RedriveRequest(target=target, max_per_second=rate, origins=origins)
        redrive = StartRedrive(ask.caller.vhost, name, request)
        return w.TaskHandleResult(TaskHandle=_handle(await self._broker.ask(redrive)))

    async def _origins(self, ask: Ask, name: str) -> list[str] | None:
        """Where they came from, if the caller may write there; None if it may everywhere."""
        access, account, vhost = ask.caller.access, ask.caller.account, ask.caller.vhost
        if access.may_everywhere(account):
            return None
        origins: list[str] = await self._broker.ask(FindOrigins(vhost, name, DeadLetterFilter()))
        if not all(access.allowed(account, vhost, origin, "write") for origin in origins):
            raise SqsError(
                "AccessDenied",
                "Some of these messages came from queues that you are not authorized to perform: sqs:sendmessage on. "
                "Name a DestinationArn.",
            )
        return origins

    async def cancel(self, ask: Ask, asked: w.CancelMessageMoveTask) -> w.CancelMessageMoveTaskResult:
        task = await self._task(asked.TaskHandle)
        access, account = ask.caller.access, ask.caller.account
        if task is None or task.vhost != ask.caller.vhost or not access.may_see(account, task.vhost, task.queue):
            raise SqsError("ResourceNotFoundException", "Task does not exist.")
        ask.check(task.queue, "configure")
        if task.state != "running":
            raise SqsError("UnsupportedOperation", "Only active tasks can be cancelled.")
        task = await self._broker.ask(CancelTask(task.task_id))
        return w.CancelMessageMoveTaskResult(ApproximateNumberOfMessagesMoved=task.moved)

    async def list_tasks(self, ask: Ask, asked: w.ListMessageMoveTasks) -> w.ListMessageMoveTasksResult:
        name = self._source(ask, asked.SourceArn)
        most = 1 if asked.MaxResults is None else asked.MaxResults
        if not 1 <= most <= MOST_LISTED:
            raise value_invalid(most, "MaxResults", f"Must be from 1 to {MOST_LISTED}.")
        tasks = (await self._tasks(ask, name))[:most]
        return w.ListMessageMoveTasksResult(Results=[_told(ask, task) for task in tasks])

    async def _tasks(self, ask: Ask, name: str) -> list[Task]:
        tasks: list[Task] = await self._broker.ask(ListTasks(ask.caller.vhost, name))
        return tasks

    async def _task(self, handle: str) -> Task | None:
        try:
            task_id = base64.urlsafe_b64decode(handle.encode("ascii")).decode()
            task: Task = await self._broker.ask(GetTask(task_id))
        except (TaskNotFound, binascii.Error, UnicodeError, ValueError):
            return None
        return task


def _handle(task: Task) -> str:
    return base64.urlsafe_b64encode(task.task_id.encode()).decode()


def _told(ask: Ask, task: Task) -> w.MoveTask:
    return w.MoveTask(
        TaskHandle=_handle(task) if task.state == "running" else None,
        Status=task.state.upper(),
        SourceArn=ask.arn(task.queue),
        DestinationArn=None if task.request.target is None else ask.arn(task.request.target),
        MaxNumberOfMessagesPerSecond=task.request.max_per_second,
        ApproximateNumberOfMessagesMoved=task.moved,
        ApproximateNumberOfMessagesToMove=task.matched,
        FailureReason=task.error,
        StartedTimestamp=task.created_at_ms,
    )
