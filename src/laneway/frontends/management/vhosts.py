"""Virtual hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from laneway.broker import interface as i
from laneway.broker.values import VHOSTS
from laneway.errors import Conflict
from laneway.frontends.management.asking import CREATED, NO_CONTENT, ManagementAsk, ManagementReply, flag, reply, text
from laneway.frontends.management.errors import bad_request, not_there
from laneway.frontends.management.listing import Wish, answer
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope
from laneway.frontends.management.users import read_tags

MAX_WORDS_BYTES = 4096


class VhostWords(msgspec.Struct, omit_defaults=True):
    """What is said of a virtual host; its document."""

    description: str = ""
    tags: list[str] = []
    default_queue_type: str = "undefined"


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
        self._scope.check_admin(ask.account)
        given = ask.body()
        if flag(given, "tracing"):
            raise bad_request("tracing is not there: `laneway journal` and the pipeline show what happened to messages")
        is_new = await self.put_one(ask.names["vhost"], given)
        return CREATED if is_new else NO_CONTENT

    async def put_one(self, name: str, given: dict[str, Any]) -> bool:
        """Whether it is new. Also of a file of definitions. What is said of it is kept with it and has no effect."""
        told = given.get("metadata", given)
        if not isinstance(told, dict):
            raise bad_request("metadata is an object")
        said = VhostWords(
            description=text(told, "description"),
            tags=read_tags(told.get("tags", [])),
            default_queue_type=text(told, "default_queue_type", "undefined"),
        )
        if len(msgspec.json.encode(said)) > MAX_WORDS_BYTES:
            raise bad_request(f"what is said of a virtual host has at most {MAX_WORDS_BYTES} bytes")
        is_new = bool(await self._broker.ask(i.CreateVhost(name)))
        seen = self._broker.topology.document(VHOSTS, name)
        if said != self._said(name):
            document = msgspec.json.encode(said)
            # Were it deleted meanwhile, this must not bring it back.
            await self._broker.ask(i.PutDocument(VHOSTS, name, document, [(VHOSTS, name, seen)]))
        return is_new

    def _said(self, name: str) -> VhostWords:
        document = self._broker.topology.document(VHOSTS, name)
        return VhostWords() if document is None else msgspec.json.decode(document, type=VhostWords)

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
            if any(permission.vhost == name for permission in account.topic_permissions):
                await access.put_topic_permission(account.name, name, None, None, by=ask.call.who)
        return NO_CONTENT

    def metadata(self, name: str) -> dict[str, Any]:
        said = self._said(name)
        return {"description": said.description, "tags": said.tags}

    @at("POST /vhosts/{vhost}/start/{node}")
    async def start(self, ask: ManagementAsk) -> ManagementReply:
        """All that there are run."""
        self._scope.check_admin(ask.account)
        self._scope.vhost(ask)
        return NO_CONTENT

    def _row(self, name: str) -> dict[str, Any]:
        said = self._said(name)
        return {
            "name": name,
            "description": said.description,
            "tags": said.tags,
            "default_queue_type": said.default_queue_type,
            "metadata": self.metadata(name),
            "tracing": False,
            "cluster_state": {self._scope.node: "running"},
        }
