"""The management API: which requests are its own, who asks, and the way to a handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from copy import copy
from typing import Any

from laneway.access import Access
from laneway.broker.interface import Broker
from laneway.errors import LanewayError, Unauthenticated, Unavailable
from laneway.frontends.doors.directory import Directory
from laneway.frontends.http.credentials import Credentials
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head, body_too_large
from laneway.frontends.http.protocol import Call
from laneway.frontends.management.asking import ManagementAsk
from laneway.frontends.management.connections import ConnectionsPart
from laneway.frontends.management.definitions import DefinitionsPart
from laneway.frontends.management.errors import INTERNAL, refusal
from laneway.frontends.management.exchanges import ExchangesPart
from laneway.frontends.management.messages import MessagesPart
from laneway.frontends.management.overview import OverviewPart, ServerFacts
from laneway.frontends.management.policies import PoliciesPart
from laneway.frontends.management.queues import QueuesPart
from laneway.frontends.management.routing import EndpointRouter, path_of, routes_of
from laneway.frontends.management.scope import Scope
from laneway.frontends.management.users import UsersPart
from laneway.frontends.management.vhosts import VhostsPart

log = logging.getLogger("laneway.management")

_ROOT = "/api"
_AT_ONCE = 64  # requests worked on, over all connections


def management_api(broker: Broker, access: Access, directory: Directory, facts: ServerFacts) -> ManagementApi:
    """With all its parts."""
    return ManagementApi(parts_of(Scope(broker, access), directory, facts), access)


def parts_of(scope: Scope, directory: Directory, facts: ServerFacts) -> list[object]:
    policies, exchanges, users = PoliciesPart(scope), ExchangesPart(scope), UsersPart(scope)
    queues, vhosts = QueuesPart(scope, policies), VhostsPart(scope)
    return [
        OverviewPart(scope, directory, facts),
        vhosts,
        users,
        queues,
        exchanges,
        policies,
        DefinitionsPart(scope, users, vhosts, queues, exchanges, policies),
        MessagesPart(scope),
        ConnectionsPart(scope, directory),
    ]


class ManagementPlan:
    """What can be said about a request from its head alone."""

    __slots__ = ("credentials", "match")

    def __init__(self, head: Head, router: EndpointRouter) -> None:
        self.match = router.match(head)
        self.credentials = Credentials(head)


class ManagementApi:
    """What http.protocol.HttpConnection calls an application."""

    def __init__(self, parts: Sequence[object], access: Access) -> None:
        self._access = access
        self._router = EndpointRouter([route for part in parts for route in routes_of(part)])
        self._tasks: set[asyncio.Task[None]] = set()
        self._logins: set[asyncio.Task[None]] = set()

    def takes(self, head: Head) -> bool:
        path = path_of(head).partition("?")[0]
        return path == _ROOT or path.startswith(_ROOT + "/")

    def plan(self, head: Head) -> ManagementPlan:
        head.is_repeated = False  # those of the frequent requests are better remembered
        return ManagementPlan(head, self._router)

    def learn(self, raw: bytes, head: Head) -> None:
        pass

    def recall(self, raw: bytes) -> None:
        return None

    def handle(self, call: Call) -> None:
        plan: ManagementPlan = call.head.plan
        try:
            if not plan.credentials.is_basic:
                raise Unauthenticated("the management API wants a name and a password, as Basic")
            account = plan.credentials.account_now(self._access, call)
            if account is None:
                self._begin(call, self._authenticate(call, plan), self._logins)
                return
            call.account = account
            self._start(call, plan)
        except Exception as error:
            self._refuse(call, error)

    def knows(self, call: Call) -> bool:
        plan: ManagementPlan = call.head.plan
        return plan.credentials.is_basic and plan.credentials.are_known(self._access, call)

    def end_wait(self, call: Call) -> None:
        raise AssertionError("nothing waits here")

    def recheck(self, call: Call) -> None:
        raise AssertionError("nothing waits here")

    def refusal(self, error: LanewayError) -> tuple[int, bytes, bytes]:
        return refusal(error)

    def _start(self, call: Call, plan: ManagementPlan) -> None:
        if call.head.raw:
            call.remember()
        if len(self._tasks) >= _AT_ONCE:
            raise Unavailable(f"{_AT_ONCE} requests of the management API are being worked on: try again soon")
        self._begin(call, self._run(call, plan), self._tasks)

    @staticmethod
    def _begin(call: Call, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        # Requests behind this one on its connection wait: what they do must come after what this one does.
        call.connection.hold(call)
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _authenticate(self, call: Call, plan: ManagementPlan) -> None:
        """How many of these there are is bounded by access, by address."""
        try:
            call.account = await plan.credentials.account_later(self._access, call)
            call.connection.release(call)
            self._start(call, plan)
        except Exception as error:
            self._refuse(call, error)

    async def _run(self, call: Call, plan: ManagementPlan) -> None:
        try:
            self._access.check_may_manage(call.account)
            match = plan.match
            if match.refusal is not None:
                raise copy(match.refusal)
            assert match.route is not None
            if len(call.body) > match.route.max_body_bytes:
                raise body_too_large(len(call.body), match.route.max_body_bytes)
            answer = await match.route.handler(ManagementAsk(call, call.account, match.names, match.query))
            call.answer(answer.status, answer.body, answer.headers)
        except Exception as error:
            self._refuse(call, error)

    def _refuse(self, call: Call, error: Exception) -> None:
        if isinstance(error, HttpError) and error.status == 200:  # to OPTIONS
            call.answer(200, b"", error.headers)
            return
        if not isinstance(error, LanewayError):
            log.error("%s %s failed", call.head.method, call.head.target, exc_info=error)
            error = INTERNAL
        call.refuse(error)
