"""Acknowledgements of a channel on their way to the broker: gathered while a read lasts, so that a thousand acks in one
socket read are one settlement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from laneway.frontends.amqp.errors import AmqpError
from laneway.frontends.amqp.unacked import Taken

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel


class Settling:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._acks: dict[int, list[Taken]] = {}  # by queue
        self._grants: dict[object, int] = {}  # by consumer: how much credit it gets back
        self._is_planned = False

    def take(self, tag: int, multiple: bool) -> list[Taken]:
        """What a delivery tag stands for; an AmqpError if it stands for nothing."""
        unacked = self._channel.unacked
        if not multiple:
            one = unacked.take(tag)
            if one is None:
                raise _unknown(tag)
            return [one]
        if tag == 0:
            return unacked.take_all()
        if tag > self._channel.last_delivery:
            raise _unknown(tag)
        taken = unacked.take_through(tag)
        if not taken:
            raise _unknown(tag)
        return taken

    def take_range(self, first: int, last: int) -> list[Taken]:
        """What neighbouring delivery tags stand for; an AmqpError names the first that stands for nothing. Those before
        it are acknowledged then, and those behind it are not, as if they had come one by one."""
        unacked = self._channel.unacked
        taken = unacked.take_range(first, last)
        if sum(len(part.seqs) for part in taken) != last - first + 1:
            known = {tag for part in taken for tag in part.tags}
            unknown = next(tag for tag in range(first, last + 1) if tag not in known)
            for part in taken:
                unacked.restore(part)
            self.ack(unacked.take_range(first, unknown - 1))
            raise _unknown(unknown)
        return taken

    def ack(self, taken: Sequence[Taken]) -> None:
        for part in taken:
            self._acks.setdefault(part.queue, []).append(part)
            self._grants[part.owner] = self._grants.get(part.owner, 0) + len(part.seqs)
        if not self._is_planned and self._acks:
            self._is_planned = True
            self._channel.connection.after_read(self.flush)

    def flush(self) -> None:
        self._is_planned = False
        if not self._acks:
            return
        acks, self._acks = self._acks, {}
        ack = self._channel.broker.sessions.ack
        for queue, parts in acks.items():
            ack(queue, [part.seqs for part in parts], [part.leases for part in parts])
        self._grant()

    def _grant(self) -> None:
        grants, self._grants = self._grants, {}
        for owner, count in grants.items():
            if owner is not None:
                owner.subscription.grant(count)  # type: ignore[attr-defined]

    def settle(self, taken: Sequence[Taken], action: str) -> None:
        """Release or reject, after the acks that came before."""
        self.flush()
        settle = self._channel.broker.sessions.settle
        for part in taken:
            settle(part.queue, part.seqs, part.leases, action)
            self._grants[part.owner] = self._grants.get(part.owner, 0) + len(part.seqs)
        self._grant()

    def extend(self, taken: Sequence[Taken]) -> None:
        """Give each the whole time again that its consumer or its queue allows for."""
        self.flush()
        for part in taken:
            lease_ms = part.owner.subscription.lease_ms if part.owner is not None else None
            self._channel.broker.sessions.settle(part.queue, part.seqs, part.leases, "extend", lease_ms=lease_ms)

    def give_back(self, taken: Sequence[Taken]) -> None:
        """The channel ends: its consumers are gone, and what it held goes back to its place."""
        settle = self._channel.broker.sessions.settle
        for part in taken:
            settle(part.queue, part.seqs, part.leases, "release")


def _unknown(tag: int) -> AmqpError:
    return AmqpError(406, f"unknown delivery tag {tag}")
