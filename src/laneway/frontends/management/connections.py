"""Connections, channels and consumers: of this process and all others of the server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

from laneway.broker.interface import ListConsumers
from laneway.broker.values import ConsumerState
from laneway.frontends.doors.directory import ChannelInfo, ConnectionInfo, ConsumerName, Directory
from laneway.frontends.management.asking import NO_CONTENT, ManagementAsk, ManagementReply, reply
from laneway.frontends.management.errors import bad_request, not_there
from laneway.frontends.management.listing import Wish, answer
from laneway.frontends.management.routing import at
from laneway.frontends.management.scope import Scope

_PAGE = 500
#: Connections that are looked at for a list: more of them can be there, and are told to be asked for otherwise.
MAX_LISTED = 20_000
_NAME = re.compile(r"(?P<address>.+) -> (?P<id>[0-9a-f]+-[0-9]+)")


class ConnectionsPart:
    def __init__(self, scope: Scope, directory: Directory) -> None:
        self._scope = scope
        self._broker = scope.broker
        self._directory = directory

    def _own(self, ask: ManagementAsk) -> str | None:
        """The account whose connections the caller may see; None for all."""
        return None if self._scope.is_monitor(ask.account) else ask.account.name

    async def _pages(self, ask: ManagementAsk, vhost: str | None) -> AsyncIterator[list[ConnectionInfo]]:
        after = count = 0
        while True:
            page = await self._directory.connections(
                account=ask.names.get("user") if self._own(ask) is None else self._own(ask),
                protocol="amqp",
                after=after,
                limit=_PAGE,
            )
            yield [info for _, info in page if vhost in (None, info.vhost) and info.vhost is not None]
            count += len(page)
            if len(page) < _PAGE:
                return
            if count >= MAX_LISTED:
                raise bad_request(f"there are more than {MAX_LISTED} connections: ask for those of a user")
            after = page[-1][0]

    # --- connections

    @at("GET /connections", "GET /vhosts/{vhost}/connections", "GET /connections/username/{user}")
    async def list_connections(self, ask: ManagementAsk) -> ManagementReply:
        if ask.names.get("user") not in (None, ask.account.name):
            self._scope.check_monitor(ask.account)
        vhost = self._scope.vhost(ask) if "vhost" in ask.names else None
        found = [info async for page in self._pages(ask, vhost) for info in page]

        async def describe(infos: Sequence[ConnectionInfo], wish: Wish) -> list[dict[str, Any]]:
            return [self._row(info) for info in infos]

        return await answer(ask, found, describe, connection_name)

    @at("GET /connections/{connection}")
    async def get_connection(self, ask: ManagementAsk) -> ManagementReply:
        return reply(self._row(await self._find(ask)))

    @at("DELETE /connections/{connection}")
    async def close_connection(self, ask: ManagementAsk) -> ManagementReply:
        info = await self._find(ask)
        reason = next((value for name, value in ask.call.head.headers if name == b"x-reason"), b"").decode("latin-1")
        why = reason[:200] if reason.isprintable() and reason else "Closed via management plugin"
        if not await self._directory.close(info.connection_id, why):
            raise not_there()
        return NO_CONTENT

    @at("DELETE /connections/username/{user}")
    async def close_of_user(self, ask: ManagementAsk) -> ManagementReply:
        if ask.names["user"] != ask.account.name:
            self._scope.check_admin(ask.account)
        async for page in self._pages(ask, None):
            for info in page:
                await self._directory.close(info.connection_id, "Closed via management plugin")
        return NO_CONTENT

    async def _find(self, ask: ManagementAsk) -> ConnectionInfo:
        named = _NAME.fullmatch(ask.names["connection"])
        info = None
        if named is not None:
            info = await self._directory.connection(named["id"], account=self._own(ask))
        if info is None or info.protocol != "amqp":
            raise not_there()
        return info

    def _row(self, info: ConnectionInfo) -> dict[str, Any]:
        host, _, port = info.address.rpartition(":")
        return {
            "name": connection_name(info),
            "node": self._scope.node,
            "user": info.account or "none",
            "user_who_performed_action": info.account or "none",
            "vhost": info.vhost,
            "state": info.state,
            "protocol": "AMQP 0-9-1",
            "type": "network",
            "auth_mechanism": "PLAIN",
            "peer_host": host.strip("[]"),
            "peer_port": int(port) if port.isdecimal() else 0,
            "ssl": info.tls is not None,
            "ssl_protocol": info.tls,
            "channels": info.channel_count,
            "timeout": info.heartbeat_s,
            "connected_at": info.connected_at_ms,
            "client_properties": info.client_properties,
        }

    # --- channels

    @at("GET /channels", "GET /vhosts/{vhost}/channels")
    async def list_channels(self, ask: ManagementAsk) -> ManagementReply:
        vhost = self._scope.vhost(ask) if "vhost" in ask.names else None
        return await self._channels(ask, [info async for page in self._pages(ask, vhost) for info in page])

    @at("GET /connections/{connection}/channels")
    async def list_channels_of(self, ask: ManagementAsk) -> ManagementReply:
        return await self._channels(ask, [await self._find(ask)])

    async def _channels(self, ask: ManagementAsk, infos: Sequence[ConnectionInfo]) -> ManagementReply:
        found = [(info, one) for info in infos for one in await self._directory.channels(info.connection_id)]

        async def describe(some: Sequence[tuple[ConnectionInfo, ChannelInfo]], wish: Wish) -> list[dict[str, Any]]:
            return [self._channel_row(*one) for one in some]

        return await answer(ask, found, describe, lambda one: channel_name(*one))

    @at("GET /channels/{channel}")
    async def get_channel(self, ask: ManagementAsk) -> ManagementReply:
        named = re.fullmatch(r"(?P<connection>.*) \((?P<number>[0-9]{1,5})\)", ask.names["channel"])
        if named is None:
            raise not_there()
        ask.names = {"connection": named["connection"]}
        info = await self._find(ask)
        for one in await self._directory.channels(info.connection_id):
            if one.channel == int(named["number"]):
                return reply(self._channel_row(info, one) | {"consumer_details": []})
        raise not_there()

    def _channel_row(self, info: ConnectionInfo, one: ChannelInfo) -> dict[str, Any]:
        return {
            "name": channel_name(info, one),
            "number": one.channel,
            "node": self._scope.node,
            "user": info.account or "none",
            "vhost": info.vhost,
            "state": "running" if one.state == "open" else one.state,
            "confirm": one.mode == "confirm",
            "transactional": one.mode == "transaction",
            "consumer_count": one.consumer_count,
            "messages_unacknowledged": one.unacked_count,
            "prefetch_count": one.prefetch,
            "global_prefetch_count": one.shared_prefetch,
            "connection_details": _connection_details(info.address, connection_name(info)),
        }

    # --- consumers

    @at("GET /consumers", "GET /consumers/{vhost}")
    async def list_consumers(self, ask: ManagementAsk) -> ManagementReply:
        vhost = self._scope.vhost(ask) if "vhost" in ask.names else None
        found: list[ConsumerState] = []
        async for page in self._pages(ask, vhost):
            for info in page:
                if info.consumer_count and info.session:
                    found += await self._of_session(info.session)
        return await self._consumers(ask, found)

    async def _of_session(self, session: int) -> list[ConsumerState]:
        found: list[ConsumerState] = []
        after = (0, 0)
        while True:
            page = await self._broker.ask(ListConsumers(session=session, after=after, limit=_PAGE))
            found += page
            if len(page) < _PAGE:
                return found
            after = page[-1].session, page[-1].consumer

    async def _consumers(self, ask: ManagementAsk, found: list[ConsumerState]) -> ManagementReply:
        async def describe(some: Sequence[ConsumerState], wish: Wish) -> list[dict[str, Any]]:
            names = await self._directory.consumer_names([(one.session, one.consumer) for one in some])
            rows = [self._consumer_row(*pair) for pair in zip(some, names, strict=True)]
            return [row for row in rows if row is not None]

        return await answer(ask, found, describe)

    def _consumer_row(self, one: ConsumerState, name: ConsumerName | None) -> dict[str, Any] | None:
        queue = self._broker.topology.queue_at(one.queue)
        if name is None or queue is None:  # it has ended meanwhile
            return None
        connection = f"{name.address} -> {name.connection_id}"
        return {
            "consumer_tag": name.tag,
            "queue": {"name": queue.name, "vhost": queue.vhost},
            "ack_required": not one.no_ack,
            "active": one.is_active,
            "activity_status": "up" if one.is_active else "waiting",
            "exclusive": one.exclusive,
            "prefetch_count": one.prefetch,
            "arguments": {"x-priority": one.priority} if one.priority else {},
            "channel_details": {
                "name": f"{connection} ({name.channel})",
                "number": name.channel,
                "node": self._scope.node,
                "user": name.account or "none",
                **{key: value for key, value in _connection_details(name.address, connection).items() if key != "name"},
                "connection_name": connection,
            },
        }


def connection_name(info: ConnectionInfo) -> str:
    """As RabbitMQ's, "the one end -> the other"; here the other is the id, so that a name is never used again."""
    return f"{info.address} -> {info.connection_id}"


def channel_name(info: ConnectionInfo, one: ChannelInfo) -> str:
    return f"{connection_name(info)} ({one.channel})"


def _connection_details(address: str, name: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"name": name, "peer_host": host.strip("[]"), "peer_port": int(port) if port.isdecimal() else 0}
