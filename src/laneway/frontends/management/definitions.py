"""Definitions: everything but messages, as one file that is taken out of a server and put into another.

A file is put in from its beginning to its end, and what is wrong with an entry ends that: what came before it stays, as
in RabbitMQ. What is there already is left as it is, if it agrees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from laneway.broker.arguments import arguments_now
from laneway.broker.values import Binding, QueueInfo
from laneway.frontends.http.errors import HttpError
from laneway.frontends.management.asking import NO_CONTENT, ManagementAsk, ManagementReply, read_object, table, text
from laneway.frontends.management.errors import bad_request, not_found
from laneway.frontends.management.exchanges import ExchangesPart, binding_row, exchange_row
from laneway.frontends.management.policies import PoliciesPart, policy_row
from laneway.frontends.management.queues import QueuesPart
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import VERSION, Scope
from laneway.frontends.management.users import UsersPart, topic_rows
from laneway.frontends.management.vhosts import VhostsPart

MAX_BYTES = 32 * 1024 * 1024  # of a file, in both directions
_SLICE = 200
_AT_ONCE = 100

_Row = dict[str, Any]
_encode = msgspec.json.encode


class DefinitionsPart:
    def __init__(
        self,
        scope: Scope,
        users: UsersPart,
        vhosts: VhostsPart,
        queues: QueuesPart,
        exchanges: ExchangesPart,
        policies: PoliciesPart,
    ) -> None:
        self._vhosts = vhosts
        self._scope = scope
        self._broker = scope.broker
        self._users = users
        self._queues = queues
        self._exchanges = exchanges
        self._policies = policies

    # --- out

    @at("GET /definitions")
    async def take_all(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        vhosts = sorted(self._broker.topology.vhosts())
        users, permissions, topics = list[_Row](), list[_Row](), list[_Row]()
        for at_, account in enumerate(self._scope.access.accounts()):
            if at_ % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            users.append(self._users.row(account, with_hash=True))
            permissions += [{"user": account.name, **msgspec.structs.asdict(one)} for one in account.vhost_permissions]
            topics += topic_rows(account)
        head = {
            "rabbit_version": VERSION,
            "rabbitmq_version": VERSION,
            "product_name": "Laneway",
            "product_version": VERSION,
            "users": users,
            "vhosts": [{"name": name, "metadata": self._vhosts.metadata(name)} for name in vhosts],
            "permissions": permissions,
            "topic_permissions": topics,
            "global_parameters": self._policies.global_parameters(),
        }
        return ManagementReply(200, await self._file(head, vhosts, names_vhost=True))

    @at("GET /definitions/{vhost}")
    async def take_vhost(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        vhost = self._scope.vhost(ask)
        return ManagementReply(200, await self._file({"rabbit_version": VERSION}, [vhost], names_vhost=False))

    async def _file(self, head: _Row, vhosts: list[str], *, names_vhost: bool) -> bytes:
        parts = {"queues": bytearray(), "exchanges": bytearray(), "bindings": bytearray()}

        async def add(kind: str, rows: list[_Row]) -> None:
            part = parts[kind]
            if rows:
                part += (b"," if part else b"") + _encode(rows)[1:-1]
            if sum(map(len, parts.values())) > MAX_BYTES:
                raise bad_request(f"the definitions are longer than {MAX_BYTES} bytes: take those of one virtual host")
            await asyncio.sleep(0)

        without = () if names_vhost else ("vhost",)
        topology = self._broker.topology
        for vhost in vhosts:
            after: tuple[str, str] | None = None
            while True:
                page = topology.queues(vhost=vhost, limit=_SLICE, after=after)
                # Exclusive queues go with their connections, and belong into no file.
                await add("queues", [_queue_row(info, without) for info in page if not info.settings.exclusive])
                if len(page) < _SLICE:
                    break
                after = vhost, page[-1].name
            for info in topology.exchanges(vhost):
                if not info.is_built_in:
                    row = exchange_row(info)
                    await add("exchanges", [_only(row, _EXCHANGE, without)])
                if info.name:
                    there = topology.bindings(vhost, source=info.name)
                    for start in range(0, len(there), _SLICE):
                        rows = [binding_row(vhost, binding) for binding in there[start : start + _SLICE]]
                        await add("bindings", [_only(row, _BINDING, without) for row in rows])
        policies = [policy_row(policy) for policy in self._policies.policies("policy", vhosts)]
        told = {
            **head,
            "policies": [_only(row, tuple(row), without) for row in policies],
            "parameters": [_only(row, tuple(row), without) for row in self._policies.parameters(vhosts)],
            **{kind: msgspec.Raw(b"[%b]" % bytes(part)) for kind, part in parts.items()},
        }
        return _encode(told)

    # --- in

    @at("POST /definitions", max_body_bytes=MAX_BYTES)
    async def put_all(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        await self._put(ask, None)
        return NO_CONTENT

    @at("POST /definitions/{vhost}", max_body_bytes=MAX_BYTES)
    async def put_vhost(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        if not self._broker.topology.has_vhost(ask.names["vhost"] or "/"):
            raise not_found("vhost_not_found")
        await self._put(ask, self._scope.vhost(ask))
        return NO_CONTENT

    async def _put(self, ask: ManagementAsk, vhost: str | None) -> None:
        try:
            given = read_object(ask.call.body)
        except HttpError:
            raise bad_request("failed_to_parse_json") from None

        def where(row: _Row) -> str:
            named = text(row, "vhost", vhost or "") if vhost is None else vhost
            if not self._broker.topology.has_vhost(named):
                raise bad_request(f"no_such_vhost {named[:80]!r}")
            return named

        async def parameter(row: _Row) -> None:
            if row.get("component") == "operator_policy":
                await self._policies.put_one(where(row), "operator", text(row, "name"), table(row, "value"))
            elif row.get("value"):  # what RabbitMQ writes of limits that are none is empty
                raise bad_request(f"component {str(row.get('component'))[:80]} not found")

        async def topic_permission(row: _Row) -> None:
            await self._users.permit_topic_one(ask, where(row), text(row, "user"), row)

        kinds: list[tuple[str, bool, Callable[[_Row], Coroutine[Any, Any, Any]]]] = [
            ("users", True, lambda row: self._users.put_one(ask, text(row, "name"), _user(row))),
            ("vhosts", True, lambda row: self._vhosts.put_one(text(row, "name"), row)),
            ("permissions", True, lambda row: self._users.permit_one(ask, where(row), text(row, "user"), row)),
            (
                "topic_permissions",
                True,
                lambda row: self._users.permit_topic_one(ask, where(row), text(row, "user"), row),
            ),
            ("parameters", False, parameter),
            ("global_parameters", True, lambda row: self._policies.keep_one(text(row, "name"), row.get("value"))),
            ("policies", False, lambda row: self._policies.put_one(where(row), "policy", text(row, "name"), row)),
            ("exchanges", False, lambda row: self._exchanges.declare_one(ask, where(row), text(row, "name"), row)),
            ("queues", False, lambda row: self._queues.declare_one(ask, where(row), text(row, "name"), row)),
            ("bindings", False, lambda row: self._exchanges.bind_one(ask, where(row), _binding(row))),
        ]
        for kind, is_of_all, put in kinds:
            if vhost is not None and is_of_all:
                continue
            rows = given.get(kind, [])
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise bad_request(f"{kind} is a list of objects")
            # Entries of a kind do not rest on each other: as many as travel in one commit are put in at once.
            for start in range(0, len(rows), _AT_ONCE):
                done = await asyncio.gather(*map(put, rows[start : start + _AT_ONCE]), return_exceptions=True)
                for error in filter(None, (one if isinstance(one, BaseException) else None for one in done)):
                    raise error


_EXCHANGE = ("name", "vhost", "type", "durable", "auto_delete", "internal", "arguments")
_BINDING = ("source", "vhost", "destination", "destination_type", "routing_key", "arguments")


def _only(row: _Row, names: tuple[str, ...], without: tuple[str, ...]) -> _Row:
    return {name: row[name] for name in names if name not in without}


def _queue_row(info: QueueInfo, without: tuple[str, ...]) -> _Row:
    s = info.settings
    row = {"name": info.name, "vhost": info.vhost, "durable": s.durable, "auto_delete": s.auto_delete}
    return _only(row | {"arguments": arguments_now(s)}, (*row, "arguments"), without)


def _user(row: _Row) -> _Row:
    """RabbitMQ's files of long ago name no algorithm; an account without a password has an empty hash."""
    return {name: value for name, value in row.items() if name != "limits"}


def _binding(row: _Row) -> Binding:
    kind = text(row, "destination_type", "queue")
    if kind not in ("queue", "exchange"):
        raise bad_request(f"destination_type is queue or exchange, not {kind[:80]!r}")
    ends = (text(row, "source"), kind, text(row, "destination"))
    return Binding(*ends, text(row, "routing_key"), table(row, "arguments"))  # type: ignore[arg-type]
