"""tx.select, commit, rollback. What a transaction publishes and settles is kept until it is committed; then all of it
is staged without letting anything else in between, so that it is one commit of the journal: all survives, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.errors import LanewayError
from laneway.frontends.amqp import publishing
from laneway.frontends.amqp.errors import NOT_NOW, AmqpError, precondition_failed
from laneway.frontends.amqp.spec import BY_NAME, Arguments
from laneway.frontends.amqp.unacked import Taken

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel


_COMMIT_OK = BY_NAME["tx.commit-ok"]


class Uncommitted:
    """What the transactions of one connection hold together."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.bytes = self.count = 0


class Transaction:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._publishes: list[tuple[publishing.Plan, bytes]] = []
        self._settlements: list[tuple[str, list[Taken]]] = []
        self._bytes = 0

    def add_publish(self, plan: publishing.Plan, body: bytes) -> None:
        self._publishes.append((plan, body))
        self._count(len(body) + len(plan.shape.raw))

    def add_settlement(self, action: str, taken: list[Taken]) -> None:
        self._settlements.append((action, taken))
        self._count(0)

    def _count(self, size_bytes: int) -> None:
        """The connection has a limit for all its transactions together, as it may have thousands of channels."""
        limits, all_of_it = self._channel.limits, self._channel.connection.uncommitted
        self._bytes += size_bytes
        all_of_it.bytes += size_bytes
        all_of_it.count += 1
        if all_of_it.bytes > limits.transaction_bytes or all_of_it.count > limits.transaction_count:
            raise AmqpError(
                506,
                f"the transactions of a connection have at most {limits.transaction_count} publishes and "
                f"acknowledgements and {limits.transaction_bytes} bytes",
            )

    def commit(self) -> None:
        ch = self._channel
        there = [(plan.queues, publishing.draft_of(ch, plan, body)) for plan, body in self._publishes if plan.queues]
        try:
            refusals = ch.broker.sessions.publish_all(there)
        except NOT_NOW:
            ch.connection.block(self.commit)
            return
        for plan, body in self._publishes:
            if plan.mandatory and not plan.queues:
                publishing.give_back(ch, plan, body)
        slot = ch.outbox.hold()  # behind what came back, before what is delivered again
        settlements = self._settlements
        self.forget()
        try:
            for action, taken in settlements:
                ch.settling.settle(taken, action)
            if refusals:
                raise precondition_failed("partial tx completion")
        except (AmqpError, LanewayError):
            slot.fill(b"")
            raise
        ch.broker.when_durable(slot.fill, _COMMIT_OK.encode(ch.number))

    def forget(self) -> None:
        all_of_it = self._channel.connection.uncommitted
        all_of_it.bytes -= self._bytes
        all_of_it.count -= len(self._publishes) + len(self._settlements)
        self._publishes, self._settlements, self._bytes = [], [], 0

    def restore(self) -> None:
        """Forget what was to be published, and hold again what was to be settled."""
        for _, taken in self._settlements:
            for part in taken:
                self._channel.unacked.restore(part)
        self.forget()


def select(ch: Channel, a: Arguments) -> None:
    if ch.confirms is not None:
        raise precondition_failed("cannot switch from confirm to tx mode")
    if ch.transaction is None:
        ch.transaction = Transaction(ch)
    ch.send("tx.select-ok")


def commit(ch: Channel, a: Arguments) -> None:
    _transaction(ch).commit()


def rollback(ch: Channel, a: Arguments) -> None:
    _transaction(ch).restore()
    ch.send("tx.rollback-ok")


def _transaction(ch: Channel) -> Transaction:
    if ch.transaction is None:
        raise precondition_failed("channel is not transactional")
    return ch.transaction


HANDLERS = {"tx.select": select, "tx.commit": commit, "tx.rollback": rollback}
