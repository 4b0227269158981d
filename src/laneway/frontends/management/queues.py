"""Queues: listed, declared, deleted, purged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from laneway.broker import interface as i
from laneway.broker.arguments import ArgumentInvalid, arguments_now, check_same_declaration, settings_from_arguments
from laneway.broker.values import QueueInfo, QueueStats, Rates
from laneway.errors import Conflict, NotFound, QueueExists, QueueInUse
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
from laneway.frontends.management.errors import bad_request, not_authorised, not_found
from laneway.frontends.management.listing import Wish, answer
from laneway.frontends.management.policies import PoliciesPart
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope, refused_for

#: What is known of a queue without asking the partition that has it.
PLAIN = frozenset(
    {
        *("name", "vhost", "durable", "auto_delete", "exclusive", "arguments", "node", "type"),
        *("policy", "operator_policy", "effective_policy_definition"),
    }
)


class QueuesPart:
    def __init__(self, scope: Scope, policies: PoliciesPart) -> None:
        self._scope = scope
        self._policies = policies
        self._broker = scope.broker
        self._access = scope.access

    # --- looking

    @at("GET /queues", "GET /queues/{vhost}")
    async def list_queues(self, ask: ManagementAsk) -> ManagementReply:
        found: list[QueueInfo] = []
        for part in self._scope.queues(ask):
            found += part
            await asyncio.sleep(0)

        async def describe(infos: Sequence[QueueInfo], wish: Wish) -> list[dict[str, Any]]:
            return await self._rows(ask, infos, wish)

        return await answer(ask, found, describe, lambda info: info.name)

    async def _rows(self, ask: ManagementAsk, infos: Sequence[QueueInfo], wish: Wish) -> list[dict[str, Any]]:
        rows = [self._plain(info) for info in infos]
        if wish.needs(PLAIN):
            stats = await asyncio.gather(*(self._stats(ask, info) for info in infos))
            # One that was deleted meanwhile is left out.
            return [row | told for row, told in zip(rows, stats, strict=True) if told is not None]
        return rows

    @at("GET /queues/{vhost}/{queue}")
    async def get_queue(self, ask: ManagementAsk) -> ManagementReply:
        info = self._scope.queue(ask)
        if ask.query.get("disable_stats") == "true":
            return reply(self._plain(info) | {"state": "running"})
        told = await self._stats(ask, info)
        if told is None:
            raise not_found(f"no queue '{info.name}' in vhost '{info.vhost}'")
        return reply(self._plain(info) | told | {"incoming": [], "deliveries": [], "consumer_details": []})

    def _plain(self, info: QueueInfo) -> dict[str, Any]:
        s = info.settings
        return {
            "name": info.name,
            "vhost": info.vhost,
            "durable": s.durable,
            "auto_delete": s.auto_delete,
            "exclusive": s.exclusive,
            "arguments": arguments_now(s),
            "node": self._scope.node,
            "type": s.arguments.get("x-queue-type", "classic"),
            **self._policies.effective(info),
        }

    async def _stats(self, ask: ManagementAsk, info: QueueInfo) -> dict[str, Any] | None:
        """What is in it and goes through it, as far as the account may count; None if it is gone."""
        if not self._access.allowed(ask.account, info.vhost, info.name, "stats"):
            return {"state": "running"}
        try:
            return stats_row(await self._broker.ask(i.DescribeQueue(info.vhost, info.name)))
        except NotFound:
            return None

    # --- changing

    @at("PUT /queues/{vhost}/{queue}")
    async def declare(self, ask: ManagementAsk) -> ManagementReply:
        vhost = self._vhost_to_change(ask)
        is_new = await self.declare_one(ask, vhost, ask.names["queue"], ask.body())
        return CREATED if is_new else NO_CONTENT

    def _vhost_to_change(self, ask: ManagementAsk) -> str:
        if not self._broker.topology.has_vhost(ask.names["vhost"]):
            raise not_found("vhost_not_found")
        return self._scope.vhost(ask)

    async def declare_one(self, ask: ManagementAsk, vhost: str, name: str, given: dict[str, Any]) -> bool:
        """Whether it is new. Also of a file of definitions."""
        if not name:
            raise bad_request("a queue has a name")
        if name.startswith("amq."):
            raise not_authorised(f"ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'")
        access, account = self._access, ask.account
        if not access.allowed(account, vhost, name, "configure"):
            raise refused_for(account, vhost, "queue", name, "configure")
        where = f"queue '{name}' in vhost '{vhost}'"
        try:
            settings = settings_from_arguments(
                table(given, "arguments"),
                durable=flag(given, "durable"),
                exclusive=False,
                auto_delete=flag(given, "auto_delete"),
                max_message_bytes=self._broker.limits.max_message_bytes,
            )
        except ArgumentInvalid as wrong:
            raise bad_request(f"invalid arg '{wrong.argument}' for {where}{wrong.said}") from None
        target = settings.dead_letter_exchange
        if target is not None:
            for kind, named, need in (("queue", name, "read"), ("exchange", target or "amq.default", "write")):
                if not access.allowed(account, vhost, named, need):  # type: ignore[arg-type]
                    raise refused_for(account, vhost, kind, named, need)
        there = self._broker.topology.queue(vhost, name)
        if there is not None:
            if there.settings.exclusive:
                raise bad_request(f"cannot obtain exclusive access to locked {where}")
            try:
                check_same_declaration(there, settings)
            except QueueExists as wrong:
                field = str(wrong.field).removeprefix("arguments.")
                raise bad_request(f"inequivalent arg '{field}' for {where}: {wrong.message}") from None
        declared = await self._broker.ask(i.DeclareQueue(vhost, name, settings))
        return bool(declared.is_new)

    @at("DELETE /queues/{vhost}/{queue}")
    async def delete(self, ask: ManagementAsk) -> ManagementReply:
        info = self._scope.queue(ask)
        self._check(ask, info, "configure")
        where = f"queue '{info.name}' in vhost '{info.vhost}'"
        request = i.DeleteQueue(
            info.vhost,
            info.name,
            if_none_ready=ask.query.get("if-empty") == "true",
            if_unused=ask.query.get("if-unused") == "true",
        )
        try:
            await self._broker.ask(request)
        except QueueInUse as error:
            raise bad_request(f"{where} in use" if error.field == "if_unused" else error.message) from None
        except Conflict:
            raise bad_request(f"{where} not empty") from None
        return NO_CONTENT

    @at("DELETE /queues/{vhost}/{queue}/contents")
    async def purge(self, ask: ManagementAsk) -> ManagementReply:
        info = self._scope.queue(ask)
        self._check(ask, info, "read")
        await self._broker.ask(i.PurgeQueue(info.vhost, info.name))
        return NO_CONTENT

    @at("POST /queues/{vhost}/{queue}/actions")
    async def act(self, ask: ManagementAsk) -> ManagementReply:
        """Mirrors are kept in step by themselves: there is nothing to synchronise, and nothing to stop."""
        info = self._scope.queue(ask)
        self._check(ask, info, "configure")
        action = text(ask.body(needed=("action",)), "action")
        if action not in ("sync", "cancel_sync"):
            raise bad_request(f"unknown action {action[:80]!r}")
        return NO_CONTENT

    def _check(self, ask: ManagementAsk, info: QueueInfo, need: Any) -> None:
        if not self._access.allowed(ask.account, info.vhost, info.name, need):
            raise refused_for(ask.account, info.vhost, "queue", info.name, need)


def stats_row(s: QueueStats) -> dict[str, Any]:
    """In RabbitMQ's words. Messages that are delayed are in neither sum: no consumer could have them now."""
    published, delivered, acked = (s.rates[name] for name in ("published", "delivered", "acked"))
    totals = s.totals
    return {
        "state": "running",
        "messages": s.ready + s.leased,
        "messages_details": {"rate": published.per_second_5s - acked.per_second_5s},
        "messages_ready": s.ready,
        "messages_ready_details": {"rate": published.per_second_5s - delivered.per_second_5s},
        "messages_unacknowledged": s.leased,
        "messages_unacknowledged_details": {"rate": delivered.per_second_5s - acked.per_second_5s},
        "messages_delayed": s.delayed,
        "messages_persistent": s.ready + s.leased,
        "message_bytes": s.waiting_bytes,
        "consumers": s.subscribers,
        "message_stats": message_stats(
            publish=(totals["published"], published),
            deliver_get=(totals["delivered"], delivered),
            ack=(totals["acked"], acked),
        )
        | {"redeliver": totals["redelivered"]},
    }


def message_stats(**counts: tuple[int, Rates | float]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, (count, rate) in counts.items():
        told[name] = count
        told[f"{name}_details"] = {"rate": rate if isinstance(rate, float) else rate.per_second_5s}
    return told
