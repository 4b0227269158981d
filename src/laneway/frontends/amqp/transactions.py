"""tx.select, commit, rollback. What a transaction publishes and settles is kept until it is committed; then it is one
request and one commit of the journal: all survives, or none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from laneway.broker.interface import QueueId, Targets, Transact
from laneway.broker.values import Arrival
from laneway.errors import LanewayError
from laneway.frontends.amqp import publishing
from laneway.frontends.amqp.errors import AmqpError, amqp_error, may_be_sent_again, precondition_failed
from laneway.frontends.amqp.outbox import Slot
from laneway.frontends.amqp.settling import Action
from laneway.frontends.amqp.spec import BY_NAME, Arguments
from laneway.frontends.amqp.unacked import Taken

if TYPE_CHECKING:
    from laneway.frontends.amqp.channel import Channel


_COMMIT = BY_NAME["tx.commit"]
_COMMIT_OK = BY_NAME["tx.commit-ok"]


class Uncommitted:
    """What the transactions of one connection hold together."""

    __slots__ = ("bytes", "count")

    def __init__(self) -> None:
        self.bytes = self.count = 0


class Transaction:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.batch = publishing.Batch()
        self.exchanges: set[str] = set()  # that it publishes to
        self._names: dict[QueueId, str] = {}  # of the queues that it publishes to
        self._settlements: list[tuple[Action, list[Taken]]] = []
        self._counted = 0
        self._bytes = 0

    def note_queues(self, routes: Sequence[Targets]) -> None:
        """A queue that is deleted and declared again before the commit gets what was published to it."""
        find = self._channel.broker.topology.queue_at
        for queue in chain.from_iterable(set(routes)):
            if queue not in self._names and (info := find(queue)) is not None:
                self._names[queue] = info.name

    def add_settlement(self, action: Action, taken: list[Taken]) -> None:
        self._settlements.append((action, taken))
        self.count(1, 0)

    def count(self, count: int, size_bytes: int) -> None:
        """The connection has a limit for all its transactions together, as it may have thousands of channels."""
        limits, all_of_it = self._channel.limits, self._channel.connection.uncommitted
        self._bytes += size_bytes
        self._counted += count
        all_of_it.bytes += size_bytes
        all_of_it.count += count
        is_too_large = all_of_it.bytes > limits.transaction_bytes and all_of_it.count > 1  # any message is taken alone
        if is_too_large or all_of_it.count > limits.transaction_count:
            raise AmqpError(
                506,
                f"the transactions of a connection have at most {limits.transaction_count} publishes and "
                f"acknowledgements and {limits.transaction_bytes} bytes",
            )

    def commit(self) -> None:
        for exchange in sorted(self.exchanges):  # what was allowed when it was published may have been revoked since
            self._channel.check_access("exchange", exchange, "write")
        settling, batch = self._channel.settling, self.batch
        self._follow_queues()
        settlements = [settling.request(part, action) for action, taken in self._settlements for part in taken]
        self.forget()  # what comes from now on is of the next one
        self._send(Transact(batch.targets, batch.messages(), settlements), batch)

    def _follow_queues(self) -> None:
        topology, vhost, batch = self._channel.broker.topology, self._channel.vhost, self.batch
        ids: dict[QueueId, QueueId] = {}
        for queue, name in self._names.items():
            if topology.queue_at(queue) is None and (now := topology.queue(vhost, name)) is not None:
                ids[queue] = now.queue
        if ids:
            batch.targets = [tuple(ids.get(queue, queue) for queue in route) for route in batch.targets]

    def _send(self, request: Transact, batch: publishing.Batch) -> None:
        slot = self._channel.outbox.hold()  # behind what came before, before what is delivered again
        self._channel.broker.send(request, partial(self._committed, slot, request, batch))

    def _committed(
        self, slot: Slot, request: Transact, batch: publishing.Batch, answer: list[Arrival] | LanewayError
    ) -> None:
        ch = self._channel
        if may_be_sent_again(answer):
            slot.fill(b"")
            ch.connection.block(partial(self._send, request, batch))
            return
        if batch.awaited:
            batch.when_heard = partial(self._committed, slot, request, batch, answer)
            return
        returned = publishing.returned(ch, batch, sorted({*batch.returns, *batch.unrouted(answer)}))
        if publishing.refusals_of(answer, len(batch.bodies)):
            slot.fill(returned)
            error = amqp_error(answer) if isinstance(answer, LanewayError) else None
            ch.connection.fail_channel(ch, error or precondition_failed("partial tx completion"), _COMMIT.number)
        else:
            slot.fill(returned + _COMMIT_OK.encode(ch.number))

    def forget(self) -> None:
        all_of_it = self._channel.connection.uncommitted
        all_of_it.bytes -= self._bytes
        all_of_it.count -= self._counted
        self.batch, self._settlements, self.exchanges, self._names = publishing.Batch(), [], set(), {}
        self._counted = self._bytes = 0

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
