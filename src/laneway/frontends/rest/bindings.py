"""Bindings over HTTP: from an exchange to a queue, or on to another exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from heapq import nsmallest
from itertools import chain
from operator import itemgetter
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from laneway.access import Access
from laneway.broker.interface import Bind, Broker, Unbind
from laneway.broker.values import Binding
from laneway.errors import BindingNotFound, ExchangeNotFound
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.answers import BindingAnswer, BindingsAnswer, encode
from laneway.frontends.rest.attributes import attribute_from_wire, attribute_to_wire
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.publishing import ShortText
from laneway.frontends.rest.routing import ApiRoute, Reply, routes_of
from laneway.frontends.rest.wire import PageOptions, read_body
from laneway.frontends.rest.words import exchange_of, name_of

_LIST_PAGE = 100
_SLICE = 2_000  # bindings that are looked at in one turn of the loop

Kind = Literal["queue", "exchange"]
_Key = tuple[str, str, str, str, bytes]


class BindingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a binding matches: a routing key or a pattern of one; with a headers exchange, its arguments."""

    routing_key: ShortText = ""
    arguments: dict[str, Any] | None = None


class UnbindOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    routing_key: ShortText | UnsetType = UNSET


class Bindings:
    def __init__(self, broker: Broker, access: Access) -> None:
        self._broker = broker
        self._access = access

    def routes(self) -> list[ApiRoute]:
        to_queue = self._routes_to("queue", "{B}/e/{exchange}/q/{queue}")
        return [*routes_of(self), *to_queue, *self._routes_to("exchange", "{B}/e/{exchange}/e/{destination}")]

    def _routes_to(self, kind: Kind, pattern: str) -> list[ApiRoute]:
        return [
            ApiRoute(
                "POST",
                pattern,
                f"bind_{kind}",
                f"Bind the {kind} to the exchange",
                request=BindingRequest,
                body_optional=True,
                answers={200: BindingAnswer, 201: BindingAnswer},
                refusals=(404, 429, 507),
                slow=self._bind,
            ),
            ApiRoute(
                "GET",
                pattern,
                f"list_bindings_of_{kind}",
                f"The bindings from the exchange to the {kind}",
                options=PageOptions,
                answers={200: BindingsAnswer},
                refusals=(404,),
                slow=self._list_between,
            ),
            ApiRoute(
                "DELETE",
                pattern,
                f"unbind_{kind}",
                "Remove the binding with this routing key and these arguments",
                request=BindingRequest,
                body_optional=True,
                options=UnbindOptions,
                answers={204: None},
                refusals=(404,),
                slow=self._unbind,
            ),
        ]

    # --- one

    async def _bind(self, call: Call) -> Reply:
        plan = self._check_change(call)
        binding = self._asked(call, plan, "")
        source = self._broker.topology.exchange(plan.vhost, binding.source)
        if source is not None and source.settings.type == "topic":
            self._access.check_topic(call.account, plan.vhost, source.name, binding.routing_key, "read")
        is_new = await self._broker.ask(Bind(plan.vhost, binding))
        return Reply(201 if is_new else 200, encode(_answer(binding)))

    async def _unbind(self, call: Call) -> Reply:
        plan = self._check_change(call)
        options: UnbindOptions = plan.options(UnbindOptions)
        binding = self._asked(call, plan, options.routing_key or "")
        self._check_ends(plan)
        if not await self._broker.ask(Unbind(plan.vhost, binding)):
            raise BindingNotFound(
                f"{binding.kind} {binding.destination!r} is not bound to exchange {name_of(binding.source)!r} with the "
                f"routing key {binding.routing_key!r} and these arguments",
                field="routing_key",
            )
        return Reply(204)

    def _check_change(self, call: Call) -> HeadPlan:
        """As in AMQP: what goes through an exchange is read from it and written to where the binding leads."""
        plan: HeadPlan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.exchange, "read", noun="exchange")
        kind, name = _destination(plan)
        self._access.check(call.account, plan.vhost, name, "write", noun=kind)
        return plan

    def _asked(self, call: Call, plan: HeadPlan, routing_key: str) -> Binding:
        body = read_body(call.body, BindingRequest)
        kind, name = _destination(plan)
        return Binding(
            exchange_of(plan.exchange),
            kind,
            exchange_of(name) if kind == "exchange" else name,
            body.routing_key if call.body else routing_key,
            {name: attribute_from_wire(value) for name, value in (body.arguments or {}).items()},
        )

    def _check_ends(self, plan: HeadPlan) -> None:
        """Both what is bound and what it is bound to must be there."""
        self._broker.topology.check_vhost(plan.vhost)
        kind, name = _destination(plan)
        for exchange in (plan.exchange, *([name] if kind == "exchange" else [])):
            if self._broker.topology.exchange(plan.vhost, exchange_of(exchange)) is None:
                raise ExchangeNotFound(f"there is no exchange {exchange!r}; declare it first", field="exchange")
        if kind == "queue":
            self._broker.topology.find_queue(plan.vhost, name)

    # --- those there are

    async def _list_between(self, call: Call) -> Reply:
        plan: HeadPlan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.exchange, "stats", noun="exchange")
        kind, name = _destination(plan)
        if not self._access.may_see(call.account, plan.vhost, name):
            self._access.check(call.account, plan.vhost, name, "stats", noun=kind)
        self._check_ends(plan)
        destination = exchange_of(name) if kind == "exchange" else name
        found = self._broker.topology.bindings(
            plan.vhost, source=exchange_of(plan.exchange), destination=destination, kind=kind
        )
        return await _page(plan, [found], lambda _: True)

    @ApiRoute("GET", "{B}", options=PageOptions, answers={200: BindingsAnswer}, refusals=(404,))
    async def list_bindings(self, call: Call) -> Reply:
        """The bindings of a virtual host.

        Those of which the caller may not see both ends are left out, and those that the default exchange implies."""
        plan: HeadPlan = call.head.plan
        self._access.check_may_enter(call.account, plan.vhost)
        self._broker.topology.check_vhost(plan.vhost)
        topology, may_see = self._broker.topology, self._access.may_see
        after = _after(plan)
        parts = (
            topology.bindings(plan.vhost, source=info.name)
            for info in topology.exchanges(plan.vhost)
            if info.name and info.name >= after[0] and may_see(call.account, plan.vhost, info.name)
        )
        return await _page(plan, parts, lambda binding: may_see(call.account, plan.vhost, _shown(binding)))


