"""Policies and operator policies; and parameters, of which there are none but those that somebody wants kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from laneway.broker import interface as i
from laneway.broker.arguments import POLICY_SETTINGS, ArgumentInvalid, settings_from_policy
from laneway.broker.values import POLICIES, Policy, QueueInfo
from laneway.errors import Forbidden, InvalidInput
from laneway.frontends.management.asking import (
    CREATED,
    NO_CONTENT,
    ManagementAsk,
    ManagementReply,
    reply,
    shown,
    text,
)
from laneway.frontends.management.errors import bad_request, key_missing, not_authorised, not_found, not_there
from laneway.frontends.management.listing import Wish, answer
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope
from laneway.regexes import compile_regex

MAX_POLICIES = 1_000
MAX_PARAMETERS = 1_000
MAX_NAME_BYTES = 255
_SLICE = 1_000
_KINDS = {"policies": "policy", "operator-policies": "operator"}
_APPLY_TO = ("queues", "exchanges", "all", "classic_queues", "quorum_queues", "streams")
#: What operator policies may say, as in RabbitMQ.
_OPERATORS_SAY = {"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "max-in-memory-length"}
_OPERATORS_SAY |= {"max-in-memory-bytes", "overflow"}
_GLOBAL = "global_parameters"  # the collection of documents


class PoliciesPart:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._broker = scope.broker

    @at("GET /policies", "GET /policies/{vhost}")
    async def list_policies(self, ask: ManagementAsk) -> ManagementReply:
        return await self._list(ask, "policy")

    @at("GET /operator-policies", "GET /operator-policies/{vhost}")
    async def list_operator_policies(self, ask: ManagementAsk) -> ManagementReply:
        return await self._list(ask, "operator")

    @at("GET /policies/{vhost}/{name}")
    async def get_policy(self, ask: ManagementAsk) -> ManagementReply:
        return reply(policy_row(self._find(ask, "policy")))

    @at("GET /operator-policies/{vhost}/{name}")
    async def get_operator_policy(self, ask: ManagementAsk) -> ManagementReply:
        return reply(policy_row(self._find(ask, "operator")))

    @at("PUT /policies/{vhost}/{name}")
    async def put_policy(self, ask: ManagementAsk) -> ManagementReply:
        return await self._put(ask, "policy")

    @at("PUT /operator-policies/{vhost}/{name}")
    async def put_operator_policy(self, ask: ManagementAsk) -> ManagementReply:
        return await self._put(ask, "operator")

    @at("DELETE /policies/{vhost}/{name}")
    async def delete_policy(self, ask: ManagementAsk) -> ManagementReply:
        return await self._delete(ask, "policy")

    @at("DELETE /operator-policies/{vhost}/{name}")
    async def delete_operator_policy(self, ask: ManagementAsk) -> ManagementReply:
        return await self._delete(ask, "operator")

    # --- what they have in common

    def policies(self, kind: str, vhosts: Sequence[str]) -> list[Policy]:
        wanted = set(vhosts)
        found = [
            msgspec.json.decode(document, type=Policy)
            for document in self._broker.topology.documents(POLICIES).values()
        ]
        return sorted(
            (one for one in found if one.kind == kind and one.vhost in wanted), key=lambda one: (one.vhost, one.name)
        )

    async def _list(self, ask: ManagementAsk, kind: str) -> ManagementReply:
        self._check_may_look(ask)

        async def describe(some: Sequence[Policy], wish: Wish) -> list[dict[str, Any]]:
            return [policy_row(policy) for policy in some]

        return await answer(ask, self.policies(kind, self._scope.vhosts(ask)), describe, lambda policy: policy.name)

    def _check_may_look(self, ask: ManagementAsk) -> None:
        tags = set(self._scope.access.tags_of(ask.account))
        if not tags & {"administrator", "policymaker", "monitoring"}:
            raise not_authorised("Not policymaker user")

    def _find(self, ask: ManagementAsk, kind: str) -> Policy:
        self._check_may_look(ask)
        key = Policy(kind=kind, vhost=self._scope.vhost(ask), name=ask.names["name"], pattern="", definition={}).key  # type: ignore[arg-type]
        document = self._broker.topology.document(POLICIES, key)
        if document is None:
            raise not_there()
        return msgspec.json.decode(document, type=Policy)

    async def _put(self, ask: ManagementAsk, kind: str) -> ManagementReply:
        vhost = self._vhost_to_change(ask, kind)
        return CREATED if await self.put_one(vhost, kind, ask.names["name"], ask.body()) else NO_CONTENT

    def _vhost_to_change(self, ask: ManagementAsk, kind: str) -> str:
        if not self._broker.topology.has_vhost(ask.names["vhost"] or "/"):
            raise not_found("vhost_not_found")
        vhost = self._scope.vhost(ask)
        if kind == "operator":
            self._scope.check_admin(ask.account)
        try:
            self._scope.access.check_policymaker(ask.account, vhost)
        except Forbidden:
            raise not_authorised("Not policymaker user") from None
        return vhost

    async def put_one(self, vhost: str, kind: str, name: str, given: dict[str, Any]) -> bool:
        """Whether it is new. Also of a file of definitions."""
        missing = [field for field in ("pattern", "definition") if field not in given]
        if missing:
            raise key_missing(*missing)
        policy = Policy(
            kind=kind,  # type: ignore[arg-type]
            vhost=vhost,
            name=_name(name),
            pattern=text(given, "pattern"),
            definition=_definition(given["definition"], kind),
            priority=_priority(given.get("priority", 0)),
            apply_to=given.get("apply-to", "queues" if kind == "operator" else "all"),
        )
        if policy.apply_to not in _APPLY_TO:
            told = "apply-to '{}' unrecognised; should be 'queues', 'exchanges' or 'all'"
            raise _invalid(told.format(str(policy.apply_to)[:80]))
        try:
            compile_regex(policy.pattern, field="pattern")
        except InvalidInput as wrong:
            raise _invalid(f"pattern should be regular expression but is invalid: {wrong.message}") from None
        there = self._broker.topology.documents(POLICIES)
        is_new = policy.key not in there
        if is_new and len(there) >= MAX_POLICIES:
            raise bad_request(f"there are {MAX_POLICIES} policies already: delete one first")
        await self._broker.ask(i.PutDocument(POLICIES, policy.key, msgspec.json.encode(policy)))
        return is_new

    async def _delete(self, ask: ManagementAsk, kind: str) -> ManagementReply:
        self._vhost_to_change(ask, kind)
        await self._broker.ask(i.RemoveDocument(POLICIES, self._find(ask, kind).key))
        return NO_CONTENT

    def effective(self, info: QueueInfo) -> dict[str, Any]:
        """What a queue's row says of its policies."""
        s = info.settings
        names = {"policy": s.policy or None, "operator_policy": s.operator_policy or None}
        told: dict[str, Any] = {}
        for kind, name in (("policy", s.policy), ("operator", s.operator_policy)):
            key = Policy(kind=kind, vhost=info.vhost, name=name, pattern="", definition={}).key  # type: ignore[arg-type]
            document = self._broker.topology.document(POLICIES, key) if name else None
            if document is not None:
                for field, value in msgspec.json.decode(document, type=Policy).definition.items():
                    both = [one for one in (told.get(field), value) if isinstance(one, int)]
                    told[field] = min(both) if len(both) == 2 else told.get(field, value)
        return {**names, "effective_policy_definition": told}

    # --- the queues and exchanges that a policy is for

    @at("GET /vhosts/{vhost}/policies/{name}/queues")
    async def list_queues_of(self, ask: ManagementAsk) -> ManagementReply:
        policy = self._find(ask, "policy")
        found: list[dict[str, Any]] = []
        for part in self._scope.queues(ask):
            found += [{"name": q.name, "vhost": q.vhost} for q in part if q.settings.policy == policy.name]
            await asyncio.sleep(0)
        return reply(found)

    # --- parameters: of plugins that are not here

    @at("GET /parameters", "GET /parameters/{component}", "GET /parameters/{component}/{vhost}")
    async def list_parameters(self, ask: ManagementAsk) -> ManagementReply:
        self._check_may_look(ask)
        vhosts = self._scope.vhosts(ask)
        if ask.names.get("component", "operator_policy") != "operator_policy":
            return reply([])
        return reply(self.parameters(vhosts))

    def parameters(self, vhosts: Sequence[str]) -> list[dict[str, Any]]:
        """Operator policies, which RabbitMQ has among them."""
        rows = []
        for policy in self.policies("operator", vhosts):
            value = {name: one for name, one in policy_row(policy).items() if name not in ("vhost", "name")}
            rows.append({"vhost": policy.vhost, "name": policy.name, "component": "operator_policy", "value": value})
        return rows

    @at(
        "GET /parameters/{component}/{vhost}/{name}",
        "DELETE /parameters/{component}/{vhost}/{name}",
    )
    async def get_parameter(self, ask: ManagementAsk) -> ManagementReply:
        self._check_may_look(ask)
        self._scope.vhost(ask)
        raise not_there()

    @at("PUT /parameters/{component}/{vhost}/{name}")
    async def put_parameter(self, ask: ManagementAsk) -> ManagementReply:
        """Shovels and federation are plugins of RabbitMQ's: whoever asks for one is told as there without them."""
        self._vhost_to_change(ask, "policy")
        raise _invalid(f"component {ask.names['component'][:80]} not found")

    @at("GET /vhost-limits", "GET /vhost-limits/{vhost}")
    async def list_vhost_limits(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.vhosts(ask)
        return reply([])

    @at("PUT /vhost-limits/{vhost}/{limit}")
    async def put_vhost_limit(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        raise bad_request("limits of single virtual hosts are not there: max_queues and max_connections bound all")

    @at("DELETE /vhost-limits/{vhost}/{limit}")
    async def delete_vhost_limit(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        self._scope.vhost(ask)
        return NO_CONTENT

    # --- global parameters: whatever tools want kept

    @at("GET /global-parameters")
    async def list_global_parameters(self, ask: ManagementAsk) -> ManagementReply:
        self._check_may_look(ask)
        return reply(self.global_parameters())

    def global_parameters(self) -> list[dict[str, Any]]:
        there = self._broker.topology.documents(_GLOBAL)
        return [{"name": name, "value": msgspec.Raw(there[name])} for name in sorted(there)]

    @at("GET /global-parameters/{name}")
    async def get_global_parameter(self, ask: ManagementAsk) -> ManagementReply:
        self._check_may_look(ask)
        document = self._broker.topology.document(_GLOBAL, ask.names["name"])
        if document is None:
            raise not_there()
        return reply({"name": ask.names["name"], "value": msgspec.Raw(document)})

    @at("PUT /global-parameters/{name}")
    async def put_global_parameter(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        is_new = await self.keep_one(ask.names["name"], ask.body(needed=("value",))["value"])
        return CREATED if is_new else NO_CONTENT

    async def keep_one(self, name: str, value: Any) -> bool:
        there = self._broker.topology.documents(_GLOBAL)
        if name not in there and len(there) >= MAX_PARAMETERS:
            raise bad_request(f"there are {MAX_PARAMETERS} global parameters already: delete one first")
        await self._broker.ask(i.PutDocument(_GLOBAL, _name(name), msgspec.json.encode(value)))
        return name not in there

    @at("DELETE /global-parameters/{name}")
    async def delete_global_parameter(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        if self._broker.topology.document(_GLOBAL, ask.names["name"]) is None:
            raise not_there()
        await self._broker.ask(i.RemoveDocument(_GLOBAL, ask.names["name"]))
        return NO_CONTENT


def policy_row(policy: Policy) -> dict[str, Any]:
    return {
        "vhost": policy.vhost,
        "name": policy.name,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }


def _invalid(reason: str) -> Exception:
    return bad_request(f"Validation failed\n\n{reason}\n")


def _name(name: str) -> str:
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES or not name.isprintable():
        raise bad_request(f"a name has 1 to {MAX_NAME_BYTES} bytes that can be printed")
    return name


def _priority(given: Any) -> int:
    if isinstance(given, str) and given.removeprefix("-").isdecimal() and given.isascii() and len(given) < 12:
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int) or abs(given) >= 1 << 31:
        raise _invalid(f"priority should be a number, actually was {shown(given)}")
    return given


def _definition(given: Any, kind: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _invalid(f"definition is an object, not {shown(given)}")
    if not given:
        raise _invalid("no policy provided")
    if kind == "operator":
        for name in given:
            if name not in _OPERATORS_SAY:
                raise _invalid(f"[{name}] are not recognised policy settings")
    if "alternate-exchange" in given:
        raise _invalid("alternate-exchange is an argument of exchanges here, and no setting of a policy")
    try:
        settings_from_policy(given)
    except ArgumentInvalid as wrong:
        raise _invalid(wrong.message.replace(wrong.argument, wrong.argument.removeprefix("x-"))) from None
    except InvalidInput as wrong:
        if wrong.field in given and f"x-{wrong.field}" not in POLICY_SETTINGS:
            raise _invalid(f"[{str(wrong.field)[:80]}] are not recognised policy settings") from None
        raise
    return given
