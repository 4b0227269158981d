"""A connection as whoever lists connections sees it, and how it, a channel or a consumer is ended from outside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from laneway.frontends.amqp import consuming
from laneway.frontends.amqp.errors import AmqpError
from laneway.frontends.doors.directory import ChannelInfo, ConnectionInfo, ConnectionProtocol

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel
    from laneway.frontends.amqp.connection import AmqpConnection


class ListedAmqp:
    protocol: ConnectionProtocol = "amqp"

    def __init__(self, connection: AmqpConnection, tls: str | None) -> None:
        self._connection = connection
        self._tls = tls

    def accounts(self) -> Collection[str]:
        account = self._connection.account
        return (account.name,) if account is not None else ()

    def info(self) -> ConnectionInfo:
        c = self._connection
        return ConnectionInfo(
            session=c.session,
            protocol=self.protocol,
            state=c.state(),
            account=c.account.name if c.account is not None else None,
            vhost=c.vhost or None,
            address=str(c.peer),
            tls=self._tls,
            client_properties=c.client_properties,
            channel_count=len(c.channels),
            consumer_count=len(c.consumers),
            unacked_count=sum(channel.unacked.count for channel in c.channels.values()),
            heartbeat_s=c.heartbeat_s,
        )

    def channel_infos(self) -> Sequence[ChannelInfo]:
        channels = self._connection.channels
        return [_info(channels[number]) for number in sorted(channels)]

    def consumer_name(self, number: int) -> tuple[int, str] | None:
        consumer = self._connection.consumers.get(number)
        return (consumer.channel.number, consumer.tag) if consumer is not None else None

    def close_by(self, why: str) -> None:
        self._connection.close_by(why)

    def close_channel_by(self, channel: int, why: str) -> bool:
        """RabbitMQ has no code for that; 406 is what it closes channels with that hold messages for too long."""
        found = self._connection.channels.get(channel)
        if found is None or found.is_closing:
            return False
        self._connection.fail_channel(found, AmqpError(406, why, method=0), 0)
        return True

    def cancel_consumer_by(self, number: int, why: str) -> bool:
        """Clients that know of basic.cancel get one; the channel of others ends, or they would wait for ever."""
        connection = self._connection
        consumer = connection.consumers.get(number)
        if consumer is None or consumer.channel.consumers.get(consumer.tag) is not consumer:
            return False
        if connection.client_capabilities.get("consumer_cancel_notify") is not True:
            return self.close_channel_by(consumer.channel.number, why)
        consuming.cancel_by_server(consumer)
        return True


def _info(channel: Channel) -> ChannelInfo:
    publishes: Literal["plain", "transaction"] = "plain" if channel.transaction is None else "transaction"
    return ChannelInfo(
        channel=channel.number,
        mode=publishes if channel.confirms is None else "confirm",
        consumer_count=len(channel.consumers),
        unacked_count=channel.unacked.count,
        prefetch=channel.prefetch,
        shared_prefetch=channel.shared_prefetch,
        state="closing" if channel.is_closing else "open",
    )
