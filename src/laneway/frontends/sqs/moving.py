"""Message move tasks: dead letters back to where they came from, which Laneway calls a redrive."""

from __future__ import annotations

import base64
import binascii
import uuid

import msgspec

from laneway.broker.interface import Broker, CancelTask, FindOrigins, ListTasks, StartRedrive
from laneway.broker.values import DeadLetterFilter, RedriveRequest, Task
from laneway.frontends.sqs import wire as w
from laneway.frontends.sqs.ask import Ask
from laneway.frontends.sqs.errors import KINDS, SqsError, invalid, value_invalid
from laneway.frontends.sqs.names import is_arn
from laneway.frontends.sqs.queues import queues_of

MOST_A_SECOND = 500
MOST_LISTED = 10


class Moving:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._topology = broker.topology

    def _source(self, ask: Ask, arn: str) -> str:
        if not is_arn(arn):
            raise _no_arn("SourceArn")
        name = ask.queue_of_arn(arn)
        if name is not None:
            ask.check(name, "configure")
        if name is None or self._topology.queue(ask.caller.vhost, name) is None:
            raise _no_resource("SourceArn")
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
            if not is_arn(asked.DestinationArn):
                raise _no_arn("DestinationArn")
            target = ask.queue_of_arn(asked.DestinationArn)
            if target is not None:
                ask.check(target, "write")
            if target is None or self._topology.queue(ask.caller.vhost, target) is None:
                raise _no_resource("DestinationArn")
        rate = asked.MaxNumberOfMessagesPerSecond
        if rate is not None and not 1 <= rate <= MOST_A_SECOND:
            raise value_invalid(rate, "MaxNumberOfMessagesPerSecond", f"Must be between 1 and {MOST_A_SECOND}.")
        if any(task.state == "running" for task in await self._tasks(ask, name)):
            raise invalid(
                "There is already a task running. Only one active task is allowed for a source queue arn at a given "
                "time."
            )
        origins = None if target is not None else await self._origins(ask, name)
        request = RedriveRequest(target=target, max_per_second=rate, origins=origins)
        redrive = StartRedrive(ask.caller.vhost, name, request)
        return w.TaskHandleResult(TaskHandle=_handle(ask, await self._broker.ask(redrive)))

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
        handle = _read_handle(asked.TaskHandle)
        name = self._source(ask, handle.sourceArn)
        tasks = await self._tasks(ask, name)
        task = next((one for one in tasks if _uuid(one) == handle.taskId), None)
        if task is None:
            raise SqsError("ResourceNotFoundException", "Task does not exist.")
        if task.state != "running":
            raise SqsError("UnsupportedOperation", "Only active tasks can be cancelled.")
        task = await self._broker.ask(CancelTask(task.task_id))
        return w.CancelMessageMoveTaskResult(ApproximateNumberOfMessagesMoved=task.moved)

    async def list_tasks(self, ask: Ask, asked: w.ListMessageMoveTasks) -> w.ListMessageMoveTasksResult:
        name = self._source(ask, asked.SourceArn)
        most = 1 if asked.MaxResults is None else asked.MaxResults
        if not 1 <= most <= MOST_LISTED:
            raise value_invalid(most, "MaxResults", f"Must be between 1 and {MOST_LISTED}.")
        tasks = (await self._tasks(ask, name))[:most]
        return w.ListMessageMoveTasksResult(Results=[self._told(ask, task) for task in tasks])

    async def _tasks(self, ask: Ask, name: str) -> list[Task]:
        tasks: list[Task] = await self._broker.ask(ListTasks(ask.caller.vhost, name))
        return tasks

    def _told(self, ask: Ask, task: Task) -> w.MoveTask:
        return w.MoveTask(
            TaskHandle=_handle(ask, task) if task.state == "running" else None,
            Status=task.state.upper(),
            SourceArn=ask.arn(task.queue),
            DestinationArn=None if task.request.target is None else ask.arn(task.request.target),
            MaxNumberOfMessagesPerSecond=task.request.max_per_second,
            ApproximateNumberOfMessagesMoved=task.moved,
            ApproximateNumberOfMessagesToMove=task.matched,
            FailureReason=self._why(task),
            StartedTimestamp=task.created_at_ms,
        )

    def _why(self, task: Task) -> str | None:
        """As AWS says it, if a queue that is needed was deleted."""
        names = (task.queue, task.request.target or task.queue)
        if task.error is None or all(self._topology.queue(task.vhost, name) is not None for name in names):
            return task.error
        return KINDS["QueueDoesNotExist"].code


class _Handle(msgspec.Struct):
    """What a task's handle says, as JSON in Base64, as AWS's does: clients have been seen to read it."""

    taskId: str
    sourceArn: str


def _handle(ask: Ask, task: Task) -> str:
    return base64.b64encode(msgspec.json.encode(_Handle(_uuid(task), ask.arn(task.queue)))).decode()


def _uuid(task: Task) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, task.task_id))


def _read_handle(text: str) -> _Handle:
    try:
        return msgspec.json.decode(base64.b64decode(text.encode("ascii"), validate=True), type=_Handle)
    except (binascii.Error, UnicodeError, msgspec.DecodeError, ValueError):
        raise invalid("Value for parameter TaskHandle is invalid.") from None


def _no_arn(parameter: str) -> SqsError:
    return invalid(
        f"You must use this format to specify the {parameter}: "
        "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
    )


def _no_resource(parameter: str) -> SqsError:
    text = f"The resource that you specified for the {parameter} parameter doesn't exist."
    return SqsError("ResourceNotFoundException", text)
