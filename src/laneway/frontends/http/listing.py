"""A connection as whoever lists connections sees it, and how it is ended from outside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from laneway.frontends.doors.directory import ChannelInfo, ConnectionInfo, ConnectionProtocol

if TYPE_CHECKING:
    from laneway.frontends.http.protocol import HttpConnection


class ListedHttp:
    """Requests say who asks, each for itself: the connection is of all who are being answered on it."""

    protocol: ConnectionProtocol = "http"

    def __init__(self, connection: HttpConnection, tls: str | None) -> None:
        self._connection = connection
        self._tls = tls

    def accounts(self) -> Collection[str]:
        return [call.account.name for call in self._connection.calls() if call.account is not None]

    def info(self) -> ConnectionInfo:
        c = self._connection
        calls = c.calls()
        waiting_count = sum(call.waiter is not None for call in calls)
        return ConnectionInfo(
            protocol=self.protocol,
            state="waiting" if waiting_count else "answering" if calls else "idle",
            account=next(iter(self.accounts()), None),
            address=str(c.peer),
            tls=self._tls,
            request_count=len(calls),
            waiting_count=waiting_count,
        )

    def channel_infos(self) -> Sequence[ChannelInfo]:
        return ()

    def consumer_name(self, number: int) -> None:
        return None

    def close_by(self, why: str) -> None:
        self._connection.close_by_and_by()

    def close_channel_by(self, channel: int, why: str) -> bool:
        return False

    def cancel_consumer_by(self, number: int, why: str) -> bool:
        return False
