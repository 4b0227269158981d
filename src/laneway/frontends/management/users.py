"""Users and their permissions: Laneway's accounts, in RabbitMQ's words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from laneway.access import Account, TopicPermission, VhostPermission
from laneway.access.passwords import as_told, stored_form
from laneway.errors import AccountNotFound, Conflict, InvalidInput
from laneway.frontends.management.asking import CREATED, NO_CONTENT, ManagementAsk, ManagementReply, reply, shown, text
from laneway.frontends.management.errors import bad_request, not_there
from laneway.frontends.management.listing import Wish, answer
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope

_ALGORITHM = "rabbit_password_hashing_sha256"
MAX_BULK = 1_000


class UsersPart:
    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._access = scope.access

    # --- users

    @at("GET /users")
    async def list_users(self, ask: ManagementAsk) -> ManagementReply:
        return await self._list(ask, self._accounts(ask))

    @at("GET /users/without-permissions")
    async def list_without_permissions(self, ask: ManagementAsk) -> ManagementReply:
        without = []
        for account in self._accounts(ask):
            await asyncio.sleep(0)
            if not self._permissions_of(account, most=1):
                without.append(account)
        return await self._list(ask, without)

    def _accounts(self, ask: ManagementAsk) -> list[Account]:
        self._scope.check_admin(ask.account)
        return self._access.accounts()

    async def _list(self, ask: ManagementAsk, accounts: list[Account]) -> ManagementReply:
        async def describe(some: Sequence[Account], wish: Wish) -> list[dict[str, Any]]:
            return [self.row(account) for account in some]

        return await answer(ask, accounts, describe, lambda account: account.name)

    @at("GET /users/{user}")
    async def get_user(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        return reply(self.row(self._account(ask)))

    @at("GET /users/{user}/permissions")
    async def list_permissions_of(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        return reply(self._permissions_of(self._account(ask)))

    @at("PUT /users/{user}")
    async def put_user(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        is_new = await self.put_one(ask, ask.names["user"], ask.body())
        return CREATED if is_new else NO_CONTENT

    async def put_one(self, ask: ManagementAsk, name: str, given: dict[str, Any]) -> bool:
        """Whether it is new. Also of a file of definitions. Without a password nobody can log in by one, as there."""
        if "tags" not in given:
            raise bad_request("tags_not_present")
        if "password" in given and "password_hash" in given:
            raise bad_request("both_password_and_password_hash_are_provided")
        told = text(given, "password_hash")
        stored = stored_form(told, text(given, "hashing_algorithm", _ALGORITHM)) if told else ""
        password = text(given, "password") if given.get("password") is not None else None
        is_new = not self._exists(name)
        await self._access.put_account(
            name,
            password=password or None,
            password_hash=None if password else stored,
            tags=read_tags(given["tags"]),
            by=ask.call.who,
        )
        return is_new

    @at("DELETE /users/{user}")
    async def delete_user(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        await self._delete(ask, self._account(ask).name)
        return NO_CONTENT

    @at("POST /users/bulk-delete")
    async def delete_users(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        names = ask.body(needed=("users",))["users"]
        if not isinstance(names, list) or len(names) > MAX_BULK or not all(isinstance(name, str) for name in names):
            raise bad_request(f"users is a list of at most {MAX_BULK} names")
        for name in names:
            if not self._exists(name):
                raise bad_request(f"no_such_user {name[:80]!r}")
        for name in names:
            await self._delete(ask, name)
        return NO_CONTENT

    async def _delete(self, ask: ManagementAsk, name: str) -> None:
        try:
            await self._access.delete_account(name, by=ask.call.who)
        except Conflict as error:
            raise bad_request(error.message) from None

    # --- permissions

    @at("GET /permissions")
    async def list_permissions(self, ask: ManagementAsk) -> ManagementReply:
        found: list[dict[str, Any]] = []
        for account in self._accounts(ask):
            await asyncio.sleep(0)  # one may have permissions in very many virtual hosts
            found += self._permissions_of(account)
            if len(found) > _MAX_LISTED:
                raise bad_request(f"there are more than {_MAX_LISTED} permissions: ask for those of a virtual host")
        return await _rows(ask, found)

    @at("GET /vhosts/{vhost}/permissions")
    async def list_permissions_in(self, ask: ManagementAsk) -> ManagementReply:
        accounts, vhost = self._accounts(ask), self._scope.vhost(ask)
        found = [self._permission(account, vhost) for account in accounts]
        return await _rows(ask, [row for row in found if row is not None])

    @at("GET /permissions/{vhost}/{user}")
    async def get_permission(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        row = self._permission(self._account(ask), self._scope.vhost(ask))
        if row is None:
            raise not_there()
        return reply(row)

    @at("PUT /permissions/{vhost}/{user}")
    async def put_permission(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        vhost, user = ask.names["vhost"] or "/", ask.names["user"]
        had_one = await self.permit_one(ask, vhost, user, ask.body(needed=("configure", "write", "read")))
        return NO_CONTENT if had_one else CREATED

    async def permit_one(self, ask: ManagementAsk, vhost: str, user: str, given: dict[str, Any]) -> bool:
        """Whether there was one. Also of a file of definitions."""
        if not self._scope.broker.topology.has_vhost(vhost) or not self._exists(user):
            raise bad_request("vhost_or_user_not_found")
        permission = VhostPermission(vhost, *(text(given, need) for need in ("configure", "write", "read")))
        try:
            return await self._access.put_vhost_permission(user, vhost, permission, by=ask.call.who)
        except InvalidInput as wrong:
            raise bad_request(f"invalid_regexp: {wrong.message}") from None

    @at("DELETE /permissions/{vhost}/{user}")
    async def delete_permission(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        vhost, account = self._scope.vhost(ask), self._account(ask)
        if not await self._access.put_vhost_permission(account.name, vhost, None, by=ask.call.who):
            if self._permission(account, vhost) is not None:
                raise bad_request("this permission follows from the account's roles or patterns: change the account")
            raise not_there()
        return NO_CONTENT

    # --- topic permissions

    @at("GET /topic-permissions")
    async def list_topic_permissions(self, ask: ManagementAsk) -> ManagementReply:
        return reply([row for account in self._accounts(ask) for row in topic_rows(account)])

    @at("GET /vhosts/{vhost}/topic-permissions")
    async def list_topic_permissions_in(self, ask: ManagementAsk) -> ManagementReply:
        accounts, vhost = self._accounts(ask), self._scope.vhost(ask)
        return reply([row for account in accounts for row in topic_rows(account, vhost)])

    @at("GET /users/{user}/topic-permissions")
    async def list_topic_permissions_of(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        return reply(topic_rows(self._account(ask)))

    @at("GET /topic-permissions/{vhost}/{user}")
    async def get_topic_permissions(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        rows = topic_rows(self._account(ask), self._scope.vhost(ask))
        if not rows:
            raise not_there()
        return reply(rows)

    @at("PUT /topic-permissions/{vhost}/{user}")
    async def put_topic_permission(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        given = ask.body(needed=("exchange", "write", "read"))
        had_one = await self.permit_topic_one(ask, ask.names["vhost"] or "/", ask.names["user"], given)
        return NO_CONTENT if had_one else CREATED

    async def permit_topic_one(self, ask: ManagementAsk, vhost: str, user: str, given: dict[str, Any]) -> bool:
        """Whether there was one. Also of a file of definitions."""
        if not self._scope.broker.topology.has_vhost(vhost) or not self._exists(user):
            raise bad_request("vhost_or_user_not_found")
        exchange = text(given, "exchange")
        permission = TopicPermission(vhost, exchange, text(given, "write"), text(given, "read"))
        try:
            return await self._access.put_topic_permission(user, vhost, exchange, permission, by=ask.call.who)
        except InvalidInput as wrong:
            raise bad_request(f"invalid_regexp: {wrong.message}") from None

    @at("DELETE /topic-permissions/{vhost}/{user}", "DELETE /topic-permissions/{vhost}/{user}/{exchange}")
    async def delete_topic_permission(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        vhost, account, exchange = self._scope.vhost(ask), self._account(ask), ask.names.get("exchange")
        if not await self._access.put_topic_permission(account.name, vhost, exchange, None, by=ask.call.who):
            raise not_there()
        return NO_CONTENT

    # --- limits: those of the server are the only ones

    @at("GET /user-limits", "GET /user-limits/{user}")
    async def list_limits(self, ask: ManagementAsk) -> ManagementReply:
        return reply([])

    @at("PUT /user-limits/{user}/{limit}")
    async def put_limit(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        raise bad_request("limits of single users are not there: the settings max_connections and max_queues bound all")

    @at("DELETE /user-limits/{user}/{limit}")
    async def delete_limit(self, ask: ManagementAsk) -> ManagementReply:
        self._scope.check_admin(ask.account)
        return NO_CONTENT

    # --- in common

    def _exists(self, name: str) -> bool:
        try:
            self._access.account(name)
        except AccountNotFound:
            return False
        return True

    def _account(self, ask: ManagementAsk) -> Account:
        return self._access.account(ask.names["user"])

    def row(self, account: Account, *, with_hash: bool = False) -> dict[str, Any]:
        """Hashes of passwords are told in files of definitions alone."""
        row: dict[str, Any] = {"name": account.name, "tags": self._access.tags_of(account), "limits": {}}
        if with_hash:
            stored = self._access.password_hash(account.name)
            told, algorithm = ("", _ALGORITHM) if stored is None else as_told(stored)
            row |= {"password_hash": told, "hashing_algorithm": algorithm}
        return row

    def _permission(self, account: Account, vhost: str) -> dict[str, Any] | None:
        given = self._access.permission_in(account, vhost)
        return None if given is None else permission_row(account.name, given)

    def _permissions_of(self, account: Account, *, most: int | None = None) -> list[dict[str, Any]]:
        found = []
        for vhost in sorted(self._scope.broker.topology.vhosts()):
            row = self._permission(account, vhost)
            if row is not None:
                found.append(row)
                if len(found) == most:
                    break
        return found


_MAX_LISTED = 100_000


async def _rows(ask: ManagementAsk, rows: list[dict[str, Any]]) -> ManagementReply:
    async def describe(some: Sequence[dict[str, Any]], wish: Wish) -> list[dict[str, Any]]:
        return list(some)

    return await answer(ask, rows, describe, lambda row: str(row["user"]))


def topic_rows(account: Account, vhost: str | None = None) -> list[dict[str, Any]]:
    given = [one for one in account.topic_permissions if vhost in (None, one.vhost)]
    return [{"user": account.name, **msgspec.structs.asdict(one)} for one in given]


def permission_row(user: str, given: VhostPermission) -> dict[str, Any]:
    told = {"configure": given.configure, "write": given.write, "read": given.read}
    return {"user": user, "vhost": given.vhost, **told}


def read_tags(given: Any) -> list[str]:
    """A list, or text with commas between."""
    if isinstance(given, str):
        return [tag.strip() for tag in given.split(",") if tag.strip()]
    if isinstance(given, list) and all(isinstance(tag, str) for tag in given):
        return given
    raise bad_request(f"tags are a list or text with commas, not {shown(given)}")
