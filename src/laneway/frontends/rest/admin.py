"""The requests of operators: queues, what is in them, dead letters and tasks. Awaited, one task a request."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET

from laneway.access import Access, Need
from laneway.broker import interface as i
from laneway.broker.arguments import check_same_declaration, settings_from_arguments
from laneway.broker.values import PeekQuery, QueueDeclared, QueueInfo, Task
from laneway.core.settings import QueueSettings
from laneway.errors import Forbidden, InvalidInput, no_task
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest import wire as w
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.routing import LIST_BYTES, ApiRoute, Reply
from laneway.frontends.rest.words import milliseconds, name_of
from laneway.frontends.rest.writing import AnswerWriter

_LIST_PAGE = 100
_PEEK_PAGE = 50


class Administration:
    def __init__(self, broker: i.Broker, access: Access, limits: RestLimits, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer

    def _check(self, call: Call, need: Need) -> HeadPlan:
        plan: HeadPlan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.queue, need)
        return plan

    # --- queues

    @ApiRoute("GET", "{QS}", options=w.ListOptions, answers={200: a.QueuesAnswer})
    async def list_queues(self, call: Call) -> Reply:
        """The queues of a virtual host, in the order of their names.

        Those that the caller may not see are passed over without a trace."""
        plan: HeadPlan = call.head.plan
        options: w.ListOptions = plan.options(w.ListOptions)
        self._access.check_may_enter(call.account, plan.vhost)
        self._broker.topology.check_vhost(plan.vhost)
        limit = options.limit or _LIST_PAGE
        after = None if options.cursor is UNSET else decode_cursor(options.cursor, tuple[str, str])
        seen: list[QueueInfo] = []
        while len(seen) <= limit:
            page = self._broker.topology.queues(
                vhost=plan.vhost, prefix=options.prefix or "", limit=limit + 1, after=after
            )
            seen += [info for info in page if self._access.may_see(call.account, info.vhost, info.name)]
            if len(page) <= limit:
                break
            after = (page[-1].vhost, page[-1].name)
            await asyncio.sleep(0)  # somebody who may see few of many queues must not hold up everybody else
        more = len(seen) > limit
        shown = seen[:limit]
        answer = a.QueuesAnswer(
            queues=[self._writer.queue(info) for info in shown],
            next_cursor=encode_cursor((shown[-1].vhost, shown[-1].name)) if more else None,
        )
        return Reply(200, a.encode(answer))

    @ApiRoute(
        "PUT",
        "{Q}",
        short=True,
        request=w.PutQueueRequest,
        body_optional=True,
        answers={200: a.QueueAnswer, 201: a.QueueAnswer},
        refusals=(404, 409, 429, 507),
    )
    async def put_queue(self, call: Call) -> Reply:
        """Create a queue, or replace the settings of the one there is."""
        plan = self._check(call, "configure")
        body = w.read_body(call.body, w.PutQueueRequest)
        if body.arguments is not UNSET:
            settings = self._declared(plan, body)
        else:
            settings = QueueSettings(**w.settings_changes(body), arguments=self._foreign_arguments(plan))
        self._check_dead_letters(call, settings.dead_letter_queue, settings.dead_letter_exchange)
        put: QueueDeclared = await self._broker.ask(i.PutQueue(plan.vhost, plan.queue, settings))
        return Reply(201 if put.is_new else 200, a.encode(self._writer.queue(put.info)))

    def _foreign_arguments(self, plan: HeadPlan) -> dict[str, Any]:
        """What other protocols keep with a queue and HTTP has no word for: replacing its settings leaves that alone.
        AMQP's arguments (x-…) are settings as well, and go with those that they were."""
        there = self._broker.topology.queue(plan.vhost, plan.queue)
        arguments = {} if there is None else there.settings.arguments
        return {name: value for name, value in arguments.items() if not name.startswith("x-")}

    def _declared(self, plan: HeadPlan, body: w.PutQueueRequest) -> QueueSettings:
        """The settings that AMQP's arguments mean. A queue that was declared with others is not changed: whoever
        declares it the old way would be refused from then on."""
        changes = w.settings_changes(body)
        arguments = changes.pop("arguments")
        durable, auto_delete = changes.pop("durable", True), changes.pop("auto_delete", False)
        for field in changes:
            raise InvalidInput(
                f"{field} is a setting of its own: beside arguments there are only durable and auto_delete", field=field
            )
        settings = settings_from_arguments(
            arguments,
            durable=durable,
            exclusive=False,
            auto_delete=auto_delete,
            max_message_bytes=self._broker.limits.max_message_bytes,
        )
        there = self._broker.topology.queue(plan.vhost, plan.queue)
        if there is None:
            return settings
        check_same_declaration(there, settings)
        return there.settings

    @ApiRoute("GET", "{Q}", short=True, answers={200: a.QueueAnswer}, refusals=(404,))
    async def get_queue(self, call: Call) -> Reply:
        """A queue's settings."""
        plan = self._check(call, "stats")
        return Reply(200, a.encode(self._writer.queue(self._broker.topology.find_queue(plan.vhost, plan.queue))))

    @ApiRoute(
        "PATCH",
        "{Q}",
        request=w.QueueSettingsRequest,
        body_optional=True,
        answers={200: a.QueueAnswer},
        refusals=(404, 409, 507),
    )
    async def change_queue(self, call: Call) -> Reply:
        """Change the given settings of a queue."""
        plan = self._check(call, "configure")
        changes = w.settings_changes(w.read_body(call.body, w.QueueSettingsRequest))
        exchange = changes.get("dead_letter_exchange")
        if "dead_letter_routing_key" in changes:  # says where to, as much as the exchange does
            there = self._broker.topology.find_queue(plan.vhost, plan.queue).settings
            exchange = changes.get("dead_letter_exchange", there.dead_letter_exchange)
        self._check_dead_letters(call, changes.get("dead_letter_queue"), exchange)
        info = await self._broker.ask(i.ChangeQueue(plan.vhost, plan.queue, changes))
        return Reply(200, a.encode(self._writer.queue(info)))

    def _check_dead_letters(self, call: Call, queue: str | None, exchange: str | None) -> None:
        """Or what one may not publish to could be reached by letting messages die."""
        vhost = call.head.plan.vhost
        if queue is not None:
            self._access.check(call.account, vhost, queue, "write")
        if exchange is not None:
            self._access.check(call.account, vhost, name_of(exchange), "write", noun="exchange")

    @ApiRoute("DELETE", "{Q}", short=True, options=w.DeleteOptions, answers={204: None}, refusals=(404, 409))
    async def delete_queue(self, call: Call) -> Reply:
        """Delete a queue with all it holds."""
        plan = self._check(call, "configure")
        options: w.DeleteOptions = plan.options(w.DeleteOptions)
        await self._broker.ask(i.DeleteQueue(plan.vhost, plan.queue, if_empty=bool(options.if_empty)))
        return Reply(204)

    @ApiRoute("POST", "{Q}/purge", answers={200: a.PurgeAnswer}, refusals=(404,))
    async def purge(self, call: Call) -> Reply:
        """Delete every message that waits; leased and dead ones stay."""
        plan = self._check(call, "configure")
        return Reply(200, a.encode(a.PurgeAnswer(purged=await self._broker.ask(i.PurgeQueue(plan.vhost, plan.queue)))))

    # --- what is in them

    @ApiRoute("GET", "{Q}/stats", answers={200: a.StatsAnswer}, refusals=(404,))
    async def stats(self, call: Call) -> Reply:
        """Counts, ages and rates of a queue."""
        plan = self._check(call, "stats")
        stats = await self._broker.ask(i.DescribeQueue(plan.vhost, plan.queue))
        return Reply(200, a.encode(self._writer.stats(plan.queue, stats)))

    @ApiRoute("GET", "{Q}/messages", options=w.PeekOptions, answers={200: a.PeekAnswer}, refusals=(404,))
    async def peek(self, call: Call) -> Reply:
        """Look at messages without leasing them."""
        plan = self._check(call, "read")
        query = _peek_query(plan.options(w.PeekOptions), self._limits)
        glimpses, next_cursor = await self._broker.ask(i.Peek(plan.vhost, plan.queue, query))
        return Reply(200, self._writer.page(glimpses, next_cursor))

    # --- dead letters

    @ApiRoute(
        "POST",
        "{Q}/redrive",
        request=w.RedriveBody,
        max_body_bytes=LIST_BYTES,
        body_optional=True,
        answers={202: a.TaskAnswer},
        refusals=(404, 429, 507),
    )
    async def redrive(self, call: Call) -> Reply:
        """Begin to move dead letters back to where they came from, or to a target.

        Needs the permission to write to all these queues."""
        plan = self._check(call, "configure")
        request = w.redrive_of(w.read_body(call.body, w.RedriveBody))
        if request.target is not None:
            self._access.check(call.account, plan.vhost, request.target, "write")
        elif not self._access.may_everywhere(call.account):
            origins = await self._broker.ask(i.FindOrigins(plan.vhost, plan.queue, request.filter))
            if not all(self._access.allowed(call.account, plan.vhost, origin, "write") for origin in origins):
                raise Forbidden(
                    "some of these dead letters came from queues that the account has no write permission on: name a "
                    "target, or those by message_ids that come from others",
                    need="write",
                )
            request = msgspec.structs.replace(request, origins=origins)
        task: Task = await self._broker.ask(i.StartRedrive(plan.vhost, plan.queue, request))
        location = b"Location: /tasks/%b\r\n" % task.task_id.encode()
        return Reply(202, a.encode(self._writer.task(task)), location)

    @ApiRoute(
        "POST",
        "{Q}/reprocess",
        short=True,
        request=w.RedriveBody,
        max_body_bytes=LIST_BYTES,
        body_optional=True,
        answers={202: a.TaskAnswer},
        refusals=(404, 429, 507),
    )
    async def reprocess(self, call: Call) -> Reply:
        """The same as redrive: dead letters back to where they came from."""
        return await self.redrive(call)

    @ApiRoute("GET", "{Q}/redrive", answers={200: a.TasksAnswer}, refusals=(404,))
    async def list_redrives(self, call: Call) -> Reply:
        """The redrives of a queue, newest first."""
        plan = self._check(call, "stats")
        self._broker.topology.find_queue(plan.vhost, plan.queue)
        tasks: list[Task] = await self._broker.ask(i.ListTasks(plan.vhost, plan.queue))
        return Reply(200, a.encode(a.TasksAnswer(tasks=[self._writer.task(task) for task in tasks])))

    @ApiRoute(
        "POST",
        "{Q}/dead-letters/delete",
        request=w.DeleteDeadLettersBody,
        max_body_bytes=LIST_BYTES,
        answers={200: a.DeletedAnswer},
        refusals=(404,),
    )
    async def delete_dead_letters(self, call: Call) -> Reply:
        """Delete dead letters; all of them only with "all": true."""
        plan = self._check(call, "configure")
        body = w.read_body(call.body, w.DeleteDeadLettersBody)
        wanted = w.filter_of(body)
        narrowed = any(getattr(wanted, field) is not None for field in wanted.__struct_fields__)
        if narrowed == body.all:
            raise InvalidInput(
                'name the dead letters by message_ids, reason, attribute or age, or say "all": true for all of them,'
                " and not both",
                field="all",
            )
        count = await self._broker.ask(i.DeleteDeadLetters(plan.vhost, plan.queue, wanted))
        return Reply(200, a.encode(a.DeletedAnswer(deleted=count)))

    @ApiRoute("GET", "/tasks/{task_id}", answers={200: a.TaskAnswer}, refusals=(404,))
    async def get_task(self, call: Call) -> Reply:
        """How far a task has come."""
        task = await self._task(call, "stats")
        return Reply(200, a.encode(self._writer.task(task)))

    @ApiRoute("POST", "/tasks/{task_id}/cancel", answers={200: a.TaskAnswer}, refusals=(404,))
    async def cancel_task(self, call: Call) -> Reply:
        """Stop a task; what it has done stays done."""
        task = await self._task(call, "configure")
        return Reply(200, a.encode(self._writer.task(await self._broker.ask(i.CancelTask(task.task_id)))))

    async def _task(self, call: Call, need: Need) -> Task:
        """A task of a queue with which the account may do this; one of another is not told from none."""
        task_id = call.head.plan.names["task_id"]
        task: Task = await self._broker.ask(i.GetTask(task_id))
        if not self._access.may_see(call.account, task.vhost, task.queue):
            raise no_task(task_id)
        self._access.check(call.account, task.vhost, task.queue, need)
        return task


def _peek_query(options: w.PeekOptions, limits: RestLimits) -> PeekQuery:
    attribute: tuple[str, str] | None = None
    if options.attribute is not UNSET:
        name, _, value = options.attribute.partition(":")
        attribute = (name, value)
    older, newer = options.older_than_seconds, options.newer_than_seconds
    return PeekQuery(
        states=("ready",) if options.state is UNSET else tuple(dict.fromkeys(options.state.split(","))),
        priority=None if options.priority is UNSET else options.priority,
        attribute=attribute,
        older_than_ms=None if older is UNSET else milliseconds(older, "older_than_seconds"),
        newer_than_ms=None if newer is UNSET else milliseconds(newer, "newer_than_seconds"),
        reason=None if options.reason is UNSET else options.reason,
        limit=min(options.limit or _PEEK_PAGE, limits.batch_count),
        max_bytes=limits.peek_bytes,
        cursor=None if options.cursor is UNSET else options.cursor,
    )
