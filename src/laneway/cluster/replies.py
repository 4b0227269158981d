"""Direct replies on their way to callers that are connected to another process of the server.

    HELLO process               from the one that made the link; it sends replies from then on
    WELCOME                     to it; so does the other
    REPLY number, name, what    for the caller of this name: properties and body; None only asks whether it is there.
                                number 0: it has no answer
    TAKEN number, is_taken      whether the caller is there, and reads

Each two processes have one link, which the one with the higher number makes; replies go both ways, in order. A process
that comes back takes clients when all others have a link to it, so that its callers get their answers.

Nothing waits for a process that is gone or does not keep up: replies to its callers are dropped, and whoever wants to
know hears that nobody took them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from laneway.cluster.addresses import connect, listen
from laneway.cluster.asking import MAX_COUNT, tell
from laneway.cluster.link import Link, LinkOwner, Parcel
from laneway.cluster.remote import RETRY_S

log = logging.getLogger("laneway.cluster")

HELLO, WELCOME, REPLY, TAKEN = range(4)

#: With more than this unsent to a process, or more than MAX_COUNT replies that it has not answered for, the next one is
#: dropped. A client may send many in one turn of the loop, so it is a multiple of what a link calls full.
MAX_UNSENT_BYTES = 32 * 1024 * 1024
#: A process that says nothing for some of these (link.py) does not hold up those who want to know.
BEAT_S = 2.5

_REPLY_BYTES = 100  # what one takes beside what it brings

Heard = Callable[[bool], None]
Reply = tuple[bytes, bytes]  # properties and body


class _Neighbour:
    """Another process that is there."""

    __slots__ = ("is_stuck", "link", "process", "waiting")

    def __init__(self, process: int, link: Link) -> None:
        self.process = process
        self.link = link
        self.waiting: dict[int, Heard] = {}  # by number: who wants to know whether a reply was taken
        self.is_stuck = False

    def keeps_up(self) -> bool:
        was_stuck = self.is_stuck
        self.is_stuck = self.link.unsent_bytes > MAX_UNSENT_BYTES or len(self.waiting) >= MAX_COUNT
        if self.is_stuck and not was_stuck:
            log.warning("process %d does not keep up: direct replies to its clients are dropped", self.process)
        return not self.is_stuck


class ReplyLinks(LinkOwner):
    role = "leader"

    def __init__(self, process: int, addresses: Sequence[str], *, beat_s: float = BEAT_S) -> None:
        """`addresses`: where each process listens, by number; paths of Unix sockets."""
        self.process = process
        self.deliver: Callable[[str, Reply | None], bool] = _to_nobody  # to a client of this process
        self.beat_s = beat_s
        self._address = addresses[process]
        self._callers = [_Caller(self, number, addresses[number]) for number in range(process)]
        self._neighbours: dict[int, _Neighbour] = {}  # by process
        self._by_link: dict[Link, _Neighbour] = {}
        self._missing = set(range(len(addresses))) - {process}  # that were never there yet
        self._all_came = asyncio.Event()
        self._last = 0
        self._server: asyncio.Server | None = None
        self.is_stopping = False

    async def start(self) -> None:
        """Return when there was a link to every other process."""
        Path(self._address).unlink(missing_ok=True)  # of a process that was killed
        self._server = await listen(lambda: Link(self), self._address)
        for caller in self._callers:
            caller.reach()
        if self._missing:
            await self._all_came.wait()

    async def stop(self) -> None:
        self.is_stopping = True
        for caller in self._callers:
            caller.stop()
        if self._server is not None:
            self._server.close()
        for link in list(self._by_link):
            link.close()

    def send(self, process: int, name: str, what: Reply | None, heard: Heard | None = None) -> bool:
        """Whether it is on its way. Then `heard` is called later, with whether the caller takes it."""
        neighbour = self._neighbours.get(process)
        if neighbour is None or not neighbour.keeps_up():
            return False
        number = 0
        if heard is not None:
            number = self._last = self._last + 1
            neighbour.waiting[number] = heard
        size_bytes = sum(map(len, what)) if what is not None else 0
        neighbour.link.post((REPLY, number, name, what), size_bytes + _REPLY_BYTES)
        return True

    # Links

    def parcel_came(self, link: Link, parcel: Parcel) -> None:
        kind = parcel[0]
        if kind == HELLO:
            self.join(parcel[1], link)
            link.post((WELCOME,))
            self.greeted(parcel[1])
        elif link not in self._by_link:
            return  # it was given up
        elif kind == REPLY:
            _, number, name, what = parcel
            is_taken = self.deliver(name, what)
            if number:
                link.post((TAKEN, number, is_taken))
        else:
            tell(self._by_link[link].waiting.pop(parcel[1]), parcel[2])

    def join(self, process: int, link: Link) -> None:
        """Send replies to it from now on. A process that comes anew has given its earlier link up, though this end may
        not have noticed."""
        earlier = self._neighbours.get(process)
        if earlier is not None:
            self.link_lost(earlier.link)
            earlier.link.drop()
        self._neighbours[process] = self._by_link[link] = _Neighbour(process, link)

    def greeted(self, process: int) -> None:
        """Both ends send replies."""
        self._missing.discard(process)
        if not self._missing:
            self._all_came.set()

    def link_refused(self, link: Link, why: str) -> None:
        log.error("a connection for direct replies is refused: %s", why)

    def link_lost(self, link: Link) -> None:
        neighbour = self._by_link.pop(link, None)
        if neighbour is None:
            return
        del self._neighbours[neighbour.process]
        if not self.is_stopping:
            log.warning("direct replies do not reach process %d any more: the link is lost", neighbour.process)
        for heard in neighbour.waiting.values():
            tell(heard, False)


class _Caller(LinkOwner):
    """Makes the link to a process with a lower number, again and again."""

    role = "edge"

    def __init__(self, links: ReplyLinks, process: int, address: str) -> None:
        self._links = links
        self._process = process
        self._address = address
        self.beat_s = links.beat_s
        self._attempts = 0  # since there was a link
        self._reaching: asyncio.Task[None] | None = None

    def reach(self) -> None:
        self._reaching = asyncio.get_running_loop().create_task(self._try_to_reach())

    def stop(self) -> None:
        if self._reaching is not None:
            self._reaching.cancel()

    async def _try_to_reach(self) -> None:
        while True:
            if self._attempts:
                await asyncio.sleep(RETRY_S[min(self._attempts, len(RETRY_S)) - 1])
            self._attempts += 1
            try:
                await connect(lambda: Link(self), self._address)
                return
            except OSError:
                pass  # it is starting

    def link_made(self, link: Link) -> None:
        self._attempts = 0
        link.post((HELLO, self._links.process))
        self._links.join(self._process, link)

    def parcel_came(self, link: Link, parcel: Parcel) -> None:
        if parcel[0] == WELCOME:
            self._links.greeted(self._process)
        else:
            self._links.parcel_came(link, parcel)

    def link_lost(self, link: Link) -> None:
        self._links.link_lost(link)
        if not self._links.is_stopping:
            self.reach()


def _to_nobody(name: str, what: Reply | None) -> bool:
    return False
