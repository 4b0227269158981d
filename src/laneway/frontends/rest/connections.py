"""Connections, their channels and consumers: listed and ended. Administrators see all, others what is their own."""

from __future__ import annotations

import logging
from typing import Any

from msgspec import UNSET

from laneway.access import Access
from laneway.broker.interface import Broker, ListConsumers
from laneway.broker.values import ConsumerState
from laneway.errors import ConnectionNotFound, Forbidden, InvalidInput
from laneway.frontends.doors.directory import ConnectionInfo, ConsumerName, Directory
from laneway.frontends.http.protocol import Call
from laneway.frontends.rest import answers as a
from laneway.frontends.rest import wire as w
from laneway.frontends.rest.cursors import decode_cursor, encode_cursor
from laneway.frontends.rest.plan import HeadPlan
from laneway.frontends.rest.routing import ApiRoute, Reply
from laneway.frontends.rest.times import Timestamps

log = logging.getLogger("laneway.http")

_PAGE = 100
_ONE = "/connections/{connection}"


class ConnectionsApi:
    def __init__(self, broker: Broker, access: Access, directory: Directory, times: Timestamps) -> None:
        self._broker = broker
        self._access = access
        self._directory = directory
        self._times = times

    @ApiRoute("GET", "/connections", options=w.ConnectionOptions, answers={200: a.ConnectionsAnswer})
    async def list_connections(self, call: Call) -> Reply:
        """Connections, the oldest first: all of them for an administrator, else one's own."""
        options: w.ConnectionOptions = call.head.plan.options(w.ConnectionOptions)
        own = self._own(call)
        account = options.account or own
        if own not in (None, account):
            raise Forbidden("the connections of other accounts are seen with the role admin", field="account")
        limit = options.limit or _PAGE
        found = await self._directory.connections(
            account=account, protocol=options.protocol or None, after=_after(options, int) or 0, limit=limit + 1
        )
        answer = a.ConnectionsAnswer(
            connections=[self._connection(info) for _, info in found[:limit]],
            next_cursor=encode_cursor(found[limit - 1][0]) if len(found) > limit else None,
        )
        if own is None:
            answer.counts = {str(kind): count for kind, count in (await self._directory.counts()).items()}
        return Reply(200, a.encode(answer))

    @ApiRoute("GET", _ONE, answers={200: a.ConnectionAnswer}, refusals=(404,))
    async def get_connection(self, call: Call) -> Reply:
        """One connection."""
        return Reply(200, a.encode(self._connection(await self._find(call))))

    @ApiRoute("DELETE", _ONE, options=w.CloseOptions, answers={204: None}, refusals=(404,))
    async def close_connection(self, call: Call) -> Reply:
        """Close a connection; its client is told so in its own protocol."""
        info = await self._find(call)
        await self._directory.close(info.connection_id, self._why(call, f"connection {info.connection_id}", info))
        return Reply(204)

    # --- channels

    @ApiRoute("GET", f"{_ONE}/channels", options=w.PageOptions, answers={200: a.ChannelsAnswer}, refusals=(404,))
    async def list_channels(self, call: Call) -> Reply:
        """The channels of an AMQP connection, by number."""
        options: w.PageOptions = call.head.plan.options(w.PageOptions)
        info = await self._find(call)
        after, limit = _after(options, int) or 0, options.limit or _PAGE
        channels = [one for one in await self._directory.channels(info.connection_id) if one.channel > after]
        answer = a.ChannelsAnswer(
            channels=[
                a.ChannelAnswer(**{name: getattr(one, name) for name in a.ChannelAnswer.__struct_fields__})
                for one in channels[:limit]
            ],
            next_cursor=encode_cursor(channels[limit - 1].channel) if len(channels) > limit else None,
        )
        return Reply(200, a.encode(answer))

    @ApiRoute("DELETE", f"{_ONE}/channels/{{channel}}", options=w.CloseOptions, answers={204: None}, refusals=(404,))
    async def close_channel(self, call: Call) -> Reply:
        """Close a channel; what it held goes back to its queues."""
        info, number = await self._find(call), _number(call, "channel")
        why = self._why(call, f"channel {number} of connection {info.connection_id}", info)
        if not await self._directory.close_channel(info.connection_id, number, why):
            raise ConnectionNotFound(f"connection {info.connection_id} has no channel {number}", field="channel")
        return Reply(204)

    # --- consumers

    @ApiRoute("GET", f"{_ONE}/consumers", options=w.PageOptions, answers={200: a.ConsumersAnswer}, refusals=(404,))
    async def list_consumers_of_connection(self, call: Call) -> Reply:
        """The consumers of an AMQP connection, by number."""
        info = await self._find(call)
        if not info.session:
            return Reply(200, a.encode(a.ConsumersAnswer(consumers=[], next_cursor=None)))
        return await self._consumers(call, session=info.session)

    @ApiRoute("DELETE", f"{_ONE}/consumers/{{consumer}}", options=w.CloseOptions, answers={204: None}, refusals=(404,))
    async def cancel_consumer(self, call: Call) -> Reply:
        """Cancel a consumer; what it holds it may still settle."""
        info, number = await self._find(call), _number(call, "consumer")
        why = self._why(call, f"consumer {number} of connection {info.connection_id}", info)
        if not await self._directory.cancel_consumer(info.connection_id, number, why):
            raise ConnectionNotFound(f"connection {info.connection_id} has no consumer {number}", field="consumer")
        return Reply(204)

    @ApiRoute("GET", "{Q}/consumers", options=w.PageOptions, answers={200: a.ConsumersAnswer}, refusals=(404,))
    async def list_consumers(self, call: Call) -> Reply:
        """The AMQP consumers of a queue; of those of other accounts, where they are is left out."""
        plan: HeadPlan = call.head.plan
        self._access.check(call.account, plan.vhost, plan.queue, "stats")
        return await self._consumers(call, queue=self._broker.topology.find_queue(plan.vhost, plan.queue).queue)

    async def _consumers(self, call: Call, **whose: int) -> Reply:
        options: w.PageOptions = call.head.plan.options(w.PageOptions)
        limit = options.limit or _PAGE
        after = _after(options, tuple[int, int]) or (0, 0)
        found: list[ConsumerState] = await self._broker.ask(ListConsumers(after=after, limit=limit + 1, **whose))
        shown = found[:limit]
        names = await self._directory.consumer_names([(one.session, one.consumer) for one in shown])
        own = self._own(call)
        answer = a.ConsumersAnswer(
            consumers=[self._consumer(*one, own) for one in zip(shown, names, strict=True)],
            next_cursor=encode_cursor((shown[-1].session, shown[-1].consumer)) if len(found) > limit else None,
        )
        return Reply(200, a.encode(answer))

    # --- in common

    def _own(self, call: Call) -> str | None:
        """The account whose connections the caller may see; None for all."""
        try:
            self._access.check_admin(call.account)
        except Forbidden:
            return str(call.account.name)
        return None

    async def _find(self, call: Call) -> ConnectionInfo:
        connection_id = call.head.plan.names["connection"]
        info = await self._directory.connection(connection_id, account=self._own(call))
        if info is None:  # what is another's is not there either
            raise ConnectionNotFound(
                f"there is no connection {connection_id!r}: it may have ended", field="connection_id"
            )
        return info

    def _why(self, call: Call, what: str, info: ConnectionInfo) -> str:
        """What its client is told; the log hears of it as well."""
        options: w.CloseOptions = call.head.plan.options(w.CloseOptions)
        reason = options.reason or ""
        if not reason.isprintable():
            raise InvalidInput("a reason is one line of text", field="reason")
        by = f"closed by {call.account.name!r}" + (f": {reason}" if reason else "")
        log.info("%s of %r from %s is %s", what, info.account, info.address, by)
        return by

    def _connection(self, info: ConnectionInfo) -> a.ConnectionAnswer:
        return a.ConnectionAnswer(
            connection_id=info.connection_id,
            protocol=info.protocol,
            state=info.state,
            account=info.account,
            vhost=info.vhost,
            address=info.address,
            tls=info.tls,
            connected_at=self._times.text(info.connected_at_ms),
            client_properties=info.client_properties,
            channel_count=info.channel_count,
            consumer_count=info.consumer_count,
            unacked_count=info.unacked_count,
            heartbeat_seconds=info.heartbeat_s,
            request_count=info.request_count,
            waiting_count=info.waiting_count,
        )

    def _consumer(self, state: ConsumerState, name: ConsumerName | None, own: str | None) -> a.ConsumerAnswer:
        queue = self._broker.topology.queue_at(state.queue)
        answer = a.ConsumerAnswer(
            consumer=state.consumer,
            vhost=queue.vhost if queue is not None else "",
            queue_name=queue.name if queue is not None else "",
            priority=state.priority,
            prefetch=state.prefetch,
            held_count=state.held_count,
            no_ack=state.no_ack,
            exclusive=state.exclusive,
            is_active=state.is_active,
        )
        if name is not None and own in (None, name.account):
            answer.consumer_tag, answer.channel = name.tag, name.channel
            answer.connection_id, answer.address = name.connection_id, name.address
            answer.account = name.account or UNSET
        return answer


def _after(options: w.PageOptions, kind: Any) -> Any:
    return None if options.cursor is UNSET else decode_cursor(options.cursor, kind)


def _number(call: Call, name: str) -> int:
    text: str = call.head.plan.names[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput(f"a {name} has a number, not {text[:80]!r}", field=name)
    return int(text)
