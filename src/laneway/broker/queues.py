"""Queues: creating, changing, purging and deleting them, and what can be said of each in numbers.

What a call does takes effect at once; whoever answers for it waits for it to be durable first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Generator, Iterable
from operator import add, sub
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker.interface import SessionId
from laneway.broker.values import QueueDeclared, QueueInfo, QueueStats, Rates
from laneway.core import commands, purging
from laneway.core.events import QueueDeleted
from laneway.core.queue import RATED, TOTALS, Queue
from laneway.core.settings import QueueSettings
from laneway.core.state import queue_document
from laneway.core.world import KnownQueue
from laneway.errors import Conflict, QueueInUse, Unavailable

if TYPE_CHECKING:
    from laneway.broker.partition import Partition


def check_owned(queue: KnownQueue, owner: SessionId, session: SessionId) -> None:
    """What a connection has for itself alone, no other has anything from but that it may publish there."""
    if queue.settings.exclusive and (not session or owner != session):
        raise QueueInUse(f"queue {queue.name!r} belongs to the connection that declared it alone", field="queue")


class Queues:
    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.names: list[tuple[str, str]] = []  # in order, for listing
        self.going: set[int] = set()  # numbers of those that are being emptied, to be deleted then
        # Totals of deleted queues, less what all had counted when this process began: with the totals of those there
        # are, what has been counted since.
        self.gone_totals = [0] * len(TOTALS)

    def start(self) -> None:
        self._state = self._partition.engine.state
        self.names = sorted(self._state.by_name)
        for queue in self._state.by_name.values():
            self.gone_totals = list(map(sub, self.gone_totals, queue.totals))

    # Changing

    def declare(self, vhost: str, name: str, settings: QueueSettings | None, session: SessionId = 0) -> QueueDeclared:
        """The queue of this name, made now if there is none and settings are given. `session` has it for itself."""
        known = self._state.by_name.get((vhost, name))
        if known is None:
            if settings is None:
                self._partition.find_queue(vhost, name)  # raises that there is none
                raise AssertionError(name)
            if session and self._partition.sessions.find(session) is None:
                raise Unavailable(f"queue {name!r} would belong to a connection that has ended")
            declared = self.put(vhost, name, settings)
            if session:
                self._partition.sessions.own(session, self._partition.find_queue(vhost, name))
            self._partition.sessions.used(self._partition.find_queue(vhost, name))
            return msgspec.structs.replace(declared, info=self._partition.info(self._state.by_name[vhost, name]))
        self._partition.inbox.drain()
        self.check_stays(vhost, name)
        self._partition.sessions.used(known)
        return self._declared(known, is_new=False)

    def put(self, vhost: str, name: str, settings: QueueSettings) -> QueueDeclared:
        """Create a queue or change its settings."""
        partition = self._partition
        partition.check_writable()
        partition.vhosts.check(vhost)
        settings = partition.policies.over(vhost, name, settings)
        partition.inbox.drain()
        self.check_stays(vhost, name)
        self.check_stays(vhost, settings.dead_letter_queue)
        known = self._state.by_name.get((vhost, name))
        if known is not None:
            partition.check_owner(known)
        limit = partition.limits.max_message_bytes
        if settings.max_message_bytes == QueueSettings().max_message_bytes > limit:
            settings = msgspec.structs.replace(settings, max_message_bytes=limit)  # a default, not a wish
        partition.engine.run(
            commands.put_queue(
                self._state,
                vhost,
                name,
                settings,
                partition.now(),
                max_queues=partition.limits.max_queues,
                max_message_bytes=limit,
            )
        )
        queue = partition.find_queue(vhost, name)
        if known is None:
            insort(self.names, (vhost, name))
        else:
            partition.serve((queue.number,))  # others may be next now
        partition.sessions.used(queue)
        partition.set_timer()
        partition.committer.touch_later()
        return self._declared(queue, is_new=known is None)

    def change(self, vhost: str, name: str, changes: dict[str, Any]) -> QueueInfo:
        settings = commands.changed_settings(self._partition.open_queue(vhost, name), changes)
        return self.put(vhost, name, settings).info

    def _declared(self, queue: Queue, *, is_new: bool) -> QueueDeclared:
        consumers = self._partition.sessions.consumer_count(queue.number)
        return QueueDeclared(self._partition.info(queue), is_new, queue.ready, consumers)

    def delete(
        self,
        vhost: str,
        name: str,
        session: SessionId = 0,
        *,
        if_empty: bool = False,
        if_none_ready: bool = False,
        if_unused: bool = False,
    ) -> Generator[None, None, int]:
        """How many ready messages went with it. What is much goes in slices, before the queue does."""
        partition = self._partition
        queue = partition.open_queue(vhost, name, session)
        if queue.number in partition.moves.moving:
            raise Conflict(f"queue {name!r} is on its way to another partition; try again when it is there")
        if if_unused and queue.number in partition.sessions.audiences:
            raise QueueInUse(f"queue {name!r} has consumers", field="if_unused")
        if if_none_ready and queue.ready:
            raise Conflict(f"queue {name!r} is not empty", field="if_empty")
        commands.check_deletion(self._state, queue, if_empty=if_empty)
        ready = queue.ready
        if purging.weight(queue) > purging.SLICE:
            yield from self._empty(queue)
        if self._state.queues.get(queue.number) is queue:  # else it went with its virtual host
            partition.engine.run(commands.delete_queue(self._state, queue, partition.now(), if_empty=False))
            partition.committer.touch_later()
            self.forget(queue)
        return ready

    def delete_all(self, numbers: Iterable[int]) -> Generator[None, None, None]:
        """Whether one's dead letters go to another does not matter: both go."""
        partition, spent = self._partition, 0
        for number in numbers:
            if spent > purging.SLICE:
                yield
                partition.begin_change(adds=False)
                spent = 0
            queue = self._state.queues.get(number)
            if queue is None:
                continue  # it went with its connection
            if purging.weight(queue) > purging.SLICE:
                yield from self._empty(queue)
            if self._state.queues.get(number) is queue:
                spent += purging.deletion_cost(queue)
                partition.engine.run(iter([QueueDeleted(number, partition.now(), queue_document(queue))]))
                partition.committer.touch_later()
                self.forget(queue)

    def _empty(self, queue: Queue) -> Generator[None, None, None]:
        """What begins a deletion that takes long: for everybody the queue is gone, but for its name."""
        self.going.add(queue.number)
        try:
            self._partition.waiting.end(queue.number)
            self._partition.sessions.end_consumers(queue.number)
            while self._state.queues.get(queue.number) is queue and purging.weight(queue) > purging.SLICE:
                yield from self._purge(queue, leased=True, dead=True)
                yield
                self._partition.begin_change(adds=False)
        finally:
            self.going.discard(queue.number)

    def check_stays(self, vhost: str, name: str | None) -> None:
        queue = self._state.by_name.get((vhost, name or ""))
        if queue is not None and queue.number in self.going:
            raise Conflict(f"queue {name!r} is being deleted; create it again when it is gone", field="queue")

    def forget(self, queue: Queue) -> None:
        """A queue was just deleted: nothing here knows it any more, and those who wait for it are told."""
        del self.names[bisect_left(self.names, (queue.vhost, queue.name))]
        self.gone_totals = list(map(add, self.gone_totals, queue.totals))
        self._partition.waiting.end(queue.number)
        self._partition.sessions.queue_gone(queue.number)

    def left(self, queue: Queue) -> None:
        """It has gone to another partition, as it was."""
        del self.names[bisect_left(self.names, (queue.vhost, queue.name))]
        self._partition.sessions.queue_left(queue.number)

    def purge_all(self, queue: Queue) -> Generator[None, None, int]:
        return self._purge(queue, leased=True, dead=True)

    def purge(self, vhost: str, name: str, session: SessionId = 0, *, leased: bool) -> Generator[None, None, int]:
        """How many messages went: those that wait, and with `leased` also those that consumers hold. What is much goes
        in slices; what comes meanwhile stays."""
        return (yield from self._purge(self._partition.open_queue(vhost, name, session), leased=leased))

    def _purge(self, queue: Queue, *, leased: bool, dead: bool = False) -> Generator[None, None, int]:
        partition, state = self._partition, self._state
        count = 0
        for span in purging.spans(state, queue):
            if span[0]:
                yield
                partition.begin_change(adds=False)
                if state.queues.get(queue.number) is not queue:
                    break  # it was deleted meanwhile
            before = purging.weight(queue)
            partition.engine.run(
                commands.purge_queue(state, queue, partition.now(), leased=leased, dead=dead, span=span)
            )
            partition.committer.touch_later()
            count += before - purging.weight(queue)
        return count

    # Looking

    def stats(self, vhost: str, name: str) -> QueueStats:
        partition = self._partition
        q = partition.queue_to_look_at(vhost, name)
        now_ms = partition.now()
        oldest_ms = q.oldest_ms(self._state.table)
        return QueueStats(
            ready=q.ready,
            leased=q.leased,
            delayed=q.delayed,
            dead=len(q.dead),
            dead_elsewhere=q.dead_elsewhere,
            waiting_bytes=q.bytes_waiting,
            ready_by_priority=q.ready_by_priority(),
            oldest_age_ms=None if oldest_ms is None else max(0, now_ms - oldest_ms),
            consumers_waiting=partition.waiting.count(q.number),
            subscribers=partition.sessions.consumer_count(q.number),
            totals=dict(zip(TOTALS, q.totals, strict=True)),
            noisy_tenants=[t.name for t in q.tenants.noisy(q.leased)]
            if q.settings.fair and q.tenants is not None
            else [],
            rates={n: Rates(*(q.rate(i, now_ms, w) for w in (1, 5, 60, 300))) for i, n in enumerate(RATED)},
        )