async def _page(plan: HeadPlan, parts: Iterable[list[Binding]], sees: Callable[[Binding], bool]) -> Reply:
    """The next page of what comes in parts, each of one exchange; no more parts are taken than it needs. An exchange
    may have very many, so others have their turns meanwhile."""
    options: PageOptions = plan.options(PageOptions)
    limit, after = options.limit or _LIST_PAGE, _after(plan)
    seen: list[tuple[_Key, Binding]] = []
    for part in parts:
        first: list[tuple[_Key, Binding]] = []
        for at in range(0, len(part), _SLICE):
            keyed = [(_key(binding), binding) for binding in part[at : at + _SLICE] if sees(binding)]
            later = [pair for pair in keyed if pair[0] > after]
            first = nsmallest(limit + 1 - len(seen), chain(first, later), key=itemgetter(0))
            await asyncio.sleep(0)
        seen += first
        if len(seen) > limit:
            break
    shown = seen[:limit]
    next_cursor = encode_cursor(shown[-1][0]) if len(seen) > limit else None
    return Reply(200, encode(BindingsAnswer([_answer(binding) for _, binding in shown], next_cursor)))


def _destination(plan: HeadPlan) -> tuple[Kind, str]:
    return ("queue", plan.queue) if plan.queue else ("exchange", plan.names["destination"])


def _after(plan: HeadPlan) -> _Key:
    """What the page before ended with."""
    cursor = plan.options(PageOptions).cursor
    after: _Key = ("", "", "", "", b"") if cursor is UNSET else decode_cursor(cursor, _Key)
    return after


def _key(binding: Binding) -> _Key:
    """By what bindings are in order, and no two are the same."""
    b = binding
    arguments = msgspec.msgpack.encode(b.arguments, order="deterministic") if b.arguments else b""
    return b.source, b.destination, b.kind, b.routing_key, arguments


def _shown(binding: Binding) -> str:
    """The name of where it leads, as permissions have it."""
    return name_of(binding.destination) if binding.kind == "exchange" else binding.destination


def _answer(binding: Binding) -> BindingAnswer:
    return BindingAnswer(
        name_of(binding.source),
        _shown(binding),
        binding.kind,
        binding.routing_key,
        attribute_to_wire(binding.arguments),
    )
