"""Exchanges over HTTP: declaring them, publishing through them, and asking where a message would go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Access, Need
from laneway.broker.arguments import DELAYED_TYPE, EXCHANGE_TYPES, exchange_from_arguments
from laneway.broker.broker import Broker
from laneway.broker.values import Arrival, ExchangeInfo, ExchangeSettings, Hop, Receipt
from laneway.broker.values import Route as Way
from laneway.errors import ExchangeNotFound, InvalidInput, LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest.admin import read_body
from laneway.frontends.rest.answering import answers_anyway
from laneway.frontends.rest.answers import (
    ArrivalAnswer,
    ExchangeAnswer,
    ExchangesAnswer,
    HopAnswer,
    RouteAnswer,
    RoutedAnswer,
    RoutesAnswer,
    encode,
)
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.errors import error_object
from laneway.frontends.rest.hot import REPLAYED, idempotency_of
from laneway.frontends.rest.plan import Plan
from laneway.frontends.rest.publishing import Attributes, RoutedRequest, ShortText, attribute_values, decode_routed
from laneway.frontends.rest.routing import Reply, Route
from laneway.frontends.rest.wire import ListOptions, decoder
from laneway.frontends.rest.words import exchange_of, name_of
from laneway.frontends.rest.writing import Writer, attribute_to_wire

_LIST_PAGE = 100
_TYPES = "|".join((*EXCHANGE_TYPES, DELAYED_TYPE))


class ExchangeRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An exchange. alternate_exchange and delayed may as well be given as AMQP has them, in type and arguments."""

    type: Annotated[str, Meta(pattern=f"^({_TYPES})$")] = "direct"
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    alternate_exchange: Annotated[str, Meta(max_length=255)] | None = None
    delayed: bool = False
    arguments: dict[str, Any] | None = None


class DeleteExchangeOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    if_unused: bool | UnsetType = UNSET


class RouteRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What a message would say that has a say in where it goes."""

    routing_key: ShortText = ""
    attributes: Attributes | None = None


def settings_of(request: ExchangeRequest) -> ExchangeSettings:
    """The same settings that an AMQP client's declaration gives, arguments included: so either may declare it again."""
    arguments = dict(request.arguments or {})
    kind = request.type
    for given, name, value in (
        (request.alternate_exchange is not None, "alternate-exchange", request.alternate_exchange),
        (request.delayed and kind != DELAYED_TYPE, "x-delayed-type", kind),
    ):
        if given and arguments.setdefault(name, value) != value:
            raise InvalidInput(f"{name} is given twice, and not the same", field=f"arguments.{name}")
    return exchange_from_arguments(
        DELAYED_TYPE if request.delayed else kind,
        arguments,
        durable=request.durable,
        auto_delete=request.auto_delete,
        internal=request.internal,
    )


