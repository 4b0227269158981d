"""The edge's end: a broker whose partition is in another process. It answers look-ups from a copy of the topology;
everything else crosses a link.

When the link is lost, whoever waits for an answer is told that the outcome is unknown. Leases that wait for messages go
on waiting: they are asked for again once there is a link. So are subscriptions. What is asked while there is no leader
waits for one, for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from laneway.broker.interface import (
    ConsumerEnded,
    ConsumerLeft,
    EndSession,
    Flow,
    Lease,
    LimitPool,
    Publish,
    Push,
    Request,
    SessionId,
    Spread,
    Subscribe,
    Topology,
    Transact,
    Unsubscribe,
)
from laneway.broker.parts import is_long
from laneway.broker.topology import Change, TopologyView
from laneway.broker.values import BrokerLimits
from laneway.cluster import parcels as p
from laneway.cluster.addresses import check_secret, connect, is_path
from laneway.cluster.asking import Asked, Asking, Done, tell
from laneway.cluster.following import Feed, FollowedTopology
from laneway.cluster.link import Link, LinkOwner, Parcel
from laneway.core.deliveries import NOTHING, Deliveries
from laneway.errors import DiskFull, LanewayError, OutcomeUnknown, Unavailable

log = logging.getLogger("laneway.cluster")

RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # between attempts to be welcomed; the last one again and again
#: What is asked while the leader is away waits so long for the next one.
PATIENCE_S = 5.0
BEAT_S = 1.0  # over TCP

#: A leader that refuses one of these with such an error refuses those behind it too, until it hears that it was heard.
_PUBLISHES = (Publish, Transact, Spread)
_NOT_NOW = (DiskFull, Unavailable)


class RemoteSession:
    """A session, and what the leader must be told of it again if it is another one."""

    __slots__ = ("flow", "limits", "push", "subscriptions")

    def __init__(self, push: Callable[[list[Push]], None]) -> None:
        self.push = push
        self.subscriptions: dict[int, Subscribe] = {}  # by consumer
        self.limits: dict[int, LimitPool] = {}  # by pool
        self.flow: Flow | None = None

    def note(self, request: Request) -> None:
        if isinstance(request, Subscribe):
            # Another leader has had all given back that it held.
            kept = msgspec.structs.replace(request, held=0) if request.held else request
            self.subscriptions[request.consumer] = kept
        elif isinstance(request, Unsubscribe):
            self.subscriptions.pop(request.consumer, None)
        elif isinstance(request, LimitPool):
            if request.limit:
                self.limits[request.pool] = request
            else:
                self.limits.pop(request.pool, None)
        elif isinstance(request, Flow):
            self.flow = request

    def to_repeat(self) -> list[Request]:
        flow: list[Request] = [self.flow] if self.flow is not None and self.flow.paused else []
        return [*flow, *self.limits.values(), *self.subscriptions.values()]


class RemoteBroker(LinkOwner):
    limits: BrokerLimits

    role = "edge"

    def __init__(
        self,
        address: str,
        edge: int,
        now_ms: Callable[[], int],
        feed: Feed | None = None,
        *,
        secret: bytes = b"",
        beat_s: float = BEAT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`address`: the path of a Unix socket, or HOST:PORT, which takes a secret."""
        check_secret(address, secret)
        self._address = address
        self.secret = secret
        self.beat_s = 0 if is_path(address) else beat_s
        self._patience_s = patience_s
        self._impatience: asyncio.TimerHandle | None = None
        self._is_away = False  # for longer than that
        self._edge = edge
        self.now = now_ms
        self._feed = feed or FollowedTopology().feeds[0]  # what it tells of the topology goes there
        self.topology: Topology = TopologyView(self._feed.topology)
        self._latest: Link | None = None
        self._link: Link | None = None  # the same once a welcome came over it
        self._health: dict[str, object] = {"state": "starting"}
        self._asking = Asking(self._ask)
        self._again: dict[int, Subscribe] = {}  # by number: consumers that a new leader has not answered for yet
        self._withdrawn: set[int] = set()  # of those that were asked: an answer may be on its way all the same
        self._sessions: dict[SessionId, RemoteSession] = {}
        self._last_session = edge << p.SESSION_BITS
        self._is_stopping = False
        self._seen = 0  # changes that the leader was not told of yet
        self._attempts = 0  # to reach the leader, since it last welcomed this edge
        self._reached = asyncio.Event()
        self._reaching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._takers: dict[int, Callable[..., None]] = {
            p.IMAGE: self._feed.add,
            p.ANSWER: self._answered,
            p.PUSHED: self._pushed,
            p.CHANGED: self._changed,
            p.HEALTH: self._told_health,
        }

    # Beginning and end

    async def start(self) -> None:
        """Return when the leader was reached."""
        self._loop = asyncio.get_running_loop()
        self._reach()
        await self._reached.wait()

    async def stop(self) -> None:
        self._is_stopping = True
        if self._reaching is not None:
            self._reaching.cancel()
        if self._impatience is not None:
            self._impatience.cancel()
        if self._link is not None:
            self._link.close()
        else:
            self._fail_stopping()

    def _reach(self) -> None:
        self._reaching = self._loop.create_task(self._try_to_reach())

    async def _try_to_reach(self) -> None:
        while True:
            if self._attempts:
                await asyncio.sleep(RETRY_S[min(self._attempts, len(RETRY_S)) - 1])
            self._attempts += 1
            try:
                await connect(self._new_link, self._address)
                return
            except OSError as trouble:
                if self._attempts == len(RETRY_S) + 1:
                    log.warning("the leader at %s is not there: %s; trying again", self._address, trouble)

    # The link

    def _new_link(self) -> Link:
        self._latest = Link(self)
        return self._latest

    def link_made(self, link: Link) -> None:
        self._feed.expect_image()
        self._seen = 0
        link.post((p.HELLO, self._edge))

    def link_refused(self, link: Link, why: str) -> None:
        if self._attempts == 1:
            log.error("what listens at %s is not the leader: %s; trying again", self._address, why)

    def parcel_came(self, link: Link, parcel: Parcel) -> None:
        if link is not self._latest:
            return  # it was given up
        kind = parcel[0]
        if kind == p.WELCOME:
            self._welcome(link, *parcel[1:])
        else:
            self._takers[kind](*parcel[1:])

    def _welcome(self, link: Link, limits: BrokerLimits, credit_bytes: int, health: dict[str, object]) -> None:
        self._link = link
        self._attempts = 0
        self._is_away = False
        if self._impatience is not None:
            self._impatience.cancel()
        self.limits = limits
        self._health = health
        self._feed.end_image()
        self._tell_seen()
        for number, session in self._sessions.items():
            link.post((p.OPEN, number))
            for request in session.to_repeat():
                asked = 0
                if isinstance(request, Subscribe):
                    asked = self._asking.next_number()
                    self._again[asked] = request
                link.post((p.ASK, asked, request))
        self._asking.open(credit_bytes)
        self._reached.set()

    def link_full(self, link: Link, is_full: bool) -> None:
        self._asking.is_full = is_full
        self._asking.go_on()

    def link_lost(self, link: Link) -> None:
        if link is not self._latest:
            return
        self._latest = None
        was_open = self._asking.is_open
        self._asking.close()
        if self._is_stopping:
            self._fail_stopping()
            return
        self._link = None
        if was_open:
            log.warning("the link to the leader at %s is lost", self._address)
            self._health = {**self._health, "state": "unreachable"}
            self._impatience = self._loop.call_later(self._patience_s, self._be_impatient)
            self._again.clear()
            for number in self._withdrawn:
                self._asking.end(number)
            self._withdrawn.clear()
            self._fail_lost()
        self._reach()

    def _fail_lost(self) -> None:
        """What had not been sent is known not to be done. It does not go to the next leader, where it would overtake
        what is sent again because its outcome is not known."""
        asking = self._asking
        unknown = OutcomeUnknown("the process that has the queue is gone: whether this was done is not known")
        for number in asking.numbers():
            if number in asking and _may_be_repeated(asking[number].request):
                asking.hold(number)
            else:
                self._fail(number, _gone() if asking.is_held(number) else unknown)

    def _be_impatient(self) -> None:
        self._is_away = True
        for number in self._asking.numbers():
            if number in self._asking and not _may_be_repeated(self._asking[number].request):
                self._fail(number, _gone())

    def _fail_stopping(self) -> None:
        """What was sent, the leader may have done."""
        asking = self._asking
        unknown = OutcomeUnknown("the node is stopping: whether this was done is not known")
        for number in asking.numbers():
            if number in asking:
                is_known = asking.is_held(number) or _may_be_repeated(asking[number].request)
                self._fail(number, _stopping() if is_known else unknown)

    def _fail(self, number: int, error: LanewayError) -> None:
        if number in self._asking:  # else somebody who was told before has withdrawn it
            asked = self._asking.end(number)
            self._note_refusal(asked.request)
            tell(asked.done, error)

    def _note_refusal(self, request: Request) -> None:
        """Who was told that it is no consumer is not made one behind its back."""
        session = self._sessions.get(getattr(request, "session", 0))
        if session is not None and isinstance(request, Subscribe):
            session.subscriptions.pop(request.consumer, None)

    def _answered(self, number: int, answer: Any) -> None:
        again = self._again.pop(number, None)
        if again is not None:
            if isinstance(answer, LanewayError):  # its queue is gone, perhaps
                self._pushed(again.session, [ConsumerEnded(again.consumer)])
            return
        asked = self._asking.end(number)
        if isinstance(answer, LanewayError):
            self._note_refusal(asked.request)
            if isinstance(answer, _NOT_NOW) and isinstance(asked.request, _PUBLISHES) and self._link is not None:
                self._link.post((p.HEARD,))
        if number in self._withdrawn:
            self._withdrawn.discard(number)
            if not isinstance(answer, Deliveries) or not len(answer):
                return  # as it was asked for; else there are messages, which whoever asked has to give back
        tell(asked.done, answer)

    def _pushed(self, number: SessionId, pushes: list[Push]) -> None:
        session = self._sessions.get(number)
        if session is not None:
            for push in pushes:
                if isinstance(push, ConsumerEnded | ConsumerLeft):
                    session.subscriptions.pop(push.consumer, None)
            session.push(pushes)

    def _changed(self, change: Change) -> None:
        self._feed.apply(change)
        if not self._seen and self._link is not None:  # else it waits for the image
            self._loop.call_soon(self._tell_seen)
        self._seen += 1

    def _tell_seen(self) -> None:
        if self._link is not None and self._seen:
            self._link.post((p.SEEN, self._seen))
            self._seen = 0

    def _told_health(self, health: dict[str, object]) -> None:
        self._health = health

    # The broker's calls

    def health(self) -> dict[str, object]:
        return dict(self._health)

    def send(self, request: Request, done: Done) -> int:
        session = self._sessions.get(getattr(request, "session", 0))
        if session is not None and type(request) is not Subscribe:
            session.note(request)
            if isinstance(request, EndSession):
                del self._sessions[request.session]
        if not request.is_answered:
            if self._link is not None:
                self._link.post((p.ASK, 0, request))
            return 0
        if self._is_away and not _may_be_repeated(request):
            tell(done, _gone())
            return 0
        try:
            number = self._asking.ask(request, done)
        except Unavailable as refusal:
            tell(done, refusal)
            return 0
        may_be_overtaken = isinstance(request, Publish) and is_long(request.targets, len(request.messages.bodies))
        return number if may_be_overtaken or isinstance(request, Lease) else 0

    def _ask(self, number: int, asked: Asked) -> None:
        request = asked.request
        if isinstance(request, Subscribe) and request.session in self._sessions:
            self._sessions[request.session].note(request)  # from now on it is for the next leader too
        assert self._link is not None
        self._link.post((p.ASK, number, request), asked.size_bytes)

    async def ask(self, request: Request) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        number = self.send(request, lambda given: None if answer.done() else answer.set_result(given))
        try:
            given = await answer
        except asyncio.CancelledError:
            self.withdraw(number)
            raise
        if isinstance(given, LanewayError):
            raise given
        return given

    def withdraw(self, number: int, *, answer: bool = False) -> None:
        if number not in self._asking:
            return
        if self._link is not None and not self._asking.is_held(number):
            if not answer:
                self._withdrawn.add(number)
            self._link.post((p.WITHDRAW, number))
            return
        asked = self._asking.end(number)
        if answer:
            tell(asked.done, NOTHING)

    def open_session(self, push: Callable[[list[Push]], None], number: SessionId = 0) -> SessionId:
        """`number`: that it has already, where it is known in other partitions."""
        if not number:
            number = self._last_session = self._last_session + 1
        self._sessions[number] = RemoteSession(push)
        if self._link is not None:
            self._link.post((p.OPEN, number))
        return number

    def call_soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)


def _stopping() -> Unavailable:
    return Unavailable("the node is stopping; try again later")


def _gone() -> Unavailable:
    return Unavailable("the process that has the queue is not there; try again in a moment")


def _may_be_repeated(request: Request) -> bool:
    """Whether it does no harm to ask for it again from a leader that may have done it."""
    return isinstance(request, Lease) and not request.session
