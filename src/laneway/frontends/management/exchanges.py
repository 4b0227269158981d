"""Exchanges and bindings: listed, declared, deleted."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import xxhash

from laneway.broker import interface as i
from laneway.broker.arguments import DELAYED_TYPE, ArgumentInvalid, exchange_from_arguments, is_same
from laneway.broker.values import Binding, ExchangeInfo, ExchangeSettings
from laneway.errors import ExchangeInUse, InvalidInput, NotFound
from laneway.frontends.management.asking import (
    CREATED,
    NO_CONTENT,
    ManagementAsk,
    ManagementReply,
    flag,
    reply,
    table,
    text,
)
from laneway.frontends.management.errors import bad_request, not_authorised, not_found, not_there
from laneway.frontends.management.listing import Wish, answer
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope, exchange_of, refused_for, shown_exchange

_KINDS = {"q": "queue", "e": "exchange"}
_SLICE = 2_000


class ExchangesPart:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._broker = scope.broker
        self._access = scope.access

    @at("GET /exchanges", "GET /exchanges/{vhost}")
    async def list_exchanges(self, ask: ManagementAsk) -> ManagementReply:
        topology, sees = self._broker.topology, self._access.may_see
        found: list[ExchangeInfo] = []
        for vhost in self._scope.vhosts(ask):
            there = topology.exchanges(vhost)
            for start in range(0, len(there), _SLICE):
                part = there[start : start + _SLICE]
                found += [e for e in part if e.is_built_in or sees(ask.account, vhost, e.name)]
                await asyncio.sleep(0)

        async def describe(infos: Sequence[ExchangeInfo], wish: Wish) -> list[dict[str, Any]]:
            return [exchange_row(info) for info in infos]

        return await answer(ask, found, describe, lambda info: info.name)

    @at("GET /exchanges/{vhost}/{exchange}")
    async def get_exchange(self, ask: ManagementAsk) -> ManagementReply:
        return reply(exchange_row(self._scope.exchange(ask)) | {"incoming": [], "outgoing": []})

    @at("PUT /exchanges/{vhost}/{exchange}")
    async def declare(self, ask: ManagementAsk) -> ManagementReply:
        if not self._broker.topology.has_vhost(ask.names["vhost"]):
            raise not_found("vhost_not_found")
        is_new = await self.declare_one(ask, self._scope.vhost(ask), ask.names["exchange"], ask.body())
        return CREATED if is_new else NO_CONTENT

    async def declare_one(self, ask: ManagementAsk, vhost: str, name: str, given: dict[str, Any]) -> bool:
        """Whether it is new. Also of a file of definitions."""
        where = f"exchange '{name}' in vhost '{vhost}'"
        if not exchange_of(name):
            raise not_authorised("ACCESS_REFUSED - operation not permitted on the default exchange")
        if not self._access.allowed(ask.account, vhost, name, "configure"):
            raise refused_for(ask.account, vhost, "exchange", name, "configure")
        try:
            settings = exchange_from_arguments(
                text(given, "type", "direct"),
                table(given, "arguments"),
                durable=flag(given, "durable"),
                auto_delete=flag(given, "auto_delete"),
                internal=flag(given, "internal"),
            )
        except ArgumentInvalid as wrong:
            raise bad_request(f"invalid arg '{wrong.argument}' for {where}{wrong.said}") from None
        except InvalidInput as wrong:
            if wrong.field == "type":
                raise bad_request(f"unknown exchange type '{text(given, 'type')[:80]}'") from None
            raise
        there = self._broker.topology.exchange(vhost, name)
        if there is not None:
            _check_equivalent(where, there.settings, settings)
            return False
        if name.startswith("amq."):
            raise not_authorised(f"ACCESS_REFUSED - exchange name '{name}' contains reserved prefix 'amq.*'")
        alternate = settings.alternate_exchange
        if alternate is not None:
            for named, need in ((name, "read"), (shown_exchange(alternate), "write")):
                if not self._access.allowed(ask.account, vhost, named, need):  # type: ignore[arg-type]
                    raise refused_for(ask.account, vhost, "exchange", named, need)
        await self._broker.ask(i.DeclareExchange(vhost, name, settings))
        return True

    @at("DELETE /exchanges/{vhost}/{exchange}")
    async def delete(self, ask: ManagementAsk) -> ManagementReply:
        info = self._scope.exchange(ask)
        where = f"exchange '{info.name}' in vhost '{info.vhost}'"
        if info.is_built_in:
            raise not_authorised(f"ACCESS_REFUSED - deletion of system {where} not allowed")
        if not self._access.allowed(ask.account, info.vhost, info.name, "configure"):
            raise refused_for(ask.account, info.vhost, "exchange", info.name, "configure")
        try:
            await self._broker.ask(i.DeleteExchange(info.vhost, info.name, ask.query.get("if-unused") == "true"))
        except ExchangeInUse:
            raise bad_request(f"{where} in use") from None
        return NO_CONTENT

    # --- bindings

    @at("GET /bindings", "GET /bindings/{vhost}")
    async def list_bindings(self, ask: ManagementAsk) -> ManagementReply:
        found: list[tuple[str, Binding]] = []
        for vhost in self._scope.vhosts(ask):
            for info in self._broker.topology.exchanges(vhost):
                found += await self._seen(ask, vhost, self._broker.topology.bindings(vhost, source=info.name))
        return await self._answer(ask, found)

    @at("GET /queues/{vhost}/{queue}/bindings")
    async def list_of_queue(self, ask: ManagementAsk) -> ManagementReply:
        info = self._scope.queue(ask)
        topology = self._broker.topology
        implied = topology.bindings(info.vhost, source="", destination=info.name)
        there = topology.bindings(info.vhost, destination=info.name, kind="queue")
        return await self._answer(ask, await self._seen(ask, info.vhost, [*implied, *there]))

    @at("GET /exchanges/{vhost}/{exchange}/bindings/source")
    async def list_from(self, ask: ManagementAsk) -> ManagementReply:
        info = self._scope.exchange(ask)
        there = self._broker.topology.bindings(info.vhost, source=info.name)
        return await self._answer(ask, await self._seen(ask, info.vhost, there))

    @at("GET /exchanges/{vhost}/{exchange}/bindings/destination")
    async def list_to(self, ask: ManagementAsk) -> ManagementReply:
        info = self._scope.exchange(ask)
        there = self._broker.topology.bindings(info.vhost, destination=info.name, kind="exchange")
        return await self._answer(ask, await self._seen(ask, info.vhost, there))

    @at("GET /bindings/{vhost}/e/{source}/{kind}/{destination}")
    async def list_between(self, ask: ManagementAsk) -> ManagementReply:
        vhost, _, there = self._between(ask)
        return await self._answer(ask, await self._seen(ask, vhost, there))

    @at("POST /bindings/{vhost}/e/{source}/{kind}/{destination}")
    async def bind(self, ask: ManagementAsk) -> ManagementReply:
        vhost = self._scope.vhost(ask)
        given = ask.body()
        kind = self._kind(ask)
        binding = Binding(
            exchange_of(ask.names["source"]),
            kind,  # type: ignore[arg-type]
            exchange_of(ask.names["destination"]) if kind == "exchange" else ask.names["destination"],
            text(given, "routing_key"),
            table(given, "arguments"),
        )
        await self.bind_one(ask, vhost, binding)
        # RabbitMQ encodes it twice: clients take the last part of the path and decode it once.
        location = f"{quote(binding.destination, safe='')}/{quote(properties_key(binding), safe='')}"
        return ManagementReply(201, headers=b"Location: %b\r\n" % location.encode())

    async def bind_one(self, ask: ManagementAsk, vhost: str, binding: Binding) -> None:
        self._check_change(ask, vhost, binding)
        try:
            await self._broker.ask(i.Bind(vhost, binding))
        except NotFound:
            raise self._missing(vhost, binding) from None

    def _missing(self, vhost: str, binding: Binding) -> Exception:
        topology = self._broker.topology
        if topology.exchange(vhost, binding.source) is None:
            return not_found(f"no exchange '{binding.source}' in vhost '{vhost}'")
        return not_found(f"no {binding.kind} '{binding.destination}' in vhost '{vhost}'")

    @at("GET /bindings/{vhost}/e/{source}/{kind}/{destination}/{properties_key}")
    async def get_binding(self, ask: ManagementAsk) -> ManagementReply:
        vhost, binding = await self._find(ask)
        return reply(binding_row(vhost, binding))

    @at("DELETE /bindings/{vhost}/e/{source}/{kind}/{destination}/{properties_key}")
    async def unbind(self, ask: ManagementAsk) -> ManagementReply:
        vhost, binding = await self._find(ask)
        self._check_change(ask, vhost, binding)
        if not await self._broker.ask(i.Unbind(vhost, binding)):
            raise not_there()
        return NO_CONTENT

    def _check_change(self, ask: ManagementAsk, vhost: str, binding: Binding) -> None:
        """As in AMQP: what goes through an exchange is read from it and written to where the binding leads."""
        if not binding.source or (binding.kind == "exchange" and not binding.destination):
            raise not_authorised("ACCESS_REFUSED - operation not permitted on the default exchange")
        destination = shown_exchange(binding.destination)
        for kind, named, need in ((binding.kind, destination, "write"), ("exchange", binding.source, "read")):
            if not self._access.allowed(ask.account, vhost, named, need):  # type: ignore[arg-type]
                raise refused_for(ask.account, vhost, kind, named, need)
        source = self._broker.topology.exchange(vhost, binding.source)
        if source is not None and source.settings.type == "topic":
            self._access.check_topic(ask.account, vhost, source.name, binding.routing_key, "read")

    def _kind(self, ask: ManagementAsk) -> str:
        kind = _KINDS.get(ask.names["kind"])
        if kind is None:
            raise not_there()
        return kind

    def _between(self, ask: ManagementAsk) -> tuple[str, str, list[Binding]]:
        vhost, kind = self._scope.vhost(ask), self._kind(ask)
        source = self._scope.exchange(ask, "source").name
        if kind == "queue":
            destination = self._scope.queue(ask, "destination").name
        else:
            destination = self._scope.exchange(ask, "destination").name
        there = self._broker.topology.bindings(vhost, source=source, destination=destination, kind=kind)
        return vhost, kind, there

    async def _find(self, ask: ManagementAsk) -> tuple[str, Binding]:
        vhost, _, there = self._between(ask)
        asked = ask.names["properties_key"]
        for start in range(0, len(there), _SLICE):
            for binding in there[start : start + _SLICE]:
                # Ansible asks with the routing key itself, which is the same unless there is something to encode.
                if properties_key(binding) == asked or (binding.routing_key == asked and not binding.arguments):
                    return vhost, binding
            await asyncio.sleep(0)
        raise not_there()

    async def _seen(self, ask: ManagementAsk, vhost: str, there: Sequence[Binding]) -> list[tuple[str, Binding]]:
        """Those of which the account may see both ends."""
        seen: list[tuple[str, Binding]] = []
        for start in range(0, len(there), _SLICE):
            seen += [(vhost, b) for b in there[start : start + _SLICE] if self._sees(ask, vhost, b)]
            await asyncio.sleep(0)
        return seen

    def _sees(self, ask: ManagementAsk, vhost: str, binding: Binding) -> bool:
        sees, account = self._access.may_see, ask.account
        # What the default exchange implies tells no more than the queue does.
        return sees(account, vhost, shown_exchange(binding.destination)) and (
            not binding.source or sees(account, vhost, binding.source)
        )

    async def _answer(self, ask: ManagementAsk, found: list[tuple[str, Binding]]) -> ManagementReply:
        async def describe(some: Sequence[tuple[str, Binding]], wish: Wish) -> list[dict[str, Any]]:
            return [binding_row(*one) for one in some]

        return await answer(ask, found, describe, lambda one: one[1].source)


def exchange_row(info: ExchangeInfo) -> dict[str, Any]:
    s = info.settings
    arguments = dict(s.arguments)
    if s.alternate_exchange is not None:
        arguments["alternate-exchange"] = s.alternate_exchange
    return {
        "name": info.name,
        "vhost": info.vhost,
        "type": DELAYED_TYPE if s.delayed else s.type,
        "durable": s.durable,
        "auto_delete": s.auto_delete,
        "internal": s.internal,
        "arguments": arguments,
        "user_who_performed_action": "rmq-internal" if info.is_built_in else "",
    }


def binding_row(vhost: str, binding: Binding) -> dict[str, Any]:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination,
        "destination_type": binding.kind,
        "routing_key": binding.routing_key,
        "arguments": binding.arguments,
        "properties_key": properties_key(binding),
    }


def properties_key(binding: Binding) -> str:
    """What tells a binding from others between the same ends, in a path: the routing key, and with arguments a digest
    of them. Clients take it from an answer and give it back."""
    if not binding.arguments:
        return quote(binding.routing_key, safe="") or "~"
    packed = msgspec.msgpack.encode(binding.arguments, order="deterministic")
    digest = base64.urlsafe_b64encode(xxhash.xxh3_64_digest(packed)).rstrip(b"=").decode()
    return f"{quote(binding.routing_key, safe='')}~{digest}"


def _check_equivalent(where: str, current: ExchangeSettings, given: ExchangeSettings) -> None:
    for name in ("type", "durable", "auto_delete", "internal", "alternate_exchange"):
        received, there = getattr(given, name), getattr(current, name)
        if not is_same(received, there):
            told = [str(value).lower() if isinstance(value, bool) else str(value) for value in (received, there)]
            argument = "alternate-exchange" if name == "alternate_exchange" else name
            raise bad_request(
                f"inequivalent arg '{argument}' for {where}: received '{told[0]}' but current is '{told[1]}'"
            )
