"""What all parts of the management API share: the broker, who may see and do what, and what the server is called."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import msgspec

from laneway.access import MONITOR, OPERATOR, Access, Account
from laneway.broker.interface import Broker
from laneway.broker.values import ExchangeInfo, QueueInfo
from laneway.errors import Forbidden
from laneway.frontends.http.errors import HttpError
from laneway.frontends.management.asking import ManagementAsk
from laneway.frontends.management.errors import not_authorised, not_there

#: The version of RabbitMQ that tools are told, whose answers these are.
VERSION = "3.10.8"
DEFAULT_EXCHANGE = "amq.default"  # its name in paths and permissions, where it has one
PAGE_OF_QUEUES = 5_000


class Scope(msgspec.Struct):
    broker: Broker
    access: Access
    node: str = f"laneway@{socket.gethostname().partition('.')[0]}"

    # --- who may

    def check_admin(self, account: Account) -> None:
        try:
            self.access.check_admin(account)
        except Forbidden:
            raise not_authorised("Not administrator user") from None

    def is_monitor(self, account: Account) -> bool:
        try:
            self.access.check_role(account, MONITOR, OPERATOR)
        except Forbidden:
            return False
        return True

    def check_monitor(self, account: Account) -> None:
        if not self.is_monitor(account):
            raise not_authorised("Not monitor user")

    # --- what a path names

    def vhost(self, ask: ManagementAsk) -> str:
        """The virtual host of the path, which the account must be allowed to enter. Clients that forget to encode the
        name "/" send nothing instead of it."""
        name = ask.names["vhost"] or "/"
        if not self.broker.topology.has_vhost(name):
            raise not_there()
        if not self.access.may_enter(ask.account, name):
            raise not_authorised("User not authorised to access virtual host")
        return name

    def vhosts(self, ask: ManagementAsk) -> list[str]:
        """The one of the path, or all that the account may enter."""
        if "vhost" in ask.names:
            return [self.vhost(ask)]
        return [name for name in sorted(self.broker.topology.vhosts()) if self.access.may_enter(ask.account, name)]

    def queue(self, ask: ManagementAsk, name: str = "queue") -> QueueInfo:
        vhost = self.vhost(ask)
        info = self.broker.topology.queue(vhost, ask.names[name])
        if info is None or not self.access.may_see(ask.account, vhost, info.name):
            raise not_there()
        return info

    def exchange(self, ask: ManagementAsk, name: str = "exchange") -> ExchangeInfo:
        vhost = self.vhost(ask)
        asked = exchange_of(ask.names[name])
        info = self.broker.topology.exchange(vhost, asked)
        if info is None or not (info.is_built_in or self.access.may_see(ask.account, vhost, shown_exchange(asked))):
            raise not_there()
        return info

    def queues(self, ask: ManagementAsk) -> Iterator[list[QueueInfo]]:
        """All that the account may see, some at a time."""
        topology, may_see, account = self.broker.topology, self.access.may_see, ask.account
        for vhost in self.vhosts(ask):
            after: tuple[str, str] | None = None
            while True:
                page = topology.queues(vhost=vhost, limit=PAGE_OF_QUEUES, after=after)
                yield [info for info in page if may_see(account, vhost, info.name)]
                if len(page) < PAGE_OF_QUEUES:
                    break
                after = vhost, page[-1].name


def exchange_of(name: str) -> str:
    return "" if name == DEFAULT_EXCHANGE else name


def shown_exchange(name: str) -> str:
    """As permissions name it."""
    return name or DEFAULT_EXCHANGE


def refused_for(account: Account, vhost: str, kind: str, name: str, need: str) -> HttpError:
    return not_authorised(
        f"ACCESS_REFUSED - {need} access to {kind} '{name}' in vhost '{vhost}' refused for user '{account.name}'"
    )
