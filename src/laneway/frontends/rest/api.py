"""The HTTP API: the table of its routes, and the way from a request to its handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.errors import LanewayError, Unavailable
from laneway.frontends.rest import answers as a
from laneway.frontends.rest import wire as w
from laneway.frontends.rest.accounts import Accounts
from laneway.frontends.rest.admin import Administration
from laneway.frontends.rest.bindings import Bindings, binding_routes
from laneway.frontends.rest.errors import INTERNAL, HttpError
from laneway.frontends.rest.exchanges import Exchanges, exchange_message_routes, exchange_routes
from laneway.frontends.rest.getting import Getting, get_routes
from laneway.frontends.rest.head import Head
from laneway.frontends.rest.hot import HotPaths
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.openapi import openapi_document
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.protocol import Call
from laneway.frontends.rest.publishing import PublishBody, PublishOptions
from laneway.frontends.rest.routing import Each, Reply, Route, Router
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.vhosts import VirtualHosts, vhost_routes

log = logging.getLogger("laneway.http")


class RestApi:
    """What protocol.Connection calls its application."""

    def __init__(self, broker: Broker, access: Access, limits: RestLimits) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._version = version("laneway")
        self._tasks: set[asyncio.Task[None]] = set()
        writer = a.Writer(Timestamps())
        self._hot = HotPaths(broker, access, limits, writer)
        exchanges = Exchanges(broker, access, writer)
        self._routes = (
            *message_routes(self._hot),
            *get_routes(Getting(broker, access, limits, writer)),
            *queue_routes(Administration(broker, access, limits, writer)),
            *exchange_routes(exchanges),
            *exchange_message_routes(exchanges),
            *binding_routes(Bindings(broker, access)),
            *vhost_routes(VirtualHosts(broker, access)),
            *account_routes(Accounts(access, writer)),
            *self._server_routes(),
        )
        self._router = Router(self._routes)
        self._openapi = a.encode(openapi_document(self._routes, limits, self._version))

    def plan(self, head: Head) -> Plan:
        return Plan(head, self._router)

    def handle(self, call: Call) -> None:
        plan: Plan = call.head.plan
        try:
            if plan.refusal is not None:
                call.refuse(plan.refusal)
                return
            if not plan.is_public:
                from_loopback = call.connection.from_loopback
                account = plan.credentials.account_now(self._access, from_loopback)
                if account is None:
                    self._start(call, self._authenticate(call, plan))
                    return
                call.account = account
            self._dispatch(call, plan)
        except Exception as error:
            self._refuse(call, error)

    def end_wait(self, call: Call) -> None:
        self._hot.end_wait(call)

    def _dispatch(self, call: Call, plan: Plan) -> None:
        if plan.fast is not None:
            if not plan.is_json and call.body:
                _check_media_type(plan)
            plan.fast(call)
        else:
            self._start(call, self._run(call, plan))

    # --- what is awaited

    def _start(self, call: Call, work: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= self._limits.slow_count:
            work.close()
            raise Unavailable(f"{self._limits.slow_count} administrative requests are being worked on: try again soon")
        # Requests behind this one on its connection wait: what they do must come after what this one does.
        call.connection.hold(call)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _authenticate(self, call: Call, plan: Plan) -> None:
        try:
            call.account = await plan.credentials.account_later(self._access, call.connection.from_loopback)
            if plan.fast is not None:
                call.connection.release(call)
                self._dispatch(call, plan)
            else:
                await self._run(call, plan)
        except Exception as error:
            self._refuse(call, error)

    async def _run(self, call: Call, plan: Plan) -> None:
        try:
            if not plan.is_json and call.body:
                _check_media_type(plan)
            assert plan.route is not None and plan.route.slow is not None
            reply = await plan.route.slow(call)
            call.answer(reply.status, reply.body, reply.headers)
        except Exception as error:
            self._refuse(call, error)

    def _refuse(self, call: Call, error: Exception) -> None:
        if not isinstance(error, LanewayError):
            log.error("%s %s failed", call.head.method, call.head.target, exc_info=error)
            error = INTERNAL
        call.refuse(error)

    # --- the server itself

    def _server_routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                pattern="/",
                name="root",
                summary="What this is",
                slow=self._root,
                public=True,
                answers={200: a.RootAnswer},
            ),
            Route(
                method="GET",
                pattern="/healthz",
                name="healthz",
                summary="Whether the process is alive",
                slow=self._healthz,
                public=True,
                answers={200: a.HealthAnswer},
            ),
            Route(
                method="GET",
                pattern="/readyz",
                name="readyz",
                summary="Whether the node takes requests; 503 with its state if not",
                slow=self._readyz,
                public=True,
                answers={200: a.HealthAnswer},
            ),
            Route(
                method="GET",
                pattern="/openapi.json",
                name="openapi",
                summary="This document",
                slow=self._openapi_json,
                public=True,
                answers={200: dict},
            ),
        ]

    async def _root(self, call: Call) -> Reply:
        links = {"api": "/openapi.json", "queues": "/queues", "health": "/healthz", "readiness": "/readyz"}
        return Reply(200, a.encode(a.RootAnswer(name="laneway", version=self._version, links=links)))

    async def _healthz(self, call: Call) -> Reply:
        return Reply(200, a.encode(a.HealthAnswer(state="alive")))

    async def _readyz(self, call: Call) -> Reply:
        state = str(self._broker.health().get("state"))
        if state != "ready":
            raise HttpError(503, "not_ready", f"the node is not ready: its state is {state}", state=state)
        return Reply(200, a.encode(a.HealthAnswer(state=state)))

    async def _openapi_json(self, call: Call) -> Reply:
        return Reply(200, self._openapi)


def _check_media_type(plan: Plan) -> None:
    if plan.route is not None and plan.route.request is not None and not plan.route.takes_bytes:
        raise HttpError(
            415,
            "unsupported_media_type",
            f"the body is {plan.content_type[:80]!r}, application/json is expected",
            field="Content-Type",
        )


def message_routes(hot: HotPaths) -> list[Route]:
    return [
        Route(
            method="POST",
            pattern="{Q}/messages",
            name="publish",
            summary="Publish one message, or a list of them",
            fast=hot.publish,
            request=PublishBody,
            takes_bytes=True,
            options=PublishOptions,
            answers={201: a.PublishAnswer | list[a.PublishAnswer], 207: Each((a.PublishAnswer, a.ErrorAnswer))},
            refusals=(404, 409, 413, 429, 507),
        ),
        Route(
            method="POST",
            pattern="{Q}/dequeue",
            name="dequeue",
            summary="Lease messages, highest priority first; wait for the first one if asked to",
            fast=hot.dequeue,
            request=w.DequeueRequest,
            body_optional=True,
            answers={200: a.DequeueAnswer},
            refusals=(404,),
        ),
        Route(
            method="DELETE",
            pattern="{Q}/messages/{message_id}",
            name="ack",
            summary="Acknowledge a leased message: it is done, and gone",
            fast=hot.ack,
            request=w.AckRequest,
            body_optional=True,
            options=w.AckOptions,
            answers={204: None},
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            pattern="{Q}/messages/{message_id}/nack",
            name="nack",
            summary="Give a leased message back: now, after a delay, or with a growing back-off",
            fast=hot.nack,
            request=w.NackRequest,
            answers={200: a.NackAnswer},
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            pattern="{Q}/messages/{message_id}/reject",
            name="reject",
            summary="Make a leased message a dead letter at once",
            fast=hot.reject,
            request=w.RejectRequest,
            answers={204: None},
            refusals=(404, 409),
        ),
        Route(
            method="PATCH",
            pattern="{Q}/messages/{message_id}/visibility",
            name="change_visibility",
            summary="Let a lease end so many seconds from now; 0 gives the message back",
            fast=hot.change_visibility,
            request=w.VisibilityRequest,
            answers={200: a.VisibilityAnswer},
            refusals=(404, 409),
        ),
        *(
            Route(
                method="POST",
                pattern=f"{{Q}}/{path}",
                short=True,
                name=f"{path}_batch",
                summary=f"The batch form of {path}: one result for each entry, in order",
                fast=handler,
                request=list[request],  # type: ignore[valid-type]
                answers={200: list[a.SettledAnswer], 207: Each((a.SettledAnswer, a.ErrorAnswer))},
                refusals=(404,),
            )
            for path, handler, request in (
                ("ack", hot.ack_many, w.AckRequest),
                ("nack", hot.nack_many, w.NackRequest),
                ("reject", hot.reject_many, w.RejectRequest),
                ("visibility", hot.change_visibility_many, w.VisibilityRequest),
            )
        ),
    ]


def queue_routes(admin: Administration) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="{QS}",
            name="list_queues",
            summary="The queues of a virtual host, in the order of their names",
            slow=admin.list_queues,
            options=w.ListOptions,
            answers={200: a.QueuesAnswer},
        ),
        Route(
            method="PUT",
            pattern="{Q}",
            short=True,
            name="put_queue",
            summary="Create a queue, or replace the settings of the one there is",
            slow=admin.put_queue,
            request=w.PutQueueRequest,
            body_optional=True,
            answers={200: a.QueueAnswer, 201: a.QueueAnswer},
            refusals=(404, 409, 429, 507),
        ),
        Route(
            method="GET",
            pattern="{Q}",
            short=True,
            name="get_queue",
            summary="A queue's settings",
            slow=admin.get_queue,
            answers={200: a.QueueAnswer},
            refusals=(404,),
        ),
        Route(
            method="PATCH",
            pattern="{Q}",
            name="change_queue",
            summary="Change the given settings of a queue",
            slow=admin.change_queue,
            request=w.QueueSettingsRequest,
            body_optional=True,
            answers={200: a.QueueAnswer},
            refusals=(404, 409, 507),
        ),
        Route(
            method="DELETE",
            pattern="{Q}",
            short=True,
            name="delete_queue",
            summary="Delete a queue with all it holds",
            slow=admin.delete_queue,
            options=w.DeleteOptions,
            answers={204: None},
            refusals=(404, 409),
        ),
        Route(
            method="POST",
            pattern="{Q}/purge",
            name="purge",
            summary="Delete every message that waits; leased and dead ones stay",
            slow=admin.purge_queue,
            answers={200: a.PurgeAnswer},
            refusals=(404,),
        ),
        Route(
            method="GET",
            pattern="{Q}/stats",
            name="stats",
            summary="Counts, ages and rates of a queue",
            slow=admin.stats,
            answers={200: a.StatsAnswer},
            refusals=(404,),
        ),
        Route(
            method="GET",
            pattern="{Q}/messages",
            name="peek",
            summary="Look at messages without leasing them",
            slow=admin.peek,
            options=w.PeekOptions,
            answers={200: a.PeekAnswer},
            refusals=(404,),
        ),
        Route(
            method="POST",
            pattern="{Q}/redrive",
            name="redrive",
            summary="Begin to move dead letters back to where they came from, or to a target",
            slow=admin.start_redrive,
            request=w.RedriveBody,
            body_optional=True,
            answers={202: a.TaskAnswer},
            refusals=(404, 429, 507),
        ),
        Route(
            method="POST",
            pattern="{Q}/reprocess",
            short=True,
            name="reprocess",
            summary="The same as redrive: dead letters back to where they came from",
            slow=admin.start_redrive,
            request=w.RedriveBody,
            body_optional=True,
            answers={202: a.TaskAnswer},
            refusals=(404, 429, 507),
        ),
        Route(
            method="GET",
            pattern="{Q}/redrive",
            name="list_redrives",
            summary="The redrives of a queue, newest first",
            slow=admin.list_redrives,
            answers={200: a.TasksAnswer},
            refusals=(404,),
        ),
        Route(
            method="POST",
            pattern="{Q}/dead-letters/delete",
            name="delete_dead_letters",
            summary='Delete dead letters; all of them only with "all": true',
            slow=admin.delete_dead_letters,
            request=w.DeleteDeadLettersBody,
            answers={200: a.DeletedAnswer},
            refusals=(404,),
        ),
        Route(
            method="GET",
            pattern="/tasks/{task_id}",
            name="get_task",
            summary="How far a task has come",
            slow=admin.get_task,
            answers={200: a.TaskAnswer},
            refusals=(404,),
        ),
        Route(
            method="POST",
            pattern="/tasks/{task_id}/cancel",
            name="cancel_task",
            summary="Stop a task; what it has done stays done",
            slow=admin.cancel_task,
            answers={200: a.TaskAnswer},
            refusals=(404,),
        ),
    ]


def account_routes(accounts: Accounts) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="/whoami",
            name="whoami",
            summary="The account this request acts as",
            slow=accounts.whoami,
            answers={200: a.AccountAnswer},
        ),
        Route(
            method="GET",
            pattern="/accounts",
            name="list_accounts",
            summary="All accounts",
            slow=accounts.list_accounts,
            answers={200: a.AccountsAnswer},
        ),
        Route(
            method="PUT",
            pattern="/accounts/{name}",
            name="put_account",
            summary="Create an account or change it; what is left out stays as it is",
            slow=accounts.put_account,
            request=w.AccountRequest,
            body_optional=True,
            answers={200: a.AccountAnswer, 201: a.AccountAnswer},
            refusals=(409, 429, 507),
        ),
        Route(
            method="GET",
            pattern="/accounts/{name}",
            name="get_account",
            summary="One account",
            slow=accounts.get_account,
            answers={200: a.AccountAnswer},
            refusals=(404,),
        ),
        Route(
            method="DELETE",
            pattern="/accounts/{name}",
            name="delete_account",
            summary="Delete an account with its keys",
            slow=accounts.delete_account,
            answers={204: None},
            refusals=(404, 409),
        ),
        Route(
            method="GET",
            pattern="/accounts/{name}/keys",
            name="list_keys",
            summary="The API keys of an account, without the keys themselves",
            slow=accounts.list_keys,
            answers={200: a.KeysAnswer},
            refusals=(404,),
        ),
        Route(
            method="POST",
            pattern="/accounts/{name}/keys",
            name="create_key",
            summary="A new API key, shown this once",
            slow=accounts.create_key,
            request=w.KeyRequest,
            body_optional=True,
            answers={201: a.NewKeyAnswer},
            refusals=(404, 429, 507),
        ),
        Route(
            method="DELETE",
            pattern="/accounts/{name}/keys/{key_id}",
            name="delete_key",
            summary="Delete an API key: it is refused from then on",
            slow=accounts.delete_key,
            answers={204: None},
            refusals=(404, 409),
        ),
    ]
