"""What a partition does because of something that happened in another one: it deletes the queues of virtual hosts that
are gone; and the first one, which keeps bindings, removes those whose queues are gone. What happened while nobody told
of it is found as well, when a partition begins to tell anew."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from itertools import islice
from typing import Protocol

from laneway.cluster.following import FollowedTopology
from laneway.core.partitions import partition_of
from laneway.errors import LanewayError

log = logging.getLogger("laneway.cluster")

RETRY_S = 1.0
STEP_COUNT = 500  # queues whose bindings go in one turn of the loop


class TidyPartition(Protocol):
    def unbind_gone(self, vhost: str, name: str) -> None: ...

    def rebind(self, vhost: str, name: str) -> None: ...

    def bound_to_gone(self) -> set[tuple[str, str]]: ...

    def delete_queues_in(self, is_gone: Callable[[str], bool], done: Callable[[object], None]) -> None: ...


class Tidying:
    def __init__(self, broker: TidyPartition, model: FollowedTopology, partition: int) -> None:
        self._broker = broker
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._unbound: dict[tuple[str, str], None] = {}  # names of queues whose bindings are to go
        if partition:
            model.on_vhost_deleted(lambda name: self._soon(self._delete_queues))
            model.on_heard(lambda other: self._soon(self._delete_queues))
            self._soon(self._delete_queues)
        else:
            model.on_queue_gone(self._queue_gone)
            model.on_moved(self._queue_moved)
            model.on_heard(lambda other: self._soon(self._unbind_all))
            self._soon(self._unbind_all)

    def _soon(self, call: Callable[[], None]) -> None:
        """What tells of it is amid other work."""
        self._loop.call_soon(self._try, call)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except LanewayError as refusal:  # nothing can be written at the moment
            self._again(call, refusal)

    def _again(self, call: Callable[[], None], refusal: LanewayError) -> None:
        log.warning("what other partitions deleted is tidied up later: %s", refusal)
        self._loop.call_later(RETRY_S, self._try, call)

    # Virtual hosts

    def _delete_queues(self) -> None:
        if self._model.is_complete:
            self._broker.delete_queues_in(lambda vhost: vhost not in self._model.vhosts, self._deleted)

    def _deleted(self, answer: object) -> None:
        if isinstance(answer, LanewayError):
            self._again(self._delete_queues, answer)

    # Bindings

    def _queue_gone(self, number: int, vhost: str, name: str) -> None:
        if partition_of(number) and self._model.is_complete and self._model.routing.into(vhost, "queue", name):
            self._unbind([(vhost, name)])

    def _queue_moved(self, before: int, now: int) -> None:
        queue = self._model.queues[now]
        if self._model.routing.into(queue.vhost, "queue", queue.name):
            self._unbind([(queue.vhost, queue.name)])

    def _unbind_all(self) -> None:
        if self._model.is_complete:
            self._unbind(self._broker.bound_to_gone())

    def _unbind(self, names: Collection[tuple[str, str]]) -> None:
        if names and not self._unbound:
            self._soon(self._unbind_some)
        self._unbound.update(dict.fromkeys(names))

    def _unbind_some(self) -> None:
        """A process that was killed may take thousands of queues with it."""
        for vhost, name in list(islice(self._unbound, STEP_COUNT)):
            self._broker.rebind(vhost, name)
            self._broker.unbind_gone(vhost, name)
            del self._unbound[vhost, name]
        if self._unbound:
            self._soon(self._unbind_some)
