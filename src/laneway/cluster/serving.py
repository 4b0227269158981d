"""The leader's end: a broker whose partition is in this process, for edges in others.

An edge's sessions are sessions of this broker, under the numbers that the edge gave them. When an edge is gone, so are
they: what was handed to them and not settled goes back to its queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from laneway.broker.interface import (
    Broker,
    Delivered,
    EndSession,
    Flow,
    Lease,
    Publish,
    Push,
    QueueId,
    Request,
    Reserve,
    SessionId,
    SettleHeld,
    Spread,
    Transact,
)
from laneway.broker.topology import Change, TopologyModel
from laneway.cluster import parcels as p
from laneway.cluster.addresses import check_secret, is_path, listen
from laneway.cluster.barrier import Barrier
from laneway.cluster.following import TopologyPart, image_of
from laneway.cluster.link import Link, LinkOwner, Parcel
from laneway.cluster.overall import CHANGES
from laneway.cluster.spreading import NOT_HELD
from laneway.core.deliveries import NOTHING, Deliveries
from laneway.errors import DiskFull, LanewayError, LeaseStale, OutcomeUnknown, Unavailable

log = logging.getLogger("laneway.cluster")

HEALTH_S = 0.5  # how old an edge's knowledge of the health may be
#: Of requests that an edge may have under way. It is what this process keeps of them, with what they become.
CREDIT_BYTES = 16 * 1024 * 1024
#: Connections that have not said who they are.
MAX_STRANGERS = 100
STRANGERS_LOG_S = 60.0  # between log lines about them
BEAT_S = 1.0  # over TCP

#: A publish that is refused with one of these is sent again later.
_NOT_NOW = (DiskFull, Unavailable)
_TIDY_FROM = 1_000  # deliveries to a session that are noted before the settled ones are looked for
_TIDY_QUEUES = 100  # from so many queues

Held = Callable[[int, Sequence[int], Sequence[int]], Sequence[bool]]  # queue, seqs, leases


class LedBroker(Broker, Protocol):
    """A broker whose partition is in this process, and what its followers need of it."""

    model: TopologyModel

    def follow(self, call: Callable[[Change], None]) -> None:
        """Have this called with every change of the topology, before whoever caused it is answered."""

    def open_session(self, push: Callable[[list[Push]], None], number: SessionId = 0) -> SessionId: ...

    def when_durable(self, call: Callable[[Any], None]) -> None:
        """Have this called once everything done so far is durable; with an error if that cannot be."""

    def find_holders(self, call: Callable[[int], dict[int, int]]) -> None:
        """Have this called for a queue: by lease id, the process (plus 1) whose session has it."""

    def process_gone(self, process: int) -> None:
        """The clients of a process are gone: what they held goes back, also what they were given elsewhere."""

    def is_carried(self, lease: int) -> bool:
        """Whether a lease was given in another partition."""

    def next_lease(self) -> int:
        """What a session is handed from now on has lease ids that are not below this."""

    def held(self, number: QueueId, seqs: Sequence[int], leases: Sequence[int]) -> Sequence[bool]:
        """Which of these are still leased so."""


class PartitionServer(LinkOwner):
    role = "leader"

    def __init__(
        self,
        broker: LedBroker,
        *,
        secret: bytes = b"",
        beat_s: float = BEAT_S,
        credit_bytes: int = CREDIT_BYTES,
    ) -> None:
        self._broker = broker
        self.secret = secret
        self._tcp_beat_s = beat_s
        self._credit_bytes = credit_bytes
        self._edges: dict[Link, RemoteEdge] = {}
        self._untold = 0  # changes that are not durable yet
        self._strangers: set[Link] = set()
        self._strangers_logged_s = -STRANGERS_LOG_S
        self._server: asyncio.Server | None = None
        self._health: dict[str, object] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.barrier = Barrier()
        broker.follow(self._changed)
        broker.find_holders(self._holders)

    def _holders(self, queue: int) -> dict[int, int]:
        found: dict[int, int] = {}
        for edge in self._edges.values():
            found.update(dict.fromkeys(edge.leases_of(queue), edge.number + 1))
        return found

    async def start(self, address: str) -> None:
        """`address`: the path of a Unix socket, or HOST:PORT, which takes a secret."""
        check_secret(address, self.secret)
        self.beat_s = 0 if is_path(address) else self._tcp_beat_s
        self._server = await listen(self._new_link, address)
        self._look_at_health()

    @property
    def port(self) -> int:
        """Where it listens, if that is not a path."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def _new_link(self) -> Link:
        return Link(self)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()
        for link in [*self._edges, *self._strangers]:
            link.close()
        self.barrier.stop()

    def _look_at_health(self) -> None:
        health = self._broker.health()
        if health != self._health:
            self._health = health
            for edge in self._edges.values():
                edge.tell_health(health)
        self._timer = asyncio.get_running_loop().call_later(HEALTH_S, self._look_at_health)

    def _changed(self, change: Change) -> None:
        """Others hear of it when it is durable: on what a crash takes back nobody is to rely."""
        self._untold += 1
        self._broker.when_durable(partial(self._tell_change, change))

    def _tell_change(self, change: Change, failure: LanewayError | None) -> None:
        self._untold -= 1
        if failure is None:
            self.barrier.changed()
            for edge in self._edges.values():
                edge.tell_change(change)

    def _when_told(self, call: Callable[[], None]) -> None:
        """Call when all changes there are were told."""
        if self._untold:
            self._broker.when_durable(lambda failure: call() if failure is None else None)
        else:
            call()

    # Links

    def link_begun(self, link: Link) -> None:
        self._strangers.add(link)
        if len(self._strangers) > MAX_STRANGERS:
            link.refuse(f"{MAX_STRANGERS} connections are greeting already")

    def link_refused(self, link: Link, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._strangers_logged_s >= STRANGERS_LOG_S:
            self._strangers_logged_s = now_s
            log.error("a connection from %s to this process is refused: %s", link.peer, why)

    def link_made(self, link: Link) -> None:
        """It says next which edge it is."""

    def parcel_came(self, link: Link, parcel: Parcel) -> None:
        edge = self._edges.get(link)
        if edge is not None:
            edge.take(parcel)
            return
        kind, number = parcel
        if kind != p.HELLO:
            raise ValueError(f"an edge begins with parcel {p.HELLO}, not {kind}")
        self._strangers.discard(link)
        self._drop_earlier(number)
        edge = RemoteEdge(link, number, self._broker, self.barrier, self._credit_bytes, self._when_told)
        self._edges[link] = edge
        self.barrier.joined(link)
        edge.welcome()

    def _drop_earlier(self, number: int) -> None:
        """An edge that comes anew has given its earlier link up, though this end may not have noticed. Its sessions
        have the same numbers again: were they ended later, those of now would be."""
        for link in [link for link, edge in self._edges.items() if edge.number == number]:
            self.link_lost(link)
            link.drop()

    def link_lost(self, link: Link) -> None:
        self._strangers.discard(link)
        edge = self._edges.pop(link, None)
        if edge is not None:
            self.barrier.left(link)
            edge.end()
            self._broker.process_gone(edge.number)

    def link_full(self, link: Link, is_full: bool) -> None:
        edge = self._edges.get(link)
        if edge is not None:
            edge.hold_back(is_full)


class RemoteEdge:
    """One process whose clients use this partition."""

    def __init__(
        self,
        link: Link,
        number: int,
        broker: LedBroker,
        barrier: Barrier,
        credit_bytes: int,
        when_told: Callable[[Callable[[], None]], None],
    ) -> None:
        """`when_told`: calls back when no change is left that edges do not hear of yet."""
        self._link = link
        self.number = number
        self._when_told = when_told
        self._broker = broker
        self._barrier = barrier
        self._credit_bytes = credit_bytes
        self._image: Iterator[TopologyPart] | None = None  # what it has not been told of it yet
        self._first_lease = broker.next_lease()
        self._is_full = False
        self._sessions: dict[int, Holdings] = {}
        self._paused: set[int] = set()  # sessions whose clients take nothing for now
        self._waits: dict[int, int] = {}  # the broker's number of each request that it may withdraw
        self._ending: set[int] = set()  # of those, which the edge waits for no longer
        self._parked: dict[int, Lease] = {}  # leases that are asked for when it takes something again
        self._refusal: LanewayError | None = None  # of a publish, until the edge has heard of it
        self._takers: dict[int, Callable[..., None]] = {
            p.ASK: self._ask,
            p.WITHDRAW: self._withdraw,
            p.OPEN: self._open,
            p.SEEN: partial(barrier.seen, link),
            p.HEARD: self._heard,
        }

    def take(self, parcel: Parcel) -> None:
        self._takers[parcel[0]](*parcel[1:])

    def welcome(self) -> None:
        self._image = image_of(self._broker.model)
        self._tell_image()

    def _tell_image(self) -> None:
        """A part in each turn of the loop, as long as the edge takes them."""
        if self._image is None or self._is_full:
            return
        try:
            part = next(self._image, None)
        except Exception:
            log.exception("another process could not be told of the topology")
            self._link.cut("it cannot be told of the topology")
            return
        if part is None:
            self._image = None
            self._when_told(self._end_image)  # the image has what is not durable, too
        else:
            self._link.post((p.IMAGE, part))
            self._broker.call_soon(self._tell_image)

    def _end_image(self) -> None:
        self._link.post((p.WELCOME, self._broker.limits, self._credit_bytes, self._broker.health()))

    def tell_change(self, change: Change) -> None:
        self._link.post((p.CHANGED, change))

    def tell_health(self, health: dict[str, object]) -> None:
        self._link.post((p.HEALTH, health))

    def _ask(self, number: int, request: Request) -> None:
        done: Callable[[Any], None] = partial(self._answer, number)
        if type(request) in CHANGES:
            done = partial(self._answer_when_known, number)
        elif isinstance(request, SettleHeld):
            request = self._settled(request)
        elif isinstance(request, Publish | Transact | Spread):
            if self._refusal is not None:
                done(self._refusal)
                return
            done = partial(self._answer_publish, number)
            if not isinstance(request, Publish):
                if any(map(self._is_of_before, request.settlements)):
                    done(LeaseStale(NOT_HELD))
                    return
                for settlement in request.settlements:
                    self._let_go(settlement)
        elif isinstance(request, Reserve):
            self._let_go(request)
        elif isinstance(request, EndSession):
            self._sessions.pop(request.session, None)
            self._paused.discard(request.session)
        elif isinstance(request, Flow):
            self._pause(request.session, request.paused)
            return
        elif isinstance(request, Lease):
            self._lease(number, request)
            return
        self._broker.send(request, done)

    def _answer(self, number: int, answer: Any) -> None:
        if number:
            self._link.post((p.ANSWER, number, answer))

    def _answer_when_known(self, number: int, answer: Any) -> None:
        if isinstance(answer, LanewayError):
            self._answer(number, answer)
        else:
            self._barrier.wait(partial(self._answer, number, answer))

    def _answer_publish(self, number: int, answer: Any) -> None:
        if isinstance(answer, _NOT_NOW) and not isinstance(answer, OutcomeUnknown):
            self._refusal = answer
        self._link.post((p.ANSWER, number, answer))

    def _heard(self) -> None:
        self._refusal = None

    def _lease(self, number: int, request: Lease) -> None:
        if self._is_full:
            self._parked[number] = request
            return

        def done(answer: Any) -> None:
            del self._waits[number]
            is_wanted = number not in self._ending
            self._ending.discard(number)
            if self._is_full and is_wanted and isinstance(answer, Deliveries) and not len(answer):
                self._parked[number] = request
                return
            if request.session and isinstance(answer, Deliveries) and not request.no_ack:
                self._note(request.session, answer)
            self._answer(number, answer)

        self._waits[number] = 0
        wait = self._broker.send(request, done)
        if number in self._waits:
            self._waits[number] = wait

    def _withdraw(self, number: int) -> None:
        """It is answered all the same: messages may be on their way to it already."""
        if self._parked.pop(number, None) is not None:
            self._answer(number, NOTHING)
        wait = self._waits.get(number, 0)
        if wait:
            self._ending.add(number)
            self._broker.withdraw(wait, answer=True)

    # Sessions

    def _open(self, session: int) -> None:
        self._sessions[session] = Holdings()
        self._broker.open_session(partial(self._push, session), session)
        if self._is_full:
            self._broker.send(Flow(session, True), _ignore)

    def _push(self, session: int, pushes: list[Push]) -> None:
        size_bytes = 0
        for push in pushes:
            if isinstance(push, Delivered):
                self._note(session, push.deliveries)
                if (
                    len(push.deliveries.bodies) == 1
                ):  # as all that are very large: they leave at once, and fill the link
                    size_bytes += len(push.deliveries.bodies[0])
        self._link.post((p.PUSHED, session, pushes), size_bytes)

    def _note(self, session: int, deliveries: Deliveries) -> None:
        holdings = self._sessions.get(session)
        if holdings is not None and len(deliveries):
            holdings.add(deliveries, self._broker.held)

    def _is_of_before(self, request: SettleHeld) -> bool:
        """Whether it names what was handed out over an earlier link."""
        if not (request.session and len(request.leases)) or min(request.leases) >= self._first_lease:
            return False
        return not all(map(self._is_of_now, request.leases))

    def _is_of_now(self, lease: int) -> bool:
        return lease >= self._first_lease or self._broker.is_carried(lease)

    def _settled(self, request: SettleHeld) -> SettleHeld:
        """Without what was handed out over an earlier link: that went back when it was lost, and no consumer of this
        one was charged for it. What was handed out in another partition is kept."""
        if self._is_of_before(request):
            kept = [i for i, one in enumerate(request.leases) if self._is_of_now(one)]
            seqs, leases = [request.seqs[i] for i in kept], [request.leases[i] for i in kept]
            request = msgspec.structs.replace(request, seqs=seqs, leases=leases)
        if request.action != "extend":
            self._let_go(request)
        return request

    def _let_go(self, request: SettleHeld | Reserve) -> None:
        """Its session holds these no longer."""
        holdings = self._sessions.get(request.session)
        if holdings is not None:
            holdings.settled(request.queue, request.leases)

    def leases_of(self, queue: int) -> list[int]:
        """That sessions have of a queue, and some that they had."""
        return [lease for holdings in self._sessions.values() for lease in holdings.leases(queue)]

    def hold_back(self, is_full: bool) -> None:
        """It does not take what it is sent: give it no more messages; or go on, with those whose clients take them."""
        self._is_full = is_full
        for session in self._sessions:
            # What this lets go may fill the link once more, at once.
            self._broker.send(Flow(session, self._is_full or session in self._paused), _ignore)
        if is_full:
            for wait in list(self._waits.values()):
                self._broker.withdraw(wait, answer=True)  # what is answered with nothing is parked
        else:
            parked, self._parked = self._parked, {}
            for number, request in parked.items():
                self._lease(number, request)
            self._tell_image()

    def _pause(self, session: int, is_paused: bool) -> None:
        if is_paused:
            self._paused.add(session)
        else:
            self._paused.discard(session)
        self._broker.send(Flow(session, is_paused or self._is_full), _ignore)

    def end(self) -> None:
        """The edge is gone, and so are its clients."""
        self._image = None
        self._parked.clear()
        for wait in self._waits.values():
            if wait:
                self._broker.withdraw(wait)
        sessions, self._sessions = self._sessions, {}
        for session, holdings in sessions.items():
            self._broker.send(EndSession(session), _ignore)  # first: else it would be pushed what it gives back
            for queue, seqs, leases in holdings.all():
                self._broker.send(SettleHeld(session, queue, seqs, leases, "release"), _ignore)


class Holdings:
    """What a session was handed and may still hold, so that it can be given back when its edge is gone. Mostly it
    settles what it was handed first. What it settles in another order is only counted: which ones are left is asked
    when that many are gone that asking is worth it; and when there are many queues, some of which may be gone."""

    def __init__(self) -> None:
        self._by_queue: dict[int, _Handed] = {}
        self._most_queues = _TIDY_QUEUES

    def __len__(self) -> int:
        """From how many queues it may hold some."""
        return len(self._by_queue)

    def add(self, d: Deliveries, held: Held) -> None:
        its = self._by_queue.get(d.queue)
        if its is None:
            if len(self._by_queue) >= self._most_queues:
                self._tidy(held)
            its = self._by_queue[d.queue] = _Handed()
        elif its.count > _TIDY_FROM and its.settled_count * 2 > its.count:
            its.tidy(d.queue, held)
        its.parts.append((d.seqs, d.leases))
        its.count += len(d.seqs)

    def settled(self, queue: int, leases: Sequence[int]) -> None:
        its = self._by_queue.get(queue)
        if its is not None:
            its.settled(leases)
            if its.settled_count >= its.count:
                del self._by_queue[queue]

    def _tidy(self, held: Held) -> None:
        for queue, its in list(self._by_queue.items()):
            its.tidy(queue, held)
            if not its.count:
                del self._by_queue[queue]
        self._most_queues = max(_TIDY_QUEUES, 2 * len(self._by_queue))

    def leases(self, queue: int) -> list[int]:
        its = self._by_queue.get(queue)
        return [lease for _, leases in its.parts for lease in leases] if its is not None else []

    def all(self) -> list[tuple[int, Sequence[int], Sequence[int]]]:
        return [(queue, seqs, leases) for queue, its in self._by_queue.items() for seqs, leases in its.parts]


class _Handed:
    """Of one queue."""

    __slots__ = ("count", "parts", "settled_count")

    def __init__(self) -> None:
        self.parts: deque[tuple[Sequence[int], Sequence[int]]] = deque()
        self.count = 0  # of all parts
        self.settled_count = 0  # of these

    def settled(self, leases: Sequence[int]) -> None:
        parts, at, count = self.parts, 0, len(leases)
        while parts and at < count:
            seqs, handed = parts[0]
            size = min(len(handed), count - at)
            if not _are_same(handed[:size], leases[at : at + size]):
                break
            at += size
            if size == len(handed):
                parts.popleft()
            else:
                parts[0] = seqs[size:], handed[size:]
        self.count -= at
        self.settled_count += count - at

    def tidy(self, queue: int, held: Held) -> None:
        seqs = [seq for part, _ in self.parts for seq in part]
        leases = [lease for _, part in self.parts for lease in part]
        kept = [i for i, is_held in enumerate(held(queue, seqs, leases)) if is_held]
        self.parts.clear()
        if kept:
            self.parts.append(([seqs[i] for i in kept], [leases[i] for i in kept]))
        self.count, self.settled_count = len(kept), 0


def _are_same(some: Sequence[int], others: Sequence[int]) -> bool:
    return some == others if type(some) is type(others) else list(some) == list(others)


def _ignore(answer: object) -> None:
    """There is nobody to tell."""
