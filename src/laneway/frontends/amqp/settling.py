"""What a channel settles: from delivery tags to requests of the broker. The broker gives credit back by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from laneway.broker.interface import SettleHeld
from laneway.frontends.amqp.errors import AmqpError
from laneway.frontends.amqp.unacked import Taken

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel

Action = Literal["ack", "release", "fail", "reject", "extend"]


class Settling:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

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
            self.settle(unacked.take_range(first, unknown - 1), "ack")
            raise _unknown(unknown)
        return taken

    def request(self, part: Taken, action: Action) -> SettleHeld:
        session, consumer = self._channel.connection.session, part.owner
        if consumer is None:
            return SettleHeld(session, part.queue, part.seqs, part.leases, action)
        lease_ms = consumer.lease_ms if action == "extend" else None
        return SettleHeld(session, part.queue, part.seqs, part.leases, action, consumer.number, lease_ms)

    def settle(self, taken: Sequence[Taken], action: Action) -> None:
        for part in taken:
            self._channel.broker.send(self.request(part, action), _not_answered)

    def extend(self, taken: Sequence[Taken]) -> None:
        """Give each the whole time again that its consumer or its queue allows for."""
        self.settle(taken, "extend")


def _not_answered(answer: object) -> None:
    pass


def _unknown(tag: int) -> AmqpError:
    return AmqpError(406, f"unknown delivery tag {tag}")
