"""The requests of operators: queues, what is in them, dead letters and tasks. Awaited, one task a request."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import UNSET

from laneway.access import Access
from laneway.broker.arguments import check_same_declaration, settings_from_arguments
from laneway.broker.broker import Broker
from laneway.broker.values import PeekQuery, QueueInfo
from laneway.core.settings import QueueSettings
from laneway.errors import InvalidInput
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import (
    DeletedAnswer,
    PurgeAnswer,
    QueuesAnswer,
    TasksAnswer,
    encode,
)
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.routing import Reply
from laneway.frontends.rest.wire import (
    DeleteDeadLettersBody,
    DeleteOptions,
    ListOptions,
    PeekOptions,
    PutQueueRequest,
    QueueSettingsRequest,
    RedriveBody,
    check_names_once,
    decoder,
    filter_of,
    redrive_of,
    settings_changes,
)
from laneway.frontends.rest.words import milliseconds, name_of
from laneway.frontends.rest.writing import Writer

_LIST_PAGE = 100
_PEEK_PAGE = 50


def read_body(call: Call, decode: Any, when_empty: Any) -> Any:
    """The body of a rare request, decoded; an empty one means that nothing was said."""
    if not call.body:
        return when_empty
    decoded = decode(call.body)
    check_names_once(call.body)
    return decoded


class Administration:
    def __init__(self, broker: Broker, access: Access, limits: RestLimits, writer: Writer) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._writer = writer
        self._decode_settings = decoder(QueueSettingsRequest)
        self._decode_put = decoder(PutQueueRequest)
        self._decode_redrive = decoder(RedriveBody)
        self._decode_deletion = decoder(DeleteDeadLettersBody)

    def _check(self, call: Call, need: Any) -> Plan:
        plan: Plan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.queue, need)
        return plan

    # --- queues

    async def put_queue(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        body: PutQueueRequest = read_body(call, self._decode_put, PutQueueRequest())
        if body.arguments is not UNSET:
            settings = self._declared(plan, body)
        else:
            settings = QueueSettings(**settings_changes(body), arguments=self._foreign_arguments(plan))
        self._check_dead_letters(call, settings.dead_letter_queue, settings.dead_letter_exchange)
        info, is_new = await self._broker.queues.put(plan.vhost, plan.queue, settings)
        return Reply(201 if is_new else 200, encode(self._writer.queue(info)))

    def _foreign_arguments(self, plan: Plan) -> dict[str, Any]:
        """What other protocols keep with a queue and HTTP has no word for: replacing its settings leaves that alone.
        AMQP's arguments (x-…) are settings as well, and go with those that they were."""
        there = self._broker.queues.find(plan.vhost, plan.queue)
        arguments = {} if there is None else there.settings.arguments
        return {name: value for name, value in arguments.items() if not name.startswith("x-")}

    def _declared(self, plan: Plan, body: PutQueueRequest) -> QueueSettings:
        """The settings that AMQP's arguments mean. A queue that was declared with others is not changed: whoever
        declares it the old way would be refused from then on."""
        changes = settings_changes(body)
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
        there = self._broker.queues.find(plan.vhost, plan.queue)
        if there is None:
            return settings
        check_same_declaration(there, settings)
        return there.settings

    async def change_queue(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        changes = settings_changes(read_body(call, self._decode_settings, QueueSettingsRequest()))
        exchange = changes.get("dead_letter_exchange")
        if "dead_letter_routing_key" in changes:  # says where to, as much as the exchange does
            there = self._broker.queues.describe(plan.vhost, plan.queue).settings
            exchange = changes.get("dead_letter_exchange", there.dead_letter_exchange)
        self._check_dead_letters(call, changes.get("dead_letter_queue"), exchange)
        info = await self._broker.queues.change(plan.vhost, plan.queue, changes)
        return Reply(200, encode(self._writer.queue(info)))

    def _check_dead_letters(self, call: Call, queue: str | None, exchange: str | None) -> None:
        """Or what one may not publish to could be reached by letting messages die."""
        vhost = call.head.plan.vhost
        if queue is not None:
            self._access.check(call.account, vhost, queue, "write")
        if exchange is not None:
            self._access.check(call.account, vhost, name_of(exchange), "write", noun="exchange")

    async def get_queue(self, call: Call) -> Reply:
        plan = self._check(call, "stats")
        return Reply(200, encode(self._writer.queue(self._broker.queues.describe(plan.vhost, plan.queue))))

    async def delete_queue(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        options: DeleteOptions = plan.options(DeleteOptions)
        await self._broker.queues.delete(plan.vhost, plan.queue, if_empty=bool(options.if_empty))
        return Reply(204)

    async def purge_queue(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        return Reply(200, encode(PurgeAnswer(purged=await self._broker.queues.purge(plan.vhost, plan.queue))))

    async def list_queues(self, call: Call) -> Reply:
        """The queues that the caller may see; those it may not are passed over without a trace."""
        plan: Plan = call.head.plan
        options: ListOptions = plan.options(ListOptions)
        self._broker.vhosts.check(plan.vhost)
        limit = options.limit or _LIST_PAGE
        after = None if options.cursor is UNSET else decode_cursor(options.cursor, tuple[str, str])
        seen: list[QueueInfo] = []
        while len(seen) <= limit:
            page = self._broker.queues.list(vhost=plan.vhost, prefix=options.prefix or "", limit=limit + 1, after=after)
            seen += [info for info in page if self._access.may_see(call.account, info.vhost, info.name)]
            if len(page) <= limit:
                break
            after = (page[-1].vhost, page[-1].name)
            await asyncio.sleep(0)  # somebody who may see few of many queues must not hold up everybody else
        more = len(seen) > limit
        shown = seen[:limit]
        answer = QueuesAnswer(
            queues=[self._writer.queue(info) for info in shown],
            next_cursor=encode_cursor((shown[-1].vhost, shown[-1].name)) if more else None,
        )
        return Reply(200, encode(answer))

    # --- what is in them

    async def stats(self, call: Call) -> Reply:
        plan = self._check(call, "stats")
        return Reply(200, encode(self._writer.stats(plan.queue, self._broker.queues.stats(plan.vhost, plan.queue))))

    async def peek(self, call: Call) -> Reply:
        plan = self._check(call, "read")
        query = _peek_query(plan.options(PeekOptions), self._limits)
        glimpses, next_cursor = self._broker.peek(plan.vhost, plan.queue, query)
        return Reply(200, self._writer.page(glimpses, next_cursor))

    # --- dead letters

    async def start_redrive(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        request = redrive_of(read_body(call, self._decode_redrive, RedriveBody()))
        if request.target is not None:
            self._access.check(call.account, plan.vhost, request.target, "write")
        task = await self._broker.start_redrive(plan.vhost, plan.queue, request)
        location = b"Location: /tasks/%b\r\n" % task.task_id.encode()
        return Reply(202, encode(self._writer.task(task)), location)

    async def delete_dead_letters(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        body: DeleteDeadLettersBody = read_body(call, self._decode_deletion, DeleteDeadLettersBody())
        wanted = filter_of(body)
        narrowed = any(getattr(wanted, field) is not None for field in wanted.__struct_fields__)
        if narrowed == body.all:
            raise InvalidInput(
                'name the dead letters by message_ids, reason, attribute or age, or say "all": true for all of them,'
                " and not both",
                field="all",
            )
        count = await self._broker.delete_dead_letters(plan.vhost, plan.queue, wanted)
        return Reply(200, encode(DeletedAnswer(deleted=count)))

    async def list_redrives(self, call: Call) -> Reply:
        plan = self._check(call, "stats")
        self._broker.queues.describe(plan.vhost, plan.queue)
        tasks = self._broker.tasks(plan.vhost, plan.queue)
        return Reply(200, encode(TasksAnswer(tasks=[self._writer.task(task) for task in tasks])))

    async def get_task(self, call: Call) -> Reply:
        task = self._broker.task(call.head.plan.item)
        self._access.check(call.account, task.vhost, task.queue, "stats")
        return Reply(200, encode(self._writer.task(task)))

    async def cancel_task(self, call: Call) -> Reply:
        task = self._broker.task(call.head.plan.item)
        self._access.check(call.account, task.vhost, task.queue, "configure")
        return Reply(200, encode(self._writer.task(await self._broker.cancel_task(task.task_id))))


def _peek_query(options: PeekOptions, limits: RestLimits) -> PeekQuery:
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
