"""Exchanges over HTTP: declaring them, publishing through them, and asking where a message would go."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from laneway.access import Access, Need
from laneway.broker.arguments import DELAYED_TYPE, EXCHANGE_TYPES, exchange_from_arguments
from laneway.broker.interface import HTTP, Broker, DeclareExchange, DeleteExchange, Publish, QueueId
from laneway.broker.values import Arrival, ExchangeInfo, ExchangeSettings, Hop, Route, message_delay_ms
from laneway.core.message import Messages, Receipt, Receipts, messages_of
from laneway.errors import ExchangeNotFound, InvalidInput, LanewayError
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest.answering import answering
from laneway.frontends.rest.attributes import Attributes, attribute_to_wire, attribute_values
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.errors import error_object
from laneway.frontends.rest.hot import REPLAYED, idempotency_of, queue_gone
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.publishing import RoutedRequest, ShortText, decode_routed, to_draft
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.frontends.rest.wire import ListOptions, read_body
from laneway.frontends.rest.words import exchange_of, name_of
from laneway.frontends.rest.writing import AnswerWriter

_LIST_PAGE = 100
_NOTHING_TO_SEE = "it reaches no queue that the account may see"
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


class ExchangesApi:
    def __init__(self, broker: Broker, access: Access, writer: AnswerWriter) -> None:
        self._broker = broker
        self._access = access
        self._writer = writer

    def _check(self, call: Call, need: Need) -> HeadPlan:
        plan: HeadPlan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.exchange, need, noun="exchange")
        return plan

    # --- what there is

    @ApiRoute("GET", "{XS}", options=ListOptions, answers={200: a.ExchangesAnswer}, refusals=(404,))
    async def list_exchanges(self, call: Call) -> Reply:
        """The exchanges of a virtual host, in the order of their names.

        Those that the caller may not see are left out."""
        plan: HeadPlan = call.head.plan
        options: ListOptions = plan.options(ListOptions)
        self._access.check_may_enter(call.account, plan.vhost)
        self._broker.topology.check_vhost(plan.vhost)
        after = None if options.cursor is UNSET else decode_cursor(options.cursor, str)
        limit, prefix = options.limit or _LIST_PAGE, options.prefix or ""
        found = sorted(self._broker.topology.exchanges(plan.vhost), key=lambda info: name_of(info.name))
        seen = [
            info
            for info in found
            if (after is None or name_of(info.name) > after)
            and name_of(info.name).startswith(prefix)
            and self._access.may_see(call.account, plan.vhost, name_of(info.name))
        ]
        shown = seen[:limit]
        next_cursor = encode_cursor(name_of(shown[-1].name)) if len(seen) > limit else None
        return Reply(200, a.encode(a.ExchangesAnswer([self._answer(info) for info in shown], next_cursor)))

    @ApiRoute(
        "PUT",
        "{X}",
        request=ExchangeRequest,
        body_optional=True,
        answers={200: a.ExchangeAnswer, 201: a.ExchangeAnswer},
        refusals=(404, 409, 429, 507),
    )
    async def put_exchange(self, call: Call) -> Reply:
        """Declare an exchange; one that exists must have the same settings."""
        plan = self._check(call, "configure")
        settings = settings_of(read_body(call.body, ExchangeRequest))
        if settings.alternate_exchange is not None:
            # Or what one may not publish to could be reached through an exchange of one's own.
            alternate = name_of(settings.alternate_exchange)
            self._access.check(call.account, plan.vhost, alternate, "write", noun="exchange")
        name = exchange_of(plan.exchange)
        is_new = self._broker.topology.exchange(plan.vhost, name) is None
        info = await self._broker.ask(DeclareExchange(plan.vhost, name, settings))
        return Reply(201 if is_new else 200, a.encode(self._answer(info)))

    @ApiRoute("GET", "{X}", answers={200: a.ExchangeAnswer}, refusals=(404,))
    async def get_exchange(self, call: Call) -> Reply:
        """An exchange's settings."""
        plan = self._check(call, "stats")
        return Reply(200, a.encode(self._answer(self._find(plan.vhost, exchange_of(plan.exchange)))))

    def _find(self, vhost: str, exchange: str) -> ExchangeInfo:
        self._broker.topology.check_vhost(vhost)
        info = self._broker.topology.exchange(vhost, exchange)
        if info is None:
            raise ExchangeNotFound(f"there is no exchange {exchange!r}; declare it first", field="exchange")
        return info

    @ApiRoute("DELETE", "{X}", options=DeleteExchangeOptions, answers={204: None}, refusals=(404, 409))
    async def delete_exchange(self, call: Call) -> Reply:
        """Delete an exchange with its bindings."""
        plan = self._check(call, "configure")
        options: DeleteExchangeOptions = plan.options(DeleteExchangeOptions)
        name = exchange_of(plan.exchange)
        await self._broker.ask(DeleteExchange(plan.vhost, name, if_unused=bool(options.if_unused)))
        return Reply(204)

    def _answer(self, info: ExchangeInfo) -> a.ExchangeAnswer:
        s = info.settings
        return a.ExchangeAnswer(
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

    @ApiRoute(
        "POST",
        "{X}/publish",
        max_body_bytes=None,
        request=RoutedRequest,
        answers={200: a.RoutedAnswer, 207: a.RoutedAnswer},
        refusals=(404, 409, 429, 507),
    )
    def publish_to_exchange(self, call: Call) -> None:
        """Publish a message through an exchange to the queues it leads to."""
        plan, key = self._check(call, "write"), call.head.idempotency_key
        request = decode_routed(call.body)
        exchange = self._find(plan.vhost, exchange_of(plan.exchange))
        if exchange.settings.type == "topic":
            self._access.check_topic(call.account, plan.vhost, exchange.name, request.routing_key, "write")
        names, messages = self._routed(plan.vhost, exchange, request)
        publish = Publish(tuple(names), messages, None if key is None else idempotency_of(call, key), HTTP)
        self._broker.send(publish, partial(self._arrived, call, names))

    def _routed(
        self, vhost: str, exchange: ExchangeInfo, request: RoutedRequest
    ) -> tuple[dict[QueueId, str], Messages]:
        """The names of the queues that a message reaches, perhaps none, and the message as it leaves the exchange."""
        if exchange.settings.internal:
            raise InvalidInput(
                f"exchange {exchange.name!r} is internal: only other exchanges publish to it", field="exchange"
            )
        draft, routing_key = to_draft(request), request.routing_key
        attributes, extra = draft.properties.attributes, draft.properties.extra
        topology = self._broker.topology
        found = map(topology.queue_at, topology.route(vhost, exchange.name, routing_key, attributes))
        queues = [info for info in found if info is not None]
        if draft.priority is not None and any(draft.priority > info.settings.max_priority for info in queues):
            # Each queue takes it at its own highest priority. It remembers the one that it was given, for a queue that
            # it may go to as a dead letter.
            extra = extra | {"priority": draft.priority}
        draft.properties = msgspec.structs.replace(
            draft.properties, exchange=exchange.name, routing_key=routing_key, extra=extra
        )
        if exchange.settings.delayed and draft.visible_at_ms is None and draft.delay_ms is None:
            delay_ms = message_delay_ms(attributes)
            draft.delay_ms = delay_ms or None
        return {info.queue: info.name for info in queues}, messages_of([draft], clamps=True)

    @answering
    def _arrived(self, call: Call, names: dict[QueueId, str], arrivals: list[Arrival]) -> None:
        """If no queue took the message, refuse it; if only some did, say so queue by queue."""
        arrived = {arrival.queue: arrival.result for arrival in arrivals}
        results = {name: _result(arrived.get(queue, queue_gone(name))) for queue, name in names.items()}
        vhost: str = call.head.plan.vhost
        seen = {name: one for name, one in results.items() if self._access.may_see(call.account, vhost, name)}
        refused = [result for result in results.values() if isinstance(result, LanewayError)]
        if results and len(refused) == len(results):
            told = [result for result in seen.values() if isinstance(result, LanewayError)]
            call.refuse(told[0] if told else _unnamed(refused[0]))
            return
        is_replay = call.head.idempotency_key is not None and all(
            isinstance(result, Receipt) and result.duplicate for result in results.values()
        )
        body = a.encode(a.RoutedAnswer(bool(results), len(results), [_arrival(*one) for one in seen.items()]))
        call.answer(207 if refused else 200, body, REPLAYED if results and is_replay else b"")

    # --- where would it go

    @ApiRoute(
        "POST", "{X}/route", request=RouteRequest, body_optional=True, answers={200: a.RoutesAnswer}, refusals=(404,)
    )
    async def route(self, call: Call) -> Reply:
        """Which queues a message would reach, and why; nothing is published."""
        plan = self._check(call, "stats")
        self._broker.topology.check_vhost(plan.vhost)
        asked = read_body(call.body, RouteRequest)
        headers = attribute_values(asked.attributes or {})
        exchange = exchange_of(plan.exchange)
        found = self._broker.topology.explain(plan.vhost, exchange, asked.routing_key, headers)
        seen = [route for route in found if self._may_see(call, route)]
        # Whoever may publish here hears of every message whether it reached a queue.
        is_told = self._access.allowed(call.account, plan.vhost, plan.exchange, "write")
        why = ""
        if not seen:
            why = self._why_not(call, exchange, asked.routing_key) if is_told and not found else _NOTHING_TO_SEE
        answer = a.RoutesAnswer(
            bool(found if is_told else seen),
            list(dict.fromkeys(route.queue for route in seen)),
            [self._route(plan.vhost, route, asked.routing_key) for route in seen],
            why,
        )
        return Reply(200, a.encode(answer))

    def _may_see(self, call: Call, route: Route) -> bool:
        """The way to a queue tells of the exchanges on it."""
        vhost = call.head.plan.vhost
        names = [route.queue, *(name_of(hop.exchange) for hop in route.hops)]
        return all(self._access.may_see(call.account, vhost, name) for name in names)

    def _why_not(self, call: Call, exchange: str, routing_key: str) -> str:
        if not exchange:
            return f"there is no queue {routing_key!r}"
        vhost = call.head.plan.vhost
        info = self._broker.topology.exchange(vhost, exchange)
        assert info is not None  # or it could not have been asked
        count, alternate = info.binding_count, info.settings.alternate_exchange
        if not count:
            why = f"exchange {exchange!r} has no bindings"
        elif count == 1:
            why = f"the only binding of exchange {exchange!r} does not match, or leads nowhere"
        else:
            why = f"none of the {count} bindings of exchange {exchange!r} matches and leads to a queue"
        if alternate is None or not self._access.may_see(call.account, vhost, name_of(alternate)):
            return why
        return f"{why}, nor does its alternate exchange {name_of(alternate)!r} lead anywhere"

    def _route(self, vhost: str, route: Route, routing_key: str) -> a.RouteAnswer:
        return a.RouteAnswer(route.queue, [self._hop(vhost, hop, routing_key) for hop in route.hops])

    def _hop(self, vhost: str, hop: Hop, routing_key: str) -> a.HopAnswer:
        info = self._broker.topology.exchange(vhost, hop.exchange)
        kind = info.settings.type if info is not None else ""
        return a.HopAnswer(
            name_of(hop.exchange),
            name_of(hop.binding.destination) if hop.binding.kind == "exchange" else hop.binding.destination,
            hop.binding.kind,
            hop.binding.routing_key,
            attribute_to_wire(hop.binding.arguments),
            _why(hop, kind, routing_key),
        )


def _unnamed(refusal: LanewayError) -> LanewayError:
    """Why a queue that the caller may not see takes nothing, without its name."""
    return type(refusal)("no queue that the exchange leads to takes the message now", field="exchange")


def _result(result: Receipts | LanewayError) -> Receipt | LanewayError:
    """Of a single message."""
    return result if isinstance(result, LanewayError) else result[0]


def _arrival(queue: str, result: Receipt | LanewayError) -> a.ArrivalAnswer:
    if isinstance(result, LanewayError):
        return a.ArrivalAnswer(queue_name=queue, error=error_object(result))  # type: ignore[arg-type]
    return a.ArrivalAnswer(queue_name=queue, message_id=result.message_id, duplicate=result.duplicate)


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
