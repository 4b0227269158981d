"""The HTTP API: all its routes put together, and the way from a request to its handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from importlib.metadata import version
from typing import Any

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.errors import LanewayError, Unavailable
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest.accounts import Accounts
from laneway.frontends.rest.admin import Administration
from laneway.frontends.rest.bindings import Bindings, binding_routes
from laneway.frontends.rest.dequeuing import Dequeuing
from laneway.frontends.rest.errors import INTERNAL, encode_error, headers_of, status_of
from laneway.frontends.rest.exchanges import Exchanges, exchange_message_routes, exchange_routes
from laneway.frontends.rest.getting import Getting, get_routes
from laneway.frontends.rest.hot import HotPaths
from laneway.frontends.rest.journal import JournalApi, journal_routes
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.openapi import openapi_document
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.producers import Producers, producer_routes
from laneway.frontends.rest.rebalancing import Rebalancing, rebalancing_routes
from laneway.frontends.rest.routes import account_routes, message_routes, queue_routes
from laneway.frontends.rest.routing import Reply, Route, Router
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.vhosts import VirtualHosts, vhost_routes
from laneway.frontends.rest.writing import Writer

log = logging.getLogger("laneway.http")


class RestApi:
    """What protocol.Connection calls its application."""

    def __init__(self, broker: Broker, access: Access, limits: RestLimits) -> None:
        self._broker = broker
        self._access = access
        self._limits = limits
        self._version = version("laneway")
        self._tasks: set[asyncio.Task[None]] = set()
        writer = Writer(Timestamps())
        self._dequeuing = Dequeuing(broker, access, limits, writer)
        exchanges = Exchanges(broker, access, writer)
        self._routes = (
            *message_routes(HotPaths(broker, access, limits, writer), self._dequeuing),
            *get_routes(Getting(broker, access, limits, writer)),
            *queue_routes(Administration(broker, access, limits, writer)),
            *exchange_routes(exchanges),
            *exchange_message_routes(exchanges),
            *binding_routes(Bindings(broker, access)),
            *vhost_routes(VirtualHosts(broker, access)),
            *rebalancing_routes(Rebalancing(broker, access, writer)),
            *producer_routes(Producers(broker, access, writer)),
            *journal_routes(JournalApi(broker, access)),
            *account_routes(Accounts(access, writer)),
            *self._server_routes(),
        )
        self._router = Router(self._routes)
        self._openapi = a.encode(openapi_document(self._routes, limits, self._version))

    def takes(self, head: Head) -> bool:
        return True

    def plan(self, head: Head) -> Plan:
        return Plan(head, self._router)

    def learn(self, raw: bytes, head: Head) -> None:
        pass  # its clients repeat their heads to the byte

    def recall(self, raw: bytes) -> Head | None:
        return None

    def handle(self, call: Call) -> None:
        plan: Plan = call.head.plan
        try:
            if self._access.version != plan.known_version or call.connection.from_loopback is not plan.knows_loopback:
                self._handle_unknown(call, plan)
                return
            call.account = plan.account
            if plan.is_hot:
                plan.fast(call)  # type: ignore[misc]
            else:
                self._dispatch(call, plan)
        except Exception as error:
            self._refuse(call, error)

    def _handle_unknown(self, call: Call, plan: Plan) -> None:
        """Of which nobody knows yet who is asking: it may be that nobody has to."""
        if plan.refusal is not None:
            call.refuse(plan.refusal)
        elif plan.is_public:
            self._dispatch(call, plan)
        elif plan.find_account(self._access, call.connection.from_loopback):
            call.account = plan.account
            self._dispatch(call, plan)
        else:
            self._start(call, self._authenticate(call, plan))

    def end_wait(self, call: Call) -> None:
        self._dequeuing.end_wait(call)

    def refusal(self, error: LanewayError) -> tuple[int, bytes, bytes]:
        return status_of(error), encode_error(error), headers_of(error)

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
        call.is_alone = False
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
            call.answer(reply.status, reply.body, reply.headers, reply.content_type)
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
    route = plan.route
    if route is not None and route.request is not None and not (route.takes_bytes or route.takes_msgpack):
        raise HttpError(
            415,
            "unsupported_media_type",
            f"the body is {plan.content_type[:80]!r}, application/json is expected",
            field="Content-Type",
        )
