"""Queues that stand still because they go to another partition (docs/decisions/0014), as one process sees it: what is
asked of them is held back, in order, until the topology says where they are, and then sent there.

Whoever holds an id of before may go on using it: this knows what became of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.broker import interface as i
from laneway.broker.values import Arrival
from laneway.cluster.asking import size_of
from laneway.cluster.overall import BY_NAME
from laneway.cluster.spreading import PROBE
from laneway.core.deliveries import NOTHING
from laneway.core.partitions import local_number, partition_of
from laneway.errors import LanewayError, Unavailable

if TYPE_CHECKING:
    from laneway.cluster.edge import Done, Edge
    from laneway.cluster.visits import Visitor

#: What may be held back; with more, requests are refused.
MAX_BYTES = 64 * 1024 * 1024
MAX_COUNT = 50_000
#: … and for how long.
PATIENCE_S = 60.0
#: Numbers of requests that are held back, or were: above those of all others.
_FIRST_NUMBER = 1 << 60

#: How soon something is asked for again that is elsewhere, nobody knows where.
LOOK_S = 0.05
#: Requests that are sent in one turn of the loop when a queue goes on.
RELEASED_AT_ONCE = 500

_OF_ONE_QUEUE = (i.Lease, i.LeaseAgain, i.Ack, i.Settle, i.SettleHeld, i.Subscribe)


class _Held:
    """A request that is held back."""

    __slots__ = ("at_s", "done", "number", "queues", "request", "size_bytes", "timer")

    def __init__(self, request: i.Request, done: Done, queues: set[i.QueueId], number: int, at_s: float) -> None:
        self.request = request
        self.done = done
        self.queues = queues
        self.number = number
        self.size_bytes = size_of(request)
        self.at_s = at_s
        self.timer: asyncio.TimerHandle | None = None

    def refuse(self, refusal: LanewayError) -> None:
        if self.request.is_answered:
            self.done(refusal)


class Standstill:
    def __init__(self, edge: Edge, process: int) -> None:
        self._edge = edge
        self._process = process
        self._model = edge.model
        self.is_busy = False  # whether requests have to come by here
        self._renamed: dict[i.QueueId, i.QueueId] = {}  # queues that have moved since this process began
        self._still: set[i.QueueId] = set()
        self._held: dict[int, _Held] = {}  # by number, in the order in which they came
        self._held_bytes = 0
        self._blocked: Counter[i.QueueId] = Counter()  # queues that something held back is for
        self._sent: dict[int, int] = {}  # number of a lease that was held back -> that under which it waits now
        self._last = _FIRST_NUMBER
        self._leaving: dict[i.QueueId, list[tuple[Visitor, int, int]]] = {}  # consumers, and how much each holds
        self._timer: asyncio.TimerHandle | None = None
        self._is_releasing = False
        self._model.on_still(self._stands_still)
        self._model.on_moved(self._moved)
        for queue, to in list(self._model.moving.items()):
            self._stands_still(queue, to)

    # Requests

    def send(self, request: i.Request, done: Done) -> int:
        """Send it to where its queues are, or hold it back if one of them stands still."""
        queues = self._queues_of(request)
        if not self._renamed.keys().isdisjoint(queues):
            request, done = self._readdressed(request, done)
            queues = self._queues_of(request)
        if self._still.isdisjoint(queues) and self._blocked.keys().isdisjoint(queues):
            return self._edge.dispatch(request, done)
        return self._hold(request, done, queues)

    def again(self, request: i.Lease, done: Done, number: int) -> int:
        """A lease that waited came back, as its queue goes elsewhere. It goes on waiting, under a number of ours."""
        if self._now(request.queue) == request.queue and request.queue not in self._still:
            # This process has not heard of it yet, or not any more.
            asyncio.get_running_loop().call_later(LOOK_S, self._again, request, done, number)
            return number
        return self._again(request, done, number)

    def _again(self, request: i.Lease, done: Done, number: int) -> int:
        found = self.send(request, self._forgetting(number, done))
        if number > 0:
            self._sent[number] = found
        return found

    def withdraw(self, number: int, *, answer: bool) -> bool:
        """Whether this is the number of a lease that was held back."""
        if number in self._sent:
            self._edge.withdraw(self._sent[number], answer=answer)
            return True
        held = self._held.get(number)
        if held is not None:
            self._drop(held)
            if answer:
                held.done(NOTHING)
        return number > _FIRST_NUMBER

    def _forgetting(self, number: int, done: Done) -> Done:
        def answered(answer: Any) -> None:
            self._sent.pop(number, None)
            done(answer)

        return answered

    def _queues_of(self, request: Any) -> set[i.QueueId]:
        kind = type(request)
        if kind is i.Publish:
            return set(chain.from_iterable(_routes(request.targets)))
        if kind in _OF_ONE_QUEUE:
            return {request.queue}
        if kind is i.Transact:
            return {*chain.from_iterable(request.targets), *(s.queue for s in request.settlements)}
        if kind in BY_NAME:
            known = self._model.by_name.get((request.vhost, request.name))
            return set() if known is None else {known.number}
        if kind is i.Unsubscribe:
            queue = self._edge.queue_of_consumer(request.session, request.consumer)
            return set() if queue is None else {queue}
        return set()

    def _now(self, queue: i.QueueId) -> i.QueueId:
        while queue in self._renamed:
            queue = self._renamed[queue]
        return queue

    def _route(self, route: i.Targets) -> i.Targets:
        return tuple(map(self._now, route))

    def _readdressed(self, request: Any, done: Done) -> tuple[Any, Done]:
        """A request with the ids that queues have now. Its answer has those that it came with."""
        kind = type(request)
        if kind in _OF_ONE_QUEUE:
            return msgspec.structs.replace(request, queue=self._now(request.queue)), done
        if kind is not i.Publish and kind is not i.Transact:
            return request, done
        given = request.targets
        before = {self._now(queue): queue for route in _routes(given) for queue in route}
        now = list(map(self._route, given)) if isinstance(given, list) else self._route(given)
        request = msgspec.structs.replace(request, targets=now)
        if kind is i.Transact:
            request.settlements = [msgspec.structs.replace(s, queue=self._now(s.queue)) for s in request.settlements]
        return request, partial(_arrived, before, done)

    # Holding back

    def _hold(self, request: i.Request, done: Done, queues: set[i.QueueId]) -> int:
        loop = asyncio.get_running_loop()
        self._last += 1
        held = _Held(request, done, queues, self._last, loop.time())
        if len(self._held) >= MAX_COUNT or self._held_bytes + held.size_bytes > MAX_BYTES:
            held.refuse(
                Unavailable(
                    f"{len(self._held)} requests wait for a queue that is on its way to another partition; try again "
                    "later"
                )
            )
            return 0
        self._held[held.number] = held
        self._held_bytes += held.size_bytes
        self._blocked.update(queues)
        if isinstance(request, i.Lease) and request.wait_ms:
            held.timer = loop.call_later(request.wait_ms / 1000, self._end_wait, held)
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE_S, self._lose_patience)
        return held.number

    def _drop(self, held: _Held) -> None:
        del self._held[held.number]
        self._held_bytes -= held.size_bytes
        if held.timer is not None:
            held.timer.cancel()
        for queue in held.queues:
            self._blocked[queue] -= 1
            if not self._blocked[queue]:
                del self._blocked[queue]

    def _end_wait(self, held: _Held) -> None:
        self._drop(held)
        held.done(NOTHING)

    def _lose_patience(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        late_s = loop.time() - PATIENCE_S
        for held in list(self._held.values()):
            if held.at_s > late_s:
                self._timer = loop.call_at(held.at_s + PATIENCE_S, self._lose_patience)
                break
            self._drop(held)
            held.refuse(Unavailable("its queue is still on its way to another partition; try again later"))

    def _release(self) -> None:
        """Send what nothing keeps any more, in order, and so many in one turn of the loop."""
        self._is_releasing = False
        stuck, sent = set(self._still), 0
        for held in list(self._held.values()):
            if held.number not in self._held:
                continue  # what was sent before had it withdrawn
            queues = set(map(self._now, held.queues))
            if not stuck.isdisjoint(queues):
                stuck |= queues
                continue
            if sent == RELEASED_AT_ONCE:
                self._release_soon()
                return
            sent += 1
            self._drop(held)
            self._send_held(held)

    def _release_soon(self) -> None:
        if not self._is_releasing:
            self._is_releasing = True
            asyncio.get_running_loop().call_soon(self._release)

    def _send_held(self, held: _Held) -> None:
        request, done = self._readdressed(held.request, held.done)
        if not isinstance(request, i.Lease):
            self._edge.dispatch(request, done)
            return
        waited_ms = int((asyncio.get_running_loop().time() - held.at_s) * 1000)
        request = msgspec.structs.replace(request, wait_ms=max(0, request.wait_ms - waited_ms))
        is_answered = False

        def answered(answer: Any) -> None:
            nonlocal is_answered
            is_answered = True
            self._sent.pop(held.number, None)
            done(answer)

        number = self._edge.dispatch(request, answered)
        if not is_answered and number > 0:
            self._sent[held.number] = number

    # What the topology says

    def _stands_still(self, queue: i.QueueId, to: int | None) -> None:
        """It stands still; or it stays where it is."""
        if to is None:
            self._go_on(queue, queue)
            return
        self._still.add(queue)
        self.is_busy = True
        owner = self._model.owners.get(queue, 0)
        if owner:
            self._edge.visit(owner, to)
        # What was asked of the queue before is carried out, and the other partition knows who owns it, before this says
        # so.
        self._edge.spreading.after(queue, partial(self._edge.to_partition, to, PROBE, partial(self._probed, queue)))

    def _probed(self, queue: i.QueueId, _: Any) -> None:
        if queue in self._still:
            quiet = i.Quiet(local_number(queue), self._process)
            self._edge.to_partition(partition_of(queue), quiet, _not_answered)

    def consumer_left(self, visitor: Visitor, consumer: int, held: int) -> None:
        """It is subscribed again where its queue is, when that is known."""
        request = visitor.requests.get(consumer)
        if request is not None:
            self._leaving.setdefault(self._now(request.queue), []).append((visitor, consumer, held))
            if self._now(request.queue) not in self._still:
                self._go_on(self._now(request.queue), self._now(request.queue))

    def _moved(self, queue: i.QueueId, now: i.QueueId) -> None:
        self._renamed[queue] = now
        self._go_on(queue, now)

    def _go_on(self, queue: i.QueueId, now: i.QueueId) -> None:
        self._still.discard(queue)
        for visitor, consumer, held in self._leaving.pop(queue, ()):
            request = visitor.requests.get(consumer)
            if request is not None:  # else its connection has ended
                self._edge.subscribe_again(msgspec.structs.replace(request, queue=now, held=held))
        self._release()
        self.is_busy = bool(self._still or self._held or self._renamed)


def _routes(targets: i.Targets | list[i.Targets]) -> Iterable[i.Targets]:
    return set(targets) if isinstance(targets, list) else (targets,)


def _arrived(before: dict[i.QueueId, i.QueueId], done: Done, answer: Any) -> None:
    if isinstance(answer, list):
        answer = [Arrival(before.get(a.queue, a.queue), a.places, a.result) for a in answer]
    done(answer)


def _not_answered(answer: Any) -> None:
    """Whoever sent this waits for nothing."""
