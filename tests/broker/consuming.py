"""Connections and consumers as tests need them: they note what they are pushed, and settle what they are told to."""

from __future__ import annotations

from typing import Any

from laneway.broker import interface as i
from laneway.broker.values import Deliveries
from laneway.errors import LanewayError

from .conftest import Bench


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


class Connection:
    """A session, and its consumers by their numbers."""

    def __init__(self, b: Bench) -> None:
        self.b = b
        self.consumers: dict[int, Consumer] = {}
        self.session = b.broker.open_session(self._pushed)
        self.is_over = False

    def _pushed(self, pushes: list[i.Push]) -> None:
        for push in pushes:
            self._take(push)

    def _take(self, push: i.Push) -> None:
        assert not self.is_over, "pushed to a session that has ended"
        if isinstance(push, i.Delivered):
            self.consumers[push.consumer].take(push.deliveries)
        else:
            self.consumers[push.consumer].end()

    def limit_pool(self, pool: int, limit: int) -> None:
        self.b.send(i.LimitPool(self.session, pool, limit))

    def flow(self, goes_on: bool) -> None:
        self.b.send(i.Flow(self.session, not goes_on))

    def end(self) -> None:
        self.b.send(i.EndSession(self.session))
        self.is_over = True


class Consumer:
    """Notes what it gets, and settles what it is told to."""

    def __init__(self, b: Bench, queue: str = "q", *, on: Connection | None = None, **options: Any) -> None:
        self.b = b
        self.connection = on or Connection(b)
        self.number = len(self.connection.consumers) + 1
        self.connection.consumers[self.number] = self
        self.queue = b.id(queue)
        self.got: list[bytes] = []
        self.held: list[tuple[int, int, bytes]] = []  # seq, lease, body
        self.taken: list[Deliveries] = []
        self.has_ended = False  # its queue went
        self.is_cancelled = False  # whoever cancelled it was told that nothing follows
        (answer,) = b.send(i.Subscribe(self.connection.session, self.number, self.queue, **options))
        if isinstance(answer, LanewayError):
            raise answer

    def take(self, deliveries: Deliveries) -> None:
        assert not self.is_cancelled, "something followed the answer to Unsubscribe"
        assert not self.has_ended, "something followed the end of the queue"
        assert len(deliveries) and deliveries.queue == self.queue
        self.taken.append(deliveries)
        some = [bytes(body) for body in deliveries.bodies]
        self.got += some
        self.held += zip(deliveries.seqs, deliveries.leases, some, strict=True)

    def end(self) -> None:
        assert not self.has_ended and not self.is_cancelled
        self.has_ended = True

    def settle(self, action: Any, *chosen: bytes, grant: bool = True, lease_ms: int | None = None) -> None:
        """Those with these bodies; all that it holds if none are named."""
        picked = [entry for entry in self.held if not chosen or entry[2] in chosen]
        assert picked
        if action != "extend":
            self.held = [entry for entry in self.held if entry not in picked]
        seqs, leases = [seq for seq, _, _ in picked], [lease for _, lease, _ in picked]
        consumer = self.number if grant else 0
        self.b.send(i.SettleHeld(self.connection.session, self.queue, seqs, leases, action, consumer, lease_ms))

    def cancel(self) -> None:
        def done(_: object) -> None:
            self.is_cancelled = True

        self.b.broker.send(i.Unsubscribe(self.connection.session, self.number), done)


async def get(b: Bench, queue: str = "q", **options: Any) -> Deliveries:
    """The next message for a connection that does nothing else."""
    session = b.broker.open_session(lambda push: None)
    found: Deliveries = await b.ask(i.Lease(b.id(queue), 1, session=session, **options))
    return found
