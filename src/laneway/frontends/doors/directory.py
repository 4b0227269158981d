"""The directory of connections: what there is of them on a node, as values, and how one is ended from outside.

Front ends enter their connections here, and whoever lists them looks here: so no front end knows another. What is asked
is awaited and answered with values, because the connections may be those of another process.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from typing import Literal, Protocol

import msgspec

_LOOKED_AT_ONCE = 1_000  # connections, before others get their turn

ConnectionProtocol = Literal["amqp", "http"]
Ref = tuple[int, int]  # a consumer: its session, and its number there


class ConnectionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A connection. Over HTTP each request says who asks: its account is that of a request which is being answered."""

    connection_id: str = ""
    connected_at_ms: int = 0
    session: int = 0  # as the broker knows it; 0: it has none
    protocol: ConnectionProtocol
    state: str
    account: str | None
    vhost: str | None = None
    address: str  # of the other end
    tls: str | None  # the version of TLS, if it is spoken
    client_properties: dict[str, str | int | bool] = {}
    channel_count: int = 0
    consumer_count: int = 0
    unacked_count: int = 0
    heartbeat_s: int = 0
    request_count: int = 0  # requests that are being answered
    waiting_count: int = 0  # … of which so many wait for messages


def tls_version(transport: asyncio.BaseTransport) -> str | None:
    """Of a connection: None if it has no TLS."""
    tls = transport.get_extra_info("ssl_object")
    return tls.version() if tls is not None else None


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    channel: int
    mode: Literal["plain", "confirm", "transaction"]
    consumer_count: int
    unacked_count: int
    prefetch: int  # of each consumer to come; 0: no limit
    shared_prefetch: int  # of all its consumers together; 0: no limit
    state: Literal["open", "closing"]


class ConsumerName(msgspec.Struct, frozen=True):
    """What a consumer is called by its client, and where it is."""

    connection_id: str
    account: str | None
    address: str
    channel: int
    tag: str


class Listed(Protocol):
    """A connection, as its front end enters it."""

    protocol: ConnectionProtocol

    def accounts(self) -> Collection[str]:
        """Whose it is."""

    def info(self) -> ConnectionInfo:
        """What is to be said of it, but its id and since when it is there."""

    def channel_infos(self) -> Sequence[ChannelInfo]: ...

    def consumer_name(self, number: int) -> tuple[int, str] | None:
        """The channel and the tag of a consumer."""

    def close_by(self, why: str) -> None: ...

    def close_channel_by(self, channel: int, why: str) -> bool:
        """Whether there was one of this number."""

    def cancel_consumer_by(self, number: int, why: str) -> bool: ...


class Directory(Protocol):
    async def counts(self) -> dict[ConnectionProtocol, int]:
        """How many connections there are."""

    async def connections(
        self, *, account: str | None, protocol: ConnectionProtocol | None, after: int, limit: int
    ) -> list[tuple[int, ConnectionInfo]]:
        """The oldest first, each with the number that the next page begins after: of one account, or all."""

    async def connection(self, connection_id: str, *, account: str | None) -> ConnectionInfo | None:
        """One; None if there is none, or if it is not the account's."""

    async def channels(self, connection_id: str) -> Sequence[ChannelInfo]: ...

    async def consumer_names(self, refs: Sequence[Ref]) -> list[ConsumerName | None]: ...

    async def close(self, connection_id: str, why: str) -> bool:
        """Whether there was such a connection."""

    async def close_channel(self, connection_id: str, channel: int, why: str) -> bool: ...

    async def cancel_consumer(self, connection_id: str, number: int, why: str) -> bool: ...


class LocalDirectory:
    """Of one process. Ids begin with a tag of its own, so that none means another connection after a restart. Numbers
    are those of no other process, and later ones are higher in all of them."""

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        process: int = 0,
        process_count: int = 1,
    ) -> None:
        self._now_ms = now_ms
        self._process = process
        self._process_count = process_count
        self._tag = secrets.token_hex(3)
        self._last = 0
        self._entries: dict[int, tuple[Listed, int]] = {}  # with the time at which each came, the oldest first
        self._by_session: dict[int, int] = {}
        self._counts: dict[ConnectionProtocol, int] = {"amqp": 0, "http": 0}

    # --- for front ends

    def enter(self, entry: Listed, session: int = 0) -> int:
        """The number to leave with."""
        now_ms, count = self._now_ms(), self._process_count
        self._last += count
        if count > 1:
            self._last = max(self._last, now_ms * 1000 // count * count + self._process)
        self._entries[self._last] = entry, now_ms
        self._counts[entry.protocol] += 1
        if session:
            self._by_session[session] = self._last
        return self._last

    def leave(self, number: int, session: int = 0) -> None:
        entry, _ = self._entries.pop(number)
        self._counts[entry.protocol] -= 1
        self._by_session.pop(session, None)

    # --- for those who look

    async def counts(self) -> dict[ConnectionProtocol, int]:
        return dict(self._counts)

    async def connections(
        self, *, account: str | None, protocol: ConnectionProtocol | None, after: int, limit: int
    ) -> list[tuple[int, ConnectionInfo]]:
        found: list[tuple[int, ConnectionInfo]] = []
        numbers = [number for number in self._entries if number > after]
        for at, number in enumerate(numbers):
            if at and at % _LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            entry, _ = self._entries.get(number, (None, 0))
            if entry is None or protocol not in (None, entry.protocol):
                continue
            if account is None or account in entry.accounts():
                found.append((number, self._info(number)))
                if len(found) >= limit:
                    break
        return found

    async def connection(self, connection_id: str, *, account: str | None) -> ConnectionInfo | None:
        number = self._number(connection_id)
        if number is None or (account is not None and account not in self._entries[number][0].accounts()):
            return None
        return self._info(number)

    async def channels(self, connection_id: str) -> Sequence[ChannelInfo]:
        entry = self._find(connection_id)
        return entry.channel_infos() if entry is not None else ()

    async def consumer_names(self, refs: Sequence[Ref]) -> list[ConsumerName | None]:
        return [self._consumer_name(session, number) for session, number in refs]

    async def close(self, connection_id: str, why: str) -> bool:
        entry = self._find(connection_id)
        if entry is not None:
            entry.close_by(why)
        return entry is not None

    async def close_channel(self, connection_id: str, channel: int, why: str) -> bool:
        entry = self._find(connection_id)
        return entry is not None and entry.close_channel_by(channel, why)

    async def cancel_consumer(self, connection_id: str, number: int, why: str) -> bool:
        entry = self._find(connection_id)
        return entry is not None and entry.cancel_consumer_by(number, why)

    def _number(self, connection_id: str) -> int | None:
        tag, _, digits = connection_id.partition("-")
        number = int(digits) if tag == self._tag and digits.isascii() and digits.isdigit() and len(digits) < 19 else 0
        return number if number in self._entries else None

    def _find(self, connection_id: str) -> Listed | None:
        number = self._number(connection_id)
        return self._entries[number][0] if number is not None else None

    def _id(self, number: int) -> str:
        return f"{self._tag}-{number}"

    def _info(self, number: int) -> ConnectionInfo:
        entry, since_ms = self._entries[number]
        return msgspec.structs.replace(entry.info(), connection_id=self._id(number), connected_at_ms=since_ms)

    def _consumer_name(self, session: int, consumer: int) -> ConsumerName | None:
        number = self._by_session.get(session)
        found = self._entries[number][0] if number is not None else None
        name = found.consumer_name(consumer) if found is not None else None
        if number is None or found is None or name is None:
            return None
        info = found.info()
        return ConsumerName(self._id(number), info.account, info.address, *name)
