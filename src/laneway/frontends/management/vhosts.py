"""Virtual hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from laneway.broker import interface as i
from laneway.errors import Conflict
from laneway.frontends.management.asking import CREATED, NO_CONTENT, ManagementAsk, ManagementReply, reply, text
from laneway.frontends.management.errors import bad_request, not_there
from laneway.frontends.management.listing import Wish, answer
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope


class VhostsPart:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._broker = scope.broker

    @at("GET /vhosts")
    async def list_vhosts(self, ask: ManagementAsk) -> ManagementReply:
        async def describe(names: Sequence[str], wish: Wish) -> list[dict[str, Any]]:
            return [self._row(name) for name in names]

        return await answer(ask, self._scope.vhosts(ask), describe, lambda name: name)

    @at("GET /vhosts/{vhost}")
    async def get_vhost(self, ask: ManagementAsk) -> ManagementReply:
        return reply(self._row(self._scope.vhost(ask)))

    @at("PUT /vhosts/{vhost}")
    async def put_vhost(self, ask: ManagementAsk) -> ManagementReply:
        """A virtual host has a name and nothing else: description and tags are taken and not kept."""
        self._scope.check_admin(ask.account)
        given = ask.body()
        if given.get("tracing") in (True, "true"):
            raise bad_request("tracing is not there: `laneway journal` and the pipeline show what happened to messages")
        text(given, "description")
        is_new = await self._broker.ask(i.CreateVhost(ask.names["vhost"]))
        return CREATED if is_new else NO_CONTENT

    @at("DELETE /vhosts/{vhost}")
    async def delete_vhost(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        name = ask.names["vhost"]
        if not self._broker.topology.has_vhost(name):
            raise not_there()
        try:
            await self._broker.ask(i.DeleteVhost(name))
        except Conflict as error:
            raise bad_request(error.message) from None
        # Else they would be there again for another one of that name.
        access = self._scope.access
        for account in access.accounts():
            if any(permission.vhost == name for permission in account.vhost_permissions):
                await access.put_vhost_permission(account.name, name, None, by=ask.call.who)
        return NO_CONTENT

    @at("POST /vhosts/{vhost}/start/{node}")
    async def start(self, ask: ManagementAsk) -> ManagementReply:
        """All that there are run."""
        self._scope.check_admin(ask.account)
        self._scope.vhost(ask)
        return NO_CONTENT

    def _row(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "description": "",
            "tags": [],
            "default_queue_type": "undefined",
            "metadata": {"description": "", "tags": []},
            "tracing": False,
            "cluster_state": {self._scope.node: "running"},
        }
