"""Bindings over HTTP: from an exchange to a queue, or on to another exchange."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from laneway.access import Access
from laneway.broker.broker import Broker
from laneway.broker.values import Binding
from laneway.errors import BindingNotFound, ExchangeNotFound
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.admin import read_body
from laneway.frontends.rest.answers import BindingAnswer, BindingsAnswer, encode
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.publishing import ShortText, attribute_from_wire
from laneway.frontends.rest.routing import Reply, Route
from laneway.frontends.rest.wire import PageOptions, decoder
from laneway.frontends.rest.words import exchange_of, name_of
from laneway.frontends.rest.writing import attribute_to_wire

_LIST_PAGE = 100

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
        self._decode = decoder(BindingRequest)

    # --- one

    async def bind(self, call: Call) -> Reply:
        plan = self._check_change(call)
        binding = self._asked(call, plan, "")
        is_new = self._broker.exchanges.bind(plan.vhost, binding)
        await self._broker.durable()
        return Reply(201 if is_new else 200, encode(_answer(binding)))

    async def unbind(self, call: Call) -> Reply:
        plan = self._check_change(call)
        options: UnbindOptions = plan.options(UnbindOptions)
        binding = self._asked(call, plan, options.routing_key or "")
        self._check_ends(plan)
        if not self._broker.exchanges.unbind(plan.vhost, binding):
            raise BindingNotFound(
                f"{binding.kind} {binding.destination!r} is not bound to exchange {name_of(binding.source)!r} with the "
                f"routing key {binding.routing_key!r} and these arguments",
                field="routing_key",
            )
        await self._broker.durable()
        return Reply(204)

    def _check_change(self, call: Call) -> Plan:
        """As in AMQP: what goes through an exchange is read from it and written to where the binding leads."""
        plan: Plan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.exchange, "read", noun="exchange")
        kind, name = _destination(plan)
        self._access.check(call.account, plan.vhost, name, "write", noun=kind)
        return plan

    def _asked(self, call: Call, plan: Plan, routing_key: str) -> Binding:
        body: BindingRequest = read_body(call, self._decode, BindingRequest(routing_key=routing_key))
        kind, name = _destination(plan)
        return Binding(
            exchange_of(plan.exchange),
            kind,
            exchange_of(name) if kind == "exchange" else name,
            body.routing_key,
            {name: attribute_from_wire(value) for name, value in (body.arguments or {}).items()},
        )

    def _check_ends(self, plan: Plan) -> None:
        """Both what is bound and what it is bound to must be there."""
        self._broker.vhosts.check(plan.vhost)
        kind, name = _destination(plan)
        for exchange in (plan.exchange, *([name] if kind == "exchange" else [])):
            if self._broker.exchanges.info(plan.vhost, exchange_of(exchange)) is None:
                raise ExchangeNotFound(f"there is no exchange {exchange!r}; declare it first", field="exchange")
        if kind == "queue":
            self._broker.queues.describe(plan.vhost, name)

    # --- those there are

    async def list_between(self, call: Call) -> Reply:
        plan: Plan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.exchange, "stats", noun="exchange")
        self._check_ends(plan)
        kind, name = _destination(plan)
        destination = exchange_of(name) if kind == "exchange" else name
        found = self._broker.exchanges.bindings(
            plan.vhost, source=exchange_of(plan.exchange), destination=destination, kind=kind
        )
        return self._page(plan, [found])

    async def list_all(self, call: Call) -> Reply:
        """All whose exchange the caller may see, but for those that the default exchange implies."""
        plan: Plan = call.head.plan
        self._broker.vhosts.check(plan.vhost)
        exchanges, may_see = self._broker.exchanges, self._access.may_see
        after = _after(plan)
        return self._page(
            plan,
            (
                exchanges.bindings(plan.vhost, source=info.name)
                for info in exchanges.list(plan.vhost)
                if info.name and info.name >= after[0] and may_see(call.account, plan.vhost, info.name)
            ),
        )

    def _page(self, plan: Plan, parts: Iterable[list[Binding]]) -> Reply:
        """The next page of what comes in parts, each of one exchange; no more parts are taken than it needs."""
        options: PageOptions = plan.options(PageOptions)
        limit, after = options.limit or _LIST_PAGE, _after(plan)
        seen: list[tuple[_Key, Binding]] = []
        for part in parts:
            keyed = [(_key(binding), binding) for binding in part]
            seen += sorted((pair for pair in keyed if pair[0] > after), key=itemgetter(0))
            if len(seen) > limit:
                break
        shown = seen[:limit]
        next_cursor = encode_cursor(shown[-1][0]) if len(seen) > limit else None
        return Reply(200, encode(BindingsAnswer([_answer(binding) for _, binding in shown], next_cursor)))


def _destination(plan: Plan) -> tuple[Kind, str]:
    return ("queue", plan.queue) if plan.queue else ("exchange", plan.part)


def _after(plan: Plan) -> _Key:
    """What the page before ended with."""
    cursor = plan.options(PageOptions).cursor
    after: _Key = ("", "", "", "", b"") if cursor is UNSET else decode_cursor(cursor, _Key)
    return after


def _key(binding: Binding) -> _Key:
    """By what bindings are in order, and no two are the same."""
    b = binding
    arguments = msgspec.msgpack.encode(b.arguments, order="deterministic") if b.arguments else b""
    return b.source, b.destination, b.kind, b.routing_key, arguments


def _answer(binding: Binding) -> BindingAnswer:
    return BindingAnswer(
        name_of(binding.source),
        name_of(binding.destination) if binding.kind == "exchange" else binding.destination,
        binding.kind,
        binding.routing_key,
        attribute_to_wire(binding.arguments),
    )


def binding_routes(bindings: Bindings) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="{B}",
            name="list_bindings",
            summary="The bindings of a virtual host",
            slow=bindings.list_all,
            options=PageOptions,
            answers={200: BindingsAnswer},
            refusals=(404,),
        ),
        *(
            route
            for kind, ends in (("queue", "/e/{exchange}/q/{queue}"), ("exchange", "/e/{exchange}/e/{destination}"))
            for route in _routes_between(bindings, kind, "{B}" + ends)
        ),
    ]


def _routes_between(bindings: Bindings, kind: str, pattern: str) -> list[Route]:
    return [
        Route(
            method="POST",
            pattern=pattern,
            name=f"bind_{kind}",
            summary=f"Bind the {kind} to the exchange",
            slow=bindings.bind,
            request=BindingRequest,
            body_optional=True,
            answers={200: BindingAnswer, 201: BindingAnswer},
            refusals=(404, 429, 507),
        ),
        Route(
            method="GET",
            pattern=pattern,
            name=f"list_bindings_of_{kind}",
            summary=f"The bindings from the exchange to the {kind}",
            slow=bindings.list_between,
            options=PageOptions,
            answers={200: BindingsAnswer},
            refusals=(404,),
        ),
        Route(
            method="DELETE",
            pattern=pattern,
            name=f"unbind_{kind}",
            summary="Remove the binding with this routing key and these arguments",
            slow=bindings.unbind,
            request=BindingRequest,
            body_optional=True,
            options=UnbindOptions,
            answers={204: None},
            refusals=(404,),
        ),
    ]
