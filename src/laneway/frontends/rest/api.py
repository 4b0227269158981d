"""The HTTP API: all its routes put together, and the way from a request to its handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

from laneway.access import Access
from laneway.broker.interface import Broker
from laneway.errors import LanewayError, Unauthenticated, Unavailable
from laneway.frontends.doors.directory import Directory, LocalDirectory
from laneway.frontends.http.errors import HttpError
from laneway.frontends.http.head import Head, body_too_large
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest.accounts import Accounts
from laneway.frontends.rest.admin import Administration
from laneway.frontends.rest.alerts import AlertsApi, FindFiring, nothing_fires
from laneway.frontends.rest.bindings import Bindings
from laneway.frontends.rest.connections import ConnectionsApi
from laneway.frontends.rest.dequeuing import Dequeuing
from laneway.frontends.rest.errors import INTERNAL, encode_error, headers_of, status_of, unsupported_media_type
from laneway.frontends.rest.exchanges import ExchangesApi
from laneway.frontends.rest.getting import Getting
from laneway.frontends.rest.hot import PublishApi, SettleApi
from laneway.frontends.rest.journal import JournalApi
from laneway.frontends.rest.limits import RestLimits
from laneway.frontends.rest.live import FindAlarms, LiveApi, LiveStream, no_alarms
from laneway.frontends.rest.metrics import MetricsApi, MetricsOptions
from laneway.frontends.rest.moves import MovesApi
from laneway.frontends.rest.openapi import openapi_document
from laneway.frontends.rest.plan import HeadPlan, KeyedHeads, OneMessageHeads
from laneway.frontends.rest.processes import FindLoads, ProcessesApi, no_loads
from laneway.frontends.rest.producers import ProducersApi
from laneway.frontends.rest.rebalancing import Rebalancing
from laneway.frontends.rest.routing import ApiRoute, Router, routes_of
from laneway.frontends.rest.settings import Reload, SettingsApi, nothing_to_reload
from laneway.frontends.rest.statistics import FindHistory, FindStats, StatisticsApi, no_history, no_stats
from laneway.frontends.rest.times import Timestamps
from laneway.frontends.rest.vhosts import VirtualHosts
from laneway.frontends.rest.writing import AnswerWriter
from laneway.telemetry.turns import LoopTurns

log = logging.getLogger("laneway.http")

_SERVING_NOBODY = ("starting", "stopping", "failed", "unreachable")  # all other states keep publishers out at most


class RestApi:
    """What protocol.HttpConnection calls its application."""

    def __init__(
        self,
        broker: Broker,
        access: Access,
        limits: RestLimits,
        *,
        directory: Directory | None = None,
        reload: Reload = nothing_to_reload,
        find_loads: FindLoads = no_loads,
        turns: LoopTurns | None = None,
        find_stats: FindStats = no_stats,
        find_history: FindHistory = no_history,
        find_alarms: FindAlarms = no_alarms,
        find_firing: FindFiring = nothing_fires,
        metrics: MetricsOptions | None = None,
    ) -> None:
        self._broker = broker
        self._metrics = metrics = metrics or MetricsOptions()
        self._access = access
        self._limits = limits
        self._turns = turns  # of this process; else those that the broker tells of
        self._version = version("laneway")
        self._tasks: set[asyncio.Task[None]] = set()  # administration
        self._logins: set[asyncio.Task[None]] = set()  # password checks
        self._one_message_heads, self._keyed_heads = OneMessageHeads(), KeyedHeads()
        writer = AnswerWriter(Timestamps())
        self._dequeuing = Dequeuing(broker, access, limits, writer)
        self._live = LiveApi(broker, access, find_alarms)
        settling = SettleApi(broker, access, limits, writer)
        routes = (
            *routes_of(PublishApi(broker, access, limits, writer)),
            *routes_of(self._dequeuing),
            *routes_of(settling),
            *settling.batch_routes(),
            *routes_of(Getting(broker, access, limits, writer)),
            *routes_of(Administration(broker, access, limits, writer)),
            *routes_of(ExchangesApi(broker, access, writer)),
            *Bindings(broker, access).routes(),
            *routes_of(VirtualHosts(broker, access)),
            *routes_of(Rebalancing(broker, access, writer)),
            *routes_of(MovesApi(broker, access)),
            *routes_of(ProducersApi(broker, access, writer)),
            *routes_of(JournalApi(broker, access)),
            *routes_of(Accounts(access, writer)),
            *routes_of(ConnectionsApi(broker, access, directory or LocalDirectory(), writer.times)),
            *routes_of(SettingsApi(access, reload)),
            *routes_of(ProcessesApi(access, find_loads)),
            *routes_of(MetricsApi(access, metrics, find_loads)),
            *routes_of(self._live),
            *routes_of(AlertsApi(access, writer.times, find_firing)),
            *routes_of(StatisticsApi(broker, access, writer.times, find_stats, find_history)),
            *routes_of(self),
        )
        self._router = Router(routes)
        self._openapi = a.encode(openapi_document(routes, limits, self._version))

    def takes(self, head: Head) -> bool:
        return True

    def plan(self, head: Head) -> HeadPlan:
        plan = HeadPlan(head, self._router)
        head.is_repeated = plan.route is not None and plan.route.is_repeated and head.idempotency_key is None
        head.own = (plan.names.get("message_id", ""), plan.query)
        return plan

    def learn(self, raw: bytes, head: Head) -> None:
        self._one_message_heads.learn(raw, head)
        self._keyed_heads.learn(raw, head)

    def recall(self, raw: bytes) -> Head | None:
        return self._one_message_heads.recall(raw) or self._keyed_heads.recall(raw)

    def handle(self, call: Call) -> None:
        plan: HeadPlan = call.head.plan
        try:
            if self._access.version != plan.known_version or call.connection.peer_kind != plan.known_peer_kind:
                self._handle_unknown(call, plan)
                return
            call.account = plan.account
            if plan.is_hot:
                plan.fast(call)  # type: ignore[misc]
            else:
                self._dispatch(call, plan)
        except Exception as error:
            self._refuse(call, error)

    def _handle_unknown(self, call: Call, plan: HeadPlan) -> None:
        """Of which nobody knows yet who is asking: it may be that nobody has to."""
        if plan.refusal is not None:
            call.refuse(plan.refusal)
        elif plan.is_public or (plan.is_for_scrapers and self._metrics.are_open_to(call)):
            self._dispatch(call, plan)
        elif plan.find_account(self._access, call):
            call.account = plan.account
            if call.head.raw:
                call.remember()
                self._router.remember(call.head.method, call.head.target, plan.match)
            self._dispatch(call, plan)
        else:
            self._begin(call, self._authenticate(call, plan), self._logins)

    def knows(self, call: Call) -> bool:
        plan: HeadPlan = call.head.plan
        if self._access.version == plan.known_version and call.connection.peer_kind == plan.known_peer_kind:
            return True
        return plan.credentials.are_known(self._access, call)

    def end_wait(self, call: Call) -> None:
        if isinstance(call.waiter, LiveStream):
            self._live.end(call.waiter)
        else:
            self._dequeuing.end_wait(call)

    def recheck(self, call: Call) -> None:
        plan: HeadPlan = call.head.plan
        try:
            account = plan.credentials.account_now(self._access, call)
            if account is None:  # its password was right before, and is no longer
                raise Unauthenticated("the account was deleted, or its password changed")
            if isinstance(call.waiter, LiveStream):
                self._live.recheck(call.waiter)
                return
            self._access.check(account, plan.vhost, plan.queue, "read")
        except LanewayError as error:
            if isinstance(call.waiter, LiveStream):
                self._live.end(call.waiter)
                return
            self._broker.withdraw(call.waiter)
            call.waiter = None
            call.refuse(error)

    def refusal(self, error: LanewayError) -> tuple[int, bytes, bytes]:
        return status_of(error), encode_error(error), headers_of(error)

    def _dispatch(self, call: Call, plan: HeadPlan) -> None:
        if plan.fast is not None:
            if not plan.is_json and call.body:
                _check_media_type(plan)
            plan.fast(call)
        elif len(self._tasks) >= self._limits.slow_count:
            raise Unavailable(f"{self._limits.slow_count} administrative requests are being worked on: try again soon")
        else:
            self._begin(call, self._run(call, plan), self._tasks)

    # --- what is awaited

    @staticmethod
    def _begin(call: Call, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        # Requests behind this one on its connection wait: what they do must come after what this one does.
        call.connection.hold(call)
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _authenticate(self, call: Call, plan: HeadPlan) -> None:
        """How many of these there are is bounded by access, by address: they take nothing from those who are known."""
        try:
            call.account = await plan.credentials.account_later(self._access, call)
            call.connection.release(call)
            self._dispatch(call, plan)
        except Exception as error:
            self._refuse(call, error)

    async def _run(self, call: Call, plan: HeadPlan) -> None:
        try:
            if not plan.is_json and call.body:
                _check_media_type(plan)
            assert plan.route is not None and plan.route.slow is not None
            most = plan.route.max_body_bytes
            if most is not None and len(call.body) > most:
                raise body_too_large(len(call.body), most)
            reply = await plan.route.slow(call)
            call.answer(reply.status, reply.body, reply.headers, reply.content_type)
        except Exception as error:
            self._refuse(call, error)

    def _refuse(self, call: Call, error: Exception) -> None:
        if not isinstance(error, LanewayError):
            log.error("%s %s failed", call.head.method, call.head.target, exc_info=error)
            error = INTERNAL
        call.refuse(error)

    # --- the server itself. Whoever watches it must be answered however busy it is: nothing here is awaited.

    @ApiRoute("GET", "/", public=True, answers={200: a.RootAnswer})
    def root(self, call: Call) -> None:
        """What this is."""
        links = {"api": "/openapi.json", "queues": "/queues", "health": "/healthz", "readiness": "/readyz"}
        call.answer(200, a.encode(a.RootAnswer(name="laneway", version=self._version, links=links)))

    @ApiRoute("GET", "/healthz", public=True, answers={200: a.AliveAnswer})
    def healthz(self, call: Call) -> None:
        """Whether the process is alive, and whether anything keeps it from answering at once."""
        if self._turns is not None:
            counts: dict[str, object] = self._turns.counts()
        else:
            health = self._broker.health()
            counts = {name: health[name] for name in ("slow_turns", "longest_turn_ms")}
        call.answer(200, a.encode({"state": "alive", **counts}))

    @ApiRoute("GET", "/readyz", public=True, answers={200: a.HealthAnswer})
    def readyz(self, call: Call) -> None:
        """Whether the server takes all requests, those for every partition; 503 with its state if not."""
        self._answer_ready(call, lambda state: state == "ready")

    @ApiRoute("GET", "/readyz/publish", public=True, answers={200: a.HealthAnswer})
    def ready_to_publish(self, call: Call) -> None:
        """Whether the node takes messages; 503 with its state if not."""
        self._answer_ready(call, lambda state: state == "ready")

    @ApiRoute("GET", "/readyz/consume", public=True, answers={200: a.HealthAnswer})
    def ready_to_consume(self, call: Call) -> None:
        """Whether the node serves consumers, which a full disk does not keep it from; 503 with its state if not."""
        self._answer_ready(call, lambda state: state not in _SERVING_NOBODY)

    def _answer_ready(self, call: Call, is_enough: Callable[[str], bool]) -> None:
        health = self._broker.health()
        state = str(health.get("state"))
        if not is_enough(state):
            raise HttpError(503, "not_ready", f"the node is not ready: its state is {state}", state=state)
        partitions = health.get("partitions")
        if isinstance(partitions, dict):  # where there are several, each has a state of its own
            for partition, its_state in partitions.items():
                if not is_enough(str(its_state)):
                    why = f"partition {partition} is not ready: its state is {its_state}"
                    raise HttpError(503, "not_ready", why, state=str(its_state))
        call.answer(200, a.encode(a.HealthAnswer(state=state)))

    @ApiRoute("GET", "/openapi.json", public=True, answers={200: dict})
    def openapi(self, call: Call) -> None:
        """This document."""
        call.answer(200, self._openapi)


def _check_media_type(plan: HeadPlan) -> None:
    route = plan.route
    if route is not None and route.request is not None and not (route.takes_bytes or route.takes_msgpack):
        raise unsupported_media_type(plan.content_type, "application/json")