class Exchanges:
    def __init__(self, broker: Broker, access: Access, writer: Writer) -> None:
        self._broker = broker
        self._access = access
        self._writer = writer
        self._decode = decoder(ExchangeRequest)
        self._decode_route = decoder(RouteRequest)

    def _check(self, call: Call, need: Need) -> Plan:
        plan: Plan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.exchange, need, noun="exchange")
        return plan

    # --- what there is

    async def put_exchange(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        settings = settings_of(read_body(call, self._decode, ExchangeRequest()))
        if settings.alternate_exchange is not None:
            # Or what one may not publish to could be reached through an exchange of one's own.
            name = name_of(settings.alternate_exchange)
            self._access.check(call.account, plan.vhost, name, "write", noun="exchange")
        exchanges = self._broker.exchanges
        is_new = exchanges.info(plan.vhost, exchange_of(plan.exchange)) is None
        info = exchanges.declare(plan.vhost, exchange_of(plan.exchange), settings)
        await self._broker.durable()
        return Reply(201 if is_new else 200, encode(self._answer(info)))

    async def get_exchange(self, call: Call) -> Reply:
        plan = self._check(call, "stats")
        self._broker.vhosts.check(plan.vhost)
        info = self._broker.exchanges.info(plan.vhost, exchange_of(plan.exchange))
        if info is None:
            raise ExchangeNotFound(f"there is no exchange {plan.exchange!r}; declare it first", field="exchange")
        return Reply(200, encode(self._answer(info)))

    async def delete_exchange(self, call: Call) -> Reply:
        plan = self._check(call, "configure")
        options: DeleteExchangeOptions = plan.options(DeleteExchangeOptions)
        name = exchange_of(plan.exchange)
        self._broker.exchanges.delete(plan.vhost, name, if_unused=bool(options.if_unused))
        await self._broker.durable()
        return Reply(204)

    async def list_exchanges(self, call: Call) -> Reply:
        """Those that the caller may see, by name."""
        plan: Plan = call.head.plan
        options: ListOptions = plan.options(ListOptions)
        self._broker.vhosts.check(plan.vhost)
        after = None if options.cursor is UNSET else decode_cursor(options.cursor, str)
        limit, prefix = options.limit or _LIST_PAGE, options.prefix or ""
        found = sorted(self._broker.exchanges.list(plan.vhost), key=lambda info: name_of(info.name))
        seen = [
            info
            for info in found
            if (after is None or name_of(info.name) > after)
            and name_of(info.name).startswith(prefix)
            and self._access.may_see(call.account, plan.vhost, name_of(info.name))
        ]
        shown = seen[:limit]
        next_cursor = encode_cursor(name_of(shown[-1].name)) if len(seen) > limit else None
        return Reply(200, encode(ExchangesAnswer([self._answer(info) for info in shown], next_cursor)))

    def _answer(self, info: ExchangeInfo) -> ExchangeAnswer:
        s = info.settings
        return ExchangeAnswer(
            name_of(info.name),
            info.vhost,
            s.type,
            s.durable,
            s.auto_delete,
            s.internal,
            s.alternate_exchange,
            s.delayed,
            attribute_to_wire(s.arguments),
            info.is_built_in,
            info.binding_count,
            self._writer.times.text(info.created_at_ms) if info.created_at_ms else None,
        )

    # --- publishing

    def publish(self, call: Call) -> None:
        plan = self._check(call, "write")
        exchange = exchange_of(plan.exchange)
        routing_key, draft = decode_routed(call.body)
        key = call.head.idempotency_key
        self._broker.exchanges.publish(
            plan.vhost,
            exchange,
            routing_key,
            draft,
            partial(self._arrived, call),
            idempotency=None if key is None else idempotency_of(call, key),
        )

    @answers_anyway
    def _arrived(self, call: Call, arrivals: Sequence[Arrival]) -> None:
        """If no queue took it, it was refused; if only some did, that is told queue by queue."""
        refused = [a.result for a in arrivals if isinstance(a.result, LanewayError)]
        if arrivals and len(refused) == len(arrivals):
            call.refuse(refused[0])
            return
        vhost: str = call.head.plan.vhost
        seen = [a for a in arrivals if self._access.may_see(call.account, vhost, a.queue)]
        answer = RoutedAnswer(bool(arrivals), len(arrivals), [_arrival(a) for a in seen])
        is_replay = call.head.idempotency_key is not None and all(
            isinstance(a.result, Receipt) and a.result.duplicate for a in arrivals
        )
        call.answer(207 if refused else 200, encode(answer), REPLAYED if arrivals and is_replay else b"")

    # --- where would it go

    async def route(self, call: Call) -> Reply:
        plan = self._check(call, "stats")
        self._broker.vhosts.check(plan.vhost)
        asked: RouteRequest = read_body(call, self._decode_route, RouteRequest())
        headers = attribute_values(asked.attributes or {})
        exchange = exchange_of(plan.exchange)
        found = self._broker.exchanges.explain(plan.vhost, exchange, asked.routing_key, headers)
        seen = [route for route in found if self._access.may_see(call.account, plan.vhost, route.queue)]
        answer = RoutesAnswer(
            bool(found),
            list(dict.fromkeys(route.queue for route in seen)),
            [self._route(plan.vhost, route, asked.routing_key) for route in seen],
            "" if found else self._why_not(plan.vhost, exchange, asked.routing_key),
        )
        return Reply(200, encode(answer))

    def _why_not(self, vhost: str, exchange: str, routing_key: str) -> str:
        if not exchange:
            return f"there is no queue {routing_key!r}"
        info = self._broker.exchanges.info(vhost, exchange)
        assert info is not None  # or it could not have been asked
        count, alternate = info.binding_count, info.settings.alternate_exchange
        if not count:
            why = f"exchange {exchange!r} has no bindings"
        elif count == 1:
            why = f"the only binding of exchange {exchange!r} does not match, or leads nowhere"
        else:
            why = f"none of the {count} bindings of exchange {exchange!r} matches and leads to a queue"
        if alternate is None:
            return why
        return f"{why}, nor does its alternate exchange {name_of(alternate)!r} lead anywhere"

    def _route(self, vhost: str, route: Way, routing_key: str) -> RouteAnswer:
        return RouteAnswer(route.queue, [self._hop(vhost, hop, routing_key) for hop in route.hops])

    def _hop(self, vhost: str, hop: Hop, routing_key: str) -> HopAnswer:
        info = self._broker.exchanges.info(vhost, hop.exchange)
        kind = info.settings.type if info is not None else ""
        return HopAnswer(
            name_of(hop.exchange),
            name_of(hop.binding.destination) if hop.binding.kind == "exchange" else hop.binding.destination,
            hop.binding.kind,
            hop.binding.routing_key,
            attribute_to_wire(hop.binding.arguments),
            _why(hop, kind, routing_key),
        )


def _arrival(arrival: Arrival) -> ArrivalAnswer:
    result = arrival.result
    if isinstance(result, LanewayError):
        return ArrivalAnswer(queue_name=arrival.queue, error=error_object(result))  # type: ignore[arg-type]
    return ArrivalAnswer(queue_name=arrival.queue, message_id=result.message_id, duplicate=result.duplicate)


def _why(hop: Hop, kind: str, routing_key: str) -> str:
    """In a sentence, why a message takes this step."""
    if hop.why == "default":
        return "the routing key is the name of the queue"
    if hop.why == "alternate":
        return f"no binding of {name_of(hop.exchange)!r} matches, and this is its alternate exchange"
    if kind == "fanout":
        return "a fanout exchange sends everything to everything bound to it"
    if kind == "headers":
        return f"the attributes match {hop.binding.arguments.get('x-match', 'all')} of the binding's arguments"
    if kind == "topic":
        return f"the routing key {routing_key!r} matches the pattern {hop.binding.routing_key!r}"
    return f"the routing key is {routing_key!r}, as in the binding"


def exchange_routes(exchanges: Exchanges) -> list[Route]:
    return [
        Route(
            method="GET",
            pattern="{XS}",
            name="list_exchanges",
            summary="The exchanges of a virtual host, in the order of their names",
            slow=exchanges.list_exchanges,
            options=ListOptions,
            answers={200: ExchangesAnswer},
            refusals=(404,),
        ),
        Route(
            method="PUT",
            pattern="{X}",
            name="put_exchange",
            summary="Declare an exchange; one that exists must have the same settings",
            slow=exchanges.put_exchange,
            request=ExchangeRequest,
            body_optional=True,
            answers={200: ExchangeAnswer, 201: ExchangeAnswer},
            refusals=(404, 409, 429, 507),
        ),
        Route(
            method="GET",
            pattern="{X}",
            name="get_exchange",
            summary="An exchange's settings",
            slow=exchanges.get_exchange,
            answers={200: ExchangeAnswer},
            refusals=(404,),
        ),
        Route(
            method="DELETE",
            pattern="{X}",
            name="delete_exchange",
            summary="Delete an exchange with its bindings",
            slow=exchanges.delete_exchange,
            options=DeleteExchangeOptions,
            answers={204: None},
            refusals=(404, 409),
        ),
    ]


def exchange_message_routes(exchanges: Exchanges) -> list[Route]:
    return [
        Route(
            method="POST",
            pattern="{X}/publish",
            name="publish_to_exchange",
            summary="Publish a message through an exchange to the queues it leads to",
            fast=exchanges.publish,
            request=RoutedRequest,
            answers={200: RoutedAnswer, 207: RoutedAnswer},
            refusals=(404, 409, 429, 507),
        ),
        Route(
            method="POST",
            pattern="{X}/route",
            name="route",
            summary="Which queues a message would reach, and why; nothing is published",
            slow=exchanges.route,
            request=RouteRequest,
            body_optional=True,
            answers={200: RoutesAnswer},
            refusals=(404,),
        ),
    ]
