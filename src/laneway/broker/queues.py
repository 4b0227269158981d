"""Queues: creating, changing, listing, describing, purging and deleting them, and what can be said of each in numbers.

What ends in `_now` takes effect at once; whoever answers for it waits for it to be durable first.
"""

from __future__ import annotations

import builtins
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from laneway.broker.values import QueueInfo, QueueStats, Rates
from laneway.core import commands
from laneway.core.queue import RATED, TOTALS, Queue
from laneway.core.settings import QueueSettings
from laneway.core.table import SLAB_BITS, SLAB_MASK

if TYPE_CHECKING:
    from laneway.broker.broker import Broker


class Queues:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._names: builtins.list[tuple[str, str]] = []  # in order, for listing

    def start(self) -> None:
        self._state = self._broker.engine.state
        self._names = sorted(self._state.by_name)

    # Changing

    async def put(self, vhost: str, name: str, settings: QueueSettings) -> tuple[QueueInfo, bool]:
        info, created = self.put_now(vhost, name, settings)
        await self._broker.durable()
        return info, created

    def put_now(self, vhost: str, name: str, settings: QueueSettings) -> tuple[QueueInfo, bool]:
        """Create a queue or change its settings; (what it is now, whether it is new)."""
        broker = self._broker
        broker.check_writable()
        broker.vhosts.check(vhost)
        broker.run_gathered()
        known = self._state.by_name.get((vhost, name))
        if known is not None:
            broker.check_shared(known)
        limit = broker.limits.max_message_bytes
        if settings.max_message_bytes == QueueSettings().max_message_bytes > limit:
            settings = msgspec.structs.replace(settings, max_message_bytes=limit)  # a default, not a wish
        broker.engine.run(
            commands.put_queue(
                self._state,
                vhost,
                name,
                settings,
                broker.now(),
                max_queues=broker.limits.max_queues,
                max_message_bytes=limit,
            )
        )
        queue = broker.find_queue(vhost, name)
        if known is None:
            insort(self._names, (vhost, name))
        else:
            broker.serve(queue.number)  # others may be next now
        broker.sessions.used(queue)
        broker.set_timer()
        broker.committer.touch_later()
        return _info(queue), known is None

    async def change(self, vhost: str, name: str, changes: dict[str, object]) -> QueueInfo:
        settings = commands.changed_settings(self._broker.open_queue(vhost, name), changes)
        return (await self.put(vhost, name, settings))[0]

    async def delete(self, vhost: str, name: str, *, if_empty: bool = False) -> None:
        self.delete_now(vhost, name, if_empty=if_empty)
        await self._broker.durable()

    def delete_now(self, vhost: str, name: str, *, if_empty: bool = False) -> None:
        broker = self._broker
        queue = broker.open_queue(vhost, name)
        broker.engine.run(commands.delete_queue(self._state, queue, broker.now(), if_empty=if_empty))
        broker.committer.touch_later()
        self.forget(queue)

    def forget(self, queue: Queue) -> None:
        """A queue was just deleted: nothing here knows it any more, and those who wait for it are told."""
        del self._names[bisect_left(self._names, (queue.vhost, queue.name))]
        self._broker.waiting.end(queue.number)
        self._broker.sessions.queue_gone(queue.number)

    async def purge(self, vhost: str, name: str, *, leased: bool = False) -> int:
        """How many messages went: those that wait, and with `leased` also those that consumers hold."""
        purged = self.purge_now(vhost, name, leased=leased)
        await self._broker.durable()
        return purged

    def purge_now(self, vhost: str, name: str, *, leased: bool = False) -> int:
        broker = self._broker
        queue = broker.open_queue(vhost, name)
        before = queue.ready + queue.delayed + queue.leased
        broker.engine.run(commands.purge_queue(self._state, queue, broker.now(), leased=leased))
        broker.committer.touch_later()
        return before - queue.ready - queue.delayed - queue.leased

    # Looking

    def find(self, vhost: str, name: str) -> QueueInfo | None:
        queue = self._state.by_name.get((vhost, name))
        return _info(queue) if queue is not None else None

    def settings(self, vhost: str, name: str) -> QueueSettings | None:
        queue = self._state.by_name.get((vhost, name))
        return queue.settings if queue is not None else None

    def describe(self, vhost: str, name: str) -> QueueInfo:
        return _info(self._broker.queue_to_look_at(vhost, name))

    def list(
        self, *, vhost: str | None, prefix: str = "", limit: int = 100, after: tuple[str, str] | None = None
    ) -> builtins.list[QueueInfo]:
        """In the order of (vhost, name), those after `after`."""
        start = bisect_left(self._names, (vhost, prefix)) if vhost is not None else 0
        if after is not None:
            start = max(start, bisect_right(self._names, after))
        out: builtins.list[QueueInfo] = []
        for key in self._names[start:] if vhost is None else self._between(start, vhost, prefix):
            if key[1].startswith(prefix):
                out.append(_info(self._state.by_name[key]))
                if len(out) >= limit:
                    break
        return out

    def _between(self, start: int, vhost: str, prefix: str) -> Iterator[tuple[str, str]]:
        for i in range(start, len(self._names)):
            if self._names[i][0] != vhost or not self._names[i][1].startswith(prefix):
                return
            yield self._names[i]

    def count(self, vhost: str) -> int:
        return bisect_left(self._names, (vhost + "\0",)) - bisect_left(self._names, (vhost,))

    def stats(self, vhost: str, name: str) -> QueueStats:
        broker = self._broker
        q = broker.queue_to_look_at(vhost, name)
        now_ms = broker.now()
        table = self._state.table
        heads = [lane.peek(table) for lane in q.lanes.values() if lane.count]
        heads += [seq for _, seq, group in q.heads if group.offered == seq and not group.outstanding]
        if q.tenants is not None:
            heads += [head[0] for p in q.tenants.ready if (head := q.tenants.first(p, table)) is not None]
        ages = [now_ms - table.slabs[s >> SLAB_BITS].since_ms[s & SLAB_MASK] for s in heads if s]
        return QueueStats(
            ready=q.ready,
            leased=q.leased,
            delayed=q.delayed,
            dead=len(q.dead),
            dead_elsewhere=q.dead_elsewhere,
            waiting_bytes=q.bytes_waiting,
            ready_by_priority=q.ready_by_priority(),
            oldest_age_ms=max(0, *ages) if ages else None,
            consumers_waiting=broker.waiting.count(q.number),
            subscribers=broker.sessions.counts(vhost, name)[1],
            totals=dict(zip(TOTALS, q.totals, strict=True)),
            noisy_tenants=[t.name for t in q.tenants.noisy(q.leased)]
            if q.settings.fair and q.tenants is not None
            else [],
            rates={n: Rates(*(q.rate(i, now_ms, w) for w in (1, 60, 300))) for i, n in enumerate(RATED)},
        )


def _info(q: Queue) -> QueueInfo:
    return QueueInfo(q.vhost, q.name, q.settings, q.created_at_ms, q.changed_at_ms)
